# Windows that follow the calendar of a time zone: its days have 23 or 25 hours when clocks change, its months 28 to 31
# days. Pure; both engines ask here, so that they agree.
#
# All offsets since 2000, the earliest time of a record, are whole quarters of an hour: so is every start of a window,
# and amounts of a quarter of an hour are all in one.

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

QUARTER_HOUR_MS: Final = 900_000
CALENDAR_UNITS: Final = ("hour", "day", "week", "month", "quarter", "year")
_HOUR_MS: Final = 3_600_000


class CalendarWindows(NamedTuple):
    """Windows of one of CALENDAR_UNITS, in a time zone by IANA's name. Weeks begin on Monday (ISO 8601)."""

    unit: str
    zone: str = "UTC"

    def find_start(self, ms: int) -> int:
        """When the window begins that a time lies in; both in Unix ms."""
        return _find_start(self, ms - ms % QUARTER_HOUR_MS)


def load_zone(name: str) -> tzinfo:
    """The time zone of IANA's name; UTC takes no data of the system's.

    Raises:
        ZoneInfoNotFoundError, ValueError, OSError: this system knows none of that name.
    """
    return UTC if name == "UTC" else ZoneInfo(name)


@lru_cache(maxsize=100_000)
def _find_start(windows: CalendarWindows, quarter_ms: int) -> int:
    zone = load_zone(windows.zone)
    if windows.unit == "hour":
        return _find_hour(zone, quarter_ms)
    day = _FIRST_DAYS[windows.unit](datetime.fromtimestamp(quarter_ms / 1000, zone).date())
    # Of a midnight that comes twice, the first; where clocks skip it, when they do.
    return int(datetime.combine(day, time(), zone).timestamp() * 1000)


def _find_hour(zone: tzinfo, quarter_ms: int) -> int:
    """The clock's whole hour, or when the clock was changed after that."""
    start = quarter_ms - (quarter_ms + find_offset(zone, quarter_ms)) % _HOUR_MS
    while start < quarter_ms and find_offset(zone, start) != find_offset(zone, quarter_ms):
        start += QUARTER_HOUR_MS
    return start


def find_offset(zone: tzinfo, ms: int) -> int:
    """How far the zone's clocks are before UTC at a Unix time; both in ms."""
    offset = datetime.fromtimestamp(ms / 1000, zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds() * 1000)


_FIRST_DAYS: Final[dict[str, Callable[[date], date]]] = {
    "day": lambda day: day,
    "week": lambda day: day - timedelta(day.weekday()),
    "month": lambda day: day.replace(day=1),
    "quarter": lambda day: day.replace(month=day.month - (day.month - 1) % 3, day=1),
    "year": lambda day: day.replace(month=1, day=1),
}


def find_window(start_ms: int, window_ms: int | None, calendar: CalendarWindows | None) -> int:
    """When the window begins that a time lies in, both in Unix ms; 0 without windows."""
    if calendar is not None:
        return calendar.find_start(start_ms)
    return start_ms - start_ms % window_ms if window_ms else 0


def time_text(ms: int, zone: str = "UTC") -> str:
    """Unix milliseconds as ISO 8601 with the offset, in a time zone by IANA's name."""
    moment = datetime.fromtimestamp(ms / 1000, load_zone(zone))
    return moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds").replace("+00:00", "Z")
