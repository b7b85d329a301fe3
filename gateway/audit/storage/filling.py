# What came to each volume, and how full it was: the accepted rows of the usage log, by where their topics' replicas
# were, beside the volumes that the same log noted. Gives values; knows no argv and no text.
#
# A topic's replicas are where the records of the same window say, else where the others say on average. Bytes of topics
# of which none says anything are counted as unplaced. Within a broker of several volumes no record says which
# topic is on which: what came to it then counts for the broker as a whole.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit.batch import job, transforms
from gateway.audit.batch.job import AuditRecords, LogIntegrity
from gateway.audit.spark import schema
from gateway.audit.storage.retention import RetentionAdvice, advise_retention
from policies import usage
from policies.storage import VolumeKey

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_TOPICS: Final = 1000  # of each broker, the largest: the others are in the sums all the same
_ACCEPTED_OUTCOMES: Final = ("accepted", "unacknowledged")
_KEY_COLUMNS: Final = (schema.WINDOW_COLUMN, "topic", "principal")


@dataclass(frozen=True, slots=True)
class VolumeOptions:
    """`window_ms`: of the sums over time. `keep_free`: bytes; None: each volume's own hard limit."""

    window_ms: int
    from_ms: int | None = None
    to_ms: int | None = None
    keep_free: int | None = None


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """One volume in one window. `free`: the least; None: not measured. `written`: bytes that came to its broker."""

    start_ms: int
    free: int | None
    written: int


@dataclass(frozen=True, slots=True)
class VolumeUsage:
    """One volume. Sizes in bytes; `is_only_volume`: its broker has no other, so what came to the broker came to it.

    `used_first`, `used_last`: at the first and at the last look. `limit`: free bytes that had to stay; None: no limit.
    `limit_reached_ms`: the first window with no more than that free; None: none. `topics`: bytes that came, and
    partitions with a replica there. `advice`: None where there is none.
    """

    place: VolumeKey
    total: int
    used_first: int
    used_last: int
    least_free: int
    limit: int | None
    limit_reached_ms: int | None
    is_only_volume: bool
    written: int
    topics: Mapping[str, tuple[int, int]]
    principals: Mapping[str, int]
    windows: tuple[WindowUsage, ...]
    advice: RetentionAdvice | None


@dataclass(frozen=True, slots=True)
class VolumeReport:
    """Volumes by broker and log dir. `unplaced`: accepted bytes of topics of which no record says where they are."""

    options: VolumeOptions
    sources: list[dict[str, Any]]
    volumes: tuple[VolumeUsage, ...]
    unplaced: int
    integrity: LogIntegrity


def report_volumes(
    records: AuditRecords, wish: VolumeOptions, tell: Callable[[str], None] = job.ignore_progress
) -> VolumeReport:
    """What the records say."""
    noted = transforms.filter_by_start(records.intervals, wish.from_ms, wish.to_ms)
    tell("looking at volumes")
    looks = _volume_observations(noted, wish.window_ms)
    entered = transforms.filter_by_start(records.rows, wish.from_ms, wish.to_ms).where(
        F.col("outcome").isin(*_ACCEPTED_OUTCOMES)
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
    question = job.AuditQuery((), None, wish.from_ms, wish.to_ms)
    volumes = tuple(
        _make_volume_usage(place, rows, looks, wish, by_window, by_topic, by_principal)
        for place, rows in sorted(looks.items())
    )
    return VolumeReport(wish, records.sources, volumes, accepted - placed, job.find_gaps(records, question, tell))


def _volume_observations(noted: DataFrame, window_ms: int) -> dict[VolumeKey, list[dict[str, Any]]]:
    """The looks at each volume, in the order of time: of each window the least room, the first look and the last."""
    each = noted.select("end_ms", F.explode(usage.VOLUMES).alias("v")).select("end_ms", "v.*")
    moment = F.struct("end_ms", "total", "available", "hard")
    found = (
        each.groupBy("broker", "log_dir", _window_column(F.col("end_ms"), window_ms))
        .agg(F.min("available").alias("least"), F.min(moment).alias("first"), F.max(moment).alias("last"))
        .orderBy("broker", "log_dir", schema.WINDOW_COLUMN)
    )
    looks: dict[VolumeKey, list[dict[str, Any]]] = {}
    for row in found.collect():
        looks.setdefault((row["broker"], row["log_dir"]), []).append(row.asDict(recursive=True))
    return looks


def _replica_shares(noted: DataFrame, window_ms: int) -> DataFrame:
    """Columns: window, broker, topic, share (of the topic's partitions), here (their number)."""
    each = noted.select(_window_column(F.col("end_ms"), window_ms), F.explode(usage.SPREAD).alias("s"))
    share = F.avg(F.col("s")["here"] / F.col("s")["partitions"]).alias("share")
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
        .select("broker", "topic", (F.col("share") / F.col("windows")).alias("share"), "here")
    )
    noted = spread.select(schema.WINDOW_COLUMN, "topic").distinct()
    others = sums.join(noted, [schema.WINDOW_COLUMN, "topic"], "left_anti").join(usual, "topic")
    return known.select(*others.columns).unionByName(others).withColumn("came", F.col("bytes") * F.col("share"))


def _collect_sums(came: DataFrame, *keys: str, partitions: bool = False) -> dict[int, dict[Any, Any]]:
    """Bytes that came, by the first key and then by the second; with `partitions`, those as well."""
    found: dict[int, dict[Any, Any]] = {}
    sums = came.groupBy(*keys).agg(F.round(F.sum("came")).cast("long").alias("came"), F.max("here").alias("here"))
    for row in sums.orderBy(F.col("came").desc(), keys[1]).collect():
        of_broker = found.setdefault(row[keys[0]], {})
        if keys[1] == schema.WINDOW_COLUMN or len(of_broker) < MAX_TOPICS:
            of_broker[row[keys[1]]] = (row["came"], row["here"]) if partitions else row["came"]
    return found


def _make_volume_usage(
    place: VolumeKey,
    rows: list[dict[str, Any]],
    looks: Mapping[VolumeKey, Any],
    wish: VolumeOptions,
    by_window: Mapping[int, Mapping[int, int]],
    by_topic: Mapping[int, Mapping[str, tuple[int, int]]],
    by_principal: Mapping[int, Mapping[str, int]],
) -> VolumeUsage:
    broker = place[0]
    first, last = rows[0]["first"], rows[-1]["last"]
    came, topics = by_window.get(broker, {}), by_topic.get(broker, {})
    free = {row[schema.WINDOW_COLUMN]: row["least"] for row in rows}
    times = {*came, *free}
    steps = tuple(
        WindowUsage(start, free.get(start), came.get(start, 0))
        for start in range(min(times), max(times) + 1, wish.window_ms)
    )
    limit = last["hard"] if wish.keep_free is None else wish.keep_free
    alone = sum(each[0] == broker for each in looks) == 1
    used = first["total"] - first["available"]
    advice = None
    if alone and limit is not None and topics:
        advice = advise_retention(
            [step.written for step in steps], wish.window_ms, last["total"] - limit - used, topics
        )
    return VolumeUsage(
        place,
        last["total"],
        used,
        last["total"] - last["available"],
        min(free.values()),
        limit,
        None if limit is None else min((at for at, least in free.items() if least <= limit), default=None),
        alone,
        sum(came.values()),
        topics,
        by_principal.get(broker, {}),
        steps,
        advice,
    )


def _window_column(at: Column, window_ms: int) -> Column:
    return (at - at % window_ms).alias(schema.WINDOW_COLUMN)
