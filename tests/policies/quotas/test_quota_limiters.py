# Client quotas at work: who shares a line, what is charged when, and how shares are dealt out.

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decision import ClientPatience
from policies.fleet import page as page_module
from policies.fleet.fleet_limiter import FleetShares
from policies.fleet.page import SharedPage
from policies.fleet.shares import max_min_fair
from policies.limits.bucket import TokenBucket
from policies.limits.limiter import BURST_S, DEBT_S, MAX_WAIT_S
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from policies.quotas.quota_limiters import (
    ALLOCATE_S,
    CLAIMED_DEBT_S,
    NO_QUOTA_LIMIT,
    ConnectionQuotaLimit,
    QuotaLimiter,
    QuotaLimiters,
)
from policies.quotas.store import EntityValues, QuotaStore
from policies.verdict import CLIENT_QUOTA, DELAY, REJECT
from tests.effort import growth
from tests.examples import matrix
from tests.policies.asking import present
from tests.policies.fleet.pages import pages

ALICE = Entity("alice")
EVERYBODY = Entity(DEFAULT)


def quotas(
    *entries: tuple[Entity, str, float], observes: bool = False, page: SharedPage | None = None
) -> QuotaLimiters:
    made = QuotaLimiters(FleetShares(page))
    values: dict[Entity, dict[QuotaKey, float]] = {}
    for entity, key, value in entries:
        values.setdefault(entity, {})[QuotaKey.parse(key)] = value
    made.set_quotas(QuotaStore(values), 0.0, observes=observes)
    return made


def alices(*values: tuple[str, float]) -> ConnectionQuotaLimit:
    """What holds for a connection of alice's, who has these quotas."""
    return quotas(*((ALICE, *value) for value in values)).connection_limit(1, "alice", "", 0.0)


def line_of(made: QuotaLimiters, user: str, client_id: str = "", now: float = 0.0) -> QuotaLimiter:
    """What that client's Produce requests are charged to."""
    return made.connection_limit(1, user, client_id, now).produce_limiters[0]


def judge(lines: ConnectionQuotaLimit, size: int, now: float = 0.0) -> tuple[str, int] | None:
    verdict = lines.judge_request(size, 1, ClientPatience(), now)
    return None if verdict is None else (verdict.action, verdict.throttle_ms)


def test_all_connections_of_one_bucket_share_one_line_and_no_others() -> None:
    made = quotas((ALICE, "producer_byte_rate", 1000))
    one, two = (line_of(made, "alice", name) for name in ("app", "other"))
    assert one is two
    assert made.connection_limit(1, "bob", "app", 0.0) is NO_QUOTA_LIMIT
    made = quotas((EVERYBODY, "producer_byte_rate", 1000))
    assert line_of(made, "alice") is not line_of(made, "bob")


def test_broker_bps_is_per_broker_and_bps_for_all_of_them() -> None:
    made = quotas((ALICE, "producer_byte_rate", 1000), (ALICE, "producer_byte_rate:bps", 1500))
    on_1, on_2 = made.connection_limit(1, "alice", "", 0.0), made.connection_limit(2, "alice", "", 0.0)
    by_unit_1 = {line.quota.unit: line for line in on_1.produce_limiters}
    by_unit_2 = {line.quota.unit: line for line in on_2.produce_limiters}
    assert by_unit_1["bps"] is by_unit_2["bps"]
    assert by_unit_1["broker_bps"] is not by_unit_2["broker_bps"]


@pytest.mark.seed("546.12")
def test_whichever_limit_is_hit_first_decides() -> None:
    lines = alices(("producer_byte_rate", 1000), ("producer_byte_rate:bps", 500))
    assert lines.judge_request(1, 1, ClientPatience(), 0.0) is None
    verdict = present(lines.judge_request(1000, 1, ClientPatience(), 0.0))
    assert (verdict.action, verdict.reason, verdict.throttle_ms) == (DELAY, CLIENT_QUOTA, 2000)
    assert "producer_byte_rate:bps=500" in verdict.text
    assert "{user=alice}" in verdict.text


def test_judging_charges_nothing() -> None:
    lines = alices(("producer_byte_rate", 1000))
    assert [judge(lines, 500) for _ in range(3)] == [(DELAY, 500)] * 3


def test_a_request_without_room_is_rejected() -> None:
    lines = alices(("producer_byte_rate", 1000))
    lines.produce_limiters[0].charge_amount(1000 * (MAX_WAIT_S + 1), 0.0)
    assert present(judge(lines, 1))[0] == REJECT


