# How much of a limit is used that a token bucket keeps, as metrics, explanations and REST show it: the mean of the last
# two ticks, 10 seconds as in Kafka's own quotas (quota.window.num, quota.window.size.seconds), from the moment on at
# which the limit was first used. A bucket that is in debt is used up, whatever came in: a request that is larger than
# what 10 seconds allow would else count twice in one window, and not at all in the next.
#
# Knows no clock: `now` is seconds on a monotonic clock.

from __future__ import annotations

import math
from typing import Final, NamedTuple

MIN_WINDOW_S: Final = 1.0  # a limit that has only begun: one request isn't a rate


def limit_utilization(rate: float | None, limit: float | None) -> float:
    """Rate by limit as a ratio, not capped (KIP-1373); NaN: there is no limit, or the rate is not known."""
    if rate is None or limit is None:
        return math.nan
    if limit <= 0:
        return math.inf if rate > 0 else 0.0
    return rate / limit


class LimitUse(NamedTuple):
    """One limit as it stands at one gateway, or in one of its workers; per second, in the limit's unit.

    `rate`: used. `limit`: in force, the gateway's share, storage factor included; None = none. `waiting`: it is used
    up, clients wait for it. `wait_s`: until the bucket's debt is paid. `uncharged`: of `rate`, what passed only because
    the limit is observed.
    """

    rate: float
    limit: float | None
    waiting: bool = False
    wait_s: float = 0.0
    uncharged: float = 0.0

    @property
    def utilization(self) -> float:
        return limit_utilization(self.rate, self.limit)

    def merge_shared(self, other: LimitUse) -> LimitUse:
        """The use of two workers that share the bucket: what is used up in one of them is used up in both, and counts
        once.
        """
        spared, waiting = self.uncharged + other.uncharged, self.waiting or other.waiting
        limit, rate = other.limit, self.rate + other.rate
        if limit is not None:
            limit = limit if self.limit is None else max(self.limit, limit)
            taken = rate - spared
            rate = (limit if waiting else min(taken, limit)) + spared
        return LimitUse(rate, limit, waiting, max(self.wait_s, other.wait_s), spared)

    def merge_separate(self, other: LimitUse) -> LimitUse:
        """The use of two workers, each with a bucket of its own."""
        assert self.limit is not None
        assert other.limit is not None
        limit, waiting = self.limit + other.limit, self.waiting or other.waiting
        wait_s, spared = max(self.wait_s, other.wait_s), self.uncharged + other.uncharged
        return LimitUse(self.rate + other.rate, limit, waiting, wait_s, spared)


class LimitMeter:
    """Of one limit in one worker; its owner calls `tick` every few seconds.

    `charged`: since the last tick; `uncharged`: since then, what passed without being charged to the bucket, as it is
    only observed. `rate`, `uncharged_rate`: of both, per second, as of the last tick.
    """

    __slots__ = ("_from", "_last", "_since", "charged", "rate", "uncharged", "uncharged_rate")

    def __init__(self, now: float) -> None:
        self.charged = self.uncharged = 0.0
        self.rate = self.uncharged_rate = 0.0
        self._last = 0.0, 0.0  # the tick before
        self._from = self._since = now  # when that tick began, and when this one did

    def tick(self, now: float) -> None:
        elapsed = max(now - self._from, MIN_WINDOW_S)
        taken, spared = self._last
        # What was given back may have been taken earlier.
        self.rate = max(0.0, (taken + self.charged) / elapsed)
        self.uncharged_rate = max(0.0, (spared + self.uncharged) / elapsed)
        self._last = self.charged, self.uncharged
        self._from, self._since = self._since, now
        self.charged = self.uncharged = 0.0

    @property
    def observed_rate(self) -> float:
        """All traffic under the limit, per second."""
        return self.rate + self.uncharged_rate

    def measure_use(self, limit: float | None, wait_s: float = 0.0, *, waiting: bool = False) -> LimitUse:
        """`limit`: the bucket's rate; None: there is no bucket. `waiting`: the limit is used up."""
        if limit is None:
            return LimitUse(self.observed_rate, None)
        taken = limit if waiting else min(self.rate, limit)
        return LimitUse(taken + self.uncharged_rate, limit, waiting, wait_s, self.uncharged_rate)
