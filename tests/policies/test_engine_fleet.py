# Thresholds in a fleet: those that reject go by everybody's rates, those that delay by our part of the total.

from __future__ import annotations

import pytest

from policies.engine import PolicyEngine
from policies.fleet import page as page_module
from policies.fleet.keys import total_key
from policies.fleet.shares import ShareGrant
from policies.limits.limit_use import LimitUse
from policies.meters.broker_meters import PeerTraffic
from policies.meters.meter import TICK_S
from policies.thresholds.pacing import ThresholdPacer
from policies.verdict import DELAY, STORAGE_THROTTLE
from tests.policies.asking import Request, decide, delaying, present, record, rejection, storage
from tests.policies.fleet.pages import pages
from tests.policies.thresholds.pacing_play import Connection, Loop

TOTAL = total_key(1)
TOPIC = b"clicks"


def rejecting(rate: float, others: PeerTraffic) -> PolicyEngine:
    """`clicks` has a threshold of 500 bytes/s, its broker of 1000."""
    engine = PolicyEngine(0.0)
    engine.fleet.update_grants({}, 2, 2.0, 0.0)
    engine.set_thresholds(1000.0, {"clicks": 500.0})
    engine.set_listed_topics(1, ["clicks", "calm", "late"])
    record(engine.broker_meters(1), TOPIC, round(rate * TICK_S))
    engine.apply_due_ticks(TICK_S)
    engine.set_peer_traffic({1: others})
    return engine


@pytest.mark.seed("V1.4", "V1.12")
@pytest.mark.parametrize(
    ("rate", "others", "over"),
    [
        (400.0, PeerTraffic(), False),
        (400.0, PeerTraffic(700.0, {TOPIC: 200.0}), True),  # neither of us alone is over anything
        (400.0, PeerTraffic(500.0, {TOPIC: 200.0}), False),  # the total has room
        (400.0, PeerTraffic(700.0, {b"calm": 700.0}), False),  # the topic is within its own
        (600.0, PeerTraffic(700.0), True),
    ],
)
def test_a_topic_is_over_when_the_sum_of_all_is(rate: float, others: PeerTraffic, over: bool) -> None:
    engine = rejecting(rate, others)
    assert engine.broker_meters(1).topics[TOPIC].needs_decision is over
    engine.set_peer_traffic({})
    assert not engine.broker_meters(1).topics[TOPIC].needs_decision, "the others are gone"


def test_others_hold_at_ticks_and_for_topics_and_brokers_that_come_later() -> None:
    engine = rejecting(400.0, PeerTraffic(5000.0, {TOPIC: 200.0, b"late": 900.0}))
    engine.set_peer_traffic(
        {1: PeerTraffic(5000.0, {TOPIC: 200.0, b"late": 900.0}), 2: PeerTraffic(2000.0, {TOPIC: 700.0})}
    )
    engine.broker_meters(1).add_topic(b"late")
    engine.set_listed_topics(2, ["clicks"])
    engine.broker_meters(2).add_topic(TOPIC)
    engine.apply_due_ticks(2 * TICK_S)
    assert engine.broker_meters(1).topics[b"late"].needs_decision
    assert engine.broker_meters(2).topics[TOPIC].needs_decision


def test_the_client_is_told_all_clients_rates() -> None:
    engine = rejecting(400.0, PeerTraffic(700.0, {TOPIC: 200.0}))
    text = rejection(engine, 1, TOPIC, TICK_S).text
    assert "600.0 B/s of 500.0 B/s" in text
    assert "total 1.1 kB/s of 1.0 kB/s" in text


def test_a_threshold_says_by_which_sum_it_decides() -> None:
    (broker,) = rejecting(400.0, PeerTraffic(700.0, {TOPIC: 200.0})).collect_rates()
    assert (broker.fleet_rate, broker.bucket_use, broker.limit_use) == (1100.0, None, LimitUse(1100.0, 1000.0))
    topic = next(each for each in broker.topics if each.topic == TOPIC.decode())
    assert (broker.rate, topic.rate) == (400.0, 400.0), "our own"
    assert topic.limit_use == LimitUse(600.0, 500.0)
    assert topic.limit_use.utilization == 1.2


