# What one upstream broker gets, and how much of it each topic: meters, implicit shares, and the limits that go by them.
#
# The answer for the hot path, `TopicMeter.over`, is whether anybody has to be asked about the topic's next batch: the
# thresholds (rejecting.py, pacing.py) or a resource group (groups/lines.py). Rates and thresholds are per
# upstream broker, as if each metered itself (V1). What implicit topics share is one number per broker.
#
# Thresholds hold for the sum of all gateways and workers. Those that reject go by the others' rates as well (`Others`);
# where they delay, the total is ours in part (fleet/lines.py), and a topic's threshold in proportion to what we have of
# its traffic. Alone, there are no others and every part is the whole.
#
# Knows no request and no clock. The hot path reads `topics` and `over` and adds to `uncounted` itself. Topics come and
# go: a TopicMeter must not be kept beyond a tick or a `list_topics`.

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from policies.decision import Limit, Patience
from policies.fleet.keys import total_key
from policies.fleet.lines import FleetLine, OurParts
from policies.groups.lines import GroupLines, GroupSide
from policies.limits.line import AT_ONCE
from policies.limits.meter import ALPHA, TICK_S, Meter
from policies.thresholds.pacing import Pacer
from policies.thresholds.rejecting import Rejecter
from policies.thresholds.values import Thresholds, ThresholdStrategy
from policies.verdict import Verdict, storage_throttle

if TYPE_CHECKING:
    from policies.limits.bucket import Bucket

# Names that clients made up must not fill the memory: beyond so many the rest shares one meter, OTHER.
MAX_UNLISTED: Final = 10_000
OTHER: Final = b""
QUIET: Final = 1.0  # bytes per second: an unlisted topic below it is forgotten at the next tick


class Others(NamedTuple):
    """What everybody else in the fleet brings to one broker: bytes per second, one-minute EWMA."""

    rate: float = 0.0
    topics: Mapping[bytes, float] = {}


NO_OTHERS: Final = Others()


class TopicMeter(Meter):
    """bytesIn of one topic on one broker.

    `over`: whether anybody has to be asked about the next batch: `thresholds_ask`, and then `TopicThreshold` (where
    thresholds reject, it will be rejected), or `group_asks`, and then `GroupLines`. `messages`: counted by the hot path
    like `uncounted`, for resource groups. `limit`: explicit threshold, None = the broker's implicit share.
    `others`: what the others in the fleet bring. `portion`: of its threshold, ours where thresholds delay. `vouched`: a
    broker has said that there is such a topic; else it may be a name that a client made up.
    `bucket`, `seen`: the pacer's own. `side`, `by_principal`, `group_version`, `settled`: those of GroupLines.
    """

    __slots__ = ("_broker", "bucket", "by_principal", "group_asks", "group_version", "limit", "messages", "name",
                 "others", "over", "portion", "seen", "settled", "side", "thresholds_ask", "vouched")  # fmt: skip

    def __init__(self, name: bytes, limit: float | None, broker: BrokerMeters) -> None:
        super().__init__()
        self.name = name
        self.limit = limit
        self.over = self.thresholds_ask = self.group_asks = False
        self.messages = 0
        self.others = 0.0
        self.portion = 1.0
        self.vouched = False
        self.bucket: Bucket | None = None
        self.seen = 0
        self.side: GroupSide | None = None
        self.by_principal = False
        self.group_version = -1
        self.settled = 0  # of `uncounted`: what its group's lines know of
        self._broker = broker

    def ask_thresholds(self, asks: bool) -> None:
        self.thresholds_ask = asks
        self.over = asks or self.group_asks

    def ask_group(self, asks: bool) -> None:
        self.group_asks = asks
        self.over = asks or self.thresholds_ask

    def tick(self, ticks: int = 1) -> None:
        self.settled -= self.uncounted
        super().tick(ticks)

    @property
    def fleet_rate(self) -> float:
        """Bytes per second that all in the fleet bring."""
        return self.rate + self.others

    @property
    def threshold(self) -> float | None:
        """Bytes per second; None where nothing limits this topic."""
        limit = self._broker.share if self.limit is None else self.limit
        return None if limit == math.inf else limit


class TopicThreshold(Limit):
    """The threshold of one topic, for one request. `topic`: its name; several topics may share a meter."""

    __slots__ = ("_meter", "_strategy", "_topic", "observes")

    def __init__(self, broker: BrokerMeters, meter: TopicMeter, topic: bytes) -> None:
        self.observes = broker.observes
        self._strategy = broker.strategy
        self._meter = meter
        self._topic = topic

    def judge(self, size: int, messages: int, patience: Patience, now: float) -> Verdict | None:
        return self._strategy.judge(self._meter, self._topic, size, patience, now)

    def take(self, size: int, messages: int, now: float) -> None:
        self._strategy.take(self._meter, size, now)

    def spare(self, size: int) -> None:
        self._strategy.spare(self._meter, size)


