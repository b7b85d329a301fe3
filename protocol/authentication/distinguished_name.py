# The subject of a client's certificate as text, letter by letter what Java's X500Principal.getName() gives (RFC 2253):
# brokers know clients by that text, and so do their ACLs and quotas.
#
# Read from the certificate's bytes, because libraries for X.509 give names of their own: other keywords, another order,
# values decoded by their type, where Java takes the bytes of any string for UTF-8 and writes what it has no keyword for
# in hexadecimal. TLS has verified the certificate by now; only what leads to the name is looked at.
#
# Specs: RFC 5280 4.1, X.690 (DER), RFC 2253; sun.security.x509.AVA.toRFC2253String of OpenJDK.

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MAX_NAME: Final = 4096  # characters; names that people give have a few hundred
_INTEGER, _OID, _SEQUENCE, _SET, _VERSION = 0x02, 0x06, 0x30, 0x31, 0xA0
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_MAX_OID: Final = 128  # bytes: all that are in use have a dozen; the digits of a long one take quadratic time
_TEXTS: Final = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))  # UTF8, Printable, T61, IA5, General and BMPString
_ESCAPED: Final = re.compile(r'[,=+<>#;"\\]')
_OUTER_SPACE: Final = re.compile(r"\A[ \r]+|[ \r]+\Z")
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_REPLACEMENT: Final = "\ufffd".encode()


class UnreadableName(Exception):
    """The certificate has no subject that can be read."""


def subject_of(certificate: bytes) -> str:
    """The subject's distinguished name; `certificate` is X.509 in DER.

    Raises:
        UnreadableName: it can't be read, or is longer than MAX_NAME.
    """
    parts = iter(_read_items(_first_content(_first_content(certificate, _SEQUENCE, more=False), _SEQUENCE)))
    tag, _ = next(parts, (0, b""))
    if tag == _VERSION:
        tag, _ = next(parts, (0, b""))
    rest = [next(parts, (0, b"")) for _ in range(4)]  # signature algorithm, issuer, validity, subject
    if tag != _INTEGER or [each[0] for each in rest] != [_SEQUENCE] * 4:
        raise UnreadableName("not an X.509 certificate")
    name = ",".join(
        "+".join(map(_attribute_text, _read_items(each))) for each in reversed(list(_read_sets(rest[3][1])))
    )
    if len(name) > MAX_NAME:
        raise UnreadableName(f"a distinguished name of {len(name)} characters, {MAX_NAME} are the most")
    return name


def _read_sets(content: bytes) -> Iterator[bytes]:
    for tag, each in _read_items(content):
        if tag != _SET:
            raise UnreadableName(f"a relative distinguished name with the tag {tag:#x}")
        yield each


def _attribute_text(item: tuple[int, bytes]) -> str:
    pair = list(_read_items(item[1]))
    if item[0] != _SEQUENCE or len(pair) != 2 or pair[0][0] != _OID:
        raise UnreadableName("an attribute of a name that is not a type and a value")
    oid = _dotted_oid(pair[0][1])
    tag, value = pair[1]
    keyword = _KEYWORDS.get(oid)
    if keyword is None or tag not in _TEXTS:
        return f"{keyword or oid}=#{_encode_item(tag, value).hex()}"
    return f"{keyword}={_escape_text(_decode_value(value))}"


def _decode_value(value: bytes) -> str:
    """As `new String(value, UTF_8)`: Java puts one replacement character for half of a pair, Python three."""
    return _SURROGATE.sub(_REPLACEMENT, value).decode("utf-8", "replace")


def _escape_text(text: str) -> str:
    text = _ESCAPED.sub(r"\\\g<0>", text).replace("\0", "\\00")
    return _OUTER_SPACE.sub(lambda match: "".join("\\" + each for each in match[0]), text)


def _dotted_oid(content: bytes) -> str:
    if len(content) > _MAX_OID:
        raise UnreadableName(f"an attribute of a name whose type has {len(content)} bytes")
    numbers = []
    value = 0
    for at, byte in enumerate(content):
        if not value and byte == 0x80:
            break
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
        elif at == len(content) - 1:
            numbers.clear()
    else:
        if numbers:
            first = min(numbers[0] // 40, 2)
            return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
    raise UnreadableName("an attribute of a name whose type can't be read")


# --- DER --------------------------------------------------------------------------------------------------------------


def _read_items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and contents of what stands in data, one behind the other."""
    at = 0
    while at < len(data):
        if len(data) - at < 2 or data[at] & 0x1F == 0x1F:
            raise UnreadableName("a tag that no name has")
        tag, size = data[at], data[at + 1]
        at += 2
        if size > 0x7F:
            count = size & 0x7F
            if not 1 <= count <= 4 or at + count > len(data):
                raise UnreadableName("a length that can't be read")
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        if size > len(data) - at:
            raise UnreadableName(f"{size} bytes announced, {len(data) - at} left")
        yield tag, data[at : at + size]
        at += size


def _first_content(data: bytes, tag: int, *, more: bool = True) -> bytes:
    """The content of the first item, which has that tag; whether there may be `more` behind it."""
    items = list(_read_items(data))
    if not items or items[0][0] != tag or (len(items) > 1 and not more):
        raise UnreadableName("not an X.509 certificate")
    return items[0][1]


def _encode_item(tag: int, value: bytes) -> bytes:
    size = len(value)
    if size < 0x80:
        return bytes((tag, size)) + value
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + value
