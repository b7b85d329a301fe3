# When `make bench-compare` calls a revision slower.

from __future__ import annotations

import random

import pytest

from tests.bench.results.verdict import Verdict, bounds, judge


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.1, 1.2, 1.1, 1.15, 1.12, 1.3], Verdict.SLOWER),
        ([0.9, 0.8, 0.9, 0.85, 0.88, 0.7], Verdict.FASTER),
        ([1.0, 1.01, 0.99, 1.0, 1.0, 1.01], Verdict.EQUAL),
        ([1.0, 1.3, 0.8, 1.1, 0.9, 1.2], Verdict.UNKNOWN),
        ([1.1, 1.2, 1.1, 1.15, 1.12], Verdict.UNKNOWN),  # chance alone has five on one side in one of sixteen runs
        ([], Verdict.UNKNOWN),
    ],
)
def test_a_verdict_needs_rounds_that_agree(ratios: list[float], verdict: Verdict) -> None:
    assert judge(ratios) is verdict


def test_one_round_that_was_disturbed_decides_nothing() -> None:
    calm = [1.0] * 8
    assert judge([*calm, 3.0]) is judge([*calm, 0.3]) is Verdict.EQUAL


def test_the_bounds_hold_the_median_as_often_as_they_say() -> None:
    source = random.Random(19)
    held = 0
    for _ in range(2000):
        found = bounds([source.lognormvariate(0, 0.2) for _ in range(9)])
        assert found is not None
        held += found[0] <= 1.0 <= found[1]
    assert held / 2000 >= 0.95
