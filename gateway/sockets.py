# What both processes do to a client's socket, and how they tell where it comes from.

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from typing import Final

_AT_ONCE: Final = struct.pack("ii", 1, 0)  # struct linger: nothing is sent any more, the other side sees a reset


def network_of(peer: str) -> str:
    """What connections are counted by, of a peer "address:port": its address, of IPv6 the network that one customer is
    given (/64).
    """
    host = peer.rpartition(":")[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


def reset(client: socket.socket) -> None:
    """Close a connection on which nothing was answered.

    By a reset, which is as near as one can come to a connection that is refused, what a dead broker's clients see. If
    it merely ended before the first answer some would suspect that TLS is missing, and give records up (franz-go).
    """
    with contextlib.suppress(OSError):  # it has gone already
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    client.close()
