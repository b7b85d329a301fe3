# The audit's tables where they lie: Delta Lake tables in any directory that Hadoop's file systems reach. Stream, upkeep
# and readers all go through here.
#
# One table, `records`, holds a row for each record of the topic, and all that readers see follows from it: so a batch
# is one commit of Delta Lake's, and counts whole or not at all. Two facts that are not rows are Delta's transaction
# identifiers in the same log, which change together with a commit: which stream may add, and which days are expired.
# Knows nothing of Kafka or of sums.

from __future__ import annotations

import fcntl
import json
import random
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, DataFrameWriter, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit.batch import transforms
from gateway.audit.batch.rollups.progress import load_ends
from gateway.audit.columns import WINDOW_LENGTHS
from gateway.audit.errors import AuditError, explain_error, list_causes
from gateway.audit.records.table_files import TableFile
from gateway.audit.spark import connector, schema
from gateway.audit.tables import layout, table_log

_LOCK_FILE: Final = ".lock"
# Readers go on with the files that they began with: `expire` and `compact` say for how long.
_LOG_RETENTION: Final = "interval 2 days"
# From 4.4 on Delta refuses to keep its log for less than its files, a week unless said.
_RETENTION_PROPERTIES: Final = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
# By whose bounds in each file queries leave files out: bounds of all columns take a quarter of the time of writing.
BOUNDED_COLUMNS: Final = ("problem", "boot", "seq", "start_ms", "topic_id", "partition", "offset")
_VERSION_STRIDE: Final = 2**31  # more batches than one stream ever adds
_MADE_SUFFIX: Final = ".made.zstd.parquet"  # of files that no engine but ours has written
_MAX_BOOTS_LISTED: Final = 500  # boots beyond which a list of them filters worse than it costs
# Object stores have no rename that is one step, but a file appears there only when it is complete.
_SCHEMES_WITHOUT_RENAME: Final = ("s3a", "s3", "gs", "oss", "cosn", "obs")

LifeKey = tuple[str, str, int]  # schema.BOOT


class _LifeReach(NamedTuple):
    """How far a life's records reach: its highest number, and the times (Unix ms) between which all of them start."""

    last_seq: int
    first_ms: int
    last_ms: int

    def join(self, other: _LifeReach) -> _LifeReach:
        return _LifeReach(
            max(self.last_seq, other.last_seq), min(self.first_ms, other.first_ms), max(self.last_ms, other.last_ms)
        )


_NO_LIFE: Final = _LifeReach(-2, 0, 0)


class CommitConflict(Exception):
    """Another writer has changed the same rows meanwhile, and this commit was not made."""


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def utc_day_column(column: str) -> Column:
    """The UTC date of Unix milliseconds, whatever the session's time zone."""
    return F.date_add(F.lit("1970-01-01").cast("date"), F.floor(F.col(column) / table_log.DAY_MS).cast("int"))


