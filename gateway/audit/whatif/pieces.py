# A usage record's way to the replay: its rows are parted by broker as soon as it is decoded. Spark moves and sorts
# whole pieces, which are text to it, and a piece becomes rows again only in the process that replays them: no row is
# ever handed from Java to Python by itself.
#
# Knows no frame and no session; runs in Spark's Python processes, so it imports little.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from gateway.audit.columns import NUMBER_FIELDS
from gateway.audit.decoding import UsageRecord
from gateway.audit.record_batches import JUDGED_SCHEMA, HeaderColumns
from policies.verdict import TOPIC_THRESHOLD
from policies.whatif import tick_phase
from policies.whatif.rows import ReplayRow, StreamKey, WorkerLife

LIMITING_OUTCOMES: Final = frozenset({"rejected", "would_reject"})


class RecordPiece(NamedTuple):
    """The rows of one record that are of one broker.

    `votes`: each of its topics with None; and again with the first bin of each vote for the time of ticks
    (tick_phase.vote) and how many rows gave it. `rows`: for `unpack_rows`.
    """

    broker: int
    votes: list[tuple[str, int | None, int]]
    rows: str


_PIECE_TYPE: Final = pa.struct(
    [
        ("broker", pa.int64()),
        ("votes", pa.list_(pa.struct([("topic", pa.string()), ("first", pa.int64()), ("times", pa.int64())]))),
        ("rows", pa.string()),
    ]
)
# topic, principal, client_id, outcome, reason, bytes, messages, requests, delay_ms, repeats
_RowValues = tuple[str, str, str, str, str, int, int, int, int, int | None]
_decode_rows = msgspec.json.Decoder(list[_RowValues]).decode
_encode_rows = msgspec.json.Encoder().encode
_row_values = attrgetter(
    "topic", "principal", "client_id", "outcome", "reason", "bytes", "messages", "requests", "delay_ms", "repeats"
)


def split_columns(batches: Iterable[pa.RecordBatch], keys: Sequence[bytes] = ()) -> Iterator[pa.RecordBatch]:
    """Headers, `pieces`, JUDGED_SCHEMA and `origin` of batches with `value` (text or bytes) and `origin`."""
    for batch in batches:
        columns, parted = HeaderColumns(keys), []
        for value in batch.column("value").cast(pa.binary()).to_pylist():
            record = columns.add_value(value)
            parted.append([] if record is None else split_by_broker(record))
        arrays = [*columns.header_arrays(), _make_pieces(parted), *columns.judged_arrays(), batch.column("origin")]
        yield pa.record_batch(arrays, [*NUMBER_FIELDS, "pieces", *JUDGED_SCHEMA.names, "origin"])


def split_good_columns(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same of records that were found good before, and were written as text once more.

    Raises:
        ValueError: one is not good.
    """
    for batch in split_columns(batches):
        for problem in batch.column("problem").drop_null():
            raise ValueError(f"a good record, written again, is malformed: {problem}")
        yield batch


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


def split_by_broker(record: UsageRecord) -> list[RecordPiece]:
    """Its rows, as far as a replay needs them."""
    parted: dict[int, list[_RowValues]] = {}
    for row in record.rows:
        own = parted.get(row.broker)
        if own is None:
            own = parted[row.broker] = []
        own.append(_row_values(row))
    return [
        RecordPiece(broker, _count_tick_votes(record, rows), _encode_rows(rows).decode())
        for broker, rows in parted.items()
    ]


def _make_pieces(parted: list[list[RecordPiece]]) -> pa.Array:
    pieces = [piece for each in parted for piece in each]
    votes = [vote for piece in pieces for vote in piece.votes]
    vote_type = _PIECE_TYPE.field("votes").type.value_type
    vote_values = [[vote[i] for vote in votes] for i in range(3)]
    vote_arrays = [pa.array(values, each.type) for values, each in zip(vote_values, vote_type, strict=True)]
    arrays = [
        pa.array([piece.broker for piece in pieces], pa.int64()),
        _make_lists([len(piece.votes) for piece in pieces], pa.StructArray.from_arrays(vote_arrays, fields=vote_type)),
        pa.array([piece.rows for piece in pieces], pa.string()),
    ]
    return _make_lists(list(map(len, parted)), pa.StructArray.from_arrays(arrays, fields=_PIECE_TYPE))


def _make_lists(lengths: list[int], values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(accumulate(lengths, initial=0), pa.int32()), values)


def _count_tick_votes(record: UsageRecord, rows: list[_RowValues]) -> list[tuple[str, int | None, int]]:
    votes: dict[tuple[str, int | None], int] = dict.fromkeys(((topic, None) for topic in {row[0] for row in rows}), 1)
    limited = [row for row in rows if row[3] in LIMITING_OUTCOMES and row[4] == TOPIC_THRESHOLD and row[7]]
    # Clients of a topic that came in one second wait for the same tick: often exactly as long.
    waits = Counter([(row[0], row[8] / row[7]) for row in limited])
    for (topic, wait), times in waits.items():
        if 0 < wait < tick_phase.MAX_WAIT_MS:
            what = (topic, tick_phase.phase_vote(record.start_ms, record.end_ms, wait)[0])
            votes[what] = votes.get(what, 0) + times
    return [(topic, first, times) for (topic, first), times in votes.items()]
