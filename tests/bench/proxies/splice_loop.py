"""The least that any hop can cost: one epoll and `splice`, by which no byte of a connection enters the process.

    .venv/bin/python -m tests.bench.proxies.splice_loop 127.0.0.1:19092 127.0.0.1:9092 [LISTEN UPSTREAM …]

Like the bare loop a benchmark's yardstick, not a proxy for use.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import sys
from typing import Final

from tests.bench.proxies.bare_loop import MAX_EVENTS, Address, Relay, Routes, main

PIPE_BYTES: Final = 2**20  # the most that Linux gives to a process without privileges, unless told otherwise


class SplicingRelay(Relay[int]):
    """Each direction of a connection has a pipe, where bytes wait for a peer that doesn't take all."""

    def __init__(self, routes: Routes) -> None:
        super().__init__(routes)
        self._pipes: dict[int, tuple[int, int]] = {}  # by the number of whom its bytes are for: its ends

    def run(self) -> None:  # the other loop's again: what both might call would be a part of what they measure
        listening, poll, sides = self._listeners, self._epoll.poll, self._sides
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
                    to = peer.fileno()
                    outlet, inlet = self._pipes[to]
                    size = os.splice(fd, inlet, PIPE_BYTES, flags=os.SPLICE_F_NONBLOCK)
                    if size == 0:
                        self._close(source, peer)
                        continue
                    try:
                        sent = os.splice(outlet, to, size, flags=os.SPLICE_F_NONBLOCK)
                    except BlockingIOError:
                        sent = 0
                    if sent < size:
                        self._unsent[to] = size - sent
                        self._watch(source, peer)
                except BlockingIOError:
                    continue
                except OSError:
                    self._close(source, peer)

    def _accept(self, listener: socket.socket, address: Address) -> tuple[socket.socket, socket.socket]:
        pair = super()._accept(listener, address)
        for side in pair:
            self._pipes[side.fileno()] = ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return pair

    def _flush(self, side: socket.socket, peer: socket.socket) -> None:
        number = side.fileno()
        outlet, _ = self._pipes[number]
        self._unsent[number] -= os.splice(outlet, number, self._unsent[number], flags=os.SPLICE_F_NONBLOCK)
        if not self._unsent[number]:
            del self._unsent[number]
            self._watch(side, peer)

    def _close(self, *pair: socket.socket) -> None:
        for side in pair:
            for end in self._pipes.pop(side.fileno(), ()):
                os.close(end)
        super()._close(*pair)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], SplicingRelay, __doc__))
