# The forecast of control: what it shows, logs, counts and notes of volumes to come. Sources and time as in
# storage_scene.py.

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gateway.storage.source_view import VolumeSourceView
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.storage import FactorKeeper, Observation, ReplicaShare, ReplicaSpread, Volume
from policies.usage import DiskNotes as Noted
from policies.usage import SpreadNote, VolumeNote
from tests.gateway.control.storage.storage_scene import DISK, Disks, Scene, lines, scene_fixture, seen
from tests.policies.storage.storage_play import GB, SOFT_HARD

SPREAD = ReplicaSpread(
    {2: {"clicks": ReplicaShare(1, 2), "views": ReplicaShare(3, 3), "quiet": ReplicaShare(1, 1)}},
    {2: frozenset({1, 2})},
)
RATES = {("clicks", "User:a"): 8e6, ("views", "User:b"): 1e6, ("elsewhere", "User:c"): 5e6}


class Play(Scene):
    """A Scene with a forecast; `total` of every broker."""

    total: float | None = None
    spread: ReplicaSpread | None = SPREAD

    def look(self, source: Disks, **more: Any) -> Play:
        self.noted: list[Noted] = []
        disk_view = VolumeSourceView(source, SOFT_HARD, FactorKeeper(120.0, 0.0, 60.0), trio.current_time, places=True)
        more |= {"rates": lambda: RATES, "spread": lambda: self.spread, "record_disks": self.noted.append}
        self.start(disk_view, f"thresholds: {{on_exceed: delay}}\n{DISK}", policies=self.policies, **more)
        return self

    def policies(self) -> PolicySet:
        return PolicySet({} if self.total is None else {PolicyKey.of_broker(): self.total})

    def volume(self, broker: int = 2) -> dict[str, Any]:
        (found,) = [each for each in self.control.status()["brokers"] if each["id"] == broker]
        volume: dict[str, Any] = found["volumes"][0]
        return volume


scene = scene_fixture(Play)


async def test_each_volume_has_its_rate_the_times_to_its_limits_and_who_fills_it(
    mock_clock: MockClock, scene: Play
) -> None:
    disks = Disks(seen(50 * GB))
    scene.look(disks)
    await scene.at(0)
    assert scene.volume()["forecast"] is None
    for minute in (1, 2):
        disks.said = seen((50 - 6 * minute) * GB)
        await scene.at(60 * minute)
    assert scene.volume()["forecast"] == {
        "fill_bytes_per_s": 10**8, "written_bytes_per_s": 10**8, "deleted_bytes_per_s": 0, "soft_limit_in_s": 180,
        "hard_limit_in_s": 280,
    }  # fmt: skip
    assert scene.sample("fill_bytes_per_second", broker="2", log_dir="/b") == pytest.approx(1e8)
    assert scene.sample("hard_limit_in_seconds", broker="2", log_dir="/b") == pytest.approx(280)
    assert scene.sample("hard_limit_in_seconds", broker="1", log_dir="/a") is None, "it doesn't fill"
    assert scene.volume()["writers_of"] == "volume"
    assert scene.volume()["topics"] == [
        {"name": "clicks", "bytes_per_s": 4 * 10**6},
        {"name": "views", "bytes_per_s": 10**6},
    ]
    assert scene.volume()["principals"][0] == {"name": "User:a", "bytes_per_s": 4 * 10**6}
    assert scene.volume(1)["topics"] == []


async def test_a_hard_limit_without_room_for_what_may_come_is_told_once(
    mock_clock: MockClock, scene: Play, caplog: pytest.LogCaptureFixture
) -> None:
    scene.total = 100e6  # twice that in 75 s
    scene.look(Disks(seen()))
    await scene.at(0)
    said = [
        "broker 2 volume /b: 10.0 GB behind the hard limit are less than the 15.0 GB that producers may write there"
        " before the next check: raise the limit, check more often, or lower the total thresholds"
    ]
    assert lines(caplog)[1:] == said
    await scene.at(60)
    assert lines(caplog)[1:] == said
    assert scene.volume()["headroom"] == {"bytes": 10 * GB, "needed_bytes": 15 * GB, "short": True}
    assert scene.volume(1)["headroom"] == {"bytes": 10 * GB, "needed_bytes": 7.5 * GB, "short": False}, "it feeds it"
    assert scene.sample("headroom_short_log_dirs") == 1
    assert scene.sample("headroom_needed_bytes", broker="2", log_dir="/b") == 15 * GB
    scene.total = 60e6
    await scene.at(120)
    assert lines(caplog)[-1] == "every hard limit has room again for what producers may write before the next check"
    assert scene.sample("headroom_short_log_dirs") == 0
    scene.total = None
    await scene.at(180)
    assert scene.volume()["headroom"] == {"bytes": 10 * GB, "needed_bytes": None, "short": False}
    assert scene.sample("headroom_needed_bytes", broker="2", log_dir="/b") is None


async def test_the_usage_log_has_volumes_and_where_busy_topics_are_once_a_minute(
    mock_clock: MockClock, scene: Play
) -> None:
    scene.look(Disks(seen(30 * GB)))
    await scene.at(0)
    assert scene.noted == [
        Noted(
            (
                VolumeNote(2, "/b", 100 * GB, 30 * GB, 20.0 * GB, 10.0 * GB),
                VolumeNote(1, "/a", 100 * GB, 80 * GB, 20.0 * GB, 10.0 * GB),
            ),
            (SpreadNote(2, "clicks", 1, 2), SpreadNote(2, "views", 3, 3)),
        )
    ]
    await scene.at(60)
    assert len(scene.noted) == 2
    scene.spread = None
    await scene.at(120)
    assert scene.noted[-1].spread == ()


async def test_what_is_on_one_of_several_volumes_is_told_where_the_broker_told(
    mock_clock: MockClock, scene: Play
) -> None:
    class Several(Disks):
        def place(self, brokers: frozenset[int]) -> dict[tuple[int, str], frozenset[str]]:
            return {(2, "/b"): frozenset({"clicks"}), (2, "/c"): frozenset({"views"})}

    def two(free: int) -> Observation:
        return Observation(frozenset({2}), (Volume(2, "/b", 100 * GB, free), Volume(2, "/c", 100 * GB, 50 * GB)))

    disks = Several(two(50 * GB))
    scene.look(disks)
    await scene.at(0)
    assert scene.volume()["writers_of"] == "broker"
    assert [each["name"] for each in scene.volume()["topics"]] == ["clicks", "views"]
    disks.said = two(15 * GB)  # where it matters, it is asked
    await scene.at(60)
    assert scene.volume()["writers_of"] == "volume"
    assert [each["name"] for each in scene.volume()["topics"]] == ["clicks"]
