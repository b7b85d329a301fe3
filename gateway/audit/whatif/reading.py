# The usage records as a what-if takes them: each once, its header for the search for gaps, its rows in pieces
# (pieces.py). Lines of text are checked in Spark's Python processes; those that are not beyond doubt, and copies of a
# record that are not the same text, go through transforms.decode as in every other audit, and so does nothing else: a
# log as gateways write it costs a tenth of what decoding it in Java does.
#
# Knows neither argv nor policies.

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import schema
from gateway.audit.batch import job, transforms
from gateway.audit.store import AuditTables
from gateway.audit.whatif import pieces, task
from policies import usage

_HEADER_COLUMNS = ("kind", "gateway", "boot", "worker", "seq", "part", "parts", "start_ms", "end_ms", "final")


@dataclass(frozen=True, slots=True)
class RecordedUsage:
    """The records that were read, each once. Both frames are lazy."""

    intervals: DataFrame  # their headers, to look for gaps in
    records: DataFrame  # header and `pieces`
    sources: list[dict[str, Any]]
    integrity_fields: dict[str, Any]  # as job.Records has it


def prestart_workers(spark: SparkSession) -> None:
    """Have Spark's Python processes start while it looks for files and plans: they take a second."""
    if job.under_spark_submit():  # which of a cluster's will be needed is not known yet
        return
    context = spark.sparkContext
    count = context.defaultParallelism

    def start() -> None:
        with suppress(Exception):  # whatever is wrong with them, those who need them will say
            context.parallelize(range(count), count).foreachPartition(task.preload_imports)

    # Not PySpark's kind of thread, for the reasons in progress.py.
    threading.Thread(target=start, daemon=True).start()


@contextmanager
def read_pieces(
    sources: Sequence[job.AuditSource], tell: Callable[[str], None] = job.ignore_progress
) -> Iterator[RecordedUsage]:
    """The records of these sources together, as job.read counts them.

    Raises:
        AuditError: a source can't be read to its end (also from within).
    """
    raw = job.union_sources(sources)
    with job.report_progress(raw.sparkSession, tell), ExitStack() as kept:
        tell("reading and checking")
        found = _check_lines(raw).persist()
        kept.callback(found.unpersist)
        about = [source.description for source in sources]
        trust, recorded = _separate_records(found, kept)
        if recorded is not None:
            yield RecordedUsage(recorded.select(*_HEADER_COLUMNS), recorded, about, trust)
            return
    # Copies contradict each other, or are written in different ways: which one counts follows from their contents.
    with job.read_sources(sources, tell) as records, split_records(records) as again:
        yield again


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
        yield RecordedUsage(records.intervals, whole, records.sources, records.integrity_fields)
    finally:
        whole.unpersist()


def _check_lines(raw: DataFrame) -> DataFrame:
    """pieces.CHECKED of good lines; of others the columns of schema.RAW and no `kind`."""
    # What isn't deterministic is done once, and not for each field that is looked at.
    check = F.udf(pieces.check_line, pieces.CHECKED_SCHEMA, useArrow=False).asNondeterministic()
    found = raw.select("value", "origin", check("value").alias("found"))
    other = F.col("found").isNull()
    return found.select("found.*", *(F.when(other, F.col(name)).alias(name) for name in schema.RAW_SCHEMA.names))


def _split_good_records(records: DataFrame) -> DataFrame:
    """pieces.CHECKED of good records with rows."""
    text = F.to_json(F.struct(*usage.HEADER_FIELDS, "rows"))
    check = F.udf(pieces.parse_good_record, pieces.CHECKED_SCHEMA, useArrow=False).asNondeterministic()
    return records.where(F.col("rows").isNotNull()).select(check(text).alias("found")).select("found.*")


def _separate_records(checked: DataFrame, kept: ExitStack) -> tuple[dict[str, Any], DataFrame | None]:
    """The fields of Integrity, and the records, each once; None: their texts don't say."""
    found, good = _count_copies(checked), checked.where(F.col("kind").isNotNull())
    counted: dict[str, Any] = {"malformed": 0, "problems": {}, "samples": []}
    if found["others"]:
        rest = transforms.decode_records(
            checked.where(F.col("kind").isNull()).select(*schema.RAW_SCHEMA.names)
        ).persist()
        kept.callback(rest.unpersist)
        counts = job.count_records(rest)
        counted = {name: counts[name] for name in counted}
        if counts["records"] > counts["malformed"]:
            strange = _split_good_records(rest.where(F.col("problem").isNull())).withColumn(
                "mark", F.lit(None).cast("long")
            )
            strange = strange.persist()
            kept.callback(strange.unpersist)
            good = good.select(*strange.columns).unionByName(strange)
            found = _count_copies(good) | {"records": found["records"]}
    if found["unclear"]:
        return {}, None
    copies = {"duplicates": found["duplicates"], "conflicts": 0}
    return {"records": found["records"], **counted, **copies}, _drop_copies(good) if found["duplicates"] else good


def _count_copies(checked: DataFrame) -> dict[str, int]:
    """All records, those that were not good beyond doubt, further copies, and identities whose copies may differ."""
    # One pass, which also fills what is persisted for the passes to come. Records without a header are one group.
    by_name = checked.groupBy(*schema.IDENTITY_COLUMNS).agg(
        F.count(F.lit(1)).alias("copies"),
        F.count("mark").alias("marked"),
        (F.min("mark") != F.max("mark")).alias("differ"),
    )
    is_good, several = F.col("kind").isNotNull(), F.col("copies") > 1
    row = by_name.agg(
        F.sum("copies").alias("records"),
        F.sum(F.when(~is_good, F.col("copies"))).alias("others"),
        F.sum(F.when(is_good, F.col("copies") - 1)).alias("duplicates"),
        F.count_if(is_good & several & ((F.col("marked") < F.col("copies")) | F.col("differ"))).alias("unclear"),
    ).collect()[0]
    return {name: value or 0 for name, value in row.asDict().items()}


def _drop_copies(good: DataFrame) -> DataFrame:
    """One record of each identity: its copies are the same text."""
    return good.dropDuplicates(list(schema.IDENTITY_COLUMNS))
