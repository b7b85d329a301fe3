# The report's contents, asked of the records: page.Facts. Spark sums up; here come only as many rows as the page shows,
# however many topics and clients there are. Knows neither argv nor how it is shown.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import schema
from gateway.audit.batch import job, transforms
from gateway.audit.batch.job import AuditQuery, AuditRecords
from gateway.audit.report.breakdowns import gather_breakdowns
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


def gather_facts(
    records: AuditRecords,
    from_ms: int | None,
    to_ms: int | None,
    topics: int,
    clients: int,
    tell: Callable[[str], None] = job.ignore_progress,
) -> ReportFacts:
    """The facts of the intervals that start in [from_ms, to_ms): `topics` and `clients` of them by name. With `from_ms`
    they are compared with as long a time before, as far as `records` has it.
    """
    question = AuditQuery((), None, from_ms, to_ms)
    tell(f"summing up {records.record_count:,} records")
    intervals = transforms.filter_by_start(records.intervals.where(F.col("kind") == usage.INTERVAL), from_ms, to_ms)
    bounds = intervals.agg(F.min("start_ms").alias("first"), F.max("start_ms"), F.max("end_ms")).collect()[0]
    first, latest, last = bounds if bounds["first"] is not None else [from_ms or to_ms or 0] * 3
    times, cell_ms = choose_windows(first, latest)
    rows = records.select_rows(from_ms, to_ms, times.step_ms)
    end = last if to_ms is None else to_ms
    before = None if from_ms is None else AuditQuery((), None, 2 * from_ms - end, from_ms)
    cells = transforms.condense_rows(rows, times.step_ms, "topic", *CLIENT_COLUMNS).persist()
    try:
        totals = _collect_sums(transforms.sum_usage_rows(cells))[0]
        named = _largest_groups(cells, ("topic",), F.col("offered_bytes"), topics, totals)
        tell("summing up topics, reasons and clients")
        trust = job.find_gaps(records, question, tell)
        return ReportFacts(
            sources=records.sources,
            first_ms=first,
            last_ms=last,
            times=times,
            cell_ms=cell_ms,
            totals=totals,
            topics=_gather_topics(cells, times, named),
            clients=_largest_groups(cells, CLIENT_COLUMNS, F.col("offered_bytes"), clients, totals),
            losers=_largest_groups(cells, CLIENT_COLUMNS, transforms.finally_dropped_column(torn=False), clients),
            reasons=_gather_reasons(cells, times),
            factor=_lowest_factors(intervals, times),
            integrity=trust,
            breakdowns=gather_breakdowns(records.rows, first, latest + 1, before, trust.sees_repeats),
        )
    finally:
        cells.unpersist()


def choose_windows(first_ms: int, latest_ms: int) -> tuple[TimeWindows, int]:
    """Windows for intervals that start from `first_ms` to `latest_ms`, and how long a column of the heat map is."""
    span = latest_ms - first_ms
    step = next((step for step in _STEPS_MS if span <= step * _MAX_WINDOWS), _STEPS_MS[-1])
    cell = next((cell for cell in _CELLS_MS if cell >= step and span <= cell * _MAX_CELLS), _CELLS_MS[-1])
    start = first_ms - first_ms % step
    return TimeWindows(start, step, (latest_ms - start) // step + 1), cell


def _gather_topics(cells: DataFrame, times: TimeWindows, groups: Sequence[UsageGroup]) -> list[TopicTraffic]:
    names = [group.names[0] for group in groups if group.names]
    shown = cells.withColumn("topic", F.when(F.col("topic").isin(names), F.col("topic")))
    sums = transforms.sum_usage_rows(shown, ("topic",), times.step_ms)
    columns = ("offered_bytes", "accepted_bytes", "rejected_bytes")
    found = _window_series(sums.select(schema.WINDOW_COLUMN, "topic", *columns).collect(), times, ("topic",), columns)
    nothing = [[0] * times.windows for _ in columns]
    return [TopicTraffic(group, *found.get(group.names or (None,), nothing)) for group in groups]


def _gather_reasons(cells: DataFrame, times: TimeWindows) -> list[ReasonTraffic]:
    sums = cells.groupBy(F.col("start_ms").alias(schema.WINDOW_COLUMN), "outcome", "reason").agg(
        *(F.sum(name).alias(name) for name in usage.MEASURES), F.sum(F.coalesce("repeats", F.lit(0))).alias("again")
    )
    found = _window_series(sums.collect(), times, ("outcome", "reason"), (*usage.MEASURES, "again"))
    reasons = [
        ReasonTraffic(outcome, reason, sum(size), sum(messages), sum(requests), sum(again), size)
        for (outcome, reason), (size, messages, requests, again) in found.items()
    ]
    return sorted(reasons, key=lambda each: (_OUTCOMES.index(each.outcome), -each.bytes, each.reason))


def _window_series(
    rows: Sequence[Any], times: TimeWindows, keys: Sequence[str], columns: Sequence[str]
) -> dict[tuple[Any, ...], list[list[int]]]:
    """The columns as amounts per window, 0 where there is no row."""
    found: dict[tuple[Any, ...], list[list[int]]] = {}
    for row in rows:
        lines = found.setdefault(tuple(row[key] for key in keys), [[0] * times.windows for _ in columns])
        for line, column in zip(lines, columns, strict=True):
            line[(row[schema.WINDOW_COLUMN] - times.start_ms) // times.step_ms] += row[column]
    return found


def _largest_groups(
    cells: DataFrame, by: Sequence[str], value: Column, limit: int, totals: Mapping[str, int] | None = None
) -> list[UsageGroup]:
    """The groups with most of `value`, and where the totals are given, the sum of all the others."""
    sums = transforms.sum_usage_rows(cells, by).withColumn("_value", value)
    some = sums if totals is not None else sums.where(F.col("_value") > 0)
    rows = _collect_sums(some.orderBy(F.col("_value").desc(), *by).limit(limit).drop("_value"))
    groups = [UsageGroup(tuple(row.pop(name) for name in by), row) for row in rows]
    if totals is None or len(groups) < limit:
        return groups
    others = cells.select(*by).distinct().count() - len(groups)
    if not others:
        return groups
    rest = {name: amount - sum(group.sums[name] for group in groups) for name, amount in totals.items()}
    return [*groups, UsageGroup((), rest, others)]


def _collect_sums(frame: DataFrame) -> list[dict[str, Any]]:
    # The sum over nothing is 0, not null.
    return [{name: 0 if value is None else value for name, value in row.asDict().items()} for row in frame.collect()]


def _lowest_factors(intervals: DataFrame, times: TimeWindows) -> list[float | None]:
    """The lowest storage factor that any worker enforced in each window, where it is known."""
    start = F.col("start_ms") - F.col("start_ms") % times.step_ms
    lowest = intervals.groupBy(start.alias("start")).agg(F.min(usage.STORAGE_FACTOR).alias("ppm"))
    found: list[float | None] = [None] * times.windows
    for row in lowest.where(F.col("ppm").isNotNull()).collect():
        found[(row["start"] - times.start_ms) // times.step_ms] = row["ppm"] / usage.PPM
    return found