class StorageLimit(Limit):
    """What all producers of one broker share while disks fill up: one line."""

    __slots__ = ("_broker", "line", "observes")

    def __init__(self, broker: BrokerMeters, line: FleetLine) -> None:
        self.observes = False
        self.line = line
        self._broker = broker

    def judge(self, size: int, messages: int, patience: Patience, now: float) -> Verdict | None:
        answer = self.line.ask(size, now, patience.may_delay, patience.denied_s)
        if answer is AT_ONCE:
            return None
        broker = self._broker
        rates = broker.total.rate, self.line.bucket.rate
        return storage_throttle(broker.node_id, answer.throttle_ms, rates, broker.note, answer.outcome)

    def take(self, size: int, messages: int, now: float) -> None:
        self.line.take(size, now)


class StoragePause(Limit):
    """Nothing may be forwarded, as `verdict` says."""

    __slots__ = ("observes", "verdict")

    def __init__(self, verdict: Verdict, *, observes: bool) -> None:
        self.verdict = verdict
        self.observes = observes

    def judge(self, size: int, messages: int, patience: Patience, now: float) -> Verdict:
        return self.verdict


class BrokerMeters:
    """What one upstream broker gets, and how much of it each topic.

    `share`: the implicit threshold of its topics, None without a total threshold. `strategy`: what thresholds do;
    `observes`: their verdicts are only counted. `storage`: what all producers share while the storage factor is between
    0 and 1. `note`: why limits are reduced. `factor`: times which thresholds are lower than configured. `others`: what
    the others in the fleet bring. `passed`: bytes that got into the log before the last tick. `due`: when the next tick
    is.
    """

    __slots__ = ("_fleet", "_groups", "_has_portions", "_internal", "_listed", "_sharing", "_strangers",
                 "_thresholds", "_unlisted", "due", "errors", "factor", "node_id", "note", "observes", "others",
                 "passed", "share", "storage", "strategy", "throttled", "topics", "total")  # fmt: skip

    def __init__(
        self, node_id: int, internal: frozenset[bytes], fleet: OurParts, groups: GroupLines, due: float
    ) -> None:
        """Without thresholds, until `apply`."""
        self.node_id = node_id
        self.due = due
        self._fleet = fleet
        self._groups = groups
        self.others = NO_OTHERS
        self._has_portions = False
        self.passed = 0
        self.total = Meter()  # got into the log
        self.errors = Meter()  # admitted here, refused by the broker
        self.throttled = Meter()  # rejected here
        self.topics: dict[bytes, TopicMeter] = {}
        self._internal = internal
        self._listed: frozenset[bytes] = frozenset()
        self._unlisted: set[bytes] = set()  # produced to, and not in metadata (yet)
        self._strangers: set[bytes] = set()  # clients named them, and no broker has vouched for them (yet)
        self._thresholds = Thresholds(None, {})
        self._sharing = 0
        self.share: float | None = None
        self.factor = 1.0
        self.observes = False
        self.strategy: ThresholdStrategy = Rejecter(self)
        self.storage: StorageLimit | None = None
        self.note = ""

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
        meter = self.topics[topic] = TopicMeter(topic, self._limit(topic), self)
        meter.vouched = topic in self._listed
        if not meter.vouched:
            self._strangers.add(topic)
        meter.others = self.others.topics.get(topic, 0.0)
        meter.portion = 1.0 / self._fleet.members
        self.strategy.join(meter)
        meter.ask_group(self._groups.exists)
        return meter

    def vouch(self, topic: bytes) -> None:
        """The broker has taken something for it, so there is such a topic; it counts for shares from now on."""
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
        if self._is_sharing(topic):
            self._sharing += 1
            self.share = self._thresholds.share(self._sharing)
            self.strategy.lower_share()

    def retract(self, topic: bytes, size: int) -> None:
        """Bytes that were admitted and, as the answer says, didn't get into the log after all. Whoever calls gives them
        back to the topic's group.
        """
        self.total.uncounted -= size
        meter = self.topics.get(topic) or self.topics.get(OTHER)
        if meter is not None:
            meter.uncounted -= size
            meter.settled -= size

    @property
    def threshold(self) -> float | None:
        return self._thresholds.total

    @property
    def over(self) -> bool:
        limit = self._thresholds.total
        return limit is not None and self.fleet_rate > limit

    @property
    def fleet_rate(self) -> float:
        """Bytes per second that all in the fleet bring."""
        return self.total.rate + self.others.rate

    @property
    def taken(self) -> int:
        """Bytes that got into the log since ever."""
        return self.passed + self.total.uncounted

    @property
    def has_empty_share(self) -> bool:
        """Whether topics without a threshold of their own have nothing left to share."""
        return self.share == 0 and self._sharing > 0

    def apply(self, thresholds: Thresholds, factor: float, now: float, *, delays: bool, observes: bool) -> None:
        """Take over changed thresholds, which are those configured times `factor`."""
        self._thresholds = thresholds
        self.factor = factor
        self.observes = observes
        delays = delays and thresholds.total is not None
        if delays == self.strategy.delays:
            self.strategy.retune(now)
        else:
            self.strategy.release()
            self.strategy = Pacer(self, self._fleet) if delays else Rejecter(self)
        for meter in self.topics.values():
            meter.limit = self._limit(meter.name)
        self._recount()

    def list_topics(self, topics: frozenset[bytes]) -> None:
        """Take over what metadata says. A topic that left the list is off this broker: its meter goes, as in Kafka."""
        for topic in self._listed - topics:
            self.topics.pop(topic, None)
        self._listed = topics
        self._unlisted -= topics
        self._strangers -= topics
        for topic in topics & self.topics.keys():
            self.topics[topic].vouched = True
        self._recount()

    def tick(self, ticks: int, now: float, due: float) -> None:
        self.due = due
        self.strategy.close_tick(now)
        self.passed += self.total.uncounted
        for meter in (self.total, self.errors, self.throttled):
            meter.tick(ticks)
        self._tick_topics(ticks)
        self._forget_quiet()
        self._find_portions()
        self.strategy.refresh()

    def set_others(self, others: Others) -> None:
        """What the others in the fleet bring, as of now."""
        self.others = others
        for meter in self.topics.values():
            meter.others = others.topics.get(meter.name, 0.0)
        self._find_portions()
        self.strategy.refresh()

    def _find_portions(self) -> None:
        least = 1.0 / self._fleet.members
        if least == 1.0 and not self._has_portions:
            return
        self._has_portions = least < 1.0
        for meter in self.topics.values():
            whole = meter.rate + meter.others
            meter.portion = max(least, meter.rate / whole if whole else 0.0)

    def share_storage(self, total: float | None, factor: float, note: str, now: float, *, observes: bool) -> None:
        """All producers together get `total` * `factor` bytes per second; None = no such limit."""
        self.note = note
        if total is None:
            self.storage = None
            return
        if self.storage is None:  # shared by strangers: none of them shall stall all others for longer than DEBT_S
            line = FleetLine(self._fleet, total_key(self.node_id), total, factor, now)
            self.storage = StorageLimit(self, line)
        else:
            self.storage.line.set_limit(total, factor, now)
        self.storage.observes = observes

    def retune(self, now: float) -> None:
        """Go by our part of the total as it is now."""
        self.strategy.retune(now)
        if self.storage is not None:
            self.storage.line.retune(now)

    @property
    def delays(self) -> bool:
        """Whether requests wait for our part of the total."""
        return self.strategy.delays or self.storage is not None

    @property
    def portion(self) -> float:
        """Of the total threshold, ours where it delays: 0..1."""
        total = self._thresholds.total
        return 1.0 if total is None else self._fleet.fraction(total_key(self.node_id), total / self.factor)

    @property
    def own_threshold(self) -> float | None:
        """Ours of the total threshold, where it delays."""
        total = self._thresholds.total
        return None if total is None else total * self.portion

    def take_hunger(self, now: float) -> bool:
        """Whether anybody had to wait for our part of the total since the last call, or has to just now."""
        hungry = self.strategy.take_hunger(now)
        if self.storage is not None:
            line = self.storage.line
            hungry = hungry or line.hungry or line.bucket.wait(now) > 0.0
            line.hungry = False
        return hungry

    def _limit(self, topic: bytes) -> float | None:
        return self._thresholds.explicit.get(topic, math.inf if topic in self._internal else None)

    def _is_sharing(self, topic: bytes) -> bool:
        return topic not in self._internal and topic not in self._thresholds.explicit

    def _recount(self) -> None:
        self._sharing = sum(map(self._is_sharing, self._listed)) + sum(map(self._is_sharing, self._unlisted))
        self.share = self._thresholds.share(self._sharing)
        self.strategy.refresh()

    def _tick_topics(self, ticks: int) -> None:
        if ticks > 1:
            for meter in self.topics.values():
                meter.tick(ticks)
            return
        for meter in self.topics.values():  # Meter.tick, in place: ten thousand calls cost more than the sums
            rate = meter.uncounted / TICK_S
            meter.settled -= meter.uncounted
            meter.uncounted = 0
            if meter.started:
                rate = meter.rate + ALPHA * (rate - meter.rate)
            else:
                meter.started = True
            meter.rate = rate if rate > 0.0 else 0.0

    def _forget_quiet(self) -> None:
        for topic in self._strangers:  # one that is real is here again with its next request
            del self.topics[topic]
        self._strangers.clear()
        quiet = [topic for topic in self._unlisted if self.topics[topic].rate < QUIET]
        for topic in quiet:
            del self.topics[topic]
            self._unlisted.remove(topic)
        if quiet:
            self._sharing -= sum(map(self._is_sharing, quiet))
            self.share = self._thresholds.share(self._sharing)
