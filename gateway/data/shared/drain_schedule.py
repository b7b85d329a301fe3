# Whose turn it is when all connections of a worker have to end: one after the other, since their clients come back at
# once, to another gateway, and each costs that a handshake and a dial. Pure: no clock, no sockets.

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

MIN_DRAINED_PER_S: Final = 200.0  # so that a worker with few connections ends soon

T = TypeVar("T")


class DrainSchedule(Generic[T]):
    """Spreads departures evenly over `within_s` seconds from `began` on; sooner if there are few. Times in seconds, of
    any clock.
    """

    def __init__(self, leaving: Iterable[T], began: float, within_s: float) -> None:
        """`leaving`: in the order in which they leave."""
        self._remaining = deque(leaving)
        self._began = began
        self._per_s = max(MIN_DRAINED_PER_S, len(self._remaining) / within_s) if within_s > 0 else float("inf")
        self._popped_count = 0

    def __bool__(self) -> bool:
        """Whether any departure is left."""
        return bool(self._remaining)

    def pop_due(self, now: float) -> list[T]:
        """Those that have become due since the last call."""
        passed = now - self._began
        until = (
            len(self._remaining) + self._popped_count
            if self._per_s == float("inf")
            else 1 + int(passed * self._per_s + 1e-6)
        )
        found = [
            self._remaining.popleft() for _ in range(min(len(self._remaining), max(0, until - self._popped_count)))
        ]
        self._popped_count += len(found)
        return found
