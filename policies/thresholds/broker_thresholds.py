# The thresholds of one upstream broker as they are in force: its total, its topics' own, and what the others share.
#
# Thresholds hold for the sum of all gateways and workers. Those that reject go by the others' rates as well; where they
# delay, the total is ours in part (FleetShares), and a topic's threshold in proportion to what we have of its traffic.
# Alone, there are no others and every part is the whole.
#
# A topic's own threshold takes its part of a broker's total where the topic is (V1: a broker knows its own topics), and
# nothing of other brokers'. That these parts fit is checked where thresholds are changed; partitions move all the same.
# Where they don't fit, nothing is left for topics without a threshold.
#
# Says what the numbers are, and decides nothing: that is the strategies' (strategy.py). Knows no request and no clock.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from policies.fleet.keys import total_key
from policies.storage.request_limits import NO_EFFECT, StorageEffect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.fleet.fleet_limiter import FleetShares
    from policies.meters.broker_meters import BrokerMeters
    from policies.meters.meter import TickSchedule
    from policies.meters.topic_meter import TopicMeter


class ThresholdRules(NamedTuple):
    """Thresholds as they are configured, bytes per second.

    `total`: of each broker, None = no limit; `totals`: of brokers with their own. `topics`: by name. `delays`: batches
    beyond a threshold wait instead of being rejected. `observes`: verdicts are only counted. `burst_s`: where batches
    are rejected, seconds of a threshold that may pass above it (bursting.py); 0: as many as the average lets.
    """

    total: float | None = None
    totals: Mapping[int, float] = {}
    topics: Mapping[bytes, float] = {}
    delays: bool = False
    observes: bool = False
    burst_s: float = 0.0

    @property
    def has_total(self) -> bool:
        """Whether any broker has a total, so that anything is ever over it."""
        return self.total is not None or bool(self.totals)

    def delays_under(self, effect: StorageEffect) -> bool:
        """Whether requests beyond a threshold wait. While disks fill up they always do: by the one-minute average, a
        client that was within its limit until now would be rejected for a minute, where it is enough to become slower.
        """
        return self.delays or effect.factor < 1.0


NO_RULES = ThresholdRules()


class ResolvedThreshold(NamedTuple):
    """Bytes per second. `configured`: without the storage factor; `limit`: in force. `is_explicit`: it is the topic's
    own, else the implicit share.
    """

    configured: float
    limit: float
    is_explicit: bool = True


