# Produce requests and answers as plain values, and two encoders of them: kio's, which shares nothing with ours, and one
# by hand (`encode`), which can also write what kio can't: tagged fields that nobody knows yet. Tests hold the two to
# each other, and our readers to the values.

from __future__ import annotations

import struct
import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.primitive import Records, i16, i32, i32Timedelta, i64

from tests.examples import EXHAUSTIVE
from tests.protocol import batches, kio_messages

VERSIONS = range(3, 14)
EDGES = VERSIONS if EXHAUSTIVE else (3, 8, 9, 12, 13)  # the first and the last of each layout of requests


class Tags(NamedTuple):
    """Sections of tagged fields, one for each place that has one; the default is empty everywhere."""

    header: bytes = b"\0"
    partition: bytes = b"\0"
    topic: bytes = b"\0"
    body: bytes = b"\0"
    record_error: bytes = b"\0"


NO_TAGS = Tags()
# Two fields with tags that Kafka doesn't use; the one of 200 bytes has a size of two varint bytes, its tag too.
UNKNOWN = Tags(
    header=b"\x01\x5a\x03abc",
    partition=b"\x02\x5a\x00\x85\x02\xc8\x01" + b"p" * 200,
    topic=b"\x01\x5b\x01t",
    body=b"\x02\x5c\x02bo\x5d\x01d",
    record_error=b"\x01\x5e\x01r",
)


class Batch(NamedTuple):
    """The `records` of a partition, and what a reader shall make of them."""

    records: bytes | None
    read: tuple[int, int, int, int, int, int]  # size, messages, producer id, epoch, base sequence, trailing


class Topic(NamedTuple):
    name: str
    id: bytes
    partitions: list[tuple[int, Batch]]


class Request(NamedTuple):
    version: int
    client_id: str | None
    transactional_id: str | None
    acks: int
    topics: list[Topic]
    timeout_ms: int = 30_000


@dataclass(frozen=True)
class Answer:
    """What a broker answers to one partition."""

    index: int
    error: int = 0
    base_offset: int = 0
    log_append_time: int = -1
    log_start_offset: int = -1
    record_errors: tuple[tuple[int, str | None], ...] = ()
    message: str | None = None
    leader: tuple[int, int] | None = None


class AnswerTopic(NamedTuple):
    name: str
    id: bytes
    partitions: list[Answer]


class Endpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class Response(NamedTuple):
    version: int
    correlation_id: int
    topics: list[AnswerTopic]
    throttle_ms: int = 0
    endpoints: tuple[Endpoint, ...] = ()


def key(topic: Topic | AnswerTopic, version: int) -> bytes:
    return topic.id if version >= 13 else topic.name.encode()


# --- by hand ----------------------------------------------------------------------------------------------------------


uvarint = kio_messages.uvarint


def _text(value: str | None, flexible: bool) -> bytes:
    if value is None:
        return b"\0" if flexible else b"\xff\xff"
    data = value.encode()
    return (uvarint(len(data) + 1) if flexible else struct.pack(">h", len(data))) + data


def _count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else struct.pack(">i", count)


def _records(records: bytes | None, flexible: bool) -> bytes:
    if records is None:
        return b"\0" if flexible else struct.pack(">i", -1)
    return _count(len(records), flexible) + records


def encode(request: Request, tags: Tags = NO_TAGS, correlation_id: int = 7) -> bytes:
    """The content of the request's frame, without size prefix."""
    version = request.version
    flexible = version >= 9
    tags = tags if flexible else Tags(b"", b"", b"", b"", b"")
    out = struct.pack(">hhi", 0, version, correlation_id) + _text(request.client_id, False) + tags.header
    out += _text(request.transactional_id, flexible) + struct.pack(">hi", request.acks, request.timeout_ms)
    out += _count(len(request.topics), flexible)
    for topic in request.topics:
        out += topic.id if version >= 13 else _text(topic.name, flexible)
        out += _count(len(topic.partitions), flexible)
        for index, batch in topic.partitions:
            out += struct.pack(">i", index) + _records(batch.records, flexible) + tags.partition
        out += tags.topic
    return out + tags.body


