# The registry: counters and gauges that are set as things happen, and the collectors beside it.
#
# Families with a series for each topic or client are not in it: lines.py makes their text.
#
# Events come from workers as rows of intervals and as counts; what is so just now as WorkerRates and
# WorkerGauges. A name that a client says becomes a label only once a broker vouched for it, cut and within a cap; the
# rest is `other`.

from __future__ import annotations

import itertools
import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.process_collector import ProcessCollector

from gateway.channel import (
    API_REQUESTS,
    COUNT_NAMES,
    GroupSnapshot,
    LatencyReport,
    UsageInterval,
    WorkerGauges,
    WorkerRates,
)
from gateway.config import Settings
from gateway.control import admission, http_server, internal_errors
from gateway.control.access import failures
from gateway.control.facts import ClusterState
from gateway.control.metrics.certificates import CertificateExpiry, CertificateLocation, certificate_locations
from gateway.control.metrics.counted import CHANGES, CLUSTER, ITSELF, TRAFFIC, USAGE_LOG
from gateway.control.metrics.family import PREFIX
from gateway.control.metrics.fleet import FleetMetrics
from gateway.control.metrics.latencies import LatencySeries
from gateway.control.metrics.produced import PRODUCED, ProducedSeries, TopicLabels
from gateway.control.metrics.rates import RateSeries
from gateway.control.metrics.storage import StorageMetrics
from gateway.control.rates import merge_rates
from policies.definitions.rollout import ALL_CLIENTS
from policies.fleet.keys import Direction, FleetKey
from policies.limits.description import FleetUse
from policies.thresholds.sums import CommittedTotal
from protocol import api

_SET_HERE: Final = (*TRAFFIC, *CLUSTER, *CHANGES, *USAGE_LOG, *ITSELF)  # others have collectors, or lines of their own
_LABELLED: Final = ("disconnects", "server_names_refused")  # channel.COUNT_NAMES has their label behind them

# The label values of counters that are there, at 0, from the start.
_KNOWN_LABELS: Final[Mapping[str, Iterable[str]]] = {
    "metadata_refreshes": ("ok", "failed"),
    "policy_changes": ("accepted", "unchanged", "refused", "failed"),
    "config_reload": ("applied", "unchanged", "refused", "failed"),
    "usage_log_dropped": ("invalid", "refused"),
    "admin_requests_refused": failures.REASONS,
    "admin_connections_refused": http_server.REASONS,
    "connections_refused": admission.REASONS,
    "internal_errors": internal_errors.PLACES,
}


class ClusterMetrics(NamedTuple):
    """The state of the cluster behind the gateway."""

    refreshes: Counter  # of metadata, by outcome
    up: Gauge
    brokers: Gauge
    without_listener: Gauge


class UsageLogMetrics(NamedTuple):
    """Records of the usage log on their way to its topic."""

    written: Counter
    published: Counter
    dropped: Counter
    spool_errors: Counter
    backlog_bytes: Gauge
    spool_bytes: Gauge
    queued_intervals: Gauge


