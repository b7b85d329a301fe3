# What one question needs of a source, summed up as it is decoded: no record leaves the process that reads it, only
# sums, and of each worker's life the runs of its numbers. A source of millions of records becomes some thousand rows.
# It holds as long as no record is there twice: transforms.has_copies tells from the runs whether one may be.
#
# Knows neither Spark nor a file.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from gateway.audit import columns
from gateway.audit.answers import windows
from gateway.audit.answers.windows import CalendarWindows
from gateway.audit.columns import RECORD_DIMENSIONS, RUN_FIELDS
from gateway.audit.records import decoding
from gateway.audit.records.decoding import MalformedRecord, MalformedRecords, UsageRecord
from gateway.audit.records.record_batches import ARROW_TYPES, ROW_TYPE
from policies import usage
from policies.record_digests import is_changed

_MAX_GROUPS: Final = 200_000  # beyond which sums are handed on: some hundred megabytes

# Rows of three kinds: sums (`outcome` is not null) with the first start_ms that they are of, the columns asked by and
# null in all others; runs (`kind` is not null) of numbers first_seq … last_seq without a gap, of which each record
# started and ended no earlier than the one before it, from the first one's start_ms to the last one's end_ms, and none
# but the last is `final`, all of one cluster, all with digests or none (`previous_digest`: of the record before the
# first; `record_digest`: of the last; `changed_records`: those that aren't as written or don't follow the one before);
# and malformed records (`problem` is not null), `count` of them.
_TEXT, _INT = pa.string(), pa.int64()
RUN_SCHEMA: Final = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in RUN_FIELDS.items()])
CONDENSED_SCHEMA: Final = pa.schema(
    [*RUN_SCHEMA, *ROW_TYPE, ("problem", _TEXT), ("count", _INT), ("origin", _TEXT), ("sample", _TEXT)]
)
_SUMS: Final = (*usage.MEASURES, "delay_ms", "repeats")


class RecordNumber(NamedTuple):
    """What runs say of a record."""

    gateway: str
    boot: str
    worker: int
    kind: str
    seq: int
    part: int
    parts: int
    final: bool
    start_ms: int
    end_ms: int
    cluster: str | None
    previous_digest: str | None
    record_digest: str | None
    changed: bool | None  # record_digests.is_changed


