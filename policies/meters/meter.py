# The one-minute rate of Kafka's own meters (Yammer and Dropwizard Metrics: EWMA.oneMinuteEWMA), so that a threshold
# means the number that an operator sees as BytesInPerSec OneMinuteRate.
#
# Each of Kafka's meters ticks every five seconds from its own first bytes on. Here all tick together, at moments that
# have nothing to do with when a meter began. So a meter that begins between two ticks (`MeterStart`) gets its first
# rate as Kafka's does, from its first five seconds, and goes by the common ticks from then on.
#
# Knows neither clock nor topic: the owner of a meter calls `tick` once per TICK_S. The hot path adds to `uncounted`
# directly, because a call per request and meter would cost more than all the arithmetic here.

from __future__ import annotations

import math
from typing import Final, TypeVar

TICK_S: Final = 5.0  # Dropwizard's interval
SECOND_S: Final = 1.0  # meters that begin are looked at so often
START_SECONDS: Final = round(TICK_S / SECOND_S)
ALPHA: Final = 1.0 - math.exp(-TICK_S / 60.0)  # one minute
DECAY: Final = 1.0 - ALPHA  # what a tick without traffic leaves of a rate


class RateMeter:
    """Bytes per second as a one-minute EWMA. `uncounted`: bytes since the last tick; below zero when more was retracted
    than arrived. `rate`: bytes per second as of the last tick, never below zero. `started`: whether there was a tick
    yet.
    """

    __slots__ = ("rate", "started", "uncounted")

    def __init__(self) -> None:
        self.uncounted = 0
        self.rate = 0.0
        self.started = False

    def mark(self, size: int) -> None:
        self.uncounted += size

    def tick(self, ticks: int = 1) -> None:
        """Apply `ticks` due ticks. The bytes since the last one belong to the first of them, as in Dropwizard."""
        rate = self.uncounted / TICK_S
        self.uncounted = 0
        if self.started:
            rate = self.rate + ALPHA * (rate - self.rate)
        else:
            self.started = True  # the first tick is the instant rate: no slow start from 0
        rate = max(rate, 0.0)  # bytes of an earlier interval were taken back: below 0 would be credit for later
        self.rate = rate if ticks == 1 else rate * DECAY ** (ticks - 1)

    def rate_after(self, ticks: int) -> float:
        """The rate `ticks` ticks from now if nothing more arrives."""
        first = self.uncounted / TICK_S
        if self.started:
            first = self.rate + ALPHA * (first - self.rate)
        return max(0.0, first) * DECAY ** (ticks - 1)


class FleetMeter(RateMeter):
    """A meter of traffic that other workers of the fleet meter as well. `peer_rate`: their bytes per second;
    `fading_rate`: the part of it that no worker sees any more. Until `MeterStart` has started it, ticks leave its rate
    at 0.
    """

    __slots__ = ("fading_rate", "peer_rate")

    def __init__(self) -> None:
        super().__init__()
        self.peer_rate = self.fading_rate = 0.0

    def tick(self, ticks: int = 1) -> None:
        if self.started:
            super().tick(ticks)
        else:
            self.uncounted = 0

    @property
    def fleet_rate(self) -> float:
        """Bytes per second of the whole fleet."""
        return self.rate + self.peer_rate


