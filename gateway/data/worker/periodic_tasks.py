# A worker's work by the clock: ticks of the meters, buckets, shares of client quotas, and its reports to control of
# itself. Also wakes tasks that sleep while they have nothing to do.

from __future__ import annotations

import time

import trio

from gateway.channel import MAX_QUOTA_RATES, EndedConnections, WorkerGauges, WorkerRates
from gateway.data.connecting.connections import WorkerConnections
from gateway.data.relay.relief import relieve_memory
from gateway.data.shared.uplink import ControlUplink
from gateway.data.shared.worker_state import WorkerState
from gateway.data.worker.idle import IdleWatch
from gateway.data.worker.intervals import INTERVAL_S, UnspooledIntervals
from policies.quotas.quota_limiters import ALLOCATE_S
from policies.thresholds.pacing import PACE_S

GAUGES_S = 0.25


class PeriodicTasks:
    """The worker's periodic work. `run` has to be running; call `wake_tasks` and `report_rates` after changes.

    `idle_watch`: what tasks sleep in that have nothing to do without traffic.
    """

    def __init__(
        self, world: WorkerState, connections: WorkerConnections, intervals: UnspooledIntervals, uplink: ControlUplink
    ) -> None:
        self._world = world
        self._engine = world.engine
        self._connections = connections
        self._reactor = connections.reactor
        self._intervals = intervals
        self._uplink = uplink
        self._pacing_due = trio.Event()
        self._allocation_due = trio.Event()
        self._engine.groups.wake_pacer = self.wake_tasks
        self.idle_watch = IdleWatch(self._count_bytes, self._is_holding, self._pace_limits)
        connections.before_arrival = self.idle_watch.wake_sleepers
        self._sent_gauges: WorkerGauges | None = None
        self._paced_at = self._latencies_reported_at = trio.current_time()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for task in (self.run_ticks, self._run_pacing, self._allocate_shares, self._report_gauges):
                nursery.start_soon(task)

    def wake_tasks(self) -> None:
        """Policies, quotas or the storage factor have changed: there may be something to pace, or to allocate."""
        self._pacing_due.set()
        self._allocation_due.set()

    def on_control_started(self) -> None:
        """There is a new control process, which knows nothing of this worker."""
        self._sent_gauges = None

    async def run_ticks(self) -> None:
        """Each second, end an interval and start new meters; every TICK_S, tick all meters. A tick affects the interval
        after it, and not the one before (policies/whatif/replay.py relies on that).
        """
        engine = self._engine
        while True:
            await trio.sleep(engine.seconds_to_next_second(trio.current_time()))
            now = trio.current_time()
            if now < engine.next_second_at:
                continue
            self._report_latencies(now)
            if (
                now >= engine.next_tick_at or engine.seconds_to_tick(now) > INTERVAL_S / 2
            ):  # a late second's end is the tick's
                self._intervals.end_interval()
            began = engine.start_new_meters(now)
            ticks = engine.apply_due_ticks(now)
            if began and not ticks and engine.fleet.processes > 1:
                self.report_rates()  # all go by the sum
            if not ticks:
                continue
            self._world.quotas.close_tick(now)
            self._world.rejected_batches.expire_batches(now)
            self._world.ledger.advance_epoch()  # meters of topics that went quiet are gone
            self.report_rates()
            for link in list(self._reactor.links):
                self._reactor.call_guarded(link, link.check_progress, now, self._world.limits)
            self._reactor.run_deferred(now)
            self._uplink.log_suppressed(now)

    async def _run_pacing(self) -> None:
        """Keep the buckets of delaying thresholds and of resource groups up to date, while there are any."""
        while True:
            if not self._engine.needs_pacing:
                self._pacing_due = trio.Event()
                await self._pacing_due.wait()
                continue
            self._pace_limits(trio.current_time())
            if self._engine.groups.needs_pacing:  # topics of groups were in use lately; of many, some get their turn
                await trio.sleep(PACE_S)
            else:
                await self.idle_watch.sleep(PACE_S)

    def _pace_limits(self, now: float) -> None:
        """Also before the first event after a sleep; not much more often than every PACE_S all the same."""
        if self._engine.needs_pacing and now - self._paced_at >= 0.9 * PACE_S:
            self._paced_at = now
            self._engine.pace_limits(now)

    def _count_bytes(self) -> int:
        """The bytes that were produced, or fetched where that counts."""
        produced = sum(broker.total_bytes for broker in self._engine.brokers.values())
        return produced + sum(self._world.quotas.fetched_bytes.values())

    def _is_holding(self) -> bool:
        """Whether bytes of clients are kept, or connections have come that are not relayed yet."""
        return self._reactor.budget.used_bytes > 0 or self._connections.opening_count > 0

    async def _allocate_shares(self) -> None:
        """Allocate shares of client quotas, while there are any."""
        counted: dict[int, int] = {}
        while True:
            if not self._world.quotas.has_shares:
                self._allocation_due = trio.Event()
                await self._allocation_due.wait()
                continue
            totals = {}
            for node_id, broker in self._engine.brokers.items():
                taken = broker.total_bytes - counted.get(node_id, broker.total_bytes)
                counted[node_id] = broker.total_bytes
                totals[node_id] = (broker.limits.thresholds.own_total, float(taken))
            now = trio.current_time()
            self._world.quotas.allocate_shares(totals, now)
            self._world.quotas.allocate_fetch_shares(now)
            await trio.sleep(ALLOCATE_S)

    def report_rates(self) -> None:
        engine, now = self._engine, trio.current_time()
        quotas = self._world.quotas.busiest_rates(MAX_QUOTA_RATES, now)
        self._uplink.post_if_reading(
            WorkerRates(
                tuple(engine.collect_rates()),
                engine.collect_warnings(),
                tuple(quotas),
                tuple(engine.groups.collect_rates(now)),
            )
        )

    def _report_latencies(self, now: float) -> None:
        """Report latencies, unless control doesn't read: then the next report covers a longer time."""
        if self._uplink.is_control_reading:
            self._uplink.post(
                self._world.ledger.latencies.collect_latencies(now - self._latencies_reported_at, time.process_time())
            )
            self._latencies_reported_at = now

    async def _report_gauges(self) -> None:
        while True:
            links = self._reactor.links
            muted = sum(link.is_muted for link in links)
            used, came = self._reactor.budget.used_bytes, self._connections
            gauges = WorkerGauges(len(links), muted, used, came.opening_count, came.accepted_count)
            if gauges != self._sent_gauges and self._uplink.post_if_reading(gauges):
                self._sent_gauges = gauges
            ended = came.addresses.ended_counts
            if ended and self._uplink.post_if_reading(EndedConnections(dict(ended))):
                ended.clear()
            relieve_memory(self._reactor, trio.current_time(), self._world.limits.frame_timeout)
            await self.idle_watch.sleep(GAUGES_S)
