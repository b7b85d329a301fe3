# What control asks at any time what holds: a view of the cluster's disks. There are two: of a source that is asked at
# every check (source_view.py), and of the topic that agents write to (topic_view.py).
#
# Judging is policies/storage/'s; views have what it must not know: threads, two clocks, sources that hang or raise
# whatever they like. They know no worker, no metric and no log line: control's.

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from gateway.channel import StorageSnapshot
from policies.storage import (
    AffectedTopics,
    KeptVolumes,
    StorageFactor,
    VolumeAssessment,
    VolumeKey,
)

NEW_BROKER: Final = "new"  # of a broker that joined a moment ago and isn't described yet
NO_ASSESSMENT: Final = VolumeAssessment(1.0, (), None)

Clock = Callable[[], float]


class StorageViewState(NamedTuple):
    """The factor in force. Times are monotonic. `brokers`: the active ones, each with the fault of its snapshot, or "".

    `until`, `next`: the time when this changes by itself, and the next factor. `begun`: more is behind it than a start.

    `unknown`: active brokers of which nothing is known and that count as full, with the reason; None: so does every
    broker. `dirs`: the topics on volumes, by broker and volume, of brokers where that matters and that told.
    `affected`: the topics that the factor is about, of a kept one; None: all, or to be found.

    `decisive`: the part of the assessment that the factor is about; None: all of it. `departed`: brokers that aren't
    active any more and count all the same, with the time until which they do. `kept_volumes`: what has to be known of
    brokers so that they count if they leave.
    """

    factor: StorageFactor
    assessment: VolumeAssessment = NO_ASSESSMENT
    until: float | None = None
    next: StorageFactor | None = None
    brokers: Mapping[int, str] = MappingProxyType({})
    offline: tuple[tuple[int, str], ...] = ()
    connected: bool = False
    lacks_data: bool = False
    begun: bool = False
    unknown: Mapping[int, str] | None = None
    dirs: Mapping[VolumeKey, frozenset[str]] = MappingProxyType({})
    affected: tuple[AffectedTopics, ...] | None = None
    decisive: VolumeAssessment | None = None
    departed: Mapping[int, float] = MappingProxyType({})
    kept_volumes: Mapping[int, KeptVolumes] = MappingProxyType({})


class StorageView(Protocol):
    """A view of the disks."""

    def begin_check(self, now: float) -> None:
        """A check is about to begin: the factor in force may hold for as long as it takes."""

    async def run_check(self, began: float) -> None:
        """Observe the disks.

        Raises:
            ObservationFailed: nothing was seen; `current_state` takes it into account.
        """

    async def run_between_checks(self, changed: Callable[[], None]) -> None:
        """The work between checks, until cancelled; calls `changed` when `current_state` may differ."""

    def current_state(self, now: float) -> StorageViewState:
        """The factor in force."""

    def adopt_factor(self, kept: StorageSnapshot, now: float) -> None:
        """Go on, until something has been seen, with what a worker still has from an earlier control."""

    @property
    def invalid_records(self) -> int:
        """Records that were no snapshots, so far."""
