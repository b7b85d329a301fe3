# Meters and thresholds of one worker put together: which topics of which broker are over, asked once per batch.
#
# The answer, `TopicMeter.over`, is computed when something changes (tick, thresholds, topics), never per request; a
# topic that joins costs O(1), because what implicit topics share is one number per broker, and it only ever lowers that
# number: the few topics that this puts over are found from the top of an order made once per tick, and only while the
# broker's total is over. Rates and thresholds are per upstream broker, as if each metered itself (V1).
#
# That is for thresholds that reject. Where they delay, pacing.py says which topics have to be asked about and what is
# decided. Resource groups (group_lines.py) may want a topic asked about as well: `over` says that anybody does.
#
# Thresholds hold for the sum of all gateways and workers. Those that reject go by the others' rates as well (`Others`);
# where they delay, the total is ours in part (fleet_lines.py), and a topic's threshold in proportion to what we have of
# its traffic. Alone, there are no others and every part is the whole.
#
# Knows no request and no clock: `now` is seconds on a monotonic clock. The hot path reads `topics` and `over` and adds
# to `uncounted` itself. Topics come and go: a TopicMeter must not be kept beyond a tick or a `set_topics`.

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from policies.fleet_keys import total_key
from policies.fleet_lines import Fleet, FleetLine
from policies.group_lines import Finder, GroupLimits, GroupLines, GroupSide
from policies.meter import ALPHA, DECAY, TICK_S, Meter
from policies.pacing import Pacer
from policies.thresholds import Thresholds
from policies.verdict import (
    DELAYED,
    LINE_FULL,
    MAX_THROTTLE_MS,
    WAITED_LONG,
    Verdict,
    over_threshold,
    reduced,
    storage_pause,
    storage_throttle,
    used_up_threshold,
)

if TYPE_CHECKING:
    from policies.bucket import Bucket

OnExceed = Literal["reject", "delay"]
Mode = Literal["enforce", "observe"]

# org.apache.kafka.common.internals.Topic. They have no implicit threshold and take no share of the others'.
INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"},
)

# Names that clients made up must not fill the memory: beyond so many the rest shares one meter, OTHER.
MAX_UNLISTED: Final = 10_000
OTHER: Final = b""
NO_TOTALS: Final[Mapping[int, float]] = MappingProxyType({})
QUIET: Final = 1.0  # bytes per second: an unlisted topic below it is forgotten at the next tick


class Others(NamedTuple):
    """What everybody else in the fleet brings to one broker: bytes per second, one-minute EWMA."""

    rate: float = 0.0
    topics: Mapping[bytes, float] = {}


NO_OTHERS: Final = Others()


