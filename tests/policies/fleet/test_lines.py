# Our gateway's part of a fleet's limits: what it is, what becomes of it when nobody says anything, how short a wait is
# while it is provisional, and who wants more of it.

from __future__ import annotations

import gc
import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fleet.lines import HUNGER_S, SHARED_BURST_S, USED_UP_S, FleetLine, OurParts
from policies.fleet.shares import FLOORS, Part
from policies.limits.line import DEBT_S, MAX_WAIT_S, Line

KEY = '["t",1]'
LIMIT = 1200.0
SETTLE_S = 2.0


def fleet(gateways: int = 3, part: tuple[float, float] | None = None) -> OurParts:
    made = OurParts()
    made.tell({} if part is None else {KEY: Part(*part)}, gateways, SETTLE_S, 0.0)
    return made


def line(of: OurParts, factor: float = 1.0) -> FleetLine:
    return FleetLine(of, KEY, LIMIT, factor, 0.0)


def test_alone_every_limit_is_whole_after_any_parts() -> None:
    made = fleet(1, part=(10.0, 5.0))
    assert made.share(KEY, LIMIT) == LIMIT
    assert made.fraction(KEY, LIMIT) == 1.0
    assert line(made).bucket.rate == LIMIT


def test_of_a_part_a_quarter_of_a_second_is_saved_and_of_a_whole_limit_a_second() -> None:
    """Or the savings of all gateways would come in one second."""
    made = fleet(3)
    one = line(made)
    assert one.bucket.level(10.0) == 100
    made.tell({}, 1, SETTLE_S, 10.0)
    assert one.bucket.level(20.0) == LIMIT
    made.tell({KEY: Part(600.0, 400.0)}, 2, SETTLE_S, 20.0)
    assert one.bucket.level(20.0) == 150


def test_without_a_part_one_begins_with_an_even_share() -> None:
    assert fleet(3).share(KEY, LIMIT) == 400


def test_a_part_is_ours_as_told_times_the_factor() -> None:
    one = line(fleet(3, part=(900.0, 400.0)), factor=0.5)
    assert one.bucket.rate == 450
    assert one.fleet.fraction(KEY, LIMIT) == 0.75


def test_a_part_of_a_limit_that_was_lowered_is_never_more_than_the_limit() -> None:
    one = line(fleet(3, part=(900.0, 400.0)))
    one.set_limit(300.0, 1.0, 0.0)
    assert one.bucket.rate == 300


def test_parts_that_change_or_go_or_fall_back_reach_the_lines() -> None:
    made = fleet(3)
    one = line(made)
    made.tell({KEY: Part(900.0, 100.0)}, 3, SETTLE_S, 1.0)
    assert one.bucket.rate == 900
    made.fall_back(2.0)
    assert one.bucket.rate == 100
    made.tell({}, 3, SETTLE_S, 3.0)
    assert one.bucket.rate == 900
    made.tell({KEY: Part(-1.0, -1.0)}, 3, SETTLE_S, 4.0)
    assert one.bucket.rate == 400
    made.tell({}, 1, SETTLE_S, 5.0)
    assert one.bucket.rate == LIMIT


def test_a_part_that_others_have_by_now_is_gone() -> None:
    """A floor is left, for limits without a part yet as well; and nothing of the old parts comes back."""
    made = fleet(4)
    one, other = line(made), FleetLine(made, "other", LIMIT, 1.0, 0.0)
    made.tell({KEY: Part(900.0, 300.0)}, 4, SETTLE_S, 1.0)
    made.lose(5.0)
    assert one.bucket.rate == other.bucket.rate == FLOORS * LIMIT / 4
    assert made.falls_back
    made.tell({}, 4, SETTLE_S, 6.0)
    assert one.bucket.rate == other.bucket.rate == LIMIT / 4
    assert not made.falls_back


