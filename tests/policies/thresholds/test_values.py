# Which numbers can be thresholds, and what is said of those that can't.

from __future__ import annotations

import math

import pytest

from policies.thresholds.values import (
    ThresholdError,
    check_single_thresholds,
    check_thresholds,
    excess_text,
    used_up_text,
    without_total_text,
)


@pytest.mark.parametrize("total", [0, -1, math.inf, math.nan])
def test_a_total_that_is_no_rate_is_refused(total: float) -> None:
    with pytest.raises(ThresholdError, match=r"total\.bytes\.in\.per\.sec\.threshold"):
        check_thresholds(total, {})


@pytest.mark.parametrize("value", [1e308, 2.0**63 + 2048, 10**400])
def test_a_value_larger_than_a_long_is_refused_in_a_short_line(value: float) -> None:
    for total, topics in ((value, {}), (None, {"a": value, "b": value})):
        with pytest.raises(ThresholdError, match="at most 9223372036854775807") as refused:
            check_thresholds(total, topics)
        assert len(str(refused.value)) < 200
    check_thresholds(float(2**63 - 1), {f"t{i}": float(2**63 - 1) for i in range(1000)})


@pytest.mark.parametrize("threshold", [-1, math.inf, math.nan])
def test_a_topic_threshold_that_is_no_rate_is_refused_by_name(threshold: float) -> None:
    with pytest.raises(ThresholdError, match="of topic clicks"):
        check_thresholds(None, {"clicks": threshold})


def test_a_topic_that_would_fit_on_no_broker_is_refused_and_others_not() -> None:
    check_single_thresholds([10.0, 20.0], {"clicks": 20.0, "views": 20.0})
    check_single_thresholds([], {"clicks": 1e12})
    with pytest.raises(ThresholdError) as refused:
        check_single_thresholds([10_000_000, 20_000_000], {"clicks": 20_000_001})
    assert str(refused.value) == (
        "bytes.in.per.sec.threshold of topic clicks is 20,000,001 bytes/s, which exceeds"
        " total.bytes.in.per.sec.threshold = 20,000,000 bytes/s by 1 bytes/s: lower it, or raise the total of a broker"
        " that is to have it"
    )


def test_the_message_says_by_how_much_and_what_would_be_right() -> None:
    assert excess_text(20_000_001, 20_000_000) == (
        "the topics' bytes.in.per.sec.threshold sum up to 20,000,001 bytes/s, which exceeds"
        " total.bytes.in.per.sec.threshold = 20,000,000 bytes/s by 1 bytes/s: lower some of them, or raise the total to"
        " at least 20,000,001 bytes/s"
    )


def test_a_hardly_meant_value_is_said_with_the_key_that_is_missing_or_used_up() -> None:
    assert "implicit threshold of every other topic is 0" in used_up_text(20.0)
    assert "but without total.bytes.in.per.sec.threshold nothing is ever rejected" in without_total_text(3)
