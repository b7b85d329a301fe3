# Control's side of a worker, over a real socketpair whose other end plays the worker.

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from pytest_trio import trio_fixture

from gateway.channel import (
    PROTOCOL,
    AcceptedConnection,
    AdminAnswer,
    AdminQuery,
    BrokerTable,
    ChannelClosed,
    DemandReport,
    DrainRequest,
    LimitShares,
    LocatedConnection,
    LogMessage,
    ProcessChannel,
    QuotaChanges,
    QuotaSnapshot,
    RefreshRequest,
    SaslIdentity,
    SnapshotBundle,
    SpoolConfirmation,
    StorageSnapshot,
    ThresholdPolicy,
    ToControl,
    TopicSnapshot,
    ToWorker,
    UsageInterval,
    UsageRow,
    WorkerGauges,
    WorkerHello,
    WorkerRates,
    WorkerSettings,
    decode_for_worker,
)
from gateway.control.internal_errors import InternalErrors
from gateway.control.metrics import GatewayMetrics
from gateway.control.usage.usage_log import UsageLogWriter
from gateway.control.usage.usage_spool import UsageSpool
from gateway.control.workers.snapshot_publisher import SnapshotPublisher
from gateway.control.workers.workers import MAX_PARTS_BACKLOG
from policies import usage
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.fleet.shares import LimitDemand, ShareGrant
from policies.quotas.names import Entity, QuotaKey
from policies.storage import StorageFactor
from policies.thresholds.broker_limits import BrokerRate
from tests.background import until
from tests.gateway.control.contexts import Parent, QuietCluster, make_context, make_worker_pool

SETTINGS = WorkerSettings(PROTOCOL, "gw")


class Control:
    """The real Workers, and simulated workers."""

    def __init__(self, path: Path, nursery: trio.Nursery) -> None:
        self.path = path
        self.nursery = nursery
        self.metrics = GatewayMetrics()
        self.spool = UsageSpool(path, 2**24, 3600, published_only=True)
        self.usage_log = UsageLogWriter(self.spool, "gw", self.metrics)
        self.parent = Parent()
        self.reconnects = self.parent.reconnects
        self.adopted: list[StorageSnapshot | None] = []
        self.asked: list[tuple[Any, ...]] = []
        self.sharing = Followed()
        errors = InternalErrors(self.metrics.count_internal_error)
        self.cluster = QuietCluster()
        self.context = make_context(metrics=self.metrics, parent=self.parent, errors=errors, cluster=self.cluster)
        self.workers = make_worker_pool(self.context, self.usage_log, self.sharing, self, self)
        self.intake = self.workers._interval_receiver
        nursery.start_soon(self.usage_log.run)

    def submit_query(self, *question: Any) -> None:
        self.asked.append(question)

    def adopt_factor(self, held: StorageSnapshot | None) -> None:
        """Adopt the factor as storage protection does: all workers are told the one that a worker holds."""
        self.adopted.append(held)
        if held is not None:
            self.workers.publish_snapshot(held)

    async def join(
        self,
        number: int = 0,
        boot: str = "boot-1",
        protocol: int = PROTOCOL,
        storage: StorageSnapshot | None = None,
        informed: bool = False,
    ) -> ProcessChannel[ToControl, ToWorker]:
        """A worker's end of its channel, after its hello."""
        ours, theirs = socket.socketpair()
        self.nursery.start_soon(self.workers.serve_worker, number, ours)
        channel = ProcessChannel[ToControl, ToWorker](theirs, decode_for_worker)
        self.nursery.start_soon(self._run, channel)
        channel.post(WorkerHello(protocol, number, 1, boot, storage, informed=informed))
        while protocol == PROTOCOL and boot not in [w.boot for w in self.workers._workers.values()]:
            await trio.testing.wait_all_tasks_blocked()
        return channel

    async def _run(self, channel: ProcessChannel[ToControl, ToWorker]) -> None:
        try:
            await channel.run()
        finally:
            channel.close()

    def records(self) -> list[Any]:
        return [usage.decode_record(x) for f in sorted(self.path.glob("*.jsonl")) for x in f.read_bytes().splitlines()]

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"produce_gateway_{name}", labels)


