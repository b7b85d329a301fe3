# Our part of a fleet's limits: what it is, what becomes of it when nobody says anything, and how short a wait is while
# it is provisional.

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fleet.lines import SHARED_BURST_S, FleetLine, OurParts
from policies.fleet.shares import FLOORS, Part
from policies.limits.line import DEBT_S, MAX_WAIT_S, Line

KEY = '["t",1]'
LIMIT = 1200.0
SETTLE_S = 2.0


def fleet(members: int = 3, part: tuple[float, float] | None = None) -> OurParts:
    made = OurParts()
    made.tell({} if part is None else {KEY: Part(*part)}, members, SETTLE_S, 0.0)
    return made


def line(of: OurParts, factor: float = 1.0) -> FleetLine:
    return FleetLine(of, KEY, LIMIT, factor, 0.0)


def test_alone_every_limit_is_whole_whatever_parts_there_were() -> None:
    made = fleet(1, part=(10.0, 5.0))
    assert made.share(KEY, LIMIT) == LIMIT
    assert made.fraction(KEY, LIMIT) == 1.0
    assert line(made).bucket.rate == LIMIT


def test_of_a_part_a_quarter_of_a_second_is_saved_and_of_a_whole_limit_a_second() -> None:
    """Or what all members saved would come in one second."""
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


def test_what_others_have_by_now_is_no_part_any_more() -> None:
    """A floor is left, of what had no part yet as well; and nothing of the old parts comes back."""
    made = fleet(4)
    one, other = line(made), FleetLine(made, "other", LIMIT, 1.0, 0.0)
    made.tell({KEY: Part(900.0, 300.0)}, 4, SETTLE_S, 1.0)
    made.lose(5.0)
    assert one.bucket.rate == other.bucket.rate == FLOORS * LIMIT / 4
    assert made.falls_back
    made.tell({}, 4, SETTLE_S, 6.0)
    assert one.bucket.rate == other.bucket.rate == LIMIT / 4
    assert not made.falls_back


def test_nobody_waits_long_for_a_floor_that_may_be_over_soon() -> None:
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


def test_an_entity_keeps_its_debt_when_its_part_has_gone_for_a_while() -> None:
    # It sends where it is idle meanwhile, and would come back to nothing owed.
    made = fleet(3)
    one, strangers = FleetLine(made, KEY, LIMIT, 1.0, 0.0, own=True), FleetLine(made, "other", LIMIT, 1.0, 0.0)
    for each in (one, strangers):
        each.take(100 * LIMIT, 0.0)
    made.tell({KEY: Part(1.0, 1.0), "other": Part(1.0, 1.0)}, 3, SETTLE_S, 0.0)
    made.tell({KEY: Part(LIMIT, LIMIT), "other": Part(LIMIT, LIMIT)}, 3, SETTLE_S, 0.0)
    assert one.bucket.level(0.0) == -100 * LIMIT
    assert strangers.bucket.level(0.0) == -DEBT_S


def test_an_entity_keeps_its_debt_when_the_factor_falls() -> None:
    one = FleetLine(OurParts(), KEY, LIMIT, 1.0, 0.0, own=True)
    one.take(100 * LIMIT, 0.0)
    one.set_limit(LIMIT, 0.01, 0.0)
    assert one.bucket.level(0.0) == -100 * LIMIT


@pytest.mark.parametrize("own", [True, False])
def test_a_limit_that_is_cut_asks_for_as_many_seconds_and_one_that_is_raised_for_as_many_bytes(own: bool) -> None:
    one = FleetLine(OurParts(), KEY, LIMIT, 1.0, 0.0, own=own)
    one.take(8 * LIMIT, 0.0)
    one.set_limit(LIMIT / 100, 1.0, 3.0)
    assert one.bucket.wait(3.0) == pytest.approx(5.0)
    assert one.bucket.rate == LIMIT / 100
    one.set_limit(LIMIT, 1.0, 3.0)
    assert one.bucket.wait(3.0) == pytest.approx(0.05)


def test_a_limit_that_is_cut_leaves_credit_within_the_new_burst() -> None:
    one = line(OurParts())
    one.set_limit(LIMIT / 100, 1.0, 60.0)
    assert one.bucket.level(60.0) == LIMIT / 100


def test_lines_that_nobody_uses_any_more_are_forgotten() -> None:
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


def test_who_is_turned_away_by_a_provisional_rate_may_come_back_soon() -> None:
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


def test_when_somebody_joins_all_are_provisional() -> None:
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


def test_who_has_to_wait_or_is_turned_away_is_hungry() -> None:
    one = line(fleet(3))
    one.take(1, 0.0)
    assert one.ask(1, 1.0, True, 0.0).wait == 0.0
    assert not one.hungry
    one.ask(4000, 1.0, True, 0.0)
    assert one.hungry
    one.hungry = False
    one.take(400 * (MAX_WAIT_S + 5), 1.0)
    assert not one.ask(1, 1.0, True, 0.0).admitted
    assert one.hungry


def test_what_was_saved_of_a_larger_part_goes_with_it() -> None:
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