def test_no_client_waits_long_for_a_floor_that_may_be_over_soon() -> None:
    made = fleet(4)
    one = line(made)
    made.tell({KEY: Part(900.0, 300.0)}, 4, SETTLE_S, 0.0)
    for tenth in range(100):
        one.take(90, tenth / 10)
    one.take(500, 10.0)
    made.lose(10.0)
    assert one.wait(10.0) == SETTLE_S
    one.take(10, 11.9)
    assert one.wait(11.9) == SETTLE_S
    one.take(10, 12.1)
    assert one.wait(12.1) > 2 * SETTLE_S


def test_the_debt_stays_the_same_bytes_when_the_part_changes() -> None:
    made = fleet(3)
    one = line(made)
    one.take(4000, 0.0)
    made.tell({KEY: Part(800.0, 400.0)}, 3, SETTLE_S, 0.0)
    assert one.bucket.level(0.0) == -4000


def test_debts_are_waited_for_when_the_part_has_gone_for_a_while() -> None:
    # It sends where it is idle meanwhile, and would come back to nothing owed.
    made = fleet(3)
    one, strangers = FleetLine(made, KEY, LIMIT, 1.0, 0.0, own=True), FleetLine(made, "other", LIMIT, 1.0, 0.0)
    for each in (one, strangers):
        each.take(100 * LIMIT, 0.0)
    made.tell({KEY: Part(1.0, 1.0), "other": Part(1.0, 1.0)}, 3, SETTLE_S, 0.0)
    made.tell({KEY: Part(LIMIT, LIMIT), "other": Part(LIMIT, LIMIT)}, 3, SETTLE_S, 0.0)
    assert one.bucket.level(0.0) == -100 * LIMIT
    assert strangers.bucket.level(0.0) == -DEBT_S * LIMIT  # of their present part


def test_an_entity_keeps_its_debt_when_the_factor_falls() -> None:
    one = FleetLine(OurParts(), KEY, LIMIT, 1.0, 0.0, own=True)
    one.take(100 * LIMIT, 0.0)
    one.set_limit(LIMIT, 0.01, 0.0)
    assert one.bucket.level(0.0) == -100 * LIMIT


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("owed_s", "after_s"), [(0.0, 0.0), (0.01, 1.0), (5.0, 10.0), (10.0, 10.0), (25.0, 25.0)])
def test_a_limit_that_is_cut_asks_for_the_same_bytes_but_not_for_longer_than_any_client_waits(
    owed_s: float, after_s: float, own: bool
) -> None:
    one = FleetLine(OurParts(), KEY, LIMIT, 1.0, 0.0, own=own)
    one.take((3 + owed_s) * LIMIT, 0.0)
    one.set_limit(LIMIT / 100, 1.0, 3.0)
    assert one.bucket.wait(3.0) == pytest.approx(after_s)
    assert one.bucket.rate == LIMIT / 100


def test_a_limit_that_is_raised_asks_for_the_same_bytes() -> None:
    one = line(OurParts())
    one.take(8 * LIMIT, 0.0)
    one.set_limit(LIMIT * 100, 1.0, 3.0)
    assert one.bucket.wait(3.0) == pytest.approx(0.05)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("cut", [0.5, 0.1, 0.01])
@pytest.mark.parametrize(("connections", "of_a_second"), [(1, 0.01), (20, 0.01), (50, 0.1), (200, 0.1), (200, 0.001)])
def test_a_limit_that_is_cut_takes_effect_within_a_second(
    connections: int, of_a_second: float, cut: float, own: bool
) -> None:
    """Neither more passes than it says, nor nothing because of what was taken before; but for whole requests."""
    size, limit = of_a_second * LIMIT, LIMIT * cut
    one = FleetLine(OurParts(), KEY, LIMIT, 1.0, 0.0, own=own)
    turns = [(number * 0.01, number, 0.0) for number in range(connections)]
    passed: list[float] = []  # when each request did
    while turns[0][0] < 90.0:
        now, number, denied_since = turns[0]
        if now >= 30.0 and one.limit == LIMIT:
            one.set_limit(limit, 1.0, 30.0)
        answer = one.ask(size, now, True, now - denied_since if denied_since else 0.0)
        if answer.admitted:
            one.take(size, now)
            passed.append(now)
        wait = max(0.001, min(answer.wait, MAX_WAIT_S))
        heapq.heapreplace(turns, (now + wait, number, 0.0 if answer.admitted else denied_since or now))
    for seconds in (2, 5, 10, 20, 60):
        since = size * sum(30.0 <= at < 30.0 + seconds for at in passed)
        assert since <= 1.05 * limit * seconds + 2 * size
        assert seconds < 20 or since >= 0.9 * limit * seconds - 2 * size


