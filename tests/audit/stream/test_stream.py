# The stream's tables: each record once, whatever is read again, by whatever checkpoint, and whoever dies in between.
# The topic's batches are made here; test_stream_kafka.py has a real topic and real kills.

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import store
from gateway.audit.batch import job, transforms
from gateway.audit.batch.query import AuditQuery, answer_query, ignore_progress
from gateway.audit.batch.rollups import update
from gateway.audit.cluster_access import TopicIdentity
from gateway.audit.columns import WINDOW_LENGTHS
from gateway.audit.errors import AuditError
from gateway.audit.local.records import LocalRecords
from gateway.audit.local.tables import LocalTables
from gateway.audit.spark import schema
from gateway.audit.stream import stream, upkeep
from gateway.audit.stream.metrics import StreamMetrics
from gateway.audit.tables import table_version
from gateway.audit.tables.table_version import TableVersion
from gateway.audit.whatif import reading, whatif
from gateway.audit.whatif.local_reading import LocalUsage
from policies import usage
from policies.definitions.policy_values import PolicyKey
from policies.whatif.rows import ReplayRules
from tests.audit.records import START, LineSource, Row, chained, changed, interval, lost, topic_batch, truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.audit.batch.query import AuditReport
    from gateway.audit.store import AuditTables, TableWriter

    # (partition, offset, line)
    Found = tuple[int, int, str | None]
    Batches = Callable[[Iterable[Found]], DataFrame]

DAY_MS = 86_400_000
QUESTION = AuditQuery(by=("topic", "client_id"), window_ms=60_000)
DISKS = usage.DiskNotes((usage.VolumeNote(1, "/a", 100, 80, None, 10.0),), (usage.SpreadNote(1, "clicks", 1, 3),))
LONG_RUBBISH = "x" * 5000
NO_TEXT = "a\x01\udcc3(" * 90  # its surrogates are bytes


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


@pytest.fixture(scope="module")
def batch(spark: SparkSession) -> Batches:
    """Records as Spark's Kafka source gives them."""
    return partial(topic_batch, spark)


@pytest.fixture
def tables(empty_tables: Callable[[Path], AuditTables], tmp_path: Path) -> AuditTables:
    return empty_tables(tmp_path / "tables")


