# What the report says beside topics and clients: resource groups, brokers, gateways, programs; time within limits;
# refusals as episodes; the time before. The engine sums up; here come as many rows as the page shows, and for episodes
# and levels one for each step with something to tell.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.audit.batch import tables
from gateway.audit.batch.query import AuditQuery, CountedRecords, IntervalSpan
from gateway.audit.questions import episodes, slo
from gateway.audit.report.facts import NO_EPISODES, RefusalEpisodes, ReportBreakdowns, UsageGroup

_STEPS_MS: Final = tuple(s * 1000 for s in (60, 300, 900, 3600, 86_400))
_MAX_STEPS: Final = 3000  # of levels and episodes
_MAX_NAMES: Final = 25  # of a table
_MAX_EPISODES: Final = 50
_MAX_REFUSED: Final = 1000  # principals that a question names
REFUSED_SUMS: Final = ("rejected_bytes", "dropped_bytes", "discarded_bytes")
DIMENSIONS: Final = ("group", "broker", "gateway", "software")


@dataclass(frozen=True, slots=True)
class BreakdownPlan:
    """What is `known` already, and the questions whose answers are missing; None: it isn't asked."""

    known: ReportBreakdowns
    levels: AuditQuery
    episodes: AuditQuery | None
    before: AuditQuery | None

    @property
    def questions(self) -> list[AuditQuery]:
        """All that are asked."""
        return [each for each in (self.levels, self.episodes, self.before) if each is not None]


def plan_breakdowns(
    rows: Sequence[Mapping[str, Any]],
    refused: Sequence[str],
    whole: AuditQuery,
    span: IntervalSpan,
    now_ms: int | None = None,
) -> BreakdownPlan:
    """`rows`: sums by all of DIMENSIONS, which are few; `refused`: the principals of whom there are REFUSED_SUMS;
    `whole`: the report's bounds; `span`: of its intervals; `now_ms`: when the time that goes on ends, if it does.
    """
    length = span.latest_ms + 1 - span.first_ms
    step = next((each for each in _STEPS_MS if length <= each * _MAX_STEPS), _STEPS_MS[-1])
    groups, brokers, gateways, software = (_sum_dimension(rows, name) for name in DIMENSIONS)
    of_groups = replace(whole, by=("group",), only=tuple(each.names[0] for each in groups if each.names))
    # Of all others there are as many sums of steps, and no episode.
    only = tuple(refused) if len(refused) <= _MAX_REFUSED else None
    of_refused = replace(whole, by=episodes.BY, window_ms=step, only=only, noted=episodes.NOTED_SUMS)
    before = None
    if whole.from_ms is not None:
        end = span.last_ms if whole.to_ms is None else whole.to_ms
        if now_ms is not None and whole.from_ms < now_ms < end:  # to be compared with as much as there has been
            end = now_ms
        before = AuditQuery((), None, 2 * whole.from_ms - end, whole.from_ms)
    return BreakdownPlan(
        ReportBreakdowns(groups, brokers, gateways, software, step),
        replace(of_groups, window_ms=step),
        of_refused if refused else None,
        before,
    )


def _sum_dimension(rows: Sequence[Mapping[str, Any]], name: str) -> list[UsageGroup]:
    """The largest by what they offered, then the others together."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(str(row[name]), []).append(row)
    groups = [UsageGroup((each,), tables.sum_rows(of_one)) for each, of_one in found.items()]
    groups.sort(key=lambda group: (-group.sums["offered_bytes"], group.names))
    if len(groups) <= _MAX_NAMES:
        return groups
    rest = groups[_MAX_NAMES - 1 :]
    return [*groups[: _MAX_NAMES - 1], UsageGroup((), tables.sum_rows(each.sums for each in rest), len(rest))]


def gather_breakdowns(
    records: CountedRecords, plan: BreakdownPlan, span: IntervalSpan, sees_repeats: bool
) -> ReportBreakdowns:
    """The rest of them; `sees_repeats`: LogIntegrity's."""
    with records.open_groups(plan.levels) as steps:
        levels = slo.measure_levels(steps, AuditQuery(("group",)))
    return replace(
        plan.known,
        levels=levels,
        episodes=NO_EPISODES if plan.episodes is None else _find_episodes(records, plan.episodes, span, sees_repeats),
        before=None if plan.before is None else records.sum_groups(plan.before)[0],
        before_trust=None if plan.before is None else records.find_gaps(plan.before),
    )


def _find_episodes(
    records: CountedRecords, question: AuditQuery, span: IntervalSpan, sees_repeats: bool
) -> RefusalEpisodes:
    assert question.window_ms is not None
    with records.open_groups(question) as steps:
        ended = (span.latest_ms + 1, sees_repeats, question.zone)
        found = [*episodes.find_episodes(steps, question.window_ms, *ended)]
    found.sort(key=lambda each: (-each["finally_dropped_bytes"], -each["rejected_bytes"], each["start_ms"]))
    return RefusalEpisodes(found[:_MAX_EPISODES], len(found))
