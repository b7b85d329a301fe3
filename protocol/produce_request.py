# Produce requests v3 to v13: what they carry (`skim`), and the same request without some partitions (`strip`).
#
# Counts as the broker does: a partition's bytes are its one record batch (12 + batchLength), whatever lies behind that
# in `records` is trimmed there and named `trailing` here. A batch that no broker would take is no malformed frame:
# the broker shall say so itself. The same partition twice in one request is one (a broker appends only the last). It
# refuses to know what the numbers are for: no meters, no verdicts, and records are never decompressed or copied.
#
# What a request costs is bounded before anything is made of it: a caller's bound on its partitions, and no more of them
# than the frame has bytes for batches. An honest partition has a batch, so nobody gets one for the six bytes of a null.
#
# `skim` runs once per request and decides what the gateway costs. It reads what nearly all requests look like, a whole
# run of fields per unpack, and trusts nothing of it until it has come out at exactly the frame's end; whatever doesn't
# fit is read once more by `_walk`, which goes step by step, knows every form and is the one to say what is wrong.
#
# Spec: ProduceRequest.json; KIP-98 (batch v2), KIP-482 (flexible from v9), KIP-516 (topic ids from v13).

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Set
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from protocol import wire
from protocol.api import CAPS, FLOORS, PRODUCE, PRODUCE_FLEXIBLE, PRODUCE_TOPIC_IDS
from protocol.wire import Buffer, MalformedFrame

# topic name or id, index, bytes of the batch, messages, producer id, producer epoch, base sequence, trailing bytes
Partition: TypeAlias = tuple[bytes, int, int, int, int, int, int, int]
Skimmed: TypeAlias = tuple[int, int, bytes | None, bytes | None, list[Partition]]
_Unpack: TypeAlias = Callable[[Buffer, int], tuple[Any, ...]]

MAX_PARTITIONS = 10_000  # of one request, if its reader says nothing else
BATCH_HEADER = 61  # bytes of a v2 batch before its first record
_BATCH_PREFIX = 12  # baseOffset and batchLength, which batchLength doesn't count
_MIN_BATCH_LENGTH = BATCH_HEADER - _BATCH_PREFIX
_MAGIC = 2
_MAX_EMPTY = 64  # partitions without a batch, and topics without partitions, in one request: honest clients send none

_MIN = FLOORS[PRODUCE]
_MAX = CAPS[PRODUCE]
_ID = wire.UUID_SIZE + 1  # the length byte that a topic id would have, if it had one

# Of a batch header: batchLength, magic, producerId, producerEpoch, baseSequence, record count.
_batch: _Unpack = struct.Struct(">8xi4xb26xqhii").unpack_from
_checksum: _Unpack = struct.Struct(">17xI").unpack_from
_NO_BATCH = (0, -1, -1, -1, 0)  # what `_read_batch` says of it behind its size
_version_and_client: _Unpack = struct.Struct(">2xh4xh").unpack_from
_name_size: _Unpack = struct.Struct(">h").unpack_from
_acks_and_topics: _Unpack = struct.Struct(">h4xB").unpack_from
_flexible_partition: _Unpack = struct.Struct(">iBBBB").unpack_from
_plain_partition: _Unpack = struct.Struct(">ii").unpack_from

_topic_and_index = itemgetter(0, 1)


class TooManyPartitions(MalformedFrame):
    """A request for more partitions than its reader allows, or than its bytes can have batches for."""


def _layouts(form: str) -> tuple[_Unpack, ...]:
    # For strings of 0 … 126 bytes: the lengths that a compact string writes in one byte.
    return tuple(struct.Struct(form.format(size)).unpack_from for size in range(127))


def _null(_buf: Buffer, _pos: int) -> tuple[Any, ...]:
    raise MalformedFrame("a topic without a name")


# client id, header tags, length of the transactional id, acks, topics
_flexible_head = _layouts(">{}sBBh4xB")
_plain_head = _layouts(">{}shh4xi")
# By the length byte: topic, partitions, first partition's index, the bytes in which the length of its records lies.
_flexible_topic = (_null, *_layouts(">{}sBiBBBB"))
_plain_topic = _layouts(">{}siii")


