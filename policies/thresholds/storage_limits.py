# What storage protection says about a request: the pause, the queue that producers share while disks fill up, and which
# topics each of them is for, where full volumes hold only topics with a replica on them.
#
# Knows no request and no clock, and of volumes only what it is told.

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from policies.decision import Limit, Patience
from policies.limits.line import AT_ONCE
from policies.verdict import Verdict, reduced, storage_pause, storage_throttle

if TYPE_CHECKING:
    from policies.fleet.lines import FleetLine
    from policies.storage import Affected
    from policies.thresholds.broker_limits import BrokerLimits


class StorageEffect(NamedTuple):
    """The effect of the storage factor on limits.

    `factor`: times which limits are lower, above 0. `shared`: the same for the queue of all producers, also where it is
    only observed. `note`: why limits are reduced, "" where they are not. `whose`: the producers that share the queue.
    """

    factor: float = 1.0
    shared: float = 1.0
    note: str = ""
    observes: bool = False
    whose: str = "all producers"


NO_EFFECT = StorageEffect()


class StorageLimit(Limit):
    """The limit that producers of one broker share while disks fill up: one line."""

    __slots__ = ("_effect", "_limits", "line", "observes")

    def __init__(self, limits: BrokerLimits, effect: StorageEffect, line: FleetLine) -> None:
        self.observes = effect.observes
        self.line = line
        self._effect = effect
        self._limits = limits

    def set(self, total: float, effect: StorageEffect, now: float) -> None:
        """Another total, or another factor."""
        self._effect, self.observes = effect, effect.observes
        self.line.set_limit(total, effect.shared, now)

    def retotal(self, total: float, now: float) -> None:
        """Another total."""
        self.line.set_limit(total, self._effect.shared, now)

    def judge(self, size: int, messages: int, patience: Patience, now: float) -> Verdict | None:
        answer = self.line.ask(size, now, patience.may_delay, patience.denied_s, patience.client)
        if answer is AT_ONCE:
            return None
        meters, effect = self._limits.meters, self._effect
        rates = meters.total.rate, self.line.bucket.rate
        return storage_throttle(
            meters.node_id, answer.throttle_ms, rates, effect.note, answer.outcome, effect.whose, answer.room_in
        )

    def credit(self, client: object, now: float) -> tuple[float, float]:
        return self.line.credit(client, now), math.inf

    def take(self, size: int, messages: int, now: float) -> None:
        self.line.take(size, now)

    def give_back(self, size: int, messages: int) -> None:
        self.line.give_back(size)


class StoragePause(Limit):
    """Nothing may be forwarded, as `verdict` says."""

    __slots__ = ("observes", "verdict")

    def __init__(self, verdict: Verdict, *, observes: bool) -> None:
        self.verdict = verdict
        self.observes = observes

    def judge(self, size: int, messages: int, patience: Patience, now: float) -> Verdict:
        return self.verdict


class Holding:
    """The topics that storage holds, on all brokers. `by_topic`, `by_broker`: the index in `parts`; by broker that of
    the topics it leads that metadata doesn't list. `pauses`: of parts that are paused.
    """

    __slots__ = ("by_broker", "by_topic", "observes", "parts", "pauses")

    def __init__(self, parts: Iterable[Affected] = (), *, observes: bool = False) -> None:
        """`parts`: the strictest first."""
        self.parts = tuple(parts)
        self.observes = observes
        self.by_topic: dict[bytes, int] = {}
        self.by_broker: dict[int, int] = {}
        self.pauses: dict[int, StoragePause] = {}
        for index, part in enumerate(self.parts):
            for topic in part.topics:
                self.by_topic.setdefault(topic.encode(), index)
            for node_id in part.brokers:
                self.by_broker.setdefault(node_id, index)
            if part.value <= 0.0:
                self.pauses[index] = StoragePause(storage_pause(part.why, 0), observes=observes)


class AffectedLimits:
    """The limits of one broker's held topics. `shared`: the lines of those that are slowed down. False where no topic
    is held.
    """

    __slots__ = ("_holding", "_limits", "_own", "_shared")

    def __init__(
        self, limits: BrokerLimits | None, holding: Holding, total: float | None, former: AffectedLimits | None,
        now: float,
    ) -> None:  # fmt: skip
        """`total`: of that broker, which the shared lines have a part of; None: it has none, and only pauses hold."""
        self._limits = limits
        self._holding = holding
        self._own = None if limits is None else holding.by_broker.get(limits.meters.node_id)
        self._shared: dict[str, StorageLimit] = {} if former is None else dict(former._shared)
        self.retotal(total, now)

    def __bool__(self) -> bool:
        return bool(self._holding.parts)

    @property
    def shared(self) -> Iterable[StorageLimit]:
        return self._shared.values()

    @property
    def delays(self) -> bool:
        return bool(self._shared)

    def finds(self, topic: bytes, is_listed: bool) -> bool:
        """Whether that topic is held."""
        return topic in self._holding.by_topic or (self._own is not None and not is_listed)

    def limit(self, topic: bytes, is_listed: bool) -> StorageLimit | StoragePause | None:
        """The limit of that topic; None: it isn't held."""
        holding = self._holding
        index = holding.by_topic.get(topic)
        if index is None and not is_listed:
            index = self._own
        if index is None:
            return None
        return holding.pauses.get(index) or self._shared.get(holding.parts[index].key)

    def retotal(self, total: float | None, now: float) -> None:
        """The broker has another total."""
        limits = self._limits
        former, self._shared = self._shared, {}
        if limits is None or total is None:
            return
        for part in self._holding.parts:
            if part.value >= 1.0:
                continue
            kept = former.get(part.key)
            if part.value <= 0.0:
                if kept is not None:  # debts outlive a pause
                    self._shared[part.key] = kept
                continue
            effect = StorageEffect(
                1.0,
                part.value,
                reduced(part.value, part.why),
                self._holding.observes,
                f"producers to topics of {part.key}",
            )
            if kept is None:
                name = f"{limits.meters.node_id} held by {part.key}"
                kept = StorageLimit(limits, effect, limits.make_line(total, part.value, now, name))
            else:
                kept.set(total, effect, now)
            self._shared[part.key] = kept


NO_HOLDING = Holding()
NO_AFFECTED = AffectedLimits(None, NO_HOLDING, None, None, 0.0)
