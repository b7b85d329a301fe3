# Shares of a fleet's limits: the function, then what a gateway's control keeps to compute it, then the whole fleet in
# the simulator (what it reaches in figures: test_bars.py).

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fleet.shares import (
    CATCH_UP,
    DECAY_S,
    ENOUGH,
    FADE_S,
    FLOORS,
    FROZEN_S,
    HEADROOM,
    IDLE,
    MISSING,
    REVOKED,
    SETTLE_S,
    FairShare,
    LimitDemand,
    ShareAllocator,
    ShareGrant,
    max_min_fair,
    split_limit,
    sum_demands,
)
from tests.examples import FEW, matrix
from tests.policies.fleet.fleet_sim import (
    ALL,
    LIMIT,
    SCENARIOS,
    Book,
    World,
    jain,
    measure,
    parts,
    picture,
    play,
    waves,
)

WANTS = LimitDemand(0.0, hungry=True)  # everything, whatever it takes at present


def uses_with(claims: st.SearchStrategy[float]) -> st.SearchStrategy[list[LimitDemand]]:
    weights = st.sampled_from([1.0, 1.0, 1.0, 2.0, 0.5])
    demand = st.builds(LimitDemand, st.floats(0, 200), st.booleans(), weights, st.just(0), claims)
    return st.lists(demand, min_size=1, max_size=8)


USES = uses_with(st.just(0.0))
USES_AND_CLAIMS = uses_with(st.one_of(st.just(0.0), st.floats(0, 120)))


def wants(rate: float = 0.0, weight: float = 1.0, claim: float = 0.0) -> LimitDemand:
    return LimitDemand(rate, hungry=True, weight=weight, claim=claim)


# --- the function -----------------------------------------------------------------------------------------------------


@pytest.mark.seed("82.3", "82.13", "82.30", "82.31")
@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        pytest.param([wants(), LimitDemand(20)], [80, 20 + 100 * HEADROOM], id="the rest of a content one"),
        pytest.param([wants(70), wants(30)], [50, 50], id="both want all, from any start"),
        pytest.param([wants(weight=3), wants(weight=1)], [75, 25], id="by weight"),
        pytest.param([wants(claim=60), wants(claim=20)], [70, 30], id="what is claimed first, the rest alike"),
        pytest.param([wants(claim=60), wants()], [80, 20], id="one claims"),
        pytest.param([wants(claim=90), wants(claim=10)], [90, 10], id="all is claimed"),
        pytest.param([wants(claim=120), wants(claim=30)], [80, 20], id="more is claimed than there is"),
        pytest.param(
            [LimitDemand(30, claim=20), wants()], [30 + 100 * HEADROOM, 70], id="one claims a part of its own"
        ),
        pytest.param(
            [LimitDemand(20, claim=20), wants()], [20 + 100 * HEADROOM, 80], id="one claims all that it takes"
        ),
        pytest.param([LimitDemand(90), wants()], [50, 50], id="a content one that takes more than its part"),
        pytest.param([wants(), LimitDemand(10)], [90, 10 + 100 * HEADROOM], id="growth within the headroom"),
        pytest.param(
            [wants(), LimitDemand(8), LimitDemand(40)], [52, 8 + 2, 40 + 100 * HEADROOM - 2], id="growth by a quarter"
        ),
        pytest.param([wants(), wants(), IDLE, IDLE], [50, 50, *[100 * FLOORS / 4] * 2], id="floors, taken from nobody"),
        pytest.param([LimitDemand(99), IDLE], [100, 100 * FLOORS / 2], id="nobody has more than the limit"),
    ],
)
def test_gateways_share_a_limit_fairly(uses: list[LimitDemand], expected: list[float]) -> None:
    assert parts(uses, 100) == pytest.approx(expected)


def test_a_claim_counts_as_far_as_it_is_used() -> None:
    shares = split_limit([LimitDemand(20, claim=60), wants(claim=40), IDLE._replace(claim=50)], 100, 0)
    assert [share.base for share in shares] == pytest.approx([20, 80, 0])
    shares = split_limit([LimitDemand(60, claim=20), wants(claim=30)], 100, 0)
    assert [share.base for share in shares] == pytest.approx([45, 55]), "25 each on top of the claims"


