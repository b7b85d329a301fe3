# The audit's tables where they lie: Delta Lake tables in a directory, or in an object store. Stream, upkeep and readers
# all go through here.
#
# One table, `records`, holds a row for each record of the topic, and all that readers see follows from it: so a batch
# is one commit of Delta Lake's, and counts whole or not at all. Two facts that are not rows are Delta's transaction
# identifiers in the same log, which change together with a commit: which stream may add, and which days are expired.
# Knows nothing of Kafka or of sums.

from __future__ import annotations

import fcntl
import random
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any, Final, NamedTuple

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameWriter, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by
from pyspark.sql.types import StructType

from gateway.audit.batch import transforms
from gateway.audit.batch.rollups.progress import load_ends
from gateway.audit.columns import WINDOW_LENGTHS
from gateway.audit.errors import AuditError, explain_error, explain_storage_error, list_causes
from gateway.audit.records.table_files import TableFile
from gateway.audit.spark import connector, schema
from gateway.audit.tables import layout, table_log
from gateway.audit.tables.storage import (
    StorageDirectory,
    find_storage_options,
    has_locking_log_store,
    local_path,
    qualify_path,
)
from gateway.audit.tables.table_version import CommitConflict, TableVersion, UnwritableTable, added_file, open_version

_LOCK_FILE: Final = ".lock"
# Hadoop's, of a file that deltalake overwrites: by one that no longer fits Spark takes the file for damaged, and looks
# twice more, after a second each.
_CHECKSUM_FILE: Final = "_delta_log/._last_checkpoint.crc"
# Readers go on with the files that they began with: `expire` and `compact` say for how long.
_LOG_RETENTION: Final = "interval 2 days"
_TABLE_PROPERTIES: Final = {
    # From 4.4 on Delta refuses to keep its log for less than its files, a week unless said.
    **dict.fromkeys(("delta.logRetentionDuration", "delta.deletedFileRetentionDuration"), _LOG_RETENTION),
    # Delta Lake's own value; deltalake's is 100, so many files of the log for whoever opens the table.
    "delta.checkpointInterval": "10",
}
# By whose bounds in each file queries leave files out: bounds of all columns take a quarter of the time of writing.
BOUNDED_COLUMNS: Final = ("problem", "boot", "seq", "start_ms", "topic_id", "partition", "offset")
_VERSION_STRIDE: Final = 2**31  # more batches than one stream ever adds
_DAY_FOLDER: Final = "date="
_HOUR_MS: Final = 3_600_000
_MADE_SUFFIX: Final = ".made.zstd.parquet"  # of files that no engine but ours has written
_MAX_BOOTS_LISTED: Final = 500  # boots beyond which a list of them filters worse than it costs
_MAX_FILES_READ: Final = 2000  # one by one; beyond, reading the table costs less

LifeKey = tuple[str, str, int]  # columns.BOOT_COLUMNS


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


def utc_day_column(column: str) -> Column:
    """The UTC date of Unix milliseconds, whatever the session's time zone."""
    return F.date_add(F.lit("1970-01-01").cast("date"), F.floor(F.col(column) / table_log.DAY_MS).cast("int"))


