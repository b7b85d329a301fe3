# The effect that a policy would have had on recorded usage: the replay of policies/whatif/replay.py, by either engine.
# Only sums come back from it, a few even for many millions of rows.
#
# Knows neither argv nor how an answer is shown; decides nothing itself. Pure.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

from gateway.audit import columns
from gateway.audit.batch.dropped import count_finally_dropped
from gateway.audit.batch.query import AuditQuery, LogIntegrity, ignore_progress
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


class VoteCount(NamedTuple):
    """`times`: how often records of that life, which have rows of that topic and broker, gave one vote for the time of
    ticks, `first` and `span` (tick_phase.phase_vote; None: they gave none).
    """

    broker: int
    topic: str
    gateway: str
    boot: str
    worker: int
    first: int | None
    span: int | None
    times: int


class StartCount(NamedTuple):
    """How many of a life's intervals began in that bin of their second."""

    gateway: str
    boot: str
    worker: int
    bin: int
    times: int


class ReplayableUsage(Protocol):
    """The rows of the records within some bounds."""

    def count_votes(self) -> Iterable[VoteCount]: ...

    def count_starts(self) -> Iterable[StartCount]: ...

    def sum_replay(
        self,
        rules: ReplayRules,
        phases: Mapping[WorkerLife, TickPhase],
        question: AuditQuery,
        groupings: Sequence[Sequence[str]],
    ) -> list[list[tuple[Any, ...]]]:
        """What task.replay_pieces gives of all rows, once more for each grouping: the sums of task.SUM_COLUMNS by these
        columns, outcome and reason, which are before them.
        """


class ReplayableRecords(Protocol):
    """The records that were read, each once, in either engine."""

    @property
    def sources(self) -> list[dict[str, Any]]: ...

    def select_usage(
        self, from_ms: int | None, to_ms: int | None, tell: Callable[[str], None] = ...
    ) -> ReplayableUsage:
        """Those of intervals that start within the bounds."""

    def find_gaps(self, question: AuditQuery, tell: Callable[[str], None] = ...) -> LogIntegrity:
        """As CountedRecords has it."""


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

    query: AuditQuery
    rows: list[PolicyEffect]
    clients: list[PolicyEffect]
    unknown: bool
    topics_sharing: dict[int, int]
    baseline_deviation: BaselineDeviation | None = None


def evaluate_policy(
    records: ReplayableRecords,
    rules: ReplayRules,
    question: AuditQuery,
    *,
    topics: int | None = None,
    baseline: ReplayRules | None = None,
    tell: Callable[[str], None] = ignore_progress,
) -> WhatIfAnswer:
    """Replay the records, and those of the five minutes before `question.from_ms` to warm up.

    Args:
        question: `by` some of GROUP_DIMENSIONS.
        topics: the number of topics that each broker leads; None: those that the records name.
        baseline: policies that may have been in force, to be compared with what happened.
    """
    start = None if question.from_ms is None else question.from_ms - _WARM_UP_MS
    chosen = records.select_usage(start, question.to_ms, tell)
    tell("looking for topics and ticks")
    named, votes = _sort_votes(chosen.count_votes())
    phases = _find_tick_phases(votes, chosen) if votes else {}
    led = _topics_by_broker(named, topics)
    tell("replaying")
    keys = [*([columns.WINDOW_COLUMN] if question.window_ms else []), *question.by]
    sums, of_clients = chosen.sum_replay(replace(rules, topics=led), phases, question, [keys, CLIENT_COLUMNS])
    clients = _make_effects(of_clients, CLIENT_COLUMNS)
    unknown = sum(row[len(CLIENT_COLUMNS) + 2 + SUM_COLUMNS.index(UNKNOWN_BYTES)] for row in of_clients)
    off = None
    if baseline == rules:
        off = _measure_deviation(clients)
    elif baseline is not None:
        tell("replaying the baseline")
        (whole,) = chosen.sum_replay(replace(baseline, topics=led), phases, question, [()])
        off = _measure_deviation(_make_effects(whole, ()))
    clients.sort(
        key=lambda effect: (-effect.dropped_bytes(CHANGE), -effect.outcome_bytes("rejected", CHANGE), str(effect.keys))
    )
    return WhatIfAnswer(
        question,
        _make_effects(sums, keys),
        clients,
        unknown > 0,
        {broker: len(names) for broker, names in led.items()},
        off,
    )


