# The audit as one batch: a Spark session, the sources (usage topic, spool files), and the run from text to a Report.
#
# A topic is read from the earliest offset to the end offsets taken at the start, both asked for by name with the Java
# client that the connector brings along: so the whole job sees one and the same range, every kafka.* property means
# the same in the look-up and in the job, and a wrong address fails within seconds. Knows neither argv nor how a Report
# is shown. Contains no master, no memory and no path of its own: under spark-submit all of those are the caller's.

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import connector, schema, store
from gateway.audit.batch import transforms
from gateway.audit.errors import AuditError, explain
from gateway.audit.progress import watched
from gateway.audit.reconcile import brokers
from gateway.audit.reconcile.brokers import check_reachable
from gateway.audit.store import Tables
from gateway.embedded.jars import class_data_options

APP_NAME: Final = "produce-gateway audit"
SPARK_JARS: Final = Path(pyspark.__file__).parent / "jars"
_POLL_TIMEOUT_MS: Final = 60_000  # how long a task waits for records that exist
_STOP_TIMEOUT_S: Final = 10.0
_SMALL: Final = 10_000  # records below which splitting a partition costs more than it gives
_RECORDS_PER_TASK: Final = 100_000  # a few seconds of work: often enough to see how far it is, and what fits in memory
# Marks of the line that says why a JVM did not come up, the most telling first.
_SAYS_WHY: Final = (
    "unresolved dependency:",
    "Could not reserve enough space",
    "maximum heap",  # "Invalid maximum heap size: -Xmxfoo", "Too small maximum heap"
    "Unrecognized option",
    "Exception in thread",
    "Error:",
    "ERROR",
)
MAX_LISTED: Final = 1000  # gaps, incomplete boots: beyond it only their number is given
_SAMPLES: Final = 10
# On a cluster that is spark-submit's business; a session of our own is for one machine.
_ALWAYS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Else functions over frames and functions over RDDs run in different Python processes, and the second kind costs a
    # second to start (the what-if has both).
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
LOCAL: Final = _ALWAYS | {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The quick one of Java's two compilers: a small audit takes half the CPU (11 s, not 22), one of a million rows as
    # much, one of four million a third more. And the collector without work beside the program, which has no core to
    # spare: a tenth less CPU. `--conf spark.driver.extraJavaOptions=` gives the others back, and does without the
    # archive of classes (class_data.py).
    JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC",
    # Noting down the line of every expression costs calls into the JVM, and we show no such lines.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # 200, for listing files 10,000, and for Delta's log 50, are for clusters; here each would be a task of some
    # milliseconds.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": str(min(8, os.cpu_count() or 2)),
}
_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # `--grace` says what VACUUM leaves; Delta's own check wants a week.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}


