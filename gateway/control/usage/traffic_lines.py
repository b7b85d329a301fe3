# The log's lines about traffic: a line for what was not admitted or not accepted within an interval, made for people.
# So it is bounded by kind and time, not by what clients do: of each kind (an outcome with its reason) this many lines a
# minute, then their number. Knows no worker and no clock; `now` is any monotonic time in seconds.

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Final, NamedTuple

from gateway.channel import UsageInterval, UsageRow
from gateway.log.log_bound import LogRateLimiter, SuppressedLines
from policies.text import one_line
from policies.usage import NOTES

MAX_LINES: Final = 50  # of one kind …
WINDOW_S: Final = 60.0  # … within so long
LOG_AGAIN_S: Final = 60.0
MAX_LOGGED: Final = 10_000
LOGGED: Final = frozenset({"rejected", "errored", "dropped", *NOTES})
_NAMED: Final = 3  # clients in a line

_Key = tuple[int, str, str, str]  # broker, topic, outcome, reason


class TrafficLine(NamedTuple):
    """`fields`: those of gateway.log.logs.FIELDS that belong to the text."""

    text: str
    fields: dict[str, Any]


class TrafficLines:
    """Log lines about the traffic of all workers together."""

    def __init__(self) -> None:
        self._logged_at: dict[_Key, float] = {}  # when something that goes on all the time was last logged
        # By outcome and reason: Kafka's names and policies'.
        self._log_limiter: LogRateLimiter[tuple[str, str]] = LogRateLimiter(MAX_LINES, WINDOW_S)

    def make_lines(self, interval: UsageInterval, now: float) -> list[TrafficLine]:
        """A line for each (broker, topic, outcome, reason), as far as its kind still has any; and the lines left out of
        the minute before.
        """
        found: dict[_Key, list[UsageRow]] = defaultdict(list)
        for row in interval.rows:
            if row.outcome in LOGGED:
                found[row.broker, row.topic, row.outcome, row.reason].append(row)
        seconds = (interval.end_ms - interval.start_ms) / 1000
        lines = [_left_out_line(each) for each in sorted(self._log_limiter.end_periods(now))]
        for key in sorted(found):
            requests = sum(row.requests for row in found[key])
            if self._is_news(key, now) and self._log_limiter.allow_line(key[2:], now, amount=requests):
                lines.append(_traffic_line(key, found[key], seconds))
        return lines

    def _is_news(self, key: _Key, now: float) -> bool:
        """Policies delay continually: that is logged when it begins, and again once in a while."""
        if key[2] not in NOTES:
            return True
        if now - self._logged_at.get(key, -math.inf) < LOG_AGAIN_S:
            return False
        if len(self._logged_at) >= MAX_LOGGED:
            self._logged_at.clear()
        self._logged_at[key] = now
        return True


def _outcome_text(outcome: str) -> str:
    return outcome.replace("_", " ")


def _left_out_line(left_out: SuppressedLines[tuple[str, str]]) -> TrafficLine:
    outcome, reason = left_out.kind
    text = (
        f"{_outcome_text(outcome)}: {reason}: {left_out.lines:,} more lines like these, about"
        f" {left_out.amount:,} requests, were left out {left_out.period_text}"
    )
    fields = {"kind": "traffic", "outcome": outcome, "reason": reason, "requests": left_out.amount}
    return TrafficLine(text, {**fields, "lines_left_out": left_out.lines})


def _traffic_line(key: _Key, rows: list[UsageRow], seconds: float) -> TrafficLine:
    broker, topic, outcome, reason = key
    clients = sorted({(one_line(row.principal), one_line(row.client_id)) for row in rows})
    spoken = [f"{principal} {client_id!r}" for principal, client_id in clients[:_NAMED]]
    named = ", ".join(spoken) + (f" and {len(clients) - _NAMED} more" if len(clients) > _NAMED else "")
    size, messages, requests = (sum(getattr(row, name) for row in rows) for name in ("bytes", "messages", "requests"))
    topic = one_line(topic)
    text = (
        f"{_outcome_text(outcome)}: topic {topic} on broker {broker}: {reason}: {size:,} bytes,"
        f" {messages:,} messages in {requests:,} requests within {seconds:.1f} s, from {named}"
    )
    fields: dict[str, Any] = {"kind": "traffic", "outcome": outcome, "reason": reason, "topic": topic, "broker": broker}
    fields |= {"bytes": size, "messages": messages, "requests": requests, "seconds": seconds}
    if len(clients) == 1:
        fields["principal"], fields["client_id"] = clients[0]
    else:
        fields["clients"] = [
            {"principal": principal, "client_id": client_id} for principal, client_id in clients[:_NAMED]
        ]
    return TrafficLine(text, fields)