def skim(buf: Buffer, start: int, end: int, most: int = MAX_PARTITIONS) -> Skimmed:
    """What the Produce request in buf[start:end] (without size prefix) carries, for at most `most` partitions.

    Returns (version, acks, client id, transactional id, partitions); of each partition (topic, index, size, messages,
    producer id, producer epoch, base sequence, trailing), where `topic` is the name or, from v13 on, the 16-byte id,
    `size` the bytes of its batch and `trailing` those behind it. No records: size 0; no v2 batch: size of `records`;
    both with 0 messages and producer id, epoch and sequence -1. Raises MalformedFrame (TooManyPartitions is one), and
    nothing else.
    """
    try:
        version, size = _version_and_client(buf, start)
        if not PRODUCE_FLEXIBLE <= version <= _MAX:
            return _skim_plain(buf, start, end, version, size, most)
        client_id: bytes | None
        if size >= 0:
            client_id, header_tags, transactional, acks, topics = _flexible_head[size](buf, start + 10)
            pos = start + 19 + size
        else:
            client_id = None
            _, header_tags, transactional, acks, topics = _flexible_head[0](buf, start + 10)
            pos = start + 19
            header_tags |= size != -1
        transactional_id = None
        if transactional:
            transactional_id = bytes(buf[pos - 7 : pos + transactional - 8])
            pos += transactional - 1
            acks, topics = _acks_and_topics(buf, pos - 7)
            header_tags |= transactional & 0x80  # no length of one byte
        if header_tags or not 0 < topics < 0x80:
            return _skim_any(buf, start, end, most)
        partitions: list[Partition] = []
        while topics > 1:
            topics -= 1
            if version < PRODUCE_TOPIC_IDS:
                size = buf[pos]
                topic, count, index, a, b, c, d = _flexible_topic[size](buf, pos + 1)
                pos += size + 5
            else:
                topic, count, index, a, b, c, d = _flexible_topic[_ID](buf, pos)
                pos += 21
            if not 1 < count < 0x80:
                return _skim_any(buf, start, end, most)
            while True:
                if b < 0x80 <= a:
                    size = (a & 0x7F | b << 7) - 1
                    pos += 2
                elif a < 0x80:
                    size = a - 1
                    pos += 1
                elif c < 0x80:
                    size = (a & 0x7F | (b & 0x7F) << 7 | c << 14) - 1
                    pos += 3
                elif d < 0x80:
                    size = (a & 0x7F | (b & 0x7F) << 7 | (c & 0x7F) << 14 | d << 21) - 1
                    pos += 4
                else:
                    return _skim_any(buf, start, end, most)
                length, magic, producer, epoch, sequence, messages = _batch(buf, pos)
                trailing = size - 12 - length
                if trailing < 0 or length < _MIN_BATCH_LENGTH or magic != _MAGIC or messages < 0:
                    return _skim_any(buf, start, end, most)
                partitions.append((topic, index, length + 12, messages, producer, epoch, sequence, trailing))
                pos += size
                if buf[pos]:  # tagged fields
                    return _skim_any(buf, start, end, most)
                pos += 1
                if count == 2:
                    break
                count -= 1
                index, a, b, c, d = _flexible_partition(buf, pos)
                pos += 4
            if buf[pos]:
                return _skim_any(buf, start, end, most)
            pos += 1
        if pos + 1 != end or buf[pos] or (len(partitions) > 1 and (len(partitions) > most or _twice(partitions))):
            return _skim_any(buf, start, end, most)
        return version, acks, client_id, transactional_id, partitions
    except (struct.error, IndexError):
        return _skim_any(buf, start, end, most)


def _skim_plain(buf: Buffer, start: int, end: int, version: int, size: int, most: int) -> Skimmed:
    # v3 … v8: no compact forms, no tagged fields. Called by skim, which catches what unpacking raises.
    if not _MIN <= version < PRODUCE_FLEXIBLE or size < 0:
        return _skim_any(buf, start, end, most)
    client_id, transactional, acks, topics = _plain_head[size](buf, start + 10)
    pos = start + 22 + size
    partitions: list[Partition] = []
    room = most
    if transactional != -1 or topics < 0:
        return _skim_any(buf, start, end, most)
    while topics:
        topics -= 1
        (size,) = _name_size(buf, pos)
        if size < 0:
            return _skim_any(buf, start, end, most)
        topic, count, index, records = _plain_topic[size](buf, pos + 2)
        pos += size + 14
        room -= count
        if count < 1 or room < 0:
            return _skim_any(buf, start, end, most)
        while True:
            length, magic, producer, epoch, sequence, messages = _batch(buf, pos)
            trailing = records - 12 - length
            if trailing < 0 or length < _MIN_BATCH_LENGTH or magic != _MAGIC or messages < 0:
                return _skim_any(buf, start, end, most)
            partitions.append((topic, index, length + 12, messages, producer, epoch, sequence, trailing))
            pos += records
            count -= 1
            if not count:
                break
            index, records = _plain_partition(buf, pos)
            pos += 8
    if pos != end or end > len(buf) or (len(partitions) > 1 and _twice(partitions)):
        return _skim_any(buf, start, end, most)
    return version, acks, client_id, None, partitions


