# Resource groups at work: all topics of a group share one limit, whichever way their bytes come to it; idle ones cost
# nothing; and what others in the fleet may take is not ours.

from __future__ import annotations

import pytest

from policies.engine import PolicyEngine
from policies.fleet.fleet_limiter import HUNGER_S
from policies.fleet.keys import group_key
from policies.fleet.shares import ShareGrant
from policies.groups.group_limiters import IDLE_S, MAX_UPDATES, GroupLimit, GroupLimitValues
from policies.limits.limiter import MAX_WAIT_S
from policies.meters.broker_meters import OTHER_TOPICS
from policies.meters.meter import TICK_S
from policies.thresholds.pacing import PACE_S
from policies.verdict import DELAY, REJECT, RESOURCE_GROUP
from tests.policies.asking import present
from tests.policies.fleet.pages import pages
from tests.policies.groups.group_play import Loop, Producer, engine_with, finder, send

GOLD = {"acme": "gold"}
BYTES = group_key("gold", "publish", "bytes")


def rate(producers: list[Producer], start: float, end: float) -> float:
    return sum(producer.rate(start, end) for producer in producers)


def settled(engine: PolicyEngine, topic: str, now: float) -> float:
    """After a first request, with nothing owed: until the topic needn't ask any more."""
    while engine.broker_meters(1).topics[topic.encode()].needs_decision:
        now += PACE_S
        engine.pace_limits(now)
    return now


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.seed("82.1", "82.2")
def test_many_topics_on_all_brokers_together_get_the_limit_exactly() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1e6)}, GOLD)
    producers = [Producer(f"acme.orders.t{i}", 5000 + 100 * i, node_id=1 + i % 3) for i in range(20)]
    Loop((engine, producers)).run(70.0)
    assert rate(producers, 10.0, 70.0) == pytest.approx(1e6, rel=0.005)
    assert all(why.reason == RESOURCE_GROUP and why.action == DELAY for p in producers for why in p.verdicts)
    assert all(producer.rate(10.0, 70.0) > 0 for producer in producers)


@pytest.mark.seed("82.11")
def test_messages_are_limited_by_themselves() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_msgs=1000)}, GOLD)
    producers = [Producer(f"acme.orders.t{i}", 100, messages=1 + i) for i in range(8)]
    Loop((engine, producers)).run(70.0)
    assert sum(p.messages_rate(10.0, 70.0) for p in producers) == pytest.approx(1000, rel=0.005)
    assert "1,000 messages/s" in producers[0].verdicts[-1].text


def test_a_part_of_few_messages_may_be_less_than_one() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_msgs=2)}, GOLD)
    engine.fleet.update_grants({group_key("gold", "publish", "msgs"): ShareGrant(0.2, 0.2)}, 10, 2.0, 0.0)
    producers = [Producer(f"acme.orders.t{i}", 100, messages=1) for i in range(3)]
    Loop((engine, producers)).run(600.0)
    assert sum(p.messages_rate(60.0, 600.0) for p in producers) < 0.4


@pytest.mark.parametrize(("size", "messages", "limit"), [(1000, 1, 1e5), (10, 1, 10 * 500)])
def test_of_bytes_and_messages_whichever_is_reached_first_holds(size: int, messages: int, limit: float) -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1e5, publish_msgs=500)}, GOLD)
    producers = [Producer(f"acme.orders.t{i}", size, messages) for i in range(5)]
    Loop((engine, producers)).run(40.0)
    assert rate(producers, 10.0, 40.0) == pytest.approx(limit, rel=0.01)


