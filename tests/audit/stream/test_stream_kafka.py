# The streaming audit on a real topic, as users start it: killed, with a topic that loses records or is made again, with
# a checkpoint that belongs to something else.

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.audit import store
from gateway.audit.batch import job
from gateway.audit.batch.query import AuditQuery, answer_query
from gateway.audit.errors import AuditError
from gateway.audit.local.tables import LocalTables
from gateway.audit.stream import command as commands
from gateway.audit.stream import stream
from gateway.audit.stream.metrics import PREFIX, StreamMetrics
from gateway.audit.stream.stream import StreamPlan
from gateway.embedded import wait_for
from tests.audit.records import START, interval, truth
from tests.audit.stream import kill_stream
from tests.integration.gateways import create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.embedded import EmbeddedCluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(1800)]  # minutes of Spark's work on a quiet machine


def _make(kafka: EmbeddedCluster, topic: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)
    return admin


def _send(kafka: EmbeddedCluster, topic: str, lines: list[str]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for line in lines:
        producer.produce(topic, line)
    assert producer.flush(30) == 0


def _lines(seqs: range) -> list[str]:
    return [line for seq in seqs for line in interval(seq)]


def test_killed_at_a_random_moment_the_tables_say_the_truth(
    spark: SparkSession, kafka: EmbeddedCluster, tmp_path: Path
) -> None:
    """The full number, and the control that fails: python -m tests.audit.stream.kill_stream (docs/audit.md)."""
    outcome = kill_stream.run(kafka.bootstrap_servers, tmp_path, kills=1, intervals=60, seed=3, spark=spark)
    assert outcome.exact


@pytest.mark.full  # with Spark 4.0 the test before it says so, too
def test_a_batch_that_was_begun_before_a_kill_is_done_again(
    spark: SparkSession, kafka: EmbeddedCluster, tmp_path: Path
) -> None:
    """Spark 4.1 and 4.2 end such a query once, after that batch (SPARK-55271)."""
    topic, tables = f"stream-{uuid.uuid4()}", store.open_tables(spark, str(tmp_path / "t"), make=True)
    _make(kafka, topic)
    plan = StreamPlan(kafka.bootstrap_servers, topic, {}, str(tmp_path / "c"))
    _send(kafka, topic, _lines(range(3)))
    stream.run_stream(spark, tables, plan)
    for file in (tmp_path / "c" / "commits").glob("*0*"):  # its checksum, too
        file.unlink()
    _send(kafka, topic, _lines(range(3, 5)))
    assert stream.run_stream(spark, tables, plan)["intervals"] == 2
    assert job.audit_tables(tables, AuditQuery()).integrity.records == 5


@pytest.mark.full  # the test before it reads uneven partitions in small batches, too
def test_an_hour_in_uneven_partitions_in_small_batches_loses_nothing(
    spark: SparkSession, kafka: EmbeddedCluster, tmp_path: Path
) -> None:
    lines = kill_stream.usage_log(90)
    kill_stream.fill(kafka.bootstrap_servers, "stream-hour", lines, random.Random(2))
    tables = store.open_tables(spark, str(tmp_path / "t"), make=True)
    plan = StreamPlan(kafka.bootstrap_servers, "stream-hour", {}, str(tmp_path / "c"), max_records=150)
    said: list[str] = []
    stream.run_stream(spark, tables, plan, said.append)
    assert sum("batch " in line for line in said) > 2
    report = job.audit_tables(tables, AuditQuery(by=kill_stream.BY, window_ms=600_000))
    got = {
        tuple(row[name] for name in ("window_start_ms", *kill_stream.BY)): row["offered_bytes"] for row in report.rows
    }
    assert got == {key: sums[0] for key, sums in truth(lines, kill_stream.BY, 600_000).items()}
    assert {key[0] for key in got} == {START // 600_000 * 600_000 + i * 600_000 for i in range(7)}


def test_a_stream_that_can_not_go_on_says_why_and_a_new_checkpoint_goes_on(
    spark: SparkSession, kafka: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fill_missing", "update_rollups"):  # which the test before this one looks at
        monkeypatch.setattr(stream, name, lambda *_: None)
    topic = "stream-again"
    admin = _make(kafka, topic)
    _send(kafka, topic, _lines(range(3)))
    tables = store.open_tables(spark, str(tmp_path / "t"), make=True)

    metrics = StreamMetrics()

    def run(checkpoint: str) -> dict[str, int]:
        plan = StreamPlan(kafka.bootstrap_servers, topic, {}, str(tmp_path / checkpoint))
        return stream.run_stream(spark, tables, plan, metrics=metrics)

    assert run("one")["intervals"] == 3
    names = ("records_total", "batch_records", "lag_records", "lag_seconds")
    assert [metrics.registry.get_sample_value(f"{PREFIX}_{name}") for name in names] == [3, 3, 0, 0]
    assert metrics.registry.get_sample_value(f"{PREFIX}_state", {f"{PREFIX}_state": "ended"}) == 1

    # Retention takes what has not been read yet.
    _send(kafka, topic, _lines(range(3, 6)))
    next(iter(admin.delete_records([TopicPartition(topic, 0, 5)]).values())).result(120)
    with pytest.raises(AuditError, match=r"^records of stream-again are gone that had not been read[^\n]*--checkpoint"):
        run("one")
    assert run("two")["intervals"] == 1
    gaps = answer_query(LocalTables(str(tmp_path / "t")), AuditQuery()).integrity.gaps
    assert [(gap["first_seq"], gap["missing"]) for gap in gaps] == [(3, 2)]

    # Made again, and longer than before: the offsets alone would fit.
    _make_again(kafka, admin, topic)
    _send(kafka, topic, _lines(range(2, 12)))
    with pytest.raises(AuditError, match=r"^topic stream-again was deleted and made again [^\n]*another --checkpoint"):
        run("two")
    assert run("three") | {"records": 0} == {
        "records": 0, "usage": 8, "intervals": 8, "duplicates": 2, "malformed": 0
    }  # fmt: skip
    report = answer_query(LocalTables(str(tmp_path / "t")), AuditQuery())
    assert (report.rows[0]["offered_bytes"], report.integrity.gaps) == (1200, [])

    # The tables were thrown away, and the checkpoint was not.
    other = store.open_tables(spark, str(tmp_path / "other"), make=True)
    with pytest.raises(AuditError, match=r"^the checkpoint [^\n]* belongs to other tables or another topic"):
        stream.run_stream(spark, other, StreamPlan(kafka.bootstrap_servers, topic, {}, str(tmp_path / "three")))


def _make_again(kafka: EmbeddedCluster, admin: AdminClient, topic: str) -> None:
    """Return when producers and readers meet the new one: the controller says that it is made before brokers know."""
    admin.delete_topics([topic])[topic].result(120)
    wait_for("the topic to go", lambda: topic not in admin.list_topics(timeout=30).topics)
    create_topic(kafka, topic)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("stream",), "the following arguments are required: --bootstrap-servers, --output"),
        (("stream", "--bootstrap-servers", "x:1", "--output", "o", "--interval", "soon"), "--interval: 'soon' is no"),
        (
            ("stream", "--bootstrap-servers", "x:1", "--output", "o", "--interval", ""),
            "--interval: '' is not a valid d",
        ),
        (
            ("stream", "--bootstrap-servers", "x:1", "--output", "o", "--metrics-port", ""),
            "--metrics-port: '' is not a",
        ),
        (("stream", "--bootstrap-servers", "x:1", "--output", "o", "--max-records", "0"), "--max-records: 0 is not a"),
        (
            ("stream", "--bootstrap-servers", "x:1", "--output", "o", "--metrics-port", "x:y"),
            "--metrics-port: 'x:y' is ",
        ),
        (("compact", "d", "--grace", "x"), "--grace: 'x' is not a valid duration"),
        (("compact", "d", "--grace", "59m"), "--grace: '59m' is too short"),
        (("expire", "d"), "the following arguments are required: --keep"),
        (("expire", "d", "--keep", "ever"), "--keep: 'ever' is not a valid duration"),
    ],
)
def test_wrong_options_are_one_line(args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(list(args)) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
