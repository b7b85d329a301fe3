# A usage record's way to the replay: one line of text is checked in one go, and its rows are parted by broker. Spark
# moves and sorts whole pieces, which are text to it, and a piece becomes rows again only in the process that replays
# them: no row is ever handed from Java to Python by itself.
#
# Which records are good is for transforms.decode to say. `check_line` takes the lines of which it is sure that they
# are, those that gateways write, and leaves all others to it, good ones among them. Knows no frame and no session; runs
# in Spark's Python processes, so it imports little.

from __future__ import annotations

from hashlib import sha1
from operator import attrgetter
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from gateway.audit import schema
from policies import usage
from policies.verdict import TOPIC_THRESHOLD
from policies.whatif import tick_phase
from policies.whatif.rows import ReplayRow, StreamKey, WorkerLife

LIMITING_OUTCOMES: Final = frozenset({"rejected", "would_reject"})

_Count = Annotated[int, msgspec.Meta(ge=0, le=schema.MAX_COUNT)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Broker = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
_Time = Annotated[int, msgspec.Meta(ge=schema.EARLIEST_MS, le=schema.LATEST_MS)]


class _RecordVolume(msgspec.Struct, forbid_unknown_fields=True):
    broker: _Broker
    log_dir: str
    total: _Number
    available: _Number
    soft: _Number | None = None
    hard: _Number | None = None


class _RecordSpread(msgspec.Struct, forbid_unknown_fields=True):
    broker: _Broker
    topic: str
    here: _Number
    partitions: _Number


class _RecordRow(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    broker: _Broker
    topic: str
    principal: str
    client_id: str
    outcome: Literal[(*usage.OUTCOMES, *usage.NOTES)]  # type: ignore[valid-type]  # the names are in one place only
    reason: str
    bytes: _Count
    messages: _Count
    requests: _Count
    delay_ms: _Count
    group: str | None = None
    software: str | None = None
    repeats: _Count | None = None


class _UsageRecord(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[usage.READ_VERSIONS]  # type: ignore[valid-type]
    kind: Literal[(usage.INTERVAL, usage.LOST)]  # type: ignore[valid-type]
    gateway: str
    boot: str
    worker: _Number
    seq: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
    part: _Number
    parts: Annotated[int, msgspec.Meta(ge=1, le=schema.MAX_PARTS)]
    start_ms: _Time
    end_ms: _Time
    final: bool
    rows: list[_RecordRow]
    storage_factor_ppm: Annotated[int, msgspec.Meta(ge=0, le=usage.PPM)] | None = None
    volumes: list[_RecordVolume] | None = None
    spread: list[_RecordSpread] | None = None


class RecordPiece(NamedTuple):
    """The rows of one record that are of one broker.

    `votes`: each of its topics with None; and again with the first bin of each vote for the time of ticks
    (tick_phase.vote) and how many rows gave it. `rows`: for `unpack_rows`.
    """

    broker: int
    votes: list[tuple[str, int | None, int]]
    rows: str


class CheckedRecord(NamedTuple):
    """A good record: its header, and its rows in pieces. `mark`: two records with the same one are the same text."""

    kind: str
    gateway: str
    boot: str
    worker: int
    seq: int
    part: int
    parts: int
    start_ms: int
    end_ms: int
    final: bool
    mark: int
    pieces: list[RecordPiece]


# The same for Spark.
PIECE_SCHEMA: Final = "broker: bigint, votes: array<struct<topic: string, first: int, times: int>>, rows: string"
CHECKED_SCHEMA: Final = (
    "kind: string, gateway: string, boot: string, worker: bigint, seq: bigint, part: bigint, parts: bigint,"
    f" start_ms: bigint, end_ms: bigint, final: boolean, mark: bigint, pieces: array<struct<{PIECE_SCHEMA}>>"
)

_decode_record = msgspec.json.Decoder(_UsageRecord).decode
_decode_rows = msgspec.json.Decoder(list[tuple[str, str, str, str, str, int, int, int, int, int | None]]).decode
_encode_rows = msgspec.json.Encoder().encode
_row_values = attrgetter(
    "topic", "principal", "client_id", "outcome", "reason", "bytes", "messages", "requests", "delay_ms", "repeats"
)


def check_line(line: str | None) -> CheckedRecord | None:
    """A record that is good beyond doubt; None: transforms.decode has to say.

    As gateways write lines they are ASCII, of at most usage.MAX_RECORD_BYTES, and have no field that isn't known here.
    What is strange in any way is not worth a second rule: bytes that are no text, fields of later versions.
    """
    if line is None or not line.isascii() or len(line) > usage.MAX_RECORD_BYTES:
        return None
    try:
        record = _decode_record(line)
    except msgspec.MsgspecError:
        return None
    return _split_by_broker(record, line) if _fields_fit(record) else None


def parse_good_record(line: str) -> CheckedRecord:
    """A record that transforms.decode has found good, written as text once more.

    Raises:
        ValueError: it is not good.
    """
    record = _decode_record(line)
    if not _fields_fit(record):
        raise ValueError("a good record's fields do not fit together")
    return _split_by_broker(record, line)


Streams = dict[StreamKey, StreamKey]  # one object for all rows of a client


def unpack_rows(
    text: str, broker: int, life: WorkerLife, seq: int, start_ms: int, end_ms: int, streams: Streams
) -> list[ReplayRow]:
    """The rows of a piece of a record of that life, number and time. `streams` grows by those that are new."""
    found = []
    for topic, principal, client_id, outcome, reason, size, messages, requests, delay_ms, repeats in _decode_rows(text):
        stream = (broker, topic, principal, client_id)
        stream = streams.setdefault(stream, stream)
        found.append(
            ReplayRow(life, seq, start_ms, end_ms, stream, outcome, reason, size, messages, requests, delay_ms, repeats)
        )
    return found


def _fields_fit(record: _UsageRecord) -> bool:
    """What types and ranges don't say."""
    if record.part >= record.parts or record.end_ms < record.start_ms:
        return False
    if record.kind == usage.LOST:
        return not record.rows and not record.final
    if record.seq < 0 or not (record.rows or record.final):
        return False
    return all(row.reason or row.outcome not in usage.OUTCOMES_WITH_REASON for row in record.rows)


def _split_by_broker(record: _UsageRecord, line: str) -> CheckedRecord:
    parted: dict[int, list[_RecordRow]] = {}
    for row in record.rows:
        own = parted.get(row.broker)
        if own is None:
            own = parted[row.broker] = []
        own.append(row)
        if record.version < 2:
            row.repeats = None  # by chance it has a field of that name
    return CheckedRecord(
        record.kind, record.gateway, record.boot, record.worker, record.seq, record.part, record.parts,
        record.start_ms, record.end_ms, record.final,
        int.from_bytes(sha1(line.encode(), usedforsecurity=False).digest()[:8], signed=True),
        [
            RecordPiece(broker, _count_tick_votes(record, rows), _encode_rows(list(map(_row_values, rows))).decode())
            for broker, rows in parted.items()
        ],
    )  # fmt: skip


def _count_tick_votes(record: _UsageRecord, rows: list[_RecordRow]) -> list[tuple[str, int | None, int]]:
    votes: dict[tuple[str, int | None], int] = {(topic, None): 1 for topic in {row.topic for row in rows}}
    for row in rows:
        if row.outcome in LIMITING_OUTCOMES and row.reason == TOPIC_THRESHOLD and row.requests:
            wait = row.delay_ms / row.requests
            if 0 < wait < tick_phase.MAX_WAIT_MS:
                what = (row.topic, tick_phase.phase_vote(record.start_ms, record.end_ms, wait)[0])
                votes[what] = votes.get(what, 0) + 1
    return [(topic, first, times) for (topic, first), times in votes.items()]
