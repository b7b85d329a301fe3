# What is told about limits in use: true rates, also of few large requests; told when they change, and hunger and its
# end at once.

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from policies.fleet.demand import (
    FORGET_S,
    GONE,
    LATE,
    MAX_SMOOTH_S,
    REPORT_AGAIN_CHANGE,
    REPORT_CHANGE,
    SAMPLE_S,
    DemandMeter,
)
from policies.fleet.fleet_limiter import FleetLimiter, FleetShares
from policies.fleet.shares import IDLE, LimitDemand
from tests.examples import matrix

KEY = '["t",1]'
RATE = 1000.0
EACH = RATE * SAMPLE_S  # taken in each look, that is RATE
SECOND = round(1 / SAMPLE_S)


def play(
    sizes: Iterable[float], *, hungry: bool = False, demand: DemandMeter | None = None, start: float = 0.0
) -> list[tuple[float, LimitDemand]]:
    """What is told when so much was taken in each look, and when."""
    demand = demand or DemandMeter()
    told = []
    for number, size in enumerate(sizes):
        now = start + SAMPLE_S * (number + 1)
        if size or hungry:
            demand.record_use(KEY, size, hungry, now)
        told += [(now, use) for use in demand.collect_changes(now).values()]
    return told


def uses(*args: Iterable[float], hungry: bool = False) -> list[LimitDemand]:
    return [use for _, use in play(*args, hungry=hungry)]


def every(period_s: float, until: float, rate: float = RATE) -> list[float]:
    """A stream of that rate in requests that are so far apart, by look."""
    sizes = [0.0] * round(until / SAMPLE_S)
    for number in range(round(until / period_s)):
        sizes[round(number * period_s / SAMPLE_S)] += rate * period_s
    return sizes


def known(told: list[tuple[float, LimitDemand]], start: float, end: float) -> float:
    """The mean of what was told last, over that time."""
    looks = [start + n * SAMPLE_S for n in range(round((end - start) / SAMPLE_S))]
    return sum([use.rate for at, use in told if at <= now][-1] for now in looks) / len(looks)


# --- rates ------------------------------------------------------------------------------------------------------------


def test_a_steady_rate_is_told_as_it_is_from_the_second_look_on_and_only_once() -> None:
    assert [use.rate for use in uses([EACH] * 100)] == [pytest.approx(EACH / MAX_SMOOTH_S), pytest.approx(RATE)]


def test_a_rate_that_changes_is_told_until_it_is_true_within_the_tenth() -> None:
    told = uses([EACH] * 20 + [2 * EACH] * 20)
    assert told[-1].rate == pytest.approx(2 * RATE, rel=REPORT_CHANGE)
    assert 2 < len(told) < 12


def test_a_change_of_less_than_a_tenth_is_told_a_second_later() -> None:
    """Others share what is left to the byte: a tenth too much would be missing, or come on top, for ever."""
    told = play([EACH] * 30 + [1.06 * EACH] * 40)
    assert told[-1][1].rate == pytest.approx(1.06 * RATE, rel=REPORT_AGAIN_CHANGE)
    assert len(told) < 5


@pytest.mark.parametrize("period_s", [0.2, 0.5, 1.0, 2.0, 4.0])
def test_the_rate_of_large_requests_that_are_far_apart_is_told_as_it_is(period_s: float) -> None:
    """From the second one on: the time between two of them says how much one of them is."""
    until = 2.0 + 10 * period_s
    told = play(every(period_s, until))
    looks = [n * SAMPLE_S for n in range(round(until / SAMPLE_S)) if n * SAMPLE_S > period_s + 1.5 * SAMPLE_S]
    known = [[use for at, use in told if at <= now][-1] for now in looks]
    assert all(use.rate == pytest.approx(RATE, rel=0.05) for use in known)


@pytest.mark.parametrize(("seed", "mean_s"), matrix(range(5), [0.3, 1.0, 2.0]))
def test_the_rate_of_large_requests_at_any_time_is_right_in_the_mean(seed: int, mean_s: float) -> None:
    rng, until = random.Random(seed), 200.0
    sizes, at = [0.0] * round(until / SAMPLE_S), 0.0
    while at < until:
        sizes[int(at / SAMPLE_S)] += RATE * mean_s
        at += mean_s * rng.uniform(0.5, 1.5)
    told = play(sizes)
    assert known(told, 20.0, until) == pytest.approx(sum(sizes) / until, rel=0.05)


