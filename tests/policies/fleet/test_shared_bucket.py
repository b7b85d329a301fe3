# One bucket in several workers: they see each other's takings at once, and together are what one bucket would be.

from __future__ import annotations

import gc
import math
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fleet import page
from policies.fleet.lines import FleetLine, OurParts
from policies.fleet.page import Page
from policies.fleet.shared_bucket import SharedBucket
from policies.limits.bucket import Bucket
from tests.policies.pages import pages as shared_pages

KEY = '["t",1]'
RATE = 1000.0


def pages(workers: int, memory: memoryview | None = None) -> list[Page]:
    """Of workers whose own clocks are 100 s, 200 s … behind the shared one."""
    return shared_pages(workers, memory, 100.0)


def bucket(of: Page, now: float, burst_s: float = 1.0, debt_s: float = 30.0) -> SharedBucket:
    """`now`: of the shared clock."""
    row = of.row(KEY)
    assert row is not None
    return SharedBucket(RATE, burst_s, debt_s, now - of.ahead_s, row, of.ahead_s, RATE)


def test_the_others_wait_for_bytes_that_one_worker_takes() -> None:
    one, two = (bucket(each, 1000.0) for each in pages(2))
    assert one.take(3000, 900.0) == 3.0
    assert two.wait(800.0) == 3.0
    assert two.take(1000, 801.0) == 3.0
    assert one.level(902.0) == -2000
    assert one.level(904.5) == two.level(804.5) == 500


def test_a_later_worker_finds_the_debt_and_one_that_is_gone_leaves_it() -> None:
    memory = memoryview(bytearray(page.size(2)))
    first, second = pages(2, memory)
    one = bucket(first, 1000.0)
    one.take(5000, 900.0)
    assert bucket(second, 1001.0).wait(801.0) == 4.0
    del one
    gc.collect()
    again = Page(memory, 2, 0, nullcontext, 100.0)  # the worker was started again
    assert bucket(again, 1002.0).wait(902.0) == 3.0


def test_returned_or_forgiven_bytes_are_so_for_all() -> None:
    one, two = (bucket(each, 1000.0) for each in pages(2))
    one.take(5000, 900.0)
    two.level(800.0)
    two.give_back(1000)
    assert one.level(900.0) == -4000
    assert one.level(901.0) == -3000
    one.forgive(500)
    assert two.level(801.0) == -500


def test_all_know_what_is_owed_with_what_nobody_waits_for() -> None:
    one, two = (bucket(each, 1000.0) for each in pages(2))
    one.take(50_000, 900.0)
    assert one.owed == two.owed == 50_000
    assert one.level(900.0) == -30_000
    two.give_back(45_000)
    assert one.owed == 5000


def test_a_debt_follows_a_limit_that_is_cut_once_however_many_are_told() -> None:
    one, two, three = (bucket(each, 1000.0) for each in pages(3))
    one.take(8000, 900.0)
    for each in (two, one, three):
        each.follow(RATE, RATE / 4, 2000.0)
        two.take(1000, 800.0)
    assert one.level(900.0) == two.level(800.0) == three.level(700.0) == -5000
    one.follow(RATE / 4, RATE, 1.0)  # raised: what is owed stays
    assert three.level(700.0) == -5000


def test_bytes_that_no_client_waits_for_are_owed_by_all() -> None:
    one, two = (bucket(each, 1000.0, debt_s=10.0) for each in pages(2))
    one.take(15_000, 900.0)
    assert (two.level(800.0), two.beyond) == (-10_000, 5000)
    assert two.level(812.0) == 1000  # what can't be saved pays
    assert two.beyond == 4000
    two.take(0, 812.0)
    assert (one.level(912.0), one.beyond) == (1000, 4000)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.floats(0, 3), st.integers(-500, 4000), st.booleans()), min_size=1, max_size=60
    )
)
def test_several_workers_are_what_one_bucket_would_be(steps: list[tuple[int, float, int, bool]]) -> None:
    alone = Bucket(RATE, 1.0, 30.0, 1000.0)
    many = pages(3)
    shared = [bucket(each, 1000.0) for each in many]
    now = 1000.0
    for worker, pause, size, absorbs in steps:
        now += pause
        own = now - many[worker].ahead_s
        if absorbs:
            alone.level(now)  # without what came in evenly: that is each worker's own to judge
            shared[worker].level(own)
            alone.absorb(size, now)
            shared[worker].absorb(size, own)
        else:
            assert shared[worker].take(size, own) == pytest.approx(alone.take(size, now), abs=1e-6)
        for each, seen in zip(many, shared, strict=True):
            assert seen.level(now - each.ahead_s) == pytest.approx(alone.level(now), abs=1e-6)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2000)), min_size=1, max_size=40))
