# How long Produce requests take, as histograms: sums over all workers.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.channel import LATENCY_BOUNDS, DurationBuckets, LatencyReport
from gateway.control.metrics.family import PREFIX, MetricFamily, counter, histogram
from gateway.control.metrics.produced import OTHER, broker_label
from policies.usage import REASONS

LATENCIES: Final = (
    histogram(
        "produce_request_seconds",
        "Time from a whole Produce request at the gateway until its answer is sent, with waits for limits and the "
        "broker; without `acks=0`.",
    ),
    histogram(
        "broker_round_trip_seconds",
        "Time from forwarding a Produce request until the broker's answer is here.",
        ("broker",),
    ),
    histogram(
        "limit_wait_seconds",
        "Time for which a limit held the next request of a connection; `fetch` for Fetch.",
        ("reason",),
    ),
    histogram(
        "worker_batch_seconds",
        "Time for which a worker was busy with one batch of socket events, for which others wait.",
    ),
    counter("worker_cpu_seconds", "CPU time of the worker, which uses one core at most.", ("worker",)),
)
WAITS: Final = (*dict.fromkeys((*REASONS["rejected"], *REASONS["delayed"], "fetch")), OTHER)
_NO_BUCKETS: Final = DurationBuckets((0,) * (len(LATENCY_BOUNDS) + 1), 0.0)
_BOUNDS: Final = (*(str(bound) for bound in LATENCY_BOUNDS), "+Inf")


class LatencySeries(Collector):
    """All that workers have said since this process began."""

    def __init__(self) -> None:
        self._requests = _NO_BUCKETS
        self._round_trips: dict[str, DurationBuckets] = {}
        self._waits = dict.fromkeys(WAITS, _NO_BUCKETS)
        self._batches = _NO_BUCKETS
        self._ended_cpu: dict[str, float] = {}  # by worker, of the lives that have ended …
        self._current_cpu: dict[str, float] = {}  # … and of the present one

    def add_latencies(self, worker: int, report: LatencyReport) -> None:
        """A worker's measurements since its previous message."""
        self._requests = _add_buckets(self._requests, report.requests)
        for node_id, buckets in report.round_trips.items():
            label = broker_label(node_id)
            self._round_trips[label] = _add_buckets(self._round_trips.get(label, _NO_BUCKETS), buckets)
        for reason, buckets in report.waits.items():
            known = reason if reason in self._waits else OTHER
            self._waits[known] = _add_buckets(self._waits[known], buckets)
        self._batches = _add_buckets(self._batches, report.batches or _NO_BUCKETS)
        self._record_cpu(str(worker), report.cpu_s)

    def _record_cpu(self, worker: str, cpu_s: float) -> None:
        before = self._current_cpu.get(worker, 0.0)
        if cpu_s < before:  # it was started again
            self._ended_cpu[worker] = self._ended_cpu.get(worker, 0.0) + before
        self._current_cpu[worker] = cpu_s

    def collect(self) -> Iterator[Metric]:
        requests, round_trips, waits, batches, cpu = LATENCIES
        yield _make_histogram(requests, {(): self._requests})
        yield _make_histogram(round_trips, {(label,): each for label, each in list(self._round_trips.items())})
        yield _make_histogram(waits, {(reason,): each for reason, each in list(self._waits.items())})
        yield _make_histogram(batches, {(): self._batches})
        family = CounterMetricFamily(f"{PREFIX}_{cpu.name}", cpu.help, labels=cpu.labels)
        for worker, seconds in list(self._current_cpu.items()):  # this runs in a thread
            family.add_metric([worker], self._ended_cpu.get(worker, 0.0) + seconds)
        yield family


def _add_buckets(one: DurationBuckets, other: DurationBuckets) -> DurationBuckets:
    return DurationBuckets(tuple(map(sum, zip(one.counts, other.counts, strict=True))), one.total + other.total)


def _make_histogram(family: MetricFamily, series: Mapping[tuple[str, ...], DurationBuckets]) -> HistogramMetricFamily:
    found = HistogramMetricFamily(f"{PREFIX}_{family.name}", family.help, labels=family.labels)
    for labels, buckets in series.items():
        counts = list(zip(_BOUNDS, accumulate(buckets.counts), strict=True))
        found.add_metric(labels, counts, buckets.total)
    return found
