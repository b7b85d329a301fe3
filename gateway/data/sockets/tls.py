# TLS in memory (ssl.MemoryBIO) between a socket and its link, with a client or with a broker: epoll goes on to tell of
# sockets and of nothing else.
#
# The handshake is a task's (handshakes.py). From then on `Tls` stands where a link's read and write sides, and its
# shortcut, see the socket (tls_links.py, shortcut.pyx). Writing never blocks: what the socket doesn't take is kept as
# ciphertext, as a plain link keeps plaintext. (OpenSSL on the socket itself would have to be given the very same bytes
# again.) Plain connections have nothing of all this. Knows no Kafka.
#
# Compiled where a C compiler is (setup.py): tls.pxd has its types in C.

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, cast

from gateway.data.sockets import calls
from gateway.tls.server_names import UNKNOWN, ServerNames, UnknownName
from gateway.tls.tls_reasons import BROKEN_RECORD, BROKEN_RECORD_TEXT, reason_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

PLAINTEXT = 16_384  # of one record
# More than four of the largest records. So much is fed to OpenSSL at once: its buffers never become smaller again.
RECORD = 68 * 1024
WRITTEN = 4 * PLAINTEXT  # likewise what it encrypts at once
# Records without data that a peer may send beyond one in a thousand: with a new key each (TLS 1.3) they cost a tenth
# of a millisecond, and a read has room for ten thousand. So many are handled before they are counted.
BESIDE = 64
_DATA_RECORD = 1.001  # what a record with data makes up for: itself, and a thousandth of one without
_HEADER = 5  # bytes of a record: type, version, and the length of the rest


class HandshakeError(Exception):
    """No TLS with this peer; the text says why.

    Attributes:
        kind: the same in words of bounded variety, whatever clients send.
    """

    def __init__(self, why: str, kind: str = "") -> None:
        super().__init__(why)
        self.kind = kind or why


class _Named(ssl.SSLObject):
    """`wanted`, `refusal`: what came of the client's server name."""

    wanted: int | None = None
    refusal: UnknownName | None = None