def has_rejections(answer: WhatIfAnswer) -> bool:
    """Whether bytes were rejected, or would have been."""
    return any(effect.outcome_bytes("rejected", which) for effect in answer.clients for which in (ACTUAL, CHANGE))


_TickVotes = dict[WorkerLife, list[tuple[int, int, int]]]  # as tick_phase.phase takes them


def _sort_votes(counted: Iterable[VoteCount]) -> tuple[dict[int, set[str]], _TickVotes]:
    """The topics of each broker, and what rejections tell of the times at which workers tick."""
    named: dict[int, set[str]] = defaultdict(set)
    votes: _TickVotes = defaultdict(list)
    for vote in counted:
        named[vote.broker].add(vote.topic)
        if vote.first is not None and vote.span is not None:
            life = (vote.gateway, vote.boot, vote.worker)
            votes[life].append((vote.first, tick_phase.vote_width(vote.span), vote.times))
    return named, votes


def _find_tick_phases(votes: _TickVotes, chosen: ReplayableUsage) -> dict[WorkerLife, TickPhase]:
    """The moments when each worker ticked, as far as its rejections tell (tick_phase.py)."""
    edges: dict[WorkerLife, dict[int, int]] = defaultdict(dict)
    for start in chosen.count_starts():
        edges[start.gateway, start.boot, start.worker][start.bin] = start.times
    found = {life: tick_phase.find_phase(own, edges[life]) for life, own in votes.items()}
    return {life: phase for life, phase in found.items() if phase is not None}


def _topics_by_broker(named: Mapping[int, set[str]], count: int | None) -> dict[int, tuple[str, ...]]:
    """Topics of each broker: those with traffic, and others without a name, as many as it has."""
    return {
        broker: (*sorted(names), *(f"?{number}" for number in range((count or 0) - len(names))))
        for broker, names in named.items()
    }


def _measure_deviation(effects: Sequence[PolicyEffect]) -> BaselineDeviation:
    """Of outcomes that bytes end in: how many are delayed follows from how clients send, which isn't known as well."""
    found: dict[str, tuple[int, int]] = {}
    for outcome in sorted({outcome for effect in effects for outcome, _ in effect.outcomes}.difference(usage.NOTES)):
        actual, change = (sum(each.outcome_bytes(outcome, which) for each in effects) for which in (ACTUAL, CHANGE))
        found[outcome] = (actual, change)
    accepted, _ = found.get("accepted", (0, 0))
    outcome, (actual, change) = max(found.items(), key=lambda each: abs(each[1][1]), default=("accepted", (0, 0)))
    matters = abs(change) > _NEGLIGIBLE_SHARE * accepted
    return BaselineDeviation(
        outcome, actual, actual + change, abs(change) / max(actual, actual + change) if matters else 0.0
    )


def _make_effects(rows: Iterable[tuple[Any, ...]], keys: Sequence[str]) -> list[PolicyEffect]:
    """Of sums by these keys, in their order."""
    found: dict[tuple[Any, ...], PolicyEffect] = {}
    for row in rows:
        values, sums = row[: len(keys)], dict(zip(SUM_COLUMNS, row[len(keys) + 2 :], strict=True))
        effect = found.setdefault(values, PolicyEffect(dict(zip(keys, values, strict=True)), {}))
        effect.outcomes[row[len(keys)], row[len(keys) + 1]] = (
            {name: sums[f"{ACTUAL}_{name}"] for name in MEASURES},
            {name: sums[f"{CHANGE}_{name}"] for name in MEASURES},
        )
    return [found[values] for values in sorted(found)]
