# The usage records as a what-if takes them: each once, its header for the search for gaps, its rows in pieces
# (pieces.py).
#
# Knows neither argv nor policies.

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from gateway.audit import schema
from gateway.audit.arrow_map import map_in_arrow
from gateway.audit.batch import job
from gateway.audit.store import AuditTables
from gateway.audit.whatif import pieces, task

_MANY_ROWS: Final = 1000  # more than there are cores
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


def prestart_workers(spark: SparkSession) -> None:
    """Have Spark's Python processes start while it looks for files and plans: they take a second."""
    if job.has_given_session():  # which of a cluster's will be needed is not known yet
        return
    each_core = spark.range(_MANY_ROWS)

    def start() -> None:
        with suppress(Exception):  # whatever is wrong with them, those who need them will say
            map_in_arrow(each_core, task.preload_imports, each_core.schema).write.format("noop").mode("append").save()

    # Not PySpark's kind of thread, for the reasons in progress.py.
    threading.Thread(target=start, daemon=True).start()


@contextmanager
def read_pieces(
    sources: Sequence[job.AuditSource], tell: Callable[[str], None] = job.ignore_progress
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
    tell: Callable[[str], None] = job.ignore_progress,
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
    return map_in_arrow(raw.select("value", "origin"), partial(pieces.split_columns, keys=keys), kinds)


def _split_good_records(records: DataFrame) -> DataFrame:
    """The same of good records, of those that have rows."""
    text = F.to_json(F.struct(*schema.HEADER_SCHEMA.names, "rows")).alias("value")
    lines = records.where(F.col("rows").isNotNull()).select(text, F.lit("").alias("origin"))
    return map_in_arrow(lines, pieces.split_good_columns, StructType([*_PIECES_SCHEMA, lines.schema["origin"]]))