@trio_fixture
async def control(tmp_path: Path) -> AsyncIterator[Control]:
    async with trio.open_nursery() as nursery:
        control = Control(tmp_path, nursery)
        with trio.fail_after(60):
            yield control
        nursery.cancel_scope.cancel()
    control.spool.close()


def row(client: str = "app", outcome: str = "accepted", reason: str = "", topic: str = "t") -> UsageRow:
    return UsageRow(1, topic, "User:u", client, outcome, reason, 100, 2, 1)


async def receive(channel: ProcessChannel[ToControl, ToWorker], kind: Any) -> tuple[Any, int]:
    while True:
        message, fd = await channel.receive()
        if isinstance(message, kind):
            return message, fd


async def test_a_worker_gets_the_latest_snapshots_settings_first(control: Control) -> None:
    control.workers.publish_snapshot(ThresholdPolicy(1))
    control.workers.publish_snapshot(SETTINGS)
    control.workers.publish_snapshot(BrokerTable((), ()))
    control.workers.publish_snapshot(ThresholdPolicy(2, 5.0))
    control.workers.publish_snapshot(TopicSnapshot({1: ("a",)}))
    worker = await control.join()
    got = [(await worker.receive())[0] for _ in range(4)]
    assert got == [SETTINGS, BrokerTable((), ()), TopicSnapshot({1: ("a",)}), ThresholdPolicy(2, 5.0)]
    control.workers.publish_snapshot(ThresholdPolicy(3))
    assert (await worker.receive())[0] == ThresholdPolicy(3)
    assert control.sample("worker_up", worker="0") == 1


async def test_what_is_told_together_comes_together_and_to_those_who_come_later_as_well(control: Control) -> None:
    worker = await control.join()
    with control.workers.batch_snapshots():
        control.workers.publish_snapshot(SETTINGS)
        with control.workers.batch_snapshots():
            control.workers.publish_snapshot(ThresholdPolicy(1, 5.0))
        control.workers.publish_snapshot(BrokerTable((), ()))
    with control.workers.batch_snapshots():
        pass
    with control.workers.batch_snapshots():
        control.workers.publish_snapshot(ThresholdPolicy(2))
    assert (await worker.receive())[0] == SnapshotBundle((SETTINGS, ThresholdPolicy(1, 5.0), BrokerTable((), ())))
    assert (await worker.receive())[0] == ThresholdPolicy(2)
    later = await control.join(1, "b")
    assert [(await later.receive())[0] for _ in range(3)] == [SETTINGS, BrokerTable((), ()), ThresholdPolicy(2)]


async def test_workers_that_know_the_quotas_are_told_what_has_changed_and_later_ones_all(control: Control) -> None:
    first, rate = await control.join(0, "a"), QuotaKey("producer_byte_rate", "broker_bps")
    before = QuotaSnapshot(1, {Entity("alice"): {rate: 5.0}, Entity("bob"): {rate: 1.0}})
    after = QuotaSnapshot(2, {Entity("alice"): {rate: 6.0}, Entity("bob"): {rate: 1.0}})
    news = QuotaChanges({Entity("alice"): {rate: 6.0}})
    control.workers.publish_snapshot(before)
    with control.workers.batch_snapshots():
        control.workers.publish_snapshot(after, news)
        control.workers.publish_snapshot(ThresholdPolicy(2))
    assert [(await first.receive())[0] for _ in range(2)] == [before, SnapshotBundle((news, ThresholdPolicy(2)))]
    later = await control.join(1, "b")
    assert after in [(await later.receive())[0] for _ in range(2)]


