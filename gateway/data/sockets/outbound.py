# Sending to one socket: at once what it takes, later what it didn't. Bytes that are kept are charged to the connection;
# a large request's buffer is held until all of it has gone, instead of being copied.

from __future__ import annotations

from collections import deque
from itertools import islice
from socket import SHUT_WR
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    from gateway.data.shared.budget import FrameBuffer, MemoryAccount

MAX_IOV = 512  # IOV_MAX is 1024 on Linux


class OutboundBuffer:
    """The bytes that a socket didn't take at once. `empty_count`: how many times the buffer has become empty."""

    __slots__ = ("_account", "_charged_bytes", "_retained_frame", "empty_count", "pieces")

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self._charged_bytes = 0
        self._retained_frame: FrameBuffer | None = None  # the buffer that pieces lie in: given back when all are sent
        self.empty_count = 0
        self.pieces: deque[Any] = deque()

    def send(self, sock: socket.socket, parts: list[Any], large: FrameBuffer | None) -> FrameBuffer | None:
        """Send all of `parts`, and keep the bytes that the socket doesn't take. Returns `large` unless it is needed for
        that.

        Raises:
            OSError: the connection is broken.
        """
        if self.pieces:
            self._keep_pieces(parts, None)
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
        self._keep_pieces(rest, large)
        return None if self._retained_frame is not None else large

    def _keep_pieces(self, parts: list[Any], large: FrameBuffer | None) -> None:
        for part in parts:
            view = memoryview(part)
            if large is not None and view.obj is large.buffer:
                self._retained_frame = large  # no copy: the client isn't read until this has gone
                self.pieces.append(view)
            else:
                whole = view.obj
                if not isinstance(whole, bytes) or len(whole) > 2 * len(view):
                    whole = bytes(view)  # it lies in a buffer that others use, or much of it has gone
                    view = memoryview(whole)
                self.pieces.append(view)
                self._charged_bytes += len(whole)
                self._account.charge_bytes(len(whole))

    def keep_unsent(self, rest: memoryview) -> None:
        """Keep the bytes that the socket didn't take."""
        self._keep_pieces([rest], None)

    def retain_frame(self, large: FrameBuffer, sent: int) -> None:
        """Keep the rest of a large request, of which `sent` bytes have gone; nothing else may be kept here."""
        self._retained_frame = large
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
        self.finish_flush()

    def finish_flush(self) -> None:
        """All kept bytes have gone."""
        self.pieces.clear()
        self.empty_count += 1
        self._release_memory()

    def shutdown_write(self, sock: socket.socket) -> None:
        """Shut the write side down, once all bytes have gone.

        Raises:
            OSError: the connection is broken.
        """
        sock.shutdown(SHUT_WR)

    def close(self) -> None:
        self.pieces.clear()
        self._release_memory()

    def _release_memory(self) -> None:
        if self._retained_frame is not None:
            held, self._retained_frame = self._retained_frame, None
            self._account.release_buffer(held)
        charged, self._charged_bytes = self._charged_bytes, 0
        if charged:
            self._account.release_bytes(charged)
