# The largest of something: the groups with the largest sums, found where the data is, so that a million client ids cost
# no more memory here than the few that are shown. Gives a Ranking, and shows it as text or JSON; knows no argv.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import schema
from gateway.audit.batch import dropped, job, tables, transforms
from gateway.audit.batch.job import Integrity, Question, Records

JSON_VERSION: Final = 1
DROPPED: Final = "dropped"
_VALUE: Final = "_value"
_RANK: Final = "_rank"
# The sums shown beside the one that ranks, in this order.
_BESIDE: Final = (DROPPED, "rejected", "delayed", "errored", schema.OFFERED, "accepted")


@dataclass(frozen=True, slots=True)
class Wish:
    """The `limit` groups of `question.by` with the largest sum of `what`, in each window if there is one.

    `what`: "dropped" (bytes that never got in), or any of schema.SUMS, in bytes.
    """

    question: Question
    what: str
    limit: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """`rows` as transforms.totals gives them, best first within each window; `totals` is over all groups."""

    wish: Wish
    sources: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    groups: int  # that have any of it; windows count apart
    totals: dict[str, int]
    integrity: Integrity

    @property
    def torn(self) -> bool:
        """Whether a row may hold one attempt of a batch without the others (dropped.tears)."""
        return dropped.tears(self.wish.question.by, self.wish.question.window_ms)


def rank(records: Records, wish: Wish, tell: Callable[[str], None] = job.no_progress) -> Ranking:
    """Sum up, and keep the largest. Equal ones are in the order of their names, so that the same data ranks alike."""
    question = wish.question
    torn = dropped.tears(question.by, question.window_ms)
    value = transforms.finally_dropped(torn) if wish.what == DROPPED else F.col(f"{wish.what}_bytes")
    rows = transforms.within(records.rows, question.from_ms, question.to_ms)
    sums = transforms.totals_of_rows(rows, question.by, question.window_ms).withColumn(_VALUE, value).persist()
    try:
        tell(f"summing up {records.total:,} records")
        names = [name for name in sums.columns if name not in (*question.by, schema.WINDOW, _VALUE)]
        whole = sums.agg(*(F.sum(name).alias(name) for name in names), F.count_if(F.col(_VALUE) > 0).alias("groups"))
        totals = {name: value or 0 for name, value in whole.collect()[0].asDict().items()}
        windows = [schema.WINDOW] if question.window_ms else []
        order: list[Column | str] = [F.col(_VALUE).desc(), *question.by]
        some = sums.where(F.col(_VALUE) > 0)
        if windows:
            numbered = some.withColumn(_RANK, F.row_number().over(Window.partitionBy(*windows).orderBy(*order)))
            found = numbered.where(F.col(_RANK) <= wish.limit).orderBy(*windows, _RANK).drop(_RANK)
        else:  # a window without partitions would bring everything to one task
            found = some.orderBy(*order).limit(wish.limit)
        best = [row.asDict() for row in found.drop(_VALUE).collect()]
    finally:
        sums.unpersist()
    groups = totals.pop("groups")
    return Ranking(wish, records.about, best, groups, totals, job.find_gaps(records, question, tell))


def as_json(ranking: Ranking) -> dict[str, Any]:
    """The ranking in the shape that docs/audit.md describes."""
    question = ranking.wish.question
    keys = _keys(ranking)
    return {
        "version": JSON_VERSION,
        "what": ranking.wish.what,
        "by": list(question.by),
        "window_ms": question.window_ms,
        "limit": ranking.wish.limit,
        "from_ms": question.from_ms,
        "to_ms": question.to_ms,
        "sources": ranking.sources,
        "groups": ranking.groups,
        "totals": tables.nested(ranking.totals),
        "rows": [
            {"rank": number} | {key: row[key] for key in keys} | tables.nested(row, ranking.torn)
            for number, row in _numbered(ranking)
        ],
        "integrity": tables.integrity_json(ranking.integrity),
    }


def as_text(ranking: Ranking) -> str:
    """A table for a terminal, the sum that ranks first, then the faults of the records."""
    what = ranking.wish.what
    shown = [what, *(name for name in _BESIDE if name != what)]
    keys = _keys(ranking)
    head = ["#", *map(tables.title, keys), *map(_title, shown)]
    body = [
        [str(number), *tables.labels(row, keys), *(_cell(row, name, ranking.torn) for name in shown)]
        for number, row in _numbered(ranking)
    ]
    foot = ["", "all", *[""] * (len(keys) - 1), *(_cell(ranking.totals, name, torn=False) for name in shown)]
    table = tables.with_note(tables.align(head, body, foot, len(keys) + 1))
    names = " and ".join(map(tables.title, ranking.wish.question.by))
    trust = tables.integrity_text(ranking.integrity, ranking.sources, ranking.wish.question.from_ms)
    line = f"bytes by {names}, most {_title(what)} first; {ranking.groups:,} have any"
    return f"{line}\n{table}\n\n{trust}"


def _numbered(ranking: Ranking) -> list[tuple[int, dict[str, Any]]]:
    numbered: list[tuple[int, dict[str, Any]]] = []
    for row in ranking.rows:
        last = numbered[-1] if numbered else None
        same = last is not None and last[1].get(schema.WINDOW) == row.get(schema.WINDOW)
        numbered.append((last[0] + 1 if last is not None and same else 1, row))
    return numbered


def _keys(ranking: Ranking) -> list[str]:
    question = ranking.wish.question
    return [*([schema.WINDOW] if question.window_ms else []), *question.by]


def _title(name: str) -> str:
    return "finally dropped" if name == DROPPED else tables.title(name)


def _cell(row: Mapping[str, Any], name: str, torn: bool) -> str:
    return tables.dropped_text(row, torn) if name == DROPPED else f"{row[schema.column(name, 'bytes')]:,}"
