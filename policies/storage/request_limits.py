# What storage protection says about a request: the pause, the queue that producers share while disks fill up, and which
# topics each of them is for, where full volumes hold only topics with a replica on them.
#
# Knows no request and no clock, and of volumes only what it is told.

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from policies.decision import ClientPatience, RequestLimit
from policies.fleet.fleet_limiter import FleetLimiter
from policies.fleet.keys import total_key
from policies.limits.description import LimitDescription, LimitLevel, known_broker, place_text
from policies.limits.limiter import AT_ONCE
from policies.verdict import (
    STORAGE_PAUSE,
    STORAGE_THROTTLE,
    ObservedRate,
    Verdict,
    reduced_text,
    storage_pause,
    storage_throttle,
)

if TYPE_CHECKING:
    from policies.fleet.fleet_limiter import FleetShares
    from policies.meters.broker_meters import BrokerMeters
    from policies.storage.scope import AffectedTopics


class StorageEffect(NamedTuple):
    """The effect of the storage factor on limits.

    `factor`: times which limits are lower, above 0. `shared`: the same for the queue of all producers, also where it is
    only observed. `note`: why limits are reduced, "" where they are not. `whose`: the producers that share the queue.
    `why`: names broker and volume.
    """

    factor: float = 1.0
    shared: float = 1.0
    note: str = ""
    observes: bool = False
    whose: str = "all producers"
    why: str = ""

    @classmethod
    def of_factor(cls, factor: float, why: str, shared: float = 1.0, *, observes: bool) -> StorageEffect:
        """The effect of a storage factor, 0..1. `shared`: that of the factor before. It stays in a pause, as no limit
        matters then and debts must outlive it.
        """
        shared = factor if factor > 0.0 else shared
        used = 1.0 if observes else shared
        return cls(used, shared, reduced_text(factor, why) if used < 1.0 else "", observes, why=why)


NO_EFFECT = StorageEffect()


class StorageThrottle(RequestLimit):
    """The limit that producers of one broker share while disks fill up: one queue."""

    __slots__ = ("_effect", "_meters", "limiter", "observes")

    def __init__(
        self, meters: BrokerMeters, fleet: FleetShares, total: float, effect: StorageEffect, now: float, name: str = ""
    ) -> None:
        """Producers share our share of `total` times the factor. `name`: of its bucket."""
        self.observes = effect.observes
        self.limiter = FleetLimiter(fleet, total_key(meters.node_id), total, effect.shared, now, bucket_name=name)
        self._effect = effect
        self._meters = meters

    def update_limit(self, total: float, effect: StorageEffect, now: float) -> None:
        """Another total, or another factor."""
        self._effect, self.observes = effect, effect.observes
        self.limiter.set_limit(total, effect.shared, now)

    def set_total(self, total: float, now: float) -> None:
        """Another total."""
        self.limiter.set_limit(total, self._effect.shared, now)

    def judge_request(self, size: int, messages: int, patience: ClientPatience, now: float) -> Verdict | None:
        answer = self.limiter.check_admission(size, now, patience.may_delay, patience.denied_s, patience.client)
        if answer is AT_ONCE:
            return None
        meters, effect = self._meters, self._effect
        rate = ObservedRate(meters.total.rate, self.limiter.bucket.rate)
        return storage_throttle(
            meters.node_id, answer.throttle_ms, rate, effect.note, answer.outcome, effect.whose, answer.room_in_s
        )

    def describe(self, rate: float | None, total_key: str) -> LimitDescription:
        """`rate`: of the broker, over all gateways; None: not known. `total_key`: the setting of the total."""
        limiter, effect, broker = self.limiter, self._effect, known_broker(self._meters.node_id)
        what = f"{effect.whose} of {place_text(broker)} together, {total_key} x {limiter.factor:.3g}"
        level = LimitLevel(what, "storage", limiter.limit, limiter.whole_rate, rate)
        return LimitDescription(
            STORAGE_THROTTLE, broker, (level,), "delay", "produce", self.mode, level.utilization >= 1, effect.why
        )

    def available_credit(self, client: object, now: float) -> tuple[float, float]:
        return self.limiter.available_credit(client, now), math.inf

    def charge_request(self, size: int, messages: int, now: float) -> None:
        self.limiter.charge_amount(size, now)

    def refund_request(self, size: int, messages: int) -> None:
        self.limiter.refund_amount(size)