class MeterStart:
    """The first seconds of a meter, until it has a rate.

    Seconds are those of `TickSchedule`, at which usage records end as well, so a replay of them finds the same first
    rate. It is that of the five whole seconds after the meter began, or, if that is more, of all the time since the
    second in which it began: steady traffic and a single burst both come out as with a meter of Kafka's that began
    then.

    Where other workers of the fleet have metered it already, Kafka's one meter would be at work, and the traffic here
    would be added to it bit by bit. So that rate starts from 0. Else a client that moves to another worker would count
    twice for a minute, here at once and there until the average has forgotten it.

    If others' rate is heard only later than the first second, they may have begun at about the same time: their first
    rate is of five seconds that end now, and Kafka's one meter would count what came here until now among these. A
    client that has moved counts twice by no more than that part, a fifth for each second. After the first rate that is
    not known any more: then it counts twice until the averages of those it left have forgotten it.
    """

    __slots__ = ("_before", "_closed", "_meter", "_second", "_second_at", "_since")

    def __init__(self, meter: FleetMeter, since: float) -> None:
        """`since`: the start of the second in which the meter begins."""
        self._meter = meter
        self._since = since
        self._second: int | None = None  # its first whole one …
        self._second_at = 0.0  # … and when that began
        self._before = 0  # bytes until then
        self._closed = 0  # bytes of ticks that are over

    def close_tick(self) -> None:
        """Call it before the meter ticks, which resets `uncounted` to 0."""
        self._closed += self._meter.uncounted

    def try_start(self, now: float, seconds: int) -> bool:
        """That many seconds since the start are over: whether the meter has a rate from now on."""
        meter, size = self._meter, self._closed + self._meter.uncounted
        rate = size / (now - self._since) if now > self._since else 0.0
        if self._second is None:
            self._second, self._second_at, self._before = seconds, now, size
            if meter.peer_rate > 0.0:
                rate = 0.0
            elif now - self._since < TICK_S:  # else no caller has looked for a whole tick
                return False
        elif meter.peer_rate > 0.0:
            rate = size / TICK_S
        elif seconds - self._second < START_SECONDS:
            return False
        else:
            rate = max(rate, (size - self._before) / (now - self._second_at))
        meter.rate = max(0.0, rate)  # more may have been taken back than came in
        meter.started = True
        return True


M = TypeVar("M", bound=FleetMeter)


class TickSchedule:
    """The times at which meters tick: whole multiples of TICK_S from the start, however late the caller asks. Also the
    meters that have only begun, which are checked each second. `next_tick_at`: the next tick. `next_second_at`: the end
    of the present second.
    """

    __slots__ = ("_last_second_at", "_new_meters", "_passed", "_seconds", "_start", "next_second_at", "next_tick_at")

    def __init__(self, now: float) -> None:
        self._start = now
        self._passed = self._seconds = 0
        self._last_second_at = now
        self._new_meters: dict[FleetMeter, MeterStart] = {}
        self.next_tick_at = now + TICK_S
        self.next_second_at = now + SECOND_S

    def consume_due_ticks(self, now: float) -> int:
        """The number of ticks due, several after a long pause; they count as applied, so every meter has to tick."""
        if now < self.next_tick_at:
            return 0
        for beginning in self._new_meters.values():
            beginning.close_tick()
        ticks = max(1, int((now - self._start) // TICK_S) - self._passed)  # rounding may say 0 when now == due
        self._passed += ticks
        self.next_tick_at = self._start + (self._passed + 1) * TICK_S
        return ticks

    @property
    def has_new_meters(self) -> bool:
        """Whether there are meters that have no rate yet."""
        return bool(self._new_meters)

    def register_meter(self, meter: M) -> M:
        """Add a new meter, which has no rate yet."""
        self._new_meters[meter] = MeterStart(meter, self._last_second_at)
        return meter

    def forget_meter(self, meter: FleetMeter) -> None:
        """Remove the meter."""
        self._new_meters.pop(meter, None)

    def start_new_meters(self, now: float) -> bool:
        """If a second is over, give the meters that began five seconds ago their first rate; returns whether there were
        any.
        """
        if now < self.next_second_at:
            return False
        self._seconds = max(self._seconds + 1, int((now - self._start) // SECOND_S))
        self.next_second_at = self._start + (self._seconds + 1) * SECOND_S
        self._last_second_at = now
        started = [meter for meter, beginning in self._new_meters.items() if beginning.try_start(now, self._seconds)]
        for meter in started:
            del self._new_meters[meter]
        return bool(started)
