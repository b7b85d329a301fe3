# Trends: the method that was right of late is taken, and its error is the one that it had.

from __future__ import annotations

from typing import Any

import pytest

from gateway.audit.answers.windows import QUARTER_HOUR_MS, CalendarWindows
from gateway.audit.batch.query import AuditQuery
from gateway.audit.questions import trend
from gateway.audit.questions.trend import tell_trend
from gateway.audit.spark import schema

DAYS = CalendarWindows("day", "Europe/Berlin")
FIRST = DAYS.find_start(1_774_000_000_000)  # some days before clocks change


def _tell(amounts: list[int], calendar: CalendarWindows = DAYS, ahead: int = 8, **bounds: int) -> list[dict[str, Any]]:
    starts = [calendar.find_start(FIRST)]
    starts += trend._next_windows(starts[0], calendar, len(amounts))
    question = AuditQuery(("group",), QUARTER_HOUR_MS, bounds.get("from_ms", starts[0]), starts[-1], calendar)
    rows = [
        {schema.WINDOW_COLUMN: start, "group": "web", "accepted_bytes": size}
        for start, size in zip(starts, amounts, strict=False)
        if size
    ]
    found = tell_trend(rows, question, "accepted", ahead)
    assert all([*row] == [*trend.trend_kinds(("group",))] for row in found)
    return found


def _forecast(found: list[dict[str, Any]]) -> tuple[set[str], set[int], list[int]]:
    told = [row for row in found if row["kind"] == trend.FORECAST]
    return {row["method"] for row in told}, {row["error_bytes"] for row in told}, [row["bytes"] for row in told]


def test_a_line_goes_on_and_a_level_stays() -> None:
    found = _tell([100 + 10 * day for day in range(20)])
    assert _forecast(found) == ({"line"}, {0}, [300 + 10 * day for day in range(8)])
    assert [row["bytes"] for row in found[:20]] == [100 + 10 * day for day in range(20)]
    assert [row["window_start"][:10] for row in found[18:22]] == [
        "2026-04-07",
        "2026-04-08",
        "2026-04-09",
        "2026-04-10",
    ]
    assert _forecast(_tell([7] * 20)) == ({"mean"}, {0}, [7] * 8)


def test_weekdays_repeat() -> None:
    week = [100, 100, 100, 100, 100, 0, 20]
    methods, errors, told = _forecast(_tell(week * 8, ahead=7))
    assert methods == {"line and weekdays"}
    assert max(errors) <= 10
    assert told == pytest.approx(week, abs=10)


def test_the_error_is_that_of_what_was_held_out_and_nothing_falls_below_0() -> None:
    assert _forecast(_tell([100] * 9 + [130, 70, 130]))[:2] == ({"mean"}, {30})
    assert _forecast(_tell([1000 - 100 * day for day in range(9)]))[2] == [100, *[0] * 7]


def test_of_a_few_windows_there_is_no_forecast_and_cut_ones_do_not_count() -> None:
    assert _forecast(_tell([5] * 7)) == (set(), set(), [])
    found = _tell([5] * 9, from_ms=FIRST + 1)
    assert [row["kind"] for row in found].count(trend.SEEN) == 8
    assert _tell([]) == []


def test_days_without_traffic_count_up_to_the_end_that_was_asked_for() -> None:
    found = _tell([100] * 10 + [0] * 10)
    assert [row["bytes"] for row in found if row["kind"] == trend.SEEN] == [100] * 10 + [0] * 10
    assert _forecast(found)[2] == [0] * 8


def test_the_day_on_which_the_log_began_is_not_whole() -> None:
    found = _tell([0] * 5 + [3] + [5] * 9)
    assert [row["bytes"] for row in found if row["kind"] == trend.SEEN] == [5] * 9


def test_months() -> None:
    found = _tell([5] * 10, CalendarWindows("month"), ahead=3)
    assert [row["window_start"][:10] for row in found[-4:]] == ["2026-12-01", "2027-01-01", "2027-02-01", "2027-03-01"]
