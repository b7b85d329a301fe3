# Why traffic is or is not held back: every rule that looks at a topic, user and client id, limits in the order in which
# they are asked (decision.PartitionLimits), each with its limit, the rate against it, and which of them binds first;
# and which rules say nothing about it, and why.
#
#   model.py           what is known, and what an answer consists of
#   idle_limits.py     the limits themselves, as workers have them
#   case.py            one question, and what all rules look up for it
#   quotas.py          client quotas, the gateway's and the brokers'
#   groups.py          resource groups
#   thresholds.py      thresholds
#   others.py          storage protection, and rules that are no limits
#   explaining.py      all of them put beside each other, and which comes first
#   sentences.py       what is said of the whole
#   topic_statuses.py  all topics, each with its threshold
#
# It decides nothing, and computes no limit and no level: each limit says what it is (limits/description.py), by the
# numbers and functions by which it decides. Here these values are collected and put in order, together with what only
# others know: where values are set, what was rejected, and which values have no effect. Knows no clock and no process:
# `now_ms` is Unix time. Its public names are these.

from policies.explain.case import RECENT_MS
from policies.explain.explaining import MAX_HELD, explain_traffic, shared_limit_keys
from policies.explain.groups import group_statuses
from policies.explain.idle_limits import IdleLimits
from policies.explain.model import (
    ANONYMOUS,
    ExplainInputs,
    ExplainSubject,
    HeldTraffic,
    MeterRates,
    TopicFlow,
    TrafficExplanation,
    principal_of,
    quota_in_force,
    quota_rollout_percent,
)
from policies.explain.sentences import storage_effect_text
from policies.explain.topic_statuses import TopicStatus, TopOrder, top_topics, topic_statuses
from policies.limits.description import LimitDescription, LimitLevel

__all__ = [
    "ANONYMOUS",
    "MAX_HELD",
    "RECENT_MS",
    "ExplainInputs",
    "ExplainSubject",
    "HeldTraffic",
    "IdleLimits",
    "LimitDescription",
    "LimitLevel",
    "MeterRates",
    "TopOrder",
    "TopicFlow",
    "TopicStatus",
    "TrafficExplanation",
    "explain_traffic",
    "group_statuses",
    "principal_of",
    "quota_in_force",
    "quota_rollout_percent",
    "shared_limit_keys",
    "storage_effect_text",
    "top_topics",
    "topic_statuses",
]