@pytest.mark.seed("82.2")
@pytest.mark.parametrize("topics", [1, 20])
@pytest.mark.parametrize("limits", [GroupLimitValues(publish_bytes=1e6), GroupLimitValues(publish_msgs=1e4)])
def test_a_flood_between_two_looks_finds_no_more_than_what_was_saved(limits: GroupLimitValues, topics: int) -> None:
    """A client that was held back sends as fast as its network takes it."""
    engine = engine_with({"gold": limits}, GOLD)
    producers = [Producer(f"acme.orders.t{i}", 1000, 10) for i in range(topics)]
    for producer in producers:
        send(engine, producer, 0.0)
    now = max(settled(engine, producer.topic.decode(), 1.0) for producer in producers)
    free = 0
    for number in range(20_000):
        why = send(engine, producers[number % topics], now)
        if why is not None:
            break
        free += 1000
    assert why is not None
    assert free <= (1.05e6 if topics == 1 else 1.5e6), "several find at most half as much again"


def test_a_flood_at_all_workers_at_once_finds_half_as_much_again_at_most() -> None:
    engines = [engine_with({"gold": GroupLimitValues(publish_bytes=1e6)}, GOLD, page=page) for page in pages(4)]
    workers = [(engine, Producer(f"acme.orders.t{i}", 1000)) for i, engine in enumerate(engines)]
    for engine, producer in workers:
        send(engine, producer, 0.0)
    now = max(settled(engine, producer.topic.decode(), 1.0) for engine, producer in workers)
    free, flooding = 0, workers
    while flooding:
        flooding = [each for each in flooding if send(*each, now) is None]
        free += 1000 * len(flooding)
    assert 0.9e6 <= free <= 1.5e6


def test_steady_traffic_within_the_limit_asks_seldom() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1e6)}, GOLD)
    producers = [Producer(f"acme.orders.t{i}", 1000) for i in range(20)]
    for number in range(20_000):
        now = number / 500  # half of the limit
        if not number % 25:
            engine.pace_limits(now)
        send(engine, producers[number % 20], now)
        if number == 1500:
            begun = sum(producer.asked for producer in producers)
    assert sum(producer.asked for producer in producers) - begun < 0.03 * 18_500


def test_traffic_that_comes_and_goes_is_held_to_the_limit_as_well() -> None:
    """Most of it comes while topics needn't ask: `pace` finds it."""
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1e6)}, GOLD)
    producers = [Producer(f"acme.orders.t{i}", 30_000, pause_s=0.15 + 0.01 * i) for i in range(12)]
    offered = sum(p.size / p.pause_s for p in producers)
    assert offered > 1.5e6
    Loop((engine, producers)).run(70.0)
    assert rate(producers, 10.0, 70.0) == pytest.approx(1e6, rel=0.01)


def test_below_the_limit_no_request_waits_or_has_to_ask() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=2e6, publish_msgs=2000)}, GOLD)
    producers = [Producer(f"acme.orders.t{i}", 1000, 1, pause_s=0.01) for i in range(10)]
    Loop((engine, producers)).run(20.0)
    assert not any(p.verdicts for p in producers)
    assert rate(producers, 5.0, 20.0) == pytest.approx(1e6, rel=0.01)
    asked = sum(p.asked for p in producers)
    Loop((engine, producers)).run(1.0)
    assert asked < 0.1 * sum(len(p.log) for p in producers)


@pytest.mark.seed("82.14")
@pytest.mark.parametrize(("topic_limit", "expected"), [(2e5, 2e5), (5e6, 1e6)])
def test_the_more_stringent_of_group_and_topic_wins(topic_limit: float, expected: float) -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1e6)}, GOLD)
    engine.set_thresholds(topic_limit, {"acme.orders.a": topic_limit / 2}, on_exceed="delay")
    producers = [Producer("acme.orders.a", 2000) for _ in range(3)]
    Loop((engine, producers)).run(70.0)
    assert rate(producers, 10.0, 70.0) == pytest.approx(expected, rel=0.02)


def test_one_group_over_its_limit_with_500_topics_does_not_slow_another() -> None:
    limits = {"gold": GroupLimitValues(publish_bytes=1e6), "calm": GroupLimitValues(publish_bytes=1e6)}
    engine = engine_with(limits, {"acme": "gold", "other": "calm"})
    greedy = [Producer(f"acme.orders.t{i}", 5000) for i in range(500)]
    calm = Producer("other.orders.t", 5000, pause_s=0.01)
    Loop((engine, [*greedy, calm])).run(30.0)
    assert not calm.verdicts
    assert rate(greedy, 10.0, 30.0) == pytest.approx(1e6, rel=0.01)


