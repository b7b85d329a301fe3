# Client quotas in shares over several gateways of several workers: what reporters tell, what control deals out and what
# workers allocate, put together on a played clock.

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import pytest

from gateway.channel import DemandReport, ToControl
from gateway.data.worker.idle import IdleWatch
from gateway.data.worker.share_reporter import ShareReporter
from policies.engine import PolicyEngine
from policies.fleet.demand import SAMPLE_S
from policies.fleet.keys import total_key, total_out_key
from policies.fleet.page import SharedPage
from policies.fleet.shares import IDLE, LimitDemand, ShareAllocator
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.quota_limiters import ALLOCATE_S, QuotaLimiters
from policies.quotas.store import QuotaStore
from tests.policies.fleet.pages import pages

TOTAL: Final = 12_000.0
ALL: Final = 2 * TOTAL
STEP_S: Final = 0.01
CYCLE_S: Final = 0.5  # until gateways have heard each other


class Client(NamedTuple):
    """`shares` 0: it has no quota. `wants`: bytes per second."""

    gateway: int
    worker: int
    shares: int
    wants: float = ALL


class Worker:
    def __init__(self, page: SharedPage | None, quotas: QuotaStore, gateways: int) -> None:
        self.engine = PolicyEngine(0.0, page=page)
        self.engine.set_thresholds(TOTAL, {})
        self.engine.fleet.update_grants({}, gateways, 2.0, 0.0)
        self.broker = self.engine.broker_meters(1)
        self.quotas = QuotaLimiters(self.engine.fleet)
        self.quotas.set_quotas(quotas, 0.0)
        self.quotas.set_totals_out(TOTAL, {})
        self.told: dict[str, LimitDemand] = {}
        awake = IdleWatch(lambda: 0, lambda: True, lambda _: None)
        self.reporter = ShareReporter(self.engine, self._post, lambda *_: None, lambda: True, awake)
        self._counted = 0

    def _post(self, message: ToControl) -> bool:
        assert isinstance(message, DemandReport)
        self.told.update(message.demands)
        return True

    def allocate(self, now: float) -> None:
        taken, self._counted = self.broker.total_bytes - self._counted, self.broker.total_bytes
        total = self.broker.limits.thresholds.own_total
        self.quotas.allocate_shares({1: (total, float(taken))}, now)
        self.quotas.allocate_fetch_shares(now)


class Gateway:
    """Its control is the allocator, and its peers' published demands are the exchange."""

    def __init__(self, workers: int, quotas: QuotaStore, gateways: int) -> None:
        self.workers = [Worker(page, quotas, gateways) for page in (pages(workers) if workers > 1 else [None])]
        self.published: dict[str, LimitDemand] = {}
        self.peers: list[Gateway] = []
        self.control = ShareAllocator(self)
        self.control.update_limits({total_key(1): TOTAL, total_out_key(1): TOTAL})
        self.control.thaw_shares(0.0)

    @property
    def peer_count(self) -> int:
        return len(self.peers)

    def demands_for(self, key: str) -> list[LimitDemand]:
        return [peer.published[key] for peer in self.peers if not peer.published_demand(key).is_idle]

    def published_demand(self, key: str) -> LimitDemand:
        return self.published.get(key, IDLE)

    def publish(self) -> None:
        news = self.control.drain_changes()
        self.published.update(news)
        self.control.mark_published(news)
        for peer in self.peers:
            peer.control.mark_peers_changed(news)

    def report(self, now: float) -> None:
        for number, worker in enumerate(self.workers):
            worker.reporter.report_demand(worker.quotas, now)
            self.control.update_demand(str(number), dict(worker.told))
            worker.told.clear()
        grants = self.control.allocate_shares(now)
        for worker in self.workers:
            worker.engine.fleet.update_grants(grants, 1 + self.peer_count, 2.0, now)
            worker.engine.apply_shares(now)


def play(
    clients: Mapping[str, Client], key: str = "producer_byte_rate:shares", until: float = 40.0
) -> dict[str, float]:
    """Bytes per second of each in the second half."""
    quotas = QuotaStore({Entity(n): {QuotaKey.parse(key): float(c.shares)} for n, c in clients.items() if c.shares})
    count = 1 + max(client.gateway for client in clients.values())
    workers = [1 + max(c.worker for c in clients.values() if c.gateway == number) for number in range(count)]
    gateways = [Gateway(number, quotas, count) for number in workers]
    for gateway in gateways:
        gateway.peers = [peer for peer in gateways if peer is not gateway]
    at = {name: gateways[client.gateway].workers[client.worker] for name, client in clients.items()}
    limits = {name: worker.quotas.connection_limit(1, name, "", 0.0) for name, worker in at.items()}
    free_at, got = dict.fromkeys(clients, 0.0), dict.fromkeys(clients, 0.0)
    fetches = key.startswith("consumer")
    for step in range(round(until / STEP_S)):
        now = step * STEP_S
        for name, client in clients.items():
            size, worker = round(client.wants * STEP_S), at[name]
            if now < free_at[name]:
                continue
            for limiter in limits[name].consume_limiters if fetches else limits[name].produce_limiters:
                free_at[name] = now + limiter.check_admission(size, now, True, 0.0).wait_s
                limiter.charge_amount(size, now)
            got[name] += size if now >= until / 2 else 0.0
            if fetches:
                worker.quotas.record_fetched(1, size)
            else:
                worker.broker.total.uncounted += size
        for gateway in gateways:
            if step % round(ALLOCATE_S / STEP_S) == 0:
                for worker in gateway.workers:
                    worker.allocate(now)
            if step % round(SAMPLE_S / STEP_S) == 0:
                gateway.report(now)
            if step % round(CYCLE_S / STEP_S) == 0:
                gateway.publish()
    return {name: sent / (until / 2) for name, sent in got.items()}


@pytest.mark.seed("546.13")
@pytest.mark.parametrize("kind", ["producer_byte_rate", "consumer_byte_rate"])
@pytest.mark.parametrize(
    ("clients", "due"),
    [
        pytest.param(
            {"a": Client(0, 0, 1), "b": Client(0, 1, 1), "c": Client(1, 0, 1), "d": Client(1, 0, 1)},
            [3000, 3000, 3000, 3000],
            id="one gateway's are at two workers",
        ),
        pytest.param(
            {"a": Client(0, 0, 100, 1200.0), "b": Client(0, 0, 1), "c": Client(1, 0, 1)},
            [1200, 5400, 5400],
            id="one with many shares wants little",
        ),
        pytest.param(
            {"a": Client(0, 0, 10, 1200.0), "b": Client(0, 1, 2), "c": Client(1, 0, 1)},
            [1200, 7200, 3600],
            id="one with many shares wants little at another worker",
        ),
        pytest.param(
            {"a": Client(0, 0, 1, 9000.0), "b": Client(1, 0, 1)}, [6000, 6000], id="one had all that it wanted"
        ),
        pytest.param(
            {"a": Client(0, 0, 0, 4000.0), "b": Client(0, 0, 1), "c": Client(1, 0, 1)},
            [4000, 4000, 4000],
            id="one has no shares",
        ),
        pytest.param(
            {"a": Client(0, 0, 0, 9000.0), "b": Client(1, 0, 1)}, [9000, 3000], id="one gateway's have no shares"
        ),
    ],
)
def test_shares_are_of_one_total_at_whichever_gateway_and_worker(
    clients: dict[str, Client], due: list[float], kind: str
) -> None:
    assert list(play(clients, f"{kind}:shares").values()) == pytest.approx(due, rel=0.03)
