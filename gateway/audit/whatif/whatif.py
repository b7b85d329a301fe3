# The effect that a policy would have had on recorded usage: the replay of policies/whatif/replay.py, over Spark. Rows
# go to Python in Arrow batches, in the order of time, those of one broker to one process; where limits hold over all
# brokers, all rows go to one. Only differences come back, a few rows even for many millions.
#
# Knows neither argv nor how an answer is shown; decides nothing itself.

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import schema
from gateway.audit.batch import job, transforms
from gateway.audit.batch.dropped import finally_dropped
from policies import usage
from policies.verdict import TOPIC_THRESHOLD
from policies.whatif import tick_phase
from policies.whatif.replay import WARM_UP_S, replay
from policies.whatif.rows import Life, Row, Rules, Shift, StreamKey
from policies.whatif.tick_phase import Phase

if TYPE_CHECKING:
    from pyarrow import RecordBatch

BY: Final = ("broker", "topic", "principal", "client_id")
CLIENT: Final = ("topic", "principal", "client_id")
MEASURES: Final = ("bytes", "requests", "delay_ms", "repeats")
ACTUAL, CHANGE = "actual", "change"
_UNKNOWN: Final = "unknown_bytes"  # rejected, and nobody can tell whether they came again
_SUMS: Final = (*(f"{which}_{name}" for which in (ACTUAL, CHANGE) for name in MEASURES), _UNKNOWN)
_WARM_UP_MS: Final = round(WARM_UP_S * 1000)
_LIMITING: Final = ("rejected", "would_reject")
_PARTITIONS: Final = 4  # for each broker: fewer of them meet in one task
_BATCH: Final = 10_000
_ROW: Final = (
    *("gateway", "boot", "worker", "seq", "start_ms", "end_ms", *BY, "outcome", "reason", "bytes", "messages"),
    *("requests", "delay_ms", "repeats"),
)  # fmt: skip
_SHIFT: Final = (
    "window_start_ms long, broker long, topic string, principal string, client_id string, outcome string,"
    " reason string, change_bytes long, change_requests long, change_delay_ms long, change_repeats long"
)


@dataclass(frozen=True, slots=True)
class Effect:
    """The fate of one group's bytes, really (`actual`) and by the policy (`actual` and `change`): MEASURES by outcome.

    `keys`: the values that it was asked by; `outcomes`: (outcome, reason) -> (actual, change).
    """

    keys: dict[str, Any]
    outcomes: dict[tuple[str, str], tuple[dict[str, int], dict[str, int]]]

    def bytes(self, outcome: str, which: str) -> int:
        """Of an outcome, whatever the reason; `which`: ACTUAL, or CHANGE."""
        at = (ACTUAL, CHANGE).index(which)
        return sum(found[at]["bytes"] for (name, _), found in self.outcomes.items() if name == outcome)

    def dropped(self, which: str, torn: bool = False) -> int:
        """Bytes that never got in because no client sent them again; `which`: ACTUAL, or CHANGE. An upper bound where
        the records can't tell which bytes were sent again, or where `torn`: the answer of dropped.tears for `keys`.
        """
        really = self._dropped(lambda actual, change: actual, torn)
        if which == ACTUAL:
            return really
        return self._dropped(lambda actual, change: actual + change, torn) - really

    def _dropped(self, one: Callable[[int, int], int], torn: bool) -> int:
        sums: dict[str, int] = defaultdict(int)
        for (outcome, _), (actual, change) in self.outcomes.items():
            if outcome not in usage.NOTES:
                sums[f"{outcome}_bytes"] += one(actual["bytes"], change["bytes"])
                again = one(actual["repeats"], change["repeats"])
                sums["repeats_bytes"] += again
                sums["rejected_again_bytes"] += again if outcome == "rejected" else 0
        return finally_dropped(defaultdict(int, sums), torn).bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """`rows`: as asked, by window and keys. `clients`: over the whole time, by CLIENT, the hardest hit first.
    `unknown`: whether there are rejected bytes that may have come again, which the records can't tell. `shares`: by
    broker, the number of topics taken to share the rest that explicit thresholds leave.
    """

    question: job.Question
    rows: list[Effect]
    clients: list[Effect]
    unknown: bool
    shares: dict[int, int]


