# V1's thresholds by rejection: while the one-minute rate of a broker is over its total threshold, topics that are over
# their own are rejected.
#
# Which topics these are is computed when something changes (tick, thresholds, topics), never per request. A topic that
# joins costs O(1): it only ever lowers what implicit topics share, and the few topics that this puts over are found
# from the top of an order made once per tick, and only while the broker's total is over. Knows no request and no clock.

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING

from policies.limits.meter import DECAY, TICK_S, Meter
from policies.thresholds.values import ThresholdStrategy
from policies.verdict import MAX_THROTTLE_MS, Verdict, over_threshold

if TYPE_CHECKING:
    from policies.decision import Patience
    from policies.thresholds.broker_meters import BrokerMeters, TopicMeter


class Rejecter(ThresholdStrategy):
    """The topics of one broker that are over."""

    __slots__ = ("_broker", "_candidates", "_over")
    delays = False

    def __init__(self, broker: BrokerMeters) -> None:
        self._broker = broker
        self._over: list[TopicMeter] = []
        self._candidates: list[TopicMeter] | None = None

    def judge(self, meter: TopicMeter, topic: bytes, size: int, patience: Patience, now: float) -> Verdict:
        broker = self._broker
        limit, total_limit = meter.threshold, broker.threshold
        assert limit is not None, "a topic without a threshold is never over"
        assert total_limit is not None
        # The earliest it can be: a client that waits longer leaves the topic below its threshold.
        ticks = min(
            _ticks_until(meter, limit, meter.others), _ticks_until(broker.total, total_limit, broker.others.rate)
        )
        wait_ms = math.ceil((broker.due + (ticks - 1) * TICK_S - now) * 1000)
        return over_threshold(
            topic.decode(errors="replace"),
            broker.node_id,
            min(max(wait_ms, 1), MAX_THROTTLE_MS),
            (meter.fleet_rate, limit),
            (broker.fleet_rate, total_limit),
        )

    def is_limiting(self, meter: TopicMeter) -> bool:
        return meter.thresholds_ask

    def refresh(self) -> None:
        self.release()
        if not self._broker.over:
            return
        share = self._broker.share
        assert share is not None
        for meter in self._broker.topics.values():
            limit = meter.limit
            if meter.rate + meter.others > (share if limit is None else limit):
                self._reject(meter)

    def lower_share(self) -> None:
        # Rates stay as they are until the next tick, so each topic gets over at most once.
        broker = self._broker
        if not broker.over:
            return
        assert broker.share is not None
        if self._candidates is None:
            topics = (m for m in broker.topics.values() if m.limit is None and not m.thresholds_ask)
            self._candidates = sorted(topics, key=attrgetter("fleet_rate"))
        while self._candidates and self._candidates[-1].fleet_rate > broker.share:
            self._reject(self._candidates.pop())

    def release(self) -> None:
        for meter in self._over:
            meter.ask_thresholds(False)
        self._over = []
        self._candidates = None

    def _reject(self, meter: TopicMeter) -> None:
        meter.ask_thresholds(True)
        self._over.append(meter)


def _ticks_until(meter: Meter, limit: float, others: float) -> int:
    """How many ticks until a meter can be at its limit or below, if nothing more comes in, here or elsewhere. At most
    what can matter.
    """
    most = math.ceil(MAX_THROTTLE_MS / 1000 / TICK_S) + 1
    return next((n for n in range(1, most) if meter.after(n) + others * DECAY**n <= limit), most)