def test_a_client_that_reconnects_finds_its_debt() -> None:
    made = quotas((ALICE, "producer_byte_rate", 1000))
    line_of(made, "alice").charge_amount(20_000, 0.0)
    gc.collect()
    made.close_tick(5.0)
    gc.collect()
    assert line_of(made, "alice", now=5.0).bucket.token_level(5.0) == -15_000


def test_a_client_that_closes_right_after_a_large_request_finds_its_debt_as_well() -> None:
    # The line was full at the last tick, and the connection was all that kept it.
    made = quotas((ALICE, "producer_byte_rate", 1000))
    lines = made.connection_limit(1, "alice", "", 0.0)
    made.close_tick(5.0)
    lines.produce_limiters[0].charge_amount(64_000, 6.0)
    del lines
    gc.collect()
    assert line_of(made, "alice", now=6.0).bucket.token_level(6.0) == -63_000
    made.close_tick(10.0)
    gc.collect()
    assert line_of(made, "alice", now=10.0).bucket.token_level(10.0) == -59_000


@pytest.mark.parametrize(("user", "size"), matrix(["alice", "ANONYMOUS"], [10, 100, 1_000, 10_000, 64_000, 640_000]))
def test_requests_of_no_size_over_new_connections_evade_a_quota(size: int, user: str) -> None:
    made = quotas((EVERYBODY, "producer_byte_rate", 1000))
    passed = 0
    for now in range(120):
        while True:
            lines = made.connection_limit(1, user, "", now)
            found = judge(lines, size, now)
            if found is not None and found[0] == REJECT:
                break
            lines.produce_limiters[0].charge_amount(size, now)
            passed += size
        del lines
        if now % 5 == 0:
            made.close_tick(now)
        gc.collect(0)
    assert passed <= 1.1 * 1000 * 120 + 1000 * BURST_S + size


def test_no_client_waits_for_all_of_the_debt_of_the_line_of_surplus_clients() -> None:
    made = quotas((Entity(None, DEFAULT), "producer_byte_rate", 1000))
    made.max_limiters = 1
    own, shared = (line_of(made, "bob", name) for name in ("first", "second"))
    for line in (own, shared):
        line.charge_amount(1000 * 100, 0.0)
    assert own.bucket.token_level(0.0) == -1000 * 100
    assert shared.bucket.token_level(0.0) == -1000 * DEBT_S


def test_lines_without_use_or_debt_are_forgotten() -> None:
    made = quotas((EVERYBODY, "producer_byte_rate", 1000))
    for i in range(100):
        made.connection_limit(1, f"user-{i}", "", 0.0)
    held = made.connection_limit(1, "user-7", "", 0.0)
    made.close_tick(10.0)
    gc.collect()
    assert [rate.user for rate in made.busiest_rates(9, 10.0)] == ["user-7"]
    assert held.produce_limiters


def test_beyond_so_many_lines_the_rest_shares_one() -> None:
    # Client ids are free text: making them up must not fill the memory.
    made = quotas((Entity(None, DEFAULT), "producer_byte_rate", 1000), (ALICE, "producer_byte_rate:bps", 1))
    made.max_limiters = 10
    held = [line_of(made, "bob", f"app-{i}") for i in range(30)]
    assert len(set(held)) == 11
    assert held[29].read_rate(0.0).client_id == "other"
    assert held[29].bucket.rate == 1000
    made.max_limiters = 12
    real = line_of(made, "bob", "other")
    assert (real.quota.bucket.client_id, real.key != held[29].key) == ("other", True), (
        "who is called so isn't everybody"
    )


def test_the_smallest_share_of_time_is_still_a_rate() -> None:
    made = quotas((ALICE, "request_percentage", 0.001))
    assert made.connection_limit(1, "alice", "", 0.0).time_limiters[0].bucket.rate > 0


def test_a_changed_value_holds_for_lines_in_use_and_keeps_the_debt() -> None:
    made = quotas((ALICE, "producer_byte_rate", 1000))
    line = line_of(made, "alice")
    line.charge_amount(5000, 0.0)
    version = made.version
    made.set_quotas(QuotaStore({ALICE: {QuotaKey.parse("producer_byte_rate"): 2000.0}}), 0.0)
    assert made.version != version
    assert made.connection_limit(1, "alice", "", 0.0).produce_limiters == (line,)
    assert line.bucket.debt_wait_s(0.0) == 2.5


