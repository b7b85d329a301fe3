# What an interval's record says of the storage factor.

from __future__ import annotations

from gateway.data.worker.lowest_factor import LowestFactor


def test_the_lowest_counts_and_the_one_in_force_goes_on() -> None:
    factor = LowestFactor()
    assert factor.collect_lowest() is None
    for value in (0.5, 0.0, 0.75):
        factor.set_factor(value)
    assert [factor.collect_lowest() for _ in range(3)] == [0.0, 0.75, 0.75]


def test_one_that_is_switched_off_is_told_once_more() -> None:
    factor = LowestFactor()
    factor.set_factor(0.5)
    factor.set_factor(None)
    assert [factor.collect_lowest() for _ in range(2)] == [0.5, None]
    factor.set_factor(1.0)
    assert factor.collect_lowest() == 1.0
