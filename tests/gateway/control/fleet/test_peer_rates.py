# What everybody else brings to each broker.

from __future__ import annotations

import math

import pytest

from gateway.channel import WorkerRates
from gateway.control.fleet.peer_rates import FleetRates, RatePublisher, rates_differ
from policies.engine import PolicyEngine
from policies.meters.broker_meters import PeerTraffic
from policies.meters.meter import DECAY, TICK_S
from policies.thresholds.broker_limits import BrokerRate, TopicRate
from tests.policies.asking import present


def rates(broker: int, **topics: float) -> WorkerRates:
    named = [TopicRate(topic, rate, None, False) for topic, rate in topics.items()]
    return WorkerRates((BrokerRate(broker, sum(topics.values()), 1.0, 1.0, None, named),))


def test_a_worker_is_told_of_all_but_itself() -> None:
    brought = FleetRates(lambda: 0.0)
    brought.set_worker(0, rates(1, a=10.0, b=5.0))
    brought.set_worker(1, rates(1, a=3.0))
    brought.set_worker(2, rates(2, c=7.0))
    brought.set_peers({1: PeerTraffic(150.0, {b"b": 80.0})})
    assert brought.rates_without(0) == {
        1: PeerTraffic(153.0, {b"a": 3.0, b"b": 80.0}, near={b"a": 3.0}),
        2: PeerTraffic(7.0, {b"c": 7.0}, near={b"c": 7.0}),
    }
    assert brought.own_rates() == {1: PeerTraffic(18.0, {b"a": 13.0, b"b": 5.0}), 2: PeerTraffic(7.0, {b"c": 7.0})}


def test_rates_of_a_worker_that_is_gone_fade_as_an_average_without_traffic() -> None:
    now = [0.0]
    brought = FleetRates(lambda: now[0])
    brought.set_worker(0, rates(1, a=10.0))
    brought.set_worker(1, rates(1, a=300.0))
    brought.set_worker(1, None)
    brought.set_worker(1, None)
    assert brought.rates_without(0) == brought.rates_without(1) | {1: PeerTraffic(300.0, {b"a": 300.0}, {b"a": 300.0})}
    now[0] = 60.0
    left = 300.0 / math.e
    assert brought.rates_without(0) == {1: PeerTraffic(left, {b"a": left}, {b"a": left})}
    assert brought.own_rates() == {1: PeerTraffic(10 + left, {b"a": 10 + left}, {b"a": left})}, "peers go on with it"
    now[0] = 301.0
    assert brought.rates_without(0) == {}


def test_a_client_that_comes_back_to_another_worker_counts_once() -> None:
    now = [0.0]
    brought = FleetRates(lambda: now[0])
    brought.set_worker(0, rates(1, a=100.0))
    brought.set_worker(0, None)
    meter = PolicyEngine(0.0).broker_meters(1).add_topic(b"a")
    meter.started = True  # at 0, as others bring it
    for tick in range(1, 30):
        now[0] = tick * TICK_S
        meter.uncounted += round(100 * TICK_S)
        meter.tick()
        assert meter.rate + brought.rates_without(1)[1].topics[b"a"] == pytest.approx(100.0)


def test_a_worker_that_only_lost_its_channel_counts_once() -> None:
    brought = FleetRates(lambda: 0.0)
    brought.set_worker(0, rates(1, a=100.0, b=20.0))
    brought.set_worker(0, None)
    brought.set_worker(0, rates(1, a=101.0))
    assert brought.own_rates() == {1: PeerTraffic(120.0, {b"a": 101.0, b"b": 20.0}, {b"b": 20.0})}
    brought.set_worker(0, rates(1, a=95.0))
    assert brought.own_rates() == {1: PeerTraffic(114.0, {b"a": 95.0, b"b": 20.0}, {b"b": 20.0})}, (
        "from then on it is as it says"
    )


def test_workers_that_go_one_after_the_other_fade_together() -> None:
    now = [0.0]
    brought = FleetRates(lambda: now[0])
    brought.set_worker(0, rates(1, a=100.0))
    brought.set_worker(0, None)
    now[0] = 60.0
    brought.set_worker(0, rates(1, a=0.0))
    brought.set_worker(0, rates(1, a=10.0))
    brought.set_worker(0, None)
    assert brought.rates_without(1)[1].rate == pytest.approx(10.0 + 100.0 / math.e)


