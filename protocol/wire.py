# The smallest steps over Kafka's wire format: integers, strings, arrays and tagged fields, read and written.
#
# A read step takes `(buf, pos, end)` and returns `(value, new pos)`; it never looks at or behind `end`, and whatever
# does not fit is `MalformedFrame`: an IndexError or struct.error that leaves this package is a bug. It refuses to know
# any message: those are in the modules named after them. Strings stay bytes: a topic is only a key here, and the
# broker judges whether it is valid UTF-8.
#
# Spec: kafka.apache.org/protocol (primitive types); KIP-482 (compact forms, tagged fields: unknown ones are skipped).

from __future__ import annotations

import struct
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")

UUID_SIZE = 16
NO_TAGS = b"\0"  # an empty tagged-field section
MAX_TAGS = 64  # tagged fields in one section: Kafka's messages have fewer than ten, two bytes each cost a peer nothing
_MAX_UVARINT = 0xFFFFFFFF  # Kafka's varints of lengths, counts and tags are 32 bits wide
_MAX_QUOTED = 64


class MalformedFrame(Exception):
    """The bytes of a frame are not the message that its header promises. Ends that connection and no other.

    Its text goes into logs: foreign bytes are in it only as `quote_bytes` gives them.
    """


class TooManyTags(MalformedFrame):
    """A section of more than MAX_TAGS tagged fields."""


def quote_bytes(data: bytes) -> str:
    """Foreign bytes for a text: printable, and no more than the first 64 of them."""
    return repr(data) if len(data) <= _MAX_QUOTED else f"{data[:_MAX_QUOTED]!r}..."


# --- reading ----------------------------------------------------------------------------------------------------------


def skip_bytes(pos: int, size: int, end: int) -> int:
    """The position `size` bytes further on; MalformedFrame if that is behind `end` or `size` is negative."""
    if size < 0 or size > end - pos:
        raise MalformedFrame(f"{size} bytes announced, {end - pos} left")
    return pos + size


