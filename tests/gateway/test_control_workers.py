# Control's side of a worker, over a real socketpair whose other end plays the worker.

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing
from pytest_trio import trio_fixture

from gateway.channel import (
    PROTOCOL,
    Accepted,
    Brokers,
    Channel,
    ChannelClosed,
    Drain,
    Gauges,
    Hello,
    Interval,
    Log,
    Policy,
    Row,
    Settings,
    Spooled,
    Topics,
    Want,
)
from gateway.control.metrics import Metrics
from gateway.control.usage_log import Spool, UsageLog
from gateway.control.workers import MAX_LINES, Workers, describe
from policies import usage

SETTINGS = Settings(PROTOCOL, "gw")


class Control:
    """The real Workers, and workers played by the test."""

    def __init__(self, path, nursery):
        self.path = path
        self.nursery = nursery
        self.metrics = Metrics()
        self.spool = Spool(path, 2**24, 3600, published_only=True)
        self.usage_log = UsageLog(self.spool, "gw", self.metrics)
        self.wanted, self.reconnects = [], []
        self.workers = Workers(self.usage_log, self.metrics, lambda: self.wanted.append(1), self.reconnects.append)
        nursery.start_soon(self.usage_log.run)

    async def join(self, number=0, boot="boot-1", protocol=PROTOCOL):
        """A worker's end, after its hello."""
        ours, theirs = socket.socketpair()
        self.nursery.start_soon(self.workers.serve, number, ours)
        channel = Channel(theirs, "worker")
        self.nursery.start_soon(self._run, channel)
        channel.post(Hello(protocol, number, 1, boot))
        with trio.move_on_after(20):
            while protocol == PROTOCOL and boot not in [w.boot for w in self.workers._workers.values()]:
                await trio.testing.wait_all_tasks_blocked()
        return channel

    async def _run(self, channel):
        try:
            await channel.run()
        except ChannelClosed:
            pass
        finally:
            channel.close()

    def records(self):
        return [usage.decode(x) for f in sorted(self.path.glob("*.jsonl")) for x in f.read_bytes().splitlines()]

    def sample(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"produce_gateway_{name}", labels)


@trio_fixture
async def control(tmp_path):
    async with trio.open_nursery() as nursery:
        control = Control(tmp_path, nursery)
        with trio.fail_after(60):
            yield control
        nursery.cancel_scope.cancel()
    control.spool.close()


def row(client="app", outcome="accepted", reason="", topic="t"):
    return Row(1, topic, "User:u", client, outcome, reason, 100, 2, 1)


async def receive(channel, kind):
    while True:
        message, fd = await channel.receive()
        if isinstance(message, kind):
            return message, fd


async def until(condition):
    while not condition():
        await trio.testing.wait_all_tasks_blocked(0.005)


@pytest.mark.trio
async def test_a_worker_gets_the_latest_snapshots_settings_first(control):
    control.workers.tell(Policy(1))
    control.workers.tell(SETTINGS)
    control.workers.tell(Brokers((), ()))
    control.workers.tell(Policy(2, 5.0))
    control.workers.tell(Topics({1: ("a",)}))
    worker = await control.join()
    got = [(await worker.receive())[0] for _ in range(4)]
    assert got == [SETTINGS, Brokers((), ()), Topics({1: ("a",)}), Policy(2, 5.0)]
    control.workers.tell(Policy(3))
    assert (await worker.receive())[0] == Policy(3)
    assert control.sample("worker_up", worker="0") == 1


@pytest.mark.trio
async def test_connections_go_to_the_worker_with_the_fewest(control):
    first, second = await control.join(0, "a"), await control.join(1, "b")
    first.post(Gauges(5, 0, 0))
    second.post(Gauges(3, 0, 0))
    await until(lambda: control.sample("connections", worker="1") == 3)
    clients = []
    for i in range(6):
        ours, theirs = socket.socketpair()
        clients.append(ours)
        await control.workers.hand_over(theirs, i, f"peer-{i}")
    for worker, expected in ((second, [0, 1, 3, 5]), (first, [2, 4])):
        for i in expected:  # the first takes part when both have five
            message, fd = await receive(worker, Accepted)
            assert message == Accepted(i, f"peer-{i}")
            with socket.socket(fileno=fd) as got:
                got.send(b"x")
            assert clients[i].recv(1) == b"x"
    for client in clients:
        client.close()


@pytest.mark.trio
async def test_a_connection_waits_for_a_worker(control):
    ours, theirs = socket.socketpair()
    control.nursery.start_soon(control.workers.hand_over, theirs, None, "peer")
    await trio.testing.wait_all_tasks_blocked(0.02)
    worker = await control.join()
    message, fd = await receive(worker, Accepted)
    assert message == Accepted(None, "peer")
    socket.close(fd)
    ours.close()


@pytest.mark.trio
async def test_an_interval_is_counted_once_and_confirmed_when_it_is_on_disk(control):
    worker = await control.join()
    for _ in range(2):
        worker.post(Interval("boot-1", 0, 0, 0, 1000, (row(),), {"requests": 3}))
        assert (await receive(worker, Spooled))[0] == Spooled(0)
    assert [record["seq"] for record in control.records()] == [0]
    assert control.sample("requests_total") == 3
    assert control.sample("produce_bytes_total", broker="1", topic="t", outcome="accepted", reason="") == 100


