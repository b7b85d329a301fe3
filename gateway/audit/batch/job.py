# The audit as one batch: a Spark session, the sources (usage topic, spool files), and the run from text to a Report.
#
# A topic is read from the earliest offset to the end offsets taken at the start: so the whole job sees one and the same
# range, and a wrong address fails within seconds. Knows neither argv nor how a Report is shown. Contains no master, no
# memory and no path of its own: under spark-submit all of those are the caller's.

from __future__ import annotations

import glob
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import store
from gateway.audit.addresses import check_reachable, check_remote
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
from gateway.audit.cluster_access import UntranslatableProperty
from gateway.audit.engines import PACKED_ENDINGS, SPOOL_ENDING, find_remote, has_given_session
from gateway.audit.errors import NO_JVM_TEXT, AuditError, explain_error
from gateway.audit.records import decoding
from gateway.audit.spark import connector, java_admin, schema
from gateway.audit.spark.progress import watch_progress
from gateway.audit.store import AuditTables
from gateway.audit.topic_range import TopicRange, describe_topic
from gateway.embedded.jars import class_data_options

APP_NAME: Final = "produce-gateway audit"
SPARK_JARS: Final = Path(pyspark.__file__).parent / "jars"
_POLL_TIMEOUT_MS: Final = 60_000  # how long a task waits for records that exist
_STOP_TIMEOUT_S: Final = 10.0
# Each time that Spark's source has read what it was given, it asks the broker twice for the partition's bounds: for
# Kafka's 500 records that takes as long as for these, whose number is bounded by Kafka's megabyte anyway.
READER_OPTIONS: Final = {"kafka.max.poll.records": "5000"}
_SPLIT_FROM_RECORDS: Final = 10_000  # records below which splitting a partition costs more than it gives
_RECORDS_PER_TASK: Final = 100_000  # a few seconds of work: often enough to see how far it is, and what fits in memory
# Marks of the line that says why a JVM did not come up, the most telling first.
_FAILURE_MARKS: Final = (
    "unresolved dependency:",
    "Could not reserve enough space",
    "maximum heap",  # "Invalid maximum heap size: -Xmxfoo", "Too small maximum heap"
    "Unrecognized option",
    "Exception in thread",
    "Error:",
    "ERROR",
)
# Of spool files, from which on both of Java's compilers work. Sums of 0.1, 0.3, 1 and 3 million records (0.53 GB a
# million) took 13, 14, 17 and 31 s of CPU with the quick one alone, 24, 25, 30 and 38 s with both: the lines meet at
# five million.
LONG_READ_BYTES: Final = 3_000_000_000
_ARROW_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
# On a cluster that is spark-submit's business; a session of our own is for one machine.
_COMMON_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Of what goes to Python at once: 10,000 records alone may be 5 GB.
    _ARROW_BYTES: str(8 * 2**20),
}
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_QUICK_COMPILER: Final = "-XX:TieredStopAtLevel=1 "
_UNCHECKED_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# With the quick one alone Java has room for 48 MB of code, which a stream fills: it drops code and makes it again.
_MUCH_CODE: Final = " -XX:ReservedCodeCacheSize=240m"
LOCAL_SETTINGS: Final = _COMMON_SETTINGS | {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Arrow's checks of each access to a batch: with the quick compiler a fifth of what it takes to fill one. And the
    # quick one of Java's two compilers, unless the other saves more than its own work costs (`is_long`). And the
    # collector without work beside the program, which needs every core: a tenth less CPU. `--conf
    # spark.driver.extraJavaOptions=` gives the others back, and does without the archive of classes (class_data.py).
    JAVA_OPTIONS: f"{_QUICK_COMPILER}-XX:+UseParallelGC {_UNCHECKED_ARROW}",
    # Noting down the line of every expression costs calls into the JVM, and we show no such lines.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # It says why itself; `--conf spark.python.daemon.module=pyspark.daemon` gives PySpark's own back.
    "spark.python.daemon.module": "gateway.audit.spark.python_daemon",
    # 200, for listing files 10,000, and for Delta's log 50, are for clusters; here each would be a task of some
    # milliseconds.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": str(min(8, os.cpu_count() or 2)),
    # One step of a stream's roll-ups has more than the 100 that Spark keeps, and would compile all of them each time.
    "spark.sql.codegen.cache.maxEntries": "1000",
}
_DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # `--grace` says what VACUUM leaves; Delta's own check wants a week.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}


