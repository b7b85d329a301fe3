# The audit as one batch: from the text of its sources, or from tables, to a Report. Knows neither argv nor how a Report
# is shown.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import store
from gateway.audit.batch import groups, ranking, transforms
from gateway.audit.batch.query import (
    AuditQuery,
    AuditReport,
    IntervalSpan,
    LargestGroups,
    LogIntegrity,
    answer_query,
    assess_integrity,
    count_kinds,
    ignore_progress,
)
from gateway.audit.batch.rollups.reading import COUNT_COLUMNS, RolledUsage, open_rolled
from gateway.audit.batch.spark_sources import AuditSource, union_sources
from gateway.audit.errors import AuditError, explain_error
from gateway.audit.records import decoding
from gateway.audit.spark import schema
from gateway.audit.spark.progress import watch_progress
from gateway.audit.store import AuditTables


@dataclass(frozen=True, slots=True)
class AuditRecords:
    """The records that were read, each once: `rows` to sum up, `intervals` to look for gaps in. Both are lazy."""

    rows: DataFrame  # transforms.usage_rows, or the table `usage`
    intervals: DataFrame  # unique records, the table of that name (which hasn't their rows), or runs of read_sums
    sources: list[dict[str, Any]]
    integrity_fields: dict[str, Any]  # the fields of Integrity that are known before gaps are looked for
    full_records: DataFrame | None = None  # the unique records with their `rows`, where `intervals` hasn't them
    rolled: RolledUsage | None = None  # of tables: what says the same of most of them in fewer rows

    @property
    def record_count(self) -> int:
        """The number of records read, copies and malformed ones included."""
        return int(self.integrity_fields["records"])

    @property
    def numbering(self) -> DataFrame:
        """As NumberedRecords has it."""
        return self.intervals if self.rolled is None else self.rolled.load_numbering()

    def select_rows(self, from_ms: int | None, to_ms: int | None, window_ms: int | None) -> DataFrame:
        """Those within the bounds, to be summed up by windows of that length, in as few rows as say the same."""
        if self.rolled is None:
            return transforms.filter_by_start(self.rows, from_ms, to_ms)
        return self.rolled.select_rows((from_ms, to_ms), window_ms)

    def sum_groups(self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress) -> list[dict[str, Any]]:
        """As CountedRecords has it."""
        with self.open_groups(question, tell) as rows:
            return [*rows]

    @contextmanager
    def open_groups(
        self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress
    ) -> Iterator[Iterable[dict[str, Any]]]:
        """As CountedRecords has it."""
        tell(f"summing up {self.record_count:,} records")
        with groups.open_group_rows(self._question_rows(question), question) as rows:
            yield rows

    def rank_groups(
        self,
        question: AuditQuery,
        what: str,
        limit: int,
        tell: Callable[[str], None] = ignore_progress,
        least: int = 1,
    ) -> LargestGroups:
        """As CountedRecords has it."""
        tell(f"summing up {self.record_count:,} records")
        return ranking.rank_rows(self._question_rows(question), question, what, limit, least)

    def prepare(
        self, questions: Sequence[AuditQuery], spans: AuditQuery, tell: Callable[[str], None] = ignore_progress
    ) -> None:
        """As CountedRecords has it: what Spark has decoded, it keeps."""

    def measure_spans(self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress) -> list[IntervalSpan]:
        """As CountedRecords has it."""
        tell("looking at intervals")
        return sorted(map(IntervalSpan._make, transforms.measure_spans(self.intervals, question).collect()))

    def _question_rows(self, question: AuditQuery) -> DataFrame:
        return self.select_rows(question.from_ms, question.to_ms, question.window_ms)

    def find_gaps(self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress) -> LogIntegrity:
        """As CountedRecords has it."""
        return find_gaps(self, question, tell)


class NumberedRecords(Protocol):
    """Unique records or runs of them, to look for gaps in; `sources` and `integrity_fields` of AuditRecords."""

    @property
    def numbering(self) -> DataFrame: ...

    @property
    def sources(self) -> list[dict[str, Any]]: ...

    @property
    def integrity_fields(self) -> dict[str, Any]: ...


@contextmanager
def report_progress(spark: SparkSession, tell: Callable[[str], None]) -> Iterator[None]:
    """While it lasts, `tell` hears how far Spark is.

    Raises:
        AuditError: Spark could not do it.
    """
    try:
        with watch_progress(spark, tell):
            yield
    except (Py4JJavaError, PySparkException) as error:
        raise AuditError(explain_error(error)) from error