@pytest.mark.seed("035.2")
def test_the_storage_factor_multiplies_produce_limits_and_no_others() -> None:
    made = quotas(
        (ALICE, "producer_byte_rate", 1000), (ALICE, "consumer_byte_rate", 1000), (ALICE, "request_percentage", 50)
    )
    lines = made.connection_limit(1, "alice", "", 0.0)
    made.set_storage_factor(0.25, 0.0)
    assert lines.produce_limiters[0].bucket.rate == 250
    assert lines.consume_limiters[0].bucket.rate == 1000
    assert lines.time_limiters[0].bucket.rate == 0.5
    assert made.connection_limit(2, "alice", "", 0.0).produce_limiters[0].bucket.rate == 250


def test_fetch_answers_are_charged_and_the_wait_is_bounded() -> None:
    lines = alices(("consumer_byte_rate", 1000))
    assert lines.charge_fetch(500, 0.0) == 0.5
    assert lines.charge_fetch(10**6, 0.0) == MAX_WAIT_S


def test_time_that_was_spent_delays_what_comes_next() -> None:
    lines = alices(("request_percentage", 10))
    assert judge(lines, 10**9) is None
    lines.time_limiters[0].charge_amount(0.2, 0.0)
    assert judge(lines, 1) == (DELAY, 2000)
    assert lines.charge_fetch(1, 0.0) == 2.0


def test_an_observed_quota_is_measured_and_not_charged() -> None:
    lines = alices(("producer_byte_rate", 1000), ("consumer_byte_rate", 1000))
    lines.record_only(500, 1)
    lines.record_fetch_only(700)
    assert [line.meter.uncharged for line in (*lines.produce_limiters, *lines.consume_limiters)] == [500, 700]
    assert [line.bucket.token_level(0.0) for line in (*lines.produce_limiters, *lines.consume_limiters)] == [0, 0]


def test_an_observed_quota_measures_what_did_not_get_in_and_a_total_does_not() -> None:
    """Shares are dealt out of what the log gets."""
    lines = alices(("producer_byte_rate", 1000))
    request = lines.for_request(50)
    request.record_only(500, 1)
    assert (lines.produce_limiters[0].meter.uncharged, lines.uncharged.produced) == (550, 500)
    request.record_only(-500, -1)
    assert (lines.produce_limiters[0].meter.uncharged, lines.uncharged.produced) == (550, 0)


@pytest.mark.parametrize(
    ("entity", "left_s"),
    [
        (ALICE, 100.0),
        (EVERYBODY, 100.0),
        (Entity("alice", "app"), 100.0),
        (Entity(None, "app"), CLAIMED_DEBT_S),
        (Entity(None, DEFAULT), CLAIMED_DEBT_S),
    ],
)
def test_a_client_keeps_what_did_not_get_in_unless_anybody_can_be_it(entity: Entity, left_s: float) -> None:
    lines = quotas((entity, "producer_byte_rate", 1000)).connection_limit(1, "alice", "app", 0.0)
    lines.charge_request(100_000, 1, 0.0)
    lines.refund_request(100_000, 1)
    (line,) = lines.produce_limiters
    assert line.debt_wait_s(0.0) == left_s
    assert line.spent == 1000 * left_s


@pytest.mark.parametrize("client_id", ["app", DEFAULT, None])
def test_strangers_are_anybody(client_id: Any) -> None:
    lines = quotas((Entity("ANONYMOUS", client_id), "producer_byte_rate", 1000)).connection_limit(
        1, "ANONYMOUS", "app", 0.0
    )
    lines.charge_request(100_000, 1, 0.0)
    lines.refund_request(100_000, 1)
    assert lines.produce_limiters[0].bucket.owed_tokens == 1000 * (DEBT_S if client_id is None else CLAIMED_DEBT_S)


def test_a_client_is_held_to_its_rate_steadily() -> None:
    # KIP-13's own way, a window of samples, gave 1.90 and then 0.06 MB/s for 1 MiB/s.
    lines = alices(("producer_byte_rate", 2**20))
    now, seconds = 0.0, [0] * 31
    while now < 30.0:
        verdict = lines.judge_request(16_384, 1, ClientPatience(), now)
        lines.produce_limiters[0].charge_amount(16_384, now)
        seconds[int(now)] += 16_384
        now += (verdict.throttle_ms / 1000 if verdict else 0.0) + 0.001
    assert all(0.9 * 2**20 <= second <= 1.1 * 2**20 for second in seconds[5:30])


