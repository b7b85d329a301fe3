# Thresholds in a fleet: those that reject go by everybody's rates, those that delay by our part of the total.

from __future__ import annotations

import pytest

from policies.engine import Engine
from policies.fleet import page as page_module
from policies.fleet.keys import total_key
from policies.fleet.page import Page
from policies.fleet.shares import Part
from policies.limits.limit_use import LimitUse
from policies.limits.meter import TICK_S
from policies.thresholds.broker_meters import Others
from policies.thresholds.pacing import Pacer
from policies.verdict import DELAY, STORAGE_THROTTLE
from tests.policies.asking import decide, record, rejection, storage
from tests.policies.pacing_play import Connection, Loop
from tests.policies.pages import pages

TOTAL = total_key(1)
TOPIC = b"clicks"


def rejecting(rate: float, others: Others) -> Engine:
    """`clicks` has a threshold of 500 bytes/s, its broker of 1000."""
    engine = Engine(0.0)
    engine.fleet.tell({}, 2, 2.0, 0.0)
    engine.set_policy(1000.0, {"clicks": 500.0})
    engine.set_topics(1, ["clicks", "calm", "late"])
    record(engine.broker(1), TOPIC, round(rate * TICK_S))
    engine.tick(TICK_S)
    engine.set_others({1: others})
    return engine


@pytest.mark.seed("V1.4", "V1.12")
@pytest.mark.parametrize(
    ("rate", "others", "over"),
    [
        (400.0, Others(), False),
        (400.0, Others(700.0, {TOPIC: 200.0}), True),  # neither of us alone is over anything
        (400.0, Others(500.0, {TOPIC: 200.0}), False),  # the total has room
        (400.0, Others(700.0, {b"calm": 700.0}), False),  # the topic is within its own
        (600.0, Others(700.0), True),
    ],
)
def test_a_topic_is_over_when_the_sum_of_all_is(rate: float, others: Others, over: bool) -> None:
    engine = rejecting(rate, others)
    assert engine.broker(1).topics[TOPIC].over is over


def test_it_is_over_no_more_when_the_others_are_gone() -> None:
    engine = rejecting(400.0, Others(700.0, {TOPIC: 200.0}))
    engine.set_others({})
    assert not engine.broker(1).topics[TOPIC].over


def test_others_hold_at_ticks_and_for_topics_and_brokers_that_come_later() -> None:
    engine = rejecting(400.0, Others(5000.0, {TOPIC: 200.0, b"late": 900.0}))
    engine.set_others({1: Others(5000.0, {TOPIC: 200.0, b"late": 900.0}), 2: Others(2000.0, {TOPIC: 700.0})})
    engine.broker(1).add_topic(b"late")
    engine.set_topics(2, ["clicks"])
    engine.broker(2).add_topic(TOPIC)
    engine.tick(2 * TICK_S)
    assert engine.broker(1).topics[b"late"].over
    assert engine.broker(2).topics[TOPIC].over


def test_the_client_is_told_all_clients_rates() -> None:
    engine = rejecting(400.0, Others(700.0, {TOPIC: 200.0}))
    text = rejection(engine, 1, TOPIC, TICK_S).text
    assert "600.0 B/s of 500.0 B/s" in text
    assert "total 1.1 kB/s of 1.0 kB/s" in text


def test_own_rates_are_told_as_ours() -> None:
    rates = rejecting(400.0, Others(700.0, {TOPIC: 200.0})).rates()
    assert rates[0].rate == 400
    assert rates[0].topics[0].rate in (0.0, 400.0)


def test_a_threshold_says_by_which_sum_it_decides() -> None:
    (broker,) = rejecting(400.0, Others(700.0, {TOPIC: 200.0})).rates()
    assert (broker.fleet_rate, broker.use, broker.used) == (1100.0, None, LimitUse(1100.0, 1000.0))
    topic = next(each for each in broker.topics if each.topic == TOPIC.decode())
    assert topic.used == LimitUse(600.0, 500.0)
    assert topic.used.utilization == 1.2


def delaying(gateways: int = 2, each: float = 50_000.0, page: Page | None = None) -> Engine:
    """In a fleet of so many gateways, one of whose workers this is."""
    engine = Engine(0.0, page=page)
    engine.fleet.tell({}, gateways, 2.0, 0.0)
    engine.set_others({}, gateways)
    engine.set_policy(100_000.0, {"a": each, "b": each}, on_exceed="delay")
    engine.set_topics(1, ["a", "b", "new"])
    return engine


def test_when_thresholds_delay_our_part_of_the_total_holds() -> None:
    engine = delaying(each=10_000.0)
    loop = Loop(engine, [Connection("a", 5000), Connection("b", 5000)])
    loop.run(20.0)
    engine.fleet.tell({TOTAL: Part(80_000.0, 30_000.0)}, 2, 2.0, 20.0)
    engine.retune(20.0)
    loop.run(40.0)
    engine.fleet.fall_back(40.0)
    engine.retune(40.0)
    loop.run(60.0)
    assert loop.rate(5.0, 20.0) == pytest.approx(50_000, rel=0.03)
    assert loop.rate(21.0, 40.0) == pytest.approx(80_000, rel=0.03)
    assert loop.rate(42.0, 60.0) == pytest.approx(30_000, rel=0.05)


