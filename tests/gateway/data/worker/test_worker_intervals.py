# When a worker's intervals end: each second, and at each tick, before it.

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.channel import PROTOCOL, WorkerSettings
from gateway.data.worker.worker import DataWorker
from gateway.parent_link import ParentLink
from policies.meters.meter import TICK_S


class Clocked:
    """A worker's tasks that are about time, and when its intervals ended, from its start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        self._link = ParentLink(ours)
        worker = DataWorker(self._link, 0)
        worker.handle_control_message(WorkerSettings(PROTOCOL, "gw"))
        self.plane = worker.configured_plane
        self.start = trio.current_time()
        self.ends: list[float] = []
        self.ticks_at: list[float] = []  # of each end: when the next tick was
        monkeypatch.setattr(self.plane.intervals, "close_interval", self._end)

    def _end(self, final: bool) -> None:
        self.ends.append(round(trio.current_time() - self.start, 3))
        self.ticks_at.append(round(self.plane.world.engine.next_tick_at - self.start, 3))

    def close(self) -> None:
        self._link._channel.close()
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
        nursery.start_soon(clocked.plane.periodic_tasks.run_ticks)
        await _pass(mock_clock, *(n / 8 for n in range(1, 97)))
        nursery.cancel_scope.cancel()
    assert clocked.ends == [*range(1, 13)]
    assert clocked.ticks_at[4] == TICK_S
    assert clocked.ticks_at[9] == 2 * TICK_S


async def test_a_second_that_ends_late_leaves_its_end_to_the_tick(mock_clock: MockClock, clocked: Clocked) -> None:
    # Two ends within half a second are one: without that the tick would fall into an interval.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clocked.plane.periodic_tasks.run_ticks)
        await _pass(mock_clock, 1, 2, 3, 4.6, 5, 6, 7)
        nursery.cancel_scope.cancel()
    assert clocked.ends == [1, 2, 3, 5, 6, 7]
    assert clocked.ticks_at[3] == TICK_S


async def test_meters_that_began_get_their_first_rate_with_the_end_of_an_interval(
    mock_clock: MockClock, clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = clocked.plane.world.engine
    engine.set_peer_traffic({}, 2)
    told: list[float] = []
    monkeypatch.setattr(
        clocked.plane.periodic_tasks, "report_rates", lambda: told.append(engine.broker_meters(1).total.rate)
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clocked.plane.periodic_tasks.run_ticks)
        await _pass(mock_clock, 1, 2, 2.5)
        engine.broker_meters(1).confirm_topic(b"clicks")
        meter = engine.broker_meters(1).topics[b"clicks"]
        rates = []
        for second in range(3, 10):
            meter.uncounted += 500 if second == 3 else 1000
            await _pass(mock_clock, second - (trio.current_time() - clocked.start))
            rates.append(meter.rate)
        nursery.cancel_scope.cancel()
    assert rates == [0, 0, 0, 0, 0, 1000, 1000]
    assert clocked.ends == [*range(1, 10)]
    assert len(told) == 2, "at the tick, and when there was a rate that others go by as well"