# --- several workers of one gateway -----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["producer_byte_rate", "producer_byte_rate:bps"])
def test_a_bucket_is_one_for_clients_connected_anywhere(key: str) -> None:
    one, two = (quotas((ALICE, key, 1000), page=page).connection_limit(1, "alice", "", 0.0) for page in pages(2))
    one.produce_limiters[0].charge_amount(5000, 10.0)
    assert judge(two, 1000, 10.0) == (DELAY, 5000)


def test_a_share_of_a_threads_time_is_one_of_all_workers_and_of_no_other_gateway() -> None:
    many = [quotas((ALICE, "request_percentage", 50), page=page) for page in pages(2)]
    for made in many:
        made.fleet.update_grants({}, 4, 2.0, 0.0)
    one, two = (made.connection_limit(1, "alice", "", 0.0).time_limiters[0] for made in many)
    assert one.gateway_rate == two.gateway_rate == 0.5
    one.charge_amount(1.5, 10.0)
    assert two.debt_wait_s(10.0) == 2.0, "a second is saved, as of any limit that is whole here"
    assert not many[0].fleet.limiters


def test_a_client_that_comes_back_to_another_worker_finds_its_debt() -> None:
    one, two = (quotas((ALICE, "producer_byte_rate", 1000), page=page) for page in pages(2))
    line_of(one, "alice", now=10.0).charge_amount(20_000, 10.0)
    one.close_tick(15.0)
    gc.collect()
    assert line_of(two, "alice", now=15.0).bucket.token_level(15.0) == pytest.approx(-15_000)


def test_beyond_what_the_page_has_room_for_each_worker_has_an_even_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "ROWS", 4)
    many = [quotas((EVERYBODY, "producer_byte_rate", 1000), page=page) for page in pages(2)]
    held = [line_of(made, f"user-{number}") for number in range(6) for made in many]
    assert [line.bucket.rate for line in held] == [1000] * 8 + [500] * 4
    assert {line.read_rate(0.0).use.limit for line in held} == {1000}
    for made in many:
        made.set_quotas(QuotaStore({EVERYBODY: {QuotaKey.parse("producer_byte_rate"): 3000.0}}), 1.0)
        for number in range(6):
            made.connection_limit(1, f"user-{number}", "", 1.0)
    assert [line.bucket.rate for line in held] == [3000] * 8 + [1500] * 4


# --- shares -----------------------------------------------------------------------------------------------------------


def play_shares(
    wants: dict[str, Callable[[float], float]],
    shares: dict[str, float],
    until: float,
    others: float = 0.0,
    workers: int = 1,
) -> dict[str, list[float]]:
    """What each client gets, in bytes by deal, of a total of 12,000 bytes/s. `wants`: bytes per second at a time.
    Clients are connected to workers in turns; others, who have no shares, to the first one.
    """  # fmt: skip
    entries = [(Entity(name), "producer_byte_rate:shares", share) for name, share in shares.items()]
    made = [quotas(*entries, page=page) for page in pages(workers)]
    at = {name: number % workers for number, name in enumerate(wants)}
    lines = {name: made[at[name]].connection_limit(1, name, "", 0.0).produce_limiters[0] for name in wants}
    blocked = dict.fromkeys(wants, 0.0)
    got: dict[str, list[float]] = {name: [] for name in wants}
    steps = round(until / ALLOCATE_S)
    for step in range(steps):
        start = step * ALLOCATE_S
        for name, line in lines.items():
            sent = 0.0
            for part in range(25):
                now = start + part * ALLOCATE_S / 25
                size = wants[name](now) * ALLOCATE_S / 25
                if size and now >= blocked[name]:
                    answer = line.check_admission(round(size), now, True, 0.0)
                    line.charge_amount(size, now)
                    blocked[name] = now + answer.wait_s
                    sent += size
            got[name].append(sent)
        for number, worker in enumerate(made):
            taken = sum(sent[-1] for name, sent in got.items() if at[name] == number)
            worker.allocate_shares(
                {1: (12_000.0, taken + (others * ALLOCATE_S if number == 0 else 0.0))}, start + ALLOCATE_S
            )
    return got


def rate(deals: list[float], last_s: float) -> float:
    return sum(deals[-round(last_s / ALLOCATE_S) :]) / last_s


@pytest.mark.seed("546.13")
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_three_clients_with_shares_1_2_3_get_them_of_a_contested_total(workers: int) -> None:
    got = play_shares(dict.fromkeys("abc", lambda _: 20_000.0), {"a": 1, "b": 2, "c": 3}, 30.0, workers=workers)
    assert [rate(got[name], 20.0) for name in "abc"] == pytest.approx([2000, 4000, 6000], rel=0.05)


