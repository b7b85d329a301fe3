# One line for everybody under a limit: what is asked costs nothing, what passes is paid for by those behind it.

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.limits.limiter import (
    AT_ONCE,
    BURST_S,
    DEBT_S,
    HALF_PATIENCE_S,
    MAX_PATIENCE_S,
    MAX_WAIT_S,
    MIN_WAIT_S,
    AdmissionResult,
    QueueAdmission,
    RateLimiter,
)

RATE = 1000.0


def line(owed_s: float = 0.0, now: float = 0.0, *, own: bool = False) -> RateLimiter:
    made = RateLimiter(RATE, now, own=own)
    if owed_s:
        made.charge_amount(round(owed_s * RATE), now)
    return made


def test_asking_takes_nothing() -> None:
    one = line()
    assert [one.check_admission(500, 0.0, True, 0.0) for _ in range(3)] == [AdmissionResult(True, 0.5)] * 3


def test_a_taker_waits_as_long_as_those_behind_would_have_to() -> None:
    one = line()
    waits = []
    for _ in range(3):
        waits.append(one.check_admission(500, 0.0, True, 0.0).wait_s)
        one.charge_amount(500, 0.0)
    assert waits == pytest.approx([0.5, 1.0, 1.5])


def test_waits_too_short_for_a_timer_are_left_to_the_next_one() -> None:
    assert line().check_admission(round(MIN_WAIT_S * RATE) - 1, 0.0, True, 0.0) is AT_ONCE
    assert line().check_admission(round(MIN_WAIT_S * RATE) + 1, 0.0, True, 0.0).wait_s == pytest.approx(0.011)


def test_an_idle_second_is_saved_up_and_no_more() -> None:
    assert line().check_admission(1000, 60.0, True, 0.0) is AT_ONCE
    assert line().check_admission(1500, 60.0, True, 0.0) == AdmissionResult(True, 0.5)


def test_one_request_larger_than_anything_that_can_be_paid_for_passes_when_none_is_before_it() -> None:
    huge = round(2 * DEBT_S * RATE)
    assert line().check_admission(huge, 0.0, True, 0.0) == AdmissionResult(True, DEBT_S)
    assert not line(owed_s=1).check_admission(huge, 0.0, True, 0.0).admitted


def test_requests_without_room_come_back_spread_over_half_the_longest_wait() -> None:
    full = line(owed_s=MAX_WAIT_S + 0.1)
    answers = [full.check_admission(1, 0.0, True, 0.0) for _ in range(20)]
    assert {answer.admitted for answer in answers} == {False}
    waits = sorted(answer.wait_s for answer in answers)
    assert MAX_WAIT_S / 2 <= waits[0] < waits[-1] <= MAX_WAIT_S
    assert max(b - a for a, b in pairwise(waits)) < MAX_WAIT_S / 10


def test_a_client_turned_away_for_long_finds_room_in_a_longer_line() -> None:
    full = line(owed_s=MAX_WAIT_S + MAX_PATIENCE_S / 2 - 0.1)
    assert not full.check_admission(1, 0.0, True, 0.0).admitted
    assert full.check_admission(1, 0.0, True, HALF_PATIENCE_S).admitted


def test_a_connection_that_may_not_wait_is_turned_away_only_if_it_had_to() -> None:
    assert line(owed_s=1).check_admission(1, 0.0, False, 0.0) == AdmissionResult(False, 1.0, late=True)
    assert line().check_admission(500, 0.0, False, 0.0).admitted


@pytest.mark.parametrize(("owed_s", "admitted"), [(1.0, True), (DEBT_S, True), (DEBT_S + 0.001, False)])
def test_who_can_not_wait_any_longer_passes_where_it_waits_for_itself_only(owed_s: float, admitted: bool) -> None:
    own = line(owed_s, own=True).check_admission(20 * 1000, 0.0, False, 0.0)
    assert own.admitted is admitted
    assert not admitted or own.wait_s == owed_s + 20.0
    assert not line(min(owed_s, DEBT_S)).check_admission(1, 0.0, False, 0.0).admitted, "others would wait for it"


def test_among_strangers_a_client_waits_for_itself_while_nobody_else_asks() -> None:
    one = line(owed_s=DEBT_S)
    assert not one.check_admission(1, 0.0, False, 0.0).admitted, "it isn't known who asks"
    assert one.check_admission(1, 0.0, False, 0.0, "a").admitted
    one.check_admission(1, 5.0, True, 0.0, "b")
    assert not one.check_admission(1, 6.0, False, 0.0, "a").admitted
    one.charge_amount(10_000, 30.0)
    assert not one.check_admission(1, 6.0 + DEBT_S - 0.1, False, 0.0, "a").admitted
    assert one.check_admission(1, 6.0 + DEBT_S, False, 0.0, "a").admitted


