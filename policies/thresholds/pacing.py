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
# In a fleet the total's bucket has our part of it, and a topic's our portion of its threshold, cut where all portions
# are more than the part (claims.py). Knows no request and no clock.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from policies.fleet.fleet_limiter import FleetLimiter
from policies.fleet.keys import total_key
from policies.limits.bucket import TokenBucket
from policies.limits.limit_use import LimitUse
from policies.limits.limiter import (
    ASK_BELOW_S,
    ASK_UNTIL_S,
    AT_ONCE,
    BURST_S,
    CREDIT_S,
    DEBT_S,
    MAX_DELAY_S,
    MIN_WAIT_S,
    AdmissionResult,
    QueueAdmission,
)
from policies.meters.meter import TICK_S
from policies.thresholds.claims import CLAIM_S, SLACK_DEBT_S, PacedTopic, TopicClaims
from policies.thresholds.strategy import ThresholdStrategy
from policies.verdict import Verdict, used_up_threshold

if TYPE_CHECKING:
    from policies.decision import ClientPatience
    from policies.meters.topic_meter import TopicMeter
    from policies.thresholds.broker_thresholds import BrokerThresholds

PACE_S: Final = 0.05  # how often `pace` is called: a topic not asked about can exceed its threshold for this long
FREE_PART: Final = 0.05  # of what the total has saved, for a topic that has no rate yet
MIN_RATE: Final = 1.0  # bytes per second, in place of a threshold of 0: such a topic gets only what others leave