def _twice(partitions: list[Partition]) -> bool:
    return len(set(map(_topic_and_index, partitions))) != len(partitions)


def client_id(buf: Buffer, start: int, end: int) -> bytes | None:
    """The client id in the header of any request but ControlledShutdown v0 (which had none); None if null."""
    return wire.string(buf, start + 8, end)[0]


def checksums(buf: Buffer, start: int, end: int, partitions: list[Partition]) -> list[int]:
    """The CRC-32C that the batch of each of these, which are what `skim` says of this request, has in its header; -1
    where `skim` sees no batch. Nobody checks here that it is right. Raises MalformedFrame.
    """
    if len(partitions) == 1:  # without tagged fields its batch is the last thing there
        _, _, size, *fields, trailing = partitions[0]
        pos = end - size - trailing - (3 if _version_and_client(buf, start)[0] >= PRODUCE_FLEXIBLE else 0)
        if pos > start and _is_batch(buf, pos, size) and _read_batch(buf, pos, size) == (size, *fields, 0):
            return list(_checksum(buf, pos))
    return [
        _checksum(buf, partition.records_at)[0] if _is_batch(buf, partition.records_at, partition.size) else -1
        for topic in _walk(buf, start, end).topics
        for partition in topic.partitions
    ]


def strip(buf: Buffer, start: int, end: int, drop: Set[tuple[bytes, int]]) -> bytes | None:
    """The frame of the same request, size prefix included, without the partitions in `drop`; None if none is left.

    Topics that lose all their partitions go with them; every byte that isn't of these, nor a count or size of them, is
    kept as it is. Keys are (topic name or id, index) as `skim` gives them. Raises MalformedFrame.
    """
    walked = _walk(buf, start, end)
    if not any((topic.key, partition.number) not in drop for topic in walked.topics for partition in topic.partitions):
        return None
    view = memoryview(buf)
    parts: list[Buffer] = [b"\0\0\0\0", view[start : walked.count_at]]
    topics: list[Buffer] = []
    left = len(walked.topics)
    for topic in walked.topics:
        kept = [partition for partition in topic.partitions if (topic.key, partition.number) not in drop]
        if len(kept) == len(topic.partitions):
            topics.append(view[topic.start : topic.end])
        elif kept:
            topics += (view[topic.start : topic.count_at], _put_count(walked.version, len(kept)))
            topics += [view[partition.start : partition.end] for partition in kept]
            topics.append(view[topic.tags_at : topic.end])
        else:
            left -= 1
    if left == len(walked.topics):
        parts.append(view[walked.count_at : walked.first_at])
    else:
        parts.append(_put_count(walked.version, left))
    parts += topics
    parts.append(view[walked.tags_at : end])
    parts[0] = wire.INT32.pack(sum(map(len, parts)) - 4)
    return b"".join(parts)


def _put_count(version: int, count: int) -> bytes:
    return wire.put_uvarint(count + 1) if version >= PRODUCE_FLEXIBLE else wire.INT32.pack(count)


# --- step by step -----------------------------------------------------------------------------------------------------


class _Partition(NamedTuple):
    number: int  # its index
    start: int
    records_at: int
    size: int  # of the records; -1 is null
    end: int


class _Topic(NamedTuple):
    key: bytes
    start: int
    count_at: int  # of its partitions
    partitions: list[_Partition]
    tags_at: int  # where the last partition ends; from v9 on tagged fields follow
    end: int


class _Walked(NamedTuple):
    version: int
    acks: int
    client_id: bytes | None
    transactional_id: bytes | None
    count_at: int  # of the topics
    first_at: int
    topics: list[_Topic]
    tags_at: int


