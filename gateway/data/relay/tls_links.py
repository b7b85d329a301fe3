# A link of which one side, or both, speak TLS (tls.py).
#
# TLS is a side's: its reading, its sending, the way in which its end is told. The link adds that it calls itself when
# bytes are left that no event will tell of: decrypted ones, or whole records behind them. It encrypts a large request
# part by part: as a whole it would be in memory twice while its broker doesn't read.

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from gateway.data.relay.links import Link
from gateway.data.sockets.inbound import Inbound
from gateway.data.sockets.outbound import Outbound
from gateway.data.sockets.reactor import IN

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from gateway.data.session.fast_path import Terms
    from gateway.data.session.session import Session
    from gateway.data.shared.budget import Account, Large
    from gateway.data.sockets.inbound import Shared
    from gateway.data.sockets.reactor import Reactor
    from gateway.data.sockets.sides import Side
    from gateway.data.sockets.tls import Tls

# So much of a large request is encrypted at once. Bytes that the socket doesn't take stay as ciphertext, and the rest
# stays in the request's own buffer.
AT_ONCE = 256 * 1024
_NOTHING: Final[deque[memoryview]] = deque(maxlen=0)  # of all that have nothing to encrypt later


class TlsInbound(Inbound):
    """The read side of a socket that speaks TLS."""

    __slots__ = ("_begun", "_tls")

    def __init__(
        self,
        tls: Tls,
        shared: Shared,
        account: Account,
        wake: Callable[[], None],
        *,
        is_client: bool,
        begun: Callable[[Tls], None] | None = None,
    ) -> None:
        """`begun` is called with the first bytes."""
        super().__init__(shared, account, wake, is_client=is_client)
        self._tls = tls
        self._begun = begun

    def receive(self, sock: socket.socket) -> int:
        n = super().receive(cast("socket.socket", self._tls))
        self.drained = self._tls.drained
        if self._begun is not None and n > 0:
            begun, self._begun = self._begun, None
            begun(self._tls)
        return n

    @property
    def has_begun(self) -> bool:
        """Whether all who wait for the first bytes have been told of them."""
        return self._begun is None

    def is_empty(self, sock: socket.socket) -> bool:
        return self._tls.is_empty()

    def look_ahead(self, sock: socket.socket, max_bytes: int) -> None:
        self.is_large_next = False  # on the socket are TLS's records

    def recv(self, sock: socket.socket, size: int) -> bytes:
        return self._tls.recv(size)


class TlsOutbound(Outbound):
    """The bytes that such a socket didn't take at once, encrypted; of a large request only the first of them are."""

    __slots__ = ("_clear", "_clear_charged", "_lent", "_tls")

    def __init__(self, tls: Tls, account: Account) -> None:
        super().__init__(account)
        self._tls = tls
        self._clear: deque[memoryview] = _NOTHING  # goes behind `pieces`; never there without any of those
        self._clear_charged = 0
        self._lent: Large | None = None  # the buffer that parts of it lie in

    def send(self, sock: socket.socket, parts: list[Any], large: Large | None) -> Large | None:
        if large is None and not self._clear:
            encrypted = self._tls.encrypt(parts)
            parts.clear()
            super().send(sock, encrypted, None)
            return None
        return self._send_large(sock, parts, large)

    def _send_large(self, sock: socket.socket, parts: list[Any], large: Large | None) -> Large | None:
        clear = self._clear = self._clear or deque()
        waiting = len(clear)
        clear.extend(map(memoryview, parts))
        parts.clear()
        if not waiting:
            self._encrypt(sock)
        first = len(clear) - max(0, len(clear) - waiting)
        for i in range(first, len(clear)):
            if large is not None and clear[i].obj is large.buffer:
                self._lent = large
            else:  # it may lie in a buffer that others use
                clear[i] = memoryview(bytes(clear[i]))
                self._clear_charged += len(clear[i])
                self._account.charge(len(clear[i]))
        return None if self._lent is large else large

    def _encrypt(self, sock: socket.socket) -> None:
        """Encrypt and send, as long as the socket takes all of it."""
        clear = self._clear
        while clear and not self.pieces:
            taken: list[memoryview] = []
            room = AT_ONCE
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
        if self._clear:
            self._encrypt(sock)
            if not self._clear:
                self._settle_clear()

    def speak(self, sock: socket.socket) -> None:
        """Send TLS's own records.

        Raises:
            OSError: the connection is broken.
        """
        super().send(sock, [self._tls.take()], None)

    def shut(self, sock: socket.socket) -> None:
        tls = self._tls
        last = tls.end() if tls.is_clear else b""
        if last:
            super().send(sock, [last], None)
        if not self.pieces:  # else that alert has to go first, and says it alone
            super().shut(sock)

    def close(self) -> None:
        super().close()
        self._clear = _NOTHING
        self._settle_clear()

    def _settle_clear(self) -> None:
        lent, self._lent = self._lent, None
        if lent is not None:
            self._account.give(lent)
        charged, self._clear_charged = self._clear_charged, 0
        if charged:
            self._account.discharge(charged)


