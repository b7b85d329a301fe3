# What one of Spark's Python processes does in a what-if: replays the records that it gets, in the order of time, and
# sums up what really happened beside it. Only sums leave the process, a few even for many millions of rows, and it
# keeps one entry per client and topic, no rows. Knows no frame and no session, and imports little: each process does
# so anew.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from gateway.audit.whatif.pieces import Streams, unpack_rows
from policies import usage
from policies.whatif.replay import UsageReplay
from policies.whatif.rows import ReplayRow, ReplayRules, StreamKey, WorkerLife
from policies.whatif.tick_phase import TickPhase

MEASURES: Final = ("bytes", "requests", "delay_ms", "repeats")
ACTUAL, CHANGE = "actual", "change"
UNKNOWN_BYTES: Final = "unknown_bytes"  # rejected, and it is unknown whether they came again
SUM_COLUMNS: Final = (*(f"{which}_{name}" for which in (ACTUAL, CHANGE) for name in MEASURES), UNKNOWN_BYTES)

# A window, a client and topic, outcome and reason, and SUMS.
SumRow = tuple[int, int, str, str, str, str, str, int, int, int, int, int, int, int, int, int]
SUMS_SCHEMA: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("window_start_ms", "broker")),
        *((name, pa.string()) for name in ("topic", "principal", "client_id", "outcome", "reason")),
        *((name, pa.int64()) for name in SUM_COLUMNS),
    ]
)
_NO_CHANGE: Final = (0, 0, 0, 0)
_BATCH_ROWS: Final = 10_000


class ReplayedPiece(NamedTuple):
    """A piece as it comes from Spark: fields of pieces.Checked and of pieces.Piece, and the group to replay it with."""

    group: int
    gateway: str
    boot: str
    worker: int
    seq: int
    part: int
    start_ms: int
    end_ms: int
    broker: int
    rows: str


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


def replay_pieces(
    pieces: Iterable[tuple[Any, ...]],
    *,
    rules: ReplayRules,
    phases: Mapping[WorkerLife, TickPhase],
    window_ms: int | None,
    from_ms: int,
) -> Iterator[SumRow]:
    """Sums of a window, client and outcome, in several rows each: what happened, and the policy's difference.

    Args:
        pieces: values of Given, those of one group together, in the order of start_ms, those of one interval together.
        window_ms: length of windows, aligned to Unix time; None for a single one, called 0.
        from_ms: earlier intervals are only there to warm up.
    """
    for _, group in groupby(map(ReplayedPiece._make, pieces), attrgetter("group")):
        replay, actual = UsageReplay(rules, phases, window_ms, from_ms), _ActualSums(window_ms, from_ms)
        for interval in _group_intervals(group):
            replay.replay_interval(interval)
            actual.add_interval(interval)
            yield from _drain_sums(replay, actual)
        replay.finish_replay()
        actual.flush_window()
        yield from _drain_sums(replay, actual)


def _group_intervals(pieces: Iterable[ReplayedPiece]) -> Iterator[list[ReplayRow]]:
    """The rows to replay, those of one life and start together."""
    streams: Streams = {}
    for (start_ms, *_), same in groupby(pieces, attrgetter("start_ms", "gateway", "boot", "worker")):
        rows: list[ReplayRow] = []
        for piece in same:
            life = (piece.gateway, piece.boot, piece.worker)
            rows += unpack_rows(piece.rows, piece.broker, life, piece.seq, start_ms, piece.end_ms, streams)
        rows = [row for row in rows if row.outcome not in usage.OBSERVED_OUTCOMES]
        if rows:
            yield rows


def _drain_sums(replay: UsageReplay, actual: _ActualSums) -> Iterator[SumRow]:
    for shift in replay.drain_shifts():
        yield (
            shift.window_ms, *shift.stream, shift.outcome, shift.reason, *_NO_CHANGE,
            shift.bytes, shift.requests, shift.delay_ms, shift.repeats, 0,
        )  # fmt: skip
    yield from actual.drain_sums()


class _ActualSums:
    """What really happened. Delays are those of notes: a row of another outcome repeats them."""

    def __init__(self, window_ms: int | None, from_ms: int) -> None:
        self._window_ms = window_ms
        self._from_ms = from_ms
        self._window = 0  # the present one's beginning
        self._sums: dict[tuple[StreamKey, str, str], list[int]] = {}
        self._done: list[SumRow] = []

    def add_interval(self, rows: list[ReplayRow]) -> None:
        start_ms = rows[0].start_ms
        if start_ms < self._from_ms:
            return
        window = 0 if self._window_ms is None else start_ms - start_ms % self._window_ms
        if window != self._window:
            self.flush_window()
            self._window = window
        sums = self._sums
        for row in rows:
            outcome = row.outcome
            key = (row.stream, outcome, row.reason)
            found = sums.get(key)
            if found is None:
                found = sums[key] = [0, 0, 0, 0, 0]
            found[0] += row.bytes
            found[1] += row.requests
            if outcome == usage.DELAYED:
                found[2] += row.delay_ms
            if row.repeats is not None:
                found[3] += row.repeats
            elif outcome == "rejected":
                found[4] += row.bytes

    def flush_window(self) -> None:
        """The present window is over."""
        for (stream, outcome, reason), (size, requests, delay_ms, repeats, unknown) in self._sums.items():
            self._done.append(
                (self._window, *stream, outcome, reason, size, requests, delay_ms, repeats, *_NO_CHANGE, unknown)
            )
        self._sums = {}

    def drain_sums(self) -> list[SumRow]:
        """The sums that will not change any more."""
        done, self._done = self._done, []
        return done
