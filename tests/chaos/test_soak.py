# What the soak calls growth.

from __future__ import annotations

import pytest

from tests.chaos.soak import growth


def test_growth_is_what_a_line_rises_by_over_the_time() -> None:
    assert growth([0, 60, 120], [10.0, 13.0, 16.0]) == pytest.approx(6.0)
    assert growth([0, 60, 120, 180], [10.0, 12.0, 12.0, 10.0]) == pytest.approx(0.0)
    assert growth([100, 160, 220], [9.0, 8.0, 7.0]) == pytest.approx(-2.0)


def test_a_few_moments_of_a_starved_machine_are_no_growth() -> None:
    files = [134.0, 139.0, 135.0, 140.0, 131.0] * 8 + [403.0, 560.0, 648.0, 135.0, 471.0]
    assert growth(range(len(files)), files) < 10
    assert growth(range(10), [134.0 + 40 * minute for minute in range(10)]) == pytest.approx(360.0)
