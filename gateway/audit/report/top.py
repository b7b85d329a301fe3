# The largest of something: the groups with the largest sums, found where the data is, so that a million client ids cost
# no more memory here than the few that are shown. Gives a Ranking, and shows it as text or JSON; knows no argv.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.audit import columns
from gateway.audit.answers.answer import AuditAnswer
from gateway.audit.batch import dropped, tables
from gateway.audit.batch.query import DROPPED, AuditQuery, CountedRecords, LogIntegrity, ignore_progress

JSON_VERSION: Final = 1
# The sums shown beside the one that ranks, in this order.
_OTHER_SUMS: Final = (DROPPED, "rejected", "delayed", "errored", columns.OFFERED, "accepted")


@dataclass(frozen=True, slots=True)
class RankingOptions:
    """The `limit` groups of `question.by` with the largest sum of `what`, in each window if there is one.

    `what`: "dropped" (bytes that never got in), or any of columns.SUMS, in bytes.
    """

    query: AuditQuery
    what: str
    limit: int


@dataclass(frozen=True, slots=True)
class UsageRanking:
    """`rows` as transforms.totals gives them, best first within each window; `totals` is over all groups."""

    options: RankingOptions
    sources: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    groups: int  # that have any of it; windows count apart
    totals: dict[str, int]
    integrity: LogIntegrity

    @property
    def tears_attempts(self) -> bool:
        """Whether a row may hold one attempt of a batch without the others (dropped.tears)."""
        return dropped.tears_attempts(self.options.query.by, self.options.query.window_ms)


def rank_groups(
    records: CountedRecords, wish: RankingOptions, tell: Callable[[str], None] = ignore_progress
) -> UsageRanking:
    """Sum up, and keep the largest."""
    found = records.rank_groups(wish.query, wish.what, wish.limit, tell)
    trust = records.find_gaps(wish.query, tell)
    return UsageRanking(wish, records.sources, found.rows, found.groups, found.totals, trust)


def ranking_answer(ranking: UsageRanking) -> AuditAnswer:
    """The ranking in all its forms, JSON in the shape that docs/report.md describes."""
    keys, question = _key_columns(ranking), ranking.options.query
    torn, trust = ranking.tears_attempts, ranking.integrity
    seen = trust.sees_repeats
    numbered = _number_rows(ranking)
    return AuditAnswer(
        rows=[{"rank": number, **tables.flatten_sums(row, keys, question, seen)} for number, row in numbered],
        kinds={"rank": int} | tables.column_kinds(keys),
        is_complete=trust.complete,
        findings=tables.integrity_text(trust, ranking.sources, question.from_ms, question.zone),
        make_head=lambda: _json_head(ranking),
        make_tail=lambda: {"integrity": tables.integrity_json(trust)},
        make_lines=lambda: ranking_text(ranking).split("\n"),
        nest_row=lambda row: {key: row[key] for key in ("rank", *keys)} | tables.nest_sums(row, torn, seen),
    )


def _json_head(ranking: UsageRanking) -> dict[str, Any]:
    question = ranking.options.query
    return {
        "version": JSON_VERSION,
        "what": ranking.options.what,
        "by": list(question.by),
        **tables.question_json(question),
        "limit": ranking.options.limit,
        "sources": ranking.sources,
        "groups": ranking.groups,
        "totals": tables.nest_sums(ranking.totals, False, ranking.integrity.sees_repeats),
    }


def ranking_text(ranking: UsageRanking) -> str:
    """A table for a terminal, the sum that ranks first, then the faults of the records."""
    what = ranking.options.what
    shown = [what, *(name for name in _OTHER_SUMS if name != what)]
    keys, torn, question = _key_columns(ranking), ranking.tears_attempts, ranking.options.query
    seen = ranking.integrity.sees_repeats
    head = ["#", *map(tables.column_title, keys), *map(_sum_title, shown)]
    body = [
        [
            str(number),
            *tables.row_labels(row, keys, question.zone),
            *(_sum_cell(row, name, torn, seen) for name in shown),
        ]
        for number, row in _number_rows(ranking)
    ]
    foot = ["", "all", *[""] * (len(keys) - 1), *(_sum_cell(ranking.totals, name, False, seen) for name in shown)]
    table = tables.with_bound_note(tables.align_table(head, body, foot, len(keys) + 1))
    names = " and ".join(map(tables.column_title, question.by))
    trust = tables.integrity_text(ranking.integrity, ranking.sources, question.from_ms, question.zone)
    line = f"bytes by {names}, most {_sum_title(what)} first; {ranking.groups:,} have any"
    return f"{line}\n{table}\n\n{trust}"


def _number_rows(ranking: UsageRanking) -> list[tuple[int, dict[str, Any]]]:
    numbered: list[tuple[int, dict[str, Any]]] = []
    for row in ranking.rows:
        last = numbered[-1] if numbered else None
        same = last is not None and last[1].get(columns.WINDOW_COLUMN) == row.get(columns.WINDOW_COLUMN)
        numbered.append((last[0] + 1 if last is not None and same else 1, row))
    return numbered


def _key_columns(ranking: UsageRanking) -> list[str]:
    question = ranking.options.query
    return [*([columns.WINDOW_COLUMN] if question.window_ms else []), *question.by]


def _sum_title(name: str) -> str:
    return "finally dropped" if name == DROPPED else tables.column_title(name)


def _sum_cell(row: Mapping[str, Any], name: str, torn: bool, sees_repeats: bool) -> str:
    if name == DROPPED:
        return tables.dropped_text(row, torn, sees_repeats)
    return f"{row[columns.sum_column(name, 'bytes')]:,}"
