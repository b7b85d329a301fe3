# Rates that several workers measured, as one gateway's: rates add up, and what is over its limit in one of them is over
# it.
#
# Knows no worker, only what each said last: one that has gone is simply not among them.

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Final, TypeVar

from gateway.channel import MAX_QUOTA_RATES, WorkerRates
from policies.groups.group_limiters import GroupRate
from policies.quotas.quota_limiters import QuotaRate
from policies.thresholds.broker_limits import BrokerRate, TopicRate

T = TypeVar("T")
NO_RATES = WorkerRates(())
_NODE_ID: Final = attrgetter("node_id")
_TOPIC: Final = attrgetter("topic")
_QUOTA: Final = attrgetter("bucket")
_GROUP: Final = attrgetter("group", "direction")


def merge_rates(by_worker: Sequence[WorkerRates]) -> WorkerRates:
    """One gateway's rates from those of its workers.

    Workers share the limits of quotas and groups, so each reports the same; shares of a total add up to this gateway's.
    Thresholds are the same in every worker but for the moment in which they change: the later worker's stands.
    """
    if len(by_worker) == 1:
        return by_worker[0]
    if not by_worker:
        return NO_RATES
    quotas = _merge_by_key((each.quotas for each in by_worker), _QUOTA, _add_quota)
    return WorkerRates(
        tuple(_merge_by_key((each.brokers for each in by_worker), _NODE_ID, _add_broker)),
        tuple(dict.fromkeys(warning for each in by_worker for warning in each.warnings)),
        tuple(heapq.nlargest(MAX_QUOTA_RATES, quotas, key=lambda quota: quota.use.utilization)),
        tuple(_merge_by_key((each.groups for each in by_worker), _GROUP, _add_group)),
    )


def _merge_by_key(many: Iterable[Iterable[T]], name: Callable[[T], Hashable], add: Callable[[T, T], T]) -> list[T]:
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
        _merge_by_key((one.topics, other.topics), _TOPIC, _add_topic),
        _later_rate(one.fleet_rate, other.fleet_rate),
        other.bucket_use and one.bucket_use and one.bucket_use.merge_shared(other.bucket_use),
    )


def _add_topic(one: TopicRate, other: TopicRate) -> TopicRate:
    fleet_rate = _later_rate(one.fleet_rate, other.fleet_rate)
    use = (
        one.bucket_use.merge_separate(other.bucket_use)
        if one.bucket_use and other.bucket_use
        else one.bucket_use or other.bucket_use
    )  # each has its part
    return TopicRate(one.topic, one.rate + other.rate, other.threshold, one.over or other.over, fleet_rate, use)


def _later_rate(one: float | None, other: float | None) -> float | None:
    """The rate from two workers' reports on the same sum: while it rises, one of them knows it already."""
    return None if one is None or other is None else max(one, other)


def _add_quota(one: QuotaRate, other: QuotaRate) -> QuotaRate:
    add = (
        one.use.merge_separate if one.key.endswith(":shares") else one.use.merge_shared
    )  # each allocates shares for itself
    return other._replace(use=add(other.use))


def _add_group(one: GroupRate, other: GroupRate) -> GroupRate:
    topics = max(one.topics, other.topics)  # the same ones in several workers, as a rule
    return other._replace(
        topics=topics, bytes=one.bytes.merge_shared(other.bytes), msgs=one.msgs.merge_shared(other.msgs)
    )
