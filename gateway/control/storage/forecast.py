# What is to come of the cluster's volumes: how fast each fills and when it is at its limits, who fills it, and whether
# its hard limit leaves room for what may arrive before the next look. For people, metrics and the usage log: what
# workers are told follows from what is free now alone.
#
# Knows no schedule: storage_control.py says when disks have been seen. The sums are policies/storage/'s.

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.control.metrics import StorageMetrics
from gateway.storage.views import StorageState
from policies.storage import (
    Finding,
    Forecast,
    Headroom,
    Placement,
    Spread,
    Trend,
    Writers,
    find_headroom,
    find_writers,
)
from policies.units import format_size
from policies.usage import Disks, SpreadNote, VolumeNote

log = logging.getLogger("gateway.storage")

NOTE_S: Final = 60.0  # the usage log has volumes once a minute, however often they are looked at
NOTED_TOPICS: Final = 200  # of all volumes together, the busiest: the others bring little

Rates = Mapping[tuple[str, str], float]
Place = tuple[int, str]  # broker id, volume


class Around(NamedTuple):
    """What else control knows. `rates`: bytes per second by topic and principal, of this gateway. `spread`: None: not
    known. `note`: takes what the usage log is to have.
    """

    rates: Callable[[], Rates] = dict
    spread: Callable[[], Spread | None] = lambda: None
    note: Callable[[Disks], None] = lambda disks: None


class Outlook:
    """Args:
    interval_s: between two looks.
    total: the bytes per second that a broker's producers get at most; None: no bound.
    """

    def __init__(
        self,
        interval_s: float,
        metrics: StorageMetrics,
        total: Callable[[int], float | None] = lambda broker_id: None,
        around: Around | None = None,
    ) -> None:
        self._interval_s = interval_s
        self._metrics = metrics
        self._total = total
        self._around = around or Around()
        self._trends: dict[Place, Trend] = {}
        self._short = False
        self._noted_at: float | None = None

    def see(self, state: StorageState, at: float) -> None:
        """All volumes were looked at. `at`: monotonic."""
        findings = [each for each in state.assessment.findings if not each.volume.left]  # of these nothing new is known
        self._trends = {place: self._trends.get(place) or Trend(self._interval_s) for place in map(_place, findings)}
        for finding in findings:
            self._trends[_place(finding)].see(at, finding.volume.total, finding.volume.available)
        spread = self._around.spread()
        rooms = {_place(each): self._headroom(each, spread) for each in findings}
        self._metrics.show_outlook(
            {_place(each): forecast for each in findings if (forecast := self._forecast(each)) is not None},
            {place: room for place, room in rooms.items() if room is not None},
        )
        self._note_short([each for each in findings if (room := rooms[_place(each)]) is not None and room.is_short])
        if self._noted_at is None or at - self._noted_at >= NOTE_S:
            self._noted_at = at
            self._around.note(self._disks(findings, spread))

    def shown(self, state: StorageState) -> dict[Place, dict[str, Any]]:
        """For REST, by volume. Sizes in bytes, rates in bytes per second, times in seconds."""
        spread, rates = self._around.spread(), self._around.rates()
        findings = state.assessment.findings
        beside = Counter(each.volume.broker_id for each in findings)
        return {
            _place(each): {
                "forecast": _shown_forecast(self._forecast(each)),
                "headroom": _shown_headroom(self._headroom(each, spread)),
                **_shown_writers(*self._writers(each, findings, spread, state, rates, beside)),
            }
            for each in findings
        }

    def _forecast(self, finding: Finding) -> Forecast | None:
        trend = self._trends.get(_place(finding))
        return None if trend is None else trend.forecast(finding)

    def _headroom(self, finding: Finding, spread: Spread | None) -> Headroom | None:
        feeds = frozenset[int]() if spread is None else spread.feeds.get(finding.volume.broker_id, frozenset())
        return find_headroom(finding, feeds, self._total, self._interval_s)

    def _writers(
        self,
        finding: Finding,
        findings: Sequence[Finding],
        spread: Spread | None,
        state: StorageState,
        rates: Rates,
        beside: Mapping[int, int],
    ) -> tuple[Writers, bool]:
        """Whether they are of the volume alone comes second: else of all volumes of its broker."""
        broker_id = finding.volume.broker_id
        shares = {} if spread is None else spread.shares.get(broker_id, {})
        if beside[broker_id] < 2:
            return find_writers(rates, shares), True
        volumes = [each.volume.name for each in findings if each.volume.broker_id == broker_id]
        if not all((broker_id, name) in state.dirs for name in volumes):
            return find_writers(rates, shares), False
        placement = Placement({broker_id: frozenset(shares)}, state.dirs)
        return find_writers(rates, shares, placement.topics(finding, volumes)), True

    def _note_short(self, short: list[Finding]) -> None:
        if short and not self._short:
            finding = min(short, key=lambda each: each.volume.available_ratio)
            room = self._headroom(finding, self._around.spread())
            assert room is not None
            assert room.needed is not None
            more = f" and {len(short) - 1} more" if len(short) > 1 else ""
            log.warning(
                "storage: %s%s: %s behind the hard limit are less than the %s that producers may write there until"
                " the next look ends it: raise the limit, look more often, or lower the total thresholds",
                finding.volume, more, format_size(room.room), format_size(room.needed),
            )  # fmt: skip
        elif self._short and not short:
            log.info("storage: every hard limit has room again for what producers may write until the next look")
        self._short = bool(short)

    def _disks(self, findings: Sequence[Finding], spread: Spread | None) -> Disks:
        """For the usage log: the fullest volumes first, and where the busiest topics are."""
        by_topic: dict[str, float] = {}
        for (topic, _), rate in self._around.rates().items():
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
        return Disks(tuple(volumes), tuple(lines))


def _place(finding: Finding) -> Place:
    return finding.volume.broker_id, finding.volume.name


def _shown_forecast(forecast: Forecast | None) -> dict[str, Any] | None:
    if forecast is None:
        return None
    fill = forecast.fill
    return {
        "fill_bytes_per_s": round(fill.rate),
        "written_bytes_per_s": round(fill.written),
        "deleted_bytes_per_s": round(fill.deleted),
        "soft_limit_in_s": None if forecast.soft_s is None else round(forecast.soft_s),
        "hard_limit_in_s": None if forecast.hard_s is None else round(forecast.hard_s),
    }


def _shown_headroom(room: Headroom | None) -> dict[str, Any] | None:
    if room is None:
        return None
    needed = None if room.needed is None else round(room.needed)
    return {"bytes": round(room.room), "needed_bytes": needed, "short": room.is_short}


def _shown_writers(writers: Writers, of_volume: bool) -> dict[str, Any]:
    return {
        "writers_of": "volume" if of_volume else "broker",
        **{
            name: [{"name": each, "bytes_per_s": round(rate)} for each, rate in found]
            for name, found in writers._asdict().items()
        },
    }