def test_when_thresholds_delay_our_part_of_the_total_holds() -> None:
    engine = delaying(each=10_000.0)
    loop = Loop(engine, [Connection("a", 5000), Connection("b", 5000)])
    loop.run(20.0)
    engine.fleet.update_grants({TOTAL: ShareGrant(80_000.0, 30_000.0)}, 2, 2.0, 20.0)
    engine.apply_shares(20.0)
    loop.run(40.0)
    engine.fleet.use_fallback(40.0)
    engine.apply_shares(40.0)
    loop.run(60.0)
    assert loop.rate(5.0, 20.0) == pytest.approx(50_000, rel=0.03)
    assert loop.rate(21.0, 40.0) == pytest.approx(80_000, rel=0.03)
    assert loop.rate(42.0, 60.0) == pytest.approx(30_000, rel=0.05)


def test_of_two_gateways_with_their_parts_of_a_total_the_topics_get_their_thresholds() -> None:
    """Half of `a` comes here; `b` only here. `a` is within its threshold, so all that waits is `b`."""
    engine = delaying()
    engine.fleet.update_grants({TOTAL: ShareGrant(75_000.0, 50_000.0)}, 2, 2.0, 0.0)
    engine.apply_shares(0.0)
    engine.set_peer_traffic({1: PeerTraffic(25_000.0, {b"a": 25_000.0})}, 2)
    a, b = Connection("a", 2500), Connection("b", 5000)
    loop = Loop(engine, [a, b])
    loop.run(60.0)
    assert loop.rate(20.0, 60.0) == pytest.approx(75_000, rel=0.02)
    assert loop.rate(20.0, 60.0, b) >= 45_000


def test_the_line_of_all_producers_has_our_part_times_the_storage_factor() -> None:
    engine = PolicyEngine(0.0)
    engine.set_thresholds(1000.0, {})
    engine.fleet.update_grants({TOTAL: ShareGrant(600.0, 300.0)}, 2, 2.0, 0.0)
    engine.set_storage_factor(0.5, "broker 1 volume /data", 0.0)
    storage_limit = present(engine.broker_meters(1).limits.storage_throttle)
    line = storage_limit.limiter
    assert line.bucket.rate == 300
    engine.fleet.update_grants({TOTAL: ShareGrant(400.0, 300.0)}, 2, 2.0, 0.0)
    engine.apply_shares(0.0)
    assert line.bucket.rate == 200
    why = present(storage(engine, 1, 600, 0.0))
    assert (why.action, why.reason, why.throttle_ms) == (DELAY, STORAGE_THROTTLE, 2000)  # provisional: not 3 s


def test_a_total_that_became_busy_just_now_lets_no_client_wait_for_long() -> None:
    engine = delaying(10)
    why = decide(engine, 1, b"a", 0, 0.0)
    assert why is None
    engine.broker_meters(1).add_topic(b"a")
    why = present(decide(engine, 1, b"a", 90_000, 0.0))
    assert why.throttle_ms == 2000
    assert engine.broker_meters(1).limits.strategy.delays_requests


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_part_of_a_total_that_is_gone_for_a_moment_lets_no_client_wait_for_long(is_lost: bool) -> None:
    """As of any limit: control is away, or other gateways have come."""
    made = delaying(2)
    made.set_peer_traffic({}, 2)
    for at in range(200):
        now = at / 10
        made.pace_limits(now)
        request = Request(made, b"new", 10_000)
        if request.ask(now) is None:
            request.admit(now)
    if is_lost:
        made.fleet.revoke_grants(20.0)
    else:
        made.fleet.update_grants({}, 100, 2.0, 20.0)
    made.apply_shares(20.0)
    assert present(decide(made, 1, b"new", 10_000, 20.0)).throttle_ms == 2000


