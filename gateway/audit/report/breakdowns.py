# What the report says beside topics and clients: resource groups, brokers, gateways, programs; time within limits;
# refusals as episodes; the time before. Spark sums up; here come as many rows as the page shows, and for episodes and
# levels one for each step with something to tell.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import schema
from gateway.audit.batch import tables, transforms
from gateway.audit.batch.query import AuditQuery
from gateway.audit.questions import episodes, slo
from gateway.audit.report.facts import NO_EPISODES, RefusalEpisodes, ReportBreakdowns, UsageGroup

_STEPS_MS: Final = tuple(s * 1000 for s in (60, 300, 900, 3600, 86_400))
_MAX_STEPS: Final = 3000  # of levels and episodes
_MAX_NAMES: Final = 25  # of a table
_MAX_EPISODES: Final = 50
_DIMENSIONS: Final = ("group", "broker", "gateway", "software")


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums by all of _DIMENSIONS: few rows, from which those by each are added up here."""

    rows: Sequence[Mapping[str, Any]] = field(repr=False)

    def of_dimension(self, name: str) -> list[UsageGroup]:
        """The largest by what they offered, then the others together."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for row in self.rows:
            found.setdefault(str(row[name]), []).append(row)
        groups = [UsageGroup((each,), tables.sum_rows(rows)) for each, rows in found.items()]
        groups.sort(key=lambda group: (-group.sums["offered_bytes"], group.names))
        if len(groups) <= _MAX_NAMES:
            return groups
        rest = groups[_MAX_NAMES - 1 :]
        return [*groups[: _MAX_NAMES - 1], UsageGroup((), tables.sum_rows(each.sums for each in rest), len(rest))]


def gather_breakdowns(
    rows: DataFrame, first_ms: int, last_ms: int, before: AuditQuery | None, sees_repeats: bool
) -> ReportBreakdowns:
    """Of all rows that were read, those of intervals that start from `first_ms` to before `last_ms`; `before`: the
    bounds of the time to compare with; `sees_repeats`: LogIntegrity's.
    """
    within = AuditQuery(_DIMENSIONS, None, first_ms, last_ms)
    found = _Sums([row.asDict() for row in transforms.sum_question(rows, within).collect()])
    step = next((each for each in _STEPS_MS if last_ms - first_ms <= each * _MAX_STEPS), _STEPS_MS[-1])
    groups, brokers, gateways, software = (found.of_dimension(name) for name in _DIMENSIONS)
    earlier = None
    if before is not None:
        (sums,) = transforms.sum_question(rows, before).collect()
        earlier = {name: value or 0 for name, value in sums.asDict().items()}
    whole = tables.sum_rows(found.rows)
    is_refused = whole["rejected_bytes"] or whole["dropped_bytes"] or whole["discarded_bytes"]
    return ReportBreakdowns(
        groups=groups,
        brokers=brokers,
        gateways=gateways,
        software=software,
        step_ms=step,
        levels=_measure_levels(rows, first_ms, last_ms, step, [each.names[0] for each in groups if each.names]),
        episodes=_find_episodes(rows, first_ms, last_ms, step, sees_repeats) if is_refused else NO_EPISODES,
        before=earlier,
    )


def _measure_levels(
    rows: DataFrame, first_ms: int, last_ms: int, step_ms: int, names: Sequence[str]
) -> list[dict[str, Any]]:
    chosen = rows.where(F.col("group").isin(*names)) if names else rows.limit(0)
    sums = transforms.sum_question(chosen, AuditQuery(("group",), step_ms, first_ms, last_ms))
    steps = sums.select(schema.WINDOW_COLUMN, "group", *slo.NEEDED_SUMS).toLocalIterator()
    return slo.measure_levels((row.asDict() for row in steps), AuditQuery(("group",)))


def _find_episodes(rows: DataFrame, first_ms: int, last_ms: int, step_ms: int, sees_repeats: bool) -> RefusalEpisodes:
    sums = transforms.sum_question(rows, AuditQuery(episodes.BY, step_ms, first_ms, last_ms))
    steps = sums.select(schema.WINDOW_COLUMN, *episodes.BY, *episodes.NOTED_SUMS)
    noted = steps.where(sum((F.col(name) for name in episodes.NOTED_SUMS), F.lit(0)) > 0)
    ordered = noted.orderBy(schema.WINDOW_COLUMN, *episodes.BY).toLocalIterator()
    found = [*episodes.find_episodes((row.asDict() for row in ordered), step_ms, last_ms, sees_repeats)]
    found.sort(key=lambda each: (-each["finally_dropped_bytes"], -each["rejected_bytes"], each["start_ms"]))
    return RefusalEpisodes(found[:_MAX_EPISODES], len(found))
