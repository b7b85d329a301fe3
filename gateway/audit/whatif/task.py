# What one process does in a what-if, in either engine: replays the records that it gets, in the order of time, and sums
# up what really happened beside it. Only sums leave it, a few even for many millions of rows, and it keeps one entry
# per client and topic, no rows. Pure, and imports little: each of Spark's Python processes does so anew.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from gateway.audit.whatif.pieces import Streams, unpack_rows
from policies import usage
from policies.whatif.replay import UsageReplay
from policies.whatif.rows import ReplayRow, ReplayRules, StreamKey, WorkerLife
from policies.whatif.tick_phase import TickPhase

MEASURES: Final = ("bytes", "requests", "delay_ms", "repeats")
ACTUAL, CHANGE = "actual", "change"
UNKNOWN_BYTES: Final = "unknown_bytes"  # rejected, and it is unknown whether they came again
SUM_COLUMNS: Final = (*(f"{which}_{name}" for which in (ACTUAL, CHANGE) for name in MEASURES), UNKNOWN_BYTES)

# SUM_KEYS (a window, a client and topic, outcome and reason) and SUM_COLUMNS.
SumRow = tuple[int, int, str, str, str, str, str, int, int, int, int, int, int, int, int, int]
SUM_KEYS: Final = ("window_start_ms", "broker", "topic", "principal", "client_id", "outcome", "reason")
_NO_CHANGE: Final = (0, 0, 0, 0)


class ReplayedPiece(NamedTuple):
    """A piece with its record's header and the group to replay it with. They come in the order of these fields."""

    group: int
    start_ms: int
    gateway: str
    boot: str
    worker: int
    seq: int
    part: int
    broker: int
    end_ms: int
    rows: str


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
        pieces: values of ReplayedPiece, in their order.
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
