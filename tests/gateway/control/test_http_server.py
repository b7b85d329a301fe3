# HTTP of the admin server over real sockets, with a clock that the test moves: places, and how long each wait for a
# client may take.

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
import trio
from pytest_trio import trio_fixture
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.control import http_server
from gateway.control.access.admin_tls import HANDSHAKE_TIMEOUT_S, AdminTls
from gateway.control.asgi import send_response
from gateway.control.http_server import (
    FIRST_BYTE_TIMEOUT_S,
    IDLE_S,
    LINGER_S,
    MAX_HEAD,
    REPEAT_S,
    REQUEST_S,
    RESPONSE_S,
    serve_http,
)
from gateway.embedded import find_free_port
from gateway.supervisor import open_listener
from gateway.tls.certificates import ListenerTls
from tests.background import until
from tests.certificates import Authority

GET: Final = b"GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST: Final = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
PLACES: Final = 20  # in place of the usual ones, which take long to fill
OF_ADDRESS: Final = 4
LARGE: Final = 32 * 2**20  # more than sockets hold


class Scene:
    """A server whose application does what the path says."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self.sock = open_listener("127.0.0.1", find_free_port())
        self.port = self.sock.getsockname()[1]
        self.go_on = trio.Event()
        self.over: list[str] = []
        self.streams: list[trio.SocketStream] = []

    async def connect(self, address: str = "127.0.0.1") -> trio.SocketStream:
        sock = trio.socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await sock.bind((address, 0))
        await sock.connect(("127.0.0.1", self.port))
        self.streams.append(trio.SocketStream(sock))
        await wait_all_tasks_blocked(0.01)
        return self.streams[-1]

    async def ask(self, stream: trio.SocketStream, request: bytes = GET) -> bytes:
        await stream.send_all(request)
        return await self.answer(stream)

    async def answer(self, stream: trio.SocketStream) -> bytes:
        said = b""
        while not said.endswith(b"small"):
            data = await stream.receive_some(65536)
            if not data:
                break
            said += data
        return said

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        path, body = scope["path"], b"small"
        if path == "/echo":
            while (message := await receive())["type"] == "http.request" and message["more_body"]:
                body += message["body"]
            self.over.append(message["type"])
            body = b"small" if message["type"] == "http.request" else b""
        elif path == "/slow":
            await self.go_on.wait()
        elif path == "/bug":
            raise ValueError("a bug")
        elif path == "/silent":
            return
        elif path == "/shared":
            await send_response(scope, send, 200, "text/plain", body)
            return
        size = len(body) + (LARGE if path == "/large" else 0)
        headers = [(b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if path == "/large":
            await send({"type": "http.response.body", "body": bytes(LARGE), "more_body": True})
        await send({"type": "http.response.body", "body": body})
        self.over.append(path)


@trio_fixture
async def scene(nursery: trio.Nursery, mock_clock: MockClock) -> AsyncIterator[Any]:
    scene = Scene()
    nursery.start_soon(serve_http, scene.sock, scene.application, None, lambda reason: scene.counted.update([reason]))
    yield scene
    for stream in scene.streams:
        await trio.aclose_forcefully(stream)


async def is_over(stream: trio.SocketStream) -> bool:
    """The server has closed it, after what it may have said."""
    with contextlib.suppress(trio.BrokenResourceError), trio.fail_after(1e9):
        while await stream.receive_some(2**20):
            pass
    return True


async def assert_over_after(scene: Scene, clock: MockClock, sent: bytes, seconds: float) -> None:
    """A connection that sends that and no more is ended then, and not before."""
    stream = await scene.connect()
    if sent:
        await stream.send_all(sent)
    await wait_all_tasks_blocked(0.05)
    clock.jump(seconds - 1)
    await wait_all_tasks_blocked(0.01)
    assert not scene.counted
    clock.jump(1)
    assert await is_over(stream)
    await wait_all_tasks_blocked(0.01)
    await stream.aclose()


async def test_requests_of_a_connection_are_answered_one_after_the_other(scene: Scene) -> None:
    stream = await scene.connect()
    for request in (GET, POST + b"0123456789", GET.replace(b"GET", b"HEAD") + GET):
        said = await scene.ask(stream, request)
        assert said.startswith(b"HTTP/1.1 200 OK\r\n"), said
    assert said.count(b"HTTP/1.1 200 OK") == 2  # of two in one piece; that of HEAD has no body
    assert said.count(b"small") == 1
    assert not scene.counted


async def test_a_method_in_small_letters_is_not_taken_for_the_usual_one(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    stream = await scene.connect()
    said = await scene.ask(stream, GET.replace(b"GET", b"head").replace(b"/small", b"/shared"))
    assert said.endswith(b"\r\n\r\nsmall")  # only the answer to HEAD has no body
    assert await scene.ask(stream)
    assert "internal error" not in caplog.text


async def test_one_that_waits_for_it_is_told_to_go_on_with_its_body(scene: Scene) -> None:
    stream = await scene.connect()
    head = POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    await stream.send_all(head)
    assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
    assert (await scene.ask(stream, b"0123456789")).startswith(b"HTTP/1.1 200 ")


async def test_an_answer_before_its_request_is_whole_is_the_last_one_and_arrives(
    scene: Scene, mock_clock: MockClock
) -> None:
    stream = await scene.connect()
    request = POST.replace(b"/echo", b"/small").replace(b": 10", b": 10000000")
    await stream.send_all(request + bytes(100_000))
    said = await scene.answer(stream)
    assert said.startswith(b"HTTP/1.1 200 OK")
    await wait_all_tasks_blocked(0.01)
    mock_clock.jump(LINGER_S)
    assert await is_over(stream)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
        (b"\x00\x01\x02\r\n\r\n", b"400"),
        (b"GET /small HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /small HTTP/1.1\r\nHost: localhost\r\nX: " + bytes(2 * MAX_HEAD).replace(b"\0", b"x"), b"431"),
        (POST.replace(b"Content-Length: 10", b"Transfer-Encoding: chunked") + b"zz\r\n", b"400"),
        (GET.replace(b"/small", b"/silent"), b"500"),
    ],
    ids=["HTTP/2", "bytes", "no host", "large head", "broken chunk", "no answer"],
)
async def test_what_can_not_be_answered_ends_with_a_status(scene: Scene, sent: bytes, status: bytes) -> None:
    stream = await scene.connect()
    await stream.send_all(sent)
    assert (await stream.receive_some()).split()[1] == status
    assert await scene.ask(await scene.connect())


async def test_a_fault_ends_the_request_that_it_is_in(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    stream = await scene.connect()
    await stream.send_all(GET.replace(b"/small", b"/bug"))
    assert b" 500 " in await stream.receive_some()
    await until(lambda: "internal error (admin_server), which ends the request of 127.0.0.1" in caplog.text)
    assert await scene.ask(await scene.connect())


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "seconds", "reason"),
    [
        (b"", FIRST_BYTE_TIMEOUT_S, "silent"),
        (b"GET /sm", REQUEST_S, "request"),
        (POST + b"01234", REQUEST_S, "request"),
        (GET.replace(b"/small", b"/large"), RESPONSE_S, "response"),
        (GET, IDLE_S, ""),
    ],
    ids=["silent", "half a head", "half a body", "does not read", "idle"],
)
async def test_no_wait_for_a_client_is_longer_than_its_bound(
    scene: Scene, mock_clock: MockClock, caplog: pytest.LogCaptureFixture, sent: bytes, seconds: float, reason: str
) -> None:
    await assert_over_after(scene, mock_clock, sent, seconds)
    assert scene.counted == ({reason: 1} if reason else {})
    assert len(caplog.records) == bool(reason)


async def test_a_byte_now_and_then_makes_it_no_longer(scene: Scene, mock_clock: MockClock) -> None:
    stream = await scene.connect()
    await stream.send_all(b"GET /small HTTP/1.1\r\nX: ")
    for _ in range(int(REQUEST_S / 5)):
        await wait_all_tasks_blocked(0.01)
        mock_clock.jump(5)
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(b"x")
    assert await is_over(stream)
    assert scene.counted == {"request": 1}


async def test_an_application_is_not_cancelled_when_its_client_is_gone(scene: Scene, mock_clock: MockClock) -> None:
    """It may be in the middle of a change."""
    stream = await scene.connect()
    await stream.send_all(GET.replace(b"/small", b"/slow"))
    await wait_all_tasks_blocked(0.01)
    await stream.aclose()
    mock_clock.jump(1000)
    await wait_all_tasks_blocked(0.01)
    scene.go_on.set()
    await until(lambda: scene.over == ["/slow"])


async def test_an_application_hears_that_its_client_is_gone(scene: Scene) -> None:
    stream = await scene.connect()
    await stream.send_all(POST + b"01")
    await wait_all_tasks_blocked(0.01)
    await stream.aclose()
    await until(lambda: scene.over[:1] == ["http.disconnect"])


async def test_a_body_that_nobody_reads_keeps_no_place(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it did with another server, for ever, where the application took its time."""
    monkeypatch.setattr(http_server, "MAX_PER_ADDRESS", 1)
    stream = await scene.connect()
    await stream.send_all(POST.replace(b"/echo", b"/slow").replace(b": 10", b": 1000"))
    for _ in range(20):
        await stream.send_all(b"x")
        await wait_all_tasks_blocked(0.001)
    scene.go_on.set()
    assert (await scene.answer(stream)).startswith(b"HTTP/1.1 200")
    await stream.aclose()
    await wait_all_tasks_blocked(0.01)
    assert (await scene.ask(await scene.connect())).startswith(b"HTTP/1.1 200")
    assert not scene.counted


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", PLACES)
    monkeypatch.setattr(http_server, "MAX_PER_ADDRESS", OF_ADDRESS)
    monkeypatch.setattr(http_server, "FEW_CONNECTIONS", 1)


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_places")
async def test_an_address_beyond_its_places_loses_the_connection_that_waited_longest(
    scene: Scene, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    streams = []
    for _ in range(OF_ADDRESS):
        streams.append(await scene.connect())
        mock_clock.jump(0.1)
    assert await scene.ask(streams[0])  # it has waited no longer than since now
    new = await scene.connect()
    assert await scene.ask(new)
    assert await is_over(streams[1])
    assert await scene.ask(streams[0])
    for _ in range(20):
        await scene.connect()
    assert scene.counted == {"address": 21}
    assert len(caplog.records) == 1
    mock_clock.jump(REPEAT_S)
    await scene.connect()
    assert "admin: 20 more times within 10 s: more than 100 connections of this address" in caplog.text


@pytest.mark.usefixtures("few_places")
async def test_one_whose_request_is_being_answered_keeps_its_place(scene: Scene) -> None:
    busy = [await scene.connect() for _ in range(OF_ADDRESS)]
    for stream in busy:
        await stream.send_all(GET.replace(b"/small", b"/slow"))
    await wait_all_tasks_blocked(0.01)
    assert await is_over(await scene.connect())
    assert scene.counted == {"address": 1}
    scene.go_on.set()
    for stream in busy:
        assert (await scene.answer(stream)).startswith(b"HTTP/1.1 200")


@pytest.mark.usefixtures("few_places")
async def test_strangers_at_many_addresses_take_no_place_of_somebody_who_asks_from_another(scene: Scene) -> None:
    good = await scene.connect("127.0.0.99")
    assert await scene.ask(good)
    for number in range(2 * PLACES):
        await scene.connect(f"127.0.1.{1 + number // OF_ADDRESS}")
    assert await scene.ask(good)
    assert await scene.ask(await scene.connect("127.0.0.98"))
    assert set(scene.counted) == {"connections"}


@pytest.mark.usefixtures("few_places")
async def test_strangers_whose_requests_are_worked_on_take_none_either(scene: Scene) -> None:
    good = await scene.connect("127.0.0.99")
    for number in range(PLACES):
        stranger = await scene.connect(f"127.0.1.{1 + number // OF_ADDRESS}")
        with contextlib.suppress(trio.BrokenResourceError):
            await stranger.send_all(GET.replace(b"/small", b"/slow"))
    await wait_all_tasks_blocked(0.01)
    assert scene.counted == {"connections": 1}  # the last one of them
    await good.send_all(GET.replace(b"/small", b"/slow"))
    await wait_all_tasks_blocked(0.01)
    assert await scene.ask(await scene.connect("127.0.0.98"))  # though there is nobody to end
    scene.go_on.set()
    assert (await scene.answer(good)).startswith(b"HTTP/1.1 200")
    assert scene.counted == {"connections": 1}


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "seconds", "reason"),
    [(b"", FIRST_BYTE_TIMEOUT_S, "silent"), (b"\x16\x03\x01\x02\x00", HANDSHAKE_TIMEOUT_S, "tls")],
    ids=["silent", "half a hello"],
)
async def test_a_handshake_is_bounded_as_well(
    nursery: trio.Nursery, mock_clock: MockClock, tmp_path: Any, sent: bytes, seconds: float, reason: str
) -> None:
    scene = Scene()
    count: Callable[[str], None] = lambda reason: scene.counted.update([reason])  # noqa: E731
    certificate, key = map(str, Authority(tmp_path).sign("server"))
    tls = AdminTls(ListenerTls(certificate, key, "", "", "none"), count)
    nursery.start_soon(serve_http, scene.sock, scene.application, tls, count)
    await assert_over_after(scene, mock_clock, sent, seconds)
    assert scene.counted == {reason: 1}
