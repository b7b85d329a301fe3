# Sums of usage rows by group, as transforms.sum_usage_rows gives them. Pure.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import nsmallest
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from gateway.audit import columns
from gateway.audit.answers import windows
from gateway.audit.batch import dropped
from gateway.audit.batch.query import DROPPED, AuditQuery, IntervalSpan, LargestGroups
from policies import usage

if TYPE_CHECKING:
    from gateway.audit.records.decoding import RecordRow, UsageRecord

_BYTES, _MESSAGES, _REQUESTS, _DELAY, _REPEATS, _UNKNOWN = range(6)
_MEASURES: Final = tuple(zip(usage.MEASURES, (_BYTES, _MESSAGES, _REQUESTS), strict=True))

_Group = tuple[Any, ...]
_Amounts = list[int]


class GroupSums:
    """The sums that a question asks for, of records that are added one after the other."""

    def __init__(self, question: AuditQuery) -> None:
        self.question = question
        self._of_record = [name for name in question.by if name in columns.RECORD_DIMENSIONS]
        self._of_row = [name for name in question.by if name not in columns.RECORD_DIMENSIONS]
        # The last two, outcome and reason, tell which sums an amount belongs to.
        self._row_key: Callable[[RecordRow], _Group] = attrgetter(*self._of_row, "outcome", "reason")
        # By window and the record's own dimensions, then by the row's.
        self._groups: dict[_Group, dict[_Group, _Amounts]] = {}

    def add_record(self, record: UsageRecord) -> None:
        """Add a record's rows; those of version 1 have no optional field."""
        question, start_ms = self.question, record.start_ms
        if not question.has_start(start_ms):
            return
        window = windows.find_window(start_ms, question.window_ms, question.calendar)
        whose = (window, *[getattr(record, name) for name in self._of_record]) if self._of_record else (window,)
        groups = self._groups.get(whose)
        if groups is None:
            groups = self._groups[whose] = {}
        row_key, find = self._row_key, groups.get
        for row in record.rows if question.only is None else filter(self._is_chosen, record.rows):
            key, repeats = row_key(row), row.repeats
            sums = find(key)
            if sums is None:
                sums = groups[key] = [0, 0, 0, 0, 0, 0]
            sums[0] += row.bytes
            sums[1] += row.messages
            sums[2] += row.requests
            if row.delay_ms:
                sums[3] += row.delay_ms
            if repeats is None:
                sums[5] += row.bytes
            elif repeats:
                sums[4] += repeats

    @property
    def row_columns(self) -> tuple[Sequence[str], Sequence[str]]:
        """The columns that tell groups apart: a record's, and a row's with outcome and reason."""
        return self._of_record, [*self._of_row, "outcome", "reason"]

    def add_sums(self, start_ms: int, of_record: _Group, of_row: _Group, amounts: Sequence[int]) -> None:
        """Add sums of rows within the question's bounds whose `row_columns` are these: bytes, messages, requests,
        delay_ms, repeats, and the bytes of those rows whose repeats aren't known.
        """
        question = self.question
        window = windows.find_window(start_ms, question.window_ms, question.calendar)
        sums = self._groups.setdefault((window, *of_record), {}).setdefault(of_row, [0, 0, 0, 0, 0, 0])
        for at, amount in enumerate(amounts):
            sums[at] += amount

    def make_rows(self) -> Iterator[dict[str, Any]]:
        """The rows of an AuditReport, each made when it is asked for. The sum over nothing is 0."""
        question = self.question
        keys = [*([columns.WINDOW_COLUMN] if question.window_ms else []), *question.by]
        # A group's values are window, those of the record and those of the row; `places`: where each of `keys` is.
        names = [columns.WINDOW_COLUMN, *self._of_record, *self._of_row]
        places = [names.index(key) for key in keys]
        found: dict[_Group, list[tuple[_Group, _Amounts]]] = {} if keys else {(): []}
        for whose, groups in self._groups.items():
            for key, amounts in groups.items():
                values = (*whose, *key)
                group = tuple(["" if values[at] is None else values[at] for at in places])
                found.setdefault(group, []).append((key, amounts))
        for group in sorted(found):
            row = {**dict(zip(keys, group, strict=True)), **_NO_SUMS}
            for key, amounts in found[group]:
                for column, at in _targets(key[-2], key[-1]):
                    row[column] += amounts[at]
            if not question.noted or any(row[name] for name in question.noted):
                yield row

    def _is_chosen(self, row: RecordRow) -> bool:
        return (getattr(row, self.question.by[0]) or "") in (self.question.only or ())


