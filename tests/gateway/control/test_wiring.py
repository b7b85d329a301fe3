# A whole control in the test's own process: real parts, on a real channel to a worker that the test plays, in front of
# brokers, a parent and a clock that it plays as well. What is tried: which fact reaches whom, and what comes together.

from __future__ import annotations

import contextlib
import itertools
import math
import socket
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from gateway.channel import (
    PROTOCOL,
    BrokerTable,
    GroupSnapshot,
    ProcessChannel,
    QuotaSnapshot,
    Snapshot,
    SnapshotBundle,
    StorageSnapshot,
    ThresholdPolicy,
    ToControl,
    TopicSnapshot,
    ToWorker,
    WorkerHello,
    WorkerSettings,
    decode_for_worker,
)
from gateway.config import Settings, examine_config
from gateway.control import app
from gateway.control.cluster.metadata import ClusterMetadata, MetadataSource
from gateway.control.outside import Outside
from gateway.control.policies.store import FileStore, PolicyStore, RetriedStore, StoreError
from gateway.parent_link import ConfigOrigin, KeptState, NewChannel
from gateway.storage.source_view import VolumeSourceView
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_values import NO_IDS, PolicyKey, PolicyOperation, TopicIds
from policies.storage import FactorKeeper, Observation, ObservationFailed, QuotaValues, SoftHard, Volume, VolumeLimit
from tests.background import until
from tests.gateway.control.contexts import Parent
from tests.gateway.control.policies.test_quota_source import Source
from tests.gateway.control.storage.storage_scene import Disks

UPSTREAM = "upstream: {bootstrap_servers: 'b:9092', metadata_refresh: 100ms}\n"
TOTAL = "thresholds: {total.bytes.in.per.sec.threshold: %s}\n"
AT_S = 1_700_000_000.0
DEADLINE_S = 60.0


class PlayedParent(Parent):
    """It opens listening sockets at any port, and is told of health."""

    def __init__(self, origin: ConfigOrigin, was_up: bool) -> None:
        super().__init__(origin)
        self.kept = KeptState(was_up)
        self.stopping, self.up = trio.Event(), trio.Event()
        self.drain_timeout_s = 1.0
        self.inherited: dict[str, Any] = {}
        self.listening: list[str] = []
        self.health: tuple[Sequence[str], Sequence[str]] = ((), ())
        self.workers, self._channels = trio.open_memory_channel[tuple[NewChannel, socket.socket]](math.inf)

    async def listen(self, name: str, host: str, port: int) -> socket.socket:
        await trio.lowlevel.checkpoint()
        self.listening.append(name)
        return socket.create_server(("127.0.0.1", 0))

    def close_listener(self, name: str) -> None:
        self.listening.remove(name)

    async def next_channel(self) -> tuple[NewChannel, socket.socket]:
        return await self._channels.receive()

    def keep(self, **changes: Any) -> None:
        super().keep(**changes)
        if "was_up" in changes:
            self.up.set()

    def report_health(self, problems: Sequence[str], lacking: Sequence[str]) -> None:
        self.health = problems, lacking


class PlayedOutside(Outside):
    """Brokers that answer as the test says, and a clock that begins at AT_S.

    `store_opens`: what the file of policies waits for.
    """

    def __init__(self) -> None:
        self.metadata = ClusterMetadata({1: ("b1", 9092)}, {1: ("clicks",)}, places={1: frozenset({"clicks"})})
        self.store_opens = True

    def unix_time(self) -> float:
        return AT_S + trio.current_time()

    def obtain_secret(self, settings: Settings) -> bytes:
        return bytes(32)

    def make_policy_store(self, settings: Settings, *, patient: bool) -> PolicyStore:
        path, base = settings.policies_file, settings.policy_values()

        def open_store() -> PolicyStore:
            if not self.store_opens:
                raise StoreError("not yet")
            return FileStore(path, base)

        return RetriedStore(open_store, base)

    def make_cluster_source(self, settings: Settings, watched: Callable[[], Sequence[str]]) -> MetadataSource:
        return self

    async def fetch_metadata(self) -> ClusterMetadata:
        await trio.lowlevel.checkpoint()
        return self.metadata

    async def fetch_topic_ids(self, topics: Collection[str]) -> TopicIds:
        await trio.lowlevel.checkpoint()
        return NO_IDS


