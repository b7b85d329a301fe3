# Every metric of the gateway: name, labels and help in one table, in a registry of its own. All are there at 0 from the
# start, those of a topic from its first byte on.
#
# What happened comes from workers as rows of intervals and as counts; what is so just now as Rates and Gauges. A name
# that a client says becomes a label only once a broker vouched for it, cut and within a cap; the rest is `other`. Rates
# are shown from the latest snapshot, so a topic that went away doesn't leave a rate behind. Knows no sockets and no
# files.

from __future__ import annotations

import heapq
import math
import platform
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, Final, cast, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.channel import (
    COUNTS,
    Gauges,
    Groups,
    Interval,
    Rates,
    Row,
)
from gateway.control import admission
from gateway.control.rates import merge
from policies.engine import BrokerRate, TopicRate
from policies.explain import FleetUse
from policies.fleet.keys import Direction, FleetKey, Unit, group_key
from policies.groups.lines import GroupLimits, GroupRate
from policies.storage import Finding, State
from policies.text import one_line
from policies.usage import DELAYED, NOTES, OUTCOMES, REASONS

PREFIX: Final = "produce_gateway"
OTHER: Final = "other"
# Rows of these outcomes are shown at 0 for each topic, but for reasons that no topic with series of its own can have.
NO_SERIES: Final = frozenset({"protected-topic", "unknown-topic-id"})
SHOWN: Final = tuple(
    (outcome, reason)
    for outcome in OUTCOMES
    for reason in ([r for r in REASONS[outcome] if r not in NO_SERIES] if outcome in REASONS else [""])
)
_APPENDED: Final = frozenset({"accepted", "unacknowledged"})
LABEL_CHARS: Final = 256
MAX_WAITING: Final = 10_000  # rows of topics that metadata doesn't list yet
_PLACE = ("broker", "topic")
_ROW = (*_PLACE, "outcome", "reason")
SHOWN_NOTES: Final = tuple((note, reason) for note in NOTES for reason in REASONS[note])

