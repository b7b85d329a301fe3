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
    from policies.fleet.lines import OurParts
    from policies.groups.lines import GroupLines
    from policies.limits.meter import Ticks
    from policies.thresholds.storage_limits import StorageLimit, StoragePause

# Names that clients made up must not fill the memory: beyond this many, the rest share one meter, OTHER.
MAX_UNLISTED: Final = 10_000
OTHER: Final = b""
QUIET: Final = 1.0  # bytes per second: an unlisted topic below it is forgotten at the next tick


class Others(NamedTuple):
    """The traffic of all other workers of the fleet to one broker: bytes per second, one-minute EWMA.

    `fading`: those bytes of `topics` that no worker brings any more: an average remembers them, and other workers bring
    them now.
    """

    rate: float = 0.0
    topics: Mapping[bytes, float] = {}
    fading: Mapping[bytes, float] = {}


NO_OTHERS: Final = Others()


class BrokerMeters:
    """The traffic of one upstream broker, and each topic's part of it.

    `total`: bytes that got into the log; `errors`: admitted here, refused by the broker; `throttled`: turned away
    here by a limit.
    `passed`: bytes that got into the log before the last tick. `limits`: the broker's.
    """

    __slots__ = ("_groups", "_listed", "_others", "_strangers", "_ticks", "_unlisted", "errors", "limits",
                 "node_id", "passed", "throttled", "topics", "total")  # fmt: skip

    def __init__(
        self, node_id: int, internal: frozenset[bytes], fleet: OurParts, groups: GroupLines, ticks: Ticks
    ) -> None:
        self.node_id = node_id
        self._groups = groups
        self._ticks = ticks
        self._others = NO_OTHERS
        self.passed = 0
        self.total = ticks.begin(FleetMeter())
        self.errors = ticks.begin(FleetMeter())
        self.throttled = ticks.begin(FleetMeter())
        self.topics: dict[bytes, TopicMeter] = {}
        self._listed: frozenset[bytes] = frozenset()
        self._unlisted: set[bytes] = set()  # produced to, and not in metadata (yet)
        self._strangers: set[bytes] = set()  # clients named them, and no broker has vouched for them (yet)
        self.limits = BrokerLimits(self, internal, fleet, ticks)

    # --- topics -------------------------------------------------------------------------------------------------------

    def add_topic(self, topic: bytes) -> TopicMeter:
        """The meter of a topic that has none yet. One that metadata doesn't list is a stranger until `vouch`: it takes
        no share from others, and is forgotten at the next tick.
        """
        if topic not in self._listed and len(self._strangers) + len(self._unlisted) >= MAX_UNLISTED:
            topic = OTHER
            if topic in self.topics:
                return self.topics[topic]
        return self._make(topic)

    def _make(self, topic: bytes) -> TopicMeter:
        meter = self.topics[topic] = self._ticks.begin(TopicMeter(topic, self.limits))
        meter.vouched = topic in self._listed
        if not meter.vouched:
            self._strangers.add(topic)
        meter.others = self._others.topics.get(topic, 0.0)
        meter.fading = self._others.fading.get(topic, 0.0)
        self.limits.strategy.join(meter)
        meter.ask_group(self._groups.exists)
        if self.limits.affected:
            meter.hold(topic == OTHER or self.affects(topic))
        return meter

    def vouch(self, topic: bytes) -> None:
        """The broker has taken a batch for it, so there is such a topic; it counts for shares from now on."""
        meter = self.topics.get(topic)
        if meter is None:
            if len(self._unlisted) >= MAX_UNLISTED and topic not in self._listed:
                topic = OTHER
            meter = self.topics.get(topic) or self._make(topic)
        if meter.vouched:
            return
        meter.vouched = True
        self._strangers.discard(topic)
        self._unlisted.add(topic)
        self.limits.add_topic(topic)

    def present(self) -> Iterator[bytes]:
        """Topics that there are: brokers list them, or have taken batches for them."""
        return chain(self._listed, self._unlisted)

    def list_topics(self, topics: frozenset[bytes]) -> None:
        """Take over metadata's list. A topic that left it is off this broker: its meter goes, as in Kafka."""
        if topics == self._listed:
            return
        new = topics - self._listed  # a listed topic is neither unlisted nor a stranger, and its meter is vouched for
        for topic in self._listed - topics:
            self._drop(topic)
        self._listed = topics
        self._unlisted -= new
        self._strangers -= new
        for topic in new:
            meter = self.topics.get(topic)
            if meter is not None:
                meter.vouched = True
        if self.limits.affected:
            self.hold_topics()
        self.limits.recount()
        self.limits.strategy.refresh()

    def affects(self, topic: bytes) -> bool:
        """Whether storage holds this topic and not all."""
        return self.limits.affected.finds(topic, topic in self._listed)

    def storage_of(self, topic: bytes) -> StorageLimit | StoragePause | None:
        """The limit of a topic that storage holds; None for all others."""
        return self.limits.affected.limit(topic, topic in self._listed)

    def hold_topics(self) -> None:
        """Other topics are held by storage. The meter of names that found no room may have any of them."""
        affected = self.limits.affected
        for topic, meter in self.topics.items():
            meter.hold(bool(affected) and (topic == OTHER or self.affects(topic)))

    def _forget_quiet(self) -> None:
        for topic in self._strangers:  # one that is real is here again with its next request
            self._drop(topic)
        self._strangers.clear()
        quiet = [topic for topic in self._unlisted if (m := self.topics[topic]).started and m.rate < QUIET]
        for topic in quiet:
            self._drop(topic)
            self._unlisted.remove(topic)
        if quiet:
            self.limits.recount()

    def _drop(self, topic: bytes) -> None:
        meter = self.topics.pop(topic, None)
        if meter is not None:
            self._ticks.drop(meter)

    def start_at_zero(self) -> None:
        """It has got nothing for long: bytes that come now only raise an average."""
        self.total.started = True
        self._ticks.drop(self.total)

    # --- rates --------------------------------------------------------------------------------------------------------

    @property
    def taken(self) -> int:
        """Bytes that got into the log since ever."""
        return self.passed + self.total.uncounted

    def retract(self, topic: bytes, size: int) -> None:
        """Bytes that were admitted and, as the answer says, didn't get into the log after all. The caller gives them
        back to the topic's group.
        """
        self.total.uncounted -= size
        meter = self.topics.get(topic) or self.topics.get(OTHER)
        if meter is not None:
            meter.uncounted -= size
            meter.settled -= size

    def set_others(self, others: Others) -> None:
        """Take the traffic of the fleet's other workers, as of now."""
        self._others = others
        self.total.others = others.rate
        for meter in self.topics.values():
            meter.others = others.topics.get(meter.name, 0.0)
            meter.fading = others.fading.get(meter.name, 0.0)
        self.limits.strategy.refresh()

    def tick(self, ticks: int, now: float) -> None:
        strategy = self.limits.strategy
        strategy.close_tick(now)
        self.passed += self.total.uncounted
        for meter in (self.total, self.errors, self.throttled):
            meter.tick(ticks)
        self._tick_topics(ticks)
        self._forget_quiet()
        strategy.refresh()

    def _tick_topics(self, ticks: int) -> None:
        if ticks > 1:
            for meter in self.topics.values():
                meter.tick(ticks)
            return
        for meter in self.topics.values():  # Meter.tick, in place: ten thousand calls cost more than the sums
            rate = meter.uncounted / TICK_S
            if rate:
                meter.count_anew()
            if meter.started:
                rate = meter.rate + ALPHA * (rate - meter.rate)
                meter.rate = rate if rate > 0.0 else 0.0
