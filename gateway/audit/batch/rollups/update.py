# Brings the roll-ups up to the table `records`: reads what came after the last step, and writes the next one.
#
# `progress` goes first, and each table of sums follows step by step, so whoever comes next brings up one that was left
# behind by a kill. A step is written by the first who gets there (store.write_rollup), and its offsets alone say what
# it contains, so any number of processes may do this at once, and a step goes on where the one before it ended. Where a
# table of sums isn't there, or belongs to other records, the steps begin anew.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by
from pyspark.sql.pandas.types import from_arrow_schema  # which needs no pandas
from pyspark.sql.types import StructType

from gateway.audit import store
from gateway.audit.batch import transforms
from gateway.audit.batch.query import ignore_progress
from gateway.audit.batch.rollups import runs
from gateway.audit.batch.rollups.progress import (
    NOTHING,
    RollupProgress,
    is_beyond,
    load_contents_between,
    load_later_records,
    load_progress,
    load_records_between,
    settle_copies,
)
from gateway.audit.batch.rollups.steps import OffsetSpan, cut_steps
from gateway.audit.columns import WINDOW_LENGTHS
from gateway.audit.records import condensing, usage_sums
from gateway.audit.records.table_files import TableFile
from gateway.audit.spark import schema
from gateway.audit.spark.arrow_map import map_in_arrow
from gateway.audit.store import AuditTables
from gateway.audit.tables import layout, table_log, table_version
from gateway.audit.tables.table_log import RollupStep
from gateway.audit.tables.table_version import CommitConflict
from policies import usage

if TYPE_CHECKING:
    import pyarrow as pa

# Rows of usage that one step sums up: what a kill may lose. A Java of 1 GB sums up 16 million at once, but not beside a
# catch-up, which it did not survive with 15 million.
STEP_ROWS: Final = 2_000_000
_SPANS_OF_STEP: Final = 200  # so finely are they counted
# Commits of `records` without anything new, after which a step says so: all behind it are looked through.
_MAX_COMMITS_BEHIND: Final = 100
# What one task does sooner than several with a shuffle between them: records, and bytes of the table `progress`.
_TASK_RECORDS, _TASK_BYTES = 10_000, 2**22
_KEPT_STEPS: Final = 8  # behind the last one: those that a reader may have found a table of sums at
_GROUP_COLUMNS: Final = tuple(name for name in usage.DIMENSIONS if name not in ("outcome", "reason"))


def update_rollups(
    tables: AuditTables,
    tell: Callable[[str], None] = ignore_progress,
    *,
    has_expired: bool = False,
    is_rewritten: bool = False,
) -> None:
    """Bring all roll-ups up to the records as of now, and with them `gaps` and `lives`; what follows from no new
    record stays as it is.

    With `has_expired` they let go of lives of which `expire` has left no record. With `is_rewritten` the files of
    `records` have just been: a step says so, else they would be looked through again.
    """
    derived_step, _ = tables.rollup_moment("lives")  # first: it is one that `progress` has by then
    progress = load_progress(tables)
    with suppress(CommitConflict):  # another process has written the same step, or goes on from a later one
        _advance_sums(tables.pin_version(), progress, tell)  # those that a kill left behind
        steps = _plan_steps(tables.pin_version(), progress, has_expired, is_rewritten)
        for number, step in enumerate(steps, 1):
            part = f", part {number} of {len(steps)}" if len(steps) > 1 else ""
            tell(f"roll-ups: looking for gaps{part}")
            _write_step(tables.pin_version(), progress, step, derived_step, has_expired and number == 1)
            progress = load_progress(tables)
            _advance_sums(tables.pin_version(), progress, tell, part)  # it has all of that step, whoever wrote it
            if progress.reached.offsets != step.offsets:
                break  # another process was quicker, and goes on from there
        if derived_step != progress.last_step:
            _derive_tables(tables, progress)


def fill_missing(tables: AuditTables, tell: Callable[[str], None] = ignore_progress) -> None:
    """Make the roll-ups of tables that have none, as those of former releases, which else takes as long later; or go
    on with it.
    """
    # The last step has a version of the records.
    if load_progress(tables).reached.records_version < 0 and tables.load_records().limit(1).collect():
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


def _plan_steps(now: AuditTables, before: RollupProgress, has_expired: bool, is_rewritten: bool) -> list[RollupStep]:
    """The next steps, to the records as of now; none where there is nothing to write."""
    known = NOTHING if before.is_lost else before.reached
    version = now.records_version
    if version == known.records_version and not has_expired:
        return []
    steps = cut_steps(_list_spans(load_later_records(now, known)), known, STEP_ROWS)
    is_due = has_expired or is_rewritten or version - known.records_version >= _MAX_COMMITS_BEHIND
    if not steps and known.offsets and is_due:
        steps = [RollupStep(version, known.offsets)]
    if steps:
        steps[-1].records_version = version  # it has all that there is
    return steps