def test_of_two_gateways_with_their_parts_of_a_total_the_topics_get_their_thresholds() -> None:
    """Half of `a` comes here; `b` only here. `a` is within its threshold, so all that waits is `b`."""
    engine = delaying()
    engine.fleet.tell({TOTAL: Part(75_000.0, 50_000.0)}, 2, 2.0, 0.0)
    engine.retune(0.0)
    engine.set_others({1: Others(25_000.0, {b"a": 25_000.0})}, 2)
    a, b = Connection("a", 2500), Connection("b", 5000)
    loop = Loop(engine, [a, b])
    loop.run(60.0)
    assert loop.rate(20.0, 60.0) == pytest.approx(75_000, rel=0.02)
    assert loop.rate(20.0, 60.0, b) >= 45_000


def test_the_line_of_all_producers_has_our_part_times_the_storage_factor() -> None:
    engine = Engine(0.0)
    engine.set_policy(1000.0, {})
    engine.fleet.tell({TOTAL: Part(600.0, 300.0)}, 2, 2.0, 0.0)
    engine.set_storage(0.5, "broker 1 volume /data", 0.0)
    storage_limit = engine.broker(1).limits.storage
    assert storage_limit is not None
    line = storage_limit.line
    assert line.bucket.rate == 300
    engine.fleet.tell({TOTAL: Part(400.0, 300.0)}, 2, 2.0, 0.0)
    engine.retune(0.0)
    assert line.bucket.rate == 200
    why = storage(engine, 1, 600, 0.0)
    assert why is not None
    assert (why.action, why.reason, why.throttle_ms) == (DELAY, STORAGE_THROTTLE, 2000)  # provisional: not 3 s


def test_a_total_that_became_busy_just_now_lets_no_client_wait_for_long() -> None:
    engine = delaying(10)
    why = decide(engine, 1, b"a", 0, 0.0)
    assert why is None
    engine.broker(1).add_topic(b"a")
    why = decide(engine, 1, b"a", 90_000, 0.0)
    assert why is not None
    assert why.throttle_ms == 2000
    assert engine.broker(1).limits.strategy.delays


def test_the_bytes_a_broker_got_are_counted_over_ticks() -> None:
    engine = Engine(0.0)
    broker = engine.broker(1)
    for tick in range(1, 4):
        record(broker, b"a", 10)
        engine.tick(tick * TICK_S)
        record(broker, b"a", 1)
    assert broker.taken == 33


# --- several workers of one gateway -----------------------------------------------------------------------------------


def test_the_workers_of_a_gateway_share_its_part_of_a_total() -> None:
    """One of them has taken what the other one's clients wait for."""
    one, two = (delaying(1, page=page) for page in pages(2))
    for engine in (one, two):
        engine.set_others({}, 2)
        engine.broker(1).add_topic(b"a")
        decide(engine, 1, b"a", 0, 10.0)
    one.broker(1).topics[b"a"].uncounted += 200_000
    one.broker(1).total.uncounted += 200_000
    decide(one, 1, b"a", 0, 10.0)
    why = decide(two, 1, b"a", 100_000, 11.0)
    assert why is not None
    assert why.action == DELAY
    assert why.throttle_ms in {2000, 2001}, "two workers' times are never the same one: the last digit is another one"
    assert two.broker(1).limits.is_hungry(11.0)


def test_the_line_of_all_producers_is_one_of_all_workers_and_not_the_one_of_topics_above_their_thresholds() -> None:
    engines = [Engine(0.0, page=page) for page in pages(2)]
    for engine in engines:
        engine.set_policy(1000.0, {}, on_exceed="delay")
        engine.set_storage(0.5, "broker 1 volume /data", 0.0)
    one, two = (engine.broker(1).limits.storage for engine in engines)
    assert one is not None
    assert two is not None
    one.line.take(2000, 10.0)
    assert two.line.wait(10.0) == 3.0
    pacer = engines[0].broker(1).limits.strategy
    assert isinstance(pacer, Pacer)
    assert pacer.bucket.level(10.0) >= 0.0
    engines[1].set_storage(1.0, "", 10.0)
    engines[1].set_storage(0.25, "broker 1 volume /data", 10.0)
    again = engines[1].broker(1).limits.storage
    assert again is not None
    assert again.line.wait(10.0) == 6.0, "who begins later finds what is owed"


def test_without_room_in_the_page_each_worker_has_an_even_part_of_a_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "ROWS", 1)
    many = pages(2)
    held = many[0].row("one that takes all the room")
    assert held is not None
    engine = delaying(1, page=many[0])
    pacer = engine.broker(1).limits.strategy
    assert isinstance(pacer, Pacer)
    assert pacer.bucket.rate == 50_000
    engine.set_policy(60_000.0, {}, on_exceed="delay")
    engine.retune(1.0)
    assert pacer.bucket.rate == 30_000
