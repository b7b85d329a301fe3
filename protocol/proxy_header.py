# The header with which a proxy says whose connection it passes on: the PROXY protocol, versions 1 and 2.
#
# A reader says how many bytes it may be given (`wanted`), never one that stands behind the header: those are TLS or
# Kafka, and stay in the socket. Nothing is guessed: whether a header has to come is the caller's to know, since bytes
# that aren't one may be anything. Additions of a proxy (type-length-values) are skipped, unread.
#
# Spec: haproxy.org/download/3.0/doc/proxy-protocol.txt

from __future__ import annotations

import ipaddress
import re
import struct
from typing import Final, NamedTuple, TypeAlias

from protocol.describe import guess_protocol
from protocol.wire import MalformedFrame, quote_bytes

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
MAX_V1: Final = 107  # bytes, as the specification has it
MAX_V2: Final = 16 * 1024  # bytes behind the fixed part; a client's certificate may be among them
_V1: Final = b"PROXY "
_FIXED: Final = 16  # bytes of version 2 before its addresses
_STEP: Final = 4096  # of what is skipped
# The shortest of each version ("PROXY UNKNOWN" with its line's end has 15): this many bytes belong to the header for
# sure.
_FIRST: Final = 12
_ENDS: Final = {1: struct.Struct(">4s4sHH"), 2: struct.Struct(">16s16sHH")}  # by address family
_UNSPECIFIED, _INET, _INET6, _UNIX = range(4)
_LOCAL, _PROXY = range(2)
_STREAM: Final = 1
_LINE: Final = re.compile(rb"PROXY TCP([46]) ([0-9A-Fa-f.:]+) ([0-9A-Fa-f.:]+) (0|[1-9][0-9]{0,4}) (0|[1-9][0-9]{0,4})")

Address: TypeAlias = tuple[str, int]  # host as text, port


class ConnectionEnds(NamedTuple):
    """The ends of the connection that a proxy has accepted."""

    source: Address
    destination: Address


class ProxyHeaderReader:
    """One header, in pieces.

    Attributes:
        wanted: this many bytes may be fed next; 0: the header is complete.
        ends: None where it names none (LOCAL, UNKNOWN): the connection is the proxy's own.
    """

    __slots__ = ("_head", "_skipped", "ends", "wanted")

    def __init__(self) -> None:
        self.ends: ConnectionEnds | None = None
        self.wanted = _FIRST
        self._head = b""
        self._skipped = 0  # bytes of version 2 that are still to come, and are not used

    def feed(self, data: bytes) -> None:
        """Take the next bytes, at most `wanted`.

        Raises:
            MalformedFrame: this is no header, or none that names a client over TCP.
        """
        assert 0 < len(data) <= self.wanted
        if self._skipped:
            self._skip_bytes(len(data))
            return
        head = self._head = self._head + data
        if SIGNATURE.startswith(head[:_FIRST]):
            self._read_v2(head)
        elif head.startswith(_V1[: len(head)]):
            self._read_v1(head)
        else:
            raise MalformedFrame(f"{guess_protocol(head)} where a PROXY protocol header has to be")

    def _read_v1(self, head: bytes) -> None:
        line, end, _ = head.partition(b"\r\n")
        if end:
            self.wanted = 0
            self.ends = _ends_of(line)
        elif len(head) >= MAX_V1 or b"\n" in head:
            raise MalformedFrame(f"a PROXY protocol header without an end: {quote_bytes(head)}")
        elif len(head) < _FIRST:
            self.wanted = _FIRST - len(head)
        else:
            self.wanted = 1 if head.endswith(b"\r") else min(2, MAX_V1 - len(head))

    def _read_v2(self, head: bytes) -> None:
        if len(head) < _FIXED:
            self.wanted = (_FIRST if len(head) < _FIRST else _FIXED) - len(head)
            return
        version, command = divmod(head[12], 16)
        family, transport = divmod(head[13], 16)
        size = head[14] << 8 | head[15]
        if version != 2 or command > _PROXY:
            raise MalformedFrame(f"a PROXY protocol header of version {version} and command {command}")
        if size > MAX_V2:
            raise MalformedFrame(f"a PROXY protocol header of {size} bytes, {MAX_V2} are the most")
        if command == _LOCAL or family == _UNSPECIFIED:
            self._skip_from(size)
            return
        ends = _ENDS.get(family)
        if ends is None or transport != _STREAM:
            what = "a UNIX socket" if family == _UNIX else f"address family {family}, transport {transport}"
            raise MalformedFrame(f"a PROXY protocol header of {what}, not of TCP")
        if size < ends.size:
            raise MalformedFrame(f"a PROXY protocol header with {size} bytes for addresses of {ends.size}")
        self.wanted = _FIXED + ends.size - len(head)
        if not self.wanted:
            source, destination, source_port, destination_port = ends.unpack(head[_FIXED:])
            self.ends = ConnectionEnds(
                (_address_text(source), source_port), (_address_text(destination), destination_port)
            )
            self._skip_from(size - ends.size)

    def _skip_from(self, size: int) -> None:
        self._skipped = size
        self.wanted = min(size, _STEP)

    def _skip_bytes(self, count: int) -> None:
        self._skip_from(self._skipped - count)


def _ends_of(line: bytes) -> ConnectionEnds | None:
    if line == b"PROXY UNKNOWN" or line.startswith(b"PROXY UNKNOWN "):
        return None  # what follows has no meaning
    match = _LINE.fullmatch(line)
    try:
        if match is None:
            raise ValueError
        family, source, destination = match[1], match[2].decode(), match[3].decode()
        kind = ipaddress.IPv4Address if family == b"4" else ipaddress.IPv6Address
        hosts = str(kind(source)), str(kind(destination))
        ports = int(match[4]), int(match[5])
        if max(ports) > 0xFFFF:
            raise ValueError
    except ValueError:
        raise MalformedFrame(f"a PROXY protocol header that can't be read: {quote_bytes(line)}") from None
    return ConnectionEnds((hosts[0], ports[0]), (hosts[1], ports[1]))


def _address_text(packed: bytes) -> str:
    return str(ipaddress.ip_address(packed))


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_header(version: int, ends: ConnectionEnds) -> bytes:
    """The header of version 1 or 2. Where one end has an IPv4 address and the other an IPv6 one, both are written as
    IPv6; zones (%eth0) are left out.

    Raises:
        ValueError: a host that is no address.
    """
    (source, source_port), (destination, destination_port) = ends
    hosts = [_unmap_address(host) for host in (source, destination)]
    if len({host.version for host in hosts}) > 1:
        hosts = [host if host.version == 6 else ipaddress.IPv6Address(f"::ffff:{host}") for host in hosts]
    is_v4 = hosts[0].version == 4
    if version == 1:
        return f"PROXY TCP{4 if is_v4 else 6} {hosts[0]} {hosts[1]} {source_port} {destination_port}\r\n".encode()
    family = _INET if is_v4 else _INET6
    packed = _ENDS[family].pack(hosts[0].packed, hosts[1].packed, source_port, destination_port)
    return SIGNATURE + struct.pack(">BBH", 2 << 4 | _PROXY, family << 4 | _STREAM, len(packed)) + packed


def _unmap_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])
    return (address.version == 6 and address.ipv4_mapped) or address
