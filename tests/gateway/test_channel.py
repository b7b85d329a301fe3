# The channel over a real socketpair, with real descriptors.

from __future__ import annotations

import errno
import gc
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from pytest_trio import trio_fixture

from gateway.channel import (
    COUNT_NAMES,
    PROTOCOL,
    AcceptedConnection,
    AdminAnswer,
    AdminQuery,
    BrokerTable,
    ChannelClosed,
    ConnectionInfo,
    DemandReport,
    DrainRequest,
    FindConnections,
    FoundConnections,
    GroupSnapshot,
    LimitShares,
    ListenerSettings,
    LogMessage,
    PeerRates,
    ProcessChannel,
    RefreshRequest,
    SpoolConfirmation,
    StorageSnapshot,
    ThresholdPolicy,
    ToControl,
    TopicSnapshot,
    ToWorker,
    UpstreamBroker,
    UsageInterval,
    UsageRow,
    WorkerGauges,
    WorkerHello,
    WorkerRates,
    WorkerSettings,
    decode_for_control,
    decode_for_worker,
)
from gateway.tls.certificates import ListenerTls
from gateway.tls.server_names import ServerNames
from gateway.worker_config import WorkerInternal, WorkerInternalClient
from policies.fleet.shares import LimitDemand, ShareGrant
from policies.groups.group_limiters import GroupLimitValues, GroupRate
from policies.limits.limit_use import LimitUse
from policies.meters.broker_meters import PeerTraffic
from policies.quotas.quota_limiters import QuotaRate
from policies.storage import StorageFactor
from policies.thresholds.broker_limits import BrokerRate, TopicRate

MIRROR = WorkerInternalClient(principal="User:b", client_id="b")
DOWN: list[ToWorker] = [
    WorkerSettings(
        PROTOCOL,
        "gw",
        reject_code=89,
        internal=WorkerInternal(principals=("User:a",), clients=(MIRROR,)),
        listeners={"tls": ListenerSettings(ListenerTls("gw.pem"), ServerNames("gw", "b-$(node_id).gw"))},
    ),
    BrokerTable((("h", 9092),), (UpstreamBroker(1, "b1", 9092),), {"default": {1: ("gw", 19094)}}),
    TopicSnapshot({1: ("a", "ü")}, {bytes(range(16)): "a"}),
    ThresholdPolicy(3, 2e7, {"a": 5e6}),
    StorageSnapshot(StorageFactor(0.0, "kept", "full"), "observe", 12.5, StorageFactor(0.3, "fallback")),
    GroupSnapshot(1, {"gold": GroupLimitValues(publish_bytes=1e6)}, {"acme": "gold"}),
    LimitShares({"key": ShareGrant(600.0, 300.0)}, 2, 12.5),
    PeerRates({1: PeerTraffic(2.0, {b"a": 1.0}), 2: PeerTraffic(3.0)}, 2),
    SpoolConfirmation(7),
    DrainRequest(2.5),
    AdminAnswer(7, b"\0\1", b"", b"memo"),
    FindConnections(7, 20, "User:a", None, "::1", 2, True),
]
UP: list[ToControl] = [
    WorkerHello(PROTOCOL, 0, 17, "abc"),
    UsageInterval(
        "abc", 0, 0, 1, 2, (UsageRow(1, "t", "User:x", "c", "accepted", "", 2**40, 2, 1),), {COUNT_NAMES[0]: 3}, True
    ),
    UsageInterval(
        "abc", 0, 1, 2, 3, (UsageRow(1, "t", "User:x", "c", "rejected", "fence", 9, 2, 1, 5, "gold", "kgo", 0),)
    ),
    WorkerRates((BrokerRate(1, 1.5, 0.0, 0.0, None, [TopicRate("t", 1.5, None, False)]),), ("w",)),
    WorkerRates(
        (),
        quotas=(
            QuotaRate("producer_byte_rate:bps", "{user=a}", "a", None, 1, LimitUse(2.0, 3.0, True, 0.5, 0.1), 3.0, "k"),
        ),
        groups=(GroupRate("gold", "publish", 7, LimitUse(4.0, 5.0, True), LimitUse(2.0, None)),),
    ),
    DemandReport({"key": LimitDemand(1.5, True, 2.0, 3)}, whole=True),
    WorkerGauges(1, 2, 3),
    LogMessage("info", "text"),
    RefreshRequest("metadata"),
    FoundConnections(7, 40, 1, (ConnectionInfo("[::1]:5", -1, "User:ü", "", "kgo 1", 1.5, 0.0, 2, 3.5, "fence"),)),
    AdminQuery(7, 12.5, "10.0.0.9:5", "User:a", b"\0\x2c", b"memo", b"\xff"),
    AdminQuery(8, 12.5, "10.0.0.9:5", "User:a", b"\0\x24", mechanism="PLAIN", listener="external"),
]