@dataclass(frozen=True, slots=True)
class Question:
    """The question: sums `by` some of usage.DIMENSIONS, per window, over intervals that start in [from_ms, to_ms)."""

    by: tuple[str, ...] = ()
    window_ms: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Text to audit (schema.RAW), its kind (for the report), and the number of its records where that is known."""

    raw: DataFrame
    about: dict[str, Any]
    records: int | None = None


@dataclass(frozen=True, slots=True)
class Integrity:
    """Whether the sums can be trusted: all records that were read and not counted, or were not there to be read."""

    records: int  # read in all
    duplicates: int  # copies of a record that was counted already
    conflicts: int  # those of them which say something else than the one that was counted
    malformed: int
    problems: dict[str, int]  # malformed ones by what is wrong with them
    samples: list[dict[str, Any]]
    boots: int
    gaps: list[dict[str, Any]]
    gaps_total: int
    incomplete: list[dict[str, Any]]  # boots that are "lost" or "open"
    incomplete_total: int
    lost: int

    @property
    def complete(self) -> bool:
        """Nothing is known to be missing. A worker that still runs ("open") does not count against it."""
        return not (self.gaps_total or self.lost or self.malformed or self.conflicts)


@dataclass(frozen=True, slots=True)
class Report:
    """The answer: one row per group, columns as transforms.totals gives them, ordered by window and group."""

    question: Question
    sources: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    integrity: Integrity = field(repr=False)


def no_progress(_: str) -> None:
    """For callers that want no progress."""


def under_spark_submit() -> bool:
    """Whether a spark-submit started this process: its JVM runs already, with the master and jars given there."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def session(
    conf: Mapping[str, str] | None = None,
    *,
    kafka: bool = True,
    delta: bool = False,
    jars: str | None = None,
    packages: str | None = None,
    stop_s: float | None = None,
) -> Iterator[SparkSession]:
    """A Spark session: spark-submit's if there is one, else one on this machine, with the connector where asked for.

    With `delta`, Delta Lake is there as well.

    `jars` (files, separated by commas) or `packages` (Maven coordinates) take the place of the pinned connector. A JVM
    of ours that doesn't end with the session is killed; with `stop_s`, after so many seconds, that is an error.
    Nothing of Spark's or Java's own chatter reaches stdout or stderr.

    Raises:
        connector.MissingDependency: no Java, no connector.
        AuditError: Spark did not start, or not end.
    """
    if under_spark_submit():
        # Settings of spark-submit stay; only those that it was not given get a value of ours.
        told = SparkConf()
        own = {name: value for name, value in _ALWAYS.items() if not told.contains(name)} | (_DELTA if delta else {})
        builder = SparkSession.builder.appName(APP_NAME)
        spark = _quiet(builder.config(map={**own, **(conf or {})}).getOrCreate())
        try:
            yield spark
        finally:
            spark.stop()
        return
    connector.find_java()
    with tempfile.TemporaryDirectory(prefix="produce-gateway-audit-") as folder:
        settings = LOCAL | {"spark.sql.warehouse.dir": f"{folder}/warehouse", "spark.local.dir": folder}
        settings[JAVA_OPTIONS] += "".join(f' "{option}"' for option in class_data_options(SPARK_JARS))
        settings |= _connector_settings(kafka, delta, jars, packages) | (_DELTA if delta else {}) | dict(conf or {})
        spark = _start(settings, Path(folder) / "spark.log")
        try:
            yield spark
        finally:
            _stop(spark, stop_s)


