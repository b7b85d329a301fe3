# V1's thresholds by rejection: while the one-minute rate of a broker is over its total threshold, topics that are over
# their own are rejected.
#
# The set of these topics is computed when something changes (tick, thresholds, topics), never per request. A topic that
# joins costs O(1): it only ever lowers what implicit topics share, and the few topics that this puts over are found
# from the top of an order made once per tick, and only while the broker's total is over. Knows no request and no clock.

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING

from policies.meters.meter import DECAY, TICK_S, FleetMeter
from policies.meters.topic_meter import ALWAYS_ASK, NEVER_ASK
from policies.thresholds.strategy import ThresholdStrategy
from policies.verdict import MAX_THROTTLE_MS, ObservedRate, Verdict, over_threshold

if TYPE_CHECKING:
    from policies.decision import ClientPatience
    from policies.meters.topic_meter import TopicMeter
    from policies.thresholds.broker_thresholds import BrokerThresholds


class ThresholdRejecter(ThresholdStrategy):
    """The topics of one broker that are over."""

    __slots__ = ("_candidates", "_over", "_thresholds")
    delays_requests = False

    def __init__(self, thresholds: BrokerThresholds) -> None:
        self.buckets = None
        self._thresholds = thresholds
        self._over: list[TopicMeter] = []
        self._candidates: list[TopicMeter] | None = None

    def judge_request(
        self, meter: TopicMeter, topic: bytes, size: int, patience: ClientPatience, now: float
    ) -> Verdict | None:
        total, due = self._thresholds.meters.total, self._thresholds.ticks.next_tick_at
        limit, total_limit = self._thresholds.effective_threshold(meter), self._thresholds.total
        assert limit is not None, "a topic without a threshold is never over"
        assert total_limit is not None
        # The earliest it can be: a client that waits longer leaves the topic below its threshold.
        ticks = min(_ticks_until(meter, limit), _ticks_until(total, total_limit))
        wait_ms = math.ceil((due + (ticks - 1) * TICK_S - now) * 1000)
        return over_threshold(
            topic.decode(errors="replace"),
            self._thresholds.meters.node_id,
            min(max(wait_ms, 1), MAX_THROTTLE_MS),
            ObservedRate(meter.fleet_rate, limit),
            ObservedRate(total.fleet_rate, total_limit),
        )

    def record_only(self, meter: TopicMeter, size: int) -> None:
        """Where thresholds are enforced for other clients (rollout.py), bytes that they would have rejected are not
        metered: else the others would be rejected for as long as such bytes come. Where they are only observed, all
        bytes are.
        """
        if not self._thresholds.observes:
            self._thresholds.meters.total.uncounted -= size
            meter.uncounted -= size
            meter.counted_in_group -= size

    def is_over(self, meter: TopicMeter) -> bool:
        """Whether the rates of topic and total were over when they were last looked at."""
        return meter.thresholds_always_ask

    def is_limiting(self, meter: TopicMeter) -> bool:
        return self.is_over(meter)

    def refresh_topics(self) -> None:
        self._release_over()
        if not self._thresholds.is_over_total:
            return
        share = self._thresholds.implicit_share
        assert share is not None
        for meter in self._thresholds.meters.topics.values():
            limit = meter.explicit_limit
            if meter.rate + meter.peer_rate > (share if limit is None else limit):
                self._reject_topic(meter)

    def lower_share(self) -> None:
        # Rates stay as they are until the next tick, so each topic gets over at most once.
        if not self._thresholds.is_over_total:
            return
        share = self._thresholds.implicit_share
        assert share is not None
        if self._candidates is None:
            topics = (
                m for m in self._thresholds.meters.topics.values() if m.explicit_limit is None and not self.is_over(m)
            )
            self._candidates = sorted(topics, key=attrgetter("fleet_rate"))
        while self._candidates and self._candidates[-1].fleet_rate > share:
            self._reject_topic(self._candidates.pop())

    def release_topics(self) -> None:
        self._release_over()

    def _release_over(self) -> None:
        for meter in self._over:
            meter.set_thresholds_credit(NEVER_ASK)
        self._over = []
        self._candidates = None

    def _reject_topic(self, meter: TopicMeter) -> None:
        meter.set_thresholds_credit(ALWAYS_ASK)
        self._over.append(meter)


def _ticks_until(meter: FleetMeter, limit: float) -> int:
    """The number of ticks until a meter can be at its limit or below, if nothing more comes in, here or elsewhere. At
    most the number that can matter.
    """
    most = math.ceil(MAX_THROTTLE_MS / 1000 / TICK_S) + 1
    return next((n for n in range(1, most) if meter.rate_after(n) + meter.peer_rate * DECAY**n <= limit), most)