# name -> (labels, help). Counters get `_total`.
COUNTERS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "produce_bytes": (
        _ROW,
        (
            "Bytes of record batches in Produce requests, by outcome. The sum over all outcomes is what "
            "producers offered."
        ),
    ),
    "produce_messages": (_ROW, "Records in Produce requests, by outcome."),
    "produce_requests": (_ROW, "Produce requests with at least one partition of the topic, by outcome."),
    "produce_repeats_bytes": (
        _PLACE,
        "Bytes whose previous attempt was rejected. Rejected bytes minus these were not sent again: "
        "audit (docs/audit.md).",
    ),
    "produce_repeats_unknown_bytes": (
        _PLACE,
        "Bytes for which the gateway can't tell whether they repeat a rejected attempt.",
    ),
    "policy_bytes": (
        _ROW,
        "Bytes that a policy delayed or, in mode: observe, would have rejected or delayed. "
        "produce_bytes counts the same bytes under their outcome.",
    ),
    "policy_requests": (
        _ROW,
        "Produce requests that a policy delayed or, in mode: observe, would have rejected or delayed.",
    ),
    "throttle_seconds": (
        _ROW,
        "Time for which the gateway throttled or held clients, by outcome: rejected or delayed.",
    ),
    "client_bytes": (
        ("principal", "client_id", "outcome"),
        "Bytes of record batches by client. A client has series of its own once a broker has "
        "accepted something from it; before that, and beyond limits.max_client_metrics, it is "
        "counted under other.",
    ),
    "connections_accepted": ((), "Client connections handed to a worker."),
    "requests": ((), "Requests from clients, of every API."),
    "answers_local": ((), "Requests that the gateway answered itself."),
    "answers_merged": ((), "Broker answers into which the gateway merged rejected partitions."),
    "requests_malformed": ((), "Requests that could not be parsed. Each closed its connection."),
    "tls_handshakes_failed": ((), "Connections that ended because the TLS handshake failed."),
    "upstream_failed": ((), "Connections to brokers that could not be opened or that the broker closed first."),
    "brokers_withheld": ((), "Times a broker was left out of an answer because the gateway has no listener for it."),
    "answers_not_followed": (
        (),
        (
            "Answers that may contain broker addresses but that the gateway could not parse, so that "
            "addresses in them were not hidden."
        ),
    ),
    "topic_ids_unknown": (
        (),
        "Times the gateway could not find the name of a request's topic ids in time. It answers "
        "such Produce partitions with UNKNOWN_TOPIC_ID, and charges such Fetch answers to no "
        "resource group.",
    ),
    "mutes": ((), "Times the gateway held a connection's Produce requests for a throttle time."),
    "fetches_delayed": ((), "Fetch requests held by a client quota or a resource group."),
    "fetch_delay_ms": ((), "Time for which client quotas and resource groups held Fetch requests, in milliseconds."),
    "fetches_would_be_delayed": (
        (),
        "Fetch requests that client quotas or resource groups would have held, in mode observe.",
    ),
    "disconnects": (
        ("cause",),
        (
            "Client connections that ended, by cause: those of security (docs/security.md), and client, "
            "upstream, error or drain."
        ),
    ),
    "connections_refused": (
        ("limit",),
        "Client connections refused because of limits.max_connections or limits.max_connections_per_address.",
    ),
    "accept_pauses": ((), "Pauses in accepting connections, because of too many open files or too little memory."),
    "worker_restarts": (("worker",), "Times a worker died and was started again."),
    "policy_changes": (
        ("outcome",),
        "Requests to change policies at run time, by outcome: accepted, unchanged, refused or failed.",
    ),
    "workers_lost": (
        (),
        "Workers that died before they reported their last interval. The audit reports them as incomplete.",
    ),
    "metadata_refreshes": (("outcome",), "Metadata requests to the cluster, by outcome: ok or failed."),
    "usage_log_intervals": ((), "Intervals received from workers."),
    "usage_log_records_written": ((), "Usage records written to the spool."),
    "usage_log_records_published": ((), "Usage records acknowledged by the usage topic."),
    "usage_log_dropped": (
        ("reason",),
        "Usage data that was given up, by reason: intervals that don't form a valid record "
        "(invalid), records that the broker refused (refused).",
    ),
    "usage_log_spool_errors": ((), "Failed attempts to write to the spool. The data is kept and written later."),
}
GAUGES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "policy_version": ((), "Version of the policies in force. It grows with every change at run time."),
    "policy_store_up": ((), "1 while the gateway knows all changes made at run time and accepts new ones."),
    "connections": (("worker",), "Open client connections."),
    "muted_connections": (("worker",), "Client connections whose Produce requests are currently held."),
    "buffered_bytes": (("worker",), "Bytes from clients and brokers held in memory."),
    "worker_up": (("worker",), "1 while the worker is connected to control."),
    "upstream_up": ((), "1 if the last metadata request to the cluster succeeded."),
    "upstream_brokers": ((), "Brokers listed in the cluster's metadata."),
    "upstream_brokers_without_listener": (
        (),
        "Brokers withheld from clients because the gateway can't open their port.",
    ),
    "usage_log_backlog_bytes": ((), "Bytes in the spool that the usage topic has not acknowledged yet."),
    "usage_log_spool_bytes": ((), "Total size of the spool."),
    "usage_log_queued_intervals": ((), "Intervals received from workers and not yet written to the spool."),
    "lacking": (("part",), "1 while the gateway runs without this part of it; /readyz gives the reason."),
    "build_info": (("version", "python"), "Always 1; the labels carry the versions."),
    "config_info": (
        ("gateway", "upstream", "internal_topics", "usage_topic"),
        "Always 1; the labels carry the names from the configuration.",
    ),
}
_GROUP: Final = ("group", "direction")
RATES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "broker_rate_bytes_per_second": (("broker",), "One-minute rate of bytes admitted to the broker."),
    "broker_error_rate_bytes_per_second": (("broker",), "One-minute rate of bytes that the broker refused."),
    "broker_throttled_rate_bytes_per_second": (("broker",), "One-minute rate of bytes rejected by thresholds."),
    "broker_threshold_bytes_per_second": (
        ("broker",),
        "The broker's total.bytes.in.per.sec.threshold; +Inf without one.",
    ),
    "broker_threshold_utilization_ratio": (
        ("broker",),
        "The broker's rate divided by its threshold, not capped at 1; NaN without a threshold.",
    ),
    "topic_rate_bytes_per_second": (("broker", "topic"), "One-minute rate of bytes admitted to the topic."),
    "topic_threshold_bytes_per_second": (
        ("broker", "topic"),
        "The topic's explicit or implicit threshold; +Inf without one.",
    ),
    "topic_threshold_utilization_ratio": (
        ("broker", "topic"),
        "The topic's rate divided by its threshold, not capped at 1; NaN without a threshold.",
    ),
    **{
        f"client_quota_{name}": (("quota", "source", "user", "client_id", "broker"), text)
        for name, text in {
            "rate": (
                "One-minute rate of the quantity that the quota limits: bytes per second, or a share of a "
                "thread's time."
            ),
            "limit": "The limit in force for this gateway, with the storage factor and the gateway's share applied.",
            "utilization_ratio": "The rate divided by the limit, not capped at 1.",
            "waiting": "1 while the quota delays requests.",
        }.items()
    },
    "topic_over_threshold": (("broker", "topic"), "1 while the gateway rejects Produce requests for the topic."),
    "group_topics": (_GROUP, "Topics of the resource group that had traffic through this gateway since the last tick."),
    "group_waiting": (_GROUP, "1 while the resource group delays requests at this gateway."),
    **{
        f"group_{name}_{unit}_per_second": (_GROUP, f"{text.capitalize()} per second {what}.")
        for unit, text in (("bytes", "bytes"), ("messages", "messages"))
        for name, what in {
            "rate": "that passed through this gateway, over one minute",
            "part": "that this gateway may let through just now",
            "limit": "that all gateways together may let through, +Inf where there is no limit",
            "fleet_rate": "that pass through all gateways, over about a second; where there is a limit",
        }.items()
    },
}
FLEET_COUNTERS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "fleet_reports_sent": ((), "Messages to other gateways that the exchange topic acknowledged."),
    "fleet_reports_received": ((), "Messages received from other gateways."),
    "fleet_report_bytes": (("direction",), "Size of these messages, by direction: sent or received."),
    "fleet_reports_dropped": (
        ("reason",),
        "Messages from other gateways that were not used, by reason (docs/exchange.md).",
    ),
}
FLEET_GAUGES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "fleet_peers": ((), "Live peer gateways."),
    "fleet_members": ((), "Workers of all gateways, which share the limits."),
    "fleet_exchange_up": ((), "1 while the gateway receives messages from its peers; 0 also if there is no exchange."),
    "fleet_share_state": (
        ("state",),
        "1 for the current way of sharing limits: local (no exchange), shared, frozen (the exchange "
        "has just gone away) or fallback (it has been away for long).",
    ),
}
_VOLUME = ("broker", "log_dir")
# Of storage protection; there only where it is on. Names after those of the proposals.
STORAGE_COUNTERS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "storage_observations": (
        ("outcome",),
        "Observations of the cluster's disks, by outcome: ok, failed, or invalid (an unreadable snapshot).",
    ),
    "storage_fallback_throttle_factor_applied": ((), "Times the fallback factor or the fail-safe took effect."),
    "storage_limit_violated": (_VOLUME, "Checks that found this volume at its hard limit."),
}
STORAGE_GAUGES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "storage_throttle_factor": ((), "The factor by which every produce limit is multiplied, 1 to 0."),
    "storage_state": (("state",), "1 for the state in force: OPEN, THROTTLE or PAUSE."),
    "storage_no_data_throttling": ((), "1 while missing observations reduce what the gateway lets through."),
    "storage_source_connected": ((), "1 if the source answered the last request."),
    "storage_observed_timestamp_seconds": (
        (),
        "Unix time at which the disks of all brokers were last known; 0 before the first time.",
    ),
    "storage_soft_limit_without_effect": (
        (),
        "1 while there is a soft limit but no produce limit that it could lower.",
    ),
    "storage_active_brokers": ((), "Brokers whose volumes are considered."),
    "storage_active_log_dirs": ((), "Volumes of these brokers."),
    "storage_offline_log_dirs": ((), "Log dirs that brokers report as offline. They are left out."),
    "storage_size_bytes": (_VOLUME, "Size of the volume."),
    "storage_available_bytes": (_VOLUME, "Free bytes of the volume."),
    "storage_consumed_bytes": (_VOLUME, "Size of the volume minus its free bytes."),
    "storage_soft_limit_bytes": (
        _VOLUME,
        "Free bytes below which produce limits are lowered. There is no series without a soft limit.",
    ),
    "storage_hard_limit_bytes": (
        _VOLUME,
        "Free bytes at which producing stops. There is no series without a hard limit.",
    ),
}
OBSERVATIONS: Final = ("ok", "failed", "invalid")
SHARE_STATES: Final = ("local", "shared", "frozen", "fallback")


