# The thresholds of one broker: what of its total and of a topic is ours, and what is left for topics without one.

from __future__ import annotations

import math

import pytest

from policies.fleet.keys import total_key
from policies.fleet.shares import ShareGrant
from policies.meters.broker_meters import PeerTraffic
from policies.meters.meter import TICK_S
from tests.policies.asking import delaying, rejecting

MB = 1_000_000


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
    portions = [broker.limits.thresholds.portion_of(broker.topics[name], 4) for name in (b"a", b"b", b"new")]
    assert portions == [0.75, 0.25, 0.25]
    engine.set_peer_traffic({1: PeerTraffic(20_000.0, {b"a": 20_000.0}, {b"a": 20_000.0})}, 4)
    assert broker.limits.thresholds.portion_of(broker.topics[b"a"], 4) == 1.0, (
        "whoever brought that is gone, and its clients are here"
    )
    engine.set_peer_traffic({}, 1)
    assert broker.limits.thresholds.portion_of(broker.topics[b"a"], 4) == 1.0
