# TLS on a client's connection, in memory (ssl.MemoryBIO) between its socket and the link: epoll goes on to tell of
# sockets and of nothing else.
#
# The handshake is a task's. From then on `Tls` stands where a link's read and write sides (inbound.py, outbound.py) see
# the socket, and a link of its own class calls itself when bytes are left that no event will tell of: decrypted ones,
# or whole records behind them. Writing never blocks: what the socket doesn't take is kept as ciphertext, as a plain
# link keeps plaintext. (OpenSSL on the socket itself would have to be given the very same bytes again.) Plain
# connections have nothing of all this. Knows no Kafka but to say what else came in place of a TLS handshake.

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, cast

import trio

from gateway.data.inbound import SHARED_BYTES, Inbound, Shared
from gateway.data.links import Link
from gateway.data.outbound import Outbound
from gateway.data.reactor import IN
from protocol.describe import looks_like
from protocol.framing import check_request_head
from protocol.wire import MalformedFrame

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from gateway.data.budget import Account, Large
    from gateway.data.reactor import Reactor
    from gateway.data.session import Session

HANDSHAKE_TIMEOUT_S = 30.0  # clients give a connection up after as long (librdkafka, Java) or sooner
PLAINTEXT = 16_384  # of one record
# More than any record: so much is fed to OpenSSL at once, since its buffers never become smaller again.
RECORD = 20 * 1024
# Records without data that a client may send beyond one in a thousand: with a new key each (TLS 1.3) they cost a tenth
# of a millisecond, and a read has room for ten thousand. So many are handled before they are counted.
BESIDE = 64
_DATA_RECORD = 1.001  # what a record with data makes up for: itself, and a thousandth of one without
_HEADER = 5  # bytes of a record: type, version, and the length of the rest
PROBE = "probe"  # of HandshakeError: a connection without a word, as health checks make them
_HANDSHAKE_RECORD = 0x16
_LARGEST = 2**31 - 1


class HandshakeError(Exception):
    """No TLS with this client; the text says why.

    Attributes:
        kind: the same in words of bounded variety, whatever clients send.
    """

    def __init__(self, why: str, kind: str = "") -> None:
        super().__init__(why)
        self.kind = kind or why


