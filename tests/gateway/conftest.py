# What the API and commands are tested against: the admin server with the REST API, as control serves it.

from __future__ import annotations

import gc
import math
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest
import trio
from pytest_trio import trio_fixture
from trio.testing import MockClock

from gateway.control.http_server import serve_http
from gateway.data.relay.links import RelayLink
from gateway.data.relay.sides import LinkSide
from gateway.data.session.session import ClientSession
from gateway.data.shared.worker_state import WorkerState
from gateway.data.sockets.inbound import InboundBuffer
from gateway.data.sockets.outbound import OutboundBuffer
from gateway.data.sockets.reactor import SocketReactor
from gateway.data.sockets.tls import TlsConnection
from gateway.supervisor import open_listener
from tests.gateway.control.admin.rest_server import Server

ENDED: Final = (
    RelayLink,
    ClientSession,
    LinkSide,
    InboundBuffer,
    OutboundBuffer,
    TlsConnection,
)  # what there is of each connection
STAYS: Final = SocketReactor, WorkerState  # what there is of each worker


@trio_fixture
async def server(nursery: trio.Nursery) -> AsyncIterator[Server]:
    """The admin server with the API, on the test's own loop."""
    server = Server()
    nursery.start_soon(serve_http, open_listener("127.0.0.1", server.port), server.application())
    yield server


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
            nursery.start_soon(serve_http, sock, server.application())
            up.set()
            await stop.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    up.wait()
    yield server
    loop[0].run_sync_soon(stop.set)
    thread.join()


@pytest.fixture
def autojump_clock(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> MockClock:
    """pytest-trio's, which would jump while threads work: hours may go by until one that the machine lets stand has
    looked at a file.
    """
    run_sync, working = trio.to_thread.run_sync, 0

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal working
        working += 1
        autojump_clock.autojump_threshold = math.inf
        try:
            return await run_sync(*args, **options)
        finally:
            working -= 1
            if not working:
                autojump_clock.autojump_threshold = 0

    monkeypatch.setattr(trio.to_thread, "run_sync", counted)
    return autojump_clock


@pytest.fixture
def no_circles() -> Iterator[None]:
    """Nothing of a worker that the test has made is left to the garbage collector, which would come to it in minutes:
    with strangers who connect and leave these are a worker's memory.
    """
    gc.freeze()  # not what was there before, which also makes this quick
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = Counter(
            type(each).__qualname__ for each in gc.garbage if isinstance(each, ENDED) and _has_way_back(each)
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()
    assert not left


def _has_way_back(ended: object) -> bool:
    """Whether it refers to itself by way of others that end with it; if not, something of the test's has kept it."""
    seen, ahead = {id(each) for each in gc.garbage if not isinstance(each, STAYS)}, [ended]
    while ahead:
        for each in gc.get_referents(ahead.pop()):
            if each is ended:
                return True
            if id(each) in seen:
                seen.discard(id(each))
                ahead.append(each)
    return False
