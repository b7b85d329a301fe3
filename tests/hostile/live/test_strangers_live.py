# Strangers with sockets: on a reactor with a clock that tests set, and all of them at once against a real gateway.

from __future__ import annotations

import gc
import socket
import subprocess
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import trio

from gateway import embedded
from gateway.data.connecting.opening import REQUEST_HEAD_BYTES, receive_head
from gateway.data.relay.links import RelayLink
from gateway.data.relay.relief import relieve_memory
from gateway.data.relay.watch import PATIENCE_S
from gateway.data.shared.budget import POOLED_BYTES, MemoryAccount, MemoryBudget
from gateway.data.shared.errors import UnauthenticatedRequest
from gateway.data.sockets.inbound import InboundBuffer, SharedReadBuffer
from gateway.worker_config import WorkerLimits
from protocol import api
from protocol.wire import MalformedFrame
from tests.background import until
from tests.clients.gateways import Gateway
from tests.gateway.data.play import Play, other_answer, other_request, request
from tests.gateway.data.relay.stage import Stage, receive_exactly, staged
from tests.hostile.live import everywhere
from tests.hostile.live.unharmed import unharmed, versions
from tests.hostile.strangers import LEFT, LIMITS, MIB, Broker, play

ASKED = other_request(1, key=api.METADATA, version=1, body=bytes(4))


def limits_of(stage: Stage) -> WorkerLimits:
    return stage.play.world.limits


def causes(stage: Stage) -> dict[str, int]:
    counts = stage.play.world.ledger.counts
    return {name: count for name, count in counts.items() if name.startswith("disconnects_")}


# --- time -------------------------------------------------------------------------------------------------------------


async def test_a_frame_that_drips_in_is_ended_though_it_never_stands_still() -> None:
    async with staged() as stage:
        link, client, _ = stage.connect()
        now = trio.current_time()
        frame = request(1, values=(bytes(100_000),))
        at = 0
        while not link.is_closed:
            await client.send_all(frame[at : at + 50])
            at += 50
            await until(partial(has_come, link, at))
            now += 5  # ten bytes a second
            link._watch.read_at = now
            link.check_progress(now, limits_of(stage))
        assert at < 50 * 20
        assert causes(stage) == {"disconnects_slow_request": 1}


def has_come(link: RelayLink, count: int) -> bool:
    """Whether that much of a frame has been read."""
    return link.client.inbound.partial_bytes == count


async def test_a_frame_that_comes_at_a_fair_rate_may_take_its_time() -> None:
    async with staged() as stage:
        link, client, broker = stage.connect()
        now = trio.current_time()
        frame = request(1, values=(bytes(2_000_000),))
        step = 5 * limits_of(stage).min_rate
        async with trio.open_nursery() as nursery:
            for at in range(0, len(frame) - step, step):
                await client.send_all(frame[at : at + step])
                await until(partial(has_come, link, at + step))
                now += 60
                link._watch.read_at = now
                now -= 55
                link.check_progress(now, limits_of(stage))
                assert not link.is_closed
            nursery.start_soon(client.send_all, frame[at + step :])
            assert await receive_exactly(broker, len(frame)) == frame


async def test_time_in_which_the_gateway_does_not_read_is_not_the_clients() -> None:
    async with staged(max_buffered_bytes=1_000_000) as stage:
        holder, holding, _ = stage.connect()
        link, client, _ = stage.connect()
        frame = request(1, values=(bytes(900_000),))
        await holding.send_all(frame[:100_000])
        await until(partial(has_come, holder, 100_000))
        await client.send_all(frame[:40_000])
        await until(partial(has_come, link, 40_000))
        await client.send_all(frame[40_000:50_000])
        await until(lambda: link.client.inbound.waits_for_memory)
        now = trio.current_time()
        for _ in range(100):
            now += 5
            link.check_progress(now, limits_of(stage))
        assert not link.is_closed


async def test_a_request_that_waits_here_for_answers_of_a_silent_broker_is_idle() -> None:
    async with staged(max_buffered_bytes=40_000) as stage:
        link, client, broker = stage.connect()
        frame = request(1, {"clicks": list(range(200))})
        await client.send_all(frame + frame[:100])
        await receive_exactly(broker, len(frame))
        await until(lambda: link.parked.input_slice is not None)
        assert link.session.in_flight.is_reading_blocked
        now, limits = trio.current_time(), limits_of(stage)
        link.check_progress(now + limits.idle_timeout - 1, limits)
        assert not link.is_closed
        link.check_progress(now + limits.idle_timeout + 1, limits)
        assert causes(stage) == {"disconnects_idle": 1}