@pytest.mark.seed("546.13")
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_part_that_one_does_not_want_goes_to_the_others(workers: int) -> None:
    wants: dict[str, Callable[[float], float]] = {
        "a": lambda _: 20_000.0, "b": lambda _: 20_000.0, "c": lambda _: 1000.0,
    }  # fmt: skip
    got = play_shares(wants, {"a": 1, "b": 2, "c": 3}, 30.0, workers=workers)
    assert [rate(got[name], 20.0) for name in "abc"] == pytest.approx([11_000 / 3, 22_000 / 3, 1000], rel=0.08)


def fair_parts(shares: Mapping[str, float], wants: Mapping[str, float], total: float) -> dict[str, float]:
    """KIP-546's shares: each gets what it wants, or as much per share as all others that want more."""
    if sum(wants.values()) <= total:
        return dict(wants)
    low, high = 0.0, total
    for _ in range(100):  # the rate per share at which the total is used up
        middle = (low + high) / 2
        used = sum(min(wants[name], shares[name] * middle) for name in shares)
        low, high = (low, middle) if used > total else (middle, high)
    return {name: min(wants[name], shares[name] * low) for name in shares}


@pytest.mark.seed("546.13")
@pytest.mark.parametrize(("seed", "workers"), matrix(range(12), [1, 2, 3, 4]))
def test_any_mix_of_clients_has_fair_parts_and_together_the_total(seed: int, workers: int) -> None:
    """Also where most of the total goes to those that have all that they want."""
    chance = random.Random(seed)
    names = [f"user{number}" for number in range(chance.randint(2, 5))]
    shares = {name: float(chance.choice([1, 2, 3, 10, 100])) for name in names}
    wants = {name: 12_000.0 * chance.choice([0.02, 0.1, 0.3, 0.5, 2.0]) for name in names}
    others = 12_000.0 * chance.choice([0.0, 0.2])
    steady: dict[str, Callable[[float], float]] = {name: lambda _, rate=rate: rate for name, rate in wants.items()}  # type: ignore[misc]
    got = play_shares(steady, shares, 40.0, others, workers)
    due = fair_parts(shares, wants, 12_000.0 - others)
    assert {name: rate(got[name], 20.0) for name in names} == pytest.approx(due, rel=0.03, abs=120.0)


@pytest.mark.parametrize("workers", [1, 2])
def test_bytes_that_clients_without_shares_take_are_not_there_to_be_shared(workers: int) -> None:
    got = play_shares(dict.fromkeys("ab", lambda _: 20_000.0), {"a": 1, "b": 1}, 30.0, others=6000.0, workers=workers)
    assert [rate(got[name], 20.0) for name in "ab"] == pytest.approx([3000, 3000], rel=0.08)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_user_that_comes_back_after_a_pause_has_its_shares_within_seconds(workers: int) -> None:
    wants: dict[str, Callable[[float], float]] = {
        "a": lambda _: 20_000.0, "b": lambda now: 20_000.0 if now >= 20 else 0.0,
    }  # fmt: skip
    got = play_shares(wants, {"a": 1, "b": 1}, 26.0, workers=workers)
    assert rate(got["a"][: round(20 / ALLOCATE_S)], 10.0) == pytest.approx(12_000, rel=0.05)
    assert [rate(got[name], 4.0) for name in "ab"] == pytest.approx([6000, 6000], rel=0.1)


def test_bytes_taken_without_shares_at_another_worker_are_not_there_to_be_shared_either() -> None:
    """That worker has no client with shares."""
    many = [quotas((ALICE, "producer_byte_rate:shares", 1), page=page) for page in pages(2)]
    line = many[0].connection_limit(1, "alice", "", 0.0).produce_limiters[0]
    now = 0.0
    for _ in range(40):
        now += ALLOCATE_S
        line.charge_amount(2000, now)  # of 3000 that there are in this time
        many[0].allocate_shares({1: (12_000.0, 2000.0)}, now)
        many[1].allocate_shares({1: (12_000.0, 2500.0)}, now)
    assert line.bucket.rate <= 2000.0


