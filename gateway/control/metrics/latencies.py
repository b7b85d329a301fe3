# How long Produce requests take, as histograms: sums over all workers.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.channel import LATENCY_BOUNDS, Buckets, Latencies
from gateway.control.metrics.family import PREFIX, Family
from gateway.control.metrics.produced import OTHER, broker_label
from policies.usage import REASONS

LATENCIES: Final = (
    Family(
        "produce_request_seconds",
        "histogram",
        (),
        "Time from when a Produce request is whole at the gateway until its answer is sent, waits for limits and the "
        "broker included; without `acks=0`, which has no answer.",
    ),
    Family(
        "broker_round_trip_seconds",
        "histogram",
        ("broker",),
        "The broker's part of it: from forwarding the request until its answer is here.",
    ),
    Family(
        "limit_wait_seconds",
        "histogram",
        ("reason",),
        "Time for which a limit held the next request of a connection, by reason; `fetch` for Fetch requests.",
    ),
    Family(
        "worker_batch_seconds",
        "histogram",
        (),
        "Time for which a worker was busy with one batch of socket events: the most that a request or an answer "
        "waits for others.",
    ),
    Family(
        "worker_cpu_seconds",
        "counter",
        ("worker",),
        "CPU time of the worker, which uses one core at most.",
    ),
)
WAITS: Final = (*dict.fromkeys((*REASONS["rejected"], *REASONS["delayed"], "fetch")), OTHER)
_NONE: Final = Buckets((0,) * (len(LATENCY_BOUNDS) + 1), 0.0)
_BOUNDS: Final = (*(str(bound) for bound in LATENCY_BOUNDS), "+Inf")


class LatencySeries(Collector):
    """All that workers have said since this process began."""

    def __init__(self) -> None:
        self._requests = _NONE
        self._round_trips: dict[str, Buckets] = {}
        self._waits = dict.fromkeys(WAITS, _NONE)
        self._batches = _NONE
        self._cpu: dict[str, float] = {}  # by worker, of the lives that have ended …
        self._now: dict[str, float] = {}  # … and of the present one

    def add(self, worker: int, said: Latencies) -> None:
        """What a worker has measured since it said so last."""
        self._requests = _sum(self._requests, said.requests)
        for node_id, buckets in said.round_trips.items():
            label = broker_label(node_id)
            self._round_trips[label] = _sum(self._round_trips.get(label, _NONE), buckets)
        for reason, buckets in said.waits.items():
            known = reason if reason in self._waits else OTHER
            self._waits[known] = _sum(self._waits[known], buckets)
        self._batches = _sum(self._batches, said.batches or _NONE)
        self._take_cpu(str(worker), said.cpu_s)

    def _take_cpu(self, worker: str, cpu_s: float) -> None:
        before = self._now.get(worker, 0.0)
        if cpu_s < before:  # it was started again
            self._cpu[worker] = self._cpu.get(worker, 0.0) + before
        self._now[worker] = cpu_s

    def collect(self) -> Iterator[Metric]:
        requests, round_trips, waits, batches, cpu = LATENCIES
        yield _histogram(requests, {(): self._requests})
        yield _histogram(round_trips, {(label,): each for label, each in list(self._round_trips.items())})
        yield _histogram(waits, {(reason,): each for reason, each in list(self._waits.items())})
        yield _histogram(batches, {(): self._batches})
        family = CounterMetricFamily(f"{PREFIX}_{cpu.name}", cpu.help, labels=cpu.labels)
        for worker, seconds in list(self._now.items()):  # this runs in a thread
            family.add_metric([worker], self._cpu.get(worker, 0.0) + seconds)
        yield family


def _sum(one: Buckets, other: Buckets) -> Buckets:
    return Buckets(tuple(map(sum, zip(one.counts, other.counts, strict=True))), one.total + other.total)


def _histogram(family: Family, series: Mapping[tuple[str, ...], Buckets]) -> HistogramMetricFamily:
    found = HistogramMetricFamily(f"{PREFIX}_{family.name}", family.help, labels=family.labels)
    for labels, buckets in series.items():
        counts = list(zip(_BOUNDS, accumulate(buckets.counts), strict=True))
        found.add_metric(labels, counts, buckets.total)
    return found
