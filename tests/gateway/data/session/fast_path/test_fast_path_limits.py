# The fast path under limits at work, against sessions that judge each request, as all do where nothing is compiled: the
# same requests pass, wait and are turned away, clients are told the same, and the same is counted, charged and given
# back.

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.channel import GroupSnapshot, QuotaSnapshot, ThresholdPolicy
from gateway.data.pending import pending
from policies.decision import Mode
from policies.groups.group_limiters import GroupLimitValues
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from policies.storage import AffectedTopics
from tests.gateway.data.play import Play, answer, request, size_of
from tests.variants import COMPILED, PURE, module, running

SIZE = size_of()
SECOND = 40 * SIZE  # bytes per second of most limits here
GOLD, PLAIN, HELD = "acme.orders", "plain", "acme.held"
TOPICS = {GOLD: [0], PLAIN: [0], HELD: [0]}
CLIENTS = 3
Kind = Literal["threshold", "rejecting", "burst", "quota", "strangers", "group", "messages", "principal"]
KINDS: tuple[Kind, ...] = (
    "threshold", "rejecting", "burst", "quota", "strangers", "group", "messages", "principal",
)  # fmt: skip
FACTORS = (1.0, 1.0, 0.5, 0.1)


@pytest.fixture(scope="module", autouse=True)
def fast_path() -> Any:
    return module("gateway.data.session.fast_path", COMPILED)


def set_limits(on: Play, kinds: set[Kind], factor: float, held: float, mode: Mode, percent: float) -> None:
    """Those limits at work. `held`: the storage factor of some topics alone. `mode`: of storage; `percent`: of clients
    that the others hold.
    """
    total = 3 * SECOND if kinds & {"threshold", "rejecting", "burst"} or factor < 1.0 or held < 1.0 else None
    burst_s = 2.0 if "burst" in kinds else 0.0
    on.world.set_policy(
        ThresholdPolicy(1, total, {GOLD: SECOND, HELD: SECOND}, on_exceed="delay" if "threshold" in kinds else "reject",
               burst_s=burst_s, enforce_percent=percent)
    )  # fmt: skip
    quotas: dict[Any, Any] = {}
    if "quota" in kinds:
        quotas[Entity(client_id="app")] = {QuotaKey.parse("producer_byte_rate"): SECOND}
    if "strangers" in kinds:
        quotas[Entity(user=DEFAULT)] = {QuotaKey.parse("producer_byte_rate:broker_bps"): 2.0 * SECOND}
    on.world.set_quotas(QuotaSnapshot(1, quotas, enforce_percent=percent), on.now)
    limit = GroupLimitValues(SECOND if kinds & {"group", "principal"} else None, 35.0 if "messages" in kinds else None)
    if kinds & {"group", "messages", "principal"}:
        pattern = r"User:(?P<tenant>\w+)" if "principal" in kinds else ""
        groups = GroupSnapshot(1, {"gold": limit}, {"acme": "gold"}, principal_pattern=pattern, enforce_percent=percent)
        on.world.set_groups(groups, on.now)
    if held < 1.0:
        on.engine.set_affected_topics(
            [AffectedTopics("broker 1 /data", held, "it is full", (HELD,), ())], on.now, mode=mode
        )
    elif factor < 1.0:
        on.engine.set_storage_factor(factor, "disks fill up", on.now, mode=mode)
        on.world.quotas.set_storage_factor(on.engine.storage_factor, on.now)


def connect(on: Play, number: int) -> Play:
    """A connection to the same worker, of a client of its own."""
    made = on.beside()
    made.session.client.set_principal(f"User:{'acme' if number else 'other'}")
    return made


sent = st.fixed_dictionaries(
    {
        "topics": st.sampled_from(
            [{GOLD: [0]}, {GOLD: [1]}, {PLAIN: [0]}, {HELD: [0]}, {GOLD: [0, 1]}, {GOLD: [0], PLAIN: [0, 1]},
             {PLAIN: [0], HELD: [0]}, {GOLD: [0], HELD: [1]}]
        ),
        "acks": st.sampled_from([-1, -1, -1, -1, 0]),
        "values": st.sampled_from([(b"payload",), (b"payload",), (b"a", b"bc"), (b"x" * 300,)]),
        "client_id": st.sampled_from(["app", "app", "app", "other"]),
    }
)  # fmt: skip
steps = st.tuples(
    st.sampled_from([0.0, 0.0, 0.001, 0.02, 0.05, 0.3, 2.0]),  # seconds that pass before it
    st.integers(0, CLIENTS - 1),
    st.lists(st.tuples(sent, st.integers(1, 12)), max_size=3),  # requests, each so many times
    st.sampled_from([0, 0, 0, 0, 6]),  # what the broker answers
)


