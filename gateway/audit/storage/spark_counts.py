# The counts of filling.py, by Spark.

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit.batch import transforms
from gateway.audit.batch.job import AuditRecords
from gateway.audit.batch.query import ignore_progress
from gateway.audit.spark import schema
from gateway.audit.storage.filling import (
    ACCEPTED_OUTCOMES,
    MAX_TOPICS,
    WHOLE_SHARE,
    VolumeCounts,
    VolumeLook,
    VolumeOptions,
    WindowLooks,
)
from policies import usage
from policies.storage import VolumeKey

_KEY_COLUMNS: Final = (schema.WINDOW_COLUMN, "topic", "principal")


def count_volumes(
    records: AuditRecords, wish: VolumeOptions, tell: Callable[[str], None] = ignore_progress
) -> VolumeCounts:
    """What the records say between the bounds."""
    noted = transforms.filter_by_start(records.intervals, wish.from_ms, wish.to_ms)
    tell("looking at volumes")
    looks = _volume_observations(noted, wish.window_ms)
    entered = transforms.filter_by_start(records.rows, wish.from_ms, wish.to_ms).where(
        F.col("outcome").isin(*ACCEPTED_OUTCOMES)
    )
    came = _bytes_by_broker(entered, _replica_shares(noted, wish.window_ms), wish.window_ms).persist()
    try:
        tell("summing up what came to them")
        accepted = entered.agg(F.sum("bytes")).collect()[0][0] or 0
        placed = came.select(*_KEY_COLUMNS, "bytes").distinct().agg(F.sum("bytes")).collect()[0][0] or 0
        by_window = _collect_sums(came, "broker", schema.WINDOW_COLUMN)
        by_topic = _collect_sums(came, "broker", "topic", partitions=True)
        by_principal = _collect_sums(came, "broker", "principal")
    finally:
        came.unpersist()
    return VolumeCounts(looks, by_window, by_topic, by_principal, accepted - placed)


def _volume_observations(noted: DataFrame, window_ms: int) -> dict[VolumeKey, list[WindowLooks]]:
    each = noted.select("end_ms", F.explode(usage.VOLUMES).alias("v")).select("end_ms", "v.*")
    moment = F.struct(*VolumeLook._fields)
    found = (
        each.groupBy("broker", "log_dir", _window_column(F.col("end_ms"), window_ms))
        .agg(F.min("available").alias("least"), F.min(moment).alias("first"), F.max(moment).alias("last"))
        .orderBy("broker", "log_dir", schema.WINDOW_COLUMN)
    )
    looks: dict[VolumeKey, list[WindowLooks]] = {}
    for row in found.collect():
        ends = (VolumeLook(**row[name].asDict()) for name in ("first", "last"))
        window = WindowLooks(row[schema.WINDOW_COLUMN], row["least"], *ends)
        looks.setdefault((row["broker"], row["log_dir"]), []).append(window)
    return looks


def _replica_shares(noted: DataFrame, window_ms: int) -> DataFrame:
    """Columns: window, broker, topic, share (of the topic's partitions, of WHOLE_SHARE), here (their number)."""
    each = noted.select(_window_column(F.col("end_ms"), window_ms), F.explode(usage.SPREAD).alias("s"))
    share = F.floor(F.avg(F.col("s")["here"] / F.col("s")["partitions"]) * WHOLE_SHARE + 0.5).alias("share")
    return (
        each.where(F.col("s")["partitions"] > 0)
        .groupBy(schema.WINDOW_COLUMN, F.col("s")["broker"].alias("broker"), F.col("s")["topic"].alias("topic"))
        .agg(share, F.max(F.col("s")["here"]).alias("here"))
    )


def _bytes_by_broker(entered: DataFrame, spread: DataFrame, window_ms: int) -> DataFrame:
    """Rows of window, topic, principal and bytes, with each broker that the topic has replicas on, and its share."""
    sums = entered.groupBy(_window_column(F.col("start_ms"), window_ms), "topic", "principal").agg(
        F.sum("bytes").alias("bytes")
    )
    known = sums.join(spread, [schema.WINDOW_COLUMN, "topic"])
    # A broker that has a topic for half of the time has half of it on average.
    windows = (
        spread.select(schema.WINDOW_COLUMN, "topic").distinct().groupBy("topic").agg(F.count(F.lit(1)).alias("windows"))
    )
    usual = (
        spread.groupBy("broker", "topic")
        .agg(F.sum("share").alias("share"), F.max("here").alias("here"))
        .join(windows, "topic")
        .select("broker", "topic", F.expr("share div windows").alias("share"), "here")
    )
    noted = spread.select(schema.WINDOW_COLUMN, "topic").distinct()
    others = sums.join(noted, [schema.WINDOW_COLUMN, "topic"], "left_anti").join(usual, "topic")
    return (
        known.select(*others.columns)
        .unionByName(others)
        .withColumn("came", F.col("bytes").cast("decimal(20, 0)") * F.col("share"))
    )


def _collect_sums(came: DataFrame, *keys: str, partitions: bool = False) -> dict[int, dict[Any, Any]]:
    """Bytes that came, by the first key and then by the second; with `partitions`, those as well."""
    found: dict[int, dict[Any, Any]] = {}
    size = F.floor(F.sum("came") / WHOLE_SHARE + F.lit(Decimal("0.5"))).cast("long")
    sums = came.groupBy(*keys).agg(size.alias("came"), F.max("here").alias("here"))
    for row in sums.orderBy(F.col("came").desc(), keys[1]).collect():
        of_broker = found.setdefault(row[keys[0]], {})
        if keys[1] == schema.WINDOW_COLUMN or len(of_broker) < MAX_TOPICS:
            of_broker[row[keys[1]]] = (row["came"], row["here"]) if partitions else row["came"]
    return found


def _window_column(at: Column, window_ms: int) -> Column:
    return (at - at % window_ms).alias(schema.WINDOW_COLUMN)
