# The two ways in which control looks at the cluster's disks, each a sight that can be asked at any time what holds:
# `VolumeSourceView` (observed.py) runs a source at every check and keeps the last valid factor for a while [DISK];
# `VolumeTopicView` reads what agents wrote beside the brokers and lists the active brokers at every check [035].
#
# Judging is policies/storage/'s; here is what it must not know: threads, two clocks, sources that hang or raise
# whatever they like. Knows no worker, no metric and no log line: control.py's.

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import trio

from policies.storage import (
    AffectedTopics,
    KeptVolumes,
    LimitPolicy,
    Observation,
    ObservationFailed,
    SnapshotView,
    StorageFactor,
    Volume,
    VolumeAssessment,
    VolumeLimit,
    VolumeSnapshot,
    check_limit,
)
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.storage")

# a source that has not answered by then, or by the next check if that is later, has failed
SOURCE_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.5  # of the snapshots' reader: it ends up to this much later than asked to
CLOSE_S: Final = 1.0
READ_S: Final = 10.0  # after a start, for which unread snapshots are not yet news
SHARE: Final = 0.1  # of the time, that judging all volumes may take while snapshots pour in
LARGEST: Final = 2**63 - 1  # bytes: a long
NEW_BROKER: Final = "new"  # of a broker that joined a moment ago and isn't described yet
NO_ASSESSMENT: Final = VolumeAssessment(1.0, (), None)
T = TypeVar("T")

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
    dirs: Mapping[tuple[int, str], frozenset[str]] = MappingProxyType({})
    affected: tuple[AffectedTopics, ...] | None = None
    decisive: VolumeAssessment | None = None
    departed: Mapping[int, float] = MappingProxyType({})
    kept_volumes: Mapping[int, KeptVolumes] = MappingProxyType({})


class KeptFactor(NamedTuple):
    """The factor that workers have from before control was restarted, the topics that it is about (None: all), and what
    they know of brokers with a volume at a limit.
    """

    factor: StorageFactor
    until: float | None
    affected: tuple[AffectedTopics, ...] | None = None
    kept_volumes: Mapping[int, KeptVolumes] = MappingProxyType({})


class StorageView(Protocol):
    """One of the two."""

    def begin_check(self, now: float) -> None:
        """A check is about to begin: the factor in force may hold for as long as it takes."""

    async def run_check(self, began: float) -> None:
        """Look.

        Raises:
            ObservationFailed: nothing was seen; `current_state` takes it into account.
        """

    async def run_between_checks(self, changed: Callable[[], None]) -> None:
        """The work between checks, until cancelled; calls `changed` when `current_state` may differ."""

    def current_state(self, now: float) -> StorageViewState:
        """The factor in force."""

    def adopt_factor(self, kept: KeptFactor, now: float) -> None:
        """Go on with it until something has been seen."""

    @property
    def invalid_records(self) -> int:
        """Records that were no snapshots, so far."""


class SnapshotSource(Protocol):
    """The part of gateway.storage.snapshots.SnapshotReader that `VolumeTopicView` needs."""

    connected: bool
    caught_up: bool
    invalid_records: int

    def poll_snapshots(self, timeout_s: float) -> list[tuple[int, VolumeSnapshot | None]]: ...

    def close(self) -> None: ...


class BoundedCall:
    """Calls of one source, one at a time, each in a thread and over after `limit_s`; any error is a failed observation.

    A call that hangs can't be ended. Its thread is left behind, and the next ones fail until it comes back.
    """

    def __init__(self, interval_s: float) -> None:
        self.limit_s = max(SOURCE_TIMEOUT_S, interval_s)
        self._thread = trio.CapacityLimiter(1)  # its own: no other threads can keep it waiting, nor it others

    async def call_source(self, source: Callable[[], T]) -> T:
        if self._thread.borrowed_tokens:
            raise ObservationFailed("the source has not answered an earlier request")
        with trio.move_on_after(self.limit_s):
            return await trio.to_thread.run_sync(self._run_source, source, abandon_on_cancel=True, limiter=self._thread)
        raise ObservationFailed(f"no answer within {self.limit_s:g} s")

    def _run_source(self, source: Callable[[], T]) -> T:
        try:
            return source()
        except ObservationFailed as error:
            raise ObservationFailed(one_line(str(error), ERROR_CHARS) or "the source doesn't say why") from error
        except BaseException as error:  # a plugin's mistake must not end the gateway, nor its sys.exit()
            raise ObservationFailed(
                one_line(f"{type(error).__name__}: {error}", ERROR_CHARS).removesuffix(":")
            ) from error


