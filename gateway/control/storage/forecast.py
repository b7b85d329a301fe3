# What is to come of the cluster's volumes: how fast each fills and when it is at its limits, who fills it, and whether
# its hard limit leaves room for what may arrive before the next check. For people, metrics and the usage log: what
# workers get follows from what is free now alone.
#
# Knows no schedule: storage_control.py says when disks have been seen. The sums are policies/storage/'s.

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Literal

from gateway.control.metrics import StorageMetrics
from gateway.control.storage.context import Rates, StorageContext
from gateway.control.storage.status import VolumeOutlook
from gateway.storage.views import StorageViewState
from policies.storage import (
    FillTrend,
    ReplicaPlacement,
    ReplicaSpread,
    Volume,
    VolumeFinding,
    VolumeForecast,
    VolumeHeadroom,
    VolumeKey,
    VolumeWriters,
    find_headroom,
    find_writers,
)
from policies.units import format_size
from policies.usage import DiskNotes, SpreadNote, VolumeNote

log = logging.getLogger("gateway.storage")

NOTE_INTERVAL_S: Final = 60.0  # the usage log has volumes once a minute, however often they are observed
NOTED_TOPICS: Final = 200  # of all volumes together, the busiest: the others bring little


class DiskForecast:
    """Forecasts when volumes reach their limits.

    Args:
        total: the most bytes per second that a broker's producers get; None: no bound.
    """

    def __init__(self, context: StorageContext, metrics: StorageMetrics, total: Callable[[int], float | None]) -> None:
        assert context.control.settings.storage is not None
        self._interval_s = context.control.settings.storage.check_interval
        self._metrics = metrics
        self._total = total
        self._context = context
        self._trends: dict[VolumeKey, FillTrend] = {}
        self._short = False
        self._noted_at: float | None = None

    def record_observation(self, state: StorageViewState, at: float) -> None:
        """All volumes were observed. `at`: monotonic seconds."""
        findings = [each for each in state.assessment.findings if not each.volume.left]  # of these nothing new is known
        self._trends = {
            each.volume.key: self._trends.get(each.volume.key) or FillTrend(self._interval_s) for each in findings
        }
        for finding in findings:
            self._trends[finding.volume.key].add_sample(at, finding.volume.total, finding.volume.available)
        spread = self._context.control.facts.cluster.latest.spread
        rooms = {each.volume.key: self._find_headroom(each, spread) for each in findings}
        self._metrics.show_forecasts(
            {each.volume.key: forecast for each in findings if (forecast := self._forecast_volume(each)) is not None},
            {place: room for place, room in rooms.items() if room is not None},
        )
        self._log_short_headroom(
            [each for each in findings if (room := rooms[each.volume.key]) is not None and room.is_short]
        )
        if self._noted_at is None or at - self._noted_at >= NOTE_INTERVAL_S:
            self._noted_at = at
            self._context.record_disks(self._make_disks_note(findings, spread))

    def describe_volumes(self, state: StorageViewState) -> list[VolumeOutlook]:
        """Of each volume, what is to come of it, and who fills it."""
        spread, rates = self._context.control.facts.cluster.latest.spread, self._context.rates()
        names = state.assessment.names_by_broker()
        return [
            VolumeOutlook(
                each,
                self._forecast_volume(each),
                self._find_headroom(each, spread),
                *_find_volume_writers(each.volume, names[each.volume.broker_id], spread, state, rates),
            )
            for each in state.assessment.findings
        ]

    def _forecast_volume(self, finding: VolumeFinding) -> VolumeForecast | None:
        trend = self._trends.get(finding.volume.key)
        return None if trend is None else trend.forecast_limits(finding)

    def _find_headroom(self, finding: VolumeFinding, spread: ReplicaSpread | None) -> VolumeHeadroom | None:
        feeds = frozenset[int]() if spread is None else spread.feeds.get(finding.volume.broker_id, frozenset())
        return find_headroom(finding, feeds, self._total, self._interval_s)

    def _log_short_headroom(self, short: list[VolumeFinding]) -> None:
        if short and not self._short:
            finding = min(short, key=lambda each: each.volume.available_ratio)
            room = self._find_headroom(finding, self._context.control.facts.cluster.latest.spread)
            assert room is not None
            assert room.needed is not None
            more = f" and {len(short) - 1} more" if len(short) > 1 else ""
            log.warning(
                "storage: %s%s: %s behind the hard limit are less than the %s that producers may write there before"
                " the next check: raise the limit, check more often, or lower the total thresholds",
                finding.volume, more, format_size(room.room), format_size(room.needed),
            )  # fmt: skip
        elif self._short and not short:
            log.info("storage: every hard limit has room again for what producers may write before the next check")
        self._short = bool(short)

    def _make_disks_note(self, findings: Sequence[VolumeFinding], spread: ReplicaSpread | None) -> DiskNotes:
        """For the usage log: the fullest volumes first, and where the busiest topics are."""
        by_topic: dict[str, float] = {}
        for (topic, _), rate in self._context.rates().items():
            by_topic[topic] = by_topic.get(topic, 0.0) + rate
        busy = sorted(by_topic, key=lambda topic: -by_topic[topic])[:NOTED_TOPICS]
        volumes = [
            VolumeNote(*each.volume[:4], each.soft_free, each.hard_free)
            for each in sorted(findings, key=lambda each: each.volume.available_ratio)
        ]
        shares = {} if spread is None else spread.shares
        lines = [
            SpreadNote(broker_id, topic, *topics[topic])
            for topic in busy
            for broker_id, topics in sorted(shares.items())
            if topic in topics
        ]
        return DiskNotes(tuple(volumes), tuple(lines))


def _find_volume_writers(
    volume: Volume, names: Sequence[str], spread: ReplicaSpread | None, state: StorageViewState, rates: Rates
) -> tuple[VolumeWriters, Literal["volume", "broker"]]:
    """The writers, and whether they are known for the volume alone, or for all volumes of its broker, which have these
    names.
    """
    shares = {} if spread is None else spread.shares.get(volume.broker_id, {})
    if len(names) < 2:
        return find_writers(rates, shares), "volume"
    placement = ReplicaPlacement({volume.broker_id: frozenset(shares)}, state.dirs)
    if not placement.tells_volumes(volume.broker_id, names):
        return find_writers(rates, shares), "broker"
    return find_writers(rates, shares, placement.topics_on(volume, names)), "volume"