def test_a_request_that_would_wait_too_long_is_rejected() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1000)}, GOLD)
    producers = [Producer(f"acme.orders.t{i}", 6000) for i in range(4)]
    verdicts = [send(engine, producer, 0.0) for producer in producers]
    assert [why and (why.action, why.throttle_ms) for why in verdicts[:2]] == [(DELAY, 6000), (DELAY, 12_000)]
    late = present(verdicts[2])
    assert late.action == REJECT
    assert late.throttle_ms <= MAX_WAIT_S * 1000
    assert len(producers[2].log) == 0


def test_in_mode_observe_verdicts_are_only_counted() -> None:
    engine = PolicyEngine(0.0)
    engine.set_groups({"gold": GroupLimitValues(publish_bytes=1000)}, finder(GOLD), 0.0, observes=True)
    assert present(send(engine, Producer("acme.orders.t", 6000), 0.0)).observed_only


# --- what belongs where -----------------------------------------------------------------------------------------------


@pytest.mark.seed("82.6")
def test_a_namespaces_group_replaces_its_tenants() -> None:
    engine = PolicyEngine(0.0)
    limits = {"gold": GroupLimitValues(publish_bytes=1000), "own": GroupLimitValues(publish_bytes=1e9)}
    own, theirs = Producer("acme.orders.t", 5000), Producer("acme.clicks.t", 5000)
    engine.set_groups(limits, finder(GOLD), 0.0)
    assert send(engine, own, 0.0) is not None
    engine.set_groups(limits, finder(GOLD, {"acme/orders": "own"}), 0.0)
    assert send(engine, own, 0.0) is None
    assert send(engine, theirs, 0.0) is not None


@pytest.mark.parametrize("topic", ["plain", "nobody.orders.t", "__consumer_offsets"])
def test_a_topic_in_no_group_asks_once_and_then_never(topic: str) -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1)}, GOLD)
    producer = Producer(topic, 10**6)
    for now in range(20):
        assert send(engine, producer, float(now)) is None
        engine.pace_limits(float(now))
        engine.apply_due_ticks(float(now))
    assert producer.asked == 1
    assert not engine.groups.needs_pacing


def test_without_groups_no_request_asks() -> None:
    engine = PolicyEngine(0.0)
    producer = Producer("acme.orders.t")
    send(engine, producer, 0.0)
    assert producer.asked == 0


def test_a_topic_of_which_only_the_principal_says_the_group_needs_no_asking_by_topic() -> None:
    engine = PolicyEngine(0.0)
    limits = {"gold": GroupLimitValues(publish_bytes=1000)}
    engine.set_groups(limits, finder(GOLD, principal_pattern=r"User:(?P<tenant>\w+)"), 0.0)
    meter = engine.broker_meters(1).add_topic(b"plain")
    assert engine.groups.activate_publish_limit(meter, b"plain", 0.0) is None
    assert meter.by_principal
    assert not meter.needs_decision
    assert engine.groups.principal_publish_limit("User:bob", 0.0) is None
    side = present(engine.groups.principal_publish_limit("User:acme", 0.0))
    named = engine.broker_meters(1).add_topic(b"acme.orders.t")
    assert engine.groups.activate_publish_limit(named, b"acme.orders.t", 0.0) is side
    assert engine.groups.dispatch_limit(b"plain", "User:acme", 0.0) is engine.groups.dispatch_limit(
        b"acme.orders.t", "", 0.0
    )
    assert engine.groups.dispatch_limit(b"plain", "User:bob", 0.0) is None


def test_topics_that_share_a_meter_are_limited_by_their_names() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1000)}, GOLD)
    meter = engine.broker_meters(1).add_topic(OTHER_TOPICS)
    assert engine.groups.activate_publish_limit(meter, b"plain", 0.0) is None
    assert engine.groups.activate_publish_limit(meter, b"acme.orders.t", 0.0) is not None
    assert meter.needs_decision


