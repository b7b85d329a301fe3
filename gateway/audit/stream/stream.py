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
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by
from pyspark.sql.pandas.types import from_arrow_schema  # which needs no pandas

from gateway.audit import store
from gateway.audit.batch import job, transforms
from gateway.audit.batch.rollups.update import STEP_ROWS, fill_missing, update_rollups
from gateway.audit.errors import AuditError, explain_error, list_causes, raising_class
from gateway.audit.reconcile import brokers
from gateway.audit.records import record_files
from gateway.audit.records.table_files import TableFile
from gateway.audit.spark import schema
from gateway.audit.spark.arrow_map import map_in_arrow
from gateway.audit.spark.progress import watch_progress
from gateway.audit.store import AuditTables, HadoopDirectory, TableWriter
from gateway.audit.stream.listener import ProgressListener
from gateway.audit.stream.metrics import StreamMetrics
from gateway.audit.tables import layout, table_log
from policies import usage

CHECKPOINT_NOTE: Final = "produce_gateway_stream.json"  # in the checkpoint: what it belongs to
MAX_RECORDS: Final = 50_000
# Of one batch of a catch-up: beside its records each costs more than a second of CPU.
# Of ten rows each, half of them copies, so many end a Java of 1 GB: they go through Spark's rows, whole.
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


def run_stream(
    spark: SparkSession,
    tables: AuditTables,
    plan: StreamPlan,
    tell: Callable[[str], None] = job.ignore_progress,
    metrics: StreamMetrics | None = None,
) -> dict[str, int]:
    """Run the stream to its end, or until SIGTERM or SIGINT; gives the number of added rows, by table.

    Raises:
        AuditError: the topic can't be read on, the checkpoint belongs to something else, another stream took over.
    """
    metrics = metrics or StreamMetrics()
    tell = _tell_both(metrics.note_text, tell)
    properties = {"bootstrap.servers": plan.bootstrap_servers, **plan.properties}
    topic_id = brokers.fetch_topic_id(spark, plan.topic, properties)
    _check_checkpoint(spark, tables, plan, topic_id)
    with watch_progress(spark, tell):  # of large tables it takes hours: without a word a probe would end it
        fill_missing(tables, tell)
        writer = TableWriter(tables)
    # It logs the traceback of what is raised in a batch; we tell the same in one line.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    sink = _BatchSink(writer, plan, properties, topic_id, tell, metrics)
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


def _check_checkpoint(spark: SparkSession, tables: AuditTables, plan: StreamPlan, topic_id: str) -> None:
    files = HadoopDirectory(spark, plan.checkpoint)
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
        properties: Mapping[str, str],
        topic_id: str,
        tell: Callable[[str], None],
        metrics: StreamMetrics,
    ) -> None:
        self._writer = writer
        self._metrics = metrics
        self._tables = writer.tables
        self._plan = plan
        self._properties = properties
        self._topic_id = topic_id
        self._report_progress = tell
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
            .options(**job.READER_OPTIONS)
            .options(**{f"kafka.{name}": value for name, value in self._properties.items()})
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
            added = add_batch(self._writer, frame, self._topic_id, self._check_topic, self._plan.keys)
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

    def _check_topic(self) -> None:
        # Ids never come again: if it is the same after reading, what was read is from the topic meant.
        if brokers.fetch_topic_id(self._tables.spark, self._plan.topic, self._properties) != self._topic_id:
            raise AuditError(_recreated_text(self._plan))

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
) -> dict[str, int]:
    """One batch of the topic (as Spark's Kafka source gives it) into the tables; gives the number of added rows, by
    table.

    `check` is called when everything has been read, before anything counts.
    """
    added, has_more = Counter(dict.fromkeys(("records", *layout.VIEW_SCHEMAS), 0)), True
    while has_more:
        unread = writer.filter_unread(frame, topic_id)
        part = _add_as_files(writer, unread, topic_id, check, keys)
        has_more = part is not None and part.pop("more") > 0
        added.update(_add_as_rows(writer, unread, topic_id, check, keys) if part is None else part)
    return dict(added)


