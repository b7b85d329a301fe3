# The audit as a stream: from the usage topic into tables (store.py), each record counted once whatever happens.
#
# That rests on no batch number: a batch's number means something only together with its checkpoint, and checkpoints get
# lost, or are put back from a backup. It rests on what a record is: the offsets that the tables have read already are
# left out, and a record whose identity they know, found at another offset, is a copy. There are no watermarks
# (transforms.py says why) and no state beside the tables. Knows neither argv nor how tables are kept.

from __future__ import annotations

import json
import logging
import signal
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by
from pyspark.sql.pandas.types import from_arrow_schema  # which needs no pandas

from gateway.audit import store
from gateway.audit.batch import spark_sources, transforms
from gateway.audit.batch.query import ignore_progress
from gateway.audit.batch.rollups.update import STEP_ROWS, fill_missing, update_rollups
from gateway.audit.cluster_access import TopicIdentity, UntranslatableProperty, identify_topic
from gateway.audit.errors import NO_CONNECT_TEXT, AuditError, explain_error, list_causes, raising_class
from gateway.audit.records import record_files
from gateway.audit.records.table_files import TableFile
from gateway.audit.spark import java_admin, schema
from gateway.audit.spark.arrow_map import map_in_arrow
from gateway.audit.spark.progress import watch_progress
from gateway.audit.store import AuditTables, TableWriter
from gateway.audit.stream.listener import ProgressListener
from gateway.audit.stream.metrics import StreamMetrics
from gateway.audit.tables import layout, table_log
from policies import usage

CHECKPOINT_NOTE: Final = "produce_gateway_stream.json"  # in the checkpoint: what it belongs to
VERSION_NOTE: Final = "produce_gateway_version"  # likewise: the tables' version (TableWriter) after its last batch
MAX_RECORDS: Final = 50_000
# Of one batch of a catch-up: beside its records each costs more than a second of CPU.
CATCH_UP_RECORDS: Final = 200_000
# Rows of usage after which the roll-ups follow, however soon: a question reads as many rows itself at most.
DERIVE_ROWS: Final = STEP_ROWS
_POLL_S: Final = 0.5
_KAFKA_SOURCE: Final = "org.apache.spark.sql.kafka010.KafkaMicroBatchStream"
# Of files of one batch, which pass through this process: those of some millions of rows.
_MAX_BATCH_BYTES: Final = 2**26
_FILE_FORMAT: Final = record_files.FileFormat(
    tuple(name for name in layout.RECORDS_SCHEMA.names if name != "date"), store.BOUNDED_COLUMNS
)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The topic to read, and how."""

    bootstrap_servers: str
    topic: str
    properties: Mapping[str, str]  # the Java client's own, without "kafka."
    checkpoint: str
    interval_s: float | None = None  # None: what is there now, then the end
    max_records: int = MAX_RECORDS  # of one batch
    derive_every_s: float = 300.0
    keys: tuple[bytes, ...] = ()  # of the records' digests

    @property
    def client_properties(self) -> dict[str, str]:
        """Of the Java client, with the brokers' addresses."""
        return {"bootstrap.servers": self.bootstrap_servers, **self.properties}


