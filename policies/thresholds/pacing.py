# V1's thresholds by delay: the fluid form of "reject only when total rate AND topic rate are over". Each admitted byte
# is taken from the total's bucket and its topic's; a request waits for the shorter of the two debts. A topic within its
# own threshold never waits; one beyond it waits for the total only, so it may use what others leave; and since both
# buckets remember, the sum stays at the total, and each topic gets its threshold if it wants it. No EWMA decides here:
# between two of its ticks it would let everything through, and then nothing.
#
# The hot path asks `over` and adds to `uncounted`, as with rejections; here `thresholds_ask`, which is part of it,
# means: ask `judge` about every request, and tell `take` what passes. So steady demand is paced request by request.
# It is set where a limit may be reached before the next `pace`: for a topic that was quiet, as nobody knows how much
# comes, and where there is little credit left. `pace` moves into the buckets what was counted without asking.
#
# Strangers share both, so what one of them takes at once is forgiven beyond DEBT_S (line.py).
#
# In a fleet the total's bucket has our part of it, and a topic's our portion of its threshold. Knows no request and no
# clock.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from policies.fleet.keys import total_key
from policies.fleet.lines import HUNGER_S, USED_UP_S
from policies.limits.bucket import Bucket
from policies.limits.limit_use import LimitUse
from policies.limits.line import (
    AT_ONCE,
    BURST_S,
    CREDIT_S,
    DEBT_S,
    ENTER_S,
    LEAVE_S,
    MAX_DELAY_S,
    MAX_WAIT_S,
    MIN_WAIT_S,
    Admission,
    Answer,
    SoleClient,
)
from policies.thresholds.strategy import ThresholdStrategy
from policies.verdict import Verdict, used_up_threshold

if TYPE_CHECKING:
    from policies.decision import Patience
    from policies.fleet.lines import OurParts
    from policies.thresholds.broker_limits import BrokerLimits
    from policies.thresholds.topic_meter import TopicMeter

PACE_S: Final = 0.05  # how often `pace` is called: a topic not asked about can exceed its threshold for this long
SLACK_DEBT_S: Final = 1.0  # the most that a topic may owe, beyond the total's debt, for having used what others left
FREE_PART: Final = 0.05  # of what the total has saved, for a topic that has no rate yet
FLOOR: Final = 1.0  # bytes per second, in place of a threshold of 0: such a topic gets only what others leave


