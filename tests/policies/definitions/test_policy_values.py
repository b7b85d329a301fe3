# One policy: which keys and values can be, and how people read them.

from __future__ import annotations

import math

import pytest

from policies.definitions.policy_values import (
    InvalidPolicy,
    PolicyError,
    PolicyFault,
    PolicyKey,
    check_value,
    value_text,
)
from policies.quotas.names import QuotaKey
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY
from tests.policies.definitions.policy_play import (
    ALICE,
    ALICE_RATE,
    ALICE_SHARES,
    CLICKS,
    PRODUCE,
    TOTAL,
    TOTAL_2,
    VIEWS,
)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (CLICKS, -1, "topic clicks: -1 must be a finite number, 0 or more"),
        (CLICKS, math.nan, "must be a finite number"),
        (TOTAL, 0, "must be a finite number above 0"),
        (TOTAL_2, math.inf, "broker 2: "),
        (ALICE_RATE, 0.5, "no fractions"),
        (PolicyKey("topic", "clicks", "retention.ms"), 1, "unknown key 'retention.ms': known is bytes.in"),
        (PolicyKey("topic", "..", TOPIC_KEY), 1, "can't be a topic's name"),
        (PolicyKey("broker", "02", TOTAL_KEY), 1, "'02' is not a valid broker id"),
        (PolicyKey("broker", "-1", TOTAL_KEY), 1, "not a valid broker id"),
        (PolicyKey("broker", "2147483648", TOTAL_KEY), 1, "not a valid broker id"),
        (PolicyKey("user", "x", "y"), 1, "'user' is not a kind of policy"),  # type: ignore[arg-type]
        (PolicyKey("quota", "alice", PRODUCE.wire_name), 1, "'alice' is not a valid entity"),
        (PolicyKey("quota", ALICE.path, "bytes"), 1, "unknown quota 'bytes'"),
    ],
)
def test_an_impossible_value_is_refused_in_one_line(key: PolicyKey, value: float, text: str) -> None:
    with pytest.raises(InvalidPolicy) as error:
        check_value(key.validate_key(), value)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_values_for_people() -> None:
    percent = PolicyKey.of_quota(ALICE, QuotaKey("request_percentage", "percent"))
    assert [value_text(key, 1000) for key in (CLICKS, ALICE_RATE, ALICE_SHARES, percent)] == [
        "1,000 bytes/s", "1,000 bytes/s", "1000 shares", "1000 %",
    ]  # fmt: skip
    assert value_text(CLICKS, None) == "none"
    assert (value_text(ALICE_SHARES, 1_234_567), value_text(percent, 33.3333333)) == ("1234567 shares", "33.3333333 %")
    assert value_text(CLICKS, 0.0001) == "0.0001 bytes/s"


def test_invalid_policies_are_value_errors_as_the_doors_expect() -> None:
    assert issubclass(InvalidPolicy, ValueError)
    assert str(PolicyError([PolicyFault(CLICKS, "a"), PolicyFault(VIEWS, "b")])) == "a; b"
