# The effect that a policy would have had on recorded usage: the replay of policies/whatif/replay.py, over Spark.
# Records go to Python in pieces (pieces.py), in the order of time, those of one broker to one process (task.py); where
# limits hold over all brokers, all go to one. Only sums come back, a few even for many millions of rows.
#
# Knows neither argv nor how an answer is shown; decides nothing itself.

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by
from pyspark.sql.types import LongType, StringType, StructField, StructType

from gateway.audit import schema
from gateway.audit.arrow_map import map_in_arrow
from gateway.audit.batch import job, transforms
from gateway.audit.batch.dropped import count_finally_dropped
from gateway.audit.whatif import task
from gateway.audit.whatif.reading import RecordedUsage
from gateway.audit.whatif.task import ACTUAL, CHANGE, MEASURES, SUM_COLUMNS, UNKNOWN_BYTES
from policies import usage
from policies.whatif import tick_phase
from policies.whatif.replay import WARM_UP_S
from policies.whatif.rows import ReplayRules, WorkerLife
from policies.whatif.tick_phase import TickPhase

GROUP_DIMENSIONS: Final = ("broker", "topic", "principal", "client_id")
CLIENT_COLUMNS: Final = ("topic", "principal", "client_id")
_NEGLIGIBLE_SHARE: Final = 0.001
_WARM_UP_MS: Final = round(WARM_UP_S * 1000)
_PARTITIONS_PER_BROKER: Final = 4  # for each broker: fewer of them meet in one task
_TYPES: Final = {"int64": LongType(), "string": StringType()}
_SUMS_SCHEMA: Final = StructType([StructField(each.name, _TYPES[str(each.type)]) for each in task.SUMS_SCHEMA])


@dataclass(frozen=True, slots=True)
class PolicyEffect:
    """The fate of one group's bytes, really (`actual`) and by the policy (`actual` and `change`): MEASURES by outcome.

    `keys`: the values that it was asked by; `outcomes`: (outcome, reason) -> (actual, change).
    """

    keys: dict[str, Any]
    outcomes: dict[tuple[str, str], tuple[dict[str, int], dict[str, int]]]

    def outcome_bytes(self, outcome: str, which: str) -> int:
        """Of an outcome, whatever the reason; `which`: ACTUAL, or CHANGE."""
        at = (ACTUAL, CHANGE).index(which)
        return sum(found[at]["bytes"] for (name, _), found in self.outcomes.items() if name == outcome)

    def dropped_bytes(self, which: str, torn: bool = False) -> int:
        """Bytes that never got in because no client sent them again; `which`: ACTUAL, or CHANGE. An upper bound where
        the records can't tell which bytes were sent again, or where `torn`: the answer of dropped.tears for `keys`.
        """
        really = self._count_dropped(lambda actual, change: actual, torn)
        if which == ACTUAL:
            return really
        return self._count_dropped(lambda actual, change: actual + change, torn) - really

    def _count_dropped(self, one: Callable[[int, int], int], torn: bool) -> int:
        sums: dict[str, int] = defaultdict(int)
        for (outcome, _), (actual, change) in self.outcomes.items():
            if outcome not in usage.NOTES:
                sums[f"{outcome}_bytes"] += one(actual["bytes"], change["bytes"])
                again = one(actual["repeats"], change["repeats"])
                sums["repeats_bytes"] += again
                sums["rejected_again_bytes"] += again if outcome == "rejected" else 0
        return count_finally_dropped(defaultdict(int, sums), torn).bytes


class BaselineDeviation(NamedTuple):
    """The outcome of which a replay's bytes are furthest from those of the records. `share`: of the larger of both; 0
    where that is little beside the bytes accepted.
    """

    outcome: str
    actual: int
    what_if: int
    share: float


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """`rows`: as asked, by window and keys. `clients`: over the whole time, by CLIENT, the hardest hit first.
    `unknown`: whether there are rejected bytes that may have come again, which the records can't tell.
    `topics_sharing`: by broker, the number of topics taken to share the rest that explicit thresholds leave.
    `baseline_deviation`: how far the baseline alone is from what happened; None: it was not asked for.
    """

    query: job.AuditQuery
    rows: list[PolicyEffect]
    clients: list[PolicyEffect]
    unknown: bool
    topics_sharing: dict[int, int]
    baseline_deviation: BaselineDeviation | None = None


