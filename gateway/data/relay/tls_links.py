# A link of which one side, or both, speak TLS (tls.py).
#
# TLS is a side's: its reading, its sending, the way in which it ends. The link adds that it calls itself when
# bytes are left that no event announces: decrypted ones, or whole records behind them. It encrypts a large request
# part by part: as a whole it would be in memory twice while its broker doesn't read.

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from gateway.data.relay.links import RelayLink
from gateway.data.relay.sides import LinkSide
from gateway.data.relay.states import CLOSED
from gateway.data.sockets.inbound import InboundBuffer
from gateway.data.sockets.outbound import OutboundBuffer
from gateway.data.sockets.reactor import IN

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from gateway.data.session.fast_path import ForwardingTerms
    from gateway.data.session.session import ClientSession
    from gateway.data.shared.budget import FrameBuffer, MemoryAccount
    from gateway.data.sockets.inbound import SharedReadBuffer
    from gateway.data.sockets.reactor import SocketReactor
    from gateway.data.sockets.tls import TlsConnection

# So much of a large request is encrypted at once. Bytes that the socket doesn't take stay as ciphertext, and the rest
# stays in the request's own buffer.
ENCRYPT_AT_ONCE = 256 * 1024
_NO_PLAINTEXT: Final[deque[memoryview]] = deque(maxlen=0)  # of all that have nothing to encrypt later


class TlsInbound(InboundBuffer):
    """The read side of a socket that speaks TLS."""

    __slots__ = ("_on_first_bytes", "_tls")

    def __init__(
        self,
        tls: TlsConnection,
        shared: SharedReadBuffer,
        account: MemoryAccount,
        wake: Callable[[], None],
        *,
        is_client: bool,
        begun: Callable[[TlsConnection], None] | None = None,
    ) -> None:
        """`begun` is called with the first bytes."""
        super().__init__(shared, account, wake, is_client=is_client)
        self._tls = tls
        self._on_first_bytes = begun

    def receive(self, sock: socket.socket) -> int:
        n = super().receive(cast("socket.socket", self._tls))
        self.is_drained = self._tls.is_drained
        if self._on_first_bytes is not None and n > 0:
            begun, self._on_first_bytes = self._on_first_bytes, None
            begun(self._tls)
        return n

    @property
    def has_begun(self) -> bool:
        """Whether the first bytes have arrived and been reported."""
        return self._on_first_bytes is None

    def is_socket_empty(self, sock: socket.socket) -> bool:
        return self._tls.is_socket_empty()

    def peek_request(self, sock: socket.socket, max_bytes: int) -> None:
        self.is_large_next = False  # on the socket are TLS's records

    def recv(self, sock: socket.socket, size: int) -> bytes:
        return self._tls.recv(size)


class TlsOutbound(OutboundBuffer):
    """The bytes that such a socket didn't take at once, encrypted; of a large request only the first of them are."""

    __slots__ = ("_lent_frame", "_plaintext", "_plaintext_charged", "_tls")

    def __init__(self, tls: TlsConnection, account: MemoryAccount) -> None:
        super().__init__(account)
        self._tls = tls
        self._plaintext: deque[memoryview] = _NO_PLAINTEXT  # goes behind `pieces`; never there without any of those
        self._plaintext_charged = 0
        self._lent_frame: FrameBuffer | None = None  # the buffer that parts of it lie in

    def send(self, sock: socket.socket, parts: list[Any], large: FrameBuffer | None) -> FrameBuffer | None:
        if large is None and not self._plaintext:
            encrypted = self._tls.encrypt(parts)
            parts.clear()
            super().send(sock, encrypted, None)
            return None
        return self._send_frame(sock, parts, large)

    def _send_frame(self, sock: socket.socket, parts: list[Any], large: FrameBuffer | None) -> FrameBuffer | None:
        clear = self._plaintext = self._plaintext or deque()
        waiting = len(clear)
        clear.extend(map(memoryview, parts))
        parts.clear()
        if not waiting:
            self._encrypt_pending(sock)
        first = len(clear) - max(0, len(clear) - waiting)
        for i in range(first, len(clear)):
            if large is not None and clear[i].obj is large.buffer:
                self._lent_frame = large
            else:  # it may lie in a buffer that others use
                clear[i] = memoryview(bytes(clear[i]))
                self._plaintext_charged += len(clear[i])
                self._account.charge_bytes(len(clear[i]))
        return None if self._lent_frame is large else large

    def _encrypt_pending(self, sock: socket.socket) -> None:
        """Encrypt and send, as long as the socket takes all of it."""
        clear = self._plaintext
        while clear and not self.pieces:
            taken: list[memoryview] = []
            room = ENCRYPT_AT_ONCE
            while clear and room:
                view = clear[0]
                if len(view) <= room:
                    clear.popleft()
                else:
                    clear[0], view = view[room:], view[:room]
                taken.append(view)
                room -= len(view)
            super().send(sock, self._tls.encrypt(taken), None)

    def flush(self, sock: socket.socket) -> None:
        super().flush(sock)
        if self._plaintext:
            self._encrypt_pending(sock)
            if not self._plaintext:
                self._release_plaintext()

    def send_tls_records(self, sock: socket.socket) -> None:
        """Send TLS's own records.

        Raises:
            OSError: the connection is broken.
        """
        super().send(sock, [self._tls.pop_output()], None)

    def shutdown_write(self, sock: socket.socket) -> None:
        tls = self._tls
        last = tls.close_notify() if tls.is_input_empty else b""
        if last:
            super().send(sock, [last], None)
        if not self.pieces:  # else that alert has to go first, and says it alone
            super().shutdown_write(sock)

    def close(self) -> None:
        super().close()
        self._plaintext = _NO_PLAINTEXT
        self._release_plaintext()

    def _release_plaintext(self) -> None:
        lent, self._lent_frame = self._lent_frame, None
        if lent is not None:
            self._account.release_buffer(lent)
        charged, self._plaintext_charged = self._plaintext_charged, 0
        if charged:
            self._account.release_bytes(charged)