class AuditTables:
    """One set of tables, as they are whenever they are asked; `pin_version` gives them as they are now."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.root = qualify_path(spark, root)
        self._options = find_storage_options(spark)
        self._commits_by_spark = has_locking_log_store(spark, self.root)
        self._pinned: TableVersion | None = None  # of the table `records`; None: always its newest version

    def pin_version(self) -> AuditTables:
        """The same, whatever a stream adds and an upkeep expires from now on: for reads that must agree."""
        pinned = copy(self)
        pinned._pinned = self._records
        return pinned

    @property
    def table_id(self) -> str:
        """Delta Lake's own, which tables made anew in the same place don't share."""
        return self._records.id

    @property
    def records_version(self) -> int:
        """Delta Lake's version of the table `records`."""
        return self._records.version

    def layout_property(self) -> str:
        """The version of the layout that the tables were made with, as the table has it; "" where it has none."""
        return self._records.properties.get(table_log.LAYOUT_PROPERTY) or ""

    def open_directory(self, root: str) -> StorageDirectory:
        """A directory, wherever it is, reached as the tables are.

        Raises:
            AuditError: it can't be.
        """
        return StorageDirectory(qualify_path(self.spark, root), self._options)

    def sql_path(self, table: str) -> str:
        """The place of one of Delta's tables, as SQL takes it."""
        return f"delta.`{self.root.replace('`', '``')}/{table}`"

    def load_records(self, since: int = -1) -> DataFrame:
        """The table `records` as of now; of expired days, only the list of intervals that there were.

        With `since`, a version of Delta Lake's, at least those that came after it.
        """
        if self._pinned is None:  # the horizon and the rows have to be of one version
            return self.pin_version().load_records(since)
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
        return self._find_version(table) is not None

    def first_kept_day(self) -> str:
        """The first day whose usage is not expired, "" for none."""
        number = self.committed_version(table_log.EXPIRED)
        return table_log.iso_day(number) if number else ""

    def committed_version(self, identifier: str) -> int:
        """The last version that was committed under a transaction identifier, 0 for none."""
        return self._records.committed_version(identifier)

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
        found = self._find_version(table)
        if found is None or not found.column_names >= set(layout.USAGE_SUMS_SCHEMA.names):  # from before one was added
            none = self.spark.createDataFrame([], layout.USAGE_SUMS_SCHEMA)
            with self._lock_writers(), translate_conflicts():
                self._rollup_writer(table, none, "append").save(f"{self.root}/{table}")
        self._commit_files(table, files, table_log.ROLLUP, 2 * step, is_replacement=is_replaced)

    def _commit_files(
        self, table: str, files: Iterable[TableFile], identifier: str, version: int, *, is_replacement: bool = False
    ) -> None:
        added = []
        directory = StorageDirectory(f"{self.root}/{table}", self._options)
        for file in files:
            day = table_log.iso_day(file.day)
            path = f"{_DAY_FOLDER}{day}/part-{uuid.uuid4()}{_MADE_SUFFIX}"
            directory.write_file(path, file.contents)
            added.append(added_file(path, day, len(file.contents), file.stats))
        if not self._commits_by_spark:
            with suppress(UnwritableTable), self._open_for_commit(table) as newest:
                newest.commit(added, identifier, version, is_replacement=is_replacement)
                return
        # Spark writes the rows again, in files of its own; ours are leftovers then.
        kind = layout.RECORDS_SCHEMA if table == table_log.RECORDS_TABLE else layout.USAGE_SUMS_SCHEMA
        rows = self._read_files(table, kind, [file.path for file in added])
        if table == table_log.RECORDS_TABLE:
            self.append_records(rows, identifier, version)
        else:
            self.write_rollup(table, rows, version // 2, mode="overwrite" if is_replacement else "append")

    @contextmanager
    def _open_for_commit(self, table: str) -> Iterator[TableVersion]:
        with self._lock_writers(), self._translated_errors(table):
            newest = self._open_newest(table)
            if newest is None:
                raise AuditError(table_log.missing_tables_text(self.root))
            if (folder := local_path(self.root)) is not None:
                (Path(folder) / table / _CHECKSUM_FILE).unlink(missing_ok=True)
            yield newest

    def rollup_moment(self, table: str) -> tuple[int, int]:
        """The step that one of the roll-ups is at (0: none), and its version of Delta Lake's (-1: it isn't there)."""
        found = self._find_version(table)
        return (0, -1) if found is None else (found.committed_version(table_log.ROLLUP) // 2, found.version)

    def table_bytes(self, table: str) -> int:
        """The size of the files of one of Delta's tables."""
        return sum(file["size_bytes"] for file in self._list_files(table))

    def count_live_files(self, table: str) -> int:
        """Those that a reader of one of Delta's tables as of now reads."""
        return len(self._list_files(table))

    def _list_files(self, table: str) -> list[dict[str, Any]]:
        found = self._find_version(table)
        return [] if found is None else found.describe_files()

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
        writer = frame.write.format("delta").mode(mode).options(mergeSchema="true", **_TABLE_PROPERTIES)
        return writer.partitionBy("date") if table in WINDOW_LENGTHS else writer

    def run_statement(self, statement: str) -> None:
        """Run one of Delta Lake's statements on a table.

        Raises:
            CommitConflict: another writer has changed the same rows meanwhile.
        """
        with self._lock_writers(), translate_conflicts():
            self.spark.sql(statement)

    def delete_leftovers(self, table: str, grace_ms: int) -> int:
        """Delete the files of one of Delta's tables that no reader has needed, and no writer begun, for that long (in
        whole hours); gives their number.
        """
        found, hours = self._open_newest(table), -(-grace_ms // _HOUR_MS)
        if found is None:
            return 0
        directory = StorageDirectory(f"{self.root}/{table}", self._options)
        with self._translated_errors(table):
            leftovers = directory.find_existing(found.find_leftovers(hours))
        if not found.reader_features:
            directory.delete_files(leftovers)
            return len(leftovers)
        # Among them may be files of features that deltalake doesn't know.
        self.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")  # it wants a week
        self.spark.sql(f"VACUUM {self.sql_path(table)} RETAIN {hours} HOURS")
        return len(leftovers) - len(directory.find_existing(leftovers))

    def expire_before(self, number: int) -> None:
        """From now on no reader sees usage of days before day `number`, and no stream adds any."""
        self.append_records(self.spark.createDataFrame([], layout.RECORDS_SCHEMA), table_log.EXPIRED, number)

    def describe_source(self) -> dict[str, Any]:
        """Its kind, for a report."""
        return table_log.describe_tables(self.root, self.first_kept_day())

    @contextmanager
    def _lock_writers(self) -> Iterator[None]:
        """Hold all other writers off, on file systems of the operating system.

        Delta Lake looks there whether a version of its log exists, and then renames: between the two another process
        may write the same version, and one of them is lost. Other file systems refuse to make a file twice.
        """
        path = local_path(self.root)
        if path is None:
            yield
            return
        directory = Path(path)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = (directory / _LOCK_FILE).open("a")
        except OSError as error:
            raise AuditError(f"the tables of {directory} can't be written: {error.strerror}") from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @property
    def _records(self) -> TableVersion:
        found = self._find_version(table_log.RECORDS_TABLE)
        if found is None:
            raise AuditError(table_log.missing_tables_text(self.root))
        return found

    def _find_version(self, table: str) -> TableVersion | None:
        is_pinned = table == table_log.RECORDS_TABLE and self._pinned is not None
        return self._pinned if is_pinned else self._open_newest(table)

    def _open_newest(self, table: str) -> TableVersion | None:
        with self._translated_errors(table):
            return open_version(f"{local_path(self.root) or self.root}/{table}", self._options)

    @contextmanager
    def _translated_errors(self, table: str) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as error:
            raise AuditError(explain_storage_error(f"{self.root}/{table}", error)) from error

    def list_made_files(self, since: int) -> list[dict[str, Any]] | None:
        """The files of kept days that are there now and were not in version `since`, as TableVersion has them.
        None: not all are files that tasks made whole (append_files), or they are too many.
        """
        files = self._find_plain_files(since)
        if files is None or not all(file["path"].endswith(_MADE_SUFFIX) for file in files):
            return None
        horizon = self.first_kept_day()
        return [file for file in files if file["path"].removeprefix(_DAY_FOLDER)[: len(horizon)] >= horizon]

    def load_contents(self, paths: Sequence[str]) -> DataFrame | None:
        """A row with the `content` of each of these files of `records`; None: their place can't be said to Spark."""
        if not self._is_nameable:
            return None
        if not paths:
            return self.spark.createDataFrame([], "content binary")
        reader = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true")  # and no partitions
        return reader.load([f"{self.root}/{table_log.RECORDS_TABLE}/{path}" for path in paths]).select("content")

    @property
    def _is_nameable(self) -> bool:
        """Spark takes each path for a pattern."""
        return not set(self.root) & set("*?[]{}\\")

    def _read_files(self, table: str, kind: StructType, paths: Sequence[str]) -> DataFrame:
        if not paths:
            return self.spark.createDataFrame([], kind)
        folder = f"{self.root}/{table}/"
        reader = self.spark.read.schema(kind).option("basePath", folder)
        return reader.parquet(*(f"{folder}{path}" for path in paths))

    def _load_added(self, since: int) -> DataFrame:
        """The files of `records` that are there now and were not in version `since`; all, where that isn't known."""
        files = self._find_plain_files(since) if since >= 0 and self._is_nameable else None
        if files is None:
            return self._load_table(table_log.RECORDS_TABLE, self._records.version)
        return self._read_files(table_log.RECORDS_TABLE, layout.RECORDS_SCHEMA, [file["path"] for file in files])

    def _find_plain_files(self, since: int) -> list[dict[str, Any]] | None:
        """TableVersion.find_added of `records`, or all files where that isn't known. None: they don't hold the table's
        rows alone, are elsewhere (as those of a shallow clone), or are too many.
        """
        if self._records.reader_features:
            return None
        found = self._records.find_added(since)
        files = self._records.describe_files() if found is None else found
        is_plain = len(files) <= _MAX_FILES_READ and all(file["path"].startswith(_DAY_FOLDER) for file in files)
        return files if is_plain else None

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
        """columns.IDENTITY_COLUMNS and digest of the records that count and may have the same number as one of the
        batch's; None: there are none. `lives` has columns.BOOT_COLUMNS, first_seq and last_seq of the batch."""
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

        `ends` says how far the batch reaches: partition, columns.BOOT_COLUMNS, offset, newest_ms, last_seq, first_ms
        and last_ms.

        Raises:
            AuditError: another stream has taken over, or the batch before is gone.
        """
        if self.tables.committed_version(table_log.STREAM) < self._version:
            raise AuditError(
                f"the last batch is no longer in {self.tables.root}, as after a backup was put back: go on with another"
                " --checkpoint, which reads again what the tables lack (nothing is counted twice)"
            )
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
    tables = AuditTables(spark, root)
    if make and not tables.table_exists(table_log.RECORDS_TABLE):
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in layout.RECORDS_SCHEMA)
        values = {table_log.LAYOUT_PROPERTY: str(table_log.LAYOUT_VERSION), **_TABLE_PROPERTIES}
        values["delta.dataSkippingStatsColumns"] = ",".join(f"`{name}`" for name in BOUNDED_COLUMNS)
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in values.items())
        with _explained_absence(spark):
            tables.run_statement(
                f"CREATE TABLE IF NOT EXISTS {tables.sql_path(table_log.RECORDS_TABLE)} ({columns}) USING delta"
                f" PARTITIONED BY (date) TBLPROPERTIES ({properties})"
            )
    table_log.check_layout(tables.root, tables.layout_property())
    with _explained_absence(spark):
        tables.load_records().schema  # noqa: B018 - for which Spark looks for Delta Lake
    return tables


def select_view(records: DataFrame, table: str) -> DataFrame:
    """The rows that one of layout.VIEW_SCHEMAS makes of these rows of the table `records`."""
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
    """Delta Lake's errors of two writers in each other's way become a CommitConflict."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        if (condition or "").startswith("DELTA_CONCURRENT") or any(
            name.startswith("io.delta.exceptions.") for name, _ in list_causes(error)
        ):
            raise CommitConflict(explain_error(error)) from error
        raise


@contextmanager
def _explained_absence(spark: SparkSession) -> Iterator[None]:
    """Spark's error without Delta Lake becomes an AuditError."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        if condition == "DATA_SOURCE_NOT_FOUND" or "io.delta.sql" in str(error):
            package = connector.DELTA_LAKE.name_package(spark.version)
            raise AuditError(f"Spark has no Delta Lake: under spark-submit add {package} to --packages") from None
        raise


def _life_key(row: Row) -> LifeKey:
    return row["gateway"], row["boot"], row["worker"]