@pytest.mark.trio
async def test_counts_without_rows_are_for_the_metrics_only(control):
    worker = await control.join()
    worker.post(Interval("boot-1", 0, -1, 0, 1000, (), {"connections_accepted": 2}))
    worker.post(Interval("boot-1", 0, 0, 0, 1000, (row(),), {"connections_accepted": 1}))
    assert (await receive(worker, Spooled))[0] == Spooled(0)
    assert control.sample("connections_accepted_total") == 3
    assert [record["seq"] for record in control.records()] == [0]


@pytest.mark.trio
async def test_a_worker_that_dies_is_noted_as_lost_when_its_successor_comes(control):
    worker = await control.join(boot="old")
    worker.post(Interval("old", 0, 4, 0, 1000, (row(),)))
    await receive(worker, Spooled)
    worker.close()
    await until(lambda: control.reconnects)
    assert control.sample("worker_up", worker="0") == 0
    assert len(control.records()) == 1  # perhaps only the channel broke
    await control.join(boot="new")
    await control.usage_log.drained()
    lost = control.records()[-1]
    assert (lost["kind"], lost["boot"], lost["seq"]) == ("lost", "old", 4)
    assert control.sample("workers_lost_total") == 1


@pytest.mark.trio
async def test_a_worker_that_died_before_its_first_interval_is_noted_too(control):
    (await control.join(boot="old")).close()
    await until(lambda: control.reconnects)
    await control.join(boot="new")
    await control.usage_log.drained()
    assert [(r["kind"], r["boot"], r["seq"]) for r in control.records()] == [("lost", "old", -1)]


@pytest.mark.trio
async def test_a_channel_that_broke_is_no_loss(control):
    for seq in range(2):
        worker = await control.join()
        worker.post(Interval("boot-1", 0, seq, 0, 1000, (row(),)))
        await receive(worker, Spooled)
        worker.close()
        await until(lambda seq=seq: len(control.reconnects) == seq + 1)
    assert [record["kind"] for record in control.records()] == ["interval", "interval"]


@pytest.mark.trio
async def test_a_worker_that_ended_in_order_is_no_loss(control):
    worker = await control.join()
    worker.post(Interval("boot-1", 0, 0, 0, 1000, (), {}, True))
    await receive(worker, Spooled)
    worker.close()
    await control.workers.ended()
    control.workers.note_unfinished()
    await control.usage_log.drained()
    assert [record["final"] for record in control.records()] == [True]
    assert control.reconnects == []


@pytest.mark.trio
async def test_a_worker_that_never_said_its_last_is_noted_at_the_end(control):
    worker = await control.join()
    control.workers.drain(5)
    assert (await receive(worker, Drain))[0] == Drain(5)
    worker.close()
    await control.workers.ended()
    control.workers.note_unfinished()
    await control.usage_log.drained()
    assert control.records()[-1]["kind"] == "lost"


@pytest.mark.trio
async def test_a_worker_of_another_release_is_not_talked_to(control, caplog):
    worker = await control.join(protocol=PROTOCOL + 1)
    with pytest.raises(ChannelClosed):
        await receive(worker, Settings)
    assert "another release" in caplog.text
    assert control.workers.connected == 0


@pytest.mark.trio
async def test_what_a_worker_says_gets_where_it_belongs(control, caplog):
    caplog.set_level("INFO")
    worker = await control.join()
    worker.post(Log("error", "garbage from 1.2.3.4: it looks like HTTP"))
    worker.post(Want("metadata"))
    worker.post(Interval("boot-1", 0, 0, 0, 1000, (row(outcome="rejected", reason="topic-threshold"),)))
    await receive(worker, Spooled)
    assert control.wanted == [1]
    assert "it looks like HTTP" in caplog.text
    assert "rejected: topic t on broker 1: topic-threshold: 100 bytes, 2 messages in 1 requests" in caplog.text


def test_a_line_per_topic_and_reason_with_its_clients():
    rows = [row(f"app-{i}", "rejected", "topic-threshold") for i in range(5)]
    rows += [row(outcome="errored", reason="MESSAGE_TOO_LARGE"), row()]
    lines = describe(Interval("b", 0, 0, 0, 1500, tuple(rows)))
    assert lines == [
        "errored: topic t on broker 1: MESSAGE_TOO_LARGE: 100 bytes, 2 messages in 1 requests within 1.5 s,"
        " from User:u 'app'",
        "rejected: topic t on broker 1: topic-threshold: 500 bytes, 10 messages in 5 requests within 1.5 s,"
        " from User:u 'app-0', User:u 'app-1', User:u 'app-2' and 2 more",
    ]


def test_the_log_is_bounded_and_says_what_it_left_out():
    rows = [row(topic=f"t{i}", outcome="rejected", reason="topic-threshold") for i in range(MAX_LINES + 7)]
    lines = describe(Interval("b", 0, 0, 0, 1000, tuple(rows)))
    assert len(lines) == MAX_LINES + 1
    assert "7 more topics" in lines[-1]
