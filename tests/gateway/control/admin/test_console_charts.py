# The traffic as a drawing: where its points are, in which order its areas lie, and what is said of it.

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.admin.console import charts
from gateway.control.admin.console.charts import COLUMNS, HEIGHT, WIDTH

STEP = 10_000
END = 1_700_000_000_000


def point(ago: int, offered: float, accepted: float, rejected: float = 0.0, delayed: float = 0.0) -> dict[str, Any]:
    """`ago`: steps before the end."""
    return {"at_ms": END - ago * STEP, "offered": offered, "accepted": accepted, "rejected": rejected,
            "delayed": delayed, "would": 0.0, "factor": None}  # fmt: skip


def places(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", path)]


def test_areas_lie_on_each_other_and_the_line_is_what_came_in() -> None:
    points = [point(2, 8000.0, 6000.0, 2000.0, 1000.0), point(1, 10_000.0, 5000.0, 5000.0)]
    chart = charts.draw_traffic(points, STEP, END, 10)
    assert (chart.top, chart.middle) == ("10 kB/s", "5 kB/s")
    assert [name for name, _ in chart.layers] == ["accepted", "delayed", "rejected"]
    at_once, delayed, rejected = (places(path) for _, path in chart.layers)
    x1, x2 = WIDTH - 1.5 * STEP / 600_000 * WIDTH, WIDTH - 0.5 * STEP / 600_000 * WIDTH
    assert at_once == [pytest.approx(each, abs=0.06) for each in ((x1, 100), (x2, 100), (x2, 200), (x1, 200))]
    assert [y for _, y in delayed] == [80, 100, 100, 100]  # up to all that was accepted, back along what is below
    assert [y for _, y in rejected] == [40, 0, 100, 80]
    assert [y for _, y in places(chart.offered)] == [40, 0]
    assert chart.words.startswith("The last 10 minutes: in 9.0 kB/s, accepted 5.5 kB/s, delayed 500.0 B/s, rejected")


def test_what_never_was_has_no_area() -> None:
    assert [name for name, _ in charts.draw_traffic([point(1, 5.0, 5.0)], STEP, END, 10).layers] == ["accepted"]


def test_without_any_point_the_drawing_is_empty() -> None:
    for points in ([], [point(70, 5.0, 5.0)]):  # the latter is older than what is shown
        chart = charts.draw_traffic(points, STEP, END, 10)
        assert (chart.layers, chart.offered, chart.spots) == ([], "", [])
        assert chart.words == "The last 10 minutes: nothing is known yet"


def test_spots_say_their_means_and_cover_the_time_without_a_gap() -> None:
    points = [point(360 - index, float(index), float(index)) for index in range(360)]
    spots = charts.draw_traffic(points, STEP, END, 60).spots
    assert len(spots) == COLUMNS
    assert spots[0].words == "in 2.5 B/s, accepted 2.5 B/s, delayed 0.0 B/s, rejected 0.0 B/s"
    for before, after in itertools.pairwise(spots):
        assert before.x + before.width == pytest.approx(after.x)
    assert spots[-1].x + spots[-1].width == pytest.approx(WIDTH)


@given(st.floats(0, 1e15))
def test_the_scale_has_room_and_wastes_little(most: float) -> None:
    top = charts.round_scale(most)
    assert top >= most
    assert top == 1000 or top <= 2 * most
    assert top / 2 == float(f"{top / 2:.2g}")


@given(
    st.lists(
        st.tuples(*(st.floats(0, 1e12) for _ in range(3))).map(lambda each: (each[0], each[1], each[2])), max_size=80
    )
)
def test_nothing_is_drawn_beyond_the_box(rates: list[tuple[float, float, float]]) -> None:
    points = [
        point(len(rates) - index, accepted + rejected, accepted, rejected, delayed)
        for index, (accepted, rejected, delayed) in enumerate(rates)
    ]
    chart = charts.draw_traffic(points, STEP, END, 10)
    for path in (*(path for _, path in chart.layers), chart.offered):
        for x, y in places(path):
            assert -0.1 <= x <= WIDTH + 0.1
            assert -0.1 <= y <= HEIGHT + 0.1
