# The stream's tables: each record once, whatever is read again, by whatever checkpoint, and whoever dies in between.
# The topic's batches are made here; test_stream_kafka.py has a real topic and real kills.

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.audit import commits, job, layout, store, stream, transforms, upkeep
from gateway.audit.job import AuditError, Question
from tests.audit.records import START, Row, changed, interval, lost, truth

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gateway.audit.store import ParquetTables

    # (partition, offset, line)
    Found = tuple[int, int, str | None]
    Batches = Callable[[Iterable[Found]], DataFrame]

DAY_MS = 86_400_000
QUESTION = Question(by=("topic", "client_id"), window_ms=60_000)


def _log() -> list[str]:
    """Two lives over two days; one interval has two parts, one life dies."""
    lines = [
        line
        for seq in range(12)
        for line in interval(
            seq,
            [
                Row(client_id=f"c{i}", bytes=seq * 7 + i, outcome=("accepted", "errored")[i % 2], reason="X")
                for i in (0, 1)
            ],
            start_ms=START + seq * DAY_MS // 6,
        )
    ]
    lines += interval(
        12, [Row(client_id=f"c{i % 9}", bytes=i) for i in range(1200)], final=True, start_ms=START + 2 * DAY_MS
    )
    lines += [line for seq in (0, 1, 3) for line in interval(seq, boot="b2", worker=1)]
    return [*lines, lost(3, boot="b2", worker=1)]


LINES = _log()