async def test_a_client_that_does_not_read_its_answers_is_ended() -> None:
    async with staged() as stage:
        link, client, broker = stage.connect(small=True)
        await client.send_all(ASKED)
        await receive_exactly(broker, len(ASKED))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                _send, broker, other_answer(1, b"\0\0\0\0" + b"\0\0\0\0" + b"\0\0\0\0"), other_request(2)
            )
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.session.to_client.append(bytes(4_000_000))
            link._send_to_client(trio.current_time())
            assert link.client.outbound.pieces
            now = trio.current_time()
            link.check_progress(now, limits_of(stage))
            link.check_progress(now + limits_of(stage).idle_timeout - 1, limits_of(stage))
            assert not link.is_closed
            link.check_progress(now + limits_of(stage).idle_timeout + 1, limits_of(stage))
            assert causes(stage) == {"disconnects_slow_reader": 1}
            nursery.cancel_scope.cancel()


async def _send(stream: trio.SocketStream, *frames: bytes) -> None:
    try:
        for frame in frames:
            await stream.send_all(frame)
    except trio.BrokenResourceError:
        pass


@pytest.mark.parametrize("sasl", [False, True], ids=["idle", "not authenticated"])
async def test_a_silent_connection_is_ended(sasl: bool) -> None:
    async with staged(Play(upstream_sasl=sasl)) as stage:
        began = trio.current_time()
        link, _, _ = stage.connect()
        limits = limits_of(stage)
        most = limits.authentication_timeout if sasl else limits.idle_timeout
        link.check_progress(began + most - 1, limits)
        assert not link.is_closed
        link.check_progress(trio.current_time() + most + 1, limits)
        assert causes(stage) == {"disconnects_unauthenticated" if sasl else "disconnects_idle": 1}


# --- memory -----------------------------------------------------------------------------------------------------------


def test_answers_that_are_handled_keep_no_memory_beside_the_buffers_for_the_next_ones() -> None:
    budget, shared, size = MemoryBudget(2**30), SharedReadBuffer(), 5 * MIB
    inbounds = [InboundBuffer(shared, MemoryAccount(budget, "test"), lambda: None, is_client=False) for _ in range(20)]
    ends = [socket.socketpair() for _ in inbounds]
    answer = memoryview(bytes(size))
    gc.collect()  # what earlier tests left would go meanwhile
    before = _resident()
    for inbound, (near, far) in zip(inbounds, ends, strict=True):
        far.sendall(answer[:40_000])
        inbound.receive(near)
        inbound.keep_partial_frame(inbound.start, size)
    for inbound, (near, far) in zip(inbounds, ends, strict=True):
        sent = 40_000
        while sent < size:
            sent += far.send(answer[sent : sent + 65_536])
            whole = inbound.receive(near)
        assert whole == size
    assert _resident() - before > 19 * size
    for inbound in inbounds:
        inbound.keep_partial_frame(inbound.end, 0)
    assert budget.used_bytes == 0
    assert _resident() - before < POOLED_BYTES + 10 * MIB
    for near, far in ends:
        near.close()
        far.close()


async def test_requests_that_are_handled_keep_no_memory_beside_the_buffers_for_the_next_ones() -> None:
    async with staged(max_buffered_bytes=2**30) as stage:
        frame = request(1, values=(bytes(5 * MIB),))
        most = len(frame) - 1
        links = [stage.connect() for _ in range(20)]
        gc.collect()  # what earlier tests left would go meanwhile
        before = _resident()
        for link, client, _ in links:
            await client.send_all(frame[:most])
            await until(partial(has_come, link, most))
        assert _resident() - before > 19 * most
        for _, client, broker in links:
            await client.send_all(frame[most:])
            assert await receive_exactly(broker, len(frame)) == frame
        assert _resident() - before < POOLED_BYTES + 20 * MIB


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


async def test_a_connection_that_reserves_memory_and_sends_nothing_is_ended_when_others_want_it() -> None:
    async with staged(max_buffered_bytes=1_000_000) as stage:
        holder_link, holder, _ = stage.connect()
        link, client, broker = stage.connect()
        await holder.send_all(request(1, values=(bytes(900_000),))[:40_000])
        await until(lambda: holder_link.client.inbound.partial_bytes == 40_000)
        frame = request(2, values=(bytes(400_000),))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, frame)
            await until(lambda: link.client.inbound.waits_for_memory)
            now = trio.current_time()
            relieve_memory(stage.reactor, now, 60.0)
            assert not holder_link.is_closed
            relieve_memory(stage.reactor, now + PATIENCE_S + 1, 60.0)
            assert holder_link.is_closed
            assert await receive_exactly(broker, len(frame)) == frame
        assert causes(stage) == {"disconnects_slow_request": 1}


