# The policies of one worker put together: thresholds, the storage factor and resource groups, and the meters of every
# broker (broker_meters.py) that go by them; ticks, and what changes at run time.
#
# Knows no request and no clock: `now` is seconds on a monotonic clock.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from policies.fleet.lines import OurParts
from policies.groups.lines import Finder, GroupLimits, GroupLines
from policies.limits.meter import TICK_S
from policies.thresholds.broker_meters import NO_OTHERS, BrokerMeters, Others, StoragePause
from policies.thresholds.values import Thresholds
from policies.verdict import reduced, storage_pause

OnExceed = Literal["reject", "delay"]
Mode = Literal["enforce", "observe"]

# org.apache.kafka.common.internals.Topic. They have no implicit threshold and take no share of the others'.
INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"},
)

NO_TOTALS: Final[Mapping[int, float]] = MappingProxyType({})


class TopicRate(NamedTuple):
    """`over`: rejected, or delayed, just now."""

    topic: str
    rate: float
    threshold: float | None
    over: bool


class BrokerRate(NamedTuple):
    """Bytes per second of one broker: one-minute EWMAs as of the last tick."""

    node_id: int
    rate: float
    error_rate: float
    throttled_rate: float
    threshold: float | None
    topics: list[TopicRate]


class Engine:
    """The policies of one worker.

    `due`: when the next tick is. Ticks lie at whole multiples of TICK_S from the start, however late `tick` is called.
    `pause`: why nothing may be forwarded, None else. `guards_storage`: the storage factor is below 1, so that every
    request has to be asked about. `fleet`: our parts of limits. `groups`: resource groups.
    """

    def __init__(self, now: float, internal: Iterable[str] = INTERNAL_TOPICS) -> None:
        self.due = now + TICK_S
        self.brokers: dict[int, BrokerMeters] = {}
        self.fleet = OurParts()
        self._thresholds_pace = False
        self._delays = False  # on_exceed
        self.pause: StoragePause | None = None
        self.guards_storage = False
        self._factor = 1.0  # by which limits are multiplied
        self._shared = 1.0  # the same for the line of all producers, also where it is only observed
        self._note = ""
        self._storage_observes = False
        self._observes = False
        self._now = now  # of the last call that said so
        self._start = now
        self._ticks = 0
        self._internal = frozenset(topic.encode() for topic in internal)
        self.groups = GroupLines(self.fleet, self._internal)
        self._others: Mapping[int, Others] = {}
        self._default = Thresholds(None, {})  # of brokers without a total of their own
        self._own: dict[int, Thresholds] = {}
        self._listed: dict[int, frozenset[bytes]] = {}
        self._gone: set[bytes] = set()  # of those with a threshold: listed once, now by no broker: deleted

    def set_policy(
        self,
        total: float | None,
        topics: Mapping[str, float],
        *,
        totals: Mapping[int, float] = NO_TOTALS,
        on_exceed: OnExceed = "reject",
        mode: Mode = "enforce",
        accepted: bool = False,
    ) -> None:
        """Replace all thresholds, in bytes per second. `total` (of each broker) None = nothing is ever over.

        `totals`: by node id, of brokers that have one of their own.

        `on_exceed`: what is over is rejected by its EWMA (V1), or delayed, as it always is while the storage factor is
        below 1. `mode` "observe": verdicts are only to be
        counted. `accepted`: see `Thresholds.accepted`.

        Raises:
            ThresholdError: they contradict each other; then the former ones stay.
        """
        make = Thresholds.accepted if accepted else Thresholds
        default = make(total, topics, self._gone)
        own = {node_id: make(value, topics, self._gone) for node_id, value in totals.items()}
        self._default, self._own = default, own
        self._delays = on_exceed == "delay"
        self._observes = mode == "observe"
        self._gone &= default.explicit.keys()
        self._apply()

    def set_storage(self, factor: float, why: str, now: float, *, mode: Mode = "enforce") -> None:
        """The storage factor, 0..1, times which every produce limit holds from now on; 0: nothing may be written.

        `why` names broker and volume. `mode` "observe": limits stay as they are, and verdicts are only to be counted.
        """
        self._now = now
        self._storage_observes = mode == "observe"
        self.guards_storage = factor < 1.0
        self.pause = None
        if factor <= 0.0:
            self.pause = StoragePause(storage_pause(why), observes=self._storage_observes)
        if factor > 0.0:  # in a pause no limit matters, but debts must outlive it
            self._shared = factor
        self._factor = 1.0 if self._storage_observes else self._shared
        self._note = reduced(factor, why) if self._factor < 1.0 else ""
        self.groups.set_factor(self._factor, now)
        self._apply()

    def set_groups(
        self, limits: Mapping[str, GroupLimits], finder: Finder, now: float, *, observes: bool = False
    ) -> None:
        """Replace all resource groups: limits by name, and who is in which. `observes`: verdicts are only counted."""
        self.groups.set_groups(limits, finder, now, observes=observes)
        for broker in self.brokers.values():
            for meter in broker.topics.values():
                meter.ask_group(self.groups.exists)

    def set_others(self, others: Mapping[int, Others]) -> None:
        """By broker, what everybody else in the fleet brings; of those not listed nothing."""
        self._others = others
        for node_id, broker in self.brokers.items():
            broker.set_others(others.get(node_id, NO_OTHERS))

    def retune(self, now: float) -> None:
        """Our parts of limits have changed: `fleet` was told."""
        for broker in self.brokers.values():
            broker.retune(now)

    def set_topics(self, node_id: int, names: Iterable[str]) -> None:
        """What metadata says that broker leads a partition of. Topics seen by produce requests only stay as well."""
        listed = frozenset(name.encode() for name in names)
        left = self._listed.get(node_id, frozenset()) - listed
        self._listed[node_id] = listed
        self.broker(node_id).list_topics(listed)
        suspects = self._gone | (left & self._default.explicit.keys())
        gone = {topic for topic in suspects if not any(topic in names for names in self._listed.values())}
        if gone != self._gone:
            self._gone = gone
            self._default = self._default.without(gone)
            self._own = {node_id: thresholds.without(gone) for node_id, thresholds in self._own.items()}
            self._apply()

    def broker(self, node_id: int) -> BrokerMeters:
        meters = self.brokers.get(node_id)
        if meters is None:
            meters = self.brokers[node_id] = BrokerMeters(node_id, self._internal, self.fleet, self.groups, self.due)
            self._apply_to(meters)
            meters.set_others(self._others.get(node_id, NO_OTHERS))
        return meters

    @property
    def factor(self) -> float:
        """The storage factor by which limits are multiplied just now, above 0."""
        return self._factor

    @property
    def paces(self) -> bool:
        """Whether `pace` has to be called every pacing.PACE_S."""
        return self._thresholds_pace or self.groups.paces

    def tick(self, now: float) -> int:
        """Apply every tick that is due, also several after a long pause; how many that were."""
        self._now = now
        if now < self.due:
            return 0
        done = int((now - self._start) // TICK_S)
        ticks = max(1, done - self._ticks)  # rounding may say 0 when now == due
        self._ticks += ticks
        self.due = self._start + (self._ticks + 1) * TICK_S
        for broker in self.brokers.values():
            broker.tick(ticks, now, self.due)
        self.groups.tick(ticks, now)
        return ticks

    def next_tick(self, now: float) -> float:
        """Seconds until a tick is due; 0 if one is."""
        return max(0.0, self.due - now)

    def refund(self, node_id: int, topic: bytes, size: int) -> None:
        """The broker refused what was admitted: from bytesIn to the error meter."""
        broker = self.broker(node_id)
        broker.retract(topic, size)
        broker.errors.uncounted += size

    def pace(self, now: float) -> None:
        """Bring `over` up to date where thresholds delay and for groups; to be called every PACE_S while `paces`."""
        self._now = now
        if self.groups.paces:
            self.groups.pace(now)
        for broker in self.brokers.values():
            broker.strategy.pace(now)

    def rates(self) -> list[BrokerRate]:
        """Every meter, for metrics."""
        return [
            BrokerRate(
                broker.node_id,
                broker.total.rate,
                broker.errors.rate,
                broker.throttled.rate,
                broker.threshold,
                [
                    TopicRate(
                        meter.name.decode(errors="replace"),
                        meter.rate,
                        meter.threshold,
                        broker.strategy.is_limiting(meter),
                    )
                    for meter in broker.topics.values()
                    if meter.vouched
                ],
            )
            for broker in self.brokers.values()
        ]

    def warnings(self) -> tuple[str, ...]:
        """What is allowed but hardly meant, as things stand: empty when all is well."""
        if self._default.total is None and not self._own:
            return self._default.warnings()
        empty = sorted(node_id for node_id, broker in self.brokers.items() if broker.has_empty_share)
        return tuple(
            f"broker {node_id} has topics whose implicit threshold is 0: nothing of the total is left for them"
            for node_id in empty
        )

    def _apply(self) -> None:
        # While disks fill up, thresholds that reject delay as well: by the one-minute average, who was within the limit
        # until now would be rejected for a minute, where it is enough to become slower.
        limits = self._default.total is not None or bool(self._own)
        self._thresholds_pace = limits and (self._delays or self._factor < 1.0)
        for broker in self.brokers.values():
            self._apply_to(broker)

    def _apply_to(self, broker: BrokerMeters) -> None:
        thresholds, now = self._own.get(broker.node_id, self._default), self._now
        scaled = thresholds if self._factor == 1.0 else thresholds.scaled(self._factor)
        broker.apply(scaled, self._factor, now, delays=self._thresholds_pace, observes=self._observes)
        total = None if self._shared == 1.0 else thresholds.total
        broker.share_storage(total, self._shared, self._note, now, observes=self._storage_observes)