@pytest.mark.parametrize(("seed", "mean_s"), matrix(range(3), [0.1, 0.35, 1.0]))
def test_the_rate_of_requests_that_know_nothing_of_each_other_is_right_in_the_mean(seed: int, mean_s: float) -> None:
    """Intervals of many times the mean are part of such traffic: it is not over in them."""
    rng, until = random.Random(seed), 600.0
    sizes, at = [0.0] * round(until / SAMPLE_S), 0.0
    while at < until:
        sizes[int(at / SAMPLE_S)] += RATE * mean_s
        at += rng.expovariate(1 / mean_s)
    start = round(20.0 / SAMPLE_S)
    mean = sum(sizes[start:]) / (until - 20.0)
    assert known(play(sizes), 20.0, until) == pytest.approx(mean, rel=0.06)


@pytest.mark.parametrize(("requests", "period_s"), [(3, 1.0), (5, 1.0), (5, 2.0)])
def test_the_rate_of_bursts_is_right_in_the_mean_and_not_less_between_two_of_them(
    requests: int, period_s: float
) -> None:
    until = 100.0
    sizes = [0.0] * round(until / SAMPLE_S)
    for burst in range(round(until / period_s)):
        for number in range(requests):
            sizes[round(burst * period_s / SAMPLE_S) + number] += RATE * period_s / requests
    assert known(play(sizes), 20.0, until) == pytest.approx(RATE, rel=0.06)


@pytest.mark.parametrize("period_s", [12.0, 20.0, 60.0])
def test_large_requests_that_are_very_far_apart_are_never_told_to_be_a_lot(period_s: float) -> None:
    """Others would leave the whole limit to one that is over already."""
    told = uses(every(period_s, 5 * period_s))
    assert max(use.rate for use in told) == pytest.approx(RATE * period_s / MAX_SMOOTH_S)


def test_bytes_taken_before_a_pause_do_not_count_after_it() -> None:
    demand = DemandMeter()
    play([EACH] * 20, demand=demand)
    for start, rate in ((20.0, 3 * RATE), (40.0, RATE / 3)):
        told = play([rate * SAMPLE_S] * SECOND, demand=demand, start=start)
        assert told[-1][1].rate == pytest.approx(rate)
        assert all(use.rate <= rate * 1.001 for _, use in told)


def test_after_a_short_pause_the_rate_is_true_again_within_seconds() -> None:
    told = play([EACH] * 20 + [0.0] * 20 + [EACH] * 30)
    assert told[-1][1].rate == pytest.approx(RATE, rel=REPORT_CHANGE)
    assert all(use.rate < 1.1 * RATE for _, use in told)


def test_several_requests_between_two_looks_are_one() -> None:
    demand = DemandMeter()
    for look in range(20):
        for _ in range(5):
            demand.record_use(KEY, EACH / 5, False, look * SAMPLE_S)
        demand.collect_changes(look * SAMPLE_S)
    demand.forget_reports()
    demand.record_use(KEY, EACH, False, 20 * SAMPLE_S)
    assert demand.collect_changes(20 * SAMPLE_S)[KEY].rate == pytest.approx(RATE)


# --- who ends ---------------------------------------------------------------------------------------------------------


def test_a_stream_that_stops_is_told_to_be_idle_within_half_a_second_and_once() -> None:
    told = play([EACH] * 20 + [0.0] * 100)
    ((at, idle),) = [(at, use) for at, use in told if use.is_idle]
    assert idle == IDLE
    assert at == pytest.approx(2.4, abs=0.1)
    rates = [use.rate for _, use in told[1:]]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("period_s", [0.5, 1.0, 2.0])
def test_large_requests_that_stop_are_told_to_be_less_and_less_and_then_idle(period_s: float) -> None:
    told = play(every(period_s, 9 * period_s + SAMPLE_S) + [0.0] * 100)
    last = 9 * period_s - period_s + SAMPLE_S  # when the last one was taken
    assert all(use.rate > 0.9 * RATE for at, use in told if period_s < at <= last + LATE * period_s)
    (at,) = [at for at, use in told if use.is_idle and at > last]
    assert at <= last + GONE * period_s + 2 * SAMPLE_S


def test_no_demand_is_waited_for_longer_than_some_seconds() -> None:
    told = play(every(8.0, 40.0) + [0.0] * 200)
    (at,) = [at for at, use in told if use.is_idle and at > 33.0]
    assert at <= 32.1 + MAX_SMOOTH_S + 2 * SAMPLE_S


def test_an_unused_line_is_forgotten_in_time() -> None:
    demand = DemandMeter()
    play([EACH] * 5 + [0.0] * round(FORGET_S / SAMPLE_S), demand=demand)
    assert demand._by_key
    play([0.0] * 10, demand=demand, start=0.5 + FORGET_S)
    assert not demand._by_key


# --- hunger -----------------------------------------------------------------------------------------------------------


def test_hunger_is_told_at_once_and_so_is_its_end() -> None:
    demand = DemandMeter()
    play([EACH] * 20, demand=demand)
    for hungry, start in ((True, 2.0), (False, 2.1), (True, 2.2), (False, 2.3)):
        ((_, use),) = play([EACH], hungry=hungry, demand=demand, start=start)
        assert use == pytest.approx((RATE, hungry, 1.0, 0, 0.0))