@given(USES_AND_CLAIMS)
def test_no_gateway_that_wants_its_claim_gets_less_where_all_claims_fit(uses: list[LimitDemand]) -> None:
    claims = [use.claim if use.hungry else min(use.claim, use.rate) for use in uses]
    for claim, share in zip(claims, split_limit(uses, 100, HEADROOM * 100), strict=True):
        assert share.base >= claim * min(1.0, 100 / max(1.0, sum(claims))) - 1e-9


@pytest.mark.seed("82.30")
def test_the_unused_rest_is_shared_alike_while_no_gateway_is_hungry() -> None:
    assert parts([LimitDemand(10), LimitDemand(30), IDLE], 100) == pytest.approx([30, 50, 20])
    assert split_limit([LimitDemand(10), LimitDemand(30), IDLE], 100, 4) == [
        FairShare(30, 0),
        FairShare(50, 0),
        FairShare(20, 0),
    ]
    assert split_limit([LimitDemand(50), LimitDemand(49)], 100, 4) == [FairShare(50.5, 1.5), FairShare(49.5, 1.5)]


@pytest.mark.seed("82.30")
def test_a_single_member_has_the_limit_exactly() -> None:
    for use in (IDLE, LimitDemand(30), LimitDemand(99.9), wants(), LimitDemand(500)):
        assert parts([use], 100) == [100]
    assert split_limit([LimitDemand(30)], 100, 4) == [FairShare(100, 0)]


@pytest.mark.seed("82.13")
@given(USES_AND_CLAIMS)
def test_together_they_have_the_limit_and_no_more_above_it_than_headroom_and_floors(uses: list[LimitDemand]) -> None:
    shares = split_limit(uses, 100, HEADROOM * 100)
    if any(not use.is_idle for use in uses):
        assert sum(share.base for share in shares) == pytest.approx(100)
    assert sum(share.headroom for share in shares) <= HEADROOM * 100 + 1e-9
    assert sum(parts(uses, 100)) <= 100 * (1 + HEADROOM + FLOORS) + 1e-9


@pytest.mark.seed("82.3")
@given(USES)
def test_no_gateway_that_wants_something_gets_less_than_its_fair_part(uses: list[LimitDemand]) -> None:
    got = parts(uses, 100)
    weight = sum(use.weight for use in uses if not use.is_idle)
    for use, part in zip(uses, got, strict=True):
        if not use.is_idle:
            fair_part = 100 * use.weight / weight
            assert part >= (fair_part if use.hungry else min(use.rate, fair_part)) - 1e-9
        assert part > 0


@given(USES)
def test_floors_together_are_a_twentieth_at_most(uses: list[LimitDemand]) -> None:
    uses = [*uses, wants()]
    assert sum(p for use, p in zip(uses, parts(uses, 100), strict=True) if use.is_idle) <= 5


@given(st.floats(0, 90), st.floats(0.1, 10))
def test_a_little_more_demand_is_a_little_more_part(rate: float, more: float) -> None:
    """No step anywhere, and none where a gateway that is content with the most it may have turns hungry."""
    before, after = (split_limit([LimitDemand(r), wants(), LimitDemand(5)], 100, 4) for r in (rate, rate + more))
    assert all(abs(b.base - a.base) <= more + 1e-9 for a, b in zip(before, after, strict=True))
    level = parts([wants(), wants(), LimitDemand(5)], 100)
    at = parts([LimitDemand(level[0]), wants(), LimitDemand(5)], 100)
    assert at[1] == pytest.approx(level[1])
    assert at[0] == pytest.approx(level[0])


@pytest.mark.seed("82.3", "82.13", "82.29")
def test_max_min_by_sorting_is_max_min() -> None:
    assert max_min_fair([(1, 10), (1, math.inf), (2, math.inf), (1, 25)], 100) == pytest.approx([10, 22.5, 45, 22.5])
    assert max_min_fair([(1, 10), (1, math.inf), (2, math.inf), (1, 20)], 100) == pytest.approx(
        [10, 70 / 3, 140 / 3, 20]
    )
    assert max_min_fair([(1, 10), (3, 10)], 100) == pytest.approx([30, 70])
    assert max_min_fair([], 100) == []


