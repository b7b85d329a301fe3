# ISO-8601 durations against a reading of their own: what is put together from parts must come out as their sum.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.durations import parse_iso8601


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT0S", 0),
        ("PT1M", 60),
        ("PT1H30M", 5400),
        ("PT0.5S", 0.5),
        ("PT1,5S", 1.5),
        ("P1D", 86400),
        ("P1DT12H", 129600),
        ("pt30s", 30),
        (" PT5M ", 300),
    ],
)
def test_what_the_proposals_write(text: str, seconds: float) -> None:
    assert parse_iso8601(text) == seconds


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
    ],
)
def test_what_is_none(text: str) -> None:
    assert parse_iso8601(text) is None


@pytest.mark.parametrize("text", ["P1Y", "P1M", "P2W", "P1Y2M3DT4H"])
def test_lengths_that_are_not_fixed_are_none_either(text: str) -> None:
    assert parse_iso8601(text) is None


@given(st.tuples(*[st.none() | st.integers(0, 10**6)] * 4))
def test_the_sum_of_its_parts(parts: tuple[int | None, ...]) -> None:
    days, *clock = ("" if part is None else f"{part}{unit}" for part, unit in zip(parts, "DHMS", strict=True))
    time = "".join(clock)
    text = f"P{days}" + (f"T{time}" if time else "")
    wanted = sum((part or 0) * unit for part, unit in zip(parts, (86400, 3600, 60, 1), strict=True))
    assert parse_iso8601(text) == (None if text == "P" else wanted)
