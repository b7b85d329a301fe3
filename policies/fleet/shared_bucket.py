# One token bucket that several workers use at once, each through its own row's view of the page (page.py).

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from policies.limits.bucket import Bucket

if TYPE_CHECKING:
    from policies.fleet.page import Row


class SharedBucket(Bucket):
    """A Bucket whose level is that of all workers' takings together.

    `limit`: the one that its debt goes by: the worker that is told another one first changes the debt along with it,
    and the others find that done. The row is released with the bucket.
    """

    __slots__ = ("_ahead_s", "_row", "_seen", "limit")

    def __init__(
        self, rate: float, burst_s: float, debt_s: float, now: float, row: Row, ahead_s: float, limit: float
    ) -> None:
        self._row = row
        self._ahead_s = ahead_s
        self._seen = row.spent
        self.limit = limit
        super().__init__(rate, burst_s, debt_s, now)
        self._adopt(-math.inf)

    def __del__(self) -> None:
        self._row.release()

    @property
    def owed(self) -> float:
        self._adopt(self._then)
        return super().owed

    def absorb(self, size: float, now: float) -> None:
        self._adopt(self._then)
        super().absorb(size, now)

    def give_back(self, size: float) -> None:
        self._adopt(self._then)
        self._spend(-size)
        super().give_back(size)
        self._write()

    def forgive(self, debt: float) -> None:
        self._adopt(self._then)
        super().forgive(debt)
        self._write()

    def follow(self, before: float, limit: float, most: float) -> None:
        self._adopt(self._then)
        if limit != self.limit:  # else another worker has done it
            before, self.limit = self.limit, limit
            if limit < before:
                super().forgive(most)
            self._write()

    def set_rate(self, rate: float, now: float) -> None:
        super().set_rate(rate, now)
        self._write()

    def _refill(self, now: float) -> None:
        self._adopt(self._then)
        # A worker whose `now` is a moment old must not undo what another worker has seen.
        super()._refill(now if self._then == math.inf else max(now, self._then))

    def _charge(self, size: float, level: float) -> None:
        if size:
            self._spend(size)
        super()._charge(size, level)
        self._write()

    def _spend(self, size: float) -> None:
        self._row.spend(size)
        self._seen += size

    def _adopt(self, since: float) -> None:
        """Go on from the latest of all workers' buckets, less the bytes spent since."""
        found = self._row.newer(since + self._ahead_s)
        if found is not None:
            self._level, then, self._seen, self.limit, self.beyond = found
            self._then = then - self._ahead_s
        spent = self._row.spent
        if spent != self._seen:
            self._clip(self._level - (spent - self._seen))
            self._seen = spent

    def _write(self) -> None:
        if self._then != math.inf:  # it has not been used yet
            self._row.write(self._level, self._then + self._ahead_s, self._seen, self.limit, self.beyond)