# --- several workers in one row ---------------------------------------------------------------------------------------


def test_workers_of_one_bucket_take_the_sum_and_want_more_if_one_of_them_does() -> None:
    assert sum_demands([LimitDemand(10, topics=2), wants(20), LimitDemand(5, topics=1)]) == LimitDemand(35, True, 1, 3)
    assert sum_demands([LimitDemand(10), LimitDemand(5)]) == LimitDemand(15)


def test_a_gateway_weighs_no_more_for_having_many_workers_and_idle_ones_weigh_nothing() -> None:
    assert sum_demands([wants(10, weight=3), wants(10, weight=1), IDLE]).weight == 2
    assert sum_demands([wants(10, weight=3), IDLE]) == wants(10, weight=3)
    assert sum_demands([wants(claim=3), LimitDemand(5, claim=2)]).claim == 5
    assert sum_demands([]) == sum_demands([IDLE, IDLE]) == IDLE


# --- one gateway ------------------------------------------------------------------------------------------------------


class Gateway(ShareAllocator):
    """And what stands around it: what it heard of peers, what it has told them."""

    def __init__(self) -> None:
        self.book = Book()
        super().__init__(self.book)
        self.uses: dict[str, LimitDemand] = {}

    def hear(self, peer: str, uses: dict[str, LimitDemand]) -> None:
        self.mark_peers_changed(self.book.hear(peer, uses))

    def lose(self, peer: str) -> None:
        self.book.lose(peer)
        self.mark_peers_changed()

    def own(self) -> dict[str, LimitDemand]:
        """What it takes: what it said first, and what changed since then."""
        self.uses |= self.drain_changes()
        return {key: use for key, use in self.uses.items() if use != IDLE}

    def publish(self) -> None:
        self.is_urgent = False
        self.book.own = self.own()
        self.mark_published(self.uses)


def fleet(limit: float = 100, peer: LimitDemand | None = None, **workers: LimitDemand) -> Gateway:
    """A gateway that can be heard, whose workers take that of limit `k`, as `peer` does."""
    made = Gateway()
    made.thaw_shares(0.0)
    made.update_limits({"k": limit})
    for name, use in workers.items():
        made.update_demand(name, {"k": use})
    if peer is not None:
        made.hear("peer", {"k": peer})
    return made


def dealt(made: Gateway, now: float = 0.0) -> float | None:
    """What workers are told of `k`, if anything."""
    part = made.allocate_shares(now).get("k")
    return None if part is None else part.rate


def test_a_gateway_alone_has_the_limit_exactly_and_is_told_so_once() -> None:
    made = fleet(a=LimitDemand(10), b=LimitDemand(5))
    assert made.allocate_shares(0.0) == made.grants == {"k": ShareGrant(100, 100)}
    for use in (wants(90), LimitDemand(300), IDLE):
        made.update_demand("a", {"k": use})
        assert made.allocate_shares(1.0) == {}


def test_two_gateways_share_by_the_same_function() -> None:
    for own, peer in (
        (wants(), LimitDemand(20)),
        (LimitDemand(20), wants()),
        (LimitDemand(20), LimitDemand(30)),
        (IDLE, wants()),
    ):
        made = fleet(peer=peer, a=LimitDemand(1))
        made.update_demand("a", {"k": own})
        assert dealt(made) == pytest.approx(parts([own, peer], 100)[0])


def test_gateways_have_equal_parts_however_many_workers_want_more() -> None:
    made = fleet(peer=wants(50), a=wants(20), b=wants(20), c=wants(10))
    assert made.gateway_count == 2
    assert made.allocate_shares(0.0) == {"k": ShareGrant(50, 50)}
    assert made.share_of("k") == 50


def test_the_fallback_is_the_limit_by_all_gateways() -> None:
    made = fleet(peer=IDLE, a=wants())
    assert made.allocate_shares(0.0)["k"].fallback == 50
    made.hear("another", {})
    assert made.allocate_shares(1.0)["k"].fallback == pytest.approx(100 / 3)


# --- what is missing --------------------------------------------------------------------------------------------------


