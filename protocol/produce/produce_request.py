# Produce requests v3 to v13: what they carry (`skim_request`), and the same request without some partitions
# (`strip_partitions`).
#
# Counts as the broker does: a partition's bytes are its one record batch (12 + batchLength), whatever lies behind that
# in `records` is trimmed there and named `trailing` here. A batch that no broker would take is no malformed frame:
# the broker shall say so itself. The same partition twice in one request is one (a broker appends only the last). It
# refuses to know what the numbers are for: no meters, no verdicts, and records are never decompressed or copied.
#
# The cost of a request is bounded before anything is made of it: a caller's bound on its partitions, and no more of
# them than the frame has bytes for batches. An honest partition has a batch, so a null of six bytes buys no partition.
#
# Where the gateway is compiled, produce_fast.pyx reads the form that nearly all requests have. Here is the careful
# reader, which goes step by step, knows every form and is the one to say what is wrong.
#
# Spec: ProduceRequest.json; KIP-98 (batch v2), KIP-482 (flexible from v9), KIP-516 (topic ids from v13).

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from protocol import wire
from protocol.api import HIGHEST_VERSIONS, LOWEST_VERSIONS, PRODUCE, PRODUCE_FLEXIBLE, PRODUCE_TOPIC_IDS
from protocol.wire import Buffer, MalformedFrame

if TYPE_CHECKING:
    from protocol.produce import produce_fast
    from protocol.produce.produce_fast import PartitionArray, read_request

    gather_partitions = produce_fast.gather_partitions
else:
    try:
        from protocol.produce.produce_fast import gather_partitions, read_request
    except ImportError:  # it is not compiled
        gather_partitions = list

        def read_request(buf, start, end, most):
            return None


# topic name or id, index, bytes of the batch, messages, producer id, producer epoch, base sequence, trailing bytes
PartitionBatch: TypeAlias = tuple[bytes, int, int, int, int, int, int, int]
TopicSpan: TypeAlias = tuple[bytes, int, int]  # topic name or id, its first row, the row behind its last
RequestPartitions: TypeAlias = "list[PartitionBatch] | PartitionArray[PartitionBatch]"  # several may be in one object
SkimmedRequest: TypeAlias = tuple[
    int, int, bytes | None, bytes | None, RequestPartitions
]  # version, acks, client id, transactional id

_Unpack: TypeAlias = Callable[[Buffer, int], tuple[Any, ...]]

MAX_PARTITIONS = 10_000  # of one request, if its reader says nothing else
BATCH_HEADER = 61  # bytes of a v2 batch before its first record
_BATCH_PREFIX = 12  # baseOffset and batchLength, which batchLength doesn't count
_MIN_BATCH_LENGTH = BATCH_HEADER - _BATCH_PREFIX
_MAGIC = 2
_MAX_EMPTY = 64  # partitions without a batch, and topics without partitions, in one request: honest clients send none

_MIN = LOWEST_VERSIONS[PRODUCE]
_MAX = HIGHEST_VERSIONS[PRODUCE]

# Of a batch header: batchLength, magic, producerId, producerEpoch, baseSequence, record count.
_batch: _Unpack = struct.Struct(">8xi4xb26xqhii").unpack_from
_checksum: _Unpack = struct.Struct(">17xI").unpack_from
_NO_BATCH = (0, -1, -1, -1, 0)  # the rest of the tuple of `_read_batch`, behind the size
_version: _Unpack = struct.Struct(">2xh").unpack_from


class TooManyPartitions(MalformedFrame):
    """A request for more partitions than its reader allows, or than its bytes can have batches for."""


def skim_request(buf: Buffer, start: int, end: int, most: int = MAX_PARTITIONS) -> SkimmedRequest:
    """The contents of the Produce request in buf[start:end] (without size prefix), for at most `most` partitions.

    Returns (version, acks, client id, transactional id, partitions); of each partition (topic, index, size, messages,
    producer id, producer epoch, base sequence, trailing), where `topic` is the name or, from v13 on, the 16-byte id,
    `size` the bytes of its batch and `trailing` those behind it. Without a producer id the sequence is -1 (KafkaJS and
    sarama write 0). No records: size 0; no v2 batch: size of `records`; both with 0 messages and producer id, epoch and
    sequence -1. Raises MalformedFrame (TooManyPartitions is one), and nothing else.
    """
    return read_request(buf, start, end, most) or _skim_any(buf, start, end, most)


