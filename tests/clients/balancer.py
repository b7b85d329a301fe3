# What stands before several gateways, as a Kubernetes service or a TCP load balancer does: clients know its addresses
# only, and a new connection goes to a gateway that is ready.

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Protocol

import trio

from gateway import embedded
from tests.background import Background

LOOK_S = 0.25  # a gateway that ends is not ready for longer than that


class Backend(Protocol):
    """`port`: the first of those that have the balancer's order; `admin`: base URL of /readyz."""

    port: int
    admin: str


class Balancer(Background):
    """Attributes:
    port: the first of `count` ports, each of which leads to the one at the same place of a backend.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.port = embedded.find_free_port(count)
        self.bootstrap = f"{embedded.HOST}:{self.port}"
        self._count = count
        self._ready: list[int] = []
        self._turn = itertools.count()
        self._listening = threading.Event()
        self.backends: Sequence[Backend] = ()

    def __enter__(self) -> Balancer:
        super().__enter__()
        assert self._listening.wait(30)
        return self

    def _run(self) -> None:
        trio.run(self._serve)

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            for place in range(self._count):
                listeners = await trio.open_tcp_listeners(self.port + place, host=embedded.HOST)

                async def relay(client: trio.SocketStream, place: int = place) -> None:
                    await self._relay(client, place)

                nursery.start_soon(trio.serve_listeners, relay, listeners)
            self._listening.set()
            while not self._stop.is_set():  # noqa: ASYNC110 - a thread's event
                await trio.sleep(LOOK_S)
            nursery.cancel_scope.cancel()

    async def _look(self) -> None:
        while True:
            self._ready = [
                backend.port for backend in self.backends if await trio.to_thread.run_sync(_is_ready, backend.admin)
            ]
            await trio.sleep(LOOK_S)

    async def _dial(self, place: int) -> trio.SocketStream:
        """A gateway that is ready: where a look is late, the client waits for the next."""
        while True:
            if ready := self._ready:
                with contextlib.suppress(OSError):
                    return await trio.open_tcp_stream(embedded.HOST, ready[next(self._turn) % len(ready)] + place)
            await trio.sleep(LOOK_S)

    async def _relay(self, client: trio.SocketStream, place: int) -> None:
        async with client:
            gateway = await self._dial(place)
            async with gateway, trio.open_nursery() as nursery:
                nursery.start_soon(_pump, client, gateway, nursery.cancel_scope)
                nursery.start_soon(_pump, gateway, client, nursery.cancel_scope)


async def _pump(source: trio.SocketStream, target: trio.SocketStream, both: trio.CancelScope) -> None:
    try:
        async for data in source:
            await target.send_all(data)
        await target.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        for stream in (source, target):  # a reset comes out as one: clients tell it from an end
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        both.cancel()


def _is_ready(admin: str) -> bool:
    try:
        with urllib.request.urlopen(f"{admin}/readyz", timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
