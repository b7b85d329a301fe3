# Sizes, rates and durations as text: how people write them in files, commands and documents, and how they are shown.
# The one parser and the one printer of each kind. Knows no key and no limit.
#
# MB = 10^6 bytes, MiB = 2^20. Durations: 500ms, 3s, 1h30m, or ISO 8601 as the proposals have them (PT1M, PT0S,
# P1DT12H). Of ISO 8601 only what Java's Duration.parse takes as well, without signs: a year or a month has no fixed
# length, so neither is a duration here. Times are RFC 3339's, with an offset: 2026-11-22T21:00:00Z.

from __future__ import annotations

import math
import re
from typing import Final, overload

_SIZE_PATTERN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(|[kKMGT]?B|[KMGT]iB)")
_BYTES_BY_UNIT: Final = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**i for i, letter in enumerate("KMGT", 1)},
    "kB": 1000,
    **{f"{letter}iB": 1024**i for i, letter in enumerate("KMGT", 1)},
}
_EXACT_UNITS: Final = tuple(
    (unit, _BYTES_BY_UNIT[unit]) for unit in ("TB", "GB", "MB", "kB", "TiB", "GiB", "MiB", "KiB")
)
_DURATION_PATTERN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS_BY_UNIT: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_ISO_PATTERN: Final = re.compile(
    r"P(?=[0-9T])(?:([0-9]+)D)?(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:[.,][0-9]{1,9})?)S)?)?",
    re.IGNORECASE,
)
_ISO_SECONDS: Final = (86400.0, 3600.0, 60.0, 1.0)
_MAX_CHARS: Final = 60  # more digits than any duration needs would not fit into a float


# --- read -------------------------------------------------------------------------------------------------------------


@overload
def parse_size(value: str) -> int: ...
@overload
def parse_size(value: object) -> object: ...
def parse_size(value: object) -> object:
    """Bytes from text such as 20MB, 1.5GiB, 4096. A value that is no text is given back as it is.

    Raises:
        ValueError: the text is not a size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE_PATTERN.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a valid size; for example: 20MB (20 * 10^6), 20MiB (20 * 2^20) or 20000000")
    size = float(match[1]) * _BYTES_BY_UNIT[match[2]]
    if not math.isfinite(size):
        raise ValueError(f"{value[:20]!r}… is larger than any size can be; for example: 20MB or 20MiB")
    if 0 < size < 1:
        raise ValueError(f"{value!r} is less than a byte; for example: 20MB or 20MiB")
    return round(size)


@overload
def parse_duration(value: str) -> float: ...
@overload
def parse_duration(value: object) -> object: ...
def parse_duration(value: object) -> object:
    """Seconds from text such as 500ms, 3s, 1h30m, PT1M. A value that is no text is given back as it is.

    Raises:
        ValueError: the text is not a duration.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if (seconds := parse_iso8601(text)) is not None:
        return seconds
    parts = _DURATION_PATTERN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{value!r} is not a valid duration; for example: 500ms, 3s, 1h30m or PT1M")
    return sum(float(number) * _SECONDS_BY_UNIT[unit] for number, unit in parts)


def parse_iso8601(text: str) -> float | None:
    """Seconds of an ISO 8601 duration; None for any other text, including one with years, months or weeks."""
    match = _ISO_PATTERN.fullmatch(text.strip()) if len(text) <= _MAX_CHARS else None
    if match is None:
        return None
    numbers = zip(match.groups("0"), _ISO_SECONDS, strict=True)
    return sum(float(number.replace(",", ".")) * unit for number, unit in numbers)


_TIME_PATTERN: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,3})\d*)?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
LAST_TIME_MS: Final = 253_402_300_799_999  # the end of the year 9999
_DAY_MS: Final = 86_400_000


