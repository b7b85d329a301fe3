# Produce answers v3 to v13: what the broker said (`skim_response`), our own answers (`local_response`), and the
# broker's answer with our rejected partitions (`merge_response`) or addresses (`rewrite_endpoints`) in it.
#
# Nothing is decoded and encoded again: spans are copied, so fields, tags and orders that this release knows nothing of
# survive. A broker orders topics and partitions as it likes: everything is matched by (topic name or id, index), never
# by position. `current_leader` (KIP-951) holds ids only and is left alone. It refuses to know why a partition is
# rejected, and which request an answer is for: the caller says its version.
#
# `skim_response` runs once per answer; as in produce_request the form that nearly all have is produce_fast.pyx's, where
# that is compiled, and all else is `_walk_response`'s.
#
# Spec: ProduceResponse.json; KIP-219 (throttle time), KIP-467 (error_message, v8), KIP-482, KIP-516, KIP-951 (v10).

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from protocol import wire
from protocol.api import (
    HIGHEST_VERSIONS,
    LOWEST_VERSIONS,
    PRODUCE,
    PRODUCE_ENDPOINTS,
    PRODUCE_ERROR_TEXT,
    PRODUCE_FLEXIBLE,
    PRODUCE_LOG_START,
    PRODUCE_TOPIC_IDS,
)
from protocol.produce.produce_request import gather_partitions, read_topic_key
from protocol.wire import Buffer, MalformedFrame

if TYPE_CHECKING:
    from protocol.produce.produce_fast import PartitionArray, read_response
else:
    try:
        from protocol.produce.produce_fast import read_response
    except ImportError:  # it is not compiled

        def read_response(buf, start, end, version):
            return None


PartitionResult: TypeAlias = tuple[bytes, int, int, int]  # topic name or id, index, error code, base offset
PartitionResults: TypeAlias = "list[PartitionResult] | PartitionArray[PartitionResult]"
PartitionError: TypeAlias = tuple[bytes, int, int, str | None]  # topic name or id, index, error code, message
Addresses: TypeAlias = Mapping[int, tuple[bytes, int]]  # node id -> host, port
_Unpack: TypeAlias = Callable[[Buffer, int], tuple[Any, ...]]

_NODE_ENDPOINTS = 0  # tag of the body
_MAX_TEXT = 8_000  # characters of an error message: even at four bytes each they fit a string of v8

_MIN = LOWEST_VERSIONS[PRODUCE]
_MAX = HIGHEST_VERSIONS[PRODUCE]

_plain_partition: _Unpack = struct.Struct(">ihq").unpack_from  # index, error code, base offset


def skim_response(buf: Buffer, start: int, end: int, version: int) -> tuple[PartitionResults, bool]:
    """The broker's results in the Produce answer in buf[start:end] (without size prefix) to a request of `version`.

    Returns ([(topic name or id, index, error code, base offset)], whether it carries NodeEndpoints) in the broker's
    order. Raises MalformedFrame, and nothing else.
    """
    answered = read_response(buf, start, end, version)
    return _skim_any(buf, start, end, version) if answered is None else (answered, False)


def local_response(version: int, correlation_id: int, rows: Sequence[PartitionError], throttle_ms: int) -> bytes:
    """The frame of an answer of our own, size prefix included.

    `rows` are (topic name or id, index, error code, message or None) of all the request's partitions; the message gets
    to the client from v8 on. Offsets are -1.
    """
    if not _MIN <= version <= _MAX:
        raise ValueError(f"Produce v{version}, v{_MIN} to v{_MAX} are spoken")
    flexible = version >= PRODUCE_FLEXIBLE
    topics = _rows_by_topic(rows)
    parts = [wire.INT32.pack(correlation_id), wire.NO_TAGS if flexible else b"", wire.put_count(len(topics), flexible)]
    parts += [_put_topic(topic, of_topic, version) for topic, of_topic in topics.items()]
    parts += (wire.INT32.pack(throttle_ms), wire.NO_TAGS if flexible else b"")
    return wire.with_size_prefix(b"".join(parts))


