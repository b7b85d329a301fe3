# How fast a volume fills, and when it reaches its limits if it goes on so: from what is free at each check.
#
# Two means, since writing and deleting differ: bytes are written all the time, so the last minute or two say how fast;
# retention deletes whole segments, in steps minutes or hours apart, so only a long time says how much. Each weighs what
# it saw by its age, so a trend is a few numbers, however often one checks. `at` is monotonic, in seconds. Knows no
# limit's meaning and no source.

from __future__ import annotations

import math
from typing import Final, NamedTuple

from policies.storage.judging import VolumeFinding

WRITTEN_S: Final = 60.0  # as V1's one-minute rate: what is older counts less than 37 %
MIN_MEAN_S: Final = 10.0
MEAN_SAMPLES: Final = 5  # who checks more often than that many times a minute wants to know sooner
DELETED_S: Final = 3600.0  # Kafka looks for old segments every 5 minutes
EMPTYING_SAMPLES: Final = 3  # checks in a row with more room each: it does not fill just now, whatever it did before
MAX_FORECAST_S: Final = 366 * 86_400.0  # what takes longer is no news


class FillRate(NamedTuple):
    """Bytes per second. `written`: the growth between deletions; `deleted`: the mean that deletions free."""

    written: float
    deleted: float

    @property
    def net_rate(self) -> float:
        """The net growth: below 0 where the volume empties."""
        return self.written - self.deleted


class VolumeForecast(NamedTuple):
    """`soft_s`, `hard_s`: seconds until the volume reaches the limit, 0 where it has; None: there is no limit, or the
    volume never reaches it.
    """

    fill_rate: FillRate
    soft_s: float | None
    hard_s: float | None


class _DecayingMean:
    """The mean of a rate, in which each moment weighs e times less than one `over_s` later."""

    __slots__ = ("_over_s", "_sum", "_weight")

    def __init__(self, over_s: float) -> None:
        self._over_s = over_s
        self._sum = self._weight = 0.0

    def add_rate(self, rate: float, for_s: float) -> None:
        kept = math.exp(-for_s / self._over_s)
        self._sum = self._sum * kept + rate * (1 - kept)
        self._weight = self._weight * kept + (1 - kept)

    @property
    def value(self) -> float:
        """0 before the first sample."""
        return self._sum / self._weight if self._weight else 0.0


class FillTrend:
    """How fast one volume fills, from the free bytes at each observation; `fill_rate` needs three of them.

    An observation with more free bytes than the one before follows a deletion. The largest deletion of the last hours
    doesn't count: retention recurs, but an operator who made room once doesn't, and should not make the volume look as
    if it emptied for hours.
    """

    __slots__ = (
        "_all",
        "_at",
        "_available",
        "_deleted",
        "_drops",
        "_event",
        "_largest",
        "_samples",
        "_total",
        "_written",
        "_written_s",
    )

    def __init__(self, interval_s: float = WRITTEN_S) -> None:
        """`interval_s`: between two observations, roughly."""
        self._written_s = min(WRITTEN_S, max(MIN_MEAN_S, MEAN_SAMPLES * interval_s))
        self._reset_trend()

    def _reset_trend(self) -> None:
        self._written = _DecayingMean(self._written_s)
        self._all = 0.0  # weight of all time since the first check, as in a _DecayingMean
        self._deleted = 0.0  # bytes, likewise …
        self._largest = 0.0  # … of them, those of the largest deletion …
        self._event = 0.0  # … and of the present one
        self._drops = 0  # checks in a row that saw deletions
        self._samples = 0
        self._at = -math.inf
        self._total = self._available = 0

    def add_sample(self, at: float, total: int, available: int) -> None:
        """Add one observation. One that is not later than the last is ignored; if the volume's size changed, the trend
        starts over.
        """
        if self._samples and total != self._total:
            self._reset_trend()
        for_s, grown = at - self._at, self._available - available
        if self._samples and for_s <= 0:
            return
        self._at, self._total, self._available = at, total, available
        self._samples += 1
        if self._samples > 1:
            self._record_growth(grown, for_s)

    def _record_growth(self, grown: int, for_s: float) -> None:
        kept = math.exp(-for_s / DELETED_S)
        self._all = self._all * kept + DELETED_S * (1 - kept)
        self._deleted, self._largest, self._event = (
            each * kept for each in (self._deleted, self._largest, self._event)
        )
        if grown >= 0:
            self._written.add_rate(grown / for_s, for_s)
            self._drops, self._event = 0, 0.0
            return
        self._drops += 1
        gone = self._written.value * for_s - grown
        self._deleted += gone
        self._event += gone
        self._largest = max(self._largest, self._event)

    @property
    def fill_rate(self) -> FillRate | None:
        """None: not known yet."""
        if self._samples < 3:
            return None
        if self._drops >= EMPTYING_SAMPLES:
            return FillRate(0.0, self._event / self._all)
        return FillRate(self._written.value, max(0.0, self._deleted - self._largest) / self._all)

    def forecast_limits(self, finding: VolumeFinding) -> VolumeForecast | None:
        """The forecast for the volume as it is now, by its own limits. None: not known yet."""
        fill = self.fill_rate
        if fill is None:
            return None
        free = finding.volume.available
        return VolumeForecast(
            fill,
            _seconds_until(free, finding.soft_free, fill.net_rate),
            _seconds_until(free, finding.hard_free, fill.net_rate),
        )


def _seconds_until(free: int, level: float | None, rate: float) -> float | None:
    if level is None:
        return None
    if free <= level:
        return 0.0
    left = (free - level) / rate if rate > 0 else math.inf
    return left if left <= MAX_FORECAST_S else None
