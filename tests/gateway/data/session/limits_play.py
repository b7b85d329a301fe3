# Limits of one request of a second, each set in its own way, and what is left of them.

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Literal

from gateway.channel import GroupSnapshot, QuotaSnapshot, ThresholdPolicy
from policies.groups.group_limiters import GroupLimitValues
from policies.quotas.names import Entity, QuotaKey
from policies.storage import AffectedTopics
from policies.thresholds.pacing import ThresholdPacer
from tests.gateway.data.play import APP, Play, answer, present, request, size_of

TOPIC = "acme.orders.t"
SIZE = size_of()
WHOLE = len(request(1, {TOPIC: [0]})) - 4  # what a quota counts: the request but for its size prefix, as in Kafka

Kind = Literal["quota", "group", "threshold", "storage"]
REASONS = {
    "quota": "client-quota", "group": "resource-group", "threshold": "topic-threshold", "storage": "storage-throttle",
}  # fmt: skip


def set_limit(on: Play, kind: Kind, rate: float, entity: Entity = APP, **how: Any) -> None:
    """Of that many bytes per second, for all clients together or for `entity`."""
    if kind == "quota":
        quotas = {entity: {QuotaKey("producer_byte_rate", "broker_bps"): rate}}
        on.world.set_quotas(QuotaSnapshot(1, quotas, **how), on.now)
    elif kind == "group":
        on.world.set_groups(GroupSnapshot(1, {"gold": GroupLimitValues(rate)}, {"acme": "gold"}, **how), on.now)
    elif kind == "threshold":
        on.world.set_policy(ThresholdPolicy(1, rate, {TOPIC: rate}, **{"on_exceed": "delay", **how}))
    else:
        on.world.set_policy(ThresholdPolicy(1, 2 * rate, {}))
        on.engine.set_storage_factor(0.5, "disks fill up", on.now)


def take_turns(
    on: Play, connections: list[Play], seconds: float, frame: Callable[[int], bytes], pause_s: float = 0.001
) -> Iterator[tuple[float, int, bool, bool]]:
    """Each sends one request at a time, as soon as it may: when which of them has its request forwarded or rejected."""
    answered = answer(1, {TOPIC: {0: (0, 0)}})
    turns = [(on.now + number / 100, number) for number in range(len(connections))]
    end = on.now + seconds
    while turns[0][0] < end:
        now, number = turns[0]
        each = connections[number]
        on.run_clockwork(now)
        each.now = now
        if not each.unhandled:
            each.session.hold.drained_at = now  # as its link does: nothing of it waits
        upstream, client = each.again() if each.unhandled else each.client(frame(number))
        if upstream:
            each.broker(answered)
        yield now, number, bool(upstream), bool(client)
        hold = each.session.hold
        heapq.heapreplace(turns, (max(now + pause_s, hold.held_until, hold.muted_until), number))


def quota(on: Play, *, observes: bool) -> None:
    on.set_quotas((APP, "producer_byte_rate", float(WHOLE)), observes=observes)


def quota_level(on: Play) -> float:
    (line,) = on.world.quotas._limiters.values()
    return line.bucket.token_level(on.now)


def group(on: Play, *, observes: bool) -> None:
    mode = "observe" if observes else "enforce"
    on.world.set_groups(GroupSnapshot(1, {"gold": GroupLimitValues(SIZE)}, {"acme": "gold"}, mode=mode), on.now)  # type: ignore[arg-type]


def group_level(on: Play) -> float:
    on.engine.pace_limits(on.now)
    line = present(on.engine.groups.limit_of("gold", "publish", on.now).byte_limiter)
    return line.bucket.token_level(on.now)


def storage(on: Play, *, observes: bool) -> None:
    on.engine.set_thresholds(2 * SIZE, {})
    on.engine.set_storage_factor(0.5, "a full disk", on.now, mode="observe" if observes else "enforce")


def storage_level(on: Play) -> float:
    limit = present(on.engine.broker_meters(1).limits.storage_throttle)
    return limit.limiter.bucket.token_level(on.now)


def thresholds(on: Play, *, observes: bool) -> None:
    mode = "observe" if observes else "enforce"
    on.engine.set_thresholds(SIZE, {TOPIC: SIZE}, on_exceed="delay", mode=mode)  # type: ignore[arg-type]


def threshold_level(on: Play) -> float:
    on.engine.pace_limits(on.now)
    strategy = on.engine.broker_meters(1).limits.strategy
    assert isinstance(strategy, ThresholdPacer)
    return strategy.bucket.token_level(on.now)


def volume(on: Play, *, observes: bool) -> None:
    on.engine.set_thresholds(2 * SIZE, {})
    mode = "observe" if observes else "enforce"
    on.engine.set_affected_topics([AffectedTopics("broker 1 /data", 0.5, "full", (TOPIC,), (1,))], on.now, mode=mode)  # type: ignore[arg-type]


def pause(on: Play, *, observes: bool) -> None:
    on.engine.set_storage_factor(0.0, "full", on.now, mode="observe" if observes else "enforce")


def full_volume(on: Play, *, observes: bool) -> None:
    mode = "observe" if observes else "enforce"
    on.engine.set_affected_topics([AffectedTopics("broker 1 /data", 0.0, "full", (TOPIC,), (1,))], on.now, mode=mode)  # type: ignore[arg-type]
