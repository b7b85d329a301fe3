# What an audit reads by Spark: the usage topic and spool files, as text.
#
# A topic is read from the earliest offset to the end offsets taken at the start: so the whole job sees one and the same
# range, and a wrong address fails within seconds.

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit.cluster_access import UntranslatableProperty
from gateway.audit.engines import PACKED_ENDINGS, SPOOL_ENDING
from gateway.audit.errors import AuditError
from gateway.audit.spark import connector, java_admin, schema
from gateway.audit.topic_range import TopicRange, describe_topic

_POLL_TIMEOUT_MS: Final = 60_000  # how long a task waits for records that exist
# Each time that Spark's source has read what it was given, it asks the broker twice for the partition's bounds: for
# Kafka's 500 records that takes as long as for these, whose number is bounded by Kafka's megabyte anyway.
READER_OPTIONS: Final = {"kafka.max.poll.records": "5000"}
_SPLIT_FROM_RECORDS: Final = 10_000  # records below which splitting a partition costs more than it gives
_RECORDS_PER_TASK: Final = 100_000  # a few seconds of work: often enough to see how far it is, and what fits in memory


@dataclass(frozen=True, slots=True)
class AuditSource:
    """Text to audit (schema.RAW_SCHEMA), its kind for the report, and the number of its records where it is known."""

    raw_lines: DataFrame
    description: dict[str, Any]
    record_count: int | None = None
    keys: tuple[bytes, ...] = ()  # of the records' digests


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


def union_sources(sources: Sequence[AuditSource]) -> DataFrame:
    """The text of all of them."""
    raw = sources[0].raw_lines
    for source in sources[1:]:
        raw = raw.unionByName(source.raw_lines)
    return raw


def _offsets_json(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})
