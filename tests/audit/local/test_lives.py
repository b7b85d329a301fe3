# A life's numbers, in any order of arrival: against counting without arrays, and against Spark.

from __future__ import annotations

import operator
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from gateway.audit.batch.rollups.runs import join_runs
from gateway.audit.local.lives import COPY, NEW, OTHER, WorkerLife
from gateway.audit.local.run_lives import NumberRun, RunLife
from policies import usage
from tests.audit.records import START, UNCHAINED, UNCHAINED_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Header(NamedTuple):
    kind: str
    seq: int
    part: int
    parts: int
    start_ms: int
    end_ms: int
    final: bool


def _interval(seq: int, part: int = 0, parts: int = 1, *, final: bool = False) -> Header:
    return Header(usage.INTERVAL, seq, part, parts, START + 1000 * seq + part, START + 1000 * seq + 1000, final)


def _lost(seq: int) -> Header:
    return Header(usage.LOST, seq, 0, 1, START + 90_000, START + 90_000, False)


def _noted(headers: Sequence[Header]) -> WorkerLife:
    life = WorkerLife()
    for header in headers:
        assert life.add(*header, mark=1) == NEW
    return life


def _gaps(life: WorkerLife) -> list[tuple[Any, ...]]:
    row, is_whole = life.summarize(("gw", "b", 0))
    found = [tuple(gap.values())[3:] for gap in life.find_gaps(row)]
    assert not (is_whole and found)
    return found


def test_a_copy_is_the_same_text_and_any_other_record_of_its_name_is_not() -> None:
    life = WorkerLife()
    for header in (_interval(0), _interval(5), _interval(1, 1, 2), _lost(1), _interval(300)):
        assert life.add(*header, mark=7) == NEW
        assert life.add(*header, mark=7) == COPY
        assert life.add(*header, mark=8) == OTHER
    # The name says nothing of the number of parts.
    assert life.add(*_interval(5, 0, 3), mark=8) == OTHER
    assert life.add(*_interval(1, 0, 2), mark=7) == NEW
    assert life.add(*_interval(1), mark=8) == OTHER


def test_what_follows_in_order_may_be_appended() -> None:
    life = WorkerLife()
    for seq in range(3):
        assert life.next_seq == seq
        life.append((7, START + seq, START + seq + 1))
        life.next_seq = seq + 1
    assert [life.add(*_interval(seq), mark=7) for seq in (0, 2, 3)] == [COPY, COPY, NEW]
    row, is_whole = life.summarize(("gw", "b", 0))
    assert is_whole
    assert (row["intervals"], row["first_seq"], row["last_seq"], row["start_ms"]) == (4, 0, 3, START)


@pytest.mark.parametrize("far", [70, 10_000_000])
def test_a_number_far_ahead_takes_no_room_for_those_between(far: int) -> None:
    life = _noted([_interval(0), _interval(far), _interval(far + 1)])
    assert len(life.cells) < 1000
    after, before = START + 1000, START + 1000 * far
    assert _gaps(life) == [("seq", 1, far - 1, far - 1, after, before)]


def _random_headers(chance: random.Random) -> list[Header]:
    """Of one life, in any order."""
    first, count = chance.choice((0, 0, 0, 3, 10**9)), chance.randrange(0, 40)
    seqs = [first + seq for seq in range(count) if chance.random() < 0.85]
    seqs += [first + 500 + seq for seq in range(chance.choice((0, 0, 5)))]
    found = []
    for seq in seqs:
        parts = chance.choice((1, 1, 1, 1, 2, 3))
        there = [part for part in range(parts) if parts == 1 or chance.random() < 0.8]
        found += [_interval(seq, part, parts, final=chance.random() < 0.02) for part in there]
        if chance.random() < 0.05:  # of an interval that says elsewhere that it has one part
            found += [_interval(seq, 3, 4)]
    if chance.random() < 0.4 or not found:
        found += [_lost(seq) for seq in chance.sample(range(-1, first + count + 5), 2)]
    swaps = chance.choice((0, 0, 3, 200))
    for _ in range(swaps if found else 0):
        i, j = chance.randrange(len(found)), chance.randrange(len(found))
        found[i], found[j] = found[j], found[i]
    return found