def what_if(
    records: job.Records,
    rules: Rules,
    question: job.Question,
    *,
    topics: int | None = None,
    tell: Callable[[str], None] = job.no_progress,
) -> Answer:
    """Replay the records, and those of the five minutes before `question.from_ms` to warm up.

    Args:
        question: `by` some of BY.
        topics: the number of topics that each broker leads; None: those that the records name.
    """
    rows = _rows(records)
    start = None if question.from_ms is None else question.from_ms - _WARM_UP_MS
    chosen = transforms.within(rows, start, question.to_ms)
    tell("looking for topics and ticks")
    named, votes = _look(chosen)
    phases = _phases(votes, transforms.within(records.intervals, start, question.to_ms))
    led = _topics(named, topics)
    tell("replaying")
    shifts = _shifts(chosen, replace(rules, topics=led), phases, question)
    actual = transforms.within(rows, question.from_ms, question.to_ms).where(~F.col("outcome").isin(*usage.WOULD))
    both = _beside(actual, question.window_ms).unionByName(shifts, allowMissingColumns=True)
    sums = both.groupBy(schema.WINDOW, *BY, "outcome", "reason").agg(*(_sum(name) for name in _SUMS)).persist()
    try:
        found = _effects(sums, [*([schema.WINDOW] if question.window_ms else []), *question.by])
        clients = _effects(sums, CLIENT)
        unknown = sums.where(F.col(_UNKNOWN) > 0).limit(1).count() > 0
    finally:
        sums.unpersist()
    clients.sort(key=lambda effect: (-effect.dropped(CHANGE), -effect.bytes("rejected", CHANGE), str(effect.keys)))
    return Answer(question, found, clients, unknown, {broker: len(names) for broker, names in led.items()})


def _rows(records: job.Records) -> DataFrame:
    """With the interval of each row."""
    if "rows" in records.intervals.columns:
        return transforms.usage_rows(records.intervals, "boot", "seq", "end_ms")
    return records.rows


_Votes = dict[Life, list[tuple[int, int, int]]]  # as tick_phase.phase takes them


