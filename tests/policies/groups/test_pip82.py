# The seed's step function: its own numbers, and what they say in general.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.policies.groups.pip82 import Variant, spread, steal, step

USAGES = st.lists(st.floats(0, 1000), min_size=1, max_size=12)
VARIANTS: list[Variant] = ["whole", "proportional"]


def test_each_adds_the_whole_residual() -> None:
    assert spread([10, 50, 30], 100, "whole") == [20, 60, 40]


def test_each_adds_its_part_of_the_residual() -> None:
    assert spread([10, 50, 30], 100, "proportional") == pytest.approx([11.11, 55.56, 33.33], abs=0.005)


def test_over_the_quota_the_opposite_happens() -> None:
    assert spread([60, 60], 100, "whole") == [40, 40]
    assert spread([90, 60], 100, "proportional") == pytest.approx([60, 40])


def test_no_allocation_is_taken_below_nothing() -> None:
    assert spread([200, 1], 100, "whole") == [99, 0]


def test_without_usage_the_parts_are_equal() -> None:
    assert spread([0, 0], 100, "proportional") == [50, 50]


def test_the_lower_one_steals_half_way_to_the_dominant_one() -> None:
    assert steal([80, 20]) == [80, 50]
    assert step([80, 20], 100, "whole") == [80, 50]
    assert step([80, 20], 100, "proportional") == pytest.approx([80, 50])


def test_the_dominant_one_gives_what_the_thief_has_grown_by() -> None:
    assert step([80, 30], 100, "whole")[0] == 70


def test_the_second_lowest_steals_from_the_second_most_dominant() -> None:
    assert steal([10, 100, 50, 20, 90]) == [55, 100, 50, 55, 90]


def test_step_by_step_two_that_want_all_have_half_each() -> None:
    limits = [80.0, 20.0]
    for _ in range(40):
        limits = step(limits, 100, "proportional")
    assert limits == pytest.approx([50, 50], rel=0.01)


@given(USAGES)
def test_stealing_changes_no_sum_and_goes_no_more_than_half_way(usages: list[float]) -> None:
    limits = steal(usages)
    assert all(usage <= limit <= (usage + max(usages)) / 2 + 1e-9 for usage, limit in zip(usages, limits, strict=True))


@given(USAGES, st.floats(1, 1000), st.sampled_from(VARIANTS))
def test_parts_of_the_residual_make_up_the_quota(usages: list[float], quota: float, variant: Variant) -> None:
    limits = spread(usages, quota, variant)
    assert min(limits) >= 0
    if variant == "proportional" and sum(usages) > 1e-6:
        assert sum(limits) == pytest.approx(quota)
    if variant == "whole" and sum(usages) <= quota:  # all of it for each: in sum too much, for a cycle
        assert sum(limits) == pytest.approx(sum(usages) + len(usages) * (quota - sum(usages)))
