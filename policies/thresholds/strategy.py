# The two ways in which thresholds treat requests beyond them: one interface and two strategies, thresholds that reject
# (rejecting.py) and thresholds that delay (pacing.py).

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from policies.decision import ClientPatience
    from policies.limits.limit_use import LimitUse
    from policies.meters.topic_meter import TopicMeter
    from policies.thresholds.buckets import ThresholdBuckets
    from policies.verdict import Verdict


class ThresholdStrategy:
    """Decides about requests beyond the thresholds of one broker, and is told of changes. It alone says which
    topics have to be asked about (`TopicMeter.set_thresholds_credit`).

    `delays_requests`: requests wait for the total. `buckets`: by which it decides, of our share of the total; None: by
    rates alone.
    """

    __slots__ = ("buckets",)
    delays_requests: ClassVar[bool]
    buckets: ThresholdBuckets | None

    def judge_request(
        self, meter: TopicMeter, topic: bytes, size: int, patience: ClientPatience, now: float
    ) -> Verdict | None:
        """The verdict on `size` bytes for a topic that has to ask. `topic`: its name; several topics may share a
        meter. Takes nothing.
        """
        raise NotImplementedError

    def available_credit(self, meter: TopicMeter, client: object, now: float) -> float:
        """The bytes up to which `judge_request` has no verdict on requests of that client for such a topic, all of them
        together. Takes nothing.
        """
        return 0.0

    def charge_request(self, meter: TopicMeter, size: int, now: float) -> None:
        """These pass: charge for them. The caller adds them to `uncounted`."""

    def record_only(self, meter: TopicMeter, size: int) -> None:
        """These pass as well, and are charged to no bucket."""

    def is_limiting(self, meter: TopicMeter) -> bool:
        """Whether topic and total were beyond their thresholds when they were last looked at."""
        raise NotImplementedError

    def topic_use(self, meter: TopicMeter, now: float) -> LimitUse | None:
        """Of the bucket that decides about a topic; None: its one-minute rate does."""
        return None

    def total_use(self, now: float) -> LimitUse | None:
        """Of the total's bucket; None: the one-minute rate decides."""
        return None

    def add_topic(self, meter: TopicMeter) -> None:
        """A topic is new."""

    def lower_share(self) -> None:
        """The implicit share has become smaller, and nothing else has changed."""

    def refresh_topics(self) -> None:
        """Rates or thresholds have changed."""

    def apply_share(self, now: float) -> None:
        """The total's threshold has changed, or our share of it."""

    def pace_limits(self, now: float) -> None:
        """Called every pacing.PACE_S while anything delays."""

    def close_tick(self, now: float) -> None:
        """Called before the meters tick, as that sets `uncounted` to 0."""

    @property
    def burst_s(self) -> float:
        """Seconds of a threshold that may pass above it; 0: they have no such bound."""
        return 0.0

    def release_topics(self) -> None:
        """Mark no topic any more: another strategy takes over."""
        raise NotImplementedError