def read_client_id(buf: Buffer, start: int, end: int) -> bytes | None:
    """The client id in the header of any request but ControlledShutdown v0 (which had none); None if null."""
    return wire.read_string(buf, start + 8, end)[0]


def read_timeout_ms(buf: Buffer, start: int, end: int) -> int:
    """For so long a broker may wait for its followers, in milliseconds, as the Produce request there says. Raises
    MalformedFrame.
    """
    return wire.read_int32(buf, _walk_head(buf, start, end)[-1], end)[0]


def batch_checksums(buf: Buffer, start: int, end: int, partitions: list[PartitionBatch]) -> list[int]:
    """The CRC-32C in the batch header of each of these partitions, as `skim_request` gives them for this request; -1
    where `skim_request` sees no batch. It is not checked here. Raises MalformedFrame.
    """
    if len(partitions) == 1:  # without tagged fields its batch is the last thing there
        _, _, size, *fields, trailing = partitions[0]
        pos = end - size - trailing - (3 if _version(buf, start)[0] >= PRODUCE_FLEXIBLE else 0)
        if pos > start and _is_batch(buf, pos, size) and _read_batch(buf, pos, size) == (size, *fields, 0):
            return list(_checksum(buf, pos))
    return [
        _checksum(buf, partition.records_at)[0] if _is_batch(buf, partition.records_at, partition.size) else -1
        for topic in _walk_request(buf, start, end).topics
        for partition in topic.partitions
    ]


def strip_partitions(buf: Buffer, start: int, end: int, drop: Set[tuple[bytes, int]]) -> bytes | None:
    """The frame of the same request, size prefix included, without the partitions in `drop`; None if none is left.

    Topics that lose all their partitions go with them; every byte that isn't of these, nor a count or size of them, is
    kept as it is. Keys are (topic name or id, index) as `skim_request` gives them. Raises MalformedFrame.
    """
    walked = _walk_request(buf, start, end)
    if not any((topic.key, partition.number) not in drop for topic in walked.topics for partition in topic.partitions):
        return None
    flexible, view = walked.version >= PRODUCE_FLEXIBLE, memoryview(buf)
    parts: list[Buffer] = [b"\0\0\0\0", view[start : walked.count_at]]
    topics: list[Buffer] = []
    left = len(walked.topics)
    for topic in walked.topics:
        kept = [partition for partition in topic.partitions if (topic.key, partition.number) not in drop]
        if len(kept) == len(topic.partitions):
            topics.append(view[topic.start : topic.end])
        elif kept:
            topics += (view[topic.start : topic.count_at], wire.put_count(len(kept), flexible))
            topics += [view[partition.start : partition.end] for partition in kept]
            topics.append(view[topic.tags_at : topic.end])
        else:
            left -= 1
    if left == len(walked.topics):
        parts.append(view[walked.count_at : walked.first_at])
    else:
        parts.append(wire.put_count(left, flexible))
    parts += topics
    parts.append(view[walked.tags_at : end])
    parts[0] = wire.INT32.pack(sum(map(len, parts)) - 4)
    return b"".join(parts)


# --- step by step -----------------------------------------------------------------------------------------------------


class _PartitionSpan(NamedTuple):
    number: int  # its index
    start: int
    records_at: int
    size: int  # of the records; -1 is null
    end: int


class _RequestTopic(NamedTuple):
    key: bytes
    start: int
    count_at: int  # of its partitions
    partitions: list[_PartitionSpan]
    tags_at: int  # where the last partition ends; from v9 on tagged fields follow
    end: int


class _RequestLayout(NamedTuple):
    version: int
    acks: int
    client_id: bytes | None
    transactional_id: bytes | None
    count_at: int  # of the topics
    first_at: int
    topics: list[_RequestTopic]
    tags_at: int


def _skim_any(buf: Buffer, start: int, end: int, most: int) -> SkimmedRequest:
    walked = _walk_request(buf, start, end, most)
    partitions = [
        (topic.key, partition.number, *_read_batch(buf, partition.records_at, partition.size))
        for topic in walked.topics
        for partition in topic.partitions
    ]
    return walked.version, walked.acks, walked.client_id, walked.transactional_id, gather_partitions(partitions)


def _read_batch(buf: Buffer, pos: int, size: int) -> tuple[int, int, int, int, int, int]:
    if size >= BATCH_HEADER:
        length, magic, producer, epoch, sequence, messages = _batch(buf, pos)
        if magic == _MAGIC and _MIN_BATCH_LENGTH <= length <= size - _BATCH_PREFIX and messages >= 0:
            whole = _BATCH_PREFIX + length
            return whole, messages, producer, epoch, sequence if producer >= 0 else -1, size - whole
    return max(size, 0), *_NO_BATCH


