# Log lines that strangers can cause: a few of a kind within a period, then the number of further ones. Knows no
# clock and no log: `now` is in seconds, and what is to be said goes to `log`.

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from gateway.log.log_bound import LogRateLimiter

PERIOD_S: Final = 10.0
# lines of one kind within a period; one is enough for what hits all clients (a broker is away)
MAX_PER_PERIOD: Final = 50
LogFields = Mapping[str, str | int]  # of gateway.log.logs.FIELDS
NO_LOG_FIELDS: Final[LogFields] = {}


class LogWriter(Protocol):
    """Called with a level ("info", "warning", "error"), one line, and the fields of the line."""

    def __call__(self, level: str, text: str, fields: LogFields = NO_LOG_FIELDS) -> None: ...


class WarningLimiter:
    """Logs warnings, at most a few of each kind in a period."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self._log_limiter: LogRateLimiter[str] = LogRateLimiter(MAX_PER_PERIOD, PERIOD_S)

    def log_warning(
        self, kind: str, text: str, now: float, burst: int = MAX_PER_PERIOD, fields: LogFields = NO_LOG_FIELDS
    ) -> None:
        """Log a warning, unless enough of its kind were logged in this period."""
        self.log_suppressed(now)
        if self._log_limiter.allow_line(kind, now, burst=burst):
            self._log("warning", text, fields)

    def log_suppressed(self, now: float) -> None:
        """Log how many lines were left out in periods that are over."""
        for left_out in self._log_limiter.end_periods(now):
            text = f"{left_out.lines:,} more of the same in {PERIOD_S:g} s: {left_out.kind}"
            self._log("warning", text, {"kind": "left-out", "lines_left_out": left_out.lines})
