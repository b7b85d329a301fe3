# The audit's arithmetic on static DataFrames: what is malformed, what counts once, sums, windows, gaps.

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from gateway.audit.batch import transforms
from gateway.audit.batch.query import AuditQuery, CountedRecords
from gateway.audit.records import record_batches
from gateway.audit.spark import schema
from gateway.audit.spark.arrow_map import map_in_arrow
from policies import usage
from tests.audit.records import START, UNCHAINED, UNCHAINED_COLUMNS, Row, changed, interval, lost, summed, truth
from tests.audit.test_decoding import MALFORMED, WELL_FORMED, generated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Make = Callable[[Sequence[str | None]], DataFrame]
    MakeRecords = Callable[[Sequence[str | None]], CountedRecords]


def test_spark_gives_what_the_decoder_gives_and_where_it_was_found(spark: SparkSession, raw: Make) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    lines: list[str | None] = [None, *generated(1500), *WELL_FORMED.values(), *(line for line, _ in MALFORMED.values())]
    expected = record_batches.decode_values([None if line is None else line.encode() for line in lines]).to_pylist()
    found = transforms.decode_records(raw(lines).repartition(3))
    assert found.columns == [*record_batches.DECODED_SCHEMA.names, "origin"]
    rows = {row["origin"]: row.asDict(recursive=True) for row in found.collect()}
    for number, row in enumerate(expected):
        assert rows[f"line {number}"] == row | {"origin": f"line {number}"}
    # As the topic gives it: bytes, from a place that is a structure.
    place = F.struct(F.lit(1).alias("partition"), F.lit(7).cast("long").alias("offset"))
    broken = spark.createDataFrame([(bytearray(b"\xff"),)], "value binary").select("value", place.alias("origin"))
    (row,) = transforms.decode_records(broken).collect()
    assert (row["problem"], row["origin"]["offset"]) == ("not UTF-8", 7)
    assert transforms.decode_records(raw([]).where("false")).collect() == []


def test_python_workers_search_no_archive_for_pyspark(spark: SparkSession) -> None:
    """Python up to 3.12 would read it anew for each task."""

    def list_path(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"path": sys.path})

    kinds = StructType([StructField("path", StringType())])
    found = [row["path"] for row in map_in_arrow(spark.range(1).coalesce(1), list_path, kinds).collect()]
    assert found
    assert not [path for path in found if path.endswith((".zip", ".jar")) and Path(path).exists()]


def _log() -> list[str]:
    """Two workers over ten minutes; a third's interval has three parts; every number different."""
    chance = random.Random(7)
    fates = [("accepted", ""), ("rejected", "topic-threshold"), ("errored", "MESSAGE_TOO_LARGE"), ("unanswered", "")]

    def rows(count: int) -> list[Row]:
        return [
            Row(
                chance.randrange(3), f"t{chance.randrange(4)}", f"User:{chance.randrange(3)}", f"c{i}",
                *chance.choice(fates), chance.randrange(10**6), chance.randrange(1000), 1, 0,
            )
            for i in range(count)
        ]  # fmt: skip

    lines = [line for w in (0, 1) for seq in range(20) for line in interval(seq * 1, rows(5), worker=w)]
    lines += interval(0, rows(2300), worker=2)
    lines += [line for seq in range(3) for line in interval(seq, rows(5), boot="b2", start_ms=START + 61_000 * seq)]
    return lines


@pytest.mark.parametrize(("by", "window"), [(("topic", "principal"), 60_000), (("broker", "outcome", "reason"), None)])
def test_sums_are_exact_with_any_rows_twice_and_in_any_order(
    records: MakeRecords, by: tuple[str, ...], window: int | None
) -> None:
    lines = _log()
    several = lines + lines[3:30] + lines[-4:] * 3 + [lines[0][:80], "rubbish"]
    random.Random(3).shuffle(several)
    rows = records(several).sum_groups(AuditQuery(by, window))
    keys = [*([schema.WINDOW_COLUMN] if window else []), *by]
    assert summed(rows, keys) == truth(lines, by, window)
    assert len({row[schema.WINDOW_COLUMN] for row in rows if window}) == (3 if window else 0)


def test_the_effects_of_an_observed_policy_are_beside_the_offered_bytes_not_among_them(records: MakeRecords) -> None:
    rows = [
        Row(outcome="accepted", bytes=100, messages=1, requests=1, delay_ms=5),
        Row(outcome="would_reject", reason="topic-threshold", bytes=70, messages=1, requests=1, delay_ms=3000),
        Row(outcome="would_delay", reason="topic-threshold", bytes=30, messages=1, requests=1, delay_ms=400),
    ]
    (row,) = records(interval(0, rows)).sum_groups(AuditQuery())
    assert (row["offered_bytes"], row["accepted_bytes"], row["delay_ms"]) == (100, 100, 5)
    assert (row["would_reject_bytes"], row["would_delay_bytes"]) == (70, 30)


