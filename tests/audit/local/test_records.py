# The local engine on logs that are damaged in any way: against sums told without it, and byte for byte against Spark.

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.audit import columns
from gateway.audit.answers.answer import AuditAnswer, render_answer
from gateway.audit.answers.windows import QUARTER_HOUR_MS, CalendarWindows
from gateway.audit.batch import query, tables
from gateway.audit.batch.query import AuditQuery, CountedRecords
from gateway.audit.local.records import LocalRecords
from gateway.audit.local.spool import SpoolSource
from gateway.audit.report import report, top
from gateway.audit.report.top import RankingOptions
from policies import usage
from tests.audit.records import START, LineSource, Row, chained, changed, interval, lost, summed, truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FATES = [("accepted", ""), ("rejected", "topic-threshold"), ("errored", "REQUEST_TIMED_OUT"), ("unanswered", "")]
BESIDE = [("delayed", "client-quota"), ("would_reject", "topic-threshold"), ("would_delay", "client-quota")]
BYS = [(), ("topic",), ("topic", "client_id"), ("outcome", "reason"), ("cluster", "worker", "group", "software")]
KEY = b"k" * 32


def _rows(chance: random.Random) -> list[Row]:
    return [
        Row(
            chance.randrange(-1, 3),
            chance.choice(("clicks", "täglich", "e\u0301", "\u00e9", 'quo"te', "🎉", "日本\u2028")),
            f"User:{chance.randrange(3)}",
            chance.choice(("", "c", "C", "c ", " c")),
            *chance.choice((*FATES, *BESIDE, ("dropped", "acks0-limit"))),
            *(chance.choice((0, 1, 2**31, usage.MAX_COUNT)), chance.randrange(9), chance.randrange(3)),
            chance.randrange(2),
            *chance.choice((("", ""), ("web", "librdkafka"))),
            chance.choice((None, 0, 1)),
        )
        for _ in range(chance.randint(1, 4))
    ]


def _log(chance: random.Random, name: str = "", parted: float = 0.1) -> list[str]:
    """Some lives with numbers missing, late, twice; several parts, in that share; both versions."""
    lines: list[str] = []
    for life in range(chance.randint(1, 4)):
        about: dict[str, Any] = {"boot": f"{name}{life}", "worker": life % 2}
        cluster = chance.choice(("", "A", "B"))
        count, begun = chance.randint(1, 12), len(lines)
        for seq in range(count):
            version = chance.choice(usage.READ_VERSIONS)
            start = START + chance.choice((1000 * seq, 61_000 * seq, -86_400_000 * seq))
            final = seq == count - 1 and chance.random() < 0.5
            rows = _rows(chance)
            if chance.random() < parted:
                rows += [Row(client_id=str(number)) for number in range(1100)]
            lines += interval(seq, rows, **about, start_ms=start, final=final, cluster=cluster, version=version)
        lines += [lost(chance.randint(-1, count + 2), **about)] if chance.random() < 0.4 else []
        if chance.random() < 0.5:
            lines = [*lines[:begun], *chained(lines[begun:], chance.choice((None, KEY)))]
    lines = [line for line in lines if chance.random() < 0.9]
    lines += chance.choices(lines, k=chance.randint(0, 9)) if lines else []
    chance.shuffle(lines) if chance.random() < 0.5 else None
    return lines


def _damaged(chance: random.Random, lines: Sequence[str]) -> list[str]:
    """With lines broken, merged, strange, or between them what is no record."""
    found: list[str] = []
    for line in lines:
        how = chance.random()
        if how < 0.05:
            found.append(line[: chance.randrange(len(line))])
        elif how < 0.08:
            found.append(line + line)
        elif how < 0.11:
            found.append(changed(line, kind="day"))
        elif how < 0.14:
            found.append(chance.choice(("", " ", "hello", "[]", "null", "\ufefftrue")))
        found.append(changed(line, region=[{}]) if how > 0.97 else line)
    return found


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(BYS), st.sampled_from((None, 60_000, 86_400_000)))
def test_sums_of_a_damaged_log_are_those_of_its_good_records(
    seed: int, by: tuple[str, ...], window: int | None
) -> None:
    chance = random.Random(seed)
    lines = _log(chance, parted=0.02)
    # One text for each name: of several, the contents decide, which `truth` knows nothing of.
    names: dict[tuple[object, ...], str] = {}
    for line in lines:
        record = json.loads(line)
        names.setdefault((record["kind"], *usage.record_identity(record)), line)
    damaged = _damaged(chance, lines)
    found = LocalRecords([LineSource(damaged)])
    rows = found.sum_groups(AuditQuery(by, window))
    keys = [*([columns.WINDOW_COLUMN] if window else []), *by]
    expected = _truth(list(names.values()), by, window)
    assert summed(rows, keys) == (expected if keys or expected else {(): [0] * 5})
    trust = found.find_gaps(AuditQuery())
    assert (trust.records, trust.conflicts) == (len(damaged), 0)
    assert trust.malformed == sum(not _is_good(line) for line in damaged)
    assert trust.duplicates == trust.records - trust.malformed - len(names)