def merge_response(
    buf: Buffer, start: int, end: int, version: int, rows: Sequence[PartitionError], throttle_ms: int
) -> bytes:
    """The frame of the broker's answer with `rows` in it as well, size prefix included.

    A row goes behind the broker's partitions of its topic, or into a new topic at the end. Throttle time is the larger
    of the broker's and ours. Raises MalformedFrame, also when the broker has answered for a partition of `rows`: it
    was not sent any such.
    """
    walked = _walk_response(buf, start, end, version)
    ours = _rows_by_topic(rows)
    for topic in walked.topics:
        indexes = {row[1] for row in ours.get(topic.key, ())}
        if indexes and not indexes.isdisjoint([number for number, _, _ in topic.partitions]):
            raise MalformedFrame(
                f"the broker answers for a partition of {wire.quote_bytes(topic.key)} that it was not sent"
            )
    flexible = version >= PRODUCE_FLEXIBLE
    view = memoryview(buf)
    topics: list[Buffer] = []
    for topic in walked.topics:
        more = ours.pop(topic.key, None)
        if more is None:
            topics.append(view[topic.start : topic.end])
        else:
            topics += (view[topic.start : topic.count_at], wire.put_count(len(topic.partitions) + len(more), flexible))
            topics.append(view[topic.first_at : topic.tags_at])
            topics += [_put_partition(row, version) for row in more]
            topics.append(view[topic.tags_at : topic.end])
    topics += [_put_topic(key, more, version) for key, more in ours.items()]
    throttle = max(throttle_ms, walked.throttle_ms)
    parts: list[Buffer] = [view[start : walked.count_at]]
    if ours:
        parts.append(wire.put_count(len(walked.topics) + len(ours), flexible))
    else:
        parts.append(view[walked.count_at : walked.first_at])
    parts += (*topics, wire.INT32.pack(throttle), view[walked.throttle_at + 4 : end])
    return b"".join((wire.INT32.pack(sum(map(len, parts))), *parts))


def rewrite_endpoints(buf: Buffer, start: int, end: int, version: int, addresses: Addresses) -> bytes:
    """The frame of the answer, size prefix included, with the addresses of its NodeEndpoints replaced.

    A node that isn't in `addresses` is left out, for its own address would lead clients past the gateway; they ask for
    metadata then. Raises MalformedFrame.
    """
    walked = _walk_response(buf, start, end, version)
    if version < PRODUCE_ENDPOINTS or not any(tag == _NODE_ENDPOINTS for tag, _, _ in walked.tags):
        return wire.with_size_prefix(bytes(buf[start:end]))
    tags = []
    for tag, at, after in walked.tags:
        value = bytes(buf[at:after])
        if tag == _NODE_ENDPOINTS:
            value, left = _replace_addresses(value, addresses)
            if not left:  # an empty list is the default, and a default isn't written
                continue
        tags.append((tag, value))
    return wire.with_size_prefix(bytes(buf[start : walked.throttle_at + 4]) + wire.put_tags(tags))


def _replace_addresses(value: bytes, addresses: Addresses) -> tuple[bytes, int]:
    # node id, host, port, rack, tagged fields: only host and port are ours to change.
    end = len(value)
    count, pos = wire.read_nonnull_count(value, 0, end, flexible=True)
    endpoints = []
    for _ in range(count):
        at = pos
        node_id, pos = wire.read_int32(value, pos, end)
        host, pos = wire.read_compact_string(value, pos, end)
        if host is None:
            raise MalformedFrame("an endpoint without a host")
        _, rack_at = wire.read_int32(value, pos, end)
        _, pos = wire.read_compact_string(value, rack_at, end)
        pos = wire.skip_tags(value, pos, end)
        if node_id in addresses:
            new_host, new_port = addresses[node_id]
            address = wire.put_compact_string(new_host) + wire.INT32.pack(new_port)
            endpoints.append(value[at : at + 4] + address + value[rack_at:pos])
    wire.check_end(pos, end)
    return wire.put_count(len(endpoints), flexible=True) + b"".join(endpoints), len(endpoints)


# --- writing ----------------------------------------------------------------------------------------------------------


def _rows_by_topic(rows: Sequence[PartitionError]) -> dict[bytes, list[PartitionError]]:
    topics: dict[bytes, list[PartitionError]] = {}
    for row in rows:
        topics.setdefault(row[0], []).append(row)
    return topics


def _put_topic(key: bytes, rows: list[PartitionError], version: int) -> bytes:
    flexible = version >= PRODUCE_FLEXIBLE
    if version < PRODUCE_TOPIC_IDS:
        key = wire.put_compact_string(key) if flexible else wire.put_string(key)
    partitions = [_put_partition(row, version) for row in rows]
    return b"".join((key, wire.put_count(len(rows), flexible), *partitions, wire.NO_TAGS if flexible else b""))