def test_no_byte_is_lost_where_all_write_at_the_same_moment(steps: list[tuple[int, int]]) -> None:
    many = pages(3)
    shared = [bucket(each, 1000.0, debt_s=1e9) for each in many]
    for worker, size in steps:
        shared[worker].take(size, 1000.0 - many[worker].ahead_s)
    assert [each.level(1000.0 - at.ahead_s) for each, at in zip(shared, many, strict=True)] == [
        -sum(size for _, size in steps)
    ] * 3


def test_lines_of_all_workers_are_one_line() -> None:
    one, two = (FleetLine(OurParts(each), KEY, RATE, 1.0, 1000.0 - each.ahead_s) for each in pages(2))
    one.take(4000, 900.0)
    assert two.ask(100, 800.0, True, 0.0).wait == pytest.approx(4.1)
    assert math.isclose(one.in_force, two.in_force)


def test_slices_are_by_weight_among_workers_that_want_more_of_the_unclaimed_rest() -> None:
    one, two, three = (OurParts(each) for each in pages(3))
    one.slice("shares 1", RATE, 100.0, 3.0, True, 900.0)
    two.slice("shares 1", RATE, 0.0, 1.0, True, 800.0)
    assert three.slice("shares 1", RATE, 500.0, 0.0, False, 700.0) == 500.0
    assert three.slice("shares 1", RATE, 500.0, 4.0, False, 700.0) == 500.0 + 200.0, "if it wanted more"
    assert one.slice("shares 1", RATE, 100.0, 3.0, True, 900.1) == 100.0 + 300.0
    assert two.slice("shares 1", RATE, 0.0, 1.0, True, 800.1) == 100.0
    assert one.slice("shares 1", RATE, 100.0, 3.0, True, 910.0) == RATE, "the others have said nothing for long"
    assert one.slice("shares 2", RATE, 100.0, 3.0, True, 910.0) == RATE, "of another broker"


def test_the_other_workers_reports_of_a_slice_are_known_without_ones_own() -> None:
    one, two = (OurParts(each) for each in pages(2))
    assert one.sliced("shares 1", 900.0) == (0.0, 0.0)
    one.slice("shares 1", RATE, 100.0, 3.0, True, 900.0)
    two.slice("shares 1", RATE, 50.0, 7.0, False, 800.0)
    assert one.sliced("shares 1", 900.0) == (50.0, 0.0)
    assert two.sliced("shares 1", 800.0) == (100.0, 3.0)
    two.slice("shares 1", RATE, 60.0, 7.0, True, 801.5)
    assert one.sliced("shares 1", 902.5) == (60.0, 7.0), "what it said itself is too old to count"


def test_an_unwanted_rest_is_shared_alike() -> None:
    one, two = (OurParts(each) for each in pages(2))
    one.slice("shares 1", RATE, 200.0, 1.0, False, 900.0)
    assert two.slice("shares 1", RATE, 600.0, 1.0, False, 800.0) == 700.0
    assert two.slice("shares 1", RATE, 2 * RATE, 0.0, False, 800.1) == 2 * RATE
    assert one.slice("shares 1", RATE, 0.0, 1.0, True, 900.2) == 0.0


def test_a_worker_that_is_alone_has_all_of_it() -> None:
    assert OurParts().slice("shares 1", RATE, 600.0, 3.0, True, 0.0) == RATE
