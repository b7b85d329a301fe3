# One token bucket that several workers use at once, each through its own row's view of the page (page.py).

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from policies.limits.bucket import UNSTARTED, TokenBucket

if TYPE_CHECKING:
    from policies.fleet.page import PageRow


class SharedBucket(TokenBucket):
    """A TokenBucket whose level counts what all workers take together. `limit`: the one that its debt goes by: the
    worker that first learns of another limit changes the debt with it, and the others find that done. The row is
    released with the bucket.
    """

    __slots__ = ("_ahead_s", "_row", "_seen_spent", "limit")

    def __init__(
        self, rate: float, burst_s: float, debt_s: float, now: float, row: PageRow, ahead_s: float, limit: float
    ) -> None:
        self._row = row
        self._ahead_s = ahead_s
        self._seen_spent = row.spent
        self.limit = limit
        super().__init__(rate, burst_s, debt_s, now)
        self._adopt_latest(-math.inf)

    def __del__(self) -> None:
        self._row.release_row()

    @property
    def spent(self) -> float:
        """The total amount that all workers took."""
        return self._row.spent

    @property
    def owed_tokens(self) -> float:
        self._adopt_latest(self._updated_at)
        return super().owed_tokens

    def consume_evenly(self, size: float, now: float) -> None:
        self._adopt_latest(self._updated_at)
        super().consume_evenly(size, now)

    def refund_tokens(self, size: float) -> None:
        self._adopt_latest(self._updated_at)
        self._spend_shared(-size)
        super().refund_tokens(size)
        self._publish_state()

    def forgive_debt(self, debt: float) -> None:
        self._adopt_latest(self._updated_at)
        super().forgive_debt(debt)
        self._publish_state()

    def follow_limit(self, before: float, limit: float, most: float) -> None:
        self._adopt_latest(self._updated_at)
        if limit != self.limit:  # else another worker has done it
            before, self.limit = self.limit, limit
            if limit < before:
                super().forgive_debt(most)
            self._publish_state()

    def set_rate(self, rate: float, now: float, burst_s: float | None = None) -> None:
        super().set_rate(rate, now, burst_s)
        self._publish_state()

    def _refill_tokens(self, now: float) -> None:
        self._adopt_latest(self._updated_at)
        # A worker whose `now` is a moment old must not undo what another worker has seen.
        super()._refill_tokens(now if self._updated_at == UNSTARTED else max(now, self._updated_at))

    def _withdraw_tokens(self, size: float, level: float) -> None:
        if size:
            self._spend_shared(size)
        super()._withdraw_tokens(size, level)
        self._publish_state()

    def _spend_shared(self, size: float) -> None:
        self._row.add_spent(size)
        self._seen_spent += size

    def _adopt_latest(self, since: float) -> None:
        """Continue from the latest of all workers' buckets, less the bytes spent since."""
        found = self._row.read_newer(since + self._ahead_s)
        if found is not None:
            self._level, then, self._seen_spent, self.limit, self.excess_debt = found
            self._updated_at = then - self._ahead_s
        spent = self._row.spent
        if spent != self._seen_spent:
            self._clip_level(self._level - (spent - self._seen_spent))
            self._seen_spent = spent

    def _publish_state(self) -> None:
        if self._updated_at != UNSTARTED:
            self._row.write_view(
                self._level, self._updated_at + self._ahead_s, self._seen_spent, self.limit, self.excess_debt
            )
