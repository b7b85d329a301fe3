# The policies of one worker put together: thresholds, the storage factor and resource groups, and every broker's meters
# and limits (limited_broker.py); ticks, and what changes at run time.
#
# Knows no request and no clock: `now` is seconds on a monotonic clock.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from policies.decision import Mode
from policies.fleet.fleet_limiter import FleetShares
from policies.groups.group_limiters import GroupLimiters, GroupLimitValues, GroupLookup
from policies.limited_broker import LimitedBroker
from policies.meters.broker_meters import NO_PEER_TRAFFIC, QUIET_RATE, PeerTraffic
from policies.meters.meter import TickSchedule
from policies.meters.topic_meter import ALWAYS_ASK, NEVER_ASK
from policies.storage.request_limits import NO_AFFECTED_TOPICS, NO_EFFECT, AffectedIndex, StorageEffect, StoragePause
from policies.thresholds.broker_limits import BrokerRate
from policies.thresholds.broker_thresholds import NO_RULES, ThresholdRules
from policies.thresholds.values import without_total_text
from policies.verdict import storage_pause

if TYPE_CHECKING:
    from policies.fleet.page import SharedPage
    from policies.storage import AffectedTopics

OnExceed = Literal["reject", "delay"]

# org.apache.kafka.common.internals.Topic. They have no implicit threshold and take no share of the others'.
INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"},
)

NO_TOTALS: Final[Mapping[int, float]] = MappingProxyType({})


