# Several gateways in front of one broker whose total they share, in a closed loop without network or clock: each with
# an engine, producers, and the shares that the real allocator deals out from what all gateways report. A report takes a
# while on its way, as between real gateways; rates follow a tick, by way of the real publisher.

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from gateway.channel import PeerRates, WorkerRates
from gateway.control.fleet.exchange.exchange import ThresholdRate
from gateway.control.fleet.peer_rates import RatePublisher
from gateway.control.fleet.shares import PEER_RATES_INTERVAL_S
from policies.engine import PolicyEngine
from policies.fleet.demand import SAMPLE_S, DemandMeter
from policies.fleet.keys import total_key
from policies.fleet.page import SharedPage
from policies.fleet.shares import LimitDemand, ShareAllocator
from tests.policies.fleet.fleet_sim import Book
from tests.policies.fleet.pages import pages
from tests.policies.thresholds.pacing_play import Connection, Loop

NODE: Final = 1
KEY: Final = total_key(NODE)
CYCLE_S: Final = 1.0
LATENCY_S: Final = 0.3  # of a report, at most
SETTLE_S: Final = 2.0
STEPS: Final = 20  # of a sample, in which workers take turns
URGENT_S: Final = 0.2  # between reports that say that a gateway has begun or ended to want more


class Worker:
    """One worker: its engine and what is connected to it."""

    def __init__(self, topics: Sequence[str], connections: list[Connection], page: SharedPage | None) -> None:
        self.engine = PolicyEngine(now=0.0, page=page)
        self.engine.set_listed_topics(NODE, topics)
        self.broker = self.engine.broker_meters(NODE)
        self.loop = Loop(self.engine, connections)
        self.demand = DemandMeter()
        self.next_tick_at = 0.0  # as it told its rates last
        self._taken = 0

    def measure_demand(self, now: float) -> dict[str, LimitDemand]:
        """As ShareReporter does."""
        limits, taken = self.broker.limits, self.broker.total_bytes
        size, self._taken = taken - self._taken, taken
        self.demand.record_use(KEY, size, limits.is_hungry(now), now, claim=limits.claimed_rate)
        return self.demand.collect_changes(now)

    def take_rates(self, rates: PeerRates) -> bool:
        self.engine.set_peer_traffic(rates.brokers, rates.processes)
        return True


class Gateway:
    def __init__(self, workers: list[Worker], total: float, clock: Callable[[], float]) -> None:
        self.workers = workers
        self.rates = RatePublisher(clock)
        self.rates.set_totals(True)
        for number, worker in enumerate(workers):
            self.rates.add_worker(number, worker.take_rates)
        self.book = Book()
        self.allocator = ShareAllocator(self.book)
        self.allocator.thaw_shares(0.0)
        self.allocator.update_limits({KEY: total})
        self.sent_at = 0.0

    def rate(self, start: float, end: float) -> float:
        return sum(worker.loop.rate(start, end) for worker in self.workers)


