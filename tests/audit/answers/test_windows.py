# Windows of the calendar: hours, days and months of time zones that change their clocks.

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.answers.windows import CALENDAR_UNITS, QUARTER_HOUR_MS, CalendarWindows, time_text
from gateway.audit.records.decoding import EARLIEST_MS, LATEST_MS

ZONES = (
    "UTC", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "America/Havana", "America/Sao_Paulo",
    "Africa/Cairo", "America/Santiago", "Pacific/Apia", "America/St_Johns",
)  # fmt: skip
HOUR_MS = 3_600_000


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _lengths(windows: CalendarWindows, first: str, last: str) -> list[float]:
    """Of the windows between two times, in hours."""
    starts = dict.fromkeys(windows.find_start(ms) for ms in range(_ms(first), _ms(last), QUARTER_HOUR_MS))
    return [(end - start) / HOUR_MS for start, end in pairwise(starts)]


def test_days_have_23_and_25_hours_when_clocks_change() -> None:
    days = CalendarWindows("day", "Europe/Berlin")
    assert _lengths(days, "2026-03-28T00:00+01:00", "2026-04-01T00:00+02:00") == [24, 23, 24]
    assert _lengths(days, "2026-10-24T00:00+02:00", "2026-10-28T00:00+01:00") == [24, 25, 24]
    months = CalendarWindows("month", "Europe/Berlin")
    assert _lengths(months, "2026-03-01T00:00+01:00", "2026-06-01T00:00+02:00") == [31 * 24 - 1, 30 * 24]
    assert time_text(days.find_start(_ms("2026-03-29T12:00Z")), days.zone) == "2026-03-29T00:00:00+01:00"


@pytest.mark.parametrize(
    ("unit", "start"),
    [
        ("hour", "2026-11-20T21:00+05:45"),
        ("day", "2026-11-20T00:00+05:45"),
        ("week", "2026-11-16T00:00+05:45"),
        ("month", "2026-11-01T00:00+05:45"),
        ("quarter", "2026-10-01T00:00+05:45"),
        ("year", "2026-01-01T00:00+05:45"),
    ],
)
def test_units(unit: str, start: str) -> None:
    found = CalendarWindows(unit, "Asia/Kathmandu").find_start(_ms("2026-11-20T21:34:56+05:45"))
    assert found == _ms(start)


def test_a_clock_that_goes_back_by_half_an_hour_begins_a_new_hour() -> None:
    hours = CalendarWindows("hour", "Australia/Lord_Howe")  # 2:00 became 1:30
    assert _lengths(hours, "2026-04-05T00:00+11:00", "2026-04-05T04:00+10:30") == [1, 1, 0.5, 1]


@given(st.integers(EARLIEST_MS, LATEST_MS), st.sampled_from(CALENDAR_UNITS), st.sampled_from(ZONES))
def test_each_time_is_in_one_window_which_begins_where_the_clock_says(ms: int, unit: str, zone: str) -> None:
    windows = CalendarWindows(unit, zone)
    start = windows.find_start(ms)
    assert start <= ms
    assert windows.find_start(start) == start  # so they don't overlap
    assert start % QUARTER_HOUR_MS == 0
    began, now = (datetime.fromtimestamp(each / 1000, ZoneInfo(zone)) for each in (start, ms))
    before = datetime.fromtimestamp(start / 1000, UTC) - timedelta(seconds=1)
    assert _label(before.astimezone(ZoneInfo(zone)), unit) != _label(began, unit) or unit == "hour"
    assert _label(began, unit) == _label(now, unit)


def _label(moment: datetime, unit: str) -> str:
    forms = {"hour": "%Y%m%d%H", "day": "%Y%m%d", "week": "%G%V", "month": "%Y%m", "year": "%Y"}
    return moment.strftime(forms[unit]) if unit in forms else f"{moment.year} {(moment.month - 1) // 3}"
