# V1's thresholds by rejection with a bound beside the average. On a broker that was quiet for a minute the average
# begins at 0 and lets three times the total pass for 25 seconds. Here total and topic have a token bucket each, which
# holds `burst_s` seconds of its threshold: a request is rejected if V1's rule says so, or if both buckets are used up.
# As in V1, a topic within its own threshold is never rejected, and one beyond it may use what others leave.
#
# The hot path counts on in `uncounted`: `free_to` is what a topic may bring before its buckets are looked at again.
# What it brought until then is taken out of them afterwards, as if it had come evenly. In a fleet each worker has that
# part of a bucket that it has of the traffic, and an equal part of it where nothing is known yet.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from policies.limits.bucket import TokenBucket
from policies.meters.meter import FleetMeter
from policies.thresholds.rejecting import ThresholdRejecter
from policies.verdict import MAX_THROTTLE_MS, Verdict, used_up_burst

if TYPE_CHECKING:
    from policies.decision import ClientPatience
    from policies.meters.topic_meter import TopicMeter
    from policies.thresholds.broker_thresholds import BrokerThresholds

MIN_RATE: Final = 1.0  # bytes per second, in place of a threshold of 0: such a topic gets only what others leave
SLACK_DEBT_S: Final = 1.0  # the most that a topic may owe, beyond the total's debt, for having used what others left
# topics that use up what the total has left look at it again when they have taken this part of it
GRANTS_PER_TOTAL: Final = 8


class BurstRejecter(ThresholdRejecter):
    """The buckets of one broker, which has a total threshold. A topic without traffic has none: its own is full."""

    __slots__ = ("_buckets", "_burst_s", "_counted", "_now", "_since", "_total")

    def __init__(self, thresholds: BrokerThresholds, burst_s: float, now: float) -> None:
        super().__init__(thresholds)
        self._burst_s = burst_s
        self._now = self._since = now
        self._counted = thresholds.meters.total.uncounted
        self._buckets: dict[TopicMeter, TokenBucket] = {}
        assert thresholds.total is not None
        self._total = self._full_bucket(self._share_rate(thresholds.total, thresholds.meters.total))
        for meter in thresholds.meters.topics.values():
            meter.counted_in_bucket = meter.uncounted

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
        owed_s = self._settle_total(now)
        bucket = self._settle_topic(meter, owed_s, now)
        if bucket is None or bucket.token_level(now) > 0.0 or self._total.token_level(now) > 0.0:
            self._grant_credit(meter, bucket)
            return None
        meter.set_thresholds_ask(False, 0.0)
        limit, total_limit = self._thresholds.effective_threshold(meter), self._thresholds.total
        assert limit is not None
        assert total_limit is not None
        wait_s = min(bucket.debt_wait_s(now) + size / bucket.rate, owed_s + size / self._total.rate)
        return used_up_burst(
            topic.decode(errors="replace"),
            self._thresholds.meters.node_id,
            min(max(math.ceil(1000 * wait_s), 1), MAX_THROTTLE_MS),
            (meter.fleet_rate, limit),
            (self._thresholds.meters.total.fleet_rate, total_limit),
            self._burst_s,
        )

    def is_limiting(self, meter: TopicMeter) -> bool:
        bucket = self._buckets.get(meter)
        return self.is_over(meter) or (bucket is not None and bucket.in_debt and self._total.in_debt)

    def add_topic(self, meter: TopicMeter) -> None:
        meter.counted_in_bucket = meter.uncounted
        self._grant_credit(meter, None)

    def apply_share(self, now: float) -> None:
        self._now = now

    def close_tick(self, now: float) -> None:
        self._now = now
        owed_s = self._settle_total(now)
        self._counted = 0
        for meter in self._thresholds.meters.topics.values():
            if meter.uncounted != meter.counted_in_bucket or meter in self._buckets:
                bucket = self._settle_topic(meter, owed_s, now)
                if bucket is not None and bucket.is_full(now):
                    del self._buckets[meter]
            meter.counted_in_bucket = 0
        self._since = now

    def refresh_topics(self) -> None:
        super().refresh_topics()
        self._update_total_rate(self._now)
        topics = self._thresholds.meters.topics
        for meter in topics.values():
            if not self.is_over(meter):
                self._grant_credit(meter, self._buckets.get(meter))
        if len(self._buckets) > len(topics):  # some have left the broker
            there = set(topics.values())
            self._buckets = {meter: bucket for meter, bucket in self._buckets.items() if meter in there}

    def release_topics(self) -> None:
        super().release_topics()
        for meter in self._thresholds.meters.topics.values():
            meter.set_thresholds_ask(False)

    def _grant_credit(self, meter: TopicMeter, bucket: TokenBucket | None) -> None:
        """The bytes that the topic may bring before it is looked at again: what its own bucket holds, or its part of
        what the total's does.
        """
        limit = self._thresholds.effective_threshold(meter)
        if limit is None:
            meter.set_thresholds_ask(False)
            return
        own = self._burst_s * self._share_rate(limit, meter) if bucket is None else bucket.token_level(self._now)
        meter.set_thresholds_ask(False, max(own, self._total.token_level(self._now) / GRANTS_PER_TOTAL, 0.0))

    def _settle_total(self, now: float) -> float:
        """Bring the total's bucket up to date; the seconds that it owes."""
        total, counted = self._total, self._thresholds.meters.total.uncounted
        self._update_total_rate(now)
        total.consume_evenly(counted - self._counted, now)
        self._counted = counted
        total.forgive_debt(self._burst_s * total.rate)
        return total.debt_wait_s(now)

    def _update_total_rate(self, now: float) -> None:
        thresholds = self._thresholds
        assert thresholds.total is not None
        rate = self._share_rate(thresholds.total, thresholds.meters.total)
        if rate != self._total.rate:
            self._total.set_rate(rate, now)

    def _settle_topic(self, meter: TopicMeter, owed_s: float, now: float) -> TokenBucket | None:
        """Bring a topic's bucket up to date; None where nothing limits it. `owed_s`: by the total."""
        size = meter.uncounted - meter.counted_in_bucket
        meter.counted_in_bucket = meter.uncounted
        limit = self._thresholds.effective_threshold(meter)
        if limit is None:
            return None
        rate = self._share_rate(limit, meter)
        bucket = self._buckets.get(meter)
        if bucket is None:
            bucket = self._buckets[meter] = self._full_bucket(rate)
        elif rate != bucket.rate:
            bucket.set_rate(rate, now)
        bucket.consume_evenly(size, now)
        bucket.forgive_debt((owed_s + SLACK_DEBT_S) * rate)
        return bucket

    def _full_bucket(self, rate: float) -> TokenBucket:
        """As it was when the tick began, since the bytes to be taken out have come in since then."""
        bucket = TokenBucket(rate, self._burst_s, 2 * self._burst_s + SLACK_DEBT_S, self._since - self._burst_s)
        bucket.token_level(self._since)
        return bucket

    def _share_rate(self, limit: float, meter: FleetMeter) -> float:
        """Ours of a threshold."""
        return max(limit * self._thresholds.portion_of(meter), MIN_RATE)