def go_by_name(context: ssl.SSLContext, names: ServerNames) -> None:
    """Have that context take only clients that want a server name of these; the others are sent the alert
    unrecognized_name (RFC 6066, 3).
    """

    def admit(connection: Any, name: str | None, _: ssl.SSLContext) -> int | None:
        try:
            connection.wanted = names.find(name)
        except UnknownName as error:
            connection.refusal = error.with_traceback(None)  # which would keep the connection
            return cast("int", ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
        return None

    context.sslobject_class = _Named
    context.sni_callback = admit


class Tls:
    """One connection's TLS. `scratch` is where ciphertext is received; all connections may share one.

    Attributes:
        ready: `recv_into` has more to give, though no event will tell so.
        drained: the last read took all there was.
        fault: the peer's breach of TLS's rules, in words; "" while there is none.
    """

    __slots__ = (
        "_beside",
        "_emptied",
        "_ended",
        "_error",
        "_explain",
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

    def __init__(
        self,
        context: ssl.SSLContext,
        sock: socket.socket,
        scratch: memoryview,
        *,
        host: str | None = None,
        session: ssl.SSLSession | None = None,
        explain: Callable[[ssl.SSLError], str] | None = None,
    ) -> None:
        """With a client; or, where `host` is given, with the broker of that name, going on with a `session` of the same
        context and the same broker. `explain` puts errors into words.
        """
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=host is None, server_hostname=host, session=session
        )
        self._explain = explain or explain_client
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

    @property
    def session(self) -> ssl.SSLSession | None:
        """One that a later connection to the same broker may go on with. A broker gives it behind the handshake, in TLS
        1.3.
        """
        session = self._object.session
        if session is None or not (session.has_ticket or (session.id and self._object.version() != "TLSv1.3")):
            return None
        return session

    @property
    def is_resumed(self) -> bool:
        """Whether the handshake went on with an earlier session."""
        return bool(self._object.session_reused)

    # --- the handshake ------------------------------------------------------------------------------------------------

    def shake_hands(self, data: bytes) -> bool:
        """Go on with the peer's bytes; whether the handshake is complete. `take` has the bytes to be sent.

        Raises:
            HandshakeError: there is still an alert to be sent.
        """
        came, at = bytearray(data), 0
        while at < len(came):
            at = self._cut(came, at, len(came))
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            refusal = getattr(self._object, "refusal", None)
            if refusal is not None:
                raise HandshakeError(str(refusal), refusal.reason) from error
            if error.reason == "CALLBACK_FAILED":  # Python could not read the name, and called nobody
                raise HandshakeError("the server name (SNI) is not ASCII", UNKNOWN) from error
            raise HandshakeError(self._explain(error)) from error
        self.ready = self._incoming.pending > 0  # its last word may have data behind it: a client's first requests
        return True

    @property
    def certificate(self) -> bytes | None:
        """The client's, verified, as X.509 in DER; None: it has sent none, or was asked for none."""
        return self._object.getpeercert(binary_form=True)

    @property
    def wanted(self) -> int | None:
        """The node id in the server name, behind the handshake on a listener that goes by names; None: any broker."""
        return self._object.wanted if isinstance(self._object, _Named) else None

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
        wanted = min(max(len(view), RECORD), len(self._scratch))
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

    def is_empty(self) -> bool:
        """Whether there is nothing to be read, neither an end nor an error."""
        return not self.ready and calls.is_empty(self._sock.fileno())

    def recv(self, size: int) -> bytes:
        """As a non-blocking socket's."""
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def _feed(self, got: int, view: memoryview) -> int:
        """Decrypt the received bytes; those that find no room in `view` are less than two records."""
        scratch, write = self._scratch, self._incoming.write
        data: Any = scratch.obj
        filled = at = 0
        while at < got and not (self._ended or self._error):
            to = self._cut(data, at, got)
            write(scratch[at:to])
            at = to
            filled += self._decrypt(view[filled:] if filled else view)
        if self._ended or self._error:
            self.ready = filled > 0  # the end is read next, though it may have come in a piece of its own
        return filled

    def _cut(self, data: bytearray, at: int, end: int) -> int:
        """Count records in data[at:end], as many as OpenSSL may be given at once, and say where these end: behind a
        whole one if more follows, for to ask OpenSSL for the rest of one that isn't there costs an exception.
        """
        follows = end - at > RECORD
        stop = at + RECORD if follows else end
        whole = at
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
            whole = pos
            pos += _HEADER + (data[pos + 3] << 8 | data[pos + 4])
            records += 1
            if records == BESIDE:
                stop = min(pos, stop)
        if follows and stop < pos and at < whole:
            stop = pos = whole
            records -= 1
        elif follows and at < pos < stop:
            stop = pos
        self._beside += records
        self._skip = pos - stop
        if pos < stop:
            self._skip, self._header = 0, bytes(data[pos:stop])
        return stop

    def _decrypt(self, view: memoryview) -> int:
        incoming = self._incoming
        read: Any = self._object.read  # with a buffer, how many bytes it has written there
        size, filled, records = len(view), 0, 0
        try:
            while filled < size and not self._ended:
                n = read(size - filled, view[filled:] if filled else view)
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
            self._error = error.with_traceback(None)  # which would keep `view`, and its buffer from growing
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
            self.fault = self.fault or self._explain(self._error)
            raise ssl.SSLError(self.fault)  # not that one: it would keep the frames that it came through
        return self._ended

    # --- writing ------------------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether TLS itself has something to say, such as a new key."""
        return self._outgoing.pending > 0

    def take(self) -> bytes:
        """The bytes to be sent to the peer."""
        return self._outgoing.read()

    def encrypt(self, parts: list[Any]) -> list[Any]:
        """All of `parts` as it is to be sent.

        Raises:
            ssl.SSLError: the connection can't be written to any more.
        """
        write, read = self._object.write, self._outgoing.read
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(data) <= WRITTEN:
            write(data)
            return [read()]
        out = []
        view = memoryview(data)
        for at in range(0, len(view), WRITTEN):
            write(view[at : at + WRITTEN])
            out.append(read())
        return out

    @property
    def is_clear(self) -> bool:
        """Whether nothing that came is left to be read."""
        return not self._incoming.pending and not self._object.pending()

    def end(self) -> bytes:
        """The last bytes to be sent: the alert that closes, or the one that tells the fault.

        Reading may go on after it if it `is_clear` before: OpenSSL looks for the peer's alert at once, and takes data
        in its place for an error.
        """
        try:
            self._object.unwrap()
        except ssl.SSLError:  # the peer has not said so yet, or the connection is broken
            pass
        return self.take()


def explain_client(error: ssl.SSLError) -> str:
    """A client's fault, in words that an operator of Kafka understands, and of bounded variety."""
    reason = reason_of(error)
    if reason == BROKEN_RECORD:
        return BROKEN_RECORD_TEXT
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
