# All other workers' traffic to each broker: V1's thresholds limit the sum, and each worker measures only its own.
# So control sends each worker the sum of the one-minute rates of this gateway's other workers and of all other
# gateways.
#
# When a worker or a gateway is gone, what it brought fades as an average fades without traffic: its clients come back,
# to others or to its successor, whose averages rise by as much (policies/meters/meter.py). So the sum stays what one
# meter would say; otherwise a killed worker's traffic would be missing for a minute.
#
# A topic that brought nothing in a whole tick fades as well, so that portions of its threshold go where it is produced
# now. Peers don't hear of one that fades in all workers of a gateway: for them it fades from then on.
#
# Knows no socket: how to send to a worker is given.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gateway.channel import PeerRates, WorkerRates
from gateway.control.fleet.exchange.exchange import ThresholdRate
from policies.meters.broker_meters import NO_PEER_TRAFFIC, QUIET_RATE, PeerTraffic
from policies.meters.meter import DECAY, TICK_S

FADING_S: Final = 60.0  # to an e-th part, as Kafka's one-minute rate
FADED_S: Final = 300.0  # to less than a hundredth
_PEERS: Final = -1  # among numbers of workers
NOTICED: Final = 0.02  # of what was sent: a smaller change can wait for the next tick
_QUIET_DECAY: Final = DECAY * (1.0 + 1e-9)  # of a rate: a tick without traffic leaves no more
_KEPT: Final = 0.7  # of a rate: as its average leaves in 20 s. If less is left at once, its topic has left
UNSURE_S: Final = 2 * TICK_S  # each worker has reported its rates by now: a rate of 0 must be sent once, too

Sums = dict[int, PeerTraffic]  # by broker


def rates_by_broker(rates: WorkerRates, before: Mapping[int, PeerTraffic] = {}) -> Sums:
    """One worker's rates by broker. `before`: those of its last report."""
    found = {}
    for broker in rates.brokers:
        known = before.get(broker.node_id, NO_PEER_TRAFFIC)
        topics = {topic.topic.encode(): topic.rate for topic in broker.topics}
        found[broker.node_id] = PeerTraffic(broker.rate, topics, _quiet_topics(topics, known))
    return found


def _quiet_topics(topics: Mapping[bytes, float], before: PeerTraffic) -> dict[bytes, float]:
    """Those that got nothing in the last tick. Reports between two ticks repeat the rate."""
    found = {}
    for topic, rate in topics.items():
        then = before.topics.get(topic, 0.0)
        if 0.0 < rate <= _QUIET_DECAY * then or (rate == then and topic in before.fading):
            found[topic] = rate
    return found


def add_rates(many: Iterable[Mapping[int, PeerTraffic]]) -> Sums:
    """The sum of several workers' or gateways' rates."""
    totals: dict[int, float] = {}
    topics: dict[int, dict[bytes, float]] = {}
    fading: dict[int, dict[bytes, float]] = {}
    for each in many:
        for node_id, broker in each.items():
            totals[node_id] = totals.get(node_id, 0.0) + broker.rate
            _add_topics(topics.setdefault(node_id, {}), broker.topics)
            _add_topics(fading.setdefault(node_id, {}), broker.fading)
    return {node_id: PeerTraffic(total, topics[node_id], fading[node_id]) for node_id, total in totals.items()}


def _add_topics(to: dict[bytes, float], topics: Mapping[bytes, float]) -> None:
    for topic, rate in topics.items():
        to[topic] = to.get(topic, 0.0) + rate


def live_topics(traffic: PeerTraffic) -> dict[bytes, float]:
    """The rates of topics without what fades."""
    fading = traffic.fading
    return {topic: live for topic, rate in traffic.topics.items() if (live := rate - fading.get(topic, 0.0)) > 0.0}


def rates_differ(new: Mapping[int, PeerTraffic], last_sent: Mapping[int, PeerTraffic]) -> bool:
    """Whether the difference is large enough to be sent to a worker at once."""
    if new.keys() != last_sent.keys():
        return True
    return any(_broker_differs(broker, last_sent[node_id]) for node_id, broker in new.items())


def _broker_differs(new: PeerTraffic, last_sent: PeerTraffic) -> bool:
    if _is_noticeable(new.rate, last_sent.rate) or new.topics.keys() != last_sent.topics.keys():
        return True
    if new.fading.keys() != last_sent.fading.keys():
        return True
    return any(_is_noticeable(rate, last_sent.topics[topic]) for topic, rate in new.topics.items())


def _is_noticeable(new: float, last_sent: float) -> bool:
    return abs(new - last_sent) > NOTICED * max(last_sent, 1.0)


