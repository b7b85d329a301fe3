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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import layout, schema, store
from gateway.audit.batch import job, transforms
from gateway.audit.errors import AuditError, explain
from gateway.audit.progress import watched
from gateway.audit.reconcile import brokers
from gateway.audit.store import Files, Tables, Writer
from policies import usage

NOTE: Final = "produce_gateway_stream.json"  # in the checkpoint: what it belongs to
MAX_RECORDS: Final = 50_000
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """The topic to read, and how."""

    bootstrap_servers: str
    topic: str
    properties: Mapping[str, str]  # the Java client's own, without "kafka."
    checkpoint: str
    interval_s: float | None = None  # None: what is there now, then the end
    max_records: int = MAX_RECORDS  # of one batch
    derive_every_s: float = 300.0


def run(
    spark: SparkSession, tables: Tables, plan: Plan, tell: Callable[[str], None] = job.no_progress
) -> dict[str, int]:
    """Run the stream to its end, or until SIGTERM or SIGINT; gives the number of added rows, by table.

    Raises:
        AuditError: the topic can't be read on, the checkpoint belongs to something else, another stream took over.
    """
    properties = {"bootstrap.servers": plan.bootstrap_servers, **plan.properties}
    topic_id = brokers.topic_id(spark, plan.topic, properties)
    _check_checkpoint(spark, tables, plan, topic_id)
    writer = Writer(tables)
    # It logs the traceback of what is raised in a batch; we tell the same in one line.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    sink = _Sink(writer, plan, properties, topic_id, tell)
    query = sink.start(spark)
    stopping = _StopOnSignal()
    try:
        with watched(spark, tell):
            while not query.awaitTermination(_LOOK_S):
                if stopping.asked:
                    tell("stopping")
                    sink.stopping = True
                    query.stop()
                    break
    except (Py4JJavaError, PySparkException) as error:
        raise sink.failure or AuditError(_explain(error, plan)) from error
    finally:
        stopping.restore()
        query.stop()
    if sink.failure:
        raise sink.failure
    tell("looking for gaps")
    derive(tables)
    return sink.added


def derive(tables: Tables) -> None:
    """Write the tables that follow from `intervals`: `gaps` and `lives`."""
    intervals = tables.read("intervals")
    at = F.lit(store.now_ms()).alias("as_of_ms")
    found = {"gaps": transforms.gaps(intervals), "lives": transforms.boots(intervals)}
    frames = {}
    for table, frame in found.items():
        names = [name for name in layout.DERIVED[table].names if name != "as_of_ms"]
        frames[table] = frame.orderBy(*schema.BOOT).select(*names, at)
    tables.derive(frames)


def _check_checkpoint(spark: SparkSession, tables: Tables, plan: Plan, topic_id: str) -> None:
    files = Files(spark, plan.checkpoint)
    mine = {"tables": tables.id, "topic": plan.topic, "topic_id": topic_id}
    text = files.read(NOTE)
    if text is None:
        files.put(NOTE, json.dumps(mine | {"id": uuid.uuid4().hex}).encode())
        return
    try:
        noted = json.loads(text)
        theirs = {name: noted[name] for name in mine}
    except (ValueError, KeyError, TypeError):
        raise AuditError(f"{plan.checkpoint}/{NOTE} is damaged: start anew with another --checkpoint") from None
    if theirs["tables"] != tables.id or theirs["topic"] != plan.topic:
        raise AuditError(
            f"the checkpoint {plan.checkpoint} belongs to other tables or another topic ({theirs['topic']}): give"
            " another --checkpoint; records that these tables have counted are not counted again"
        )
    if theirs["topic_id"] != topic_id:
        raise AuditError(_made_again(plan))


def _made_again(plan: Plan) -> str:
    return (
        f"topic {plan.topic} was deleted and made again since {plan.checkpoint} was begun: the records read before are"
        " in the tables; go on with another --checkpoint (nothing is counted twice, missing records show in `gaps`)"
    )


