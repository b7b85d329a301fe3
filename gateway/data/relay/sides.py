# One of the two sockets of a link: what is read from it, what it has still to take, and the events that epoll reports
# for it.

from __future__ import annotations

import fcntl
import socket
import sys
import termios
from typing import TYPE_CHECKING, Any

from gateway.data.relay.states import OPEN, SHUT_DOWN
from gateway.data.sockets.reactor import DEAF, IN, QUIET

if TYPE_CHECKING:
    from gateway.data.sockets.inbound import InboundBuffer
    from gateway.data.sockets.outbound import OutboundBuffer
    from gateway.data.sockets.reactor import SocketReactor
    from gateway.data.sockets.slices import EventHandler
    from gateway.data.sockets.tls import TlsConnection

READ_AHEAD_BYTES = 256 * 1024  # at once
SMALL_BUFFER_BYTES = 64 * 1024  # bytes, of which the kernel makes twice as many
_SO_BUF_LOCK = 72  # <asm-generic/socket.h>
_CLOSE_WAIT = 8  # of TCP_INFO's first byte


class LinkSide:
    """
    Attributes:
        event_mask: the events that epoll tells of it.
        state: one of states.SIDE_STATES.
        tls: None: it speaks plain text.
    """

    __slots__ = (
        "_fd",
        "_usual_buffer",
        "event_mask",
        "inbound",
        "outbound",
        "sock",
        "state",
        "tls",
    )

    def __init__(
        self, sock: socket.socket, inbound: InboundBuffer, outbound: OutboundBuffer, tls: TlsConnection | None = None
    ) -> None:
        self.sock = sock
        self.tls = tls
        self._fd = sock.fileno()
        self.inbound = inbound
        self.outbound = outbound
        self.event_mask = IN
        self._usual_buffer = 0  # the size of its receive buffer before that was made small; 0: it is not
        self.state = OPEN

    @property
    def has_unsent(self) -> bool:
        """Whether it didn't take all the bytes sent to it."""
        return bool(self.outbound.pieces)

    @property
    def is_between_frames(self) -> bool:
        """Whether it is read, and nothing that was read waits here."""
        return bool(self.event_mask & IN) and self.inbound.is_between_frames

    @property
    def has_fin(self) -> bool:
        """Whether the peer's FIN has arrived, read or not (Linux)."""
        tcp_info = getattr(socket, "TCP_INFO", None)
        if tcp_info is None:
            return False
        try:
            return self.sock.getsockopt(socket.IPPROTO_TCP, tcp_info, 1)[0] == _CLOSE_WAIT
        except OSError:
            return False

    @property
    def unread_bytes(self) -> int:
        """Bytes that its peer has sent and that have not been read."""
        count = bytearray(4)
        try:
            fcntl.ioctl(self._fd, termios.FIONREAD, count)
        except OSError:
            return 0
        return int.from_bytes(count, sys.byteorder)

    def read_ahead(self, most: int) -> tuple[bytearray, bool]:
        """Up to about `most` bytes behind everything received, and whether it was read to its end, or is broken."""
        more = bytearray()
        try:
            while len(more) < most and self.state.is_read:
                data = self.inbound.recv(self.sock, READ_AHEAD_BYTES)
                if not data:
                    return more, True
                more += data
        except BlockingIOError:
            pass
        except OSError:
            return more, True
        return more, False

    def open(self, reactor: SocketReactor[Any], handler: EventHandler) -> None:
        """Put it into the reactor.

        Raises:
            OSError: the connection is broken.
        """
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        reactor.register(self.sock, IN, handler)

    def set_interest(self, mask: int, reactor: SocketReactor[Any]) -> None:
        """Have epoll tell of these events; of nothing but an end where it is 0."""
        mask = mask or (DEAF if self.state.is_gone else QUIET)
        if mask != self.event_mask:
            self.event_mask = mask
            reactor.modify(self._fd, mask)

    def limit_receive_buffer(self, *, small: bool) -> None:
        """Let its peer send no more ahead than SMALL_BUFFER_BYTES, or as much as usual. So what can't be handled soon
        stays in the peer's own queue: it has not sent it, as far as its timeouts go.
        """
        if small == bool(self._usual_buffer):
            return
        # Not by TCP_WINDOW_CLAMP, which bounds what is offered and not what lies unread.
        try:
            before = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            self.sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES if small else self._usual_buffer // 2
            )
            if not small and sys.platform == "linux":
                self.sock.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)  # the kernel chooses its size again
        except OSError:
            return  # it is broken, as its next event says; or the kernel is older than 5.15, and the size stays
        self._usual_buffer = before if small else 0

    def shutdown_write(self) -> None:
        """Shut the write side down: the peer learns that nothing more comes.

        Raises:
            OSError: the connection is broken.
        """
        self.state = self.state.after(SHUT_DOWN)
        self.outbound.shutdown_write(self.sock)
