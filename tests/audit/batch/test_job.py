# The audit over its real sources: a topic of a real Kafka, spool files, and both at once.

from __future__ import annotations

import gzip
import random
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.audit.addresses import check_reachable
from gateway.audit.batch import job, spark_sources
from gateway.audit.batch.query import AuditQuery, AuditReport, answer_query
from gateway.audit.engines import LOCAL, SPARK
from gateway.audit.errors import AuditError
from gateway.audit.local.records import LocalRecords
from gateway.audit.local.spool import SpoolSource
from gateway.audit.local.topic import TopicSource
from gateway.embedded import find_free_port
from tests.audit.records import START, Row, changed, interval, lost, summed, truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.audit.batch.query import CountedRecords
    from gateway.embedded import EmbeddedCluster

TOPIC = "audit-usage"
QUESTION = AuditQuery(by=("topic", "client_id"), window_ms=60_000)


def _log() -> list[str]:
    """Every record of two workers: one ended, one died; several parts, several minutes."""
    lines = [
        line
        for seq in range(30)
        for line in interval(
            seq, [Row(client_id=f"c{i}", bytes=seq * 7 + i) for i in range(4)], start_ms=START + 9000 * seq
        )
    ]
    lines += interval(30, [Row(client_id=f"c{i % 9}", bytes=i) for i in range(1500)], final=True)
    lines += [line for seq in range(5) for line in interval(seq, boot="b2", worker=1)]
    return [*lines, lost(4, boot="b2", worker=1)]


LINES = _log()


def _new_name(name: str) -> str:
    return f"{TOPIC}-{name}-{uuid.uuid4().hex[:8]}"  # each engine makes one


@pytest.fixture(scope="module")
def topic(kafka: EmbeddedCluster) -> Iterator[str]:
    """LINES in three partitions, a fifth of them twice, some rubbish between; its bootstrap servers."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    created = admin.create_topics([NewTopic(TOPIC, 3, 1), NewTopic(f"{TOPIC}-empty", 1, 1)])
    for made in created.values():
        made.result(120)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    sent: list[str | None] = [*LINES, *LINES[::5], "rubbish", None]
    random.Random(5).shuffle(sent)
    for i, line in enumerate(sent):
        producer.produce(TOPIC, line, partition=i % 3)
    assert producer.flush(30) == 0
    yield kafka.bootstrap_servers
    for deleted in admin.delete_topics([TOPIC, f"{TOPIC}-empty"]).values():
        deleted.result(120)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """LINES in two spool files as a gateway keeps them, beside files that are no records."""
    (tmp_path / "usage-00000001-aa.jsonl").write_text("".join(line + "\n" for line in LINES[:20]))
    (tmp_path / "usage-00000002-aa.jsonl").write_text("".join(line + "\n" for line in LINES[20:]))
    (tmp_path / "published.json").write_text('{"segment":1}')
    (tmp_path / "lock").touch()
    return tmp_path


class Engine(NamedTuple):
    """Either engine's ways to its sources; `audit` takes them together."""

    topic: Callable[..., Any]
    spool: Callable[[str], Any]
    audit: Callable[[Sequence[Any], AuditQuery], AuditReport]
    count: Callable[[Any], int]


@pytest.fixture(params=[SPARK, LOCAL])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == LOCAL:
        return Engine(
            lambda servers, name, properties=None: TopicSource(servers, name, properties or {}),
            SpoolSource,
            lambda sources, question: answer_query(LocalRecords(sources), question),
            lambda source: sum(len(batch.values) for batch in source.read_batches()),
        )
    spark = request.getfixturevalue("spark")
    return Engine(
        partial(spark_sources.read_topic, spark),
        partial(spark_sources.read_spool, spark),
        partial(job.audit_sources, spark),
        lambda source: int(source.raw_lines.count()),
    )


def _sums(report: AuditReport) -> object:
    return summed(report.rows, ["window_start_ms", *report.query.by])


@pytest.mark.kafka
def test_properties_that_only_java_s_client_has_are_left_to_it(spark: SparkSession, topic: str) -> None:
    found = spark_sources.read_topic(spark, topic, TOPIC, {"ssl.truststore.password": "of a JKS file"})
    assert found.description == spark_sources.read_topic(spark, topic, TOPIC).description


