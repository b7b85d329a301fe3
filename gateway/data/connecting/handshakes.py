# TLS handshakes, with clients and with brokers: tasks that take turns, as each step takes long.
#
# Knows no Kafka but to say what else came in place of a handshake.

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from gateway.data.sockets.tls import MAX_FEED_BYTES, HandshakeError
from gateway.tls.broker_tls import CLOSED, CLOSED_AT_ONCE, NO_TLS
from protocol.describe import guess_protocol
from protocol.framing import check_request_head
from protocol.wire import MalformedFrame

if TYPE_CHECKING:
    import socket

    from gateway.data.sockets.tls import TlsConnection

HANDSHAKE_TIMEOUT_S = 30.0  # clients give a connection up after as long (librdkafka, Java) or sooner
SCRATCH_BYTES = 512 * 1024  # of ciphertext in one read, for large frames
PROBE = "probe"  # of HandshakeError: a connection without a word, as health checks make them
_HANDSHAKE_RECORD, _ALERT_RECORD = 0x16, 0x15
_LARGEST = 2**31 - 1


class TlsWorkspace:
    """State that all TLS connections of a worker share.

    Attributes:
        scratch: the buffer that receives ciphertext.
        handshake_lock: its holder may make one step of a handshake.
    """

    __slots__ = ("handshake_lock", "scratch")

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.handshake_lock = trio.Lock()


async def perform_server_handshake(tls: TlsConnection, sock: socket.socket, turn: trio.Lock) -> None:
    """Perform the server's side of a TLS handshake on a non-blocking socket. The caller sets the time limit.

    A handshake's cryptography takes one or two milliseconds, in which the worker relays nothing. So the holder of
    `turn` makes one step in each of trio's scheduler rounds, and the reactor runs between steps.

    Raises:
        HandshakeError, OSError: the handshake failed.
    """
    data = await _receive_first_bytes(sock)
    while not await _handshake_step(tls, sock, data, turn):
        data = await _receive_bytes(sock)
        if not data:
            raise HandshakeError("the client closed the connection in the middle of the handshake")


async def perform_client_handshake(
    tls: TlsConnection, sock: socket.socket, turn: trio.Lock, scope: trio.CancelScope
) -> None:
    """Perform the client's side of a TLS handshake with a broker.

    `scope` carries its time limit. Time that passes before it is this connection's turn doesn't count: a broker is not
    late because many connections begin at once.

    Raises:
        HandshakeError, OSError: the handshake failed.
    """
    data = b""
    heard = False
    try:
        while not await _handshake_step(tls, sock, data, turn, scope):
            data = await _receive_bytes(sock)
            if not data:
                raise HandshakeError(CLOSED if heard else CLOSED_AT_ONCE)
            if not heard and data[0] not in (_HANDSHAKE_RECORD, _ALERT_RECORD):
                raise HandshakeError(f"{NO_TLS}: received {guess_protocol(data[:64])}")
            heard = True
    except ConnectionError as error:  # it closed with bytes of ours unread
        raise HandshakeError(CLOSED if heard else CLOSED_AT_ONCE) from error


async def _handshake_step(
    tls: TlsConnection, sock: socket.socket, data: bytes, turn: trio.Lock, scope: trio.CancelScope | None = None
) -> bool:
    refusal = None
    done = False
    left = 0.0
    if scope is not None:
        left, scope.deadline = scope.deadline - trio.current_time(), float("inf")
    async with turn:
        try:
            done = tls.continue_handshake(data)
        except HandshakeError as error:
            refusal = error
        await trio.lowlevel.checkpoint()
    if scope is not None:
        scope.deadline = trio.current_time() + left
    if refusal is None:
        await _send_all(sock, tls.pop_output())
        return done
    try:
        await _send_all(sock, tls.pop_output())
    except OSError:  # the peer has gone, without waiting for the alert: the reason is reported all the same
        pass
    try:
        raise refusal
    finally:
        refusal = None  # the error knows this frame


async def _receive_first_bytes(sock: socket.socket) -> bytes:
    data = await _receive_bytes(sock)
    if not data:
        raise HandshakeError("the client closed the connection", PROBE)
    if data[0] != _HANDSHAKE_RECORD:
        raise HandshakeError(f"{_describe_peer(data)} arrived at a TLS port", "no TLS")
    return data


async def _receive_bytes(sock: socket.socket) -> bytes:
    while True:
        await trio.lowlevel.wait_readable(sock)
        try:
            return sock.recv(MAX_FEED_BYTES)
        except BlockingIOError:  # it only seemed so
            pass


async def _send_all(sock: socket.socket, data: bytes) -> None:
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)


def _describe_peer(data: bytes) -> str:
    try:
        if check_request_head(data, 0, len(data), _LARGEST):
            return "a Kafka client without TLS (security.protocol must be SSL or SASL_SSL there)"
    except MalformedFrame:
        pass
    return guess_protocol(data[:64])
