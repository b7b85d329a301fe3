# Sending to one socket: at once what it takes, later what it didn't. Bytes that are kept are charged to the connection;
# a large request's buffer is held until all of it has gone, instead of being copied.

from __future__ import annotations

from collections import deque
from itertools import islice
from socket import SHUT_WR
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    from gateway.data.shared.budget import Account, Large

MAX_IOV = 512  # IOV_MAX is 1024 on Linux


class Outbound:
    """The bytes that a socket didn't take at once. `emptied`: how many times all of them had gone."""

    __slots__ = ("_account", "_charged", "_held", "emptied", "pieces")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._charged = 0
        self._held: Large | None = None  # the buffer that pieces lie in: given back when all are sent
        self.emptied = 0
        self.pieces: deque[Any] = deque()

    def send(self, sock: socket.socket, parts: list[Any], large: Large | None) -> Large | None:
        """Send all of `parts`, keep the bytes that don't go. Returns `large` unless it is needed for that.

        Raises:
            OSError: the connection is broken.
        """
        if self.pieces:
            self._keep(parts, None)
            parts.clear()
            return large
        sent = 0
        try:
            if len(parts) == 1:
                sent = sock.send(parts[0])
                if sent == len(parts[0]):
                    parts.clear()
                    return large
            else:
                sent = sock.sendmsg(parts[:MAX_IOV])
        except BlockingIOError:
            pass
        rest = []
        for part in parts:
            size = len(part)
            if sent >= size:
                sent -= size
            else:
                rest.append(memoryview(part)[sent:])
                sent = 0
        parts.clear()
        if not rest:
            return large
        self._keep(rest, large)
        return None if self._held is not None else large

    def _keep(self, parts: list[Any], large: Large | None) -> None:
        for part in parts:
            view = memoryview(part)
            if large is not None and view.obj is large.buffer:
                self._held = large  # no copy: the client isn't read until this has gone
                self.pieces.append(view)
            else:
                whole = view.obj
                if not isinstance(whole, bytes) or len(whole) > 2 * len(view):
                    whole = bytes(view)  # it lies in a buffer that others use, or much of it has gone
                    view = memoryview(whole)
                self.pieces.append(view)
                self._charged += len(whole)
                self._account.charge(len(whole))

    def keep(self, rest: memoryview) -> None:
        """Keep what the socket didn't take."""
        self._keep([rest], None)

    def hold(self, large: Large, sent: int) -> None:
        """Keep the rest of a large request, of which `sent` bytes have gone; nothing else may be kept here."""
        self._held = large
        self.pieces.append(large.view[sent:])

    def flush(self, sock: socket.socket) -> None:
        """Send more of the kept bytes.

        Raises:
            OSError: the connection is broken.
        """
        pieces = self.pieces
        while pieces:
            try:
                sent = sock.send(pieces[0]) if len(pieces) == 1 else sock.sendmsg(islice(pieces, MAX_IOV))
            except BlockingIOError:
                return
            while sent and sent >= len(pieces[0]):
                sent -= len(pieces.popleft())
            if sent:
                pieces[0] = pieces[0][sent:]
        self.finish()

    def finish(self) -> None:
        """All of it has gone."""
        self.pieces.clear()
        self.emptied += 1
        self._settle()

    def shut(self, sock: socket.socket) -> None:
        """Tell the peer that nothing more comes, when all has gone.

        Raises:
            OSError: the connection is broken.
        """
        sock.shutdown(SHUT_WR)

    def close(self) -> None:
        self.pieces.clear()
        self._settle()

    def _settle(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._account.give(held)
        charged, self._charged = self._charged, 0
        if charged:
            self._account.discharge(charged)