async def test_the_answer_to_a_question_goes_to_the_worker_that_asked(control: Control) -> None:
    first, second = await control.join(0, "a"), await control.join(1, "b")
    first.post(AdminQuery(7, 0.0, "peer-1", "User:a", b"x"))
    await until(lambda: len(control.asked) == 1)
    second.post(AdminQuery(7, 0.0, "peer-2", "User:b", b"y"))
    await until(lambda: len(control.asked) == 2)
    assert [question.peer for question, _ in control.asked] == ["peer-1", "peer-2"]
    control.asked[1][1](AdminAnswer(7, client=b"for the second"))
    control.asked[0][1](AdminAnswer(7, client=b"for the first"))
    assert await receive(first, AdminAnswer) == (AdminAnswer(7, client=b"for the first"), -1)
    assert await receive(second, AdminAnswer) == (AdminAnswer(7, client=b"for the second"), -1)


async def test_the_answer_to_a_worker_that_died_meanwhile_goes_nowhere(control: Control) -> None:
    worker = await control.join(0, "a")
    worker.post(AdminQuery(7, 0.0, "peer", "User:a", b"x"))
    await until(lambda: control.asked)
    worker.close()
    await until(lambda: control.reconnects)
    again = await control.join(0, "b")
    control.asked[0][1](AdminAnswer(7, client=b"too late"))
    control.workers.publish_snapshot(ThresholdPolicy(9))
    assert (await again.receive())[0] == ThresholdPolicy(9)


async def test_a_factor_that_a_worker_still_holds_is_adopted_before_the_worker_is_told_anything(
    control: Control,
) -> None:
    control.workers.publish_snapshot(StorageSnapshot(StorageFactor(1.0, "fallback")))
    held = StorageSnapshot(StorageFactor(0.0, "valid", "full"), valid_until=5.0)
    first = await control.join(0, "a", storage=held)
    assert (await first.receive())[0] == held  # never the fallback
    second = await control.join(1, "b")
    assert (await second.receive())[0] == held
    assert control.adopted == [held, None]  # that one holds none is news as well: control may have waited for it


async def test_connections_on_their_way_count(control: Control) -> None:
    first, second = await control.join(0, "a"), await control.join(1, "b")
    clients = []

    async def connect() -> None:
        ours, theirs = socket.socketpair()
        clients.append(ours)
        await control.workers.hand_over_connection(theirs, AcceptedConnection(1, "peer"))

    for _ in range(4):
        await connect()
    # The first has one of its two at a broker, one is being dialled; the second has not even read of its own.
    first.post(WorkerGauges(1, 0, 0, dialling=1, accepted_count=2))
    second.post(WorkerGauges(0, 0, 1, dialling=0, accepted_count=0))
    await until(lambda: control.sample("buffered_bytes", worker="1") == 1)
    for _ in range(2):
        await connect()
    for channel in (first, second):
        for _ in range(3):
            _, fd = await receive(channel, AcceptedConnection)
            socket.close(fd)
    for client in clients:
        client.close()


async def test_connections_to_brokers_are_spread_although_every_client_comes_by_bootstrap_first(
    control: Control,
) -> None:
    workers = [await control.join(0, "a"), await control.join(1, "b")]
    clients = []
    for _ in range(4):
        for broker in (None, 1):  # a client's connections, as librdkafka makes them
            ours, theirs = socket.socketpair()
            clients.append(ours)
            await control.workers.hand_over_connection(theirs, AcceptedConnection(broker, "peer"))
    for channel in workers:
        brokers = []
        for _ in range(4):
            message, fd = await receive(channel, AcceptedConnection)
            brokers.append(message.broker)
            socket.close(fd)
        assert brokers.count(1) == 2
    for client in clients:
        client.close()