@dataclass(frozen=True, slots=True)
class AuditSource:
    """Text to audit (schema.RAW), its kind (for the report), and the number of its records where that is known."""

    raw_lines: DataFrame
    description: dict[str, Any]
    record_count: int | None = None
    keys: tuple[bytes, ...] = ()  # of the records' digests


@contextmanager
def open_session(
    conf: Mapping[str, str] | None = None,
    *,
    kafka: bool = True,
    delta: bool = False,
    jars: str | None = None,
    packages: str | None = None,
    stop_s: float | None = None,
    is_long: bool = False,
) -> Iterator[SparkSession]:
    """A Spark session: spark-submit's or a Spark Connect server's if there is one, else one on this machine, with the
    connector where asked for.

    With `delta`, Delta Lake is there as well. With `is_long`, both of Java's compilers work: for what reads some
    gigabytes, or goes on for hours.

    `jars` (files, separated by commas) or `packages` (Maven coordinates) take the place of the pinned connector. A JVM
    of ours that doesn't end with the session is killed; with `stop_s` (seconds) a later end is an error.
    Nothing of Spark's or Java's own chatter reaches stdout or stderr.

    Raises:
        connector.MissingDependency: no Java, no connector.
        AuditError: Spark did not start, or not end.
    """
    if has_given_session():
        spark = _join_session(delta, conf or {})
        try:
            yield spark
        finally:
            spark.stop()
        return
    connector.find_java()
    with tempfile.TemporaryDirectory(prefix="produce-gateway-audit-") as folder:
        settings = LOCAL_SETTINGS | {"spark.sql.warehouse.dir": f"{folder}/warehouse", "spark.local.dir": folder}
        if is_long:
            settings[JAVA_OPTIONS] = settings[JAVA_OPTIONS].removeprefix(_QUICK_COMPILER)
        elif kafka and delta:
            settings[JAVA_OPTIONS] += _MUCH_CODE
        settings[JAVA_OPTIONS] += "".join(f' "{option}"' for option in class_data_options(SPARK_JARS))
        settings |= (
            _connector_settings(kafka, delta, jars, packages) | (_DELTA_SETTINGS if delta else {}) | dict(conf or {})
        )
        spark = _start_session(settings, Path(folder) / "spark.log")
        try:
            yield spark
        finally:
            _stop_session(spark, stop_s)


def read_topic(
    spark: SparkSession,
    bootstrap_servers: str,
    topic: str,
    properties: Mapping[str, str] | None = None,
) -> AuditSource:
    """The usage topic from its earliest offsets to its end as of now.

    `properties` are the Java client's own (`security.protocol`, …), without the prefix "kafka.".

    Raises:
        AuditError: no broker answers, no such topic, not allowed, or the connector is not loaded.
    """
    return read_topic_ranges(spark, bootstrap_servers, topic, properties)[-1]


def read_topic_ranges(
    spark: SparkSession,
    bootstrap_servers: str,
    topic: str,
    properties: Mapping[str, str] | None = None,
    from_ms: int | None = None,
) -> list[AuditSource]:
    """The same from several offsets on, as TopicRange.find_part_starts has them; the last one is the whole topic."""
    properties = {"bootstrap.servers": bootstrap_servers, **(properties or {})}
    offsets, begins = _fetch_offsets(spark, topic, properties, from_ms)
    ranges = [{partition: (starts[partition], end) for partition, (_, end) in offsets.items()} for starts in begins]
    return [_read_range(spark, topic, properties, each) for each in ranges]


