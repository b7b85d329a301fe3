# The token buckets of one broker's thresholds: the total's, and one of each topic in use. Thresholds that delay
# (pacing.py) and thresholds that reject with a burst (bursting.py) go by them: a request is beyond its threshold where
# both owe.
#
# The hot path counts on in `uncounted`; what it counted is taken out of the buckets at the next look, as if it had come
# evenly since the last one.
#
# All workers of a gateway share the total's bucket. In a fleet it has our share of the total, and a topic's bucket our
# portion of its threshold, cut where all portions are more than the share (claims.py). Workers share topics' buckets
# too where a threshold rejects: a topic that moves to another worker is then within it as before. Where it delays, each
# has its own: a look at all of them every 50 ms would cost eight times as much.
#
# Knows no request and no clock.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from policies.fleet.fleet_limiter import FleetLimiter
from policies.fleet.keys import total_key
from policies.limits.bucket import UNSTARTED, TokenBucket
from policies.limits.limiter import MAX_DELAY_S
from policies.meters.meter import TICK_S
from policies.meters.topic_meter import NEVER_ASK
from policies.thresholds.claims import CLAIM_S, SLACK_DEBT_S, TopicBucket, TopicClaims

if TYPE_CHECKING:
    from policies.meters.topic_meter import TopicMeter
    from policies.thresholds.broker_thresholds import BrokerThresholds

MIN_RATE: Final = 1.0  # bytes per second, in place of a threshold of 0: such a topic gets only what others leave
FIT_CHANGE: Final = 0.1  # of the cut of portions, from which on topics without traffic have to know of it


