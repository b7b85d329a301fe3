# Frames to fuzz with: captures of real clients, generated ones for every version that kio knows of what the gateway
# looks into, and what is cheap to send and dear to read; how they are mutated; and a decoder of Produce that shares
# nothing with ours, to say what was offered.
#
# Everything here follows from the generator that is passed in: a seed means the same bytes everywhere.

from __future__ import annotations

import functools
import json
import struct
from base64 import urlsafe_b64encode
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map

from protocol import api
from tests.hostile.traffic.captures import captured
from tests.protocol import kio_messages
from tests.protocol import produce_cases as cases
from tests.protocol.batches import batch

PROTECTED = ("__usage", "__policies")
NAMES = ("free", "calm", "clicks", "red.a.one", "red.a.two", "blue.b.one", "sixteen-letters!", *PROTECTED)
IDS = {name: (name.encode() * 16)[:16] for name in NAMES}  # one of them reads like its name
STRANGE = ("", "x" * 249, "y" * 250, "\u20ac" * 700, "line\nbreak \x1b[31m", "z" * 4000, "\x00")
USERS = ("alice", "bob", "red", "n" * 1100, "new\nline")
READ = (0, 1, 3, 10, 17, 18, 32, 33, 36, 44, 48, 49, 60, 78, 79)  # API keys of what the gateway looks into
PASSED = (2, 8, 9, 11, 12, 14, 19, 22, 24, 26, 55, 71, 72, 75, 77)  # of some that it lets pass
SASL = (api.API_VERSIONS, api.SASL_HANDSHAKE, api.SASL_AUTHENTICATE)  # what a broker takes before authentication


# --- what was offered -------------------------------------------------------------------------------------------------


class Offer(NamedTuple):
    """A Produce request. `head`: all before its topics but the size. `parts`: (topic on the wire, index, records)."""

    version: int
    acks: int
    head: bytes
    parts: list[tuple[bytes, int, bytes]]

    @property
    def size(self) -> int:
        return sum(len(records) for _, _, records in self.parts)


