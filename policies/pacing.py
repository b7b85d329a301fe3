# V1's thresholds by delay: the fluid form of "reject only when total rate AND topic rate are over". Each admitted byte
# is taken from the total's bucket and its topic's; a request waits for the shorter of the two debts. A topic within its
# own threshold never waits; one beyond it waits for the total only, so it may use what others leave; and since both
# buckets remember, the sum stays at the total, and each topic gets its threshold if it wants it. No EWMA decides here:
# between two of its ticks it would let everything through, and then nothing.
#
# The hot path asks `over` and adds to `uncounted`, as with rejections; here `thresholds_ask`, which is part of it,
# means: ask `decide` about every request. So steady demand is paced request by request. It is set where a limit may be
# reached before the next `pace`: for a topic that was quiet, as nobody knows how much comes, and where there is little
# credit left. What was counted without asking, `pace` moves into the buckets.
#
# Strangers share both, so what one of them takes at once is forgiven beyond DEBT_S (line.py).
#
# In a fleet the total's bucket has our part of it, and a topic's our portion of its threshold. Knows no request and no
# clock.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from policies.bucket import Bucket
from policies.line import AT_ONCE, BURST_S, DEBT_S, MIN_WAIT_S, Answer, Door

if TYPE_CHECKING:
    from policies.engine import TopicMeter
    from policies.fleet_lines import Fleet
    from policies.meter import Meter

PACE_S: Final = 0.05  # how often `pace` is called: for so long a topic that is not asked about can exceed its threshold
ENTER_S: Final = 0.5  # seconds of credit below which a topic is asked about, if the total's is below it as well …
LEAVE_S: Final = 0.75  # … until one of the two has as much again
SLACK_DEBT_S: Final = 1.0  # what a topic may owe, beyond what the total does, for having used what others left
FLOOR: Final = 1.0  # bytes per second, in place of a threshold of 0: all that such a topic gets is what others leave


class Pacer:
    """The buckets of one broker: its total's, and one of each topic in use (`TopicMeter.bucket`).

    `topics` is the broker's own dictionary, read only. Who adds a topic to it sets its `thresholds_ask`. `hungry`:
    somebody had to wait for the total or was turned away since somebody set this to False.
    """

    __slots__ = ("_asked", "_door", "_fleet", "_seen", "_settled", "_since", "_topics", "_total", "_used", "bucket",
                 "hungry")  # fmt: skip

    def __init__(self, rate: float, total: Meter, topics: dict[bytes, TopicMeter], fleet: Fleet) -> None:
        self.bucket = Bucket(rate, BURST_S, DEBT_S)
        self._total = total
        self._topics = topics
        self._seen = total.uncounted  # of `total.uncounted`: what is in the bucket already
        self._since = math.inf  # what a topic without a bucket has not `seen` came in since then
        # Topics whose `over` is set and that are in use: whether `decide` was asked about them since the last `pace`.
        self._asked: dict[TopicMeter, bool] = {}
        self._door = Door()
        self._fleet = fleet
        self._used = -math.inf  # when something was taken
        self._settled = -math.inf  # until then our part of the total is provisional (fleet_lines.py)
        self.hungry = False
        for meter in topics.values():
            meter.seen = meter.uncounted
            meter.bucket = None
            meter.ask_thresholds(True)

    def set_rate(self, rate: float, now: float) -> None:
        """The total's threshold has changed, or our part of it. Topics' are looked up whenever they are used."""
        if rate != self.bucket.rate:
            self.bucket.set_rate(rate, now)

    def pace(self, now: float) -> None:
        """Move what was counted since the last call into the buckets, and find the topics that have to be asked about.

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

    def decide(self, meter: TopicMeter, size: int, now: float, may_delay: bool, denied_s: float) -> Answer:
        """Whether a request for a topic that has to ask passes, and how long its connection then waits.

        What is admitted is taken here; the caller adds it to `uncounted`. Where it doesn't, `pace` gives it back.
        """
        bucket = self._settle(meter, self._settle_total(now), now)
        self._asked[meter] = True
        if bucket is None:
            return AT_ONCE
        total = self.bucket
        total_wait, topic_wait = total.wait(now), bucket.wait(now)
        ahead = min(total_wait, topic_wait)
        after = min(total_wait + size / total.rate, topic_wait + size / bucket.rate)
        refusal = self._door.turn_away(ahead, after, may_delay, denied_s)
        if refusal is not None:
            self.hungry = True
            return refusal._replace(wait=min(refusal.wait, self._longest_wait(now)))
        self.pass_over(meter, size)
        owed = total.take(size, now)
        wait = min(owed, bucket.take(size, now))
        bucket.forgive((owed + SLACK_DEBT_S) * bucket.rate)
        longest = self._longest_wait(now)
        self._note_use(now)
        if wait < MIN_WAIT_S:
            return AT_ONCE
        self.hungry = True
        return Answer(True, min(wait, longest))

    def pass_over(self, meter: TopicMeter, size: int) -> None:
        """These bytes will be counted, and are not for `pace` to take."""
        meter.seen += size
        self._seen += size

    def close_tick(self, now: float) -> None:
        """Before the meters tick, since that sets `uncounted` to 0: every topic's bucket up to date."""
        owed = self._settle_total(now)
        self._seen = 0
        for meter in self._topics.values():
            if meter.uncounted != meter.seen:
                self._settle(meter, owed, now)
            if not (meter.uncounted or meter.thresholds_ask):
                meter.ask_thresholds(True)  # quiet for a whole tick: how much comes next, nobody knows
            meter.seen = 0
        self._since = now

    def release(self) -> None:
        """No topic is asked about any more."""
        for meter in self._topics.values():
            meter.ask_thresholds(False)
        self._asked = {}

    def is_paced(self, meter: TopicMeter) -> bool:
        """Whether that topic and the total were in debt when they were last looked at."""
        bucket = meter.bucket
        return meter.thresholds_ask and bucket is not None and bucket.in_debt and self.bucket.in_debt

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
        if limit is not None:
            limit *= meter.portion
        if limit is None:
            return None
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
        has_credit = self.bucket.level(now) >= LEAVE_S * self.bucket.rate
        for meter, recently in list(self._asked.items()):
            bucket = None if has_credit else self._settle(meter, owed, now)
            if bucket is None or bucket.level(now) >= LEAVE_S * bucket.rate:
                meter.ask_thresholds(not recently)
                del self._asked[meter]
            else:
                self._asked[meter] = False
