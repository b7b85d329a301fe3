# Meters and thresholds of one worker put together: which topics of which broker are over, asked once per batch.
#
# The answer, `TopicMeter.over`, is computed when something changes (tick, thresholds, topics), never per request; a
# topic that joins costs O(1), because what implicit topics share is one number per broker, and it only ever lowers that
# number: the few topics that this puts over are found from the top of an order made once per tick, and only while the
# broker's total is over. Rates and thresholds are per upstream broker, as if each metered itself (V1).
#
# That is for thresholds that reject. Where they delay, pacing.py says which topics have to be asked about (`over`) and
# what is decided.
#
# Knows no request and no clock: `now` is seconds on a monotonic clock. The hot path reads `topics` and `over` and adds
# to `uncounted` itself. Topics come and go: a TopicMeter must not be kept beyond a tick or a `set_topics`.

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from policies.meter import ALPHA, TICK_S, Meter
from policies.pacing import Pacer
from policies.thresholds import Thresholds
from policies.verdict import (
    DELAYED,
    LINE_FULL,
    MAX_THROTTLE_MS,
    WAITED_LONG,
    Verdict,
    over_threshold,
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
QUIET: Final = 1.0  # bytes per second: an unlisted topic below it is forgotten at the next tick

_by_rate = attrgetter("rate")


class TopicMeter(Meter):
    """bytesIn of one topic on one broker.

    `over`: whether `Engine.decide` has to be asked about the next batch. Where thresholds reject, it will be rejected.
    `limit`: explicit threshold, None = the broker's implicit share. `bucket`, `seen`: the pacer's own.
    """

    __slots__ = ("_broker", "bucket", "limit", "name", "over", "seen")

    def __init__(self, name: bytes, limit: float | None, broker: BrokerMeters) -> None:
        super().__init__()
        self.name = name
        self.limit = limit
        self.over = False
        self.bucket: Bucket | None = None
        self.seen = 0
        self._broker = broker

    @property
    def threshold(self) -> float | None:
        """Bytes per second; None where nothing limits this topic."""
        limit = self._broker.share if self.limit is None else self.limit
        return None if limit == math.inf else limit


class BrokerMeters:
    """What one upstream broker gets, and how much of it each topic.

    `share`: the implicit threshold of its topics, None without a total threshold. `pacer`: where thresholds delay.
    """

    __slots__ = (
        "_candidates",
        "_internal",
        "_listed",
        "_over",
        "_sharing",
        "_thresholds",
        "_unlisted",
        "errors",
        "node_id",
        "pacer",
        "share",
        "throttled",
        "topics",
        "total",
    )

    def __init__(
        self, node_id: int, thresholds: Thresholds, internal: frozenset[bytes], paces: bool, now: float
    ) -> None:
        self.node_id = node_id
        self.total = Meter()  # got into the log
        self.errors = Meter()  # admitted here, refused by the broker
        self.throttled = Meter()  # rejected here
        self.topics: dict[bytes, TopicMeter] = {}
        self._internal = internal
        self._listed: frozenset[bytes] = frozenset()
        self._unlisted: set[bytes] = set()  # produced to, and not in metadata (yet)
        self._over: list[TopicMeter] = []
        self._candidates: list[TopicMeter] | None = None
        self.pacer: Pacer | None = None
        self.apply(thresholds, paces, now)

    def record(self, topic: bytes, size: int) -> bool:
        """The seed's recordQuota: count `size` bytes and say True, or count them as throttled and say False.

        The hot path may do the same steps in place.
        """
        meter = self.topics.get(topic) or self.add_topic(topic)
        if meter.over:
            self.throttled.uncounted += size
            return False
        meter.uncounted += size
        self.total.uncounted += size
        return True

    def add_topic(self, topic: bytes) -> TopicMeter:
        """The meter of a topic that has none yet. One that metadata doesn't list yet counts for shares from now on."""
        if topic not in self._listed:
            if len(self._unlisted) >= MAX_UNLISTED:
                topic = OTHER
                if topic in self.topics:
                    return self.topics[topic]
            self._unlisted.add(topic)
            if self._is_sharing(topic):
                self._sharing += 1
                self._lower_share()
        meter = self.topics[topic] = TopicMeter(topic, self._limit(topic), self)
        meter.over = self.pacer is not None
        return meter

    def retract(self, topic: bytes, size: int) -> None:
        """Bytes that were admitted and, as the answer says, didn't get into the log after all."""
        self.total.uncounted -= size
        meter = self.topics.get(topic) or self.topics.get(OTHER)
        if meter is not None:
            meter.uncounted -= size

    @property
    def threshold(self) -> float | None:
        return self._thresholds.total

    @property
    def over(self) -> bool:
        limit = self._thresholds.total
        return limit is not None and self.total.rate > limit

    @property
    def has_empty_share(self) -> bool:
        """Whether topics without a threshold of their own have nothing left to share."""
        return self.share == 0 and self._sharing > 0

    def apply(self, thresholds: Thresholds, paces: bool, now: float) -> None:
        """Take over changed thresholds."""
        self._thresholds = thresholds
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
        self._recount()

    def tick(self, ticks: int, now: float) -> None:
        if self.pacer is not None:
            self.pacer.close_tick(now)
        for meter in (self.total, self.errors, self.throttled):
            meter.tick(ticks)
        self._tick_topics(ticks)
        self._forget_quiet()
        self._judge()

    def verdict(self, topic: bytes, due: float, now: float) -> Verdict:
        """Why a batch for a topic that is over is rejected, and for how long. `due` is the time of the next tick."""
        meter = self.topics.get(topic) or self.topics[OTHER]
        limit, total_limit = meter.threshold, self._thresholds.total
        assert limit is not None, "a topic without a threshold is never over"
        assert total_limit is not None
        # The earliest it can be: a client that waits longer leaves the topic below its threshold.
        ticks = min(_ticks_until(meter, limit), _ticks_until(self.total, total_limit))
        wait_ms = math.ceil((due + (ticks - 1) * TICK_S - now) * 1000)
        return over_threshold(
            topic.decode(errors="replace"),
            self.node_id,
            min(max(wait_ms, 1), MAX_THROTTLE_MS),
            (meter.rate, limit),
            (self.total.rate, total_limit),
        )

    def decide(
        self, topic: bytes, size: int, due: float, now: float, may_delay: bool, denied_s: float, enforced: bool
    ) -> Verdict | None:
        """See `Engine.decide`."""
        meter = self.topics.get(topic) or self.topics.get(OTHER)
        if meter is None or not meter.over:
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
            (meter.rate, limit),
            (self.total.rate, total_limit),
            DELAYED if admitted else WAITED_LONG if late else LINE_FULL,
        )

    def limits(self, meter: TopicMeter) -> bool:
        """Whether that topic is over its threshold, and the total over its own."""
        return meter.over if self.pacer is None else self.pacer.is_paced(meter)

    def _set_pacer(self, total: float | None, now: float) -> None:
        if total is None:
            if self.pacer is not None:
                self.pacer.release()
            self.pacer = None
        elif self.pacer is None:
            self.pacer = Pacer(total, self.total, self.topics)
        else:
            self.pacer.set_rate(total, now)

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
            meter.over = False
        self._over = []
        self._candidates = None
        if not self.over:
            return
        share = self.share
        assert share is not None
        for meter in self.topics.values():
            limit = meter.limit
            if meter.rate > (share if limit is None else limit):
                meter.over = True
                self._over.append(meter)

    def _lower_share(self) -> None:
        """One more topic shares. Rates stay as they are until the next tick, so each topic gets over at most once."""
        self.share = share = self._thresholds.share(self._sharing)
        if share is None or self.pacer is not None or not self.over:
            return
        if self._candidates is None:
            self._candidates = sorted((m for m in self.topics.values() if m.limit is None and not m.over), key=_by_rate)
        while self._candidates and self._candidates[-1].rate > share:
            meter = self._candidates.pop()
            meter.over = True
            self._over.append(meter)

    def _tick_topics(self, ticks: int) -> None:
        if ticks > 1:
            for meter in self.topics.values():
                meter.tick(ticks)
            return
        for meter in self.topics.values():  # Meter.tick, in place: ten thousand calls cost more than the sums
            rate = meter.uncounted / TICK_S
            meter.uncounted = 0
            if meter.started:
                rate = meter.rate + ALPHA * (rate - meter.rate)
            else:
                meter.started = True
            meter.rate = rate if rate > 0.0 else 0.0

    def _forget_quiet(self) -> None:
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
    `paces`: whether `pace` has to be called every pacing.PACE_S.
    """

    def __init__(self, now: float, internal: Iterable[str] = INTERNAL_TOPICS) -> None:
        self.due = now + TICK_S
        self.brokers: dict[int, BrokerMeters] = {}
        self.paces = False
        self._observes = False
        self._now = now  # of the last call that said so
        self._start = now
        self._ticks = 0
        self._internal = frozenset(topic.encode() for topic in internal)
        self._total: float | None = None
        self._topics: dict[str, float] = {}
        self._thresholds = Thresholds(None, {})
        self._listed: dict[int, frozenset[bytes]] = {}
        self._gone: set[bytes] = set()  # of those with a threshold: listed once, now by no broker: deleted

    def set_policy(
        self,
        total: float | None,
        topics: Mapping[str, float],
        *,
        on_exceed: OnExceed = "reject",
        mode: Mode = "enforce",
    ) -> None:
        """Replace all thresholds, in bytes per second. `total` (of each broker) None = nothing is ever over.

        `on_exceed`: what is over is rejected by its EWMA (V1), or delayed. `mode` "observe": verdicts are only to be
        counted.

        Raises:
            ThresholdError: they contradict each other; then the former ones stay.
        """
        thresholds = Thresholds(total, topics, self._gone)
        self._total, self._topics = total, dict(topics)
        self.paces = on_exceed == "delay" and total is not None
        self._observes = mode == "observe"
        self._gone &= thresholds.explicit.keys()
        self._apply(thresholds)

    def set_topics(self, node_id: int, names: Iterable[str]) -> None:
        """What metadata says that broker leads a partition of. Topics seen by produce requests only stay as well."""
        listed = frozenset(name.encode() for name in names)
        left = self._listed.get(node_id, frozenset()) - listed
        self._listed[node_id] = listed
        self.broker(node_id).list_topics(listed)
        suspects = self._gone | (left & self._thresholds.explicit.keys())
        gone = {topic for topic in suspects if not any(topic in names for names in self._listed.values())}
        if gone != self._gone:
            self._gone = gone
            self._apply(Thresholds(self._total, self._topics, gone))

    def broker(self, node_id: int) -> BrokerMeters:
        meters = self.brokers.get(node_id)
        if meters is None:
            meters = self.brokers[node_id] = BrokerMeters(
                node_id, self._thresholds, self._internal, self.paces, self._now
            )
        return meters

    def tick(self, now: float) -> bool:
        """Apply every tick that is due, also several after a long pause. True if there was one."""
        self._now = now
        if now < self.due:
            return False
        done = int((now - self._start) // TICK_S)
        ticks = max(1, done - self._ticks)  # rounding may say 0 when now == due
        self._ticks += ticks
        self.due = self._start + (self._ticks + 1) * TICK_S
        for broker in self.brokers.values():
            broker.tick(ticks, now)
        return True

    def next_tick(self, now: float) -> float:
        """Seconds until a tick is due; 0 if one is."""
        return max(0.0, self.due - now)

    def refund(self, node_id: int, topic: bytes, size: int) -> None:
        """The broker refused what was admitted: from bytesIn to the error meter."""
        broker = self.broker(node_id)
        broker.retract(topic, size)
        broker.errors.uncounted += size

    def pace(self, now: float) -> None:
        """Bring `over` up to date where thresholds delay; to be called every pacing.PACE_S while `paces`."""
        self._now = now
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

        To be asked where the topic's `over` is set; elsewhere it says None. A verdict "delay" admits. Only what is then
        added to `uncounted` is charged, whatever was decided.

        `may_delay` False: the connection's oldest request has waited as long as it may; what would have to wait for
        others is rejected. `denied_s`: seconds since the connection's first rejection behind which nothing was
        admitted; who was denied for longer finds room first, where there is not enough for all.
        """
        verdict = self.broker(node_id).decide(topic, size, self.due, now, may_delay, denied_s, not self._observes)
        return replace(verdict, observed_only=True) if verdict is not None and self._observes else verdict

    def rejection(self, node_id: int, topic: bytes, now: float) -> Verdict:
        """Why a topic whose `over` is set is rejected, where thresholds reject."""
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
                ],
            )
            for broker in self.brokers.values()
        ]

    def warnings(self) -> tuple[str, ...]:
        """What is allowed but hardly meant, as things stand: empty when all is well."""
        if self._total is None:
            return self._thresholds.warnings()
        empty = sorted(node_id for node_id, broker in self.brokers.items() if broker.has_empty_share)
        return tuple(
            f"broker {node_id} has topics whose implicit threshold is 0: nothing of the total is left for them"
            for node_id in empty
        )

    def _apply(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        for broker in self.brokers.values():
            broker.apply(thresholds, self.paces, self._now)


def _ticks_until(meter: Meter, limit: float) -> int:
    """How many ticks until a meter can be at its limit or below, if nothing more comes in. At most what can matter."""
    most = math.ceil(MAX_THROTTLE_MS / 1000 / TICK_S) + 1
    return next((ticks for ticks in range(1, most) if meter.after(ticks) <= limit), most)
