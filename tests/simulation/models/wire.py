# The few APIs that models speak, written anew from Kafka's message definitions: the models and the judge share no code
# with the product.

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

PRODUCE, FETCH, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 3, 18, 22
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
FIND_COORDINATOR, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 10, 24, 25, 26, 28
# The oldest and newest version of each that the model brokers serve.
SERVED: Final = {
    PRODUCE: (3, 12), FETCH: (4, 11), METADATA: (0, 12), API_VERSIONS: (0, 4), INIT_PRODUCER_ID: (0, 4),
    SASL_HANDSHAKE: (0, 1), SASL_AUTHENTICATE: (0, 2),
}  # fmt: skip
# Those of transactions, which they serve in worlds that have any (wire_transactions.py).
SERVED_WITH_TRANSACTIONS: Final = SERVED | {
    FIND_COORDINATOR: (0, 4), ADD_PARTITIONS: (0, 3), ADD_OFFSETS: (0, 3), END_TXN: (0, 5), TXN_OFFSET_COMMIT: (0, 3),
}  # fmt: skip
FLEXIBLE_FROM: Final = {
    PRODUCE: 9, FETCH: 12, METADATA: 9, API_VERSIONS: 3, INIT_PRODUCER_ID: 2,
    SASL_HANDSHAKE: 99, SASL_AUTHENTICATE: 2,
    FIND_COORDINATOR: 3, ADD_PARTITIONS: 3, ADD_OFFSETS: 3, END_TXN: 3, TXN_OFFSET_COMMIT: 3,
}  # fmt: skip
TRANSACTIONAL, CONTROL = 0x10, 0x20  # attributes of a batch
BATCH_HEAD: Final = struct.Struct(">qiibIhiqqqhii")  # 61 bytes of a record batch of magic 2
PADDING: Final = bytes(range(256)) * 4096
BODY_HEAD: Final = struct.Struct(">IQQ")  # of ours: client, first record's number, attempt
_UNSIGNED, _INT16, _INT32, _INT64 = struct.Struct(">I"), struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


class Batch(NamedTuple):
    """A record batch as it lies in a log. `first`: the number of its first record, which its client counts. `size`: in
    bytes.
    """

    client: int
    first: int
    records: int
    size: int
    attempt: int
    producer: int
    epoch: int
    sequence: int


def encode_batch(batch: Batch, padding: bytes, attributes: int = 0) -> bytes:
    """`batch.size` bytes; the records themselves are only a body of that size, since nobody reads them."""
    size = batch.size
    checksum = (batch.client * 2_654_435_761 + batch.first * 40_503) & 0xFFFF_FFFF  # the same each time it is sent
    head = BATCH_HEAD.pack(
        0,
        size - 12,
        0,
        2,
        checksum,
        attributes,
        batch.records - 1,
        0,
        0,
        batch.producer,
        batch.epoch,
        batch.sequence,
        batch.records,
    )
    body = BODY_HEAD.pack(batch.client, batch.first, batch.attempt)
    return head + body + padding[: size - len(head) - len(body)]


def decode_batch(data: bytes) -> Batch:
    (_, length, _, _, _, _, _, _, _, producer, epoch, sequence, count) = BATCH_HEAD.unpack_from(data)
    client, first, attempt = BODY_HEAD.unpack_from(data, BATCH_HEAD.size)
    return Batch(client, first, count, 12 + length, attempt, producer, epoch, sequence)


def batch_attributes(data: bytes) -> int:
    return int.from_bytes(data[21:23], "big")


