# The log's lines about traffic: a line for what was not admitted or not accepted within an interval, made for people.
# So it is bounded by kind and time, not by what clients do: of each kind (an outcome with its reason) so many lines a
# minute, then their number. Knows no worker and no clock; `now` is any monotonic time in seconds.

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Final, NamedTuple

from gateway.channel import Interval, Row
from gateway.log.log_bound import LeftOut, LogBound
from policies.text import one_line
from policies.usage import NOTES

MAX_LINES: Final = 50  # of one kind …
WINDOW_S: Final = 60.0  # … within so long
SAY_AGAIN_S: Final = 60.0
MAX_SAID: Final = 10_000
LOGGED: Final = frozenset({"rejected", "errored", "dropped", *NOTES})
_NAMED: Final = 3  # clients in a line

_Key = tuple[int, str, str, str]  # broker, topic, outcome, reason


class TrafficLine(NamedTuple):
    """`fields`: those of gateway.log.logs.FIELDS that the text is about."""

    text: str
    fields: dict[str, Any]


class TrafficLines:
    """Of all workers together."""

    def __init__(self) -> None:
        self._said: dict[_Key, float] = {}  # when something that goes on all the time was last told
        # By outcome and reason: Kafka's names and policies'.
        self._bound: LogBound[tuple[str, str]] = LogBound(MAX_LINES, WINDOW_S)

    def of(self, interval: Interval, now: float) -> list[TrafficLine]:
        """A line for each (broker, topic, outcome, reason), as far as its kind still has any; and the lines left out of
        the minute before.
        """
        found: dict[_Key, list[Row]] = defaultdict(list)
        for row in interval.rows:
            if row.outcome in LOGGED:
                found[row.broker, row.topic, row.outcome, row.reason].append(row)
        seconds = (interval.end_ms - interval.start_ms) / 1000
        lines = [_left_out(each) for each in sorted(self._bound.ended(now))]
        for key in sorted(found):
            requests = sum(row.requests for row in found[key])
            if self._is_news(key, now) and self._bound.may_say(key[2:], now, amount=requests):
                lines.append(_line(key, found[key], seconds))
        return lines

    def _is_news(self, key: _Key, now: float) -> bool:
        """Policies delay continually: that is told when it begins, and again once in a while."""
        if key[2] not in NOTES:
            return True
        if now - self._said.get(key, -math.inf) < SAY_AGAIN_S:
            return False
        if len(self._said) >= MAX_SAID:
            self._said.clear()
        self._said[key] = now
        return True


def _spoken(outcome: str) -> str:
    return outcome.replace("_", " ")


def _left_out(left_out: LeftOut[tuple[str, str]]) -> TrafficLine:
    outcome, reason = left_out.kind
    text = (
        f"{_spoken(outcome)}: {reason}: {left_out.lines:,} more lines like these, about"
        f" {left_out.amount:,} requests, were left out {left_out.within}"
    )
    fields = {"kind": "traffic", "outcome": outcome, "reason": reason, "requests": left_out.amount}
    return TrafficLine(text, {**fields, "lines_left_out": left_out.lines})


def _line(key: _Key, rows: list[Row], seconds: float) -> TrafficLine:
    broker, topic, outcome, reason = key
    clients = sorted({(one_line(row.principal), one_line(row.client_id)) for row in rows})
    spoken = [f"{principal} {client_id!r}" for principal, client_id in clients[:_NAMED]]
    named = ", ".join(spoken) + (f" and {len(clients) - _NAMED} more" if len(clients) > _NAMED else "")
    size, messages, requests = (sum(getattr(row, name) for row in rows) for name in ("bytes", "messages", "requests"))
    topic = one_line(topic)
    text = (
        f"{_spoken(outcome)}: topic {topic} on broker {broker}: {reason}: {size:,} bytes,"
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