class BrokerTlsObserver(Protocol):
    """Observes a connection to a broker after its handshake."""

    def on_first_bytes(self, tls: TlsConnection) -> None:
        """The broker's first bytes are there."""

    def on_tls_fault(self, why: str) -> None:
        """The broker broke TLS's rules, or refused."""


class TlsLink(RelayLink):
    """A link whose client, or whose broker, or both speak TLS; the handshakes are over."""

    __slots__ = ("_broker_tls_observer", "_tls_sides")

    def __init__(
        self,
        reactor: SocketReactor[RelayLink],
        session: ClientSession,
        client: socket.socket,
        upstream: socket.socket,
        peer: str,
        client_tls: TlsConnection | None,
        upstream_tls: TlsConnection | None = None,
        observer: BrokerTlsObserver | None = None,
    ) -> None:
        """`observer`: of the connection to the broker."""
        self._broker_tls_observer = observer
        super().__init__(reactor, session, client, upstream, peer, client_tls, upstream_tls)
        self._tls_sides = [(side, side.tls) for side in (self.client, self.upstream) if side.tls is not None]

    def _make_side(self, sock: socket.socket, tls: TlsConnection | None, *, is_client: bool) -> LinkSide:
        if tls is None:
            return super()._make_side(sock, tls, is_client=is_client)
        account, observer = self.session.account, None if is_client else self._broker_tls_observer
        inbound = TlsInbound(
            tls, self.reactor.shared, account, self._schedule_ready, is_client=is_client,
            begun=None if observer is None else observer.on_first_bytes,
        )  # fmt: skip
        return LinkSide(sock, inbound, TlsOutbound(tls, account), tls)

    def open(self) -> None:
        super().open()
        if any(tls.has_plaintext for _, tls in self._tls_sides):
            self.reactor.call_soon(self)

    def current_terms(self, now: float) -> ForwardingTerms | None:
        inbound = self.upstream.inbound
        if isinstance(inbound, TlsInbound) and not inbound.has_begun:
            return None
        return super().current_terms(now)

    def _update_shortcut(self) -> None:
        super()._update_shortcut()
        self.shortcut.splices_unseen = False  # each byte is decrypted, or encrypted

    def on_flushed(self) -> None:
        super().on_flushed()
        tls = self.client.tls
        if tls is not None and tls.has_plaintext:  # it was not read meanwhile
            self.reactor.call_soon(self)

    def on_ready(self, now: float) -> None:
        is_read = owes = False
        for side, tls in self._tls_sides:
            if self.state is CLOSED:
                break
            if tls.has_plaintext and side.event_mask & IN:
                is_read = True
                self.shortcut.handle_event(side.sock.fileno(), IN, now)
            owes = owes or tls.has_pending_output  # the shortcut doesn't send TLS's own records
        if owes or not is_read:
            super().on_ready(now)

    def _advance_state(self, now: float) -> None:
        super()._advance_state(now)
        for side, tls in self._tls_sides:
            if self.state is CLOSED:
                return
            if tls.has_pending_output:
                self._send_tls_records(side, now)
            if tls.has_plaintext and side.event_mask & IN:
                self.reactor.call_soon(self)

    def _send_tls_records(self, side: LinkSide, now: float) -> None:
        try:
            cast("TlsOutbound", side.outbound).send_tls_records(side.sock)
        except OSError:
            if side is self.client:
                self.close("disconnects_client")
                return
            self._mark_upstream_broken(now)
        self._update_interest()

    def close(self, cause: str) -> None:
        if self.state is CLOSED:
            return
        for side, tls in self._tls_sides:
            if tls.fault and side is self.client:
                self._disconnect_log.log_malformed(f"TLS: {tls.fault}")
                cause = "disconnects_malformed"
            elif tls.fault and self._broker_tls_observer is not None:
                self._broker_tls_observer.on_tls_fault(tls.fault)
            last = b"" if side.has_unsent else tls.close_notify()  # behind half a record it would be damage
            if last:
                try:
                    side.sock.send(last)
                except OSError:  # it is gone, or takes nothing
                    pass
        super().close(cause)
