# TLS between a link and its broker, on real sockets, with clients that speak TLS too and with clients that don't: data,
# ends, backpressure; and what holds wherever TLS is spoken.

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.data.relay.tls_links import ENCRYPT_AT_ONCE
from gateway.tls.broker_tls import BrokerTls
from tests.background import until
from tests.certificates import Authority
from tests.gateway.data.play import answer, other_answer, other_request, request
from tests.gateway.data.relay.stage import reset, send_in_vain, staged
from tests.gateway.data.relay.tls_stage import BROKEN_RECORD_SAID, VERSIONS, Secure, SecureClients

pytestmark = pytest.mark.usefixtures("no_circles")

CLIENTS = ("plain", "TLS")


@pytest.fixture(scope="module")
def server(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("broker")


@pytest.fixture(scope="module")
def trusting(authority: Authority) -> BrokerTls:
    return BrokerTls(ca=str(authority.certificate))


@pytest.fixture(params=CLIENTS)
def secure(request: pytest.FixtureRequest, trusting: BrokerTls, server: tuple[Path, Path]) -> Any:
    return lambda stage: Secure(stage, trusting, server, request.param)


@pytest.fixture(params=("client", "broker", "both"))
def anywhere(
    request: pytest.FixtureRequest, authority: Authority, trusting: BrokerTls, server: tuple[Path, Path]
) -> Any:
    """For what holds wherever TLS is spoken."""
    if request.param == "client":
        return lambda stage: SecureClients(stage, authority, server)
    return lambda stage: Secure(stage, trusting, server, "TLS" if request.param == "both" else "plain")


# --- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_requests_and_answers_pass(anywhere: Any, version: ssl.TLSVersion) -> None:
    async with staged() as stage:
        _, client, broker = await anywhere(stage).connect(version=version)
        frames = request(1) + other_request(2)
        await client.send(frames)
        assert await broker.receive(len(frames)) == frames
        answers = answer(1) + other_answer(2)
        await broker.send(answers)
        assert await client.receive(len(answers)) == answers


async def test_answers_that_come_with_the_end_of_the_handshake_are_no_broken_connection(secure: Any) -> None:
    # Kafka never speaks first, so such a broker is none: but no event would ever tell of those bytes.
    async with staged() as stage:
        link, client, _ = await secure(stage).connect(first=answer(1))
        await until(lambda: link.is_closed)
        assert await client.receive(1) == b""
        assert any("broker 1 sent" in line for _, line in stage.play.logs)


@pytest.mark.parametrize("size", [16_384 - 32, 40_000, ENCRYPT_AT_ONCE, 300_000, 5_000_000])
async def test_large_requests_pass_whole_and_their_memory_is_given_back(anywhere: Any, size: int) -> None:
    # A large frame is read into a buffer of just its size: what is decrypted behind it waits in memory.
    async with staged() as stage:
        _, client, broker = await anywhere(stage).connect()
        frame = request(1, values=(os.urandom(size),))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, frame + request(2))
            assert await broker.receive(len(frame)) == frame
            assert await broker.receive(len(request(2))) == request(2)
        await until(lambda: stage.reactor.budget.used_bytes == 0)


async def test_a_large_request_is_not_in_memory_twice_while_the_broker_does_not_read(secure: Any) -> None:
    # Plain, it waits in its own buffer; encrypted as a whole it would have a copy beside that.
    async with staged() as stage, trio.open_nursery() as nursery:
        link, client, broker = await secure(stage).connect(small=True)
        frame = request(1, values=(os.urandom(1_500_000),))
        nursery.start_soon(client.send, frame)
        await until(lambda: link.upstream.has_unsent)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(frame) <= stage.reactor.budget.used_bytes < len(frame) + 2 * ENCRYPT_AT_ONCE
        assert await broker.receive(len(frame)) == frame
        await until(lambda: stage.reactor.budget.used_bytes == 0)


async def test_a_large_request_whose_broker_goes_gives_its_memory_back(secure: Any) -> None:
    async with staged() as stage, trio.open_nursery() as nursery:
        link, client, broker = await secure(stage).connect(small=True)
        nursery.start_soon(send_in_vain, client.send, request(1, values=(os.urandom(1_500_000),)))
        await until(lambda: link.upstream.has_unsent)
        await broker.stream.aclose()
        await until(lambda: link.is_closed)
        assert stage.reactor.budget.used_bytes == 0
        nursery.cancel_scope.cancel()


async def test_what_is_sent_behind_a_stuck_large_request_comes_behind_it(secure: Any) -> None:
    async with staged() as stage, trio.open_nursery() as nursery:
        link, client, broker = await secure(stage).connect(small=True)
        frame = request(1, values=(os.urandom(1_000_000),))
        nursery.start_soon(client.send, frame)
        await until(lambda: link.upstream.has_unsent)
        behind = bytearray(b"behind it")
        link.upstream.outbound.send(link.upstream.sock, [memoryview(behind)], None)
        behind[:] = bytes(len(behind))  # the caller's buffer is used for something else
        assert await broker.receive(len(frame) + 9) == frame + b"behind it"


