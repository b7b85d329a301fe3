# What a limit says of itself, alone and as one gateway of several; numbers and places in words.

from __future__ import annotations

import pytest

from policies.limits.description import FleetUse, LimitDescription, LimitLevel, amount_text, place_text, scale_text

WHOLE = 100_000.0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2_400_000.0, "bytes/s", "2.4 MB/s"), (25.0, "%", "25 %"), (1234.0, "messages/s", "1,234 messages/s"),
        (0.25, "messages/s", "0.25 messages/s"), (0.001, "%", "0.001 %"), (100_000.0, "%", "100,000 %"),
    ],
)  # fmt: skip
def test_numbers_have_their_units(value: float, unit: str, text: str) -> None:
    assert amount_text(unit)(value) == text


def test_a_place_is_one_broker_or_each() -> None:
    assert (place_text(3), place_text(None)) == ("broker 3", "each broker")


def test_a_factor_of_one_is_not_worth_a_word() -> None:
    assert (scale_text(1.0), scale_text(0.5)) == ("", "times the storage factor 0.5")


def test_texts_need_no_numbers() -> None:
    assert LimitLevel("x", "", None, None, 5.0).text == "5.0 B/s, no limit"
    assert LimitDescription("fence", None, (), "reject", "produce", "enforce", False, "why").text == "why"


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ({}, "47.0 kB/s of 50.0 kB/s (94%); held 3.1 s"),
        (
            {"gwb": 47e3},
            "100.0 kB/s over 2 gateways: 94.0 kB/s used (47.0 kB/s here, 47.0 kB/s at gwb), the share of this gateway"
            " is now 50.0 kB/s (94%); held 3.1 s",
        ),
        (
            {"gwb": 47e3, "gwc": 0.0},
            "100.0 kB/s over 3 gateways: 94.0 kB/s used (47.0 kB/s here, 47.0 kB/s at gwb), the share of this gateway"
            " is now 50.0 kB/s (94%); held 3.1 s",
        ),
        (
            {"b": 1e3, "c": 2e3, "d": 3e3, "e": 4e3, "f": 5e3},
            "100.0 kB/s over 6 gateways: 62.0 kB/s used (47.0 kB/s here, 5.0 kB/s at f, 4.0 kB/s at e, 3.0 kB/s at d,"
            " 3.0 kB/s at 2 more), the share of this gateway is now 50.0 kB/s (94%); held 3.1 s",
        ),
    ],
)
def test_a_limit_in_words(others: dict[str, float], text: str) -> None:
    fleet = FleetUse(50e3, others, 1 + len(others))
    level = LimitLevel("a quota", "file", WHOLE, 50e3, 47e3, wait_s=3.1, whole=WHOLE, fleet=fleet)
    assert level.text == text
    assert level.fleet_used == 47e3 + sum(others.values())
    wanted = max(3e3, WHOLE - level.fleet_used) if others else 3e3
    assert level.headroom == pytest.approx(wanted), "others may leave it more than its part"


def test_what_gateways_use_that_are_not_heard_is_not_known() -> None:
    fleet = FleetUse(50e3, {}, 2, hears_others=False)
    level = LimitLevel("a quota", "file", WHOLE, 50e3, 47e3, whole=WHOLE, fleet=fleet)
    assert level.text == (
        "100.0 kB/s over 2 gateways: 47.0 kB/s used here, others aren't heard, the share of this gateway is now"
        " 50.0 kB/s (94%)"
    )
    assert level.headroom == pytest.approx(3e3), "and not all that it can't see"
    assert not fleet.scaled_by(0.5).hears_others


def test_a_sum_that_decides_in_words() -> None:
    """Thresholds that reject go by what all gateways bring."""
    level = LimitLevel(
        "a total", "file", WHOLE, WHOLE, 94e3, whole=WHOLE, here=47e3, fleet=FleetUse(None, {"gwb": 47e3}, 2)
    )
    assert level.text == "100.0 kB/s over 2 gateways: 94.0 kB/s used (94%) (47.0 kB/s here, 47.0 kB/s at gwb)"
    assert (level.fleet_used, level.used_here, level.utilization) == (94e3, 47e3, 0.94)
