# How long Produce requests take, for histograms: at this worker, to their broker and back, and in waits for limits.
#
# Sans-IO, and nearly free. A request that is measured carries the time from which on it counts; the reactor says when a
# batch of events is over, by then its answer has been sent. Up to MEASURED_PER_S requests a second all are measured;
# beyond, every 2nd, 4th, … of a connection, by its correlation id, and each counts for as many. That is decided each
# second, and at once where much more comes than in the last one: measuring all of a burst costs as much as passing it
# on.

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from gateway.channel import LATENCY_BOUNDS, DurationBuckets, LatencyReport

if TYPE_CHECKING:
    from collections.abc import Callable

# requests a second: at 2 µs each, and 40 where other programs have used the caches meanwhile
MEASURED_PER_S: Final = 100
MAX_MASK: Final = 1023
_SHORTEST_S: Final = 0.2  # what came in less time says little about a second

# When a request was whole, and when it was forwarded: later where it had to wait; and for how many it counts.
LatencyStamp = tuple[float, float, int]


class LatencyHistogram:
    """Counts of durations by LATENCY_BOUNDS, and their sum in seconds, since the last `collect_buckets`."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self._total = 0.0

    def add_duration(self, seconds: float, weight: int = 1) -> None:
        """Add a duration in seconds that counts `weight` times."""
        self._counts[bisect_left(LATENCY_BOUNDS, seconds)] += weight
        self._total += max(0.0, seconds) * weight

    def collect_buckets(self) -> DurationBuckets:
        """Return the counts and the sum, and reset them."""
        taken = DurationBuckets(tuple(self._counts), self._total)
        self._counts, self._total = [0] * (len(LATENCY_BOUNDS) + 1), 0.0
        return taken


class LatencyMeter:
    """The histograms of one worker.

    Attributes:
        sample_mask: requests whose correlation id has none of its bits are measured, and count for `sample_mask` + 1.
        answered_stamps: stamps of the requests whose answers were sent within the present batch of events.
    """

    __slots__ = ("_answered", "_batches", "_measured", "_on_change", "_requests", "_round_trips", "_since",
                 "_standing_for", "_waits", "answered_stamps", "sample_mask")  # fmt: skip

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change` is called when `sample_mask` changes within a second; `collect_latencies` returns it as well."""
        self.sample_mask = 0
        self.answered_stamps: list[LatencyStamp] = []
        self._on_change = on_change
        self._batches = LatencyHistogram()
        self._answered = 0  # requests, about, since the last `collect_latencies`
        self._measured = self._standing_for = 0  # answers since `sample_mask` was last set, and their weights
        self._since = 0.0  # the time of the first of them
        self._requests = LatencyHistogram()
        self._round_trips: dict[int, LatencyHistogram] = {}
        self._waits: dict[str, LatencyHistogram] = {}

    def record_response(self, stamp: LatencyStamp, broker: int, now: float) -> None:
        """A broker's response has arrived, and is about to be sent to the client."""
        round_trip = self._round_trips.get(broker)
        if round_trip is None:
            round_trip = self._round_trips[broker] = LatencyHistogram()
        round_trip.add_duration(now - stamp[1], stamp[2])
        self.answered_stamps.append(stamp)
        if not self._measured:
            self._since = now
        self._measured += 1
        self._standing_for += stamp[2]
        if self._measured > 2 * MEASURED_PER_S:
            self._reduce_sampling(self._standing_for / max(now - self._since, _SHORTEST_S))

    def _reduce_sampling(self, rate: float) -> None:
        self._measured = self._standing_for = 0
        mask = max(self.sample_mask, _sample_mask(rate))
        if mask != self.sample_mask:
            self.sample_mask = mask
            self._on_change()

    def end_batch(self, began: float, now: float) -> None:
        """Everything answered so far has been sent; the batch of events began at that time."""
        # A batch with many answers is measured whatever the share, so it counts for the fewest.
        self._batches.add_duration(now - began, min((weight for _, _, weight in self.answered_stamps), default=1))
        for since, _, weight in self.answered_stamps:
            self._requests.add_duration(now - since, weight)
            self._answered += weight
        self.answered_stamps.clear()

    def record_rejection(self, stamp: LatencyStamp, now: float) -> None:
        """The gateway itself has answered."""
        self._requests.add_duration(now - stamp[0], stamp[2])

    def record_wait(self, reason: str, seconds: float) -> None:
        """Requests were held for so long, for that reason of a limit."""
        if reason not in self._waits:
            self._waits[reason] = LatencyHistogram()
        self._waits[reason].add_duration(seconds)

    def collect_latencies(self, seconds: float, cpu_s: float) -> LatencyReport:
        """Everything since the last call, `seconds` ago, and the sample mask from here on."""
        self.sample_mask = _sample_mask(self._answered / seconds)
        self._answered = self._measured = self._standing_for = 0
        return LatencyReport(
            self._requests.collect_buckets(),
            {broker: each.collect_buckets() for broker, each in self._round_trips.items()},
            {reason: each.collect_buckets() for reason, each in self._waits.items()},
            self._batches.collect_buckets(),
            cpu_s,
        )


def _sample_mask(rate: float) -> int:
    """The mask with which at most MEASURED_PER_S of `rate` requests a second are measured."""
    mask = 0
    while rate > MEASURED_PER_S * (mask + 1) and mask < MAX_MASK:
        mask = 2 * mask + 1
    return mask
