# The memory of limits that workers of one gateway share: who finds which row, what they see of each other in it, and
# when it is another limit's.

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fleet import page
from policies.fleet.fleet_limiter import FleetLimiter, FleetShares
from policies.fleet.page import PageRow, SharedPage
from tests.policies.asking import present
from tests.policies.fleet.pages import pages

RATE = 1000.0


def row(of: SharedPage, key: str = "a") -> PageRow:
    return present(of.acquire_row(key))


def test_workers_find_the_same_row_by_its_key_and_no_other_one() -> None:
    one, two = pages(2)
    row(one).add_spent(7)
    row(two).add_spent(5)
    row(two, "b").add_spent(1)
    assert row(one).spent == row(two).spent == 12
    assert row(one, "b").spent == 1


@given(st.lists(st.text(st.characters(codec=None), max_size=40), unique=True, max_size=30))
def test_any_names_are_keys_of_their_own(keys: list[str]) -> None:
    one, two = pages(2)
    for number, key in enumerate(keys):
        row(one, key).add_spent(number)
    assert [row(two, key).spent for key in keys] == list(range(len(keys)))


def test_returned_bytes_were_not_spent() -> None:
    one, two = (row(each) for each in pages(2))
    one.add_spent(7)
    two.add_spent(-3)
    assert one.spent == 4


def test_the_latest_view_is_found_and_only_what_is_later_than_ones_own() -> None:
    one, two = (row(each) for each in pages(2))
    assert one.read_newer(-1.0) is None  # nobody has written
    one.write_view(-5.0, 10.0, 3.0, 100.0, 2.0)
    two.write_view(-6.0, 11.0, 4.0, 100.0)
    assert one.read_newer(10.0) == (-6.0, 11.0, 4.0, 100.0, 0.0)
    assert two.read_newer(11.0) is None


def test_a_row_that_is_just_being_written_is_left_alone() -> None:
    one, two = (row(each) for each in pages(2))
    one.write_view(-5.0, 10.0, 3.0, 100.0)
    one.write_view(-6.0, 11.0, 4.0, 100.0)
    for view in page.VIEWS:
        if one._cells[view + page.AT] == 11.0:
            one._cells[view + page.AT] = 0.0  # as `write` leaves it meanwhile
    assert two.read_newer(0.0) == (-5.0, 10.0, 3.0, 100.0, 0.0)


def test_no_two_views_of_a_worker_are_of_the_same_moment() -> None:
    one, two = (row(each) for each in pages(2))
    one.write_view(-5.0, 10.0, 3.0, 100.0)
    one.write_view(-6.0, 10.0, 4.0, 100.0)
    found = present(two.read_newer(9.0))
    assert (found[0], found[1] > 10.0) == (-6.0, True)


def test_a_row_without_a_holder_is_still_its_limits_until_another_one_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "ROWS", 2)
    one, two = pages(2)
    held = row(one, "held")
    first = row(one)
    first.add_spent(7)
    first.write_view(1.0, 100.0, 7.0, 5.0)
    first.release_row()
    again = row(two)
    assert again.spent == 7
    assert one.acquire_row("another") is None, "the other worker holds it"
    again.release_row()
    other = row(one, "another")
    assert other.spent == 0
    assert other.read_newer(0.0) is None
    assert two.acquire_row("a") is None
    held.release_row()
    assert row(two).spent == 0


def test_a_row_is_held_as_often_as_it_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "ROWS", 1)
    (one,) = pages(1)
    first, second = row(one), row(one)
    first.release_row()
    assert one.acquire_row("b") is None
    second.release_row()
    assert one.acquire_row("b") is not None


def test_a_worker_that_is_started_again_holds_nothing_and_takes_nothing_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "ROWS", 2)
    memory = memoryview(bytearray(page.page_size(2)))
    one, two = pages(2, memory)
    row(one, "mine").add_spent(3)
    row(two, "theirs").add_spent(4)
    again = SharedPage(memory, 2, 0, nullcontext)
    assert row(again, "mine").spent == 3, "what it took counts"
    assert again.acquire_row("new") is None
    again = SharedPage(memory, 2, 0, nullcontext)
    assert again.acquire_row("new") is not None
    assert row(two, "theirs").spent == 4


def test_a_key_is_looked_for_where_it_may_be_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_WINDOW", 1)
    (one,) = pages(1)
    found = [one.acquire_row(str(number)) for number in range(2000)]
    assert 0 < sum(each is None for each in found) < 200, "where two would be in the same place"
    for each in found:
        if each is not None:
            each.add_spent(1)
            assert each.spent == 1


def test_without_room_each_worker_has_its_own_even_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "ROWS", 4)
    first, second = pages(2)
    rows = [row(first, str(number)) for number in range(4)]
    rows[2].add_spent(7)
    assert first.acquire_row("one more") is second.acquire_row("and one") is None
    line = FleetLimiter(FleetShares(first), "one more", RATE, 1.0, 0.0)
    assert (line.bucket.rate, line.gateway_rate) == (RATE / 2, RATE)
    rows[2].release_row()
    assert row(second, "and one").spent == 0