@given(st.lists(st.tuples(st.integers(1, 40_000), st.floats(0, 3)), min_size=1, max_size=60))
def test_alone_among_strangers_it_never_owes_more_than_they_would_wait_for_twice(
    steps: list[tuple[int, float]],
) -> None:
    one, now, passed = line(), 0.0, 0
    for size, pause in steps:
        now += pause
        if one.check_admission(size, now, False, 0.0, "a").admitted:
            one.charge_amount(size, now)
            passed += size
    assert passed <= RATE * (now + BURST_S + 2 * DEBT_S) + max(size for size, _ in steps) + 1e-6


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 3), st.booleans()), min_size=1, max_size=60))
def test_who_can_never_wait_gets_what_it_may_owe_in_advance_and_no_more_than_the_rate(
    steps: list[tuple[int, float, bool]],
) -> None:
    one, now, passed = line(own=True), 0.0, 0
    for size, pause, may_wait in steps:
        now += pause
        if one.check_admission(size, now, may_wait, 0.0).admitted:
            one.charge_amount(size, now)
            passed += size
    largest = max(size for size, _, _ in steps)
    assert passed <= RATE * (now + BURST_S + DEBT_S) + largest + 1e-6


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 3)), min_size=1, max_size=60))
def test_the_bytes_that_pass_never_exceed_the_rate_by_more_than_the_burst_and_the_room(
    steps: list[tuple[int, float]],
) -> None:
    one, now, passed = RateLimiter(RATE, 0.0), 0.0, 0
    for size, pause in steps:
        now += pause
        if one.check_admission(size, now, True, 0.0).admitted:
            one.charge_amount(size, now)
            passed += size
    largest = max(size for size, _ in steps)
    assert passed <= RATE * (now + 1.0 + MAX_WAIT_S) + largest


def admitted(one: RateLimiter, size: int, seconds: int, step: float = 0.1) -> int:
    """Bytes that pass when somebody who obeys no wait sends such requests over any number of connections."""
    passed = 0
    for number in range(round(seconds / step)):
        now = number * step
        while one.check_admission(size, now, True, 0.0).admitted:
            one.charge_amount(size, now)
            passed += size
    return passed


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("of_a_second", [0.001, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 31.0, 64.0, 640.0, 10_000.0])
def test_requests_of_no_size_evade_a_limit(of_a_second: float, own: bool) -> None:
    size = round(of_a_second * RATE)
    assert admitted(RateLimiter(RATE, 0.0, own=own), size, 120) <= 1.1 * RATE * 120 + RATE * BURST_S + size


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("of_a_second", [31.0, 64.0, 300.0, 601.0, 3_000.0])
def test_in_the_long_run_every_byte_is_paid_for(of_a_second: float, own: bool) -> None:
    size = round(of_a_second * RATE)
    assert admitted(RateLimiter(RATE, 0.0, own=own), size, 20_000, 1.0) <= RATE * (20_000 + MAX_WAIT_S) + size


def test_an_entity_waits_for_all_that_it_took() -> None:
    own = RateLimiter(RATE, 0.0, own=True)
    own.charge_amount(round(100_000 * RATE), 0.0)
    assert not own.check_admission(1, 100_000 - MAX_WAIT_S - 0.1, True, 0.0).admitted
    assert own.check_admission(1, 100_000 - MAX_WAIT_S + 0.1, True, 0.0).admitted


def test_strangers_wait_no_longer_for_one_of_them_than_the_bound() -> None:
    one = line()
    one.charge_amount(round(100 * DEBT_S * RATE), 0.0)
    assert not one.check_admission(1, DEBT_S - MAX_WAIT_S - 0.1, True, 0.0).admitted
    assert one.check_admission(1, DEBT_S - MAX_WAIT_S + 0.1, True, 0.0).admitted


def test_bytes_strangers_do_not_wait_for_are_paid_from_the_rest_they_leave() -> None:
    huge = round(2 * DEBT_S * RATE)
    one = line()
    one.charge_amount(huge, 0.0)
    for second in range(round(DEBT_S), 100):  # they take all there is
        assert one.check_admission(round(RATE), float(second), True, 0.0).admitted
        one.charge_amount(round(RATE), float(second))
    paid = 100.0 + DEBT_S + BURST_S  # seconds: the last one's debt, the saved second, and what they didn't wait for
    assert not one.check_admission(huge, paid - 0.5, True, 0.0).admitted
    assert one.check_admission(huge, paid + 0.5, True, 0.0).admitted


def test_a_door_knows_no_rate() -> None:
    assert QueueAdmission().find_refusal(0.0, 1.0, True, 0.0) is None