@contextmanager
def open_decoded(
    sources: Sequence[AuditSource],
    decode: Callable[[DataFrame, Sequence[bytes]], DataFrame],
    tell: Callable[[str], None],
) -> Iterator[tuple[DataFrame, dict[str, Any]]]:
    """The records of these sources, each once, and the fields of LogIntegrity that are known before gaps are found.

    They are decoded once, until the exit: by transforms.decode_records, or another that gives headers and
    schema.JUDGED_SCHEMA as well.

    Raises:
        AuditError: a source can't be read to its end (also from within).
    """
    raw = union_sources(sources)
    decoded = decode(raw, sources[0].keys).persist()
    try:
        with report_progress(raw.sparkSession, tell):
            tell("reading and decoding")
            trust = count_records(decoded)
            # Only where there are copies: to find them, each query sorts all records with their rows.
            copied = trust["duplicates"] > 0
            good = decoded.where(F.col("problem").isNull())
            yield transforms.drop_copies(transforms.mark_copies(decoded)) if copied else good, trust
    finally:
        decoded.unpersist()


@contextmanager
def read_sources(
    sources: Sequence[AuditSource], tell: Callable[[str], None] = ignore_progress
) -> Iterator[AuditRecords]:
    """The records of these sources together: a record in several of them counts once.

    Raises:
        AuditError: a source can't be read to its end (also from within).
    """
    with open_decoded(sources, transforms.decode_records, tell) as (records, trust):
        about = [source.description for source in sources]
        yield AuditRecords(transforms.explode_rows(records, "end_ms"), records, about, trust)


@contextmanager
def read_sums(
    sources: Sequence[AuditSource], tell: Callable[[str], None] = ignore_progress, *, question: AuditQuery
) -> Iterator[AuditRecords]:
    """As read_sources, for this question alone: `rows` are sums of those within its bounds, `intervals` are runs.

    Where a record may be there several times, it is read_sources: which copy counts follows from all of them.

    Raises:
        AuditError: a source can't be read to its end (also from within).
    """
    raw = union_sources(sources)
    condensed = transforms.condense_records(raw, question, sources[0].keys).persist()
    try:
        with report_progress(raw.sparkSession, tell):
            tell("reading and decoding")
            runs = condensed.where(F.col("kind").isNotNull()).select(*schema.RUN_SCHEMA.names)
            if not transforms.has_copies(runs):
                about = [source.description for source in sources]
                yield AuditRecords(
                    condensed.where(F.col("outcome").isNotNull()), runs, about, _count_condensed(condensed)
                )
                return
    finally:
        condensed.unpersist()
    tell("some records are there several times")
    with read_sources(sources, tell) as records:
        yield records


@contextmanager
def read_tables(
    tables: AuditTables,
    from_ms: int | None = None,
    to_ms: int | None = None,
    tell: Callable[[str], None] = ignore_progress,
) -> Iterator[AuditRecords]:
    """The same of tables that a stream has written (store.open_tables); `rows` holds at least those within the bounds.

    Raises:
        AuditError: the tables can't be read (also from within).
    """
    with report_progress(tables.spark, tell):
        tell("reading the tables")
        rolled = open_rolled(tables)
        tables = rolled.tables
        records = tables.load_records()
        on_days = store.filter_by_day(records, from_ms, to_ms)
        intervals, whole = store.select_view(records, "intervals"), on_days.where(F.col("counts"))
        rows, about = store.select_view(on_days, "usage"), [tables.describe_source()]
        yield AuditRecords(rows, intervals, about, _count_tables(rolled, records), whole, rolled)


def audit_sources(
    spark: SparkSession,
    sources: Sequence[AuditSource],
    question: AuditQuery,
    tell: Callable[[str], None] = ignore_progress,
) -> AuditReport:
    """Audit the sources together: a record in several of them counts once.

    Raises:
        AuditError: a source can't be read to its end.
    """
    with read_sums(sources, tell, question=question) as records:
        return answer_query(records, question, tell)


def audit_tables(
    tables: AuditTables, question: AuditQuery, tell: Callable[[str], None] = ignore_progress
) -> AuditReport:
    """Answer the same question from the tables that a stream has written (store.open_tables).

    Raises:
        AuditError: the tables can't be read.
    """
    with read_tables(tables, question.from_ms, question.to_ms, tell) as records:
        return answer_query(records, question, tell)


