# The lowest storage factor since it was last read: for the usage record of an interval. Knows no clock, no policy.

from __future__ import annotations


class LowestFactor:
    """The lowest storage factor of an interval. None: storage protection is off, or only observes."""

    __slots__ = ("_current", "_lowest")

    def __init__(self) -> None:
        self._current: float | None = None
        self._lowest: float | None = None

    def set_factor(self, factor: float | None) -> None:
        """This factor is enforced from now on."""
        self._current = factor
        if factor is not None:
            self._lowest = factor if self._lowest is None else min(self._lowest, factor)

    def collect_lowest(self) -> float | None:
        """The lowest factor since the last call; the present one counts for the next interval too."""
        lowest, self._lowest = self._lowest, self._current
        return lowest