def _look(rows: DataFrame) -> tuple[dict[int, set[str]], _Votes]:
    """The topics of each broker, and what rejections tell of the times at which workers tick; in one pass."""
    wait = F.try_divide("delay_ms", "requests")  # of no request: none
    first = F.floor((F.col("start_ms") + wait) % tick_phase.TICK_MS / tick_phase.BIN_MS)
    width = F.greatest(F.lit(1), F.floor((F.col("end_ms") - F.col("start_ms")) / tick_phase.BIN_MS))
    told = (
        F.col("outcome").isin(*_LIMITING)
        & (F.col("reason") == TOPIC_THRESHOLD)
        & (wait > 0)
        & (wait < tick_phase.TOLD_MS)
    )
    keys = ("broker", "topic", *schema.BOOT, F.when(told, first).alias("first"), F.when(told, width).alias("width"))
    named: dict[int, set[str]] = defaultdict(set)
    votes: _Votes = defaultdict(list)
    for row in rows.groupBy(*keys).count().collect():
        named[row["broker"]].add(row["topic"])
        if row["first"] is not None:
            bins = min(row["width"], tick_phase.TICK_MS // tick_phase.BIN_MS)
            votes[_life(row)].append((row["first"], bins, row["count"]))
    return named, votes


def _phases(votes: _Votes, intervals: DataFrame) -> dict[Life, Phase]:
    """The moments when each worker ticked, as far as its rejections tell (tick_phase.py)."""
    if not votes:
        return {}
    second = F.floor(F.col("start_ms") % tick_phase.SECOND_MS / tick_phase.BIN_MS).alias("bin")
    edges: dict[Life, dict[int, int]] = defaultdict(dict)
    began = intervals.where(F.col("kind") == usage.INTERVAL).groupBy(*schema.BOOT, second).count()
    for row in began.collect():
        edges[_life(row)][row["bin"]] = row["count"]
    found = {life: tick_phase.phase(own, edges[life]) for life, own in votes.items()}
    return {life: phase for life, phase in found.items() if phase is not None}


def _life(row: Any) -> Life:
    return row["gateway"], row["boot"], row["worker"]


def _topics(named: Mapping[int, set[str]], count: int | None) -> dict[int, tuple[str, ...]]:
    """Topics of each broker: those with traffic, and others without a name, as many as it has."""
    return {
        broker: (*sorted(names), *(f"?{number}" for number in range((count or 0) - len(names))))
        for broker, names in named.items()
    }


def _shifts(rows: DataFrame, rules: Rules, phases: Mapping[Life, Phase], question: job.Question) -> DataFrame:
    groups = len(rules.topics) if rules.is_per_broker else 1
    group = F.col("broker") if rules.is_per_broker else F.lit(0)
    ordered = (
        rows.where(~F.col("outcome").isin(*usage.WOULD))
        .select(group.alias("_group"), *_ROW)
        .repartition(groups if groups < 2 else groups * _PARTITIONS, "_group")
        .sortWithinPartitions("_group", "start_ms", *schema.BOOT)
    )
    run = functools.partial(
        _replay, rules=rules, phases=dict(phases), window_ms=question.window_ms, from_ms=question.from_ms or 0
    )
    return ordered.mapInArrow(run, _SHIFT)


def _replay(
    batches: Iterable[RecordBatch],
    *,
    rules: Rules,
    phases: Mapping[Life, Phase],
    window_ms: int | None,
    from_ms: int,
) -> Iterator[RecordBatch]:
    """Runs in Spark's Python processes."""
    for _, rows in groupby(_unpacked(batches), itemgetter(0)):
        shifts = replay((row for _, row in rows), rules, phases, window_ms=window_ms, from_ms=from_ms)
        yield from _packed(shifts)


def _unpacked(batches: Iterable[RecordBatch]) -> Iterator[tuple[int, Row]]:
    lives: dict[Life, Life] = {}
    streams: dict[StreamKey, StreamKey] = {}
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        for group, gateway, boot, worker, seq, start, end, broker, topic, principal, client_id, *rest in zip(
            *columns, strict=True
        ):
            life = (gateway, boot, worker)
            stream = (broker, topic, principal, client_id)
            yield group, Row(lives.setdefault(life, life), seq, start, end, streams.setdefault(stream, stream), *rest)


def _packed(shifts: Iterable[Shift]) -> Iterator[RecordBatch]:
    import pyarrow

    fields = [field.split() for field in _SHIFT.split(", ")]
    kinds = {"long": pyarrow.int64(), "string": pyarrow.string()}
    form = pyarrow.schema([(name, kinds[kind]) for name, kind in fields])
    rows = ((shift.window_ms, *shift.stream, *shift[2:]) for shift in shifts)
    while batch := list(islice(rows, _BATCH)):
        columns = [
            pyarrow.array(column, kind) for column, kind in zip(zip(*batch, strict=True), form.types, strict=True)
        ]
        yield pyarrow.RecordBatch.from_arrays(columns, schema=form)


def _beside(rows: DataFrame, window_ms: int | None) -> DataFrame:
    """The real outcomes, in the columns of differences. Delays are those of notes: a row of another outcome repeats
    them.
    """
    window = F.lit(0) if window_ms is None else F.col("start_ms") - F.col("start_ms") % window_ms
    delay = F.when(F.col("outcome") == usage.DELAYED, F.col("delay_ms")).otherwise(0)
    return rows.select(
        window.cast("long").alias(schema.WINDOW),
        *BY,
        "outcome",
        "reason",
        F.col("bytes").alias(f"{ACTUAL}_bytes"),
        F.col("requests").alias(f"{ACTUAL}_requests"),
        delay.alias(f"{ACTUAL}_delay_ms"),
        F.coalesce("repeats", F.lit(0)).alias(f"{ACTUAL}_repeats"),
        F.when((F.col("outcome") == "rejected") & F.col("repeats").isNull(), F.col("bytes")).alias(_UNKNOWN),
    )


def _sum(name: str) -> Column:
    return F.sum(F.coalesce(F.col(name), F.lit(0))).alias(name)


def _effects(sums: DataFrame, keys: Iterable[str]) -> list[Effect]:
    keys = list(keys)
    found: dict[tuple[Any, ...], Effect] = {}
    for row in sums.groupBy(*keys, "outcome", "reason").agg(*map(_sum, _SUMS)).collect():
        values = tuple(row[key] for key in keys)
        effect = found.get(values)
        if effect is None:
            effect = found[values] = Effect(dict(zip(keys, values, strict=True)), {})
        effect.outcomes[row["outcome"], row["reason"]] = (
            {name: row[f"{ACTUAL}_{name}"] for name in MEASURES},
            {name: row[f"{CHANGE}_{name}"] for name in MEASURES},
        )
    return [found[values] for values in sorted(found)]
