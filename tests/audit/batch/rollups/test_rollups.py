# Answers from the roll-ups and the records behind them are those of all records, told by the engine without Spark.

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from gateway.audit import columns, store
from gateway.audit.batch import job, query, tables
from gateway.audit.batch.query import AuditQuery
from gateway.audit.batch.rollups import progress, reading, update
from gateway.audit.local.records import LocalRecords
from gateway.audit.local.tables import LocalTables
from gateway.audit.stream import stream
from gateway.audit.tables import layout, table_log
from policies import usage
from tests.audit.records import START, LineSource, Row, as_json, chained, changed, interval, lost, topic_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from gateway.audit.store import AuditTables

pytestmark = pytest.mark.timeout(1800)  # minutes of Spark's work on a quiet machine

DAY_MS, HOUR_MS, MINUTE_MS = 86_400_000, 3_600_000, 60_000
DAY = START - START % DAY_MS + DAY_MS
EVERYTHING = AuditQuery(usage.DIMENSIONS)
QUESTIONS = (
    EVERYTHING,
    AuditQuery(("topic", "outcome"), HOUR_MS, DAY - HOUR_MS - MINUTE_MS - 1, DAY + 2 * HOUR_MS + 90_001),
    AuditQuery(("client_id", "group"), MINUTE_MS, DAY + 1),
)


def _rows(chance: random.Random) -> list[Row]:
    return [
        Row(
            broker=chance.randrange(2),
            topic=f"t{chance.randrange(2)}",
            client_id=f"c{chance.randrange(3)}",
            outcome=outcome,
            reason=reason,
            bytes=chance.randrange(1000),
            delay_ms=chance.randrange(9),
            group=chance.choice(("", "web")),
            repeats=None if outcome == "delayed" else chance.choice((None, 0, 7)),
        )
        for outcome, reason in chance.sample(
            [("accepted", ""), ("rejected", "fence"), ("errored", "REQUEST_TIMED_OUT"), ("delayed", "rate")], 3
        )
    ]


def _life(chance: random.Random, boot: str, seqs: int, start_ms: int, **more: Any) -> list[str]:
    return [
        line
        for seq in range(seqs)
        for line in interval(
            seq, _rows(chance), boot=boot, start_ms=start_ms + seq * 47 * MINUTE_MS // 10, final=seq == seqs - 1, **more
        )
    ]


def _batches() -> list[list[str]]:
    """A log over midnight in five batches: gaps that are filled later or never, parts cut by a batch, copies."""
    chance = random.Random(8)
    long, old = chained(_life(chance, "long", 30, DAY - HOUR_MS)), _life(chance, "old", 6, DAY - 30_000, version=1)
    parts = interval(0, [Row(client_id=f"c{i}", bytes=i) for i in range(2500)], boot="parts", start_ms=DAY + 5000)
    back = [line for seq in range(4) for line in interval(seq, boot="back", start_ms=DAY + 9000 - seq * 2000)]
    conflict = changed(long[2], storage_factor_ppm=77)
    late = [line for seq in range(5) for line in interval(seq, boot="late", start_ms=DAY + seq * 1000, final=seq == 2)]
    late = [changed(line, cluster=cluster) for line, cluster in zip(late, "aabbb", strict=True)]
    return [
        [*long[:8], *old[:2], parts[0], "rubbish", long[1]],
        [*long[10:16], *parts[1:2], *old[2:], back[3], lost(3, boot="lost", now_ms=DAY + 500)],
        [*long[8:10], *late[:4], parts[2], *back[:3], conflict, *interval(2, boot="lost", start_ms=DAY)],
        [*long[18:29], *late[4:], '{"half', *interval(1, boot="parts", start_ms=DAY + 6000)[:1], long[3]],
        # One that contradicts itself: interval 1 has one part, and several.
        [changed(interval(1, boot="parts")[0], part=1, parts=2), *interval(3, boot="parts", start_ms=DAY + 7000)],
    ]


def _answer(records: query.CountedRecords, question: AuditQuery) -> dict[str, Any]:
    found: dict[str, Any] = as_json(tables.report_answer(query.answer_query(records, question)))
    samples = [sample["sample"] for sample in found["integrity"].pop("malformed_samples")]
    return found | {"sources": None, "samples": sorted(samples)}


