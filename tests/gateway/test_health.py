# The health port: what it says, over real sockets with a clock that the test moves, and what strangers can take there.

from __future__ import annotations

import json
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import trio
from pytest_trio import trio_fixture
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.embedded import find_free_port
from gateway.health import (
    DEAD_S,
    EXCHANGE_S,
    MAX_CONNECTIONS,
    MAX_HEAD,
    MAX_PER_ADDRESS,
    PAUSE_S,
    SILENT_S,
    HealthServer,
    ReportedHealth,
)
from gateway.supervisor import open_listener
from tests.background import until

GET: Final = b"GET /readyz HTTP/1.1\r\nHost: 10.0.0.7:9295\r\nUser-Agent: kube-probe/1.37\r\nConnection: close\r\n\r\n"


# --- what it says -----------------------------------------------------------------------------------------------------


def said(answer: tuple[int, bytes]) -> tuple[int, Any]:
    return answer[0], json.loads(answer[1])


def test_nothing_is_well_before_control_has_come_up() -> None:
    own = ReportedHealth()
    assert own.liveness_response(0.0)[0] == 503
    assert said(own.readiness_response(0.0)) == (
        503, {"ready": False, "problems": ["control has not come up yet"], "lacking": []},
    )  # fmt: skip


def test_it_says_what_control_has_reported() -> None:
    own = ReportedHealth()
    own.record_report(["no worker is connected"], ["policies: away"], 10.0)
    assert own.liveness_response(10.0) == (200, b"ok\n")  # it lives, though nobody should be sent to it
    assert said(own.readiness_response(10.0))[1] == {
        "ready": False, "problems": ["no worker is connected"], "lacking": ["policies: away"],
    }  # fmt: skip
    own.record_report([], ["policies: away"], 11.0)
    assert said(own.readiness_response(11.0)) == (200, {"ready": True, "problems": [], "lacking": ["policies: away"]})


def test_a_control_that_is_silent_is_not_ready_at_first_and_dead_much_later() -> None:
    """In between it may be starting again, while traffic goes on."""
    own = ReportedHealth()
    own.record_report([], [], 100.0)
    assert own.readiness_response(100.0 + SILENT_S)[0] == 200
    status, body = said(own.readiness_response(100.0 + SILENT_S + 2))
    assert (status, body["problems"]) == (503, ["control has reported nothing for 12 s"])
    assert own.liveness_response(100.0 + DEAD_S)[0] == 200
    assert own.liveness_response(100.0 + DEAD_S + 1) == (503, b"control has reported nothing for 61 s\n")
    own.record_report([], [], 300.0)
    assert (own.readiness_response(300.0)[0], own.liveness_response(300.0)[0]) == (200, 200)


def test_a_gateway_that_stops_is_not_ready_and_lives_until_it_has_drained() -> None:
    own = ReportedHealth()
    own.record_report([], [], 0.0)
    own.is_stopping = True
    assert said(own.readiness_response(1.0))[1]["problems"] == ["the gateway is stopping"]
    own.record_report(["the gateway is stopping"], [], 2.0)
    assert said(own.readiness_response(3.0))[1]["problems"] == ["the gateway is stopping"]
    assert own.liveness_response(1e6)[0] == 200


# --- over the network -------------------------------------------------------------------------------------------------


class Port:
    def __init__(self) -> None:
        self.health = ReportedHealth()
        self.port = find_free_port()
        self.sock = open_listener("127.0.0.1", self.port)
        self.server = HealthServer(self.sock, self.health)
        self.held: list[trio.SocketStream] = []

    async def connect(self, address: str = "127.0.0.1") -> trio.SocketStream:
        sock = trio.socket.socket()
        await sock.bind((address, 0))
        await sock.connect(("127.0.0.1", self.port))
        self.held.append(trio.SocketStream(sock))
        return self.held[-1]

    async def ask(self, request: bytes = GET, address: str = "127.0.0.1") -> bytes:
        stream = await self.connect(address)
        await stream.send_all(request)
        answer = await read_all(stream)
        await stream.aclose()
        return answer


async def read_all(stream: trio.SocketStream) -> bytes:
    found = b""
    while data := await stream.receive_some():
        found += data
    return found


