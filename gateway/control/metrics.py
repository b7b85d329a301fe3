# Every metric of the gateway: name, labels and help in one table, in a registry of its own, created at 0.
#
# What happened comes from workers as rows of intervals and as counts; what is so just now as Rates and Gauges. Series
# whose labels a client can multiply are capped, the rest is `other`. Rates are shown from the latest snapshot, so a
# topic that went away doesn't leave a rate behind. Knows no sockets and no files.

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.channel import COUNTS, BrokerRate, Gauges, Interval, Rates
from policies.usage import DELAYED, NOTES, OUTCOMES, REASONS

PREFIX: Final = "produce_gateway"
OTHER: Final = "other"
# Rows of these outcomes are shown at 0 for each topic; a client can't have a protected topic rejected that isn't one.
SHOWN: Final = tuple(
    (outcome, reason)
    for outcome in OUTCOMES
    for reason in ([r for r in REASONS[outcome] if r != "protected-topic"] if outcome in REASONS else [""])
)
_ROW = ("broker", "topic", "outcome", "reason")
SHOWN_NOTES: Final = tuple((note, reason) for note in NOTES for reason in REASONS[note])

# name -> (labels, help). Counters get `_total`.
COUNTERS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "produce_bytes": (_ROW, "Bytes of records in Produce requests by what became of them; their sum was offered."),
    "produce_messages": (_ROW, "Records in Produce requests by what became of them."),
    "produce_requests": (_ROW, "Produce requests with a partition of that topic, by what became of it."),
    "policy_bytes": (
        _ROW,
        "Bytes that a policy delayed, or in mode observe would have rejected or delayed; counted by outcome as well.",
    ),
    "policy_requests": (_ROW, "Produce requests that a policy delayed, or in mode observe would have."),
    "throttle_seconds": (_ROW, "Time for which clients were told or made to wait, by rejected or delayed."),
    "client_bytes": (
        ("principal", "client_id", "outcome"),
        "Bytes of records by client; beyond limits.max_client_metrics clients under `other`.",
    ),
    "connections_accepted": ((), "Client connections taken over by a worker."),
    "requests": ((), "Requests from clients, of every API."),
    "answers_local": ((), "Requests answered by the gateway itself."),
    "answers_merged": ((), "Brokers' answers into which the gateway put rejected partitions."),
    "requests_malformed": ((), "Requests that could not be read; each ended its connection."),
    "upstream_failed": ((), "Connections to brokers that could not be opened or that the broker closed first."),
    "brokers_withheld": ((), "Times a broker was left out of an answer because it has no listener here."),
    "answers_not_followed": ((), "Answers that may carry brokers' addresses and that the gateway could not read."),
    "topic_ids_unknown": (
        (),
        "Times nobody knew the name of a request's topic ids; it was forwarded without a topic limit.",
    ),
    "mutes": ((), "Times a connection's Produce requests were held for a throttle time."),
    "disconnects": (("cause",), "Client connections ended, by who or what ended them."),
    "accept_pauses": ((), "Pauses in accepting, because of too many open files or no memory."),
    "worker_restarts": (("worker",), "Times a worker died and was started again."),
    "workers_lost": (
        (),
        "Workers that died before they reported their last interval; the audit calls these incomplete.",
    ),
    "metadata_refreshes": (("outcome",), "Times the cluster was asked for its metadata: ok or failed."),
    "usage_log_intervals": ((), "Intervals received from workers."),
    "usage_log_records_written": ((), "Usage records written to the spool."),
    "usage_log_records_published": ((), "Usage records acknowledged by the usage topic."),
    "usage_log_dropped": (
        ("reason",),
        "Usage data given up: intervals while the spool took none (spool-full), records the broker refused (refused).",
    ),
    "usage_log_spool_errors": ((), "Failed attempts to write to the spool; the data waits."),
}
GAUGES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "connections": (("worker",), "Client connections open."),
    "muted_connections": (("worker",), "Client connections whose Produce requests are held just now."),
    "buffered_bytes": (("worker",), "Bytes of clients and brokers held in memory."),
    "worker_up": (("worker",), "1 while the worker is connected to control."),
    "upstream_up": ((), "1 if the cluster answered the last time it was asked for metadata."),
    "upstream_brokers": ((), "Brokers that metadata names."),
    "upstream_brokers_without_listener": ((), "Brokers withheld from clients because their port can't be opened."),
    "usage_log_backlog_bytes": ((), "Bytes in the spool that the usage topic has not acknowledged."),
    "usage_log_spool_bytes": ((), "Bytes in the spool in all."),
    "usage_log_queued_intervals": ((), "Intervals received and not yet in the spool."),
    "build_info": (("version", "python"), "Always 1."),
    "config_info": (("gateway", "upstream", "internal_topics", "usage_topic"), "Always 1."),
}
RATES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "broker_rate_bytes_per_second": (("broker",), "One-minute rate of bytes admitted to that broker."),
    "broker_error_rate_bytes_per_second": (("broker",), "One-minute rate of bytes that the broker refused."),
    "broker_throttled_rate_bytes_per_second": (("broker",), "One-minute rate of bytes rejected by thresholds."),
    "broker_threshold_bytes_per_second": (("broker",), "total.bytes.in.per.sec.threshold, +Inf where there is none."),
    "broker_threshold_utilization_ratio": (("broker",), "Rate by threshold; not capped, NaN without a threshold."),
    "topic_rate_bytes_per_second": (("broker", "topic"), "One-minute rate of bytes admitted to that topic."),
    "topic_threshold_bytes_per_second": (("broker", "topic"), "Explicit or implicit threshold, +Inf without one."),
    "topic_threshold_utilization_ratio": (("broker", "topic"), "Rate by threshold; not capped, NaN without one."),
    "topic_over_threshold": (("broker", "topic"), "1 while the topic's produce requests are rejected."),
}


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
        self._rates = _RateSeries()
        self.registry.register(self._rates)
        ProcessCollector(namespace=f"{PREFIX}_control", registry=self.registry)
        self._max_clients = max_clients
        self._max_topics = max_topics
        self._clients: set[tuple[str, str]] = set()
        self._shown: set[tuple[int, str]] = set()

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
        for reason in ("spool-full", "refused"):
            self.usage_dropped.labels(reason)
        for name in COUNTS:
            self._count(name, 0)
        self._gauges["build_info"].labels(version("produce-gateway"), platform.python_version()).set(1)

    def show_config(self, gateway: str, upstream: str, internal_topics: str, usage_topic: str) -> None:
        self._gauges["config_info"].labels(gateway, upstream, internal_topics, usage_topic).set(1)

    def show_worker(self, worker: int) -> None:
        """Create a worker's series."""
        for name in ("connections", "muted_connections", "buffered_bytes", "worker_up"):
            self._gauges[name].labels(str(worker))
        self.worker_restarts.labels(str(worker))

    def show_topics(self, leads: Mapping[int, Iterable[str]]) -> None:
        """Create the series of topics that brokers lead, at 0, up to the cap; others come with their first byte."""
        for broker, topics in leads.items():
            for topic in topics:
                if len(self._shown) >= self._max_topics:
                    return
                if (broker, topic) not in self._shown:
                    self._shown.add((broker, topic))
                    for outcome, reason in SHOWN:
                        self._add_row(broker, topic, outcome, reason, 0, 0, 0)
                    for note, reason in SHOWN_NOTES:
                        self._add_note(broker, topic, note, reason, 0, 0)
                    for outcome, reason in (*SHOWN, *SHOWN_NOTES):
                        if outcome in (DELAYED, "rejected"):
                            self._counters["throttle_seconds"].labels(_broker(broker), topic, outcome, reason)

    def add_interval(self, interval: Interval) -> None:
        self._counters["usage_log_intervals"].inc()
        for row in interval.rows:
            if row.outcome in (DELAYED, "rejected"):
                labels = (_broker(row.broker), row.topic, row.outcome, row.reason)
                self._counters["throttle_seconds"].labels(*labels).inc(row.delay_ms / 1000)
            if row.outcome in NOTES:
                self._add_note(row.broker, row.topic, row.outcome, row.reason, row.bytes, row.requests)
                continue
            self._add_row(row.broker, row.topic, row.outcome, row.reason, row.bytes, row.messages, row.requests)
            client = (row.principal, row.client_id)
            if client not in self._clients:
                if len(self._clients) < self._max_clients:
                    self._clients.add(client)
                else:
                    client = (OTHER, OTHER)
            self._counters["client_bytes"].labels(*client, row.outcome).inc(row.bytes)
        self.add_counts(interval.counts)

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Add deltas, by the names of channel.COUNTS."""
        for name, count in counts.items():
            self._count(name, count)

    def set_gauges(self, worker: int, gauges: Gauges) -> None:
        label = str(worker)
        self._gauges["connections"].labels(label).set(gauges.connections)
        self._gauges["muted_connections"].labels(label).set(gauges.muted)
        self._gauges["buffered_bytes"].labels(label).set(gauges.buffered_bytes)

    def set_rates(self, rates: Rates) -> None:
        self._rates.brokers = rates.brokers

    def text(self) -> bytes:
        """The exposition, in Prometheus' text format. Takes its time with many topics: call it in a thread."""
        return generate_latest(self.registry)

    def _add_row(
        self, broker: int, topic: str, outcome: str, reason: str, size: int, messages: int, requests: int
    ) -> None:
        labels = (_broker(broker), topic, outcome, reason)
        self._counters["produce_bytes"].labels(*labels).inc(size)
        self._counters["produce_messages"].labels(*labels).inc(messages)
        self._counters["produce_requests"].labels(*labels).inc(requests)

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


class _RateSeries(Collector):
    """What the workers' meters said last."""

    def __init__(self) -> None:
        self.brokers: tuple[BrokerRate, ...] = ()

    def collect(self) -> Iterator[Metric]:
        families = {
            name: GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels) for name, (labels, text) in RATES.items()
        }
        for broker in self.brokers:
            label = str(broker.node_id)
            add = _adder(families, [label], "broker")
            add("rate_bytes_per_second", broker.rate)
            add("error_rate_bytes_per_second", broker.error_rate)
            add("throttled_rate_bytes_per_second", broker.throttled_rate)
            _add_threshold(add, broker.rate, broker.threshold)
            for topic in broker.topics:
                add = _adder(families, [label, topic.topic], "topic")
                add("rate_bytes_per_second", topic.rate)
                add("over_threshold", float(topic.over))
                _add_threshold(add, topic.rate, topic.threshold)
        yield from families.values()


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
