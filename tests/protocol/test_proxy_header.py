# The PROXY protocol's header: whole, byte by byte, and glued to what follows; against an encoder of the test's own.

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.proxy_header import MAX_V2, SIGNATURE, ConnectionEnds, ProxyHeaderReader, encode_header
from protocol.wire import MalformedFrame

BEHIND = b"\x16\x03\x01TLS or Kafka"
V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 9092\r\n"


def v2(command: int = 0x21, kind: int = 0x11, body: bytes = b"", size: int | None = None) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, kind, len(body) if size is None else size) + body


def body_v4(*more: bytes) -> bytes:
    return (
        socket.inet_aton("192.0.2.7")
        + socket.inet_aton("198.51.100.1")
        + struct.pack(">HH", 56324, 9092)
        + b"".join(more)
    )


def read(data: bytes, at_once: int = 1 << 20) -> tuple[ConnectionEnds | None, bytes]:
    """The header in data, fed in pieces of at most `at_once` bytes, and what is left behind it."""
    reader = ProxyHeaderReader()
    at = 0
    while reader.wanted:
        piece = data[at : at + min(reader.wanted, at_once)]
        if not piece:
            raise EOFError
        reader.feed(piece)
        at += len(piece)
    return reader.ends, data[at:]


CLIENT = ConnectionEnds(("192.0.2.7", 56324), ("198.51.100.1", 9092))
HEADERS = {
    "v1": (V1, CLIENT),
    "v1 of IPv6": (b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n", ConnectionEnds(("2001:db8::1", 1), ("::1", 2))),
    "v1 unknown": (b"PROXY UNKNOWN\r\n", None),
    "v1 unknown with words": (b"PROXY UNKNOWN ffff::1 \r 7 " + b"x" * 60 + b"\r\n", None),
    "v1 of the longest": (b"PROXY UNKNOWN " + b"f" * 91 + b"\r\n", None),
    "v2": (v2(body=body_v4()), CLIENT),
    "v2 with TLVs": (v2(body=body_v4(b"\x20\0\x03abc", b"\x04" + bytes(5000))), CLIENT),
    "v2 of IPv6": (
        v2(kind=0x21, body=bytes(15) + b"\1" + bytes(16) + b"\0\7\0\x08"),
        ConnectionEnds(("::1", 7), ("::", 8)),
    ),
    "v2 local": (v2(0x20, 0, b""), None),
    "v2 local with addresses": (v2(0x20, 0x11, body_v4()), None),
    "v2 unspecified": (v2(0x21, 0, bytes(20)), None),
    "v2 local, largest": (v2(0x20, 0, bytes(MAX_V2)), None),
}


@pytest.mark.parametrize("at_once", [1, 2, 5, 1 << 20])
@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_read_to_its_last_byte_and_no_further(name: str, at_once: int) -> None:
    header, ends = HEADERS[name]
    assert read(header + BEHIND, at_once) == (ends, BEHIND)
    assert read(header, at_once) == (ends, b"")


@pytest.mark.parametrize("name", HEADERS)
def test_half_a_header_is_none(name: str) -> None:
    header, _ = HEADERS[name]
    for size in range(0, len(header), max(1, len(header) // 200)):
        with pytest.raises(EOFError):
            read(header[:size])


@pytest.mark.parametrize(
    "data",
    [
        BEHIND,
        b"GET / HTTP/1.1\r\n",
        b"\0\0\0\x20\0\x12\0\x03\0\0\0\x01\0",
        b"PROXY  TCP4 1.1.1.1 2.2.2.2 1 2\r\n",
        b"PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n",
        b"PROXY TCP4 1.1.1.1 2.2.2.2 01 2\r\n",
        b"PROXY TCP4 1.1.1.1 2.2.2.2 1 65536\r\n",
        b"PROXY TCP4 1.1.1.1 2.2.2.2 1 -2\r\n",
        b"PROXY TCP4 1.1.1 2.2.2.2 1 2\r\n",
        b"PROXY TCP4 01.1.1.1 2.2.2.2 1 2\r\n",
        b"PROXY TCP4 ::1 ::2 1 2\r\n",
        b"PROXY TCP6 1.1.1.1 2.2.2.2 1 2\r\n",
        b"PROXY TCP6 fe80::1%eth0 ::2 1 2\r\n",
        b"PROXY UDP4 1.1.1.1 2.2.2.2 1 2\r\n",
        b"PROXY tcp4 1.1.1.1 2.2.2.2 1 2\r\n",
        b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n\n",
        b"PROXY UNKNOWNX\r\n",
        b"PROXY " + b"x" * 200,
        b"PROXY UNKNOWN " + b"f" * 92 + b"\r\n",
        v2(0x11, body=body_v4()),
        v2(0x22, body=body_v4()),
        v2(0x21, 0x12, body_v4()),
        v2(0x21, 0x31, bytes(216)),
        v2(0x21, 0x41, bytes(216)),
        v2(0x21, 0x11, bytes(11)),
        v2(0x21, 0x21, bytes(35)),
        v2(0x20, 0, size=MAX_V2 + 1),
        SIGNATURE[:-1] + b"\r" + bytes(4),
    ],
)
@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_what_is_no_header_or_none_of_tcp_is_refused(data: bytes, at_once: int) -> None:
    with pytest.raises(MalformedFrame) as caught:
        read(data + b" " * 200, at_once)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))
ports = st.integers(0, 65535)


def encoded(version: int, hosts: Sequence[Any], ports: tuple[int, int], tlvs: bytes = b"") -> bytes:
    """By the letter of the specification."""
    source, destination = hosts
    family: int = source.version
    if version == 1:
        return b"PROXY TCP%d %s %s %d %d\r\n" % (family, str(source).encode(), str(destination).encode(), *ports)
    body: bytes = source.packed + destination.packed + struct.pack("!2H", *ports) + tlvs
    return (
        b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21"
        + bytes(({4: 0x11, 6: 0x21}[family],))
        + struct.pack("!H", len(body))
        + body
    )


@given(
    version=st.sampled_from((1, 2)),
    hosts=st.one_of(st.tuples(*2 * [st.ip_addresses(v=4)]), st.tuples(*2 * [st.ip_addresses(v=6)])),
    pair=st.tuples(ports, ports),
    tlvs=st.binary(max_size=300),
    behind=st.binary(max_size=50),
    at_once=st.integers(1, 40),
)
def test_any_header_by_the_specification_is_read(
    version: int, hosts: tuple[Any, Any], pair: tuple[int, int], tlvs: bytes, behind: bytes, at_once: int
) -> None:
    header = encoded(version, hosts, pair, tlvs if version == 2 else b"")
    expected = ConnectionEnds((str(hosts[0]), pair[0]), (str(hosts[1]), pair[1]))
    assert read(header + behind, at_once) == (expected, behind)


@given(version=st.sampled_from((1, 2)), source=addresses, destination=addresses, pair=st.tuples(ports, ports))
def test_what_is_written_is_what_the_specification_says(version: int, source: Any, destination: Any, pair: Any) -> None:
    hosts = [host.ipv4_mapped or host if host.version == 6 else host for host in (source, destination)]
    if hosts[0].version != hosts[1].version:
        hosts = [host if host.version == 6 else ipaddress.ip_address(f"::ffff:{host}") for host in hosts]
    header = encode_header(version, ConnectionEnds((str(source), pair[0]), (str(destination), pair[1])))
    assert header == encoded(version, hosts, pair)
    assert read(header)[0] == ConnectionEnds((str(hosts[0]), pair[0]), (str(hosts[1]), pair[1]))


@given(data=st.binary(max_size=300), start=st.sampled_from((b"", SIGNATURE, b"PROXY ", b"PROXY TCP4 ")))
def test_any_bytes_are_a_header_or_refused_or_too_few(data: bytes, start: bytes) -> None:
    try:
        read(start + data)
    except (MalformedFrame, EOFError):
        pass


def test_a_zone_is_left_out() -> None:
    header = encode_header(1, ConnectionEnds(("fe80::1%eth0", 1), ("::1", 2)))
    assert header == b"PROXY TCP6 fe80::1 ::1 1 2\r\n"
