# Brokers that leave with a full disk, and brokers that join, in control: what workers are told, what is logged and
# shown, and what a restarted control still knows. Sources and time as in storage_scene.py.

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from gateway import channel
from gateway.config import ConfigError, parse_settings
from gateway.storage.source_view import VolumeSourceView
from gateway.storage.topic_view import VolumeTopicView
from policies.storage import (
    AffectedTopics,
    FactorKeeper,
    Observation,
    ObservationFailed,
    SnapshotView,
    Volume,
)
from tests.background import until
from tests.gateway.control.storage.storage_scene import (
    AFFECTED,
    REPLICAS,
    WALL,
    Disks,
    Placed,
    Records,
    Scene,
    lines,
    scene_fixture,
    seen,
    volumes,
    wall,
)
from tests.policies.storage.storage_play import GB, SOFT_HARD, snapshot

CLUSTER = "storage: {min.available.bytes: 10GB, fenced_brokers: remember}"
LEFT = "broker 2 volume /b: 5.0 GB of 100.0 GB free when its broker left, hard limit at 10.0 GB"
HELD = (AffectedTopics("broker 2 /b", 0.0, LEFT, ("b", "both"), (2,)),)
ALONE = Observation(frozenset({1}), volumes()[:1])
FORGET_S = 600.0


class Play(Scene):
    def see(self, source: Disks, text: str = CLUSTER, fallback: float = 0.0, **more: Any) -> Play:
        disk_view = VolumeSourceView(
            source,
            SOFT_HARD,
            FactorKeeper(120.0, fallback, 60.0),
            trio.current_time,
            places=text == AFFECTED,
            forget_after_s=FORGET_S,
            grace_s=90.0,
        )
        self.start(disk_view, text, replicas=lambda: REPLICAS, **more)
        return self


scene = scene_fixture(Play)


async def test_a_broker_that_left_while_full_holds_until_it_is_seen_with_room(
    mock_clock: MockClock, scene: Play, caplog: pytest.LogCaptureFixture
) -> None:
    disks = Disks(seen(5 * GB))
    scene.see(disks)
    await scene.at(0)
    disks.said = ALONE
    await scene.at(60)
    assert (*scene.state, scene.last.factor.why) == (0.0, "valid", LEFT)
    assert "broker 2 left with a volume at its limit: its last state holds until it is back" in "".join(lines(caplog))
    assert (scene.sample("remembered_brokers"), scene.sample("active_log_dirs")) == (1, 1)
    one, two = scene.control.status()["brokers"]
    assert (one["left"], two["id"], two["left"]) == (None, 2, {"forgotten_in_s": FORGET_S})
    assert two["volumes"][0]["factor"] == 0.0
    disks.said = seen(50 * GB)
    await scene.at(120)
    assert scene.state == (1.0, "valid")
    assert lines(caplog)[-2:] == ["OPEN again, 2 brokers, 2 log dirs", "broker 2 is back"]
    assert scene.sample("remembered_brokers") == 0


@pytest.mark.parametrize("by", ["time", "unregistered"])
async def test_it_is_forgotten_after_its_time_or_when_it_belongs_to_the_cluster_no_more(
    mock_clock: MockClock, scene: Play, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    disks = Disks(seen(5 * GB))
    scene.see(disks)
    await scene.at(0)
    disks.said = ALONE._replace(registered=frozenset({1, 2}))
    for minute in range(1, 11):
        await scene.at(60 * minute)
        assert scene.state == (0.0, "valid"), minute
    if by == "unregistered":
        disks.said = ALONE._replace(registered=frozenset({1}))
    await scene.at(660)
    assert scene.state == (1.0, "valid")
    assert lines(caplog)[-1] == "broker 2 left, and is forgotten now"


async def test_with_scope_affected_its_topics_are_held_beside_a_fallback_that_lets_all_others_in(
    mock_clock: MockClock, scene: Play
) -> None:
    disks = Disks(seen(5 * GB))
    scene.see(disks, AFFECTED, fallback=1.0)
    await scene.at(0)
    disks.said = ALONE
    await scene.at(60)
    assert (scene.state, scene.last.affected) == ((0.0, "valid"), HELD)
    disks.said = ObservationFailed("away")
    for minute in (2, 3, 4):
        await scene.at(60 * minute)
    assert (scene.state, scene.last.affected) == ((0.0, "fallback"), HELD)
    disks.said = ALONE
    await scene.at(300)
    assert (scene.state, scene.last.affected) == ((0.0, "valid"), HELD)


@pytest.mark.parametrize(("fallback", "factor"), [(1.0, 0.0), (0.25, 0.25)])
async def test_with_scope_cluster_it_holds_beside_a_fallback_that_lets_everybody_in(
    mock_clock: MockClock, scene: Play, fallback: float, factor: float
) -> None:
    disks = Disks(seen(5 * GB))
    scene.see(disks, fallback=fallback)
    await scene.at(0)
    disks.said = ALONE
    await scene.at(60)
    disks.said = ObservationFailed("away")
    for minute in (2, 3, 4):
        await scene.at(60 * minute)
    assert scene.state == (factor, "fallback")


@pytest.mark.parametrize("left", ["before", "meanwhile"])
async def test_a_control_that_is_started_again_knows_it_from_the_workers(
    mock_clock: MockClock, scene: Play, left: str
) -> None:
    """It left while the former control was there, or while there was none."""
    disks = Disks(seen(5 * GB))
    former = Play(scene.nursery, mock_clock).see(disks)
    await former.at(0)
    if left == "before":
        disks.said = ALONE
        await former.at(60)
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(former.last), type=channel.StorageSnapshot)
    assert told == former.last
    scene.see(Disks(ALONE), restarted=True, run=False)
    scene.control.adopt_factor(told)
    scene.nursery.start_soon(scene.control.run)
    await until(lambda: scene.checks() == 1)
    assert scene.state == (0.0, "valid")
    (shown,) = [each for each in scene.control.status()["brokers"] if each["left"]]
    assert (shown["id"], shown["left"]["forgotten_in_s"]) == (2, FORGET_S)