def offered(frame: bytes) -> Offer:
    """What the Produce request in this frame offers, in the order of its bytes.

    Raises:
        IndexError, struct.error: it can't be read, or has a partition twice.
    """
    version, pos = struct.unpack_from(">h", frame, 6)[0], 12
    flexible = version >= api.PRODUCE_FLEXIBLE

    def number() -> int:
        nonlocal pos
        value = shift = 0
        while True:
            byte = frame[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def sized(form: str) -> bytes:
        nonlocal pos
        if flexible:
            size = number() - 1
        else:
            (size,) = struct.unpack_from(form, frame, pos)
            pos += struct.calcsize(form)
        pos += max(0, size)
        if pos > len(frame) or size < -1:
            raise IndexError
        return frame[pos - max(0, size) : pos]

    def count() -> int:
        nonlocal pos
        if flexible:
            many = number() - 1
        else:
            pos += 4
            (many,) = struct.unpack_from(">i", frame, pos - 4)
        if many < 0:
            raise IndexError
        return many

    def tags() -> None:
        nonlocal pos
        if flexible:
            for _ in range(number()):
                number()
                size = number()  # moves `pos` itself
                pos += size

    pos += 2 + max(0, struct.unpack_from(">h", frame, pos)[0])  # the client id, never compact
    tags()
    sized(">h")
    (acks,) = struct.unpack_from(">h", frame, pos)
    pos += 6
    head = frame[4:pos]
    parts = []
    for _ in range(count()):
        if version >= api.PRODUCE_TOPIC_IDS:
            topic, pos = frame[pos : pos + 16], pos + 16
        else:
            topic = sized(">h")
        for _ in range(count()):
            (index,) = struct.unpack_from(">i", frame, pos)
            pos += 4
            parts.append((topic, index, sized(">i")))
            tags()
        tags()
    tags()
    if pos != len(frame) or len({part[:2] for part in parts}) < len(parts):
        raise IndexError
    return Offer(version, acks, head, parts)


def batch_bytes(records: bytes) -> int:
    """What a broker appends of it: one batch, without what lies behind it."""
    if len(records) >= 61:
        (length, magic), (count,) = struct.unpack_from(">8xi4xb", records), struct.unpack_from(">57xi", records)
        if magic == 2 and 49 <= length <= len(records) - 12 and count >= 0:
            return int(length) + 12
    return len(records)


def split(data: bytes) -> list[bytes]:
    """The whole frames at the start of `data`."""
    found, pos = [], 0
    while len(data) - pos >= 4:
        size = struct.unpack_from(">i", data, pos)[0] + 4
        if size < 4 or pos + size > len(data):
            break
        found.append(data[pos : pos + size])
        pos += size
    return found


# --- frames -----------------------------------------------------------------------------------------------------------


class Corpus(NamedTuple):
    """Frames by (API key, version); requests of Produce apart, since most traffic is theirs."""

    produce: list[bytes]
    sasl: list[bytes]
    others: list[bytes]
    answers: dict[tuple[int, int], list[bytes]]


@functools.cache
def corpus() -> Corpus:
    rng = Random(1)
    produce = [_produce(rng) for _ in range(600)]
    others: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    answers: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    for request, answer in captured():
        key, version = struct.unpack_from(">hh", request, 4)
        (produce if key == api.PRODUCE else others[key, version]).append(request)
        if answer:
            answers[key, version].append(answer)
    for key in (*READ, *PASSED):
        versions = sorted(schema_name_map[api_key_map[key]])
        for version in versions if key in READ else versions[-2:]:
            for _ in range(4):
                if key != api.PRODUCE:
                    others[key, version].append(_request(rng, key, version))
                answers[key, version].append(_answer(rng, key, version))
    one_each = [frame for frames in others.values() for frame in frames]
    return Corpus(produce, _sasl_requests(), one_each, dict(answers))


def _produce(rng: Random) -> bytes:
    version = rng.randint(3, 13)
    topics = []
    for name in rng.sample(NAMES, rng.choice((1, 1, 1, 2, 3))):
        rows = []
        for index in rng.sample(range(4), rng.choice((1, 1, 2))):
            producer = (rng.randint(7, 9), 0, rng.randint(0, 5)) if rng.random() < 0.4 else (-1, -1, -1)
            values = [rng.randbytes(rng.choice((0, 5, 30, 200))) for _ in range(rng.randint(1, 3))]
            records = batch(values, producer_id=producer[0], epoch=producer[1], sequence=producer[2])
            kept = rng.choice((records, records, records, records, records + b"tail", records[:-1], b"", None))
            rows.append((index, cases.Batch(kept, (0, 0, 0, 0, 0, 0))))
        strange = rng.choice(STRANGE) if rng.random() < 0.05 else name
        topic_id = rng.choice((b"\xee" * 16, rng.randbytes(16))) if rng.random() < 0.1 else IDS[name]
        topics.append(cases.Topic(strange, topic_id, rows))
    client_id = rng.choice(("app", "app", "tool", None, rng.choice(STRANGE)))
    request = cases.Request(version, client_id, rng.choice((None, None, "tx")), rng.choice((0, 1, -1, -1)), topics)
    return cases.framed(cases.encode(request, rng.choice((cases.NO_TAGS, cases.NO_TAGS, cases.UNKNOWN))))


def _request(rng: Random, key: int, version: int) -> bytes:
    cls = load_request_schema(key, version)
    head = struct.pack(">hhi", key, version, 7) + struct.pack(">h", 3) + b"app"
    flexible = version >= api.REQUEST_FLEXIBLE_FROM[key]
    return cases.framed(head + (b"\0" if flexible else b"") + kio_messages.kio_encode(_fill(rng, cls)))


def _answer(rng: Random, key: int, version: int) -> bytes:
    message = _fill(rng, load_response_schema(key, version))
    tags = b"\0" if version >= api.RESPONSE_FLEXIBLE_FROM[key] else b""
    return cases.framed(struct.pack(">i", 7) + tags + kio_messages.kio_encode(message))


def _fill(rng: Random, cls: Any) -> Any:
    """An instance of a class of kio's."""
    values: dict[str, Any] = {}
    for field in kio_messages.fields(cls):
        if field.nullable and rng.random() < 0.2:
            values[field.name] = None
        elif field.is_array:
            values[field.name] = tuple(_value(rng, field) for _ in range(rng.choice((0, 1, 1, 2))))
        else:
            values[field.name] = _value(rng, field)
    return cls(**values)


_VALUES: dict[str, Callable[[Random], Any]] = {
    "int8": lambda rng: rng.choice((0, 1, -1, 2)),
    "int16": lambda rng: rng.choice((0, 0, 1, -1, 300)),
    "int32": lambda rng: rng.choice((0, 1, 2, -1, 9092, 2**31 - 1)),
    "int64": lambda rng: rng.choice((0, 1, -1, 2**40)),
    "bytes": lambda rng: rng.randbytes(rng.choice((0, 1, 100))),
    "records": lambda rng: batch([b"fetched"]) * rng.choice((0, 1, 1, 3)),
    "uint16": lambda rng: rng.choice((0, 9092)),
    "float64": lambda rng: rng.choice((0.0, 1e6, -1.0)),
    "bool": lambda rng: rng.random() < 0.5,
    "error_code": lambda rng: ErrorCode(rng.choice((0, 0, 0, 3, 29, 100))),
    "datetime_i64": lambda rng: rng.choice((datetime(2024, 1, 1, tzinfo=UTC), None)),
    "timedelta_i32": lambda rng: rng.choice((0, 7, 30_000)) * kio_messages._MILLISECOND,
    "timedelta_i64": lambda rng: rng.choice((0, 7, 30_000)) * kio_messages._MILLISECOND,
}


def _value(rng: Random, field: Any) -> Any:
    if field.kind is None:
        return _fill(rng, field.entity)
    if field.kind == "uuid":
        return UUID(bytes=rng.choice((*IDS.values(), b"\xee" * 16)))
    if field.kind == "string":
        return rng.choice((*NAMES, "10.0.0.1", "retention.ms", "user", rng.choice(STRANGE)))
    return _VALUES[field.kind](rng)


# --- SASL -------------------------------------------------------------------------------------------------------------


def handshake(mechanism: bytes, version: int = 1) -> bytes:
    return cases.framed(struct.pack(">hhih", 17, version, 7, -1) + struct.pack(">h", len(mechanism)) + mechanism)


def authenticate(token: bytes, version: int = 1) -> bytes:
    head = struct.pack(">hhih", 36, version, 7, -1)
    if version >= 2:
        return cases.framed(head + b"\0" + cases.uvarint(len(token) + 1) + token + b"\0")
    return cases.framed(head + struct.pack(">i", len(token)) + token)


def login(user: str, version: int = 1) -> list[bytes]:
    """What a client sends first of all, with PLAIN."""
    hello = struct.pack(">hhih", 18, 3, 7, -1) + b"\0\x12apache-kafka-java\x064.1.0\0"
    token = b"\0" + user.encode() + b"\0secret"
    return [cases.framed(hello), handshake(b"PLAIN"), authenticate(token, version)]


def _sasl_requests() -> list[bytes]:
    claims = [json.dumps({"sub": user}).encode() for user in USERS]
    bearers = [b"e30." + urlsafe_b64encode(claim).rstrip(b"=") + b".sig" for claim in claims]
    tokens = [b"\0" + user.encode() + b"\0secret" for user in USERS]
    tokens += [b"n,,n=" + user.encode() + b",r=nonce" for user in USERS]
    tokens += [b"c=biws,r=nonce,p=proof", b"n,,m=x,n=mallory,r=1", b"n,,n=a,r=1,tokenauth=true,tokenauth=false"]
    tokens += [b"n,,\x01auth=Bearer " + bearer + b"\x01\x01" for bearer in bearers]
    tokens += [b"n,,\x01AUTH=Bearer " + bearers[0] + b"\x01auth=Bearer " + bearers[1] + b"\x01\x01", b"\x01", b""]
    mechanisms = (b"PLAIN", b"SCRAM-SHA-256", b"SCRAM-SHA-512", b"OAUTHBEARER", b"GSSAPI", b"plain")
    greetings = [handshake(mechanism, version) for mechanism in mechanisms for version in (1, 1, 1, 0)]
    return greetings + [authenticate(token, version) for token in tokens for version in (0, 1, 2)]


def sasl_answer(version: int, correlation: int, error: int, token: bytes, lifetime_ms: int = 0) -> bytes:
    head, lifetime = struct.pack(">i", correlation), struct.pack(">q", lifetime_ms)
    if version >= 2:
        body = b"\0" + struct.pack(">h", error) + b"\0" + cases.uvarint(len(token) + 1) + token + lifetime + b"\0"
    else:
        body = struct.pack(">hhi", error, -1, len(token)) + token + (lifetime if version else b"")
    return cases.framed(head + body)


def handshake_answer(correlation: int, error: int = 0) -> bytes:
    return cases.framed(struct.pack(">ihi", correlation, error, 1) + b"\0\x05PLAIN")


# --- cheap to send, dear to read --------------------------------------------------------------------------------------


def dear(rng: Random, size: int) -> bytes:
    """A request of about `size` bytes made of the smallest things that there can be many of."""
    head = struct.pack(">hi", rng.choice((-1, 1)), 30_000)  # of Produce, behind the transactional id: acks, timeout
    kind = rng.randrange(7)
    if kind == 0:  # partitions without records
        count = size // 6
        rows = b"".join(struct.pack(">i", index) + b"\0\0" for index in range(count))
        body = b"\0\0" + head + b"\x02\x07clicks" + cases.uvarint(count + 1) + rows + b"\0\0"
        return cases.framed(struct.pack(">hhih", 0, 9, 7, -1) + body)
    if kind == 1:  # topics
        count = size // 14
        rows = b"".join(b"\x07%06d\x02" % index + bytes(4) + b"\0\0\0" for index in range(count))
        return cases.framed(
            struct.pack(">hhih", 0, 9, 7, -1) + b"\0\0" + head + cases.uvarint(count + 1) + rows + b"\0"
        )
    if kind == 2:  # tagged fields
        count = size // 4
        tags = cases.uvarint(count) + b"".join(cases.uvarint(tag) + b"\0" for tag in range(count))
        return cases.framed(struct.pack(">hhih", 18, 3, 7, -1) + tags + b"\x02a\x02b\0")
    if kind == 3:
        return authenticate(rng.choice((b"\0", b",", b"\x01", b"n,")) * size, rng.randint(0, 2))
    if kind == 4:  # Fetch v12 of many topics
        count = size // 8
        rows = b"".join(b"\x05%04x\x01\0" % (index % 0xFFFF) for index in range(count))
        bounds = struct.pack(">iiiibii", -1, 500, 1, 2**20, 0, 0, 0)
        return cases.framed(struct.pack(">hhih", 1, 12, 7, -1) + b"\0" + bounds + cases.uvarint(count + 1) + rows)
    if kind == 5:  # a client id and a topic of many bytes that are no text
        name = b"\xff" * min(size, 32_000)
        names = struct.pack(">h", len(name)) + name
        return cases.framed(
            struct.pack(">hhi", 0, 8, 7)
            + names
            + struct.pack(">h", -1)
            + head
            + struct.pack(">i", 1)
            + names
            + struct.pack(">iii", 1, 0, -1)
        )
    pid = rng.randint(0, 9)  # batches of an idempotent producer: each may be fenced and remembered
    records = batch([b""], producer_id=pid, epoch=0, sequence=1)
    batches = [(index, cases.Batch(records, (0, 0, 0, 0, 0, 0))) for index in range(max(1, size // 80))]
    return cases.framed(cases.encode(cases.Request(9, "app", None, -1, [cases.Topic("clicks", b"", batches)])))


# --- mutation ---------------------------------------------------------------------------------------------------------

_EDGES = (
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\0\0",
    b"\xff\xff",
    b"\x7f\xff",
    bytes(4),
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"\0\0\0\x01",
    b"\x80\x80\x80\x80\x10",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x01",
    b"\x81\x80\x00",
)


def mutate(rng: Random, frame: bytes, other: bytes) -> bytes:
    """`frame` broken somewhere, perhaps with a piece of `other` in it; its size mostly fits, so the rest is read."""
    out = bytearray(frame)
    draw = rng.random
    for _ in range(1 if draw() < 0.7 else 4):
        at = 4 + int(draw() * (len(out) - 3))
        what = int(draw() * 9)
        if what < 2 and at < len(out):
            out[at] ^= 1 << int(draw() * 8)
        elif what == 2 and at < len(out):
            out[at] = int(draw() * 256)
        elif what == 3:
            edge = _EDGES[int(draw() * len(_EDGES))]
            out[at : at + len(edge)] = edge
        elif what == 4:
            del out[at : at + 1 + int(draw() * 9)]
        elif what == 5:
            out[at:at] = rng.randbytes(1 + int(draw() * 9))
        elif what == 6:  # once more what is there
            stop = at + 1 + int(draw() * 40)
            out[at:at] = out[at:stop]
        elif what == 7:
            begin = 4 + int(draw() * (len(other) - 3))
            out[at : at + int(draw() * 20)] = other[begin : begin + int(draw() * 60)]
        else:
            del out[at:]
    if draw() < 0.93:
        struct.pack_into(">i", out, 0, len(out) - 4)
    elif draw() < 0.5:
        struct.pack_into(">i", out, 0, int(draw() * 2**32) - 2**31)
    return bytes(out)


def numbered(frame: bytes, correlation: int) -> bytes:
    """A request with this correlation id."""
    return frame[:8] + struct.pack(">i", correlation) + frame[12:]


def answering(frame: bytes, correlation: int) -> bytes:
    return frame[:4] + struct.pack(">i", correlation) + frame[8:]
