# The meter against Dropwizard's, written here from the published formula alone.

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.limits.meter import TICK_S, Meter


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


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 10**9)), max_size=60))
def test_equals_dropwizard_for_any_traffic(steps: list[tuple[int, int]]) -> None:
    """Steps of (milliseconds until, bytes): ticks at 5 s boundaries, several at once after a long pause."""
    oracle, meter, done, now_ms = Dropwizard(0.0), Meter(), 0, 0
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


def test_the_first_tick_is_the_instant_rate() -> None:
    meter = Meter()
    meter.mark(500)
    meter.tick()
    assert meter.rate == 100.0


def test_a_first_tick_without_traffic_starts_the_average_at_zero() -> None:
    meter = Meter()
    meter.tick()
    meter.mark(500)
    meter.tick()
    assert meter.rate == pytest.approx(100 * (1 - math.exp(-5 / 60)))


def test_a_constant_stream_is_its_own_rate_at_once() -> None:
    meter = Meter()
    for _ in range(100):
        meter.mark(700)
        meter.tick()
        assert meter.rate == pytest.approx(140.0)


def test_after_a_minute_of_silence_the_rate_is_an_eth_part() -> None:
    meter = Meter()
    meter.mark(5000)
    meter.tick()
    for _ in range(12):
        meter.tick()
    assert meter.rate == pytest.approx(1000 / math.e)


def test_bytes_taken_back_may_exceed_what_came_in_but_the_rate_is_never_below_zero() -> None:
    meter = Meter()
    meter.mark(500)
    meter.tick()
    meter.uncounted -= 100_000
    meter.tick()
    assert meter.rate == 0.0
    meter.mark(500)
    meter.tick()
    assert meter.rate == pytest.approx(100 * (1 - math.exp(-5 / 60)))


def test_bytes_taken_back_lower_the_rate_that_they_raised() -> None:
    meter = Meter()
    for _ in range(3):
        meter.mark(5000)
        meter.tick()
    meter.uncounted -= 500
    meter.mark(5000)
    meter.tick()
    assert meter.rate == pytest.approx(1000 - 100 * (1 - math.exp(-5 / 60)))


@given(st.integers(-(10**6), 10**6), st.integers(0, 10**6), st.integers(1, 30))
def test_the_forecast_is_what_comes_true_if_nothing_more_comes_in(taken: int, size: int, ticks: int) -> None:
    meter = Meter()
    meter.mark(size)
    meter.tick()
    meter.mark(taken)
    forecast = meter.after(ticks)
    for _ in range(ticks):
        meter.tick()
    assert meter.rate == pytest.approx(forecast)


def test_a_week_of_silence_costs_no_more_than_a_tick() -> None:
    meter = Meter()
    meter.mark(10**12)
    meter.tick()
    meter.tick(int(7 * 86_400 / TICK_S))
    assert meter.rate == 0.0