def let_wait(made: Gateway, start: float, seconds: float, own: float, peer: float) -> float:
    """Both gateways wait, and take these; what this one has in the end."""
    for look in range(int(seconds * 4)):
        swing = 1.0 + 0.001 * (look % 2)  # a use that stays the same is no news
        made.update_demand("a", {"k": wants(own * swing)})
        made.hear("peer", {"k": wants(peer * swing)})
        dealt(made, start + look / 4)
    return made.share_of("k")


def settled(taken: float) -> float:
    """Shares of the limit that are dealt on top, in the end, where so much is taken."""
    return CATCH_UP * FADE_S * max(-MISSING, min(MISSING, 1 - ENOUGH - taken))


def test_a_gap_below_the_limit_is_dealt_on_top_while_a_gateway_waits() -> None:
    """Producers of one gateway may wait for those of another: it is dealt more than it takes."""
    made = fleet(peer=wants(30), a=wants(60))
    assert let_wait(made, 0, SETTLE_S, 60, 30) == pytest.approx(50)
    assert 50.5 < let_wait(made, SETTLE_S, 2, 60, 30) < 50 * (1 + settled(0.9))
    assert let_wait(made, SETTLE_S + 2, 20, 60, 30) == pytest.approx(50 * (1 + settled(0.9)), rel=0.003)
    made.update_limits({"k": 200})
    assert let_wait(made, 30, SETTLE_S, 60, 30) == pytest.approx(100)


def test_nothing_is_dealt_on_top_of_a_limit_all_taken_and_an_earlier_extra_goes() -> None:
    made = fleet(peer=wants(50), a=wants(50))
    assert let_wait(made, 0, 20, 49.7, 49.7) == pytest.approx(50, rel=0.003)
    assert let_wait(made, 20, 20, 60, 30) > 52
    assert let_wait(made, 40, 30, 49.7, 49.7) == pytest.approx(50, rel=0.003)


def test_an_excess_that_all_take_is_dealt_less() -> None:
    made = fleet(peer=wants(50), a=wants(50))
    assert let_wait(made, 0, 30, 52, 52) == pytest.approx(50 * (1 + settled(1.04)), rel=0.003)
    assert made.share_of("k") < 50


@pytest.mark.parametrize("peer", [0.0, 2.0])
def test_a_measured_excess_withholds_no_more_than_others_take(peer: float) -> None:
    """Our bucket holds us to the limit: our own rate exceeds it only as it is measured, some time before or behind."""
    made, least = fleet(peer=LimitDemand(peer), a=wants(98)), math.inf
    for look in range(240):
        made.update_demand("a", {"k": wants((98 - peer) * (1.0 + 0.09 * math.sin(look / 8)))})
        dealt(made, look / 4)
        least = min(least, made.share_of("k"))
    assert least >= 100 - 2 * peer


def test_a_gap_below_the_limit_is_bounded_for_any_reports() -> None:
    for rate in (0.0, 1e9):
        made = fleet(peer=wants(rate), a=wants(rate))
        assert abs(let_wait(made, 0, 60, rate, rate) - 50) <= 50 * MISSING


def test_a_gap_below_the_limit_is_dealt_also_if_it_stays_the_same() -> None:
    made = fleet(peer=wants(30), a=wants(60))
    for look in range(200):
        made.allocate_shares(look / 4)
    assert made.share_of("k") == pytest.approx(50 * (1 + settled(0.9)), rel=0.003)


def test_two_gateways_find_the_same_to_be_missing_whenever_they_began() -> None:
    made, late = fleet(peer=wants(30), a=wants(60)), fleet(peer=wants(60), a=wants(30))
    let_wait(made, 0, 10, 60, 30)
    let_wait(made, 10, 20, 60, 30)
    let_wait(late, 10, 20, 30, 60)
    assert made.share_of("k") == pytest.approx(late.share_of("k"), rel=0.003)


def test_a_gap_below_the_limit_is_not_for_a_gateway_that_wants_no_more() -> None:
    made = fleet(peer=wants(30), a=LimitDemand(30))
    for look in range(100):
        made.allocate_shares(look / 4)
    assert made.share_of("k") == pytest.approx(parts([LimitDemand(30), wants(30)], 100)[0])


# --- what is told -----------------------------------------------------------------------------------------------------