class ThresholdPacer(ThresholdStrategy):
    """The buckets of one broker, which has a total threshold: the total's, and one of each topic in use, which its
    meter holds for it (`TopicMeter.paced_topic`).
    """

    __slots__ = (
        "_admission",
        "_asking",
        "_claims",
        "_counted",
        "_fleet",
        "_free",
        "_limiter",
        "_since",
        "_thresholds",
        "_topics",
        "_total",
        "bucket",
    )  # fmt: skip
    delays_requests = True

    def __init__(self, thresholds: BrokerThresholds) -> None:
        configured, key = thresholds.configured_total, total_key(thresholds.meters.node_id)
        assert configured is not None
        # Its bucket is not that of storage (BrokerLimits.storage_throttle), though both are of the same total.
        self._limiter = FleetLimiter(
            thresholds.fleet, key, configured, thresholds.effect.factor, math.inf, name=f"{key} delays", burst_s=BURST_S
        )
        self.bucket = self._limiter.bucket
        self._fleet = thresholds.fleet
        self._thresholds = thresholds
        self._topics = thresholds.meters.topics
        self._total = thresholds.meters.total
        self._counted = self._total.uncounted  # of `total.uncounted`: what is in the bucket already
        self._since = math.inf  # what a topic without a bucket has not `seen` came in since then
        # Topics whose `over` is set and that are in use: whether `judge` was asked about them since the last `pace`.
        self._asking: dict[TopicMeter, bool] = {}
        self._admission = QueueAdmission()
        self._free: dict[TopicMeter, float] = {}  # bytes that topics may take of the total before they have to ask
        self._claims = TopicClaims()
        for meter in self._topics.values():
            meter.counted_in_bucket = meter.uncounted
            meter.paced_topic = None
            meter.set_thresholds_ask(True)

    def add_topic(self, meter: TopicMeter) -> None:
        meter.set_thresholds_ask(True)  # how much comes is unknown

    def apply_share(self, now: float) -> None:
        configured, factor = self._thresholds.configured_total, self._thresholds.effect.factor
        assert configured is not None  # the topics' are looked up whenever they are used
        if (configured, factor) != (self._limiter.limit, self._limiter.factor) or self._limiter.is_outdated:
            self._limiter.set_limit(configured, factor, now)
            self._fit_portions(now)

    def pace_limits(self, now: float) -> None:
        """Move the bytes counted since the last call into the buckets, and find the topics that have to ask.

        While the total has credit, only topics that were asked about cost anything; else each topic costs a comparison,
        and those that had traffic an update.
        """
        owed = self._settle_total(now)
        total = self.bucket
        claims = self._claims
        if self._fleet.processes > 1 and now > claims.measured_at + (0.0 if claims.is_outdated else CLAIM_S):
            self._measure_claims(owed, now)
        if total.token_level(now) < ASK_BELOW_S * total.rate:
            for meter in self._topics.values():
                if meter.uncounted != meter.counted_in_bucket:
                    topic = self._settle_topic(meter, owed, now)
                    if topic is None or meter.thresholds_ask:
                        continue
                    if topic.bucket.token_level(now) < ASK_BELOW_S * topic.bucket.rate:
                        meter.set_thresholds_ask(True)
                        self._asking[meter] = True
        if self._asking:
            self._release_credited(owed, now)

    def judge_request(
        self, meter: TopicMeter, topic: bytes, size: int, patience: ClientPatience, now: float
    ) -> Verdict | None:
        answer = self._check_admission(meter, size, patience, now)
        if answer is AT_ONCE:
            return None
        limit, total_limit = self._thresholds.effective_threshold(meter), self._thresholds.total
        assert limit is not None, "a topic without a threshold never waits"
        assert total_limit is not None
        return used_up_threshold(
            topic.decode(errors="replace"),
            self._thresholds.meters.node_id,
            answer.throttle_ms,
            (meter.fleet_rate, limit),
            (self._total.fleet_rate, total_limit),
            answer.outcome,
            self._thresholds.effect.note,
            answer.room_in_s,
        )

    def charge_request(self, meter: TopicMeter, size: int, now: float) -> None:
        topic = meter.paced_topic
        if self._thresholds.effective_threshold(meter) is None or not isinstance(topic, PacedTopic):
            return  # it is for `pace_limits` to take from the total
        bucket = topic.bucket
        self.record_only(meter, size)
        owed = self.bucket.consume_tokens(size, now)
        bucket.consume_tokens(size, now)
        bucket.forgive_debt((owed + SLACK_DEBT_S) * bucket.rate)
        self._limiter.record_use(size, now)

    def record_only(self, meter: TopicMeter, size: int) -> None:
        meter.counted_in_bucket += size
        self._counted += size

    def available_credit(self, meter: TopicMeter, client: object, now: float) -> float:
        bucket, _ = self._update_buckets(meter, client, now)
        if bucket is None:
            return math.inf
        total = self.bucket  # the shorter of the two debts decides
        return max(total.token_level(now) + CREDIT_S * total.rate, bucket.token_level(now) + CREDIT_S * bucket.rate)

    def _update_buckets(self, meter: TopicMeter, client: object, now: float) -> tuple[TokenBucket | None, bool]:
        """Bring the total's bucket and the topic's up to date, about which that client asks; the topic's, None where
        nothing limits it, and whether nobody else asks about it.
        """
        topic = self._settle_topic(meter, self._settle_total(now), now)
        self._asking[meter] = True
        self._free.pop(meter, None)
        if topic is None:
            return None, False
        return topic.bucket, topic.sole_client.is_alone(client, now)

    def _check_admission(self, meter: TopicMeter, size: int, patience: ClientPatience, now: float) -> AdmissionResult:
        # Clients of other topics wait for the total beyond their own only.
        bucket, waits_for_itself = self._update_buckets(meter, patience.client, now)
        if bucket is None:
            return AT_ONCE
        total, total_wait, topic_wait = self.bucket, self.bucket.debt_wait_s(now), bucket.debt_wait_s(now)
        ahead = min(total_wait, topic_wait)
        after = min(total_wait + size / total.rate, topic_wait + size / bucket.rate)
        refusal = self._admission.find_refusal(ahead, after, patience.may_delay, patience.denied_s)
        owed = ahead + total.excess_debt / total.rate
        if refusal is not None and (patience.may_delay or not waits_for_itself or owed > DEBT_S):
            self._mark_hungry(meter, refusal.wait_s, now)
            longest = self._limiter.max_wait_s(now)
            return refusal._replace(wait_s=min(refusal.wait_s, longest), room_in_s=min(refusal.room_in_s, longest))
        wait = min(total.debt_wait_after(size, now), bucket.debt_wait_after(size, now))
        if wait < MIN_WAIT_S:
            return AT_ONCE
        self._mark_hungry(meter, wait, now)
        return AdmissionResult(True, min(wait, self._limiter.max_wait_s(now)))

    def is_hungry(self, now: float) -> bool:
        return now < self._limiter.hungry_until

    def _mark_hungry(self, meter: TopicMeter, wait: float, now: float) -> None:
        wait = min(wait, self._limiter.max_wait_s(now), MAX_DELAY_S)
        if isinstance(meter.paced_topic, PacedTopic):
            meter.paced_topic.mark_waiting(wait, now)
        if self._limiter.is_used_up(now):
            self._limiter.mark_hungry(wait, now)

    @property
    def claimed_rate(self) -> float:
        return self._claims.rate if self._fleet.gateways > 1 else 0.0

    def refresh_topics(self) -> None:
        self._claims.is_outdated = True

    def close_tick(self, now: float) -> None:
        owed = self._settle_total(now)
        self._counted = 0
        for meter in self._topics.values():
            if meter.uncounted != meter.counted_in_bucket:
                self._settle_topic(meter, owed, now)
            if isinstance(meter.paced_topic, PacedTopic):
                meter.paced_topic.close_tick(meter.uncounted)
            if not (meter.uncounted or meter.thresholds_ask):
                meter.set_thresholds_ask(True)  # quiet for a whole tick: how much comes next is unknown
                self._free.pop(meter, None)
            meter.counted_in_bucket = 0
        self._since = now

    def release_topics(self) -> None:
        for meter in self._topics.values():
            meter.set_thresholds_ask(False)
        self._asking = {}
        self._free = {}

    def is_limiting(self, meter: TopicMeter) -> bool:
        topic = meter.paced_topic
        return meter.thresholds_ask and isinstance(topic, PacedTopic) and topic.bucket.in_debt and self.bucket.in_debt

    def topic_use(self, meter: TopicMeter, now: float) -> LimitUse | None:
        topic = meter.paced_topic
        if not isinstance(topic, PacedTopic):
            return None
        return _bucket_use(topic.bucket.rate, meter.rate, topic.bucket.debt_wait_s(now))

    def total_use(self, now: float) -> LimitUse | None:
        waits = self.is_hungry(now)
        return _bucket_use(self._limiter.gateway_rate, self._total.rate, self.bucket.debt_wait_s(now), waits=waits)

    def _settle_total(self, now: float) -> float:
        """Bring the total's bucket up to date; the seconds that it owes."""
        self._since = min(self._since, now)  # the first call
        counted = self._total.uncounted
        if counted != self._counted:
            self._limiter.record_use(counted - self._counted, now)
        self.bucket.consume_evenly(counted - self._counted, now)
        self._counted = counted
        return self.bucket.debt_wait_s(now)

    def _settle_topic(self, meter: TopicMeter, owed: float, now: float) -> PacedTopic | None:
        """Bring a topic's bucket up to date; None where nothing limits it. `owed`: the total's debt in seconds."""
        counted = meter.uncounted
        size = counted - meter.counted_in_bucket
        meter.counted_in_bucket = counted
        limit = self._thresholds.effective_threshold(meter)
        if limit is None:
            return None
        if self._fleet.processes > 1:
            limit *= self._thresholds.portion_of(meter) * self._claims.fit
        rate = limit if limit > MIN_RATE else MIN_RATE
        topic = meter.paced_topic
        if not isinstance(topic, PacedTopic):
            topic = meter.paced_topic = PacedTopic(rate, self._since)
        bucket = topic.bucket
        if bucket.rate != rate:
            bucket.set_rate(rate, now)
        bucket.consume_evenly(size, now)
        # It waits for the total while that owes less. Owing still more would be a punishment for using slack.
        bucket.forgive_debt((owed + SLACK_DEBT_S) * rate)
        return topic

    def _measure_claims(self, owed: float, now: float) -> None:
        """Add up what topics claim of the total."""
        claims = self._claims
        elapsed, claims.measured_at, claims.is_outdated = min(now - claims.measured_at, TICK_S), now, False
        content = hungry = portions = 0.0
        for meter in self._topics.values():
            topic = meter.paced_topic
            if not isinstance(topic, PacedTopic):
                topic = self._settle_topic(meter, owed, now) if meter.uncounted else None
                if topic is None:
                    continue
            use = topic.measure_use(meter.uncounted, elapsed)
            if use < MIN_RATE and not topic.bucket.in_debt:
                continue
            limit = self._thresholds.effective_threshold(meter)
            if limit is None:
                continue
            portion = limit * self._thresholds.portion_of(meter)
            portions += portion
            if topic.is_hungry(now):
                hungry += portion
            else:
                content += min(use, portion)
        claims.content, claims.hungry, claims.portions = content, hungry, portions
        self._fit_portions(now)

    def _fit_portions(self, now: float) -> None:
        """Cut topics' portions to this gateway's part of the total, of which its workers have a slice each."""
        claims, name, part = self._claims, f"{self._limiter.key} claims", self._limiter.gateway_rate
        mine = self._fleet.update_slice(name, part, claims.content, claims.hungry, wants=True, now=now)
        claims.fit_part(math.inf if self._thresholds.is_overcommitted else mine)

    def _release_credited(self, owed: float, now: float) -> None:
        """Ask no more about topics that have credit and are in use. Those that aren't may come back with any amount."""
        level = self.bucket.token_level(now)
        has_credit = level >= ASK_UNTIL_S * self.bucket.rate
        left = level / self._fleet.worker_count - sum(
            self._free.values()
        )  # they may all take theirs before the next look
        for meter, recently in list(self._asking.items()):
            topic = None if has_credit else self._settle_topic(meter, owed, now)
            bucket = None if topic is None else topic.bucket
            if has_credit or bucket is None or bucket.token_level(now) >= ASK_UNTIL_S * bucket.rate:
                if self._thresholds.effective_threshold(meter) is None:
                    own = math.inf
                elif bucket is not None:
                    own = bucket.token_level(now)
                else:  # a second of its own rate, or a little of what is left
                    own = max(0.0, min(left, max(meter.rate, FREE_PART * level)))
                    left -= own
                    if recently:
                        self._free[meter] = own
                meter.set_thresholds_ask(not recently, own)
                del self._asking[meter]
            else:
                self._asking[meter] = False


def _bucket_use(limit: float, rate: float, wait_s: float, *, waits: bool = False) -> LimitUse:
    """A bucket that is in debt is used up, whatever its one-minute rate."""
    is_used_up = waits or wait_s > 0.0
    return LimitUse(limit if is_used_up else min(rate, limit), limit, is_used_up, wait_s)