def run_stream(
    spark: SparkSession,
    tables: AuditTables,
    plan: StreamPlan,
    tell: Callable[[str], None] = ignore_progress,
    metrics: StreamMetrics | None = None,
) -> dict[str, int]:
    """Run the stream to its end, or until SIGTERM or SIGINT; gives the number of added rows, by table.

    Raises:
        AuditError: the topic can't be read on, the checkpoint belongs to something else, another stream took over.
    """
    if getattr(spark, "sparkContext", None) is None:  # there foreachBatch runs at the server, away from this process
        raise AuditError(f"stream: {NO_CONNECT_TEXT}")
    metrics = metrics or StreamMetrics()
    tell = _tell_both(metrics.note_text, tell)
    topic = _identify_topic(spark, plan)
    _check_checkpoint(tables, plan, topic.topic_id)
    with watch_progress(spark, tell):  # of large tables it takes hours: without a word a probe would end it
        fill_missing(tables, tell)
        writer = TableWriter(tables)
    # It logs the traceback of what is raised in a batch; we tell the same in one line.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    sink = _BatchSink(writer, plan, topic, tell, metrics)
    listener = ProgressListener(metrics, tell)
    spark.streams.addListener(listener)
    query = sink.start_query(spark)
    stopping = _SignalStop()
    try:
        with watch_progress(spark, tell):
            try:
                _await_end(query, sink, stopping, tell)
            except (Py4JJavaError, PySparkException) as error:
                if sink.failure or not _fails_at_metrics(error):
                    raise
                query = sink.start_query(spark)
                _await_end(query, sink, stopping, tell)
    except (Py4JJavaError, PySparkException) as error:
        raise sink.failure or AuditError(_failure_text(error, plan)) from error
    finally:
        stopping.restore_handlers()
        query.stop()
        listener.wait_for_end()
        spark.streams.removeListener(listener)
    if sink.failure:
        raise sink.failure
    with watch_progress(spark, tell):
        update_rollups(tables, tell)
    return sink.added_rows


def _await_end(query: Any, sink: _BatchSink, stopping: _SignalStop, tell: Callable[[str], None]) -> None:
    while not query.awaitTermination(_POLL_S):
        if stopping.is_requested:
            tell("stopping")
            sink.is_stopping = True
            query.stop()
            return


def _fails_at_metrics(error: BaseException) -> bool:
    """Whether Spark 4.1 or 4.2 ended the query for its own metrics (SPARK-55271). That happens once, where a stream was
    killed amid a batch: the query has done that batch again and committed it, and didn't need to ask for offsets yet.
    """
    return list_causes(error)[-1][0] == "java.lang.NullPointerException" and raising_class(error).startswith(
        _KAFKA_SOURCE
    )


def _tell_both(one: Callable[[str], None], other: Callable[[str], None]) -> Callable[[str], None]:
    def tell(text: str) -> None:
        one(text)
        other(text)

    return tell


def _identify_topic(spark: SparkSession, plan: StreamPlan) -> TopicIdentity:
    try:
        return identify_topic(plan.bootstrap_servers, plan.topic, plan.properties)
    except UntranslatableProperty:  # only Java's client has it
        return java_admin.identify_topic(spark, plan.topic, plan.client_properties)


def _check_checkpoint(tables: AuditTables, plan: StreamPlan, topic_id: str) -> None:
    files = tables.open_directory(plan.checkpoint)
    mine = {"tables": tables.table_id, "topic": plan.topic, "topic_id": topic_id}
    text = files.read_file(CHECKPOINT_NOTE)
    if text is None:
        files.write_file(CHECKPOINT_NOTE, json.dumps(mine | {"id": uuid.uuid4().hex}).encode())
        return
    try:
        noted = json.loads(text)
        theirs = {name: noted[name] for name in mine}
    except (ValueError, KeyError, TypeError):
        raise AuditError(
            f"{plan.checkpoint}/{CHECKPOINT_NOTE} is damaged: start anew with another --checkpoint"
        ) from None
    if theirs["tables"] != tables.table_id or theirs["topic"] != plan.topic:
        raise AuditError(
            f"the checkpoint {plan.checkpoint} belongs to other tables or another topic ({theirs['topic']}): give"
            " another --checkpoint; records that these tables have counted are not counted again"
        )
    if theirs["topic_id"] != topic_id:
        raise AuditError(_recreated_text(plan))
    # Records between the tables' end and the checkpoint's would be left out, and with any later checkpoint as well.
    if int(files.read_file(VERSION_NOTE) or 0) > tables.committed_version(table_log.STREAM):
        raise AuditError(
            f"the tables in {tables.root} are older than the checkpoint {plan.checkpoint}, as after a backup was put"
            " back: go on with another --checkpoint, which reads again what they lack (nothing is counted twice)"
        )