def test_only_parts_that_changed_are_told() -> None:
    made = fleet(peer=LimitDemand(20), a=wants())
    assert dealt(made) == 80
    assert dealt(made) is None
    made.hear("peer", {"k": LimitDemand(20.02)})  # within the tolerance
    assert dealt(made) is None
    made.hear("peer", {"k": LimitDemand(30)})
    assert dealt(made) == 70


def test_an_idle_gateway_is_not_told_every_change_of_what_is_left_over() -> None:
    made = fleet(peer=LimitDemand(10), a=LimitDemand(1))
    made.update_demand("a", {"k": IDLE})
    assert dealt(made) == pytest.approx(45)
    made.hear("peer", {"k": LimitDemand(12)})
    assert dealt(made) is None
    made.update_demand("a", {"k": LimitDemand(0.5)})
    assert dealt(made) == pytest.approx(44.25)


def test_a_key_that_a_whole_demand_leaves_out_is_idle() -> None:
    made = fleet(peer=wants(), a=wants(), b=wants())
    made.update_demand("b", {}, whole=True)
    assert dealt(made) == 50
    made.update_demand("a", {}, whole=True)
    assert dealt(made) == 100 * FLOORS / 2


def test_a_key_of_a_worker_that_ended_is_taken_no_more() -> None:
    made = fleet(peer=wants(), a=LimitDemand(10), b=wants(50))
    made.update_demand("b", {"other": wants()})
    assert dealt(made) == 50
    assert made.own() == {"k": wants(60), "other": wants()}
    made.forget_worker("b")
    assert dealt(made) == pytest.approx(parts([LimitDemand(10), wants()], 100)[0])
    assert made.drain_changes() == {"k": LimitDemand(10), "other": IDLE}
    assert set(made._active_demands) == set(made._demand.users) == {"k"}
    made.forget_worker("nobody")


def test_a_key_only_of_a_worker_that_ended_is_told_to_be_no_limit() -> None:
    made = fleet(peer=wants(), a=wants())
    dealt(made)
    made.forget_worker("a")
    assert made.allocate_shares(0.0) == {"k": REVOKED}
    assert made.grants == {}
    made.update_demand("a", {"k": wants()})
    assert dealt(made) == 50


def test_a_limit_that_went_is_told_once_may_come_back_and_is_forgotten_when_it_is_used_no_more() -> None:
    made = fleet(peer=wants(), a=wants(), b=wants())
    dealt(made)
    made.update_limits({"k": None})
    assert made.allocate_shares(0.0) == {"k": REVOKED}
    assert made.allocate_shares(0.0) == made.grants == {}
    assert made.share_of("k") == 0.0
    made.update_limits({"k": 50})
    assert made.allocate_shares(0.0) == {"k": ShareGrant(25, 25)}
    made.update_limits({"k": None})
    for worker in "ab":
        made.update_demand(worker, {"k": IDLE})
    made.allocate_shares(0.0)
    assert not made._demand.users
    assert not any(made._demand._workers.values())


def test_a_limit_that_went_and_came_between_two_deals_was_never_away() -> None:
    made = fleet(a=wants())
    dealt(made)
    made.update_limits({"k": None})
    made.update_limits({"k": 100})
    assert made.allocate_shares(0.0) == {}


def test_only_keys_that_are_used_are_dealt() -> None:
    made = fleet(a=wants())
    made.update_limits({"k": 100, "other": 7})
    assert set(made.allocate_shares(0.0)) == {"k"}


def test_a_gateway_that_weighs_nothing_does_not_starve_and_a_limit_of_nothing_harms_no_other() -> None:
    assert (dealt(fleet(peer=wants(), a=wants(weight=0.0))) or 0.0) > 0
    assert dealt(fleet(0, LimitDemand(5), a=LimitDemand(5, True))) == 0.0


def test_many_limits_are_dealt_a_few_at_once() -> None:
    made = fleet(peer=wants(), a=wants())
    keys = [f"k{number}" for number in range(10)]
    made.update_limits({"k": None, **dict.fromkeys(keys, 100.0)})
    made.update_demand("a", dict.fromkeys(keys, wants()))
    told: list[int] = []
    while not told or made.is_behind:
        told.append(len(made.allocate_shares(0.0, 4)))
    assert sum(told) == 10
    assert max(told) <= 4