def test_every_outcome_has_its_sums_and_offered_is_all_of_them(records: MakeRecords) -> None:
    reason = {"rejected": "fence", "errored": "REQUEST_TIMED_OUT", "dropped": "acks0"}
    rows = [
        Row(outcome=outcome, reason=reason.get(outcome, ""), bytes=2**i, messages=3**i, requests=i, delay_ms=i)
        for i, outcome in enumerate(usage.OUTCOMES)
    ]
    rows.append(Row(outcome="errored", reason="MESSAGE_TOO_LARGE", bytes=2**20))
    (sums,) = records(interval(0, rows)).sum_groups(AuditQuery())
    assert {outcome: sums[f"{outcome}_bytes"] for outcome in usage.OUTCOMES} == {
        outcome: 2**i + (2**20 if outcome == "errored" else 0) for i, outcome in enumerate(usage.OUTCOMES)
    }
    assert sums["rejected_messages"] == 3 ** usage.OUTCOMES.index("rejected")
    assert sums["offered_bytes"] == sum(row.bytes for row in rows)
    assert sums["offered_requests"] == sum(row.requests for row in rows)
    assert sums["delay_ms"] == sum(row.delay_ms for row in rows)
    assert sums["maybe_appended_bytes"] == sum(
        row.bytes for row in rows if usage.may_be_appended(row.outcome, row.reason)
    )


def test_an_interval_counts_whole_in_the_window_in_which_it_starts(records: MakeRecords) -> None:
    lines = [line for seq, at in enumerate((-1, 0, 59_999, 60_000)) for line in interval(seq, start_ms=START + at)]
    found = records(lines)
    sums = found.sum_groups(AuditQuery((), 60_000))
    windows = {row[schema.WINDOW_COLUMN]: row["offered_bytes"] for row in sums}
    assert windows == {START - 60_000: 100, START: 200, START + 60_000: 100}
    chosen = found.sum_groups(AuditQuery((), 1, START, START + 60_000))
    assert [row[schema.WINDOW_COLUMN] for row in chosen] == [START, START + 59_999]


def test_copies_that_differ_are_conflicts_and_the_choice_among_them_depends_on_no_order(raw: Make) -> None:
    one, other = interval(0, [Row(bytes=1)])[0], interval(0, [Row(bytes=2)])[0]
    kept = set()
    for lines in ([one, other, one], [other, one, one]):
        marked = transforms.mark_copies(transforms.decode_records(raw(lines))).collect()
        assert sorted(row["copy"] for row in marked) == [1, 2, 3]
        first = next(row["rows"] for row in marked if row["copy"] == 1)
        assert all(row["conflict"] == (row["rows"] != first) for row in marked)
        assert any(row["conflict"] for row in marked)
        kept.add(first[0]["bytes"])
    assert len(kept) == 1


def test_contradicting_copies_count_once_whatever_their_order(records: MakeRecords) -> None:
    one, other = interval(0, [Row(bytes=1)])[0], interval(0, [Row(bytes=2)])[0]
    again = changed(one, region="eu")  # another text of the same contents
    counted = set()
    for lines in ([one, other, again, one], [again, other, one, one], [other, one, one, again]):
        found = records([*lines, *interval(1), *interval(1)])
        (row,) = found.sum_groups(AuditQuery())
        trust = found.find_gaps(AuditQuery())
        assert (trust.records, trust.duplicates) == (6, 4)
        counted.add((row["offered_bytes"], trust.conflicts))
    assert counted in ({(101, 1)}, {(102, 3)})


def test_a_note_of_loss_is_no_copy_of_the_interval_that_it_names(records: MakeRecords) -> None:
    trust = records([*interval(0), lost(0)]).find_gaps(AuditQuery())
    assert (trust.records, trust.duplicates, trust.boots) == (2, 0, 1)


def test_gaps_are_found_at_the_start_in_the_middle_at_the_end_and_within_an_interval(records: MakeRecords) -> None:
    parts = interval(5, [Row(client_id=str(i)) for i in range(2300)], boot="parts")
    lines = [
        *interval(0, boot="whole"), *interval(1, (), boot="whole", final=True),
        *interval(2, boot="start"), *interval(3, boot="start"),
        *interval(0, boot="middle"), *interval(4, boot="middle"), *interval(6, boot="middle"),
        *interval(0, boot="end"), lost(3, boot="end"),
        lost(1, boot="nothing"), lost(-1, boot="stillborn"),
        *(line for seq in range(5) for line in interval(seq, boot="parts")), parts[1],
        *interval(0, boot="worker", worker=0), *interval(1, boot="worker", worker=1),
    ]  # fmt: skip
    assert len(parts) == 3
    names = ("boot", "worker", "gap", "first_seq", "last_seq", "missing", "after_ms", "before_ms")
    found = {tuple(row[name] for name in names) for row in records(lines).find_gaps(AuditQuery()).gaps}
    second = [START + 1000 * i for i in range(8)]
    assert found == {
        ("start", 0, "seq", 0, 1, 2, None, second[2]),
        ("middle", 0, "seq", 1, 3, 3, second[1], second[4]),
        ("middle", 0, "seq", 5, 5, 1, second[5], second[6]),
        ("end", 0, "seq", 1, 3, 3, second[1], START + 60_000),
        ("nothing", 0, "seq", 0, 1, 2, None, START + 60_000),
        ("parts", 0, "parts", 5, 5, 2, second[5], second[6]),
        ("worker", 1, "seq", 0, 0, 1, None, second[1]),
    }