def evaluate_policy(
    records: RecordedUsage,
    rules: ReplayRules,
    question: job.AuditQuery,
    *,
    topics: int | None = None,
    baseline: ReplayRules | None = None,
    tell: Callable[[str], None] = job.ignore_progress,
) -> WhatIfAnswer:
    """Replay the records, and those of the five minutes before `question.from_ms` to warm up.

    Args:
        question: `by` some of BY.
        topics: the number of topics that each broker leads; None: those that the records name.
        baseline: policies that may have been in force, to be compared with what happened.
    """
    start = None if question.from_ms is None else question.from_ms - _WARM_UP_MS
    chosen = _select_pieces(transforms.filter_by_start(records.records, start, question.to_ms))
    tell("looking for topics and ticks")
    named, votes = _collect_votes(chosen)
    phases = _find_tick_phases(votes, transforms.filter_by_start(records.intervals, start, question.to_ms))
    led = _topics_by_broker(named, topics)
    tell("replaying")
    sums = _replay_sums(chosen, replace(rules, topics=led), phases, question)
    sums = sums.groupBy(schema.WINDOW_COLUMN, *GROUP_DIMENSIONS, "outcome", "reason").agg(
        *(F.sum(name).alias(name) for name in SUM_COLUMNS)
    )
    sums = sums.persist()
    try:
        found, _ = _collect_effects(sums, [*([schema.WINDOW_COLUMN] if question.window_ms else []), *question.by])
        clients, unknown = _collect_effects(sums, CLIENT_COLUMNS)
        off = _measure_deviation(sums) if baseline == rules else None
    finally:
        sums.unpersist()
    if baseline is not None and off is None:
        tell("replaying the baseline")
        off = _measure_deviation(_replay_sums(chosen, replace(baseline, topics=led), phases, question))
    clients.sort(
        key=lambda effect: (-effect.dropped_bytes(CHANGE), -effect.outcome_bytes("rejected", CHANGE), str(effect.keys))
    )
    return WhatIfAnswer(
        question, found, clients, unknown > 0, {broker: len(names) for broker, names in led.items()}, off
    )


def has_rejections(answer: WhatIfAnswer) -> bool:
    """Whether bytes were rejected, or would have been."""
    return any(effect.outcome_bytes("rejected", which) for effect in answer.clients for which in (ACTUAL, CHANGE))


def _select_pieces(records: DataFrame) -> DataFrame:
    """With the header of each piece."""
    header = records.select(
        *schema.BOOT_COLUMNS, "seq", "part", "start_ms", "end_ms", F.explode("pieces").alias("piece")
    )
    return header.select("*", "piece.*").drop("piece")


_TickVotes = dict[WorkerLife, list[tuple[int, int, int]]]  # as tick_phase.phase takes them


def _collect_votes(pieces: DataFrame) -> tuple[dict[int, set[str]], _TickVotes]:
    """The topics of each broker, and what rejections tell of the times at which workers tick; in one pass."""
    voted = pieces.select("broker", *schema.BOOT_COLUMNS, "start_ms", "end_ms", F.explode("votes").alias("vote"))
    topic, first = F.col("vote")["topic"].alias("topic"), F.col("vote")["first"].alias("first")
    bins = F.floor((F.col("end_ms") - F.col("start_ms")) / tick_phase.BIN_MS)
    span = F.when(first.isNotNull(), bins * tick_phase.BIN_MS).alias("span")
    named: dict[int, set[str]] = defaultdict(set)
    votes: _TickVotes = defaultdict(list)
    counted = voted.groupBy("broker", topic, *schema.BOOT_COLUMNS, first, span).agg(
        F.sum(F.col("vote")["times"]).alias("times")
    )
    for row in counted.collect():
        named[row["broker"]].add(row["topic"])
        if row["first"] is not None:
            votes[_life_key(row)].append((row["first"], tick_phase.vote_width(row["span"]), row["times"]))
    return named, votes