def _life_of_runs(headers: Sequence[Header]) -> RunLife:
    """The same, of which what follows each other is one run, now and then."""
    rows = []
    for each in sorted(headers, key=lambda each: (each.seq, each.part)):
        numbers = {"first_seq": each.seq, "last_seq": each.seq, "part": each.part, "parts": each.parts}
        times = {"start_ms": each.start_ms, "end_ms": each.end_ms, "final": each.final}
        chain = dict.fromkeys(("cluster", "previous_digest", "record_digest"))
        whose = {"gateway": "gw", "boot": "b", "worker": 0, "kind": each.kind}
        rows.append(whose | numbers | times | chain | {"changed_records": 0, "unchecked_records": 0})
    at = len(rows) // 2
    halves = [[row for row in half if row["kind"] == kind] for half in (rows[:at], rows[at:]) for kind in _KINDS]
    joined = _run_life(row for half in halves for row in join_runs(half))
    return _run_life(rows) if joined.has_copies() else joined


def _run_life(rows: Iterable[dict[str, Any]]) -> RunLife:
    order = operator.attrgetter("first_seq", "part", "last_seq")
    return RunLife(("gw", "b", 0), sorted((NumberRun(**row) for row in rows), key=order))


_KINDS = (usage.INTERVAL, usage.LOST)


def _plain_gaps(headers: Sequence[Header]) -> list[tuple[Any, ...]]:
    by_seq: dict[int, list[Header]] = defaultdict(list)
    for header in headers:
        if header.kind == usage.INTERVAL:
            by_seq[header.seq].append(header)
    found: list[tuple[Any, ...]] = []
    expected = 0
    after: int | None = None
    for seq, parts in sorted(by_seq.items()):
        start, end = min(each.start_ms for each in parts), max(each.end_ms for each in parts)
        if seq > expected:
            found.append(("seq", expected, seq - 1, seq - expected, after, start))
        if (missing := max(each.parts for each in parts) - len(parts)) > 0:
            found.append(("parts", seq, seq, missing, start, end))
        expected, after = seq + 1, end
    lost = [header for header in headers if header.kind == usage.LOST]
    if lost and (last := max(each.seq for each in lost)) >= expected:
        latest = max((each.end_ms for parts in by_seq.values() for each in parts), default=None)
        found.append(("seq", expected, last, last - expected + 1, latest, max(each.end_ms for each in lost)))
    return found


@pytest.mark.parametrize("seed", range(10))
def test_gaps_and_lives_are_those_of_plain_counting(seed: int) -> None:
    for number in range(100):
        _check_plainly(_random_headers(random.Random(100 * seed + number)))


def _check_plainly(headers: Sequence[Header]) -> None:
    life = _noted(headers)
    assert _gaps(life) == _plain_gaps(headers)
    row, _ = life.summarize(("gw", "b", 0))
    runs = _life_of_runs(headers)
    assert runs.summarize()[0] == row
    assert [*runs.find_gaps(row)] == [*life.find_gaps(row)]
    intervals = [header for header in headers if header.kind == usage.INTERVAL]
    seqs = {header.seq for header in intervals}
    assert (row["intervals"], row["first_seq"], row["last_seq"]) == (
        *(len(seqs), min(seqs, default=None), max(seqs, default=None)),
    )
    assert row["start_ms"] == min((header.start_ms for header in intervals), default=None)
    assert row["end_ms"] == max((header.end_ms for header in intervals), default=None)


def test_spark_says_the_same(spark: SparkSession) -> None:
    from gateway.audit import columns
    from gateway.audit.batch import transforms

    lives = {f"b{seed:03}": _random_headers(random.Random(seed)) for seed in range(200)}
    rows = [
        ("gw", boot, 0, each.kind, each.seq, each.parts, each.final, each.start_ms, each.end_ms, *UNCHAINED)
        for boot, headers in lives.items()
        for each in headers
    ]
    kinds = "string, boot string, worker long, kind string, seq long, parts long, final boolean, start_ms long"
    records = spark.createDataFrame(rows, f"gateway {kinds}, end_ms long, {UNCHAINED_COLUMNS}").persist()
    by_boot = {row["boot"]: row.asDict() for row in transforms.summarize_boots(records).collect()}
    found = transforms.detect_gaps(records).orderBy(*columns.BOOT_COLUMNS, "first_seq", "gap").collect()
    gaps = []
    for boot, headers in lives.items():
        life = _noted(headers)
        row, is_whole = life.summarize(("gw", boot, 0))
        assert list(by_boot[boot].items()) == list((row | {transforms.WHOLE_COLUMN: is_whole}).items())
        gaps += list(life.find_gaps(row))
    assert [list(row.asDict().items()) for row in found] == [list(gap.items()) for gap in gaps]
    assert len(gaps) > 100
    records.unpersist()
