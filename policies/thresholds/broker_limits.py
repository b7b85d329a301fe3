# What the limits of one upstream broker say about a request: its thresholds, by one of two strategies (rejecting.py,
# pacing.py), and, while disks fill up, the queue of all its producers.
#
# Asks the broker's meters and counts nothing. Knows no request and no clock.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from policies.decision import ClientPatience, RequestLimit
from policies.limits.description import LimitDescription, LimitLevel, known_broker, place_text, scale_text
from policies.limits.limit_use import LimitUse
from policies.storage.request_limits import AffectedLimits, StorageEffect, StorageThrottle
from policies.thresholds.broker_thresholds import BrokerThresholds, ThresholdRules
from policies.thresholds.bursting import BurstRejecter
from policies.thresholds.pacing import ThresholdPacer
from policies.thresholds.rejecting import ThresholdRejecter
from policies.thresholds.strategy import ThresholdStrategy
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY
from policies.verdict import TOPIC_THRESHOLD, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from policies.fleet.fleet_limiter import FleetShares
    from policies.limits.description import FleetUse
    from policies.meters.broker_meters import BrokerMeters
    from policies.meters.meter import TickSchedule
    from policies.meters.topic_meter import TopicMeter
    from policies.storage.request_limits import AffectedIndex


class TopicRate(NamedTuple):
    """Bytes per second of one topic on one broker: one-minute EWMAs as of the last tick. `threshold`: in force over all
    gateways; None: none. `over`: the topic is rejected or delayed now. `fleet_rate`: the rate of all workers of all
    gateways, by which a rejecting threshold decides; None: equal to `rate`. `bucket_use`: that of the deciding bucket,
    where thresholds delay.
    """

    topic: str
    rate: float
    threshold: float | None
    over: bool
    fleet_rate: float | None = None
    bucket_use: LimitUse | None = None

    @property
    def limit_use(self) -> LimitUse:
        """What the threshold decides by, and the limit that it is compared with."""
        return _limit_use_of(self)


class BrokerRate(NamedTuple):
    """Like TopicRate, of one broker, with its topics."""

    node_id: int
    rate: float
    error_rate: float
    throttled_rate: float
    threshold: float | None
    topics: list[TopicRate]
    fleet_rate: float | None = None
    bucket_use: LimitUse | None = None

    @property
    def limit_use(self) -> LimitUse:
        """What the total decides by, and the limit that it is compared with."""
        return _limit_use_of(self)

    @property
    def combined_rate(self) -> float:
        """By all gateways, as far as that is known."""
        return _combined_rate(self)


def _limit_use_of(meter: TopicRate | BrokerRate) -> LimitUse:
    return meter.bucket_use or LimitUse(_combined_rate(meter), meter.threshold)


def _combined_rate(meter: TopicRate | BrokerRate) -> float:
    return meter.rate if meter.fleet_rate is None else meter.fleet_rate