class Play:
    """
    Attributes:
        told: what the worker was told to go by: all of one message is one entry.
    """

    def __init__(self, path: Path, text: str, was_up: bool) -> None:
        self.file = path / "gw.yaml"
        self._own = f"usage_log: {{spool_dir: '{path}/spool'}}\ninternal_topics: none\n{UPSTREAM}"
        self.write(text)
        settings = examine_config(self.file, environ={}).settings
        assert settings is not None
        self.parent, self.outside = PlayedParent(ConfigOrigin((str(self.file),), 2**62), was_up), PlayedOutside()
        self.configured: list[Settings] = []
        self._settings = settings
        self.told: list[list[Snapshot]] = []

    def write(self, text: str) -> None:
        self.file.write_text(self._own + text)

    async def run(self) -> None:
        components = self.outside.make_components(self._settings)
        await components.make_all(patient=False)
        self.control = app._ControlProcess(
            self._settings, cast("Any", self.parent), components, self.configured.append, self.outside
        )
        await self.control.run()

    async def join(self, nursery: trio.Nursery, *, informed: bool = False) -> None:
        ours, theirs = socket.socketpair()
        self.parent.workers.send_nowait((NewChannel(0, 0, 0), ours))
        channel = ProcessChannel[ToControl, ToWorker](theirs, decode_for_worker)
        nursery.start_soon(channel.run)
        channel.post(WorkerHello(PROTOCOL, 0, 1, "boot", informed=informed))
        nursery.start_soon(self._receive, channel)

    async def _receive(self, channel: ProcessChannel[ToControl, ToWorker]) -> None:
        with contextlib.closing(channel):
            while True:
                message, _ = await channel.receive()
                if isinstance(message, SnapshotBundle):
                    self.told.append(cast("list[Snapshot]", list(message.snapshots)))
                elif isinstance(message, Snapshot):
                    self.told.append([message])

    @property
    def kinds(self) -> list[list[type]]:
        return [[type(each) for each in together] for together in self.told]

    def last(self, kind: type) -> Any:
        return [each for together in self.told for each in together if type(each) is kind][-1]


@asynccontextmanager
async def playing(
    path: Path, text: str = "", *, was_up: bool = False, opens: bool = True, thresholds: bytes = b""
) -> AsyncIterator[Play]:
    """`thresholds`: what an earlier control left."""
    play = Play(path, text, was_up)
    play.outside.store_opens = opens
    play.parent.keep(thresholds=thresholds)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(play.run)
            await play.parent.up.wait()
            await play.join(nursery, informed=was_up)
            yield play
            nursery.cancel_scope.cancel()


SNAPSHOTS: list[type] = [WorkerSettings, BrokerTable, TopicSnapshot, ThresholdPolicy, QuotaSnapshot, GroupSnapshot]


async def test_a_worker_that_comes_gets_all_facts_in_the_order_in_which_it_needs_them(tmp_path: Path) -> None:
    async with playing(tmp_path, TOTAL % "1MB") as play:
        await until(lambda: len(play.told) >= len(SNAPSHOTS))
        assert play.kinds == [[kind] for kind in SNAPSHOTS]
        assert play.last(ThresholdPolicy).total == 1e6
        assert play.last(TopicSnapshot) == TopicSnapshot({1: ("clicks",)})
        assert "broker 1 default" in play.parent.listening
        await until(lambda: play.parent.health == ([], []))


async def test_another_configuration_and_its_policies_reach_a_worker_in_one_message(tmp_path: Path) -> None:
    async with playing(tmp_path, TOTAL % "1MB") as play:
        await until(lambda: len(play.told) >= len(SNAPSHOTS))
        play.told.clear()
        play.write("mode: observe\nlistener: {advertised_host: other}\n" + TOTAL % "2MB")
        play.parent.ask_for_reload()
        await until(lambda: play.parent.adopted)
        await until(lambda: play.told)
        assert play.kinds == [[BrokerTable, WorkerSettings, ThresholdPolicy, QuotaSnapshot, GroupSnapshot]]
        assert play.last(WorkerSettings).mode == "observe"
        assert (play.last(ThresholdPolicy).total, play.last(ThresholdPolicy).mode) == (2e6, "observe")
        assert [host for host, _ in play.last(BrokerTable).addresses["default"].values()] == ["other"]
        assert play.configured[-1].mode == "observe"
        assert Settings.model_validate_json(play.parent.adopted[0].settings).mode == "observe"
        play.write("listener: {advertised_host: other}\n" + TOTAL % "2MB")
        play.parent.ask_for_reload()
        await until(lambda: len(play.told) > 1)
        assert play.kinds[1:] == [[WorkerSettings, ThresholdPolicy, QuotaSnapshot, GroupSnapshot]], (
            "how policies are enforced, although their values are the same"
        )
        assert play.last(ThresholdPolicy).mode == "enforce"


async def test_another_view_of_the_cluster_reaches_a_worker_in_one_message_behind_the_metrics(tmp_path: Path) -> None:
    async with playing(tmp_path) as play:
        await until(lambda: len(play.told) >= len(SNAPSHOTS))
        play.told.clear()
        known: list[bool] = []
        topics = play.control._context.metrics._topics
        workers: Any = play.control._workers
        publish = workers.publish_snapshot

        def watched(message: Snapshot, *news: Any) -> None:
            known.append("views" in topics.known)
            publish(message, *news)

        workers.publish_snapshot = watched
        play.outside.metadata = ClusterMetadata({1: ("b1", 9092), 2: ("b2", 9092)}, {1: ("clicks",), 2: ("views",)})
        await until(lambda: play.told)
        assert play.kinds == [[BrokerTable, TopicSnapshot]]
        assert known == [True, True], "its name is a label before workers report its bytes"


