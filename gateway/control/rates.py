# Rates that several workers measured, as one gateway's: rates add up, and what is over its limit in one of them is over
# it.
#
# Knows no worker, only what each said last: one that has gone is simply not among them.

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from gateway.channel import MAX_QUOTA_RATES, Rates
from policies.engine import BrokerRate, TopicRate
from policies.groups.lines import GroupRate
from policies.quotas.lines import QuotaRate

T = TypeVar("T")
NOTHING = Rates(())


def merge(said: Sequence[Rates]) -> Rates:
    """One gateway's rates from those of its workers.

    Workers share the limits of quotas and groups, so each tells the same; shares of a total add up to this gateway's.
    Thresholds are the same in every worker but for the moment in which they change: the later worker's stands.
    """
    if len(said) == 1:
        return said[0]
    if not said:
        return NOTHING
    quotas = _merged((each.quotas for each in said), lambda q: (q.key, q.source, q.user, q.client_id, q.broker), _quota)
    return Rates(
        tuple(_merged((each.brokers for each in said), lambda broker: broker.node_id, _broker)),
        tuple(dict.fromkeys(warning for each in said for warning in each.warnings)),
        tuple(heapq.nlargest(MAX_QUOTA_RATES, quotas, key=lambda quota: quota.rate / quota.limit)),
        tuple(_merged((each.groups for each in said), lambda group: (group.group, group.direction), _group)),
    )


def _merged(many: Iterable[Iterable[T]], name: Callable[[T], Hashable], unite: Callable[[Sequence[T]], T]) -> list[T]:
    found: dict[Hashable, list[T]] = {}
    for each in many:
        for rate in each:
            found.setdefault(name(rate), []).append(rate)
    return [own[0] if len(own) == 1 else unite(own) for own in found.values()]


def _broker(own: Sequence[BrokerRate]) -> BrokerRate:
    return BrokerRate(
        own[0].node_id,
        sum(each.rate for each in own),
        sum(each.error_rate for each in own),
        sum(each.throttled_rate for each in own),
        own[-1].threshold,
        _merged((each.topics for each in own), lambda topic: topic.topic, _topic),
    )


def _topic(own: Sequence[TopicRate]) -> TopicRate:
    rate = sum(each.rate for each in own)
    return TopicRate(own[0].topic, rate, own[-1].threshold, any(each.over for each in own))


def _quota(own: Sequence[QuotaRate]) -> QuotaRate:
    first = own[0]
    rate, limits = sum(each.rate for each in own), [each.limit for each in own]
    # Workers share a line, but for shares, which each of them deals out by itself.
    limit = sum(limits) if first.key.endswith(":shares") else max(limits)
    waiting = any(each.waiting for each in own)
    return QuotaRate(first.key, first.source, first.user, first.client_id, first.broker, rate, limit, waiting)


def _group(own: Sequence[GroupRate]) -> GroupRate:
    return GroupRate(
        own[0].group,
        own[0].direction,
        max(each.topics for each in own),  # the same ones in several workers, as a rule
        sum(each.bytes_rate for each in own),
        sum(each.msgs_rate for each in own),
        own[-1].bytes_limit,  # of them all
        own[-1].msgs_limit,
        any(each.waiting for each in own),
    )
