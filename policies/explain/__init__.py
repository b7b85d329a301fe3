# Why traffic is or is not held back: every rule that looks at a topic, user and client id, limits in the order in which
# they are asked (decision.PartitionLimits), each with its limit, the rate against it, and which of them binds first;
# and which rules say nothing about it, and why.
#
#   model.py           what is known, and what an answer consists of
#   case.py            one question, and what all rules look up for it
#   quotas.py          rules of client quotas, the gateway's and the brokers'
#   groups.py          rules of resource groups
#   thresholds.py      rules of thresholds
#   others.py          all other rules
#   explaining.py      all of them put beside each other, and which comes first
#   sentences.py       what is said of the whole
#   wording.py         numbers, places and ends as people read them
#   topic_statuses.py  all topics, each with its threshold
#
# It decides nothing: it puts what others know (policies, storage factor, rates, what was rejected) beside each other by
# the rules of broker_thresholds.py, quota_limiters.py and group_limiters.py. Knows no clock and no process: `now_ms` is
# Unix time. Its public names are these.

from policies.explain.case import RECENT_MS
from policies.explain.explaining import MAX_HELD, explain_traffic, shared_limit_keys
from policies.explain.model import (
    ANONYMOUS,
    ExplainedRule,
    ExplainInputs,
    ExplainSubject,
    FleetUse,
    HeldTraffic,
    LimitLevel,
    MeterRates,
    TopicFlow,
    TopicStatus,
    TrafficExplanation,
    origin_of,
    quota_in_force,
    quota_rollout_percent,
)
from policies.explain.sentences import storage_effect_text
from policies.explain.topic_statuses import TopOrder, top_topics, topic_statuses

__all__ = [
    "ANONYMOUS",
    "MAX_HELD",
    "RECENT_MS",
    "ExplainInputs",
    "ExplainSubject",
    "ExplainedRule",
    "FleetUse",
    "HeldTraffic",
    "LimitLevel",
    "MeterRates",
    "TopOrder",
    "TopicFlow",
    "TopicStatus",
    "TrafficExplanation",
    "explain_traffic",
    "origin_of",
    "quota_in_force",
    "quota_rollout_percent",
    "shared_limit_keys",
    "storage_effect_text",
    "top_topics",
    "topic_statuses",
]
