# What the API and commands are tested against: the admin server with the REST API, as control serves it.

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import trio
from pytest_trio import trio_fixture

from gateway.control.http_server import serve
from gateway.supervisor import open_listener
from tests.gateway.test_rest import Server


@trio_fixture
async def server() -> AsyncIterator[Server]:
    """The admin server with the API, on the test's own loop."""
    server = Server()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, open_listener("127.0.0.1", server.port), server.application())
        yield server
        nursery.cancel_scope.cancel()


@pytest.fixture
def gateway() -> Iterator[Server]:
    """The admin server with the API, on a loop of its own in a thread."""
    server = Server()
    sock = open_listener("127.0.0.1", server.port)
    up, stop = threading.Event(), trio.Event()
    loop: list[trio.lowlevel.TrioToken] = []

    async def main() -> None:
        loop.append(trio.lowlevel.current_trio_token())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, sock, server.application())
            up.set()
            await stop.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    up.wait()
    yield server
    loop[0].run_sync_soon(stop.set)
    thread.join()
