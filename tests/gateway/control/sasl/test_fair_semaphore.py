# Whose turn it is where several owners wait.

from __future__ import annotations

import trio
import trio.testing

from gateway.control.sasl.fair_semaphore import FairSemaphore


class Hall:
    """Tasks that wait for turns, and end theirs when they are told to. `began`: in this order."""

    def __init__(self, nursery: trio.Nursery, turns: FairSemaphore) -> None:
        self.began: list[str] = []
        self._nursery = nursery
        self._turns = turns
        self._over: dict[str, trio.Event] = {}
        self._scopes: dict[str, trio.CancelScope] = {}

    async def come(self, *names: str) -> None:
        """Each waits for a turn, one after the other; its owner is the first letter."""
        for name in names:
            self._over[name] = trio.Event()
            self._nursery.start_soon(self._one, name)
            await trio.testing.wait_all_tasks_blocked()

    async def end(self, *names: str) -> None:
        for name in names:
            self._over[name].set()
        await trio.testing.wait_all_tasks_blocked()

    async def leave(self, *names: str) -> None:
        """They give up."""
        for name in names:
            self._scopes[name].cancel()
        await trio.testing.wait_all_tasks_blocked()

    async def _one(self, name: str) -> None:
        with trio.CancelScope() as self._scopes[name]:
            async with self._turns.acquire_slot(name[0]):
                self.began.append(name)
                await self._over[name].wait()


async def test_owners_take_turns_and_each_keeps_its_own_order() -> None:
    async with trio.open_nursery() as nursery:
        hall = Hall(nursery, FairSemaphore(1, 1))
        await hall.come("a1", "a2", "a3", "a4", "b1", "b2", "c1")
        while len(hall.began) < 7:
            await hall.end(hall.began[-1])
        assert hall.began == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
        await hall.end("a4")


async def test_one_owner_has_only_so_many_at_once() -> None:
    async with trio.open_nursery() as nursery:
        hall = Hall(nursery, FairSemaphore(3, 2))
        await hall.come("a1", "a2", "a3", "b1", "b2")
        assert hall.began == ["a1", "a2", "b1"], "b comes before a3, which is one too many"
        await hall.end("b1")
        assert hall.began[3:] == ["b2"]
        await hall.end("b2")
        assert len(hall.began) == 4
        await hall.end("a1")
        assert hall.began[4:] == ["a3"]
        await hall.end("a2", "a3")


async def test_a_turn_of_one_that_gave_up_is_the_next_ones() -> None:
    async with trio.open_nursery() as nursery:
        turns = FairSemaphore(1, 1)
        hall = Hall(nursery, turns)
        await hall.come("a1", "b1", "b2", "c1", "d1")
        await hall.leave("b1", "c1")
        hall._over["a1"].set()
        hall._scopes["b2"].cancel()  # whether it was called before or not
        await trio.testing.wait_all_tasks_blocked()
        assert [name for name in hall.began if name != "b2"] == ["a1", "d1"]
        await hall.end("d1")
        await hall.come("b3")
        assert hall.began[-1] == "b3"
        await hall.end("b3")
        assert not turns._waiting
        assert not turns._held


async def test_one_that_is_called_and_gives_up_in_the_same_moment_leaves_its_turn() -> None:
    turns = FairSemaphore(1, 1)
    began = []

    async def two(scope: trio.CancelScope) -> None:
        with scope:
            async with turns.acquire_slot("b"):
                raise AssertionError("it was cancelled before")

    async def three() -> None:
        async with turns.acquire_slot("c"):
            began.append("c")

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery, turns.acquire_slot("a"):
        nursery.start_soon(two, scope)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(three)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()  # before the turn ends, and it has not heard of it
    assert began == ["c"]
    assert not turns._held