def test_intervals_behind_the_last_one_are_told(records: MakeRecords) -> None:
    lines = [
        *interval(0, boot="ended"), *interval(1, (), boot="ended", final=True), lost(1, boot="ended"),
        *interval(0, boot="goes on"), *interval(1, boot="goes on", final=True), *interval(2, boot="goes on"),
        *interval(5, boot="twice", final=True), *interval(3, boot="twice", final=True),
    ]  # fmt: skip
    trust = records(lines).find_gaps(AuditQuery())
    assert [(each["boot"], each["final_seq"], each["last_seq"]) for each in trust.after_final] == [
        ("goes on", 1, 2),
        ("twice", 3, 5),
    ]
    assert trust.after_final_total == 2
    assert not records(lines[3:6]).find_gaps(AuditQuery()).complete
    assert records(lines[:3]).find_gaps(AuditQuery()).complete


def test_clusters_are_told_apart(records: MakeRecords) -> None:
    lines = [
        *interval(0), *interval(1, cluster="A"), *interval(2, cluster="A"), *interval(0, boot="b2", cluster="B"),
        *interval(0, boot="b3", version=1), *interval(3, cluster="C", version=1), *interval(1, boot="b2"),
    ]  # fmt: skip
    found = records(lines)
    sums = {row["cluster"]: row["offered_bytes"] for row in found.sum_groups(AuditQuery(("cluster",)))}
    assert sums == {"": 400, "A": 200, "B": 100}
    trust = found.find_gaps(AuditQuery())
    assert (trust.clusters, trust.mixes_clusters, trust.lives_overlap) == (["A", "B"], False, True)
    found = records([*interval(0, cluster="A"), *interval(0, boot="b2", cluster="B")])
    assert not found.find_gaps(AuditQuery()).lives_overlap, "no producer sends a batch again to another cluster"


def test_boots_are_final_lost_or_open(unique: Make) -> None:
    lines = [
        *interval(0, boot="final"), *interval(1, boot="final", final=True), lost(0, boot="final"),
        *interval(0, boot="lost"), *interval(2, boot="lost"), lost(2, boot="lost"),
        *interval(0, boot="open"), *interval(0, boot="open"),
        lost(-1, boot="stillborn"),
    ]  # fmt: skip
    names = ("state", "intervals", "first_seq", "last_seq", "start_ms", "end_ms", "lost_seq")
    found = {
        row["boot"]: tuple(row[name] for name in names) for row in transforms.summarize_boots(unique(lines)).collect()
    }
    assert found == {
        "final": ("final", 2, 0, 1, START, START + 2000, 0),
        "lost": ("lost", 2, 0, 2, START, START + 3000, 2),
        "open": ("open", 1, 0, 0, START, START + 1000, None),
        "stillborn": ("lost", 0, None, None, None, None, -1),
    }


def test_a_life_is_whole_only_if_it_has_no_gaps(spark: SparkSession) -> None:
    chance = random.Random(5)
    rows = []
    for life in range(300):
        numbers = list(range(chance.choice((0, 0, 0, 1)), chance.randrange(5)))
        if numbers and chance.random() < 0.3:
            numbers.remove(chance.choice(numbers))
        for seq in numbers:
            parts = chance.choice((1, 1, 1, 1, 1, 1, 2))
            rows += [
                ("gw", f"b{life}", 0, usage.INTERVAL, seq, parts, False, START, START + 1, *UNCHAINED)
                for _ in range(chance.randint(1, parts))
            ]
        if chance.random() < 0.4 or not numbers:
            rows.append(
                ("gw", f"b{life}", 0, usage.LOST, chance.randrange(-1, 5), 1, False, START, START + 1, *UNCHAINED)
            )
    kinds = (
        "string, boot string, worker long, kind string, seq long, parts long, final boolean, start_ms long, end_ms long"
    )
    records = spark.createDataFrame(rows, f"gateway {kinds}, {UNCHAINED_COLUMNS}").persist()
    lives = {row["boot"]: row[transforms.WHOLE_COLUMN] for row in transforms.summarize_boots(records).collect()}
    torn = {row["boot"] for row in transforms.detect_gaps(records).collect()}
    parted = {row[1] for row in rows if row[5] > 1}
    assert {boot for boot, is_whole in lives.items() if not is_whole} == torn | parted
    assert len(lives) == 300
    assert 20 < len(torn) < 280
    records.unpersist()
