# Options that both processes set on a client's socket, how they tell its origin, and addresses as text.

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

Networks: TypeAlias = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]
CLIENT_GONE: Final = frozenset({errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO})  # accepting: the next one is there
_LINGER_NONE: Final = struct.pack("ii", 1, 0)  # struct linger: nothing is sent any more, the other side sees a reset


def address_text(host: str, port: int | str) -> str:
    """host:port, with an IPv6 literal in brackets (RFC 3986): without, its last part would be read as the port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def broker_text(node_id: int, address: str = "") -> str:
    """How messages name a broker, or, where `node_id` is -1, a bootstrap server: "broker 1 (kafka:9092)"."""
    name = f"broker {node_id}" if node_id >= 0 else "bootstrap server"
    return f"{name} ({address})" if address else name


def host_of_peer(peer: str) -> str:
    """Without the port and without brackets."""
    return peer.rpartition(":")[0].strip("[]")


def network_of_peer(peer: str) -> str:
    """The key that connections are counted by, of a peer "address:port": its address, of IPv6 the network that one
    customer is given (/64).
    """
    host = host_of_peer(peer)
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


def is_in_networks(peer: str, networks: Networks) -> bool:
    """Whether a peer "address:port" is in one of these networks; an IPv4 address that is mapped to IPv6 counts as
    itself.
    """
    if not networks:
        return False
    address = ipaddress.ip_address(host_of_peer(peer).partition("%")[0])
    if address.version == 6 and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


def reset_connection(client: socket.socket) -> None:
    """Close a connection on which nothing was answered, as `reset_on_close` says."""
    reset_on_close(client)
    client.close()


def reset_on_close(client: socket.socket) -> None:
    """When a connection on which nothing was answered is closed, its client is to see a reset.

    Which is as near as one can come to a refused connection, as a dead broker's clients see it. If it merely ended
    before the first answer some clients would suspect that TLS is missing, and give records up (franz-go).
    """
    with contextlib.suppress(OSError):  # it has gone already
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