def test_an_allocation_costs_as_much_as_there_are_clients_and_not_as_their_square() -> None:
    def prepare(clients: int) -> Callable[[], object]:
        made = quotas((EVERYBODY, "producer_byte_rate:shares", 1))
        lines = [line_of(made, str(number)) for number in range(clients)]
        for number, line in enumerate(lines):
            line.bucket.set_rate(1000.0, 0.0)
            line.charge_amount(3000.0 if number % 2 else 1.0, 0.0)

        def allocate() -> None:
            made.allocate_shares({1: (1e6, 0.0)}, ALLOCATE_S)

        return allocate

    assert growth(prepare, 500, 8, 24.0) < 24.0


def test_without_a_total_shares_are_no_limit_yet_cost_nothing() -> None:
    made = quotas((ALICE, "producer_byte_rate:shares", 1))
    made.connection_limit(1, "alice", "", 0.0)
    made.allocate_shares({1: (None, 0.0)}, 1.0)


def play_consumers(
    shares: dict[str, float], wants: dict[str, float], others: float, until: float, workers: int = 1
) -> dict[str, float]:
    """Consumers of a broker whose total for them is 12,000 bytes/s: what each got per second of the last two thirds.

    `wants`: bytes that an answer may bring, at most; each asks again as soon as it may, but 20 times a second at most.
    `others`: bytes per second of one without shares. Clients are connected to workers in turns.
    """
    entries = [(Entity(name), "consumer_byte_rate:shares", number) for name, number in shares.items()]
    made = [quotas(*entries, page=page) for page in pages(workers)]
    for worker in made:
        worker.set_totals_out(12_000.0, {})
    at = {name: made[number % workers] for number, name in enumerate(shares)}
    lines = {name: at[name].connection_limit(1, name, "", 0.0) for name in shares}
    next_at, got = dict.fromkeys(shares, 0.0), dict.fromkeys(shares, 0.0)
    for step in range(round(until / 0.05)):
        now = 0.05 * step
        for name, line in lines.items():
            if now >= next_at[name] and line.check_fetch(0, ClientPatience(), now).admitted:
                promised = line.reserve_fetch(now)
                size = min(wants[name], promised or math.inf, 50_000.0)
                line.release_fetch(promised)
                next_at[name] = now + line.charge_fetch(round(size), now)
                at[name].record_fetched(1, round(size))
                got[name] += size if now >= until / 3 else 0.0
        made[0].record_fetched(1, round(others * 0.05))
        for worker in made if step % 5 == 4 else ():
            worker.allocate_fetch_shares(now)
    return {name: sent / (until * 2 / 3) for name, sent in got.items()}


@pytest.mark.seed("546.13")
@pytest.mark.parametrize(("workers", "size"), matrix([1, 2, 3], [500.0, 5_000.0, 1e9]))
def test_consumers_with_shares_get_them_of_the_total_for_consumption(size: float, workers: int) -> None:
    got = play_consumers({"a": 1, "b": 2, "c": 3}, dict.fromkeys("abc", size), 0.0, 240.0, workers)  # worth seconds
    assert list(got.values()) == pytest.approx([2000, 4000, 6000], rel=0.05)


@pytest.mark.seed("546.13")
@pytest.mark.parametrize(("size", "workers"), matrix([200.0, 1000.0], [1, 2, 3]))
def test_consumers_with_few_shares_have_all_that_one_with_many_leaves_and_no_more(size: float, workers: int) -> None:
    """At 200 bytes, 20 times a second, each of them would take less than the total, and all together more."""
    got = play_consumers({"a": 100, "b": 1, "c": 1}, {"a": 360.0, "b": size, "c": size}, 0.0, 60.0, workers)
    assert list(got.values()) == pytest.approx([7200, 2400, 2400], rel=0.05)


def test_the_rest_a_consumer_leaves_goes_to_the_others_and_bytes_others_take_are_gone() -> None:
    got = play_consumers({"a": 1, "b": 1, "c": 2}, {"a": 5_000.0, "b": 5_000.0, "c": 50.0}, 3000.0, 60.0)
    assert list(got.values()) == pytest.approx([4000, 4000, 1000], rel=0.1)


