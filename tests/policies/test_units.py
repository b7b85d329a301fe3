# Sizes, rates and durations: what is understood, what is refused, and how they are shown. ISO 8601 durations against a
# reading of their own: what is put together from parts must come out as their sum.

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.units import (
    LAST_TIME_MS,
    exact_rate,
    exact_size,
    format_rate,
    format_size,
    format_time,
    parse_duration,
    parse_iso8601,
    parse_size,
    parse_time,
    parse_until,
)

GB = 10**9


# --- read -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20MB", 20_000_000), ("20MiB", 20 * 2**20), ("1.5kB", 1500), ("1KB", 1000), ("3 GiB", 3 * 2**30),
        ("17", 17), ("17B", 17), (17, 17), ("0", 0), ("2TB", 2 * 10**12),
    ],
)  # fmt: skip
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["20mb", "MB", "-1MB", "1e6", "20 MBit", "", "1,000", "1_000", "١٢"])
def test_an_invalid_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid size; for example: 20MB"):
        parse_size(text)


def test_a_size_is_not_rounded_to_nothing() -> None:
    """A topic's threshold of 0 stops it."""
    with pytest.raises(ValueError, match=r"'0\.4B' is less than a byte"):
        parse_size("0.4B")


@pytest.mark.parametrize("text", ["9" * 400 + "TB", "9" * 300 + "TB", "9" * 400])
def test_a_size_beyond_all_sizes_is_one_short_line(text: str) -> None:
    with pytest.raises(ValueError, match="is larger than any size can be") as refused:
        parse_size(text)
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5), ("3s", 3), ("1h30m", 5400), ("2d", 172_800), (2.5, 2.5), ("1.5m", 90), ("PT1M", 60),
        ("PT0S", 0), (" P1DT12H ", 129_600), ("pt0.5s", 0.5),
    ],
)  # fmt: skip
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["3", "3 s", "s", "1h 30m", "-1s", "1h30", "", "P", "P1M", "PT"])
def test_an_invalid_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid duration; for example: 500ms"):
        parse_duration(text)


@pytest.mark.seed("DISK.44")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT0.5S", 0.5),
        ("PT1,5S", 1.5),
        ("pt30s", 30),
        (" PT5M ", 300),
    ],
)
def test_durations_as_the_proposals_write_them(text: str, seconds: float) -> None:
    assert parse_iso8601(text) == seconds


@pytest.mark.seed("DISK.44")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1DT",
        "30s",
        "1h30m",
        "60",
        "T1M",
        "PT1M30",
        "PT1S1M",
        "PT1.5M",
        "-PT1M",
        "PT-1M",
        "P1DT1Y",
        "PT٣S",
        *("P1Y", "P1M", "P2W", "P1Y2M3DT4H"),  # lengths that are not fixed
    ],
)
def test_texts_that_are_no_duration(text: str) -> None:
    assert parse_iso8601(text) is None


@given(st.tuples(*[st.none() | st.integers(0, 10**6)] * 4))
def test_the_sum_of_its_parts(parts: tuple[int | None, ...]) -> None:
    days, *clock = ("" if part is None else f"{part}{unit}" for part, unit in zip(parts, "DHMS", strict=True))
    time = "".join(clock)
    text = f"P{days}" + (f"T{time}" if time else "")
    wanted = sum((part or 0) * unit for part, unit in zip(parts, (86400, 3600, 60, 1), strict=True))
    assert parse_iso8601(text) == (None if text == "P" else wanted)