def _count_tables(rolled: RolledUsage, records: DataFrame) -> dict[str, Any]:
    counted = rolled.count_records().groupBy(*COUNT_COLUMNS[:-1]).agg(F.sum("count").alias("count"))
    bad = store.select_view(records, "malformed")
    origin = F.concat_ws("", "origin_topic", F.lit("-"), "partition", F.lit("@"), "offset").alias("origin")
    # Bytes: what is no UTF-8 is to read as it does everywhere.
    start = F.substring("value", 1, 4 * decoding.SAMPLE_CHARS).alias("sample")
    rows = [(row["counts"], row["conflict"], row["problem"], row["count"]) for row in counted.collect()]

    def find_samples() -> list[dict[str, Any]]:
        found = _first_samples(bad.select(origin, "problem", start))
        return [each | {"sample": decoding.sample_text(each["sample"])} for each in found]

    return count_kinds(rows, find_samples)


def count_records(decoded: DataFrame) -> dict[str, Any]:
    """Of transforms.decode: the fields of Integrity that are known before gaps are looked for."""
    # One pass, which also fills the persisted decode for the passes to come.
    problems = {row["problem"]: row["count"] for row in decoded.groupBy("problem").count().collect()}
    good = problems.pop(None, 0)
    bad = F.col("problem").isNotNull()
    samples = _first_samples(decoded.where(bad).select("origin", "problem", "sample")) if problems else []
    return {
        "records": good + sum(problems.values()),
        "malformed": sum(problems.values()),
        "problems": dict(sorted(problems.items())),
        "samples": samples,
        **_count_copies(decoded),
    }


def _count_condensed(condensed: DataFrame) -> dict[str, Any]:
    """The same of sources in which no record is there twice."""
    records = F.sum(
        F.when(F.col("kind").isNotNull(), F.col("last_seq") - F.col("first_seq") + 1).otherwise(F.col("count"))
    )
    counted = condensed.groupBy("problem").agg(F.coalesce(records, F.lit(0)).alias("records")).collect()
    problems = {row["problem"]: row["records"] for row in counted}
    good = problems.pop(None, 0)
    told = condensed.where(F.col("problem").isNotNull() & F.col("origin").isNotNull())
    samples = _first_samples(told.select("origin", "problem", "sample")) if problems else []
    return {
        "records": good + sum(problems.values()),
        "malformed": sum(problems.values()),
        "problems": dict(sorted(problems.items())),
        "samples": samples,
        "duplicates": 0,
        "conflicts": 0,
    }


def _first_samples(malformed: DataFrame) -> list[dict[str, Any]]:
    # In an order of their own: that of files and partitions differs from run to run, and from engine to engine.
    first = malformed.orderBy("origin", "problem", "sample").limit(decoding.MAX_SAMPLES)
    return [row.asDict() for row in first.collect()]


def _count_copies(decoded: DataFrame) -> dict[str, int]:
    counted = transforms.mark_copies(decoded).agg(
        F.count_if(F.col("copy") > 1).alias("duplicates"), F.count_if("conflict").alias("conflicts")
    )
    row = counted.collect()[0]
    return {"duplicates": row["duplicates"], "conflicts": row["conflicts"]}


def find_gaps(
    records: NumberedRecords, question: AuditQuery, tell: Callable[[str], None] = ignore_progress
) -> LogIntegrity:
    """The certain and possible gaps in the records between the question's bounds."""
    tell("looking for gaps")
    # Kept, because `boots` and then each of the parts of `gaps` would sort all records again to find the unique ones.
    numbering = transforms.select_numbering(records.numbering).persist()
    try:
        boots = [row.asDict() for row in transforms.summarize_boots(numbering).collect()]
        boots.sort(key=lambda boot: tuple(boot[name] for name in schema.BOOT_COLUMNS))
        whole = [boot.pop(transforms.WHOLE_COLUMN) for boot in boots]
        broken: dict[tuple[Any, ...], int] = {}
        if any(boot["chained"] for boot in boots):
            links = transforms.count_broken_links(numbering).collect()
            broken = {tuple(row[name] for name in schema.BOOT_COLUMNS): row["broken"] for row in links}
        gaps: Iterator[dict[str, Any]] = iter(())
        if not all(whole):
            found = transforms.detect_gaps(numbering).orderBy(*schema.BOOT_COLUMNS, "first_seq", "gap")
            gaps = (row.asDict() for row in found.toLocalIterator())
        return assess_integrity(records.integrity_fields, boots, gaps, question, records.sources, broken)
    finally:
        numbering.unpersist()