def tag_fields(fields: Iterable[tuple[int, bytes]], more: bytes = b"\0") -> bytes:
    """A section of the given tagged fields and those of the section `more` behind them (which has less than 128)."""
    fields = list(fields)
    out = uvarint(len(fields) + more[0])
    for tag, value in fields:
        out += uvarint(tag) + uvarint(len(value)) + value
    return out + more[1:]


def encode_endpoints(endpoints: Iterable[Endpoint], tags: bytes = b"\0") -> bytes:
    endpoints = list(endpoints)
    out = uvarint(len(endpoints) + 1)
    for node_id, host, port, rack in endpoints:
        out += struct.pack(">i", node_id) + _text(host, True) + struct.pack(">i", port) + _text(rack, True) + tags
    return out


def encode_partition(answer: Answer, version: int, tags: Tags = NO_TAGS) -> bytes:
    flexible = version >= 9
    out = struct.pack(">ihqq", answer.index, answer.error, answer.base_offset, answer.log_append_time)
    if version >= 5:
        out += struct.pack(">q", answer.log_start_offset)
    if version >= 8:
        out += _count(len(answer.record_errors), flexible)
        for index, text in answer.record_errors:
            out += struct.pack(">i", index) + _text(text, flexible) + (tags.record_error if flexible else b"")
        out += _text(answer.message, flexible)
    if flexible:
        leader = [] if answer.leader is None or version < 10 else [(0, struct.pack(">ii", *answer.leader) + b"\0")]
        out += tag_fields(leader, tags.partition)
    return out


def encode_answer(response: Response, tags: Tags = NO_TAGS) -> bytes:
    """The content of the answer's frame, without size prefix."""
    version = response.version
    flexible = version >= 9
    out = struct.pack(">i", response.correlation_id) + (tags.header if flexible else b"")
    out += _count(len(response.topics), flexible)
    for topic in response.topics:
        out += topic.id if version >= 13 else _text(topic.name, flexible)
        out += _count(len(topic.partitions), flexible)
        out += b"".join(encode_partition(answer, version, tags) for answer in topic.partitions)
        out += tags.topic if flexible else b""
    out += struct.pack(">i", response.throttle_ms)
    if flexible:
        endpoints = []
        if response.endpoints and version >= 10:
            endpoints = [(0, encode_endpoints(response.endpoints))]
        out += tag_fields(endpoints, tags.body)
    return out


def told(read: Any) -> Any:
    """The same with a list where a reader gives Partitions."""
    if isinstance(read, tuple):
        return tuple(map(told, read))
    return list(read) if hasattr(read, "topics") else read


def cut_places(content: bytes) -> range:
    """Where to cut a frame: anywhere in a short one, at every seventh byte of a long one, which has the same fields."""
    return range(0, len(content), 1 if len(content) < 400 else 7)


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


# --- by kio -----------------------------------------------------------------------------------------------------------

KIO_ERRORS = (SerialError, ValueError, KeyError, RuntimeError, OverflowError)  # of what it doesn't read


def _module_types(schema: type) -> dict[str, Any]:
    return vars(sys.modules[schema.__module__])


def _ms(value: int) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=value))


def kio_encode(request: Request, correlation_id: int = 7) -> bytes:
    schema: Any = load_request_schema(0, i16(request.version))
    types = _module_types(schema)
    header = schema.__header_schema__(
        request_api_key=i16(0),
        request_api_version=i16(request.version),
        correlation_id=i32(correlation_id),
        client_id=request.client_id,
    )
    topics = []
    for topic in request.topics:
        partitions = tuple(
            types["PartitionProduceData"](
                index=i32(index), records=None if batch.records is None else Records(batch.records)
            )
            for index, batch in topic.partitions
        )
        topics.append(types["TopicProduceData"](partition_data=partitions, **_kio_key(topic, request.version)))
    body = schema(
        transactional_id=request.transactional_id,
        acks=i16(request.acks),
        timeout=_ms(request.timeout_ms),
        topic_data=tuple(topics),
    )
    return kio_messages.kio_encode(header) + kio_messages.kio_encode(body)


