# Pieces and sums of a what-if as Arrow: what Spark's Python processes are given, and give.
#
# Knows no frame and no session, and imports little.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import Final

import pyarrow as pa

from gateway.audit.columns import NUMBER_FIELDS
from gateway.audit.records.record_batches import JUDGED_SCHEMA, HeaderColumns
from gateway.audit.whatif.pieces import RecordPiece, split_by_broker
from gateway.audit.whatif.task import SUM_COLUMNS, replay_pieces
from policies.whatif.rows import ReplayRules, WorkerLife
from policies.whatif.tick_phase import TickPhase

SUMS_SCHEMA: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("window_start_ms", "broker")),
        *((name, pa.string()) for name in ("topic", "principal", "client_id", "outcome", "reason")),
        *((name, pa.int64()) for name in SUM_COLUMNS),
    ]
)
_BATCH_ROWS: Final = 10_000
_PIECE_TYPE: Final = pa.struct(
    [
        ("broker", pa.int64()),
        ("votes", pa.list_(pa.struct([("topic", pa.string()), ("first", pa.int64()), ("times", pa.int64())]))),
        ("rows", pa.string()),
    ]
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


def preload_imports(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Nothing but to have imported all that is needed here."""
    yield from batches


def replay_batches(
    batches: Iterable[pa.RecordBatch],
    *,
    rules: ReplayRules,
    phases: Mapping[WorkerLife, TickPhase],
    window_ms: int | None,
    from_ms: int,
) -> Iterator[pa.RecordBatch]:
    """`replay_pieces` of batches with the columns of ReplayedPiece; gives SUMS_SCHEMA."""
    pieces = chain.from_iterable(
        zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in batches
    )
    sums = replay_pieces(pieces, rules=rules, phases=phases, window_ms=window_ms, from_ms=from_ms)
    while rows := list(islice(sums, _BATCH_ROWS)):
        columns = [
            pa.array(values, each.type) for values, each in zip(zip(*rows, strict=True), SUMS_SCHEMA, strict=True)
        ]
        yield pa.record_batch(columns, schema=SUMS_SCHEMA)


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
