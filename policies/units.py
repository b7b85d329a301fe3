# Sizes, rates and durations as text: how people write them in files, commands and documents, and how they are shown.
# The one parser and the one printer of each kind. Knows no key and no limit.
#
# MB = 10^6 bytes, MiB = 2^20. Durations: 500ms, 3s, 1h30m, or ISO 8601 as the proposals have them (PT1M, PT0S,
# P1DT12H). Of ISO 8601 only what Java's Duration.parse takes as well, without signs: a year or a month has no fixed
# length, so neither is a duration here.

from __future__ import annotations

import math
import re
from typing import Final, overload

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(|[kKMGT]?B|[KMGT]iB)")
_BYTES: Final = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**i for i, letter in enumerate("KMGT", 1)},
    "kB": 1000,
    **{f"{letter}iB": 1024**i for i, letter in enumerate("KMGT", 1)},
}
_EXACT: Final = tuple((unit, _BYTES[unit]) for unit in ("TB", "GB", "MB", "kB", "TiB", "GiB", "MiB", "KiB"))
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_ISO: Final = re.compile(
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
    """Bytes from text such as 20MB, 1.5GiB, 4096. What is no text is given back as it is.

    Raises:
        ValueError: the text is not a size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a valid size; for example: 20MB (20 * 10^6), 20MiB (20 * 2^20) or 20000000")
    size = float(match[1]) * _BYTES[match[2]]
    if not math.isfinite(size):
        raise ValueError(f"{value[:20]!r}… is larger than any size can be; for example: 20MB or 20MiB")
    return round(size)


@overload
def parse_duration(value: str) -> float: ...
@overload
def parse_duration(value: object) -> object: ...
def parse_duration(value: object) -> object:
    """Seconds from text such as 500ms, 3s, 1h30m, PT1M. What is no text is given back as it is.

    Raises:
        ValueError: the text is not a duration.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if (seconds := parse_iso8601(text)) is not None:
        return seconds
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{value!r} is not a valid duration; for example: 500ms, 3s, 1h30m or PT1M")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_iso8601(text: str) -> float | None:
    """Seconds of an ISO 8601 duration; None for any other text, including one with years, months or weeks."""
    match = _ISO.fullmatch(text.strip()) if len(text) <= _MAX_CHARS else None
    if match is None:
        return None
    numbers = zip(match.groups("0"), _ISO_SECONDS, strict=True)
    return sum(float(number.replace(",", ".")) * unit for number, unit in numbers)


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
    for unit, factor in _EXACT:
        if value >= factor and value % factor == 0:
            return f"{int(value) // factor}{unit}"
    return int(value)


def format_rate(rate: float, digits: int = 1) -> str:
    """Bytes per second for people, in decimal units, as thresholds are configured."""
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if rate >= size:
            return f"{rate / size:.{digits}f} {unit}"
    return f"{rate:.{digits}f} B/s"


def exact_rate(rate: float, unit: str = "bytes") -> str:
    """A configured rate with every digit: rounded numbers can't explain why a sum is refused."""
    return f"{rate:,.0f} {unit}/s" if rate == int(rate) else f"{rate:,.3f} {unit}/s"
