from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.limits.bucket import TokenBucket


def bucket(rate: float = 100.0, burst_s: float = 2.0, debt_s: float = 10.0, now: float = 0.0) -> TokenBucket:
    return TokenBucket(rate, burst_s, debt_s, now)


def test_it_starts_with_the_first_call_if_nothing_else_is_said() -> None:
    made = TokenBucket(100.0, 2.0, 10.0)
    assert made.token_level(1000.0) == 0
    assert made.token_level(1001.0) == 100


def test_with_a_smaller_burst_less_is_saved_up_and_savings_beyond_it_go() -> None:
    made = bucket()
    assert made.token_level(10.0) == 200
    made.set_burst(0.5, 11.0)
    assert made.token_level(20.0) == 50
    made.set_burst(2.0, 20.0)
    assert made.token_level(20.0) == 50
    assert made.token_level(30.0) == 200


def test_bytes_that_are_given_back_are_there_again_within_the_burst() -> None:
    made = bucket()
    made.consume_tokens(500, 0.0)
    assert made.consume_tokens(-500, 0.0) == 0
    assert made.token_level(0.0) == 0
    made.consume_tokens(-(10**9), 0.0)
    assert made.token_level(0.0) == 200


# --- debt that nobody waits for ---------------------------------------------------------------------------------------


def test_debt_beyond_the_bound_is_paid_from_what_could_not_be_saved() -> None:
    made = bucket()
    made.consume_tokens(1500, 0.0)
    assert (made.token_level(0.0), made.excess_debt) == (-1000, 500)
    assert made.token_level(12.0) == 200
    assert made.excess_debt == 500
    made.consume_tokens(100, 12.0)  # what is used meanwhile pays nothing
    made.consume_evenly(100, 13.0)
    assert (made.token_level(15.0), made.excess_debt) == (200, 400)
    assert not made.is_full(18.0)
    assert made.is_full(19.0)
    assert made.excess_debt == 0


def test_bytes_that_are_given_back_pay_first_the_debt_without_a_waiter() -> None:
    made = bucket()
    made.consume_tokens(1500, 0.0)
    made.refund_tokens(300)
    assert (made.token_level(0.0), made.excess_debt) == (-1000, 200)
    made.refund_tokens(300)
    assert (made.token_level(0.0), made.excess_debt) == (-900, 0)


@pytest.mark.parametrize(
    ("left", "level", "beyond"), [(2000, -1000, 500), (1200, -1000, 200), (1000, -1000, 0), (300, -300, 0)]
)
def test_forgiving_begins_with_the_debt_without_a_waiter(left: int, level: int, beyond: int) -> None:
    made = bucket()
    made.consume_tokens(1500, 0.0)
    made.forgive_debt(left)
    assert (made.token_level(0.0), made.excess_debt) == (level, beyond)


def test_credit_is_no_debt_to_forgive() -> None:
    made = bucket()
    made.consume_tokens(1500, 0.0)
    made.forgive_debt(made.token_level(12.0))
    assert (made.token_level(12.0), made.excess_debt) == (200, 200)


def test_a_bucket_without_a_bound_keeps_all_of_its_debt() -> None:
    made = bucket(debt_s=math.inf)
    made.consume_tokens(1e9, 0.0)
    made.set_rate(1.0, 0.0)
    made.set_rate(100.0, 0.0)
    assert (made.token_level(0.0), made.excess_debt) == (-1e9, 0)
    assert made.debt_wait_s(0.0) == 1e7


# --- bytes that came in meanwhile -------------------------------------------------------------------------------------


def test_even_traffic_at_the_rate_leaves_the_level_as_it_is() -> None:
    made = bucket()
    for second in range(10, 100, 10):
        made.consume_evenly(1000, float(second))
        assert made.token_level(float(second)) == 0


