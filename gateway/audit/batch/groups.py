# The rows of an answer in Spark: few are fetched at once, many one after the other, so that an answer of any size takes
# no more memory here than a partition of it.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import DataFrame

from gateway.audit.answers.answer import RepeatedRows
from gateway.audit.batch import transforms
from gateway.audit.batch.query import AuditQuery
from gateway.audit.spark import schema

HELD_ROWS: Final = 5000  # some megabytes


@contextmanager
def open_group_rows(rows_of_usage: DataFrame, question: AuditQuery) -> Iterator[Iterable[dict[str, Any]]]:
    """CountedRecords.open_groups of rows: transforms.explode_rows of unique records, or the table `usage`."""
    sums = transforms.sum_question(rows_of_usage, question).persist()
    keys = [*([schema.WINDOW_COLUMN] if question.window_ms else []), *question.by]
    try:
        few = [row.asDict() for row in sums.limit(HELD_ROWS + 1).collect()]
        if len(few) > HELD_ROWS:
            few.clear()
            ordered = sums.orderBy(*keys)
            yield RepeatedRows(lambda: (row.asDict() for row in ordered.toLocalIterator()))
            return
        if not keys:  # the sum over nothing is 0, not null
            few = [{name: value or 0 for name, value in row.items()} for row in few]
        yield sorted(few, key=lambda row: tuple(row[key] for key in keys))
    finally:
        sums.unpersist()