class TopicThresholdLimit(RequestLimit):
    """The threshold of one topic, for one request. `topic`: its name; several topics may share a meter."""

    __slots__ = ("_meter", "_strategy", "_topic", "observes")

    def __init__(self, limits: BrokerLimits, meter: TopicMeter, topic: bytes) -> None:
        self.observes = limits.thresholds.observes
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

    `thresholds`: in force; `strategy`: what they do about requests beyond them. `storage_throttle`: the limit that all
    producers share while the storage factor is between 0 and 1; `affected_limits`: limits of the topics that storage
    protection affects, where it affects some only.
    """

    __slots__ = ("_fleet", "_meters", "affected_limits", "storage_throttle", "strategy", "thresholds")

    def __init__(
        self, meters: BrokerMeters, internal: frozenset[bytes], fleet: FleetShares, ticks: TickSchedule
    ) -> None:
        """Without thresholds, until `apply_rules`."""
        self._meters = meters
        self._fleet = fleet
        self.thresholds = BrokerThresholds(meters, internal, fleet, ticks)
        self.strategy: ThresholdStrategy = ThresholdRejecter(self.thresholds)
        self.storage_throttle: StorageThrottle | None = None
        self.affected_limits = AffectedLimits(meters, fleet)

    def apply_rules(self, rules: ThresholdRules, effect: StorageEffect, now: float) -> None:
        """Take over changed thresholds, and the storage factor's effect on them."""
        thresholds = self.thresholds
        thresholds.apply_rules(rules, effect)
        delays = thresholds.total is not None and rules.delays_under(effect)
        burst_s = 0.0 if delays or thresholds.total is None else rules.burst_s
        if (delays, burst_s) == (self.strategy.delays_requests, self.strategy.burst_s):
            self.strategy.apply_share(now)
        else:
            self.strategy.release_topics()
            if delays:
                self.strategy = ThresholdPacer(thresholds)
            else:
                self.strategy = BurstRejecter(thresholds, burst_s, now) if burst_s else ThresholdRejecter(thresholds)
        self.strategy.refresh_topics()
        self._set_storage_throttle(None if effect.shared == 1.0 else thresholds.configured_total, effect, now)
        self.affected_limits.set_total(thresholds.configured_total, now)

    # --- what they say of themselves ----------------------------------------------------------------------------------

    def read_rate(self, now: float) -> BrokerRate:
        """The broker's present state, and that of its topics."""
        meters, thresholds, strategy = self._meters, self.thresholds, self.strategy
        topics = [
            TopicRate(
                meter.name.decode(errors="replace"),
                meter.rate,
                thresholds.effective_threshold(meter),
                strategy.is_limiting(meter),
                meter.fleet_rate,
                strategy.topic_use(meter, now),
            )
            for meter in meters.topics.values()
            if meter.is_confirmed
        ]
        return BrokerRate(
            meters.node_id,
            meters.total.rate,
            meters.errors.rate,
            meters.throttled.rate,
            thresholds.total,
            topics,
            meters.total.fleet_rate,
            strategy.total_use(now),
        )

    def describe_topic(self, topic: str, meter: TopicRate | None, origin: str, fleet: FleetUse) -> LimitLevel:
        """The topic's own threshold, without a limit where nothing limits it.

        Args:
            meter: of this gateway; None: nothing of the topic passes here.
            origin: where the threshold is set, if it is the topic's own.
            fleet: what other gateways bring of the topic.
        """
        found = self.thresholds.threshold_of(topic.encode())
        is_explicit = found is None or found.is_explicit
        configured = None if found is None else found.configured
        limit = None if found is None else found.limit
        if found is None and meter is not None:
            limit = meter.threshold  # without a total workers have the topic's own, and never decide by it
        what = f"{TOPIC_KEY if is_explicit else 'implicit share'} of topic {topic}"
        origin = origin if is_explicit else "computed"
        if meter is None:
            brought = fleet.combined_rate(0.0)
            return LimitLevel(what, origin, configured, limit, brought, whole=limit, here=0.0, fleet=fleet)
        level = _make_level(what, origin, configured, limit, meter, fleet)
        if level.rate is not None and meter.rate > level.rate:  # where its bucket is used up, but the total has room
            level = level._replace(rate=meter.rate)
        return level

    def describe_threshold(
        self,
        topic: str,
        measured: BrokerRate | None,
        origins: tuple[str, str],
        fleet: tuple[FleetUse, FleetUse],
    ) -> LimitDescription | None:
        """The threshold of a topic; None: nothing limits it.

        Args:
            measured: by all workers of this gateway; None: not known.
            origins: where the topic's own threshold is set, and where the total is.
            fleet: what other gateways bring of the topic, and to the broker.
        """
        thresholds, broker = self.thresholds, known_broker(self._meters.node_id)
        found = thresholds.threshold_of(topic.encode())
        if found is None:
            return None
        meter = None if measured is None else next((each for each in measured.topics if each.topic == topic), None)
        own = self.describe_topic(topic, meter, origins[0], fleet[0])
        if measured is None:
            own = own._replace(rate=None, here=None)
        what = f"{TOTAL_KEY} of {place_text(broker)}"
        total = _make_level(what, origins[1], thresholds.configured_total, thresholds.total, measured, fleet[1])
        burst_s, factor = self.strategy.burst_s, thresholds.effect.factor
        empty = "" if found.limit or found.is_explicit else "nothing is left of the total to share"
        burst = f"{burst_s:g} s of each may pass above it at once, whatever the one-minute rate is" if burst_s else ""
        return LimitDescription(
            TOPIC_THRESHOLD,
            broker,
            (own, total),
            "delay" if self.strategy.delays_requests else "reject",
            "produce",
            "observe" if thresholds.observes else "enforce",
            meter is not None and meter.over,
            "; ".join(filter(None, (scale_text(factor) or empty, burst))),
        )

    # --- topics come and go -------------------------------------------------------------------------------------------

    def add_topic(self, meter: TopicMeter) -> None:
        """The meter of a topic is new. A topic that no broker knows takes no share from others: see `count_topic`."""
        meter.explicit_limit = self.thresholds.explicit_threshold(meter.name)
        self.strategy.add_topic(meter)

    def count_topic(self, topic: bytes) -> None:
        """One more topic is there."""
        self.thresholds.count_topic(topic)
        self.strategy.lower_share()

    # --- our share of them --------------------------------------------------------------------------------------------

    @property
    def shares_total(self) -> bool:
        """Whether requests wait for our share of the total, or are rejected because of it."""
        return (
            self.strategy.buckets is not None
            or self.storage_throttle is not None
            or self.affected_limits.delays_requests
        )

    def set_affected_topics(self, affected: AffectedIndex, now: float) -> None:
        """Storage protection affects these topics."""
        self.affected_limits.set_affected_topics(affected, self.thresholds.configured_total, now)

    def apply_share(self, now: float) -> None:
        """Go by our share of the total as it is now."""
        self.strategy.apply_share(now)
        for limit in self._storage_throttles():
            limit.limiter.apply_share(now)

    def is_hungry(self, now: float) -> bool:
        """Whether any request has to wait for our share of the total, or is rejected because of it."""
        buckets = self.strategy.buckets
        return (buckets is not None and buckets.is_hungry(now)) or any(
            now < each.limiter.hungry_until for each in self._storage_throttles()
        )

    @property
    def claimed_rate(self) -> float:
        """What this worker's topics have a right to of a total that is shared, bytes per second."""
        return 0.0 if self.strategy.buckets is None else self.strategy.buckets.claimed_rate

    def _storage_throttles(self) -> Iterator[StorageThrottle]:
        if self.storage_throttle is not None:
            yield self.storage_throttle
        yield from self.affected_limits.throttles

    def _set_storage_throttle(self, total: float | None, effect: StorageEffect, now: float) -> None:
        """All producers together get `total` times the storage factor; None = no such limit."""
        if total is None:
            self.storage_throttle = None
        elif self.storage_throttle is None:
            # Shared by strangers: none of them shall stall all others for longer than DEBT_S.
            self.storage_throttle = StorageThrottle(self._meters, self._fleet, total, effect, now)
        else:
            self.storage_throttle.update_limit(total, effect, now)


def _make_level(
    what: str,
    origin: str,
    configured: float | None,
    limit: float | None,
    meter: TopicRate | BrokerRate | None,
    fleet: FleetUse,
) -> LimitLevel:
    """`limit`: over all gateways."""
    if meter is None:
        return LimitLevel(what, origin, configured, limit, None, whole=limit, fleet=fleet)
    if (used := meter.bucket_use) is not None:  # a bucket of this gateway's share decides
        return LimitLevel(what, origin, configured, used.limit, used.rate, wait_s=used.wait_s, whole=limit, fleet=fleet)
    rate = _combined_rate(meter)
    return LimitLevel(what, origin, configured, limit, rate, whole=limit, here=meter.rate, fleet=fleet)
