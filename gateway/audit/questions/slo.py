# Service levels: the share of time in which a tenant was within its limits, and how long its requests waited, as far as
# the usage log tells. Pure: sums of short steps in, in the order of time; a row for each tenant and period out.
#
# The log has how long requests waited in all and how many did, not how long each did. So there is no exact percentile
# of waits; what follows from sums: no more than 1 % of requests can have waited longer than the whole wait divided by
# 1 % of the requests.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from gateway.audit import columns
from gateway.audit.answers.windows import find_window, time_text
from gateway.audit.batch.query import AuditQuery

_PERCENT: Final = 100
# What is looked at in a row.
NEEDED_SUMS: Final = (
    *(f"{name}_bytes" for name in ("offered", "accepted", "duplicate", "unacknowledged", "rejected", "dropped")),
    *("offered_requests", "delayed_requests", columns.DELAY),
)


@dataclass(slots=True)
class _Level:
    steps: int = 0
    within: int = 0
    without_rejection: int = 0
    offered: int = 0
    accepted: int = 0
    requests: int = 0
    delayed: int = 0
    waited_ms: int = 0
    longest_mean_ms: float = 0.0

    def add_step(self, row: Mapping[str, Any]) -> None:
        delayed, requests = row["delayed_requests"], row["offered_requests"]
        is_refused = bool(row["rejected_bytes"] or row["dropped_bytes"])
        self.steps += 1
        self.within += not (is_refused or delayed)
        self.without_rejection += not is_refused
        self.offered += row["offered_bytes"]
        self.accepted += row["accepted_bytes"] + row["duplicate_bytes"] + row["unacknowledged_bytes"]
        self.requests += requests
        self.delayed += delayed
        self.waited_ms += row[columns.DELAY]
        if delayed:
            self.longest_mean_ms = max(self.longest_mean_ms, row[columns.DELAY] / delayed)


def slo_kinds(question: AuditQuery) -> dict[str, type]:
    """The columns of `measure_levels`."""
    window: dict[str, type] = {columns.WINDOW_COLUMN: int, "window_start": str} if question.window_ms else {}
    return {
        **window, **columns.dimension_kinds(question.by), "steps": int, "within_limits_share": float,
        "without_rejection_share": float, "accepted_share": float, "target_met": bool, "requests": int,
        "delayed_requests": int, "mean_wait_ms": float, "longest_mean_wait_ms": float, "p99_wait_at_most_ms": float,
    }  # fmt: skip


def measure_levels(
    rows: Iterable[Mapping[str, Any]], question: AuditQuery, target: Fraction | None = None
) -> list[dict[str, Any]]:
    """A row for each window and group of the question, of rows with the same groups and shorter windows.

    `steps`: those with traffic; shares are of these, `within_limits_share` of those without a rejected, dropped or
    delayed byte; `accepted_share`: of bytes. `mean_wait_ms`: of a request that waited; `longest_mean_wait_ms`: the
    highest such mean of a step; `p99_wait_at_most_ms`: 99 % of all requests waited no longer, and probably much less.
    `target_met`: whether `within_limits_share` is at least `target` (0 to 1); None without one.
    """
    found: dict[tuple[Any, ...], _Level] = {}
    for row in rows:
        start = find_window(row[columns.WINDOW_COLUMN], question.window_ms, question.calendar)
        key = (start, *(row[name] for name in question.by))
        found.setdefault(key, _Level()).add_step(row)
    return [_describe(key, found[key], question, target) for key in sorted(found)]


def _describe(key: tuple[Any, ...], level: _Level, question: AuditQuery, target: Fraction | None) -> dict[str, Any]:
    window, *names = key
    window_fields = {columns.WINDOW_COLUMN: window, "window_start": time_text(window, question.zone)}
    return {
        **(window_fields if question.window_ms else {}),
        **dict(zip(question.by, names, strict=True)),
        "steps": level.steps,
        "within_limits_share": level.within / level.steps,
        "without_rejection_share": level.without_rejection / level.steps,
        "accepted_share": level.accepted / level.offered if level.offered else None,
        # Exactly: 99.9 / 100 is more than 0.999, which 999 of 1000 steps are.
        "target_met": None if target is None else Fraction(level.within, level.steps) >= target,
        "requests": level.requests,
        "delayed_requests": level.delayed,
        "mean_wait_ms": level.waited_ms / level.delayed if level.delayed else 0.0,
        "longest_mean_wait_ms": level.longest_mean_ms,
        "p99_wait_at_most_ms": level.waited_ms * _PERCENT / level.requests if level.requests else 0.0,
    }
