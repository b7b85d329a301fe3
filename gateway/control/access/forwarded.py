# The address of a client behind reverse proxies, such as an ingress: from X-Forwarded-For, to which each proxy appends
# the address that it was connected from. A client may send such a field too, so only what a listed proxy has appended
# is believed: read from the right, the first address that is no proxy's is the client's. Pure.

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from gateway.system.sockets import Networks

MAX_PROXIES: Final = 16  # on the way, one behind the other
_FIELD: Final = b"x-forwarded-for"
# Some proxies append the port; IPv6 with a port has brackets.
_ENTRY: Final = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+)(?::[0-9]{1,5})?|([0-9A-Fa-f:.]+)")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def client_address(peer: str, headers: Iterable[tuple[bytes, bytes]], proxies: Networks) -> str:
    """The client's address, without a port.

    Args:
        peer: the address at the other end of the connection, without a port.
        headers: names are in lower case. A field that is there several times is one list (RFC 9110, 5.3).
        proxies: whose fields are believed.

    Without a field that can be read, the last proxy on the way that is known.
    """
    return _find_client(peer, headers, proxies)[0]


def hides_client(peer: str, headers: Iterable[tuple[bytes, bytes]], proxies: Networks) -> bool:
    """Whether a proxy has a client that is not known, as it wrote no address of it (`unknown`, one with a zone): then
    what `client_address` gives is only the proxy's. Arguments: as there.
    """
    return _find_client(peer, headers, proxies)[1]


def _find_client(peer: str, headers: Iterable[tuple[bytes, bytes]], proxies: Networks) -> tuple[str, bool]:
    known = _parse_address(peer) if proxies else None
    if known is None or not _is_in(known, proxies):
        return peer, False
    fields = b",".join(value for name, value in headers if name == _FIELD).decode("latin-1")
    for entry in reversed(fields.rsplit(",", MAX_PROXIES)[-MAX_PROXIES:]):
        match = _ENTRY.fullmatch(entry.strip(" \t"))
        found = None if match is None else _parse_address(match[1] or match[2] or match[3])
        if found is None:
            return str(known), bool(fields)
        known = found
        if not _is_in(found, proxies):
            break
    return str(known), False


def _parse_address(text: str) -> _Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def _is_in(address: _Address, networks: Networks) -> bool:
    return any(address in network for network in networks)
