# What the simulated fleet reaches, in figures: of the limit in any 30 s and in the fullest second, and what whoever has
# least has of what he should have. Large requests, many gateways, and demand that comes and goes.

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest

from tests.examples import matrix
from tests.policies.fleet.fleet_sim import ALL, TICK_S, Worker, World, steady, waves

Build = Callable[[World], None]


class Reached(NamedTuple):
    """Shares of the limit; `least`: of what somebody should have."""

    lowest: float
    highest: float
    fullest: float
    least: float


def reach(build: Build, start: float = 20.0, end: float = 60.0) -> Reached:
    """From when everybody has said how much he takes: of large requests that takes some."""
    world = World(seed=1)
    build(world)
    world.run(end)
    means = [world.rate(t, t + 30) / world.limit for t in range(round(start), round(end) - 29)]
    seconds = [world.rate(t, t + 1) / world.limit for t in range(round(start), round(end))]
    had = [world.member(name, start, end) / rate for name, rate in world.ideal(start).items() if rate > 0.0]
    return Reached(min(means), max(means), max(seconds), min(had))


def hungry_beside(number: int, each: float, request: float, *, together: bool = False) -> Build:
    """One that wants all, and so many that take `each` in such requests, at other times or all at the same."""

    def begun(begins: float, t: float) -> float:
        return each if t >= begins else 0.0

    def build(world: World) -> None:
        world.join("hungry", ALL, lump=1.0)
        for n in range(number):
            begins = 0.0 if together else world.rng.random() * request / each
            world.join(f"content{n}-", partial(begun, begins), lump=request)

    return build


def all_hungry(number: int, request: float) -> Build:
    def build(world: World) -> None:
        for n in range(number):
            world.join(f"g{n}-", ALL, lump=request)

    return build


def assert_exact(found: Reached) -> None:
    assert found.lowest >= 0.97, found
    assert found.highest <= 1.03, found
    assert found.least >= 0.95, found


@pytest.mark.parametrize(
    ("request_size", "number", "each"), matrix([0.1, 1.0, 2.0], [(1, 5.0), (1, 20.0), (2, 20.0), (4, 10.0), (10, 5.0)])
)
def test_a_gateway_that_wants_all_has_the_rest_and_others_have_theirs(
    number: int, each: float, request_size: float
) -> None:
    found = reach(hungry_beside(number, each, request_size))
    assert_exact(found)
    assert found.fullest <= 1.10, found


@pytest.mark.parametrize(
    ("request_size", "number", "each"), matrix([5.0, 10.0], [(1, 5.0), (1, 20.0), (2, 20.0), (4, 10.0), (10, 5.0)])
)
def test_also_when_a_request_is_a_tenth_of_the_limit(number: int, each: float, request_size: float) -> None:
    assert_exact(reach(hungry_beside(number, each, request_size)))


def test_also_when_all_send_their_large_requests_at_the_same_time() -> None:
    assert_exact(reach(hungry_beside(10, 5.0, 10.0, together=True)))


@pytest.mark.parametrize(("each", "request_size"), [(0.4, 4.0), (0.5, 6.0), (0.2, 4.0), (0.5, 10.0)])
def test_also_when_many_send_a_large_request_every_ten_or_twenty_seconds(each: float, request_size: float) -> None:
    """No gateway gives anything up for a request that is over."""
    assert_exact(reach(hungry_beside(10, each, request_size), end=80.0))


@pytest.mark.parametrize(("request_size", "number"), matrix([0.1, 1.0, 5.0, 10.0], [2, 3, 10]))
def test_gateways_that_want_all_have_equal_parts_of_it(number: int, request_size: float) -> None:
    found = reach(all_hungry(number, request_size))
    assert_exact(found)
    assert request_size > 2.0 or found.fullest <= 1.10, found