def _kio_key(topic: Topic | AnswerTopic, version: int) -> dict[str, Any]:
    return {"topic_id": uuid.UUID(bytes=topic.id)} if version >= 13 else {"name": topic.name}


def _no_nulls(*arrays: object) -> None:
    # kio takes a null in place of these arrays; Kafka refuses: "non-nullable field … was serialized as null".
    if any(array is None for array in arrays):
        raise ValueError("null in place of an array")


def kio_decode(content: bytes) -> tuple[Any, Any]:
    """(header, body) of a request; ValueError if kio doesn't read it to its end, or kio's own errors."""
    schema: Any = load_request_schema(0, i16(int.from_bytes(content[2:4], "big", signed=True)))
    header, size = entity_reader(schema.__header_schema__)(content, 0)
    body, more = entity_reader(schema)(content, size)
    if size + more != len(content):
        raise ValueError("bytes left")
    _no_nulls(body.topic_data)
    _no_nulls(*(topic.partition_data for topic in body.topic_data))
    return header, body


def kio_decode_answer(version: int, content: bytes) -> tuple[Any, Any]:
    """(header, body) of an answer; ValueError if kio doesn't read it to its end, or kio's own errors."""
    schema: Any = load_response_schema(0, i16(version))
    header, size = entity_reader(schema.__header_schema__)(content, 0)
    body, more = entity_reader(schema)(content, size)
    if size + more != len(content):
        raise ValueError("bytes left")
    _no_nulls(body.responses, getattr(body, "node_endpoints", ()))
    _no_nulls(*(topic.partition_responses for topic in body.responses))
    partitions = [partition for topic in body.responses for partition in topic.partition_responses]
    _no_nulls(*(getattr(partition, "record_errors", ()) for partition in partitions))
    return header, body


def kio_encode_answer(response: Response) -> bytes:
    version = response.version
    schema: Any = load_response_schema(0, i16(version))
    types = _module_types(schema)
    topics = []
    for topic in response.topics:
        partitions = tuple(_kio_partition(types, answer, version) for answer in topic.partitions)
        topics.append(types["TopicProduceResponse"](partition_responses=partitions, **_kio_key(topic, version)))
    extra: dict[str, Any] = {}
    if version >= 10:
        extra["node_endpoints"] = tuple(
            types["NodeEndpoint"](node_id=i32(node), host=host, port=i32(port), rack=rack)
            for node, host, port, rack in response.endpoints
        )
    body = schema(responses=tuple(topics), throttle_time=_ms(response.throttle_ms), **extra)
    header = schema.__header_schema__(correlation_id=i32(response.correlation_id))
    return kio_messages.kio_encode(header) + kio_messages.kio_encode(body)


def _kio_partition(types: dict[str, Any], answer: Answer, version: int) -> Any:
    extra: dict[str, Any] = {}
    if version >= 5:
        extra["log_start_offset"] = i64(answer.log_start_offset)
    if version >= 8:
        extra["error_message"] = answer.message
        extra["record_errors"] = tuple(
            types["BatchIndexAndErrorMessage"](batch_index=i32(index), batch_index_error_message=text)
            for index, text in answer.record_errors
        )
    if version >= 10 and answer.leader is not None:
        extra["current_leader"] = types["LeaderIdAndEpoch"](
            leader_id=i32(answer.leader[0]), leader_epoch=i32(answer.leader[1])
        )
    at = answer.log_append_time
    appended = None if at == -1 else datetime.fromtimestamp(at / 1000, UTC)
    return types["PartitionProduceResponse"](
        index=i32(answer.index),
        error_code=ErrorCode(answer.error),
        base_offset=i64(answer.base_offset),
        log_append_time=appended,
        **extra,
    )