def _is_batch(buf: Buffer, pos: int, size: int) -> bool:
    return _read_batch(buf, pos, size)[1:] != _NO_BATCH


def _walk_head(buf: Buffer, start: int, end: int) -> tuple[int, bytes | None, bytes | None, int, int]:
    """Version, client id, transactional id, acks, and where the timeout is."""
    if end > len(buf):
        raise MalformedFrame(f"the frame ends {end - len(buf)} bytes behind the buffer")
    version, _ = wire.read_int16(buf, start + 2, end)
    if not _MIN <= version <= _MAX:
        raise MalformedFrame(f"Produce v{version}, v{_MIN} to v{_MAX} are spoken")
    flexible = version >= PRODUCE_FLEXIBLE
    client_id, pos = wire.read_string(buf, start + 8, end)
    if flexible:
        pos = wire.skip_tags(buf, pos, end)
    transactional_id, pos = (wire.read_compact_string if flexible else wire.read_string)(buf, pos, end)
    acks, pos = wire.read_int16(buf, pos, end)
    return version, client_id, transactional_id, acks, pos


def _walk_request(buf: Buffer, start: int, end: int, most: int = sys.maxsize) -> _RequestLayout:
    version, client_id, transactional_id, acks, pos = _walk_head(buf, start, end)
    flexible = version >= PRODUCE_FLEXIBLE
    count = wire.skip_bytes(pos, 4, end)  # the timeout
    left, first = wire.read_nonnull_count(buf, count, end, flexible)
    room = min(most, (end - start) // BATCH_HEADER + _MAX_EMPTY)
    if left > room:
        raise _too_many(left, room)
    pos = first
    topics: list[_RequestTopic] = []
    seen: set[tuple[bytes, int]] = set()
    for _ in range(left):
        topic = _walk_topic(buf, pos, end, version, room)
        for partition in topic.partitions:
            if (topic.key, partition.number) in seen:
                raise MalformedFrame(
                    f"partition {partition.number} of {wire.quote_bytes(topic.key)} twice in one request"
                )
            seen.add((topic.key, partition.number))
        topics.append(topic)
        room -= len(topic.partitions) or 1
        pos = topic.end
    after = wire.skip_tags(buf, pos, end) if flexible else pos
    wire.check_end(after, end)
    return _RequestLayout(version, acks, client_id, transactional_id, count, first, topics, pos)


def _too_many(count: int, room: int) -> TooManyPartitions:
    return TooManyPartitions(f"{count} topics or partitions, where a request of this size may have {room} more")


def read_topic_key(buf: Buffer, pos: int, end: int, version: int) -> tuple[bytes, int]:
    """A topic's name, or from v13 on its id, as requests and answers have it."""
    if version >= PRODUCE_TOPIC_IDS:
        return wire.read_uuid(buf, pos, end)
    name, pos = (wire.read_compact_string if version >= PRODUCE_FLEXIBLE else wire.read_string)(buf, pos, end)
    if name is None:
        raise MalformedFrame("a topic without a name")
    return name, pos


def _walk_topic(buf: Buffer, start: int, end: int, version: int, room: int) -> _RequestTopic:
    flexible = version >= PRODUCE_FLEXIBLE
    key, count = read_topic_key(buf, start, end, version)
    left, pos = wire.read_nonnull_count(buf, count, end, flexible)
    if (left or 1) > room:
        raise _too_many(left, room)
    partitions = []
    for _ in range(left):
        partition = _walk_partition(buf, pos, end, flexible)
        partitions.append(partition)
        pos = partition.end
    after = wire.skip_tags(buf, pos, end) if flexible else pos
    return _RequestTopic(key, start, count, partitions, pos, after)


def _walk_partition(buf: Buffer, start: int, end: int, flexible: bool) -> _PartitionSpan:
    index, pos = wire.read_int32(buf, start, end)
    if flexible:
        size, records = wire.read_uvarint(buf, pos, end)
        size -= 1
    else:
        size, records = wire.read_int32(buf, pos, end)
    pos = wire.skip_bytes(records, size, end) if size != -1 else records
    if flexible:
        pos = wire.skip_tags(buf, pos, end)
    return _PartitionSpan(index, start, records, size, pos)
