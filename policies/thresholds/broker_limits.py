# How much one upstream broker may get at the moment, and what its limits say about a request: thresholds, by one of two
# strategies (rejecting.py, pacing.py), and, while disks fill up, the queue of all its producers.
#
# Thresholds hold for the sum of all gateways and workers. Those that reject go by the others' rates as well; where they
# delay, the total is ours in part (fleet/lines.py), and a topic's threshold in proportion to what we have of its
# traffic. Alone, there are no others and every part is the whole.
#
# A topic's own threshold takes its part of a broker's total where the topic is (V1: a broker knows its own topics), and
# nothing of other brokers'. That these parts fit is checked where thresholds are changed; partitions move all the same.
# Where they don't fit, nothing is left for topics without a threshold.
#
# Counts nothing: that is broker_meters.py's. Knows no request and no clock.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from policies.decision import ClientPatience, RequestLimit
from policies.fleet.fleet_limiter import FleetLimiter, FleetShares
from policies.fleet.keys import total_key
from policies.thresholds.bursting import BurstRejecter
from policies.thresholds.pacing import ThresholdPacer
from policies.thresholds.rejecting import ThresholdRejecter
from policies.thresholds.storage_limits import (
    NO_AFFECTED_LIMITS,
    NO_EFFECT,
    AffectedLimits,
    StorageEffect,
    StorageThrottle,
)
from policies.thresholds.strategy import ThresholdStrategy
from policies.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from policies.limits.meter import FleetMeter, TickSchedule
    from policies.thresholds.broker_meters import BrokerMeters
    from policies.thresholds.storage_limits import HeldTopics
    from policies.thresholds.topic_meter import TopicMeter


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


NO_RULES = ThresholdRules()


class TopicThresholdLimit(RequestLimit):
    """The threshold of one topic, for one request. `topic`: its name; several topics may share a meter."""

    __slots__ = ("_meter", "_strategy", "_topic", "observes")

    def __init__(self, limits: BrokerLimits, meter: TopicMeter, topic: bytes) -> None:
        self.observes = limits.observes
        self._strategy = limits.strategy
        self._meter = meter
        self._topic = topic

    def judge_request(self, size: int, messages: int, patience: ClientPatience, now: float) -> Verdict | None:
        return self._strategy.judge_request(self._meter, self._topic, size, patience, now)

    def available_credit(self, client: object, now: float) -> tuple[float, float]:
        return self._strategy.available_credit(self._meter, client, now), math.inf

    def charge_request(self, size: int, messages: int, now: float) -> None:
        self._strategy.charge_request(self._meter, size, now)

    def record_only(self, size: int, messages: int) -> None:
        self._strategy.record_only(self._meter, size)


