# How many log lines of one kind there may be: so many within a period, then their number. For lines that strangers can
# cause, or a fault that doesn't end. Knows no clock and no log; `now` is any monotonic time in seconds.

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

MAX_KINDS: Final = 1000  # that are known at a time; lines of further ones are left out, uncounted

K = TypeVar("K", bound=Hashable)


class SuppressedLines(NamedTuple, Generic[K]):
    """Of one kind, within a period that is over. `amount`: the sum of what the lines left out were about."""

    kind: K
    lines: int
    amount: int
    seconds: float

    @property
    def period_text(self) -> str:
        return f"within {self.seconds:.0f} s"


class _LimiterPeriod:
    __slots__ = ("amount", "logged", "since", "suppressed")

    def __init__(self, now: float) -> None:
        self.since = now
        self.logged = self.suppressed = self.amount = 0


class LogRateLimiter(Generic[K]):
    """At most `burst` lines of a kind within `period_s`."""

    def __init__(self, burst: int, period_s: float) -> None:
        self._burst = burst
        self._period_s = period_s
        self._periods: dict[K, _LimiterPeriod] = {}

    def allow_line(self, kind: K, now: float, *, burst: int | None = None, amount: int = 0) -> bool:
        """Whether one more line may be said. `burst`: that of this kind. `amount`: what the line is about, summed up of
        those that are left out. The caller calls `end_periods` first.
        """
        period = self._periods.get(kind)
        if period is None:
            if len(self._periods) >= MAX_KINDS:
                return False
            period = self._periods[kind] = _LimiterPeriod(now)
        if period.logged < (self._burst if burst is None else burst):
            period.logged += 1
            return True
        period.suppressed += 1
        period.amount += amount
        return False

    def end_periods(self, now: float) -> Iterator[SuppressedLines[K]]:
        """The kinds of which lines were left out within a period that is over: each begins anew."""
        for kind, period in list(self._periods.items()):
            if now - period.since >= self._period_s:
                del self._periods[kind]
                if period.suppressed:
                    yield SuppressedLines(kind, period.suppressed, period.amount, now - period.since)
