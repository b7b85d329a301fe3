# A failing plan cut down to what its violation needs, and the line that makes it a test.

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from tests.simulation.clock import START_S
from tests.simulation.judge import Judge
from tests.simulation.world import WARM_UP_S, Plan, World

RUNS: Final = 150  # of worlds, at most
LEAST_S: Final = 4.0  # of a world's time
ROUGH_S: Final = 2.0  # added to the time of the violation


def kind_of(violation: str) -> str:
    return violation.split(" ", 1)[1].split(":", maxsplit=1)[0]


def failed_after_s(judge: Judge, kind: str) -> float | None:
    """Seconds from the clients' start to the first violation of that kind; None: there is none."""
    times = [float(each.split(" ", 1)[0]) for each in judge.violations if kind_of(each) == kind]
    return min(times) - START_S - WARM_UP_S if times else None


def as_test(plan: Plan) -> str:
    """A test in one line; it needs ClientPlan, Fault, Plan and World of tests.simulation.world."""
    return f"assert World({plan!r}).run().violations == []"


class Minimiser:
    """Cuts a plan down for as long as it fails.

    Args:
        fails_after_s: runs a plan; the seconds after which it fails, None where it doesn't.

    Attributes:
        plan: the smallest so far that fails. `runs`: of worlds.
    """

    def __init__(
        self, plan: Plan, fails_after_s: Callable[[Plan], float | None], *, most_runs: int = RUNS,
        told: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.runs = 0
        self._fails_after_s = fails_after_s
        self._most_runs = most_runs
        self._told = told
        self._tried = set[str]()

    def run(self) -> Plan:
        """The smallest plan that fails which was found."""
        before = None
        while before != self.plan and self.runs < self._most_runs:
            before = self.plan
            self._drop_faults()
            for cut in (_with_fewer_clients, _with_fewer_processes, _with_less_time, _with_simpler_clients):
                self._cut(cut)
        return self.plan

    def _cut(self, smaller_plans: Callable[[Plan], Iterator[Plan]]) -> None:
        """The first of them that fails takes the plan's place, as often as there is one."""
        while any(self._try(smaller) for smaller in smaller_plans(self.plan)):
            pass

    def _try(self, smaller: Plan) -> bool:
        text = repr(smaller)
        if text in self._tried or self.runs >= self._most_runs:
            return False
        self._tried.add(text)
        self.runs += 1
        after_s = self._fails_after_s(smaller)
        if after_s is None:
            return False
        self.plan = smaller
        self._told(
            f"{self.runs} runs: {smaller.seconds:.0f} s, {len(smaller.faults)} faults, {len(smaller.clients)} clients,"
            f" {smaller.gateways} gateways with {smaller.workers} workers"
        )
        seconds = float(math.ceil(after_s + ROUGH_S))
        if seconds < smaller.seconds:  # what would come later has no part in it
            self._try(replace(smaller, seconds=seconds, faults=tuple(f for f in smaller.faults if f.at < after_s)))
        return True

    def _drop_faults(self) -> None:
        at_once = len(self.plan.faults)
        while at_once:
            at = 0
            while at < len(self.plan.faults):
                faults = self.plan.faults
                if not self._try(replace(self.plan, faults=faults[:at] + faults[at + at_once :])):
                    at += at_once
            at_once //= 2


def _with_fewer_clients(plan: Plan) -> Iterator[Plan]:
    clients = plan.clients
    if len(clients) > 1:
        for at in range(len(clients)):
            yield replace(plan, clients=clients[:at] + clients[at + 1 :])


def _with_fewer_processes(plan: Plan) -> Iterator[Plan]:
    for gateways in range(1, plan.gateways):
        clients = tuple(
            replace(client, gateways=tuple(each for each in client.gateways if each < gateways) or (0,))
            for client in plan.clients
        )
        yield replace(plan, gateways=gateways, clients=clients)
    for workers in range(1, plan.workers):
        yield replace(plan, workers=workers)


def _with_less_time(plan: Plan) -> Iterator[Plan]:
    for share in (0.5, 0.75):
        seconds = float(math.ceil(plan.seconds * share))
        if LEAST_S <= seconds < plan.seconds:
            yield replace(plan, seconds=seconds, faults=tuple(fault for fault in plan.faults if fault.at < seconds))


def _with_simpler_clients(plan: Plan) -> Iterator[Plan]:
    """All begin at once and with nothing; one topic, one partition."""
    if any(client.starts_s or client.backlog for client in plan.clients):
        yield replace(plan, clients=tuple(replace(each, starts_s=0.0, backlog=0) for each in plan.clients))
    name = next(iter(plan.topics))
    for topics in ({name: plan.topics[name]}, {name: 1}):
        if topics != plan.topics:
            yield replace(plan, topics=topics, clients=tuple(replace(each, topics=topics) for each in plan.clients))


def minimise(plan: Plan, kind: str, *, told: Callable[[str], None] = lambda text: None) -> Plan:
    """A smaller plan with a violation of that kind."""
    return Minimiser(plan, lambda smaller: failed_after_s(World(smaller).run(), kind), told=told).run()
