# What is told about limits in use: true rates, told when they change, and hunger at once.

from __future__ import annotations

import pytest

from policies.fleet.demand import CHANGE, IDLE_S, LOOK_S, RETELL, Demand
from policies.fleet.shares import IDLE, Use

KEY = '["t",1]'


def play(sizes: list[float], *, hungry: bool = False, demand: Demand | None = None, start: float = 0.0) -> list[Use]:
    """What is told when so much was taken in each look."""
    demand = demand or Demand()
    told = []
    for number, size in enumerate(sizes):
        now = start + LOOK_S * (number + 1)
        if size or hungry:
            demand.note(KEY, size, hungry, now)
        told += list(demand.uses(now).values())
    return told


def test_a_steady_rate_is_told_as_it_is_and_only_once() -> None:
    assert [use.rate for use in play([250.0] * 40)] == [pytest.approx(1000)]


def test_a_rate_that_changes_is_told_until_it_is_true_within_the_tenth() -> None:
    told = play([250.0] * 20 + [500.0] * 20)
    assert told[-1].rate == pytest.approx(2000, rel=CHANGE)
    assert 2 < len(told) < 12


def test_what_is_less_than_a_tenth_is_told_a_second_later() -> None:
    """Others share what is left to the byte: a tenth too much would be missing, or come on top, for ever."""
    told = play([250.0] * 20 + [265.0] * 20)
    assert told[-1].rate == pytest.approx(1060, rel=RETELL)
    assert len(told) < 5


def test_lumps_are_smoothed_over_about_a_second() -> None:
    told = play([1000.0, 0.0, 0.0, 0.0] * 10)
    assert all(400 < use.rate < 1850 for use in told[-8:])


def test_who_ends_is_told_to_be_idle_once() -> None:
    told = play([250.0] * 8 + [0.0] * round(2 * IDLE_S / LOOK_S))
    assert told[-1] == IDLE
    assert told.count(IDLE) == 1
    rates = [use.rate for use in told]
    assert rates == sorted(rates, reverse=True)


def test_hunger_is_told_at_once_and_that_it_is_over_soon() -> None:
    demand = Demand()
    play([250.0] * 8, demand=demand)
    (use,) = play([250.0], hungry=True, demand=demand, start=2.0)
    assert use.hungry
    told = play([250.0] * 4, demand=demand, start=2.25)
    assert [use.hungry for use in told] == [False]


def test_who_waits_and_takes_nothing_is_not_idle() -> None:
    assert [use.hungry for use in play([0.0] * 40, hungry=True)] == [True]


def test_a_new_listener_is_told_everything() -> None:
    demand = Demand()
    play([250.0] * 8, demand=demand)
    demand.forget()
    (use,) = play([250.0], demand=demand, start=2.0)
    assert use.rate == pytest.approx(1000)


def test_weights_and_topics_travel_along_and_another_weight_is_news() -> None:
    demand = Demand()
    demand.note(KEY, 10.0, False, 0.25, weight=3.0, topics=7)
    assert [(use.weight, use.topics) for use in demand.uses(0.25).values()] == [(3.0, 7)]
    demand.note(KEY, 10.0, False, 0.5, weight=4.0, topics=8)
    assert [(use.weight, use.topics) for use in demand.uses(0.5).values()] == [(4.0, 8)]