# --- shown ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (-1, "-1 B"),
        (499, "499 B"),
        (500, "0.5 kB"),
        (999_000, "1.0 MB"),
        (100 * GB, "100.0 GB"),
        (900 * GB, "900.0 GB"),
        (2e12, "2.0 TB"),
        (3e15, "3.0 PB"),
        (-30 * GB, "-30.0 GB"),
    ],
)
def test_sizes_are_for_people(count: float, said: str) -> None:
    assert format_size(count) == said


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0, "0.0 B/s"), (999, "999.0 B/s"), (1000, "1.0 kB/s"), (1.5e6, "1.5 MB/s"), (2.25e9, "2.2 GB/s")],
)
def test_rates_are_in_decimal_units(rate: float, text: str) -> None:
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, 0), (999, 999), (1000, "1kB"), (1024, "1KiB"), (12e6, "12MB"), (2**40, "1TiB"), (1500, 1500), (0.5, 0.5)],
)
def test_sizes_are_exact(value: float, text: str | float) -> None:
    assert exact_size(value) == text


@pytest.mark.parametrize(
    ("rate", "unit", "text"),
    [(12e6, "bytes", "12,000,000 bytes/s"), (0.5, "bytes", "0.500 bytes/s"), (1000, "messages", "1,000 messages/s")],
)
def test_exact_rates_have_every_digit(rate: float, unit: str, text: str) -> None:
    assert exact_rate(rate, unit) == text


# --- times ------------------------------------------------------------------------------------------------------------


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.timezones() | st.just(UTC)))
def test_times_are_read_and_shown_as_the_standard_library_does(at: datetime) -> None:
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    offset = at.utcoffset()
    assume(offset is not None and not offset.seconds % 60)  # RFC 3339 has no seconds there
    ms = round((at - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))
    assert parse_time(at.isoformat()) == ms
    assert datetime.fromisoformat(format_time(ms)) == at
    assert parse_time(format_time(ms)) == ms


def test_a_time_is_shown_in_utc_and_with_what_it_needs() -> None:
    assert format_time(0) == "1970-01-01T00:00:00Z"
    assert format_time(parse_time("2026-11-22t22:00:00.5+01:00")) == "2026-11-22T21:00:00.500Z"
    assert format_time(parse_time("2026-11-22 21:00:00.0004z")) == "2026-11-22T21:00:00Z"
    assert format_time(parse_time("2016-12-31T23:59:60Z")) == "2017-01-01T00:00:00Z"
    assert format_time(LAST_TIME_MS) == "9999-12-31T23:59:59.999Z"


@pytest.mark.parametrize(
    "text",
    [
        "", "tomorrow", "2026-11-22", "2026-11-22T21:00:00", "2026-11-22T21:00Z", "20261122T210000Z", "1763845200",
        "2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z", "2026-01-00T00:00:00Z",
        "2026-11-22T24:00:00Z", "2026-11-22T21:60:00Z", "2026-11-22T21:00:61Z", "2026-11-22T21:00:00+24:00",
        "1969-12-31T23:59:59Z", "1970-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "٢026-11-22T21:00:00Z",
        "2026-11-22T21:00:00Z\n", "2026-11-22T21:00:00." + "0" * 60 + "Z",
    ],
)  # fmt: skip
def test_an_invalid_time_is_refused_with_a_valid_one(text: str) -> None:
    with pytest.raises(ValueError, match="for example: 2026-11-22T21:00:00Z"):
        parse_time(text)


def test_commands_take_a_time_or_a_duration_from_now_on() -> None:
    now_ms = parse_time("2026-11-22T19:00:00Z")
    assert format_time(parse_until("2h", now_ms)) == "2026-11-22T21:00:00Z"
    assert format_time(parse_until("P1DT1H", now_ms)) == "2026-11-23T20:00:00Z"
    assert format_time(parse_until("2026-11-22T22:00:00+01:00", now_ms)) == "2026-11-22T21:00:00Z"
    for text in ("", "2", "later", "2026-11-22"):
        with pytest.raises(ValueError, match="neither a time nor a duration; for example: 2h, or 2026"):
            parse_until(text, now_ms)


@pytest.mark.parametrize("text", ["9999999d", "9" * 400 + "d"])
def test_an_end_beyond_all_times_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="from now on is beyond the year 9999"):
        parse_until(text, 1_700_000_000_000)
