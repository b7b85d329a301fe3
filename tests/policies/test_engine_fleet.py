# Thresholds in a fleet: those that reject go by everybody's rates, those that delay by our part of the total.

from __future__ import annotations

import pytest

from policies.engine import Engine
from policies.fleet.keys import total_key
from policies.fleet.shares import Part
from policies.limits.meter import TICK_S
from policies.thresholds.broker_meters import Others
from policies.verdict import DELAY, STORAGE_THROTTLE
from tests.policies.asking import decide, record, rejection, storage
from tests.policies.pacing_play import Connection, Loop

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


def test_the_client_is_told_everybodys_rates() -> None:
    engine = rejecting(400.0, Others(700.0, {TOPIC: 200.0}))
    text = rejection(engine, 1, TOPIC, TICK_S).text
    assert "600.0 B/s of 500.0 B/s" in text
    assert "total 1.1 kB/s of 1.0 kB/s" in text


def test_own_rates_are_told_as_ours() -> None:
    rates = rejecting(400.0, Others(700.0, {TOPIC: 200.0})).rates()
    assert rates[0].rate == 400
    assert rates[0].topics[0].rate in (0.0, 400.0)


def delaying(members: int = 2, each: float = 50_000.0) -> Engine:
    engine = Engine(0.0)
    engine.fleet.tell({}, members, 2.0, 0.0)
    engine.set_policy(100_000.0, {"a": each, "b": each}, on_exceed="delay")
    engine.set_topics(1, ["a", "b", "new"])
    return engine


def test_where_thresholds_delay_our_part_of_the_total_holds() -> None:
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


def test_a_topics_threshold_is_ours_in_proportion_to_our_part_of_its_traffic() -> None:
    engine = delaying(members=4)
    broker = engine.broker(1)
    for name, size in ((b"a", 60_000), (b"b", 20_000), (b"new", 0)):
        broker.add_topic(name).uncounted += size * round(TICK_S)
    engine.tick(TICK_S)
    engine.set_others({1: Others(90_000.0, {b"a": 20_000.0, b"b": 180_000.0})})
    assert [broker.topics[name].portion for name in (b"a", b"b", b"new")] == [0.75, 0.25, 0.25]
    engine.fleet.tell({}, 1, 2.0, TICK_S)
    engine.set_others({})
    assert broker.topics[b"a"].portion == 1.0


def test_of_two_workers_with_their_parts_of_a_total_the_topics_get_their_thresholds() -> None:
    """Half of `a` comes here; `b` only here. `a` is within its threshold, so all that waits is `b`."""
    engine = delaying()
    engine.fleet.tell({TOTAL: Part(75_000.0, 50_000.0)}, 2, 2.0, 0.0)
    engine.retune(0.0)
    engine.set_others({1: Others(25_000.0, {b"a": 25_000.0})})
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
    storage_limit = engine.broker(1).storage
    assert storage_limit is not None
    line = storage_limit.line
    assert line.bucket.rate == 300
    engine.fleet.tell({TOTAL: Part(400.0, 300.0)}, 2, 2.0, 0.0)
    engine.retune(0.0)
    assert line.bucket.rate == 200
    why = storage(engine, 1, 600, 0.0)
    assert why is not None
    assert (why.action, why.reason, why.throttle_ms) == (DELAY, STORAGE_THROTTLE, 2000)  # provisional: not 3 s


def test_who_waits_for_our_part_of_a_total_makes_it_hungry() -> None:
    engine = delaying()
    broker = engine.broker(1)
    broker.add_topic(b"a")
    assert not broker.take_hunger(0.0)
    for _ in range(3):
        if (why := decide(engine, 1, b"a", 50_000, 0.0)) is None or why.action == DELAY:
            record(broker, b"a", 0)
            broker.topics[b"a"].uncounted += 50_000
            broker.total.uncounted += 50_000
    assert broker.take_hunger(0.0)
    assert broker.take_hunger(1.0)  # still in debt
    assert not broker.take_hunger(30.0)


def test_a_total_that_became_busy_just_now_lets_nobody_wait_for_long() -> None:
    engine = delaying(members=10)
    why = decide(engine, 1, b"a", 0, 0.0)
    assert why is None
    engine.broker(1).add_topic(b"a")
    why = decide(engine, 1, b"a", 90_000, 0.0)
    assert why is not None
    assert why.throttle_ms == 2000
    assert engine.broker(1).strategy.delays


def test_what_a_broker_got_is_counted_over_ticks() -> None:
    engine = Engine(0.0)
    broker = engine.broker(1)
    for tick in range(1, 4):
        record(broker, b"a", 10)
        engine.tick(tick * TICK_S)
        record(broker, b"a", 1)
    assert broker.taken == 33
