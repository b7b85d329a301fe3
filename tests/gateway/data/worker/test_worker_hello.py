# How a worker introduces itself to a control process, by what the ones before told it.

from __future__ import annotations

import socket
from collections.abc import Sequence

import trio

from gateway.channel import (
    PROTOCOL,
    GroupSnapshot,
    ProcessChannel,
    QuotaSnapshot,
    ThresholdPolicy,
    ToControl,
    ToWorker,
    WorkerHello,
    WorkerSettings,
    decode_for_control,
    decode_for_worker,
)
from gateway.data.worker.worker import DataWorker
from gateway.parent_link import ParentLink

SETTINGS = WorkerSettings(PROTOCOL, "gw")


async def hear_hello(worker: DataWorker, control: int, messages: Sequence[ToWorker]) -> WorkerHello:
    """What the worker says to that control process, which tells it this and is gone."""
    ours, theirs = socket.socketpair()
    channel = ProcessChannel[ToWorker, ToControl](ours, decode_for_control)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.serve_channel, ProcessChannel(theirs, decode_for_worker), nursery, control)
        async with trio.open_nursery() as talk:
            talk.start_soon(channel.run)
            hello, _ = await channel.receive()
            for message in messages:
                channel.post(message)
            await channel.wait_flushed()
            talk.cancel_scope.cancel()
        channel.close()
    assert isinstance(hello, WorkerHello)
    return hello


async def test_a_worker_is_informed_once_it_has_all_policies() -> None:
    """A control that ended while it told a new worker its policies left it some: the next one must send its own."""
    ours, parent = socket.socketpair()
    with parent:
        worker = DataWorker(ParentLink(ours), 0)
        try:
            assert not (await hear_hello(worker, 0, (SETTINGS, ThresholdPolicy(1, 1.0)))).informed
            rest = QuotaSnapshot(1), GroupSnapshot(1)
            assert not (await hear_hello(worker, 1, (SETTINGS, ThresholdPolicy(1, 1.0), *rest))).informed
            assert (await hear_hello(worker, 2, ())).informed
        finally:
            worker._parent._channel.close()
            worker.configured_plane.connections.reactor._poller.close()