def _skim_any(buf: Buffer, start: int, end: int, most: int) -> Skimmed:
    walked = _walk(buf, start, end, most)
    partitions = [
        (topic.key, partition.number, *_read_batch(buf, partition.records_at, partition.size))
        for topic in walked.topics
        for partition in topic.partitions
    ]
    return walked.version, walked.acks, walked.client_id, walked.transactional_id, partitions


def _read_batch(buf: Buffer, pos: int, size: int) -> tuple[int, int, int, int, int, int]:
    if size >= BATCH_HEADER:
        length, magic, producer, epoch, sequence, messages = _batch(buf, pos)
        if magic == _MAGIC and _MIN_BATCH_LENGTH <= length <= size - _BATCH_PREFIX and messages >= 0:
            whole = _BATCH_PREFIX + length
            return whole, messages, producer, epoch, sequence, size - whole
    return max(size, 0), *_NO_BATCH


def _is_batch(buf: Buffer, pos: int, size: int) -> bool:
    return _read_batch(buf, pos, size)[1:] != _NO_BATCH


def _walk(buf: Buffer, start: int, end: int, most: int = sys.maxsize) -> _Walked:
    if end > len(buf):
        raise MalformedFrame(f"the frame ends {end - len(buf)} bytes behind the buffer")
    version, _ = wire.int16(buf, start + 2, end)
    if not _MIN <= version <= _MAX:
        raise MalformedFrame(f"Produce v{version}, v{_MIN} to v{_MAX} are spoken")
    flexible = version >= PRODUCE_FLEXIBLE
    client_id, pos = wire.string(buf, start + 8, end)
    if flexible:
        pos = wire.skip_tags(buf, pos, end)
    transactional_id, pos = (wire.compact_string if flexible else wire.string)(buf, pos, end)
    acks, pos = wire.int16(buf, pos, end)
    count = wire.skip(pos, 4, end)  # the timeout
    left, first = _array(buf, count, end, flexible)
    room = min(most, (end - start) // BATCH_HEADER + _MAX_EMPTY)
    if left > room:
        raise _too_many(left, room)
    pos = first
    topics: list[_Topic] = []
    seen: set[tuple[bytes, int]] = set()
    for _ in range(left):
        topic = _walk_topic(buf, pos, end, version, room)
        for partition in topic.partitions:
            if (topic.key, partition.number) in seen:
                raise MalformedFrame(f"partition {partition.number} of {wire.quoted(topic.key)} twice in one request")
            seen.add((topic.key, partition.number))
        topics.append(topic)
        room -= len(topic.partitions) or 1
        pos = topic.end
    after = wire.skip_tags(buf, pos, end) if flexible else pos
    wire.at_end(after, end)
    return _Walked(version, acks, client_id, transactional_id, count, first, topics, pos)


def _too_many(count: int, room: int) -> TooManyPartitions:
    return TooManyPartitions(f"{count} topics or partitions, where a request of this size may have {room} more")


def _walk_topic(buf: Buffer, start: int, end: int, version: int, room: int) -> _Topic:
    flexible = version >= PRODUCE_FLEXIBLE
    key: bytes | None
    if version >= PRODUCE_TOPIC_IDS:
        key, count = wire.uuid(buf, start, end)
    else:
        key, count = (wire.compact_string if flexible else wire.string)(buf, start, end)
    if key is None:
        raise MalformedFrame("a topic without a name")
    left, pos = _array(buf, count, end, flexible)
    if (left or 1) > room:
        raise _too_many(left, room)
    partitions = []
    for _ in range(left):
        partition = _walk_partition(buf, pos, end, flexible)
        partitions.append(partition)
        pos = partition.end
    after = wire.skip_tags(buf, pos, end) if flexible else pos
    return _Topic(key, start, count, partitions, pos, after)


def _walk_partition(buf: Buffer, start: int, end: int, flexible: bool) -> _Partition:
    index, pos = wire.int32(buf, start, end)
    if flexible:
        size, records = wire.uvarint(buf, pos, end)
        size -= 1
    else:
        size, records = wire.int32(buf, pos, end)
    pos = wire.skip(records, size, end) if size != -1 else records
    if flexible:
        pos = wire.skip_tags(buf, pos, end)
    return _Partition(index, start, records, size, pos)


def _array(buf: Buffer, pos: int, end: int, flexible: bool) -> tuple[int, int]:
    count, pos = (wire.compact_array if flexible else wire.array)(buf, pos, end)
    if count < 0:
        raise MalformedFrame("null in place of an array")
    return count, pos
