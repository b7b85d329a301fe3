# Thresholds from a source of the operator's own (produce_gateway.quota_sources): asked on a fixed schedule, in a
# thread, with the time limit of storage's sources. Its answer replaces those of the configuration file, as a whole and
# only if it is valid; what was valid last stays.
#
# Knows neither workers nor what was changed at run time: `take` gets what it says when that is something else. Source:
# the quota source of [DISK] and [035].

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable

import trio

from gateway.storage.guarding import BoundedCall
from policies.definitions.policy_values import PolicyError
from policies.storage import ObservationFailed, QuotaSource
from policies.text import ERROR_CHARS, one_line
from policies.thresholds.values import ThresholdError, check_thresholds

log = logging.getLogger("gateway.control")


OnThresholds = Callable[[float | None, dict[str, float]], Awaitable[None]]


class ThresholdFeed:
    """Keeps thresholds in step with a source."""

    def __init__(self, source: QuotaSource, interval_s: float, take: OnThresholds) -> None:
        """`take(total, topics)` may raise PolicyError: the source's values are not valid."""
        self._source = source
        self._interval_s = interval_s
        self._on_thresholds = take
        self._bounded_call = BoundedCall(interval_s)
        self._problem = ""
        self._applied: tuple[float | None, dict[str, float]] | None = None

    async def run(self) -> None:
        """Ask the source until cancelled."""
        start = trio.current_time()
        while True:
            try:
                await self._apply_thresholds(*await self._bounded_call.call_source(self._read_source))
            except (ObservationFailed, PolicyError) as error:
                if str(error) != self._problem:
                    log.warning("thresholds.source: %s; the last thresholds stay", one_line(str(error), ERROR_CHARS))
                self._problem = str(error)
            passed = math.floor((trio.current_time() - start) / self._interval_s + 1e-9) + 1
            await trio.sleep_until(start + passed * self._interval_s)

    def _read_source(self) -> tuple[float | None, dict[str, float]]:
        values = self._source.quotas()
        total = None if values.total is None else float(values.total)
        topics = {str(name): float(threshold) for name, threshold in values.topics.items()}
        try:
            check_thresholds(total, topics)
        except ThresholdError as error:
            raise ObservationFailed(str(error)) from error
        return total, topics

    async def _apply_thresholds(self, total: float | None, topics: dict[str, float]) -> None:
        if (total, topics) != self._applied:
            await self._on_thresholds(total, topics)
            self._applied = total, topics
            log.info("thresholds.source: %s bytes/s per broker, %d topics with their own", total, len(topics))
        if self._problem:
            log.info("thresholds.source: it answers again")
            self._problem = ""
