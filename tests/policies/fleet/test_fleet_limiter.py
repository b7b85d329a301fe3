# Our gateway's part of a fleet's limits: what it is, what becomes of it when nobody says anything, how short a wait is
# while it is provisional, and who wants more of it.

from __future__ import annotations

import gc
import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fleet.fleet_limiter import HUNGER_S, SHARED_BURST_S, USED_UP_S, FleetLimiter, FleetShares
from policies.fleet.shares import FLOORS, ShareGrant
from policies.limits.limiter import DEBT_S, MAX_WAIT_S, RateLimiter
from tests.examples import matrix

KEY = '["t",1]'
LIMIT = 1200.0
SETTLE_S = 2.0


def fleet(gateways: int = 3, part: tuple[float, float] | None = None) -> FleetShares:
    made = FleetShares()
    made.update_grants({} if part is None else {KEY: ShareGrant(*part)}, gateways, SETTLE_S, 0.0)
    return made


def line(of: FleetShares, factor: float = 1.0) -> FleetLimiter:
    return FleetLimiter(of, KEY, LIMIT, factor, 0.0)


def test_alone_every_limit_is_whole_after_any_parts() -> None:
    made = fleet(1, part=(10.0, 5.0))
    assert made.share_of(KEY, LIMIT) == LIMIT
    assert made.share_of(KEY, LIMIT) == LIMIT
    assert line(made).bucket.rate == LIMIT


def test_of_a_part_a_quarter_of_a_second_is_saved_and_of_a_whole_limit_a_second() -> None:
    """Or the savings of all gateways would come in one second; those of a larger part go with it."""
    made = fleet(3)
    one = line(made)
    assert one.bucket.token_level(10.0) == 100
    made.update_grants({}, 1, SETTLE_S, 10.0)
    assert one.bucket.token_level(20.0) == LIMIT
    for part, saved in ((600.0, 150), (300.0, 75)):
        made.update_grants({KEY: ShareGrant(part, 400.0)}, 2, SETTLE_S, 20.0)
        assert one.bucket.token_level(20.0) == saved


def test_a_part_is_ours_as_told_times_the_factor_or_an_even_share_and_never_more_than_the_limit() -> None:
    assert fleet(3).share_of(KEY, LIMIT) == 400
    one = line(fleet(3, part=(900.0, 400.0)), factor=0.5)
    assert one.bucket.rate == 450
    assert one.fleet.share_of(KEY, LIMIT) == 0.75 * LIMIT
    one.set_limit(300.0, 1.0, 0.0)
    assert one.bucket.rate == 300


def test_parts_that_change_or_go_or_fall_back_reach_the_lines() -> None:
    made = fleet(3)
    one = line(made)
    made.update_grants({KEY: ShareGrant(900.0, 100.0)}, 3, SETTLE_S, 1.0)
    assert one.bucket.rate == 900
    made.use_fallback(2.0)
    assert one.bucket.rate == 100
    made.update_grants({}, 3, SETTLE_S, 3.0)
    assert one.bucket.rate == 900
    made.update_grants({KEY: ShareGrant(-1.0, -1.0)}, 3, SETTLE_S, 4.0)
    assert one.bucket.rate == 400
    made.update_grants({}, 1, SETTLE_S, 5.0)
    assert one.bucket.rate == LIMIT


def test_a_part_that_others_have_by_now_is_gone() -> None:
    """A floor is left, for limits without a part yet as well; and nothing of the old parts comes back."""
    made = fleet(4)
    one, other = line(made), FleetLimiter(made, "other", LIMIT, 1.0, 0.0)
    made.update_grants({KEY: ShareGrant(900.0, 300.0)}, 4, SETTLE_S, 1.0)
    made.revoke_grants(5.0)
    assert one.bucket.rate == other.bucket.rate == FLOORS * LIMIT / 4
    assert made.uses_fallback
    made.update_grants({}, 4, SETTLE_S, 6.0)
    assert one.bucket.rate == other.bucket.rate == LIMIT / 4
    assert not made.uses_fallback


def test_no_client_waits_long_for_a_floor_that_may_be_over_soon() -> None:
    made = fleet(4)
    one = line(made)
    made.update_grants({KEY: ShareGrant(900.0, 300.0)}, 4, SETTLE_S, 0.0)
    for tenth in range(100):
        one.charge_amount(90, tenth / 10)
    one.charge_amount(500, 10.0)
    made.revoke_grants(10.0)
    assert one.wait_after_charge(10.0) == SETTLE_S
    one.charge_amount(10, 11.9)
    assert one.wait_after_charge(11.9) == SETTLE_S
    one.charge_amount(10, 12.1)
    assert one.wait_after_charge(12.1) > 2 * SETTLE_S


