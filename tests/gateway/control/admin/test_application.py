# The admin server over a real socket.

from __future__ import annotations

import http.client
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio
from pytest_trio import trio_fixture
from trio.testing import MockClock

from gateway.control.admin.application import EXPOSITION_PAUSE_S, AdminApplication
from gateway.control.http_server import serve_http
from gateway.embedded import find_free_port
from gateway.supervisor import open_listener


class Server:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.lacking: list[str] = []
        self.port = find_free_port()

    async def ask(
        self, path: str, method: str = "GET", headers: dict[str, str] | tuple[()] = ()
    ) -> tuple[int, str, bytes]:
        def ask() -> tuple[int, str, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            try:
                return answer.status, answer.getheader("content-type", ""), answer.read()
            finally:
                connection.close()

        return await trio.to_thread.run_sync(ask)


@trio_fixture
async def server(nursery: trio.Nursery) -> AsyncIterator[Any]:
    server = Server()
    sock = open_listener("127.0.0.1", server.port)
    views = {"/v1/things": lambda _: {"things": [1, None, "x"]}}
    application = AdminApplication(
        lambda: iter((b"metric 1\n", b"metric 2\n")),
        lambda: server.problems,
        views,
        find_lacking=lambda: server.lacking,
        hosts={"gw.example"},
    )
    nursery.start_soon(serve_http, sock, application)
    yield server


async def test_metrics_are_prometheus_text(server: Server) -> None:
    status, kind, body = await server.ask("/metrics")
    assert (status, body) == (200, b"metric 1\nmetric 2\n")
    assert kind.startswith("text/plain; version=")
    assert await server.ask("/metrics", "HEAD") == (200, kind, b"")


async def test_readyz_says_what_is_missing(server: Server) -> None:
    assert (await server.ask("/readyz"))[0] == 200
    server.problems = ["no worker is connected"]
    status, kind, body = await server.ask("/readyz")
    assert (status, kind) == (503, "application/json")
    assert json.loads(body) == {"ready": False, "problems": ["no worker is connected"], "lacking": []}
    assert (await server.ask("/healthz"))[::2] == (200, b"ok\n")


async def test_a_lack_is_told_and_no_reason_to_be_taken_out_of_service(server: Server) -> None:
    server.lacking = ["usage_log.spool_dir: read-only"]
    status, _, body = await server.ask("/readyz")
    assert (status, json.loads(body)) == (200, {"ready": True, "problems": [], "lacking": server.lacking})


async def test_other_paths_and_methods_are_refused(server: Server) -> None:
    status, _, body = await server.ask("/")
    assert (status, body) == (404, b"here are /metrics, /healthz, /readyz, /v1/things\n")
    assert (await server.ask("/metrics", "POST"))[0] == 405
    assert (await server.ask("/v1/things", "DELETE"))[0] == 405


async def test_a_view_is_json(server: Server) -> None:
    status, kind, body = await server.ask("/v1/things")
    assert (status, kind) == (200, "application/json")
    assert json.loads(body) == {"things": [1, None, "x"]}
    assert (await server.ask("/v1/things", "HEAD"))[0] == 200


# --- who asks, and how long it may take -------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example:9190", "evil.example", "localhost.evil.example", "[", "127.0.0.1.evil"])
async def test_under_a_name_that_any_dns_may_point_here_there_is_nothing_but_health(server: Server, host: str) -> None:
    for method in ("GET", "HEAD", "PUT"):
        for path in ("/metrics", "/v1/things", "/nothing"):
            status, _, body = await server.ask(path, method, {"Host": host})
            assert status == 421
            assert method == "HEAD" or b"add the name to admin.hosts" in body
    assert (await server.ask("/healthz", headers={"Host": host}))[0] == 200
    assert (await server.ask("/readyz", headers={"Host": host}))[0] == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "10.1.2.3:9190", "[fe80::1]:9190", "gw.example", "Gw.Example."]
)
async def test_its_own_names_and_addresses_are_fine(server: Server, host: str) -> None:
    assert (await server.ask("/metrics", headers={"Host": host}))[0] == 200


async def test_the_exposition_is_made_once_for_all_who_ask_at_a_time_and_is_never_older_than_the_question(
    autojump_clock: MockClock,
) -> None:
    made_at: list[float] = []

    def render() -> Iterator[bytes]:
        made_at.append(autojump_clock.current_time())
        yield b"metric %d\n" % len(made_at)

    application = AdminApplication(render, list)
    answers: list[tuple[float, bytes]] = []  # when it was asked, what came

    async def ask(after_s: float = 0.0) -> None:
        await trio.sleep(after_s)
        asked_at = trio.current_time()

        async def send(message: Any) -> None:
            if message.get("body"):
                answers.append((asked_at, message["body"]))

        scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": [], "client": ("127.0.0.1", 1)}
        await application(scope, trio.sleep_forever, send)

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
        for _ in range(50):
            nursery.start_soon(ask, EXPOSITION_PAUSE_S / 2)
    assert {body for asked_at, body in answers if asked_at == start} == {b"metric 1\n"}
    assert {body for asked_at, body in answers if asked_at > start} == {b"metric 2\n"}
    assert (len(answers), len(made_at)) == (100, 2)
    assert made_at[1] >= made_at[0] + EXPOSITION_PAUSE_S


async def test_an_exposition_that_fails_is_made_again_for_who_asks_next(autojump_clock: MockClock) -> None:
    faults = [ValueError("no")]

    def render() -> Iterator[bytes]:
        if faults:
            raise faults.pop()
        yield b"metric 1\n"

    application = AdminApplication(render, list)
    bodies: list[bytes] = []

    async def send(message: Any) -> None:
        bodies.append(message.get("body", b""))

    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": [], "client": ("127.0.0.1", 1)}
    with pytest.raises(ValueError, match="no"):
        await application(scope, trio.sleep_forever, send)
    await application(scope, trio.sleep_forever, send)
    assert b"metric 1\n" in bodies