def test_a_limit_that_is_cut_leaves_credit_within_the_new_burst() -> None:
    one = line(OurParts())
    one.set_limit(LIMIT / 100, 1.0, 60.0)
    assert one.bucket.level(60.0) == LIMIT / 100


def test_lines_no_longer_used_are_forgotten() -> None:
    made = fleet(3)
    one = line(made)
    assert list(made.lines) == [KEY]
    del one
    gc.collect()
    assert not made.lines


def test_alone_a_line_waits_as_any_other() -> None:
    one, plain = line(OurParts()), Line(LIMIT, 0.0)
    for now in (0.0, 0.1, 5.0, 5.2, 5.4):
        assert one.ask(5000, now, True, 0.0) == plain.ask(5000, now, True, 0.0)
        one.take(5000, now)
        plain.take(5000, now)


def test_a_wait_for_a_line_that_became_busy_just_now_is_short_and_the_debt_stays() -> None:
    one = line(fleet(3))
    assert one.ask(3200, 0.0, True, 0.0).wait == SETTLE_S
    one.take(3200, 0.0)
    assert one.bucket.wait(0.0) == 8.0
    assert one.wait(0.0) == SETTLE_S
    assert one.ask(4, 1.9, True, 0.0).wait == SETTLE_S
    assert one.ask(4, 2.0, True, 0.0).wait == pytest.approx(6.01)


def test_a_client_turned_away_by_a_provisional_rate_may_come_back_soon() -> None:
    one = line(fleet(3))
    one.take(12_000, 0.0)
    answer = one.ask(400, 0.5, True, 0.0)
    assert not answer.admitted
    assert answer.wait == SETTLE_S


def test_a_line_that_is_used_all_the_time_is_not_provisional() -> None:
    one = line(fleet(3))
    for tenth in range(50):
        one.take(40, tenth / 10)
    one.take(2000, 5.0)
    assert one.wait(5.0) > SETTLE_S


def test_after_a_pause_it_is_provisional_again() -> None:
    one = line(fleet(3))
    one.take(1, 0.0)
    one.take(1, 2.0)
    assert one.ask(4000, 4.1, True, 0.0).wait == SETTLE_S


def test_when_a_gateway_joins_all_are_provisional() -> None:
    made = fleet(3)
    one = line(made)
    for tenth in range(50):
        one.take(40, tenth / 10)
    made.tell({}, 4, SETTLE_S, 5.0)
    assert one.ask(4000, 5.0, True, 0.0).wait == SETTLE_S


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 20_000)), min_size=1, max_size=40),
    st.floats(10.0, 2000.0),
)
def test_provisional_or_not_the_debt_is_that_of_a_line_of_that_rate(
    takes: list[tuple[float, int]], part: float
) -> None:
    made = OurParts()
    made.tell({KEY: Part(part, part)}, 3, SETTLE_S, 0.0)
    one, plain, now = line(made), Line(min(part, LIMIT), 0.0), 0.0
    plain.bucket.set_burst(SHARED_BURST_S, now)
    for pause, size in takes:
        now += pause
        short, full = one.ask(size, now, True, 0.0), plain.ask(size, now, True, 0.0)
        assert short.admitted == full.admitted
        assert short.wait <= full.wait
        if short.admitted:
            one.take(size, now)
            plain.take(size, now)
        assert one.bucket.level(now) == pytest.approx(plain.bucket.level(now))