def _add_as_files(
    writer: TableWriter, unread: DataFrame, topic_id: str, check: Callable[[], None], keys: Sequence[bytes]
) -> dict[str, int] | None:
    """The records as the tasks that decode them make files of them: all, or those with the first offsets, if `more` is
    above 0, as the files pass through this process. None, and nothing is added: some may be copies.
    """
    encoded = _encode_batch(unread, topic_id, keys)
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in encoded.withColumn("task", F.spark_partition_id()).collect():
        found[row["entry"]].append(row)
    files, ends, more = found[record_files.FILE], found[record_files.END], found[record_files.MORE]
    if found[record_files.ODD] or _may_have_copies(ends) or (more and _has_shared_partitions(ends)):
        return None
    if not ends:
        return {"more": 0}
    if writer.find_known_records(row for row in ends if row["first_seq"] is not None) is not None:
        return None
    # Of days that are expired nothing is taken.
    horizon = writer.tables.first_kept_day()
    files = [row for row in files if table_log.iso_day(row["day"]) >= horizon]
    check()
    contents = [TableFile(row["day"], bytes(row["contents"]), row["stats"]) for row in files]
    writer.add_files(record_files.join_small_files(contents, _FILE_FORMAT), topic_id, ends)
    added = {name: sum(row[name] for row in files) for name in ("usage", "intervals", "malformed")}
    return {"records": sum(row["records"] for row in ends), "more": len(more)} | added


def _add_as_rows(
    writer: TableWriter, unread: DataFrame, topic_id: str, check: Callable[[], None], keys: Sequence[bytes]
) -> dict[str, int]:
    """The same of any records, at several times the cost."""
    decoded = decode_batch(unread, topic_id, keys).persist()
    marked: DataFrame | None = None
    try:
        ends = _collect_ends(decoded)
        if not ends:
            return dict.fromkeys(("records", *layout.VIEW_SCHEMAS), 0)
        known = writer.find_known_records(row for row in ends if row["first_seq"] is not None)
        # Of days that are expired nothing is taken.
        horizon = writer.tables.first_kept_day()
        recent = decoded.where(F.col("date") >= F.lit(horizon).cast("date")) if horizon else decoded
        if known is None and not _may_have_copies(ends):  # nearly always: to find copies, all records are sorted
            counted = F.when(F.col("problem").isNull(), True)
            records = recent.withColumn("counts", counted).withColumn("conflict", ~counted).select(*_record_columns())
            added = _count_added(records) if horizon else _count_ends(ends)
        else:
            good = mark_counted(recent.where(F.col("problem").isNull()), known)
            bad = recent.where(F.col("problem").isNotNull())
            records = marked = good.unionByName(bad, allowMissingColumns=True).select(*_record_columns()).persist()
            added = _count_added(records)
        check()
        writer.add_batch(records, added["usage"], topic_id, ends)
        return {"records": sum(row["records"] for row in ends)} | added
    finally:
        decoded.unpersist()
        if marked is not None:
            marked.unpersist()


def decode_batch(frame: DataFrame, topic_id: str, keys: Sequence[bytes] = ()) -> DataFrame:
    """Records of the Kafka source, decoded, with their origin; the text only of those that are malformed."""
    decoded = transforms.decode_partitions(frame.select("value", _origin_column()), keys)
    names = ("origin_topic", *(name for name in layout.ORIGIN_COLUMNS if name != "topic_id"), "timestamp_ms")
    good = F.col("problem").isNull()
    return decoded.select(
        *(
            *usage.HEADER_FIELDS,
            *usage.OPTIONAL_HEADER_FIELDS,
            *schema.DISK_COLUMNS,
            "rows",
            "digest",
            "changed",
            "problem",
        ),
        F.lit(topic_id).alias("topic_id"),
        *(F.col("origin")[name].alias(name) for name in names),
        "value",
        "ascends",
    ).withColumn("date", F.when(good, store.utc_day_column("start_ms")).otherwise(store.utc_day_column("timestamp_ms")))


def _origin_column() -> Column:
    at = F.unix_millis("timestamp").alias("timestamp_ms")
    return F.struct(F.col("topic").alias("origin_topic"), "partition", "offset", at).alias("origin")


