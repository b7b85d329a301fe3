from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.thresholds.values import ThresholdError, Thresholds, check

rates = st.floats(0, 1e9)


@given(st.floats(1, 1e10), st.dictionaries(st.text(min_size=1, max_size=3), rates, max_size=6))
def test_a_sum_above_the_total_is_refused_and_no_other(total: float, topics: dict[str, float]) -> None:
    if math.fsum(topics.values()) > total:
        with pytest.raises(ThresholdError):
            check(total, topics)
    else:
        check(total, topics)


def test_twenty_tenths_are_two_though_adding_them_up_one_by_one_says_more() -> None:
    check(2.0, {f"t{i}": 0.1 for i in range(20)})
    with pytest.raises(ThresholdError, match=r"by 0\.100 bytes/s"):
        check(2.0, {f"t{i}": 0.1 for i in range(21)})


def test_the_message_says_by_how_much_and_what_would_be_right() -> None:
    with pytest.raises(ThresholdError) as refused:
        check(20_000_000, {"clicks": 15_000_000, "views": 5_000_001})
    assert str(refused.value) == (
        "the topics' bytes.in.per.sec.threshold sum up to 20,000,001 bytes/s, which exceeds"
        " total.bytes.in.per.sec.threshold = 20,000,000 bytes/s by 1 bytes/s: lower some of them, or raise the total to"
        " at least 20,000,001 bytes/s"
    )


@pytest.mark.parametrize("total", [0, -1, math.inf, math.nan])
def test_a_total_that_is_no_rate_is_refused(total: float) -> None:
    with pytest.raises(ThresholdError, match=r"total\.bytes\.in\.per\.sec\.threshold"):
        check(total, {})


@pytest.mark.parametrize("value", [1e308, 2.0**63 + 2048, 10**400])
def test_what_is_larger_than_a_long_is_refused_in_a_short_line(value: float) -> None:
    for total, topics in ((value, {}), (None, {"a": value, "b": value})):
        with pytest.raises(ThresholdError, match="at most 9223372036854775807") as refused:
            check(total, topics)
        assert len(str(refused.value)) < 200
    check(float(2**63 - 1), {})
    assert Thresholds(None, {f"t{i}": float(2**63 - 1) for i in range(1000)}).warnings()


@pytest.mark.parametrize("threshold", [-1, math.inf, math.nan])
def test_a_topic_threshold_that_is_no_rate_is_refused_by_name(threshold: float) -> None:
    with pytest.raises(ThresholdError, match="of topic clicks"):
        check(None, {"clicks": threshold})


def test_without_a_total_any_sum_is_allowed_and_nothing_is_shared() -> None:
    thresholds = Thresholds(None, {"clicks": 1e12, "views": 1e12})
    assert thresholds.share(3) is None


@given(st.floats(1, 1e10), st.floats(0, 1), st.integers(1, 10_000))
def test_shares_and_explicit_thresholds_make_up_the_total(total: float, used: float, topics: int) -> None:
    thresholds = Thresholds(total, {"clicks": total * used})
    share = thresholds.share(topics)
    assert share is not None
    assert share * topics + total * used == pytest.approx(total)


def test_the_first_topic_without_a_threshold_gets_all_that_is_left() -> None:
    assert Thresholds(20.0, {"clicks": 5.0}).share(0) == 15.0


def test_a_deleted_topic_leaves_the_sum_that_others_share() -> None:
    assert Thresholds(20.0, {"clicks": 5.0, "old": 5.0}, gone={b"old"}).share(1) == 15.0


def test_a_share_of_zero_is_warned_about() -> None:
    (warning,) = Thresholds(20.0, {"clicks": 20.0}).warnings()
    assert "implicit threshold of every other topic is 0" in warning
    assert Thresholds(20.0, {"clicks": 19.0}).warnings() == ()


def test_topic_thresholds_without_a_total_are_warned_about() -> None:
    (warning,) = Thresholds(None, {"clicks": 20.0}).warnings()
    assert "nothing is ever rejected" in warning
    assert Thresholds(None, {}).warnings() == ()