@pytest.fixture(scope="module")
def filled(spark: SparkSession, batch: Batches, found: list[Found], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables with all of `found`, in three batches. `full` copies them: a commit takes a second of a core."""
    path = tmp_path_factory.mktemp("filled") / "tables"
    writer = store.TableWriter(store.open_tables(spark, str(path), make=True))
    for records in _thirds(found):
        stream.add_batch(writer, batch(records), "id")
    return path


@pytest.fixture(scope="module")
def told(
    empty_tables: Callable[[Path], AuditTables], batch: Batches, tmp_path_factory: pytest.TempPathFactory
) -> tuple[AuditTables, AuditReport]:
    """Tables with a life and a topic for each test of what records tell, and the answer to a question."""
    tables = empty_tables(tmp_path_factory.mktemp("told") / "tables")
    writer, key = store.TableWriter(tables), b"k" * 32

    def record(topic: str, seq: int, row: Row | None = None, **more: Any) -> str:
        (line,) = interval(seq, [replace(row or Row(), topic=topic)], boot=topic, **more)
        return line

    new = [Row(group="web", software="kgo", repeats=30), Row(outcome="rejected", reason="fence", bytes=70, repeats=0)]
    fields = [
        record("fields", 0),
        *interval(1, [replace(row, topic="fields") for row in new], boot="fields", version=2),
        changed(record("fields", 2), rows=[]),
    ]
    old = json.loads(record("fields", 3, version=1))
    old["rows"][0] |= {"group": "not yet a field", "repeats": 9}
    volumes = [record("volumes", 0, disks=DISKS, cluster="A"), record("volumes", 1)]
    links = chained([record("links", seq) for seq in range(6)], key)
    links[4] = links[4].replace('"bytes":100', '"bytes":99')
    one, other = (record("copies", 0, Row(bytes=size)) for size in (1, 2))
    first = [*fields, json.dumps(old), *volumes, volumes[0], *links[:3], one]
    second = [*links[3:], other, one, lost(0, boot="copies")]
    bad = [(2, 7, LONG_RUBBISH), (2, 8, NO_TEXT)]
    stream.add_batch(writer, batch([*bad, *((0, i, line) for i, line in enumerate(first))]), "id")
    again = [(0, len(first) + i, line) for i, line in enumerate(second)]
    stream.add_batch(writer, batch(again), "id", keys=(key,))
    return tables, _ask(tables, AuditQuery(("topic", "group", "cluster")))


@pytest.fixture
def full(spark: SparkSession, filled: Path, tmp_path: Path) -> AuditTables:
    """The same, for one test alone."""
    shutil.copytree(filled, tmp_path / "full")
    return store.open_tables(spark, str(tmp_path / "full"))


@pytest.fixture
def writer(tables: AuditTables) -> TableWriter:
    return store.TableWriter(tables)


def _reopened(tables: AuditTables) -> TableWriter:
    """A new process, which begins a stream."""
    return store.TableWriter(store.open_tables(tables.spark, tables.root))


def _ask(tables: AuditTables, question: AuditQuery) -> AuditReport:
    """Spark's answer, which is that of the engine without it."""
    report = job.audit_tables(tables, question)
    assert answer_query(LocalTables(str(_root(tables))), question) == report
    return report


def _root(tables: AuditTables) -> Path:
    return Path(tables.root.removeprefix("file:"))


def _files(tables: AuditTables) -> set[str]:
    """The data files of `records` that lie there."""
    return {path.name for path in _root(tables).glob("records/date=*/*.parquet")}


def _live(tables: AuditTables) -> set[str]:
    """Those that readers see."""
    return {path.rpartition("/")[2] for path in tables.load_records().inputFiles()}


@contextmanager
def _unreadable_days(tables: AuditTables, first_day: str) -> Iterator[None]:
    """Meanwhile, files of records from that day on are none that can be read."""
    files = [path for path in _root(tables).glob("records/date=*/*.parquet") if path.parent.name[5:] >= first_day]
    contents = [path.read_bytes() for path in files]
    assert files
    for path in files:
        path.write_bytes(b"unreadable")
    yield
    for path, content in zip(files, contents, strict=True):
        path.write_bytes(content)


def _thirds(found: Sequence[Found]) -> list[list[Found]]:
    return [sorted(found[i : i + 10], key=lambda each: each[:2]) for i in range(0, len(found), 10)]


def _check(tables: AuditTables, found: Sequence[Found]) -> None:
    """The tables say of these records to the byte what they are."""
    lines = [line for _, _, line in found if line is not None]
    sums: dict[tuple[object, ...], int] = defaultdict(int)
    for row in tables.read_table("usage").select("start_ms", *QUESTION.by, "bytes").collect():
        sums[(row["start_ms"] // 60_000 * 60_000, row["topic"], row["client_id"])] += row["bytes"]
    expected = truth(lines, QUESTION.by, QUESTION.window_ms)
    assert sums == {key: values[0] for key, values in expected.items()}
    views = [tables.read_table(table).select("offset") for table in ("intervals", "duplicates", "malformed")]
    assert reduce(DataFrame.unionByName, views).count() == len(found)


def test_the_tables_answer_what_the_topic_answers(full: AuditTables, found: list[Found]) -> None:
    direct = answer_query(LocalRecords([LineSource([line for _, _, line in found])]), QUESTION)
    answer = _ask(full, QUESTION)
    assert answer.rows == direct.rows
    for name in ("records", "duplicates", "conflicts", "malformed", "problems", "gaps", "boots", "incomplete", "lost"):
        assert getattr(answer.integrity, name) == getattr(direct.integrity, name), name
    assert {each["origin"] for each in answer.integrity.samples} == {
        f"usage-{partition}@{offset}" for partition, offset, line in found if line in ("rubbish", None, '{"half')
    }
    bounds = AuditQuery(("client_id",), None, START + DAY_MS, START + 2 * DAY_MS)
    there = answer_query(LocalRecords([LineSource(LINES)]), bounds)
    assert _ask(full, bounds).rows == there.rows
    assert len(there.rows) == 2
    assert {path.name for path in _root(full).glob("records/date=*")} == {
        "date=2025-11-20",
        "date=2025-11-21",
        "date=2025-11-22",
    }


def test_a_what_if_of_the_tables_is_that_of_the_topic(full: AuditTables, found: list[Found]) -> None:
    rules = ReplayRules({PolicyKey.of_broker(): 1.0})
    for bounds in ((None, None), (START + DAY_MS, START + 2 * DAY_MS)):
        question = AuditQuery(("topic",), 60_000, *bounds)
        lines = LineSource([line for _, _, line in found])
        direct = whatif.evaluate_policy(LocalUsage(LocalRecords([lines])), rules, question)
        with reading.read_table_pieces(full, *bounds) as read:
            answer = whatif.evaluate_policy(read, rules, question)
        assert answer == direct
        assert whatif.evaluate_policy(LocalUsage(LocalTables(str(_root(full)))), rules, question) == answer
        assert sum(effect.outcome_bytes("accepted", "actual") for effect in answer.rows) > 0
    stop = START + 2 * DAY_MS
    full.expire_before(stop // DAY_MS)  # of days before, only the list of intervals stays
    with reading.read_table_pieces(full) as read:
        answer = whatif.evaluate_policy(read, rules, AuditQuery(("topic",), DAY_MS))
    here = LocalUsage(LocalTables(str(_root(full))))
    assert whatif.evaluate_policy(here, rules, AuditQuery(("topic",), DAY_MS)) == answer
    assert {effect.keys["window_start_ms"] for effect in answer.rows} == {stop - stop % DAY_MS}


def test_a_record_read_again_by_any_checkpoint_counts_once(
    tables: AuditTables, writer: TableWriter, batch: Batches, found: list[Found]
) -> None:
    stream.add_batch(writer, batch(_thirds(found)[0]), "id")
    # Killed before its checkpoint knew of that batch, or the checkpoint is lost: again, by a new process, in a batch of
    # another size.
    writer = _reopened(tables)
    assert stream.add_batch(writer, batch(found), "id")["records"] == len(found) - 10
    # An old checkpoint from a backup: its batch 1 has other contents than the one that was written.
    later = [(partition, offset + 100, line) for partition, offset, line in found[:7]]
    stream.add_batch(writer, batch([*found, *later]), "id")
    # The topic was made again from a copy, where offsets begin anew: the same records are copies there.
    stream.add_batch(writer, batch(found), "another id")
    _check(tables, [*found, *later, *found])


def test_copies_are_looked_for_in_the_days_of_their_lives_alone(
    tables: AuditTables, writer: TableWriter, batch: Batches
) -> None:
    """Other lives' names and numbers lie around theirs in the files of each day."""
    lines = [
        line
        for day in range(4)
        for boot, seq in (("a", day), ("z", day), *([("m", 0)] if day == 2 else []))
        for line in interval(seq, boot=boot, start_ms=START + day * DAY_MS)
    ]
    stream.add_batch(writer, batch([(0, i, line) for i, line in enumerate(lines)]), "id")

    def find_days(writer: TableWriter) -> set[str]:
        known = writer.find_known_records([SparkRow(gateway="gw", boot="m", worker=0, first_seq=0, last_seq=9)])
        assert known is not None
        assert known.count() == 1
        return {path.rpartition("/date=")[2].partition("/")[0] for path in known.inputFiles()}

    assert find_days(writer) == find_days(_reopened(tables)) == {"2025-11-22"}
    update.update_rollups(tables)
    assert find_days(_reopened(tables)) == {"2025-11-22"}


def test_files_that_tasks_make_say_what_spark_reads_in_the_records(
    tables: AuditTables, writer: TableWriter, batch: Batches
) -> None:
    lines = [line for seq in range(40) for line in interval(seq, start_ms=START + seq * DAY_MS // 20, disks=DISKS)]
    lines += chained([line for seq in range(5) for line in interval(seq, boot="chained", version=2)])
    lines += [lost(5, boot="chained"), LONG_RUBBISH, *interval(0, boot="old", version=1)]
    given = [*((0, number, line) for number, line in enumerate(lines)), (1, 3, None), (2, 0, "x")]
    given += [(0, 100, lines[1]), (0, 101, changed(lines[0], end_ms=START + 59_000))]  # copies, one of them differs
    given.append((0, 102, "of a time that Kafka takes, and no calendar has"))
    late = F.when(F.col("offset") == 102, F.timestamp_millis(F.lit(2**49))).otherwise(F.col("timestamp"))
    in_order = batch(given).withColumn("timestamp", late).repartition(1).sortWithinPartitions("partition", "offset")
    added = stream.add_batch(writer, in_order, "id")
    assert added == {"records": 53, "usage": 46, "intervals": 47, "duplicates": 2, "malformed": 4}
    records = tables.load_records().withColumn("rows", F.coalesce("rows", F.array())).orderBy("partition", "offset")
    decoded = stream.decode_batch(in_order).orderBy("partition", "offset").drop("sample")
    whole = "offset < 100 or problem is not null"
    assert records.where(whole).select(*decoded.columns).collect() == decoded.where(whole).collect()
    copies = records.where("offset in (100, 101)").select("boot", "row_count", "rows", "counts", "conflict").collect()
    assert [tuple(row) for row in copies] == [("b1", None, [], False, False), ("b1", None, [], False, True)]
    assert records.where("boot = 'chained' and seq = 4").count() == 1  # files have bounds
    days = [str(row["date"]) for row in records.where("problem is not null").select("date").collect()]
    assert days == ["2025-11-20", "9999-12-31", "2025-11-20", "2025-11-20"]


def test_a_batch_with_larger_files_than_pass_through_the_driver_comes_in_parts(
    spark: SparkSession, tables: AuditTables, writer: TableWriter, batch: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = [Row(client_id=f"c{i}", bytes=i) for i in range(1000)]
    lines = [line for seq in range(25) for line in interval(seq, wide)]
    in_order = (
        batch([(0, offset, line) for offset, line in enumerate(lines)]).repartition(1).sortWithinPartitions("offset")
    )
    monkeypatch.setattr(stream, "_MAX_BATCH_BYTES", 1)
    before = tables.records_version
    added = stream.add_batch(writer, in_order, "id")
    assert added == {"records": 25, "usage": 25_000, "intervals": 25, "duplicates": 0, "malformed": 0}
    assert tables.records_version == before + 3  # a task hands on what is full with 10,000 rows
    assert [row["offset"] for row in tables.load_records().orderBy("offset").collect()] == [*range(25)]
    assert not any(stream.add_batch(writer, in_order, "id").values())
    # Tasks that share a partition have no beginning of it: all of it at once.
    shared = in_order.repartition(2).sortWithinPartitions("offset")
    assert stream.add_batch(writer, shared, "another id")["duplicates"] == 25
    # Without their rows, copies make no full part: yet no more come with them than were looked for in the tables.
    monkeypatch.setattr(stream, "_MAX_BATCH_BYTES", 8000)
    before = tables.records_version
    added = stream.add_batch(writer, in_order, "a third id")
    assert added == {"records": 25, "usage": 0, "intervals": 0, "duplicates": 25, "malformed": 0}
    assert tables.records_version > before + 1


@pytest.mark.full  # a control of test_a_record_read_again_by_any_checkpoint_counts_once
def test_a_control_that_appends_counts_twice(tables: AuditTables, batch: Batches, found: list[Found]) -> None:
    """The tests above would find such sums in a job that trusts its checkpoint alone."""
    path = f"{tables.root}/control"
    for records in (found, found[10:]):
        decoded = stream.decode_batch(batch(records))
        good = stream.mark_counted(
            decoded.where("problem is null").withColumn("date", store.utc_day_column("start_ms")), None
        )
        transforms.explode_rows(good.where("counts")).write.mode("append").parquet(path)
    total = tables.spark.read.parquet(path).selectExpr("sum(bytes)").collect()[0][0]
    assert total > sum(sums[0] for sums in truth(LINES, ()).values())


def test_roll_ups_follow_at_once_where_many_rows_wait_for_them(
    tables: AuditTables, writer: TableWriter, batch: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(plan: stream.StreamPlan) -> int:
        sink = stream._BatchSink(writer, plan, TopicIdentity("id", 1), ignore_progress, StreamMetrics())
        monkeypatch.setattr(sink, "_check_topic", lambda: None)
        before = len(told)
        for number in range(2):
            (line,) = interval(next(seqs), [Row(client_id="a"), Row(client_id="b")])
            sink._handle_batch(batch([(0, next(offsets), line)]), number)
        return len(told) - before

    told: list[AuditTables] = []
    monkeypatch.setattr(stream, "update_rollups", lambda tables, _: told.append(tables))
    seqs, offsets = count(), count()
    plan = stream.StreamPlan("localhost:1", "usage", {}, f"{tables.root}/_checkpoint", derive_every_s=1e9)
    assert read(plan) == 0
    monkeypatch.setattr(stream, "DERIVE_ROWS", 4)
    assert read(plan) == 1


def test_tables_put_back_from_before_their_checkpoint_are_not_gone_on_with(
    spark: SparkSession, tables: AuditTables, batch: Batches, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = stream.StreamPlan("localhost:1", "usage", {}, str(tmp_path / "checkpoint"))
    stream._check_checkpoint(tables, plan, "id")
    writer = store.TableWriter(tables)
    sink = stream._BatchSink(writer, plan, TopicIdentity("id", 1), ignore_progress, StreamMetrics())
    monkeypatch.setattr(sink, "_check_topic", lambda: None)
    sink._handle_batch(batch([(0, 0, interval(0)[0])]), 0)
    backup = shutil.copytree(_root(tables), tmp_path / "backup")
    sink._handle_batch(batch([(0, 1, interval(1)[0])]), 1)
    stream._check_checkpoint(tables, plan, "id")
    put_back = store.open_tables(spark, str(backup))
    with pytest.raises(AuditError, match=r"are older than the checkpoint [^\n]*: go on with another --checkpoint"):
        stream._check_checkpoint(put_back, plan, "id")


def test_a_stream_whose_last_batch_is_gone_adds_no_other_one(
    tables: AuditTables, writer: TableWriter, batch: Batches
) -> None:
    stream.add_batch(writer, batch([(0, 0, interval(0)[0])]), "id")
    (_root(tables) / f"records/_delta_log/{tables.records_version:020d}.json").unlink()  # as another writer's on S3
    with pytest.raises(AuditError, match=r"^the last batch is no longer in [^\n]*: go on with another --checkpoint"):
        stream.add_batch(writer, batch([(0, 1, interval(1)[0])]), "id")


def test_spark_reads_what_deltalake_says_of_its_checkpoints(
    spark: SparkSession, tables: AuditTables, writer: TableWriter, batch: Batches
) -> None:
    """Beside which Spark has left a checksum of what it had said itself."""
    assert tables.pin_version()._records.properties["delta.checkpointInterval"] == "10"  # deltalake's own is 100
    tables.run_statement(
        f"ALTER TABLE {tables.sql_path('records')} SET TBLPROPERTIES ('delta.checkpointInterval' = '2')"
    )
    said = _root(tables) / "records/_delta_log/_last_checkpoint"
    while json.loads(said.read_text())["version"] < 4:
        offset = tables.records_version
        stream.add_batch(writer, batch([(0, offset, interval(offset)[0])]), "id")
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(f"file:{said}")
    read = path.getFileSystem(context._jsc.hadoopConfiguration()).open(path)
    try:
        assert bytes(read.readAllBytes()) == said.read_bytes()
    finally:
        read.close()


@pytest.mark.parametrize("has_feature", [False, pytest.param(True, marks=pytest.mark.full)])
def test_spark_commits_what_deltalake_does_not(
    tables: AuditTables, batch: Batches, found: list[Found], has_feature: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise table_version.UnwritableTable

    if has_feature:
        feature = "SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')"
        tables.run_statement(f"ALTER TABLE {tables.sql_path('records')} {feature}")
    else:
        monkeypatch.setattr(TableVersion, "commit", refuse)  # that of the sums, too
    writer = _reopened(tables)
    stream.add_batch(writer, batch(found), "id")
    update.update_rollups(tables)
    _check(tables, found)
    read = {name: tables.read_table(name).agg(F.sum("bytes")).collect()[0][0] for name in ("usage", *WINDOW_LENGTHS)}
    assert len(set(read.values())) == 1, read
    assert {path.endswith(store._MADE_SUFFIX) for path in _live(tables)} == {False}


def test_files_that_lie_elsewhere_are_read_as_a_table(full: AuditTables) -> None:
    """As those of a shallow clone, whose log has whole addresses."""
    root, version = _root(full), full.records_version
    for commit in root.glob("records/_delta_log/*.json"):
        commit.write_text(commit.read_text().replace('"path":"date=', f'"path":"file:{root}/records/date='))
        (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)
    assert full.load_records(version - 1).count() == full.load_records().count() > 0


def _overtaken(tables: AuditTables, append: Callable[..., None], *args: Any) -> None:
    _reopened(tables)
    append(*args)


def test_of_two_streams_the_later_one_adds_and_the_other_one_stops(
    tables: AuditTables, writer: TableWriter, batch: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [[(0, offset, interval(seq)[0])] for offset, seq in enumerate((0, 1, 0))]  # the last one is a copy
    stops = r"^another stream has started on [^\n]*: this one stops$"
    stream.add_batch(writer, batch(parts[0]), "id")
    later = _reopened(tables)
    stream.add_batch(later, batch(parts[1]), "id")
    with pytest.raises(AuditError, match=stops):
        stream.add_batch(writer, batch(parts[2]), "id")

    # A zombie that had read its batch when the other one began.
    slow = later.tables
    for name in ("append_files", "append_records"):
        monkeypatch.setattr(slow, name, partial(_overtaken, tables, getattr(slow, name)))
    with pytest.raises(AuditError, match=stops):
        stream.add_batch(later, batch(parts[2]), "id")
    # Two that begin at the same moment, of which the second one has the lower number.
    numbers = iter((6, 7))
    monkeypatch.setattr(random, "randrange", lambda _: next(numbers))
    with pytest.raises(AuditError, match=stops):
        store.TableWriter(slow)
    assert tables.load_records().count() == 2


def test_copies_that_differ_are_kept_aside_as_conflicts(told: tuple[AuditTables, AuditReport]) -> None:
    tables, report = told
    assert (report.integrity.duplicates, report.integrity.conflicts, report.integrity.boots) == (3, 1, 4)
    assert [row["offered_bytes"] for row in report.rows if row["topic"] == "copies"] == [1]
    copies = tables.read_table("duplicates").where("conflict or boot = 'copies'").collect()
    assert {(row["partition"], row["offset"], row["seq"], row["conflict"]) for row in copies} == {
        (0, 14, 0, True),
        (0, 15, 0, False),
    }


def test_copies_of_records_with_the_digest_of_former_streams_are_no_conflicts(
    tables: AuditTables, batch: Batches
) -> None:
    rows = [Row(group="web", software="kgo", repeats=30), Row(outcome="rejected", reason="fence", repeats=0)]
    lines = [*interval(0), *interval(1, rows, storage_factor=0.5), lost(3), *interval(2, version=1)]
    digests = [-2936965380017226763, 6562041535678774986, -4923851713756171023, -8244171688333980013]  # of these lines
    former = [(*_identity(line), digest) for line, digest in zip(lines, digests, strict=True)]
    kinds = "gateway string, boot string, worker long, kind string, seq long, part long, digest long"
    known = tables.spark.createDataFrame(former, kinds)
    others = [changed(line, end_ms=START + 99_000) for line in lines]
    for given, differs in ((lines, False), (others, True)):
        found = stream.decode_batch(batch([(0, i, line) for i, line in enumerate(given)]))
        marked = stream.mark_counted(found.where("problem is null"), known).collect()
        assert [(row["counts"], row["conflict"]) for row in marked] == [(False, differs)] * 4


def _identity(line: str) -> tuple[object, ...]:
    record = json.loads(line)
    return tuple(record[name] for name in schema.IDENTITY_COLUMNS)


def test_a_malformed_record_is_kept_whole(told: tuple[AuditTables, AuditReport]) -> None:
    (row,) = told[0].read_table("malformed").where("offset = 7").collect()
    assert bytes(row["value"]) == LONG_RUBBISH.encode()
    assert (row["origin_topic"], row["partition"], row["offset"]) == ("usage", 2, 7)
    assert row["problem"] == "not one JSON object, or a field of the wrong type"
    assert row["date"].isoformat() == "2025-11-20"


def test_fields_of_version_2_are_columns_and_version_1_reads_as_unknown(told: tuple[AuditTables, AuditReport]) -> None:
    tables, report = told
    rows = tables.read_table("usage").where("topic = 'fields'").orderBy("seq", "outcome")
    assert [tuple(row) for row in rows.select("seq", "group", "software", "repeats").collect()] == [
        (0, "", "", None),
        (1, "web", "kgo", 30),
        (1, "", "", 0),
        (3, "", "", None),
    ]
    found = [row for row in report.rows if row["topic"] == "fields"]
    names = ("repeats_bytes", "repeats_unknown_bytes", "rejected_bytes")
    assert [sum(row[name] for row in found) for name in names] == [30, 200, 70]
    assert {row["group"]: row["offered_bytes"] for row in found} == {"": 270, "web": 100}


def test_volumes_are_in_the_tables_and_tables_from_before_have_none(
    told: tuple[AuditTables, AuditReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, report = told
    intervals = tables.read_table("intervals").where("boot = 'volumes'").orderBy("seq")
    seen = intervals.select("volumes", "spread").collect()
    assert [tuple(volume) for volume in seen[0]["volumes"]] == [(1, "/a", 100, 80, None, 10)]
    assert [tuple(each) for each in seen[0]["spread"]] == [(1, "clicks", 1, 3)]
    assert (seen[1]["volumes"], seen[1]["spread"]) == (None, None)
    clusters = {row["cluster"]: row["offered_bytes"] for row in report.rows if row["topic"] == "volumes"}
    assert clusters == {"": 100, "A": 100}
    load = store.AuditTables._load_table
    monkeypatch.setattr(
        store.AuditTables, "_load_table", lambda *args: load(*args).drop("volumes", "spread", "cluster")
    )
    assert tables.read_table("usage").select("cluster").distinct().collect() == [("",)]
    assert tables.read_table("intervals").select("volumes", "cluster").distinct().collect() == [(None, None)]


def test_digests_are_checked_as_records_come(told: tuple[AuditTables, AuditReport]) -> None:
    trust = told[1].integrity
    # A note without a digest, where there is a key, is one that somebody else wrote.
    assert {life["boot"]: life["changed"] for life in trust.changed_lives} == {"links": 1, "copies": 1}
    assert (trust.changed, trust.unchecked) == (2, 3)
    assert [gap["boot"] for gap in trust.gaps] == ["fields"]  # whose malformed record is not there


def test_compaction_changes_no_sum_despite_anything_beside_it(
    full: AuditTables, batch: Batches, found: list[Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **_options: object) -> None:
        raise KeyboardInterrupt

    writer = _reopened(full)
    with monkeypatch.context() as patch:
        patch.setattr(TableVersion, "commit", killed)  # the files are there, and the commit was about to be made
        with pytest.raises(KeyboardInterrupt):
            stream.add_batch(writer, batch(found), "another id")
    left = _files(full) - _live(full)
    assert left
    assert full.load_records().count() == len(found)
    writer = _reopened(full)
    reader = full.read_table("usage")  # has looked, and reads on slowly
    rows = reader.count()
    done = upkeep.compact_tables(store.open_tables(full.spark, full.root))
    # It may be that it is just being written: it stays for as long as a writer may take.
    assert left <= _files(full)
    assert done.files_after == len(list(_root(full).glob("records/date=*"))) < done.files_before
    assert reader.count() == rows
    stream.add_batch(writer, batch(found), "another id")
    # How far the topic has been read, and which records are known, has to survive it.
    assert upkeep.compact_tables(full, grace_ms=0).deleted > 0
    assert _files(full) == _live(full)
    again = _reopened(full)
    assert not any(stream.add_batch(again, batch(found), "id").values())
    later = [(partition, offset + 100, line) for partition, offset, line in found]
    stream.add_batch(again, batch(later), "id")
    _check(full, [*found, *found, *later])


def test_of_two_compactions_at_once_neither_changes_anything(full: AuditTables, found: list[Found]) -> None:

    def compact(_: int) -> str:
        try:
            upkeep.compact_tables(store.open_tables(full.spark, full.root))
        except AuditError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as both:
        said = list(both.map(compact, range(2)))
    assert "" in said
    assert all(not each or each.endswith("nothing is lost, run it again") for each in said)
    _check(full, found)


def test_expiry_lets_go_of_days_and_keeps_lives_whole(
    tables: AuditTables, writer: TableWriter, batch: Batches, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_version, "now_ms", lambda: START + 100 * DAY_MS)
    lines = [line for day in range(4) for line in interval(day, start_ms=START + day * DAY_MS)]
    short = [*interval(0, boot="b2"), *interval(1, boot="b2", final=True), *interval(0, boot="open")]
    records = [(0, i, line) for i, line in enumerate([*lines, *short, lines[0], "rubbish"])]
    stream.add_batch(writer, batch(records), "id")
    update.update_rollups(tables)
    assert tables.read_table("usage_1d").selectExpr("sum(bytes)").collect()[0][0] == 700
    with _unreadable_days(tables, "2025-11-21"):  # what the roll-ups tell isn't looked for in the records
        counted = LocalTables(str(_root(tables)))._count_records()
    assert (counted["records"], counted["malformed"], len(counted["samples"])) == (9, 1, 1)
    tables.expire_before(START // DAY_MS + 2)
    # While their files are there.
    assert _ask(tables, AuditQuery(by=("gateway",))).rows[0]["offered_bytes"] == 200
    assert tables.load_records().where("rows is not null").count() == 2
    with _unreadable_days(tables, "2025-11-22"):  # however many days are kept, it reads those that go
        upkeep.expire_usage(tables, keep_ms=98 * DAY_MS, grace_ms=0)
    assert tables.read_table("usage_1d").selectExpr("sum(bytes)").collect()[0][0] == 200
    report = _ask(tables, AuditQuery(by=("gateway",)))
    assert report.rows[0]["offered_bytes"] == 200
    trust = report.integrity
    assert (trust.gaps, trust.boots, trust.duplicates, trust.malformed) == ([], 2, 0, 0)
    assert report.sources[0]["expired_before"] == "2025-11-22"
    assert _files(tables) == _live(tables)
    assert len(list(_root(tables).glob("usage_1d/date=*/*.parquet"))) == 2
    # Neither a copy nor a latecomer brings an expired day back, and a copy of a life that goes on is still one.
    late = [(1, i, line) for i, line in enumerate([*lines, *short, *interval(2, boot="late")])]
    added = stream.add_batch(writer, batch(late), "id")
    assert (added["intervals"], added["duplicates"]) == (0, 2)
    assert answer_query(LocalTables(str(_root(tables))), AuditQuery()).rows[0]["offered_bytes"] == 200
    kept = tables.spark.read.format("delta").load(f"{tables.root}/records").where("rows is not null")
    assert {row["date"].isoformat() for row in kept.collect()} == {"2025-11-22", "2025-11-23"}


def test_tables_of_a_newer_layout_are_refused(tables: AuditTables, spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"ALTER TABLE {tables.sql_path('records')} SET TBLPROPERTIES ('produce-gateway.layout' = '99')")
    with pytest.raises(AuditError, match=r"^[^\n]*has tables of layout 99, this program knows 1: use a newer produce-"):
        store.open_tables(spark, tables.root)
    with pytest.raises(AuditError, match=r"^no tables in [^\n]*: `produce-gateway audit stream --output"):
        store.open_tables(spark, str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
