# Says that connections were refused: each in a metric, and now and then one in the log.

from __future__ import annotations

import logging
from typing import Final

import trio

from gateway.control.admission import CONNECTIONS
from gateway.control.metrics import GatewayMetrics
from gateway.log.log_bound import LogRateLimiter

log = logging.getLogger("gateway.control")

REPEAT_S: Final = 10.0  # for each limit one is logged in so long, and the number of others


class RefusalLog:
    """Counts and logs refused connections of all listeners of this gateway."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._log_limiter: LogRateLimiter[str] = LogRateLimiter(1, REPEAT_S)

    def record_refusal(self, address: str, why: str) -> None:
        """A connection from that address was refused; `why` is one of admission.REASONS."""
        self._metrics.connections_refused.labels(why).inc()
        limit = "max_connections" if why == CONNECTIONS else "max_connections_per_address"
        now = trio.current_time()
        for left_out in self._log_limiter.end_periods(now):
            fields = {"kind": "connection-refused", "reason": left_out.kind, "lines_left_out": left_out.lines}
            log.warning("%d more connections refused %s: limits.%s", left_out.lines, left_out.period_text,
            left_out.kind,
                        extra=fields)  # fmt: skip
        if self._log_limiter.allow_line(limit, now):
            fields = {"kind": "connection-refused", "reason": limit, "peer": address}
            log.warning("%s: connection refused, and others likewise: limits.%s", address, limit, extra=fields)
