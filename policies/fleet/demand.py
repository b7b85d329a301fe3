# How much this process takes of limits that hold over a fleet, and of which it wants more: the basis on which shares.py
# allocates shares. Rates are smoothed over about a second and reported only when they changed.
#
# Knows no limiter and no clock: the caller calls `record_use` for everything that was used since the last measurement,
# then `collect_changes`.

from __future__ import annotations

import math
from typing import Final

from policies.fleet.fleet_limiter import FleetLimiter
from policies.fleet.keys import FleetKey
from policies.fleet.shares import IDLE, LimitDemand

SAMPLE_S: Final = 0.1  # how often to look
SMOOTH_S: Final = 0.5  # forgets as fast as a window of a second; at 1.0 falling demand was overstated for 3 cycles …
SMOOTH_GAPS: Final = 4.0  # … but over some requests, where these are large and seldom
# … and at most this many seconds. A request after a pause is counted over the whole pause until the next one comes:
# over the time since the last look a single large request would be more than the limit, and be left to it by all.
MAX_SMOOTH_S: Final = 10.0
# Times the interval between two takings: a member that is later than this takes less by now …
LATE: Final = 1.5
GONE: Final = 2.5  # … and nothing any more, in a straight line
# The interval is a mean weighted by length. Rates count pauses already: where the meter also took each pause of
# irregular traffic for its end, it reported a fifth too little, of bursts half, and all gateways together took more
# than the limit. While a member is hungry, the last takings decide: others get what it leaves at once.
PAUSE_MEMORY: Final = 3.0  # times a longer interval: after that it is forgotten
REPORT_CHANGE: Final = 0.1  # of the reported rate: a decrease is not reported at once …
# … but is reported a second later, or the shares of others would be off by as much for as long as it lasts.
REPORT_AGAIN_S: Final = 1.0
REPORT_AGAIN_CHANGE: Final = 0.01
FORGET_S: Final = 30.0
IDLE_S: Final = 0.25  # without traffic for so long, and for GONE: idle


class _KeyDemand:
    __slots__ = (
        "active_at",
        "claim",
        "gap",
        "hungry",
        "pause",
        "reported",
        "reported_at",
        "size",
        "span",
        "sum",
        "topics",
        "unmeasured",
        "used_at",
        "weight",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.active_at = now  # when something was taken, or a request waited
        self.used_at = now - MAX_SMOOTH_S  # when something was taken
        self.unmeasured = 2  # so often something is taken before the time between two takings is known
        self.size = 0.0  # since the last look
        self.gap = 0.0  # seconds between the last takings
        self.pause = 0.0  # the same, weighted by length: so long may lie between two takings
        self.sum = self.span = 0.0  # the amount taken and the seconds it took, weighted down with age
        self.hungry = False
        self.weight, self.topics, self.claim = 1.0, 0, 0.0
        self.reported: LimitDemand | None = None
        self.reported_at = now

    def measure_rate(self, now: float) -> float:
        """Bytes per second, as of now."""
        gap = now - self.used_at
        if self.size and gap > 0.0:
            if self.unmeasured:
                self.unmeasured -= 1
                if not self.unmeasured:
                    self.sum = self.span = self.gap = self.pause = 0.0
            self.gap = gap if gap > self.gap else (self.gap + gap) / 2
            forgotten = gap / (PAUSE_MEMORY * self.pause) if gap < self.pause else 1.0
            self.pause = self.gap if self.hungry else self.pause + (gap - self.pause) * forgotten
            keep = math.exp(-gap / min(max(SMOOTH_S, SMOOTH_GAPS * self.gap), MAX_SMOOTH_S))
            self.sum, self.span = keep * self.sum + self.size, keep * self.span + gap
            self.used_at, self.size = now, 0.0
        rate = max(0.0, self.sum / self.span) if self.span else 0.0
        late = (now - self.used_at) / max(self.pause, SAMPLE_S)
        return rate * min(1.0, max(0.0, (GONE - late) / (GONE - LATE)))

    def is_idle(self, now: float) -> bool:
        return now - self.active_at > max(IDLE_S, min(GONE * self.pause, MAX_SMOOTH_S))


class DemandMeter:
    """Reports changes of the demand for each limit that is not idle."""

    def __init__(self) -> None:
        self._by_key: dict[FleetKey, _KeyDemand] = {}

    def record_use(
        self,
        key: FleetKey,
        size: float,
        hungry: bool,
        now: float,
        *,
        weight: float = 1.0,
        topics: int = 0,
        claim: float = 0.0,
    ) -> None:
        """Record the amount taken from that limit since the last measurement. The call may be omitted where the amount
        is 0 again.
        """
        seen = self._by_key.get(key)
        if seen is None:
            if not (size or hungry):
                return
            seen = self._by_key[key] = _KeyDemand(now)
        if size and seen.is_idle(now):  # it starts again
            seen.sum = seen.span = 0.0
            if now - seen.used_at > MAX_SMOOTH_S:
                seen.used_at = now - MAX_SMOOTH_S
                seen.unmeasured = 2
        seen.size += size
        if size or hungry:
            seen.active_at = now
        seen.hungry = hungry
        seen.weight, seen.topics, seen.claim = weight, topics, claim

    def record_limiter(self, limiter: FleetLimiter, now: float) -> None:
        """Record the amount taken from this limiter, as if the whole limit were in force."""
        spent, hungry = limiter.spent - limiter.reported, now < limiter.hungry_until
        if spent or hungry or (limiter.key in self._by_key and self._by_key[limiter.key].hungry):
            limiter.reported = limiter.spent
            self.record_use(limiter.key, max(0.0, spent / limiter.factor), hungry, now, topics=limiter.topics)

    def collect_changes(self, now: float) -> dict[FleetKey, LimitDemand]:
        """The changes since the last measurement."""
        news: dict[FleetKey, LimitDemand] = {}
        for key, seen in list(self._by_key.items()):
            if seen.is_idle(now):
                if seen.reported not in (None, IDLE):
                    seen.reported = news[key] = IDLE
                if now - seen.active_at > FORGET_S:
                    del self._by_key[key]
                continue
            use = LimitDemand(seen.measure_rate(now), seen.hungry, seen.weight, seen.topics, seen.claim)
            change = REPORT_AGAIN_CHANGE if now - seen.reported_at >= REPORT_AGAIN_S else REPORT_CHANGE
            if seen.reported in (None, IDLE) or _differs_enough(use, seen.reported, change):
                seen.reported = news[key] = use
                seen.reported_at = now
        return news

    def is_idle(self, now: float) -> bool:
        """Whether all limits are idle, and none is reported as anything else."""
        return all(seen.is_idle(now) and seen.reported in (None, IDLE) for seen in self._by_key.values())

    def forget_reports(self) -> None:
        """Control has no report of this worker: everything is new."""
        for seen in self._by_key.values():
            seen.reported = None


def _differs_enough(use: LimitDemand, reported: LimitDemand, change: float) -> bool:
    return (
        use.hungry != reported.hungry
        or use.weight != reported.weight
        or abs(use.rate - reported.rate) > change * reported.rate
        or abs(use.claim - reported.claim) > change * max(reported.claim, reported.rate)
    )