def parse_time(text: str) -> int:
    """Unix time in milliseconds of an RFC 3339 timestamp, from 1970 on. A leap second is the next day's first.

    Raises:
        ValueError: it is none.
    """
    match = _TIME_PATTERN.fullmatch(text) if len(text) <= _MAX_CHARS else None
    if match is not None:
        year, month, day, hour, minute, second = map(int, match.groups()[:6])
        sign, offset_h, offset_m = match[8], int(match[9] or 0), int(match[10] or 0)
        offset = (offset_h * 60 + offset_m) * (-1 if sign == "-" else 1)
        days = _days_of_date(year, month, day)
        fits = hour < 24 and minute < 60 and second <= 60 and offset_h < 24 and offset_m < 60
        at_ms = ((days * 1440 + hour * 60 + minute - offset) * 60 + second) * 1000 + int((match[7] or "").ljust(3, "0"))
        if fits and _date_of_days(days) == (year, month, day) and 0 <= at_ms <= LAST_TIME_MS:
            return at_ms
    raise ValueError(f"{text[:_MAX_CHARS]!r} is not a valid time; for example: 2026-11-22T21:00:00Z (RFC 3339)")


def _days_of_date(year: int, month: int, day: int) -> int:
    """Since 1970-01-01, in the Gregorian calendar; years begin in March here, so that a leap day is the last."""
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 1 - 719_468


def _date_of_days(days: int) -> tuple[int, int, int]:
    """Year, month and day of `_days_of_date`."""
    era, day = divmod(days + 719_468, 146_097)  # eras have 400 years
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    return era * 400 + year + (month > 9), month + 3 if month < 10 else month - 9, day + 1


def parse_until(text: str, now_ms: int) -> int:
    """Unix time in milliseconds: a time, or a duration from now on, as commands take them.

    Raises:
        ValueError: it is neither.
    """
    try:
        until_ms = now_ms + parse_duration(text) * 1000
    except ValueError:
        pass
    else:
        if until_ms > LAST_TIME_MS:
            raise ValueError(f"{text[:_MAX_CHARS]!r} from now on is beyond the year 9999")
        return round(until_ms)
    try:
        return parse_time(text)
    except ValueError:
        raise ValueError(
            f"{text[:_MAX_CHARS]!r} is neither a time nor a duration; for example: 2h, or 2026-11-22T21:00:00Z"
        ) from None


# --- shown ------------------------------------------------------------------------------------------------------------


def format_size(count: float) -> str:
    """Bytes for people. Up to GB a unit is used from half of it on: "0.9 GB of 100.0 GB" compares at a glance."""
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= factor * (1.0 if unit in ("PB", "TB") else 0.5):
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def exact_size(value: float) -> str | int | float:
    """Bytes as `parse_size` reads them, in the largest unit that needs no fraction: 12MB, 1MiB, 1234567."""
    if value != int(value):
        return value
    for unit, factor in _EXACT_UNITS:
        if value >= factor and value % factor == 0:
            return f"{int(value) // factor}{unit}"
    return int(value)


def exact_number(value: float) -> str:
    """All its digits: 1234567, 33.3333333."""
    return str(int(value)) if value == int(value) else repr(value)


def format_rate(rate: float, digits: int = 1) -> str:
    """Bytes per second for people, in decimal units, as thresholds are configured."""
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if rate >= size:
            return f"{rate / size:.{digits}f} {unit}"
    return f"{rate:.{digits}f} B/s"


def format_duration(seconds: float) -> str:
    """For people, in the one unit that matters."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} d"


def exact_rate(rate: float, unit: str = "bytes") -> str:
    """A configured rate with every digit: rounded numbers can't explain why a sum is refused."""
    if rate == int(rate):
        return f"{rate:,.0f} {unit}/s"
    return f"{rate:,.3f} {unit}/s" if abs(rate) >= 0.001 else f"{rate:.3g} {unit}/s"


def format_messages(rate: float) -> str:
    """Messages per second for people."""
    return f"{rate:,.0f} messages/s" if rate >= 10 or rate == int(rate) else f"{rate:.2g} messages/s"


def format_time(at_ms: int) -> str:
    """Unix time in milliseconds as RFC 3339 has it, in UTC."""
    days, rest = divmod(at_ms, _DAY_MS)
    year, month, day = _date_of_days(days)
    seconds, ms = divmod(rest, 1000)
    part = f".{ms:03}" if ms else ""
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{year:04}-{month:02}-{day:02}T{clock}{part}Z"