@pytest.fixture(scope="module")
def found() -> list[Found]:
    """LINES in three partitions, a third of them twice, some rubbish between."""
    sent: list[str | None] = [*LINES, *LINES[::3], "rubbish", None, '{"half']
    random.Random(5).shuffle(sent)
    return [(i % 3, i // 3, line) for i, line in enumerate(sent)]


@pytest.fixture
def batch(spark: SparkSession) -> Batches:
    """Records as Spark's Kafka source gives them."""

    def make(records: Iterable[Found]) -> DataFrame:
        at = datetime.fromtimestamp(START / 1000, UTC)
        rows = [
            (None if line is None else bytearray(line.encode()), "usage", partition, offset, at)
            for partition, offset, line in records
        ]
        return spark.createDataFrame(
            rows, "value binary, topic string, partition int, offset bigint, timestamp timestamp"
        )

    return make


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> ParquetTables:
    made = store.open_tables(spark, str(tmp_path / "tables"), make="parquet")
    assert isinstance(made, store.ParquetTables)
    made.open_stream()
    return made


def _reopened(tables: ParquetTables) -> ParquetTables:
    """What a new process sees, which begins a stream."""
    made = store.open_tables(tables.spark, tables.root)
    assert isinstance(made, store.ParquetTables)
    made.open_stream()
    return made


def _thirds(found: Sequence[Found]) -> list[list[Found]]:
    return [sorted(found[i : i + 10], key=lambda each: each[:2]) for i in range(0, len(found), 10)]


def _check(tables: ParquetTables, found: Sequence[Found]) -> None:
    """The tables say of these records to the byte what they are."""
    lines = [line for _, _, line in found if line is not None]
    sums: dict[tuple[object, ...], int] = defaultdict(int)
    for row in tables.read("usage").select("start_ms", *QUESTION.by, "bytes").collect():
        sums[(row["start_ms"] // 60_000 * 60_000, row["topic"], row["client_id"])] += row["bytes"]
    expected = truth(lines, QUESTION.by, QUESTION.window_ms)
    assert sums == {key: values[0] for key, values in expected.items()}
    counts = [tables.read(table).count() for table in ("intervals", "duplicates", "malformed")]
    assert sum(counts) == len(found), counts


def test_the_tables_answer_what_the_topic_answers(
    tables: ParquetTables, batch: Batches, found: list[Found], spark: SparkSession, raw: Callable[..., DataFrame]
) -> None:
    for records in _thirds(found):
        stream.add(tables, batch(records), "id")
    direct = job.run(spark, [job.Source(raw([line for _, _, line in found]), {})], QUESTION)
    answer = job.run_tables(tables, QUESTION)
    assert answer.rows == direct.rows
    for name in ("records", "duplicates", "conflicts", "malformed", "problems", "gaps", "boots", "incomplete", "lost"):
        assert getattr(answer.integrity, name) == getattr(direct.integrity, name), name
    assert {each["origin"] for each in answer.integrity.samples} == {
        f"usage-{partition}@{offset}" for partition, offset, line in found if line in ("rubbish", None, '{"half')
    }
    bounds = Question(("client_id",), None, START + DAY_MS, START + 2 * DAY_MS)
    there = job.run(spark, [job.Source(raw(LINES), {})], bounds)
    assert job.run_tables(tables, bounds).rows == there.rows
    assert len(there.rows) == 2

    stream.derive(tables)
    gaps = [row.asDict() for row in tables.read("gaps").drop("as_of_ms").collect()]
    assert gaps == direct.integrity.gaps
    assert {row["boot"]: row["state"] for row in tables.read("lives").collect()} == {"b1": "final", "b2": "lost"}
    dates = sorted(path.name for path in Path(tables.root.removeprefix("file:")).glob("usage/*/date=*"))
    assert set(dates) == {"date=2025-11-20", "date=2025-11-21", "date=2025-11-22"}


def test_whatever_is_read_again_by_whatever_checkpoint_counts_once(
    tables: ParquetTables, batch: Batches, found: list[Found]
) -> None:
    parts = _thirds(found)
    for records in parts[:2]:
        stream.add(tables, batch(records), "id")
    # Killed before its checkpoint knew of batch 1: again, by a new process.
    tables = _reopened(tables)
    added = stream.add(tables, batch(parts[1]), "id")
    assert not any(added.values())
    # The checkpoint is lost: everything again, from batch 0, in batches of other sizes.
    tables = _reopened(tables)
    mixed = sorted(found, key=lambda each: each[:2])
    for i in range(0, len(mixed), 17):
        stream.add(tables, batch(mixed[i : i + 17]), "id")
    _check(tables, found)
    # An old checkpoint from a backup: its batch 1 has other contents than the one that was written.
    later = [(partition, offset + 100, line) for partition, offset, line in found[:7]]
    stream.add(tables, batch(later), "id")
    _check(tables, [*found, *later])
    # The topic was made again from a copy, where offsets begin anew: the same records are copies there.
    stream.add(tables, batch(found), "another id")
    _check(tables, [*found, *later, *found])


def test_a_control_that_appends_counts_twice(tables: ParquetTables, batch: Batches, found: list[Found]) -> None:
    """What the tests above would say of a job that trusts its checkpoint alone."""
    path = f"{tables.root}/control"
    for records in (found, found[10:]):
        decoded = stream.decode(batch(records), "id")
        good = stream.mark(decoded.where("problem is null").withColumn("date", store.day("start_ms")), None)
        transforms.usage_rows(good.where("counts")).write.mode("append").parquet(path)
    total = tables.spark.read.parquet(path).selectExpr("sum(bytes)").collect()[0][0]
    assert total > sum(sums[0] for sums in truth(LINES, ()).values())


def test_files_that_were_written_and_never_committed_do_not_count_and_go(
    tables: ParquetTables, batch: Batches, found: list[Found]
) -> None:
    parts = _thirds(found)
    stream.add(tables, batch(parts[0]), "id")

    def killed() -> None:
        raise KeyboardInterrupt

    put = tables.put
    tables.put = lambda _: killed()  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        stream.add(tables, batch(parts[1]), "id")
    tables.put = put  # type: ignore[method-assign]
    root = Path(tables.root.removeprefix("file:"))
    left = [path for path in root.glob("*/commit=*") if path.name.endswith("1")]
    assert left
    _check(tables, parts[0])
    # It may be that it is just being written: it stays until another stream has begun.
    upkeep.clear(tables, 0)
    assert all(path.exists() for path in left)
    again = _reopened(tables)
    upkeep.clear(again, 0)
    assert not any(path.exists() for path in left)
    for records in parts:
        stream.add(again, batch(records), "id")
    _check(again, found)


def test_of_two_streams_the_later_one_adds_and_the_other_one_stops(
    tables: ParquetTables, batch: Batches, found: list[Found]
) -> None:
    parts = _thirds(found)
    stream.add(tables, batch(parts[0]), "id")
    later = _reopened(tables)
    stream.add(later, batch(parts[1]), "id")
    with pytest.raises(AuditError, match=r"^another stream has started on [^\n]*: this one stops$"):
        stream.add(tables, batch(parts[2]), "id")
    _check(later, [*parts[0], *parts[1]])

    # A zombie between its last look and its commit.
    zombie = later
    last = _reopened(tables)
    name = commits.Commit(commits.BATCH, 0, zombie._claim.id, epoch=zombie._claim.epoch, number=9)  # type: ignore[union-attr]
    groups = tuple(group for each in zombie.state().live.values() for group in each.groups)
    zombie.put(commits.Commit(commits.BATCH, 0, name.id, epoch=name.epoch, number=9, groups=groups))
    _check(last, [*parts[0], *parts[1]])


def test_copies_that_differ_are_kept_aside_as_conflicts(tables: ParquetTables, batch: Batches) -> None:
    one, other = interval(0, [Row(bytes=1)])[0], interval(0, [Row(bytes=2)])[0]
    stream.add(tables, batch([(0, 0, one)]), "id")
    stream.add(tables, batch([(0, 1, other), (0, 2, one), (0, 3, lost(0))]), "id")
    report = job.run_tables(tables, Question())
    assert (report.integrity.duplicates, report.integrity.conflicts, report.integrity.boots) == (2, 1, 1)
    assert report.rows[0]["offered_bytes"] == 1
    (row,) = tables.read("duplicates").where("conflict").collect()
    assert (row["partition"], row["offset"], row["seq"]) == (0, 1, 0)


def test_a_malformed_record_is_kept_whole(tables: ParquetTables, batch: Batches) -> None:
    text = "x" * 5000
    stream.add(tables, batch([(2, 7, text)]), "id")
    (row,) = tables.read("malformed").collect()
    assert (bytes(row["value"]), row["origin_topic"], row["partition"], row["offset"]) == (text.encode(), "usage", 2, 7)
    assert row["problem"] == "not one JSON object, or a field of the wrong type"
    assert row["date"].isoformat() == "2025-11-20"


def test_fields_of_version_2_are_columns_and_version_1_reads_as_unknown(tables: ParquetTables, batch: Batches) -> None:
    new = [Row(group="web", software="kgo", repeats=30), Row(outcome="rejected", reason="fence", bytes=70, repeats=0)]
    lines = [interval(0)[0], interval(1, new, version=2)[0], changed(interval(2)[0], rows=[])]
    old = json.loads(interval(3, version=1)[0])
    old["rows"][0] |= {"group": "not yet a field", "repeats": 9}
    stream.add(tables, batch([(0, i, line) for i, line in enumerate([*lines, json.dumps(old)])]), "id")
    rows = tables.read("usage").orderBy("seq", "outcome").select("seq", "group", "software", "repeats").collect()
    assert [tuple(row) for row in rows] == [(0, "", "", None), (1, "web", "kgo", 30), (1, "", "", 0), (3, "", "", None)]
    (total,) = job.run_tables(tables, Question()).rows
    assert (total["repeats_bytes"], total["repeats_unknown_bytes"], total["rejected_bytes"]) == (30, 200, 70)
    by = job.run_tables(tables, Question(by=("group",))).rows
    assert {row["group"]: row["offered_bytes"] for row in by} == {"": 270, "web": 100}


def test_compaction_changes_no_sum_whatever_goes_on_beside_it(
    tables: ParquetTables, batch: Batches, found: list[Found]
) -> None:
    parts = _thirds(found)
    for records in parts[:-1]:
        stream.add(tables, batch(records), "id")
    groups = tables.state().groups("usage")  # a reader that has looked, and reads on slowly
    rows = tables.read_groups("usage", groups).count()
    maintainer = store.open_tables(tables.spark, tables.root)
    done = upkeep.compact(maintainer)
    assert done.commits == len(parts) - 1
    assert done.files_after < done.files_before
    assert len(tables.state().live) == 1
    assert tables.read_groups("usage", groups).count() == rows == tables.read("usage").count()
    stream.add(tables, batch(parts[-1]), "id")
    _check(tables, found)
    # The claim's list, coverage and spans have to survive it.
    again = _reopened(tables)
    assert upkeep.compact(again, grace_ms=0).commits == 2
    upkeep.clear(again, 0)
    assert {name.split("-")[0] for name, _, _ in again.files.list(store.LOG)} == {"claim", "rewrite"}
    assert not any(stream.add(again, batch(found), "id").values())
    stream.add(again, batch(found), "another id")
    _check(again, [*found, *found])
    assert upkeep.compact(again, older_than_ms=DAY_MS).commits == 0


def test_a_compaction_that_is_killed_or_comes_second_changes_nothing(
    tables: ParquetTables, batch: Batches, found: list[Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    for records in _thirds(found):
        stream.add(tables, batch(records), "id")
    other = store.open_tables(tables.spark, tables.root)
    assert isinstance(other, store.ParquetTables)
    write = other.write

    def write_and_be_overtaken(*args: object) -> object:
        if args[0] == "usage":
            upkeep.compact(tables, grace_ms=DAY_MS)
        return write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(other, "write", write_and_be_overtaken)
    with pytest.raises(AuditError, match="nothing is lost, run it again"):
        upkeep.compact(other)
    _check(tables, found)
    # Both at once, neither seeing the other: one of them counts.
    state = tables.state()
    (winner,) = state.live.values()
    tables.put(commits.Commit(commits.REWRITE, winner.at_ms + 1, "x", groups=winner.groups, replaces=winner.replaces))
    _check(tables, found)


def test_expiry_lets_go_of_days_and_keeps_lives_whole(
    tables: ParquetTables, batch: Batches, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "now_ms", lambda: START + 100 * DAY_MS)
    lines = [line for day in range(4) for line in interval(day, start_ms=START + day * DAY_MS)]
    short = [*interval(0, boot="b2"), *interval(1, boot="b2", final=True), *interval(0, boot="open")]
    records = [(0, i, line) for i, line in enumerate([*lines, *short, "rubbish"])]
    stream.add(tables, batch(records), "id")
    upkeep.expire(tables, keep_ms=98 * DAY_MS, grace_ms=0)
    report = job.run_tables(tables, Question(by=("gateway",)))
    assert report.rows[0]["offered_bytes"] == 200
    assert (report.integrity.gaps, report.integrity.boots, report.integrity.malformed) == ([], 2, 0)
    assert report.sources[0]["expired_before"] == "2025-11-22"
    # Neither a copy nor a latecomer brings an expired day back, and a copy of a life that goes on is still one.
    late = [(1, i, line) for i, line in enumerate([*lines, *short, *interval(2, boot="late")])]
    stream.add(tables, batch(late), "id")
    report = job.run_tables(tables, Question(by=("gateway",)))
    assert report.rows[0]["offered_bytes"] == 200
    upkeep.expire(tables, keep_ms=98 * DAY_MS, grace_ms=0)
    upkeep.compact(tables, grace_ms=0)
    upkeep.clear(tables, 0)
    assert job.run_tables(tables, Question(by=("gateway",))).rows[0]["offered_bytes"] == 200
    left = Path(tables.root.removeprefix("file:")).glob("usage/*/date=*")
    assert {path.name for path in left} == {"date=2025-11-22", "date=2025-11-23"}


def test_tables_of_a_newer_layout_are_refused_and_of_an_older_one_read(
    tables: ParquetTables, batch: Batches, spark: SparkSession
) -> None:
    stream.add(tables, batch([(0, 0, interval(0)[0])]), "id")
    root = Path(tables.root.removeprefix("file:"))
    (file,) = root.glob("usage/*/date=*/*.parquet")
    old = spark.read.parquet(str(file)).drop("group", "software", "repeats").collect()
    spark.createDataFrame(old).coalesce(1).write.mode("overwrite").parquet(str(file.parent))
    (row,) = tables.read("usage").collect()
    assert (row["bytes"], row["group"], row["software"], row["repeats"]) == (100, "", "", None)

    marker = root / layout.MARKER
    good = json.loads(marker.read_text())
    for wrong, said in (
        ({"layout": 99}, "has tables of layout 99, this program knows 1: use a newer produce-gateway"),
        ({"format": "other"}, "has tables in the format other, this program knows parquet, delta"),
        ({"layout": "x"}, "is damaged"),
    ):
        marker.write_text(json.dumps(good | wrong))
        with pytest.raises(AuditError, match=rf"^[^\n]*{said}$"):
            store.open_tables(spark, tables.root)
    marker.write_text(json.dumps(good))
    with pytest.raises(AuditError, match="has tables in the format parquet: give --format parquet"):
        store.open_tables(spark, tables.root, make="delta")
    with pytest.raises(AuditError, match=r"^no tables in [^\n]*: `produce-gateway audit stream --output"):
        store.open_tables(spark, str(root / "nowhere"))