class StoragePause(RequestLimit):
    """Nothing may be forwarded, as `verdict` says. `why`: names broker and volume."""

    __slots__ = ("observes", "verdict", "why")

    def __init__(self, verdict: Verdict, why: str = "", *, observes: bool) -> None:
        self.verdict = verdict
        self.why = why
        self.observes = observes

    def describe(self) -> LimitDescription:
        note = f"storage factor 0: requests wait up to 15 s and are then rejected: {self.why}"
        return LimitDescription(STORAGE_PAUSE, None, (), "hold", "produce", self.mode, True, note)

    def judge_request(self, size: int, messages: int, patience: ClientPatience, now: float) -> Verdict:
        return self.verdict


class AffectedIndex:
    """The affected topics, on all brokers. `by_topic`, `by_broker`: the index in `parts`; by broker that of the topics
    it leads that metadata doesn't list. `pauses_by_part`: of parts that are paused.
    """

    __slots__ = ("by_broker", "by_topic", "observes", "parts", "pauses_by_part")

    def __init__(self, parts: Iterable[AffectedTopics] = (), *, observes: bool = False) -> None:
        """`parts`: the strictest first."""
        self.parts = tuple(parts)
        self.observes = observes
        self.by_topic: dict[bytes, int] = {}
        self.by_broker: dict[int, int] = {}
        self.pauses_by_part: dict[int, StoragePause] = {}
        for index, part in enumerate(self.parts):
            for topic in part.topics:
                self.by_topic.setdefault(topic.encode(), index)
            for node_id in part.brokers:
                self.by_broker.setdefault(node_id, index)
            if part.value <= 0.0:
                self.pauses_by_part[index] = StoragePause(storage_pause(part.why, 0), part.why, observes=observes)


NO_AFFECTED_TOPICS = AffectedIndex()


class AffectedLimits:
    """The limits of one broker's affected topics. `throttles`: the queues of those that are slowed down. False where
    no topic is affected.
    """

    __slots__ = ("_affected_topics", "_fleet", "_meters", "_throttles", "_unlisted_part")

    def __init__(self, meters: BrokerMeters, fleet: FleetShares) -> None:
        """No topic is affected."""
        self._meters = meters
        self._fleet = fleet
        self._affected_topics = NO_AFFECTED_TOPICS
        self._unlisted_part: int | None = None
        self._throttles: dict[str, StorageThrottle] = {}

    def set_affected_topics(self, affected: AffectedIndex, total: float | None, now: float) -> None:
        """These are affected. Queues go on where their volume's did before: debts outlive a change. `total`: of the
        broker, which the queues have a part of; None: it has none, and only pauses hold.
        """
        self._affected_topics = affected
        self._unlisted_part = affected.by_broker.get(self._meters.node_id)
        self.set_total(total, now)

    def __bool__(self) -> bool:
        return bool(self._affected_topics.parts)

    @property
    def throttles(self) -> Iterable[StorageThrottle]:
        return self._throttles.values()

    @property
    def delays_requests(self) -> bool:
        return bool(self._throttles)

    def is_affected(self, topic: bytes, is_listed: bool) -> bool:
        """Whether storage protection affects that topic."""
        return self._part_index(topic, is_listed) is not None

    def part_of(self, topic: bytes, is_listed: bool) -> AffectedTopics | None:
        """The volume that affects that topic; None: none does."""
        index = self._part_index(topic, is_listed)
        return None if index is None else self._affected_topics.parts[index]

    def limit_of(self, topic: bytes, is_listed: bool) -> StorageThrottle | StoragePause | None:
        """The limit of that topic; None: it isn't affected, or the broker has no total that could be lowered."""
        affected, index = self._affected_topics, self._part_index(topic, is_listed)
        if index is None:
            return None
        return affected.pauses_by_part.get(index) or self._throttles.get(affected.parts[index].key)

    def _part_index(self, topic: bytes, is_listed: bool) -> int | None:
        index = self._affected_topics.by_topic.get(topic)
        return self._unlisted_part if index is None and not is_listed else index

    def set_total(self, total: float | None, now: float) -> None:
        """The broker has another total."""
        former, self._throttles = self._throttles, {}
        if total is None:
            return
        for part in self._affected_topics.parts:
            if part.value >= 1.0:
                continue
            kept = former.get(part.key)
            if part.value <= 0.0:
                if kept is not None:  # debts outlive a pause
                    self._throttles[part.key] = kept
                continue
            effect = StorageEffect(
                1.0,
                part.value,
                reduced_text(part.value, part.why),
                self._affected_topics.observes,
                f"producers to topics of {part.key}",
                part.why,
            )
            if kept is None:
                name = f"{self._meters.node_id} held by {part.key}"
                kept = StorageThrottle(self._meters, self._fleet, total, effect, now, name)
            else:
                kept.update_limit(total, effect, now)
            self._throttles[part.key] = kept
