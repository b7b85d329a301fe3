# Where sums are going: a straight line through days, weeks or months, with a level for each weekday where that serves,
# and how wrong the same method was of late. Pure: sums in, past and forecast out.
#
# The last quarter of what was seen is held out: each method is fitted to the windows before and judged by its mean
# absolute error on these. The best one, of equal ones the simplest, is then fitted to everything.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, linear_regression
from typing import Any, Final, NamedTuple

from gateway.audit import columns
from gateway.audit.answers.windows import CalendarWindows, time_text
from gateway.audit.batch.query import AuditQuery

SEEN, FORECAST = "seen", "forecast"
MIN_WINDOWS: Final = 8  # whole ones, below which nothing is foretold
_DAY_MS: Final = 86_400_000
# Lengths that lead from the start of any window into the next one.
_STRIDES_MS: Final = {"day": 3 * _DAY_MS // 2, "week": 21 * _DAY_MS // 2, "month": 45 * _DAY_MS}
UNITS: Final = tuple(_STRIDES_MS)
_WEEK: Final = 7
_HELD_OUT: Final = 4  # one window of so many

_Forecast = Callable[[int], float]  # of a window, by its number


class TrendMethod(NamedTuple):
    """`fit`: what the amounts of windows 0, 1 … foretell; `least`: the windows that it needs."""

    name: str
    fit: Callable[[Sequence[float]], _Forecast]
    least: int


class ChosenForecast(NamedTuple):
    """`error`: the method's mean absolute error on what was held out."""

    method: str
    error: float
    amounts: Sequence[float]


def _fit_mean(amounts: Sequence[float]) -> _Forecast:
    mean = fmean(amounts)
    return lambda _: mean


def _fit_line(amounts: Sequence[float]) -> _Forecast:
    slope, start = linear_regression(range(len(amounts)), amounts)
    return lambda number: start + slope * number


def _fit_weekdays(amounts: Sequence[float]) -> _Forecast:
    line = _fit_line(amounts)
    levels = [
        fmean(amounts[number] - line(number) for number in range(day, len(amounts), _WEEK)) for day in range(_WEEK)
    ]
    return lambda number: line(number) + levels[number % _WEEK]


_METHODS: Final = (TrendMethod("mean", _fit_mean, 1), TrendMethod("line", _fit_line, 2))
_WEEKDAYS: Final = TrendMethod("line and weekdays", _fit_weekdays, 2 * _WEEK)


def trend_kinds(by: tuple[str, ...]) -> dict[str, type]:
    """The columns of `tell_trend`."""
    names = {columns.WINDOW_COLUMN: int, "window_start": str, **columns.dimension_kinds((*by, "kind", "method"))}
    return names | {"bytes": int, "error_bytes": int}


def tell_trend(rows: Iterable[Mapping[str, Any]], question: AuditQuery, what: str, ahead: int) -> list[dict[str, Any]]:
    """For each group, the bytes of `what` (columns.SUMS) in each whole window, and in `ahead` windows to come.

    `method` and `error_bytes` (what `ChosenForecast` has) are None of what was seen. With fewer than MIN_WINDOWS whole
    windows there is no forecast.
    """
    column, calendar = columns.sum_column(what, "bytes"), question.calendar
    assert calendar is not None
    groups: dict[tuple[Any, ...], dict[int, int]] = {}
    for row in rows:
        amounts = groups.setdefault(tuple(row[name] for name in question.by), {})
        amounts[row[columns.WINDOW_COLUMN]] = row[column]
    starts = _whole_windows({start for amounts in groups.values() for start in amounts}, question, calendar)
    coming = _next_windows(starts[-1], calendar, ahead) if starts else []
    found = []
    for group, amounts in sorted(groups.items()):
        series = [amounts.get(start, 0) for start in starts]
        chosen = _choose_forecast(series, calendar.unit == "day", ahead)
        tails: list[tuple[Any, ...]] = [(SEEN, None, amount, None) for amount in series]
        if chosen is not None:
            tails += [(FORECAST, chosen.method, max(0, round(each)), round(chosen.error)) for each in chosen.amounts]
        for start, tail in zip([*starts, *coming], tails, strict=False):
            head = (start, time_text(start, calendar.zone), *group)
            found.append(dict(zip(trend_kinds(question.by), (*head, *tail), strict=True)))
    return found


def _next_windows(start: int, calendar: CalendarWindows, count: int) -> list[int]:
    """The starts of the windows behind one."""
    found = []
    for _ in range(count):
        start = calendar.find_start(start + _STRIDES_MS[calendar.unit])
        found.append(start)
    return found


def _whole_windows(seen: set[int], question: AuditQuery, calendar: CalendarWindows) -> list[int]:
    """The starts of those that neither bounds nor records cut. Up to the upper bound there was no traffic where there
    is no record. Before the first record, though, there may have been no log: that window is whole only where the lower
    bound is its start.
    """
    if not seen:
        return []
    starts, end_ms = [min(seen)], question.to_ms
    last = max(seen) if end_ms is None else max(*seen, calendar.find_start(end_ms - 1))
    while starts[-1] < last:
        starts += _next_windows(starts[-1], calendar, 1)
    first = 0 if question.from_ms == starts[0] else 1
    is_last_whole = end_ms is not None and end_ms >= _next_windows(last, calendar, 1)[0]
    return starts[first:] if is_last_whole else starts[first:-1]


def _choose_forecast(series: Sequence[int], are_days: bool, ahead: int) -> ChosenForecast | None:
    if len(series) < MIN_WINDOWS:
        return None
    known = len(series) - len(series) // _HELD_OUT
    methods = [each for each in (*_METHODS, *([_WEEKDAYS] if are_days else [])) if each.least <= known]

    def error(method: TrendMethod) -> float:
        foretell = method.fit(series[:known])
        return fmean(abs(max(0.0, foretell(number)) - series[number]) for number in range(known, len(series)))

    best = min(methods, key=error)
    foretell = best.fit(series)
    return ChosenForecast(best.name, error(best), [foretell(len(series) + number) for number in range(ahead)])
