# Rates as metrics: of brokers, topics, client quotas and resource groups. They are those of the latest snapshots, so a
# topic that went away doesn't leave a rate behind.

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.channel import GroupSnapshot, WorkerRates
from gateway.control.metrics.family import gauge, make_gauges
from gateway.control.metrics.lines import gauge_lines, labels_text
from gateway.control.metrics.produced import LABEL_CHARS, TopicLabels, broker_label
from gateway.control.rates import merge_rates
from policies.fleet.keys import FleetKey, LimitUnit, group_key
from policies.groups.group_limiters import GroupLimitValues, GroupRate
from policies.limits.description import FleetUse
from policies.text import one_line
from policies.thresholds.broker_limits import TopicRate
from policies.thresholds.sums import CommittedTotal

_PLACE: Final = ("broker", "topic")
_QUOTA: Final = ("quota", "source", "user", "client_id", "broker")
_GROUP: Final = ("group", "direction")
BROKERS: Final = (
    gauge("broker_rate_bytes_per_second", "One-minute rate of bytes admitted to the broker.", ("broker",)),
    gauge("broker_error_rate_bytes_per_second", "One-minute rate of bytes that the broker refused.", ("broker",)),
    gauge(
        "broker_throttled_rate_bytes_per_second",
        "One-minute rate of bytes that a limit rejected or dropped (`acks=0`).",
        ("broker",),
    ),
    gauge(
        "broker_threshold_bytes_per_second",
        "The broker's `total.bytes.in.per.sec.threshold`; `+Inf` without one.",
        ("broker",),
    ),
    gauge(
        "broker_overcommitted_bytes_per_second",
        "Bytes per second by which the thresholds of its topics exceed the broker's total.",
        ("broker",),
    ),
    gauge(
        "broker_threshold_utilization_ratio",
        "Rate through all gateways divided by the threshold; with `on_exceed: delay` use of this gateway's share. "
        "`NaN` without a threshold.",
        ("broker",),
    ),
)
TOPICS: Final = (
    gauge(
        "topic_rate_bytes_per_second",
        "One-minute rate of bytes admitted to the topic. It and the broker's leave out what would have been rejected "
        "beyond `enforce_percent`.",
        _PLACE,
    ),
    gauge(
        "topic_threshold_bytes_per_second", "The topic's explicit or implicit threshold; `+Inf` without one.", _PLACE
    ),
    gauge("topic_threshold_utilization_ratio", "As the broker's, of the topic's rate and threshold.", _PLACE),
    gauge(
        "topic_over_threshold",
        "1 while topic and broker are over their thresholds: Produce requests are rejected or delayed; with mode "
        "`observe` they would be.",
        _PLACE,
    ),
)
RATES: Final = (*BROKERS, *TOPICS)
QUOTAS: Final = (
    gauge(
        "client_quota_rate",
        "Use of the quota through this gateway, bytes per second or a share of a thread's time: mean of 10 s, or the "
        "limit while it is used up.",
        _QUOTA,
    ),
    gauge(
        "client_quota_limit",
        "Limit in force for this gateway, with the storage factor and its share of the fleet's.",
        _QUOTA,
    ),
    gauge(
        "client_quota_utilization_ratio",
        "Rate divided by limit (KIP-1373's `quota-utilization`); `NaN` where the limit is 0.",
        _QUOTA,
    ),
    gauge("client_quota_waiting", "1 while the quota delays requests; with mode `observe` it would.", _QUOTA),
    gauge("client_quota_wait_seconds", "Time until the quota's debt is paid.", _QUOTA),
)
GROUPS: Final = (
    gauge("group_topics", "Topics with traffic through this gateway since the last tick.", _GROUP),
    gauge("group_waiting", "1 while the group delays requests at this gateway; with mode `observe` it would.", _GROUP),
    gauge(
        "group_rate_bytes_per_second",
        "Bytes per second through this gateway: mean of 10 s, or its part while that is used up.",
        _GROUP,
    ),
    gauge("group_part_bytes_per_second", "This gateway's share of the limit.", _GROUP),
    gauge("group_limit_bytes_per_second", "Bytes per second for all gateways; `+Inf` without a limit.", _GROUP),
    gauge(
        "group_fleet_rate_bytes_per_second",
        "Bytes per second through all gateways, if there are several that hear each other; for groups with a limit.",
        _GROUP,
    ),
    gauge("group_rate_messages_per_second", "Messages per second through this gateway, likewise.", _GROUP),
    gauge("group_part_messages_per_second", "This gateway's share of the limit.", _GROUP),
    gauge("group_limit_messages_per_second", "Messages per second for all gateways; `+Inf` without a limit.", _GROUP),
    gauge("group_fleet_rate_messages_per_second", "Messages per second through all gateways, likewise.", _GROUP),
)
_COLLECTED: Final = (*BROKERS, *QUOTAS, *GROUPS)
_UNITS: Final[tuple[tuple[str, LimitUnit], ...]] = (("bytes", "bytes"), ("messages", "msgs"))


