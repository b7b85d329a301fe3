# Links on stage: a reactor, and links on real sockets whose far ends are the test's.

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing

from gateway.data.relay.links import RelayLink
from gateway.data.session.session import ClientSession
from gateway.data.shared.budget import MemoryAccount
from gateway.data.sockets.reactor import SocketReactor
from tests.gateway.data.play import Play

DEADLINE_S = 60
SMALL_KERNEL_BUFFER = 4096  # bytes


class Stage:
    """A reactor, and a link whose far ends are trio streams."""

    def __init__(self, play: Play, max_buffered_bytes: int = 2**26) -> None:
        self.play = play
        self.bugs: list[Exception] = []
        self.reactor: SocketReactor[RelayLink] = SocketReactor(
            max_buffered_bytes, lambda _, bug: self.bugs.append(bug), latencies=play.world.ledger.latencies
        )
        self.streams: list[trio.SocketStream] = []

    def connect(
        self, *, small: bool = False, small_client: bool = False
    ) -> tuple[RelayLink, trio.SocketStream, trio.SocketStream]:
        """A link of its own, the client's stream and the broker's. `small`: with small kernel buffers on both sides."""
        client, c_far = tcp_pair(small or small_client)
        upstream, u_far = tcp_pair(small)
        now = trio.current_time()
        session = ClientSession(self.play.world, 1, MemoryAccount(self.reactor.budget, "test"), now)
        link = RelayLink(self.reactor, session, client, upstream, "test:1")
        link.open()
        self.streams += (c_far, u_far)
        return link, c_far, u_far

    def mute(self, link: RelayLink) -> None:
        """Until `end_mute`: a time of its own might be over before the link sees what it is to hold."""
        link.session.hold.muted_until = trio.current_time() + 3600

    def end_mute(self, link: RelayLink, in_s: float = 0.0) -> None:
        hold = link.session.hold
        hold.muted_until = hold.held_until = trio.current_time() + in_s
        self.reactor.call_at(hold.held_until, link)

    def wakes(self, link: RelayLink, at: float) -> bool:
        """Whether it has a timer of its own for that time."""
        return any(one is link and when == at for when, _, one in self.reactor._timers)


def tcp_pair(small: bool) -> tuple[socket.socket, trio.SocketStream]:
    listener = socket.create_server(("127.0.0.1", 0))
    if small:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_KERNEL_BUFFER)
    far = socket.socket()
    if small:
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_KERNEL_BUFFER)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_KERNEL_BUFFER)
    far.connect(listener.getsockname())
    near, _ = listener.accept()
    if small:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_KERNEL_BUFFER)
    listener.close()
    far.setblocking(False)
    return near, trio.SocketStream(trio.socket.from_stdlib_socket(far))


@asynccontextmanager
async def staged(play: Play | None = None, **options: int) -> AsyncIterator[Stage]:
    stage = Stage(play or Play(), **options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.reactor.run)
        nursery.start_soon(stage.reactor.run_timers)
        with trio.fail_after(DEADLINE_S):
            yield stage
        for link in list(stage.reactor.links):
            link.close("disconnects_drain")
        stage.reactor.run_deferred(trio.current_time())
        nursery.cancel_scope.cancel()
    for stream in stage.streams:
        stream.socket.close()
    assert stage.bugs == []
    assert stage.reactor.budget.used_bytes == 0, "memory of closed connections was not given back"


async def passes(sender: trio.SocketStream, receiver: trio.SocketStream, data: bytes, as_: bytes | None = None) -> None:
    """From one to the other, as it is or as `as_`; of any size."""
    expected = data if as_ is None else as_
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.send_all, data)
        assert await receive_exactly(receiver, len(expected)) == expected


async def receive_exactly(stream: trio.SocketStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = await stream.receive_some(min(65_536, size - len(data)))
        assert piece, f"closed after {len(data)} of {size} bytes"
        data += piece
    return bytes(data)


def reset(stream: trio.SocketStream) -> None:
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


async def is_closed(stream: trio.SocketStream) -> bool:
    """Waits until it is, by its end or by a reset: unread bytes make the kernel say that instead."""
    try:
        return await stream.receive_some(1) == b""
    except trio.BrokenResourceError:
        return True


async def send_in_vain(send: Callable[[bytes], Awaitable[None]], data: bytes) -> None:
    """To a stream that may end meanwhile."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await send(data)


def count_asked(far: Any, patch: pytest.MonkeyPatch) -> None:
    """In `far.asked`: the times that the shortcut of `far.link` asks it on which terms."""
    terms = RelayLink.current_terms

    def counted(link: RelayLink, now: float) -> Any:
        far.asked += link is far.link
        return terms(link, now)

    patch.setattr(RelayLink, "current_terms", counted)
