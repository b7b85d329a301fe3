# The largest groups, found where the data is, so that a million client ids cost no more memory here than the few that
# are shown.

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit.batch import dropped, transforms
from gateway.audit.batch.query import DROPPED, AuditQuery, LargestGroups
from gateway.audit.spark import schema

_VALUE_COLUMN: Final = "_value"
_RANK_COLUMN: Final = "_rank"


def rank_rows(rows: DataFrame, question: AuditQuery, what: str, limit: int, least: int) -> LargestGroups:
    """CountedRecords.rank_groups of rows: transforms.explode_rows of unique records, or the table `usage`."""
    torn = dropped.tears_attempts(question.by, question.window_ms)
    value = transforms.finally_dropped_column(torn) if what == DROPPED else F.col(f"{what}_bytes")
    sums = transforms.sum_question(rows, question).withColumn(_VALUE_COLUMN, value).persist()
    try:
        names = [name for name in sums.columns if name not in (*question.by, schema.WINDOW_COLUMN, _VALUE_COLUMN)]
        whole = sums.agg(
            *(F.sum(name).alias(name) for name in names), F.count_if(F.col(_VALUE_COLUMN) >= least).alias("groups")
        )
        totals = {name: value or 0 for name, value in whole.collect()[0].asDict().items()}
        windows = [schema.WINDOW_COLUMN] if question.window_ms else []
        order: list[Column | str] = [F.col(_VALUE_COLUMN).desc(), *question.by]
        some = sums.where(F.col(_VALUE_COLUMN) >= least)
        if windows:
            numbered = some.withColumn(_RANK_COLUMN, F.row_number().over(Window.partitionBy(*windows).orderBy(*order)))
            found = numbered.where(F.col(_RANK_COLUMN) <= limit).orderBy(*windows, _RANK_COLUMN).drop(_RANK_COLUMN)
        else:  # a window without partitions would bring everything to one task
            found = some.orderBy(*order).limit(limit)
        best = [row.asDict() for row in found.drop(_VALUE_COLUMN).collect()]
    finally:
        sums.unpersist()
    return LargestGroups(best, totals, totals.pop("groups"))
