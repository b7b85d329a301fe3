# The limits that the scenarios of enforcement.py need, as a policy of an operator's own: `policies: ["…:make"]` loads
# it into the worker through the same interface (policies/plugin.py) as any other.
#
# What happens to a topic is told by its name, `<scenario>--<anything>`, and by the time since its first batch was seen.
# So one gateway serves all cells of the matrix at once, and none knows of another. Other topics are left alone.

from __future__ import annotations

import random
from collections.abc import Callable

from policies.verdict import DELAY, REJECT, Verdict

SEPARATOR = "--"
MAX_MS = 10_000

# Seconds since the first batch of a topic. enforcement.py derives its expectations from them.
DELAY_UNTIL_S = 9.0
BOUND_UNTIL_S = 30.0
ONE_PARTITION_UNTIL_S = 6.0
PAUSE_S = 40.0
LIMIT_FROM_S, LIMIT_UNTIL_S = 2.0, 9.0
STORM_S, STORM_THROTTLE_S = 12.0, 3.0
MIXED_S = 6.0
REJECTED_SHARE = 0.30
# With it the first batch is rejected and the next three pass: the brokers don't know the producer yet, and would accept
# any sequence of it. Without a fence that costs records.
SEED = 21

_Rule = Callable[[float, int, random.Random], Verdict | None]


def delay(throttle_ms: float, reason: str) -> Verdict:
    wait = max(1, round(min(throttle_ms, MAX_MS)))
    return Verdict(DELAY, reason, wait, f"delayed by {wait} ms for a test")


def reject(throttle_ms: float, reason: str) -> Verdict:
    wait = max(1, round(min(throttle_ms, MAX_MS)))
    return Verdict(REJECT, reason, wait, f"over a test's limit of 0 B/s; retry in {wait} ms")


def _delay_3s(since: float, partition: int, chance: random.Random) -> Verdict | None:
    return delay(3000, "test-delay") if since < DELAY_UNTIL_S else None


def _delay_bound(since: float, partition: int, chance: random.Random) -> Verdict | None:
    return delay(MAX_MS, "test-delay") if since < BOUND_UNTIL_S else None


def _reject_30(since: float, partition: int, chance: random.Random) -> Verdict | None:
    return reject(200, "test-random") if chance.random() < REJECTED_SHARE else None


def _one_partition(since: float, partition: int, chance: random.Random) -> Verdict | None:
    return _until(ONE_PARTITION_UNTIL_S, since, 1000) if partition == 0 else None


def _pause(since: float, partition: int, chance: random.Random) -> Verdict | None:
    return _until(PAUSE_S, since, MAX_MS)


def _acks0(since: float, partition: int, chance: random.Random) -> Verdict | None:
    """First what would be rejected (and is delayed, for nobody could be told), then delays."""
    return _until(3.0, since, 500) or (delay(500, "test-delay") if since < 8.0 else None)


def _transactions(since: float, partition: int, chance: random.Random) -> Verdict | None:
    return _until(4.0, since, 1000) or (delay(1000, "test-delay") if since < 8.0 else None)


def _lifted(since: float, partition: int, chance: random.Random) -> Verdict | None:
    return _until(LIMIT_UNTIL_S, since, 2000) if since >= LIMIT_FROM_S else None


def _storm(since: float, partition: int, chance: random.Random) -> Verdict | None:
    return reject(STORM_THROTTLE_S * 1000, "test-limit") if since < STORM_S else None


def _mixed(since: float, partition: int, chance: random.Random) -> Verdict | None:
    return reject(5000, "test-limit") if since < MIXED_S else None


def _until(end: float, since: float, throttle_ms: float) -> Verdict | None:
    return reject(min(throttle_ms, (end - since) * 1000), "test-limit") if since < end else None


RULES: dict[str, _Rule] = {
    "delay-3s": _delay_3s,
    "delay-bound": _delay_bound,
    "reject-30": _reject_30,
    "one-partition": _one_partition,
    "pause-40s": _pause,
    "acks-0": _acks0,
    "transactions": _transactions,
    "lifted": _lifted,
    "storm": _storm,
    "mixed-limited": _mixed,
    "mixed-limited-java": _mixed,
}


class ByTopic:
    """Limits topics by their names. Chance is the same for each, so a run can be repeated as far as its client does."""

    def __init__(self) -> None:
        self._began: dict[bytes, tuple[float, random.Random]] = {}
        self._met: dict[bytes, float] = {}

    def decide(
        self,
        node_id: int,
        topic: bytes,
        partition: int,
        producer_id: int,
        size: int,
        principal: str,
        client_id: str,
        now: float,
    ) -> Verdict | None:
        name, separator, _ = topic.decode().partition(SEPARATOR)
        rule = RULES.get(name) if separator else None
        if rule is None:
            return None
        if topic not in self._began:
            self._began[topic] = now, random.Random(SEED)
        began, chance = self._began[topic]
        since = now - began
        if rule is _lifted and since >= LIMIT_FROM_S:  # for its whole time from when it is met: a client may be slow
            since = LIMIT_FROM_S + now - self._met.setdefault(topic, now)
        return rule(since, partition, chance)


def make() -> ByTopic:
    return ByTopic()
