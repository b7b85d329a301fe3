# Whose turn it is to go, by the clock.

from __future__ import annotations

import pytest

from gateway.data.shared.drain_schedule import MIN_DRAINED_PER_S, DrainSchedule


def times(count: int, within_s: float, step_s: float = 0.02) -> list[float]:
    """When each goes, looked at every `step_s`."""
    departures = DrainSchedule(range(count), 100.0, within_s)
    found: list[float] = []
    gone: list[int] = []
    step = 0
    while departures:
        due = departures.pop_due(100.0 + step * step_s)
        gone += due
        found += [step * step_s] * len(due)
        step += 1
    assert gone == list(range(count)), "each once, in their order"
    return found


def test_many_go_evenly_over_the_time_that_there_is() -> None:
    found = times(10_000, 6.0)
    assert 5.9 <= found[-1] <= 6.02
    per_second = [sum(second <= at < second + 1 for at in found) for second in range(6)]
    assert max(per_second) - min(per_second) < 100


def test_few_do_not_take_that_long() -> None:
    assert times(10, 6.0)[-1] <= 10 / MIN_DRAINED_PER_S + 0.02
    assert times(1, 6.0) == [0.0]
    assert times(0, 6.0) == []


@pytest.mark.parametrize("within_s", [0.0, -1.0])
def test_without_any_time_all_go_at_once(within_s: float) -> None:
    assert times(500, within_s) == [0.0] * 500


def test_after_a_long_look_away_all_go_whose_turn_was_meanwhile() -> None:
    departures = DrainSchedule(range(1000), 0.0, 1.0)
    assert len(departures.pop_due(0.5)) == 501
    assert departures.pop_due(0.5) == []
    assert len(departures.pop_due(99.0)) == 499
    assert not departures
