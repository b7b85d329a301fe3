# What an interval's record says of the storage factor.

from __future__ import annotations

from gateway.data.worker.lowest_factor import LowestFactor


def test_the_lowest_counts_and_the_one_in_force_goes_on() -> None:
    factor = LowestFactor()
    assert factor.take() is None
    for value in (0.5, 0.0, 0.75):
        factor.set(value)
    assert [factor.take() for _ in range(3)] == [0.0, 0.75, 0.75]


def test_one_that_is_switched_off_is_told_once_more() -> None:
    factor = LowestFactor()
    factor.set(0.5)
    factor.set(None)
    assert [factor.take() for _ in range(2)] == [0.5, None]
    factor.set(1.0)
    assert factor.take() == 1.0
