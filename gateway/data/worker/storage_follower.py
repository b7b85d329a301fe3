# The storage factor in one worker: applied as control sends it, kept while there is no control, and replaced by the one
# that control named to follow when it expires. When a pause is over, what it held goes on.

from __future__ import annotations

import math
import time

import trio

from gateway.channel import StorageSnapshot
from gateway.data.relay.links import RelayLink
from gateway.data.shared.uplink import ControlUplink
from gateway.data.shared.worker_state import WorkerState
from gateway.data.sockets.reactor import SocketReactor
from gateway.data.worker.lowest_factor import LowestFactor
from gateway.data.worker.periodic_tasks import PeriodicTasks

LATE_S = 1.0  # control's new message comes a moment after an expiry
RESUME_SLICE_S = 0.002  # connections go on for this long after a pause before other tasks get a turn
RESUME_PAUSE_S = 0.02


class StorageFollower:
    """Applies control's storage factor. `last_storage`: the last one from control. `lowest`: receives each factor that
    is enforced. `is_resuming`: requests that a pause held are being resumed.
    """

    def __init__(
        self,
        world: WorkerState,
        reactor: SocketReactor[RelayLink],
        clockwork: PeriodicTasks,
        uplink: ControlUplink,
        lowest: LowestFactor,
    ) -> None:
        self.last_storage: StorageSnapshot | None = None
        self._world = world
        self._reactor = reactor
        self._clockwork = clockwork
        self._uplink = uplink
        self._lowest = lowest
        self._applied_state: tuple[object, ...] = (1.0, "", "enforce", None)
        self.is_resuming = False
        self._may_resume = False  # other requests may pass
        self._storage_received = trio.Event()

    def receive_storage(self, storage: StorageSnapshot) -> None:
        """Control has sent a storage factor."""
        self.last_storage = storage
        self._apply_storage(storage)
        self._storage_received.set()

    def _apply_storage(self, storage: StorageSnapshot) -> None:
        world, engine, now = self._world, self._world.engine, trio.current_time()
        factor = storage.factor
        self._lowest.set_factor(factor.value if storage.mode == "enforce" else None)
        affected = storage.affected
        shown = (factor.value, factor.why, storage.mode, affected)
        if shown == self._applied_state:  # only its expiry moved
            return
        self._applied_state = shown
        self._may_resume = True
        engine.set_storage(factor.value, factor.why, affected, now, mode=storage.mode)
        world.quotas.set_storage_factor(engine.storage_factor, now)
        self._clockwork.wake_tasks()
        world.ledger.advance_epoch()
        self._clockwork.report_rates()

    async def run(self) -> None:
        """Resume requests that a pause held, in the order in which they waited; apply the fallback that control named
        when control has sent nothing for too long.
        """
        while True:
            self._storage_received = trio.Event()
            storage = self.last_storage
            if self._may_resume and self._world.engine.pause is None:
                self._may_resume = False
                self.is_resuming = True
                await self._resume_paused()
                self.is_resuming = False
            timeout_s = math.inf
            if storage is not None and storage.valid_until is not None:
                late_s = LATE_S if self._uplink.is_connected else 0.0
                timeout_s = max(0.0, storage.valid_until + late_s - time.monotonic())
            with trio.move_on_after(timeout_s) as waiting:
                await self._storage_received.wait()
            if waiting.cancelled_caught and storage is not None and storage is self.last_storage:
                factor = storage.following
                self.last_storage = StorageSnapshot(factor, storage.mode)
                self._apply_storage(self.last_storage)
                what = f"storage factor {factor.value:g} ({factor.origin})"
                self._uplink.log("warning", f"{what}: no update arrived in time")

    async def _resume_paused(self) -> None:
        paused = [link for link in self._reactor.links if link.session.hold.paused_since]
        paused.sort(key=lambda link: link.session.hold.paused_since)
        since = trio.current_time()
        for link in paused:
            if self._reactor.budget.is_exhausted:  # each reads all that its client has sent: let brokers take it
                await trio.sleep(RESUME_PAUSE_S)
                since = trio.current_time()
            now = trio.current_time()
            if not link.is_closed and link.session.hold.end_pause(now):
                self._reactor.call_soon(link)
            self._reactor.run_deferred(now)
            if trio.current_time() - since > RESUME_SLICE_S:
                await trio.lowlevel.checkpoint()
                since = trio.current_time()
