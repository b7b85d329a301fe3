# The runs of fields that usual.py reads at once: a run is one call of `struct`, as unpacking field by field would cost
# several times as much. Each takes (buf, pos) and returns a tuple; struct.error where the buffer ends before the run.
#
# Compiled (usual_compiled.pxd) the same names are functions in C: layouts.pxd has them, format by format.

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from protocol.wire import Buffer

_Unpack: TypeAlias = Callable[[Buffer, int], tuple[Any, ...]]

LONGEST: Final = 126  # bytes of a string whose compact length is one byte

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

# --- behind a string --------------------------------------------------------------------------------------------------


def _with_string(form: str) -> tuple[_Unpack, ...]:
    return tuple(struct.Struct(form.format(size)).unpack_from for size in range(LONGEST + 1))


_flexible_head = _with_string(">{}sBBh4xB")
_plain_head = _with_string(">{}shh4xi")
_flexible_topic = _with_string(">{}sBiBBBB")
_plain_topic = _with_string(">{}siii")
_flexible_answer = _with_string(">{}sBihq16xBBB")
_plain_answer = _with_string(">{}siihq")


def flexible_head(buf: Buffer, pos: int, size: int) -> tuple[Any, ...]:
    """Client id of `size` bytes, header tags, length of the transactional id, acks, topics."""
    return _flexible_head[size](buf, pos)


def plain_head(buf: Buffer, pos: int, size: int) -> tuple[Any, ...]:
    """Client id of `size` bytes, length of the transactional id, acks, topics."""
    return _plain_head[size](buf, pos)


def flexible_topic(buf: Buffer, pos: int, size: int) -> tuple[Any, ...]:
    """Topic of `size` bytes, partitions, the first one's index, the bytes in which the length of its records lies."""
    return _flexible_topic[size](buf, pos)


def plain_topic(buf: Buffer, pos: int, size: int) -> tuple[Any, ...]:
    """Topic of `size` bytes, partitions, the first one's index and the length of its records."""
    return _plain_topic[size](buf, pos)


def flexible_answer(buf: Buffer, pos: int, size: int) -> tuple[Any, ...]:
    """Topic of `size` bytes, partitions, and the first of them as `answered` has it."""
    return _flexible_answer[size](buf, pos)


def plain_answer(buf: Buffer, pos: int, size: int) -> tuple[Any, ...]:
    """Topic of `size` bytes, partitions, and the first of them as `plain_answered` has it."""
    return _plain_answer[size](buf, pos)


# --- numbers that are kept --------------------------------------------------------------------------------------------


def items(numbers: array[int]) -> array[int]:
    """The numbers by their place: in C their address, which nothing guards. The array must stay as it is."""
    return numbers


# Written there, from a byte on: those of a partition in a request, and in an answer, as protocol.usual.Partitions has
# them.
put_part: Final = struct.Struct("=7q").pack_into
put_result: Final = struct.Struct("=3q").pack_into
