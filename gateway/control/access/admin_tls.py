# TLS of the admin server: the handshake of a new connection, with certificates that are read again once their files
# have changed; connections that are there keep theirs. Knows no HTTP but for one answer: a client that speaks plain
# HTTP here gets an error that says so.

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Final

import trio

from gateway.tls.certificates import PEER_CLOSED_ERRORS, ListenerCertificates, ListenerTls, make_listener_context
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.control")

HANDSHAKE_TIMEOUT_S: Final = 10.0
LINGER_S: Final = 1.0
PROTOCOLS: Final = ("http/1.1",)
_TLS_RECORD: Final = b"\x16"  # the type of a ClientHello's
_HINT: Final = b'{"title": "Bad Request", "status": 400, "detail": "here is TLS: use https://"}\n'
_PLAIN_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_HINT), _HINT)
)


def make_admin_context(tls: ListenerTls) -> ssl.SSLContext:
    """
    Raises:
        CertificateError: these files can't be used.
    """
    context = make_listener_context(tls)
    context.set_alpn_protocols(list(PROTOCOLS))
    return context


class AdminTls:
    """`count` is called with the reason (failures.REASONS) for each connection that fails."""

    def __init__(self, tls: ListenerTls, count: Callable[[str], None] = lambda reason: None) -> None:
        self._certificates = ListenerCertificates(tls, _log_at_level, "admin", make_admin_context)
        self._count_failure = count

    async def secure_stream(self, stream: trio.SocketStream) -> trio.SSLStream[trio.SocketStream] | None:
        """The TLS stream after its handshake. None: the handshake failed; the connection is closed, and the failure
        counted.
        """
        context = self._certificates.get_context(trio.current_time())
        try:
            if context is not None:
                with trio.fail_after(HANDSHAKE_TIMEOUT_S):
                    return await self._do_handshake(stream, context)
        except trio.TooSlowError:
            self._record_failure(stream, f"not done within {HANDSHAKE_TIMEOUT_S:g} s")
        except (OSError, trio.BrokenResourceError):
            pass  # gone
        await trio.aclose_forcefully(stream)
        return None

    async def _do_handshake(
        self, stream: trio.SocketStream, context: ssl.SSLContext
    ) -> trio.SSLStream[trio.SocketStream] | None:
        first = await stream.socket.recv(1, trio.socket.MSG_PEEK)
        if first and first != _TLS_RECORD:
            self._record_failure(stream, "the client speaks no TLS")
            await _send_and_drain(stream, _PLAIN_ANSWER)
            return None
        secured = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as error:
            if why := _failure_reason(error.__cause__):
                self._record_failure(stream, why)
                # trio keeps the alert to itself, and clients would not know why.
                alert = getattr(secured, "_outgoing", None)
                await _send_and_drain(stream, alert.read() if alert is not None else b"")
            raise
        return secured

    def _record_failure(self, stream: trio.SocketStream, why: str) -> None:
        self._count_failure("tls")
        try:
            peer = stream.socket.getpeername()[0]
        except OSError:
            peer = "a client that is gone"
        fields = {"kind": "admin-refused", "reason": "tls", "peer": peer}
        log.warning("admin: %s: TLS handshake failed: %s", peer, one_line(why, ERROR_CHARS), extra=fields)


async def _send_and_drain(stream: trio.SocketStream, word: bytes) -> None:
    """Send the bytes, and wait until the client has closed: a socket that is closed with unread bytes is reset, and the
    client may lose the message.
    """
    with trio.move_on_after(LINGER_S):
        await stream.send_all(word)
        await stream.send_eof()
        while await stream.receive_some():
            pass


def _failure_reason(error: BaseException | None) -> str:
    """The reason of a failed handshake; "": the client went away, as port scanners and health checks of load balancers
    do.
    """
    if not isinstance(error, ssl.SSLError) or isinstance(error, PEER_CLOSED_ERRORS):
        return ""
    reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or str(error)
    return str(reason).lower().replace("_", " ")


def _log_at_level(level: str, text: str) -> None:
    log.log(logging.getLevelNamesMapping()[level.upper()], "%s", text)