def _find_tick_phases(votes: _TickVotes, intervals: DataFrame) -> dict[WorkerLife, TickPhase]:
    """The moments when each worker ticked, as far as its rejections tell (tick_phase.py)."""
    if not votes:
        return {}
    second = F.floor(F.col("start_ms") % tick_phase.SECOND_MS / tick_phase.BIN_MS).alias("bin")
    edges: dict[WorkerLife, dict[int, int]] = defaultdict(dict)
    began = intervals.where(F.col("kind") == usage.INTERVAL).groupBy(*schema.BOOT_COLUMNS, second).count()
    for row in began.collect():
        edges[_life_key(row)][row["bin"]] = row["count"]
    found = {life: tick_phase.find_phase(own, edges[life]) for life, own in votes.items()}
    return {life: phase for life, phase in found.items() if phase is not None}


def _life_key(row: Any) -> WorkerLife:
    return row["gateway"], row["boot"], row["worker"]


def _topics_by_broker(named: Mapping[int, set[str]], count: int | None) -> dict[int, tuple[str, ...]]:
    """Topics of each broker: those with traffic, and others without a name, as many as it has."""
    return {
        broker: (*sorted(names), *(f"?{number}" for number in range((count or 0) - len(names))))
        for broker, names in named.items()
    }


def _replay_sums(
    pieces: DataFrame, rules: ReplayRules, phases: Mapping[WorkerLife, TickPhase], question: job.AuditQuery
) -> DataFrame:
    """The columns of task.SUMS_SCHEMA, in several rows each."""
    groups = len(rules.topics) if rules.is_per_broker else 1
    group = F.col("broker") if rules.is_per_broker else F.lit(0)
    ordered = (
        pieces.withColumn("group", group)
        .select(*task.ReplayedPiece._fields)
        .repartition(groups * _PARTITIONS_PER_BROKER if groups > 1 else 1, "group")
        .sortWithinPartitions("group", "start_ms", *schema.BOOT_COLUMNS, "seq", "part", "broker")
    )
    run = functools.partial(
        task.replay_batches,
        rules=rules,
        phases=dict(phases),
        window_ms=question.window_ms,
        from_ms=question.from_ms or 0,
    )
    return map_in_arrow(ordered, run, _SUMS_SCHEMA)


def _measure_deviation(sums: DataFrame) -> BaselineDeviation:
    """Of outcomes that bytes end in: how many are delayed follows from how clients send, which isn't known as well."""
    ended = sums.where(~F.col("outcome").isin(*usage.NOTES))
    rows = ended.groupBy("outcome").agg(*(F.sum(f"{which}_bytes").alias(which) for which in (ACTUAL, CHANGE))).collect()
    found = {row["outcome"]: (row[ACTUAL] or 0, row[CHANGE] or 0) for row in rows}
    accepted, _ = found.get("accepted", (0, 0))
    outcome, (actual, change) = max(found.items(), key=lambda each: abs(each[1][1]), default=("accepted", (0, 0)))
    matters = abs(change) > _NEGLIGIBLE_SHARE * accepted
    return BaselineDeviation(
        outcome, actual, actual + change, abs(change) / max(actual, actual + change) if matters else 0.0
    )


def _collect_effects(sums: DataFrame, keys: Iterable[str]) -> tuple[list[PolicyEffect], int]:
    """By keys; and the sum of UNKNOWN."""
    keys, unknown = list(keys), 0
    found: dict[tuple[Any, ...], PolicyEffect] = {}
    for row in (
        sums.groupBy(*keys, "outcome", "reason").agg(*(F.sum(name).alias(name) for name in SUM_COLUMNS)).collect()
    ):
        values = tuple(row[key] for key in keys)
        unknown += row[UNKNOWN_BYTES]
        effect = found.get(values)
        if effect is None:
            effect = found[values] = PolicyEffect(dict(zip(keys, values, strict=True)), {})
        effect.outcomes[row["outcome"], row["reason"]] = (
            {name: row[f"{ACTUAL}_{name}"] for name in MEASURES},
            {name: row[f"{CHANGE}_{name}"] for name in MEASURES},
        )
    return [found[values] for values in sorted(found)], unknown
