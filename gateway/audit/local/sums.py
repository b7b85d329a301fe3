# Sums of usage rows by group, as transforms.sum_usage_rows gives them. Pure.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from gateway.audit import columns
from gateway.audit.answers import windows
from gateway.audit.batch import dropped
from gateway.audit.batch.query import DROPPED, AuditQuery, LargestGroups
from policies import usage

if TYPE_CHECKING:
    from gateway.audit.decoding import RecordRow, UsageRecord

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
        if question.from_ms is not None and start_ms < question.from_ms:
            return
        if question.to_ms is not None and start_ms >= question.to_ms:
            return
        window = windows.find_window(start_ms, question.window_ms, question.calendar)
        whose = (window, *[getattr(record, name) for name in self._of_record]) if self._of_record else (window,)
        groups = self._groups.get(whose)
        if groups is None:
            groups = self._groups[whose] = {}
        row_key, find = self._row_key, groups.get
        for row in record.rows:
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
            yield row

    def rank_groups(self, what: str, limit: int) -> LargestGroups:
        """As CountedRecords has it."""
        question = self.question
        torn = dropped.tears_attempts(question.by, question.window_ms)

        def value(row: Mapping[str, Any]) -> int:
            if what == DROPPED:
                return dropped.count_finally_dropped(row, torn).bytes
            return int(row[columns.sum_column(what, "bytes")])

        rows = [*self.make_rows()]
        totals = {name: sum(row[name] for row in rows) for name in _NO_SUMS}
        some = [row for row in rows if value(row) > 0]
        some.sort(
            key=lambda row: (row.get(columns.WINDOW_COLUMN, 0), -value(row), *(row[name] for name in question.by))
        )
        best: list[dict[str, Any]] = []
        taken: dict[int, int] = {}
        for row in some:
            window = row.get(columns.WINDOW_COLUMN, 0)
            taken[window] = taken.get(window, 0) + 1
            if taken[window] <= limit:
                best.append(row)
        return LargestGroups(best, totals, len(some))


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
