# When the ticks of a worker were, read out of its usage records. Thresholds that reject change their mind only at ticks
# (engine.py), every five seconds from a start that no record contains. But each rejection said how long to wait, and
# that is until a tick: time and wait of any rejection add up to one. A record has only the second in which it was, and
# a mean wait; many together leave a fraction of a second that suits all of them. And workers end a record's interval at
# each tick: where intervals follow a second's grid, that says the rest.
#
# Knows rejections as numbers: no record, no clock.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from policies.meters.meter import TICK_S
from policies.verdict import MAX_THROTTLE_MS

TICK_MS: Final = round(TICK_S * 1000)
SECOND_MS: Final = 1000
BIN_MS: Final = 10
MAX_WAIT_MS: Final = MAX_THROTTLE_MS - BIN_MS  # a longer mean wait was cut to the longest throttle time
_BINS: Final = TICK_MS // BIN_MS
BINS_A_SECOND: Final = SECOND_MS // BIN_MS
_NEARLY: Final = 0.95  # of the votes for the best: late ones vote at random
_ON_GRID: Final = 0.8  # of all intervals: the others are late ones of a busy worker
_GRID_BINS: Final = 4


def phase_vote(start_ms: int, end_ms: int, wait_ms: float) -> tuple[int, int]:
    """The vote of rejections within [start_ms, end_ms) with a throttle time of `wait_ms`: the first bin, and the number
    of bins.

    Of use where wait_ms is above 0 and below MAX_WAIT_MS.
    """
    return int((start_ms + wait_ms) % TICK_MS) // BIN_MS, vote_width(end_ms - start_ms)


def vote_width(span_ms: int) -> int:
    """The number of bins of votes of an interval of that length."""
    return min(_BINS, max(1, span_ms // BIN_MS))


class TickPhase(NamedTuple):
    """The times of ticks: `at` seconds behind a multiple of TICK_S of Unix time. `at_edges`: intervals end there."""

    at: float
    at_edges: bool = False


def find_phase(votes: Iterable[tuple[int, int, int]], edges: Mapping[int, int]) -> TickPhase | None:
    """The times of ticks; None where the votes don't show them.

    Args:
        votes: as `phase_vote` gives them, each with how many times it was given.
        edges: how many intervals began in which bin of their second, `start_ms % SECOND_MS // BIN_MS`.
    """
    found = _find_plateau(votes)
    if found is None:
        return None
    first, end = found
    middle = (first + end) / 2
    grid = _find_grid(edges)
    if grid is not None:  # the grid's line that is nearest to the middle
        middle = grid + round((middle - grid) / BINS_A_SECOND) * BINS_A_SECOND
    return TickPhase(middle * BIN_MS / 1000 % TICK_S, grid is not None)


def _find_plateau(votes: Iterable[tuple[int, int, int]]) -> tuple[int, int] | None:
    """Bins [first, end), possibly beyond either end of the circle, that suit nearly all; None where all do alike."""
    change = [0] * (_BINS + 1)
    for first, width, times in votes:
        end = first + width
        change[first] += times
        change[min(end, _BINS)] -= times
        if end > _BINS:
            change[0] += times
            change[end - _BINS] -= times
    counts, so_far = [], 0
    for each in change[:_BINS]:
        so_far += each
        counts.append(so_far)
    good = [count >= _NEARLY * max(counts) for count in counts]
    if all(good):
        return None
    at = counts.index(max(counts))
    first, end = at, at + 1
    while good[(first - 1) % _BINS]:
        first -= 1
    while good[end % _BINS]:
        end += 1
    return first, end


def _find_grid(edges: Mapping[int, int]) -> float | None:
    """The beginning of intervals, in bins of a second; None where they drift."""
    total = sum(edges.values())
    best = max(
        range(BINS_A_SECOND),
        key=lambda first: sum(edges.get((first + n) % BINS_A_SECOND, 0) for n in range(_GRID_BINS)),
    )
    counts = [edges.get((best + n) % BINS_A_SECOND, 0) for n in range(_GRID_BINS)]
    if not total or sum(counts) < _ON_GRID * total:
        return None
    return best + sum((n + 0.5) * count for n, count in enumerate(counts)) / sum(counts)
