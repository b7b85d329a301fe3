# What topics claim of a broker's total that several processes share: of each topic's threshold the portion that is
# ours, as far as it is used. Two things follow from the sum. Gateways' shares of the total begin with it (shares.py),
# so that each has what its topics have a right to, and something of what is left. And where a share is less, as for a
# while after traffic has moved, portions are cut to fit it. Else a gateway would admit its share or its portions,
# whichever is more, and all together more than the total.
#
# Measured once per CLAIM_S and when rates have changed, never per request. Knows no request and no clock.

from __future__ import annotations

import math
from typing import Final

from policies.fleet.shared_bucket import SharedBucket
from policies.limits.bucket import TokenBucket
from policies.limits.limiter import SoleClient

CLAIM_S: Final = 1.0
SMOOTH_S: Final = 2.5  # a topic's use is smoothed over about this many seconds
SLACK_DEBT_S: Final = 1.0  # the most that a topic may owe, beyond the total's debt, for having used what others left


class TopicBucket:
    """One topic in use: its bucket, and whether one client alone asks about it. `count`: of such buckets that share its
    threshold. `waits_until`: a client waits for it, or has waited no longer than CLAIM_S ago.
    """

    __slots__ = ("_measured", "_spent", "_use", "_whole_use", "bucket", "count", "sole_client", "waits_until")

    def __init__(self, bucket: TokenBucket, count: int) -> None:
        self.bucket = bucket
        self.count = count
        self.sole_client = SoleClient()
        self.waits_until = -math.inf
        self._measured = 0  # of its meter's `uncounted`
        self._spent = bucket.spent if isinstance(bucket, SharedBucket) else 0.0
        self._use = self._whole_use = 0.0

    def mark_waiting(self, wait: float, now: float) -> None:
        """A client waits for so long."""
        self.waits_until = max(self.waits_until, now + wait + CLAIM_S)

    def is_hungry(self, now: float) -> bool:
        """Whether it owes, or makes clients wait: one that waits shortly and often finds hardly any debt at a look."""
        return now < self.waits_until or self.bucket.debt_wait_s(now) > 0.0

    def close_tick(self, counted: int) -> None:
        """`uncounted` begins at 0 again."""
        self._measured -= counted

    def measure_use(self, counted: int, elapsed: float) -> tuple[float, float]:
        """Bytes per second by this worker as of now, and which part that is of this gateway's, 0..1."""
        weight = min(1.0, elapsed / SMOOTH_S)  # and brokers may have refused more than came in
        self._use = max(0.0, self._use + weight * ((counted - self._measured) / elapsed - self._use))
        self._measured = counted
        if not isinstance(self.bucket, SharedBucket):
            return self._use, 1.0 / self.count
        spent = self.bucket.spent
        self._whole_use = max(0.0, self._whole_use + weight * ((spent - self._spent) / elapsed - self._whole_use))
        self._spent = spent
        return self._use, min(1.0, self._use / self._whole_use) if self._whole_use > 0.0 else 1.0


class TopicClaims:
    """The sums of all topics of one worker, bytes per second.

    Attributes:
        content: of topics that make no client wait: what they use, at most their portions.
        hungry: the portions of topics that owe, or make a client wait.
        portions: of all topics in use.
        saving: the unused part of portions, while others use it (FleetShares.recovering_until).
        fit: times which portions are in force, at most 1.
        measured_at: seconds.
        is_outdated: rates, and with them portions, have changed since.
    """

    __slots__ = ("content", "fit", "hungry", "is_outdated", "measured_at", "portions", "saving")

    def __init__(self) -> None:
        self.content = self.hungry = self.portions = self.saving = 0.0
        self.fit = 1.0
        self.measured_at = -math.inf
        self.is_outdated = False

    @property
    def rate(self) -> float:
        """Of all claims."""
        return self.content + self.hungry

    def fit_share(self, share: float, content: float, hungry: float, portions: float) -> None:
        """`share`: bytes per second that all topics may have together; the rest: sums of all workers that share it.
        The factor is for all topics: a content one that uses more than its cut portion soon makes clients wait, and is
        one of the hungry ones from then on. So the end is max-min fair by portions.
        """
        if content > share:
            self.fit = min(1.0, share / portions)
        else:
            self.fit = min(1.0, (share - content) / hungry) if hungry else 1.0
