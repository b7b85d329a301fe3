# The runs of fields that usual.py reads at once: a run is one call of `struct`, as unpacking field by field would cost
# several times as much. Each takes (buf, pos) and returns a tuple; struct.error where the buffer ends before the run.
#
# Compiled (usual_compiled.pxd) the same names are functions in C: layouts.pxd has them, format by format.

from __future__ import annotations

import operator
import struct
from array import array
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from protocol.wire import Buffer

_Unpack: TypeAlias = Callable[[Buffer, int], tuple[Any, ...]]

LONGEST: Final = 126  # bytes of a string whose compact length is one byte

byte: Final[Callable[[Buffer, int], int]] = operator.getitem

# --- frames -----------------------------------------------------------------------------------------------------------

request_head: _Unpack = struct.Struct(">ihhi").unpack_from  # size, api key, api version, correlation id
answer_start: _Unpack = struct.Struct(">ii").unpack_from  # size, correlation id

# --- requests ---------------------------------------------------------------------------------------------------------

version_and_client: _Unpack = struct.Struct(">2xh4xh").unpack_from
acks_and_topics: _Unpack = struct.Struct(">h4xB").unpack_from
# Of a batch header: batchLength, magic, producerId, producerEpoch, baseSequence, record count.
batch: _Unpack = struct.Struct(">8xi4xb26xqhii").unpack_from
# index, and the bytes in which the length of the records lies
flexible_partition: _Unpack = struct.Struct(">iBBBB").unpack_from
# A partition behind another one of its topic: the tagged fields of that one, index, the length of its records in one or
# two bytes, and its batch.
short_partition: _Unpack = struct.Struct(">BiB8xi4xb26xqhii").unpack_from
partition: _Unpack = struct.Struct(">BiBB8xi4xb26xqhii").unpack_from
plain_partition: _Unpack = struct.Struct(">ii").unpack_from  # index, length of the records

# --- answers ----------------------------------------------------------------------------------------------------------

answer_head: _Unpack = struct.Struct(">4xBB").unpack_from  # header tags, topics
# index, error code, base offset, record errors, length of the message, tags
answered: _Unpack = struct.Struct(">ihq16xBBB").unpack_from
plain_answered: _Unpack = struct.Struct(">ihq").unpack_from
record_errors_and_message: _Unpack = struct.Struct(">ih").unpack_from

# --- behind a string, from its end on ---------------------------------------------------------------------------------

# header tags, length of the transactional id, acks, topics
flexible_head: _Unpack = struct.Struct(">BBh4xB").unpack_from
plain_head: _Unpack = struct.Struct(">hh4xi").unpack_from  # length of the transactional id, acks, topics
# partitions, the first one's index, the bytes in which the length of its records lies; or that length
flexible_topic: _Unpack = struct.Struct(">BiBBBB").unpack_from
plain_topic: _Unpack = struct.Struct(">iii").unpack_from
flexible_answer: _Unpack = struct.Struct(">Bihq16xBBB").unpack_from  # partitions, the first of them as in `answered`
plain_answer: _Unpack = struct.Struct(">iihq").unpack_from  # partitions, the first of them as in `plain_answered`


def name(buf: Buffer, pos: int, size: int) -> bytes:
    """A string of `size` bytes. Whoever reads what stands behind it finds out whether they are there."""
    return bytes(buf[pos : pos + size])


def length(a: int, b: int, c: int, d: int) -> tuple[int, int]:
    """The compact length that begins with these bytes, and how many of them it takes; 0: more than there are."""
    if b < 0x80 <= a:
        return (a & 0x7F | b << 7) - 1, 2
    if a < 0x80:
        return a - 1, 1
    if c < 0x80:
        return (a & 0x7F | (b & 0x7F) << 7 | c << 14) - 1, 3
    if d < 0x80:
        return (a & 0x7F | (b & 0x7F) << 7 | (c & 0x7F) << 14 | d << 21) - 1, 4
    return 0, 0


def has(buf: Buffer, pos: int, name: bytes) -> bool:
    """Whether this string stands there."""
    return buf[pos : pos + len(name)] == name


def is_name(buf: Buffer, pos: int, size: int, name: bytes | None) -> bool:
    """Whether the string of `size` bytes (-1: null) that stands there is this one."""
    return size < 0 if name is None else size == len(name) and has(buf, pos, name)


# --- numbers that are kept --------------------------------------------------------------------------------------------


def items(numbers: array[int]) -> array[int]:
    """The numbers by their place: in C their address, which nothing guards. The array must stay as it is."""
    return numbers


# Written there, from a byte on: those of a partition in a request, and in an answer, as protocol.usual.Partitions has
# them.
put_part: Final = struct.Struct("=7q").pack_into
put_result: Final = struct.Struct("=3q").pack_into
