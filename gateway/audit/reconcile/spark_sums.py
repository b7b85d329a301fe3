# The sums of reconcile.py, by Spark.

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit.batch import transforms
from gateway.audit.reconcile.reconcile import AdditionBounds, CountedUsage, UsageSum, make_counted
from gateway.audit.spark import schema

_CERTAIN_COLUMN: Final = "certain"


def count_additions(rows: DataFrame, bounds: AdditionBounds) -> dict[str, CountedUsage]:
    """The additions to logs, by topic, according to rows of usage with their intervals' start_ms and end_ms."""
    start, end = F.col("start_ms"), F.col("end_ms")
    certain, possible = end <= bounds.certain_to, start <= bounds.possible_to
    if bounds.certain_from is not None:
        certain &= start >= bounds.certain_from
    if bounds.possible_from is not None:
        possible &= end >= bounds.possible_from
    sums = transforms.sum_usage_rows(
        rows.where(possible).withColumn(_CERTAIN_COLUMN, certain), ("topic", _CERTAIN_COLUMN)
    )
    return make_counted(
        (row["topic"], row[_CERTAIN_COLUMN], _usage_sum(row, "accepted"), _usage_sum(row, schema.MAYBE_APPENDED))
        for row in sums.collect()
    )


def _usage_sum(row: Row, name: str) -> UsageSum:
    return UsageSum(*(row[schema.sum_column(name, measure)] for measure in UsageSum._fields))
