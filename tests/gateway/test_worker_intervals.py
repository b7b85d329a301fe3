# When a worker's intervals end: each second, and at each tick, before it.

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.channel import PROTOCOL, WorkerSettings
from gateway.data.worker import Worker
from gateway.supervisor import ParentLink
from policies.limits.meter import TICK_S


class Clocked:
    """A worker's tasks that are about time, and when its intervals ended, from its start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        self._link = ParentLink(ours)
        worker = Worker(self._link, 0)
        worker.obey(WorkerSettings(PROTOCOL, "gw"))
        self.plane = worker.configured
        self._start = trio.current_time()
        self.ends: list[float] = []
        self.ticks_at: list[float] = []  # of each end: when the next tick was
        monkeypatch.setattr(self.plane.intervals, "close", self._end)

    def _end(self, final: bool) -> None:
        self.ends.append(round(trio.current_time() - self._start, 3))
        self.ticks_at.append(round(self.plane.world.engine.due - self._start, 3))

    def close(self) -> None:
        self._link._line.close()
        self.plane.connections.reactor._poller.close()


@pytest.fixture
async def clocked(mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Clocked]:
    made = Clocked(monkeypatch)
    yield made
    made.close()


async def _pass(clock: MockClock, *until: float) -> None:
    start = trio.current_time()
    for at in until:
        await wait_all_tasks_blocked()
        clock.jump(start + at - trio.current_time())
    await wait_all_tasks_blocked()


async def test_intervals_end_each_second_and_before_the_tick(mock_clock: MockClock, clocked: Clocked) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clocked.plane.intervals.run)
        nursery.start_soon(clocked.plane.clockwork.tick)
        await _pass(mock_clock, *(n / 8 for n in range(1, 97)))
        nursery.cancel_scope.cancel()
    assert clocked.ends == [*range(1, 13)]
    assert clocked.ticks_at[4] == TICK_S
    assert clocked.ticks_at[9] == 2 * TICK_S


async def test_a_second_that_ends_late_leaves_its_end_to_the_tick(mock_clock: MockClock, clocked: Clocked) -> None:
    # Two ends within half a second are one: without that the tick would fall into an interval.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clocked.plane.intervals.run)
        nursery.start_soon(clocked.plane.clockwork.tick)
        await _pass(mock_clock, 1, 2, 3, 4.6, 5, 6, 7)
        nursery.cancel_scope.cancel()
    assert clocked.ends == [1, 2, 3, 5, 6, 7]
    assert clocked.ticks_at[3] == TICK_S


async def test_an_interval_that_ends_with_a_tick_is_not_ended_before_the_tick_is_there(
    mock_clock: MockClock, clocked: Clocked
) -> None:
    # Between the two there would be traffic, in the interval behind the tick, though admitted before it.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clocked.plane.intervals.run)
        await _pass(mock_clock, 1, 2, 3, 4, 5)
        nursery.cancel_scope.cancel()
    assert clocked.ends == [1, 2, 3, 4]