def _recreated_text(plan: StreamPlan) -> str:
    return (
        f"topic {plan.topic} was deleted and made again since {plan.checkpoint} was begun: the records read before are"
        " in the tables; go on with another --checkpoint (nothing is counted twice, missing records show in `gaps`)"
    )


def _failure_text(error: BaseException, plan: StreamPlan) -> str:
    said = explain_error(error)
    if "records that were there at the start are gone" in said or "data may have been missed" in str(error):
        return (
            f"records of {plan.topic} are gone that had not been read yet (retention, or the topic was made again):"
            " the records read before are in the tables; give the topic a longer retention and go on with another"
            " --checkpoint (nothing is counted twice, missing records show in `gaps`)"
        )
    return said


class _SignalStop:
    """SIGTERM and SIGINT ask for the end instead of ending the process."""

    def __init__(self) -> None:
        self.is_requested = False
        self._before: dict[int, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._before[number] = signal.signal(number, self._request_stop)
            except ValueError:  # not the main thread: signals are the caller's affair
                return

    def _request_stop(self, *_: object) -> None:
        self.is_requested = True

    def restore_handlers(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _BatchSink:
    def __init__(
        self,
        writer: TableWriter,
        plan: StreamPlan,
        topic: TopicIdentity,
        tell: Callable[[str], None],
        metrics: StreamMetrics,
    ) -> None:
        self._writer = writer
        self._metrics = metrics
        self._tables = writer.tables
        self._plan = plan
        self._topic = topic
        self._report_progress = tell
        self._checkpoint = self._tables.open_directory(plan.checkpoint)
        self._noted_version = -1
        self._last_derived = time.monotonic()
        self._rows_behind = 0  # that roll-ups haven't got
        self.added_rows: dict[str, int] = dict.fromkeys(("records", *layout.VIEW_SCHEMAS), 0)
        self.failure: AuditError | None = None
        self.is_stopping = False

    def start_query(self, spark: SparkSession) -> Any:
        # What is kept of a batch is read once: to compress it costs more than to write it.
        spark.conf.set("spark.sql.inMemoryColumnarStorage.compressed", "false")
        reader = (
            spark.readStream.format("kafka")
            .options(**spark_sources.READER_OPTIONS)
            .options(**{f"kafka.{name}": value for name, value in self._plan.client_properties.items()})
            .option("subscribe", self._plan.topic)
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", "true")
            .option("maxOffsetsPerTrigger", self._plan.max_records)
        )
        writer = reader.load().writeStream.foreachBatch(self._handle_batch)
        writer = writer.option("checkpointLocation", self._plan.checkpoint)
        if self._plan.interval_s is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._plan.interval_s * 1000:.0f} milliseconds").start()

    def _handle_batch(self, frame: DataFrame, number: int) -> None:
        # A failure in here reaches the query's caller only as the text of a Python traceback.
        try:
            self._tables.spark = frame.sparkSession
            topic_id, partitions = self._topic
            added = add_batch(self._writer, frame, topic_id, self._check_topic, self._plan.keys, partitions)
            self._note_version()
            for table, rows in added.items():
                self.added_rows[table] += rows
            self._metrics.note_commit(added["records"], self._writer.newest_ms)
            self._report_batch(number, added)
            self._rows_behind += added["usage"]
            is_due = time.monotonic() - self._last_derived > self._plan.derive_every_s
            if is_due or self._rows_behind >= DERIVE_ROWS:
                update_rollups(self._tables, self._report_progress)
                self._last_derived, self._rows_behind = time.monotonic(), 0
        except AuditError as error:
            self.failure = error
            raise
        except Exception as error:
            # A query that has to stop interrupts the batch that it is in: no failure, and it comes again.
            self.failure = None if self.is_stopping else AuditError(_failure_text(error, self._plan))
            raise

    def _note_version(self) -> None:
        if self._noted_version != self._writer.version:
            self._noted_version = self._writer.version
            self._checkpoint.write_file(VERSION_NOTE, str(self._noted_version).encode())

    def _check_topic(self) -> None:
        # Ids never come again: if it is the same after reading, what was read is from the topic meant.
        found = _identify_topic(self._tables.spark, self._plan)
        if found.topic_id != self._topic.topic_id:
            raise AuditError(_recreated_text(self._plan))
        self._topic = found  # it may have more partitions

    def _report_batch(self, number: int, added: Mapping[str, int]) -> None:
        more = "".join(f", {added[name]:,} {name}" for name in ("duplicates", "malformed") if added[name])
        self._report_progress(
            f"batch {number}: {added['records']:,} new records{more}; {self.added_rows['usage']:,} rows of usage so far"
        )


def add_batch(
    writer: TableWriter,
    frame: DataFrame,
    topic_id: str,
    check: Callable[[], None] = lambda: None,
    keys: Sequence[bytes] = (),
    partitions: int = 1,
) -> dict[str, int]:
    """One batch of the topic (as Spark's Kafka source gives it) into the tables; gives the number of added rows, by
    table.

    `check` is called when everything has been read, before anything counts. `partitions`: of the topic, each of which
    a task reads.
    """
    most_bytes = _MAX_BATCH_BYTES // partitions
    added, has_more = Counter(dict.fromkeys(("records", *layout.VIEW_SCHEMAS), 0)), True
    while has_more:
        unread = writer.filter_unread(frame, topic_id)
        horizon = writer.tables.first_kept_day()
        found = _encode_batch(unread, topic_id, keys, most_bytes)
        has_more = found.has_more
        known = writer.find_known_records(row for row in found.ends if row["first_seq"] is not None)
        if known is not None or _may_have_copies(found.ends):
            # Copies make small files: without this bound records would follow that nothing has been looked up for.
            unread = unread.where(_is_within(found.ends)) if has_more else unread
            found = _encode_batch(unread, topic_id, keys, sys.maxsize, _find_copies(unread, known, horizon, keys))
        # Of days that are expired nothing is taken.
        files = [row for row in found.files if table_log.iso_day(row["day"]) >= horizon]
        contents = [TableFile(row["day"], bytes(row["contents"]), row["stats"]) for row in files]
        if found.ends:
            check()
            writer.add_files(record_files.join_small_files(contents, _FILE_FORMAT), topic_id, found.ends)
        added["records"] += sum(row["records"] for row in found.ends)
        for name in layout.VIEW_SCHEMAS:
            added[name] += sum(row[name] for row in files)
    return dict(added)


class _EncodedBatch(NamedTuple):
    """record_files.ENCODED_SCHEMA of records, by kind: all of them, or with `has_more` those with the first offsets."""

    files: list[Row]
    ends: list[Row]
    has_more: bool


def _encode_batch(
    unread: DataFrame,
    topic_id: str,
    keys: Sequence[bytes],
    most_bytes: int,
    copies: record_files.Copies = MappingProxyType({}),
) -> _EncodedBatch:
    """Records of the Kafka source as the tasks that decode them make files of them, of `most_bytes` each at most."""
    encode = partial(
        record_files.encode_partition,
        topic_id=topic_id,
        made=_FILE_FORMAT,
        most_bytes=most_bytes,
        keys=keys,
        copies=copies,
    )
    kinds = from_arrow_schema(record_files.ENCODED_SCHEMA)
    encoded = map_in_arrow(unread.select("value", _origin_column()), encode, kinds)
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in encoded.withColumn("task", F.spark_partition_id()).collect():
        found[row["entry"]].append(row)
    ends, has_more = found[record_files.END], bool(found[record_files.MORE])
    if has_more and _has_shared_partitions(ends):  # then the first records of a task are not those of its partition
        return _encode_batch(unread, topic_id, keys, sys.maxsize, copies)
    return _EncodedBatch(found[record_files.FILE], ends, has_more)


def _is_within(ends: list[Row]) -> Column:
    """Whether a record of the Kafka source is one of those of which these are the ends."""
    last: dict[int, int] = {}
    for row in ends:
        last[row["partition"]] = max(row["offset"], last.get(row["partition"], -1))
    read = [(F.col("partition") == at) & (F.col("offset") <= offset) for at, offset in last.items()]
    return reduce(or_, read, F.lit(False))


def _find_copies(
    unread: DataFrame, known: DataFrame | None, horizon: str, keys: Sequence[bytes]
) -> record_files.Copies:
    """The good records that don't count. `known`: those in the tables that may have the same names; `horizon`: the
    first day that is kept. All records are sorted by their names for it.
    """
    good = decode_batch(unread, keys).where(F.col("problem").isNull())
    if horizon:
        good = good.where(store.utc_day_column("start_ms") >= F.lit(horizon).cast("date"))
    found: defaultdict[int, dict[int, bool]] = defaultdict(dict)
    marked = mark_counted(good, known).where(~F.col("counts"))
    for row in marked.select("partition", "offset", "conflict").toLocalIterator():
        found[row["partition"]][row["offset"]] = row["conflict"]
    return found


def decode_batch(frame: DataFrame, keys: Sequence[bytes] = ()) -> DataFrame:
    """Records of the Kafka source, decoded, with their partition and offset."""
    decoded = transforms.decode_records(frame.select("value", _origin_column()), keys)
    return decoded.select(*schema.DECODED_SCHEMA.names, "origin.partition", "origin.offset")


def _origin_column() -> Column:
    at = F.unix_millis("timestamp").alias("timestamp_ms")
    return F.struct(F.col("topic").alias("origin_topic"), "partition", "offset", at).alias("origin")


def mark_counted(good: DataFrame, known: DataFrame | None) -> DataFrame:
    """Good records with `counts` (the one of each identity that does) and `conflict` (a copy that says otherwise).

    `known` are those in the tables, read from other offsets.
    """
    same = Window.partitionBy(*schema.IDENTITY_COLUMNS).orderBy("digest", "partition", "offset")
    # Before the sort, which needs no rows of usage then.
    marked = good.withColumn("_former", _former_digest())
    marked = marked.withColumn("_copy", F.row_number().over(same)).withColumn("_first", F.first("digest").over(same))
    if known is None:
        marked = marked.withColumn("_known", F.lit(None).cast("long"))
    else:
        marked = marked.join(known.withColumnRenamed("digest", "_known"), list(schema.IDENTITY_COLUMNS), "left")
    counts = F.col("_known").isNull() & (F.col("_copy") == 1)
    same_as_known = (F.col("digest") == F.col("_known")) | (F.col("_former") == F.col("_known"))
    conflict = F.when(F.col("_known").isNull(), F.col("digest") != F.col("_first")).otherwise(~same_as_known)
    return marked.withColumn("counts", counts).withColumn("conflict", conflict)


def _former_digest() -> Column:
    """The digest of the same content that streams wrote while Spark's expressions decoded: tables have it still."""
    texts = [name for name, kind in usage.OPTIONAL_ROW_FIELDS.items() if kind == "str"]

    def written(row: Column) -> Column:
        names = (*usage.ROW_FIELDS, *usage.OPTIONAL_ROW_FIELDS)
        return F.struct(
            *((F.nullif(row[name], F.lit("")) if name in texts else row[name]).alias(name) for name in names)
        )

    return F.xxhash64(*usage.HEADER_FIELDS, F.transform("rows", written))


def _may_have_copies(ends: list[Row]) -> bool:
    """Records that came in the order of their numbers are there once, if all of their life came to one task."""
    found = [row for row in ends if row["first_seq"] is not None]
    lives = {tuple(row[name] for name in schema.BOOT_COLUMNS) for row in found}
    return len(lives) < len(found) or not all(row["ascends"] for row in found)


def _has_shared_partitions(ends: list[Row]) -> bool:
    tasks = {(row["task"], row["partition"]) for row in ends}
    return len({partition for _, partition in tasks}) < len(tasks)
