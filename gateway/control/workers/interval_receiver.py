# The way of workers' intervals: into the usage log; then their sums into metrics and into the traffic over time, and
# their rows into the recent effects of policies and the log's lines about traffic. A worker that ended without its last
# interval is noted as lost.
#
# Knows no channel: the caller confirms what is on disk, and asks for the rest again.

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from gateway.channel import UsageInterval
from gateway.control.context import ControlContext
from gateway.control.usage.recent import RecentTraffic
from gateway.control.usage.timeline import TrafficTimeline
from gateway.control.usage.traffic_lines import TrafficLines
from gateway.control.usage.usage_log import UsageLogWriter
from gateway.log import logs

traffic_log = logging.getLogger("gateway.traffic")


class IntervalReceiver:
    """Receives the intervals of all workers of this gateway."""

    def __init__(
        self,
        context: ControlContext,
        usage_log: UsageLogWriter,
        recent: RecentTraffic | None = None,
        timeline: TrafficTimeline | None = None,
    ) -> None:
        self._context = context
        self._usage_log = usage_log
        self._metrics = context.metrics
        self._recent = RecentTraffic() if recent is None else recent
        self._timeline = TrafficTimeline() if timeline is None else timeline
        self._traffic_lines = TrafficLines()
        self._unfinished: dict[int, str] = {}  # the boot of each worker that has not sent its last interval

    @property
    def has_room(self) -> bool:
        """Whether the usage log accepts more intervals."""
        return self._usage_log.has_room

    @property
    def has_caught_up(self) -> bool:
        """Whether all intervals that the usage log accepted are on disk."""
        return not self._usage_log.queued

    def receive_interval(self, number: int, interval: UsageInterval, spooled: Callable[[], None]) -> None:
        """Receive an interval of that worker, for which there is room. `spooled` is called when it is on disk."""
        if self._usage_log.enqueue_interval(interval, spooled):
            self._metrics.add_interval(interval)
            now_ms = self._context.now_ms()
            self._recent.add_interval(interval, now_ms)
            self._timeline.add_interval(interval, now_ms)
            for line in self._traffic_lines.make_lines(interval, trio.current_time()):
                traffic_log.warning("%s", line.text, extra=logs.select_fields(line.fields))
        if interval.final:
            self._unfinished.pop(number, None)

    def begin_boot(self, number: int, boot: str) -> None:
        """The worker has started with this boot: every earlier life of it without a final interval is lost."""
        before = self._unfinished.get(number, boot)
        lost = self._usage_log.enqueue_lost_before(number, boot)
        if before != boot and before not in lost:
            self._usage_log.enqueue_lost(number, before)
            lost.append(before)
        self._metrics.workers_lost.inc(len(lost))
        self._unfinished[number] = boot

    def record_lost_workers(self) -> None:
        """The gateway is stopping: workers that have not reported their last interval never will."""
        for number, boot in self._unfinished.items():
            self._usage_log.enqueue_lost(number, boot)
            self._metrics.workers_lost.inc()
        self._unfinished.clear()