def test_a_line_that_waits_and_takes_nothing_is_not_idle() -> None:
    assert uses([0.0] * 40, hungry=True) == [LimitDemand(0.0, True)]


def test_a_meter_is_idle_from_when_its_limits_are_until_something_is_taken() -> None:
    demand = DemandMeter()
    assert demand.is_idle(0.0)
    play([EACH] * SECOND, demand=demand)
    assert not demand.is_idle(1.0)
    play([0.0] * SECOND, hungry=True, demand=demand, start=1.0)
    assert not demand.is_idle(2.0)
    demand.record_use(KEY, 0.0, False, 2.0 + SAMPLE_S)
    play([0.0] * SECOND, demand=demand, start=2.0)
    assert demand.is_idle(3.0)  # though it told a rate of 0 before
    play([EACH], demand=demand, start=3.0)
    assert not demand.is_idle(3.0 + SAMPLE_S)


def line(factor: float = 1.0) -> FleetLimiter:
    fleet = FleetShares()
    fleet.update_grants({}, 2, 2.0, 0.0)
    return FleetLimiter(fleet, KEY, 2 * RATE, factor, 0.0)


def look(demand: DemandMeter, at: FleetLimiter, now: float) -> LimitDemand | None:
    demand.record_limiter(at, now)
    return demand.collect_changes(now).get(KEY)


def test_a_lines_hunger_is_told_for_as_long_as_it_lasts_and_its_end_though_nothing_is_taken() -> None:
    demand, one = DemandMeter(), line()
    one.charge_amount(RATE, 0.0)
    assert look(demand, one, SAMPLE_S) == pytest.approx((RATE / MAX_SMOOTH_S, False, 1.0, 0, 0.0))
    assert one.check_admission(100, 0.2, True, 0.0).wait_s > 0.5
    told = {now / 10: look(demand, one, now / 10) for now in range(2, 16)}
    changes = [(at, use.hungry) for at, use in told.items() if use is not None]
    assert changes[0] == (0.2, True)
    assert next(at for at, hungry in changes if not hungry) == pytest.approx(one.hungry_until, abs=1.1 * SAMPLE_S)
    assert look(demand, one, one.hungry_until + MAX_SMOOTH_S + SAMPLE_S) == IDLE


def test_an_unused_line_is_not_told() -> None:
    assert look(DemandMeter(), line(), 1.0) is None


def test_the_bytes_a_line_took_are_told_as_if_it_were_in_force_whole() -> None:
    """While disks fill up a part of it is; parts are parts of the whole."""
    demand, one = DemandMeter(), line(factor=0.5)
    for number in range(20):
        one.charge_amount(EACH / 2, number * SAMPLE_S)
        look(demand, one, number * SAMPLE_S)
    demand.forget_reports()
    one.charge_amount(EACH / 2, 2.0)
    assert look(demand, one, 2.0) == pytest.approx((RATE, False, 1.0, 0, 0.0))


def test_returned_bytes_were_not_taken() -> None:
    demand, one = DemandMeter(), line()
    one.charge_amount(EACH, 0.0)
    look(demand, one, SAMPLE_S)
    one.charge_amount(5 * EACH, 0.15)
    one.refund_amount(5 * EACH)
    assert look(demand, one, 2 * SAMPLE_S) is None


# --- listeners --------------------------------------------------------------------------------------------------------


def test_a_new_listener_is_told_everything_but_idle_lines() -> None:
    demand = DemandMeter()
    demand.record_use("idle", 1.0, False, 0.0)
    play([EACH] * 20, demand=demand, start=MAX_SMOOTH_S)
    demand.forget_reports()
    ((_, use),) = play([EACH], demand=demand, start=2.0 + MAX_SMOOTH_S)
    assert use.rate == pytest.approx(RATE)


def test_weights_and_topics_travel_along_and_another_weight_is_news() -> None:
    demand = DemandMeter()
    demand.record_use(KEY, 10.0, False, 0.1, weight=3.0, topics=7)
    assert [(use.weight, use.topics) for use in demand.collect_changes(0.1).values()] == [(3.0, 7)]
    demand.record_use(KEY, 10.0, False, 0.2, weight=4.0, topics=8)
    assert [(use.weight, use.topics) for use in demand.collect_changes(0.2).values()] == [(4.0, 8)]


def test_another_claim_is_news_where_it_differs_by_a_tenth() -> None:
    demand = DemandMeter()
    told = []
    for step, claim in enumerate((100.0, 104.0, 111.0, 111.0, 60.0), start=1):
        demand.record_use(KEY, 0.0, True, step * 0.1, claim=claim)
        told += [use.claim for use in demand.collect_changes(step * 0.1).values()]
    assert told == [100.0, 111.0, 60.0]