class ThresholdBuckets:
    """The buckets of a broker that has a total threshold. `TopicMeter.topic_bucket` holds a topic's.

    Attributes:
        limiter: of the total. `total`: its bucket.
    """

    __slots__ = (
        "_burst_s",
        "_claims",
        "_counted_in_total",
        "_counted_until",
        "_debt_s",
        "_fleet",
        "_known_fit",
        "_name",
        "_saved_s",
        "_shares_topics",
        "_thresholds",
        "limiter",
        "total",
    )  # fmt: skip

    def __init__(
        self,
        thresholds: BrokerThresholds,
        name: str,
        burst_s: float,
        topic_debt_s: float,
        full_at: float | None = None,
        *,
        shares_topics: bool = False,
    ) -> None:
        """`name`: of the total's bucket, which isn't that of storage (BrokerLimits.storage_throttle), though both are
        of the same total. `burst_s`: the seconds that a bucket may save, and `topic_debt_s` that a topic's may owe.
        `full_at`: when buckets are full; None: they are empty at their first use. `shares_topics`: this gateway's
        workers share the topics' buckets, and a worker that is started again goes on with all of them.
        """
        configured, key = thresholds.configured_total, total_key(thresholds.meters.node_id)
        assert configured is not None
        self._name = f"{key} {name}"
        self._burst_s = burst_s
        self._saved_s = 0.0 if full_at is None else burst_s  # in a bucket that comes into use
        self._debt_s = topic_debt_s
        self._counted_until = UNSTARTED if full_at is None else full_at  # bytes not in a topic's bucket came since then
        self._shares_topics = shares_topics
        self._fleet = fleet = thresholds.fleet
        self.limiter = FleetLimiter(
            fleet, key, configured, thresholds.effect.factor, self._counted_until - self._saved_s,
            bucket_name=self._name, burst_s=burst_s, lasts=shares_topics,
        )  # fmt: skip
        self.total = self.limiter.bucket
        self._thresholds = thresholds
        self._counted_in_total = thresholds.meters.total.uncounted
        self._claims = TopicClaims()
        self._known_fit = 1.0  # the cut by which topics save that have no traffic
        for meter in thresholds.meters.topics.values():
            meter.counted_in_bucket = meter.uncounted
            meter.topic_bucket = None

    # --- what is there, and what was counted --------------------------------------------------------------------------

    def settle_total(self, now: float) -> float:
        """Bring the total's bucket up to date; the seconds that it owes."""
        self._counted_until = min(self._counted_until, now)  # the first call
        size = self._thresholds.meters.total.uncounted - self._counted_in_total
        self.limiter.spent += size
        self.total.consume_evenly(size, now)
        self._counted_in_total += size
        return self.total.debt_wait_s(now)

    def settle_topic(self, meter: TopicMeter, owed_s: float, now: float) -> TopicBucket | None:
        """Bring a topic's bucket up to date; None where nothing limits it. `owed_s`: the total's debt."""
        counted = meter.uncounted
        size = counted - meter.counted_in_bucket
        meter.counted_in_bucket = counted
        limit = self._thresholds.effective_threshold(meter)
        if limit is None:
            return None
        part, fit, owners = 1.0, 1.0, self._owners
        if owners > 1:
            part = self._thresholds.portion_of(meter, owners, with_near=self._shares_topics)
            fit = self._claims.fit
        rate, portion = limit * (part * fit), limit * part
        topic: TopicBucket | None = meter.topic_bucket
        if topic is None:
            topic = meter.topic_bucket = self._make_bucket(meter, portion, rate)
        bucket, rate, burst_s = topic.bucket, rate / topic.count, self._burst_s
        rate = rate if rate > MIN_RATE else MIN_RATE
        if bucket.rate != rate:
            if self._saved_s and rate > MIN_RATE:
                burst_s /= fit  # what was saved is kept
            bucket.set_rate(rate, now, burst_s)
        bucket.consume_evenly(size, now)
        if self._saved_s:
            rate = max(rate, portion / topic.count)  # a cut ends again; it may be one to nothing
        # It waits for the total while that owes less. Owing still more would be a punishment for using slack.
        bucket.forgive_debt((owed_s + SLACK_DEBT_S) * rate)
        return topic

    def settle_topics(self, owed_s: float, now: float) -> None:
        """Bring the buckets of all topics up to date that had traffic. `owed_s`: the total's debt."""
        for meter in self._thresholds.meters.topics.values():
            if meter.uncounted != meter.counted_in_bucket:
                self.settle_topic(meter, owed_s, now)

    def topic_level(self, meter: TopicMeter, owed_s: float, now: float) -> float:
        """The bytes in a topic's bucket; 0.0 where it has no traffic yet, as others, or the former process of this
        worker, may have used it up. Infinite where nothing limits it. `owed_s`: the total's debt.
        """
        if meter.topic_bucket is not None or meter.uncounted != meter.counted_in_bucket:
            topic = self.settle_topic(meter, owed_s, now)
            return math.inf if topic is None else topic.bucket.token_level(now)
        return math.inf if self._thresholds.effective_threshold(meter) is None else 0.0

    def _make_bucket(self, meter: TopicMeter, portion: float, rate: float) -> TopicBucket:
        """One of a topic that comes into use, as it was at the last look. `portion`: ours of its threshold; `rate`: the
        same after the cut.
        """
        if not self._shares_topics:
            return TopicBucket(TokenBucket(max(MIN_RATE, rate), self._burst_s, self._debt_s, self._counted_until), 1)
        then, rate = self._counted_until, max(MIN_RATE, portion)  # what it has saved isn't cut
        name = f"{self._name} {meter.name.decode('latin-1')}"
        made = self._fleet.make_bucket(
            name, rate, self._burst_s, self._debt_s, then - self._saved_s, limit=rate, lasts=True
        )
        if self._saved_s:
            made[0].token_level(then)
        return TopicBucket(*made)

    def charge_request(self, meter: TopicMeter, size: int, now: float) -> None:
        """These bytes of a topic that was looked at just now pass. The caller adds them to `uncounted`."""
        topic: TopicBucket | None = meter.topic_bucket
        if self._thresholds.effective_threshold(meter) is None or topic is None:
            return  # the next look takes them from the total
        bucket = topic.bucket
        self.skip_bytes(meter, size)
        owed_s = self.total.consume_tokens(size, now)
        bucket.consume_tokens(size, now)
        bucket.forgive_debt((owed_s + SLACK_DEBT_S) * bucket.rate)
        self.limiter.spent += size

    def skip_bytes(self, meter: TopicMeter, size: int) -> None:
        """Bytes that the caller adds to `uncounted`, and no look takes out of the buckets."""
        meter.counted_in_bucket += size
        self._counted_in_total += size

    def close_tick(self, now: float) -> None:
        """Call it before the meters tick, as that sets `uncounted` to 0."""
        self.settle_topics(self.settle_total(now), now)
        self._counted_in_total = 0
        for meter in self._thresholds.meters.topics.values():
            if meter.topic_bucket is not None:
                meter.topic_bucket.close_tick(meter.uncounted)
            meter.counted_in_bucket = 0
        self._counted_until = now

    def release_topics(self) -> None:
        """Topics go by these buckets no more: give their rows in the page back."""
        for meter in self._thresholds.meters.topics.values():
            meter.set_thresholds_credit(NEVER_ASK)
            meter.topic_bucket = None

    # --- our share of them --------------------------------------------------------------------------------------------

    def apply_share(self, now: float) -> None:
        """The total's threshold has changed, or our share of it."""
        configured, factor = self._thresholds.configured_total, self._thresholds.effect.factor
        assert configured is not None  # the topics' are looked up whenever they are used
        if (configured, factor) != (self.limiter.limit, self.limiter.factor) or self.limiter.is_outdated:
            self.limiter.set_limit(configured, factor, now)
            self._fit_portions(now)

    def mark_hungry(self, meter: TopicMeter, wait: float, now: float) -> float:
        """A client of the topic waits for so long. Returns the most seconds that it may have to wait."""
        used_up = self.limiter.is_used_up(now)
        longest = self.limiter.max_wait_s(now, used_up=used_up)
        wait = min(wait, longest, MAX_DELAY_S)
        if meter.topic_bucket is not None:
            meter.topic_bucket.mark_waiting(wait, now)
        self.limiter.record_wait(wait, now, used_up=used_up)
        return longest

    def is_hungry(self, now: float) -> bool:
        """Whether a request has to wait for the total."""
        return now < self.limiter.hungry_until

    @property
    def claimed_rate(self) -> float:
        """What this worker's topics have a right to of the total, bytes per second; 0.0 while this gateway is alone."""
        return self._claims.rate if self._fleet.gateways > 1 else 0.0

    @property
    def _owners(self) -> int:
        """How many there are with buckets of topics: gateways, or workers."""
        return self._fleet.gateways if self._shares_topics else self._fleet.processes

    def mark_outdated(self) -> None:
        """Rates, and with them portions, have changed."""
        self._claims.is_outdated = True

    def measure_claims(self, owed_s: float, now: float) -> None:
        """Add up what topics claim of the total, where that is due. `owed_s`: the total's debt."""
        claims, thresholds, owners = self._claims, self._thresholds, self._owners
        if owners == 1 or now <= claims.measured_at + (0.0 if claims.is_outdated else CLAIM_S):
            return
        elapsed, claims.measured_at, claims.is_outdated = min(now - claims.measured_at, TICK_S), now, False
        content = hungry = portions = saving = 0.0
        is_recovering = now < self._fleet.recovering_until
        for meter in thresholds.meters.topics.values():
            topic: TopicBucket | None = meter.topic_bucket
            if topic is None:
                topic = self.settle_topic(meter, owed_s, now) if meter.uncounted else None
                if topic is None:
                    continue
            use, part = topic.measure_use(meter.uncounted, elapsed)
            is_idle = use < MIN_RATE and not topic.bucket.in_debt
            if is_idle and not is_recovering:
                continue
            limit = thresholds.effective_threshold(meter)
            if limit is None:
                continue
            portion = limit * thresholds.portion_of(meter, owners, with_near=self._shares_topics) * part
            portions += portion
            if topic.is_hungry(now):
                hungry += portion
            else:
                content += min(use, portion)
                saving += max(0.0, portion - use) * is_recovering
        claims.content, claims.hungry, claims.portions, claims.saving = content, hungry, portions, saving
        self._fit_portions(now)

    def _fit_portions(self, now: float) -> None:
        """Cut topics' portions to this gateway's share of the total, in all its workers alike."""
        claims, share = self._claims, self.limiter.gateway_rate
        own = claims.content, claims.hungry + claims.saving, claims.portions
        sums = self._fleet.sum_reports(f"{self.limiter.key} claims", own, now)
        if sums is None:
            sums, share = own, share / self._fleet.worker_count
        claims.fit_share(math.inf if self._thresholds.is_overcommitted else share, *sums)
        fit = claims.fit if now < self._fleet.recovering_until else 1.0
        if self._saved_s and abs(fit - self._known_fit) > FIT_CHANGE * self._known_fit:
            self._known_fit = fit
            owed_s = self.total.debt_wait_s(now)
            for meter in self._thresholds.meters.topics.values():
                if isinstance(meter.topic_bucket, TopicBucket):
                    self.settle_topic(meter, owed_s, now)
