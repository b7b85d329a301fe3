# A worker's work by the clock: ticks of the meters, buckets, shares of client quotas, and what it tells control of
# itself. Also wakes tasks that sleep while they have nothing to do.

from __future__ import annotations

import time

import trio

from gateway.channel import MAX_QUOTA_RATES, Ended, Gauges, Rates
from gateway.data.connecting.connections import Connections
from gateway.data.relay.relief import relieve
from gateway.data.shared.uplink import Uplink
from gateway.data.shared.world import World
from gateway.data.worker.intervals import INTERVAL_S, Intervals
from policies.quotas.lines import DEAL_S
from policies.thresholds.pacing import PACE_S

GAUGES_S = 0.25


class Clockwork:
    """`run` has to be running; `wake` and `tell_rates` are called after changes."""

    def __init__(self, world: World, connections: Connections, intervals: Intervals, uplink: Uplink) -> None:
        self._world = world
        self._engine = world.engine
        self._connections = connections
        self._reactor = connections.reactor
        self._intervals = intervals
        self._uplink = uplink
        self._paces = trio.Event()
        self._has_shares = trio.Event()
        self._engine.groups.wake = self.wake
        self._latencies_told = trio.current_time()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for task in (self.tick, self._pace, self._deal, self._tell_gauges):
                nursery.start_soon(task)

    def wake(self) -> None:
        """Policies, quotas or the storage factor are others: there may be something to pace, or to deal out."""
        self._paces.set()
        self._has_shares.set()

    async def tick(self) -> None:
        """Each second ends an interval, and meters that began are looked at; with every TICK_S of them all meters tick.
        Its effects are in the interval behind it, and none of them in the one before (policies/whatif/replay.py lives
        on that).
        """
        engine = self._engine
        while True:
            await trio.sleep(engine.next_second(trio.current_time()))
            now = trio.current_time()
            if now < engine.second:
                continue
            self._tell_latencies(now)
            if now >= engine.due or engine.next_tick(now) > INTERVAL_S / 2:  # a late second's end is the tick's
                self._intervals.end_second()
            began = engine.look(now)
            ticks = engine.tick(now)
            if began and not ticks and engine.fleet.processes > 1:
                self.tell_rates()  # all go by the sum
            if not ticks:
                continue
            self._world.quotas.tick(now)
            self._world.rejected.expire(now)
            self._world.ledger.renew()  # meters of topics that went quiet are gone
            self.tell_rates()
            for link in list(self._reactor.links):
                self._reactor.guard(link, link.check_progress, now, self._world.settings)
            self._reactor.settle(now)
            self._uplink.tell_complaints(now)

    async def _pace(self) -> None:
        """Keep the buckets of thresholds that delay and of resource groups up to date, while there are any."""
        while True:
            if self._engine.paces:
                self._engine.pace(trio.current_time())
                await trio.sleep(PACE_S)
            else:
                self._paces = trio.Event()
                await self._paces.wait()

    async def _deal(self) -> None:
        """Deal shares of client quotas out, while there are any."""
        counted: dict[int, int] = {}
        while True:
            if not self._world.quotas.has_shares:
                self._has_shares = trio.Event()
                await self._has_shares.wait()
                continue
            totals = {}
            for node_id, broker in self._engine.brokers.items():
                taken = broker.taken - counted.get(node_id, broker.taken)
                counted[node_id] = broker.taken
                totals[node_id] = (broker.limits.own_total, float(taken))
            now = trio.current_time()
            self._world.quotas.deal(totals, now)
            self._world.quotas.deal_out(now)
            await trio.sleep(DEAL_S)

    def tell_rates(self) -> None:
        engine, now = self._engine, trio.current_time()
        quotas = self._world.quotas.rates(MAX_QUOTA_RATES, now)
        self._uplink.post_if_heard(
            Rates(tuple(engine.rates()), engine.warnings(), tuple(quotas), tuple(engine.groups.rates(now)))
        )

    def _tell_latencies(self, now: float) -> None:
        """Unless control doesn't read: then later, of a longer time."""
        if self._uplink.is_heard:
            self._uplink.post(self._world.ledger.latencies.take(now - self._latencies_told, time.process_time()))
            self._latencies_told = now

    async def _tell_gauges(self) -> None:
        told: Gauges | None = None
        while True:
            links = self._reactor.links
            muted = sum(link.is_muted for link in links)
            used, came = self._reactor.budget.used, self._connections
            gauges = Gauges(len(links), muted, used, came.opening, came.taken)
            if gauges != told:
                told = gauges
                self._uplink.post_if_heard(gauges)
            ended = came.addresses.ended
            if ended and self._uplink.post_if_heard(Ended(dict(ended))):
                ended.clear()
            relieve(self._reactor, trio.current_time(), self._world.settings.frame_timeout_s)
            await trio.sleep(GAUGES_S)