class Fleet:
    """`producers`: by gateway and worker, connections. `thresholds`: of topics. `burst_s`: they reject with that burst;
    None: they delay.
    """

    def __init__(
        self,
        total: float,
        thresholds: dict[str, float],
        topics: Sequence[str],
        producers: Sequence[Sequence[list[Connection]]],
        seed: int = 1,
        burst_s: float | None = None,
    ) -> None:
        self.total = total
        self._burst_s = burst_s
        self.now = 0.0
        self._chance = random.Random(seed)
        self._order = count()
        self._mail: list[tuple[float, int, Callable[[], None]]] = []
        self._rates: dict[int, list[ThresholdRate]] = {}  # by gateway, as others know them
        self._rates_at = 0.0
        self.gateways = []
        for many in producers:
            own = [None] if len(many) == 1 else pages(len(many))
            workers = [Worker(topics, each, page) for each, page in zip(many, own, strict=True)]
            self.gateways.append(Gateway(workers, total, lambda: self.now))
        self.workers = [worker for gateway in self.gateways for worker in gateway.workers]
        for gateway in self.gateways:
            for peer in range(len(self.gateways)):
                if self.gateways[peer] is not gateway:
                    gateway.book.hear(str(peer), {}, 0.0, whole=True)
        for worker in self.workers:
            worker.engine.fleet.update_grants({}, len(self.gateways), SETTLE_S, 0.0)
            worker.engine.set_peer_traffic({}, len(self.workers))
        self.set_thresholds(total, thresholds)

    @property
    def connections(self) -> list[Connection]:
        return [each for worker in self.workers for each in worker.loop.connections]

    def set_thresholds(self, total: float, thresholds: dict[str, float]) -> None:
        self.total = total
        for gateway in self.gateways:
            gateway.allocator.update_limits({KEY: total})
            for worker in gateway.workers:
                if self._burst_s is None:
                    worker.engine.set_thresholds(total, thresholds, on_exceed="delay")
                else:
                    worker.engine.set_thresholds(total, thresholds, burst_s=self._burst_s)

    def run(self, until: float) -> None:
        while self.now < until:
            self.now = round(self.now + SAMPLE_S, 6)
            for step in range(1 - STEPS, 1):  # or the first worker would take of shared buckets what others come for
                for worker in self.workers:
                    worker.loop.run(self.now + step * SAMPLE_S / STEPS)
            while self._mail and self._mail[0][0] <= self.now:
                heapq.heappop(self._mail)[2]()
            for number, gateway in enumerate(self.gateways):
                self._deal(number, gateway)
            self._tell_rates()

    def share(self, start: float, end: float) -> float:
        """Of the total, what got in."""
        return sum(gateway.rate(start, end) for gateway in self.gateways) / self.total

    def rate(self, topic: str, start: float, end: float) -> float:
        return sum(each.admitted(start, end) for each in self.connections if each.topic == topic.encode()) / (
            end - start
        )

    def _deal(self, number: int, gateway: Gateway) -> None:
        now = self.now
        for index, worker in enumerate(gateway.workers):
            gateway.allocator.update_demand(str(index), worker.measure_demand(now))
        since = now - gateway.sent_at
        if len(self.gateways) > 1 and (since >= CYCLE_S or (gateway.allocator.is_urgent and since >= URGENT_S)):
            self._report(number, gateway)
        granted = gateway.allocator.allocate_shares(now)
        for worker in gateway.workers:
            worker.engine.fleet.update_grants(granted, len(self.gateways), SETTLE_S, now)
            worker.engine.apply_shares(now)

    def _report(self, number: int, gateway: Gateway) -> None:
        gateway.sent_at, gateway.allocator.is_urgent = self.now, False
        gateway.book.own = {**gateway.book.own, **gateway.allocator.drain_changes()}
        gateway.allocator.mark_published([KEY])
        uses, rates = dict(gateway.book.own), gateway.rates.collect_changed_rates()
        due = self.now + self._chance.uniform(0.0, LATENCY_S)

        def arrive() -> None:
            if rates is not None:
                self._rates[number] = rates
            for peer in self.gateways:
                if peer is not gateway:
                    if rates is not None:
                        peer.rates.mark_peers_changed()
                    peer.allocator.mark_peers_changed(peer.book.hear(str(number), uses, self.now, whole=True))

        heapq.heappush(self._mail, (due, next(self._order), arrive))

    def _tell_rates(self) -> None:
        """As of the last tick, where they are news."""
        for gateway in self.gateways:
            for number, worker in enumerate(gateway.workers):
                if worker.next_tick_at != worker.engine.next_tick_at:
                    worker.next_tick_at = worker.engine.next_tick_at
                    gateway.rates.set_worker_rates(number, WorkerRates(tuple(worker.engine.collect_rates())))
        if self.now - self._rates_at >= PEER_RATES_INTERVAL_S:
            self._rates_at = self.now
            for number, gateway in enumerate(self.gateways):
                gateway.rates.publish_rates(len(self.workers), lambda number=number: self._rates_of_others(number))  # type: ignore[misc]

    def _rates_of_others(self, number: int) -> dict[int, tuple[float, dict[str, float]]]:
        total, topics = 0.0, dict[str, float]()
        for rate in (rate for peer, rates in self._rates.items() if peer != number for rate in rates):
            if rate.topic is None:
                total += rate.rate
            else:
                topics[rate.topic] = topics.get(rate.topic, 0.0) + rate.rate
        return {NODE: (total, topics)}