def test_the_debt_stays_the_same_bytes_when_the_part_changes() -> None:
    made = fleet(3)
    one = line(made)
    one.charge_amount(4000, 0.0)
    made.update_grants({KEY: ShareGrant(800.0, 400.0)}, 3, SETTLE_S, 0.0)
    assert one.bucket.token_level(0.0) == -4000


def test_debts_are_waited_for_when_the_part_has_gone_for_a_while() -> None:
    # It sends where it is idle meanwhile, and would come back to nothing owed.
    made = fleet(3)
    one, strangers = FleetLimiter(made, KEY, LIMIT, 1.0, 0.0, own=True), FleetLimiter(made, "other", LIMIT, 1.0, 0.0)
    for each in (one, strangers):
        each.charge_amount(100 * LIMIT, 0.0)
    made.update_grants({KEY: ShareGrant(1.0, 1.0), "other": ShareGrant(1.0, 1.0)}, 3, SETTLE_S, 0.0)
    made.update_grants({KEY: ShareGrant(LIMIT, LIMIT), "other": ShareGrant(LIMIT, LIMIT)}, 3, SETTLE_S, 0.0)
    assert one.bucket.token_level(0.0) == -100 * LIMIT
    assert strangers.bucket.token_level(0.0) == -DEBT_S * LIMIT  # of their present part


def test_an_entity_keeps_its_debt_when_the_factor_falls() -> None:
    one = FleetLimiter(FleetShares(), KEY, LIMIT, 1.0, 0.0, own=True)
    one.charge_amount(100 * LIMIT, 0.0)
    one.set_limit(LIMIT, 0.01, 0.0)
    assert one.bucket.token_level(0.0) == -100 * LIMIT


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("owed_s", "after_s"), [(0.0, 0.0), (0.01, 1.0), (5.0, 10.0), (10.0, 10.0), (25.0, 25.0)])
def test_a_limit_that_is_cut_asks_for_the_same_bytes_but_not_for_longer_than_any_client_waits(
    owed_s: float, after_s: float, own: bool
) -> None:
    one = FleetLimiter(FleetShares(), KEY, LIMIT, 1.0, 0.0, own=own)
    one.charge_amount((3 + owed_s) * LIMIT, 0.0)
    one.set_limit(LIMIT / 100, 1.0, 3.0)
    assert one.bucket.debt_wait_s(3.0) == pytest.approx(after_s)
    assert one.bucket.rate == LIMIT / 100


def test_a_limit_that_is_raised_asks_for_the_same_bytes() -> None:
    one = line(FleetShares())
    one.charge_amount(8 * LIMIT, 0.0)
    one.set_limit(LIMIT * 100, 1.0, 3.0)
    assert one.bucket.debt_wait_s(3.0) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("own", "cut", "connections", "of_a_second"),
    matrix([True, False], [0.5, 0.1, 0.01], [(1, 0.01), (20, 0.01), (50, 0.1), (200, 0.1), (200, 0.001)]),
)
def test_a_limit_that_is_cut_takes_effect_within_a_second(
    connections: int, of_a_second: float, cut: float, own: bool
) -> None:
    """Neither more passes than it says, nor nothing because of what was taken before; but for whole requests."""
    size, limit = of_a_second * LIMIT, LIMIT * cut
    one = FleetLimiter(FleetShares(), KEY, LIMIT, 1.0, 0.0, own=own)
    turns = [(number * 0.01, number, 0.0) for number in range(connections)]
    passed: list[float] = []  # when each request did
    while turns[0][0] < 90.0:
        now, number, denied_since = turns[0]
        if now >= 30.0 and one.limit == LIMIT:
            one.set_limit(limit, 1.0, 30.0)
        answer = one.check_admission(size, now, True, now - denied_since if denied_since else 0.0)
        if answer.admitted:
            one.charge_amount(size, now)
            passed.append(now)
        wait = max(0.001, min(answer.wait_s, MAX_WAIT_S))
        heapq.heapreplace(turns, (now + wait, number, 0.0 if answer.admitted else denied_since or now))
    for seconds in (2, 5, 10, 20, 60):
        since = size * sum(30.0 <= at < 30.0 + seconds for at in passed)
        assert since <= 1.05 * limit * seconds + 2 * size
        assert seconds < 20 or since >= 0.9 * limit * seconds - 2 * size


def test_a_limit_that_is_cut_leaves_credit_within_the_new_burst() -> None:
    one = line(FleetShares())
    one.set_limit(LIMIT / 100, 1.0, 60.0)
    assert one.bucket.token_level(60.0) == LIMIT / 100


