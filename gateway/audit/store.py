# The audit's tables where they lie: any directory that Hadoop's file systems reach, as Parquet with a log of our own
# (commits.py says what the log means), or as Delta Lake. Stream, upkeep and readers all go through here.
#
# A batch's files are written into a directory that no reader looks at, and belong to the tables from the moment in
# which one small file appears in `_log`: that moment is the only commit, for all tables at once. Knows nothing of
# Kafka, of records or of sums.

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import commits, layout, schema
from gateway.audit.commits import Commit, Coverage, Group, Span, State
from gateway.audit.errors import AuditError, explain

LOG: Final = "_log"
_DAY_MS: Final = 86_400_000
_ROWS_PER_FILE: Final = 2_000_000
_MANY: Final = 500  # boots beyond which a list of them filters worse than it costs
# Object stores have no rename that is one step, but a file appears there only when it is complete.
_NO_RENAME: Final = ("s3a", "s3", "gs", "oss", "cosn", "obs")
_STATUS: Final = re.compile(r"\{path=(.*?); isDirectory=\w+;(?: length=(\d+);)?.*?modification_time=(\d+);")
# A file that fails once in a while because somebody clears away between the listing and the reading.
_ATTEMPTS: Final = 5


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def day(column: str) -> Column:
    """The UTC date of Unix milliseconds, whatever the session's time zone."""
    return F.date_add(F.lit("1970-01-01").cast("date"), F.floor(F.col(column) / _DAY_MS).cast("int"))