class Tls:
    """One connection's TLS. `scratch` is where ciphertext is received; all connections may share one.

    Attributes:
        ready: there is more to be had by `recv_into`, though no event will tell so.
        drained: the last read took all there was.
        fault: what the peer did that TLS forbids, in words; "" while nothing.
    """

    __slots__ = (
        "_beside",
        "_emptied",
        "_ended",
        "_error",
        "_header",
        "_incoming",
        "_object",
        "_outgoing",
        "_scratch",
        "_skip",
        "_sock",
        "drained",
        "fault",
        "ready",
    )

    def __init__(self, context: ssl.SSLContext, sock: socket.socket, scratch: memoryview) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._sock = sock
        self._scratch = scratch
        self._ended = False  # the peer has said that nothing more comes, or closed
        self._error: ssl.SSLError | None = None  # behind what was decrypted before
        self._emptied = True  # the socket had nothing left when it was last read
        self._beside: float = 0  # records that came and had no data, the handshake's among them
        self._header = b""  # the beginning of a record's that is not whole yet
        self._skip = 0  # bytes of a record that are still to come
        self.ready = False
        self.drained = True
        self.fault = ""

    # --- the handshake ------------------------------------------------------------------------------------------------

    def shake_hands(self, data: bytes) -> bool:
        """Go on with what the client sent; whether that was the last of it. What must be sent is in `take`.

        Raises:
            HandshakeError: there is still an alert to be sent.
        """
        at = 0
        while at < len(data):
            at = self._cut(data, at, len(data))
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise HandshakeError(_explain(error)) from error
        self.ready = self._incoming.pending > 0  # a client may send its first requests behind its last word
        return True

    # --- reading ------------------------------------------------------------------------------------------------------

    def recv_into(self, view: memoryview) -> int:
        """As a non-blocking socket's: how many bytes were written into `view`, 0 at the end.

        Raises:
            BlockingIOError: there are none yet.
            OSError: the connection is broken, or (ssl.SSLError) the peer breaks the rules.
        """
        if self._ended or self._error is not None:
            self.ready = False
            self._is_over()
            return 0
        if self.ready:
            n = self._decrypt(view)
            self.drained = self._emptied and not self.ready
            if n or self._is_over():
                return n
        wanted = min(max(len(view), RECORD), SHARED_BYTES)
        try:
            got = self._sock.recv_into(self._scratch, wanted)
        except BlockingIOError:
            self.drained = self._emptied = True
            raise
        if not got:
            self._ended = True
            return 0
        filled = self._feed(got, view)
        self._emptied = got < wanted
        self.drained = self._emptied and not self.ready
        if filled or self._is_over():
            return filled
        raise BlockingIOError

    def recv(self, size: int) -> bytes:
        """As a non-blocking socket's."""
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def _feed(self, got: int, view: memoryview) -> int:
        """Decrypt what was received; what finds no room in `view` is less than two records."""
        scratch, write = self._scratch, self._incoming.write
        filled = at = 0
        while at < got and not (self._ended or self._error):
            to = self._cut(scratch, at, got)
            write(scratch[at:to])
            at = to
            filled += self._decrypt(view[filled:] if filled else view)
        if self._ended or self._error:
            self.ready = filled > 0  # the end is read next, though it may have come in a piece of its own
        return filled

    def _cut(self, data: bytes | memoryview, at: int, end: int) -> int:
        """Count records in data[at:end], as many as OpenSSL may be given at once, and say where these end."""
        stop = end if end - at <= RECORD else at + RECORD
        pos = at + self._skip
        records = 0
        if self._header:
            pos = at + _HEADER - len(self._header)
            self._header += bytes(data[at : min(pos, stop)])
            if pos > stop:
                return stop
            pos += self._header[3] << 8 | self._header[4]
            self._header = b""
            records = 1
        while pos + _HEADER <= stop:
            pos += _HEADER + (data[pos + 3] << 8 | data[pos + 4])
            records += 1
            if records == BESIDE:
                stop = min(pos, stop)
        self._beside += records
        self._skip = pos - stop
        if pos < stop:
            self._skip, self._header = 0, bytes(data[pos:stop])
        return stop

    def _decrypt(self, view: memoryview) -> int:
        incoming, read = self._incoming, self._object.read
        size, filled, records = len(view), 0, 0
        try:
            while filled < size and not self._ended:
                n = cast("int", read(size - filled, view[filled:] if filled else view))
                if not n:
                    self._ended = True
                    break
                filled += n
                records += 1
                if filled < size and not incoming.pending:  # a record goes at once, if it has the room
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._error = error
        self._beside -= records * _DATA_RECORD
        if self._beside < 0:
            self._beside = 0
        elif self._beside > BESIDE and filled < size and self._error is None:  # all that came is handled
            self._error = ssl.SSLError("too many records without data")
            self.fault = "too many records without data, such as new keys"
        if self._ended or self._error is not None:
            self.ready = filled > 0  # the end is read next
        else:
            self.ready = filled == size and (incoming.pending > 0 or self._object.pending() > 0)
        return filled

    def _is_over(self) -> bool:
        """Whether the peer has ended.

        Raises:
            ssl.SSLError: it broke the rules.
        """
        if self._error is not None:
            self.fault = self.fault or _explain(self._error)
            raise self._error
        return self._ended

    # --- writing ------------------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether TLS itself has something to say, such as a new key."""
        return self._outgoing.pending > 0

    def take(self) -> bytes:
        """What is to be sent to the client."""
        return self._outgoing.read()

    def encrypt(self, parts: list[Any]) -> list[Any]:
        """All of `parts` as it is to be sent.

        Raises:
            ssl.SSLError: the connection can't be written to any more.
        """
        write, read = self._object.write, self._outgoing.read
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(data) <= PLAINTEXT:
            write(data)
            return [read()]
        out = []
        view = memoryview(data)
        for at in range(0, len(view), PLAINTEXT):
            write(view[at : at + PLAINTEXT])
            out.append(read())
        return out

    def end(self) -> bytes:
        """The last that is to be sent: that nothing more comes, or why."""
        try:
            self._object.unwrap()
        except ssl.SSLError:  # the peer has not said so yet, or the connection is broken
            pass
        return self.take()


async def shake_hands(tls: Tls, sock: socket.socket, turn: trio.Lock) -> None:
    """Be the server of a TLS handshake on a non-blocking socket. The caller sets the time limit.

    Its cryptography takes a millisecond or two, in which no request of anybody passes. So only one step is made for
    each time that trio goes through its tasks: whoever has `turn`. Then the reactor is among those that run.

    Raises:
        HandshakeError, OSError: with this client there is no connection.
    """
    data = await _first_bytes(sock)
    while True:
        refusal = None
        async with turn:
            try:
                done = tls.shake_hands(data)
            except HandshakeError as error:
                refusal = error
            await trio.lowlevel.checkpoint()
        await _send_all(sock, tls.take())
        if refusal is not None:
            raise refusal
        if done:
            return
        data = await _receive(sock)
        if not data:
            raise HandshakeError("the client closed the connection in the middle of the handshake")