class HadoopDirectory:
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
            raise AuditError(f"{root} can't be reached: {explain_error(error)}") from None

    def _hadoop_path(self, name: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{name}" if name else self.root)

    def read_file(self, name: str) -> bytes | None:
        """The contents of a file; None: there is no such file."""
        try:
            stream = self._fs.open(self._hadoop_path(name))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()
        except Py4JJavaError as error:
            if str(error.java_exception.getClass().getName()) == "java.io.FileNotFoundException":
                return None
            raise

    def write_file(self, name: str, contents: bytes) -> None:
        """A new file that is there whole or not at all."""
        direct = self.root.partition(":")[0] in _SCHEMES_WITHOUT_RENAME
        written = name if direct else f".tmp-{uuid.uuid4().hex}-{name}"
        stream = self._fs.create(self._hadoop_path(written), True)
        try:
            stream.write(contents)
            if not direct:
                stream.hsync()
        finally:
            stream.close()
        if not direct and not self._fs.rename(self._hadoop_path(written), self._hadoop_path(name)):
            raise AuditError(f"{self.root}/{name} could not be written")

    def replace_file(self, name: str, contents: bytes) -> None:
        """The same, of whatever name; who is killed amid it may leave none of it."""
        self._fs.delete(self._hadoop_path(name), False)
        self.write_file(name, contents)

    def add_file(self, name: str, contents: bytes) -> None:
        """A new file, where nobody looks at it before it is complete."""
        stream = self._fs.create(self._hadoop_path(name), False)
        try:
            stream.write(contents)
        finally:
            stream.close()

    def count_files(self, name: str) -> int:
        """The number of files in a directory and below; it has to exist."""
        return int(self._fs.getContentSummary(self._hadoop_path(name)).getFileCount())


class AuditTables:
    """One set of tables, as they are whenever they are asked; `pin_snapshot` gives them as they are now."""

    def __init__(self, spark: SparkSession, root: str, moment: Any = None) -> None:
        """`moment`: a snapshot of the table `records` by Delta Lake; None: always the latest."""
        self.spark = spark
        self.root = root
        self._pinned_snapshot = moment
        self._directories: dict[str, HadoopDirectory] = {}

    def pin_snapshot(self) -> AuditTables:
        """The same, whatever a stream adds and an upkeep expires from now on: for reads that must agree."""
        pinned = AuditTables(self.spark, self.root, self._latest_snapshot(table_log.RECORDS_TABLE))
        pinned._directories = self._directories
        return pinned

    @property
    def table_id(self) -> str:
        """Delta Lake's own, which tables made anew in the same place don't share."""
        return str(self._latest_snapshot(table_log.RECORDS_TABLE).metadata().id())

    @property
    def records_version(self) -> int:
        """Delta Lake's version of the table `records`."""
        return int(self._latest_snapshot(table_log.RECORDS_TABLE).version())

    def layout_property(self) -> str:
        """The version of the layout that the tables were made with, as the table has it."""
        properties = self._latest_snapshot(table_log.RECORDS_TABLE).metadata().configuration()
        return str(properties.apply(table_log.LAYOUT_PROPERTY))

    def sql_path(self, table: str) -> str:
        """The place of one of Delta's tables, as SQL takes it."""
        return f"delta.`{self.root.replace('`', '``')}/{table}`"

    def load_records(self, since: int = -1) -> DataFrame:
        """The table `records` as of now; of expired days, only the list of intervals that there were.

        With `since`, a version of Delta Lake's, at least those that came after it.
        """
        if self._pinned_snapshot is None:  # the horizon and the rows have to be of one version
            return self.pin_snapshot().load_records(since)
        horizon = F.lit(self.first_kept_day() or "0001-01-01").cast("date")
        found = self._load_added(since)
        for field in layout.RECORDS_SCHEMA:  # tables that no stream has written to since a column was added
            if field.name not in found.columns:
                found = found.withColumn(field.name, F.lit(None).cast(field.dataType))
        found = found.where((F.col("date") >= horizon) | F.col("counts"))
        return found.withColumn("rows", F.when(F.col("date") >= horizon, F.col("rows")))

    def read_table(self, table: str) -> DataFrame:
        """All rows of one of layout.VIEW_SCHEMAS, DERIVED_SCHEMAS or WINDOW_LENGTHS, as of now."""
        if table in layout.VIEW_SCHEMAS:
            return select_view(self.load_records(), table)
        if self.table_exists(table):
            return self._load_table(table)
        return self.spark.createDataFrame([], layout.DERIVED_SCHEMAS.get(table, layout.USAGE_SUMS_SCHEMA))

    def table_exists(self, table: str) -> bool:
        """Whether one of Delta's tables has been written."""
        return int(self._latest_snapshot(table).version()) >= 0

    def first_kept_day(self) -> str:
        """The first day whose usage is not expired, "" for none."""
        number = self.committed_version(table_log.EXPIRED)
        return table_log.iso_day(number) if number else ""

    def committed_version(self, identifier: str) -> int:
        """The last version that was committed under a transaction identifier, 0 for none."""
        return self._transaction_version(self._latest_snapshot(table_log.RECORDS_TABLE), identifier)

    @staticmethod
    def _transaction_version(moment: Any, identifier: str) -> int:
        versions = moment.transactions()
        return int(versions.apply(identifier)) if versions.contains(identifier) else 0

    def append_records(self, records: DataFrame, identifier: str, version: int) -> None:
        """Add records and note the version, in one commit; nothing is done where the version is not a later one.

        Raises:
            CommitConflict: another version was committed meanwhile.
        """
        writer = records.write.format("delta").mode("append").option("mergeSchema", "true")
        writer = writer.option("txnAppId", identifier).option("txnVersion", str(version))
        with self._lock_writers(), translate_conflicts():
            writer.save(f"{self.root}/{table_log.RECORDS_TABLE}")

    def append_files(self, files: Iterable[TableFile], identifier: str, version: int) -> None:
        """The same of records that are files already."""
        self._commit_files(table_log.RECORDS_TABLE, files, identifier, version)

    def write_sums(self, table: str, files: Iterable[TableFile], step: int, *, is_replaced: bool) -> None:
        """The same as write_rollup of one of WINDOW_LENGTHS, whose new rows are files already; with `is_replaced` they
        take the place of all others.
        """
        moment = self._latest_snapshot(table)
        found = set(moment.schema().fieldNames()) if int(moment.version()) >= 0 else set()
        if not found >= set(layout.USAGE_SUMS_SCHEMA.names):  # a new table, or one from before a column was added
            none = self.spark.createDataFrame([], layout.USAGE_SUMS_SCHEMA)
            with self._lock_writers(), translate_conflicts():
                self._rollup_writer(table, none, "append").save(f"{self.root}/{table}")
        self._commit_files(table, files, table_log.ROLLUP, 2 * step, is_replaced)

    def _commit_files(
        self, table: str, files: Iterable[TableFile], identifier: str, version: int, is_replaced: bool = False
    ) -> None:
        directory = self._table_directory(table)
        jvm: Any = self.spark.sparkContext._jvm
        delta = jvm.org.apache.spark.sql.delta
        actions = jvm.java.util.ArrayList()
        for action in [*(_add_file(directory, each) for each in files), _note_version(identifier, version)]:
            actions.add(delta.actions.Action.fromJson(json.dumps(action)))
        with self._lock_writers(), translate_conflicts():
            transaction = delta.DeltaLog.forTable(self.spark._jsparkSession, directory.root).startTransaction()
            if transaction.txnVersion(identifier) >= version:
                return
            for file in transaction.snapshot().allFiles().collectAsList() if is_replaced else ():
                actions.add(file.remove())
            operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
            transaction.commit(jvm.scala.jdk.javaapi.CollectionConverters.asScala(actions).toSeq(), operation)

    def rollup_moment(self, table: str) -> tuple[int, int]:
        """The step that one of the roll-ups is at (0: none), and its version of Delta Lake's (-1: it isn't there)."""
        moment = self._latest_snapshot(table)
        return self._transaction_version(moment, table_log.ROLLUP) // 2, int(moment.version())

    def table_bytes(self, table: str) -> int:
        """The size of the files of one of Delta's tables."""
        return int(self._latest_snapshot(table).sizeInBytes())

    def count_live_files(self, table: str) -> int:
        """Those that a reader of one of Delta's tables as of now reads."""
        return int(self._latest_snapshot(table).numOfFiles())

    def load_version(self, table: str, version: int) -> DataFrame:
        """All rows of one of Delta's tables in that version."""
        return self._load_table(table, version)

    def write_rollup(self, table: str, frame: DataFrame, step: int, *, mode: str) -> None:
        """Write one of the roll-ups, in one commit that brings it to `step`; nothing is done where it is there already.

        `mode`: "append" adds rows, "overwrite" replaces all, "rewrite" replaces those of the days in `frame` by the
        same in other words and leaves it at the step.

        Raises:
            CommitConflict: another writer was quicker.
        """
        is_rewrite = mode == "rewrite"
        writer = self._rollup_writer(table, frame, "overwrite" if is_rewrite else mode)
        if is_rewrite:
            writer = writer.option("partitionOverwriteMode", "dynamic")
        # Who has read a step may write the next one, whoever it is: of several, the first one does. Odd numbers are
        # rewrites, which come between two steps.
        writer = writer.option("txnAppId", table_log.ROLLUP).option("txnVersion", str(2 * step + is_rewrite))
        with self._lock_writers(), translate_conflicts():
            writer.save(f"{self.root}/{table}")

    @staticmethod
    def _rollup_writer(table: str, frame: DataFrame, mode: str) -> DataFrameWriter:
        writer = frame.write.format("delta").mode(mode).option("mergeSchema", "true")
        for name in _RETENTION_PROPERTIES:
            writer = writer.option(name, _LOG_RETENTION)
        return writer.partitionBy("date") if table in WINDOW_LENGTHS else writer

    def run_statement(self, statement: str) -> None:
        """Run one of Delta Lake's statements on a table.

        Raises:
            CommitConflict: another writer has changed the same rows meanwhile.
        """
        with self._lock_writers(), translate_conflicts():
            self.spark.sql(statement)

    def expire_before(self, number: int) -> None:
        """From now on no reader sees usage of days before day `number`, and no stream adds any."""
        self.append_records(self.spark.createDataFrame([], layout.RECORDS_SCHEMA), table_log.EXPIRED, number)

    def describe_source(self) -> dict[str, Any]:
        """Its kind, for a report."""
        return table_log.describe_tables(self.root, self.first_kept_day())

    def _table_directory(self, table: str) -> HadoopDirectory:
        # Kept: Hadoop keeps each that is made.
        if table not in self._directories:
            self._directories[table] = HadoopDirectory(self.spark, f"{self.root}/{table}")
        return self._directories[table]

    @contextmanager
    def _lock_writers(self) -> Iterator[None]:
        """Hold all other writers off, on file systems of the operating system.

        Delta Lake looks there whether a version of its log exists, and then renames: between the two another process
        may write the same version, and one of them is lost. Other file systems refuse to make a file twice.
        """
        scheme, _, path = self.root.partition(":")
        if scheme != "file":
            yield
            return
        directory = Path("/" + path.lstrip("/"))
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = (directory / _LOCK_FILE).open("a")
        except OSError as error:
            raise AuditError(f"the tables of {directory} can't be written: {error.strerror}") from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _latest_snapshot(self, table: str) -> Any:
        # Delta Lake has no SQL for this: its transaction identifiers.
        if table == table_log.RECORDS_TABLE and self._pinned_snapshot is not None:
            return self._pinned_snapshot
        jvm: Any = self.spark.sparkContext._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog
        return log.forTableWithSnapshot(self.spark._jsparkSession, f"{self.root}/{table}")._2()

    def list_made_files(self, since: int) -> list[dict[str, Any]] | None:
        """The files of kept days that are there now and were not in version `since`: `path`, and `stats` as FileMaker
        gives them. None: not all are files that tasks made whole (append_files), or they are too many.
        """
        snapshot: Any = self._pinned_snapshot
        files = self._find_added(since)
        if files is None:
            if int(snapshot.numOfFiles()) > table_log.MAX_COMMITS_LISTED:
                return None
            files = snapshot.allFiles().collectAsList()
        found = [(str(file.path()), str(file.stats()), file.deletionVector() is None) for file in files]
        if not all(path.endswith(_MADE_SUFFIX) and is_whole for path, _, is_whole in found):
            return None
        horizon = self.first_kept_day()
        kept = [(path, stats) for path, stats, _ in found if path.removeprefix("date=")[: len(horizon)] >= horizon]
        return [{"path": path, "stats": json.loads(stats)} for path, stats in kept]

    def load_contents(self, paths: Sequence[str]) -> DataFrame | None:
        """A row with the `content` of each of these files of `records`; None: their place can't be said to Spark."""
        root = f"{self.root}/{table_log.RECORDS_TABLE}"
        if set(root) & set("*?[]{}\\"):
            return None
        if not paths:
            return self.spark.createDataFrame([], "content binary")
        reader = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true")  # and no partitions
        return reader.load([f"{root}/{path}" for path in paths]).select("content")

    def _load_added(self, since: int) -> DataFrame:
        """The files of `records` that are there now and were not in version `since`; all, where that isn't known."""
        snapshot: Any = self._pinned_snapshot
        files = self._find_added(since)
        if files is None:
            return self._load_table(table_log.RECORDS_TABLE, int(snapshot.version()))
        jvm: Any = self.spark.sparkContext._jvm
        chosen = jvm.scala.jdk.javaapi.CollectionConverters.asScala(files).toSeq()
        frame = snapshot.deltaLog().createDataFrame(snapshot, chosen, False, jvm.scala.Option.empty())
        return DataFrame(frame, self.spark)

    def _find_added(self, since: int) -> Any:
        """Delta Lake's list of the same files; None: that isn't known."""
        snapshot: Any = self._pinned_snapshot
        version = int(snapshot.version())
        is_listed = since >= 0 and version - since <= table_log.MAX_COMMITS_LISTED
        paths = self._list_added(since, version) if is_listed else None
        if paths is None:
            return None
        listed = ", ".join("'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'" for path in paths)
        return snapshot.allFiles().where(f"path in ({listed})" if paths else "false").collectAsList()

    def _list_added(self, since: int, version: int) -> list[str] | None:
        """The files that the commits after `since` added; None: the log has let go of one of these commits."""
        files = HadoopDirectory(self.spark, f"{self.root}/{table_log.RECORDS_TABLE}/_delta_log")
        found: list[str] = []
        for number in range(since + 1, version + 1):
            commit = files.read_file(table_log.commit_file(number))
            if commit is None:
                return None
            found += table_log.list_added(commit)
        return found

    def _load_table(self, table: str, version: int | None = None) -> DataFrame:
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", str(version))
        return reader.load(f"{self.root}/{table}")


class TableWriter:
    """The one stream that may add to the tables: making one takes that right from any other.

    It remembers how far the tables have come, so that a batch looks into them only for records that may be there.

    Raises:
        AuditError: another stream has started at the same moment.
    """

    def __init__(self, tables: AuditTables) -> None:
        self.tables = tables
        # Delta Lake takes a version only if it is higher than the last one: a stream that began earlier can't add any
        # more. The random part decides between two that begin at the same moment.
        began = (tables.committed_version(table_log.STREAM) // _VERSION_STRIDE + 1) * _VERSION_STRIDE
        self._version = began + random.randrange(_VERSION_STRIDE // 2)  # noqa: S311 - no secret
        with self._one_commit():
            tables.append_records(
                tables.spark.createDataFrame([], layout.RECORDS_SCHEMA), table_log.STREAM, self._version
            )
        self._last_offsets: dict[tuple[str | None, int], int] = {}  # the highest one read, by topic id and partition
        self._lives: dict[LifeKey, _LifeReach] = {}  # what is known of records that count
        self.newest_ms: int | None = None  # Kafka's time of the newest record of the last batch that had any
        for row in load_ends(tables).collect():
            self._note_progress(row["topic_id"], [row])

    @property
    def version(self) -> int:
        """Of the last commit: that of each stream, and of each batch, is a higher one."""
        return self._version

    def filter_unread(self, frame: DataFrame, topic_id: str) -> DataFrame:
        """Those records of the topic (columns partition, offset) that have not been read before.

        With any checkpoint, a stream reads each partition from its earliest offset on and leaves nothing out.
        """
        for (topic, partition), last in self._last_offsets.items():
            if topic == topic_id:
                frame = frame.where((F.col("partition") != partition) | (F.col("offset") > last))
        return frame

    def find_known_records(self, lives: Iterable[Row]) -> DataFrame | None:
        """Columns of schema.IDENTITY and digest of the records that count and may have the same number as one of the
        batch's; None: there are none. `lives` has schema.BOOT, first_seq and last_seq of the batch."""
        again = [row for row in lives if row["first_seq"] <= self._lives.get(_life_key(row), _NO_LIFE).last_seq]
        if not again:
            return None
        first, last = min(row["first_seq"] for row in again), max(row["last_seq"] for row in again)
        known = [self._lives[_life_key(row)] for row in again]
        days = min(life.first_ms for life in known), max(life.last_ms for life in known)
        found = filter_by_day(self.tables.load_records(), *days)
        found = found.where(F.col("counts") & F.col("seq").between(first, last))
        boots = {row["boot"] for row in again}
        if len(boots) <= _MAX_BOOTS_LISTED:
            found = found.where(F.col("boot").isin(*boots))
        return found.select(*schema.IDENTITY_COLUMNS, "digest")

    def add_files(self, files: Iterable[TableFile], topic_id: str, ends: list[Row]) -> None:
        """Add a batch, whose records are files (layout.RECORDS_SCHEMA), whole or not at all, and at most once.

        `ends` has partition, schema.BOOT, offset, newest_ms, last_seq, first_ms and last_ms: how far the batch reaches.

        Raises:
            AuditError: another stream has taken over.
        """
        self._version += 1
        with self._one_commit():
            self.tables.append_files(files, table_log.STREAM, self._version)
        self._note_progress(topic_id, ends)
        self.newest_ms = max((row["newest_ms"] for row in ends), default=self.newest_ms)

    @contextmanager
    def _one_commit(self) -> Iterator[None]:
        with suppress(CommitConflict):
            yield
        if self.tables.committed_version(table_log.STREAM) != self._version:
            raise AuditError(f"another stream has started on {self.tables.root}: this one stops")

    def _note_progress(self, topic_id: str | None, ends: Iterable[Row]) -> None:
        for row in ends:
            partition, life = (topic_id, row["partition"]), _life_key(row)
            if row["offset"] is not None:
                self._last_offsets[partition] = max(row["offset"], self._last_offsets.get(partition, -1))
            if row["last_seq"] is not None:  # malformed records have no number
                reach = _LifeReach(row["last_seq"], row["first_ms"], row["last_ms"])
                self._lives[life] = reach.join(self._lives.get(life, reach))


def open_tables(spark: SparkSession, root: str, *, make: bool = False) -> AuditTables:
    """The tables in that directory; with `make` they are made if there are none.

    Raises:
        AuditError: there are none, or of a newer layout; Spark has no Delta Lake.
    """
    _check_delta_lake(spark)
    root = HadoopDirectory(spark, root).root
    tables = AuditTables(spark, root)
    if make and not tables.table_exists(table_log.RECORDS_TABLE):
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in layout.RECORDS_SCHEMA)
        values = {table_log.LAYOUT_PROPERTY: str(table_log.LAYOUT_VERSION)}
        values |= dict.fromkeys(_RETENTION_PROPERTIES, _LOG_RETENTION)
        values["delta.dataSkippingStatsColumns"] = ",".join(f"`{name}`" for name in BOUNDED_COLUMNS)
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in values.items())
        tables.run_statement(
            f"CREATE TABLE IF NOT EXISTS {tables.sql_path(table_log.RECORDS_TABLE)} ({columns}) USING delta PARTITIONED"
            " BY (date)"
            f" TBLPROPERTIES ({properties})"
        )
    if not tables.table_exists(table_log.RECORDS_TABLE):
        raise AuditError(table_log.missing_tables_text(root))
    table_log.check_layout(root, tables.layout_property())
    return tables


def select_view(records: DataFrame, table: str) -> DataFrame:
    """The rows that one of layout.VIEWS makes of these rows of the table `records`."""
    if table == "usage":
        found = transforms.explode_rows(records.where(F.col("counts")), "boot", "seq", "part", "end_ms", "date")
    elif table == "intervals":
        found = records.where(F.col("counts"))
    elif table == "duplicates":
        found = records.where(~F.col("counts"))
    else:
        found = records.where(F.col("problem").isNotNull())
    return found.select(*layout.VIEW_SCHEMAS[table].names)


def filter_by_day(records: DataFrame, from_ms: int | None, to_ms: int | None) -> DataFrame:
    """The records of the days from which intervals that start in [from_ms, to_ms) come."""
    if from_ms is not None:
        records = records.where(F.col("date") >= F.lit(table_log.iso_day(from_ms // table_log.DAY_MS)).cast("date"))
    if to_ms is not None:
        records = records.where(F.col("date") <= F.lit(table_log.iso_day(to_ms // table_log.DAY_MS)).cast("date"))
    return records


@contextmanager
def translate_conflicts() -> Iterator[None]:
    """Delta Lake's errors of two writers in each other's way become a Conflict."""
    try:
        yield
    except Py4JJavaError as error:
        if any(name.startswith("io.delta.exceptions.") for name, _ in list_causes(error)):
            raise CommitConflict(explain_error(error)) from error
        raise


def _check_delta_lake(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName("io.delta.sql.DeltaSparkSessionExtension", True, loader)
    except Py4JJavaError:
        package = connector.DELTA_LAKE.name_package(spark.version)
        raise AuditError(f"Spark has no Delta Lake: under spark-submit add {package} to --packages") from None


def _add_file(table: HadoopDirectory, file: TableFile) -> dict[str, Any]:
    """Write it, and give the action that adds it."""
    day = table_log.iso_day(file.day)
    path = f"date={day}/part-{uuid.uuid4()}{_MADE_SUFFIX}"
    table.add_file(path, file.contents)
    told = {"path": path, "partitionValues": {"date": day}, "size": len(file.contents), "stats": file.stats}
    return {"add": told | {"modificationTime": now_ms(), "dataChange": True}}


def _note_version(identifier: str, version: int) -> dict[str, Any]:
    return {"txn": {"appId": identifier, "version": version, "lastUpdated": now_ms()}}


def _life_key(row: Row) -> LifeKey:
    return row["gateway"], row["boot"], row["worker"]