class StorageMetrics(Collector):
    """What storage protection says last. Series of volumes that have gone are not in the next exposition.

    `gauges`: those without labels, by name.
    """

    def __init__(self) -> None:
        self.gauges = {name: 0.0 for name, (labels, _) in STORAGE_GAUGES.items() if not labels}
        self.gauges["storage_throttle_factor"] = 1.0
        self.state: State = "OPEN"
        self._findings: tuple[Finding, ...] = ()
        self._fallbacks = 0
        self._observations = dict.fromkeys(OBSERVATIONS, 0)
        self._violated: dict[tuple[int, str], int] = {}

    def count_observation(self, outcome: str, count: int = 1) -> None:
        self._observations[outcome] += count

    def count_fallback(self) -> None:
        self._fallbacks += 1

    def count_violated(self, findings: Iterable[Finding]) -> None:
        """`findings`: those at their hard limit, of what was shown."""
        for finding in findings:
            key = (finding.volume.broker_id, finding.volume.name)
            self._violated[key] = self._violated.get(key, 0) + 1

    def show_volumes(self, findings: tuple[Finding, ...], brokers: Collection[int] = ()) -> None:
        """`brokers`: the active ones. Of one whose volumes are not known just now, the counters go on."""
        keys = {(finding.volume.broker_id, finding.volume.name): 0 for finding in findings}
        unknown = frozenset(brokers) - {broker_id for broker_id, _ in keys}
        self._findings = findings
        kept = {key: count for key, count in self._violated.items() if key in keys or key[0] in unknown}
        self._violated = keys | kept

    def collect(self) -> Iterator[Metric]:
        counters = {
            name: CounterMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
            for name, (labels, text) in STORAGE_COUNTERS.items()
        }
        for outcome, count in self._observations.items():
            counters["storage_observations"].add_metric([outcome], count)
        counters["storage_fallback_throttle_factor_applied"].add_metric([], self._fallbacks)
        for (broker_id, name), count in list(self._violated.items()):  # this runs in a thread
            counters["storage_limit_violated"].add_metric([str(broker_id), name], count)
        yield from counters.values()
        gauges = {
            name: GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
            for name, (labels, text) in STORAGE_GAUGES.items()
        }
        for name, value in self.gauges.items():
            gauges[name].add_metric([], value)
        for state in get_args(State):
            gauges["storage_state"].add_metric([state], float(state == self.state))
        for finding in self._findings:
            self._add_volume(gauges, finding)
        yield from gauges.values()

    def _add_volume(self, gauges: dict[str, GaugeMetricFamily], finding: Finding) -> None:
        volume, _, soft, hard = finding
        values = {"size": volume.total, "available": volume.available, "consumed": volume.consumed}
        for name, value in {**values, "soft_limit": soft, "hard_limit": hard}.items():
            if value is not None:
                gauges[f"storage_{name}_bytes"].add_metric([str(volume.broker_id), volume.name], value)