# --- topics in use ----------------------------------------------------------------------------------------------------


def test_a_topic_that_was_quiet_asks_again_and_costs_nothing_meanwhile() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1e6)}, GOLD)
    producer = Producer("acme.orders.t", 1)
    send(engine, producer, 0.0)
    now = settled(engine, "acme.orders.t", 0.0)
    send(engine, producer, now)
    assert producer.asked == 1
    while engine.groups.needs_pacing:
        now += PACE_S
        engine.pace_limits(now)
    assert now > IDLE_S
    assert engine.broker_meters(1).topics[b"acme.orders.t"].needs_decision
    assert not engine.needs_pacing


def test_pacing_is_asked_for_when_the_first_topic_comes_into_use() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1e6)}, GOLD)
    woken: list[int] = []
    engine.groups.wake_pacer = lambda: woken.append(1)
    for topic in ("acme.a.t", "acme.b.t", "plain"):
        send(engine, Producer(topic), 0.0)
    assert len(woken) == 1


@pytest.mark.seed("82.1", "82.2")
@pytest.mark.parametrize("topics", [1, 3])
def test_bytes_that_came_without_asking_are_charged_once_across_ticks(topics: int) -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1e6)}, GOLD)
    producers = [Producer(f"acme.orders.t{i}", 1000, 3) for i in range(topics)]
    for producer in producers:
        send(engine, producer, 0.0)
    now = max(settled(engine, producer.topic.decode(), 0.0) for producer in producers)
    while now < 3 * TICK_S:
        for producer in producers:
            send(engine, producer, now)
        if round(now * 10) % 3 == 0:
            engine.pace_limits(now)
        engine.apply_due_ticks(now)
        now += 0.1
    engine.pace_limits(now)
    line = engine.fleet.limiters[BYTES]
    assert all(producer.asked < 0.5 * len(producer.log) for producer in producers)
    assert line.spent == sum(size for producer in producers for _, size, _ in producer.log)
    assert engine.groups.collect_rates(now)[0].msgs.rate > 0


def test_more_groups_than_one_look_has_time_for_are_looked_at_in_turns() -> None:
    tenants = {f"t{i}": f"g{i}" for i in range(MAX_UPDATES)}
    engine = engine_with({group: GroupLimitValues(publish_bytes=1e6) for group in tenants.values()}, tenants)
    producers = [Producer(f"{tenant}.n.t", 100) for tenant in tenants]
    for producer in producers:
        send(engine, producer, 0.0)
    engine.pace_limits(0.8)
    meters = engine.broker_meters(1).topics.values()
    assert sum(not meter.needs_decision for meter in meters) == MAX_UPDATES / 2
    engine.pace_limits(0.85)
    assert not any(meter.needs_decision for meter in meters)


def test_a_topic_that_left_its_broker_is_forgotten_and_the_bytes_it_took_are_not() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1e6)}, GOLD)
    engine.set_listed_topics(1, ["acme.orders.t"])
    producer = Producer("acme.orders.t", 1000)
    send(engine, producer, 0.0)
    now = settled(engine, "acme.orders.t", 0.0)
    send(engine, producer, now)
    engine.set_listed_topics(1, [])
    for _ in range(200):
        now += PACE_S
        engine.pace_limits(now)
        engine.apply_due_ticks(now)
    assert engine.fleet.limiters[BYTES].spent == 2000
    assert not engine.groups.needs_pacing


def test_bytes_that_did_not_get_into_the_log_are_given_back() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1000, publish_msgs=1000)}, GOLD)
    producer = Producer("acme.orders.t", 5000, 50)
    send(engine, producer, 0.0)
    meter = engine.broker_meters(1).topics[b"acme.orders.t"]
    limit = meter.group_limit
    assert isinstance(limit, GroupLimit)
    engine.record_broker_refusal(1, b"acme.orders.t", 5000)
    limit.refund_request(5000, 50)
    engine.pace_limits(0.0)
    assert [line.bucket.token_level(0.0) for line in limit.limiters] == [0, 0]
    assert limit.byte_meter.charged == 0


