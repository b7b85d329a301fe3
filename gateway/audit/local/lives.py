# The numbers of each worker's life, as its records come in any order: which one is a copy, which are missing, how it
# ended. Says the same as transforms.summarize_boots and detect_gaps. Pure; knows no rows and no text.

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from gateway.audit.columns import BOOT_COLUMNS
from gateway.audit.local.links import ChainLinks, LinkedRun
from policies import usage

LifeKey = tuple[str, str, int]  # gateway, boot, worker

NEW, COPY, OTHER = range(3)  # what `add` says of a record: the first; the same text again; a copy of another text

_CELLS, _START, _END = 3, 1, 2  # of an interval: their number, and where its times are
_HOLE: Final = -1  # the start of an interval that isn't in the cells
_MIN_HOLES: Final = 64


class _Interval(NamedTuple):
    parts: int
    seen: int
    start_ms: int
    end_ms: int


class SeenRun(NamedTuple):
    """Intervals that follow each other, or some of the parts of one: `seen` of `parts`. From the start of the first
    to the end of the last.
    """

    first_seq: int
    last_seq: int
    parts: int
    seen: int
    start_ms: int
    end_ms: int


class _OtherRecord(NamedTuple):
    mark: int
    parts: int
    start_ms: int
    end_ms: int


class WorkerLife:
    """The records of one life. Intervals of one part that come in their order take 24 bytes each, others some 300.

    `cells`: mark, start_ms and end_ms of each interval of one part, in the order of numbers; `next_seq`: the first
    number behind them. `others`: the other records, by kind, seq and part. A record that may follow these in order is
    added by `append`, which asks nothing; any other by `add`.
    """

    __slots__ = (
        "_first",
        "_holes",
        "append",
        "cells",
        "changed",
        "clusters",
        "final_seq",
        "links",
        "next_seq",
        "others",
        "unchecked",
    )

    def __init__(self) -> None:
        self._first = self._holes = self.next_seq = 0
        self.cells = array("q")
        self.append = self.cells.extend
        self.others: dict[tuple[str, int, int], _OtherRecord] = {}
        self.final_seq: int | None = None
        self.clusters: set[str | None] = set()  # of records that count
        self.links: ChainLinks | None = None  # of a life with digests
        self.changed = self.unchecked = 0  # records with a wrong one, and with one whose key isn't here

    def end(self, seq: int) -> None:
        """Note that this interval said it was the last."""
        self.final_seq = seq if self.final_seq is None else min(seq, self.final_seq)

    def begin_chain(self) -> None:
        """Call it before the first record with a digest is added."""
        self.links = ChainLinks()
        for first, last in self._cell_runs():
            self.links.add(LinkedRun(usage.INTERVAL, first, last, 0, 1, None, None))
        for (kind, seq, part), record in self.others.items():
            self.links.add(LinkedRun(kind, seq, seq, part, record.parts, None, None))

    def add_digest(self, record: LinkedRun, changed: bool | None) -> None:
        """Note a record that counts; `changed`: as record_digests.is_changed has it."""
        if self.links is not None:
            self.links.add(record)
        self.changed += changed is True
        self.unchecked += record.digest is not None and changed is None

    def add(
        self, kind: str, seq: int, part: int, parts: int, start_ms: int, end_ms: int, final: bool, mark: int
    ) -> int:
        """Note a record down; gives NEW, COPY or OTHER, of which only the first is noted.

        `mark`: 64 bits, signed; two records with the same one are the same text.
        """
        if part == 0 and kind == usage.INTERVAL:
            at = _CELLS * (seq - self._first)
            if 0 <= at < len(self.cells) and self.cells[at + _START] != _HOLE:
                return COPY if self.cells[at] == mark else OTHER
            if parts == 1 and (kind, seq, 0) not in self.others and self._reach(seq):
                at = _CELLS * (seq - self._first)
                self.cells[at : at + _CELLS] = array("q", (mark, start_ms, end_ms))
                self._holes -= 1
                if final:
                    self.end(seq)
                return NEW
        known = self.others.get((kind, seq, part))
        if known is not None:
            return COPY if known.mark == mark else OTHER
        self.others[kind, seq, part] = _OtherRecord(mark, parts, start_ms, end_ms)
        if final:
            self.end(seq)
        return NEW

    def _reach(self, seq: int) -> bool:
        """Whether the cells have room for that number now: never more holes than records, or a few."""
        if not self.cells:
            self._first = self.next_seq = seq
        if seq < self._first or seq - self.next_seq > _MIN_HOLES + self.next_seq - self._first:
            return False
        new = max(0, seq + 1 - self.next_seq)
        self.append((0, _HOLE, 0) * new)
        self._holes += new
        self.next_seq += new
        return True

    def summarize(self, life: LifeKey) -> tuple[dict[str, Any], bool]:
        """The columns of transforms.summarize_boots, and the last of them apart: whether there are no gaps for sure."""
        lost = {seq: record for (kind, seq, _), record in self.others.items() if kind == usage.LOST}
        others = [(seq, record) for (kind, seq, _), record in self.others.items() if kind == usage.INTERVAL]
        seqs = {seq for seq, _ in others if self._cell_interval(seq) is None}
        numbers = [*seqs]
        starts, ends = [record.start_ms for _, record in others], [record.end_ms for _, record in others]
        if self.cells:  # the first and the last are no holes
            numbers += [self._first, self.next_seq - 1]
            starts.append(min(at for at in self.cells[_START::_CELLS] if at != _HOLE))
            ends.append(max(self.cells[_END::_CELLS]))
        last, lost_seq = max(numbers, default=None), max(lost, default=None)
        row = {
            **dict(zip(BOOT_COLUMNS, life, strict=True)),
            "state": "final" if self.final_seq is not None else "lost" if lost else "open",
            "intervals": self.next_seq - self._first - self._holes + len(seqs),
            "first_seq": min(numbers, default=None),
            "last_seq": last,
            "start_ms": min(starts, default=None),
            "end_ms": max(ends, default=None),
            "lost_seq": lost_seq,
            "lost_ms": max((record.end_ms for record in lost.values()), default=None),
            "final_seq": self.final_seq,
            "clusters": sorted(cluster for cluster in self.clusters if cluster),
            "changed": self.changed,
            "unchecked": self.unchecked,
            "chained": self.links is not None,
        }
        expected = 0 if last is None else last + 1
        is_single = all(record.parts == 1 for _, record in others)
        is_whole = is_single and row["intervals"] == expected and (lost_seq is None or lost_seq < expected)
        return row, is_whole

    def find_gaps(self, life: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The gaps of transforms.detect_gaps, in the order of first_seq and gap; `life`: the row of `summarize`."""
        return find_run_gaps(self._seen_runs(), life)

    def _seen_runs(self) -> Iterator[SeenRun]:
        for first, last, interval in self._runs():
            end_ms = interval.end_ms if first == last else self._interval_at(last).end_ms
            yield SeenRun(first, last, interval.parts, interval.seen, interval.start_ms, end_ms)

    def _runs(self) -> Iterator[tuple[int, int, _Interval]]:
        """First and last number of intervals that follow each other, and the first of them; in the order of numbers.
        One that isn't only in the cells is a run by itself.
        """
        found: dict[int, _Interval] = {}
        for (kind, seq, _), record in self.others.items():
            if kind == usage.INTERVAL:
                found[seq] = _merge_part(found.get(seq) or self._cell_interval(seq), record)
        apart = sorted(found, reverse=True)
        for first, last in self._cell_runs():
            while apart and apart[-1] <= last:
                seq = apart.pop()
                if first < seq:
                    yield first, seq - 1, self._interval_at(first)
                yield seq, seq, found[seq]
                first = max(first, seq + 1)
            if first <= last:
                yield first, last, self._interval_at(first)
        for seq in reversed(apart):
            yield seq, seq, found[seq]

    def _cell_runs(self) -> Iterator[tuple[int, int]]:
        starts, at = self.cells[_START::_CELLS], 0
        for _ in range(self._holes):
            hole = starts.index(_HOLE, at)
            if hole > at:
                yield self._first + at, self._first + hole - 1
            at = hole + 1
        if at < len(starts):
            yield self._first + at, self.next_seq - 1

    def _cell_interval(self, seq: int) -> _Interval | None:
        is_there = self._first <= seq < self.next_seq and self._interval_at(seq).start_ms != _HOLE
        return self._interval_at(seq) if is_there else None

    def _interval_at(self, seq: int) -> _Interval:
        at = _CELLS * (seq - self._first)
        return _Interval(1, 1, self.cells[at + _START], self.cells[at + _END])


def find_run_gaps(runs: Iterable[SeenRun], life: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The gaps of transforms.detect_gaps, in the order of first_seq and gap, of a life's runs in their order; `life`:
    its columns of transforms.summarize_boots.
    """
    names = {name: life[name] for name in BOOT_COLUMNS}

    def gap(kind: str, first: int, last: int, missing: int, after: int | None, before: int) -> dict[str, Any]:
        found = {"gap": kind, "first_seq": first, "last_seq": last, "missing": missing}
        return {**names, **found, "after_ms": after, "before_ms": before}

    expected, after = 0, None
    for run in runs:
        if run.first_seq > expected:
            yield gap("seq", expected, run.first_seq - 1, run.first_seq - expected, after, run.start_ms)
        if run.seen < run.parts:
            yield gap("parts", run.first_seq, run.first_seq, run.parts - run.seen, run.start_ms, run.end_ms)
        expected, after = run.last_seq + 1, run.end_ms
    lost_seq = life["lost_seq"]
    if lost_seq is not None and lost_seq >= expected:
        yield gap("seq", expected, lost_seq, lost_seq - expected + 1, life["end_ms"], life["lost_ms"])


def _merge_part(known: _Interval | None, part: _OtherRecord) -> _Interval:
    if known is None:
        return _Interval(part.parts, 1, part.start_ms, part.end_ms)
    return _Interval(
        max(known.parts, part.parts), known.seen + 1, min(known.start_ms, part.start_ms), max(known.end_ms, part.end_ms)
    )