# --- peers ------------------------------------------------------------------------------------------------------------


@pytest.mark.seed("82.32")
def test_an_idle_entry_takes_a_peer_out_of_that_limit() -> None:
    made = fleet(peer=wants(50), a=wants())
    assert dealt(made) == 50
    made.hear("peer", {"k": IDLE})
    assert dealt(made) == 100


def test_a_peer_that_said_goodbye_is_forgotten_at_once() -> None:
    made = fleet(peer=wants(50), a=wants())
    dealt(made)
    made.lose("peer")
    assert dealt(made) == 100
    assert made.gateway_count == 1
    made.lose("nobody")


def test_only_what_changed_is_published_a_few_keys_at_once() -> None:
    made = fleet()
    made.update_demand("a", {f"k{n}": LimitDemand(n + 1.0) for n in range(10)})
    found: list[dict[str, LimitDemand]] = []
    while made.has_changes:
        found.append(made.drain_changes(3))
    assert max(map(len, found)) == 3
    assert {key: use for some in found for key, use in some.items()} == {
        f"k{n}": LimitDemand(n + 1.0) for n in range(10)
    }
    made.update_demand("a", {"k3": IDLE, "k5": LimitDemand(6.0), "k7": LimitDemand(9.0)})
    assert made.drain_changes() == {"k3": IDLE, "k7": LimitDemand(9.0)}
    assert made.drain_changes() == {}


def test_a_gateway_counts_itself_as_others_do() -> None:
    """It takes 40 by now, and others were told 20: they go by 20, so the others together have 80."""
    made = fleet(peer=wants(80), a=LimitDemand(20))
    made.publish()
    assert dealt(made) == pytest.approx(20 + 100 * HEADROOM)
    made.update_demand("a", {"k": wants(40)})
    assert dealt(made) is None
    made.publish()
    assert dealt(made) == 50


def test_the_part_of_a_limit_that_this_gateway_takes_nothing_of_is_known_as_well() -> None:
    made = fleet(peer=LimitDemand(10), a=LimitDemand(10))
    assert made.share_of("unknown") == 0
    assert made.share_of("unknown", 50.0) == pytest.approx(25.0)


# --- what peers have to know at once ----------------------------------------------------------------------------------


def test_beginning_or_ending_to_take_or_to_want_more_is_urgent_until_it_is_told() -> None:
    made = fleet(peer=wants(50))
    assert not made.is_urgent
    for use in (LimitDemand(10), wants(10), LimitDemand(10), wants(10), IDLE):
        made.update_demand("a", {"k": use})
        assert made.is_urgent, f"peers don't know of {use}"
        made.publish()
        assert not made.is_urgent


def test_another_rate_is_in_no_hurry() -> None:
    for state in (LimitDemand(1), wants(1)):
        made = fleet(peer=wants(50), a=state)
        made.publish()
        made.update_demand("a", {"k": state._replace(rate=500.0, weight=3.0, topics=9)})
        assert made.has_changes
        assert not made.is_urgent


def test_peers_hear_only_of_the_first_worker_that_wants_more_and_of_the_last_one() -> None:
    made = fleet(peer=wants(50), a=LimitDemand(10), b=LimitDemand(10))
    made.publish()
    urgent = []
    for worker, use in (("a", wants(10)), ("b", wants(10)), ("a", LimitDemand(10)), ("b", LimitDemand(10))):
        made.update_demand(worker, {"k": use})
        urgent.append(made.is_urgent)
        made.publish()
    assert urgent == [True, False, False, True]
    made.update_demand("b", {"k": wants(10)})
    made.publish()
    made.forget_worker("b")
    assert made.is_urgent, "it ended"


# --- the exchange away ------------------------------------------------------------------------------------------------


def frozen() -> Gateway:
    made = fleet(peer=LimitDemand(10), a=wants(), b=wants())
    assert dealt(made) == pytest.approx(90)
    made.freeze_shares(1.0)
    return made


def test_shares_freeze_while_the_exchange_is_away() -> None:
    made = frozen()
    for now in (1.0, 5.0, 1.0 + FROZEN_S):
        assert dealt(made, now) is None
    assert made.gateway_count == 2
    assert made.frozen_at == 1.0