@pytest.mark.kafka
def test_topic_and_spool_and_both_together_give_the_same_exact_sums(engine: Engine, topic: str, spool: Path) -> None:
    from_topic, from_spool = engine.topic(topic, TOPIC), engine.spool(str(spool))
    of_topic = engine.audit([from_topic], QUESTION)
    of_spool = engine.audit([from_spool], QUESTION)
    of_both = engine.audit([from_topic, from_spool], QUESTION)
    expected = truth(LINES, QUESTION.by, QUESTION.window_ms)
    assert _sums(of_topic) == _sums(of_spool) == _sums(of_both) == expected
    assert of_topic.rows == of_spool.rows == of_both.rows

    copies = len(LINES[::5])
    assert engine.count(from_topic) == len(LINES) + copies + 2
    trust = of_topic.integrity
    assert (trust.records, trust.duplicates, trust.conflicts) == (len(LINES) + copies + 2, copies, 0)
    assert sorted(trust.problems) == ["empty", "not one JSON object, or a field of the wrong type"]
    assert {sample["sample"] for sample in trust.samples} == {None, "rubbish"}
    assert all(re.fullmatch(rf"{TOPIC}-[0-2]@\d+", sample["origin"]) for sample in trust.samples)
    assert (trust.gaps_total, trust.lost, trust.incomplete_total, trust.boots) == (0, 1, 1, 2)
    assert (of_spool.integrity.malformed, of_spool.integrity.duplicates) == (0, 0)
    assert of_both.integrity.duplicates == copies + len(LINES)
    ends = {each["partition"]: each["end_offset"] for each in of_topic.sources[0]["partitions"]}
    assert sum(ends.values()) == of_topic.integrity.records
    assert len(ends) == 3


@pytest.mark.kafka
def test_records_that_arrive_after_the_start_are_not_read(engine: Engine, kafka: EmbeddedCluster) -> None:
    name = _new_name("late")  # of its own: other tests know what is in the shared one
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(120)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(name, interval(0)[0])
    assert producer.flush(30) == 0
    source = engine.topic(kafka.bootstrap_servers, name)
    producer.produce(name, interval(0, boot="late")[0])
    assert producer.flush(30) == 0
    assert engine.count(source) == 1
    assert engine.count(engine.topic(kafka.bootstrap_servers, name)) == 2


@pytest.mark.kafka
def test_records_that_go_while_it_reads_are_an_error_and_no_smaller_sum(engine: Engine, kafka: EmbeddedCluster) -> None:
    name = _new_name("short")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(120)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for seq in range(3):
        producer.produce(name, interval(seq)[0])
    assert producer.flush(30) == 0
    source = engine.topic(kafka.bootstrap_servers, name)
    deleted = admin.delete_records([TopicPartition(name, 0, 2)])
    next(iter(deleted.values())).result(120)
    with pytest.raises(AuditError, match=r"^records that were there at the start are gone [^\n]*$"):
        engine.audit([source], AuditQuery())
    assert engine.count(engine.topic(kafka.bootstrap_servers, name)) == 1


@pytest.mark.kafka
def test_an_empty_topic_is_an_empty_answer(engine: Engine, topic: str) -> None:
    report = engine.audit([engine.topic(topic, f"{TOPIC}-empty")], AuditQuery())
    assert (report.integrity.records, report.integrity.empty, report.integrity.complete) == (0, True, False)
    assert [row["offered_bytes"] for row in report.rows] == [0]


@pytest.mark.kafka
def test_a_topic_that_is_not_there_is_one_line(engine: Engine, topic: str) -> None:
    with pytest.raises(AuditError, match=f"^topic nowhere does not exist at {topic}$"):
        engine.topic(topic, "nowhere")
    with pytest.raises(AuditError, match=r"^[^\n]*security.protocol[^\n]*$"):
        engine.topic(topic, TOPIC, {"security.protocol": "NONE"})


