# The disks as agents describe them beside the brokers, in the volume topic, with a list of the active brokers at every
# check [035].
#
# Judging is policies/storage/'s. Knows no worker and no metric.

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

import trio
from msgspec.structs import replace

from gateway.channel import StorageSnapshot
from gateway.storage.guarding import BoundedCall
from gateway.storage.views import NEW_BROKER, Clock, StorageViewState
from policies.storage import ObservationFailed, SnapshotView, VolumeSnapshot

POLL_S: Final = 0.5  # of the snapshots' reader: it ends up to this much later than asked to
CLOSE_S: Final = 1.0
READ_S: Final = 10.0  # after a start, for which unread snapshots are not yet news
SHARE: Final = 0.1  # of the time, that judging all volumes may take while snapshots pour in


class SnapshotSource(Protocol):
    """The part of gateway.storage.snapshots.SnapshotReader that `VolumeTopicView` needs."""

    connected: bool
    caught_up: bool
    invalid_records: int

    def poll_snapshots(self, timeout_s: float) -> list[tuple[int, VolumeSnapshot | None]]: ...

    def close(self) -> None: ...


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
        self._kept: StorageSnapshot | None = None
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
        if not known and self._kept is not None and (self._kept.valid_until is None or now < self._kept.valid_until):
            return StorageViewState(
                self._kept.factor,
                until=self._kept.valid_until,
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
            until=self._view.changes_at(wall, now),
            next=self._view.next_factor(wall, now),
            brokers={b: NEW_BROKER if b in view.new else view.reasons.get(b, "") for b in self._active},
            connected=self._reader.connected,
            lacks_data=view.lacks_data,
            begun=self._begun,
            unknown=view.unknown,
            departed={broker_id: now + until - wall for broker_id, until in view.departed.items()},
        )

    def adopt_factor(self, kept: StorageSnapshot, now: float) -> None:
        """The lowest of the workers' factors; a fail-safe only as long as nothing else is known."""
        if kept.valid_until is not None and now >= kept.valid_until:
            return
        if kept.factor.origin in ("valid", "kept"):
            kept = replace(kept, factor=kept.factor._replace(origin="kept"))
            self._view.paused |= kept.factor.value == 0
        if self._kept is None or kept.factor.value < self._kept.factor.value:
            self._kept = kept

    def _store_snapshot(self, broker_id: int, snapshot: VolumeSnapshot | None) -> None:
        self._view.put_snapshot(broker_id, snapshot)
        if snapshot is None:
            self._snapshot_times.pop(broker_id, None)
        else:
            self._snapshot_times[broker_id] = snapshot.at
