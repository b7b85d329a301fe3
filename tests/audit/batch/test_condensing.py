# Sums and runs that are made as records are decoded say what the records say, or that a record may be there twice.

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from gateway.audit.batch import job, spark_sources, transforms
from gateway.audit.batch.query import AuditQuery, answer_query, ignore_progress
from gateway.audit.batch.rollups.progress import settle_copies
from gateway.audit.records import condensing, decoding
from gateway.audit.spark import schema
from gateway.audit.spark.arrow_map import map_in_arrow
from policies import usage
from tests.audit.records import START, Row, chained, changed, interval, lost
from tests.audit.test_decoding import GOOD, MALFORMED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Raw = Callable[[Sequence[str | None]], DataFrame]

QUESTIONS = (
    AuditQuery(("topic", "client_id"), 60_000),
    AuditQuery(("gateway", "worker", "outcome", "group"), 7_000, START + 5_000, START + 33_000),
    AuditQuery(("software", "reason", "broker", "principal"), None, START + 5_000),
)


def _life(chance: random.Random, boot: str, worker: int) -> list[str]:
    """A life's records with gaps, parts that are missing, a clock that steps back, and any end."""
    lines: list[str] = []
    for seq in range(chance.randrange(1, 40)):
        if chance.random() < 0.1:
            continue
        count = 1200 if chance.random() < 0.05 else chance.randrange(1, 4)
        rows = [
            Row(
                chance.randrange(-1, 3), f"t{chance.randrange(3)}", f"User:{chance.randrange(2)}", f"c{i % 5}",
                *chance.choice((("accepted", ""), ("rejected", "fence"), ("delayed", "client-quota"))),
                chance.randrange(10**9), chance.randrange(100), 1, chance.randrange(50),
                chance.choice(("", "g")), chance.choice(("", "kgo")), chance.choice((None, 0, 7)),
            )
            for i in range(count)
        ]  # fmt: skip
        at = START + 1000 * seq - (chance.randrange(5000) if chance.random() < 0.1 else 0)
        made = interval(seq, rows, boot=boot, worker=worker, start_ms=at, version=chance.choice((1, 2, 2)))
        if chance.random() < 0.1:
            made = [changed(made[0], parts=3)]
        lines += made if chance.random() < 0.8 else made[:1]
    if chance.random() < 0.3:
        lines.append(lost(chance.randrange(-1, 45), boot=boot, worker=worker))
    elif chance.random() < 0.5:
        lines += interval(41, (), boot=boot, worker=worker, final=True)
    return lines


def _log(seed: int) -> list[str | None]:
    chance = random.Random(seed)
    lines: list[str | None] = [line for worker in range(4) for line in _life(chance, f"b{seed}-{worker % 2}", worker)]
    lines += chained(_life(chance, f"chained{seed}", 0), chance.choice((None, b"k" * 32)))
    lines += [line.replace('"delay_ms":1', '"delay_ms":2') for line in chained(_life(chance, f"forged{seed}", 0))]
    lines += chance.sample([line for line, _ in MALFORMED.values()], 4)
    lines.append(None)
    if chance.random() < 0.5:
        chance.shuffle(lines)
    return lines


def _answer(records: Any, question: AuditQuery) -> Any:
    report = answer_query(records, question)
    trust = report.integrity
    fixed = {name: getattr(trust, name) for name in trust.__slots__ if name != "samples"}
    return report.rows, fixed, sorted(map(repr, trust.samples))


def test_condensed_sources_give_the_same_answers(raw: Raw) -> None:
    sources = [
        spark_sources.AuditSource(raw([*_log(0), *_log(1), *_log(2)]).repartition(2).persist(), {"kind": "lines"})
    ]
    with job.read_sources(sources, ignore_progress) as plain:
        for question in QUESTIONS:
            with job.read_sums(sources, ignore_progress, question=question) as records:
                assert "first_seq" in records.intervals.columns, "no record is there twice"
                assert _answer(records, question) == _answer(plain, question)
    sources[0].raw_lines.unpersist()


def test_gaps_and_lives_follow_from_runs_of_the_table(raw: Raw) -> None:
    decoded = transforms.decode_records(raw([*_log(4), *interval(0, boot="torn"), changed(GOOD, boot="torn", parts=2)]))
    records = transforms.drop_copies(transforms.mark_copies(decoded)).persist()
    for kept in (records.where("boot <> 'torn'"), records):
        numbers = kept.select(*condensing.RecordNumber._fields)
        runs = map_in_arrow(numbers, condensing.condense_numbers, schema.RUN_SCHEMA).persist()
        runs = settle_copies(runs, kept)
        for ask in (transforms.detect_gaps, transforms.summarize_boots):
            one, other = (sorted(map(str, ask(frame).collect())) for frame in (kept, runs))
            assert one == other
            assert one
        runs.unpersist()
    records.unpersist()