def test_lines_no_longer_used_are_forgotten() -> None:
    made = fleet(3)
    one = line(made)
    assert list(made.limiters) == [KEY]
    del one
    gc.collect()
    assert not made.limiters


def test_alone_a_line_waits_as_any_other() -> None:
    one, plain = line(FleetShares()), RateLimiter(LIMIT, 0.0)
    for now in (0.0, 0.1, 5.0, 5.2, 5.4):
        assert one.check_admission(5000, now, True, 0.0) == plain.check_admission(5000, now, True, 0.0)
        one.charge_amount(5000, now)
        plain.charge_amount(5000, now)


def test_a_wait_for_a_line_that_nobody_waited_for_is_short_and_the_debt_stays() -> None:
    one = line(fleet(3))
    assert one.check_admission(3200, 0.0, True, 0.0).wait_s == SETTLE_S
    one.charge_amount(3200, 0.0)
    assert one.bucket.debt_wait_s(0.0) == 8.0
    assert one.debt_wait_s(0.0) == SETTLE_S
    assert one.check_admission(4, 1.9, True, 0.0).wait_s == SETTLE_S
    assert one.check_admission(4, 2.0, True, 0.0).wait_s == pytest.approx(6.01)


def test_a_client_turned_away_by_a_provisional_rate_may_come_back_soon() -> None:
    one = line(fleet(3))
    one.charge_amount(12_000, 0.0)
    answer = one.check_admission(400, 0.5, True, 0.0)
    assert not answer.admitted
    assert answer.wait_s == SETTLE_S


def test_a_line_that_was_used_a_moment_ago_may_have_an_idle_ones_part_and_nobody_waits_long_for_it() -> None:
    made = fleet(3, part=(400.0, 400.0))
    one = line(made)
    for tenth in range(50):
        one.charge_amount(20, tenth / 10)
    made.update_grants({KEY: ShareGrant(16.0, 400.0)}, 3, SETTLE_S, 5.2)
    one.charge_amount(80, 5.3)
    assert one.bucket.debt_wait_s(5.3) > 4.0
    assert one.wait_after_charge(5.3) == SETTLE_S


@pytest.mark.parametrize(
    ("pause_s", "gateways", "provisional"), [(0.0, 3, False), (1.9, 3, False), (2.1, 3, True), (0.0, 4, True)]
)
def test_a_line_that_clients_wait_for_is_not_provisional_until_none_does_or_a_gateway_joins(
    pause_s: float, gateways: int, provisional: bool
) -> None:
    made = fleet(3)
    one = line(made)
    for tenth in range(50):
        one.check_admission(60, tenth / 10, True, 0.0)
        one.charge_amount(60, tenth / 10)
    now = one.hungry_until + pause_s
    made.update_grants({}, gateways, SETTLE_S, now)
    one.bucket.consume_tokens(one.bucket.token_level(now), now)
    assert (one.check_admission(4000, now, True, 0.0).wait_s == SETTLE_S) is provisional


def test_a_wait_that_wants_no_more_is_short_also_where_clients_have_waited_a_moment_ago() -> None:
    """The part may become an idle one's during that wait."""
    for own in (False, True):
        one = FleetLimiter(fleet(3), KEY, LIMIT, 1.0, 0.0, own=own)
        for tenth in range(50):
            one.check_admission(60, tenth / 10, True, 0.0)
            one.charge_amount(60, tenth / 10)
        now = one.hungry_until + 1.0
        hungry_until = one.hungry_until
        assert one.check_admission(4000, now, True, 0.0).wait_s == SETTLE_S
        one.charge_amount(4000, now)
        assert one.wait_after_charge(now) == SETTLE_S
        assert one.hungry_until == hungry_until


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 20_000)), min_size=1, max_size=40),
    st.floats(10.0, 2000.0),
)
def test_provisional_or_not_the_debt_is_that_of_a_line_of_that_rate(
    takes: list[tuple[float, int]], part: float
) -> None:
    made = FleetShares()
    made.update_grants({KEY: ShareGrant(part, part)}, 3, SETTLE_S, 0.0)
    one, plain, now = line(made), RateLimiter(min(part, LIMIT), 0.0), 0.0
    plain.bucket.set_burst(SHARED_BURST_S, now)
    for pause, size in takes:
        now += pause
        short, full = one.check_admission(size, now, True, 0.0), plain.check_admission(size, now, True, 0.0)
        assert short.admitted == full.admitted
        assert short.wait_s <= full.wait_s
        if short.admitted:
            one.charge_amount(size, now)
            plain.charge_amount(size, now)
        assert one.bucket.token_level(now) == pytest.approx(plain.bucket.token_level(now))


