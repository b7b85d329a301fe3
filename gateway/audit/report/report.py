# The report's contents, asked of the records in either engine: facts.ReportFacts. The engine sums up; here come only as
# many rows as the page shows, however many topics and clients there are. Knows neither argv nor how it is shown.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gateway.audit import columns
from gateway.audit.batch.query import (
    DROPPED,
    AuditQuery,
    CountedRecords,
    IntervalSpan,
    LargestGroups,
    ignore_progress,
)
from gateway.audit.report import breakdowns
from gateway.audit.report.facts import ReasonTraffic, ReportFacts, TopicTraffic, UsageGroup
from gateway.audit.report.plots import TimeWindows
from policies import usage

CLIENT_COLUMNS: Final = ("principal", "client_id", "software")
# An interval is a second long and counts whole where it begins, so shorter windows would be uneven by themselves. Each
# length divides the next: the heat map's columns are made of the plots' windows.
_STEPS_MS: Final = tuple(s * 1000 for s in (5, 10, 30, 60, 300, 900, 3600, 21_600, 86_400, 604_800))
_CELLS_MS: Final = tuple(s * 1000 for s in (5, 10, 60, 300, 3600, 21_600, 86_400, 604_800))
_MAX_WINDOWS: Final = 180  # of a plot
_MAX_CELLS: Final = 72  # columns of the heat map
_OUTCOMES: Final = (*usage.OUTCOMES, *usage.NOTES)

_Row = Mapping[str, Any]


def gather_facts(
    records: CountedRecords,
    from_ms: int | None,
    to_ms: int | None,
    topics: int,
    clients: int,
    tell: Callable[[str], None] = ignore_progress,
    now_ms: int | None = None,
    zone: str = "UTC",
) -> ReportFacts:
    """The facts of the intervals that start in [from_ms, to_ms): `topics` and `clients` of them by name. With `from_ms`
    they are compared with as long a time before, as far as `records` has it; of a time that goes on, up to `now_ms`.
    Times are told in `zone`.
    """
    whole = AuditQuery((), None, from_ms, to_ms, time_zone=zone)
    by_topic, by_client = replace(whole, by=("topic",)), replace(whole, by=CLIENT_COLUMNS)
    by_place = replace(whole, by=breakdowns.DIMENSIONS)
    of_refused = replace(whole, by=("principal",), noted=breakdowns.REFUSED_SUMS)
    records.prepare([by_topic, by_client, by_place, of_refused], whole, tell)
    bound = from_ms or to_ms or 0
    span = next(iter(records.measure_spans(whole, tell)), IntervalSpan(0, bound, bound, bound, None))
    tell("summing up topics, clients and places")
    largest = records.rank_groups(by_topic, columns.OFFERED, topics, least=0)
    busiest = records.rank_groups(by_client, columns.OFFERED, clients, least=0)
    losers = records.rank_groups(by_client, DROPPED, clients)
    places = records.sum_groups(by_place)
    refused = [str(row["principal"]) for row in records.sum_groups(of_refused)]

    times, cell_ms = choose_windows(span.first_ms, span.latest_ms, zone)
    by_window = replace(whole, window_ms=times.step_ms)
    by_reason = replace(by_window, by=("outcome", "reason"))
    of_topics = replace(by_window, by=by_topic.by, only=tuple(str(row["topic"]) for row in largest.rows))
    plan = breakdowns.plan_breakdowns(places, refused, whole, span, now_ms)
    records.prepare([by_reason, of_topics, *plan.questions], by_window, tell)
    tell("summing up reasons and windows")
    reasons = records.sum_groups(by_reason)
    trust = records.find_gaps(whole, tell)
    return ReportFacts(
        sources=records.sources,
        first_ms=span.first_ms,
        last_ms=span.last_ms,
        times=times,
        cell_ms=cell_ms,
        totals=largest.totals,
        topics=_gather_topics(records.sum_groups(of_topics), reasons, times, _with_others(largest, by_topic)),
        clients=_with_others(busiest, by_client),
        losers=_make_groups(losers, by_client),
        reasons=_gather_reasons(reasons, times),
        factor=_lowest_factors(records.measure_spans(by_window), times),
        integrity=trust,
        breakdowns=breakdowns.gather_breakdowns(records, plan, span, trust.sees_repeats),
    )