class PolicyEngine:
    """The policies of one worker. `pause`: why nothing may be forwarded, or None. `affected_topics`: the topics that
    storage protection affects, where it affects some only. `fleet`: this gateway's shares of limits. `groups`: resource
    groups.
    """

    def __init__(self, now: float, internal: Iterable[str] = INTERNAL_TOPICS, page: SharedPage | None = None) -> None:
        self.brokers: dict[int, LimitedBroker] = {}
        self.fleet = FleetShares(page)
        self.pause: StoragePause | None = None
        self._rules = NO_RULES
        self._effect = NO_EFFECT
        self.affected_topics = NO_AFFECTED_TOPICS
        self._ticks = TickSchedule(now)
        self._now = now  # of the last call that said so
        self._internal = frozenset(topic.encode() for topic in internal)
        self.groups = GroupLimiters(self.fleet, self._internal)
        self._peer_traffic: Mapping[int, PeerTraffic] = {}
        self._listed_brokers: frozenset[int] | None = None  # None: not known yet

    def set_thresholds(
        self,
        total: float | None,
        topics: Mapping[str, float],
        *,
        totals: Mapping[int, float] = NO_TOTALS,
        on_exceed: OnExceed = "reject",
        mode: Mode = "enforce",
        burst_s: float = 0.0,
    ) -> None:
        """Replace all thresholds, in bytes per second. `total` (of each broker) None = nothing is ever over.

        `totals`: by node id, of brokers that have one of their own. `on_exceed`: batches beyond a threshold are
        rejected by its EWMA (V1), or delayed, as they always are while the storage factor is below 1. `mode` "observe":
        verdicts are only to be counted. `burst_s`: see ThresholdRules. Whether they fit is not judged here: see
        policy_set.py.
        """
        explicit = {topic.encode(): threshold for topic, threshold in topics.items()}
        self._rules = ThresholdRules(total, totals, explicit, on_exceed == "delay", mode == "observe", burst_s)
        self._apply_rules()

    @property
    def topic_thresholds(self) -> Mapping[bytes, float]:
        """Those of topics, by name."""
        return self._rules.topics

    def set_storage_factor(self, factor: float, why: str, now: float, *, mode: Mode = "enforce") -> None:
        """The storage factor, 0..1, times which every produce limit holds from now on; 0: nothing may be written.

        `why` names broker and volume. `mode` "observe": limits stay as they are, and verdicts are only to be counted.
        """
        self._now = now
        observes = mode == "observe"
        self.pause = StoragePause(storage_pause(why), why, observes=observes) if factor <= 0.0 else None
        self._effect = StorageEffect.of_factor(factor, why, self._effect.shared, observes=observes)
        self.groups.set_storage_factor(self._effect.factor, now)
        self._apply_rules()

    def set_storage(
        self, factor: float, why: str, affected: Iterable[AffectedTopics] | None, now: float, *, mode: Mode = "enforce"
    ) -> None:
        """Storage protection's present state: the factor, and the topics that it is about; None: all."""
        self.set_affected_topics(affected or (), now, mode=mode)
        if affected is None:
            self.set_storage_factor(factor, why, now, mode=mode)
        else:
            self.set_storage_factor(1.0, "", now, mode=mode)

    def set_affected_topics(self, parts: Iterable[AffectedTopics], now: float, *, mode: Mode = "enforce") -> None:
        """Storage protection affects these topics and no others, the strictest part first; none: it affects none. The
        storage factor is for all topics; only one of the two is in effect.
        """
        self._now = now
        self.affected_topics = AffectedIndex(parts, observes=mode == "observe")
        for broker in self.brokers.values():
            broker.set_affected_topics(self.affected_topics, now)

    def set_groups(
        self, limits: Mapping[str, GroupLimitValues], finder: GroupLookup, now: float, *, observes: bool = False
    ) -> None:
        """Replace all resource groups: limits by name, and the resolver of topics' groups. `observes`: verdicts are
        only counted.
        """
        self.groups.set_groups(limits, finder, now, observes=observes)
        for broker in self.brokers.values():
            for meter in broker.topics.values():
                meter.set_group_credit(ALWAYS_ASK if self.groups.has_groups else NEVER_ASK)

    def set_peer_traffic(self, others: Mapping[int, PeerTraffic], processes: int = 1) -> None:
        """Set the traffic of all other workers of the fleet, by broker; brokers that are not listed have none.
        `processes`: workers of all gateways, this one included.
        """
        self._peer_traffic = others
        self.fleet.processes = max(1, processes)
        for node_id, broker in self.brokers.items():
            broker.set_peer_traffic(others.get(node_id, NO_PEER_TRAFFIC))

    def apply_shares(self, now: float) -> None:
        """`fleet` has new shares: apply them to the limits."""
        for broker in self.brokers.values():
            broker.limits.apply_share(now)

    def set_listed_brokers(self, node_ids: Iterable[int]) -> None:
        """Set the brokers that metadata lists. Others keep their meters, since clients may still be connected to them,
        and have rates only while there is something to measure.
        """
        self._listed_brokers = frozenset(node_ids)

    def set_listed_topics(self, node_id: int, names: Iterable[str]) -> None:
        """Set the topics that have a partition led by that broker, by its metadata. Topics known only from produce
        requests stay as well.
        """
        self.broker_meters(node_id).set_listed_topics(frozenset(name.encode() for name in names))

    def broker_meters(self, node_id: int) -> LimitedBroker:
        """The meters of that broker, with its limits."""
        broker = self.brokers.get(node_id)
        if broker is None:
            broker = LimitedBroker(node_id, self._internal, self.fleet, self.groups, self._ticks)
            self.brokers[node_id] = broker
            broker.limits.apply_rules(self._rules, self._effect, self._now)
            if self.affected_topics.parts:
                broker.set_affected_topics(self.affected_topics, self._now)
            broker.set_peer_traffic(self._peer_traffic.get(node_id, NO_PEER_TRAFFIC))
        return broker

    @property
    def storage_factor(self) -> float:
        """The factor, above 0, by which limits are multiplied now."""
        return self._effect.factor

    @property
    def needs_pacing(self) -> bool:
        """Whether `pace_limits` has to be called every pacing.PACE_S; without traffic before the next request."""
        rules = self._rules
        return self.groups.needs_pacing or (
            rules.has_total and (rules.delays_under(self._effect) or (rules.burst_s > 0.0 and self.fleet.has_others))
        )

    @property
    def next_tick_at(self) -> float:
        """The time of the next tick."""
        return self._ticks.next_tick_at

    @property
    def next_second_at(self) -> float:
        """The time at which the next second is over, see `start_new_meters`."""
        return self._ticks.next_second_at

    @property
    def has_new_meters(self) -> bool:
        """Whether there are meters that have no rate yet."""
        return self._ticks.has_new_meters

    def start_new_meters(self, now: float) -> bool:
        """Give meters that began the required time ago their first rate; returns whether there were any. Call it every
        second.
        """
        self._now = now
        if not self._ticks.start_new_meters(now):
            return False
        for broker in self.brokers.values():
            broker.limits.strategy.refresh_topics()
        return True

    def apply_due_ticks(self, now: float) -> int:
        """Apply every tick that is due, several after a long pause; returns their number."""
        self.start_new_meters(now)
        ticks = self._ticks.consume_due_ticks(now)
        if ticks:
            for broker in self.brokers.values():
                broker.tick_limits(ticks, now)
            self.groups.close_tick(now)
        return ticks

    def seconds_to_tick(self, now: float) -> float:
        """Seconds until a tick is due; 0 if one is."""
        return max(0.0, self.next_tick_at - now)

    def seconds_to_next_second(self, now: float) -> float:
        """Seconds until a second is over; 0 if one is."""
        return max(0.0, self.next_second_at - now)

    def record_broker_refusal(self, node_id: int, topic: bytes, size: int) -> None:
        """The broker refused admitted bytes: move them from bytesIn to the error meter."""
        broker = self.broker_meters(node_id)
        broker.retract_bytes(topic, size)
        broker.errors.uncounted += size

    def pace_limits(self, now: float) -> None:
        """Bring `over` up to date where thresholds delay and for groups; see `needs_pacing`."""
        self._now = now
        if self.groups.needs_pacing:
            self.groups.pace_limits(now)
        for broker in self.brokers.values():
            broker.limits.strategy.pace_limits(now)

    def collect_rates(self) -> list[BrokerRate]:
        """The rates of all meters, for metrics."""
        return [broker.limits.read_rate(self._now) for broker in self.brokers.values() if self._has_rates(broker)]

    def _has_rates(self, broker: LimitedBroker) -> bool:
        listed = self._listed_brokers
        if listed is None or broker.node_id in listed or broker.node_id < 0:
            return True
        rates = broker.total.fleet_rate, broker.errors.rate, broker.throttled.rate
        return max(rates) >= QUIET_RATE

    def collect_warnings(self) -> tuple[str, ...]:
        """Warnings about policies that are allowed but hardly intended, as of now; empty: none."""
        if not self._rules.has_total:
            return (without_total_text(len(self._rules.topics)),) if self._rules.topics else ()
        empty = sorted(node_id for node_id, broker in self.brokers.items() if broker.limits.thresholds.has_empty_share)
        return tuple(
            f"broker {node_id} has topics whose implicit threshold is 0: nothing of the total is left for them"
            for node_id in empty
        )

    def _apply_rules(self) -> None:
        for broker in self.brokers.values():
            broker.limits.apply_rules(self._rules, self._effect, self._now)