def _explain(error: BaseException, plan: Plan) -> str:
    said = explain(error)
    if "records that were there at the start are gone" in said or "data may have been missed" in str(error):
        return (
            f"records of {plan.topic} are gone that had not been read yet (retention, or the topic was made again):"
            " the records read before are in the tables; give the topic a longer retention and go on with another"
            " --checkpoint (nothing is counted twice, missing records show in `gaps`)"
        )
    return said


class _StopOnSignal:
    """SIGTERM and SIGINT ask for the end instead of ending the process."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._before[number] = signal.signal(number, self._ask)
            except ValueError:  # not the main thread: whoever called has to care
                return

    def _ask(self, *_: object) -> None:
        self.asked = True

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _Sink:
    def __init__(
        self, writer: Writer, plan: Plan, properties: Mapping[str, str], topic_id: str, tell: Callable[[str], None]
    ) -> None:
        self._writer = writer
        self._tables = writer.tables
        self._plan = plan
        self._properties = properties
        self._topic_id = topic_id
        self._tell = tell
        self._derived = time.monotonic()
        self.added: dict[str, int] = dict.fromkeys(("records", *layout.VIEWS), 0)
        self.failure: AuditError | None = None
        self.stopping = False

    def start(self, spark: SparkSession) -> Any:
        reader = (
            spark.readStream.format("kafka")
            .options(**{f"kafka.{name}": value for name, value in self._properties.items()})
            .option("subscribe", self._plan.topic)
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", "true")
            .option("maxOffsetsPerTrigger", self._plan.max_records)
        )
        writer = reader.load().writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", self._plan.checkpoint)
        if self._plan.interval_s is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._plan.interval_s * 1000:.0f} milliseconds").start()

    def _take(self, frame: DataFrame, number: int) -> None:
        # A failure in here reaches the query's caller only as the text of a Python traceback.
        try:
            self._tables.spark = frame.sparkSession
            added = add(self._writer, frame, self._topic_id, self._check_topic)
            for table, rows in added.items():
                self.added[table] += rows
            self._say(number, added)
            if time.monotonic() - self._derived > self._plan.derive_every_s:
                derive(self._tables)
                self._derived = time.monotonic()
        except AuditError as error:
            self.failure = error
            raise
        except Exception as error:
            # A query that was told to stop interrupts the batch that it is in: no failure, and it comes again.
            self.failure = None if self.stopping else AuditError(_explain(error, self._plan))
            raise

    def _check_topic(self) -> None:
        # Ids never come again: if it is the same after reading, what was read is from the topic meant.
        if brokers.topic_id(self._tables.spark, self._plan.topic, self._properties) != self._topic_id:
            raise AuditError(_made_again(self._plan))

    def _say(self, number: int, added: Mapping[str, int]) -> None:
        more = "".join(f", {added[name]:,} {name}" for name in ("duplicates", "malformed") if added[name])
        self._tell(
            f"batch {number}: {added['records']:,} new records{more}; {self.added['usage']:,} rows of usage so far"
        )


def add(writer: Writer, frame: DataFrame, topic_id: str, check: Callable[[], None] = lambda: None) -> dict[str, int]:
    """One batch of the topic (as Spark's Kafka source gives it) into the tables; gives the number of added rows, by
    table.

    `check` is called when everything has been read, before anything counts.
    """
    decoded = decode(writer.fresh(frame, topic_id), topic_id).persist()
    records: DataFrame | None = None
    try:
        ends = _ends(decoded)
        if not ends:
            return dict.fromkeys(("records", *layout.VIEWS), 0)
        known = writer.known(row for row in ends if row["first_seq"] is not None)
        # Of days that are expired nothing is taken.
        recent = decoded.where(F.col("date") >= F.lit(writer.tables.horizon() or "0001-01-01").cast("date"))
        good = mark(recent.where(F.col("problem").isNull()), known)
        bad = recent.where(F.col("problem").isNotNull())
        records = good.unionByName(bad, allowMissingColumns=True).select(*_columns()).persist()
        added = _added(records)
        check()
        writer.add(records, added["usage"], topic_id, ends)
        return {"records": sum(row["records"] for row in ends)} | added
    finally:
        decoded.unpersist()
        if records is not None:
            records.unpersist()


def decode(frame: DataFrame, topic_id: str) -> DataFrame:
    """Records of the Kafka source, decoded, with their origin; the text only of those that are malformed."""
    origin = F.struct(
        F.col("topic").alias("origin_topic"),
        F.lit(topic_id).alias("topic_id"),
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
        F.col("value").alias("text"),
    )
    decoded = transforms.decode(frame.select(F.col("value").cast("string").alias("value"), origin.alias("origin")))
    names = ("origin_topic", *layout.ORIGIN, "timestamp_ms")
    good = F.col("problem").isNull()
    return decoded.select(
        *(*usage.HEADER_FIELDS, *usage.OPTIONAL_HEADER_FIELDS, *schema.DISKS, "rows", "digest", "problem"),
        *(F.col("origin")[name].alias(name) for name in names),
        F.when(~good, F.col("origin")["text"]).alias("value"),
    ).withColumn("date", F.when(good, store.day("start_ms")).otherwise(store.day("timestamp_ms")))


def mark(good: DataFrame, known: DataFrame | None) -> DataFrame:
    """Good records with `counts` (the one of each identity that does) and `conflict` (a copy that says otherwise).

    `known` are those in the tables, read from other offsets.
    """
    same = Window.partitionBy(*schema.IDENTITY).orderBy("digest", *layout.ORIGIN)
    marked = good.withColumn("_copy", F.row_number().over(same)).withColumn("_first", F.first("digest").over(same))
    if known is None:
        marked = marked.withColumn("_known", F.lit(None).cast("long"))
    else:
        marked = marked.join(known.withColumnRenamed("digest", "_known"), list(schema.IDENTITY), "left")
    counts = F.col("_known").isNull() & (F.col("_copy") == 1)
    conflict = F.col("digest") != F.coalesce("_known", "_first")
    return marked.withColumn("counts", counts).withColumn("conflict", conflict)


def _ends(decoded: DataFrame) -> list[Row]:
    # In one pass, which also fills the persisted decode: how far each partition and life reaches.
    good = F.col("problem").isNull()
    return (
        decoded.groupBy("partition", *(F.when(good, F.col(name)).alias(name) for name in schema.BOOT))
        .agg(
            F.max("offset").alias("offset"),
            F.count(F.lit(1)).alias("records"),
            F.min(F.when(good, F.col("seq"))).alias("first_seq"),
            F.max(F.when(good, F.col("seq"))).alias("last_seq"),
        )
        .collect()
    )


def _columns() -> list[Column]:
    # Copies keep their names, and malformed records their text: nobody asks for more of them.
    counts, bad = F.col("counts"), F.col("problem").isNotNull()
    told = {
        "rows": F.when(counts, F.col("rows")),
        "row_count": F.when(counts, F.size("rows").cast("long")),
        **{name: F.when(~bad, F.col(name)) for name in (*usage.HEADER_FIELDS, *usage.OPTIONAL_HEADER_FIELDS, "digest")},
        **{name: F.when(counts, F.col(name)) for name in schema.DISKS},
    }
    return [told.get(name, F.col(name)).alias(name) for name in layout.RECORDS_SCHEMA.names]


def _added(records: DataFrame) -> dict[str, int]:
    (row,) = records.agg(
        F.coalesce(F.sum("row_count"), F.lit(0)).alias("usage"),
        F.count_if("counts").alias("intervals"),
        F.count_if(~F.col("counts")).alias("duplicates"),
        F.count_if(F.col("problem").isNotNull()).alias("malformed"),
    ).collect()
    return {name: int(value) for name, value in row.asDict().items()}