def test_a_broker_that_is_not_there_is_one_line() -> None:
    with pytest.raises(AuditError, match=r"^no broker can be reached \(127.0.0.1:\d+: Connection refused\)$"):
        check_reachable(f"127.0.0.1:{find_free_port()}")
    with pytest.raises(AuditError, match=r"^--bootstrap-servers: 'here' is not HOST:PORT$"):
        check_reachable("here")


def test_a_spool_that_is_not_there_is_one_line(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"^no spool file matches .*nowhere$"):
        engine.spool(str(tmp_path / "nowhere"))


def test_what_is_missing_where_the_clock_was_set_back_is_told_of_both_times(
    records: Callable[[Sequence[str | None]], CountedRecords],
) -> None:
    # The clock reads 100 s, 101, 102 (missing), then 50, 51 (missing), 52; the other worker dies at 55.
    def at(seq: int, second: int, boot: str) -> list[str]:
        return interval(seq, boot=boot, start_ms=START + 1000 * second)

    read = records(
        [
            *at(0, 100, "b1"), *at(1, 101, "b1"), *at(4, 52, "b1"),
            *at(0, 100, "b2"), *at(1, 101, "b2"), lost(1, boot="b2", now_ms=START + 55_000),
        ]
    )  # fmt: skip

    def ask(from_s: int | None, to_s: int | None) -> tuple[list[int], int]:
        start, end = (None if second is None else START + 1000 * second for second in (from_s, to_s))
        trust = read.find_gaps(AuditQuery((), None, start, end))
        return [gap["first_seq"] for gap in trust.gaps], trust.lost

    assert ask(None, None) == ([2], 1)
    assert ask(101, None) == ([2], 1)
    assert ask(53, 103) == ([2], 1)
    assert ask(53, 101) == ([], 1)
    assert ask(40, 52) == ([2], 1)
    assert ask(60, 90) == ([], 0)


def test_records_that_are_kept_on_disk_are_not_held_in_memory_too(spark: SparkSession) -> None:
    """They get there and back through Java's serializer, which refers to what it holds instead of writing it again."""
    jvm: Any = spark.sparkContext._jvm
    written, kept = jvm.java.io.ByteArrayOutputStream(), jvm.java.util.ArrayList()
    kept.add("x" * 1000)
    stream = jvm.org.apache.spark.SparkEnv.get().serializer().newInstance().serializeStream(written)
    for _ in range(5):
        stream.writeObject(kept, None)
    stream.flush()
    assert written.size() > 5 * 1000


def test_packed_files_of_a_folder_are_read(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.tmp", "d.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"packed\n") if name.endswith(".gz") else b"plain\n")
    found = spark_sources.read_spool(spark, str(tmp_path)).raw_lines.orderBy("origin").collect()
    assert [tuple(row) for row in found] == [("plain", "a.jsonl"), ("packed", "b.jsonl.gz")]


def test_a_time_range_chooses_intervals_and_the_gaps_that_touch_it(
    records: Callable[[Sequence[str | None]], CountedRecords],
) -> None:
    # 0 | gap 1-2 | 3 4 | gap 5-6 | 7, conflicting 4, and a worker that died in the fourth second
    lines = [line for seq in (0, 3, 4, 7) for line in interval(seq)]
    lines += [changed(interval(4)[0], parts=2), *interval(0, boot="b2"), lost(0, boot="b2", now_ms=START + 4000)]
    read = records(lines)

    def ask(from_s: int | None, to_s: int | None) -> tuple[int, list[int], list[str]]:
        start, end = (None if at is None else START + 1000 * at for at in (from_s, to_s))
        report = answer_query(read, AuditQuery((), None, start, end))
        trust = report.integrity
        assert trust.conflicts == 1
        assert not trust.complete
        gaps = [gap["first_seq"] for gap in trust.gaps if gap["gap"] == "seq"]
        return report.rows[0]["offered_requests"], gaps, [boot["boot"] for boot in trust.incomplete]

    assert ask(None, None) == (5, [1, 5], ["b1", "b2"])
    assert ask(4, None) == (2, [5], ["b1"])
    assert ask(0, 1) == (2, [], ["b1", "b2"])
    assert ask(1, 3) == (0, [1], ["b1", "b2"])