class SpanMeasures:
    """The spans that a question asks for (query.IntervalSpan), of records that are added one after the other."""

    def __init__(self, question: AuditQuery) -> None:
        self.question = question
        self._ends: dict[int, tuple[int, int, int]] = {}
        self._factors: dict[int, int] = {}

    def add_record(self, record: UsageRecord) -> None:
        """Add a record that counts."""
        start, factor = record.start_ms, record.storage_factor_ppm
        if record.kind != usage.INTERVAL or not self.question.has_start(start):
            return
        window = windows.find_window(start, self.question.window_ms, None)
        if factor is not None:
            self._factors[window] = min(factor, self._factors.get(window, factor))
        first, latest, last = self._ends.get(window, (start, start, 0))
        self._ends[window] = min(first, start), max(latest, start), max(last, record.end_ms)

    def make_spans(self) -> list[IntervalSpan]:
        """As CountedRecords.measure_spans gives them."""
        return [IntervalSpan(window, *ends, self._factors.get(window)) for window, ends in sorted(self._ends.items())]


def rank_rows(
    rows: Iterable[dict[str, Any]], question: AuditQuery, what: str, limit: int, least: int = 1
) -> LargestGroups:
    """As CountedRecords.rank_groups, of the rows of an AuditReport, of which no more are held than are given."""
    torn = dropped.tears_attempts(question.by, question.window_ms)
    totals, groups = dict(_NO_SUMS), 0

    def value(row: Mapping[str, Any]) -> int:
        if what == DROPPED:
            return dropped.count_finally_dropped(row, torn).bytes
        return int(row[columns.sum_column(what, "bytes")])

    def count(row: Mapping[str, Any]) -> bool:
        """Whether it has enough of it."""
        nonlocal groups
        for name in _NO_SUMS:
            totals[name] += row[name]
        has_enough = value(row) >= least
        groups += has_enough
        return has_enough

    best: list[dict[str, Any]] = []
    for _, of_window in groupby(rows, lambda row: row.get(columns.WINDOW_COLUMN, 0)):
        best += nsmallest(
            limit, filter(count, of_window), lambda row: (-value(row), *(row[name] for name in question.by))
        )
    return LargestGroups(best, totals, groups)


_NO_SUMS: Final = dict.fromkeys(
    (*(columns.sum_column(name, measure) for name in columns.SUMS for measure in usage.MEASURES), *columns.SINGLE_SUMS),
    0,
)


@lru_cache(maxsize=1000)
def _targets(outcome: str, reason: str) -> tuple[tuple[str, int], ...]:
    """The sums to which the amounts of that outcome and reason belong."""
    is_offered = outcome not in usage.NOTES
    names = [outcome, *([columns.OFFERED] if is_offered else [])]
    if usage.may_be_appended(outcome, reason):
        names.append(columns.MAYBE_APPENDED)
    found = [(columns.sum_column(name, measure), at) for name in names for measure, at in _MEASURES]
    if is_offered:
        found += [(columns.DELAY, _DELAY), (columns.REPEATS, _REPEATS), (columns.REPEATS_UNKNOWN, _UNKNOWN)]
    if outcome == "rejected":
        found.append((columns.REJECTED_AGAIN, _REPEATS))
    return tuple(found)