def _check(there: AuditTables, lines: list[str], question: AuditQuery) -> None:
    """Of both engines."""
    _check_locally(there, lines, question)
    with job.read_tables(there) as found:
        assert _answer(found, question) == _answer(LocalRecords([LineSource(lines)]), question)


def _check_locally(there: AuditTables, lines: list[str], *questions: AuditQuery) -> None:
    truth = LocalRecords([LineSource(lines)])
    without_spark = LocalTables(there.root.removeprefix("file:"))
    for question in questions:
        assert _answer(without_spark, question) == _answer(truth, question), question


def test_answers_are_those_of_the_records_whatever_has_been_rolled_up(
    spark: SparkSession,
    empty_tables: Callable[[Path], AuditTables],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = empty_tables(tmp_path / "tables")
    writer, batches = store.TableWriter(there), _batches()
    lines: list[str] = []

    def add() -> None:
        batch = batches.pop(0)
        found = [(i % 2, len(lines) + i, line) for i, line in enumerate(batch)]
        stream.add_batch(writer, topic_batch(spark, found), "id")
        lines.extend(batch)

    former = [field for field in layout.DERIVED_SCHEMAS["lives"] if field.name != "final_seq"]
    spark.createDataFrame([], StructType(former)).write.format("delta").save(f"{there.root}/lives")
    add()
    update.update_rollups(there)
    add()
    add()
    write = update._write_step

    def overtaken(*args: Any) -> None:
        """Another process adds a batch and rolls it up, after this one has looked."""
        monkeypatch.undo()
        add()
        update.update_rollups(there)
        write(*args)

    monkeypatch.setattr(update, "_write_step", overtaken)
    update.update_rollups(there)
    gaps = [row.asDict() for row in there.read_table("gaps").drop("as_of_ms").collect()]
    assert sorted(map(repr, gaps)) == sorted(map(repr, LocalRecords([LineSource(lines)]).find_gaps(EVERYTHING).gaps))
    lives = {row["boot"]: (row["state"], row["final_seq"]) for row in there.read_table("lives").collect()}
    assert (lives["old"], lives["lost"]) == (("final", 5), ("lost", None))
    add()
    _check(there, lines, QUESTIONS[1])
    _check_locally(there, lines, QUESTIONS[2])
    assert progress.load_progress(there).last_step == 3
    update.join_partial_rows(there, "usage_1d")  # from which the next question is answered
    _check(there, lines, EVERYTHING)


class _Killed(Exception):
    pass


def _contents(there: AuditTables) -> dict[str, list[tuple[Any, ...]]]:
    """All that the roll-ups say."""
    found = {table: there.read_table(table).drop("as_of_ms") for table in ("gaps", "lives")}
    for table in columns.WINDOW_LENGTHS:
        kept = there.read_table(table)
        keys = [name for name in kept.columns if name not in (*usage.MEASURES, "delay_ms", "repeats")]
        # A step adds rows of its own, and what is unknown stays apart.
        rows = kept.groupBy(*keys, kept["repeats"].isNull().alias("unknown"))
        found[table] = rows.sum(*usage.MEASURES, "delay_ms", "repeats")
    known = progress.load_progress(there).frame
    assert known is not None
    found["progress"] = known.where(f"entry != '{table_log.READ}'")
    return {table: sorted(map(tuple, frame.collect()), key=repr) for table, frame in found.items()}


class _Killing:
    """Kills whatever writes roll-ups after so many writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1000
        for name in ("write_rollup", "write_sums"):
            monkeypatch.setattr(store.AuditTables, name, self._limit(getattr(store.AuditTables, name)))

    def _limit(self, write: Callable[..., None]) -> Callable[..., None]:
        def write_some(there: AuditTables, *args: Any, **options: Any) -> None:
            if not self.left:
                raise _Killed
            self.left -= 1
            write(there, *args, **options)

        return write_some


@pytest.fixture
def far_behind(
    spark: SparkSession, empty_tables: Callable[[Path], AuditTables], tmp_path: Path
) -> tuple[AuditTables, list[str]]:
    """Tables whose stream has rolled up its first batch alone, and their records."""
    there, lines = empty_tables(tmp_path / "tables"), list[str]()
    writer = store.TableWriter(there)
    one, two, three, four, five = _batches()
    for batch in (one, [*two, *three], [*four, *five]):
        found = [(i % 3 % 2, len(lines) + i, line) for i, line in enumerate(batch)]
        stream.add_batch(writer, topic_batch(spark, found), "id")
        if not lines:
            update.update_rollups(there)
        lines += batch
    return there, lines


def test_many_records_come_in_steps_which_a_kill_or_a_compaction_between_them_does_not_change(
    far_behind: tuple[AuditTables, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, lines = far_behind
    told: list[str] = []
    killing = _Killing(monkeypatch)
    monkeypatch.setattr(update, "STEP_ROWS", 1500)
    for writes in (2, 4):  # of each step's four: `progress`, and three of sums; the second one begins with two left
        killing.left = writes
        with pytest.raises(_Killed):
            update.update_rollups(there, told.append)
        _check_locally(there, lines, EVERYTHING)
    there.run_statement(f"OPTIMIZE {there.sql_path(table_log.RECORDS_TABLE)}")
    killing.left = 1000
    update.update_rollups(there, told.append)
    assert [text for text in told if "looking for gaps" in text] == [
        "roll-ups: looking for gaps, part 1 of 2",
        "roll-ups: looking for gaps",
    ]
    _check_locally(there, lines, *QUESTIONS)
    # A later compaction is a step that sums don't go to, and what it wrote isn't looked for records behind them.
    store.TableWriter(there)
    update.update_rollups(there, is_rewritten=True)
    sums = LocalTables(str(tmp_path / "tables"))._rollups.sums
    assert {table: step.records_version for table, (_, step) in sums.items()} == dict.fromkeys(
        columns.WINDOW_LENGTHS, there.records_version
    )
    _check_locally(there, lines, *QUESTIONS)  # of days, hours and minutes: each of them is answered from another table


@pytest.mark.full  # of one that is missing: test_answers…; of a kill between steps: the one before
def test_roll_ups_begin_anew_without_a_table_of_sums_and_a_stream_goes_on_where_they_were_killed(
    spark: SparkSession, far_behind: tuple[AuditTables, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, lines = far_behind
    shutil.copytree(tmp_path / "tables", tmp_path / "at_once")
    at_once = store.open_tables(spark, str(tmp_path / "at_once"))
    update.update_rollups(at_once)
    expected = _contents(at_once)
    monkeypatch.setattr(update, "_KEPT_STEPS", 2)  # so that no step is left from which to go on
    monkeypatch.setattr(update, "STEP_ROWS", 500)
    update.update_rollups(there)
    killing = _Killing(monkeypatch)
    shutil.rmtree(tmp_path / "tables" / "usage_1h")
    monkeypatch.setattr(update, "STEP_ROWS", 1500)
    killing.left = 6
    with pytest.raises(_Killed):
        update.update_rollups(there)
    truth = _answer(LocalRecords([LineSource(lines)]), EVERYTHING)
    assert _answer(LocalTables(str(tmp_path / "tables")), EVERYTHING) == truth
    killing.left = 1000
    update.fill_missing(there)
    assert _contents(there) == expected


@pytest.mark.full
def test_an_hour_is_read_from_the_table_of_hours_or_from_what_there_is(spark: SparkSession, tmp_path: Path) -> None:
    there = store.open_tables(spark, str(tmp_path / "tables"), make=True)
    lines = [line for day in range(4) for line in interval(day, start_ms=DAY + day * DAY_MS)]
    found = [(0, i, line) for i, line in enumerate(lines)]
    stream.add_batch(store.TableWriter(there), topic_batch(spark, found), "id")
    update.update_rollups(there)

    def read() -> DataFrame:
        return reading.open_rolled(there).select_rows((DAY + DAY_MS, DAY + DAY_MS + HOUR_MS), None)

    (file,) = read().inputFiles()
    assert "/usage_1h/date=2025-11-22/" in file
    shutil.rmtree(tmp_path / "tables" / "usage_1h")
    (file,) = read().inputFiles()
    assert "/usage_1m/date=2025-11-22/" in file
    # As tables of a former release; the sums that were left belong to no step that is known.
    shutil.rmtree(tmp_path / "tables" / table_log.PROGRESS_TABLE)
    assert {file.rpartition("/tables/")[2].partition("/")[0] for file in read().inputFiles()} == {"records"}
    update.fill_missing(there)
    assert {there.rollup_moment(table)[0] for table in (*columns.WINDOW_LENGTHS, table_log.PROGRESS_TABLE)} == {4}
    assert read().selectExpr("sum(bytes)").collect()[0][0] == 100
