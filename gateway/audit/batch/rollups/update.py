# Brings the roll-ups up to the table `records`: reads what came after the last step, and writes the next one.
#
# `progress` goes first, and each table of sums follows step by step, so whoever comes next brings up one that was left
# behind by a kill. A step is written by the first who gets there (store.write_rollup), and its offsets alone say what
# it contains, so any number of processes may do this at once. A table that isn't there, or that belongs to other
# records, is made anew.

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import condensing, layout, schema, store
from gateway.audit.arrow_map import map_in_arrow
from gateway.audit.batch import transforms
from gateway.audit.batch.query import ignore_progress
from gateway.audit.batch.rollups import runs
from gateway.audit.batch.rollups.progress import (
    NOTHING,
    ProgressStep,
    RollupProgress,
    is_beyond,
    load_later_records,
    load_progress,
    settle_copies,
)
from gateway.audit.columns import WINDOW_LENGTHS
from gateway.audit.store import AuditTables, CommitConflict
from policies import usage

# Commits of `records` without anything new, after which a step says so: all behind it are looked through.
_MAX_COMMITS_BEHIND: Final = 100
_KEPT_STEPS: Final = 8  # behind the last one: those that a reader may have found a table of sums at
_GROUP_COLUMNS: Final = tuple(name for name in usage.DIMENSIONS if name not in ("outcome", "reason"))


def update_rollups(
    tables: AuditTables,
    tell: Callable[[str], None] = ignore_progress,
    *,
    anew: bool = False,
    is_rewritten: bool = False,
) -> None:
    """Bring all roll-ups up to the records as of now, and with them `gaps` and `lives`.

    With `anew` the numbers and counts are those of the records that are there, not of those that there were. With
    `is_rewritten` the files of `records` have just been: a step says so, else they would be looked through again.
    """
    before = load_progress(tables)
    with suppress(CommitConflict):  # another process has written the same step, or goes on from a later one
        tell("roll-ups: looking for gaps")
        _advance_progress(tables.pin_snapshot(), before, anew, is_rewritten)
        tell("roll-ups: summing up minutes, hours and days")
        progress = load_progress(tables)
        now = tables.pin_snapshot()  # which has all of that step, whoever wrote it
        finer = ""
        for table in reversed(WINDOW_LENGTHS):
            _advance_sums(now, progress, table, finer)
            finer = table
        _derive_tables(tables, progress)


def fill_missing(tables: AuditTables, tell: Callable[[str], None] = ignore_progress) -> None:
    """Make the roll-ups of tables that have none, as those of former releases, which else takes as long later."""
    progress = load_progress(tables)
    if not progress.reached.offsets and tables.load_records().limit(1).collect():
        tell("making the roll-ups of all records, once")
        update_rollups(tables, tell)


def join_partial_rows(tables: AuditTables, table: str) -> None:
    """Write one row for each window and group of the days for which there are several files."""
    step, version = tables.rollup_moment(table)
    if version < 0:
        return
    found = tables.load_version(table, version)
    files: dict[str, int] = {}
    for path in found.inputFiles():
        day = path.rpartition("/date=")[2].partition("/")[0]
        files[day] = files.get(day, 0) + 1
    days = [date.fromisoformat(day) for day, count in files.items() if count > 1]
    if days:
        rows = found.where(F.col("date").isin(days)).withColumnRenamed(schema.WINDOW_COLUMN, "start_ms")
        with suppress(CommitConflict):  # the stream was quicker: another time
            tables.write_rollup(table, _table_rows(rows, table), step, mode="rewrite")


def _advance_progress(now: AuditTables, before: RollupProgress, anew: bool, is_rewritten: bool) -> None:
    known = NOTHING if anew else before.reached
    version = now.records_version
    later = load_later_records(now, known).drop("rows", *schema.DISK_COLUMNS).persist()
    numbering: DataFrame | None = None
    try:
        ends = later.groupBy("topic_id", "partition").agg(F.max("offset").alias("offset")).collect()
        if not ends and not is_rewritten and version - known.records_version < _MAX_COMMITS_BEHIND:
            return
        offsets = before.reached.offsets | {(row["topic_id"], row["partition"]): row["offset"] for row in ends}
        step = max(before.last_step, *(step for step, _ in before.usage.values())) + 1
        kept = _kept_steps(before) | {step: ProgressStep(version, offsets)}
        old = None if anew else before
        numbering = _join_runs(now, later, old)
        rows = _read_rows(now, kept)
        for frame in (numbering.withColumn("entry", F.lit(layout.RUN)), _count_rows(now, later, old)):
            rows = rows.unionByName(frame, allowMissingColumns=True)
        rows = rows.select(*layout.PROGRESS_SCHEMA.names).coalesce(1)
        now.write_rollup(layout.PROGRESS_TABLE, rows, step, mode="overwrite")
    finally:
        later.unpersist()
        if numbering is not None:
            numbering.unpersist()