def scale_rates(sums: Mapping[int, PeerTraffic], times: float) -> Sums:
    """The rates times a factor."""
    return {
        node_id: PeerTraffic(broker.rate * times, {topic: rate * times for topic, rate in broker.topics.items()})
        for node_id, broker in sums.items()
    }


def lost_rates(before: Mapping[int, PeerTraffic], after: Mapping[int, PeerTraffic]) -> Sums:
    """What the rates were higher before."""
    found = {}
    for node_id, broker in before.items():
        now = after.get(node_id, NO_PEER_TRAFFIC)
        topics = {topic: rate - now.topics.get(topic, 0.0) for topic, rate in broker.topics.items()}
        less = {topic: rate for topic, rate in topics.items() if rate >= QUIET_RATE}
        found[node_id] = PeerTraffic(max(0.0, broker.rate - now.rate), less)
    return found


def left_topics(before: Mapping[int, PeerTraffic], after: Mapping[int, PeerTraffic]) -> Sums:
    """What the rates of topics lost faster than an average does."""
    found = {}
    for node_id, broker in before.items():
        now = after.get(node_id, NO_PEER_TRAFFIC).topics
        less = {
            topic: rate - left
            for topic, rate in broker.topics.items()
            if (left := now.get(topic, 0.0)) < _KEPT * rate and rate - left >= QUIET_RATE
        }
        if less:
            found[node_id] = PeerTraffic(0.0, less)
    return found


def _rate_of(sums: Mapping[int, PeerTraffic], node_id: int, topic: str | None) -> float:
    found = sums.get(node_id, NO_PEER_TRAFFIC)
    return found.rate if topic is None else found.topics.get(topic.encode(), 0.0)


class FleetRates:
    """Rates of the workers of this gateway, and of all other gateways together (`peers`)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._workers: dict[int, Sums] = {}
        self._departed: dict[int, tuple[float, Sums]] = {}  # the fading rates of workers that are gone, and since when
        self.peers: Sums = {}
        self._is_assumed = False  # nobody said so

    def set_worker(self, number: int, rates: WorkerRates | None) -> None:
        """None: the worker is gone, or has reported nothing."""
        if rates is None:
            if number in self._workers:
                self._departed[number] = (
                    self._clock(),
                    add_rates([self._workers.pop(number), *self._fading_rates(number)]),
                )
            return
        brings = rates_by_broker(rates, self._workers.get(number, {}))
        if number not in self._workers and number in self._departed:  # the same one may be back, and its rates with it
            self._departed[number] = self._clock(), lost_rates(add_rates(self._fading_rates(number)), brings)
        self._workers[number] = brings

    def set_peers(self, peers: Sums, *, is_one_gone: bool = False) -> None:
        """The rates of all other gateways together. `is_one_gone`: no gateway produces the difference any more."""
        before, self.peers, self._is_assumed = {} if self._is_assumed else self.peers, peers, False
        left = self._fading_rates(_PEERS)
        if lost := lost_rates(before, peers) if is_one_gone else left_topics(before, peers):
            left.append(lost)
        if left:  # their increase was that gateway's traffic: it is back, or its clients are with another one
            self._departed[_PEERS] = self._clock(), lost_rates(add_rates(left), lost_rates(peers, before))

    def assume_peers(self, times: float) -> None:
        """Peers can't be received any more: count a multiple of this gateway's own rates for them. So it can use its
        share of each limit, and the rates received last limit no worker for ever.
        """
        self.peers, self._is_assumed = scale_rates(self.own_rates(), times), True
        self._departed.pop(_PEERS, None)

    def counted_peers(self) -> Sums:
        """The rates of all other gateways together, with those that fade."""
        fading = self._fading_rates(_PEERS)
        return add_rates([self.peers, *fading]) if fading else self.peers

    def counted_peer_rate(self, node_id: int, topic: str | None) -> float:
        """One of them: to a broker, or to a topic there."""
        since, fading = self._departed.get(_PEERS, (-math.inf, {}))
        age_s = self._clock() - since
        faded = math.exp(-age_s / FADING_S) if age_s < FADED_S else 0.0
        return _rate_of(self.peers, node_id, topic) + faded * _rate_of(fading, node_id, topic)

    def own_rates(self) -> Sums:
        """This gateway's rates, for its peers."""
        return add_rates([*self._workers.values(), *self._fading_rates(*(self._departed.keys() - {_PEERS}))])

    def rates_without(self, number: int) -> Sums:
        """The rates of all workers but this one."""
        near = add_rates(sums for other, sums in self._workers.items() if other != number)
        found = add_rates([near, self.peers, *self._fading_rates(*self._departed)])
        return {
            node_id: each._replace(near=live_topics(near.get(node_id, NO_PEER_TRAFFIC)))
            for node_id, each in found.items()
        }

    def _fading_rates(self, *numbers: int) -> list[Sums]:
        now, found = self._clock(), []
        for number in numbers:
            since, sums = self._departed.get(number, (-math.inf, {}))
            if now - since < FADED_S:
                scaled = scale_rates(sums, math.exp((since - now) / FADING_S))
                found.append({node_id: each._replace(fading=each.topics) for node_id, each in scaled.items()})
            else:
                self._departed.pop(number, None)
        return found