def test_the_bytes_a_broker_got_are_counted_over_ticks() -> None:
    engine = PolicyEngine(0.0)
    broker = engine.broker_meters(1)
    for tick in range(1, 4):
        record(broker, b"a", 10)
        engine.apply_due_ticks(tick * TICK_S)
        record(broker, b"a", 1)
    assert broker.total_bytes == 33


# --- several workers of one gateway -----------------------------------------------------------------------------------


def test_the_workers_of_a_gateway_share_its_part_of_a_total() -> None:
    """One of them has taken what the other one's clients wait for."""
    one, two = (delaying(1, page=page) for page in pages(2))
    for engine in (one, two):
        engine.set_peer_traffic({}, 2)
        engine.broker_meters(1).add_topic(b"a")
        decide(engine, 1, b"a", 0, 10.0)
    one.broker_meters(1).topics[b"a"].uncounted += 200_000
    one.broker_meters(1).total.uncounted += 200_000
    decide(one, 1, b"a", 0, 10.0)
    why = present(decide(two, 1, b"a", 100_000, 11.0))
    assert why.action == DELAY
    assert why.throttle_ms in {2000, 2001}, "two workers' times are never the same one: the last digit is another one"
    assert two.broker_meters(1).limits.is_hungry(11.0)


def test_the_line_of_all_producers_is_one_of_all_workers_and_not_the_one_of_topics_above_their_thresholds() -> None:
    engines = [PolicyEngine(0.0, page=page) for page in pages(2)]
    for engine in engines:
        engine.set_thresholds(1000.0, {}, on_exceed="delay")
        engine.set_storage_factor(0.5, "broker 1 volume /data", 0.0)
    one, two = (engine.broker_meters(1).limits.storage_throttle for engine in engines)
    assert one is not None
    assert two is not None
    one.limiter.charge_amount(2000, 10.0)
    assert two.limiter.debt_wait_s(10.0) == 3.0
    pacer = engines[0].broker_meters(1).limits.strategy
    assert isinstance(pacer, ThresholdPacer)
    assert pacer.bucket.token_level(10.0) >= 0.0
    engines[1].set_storage_factor(1.0, "", 10.0)
    engines[1].set_storage_factor(0.25, "broker 1 volume /data", 10.0)
    again = present(engines[1].broker_meters(1).limits.storage_throttle)
    assert again.limiter.debt_wait_s(10.0) == 6.0, "who begins later finds what is owed"


def test_without_room_in_the_page_each_worker_has_an_even_part_of_a_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "ROWS", 1)
    many = pages(2)
    held = many[0].acquire_row("one that takes all the room")
    assert held is not None
    engine = delaying(1, page=many[0])
    pacer = engine.broker_meters(1).limits.strategy
    assert isinstance(pacer, ThresholdPacer)
    assert pacer.bucket.rate == 50_000
    engine.set_thresholds(60_000.0, {}, on_exceed="delay")
    engine.apply_shares(1.0)
    assert pacer.bucket.rate == 30_000


def test_a_gateway_that_is_alone_again_lets_nobody_wait_for_no_time() -> None:
    engine = delaying(2)
    broker = engine.broker_meters(1)
    broker.add_topic(b"a")
    decide(engine, 1, b"a", 0, 10.0)
    broker.topics[b"a"].uncounted += 500_000
    broker.total.uncounted += 500_000
    decide(engine, 1, b"a", 0, 10.1)  # for two seconds from now on its part is provisional
    engine.fleet.update_grants({}, 1, 0.0, 10.2)
    engine.set_peer_traffic({}, 1)
    engine.apply_shares(10.2)
    assert present(decide(engine, 1, b"a", 100_000, 10.3)).throttle_ms > 1000
