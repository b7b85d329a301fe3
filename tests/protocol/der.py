# Names in DER, written for tests.

from __future__ import annotations

from collections.abc import Sequence


def der(tag: int, *contents: bytes) -> bytes:
    """One item."""
    content = b"".join(contents)
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def oid(dotted: str) -> bytes:
    """An object identifier."""
    first, second, *rest = map(int, dotted.split("."))
    return der(6, *map(_base128, (40 * first + second, *rest)))


def _base128(number: int) -> bytes:
    out = [number & 0x7F]
    while number := number >> 7:
        out.append(number & 0x7F | 0x80)
    return bytes(reversed(out))


def attribute(dotted: str, tag: int, value: bytes) -> bytes:
    """A type and its value."""
    return der(0x30, oid(dotted), der(tag, value))


def name_of(*parts: Sequence[bytes]) -> bytes:
    """A name of relative names, each of some attributes; in the order of the certificate."""
    return der(0x30, *(der(0x31, *part) for part in parts))


def with_subject(certificate: bytes, subject: bytes) -> bytes:
    """The certificate with another subject; its signature is wrong then."""
    tbs, *rest = items(items(certificate)[0][1])
    fields = [der(tag, content) for tag, content in items(tbs[1])]
    assert fields[0][0] == 0xA0  # version 3
    fields[5] = subject
    return der(0x30, der(0x30, *fields), *(der(tag, content) for tag, content in rest))


def items(data: bytes) -> list[tuple[int, bytes]]:
    """Tags and contents."""
    found = []
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size > 0x7F:
            count = size & 0x7F
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        found.append((tag, data[at : at + size]))
        at += size
    return found
