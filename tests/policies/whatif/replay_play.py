# A worker with clients that retry, played at steps of 10 ms against the engine, and written down as the gateway writes
# usage records: a row per client, topic and outcome for each second. What a replay of these rows has to give back.

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from policies.engine import PolicyEngine
from policies.meters.broker_meters import PeerTraffic
from policies.whatif import tick_phase
from policies.whatif.rows import ReplayRow, WorkerLife
from tests.policies.asking import record, rejection

STEP_S = 0.01
IN_FLIGHT = 5
ANSWER_S = 0.004  # until the broker has answered: bytes count as accepted then


@dataclass
class Client:
    """A producer that queues `rate(t)` bytes per second and sends requests of `size`; what is rejected goes first."""

    topic: str
    name: str
    rate: float
    size: int = 20_000
    burst_s: float = 0.0  # it produces for so long, then rests as long
    queue: float = 0.0
    retries: int = 0  # requests at the head that were rejected before
    muted_until: float = 0.0

    def produce(self, t: float) -> None:
        if not self.burst_s or t % (2 * self.burst_s) < self.burst_s:
            self.queue += self.rate * STEP_S


@dataclass
class Worker:
    """`rows` is its record. `began`: when its engine did, in seconds of Unix time."""

    engine: PolicyEngine
    clients: list[Client]
    number: int = 0
    interval_start: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(7))  # who comes first in a step
    drift_s: float = 0.0  # by which intervals are longer than a second; 0: they follow the ticks
    seq: int = 0
    rows: list[ReplayRow] = field(default_factory=list)
    counts: dict[tuple[str, str, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0] * 4))
    answers: deque[tuple[float, Client, int]] = field(default_factory=deque)

    @property
    def life(self) -> tuple[str, str, int]:
        return "gw", "boot", self.number

    def step(self, now: float, t: float) -> None:
        left = self.engine.seconds_to_tick(now) % 1.0
        at_edge = now - self.interval_start > 0.5 and (left < STEP_S / 2 or left > 1 - STEP_S / 2)
        if now - self.interval_start >= 1 + self.drift_s if self.drift_s else at_edge:
            self._close(now)
        self.engine.apply_due_ticks(now)
        while self.answers and self.answers[0][0] <= now:
            _, client, again = self.answers.popleft()
            self._count(client, "accepted", "", client.size if again else 0)
        for client in self.chance.sample(self.clients, len(self.clients)):
            client.produce(t)
            if now >= client.muted_until:
                self._send(client, now)

    def _send(self, client: Client, now: float) -> None:
        broker = self.engine.broker_meters(1)
        in_flight = min(IN_FLIGHT, int(client.queue / client.size))
        for number in range(in_flight):
            again = number < client.retries
            if record(broker, client.topic.encode(), client.size):
                client.queue -= client.size
                self.answers.append((now + ANSWER_S, client, again))
                continue
            wait_ms = rejection(self.engine, 1, client.topic.encode(), now).throttle_ms
            self._count(client, "rejected", "topic-threshold", client.size if again else 0, wait_ms)
            client.muted_until = now + wait_ms / 1000
        admitted = 0 if client.muted_until > now else in_flight
        client.retries = max(0, client.retries - admitted) if admitted else max(client.retries, in_flight)

    def _count(self, client: Client, outcome: str, reason: str, repeats: int, delay_ms: int = 0) -> None:
        counts = self.counts[client.topic, client.name, f"{outcome} {reason}"]
        for at, more in enumerate((client.size, 1, delay_ms, repeats)):
            counts[at] += more

    def _close(self, now: float) -> None:
        start_ms, end_ms = round(self.interval_start * 1000), round(now * 1000)
        self.interval_start = now
        for (topic, name, what), (size, requests, delay_ms, repeats) in self.counts.items():
            outcome, _, reason = what.partition(" ")
            stream = (1, topic, f"User:{name}", name)
            self.rows.append(
                ReplayRow(self.life, self.seq, start_ms, end_ms, stream, outcome, reason, size, requests * 10, requests,
                    delay_ms, repeats)
            )  # fmt: skip
        self.seq += bool(self.counts)
        self.counts.clear()


def play(workers: list[Worker], start: float, seconds: float, exchange_s: float = 0.5) -> list[ReplayRow]:
    """Their rows in order, from `start` (Unix time) on. Workers tell each other their rates every `exchange_s`."""
    for worker in workers:
        worker.interval_start = start
    told = start
    steps = round(seconds / STEP_S)
    for number in range(steps):
        now = start + number * STEP_S
        if len(workers) > 1 and now - told >= exchange_s:
            told = now
            _tell_others(workers)
        for worker in workers:
            worker.step(now, number * STEP_S)
    rows = [row for worker in workers for row in worker.rows]
    return sorted(rows, key=lambda row: (row.start_ms, row.life))


def _tell_others(workers: list[Worker]) -> None:
    for worker in workers:
        rate, topics = 0.0, defaultdict[bytes, float](float)
        for other in workers:
            if other is not worker:
                broker = other.engine.broker_meters(1)
                rate += broker.total.rate
                for name, meter in broker.topics.items():
                    topics[name] += meter.rate
        worker.engine.set_peer_traffic({1: PeerTraffic(rate, topics)})


def phases_of(rows: Iterable[ReplayRow]) -> dict[WorkerLife, tick_phase.TickPhase]:
    """When each worker's ticks were, as the audit finds it."""
    votes: dict[WorkerLife, list[tuple[int, int, int]]] = defaultdict(list)
    edges: dict[WorkerLife, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        edges[row.life][row.start_ms % tick_phase.SECOND_MS // tick_phase.BIN_MS] += 1
        wait_ms = row.delay_ms / max(1, row.requests)
        if row.reason == "topic-threshold" and 0 < wait_ms < tick_phase.MAX_WAIT_MS:
            votes[row.life].append((*tick_phase.phase_vote(row.start_ms, row.end_ms, wait_ms), 1))
    found = {life: tick_phase.find_phase(own, edges[life]) for life, own in votes.items()}
    return {life: phase for life, phase in found.items() if phase is not None}
