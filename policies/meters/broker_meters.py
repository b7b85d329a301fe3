# How much one upstream broker gets, and each topic of it; which topics exist, and which names clients made up.
#
# Rates are per upstream broker, as if each metered itself (V1).
#
# Knows no limit, no request and no clock: limits ask it, and never the reverse. The hot path reads `topics` and
# `TopicMeter.ask_at` and adds to `uncounted` itself. Topics come and go: a TopicMeter must not be kept beyond a tick or
# a `set_listed_topics`.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from policies.meters.meter import ALPHA, TICK_S, FleetMeter
from policies.meters.topic_meter import TopicMeter

if TYPE_CHECKING:
    from policies.meters.meter import TickSchedule

# Names that clients made up must not fill the memory: beyond this many, the rest share one meter, OTHER_TOPICS.
MAX_UNLISTED: Final = 10_000
OTHER_TOPICS: Final = b""
QUIET_RATE: Final = 1.0  # bytes per second: an unlisted topic below it is forgotten at the next tick


class PeerTraffic(NamedTuple):
    """The traffic of all other workers of the fleet to one broker: bytes per second, one-minute EWMA.

    `fading`: those bytes of `topics` that no worker brings any more: an average remembers them, and other workers bring
    them now. `near`: those that this gateway's other workers bring.
    """

    rate: float = 0.0
    topics: Mapping[bytes, float] = {}
    fading: Mapping[bytes, float] = {}
    near: Mapping[bytes, float] = {}


NO_PEER_TRAFFIC: Final = PeerTraffic()


