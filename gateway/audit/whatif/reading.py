# The usage records as a what-if takes them, over Spark: each once, its header for the search for gaps, its rows in
# pieces (pieces.py). These go to Python in the order of time, those of one broker to one process (task.py); where
# limits hold over all brokers, all go to one. Only sums come back.
#
# Knows neither argv nor how an answer is shown; decides nothing itself.

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from gateway.audit.batch import job, spark_sources, transforms
from gateway.audit.batch.query import AuditQuery, LogIntegrity, ignore_progress
from gateway.audit.engines import has_given_session
from gateway.audit.spark import schema
from gateway.audit.spark.arrow_map import map_in_arrow
from gateway.audit.store import AuditTables
from gateway.audit.whatif import batches
from gateway.audit.whatif.task import SUM_COLUMNS, SUM_KEYS, ReplayedPiece
from gateway.audit.whatif.whatif import StartCount, VoteCount
from policies import usage
from policies.whatif import tick_phase
from policies.whatif.rows import ReplayRules, WorkerLife
from policies.whatif.tick_phase import TickPhase

_MANY_ROWS: Final = 1000  # more than there are cores
_PARTITIONS_PER_BROKER: Final = 4  # for each broker: fewer of them meet in one task
_TYPES: Final = {"int64": LongType(), "string": StringType()}
_SUMS_SCHEMA: Final = StructType([StructField(each.name, _TYPES[str(each.type)]) for each in batches.SUMS_SCHEMA])
_VOTE: Final = StructType().add("topic", StringType()).add("first", LongType()).add("times", LongType())
_PIECE: Final = StructType().add("broker", LongType()).add("votes", ArrayType(_VOTE)).add("rows", StringType())
_PIECES_SCHEMA: Final = StructType(
    [*schema.HEADER_SCHEMA, StructField("pieces", ArrayType(_PIECE)), *schema.JUDGED_SCHEMA]
)


@dataclass(frozen=True, slots=True)
class RecordedUsage:
    """The records that were read, each once. Both frames are lazy."""

    intervals: DataFrame  # their headers
    numbering: DataFrame  # to look for gaps in
    records: DataFrame  # header and `pieces`
    sources: list[dict[str, Any]]
    integrity_fields: dict[str, Any]  # as job.AuditRecords has it

    def find_gaps(self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress) -> LogIntegrity:
        """As ReplayableRecords has it."""
        return job.find_gaps(self, question, tell)

    def select_usage(
        self, from_ms: int | None, to_ms: int | None, tell: Callable[[str], None] = ignore_progress
    ) -> SelectedUsage:
        """As ReplayableRecords has it."""
        header = transforms.filter_by_start(self.records, from_ms, to_ms).select(
            *schema.BOOT_COLUMNS, "seq", "part", "start_ms", "end_ms", F.explode("pieces").alias("piece")
        )
        pieces = header.select("*", "piece.*").drop("piece")
        return SelectedUsage(pieces, transforms.filter_by_start(self.intervals, from_ms, to_ms))


