# What the log says of traffic: a line for what was not admitted or not accepted within an interval, made for people. So
# it is bounded by kind and time, not by what clients do: of each kind (an outcome with its reason) so many lines a
# minute, then their number. Knows no worker and no clock; `now` is any monotonic time in seconds.

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.channel import Interval, Row
from policies.text import one_line
from policies.usage import NOTES

MAX_LINES: Final = 50  # of one kind …
WINDOW_S: Final = 60.0  # … within so long
SAY_AGAIN_S: Final = 60.0
MAX_SAID: Final = 10_000
LOGGED: Final = frozenset({"rejected", "errored", "dropped", *NOTES})
_NAMED: Final = 3  # clients in a line

_Key = tuple[int, str, str, str]  # broker, topic, outcome, reason


@dataclass(slots=True)
class _Window:
    since: float
    lines: int = 0
    left_out: int = 0
    requests: int = 0  # of what was left out


class TrafficLines:
    """Of all workers together."""

    def __init__(self) -> None:
        self._said: dict[_Key, float] = {}  # when something that goes on all the time was last told
        self._windows: dict[tuple[str, str], _Window] = {}  # by outcome and reason: Kafka's names and policies'

    def of(self, interval: Interval, now: float) -> list[str]:
        """A line for each (broker, topic, outcome, reason), as far as its kind still has any; and what was left out of
        the minute before.
        """
        found: dict[_Key, list[Row]] = defaultdict(list)
        for row in interval.rows:
            if row.outcome in LOGGED:
                found[row.broker, row.topic, row.outcome, row.reason].append(row)
        seconds = (interval.end_ms - interval.start_ms) / 1000
        lines = list(self._end_windows(now))
        for key in sorted(found):
            if self._is_news(key, now) and self._may_say(key, found[key], now):
                lines.append(_line(key, found[key], seconds))
        return lines

    def _is_news(self, key: _Key, now: float) -> bool:
        """What policies delay, they delay all the time: that is told when it begins, and again once in a while."""
        if key[2] not in NOTES:
            return True
        if now - self._said.get(key, -math.inf) < SAY_AGAIN_S:
            return False
        if len(self._said) >= MAX_SAID:
            self._said.clear()
        self._said[key] = now
        return True

    def _may_say(self, key: _Key, rows: list[Row], now: float) -> bool:
        window = self._windows.setdefault(key[2:], _Window(now))
        if window.lines < MAX_LINES:
            window.lines += 1
            return True
        window.left_out += 1
        window.requests += sum(row.requests for row in rows)
        return False

    def _end_windows(self, now: float) -> Iterator[str]:
        for kind, window in sorted(self._windows.items()):
            if now - window.since >= WINDOW_S:
                del self._windows[kind]
                if window.left_out:
                    yield (
                        f"{_spoken(kind[0])}: {kind[1]}: {window.left_out:,} more lines like these, about"
                        f" {window.requests:,} requests, were left out within {now - window.since:.0f} s"
                    )


def _spoken(outcome: str) -> str:
    return outcome.replace("_", " ")


def _line(key: _Key, rows: list[Row], seconds: float) -> str:
    broker, topic, outcome, reason = key
    clients = sorted({f"{one_line(row.principal)} {one_line(row.client_id)!r}" for row in rows})
    named = ", ".join(clients[:_NAMED]) + (f" and {len(clients) - _NAMED} more" if len(clients) > _NAMED else "")
    size, messages, requests = (sum(getattr(row, name) for row in rows) for name in ("bytes", "messages", "requests"))
    return (
        f"{_spoken(outcome)}: topic {one_line(topic)} on broker {broker}: {reason}: {size:,} bytes,"
        f" {messages:,} messages in {requests:,} requests within {seconds:.1f} s, from {named}"
    )