def test_a_topic_that_brought_nothing_in_a_tick_fades_until_it_brings_something() -> None:
    now = [0.0]
    brought = FleetRates(lambda: now[0])
    brought.set_worker(0, rates(1, a=10.0))
    for rate, fades in ((300.0, False), (300.0 * DECAY, True), (300.0 * DECAY, True), (270.0, False), (250.0, False)):
        brought.set_worker(1, rates(1, a=rate))
        traffic = brought.rates_without(0)[1]
        assert traffic == PeerTraffic(rate, {b"a": rate}, {b"a": rate} if fades else {}, {} if fades else {b"a": rate})
        assert rates_differ({1: traffic}, {1: PeerTraffic(rate, {b"a": rate}, {} if fades else {b"a": rate})})


def test_a_topic_that_a_gateway_has_left_fades_at_its_peers() -> None:
    now = [0.0]
    here, there = RatePublisher(lambda: now[0]), FleetRates(lambda: now[0])
    here.set_totals(True)
    for worker in (0, 1):
        here.add_worker(worker, lambda _: True)
    told = []
    for many in ((300.0, 50.0), (300.0 * DECAY, 50.0), (300.0 * DECAY**2, 50.0 * DECAY)):
        for worker, rate in enumerate(many):
            here.set_worker_rates(worker, rates(1, a=rate))
        told.append({rate.topic: rate.rate for rate in present(here.collect_changed_rates())})
    assert told == [
        {None: 350.0, "a": 350.0},
        {None: 300.0 * DECAY + 50.0, "a": 300.0 * DECAY + 50.0},  # one of its workers still brings some
        {None: 300.0 * DECAY**2 + 50.0 * DECAY},
    ]
    there.set_peers({1: PeerTraffic(350.0, {b"a": 350.0})})
    there.set_peers({1: PeerTraffic(300.0, {})})
    assert there.rates_without(0) == {1: PeerTraffic(300.0, {b"a": 350.0}, {b"a": 350.0})}
    now[0] = 60.0
    there.set_peers({1: PeerTraffic(300.0, {b"a": 100.0})})
    left = 350.0 / math.e - 100.0
    assert there.rates_without(0)[1].fading == {b"a": pytest.approx(left)}, "it is back"
    there.set_peers({1: PeerTraffic(300.0, {b"a": 75.0})})
    assert there.rates_without(0)[1].fading == {b"a": pytest.approx(left)}, "as an average falls"


def test_small_changes_can_wait() -> None:
    told = {1: PeerTraffic(100.0, {b"a": 50.0})}
    assert not rates_differ({1: PeerTraffic(101.0, {b"a": 49.5})}, told)
    assert rates_differ({1: PeerTraffic(103.0, {b"a": 50.0})}, told)
    assert rates_differ({1: PeerTraffic(100.0, {b"a": 48.0})}, told)
    assert rates_differ({1: PeerTraffic(100.0, {b"a": 50.0, b"b": 0.0})}, told)
    assert rates_differ({}, told)
    assert rates_differ(told, {})


def test_rates_of_a_gateway_that_is_gone_fade_until_they_are_brought_again() -> None:
    now = [0.0]
    brought = FleetRates(lambda: now[0])
    brought.set_worker(0, rates(1, a=10.0))
    brought.set_peers({1: PeerTraffic(150.0, {b"a": 100.0, b"b": 50.0})})
    brought.set_peers({1: PeerTraffic(40.0, {b"a": 40.0})}, is_one_gone=True)
    assert brought.rates_without(0) == {1: PeerTraffic(150.0, {b"a": 100.0, b"b": 50.0}, {b"a": 60.0, b"b": 50.0})}
    assert brought.own_rates() == {1: PeerTraffic(10.0, {b"a": 10.0})}
    now[0] = 60.0
    left = 60.0 / math.e
    assert brought.rates_without(0)[1].topics[b"a"] == pytest.approx(40.0 + left)
    brought.set_peers({1: PeerTraffic(60.0, {b"a": 60.0})})
    assert brought.rates_without(0)[1].topics[b"a"] == pytest.approx(60.0 + left - 20.0)
    brought.set_peers({1: PeerTraffic(50.0, {b"a": 50.0})})
    assert brought.rates_without(0)[1].topics[b"a"] == pytest.approx(50.0 + left - 20.0), "they may bring less"
    brought.assume_peers(0.0)
    assert brought.rates_without(0) == {1: PeerTraffic(0.0, {b"a": 0.0})}


@pytest.mark.parametrize("is_one_gone", [False, True])
def test_rates_that_were_assumed_do_not_fade_once_peers_are_heard_again(is_one_gone: bool) -> None:
    brought = FleetRates(lambda: 0.0)
    brought.set_worker(0, rates(1, a=100.0))
    brought.set_peers({1: PeerTraffic(20.0, {b"b": 20.0})})
    brought.assume_peers(2.0)
    heard = {1: PeerTraffic(20.0, {b"b": 20.0})}
    brought.set_peers(heard, is_one_gone=is_one_gone)
    assert brought.rates_without(0) == heard
