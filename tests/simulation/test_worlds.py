# Some simulated worlds, always the same ones, in the ordinary suite; `make simulate` runs as many others as one likes.
# What a world says of time is simulated, so none of these is red for a slow machine.

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import trio

from gateway.data.relay.links import RelayLink
from gateway.data.worker.worker import DataPlane
from policies.engine import PolicyEngine
from policies.thresholds.pacing import PACE_S, ThresholdPacer
from tests.simulation.clock import START_S
from tests.simulation.judge import Judge
from tests.simulation.world import WARM_UP_S, ClientPlan, Fault, Plan, World, make_plan
from tests.variants import ROOT

# Seed, theme, and whether nothing goes wrong in it.
WORLDS = [
    (3, "group", True),
    (20001, "users", True),
    (30100, "logins", True),
    (30006, "transactions", True),
    (20000, "fetch", True),
    (20001, "affected", True),
    (4, "total", True),
    (5, "reject", True),
    (306, "free", False),
    (31, "storage", True),
]
HOURS = 0.01


@pytest.mark.parametrize(("seed", "theme", "calm"), WORLDS)
def test_nothing_is_wrong_in_a_simulated_world(seed: int, theme: str, *, calm: bool) -> None:
    judge = World(make_plan(seed, HOURS if calm else 0.03, theme=theme, calm=calm)).run()
    assert judge.violations == []
    assert judge.counts["records acknowledged"] > 500


def test_a_fleet_bears_strangers_full_disks_and_members_that_come_and_go() -> None:
    topics = {"acme.orders.new": 4}
    clients = tuple(
        ClientPlan(profile, f"app-{number}", topics, 60_000.0, 3_000, (number % 2, 1 - number % 2))
        for number, profile in enumerate(("java", "librdkafka-idempotent", "sarama"))
    )
    faults = (
        Fault(2.0, "strangers", 19, 20.0),
        Fault(3.0, "spool full", 1, 12.0),
        Fault(8.0, "foreign messages", 4),
        Fault(12.0, "gateway joins"),
        Fault(16.0, "broker joins", 1),
        Fault(20.0, "gateway cut off", 1, 12.0),
        Fault(36.0, "strangers", 18, 10.0),
    )
    judge = World(Plan(1, 50.0, "group", 100_000.0, 2, 1, topics, clients, faults)).run()
    assert judge.violations == []
    assert judge.counts["records acknowledged"] > 4000


def test_a_fleet_bears_processes_that_are_stopped_and_some_that_are_killed_then() -> None:
    topics = {"acme.orders.new": 4}
    clients = tuple(
        ClientPlan(profile, f"app-{number}", topics, 50_000.0, 3_000, (number % 2, 1 - number % 2))
        for number, profile in enumerate(("java", "librdkafka-idempotent", "sarama"))
    )
    control, worker, gateway = 0, 1, 2  # of the first gateway; 3 more: of the second one
    faults = (
        Fault(3.0, "process stopped", control, 9.0),
        Fault(16.0, "process stopped", 3 + worker, 8.0),
        Fault(20.0, "worker killed", 1),
        Fault(27.0, "process stopped", gateway, 7.0),
        Fault(30.0, "control killed", 1),
        Fault(38.0, "process stopped", 3 + control, 6.0),
        Fault(40.0, "control killed", 1),
    )
    judge = World(Plan(1, 55.0, "group", 100_000.0, 2, 2, topics, clients, faults)).run()
    assert judge.violations == []
    assert judge.counts["records acknowledged"] > 4000


def test_a_seed_is_the_same_world_each_time() -> None:
    """In another process, with another order of sets."""
    faults = (Fault(4.0, "connection cut", 1), Fault(9.0, "leader moved", 3), Fault(14.0, "worker killed"))
    plan = replace(make_plan(1004, 0.008, theme="group", calm=True), faults=faults)
    digest = World(plan).run().digest
    program = f"from tests.simulation.world import *; print(World({plan!r}).run().digest)"
    other = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "17", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.stdout.strip() == digest, other.stderr


async def _fail_later(_: World) -> None:
    await trio.sleep(1.0)
    raise ZeroDivisionError


