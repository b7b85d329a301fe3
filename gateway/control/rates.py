# Rates that several workers measured, as one gateway's: rates add up, and what is over its limit in one of them is over
# it.
#
# Knows no worker, only what each said last: one that has gone is simply not among them.

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Final, TypeVar

from gateway.channel import MAX_QUOTA_RATES, Rates
from policies.engine import BrokerRate, TopicRate
from policies.groups.lines import GroupRate
from policies.quotas.lines import QuotaRate

T = TypeVar("T")
NOTHING = Rates(())
_NODE_ID: Final = attrgetter("node_id")
_TOPIC: Final = attrgetter("topic")
_QUOTA: Final = attrgetter("key", "source", "user", "client_id", "broker")
_GROUP: Final = attrgetter("group", "direction")


def merge(said: Sequence[Rates]) -> Rates:
    """One gateway's rates from those of its workers.

    Workers share the limits of quotas and groups, so each tells the same; shares of a total add up to this gateway's.
    Thresholds are the same in every worker but for the moment in which they change: the later worker's stands.
    """
    if len(said) == 1:
        return said[0]
    if not said:
        return NOTHING
    quotas = _merged((each.quotas for each in said), _QUOTA, _add_quota)
    return Rates(
        tuple(_merged((each.brokers for each in said), _NODE_ID, _add_broker)),
        tuple(dict.fromkeys(warning for each in said for warning in each.warnings)),
        tuple(heapq.nlargest(MAX_QUOTA_RATES, quotas, key=lambda quota: quota.use.utilization)),
        tuple(_merged((each.groups for each in said), _GROUP, _add_group)),
    )


def _merged(many: Iterable[Iterable[T]], name: Callable[[T], Hashable], add: Callable[[T, T], T]) -> list[T]:
    found: dict[Hashable, T] = {}
    for each in many:
        for rate in each:
            key = name(rate)
            found[key] = add(found[key], rate) if key in found else rate
    return list(found.values())


def _add_broker(one: BrokerRate, other: BrokerRate) -> BrokerRate:
    return BrokerRate(
        one.node_id,
        one.rate + other.rate,
        one.error_rate + other.error_rate,
        one.throttled_rate + other.throttled_rate,
        other.threshold,
        _merged((one.topics, other.topics), _TOPIC, _add_topic),
        _later(one.fleet_rate, other.fleet_rate),
        other.use and one.use and one.use.beside(other.use),
    )


def _add_topic(one: TopicRate, other: TopicRate) -> TopicRate:
    fleet_rate = _later(one.fleet_rate, other.fleet_rate)
    use = one.use.added(other.use) if one.use and other.use else one.use or other.use  # each has its part
    return TopicRate(one.topic, one.rate + other.rate, other.threshold, one.over or other.over, fleet_rate, use)


def _later(one: float | None, other: float | None) -> float | None:
    """Of two workers' words on the same sum: while it rises one of them knows it already."""
    return None if one is None or other is None else max(one, other)


def _add_quota(one: QuotaRate, other: QuotaRate) -> QuotaRate:
    add = one.use.added if one.key.endswith(":shares") else one.use.beside  # shares are dealt out by each for itself
    return other._replace(use=add(other.use))


def _add_group(one: GroupRate, other: GroupRate) -> GroupRate:
    topics = max(one.topics, other.topics)  # the same ones in several workers, as a rule
    return other._replace(topics=topics, bytes=one.bytes.beside(other.bytes), msgs=one.msgs.beside(other.msgs))