@trio_fixture
async def port(mock_clock: MockClock) -> AsyncIterator[Any]:
    port = Port()
    port.health.record_report([], [], trio.current_time())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.server.run)
        yield port
        for stream in port.held:
            await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()
    port.sock.close()


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (GET, b"200 OK", b'{"ready": true, "problems": [], "lacking": []}\n'),
        (b"GET /healthz HTTP/1.0\r\n\r\n", b"200 OK", b"ok\n"),
        (b"GET /healthz?verbose HTTP/1.1\n\n", b"200 OK", b"ok\n"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", b"200 OK", b""),
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"404 Not Found", b"here are /healthz and /readyz\n"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b"only GET\n"),
        (b"\x16\x03\x01\r\n\r\n", b"400 Bad Request", b"this is HTTP/1.1\n"),
        (b"GET /healthz\r\n\r\n", b"400 Bad Request", b"this is HTTP/1.1\n"),
        (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", b"404 Not Found", b"here are /healthz and /readyz\n"),
        (b"GET /healthz HTTP/1.1\r\n" + MAX_HEAD * b"x", b"431 Request Header Fields Too Large", b""),
    ],
)
async def test_one_request_is_answered_and_the_connection_ends(
    port: Port, request_: bytes, status: bytes, body: bytes
) -> None:
    head, _, found = (await port.ask(request_)).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert (lines[0], found) == (b"HTTP/1.1 " + status, body)
    assert b"Connection: close" in lines
    if not request_.startswith(b"HEAD"):
        assert b"Content-Length: %d" % len(body) in lines


async def test_a_request_may_come_byte_by_byte(port: Port) -> None:
    stream = await port.connect()
    for byte in GET:
        await stream.send_all(bytes([byte]))
        await wait_all_tasks_blocked()
    assert (await read_all(stream)).startswith(b"HTTP/1.1 200")


async def test_an_exchange_has_its_time_however_many_bytes_come(port: Port, mock_clock: MockClock) -> None:
    silent, dripping = await port.connect(), await port.connect()
    for byte in b"GET":
        await dripping.send_all(bytes([byte]))
        await wait_all_tasks_blocked(0.01)
        mock_clock.jump(EXCHANGE_S / 4)
    await wait_all_tasks_blocked(0.01)
    mock_clock.jump(EXCHANGE_S / 4)
    for stream in (silent, dripping):
        assert await read_all(stream) == b""


async def test_silent_ones_take_no_place_of_those_who_ask(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(3 * MAX_PER_ADDRESS):
        await port.connect("127.0.0.2")
    await wait_all_tasks_blocked(0.01)
    for address in ("127.0.0.1", "127.0.0.2"):  # even where they are themselves
        assert (await port.ask(GET, address)).startswith(b"HTTP/1.1 200")
    slow = await port.connect("127.0.0.3")
    for number in range(2 * MAX_CONNECTIONS):
        await port.connect(f"127.0.1.{1 + number // MAX_PER_ADDRESS}")
    await wait_all_tasks_blocked(0.01)
    assert (await port.ask()).startswith(b"HTTP/1.1 200")
    await slow.send_all(GET)
    assert (await read_all(slow)).startswith(b"HTTP/1.1 200")
    assert [record.message for record in caplog.records] == [
        "health port: too many silent connections, the last one of 127.0.0.2"
    ]


async def test_a_fault_ends_one_exchange_and_nothing_else(
    port: Port, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(port.health, "readiness_response", lambda now: 1 / 0)
        for _ in range(3):
            assert await port.ask() == b""
    assert (await port.ask()).startswith(b"HTTP/1.1 200")
    assert caplog.text.count("ZeroDivisionError") == 1


async def test_a_fault_of_the_port_as_a_whole_is_not_its_end(
    port: Port, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(port.server, "_accept_waiting", lambda now: 1 / 0)
        stream = await port.connect()
        await stream.send_all(GET)
        await until(lambda: "the health port failed, and goes on" in caplog.text)
    mock_clock.jump(PAUSE_S)
    assert (await read_all(stream)).startswith(b"HTTP/1.1 200")


async def test_a_flood_leaves_turns_to_the_other_tasks_of_the_process(port: Port) -> None:
    """Counted in turns of a task that always wants one, while connections wait to be accepted."""
    socks = [socket.create_connection(("127.0.0.1", port.port)) for _ in range(900)]
    turns = 0
    while port.server._by_address.get("127.0.0.1") is None:
        await trio.lowlevel.checkpoint()
    while len(port.server._connections) > 0 and turns < 5:
        await trio.lowlevel.checkpoint()
        turns += 1
    assert turns == 5
    for sock in socks:
        sock.close()
    assert (await port.ask()).startswith(b"HTTP/1.1 200")
