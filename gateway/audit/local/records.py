# The run of the audit without Spark: each line is decoded once, and its rows are added up at once, so that no more of
# the input is held than a batch. Gives a CountedRecords, as Spark's side does (job.AuditRecords).
#
# Of several copies of a record the first counts if all are the same text. Where they are not, their contents decide,
# as everywhere in the audit: then everything is read once more, with those records held back.

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

from gateway.audit.answers.answer import RepeatedRows
from gateway.audit.batch.query import (
    AuditQuery,
    IntervalSpan,
    LargestGroups,
    LogIntegrity,
    assess_integrity,
    ignore_progress,
    is_within_bounds,
)
from gateway.audit.local.links import LinkedRun
from gateway.audit.local.lives import COPY, NEW, LifeKey, WorkerLife
from gateway.audit.local.spool import ValueBatch
from gateway.audit.local.sums import GroupSums, SpanMeasures, rank_rows
from gateway.audit.records import decoding
from gateway.audit.records.decoding import MalformedRecord, MalformedRecords, UsageRecord
from policies.record_digests import is_changed
from policies.usage import INTERVAL

PROGRESS_INTERVAL_S: Final = 5.0

_RecordName = tuple[LifeKey, str, int, int]  # life, kind, seq, part: columns.IDENTITY_COLUMNS


class LocalSource(Protocol):
    """Values to audit, in parts, the newest first: a reader stops where it needs no older ones. `sizes`: of the parts,
    in any unit, for progress.
    """

    @property
    def sizes(self) -> Sequence[int]: ...

    @property
    def description(self) -> dict[str, Any]: ...

    def read_batches(self, part: int = 0) -> Iterator[ValueBatch]:
        """All values of that part; each time it is called, the same ones."""


class RecordCollector(Protocol):
    """What the rows of records are added to."""

    def add_record(self, record: UsageRecord) -> None:
        """Add a record that counts. Records come in any order."""


class _NoCollector:
    def add_record(self, record: UsageRecord) -> None:
        pass


Collector = TypeVar("Collector", bound=RecordCollector)


class CollectedRecords(Protocol):
    """The records of any source of this engine, each once."""

    @property
    def sources(self) -> list[dict[str, Any]]: ...

    def collect(
        self, make: Callable[[], Collector], question: AuditQuery, tell: Callable[[str], None] = ...
    ) -> Collector:
        """Add each record that counts to what `make` gives: all within the question's bounds, and others."""

    def find_gaps(self, question: AuditQuery, tell: Callable[[str], None] = ...) -> LogIntegrity:
        """As CountedRecords has it."""


class _PreparedAnswers:
    def __init__(self, questions: Sequence[AuditQuery], spans: AuditQuery) -> None:
        self.sums = {question: GroupSums(question) for question in questions}
        self.spans = SpanMeasures(spans)
        self._collectors: list[RecordCollector] = [*self.sums.values(), self.spans]

    def add_record(self, record: UsageRecord) -> None:
        for each in self._collectors:
            each.add_record(record)