class Reader:
    """Reads fields from `at` on."""

    __slots__ = ("at", "data", "is_flexible")

    def __init__(self, data: bytes, at: int, *, is_flexible: bool) -> None:
        self.data = data
        self.at = at
        self.is_flexible = is_flexible

    def _take(self, fields: struct.Struct) -> int:
        (value,) = fields.unpack_from(self.data, self.at)
        self.at += fields.size
        return int(value)

    def int8(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def int16(self) -> int:
        return self._take(_INT16)

    def int32(self) -> int:
        return self._take(_INT32)

    def int64(self) -> int:
        return self._take(_INT64)

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.int8()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def count(self) -> int:
        """The length of an array; -1: null."""
        return self.unsigned() - 1 if self.is_flexible else self.int32()

    def text(self) -> str | None:
        size = self.unsigned() - 1 if self.is_flexible else self.int16()
        if size < 0:
            return None
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def blob(self) -> bytes:
        size = self.unsigned() - 1 if self.is_flexible else self.int32()
        self.at += max(0, size)
        return self.data[self.at - max(0, size) : self.at]

    def fixed(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def tags(self) -> None:
        for _ in range(self.unsigned() if self.is_flexible else 0):
            self.unsigned()
            size = self.unsigned()
            self.at += size


class Writer:
    """Gathers fields."""

    __slots__ = ("is_flexible", "parts")

    def __init__(self, *, is_flexible: bool) -> None:
        self.parts: list[bytes] = []
        self.is_flexible = is_flexible

    def int8(self, value: int) -> None:
        self.parts.append(bytes([value & 255]))

    def int16(self, value: int) -> None:
        self.parts.append(_INT16.pack(value))

    def int32(self, value: int) -> None:
        self.parts.append(_INT32.pack(value))

    def int64(self, value: int) -> None:
        self.parts.append(_INT64.pack(value))

    def unsigned(self, value: int) -> None:
        found = bytearray()
        while value > 127:
            found.append(value & 127 | 128)
            value >>= 7
        found.append(value)
        self.parts.append(bytes(found))

    def count(self, value: int) -> None:
        if self.is_flexible:
            self.unsigned(value + 1)
        else:
            self.int32(value)

    def text(self, value: str | None) -> None:
        data = None if value is None else value.encode()
        size = -1 if data is None else len(data)
        if self.is_flexible:
            self.unsigned(size + 1)
        else:
            self.int16(size)
        self.parts.append(data or b"")

    def blob(self, data: bytes) -> None:
        self.count(len(data))
        self.parts.append(data)

    def int32s(self, values: list[int]) -> None:
        self.count(len(values))
        for value in values:
            self.int32(value)

    def tags(self) -> None:
        if self.is_flexible:
            self.parts.append(b"\0")

    def frame(self) -> bytes:
        body = b"".join(self.parts)
        return _UNSIGNED.pack(len(body)) + body


class Frames:
    """Frames out of a stream of bytes, cut anywhere."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are whole now, without their sizes."""
        buf = self._rest + data if self._rest else data
        found, at, end = [], 0, len(buf)
        while end - at >= 4:
            (size,) = _UNSIGNED.unpack_from(buf, at)
            if end - at < 4 + size:
                break
            found.append(buf[at + 4 : at + 4 + size])
            at += 4 + size
        self._rest = buf[at:]
        return found


class Head(NamedTuple):
    """The head of a request, and where its body begins."""

    api: int
    version: int
    correlation: int
    client_id: str | None
    body: Reader


def read_head(frame: bytes) -> Head:
    api, version, correlation = struct.unpack_from(">hhi", frame)
    body = Reader(frame, 8, is_flexible=False)
    client_id = body.text()
    body.is_flexible = version >= FLEXIBLE_FROM.get(api, 99)
    body.tags()
    return Head(api, version, correlation, client_id, body)


def write_head(api: int, version: int, correlation: int, client_id: str | None) -> Writer:
    request = Writer(is_flexible=False)
    request.parts.append(struct.pack(">hhi", api, version, correlation))
    request.text(client_id)
    request.is_flexible = version >= FLEXIBLE_FROM[api]
    request.tags()
    return request


def begin_answer(api: int, version: int, correlation: int) -> Writer:
    answer = Writer(is_flexible=version >= FLEXIBLE_FROM[api])
    answer.int32(correlation)
    if api != API_VERSIONS:
        answer.tags()
    return answer


# --- Produce ----------------------------------------------------------------------------------------------------------

Rows = list[tuple[str, list[tuple[int, bytes]]]]  # by topic, of each partition its batch


def encode_produce(
    version: int, correlation: int, client_id: str | None, acks: int, timeout_ms: int, rows: Rows,
    transactional_id: str | None = None,
) -> bytes:  # fmt: skip
    request = write_head(PRODUCE, version, correlation, client_id)
    request.text(transactional_id)
    request.int16(acks)
    request.int32(timeout_ms)
    request.count(len(rows))
    for topic, partitions in rows:
        request.text(topic)
        request.count(len(partitions))
        for index, records in partitions:
            request.int32(index)
            request.blob(records)
            request.tags()
        request.tags()
    request.tags()
    return request.frame()


def decode_produce(head: Head) -> tuple[int, int, Rows]:
    """acks, timeout and rows."""
    body = head.body
    body.text()
    acks, timeout_ms = body.int16(), body.int32()
    rows: Rows = []
    for _ in range(body.count()):
        topic, partitions = body.text() or "", []
        for _ in range(body.count()):
            partitions.append((body.int32(), body.blob()))
            body.tags()
        body.tags()
        rows.append((topic, partitions))
    return acks, timeout_ms, rows


class Outcome(NamedTuple):
    """What becomes of one partition of a request."""

    topic: str
    partition: int
    error: int
    offset: int
    text: str | None = None


def encode_produce_answer(version: int, correlation: int, outcomes: list[Outcome], throttle_ms: int = 0) -> bytes:
    answer = begin_answer(PRODUCE, version, correlation)
    topics: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        topics.setdefault(outcome.topic, []).append(outcome)
    answer.count(len(topics))
    for topic, many in topics.items():
        answer.text(topic)
        answer.count(len(many))
        for outcome in many:
            answer.int32(outcome.partition)
            answer.int16(outcome.error)
            answer.int64(outcome.offset)
            answer.int64(-1)
            if version >= 5:
                answer.int64(0)
            if version >= 8:
                answer.count(0)
                answer.text(outcome.text)
            answer.tags()
        answer.tags()
    answer.int32(throttle_ms)
    answer.tags()
    return answer.frame()


def decode_produce_answer(version: int, frame: bytes) -> tuple[list[Outcome], int]:
    """Outcomes and the throttle time."""
    answer = Reader(frame, 4, is_flexible=version >= FLEXIBLE_FROM[PRODUCE])
    answer.tags()
    found = []
    for _ in range(answer.count()):
        topic = answer.text() or ""
        for _ in range(answer.count()):
            index, error, offset = answer.int32(), answer.int16(), answer.int64()
            answer.int64()
            if version >= 5:
                answer.int64()
            text = None
            if version >= 8:
                for _ in range(answer.count()):
                    answer.int32(), answer.text()
                    answer.tags()
                text = answer.text()
            answer.tags()
            found.append(Outcome(topic, index, error, offset, text))
        answer.tags()
    return found, answer.int32()


# --- Fetch, version 11 ------------------------------------------------------------------------------------------------


def encode_fetch(
    version: int, correlation: int, client_id: str | None, max_wait_ms: int, max_bytes: int,
    wanted: list[tuple[str, int, int]], isolation: int = 0,
) -> bytes:  # fmt: skip
    """`wanted`: topic, partition and offset. `isolation`: 1 for read_committed."""
    request = write_head(FETCH, version, correlation, client_id)
    for value in (-1, max_wait_ms, 1, max_bytes):
        request.int32(value)
    request.int8(isolation)
    request.int32(0)
    request.int32(-1)
    topics = list(dict.fromkeys(topic for topic, _, _ in wanted))
    request.count(len(topics))
    for name in topics:
        mine = [(index, offset) for topic, index, offset in wanted if topic == name]
        request.text(name)
        request.count(len(mine))
        for index, offset in mine:
            request.int32(index)
            request.int32(-1)
            request.int64(offset)
            request.int64(-1)
            request.int32(max_bytes)
    request.count(0)
    request.text("")
    return request.frame()


class Wanted(NamedTuple):
    topic: str
    partition: int
    offset: int
    max_bytes: int


def decode_fetch(head: Head) -> tuple[int, int, int, list[Wanted]]:
    """The longest wait in ms, the most bytes, the isolation and what is wanted; of all versions from 4 to 11."""
    body, version, found = head.body, head.version, list[Wanted]()
    body.int32()
    wait_ms, _, max_bytes = body.int32(), body.int32(), body.int32()
    isolation = body.int8()
    if version >= 7:
        body.int32(), body.int32()
    for _ in range(body.count()):
        topic = body.text() or ""
        for _ in range(body.count()):
            index = body.int32()
            if version >= 9:
                body.int32()
            offset = body.int64()
            if version >= 5:
                body.int64()
            found.append(Wanted(topic, index, offset, body.int32()))
    return wait_ms, max_bytes, isolation, found


class Fetched(NamedTuple):
    """`batches`: with their offsets and attributes. `records`: their bytes. `stable`: the last stable offset.
    `aborted`: producers' transactions that were, and where they begin; None where nobody asked.
    """

    topic: str
    partition: int
    error: int
    end: int
    records: bytes
    batches: list[tuple[int, int, Batch]]
    stable: int = -1
    aborted: list[tuple[int, int]] | None = None


def encode_fetch_answer(version: int, correlation: int, many: list[Fetched]) -> bytes:
    answer = begin_answer(FETCH, version, correlation)
    answer.int32(0)
    if version >= 7:
        answer.int16(0)
        answer.int32(0)
    topics = list(dict.fromkeys(each.topic for each in many))
    answer.count(len(topics))
    for name in topics:
        mine = [each for each in many if each.topic == name]
        answer.text(name)
        answer.count(len(mine))
        for each in mine:
            answer.int32(each.partition)
            answer.int16(each.error)
            answer.int64(each.end)
            answer.int64(each.end if each.stable < 0 else each.stable)
            if version >= 5:
                answer.int64(0)
            answer.count(-1 if each.aborted is None else len(each.aborted))
            for producer, first in each.aborted or ():
                answer.int64(producer)
                answer.int64(first)
            if version >= 11:
                answer.int32(-1)
            answer.blob(each.records)
    return answer.frame()


def decode_fetch_answer(frame: bytes) -> tuple[list[Fetched], int]:
    """Of version 11: what was read, and the throttle time."""
    answer, found = Reader(frame, 4, is_flexible=False), list[Fetched]()
    throttle_ms = answer.int32()
    answer.int16(), answer.int32()
    for _ in range(answer.count()):
        topic = answer.text() or ""
        for _ in range(answer.count()):
            index, error, end = answer.int32(), answer.int16(), answer.int64()
            stable, _ = answer.int64(), answer.int64()
            aborted = [(answer.int64(), answer.int64()) for _ in range(answer.count())]
            answer.int32()
            records = answer.blob()
            found.append(Fetched(topic, index, error, end, b"", list(_read_batches(records)), stable, aborted))
    return found, throttle_ms


def _read_batches(records: bytes) -> Iterator[tuple[int, int, Batch]]:
    at = 0
    while len(records) - at > BATCH_HEAD.size:
        offset, length = struct.unpack_from(">qi", records, at)
        if at + 12 + length > len(records):
            return  # cut off, as it may be
        data = records[at : at + 12 + length]
        yield offset, batch_attributes(data), decode_batch(data)
        at += 12 + length


# --- the others -------------------------------------------------------------------------------------------------------


def encode_api_versions(version: int, correlation: int, client_id: str | None, software: tuple[str, str]) -> bytes:
    request = write_head(API_VERSIONS, version, correlation, client_id)
    if version >= 3:
        request.text(software[0])
        request.text(software[1])
    request.tags()
    return request.frame()


def encode_api_versions_answer(version: int, correlation: int, served: dict[int, tuple[int, int]]) -> bytes:
    known = version in range(SERVED[API_VERSIONS][0], SERVED[API_VERSIONS][1] + 1)
    version = version if known else 0
    answer = begin_answer(API_VERSIONS, version, correlation)
    answer.int16(0 if known else 35)
    answer.count(len(served))
    for api, (lowest, highest) in served.items():
        answer.int16(api)
        answer.int16(lowest)
        answer.int16(highest)
        answer.tags()
    if version >= 1:
        answer.int32(0)
    answer.tags()
    return answer.frame()


def decode_api_versions_answer(version: int, frame: bytes) -> dict[int, int]:
    """The newest version of each API."""
    answer = Reader(frame, 4, is_flexible=version >= 3)
    answer.int16()
    found = {}
    for _ in range(answer.count()):
        api, _, newest = answer.int16(), answer.int16(), answer.int16()
        answer.tags()
        found[api] = newest
    return found


def encode_sasl_handshake(version: int, correlation: int, client_id: str | None, mechanism: str) -> bytes:
    request = write_head(SASL_HANDSHAKE, version, correlation, client_id)
    request.text(mechanism)
    return request.frame()


def encode_sasl_handshake_answer(version: int, correlation: int, error: int, mechanisms: tuple[str, ...]) -> bytes:
    answer = begin_answer(SASL_HANDSHAKE, version, correlation)
    answer.int16(error)
    answer.count(len(mechanisms))
    for mechanism in mechanisms:
        answer.text(mechanism)
    return answer.frame()


def decode_sasl_handshake_answer(frame: bytes) -> int:
    """The error."""
    return Reader(frame, 4, is_flexible=False).int16()


def encode_sasl_authenticate(version: int, correlation: int, client_id: str | None, data: bytes) -> bytes:
    request = write_head(SASL_AUTHENTICATE, version, correlation, client_id)
    request.blob(data)
    request.tags()
    return request.frame()


def encode_sasl_authenticate_answer(version: int, correlation: int, error: int, data: bytes) -> bytes:
    answer = begin_answer(SASL_AUTHENTICATE, version, correlation)
    answer.int16(error)
    answer.text("no" if error else None)
    answer.blob(data)
    if version >= 1:
        answer.int64(0)
    answer.tags()
    return answer.frame()


def decode_sasl_authenticate_answer(version: int, frame: bytes) -> tuple[int, bytes]:
    """The error and the broker's message."""
    answer = Reader(frame, 4, is_flexible=version >= 2)
    answer.tags()
    error = answer.int16()
    answer.text()
    return error, answer.blob()


def encode_init_producer_id(
    version: int, correlation: int, client_id: str | None, transactional_id: str | None = None,
    timeout_ms: int = 60_000, producer: int = -1, epoch: int = -1,
) -> bytes:  # fmt: skip
    request = write_head(INIT_PRODUCER_ID, version, correlation, client_id)
    request.text(transactional_id)
    request.int32(timeout_ms)
    if version >= 3:
        request.int64(producer)
        request.int16(epoch)
    request.tags()
    return request.frame()


def encode_init_producer_id_answer(
    version: int, correlation: int, producer: int, epoch: int = 0, error: int = 0
) -> bytes:
    answer = begin_answer(INIT_PRODUCER_ID, version, correlation)
    answer.int32(0)
    answer.int16(error)
    answer.int64(producer)
    answer.int16(epoch)
    answer.tags()
    return answer.frame()


def decode_init_producer_id_answer(version: int, frame: bytes) -> tuple[int, int]:
    """The producer's id and epoch."""
    answer = Reader(frame, 4, is_flexible=version >= 2)
    answer.tags()
    answer.int32()
    error, producer, epoch = answer.int16(), answer.int64(), answer.int16()
    return (producer, epoch) if not error else (-1, error)


def encode_metadata(version: int, correlation: int, client_id: str | None, topics: list[str] | None) -> bytes:
    request = write_head(METADATA, version, correlation, client_id)
    request.count(-1 if topics is None else len(topics))
    for topic in topics or ():
        if version >= 10:
            request.parts.append(bytes(16))
        request.text(topic)
        request.tags()
    if version >= 4:
        request.int8(0)
    if 8 <= version <= 10:
        request.int8(0)
    if version >= 8:
        request.int8(0)
    request.tags()
    return request.frame()


def decode_metadata_topics(head: Head) -> list[str | bytes] | None:
    """The topics that are asked about, by name, or by id; None: all."""
    body, found = head.body, list[str | bytes]()
    size = body.count()
    for _ in range(max(0, size)):
        topic_id = body.fixed(16) if head.version >= 10 else b""
        name = body.text()
        body.tags()
        found.append(topic_id if name is None else name)
    return None if size < 0 or (size == 0 and head.version == 0) else found


class PartitionView(NamedTuple):
    number: int
    error: int
    leader: int
    replicas: list[int]


class TopicView(NamedTuple):
    error: int
    name: str | None
    topic_id: bytes
    partitions: list[PartitionView]


def encode_metadata_answer(
    version: int, correlation: int, brokers: dict[int, tuple[str, int]], topics: list[TopicView]
) -> bytes:
    answer = begin_answer(METADATA, version, correlation)
    if version >= 3:
        answer.int32(0)
    answer.count(len(brokers))
    for node_id, (host, port) in brokers.items():
        answer.int32(node_id)
        answer.text(host)
        answer.int32(port)
        if version >= 1:
            answer.text(None)
        answer.tags()
    if version >= 2:
        answer.text("simulated")
    if version >= 1:
        answer.int32(min(brokers, default=-1))
    answer.count(len(topics))
    for topic in topics:
        answer.int16(topic.error)
        answer.text(topic.name if version >= 12 else topic.name or "")
        if version >= 10:
            answer.parts.append(topic.topic_id)
        if version >= 1:
            answer.int8(0)
        answer.count(len(topic.partitions))
        for partition in topic.partitions:
            answer.int16(partition.error)
            answer.int32(partition.number)
            answer.int32(partition.leader)
            if version >= 7:
                answer.int32(0)
            answer.int32s(partition.replicas)
            answer.int32s(partition.replicas)
            if version >= 5:
                answer.int32s([])
            answer.tags()
        if version >= 8:
            answer.int32(-(2**31))
        answer.tags()
    if 8 <= version <= 10:
        answer.int32(-(2**31))
    answer.tags()
    return answer.frame()


def decode_metadata_answer(version: int, frame: bytes) -> tuple[dict[int, tuple[str, int]], dict[str, dict[int, int]]]:
    """Brokers' addresses, and of each topic the leaders (-1: none)."""
    answer = Reader(frame, 4, is_flexible=version >= 9)
    answer.tags()
    if version >= 3:
        answer.int32()
    brokers: dict[int, tuple[str, int]] = {}
    for _ in range(answer.count()):
        node_id, host, port = answer.int32(), answer.text() or "", answer.int32()
        answer.text()
        answer.tags()
        brokers[node_id] = host, port
    if version >= 2:
        answer.text()
    answer.int32()
    topics: dict[str, dict[int, int]] = {}
    for _ in range(answer.count()):
        error, name = answer.int16(), answer.text() or ""
        if version >= 10:
            answer.fixed(16)
        answer.int8()
        leaders = {}
        for _ in range(answer.count()):
            answer.int16()
            index, leader = answer.int32(), answer.int32()
            if version >= 7:
                answer.int32()
            for _ in range(3 if version >= 5 else 2):
                for _ in range(answer.count()):
                    answer.int32()
            answer.tags()
            leaders[index] = leader
        if version >= 8:
            answer.int32()
        answer.tags()
        if not error:
            topics[name] = leaders
    return brokers, topics
