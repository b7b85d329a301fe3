# How long Produce requests take, for histograms: at this worker, to their broker and back, and in waits for limits.
#
# Sans-IO, and nearly free. A request that is measured carries the time from which on it counts; the reactor says when a
# batch of events is over, by then its answer has been sent. Up to MEASURED requests a second all are measured; beyond,
# every 2nd, 4th, … of a connection, by its correlation id, and each counts for so many.

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from gateway.channel import LATENCY_BOUNDS, Buckets, Latencies

MEASURED: Final = 250  # requests a second: half a thousandth of a core, at 1.5 µs each
MAX_MASK: Final = 1023

Stamp = tuple[float, float]  # when a request was whole, and when it was forwarded: later where it had to wait


class Histogram:
    """Counts of durations by LATENCY_BOUNDS, and their sum in seconds, since the last `take`."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self._total = 0.0

    def add(self, seconds: float, weight: int = 1) -> None:
        """One that stands for `weight`."""
        self._counts[bisect_left(LATENCY_BOUNDS, seconds)] += weight
        self._total += max(0.0, seconds) * weight

    def take(self) -> Buckets:
        """Begin anew."""
        taken = Buckets(tuple(self._counts), self._total)
        self._counts, self._total = [0] * (len(LATENCY_BOUNDS) + 1), 0.0
        return taken


class Meter:
    """The histograms of one worker.

    Attributes:
        mask: requests whose correlation id has none of its bits are measured.
        answered: stamps of the requests whose answers were sent within the present batch of events.
    """

    __slots__ = ("_answered", "_batches", "_requests", "_round_trips", "_waits", "answered", "mask")

    def __init__(self) -> None:
        self.mask = 0
        self.answered: list[Stamp] = []
        self._batches = Histogram()
        self._answered = 0  # requests, about, since the last `take`
        self._requests = Histogram()
        self._round_trips: dict[int, Histogram] = {}
        self._waits: dict[str, Histogram] = {}

    def answer(self, stamp: Stamp, broker: int, now: float) -> None:
        """That broker's answer is here, and about to be sent."""
        weight = self.mask + 1
        round_trip = self._round_trips.get(broker)
        if round_trip is None:
            round_trip = self._round_trips[broker] = Histogram()
        round_trip.add(now - stamp[1], weight)
        self.answered.append(stamp)

    def end_batch(self, began: float, now: float) -> None:
        """Everything that was answered until now has been sent; the batch of events had begun at that time."""
        weight = self.mask + 1
        self._batches.add(now - began, weight)
        for since, _ in self.answered:
            self._requests.add(now - since, weight)
        self._answered += weight * len(self.answered)
        self.answered.clear()

    def reject(self, stamp: Stamp, now: float) -> None:
        """The gateway itself has answered."""
        self._requests.add(now - stamp[0], self.mask + 1)

    def wait(self, reason: str, seconds: float) -> None:
        """Requests were held so long, for that reason of a limit."""
        if reason not in self._waits:
            self._waits[reason] = Histogram()
        self._waits[reason].add(seconds)

    def take(self, seconds: float, cpu_s: float) -> Latencies:
        """All since the last call, so many seconds ago; and how many are to be measured from here on."""
        rate, mask = self._answered / seconds, 0
        while rate > MEASURED * (mask + 1) and mask < MAX_MASK:
            mask = 2 * mask + 1
        self.mask, self._answered = mask, 0
        return Latencies(
            self._requests.take(),
            {broker: each.take() for broker, each in self._round_trips.items()},
            {reason: each.take() for reason, each in self._waits.items()},
            self._batches.take(),
            cpu_s,
        )
