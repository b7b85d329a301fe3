# Which table of sums answers which part of a question: days in the middle, hours and minutes at its edges, and what is
# left for the records themselves. Pure arithmetic of Unix milliseconds; knows no table's place.

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gateway.audit.columns import WINDOW_LENGTHS

TimeRange = tuple[int | None, int | None]  # from, to (not included); None is no bound


class TimeParts(NamedTuple):
    """The parts of a question's time: `tables` for each table of sums, `rest` for the records."""

    tables: dict[str, list[TimeRange]]
    rest: list[TimeRange]


def split_time(bounds: TimeRange, window_ms: int | None, tables: Iterable[str]) -> TimeParts:
    """The parts that `tables` answer exactly, the longest windows first; they cover the bounds without an overlap."""
    found: dict[str, list[TimeRange]] = {}
    rest = [bounds]
    for table, length in WINDOW_LENGTHS.items():
        if table in tables and (window_ms is None or window_ms % length == 0):
            split = [_cut_whole_windows(part, length) for part in rest]
            found[table] = [whole for whole, _ in split if whole is not None]
            rest = [edge for _, edges in split for edge in edges]
    return TimeParts({table: parts for table, parts in found.items() if parts}, rest)


def _cut_whole_windows(part: TimeRange, length: int) -> tuple[TimeRange | None, list[TimeRange]]:
    """The whole windows of a part, and what is left before and behind them."""
    begin, end = part
    first = None if begin is None else -(-begin // length) * length
    last = None if end is None else end // length * length
    if first is not None and last is not None and first >= last:
        return None, [part]
    edges = [(a, b) for a, b in ((begin, first), (last, end)) if a != b]
    return (first, last), edges
