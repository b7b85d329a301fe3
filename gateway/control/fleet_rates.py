# What all other workers of the fleet bring to each broker: V1's thresholds limit the sum, and each worker measures only
# its own traffic. So control tells each worker the sum of the one-minute rates of this gateway's other workers and of
# all other gateways.
#
# Knows no channel and no clock.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gateway.channel import Rates
from policies.thresholds.broker_meters import Others

NOTICED: Final = 0.02  # of what was told: a change by less can wait for the next tick

Sums = dict[int, Others]  # by broker


def of_rates(rates: Rates) -> Sums:
    """What one worker brings."""
    return {
        broker.node_id: Others(broker.rate, {topic.topic.encode(): topic.rate for topic in broker.topics})
        for broker in rates.brokers
    }


def add(many: Iterable[Mapping[int, Others]]) -> Sums:
    """The sum of several."""
    totals: dict[int, float] = {}
    topics: dict[int, dict[bytes, float]] = {}
    for each in many:
        for node_id, broker in each.items():
            totals[node_id] = totals.get(node_id, 0.0) + broker.rate
            own = topics.setdefault(node_id, {})
            for topic, rate in broker.topics.items():
                own[topic] = own.get(topic, 0.0) + rate
    return {node_id: Others(total, topics[node_id]) for node_id, total in totals.items()}


def differ(new: Mapping[int, Others], told: Mapping[int, Others]) -> bool:
    """Whether a worker should know at once."""
    if new.keys() != told.keys():
        return True
    return any(_differs(broker, told[node_id]) for node_id, broker in new.items())


def _differs(new: Others, told: Others) -> bool:
    if _is_off(new.rate, told.rate) or new.topics.keys() != told.topics.keys():
        return True
    return any(_is_off(rate, told.topics[topic]) for topic, rate in new.topics.items())


def _is_off(new: float, told: float) -> bool:
    return abs(new - told) > NOTICED * max(told, 1.0)


class FleetRates:
    """By workers of this gateway, and by all other gateways together."""

    def __init__(self) -> None:
        self._workers: dict[int, Sums] = {}
        self._peers: Sums = {}

    def set_worker(self, number: int, rates: Rates | None) -> None:
        """None: it is gone, or has said nothing."""
        if rates is None:
            self._workers.pop(number, None)
        else:
            self._workers[number] = of_rates(rates)

    def set_peers(self, peers: Sums) -> None:
        """What all other gateways bring together."""
        self._peers = peers

    def assume_peers(self, times: float) -> None:
        """Nobody can hear them any more: they bring so many times as much as this gateway does. So it may bring its
        part of each limit, and what was heard last limits nobody for ever.
        """
        self._peers = {
            node_id: Others(broker.rate * times, {topic: rate * times for topic, rate in broker.topics.items()})
            for node_id, broker in self.own().items()
        }

    def own(self) -> Sums:
        """What this gateway brings: for its peers."""
        return add(self._workers.values())

    def others_of(self, number: int) -> Sums:
        """What everybody but that worker brings."""
        mine = (sums for other, sums in self._workers.items() if other != number)
        return add([*mine, self._peers])