# --- strategies -------------------------------------------------------------------------------------------------------

INT32 = st.integers(-(2**31), 2**31 - 1)
NAMES = st.text("abcXYZ019._-ä", min_size=1, max_size=8) | st.sampled_from(["t" * 126, "t" * 127, "t" * 249])
TEXTS = st.none() | st.text(max_size=12) | st.just("why " * 50)
VERSION = st.sampled_from(list(VERSIONS))


@st.composite
def whole_batches(draw: st.DrawFn) -> Batch:
    values = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=3))
    producer_id = draw(st.sampled_from([-1, 0, 4000, 2**62]))
    epoch, sequence = draw(st.sampled_from([(-1, -1), (0, 0), (3, 2**31 - 1)]))
    records = batches.batch(values, producer_id=producer_id, epoch=epoch, sequence=sequence)
    trailing = draw(st.sampled_from([b"", b"", b"?", records]))
    known = sequence if producer_id >= 0 else -1
    return Batch(records + trailing, (len(records), len(values), producer_id, epoch, known, len(trailing)))


def strange(records: bytes | None) -> Batch:
    """Records that hold no v2 batch."""
    return Batch(records, (len(records or b""), 0, -1, -1, -1, 0))


STRANGE = [None, b"", b"x" * 60, b"\0" * 61, b"\xff" * 80, batches.message_set(), batches.batch([b"cut"])[:-1]]
BATCHES = st.one_of(whole_batches(), whole_batches(), st.sampled_from(STRANGE).map(strange))


@st.composite
def requests(draw: st.DrawFn, versions: st.SearchStrategy[int] = VERSION, batch: Any = BATCHES) -> Request:
    names = draw(st.lists(NAMES, unique=True, max_size=3))
    topics = []
    for number, name in enumerate(names):
        indexes = draw(st.lists(st.integers(0, 5) | INT32, unique=True, max_size=4))
        topic_id = bytes((number,)) + draw(st.binary(min_size=15, max_size=15))
        topics.append(Topic(name, topic_id, [(index, draw(batch)) for index in indexes]))
    return Request(
        draw(versions),
        draw(st.none() | st.text(max_size=10) | st.just("c" * 300)),
        draw(st.none() | st.text(max_size=10) | st.just("x" * 130)),
        draw(st.sampled_from([-1, 0, 1])),
        topics,
    )


@st.composite
def answers(draw: st.DrawFn, index: int) -> Answer:
    return Answer(
        index,
        draw(st.sampled_from([0, 0, 6, 10, 87])),
        draw(st.sampled_from([-1, 0, 10**12])),
        draw(st.sampled_from([-1, 1_700_000_000_000])),
        draw(st.sampled_from([-1, 0, 12])),
        tuple(draw(st.lists(st.tuples(INT32, TEXTS), max_size=2))),
        draw(TEXTS),
        draw(st.none() | st.tuples(INT32.filter(lambda node: node != -1), INT32)),
    )


@st.composite
def responses(draw: st.DrawFn, versions: st.SearchStrategy[int] = VERSION) -> Response:
    names = draw(st.lists(NAMES, unique=True, max_size=3))
    topics = []
    for number, name in enumerate(names):
        indexes = draw(st.lists(st.integers(0, 5) | INT32, unique=True, max_size=4))
        topic_id = bytes((number,)) + draw(st.binary(min_size=15, max_size=15))
        topics.append(AnswerTopic(name, topic_id, [draw(answers(index)) for index in indexes]))
    endpoint = st.builds(Endpoint, INT32, st.text(max_size=10), INT32, TEXTS)
    return Response(
        draw(versions),
        draw(INT32),
        topics,
        draw(st.sampled_from([0, 1, 5000, 2**31 - 1])),
        tuple(draw(st.lists(endpoint, max_size=2))),
    )
