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
        tuple(heapq.nlargest(MAX_QUOTA_RATES, quotas, key=lambda quota: quota.rate / quota.limit)),
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
    )


def _add_topic(one: TopicRate, other: TopicRate) -> TopicRate:
    return TopicRate(one.topic, one.rate + other.rate, other.threshold, one.over or other.over)


def _add_quota(one: QuotaRate, other: QuotaRate) -> QuotaRate:
    # Workers share a line, but for shares, which each of them deals out by itself.
    limit = one.limit + other.limit if one.key.endswith(":shares") else max(one.limit, other.limit)
    return one._replace(rate=one.rate + other.rate, limit=limit, waiting=one.waiting or other.waiting)


def _add_group(one: GroupRate, other: GroupRate) -> GroupRate:
    return other._replace(  # whose limits, of them all, are the later ones
        topics=max(one.topics, other.topics),  # the same ones in several workers, as a rule
        bytes_rate=one.bytes_rate + other.bytes_rate,
        msgs_rate=one.msgs_rate + other.msgs_rate,
        waiting=one.waiting or other.waiting,
    )
