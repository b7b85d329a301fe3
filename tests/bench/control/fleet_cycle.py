"""What a cycle costs control's event loop, and for how long nobody else has a turn: one gateway of two workers with
5,000 groups, each with four usages, among gateways that use the same. The real code, without a topic: what workers say,
what is reported, what others' reports change, and the parts that follow.

    .venv/bin/python -m tests.bench.control.fleet_cycle
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from gateway.channel import DemandReport
from gateway.control.fleet.exchange.exchange import FleetParty, GatewayUsage
from gateway.control.fleet.exchange.peers import PeerTable
from gateway.control.fleet.exchange.reports import UsageReporter
from gateway.control.fleet.shares import FleetControl
from gateway.control.metrics import FleetMetrics
from gateway.data.worker.share_reporter import MAX_PER_MESSAGE
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.fleet.shares import LimitDemand
from policies.groups.names import DISPATCH_BYTES, DISPATCH_MSGS, EXISTS, PUBLISH_BYTES, PUBLISH_MSGS
from tests.bench.control.resource_model import Model, Uses, boot_of, changed, usage
from tests.gateway.control.contexts import make_context
from tests.gateway.control.fleet.fleet_play import Reporter as Other

WORKERS = 2
PEERS = 2
RATES = (PUBLISH_BYTES, PUBLISH_MSGS, DISPATCH_BYTES, DISPATCH_MSGS)


class Exchange:
    """The exchange's place, as FleetControl sees it."""

    health = SimpleNamespace(is_up=True, problem="")
    writer = SimpleNamespace(sent_messages=0, sent_bytes=0)
    received_messages = received_bytes = 0

    def __init__(self, peers: PeerTable) -> None:
        self.peers = peers

    def report_soon(self) -> None:
        pass


class Gateway:
    """Control of one gateway. `steps`: CPU seconds of each step, which gives nobody else a turn, by what it was."""

    def __init__(self, names: list[str]) -> None:
        values = {PolicyKey.of_group(name, rate): 1e9 for name in names for rate in RATES}
        self.control = FleetControl(make_context(), FleetMetrics(), exchange=self._make_exchange)  # type: ignore[arg-type]
        self.control.set_policies(PolicySet(values | {PolicyKey.of_group(name, EXISTS): 1.0 for name in names}))
        for number in range(WORKERS):
            self.control.add_worker(number, lambda message: True)
        self.control.reach.decided.set()
        self.control.on_exchange_state(True)
        self.steps: dict[str, list[float]] = defaultdict(list)

    def _make_exchange(self, party: FleetParty) -> Exchange:
        self.reporter = UsageReporter("gateway", boot_of(0), limit_of=party.find_limit)
        self.peers = PeerTable(self.reporter)
        return Exchange(self.peers)

    def demand(self, worker: int, uses: Uses) -> None:
        told = list(uses.items())
        for at in range(0, len(told), MAX_PER_MESSAGE):
            with self._step("a worker's demand"):
                self.control.record_demand(worker, DemandReport(dict(told[at : at + MAX_PER_MESSAGE])))

    def report(self) -> list[bytes]:
        """As Exchange does it."""
        messages: list[bytes] = []
        present = GatewayUsage({}, has_more=True)
        while present.has_more:
            with self._step("a report: what changed"):
                present = self.control.current_usage()
                self.reporter.record_demands(present.demands)
        report = self.reporter.make_report(workers=WORKERS)
        while True:
            with self._step("a report: its messages"):
                message = next(report, None)
                self.control.on_report_published(self.reporter.pop_changed_limits())
            if message is None:
                return messages
            messages.append(message)

    def hear(self, messages: list[bytes]) -> None:
        for message in messages:
            with self._step("another's report"):
                heard = self.peers.handle_report(message, None, 0.0)
                if heard is not None:
                    self.control.on_peer_news(heard)

    def deal(self) -> None:
        while True:
            with self._step("parts"):
                self.control.allocate_shares()
            if not self.control.is_behind:
                return

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        began = time.thread_time()
        yield
        self.steps[what].append(time.thread_time() - began)


def play(groups: int, share: float, cycles: int, chance: random.Random) -> dict[str, list[float]]:
    """So many cycles in each of which that share of all usages changes, here and elsewhere; the steps of one cycle are
    those of all, divided.
    """
    names = Model(namespaces=groups).names(chance)
    gateway, others = Gateway(names), [Other(f"peer-{n}", boot_of(n + 1)) for n in range(PEERS)]
    here = [usage(names, chance) for _ in range(WORKERS)]
    there = [usage(names, chance) for _ in others]
    for cycle in range(cycles + 2):
        if cycle == 2:  # all have begun, and know each other
            gateway.steps.clear()
        for number, uses in enumerate(here):
            gateway.demand(number, _change(uses, share if cycle else 1.0, chance))
        gateway.report()
        gateway.reporter.on_report_arrived()
        for other, uses in zip(others, there, strict=True):
            _change(uses, share, chance)
            gateway.hear(other.say(uses))
        gateway.deal()
    return gateway.steps


def _change(uses: Uses, share: float, chance: random.Random) -> Uses:
    news: dict[str, LimitDemand] = {key: changed(use, chance) for key, use in uses.items() if chance.random() < share}
    uses.update(news)
    return news


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=5000)
    parser.add_argument("--cycles", type=int, default=10)
    options = parser.parse_args()
    print(f"{'':28}{'ms per cycle':>14}{'longest ms':>12}{'median ms':>12}")
    for share in (0.0, 0.02, 0.1, 1.0):
        print(f"{share:.0%} of {4 * options.groups:,} usages change each cycle")
        for what, steps in play(options.groups, share, options.cycles, random.Random(82)).items():
            middle = sorted(steps)[len(steps) // 2]
            total = sum(steps) / options.cycles
            print(f"   {what:25}{total * 1e3:>14.1f}{max(steps) * 1e3:>12.1f}{middle * 1e3:>12.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
