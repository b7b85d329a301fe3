# Since when clients were held back, as far as their requests and answers tell.

from __future__ import annotations

import pytest

from tests.simulation.asking import since_bounds


@pytest.mark.parametrize(
    ("spans", "bounds"),
    [
        ([(50.0, 50.0)], (50.0, 50.0)),
        ([(0.0, 0.0), (50.0, 50.0), (60.0, 60.0)], (50.0, 50.0)),  # a pause that is surely long
        ([(15.0, 15.0), (50.0, 50.0)], (15.0, 50.0)),  # one that may be too short
        ([(0.0, 0.0), (30.0, 50.0)], (0.0, 50.0)),  # held by the gateway at any time until its answer
        ([(30.0, 50.0), (52.0, 52.0)], (30.0, 50.0)),
        ([(51.0, 52.0), (12.0, 53.0)], (12.0, 52.0)),
    ],
)
def test_the_latest_run_began_between_bounds(spans: list[tuple[float, float]], bounds: tuple[float, float]) -> None:
    assert since_bounds(spans) == bounds