def test_a_frozen_share_stays_as_it_was_also_for_a_gateway_that_wants_less_by_now() -> None:
    made = frozen()
    dealt(made, 1.0)
    made.update_demand("a", {"k": IDLE})
    made.update_demand("b", {"k": LimitDemand(20)})
    assert dealt(made, 2.0) is None
    assert made.share_of("k") == pytest.approx(90)


def test_then_they_go_smoothly_to_an_even_part_of_all_gateways_that_were_known() -> None:
    made = frozen()
    rates = [90.0]
    for step in range(round(FROZEN_S + DECAY_S) * 4 + 8):
        rates.append(dealt(made, 1.0 + step / 4) or rates[-1])
    assert rates[-1] == pytest.approx(50)
    assert max(a - b for a, b in pairwise(rates)) <= 2
    assert rates == sorted(rates, reverse=True)


def test_a_limit_that_changes_meanwhile_holds() -> None:
    made = frozen()
    dealt(made, 1.0)
    made.update_limits({"k": 40})
    assert dealt(made, 2.0) == pytest.approx(40)


def test_a_new_key_has_its_even_part_while_frozen() -> None:
    made = frozen()
    made.update_limits({"k": 100, "new": 100})
    made.update_demand("a", {"new": wants()})
    assert made.allocate_shares(2.0)["new"].rate == pytest.approx(50)


def test_thawed_it_deals_by_reports_again() -> None:
    made = frozen()
    for step in range(400):
        made.allocate_shares(1.0 + step / 4)
    made.thaw_shares(100.0)
    assert dealt(made, 100.0) == pytest.approx(90)


def test_a_gateway_that_has_just_started_deals_nothing_before_it_knows_the_others() -> None:
    made = Gateway()
    made.update_limits({"k": 100})
    made.update_demand("a", {"k": wants()})
    assert made.allocate_shares(0.0) == {}
    assert not made.is_behind
    made.hear("peer", {"k": wants(100)})
    made.thaw_shares(1.0)
    assert dealt(made, 1.0) == 50


def test_a_gateway_that_starts_without_an_exchange_deals_as_if_frozen() -> None:
    made = Gateway()
    made.update_limits({"k": 100})
    made.update_demand("a", {"k": wants()})
    made.freeze_shares(0.0)
    assert dealt(made, 0.0) == 100


# --- the whole fleet --------------------------------------------------------------------------------------------------

SCENES = [name for name in SCENARIOS if not name.startswith("2 %")]


@pytest.mark.parametrize(("scene", "seed"), matrix(SCENES, [11, 12]))
def test_from_two_cycles_after_an_event_the_sum_is_right_and_shared_fairly(scene: str, seed: int) -> None:
    found = measure(play(SCENARIOS[scene], "ours", seed))
    assert found.error <= 0.03
    assert found.overshoot < 1.1
    assert found.fairness >= 0.99
    assert found.least >= 0.9


@pytest.mark.seed("82.4", "82.29")
@pytest.mark.parametrize("name", ["20/80, then 80/20", "70, then 70/70", "an idle one wakes", "limit halved, tripled"])
def test_all_is_well_in_two_cycles(name: str) -> None:
    """And a look and a message's way, where an event falls behind a report that has just left."""
    found = [measure(play(SCENARIOS[name], "ours", seed)) for seed in range(20, 24)]
    assert max(figures.slowest for figures in found) <= 2.6
    assert sorted(figures.slowest for figures in found)[2] <= 2.0


@FEW
@given(st.integers(0, 10**6))
def test_in_any_run_the_sum_is_right_and_no_gateway_starves(seed: int) -> None:
    found = measure(play(SCENARIOS["anything"], "ours", seed))
    # Who was content may have saved a quarter of a second's worth before he wants more, and phases last 13 s.
    assert found.error <= 0.06
    assert found.overshoot < 1.15
    assert found.least >= 0.85
    assert found.fairness >= 0.99


