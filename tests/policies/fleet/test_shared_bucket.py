# One bucket in several workers: they see each other's takings at once, and together are what one bucket would be.

from __future__ import annotations

import gc
import math
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fleet import page
from policies.fleet.fleet_limiter import FleetLimiter, FleetShares
from policies.fleet.page import SharedPage
from policies.fleet.shared_bucket import SharedBucket
from policies.limits.bucket import TokenBucket
from tests.policies.fleet.pages import pages as shared_pages

KEY = '["t",1]'
RATE = 1000.0


def pages(workers: int, memory: memoryview | None = None) -> list[SharedPage]:
    """Of workers whose own clocks are 100 s, 200 s … behind the shared one."""
    return shared_pages(workers, memory, 100.0)


def bucket(of: SharedPage, now: float, burst_s: float = 1.0, debt_s: float = 30.0) -> SharedBucket:
    """`now`: of the shared clock."""
    row = of.acquire_row(KEY)
    assert row is not None
    return SharedBucket(RATE, burst_s, debt_s, now - of.ahead_s, row, of.ahead_s, RATE)


def test_a_later_worker_finds_the_debt_and_one_that_is_gone_leaves_it() -> None:
    memory = memoryview(bytearray(page.page_size(2)))
    first, second = pages(2, memory)
    one = bucket(first, 1000.0)
    one.consume_tokens(5000, 900.0)
    assert bucket(second, 1001.0).debt_wait_s(801.0) == 4.0
    del one
    gc.collect()
    again = SharedPage(memory, 2, 0, nullcontext, 100.0)  # the worker was started again
    assert bucket(again, 1002.0).debt_wait_s(902.0) == 3.0


def test_returned_or_forgiven_bytes_are_so_for_all() -> None:
    one, two = (bucket(each, 1000.0) for each in pages(2))
    one.consume_tokens(5000, 900.0)
    two.token_level(800.0)
    two.refund_tokens(1000)
    assert one.token_level(900.0) == -4000
    assert one.token_level(901.0) == -3000
    one.forgive_debt(500)
    assert two.token_level(801.0) == -500


def test_all_know_what_is_owed_with_what_nobody_waits_for() -> None:
    one, two = (bucket(each, 1000.0) for each in pages(2))
    one.consume_tokens(50_000, 900.0)
    assert one.owed_tokens == two.owed_tokens == 50_000
    assert one.token_level(900.0) == -30_000
    two.refund_tokens(45_000)
    assert one.owed_tokens == 5000


def test_a_debt_follows_a_limit_that_is_cut_once_however_many_are_told() -> None:
    one, two, three = (bucket(each, 1000.0) for each in pages(3))
    one.consume_tokens(8000, 900.0)
    for each in (two, one, three):
        each.follow_limit(RATE, RATE / 4, 2000.0)
        two.consume_tokens(1000, 800.0)
    assert one.token_level(900.0) == two.token_level(800.0) == three.token_level(700.0) == -5000
    one.follow_limit(RATE / 4, RATE, 1.0)  # raised: what is owed stays
    assert three.token_level(700.0) == -5000


def test_bytes_that_no_client_waits_for_are_owed_by_all() -> None:
    one, two = (bucket(each, 1000.0, debt_s=10.0) for each in pages(2))
    one.consume_tokens(15_000, 900.0)
    assert (two.token_level(800.0), two.excess_debt) == (-10_000, 5000)
    assert two.token_level(812.0) == 1000  # what can't be saved pays
    assert two.excess_debt == 4000
    two.consume_tokens(0, 812.0)
    assert (one.token_level(912.0), one.excess_debt) == (1000, 4000)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.floats(0, 3), st.integers(-500, 4000), st.booleans()), min_size=1, max_size=60
    )
)
def test_several_workers_are_what_one_bucket_would_be(steps: list[tuple[int, float, int, bool]]) -> None:
    alone = TokenBucket(RATE, 1.0, 30.0, 1000.0)
    many = pages(3)
    shared = [bucket(each, 1000.0) for each in many]
    now = 1000.0
    for worker, pause, size, absorbs in steps:
        now += pause
        own = now - many[worker].ahead_s
        if absorbs:
            alone.token_level(now)  # without what came in evenly: that is each worker's own to judge
            shared[worker].token_level(own)
            alone.consume_evenly(size, now)
            shared[worker].consume_evenly(size, own)
        else:
            assert shared[worker].consume_tokens(size, own) == pytest.approx(alone.consume_tokens(size, now), abs=1e-6)
        for each, seen in zip(many, shared, strict=True):
            assert seen.token_level(now - each.ahead_s) == pytest.approx(alone.token_level(now), abs=1e-6)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2000)), min_size=1, max_size=40))
