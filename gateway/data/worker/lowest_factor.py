# The lowest storage factor since it was last read: for the usage record of an interval. Knows no clock, no policy.

from __future__ import annotations


class LowestFactor:
    """None: storage protection is off, or only observes."""

    __slots__ = ("_current", "_lowest")

    def __init__(self) -> None:
        self._current: float | None = None
        self._lowest: float | None = None

    def set_factor(self, factor: float | None) -> None:
        """From now on this one is enforced."""
        self._current = factor
        if factor is not None:
            self._lowest = factor if self._lowest is None else min(self._lowest, factor)

    def collect_lowest(self) -> float | None:
        """The lowest since the last call; the one in force goes on to count."""
        lowest, self._lowest = self._lowest, self._current
        return lowest
