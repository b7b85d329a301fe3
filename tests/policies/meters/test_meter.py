# The meter against Dropwizard's, written here from the published formula alone.

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.meters.meter import SECOND_S, TICK_S, FleetMeter, RateMeter, TickSchedule
from tests.examples import matrix
from tests.variants import COMPILED, PURE, module


@pytest.fixture(scope="module", params=[PURE, COMPILED], autouse=True)
def variant(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiled or not; all tests hold for both."""
    made = module("policies.meters.meter", request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.RateMeter", made.RateMeter)
        patch.setattr(f"{__name__}.FleetMeter", made.FleetMeter)
        yield


class Dropwizard:
    """com.codahale.metrics.Meter with EWMA.oneMinuteEWMA, tickIfNecessary before each mark and reading."""

    def __init__(self, now: float) -> None:
        self.last = now
        self.uncounted = 0
        self.rate = 0.0
        self.initialized = False

    def tick_if_necessary(self, now: float) -> None:
        age = now - self.last
        if age < 5.0:
            return
        self.last = now - age % 5.0
        for _ in range(int(age / 5.0)):
            self.tick()

    def tick(self) -> None:
        count, self.uncounted = self.uncounted, 0
        instant = count / 5.0
        if self.initialized:
            alpha = 1 - math.exp(-5 / 60.0 / 1)
            self.rate += alpha * (instant - self.rate)
        else:
            self.rate = instant
            self.initialized = True


STEP_S = 0.01
Traffic = Callable[[float], float]  # bytes per second, by seconds since it began


def play(
    phase: int, traffic: Traffic, others: float = 0.0, heard_s: float = 0.0
) -> Iterator[tuple[float, float, float]]:
    """A meter that begins so many steps behind a tick, beside Dropwizard's: age and both rates, for a minute. It hears
    of `others` that long after its beginning.
    """
    ticks, meter = TickSchedule(0.0), FleetMeter()
    oracle = Dropwizard(phase * STEP_S)
    for step in range(round(65 / STEP_S)):
        now, age = step * STEP_S, (step - phase) * STEP_S
        ticks.start_new_meters(now + 1e-9)
        if ticks.consume_due_ticks(now + 1e-9):
            meter.tick()
        if step < phase:
            continue
        if step == phase:
            ticks.register_meter(meter)
        if age >= heard_s - STEP_S / 2:
            meter.peer_rate = others
        oracle.tick_if_necessary(now + 1e-6)
        yield age, meter.rate, oracle.rate
        size = round(traffic(age) * STEP_S)
        oracle.uncounted += size
        meter.mark(size)


PHASES = range(0, 500, 83)  # steps: of a tick, and of a second


@pytest.mark.parametrize("phase", PHASES)
def test_a_meter_that_begins_between_two_ticks_has_dropwizards_rate_as_soon_as_that_has_one(phase: int) -> None:
    for age, ours, dropwizards in play(phase, lambda _: 1e6):
        if age < TICK_S - STEP_S:
            assert ours == 0, "a part of five seconds says nothing of a rate"
        elif age > TICK_S + SECOND_S:
            assert ours == pytest.approx(1e6, rel=0.01)
            assert dropwizards == pytest.approx(1e6, rel=0.01)


@pytest.mark.parametrize(
    ("phase", "pauses"), matrix(PHASES, [[2.0, 1.0], [7.0, 4.0], [30.0, 0.0], [0.5, 60.0], [12.0, 12.0]])
)
def test_for_any_traffic_it_stays_near_dropwizards(phase: int, pauses: list[float]) -> None:
    on_s, off_s = pauses
    played = list(play(phase, lambda age: 1e6 if age % (on_s + off_s) < on_s else 0.0))
    first = next(dropwizards for _, _, dropwizards in played if dropwizards)
    for age, ours, dropwizards in played:
        if age > TICK_S + SECOND_S:
            # A sixth of the first five seconds, and a tick that comes a little earlier or later.
            assert abs(ours - dropwizards) <= first / 6 + 0.085 * 1e6


@pytest.mark.parametrize("phase", PHASES)
def test_a_single_burst_counts_as_in_the_first_tick_of_dropwizards(phase: int) -> None:
    played = list(play(phase, lambda age: 1e8 if age < STEP_S / 2 else 0.0))
    rates = [ours for age, ours, _ in played if TICK_S + SECOND_S < age < TICK_S + 2 * SECOND_S]
    assert 1e6 / 6 * math.exp(-5 / 60) * 0.99 <= min(rates) <= max(rates) <= 1e6 / 5


@pytest.mark.parametrize("phase", PHASES)
def test_when_others_meter_it_already_its_part_of_the_average_rises_from_zero(phase: int) -> None:
    """A client moves here: the rate that others lose of it with each tick is added here."""
    for age, ours, _ in play(phase, lambda _: 1e6, others=1e6):
        faded = 1e6 * math.exp(-age / 60)
        assert ours + faded == pytest.approx(1e6, rel=0.1)


@pytest.mark.parametrize(("heard_s", "phase"), matrix([1.5, 2.5, 4.0], PHASES))
def test_traffic_that_others_meter_already_counts_twice_only_as_far_as_it_came_before_they_were_heard(
    phase: int, heard_s: float
) -> None:
    """A client moves here, and what others metered of it is heard late."""
    for age, ours, _ in play(phase, lambda _: 1e6, others=1e6, heard_s=heard_s):
        faded = 1e6 * math.exp(-age / 60)
        assert ours + faded <= 1e6 * (1.1 + (heard_s + SECOND_S) / TICK_S)


@pytest.mark.parametrize(("later_s", "phase"), matrix([0.0, 1.5, 2.5, 4.0], PHASES))
def test_a_topic_that_two_workers_begin_with_has_together_the_rate_of_one_meter(phase: int, later_s: float) -> None:
    """Each is told the other's rate half a second after it has one."""
    ticks, meters = TickSchedule(0.0), (FleetMeter(), FleetMeter())
    oracle = Dropwizard(phase * STEP_S)
    started: dict[FleetMeter, float] = {}
    begins = (phase, phase + round(later_s / STEP_S))
    for step in range(begins[1] + round(12 / STEP_S)):
        now = step * STEP_S
        ticks.start_new_meters(now + 1e-9)
        if ticks.consume_due_ticks(now + 1e-9):
            for meter in meters:
                meter.tick()
        oracle.tick_if_necessary(now + 1e-6)
        for meter, other, begin in zip(meters, meters[::-1], begins, strict=True):
            if step == begin:
                ticks.register_meter(meter)
            if meter.started:
                started.setdefault(meter, now)
            if other in started and now >= started[other] + 0.5:
                meter.peer_rate = other.rate
            if step >= begin:
                meter.mark(round(1e6 * STEP_S))
                oracle.uncounted += round(1e6 * STEP_S)
        if len(started) == len(meters) and step > begins[1] + round(6.1 / STEP_S):
            # A sixth of either one's first five seconds, and a tick that comes a little earlier or later.
            assert sum(meter.rate for meter in meters) == pytest.approx(oracle.rate, abs=2e6 * (1 / 6 + 0.085))


def test_a_meter_not_read_for_a_whole_tick_gets_the_average_of_that_time() -> None:
    ticks = TickSchedule(100.0)
    meter = ticks.register_meter(FleetMeter())
    meter.mark(500)
    assert ticks.start_new_meters(110.0)
    assert meter.rate == 50.0
    assert not ticks.has_new_meters


def test_a_meter_that_is_dropped_gets_no_rate() -> None:
    ticks = TickSchedule(0.0)
    meter = ticks.register_meter(FleetMeter())
    ticks.forget_meter(meter)
    meter.mark(500)
    assert not ticks.start_new_meters(10.0)
    assert (meter.rate, meter.started) == (0.0, False)


def test_bytes_taken_back_before_the_first_rate_are_no_part_of_it() -> None:
    ticks = TickSchedule(0.0)
    meter = ticks.register_meter(FleetMeter())
    meter.mark(5000)
    for second in range(1, 7):
        ticks.start_new_meters(float(second))
        if ticks.consume_due_ticks(float(second)):
            meter.tick()
            meter.uncounted -= 6000
    assert (meter.rate, meter.started) == (0.0, True)


@given(st.floats(0, 1e6), st.lists(st.floats(0, 12), max_size=60))
def test_seconds_end_at_whole_ones_from_the_start_also_for_a_late_question(start: float, pauses: list[float]) -> None:
    ticks, now = TickSchedule(start), start
    for pause in pauses:
        now = ticks.next_second_at if pause > 10 else now + pause
        ticks.start_new_meters(now)
        assert now < ticks.next_second_at <= now + SECOND_S * 1.000001
        assert ticks.next_second_at == start + round(ticks.next_second_at - start)


@pytest.mark.seed("V1.11")
@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 10**9)), max_size=60))
def test_equals_dropwizard_for_any_traffic(steps: list[tuple[int, int]]) -> None:
    """Steps of (milliseconds until, bytes): ticks at 5 s boundaries, several at once after a long pause."""
    oracle, meter, done, now_ms = Dropwizard(0.0), RateMeter(), 0, 0
    for pause_ms, size in steps:
        now_ms += pause_ms
        oracle.tick_if_necessary(now_ms / 1000)
        if now_ms // 5000 > done:
            meter.tick(now_ms // 5000 - done)
            done = now_ms // 5000
        # the oracle's boundaries drift by float rounding; whoever is a rounding apart at a boundary is not compared
        if now_ms % 5000:
            assert meter.rate == pytest.approx(oracle.rate, rel=1e-9, abs=1e-6)
        oracle.uncounted += size
        meter.mark(size)


def test_bytes_taken_back_may_exceed_what_came_in_but_the_rate_is_never_below_zero() -> None:
    meter = RateMeter()
    meter.mark(500)
    meter.tick()
    meter.uncounted -= 100_000
    meter.tick()
    assert meter.rate == 0.0
    meter.mark(500)
    meter.tick()
    assert meter.rate == pytest.approx(100 * (1 - math.exp(-5 / 60)))


def test_bytes_taken_back_lower_the_rate_that_they_raised() -> None:
    meter = RateMeter()
    for _ in range(3):
        meter.mark(5000)
        meter.tick()
    meter.uncounted -= 500
    meter.mark(5000)
    meter.tick()
    assert meter.rate == pytest.approx(1000 - 100 * (1 - math.exp(-5 / 60)))


@given(st.integers(-(10**6), 10**6), st.integers(0, 10**6), st.integers(1, 30))
def test_the_forecast_is_what_comes_true_if_nothing_more_comes_in(taken: int, size: int, ticks: int) -> None:
    meter = RateMeter()
    meter.mark(size)
    meter.tick()
    meter.mark(taken)
    forecast = meter.rate_after(ticks)
    for _ in range(ticks):
        meter.tick()
    assert meter.rate == pytest.approx(forecast)


def test_a_week_of_silence_costs_no_more_than_a_tick() -> None:
    meter = RateMeter()
    meter.mark(10**12)
    meter.tick()
    meter.tick(int(7 * 86_400 / TICK_S))
    assert meter.rate == 0.0
