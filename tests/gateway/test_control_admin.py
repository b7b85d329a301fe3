# The admin server over a real socket.

from __future__ import annotations

import http.client
import json

import pytest
import trio
from pytest_trio import trio_fixture

from gateway.control.admin import make_application, serve
from gateway.supervisor import open_listener
from tests.gateway.test_supervisor import free_ports


class Server:
    def __init__(self):
        self.problems = []
        self.port = free_ports(1)[0]

    async def ask(self, path, method="GET"):
        def ask():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
            connection.request(method, path)
            answer = connection.getresponse()
            try:
                return answer.status, answer.getheader("content-type"), answer.read()
            finally:
                connection.close()

        return await trio.to_thread.run_sync(ask)


@trio_fixture
async def server():
    server = Server()
    sock = open_listener("127.0.0.1", server.port)
    async with trio.open_nursery() as nursery:
        views = {"/v1/things": lambda: {"things": [1, None, "x"]}}
        nursery.start_soon(serve, sock, make_application(lambda: b"metric 1\n", lambda: server.problems, views))
        yield server
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_metrics_are_prometheus_text(server):
    status, kind, body = await server.ask("/metrics")
    assert (status, body) == (200, b"metric 1\n")
    assert kind.startswith("text/plain; version=")
    assert await server.ask("/metrics", "HEAD") == (200, kind, b"")


@pytest.mark.trio
async def test_readyz_says_what_is_missing(server):
    assert (await server.ask("/readyz"))[0] == 200
    server.problems = ["no worker is connected"]
    status, kind, body = await server.ask("/readyz")
    assert (status, kind) == (503, "application/json")
    assert json.loads(body) == {"ready": False, "problems": ["no worker is connected"], "lacking": []}
    assert (await server.ask("/healthz"))[::2] == (200, b"ok\n")


@pytest.mark.trio
async def test_other_paths_and_methods_are_refused(server):
    status, _, body = await server.ask("/")
    assert (status, body) == (404, b"here are /metrics, /healthz, /readyz, /v1/things\n")
    assert (await server.ask("/metrics", "POST"))[0] == 405
    assert (await server.ask("/v1/things", "DELETE"))[0] == 405


@pytest.mark.trio
async def test_a_view_is_json(server):
    status, kind, body = await server.ask("/v1/things")
    assert (status, kind) == (200, "application/json")
    assert json.loads(body) == {"things": [1, None, "x"]}
    assert (await server.ask("/v1/things", "HEAD"))[0] == 200