def _is_good(line: str) -> bool:
    try:
        usage.decode_record(line)
    except usage.InvalidUsageRecord:
        return False
    return True


def _truth(lines: Sequence[str], by: Sequence[str], window: int | None) -> dict[tuple[object, ...], list[int]]:
    """records.truth, with what its rows haven't got, and without what isn't offered."""
    plain = []
    for line in lines:
        record = json.loads(line)
        for row in record["rows"]:
            row |= {"worker": record["worker"], "cluster": record.get("cluster", "")}
            row |= {name: row.get(name, "") if record["version"] > 1 else "" for name in ("group", "software")}
            if row["outcome"] in usage.NOTES:
                row |= {"bytes": 0, "messages": 0}
        plain.append(json.dumps(record))
    return truth(plain, by, window)


Open = Callable[[AuditQuery], AbstractContextManager[CountedRecords]]


def _show_answer(answer: AuditAnswer) -> list[str]:
    return ["\n".join(render_answer(answer, form)) for form in ("table", "json")]


def _answers(bys: Sequence[tuple[str, ...]], open_records: Open) -> list[str]:
    """All that the commands print of some questions."""
    found = []
    questions = [
        AuditQuery(by, window, *((START + 1000, START + 200_000) if "outcome" in by else (None, None)))
        for by, window in zip(bys, itertools.cycle((None, 60_000)), strict=False)
    ]
    days = CalendarWindows("day", "Australia/Lord_Howe")
    for question in [*questions, AuditQuery(("topic",), QUARTER_HOUR_MS, calendar=days)]:
        with open_records(question) as records, query.stream_report(records, question) as report:
            found += _show_answer(tables.report_answer(report, ("bytes",)))
    for what, by, window in (("dropped", ("client_id",), None), ("offered", ("reason", "topic"), 60_000)):
        question = AuditQuery(by, window)
        with open_records(question) as records:
            ranking = top.rank_groups(records, RankingOptions(question, what, 3))
        found += _show_answer(top.ranking_answer(ranking))
    return found


@pytest.mark.parametrize("copies", [True, False])
def test_spark_answers_the_same_to_the_byte(
    spark: SparkSession, copies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.audit.batch import groups, job, spark_sources

    if copies:  # rows come from Spark one after the other, as those of large answers do
        monkeypatch.setattr(groups, "HELD_ROWS", 2)
    chance = random.Random(3)
    lines = [line for name in "abcd" for line in _damaged(chance, _log(chance, name))]
    good = [line for line in lines if _is_good(line)]
    if copies:
        contradicting = [changed(line, rows=[], final=True) for line in good if '"interval"' in line]
        lines += [*contradicting[:5], *(changed(line, region="eu") for line in good[:5])]
    else:
        names: set[tuple[object, ...]] = set()
        for line in good:
            record = json.loads(line)
            name = (record["kind"], *usage.record_identity(record))
            for _ in range(lines.count(line) if name in names else lines.count(line) - 1):
                lines.remove(line)
            names.add(name)
    raw = [line.encode() for line in lines] + [b"\xff\xfe{", b"a\x01\xc3\x28" * 90, *[b"rubbish"] * 9]
    raw += [good[0].encode() + b"\r"] if copies else []
    chance.shuffle(raw)
    half = len(raw) // 2
    (tmp_path / "usage-1 a+%.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\n".join(raw[:half]) + b"\n\n")
    (tmp_path / "usage-2.jsonl").write_bytes(b"\n".join(raw[half:]))  # its last line has no end
    (tmp_path / "_hidden.jsonl").write_bytes(b"hidden\n")
    (tmp_path / "published.json").write_bytes(b"{}\n")
    (tmp_path / "empty.jsonl").touch()
    paths = [str(tmp_path), *([str(tmp_path / "usage-2*")] if copies else [])]
    keys = (KEY,) if copies else ()
    local = LocalRecords([SpoolSource(path) for path in paths], keys)
    sources = [replace(spark_sources.read_spool(spark, path), keys=keys) for path in paths]
    # With copies all records are read, for any question.
    bys = BYS[2:3] if copies else (BYS[0], BYS[3], BYS[4])
    ours = _answers(bys, lambda _: nullcontext(local))
    if copies:
        with job.read_sums(sources, question=AuditQuery(bys[0])) as found:
            sparks = _answers(bys, lambda _: nullcontext(found))
            facts = [report.gather_facts(each, START + 1000, START + 200_000, 3, 4) for each in (local, found)]
        assert facts[0] == facts[1]
    else:
        sparks = _answers(bys, lambda question: job.read_sums(sources, question=question))
    for one, other in zip(ours, sparks, strict=True):
        assert one.splitlines() == other.splitlines()
    trust = local.find_gaps(AuditQuery())
    assert min(trust.malformed - 10, trust.gaps_total) > 3
    assert (trust.duplicates > 20, trust.conflicts > 3) == (copies, copies)
    assert trust.changed
    assert trust.clusters == ["A", "B"]
    assert (trust.unchecked > 0) is not copies