@pytest.mark.parametrize("seconds", [1.0, 1.5, 2.0, 3.0, 5.0])
def test_gateways_that_want_all_in_turns_leave_little_unused(seconds: float) -> None:
    """Three of six at a time, each time others."""

    def wants(n: int, t: float) -> float:
        return ALL if n in random.Random(int(t / seconds) * 7919 + 1).sample(range(6), 3) else 0.0

    def build(world: World) -> None:
        for n in range(6):
            world.join(f"g{n}-", partial(wants, n))

    found = reach(build)
    assert found.lowest >= 0.8, found
    assert found.highest <= 1.03, found
    assert found.fullest <= 1.10, found


@pytest.mark.parametrize("seconds", [1.0, 1.5, 2.0, 3.0, 5.0])
def test_a_gateway_that_comes_and_goes_beside_one_that_stays_leaves_little_unused(seconds: float) -> None:
    def build(world: World) -> None:
        world.join("steady", ALL, lump=1.0)
        world.join("pulsing", waves(0.0, ALL, 2 * seconds))

    found = reach(build)
    assert found.lowest >= 0.9, found
    assert found.highest <= 1.03, found
    assert found.fullest <= 1.25, found


class FarClient(Worker):
    """One request at a time, whose answer comes `reply_s` later: then it is charged, as a Fetch is."""

    reply_s = 0.0
    begins_at = 10.0

    def tick(self, tick: int, now: float) -> None:
        self.log[tick] = 0.0
        if now >= max(self.begins_at + self.reply_s, self._free_at[0]):
            self.line.charge_amount(self.lump, now)
            self._free_at[0] = now + self.line.wait_after_charge(now) + self.reply_s
            self.log[tick] = self.lump


@pytest.mark.parametrize(("request_size", "reply_s"), matrix([20.0, 40.0, 85.0], [TICK_S, 2 * TICK_S, 3 * TICK_S]))
def test_a_client_with_one_request_at_a_time_has_the_whole_limit_beside_idle_gateways(
    request_size: float, reply_s: float
) -> None:
    """It waits for nobody else, and comes back when something has been saved again."""
    world = World(seed=1)
    gateway = world.join("far")
    client = FarClient("far0", gateway.line, steady(ALL), request_size, 1, 0.0)
    client.reply_s = reply_s
    gateway.workers.append(client)
    world.everybody.append(client)
    world.join("idle0", 0.0)
    world.join("idle1", 0.0)
    world.run(50)
    assert world.rate(15, 45) >= 0.95 * world.limit
    assert world.rate(15, 45) <= 1.03 * world.limit


class PausingClient(Worker):
    """One request at a time, which waits for as long as it is told to, and then a pause."""

    pause_s = 0.0

    def tick(self, tick: int, now: float) -> None:
        self.log[tick] = 0.0
        if now < self._free_at[0]:
            return
        answer = self.line.check_admission(self.lump, now, True, 0.0, self.name)
        if answer.admitted:
            self.line.charge_amount(self.lump, now)
            self.log[tick] = self.lump
        self._free_at[0] = now + answer.wait_s + self.pause_s


@pytest.mark.parametrize("pause_s", [1.0, 2.0])
def test_two_clients_with_large_requests_and_pauses_have_most_of_the_limit_beside_an_idle_gateway(
    pause_s: float,
) -> None:
    """With the whole limit and without savings, it would be 0.86 and 0.75 of it."""
    world = World(seed=1)
    for name in "ab":
        gateway = world.join(name)
        client = PausingClient(f"{name}0", gateway.line, steady(ALL), 300.0, 1, 10.0 + world.rng.random())
        client.pause_s = pause_s
        gateway.workers.append(client)
        world.everybody.append(client)
    world.join("idle", 0.0)
    world.run(135)
    means = [world.rate(start, start + 30) / world.limit for start in range(25, 105, 5)]
    assert min(means) >= 0.7, means
    assert max(means) <= 1.21, means
    assert 0.85 <= world.rate(15, 135) / world.limit <= 1.03