# --- changes ----------------------------------------------------------------------------------------------------------


@pytest.mark.seed("82.4")
def test_a_limit_that_changes_holds_from_then_on() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1e6)}, GOLD)
    producers = [Producer(f"acme.orders.t{i}", 5000) for i in range(10)]
    loop = Loop((engine, producers))
    loop.run(20.0)
    engine.set_groups({"gold": GroupLimitValues(publish_bytes=3e5)}, finder(GOLD), 20.0)
    loop.run(60.0)
    assert rate(producers, 5.0, 20.0) == pytest.approx(1e6, rel=0.02)
    assert rate(producers, 22.0, 60.0) == pytest.approx(3e5, rel=0.03)
    engine.set_groups({}, finder(), 60.0)
    loop.run(61.0)
    assert rate(producers, 60.5, 61.0) > 5e6


def test_bytes_that_were_counted_before_a_change_are_charged() -> None:
    limits = {"gold": GroupLimitValues(publish_bytes=1e6)}
    engine, producer = engine_with(limits, GOLD), Producer("acme.orders.t", 1000)
    send(engine, producer, 0.0)
    now = settled(engine, "acme.orders.t", 0.0)
    asked = producer.asked
    send(engine, producer, now)
    assert producer.asked == asked
    engine.set_groups(limits, finder(GOLD), now)
    assert engine.groups.limit_of("gold", "publish", now).byte_meter.charged == 2000


def test_the_storage_factor_lowers_what_is_published_and_never_what_is_fetched() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1e6, dispatch_bytes=1e6)}, GOLD)
    producers = [Producer(f"acme.orders.t{i}", 5000) for i in range(10)]
    side = engine.groups.dispatch_limit(b"acme.orders.t", "", 0.0)
    engine.set_storage_factor(0.5, "broker 1 volume /data", 0.0)
    loop = Loop((engine, producers))
    loop.run(20.0)
    engine.set_storage_factor(0.25, "broker 1 volume /data", 20.0)
    loop.run(40.0)
    assert rate(producers, 5.0, 20.0) == pytest.approx(5e5, rel=0.02)
    assert rate(producers, 22.0, 40.0) == pytest.approx(2.5e5, rel=0.03), "of groups in use"
    assert side is not None
    assert side.byte_limiter is not None
    assert side.byte_limiter.bucket.rate == 1e6


# --- what is fetched --------------------------------------------------------------------------------------------------


def test_fetched_bytes_and_messages_are_charged_when_they_pass() -> None:
    limits = {"gold": GroupLimitValues(dispatch_bytes=1000, dispatch_msgs=10), "own": GroupLimitValues(publish_msgs=1)}
    engine = engine_with(limits, GOLD)
    side = engine.groups.dispatch_limit(b"acme.orders.t", "", 0.0)
    assert engine.groups.has_dispatch_limits
    assert side is not None
    assert side.wait_after_charge(0.0) == 0.0
    side.charge_request(2000, 30, 0.0)
    assert side.wait_after_charge(0.0) == 3.0
    side.charge_request(10**6, 0, 0.0)
    assert side.wait_after_charge(0.0) == MAX_WAIT_S
    assert [line.hungry_until for line in side.limiters] == [MAX_WAIT_S + HUNGER_S, 3.0 + HUNGER_S]


# --- in a fleet -------------------------------------------------------------------------------------------------------


def test_a_group_goes_by_its_part_and_a_new_one_by_an_even_share() -> None:
    engine = engine_with({"gold": GroupLimitValues(publish_bytes=1e6)}, GOLD)
    engine.fleet.update_grants({}, 4, 2.0, 0.0)
    producers = [Producer(f"acme.orders.t{i}", 5000) for i in range(10)]
    loop = Loop((engine, producers))
    loop.run(20.0)
    engine.fleet.update_grants({BYTES: ShareGrant(6e5, 2.5e5)}, 4, 2.0, 20.0)
    loop.run(40.0)
    engine.fleet.use_fallback(40.0)
    loop.run(60.0)
    assert rate(producers, 3.0, 20.0) == pytest.approx(2.5e5, rel=0.03)
    assert rate(producers, 21.0, 40.0) == pytest.approx(6e5, rel=0.03)
    assert rate(producers, 41.0, 60.0) == pytest.approx(2.5e5, rel=0.03)