class BrokerTlsObserver(Protocol):
    """It is told how a connection to a broker goes on after its handshake."""

    def begin(self, tls: Tls) -> None:
        """The broker's first bytes are there."""

    def fail(self, why: str) -> None:
        """The broker broke TLS's rules, or refused."""


class TlsLink(Link):
    """A link whose client, or whose broker, or both speak TLS; the handshakes are over."""

    __slots__ = ("_course", "_of_client", "_of_upstream")

    def __init__(
        self,
        reactor: Reactor[Link],
        session: Session,
        client: socket.socket,
        upstream: socket.socket,
        peer: str,
        of_client: Tls | None,
        of_upstream: Tls | None = None,
        course: BrokerTlsObserver | None = None,
    ) -> None:
        """`course` is told how the connection to the broker goes on."""
        super().__init__(reactor, session, client, upstream, peer)
        self._of_client, self._of_upstream = of_client, of_upstream
        self._course = course
        shared, account = reactor.shared, session.account
        if of_client is not None:
            self.client.inbound = TlsInbound(of_client, shared, account, self._wake, is_client=True)
            self.client.outbound = TlsOutbound(of_client, account)
        if of_upstream is not None:
            begun = course.begin if course is not None else None
            self.upstream.inbound = TlsInbound(of_upstream, shared, account, self._wake, is_client=False, begun=begun)
            self.upstream.outbound = TlsOutbound(of_upstream, account)
        self.shortcut = self._new_shortcut(of_client, of_upstream)

    def open(self) -> None:
        super().open()
        if _is_ready(self._of_client) or _is_ready(self._of_upstream):
            self.reactor.call_soon(self)

    def terms(self, now: float) -> Terms | None:
        inbound = self.upstream.inbound
        if isinstance(inbound, TlsInbound) and not inbound.has_begun:
            return None
        return super().terms(now)

    def _guide_shortcut(self) -> None:
        super()._guide_shortcut()
        self.shortcut.passes_unseen = False  # each byte is decrypted, or encrypted

    def flushed(self) -> None:
        super().flushed()
        if _is_ready(self._of_client):  # it was not read meanwhile
            self.reactor.call_soon(self)

    def on_ready(self, now: float) -> None:
        is_read = owes = False
        for tls, side in ((self._of_client, self.client), (self._of_upstream, self.upstream)):
            if tls is None or self.closed:
                continue
            if tls.ready and side.mask & IN:
                is_read = True
                self.shortcut.handle(side.sock.fileno(), IN, now)
            owes = owes or tls.owes  # the shortcut doesn't send TLS's own records
        if owes or not is_read:
            super().on_ready(now)

    def _go_on(self, now: float) -> None:
        super()._go_on(now)
        tls = self._of_client
        if tls is not None and not self.closed:
            if tls.owes:
                self._speak(self.client, now)
            if tls.ready and self.client.mask & IN:
                self.reactor.call_soon(self)
        tls = self._of_upstream
        if tls is not None and not self.closed:
            if tls.owes:
                self._speak(self.upstream, now)
            if tls.ready and self.upstream.mask & IN:
                self.reactor.call_soon(self)

    def _speak(self, side: Side, now: float) -> None:
        try:
            cast("TlsOutbound", side.outbound).speak(side.sock)
        except OSError:
            if side is self.client:
                self.close("disconnects_client")
                return
            self._upstream_broken(now)
        self._update()

    def close(self, cause: str) -> None:
        if self.closed:
            return
        for tls, side in ((self._of_client, self.client), (self._of_upstream, self.upstream)):
            if tls is None:
                continue
            if tls.fault and side is self.client:
                self._log.malformed(f"TLS: {tls.fault}")
                cause = "disconnects_malformed"
            elif tls.fault and self._course is not None:
                self._course.fail(tls.fault)
            last = b"" if side.is_stuck else tls.end()  # behind half a record it would be no alert but damage
            if last:
                try:
                    side.sock.send(last)
                except OSError:  # it is gone, or takes nothing
                    pass
        super().close(cause)


def _is_ready(tls: Tls | None) -> bool:
    return tls is not None and tls.ready