def choose_windows(first_ms: int, latest_ms: int, zone: str = "UTC") -> tuple[TimeWindows, int]:
    """Windows for intervals that start from `first_ms` to `latest_ms`, and how long a column of the heat map is."""
    span = latest_ms - first_ms
    step = next((step for step in _STEPS_MS if span <= step * _MAX_WINDOWS), _STEPS_MS[-1])
    cell = next((cell for cell in _CELLS_MS if cell >= step and span <= cell * _MAX_CELLS), _CELLS_MS[-1])
    start = first_ms - first_ms % step
    return TimeWindows(start, step, (latest_ms - start) // step + 1, zone), cell


def _gather_topics(
    rows: Sequence[_Row], every_row: Sequence[_Row], times: TimeWindows, groups: Sequence[UsageGroup]
) -> list[TopicTraffic]:
    """`rows`: of the topics by name; `every_row`: of all topics."""
    names = ("offered_bytes", "accepted_bytes", "rejected_bytes")
    found = _window_series(rows, times, ("topic",), names)
    rest = _window_series(every_row, times, (), names).get((), [[0] * times.windows for _ in names])
    for lines in found.values():
        rest = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(rest, lines, strict=True)]
    return [TopicTraffic(group, *(found[group.names] if group.names else rest)) for group in groups]


def _gather_reasons(rows: Sequence[_Row], times: TimeWindows) -> list[ReasonTraffic]:
    found: dict[tuple[str, str], list[list[int]]] = {}
    for outcome in {row["outcome"] for row in rows}:
        names = (*(columns.sum_column(outcome, measure) for measure in usage.MEASURES), columns.REPEATS)
        of_outcome = [row for row in rows if row["outcome"] == outcome]
        found |= _window_series(of_outcome, times, ("outcome", "reason"), names)
    reasons = [
        ReasonTraffic(outcome, reason, sum(size), sum(messages), sum(requests), sum(again), size)
        for (outcome, reason), (size, messages, requests, again) in found.items()
    ]
    return sorted(reasons, key=lambda each: (_OUTCOMES.index(each.outcome), -each.bytes, each.reason))


def _window_series(
    rows: Sequence[_Row], times: TimeWindows, keys: Sequence[str], names: Sequence[str]
) -> dict[tuple[Any, ...], list[list[int]]]:
    """These sums as amounts per window, 0 where there is no row."""
    found: dict[tuple[Any, ...], list[list[int]]] = {}
    for row in rows:
        lines = found.setdefault(tuple(row[key] for key in keys), [[0] * times.windows for _ in names])
        for line, name in zip(lines, names, strict=True):
            line[(row[columns.WINDOW_COLUMN] - times.start_ms) // times.step_ms] += row[name]
    return found


def _make_groups(ranked: LargestGroups, question: AuditQuery) -> list[UsageGroup]:
    return [
        UsageGroup(
            tuple(row[name] for name in question.by),
            {name: value for name, value in row.items() if name not in question.by},
        )
        for row in ranked.rows
    ]


def _with_others(ranked: LargestGroups, question: AuditQuery) -> list[UsageGroup]:
    """The groups, and the sum of all others."""
    groups = _make_groups(ranked, question)
    others = ranked.groups - len(groups)
    rest = {name: amount - sum(group.sums[name] for group in groups) for name, amount in ranked.totals.items()}
    return [*groups, UsageGroup((), rest, others)] if others else groups


def _lowest_factors(spans: Sequence[IntervalSpan], times: TimeWindows) -> list[float | None]:
    """The lowest storage factor that any worker enforced in each window, where it is known."""
    found: list[float | None] = [None] * times.windows
    for span in spans:
        if span.factor_ppm is not None:
            found[(span.window_ms - times.start_ms) // times.step_ms] = span.factor_ppm / usage.PPM
    return found
