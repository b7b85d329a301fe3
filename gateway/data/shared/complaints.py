# Log lines that strangers can cause: a few of a kind within a period, then the number of further ones. Knows no
# clock and no log: `now` is in seconds, and what is to be said goes to `log`.

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from gateway.log.log_bound import LogBound

PERIOD_S: Final = 10.0
BURST: Final = 50  # lines of one kind within a period; one is enough for what hits all clients (a broker is away)
Fields = Mapping[str, str | int]  # of gateway.log.logs.FIELDS
NO_FIELDS: Final[Fields] = {}


class Log(Protocol):
    """Called with a level ("info", "warning", "error"), one line, and the fields that it is about."""

    def __call__(self, level: str, text: str, fields: Fields = NO_FIELDS) -> None: ...


class Complaints:
    """Logs warnings."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._bound: LogBound[str] = LogBound(BURST, PERIOD_S)

    def say(self, kind: str, text: str, now: float, burst: int = BURST, fields: Fields = NO_FIELDS) -> None:
        """Log that as a warning, unless enough of its kind were logged within this period."""
        self.tell(now)
        if self._bound.may_say(kind, now, burst=burst):
            self._log("warning", text, fields)

    def tell(self, now: float) -> None:
        """Log how many lines were left out of periods that are over."""
        for left_out in self._bound.ended(now):
            text = f"{left_out.lines:,} more of the same in {PERIOD_S:g} s: {left_out.kind}"
            self._log("warning", text, {"kind": "left-out", "lines_left_out": left_out.lines})
