# How much one upstream broker gets, and each topic of it; which topics exist, and which names clients made up.
#
# Rates and thresholds are per upstream broker, as if each metered itself (V1). broker_limits.py says how much a broker
# may get.
#
# Knows no request and no clock. The hot path reads `topics` and `over` and adds to `uncounted` itself. Topics come and
# go: a TopicMeter must not be kept beyond a tick or a `list_topics`.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from policies.limits.meter import ALPHA, TICK_S, FleetMeter
from policies.thresholds.broker_limits import BrokerLimits
from policies.thresholds.topic_meter import TopicMeter

if TYPE_CHECKING:
    from policies.fleet.fleet_limiter import FleetShares
    from policies.groups.group_limiters import GroupLimiters
    from policies.limits.meter import TickSchedule
    from policies.thresholds.storage_limits import StoragePause, StorageThrottle

# Names that clients made up must not fill the memory: beyond this many, the rest share one meter, OTHER.
MAX_UNLISTED: Final = 10_000
OTHER_TOPICS: Final = b""
QUIET_RATE: Final = 1.0  # bytes per second: an unlisted topic below it is forgotten at the next tick


class PeerTraffic(NamedTuple):
    """The traffic of all other workers of the fleet to one broker: bytes per second, one-minute EWMA.

    `fading`: those bytes of `topics` that no worker brings any more: an average remembers them, and other workers bring
    them now.
    """

    rate: float = 0.0
    topics: Mapping[bytes, float] = {}
    fading: Mapping[bytes, float] = {}


NO_PEER_TRAFFIC: Final = PeerTraffic()


class BrokerMeters:
    """The traffic of one upstream broker, and each topic's part of it.

    `total`: bytes that got into the log; `errors`: admitted here, refused by the broker; `throttled`: turned away
    here by a limit.
    `ticked_bytes`: bytes that got into the log before the last tick. `limits`: the broker's.
    """

    __slots__ = (
        "_groups",
        "_listed",
        "_peer_traffic",
        "_ticks",
        "_unconfirmed",
        "_unlisted",
        "errors",
        "limits",
        "node_id",
        "throttled",
        "ticked_bytes",
        "topics",
        "total",
    )  # fmt: skip

    def __init__(
        self, node_id: int, internal: frozenset[bytes], fleet: FleetShares, groups: GroupLimiters, ticks: TickSchedule
    ) -> None:
        self.node_id = node_id
        self._groups = groups
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
        self.limits = BrokerLimits(self, internal, fleet, ticks)

    # --- topics -------------------------------------------------------------------------------------------------------

    def add_topic(self, topic: bytes) -> TopicMeter:
        """The meter of a topic that has none yet. One that metadata doesn't list is a stranger until `vouch`: it takes
        no share from others, and is forgotten at the next tick.
        """
        if topic not in self._listed and len(self._unconfirmed) + len(self._unlisted) >= MAX_UNLISTED:
            topic = OTHER_TOPICS
            if topic in self.topics:
                return self.topics[topic]
        return self._make_meter(topic)

    def _make_meter(self, topic: bytes) -> TopicMeter:
        meter = self.topics[topic] = self._ticks.register_meter(TopicMeter(topic, self.limits))
        meter.is_confirmed = topic in self._listed
        if not meter.is_confirmed:
            self._unconfirmed.add(topic)
        meter.peer_rate = self._peer_traffic.topics.get(topic, 0.0)
        meter.fading_rate = self._peer_traffic.fading.get(topic, 0.0)
        self.limits.strategy.add_topic(meter)
        meter.set_group_asks(self._groups.has_groups)
        if self.limits.affected_limits:
            meter.set_held(topic == OTHER_TOPICS or self.is_topic_held(topic))
        return meter

    def confirm_topic(self, topic: bytes) -> None:
        """The broker has taken a batch for it, so there is such a topic; it counts for shares from now on."""
        meter = self.topics.get(topic)
        if meter is None:
            if len(self._unlisted) >= MAX_UNLISTED and topic not in self._listed:
                topic = OTHER_TOPICS
            meter = self.topics.get(topic) or self._make_meter(topic)
        if meter.is_confirmed:
            return
        meter.is_confirmed = True
        self._unconfirmed.discard(topic)
        self._unlisted.add(topic)
        self.limits.add_topic(topic)

    def existing_topics(self) -> Iterator[bytes]:
        """Topics that there are: brokers list them, or have taken batches for them."""
        return chain(self._listed, self._unlisted)

    def set_listed_topics(self, topics: frozenset[bytes]) -> None:
        """Take over metadata's list. A topic that left it is off this broker: its meter goes, as in Kafka."""
        if topics == self._listed:
            return
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
        if self.limits.affected_limits:
            self.update_held_topics()
        self.limits.recount_topics()
        self.limits.strategy.refresh_topics()

    def is_topic_held(self, topic: bytes) -> bool:
        """Whether storage holds this topic and not all."""
        return self.limits.affected_limits.is_topic_held(topic, topic in self._listed)

    def storage_limit_of(self, topic: bytes) -> StorageThrottle | StoragePause | None:
        """The limit of a topic that storage holds; None for all others."""
        return self.limits.affected_limits.limit_of(topic, topic in self._listed)

    def update_held_topics(self) -> None:
        """Other topics are held by storage. The meter of names that found no room may have any of them."""
        affected = self.limits.affected_limits
        for topic, meter in self.topics.items():
            meter.set_held(bool(affected) and (topic == OTHER_TOPICS or self.is_topic_held(topic)))

    def _forget_quiet_topics(self) -> None:
        for topic in self._unconfirmed:  # one that is real is here again with its next request
            self._forget_topic(topic)
        self._unconfirmed.clear()
        quiet = [topic for topic in self._unlisted if (m := self.topics[topic]).started and m.rate < QUIET_RATE]
        for topic in quiet:
            self._forget_topic(topic)
            self._unlisted.remove(topic)
        if quiet:
            self.limits.recount_topics()

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
        self.limits.strategy.refresh_topics()

    def tick_meters(self, ticks: int, now: float) -> None:
        strategy = self.limits.strategy
        strategy.close_tick(now)
        self.ticked_bytes += self.total.uncounted
        for meter in (self.total, self.errors, self.throttled):
            meter.tick(ticks)
        self._tick_topics(ticks)
        self._forget_quiet_topics()
        strategy.refresh_topics()

    def _tick_topics(self, ticks: int) -> None:
        if ticks > 1:
            for meter in self.topics.values():
                meter.tick(ticks)
            return
        for meter in self.topics.values():  # Meter.tick, in place: ten thousand calls cost more than the sums
            rate = meter.uncounted / TICK_S
            if rate:
                meter.reset_count()
            if meter.started:
                rate = meter.rate + ALPHA * (rate - meter.rate)
                meter.rate = rate if rate > 0.0 else 0.0