async def test_a_client_that_the_gateway_does_not_read_is_not_late() -> None:
    async with staged(max_buffered_bytes=1_000_000) as stage:
        link, client, _ = stage.connect(small=True)
        other, its, _ = stage.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, request(1, values=(bytes(300_000),)) + request(2)[:50])
            await until(lambda: bool(link.upstream.outbound.pieces))  # a slow broker
            nursery.start_soon(its.send_all, request(3, values=(bytes(900_000),)))
            await until(lambda: other.client.inbound.waits_for_memory)
            now = trio.current_time()
            for late in range(10):
                relieve_memory(stage.reactor, now + late, 60.0)
            assert not link.is_closed
            nursery.cancel_scope.cancel()


async def test_connections_that_do_not_read_are_ended_when_memory_is_used_up_the_largest_first() -> None:
    async with staged(max_buffered_bytes=10_000_000) as stage:
        links = []
        for size in (6_000_000, 12_000_000):
            link, _, _ = stage.connect(small=True)
            link.session.to_client.append(bytes(size))
            link._send_to_client(trio.current_time())
            links.append(link)
        now = trio.current_time()
        relieve_memory(stage.reactor, now, 60.0)
        assert not any(link.is_closed for link in links)
        relieve_memory(stage.reactor, now + PATIENCE_S + 1, 60.0)
        assert [link.is_closed for link in links] == [False, True]
        assert stage.reactor.budget.used_bytes <= 10_000_000


async def test_requests_of_many_partitions_in_flight_are_counted_as_memory_and_end_reading() -> None:
    async with staged(max_buffered_bytes=1_000_000) as stage:
        link, client, broker = stage.connect()
        frame = request(1, {"clicks": list(range(9000))})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, 3 * frame)
            await receive_exactly(broker, len(frame))
            await until(lambda: link.session.in_flight.is_reading_blocked)
            assert len(link.session.in_flight) == 1
            nursery.cancel_scope.cancel()


# --- the first bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 5, 100])
async def test_the_head_of_the_first_request_is_read_and_not_a_byte_more(step: int) -> None:
    near, far = socket.socketpair()
    near.setblocking(False)
    frame = request(1)
    heads: list[bytes] = []

    async def read() -> None:
        heads.append(await receive_head(near, near, MIB, wants_sasl=False))

    with near, far:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for at in range(0, len(frame), step):
                far.sendall(frame[at : at + step])
                await trio.lowlevel.checkpoint()
        assert heads == [frame[:REQUEST_HEAD_BYTES]]
        assert near.recv(10_000) == frame[REQUEST_HEAD_BYTES:]


async def test_an_end_within_the_head_is_told_from_an_end_before_it() -> None:
    for sent in (b"", b"\0\0", request(1)[: REQUEST_HEAD_BYTES - 1]):
        near, far = socket.socketpair()
        near.setblocking(False)
        with near, far:
            far.sendall(sent)
            far.shutdown(socket.SHUT_WR)
            assert await receive_head(near, near, MIB, wants_sasl=False) == sent


@pytest.mark.parametrize(
    ("first", "wants_sasl", "error"),
    [
        (b"GET / HTTP/1.1\r\n", False, MalformedFrame),
        (other_request(1, 18, 0, bytes(100_000)), False, MalformedFrame),
        (request(1), True, UnauthenticatedRequest),
    ],
    ids=["HTTP", "too large", "Produce"],
)
async def test_no_broker_is_dialled_for_bytes_that_no_kafka_client_begins_with(
    first: bytes, wants_sasl: bool, error: Any
) -> None:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        far.sendall(first[:1000])
        with pytest.raises(error):
            await receive_head(near, near, MIB, wants_sasl=wants_sasl)


# --- all at once ------------------------------------------------------------------------------------------------------


def test_strangers_that_try_everything_at_once_take_nothing_from_others() -> None:
    seen = play(6.0, frozenset({"malformed", "too_large", "first_byte"}))
    assert seen.waits
    limit = LIMITS["max_buffered_bytes"]
    assert isinstance(limit, int)
    # Beside the limit: answers in the middle of being rewritten, buffers kept for the next frame, the heap's holes.
    assert seen.held < 2 * limit + POOLED_BYTES
    assert seen.left == LEFT
    assert seen.log_lines < 500


def test_strangers_on_all_ports_end_no_process_and_silence_nobody() -> None:
    with closing(Broker()) as broker, everywhere.listeners(1) as (settings, ports):
        upstream = f"127.0.0.1:{broker.port}"
        with Gateway(upstream, settings | {"internal_topics": "none"}, 1) as gateway:
            with unharmed(gateway, partial(versions, gateway.broker_port(1))):
                found = everywhere.all_ports(gateway, ports)
                strangers = embedded.spawn_process(everywhere.command(found, 6.0), stdout=subprocess.DEVNULL)
                strangers.wait()
                assert embedded.reap_process(strangers) == 0
            assert "Traceback" not in gateway.log()