class FleetMetrics(Collector):
    """What this gateway shares with others.

    `gauges`: those without labels, by name. `state`: how limits are shared.
    """

    def __init__(self, reasons: Iterable[str] = ()) -> None:
        self.gauges = {name: 0.0 for name, (labels, _) in FLEET_GAUGES.items() if not labels}
        self.state = SHARE_STATES[0]
        self.sent = self.received = self.sent_bytes = self.received_bytes = 0
        self.dropped = dict.fromkeys(reasons, 0)

    def collect(self) -> Iterator[Metric]:
        counters = {
            name: CounterMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
            for name, (labels, text) in FLEET_COUNTERS.items()
        }
        counters["fleet_reports_sent"].add_metric([], self.sent)
        counters["fleet_reports_received"].add_metric([], self.received)
        counters["fleet_report_bytes"].add_metric(["sent"], self.sent_bytes)
        counters["fleet_report_bytes"].add_metric(["received"], self.received_bytes)
        for reason, count in list(self.dropped.items()):  # this runs in a thread
            counters["fleet_reports_dropped"].add_metric([reason], count)
        yield from counters.values()
        for name, (labels, text) in FLEET_GAUGES.items():
            gauge = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
            if labels:
                for state in SHARE_STATES:
                    gauge.add_metric([state], float(state == self.state))
            else:
                gauge.add_metric([], self.gauges[name])
            yield gauge


