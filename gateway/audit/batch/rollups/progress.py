# How far the roll-ups have come: the table `progress`, as it was at one moment, and the records that came after it.
#
# Progress goes in steps. Each step has the last offset of each partition that it contains, which tells what it contains
# whatever happens to files and checkpoints; and a version of the table `records`, which only says where not to look for
# the rest. A table of sums is at one of these steps. Where they begin anew, the first one listed contains nothing, and
# whatever a table of sums holds by then is to be replaced.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by
from pyspark.sql.types import StructType

from gateway.audit.batch import transforms
from gateway.audit.columns import WINDOW_LENGTHS
from gateway.audit.spark import schema
from gateway.audit.tables import table_log
from gateway.audit.tables.table_log import Offsets, RollupStep

if TYPE_CHECKING:
    from gateway.audit.store import AuditTables

NOTHING = RollupStep(-1)


@dataclass(frozen=True, slots=True)
class RollupProgress:
    """The roll-ups at one moment."""

    last_step: int  # 0: none
    steps: Mapping[int, RollupStep]  # the last ones; none where `progress` belongs to other tables
    frame: DataFrame | None  # layout.PROGRESS_SCHEMA
    usage: Mapping[str, tuple[int, int]]  # of each table of sums, its step and Delta Lake's version

    @property
    def reached(self) -> RollupStep:
        """The last step."""
        return self.steps.get(self.last_step, NOTHING)

    @property
    def usable_tables(self) -> dict[str, RollupStep]:
        """What each table of sums contains, of those where it is known."""
        return {table: self.steps[step] for table, (step, _) in self.usage.items() if step in self.steps}

    @property
    def sum_steps(self) -> dict[str, int]:
        """The step that each table of sums goes on from, of those that can."""
        begin = next((number for number, step in self.steps.items() if step.is_empty), None)
        found = {table: step if step in self.steps else begin for table, (step, _) in self.usage.items()}
        return {table: step for table, step in found.items() if step is not None}

    @property
    def is_lost(self) -> bool:
        """Whether a table of sums can't go on: it isn't there, or at a step that isn't known (any more)."""
        return len(self.sum_steps) < len(self.usage)

    def entries(self, kind: str) -> DataFrame | None:
        """The rows of one kind."""
        return self.frame.where(F.col("entry") == kind) if self.frame is not None and self.reached.offsets else None


def load_progress(tables: AuditTables) -> RollupProgress:
    """The roll-ups as of now. To be loaded before the records that they are read with."""
    # The sums first: each is at a step that `progress` has by then.
    usage = {table: tables.rollup_moment(table) for table in WINDOW_LENGTHS}
    last_step, version = tables.rollup_moment(table_log.PROGRESS_TABLE)
    if version < 0:
        return RollupProgress(0, {}, None, usage)
    frame = tables.load_version(table_log.PROGRESS_TABLE, version)
    steps: dict[int, RollupStep] = {}
    for row in frame.where((F.col("entry") == table_log.READ) & (F.col("records_id") == tables.table_id)).collect():
        times = None if row["start_ms"] is None else (row["start_ms"], row["end_ms"])
        step = steps.setdefault(row["step"], RollupStep(row["records_version"], {}, times))
        step.offsets[row["topic_id"], row["partition"]] = row["offset"]
    table_log.join_equal_steps(steps)
    return RollupProgress(last_step, steps, frame, usage)


def is_beyond(offsets: Offsets) -> Column:
    """Whether a record comes after these offsets."""
    contained = [
        (F.col("topic_id") == topic) & (F.col("partition") == partition) & (F.col("offset") <= offset)
        for (topic, partition), offset in offsets.items()
    ]
    return reduce(and_, [~each for each in contained], F.lit(True))


def load_later_records(tables: AuditTables, step: RollupStep) -> DataFrame:
    """The records that came after a step."""
    return tables.load_records(step.records_version).where(is_beyond(step.offsets))


def load_records_between(tables: AuditTables, after: RollupStep, until: RollupStep) -> DataFrame:
    """The records between two steps that follow each other."""
    found = load_later_records(tables, after).where(~is_beyond(until.offsets))
    if until.times is None:
        return found
    start = F.col("start_ms")  # null: malformed
    return found.where(start.isNull() | start.between(*until.times))


def load_contents_between(tables: AuditTables, after: RollupStep, until: RollupStep) -> DataFrame | None:
    """The files in which all records between two steps are, and perhaps others, whole (`content`); None: they are to be
    read as a table.
    """
    files = tables.list_made_files(after.records_version)
    if files is None:
        return None
    return tables.load_contents([file["path"] for file in files if _may_be_between(file, after, until)])


def _may_be_between(file: Mapping[str, Any], after: RollupStep, until: RollupStep) -> bool:
    topic_id = file.get("min.topic_id")
    if topic_id is None or topic_id != file["max.topic_id"]:
        return True
    return any(
        file["min.offset"] <= until.offsets.get((topic_id, partition), -1)
        and file["max.offset"] > after.offsets.get((topic_id, partition), -1)
        for partition in range(file["min.partition"], file["max.partition"] + 1)
    )


def load_ends(tables: AuditTables) -> DataFrame:
    """How far the records reach: topic_id, partition, `offset`, and schema.BOOT_COLUMNS with `last_seq` and the times
    between which all of the intervals start, `first_ms` and `last_ms`; null where nothing is known of them.
    """
    progress = load_progress(tables)
    names = ("topic_id", "partition", "offset", *schema.BOOT_COLUMNS, "last_seq", "first_ms", "last_ms")
    keys = ("topic_id", "partition", *schema.BOOT_COLUMNS)
    later = load_later_records(tables.pin_version(), progress.reached).groupBy(*keys)
    ends = later.agg(
        F.max("offset").alias("offset"),
        F.max("seq").alias("last_seq"),
        F.min("start_ms").alias("first_ms"),
        F.max("start_ms").alias("last_ms"),
    ).select(*names)
    runs, reads = progress.entries(table_log.RUN), progress.entries(table_log.READ)
    if runs is None or reads is None:
        return ends
    known = reads.where(F.col("step") == progress.last_step).unionByName(runs)
    known = known.withColumns({"first_ms": F.col("start_ms"), "last_ms": F.col("end_ms")})  # of a run
    return ends.unionByName(known.select(*names))


def settle_copies(runs: DataFrame, intervals: DataFrame) -> DataFrame:
    """The same runs, but of lives in which a number may be there twice, the records themselves (`intervals`: all)."""
    # Only a log that contradicts itself has any: an interval of one part and of several.
    lives = transforms.find_copies(runs).distinct().collect()
    if not lives:
        return runs
    keys = list(schema.BOOT_COLUMNS)
    kinds = StructType([schema.RUN_SCHEMA[name] for name in keys])
    named = F.broadcast(runs.sparkSession.createDataFrame(lives, kinds))
    single = transforms.select_numbering(intervals.join(named, keys, "left_semi"))
    return runs.join(named, keys, "left_anti").unionByName(single, allowMissingColumns=True)