def test_what_ends_a_world_early_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what gateways run into that are cancelled with it."""
    monkeypatch.setattr(World, "_watch_seconds", _fail_later)
    with pytest.raises(BaseExceptionGroup) as raised:
        World(make_plan(1, HOURS, theme="group", calm=True)).run()
    assert raised.group_contains(ZeroDivisionError)


def test_a_worker_without_traffic_sleeps_and_nothing_finds_limits_out_of_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request doesn't, nor a connection that begins with one, nor a message with which requests go on."""
    paced: list[float] = []
    oldest_s: dict[str, list[float]] = {}
    pace_limits = PolicyEngine.pace_limits

    def pace(engine: PolicyEngine, now: float) -> None:
        paced.append(now)
        pace_limits(engine, now)

    def watch(owner: type, name: str, *, after: bool = False) -> None:
        act, ages_s = getattr(owner, name), oldest_s.setdefault(name, [])

        def measured(*args: Any) -> Any:
            began = paced[-1:]
            found = act(*args)
            ages_s.extend(trio.current_time() - at for at in (paced[-1:] if after else began))
            return found

        monkeypatch.setattr(owner, name, measured)

    monkeypatch.setattr(PolicyEngine, "pace_limits", pace)
    watch(ThresholdPacer, "judge_request")
    watch(RelayLink, "open")
    watch(DataPlane, "apply_message", after=True)
    topics = {"acme.orders.new": 2}
    clients = (ClientPlan("librdkafka", "app-0", topics, 50_000.0, 3_000, (0,)),)
    faults = (*(Fault(at, "connection cut", 1) for at in (200.0, 300.0, 400.0)), Fault(350.0, "leader moved", 1))
    world = World(Plan(1, 600.0, "total", 100_000.0, 1, 1, topics, clients, faults, has_nights=True))
    assert world.run().violations == []
    assert len(paced) < 6_000  # of 12,000: the first 90 s are a day
    for name, least in (("judge_request", 20), ("open", 5), ("apply_message", 100)):
        assert len(oldest_s[name]) > least, name
        assert max(oldest_s[name]) <= 1.2 * PACE_S, name
    assert min(after - before for before, after in pairwise(paced)) >= 0.9 * PACE_S


def test_each_new_control_is_told_of_connections_with_nothing_to_do() -> None:
    """The last one too, though nothing has changed since the one before was told."""
    topics = {"acme.orders.new": 2}
    clients = (ClientPlan("librdkafka", "app-0", topics, 50_000.0, 3_000, (0,)),)
    faults = (Fault(110.0, "control killed"), Fault(120.0, "control killed"))
    world = World(Plan(1, 135.0, "free", 100_000.0, 1, 1, topics, clients, faults, has_nights=True))
    assert world.run().violations == []


def test_a_world_ends_when_it_has_shown_what_it_is_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "end_second", lambda judge: judge.accuse("a limit unused", ""))
    world = World(make_plan(1, HOURS, theme="group", calm=True), until=("a limit unused",))
    assert len(world.run().violations) == 1


def test_what_producers_without_acknowledgements_sent_stays_whole_when_a_gateway_stops() -> None:
    """More is parked than passes until the end: what comes behind it must not be read as if nothing were."""
    topics = {"acme.orders.new": 2}
    clients = (ClientPlan("librdkafka-acks0", "app-0", topics, 400_000.0, 3_000, (0,)),)
    assert World(Plan(1, 12.0, "group", 100_000.0, 1, 1, topics, clients, ())).run().violations == []


def test_what_gathered_behind_a_slow_connection_exceeds_no_limit() -> None:
    """Its last bytes arrive seconds after the connection is fast again; what brokers get at once then, a quota let
    through in time.
    """
    topics = {"acme.orders.new": 6}
    clients = (ClientPlan("kafka-python", "app-0", topics, 400_000.0, 10_000, (0,)),)
    faults = (Fault(8.0, "connection trickles", 11, 8.0, 0.4),)
    assert World(Plan(1, 30.0, "quota", 200_000.0, 1, 1, topics, clients, faults)).run().violations == []


def test_the_only_worker_of_a_gateway_is_killed_and_no_burst_passes_once_more() -> None:
    topics = {"acme.orders.new": 2}
    clients = (ClientPlan("java", "app-0", topics, 800_000.0, 3_000, (0,)),)
    faults = (Fault(12.0, "worker killed"), Fault(20.0, "worker killed"))
    assert World(Plan(1, 23.0, "reject", 100_000.0, 1, 1, topics, clients, faults)).run().violations == []


def test_a_gateway_whose_processes_are_all_new_leaves_others_their_shares() -> None:
    """Neither its control nor its worker knows that there are others, until these are heard: the parent does."""
    topics = {"acme.orders.new": 2}
    clients = tuple(
        ClientPlan("librdkafka", f"app-{number}", topics, 300_000.0, 3_000, (number,)) for number in range(2)
    )
    faults = (Fault(20.0, "control killed", 0), Fault(20.0, "worker killed", 0))
    world = World(Plan(7, 40.0, "group", 100_000.0, 2, 1, topics, clients, faults))
    assert world.run().violations == []
    began = START_S + WARM_UP_S
    seconds = {second - began: size for second, size in world.judge.recent.items() if second >= began + 5.0}
    assert max(seconds.values()) <= 1.1 * 100_000.0 + 6_000.0, seconds