def _kept_steps(before: RollupProgress) -> dict[int, ProgressStep]:
    """Those at which a table of sums is, or may be for one who reads."""
    first = min([before.last_step - _KEPT_STEPS, *(step for step, _ in before.usage.values() if step)])
    return {number: step for number, step in before.steps.items() if number >= first}


def _read_rows(now: AuditTables, steps: Mapping[int, ProgressStep]) -> DataFrame:
    rows = [
        (layout.READ, number, now.table_id, step.records_version, topic, partition, offset)
        for number, step in steps.items()
        for (topic, partition), offset in step.offsets.items()
    ]
    return now.spark.createDataFrame(rows, layout.READ_SCHEMA)


def _join_runs(now: AuditTables, later: DataFrame, before: RollupProgress | None) -> DataFrame:
    """schema.RUN_SCHEMA; persisted."""
    counted = later.where(F.col("counts"))
    numbers = counted.select(*condensing.RecordNumber._fields)
    found = map_in_arrow(numbers, condensing.condense_numbers, schema.RUN_SCHEMA)
    old = before.entries(layout.RUN) if before is not None else None
    if old is not None:
        found = found.unionByName(old.select(*schema.RUN_SCHEMA.names))
    sorted_runs = found.repartition(*schema.BOOT_COLUMNS).sortWithinPartitions(*runs.SORT_COLUMNS)
    joined = map_in_arrow(sorted_runs, runs.join_batches, schema.RUN_SCHEMA).persist()
    return settle_copies(joined, store.select_view(now.load_records(), "intervals"))


def _count_rows(now: AuditTables, later: DataFrame, before: RollupProgress | None) -> DataFrame:
    names = ("date", "counts", "conflict", "problem")
    found = later.select(*names, F.lit(1).cast("long").alias("count"))
    old = before.entries(layout.COUNT) if before is not None else None
    if old is not None:
        found = found.unionByName(old.select(*names, "count"))
    # Of days that are expired, the records themselves are counted: few are left.
    found = found.where(F.col("date") >= F.lit(now.first_kept_day() or "0001-01-01").cast("date"))
    return found.groupBy(*names).agg(F.sum("count").alias("count")).withColumn("entry", F.lit(layout.COUNT))


def _advance_sums(now: AuditTables, progress: RollupProgress, table: str, finer: str) -> None:
    """`finer`: the table of shorter windows, which is at the last step unless somebody was quicker; "" for none."""
    step, last = progress.usage[table][0], progress.last_step
    if step in progress.steps:
        for number in range(step, last):
            records = _records_between(now, progress.steps[number], progress.steps[number + 1])
            now.write_rollup(table, _table_rows(transforms.explode_rows(records), table), number + 1, mode="append")
    elif last in progress.steps:
        at, version = now.rollup_moment(finer) if finer else (0, -1)
        if at == last:
            rows = now.load_version(finer, version).withColumnRenamed(schema.WINDOW_COLUMN, "start_ms")
        else:
            rows = transforms.explode_rows(_records_between(now, NOTHING, progress.steps[last]))
        now.write_rollup(table, _table_rows(rows, table), last, mode="overwrite")


def _records_between(now: AuditTables, after: ProgressStep, until: ProgressStep) -> DataFrame:
    return load_later_records(now, after).where(F.col("counts") & ~is_beyond(until.offsets))


def _table_rows(rows: DataFrame, table: str) -> DataFrame:
    """layout.USAGE_SUMS_SCHEMA of rows as transforms.explode_rows gives them, or such with sums."""
    summed = transforms.condense_rows(rows, WINDOW_LENGTHS[table], *_GROUP_COLUMNS)
    day: Column = store.utc_day_column("start_ms").alias("date")
    named = summed.withColumn("date", day).withColumnRenamed("start_ms", schema.WINDOW_COLUMN)
    # A file for each day, in the order of time: whoever asks for an hour reads little of it.
    files = named.repartition("date").sortWithinPartitions("date", schema.WINDOW_COLUMN)
    return files.select(*layout.USAGE_SUMS_SCHEMA.names)


def _derive_tables(tables: AuditTables, progress: RollupProgress) -> None:
    """Write the tables that follow from the runs of numbers: `gaps` and `lives`."""
    numbering = progress.entries(layout.RUN)
    if numbering is None:
        return
    numbering = numbering.select(*schema.RUN_SCHEMA.names).persist()
    at = F.lit(store.now_ms()).alias("as_of_ms")
    found = {"gaps": transforms.detect_gaps(numbering), "lives": transforms.summarize_boots(numbering)}
    frames = {}
    for table, frame in found.items():
        names = [name for name in layout.DERIVED_SCHEMAS[table].names if name != "as_of_ms"]
        frames[table] = frame.coalesce(1).sortWithinPartitions(*schema.BOOT_COLUMNS).select(*names, at)
    tables.replace_derived(frames)
    numbering.unpersist()