class LocalRecords:
    """A CountedRecords of these sources together. Each question reads them once, and no more parts of them than it
    takes to show no gap between its bounds, if there is none.
    """

    def __init__(self, sources: Sequence[LocalSource], keys: Sequence[bytes] = ()) -> None:
        """`keys`: of the records' digests."""
        self._sources, self._keys = sources, keys
        self._run: _Run | None = None
        self._prepared: _PreparedAnswers | None = None

    @property
    def sources(self) -> list[dict[str, Any]]:
        """As CountedRecords has it."""
        return [source.description for source in self._sources]

    def sum_groups(self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress) -> list[dict[str, Any]]:
        """As CountedRecords has it."""
        return [*self._sum_up(question, tell).make_rows()]

    @contextmanager
    def open_groups(
        self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress
    ) -> Iterator[Iterable[dict[str, Any]]]:
        """As CountedRecords has it."""
        yield RepeatedRows(self._sum_up(question, tell).make_rows)

    def rank_groups(
        self,
        question: AuditQuery,
        what: str,
        limit: int,
        tell: Callable[[str], None] = ignore_progress,
        least: int = 1,
    ) -> LargestGroups:
        """As CountedRecords has it."""
        return rank_rows(self._sum_up(question, tell).make_rows(), question, what, limit, least)

    def measure_spans(self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress) -> list[IntervalSpan]:
        """As CountedRecords has it."""
        if self._prepared is not None and self._prepared.spans.question == question:
            return self._prepared.spans.make_spans()
        return self.collect(lambda: SpanMeasures(question), question, tell).make_spans()

    def prepare(
        self, questions: Sequence[AuditQuery], spans: AuditQuery, tell: Callable[[str], None] = ignore_progress
    ) -> None:
        """As CountedRecords has it."""
        self._prepared = None  # let go of it before there are more
        starts, ends = zip(*((each.from_ms, each.to_ms) for each in (*questions, spans)), strict=True)
        whole = AuditQuery((), None, None if None in starts else min(starts), None if None in ends else max(ends))
        self._prepared = self.collect(lambda: _PreparedAnswers(questions, spans), whole, tell)

    def _sum_up(self, question: AuditQuery, tell: Callable[[str], None]) -> GroupSums:
        if self._prepared is not None and question in self._prepared.sums:
            return self._prepared.sums[question]
        return self.collect(lambda: GroupSums(question), question, tell)

    def find_gaps(self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress) -> LogIntegrity:
        """As CountedRecords has it; after a question it costs no further reading."""
        if self._run is None:
            self.collect(_NoCollector, question, tell)
        assert self._run is not None
        tell("looking for gaps")
        lives = self._run.lives
        boots, gaps = self._run.find_gaps()
        broken = {key: life.links.count_broken() for key, life in lives.items() if life.links is not None}
        return assess_integrity(self._run.integrity_fields(), boots, gaps, question, self.sources, broken)

    def collect(
        self, make: Callable[[], Collector], question: AuditQuery, tell: Callable[[str], None] = ignore_progress
    ) -> Collector:
        """Read what the question needs, and add each record that counts to what `make` gives. It is called again where
        copies contradict each other.

        Raises:
            AuditError: a source can't be read to its end.
        """
        unclear: set[_RecordName] = set()
        while True:
            tell("reading again: copies of records differ" if unclear else "reading and adding up")
            collector = make()
            run = self._run = _Run(collector.add_record, unclear, self._keys)
            with _without_collector_of_garbage():
                self._read_parts(run, question, tell)
            if run.unclear <= unclear:
                run.add_held()
                return collector
            unclear |= run.unclear

    def _read_parts(self, run: _Run, question: AuditQuery, tell: Callable[[str], None]) -> None:
        for part in range(max((len(source.sizes) for source in self._sources), default=0)):
            if part:
                _, gaps = run.find_gaps()
                if not any(is_within_bounds(gap["after_ms"], gap["before_ms"], question) for gap in gaps):
                    return
                tell("looking for what is missing in older records")
            self._read_part(part, run, tell)

    def _read_part(self, part: int, run: _Run, tell: Callable[[str], None]) -> None:
        sources = [source for source in self._sources if part < len(source.sizes)]
        size, done, said = sum(source.sizes[part] for source in sources), 0, time.monotonic()
        for source in sources:
            for batch in source.read_batches(part):
                run.add_batch(batch)
                done += batch.size
                if time.monotonic() - said >= PROGRESS_INTERVAL_S:
                    said = time.monotonic()
                    tell(f"… {100 * done // max(size, 1)} % ({run.records:,} records)")


class _HeldRecord:
    """The copies of a record that differ: those of the lowest digest count as one, as transforms.mark_copies has it."""

    __slots__ = ("best", "changed", "digests")

    def __init__(self) -> None:
        self.digests: Counter[int] = Counter()
        self.best: UsageRecord | None = None
        self.changed: bool | None = None  # whether that one is

    def add(self, record: UsageRecord, changed: bool | None) -> None:
        digest = decoding.content_digest(record)
        if not self.digests or digest < min(self.digests):
            self.best, self.changed = record, changed
        self.digests[digest] += 1