class Metrics:
    """One gateway's metrics. Attributes are the metrics that others count on their own."""

    def __init__(self, max_clients: int = 500, max_topics: int = 1000) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series beside every counter, and there are many
        self.registry = CollectorRegistry()
        self._counters = {
            name: Counter(name, text, labels, namespace=PREFIX, registry=self.registry)
            for name, (labels, text) in COUNTERS.items()
        }
        self._gauges = {
            name: Gauge(name, text, labels, namespace=PREFIX, registry=self.registry)
            for name, (labels, text) in GAUGES.items()
        }
        self._topics = TopicLabels(max_topics)
        self._rates = _RateSeries(max_clients, self._topics)
        self.registry.register(self._rates)
        ProcessCollector(namespace=f"{PREFIX}_control", registry=self.registry)
        self._max_clients = max_clients
        self._waiting: list[tuple[int, Row]] = []  # of topics that may be new, with the look at which they came
        self._looks = 0
        self._clients: dict[tuple[str, str], tuple[str, str]] = {}  # as they are -> as labels
        self._shown: set[tuple[int, str]] = set()

        self.connections_refused = self._counters["connections_refused"]
        self.accept_pauses = self._counters["accept_pauses"]
        self.worker_restarts = self._counters["worker_restarts"]
        self.workers_lost = self._counters["workers_lost"]
        self.metadata_refreshes = self._counters["metadata_refreshes"]
        self.usage_written = self._counters["usage_log_records_written"]
        self.usage_published = self._counters["usage_log_records_published"]
        self.usage_dropped = self._counters["usage_log_dropped"]
        self.spool_errors = self._counters["usage_log_spool_errors"]
        self.worker_up = self._gauges["worker_up"]
        self.upstream_up = self._gauges["upstream_up"]
        self.upstream_brokers = self._gauges["upstream_brokers"]
        self.without_listener = self._gauges["upstream_brokers_without_listener"]
        self.usage_backlog = self._gauges["usage_log_backlog_bytes"]
        self.spool_bytes = self._gauges["usage_log_spool_bytes"]
        self.usage_queued = self._gauges["usage_log_queued_intervals"]

        for outcome in ("ok", "failed"):
            self.metadata_refreshes.labels(outcome)
        for outcome in ("accepted", "unchanged", "refused", "failed"):
            self._counters["policy_changes"].labels(outcome)
        for reason in ("invalid", "refused"):
            self.usage_dropped.labels(reason)
        for limit in admission.REASONS:
            self.connections_refused.labels(limit)
        for name in COUNTS:
            self._count(name, 0)
        self._gauges["build_info"].labels(version("produce-gateway"), platform.python_version()).set(1)

    def know_topics(self, topics: Iterable[str]) -> None:
        """All that the cluster's metadata lists."""
        self._topics.known = frozenset(topics)

    def show_fleet(self, reasons: Iterable[str] = ()) -> FleetMetrics:
        """Create the series of what is shared with others; once. `reasons`: for which messages may be dropped."""
        fleet = FleetMetrics(reasons)
        self.registry.register(fleet)
        return fleet

    def shown_groups(self) -> list[tuple[str, Direction]]:
        """Of which resource groups rates are shown."""
        shown = self._rates.shown(merge([Rates((), groups=said.groups) for said in self._rates.said]))
        return [(group.group, group.direction) for group in shown]

    def show_groups(self, limits: Groups | None, uses: Mapping[FleetKey, FleetUse]) -> None:
        """What resource groups' limits are, and what all gateways take of them: for those whose rates are shown."""
        self._rates.groups, self._rates.uses = limits, uses

    def show_storage(self) -> StorageMetrics:
        """Create the series of storage protection; once."""
        storage = StorageMetrics()
        self.registry.register(storage)
        return storage

    def show_config(self, gateway: str, upstream: str, internal_topics: str, usage_topic: str) -> None:
        self._gauges["config_info"].labels(gateway, upstream, internal_topics, usage_topic).set(1)

    def show_lacking(self, parts: Mapping[str, str]) -> None:
        """All parts that may be lacking, with why they are; "" for those that are not."""
        for part, why in parts.items():
            self._gauges["lacking"].labels(part).set(bool(why))

    def show_worker(self, worker: int) -> None:
        """Create a worker's series."""
        for name in ("connections", "muted_connections", "buffered_bytes", "worker_up"):
            self._gauges[name].labels(str(worker))
        self.worker_restarts.labels(str(worker))

    def add_interval(self, interval: Interval) -> None:
        self._counters["usage_log_intervals"].inc()
        for row in interval.rows:
            if self._topics.is_unknown(row) and len(self._waiting) < MAX_WAITING:
                self._waiting.append((self._looks, row))
            else:
                self._add(row)
        self.add_counts(interval.counts)

    def look_again(self) -> None:
        """The cluster has been asked once more: a topic that is new may be known by now. What it got meanwhile is
        counted under its name; what nobody has known for two looks is `other`.
        """
        self._looks += 1
        waiting, self._waiting = self._waiting, []
        for since, row in waiting:
            if self._topics.is_unknown(row) and self._looks - since < 2:
                self._waiting.append((since, row))
            else:
                self._add(row)

    def _add(self, row: Row) -> None:
        topic = self._topics.label(row)
        if row.outcome in _APPENDED and topic != OTHER:
            self._show_topic(row.broker, topic)
        if row.outcome in (DELAYED, "rejected"):
            labels = (_broker(row.broker), topic, row.outcome, row.reason)
            self._counters["throttle_seconds"].labels(*labels).inc(row.delay_ms / 1000)
        if row.outcome in NOTES:
            self._add_note(row.broker, topic, row.outcome, row.reason, row.bytes, row.requests)
            return
        self._add_row(row.broker, topic, row.outcome, row.reason, row.bytes, row.messages, row.requests)
        self._add_repeats(row.broker, topic, row.repeats or 0, row.bytes if row.repeats is None else 0)
        client = self._label_client(row, is_vouched=row.outcome == "accepted" or topic != OTHER)
        self._counters["client_bytes"].labels(*client, row.outcome).inc(row.bytes)

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Add deltas, by the names of channel.COUNTS."""
        for name, count in counts.items():
            self._count(name, count)

    def set_gauges(self, worker: int, gauges: Gauges) -> None:
        label = str(worker)
        self._gauges["connections"].labels(label).set(gauges.connections)
        self._gauges["muted_connections"].labels(label).set(gauges.muted)
        self._gauges["buffered_bytes"].labels(label).set(gauges.buffered_bytes)

    def set_rates(self, *said: Rates) -> None:
        """What each worker that there is said last. They are added up when somebody asks: it may take its time."""
        self._rates.said = said

    def show_policy_version(self, version: int) -> None:
        self._gauges["policy_version"].set(version)

    def show_policy_store(self, up: bool) -> None:
        self._gauges["policy_store_up"].set(up)

    def count_policy_change(self, outcome: str) -> None:
        """One of policy.service.OUTCOMES."""
        self._counters["policy_changes"].labels(outcome).inc()

    def text(self) -> bytes:
        """The exposition, in Prometheus' text format. Takes its time with many topics: call it in a thread."""
        return generate_latest(self.registry)

    def _label_client(self, row: Row, *, is_vouched: bool) -> tuple[str, str]:
        """From the first bytes that get in, into a topic that there is: made-up names take nobody's place."""
        client = (row.principal, row.client_id)
        if client not in self._clients:
            if not is_vouched or row.outcome not in _APPENDED or len(self._clients) >= self._max_clients:
                return OTHER, OTHER
            self._clients[client] = one_line(row.principal, LABEL_CHARS), one_line(row.client_id, LABEL_CHARS)
        return self._clients[client]

    def _show_topic(self, broker: int, topic: str) -> None:
        # With the first byte that gets in a topic has all it can have, at 0, so that a later rejection is an increase.
        # Not before: it is 86 series, and a cluster has thousands of topics that nobody produces to by this gateway.
        if (broker, topic) in self._shown:
            return
        self._shown.add((broker, topic))
        self._add_repeats(broker, topic, 0, 0)
        for outcome, reason in SHOWN:
            self._add_row(broker, topic, outcome, reason, 0, 0, 0)
        for note, reason in SHOWN_NOTES:
            self._add_note(broker, topic, note, reason, 0, 0)
        for outcome, reason in (*SHOWN, *SHOWN_NOTES):
            if outcome in (DELAYED, "rejected"):
                self._counters["throttle_seconds"].labels(_broker(broker), topic, outcome, reason)

    def _add_row(
        self, broker: int, topic: str, outcome: str, reason: str, size: int, messages: int, requests: int
    ) -> None:
        labels = (_broker(broker), topic, outcome, reason)
        self._counters["produce_bytes"].labels(*labels).inc(size)
        self._counters["produce_messages"].labels(*labels).inc(messages)
        self._counters["produce_requests"].labels(*labels).inc(requests)

    def _add_repeats(self, broker: int, topic: str, size: int, unknown: int) -> None:
        self._counters["produce_repeats_bytes"].labels(_broker(broker), topic).inc(size)
        self._counters["produce_repeats_unknown_bytes"].labels(_broker(broker), topic).inc(unknown)

    def _add_note(self, broker: int, topic: str, note: str, reason: str, size: int, requests: int) -> None:
        labels = (_broker(broker), topic, note, reason)
        self._counters["policy_bytes"].labels(*labels).inc(size)
        self._counters["policy_requests"].labels(*labels).inc(requests)

    def _count(self, name: str, count: int) -> None:
        if name.startswith("disconnects_"):
            self._counters["disconnects"].labels(name.removeprefix("disconnects_")).inc(count)
        elif name in self._counters:
            self._counters[name].inc(count)