def test_two_gateways_with_their_parts_together_get_the_limit() -> None:
    def dealt(first: float, now: float) -> None:
        for engine, part in zip(engines, (first, 1e6 - first), strict=True):
            engine.fleet.update_grants({BYTES: ShareGrant(part, 5e5)}, 2, 2.0, now)

    engines = [engine_with({"gold": GroupLimitValues(publish_bytes=1e6)}, GOLD) for _ in range(2)]
    producers = [[Producer(f"acme.orders.t{i}", 5000, start=20.0 * late) for i in range(5)] for late in range(2)]
    loop = Loop(*zip(engines, producers, strict=True))
    dealt(0.96e6, 0.0)
    loop.run(21.0)
    dealt(0.5e6, 21.0)
    loop.run(52.0)
    both = producers[0] + producers[1]
    assert rate(both, 2.0, 20.0) == pytest.approx(0.96e6, rel=0.02)
    assert rate(both, 22.0, 52.0) == pytest.approx(1e6, rel=0.02)
    assert max(rate(both, float(at), at + 1.0) for at in range(22, 52)) < 1.1e6
    assert rate(producers[1], 22.0, 52.0) == pytest.approx(5e5, rel=0.05)


# --- in several workers of one gateway --------------------------------------------------------------------------------


@pytest.mark.parametrize(("gateways", "part"), [(1, 1e6), (4, 6e5)])
def test_the_workers_of_a_gateway_together_get_its_part_however_their_traffic_is_spread(
    gateways: int, part: float
) -> None:
    """No message tells them: each sees at once the bytes that the other takes."""
    limits = {"gold": GroupLimitValues(publish_bytes=1e6, dispatch_bytes=1e6)}
    engines = [engine_with(limits, GOLD, page=page) for page in pages(3)]
    for engine in engines:
        engine.fleet.update_grants(
            {} if gateways == 1 else {BYTES: ShareGrant(part, 1e6 / gateways)}, gateways, 2.0, 0.0
        )
    many = [Producer(f"acme.orders.t{i}", 5000) for i in range(8)]
    late = [Producer("acme.orders.t1", 5000, start=20.0, stop=40.0)]
    Loop((engines[0], many), (engines[1], late), (engines[2], [])).run(60.0)
    for start, end in ((2.0, 20.0), (22.0, 40.0), (42.0, 60.0)):
        assert rate([*many, *late], start, end) == pytest.approx(part, rel=0.01)
    assert max(rate([*many, *late], float(at), at + 1.0) for at in range(2, 59)) < 1.05 * part
    assert rate(late, 22.0, 40.0) > part / 18, "one of nine producers"


def test_a_consumer_waits_for_bytes_that_another_worker_let_one_fetch() -> None:
    engines = [engine_with({"gold": GroupLimitValues(dispatch_bytes=1000)}, GOLD, page=page) for page in pages(2)]
    one, two = (engine.groups.dispatch_limit(b"acme.orders.t", "", 0.0) for engine in engines)
    assert one is not None
    assert two is not None
    one.charge_request(3000, 1, 0.0)
    assert two.wait_after_charge(0.0) == 3.0


def test_the_gateways_part_is_told_by_each_worker() -> None:
    engines = [engine_with({"gold": GroupLimitValues(publish_bytes=1e6)}, GOLD, page=page) for page in pages(2)]
    for engine in engines:
        engine.fleet.update_grants({BYTES: ShareGrant(6e5, 5e5)}, 2, 2.0, 0.0)
        send(engine, Producer("acme.orders.t"), 0.0)
        engine.apply_due_ticks(TICK_S)
        assert engine.groups.collect_rates(TICK_S)[0].bytes.limit == 6e5