async def _first_bytes(sock: socket.socket) -> bytes:
    data = await _receive(sock)
    if not data:
        raise HandshakeError("the client closed the connection", PROBE)
    if data[0] != _HANDSHAKE_RECORD:
        raise HandshakeError(f"{_name(data)} came to a port that speaks TLS", "no TLS")
    return data


async def _receive(sock: socket.socket) -> bytes:
    while True:
        await trio.lowlevel.wait_readable(sock)
        try:
            return sock.recv(RECORD)
        except BlockingIOError:  # it only seemed so
            pass


async def _send_all(sock: socket.socket, data: bytes) -> None:
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)


def _name(data: bytes) -> str:
    try:
        if check_request_head(data, 0, len(data), _LARGEST):
            return "a Kafka client without TLS (security.protocol must be SSL or SASL_SSL there)"
    except MalformedFrame:
        pass
    return looks_like(data[:64])


def _explain(error: ssl.SSLError) -> str:
    """In words that an operator of Kafka understands, and of bounded variety."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client sent no certificate, and ssl.client.auth is required"
    if reason == "UNSUPPORTED_PROTOCOL":
        return "the client speaks no version of TLS that is in ssl.enabled.protocols"
    text = reason.lower().replace("_", " ") or "it does not speak TLS as it should"
    if " alert " in text:
        alert = text.partition(" alert ")[2]
        return (
            f"the client refuses: {alert} (it must trust the CA of the gateway's certificate, and find its name there)"
        )
    return text


# --- in a link --------------------------------------------------------------------------------------------------------


class TlsInbound(Inbound):
    """The read side of a socket that speaks TLS."""

    __slots__ = ("_tls",)

    def __init__(self, tls: Tls, shared: Shared, account: Account, wake: Callable[[], None]) -> None:
        super().__init__(shared, account, wake, is_client=True)
        self._tls = tls

    def receive(self, sock: socket.socket) -> int:
        n = super().receive(cast("socket.socket", self._tls))
        self.drained = self._tls.drained
        return n

    def recv(self, sock: socket.socket, size: int) -> bytes:
        return self._tls.recv(size)


class TlsOutbound(Outbound):
    """What such a socket didn't take at once, encrypted."""

    __slots__ = ("_tls",)

    def __init__(self, tls: Tls, account: Account) -> None:
        super().__init__(account)
        self._tls = tls

    def send(self, sock: socket.socket, parts: list[Any], large: Large | None) -> Large | None:
        encrypted = self._tls.encrypt(parts)
        parts.clear()
        super().send(sock, encrypted, None)
        return large

    def speak(self, sock: socket.socket) -> None:
        """Send what TLS itself has to say.

        Raises:
            OSError: the connection is broken.
        """
        super().send(sock, [self._tls.take()], None)


class TlsLink(Link):
    """A link whose client speaks TLS; the handshake is over."""

    __slots__ = ("_outbound", "_tls")

    def __init__(
        self,
        reactor: Reactor[Link],
        session: Session,
        client: socket.socket,
        upstream: socket.socket,
        peer: str,
        tls: Tls,
    ) -> None:
        super().__init__(reactor, session, client, upstream, peer)
        self._tls = tls
        self.client.inbound = TlsInbound(tls, reactor.shared, session.account, self._wake)
        self.client.outbound = self._outbound = TlsOutbound(tls, session.account)

    def open(self) -> None:
        super().open()
        if self._tls.ready:
            self.reactor.call_soon(self)

    def on_ready(self, now: float) -> None:
        if self._tls.ready and self.client.mask & IN and not self.closed:
            self.on_client(IN, now)
        else:
            super().on_ready(now)

    def _go_on(self, now: float) -> None:
        super()._go_on(now)
        tls = self._tls
        if tls.owes and not self.closed:
            self._speak()
        if tls.ready and self.client.mask & IN and not self.closed:
            self.reactor.call_soon(self)

    def _speak(self) -> None:
        try:
            self._outbound.speak(self.client.sock)
        except OSError:
            self.close("disconnects_client")
        else:
            self._update()

    def close(self, cause: str) -> None:
        if self.closed:
            return
        if self._tls.fault:
            self._log.malformed(f"TLS: {self._tls.fault}")
            cause = "disconnects_malformed"
        last = b"" if self.client.is_stuck else self._tls.end()  # behind half a record it would be no alert but damage
        if last:
            try:
                self.client.sock.send(last)
            except OSError:  # it is gone, or takes nothing
                pass
        super().close(cause)
