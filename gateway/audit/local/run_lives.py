# Each worker's life as runs of its numbers say (condensing.RUN_SCHEMA): a record, or several that follow each other.
# Says the same as transforms.summarize_boots, detect_gaps and count_broken_links. Pure.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from gateway.audit.columns import BOOT_COLUMNS
from gateway.audit.local.links import ChainLinks, LinkedRun
from gateway.audit.local.lives import LifeKey, SeenRun, find_run_gaps
from policies import usage


class NumberRun(NamedTuple):
    """A row of RUN_FIELDS."""

    gateway: str
    boot: str
    worker: int
    kind: str
    first_seq: int
    last_seq: int
    part: int
    parts: int
    final: bool
    start_ms: int
    end_ms: int
    cluster: str | None
    previous_digest: str | None
    record_digest: str | None
    changed_records: int
    unchecked_records: int

    @property
    def life(self) -> LifeKey:
        """Whose it is."""
        return self.gateway, self.boot, self.worker


class RunLife:
    """One life. `runs`: in the order of first_seq and part."""

    def __init__(self, key: LifeKey, runs: Sequence[NumberRun]) -> None:
        self.key = key
        self._runs = runs
        self._intervals = [run for run in runs if run.kind == usage.INTERVAL]
        self._lost = [run for run in runs if run.kind == usage.LOST]

    def has_copies(self) -> bool:
        """Whether a number may be there twice: only a log that contradicts itself has an interval of one part and of
        several.
        """
        last = -1
        before: NumberRun | None = None
        for run in self._intervals:
            is_part = (
                before is not None
                and run.parts > 1
                and before[4:6] == run[4:6]
                and before.parts == run.parts
                and before.part < run.part
            )
            if run.first_seq <= last and not is_part:
                return True
            last, before = max(last, run.last_seq), run
        return len({run.first_seq for run in self._lost}) < len(self._lost)

    def summarize(self) -> tuple[dict[str, Any], bool]:
        """The columns of transforms.summarize_boots, and the last of them apart: whether there are no gaps for sure."""
        intervals, lost = self._intervals, self._lost
        finals = [run.last_seq for run in self._runs if run.final]
        last = max((run.last_seq for run in intervals), default=None)
        lost_seq = max((run.last_seq for run in lost), default=None)
        count = len({run.first_seq for run in intervals}) + sum(run.last_seq - run.first_seq for run in intervals)
        row = {
            **dict(zip(BOOT_COLUMNS, self.key, strict=True)),
            "state": "final" if finals else "lost" if lost else "open",
            "intervals": count,
            "first_seq": min((run.first_seq for run in intervals), default=None),
            "last_seq": last,
            "start_ms": min((run.start_ms for run in intervals), default=None),
            "end_ms": max((run.end_ms for run in intervals), default=None),
            "lost_seq": lost_seq,
            "lost_ms": max((run.end_ms for run in lost), default=None),
            "final_seq": min(finals, default=None),
            "clusters": sorted({run.cluster for run in self._runs if run.cluster}),
            "changed": sum(run.changed_records for run in self._runs),
            "unchecked": sum(run.unchecked_records for run in self._runs),
            "chained": any(run.record_digest is not None for run in self._runs),
        }
        expected = 0 if last is None else last + 1
        is_single = all(run.parts == 1 for run in intervals)
        is_whole = is_single and count == expected and (lost_seq is None or lost_seq < expected)
        return row, is_whole

    def find_gaps(self, life: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The gaps of transforms.detect_gaps, in the order of first_seq and gap; `life`: the row of `summarize`."""
        return find_run_gaps(self._seen_runs(), life)

    def _seen_runs(self) -> Iterator[SeenRun]:
        for (first, last), found in groupby(self._intervals, lambda run: (run.first_seq, run.last_seq)):
            parts = [*found]
            start, end = min(part.start_ms for part in parts), max(part.end_ms for part in parts)
            yield SeenRun(first, last, max(part.parts for part in parts), len(parts), start, end)

    def count_broken(self) -> int:
        """The records that don't follow the one before them, where that is there (links.py)."""
        links = ChainLinks()
        for run in self._runs:
            links.add(LinkedRun(run.kind, *run[4:8], run.previous_digest, run.record_digest))
        return links.count_broken()