_pack_refused = struct.Struct(">ihqq").pack  # index, error code, base offset, log append time


def _put_partition(row: PartitionError, version: int) -> bytes:
    _, index, error, message = row
    put = _pack_refused(index, error, -1, -1)
    if version >= PRODUCE_LOG_START:
        put += wire.INT64.pack(-1)
    if version >= PRODUCE_ERROR_TEXT:
        text = None if message is None else message[:_MAX_TEXT].encode(errors="replace")
        flexible = version >= PRODUCE_FLEXIBLE
        put += wire.put_count(0, flexible)  # record errors
        put += wire.put_compact_string(text) + wire.NO_TAGS if flexible else wire.put_string(text)
    return put


# --- step by step -----------------------------------------------------------------------------------------------------


class _ResponseTopic(NamedTuple):
    key: bytes
    start: int
    count_at: int  # of its partitions
    first_at: int
    partitions: list[tuple[int, int, int]]  # index, error code, base offset
    tags_at: int  # where the last partition ends; from v9 on tagged fields follow
    end: int


class _ResponseLayout(NamedTuple):
    count_at: int  # of the topics
    first_at: int
    topics: list[_ResponseTopic]
    throttle_at: int
    throttle_ms: int
    tags: list[tuple[int, int, int]]


def _skim_any(buf: Buffer, start: int, end: int, version: int) -> tuple[PartitionResults, bool]:
    walked = _walk_response(buf, start, end, version)
    answered = [(topic.key, *partition) for topic in walked.topics for partition in topic.partitions]
    endpoints = version >= PRODUCE_ENDPOINTS and any(tag == _NODE_ENDPOINTS for tag, _, _ in walked.tags)
    return gather_partitions(answered), endpoints


def _walk_response(buf: Buffer, start: int, end: int, version: int) -> _ResponseLayout:
    if end > len(buf):
        raise MalformedFrame(f"the frame ends {end - len(buf)} bytes behind the buffer")
    if not _MIN <= version <= _MAX:
        raise MalformedFrame(f"Produce v{version}, v{_MIN} to v{_MAX} are spoken")
    flexible = version >= PRODUCE_FLEXIBLE
    count_at = wire.skip_bytes(start, 4, end)  # the correlation id
    if flexible:
        count_at = wire.skip_tags(buf, count_at, end)
    left, first_at = wire.read_nonnull_count(buf, count_at, end, flexible)
    pos = first_at
    topics: list[_ResponseTopic] = []
    for _ in range(left):
        topic = _walk_topic(buf, pos, end, version)
        topics.append(topic)
        pos = topic.end
    throttle_ms, after = wire.read_int32(buf, pos, end)
    tags: list[tuple[int, int, int]] = []
    if flexible:
        tags, after = wire.read_tags(buf, after, end)
    wire.check_end(after, end)
    return _ResponseLayout(count_at, first_at, topics, pos, throttle_ms, tags)


def _walk_topic(buf: Buffer, start: int, end: int, version: int) -> _ResponseTopic:
    flexible = version >= PRODUCE_FLEXIBLE
    key, count_at = read_topic_key(buf, start, end, version)
    left, first_at = wire.read_nonnull_count(buf, count_at, end, flexible)
    pos = first_at
    partitions = []
    for _ in range(left):
        after = wire.skip_bytes(pos, 22 if version < PRODUCE_LOG_START else 30, end)
        partitions.append(_plain_partition(buf, pos))
        pos = _skip_error_text(buf, after, end, flexible) if version >= PRODUCE_ERROR_TEXT else after
    after = wire.skip_tags(buf, pos, end) if flexible else pos
    return _ResponseTopic(key, start, count_at, first_at, partitions, pos, after)


def _skip_error_text(buf: Buffer, pos: int, end: int, flexible: bool) -> int:
    # record_errors, error_message, and the tagged fields of the partition.
    string = wire.read_compact_string if flexible else wire.read_string
    left, pos = wire.read_nonnull_count(buf, pos, end, flexible)
    for _ in range(left):
        pos = wire.skip_bytes(pos, 4, end)  # the index in the batch
        _, pos = string(buf, pos, end)
        if flexible:
            pos = wire.skip_tags(buf, pos, end)
    _, pos = string(buf, pos, end)
    return wire.skip_tags(buf, pos, end) if flexible else pos
