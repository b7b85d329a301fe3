# TLS in memory (ssl.MemoryBIO) between a socket and its link, with a client or with a broker: epoll goes on to tell of
# sockets and of nothing else.
#
# The handshake is a task's (handshakes.py). From then on `TlsConnection` stands where a link's read and write sides,
# and its shortcut, see the socket (tls_links.py, shortcut.pyx). Writing never blocks: what the socket doesn't take is
# kept as ciphertext, as a plain link keeps plaintext. (OpenSSL on the socket itself would have to be given the very
# same bytes again.) Plain connections have nothing of all this. Knows no Kafka.
#
# Compiled where a C compiler is (setup.py): tls.pxd has its types in C.

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, cast

from gateway.data.sockets import calls
from gateway.tls.server_names import UNKNOWN_SERVER_NAME, ServerNames, UnknownServerName
from gateway.tls.tls_reasons import BROKEN_RECORD, BROKEN_RECORD_REASON, openssl_reason

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

MAX_RECORD_PLAINTEXT = 16_384  # of one record
# More than four of the largest records. So much is fed to OpenSSL at once: its buffers never become smaller again.
MAX_FEED_BYTES = 68 * 1024
MAX_ENCRYPT_BYTES = 4 * MAX_RECORD_PLAINTEXT  # likewise what it encrypts at once
# Records without data that a peer may send beyond one in a thousand: with a new key each (TLS 1.3) they cost a tenth
# of a millisecond, and a read has room for ten thousand. They are handled before they are counted.
MAX_EMPTY_RECORDS = 64
_DATA_RECORD_WEIGHT = 1.001  # what a record with data makes up for: itself, and a thousandth of one without
_HEADER_BYTES = 5  # bytes of a record: type, version, and the length of the rest


class HandshakeError(Exception):
    """The TLS handshake failed; the text says why.

    Attributes:
        kind: the reason in words of bounded variety, whatever clients send.
    """

    def __init__(self, why: str, kind: str = "") -> None:
        super().__init__(why)
        self.kind = kind or why


class _SniObject(ssl.SSLObject):
    """`requested_broker`, `refusal`: what the client's server name led to."""

    requested_broker: int | None = None
    refusal: UnknownServerName | None = None


