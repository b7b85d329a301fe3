# V1's thresholds by delay: the fluid form of "reject only when total rate AND topic rate are over". Each admitted byte
# is taken from the total's bucket and its topic's; a request waits for the shorter of the two debts. A topic within its
# own threshold never waits; one beyond it waits for the total only, so it may use what others leave; and since both
# buckets remember, the sum stays at the total, and each topic gets its threshold if it wants it. No EWMA decides here:
# between two of its ticks it would let everything through, and then nothing.
#
# The hot path adds to `uncounted` up to `ask_at`, as with rejections. While a topic asks, `judge_request` is asked
# about every request and `charge_request` is told what passes: so steady demand is paced request by request. A topic
# asks where a limit may be reached before the next `pace_limits`: one that was quiet, as nobody knows how much comes,
# and one with little credit left. `pace_limits` takes from the buckets what was counted unasked.
#
# Strangers share both, so what one of them takes at once is forgiven beyond DEBT_S (limiter.py).
#
# Knows no request and no clock.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from policies.limits.limit_use import LimitUse
from policies.limits.limiter import (
    ASK_BELOW_S,
    ASK_UNTIL_S,
    AT_ONCE,
    BURST_S,
    CREDIT_S,
    DEBT_S,
    MIN_WAIT_S,
    AdmissionResult,
    QueueAdmission,
)
from policies.meters.topic_meter import ALWAYS_ASK
from policies.thresholds.buckets import ThresholdBuckets
from policies.thresholds.claims import SLACK_DEBT_S, TopicBucket
from policies.thresholds.strategy import ThresholdStrategy
from policies.verdict import ObservedRate, Verdict, used_up_threshold

if TYPE_CHECKING:
    from policies.decision import ClientPatience
    from policies.limits.bucket import TokenBucket
    from policies.meters.topic_meter import TopicMeter
    from policies.thresholds.broker_thresholds import BrokerThresholds

PACE_S: Final = 0.05  # between calls of `pace_limits`: a topic not asked about can exceed its threshold so long
FREE_PART: Final = 0.05  # of what the total has saved, for a topic that has no rate yet


class ThresholdPacer(ThresholdStrategy):
    """Makes requests wait for the buckets of one broker, which has a total threshold."""

    __slots__ = ("_admission", "_asking", "_fleet", "_free", "_thresholds", "_topics", "_total", "bucket")
    delays_requests = True
    buckets: ThresholdBuckets

    def __init__(self, thresholds: BrokerThresholds) -> None:
        self.buckets = ThresholdBuckets(thresholds, "delays", BURST_S, DEBT_S + SLACK_DEBT_S)
        self.bucket = self.buckets.total
        self._fleet = thresholds.fleet
        self._thresholds = thresholds
        self._topics = thresholds.meters.topics
        self._total = thresholds.meters.total
        # Topics in use that have to ask: whether one of their requests was judged since the last `pace_limits`.
        self._asking: dict[TopicMeter, bool] = {}
        self._admission = QueueAdmission()
        self._free: dict[TopicMeter, float] = {}  # bytes that topics may take of the total before they have to ask
        for meter in self._topics.values():
            meter.set_thresholds_credit(ALWAYS_ASK)

    def add_topic(self, meter: TopicMeter) -> None:
        meter.set_thresholds_credit(ALWAYS_ASK)  # how much comes is unknown

    def apply_share(self, now: float) -> None:
        self.buckets.apply_share(now)

    def pace_limits(self, now: float) -> None:
        """Move the bytes counted since the last call into the buckets, and find the topics that have to ask.

        While the total has credit, only topics that were asked about cost anything; else each topic costs a comparison,
        and those that had traffic an update.
        """
        buckets = self.buckets
        owed = buckets.settle_total(now)
        buckets.measure_claims(owed, now)
        total = self.bucket
        if total.token_level(now) < ASK_BELOW_S * total.rate:
            for meter in self._topics.values():
                if meter.uncounted != meter.counted_in_bucket:
                    topic = buckets.settle_topic(meter, owed, now)
                    if topic is None or meter.thresholds_ask:
                        continue
                    if topic.bucket.token_level(now) < ASK_BELOW_S * topic.bucket.rate:
                        meter.set_thresholds_credit(ALWAYS_ASK)
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
            ObservedRate(meter.fleet_rate, limit),
            ObservedRate(self._total.fleet_rate, total_limit),
            answer.outcome,
            self._thresholds.effect.note,
            answer.room_in_s,
        )

    def charge_request(self, meter: TopicMeter, size: int, now: float) -> None:
        self.buckets.charge_request(meter, size, now)

    def record_only(self, meter: TopicMeter, size: int) -> None:
        self.buckets.skip_bytes(meter, size)

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
        topic = self.buckets.settle_topic(meter, self.buckets.settle_total(now), now)
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
            longest = self.buckets.mark_hungry(meter, refusal.wait_s, now)
            return refusal._replace(wait_s=min(refusal.wait_s, longest), room_in_s=min(refusal.room_in_s, longest))
        wait = min(total.debt_wait_after(size, now), bucket.debt_wait_after(size, now))
        if wait < MIN_WAIT_S:
            return AT_ONCE
        return AdmissionResult(True, min(wait, self.buckets.mark_hungry(meter, wait, now)))

    def refresh_topics(self) -> None:
        self.buckets.mark_outdated()

    def close_tick(self, now: float) -> None:
        self.buckets.close_tick(now)
        topics = self._topics
        self._free = {meter: free for meter, free in self._free.items() if topics.get(meter.name) is meter}
        for meter in topics.values():
            if not (meter.uncounted or meter.thresholds_ask):
                meter.set_thresholds_credit(ALWAYS_ASK)  # quiet for a whole tick: how much comes next is unknown
                self._free.pop(meter, None)

    def release_topics(self) -> None:
        self.buckets.release_topics()

    def is_limiting(self, meter: TopicMeter) -> bool:
        topic: TopicBucket | None = meter.topic_bucket
        return meter.thresholds_ask and topic is not None and topic.bucket.in_debt and self.bucket.in_debt

    def topic_use(self, meter: TopicMeter, now: float) -> LimitUse | None:
        topic: TopicBucket | None = meter.topic_bucket
        if topic is None:
            return None
        return _bucket_use(topic.bucket.rate, meter.rate, topic.bucket.debt_wait_s(now))

    def total_use(self, now: float) -> LimitUse | None:
        limit, waits = self.buckets.limiter.gateway_rate, self.buckets.is_hungry(now)
        return _bucket_use(limit, self._total.rate, self.bucket.debt_wait_s(now), waits=waits)

    def _release_credited(self, owed: float, now: float) -> None:
        """Ask no more about topics that have credit and are in use. Those that aren't may come back with any amount."""
        level = self.bucket.token_level(now)
        has_credit = level >= ASK_UNTIL_S * self.bucket.rate
        left = level / self._fleet.worker_count - sum(
            self._free.values()
        )  # they may all take theirs before the next look
        for meter, recently in list(self._asking.items()):
            topic = None if has_credit else self.buckets.settle_topic(meter, owed, now)
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
                meter.set_thresholds_credit(own if recently else ALWAYS_ASK)
                del self._asking[meter]
            else:
                self._asking[meter] = False


def _bucket_use(limit: float, rate: float, wait_s: float, *, waits: bool = False) -> LimitUse:
    """A bucket that is in debt is used up, whatever its one-minute rate."""
    is_used_up = waits or wait_s > 0.0
    return LimitUse(limit if is_used_up else min(rate, limit), limit, is_used_up, wait_s)