async def test_a_control_that_was_restarted_leaves_workers_their_policies_until_it_knows_them(tmp_path: Path) -> None:
    async with playing(tmp_path, TOTAL % "1MB", was_up=True, opens=False) as play:
        await until(lambda: len(play.told) >= 3)
        assert play.kinds == [[kind] for kind in SNAPSHOTS[:3]]
        assert play.parent.health[1] == ["policies: not yet"]
        play.outside.store_opens = True
        await until(lambda: len(play.told) > 3)
        assert play.kinds[3:] == [SNAPSHOTS[3:]], "all at once, although none is another than the file's"
        assert play.last(ThresholdPolicy).total == 1e6


async def test_storage_protection_follows_the_configuration_policies_and_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Disks(Observation(frozenset({1}), (Volume(1, "/a", 100, 5),)))
    policy = SoftHard(hard=VolumeLimit("MinFreeBytes", 10))
    monkeypatch.setattr(
        "gateway.control.outside._make_storage_view",
        lambda *_: VolumeSourceView(full, policy, FactorKeeper(), trio.current_time, places=True),
    )
    storage = "storage: {hard: {type: MinFreeBytes, level: 10}, scope: affected, check_interval: 1h}\n"
    async with playing(tmp_path, storage) as play:
        await until(lambda: any(type(each) is StorageSnapshot for together in play.told for each in together))
        await until(lambda: play.last(StorageSnapshot).factor.origin == "valid")
        play.outside.metadata = replace(play.outside.metadata, replicas={1: frozenset({"clicks"})})
        await until(lambda: [each.topics for each in play.last(StorageSnapshot).affected] == [("clicks",)])
        play.told.clear()
        play.write("mode: observe\n" + storage)
        play.parent.ask_for_reload()
        await until(lambda: play.told)
        assert {WorkerSettings, StorageSnapshot} <= set(play.kinds[0])
        assert play.last(StorageSnapshot).mode == "observe"
        pause = PolicyOperation(PolicyKey.of_storage(), "PAUSE: a disk", play.control._policies.now_ms() + 60_000)
        await play.control._policies.alter_policies([pause], ChangeSource("alice", "rest"))
        await until(lambda: play.last(StorageSnapshot).factor.origin == "operator")


@pytest.mark.seed("DISK.9", "035.40")
async def test_thresholds_of_a_source_replace_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(QuotaValues(5000.0, {"clicks": 2000.0}))
    monkeypatch.setattr("gateway.control.outside.load_plugin", lambda *_: source)
    thresholds = "thresholds: {total.bytes.in.per.sec.threshold: 1000, source: mine, interval: 100ms}\n"
    async with playing(tmp_path, thresholds + "client_quotas: [{client_id: slow, producer_byte_rate: 700}]\n") as play:
        await until(lambda: ThresholdPolicy in itertools.chain(*play.kinds))
        await until(lambda: play.last(ThresholdPolicy).total == 5000.0)
        shown = play.control._policies.export_overview(play.control._policy_base.origin_of)["origins"]
        assert [(each["kind"], each["value"], each["origin"]) for each in shown] == [
            ("broker", 5000, "source mine"), ("topic", 2000, "source mine"), ("quota", 700, "file"),
        ]  # fmt: skip
        source.said = QuotaValues(1000.0, {"clicks": 2000.0})
        await until(lambda: "thresholds.source: " in caplog.text)
        assert "of topic clicks is 2,000 bytes/s, which exceeds total" in caplog.text
        source.said = QuotaValues(None, {})
        await until(lambda: play.last(ThresholdPolicy).total is None)
        assert caplog.text.count("the last thresholds stay") == 1


async def test_a_new_control_begins_with_the_last_thresholds_of_a_source_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(QuotaValues(5000.0, {"clicks": 2000.0}))
    monkeypatch.setattr("gateway.control.outside.load_plugin", lambda *_: source)
    text = "thresholds: {total.bytes.in.per.sec.threshold: 1000, source: mine, interval: 100ms}\n"
    async with playing(tmp_path, text) as play:
        await until(lambda: play.parent.kept.thresholds)
        kept = play.parent.kept.thresholds
    source.said = ObservationFailed("away")
    async with playing(tmp_path, text, was_up=True, thresholds=kept) as play:
        await until(lambda: ThresholdPolicy in itertools.chain(*play.kinds) and "away" in caplog.text)
        told = [each for each in itertools.chain(*play.told) if type(each) is ThresholdPolicy]
        assert [(each.total, each.topics) for each in told] == [(5000.0, {"clicks": 2000.0})]
        assert play.control._policy_base.origin_of(PolicyKey.of_broker()) == "source mine"
        play.write("mode: observe\n" + text)
        play.parent.ask_for_reload()
        await until(lambda: play.parent.adopted)
        await until(lambda: play.last(ThresholdPolicy).mode == "observe")
        assert play.last(ThresholdPolicy).total == 5000.0