def iso_day(ms: int | None) -> str:
    """The same of one number, as text; "" of None."""
    return "" if ms is None else time.strftime("%Y-%m-%d", time.gmtime(ms // 1000))


@dataclass(frozen=True, slots=True)
class Batch:
    """What a stream adds in one step: rows of each table that has any, and how many."""

    frames: Mapping[str, DataFrame]
    rows: Mapping[str, int]
    spans: Mapping[str, tuple[Span, ...]]  # by date: the identities in it
    coverage: Coverage


class Tables(Protocol):
    """One set of tables, in either format."""

    root: str
    format: str
    id: str
    spark: SparkSession

    def read(self, table: str, from_ms: int | None = None, to_ms: int | None = None) -> DataFrame:
        """All rows of a table, or those of the days from which intervals that start in [from_ms, to_ms) come."""

    def open_stream(self) -> None:
        """A stream starts: from now on no other one can add anything."""

    def fresh(self, records: DataFrame, topic_id: str) -> DataFrame:
        """Those records of the topic (columns partition, offset) that have not been read before, as far as is known."""

    def known(self, spans: Iterable[Span]) -> DataFrame | None:
        """Columns of schema.IDENTITY, layout.ORIGIN and digest of the records in `intervals` that may be within these
        spans; None: there are none."""

    def horizon(self) -> str:
        """The first day whose usage is not expired, "" for none."""

    def add(self, batch: Batch) -> None:
        """Add it, whole or not at all, and at most once.

        Raises:
            AuditError: another stream has taken over.
        """

    def derive(self, frames: Mapping[str, DataFrame]) -> None:
        """Replace the tables `gaps` and `lives`."""

    def about(self) -> dict[str, Any]:
        """What it is, for a report."""


class Files:
    """A directory on any file system that Hadoop knows."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        try:
            path = jvm.org.apache.hadoop.fs.Path(root)
            # An own instance: the shared one would stop writing checksums for everybody.
            conf = spark._jsparkSession.sessionState().newHadoopConf()
            self._fs = jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), conf)
            self._fs.setWriteChecksum(False)
            self.root = str(self._fs.makeQualified(path).toString()).rstrip("/")
        except Py4JJavaError as error:
            raise AuditError(f"{root} can't be reached: {explain(error)}") from None

    def _path(self, name: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{name}" if name else self.root)

    def read(self, name: str) -> bytes | None:
        """The contents of a file; None: there is no such file."""
        try:
            stream = self._fs.open(self._path(name))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()
        except Py4JJavaError as error:
            if _not_found(error):
                return None
            raise

    def put(self, name: str, contents: bytes) -> None:
        """A file that is there whole or not at all; takes the place of one of its name."""
        direct = self.root.partition(":")[0] in _NO_RENAME
        folder, _, last = name.rpartition("/")
        written = name if direct else f"{folder}/.tmp-{uuid.uuid4().hex}-{last}".lstrip("/")
        stream = self._fs.create(self._path(written), True)
        try:
            stream.write(contents)
            if not direct:
                stream.hsync()
        finally:
            stream.close()
        if not direct and not self._fs.rename(self._path(written), self._path(name)):
            # Where a rename does not replace (HDFS): only the marker is ever written again.
            self._fs.delete(self._path(name), False)
            if not self._fs.rename(self._path(written), self._path(name)):
                raise AuditError(f"{self.root}/{name} could not be written")

    def list(self, name: str) -> list[tuple[str, int, int]]:
        """(name, length, modification time in ms) of what is in a directory; nothing if there is no such directory."""
        try:
            found = self._fs.listStatusIterator(self._path(name))
            # In one call: asking each entry for its name is a round trip to Java each time, and a log has thousands.
            text = str(self._jvm.org.apache.hadoop.util.functional.RemoteIterators.toList(found).toString())
        except Py4JJavaError as error:
            if _not_found(error):
                return []
            raise
        return [
            (path.rpartition("/")[2], int(length or 0), int(modified))
            for path, length, modified in _STATUS.findall(text)
        ]

    def delete(self, name: str) -> None:
        """Delete a file or a whole directory."""
        self._fs.delete(self._path(name), True)


def _not_found(error: Py4JJavaError) -> bool:
    return str(error.java_exception.getClass().getName()) == "java.io.FileNotFoundException"


def open_tables(spark: SparkSession, root: str, make: str | None = None) -> Tables:
    """The tables in that directory; with `make` (a format) they are made if there are none.

    Raises:
        AuditError: there are none, of a newer layout, or of another format.
    """
    files = Files(spark, root)
    text = files.read(layout.MARKER)
    if text is None:
        if make is None:
            raise AuditError(f"no tables in {root}: `produce-gateway audit stream --output {root}` makes them")
        text = json.dumps({"layout": commits.LAYOUT, "format": make, "id": uuid.uuid4().hex}).encode()
        files.put(layout.MARKER, text)
    try:
        marker = json.loads(text)
        version, kind, name = int(marker["layout"]), str(marker["format"]), str(marker["id"])
    except (ValueError, KeyError, TypeError):
        raise AuditError(f"{root}/{layout.MARKER} is damaged") from None
    if version > commits.LAYOUT:
        raise AuditError(
            f"{root} has tables of layout {version}, this program knows {commits.LAYOUT}: use a newer produce-gateway"
        )
    if make is not None and kind != make:
        raise AuditError(f"{root} has tables in the format {kind}: give --format {kind}, or another --output")
    if kind == layout.PARQUET:
        return ParquetTables(spark, files, name)
    if kind == layout.DELTA:
        return DeltaTables(spark, files, name, marker)
    raise AuditError(f"{root} has tables in the format {kind}, this program knows {', '.join(layout.FORMATS)}")


def marked_format(root: str) -> str | None:
    """The format of tables in a local directory, without Spark, because Delta's jars have to be there before it starts.

    None: not known from here (no tables, or not a local directory).
    """
    path = root.removeprefix("file://")
    try:
        with open(f"{path}/{layout.MARKER}", "rb") as file:
            return str(json.load(file)["format"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _within_spans(spans: Iterable[Span]) -> Column:
    merged = commits.merged_spans(spans)
    within = F.col("seq").between(min(span[2] for span in merged), max(span[3] for span in merged))
    boots = sorted({span[1] for span in merged})
    return within & F.col("boot").isin(*boots) if len(boots) <= _MANY else within


class ParquetTables:
    """Tables as plain Parquet files, with the log that says which of them count."""

    format = layout.PARQUET

    def __init__(self, spark: SparkSession, files: Files, name: str) -> None:
        self.spark = spark
        self.files = files
        self.root = files.root
        self.id = name
        self._read: dict[str, Commit] = {}
        self._claim: Commit | None = None
        self._batches = 0

    def state(self) -> State:
        """What the log says now."""
        for _ in range(_ATTEMPTS):
            names = [name.removesuffix(".json") for name, _, _ in self.files.list(LOG) if name.endswith(".json")]
            names = [name for name in names if not name.startswith(".")]
            kept = {name: self._read[name] for name in names if name in self._read}
            for name in names:
                if name not in kept:
                    text = self.files.read(f"{LOG}/{name}.json")
                    if text is None:
                        break  # cleared away just now: what took its place is in the next listing
                    kept[name] = self._decoded(name, text)
            else:
                self._read = kept
                return commits.resolve(kept.values())
        raise AuditError(f"{self.root}/{LOG} changes faster than it can be read")

    def _decoded(self, name: str, text: bytes) -> Commit:
        try:
            return commits.decode(name, text)
        except commits.UnreadableCommit as error:
            raise AuditError(f"{self.root}/{LOG}: {error}") from None

    def put(self, commit: Commit) -> None:
        """Write one commit."""
        self.files.put(f"{LOG}/{commit.name}.json", commits.encode(commit))

    def read(self, table: str, from_ms: int | None = None, to_ms: int | None = None) -> DataFrame:
        return self.read_groups(table, self.state().groups(table, iso_day(from_ms), iso_day(to_ms)))

    def read_groups(self, table: str, groups: Iterable[Group]) -> DataFrame:
        """The rows in these groups of one table."""
        columns = layout.TABLES[table]
        paths = sorted({f"{self.root}/{group.path}" for group in groups})
        if not paths:
            return self.spark.createDataFrame([], columns)
        reader = self.spark.read.schema(columns).option("basePath", f"{self.root}/{table}")
        found = reader.parquet(*paths)
        if table == "usage":
            found = found.fillna(layout.COMPLETED)
        return found.select(*columns.names)

    def open_stream(self) -> None:
        state = self.state()
        self._claim = Commit(
            commits.CLAIM,
            now_ms(),
            uuid.uuid4().hex,
            epoch=state.claim.epoch + 1 if state.claim else 1,
            accepts=state.allowed,
        )
        self.put(self._claim)
        self._check_claim(self.state())

    def _check_claim(self, state: State) -> Commit:
        assert self._claim is not None, "open_stream comes first"
        if state.claim is None or state.claim.name != self._claim.name:
            raise AuditError(f"another stream has started on {self.root}: this one stops")
        return self._claim

    def fresh(self, records: DataFrame, topic_id: str) -> DataFrame:
        for partition, ranges in self.state().coverage.get(topic_id, {}).items():
            for first, last in ranges:
                records = records.where(
                    (F.col("partition") != partition) | (F.col("offset") < first) | (F.col("offset") > last)
                )
        return records

    def known(self, spans: Iterable[Span]) -> DataFrame | None:
        spans = list(spans)
        groups = commits.overlapping(self.state().groups("intervals"), spans)
        if not groups:
            return None
        found = self.read_groups("intervals", groups).where(_within_spans(spans))
        return found.select(*schema.IDENTITY, "digest", *layout.ORIGIN)

    def horizon(self) -> str:
        return self.state().horizon

    def add(self, batch: Batch) -> None:
        claim = self._check_claim(self.state())
        # Not Spark's number, which comes again with every new checkpoint: no directory is ever written twice.
        number, self._batches = self._batches, self._batches + 1
        name = Commit(commits.BATCH, 0, claim.id, epoch=claim.epoch, number=number).name
        groups = [
            group
            for table, frame in batch.frames.items()
            for group in self.write(table, frame, name, 1 + batch.rows[table] // _ROWS_PER_FILE, batch.spans)
        ]
        commit = Commit(
            commits.BATCH,
            now_ms(),
            claim.id,
            epoch=claim.epoch,
            number=number,
            groups=tuple(groups),
            coverage=batch.coverage,
        )
        self._check_claim(self.state())
        self.put(commit)
        # Whoever claims after this sees the batch. Who has claimed before it did not, and then it does not count: the
        # checkpoint must not go on as if it did.
        self._check_claim(self.state())

    def write(
        self, table: str, frame: DataFrame, name: str, files: int, spans: Mapping[str, tuple[Span, ...]]
    ) -> list[Group]:
        """Write rows into a directory of their own, which no reader looks at yet."""
        folder = f"{table}/commit={name}"
        writer = frame.coalesce(files).write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        if table in layout.DATED:
            writer = writer.partitionBy("date")
        writer.mode("overwrite").parquet(f"{self.root}/{folder}")
        if table not in layout.DATED:
            return [self._group(table, "", folder, ())]
        dates = [each for each, _, _ in self.files.list(folder) if each.startswith("date=")]
        return [
            self._group(
                table,
                each.removeprefix("date="),
                f"{folder}/{each}",
                spans.get(each.removeprefix("date="), ()) if table == "intervals" else (),
            )
            for each in dates
        ]

    def _group(self, table: str, date: str, path: str, spans: tuple[Span, ...]) -> Group:
        sizes = [size for name, size, _ in self.files.list(path) if name.endswith(".parquet")]
        return Group(table, date, path, len(sizes), sum(sizes), spans)

    def derive(self, frames: Mapping[str, DataFrame]) -> None:
        commit = Commit(commits.DERIVED, now_ms(), uuid.uuid4().hex)
        groups = [group for table, frame in frames.items() for group in self.write(table, frame, commit.name, 1, {})]
        self.put(Commit(commits.DERIVED, commit.at_ms, commit.id, groups=tuple(groups)))

    def about(self) -> dict[str, Any]:
        state = self.state()
        covered = [
            {"topic_id": topic, "partition": partition, "offsets": [list(each) for each in ranges]}
            for topic, partitions in sorted(state.coverage.items())
            for partition, ranges in sorted(partitions.items())
        ]
        about = {"kind": "tables", "name": self.root, "format": self.format, "layout": commits.LAYOUT}
        return about | {"expired_before": state.horizon or None, "read": covered}


class DeltaTables:
    """The same tables as Delta Lake tables.

    Each of them commits by itself, so a crash can leave a batch in some of them. Hence each keeps its keys free of
    copies by itself, and `intervals`, by which others know what has been read, comes last.
    """

    format = layout.DELTA

    def __init__(self, spark: SparkSession, files: Files, name: str, marker: Mapping[str, Any]) -> None:
        self.spark = spark
        self.files = files
        self.root = files.root
        self.id = name
        self._marker = dict(marker)
        jvm: Any = spark.sparkContext._jvm
        try:
            jvm.java.lang.Class.forName(
                "io.delta.sql.DeltaSparkSessionExtension",
                True,
                jvm.java.lang.Thread.currentThread().getContextClassLoader(),
            )
        except Py4JJavaError:
            raise AuditError(
                "Spark has no Delta Lake: give --format delta, or spark-submit"
                " --packages io.delta:delta-spark_2.13:4.0.1 and Delta's two settings (docs/audit.md)"
            ) from None

    def path(self, table: str) -> str:
        """Where that table lies."""
        return f"{self.root}/{table}"

    def read(self, table: str, from_ms: int | None = None, to_ms: int | None = None) -> DataFrame:
        columns = layout.TABLES[table]
        if not self.files.list(f"{table}/_delta_log"):
            return self.spark.createDataFrame([], columns)
        found = self.spark.read.format("delta").load(self.path(table))
        for column in columns.fields:
            if column.name not in found.columns:
                found = found.withColumn(column.name, F.lit(None).cast(column.dataType))
        if table == "usage":
            found = found.fillna(layout.COMPLETED)
        if "date" in columns.names:
            for bound, text in ((">=", iso_day(from_ms)), ("<=", iso_day(to_ms))):
                found = found.where(f"date {bound} DATE'{text}'") if text else found
        return found.select(*columns.names)

    def open_stream(self) -> None:
        return

    def fresh(self, records: DataFrame, topic_id: str) -> DataFrame:
        return records

    def known(self, spans: Iterable[Span]) -> DataFrame | None:
        return self.read("intervals").where(_within_spans(spans)).select(*schema.IDENTITY, "digest", *layout.ORIGIN)

    def horizon(self) -> str:
        text = self.files.read(layout.MARKER)
        return str(json.loads(text).get("horizon", "")) if text else ""

    def set_horizon(self, horizon: str) -> None:
        """From now on usage of days before it is not added any more."""
        self.files.put(layout.MARKER, json.dumps(self._marker | {"horizon": horizon}).encode())

    def add(self, batch: Batch) -> None:
        spans = [span for each in batch.spans.values() for span in each]
        for table in ("usage", "duplicates", "malformed", "intervals"):
            if table not in batch.frames:
                continue
            there = self.read(table)
            if table in ("usage", "intervals"):
                there = there.where(_within_spans(spans))
            keys = list(layout.KEYS[table])
            new = batch.frames[table].join(there.select(*keys).distinct(), keys, "left_anti")
            new = new.select(*layout.TABLES[table].names).coalesce(1 + batch.rows[table] // _ROWS_PER_FILE)
            append = new.write.format("delta").partitionBy("date").mode("append")
            append.option("mergeSchema", "true").save(self.path(table))  # an older release's tables lack newer columns

    def derive(self, frames: Mapping[str, DataFrame]) -> None:
        for table, frame in frames.items():
            frame.coalesce(1).write.format("delta").mode("overwrite").save(self.path(table))

    def about(self) -> dict[str, Any]:
        about = {"kind": "tables", "name": self.root, "format": self.format, "layout": commits.LAYOUT}
        return about | {"expired_before": self.horizon() or None}
