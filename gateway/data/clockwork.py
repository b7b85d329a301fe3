# What a worker does by the clock: ticks of the meters, buckets, shares of client quotas, and what it tells control of
# itself. Also wakes what sleeps while there is nothing for it to do.

from __future__ import annotations

import trio

from gateway.channel import MAX_QUOTA_RATES, Ended, Gauges, Rates
from gateway.data.connections import Connections
from gateway.data.intervals import Intervals
from gateway.data.relief import relieve
from gateway.data.uplink import Uplink
from gateway.data.world import World
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

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for task in (self.tick, self._pace, self._deal, self._tell_gauges):
                nursery.start_soon(task)

    def wake(self) -> None:
        """Policies, quotas or the storage factor are others: there may be something to pace, or to deal out."""
        self._paces.set()
        self._has_shares.set()

    async def tick(self) -> None:
        while True:
            await trio.sleep(self._engine.next_tick(trio.current_time()))
            now = trio.current_time()
            if now >= self._engine.due:
                self._intervals.end_second()
            ticks = self._engine.tick(now)
            if not ticks:
                continue
            self._world.quotas.tick(ticks, now)
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
                totals[node_id] = (broker.own_threshold, float(taken))
            self._world.quotas.deal(totals, trio.current_time())
            await trio.sleep(DEAL_S)

    def tell_rates(self) -> None:
        quotas = self._world.quotas.rates(MAX_QUOTA_RATES)
        engine = self._engine
        self._uplink.post_if_heard(
            Rates(tuple(engine.rates()), engine.warnings(), tuple(quotas), tuple(engine.groups.rates()))
        )

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
            if came.ended and self._uplink.post_if_heard(Ended(dict(came.ended))):
                came.ended.clear()
            relieve(self._reactor, trio.current_time(), self._world.settings.frame_timeout_s)
            await trio.sleep(GAUGES_S)