def _encode_batch(unread: DataFrame, topic_id: str, keys: Sequence[bytes]) -> DataFrame:
    """record_files.ENCODED_SCHEMA of records of the Kafka source."""
    most_bytes = _MAX_BATCH_BYTES // max(1, unread.rdd.getNumPartitions())
    encode = partial(
        record_files.encode_partition, topic_id=topic_id, made=_FILE_FORMAT, most_bytes=most_bytes, keys=keys
    )
    kinds = from_arrow_schema(record_files.ENCODED_SCHEMA)
    return map_in_arrow(unread.select("value", _origin_column()), encode, kinds)


def mark_counted(good: DataFrame, known: DataFrame | None) -> DataFrame:
    """Good records with `counts` (the one of each identity that does) and `conflict` (a copy that says otherwise).

    `known` are those in the tables, read from other offsets.
    """
    same = Window.partitionBy(*schema.IDENTITY_COLUMNS).orderBy("digest", *layout.ORIGIN_COLUMNS)
    marked = good.withColumn("_copy", F.row_number().over(same)).withColumn("_first", F.first("digest").over(same))
    if known is None:
        marked = marked.withColumn("_known", F.lit(None).cast("long"))
    else:
        marked = marked.join(known.withColumnRenamed("digest", "_known"), list(schema.IDENTITY_COLUMNS), "left")
    counts = F.col("_known").isNull() & (F.col("_copy") == 1)
    same_as_known = (F.col("digest") == F.col("_known")) | (_former_digest() == F.col("_known"))
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


def _collect_ends(decoded: DataFrame) -> list[Row]:
    """How far each partition and life reaches in each task: `offset`, newest_ms, first_seq and last_seq; its `records`,
    their `rows`, and whether their numbers ascend. What is malformed is of no life.
    """
    # In one pass, which also fills the persisted decode.
    return (
        decoded.groupBy(F.spark_partition_id().alias("task"), "partition", *schema.BOOT_COLUMNS)
        .agg(
            F.max("offset").alias("offset"),
            F.max("timestamp_ms").alias("newest_ms"),
            F.count(F.lit(1)).alias("records"),
            F.sum(F.size("rows")).alias("rows"),
            F.min("ascends").alias("ascends"),
            F.min("seq").alias("first_seq"),
            F.max("seq").alias("last_seq"),
        )
        .collect()
    )


def _may_have_copies(ends: list[Row]) -> bool:
    """Records that came in the order of their numbers are there once, if all of their life came to one task."""
    found = [row for row in ends if row["first_seq"] is not None]
    lives = {tuple(row[name] for name in schema.BOOT_COLUMNS) for row in found}
    return len(lives) < len(found) or not all(row["ascends"] for row in found)


def _has_shared_partitions(ends: list[Row]) -> bool:
    tasks = {(row["task"], row["partition"]) for row in ends}
    return len({partition for _, partition in tasks}) < len(tasks)


def _count_ends(ends: list[Row]) -> dict[str, int]:
    """_count_added where all good records count."""
    good = [row for row in ends if row["first_seq"] is not None]
    intervals = sum(row["records"] for row in good)
    malformed = sum(row["records"] for row in ends) - intervals
    return {
        "usage": sum(row["rows"] for row in good), "intervals": intervals, "duplicates": 0, "malformed": malformed
    }  # fmt: skip


def _record_columns() -> list[Column]:
    # Copies keep their names, and malformed records their text: no query reads more of them.
    counts, bad = F.col("counts"), F.col("problem").isNotNull()
    columns = {
        "rows": F.when(counts, F.col("rows")),
        "row_count": F.when(counts, F.size("rows").cast("long")),
        **{
            name: F.when(~bad, F.col(name))
            for name in (*usage.HEADER_FIELDS, *usage.OPTIONAL_HEADER_FIELDS, "digest", "changed")
        },
        **{name: F.when(counts, F.col(name)) for name in schema.DISK_COLUMNS},
    }
    return [columns.get(name, F.col(name)).alias(name) for name in layout.RECORDS_SCHEMA.names]


def _count_added(records: DataFrame) -> dict[str, int]:
    (row,) = records.agg(
        F.coalesce(F.sum("row_count"), F.lit(0)).alias("usage"),
        F.count_if("counts").alias("intervals"),
        F.count_if(~F.col("counts")).alias("duplicates"),
        F.count_if(F.col("problem").isNotNull()).alias("malformed"),
    ).collect()
    return {name: int(value) for name, value in row.asDict().items()}
