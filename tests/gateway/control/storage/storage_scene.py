# A scene for tests of storage protection in control: small sources of the tests' own, the messages to workers, and
# trio's mock clock, which moves when the test says so.

from __future__ import annotations

import queue
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import trio
from pytest_trio import trio_fixture
from trio.testing import MockClock

from gateway import channel
from gateway.config import parse_settings
from gateway.control.facts import ClusterState, Published, PublishedCluster
from gateway.control.storage.context import StorageContext
from gateway.control.storage.storage_control import StorageControl
from gateway.storage.guarding import GuardedPolicy
from gateway.storage.source_view import VolumeSourceView
from gateway.storage.topic_view import VolumeTopicView
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.storage import (
    AffectedTopics,
    FactorKeeper,
    FailSafe,
    Observation,
    ObservationFailed,
    SnapshotView,
    SoftHard,
    Volume,
    VolumeSnapshot,
)
from tests.background import until
from tests.gateway.control.contexts import make_context
from tests.policies.storage.storage_play import GB, SOFT_HARD, snapshot

T = TypeVar("T")
S = TypeVar("S", bound="Scene")
WALL = 1.8e9  # Unix time at the mock clock's 0
DISK = "storage: {min.available.bytes: 10GB, throttle.factor.fallback: 0.0, throttle.factor.validity.duration: PT2M}"
LIMITED = PolicySet(base={PolicyKey.of_broker(): 1e6})
FULL = "broker 2 volume /b: 5.0 GB of 100.0 GB free, hard limit at 10.0 GB"


def volumes(free: int = 50 * GB, **more: Any) -> tuple[Volume, Volume]:
    """Volumes: broker 1 has room, broker 2 as much as given."""
    return (Volume(1, "/a", 100 * GB, 80 * GB), Volume(2, "/b", 100 * GB, free, **more))


def seen(free: int = 50 * GB, offline: tuple[tuple[int, str], ...] = (), **more: Any) -> Observation:
    return Observation(frozenset({1, 2}), volumes(free, **more), offline)


def wall() -> float:
    return WALL + trio.current_time()


class Disks:
    """A volume source that answers as the test wants, after it has waited for an Event if given."""

    def __init__(self, said: Any) -> None:
        self.said = said
        self.asked = 0
        self.answers = False  # when an Event is there, with what is said by then
        self.closed = False

    def observe(self) -> Any:
        self.asked += 1
        said = self.said
        if isinstance(said, threading.Event):
            said.wait(60)
            if self.answers:
                return self.said
            raise ObservationFailed("released")
        if isinstance(said, BaseException):
            raise said
        return said

    factor = observe

    def close(self) -> None:
        self.closed = True


class Records:
    """The volume topic's reader, without a topic."""

    def __init__(self) -> None:
        self.connected = self.caught_up = True
        self.invalid_records = 0
        self.queue: queue.SimpleQueue[tuple[int, VolumeSnapshot]] = queue.SimpleQueue()
        self.closed = False

    def put(self, *snapshots: VolumeSnapshot) -> None:
        for each in snapshots:
            self.queue.put((each.broker_id, each))

    def poll_snapshots(self, timeout_s: float) -> list[tuple[int, VolumeSnapshot | None]]:
        try:
            return [self.queue.get(timeout=0.1)]  # long enough for all tasks to be blocked meanwhile
        except queue.Empty:
            return []

    def close(self) -> None:
        self.closed = True


