# The metrics of the agent.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from policies.storage import Volume

PREFIX: Final = "produce_gateway_volume_agent"

VOLUME_GAUGES: Final = {
    "capacity_bytes": "Size of the volume.",
    "available_bytes": "Bytes that Kafka may still write to it.",
    "consumed_bytes": "Size less the available bytes.",
    "soft_level_free_bytes": "Free bytes at which the published soft limit is reached; no series without such a limit.",
    "hard_level_free_bytes": "The same for the hard limit.",
}


class AgentMetrics:
    """The metrics of /metrics; all there from the start, at 0."""

    def __init__(self, log_dirs: Sequence[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self.published = self._make_counter("snapshots_published", "Snapshots that the volume topic has acknowledged.")
        self.errors = self._make_counter("publication_errors", "Snapshots that it has not.")
        self.skipped = self._make_counter(
            "snapshots_skipped", "Snapshots that were due while no log dir could be read."
        )
        self.log_dir_errors = self._make_counter(
            "log_dir_errors",
            "How often a log dir could not be read. Gateways take the broker's state for unknown meanwhile.",
            "log_dir",
        )
        self.connected = self._make_gauge("connected", "1 while there is a connection to a broker, else 0.")
        self.last_snapshot = self._make_gauge(
            "last_snapshot_timestamp_seconds", "When the last published snapshot was taken; 0 before the first."
        )
        self.volumes = _VolumeSeries()
        self.registry.register(self.volumes)
        for log_dir in log_dirs:
            self.log_dir_errors.labels(log_dir)

    def _make_counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _make_gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, registry=self.registry)


class _VolumeSeries(Collector):
    """The volumes of the last measurement; one that is left out has no series."""

    def __init__(self) -> None:
        self.shown: tuple[Volume, ...] = ()

    def collect(self) -> Iterator[Metric]:
        families = {
            name: GaugeMetricFamily(f"{PREFIX}_volume_{name}", text, labels=["volume"])
            for name, text in VOLUME_GAUGES.items()
        }
        for volume in self.shown:
            values: dict[str, float] = {
                "capacity_bytes": volume.total,
                "available_bytes": volume.available,
                "consumed_bytes": volume.total - volume.available,
            }
            for name, limit in (("soft", volume.soft), ("hard", volume.hard)):
                if limit is not None:
                    values[f"{name}_level_free_bytes"] = limit.free_bytes(volume.total)
            for name, value in values.items():
                families[name].add_metric([volume.name], value)
        yield from families.values()