def test_copies_show_in_the_runs(raw: Raw) -> None:
    cases: list[tuple[list[str], bool]] = [
        ([GOOD], True),
        ([changed(GOOD, parts=2)], True),
        ([changed(GOOD, parts=2, part=1)], True),  # one record, or one of two: which is right is for others to say
        ([lost(0), lost(0)], True),
        ([lost(0), lost(1)], False),
        (interval(1, [Row(client_id=str(i)) for i in range(2300)]), False),
        (interval(1, [Row(client_id=str(i)) for i in range(2300)])[1:] * 2, True),
        ([*interval(2), *interval(1)], False),
        ([*interval(1), *interval(2), *interval(3), *interval(2)], True),
        (interval(0, boot="b2"), False),
        (interval(0, worker=1), False),
    ]  # fmt: skip
    # Each case is a gateway of its own.
    lines = [changed(line, gateway=f"{i}") for i, (more, _) in enumerate(cases) for line in (GOOD, *more)]
    runs = transforms.condense_records(raw(lines).repartition(1), AuditQuery()).where("kind is not null")
    found = {row["gateway"] for row in transforms.find_copies(runs.select(*schema.RUN_SCHEMA.names)).collect()}
    assert found == {f"{i}" for i, (_, twice) in enumerate(cases) if twice}


def _condensed(lines: Sequence[str], by: Sequence[str] = (), window_ms: int | None = None) -> list[dict[str, Any]]:
    condenser = condensing.UsageCondenser(by, window_ms, None, None)
    for line in lines:
        problem = condenser.add_value(line.encode())
        if problem is not None:
            condenser.add_malformed(problem, line.encode(), "here")
    return list(condenser.drain().to_pylist())


def test_sums_are_handed_on_before_they_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for seq in range(200) for line in interval(seq, [Row(client_id=f"c{seq % 40}"), Row()])]
    batches = [
        pa.record_batch([pa.array(lines[i : i + 30]), pa.array([""] * len(lines[i : i + 30]))], ["value", "origin"])
        for i in range(0, 200, 30)
    ]

    def ask() -> tuple[int, dict[str, int], list[tuple[int, int]]]:
        given = condensing.condense_columns(batches, by=("client_id",), window_ms=None, from_ms=None, to_ms=None)
        found = [batch.to_pylist() for batch in given]
        sums: Counter[str] = Counter()
        for row in (row for rows in found for row in rows if row["outcome"]):
            sums[row["client_id"]] += row["bytes"]
        runs = [(row["first_seq"], row["last_seq"]) for rows in found for row in rows if row["kind"]]
        return len(found), sums, runs

    assert ask()[::2] == (1, [(0, 199)])
    whole = ask()[1]
    monkeypatch.setattr(condensing, "_MAX_GROUPS", 5)
    count, sums, runs = ask()
    assert (count, sums) == (8, whole)
    assert [first for first, _ in runs[1:]] == [last + 1 for _, last in runs[:-1]]


def test_a_life_in_order_is_one_run() -> None:
    lines = [line for seq in range(50) for line in (*interval(seq), *interval(seq, worker=1))]
    runs = [row for row in _condensed([*lines, *interval(50, (), final=True)]) if row["kind"]]
    assert [(run["worker"], run["first_seq"], run["last_seq"], run["final"]) for run in runs] == [
        (0, 0, 50, True),
        (1, 0, 49, False),
    ]
    assert (runs[0]["start_ms"], runs[0]["end_ms"]) == (START, START + 51_000)


def test_sums_are_one_row_for_each_group_and_malformed_records_are_counted() -> None:
    lines = [line for seq in range(120) for line in interval(seq, [Row(), Row(group="g", repeats=3)])]
    rows = _condensed([*lines, *["rubbish"] * 30, "", '{"half'], ("topic",), 60_000)
    sums = [row for row in rows if row["outcome"]]
    assert [(row["start_ms"], row["bytes"], row["repeats"]) for row in sums] == [
        (START, 6000, None), (START, 6000, 180), (START + 60_000, 6000, None), (START + 60_000, 6000, 180)
    ]  # fmt: skip
    assert {name for row in sums for name in usage.ROW_FIELDS if row[name] is None} == {
        "broker", "principal", "client_id"
    }  # fmt: skip
    bad = [row for row in rows if row["problem"]]
    assert sum(row["count"] for row in bad) == 32
    told = [row for row in bad if row["origin"]]
    # The first ones by origin, which is the same here, then by problem ("empty" comes first).
    assert [row["sample"] for row in told] == ["", *["rubbish"] * (decoding.MAX_SAMPLES - 1)]


def test_columns_are_those_that_spark_expects() -> None:
    assert condensing.CONDENSED_SCHEMA.names == schema.CONDENSED_SCHEMA.names
    assert condensing.RUN_SCHEMA.names == schema.RUN_SCHEMA.names
