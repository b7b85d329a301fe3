# Why traffic is or is not held back: every rule that looks at a topic, user and client id, limits in the order in which
# they are asked (decision.Limits), each with its limit, the rate against it, and which of them binds first; and which
# rules say nothing about it, and why.
#
#   model.py        what is known, and what an answer consists of
#   case.py         one question, and what all rules look up for it
#   quotas.py       rules of client quotas, the gateway's and the brokers'
#   groups.py       rules of resource groups
#   thresholds.py   rules of thresholds
#   others.py       all other rules
#   explaining.py   all of them put beside each other, and which comes first
#   sentences.py    what is said of the whole
#   wording.py      numbers, places and ends as people read them
#   topic_lines.py  all topics, each with its threshold
#
# It decides nothing: it puts what others know (policies, storage factor, rates, what was rejected) beside each other by
# the rules of broker_meters.py, quotas/lines.py and groups/lines.py. Knows no clock and no process: `now_ms` is Unix
# time. Its public names are these.

from policies.explain.case import LATELY_MS
from policies.explain.explaining import MAX_HELD, explain, shared_limits
from policies.explain.model import (
    ANONYMOUS,
    Asked,
    Explanation,
    FleetUse,
    Flow,
    Held,
    Known,
    Level,
    Rates,
    Rule,
    TopicLine,
    in_force,
    origin_of,
    quotas_percent,
)
from policies.explain.sentences import storage_effect
from policies.explain.topic_lines import By, top, topics

__all__ = [
    "ANONYMOUS",
    "LATELY_MS",
    "MAX_HELD",
    "Asked",
    "By",
    "Explanation",
    "FleetUse",
    "Flow",
    "Held",
    "Known",
    "Level",
    "Rates",
    "Rule",
    "TopicLine",
    "explain",
    "in_force",
    "origin_of",
    "quotas_percent",
    "shared_limits",
    "storage_effect",
    "top",
    "topics",
]