def read_int8(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """A signed byte."""
    after = skip_bytes(pos, 1, end)
    value = buf[pos]
    return (value if value < 0x80 else value - 0x100), after


def read_int16(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """A big-endian signed 16-bit integer."""
    after = skip_bytes(pos, 2, end)
    return INT16.unpack_from(buf, pos)[0], after


def read_int32(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """A big-endian signed 32-bit integer."""
    after = skip_bytes(pos, 4, end)
    return INT32.unpack_from(buf, pos)[0], after


def read_int64(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """A big-endian signed 64-bit integer."""
    after = skip_bytes(pos, 8, end)
    return INT64.unpack_from(buf, pos)[0], after


def read_uuid(buf: Buffer, pos: int, end: int) -> tuple[bytes, int]:
    """Sixteen raw bytes, as topic ids are."""
    after = skip_bytes(pos, UUID_SIZE, end)
    return bytes(buf[pos:after]), after


def read_uvarint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """An unsigned varint of at most five bytes and 32 bits."""
    value = shift = 0
    while pos < end:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _MAX_UVARINT:
                break
            return value, pos
        shift += 7
        if shift > 28:
            break
    else:
        raise MalformedFrame("the frame ends within a varint")
    raise MalformedFrame("a varint of more than 32 bits")


def read_string(buf: Buffer, pos: int, end: int) -> tuple[bytes | None, int]:
    """A (nullable) string with its length as int16; None for length -1."""
    size, pos = read_int16(buf, pos, end)
    if size == -1:
        return None, pos
    after = skip_bytes(pos, size, end)
    return bytes(buf[pos:after]), after


def read_compact_string(buf: Buffer, pos: int, end: int) -> tuple[bytes | None, int]:
    """A (nullable) string, or any bytes, with its length + 1 as uvarint; None for 0."""
    size, pos = read_uvarint(buf, pos, end)
    if size == 0:
        return None, pos
    after = skip_bytes(pos, size - 1, end)
    return bytes(buf[pos:after]), after


def read_array_count(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """The count of an array as int32; -1 is null. No count is larger than the bytes that are left."""
    count, pos = read_int32(buf, pos, end)
    if count < -1 or count > end - pos:
        raise MalformedFrame(f"an array of {count} elements, {end - pos} bytes left")
    return count, pos


def read_compact_count(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """The count of an array as uvarint of count + 1; -1 is null. No count is larger than the bytes that are left."""
    count, pos = read_uvarint(buf, pos, end)
    if count - 1 > end - pos:
        raise MalformedFrame(f"an array of {count - 1} elements, {end - pos} bytes left")
    return count - 1, pos


def read_count(buf: Buffer, pos: int, end: int, flexible: bool) -> tuple[int, int]:
    """The count of an array in either form; -1 is null."""
    return read_compact_count(buf, pos, end) if flexible else read_array_count(buf, pos, end)


def read_nonnull_count(buf: Buffer, pos: int, end: int, flexible: bool) -> tuple[int, int]:
    """The same of an array that can't be null."""
    count, pos = read_count(buf, pos, end, flexible)
    if count < 0:
        raise MalformedFrame("null in place of an array")
    return count, pos


def read_tags(buf: Buffer, pos: int, end: int) -> tuple[list[tuple[int, int, int]], int]:
    """A section of tagged fields as [(tag, start of its value, end of its value)], in the order of the wire."""
    count, pos = _read_tag_count(buf, pos, end)
    fields = []
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos, end)
        size, pos = read_uvarint(buf, pos, end)
        after = skip_bytes(pos, size, end)
        fields.append((tag, pos, after))
        pos = after
    return fields, pos


def skip_tags(buf: Buffer, pos: int, end: int) -> int:
    """The position behind a section of tagged fields, whatever they are."""
    if pos < end and buf[pos] == 0:  # nearly always
        return pos + 1
    count, pos = _read_tag_count(buf, pos, end)
    try:  # fields of two or three bytes are read without a call, and compared with `end` only once
        for _ in range(count):
            first = pos
            while buf[pos] >= 0x80:  # the tag, whichever it is
                pos += 1
            if pos - first > 4:
                raise MalformedFrame("a varint of more than 32 bits")
            size = buf[pos + 1]
            if size < 0x80:
                pos += 2 + size
            else:
                size, pos = read_uvarint(buf, pos + 1, end)
                pos += size
    except IndexError:
        pos = end + 1
    if pos > end:
        raise MalformedFrame("the frame ends within its tagged fields")
    return pos


def _read_tag_count(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    count, pos = read_uvarint(buf, pos, end)
    if count > MAX_TAGS:
        raise TooManyTags(f"{count} tagged fields in one section, at most {MAX_TAGS} are allowed")
    return count, pos


def check_end(pos: int, end: int) -> None:
    """MalformedFrame unless the frame has been read to exactly its end."""
    if pos != end:
        raise MalformedFrame(f"{end - pos} bytes behind the end of the message")


# --- writing ----------------------------------------------------------------------------------------------------------


def put_uvarint(value: int) -> bytes:
    """An unsigned varint in its shortest form."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_count(count: int, flexible: bool) -> bytes:
    """The count of an array in either form; -1 is null."""
    return put_uvarint(count + 1) if flexible else INT32.pack(count)


def put_string(value: bytes | None) -> bytes:
    """A string with its length as int16; None is null."""
    return INT16.pack(-1) if value is None else INT16.pack(len(value)) + value


def put_compact_string(value: bytes | None) -> bytes:
    """A string with its length + 1 as uvarint; None is null."""
    return b"\0" if value is None else put_uvarint(len(value) + 1) + value


def put_tags(fields: list[tuple[int, bytes]]) -> bytes:
    """A section of tagged fields from (tag, value), in the order given (KIP-482 wants ascending tags)."""
    parts = [put_uvarint(len(fields))]
    for tag, value in fields:
        parts += (put_uvarint(tag), put_uvarint(len(value)), value)
    return b"".join(parts)


def with_size_prefix(content: bytes | bytearray) -> bytes:
    """The content of a frame with its 4-byte size prefix."""
    return INT32.pack(len(content)) + content
