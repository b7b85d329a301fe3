"""The least that a relay in Python can cost: one epoll and `recv`/`send`, which knows nothing of Kafka.

    .venv/bin/python -m tests.bench.proxies.bare_loop 127.0.0.1:19092 127.0.0.1:9092 [LISTEN UPSTREAM …]

It counts nothing, limits nothing and holds no bounds on memory: a benchmark's yardstick, not a proxy for use.
"""

from __future__ import annotations

import select
import socket
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

READ_BYTES: Final = 256 * 1024  # as the gateway reads
MAX_EVENTS: Final = 256

Address = tuple[str, int]
Routes = Iterable[tuple[Address, Address]]
Held = TypeVar("Held")  # bytes that a peer hasn't taken, or how many they are


def address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


class Relay(Generic[Held]):
    """Connections of clients, each with one to the upstream of its listener: `routes` are pairs of both. Where a peer
    doesn't take all, its other side is not read until it has.
    """

    def __init__(self, routes: Routes) -> None:
        listeners = ((socket.create_server(listen, backlog=1024), upstream) for listen, upstream in routes)
        self._listeners = {listener.fileno(): (listener, upstream) for listener, upstream in listeners}
        self._epoll = select.epoll()
        for number in self._listeners:
            self._epoll.register(number, select.EPOLLIN)
        self._sides: dict[int, tuple[socket.socket, socket.socket]] = {}  # by number: itself, and its peer
        self._unsent: dict[int, Held] = {}  # by the number of whom it is for

    @abstractmethod
    def run(self) -> None:
        """For ever."""

    def _accept(self, listener: socket.socket, address: Address) -> tuple[socket.socket, socket.socket]:
        client, _ = listener.accept()
        upstream = socket.create_connection(address)
        for one, other in ((client, upstream), (upstream, client)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setblocking(False)
            self._sides[one.fileno()] = (one, other)
            self._epoll.register(one.fileno(), select.EPOLLIN)
        return client, upstream

    def _watch(self, *pair: socket.socket) -> None:
        for one, other in (pair, pair[::-1]):
            readable = 0 if other.fileno() in self._unsent else select.EPOLLIN
            writable = select.EPOLLOUT if one.fileno() in self._unsent else 0
            self._epoll.modify(one.fileno(), readable | writable)

    def _close(self, *pair: socket.socket) -> None:
        for side in pair:
            self._sides.pop(side.fileno(), None)
            self._unsent.pop(side.fileno(), None)
            self._epoll.unregister(side.fileno())
            side.close()


class CopyingRelay(Relay[memoryview]):
    """By `recv_into` and `send`."""

    def __init__(self, routes: Routes) -> None:
        super().__init__(routes)
        self._room = memoryview(bytearray(READ_BYTES))

    def run(self) -> None:
        listening, poll, sides, room = self._listeners, self._epoll.poll, self._sides, self._room
        while True:
            for fd, mask in poll(-1, MAX_EVENTS):
                pair = sides.get(fd)
                if pair is None:
                    if fd in listening:
                        self._accept(*listening[fd])
                    continue  # or closed by an earlier event
                source, peer = pair
                try:
                    if mask & select.EPOLLOUT:
                        self._flush(source, peer)
                    if not mask & ~select.EPOLLOUT:
                        continue
                    size = source.recv_into(room)
                    if size == 0:
                        self._close(source, peer)
                        continue
                    try:
                        sent = peer.send(room[:size])
                    except BlockingIOError:
                        sent = 0
                    if sent < size:
                        self._unsent[peer.fileno()] = memoryview(bytes(room[sent:size]))
                        self._watch(source, peer)
                except BlockingIOError:
                    continue
                except OSError:
                    self._close(source, peer)

    def _flush(self, side: socket.socket, peer: socket.socket) -> None:
        rest = self._unsent[side.fileno()]
        rest = rest[side.send(rest) :]
        if rest:
            self._unsent[side.fileno()] = rest
        else:
            del self._unsent[side.fileno()]
            self._watch(side, peer)


def main(arguments: Sequence[str], relay: Callable[[Routes], Relay[Any]], usage: str | None) -> int:
    if not arguments or len(arguments) % 2:
        print(usage, file=sys.stderr)
        return 2
    addresses = [address(each) for each in arguments]
    relay(zip(addresses[::2], addresses[1::2], strict=True)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], CopyingRelay, __doc__))