class GatewayMetrics:
    """One gateway's metrics.

    Attributes:
        produced: series of topics and clients.
        cluster, usage_log, and the rest: metrics that others count on their own.
    """

    def __init__(self, max_clients: int = 500, max_topics: int = 1000) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series beside every counter, and there are many
        self.registry = CollectorRegistry()
        self._counters = {
            each.name: Counter(each.name, each.help, each.labels, namespace=PREFIX, registry=self.registry)
            for each in _SET_HERE
            if each.kind == "counter"
        }
        self._gauges = {
            each.name: Gauge(each.name, each.help, each.labels, namespace=PREFIX, registry=self.registry)
            for each in (*PRODUCED, *_SET_HERE)
            if each.kind == "gauge"
        }
        self._topics = TopicLabels(max_topics)
        self.produced = ProducedSeries(self._topics, max_clients)
        self._rates = RateSeries(max_clients, self._topics)
        self.registry.register(self._rates)
        self._latencies = LatencySeries()
        self.registry.register(self._latencies)
        self._certificates = CertificateExpiry()
        self.registry.register(self._certificates)
        ProcessCollector(namespace=f"{PREFIX}_control", registry=self.registry)
        self.connections_refused = self._counters["connections_refused"]
        self.connections_given = self._counters["listener_connections"]
        self.accept_pauses = self._counters["accept_pauses"]
        self.worker_restarts = self._counters["worker_restarts"]
        self.workers_lost = self._counters["workers_lost"]
        self.worker_up = self._gauges["worker_up"]
        self.cluster = ClusterMetrics(
            self._counters["metadata_refreshes"],
            self._gauges["upstream_up"],
            self._gauges["upstream_brokers"],
            self._gauges["upstream_brokers_without_listener"],
        )
        self.usage_log = UsageLogMetrics(
            self._counters["usage_log_records_written"],
            self._counters["usage_log_records_published"],
            self._counters["usage_log_dropped"],
            self._counters["usage_log_spool_errors"],
            self._gauges["usage_log_backlog_bytes"],
            self._gauges["usage_log_spool_bytes"],
            self._gauges["usage_log_queued_intervals"],
        )

        for name, values in _KNOWN_LABELS.items():
            for value in values:
                self._counters[name].labels(value)
        self._gauges["config_last_reload_successful"].set(1)
        self.add_counts(dict.fromkeys(COUNT_NAMES, 0))
        self._gauges["build_info"].labels(version("produce-gateway"), platform.python_version()).set(1)

    def count_admin_refusal(self, reason: str) -> None:
        """A request to the admin port was; one of failures.REASONS, or "" for one that isn't counted."""
        if reason:
            self._counters["admin_requests_refused"].labels(reason).inc()

    def count_internal_error(self, where: str) -> None:
        """One of internal_errors.PLACES."""
        self._counters["internal_errors"].labels(where).inc()

    def count_admin_drop(self, reason: str) -> None:
        """One to the admin port was, or was ended; one of http_server.REASONS."""
        self._counters["admin_connections_refused"].labels(reason).inc()

    def set_known_topics(self, topics: Iterable[str]) -> None:
        """All that the cluster's metadata lists."""
        self._topics.known = frozenset(topics)

    def on_cluster_topics(self, view: ClusterState) -> None:
        """Brokers lead other topics, or topics have other ids."""
        if view.topics is not None:
            led, with_ids = view.topics.leads.values(), view.topics.ids.values()
            self.set_known_topics({*itertools.chain.from_iterable(led), *with_ids})

    def create_fleet_series(self, reasons: Iterable[str] = ()) -> FleetMetrics:
        """Create the series of the limits shared with others; once. `reasons`: for which messages may be dropped."""
        fleet = FleetMetrics(reasons)
        self.registry.register(fleet)
        return fleet

    def shown_groups(self) -> list[tuple[str, Direction]]:
        """Of which resource groups rates are shown."""
        shown = self._rates.busiest_groups(
            merge_rates([WorkerRates((), groups=rates.groups) for rates in self._rates.worker_rates])
        )
        return [(group.group, group.direction) for group in shown]

    def show_groups(self, limits: GroupSnapshot | None, uses: Mapping[FleetKey, FleetUse]) -> None:
        """The limits of resource groups, and the usage by all gateways: for those whose rates are shown."""
        self._rates.groups, self._rates.uses = limits, uses

    def create_storage_series(self) -> StorageMetrics:
        """Create the series of storage protection; once."""
        storage = StorageMetrics()
        self.registry.register(storage)
        return storage

    def show_configuration(self, settings: Settings) -> None:
        """What stays as it is until the gateway ends."""
        self._gauges["config_info"].labels(
            settings.gateway_name,
            settings.upstream.bootstrap_servers,
            settings.internal_topics,
            settings.usage_log.topic,
        ).set(1)
        for name in settings.all_listeners:
            self.connections_given.labels(name)

    def show_certificates(self, places: Mapping[str, CertificateLocation]) -> None:
        """Those that the gateway has from here on, by their use."""
        self._certificates.locations = places

    def apply_settings(self, settings: Settings) -> None:
        """This configuration is in force."""
        self.show_certificates(certificate_locations(settings))
        for policy, percent in settings.rollout._asdict().items():
            self._gauges["policy_enforced_clients_ratio"].labels(policy).set(percent / ALL_CLIENTS)

    def set_loaded_at(self, at_s: float) -> None:
        """The configuration file was read and accepted at that Unix time."""
        self._gauges["config_last_reload_success_timestamp_seconds"].set(at_s)

    def count_reload(self, outcome: str, *, is_accepted: bool) -> None:
        """It was read again, or could not be."""
        self._counters["config_reload"].labels(outcome).inc()
        self._gauges["config_last_reload_successful"].set(is_accepted)

    def show_pending_keys(self, count: int) -> None:
        """So many keys of the file wait for a restart."""
        self._gauges["config_keys_pending"].set(count)

    def show_lacking(self, parts: Mapping[str, str]) -> None:
        """All parts that may be lacking, with why they are; "" for those that are not."""
        for part, why in parts.items():
            self._gauges["lacking"].labels(part).set(bool(why))

    def create_worker_series(self, worker: int) -> None:
        """Create a worker's series."""
        for name in ("connections", "muted_connections", "buffered_bytes", "worker_up"):
            self._gauges[name].labels(str(worker))
        self.worker_restarts.labels(str(worker))

    def add_interval(self, interval: UsageInterval) -> None:
        self._counters["usage_log_intervals"].inc()
        self.produced.add_rows(interval.rows)
        self.add_counts(interval.counts)

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Add deltas, by channel.COUNT_NAMES."""
        others = 0
        for name, count in counts.items():
            if name.startswith(API_REQUESTS):
                others += count
                self._counters["requests"].labels(_api_name(name)).inc(count)
            elif name != "requests":
                self._count_named(name, count)
        self._counters["requests"].labels("Produce").inc(max(0, counts.get("requests", 0) - others))

    def add_latencies(self, worker: int, report: LatencyReport) -> None:
        """A worker's measurements since its previous message."""
        self._latencies.add_latencies(worker, report)

    def set_gauges(self, worker: int, gauges: WorkerGauges) -> None:
        label = str(worker)
        self._gauges["connections"].labels(label).set(gauges.connections)
        self._gauges["muted_connections"].labels(label).set(gauges.muted)
        self._gauges["buffered_bytes"].labels(label).set(gauges.buffered_bytes)

    def set_rates(self, *by_worker: WorkerRates) -> None:
        """The last counts of each living worker. They are added up when a client asks: it may take its time."""
        self._rates.worker_rates = by_worker

    def show_policy_version(self, version: int) -> None:
        self._gauges["policy_version"].set(version)

    def show_committed(self, committed: Mapping[str, CommittedTotal]) -> None:
        """By broker, its total threshold and the sum that topics take of it."""
        self._rates.committed = committed

    def show_policy_store(self, up: bool) -> None:
        self._gauges["policy_store_up"].set(up)

    def count_policy_change(self, outcome: str) -> None:
        """One of policy.service.OUTCOMES."""
        self._counters["policy_changes"].labels(outcome).inc()

    def render_text(self) -> Iterator[bytes]:
        """The exposition, in Prometheus' text format, in pieces, each as of when it is asked for. With many topics one
        takes some milliseconds: ask for them in a thread.
        """
        yield generate_latest(self.registry)
        yield from self.produced.render_text()
        yield from self._rates.render_text()

    def _count_named(self, name: str, count: int) -> None:
        for family in _LABELLED:
            if name.startswith(f"{family}_"):
                self._counters[family].labels(name.removeprefix(f"{family}_")).inc(count)
                return
        if name in self._counters:
            self._counters[name].inc(count)


def _api_name(name: str) -> str:
    """Of a count of requests by API key; keys that Kafka has no API for are one."""
    return api.API_NAMES.get(int(name.removeprefix(API_REQUESTS)), "unknown")
