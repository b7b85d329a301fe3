# V1's thresholds by delay: the fluid form of "reject only when total rate AND topic rate are over". Each admitted byte
# is taken from the total's bucket and its topic's; a request waits for the shorter of the two debts. A topic within its
# own threshold never waits; one beyond it waits for the total only, so it may use what others leave; and since both
# buckets remember, the sum stays at the total, and each topic gets its threshold if it wants it. No EWMA decides here:
# between two of its ticks it would let everything through, and then nothing.
#
# The hot path asks `over` and adds to `uncounted`, as with rejections; here `over` means: ask `decide` about every
# request. So steady demand is paced request by request. It is set where a limit may be reached before the next `pace`:
# for a topic that was quiet, as nobody knows how much comes, and where there is little credit left. What was counted
# without asking, `pace` moves into the buckets. Knows no request and no clock.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from policies.bucket import Bucket
from policies.verdict import MAX_THROTTLE_MS

if TYPE_CHECKING:
    from policies.engine import TopicMeter
    from policies.meter import Meter

PACE_S: Final = 0.05  # how often `pace` is called: for so long a topic that is not asked about can exceed its threshold
MAX_WAIT_S: Final = MAX_THROTTLE_MS / 1000
MIN_WAIT_S: Final = 0.01  # shorter waits are not worth a timer: the debt stays and the next request waits for both
BURST_S: Final = 1.0  # thresholds are bytes per second: an idle second's worth may come at once
ENTER_S: Final = 0.5  # seconds of credit below which a topic is asked about, if the total's is below it as well …
LEAVE_S: Final = 0.75  # … until one of the two has as much again
DEBT_S: Final = 3 * MAX_WAIT_S  # what is beyond it is forgiven: who takes so much at once must not stall all others
SLACK_DEBT_S: Final = 1.0  # what a topic may owe, beyond what the total does, for having used what others left
FLOOR: Final = 1.0  # bytes per second, in place of a threshold of 0: all that such a topic gets is what others leave
# Where more connections want to send than MAX_WAIT_S has room for, the same ones would always come just in time. So
# a connection may join a longer line the longer it was turned away: by half of this after so many seconds, never more …
MAX_PATIENCE_S: Final = 5.0
HALF_PATIENCE_S: Final = 60.0
# … and those who are turned away come back after this part of MAX_WAIT_S or more, spread evenly.
_EARLIEST: Final = 0.5
_GOLDEN: Final = 0.6180339887498949  # fractional parts of its multiples are spread evenly at every length


class Answer(NamedTuple):
    """`wait`: seconds, not bounded; 0.0 and `admitted` = nothing to say. `late`: only this connection can't wait."""

    admitted: bool
    wait: float
    late: bool = False


_AT_ONCE: Final = Answer(True, 0.0)


class Pacer:
    """The buckets of one broker: its total's, and one of each topic in use (`TopicMeter.bucket`).

    `topics` is the broker's own dictionary, read only. Who adds a topic to it sets its `over`.
    """

    __slots__ = ("_asked", "_seen", "_since", "_spread", "_topics", "_total", "bucket")

    def __init__(self, rate: float, total: Meter, topics: dict[bytes, TopicMeter]) -> None:
        self.bucket = Bucket(rate, BURST_S, DEBT_S)
        self._total = total
        self._topics = topics
        self._seen = total.uncounted  # of `total.uncounted`: what is in the bucket already
        self._since = math.inf  # what a topic without a bucket has not `seen` came in since then
        # Topics whose `over` is set and that are in use: whether `decide` was asked about them since the last `pace`.
        self._asked: dict[TopicMeter, bool] = {}
        self._spread = 0.0
        for meter in topics.values():
            meter.seen = meter.uncounted
            meter.bucket = None
            meter.over = True

    def set_rate(self, rate: float, now: float) -> None:
        """The total's threshold has changed. Topics' are looked up whenever they are used."""
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
                    if bucket is not None and not meter.over and bucket.level(now) < ENTER_S * bucket.rate:
                        meter.over = True
                        self._asked[meter] = True
        if self._asked:
            self._leave(owed, now)

    def decide(self, meter: TopicMeter, size: int, now: float, may_delay: bool, denied_s: float) -> Answer:
        """Whether a request for a topic that is `over` passes, and how long its connection then waits.

        What is admitted is taken here; the caller adds it to `uncounted`. Where it doesn't, `pace` gives it back.
        """
        bucket = self._settle(meter, self._settle_total(now), now)
        self._asked[meter] = True
        if bucket is None:
            return _AT_ONCE
        total = self.bucket
        total_wait, topic_wait = total.wait(now), bucket.wait(now)
        ahead = min(total_wait, topic_wait)
        room = MAX_WAIT_S + MAX_PATIENCE_S * denied_s / (denied_s + HALF_PATIENCE_S)
        # The request's own size doesn't count, or large ones would never find room among small ones; unless it is such
        # that it could not be paid for. That one passes when nobody is before it.
        after = min(total_wait + size / total.rate, topic_wait + size / bucket.rate)
        if ahead > room or (after > DEBT_S and ahead >= MIN_WAIT_S):
            self._spread = (self._spread + _GOLDEN) % 1.0
            return Answer(False, MAX_WAIT_S * (_EARLIEST + (1.0 - _EARLIEST) * self._spread))
        if not may_delay and ahead >= MIN_WAIT_S:
            return Answer(False, ahead, late=True)
        self.pass_over(meter, size)
        owed = total.take(size, now)
        wait = min(owed, bucket.take(size, now))
        bucket.forgive((owed + SLACK_DEBT_S) * bucket.rate)
        return Answer(True, wait) if wait >= MIN_WAIT_S else _AT_ONCE

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
            if not meter.uncounted:
                meter.over = True  # quiet for a whole tick: how much comes next, nobody knows
            meter.seen = 0
        self._since = now

    def release(self) -> None:
        """No topic is asked about any more."""
        for meter in self._topics.values():
            meter.over = False
        self._asked = {}

    def is_paced(self, meter: TopicMeter) -> bool:
        """Whether that topic and the total were in debt when they were last looked at."""
        bucket = meter.bucket
        return meter.over and bucket is not None and bucket.in_debt and self.bucket.in_debt

    def _settle_total(self, now: float) -> float:
        """Bring the total's bucket up to date; the seconds that it owes."""
        self._since = min(self._since, now)  # the first call
        counted = self._total.uncounted
        self.bucket.absorb(counted - self._seen, now)
        self._seen = counted
        return self.bucket.wait(now)

    def _settle(self, meter: TopicMeter, owed: float, now: float) -> Bucket | None:
        """Bring a topic's bucket up to date; None where nothing limits it. `owed`: the total's debt in seconds."""
        counted = meter.uncounted
        size = counted - meter.seen
        meter.seen = counted
        limit = meter.threshold
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
                meter.over = not recently
                del self._asked[meter]
            else:
                self._asked[meter] = False
