# Whose turn it is when all connections of a worker have to end: one after the other, since their clients come back at
# once, to another gateway, and each costs that a handshake and a dial. Pure: no clock, no sockets.

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

LEAST_PER_S: Final = 200.0  # so that a worker with few connections ends soon

T = TypeVar("T")


class Departures(Generic[T]):
    """Evenly within `within_s` from `began` on, or sooner if there are few. Times in seconds, of any clock."""

    def __init__(self, leaving: Iterable[T], began: float, within_s: float) -> None:
        """`leaving`: in the order in which they go."""
        self._left = deque(leaving)
        self._began = began
        self._per_s = max(LEAST_PER_S, len(self._left) / within_s) if within_s > 0 else float("inf")
        self._gone = 0

    def __bool__(self) -> bool:
        """Whether somebody is left."""
        return bool(self._left)

    def due(self, now: float) -> list[T]:
        """Those whose turn has come since the last time."""
        passed = now - self._began
        until = len(self._left) + self._gone if self._per_s == float("inf") else 1 + int(passed * self._per_s + 1e-6)
        found = [self._left.popleft() for _ in range(min(len(self._left), max(0, until - self._gone)))]
        self._gone += len(found)
        return found
