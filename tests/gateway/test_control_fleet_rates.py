# What everybody else brings to each broker.

from __future__ import annotations

from gateway.channel import Rates
from gateway.control.fleet_rates import FleetRates, differ
from policies.engine import BrokerRate, TopicRate
from policies.thresholds.broker_meters import Others


def rates(broker, **topics):
    named = tuple(TopicRate(topic, rate, None, False) for topic, rate in topics.items())
    return Rates((BrokerRate(broker, sum(topics.values()), 1.0, 1.0, None, named),))


def test_a_worker_is_told_of_all_but_itself():
    brought = FleetRates()
    brought.set_worker(0, rates(1, a=10.0, b=5.0))
    brought.set_worker(1, rates(1, a=3.0))
    brought.set_worker(2, rates(2, c=7.0))
    brought.set_peers({1: Others(150.0, {b"b": 80.0})})
    assert brought.others_of(0) == {1: Others(153.0, {b"a": 3.0, b"b": 80.0}), 2: Others(7.0, {b"c": 7.0})}
    assert brought.own() == {1: Others(18.0, {b"a": 13.0, b"b": 5.0}), 2: Others(7.0, {b"c": 7.0})}


def test_who_has_gone_brings_nothing():
    brought = FleetRates()
    brought.set_worker(0, rates(1, a=10.0))
    brought.set_worker(1, rates(1, a=3.0))
    brought.set_worker(1, None)
    brought.set_peers({1: Others(1.0)})
    brought.set_peers({})
    assert brought.others_of(0) == {}


def test_small_changes_can_wait():
    told = {1: Others(100.0, {b"a": 50.0})}
    assert not differ({1: Others(101.0, {b"a": 49.5})}, told)
    assert differ({1: Others(103.0, {b"a": 50.0})}, told)
    assert differ({1: Others(100.0, {b"a": 48.0})}, told)
    assert differ({1: Others(100.0, {b"a": 50.0, b"b": 0.0})}, told)
    assert differ({}, told)
    assert differ(told, {})
