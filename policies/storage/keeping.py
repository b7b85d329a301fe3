# The factor, and how long a valid one outlives failures: DISK's validity and fallback.
#
# `now` is monotonic time.

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

from policies.storage.volumes import ObservationFailed
from policies.text import ERROR_CHARS, one_line

FactorState = Literal["OPEN", "THROTTLE", "PAUSE"]
FactorOrigin = Literal["valid", "kept", "fallback", "fail-safe", "operator"]

GRACE_S: Final = 1.0  # within which a recalculation that is due has surely begun


class StorageFactor(NamedTuple):
    """The storage factor, 0..1, multiplies every produce limit; 0 is a PAUSE. `why` names broker and volume, for
    clients and the log; "" while it is 1. `observed_at`: monotonic time of the last valid observation.
    """

    value: float
    origin: FactorOrigin = "valid"
    why: str = ""
    observed_at: float | None = None

    @property
    def state(self) -> FactorState:
        return state_of(self.value)


def state_of(value: float) -> FactorState:
    """The state of that factor."""
    if value >= 1:
        return "OPEN"
    return "THROTTLE" if value > 0 else "PAUSE"


class FactorKeeper:
    """DISK's validity and fallback: a valid factor outlives failures for `validity_s`, then `fallback` holds.

    In whole intervals, as recalculations are: one that fails `validity_s` or less after the last success changes
    nothing, the next one does. That one begins `hold_s` = (floor(validity / interval) + 1) intervals after the success.
    The factor holds while it is under way (`begin_observation`), and ends when it has failed, not when it has begun: of
    slow brokers, as they are after an outage, it takes seconds, and a disk that was full may be full. Where no
    recalculation begins, since the process that should begin it is dead, the factor ends GRACE_S later. Validity below
    the interval: the first failure ends it; but as long as nothing failed it holds half an interval longer.

    Raises:
        ValueError: an interval of 0 (that is: no storage protection), a validity below 0, a fallback outside 0..1.
    """

    __slots__ = ("_began", "_busy_until", "_factor", "_is_own", "_reason", "_until", "fallback", "hold_s",
                 "interval_s")  # fmt: skip

    def __init__(self, validity_s: float = 300.0, fallback: float = 1.0, interval_s: float = 60.0) -> None:
        if not (math.isfinite(interval_s) and interval_s > 0):
            raise ValueError(f"check_interval: {interval_s} s must be above 0")
        if not (math.isfinite(validity_s) and validity_s >= 0):
            raise ValueError(f"throttle.factor.validity.duration: {validity_s} s must be 0 or more")
        if not 0 <= fallback <= 1:
            raise ValueError(f"throttle.factor.fallback: {fallback} must be from 0 to 1")
        self.interval_s = interval_s
        self.fallback = float(fallback)
        self.hold_s = (math.floor(validity_s / interval_s + 1e-9) + 1) * interval_s  # 0.3 / 0.1 is less than 3
        self._factor: StorageFactor | None = None  # the last valid one
        self._is_own = False  # observed, not adopted
        self._until = -math.inf
        self._began: float | None = None  # the recalculation that is under way …
        self._busy_until = -math.inf  # … and by when it is over
        self._reason = ""

    def begin_observation(self, now: float, limit_s: float) -> None:
        """A recalculation begins, and ends within `limit_s` seconds. The present factor stays in force until then."""
        self._began = now
        self._busy_until = now + limit_s if self._factor is None or now < self._until else -math.inf

    def record_observation(self, factor: float, why: str, now: float) -> None:
        """A recalculation succeeded.

        Raises:
            ObservationFailed: the factor is not valid. Nothing has changed then.
        """
        if not 0 <= factor <= 1:
            raise ObservationFailed(f"throttle factor {factor} must be from 0 to 1")
        self._factor = StorageFactor(float(factor), "valid", why, now)
        self._is_own = True
        self._until = now + max(self.hold_s + self._grace_s, 1.5 * self.interval_s)
        self._reason = ""
        self._end_observation(now)

    def record_failure(self, reason: str, now: float) -> None:
        """A recalculation failed."""
        began = self._end_observation(now)
        self._reason = one_line(reason, ERROR_CHARS)
        if self._factor is not None:
            self._factor = self._factor._replace(origin="kept")
            if self._factor.observed_at is not None:
                ends = self._factor.observed_at + self.hold_s
                is_last = began >= ends - self.interval_s / 2  # both may have begun a moment late
                self._until = min(self._until, now if is_last else ends + self._grace_s)

    def adopt_factor(self, factor: StorageFactor, until: float | None, now: float) -> None:
        """Go on, after a restart, with the factor that a worker still holds, and its end.

        Of several workers' the youngest counts, and of equally old ones the lowest. Only observed factors are worth
        keeping: a fallback, or a factor without an end, says nothing. An observation of this keeper's own is never
        replaced.
        """
        if self._is_own or until is None or factor.origin not in ("valid", "kept") or not 0 <= factor.value <= 1:
            return
        until = min(until, now + self.hold_s + self._grace_s)  # the validity may have been shortened meanwhile
        known = self._factor
        if until > now and (known is None or (until, -factor.value) > (self._until, -known.value)):
            self._factor = factor._replace(origin="kept")
            self._until = until

    def current_factor(self, now: float) -> StorageFactor:
        """The factor in force at `now`."""
        return self._factor if self._factor is not None and self.changes_at(now) is not None else self.next_factor(now)

    def changes_at(self, now: float) -> float | None:
        """The time at which `current_factor` changes by itself; None: never."""
        until = max(self._until, self._busy_until)
        return until if self._factor is not None and now < until else None

    def next_factor(self, now: float) -> StorageFactor:
        """The factor in force after that time: the fallback."""
        seen = None if self._factor is None else self._factor.observed_at
        since = "yet" if self._factor is None else f"for more than {self.hold_s:g} s"
        reason = f": {self._reason}" if self._reason else ""
        return StorageFactor(self.fallback, "fallback", f"no valid throttle factor {since}{reason}", seen)

    @property
    def _grace_s(self) -> float:
        return min(GRACE_S, self.interval_s / 4)

    def _end_observation(self, now: float) -> float:
        """No recalculation is in progress any more; returns the time at which the last one began."""
        began, self._began, self._busy_until = self._began, None, -math.inf
        return now if began is None else began