class UsageCondenser:
    """Sums by some of usage.DIMENSIONS and a window, over intervals that start in [from_ms, to_ms); runs of all."""

    def __init__(
        self,
        by: Sequence[str],
        window_ms: int | None,
        from_ms: int | None,
        to_ms: int | None,
        calendar: CalendarWindows | None = None,
        keys: Sequence[bytes] = (),
    ) -> None:
        self._keys = keys
        self._header_names = [name for name in by if name in RECORD_DIMENSIONS]
        row_names = ["outcome", "reason", *(name for name in by if name not in self._header_names)]
        self._row_names = list(dict.fromkeys(row_names))
        self._row_key: Callable[[object], tuple[Any, ...]] = attrgetter(*self._row_names)
        self._window_ms, self._calendar = window_ms, calendar
        self._from_ms, self._to_ms = from_ms, to_ms
        self._sums: dict[tuple[Any, ...], list[Any]] = {}
        self._open: dict[tuple[str, str, int], list[Any]] = {}  # the last run of each life, and its last start
        self._rows: list[dict[str, Any]] = []  # finished
        self._malformed = MalformedRecords()

    @property
    def is_full(self) -> bool:
        """Whether it should be drained."""
        return len(self._sums) + len(self._rows) > _MAX_GROUPS

    def add_value(self, value: bytes | None) -> str | None:
        """A line of a spool file (without its newline) or a value of the topic; None, or why it is malformed."""
        try:
            record = decoding.parse_record(value)
        except MalformedRecord as error:
            return str(error)
        if record.version < 2:
            decoding.forget_optional_fields(record)
        changed = None
        if self._keys or record.record_digest is not None:
            assert value is not None
            changed = is_changed(value, record.record_digest, self._keys)
        self.add_number(record, changed)
        if record.rows:
            self._add_rows(record)
        return None

    def add_malformed(self, problem: str, value: bytes | None, origin: str) -> None:
        """Note a value that was malformed, and where it was found."""
        self._malformed.add_malformed(problem, value, origin)

    def drain(self) -> pa.RecordBatch:
        """CONDENSED_SCHEMA of what was added since the last time."""
        rows, self._rows = self._rows, []
        malformed, self._malformed = self._malformed, MalformedRecords()
        rows += [{**sample, "count": 0} for sample in malformed.first_samples()]
        rows += [{"problem": problem, "count": count} for problem, count in malformed.problems.items()]
        rows += [_run_fields(life, run) for life, run in self._open.items()]
        for (_, header, names, is_unknown), (start_ms, *sums) in self._sums.items():
            row = dict(zip(self._header_names, header, strict=True)) | dict(zip(self._row_names, names, strict=True))
            for name in ("group", "software", "cluster"):
                if name in row:
                    row[name] = row[name] or ""
            row |= dict(zip(_SUMS, sums, strict=True)) | {"start_ms": start_ms}
            rows.append(row | {"repeats": None} if is_unknown else row)
        self._open, self._sums = {}, {}
        columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in CONDENSED_SCHEMA]
        return pa.record_batch(columns, schema=CONDENSED_SCHEMA)

    def add_number(self, record: UsageRecord | RecordNumber, changed: bool | None) -> None:
        """Its number alone; `changed`: as record_digests.is_changed has it."""
        life, seq = (record.gateway, record.boot, record.worker), record.seq
        run = self._open.get(life)
        digest = record.record_digest
        unchecked = int(digest is not None and changed is None)
        chain = (record.cluster, record.previous_digest, digest, int(changed is True), unchecked)
        if record.kind != usage.INTERVAL or record.parts != 1:
            self._rows.append(_run_fields(life, [record.kind, seq, seq, record.part, record.parts, record.final,
                                                 record.start_ms, record.end_ms, *chain]))  # fmt: skip
            return
        start_ms, end_ms = record.start_ms, record.end_ms
        if run is not None:
            follows = seq == run[2] + 1 and start_ms >= run[13] and end_ms >= run[7]
            if follows and not run[5] and record.cluster == run[8] and (digest is None) is (run[10] is None):
                if digest is not None or changed:
                    run[11] += (changed is True) + (record.previous_digest != run[10])
                    run[10] = digest
                    run[12] += unchecked
                run[2], run[5], run[7], run[13] = seq, record.final, end_ms, start_ms
                return
            self._rows.append(_run_fields(life, run))
        self._open[life] = [usage.INTERVAL, seq, seq, 0, 1, record.final, start_ms, end_ms, *chain, start_ms]

    def _add_rows(self, record: UsageRecord) -> None:
        start_ms = record.start_ms
        if self._from_ms is not None and start_ms < self._from_ms:
            return
        if self._to_ms is not None and start_ms >= self._to_ms:
            return
        window = windows.find_window(start_ms, self._window_ms, self._calendar)
        header = tuple(getattr(record, name) for name in self._header_names)
        sums, row_key = self._sums, self._row_key
        for row in record.rows:
            repeats = row.repeats
            key = (window, header, row_key(row), repeats is None)
            found = sums.get(key)
            if found is None:
                sums[key] = [start_ms, row.bytes, row.messages, row.requests, row.delay_ms, repeats or 0]
            else:
                found[1] += row.bytes
                found[2] += row.messages
                found[3] += row.requests
                found[4] += row.delay_ms
                if repeats:
                    found[5] += repeats


def _run_fields(life: tuple[str, str, int], run: list[Any]) -> dict[str, Any]:
    return dict(zip(RUN_SCHEMA.names, (*life, *run[:13]), strict=True))


def condense_columns(
    batches: Iterable[pa.RecordBatch],
    *,
    by: Sequence[str],
    window_ms: int | None,
    from_ms: int | None,
    to_ms: int | None,
    calendar: CalendarWindows | None = None,
    keys: Sequence[bytes] = (),
) -> Iterator[pa.RecordBatch]:
    """CONDENSED_SCHEMA of batches with the columns `value` (text or bytes) and `origin` (text)."""
    condenser = UsageCondenser(by, window_ms, from_ms, to_ms, calendar, keys)
    for batch in batches:
        for number, value in enumerate(batch.column("value").cast(pa.binary()).to_pylist()):
            problem = condenser.add_value(value)
            if problem is not None:
                condenser.add_malformed(problem, value, batch.column("origin")[number].as_py())
        if condenser.is_full:
            yield condenser.drain()
    yield condenser.drain()


def condense_numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """RUN_SCHEMA of batches with the columns of RecordNumber."""
    condenser = UsageCondenser((), None, None, None)
    for batch in batches:
        for values in zip(*(batch.column(name).to_pylist() for name in RecordNumber._fields), strict=True):
            number = RecordNumber._make(values)
            condenser.add_number(number, number.changed)
        if condenser.is_full:
            yield condenser.drain().select(RUN_SCHEMA.names)
    yield condenser.drain().select(RUN_SCHEMA.names)


def find_calendar_windows(batches: Iterable[pa.RecordBatch], *, calendar: CalendarWindows) -> Iterator[pa.RecordBatch]:
    """Batches with the windows of the calendar in the place of the quarters of an hour that they consist of."""
    for batch in batches:
        starts = [calendar.find_start(start) for start in batch.column(columns.WINDOW_COLUMN).to_pylist()]
        at = batch.schema.get_field_index(columns.WINDOW_COLUMN)
        yield batch.set_column(at, columns.WINDOW_COLUMN, pa.array(starts, pa.int64()))
