# When a worker's periodic tasks run seldom, and that a worker that wakes up is as one that never slept.

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import trio
import trio.testing

from gateway.data.worker.idle import IDLE_INTERVAL_S, QUIET_S, IdleWatch
from policies.engine import PolicyEngine
from policies.meters.meter import TICK_S
from policies.thresholds.pacing import PACE_S
from tests.policies.asking import Request

INTERVAL_S = 0.1
LIMIT = 100_000.0


class Stage:
    """A task that works every INTERVAL_S, and what there is to do."""

    def __init__(self) -> None:
        self.bytes = 0
        self.held = False
        self.watch = IdleWatch(lambda: self.bytes, lambda: self.held, self._catch_up)
        self.turns: list[float] = []
        self.caught_up: list[float] = []

    def _catch_up(self, now: float) -> None:
        self.caught_up.append(now)

    async def work(self) -> None:
        while True:
            self.turns.append(trio.current_time())
            await self.watch.sleep(INTERVAL_S)

    async def turns_in(self, seconds: float) -> int:
        before = len(self.turns)
        await trio.sleep(seconds)
        return len(self.turns) - before


@pytest.fixture
async def stage(nursery: trio.Nursery) -> Stage:
    made = Stage()
    made.bytes = 1
    nursery.start_soon(made.work)
    await trio.testing.wait_all_tasks_blocked()
    return made


async def test_tasks_run_seldom_once_nothing_has_come_for_a_while(
    stage: Stage, autojump_clock: trio.testing.MockClock
) -> None:
    assert await stage.turns_in(QUIET_S - 1.0) >= 0.99 * (QUIET_S - 1.0) / INTERVAL_S - 2
    await trio.sleep(2.0)
    assert await stage.turns_in(100 * IDLE_INTERVAL_S) <= 101


async def test_bytes_and_requests_in_flight_keep_a_worker_awake(
    stage: Stage, autojump_clock: trio.testing.MockClock
) -> None:
    for _ in range(10):
        stage.bytes += 1
        assert await stage.turns_in(QUIET_S - 1.0) >= 0.99 * (QUIET_S - 1.0) / INTERVAL_S - 2
    stage.held = True
    assert await stage.turns_in(100.0) >= 0.99 * 100.0 / INTERVAL_S


async def test_an_event_wakes_tasks_at_once_after_what_was_left_out_is_made_up_for(
    stage: Stage, autojump_clock: trio.testing.MockClock
) -> None:
    await trio.sleep(QUIET_S + 5 * IDLE_INTERVAL_S + 0.3)
    assert stage.caught_up == []
    now = trio.current_time()
    stage.watch.wake_sleepers()
    assert stage.caught_up == [now]
    stage.bytes += 1
    await trio.testing.wait_all_tasks_blocked()
    assert stage.turns[-1] == now
    assert await stage.turns_in(QUIET_S - 1.0) >= 0.99 * (QUIET_S - 1.0) / INTERVAL_S - 2
    stage.watch.wake_sleepers()  # nobody sleeps long
    assert stage.caught_up == [now]


async def test_events_without_traffic_make_no_task_busier_than_usual(
    stage: Stage, autojump_clock: trio.testing.MockClock
) -> None:
    """A message of control, a client that only asks for metadata."""
    await trio.sleep(QUIET_S + 2 * IDLE_INTERVAL_S)
    before = len(stage.turns)
    for _ in range(1000):
        stage.watch.wake_sleepers()
        await trio.sleep(0.01)
    assert len(stage.turns) - before <= 10.0 / INTERVAL_S + 1
    assert len(stage.caught_up) <= 10.0 / INTERVAL_S + 1
    await trio.sleep(2 * IDLE_INTERVAL_S)
    assert await stage.turns_in(100 * IDLE_INTERVAL_S) <= 101


@pytest.mark.parametrize("burst_s", [0.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_limits_after_a_quiet_time_are_the_same_paced_in_it_or_not(seed: int, burst_s: float) -> None:
    chance = random.Random(seed)
    names = [b"t%d" % number for number in range(chance.randint(1, 3))]
    quiet_s, size = chance.uniform(QUIET_S, 2 * QUIET_S), chance.randint(1000, 40_000)
    engines = paced, slept = [PolicyEngine(0.0) for _ in range(2)]
    for engine in engines:
        engine.set_thresholds(LIMIT, {"t0": 0.3 * LIMIT}, on_exceed="reject" if burst_s else "delay", burst_s=burst_s)
        engine.set_peer_traffic({}, 2)
        engine.broker_meters(1)
    for step in range(round((6.0 + quiet_s) / PACE_S)):
        now = step * PACE_S
        name, sent = chance.choice(names), chance.randint(0, 20_000)
        for engine in engines:
            engine.apply_due_ticks(now)
            if now < 6.0:
                _send(engine, name, sent, now)
            if engine is paced or now < 6.0 + QUIET_S:
                engine.pace_limits(now)
    slept.pace_limits(now)  # as a worker does when something comes
    admitted = [0, 0]
    for step in range(round(2 * TICK_S / PACE_S)):
        fates = [_send(engine, names[step % len(names)], size, now) for engine in engines]
        assert fates[0] == fates[1] or step >= len(names)
        for number, engine in enumerate(engines):
            admitted[number] += size * fates[number].is_admitted
            engine.apply_due_ticks(now)
            engine.pace_limits(now)
        now += PACE_S
    assert admitted[0] == pytest.approx(admitted[1], rel=0.02, abs=size)


class Fate(NamedTuple):
    throttle_ms: float
    is_admitted: bool


def _send(engine: PolicyEngine, topic: bytes, size: int, now: float) -> Fate:
    request = Request(engine, topic, size)
    verdict = request.ask(now, may_delay=True)
    fate = Fate(0.0 if verdict is None else verdict.throttle_ms, verdict is None or verdict.action == "delay")
    if fate.is_admitted:
        request.admit(now)
    return fate
