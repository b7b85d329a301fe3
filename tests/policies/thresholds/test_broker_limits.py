# The limits of one broker: what of its total and of a topic's threshold is ours; what is left for topics without one.

from __future__ import annotations

import math

import pytest

from policies.engine import PolicyEngine
from policies.fleet.keys import total_key
from policies.fleet.shares import ShareGrant
from policies.limits.meter import TICK_S
from policies.thresholds.broker_meters import PeerTraffic
from policies.verdict import DELAY
from tests.policies.asking import decide, record, rejecting

MB = 1_000_000


def delaying(gateways: int) -> PolicyEngine:
    engine = PolicyEngine(0.0)
    engine.fleet.update_grants({}, gateways, 2.0, 0.0)
    engine.set_thresholds(100_000.0, {"a": 50_000.0, "b": 50_000.0}, on_exceed="delay")
    engine.set_listed_topics(1, ["a", "b", "new"])
    return engine


@pytest.mark.seed("V1.8", "V1.9", "V1.10")
def test_one_more_topic_lowers_what_the_others_share_and_a_recount_says_the_same() -> None:
    broker = rejecting(total=20 * MB, clicks=5 * MB, views=9 * MB).broker_meters(1)
    limits = broker.limits.thresholds
    for n in range(1, 4):
        broker.confirm_topic(b"t%d" % n)
        assert limits.implicit_share == 20 * MB / n
    broker.confirm_topic(b"clicks")  # has a threshold of its own
    broker.confirm_topic(b"views")
    broker.confirm_topic(b"__consumer_offsets")
    assert limits.implicit_share == 2 * MB
    limits.recount_topics()
    assert limits.implicit_share == 2 * MB


def test_a_topics_own_threshold_is_the_explicit_one_or_none_at_all() -> None:
    limits = rejecting(total=20 * MB, clicks=5 * MB).broker_meters(1).limits.thresholds
    names = (b"clicks", b"__consumer_offsets", b"other")
    assert [limits.explicit_threshold(name) for name in names] == [5 * MB, math.inf, None]


def test_our_part_of_the_total_is_taken_of_the_configured_one_and_lowered_with_it() -> None:
    engine = delaying(gateways=2)
    limits = engine.broker_meters(1).limits.thresholds
    assert limits.own_total == 50_000
    engine.fleet.update_grants({total_key(1): ShareGrant(80_000.0, 50_000.0)}, 2, 2.0, 0.0)
    assert limits.own_total == 80_000
    engine.set_storage_factor(0.5, "a disk fills up", 0.0)
    assert (limits.total, limits.own_total) == (50_000, 40_000)


def test_a_topics_threshold_is_ours_in_proportion_to_our_part_of_its_traffic() -> None:
    engine = delaying(gateways=4)
    broker = engine.broker_meters(1)
    for name, size in ((b"a", 60_000), (b"b", 20_000), (b"new", 0)):
        broker.add_topic(name).uncounted += size * round(TICK_S)
    engine.apply_due_ticks(TICK_S)
    engine.set_peer_traffic({1: PeerTraffic(90_000.0, {b"a": 20_000.0, b"b": 180_000.0})}, 4)
    portions = [broker.limits.thresholds.portion_of(broker.topics[name]) for name in (b"a", b"b", b"new")]
    assert portions == [0.75, 0.25, 0.25]
    engine.set_peer_traffic({1: PeerTraffic(20_000.0, {b"a": 20_000.0}, {b"a": 20_000.0})}, 4)
    assert broker.limits.thresholds.portion_of(broker.topics[b"a"]) == 1.0, (
        "whoever brought that is gone, and its clients are here"
    )
    engine.set_peer_traffic({}, 1)
    assert broker.limits.thresholds.portion_of(broker.topics[b"a"]) == 1.0


def test_a_client_that_waits_for_our_part_of_a_total_makes_it_hungry() -> None:
    engine = delaying(gateways=2)
    broker = engine.broker_meters(1)
    broker.add_topic(b"a")
    assert not broker.limits.is_hungry(0.0)
    for _ in range(3):
        if (why := decide(engine, 1, b"a", 50_000, 0.0)) is None or why.action == DELAY:
            record(broker, b"a", 0)
            broker.topics[b"a"].uncounted += 50_000
            broker.total.uncounted += 50_000
    assert broker.limits.is_hungry(0.0)
    assert broker.limits.is_hungry(1.0)  # it waits
    assert not broker.limits.is_hungry(30.0)


def test_a_client_that_waits_only_for_its_own_bytes_makes_no_total_hungry() -> None:
    engine = delaying(gateways=2)
    broker = engine.broker_meters(1)
    broker.add_topic(b"a")
    assert decide(engine, 1, b"a", 5000, 0.0) is not None
    assert broker.limits.is_hungry(0.0), "it has only begun, and nothing is saved"
    why = decide(engine, 1, b"a", 80_000, 5.0)
    assert why is not None
    assert (why.action, why.throttle_ms) == (DELAY, 600)
    assert not broker.limits.is_hungry(5.0)
