# The records of a what-if without Spark: their rows in pieces, which wait on disk to be replayed in the order of time,
# by the same functions as in Spark's Python processes (whatif/task.py). One process replays broker after broker.

from __future__ import annotations

import heapq
import marshal
import os
import tempfile
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import IO, Any, Final

from gateway.audit.batch.query import AuditQuery, LogIntegrity, ignore_progress
from gateway.audit.local.records import CollectedRecords
from gateway.audit.records.decoding import UsageRecord
from gateway.audit.whatif.pieces import split_by_broker
from gateway.audit.whatif.task import SUM_COLUMNS, SUM_KEYS, ReplayedPiece, replay_pieces
from gateway.audit.whatif.whatif import StartCount, VoteCount
from policies import usage
from policies.whatif import tick_phase
from policies.whatif.rows import ReplayRules, WorkerLife
from policies.whatif.tick_phase import TickPhase

_HELD_PIECES: Final = 50_000  # some ten megabytes
_BLOCK_PIECES: Final = 500  # read at once of each run

_Piece = tuple[Any, ...]  # ReplayedPiece without its group


class LocalUsage:
    """A whatif.ReplayableRecords."""

    def __init__(self, records: CollectedRecords) -> None:
        self._records = records

    @property
    def sources(self) -> list[dict[str, Any]]:
        """As ReplayableRecords has it."""
        return self._records.sources

    def select_usage(
        self, from_ms: int | None, to_ms: int | None, tell: Callable[[str], None] = ignore_progress
    ) -> SelectedPieces:
        """As ReplayableRecords has it."""
        bounds = AuditQuery((), None, from_ms, to_ms)
        return self._records.collect(lambda: SelectedPieces(bounds), bounds, tell)

    def find_gaps(self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress) -> LogIntegrity:
        """As ReplayableRecords has it."""
        return self._records.find_gaps(question, tell)


class SelectedPieces:
    """A whatif.ReplayableUsage, of records that are added one after the other."""

    def __init__(self, bounds: AuditQuery) -> None:
        self._bounds = bounds
        self._votes: Counter[tuple[Any, ...]] = Counter()
        self._starts: Counter[tuple[Any, ...]] = Counter()
        self._pieces = _SortedPieces()

    def add_record(self, record: UsageRecord) -> None:
        """Add a record that counts."""
        start, end = record.start_ms, record.end_ms
        if not self._bounds.has_start(start):
            return
        life = (record.gateway, record.boot, record.worker)
        if record.kind == usage.INTERVAL:
            self._starts[*life, start % tick_phase.SECOND_MS // tick_phase.BIN_MS] += 1
        span = (end - start) // tick_phase.BIN_MS * tick_phase.BIN_MS
        for broker, votes, rows in split_by_broker(record):
            for topic, first, times in votes:
                self._votes[broker, topic, *life, first, None if first is None else span] += times
            self._pieces.add(broker, (start, *life, record.seq, record.part, broker, end, rows))

    def count_votes(self) -> Iterator[VoteCount]:
        """As ReplayableUsage has it."""
        return (VoteCount._make((*vote, times)) for vote, times in self._votes.items())

    def count_starts(self) -> Iterator[StartCount]:
        """As ReplayableUsage has it."""
        return (StartCount._make((*start, times)) for start, times in self._starts.items())

    def sum_replay(
        self,
        rules: ReplayRules,
        phases: Mapping[WorkerLife, TickPhase],
        question: AuditQuery,
        groupings: Sequence[Sequence[str]],
    ) -> list[list[tuple[Any, ...]]]:
        """As ReplayableUsage has it."""
        brokers = self._pieces.brokers
        groups = [[broker] for broker in brokers] if rules.is_per_broker else [brokers]
        given = (ReplayedPiece(at, *piece) for at, group in enumerate(groups) for piece in self._pieces.read(group))
        keys = [itemgetter(*map(SUM_KEYS.index, (*names, "outcome", "reason"))) for names in groupings]
        found: list[dict[tuple[Any, ...], list[int]]] = [{} for _ in groupings]
        for row in replay_pieces(
            given, rules=rules, phases=phases, window_ms=question.window_ms, from_ms=question.from_ms or 0
        ):
            more: Sequence[Any] = row[len(SUM_KEYS) :]
            for key, sums in zip(keys, found, strict=True):
                amounts = sums.setdefault(key(row), [0] * len(SUM_COLUMNS))
                for at, amount in enumerate(more):
                    amounts[at] += amount
        return [[(*key, *amounts) for key, amounts in sums.items()] for sums in found]


class _SortedPieces:
    """Pieces that can be read in their order as often as wanted, of some brokers. Runs of them wait in a file, so that
    no more are held than _HELD_PIECES, and a block of each run while they are read.
    """

    def __init__(self) -> None:
        self._held: dict[int, list[_Piece]] = defaultdict(list)
        self._count = 0
        self._runs: dict[int, list[list[tuple[int, int]]]] = defaultdict(list)  # blocks by offset and size
        self._file = tempfile.TemporaryFile(prefix="produce-gateway-audit-")  # noqa: SIM115 - as long as this object
        weakref.finalize(self, _close_file, self._file)

    @property
    def brokers(self) -> list[int]:
        """Those that have any."""
        return sorted({*self._runs, *self._held})

    def add(self, broker: int, piece: _Piece) -> None:
        """Add one of that broker."""
        self._held[broker].append(piece)
        self._count += 1
        if self._count >= _HELD_PIECES:
            self._spill_held()

    def read(self, brokers: Iterable[int]) -> Iterator[_Piece]:
        """All of these brokers."""
        self._spill_held()
        return heapq.merge(*(self._read_run(run) for broker in brokers for run in self._runs[broker]))

    def _spill_held(self) -> None:
        try:
            self._write_held()
        except OSError as error:
            raise OSError(error.errno, error.strerror, tempfile.gettempdir()) from error  # where there is no room

    def _write_held(self) -> None:
        for broker, pieces in self._held.items():
            pieces.sort()
            run = []
            for at in range(0, len(pieces), _BLOCK_PIECES):
                block = marshal.dumps(pieces[at : at + _BLOCK_PIECES])
                run.append((self._file.tell(), len(block)))
                self._file.write(block)
            self._runs[broker].append(run)
        self._held.clear()
        self._count = 0
        self._file.flush()

    def _read_run(self, run: Sequence[tuple[int, int]]) -> Iterator[_Piece]:
        for offset, size in run:
            yield from marshal.loads(os.pread(self._file.fileno(), size, offset))  # noqa: S302 - our own file


def _close_file(file: IO[bytes]) -> None:
    with suppress(OSError):  # what it still holds can't be written, and nobody needs it
        file.close()