class Slow(Placed):
    """It takes its time to tell what lies where."""

    def __init__(self, said: Observation, gate: threading.Event) -> None:
        super().__init__(said, {})
        self.gate = gate

    def place(self, brokers: frozenset[int]) -> Any:
        super().place(brokers)
        self.gate.wait(60)
        return {}


async def test_what_workers_say_while_a_look_is_under_way_is_not_lost(mock_clock: MockClock, scene: Play) -> None:
    former = Play(scene.nursery, mock_clock).see(Disks(seen(5 * GB)))
    await former.at(0)
    gate = threading.Event()
    full = Observation(frozenset({1}), (Volume(1, "/a", 100 * GB, GB), Volume(1, "/c", 100 * GB, 50 * GB)))
    disks = Slow(full, gate)
    try:
        scene.see(disks, AFFECTED, restarted=True)
        await until(lambda: bool(disks.placed))
        scene.control.adopt_factor(former.last)
    finally:
        gate.set()
    await until(lambda: scene.checks() == 1)
    await scene.at(60)
    assert [each["id"] for each in scene.control.status()["brokers"] if each["left"]] == [2]


async def test_of_snapshots_it_is_known_from_the_topic(mock_clock: MockClock, scene: Play) -> None:
    records = Records()
    records.put(snapshot(1, 80, WALL, "/a"), snapshot(2, 5, WALL, "/b"))
    listed = Disks(frozenset({1, 3}))
    view = SnapshotView(180.0, "PAUSE", SOFT_HARD, grace_s=90.0, forget_after_s=FORGET_S)
    disk_view = VolumeTopicView(records, listed.observe, view, 60.0, trio.current_time, wall)
    replicas: Mapping[int, frozenset[str]] = {**REPLICAS, 3: frozenset({"c"})}
    scene.start(disk_view, "storage: {source: snapshots, scope: affected}", replicas=lambda: replicas)
    await scene.at(0)
    unknown = AffectedTopics("broker 3", 0.0, "broker 3 has no snapshot of its volumes", ("c",), (3,))
    held = AffectedTopics("broker 2 /b", 0.0, LEFT, ("b", "both", "connect-offsets"), (2,))
    await until(lambda: scene.last.affected == (unknown, held))
    (shown,) = [each for each in scene.control.status()["brokers"] if each["left"]]
    assert shown["left"]["forgotten_in_s"] == pytest.approx(FORGET_S, abs=0.01)


def remembers(text: str) -> bool:
    storage = parse_settings(f"upstream: {{bootstrap_servers: 'b:1'}}\nstorage: {{{text}}}").storage
    assert storage is not None
    return storage.remembers_brokers


def test_brokers_are_remembered_by_scope_or_by_choice() -> None:
    limit = "hard: {type: MinFreeBytes, level: 1GB}"
    assert not remembers(limit), "the proposal leaves out fenced brokers"
    assert remembers(f"{limit}, scope: affected")
    assert remembers(f"{limit}, fenced_brokers: remember")
    assert not remembers(f"{limit}, scope: affected, fenced_brokers: ignore")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hard: {type: MinFreeBytes, level: 1GB}, forget_after: PT2H", "forget_after: has no effect"),
        ("hard: {type: MinFreeBytes, level: 1GB}, fenced_brokers: remember, forget_after: 0", "forget_after"),
        ("factor_source: mine, fenced_brokers: remember", "knows no volumes"),
        ("hard: {type: MinFreeBytes, level: 1GB}, fenced_brokers: leave", "fenced_brokers"),
    ],
)
def test_what_has_no_effect_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        remembers(text)
