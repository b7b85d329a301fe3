# The limits themselves, as workers have them, but without traffic: made from the same facts by the same classes. They
# say which limits concern some traffic, and what is in force; how much of them is used, workers say.

from __future__ import annotations

from functools import cached_property

from policies.engine import PolicyEngine
from policies.explain.model import ExplainInputs
from policies.fleet.keys import Direction
from policies.fleet.shares import ShareGrant
from policies.groups.finder import GroupResolver
from policies.groups.group_limiters import GroupLimiters, GroupLimitValues, GroupRate
from policies.quotas.quota_limiters import QuotaLimiter, QuotaLimiters
from policies.quotas.store import ResolvedQuota
from policies.storage.request_limits import StoragePause
from policies.thresholds.broker_limits import BrokerLimits, BrokerRate

UNKNOWN_BROKER = -1


class IdleLimits:
    def __init__(self, known: ExplainInputs) -> None:
        self._known = known
        self._engine = PolicyEngine(0.0)
        self._quotas = QuotaLimiters(self._engine.fleet)
        self._brokers: dict[int, BrokerLimits] = {}
        self._rates = {each.node_id: each for each in known.rates.brokers}
        self._group_rates = {(each.group, each.direction): each for each in known.rates.groups}
        policies, storage = known.policies, known.storage
        self._engine.set_thresholds(
            policies.broker_total(),
            policies.topic_thresholds(),
            totals=policies.broker_totals(),
            on_exceed=known.on_exceed,
            mode=known.effective_mode(known.threshold_mode),
            burst_s=known.burst_s,
        )
        if storage is not None:
            mode = known.effective_mode(known.storage_mode)
            self._engine.set_storage(storage.value, storage.why, known.affected, 0.0, mode=mode)
        self._quotas.set_storage_factor(self._engine.storage_factor, 0.0)
        fleet = known.rates.fleet
        self._engine.fleet.update_grants(
            {key: ShareGrant(use.share, use.share) for key, use in fleet.items() if use.share is not None},
            max((use.gateways for use in fleet.values()), default=1),
            0.0,
            0.0,
        )

    @property
    def pause(self) -> StoragePause | None:
        """Nothing at all may be forwarded."""
        return self._engine.pause

    def rate_of(self, broker: int | None) -> BrokerRate | None:
        """As workers measured it."""
        return None if broker is None else self._rates.get(broker)

    def group_rate(self, group: str, direction: Direction) -> GroupRate | None:
        """As workers measured it."""
        return self._group_rates.get((group, direction))

    def of_broker(self, broker: int | None, topic: str | None = None) -> BrokerLimits:
        """The limits of a broker; it has `topic` beside those that it is known to have, if it is the first one that is
        asked about.
        """
        node_id = UNKNOWN_BROKER if broker is None else broker
        limits = self._brokers.get(node_id)
        if limits is None:
            rates = self.rate_of(broker)
            measured = () if rates is None else (each.topic for each in rates.topics)
            asked = () if topic is None else (topic,)
            self._engine.set_listed_topics(node_id, {*asked, *self._known.led_topics.get(node_id, ()), *measured})
            limits = self._brokers[node_id] = self._engine.broker_meters(node_id).limits
        return limits

    def of_quota(self, found: ResolvedQuota, broker: int | None) -> QuotaLimiter:
        """`broker`: that the connection is to."""
        return self._quotas.limiter_of(found.limit, UNKNOWN_BROKER if broker is None else broker, 0.0)

    @cached_property
    def groups(self) -> GroupLimiters:
        limits = {
            name: GroupLimitValues.from_rates(rates) for name, rates in self._known.policies.group_limits().items()
        }
        finder = self._known.finder or GroupResolver("", "", {}, {})
        observes = self._known.effective_mode(self._known.group_mode) == "observe"
        self._engine.set_groups(limits, finder, 0.0, observes=observes)
        return self._engine.groups