# --- who wants more ---------------------------------------------------------------------------------------------------


def test_a_request_that_is_large_for_its_line_waits_for_itself_and_wants_no_more() -> None:
    one = line(fleet(3))
    assert one.ask(1000, 1.0, True, 0.0).wait > 0
    one.take(1000, 1.0)
    assert one.hold(1.0) > 0
    assert one.hungry_until == -math.inf


def test_a_client_that_finds_a_line_used_up_wants_more_for_as_long_as_it_waits() -> None:
    one = line(fleet(3))
    for tenth in range(20):
        one.take(40, tenth / 10)
    one.take(400, 2.0)
    wait = one.ask(40, 2.0, True, 0.0).wait
    assert wait == pytest.approx(1.1)
    assert one.hungry_until == pytest.approx(2.0 + wait + HUNGER_S)
    one.ask(40, 2.5, True, 0.0)
    assert one.hungry_until == pytest.approx(2.0 + wait + HUNGER_S), "it waits for no longer than the first one"


def test_savings_of_a_twentieth_of_a_second_are_nothing() -> None:
    for level, hungry in ((USED_UP_S - 0.01, True), (USED_UP_S + 0.01, False)):
        one = line(fleet(3))
        one.ask(1000, level, True, 0.0)
        assert (one.hungry_until > level) is hungry


def test_a_client_that_takes_first_and_then_waits_wants_more_only_if_the_line_was_used_up() -> None:
    """The bytes fetched, or the time spent on a request, are known afterwards."""
    one = line(fleet(3))
    one.take(500, 1.0)
    assert one.hold(1.0) > 0
    assert one.hungry_until == -math.inf
    one.take(10, 1.0)
    assert one.hungry_until == -math.inf, "it has not been held yet"
    wait = one.hold(1.0)
    assert one.hungry_until == pytest.approx(1.0 + wait + HUNGER_S)


def test_a_client_that_is_turned_away_wants_more() -> None:
    one = line(fleet(3))
    one.take(400 * (MAX_WAIT_S + 5), 0.0)
    answer = one.ask(1, 0.0, True, 0.0)
    assert not answer.admitted
    assert one.hungry_until == pytest.approx(min(answer.wait, MAX_WAIT_S) + HUNGER_S)


def test_a_client_that_waits_for_no_other_wants_no_more() -> None:
    one = line(fleet(3))
    for tenth in range(10, 100):
        assert one.ask(40, tenth / 10, True, 0.0).wait == 0.0
        one.take(40, tenth / 10)
    assert one.hungry_until == -math.inf


# --- what holds here --------------------------------------------------------------------------------------------------


def test_a_limit_over_this_gateway_alone_is_whole_among_any_number_of_them() -> None:
    made = fleet(3, part=(10.0, 5.0))
    one = FleetLine(made, KEY, LIMIT, 0.5, 0.0, is_here=True)
    assert one.in_force == LIMIT / 2
    assert not made.lines, "nobody deals parts of it out"
    made.lose(1.0)
    one.retune(1.0)
    assert one.in_force == LIMIT / 2
    one.take(10 * LIMIT, 1.0)
    assert one.wait(1.0) > 2 * SETTLE_S, "its rate is never provisional"


# --- what was saved ---------------------------------------------------------------------------------------------------


def test_the_savings_of_a_larger_part_go_with_it() -> None:
    made = fleet(2, part=(600.0, 600.0))
    one = line(made)
    assert one.bucket.level(1.0) == 150
    made.tell({KEY: Part(300.0, 600.0)}, 2, SETTLE_S, 1.0)
    assert one.bucket.level(1.0) == 75


def test_alone_nothing_that_was_saved_is_lost() -> None:
    one = line(fleet(1))
    assert one.bucket.level(1.0) == LIMIT
    one.set_limit(LIMIT, 0.5, 1.0)
    assert one.bucket.level(1.0) == LIMIT / 2