def _read_range(
    spark: SparkSession, topic: str, properties: Mapping[str, str], offsets: Mapping[int, tuple[int, int]]
) -> AuditSource:
    records = sum(end - start for start, end in offsets.values())
    about = describe_topic(properties["bootstrap.servers"], topic, offsets)
    if not records:
        return AuditSource(spark.createDataFrame([], schema.RAW_SCHEMA), about, 0)
    reader = (
        spark.read.format("kafka")
        .options(**READER_OPTIONS)
        .options(**{f"kafka.{name}": value for name, value in properties.items()})
        .option("subscribe", topic)
        .option("startingOffsets", _offsets_json(topic, {p: start for p, (start, _) in offsets.items()}))
        .option("endingOffsets", _offsets_json(topic, {p: end for p, (_, end) in offsets.items()}))
        .option("failOnDataLoss", "true")
        .option("kafkaConsumer.pollTimeoutMs", _POLL_TIMEOUT_MS)
    )
    if records > _SPLIT_FROM_RECORDS:
        context: Any = getattr(spark, "sparkContext", None)  # Spark Connect has none
        cores = 0 if context is None else context.defaultParallelism
        wanted = max(len(offsets), cores, records // _RECORDS_PER_TASK)
        reader = reader.option("minPartitions", wanted)
    origin = F.concat_ws("", "topic", F.lit("-"), "partition", F.lit("@"), "offset")
    raw = _load_topic(spark, reader).select(F.col("value").cast("string").alias("value"), origin.alias("origin"))
    return AuditSource(raw, about, records)


def _fetch_offsets(
    spark: SparkSession, topic: str, properties: Mapping[str, str], from_ms: int | None
) -> tuple[dict[int, tuple[int, int]], list[dict[int, int]]]:
    """Of each partition the earliest offset and the end, and where reading may begin."""
    try:
        found = TopicRange(properties["bootstrap.servers"], topic, properties)
    except UntranslatableProperty:  # such as Kerberos: only Java's client has it, where Spark's JVM is at hand
        if getattr(spark, "sparkContext", None) is None:
            raise
        offsets = java_admin.fetch_offsets(spark, topic, properties)
        return offsets, [{partition: start for partition, (start, _) in offsets.items()}]
    return found.offsets, found.find_part_starts(from_ms)


def _load_topic(spark: SparkSession, reader: DataFrameReader) -> DataFrame:
    try:
        return reader.load()
    except PySparkException as error:
        if error.getCondition() == "DATA_SOURCE_NOT_FOUND":
            raise AuditError(connector.missing_connector_text(spark.version)) from None
        raise


def spool_bytes(paths: Iterable[str]) -> int:
    """The size of spool files on file systems of the operating system; 0 for others."""
    found = (Path(path).glob("*.jsonl") if Path(path).is_dir() else map(Path, glob.iglob(path)) for path in paths)
    return sum(file.stat().st_size for files in found for file in files if file.is_file())


def read_spool(spark: SparkSession, path: str) -> AuditSource:
    """Spool files: every line is a record. `path` is a file, a glob, or a directory (its *.jsonl), or a URI of such.

    Raises:
        AuditError: there is no such file.
    """
    # The gateway's own directory holds its notes and a lock beside the records.
    in_folder = f"*{SPOOL_ENDING}{{,{','.join(PACKED_ENDINGS)}}}"
    only = {"pathGlobFilter": in_folder} if Path(path).is_dir() or path.endswith("/") else {}
    try:
        lines = spark.read.options(**only).text(path, lineSep="\n")
    except PySparkException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise AuditError(f"no spool file matches {path}") from None
        raise
    name = F.replace(F.col("_metadata.file_name"), F.lit("+"), F.lit("%2B"))  # a part of a URI
    raw = lines.select("value", F.url_decode(name).alias("origin"))
    return AuditSource(raw, {"kind": "spool", "name": path})


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


def union_sources(sources: Sequence[AuditSource]) -> DataFrame:
    """The text of all of them."""
    raw = sources[0].raw_lines
    for source in sources[1:]:
        raw = raw.unionByName(source.raw_lines)
    return raw


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


def _connector_settings(kafka: bool, delta: bool, jars: str | None, packages: str | None) -> dict[str, str]:
    if jars:
        absent = [jar for jar in jars.split(",") if "://" not in jar and not Path(jar).is_file()]
        if absent:
            raise AuditError(f"--jars: there is no file {absent[0]}")
        return {"spark.jars": jars}
    if packages:
        return {"spark.jars.packages": packages}
    wanted = [*([connector.KAFKA_CONNECTOR] if kafka else []), *([connector.DELTA_LAKE] if delta else [])]
    found = connector.provide_jars(wanted, pyspark.__version__)
    return {"spark.jars": ",".join(map(str, found))} if found else {}


def _join_session(delta: bool, conf: Mapping[str, str]) -> SparkSession:
    """The session that is there: its own settings stay; only those that it was not given get a value of ours."""
    builder = SparkSession.builder.appName(APP_NAME)
    remote = find_remote()
    if remote is None:
        given = SparkConf()
        own = {name: value for name, value in _COMMON_SETTINGS.items() if not given.contains(name)} | (
            _DELTA_SETTINGS if delta else {}
        )
        return _silence_logs(builder.config(map={**own, **conf}).getOrCreate())
    if delta:
        raise AuditError(f"{NO_JVM_TEXT}: ask about the tables by spark-submit, or on one machine")
    check_remote(remote)
    try:
        return builder.config(map={_ARROW_BYTES: _COMMON_SETTINGS[_ARROW_BYTES], **conf}).getOrCreate()
    except PySparkException as error:
        raise AuditError(f"SPARK_REMOTE: {explain_error(error)}") from None


def _start_session(settings: Mapping[str, Any], log: Path) -> SparkSession:
    # Without it Spark asks the resolver for this host's name, warns, and takes an outer address.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Else the first python3 on PATH, which may be another one and have no msgspec (the what-if runs in it).
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # PySpark 4.0 imports its tests' tools to ask whether there is numpy, and with them pandas and Arrow where they are
    # installed: half a second or more, in which Java starts just as well.
    threading.Thread(target=_preload_pyspark, daemon=True).start()
    try:
        with _redirect_output(log):
            return _silence_logs(SparkSession.builder.appName(APP_NAME).config(map=dict(settings)).getOrCreate())
    except (PySparkException, Py4JJavaError, OSError, RuntimeError) as error:
        raise AuditError(f"Spark did not start: {_failure_reason(log, error)}") from None


def _preload_pyspark() -> None:
    with suppress(Exception):  # then PySpark says so
        importlib.import_module("pyspark.testing.utils")


def _stop_session(spark: SparkSession, timeout_s: float | None) -> None:
    # Stopping a session leaves its JVM, with half a gigabyte and the jars it was started with, to the next session.
    # PySpark's receiver of counters looks once a second whether it is to end: nothing needs to wait for that, and that
    # the JVM has gone first is no error.
    context: Any = spark.sparkContext
    receiver, context._accumulatorServer = context._accumulatorServer, None
    receiver.handle_error = lambda *_: None
    threading.Thread(target=receiver.shutdown, daemon=True).start()
    spark.stop()
    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()  # the sign on which the JVM ends
    try:
        gateway.proc.wait(timeout=timeout_s or _STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    if timeout_s is not None and gateway.proc.returncode:
        raise AuditError(f"Spark's JVM did not end as it should: status {gateway.proc.returncode}")


def _silence_logs(spark: SparkSession) -> SparkSession:
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def _redirect_output(log: Path) -> Iterator[None]:
    # The JVM keeps the descriptors that it was born with: its warnings, Ivy's reports and log4j's lines all go there.
    saved = [os.dup(1), os.dup(2)]
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        for number, descriptor in enumerate(saved, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(target)


def _failure_reason(log: Path, error: BaseException) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    if "Module jdk.incubator.vector not found" in text:
        return "this Java lacks the module jdk.incubator.vector: install a full JDK or JRE 17 or 21"
    for mark in _FAILURE_MARKS:
        line = next((line for line in text.splitlines() if mark in line), None)
        if line:
            return line.strip()[:500]
    return explain_error(error)


def _offsets_json(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


__all__ = [
    "AuditError",
    "AuditQuery",
    "AuditRecords",
    "AuditReport",
    "AuditSource",
    "LogIntegrity",
    "NumberedRecords",
    "answer_query",
    "audit_sources",
    "audit_tables",
    "check_reachable",
    "count_records",
    "explain_error",
    "find_gaps",
    "has_given_session",
    "ignore_progress",
    "open_decoded",
    "open_session",
    "read_sources",
    "read_spool",
    "read_sums",
    "read_tables",
    "read_topic",
    "read_topic_ranges",
    "report_progress",
    "spool_bytes",
    "union_sources",
]