class BrokerThresholds:
    """The thresholds of one broker.

    `total`: the total threshold in force, bytes per second, None = no limit; `configured_total`: the same without the
    storage factor. `implicit_share`: the implicit threshold of its topics, None without a total; `configured_share`:
    the same without the storage factor. `effect`: of the storage factor, by which thresholds in force are lower than
    configured. `observes`: verdicts are only counted.
    """

    __slots__ = (
        "_explicit_sum",
        "_internal",
        "_rules",
        "_sharing_topics",
        "configured_share",
        "configured_total",
        "effect",
        "fleet",
        "implicit_share",
        "meters",
        "observes",
        "ticks",
        "total",
    )  # fmt: skip

    def __init__(
        self, meters: BrokerMeters, internal: frozenset[bytes], fleet: FleetShares, ticks: TickSchedule
    ) -> None:
        """None, until `apply_rules`."""
        self.meters = meters
        self.fleet = fleet
        self.ticks = ticks
        self._internal = internal
        self._rules = NO_RULES
        self._explicit_sum = 0.0  # the sum of its topics' own thresholds, as configured
        self._sharing_topics = 0  # topics without one
        self.observes = False
        self.total: float | None = None
        self.configured_total: float | None = None
        self.configured_share: float | None = None
        self.implicit_share: float | None = None
        self.effect = NO_EFFECT

    def apply_rules(self, rules: ThresholdRules, effect: StorageEffect) -> None:
        """Take over changed thresholds, and the storage factor's effect on them."""
        self._rules = rules
        self.observes = rules.observes
        self.effect = effect
        configured = self.configured_total = rules.totals.get(self.meters.node_id, rules.total)
        self.total = None if configured is None else configured * effect.factor
        for meter in self.meters.topics.values():
            meter.explicit_limit = self.explicit_threshold(meter.name)
        self.recount_topics()

    # --- what is in force ---------------------------------------------------------------------------------------------

    @property
    def is_over_total(self) -> bool:
        """Whether the broker gets more than its total threshold."""
        return self.total is not None and self.meters.total.fleet_rate > self.total

    def explicit_threshold(self, topic: bytes) -> float | None:
        """A topic's own threshold in force; infinite for Kafka's internal topics, None = the implicit share."""
        found = self._rules.topics.get(topic)
        if found is None:
            return math.inf if topic in self._internal else None
        return found * self.effect.factor

    def threshold_of(self, topic: bytes) -> ResolvedThreshold | None:
        """A topic's threshold, whether it has a meter or not; None where nothing limits it."""
        if self.configured_share is None or self.implicit_share is None:  # nothing is ever over
            return None
        limit = self.explicit_threshold(topic)
        if limit is None:
            return ResolvedThreshold(self.configured_share, self.implicit_share, is_explicit=False)
        return None if limit == math.inf else ResolvedThreshold(self._rules.topics[topic], limit)

    def effective_threshold(self, meter: TopicMeter) -> float | None:
        """Of that topic, bytes per second; None where nothing limits it."""
        limit = self.implicit_share if meter.explicit_limit is None else meter.explicit_limit
        return None if limit == math.inf else limit

    @property
    def is_overcommitted(self) -> bool:
        """Whether its topics' own thresholds are more than the total together."""
        return self.configured_total is not None and self._explicit_sum > self.configured_total

    @property
    def has_empty_share(self) -> bool:
        """Whether topics without a threshold of their own have nothing left to share."""
        return self.implicit_share == 0 and self._sharing_topics > 0

    # --- which topics share -------------------------------------------------------------------------------------------

    def recount_topics(self) -> None:
        """Other topics are there, or have thresholds; the strategy has to be refreshed."""
        rules, internal = self._rules.topics, self._internal
        own = [rules.get(topic) for topic in self.meters.existing_topics() if topic in rules or topic not in internal]
        self._explicit_sum = math.fsum(threshold for threshold in own if threshold is not None)
        self._sharing_topics = own.count(None)
        self._update_share()

    def count_topic(self, topic: bytes) -> None:
        """One more topic is there: O(1), as it can only lower the share of others."""
        own = self._rules.topics.get(topic)
        if own is not None:
            self._explicit_sum += own
        elif topic not in self._internal:
            self._sharing_topics += 1
        self._update_share()

    def _update_share(self) -> None:
        """V1: (total - sum of explicit thresholds) / number of topics without one."""
        if self.configured_total is None:
            self.configured_share = self.implicit_share = None
            return
        self.configured_share = max(0.0, self.configured_total - self._explicit_sum) / max(1, self._sharing_topics)
        self.implicit_share = self.configured_share * self.effect.factor

    # --- our share of them --------------------------------------------------------------------------------------------

    @property
    def own_total(self) -> float | None:
        """Ours of the total threshold, where it delays."""
        if self.configured_total is None:
            return None
        return self.fleet.share_of(total_key(self.meters.node_id), self.configured_total) * self.effect.factor

    def portion_of(self, meter: TopicMeter, owners: int, *, with_near: bool = False) -> float:
        """One owner's of a topic's threshold where that delays or has a burst, 0..1: by its part of the traffic, that
        of this worker, or (`with_near`) of this gateway.
        """
        if owners == 1:
            return 1.0
        whole, own = meter.fleet_rate - meter.fading_rate, meter.rate + meter.near_rate * with_near
        return max(1.0 / owners, own / whole if whole > 0.0 else 0.0)
