# Whether the records of a life follow each other, as their digests say (policies/record_digests.py). The same as
# transforms.count_broken_links. Pure.

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from policies import usage


@dataclass(slots=True)
class LinkedRun:
    """Records that came one after the other, each of them an interval; or one of an interval's parts; or a note of
    loss. `previous`, `digest`: of the one before the first, and of the last.
    """

    kind: str
    first_seq: int
    last_seq: int
    part: int
    parts: int
    previous: str | None
    digest: str | None

    @property
    def is_end(self) -> bool:
        """Whether the last one is the last part of its interval."""
        return self.part == self.parts - 1

    def follows(self, before: LinkedRun) -> bool:
        """Whether the first one comes right after the last one of `before`."""
        if self.part:
            return self.first_seq == before.last_seq and self.part == before.part + 1
        return self.first_seq == before.last_seq + 1 and before.is_end


class ChainLinks:
    """The records of one life, in any order."""

    def __init__(self) -> None:
        self._runs: list[LinkedRun] = []
        self._lost: list[LinkedRun] = []
        self._broken = 0  # within runs

    def add(self, record: LinkedRun) -> None:
        """Add a record that counts."""
        if record.kind == usage.LOST:
            self._lost.append(record)
            return
        run = self._runs[-1] if self._runs else None
        if run is not None and run.parts == record.parts == 1 and record.follows(run):
            self._broken += record.previous != run.digest
            run.last_seq, run.digest = record.last_seq, record.digest
        else:
            self._runs.append(record)

    def count_broken(self) -> int:
        """The records that don't follow the one before them, where that is there."""
        broken = self._broken
        runs = sorted(self._runs, key=lambda run: (run.first_seq, run.part))
        for before, run in pairwise(runs):
            broken += run.follows(before) and run.previous != before.digest
        for lost in self._lost:
            follows = bool(runs) and runs[-1].last_seq == lost.last_seq and runs[-1].is_end
            broken += follows and lost.previous != runs[-1].digest
        return broken
