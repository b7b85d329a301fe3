# Facts: who learns of a change, in which order, and what comes of a follower that fails.

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import fields
from typing import get_args

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gateway import channel
from gateway.control.facts import REFRESH_S, ControlFacts, Published, PublishedCluster


def test_followers_learn_of_a_change_in_the_order_in_which_they_subscribed() -> None:
    fact, learned = Published(1), list[tuple[str, int]]()
    for name in ("b", "a", "c"):
        fact.subscribe(name, lambda value, name=name: learned.append((name, value)))  # type: ignore[misc]
    assert learned == [], "what holds already is `latest`"
    fact.publish(2)
    assert fact.latest == 2
    assert learned == [("b", 2), ("a", 2), ("c", 2)]


def test_a_follower_sees_the_value_that_it_is_called_with_as_the_latest_one() -> None:
    fact, seen = Published(1), list[int]()
    fact.subscribe("test", lambda value: seen.append(fact.latest))
    fact.publish(2)
    assert seen == [2]


def test_a_value_that_says_the_same_may_be_replaced_without_a_word() -> None:
    fact, learned = Published("a"), list[str]()
    fact.subscribe("test", learned.append)
    fact.latest = "b"
    assert learned == []
    fact.publish(fact.latest)
    assert learned == ["b"], "also of what has not changed: its publisher says whether it matters"


def test_a_follower_of_a_part_learns_of_changes_in_it_only() -> None:
    fact, learned = Published((1, "a")), list[tuple[int, str]]()
    fact.subscribe("test", learned.append, part=lambda value: value[1])
    for value in ((2, "a"), (2, "b"), (3, "b"), (3, "a")):
        fact.publish(value)
    assert learned == [(2, "b"), (3, "a")]


def failing(error: Exception) -> Callable[[int], None]:
    def follower(value: int) -> None:
        raise error

    return follower


def test_a_follower_that_fails_keeps_nobody_from_learning_and_is_named() -> None:
    fact, learned = Published(1), list[int]()
    fact.subscribe("the bad one", failing(ZeroDivisionError()))
    fact.subscribe("test", learned.append)
    with pytest.raises(ZeroDivisionError) as raised:
        fact.publish(2)
    assert learned == [2]
    assert "raised by the follower 'the bad one'" in "".join(traceback.format_exception(raised.value))


def test_the_errors_of_several_followers_are_all_there() -> None:
    fact, learned = Published(1), list[int]()
    fact.subscribe("first", failing(ZeroDivisionError()))
    fact.subscribe("test", learned.append)
    fact.subscribe("last", failing(KeyError()))
    with pytest.raises(ExceptionGroup) as raised:
        fact.publish(2)
    assert learned == [2]
    assert [type(each) for each in raised.value.exceptions] == [ZeroDivisionError, KeyError]


async def test_a_request_for_a_refresh_is_answered_by_the_next_answer(autojump_clock: MockClock) -> None:
    cluster, over = PublishedCluster(), list[str]()

    async def ask(name: str) -> None:
        await cluster.await_refresh()
        over.append(name)

    async with trio.open_nursery() as nursery:
        with cluster.refreshing():
            nursery.start_soon(ask, "late")
            await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        assert over == [], "brokers may have answered before it asked"
        await cluster.wait_requested()
        with cluster.refreshing():
            pass
        await trio.testing.wait_all_tasks_blocked()
        assert over == ["late"]
    began = trio.current_time()
    await cluster.await_refresh()
    assert trio.current_time() - began == REFRESH_S, "nobody waits for ever"


def test_each_snapshot_that_workers_get_tells_one_fact() -> None:
    assert channel.SNAPSHOTS_BY_FACT.keys() == {each.name for each in fields(ControlFacts)}
    kinds = [kind for of_fact in channel.SNAPSHOTS_BY_FACT.values() for kind in of_fact]
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == set(get_args(channel.Snapshot))