def _broker(node_id: int) -> str:
    return "unknown" if node_id < 0 else str(node_id)


class TopicLabels:
    """The one gate for series with a topic's name: pairs of broker and topic that metadata lists, or that a broker has
    accepted something for, as far as there is room. Who has got through stays: counters don't go back.

    `known`: what metadata lists, of all brokers.
    """

    def __init__(self, most: int) -> None:
        self.known: frozenset[str] = frozenset()
        self._most = most
        self._pairs: set[tuple[int, str]] = set()
        self._named: set[str] = set()  # their topics

    def is_unknown(self, row: Row) -> bool:
        """Whether it is too early to say that there is no such topic."""
        return row.outcome != "accepted" and row.topic not in self.known and row.topic not in self._named

    def label(self, row: Row) -> str:
        pair = (row.broker, row.topic)
        if pair not in self._pairs:
            if self.is_unknown(row) or len(self._pairs) >= self._most:
                return OTHER
            self._pairs.add(pair)
            self._named.add(row.topic)
        return row.topic

    def choose(self, brokers: Iterable[BrokerRate]) -> dict[int, list[TopicRate]]:
        """Of rates, which hold for now and take no place: the busiest vouched for, by broker."""
        vouched = (
            (broker.node_id, topic)
            for broker in brokers
            for topic in broker.topics
            if topic.topic in self.known or topic.topic in self._named
        )
        chosen: dict[int, list[TopicRate]] = defaultdict(list)
        for node_id, topic in heapq.nlargest(self._most, vouched, key=lambda pair: pair[1].rate):
            chosen[node_id].append(topic)
        return chosen


