# One upstream broker put together: its meters, which know no limit, and its limits, which ask them. What changes in the
# meters is told to the limits here, and a new topic's meter gets what thresholds, groups and storage say of it.
#
# Knows no request and no clock.

from __future__ import annotations

from typing import TYPE_CHECKING

from policies.meters.broker_meters import OTHER_TOPICS, BrokerMeters
from policies.meters.topic_meter import ALWAYS_ASK, NEVER_ASK
from policies.thresholds.broker_limits import BrokerLimits

if TYPE_CHECKING:
    from policies.fleet.fleet_limiter import FleetShares
    from policies.groups.group_limiters import GroupLimiters
    from policies.meters.broker_meters import PeerTraffic
    from policies.meters.meter import TickSchedule
    from policies.meters.topic_meter import TopicMeter
    from policies.storage.request_limits import AffectedIndex, StoragePause, StorageThrottle


class LimitedBroker(BrokerMeters):
    """The meters of a broker, with its limits. Whatever is told to the meters is told to the limits as well."""

    __slots__ = ("_groups", "limits")

    def __init__(
        self, node_id: int, internal: frozenset[bytes], fleet: FleetShares, groups: GroupLimiters, ticks: TickSchedule
    ) -> None:
        super().__init__(node_id, ticks)
        self._groups = groups
        self.limits = BrokerLimits(self, internal, fleet, ticks)

    # --- topics -------------------------------------------------------------------------------------------------------

    def _make_meter(self, topic: bytes) -> TopicMeter:
        meter = super()._make_meter(topic)
        self.limits.add_topic(meter)
        meter.set_group_credit(ALWAYS_ASK if self._groups.has_groups else NEVER_ASK)
        if self.limits.affected_limits:
            meter.set_affected(self._is_affected(topic))
        return meter

    def confirm_topic(self, topic: bytes) -> TopicMeter | None:
        new = super().confirm_topic(topic)
        if new is not None:
            self.limits.count_topic(new.name)
        return new

    def set_listed_topics(self, topics: frozenset[bytes]) -> bool:
        if not super().set_listed_topics(topics):
            return False
        if self.limits.affected_limits:
            self._update_affected_topics()
        self.limits.thresholds.recount_topics()
        self.limits.strategy.refresh_topics()
        return True

    # --- storage ------------------------------------------------------------------------------------------------------

    def set_affected_topics(self, affected: AffectedIndex, now: float) -> None:
        """Storage protection affects these topics, and no others."""
        self.limits.set_affected_topics(affected, now)
        self._update_affected_topics()

    def storage_limit_of(self, topic: bytes) -> StorageThrottle | StoragePause | None:
        """The limit of a topic that storage protection affects; None for all others."""
        return self.limits.affected_limits.limit_of(topic, topic in self._listed)

    def _update_affected_topics(self) -> None:
        has_affected = bool(self.limits.affected_limits)
        for topic, meter in self.topics.items():
            meter.set_affected(has_affected and self._is_affected(topic))

    def _is_affected(self, topic: bytes) -> bool:
        # The meter of names that found no room may have any topic that is affected.
        return topic == OTHER_TOPICS or self.limits.affected_limits.is_affected(topic, topic in self._listed)

    # --- rates --------------------------------------------------------------------------------------------------------

    def set_peer_traffic(self, others: PeerTraffic) -> None:
        super().set_peer_traffic(others)
        self.limits.strategy.refresh_topics()

    def tick_limits(self, ticks: int, now: float) -> None:
        """Apply that many ticks to meters and limits."""
        strategy = self.limits.strategy
        strategy.close_tick(now)
        if self.tick_meters(ticks):
            self.limits.thresholds.recount_topics()
        strategy.refresh_topics()
