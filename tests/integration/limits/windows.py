# Rates of what real clients get through, on machines that stand still for seconds.
#
# A limit saves one second's worth. So in any window of W seconds there is at most W + 1 seconds' worth, and while
# somebody wants more than he gets, W seconds' worth, but for a request that is the window's or the next one's. Of a
# stall of S seconds, whoever stood still, the window lacks S - 1 seconds' worth, and the next one may have the second
# that was saved. So no single window says that a limit is wrong: one window after the other is looked at until one
# shows it as it should be. Of a wrong limit none does; and of a whole run no more than the above may have come.

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import TypeVar

import pytest

Rates = TypeVar("Rates")

WINDOW_S = 5.0
DEADLINE_S = 150.0
LAG_S = 1.0  # a window is looked at when so much more has been seen
NEAR = 0.1  # of a limit: noise of clients that share two cores with all the rest


class Curve:
    """What came in, as (time, so much until then) with rising times. One thread adds, another one may look."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.sizes: list[float] = []

    def add(self, at: float, size: float) -> None:
        self.sizes.append(size)
        self.times.append(at)

    def at(self, when: float) -> float:
        """So much until then, linear between samples."""
        count = len(self.times)
        after = bisect_left(self.times, when, 0, count)
        if after == 0:
            return 0.0
        if after == count:
            return self.sizes[count - 1]
        t0, t1, s0, s1 = *self.times[after - 1 : after + 1], *self.sizes[after - 1 : after + 1]
        return s0 + (s1 - s0) * (when - t0) / (t1 - t0)

    def rate(self, start: float, end: float) -> float:
        return (self.at(end) - self.at(start)) / (end - start)

    def windows(self, start: float, window_s: float = WINDOW_S, step_s: float = 1.0) -> list[float]:
        """The rates of all whole windows from `start` on, one beginning every step."""
        count = max(0, int((self.ended - start - window_s) / step_s) + 1)
        return [self.rate(start + n * step_s, start + n * step_s + window_s) for n in range(count)]

    @property
    def began(self) -> float:
        """The last time at which nothing was there."""
        return next(t for t, later in zip(self.times, self.sizes[1:], strict=False) if later > 0)

    @property
    def ended(self) -> float:
        """The first time at which everything was there."""
        return self.times[bisect_left(self.sizes, self.sizes[-1])]


def is_near(value: float, wanted: float, off: float = NEAR) -> bool:
    return abs(value - wanted) <= off * wanted


def most_of(limit: float, seconds: float) -> float:
    """The highest rate that a limit can bring over so long; a twentieth is for what is not told to the byte."""
    return 1.05 * limit * (1 + 1 / seconds)


def wait_window(
    rates: Callable[[float, float], Rates],
    holds: Callable[[Rates], bool],
    *,
    window_s: float = WINDOW_S,
    deadline_s: float = DEADLINE_S,
) -> Rates:
    """Return the rates of the first window, from now on, of which that holds; fail where there is none in time.

    Args:
        rates: what there was from a time until another one, as `time.monotonic` has them.
    """
    seen: list[Rates] = []
    begin = time.monotonic()
    deadline = begin + deadline_s
    while begin < deadline:
        time.sleep(window_s + LAG_S if not seen else window_s)
        end = time.monotonic() - LAG_S
        seen.append(rates(begin, end))
        if holds(seen[-1]):
            return seen[-1]
        begin = end
    pytest.fail(f"no window is as it should be: {seen}")