def test_totals_of_producers_and_of_consumers_are_dealt_out_apart() -> None:
    made = quotas((ALICE, "consumer_byte_rate:shares", 1), (ALICE, "producer_byte_rate:shares", 1))
    made.set_totals_out(12_000.0, {2: 6000.0})
    one, two = (made.connection_limit(node_id, "alice", "", 0.0) for node_id in (1, 2))
    for node_id in (1, 2):
        made.record_fetched(node_id, 1)
    made.allocate_shares({1: (1000.0, 0.0), 2: (1000.0, 0.0)}, 1.0)
    made.allocate_fetch_shares(1.0)
    assert [line.produce_limiters[0].gateway_rate for line in (one, two)] == pytest.approx([1000, 1000], rel=0.01)
    assert [line.consume_limiters[0].gateway_rate for line in (one, two)] == pytest.approx([12_000, 6000], rel=0.01)
    made.set_totals_out(None, {})
    made.allocate_fetch_shares(2.0)
    assert two.charge_fetch(10**7, 2.0) == 0.0


def contested(deals: int, trickle: float) -> tuple[QuotaLimiters, QuotaLimiter, float]:
    """a takes all of 12,000 bytes/s that there is, b `trickle` bytes a deal: b's line, and when the last deal was."""
    made = quotas(*((Entity(name), "producer_byte_rate:shares", 2) for name in "ab"))
    a, b = (line_of(made, name) for name in "ab")
    now = 0.0
    for _ in range(deals):
        if a.check_admission(3000, now, True, 0.0).wait_s < ALLOCATE_S:
            a.charge_amount(3000, now)
        if trickle:
            b.charge_amount(trickle, now)
        taken = a.charged + b.charged
        now += ALLOCATE_S
        made.allocate_shares({1: (12_000.0, taken)}, now)
    return made, b, now


@pytest.mark.parametrize("unit", ["shares", "broker_bps"])
def test_bytes_that_are_only_observed_use_up_none_of_the_total_whose_shares_are_dealt(unit: str) -> None:
    """One client is observed and sends five times the total; the other one is held, and wants all that it can have."""
    made = quotas(
        (Entity("a"), f"producer_byte_rate:{unit}", 1000.0), (Entity("b"), "producer_byte_rate:shares", 1000.0)
    )
    a, b = made.connection_limit(1, "a", "", 0.0), made.connection_limit(1, "b", "", 0.0)
    (line,) = b.produce_limiters
    now = got = 0.0
    for _ in range(400):
        a.record_only(15_000, 1)
        taken = 15_000
        while taken < 30_000 and line.check_admission(500, now, True, 0.0).wait_s < ALLOCATE_S:
            b.charge_request(500, 1, now)
            taken += 500
            got += 500 if now > 50.0 else 0.0
        now += ALLOCATE_S
        made.allocate_shares({1: (12_000.0, taken)}, now)
    assert got / 50.0 == pytest.approx(12_000.0, rel=0.1)


@pytest.mark.parametrize("gateways", [1, 2])
def test_nor_do_fetches_that_are_only_observed(gateways: int) -> None:
    made = quotas(*((Entity(name), "consumer_byte_rate:shares", 1000.0) for name in "ab"))
    made.set_totals_out(12_000.0, {})
    made.fleet.update_grants({}, gateways, 0.0, 0.0)
    a, b = (made.connection_limit(1, name, "", 0.0) for name in "ab")
    (line,) = b.consume_limiters
    for step in range(1, 41):
        a.record_fetch_only(15_000)
        line.charge_amount(6000, (step - 1) * ALLOCATE_S)  # twice what there is
        made.record_fetched(1, 21_000)
        made.allocate_fetch_shares(step * ALLOCATE_S)
    assert line.bucket.rate == pytest.approx(12_000.0 / gateways, rel=0.1), "this gateway's part"


@pytest.mark.seed("546.13")
@pytest.mark.parametrize(("trickle", "deals"), matrix([0.0, 10.0, 500.0], [1, 2, 6, 40]))
def test_a_user_that_wants_its_part_all_of_a_sudden_does_not_stall(deals: int, trickle: float) -> None:
    _, line, now = contested(deals, trickle)
    answer = line.check_admission(6000, now, True, 0.0)
    assert answer.admitted
    assert answer.wait_s <= 3.0  # 6000 bytes at half of 6000 bytes/s, less what is being paid back