class _RateSeries(Collector):
    """What the workers' meters said last."""

    def __init__(self, max_clients: int, topics: TopicLabels) -> None:
        self._topics = topics
        self.said: tuple[Rates, ...] = ()
        self.groups: Groups | None = None
        self.uses: Mapping[FleetKey, FleetUse] = {}
        self._max_clients = max_clients

    def collect(self) -> Iterator[Metric]:
        rates = merge(self.said)
        families = {
            name: GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels) for name, (labels, text) in RATES.items()
        }
        topics = self._topics.choose(rates.brokers)
        for broker in rates.brokers:
            label = str(broker.node_id)
            add = _adder(families, [label], "broker")
            add("rate_bytes_per_second", broker.rate)
            add("error_rate_bytes_per_second", broker.error_rate)
            add("throttled_rate_bytes_per_second", broker.throttled_rate)
            _add_threshold(add, broker.rate, broker.threshold)
            for topic in topics.get(broker.node_id, ()):
                add = _adder(families, [label, topic.topic], "topic")
                add("rate_bytes_per_second", topic.rate)
                add("over_threshold", float(topic.over))
                _add_threshold(add, topic.rate, topic.threshold)
        for quota in rates.quotas[: self._max_clients]:
            broker_label = "all" if quota.broker is None else _broker(quota.broker)
            who = (one_line(name or "", LABEL_CHARS) for name in (quota.source, quota.user, quota.client_id))
            names = [quota.key, *who, broker_label]
            add = _adder(families, names, "client_quota")
            add("rate", quota.rate)
            add("limit", quota.limit)
            add("utilization_ratio", quota.rate / quota.limit)
            add("waiting", float(quota.waiting))
        for group in self.shown(rates):
            self._add_group(_adder(families, [group.group, group.direction], "group"), group)
        yield from families.values()

    def shown(self, rates: Rates) -> list[GroupRate]:
        """The busiest groups."""
        return heapq.nlargest(self._max_clients, rates.groups, key=lambda group: group.bytes_rate)

    def _add_group(self, add: Any, group: GroupRate) -> None:
        add("topics", group.topics)
        add("waiting", float(group.waiting))
        limits = GroupLimits() if self.groups is None else self.groups.groups.get(group.group, GroupLimits())
        is_publish = group.direction == "publish"
        of_bytes = limits.publish_bytes if is_publish else limits.dispatch_bytes
        of_msgs = limits.publish_msgs if is_publish else limits.dispatch_msgs
        for unit, key, rate, part, limit in (
            ("bytes", "bytes", group.bytes_rate, group.bytes_limit, of_bytes),
            ("messages", "msgs", group.msgs_rate, group.msgs_limit, of_msgs),
        ):
            use = self.uses.get(group_key(group.group, group.direction, cast("Unit", key)))
            add(f"rate_{unit}_per_second", rate)
            add(f"limit_{unit}_per_second", math.inf if limit is None else limit)
            part = part if use is None or use.part is None else use.part
            add(f"part_{unit}_per_second", math.inf if part is None else part)
            if use is not None and use.rate is not None:
                add(f"fleet_rate_{unit}_per_second", use.rate)


def _adder(families: dict[str, GaugeMetricFamily], labels: list[str], prefix: str) -> Any:
    def add(name: str, value: float) -> None:
        families[f"{prefix}_{name}"].add_metric(labels, value)

    return add


def _add_threshold(add: Any, rate: float, threshold: float | None) -> None:
    add("threshold_bytes_per_second", math.inf if threshold is None else threshold)
    if threshold is None:
        ratio = math.nan
    elif threshold == 0:
        ratio = math.inf if rate else 0.0
    else:
        ratio = rate / threshold
    add("threshold_utilization_ratio", ratio)
