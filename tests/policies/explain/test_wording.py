# Numbers and places as explanations have them.

from __future__ import annotations

import pytest

from policies.limits.description import amount_text, place_text, scale_text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2_400_000.0, "bytes/s", "2.4 MB/s"), (25.0, "%", "25 %"), (1234.0, "messages/s", "1,234 messages/s"),
        (0.25, "messages/s", "0.25 messages/s"),
    ],
)  # fmt: skip
def test_numbers_have_their_units(value: float, unit: str, text: str) -> None:
    assert amount_text(unit)(value) == text


def test_a_place_is_one_broker_or_each() -> None:
    assert (place_text(3), place_text(None)) == ("broker 3", "each broker")


def test_a_factor_of_one_is_not_worth_a_word() -> None:
    assert (scale_text(1.0), scale_text(0.5)) == ("", "times the storage factor 0.5")