def read_topic(
    spark: SparkSession,
    bootstrap_servers: str,
    topic: str,
    properties: Mapping[str, str] | None = None,
) -> Source:
    """The usage topic from its earliest offsets to its end as of now.

    `properties` are the Java client's own (`security.protocol`, …), without the prefix "kafka.".

    Raises:
        AuditError: no broker answers, no such topic, not allowed, or the connector is not loaded.
    """
    properties = {"bootstrap.servers": bootstrap_servers, **(properties or {})}
    offsets = brokers.offsets(spark, topic, properties)
    records = sum(end - start for start, end in offsets.values())
    about = {
        "kind": "topic",
        "name": topic,
        "bootstrap_servers": bootstrap_servers,
        "partitions": [
            {"partition": partition, "start_offset": start, "end_offset": end}
            for partition, (start, end) in sorted(offsets.items())
        ],
    }
    if not records:
        return Source(spark.createDataFrame([], schema.RAW), about, 0)
    reader = (
        spark.read.format("kafka")
        .options(**{f"kafka.{name}": value for name, value in properties.items()})
        .option("subscribe", topic)
        .option("startingOffsets", _offsets_json(topic, {p: start for p, (start, _) in offsets.items()}))
        .option("endingOffsets", _offsets_json(topic, {p: end for p, (_, end) in offsets.items()}))
        .option("failOnDataLoss", "true")
        .option("kafkaConsumer.pollTimeoutMs", _POLL_TIMEOUT_MS)
    )
    if records > _SMALL:
        wanted = max(len(offsets), spark.sparkContext.defaultParallelism, records // _RECORDS_PER_TASK)
        reader = reader.option("minPartitions", wanted)
    origin = F.concat_ws("", "topic", F.lit("-"), "partition", F.lit("@"), "offset")
    raw = reader.load().select(F.col("value").cast("string").alias("value"), origin.alias("origin"))
    return Source(raw, about, records)


def read_spool(spark: SparkSession, path: str) -> Source:
    """Spool files: every line is a record. `path` is a file, a glob, or a directory (its *.jsonl), or a URI of such.

    Raises:
        AuditError: there is no such file.
    """
    # The gateway's own directory holds its notes and a lock beside the records.
    only = {"pathGlobFilter": "*.jsonl"} if Path(path).is_dir() or path.endswith("/") else {}
    try:
        lines = spark.read.options(**only).text(path, lineSep="\n")
    except PySparkException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise AuditError(f"no spool file matches {path}") from None
        raise
    raw = lines.select("value", F.col("_metadata.file_name").alias("origin"))
    return Source(raw, {"kind": "spool", "name": path})


@dataclass(frozen=True, slots=True)
class Records:
    """The records that were read, each once: `rows` to sum up, `intervals` to look for gaps in. Both are lazy."""

    rows: DataFrame  # transforms.usage_rows, or the table `usage`
    intervals: DataFrame  # unique records, or the table of that name, which hasn't their rows
    about: list[dict[str, Any]]
    trust: dict[str, Any]  # the fields of Integrity that are known before gaps are looked for
    whole: DataFrame | None = None  # the unique records with their `rows`, where `intervals` hasn't them

    @property
    def total(self) -> int:
        """The number of records read, copies and malformed ones included."""
        return int(self.trust["records"])


class Numbered(Protocol):
    """What gaps are looked for in: `intervals` and `trust` of Records."""

    @property
    def intervals(self) -> DataFrame: ...

    @property
    def trust(self) -> dict[str, Any]: ...


@contextmanager
def reported(spark: SparkSession, tell: Callable[[str], None]) -> Iterator[None]:
    """While it lasts, `tell` hears how far Spark is.

    Raises:
        AuditError: Spark could not do it.
    """
    try:
        with watched(spark, tell):
            yield
    except (Py4JJavaError, PySparkException) as error:
        raise AuditError(explain(error)) from error


def together(sources: Sequence[Source]) -> DataFrame:
    """The text of all of them."""
    raw = sources[0].raw
    for source in sources[1:]:
        raw = raw.unionByName(source.raw)
    return raw


@contextmanager
def read(sources: Sequence[Source], tell: Callable[[str], None] = no_progress) -> Iterator[Records]:
    """The records of these sources together: a record in several of them counts once. Decoded once, until the exit.

    Raises:
        AuditError: a source can't be read to its end (also from within).
    """
    raw = together(sources)
    decoded = transforms.decode(raw).persist()
    try:
        with reported(raw.sparkSession, tell):
            tell("reading and decoding")
            trust = count(decoded)
            good = decoded.where(F.col("problem").isNull())
            # To find the copies all records are sorted, rows and all, by whoever asks: only where there are any.
            records = transforms.unique(transforms.mark_copies(decoded)) if trust["duplicates"] else good
            yield Records(transforms.usage_rows(records), records, [source.about for source in sources], trust)
    finally:
        decoded.unpersist()


@contextmanager
def read_tables(
    tables: Tables, from_ms: int | None = None, to_ms: int | None = None, tell: Callable[[str], None] = no_progress
) -> Iterator[Records]:
    """The same of tables that a stream has written (store.open_tables); `rows` holds at least those within the bounds.

    Raises:
        AuditError: the tables can't be read (also from within).
    """
    with reported(tables.spark, tell):
        tell("reading the tables")
        tables = tables.at_one_moment()
        records = tables.records()
        on_days = store.on_days(records, from_ms, to_ms)
        intervals, whole = store.view(records, "intervals"), on_days.where(F.col("counts"))
        yield Records(store.view(on_days, "usage"), intervals, [tables.about()], _count_tables(records), whole)


def answer(records: Records, question: Question, tell: Callable[[str], None] = no_progress) -> Report:
    """The sums that are asked for, and whether they can be trusted."""
    tell(f"summing up {records.total:,} records")
    rows = _sum_rows(records.rows, question)
    return Report(question, records.about, rows, find_gaps(records, question, tell))


def run(
    spark: SparkSession,
    sources: Sequence[Source],
    question: Question,
    tell: Callable[[str], None] = no_progress,
) -> Report:
    """Audit the sources together: a record in several of them counts once.

    Raises:
        AuditError: a source can't be read to its end.
    """
    with read(sources, tell) as records:
        return answer(records, question, tell)


def run_tables(tables: Tables, question: Question, tell: Callable[[str], None] = no_progress) -> Report:
    """Answer the same question from the tables that a stream has written (store.open_tables).

    Raises:
        AuditError: the tables can't be read.
    """
    with read_tables(tables, question.from_ms, question.to_ms, tell) as records:
        return answer(records, question, tell)


def _count_tables(records: DataFrame) -> dict[str, Any]:
    bad = store.view(records, "malformed")
    problems = {row["problem"]: row["count"] for row in bad.groupBy("problem").count().collect()}
    origin = F.concat_ws("", "origin_topic", F.lit("-"), "partition", F.lit("@"), "offset").alias("origin")
    text = F.substring(F.col("value").cast("string"), 1, transforms.SAMPLE).alias("sample")
    samples = bad.select(origin, "problem", text).limit(_SAMPLES).collect() if problems else []
    counted = records.agg(
        F.count(F.lit(1)).alias("records"),
        F.count_if(~F.col("counts")).alias("duplicates"),
        F.count_if("conflict").alias("conflicts"),
    ).collect()[0]
    return {
        "malformed": sum(problems.values()),
        "problems": dict(sorted(problems.items())),
        "samples": [row.asDict() for row in samples],
        **counted.asDict(),
    }


def count(decoded: DataFrame) -> dict[str, Any]:
    """Of transforms.decode: the fields of Integrity that are known before gaps are looked for."""
    # One pass, which also fills the persisted decode for the passes to come.
    problems = {row["problem"]: row["count"] for row in decoded.groupBy("problem").count().collect()}
    good = problems.pop(None, 0)
    bad = F.col("problem").isNotNull()
    samples = decoded.where(bad).select("origin", "problem", "sample").limit(_SAMPLES).collect() if problems else []
    return {
        "records": good + sum(problems.values()),
        "malformed": sum(problems.values()),
        "problems": dict(sorted(problems.items())),
        "samples": [row.asDict() for row in samples],
        **_count_copies(decoded),
    }


def _count_copies(decoded: DataFrame) -> dict[str, int]:
    counted = transforms.mark_copies(decoded).agg(
        F.count_if(F.col("copy") > 1).alias("duplicates"), F.count_if("conflict").alias("conflicts")
    )
    row = counted.collect()[0]
    return {"duplicates": row["duplicates"], "conflicts": row["conflicts"]}


def _sum_rows(rows_of_usage: DataFrame, question: Question) -> list[dict[str, Any]]:
    chosen = transforms.within(rows_of_usage, question.from_ms, question.to_ms)
    sums = transforms.totals_of_rows(chosen, question.by, question.window_ms)
    keys = [*([schema.WINDOW] if question.window_ms else []), *question.by]
    rows = [row.asDict() for row in sums.collect()]
    if not keys:  # the sum over nothing is 0, not null
        rows = [{name: value or 0 for name, value in row.items()} for row in rows]
    return sorted(rows, key=lambda row: tuple(row[key] for key in keys))


def find_gaps(records: Numbered, question: Question, tell: Callable[[str], None] = no_progress) -> Integrity:
    """The certain and possible gaps in the records between the question's bounds."""
    tell("looking for gaps")
    # Kept, because `boots` and then each of the parts of `gaps` would sort all records again to find the unique ones.
    numbering = transforms.numbering(records.intervals).persist()
    try:
        boots = [row.asDict() for row in transforms.boots(numbering).collect()]
        boots.sort(key=lambda boot: tuple(boot[name] for name in schema.BOOT))
        whole = [boot.pop(transforms.WHOLE) for boot in boots]
        gaps: list[dict[str, Any]] = []
        gaps_total = 0
        if not all(whole):
            found = transforms.gaps(numbering).orderBy(*schema.BOOT, "first_seq", "gap")
            for row in found.toLocalIterator():  # a broken log may have millions: count all, keep some
                gap = row.asDict()
                if _overlaps(gap, "after_ms", "before_ms", question):
                    gaps_total += 1
                    gaps += [gap] if gaps_total <= MAX_LISTED else []
    finally:
        numbering.unpersist()
    endless = [boot for boot in boots if boot["state"] != "final"]
    incomplete = [boot for boot in endless if _overlaps(boot, "start_ms", "lost_ms", question)]
    return Integrity(
        **records.trust,
        boots=len(boots),
        gaps=gaps,
        gaps_total=gaps_total,
        incomplete=incomplete[:MAX_LISTED],
        incomplete_total=len(incomplete),
        lost=sum(boot["state"] == "lost" for boot in incomplete),
    )


def _overlaps(found: Mapping[str, Any], after: str, before: str, question: Question) -> bool:
    # It lies somewhere between two times, either of which may be unknown: then it may reach as far as it likes.
    begins, ends = found[after], found[before]
    early = question.from_ms is not None and ends is not None and ends <= question.from_ms
    late = question.to_ms is not None and begins is not None and begins >= question.to_ms
    return not (early or late)


def _connector_settings(kafka: bool, delta: bool, jars: str | None, packages: str | None) -> dict[str, str]:
    if jars:
        absent = [jar for jar in jars.split(",") if "://" not in jar and not Path(jar).is_file()]
        if absent:
            raise AuditError(f"--jars: there is no file {absent[0]}")
        return {"spark.jars": jars}
    if packages:
        return {"spark.jars.packages": packages}
    wanted = [*([connector.KAFKA] if kafka else []), *([connector.DELTA] if delta else [])]
    found = [jar for library in wanted for jar in connector.jars(library, pyspark.__version__, SPARK_JARS)]
    return {"spark.jars": ",".join(map(str, found))} if found else {}


def _start(settings: Mapping[str, Any], log: Path) -> SparkSession:
    # Without it Spark asks the resolver for this host's name, warns, and takes an outer address.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Else the first python3 on PATH, which may be another one and have no msgspec (the what-if runs in it).
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # PySpark 4.0 imports its tests' tools to ask whether there is numpy, and with them pandas and Arrow where they are
    # installed: half a second or more, in which Java starts just as well.
    threading.Thread(target=_import_ahead, daemon=True).start()
    try:
        with _output_to(log):
            return _quiet(SparkSession.builder.appName(APP_NAME).config(map=dict(settings)).getOrCreate())
    except (PySparkException, Py4JJavaError, OSError, RuntimeError) as error:
        raise AuditError(f"Spark did not start: {_reason(log, error)}") from None


def _import_ahead() -> None:
    with suppress(Exception):  # then PySpark says so
        importlib.import_module("pyspark.testing.utils")


def _stop(spark: SparkSession, timeout_s: float | None) -> None:
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


def _quiet(spark: SparkSession) -> SparkSession:
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
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


def _reason(log: Path, error: BaseException) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    if "Module jdk.incubator.vector not found" in text:
        return "this Java lacks the module jdk.incubator.vector: install a full JDK or JRE 17 or 21"
    for mark in _SAYS_WHY:
        line = next((line for line in text.splitlines() if mark in line), None)
        if line:
            return line.strip()[:500]
    return explain(error)


def _offsets_json(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


__all__ = [
    "AuditError",
    "Integrity",
    "Numbered",
    "Question",
    "Records",
    "Report",
    "Source",
    "answer",
    "check_reachable",
    "count",
    "explain",
    "find_gaps",
    "no_progress",
    "read",
    "read_spool",
    "read_tables",
    "read_topic",
    "reported",
    "run",
    "run_tables",
    "session",
    "together",
    "under_spark_submit",
]
