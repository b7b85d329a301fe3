# Refusals as episodes: one begins with the first refused bytes of a principal, client and topic, and ends when all that
# was refused has been sent again and taken, or when nothing more is refused or sent again for as long as a gateway
# recognises repeats. Pure: sums of short windows in, in the order of time; episodes out.
#
# Times are as exact as the windows are long. A refused batch that is sent again is found by the gateway itself (the
# sums `repeats`); where that isn't known, what was lost in the end is an upper bound.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from gateway.audit import columns
from gateway.audit.answers.windows import time_text
from gateway.audit.batch.query import REPEAT_MS

WHOSE: Final = ("principal", "client_id", "topic")
BY: Final = (*WHOSE, "reason")
ACCEPTED, DROPPED, OPEN = "accepted", "dropped", "open"
KINDS: Final[dict[str, type]] = {
    "start_ms": int, "start": str, "end_ms": int, "end": str, **dict.fromkeys(WHOSE, str), "reasons": str,
    "outcome": str, "rejected_bytes": int, "repeats_bytes": int, "finally_dropped_bytes": int,
    "finally_dropped_least_bytes": int, "until_accepted_ms": int,
}  # fmt: skip
_REFUSED_SUMS: Final = ("rejected_bytes", "dropped_bytes", "discarded_bytes")
# Of a row, what has to do with episodes: one without any of it may be left out.
NOTED_SUMS: Final = (*_REFUSED_SUMS, columns.REPEATS, columns.REPEATS_UNKNOWN, columns.REJECTED_AGAIN)


@dataclass(slots=True)
class _Episode:
    start_ms: int
    end_ms: int  # of the last window with a refusal or a repeat
    rejected: int = 0
    repeats: int = 0
    dropped: int = 0  # no client sends these again
    discarded: int = 0  # whose client had gone, and may have come back with them
    unknown: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Refused bytes that have not been sent again."""
        return max(0, self.rejected - self.repeats)

    @property
    def outcome(self) -> str:
        """The outcome of one that is over."""
        return DROPPED if self.left or self.dropped or self.discarded else ACCEPTED

    def add_row(self, row: Mapping[str, Any]) -> None:
        self.rejected += row["rejected_bytes"]
        self.repeats += row[columns.REPEATS]
        self.dropped += row["dropped_bytes"]
        self.discarded += row["discarded_bytes"]
        self.unknown += row[columns.REPEATS_UNKNOWN]
        refused = row["rejected_bytes"] + row["dropped_bytes"]
        if refused:
            self.reasons[row["reason"]] = self.reasons.get(row["reason"], 0) + refused


def find_episodes(
    rows: Iterable[Mapping[str, Any]],
    window_ms: int,
    end_ms: int | None = None,
    sees_repeats: bool = True,
    zone: str = "UTC",
) -> Iterator[dict[str, Any]]:
    """The episodes (KINDS), in the order in which they end, of sums by BY and windows of `window_ms`, in their order;
    `end_ms`: when the records end, if not with the last row; `sees_repeats`: LogIntegrity's;
    `zone`: in which times are told.

    `outcome`: ACCEPTED (all was sent again and taken), DROPPED (some never came again, or can't), OPEN (the records end
    too early to tell). `until_accepted_ms`: from the first refusal to the end of the window in which the last bytes
    got in; None unless all did. `reasons`: most bytes first.
    """
    running: dict[tuple[str, ...], _Episode] = {}
    now, last = None, 0
    # What was sent again has another reason than its refusal, and may be in the same window: all of a client's rows
    # there are looked at together.
    for (start, *key), found in groupby(rows, itemgetter(columns.WINDOW_COLUMN, *WHOSE)):
        if start != now:
            yield from (_describe(*ended, sees_repeats, zone) for ended in _end_episodes(running, start, window_ms))
            now, last = start, start + window_ms
        of_window, whose = [*found], tuple(key)
        episode = running.get(whose)
        if episode is None:
            if not any(row[name] for row in of_window for name in _REFUSED_SUMS):
                continue
            episode = running[whose] = _Episode(start, last)
        for row in of_window:
            episode.add_row(row)
            if any(row[name] for name in NOTED_SUMS if name != columns.REPEATS_UNKNOWN):
                episode.end_ms = last
    end = last if end_ms is None else max(last, end_ms)
    yield from (_describe(*ended, sees_repeats, zone) for ended in _end_episodes(running, end, window_ms))
    for key, episode in running.items():
        yield _describe(key, episode, OPEN if episode.left else episode.outcome, sees_repeats, zone)


def _end_episodes(
    running: dict[tuple[str, ...], _Episode], now: int, window_ms: int
) -> Iterator[tuple[tuple[str, ...], _Episode, str]]:
    """Those that are over when a window begins."""
    for key, episode in [*running.items()]:
        quiet = now - episode.end_ms
        # All may have been sent again and refused within the window: only a whole one without a refusal is an end.
        if quiet >= REPEAT_MS or (quiet >= window_ms and not episode.left):
            del running[key]
            yield key, episode, episode.outcome


def _describe(key: tuple[str, ...], episode: _Episode, outcome: str, sees_repeats: bool, zone: str) -> dict[str, Any]:
    surely = max(0, episode.left - episode.unknown) if sees_repeats else 0
    return {
        "start_ms": episode.start_ms,
        "start": time_text(episode.start_ms, zone),
        "end_ms": episode.end_ms,
        "end": time_text(episode.end_ms, zone),
        **dict(zip(WHOSE, key, strict=True)),
        "reasons": ", ".join(sorted(episode.reasons, key=lambda name: (-episode.reasons[name], name))),
        "outcome": outcome,
        "rejected_bytes": episode.rejected,
        "repeats_bytes": episode.repeats,
        "finally_dropped_bytes": episode.left + episode.dropped + episode.discarded,
        "finally_dropped_least_bytes": surely + episode.dropped,
        "until_accepted_ms": episode.end_ms - episode.start_ms if outcome == ACCEPTED else None,
    }