@pytest.mark.seed("82.16")
def test_lost_and_late_reports_do_no_lasting_harm() -> None:
    found = [measure(play(SCENARIOS["2 % of reports lost, 2 % late"], "ours", seed)) for seed in range(8)]
    assert sorted(figures.error for figures in found)[4] <= 0.02
    assert max(figures.error for figures in found) <= 0.1  # where a peer was thought dead, for two seconds of 18
    assert min(figures.least for figures in found) >= 0.95


@pytest.mark.parametrize("seed", range(2))
def test_a_gateway_that_flips_between_hungry_and_content_takes_no_others_part_along(seed: int) -> None:
    world = World(seed=seed)
    world.join("a", ALL)
    world.join("b", waves(20, 45, 8.0))
    world.run(60)
    assert world.rate(5, 60) == pytest.approx(LIMIT, rel=0.05)
    assert max(world.rate(t / 4, t / 4 + 1) for t in range(20, 230)) < 1.3 * LIMIT
    assert min(world.member("a0", t, t + 4) for t in range(5, 55)) >= 45


def test_gateways_have_equal_parts_however_many_of_their_producers_wait() -> None:
    world = World(seed=4)
    world.join("a", 30.0, ALL, ALL)
    world.join("b", ALL)
    world.run(40)
    first = sum(world.member(name, 10, 40) for name in ("a0", "a1", "a2"))
    assert [first, world.member("b0", 10, 40)] == pytest.approx([50, 50], rel=0.03)


def test_a_fleet_without_its_exchange_keeps_to_the_limit() -> None:
    """Frozen, both go on with 80 and 20, plus the growth allowed to the second; then each gets to its half."""
    world = World(seed=6)
    world.join("a", ALL)
    world.join("b", 20.0)
    world.run(15)
    world.exchange = False
    for gateway in world.gateways.values():
        gateway.control.freeze(world.now)
    world.run(5)
    world.want("b", ALL)
    world.run(FROZEN_S + DECAY_S + 10)
    assert max(world.rate(t, t + 1) for t in (*range(15, 19), *range(22, 60))) <= (1 + HEADROOM) * LIMIT + 0.1
    end = world.now
    assert [world.member(name, end - 5, end) for name in ("a0", "b0")] == pytest.approx([50, 50], rel=0.02)


@pytest.mark.parametrize(("away_s", "seed"), matrix([1.0, 3.0, 8.0], range(3)))
def test_a_gateway_whose_control_died_takes_no_others_part_and_has_its_own_again_when_it_is_back(
    seed: int, away_s: float
) -> None:
    """Peers forget it after two cycles, and its workers know when."""
    world = World(seed=seed)
    world.join("a", ALL, ALL)
    world.join("b", ALL, ALL)
    world.run(15)
    killed = world.now
    world.kill_control("a")
    world.run(away_s)
    world.start_control("a")
    back = world.now
    world.run(20)
    for t in (killed + i / 4 for i in range(round(4 * (world.now - killed)) - 4)):
        if not killed + 1 <= t < killed + 3:  # two cycles, and the second that a message may be late
            assert world.rate(t, t + 1) < 1.1 * LIMIT
    assert world.rate(killed + 3, world.now) > 0.8 * LIMIT
    assert world.rate(back + 4, world.now) == pytest.approx(LIMIT, rel=0.03)
    parts = [sum(world.member(f"{name}{n}", back + 4, world.now) for n in range(2)) for name in "ab"]
    assert parts == pytest.approx([LIMIT / 2] * 2, rel=0.1)


def test_ours_is_nowhere_worse_than_the_step_function() -> None:
    for name in ("70, then 70/70", "an idle one wakes", "one of three is killed", "limit halved, tripled"):
        ours, whole, part = (measure(play(SCENARIOS[name], kind, 2)) for kind in ("ours", "whole", "proportional"))
        for theirs in (whole, part):
            assert ours.slowest <= theirs.slowest
            assert ours.overshoot <= theirs.overshoot + 0.01
            assert ours.fairness >= theirs.fairness - 0.001


def test_jains_index() -> None:
    assert jain([1, 1, 1]) == pytest.approx(1)
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([0, 0]) == 0.0


def test_the_picture_in_the_docs_is_what_the_simulator_draws() -> None:

    docs = Path(__file__).parents[3] / "docs"
    assert (docs / "shares.svg").read_text() == picture()