DEADLINE_S = 60.0
Ends = tuple[ProcessChannel[ToWorker, ToControl], ProcessChannel[ToControl, ToWorker]]
Raw = tuple[socket.socket, ProcessChannel[ToControl, ToWorker]]


@trio_fixture
async def ends() -> AsyncIterator[Ends]:
    left, right = socket.socketpair()
    control, worker = (
        ProcessChannel[ToWorker, ToControl](left, decode_for_control),
        ProcessChannel[ToControl, ToWorker](right, decode_for_worker),
    )
    yield control, worker
    control.close()
    worker.close()


@trio_fixture
async def raw() -> AsyncIterator[Raw]:
    """A worker's end, and the bare socket that feeds it."""
    left, right = socket.socketpair()
    worker = ProcessChannel[ToControl, ToWorker](right, decode_for_worker)
    yield left, worker
    left.close()
    worker.close()


def marked_pipe(mark: bytes) -> int:
    """The reading end of a pipe that holds a mark: a descriptor that can be told from others."""
    reading, writing = os.pipe()
    os.write(writing, mark)
    os.close(writing)
    return reading


def read_mark(fd: int) -> bytes:
    mark = os.read(fd, 100)
    os.close(fd)
    return mark


def encoded(message: object) -> bytes:
    body = msgspec.msgpack.encode(message)
    return struct.pack(">I", len(body)) + body


