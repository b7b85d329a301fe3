# What a question takes from the roll-ups, and what from the records behind and beside them: rows to sum up, numbers to
# look for gaps in, and the counts of records.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import store
from gateway.audit.batch import transforms
from gateway.audit.batch.rollups.progress import (
    RollupProgress,
    load_later_records,
    load_progress,
    settle_copies,
)
from gateway.audit.batch.rollups.windows import TimeRange, split_time
from gateway.audit.spark import schema
from gateway.audit.store import AuditTables
from gateway.audit.tables import layout, table_log

_ROW_COLUMNS: Final = (*schema.RECORD_DIMENSIONS, "start_ms", *schema.ROW_SCHEMA.names)  # of transforms.explode_rows
COUNT_COLUMNS: Final = ("counts", "conflict", "problem", "count")


@dataclass(frozen=True, slots=True)
class RolledUsage:
    """The tables at one moment."""

    tables: AuditTables  # pinned
    progress: RollupProgress

    def select_rows(self, bounds: TimeRange, window_ms: int | None) -> DataFrame:
        """Rows as transforms.sum_usage_rows takes them, for windows of that length and intervals within the bounds;
        of those whose sums are in a table, start_ms is the beginning of its window.
        """
        usable = self.progress.usable_tables
        parts = split_time(bounds, window_ms, usable)
        frames = [self._record_rows(self.tables.load_records(), parts.rest)] if parts.rest else []
        for table, ranges in parts.tables.items():
            frames.append(self._table_rows(table, ranges))
        for step in {id(usable[table]): usable[table] for table in parts.tables}.values():  # most often one
            ranges = [each for table, some in parts.tables.items() if usable[table] is step for each in some]
            frames.append(self._record_rows(load_later_records(self.tables, step), ranges))
        return reduce(DataFrame.unionByName, frames)

    @staticmethod
    def _record_rows(records: DataFrame, ranges: Iterable[TimeRange]) -> DataFrame:
        return store.select_view(_within(records, ranges), "usage").select(*_ROW_COLUMNS)

    def load_numbering(self) -> DataFrame:
        """All that gaps and lives follow from (transforms.select_numbering)."""
        runs = self.progress.entries(table_log.RUN)
        intervals = store.select_view(self.tables.load_records(), "intervals")
        if runs is None:
            return transforms.select_numbering(intervals)
        later = load_later_records(self.tables, self.progress.reached).where(F.col("counts"))
        found = runs.select(*schema.RUN_SCHEMA.names).unionByName(transforms.select_numbering(later))
        return settle_copies(found, intervals)

    def count_records(self) -> DataFrame:
        """COUNT_COLUMNS: so many records of each kind."""
        one = F.lit(1).cast("long").alias("count")
        counted = self.progress.entries(table_log.COUNT)
        if counted is None:
            return self.tables.load_records().select(*COUNT_COLUMNS[:-1], one)
        kept = F.col("date") >= self._first_day()
        found = counted.where(kept).select(*COUNT_COLUMNS)
        later = load_later_records(self.tables, self.progress.reached).where(kept)
        expired = self.tables.load_records().where(~kept)
        for frame in (later, expired):
            found = found.unionByName(frame.select(*COUNT_COLUMNS[:-1], one))
        return found

    def _first_day(self) -> Column:
        return F.lit(self.tables.first_kept_day() or "0001-01-01").cast("date")

    def _table_rows(self, table: str, ranges: Iterable[TimeRange]) -> DataFrame:
        found = self.tables.load_version(table, self.progress.usage[table][1])
        for field in layout.USAGE_SUMS_SCHEMA:  # tables that nobody has written to since a column was added
            if field.name not in found.columns:
                found = found.withColumn(field.name, F.lit(None).cast(field.dataType))
        found = found.withColumn("start_ms", F.col(schema.WINDOW_COLUMN)).where(F.col("date") >= self._first_day())
        return _within(found, ranges).select(*_ROW_COLUMNS)


def open_rolled(tables: AuditTables) -> RolledUsage:
    """The tables as of now."""
    progress = load_progress(tables)
    return RolledUsage(tables.pin_version(), progress)


def _within(frame: DataFrame, ranges: Iterable[TimeRange]) -> DataFrame:
    """Rows that start in one of these ranges, of the days where they may be."""
    return frame.where(reduce(or_, map(_is_in_range, ranges), F.lit(False)))


def _is_in_range(bounds: TimeRange) -> Column:
    begin, end = bounds
    found = F.lit(True)
    if begin is not None:
        day = F.lit(table_log.iso_day(begin // table_log.DAY_MS)).cast("date")
        found = (F.col("start_ms") >= begin) & (F.col("date") >= day)
    if end is not None:
        day = F.lit(table_log.iso_day(end // table_log.DAY_MS)).cast("date")
        found = found & (F.col("start_ms") < end) & (F.col("date") <= day)
    return found
