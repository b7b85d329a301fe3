# V1's thresholds by rejection with a bound beside the average. On a broker that was quiet for a minute the average
# begins at 0 and lets three times the total pass for 25 seconds. Here total and topic have a token bucket each, which
# holds `burst_s` seconds of its threshold: a request is rejected if V1's rule says so, or if both buckets are used up.
# As in V1, a topic within its own threshold is never rejected, and one beyond it may use what others leave.
#
# The hot path counts on in `uncounted`: a topic's credit is what it may bring before its buckets (buckets.py) are
# looked at again.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from policies.thresholds.buckets import ThresholdBuckets
from policies.thresholds.claims import CLAIM_S, SLACK_DEBT_S, TopicBucket
from policies.thresholds.rejecting import ThresholdRejecter
from policies.verdict import MAX_THROTTLE_MS, ObservedRate, Verdict, used_up_burst

if TYPE_CHECKING:
    from policies.decision import ClientPatience
    from policies.meters.topic_meter import TopicMeter
    from policies.thresholds.broker_thresholds import BrokerThresholds

# topics that use up what the total has left look at it again when they have taken this part of it
GRANTS_PER_TOTAL: Final = 8


class BurstRejecter(ThresholdRejecter):
    """Rejects what is beyond the average, or the buckets, of one broker, which has a total threshold."""

    __slots__ = ("_burst_s", "_now", "_shown_at")
    buckets: ThresholdBuckets

    def __init__(self, thresholds: BrokerThresholds, burst_s: float, now: float) -> None:
        super().__init__(thresholds)
        self._burst_s = burst_s
        self._now = self._shown_at = now
        self.buckets = ThresholdBuckets(
            thresholds, "burst", burst_s, 2 * burst_s + SLACK_DEBT_S, now, shares_topics=True
        )

    @property
    def burst_s(self) -> float:
        """Seconds of a threshold that may pass at once."""
        return self._burst_s

    def judge_request(
        self, meter: TopicMeter, topic: bytes, size: int, patience: ClientPatience, now: float
    ) -> Verdict | None:
        self._now = now
        if self.is_over(meter):
            return super().judge_request(meter, topic, size, patience, now)
        owed_s, total = self._settle_total(now), self.buckets.total
        found = self.buckets.settle_topic(meter, owed_s, now)
        own = math.inf if found is None else found.bucket.token_level(now)
        left = total.token_level(now)
        if found is None or own > 0.0 or left > 0.0:
            self._grant_credit(meter, own, left)
            return None
        meter.set_thresholds_credit(0.0)
        limit, total_limit = self._thresholds.effective_threshold(meter), self._thresholds.total
        assert limit is not None
        assert total_limit is not None
        wait_s = min(found.bucket.debt_wait_s(now) + size / found.bucket.rate, owed_s + size / total.rate)
        self.buckets.mark_hungry(meter, wait_s, now)
        return used_up_burst(
            topic.decode(errors="replace"),
            self._thresholds.meters.node_id,
            min(max(math.ceil(1000 * wait_s), 1), MAX_THROTTLE_MS),
            ObservedRate(meter.fleet_rate, limit),
            ObservedRate(self._thresholds.meters.total.fleet_rate, total_limit),
            self._burst_s,
        )

    def is_limiting(self, meter: TopicMeter) -> bool:
        topic: TopicBucket | None = meter.topic_bucket
        return self.is_over(meter) or (topic is not None and topic.bucket.in_debt and self.buckets.total.in_debt)

    def add_topic(self, meter: TopicMeter) -> None:
        meter.counted_in_bucket = meter.uncounted
        self._grant_credit(meter, self.buckets.topic_level(meter, 0.0, self._now), 0.0)

    def apply_share(self, now: float) -> None:
        # Where thresholds have changed it is the engine's, of the last second: buckets would fill up for it twice.
        self._now = now = max(now, self._now)
        self._settle_total(now)
        self.buckets.apply_share(now)

    def pace_limits(self, now: float) -> None:
        """Let other workers see what was counted."""
        self._now = now
        owed_s = self._settle_total(now)
        self.buckets.measure_claims(owed_s, now)
        if now >= self._shown_at + CLAIM_S:
            self._shown_at = now
            self.buckets.settle_topics(owed_s, now)

    def close_tick(self, now: float) -> None:
        self._now = now
        self._settle_total(now)
        self.buckets.close_tick(now)

    def refresh_topics(self) -> None:
        super().refresh_topics()
        self.buckets.mark_outdated()
        now, buckets = self._now, self.buckets
        owed_s, left = self._settle_total(now), buckets.total.token_level(now)
        for meter in self._thresholds.meters.topics.values():
            if not self.is_over(meter):
                self._grant_credit(meter, buckets.topic_level(meter, owed_s, now), left)

    def release_topics(self) -> None:
        super().release_topics()
        self.buckets.release_topics()

    def _grant_credit(self, meter: TopicMeter, own: float, left: float) -> None:
        """The bytes that the topic may bring before it is looked at again, of this worker's part of the buckets: what
        its own holds, or its part of what is left in the total's.
        """
        credit = max(own, left / GRANTS_PER_TOTAL, 0.0) / self._thresholds.fleet.worker_count
        meter.set_thresholds_credit(credit)

    def _settle_total(self, now: float) -> float:
        """Bring the total's bucket up to date; the seconds that it owes. A part that is small for a while, as while
        control is lost, forgives nothing: it would be a burst more each time.
        """
        total, limiter = self.buckets.total, self.buckets.limiter
        owed_s = self.buckets.settle_total(now)
        if owed_s > self._burst_s:
            even = limiter.whole_rate / self._thresholds.fleet.gateways
            total.forgive_debt(self._burst_s * total.rate * max(1.0, even / limiter.gateway_rate))
        return min(owed_s, self._burst_s)
