# The head of a connection's first request. Only then is a broker dialled, so that who says nothing, or nothing that
# Kafka knows, costs a few kilobytes here and no broker anything.

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from gateway.data.control_requests.authentication import BEFORE_AUTHENTICATION
from gateway.data.shared.errors import UnauthenticatedRequest
from protocol import api
from protocol.framing import REQUEST_HEAD, check_request_head

if TYPE_CHECKING:
    import socket

REQUEST_HEAD_BYTES = REQUEST_HEAD.size  # bytes of a request that identify it


class ByteSource(Protocol):
    """A non-blocking socket, or TLS on one."""

    def recv(self, size: int, /) -> bytes: ...


async def receive_head(source: ByteSource, sock: socket.socket, max_bytes: int, *, wants_sasl: bool) -> bytes:
    """The first REQUEST_HEAD_BYTES bytes of the first request; fewer if the client closed before.

    Raises:
        MalformedFrame: these are not the first bytes of a Kafka client.
        OSError: the connection is broken.
    """
    head = b""
    while len(head) < REQUEST_HEAD_BYTES:
        try:
            data = source.recv(REQUEST_HEAD_BYTES - len(head))
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
            continue
        if not data:
            return head
        head += data
        check_request_head(head, 0, len(head), max_bytes)
    key = REQUEST_HEAD.unpack(head)[1]
    if wants_sasl and key not in BEFORE_AUTHENTICATION:
        raise UnauthenticatedRequest(f"{api.API_NAMES.get(key, key)} before authentication")
    return head