# --- who wants more ---------------------------------------------------------------------------------------------------


def test_a_request_that_is_large_for_its_line_waits_for_itself_and_wants_no_more() -> None:
    one = line(fleet(3))
    assert one.check_admission(1000, 1.0, True, 0.0).wait_s > 0
    one.charge_amount(1000, 1.0)
    assert one.wait_after_charge(1.0) > 0
    assert one.hungry_until == -math.inf


def test_a_client_that_finds_a_line_used_up_wants_more_for_as_long_as_it_waits() -> None:
    one = line(fleet(3))
    for tenth in range(20):
        one.charge_amount(40, tenth / 10)
    one.charge_amount(400, 2.0)
    wait = one.check_admission(40, 2.0, True, 0.0).wait_s
    assert wait == pytest.approx(1.1)
    assert one.hungry_until == pytest.approx(2.0 + wait + HUNGER_S)
    one.check_admission(40, 2.5, True, 0.0)
    assert one.hungry_until == pytest.approx(2.0 + wait + HUNGER_S), "it waits for no longer than the first one"


def test_savings_of_a_twentieth_of_a_second_are_nothing() -> None:
    for level, hungry in ((USED_UP_S - 0.01, True), (USED_UP_S + 0.01, False)):
        one = line(fleet(3))
        one.check_admission(1000, level, True, 0.0)
        assert (one.hungry_until > level) is hungry


def test_a_client_that_comes_back_soon_after_its_wait_wants_more() -> None:
    """It has one request at a time, each larger than what may be saved. If it is near, it finds the line used up."""
    for back_after_s, hungry in ((0.04, True), (0.2, True), (0.4, False)):
        one, now = line(fleet(3)), 10.0  # 400 per second, of which it has saved 100
        one.charge_amount(620, now)
        now += one.wait_after_charge(now) + back_after_s
        assert one.hungry_until == -math.inf
        one.charge_amount(620, now)
        wait = one.wait_after_charge(now)
        assert wait > 1.0
        assert one.hungry_until == (pytest.approx(now + wait + HUNGER_S + back_after_s) if hungry else -math.inf)


def test_a_client_that_takes_first_and_then_waits_wants_more_only_if_the_line_was_used_up() -> None:
    """The bytes fetched, or the time spent on a request, are known afterwards."""
    one = line(fleet(3))
    one.charge_amount(500, 1.0)
    assert one.wait_after_charge(1.0) > 0
    assert one.hungry_until == -math.inf
    one.charge_amount(10, 1.0)
    assert one.hungry_until == -math.inf, "it has not been held yet"
    wait = one.wait_after_charge(1.0)
    assert one.hungry_until == pytest.approx(1.0 + wait + HUNGER_S)


def test_a_client_that_is_turned_away_wants_more() -> None:
    one = line(fleet(3))
    one.charge_amount(400 * (MAX_WAIT_S + 5), 0.0)
    answer = one.check_admission(1, 0.0, True, 0.0)
    assert not answer.admitted
    assert one.hungry_until == pytest.approx(min(answer.wait_s, MAX_WAIT_S) + HUNGER_S)


def test_a_client_that_waits_for_no_other_wants_no_more() -> None:
    one = line(fleet(3))
    for tenth in range(10, 100):
        assert one.check_admission(40, tenth / 10, True, 0.0).wait_s == 0.0
        one.charge_amount(40, tenth / 10)
    assert one.hungry_until == -math.inf


# --- what holds here --------------------------------------------------------------------------------------------------


def test_a_limit_over_this_gateway_alone_is_whole_among_any_number_of_them() -> None:
    made = fleet(3, part=(10.0, 5.0))
    one = FleetLimiter(made, KEY, LIMIT, 0.5, 0.0, scope="gateway")
    assert one.gateway_rate == LIMIT / 2
    assert not made.limiters, "nobody deals parts of it out"
    made.revoke_grants(1.0)
    one.apply_share(1.0)
    assert one.gateway_rate == LIMIT / 2
    one.charge_amount(10 * LIMIT, 1.0)
    assert one.debt_wait_s(1.0) > 2 * SETTLE_S, "its rate is never provisional"


# --- what was saved ---------------------------------------------------------------------------------------------------


def test_alone_nothing_that_was_saved_is_lost() -> None:
    one = line(fleet(1))
    assert one.bucket.token_level(1.0) == LIMIT
    one.set_limit(LIMIT, 0.5, 1.0)
    assert one.bucket.token_level(1.0) == LIMIT / 2