class Followed:
    """A fleet that records what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.posts: dict[int, Any] = {}
        self.heard = set[int]()
        self.silent = set[int]()

    def add_worker(self, worker: int, post: Any, gateways: int = 1) -> None:
        self.posts[worker] = post
        self.told.append(("join", worker))

    def remove_worker(self, worker: int) -> None:
        self.told.append(("leave", worker))

    def record_heard(self, worker: int) -> None:
        self.heard.add(worker)

    def is_silent(self, worker: int) -> bool:
        return worker in self.silent

    def record_demand(self, worker: int, demand: DemandReport) -> None:
        self.told.append((worker, demand))

    def record_rates(self, worker: int, rates: WorkerRates) -> None:
        self.told.append((worker, rates))


async def test_the_dealer_of_parts_hears_of_workers_and_reaches_each_alone(control: Control) -> None:
    fleet = control.sharing
    control.workers.publish_snapshot(SETTINGS)
    first, second = await control.join(0, "a"), await control.join(1, "b")
    demand = DemandReport({"k": LimitDemand(5.0, True)})
    first.post(demand)
    second.post(rates(3.0))
    await until(lambda: len(fleet.told) == 4)
    assert fleet.told[:2] == [("join", 0), ("join", 1)]
    assert sorted(fleet.told[2:], key=lambda told: told[0]) == [(0, demand), (1, rates(3.0))]
    assert fleet.heard == {0, 1}
    parts = LimitShares({"k": ShareGrant(5.0, 2.0)}, 2, 100.0)
    assert fleet.posts[1](parts)
    control.workers.publish_snapshot(ThresholdPolicy(1))
    assert [(await first.receive())[0] for _ in range(2)] == [SETTINGS, ThresholdPolicy(1)]
    assert [(await second.receive())[0] for _ in range(3)] == [SETTINGS, parts, ThresholdPolicy(1)]
    first.close()
    await until(lambda: fleet.told[-1] == ("leave", 0))
    assert not fleet.posts[0](parts)


async def test_parts_for_a_worker_that_does_not_read_do_not_pile_up(control: Control) -> None:
    control.workers.publish_snapshot(SETTINGS)
    await control.join(0, "a")
    await until(lambda: control.workers.connected == 1)
    parts = LimitShares({"k" * 100_000: ShareGrant(5.0, 2.0)}, 2, 100.0)
    taken = [control.sharing.posts[0](parts) for _ in range(3 * MAX_PARTS_BACKLOG)]
    assert MAX_PARTS_BACKLOG <= sum(taken) < 2 * MAX_PARTS_BACKLOG


def rates(rate: float, *warnings: str) -> WorkerRates:
    return WorkerRates((BrokerRate(1, rate, 0.0, 0.0, None, []),), warnings)


async def test_snapshots_for_a_worker_that_does_not_read_do_not_pile_up_and_it_gets_the_latest_when_it_does(
    control: Control,
) -> None:
    rate, topics = QuotaKey("producer_byte_rate", "broker_bps"), tuple(f"topic-{number}" for number in range(2000))
    control.workers.publish_snapshot(SETTINGS)
    stopped, reader = await control.join(0, "a"), await control.join(1, "b")
    for count in range(1, 200):
        control.workers.publish_snapshot(TopicSnapshot({count: topics}))
        changed = {Entity("alice"): {rate: float(count)}}
        control.workers.publish_snapshot(QuotaSnapshot(count, changed), QuotaChanges(changed))
        assert (await receive(reader, QuotaChanges))[0] == QuotaChanges(changed)
    assert control.workers._workers[0].channel.backlog <= MAX_PARTS_BACKLOG
    for _ in range(10):
        await stopped.receive()
    await until(lambda: control.workers._workers[0].channel.backlog < MAX_PARTS_BACKLOG)
    control.workers.publish_snapshot(ThresholdPolicy(7))  # there is room, but what is before it was left out
    stopped.post(WorkerGauges(0, 0, 0))
    latest = TopicSnapshot({199: topics}), ThresholdPolicy(7), QuotaSnapshot(199, changed)
    got: list[ToWorker] = []
    while SnapshotBundle((SETTINGS, *latest)) not in got:
        with trio.move_on_after(0.1):
            got.append((await stopped.receive())[0])
            continue
        stopped.post(WorkerGauges(0, 0, 0))
    assert ThresholdPolicy(7) not in got
    control.workers.publish_snapshot(ThresholdPolicy(8))
    assert (await stopped.receive())[0] == ThresholdPolicy(8)


async def test_rates_of_all_workers_are_one_and_go_with_their_worker(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    assert control.workers.latest_snapshot(WorkerRates) is None
    first, second = await control.join(0, "a"), await control.join(1, "b")
    first.post(rates(10.0, "a share is 0"))
    await until(lambda: control.sample("broker_rate_bytes_per_second", broker="1") == 10)
    second.post(rates(5.0, "a share is 0"))
    await until(lambda: control.sample("broker_rate_bytes_per_second", broker="1") == 15)
    assert control.workers.latest_snapshot(WorkerRates) == rates(15.0, "a share is 0")
    second.post(rates(6.0, "a share is 0"))  # in the place of what it said before
    await until(lambda: control.workers.latest_snapshot(WorkerRates) == rates(16.0, "a share is 0"))
    assert caplog.text.count("a share is 0") == 1
    first.close()
    await until(lambda: control.reconnects)
    assert control.workers.latest_snapshot(WorkerRates) == rates(6.0, "a share is 0")
    assert control.sample("broker_rate_bytes_per_second", broker="1") == 6
    second.close()
    await until(lambda: len(control.reconnects) == 2)
    assert control.workers.latest_snapshot(WorkerRates) is None
    assert control.sample("broker_rate_bytes_per_second", broker="1") is None


async def test_connections_go_to_the_worker_with_the_fewest(control: Control) -> None:
    first, second = await control.join(0, "a"), await control.join(1, "b")
    first.post(WorkerGauges(5, 0, 0))
    second.post(WorkerGauges(3, 0, 0))
    await until(lambda: control.sample("connections", worker="1") == 3)
    clients = []
    for i in range(6):
        ours, theirs = socket.socketpair()
        clients.append(ours)
        await control.workers.hand_over_connection(theirs, AcceptedConnection(i, f"peer-{i}"))
    for worker, expected in ((second, [0, 1, 3, 5]), (first, [2, 4])):
        for i in expected:  # the first takes part when both have five
            message, fd = await receive(worker, AcceptedConnection)
            assert message == AcceptedConnection(i, f"peer-{i}")
            with socket.socket(fileno=fd) as got:
                got.send(b"x")
            assert clients[i].recv(1) == b"x"
    for client in clients:
        client.close()


async def test_no_connection_goes_to_a_stopped_worker_while_there_is_another(control: Control) -> None:
    """It would have the fewest, as clients give it up."""
    control.sharing.silent = {0, 1}
    workers = [await control.join(0, "a")]
    workers[0].post(WorkerGauges(1, 0, 0))
    await until(lambda: control.sample("connections", worker="0") == 1)
    workers.append(await control.join(1, "b"))
    for silent, given in (({0, 1}, 1), ({1}, 0), ({1}, 0), ({1}, 0)):
        control.sharing.silent = silent
        ours, theirs = socket.socketpair()
        await control.workers.hand_over_connection(theirs, AcceptedConnection(given, "peer"))
        message, fd = await receive(workers[given], AcceptedConnection)
        assert message == AcceptedConnection(given, "peer")
        socket.close(fd)
        ours.close()


async def test_a_connection_waits_for_a_worker(control: Control) -> None:
    ours, theirs = socket.socketpair()
    control.nursery.start_soon(control.workers.hand_over_connection, theirs, AcceptedConnection(None, "peer"))
    await trio.testing.wait_all_tasks_blocked(0.02)
    worker = await control.join()
    message, fd = await receive(worker, AcceptedConnection)
    assert message == AcceptedConnection(None, "peer")
    socket.close(fd)
    ours.close()


async def test_an_interval_is_counted_once_and_confirmed_when_it_is_on_disk(control: Control) -> None:
    worker = await control.join()
    for _ in range(2):
        worker.post(UsageInterval("boot-1", 0, 0, 0, 1000, (row(),), {"requests": 3}))
        assert (await receive(worker, SpoolConfirmation))[0] == SpoolConfirmation(0)
    assert [record["seq"] for record in control.records()] == [0]
    assert control.sample("requests_total", api="Produce") == 3
    counted = b'produce_bytes_total{broker="1",outcome="accepted",reason="",topic="t"} 100\n'
    assert counted in b"".join(control.metrics.render_text())


async def test_counts_without_rows_are_for_the_metrics_only(control: Control) -> None:
    worker = await control.join()
    worker.post(UsageInterval("boot-1", 0, -1, 0, 1000, (), {"connections_accepted": 2}))
    worker.post(UsageInterval("boot-1", 0, 0, 0, 1000, (row(),), {"connections_accepted": 1}))
    assert (await receive(worker, SpoolConfirmation))[0] == SpoolConfirmation(0)
    assert control.sample("connections_accepted_total") == 3
    assert [record["seq"] for record in control.records()] == [0]


async def test_a_worker_that_dies_is_noted_as_lost_when_its_successor_comes(control: Control) -> None:
    worker = await control.join(boot="old")
    worker.post(UsageInterval("old", 0, 4, 0, 1000, (row(),)))
    await receive(worker, SpoolConfirmation)
    worker.close()
    await until(lambda: control.reconnects)
    assert control.sample("worker_up", worker="0") == 0
    assert len(control.records()) == 1  # perhaps only the channel broke
    await control.join(boot="new")
    await control.usage_log.wait_drained()
    lost = control.records()[-1]
    assert (lost["kind"], lost["boot"], lost["seq"]) == ("lost", "old", 4)
    assert control.sample("workers_lost_total") == 1


async def test_a_worker_that_died_before_its_first_interval_is_noted_too(control: Control) -> None:
    (await control.join(boot="old")).close()
    await until(lambda: control.reconnects)
    await control.join(boot="new")
    await control.usage_log.wait_drained()
    assert [(r["kind"], r["boot"], r["seq"]) for r in control.records()] == [("lost", "old", -1)]


async def test_a_channel_that_broke_is_no_loss(control: Control) -> None:
    for seq in range(2):
        worker = await control.join()
        worker.post(UsageInterval("boot-1", 0, seq, 0, 1000, (row(),)))
        await receive(worker, SpoolConfirmation)
        worker.close()
        await until(lambda seq=seq: len(control.reconnects) == seq + 1)
    assert [record["kind"] for record in control.records()] == ["interval", "interval"]


async def test_a_later_channel_of_a_worker_that_lives_replaces_the_earlier_one(control: Control) -> None:
    first = await control.join()
    ours, theirs = socket.socketpair()
    control.nursery.start_soon(control.workers.serve_worker, 0, ours)
    with pytest.raises(ChannelClosed):  # a worker serves one after the other: else it would never come to the next
        await receive(first, SpoolConfirmation)
    first.post(UsageInterval("boot-1", 0, 0, 0, 1000, (row(),)))
    await first.wait_flushed()
    first.close()
    second = ProcessChannel[ToControl, ToWorker](theirs, decode_for_worker)
    control.nursery.start_soon(control._run, second)
    second.post(WorkerHello(PROTOCOL, 0, 1, "boot-1"))
    await until(lambda: control.workers.connected)
    await until(lambda: [record["seq"] for record in control.records()] == [0])
    assert control.reconnects == []


async def test_what_a_dead_worker_said_comes_before_its_successor(control: Control) -> None:
    first = await control.join(0, "old")
    for seq in range(3):
        first.post(UsageInterval("old", 0, seq, 0, 1000, (row(),)))
    await first.wait_flushed()
    first.close()
    await control.join(0, "new")  # control has read none of it yet
    await until(lambda: len(control.records()) == 4)
    assert [(each["kind"], each["seq"]) for each in control.records()] == [
        ("interval", 0), ("interval", 1), ("interval", 2), ("lost", 2),
    ]  # fmt: skip


async def test_a_worker_that_ended_in_order_is_no_loss(control: Control) -> None:
    worker = await control.join()
    worker.post(UsageInterval("boot-1", 0, 0, 0, 1000, (), {}, True))
    await receive(worker, SpoolConfirmation)
    worker.close()
    await control.workers.wait_ended()
    control.intake.record_lost_workers()
    await control.usage_log.wait_drained()
    assert [record["final"] for record in control.records()] == [True]
    assert control.reconnects == []


async def test_a_worker_that_never_said_its_last_is_noted_at_the_end(control: Control) -> None:
    worker = await control.join()
    control.workers.drain(5)
    late = await control.join(1, "b")
    for each in (worker, late):
        assert (await receive(each, DrainRequest))[0] == DrainRequest(5)
    worker.close()
    await until(lambda: control.workers.connected == 1)
    with trio.move_on_after(0.01) as waiting:
        await control.workers.wait_ended()
    assert waiting.cancelled_caught, "the other one may still say something"
    late.close()
    await control.workers.wait_ended()
    control.intake.record_lost_workers()
    await control.usage_log.wait_drained()
    assert [record["kind"] for record in control.records()] == ["lost", "lost"]


async def test_a_worker_of_another_release_is_not_talked_to(control: Control, caplog: pytest.LogCaptureFixture) -> None:
    worker = await control.join(protocol=PROTOCOL + 1)
    with pytest.raises(ChannelClosed):
        await receive(worker, WorkerSettings)
    assert "another release" in caplog.text
    assert control.workers.connected == 0


async def test_a_steady_delay_is_told_when_it_begins_and_rejections_every_time(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    # While disks fill up every topic is delayed in every second: a log is read by people.
    caplog.set_level("INFO")
    worker = await control.join()
    rows = (
        row(outcome="delayed", reason="storage-throttle"),
        row(outcome="rejected", reason="storage-throttle"),
        row(outcome="accepted"),
    )
    for seq in range(3):
        worker.post(UsageInterval("boot-1", 0, seq, 0, 1000, rows))
        await receive(worker, SpoolConfirmation)
    worker.post(UsageInterval("boot-1", 0, 3, 0, 1000, (row(outcome="delayed", reason="client-quota"),)))
    await receive(worker, SpoolConfirmation)
    lines = [record.getMessage() for record in caplog.records if record.name == "gateway.traffic"]
    assert [line.partition(":")[0] for line in lines].count("rejected") == 3
    assert len([line for line in lines if line.startswith("delayed") and "storage-throttle" in line]) == 1
    assert len([line for line in lines if line.startswith("delayed") and "client-quota" in line]) == 1


async def test_messages_of_a_worker_get_where_they_belong(control: Control, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    worker = await control.join()
    worker.post(LogMessage("error", "garbage from 1.2.3.4: it looks like HTTP"))
    worker.post(RefreshRequest("metadata"))
    worker.post(UsageInterval("boot-1", 0, 0, 0, 1000, (row(outcome="rejected", reason="topic-threshold"),)))
    await receive(worker, SpoolConfirmation)
    assert control.cluster.requests == 1
    assert "it looks like HTTP" in caplog.text
    assert "rejected: topic t on broker 1: topic-threshold: 100 bytes, 2 messages in 1 requests" in caplog.text


async def test_an_error_over_one_message_ends_neither_the_channel_nor_what_comes_behind(
    control: Control, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await control.join()
    monkeypatch.delattr("gateway.control.admission.ConnectionAdmission.move_connection")
    worker.post(LocatedConnection(1, "via 10.0.0.1", "10.0.0.2"))
    worker.post(UsageInterval("boot-1", 0, 0, 0, 1000, (row(),)))
    assert (await receive(worker, SpoolConfirmation))[0] == SpoolConfirmation(0)
    assert control.reconnects == []
    assert control.sample("internal_errors_total", where="worker_message") == 1
    assert "AttributeError: 'ConnectionAdmission' object has no attribute 'move_connection'" in caplog.text


@pytest.mark.parametrize(
    "answer", [AdminAnswer(7, why="\ud800"), AdminAnswer(7, identity=SaslIdentity("User:a", 2**64))]
)
async def test_an_answer_that_no_message_can_hold_ends_its_client_s_connection(
    control: Control, answer: AdminAnswer
) -> None:
    worker = await control.join()
    worker.post(AdminQuery(7, 1e9, "10.0.0.9:5", "User:a", b"request"))
    while not control.asked:
        await trio.testing.wait_all_tasks_blocked()
    control.asked[0][1](answer)
    said, _ = await receive(worker, AdminAnswer)
    assert (said.token, said.closes) == (7, "error")
    assert control.sample("internal_errors_total", where="worker_message") == 1


async def test_intervals_that_the_usage_log_has_no_room_for_stay_in_their_worker_and_are_said_again(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.control.usage.usage_log.MAX_QUEUED", 2)
    append, full = control.spool.append, True

    def append_or_refuse(lines: list[bytes]) -> None:
        if full:
            raise OSError("no space left on device")
        append(lines)

    monkeypatch.setattr(control.spool, "append", append_or_refuse)
    worker = await control.join()
    for seq in range(4):
        worker.post(UsageInterval("boot-1", 0, seq, 0, 1000, (row(),)))
    worker.post(WorkerGauges(9, 0, 0))
    await until(lambda: control.sample("connections", worker="0") == 9)
    assert control.usage_log.queued == 2
    assert control.reconnects == []
    full = False
    while not control.reconnects:
        worker.post(WorkerGauges(0, 0, 0))
        await trio.sleep(0.05)
    again = await control.join()  # on the channel that the parent made
    for seq in (2, 3):
        again.post(UsageInterval("boot-1", 0, seq, 0, 1000, (row(),)))
    while (await receive(again, SpoolConfirmation))[0].seq != 3:
        pass
    assert [record["seq"] for record in control.records()] == [0, 1, 2, 3]


async def test_a_worker_that_an_earlier_control_informed_keeps_what_it_knows(control: Control) -> None:
    suggested, known = ThresholdPolicy(0, 1.0), ThresholdPolicy(3, 2.0)
    control.workers.publish_provisional(suggested)
    fresh, informed = await control.join(0, "boot-1"), await control.join(1, "boot-2", informed=True)
    assert (await receive(fresh, ThresholdPolicy))[0] == suggested
    control.workers.publish_snapshot(known)
    assert (await receive(informed, ThresholdPolicy))[0] == known
    assert (await receive(fresh, ThresholdPolicy))[0] == known


async def test_before_policies_are_loaded_again_a_worker_without_any_gets_those_of_the_configuration(
    control: Control,
) -> None:
    loaded, context = trio.Event(), make_context(was_up=True)
    publisher = SnapshotPublisher(context, control.workers, loaded, b"")
    publisher.publish_policies(PolicySet({PolicyKey.of_broker(): 100.0}))
    fresh, informed = await control.join(0, "boot-1"), await control.join(1, "boot-2", informed=True)
    assert (await receive(fresh, ThresholdPolicy))[0].total == 100.0
    loaded.set()
    publisher.publish_policies(PolicySet({PolicyKey.of_broker(): 200.0}))
    together, _ = await informed.receive()
    assert isinstance(together, SnapshotBundle), "until then it went on with what it had"
    assert isinstance(together.snapshots[0], ThresholdPolicy)
    assert together.snapshots[0].total == 200.0
    assert (await receive(fresh, SnapshotBundle))[0] == together
