# The way of workers' intervals: into the usage log; then their sums into metrics and into the traffic over time, and
# their rows into the recent effects of policies and the log's lines about traffic. A worker that ended without its last
# interval is noted as lost.
#
# Knows no channel: the caller confirms what is on disk, and asks for the rest again.

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import trio

from gateway.channel import Interval
from gateway.control.metrics import Metrics
from gateway.control.usage.recent import Recent
from gateway.control.usage.timeline import Timeline
from gateway.control.usage.traffic_lines import TrafficLines
from gateway.control.usage.usage_log import UsageLog
from gateway.log import logs

traffic_log = logging.getLogger("gateway.traffic")


class Intake:
    """The intervals of all workers of this gateway."""

    def __init__(
        self, usage_log: UsageLog, metrics: Metrics, recent: Recent | None = None, timeline: Timeline | None = None
    ) -> None:
        self._usage_log = usage_log
        self._metrics = metrics
        self._recent = Recent() if recent is None else recent
        self._timeline = Timeline() if timeline is None else timeline
        self._lines = TrafficLines()
        self._unfinished: dict[int, str] = {}  # the boot of each worker that has not sent its last interval

    @property
    def has_room(self) -> bool:
        """Whether the usage log takes further intervals."""
        return self._usage_log.has_room

    @property
    def has_caught_up(self) -> bool:
        """Whether all intervals that the usage log took are on disk."""
        return not self._usage_log.queued

    def take(self, number: int, interval: Interval, spooled: Callable[[], None]) -> None:
        """An interval of that worker, for which there is room. `spooled` is called when it is on disk."""
        if self._usage_log.put(interval, spooled):
            self._metrics.add_interval(interval)
            now_ms = round(time.time() * 1000)
            self._recent.add(interval, now_ms)
            self._timeline.add(interval, now_ms)
            for line in self._lines.of(interval, trio.current_time()):
                traffic_log.warning("%s", line.text, extra=logs.fields_of(line.fields))
        if interval.final:
            self._unfinished.pop(number, None)

    def begin(self, number: int, boot: str) -> None:
        """The worker has this boot now: every earlier life of it that did not end in order is lost."""
        before = self._unfinished.get(number, boot)
        lost = self._usage_log.put_lost_before(number, boot)
        if before != boot and before not in lost:
            self._usage_log.put_lost(number, before)
            lost.append(before)
        self._metrics.workers_lost.inc(len(lost))
        self._unfinished[number] = boot

    def end(self) -> None:
        """At the very end: workers that have not reported their last interval never will."""
        for number, boot in self._unfinished.items():
            self._usage_log.put_lost(number, boot)
            self._metrics.workers_lost.inc()
        self._unfinished.clear()