def _list_spans(records: DataFrame) -> list[OffsetSpan]:
    keys = ("topic_id", "partition")
    span = F.floor(F.col("offset") / max(1, STEP_ROWS // _SPANS_OF_STEP)).alias("span")
    # A copy or a malformed record has no count of rows.
    spans = records.groupBy(*keys, span).agg(
        F.max("offset").alias("offset"),
        F.sum(F.greatest(F.col("row_count"), F.lit(1))).alias("rows"),
        F.min("start_ms").alias("first_ms"),
        F.max("start_ms").alias("last_ms"),
        F.max("timestamp_ms").alias("written_ms"),
    )
    return [OffsetSpan(*row) for row in spans.select(*OffsetSpan._fields).collect()]


def _write_step(
    now: AuditTables, before: RollupProgress, step: RollupStep, derived_step: int, has_expired: bool
) -> None:
    number = max(before.last_step, derived_step, *(step for step, _ in before.usage.values())) + 1
    if before.is_lost:
        old, after = None, NOTHING
        steps = {number: RollupStep(-1, dict.fromkeys(step.offsets, -1)), number + 1: step}
    else:
        old, after = before, before.reached
        steps = _kept_steps(before) | {number: step}
    found = load_records_between(now, after, step)
    is_small = _is_small(step, after)
    found = found.coalesce(1) if is_small else found
    numbering = _join_runs(now, found, old, step, is_small and _has_few_runs(now), has_expired)
    try:
        rows = _read_rows(now, steps)
        for frame in (numbering.withColumn("entry", F.lit(table_log.RUN)), _count_rows(now, found, old, is_small)):
            rows = rows.unionByName(frame, allowMissingColumns=True)
        rows = rows.select(*layout.PROGRESS_SCHEMA.names).coalesce(1)
        now.write_rollup(table_log.PROGRESS_TABLE, rows, max(steps), mode="overwrite")
    finally:
        numbering.unpersist()


def _is_small(until: RollupStep, after: RollupStep) -> bool:
    """Whether the records between two steps are few enough for one task, which needs no shuffle."""
    return sum(last - after.offsets.get(at, -1) for at, last in until.offsets.items()) <= _TASK_RECORDS


def _has_few_runs(tables: AuditTables) -> bool:
    return tables.table_bytes(table_log.PROGRESS_TABLE) <= _TASK_BYTES


def _kept_steps(before: RollupProgress) -> dict[int, RollupStep]:
    """Those at which a table of sums is, or may be for one who reads."""
    first = min([before.last_step - _KEPT_STEPS, *(step for step, _ in before.usage.values() if step)])
    return {number: step for number, step in before.steps.items() if number >= first}


def _read_rows(now: AuditTables, steps: Mapping[int, RollupStep]) -> DataFrame:
    rows = [
        (table_log.READ, number, now.table_id, step.records_version, *at, offset, *(step.times or (None, None)))
        for number, step in steps.items()
        for at, offset in step.offsets.items()
    ]
    times = [schema.RUN_SCHEMA[name] for name in ("start_ms", "end_ms")]
    return now.spark.createDataFrame(rows, StructType([*layout.READ_SCHEMA, *times]))


def _join_runs(
    now: AuditTables,
    later: DataFrame,
    before: RollupProgress | None,
    step: RollupStep,
    is_small: bool,
    has_expired: bool,
) -> DataFrame:
    """schema.RUN_SCHEMA; persisted."""
    counted = later.where(F.col("counts"))
    numbers = counted.select(*condensing.RecordNumber._fields)
    found = map_in_arrow(numbers, condensing.condense_numbers, schema.RUN_SCHEMA)
    old = before.entries(table_log.RUN) if before is not None else None
    if old is not None:
        runs_before = old.select(*schema.RUN_SCHEMA.names)
        found = found.unionByName(_select_kept_lives(now, runs_before) if has_expired else runs_before)
    lives = found.coalesce(1) if is_small else found.repartition(*schema.BOOT_COLUMNS)
    sorted_runs = lives.sortWithinPartitions(*runs.SORT_COLUMNS)
    joined = map_in_arrow(sorted_runs, runs.join_batches, schema.RUN_SCHEMA).persist()
    contained = now.load_records().where(~is_beyond(step.offsets))
    return settle_copies(joined, store.select_view(contained, "intervals"))


def _select_kept_lives(now: AuditTables, before: DataFrame) -> DataFrame:
    """The runs of lives of which there are records; those before the first day that is kept are few."""
    day = now.first_kept_day()
    left = now.load_records().where(F.col("counts") & (F.col("date") < F.lit(day).cast("date")))
    going_on = before.where(F.col("end_ms") >= table_log.day_start_ms(day))
    keys = list(schema.BOOT_COLUMNS)
    return before.join(left.select(keys).unionByName(going_on.select(keys)).distinct(), keys, "left_semi")


def _count_rows(now: AuditTables, later: DataFrame, before: RollupProgress | None, is_small: bool) -> DataFrame:
    names = ("date", "counts", "conflict", "problem")
    found = later.select(*names, F.lit(1).cast("long").alias("count"))
    old = before.entries(table_log.COUNT) if before is not None else None
    if old is not None:
        found = found.unionByName(old.select(*names, "count"))
    found = found.coalesce(1) if is_small else found
    # Of days that are expired, the records themselves are counted: few are left.
    found = found.where(F.col("date") >= F.lit(now.first_kept_day() or "0001-01-01").cast("date"))
    return found.groupBy(*names).agg(F.sum("count").alias("count")).withColumn("entry", F.lit(table_log.COUNT))


def _advance_sums(now: AuditTables, progress: RollupProgress, tell: Callable[[str], None], part: str = "") -> None:
    """Bring each table of sums to the last step."""
    at = progress.sum_steps
    for number in range(min(at.values(), default=progress.last_step), progress.last_step):
        after, until = progress.steps[number], progress.steps[number + 1]
        if until.offsets != after.offsets:  # else it is about files: a table may stay at the one before it
            tell(f"roll-ups: summing up minutes, hours and days{part}")
            _add_sums(now, after, until, number + 1, [table for table, step in at.items() if step <= number])


def _add_sums(now: AuditTables, after: RollupStep, until: RollupStep, step: int, tables: Iterable[str]) -> None:
    """Add the records between two steps to tables that have all before them."""
    contents = load_contents_between(now, after, until)
    make: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    if contents is not None:
        chosen, make = contents, partial(usage_sums.sum_files, after=after.offsets, until=until.offsets)
    else:
        records = load_records_between(now, after, until).where(F.col("counts"))
        cluster = F.coalesce(usage.CLUSTER, F.lit("")).alias(usage.CLUSTER)
        chosen, make = records.select("gateway", "worker", cluster, "start_ms", "rows"), usage_sums.sum_partition
    chosen = chosen.coalesce(1) if _is_small(until, after) else chosen
    found = map_in_arrow(chosen, make, from_arrow_schema(usage_sums.SUM_FILES_SCHEMA)).collect()
    for table in tables:
        files = [TableFile(row["day"], bytes(row["contents"]), row["stats"]) for row in found if row["table"] == table]
        now.write_sums(table, usage_sums.join_sums(files), step, is_replaced=after.is_empty)


def _table_rows(rows: DataFrame, table: str) -> DataFrame:
    """layout.USAGE_SUMS_SCHEMA of several such rows for a window and group, with `start_ms`."""
    summed = transforms.condense_rows(rows, WINDOW_LENGTHS[table], *_GROUP_COLUMNS)
    day: Column = store.utc_day_column("start_ms").alias("date")
    named = summed.withColumn("date", day).withColumnRenamed("start_ms", schema.WINDOW_COLUMN)
    # A file for each day, in the order of time: whoever asks for an hour reads little of it.
    files = named.repartition("date").sortWithinPartitions("date", schema.WINDOW_COLUMN)
    return files.select(*layout.USAGE_SUMS_SCHEMA.names)


def _derive_tables(tables: AuditTables, progress: RollupProgress) -> None:
    """Write the tables that follow from the runs of numbers: `gaps` and `lives`."""
    found_runs = progress.entries(table_log.RUN)
    if found_runs is None:
        return
    numbering = found_runs.select(*schema.RUN_SCHEMA.names)
    numbering = (numbering.coalesce(1) if _has_few_runs(tables) else numbering).persist()
    lives = transforms.summarize_boots(numbering).persist()
    try:
        found = {"lives": lives}
        # Nearly always there are none, and were none.
        are_whole = lives.where(~F.col(transforms.WHOLE_COLUMN)).isEmpty()
        if not (are_whole and tables.table_exists("gaps") and tables.read_table("gaps").isEmpty()):
            found = {"gaps": transforms.detect_gaps(numbering), "lives": lives}  # whose step tells of both
        at = F.lit(table_version.now_ms()).alias("as_of_ms")
        for table, frame in found.items():
            names = [name for name in layout.DERIVED_SCHEMAS[table].names if name != "as_of_ms"]
            rows = frame.coalesce(1).sortWithinPartitions(*schema.BOOT_COLUMNS).select(*names, at)
            tables.write_rollup(table, rows, progress.last_step, mode="overwrite")
    finally:
        lives.unpersist()
        numbering.unpersist()
