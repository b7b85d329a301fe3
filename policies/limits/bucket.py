# A token bucket that lets its owner go into debt: who takes is served at once and told how long the debt lasts. So a
# request larger than the burst passes, once; what comes behind it pays. Those who wait come in the order in which they
# took, without a queue: each later one finds a deeper debt and is told a later time.
#
# Knows neither what it counts nor a clock: `now` is seconds on a monotonic clock. Debt is bounded, or one burst would
# stall everybody for minutes (apache/pulsar#24001); what exceeds the bound is forgiven. A bucket starts empty, or the
# first second would see twice the rate (apache/pulsar#24012).

from __future__ import annotations

import math
from typing import Final

_UNSTARTED: Final = math.inf  # no clock is later: the first call finds that no time has passed


class Bucket:
    """One limit, shared by all who are under it.

    `rate`: bytes per second. `burst`: bytes that idle time may save up. `max_debt`: bytes that can be owed
    at most. Both grow with the rate: they are `burst_s` and `debt_s` seconds of it; `max_debt` of the whole rate, where
    this is told to be a part of one.
    """

    __slots__ = ("_burst_s", "_debt_s", "_level", "_then", "burst", "max_debt", "rate")

    def __init__(self, rate: float, burst_s: float, debt_s: float, now: float = _UNSTARTED) -> None:
        """Empty at `now`, or at the first call.

        Raises:
            ValueError: a rate that never pays a debt, or bounds below 0.
        """
        if burst_s < 0 or debt_s < 0:
            raise ValueError(f"a bucket with a burst of {burst_s} s and a debt of {debt_s} s")
        self._burst_s = burst_s
        self._debt_s = debt_s
        self._level = 0.0
        self._then = now
        self.rate = self.burst = self.max_debt = 0.0
        self._rerate(rate, rate)

    def take(self, size: float, now: float) -> float:
        """Take `size` bytes at once, whatever is left; return for how many seconds the taker has to wait, 0.0 for none.

        Bytes below 0 are given back.
        """
        self._refill(now)
        self._clip(self._level - size)
        return -self._level / self.rate if self._level < 0.0 else 0.0

    def absorb(self, size: float, now: float) -> None:
        """Take `size` bytes that came in evenly since the last call.

        Unlike `take` after a pause, where nothing but the burst is left of what came in unused meanwhile.
        """
        elapsed = now - self._then
        self._then = now
        self._clip(self._level - size + (self.rate * elapsed if elapsed > 0.0 else 0.0))

    @property
    def in_debt(self) -> bool:
        """Whether there was a debt when the bucket was last used."""
        return self._level < 0.0

    def level(self, now: float) -> float:
        """Bytes that may be taken without a wait; below 0: the debt."""
        self._refill(now)
        return self._level

    def wait(self, now: float) -> float:
        """Seconds until the debt is paid; 0.0 without one."""
        self._refill(now)
        return -self._level / self.rate if self._level < 0.0 else 0.0

    def wait_after(self, size: float, now: float) -> float:
        """What `take` would return. Takes nothing."""
        level = max(self.level(now) - size, -self.max_debt)
        return -level / self.rate if level < 0.0 else 0.0

    def give_back(self, size: float) -> None:
        """These bytes were taken, and then not used."""
        self._clip(self._level + size)

    def forgive(self, debt: float) -> None:
        """Leave at most `debt` bytes of the debt."""
        self._level = max(self._level, -debt)

    def set_rate(self, rate: float, now: float, whole: float | None = None) -> None:
        """Go on with another rate. The debt stays the same number of bytes, within the new rate's bound.

        `whole`: what the bound goes by, where `rate` is the part of it that is ours just now. A part comes and goes
        with its use, and would take the debt along.

        Raises:
            ValueError: a rate that never pays a debt.
        """
        self._refill(now)
        self._rerate(rate, rate if whole is None else whole)

    def set_burst(self, burst_s: float, now: float) -> None:
        """From now on save up at most so many seconds of the rate."""
        if burst_s != self._burst_s:
            self._refill(now)
            self._burst_s = burst_s
            self.burst = self.rate * burst_s
            self._clip(self._level)

    def _rerate(self, rate: float, whole: float) -> None:
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"a bucket with a rate of {rate} bytes/s")
        self.rate = rate
        self.burst = rate * self._burst_s
        self.max_debt = whole * self._debt_s
        self._clip(self._level)

    def _refill(self, now: float) -> None:
        elapsed = now - self._then
        self._then = now  # also backwards, or a clock that was once ahead would stop it for as long
        if elapsed > 0.0:
            level = self._level + self.rate * elapsed
            self._level = level if level < self.burst else self.burst

    def _clip(self, level: float) -> None:
        self._level = min(max(level, -self.max_debt), self.burst)
