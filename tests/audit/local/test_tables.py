# Tables without Spark: where it leaves them to Spark, and what it says of those that it can't read. That it says what
# the records say, whatever has been rolled up, is in batch/rollups/test_rollups.py.

from __future__ import annotations

import datetime
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.audit import store
from gateway.audit.batch import job, query, tables
from gateway.audit.batch.query import AuditQuery
from gateway.audit.errors import AuditError
from gateway.audit.local import opening
from gateway.audit.local import tables as local_tables
from gateway.audit.local.records import LocalRecords
from gateway.audit.local.tables import LocalTables, UnreadableFeature
from gateway.audit.reconcile import command as reconcile_command
from gateway.audit.reconcile.reconcile import LogSnapshot, bound_additions
from gateway.audit.reconcile.spark_sums import count_additions
from gateway.audit.report import report
from gateway.audit.stream import stream
from tests.audit.records import START, LineSource, Row, as_json, interval, topic_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000
LINES = [line for day in range(4) for line in interval(day, [Row(topic="it's")], start_ms=START + day * DAY_MS)] + [
    line
    for seq in (0, 2)
    for line in interval(seq, [Row(client_id=f"c{i}", bytes=i) for i in range(9)], boot="b2", worker=1, cluster="C")
]


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of LINES, of which one came twice, without roll-ups, in folders of awkward names."""
    folder = tmp_path_factory.mktemp("tables") / "cluster=eu" / "date=2024-01-01" / "it's 100 % ö [1]"
    found = store.open_tables(spark, str(folder), make=True)
    records = [(0, i, line) for i, line in enumerate([*LINES, LINES[0]])]
    stream.add_batch(store.TableWriter(found), topic_batch(spark, records), "id")
    return folder


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of them, to be damaged."""
    return Path(shutil.copytree(made, tmp_path / made.name))


def _answer(records: query.CountedRecords, question: AuditQuery) -> Any:
    return as_json(tables.report_answer(query.answer_query(records, question))) | {"sources": None}


@pytest.mark.parametrize("held", [1, 10_000])
def test_it_says_what_the_records_say(made: Path, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(local_tables, "_HELD_ROWS", held)
    truth = LocalRecords([LineSource([*LINES, LINES[0]])])
    for question in (
        AuditQuery(("topic", "client_id", "outcome"), DAY_MS),
        AuditQuery(("worker", "cluster"), None, START + DAY_MS - 5, START + 3 * DAY_MS + 1),
        AuditQuery(("client_id",)),
        AuditQuery(()),
    ):
        here = LocalTables(str(made))
        assert _answer(here, question) == _answer(truth, question)
        for what in ("accepted", query.DROPPED):
            assert here.rank_groups(question, what, 2) == truth.rank_groups(question, what, 2)
    facts = report.gather_facts(LocalTables(str(made)), None, None, 5, 5)
    assert replace(facts, sources=[]) == replace(report.gather_facts(truth, None, None, 5, 5), sources=[])


def test_a_reconciliation_counts_what_spark_counts(made: Path, spark: SparkSession) -> None:
    since, until = (LogSnapshot("c", at, at, {}) for at in (START + 500, START + 3 * DAY_MS))
    options = reconcile_command._make_parser().parse_args(["--tables", str(made)])
    reading = reconcile_command._make_reading(options, {}, {}, since, until, 100)
    counted, complete = reconcile_command.count_usage(reading, since, until, 100, query.ignore_progress)
    assert (counted["it's"].accepted.messages, counted["it's"].in_flight.messages) == (4, 4)
    assert not complete
    bounds = (reading.start_ms, reading.end_ms)
    with job.read_tables(store.open_tables(spark, str(made)), *bounds) as records:
        assert count_additions(records.rows, bound_additions(since, until, 100)) == counted


def test_files_may_have_the_column_that_they_are_partitioned_by(made: Path, root: Path) -> None:
    """As Delta Lake 4.4 (Spark 4.1) writes them; the other files of the same table are from before."""
    path = next(root.glob("records/date=*/*.parquet"))
    day = datetime.date.fromisoformat(path.parent.name.removeprefix("date="))
    found = pq.ParquetFile(path).read()
    pq.write_table(found.append_column("date", pa.array([day] * len(found), pa.date32())), path)
    question = AuditQuery(("topic", "outcome"), DAY_MS)
    assert _answer(LocalTables(str(root)), question) == _answer(LocalTables(str(made)), question)


def test_what_it_can_not_read_is_left_to_spark_or_said(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(made)
    assert isinstance(opening.open_tables(root, always=False), LocalTables)
    assert opening.open_tables(f"file:{root}", always=False) is None
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert isinstance(opening.open_tables(root, always=False), LocalTables)
    assert opening.open_tables(str(tmp_path / "of a cluster"), always=False) is None
    monkeypatch.delenv("HADOOP_CONF_DIR")
    with pytest.raises(AuditError, match=r"^no tables in [^\n]*: `produce-gateway audit stream --output"):
        opening.open_tables(str(tmp_path / "nowhere"), always=False)
    monkeypatch.setattr(opening, "LOCAL_TABLE_BYTES", 10)
    assert opening.open_tables(root, always=False) is None
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert opening.open_tables(root, always=False) is None
    with pytest.raises(AuditError, match=r"pip install 'produce-gateway\[audit-tables\]'"):
        opening.open_tables(root, always=True)


def _edit_first_commit(root: Path, before: str, after: str) -> None:
    log = root / "records" / "_delta_log"
    for checksum in log.glob("*.crc"):  # which say the same, and are believed
        checksum.unlink()
    commit = log / f"{0:020d}.json"
    text, count = re.subn(before, after, commit.read_text())
    assert count == 1
    commit.write_text(text)


def test_features_without_which_files_mean_something_else_are_refused(root: Path) -> None:
    features = '"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["deletionVectors"],'
    _edit_first_commit(
        root, r'"minReaderVersion":1,"minWriterVersion":\d', features + '"writerFeatures":["deletionVectors"]'
    )
    assert opening.open_tables(str(root), always=False) is None
    with pytest.raises(UnreadableFeature, match=r"only Spark reads here \([^)]*deletionVectors[^)]*\): use --eng"):
        opening.open_tables(str(root), always=True)


def test_a_log_that_it_does_not_understand_is_left_to_spark(root: Path) -> None:
    _edit_first_commit(root, '"protocol":', '"protokoll":')
    assert opening.open_tables(str(root), always=False) is None
    with pytest.raises(UnreadableFeature, match=r"^[^\n]* can't be read here \([^\n]*\): use --engine spark$"):
        opening.open_tables(str(root), always=True)


def test_a_newer_layout_and_damage_are_one_line_and_no_smaller_sum(root: Path) -> None:
    here = LocalTables(str(root))
    shutil.rmtree(next(root.glob("records/date=*")))
    with pytest.raises(AuditError, match=r"^[^\n]* can't be read: [^\n]*$"):
        here.sum_groups(AuditQuery(("topic",)))
    _edit_first_commit(root, '"produce-gateway.layout":"1"', '"produce-gateway.layout":"99"')
    with pytest.raises(AuditError, match=r"^[^\n]*has tables of layout 99, this program knows 1: use a newer produce-"):
        LocalTables(str(root))