async def send_all(channel: ProcessChannel[Any, Any]) -> None:
    """What was posted goes to the other end, and nothing is read."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run)
        with trio.fail_after(DEADLINE_S):
            await channel.wait_flushed()
        nursery.cancel_scope.cancel()


async def test_every_message_arrives_as_it_was_sent(ends: Ends) -> None:
    control, worker = ends
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.run)
        nursery.start_soon(worker.run)
        for down in DOWN:
            control.post(down)
        for up in UP:
            worker.post(up)
        with trio.fail_after(DEADLINE_S):
            assert [await worker.receive() for _ in DOWN] == [(message, -1) for message in DOWN]
            assert [await control.receive() for _ in UP] == [(message, -1) for message in UP]
        nursery.cancel_scope.cancel()


async def test_bytes_may_come_one_by_one_or_all_at_once(raw: Raw) -> None:
    sock, worker = raw
    stream = b"".join(encoded(message) for message in DOWN)
    sock.sendall(stream)
    with trio.fail_after(DEADLINE_S):
        assert [(await worker.receive())[0] for _ in DOWN] == DOWN
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def drip() -> None:
            for i in range(len(stream)):
                sock.sendall(stream[i : i + 1])
                await trio.testing.wait_all_tasks_blocked()

        with trio.fail_after(DEADLINE_S):
            assert [(await worker.receive())[0] for _ in DOWN] == DOWN


async def test_a_message_larger_than_the_socket_buffers_passes_and_others_wait_behind_it(
    ends: Ends,
) -> None:
    control, worker = ends
    large = TopicSnapshot({1: tuple(f"topic-{i}" for i in range(200_000))})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.run)
        control.post(large)
        control.post(SpoolConfirmation(1))
        assert control.backlog == 2
        with trio.fail_after(DEADLINE_S):
            assert (await worker.receive())[0] == large
            assert (await worker.receive())[0] == SpoolConfirmation(1)
            await control.wait_flushed()
        assert control.backlog == 0
        nursery.cancel_scope.cancel()


async def test_each_descriptor_comes_with_its_own_message(ends: Ends) -> None:
    control, worker = ends
    for i in range(40):
        control.post(AcceptedConnection(i, "peer"), marked_pipe(b"%d" % i))
        control.post(SpoolConfirmation(i))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.run)
        with trio.fail_after(DEADLINE_S):
            for i in range(40):
                message, fd = await worker.receive()
                assert message == AcceptedConnection(i, "peer")
                assert read_mark(fd) == b"%d" % i
                assert await worker.receive() == (SpoolConfirmation(i), -1)
        nursery.cancel_scope.cancel()


async def test_out_of_descriptors_loses_that_one_and_never_mixes_up_the_others(ends: Ends) -> None:
    control, worker = ends
    for i in range(3):
        control.post(AcceptedConnection(i, "peer"), marked_pipe(b"%d" % i))
    await send_all(control)
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # else a lower number may come free
    highest = os.open("/dev/null", os.O_RDONLY)  # the lowest number that is free
    os.close(highest)
    with trio.fail_after(DEADLINE_S):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
            assert await worker.receive() == (AcceptedConnection(0, "peer"), -1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for i in (1, 2):
            message, fd = await worker.receive()
            assert (message, read_mark(fd)) == (AcceptedConnection(i, "peer"), b"%d" % i)


async def test_a_posted_descriptor_is_closed_once_sent_and_at_close(ends: Ends) -> None:
    control, worker = ends
    sent, kept = marked_pipe(b"s"), marked_pipe(b"k")
    control.post(AcceptedConnection(1, "p"), sent)
    await send_all(control)
    with pytest.raises(OSError):
        os.fstat(sent)
    control.post(AcceptedConnection(2, "p"), kept)
    control.close()
    with pytest.raises(OSError):
        os.fstat(kept)
    with trio.fail_after(DEADLINE_S):
        assert read_mark((await worker.receive())[1]) == b"s"


async def test_descriptors_that_are_received_and_never_taken_are_closed(raw: Raw) -> None:
    sock, worker = raw
    reading, writing = os.pipe()
    whole = encoded(AcceptedConnection(1, "p"))
    flagged = struct.pack(">I", (len(whole) - 4) | 1 << 31) + whole[4:-1]  # its last byte never comes
    socket.send_fds(sock, [flagged], [reading])
    os.close(reading)
    with trio.move_on_after(0.05):
        await worker.receive()
    worker.close()
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"x")
    os.close(writing)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x7f\xff\xff\xff",  # a size beyond MAX_MESSAGE
        b"\0\0\0\x03abc",  # no msgpack
        encoded({"type": "NewerMessage"}),
        encoded(WorkerHello(PROTOCOL, 0, 1, "up, not down")),
    ],
)
async def test_a_message_that_the_other_end_may_not_send_ends_the_channel(raw: Raw, garbage: bytes) -> None:
    sock, worker = raw
    sock.sendall(garbage)
    with trio.fail_after(DEADLINE_S), pytest.raises(ChannelClosed):
        await worker.receive()


async def test_what_was_sent_before_the_end_is_received_behind_a_message_that_nobody_takes(ends: Ends) -> None:
    control, worker = ends
    for number in range(3):
        worker.post(LogMessage("info", f"{number}"))
    await send_all(worker)
    worker.close()
    control.post(SpoolConfirmation(1))
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(control.run)
            await trio.testing.wait_all_tasks_blocked()
            assert [(await control.receive())[0] for _ in range(3)] == [LogMessage("info", f"{n}") for n in range(3)]
            with pytest.raises(ChannelClosed):
                await control.receive()


async def test_who_finishes_writing_still_receives(ends: Ends) -> None:
    control, worker = ends
    control.post(SpoolConfirmation(1))
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(control.run)
            nursery.start_soon(worker.run)
            await control.wait_flushed()
            control.finish_writing()
            assert (await worker.receive())[0] == SpoolConfirmation(1)
            with pytest.raises(ChannelClosed):
                await worker.receive()
            worker.post(LogMessage("info", "last words"))
            assert (await control.receive())[0] == LogMessage("info", "last words")
            nursery.cancel_scope.cancel()


async def test_closing_wakes_all_tasks_that_wait(ends: Ends) -> None:
    control, _ = ends
    ended = []

    async def wait() -> None:
        try:
            await control.receive()
        except ChannelClosed:
            ended.append("receive")

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            control.close()
    assert ended == ["receive"]


class Refusing:
    """A channel's socket on which the system refuses so many sends, each with that error."""

    def __init__(self, sock: Any, number: int, times: int) -> None:
        self._sock, self._number, self.left = sock, number, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def _refuse(self) -> None:
        if self.left:
            self.left -= 1
            raise OSError(self._number, os.strerror(self._number))

    async def send(self, data: Any) -> Any:
        self._refuse()
        return await self._sock.send(data[:5])  # and in pieces

    async def sendmsg(self, *what: Any) -> Any:
        self._refuse()
        return await self._sock.sendmsg(*what)


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS])
async def test_a_shortage_of_memory_or_of_descriptors_on_their_way_is_waited_out(ends: Ends, number: int) -> None:
    control, worker = ends
    control._sock = short = Refusing(control._sock, number, 1)  # type: ignore[assignment]
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(control.run)
            for i in range(2):
                control.post(AcceptedConnection(i, "peer"), marked_pipe(b"%d" % i))
                control.post(SpoolConfirmation(i))
                message, fd = await worker.receive()
                assert (message, read_mark(fd)) == (AcceptedConnection(i, "peer"), b"%d" % i)
                short.left = 1
                assert await worker.receive() == (SpoolConfirmation(i), -1)
                short.left = 1
            nursery.cancel_scope.cancel()


async def test_an_end_that_can_not_write_is_gone_for_the_other_one(ends: Ends) -> None:
    control, worker = ends
    control._sock = Refusing(control._sock, errno.EBADF, 1)  # type: ignore[assignment]
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(control.run)
            control.post(SpoolConfirmation(1))
            with pytest.raises(ChannelClosed):
                await worker.receive()
            worker.close()
            with pytest.raises(ChannelClosed):
                await control.receive()