async def test_a_large_answer_passes_in_bounded_memory_to_a_client_that_reads_slowly(anywhere: Any) -> None:
    async with staged() as stage:
        _, client, broker = await anywhere(stage).connect(small=True)
        await client.send(other_request(1))
        await broker.receive(len(other_request(1)))
        frame = other_answer(1, os.urandom(3_000_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.send, frame)
            found = bytearray()
            while len(found) < len(frame):
                found += await client.receive(min(50_000, len(frame) - len(found)))
                assert stage.reactor.budget.used_bytes < 1_000_000
        assert bytes(found) == frame
        await until(lambda: stage.reactor.budget.used_bytes == 0)


async def test_a_broker_that_does_not_read_stops_the_client(anywhere: Any) -> None:
    async with staged() as stage, trio.open_nursery() as nursery:
        link, client, _ = await anywhere(stage).connect(small=True)
        nursery.start_soon(send_in_vain, client.send, 200 * request(1, values=(bytes(20_000),)))
        await until(lambda: link.upstream.outbound.pieces)
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        assert stage.reactor.budget.used_bytes < 2_000_000
        nursery.cancel_scope.cancel()


async def test_answers_that_wait_in_memory_behind_a_client_that_does_not_read_are_not_forgotten(secure: Any) -> None:
    # While the client is stuck the broker isn't read; what was decrypted before is told of by no event later.
    async with staged() as stage:
        link, client, broker = await secure(stage).connect(small=True)
        sizes = [60_000] * 20
        for i in range(len(sizes)):
            await client.send(other_request(i + 1))
        await broker.receive(len(other_request(1)) * len(sizes))
        answers = b"".join(other_answer(i + 1, os.urandom(size)) for i, size in enumerate(sizes))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.send, answers)
            await until(lambda: link.client.has_unsent)
            assert await client.receive(len(answers)) == answers


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_requests_before_a_half_close_are_answered_and_the_broker_is_told(
    secure: Any, version: ssl.TLSVersion
) -> None:
    async with staged() as stage:
        link, client, broker = await secure(stage).connect(version=version)
        await client.send(request(1))
        await client.say_end()
        assert await broker.receive(len(request(1))) == request(1)
        assert await broker.receive(1) == b""  # close_notify …
        assert await broker.stream.receive_some(1) == b""  # … and the end of the stream
        await broker.send(answer(1))
        await broker.stream.aclose()
        assert await client.receive(len(answer(1)) + 1) == answer(1)
        await until(lambda: link.is_closed)


@pytest.mark.parametrize("notify", [True, False], ids=["close_notify", "FIN"])
async def test_a_broker_that_closes_ends_the_session_behind_its_last_answer(anywhere: Any, notify: bool) -> None:
    async with staged() as stage:
        link, client, broker = await anywhere(stage).connect()
        await client.send(request(1) + request(2))
        await broker.receive(2 * len(request(1)))
        await broker.send(answer(1))
        await (broker.say_end() if notify else broker.stream.aclose())
        assert await client.receive(len(answer(1)) + 1) == answer(1)  # and then, with TLS, close_notify
        assert await client.stream.receive_some(1) == b""
        await until(lambda: link.is_closed)
        stage.play.ledger()
        assert stage.play.counts["disconnects_upstream"] == 1


async def test_broken_records_of_a_broker_end_that_connection_behind_what_came_before(secure: Any) -> None:
    async with staged() as stage:
        link, client, broker = await secure(stage).connect()
        failed: list[str] = []
        link._broker_tls_observer = Noted(failed)
        await client.send(request(1) + request(2))
        await broker.receive(2 * len(request(1)))
        data = bytearray(broker.encrypt(answer(1) + answer(2), len(answer(1))))
        data[-1] ^= 1
        await broker.stream.send_all(data)
        assert await client.receive(len(answer(1)) + 1) == answer(1)
        await until(lambda: link.is_closed)
        (said,) = failed
        assert said in BROKEN_RECORD_SAID


class Noted:
    def __init__(self, failed: list[str]) -> None:
        self.on_tls_fault = failed.append


async def test_a_reset_ends_the_link(secure: Any) -> None:
    async with staged() as stage:
        link, client, broker = await secure(stage).connect()
        reset(broker.stream)
        await until(lambda: link.is_closed)
        with suppress(trio.BrokenResourceError):  # nothing was answered: it is reset as well
            assert await client.receive(1) == b""


async def test_draining_answers_what_is_in_flight_and_says_goodbye(anywhere: Any) -> None:
    async with staged() as stage:
        link, client, broker = await anywhere(stage).connect()
        await client.send(request(1))
        await broker.receive(len(request(1)))
        link.drain("disconnects_drain", trio.current_time())
        stage.reactor.run_deferred(trio.current_time())
        await broker.send(answer(1))
        assert await client.receive(len(answer(1)) + 1) == answer(1)
        await until(lambda: link.is_closed)
        assert await broker.receive(1) == b""