class _Run:
    """One reading. `unclear`: names of records whose copies differ, found on the way."""

    def __init__(
        self, add_record: Callable[[UsageRecord], None], held: set[_RecordName], keys: Sequence[bytes]
    ) -> None:
        self.records = self._duplicates = self._conflicts = 0
        self.lives: dict[LifeKey, WorkerLife] = {}
        self.unclear: set[_RecordName] = set()
        self._add_record, self._keys = add_record, keys
        self._held = {name: _HeldRecord() for name in held}
        self._malformed = MalformedRecords()

    def add_batch(self, batch: ValueBatch) -> None:
        """Decode and count; what counts goes to the collector."""
        parse, count = decoding.parse_record, self._add_record
        lives, held, keys = self.lives, self._held, self._keys
        self.records += len(batch.values)
        for i, value in enumerate(batch.values):
            try:
                record = parse(value)
            except MalformedRecord as error:
                self._malformed.add_malformed(str(error), value, batch.find_origin(i))
                continue
            key = (record.gateway, record.boot, record.worker)
            if held and (one := held.get((key, record.kind, record.seq, record.part))):
                one.add(record, self._is_changed(record, value))
                continue
            life = lives.get(key)
            if life is None:
                life = lives[key] = WorkerLife()
            if record.version < 2:
                decoding.forget_optional_fields(record)
            if record.record_digest is not None and life.links is None:
                life.begin_chain()
            has_chain = life.links is not None or keys
            kind, seq, start_ms, end_ms = record.kind, record.seq, record.start_ms, record.end_ms
            if seq == life.next_seq and kind == INTERVAL and record.parts == 1 and not life.others:
                life.append((hash(value), start_ms, end_ms))
                life.next_seq = seq + 1
                life.clusters.add(record.cluster)
                if record.final:
                    life.end(seq)
                if has_chain:
                    life.add_digest(_make_link(record), self._is_changed(record, value))
                count(record)
                continue
            part = record.part
            known = life.add(kind, seq, part, record.parts, start_ms, end_ms, record.final, hash(value))
            if known == NEW:
                life.clusters.add(record.cluster)
                if has_chain:
                    life.add_digest(_make_link(record), self._is_changed(record, value))
                count(record)
            elif known == COPY:
                self._duplicates += 1
            else:
                self.unclear.add((key, kind, seq, part))

    def add_held(self) -> None:
        """Count those that were held back."""
        for (key, *_), one in self._held.items():
            record = one.best
            if record is None:  # of a file that has changed meanwhile
                continue
            lowest = min(one.digests)
            self._duplicates += one.digests.total() - 1
            self._conflicts += sum(count for digest, count in one.digests.items() if digest != lowest)
            life = self.lives.setdefault(key, WorkerLife())
            if record.version < 2:
                decoding.forget_optional_fields(record)
            if record.record_digest is not None and life.links is None:
                life.begin_chain()
            life.add(
                record.kind, record.seq, record.part, record.parts, record.start_ms, record.end_ms, record.final, 0
            )
            life.clusters.add(record.cluster)
            life.add_digest(_make_link(record), one.changed)
            self._add_record(record)

    def find_gaps(self) -> tuple[list[dict[str, Any]], Iterator[dict[str, Any]]]:
        """The columns of transforms.summarize_boots, and the gaps of transforms.detect_gaps, of the lives in order."""
        found = [(*self.lives[key].summarize(key), self.lives[key]) for key in sorted(self.lives)]
        gaps = (gap for row, is_whole, life in found if not is_whole for gap in life.find_gaps(row))
        return [row for row, _, _ in found], gaps

    def _is_changed(self, record: UsageRecord, value: bytes | None) -> bool | None:
        assert value is not None
        return is_changed(value, record.record_digest if record.version > 1 else None, self._keys)

    def integrity_fields(self) -> dict[str, Any]:
        """The fields of LogIntegrity that are known before gaps are looked for."""
        problems = self._malformed.problems
        return {
            "records": self.records,
            "duplicates": self._duplicates,
            "conflicts": self._conflicts,
            "malformed": problems.total(),
            "problems": dict(sorted(problems.items())),
            "samples": self._malformed.first_samples(),
        }


def _make_link(record: UsageRecord) -> LinkedRun:
    seq = record.seq
    return LinkedRun(record.kind, seq, seq, record.part, record.parts, record.previous_digest, record.record_digest)


@contextmanager
def _without_collector_of_garbage() -> Iterator[None]:
    """A run makes millions of objects and no cycles: looking for some would take a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