class TopicMeter(Meter):
    """bytesIn of one topic on one broker.

    `over`: whether anybody has to be asked about the next batch: `thresholds_ask`, and then `Engine.decide` (where
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


class BrokerMeters:
    """What one upstream broker gets, and how much of it each topic.

    `share`: the implicit threshold of its topics, None without a total threshold. `pacer`: where thresholds delay.
    `storage`: what all producers share while the storage factor is between 0 and 1. `note`: why limits are reduced.
    `factor`: times which thresholds are lower than configured. `others`: what the others in the fleet bring. `passed`:
    bytes that got into the log before the last tick.
    """

    __slots__ = (
        "_candidates",
        "_fleet",
        "_groups",
        "_has_portions",
        "_internal",
        "_listed",
        "_over",
        "_sharing",
        "_strangers",
        "_thresholds",
        "_unlisted",
        "errors",
        "factor",
        "node_id",
        "note",
        "others",
        "pacer",
        "passed",
        "share",
        "storage",
        "throttled",
        "topics",
        "total",
    )

    def __init__(
        self,
        node_id: int,
        thresholds: Thresholds,
        factor: float,
        internal: frozenset[bytes],
        paces: bool,
        now: float,
        fleet: Fleet,
        groups: GroupLines,
    ) -> None:
        self.node_id = node_id
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
        self._over: list[TopicMeter] = []
        self._candidates: list[TopicMeter] | None = None
        self.pacer: Pacer | None = None
        self.storage: FleetLine | None = None
        self.note = ""
        self.apply(thresholds, factor, paces, now)

    def record(self, topic: bytes, size: int) -> bool:
        """The seed's recordQuota: count `size` bytes that got in and say True, or count them as throttled: False.

        The hot path does the same steps in place, and vouches for the topic when its broker has.
        """
        meter = self.topics.get(topic) or self.add_topic(topic)
        if meter.thresholds_ask:
            self.throttled.uncounted += size
            return False
        meter.uncounted += size
        self.total.uncounted += size
        self.vouch(topic)
        return True

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
        meter.ask_thresholds(self.pacer is not None)
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
            self._lower_share()

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

    def apply(self, thresholds: Thresholds, factor: float, paces: bool, now: float) -> None:
        """Take over changed thresholds, which are those configured times `factor`."""
        self._thresholds = thresholds
        self.factor = factor
        self._set_pacer(thresholds.total if paces else None, now)
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

    def tick(self, ticks: int, now: float) -> None:
        if self.pacer is not None:
            self.pacer.close_tick(now)
        self.passed += self.total.uncounted
        for meter in (self.total, self.errors, self.throttled):
            meter.tick(ticks)
        self._tick_topics(ticks)
        self._forget_quiet()
        self._find_portions()
        self._judge()

    def set_others(self, others: Others) -> None:
        """What the others in the fleet bring, as of now."""
        self.others = others
        for meter in self.topics.values():
            meter.others = others.topics.get(meter.name, 0.0)
        self._find_portions()
        self._judge()

    def _find_portions(self) -> None:
        least = 1.0 / self._fleet.members
        if least == 1.0 and not self._has_portions:
            return
        self._has_portions = least < 1.0
        for meter in self.topics.values():
            whole = meter.rate + meter.others
            meter.portion = max(least, meter.rate / whole if whole else 0.0)

    def verdict(self, topic: bytes, due: float, now: float) -> Verdict:
        """Why a batch for a topic that is over is rejected, and for how long. `due` is the time of the next tick."""
        meter = self.topics.get(topic) or self.topics[OTHER]
        limit, total_limit = meter.threshold, self._thresholds.total
        assert limit is not None, "a topic without a threshold is never over"
        assert total_limit is not None
        # The earliest it can be: a client that waits longer leaves the topic below its threshold.
        ticks = min(_ticks_until(meter, limit, meter.others), _ticks_until(self.total, total_limit, self.others.rate))
        wait_ms = math.ceil((due + (ticks - 1) * TICK_S - now) * 1000)
        return over_threshold(
            topic.decode(errors="replace"),
            self.node_id,
            min(max(wait_ms, 1), MAX_THROTTLE_MS),
            (meter.fleet_rate, limit),
            (self.fleet_rate, total_limit),
        )

    def decide(
        self, topic: bytes, size: int, due: float, now: float, may_delay: bool, denied_s: float, enforced: bool
    ) -> Verdict | None:
        """See `Engine.decide`."""
        meter = self.topics.get(topic) or self.topics.get(OTHER)
        if meter is None or not meter.thresholds_ask:
            return None
        pacer = self.pacer
        if pacer is None:
            return self.verdict(topic, due, now)
        admitted, wait, late = pacer.decide(meter, size, now, may_delay, denied_s)
        if admitted and not wait:
            return None
        if not (admitted or enforced):
            pacer.pass_over(meter, size)  # it is only counted as rejected: the others must not pay for it
        limit, total_limit = meter.threshold, self._thresholds.total
        assert limit is not None, "a topic without a threshold never waits"
        assert total_limit is not None
        return used_up_threshold(
            topic.decode(errors="replace"),
            self.node_id,
            min(math.ceil(wait * 1000), MAX_THROTTLE_MS),
            (meter.fleet_rate, limit),
            (self.fleet_rate, total_limit),
            DELAYED if admitted else WAITED_LONG if late else LINE_FULL,
            self.note,
        )

    def share_storage(self, total: float | None, factor: float, note: str, now: float) -> None:
        """All producers together get `total` * `factor` bytes per second; None = no such limit."""
        self.note = note
        if total is None:
            self.storage = None
        elif self.storage is None:  # shared by strangers: none of them shall stall all others for longer than DEBT_S
            self.storage = FleetLine(self._fleet, total_key(self.node_id), total, factor, now)
        else:
            self.storage.set_limit(total, factor, now)

    def retune(self, now: float) -> None:
        """Go by our part of the total as it is now."""
        if self.pacer is not None and self._thresholds.total is not None:
            self.pacer.set_rate(self._thresholds.total * self.portion, now)
        if self.storage is not None:
            self.storage.retune(now)

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
        hungry = False
        if self.pacer is not None:
            hungry, self.pacer.hungry = self.pacer.hungry or self.pacer.bucket.wait(now) > 0.0, False
        if self.storage is not None:
            hungry = hungry or self.storage.hungry or self.storage.bucket.wait(now) > 0.0
            self.storage.hungry = False
        return hungry

    def judge_storage(self, size: int, now: float, may_delay: bool, denied_s: float) -> Verdict | None:
        """See `Engine.judge_storage`."""
        line = self.storage
        if line is None:
            return None
        admitted, wait, late = line.ask(size, now, may_delay, denied_s)
        if admitted and not wait:
            return None
        return storage_throttle(
            self.node_id,
            min(math.ceil(wait * 1000), MAX_THROTTLE_MS),
            (self.total.rate, line.bucket.rate),
            self.note,
            DELAYED if admitted else WAITED_LONG if late else LINE_FULL,
        )

    def limits(self, meter: TopicMeter) -> bool:
        """Whether that topic is over its threshold, and the total over its own."""
        return meter.thresholds_ask if self.pacer is None else self.pacer.is_paced(meter)

    def _set_pacer(self, total: float | None, now: float) -> None:
        if total is None:
            if self.pacer is not None:
                self.pacer.release()
            self.pacer = None
        elif self.pacer is None:
            self.pacer = Pacer(total * self.portion, self.total, self.topics, self._fleet)
        else:
            self.pacer.set_rate(total * self.portion, now)

    def _limit(self, topic: bytes) -> float | None:
        return self._thresholds.explicit.get(topic, math.inf if topic in self._internal else None)

    def _is_sharing(self, topic: bytes) -> bool:
        return topic not in self._internal and topic not in self._thresholds.explicit

    def _recount(self) -> None:
        self._sharing = sum(map(self._is_sharing, self._listed)) + sum(map(self._is_sharing, self._unlisted))
        self.share = self._thresholds.share(self._sharing)
        self._judge()

    def _judge(self) -> None:
        if self.pacer is not None:  # it judges by what is owed just now, not by a rate of the last minute
            return
        for meter in self._over:
            meter.ask_thresholds(False)
        self._over = []
        self._candidates = None
        if not self.over:
            return
        share = self.share
        assert share is not None
        for meter in self.topics.values():
            limit = meter.limit
            if meter.rate + meter.others > (share if limit is None else limit):
                meter.ask_thresholds(True)
                self._over.append(meter)

    def _lower_share(self) -> None:
        """One more topic shares. Rates stay as they are until the next tick, so each topic gets over at most once."""
        self.share = share = self._thresholds.share(self._sharing)
        if share is None or self.pacer is not None or not self.over:
            return
        if self._candidates is None:
            topics = (m for m in self.topics.values() if m.limit is None and not m.thresholds_ask)
            self._candidates = sorted(topics, key=_by_rate)
        while self._candidates and self._candidates[-1].fleet_rate > share:
            meter = self._candidates.pop()
            meter.ask_thresholds(True)
            self._over.append(meter)

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
        self.fleet = Fleet()
        self._thresholds_pace = False
        self._delays = False  # on_exceed
        self.pause: Verdict | None = None
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
            self.pause = replace(storage_pause(why), observed_only=self._storage_observes)
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

    def judge_storage(
        self, node_id: int, size: int, now: float, *, may_delay: bool = True, denied_s: float = 0.0
    ) -> Verdict | None:
        """What happens to a request of `size` bytes in all because disks fill up; None = nothing. Charges nothing.

        While `pause` is set, that is the answer instead. The rest as in `decide`.
        """
        verdict = self.broker(node_id).judge_storage(size, now, may_delay, denied_s)
        return replace(verdict, observed_only=True) if verdict is not None and self._storage_observes else verdict

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
            thresholds = self._thresholds(node_id)
            meters = self.brokers[node_id] = BrokerMeters(
                node_id,
                thresholds,
                self._factor,
                self._internal,
                self._thresholds_pace,
                self._now,
                self.fleet,
                self.groups,
            )
            meters.set_others(self._others.get(node_id, NO_OTHERS))
            self._share_storage(meters)
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
            broker.tick(ticks, now)
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
            if broker.pacer is not None:
                broker.pacer.pace(now)

    def decide(
        self,
        node_id: int,
        topic: bytes,
        size: int,
        now: float,
        *,
        may_delay: bool = True,
        denied_s: float = 0.0,
    ) -> Verdict | None:
        """What happens to a batch of `size` bytes that is not in `uncounted` yet; None = admit it without a word.

        To be asked where the topic's `thresholds_ask` is set; elsewhere it says None. A verdict "delay" admits. Only
        what is then added to `uncounted` is charged, whatever was decided.

        `may_delay` False: the connection's oldest request has waited as long as it may; what would have to wait for
        others is rejected. `denied_s`: seconds since the connection's first rejection behind which nothing was
        admitted; who was denied for longer finds room first, where there is not enough for all.
        """
        verdict = self.broker(node_id).decide(topic, size, self.due, now, may_delay, denied_s, not self._observes)
        return replace(verdict, observed_only=True) if verdict is not None and self._observes else verdict

    def rejection(self, node_id: int, topic: bytes, now: float) -> Verdict:
        """Why a topic whose `thresholds_ask` is set is rejected, where thresholds reject."""
        return self.broker(node_id).verdict(topic, self.due, now)

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
                    TopicRate(meter.name.decode(errors="replace"), meter.rate, meter.threshold, broker.limits(meter))
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

    def _thresholds(self, node_id: int) -> Thresholds:
        """Of that broker, times the storage factor."""
        thresholds = self._own.get(node_id, self._default)
        return thresholds if self._factor == 1.0 else thresholds.scaled(self._factor)

    def _apply(self) -> None:
        # While disks fill up, thresholds that reject delay as well: by the one-minute average, who was within the limit
        # until now would be rejected for a minute, where it is enough to become slower.
        limits = self._default.total is not None or bool(self._own)
        self._thresholds_pace = limits and (self._delays or self._factor < 1.0)
        for broker in self.brokers.values():
            broker.apply(self._thresholds(broker.node_id), self._factor, self._thresholds_pace, self._now)
            self._share_storage(broker)

    def _share_storage(self, broker: BrokerMeters) -> None:
        total = self._own.get(broker.node_id, self._default).total
        broker.share_storage(None if self._shared == 1.0 else total, self._shared, self._note, self._now)


def _by_rate(meter: TopicMeter) -> float:
    return meter.rate + meter.others


def _ticks_until(meter: Meter, limit: float, others: float) -> int:
    """How many ticks until a meter can be at its limit or below, if nothing more comes in, here or elsewhere. At most
    what can matter.
    """
    most = math.ceil(MAX_THROTTLE_MS / 1000 / TICK_S) + 1
    return next((n for n in range(1, most) if meter.after(n) + others * DECAY**n <= limit), most)