def test_even_traffic_below_the_rate_saves_up_one_burst_at_most() -> None:
    made = bucket()
    made.consume_evenly(900, 10.0)
    assert made.token_level(10.0) == 100
    made.consume_evenly(0, 100.0)
    assert made.token_level(100.0) == 200


def test_even_traffic_above_the_rate_is_owed_within_the_bound() -> None:
    made = bucket()
    made.consume_evenly(1100, 10.0)
    assert made.token_level(10.0) == -100
    made.consume_evenly(10**9, 20.0)
    assert made.token_level(20.0) == -1000


def test_forgiving_leaves_that_much_debt_and_touches_no_credit() -> None:
    made = bucket()
    made.consume_tokens(500, 0.0)
    made.forgive_debt(600)
    assert made.token_level(0.0) == -500
    made.forgive_debt(100)
    assert made.token_level(0.0) == -100
    made.consume_evenly(-200, 0.0)
    made.forgive_debt(0)
    assert made.token_level(0.0) == 100


# --- another rate -----------------------------------------------------------------------------------------------------


def test_a_higher_rate_pays_the_same_debt_sooner() -> None:
    made = bucket()
    made.consume_tokens(800, 0.0)
    made.set_rate(400.0, 2.0)
    assert made.token_level(2.0) == -600
    assert made.debt_wait_s(2.0) == 1.5


def test_a_lower_rate_has_a_lower_bound_of_debt_and_burst() -> None:
    made = bucket()
    made.consume_tokens(1000, 0.0)
    made.set_rate(10.0, 0.0)
    assert (made.token_level(0.0), made.debt_wait_s(0.0), made.excess_debt) == (-100, 10, 900)
    made = bucket()
    made.set_rate(10.0, 100.0)
    assert made.token_level(100.0) == 20


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_that_never_pays_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        bucket(rate)
    with pytest.raises(ValueError, match="rate"):
        bucket().set_rate(rate, 0.0)


def test_bounds_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="burst"):
        bucket(burst_s=-1)
    with pytest.raises(ValueError, match="debt"):
        bucket(debt_s=-1)


# --- strange clocks ---------------------------------------------------------------------------------------------------


def test_a_clock_that_steps_back_neither_gives_nor_stops() -> None:
    """apache/pulsar#23930: after a step back limits throttled until the clock had caught up."""
    made = bucket(now=1000.0)
    made.consume_tokens(300, 1000.0)
    assert made.token_level(400.0) == -300
    assert made.token_level(401.0) == -200
    made.consume_evenly(0, 100.0)
    assert made.token_level(100.0) == -200


# --- in the long run --------------------------------------------------------------------------------------------------

sizes = st.lists(st.integers(1, 900), min_size=20, max_size=60)


@given(sizes)
def test_a_taker_that_waits_as_told_gets_the_rate_exactly(sizes: list[int]) -> None:
    made, now = bucket(), 0.0
    for size in sizes:
        now += made.consume_tokens(size, now)
    assert now == pytest.approx(sum(sizes) / 100)


PAUSES = st.floats(0, 5) | st.sampled_from([0.0, 1e9])


@given(st.lists(st.tuples(st.integers(0, 400) | st.integers(900, 10**9), PAUSES), max_size=60))
def test_the_level_is_what_came_in_less_what_was_taken_within_the_bounds(steps: list[tuple[int, float]]) -> None:
    """Unbounded debts stalled producers for minutes: apache/pulsar#24001."""
    made, now, level = bucket(), 0.0, 0.0
    assert made.token_level(0.0) == 0
    for size, pause in steps:
        now += pause
        level = max(min(200.0, level + 100 * pause) - size, -1000.0)
        assert made.consume_tokens(size, now) == pytest.approx(max(0.0, -level / 100), abs=1e-6)
        assert made.token_level(now) == pytest.approx(level, abs=1e-4)
        assert made.debt_wait_s(now) == pytest.approx(max(0.0, -level / 100), abs=1e-6)
        assert made.in_debt is (made.token_level(now) < 0)
