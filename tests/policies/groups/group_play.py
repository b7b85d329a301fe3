# A closed loop without network or clock around one worker's groups: producers that always have a request to send and
# wait as long as they are told, a gate that does what gateway/data/session/gate.py does, and a worker that paces and
# ticks.

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import count

from policies.engine import PolicyEngine
from policies.fleet.page import SharedPage
from policies.groups.finder import GroupResolver
from policies.groups.group_limiters import GroupLimitValues
from policies.thresholds.pacing import PACE_S
from policies.verdict import DELAY, Verdict
from tests.policies.asking import Request

TURN_S = 0.002  # from an answer to the next request
BACKOFF_S = 0.1
PATTERN = "{tenant}.{namespace}.{topic}"


def finder(
    tenants: Mapping[str, str] | None = None, namespaces: Mapping[str, str] | None = None, principal_pattern: str = ""
) -> GroupResolver:
    return GroupResolver(PATTERN, principal_pattern, tenants or {}, namespaces or {})


def engine_with(
    limits: Mapping[str, GroupLimitValues], tenants: Mapping[str, str], now: float = 0.0, page: SharedPage | None = None
) -> PolicyEngine:
    engine = PolicyEngine(now, page=page)
    engine.set_groups(limits, finder(tenants), now)
    return engine


class Producer:
    """`log`: (time, bytes, messages) as admitted. `pause_s`: what it waits by itself before the next request."""

    def __init__(
        self, topic: str, size: int = 10_000, messages: int = 10, node_id: int = 1, start: float = 0.0,
        stop: float = float("inf"), pause_s: float = TURN_S,
    ) -> None:  # fmt: skip
        self.topic = topic.encode()
        self.size, self.messages = size, messages
        self.node_id = node_id
        self.start, self.stop, self.pause_s = start, stop, pause_s
        self.log: list[tuple[float, int, int]] = []
        self.verdicts: list[Verdict] = []
        self.asked = 0
        self.denied_at: float | None = None

    def rate(self, start: float, end: float) -> float:
        return sum(size for then, size, _ in self.log if start <= then < end) / (end - start)

    def messages_rate(self, start: float, end: float) -> float:
        return sum(messages for then, _, messages in self.log if start <= then < end) / (end - start)


def send(engine: PolicyEngine, producer: Producer, now: float) -> Verdict | None:
    """One request's way through a gate."""
    size, messages = producer.size, producer.messages
    request = Request(engine, producer.topic, size, messages, producer.node_id)
    producer.asked += request.asked
    why = request.ask(now, denied_s=now - producer.denied_at if producer.denied_at is not None else 0.0)
    if why is not None:
        producer.verdicts.append(why)
        if why.action != DELAY and not why.observed_only:
            producer.denied_at = producer.denied_at if producer.denied_at is not None else now
            return why
    producer.denied_at = None
    request.admit(now)
    producer.log.append((now, size, messages))
    return why


class Loop:
    """Several workers at one time: `run` handles everything that is due up to a time, in order."""

    def __init__(self, *workers: tuple[PolicyEngine, list[Producer]]) -> None:
        self._order = count()
        self._due: list[tuple[float, int, object, PolicyEngine]] = []
        for engine, producers in workers:
            self._push(PACE_S, "pace", engine)
            self._push(engine.next_tick_at, "tick", engine)
            for producer in producers:
                self._push(producer.start, producer, engine)

    def run(self, until: float) -> None:
        while self._due[0][0] < until:
            now, _, what, engine = heapq.heappop(self._due)
            if what == "pace":
                engine.pace_limits(now)
                self._push(now + PACE_S, what, engine)
            elif what == "tick":
                engine.apply_due_ticks(now)
                self._push(engine.next_tick_at, what, engine)
            elif isinstance(what, Producer) and now < what.stop:
                why = send(engine, what, now)
                wait = 0.0 if why is None or why.observed_only else why.throttle_ms / 1000
                backoff = BACKOFF_S if why is not None and why.action != DELAY else 0.0
                self._push(now + max(wait, what.pause_s) + backoff, what, engine)

    def _push(self, time: float, what: object, engine: PolicyEngine) -> None:
        heapq.heappush(self._due, (time, next(self._order), what, engine))