class _RateRecipient:
    """One worker: how to send to it, and the rates that it knows."""

    def __init__(self, post: Callable[[PeerRates], bool], now: float) -> None:
        self.post = post
        self.others: Sums | None = None  # None: only an earlier control knows
        self.processes = 0  # that have rates, as sent with `others`
        self.at = now


class RatePublisher:
    """Sends each worker the rates of all others, and peers this gateway's rates.

    Attributes:
        is_due: there may be something to send to a worker (`publish_rates`).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.is_due = False
        self._clock = clock
        self._rates = FleetRates(clock)
        self._workers: dict[int, _RateRecipient] = {}
        self._has_totals = False
        self._has_changed_rates = False  # for peers
        self._are_peers_stale = self._is_one_gone = False

    @property
    def peers(self) -> Sums:
        """The rates of all other gateways together, as workers count them: with those that fade, and where no gateway
        can be heard with what is assumed.
        """
        return self._rates.counted_peers()

    def peer_rate(self, node_id: int, topic: str | None) -> float:
        """One of `peers`."""
        return self._rates.counted_peer_rate(node_id, topic)

    def set_totals(self, has_totals: bool) -> None:
        """Whether there is any threshold that needs this."""
        self._has_totals, self._has_changed_rates = has_totals, True

    def add_worker(self, worker: int, post: Callable[[PeerRates], bool]) -> None:
        self._workers[worker] = _RateRecipient(post, self._clock())
        self.is_due = True

    def remove_worker(self, worker: int) -> None:
        del self._workers[worker]
        self._rates.set_worker(worker, None)
        self.is_due = self._has_changed_rates = True

    def suspend_worker(self, worker: int) -> None:
        """The worker reports nothing at all: until it does, its rates fade."""
        self._rates.set_worker(worker, None)
        self.is_due = self._has_changed_rates = True

    def set_worker_rates(self, worker: int, rates: WorkerRates) -> None:
        """A worker reports its rates."""
        if worker in self._workers:
            self._rates.set_worker(worker, rates)
            self.is_due = self._has_changed_rates = True

    def mark_peers_changed(self) -> None:
        """Peers' rates have changed. They are summed up when they are sent to workers: there may be many."""
        self.is_due = self._are_peers_stale = True

    def mark_peer_gone(self) -> None:
        """A peer is gone."""
        self._is_one_gone = True
        self.mark_peers_changed()

    def collect_changed_rates(self) -> list[ThresholdRate] | None:
        """All rates of this gateway, for peers; None: unchanged."""
        if not self._has_changed_rates:
            return None
        self._has_changed_rates = False
        found = []
        for node_id, broker in self._rates.own_rates().items() if self._has_totals else ():
            found.append(ThresholdRate(node_id, None, broker.rate))
            live = live_topics(broker)
            found += [ThresholdRate(node_id, topic.decode(), broker.topics[topic]) for topic in live]
        return found

    def publish_rates(
        self, members: int, peers: Callable[[], Mapping[int, tuple[float, Mapping[str, float]]]] | None
    ) -> None:
        """Send rates to the workers for which they are news.

        Args:
            members: workers of all gateways.
            peers: the rates that all other gateways bring together; None: they can't be heard any more.
        """
        now, own = self._clock(), max(1, len(self._workers))
        self.is_due = False
        if peers is None:
            self._rates.assume_peers((members - own) / own)
        elif self._are_peers_stale:
            is_one_gone, self._is_one_gone, self._are_peers_stale = self._is_one_gone, False, False
            self._rates.set_peers(
                {
                    node_id: PeerTraffic(total, {topic.encode(): rate for topic, rate in topics.items()})
                    for node_id, (total, topics) in peers().items()
                },
                is_one_gone=is_one_gone,
            )
        for number, worker in self._workers.items():
            others = self._rates.rates_without(number)
            known, age = worker.others or {}, now - worker.at
            is_unsure = worker.others is None and age >= UNSURE_S
            is_news = others != known or (worker.others is not None and members != worker.processes)
            if is_unsure or rates_differ(others, known) or (is_news and age >= TICK_S):
                if worker.post(PeerRates(others, members)):
                    worker.others, worker.processes, worker.at = others, members, now
                else:
                    self.is_due = True
            elif worker.others is None or is_news:
                self.is_due = True
