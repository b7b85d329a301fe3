# The traffic of this gateway over the last hour, all topics and clients together: from the rows of workers' intervals,
# in memory of a fixed size. Traffic by client and topic, for minutes, is recent.py's; accounts are the usage log's.
#
# Time is cut into slots, which lie in a ring: a slot's place is its number modulo the ring's length, and the number in
# it says whose turn it is. An interval that reaches over several slots, as after an absence of control, is spread over
# them by time. Knows no worker and no clock: `now_ms` is Unix time.

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.channel import UsageInterval
from policies.usage import DELAYED, NOTES, OBSERVED_OUTCOMES, OUTCOMES

SLOT_MS: Final = 10_000
SLOTS: Final = 360  # an hour
LATE_MS: Final = 2_000  # an interval arrives at most this long after its end: until then its slot is not whole
_ACCEPTED, _REJECTED, _DELAYED, _WOULD = range(1, 5)  # 0: offered
_KINDS: Final = {
    "accepted": _ACCEPTED,
    "unacknowledged": _ACCEPTED,
    "rejected": _REJECTED,
    "dropped": _REJECTED,
    DELAYED: _DELAYED,
    **dict.fromkeys(OBSERVED_OUTCOMES, _WOULD),
}
_OFFERED: Final = frozenset(OUTCOMES)
assert not _OFFERED & set(NOTES)


class TimelinePoint(NamedTuple):
    """Bytes per second, as a mean of one slot, which begins at `at_ms` (Unix time).

    `offered`: everything that clients sent. `accepted`: forwarded with acks=0 included, `delayed` is part of it.
    `would`: rejected or delayed if observed limits were enforced. `factor`: the lowest storage factor that a worker
    enforced; None: none did (storage protection is off, or observes), or nothing came.
    """

    at_ms: int
    offered: float
    accepted: float
    rejected: float
    delayed: float
    would: float
    factor: float | None


class _TimelineSlot:
    __slots__ = ("factor", "number", "sums")

    def __init__(self) -> None:
        self.number = -1
        self.sums = [0.0] * 5
        self.factor: float | None = None

    def begin_slot(self, number: int) -> None:
        self.number = number
        self.sums = [0.0] * 5
        self.factor = None


class TrafficTimeline:
    """Sums of all intervals by slot. `since_ms`: when counting began, None before; earlier slots are unknown, not 0."""

    def __init__(self) -> None:
        self._ring = [_TimelineSlot() for _ in range(SLOTS)]
        self._newest = 0  # the latest slot that could be written to
        self.since_ms: int | None = None

    def add_interval(self, interval: UsageInterval, now_ms: int) -> None:
        """One that was not added before. What is older than the ring, or from the future, is left out."""
        if self.since_ms is None or now_ms < self.since_ms:  # the clock may have been set back
            self.since_ms = now_ms
        start, end = interval.start_ms, max(interval.end_ms, interval.start_ms + 1)
        sums = _sum_interval(interval)
        newest = now_ms // SLOT_MS + 1
        if newest < self._newest:  # the clock was set back: this time comes again, and would be counted twice
            for slot in self._ring:
                if slot.number > newest:
                    slot.number = -1
        self._newest = newest
        for number in range(max(start // SLOT_MS, newest - SLOTS + 1), min((end - 1) // SLOT_MS, newest) + 1):
            share = (min(end, (number + 1) * SLOT_MS) - max(start, number * SLOT_MS)) / (end - start)
            slot = self._ring[number % SLOTS]
            if slot.number != number:
                slot.begin_slot(number)
            for kind, size in enumerate(sums):
                slot.sums[kind] += size * share
            if interval.storage_factor is not None:
                slot.factor = min(interval.storage_factor, 1.0 if slot.factor is None else slot.factor)

    def list_points(self, now_ms: int, last: int = SLOTS) -> list[TimelinePoint]:
        """The `last` whole slots (at most SLOTS - 2), the oldest first; only slots since counting began."""
        end = (now_ms - LATE_MS) // SLOT_MS
        begin = end if self.since_ms is None else max(self.since_ms // SLOT_MS, end - min(last, SLOTS - 2))
        return [self._make_point(number) for number in range(begin, end)]

    def _make_point(self, number: int) -> TimelinePoint:
        slot = self._ring[number % SLOTS]
        if slot.number != number:
            return TimelinePoint(number * SLOT_MS, 0.0, 0.0, 0.0, 0.0, 0.0, None)
        offered, accepted, rejected, delayed, would = (size / (SLOT_MS / 1000) for size in slot.sums)
        return TimelinePoint(number * SLOT_MS, offered, accepted, rejected, delayed, would, slot.factor)


def _sum_interval(interval: UsageInterval) -> list[int]:
    sums = [0] * 5
    for row in interval.rows:
        if row.outcome in _OFFERED:
            sums[0] += row.bytes
        kind = _KINDS.get(row.outcome)
        if kind is not None:
            sums[kind] += row.bytes
    return sums