def test_no_byte_is_lost_where_all_write_at_the_same_moment(steps: list[tuple[int, int]]) -> None:
    many = pages(3)
    shared = [bucket(each, 1000.0, debt_s=1e9) for each in many]
    for worker, size in steps:
        shared[worker].consume_tokens(size, 1000.0 - many[worker].ahead_s)
    assert [each.token_level(1000.0 - at.ahead_s) for each, at in zip(shared, many, strict=True)] == [
        -sum(size for _, size in steps)
    ] * 3


def test_lines_of_all_workers_are_one_line() -> None:
    one, two = (FleetLimiter(FleetShares(each), KEY, RATE, 1.0, 1000.0 - each.ahead_s) for each in pages(2))
    one.charge_amount(4000, 900.0)
    assert two.check_admission(100, 800.0, True, 0.0).wait_s == pytest.approx(4.1)
    assert math.isclose(one.gateway_rate, two.gateway_rate)


def test_slices_are_by_weight_among_workers_that_want_more_of_the_unclaimed_rest() -> None:
    one, two, three = (FleetShares(each) for each in pages(3))
    one.update_slice("shares 1", RATE, 100.0, 3.0, True, 900.0)
    two.update_slice("shares 1", RATE, 0.0, 1.0, True, 800.0)
    assert three.update_slice("shares 1", RATE, 500.0, 0.0, False, 700.0) == 500.0
    assert three.update_slice("shares 1", RATE, 500.0, 4.0, False, 700.0) == 500.0 + 200.0, "if it wanted more"
    assert one.update_slice("shares 1", RATE, 100.0, 3.0, True, 900.1) == 100.0 + 300.0
    assert two.update_slice("shares 1", RATE, 0.0, 1.0, True, 800.1) == 100.0
    assert one.update_slice("shares 1", RATE, 100.0, 3.0, True, 910.0) == RATE, "the others have said nothing for long"
    assert one.update_slice("shares 2", RATE, 100.0, 3.0, True, 910.0) == RATE, "of another broker"


def test_the_other_workers_reports_of_a_slice_are_known_without_ones_own() -> None:
    one, two = (FleetShares(each) for each in pages(2))
    assert one.read_slices("shares 1", 900.0) == (0.0, 0.0)
    one.update_slice("shares 1", RATE, 100.0, 3.0, True, 900.0)
    two.update_slice("shares 1", RATE, 50.0, 7.0, False, 800.0)
    assert one.read_slices("shares 1", 900.0) == (50.0, 0.0)
    assert two.read_slices("shares 1", 800.0) == (100.0, 3.0)
    two.update_slice("shares 1", RATE, 60.0, 7.0, True, 801.5)
    assert one.read_slices("shares 1", 902.5) == (60.0, 7.0), "what it said itself is too old to count"


def test_an_unwanted_rest_is_shared_alike() -> None:
    one, two = (FleetShares(each) for each in pages(2))
    one.update_slice("shares 1", RATE, 200.0, 1.0, False, 900.0)
    assert two.update_slice("shares 1", RATE, 600.0, 1.0, False, 800.0) == 700.0
    assert two.update_slice("shares 1", RATE, 2 * RATE, 0.0, False, 800.1) == 2 * RATE
    assert one.update_slice("shares 1", RATE, 0.0, 1.0, True, 900.2) == 0.0


def test_a_worker_that_can_not_report_has_an_even_slice() -> None:
    def stuck() -> nullcontext[None]:  # another worker holds the lock
        raise TimeoutError

    alone = FleetShares(SharedPage(memoryview(bytearray(page.page_size(4))), 4, 0, stuck))
    assert alone.update_slice("shares 1", RATE, 600.0, 3.0, True, 0.0) == RATE / 4


def test_a_worker_that_is_alone_has_all_of_it() -> None:
    assert FleetShares().update_slice("shares 1", RATE, 600.0, 3.0, True, 0.0) == RATE