@pytest.mark.seed("546.13")
@pytest.mark.parametrize("is_new", [False, True])
def test_a_client_with_few_shares_does_not_wait_by_them_beside_a_total_that_nobody_uses(is_new: bool) -> None:
    """It has one share of 101, and half of the total is free: a request of half a second of that costs as much."""
    made = quotas((Entity("a"), "producer_byte_rate:shares", 100), (Entity("b"), "producer_byte_rate:shares", 1))
    a, b = (line_of(made, name) for name in "ab")
    now = 0.0
    for _ in range(80):
        for _ in range(5):
            a.charge_amount(300.0, now)
            now += ALLOCATE_S / 5
        b.charge_amount(0.0 if is_new else 5.0, now)
        made.allocate_shares({1: (12_000.0, a.charged + b.charged)}, now)
    answer = b.check_admission(3000, now, True, 0.0)
    assert answer.admitted
    b.charge_amount(3000, now)
    assert b.wait_after_charge(now) == answer.wait_s <= ALLOCATE_S + 0.55
    made.allocate_shares({1: (12_000.0, 3000.0)}, now + ALLOCATE_S)
    assert b.check_admission(1, now + answer.wait_s + 0.05, True, 0.0).wait_s == 0.0


def test_a_newcomer_to_a_contested_total_is_held_to_the_rest_there_is() -> None:
    made, _, now = contested(20, 0.0)
    shares: EntityValues = {QuotaKey.parse("producer_byte_rate:shares"): 2.0}
    made.set_quotas(made.store.overlay_entries({Entity("c"): shares}, made.store.version + 1), now)
    line = line_of(made, "c", now=now)
    assert line.check_admission(24_000, now, True, 0.0).wait_s >= 2.0


def test_bytes_taken_beyond_the_total_are_paid_back_within_seconds() -> None:
    # Else the total's own line would stay in debt for ever, and decide first come first served.
    got = play_shares(dict.fromkeys("abc", lambda _: 20_000.0), {"a": 1, "b": 2, "c": 3}, 20.0)
    total, low = TokenBucket(12_000.0, BURST_S, DEBT_S, 0.0), 0.0
    for step, sent in enumerate(zip(*got.values(), strict=True)):
        total.consume_evenly(sum(sent), (step + 1) * ALLOCATE_S)
        if step >= 6 / ALLOCATE_S:
            low = min(low, total.token_level((step + 1) * ALLOCATE_S))
    assert low > -0.1 * 12_000


def test_shares_of_a_total_that_is_gone_limit_nothing_any_more() -> None:
    made, line, now = contested(20, 10.0)
    line.charge_amount(5000, now)
    assert line.check_admission(5000, now, True, 0.0).wait_s > 0.5
    made.allocate_shares({1: (None, 0.0)}, now + ALLOCATE_S)
    assert line.check_admission(5000, now + 2 * ALLOCATE_S, True, 0.0).wait_s == 0.0


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 1000)), min_size=1, max_size=20), st.floats(1, 1000))
def test_a_fair_deal_gives_everything_away_and_leaves_no_complaint(
    wants: list[tuple[float, float]], left: float
) -> None:
    rates = max_min_fair(wants, left)
    assert sum(rates) == pytest.approx(left)
    for (weight, wanted), got in zip(wants, rates, strict=True):
        if got < wanted - 1e-6:  # who gets less than he wants gets no less per share than anybody
            assert all(got / weight >= other / w - 1e-6 for (w, _), other in zip(wants, rates, strict=True))


def test_lines_are_told_by_what_they_are() -> None:
    line = quotas((ALICE, "producer_byte_rate", 1000)).connection_limit(3, "alice", "", 0.0).produce_limiters[0]
    assert (line.node_id, line.text) == (3, "producer_byte_rate:broker_bps=1000 {user=alice}")


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.5, 3.0]), st.integers(0, 4000)), max_size=30),
    st.lists(st.sampled_from([500.0, 1000.0, 8000.0]), min_size=1, max_size=2),
)
def test_within_the_credit_is_what_nobody_would_judge(steps: list[tuple[float, int]], rates: list[float]) -> None:
    """Two sets of the same lines: one is judged, the other one says its credit; both are charged."""
    keys = [("producer_byte_rate", ALICE), ("producer_byte_rate:broker_bps", ALICE)]
    entries = [(entity, key, rate) for (key, entity), rate in zip(keys, rates, strict=False)]
    judged, quick = (quotas(*entries).connection_limit(1, "alice", "app", 0.0) for _ in range(2))
    now = 0.0
    for elapsed, size in steps:
        now += elapsed
        said = judge(judged, size, now)
        judged.charge_request(size, 1, now)
        assert (size <= quick.available_credit(None, now)[0]) == (said is None)
        quick.charge_request(size, 1, now)
        for one, other in zip(judged.produce_limiters, quick.produce_limiters, strict=True):
            assert one.bucket.token_level(now) == other.bucket.token_level(now)
            assert one.meter.charged == other.meter.charged
            assert (one.spent, one.charged) == (other.spent, other.charged)