class Pacer(ThresholdStrategy):
    """The buckets of one broker, which has a total threshold: the total's, and one of each topic in use
    (`TopicMeter.bucket`).
    """

    __slots__ = ("_admission", "_asked", "_buckets", "_configured", "_fleet", "_free", "_hungry_until", "_limits",
                 "_seen", "_settled", "_since", "_topics", "_total", "_used", "bucket")  # fmt: skip
    delays = True

    def __init__(self, limits: BrokerLimits, fleet: OurParts) -> None:
        total = limits.own_total
        assert total is not None
        # Not the line's of storage (BrokerLimits.storage), which both are of the same total.
        self._configured = limits.configured_total or total
        self.bucket, self._buckets = fleet.bucket(
            f"{total_key(limits.meters.node_id)} delays", total, BURST_S, DEBT_S, limit=self._configured
        )
        self._limits = limits
        self._topics = limits.meters.topics
        self._total = limits.meters.total
        self._seen = self._total.uncounted  # of `total.uncounted`: what is in the bucket already
        self._since = math.inf  # what a topic without a bucket has not `seen` came in since then
        # Topics whose `over` is set and that are in use: whether `judge` was asked about them since the last `pace`.
        self._asked: dict[TopicMeter, bool] = {}
        self._admission = Admission()
        self._fleet = fleet
        self._free: dict[TopicMeter, float] = {}  # bytes that topics may take of the total before they have to ask
        self._used = -math.inf  # when something was taken
        self._settled = -math.inf  # until then our part of the total is provisional (fleet/lines.py)
        self._hungry_until = -math.inf  # a client waits for the total that long, or was turned away then
        for meter in self._topics.values():
            meter.seen = meter.uncounted
            meter.bucket = None
            meter.ask_thresholds(True)

    def join(self, meter: TopicMeter) -> None:
        meter.ask_thresholds(True)  # how much comes is unknown

    def retune(self, now: float) -> None:
        rate = self._limits.own_total  # the topics' are looked up whenever they are used
        assert rate is not None
        rate /= self._buckets
        configured = self._limits.configured_total or rate
        if rate != self.bucket.rate:
            owed_s = self.bucket.wait(now)
            self.bucket.set_rate(rate, now)
            # As any limit that is cut (fleet/lines.py).
            self.bucket.follow(self._configured, configured, max(owed_s, MAX_WAIT_S) * rate)
        self._configured = configured

    def pace(self, now: float) -> None:
        """Move the bytes counted since the last call into the buckets, and find the topics that have to ask.

        While the total has credit, only topics that were asked about cost anything; else each topic costs a comparison,
        and those that had traffic an update.
        """
        owed = self._settle_total(now)
        total = self.bucket
        if total.level(now) < ENTER_S * total.rate:
            for meter in self._topics.values():
                if meter.uncounted != meter.seen:
                    bucket = self._settle(meter, owed, now)
                    if bucket is None or meter.thresholds_ask:
                        continue
                    if bucket.level(now) < ENTER_S * bucket.rate:
                        meter.ask_thresholds(True)
                        self._asked[meter] = True
        if self._asked:
            self._leave(owed, now)

    def judge(self, meter: TopicMeter, topic: bytes, size: int, patience: Patience, now: float) -> Verdict | None:
        answer = self._ask(meter, size, patience, now)
        if answer is AT_ONCE:
            return None
        limit, total_limit = meter.threshold, self._limits.total
        assert limit is not None, "a topic without a threshold never waits"
        assert total_limit is not None
        return used_up_threshold(
            topic.decode(errors="replace"),
            self._limits.meters.node_id,
            answer.throttle_ms,
            (meter.fleet_rate, limit),
            (self._total.fleet_rate, total_limit),
            answer.outcome,
            self._limits.effect.note,
            answer.room_in,
        )

    def take(self, meter: TopicMeter, size: int, now: float) -> None:
        bucket = meter.bucket
        if meter.threshold is None or bucket is None:  # for `pace` to take from the total
            return
        self.spare(meter, size)
        owed = self.bucket.take(size, now)
        bucket.take(size, now)
        bucket.forgive((owed + SLACK_DEBT_S) * bucket.rate)
        self._note_use(now)

    def spare(self, meter: TopicMeter, size: int) -> None:
        meter.seen += size
        self._seen += size

    def credit(self, meter: TopicMeter, client: object, now: float) -> float:
        bucket, _ = self._look(meter, client, now)
        if bucket is None:
            return math.inf
        total = self.bucket  # the shorter of the two debts decides
        return max(total.level(now) + CREDIT_S * total.rate, bucket.level(now) + CREDIT_S * bucket.rate)

    def _look(self, meter: TopicMeter, client: object, now: float) -> tuple[Bucket | None, bool]:
        """Bring the total's bucket and the topic's up to date, about which that client asks; the topic's, None where
        nothing limits it, and whether nobody else asks about it.
        """
        bucket = self._settle(meter, self._settle_total(now), now)
        self._asked[meter] = True
        self._free.pop(meter, None)
        if bucket is None:
            return None, False
        meter.sole_client = meter.sole_client or SoleClient()
        return bucket, meter.sole_client.is_alone(client, now)

    def _ask(self, meter: TopicMeter, size: int, patience: Patience, now: float) -> Answer:
        # Clients of other topics wait for the total beyond their own only.
        bucket, waits_for_itself = self._look(meter, patience.client, now)
        if bucket is None:
            return AT_ONCE
        total, total_wait, topic_wait = self.bucket, self.bucket.wait(now), bucket.wait(now)
        ahead = min(total_wait, topic_wait)
        after = min(total_wait + size / total.rate, topic_wait + size / bucket.rate)
        refusal = self._admission.turn_away(ahead, after, patience.may_delay, patience.denied_s)
        owed = ahead + total.beyond / total.rate
        if refusal is not None and (patience.may_delay or not waits_for_itself or owed > DEBT_S):
            self._want(refusal.wait, now)
            longest = self._longest_wait(now)
            return refusal._replace(wait=min(refusal.wait, longest), room_in=min(refusal.room_in, longest))
        wait = min(total.wait_after(size, now), bucket.wait_after(size, now))
        if wait < MIN_WAIT_S:
            return AT_ONCE
        self._want(wait, now)
        return Answer(True, min(wait, self._longest_wait(now)))

    def is_hungry(self, now: float) -> bool:
        return now < self._hungry_until

    def _want(self, wait: float, now: float) -> None:
        if self.bucket.level(now) < USED_UP_S * self.bucket.rate:  # else it is large, and waits for itself
            wait = min(wait, self._longest_wait(now), MAX_DELAY_S)
            self._hungry_until = max(self._hungry_until, now + wait + HUNGER_S)

    def close_tick(self, now: float) -> None:
        owed = self._settle_total(now)
        self._seen = 0
        for meter in self._topics.values():
            if meter.uncounted != meter.seen:
                self._settle(meter, owed, now)
            if not (meter.uncounted or meter.thresholds_ask):
                meter.ask_thresholds(True)  # quiet for a whole tick: how much comes next is unknown
                self._free.pop(meter, None)
            meter.seen = 0
        self._since = now

    def release(self) -> None:
        for meter in self._topics.values():
            meter.ask_thresholds(False)
        self._asked = {}
        self._free = {}

    def is_limiting(self, meter: TopicMeter) -> bool:
        bucket = meter.bucket
        return meter.thresholds_ask and bucket is not None and bucket.in_debt and self.bucket.in_debt

    def topic_use(self, meter: TopicMeter, now: float) -> LimitUse | None:
        bucket = meter.bucket
        return None if bucket is None else _use(bucket.rate, meter.rate, bucket.wait(now))

    def total_use(self, now: float) -> LimitUse | None:
        waits = self.is_hungry(now)
        return _use(self.bucket.rate * self._buckets, self._total.rate, self.bucket.wait(now), waits=waits)

    def _settle_total(self, now: float) -> float:
        """Bring the total's bucket up to date; the seconds that it owes."""
        self._since = min(self._since, now)  # the first call
        counted = self._total.uncounted
        if counted != self._seen:
            self._note_use(now)
        self.bucket.absorb(counted - self._seen, now)
        self._seen = counted
        return self.bucket.wait(now)

    def _note_use(self, now: float) -> None:
        settle_s = self._fleet.settle_s
        if now - self._used > settle_s:
            self._settled = now + settle_s
        self._used = now

    def _longest_wait(self, now: float) -> float:
        settle_s = self._fleet.settle_s
        return settle_s if now < self._settled or now - self._used > settle_s > 0.0 else math.inf

    def _settle(self, meter: TopicMeter, owed: float, now: float) -> Bucket | None:
        """Bring a topic's bucket up to date; None where nothing limits it. `owed`: the total's debt in seconds."""
        counted = meter.uncounted
        size = counted - meter.seen
        meter.seen = counted
        limit = meter.threshold
        if limit is None:
            return None
        if self._fleet.processes > 1:
            limit *= self._limits.portion_of(meter)
        rate = limit if limit > FLOOR else FLOOR
        bucket = meter.bucket
        if bucket is None:
            bucket = meter.bucket = Bucket(rate, BURST_S, DEBT_S + SLACK_DEBT_S, self._since)
        elif bucket.rate != rate:
            bucket.set_rate(rate, now)
        bucket.absorb(size, now)
        # It waits for the total while that owes less. Owing still more would be a punishment for using slack.
        bucket.forgive((owed + SLACK_DEBT_S) * rate)
        return bucket

    def _leave(self, owed: float, now: float) -> None:
        """Ask no more about topics that have credit and are in use. Those that aren't may come back with any amount."""
        level = self.bucket.level(now)
        has_credit = level >= LEAVE_S * self.bucket.rate
        left = level / self._fleet.workers - sum(self._free.values())  # they may all take theirs before the next look
        for meter, recently in list(self._asked.items()):
            bucket = None if has_credit else self._settle(meter, owed, now)
            if has_credit or bucket is None or bucket.level(now) >= LEAVE_S * bucket.rate:
                if meter.threshold is None:
                    own = math.inf
                elif bucket is not None:
                    own = bucket.level(now)
                else:  # a second of its own rate, or a little of what is left
                    own = max(0.0, min(left, max(meter.rate, FREE_PART * level)))
                    left -= own
                    if recently:
                        self._free[meter] = own
                meter.ask_thresholds(not recently, own)
                del self._asked[meter]
            else:
                self._asked[meter] = False


def _use(limit: float, rate: float, wait_s: float, *, waits: bool = False) -> LimitUse:
    """A bucket that is in debt is used up, whatever its one-minute rate."""
    is_used_up = waits or wait_s > 0.0
    return LimitUse(limit if is_used_up else min(rate, limit), limit, is_used_up, wait_s)