class BrokerLimits:
    """The limits of one broker.

    `total`: the total threshold in force, bytes per second, None = no limit. `implicit_share`: the implicit threshold
    of its topics, None without a total. `effect`: of the storage factor, by which thresholds in force are lower than
    configured. `strategy`: the action of thresholds; `observes`: their verdicts are only counted. `storage_throttle`:
    the limit that all producers share while the storage factor is between 0 and 1; `affected_limits`: limits of the
    topics that storage holds, where it holds some only.
    """

    __slots__ = (
        "_explicit_sum",
        "_fleet",
        "_internal",
        "_rules",
        "_sharing_topics",
        "affected_limits",
        "effect",
        "implicit_share",
        "meters",
        "observes",
        "storage_throttle",
        "strategy",
        "ticks",
        "total",
    )  # fmt: skip

    def __init__(
        self, meters: BrokerMeters, internal: frozenset[bytes], fleet: FleetShares, ticks: TickSchedule
    ) -> None:
        """Without thresholds, until `apply`."""
        self.meters = meters
        self.ticks = ticks
        self._internal = internal
        self._fleet = fleet
        self._rules = NO_RULES
        self.observes = False
        self._explicit_sum = 0.0  # the sum of its topics' own thresholds, as configured
        self._sharing_topics = 0  # topics without one
        self.total: float | None = None
        self.implicit_share: float | None = None
        self.effect = NO_EFFECT
        self.strategy: ThresholdStrategy = ThresholdRejecter(self)
        self.storage_throttle: StorageThrottle | None = None
        self.affected_limits: AffectedLimits = NO_AFFECTED_LIMITS

    # --- thresholds ---------------------------------------------------------------------------------------------------

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

    @property
    def has_empty_share(self) -> bool:
        """Whether topics without a threshold of their own have nothing left to share."""
        return self.implicit_share == 0 and self._sharing_topics > 0

    def apply_rules(self, rules: ThresholdRules, effect: StorageEffect, now: float) -> None:
        """Take over changed thresholds, and the storage factor's effect on them.

        While disks fill up, thresholds that reject delay as well: by the one-minute average, a client that was within
        its limit until now would be rejected for a minute, where it is enough to become slower.
        """
        self._rules = rules
        self.observes = rules.observes
        self.effect = effect
        configured = rules.totals.get(self.meters.node_id, rules.total)
        self.total = None if configured is None else configured * effect.factor
        delays = self.total is not None and (rules.delays or effect.factor < 1.0)
        burst_s = 0.0 if delays or self.total is None else rules.burst_s
        if (delays, burst_s) == (self.strategy.delays_requests, self.strategy.burst_s):
            self.strategy.apply_share(now)
        else:
            self.strategy.release_topics()
            if delays:
                self.strategy = ThresholdPacer(self, self._fleet)
            else:
                self.strategy = BurstRejecter(self, burst_s, now) if burst_s else ThresholdRejecter(self)
        for meter in self.meters.topics.values():
            meter.explicit_limit = self.explicit_threshold(meter.name)
        self.recount_topics()
        self.strategy.refresh_topics()
        self._set_storage_throttle(None if effect.shared == 1.0 else configured, now)
        self.affected_limits.set_total(configured, now)

    def recount_topics(self) -> None:
        """Other topics are there, or have thresholds; the strategy has to be refreshed."""
        rules, internal = self._rules.topics, self._internal
        own = [rules.get(topic) for topic in self.meters.existing_topics() if topic in rules or topic not in internal]
        self._explicit_sum = math.fsum(threshold for threshold in own if threshold is not None)
        self._sharing_topics = own.count(None)
        self._update_share()

    def add_topic(self, topic: bytes) -> None:
        """One more topic is there: O(1), as it can only lower the share of others."""
        own = self._rules.topics.get(topic)
        if own is not None:
            self._explicit_sum += own
        elif topic not in self._internal:
            self._sharing_topics += 1
        self._update_share()
        self.strategy.lower_share()

    def _update_share(self) -> None:
        """V1: (total - sum of explicit thresholds) / number of topics without one."""
        if self.total is None:
            self.implicit_share = None
            return
        left = max(0.0, self.total - self._explicit_sum * self.effect.factor)
        self.implicit_share = left / max(1, self._sharing_topics)

    # --- our part of them ---------------------------------------------------------------------------------------------

    @property
    def delays_requests(self) -> bool:
        """Whether requests wait for our part of the total."""
        return (
            self.strategy.delays_requests or self.storage_throttle is not None or self.affected_limits.delays_requests
        )

    def set_affected_topics(self, holding: HeldTopics, now: float) -> None:
        """Storage holds these topics. Lines go on where their volume's did before: debts outlive a change."""
        self.affected_limits = AffectedLimits(self, holding, self.configured_total, self.affected_limits, now)

    @property
    def configured_total(self) -> float | None:
        """The total threshold without the storage factor."""
        return None if self.total is None else self.total / self.effect.factor

    @property
    def own_total(self) -> float | None:
        """Ours of the total threshold, where it delays."""
        total = self.total
        if total is None:
            return None
        return total * self._fleet.fraction_of(total_key(self.meters.node_id), total / self.effect.factor)

    def portion_of(self, meter: FleetMeter) -> float:
        """Ours of a threshold where it delays or has a burst, 0..1: by our part of the traffic of topic or total."""
        processes = self._fleet.processes
        if processes == 1:
            return 1.0
        whole = meter.fleet_rate - meter.fading_rate
        return max(1.0 / processes, meter.rate / whole if whole > 0.0 else 0.0)

    def apply_share(self, now: float) -> None:
        """Go by our part of the total as it is now."""
        self.strategy.apply_share(now)
        for limit in self._storage_throttles():
            limit.limiter.apply_share(now)

    def is_hungry(self, now: float) -> bool:
        """Whether any request has to wait for our part of the total."""
        return self.strategy.is_hungry(now) or any(
            now < each.limiter.hungry_until for each in self._storage_throttles()
        )

    def _storage_throttles(self) -> Iterator[StorageThrottle]:
        if self.storage_throttle is not None:
            yield self.storage_throttle
        yield from self.affected_limits.throttles

    def _set_storage_throttle(self, total: float | None, now: float) -> None:
        """All producers together get `total` times the storage factor; None = no such limit."""
        if total is None:
            self.storage_throttle = None
            return
        if (
            self.storage_throttle is None
        ):  # shared by strangers: none of them shall stall all others for longer than DEBT_S
            self.storage_throttle = StorageThrottle(
                self, self.effect, self.make_limiter(total, self.effect.shared, now)
            )
        else:
            self.storage_throttle.update_limit(total, self.effect, now)

    def make_limiter(self, total: float, factor: float, now: float, name: str = "") -> FleetLimiter:
        """A line of producers that share our part of the total times a factor. `name`: see FleetLine."""
        return FleetLimiter(self._fleet, total_key(self.meters.node_id), total, factor, now, name=name)
