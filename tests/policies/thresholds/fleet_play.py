# Several gateways in front of one broker whose total they share, in a closed loop without network or clock: each with
# an engine, producers, and the shares that the real allocator deals out from what all gateways report. A report takes a
# while on its way, as between real gateways; rates of topics follow a tick.

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Final

from policies.engine import PolicyEngine
from policies.fleet.demand import SAMPLE_S, DemandMeter
from policies.fleet.keys import total_key
from policies.fleet.page import SharedPage
from policies.fleet.shares import LimitDemand, ShareAllocator
from policies.meters.broker_meters import NO_PEER_TRAFFIC, PeerTraffic
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
    """One worker: its engine and what is connected to it. `own_rates`: as it told them last; `told_rates`: as it knows
    those of others.
    """

    def __init__(self, topics: Sequence[str], connections: list[Connection], page: SharedPage | None) -> None:
        self.engine = PolicyEngine(now=0.0, page=page)
        self.engine.set_listed_topics(NODE, topics)
        self.broker = self.engine.broker_meters(NODE)
        self.loop = Loop(self.engine, connections)
        self.demand = DemandMeter()
        self.own_rates = self.told_rates = NO_PEER_TRAFFIC
        self._taken = 0

    def measure_demand(self, now: float) -> dict[str, LimitDemand]:
        """As ShareReporter does."""
        limits, taken = self.broker.limits, self.broker.total_bytes
        size, self._taken = taken - self._taken, taken
        self.demand.record_use(KEY, size, limits.is_hungry(now), now, claim=limits.claimed_rate)
        return self.demand.collect_changes(now)


class Gateway:
    def __init__(self, workers: list[Worker], total: float) -> None:
        self.workers = workers
        self.book = Book()
        self.allocator = ShareAllocator(self.book)
        self.allocator.thaw_shares(0.0)
        self.allocator.set_limits({KEY: total})
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
        self._rates: dict[int, PeerTraffic] = {}  # by gateway, as others know them
        self.gateways = []
        for many in producers:
            own = [None] if len(many) == 1 else pages(len(many))
            workers = [Worker(topics, each, page) for each, page in zip(many, own, strict=True)]
            self.gateways.append(Gateway(workers, total))
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
            gateway.allocator.set_limits({KEY: total})
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
        uses, rates = dict(gateway.book.own), _add_rates(worker.own_rates for worker in gateway.workers)
        due = self.now + self._chance.uniform(0.0, LATENCY_S)

        def arrive() -> None:
            self._rates[number] = rates
            for peer in self.gateways:
                if peer is not gateway:
                    peer.allocator.mark_peers_changed(peer.book.hear(str(number), uses, self.now, whole=True))

        heapq.heappush(self._mail, (due, next(self._order), arrive))

    def _tell_rates(self) -> None:
        """One-minute rates of the others, as of their last tick, where they are news."""
        for worker in self.workers:
            topics = {name: meter.rate for name, meter in worker.broker.topics.items()}
            worker.own_rates = PeerTraffic(worker.broker.total.rate, topics)
        for number, gateway in enumerate(self.gateways):
            for worker in gateway.workers:
                others = [rates for peer, rates in self._rates.items() if peer != number]
                near = _add_rates(other.own_rates for other in gateway.workers if other is not worker)
                traffic = _add_rates([near, *others])._replace(near=near.topics)
                if traffic != worker.told_rates:
                    worker.told_rates = traffic
                    worker.engine.set_peer_traffic({NODE: traffic}, len(self.workers))


def _add_rates(many: Iterable[PeerTraffic]) -> PeerTraffic:
    total, topics = 0.0, dict[bytes, float]()
    for each in many:
        total += each.rate
        for name, rate in each.topics.items():
            topics[name] = topics.get(name, 0.0) + rate
    return PeerTraffic(total, topics)
