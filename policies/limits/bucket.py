# A token bucket that lets its owner go into debt: a request is served at once and learns how long the debt lasts. So a
# request larger than the burst passes, once; what comes behind it pays. Those who wait come in the order in which they
# took, without a queue: each later one finds a deeper debt and gets a later time.
#
# Debt may be bounded, or one burst would stall all clients for minutes (apache/pulsar#24001). No client waits for what
# exceeds the bound; it is paid from what would otherwise be lost because no more can be saved. A bucket starts empty,
# or the first second would see twice the rate (apache/pulsar#24012).
#
# Knows neither what it counts nor a clock: `now` is seconds on a monotonic clock.

from __future__ import annotations

import math
from typing import Final

# In place of a time: a bucket is empty at its first call. No clock is later, so that finds that no time has passed.
UNSTARTED: Final = math.inf


class TokenBucket:
    """One limit, shared by all its clients. `rate`: bytes per second. `burst`: the most bytes that idle time saves up.
    `max_debt`: the most bytes of debt that a client waits for. Both are proportional to the rate: `burst_s` and
    `debt_s` seconds of it. `excess_debt`: bytes that are owed and that no client waits for.
    """

    __slots__ = ("_burst_s", "_level", "_max_debt_s", "_updated_at", "burst", "excess_debt", "max_debt", "rate")

    def __init__(self, rate: float, burst_s: float, debt_s: float, now: float = UNSTARTED) -> None:
        """Empty at `now`; UNSTARTED: at the first call.

        Raises:
            ValueError: the rate never pays a debt, or a bound is below 0.
        """
        if burst_s < 0 or debt_s < 0:
            raise ValueError(f"a bucket with a burst of {burst_s} s and a debt of {debt_s} s")
        self._burst_s = burst_s
        self._max_debt_s = debt_s
        self._level = 0.0
        self._updated_at = now
        self.excess_debt = 0.0
        self.rate = self.burst = self.max_debt = 0.0
        self._apply_rate(rate)

    def consume_tokens(self, size: float, now: float) -> float:
        """Consume `size` bytes at once, even if that leaves a debt. Returns the seconds that the client has to wait,
        0.0: none. Bytes below 0 are refunded.
        """
        self._refill_tokens(now)
        self._withdraw_tokens(size, self._level)
        return -self._level / self.rate if self._level < 0.0 else 0.0

    def consume_evenly(self, size: float, now: float) -> None:
        """Consume `size` bytes that arrived evenly since the last call.

        `consume_tokens` after a pause differs: nothing but the burst is left of the unused rate.
        """
        elapsed = now - self._updated_at
        self._updated_at = now
        self._withdraw_tokens(size, self._level + (self.rate * elapsed if elapsed > 0.0 else 0.0))

    @property
    def in_debt(self) -> bool:
        """Whether there was a debt when the bucket was last used."""
        return self._level < 0.0

    @property
    def owed_tokens(self) -> float:
        """Bytes of debt at the last use, including those that no client waits for; below 0: saved."""
        return self.excess_debt - self._level

    def token_level(self, now: float) -> float:
        """Bytes that can be consumed without a wait; below 0: the debt."""
        self._refill_tokens(now)
        return self._level

    def debt_wait_s(self, now: float) -> float:
        """Seconds until the debt is paid; 0.0: there is none."""
        self._refill_tokens(now)
        return -self._level / self.rate if self._level < 0.0 else 0.0

    def debt_wait_after(self, size: float, now: float) -> float:
        """The wait that `consume_tokens` would return. Consumes nothing."""
        level = max(self.token_level(now) - size, -self.max_debt)
        return -level / self.rate if level < 0.0 else 0.0

    def is_full(self, now: float) -> bool:
        """Whether nothing is owed and no more can be saved."""
        return self.token_level(now) >= self.burst and not self.excess_debt

    def refund_tokens(self, size: float) -> None:
        """Refund bytes that were consumed and then not used."""
        unpaid = min(size, self.excess_debt)
        self.excess_debt -= unpaid
        self._clip_level(self._level + size - unpaid)

    def forgive_debt(self, debt: float) -> None:
        """Reduce the debt to at most `debt` bytes."""
        self._level = max(self._level, -debt)
        self.excess_debt = max(0.0, min(self.excess_debt, debt + min(self._level, 0.0)))

    def follow_limit(self, before: float, limit: float, most: float) -> None:
        """The limit behind the bucket changed; where it became lower, reduce the debt to at most `most`."""
        if limit < before:
            self.forgive_debt(most)

    def set_rate(self, rate: float, now: float, burst_s: float | None = None) -> None:
        """Set another rate, and the seconds of it that may be saved; None: as many as before. The debt stays the same
        number of bytes.

        Raises:
            ValueError: the rate never pays a debt.
        """
        self._refill_tokens(now)
        if burst_s is not None:
            self._burst_s = burst_s
        self._apply_rate(rate)

    def set_burst(self, burst_s: float, now: float) -> None:
        """Save at most that many seconds of the rate from now on."""
        if burst_s != self._burst_s:
            self._refill_tokens(now)
            self._burst_s = burst_s
            self.burst = self.rate * burst_s
            self._clip_level(self._level)

    def _apply_rate(self, rate: float) -> None:
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"a bucket with a rate of {rate} bytes/s")
        self.rate = rate
        self.burst = rate * self._burst_s
        self.max_debt = rate * self._max_debt_s
        self._clip_level(self._level)
        # A larger rate puts back what a smaller one took out of the debt: parts come and go with their use.
        back = min(self.excess_debt, self._level + self.max_debt)
        if back > 0.0:
            self.excess_debt -= back
            self._level -= back

    def _refill_tokens(self, now: float) -> None:
        elapsed = now - self._updated_at
        self._updated_at = now  # also backwards, or a clock that was once ahead would stop it for as long
        if elapsed > 0.0:
            level = self._level + self.rate * elapsed
            if level < self.burst:
                self._level = level
            else:
                self._clip_level(level)

    def _withdraw_tokens(self, size: float, level: float) -> None:
        """Withdraw `size` bytes from `level`."""
        self._clip_level(level - size)

    def _clip_level(self, level: float) -> None:
        if level < -self.max_debt:
            self.excess_debt -= level + self.max_debt
            level = -self.max_debt
        elif level > self.burst:
            self.excess_debt = max(0.0, self.excess_debt - (level - self.burst))
            level = self.burst
        self._level = level