def require_server_name(context: ssl.SSLContext, names: ServerNames) -> None:
    """Make the context accept only clients that send one of these server names; others get the alert unrecognized_name
    (RFC 6066, 3).
    """

    def admit(connection: Any, name: str | None, _: ssl.SSLContext) -> int | None:
        try:
            connection.requested_broker = names.find_broker(name)
        except UnknownServerName as error:
            connection.refusal = error.with_traceback(None)  # which would keep the connection
            return cast("int", ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
        return None

    context.sslobject_class = _SniObject
    context.sni_callback = admit


class TlsConnection:
    """One connection's TLS. `scratch` is where ciphertext is received; all connections may share one.

    Attributes:
        has_plaintext: `recv_into` has more to give, though no event announces it.
        is_drained: the last read took all there was.
        fault: the peer's breach of TLS's rules, in words; "" while there is none.
    """

    __slots__ = (
        "_empty_records",
        "_ended",
        "_error",
        "_explain",
        "_header",
        "_incoming",
        "_is_socket_drained",
        "_outgoing",
        "_record_rest",
        "_scratch",
        "_sock",
        "_ssl_object",
        "fault",
        "has_plaintext",
        "is_drained",
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
        self._ssl_object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=host is None, server_hostname=host, session=session
        )
        self._explain = explain or explain_client_error
        self._sock = sock
        self._scratch = scratch
        self._ended = False  # the peer has said that nothing more comes, or closed
        self._error: ssl.SSLError | None = None  # behind what was decrypted before
        self._is_socket_drained = True  # the socket had nothing left when it was last read
        self._empty_records: float = 0  # records that came and had no data, the handshake's among them
        self._header = b""  # the beginning of a record's that is not whole yet
        self._record_rest = 0  # bytes of a record that are still to come
        self.has_plaintext = False
        self.is_drained = True
        self.fault = ""

    @property
    def session(self) -> ssl.SSLSession | None:
        """The session that a later connection to the same broker may resume. In TLS 1.3 a broker issues it after the
        handshake.
        """
        session = self._ssl_object.session
        if session is None or not (session.has_ticket or (session.id and self._ssl_object.version() != "TLSv1.3")):
            return None
        return session

    @property
    def is_resumed(self) -> bool:
        """Whether the handshake resumed an earlier session."""
        return bool(self._ssl_object.session_reused)

    # --- the handshake ------------------------------------------------------------------------------------------------

    def continue_handshake(self, data: bytes) -> bool:
        """Process the peer's bytes; returns whether the handshake is complete. `pop_output` has the bytes to send.

        Raises:
            HandshakeError: it failed; there is still an alert to send.
        """
        came, at = bytearray(data), 0
        while at < len(came):
            at = self._split_records(came, at, len(came))
        self._incoming.write(data)
        try:
            self._ssl_object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            refusal = getattr(self._ssl_object, "refusal", None)
            if refusal is not None:
                raise HandshakeError(str(refusal), refusal.reason) from error
            if error.reason == "CALLBACK_FAILED":  # Python could not read the name, and made no call
                raise HandshakeError("the server name (SNI) is not ASCII", UNKNOWN_SERVER_NAME) from error
            raise HandshakeError(self._explain(error)) from error
        self.has_plaintext = (
            self._incoming.pending > 0
        )  # its last word may have data behind it: a client's first requests
        return True

    @property
    def peer_certificate(self) -> bytes | None:
        """The client's verified certificate, X.509 in DER; None: it sent none, or was not asked for one."""
        return self._ssl_object.getpeercert(binary_form=True)

    @property
    def requested_broker(self) -> int | None:
        """The node id in the server name, after the handshake on a listener that goes by names; None: any broker."""
        return self._ssl_object.requested_broker if isinstance(self._ssl_object, _SniObject) else None

    # --- reading ------------------------------------------------------------------------------------------------------

    def recv_into(self, view: memoryview) -> int:
        """Like a non-blocking socket's: the number of bytes written into `view`, 0 at the end.

        Raises:
            BlockingIOError: there are none yet.
            OSError: the connection is broken, or (ssl.SSLError) the peer violated TLS.
        """
        if self._ended or self._error is not None:
            self.has_plaintext = False
            self._check_ended()
            return 0
        if self.has_plaintext:
            n = self._decrypt_into(view)
            self.is_drained = self._is_socket_drained and not self.has_plaintext
            if n or self._check_ended():
                return n
        wanted = min(max(len(view), MAX_FEED_BYTES), len(self._scratch))
        try:
            got = self._sock.recv_into(self._scratch, wanted)
        except BlockingIOError:
            self.is_drained = self._is_socket_drained = True
            raise
        if not got:
            self._ended = True
            return 0
        filled = self._decrypt_received(got, view)
        self._is_socket_drained = got < wanted
        self.is_drained = self._is_socket_drained and not self.has_plaintext
        if filled or self._check_ended():
            return filled
        raise BlockingIOError

    def is_socket_empty(self) -> bool:
        """Whether there is nothing to read, not even an end or an error."""
        return not self.has_plaintext and calls.is_socket_empty(self._sock.fileno())

    def recv(self, size: int) -> bytes:
        """Like a non-blocking socket's."""
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def _decrypt_received(self, got: int, view: memoryview) -> int:
        """Decrypt the received bytes; those that don't fit into `view` are less than two records."""
        scratch, write = self._scratch, self._incoming.write
        data: Any = scratch.obj
        filled = at = 0
        while at < got and not (self._ended or self._error):
            to = self._split_records(data, at, got)
            write(scratch[at:to])
            at = to
            filled += self._decrypt_into(view[filled:] if filled else view)
        if self._ended or self._error:
            self.has_plaintext = filled > 0  # the end is read next, though it may have come in a piece of its own
        return filled

    def _split_records(self, data: bytearray, at: int, end: int) -> int:
        """Count records in data[at:end], as many as OpenSSL may be given at once, and say where these end: behind a
        whole one if more follows, for to ask OpenSSL for the rest of one that isn't there costs an exception.
        """
        follows = end - at > MAX_FEED_BYTES
        stop = at + MAX_FEED_BYTES if follows else end
        whole = at
        pos = at + self._record_rest
        records = 0
        if self._header:
            pos = at + _HEADER_BYTES - len(self._header)
            self._header += bytes(data[at : min(pos, stop)])
            if pos > stop:
                return stop
            pos += self._header[3] << 8 | self._header[4]
            self._header = b""
            records = 1
        while pos + _HEADER_BYTES <= stop:
            whole = pos
            pos += _HEADER_BYTES + (data[pos + 3] << 8 | data[pos + 4])
            records += 1
            if records == MAX_EMPTY_RECORDS:
                stop = min(pos, stop)
        if follows and stop < pos and at < whole:
            stop = pos = whole
            records -= 1
        elif follows and at < pos < stop:
            stop = pos
        self._empty_records += records
        self._record_rest = pos - stop
        if pos < stop:
            self._record_rest, self._header = 0, bytes(data[pos:stop])
        return stop

    def _decrypt_into(self, view: memoryview) -> int:
        incoming = self._incoming
        read: Any = self._ssl_object.read  # with a buffer, how many bytes it has written there
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
        self._empty_records -= records * _DATA_RECORD_WEIGHT
        if self._empty_records < 0:
            self._empty_records = 0
        elif (
            self._empty_records > MAX_EMPTY_RECORDS and filled < size and self._error is None
        ):  # all that came is handled
            self._error = ssl.SSLError("too many records without data")
            self.fault = "too many records without data, such as new keys"
        if self._ended or self._error is not None:
            self.has_plaintext = filled > 0  # the end is read next
        else:
            self.has_plaintext = filled == size and (incoming.pending > 0 or self._ssl_object.pending() > 0)
        return filled

    def _check_ended(self) -> bool:
        """Whether the peer has ended the connection.

        Raises:
            ssl.SSLError: it violated TLS.
        """
        if self._error is not None:
            self.fault = self.fault or self._explain(self._error)
            raise ssl.SSLError(self.fault)  # not that one: it would keep the frames that it came through
        return self._ended

    # --- writing ------------------------------------------------------------------------------------------------------

    @property
    def has_pending_output(self) -> bool:
        """Whether TLS itself has something to send, such as a new key."""
        return self._outgoing.pending > 0

    def pop_output(self) -> bytes:
        """The bytes to send to the peer."""
        return self._outgoing.read()

    def encrypt(self, parts: list[Any]) -> list[Any]:
        """All of `parts`, encrypted.

        Raises:
            ssl.SSLError: the connection can't be written to any more.
        """
        write, read = self._ssl_object.write, self._outgoing.read
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(data) <= MAX_ENCRYPT_BYTES:
            write(data)
            return [read()]
        out = []
        view = memoryview(data)
        for at in range(0, len(view), MAX_ENCRYPT_BYTES):
            write(view[at : at + MAX_ENCRYPT_BYTES])
            out.append(read())
        return out

    @property
    def is_input_empty(self) -> bool:
        """Whether nothing that arrived is left to be read."""
        return not self._incoming.pending and not self._ssl_object.pending()

    def close_notify(self) -> bytes:
        """The last bytes to send: the closing alert, or the one that names the fault. Reading may go on afterwards if
        `is_input_empty` was true before: OpenSSL looks for the peer's alert at once, and takes data in its place for an
        error.
        """
        try:
            self._ssl_object.unwrap()
        except ssl.SSLError:  # the peer has not said so yet, or the connection is broken
            pass
        return self.pop_output()


def explain_client_error(error: ssl.SSLError) -> str:
    """A client's fault, in words that an operator of Kafka understands, and of bounded variety."""
    reason = openssl_reason(error)
    if reason == BROKEN_RECORD:
        return BROKEN_RECORD_REASON
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client sent no certificate, and ssl.client.auth is required"
    if reason == "UNSUPPORTED_PROTOCOL":
        return "the client speaks no version of TLS that is in ssl.enabled.protocols"
    text = reason.lower().replace("_", " ") or "it does not speak TLS as it should"
    if " alert " in text:
        alert = text.partition(" alert ")[2]
        remedy = "it must trust the CA of the gateway's certificate, and find its name there"
        if "expired" in alert:
            remedy = "the gateway's certificate or its CA's, or the client's clock is wrong"
        return f"the client refuses: {alert} ({remedy})"
    return text