class RateSeries(Collector):
    """The last values of the workers' meters. As a collector it has no rates of topics: these are in `render_text`.

    `worker_rates`: of each living worker. `groups`, `uses`: limits of resource groups, and their use by all gateways.
    `committed`: by broker, the sum that topics take of its threshold.
    """

    def __init__(self, max_clients: int, topics: TopicLabels) -> None:
        self._topics = topics
        self.worker_rates: tuple[WorkerRates, ...] = ()
        self.groups: GroupSnapshot | None = None
        self.uses: Mapping[FleetKey, FleetUse] = {}
        self.committed: Mapping[str, CommittedTotal] = {}
        self._max_clients = max_clients
        self._merged: tuple[tuple[WorkerRates, ...], WorkerRates] = (), merge_rates(())
        self._labels: dict[int, dict[str, bytes]] = {}  # by broker and topic, of those shown last

    def collect(self) -> Iterator[Metric]:
        rates = self._merge_rates()
        families = make_gauges(_COLLECTED)
        for broker in rates.brokers:
            add = _make_adder(families, [broker_label(broker.node_id)], "broker")
            add("rate_bytes_per_second", broker.rate)
            add("error_rate_bytes_per_second", broker.error_rate)
            add("throttled_rate_bytes_per_second", broker.throttled_rate)
            add("threshold_bytes_per_second", _limit_or_inf(broker.threshold))
            add("threshold_utilization_ratio", broker.limit_use.utilization)
        shown: set[tuple[str, ...]] = set()  # labels: names of clients may differ in what those don't show
        for quota in rates.quotas[: self._max_clients]:
            where = "all" if quota.broker is None else broker_label(quota.broker)
            who = (one_line(name or "", LABEL_CHARS) for name in (quota.source, quota.user, quota.client_id))
            names = (quota.key, *who, where)
            if names in shown:
                continue
            shown.add(names)
            add = _make_adder(families, names, "client_quota")
            add("rate", quota.use.rate)
            add("limit", _limit_or_inf(quota.use.limit))
            add("utilization_ratio", quota.use.utilization if quota.use.limit else math.nan)  # as KIP-1373 says
            add("waiting", float(quota.use.waiting))
            add("wait_seconds", quota.use.wait_s)
        for group in self.busiest_groups(rates):
            self._add_group(_make_adder(families, [group.group, group.direction], "group"), group)
        for node_id, each in self.committed.items():
            families["broker_overcommitted_bytes_per_second"].add_metric([node_id], each.overcommitted)
        yield from families.values()

    def render_text(self) -> Iterator[bytes]:
        """The part of the exposition that is about topics, in pieces."""
        chosen = self._topics.choose_busiest(self._merge_rates().brokers)
        known = self._labels
        found = {
            node_id: _labels_of(broker_label(node_id), topics, known.get(node_id, {}))
            for node_id, topics in chosen.items()
        }
        self._labels = found  # for the next one; there may be two at the same time
        shown = list(itertools.chain.from_iterable(chosen.values()))
        labels = [found[node_id][topic.topic] for node_id, topics in chosen.items() for topic in topics]
        values: dict[str, list[float]] = {
            "topic_rate_bytes_per_second": [topic.rate for topic in shown],
            "topic_threshold_bytes_per_second": [_limit_or_inf(topic.threshold) for topic in shown],
            "topic_threshold_utilization_ratio": [topic.limit_use.utilization for topic in shown],
            "topic_over_threshold": [int(topic.over) for topic in shown],
        }
        for family in TOPICS:
            yield from gauge_lines(family, labels, values[family.name])

    def _merge_rates(self) -> WorkerRates:
        """Of all workers, added up once."""
        by_worker, rates = self._merged
        if by_worker is not self.worker_rates:
            by_worker = self.worker_rates  # once: it may change meanwhile, as this runs in a thread
            self._merged = by_worker, (rates := merge_rates(by_worker))
        return rates

    def busiest_groups(self, rates: WorkerRates) -> list[GroupRate]:
        """The busiest groups."""
        return heapq.nlargest(self._max_clients, rates.groups, key=lambda group: group.bytes.rate)

    def _add_group(self, add: Any, group: GroupRate) -> None:
        add("topics", group.topics)
        add("waiting", float(group.waiting))
        limits = GroupLimitValues() if self.groups is None else self.groups.groups.get(group.group, GroupLimitValues())
        for unit, key in _UNITS:
            use, fleet = group.use_of(key), self.uses.get(group_key(group.group, group.direction, key))
            add(f"rate_{unit}_per_second", use.rate)
            add(f"limit_{unit}_per_second", _limit_or_inf(limits.rate_of(group.direction, key)))
            add(f"part_{unit}_per_second", _limit_or_inf(use.limit))
            if fleet is not None and fleet.hears_others:
                add(f"fleet_rate_{unit}_per_second", fleet.scaled_by(group.factor).combined_rate(use.rate))


def _make_adder(families: dict[str, GaugeMetricFamily], labels: Sequence[str], prefix: str) -> Any:
    def add(name: str, value: float) -> None:
        families[f"{prefix}_{name}"].add_metric(labels, value)

    return add


def _labels_of(broker: str, topics: Iterable[TopicRate], known: Mapping[str, bytes]) -> dict[str, bytes]:
    names = (topic.topic for topic in topics)
    return {name: known.get(name) or labels_text(_PLACE, (broker, name)) for name in names}


def _limit_or_inf(threshold: float | None) -> float:
    return math.inf if threshold is None else threshold
