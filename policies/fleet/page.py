# The page in which workers of one gateway count what they take of limits that they share: memory that all of them map,
# so that each of them sees what the others take at once, without a message and without a process that allocates
# anything.
#
# One row for each limit, found by a digest of its key; in a row one column for each worker, which alone writes it: what
# it has ever taken (`SPENT`), and the bucket as it saw it last. A reader starts from the latest of these buckets and
# subtracts what was spent since (`SEEN_SPENT` says how much of that it includes). So nothing is lost where two write at
# once, and what a worker took still counts when that worker is gone. A write in progress is left to the next look: each
# worker has two views, which it writes in turn, so the former one is whole meanwhile.
#
# A row is taken and given back under a lock that the caller brings, the only thing that workers wait for each other
# for. Knows no limit and no traffic; its times are those of a clock that all workers read.

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Final

from policies.fleet.keys import FleetKey

ROWS: Final = 131_072
# The cells of a column: numbers of 8 bytes, two cache lines together.
SPENT: Final = 0  # of the limit, since ever
USERS: Final = 1  # how often this worker holds the row
VIEWS: Final = (2, 7)  # of the bucket, as this worker saw it last and before; in each:
LEVEL, AT, SEEN_SPENT, LIMIT, BEYOND = range(
    5
)  # the level, when that was, what had been spent, the limit, debt besides
_VIEW: Final = 5
CELLS: Final = 16
_DIGEST: Final = 2  # cells of a key's digest; 0: the row was never used
_WINDOW: Final = 64  # rows in which a key may be


def page_size(workers: int) -> int:
    """Bytes of memory for that many workers; unused memory is never touched."""
    return 8 * ROWS * (_DIGEST + CELLS * workers)


class PageRow:
    """One limit: the amount that all workers took of it, and the state of their buckets."""

    __slots__ = ("_ats", "_cells", "_first", "_release", "_spent")

    def __init__(self, cells: memoryview[float], worker: int, give_back: Callable[[PageRow], None]) -> None:
        self._cells = cells
        self._spent = cells[SPENT::CELLS]
        self._ats = tuple(cells[view + AT :: CELLS] for view in VIEWS)
        self._first = CELLS * worker
        self._release = give_back

    @property
    def spent(self) -> float:
        """The total amount that all workers took."""
        return sum(self._spent)

    def add_spent(self, size: float) -> None:
        """Add an amount that this worker took; below 0: that it gave back."""
        self._cells[self._first] += size

    def read_newer(self, at: float) -> tuple[float, float, float, float, float] | None:
        """LEVEL, AT, SEEN_SPENT, LIMIT and BEYOND as written by the worker that wrote last, if that was after `at`."""
        ats, others = self._ats[0].tolist(), self._ats[1].tolist()  # once: others write meanwhile
        latest = max(*ats, *others)
        if latest <= at or not latest:  # no worker has written yet
            return None
        if latest in ats:
            first = CELLS * ats.index(latest) + VIEWS[0]
        else:
            first = CELLS * others.index(latest) + VIEWS[1]
        level, then, seen, limit, beyond = self._cells[first : first + _VIEW].tolist()
        return (level, then, seen, limit, beyond) if then == self._cells[first + AT] == latest else None

    def write_view(self, level: float, at: float, seen: float, limit: float, beyond: float = 0.0) -> None:
        """Write the state of this worker's bucket. Two of its views are never of the same moment."""
        cells, older, newer = self._cells, self._first + VIEWS[0], self._first + VIEWS[1]
        if cells[newer + AT] < cells[older + AT]:
            older, newer = newer, older
        if at <= cells[newer + AT]:
            at = math.nextafter(cells[newer + AT], math.inf)
        cells[older + AT] = 0.0  # until all of it is there
        cells[older + LEVEL] = level
        cells[older + SEEN_SPENT] = seen
        cells[older + LIMIT] = limit
        cells[older + BEYOND] = beyond
        cells[older + AT] = at

    def read_views(self) -> list[tuple[float, float, float, float]]:
        """LEVEL, AT, SEEN_SPENT and LIMIT of each worker, as it wrote them last."""
        cells = self._cells.tolist()
        columns = range(0, len(cells), CELLS)
        views = [max((first + view for view in VIEWS), key=lambda view: cells[view + AT]) for first in columns]
        return [(cells[v + LEVEL], cells[v + AT], cells[v + SEEN_SPENT], cells[v + LIMIT]) for v in views]

    def release_row(self) -> None:
        """This worker has one use of the row less."""
        self._release(self)

    def add_users(self, more: int) -> None:
        """Count that many more uses; for SharedPage, under its lock."""
        self._cells[self._first + USERS] += more

    def clear_row(self) -> None:
        """Reset the row; for SharedPage, under its lock, where no worker holds the row."""
        for index in range(len(self._cells)):
            self._cells[index] = 0.0


class SharedPage:
    """The memory of all rows, as one worker sees it.

    Args:
        memory: `size(workers)` writable bytes, zeros at first.
        worker: 0 to `workers` - 1.
        lock: a context manager that keeps the other workers' processes out, or raises TimeoutError; the rows that the
            former process of this number held are given back under it now.
        ahead_s: the seconds by which the clock that all workers read is ahead of the `now` that this one goes by.
    """

    def __init__(
        self,
        memory: memoryview,
        workers: int,
        worker: int,
        lock: Callable[[], AbstractContextManager[object]],
        ahead_s: float = 0.0,
    ) -> None:
        self.ahead_s = ahead_s
        self.workers = workers
        self.worker = worker
        self._lock = lock
        self._digests = memory[: 8 * _DIGEST * ROWS].cast("Q")
        self._cells = memory[8 * _DIGEST * ROWS : page_size(workers)].cast("d")
        with suppress(TimeoutError), lock():
            for index, digest in enumerate(self._digests[::_DIGEST].tolist()):
                if digest:
                    self._cells[self._own_column(index) + USERS] = 0.0

    def acquire_row(self, key: FleetKey) -> PageRow | None:
        """That limit's row, held until it is released; None: too many are in use, or another worker stopped while it
        held the lock.
        """
        try:
            return self._find_row(key)
        except TimeoutError:
            return None

    def _find_row(self, key: FleetKey) -> PageRow | None:
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        words = int.from_bytes(digest[:8], "big") | 1, int.from_bytes(digest[8:], "big")  # the first is never 0
        with self._lock():
            free = None
            for step in range(_WINDOW):
                index = (words[1] + step) % ROWS
                found = self._digests[_DIGEST * index], self._digests[_DIGEST * index + 1]
                if found == words:
                    return self._acquire_row(index)
                if free is None and (not found[0] or not any(self._row_cells(index)[USERS::CELLS])):
                    free = index
                if not found[0]:
                    break
            if free is None:
                return None
            self._digests[_DIGEST * free], self._digests[_DIGEST * free + 1] = words
            return self._acquire_row(free, is_new=True)

    def _acquire_row(self, index: int, *, is_new: bool = False) -> PageRow:
        row = PageRow(self._row_cells(index), self.worker, self._release_row)
        if is_new:
            row.clear_row()
        row.add_users(1)
        return row

    def _release_row(self, row: PageRow) -> None:
        row.add_users(-1)

    def _row_cells(self, index: int) -> memoryview[float]:
        first = CELLS * self.workers * index
        return self._cells[first : first + CELLS * self.workers]

    def _own_column(self, index: int) -> int:
        return CELLS * (self.workers * index + self.worker)