class BrokerMeters:
    """The traffic of one upstream broker, and each topic's part of it.

    `total`: bytes that got into the log; `errors`: admitted here, refused by the broker; `throttled`: turned away
    here by a limit.
    `ticked_bytes`: bytes that got into the log before the last tick.
    """

    __slots__ = (
        "_listed",
        "_peer_traffic",
        "_ticks",
        "_unconfirmed",
        "_unlisted",
        "errors",
        "node_id",
        "throttled",
        "ticked_bytes",
        "topics",
        "total",
    )  # fmt: skip

    def __init__(self, node_id: int, ticks: TickSchedule) -> None:
        self.node_id = node_id
        self._ticks = ticks
        self._peer_traffic = NO_PEER_TRAFFIC
        self.ticked_bytes = 0
        self.total = ticks.register_meter(FleetMeter())
        self.errors = ticks.register_meter(FleetMeter())
        self.throttled = ticks.register_meter(FleetMeter())
        self.topics: dict[bytes, TopicMeter] = {}
        self._listed: frozenset[bytes] = frozenset()
        self._unlisted: set[bytes] = set()  # produced to, and not in metadata (yet)
        self._unconfirmed: set[bytes] = set()  # clients named them, and no broker has vouched for them (yet)

    # --- topics -------------------------------------------------------------------------------------------------------

    def add_topic(self, topic: bytes) -> TopicMeter:
        """The meter of a topic that has none yet. One that metadata doesn't list is a stranger until `confirm_topic`:
        it takes no share from others, and is forgotten at the next tick.
        """
        if topic not in self._listed and len(self._unconfirmed) + len(self._unlisted) >= MAX_UNLISTED:
            topic = OTHER_TOPICS
            if topic in self.topics:
                return self.topics[topic]
        return self._make_meter(topic)

    def _make_meter(self, topic: bytes) -> TopicMeter:
        meter = self.topics[topic] = self._ticks.register_meter(TopicMeter(topic))
        meter.is_confirmed = topic in self._listed
        if not meter.is_confirmed:
            self._unconfirmed.add(topic)
        meter.peer_rate = self._peer_traffic.topics.get(topic, 0.0)
        meter.fading_rate = self._peer_traffic.fading.get(topic, 0.0)
        meter.near_rate = self._peer_traffic.near.get(topic, 0.0)
        return meter

    def confirm_topic(self, topic: bytes) -> TopicMeter | None:
        """The broker has taken a batch for it, so there is such a topic; it counts for shares from now on.

        Returns:
            Its meter; None where this was known.
        """
        meter = self.topics.get(topic)
        if meter is None:
            if len(self._unlisted) >= MAX_UNLISTED and topic not in self._listed:
                topic = OTHER_TOPICS
            meter = self.topics.get(topic) or self._make_meter(topic)
        if meter.is_confirmed:
            return None
        meter.is_confirmed = True
        self._unconfirmed.discard(topic)
        self._unlisted.add(topic)
        return meter

    def existing_topics(self) -> Iterator[bytes]:
        """Topics that there are: brokers list them, or have taken batches for them."""
        return chain(self._listed, self._unlisted)

    def set_listed_topics(self, topics: frozenset[bytes]) -> bool:
        """Take over metadata's list. A topic that left it is off this broker: its meter goes, as in Kafka.

        Returns:
            Whether it is another list.
        """
        if topics == self._listed:
            return False
        new = topics - self._listed  # a listed topic is neither unlisted nor a stranger, and its meter is vouched for
        for topic in self._listed - topics:
            self._forget_topic(topic)
        self._listed = topics
        self._unlisted -= new
        self._unconfirmed -= new
        for topic in new:
            meter = self.topics.get(topic)
            if meter is not None:
                meter.is_confirmed = True
        return True

    def _forget_quiet_topics(self) -> bool:
        """Whether any of them was confirmed."""
        for topic in self._unconfirmed:  # one that is real is here again with its next request
            self._forget_topic(topic)
        self._unconfirmed.clear()
        quiet = [topic for topic in self._unlisted if (m := self.topics[topic]).started and m.rate < QUIET_RATE]
        for topic in quiet:
            self._forget_topic(topic)
            self._unlisted.remove(topic)
        return bool(quiet)

    def _forget_topic(self, topic: bytes) -> None:
        meter = self.topics.pop(topic, None)
        if meter is not None:
            self._ticks.forget_meter(meter)

    def start_at_zero(self) -> None:
        """It has got nothing for long: bytes that come now only raise an average."""
        self.total.started = True
        self._ticks.forget_meter(self.total)

    # --- rates --------------------------------------------------------------------------------------------------------

    @property
    def total_bytes(self) -> int:
        """Bytes that got into the log since ever."""
        return self.ticked_bytes + self.total.uncounted

    def retract_bytes(self, topic: bytes, size: int) -> None:
        """Bytes that were admitted and, as the answer says, didn't get into the log after all. The caller gives them
        back to the topic's group.
        """
        self.total.uncounted -= size
        meter = self.topics.get(topic) or self.topics.get(OTHER_TOPICS)
        if meter is not None:
            meter.uncounted -= size
            meter.counted_in_group -= size

    def set_peer_traffic(self, others: PeerTraffic) -> None:
        """Take the traffic of the fleet's other workers, as of now."""
        self._peer_traffic = others
        self.total.peer_rate = others.rate
        for meter in self.topics.values():
            meter.peer_rate = others.topics.get(meter.name, 0.0)
            meter.fading_rate = others.fading.get(meter.name, 0.0)
            meter.near_rate = others.near.get(meter.name, 0.0)

    def tick_meters(self, ticks: int) -> bool:
        """Apply that many ticks.

        Returns:
            Whether topics that there were are gone.
        """
        self.ticked_bytes += self.total.uncounted
        for meter in (self.total, self.errors, self.throttled):
            meter.tick(ticks)
        self._tick_topics(ticks)
        return self._forget_quiet_topics()

    def _tick_topics(self, ticks: int) -> None:
        if ticks > 1:
            for meter in self.topics.values():
                meter.tick(ticks)
            return
        for meter in self.topics.values():  # RateMeter.tick, in place: ten thousand calls cost more than the sums
            rate = meter.uncounted / TICK_S
            if rate:
                meter.reset_count()
            if meter.started:
                rate = meter.rate + ALPHA * (rate - meter.rate)
                meter.rate = rate if rate > 0.0 else 0.0
