# A closed loop without network or clock: producers that answer delays and rejections as real clients do, connections
# that park what comes during a mute as sessions do, and a worker that ticks and paces the engine on time.

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count, pairwise

from policies.engine import PolicyEngine
from policies.limits.limiter import MAX_DELAY_S, MAX_WAIT_S
from policies.thresholds.pacing import PACE_S
from tests.policies.asking import Request

TURN_S = 0.002  # from an answer to the next request
BACKOFF_S = 0.1  # retry.backoff.ms, after the throttle


class Connection:
    """Always has a request to send; `in_flight` of them unless it is muted. `log` holds (time, bytes) as admitted.
    `pause_s`: seconds that it takes besides from an answer, or the end of a mute, to its next request.
    """

    def __init__(
        self, topic: str, size: int, in_flight: int = 5, node_id: int = 1, start: float = 0.0, pause_s: float = 0.0
    ) -> None:
        self.topic = topic.encode()
        self.size = size
        self.in_flight = in_flight
        self.node_id = node_id
        self.start = start
        self.pause_s = pause_s
        self.stop = float("inf")
        self.log: list[tuple[float, int]] = []
        self.rejections: list[float] = []
        self.told: list[float] = []
        self.denied_at: float | None = None

    def admitted(self, start: float, end: float) -> int:
        return sum(size for then, size in self.log if start <= then < end)

    def longest_gap(self, start: float, end: float) -> float:
        times = [start, *(then for then, _ in self.log if start <= then < end), end]
        return max(b - a for a, b in pairwise(times))


class Loop:
    """`run` handles everything that is due up to a time, in order."""

    def __init__(self, engine: PolicyEngine, connections: list[Connection], ages: bool = True) -> None:
        self.ages = ages
        self.engine = engine
        self.connections = connections
        self._order = count()
        self._due: list[tuple[float, int, Callable[[float], float | None]]] = []
        self.at(engine.next_tick_at, self._tick)
        self.at(PACE_S, self._pace)
        for connection in connections:
            self.at(connection.start, lambda now, c=connection: self._request(c, now))  # type: ignore[misc]

    def at(self, time: float, what: Callable[[float], float | None]) -> None:
        """Call it then; what it returns is when to call it next, None = never."""
        heapq.heappush(self._due, (time, next(self._order), what))

    def run(self, until: float) -> None:
        while self._due[0][0] < until:
            now, _, what = heapq.heappop(self._due)
            later = what(now)
            if later is not None:
                self.at(later, what)

    def rate(self, start: float, end: float, *connections: Connection) -> float:
        """Bytes per second that got in, of these or of all connections."""
        return sum(c.admitted(start, end) for c in connections or self.connections) / (end - start)

    def _tick(self, now: float) -> float:
        self.engine.apply_due_ticks(now)
        return self.engine.next_tick_at

    def _pace(self, now: float) -> float:
        if self.engine.needs_pacing:
            self.engine.pace_limits(now)
        return now + PACE_S

    def _request(self, c: Connection, now: float) -> float | None:
        if now >= c.stop:
            return None
        request = Request(self.engine, c.topic, c.size, node_id=c.node_id)
        denied_s = 0.0 if c.denied_at is None else now - c.denied_at
        verdict = request.ask(now, denied_s=denied_s if self.ages else 0.0)
        if verdict is not None:
            c.told.append(verdict.throttle_ms / 1000)
            assert 0 < verdict.throttle_ms / 1000 <= (MAX_WAIT_S if verdict.action == "reject" else MAX_DELAY_S)
            if verdict.action == "reject" and not verdict.observed_only:
                c.rejections.append(now)
                c.denied_at = now if c.denied_at is None else c.denied_at
                return now + verdict.throttle_ms / 1000 + BACKOFF_S
        c.denied_at = None
        request.admit(now)
        c.log.append((now, c.size))
        if verdict is None or verdict.observed_only:
            return now + TURN_S / c.in_flight + c.pause_s
        return now + max(verdict.throttle_ms / 1000, TURN_S) + c.pause_s