class GuardedPolicy(LimitPolicy):
    """A foreign policy; any exception of it is a failed observation."""

    def __init__(self, policy: LimitPolicy) -> None:
        self._policy = policy

    def breaches_hard_limit(self, volume: Volume) -> bool:
        return self._call_policy(lambda: bool(self._policy.breaches_hard_limit(volume)))

    def breaches_soft_limit(self, volume: Volume) -> bool:
        return self._call_policy(lambda: bool(self._policy.breaches_soft_limit(volume)))

    def quota_factor(self, volume: Volume) -> float:
        return self._call_policy(lambda: float(self._policy.quota_factor(volume)))

    def levels(self, volume: Volume) -> tuple[float | None, float | None]:
        def ask() -> tuple[float | None, float | None]:
            soft, hard = self._policy.levels(volume)
            return _finite_level(soft), _finite_level(hard)

        return self._call_policy(ask)

    def _call_policy(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (Exception, SystemExit) as error:
            text = f"limit policy {type(self._policy).__name__}: {type(error).__name__}: {error}"
            raise ObservationFailed(one_line(text, ERROR_CHARS)) from error


def _finite_level(level: Any) -> float | None:
    """A level of a foreign policy.

    Raises:
        ValueError: it is not a number of bytes.
    """
    found = None if level is None else float(level)
    if found is not None and not -LARGEST <= found <= LARGEST:
        raise ValueError(f"the level {found} is not a number of bytes")
    return found


def rebuild_observation(said: Observation) -> Observation:
    """A source's observation, of our own types, whatever types it uses for numbers and names. In the source's thread.

    Raises:
        ObservationFailed: a size that is none, or a volume that is there twice and not the same.
        TypeError, ValueError, AttributeError, OverflowError: there is something else than the type has.
    """
    brokers = frozenset(int(each) for each in said.brokers)
    volumes: dict[tuple[int, str], Volume] = {}
    for each in said.volumes:
        volume = Volume(
            int(each.broker_id), str(each.name), int(each.total), int(each.available),
            _rebuild_limit(each.soft, "soft"), _rebuild_limit(each.hard, "hard"),
        )  # fmt: skip
        if max(abs(volume.total), abs(volume.available)) > LARGEST:
            raise ObservationFailed(f"{volume}: its size or its free space is not a number of bytes")
        if volumes.setdefault((volume.broker_id, volume.name), volume) != volume:
            raise ObservationFailed(f"{volume} is there twice, with different values")
    offline = tuple((int(broker_id), str(log_dir)) for broker_id, log_dir in said.offline)
    told = getattr(said, "registered", None)  # a source's own type may be older
    registered = None if told is None else frozenset(int(each) for each in told)
    return Observation(brokers, tuple(volumes.values()), offline, registered)


def _rebuild_limit(limit: VolumeLimit | None, what: str) -> VolumeLimit | None:
    return None if limit is None else check_limit(VolumeLimit(limit.type, float(limit.level)), what)


class VolumeTopicView:
    """The volume topic and the list of active brokers, by 035's rules.

    A restarted control has read neither at first. Until it has, the workers' factor holds as long as it is valid.
    """

    def __init__(
        self,
        reader: SnapshotSource,
        list_active: Callable[[], frozenset[int]],
        view: SnapshotView,
        interval_s: float,
        clock: Clock,
        wall: Clock,
        prepare: Callable[[], bool] = lambda: True,
    ) -> None:
        """`prepare`: makes the topic; called in a thread until it says True."""
        self._reader = reader
        self._make_topic_once = prepare
        self._interval_s = interval_s
        self._list_active = list_active
        self._view = view
        self._clock, self._wall = clock, wall
        self._source_call = BoundedCall(interval_s)
        self._kept: KeptFactor | None = None
        self._active: tuple[int, ...] = ()
        self._snapshot_times: dict[int, float] = {}
        self._listed = False
        self._tried = False
        self._began = clock()
        self._begun = False
        self._observed_at: float | None = None

    @property
    def invalid_records(self) -> int:
        return self._reader.invalid_records

    def begin_check(self, now: float) -> None:
        pass  # the list of brokers holds for two intervals or more

    async def run_check(self, began: float) -> None:
        try:
            active = await self._source_call.call_source(self._list_active)
        except ObservationFailed as error:
            self._view.record_list_failure(str(error))
            raise
        finally:
            self._tried = True
        self._listed = True
        self._active = tuple(sorted(active))
        self._view.set_active_brokers(active, self._clock())

    async def run_between_checks(self, changed: Callable[[], None]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._make_topic)
            await self._read_snapshots(changed)

    async def _make_topic(self) -> None:
        while True:
            if await trio.to_thread.run_sync(self._make_topic_once, abandon_on_cancel=True):
                return
            await trio.sleep(self._interval_s)

    async def _read_snapshots(self, changed: Callable[[], None]) -> None:
        """`changed` judges every volume of the cluster, which takes its time where there are thousands: it is not
        called for each record then, but so that there is time for other things.
        """
        is_news, rests_until = False, 0.0
        try:
            while True:
                before = (self._reader.connected, self._reader.caught_up, self._reader.invalid_records)
                rest = rests_until - time.perf_counter()
                timeout_s = min(POLL_S, max(0.0, rest)) if is_news else POLL_S
                found = await trio.to_thread.run_sync(self._reader.poll_snapshots, timeout_s)
                for broker_id, snapshot in found:
                    self._store_snapshot(broker_id, snapshot)
                is_news |= bool(found)
                is_news |= before != (self._reader.connected, self._reader.caught_up, self._reader.invalid_records)
                began = time.perf_counter()
                if is_news and began >= rests_until:
                    changed()
                    is_news, ended = False, time.perf_counter()
                    rests_until = ended + (ended - began) * (1 / SHARE - 1)
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await trio.to_thread.run_sync(self._reader.close, abandon_on_cancel=True)

    def current_state(self, now: float) -> StorageViewState:
        wall = self._wall()
        view = self._view.assess_current(wall, now)
        known = self._listed and self._reader.caught_up
        if not known and self._kept is not None and (self._kept.until is None or now < self._kept.until):
            return StorageViewState(
                self._kept.factor,
                until=self._kept.until,
                next=view.factor,
                connected=self._reader.connected,
                affected=self._kept.affected,
            )
        self._kept = None
        valid = view.factor.origin == "valid"
        self._begun |= valid or (self._tried and (self._reader.caught_up or now - self._began >= READ_S))
        if valid:
            at = (self._snapshot_times[broker_id] for broker_id in self._active if broker_id not in view.new)
            self._observed_at = now - max(0.0, wall - min(at, default=wall))
        return StorageViewState(
            view.factor._replace(observed_at=self._observed_at),
            view.assessment,
            self._view.changes_at(wall, now),
            self._view.next_factor(wall, now),
            {b: NEW_BROKER if b in view.new else view.reasons.get(b, "") for b in self._active},
            (),
            self._reader.connected,
            view.lacks_data,
            self._begun,
            view.unknown,
            departed={broker_id: now + until - wall for broker_id, until in view.departed.items()},
        )

    def adopt_factor(self, kept: KeptFactor, now: float) -> None:
        """The lowest of the workers' factors; a fail-safe only as long as nothing else is known."""
        if kept.until is not None and now >= kept.until:
            return
        if kept.factor.origin in ("valid", "kept"):
            kept = kept._replace(factor=kept.factor._replace(origin="kept"))
            self._view.paused |= kept.factor.value == 0
        if self._kept is None or kept.factor.value < self._kept.factor.value:
            self._kept = kept

    def _store_snapshot(self, broker_id: int, snapshot: VolumeSnapshot | None) -> None:
        self._view.put_snapshot(broker_id, snapshot)
        if snapshot is None:
            self._snapshot_times.pop(broker_id, None)
        else:
            self._snapshot_times[broker_id] = snapshot.at