@dataclass(frozen=True, slots=True)
class SelectedUsage:
    """As whatif.ReplayableUsage has it."""

    pieces: DataFrame  # with their records' headers
    intervals: DataFrame

    def count_votes(self) -> list[VoteCount]:
        """As ReplayableUsage has it; in one pass."""
        voted = self.pieces.select(
            "broker", *schema.BOOT_COLUMNS, "start_ms", "end_ms", F.explode("votes").alias("vote")
        )
        topic, first = F.col("vote")["topic"].alias("topic"), F.col("vote")["first"].alias("first")
        bins = F.floor((F.col("end_ms") - F.col("start_ms")) / tick_phase.BIN_MS)
        span = F.when(first.isNotNull(), bins * tick_phase.BIN_MS).alias("span")
        times = F.sum(F.col("vote")["times"])
        counted = voted.groupBy("broker", topic, *schema.BOOT_COLUMNS, first, span).agg(times)
        return [*map(VoteCount._make, counted.collect())]

    def count_starts(self) -> list[StartCount]:
        """As ReplayableUsage has it."""
        second = F.floor(F.col("start_ms") % tick_phase.SECOND_MS / tick_phase.BIN_MS).alias("bin")
        began = self.intervals.where(F.col("kind") == usage.INTERVAL).groupBy(*schema.BOOT_COLUMNS, second).count()
        return [*map(StartCount._make, began.collect())]

    def sum_replay(
        self,
        rules: ReplayRules,
        phases: Mapping[WorkerLife, TickPhase],
        question: AuditQuery,
        groupings: Sequence[Sequence[str]],
    ) -> list[list[tuple[Any, ...]]]:
        """As ReplayableUsage has it."""
        sums = _sum_up(self._replay(rules, phases, question), SUM_KEYS)
        sums = sums.persist() if len(groupings) > 1 else sums
        try:
            return [[*map(tuple, _sum_up(sums, (*keys, "outcome", "reason")).collect())] for keys in groupings]
        finally:
            sums.unpersist()

    def _replay(self, rules: ReplayRules, phases: Mapping[WorkerLife, TickPhase], question: AuditQuery) -> DataFrame:
        """The columns of batches.SUMS_SCHEMA, in several rows each."""
        groups = len(rules.topics) if rules.is_per_broker else 1
        group = F.col("broker") if rules.is_per_broker else F.lit(0)
        *order, _, _ = ReplayedPiece._fields
        ordered = (
            self.pieces.withColumn("group", group)
            .select(*ReplayedPiece._fields)
            .repartition(groups * _PARTITIONS_PER_BROKER if groups > 1 else 1, "group")
            .sortWithinPartitions(*order)
        )
        run = partial(
            batches.replay_batches,
            rules=rules,
            phases=dict(phases),
            window_ms=question.window_ms,
            from_ms=question.from_ms or 0,
        )
        return map_in_arrow(ordered, run, _SUMS_SCHEMA)


def _sum_up(sums: DataFrame, keys: Sequence[str]) -> DataFrame:
    return sums.groupBy(*keys).agg(*(F.sum(name).alias(name) for name in SUM_COLUMNS))


def prestart_workers(spark: SparkSession) -> None:
    """Have Spark's Python processes start while it looks for files and plans: they take a second."""
    if has_given_session():  # which of a cluster's will be needed is not known yet
        return
    each_core = spark.range(_MANY_ROWS)

    def start() -> None:
        with suppress(Exception):  # whatever is wrong with them, those who need them will say
            idle = map_in_arrow(each_core, batches.preload_imports, each_core.schema)
            idle.write.format("noop").mode("append").save()

    # Not PySpark's kind of thread, for the reasons in progress.py.
    threading.Thread(target=start, daemon=True).start()


@contextmanager
def read_pieces(
    sources: Sequence[spark_sources.AuditSource], tell: Callable[[str], None] = ignore_progress
) -> Iterator[RecordedUsage]:
    """The records of these sources together, as job.read_sources counts them.

    Raises:
        AuditError: a source can't be read to its end (also from within).
    """
    with job.open_decoded(sources, split_lines, tell) as (records, trust):
        yield RecordedUsage(records, records, records, [source.description for source in sources], trust)


@contextmanager
def read_table_pieces(
    tables: AuditTables,
    from_ms: int | None = None,
    to_ms: int | None = None,
    tell: Callable[[str], None] = ignore_progress,
) -> Iterator[RecordedUsage]:
    """The same of tables that a stream has written; `records` holds at least those within the bounds.

    Raises:
        AuditError: the tables can't be read (also from within).
    """
    with job.read_tables(tables, from_ms, to_ms, tell) as records, split_records(records) as found:
        yield found


@contextmanager
def split_records(records: job.AuditRecords) -> Iterator[RecordedUsage]:
    """The same of records that were decoded in another way."""
    whole = _split_good_records(records.intervals if records.full_records is None else records.full_records).persist()
    try:
        yield RecordedUsage(records.intervals, records.numbering, whole, records.sources, records.integrity_fields)
    finally:
        whole.unpersist()


def split_lines(raw: DataFrame, keys: Sequence[bytes] = ()) -> DataFrame:
    """transforms.decode_records, with `pieces` in place of rows and disks."""
    kinds = StructType([*_PIECES_SCHEMA, raw.schema["origin"]])
    return map_in_arrow(raw.select("value", "origin"), partial(batches.split_columns, keys=keys), kinds)


def _split_good_records(records: DataFrame) -> DataFrame:
    """The same of good records, of those that have rows."""
    text = F.to_json(F.struct(*schema.HEADER_SCHEMA.names, "rows")).alias("value")
    lines = records.where(F.col("rows").isNotNull()).select(text, F.lit("").alias("origin"))
    return map_in_arrow(lines, batches.split_good_columns, StructType([*_PIECES_SCHEMA, lines.schema["origin"]]))