class Live(Published[T]):
    """A fact that is what the test says, at any time."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self.ask = ask

    @property
    def latest(self) -> T:  # type: ignore[override]
        return self.ask()


class LiveCluster(PublishedCluster):
    def __init__(self, replicas: Callable[[], Any], spread: Callable[[], Any]) -> None:
        self.replicas, self.spread = replicas, spread

    @property
    def latest(self) -> ClusterState:  # type: ignore[override]
        return ClusterState(replicas=self.replicas(), spread=self.spread())


class Scene:
    """A StorageControl, its messages, and the clock."""

    def __init__(self, nursery: trio.Nursery, clock: MockClock) -> None:
        self.nursery, self.clock = nursery, clock
        self.told: list[channel.StorageSnapshot] = []
        self.has_limits = True

    def start(
        self,
        disk_view: VolumeSourceView | VolumeTopicView,
        text: str = DISK,
        run: bool = True,
        mode: str = "enforce",
        policies: Callable[[], PolicySet] | None = None,
        replicas: Callable[[], Any] = lambda: None,
        spread: Callable[[], Any] = lambda: None,
        restarted: bool = False,
        **more: Any,
    ) -> Scene:
        self.disk_view = disk_view
        self.settings = parse_settings(f"upstream: {{bootstrap_servers: 'b:1'}}\nmode: {mode}\n{text}")
        context = make_context(self.settings, was_up=restarted, unix_time=wall, monotonic=trio.current_time)
        self.metrics, self.facts = context.metrics, context.facts
        self.facts.storage_factor.subscribe("test", self.note_told)
        limits = policies or (lambda: LIMITED if self.has_limits else PolicySet())
        facts = replace(self.facts, policies=Live(limits), cluster=LiveCluster(replicas, spread))
        self.control = StorageControl(StorageContext(replace(context, facts=facts), **more), disk_view)
        self.control.refresh()
        if run:
            self.nursery.start_soon(self.control.run)
        return self

    def set_mode(self, mode: str) -> None:
        self.facts.configuration.latest = self.settings.model_copy(update={"mode": mode})
        self.control.refresh()

    def note_told(self, message: channel.StorageSnapshot | None) -> None:
        assert message is not None
        self.told.append(message)

    def observe(
        self,
        source: Disks,
        policy: GuardedPolicy | SoftHard | None = SOFT_HARD,
        *,
        fallback: float = 0.0,
        **more: Any,
    ) -> Scene:
        keeper = FactorKeeper(120.0, fallback, 60.0)
        return self.start(VolumeSourceView(source, policy, keeper, trio.current_time), **more)

    def read(
        self,
        records: Records,
        brokers: set[int],
        fail_safe: FailSafe = "PAUSE",
        policy: GuardedPolicy | SoftHard = SOFT_HARD,
        **more: Any,
    ) -> Scene:
        self.listed = Disks(frozenset(brokers))
        view = SnapshotView(180.0, fail_safe, policy)
        disk_view = VolumeTopicView(records, self.listed.observe, view, 60.0, trio.current_time, wall)
        return self.start(disk_view, "storage: {source: snapshots}", **more)

    async def seeing(self, said: Any, policy: GuardedPolicy | SoftHard | None = SOFT_HARD, **more: Any) -> Disks:
        """A source that says so, after the first look."""
        disks = Disks(said)
        self.observe(disks, policy, **more)
        await self.at(0)
        return disks

    async def at(self, seconds: int, checks: int | None = None) -> None:
        """Advance to that time since the start, and let everything due happen."""
        self.clock.jump(max(0.0, seconds - trio.current_time()))
        checks = int(seconds // 60) + 1 if checks is None else checks
        await until(lambda: self.checks() >= checks)

    def checks(self) -> int:
        return sum(int(self.sample("observations_total", outcome=outcome) or 0) for outcome in ("ok", "failed"))

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"produce_gateway_storage_{name}", labels)

    @property
    def last(self) -> channel.StorageSnapshot:
        return self.told[-1]

    @property
    def state(self) -> tuple[float, str]:
        return self.last.factor.value, self.last.factor.origin


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().removeprefix("storage: ") for record in caplog.records]


def snapshot_now(broker_id: int, free: float, age: float = 0.0) -> VolumeSnapshot:
    return snapshot(broker_id, free / GB, WALL + trio.current_time() - age, "/a")


def scene_fixture(kind: type[S]) -> Any:
    """The fixture `scene`: one of that kind, whose tasks end with the test."""

    @trio_fixture
    async def scene(mock_clock: MockClock, caplog: pytest.LogCaptureFixture) -> AsyncIterator[S]:
        caplog.set_level("INFO")
        async with trio.open_nursery() as nursery:
            yield kind(nursery, mock_clock)
            nursery.cancel_scope.cancel()

    return scene


AFFECTED = "storage: {hard: {type: MinFreeBytes, level: 10GB}, scope: affected, exempt_topics: ['connect-*']}"
REPLICAS = {1: frozenset({"a", "both"}), 2: frozenset({"both", "b", "connect-offsets"})}
HELD = (AffectedTopics("broker 2 /b", 0.0, FULL, ("b", "both"), (2,)),)


class AffectedScene(Scene):
    """A Scene with scope affected; `replicas` as metadata has it."""

    replicas: Mapping[int, frozenset[str]] | None = REPLICAS

    def see(self, source: Disks, **more: Any) -> AffectedScene:
        disk_view = VolumeSourceView(source, SOFT_HARD, FactorKeeper(120.0, 0.0, 60.0), trio.current_time, places=True)
        self.start(disk_view, AFFECTED, replicas=lambda: self.replicas, **more)
        return self

    def held(self) -> tuple[tuple[float, str], tuple[AffectedTopics, ...] | None]:
        """The last word to workers: factor and origin, and the topics that it is about."""
        return self.state, self.last.affected


class Placed(Disks):
    """Tells what lies on the log dirs of brokers, too."""

    def __init__(self, said: Any, places: Any) -> None:
        super().__init__(said)
        self.places = places
        self.placed: list[frozenset[int]] = []

    def place(self, brokers: frozenset[int]) -> Any:
        self.placed.append(brokers)
        if isinstance(self.places, Exception):
            raise self.places
        return self.places
