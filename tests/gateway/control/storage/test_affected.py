# Scope affected in control: which topics workers are told, what is kept, and what is shown. Sources and time as in
# storage_scene.py.

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from gateway import channel
from gateway.config import ConfigError, parse_settings
from gateway.storage.topic_view import VolumeTopicView
from policies.storage import (
    AffectedTopics,
    ObservationFailed,
    SnapshotView,
    StorageFactor,
    Volume,
)
from tests.background import until
from tests.gateway.control.storage.storage_scene import (
    FULL,
    HELD,
    REPLICAS,
    WALL,
    AffectedScene,
    Disks,
    Placed,
    Records,
    lines,
    scene_fixture,
    seen,
    volumes,
    wall,
)
from tests.policies.storage.storage_play import GB, SOFT_HARD, snapshot

SNAPSHOTS = "storage: {source: snapshots, scope: affected}"


scene = scene_fixture(AffectedScene)


async def test_workers_are_told_the_topics_of_the_full_volume_and_what_holds_when_nothing_is_seen(
    mock_clock: MockClock, scene: AffectedScene, caplog: pytest.LogCaptureFixture
) -> None:
    disks = Disks(seen())
    scene.see(disks)
    assert scene.last.affected is None, "before the first look nothing is known: the fallback is for all"
    await scene.at(0)
    assert scene.held() == ((1.0, "valid"), ())
    disks.said = seen(5 * GB)
    await scene.at(60)
    assert scene.held() == ((0.0, "valid"), HELD)
    assert lines(caplog)[-1] == f"PAUSE: 2 topics are paused: {FULL}"
    assert scene.sample("affected_topics") == 2
    status, told = scene.control.status(), {"topics": ["b", "both"], "topics_count": 2}
    assert status["scope"] == "affected"
    assert status["affected"] == [{"by": "broker 2 /b", "factor": 0.0, "state": "PAUSE", "why": FULL, **told}]
    disks.said = ObservationFailed("away")
    for minute in (2, 3):
        await scene.at(60 * minute)
        assert scene.held() == ((0.0, "kept"), HELD)
    await scene.at(240)
    assert scene.held() == ((0.0, "fallback"), None)
    assert scene.last.following.value == 0.0


async def test_topics_that_get_a_replica_there_are_held_without_a_look(
    mock_clock: MockClock, scene: AffectedScene
) -> None:
    disks = Disks(seen(5 * GB))
    scene.see(disks)
    await scene.at(0)
    scene.replicas = {**REPLICAS, 2: REPLICAS[2] | {"new"}}
    scene.control.refresh()
    assert scene.last.affected == (HELD[0]._replace(topics=("b", "both", "new")),)
    assert disks.asked == 1


async def test_while_metadata_is_unknown_all_topics_are_held(mock_clock: MockClock, scene: AffectedScene) -> None:
    scene.replicas = None
    scene.see(Disks(seen(5 * GB)))
    await scene.at(0)
    assert scene.held() == ((0.0, "valid"), None)


async def test_of_several_log_dirs_the_full_one_holds_its_own_topics(
    mock_clock: MockClock, scene: AffectedScene, caplog: pytest.LogCaptureFixture
) -> None:
    two = seen(5 * GB)._replace(volumes=(*volumes(5 * GB), Volume(2, "/c", 100 * GB, 50 * GB)))
    disks = Placed(seen(5 * GB), {(2, "/b"): ["b"], (2, "/c"): ["both", "connect-offsets"]})
    scene.see(disks)
    await scene.at(0)
    assert scene.last.affected == HELD
    assert disks.placed == [], "one volume has all topics of its broker"
    disks.said = two
    await scene.at(60)
    assert scene.last.affected == (HELD[0]._replace(topics=("b",)),)
    assert disks.placed == [frozenset({2})]
    disks.places = ObservationFailed("no right")
    await scene.at(120)
    assert scene.last.affected == HELD
    assert "the placement of topics on volumes is not known: no right" in lines(caplog)


async def test_a_restarted_control_goes_on_with_the_topics_that_workers_hold(
    mock_clock: MockClock, scene: AffectedScene, caplog: pytest.LogCaptureFixture
) -> None:
    held = channel.StorageSnapshot(
        StorageFactor(0.0, "valid", FULL), valid_until=trio.current_time() + 100,
        following=StorageFactor(0.0, "fallback"),
        affected=HELD,
    )  # fmt: skip
    scene.see(Disks(ObservationFailed("away")), restarted=True, run=False)
    scene.control.adopt_factor(held)
    assert scene.held() == ((0.0, "kept"), HELD)
    assert lines(caplog) == [f"continuing with the factor that workers hold: PAUSE (kept): 2 topics are paused: {FULL}"]
    mock_clock.jump(101)
    scene.control.refresh()
    assert scene.held() == ((0.0, "fallback"), None)


async def test_without_a_snapshot_only_the_topics_of_that_broker_are_held(
    mock_clock: MockClock, scene: AffectedScene
) -> None:
    records = Records()
    records.put(snapshot(1, 80, WALL, "/a"), snapshot(2, 50, WALL, "/b"))
    view = SnapshotView(180.0, "PAUSE", SOFT_HARD)
    disk_view = VolumeTopicView(records, lambda: frozenset({1, 2, 3}), view, 60.0, trio.current_time, wall)
    scene.start(disk_view, SNAPSHOTS, replicas=lambda: {**REPLICAS, 3: frozenset({"c"})})
    await scene.at(0)
    why = "broker 3 has no snapshot of its volumes"
    await until(lambda: scene.last.affected == (AffectedTopics("broker 3", 0.0, why, ("c",), (3,)),))
    assert scene.state == (0.0, "fail-safe")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("storage: {hard: {type: MinFreeBytes, level: 1GB}, exempt_topics: [a]}", "have no effect with scope cluster"),
        ("storage: {factor_source: mine, scope: affected}", "knows no volumes"),
        ("storage: {hard: {type: MinFreeBytes, level: 1GB}, scope: topics}", "scope"),
        ("storage: {scope: affected, exempt_topics: ['a b'], hard: {type: MinFreeBytes, level: 1GB}}", "exempt_topics"),
        (
            "storage: {scope: affected, soft: {type: MinFreeBytes, level: 1GB}}\n"
            "client_quotas: {'user-default': {producer_byte_rate: 1MB}}",
            "with scope affected a soft limit lowers the totals of brokers",
        ),
    ],
)
def test_what_has_no_effect_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_settings(f"upstream: {{bootstrap_servers: 'b:1'}}\n{text}")