def state(on: Play, connections: list[Play]) -> list[Any]:
    """What is counted, charged and owed."""
    meters, world = on.engine.broker_meters(1), on.world
    found: list[Any] = [
        {
            name: (each.uncounted, each.messages, each.counted_in_group, each.counted_in_bucket, each.needs_decision)
            for name, each in meters.topics.items()
        },
        (meters.total.uncounted, meters.throttled.uncounted, meters.errors.uncounted),
        [(each.session.hold.held_until, each.session.hold.muted_until,
        each.session.hold.mute_reason) for each in connections],
        [[(entry[1], len(entry[3])) for entry in each.session.in_flight if entry[1] == pending.PRODUCE]
         for each in connections],
    ]  # fmt: skip
    limits = meters.limits
    buckets: list[Any] = [] if limits.storage_throttle is None else [limits.storage_throttle.limiter.bucket]
    buckets += [each.limiter.bucket for each in limits.affected_limits.throttles]
    buckets += [getattr(limits.strategy, "bucket", None)]
    buckets += [getattr(each.topic_bucket, "bucket", None) for each in meters.topics.values()]
    buckets += [line.bucket for _, line in sorted(world.quotas._limiters.items(), key=str)]
    for side in on.engine.groups._group_limits.values():
        buckets += [line.bucket for line in side.limiters]
        found.append(
            (
                side.byte_meter.charged,
                side.message_meter.charged,
                side.refunded_bytes,
                side.refunded_messages,
                side.asks_always,
            )
        )
    found.append([None if each is None else (each.owed_tokens, each.excess_debt, each.rate) for each in buckets])
    return found


def told(limits: Any, played: list[Any]) -> list[Any]:
    """What goes on, is counted and is charged, step by step."""
    on = Play().named()
    for topic in TOPICS:
        on.engine.broker_meters(1).confirm_topic(topic.encode())
    set_limits(on, *limits)
    connections = [connect(on, number) for number in range(CLIENTS)]
    found: list[Any] = []
    correlation = 0
    for elapsed, number, requests, code in played:
        now = connections[0].now + elapsed
        on.run_clockwork(now)
        for each in (on, *connections):
            each.now = now
        client = connections[number]
        data = b""
        for how, times in requests:
            for _ in range(times):
                correlation += 1
                data += request(correlation, **how)
        if not client.session.may_resume(now):
            client.unhandled += data
        else:
            client.session.hold.arrived_at = now if client.unhandled else 0.0
            found.append(client.client(data) if data else client.again())
        answers = b""
        for entry in client.session.in_flight:
            if entry[1] == pending.PRODUCE:
                topics: dict[str, dict[int, tuple[int, int]]] = {}
                for topic, index, *_ in entry[3]:
                    topics.setdefault(topic.decode(), {})[index] = (code, correlation)
                answers += answer(entry[0], topics)
            elif entry[1] == pending.ACKS0:
                break
        found.append(client.broker(answers))
        found.append(state(on, connections))
    found.append(sorted(on.ledger(), key=str))
    for each in connections:
        each.session.close()
    return [*found, sorted(on.ledger(), key=str), state(on, connections)]


limits_at_work = st.tuples(
    st.sets(st.sampled_from(KINDS), max_size=3), st.sampled_from(FACTORS), st.sampled_from((1.0, 1.0, 0.5, 0.0)),
    st.sampled_from(("enforce", "enforce", "enforce", "observe")), st.sampled_from((100.0, 100.0, 100.0, 50.0)),
)  # fmt: skip


def to(topics: dict[str, list[int]]) -> dict[str, Any]:
    return {"topics": topics, "acks": -1, "values": (b"payload",), "client_id": "app"}


# A group gets back what the broker refused, which is more than the next request takes, and then its bucket is full.
GIVEN_BACK = [(2.0, 1, [(to({GOLD: [0]}), 2)], 6), (2.0, 1, [(to({GOLD: [0]}), 3)], 0)]


@settings(max_examples=300, deadline=None)
@given(limits_at_work, st.lists(steps, min_size=1, max_size=30))
@example(({"group"}, 1.0, 1.0, "enforce", 100.0), [*GIVEN_BACK, *GIVEN_BACK])
@example(({"principal"}, 1.0, 1.0, "enforce", 100.0), [*GIVEN_BACK, *GIVEN_BACK])
def test_limits_at_work_decide_and_charge_the_same_as_where_each_request_is_judged(
    limits: Any, played: list[Any]
) -> None:
    usual = told(limits, played)
    with running(PURE):
        expected = told(limits, played)
    for place, (one, other) in enumerate(zip(usual, expected, strict=True)):
        assert one == other, place
