# Reconciliation on a real broker, behind a real gateway: what agrees to the byte, and what does not is found, named and
# counted. Without Java: that Spark counts the same is in test_reconcile.py.

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.audit import cli
from gateway.audit.batch.query import AuditQuery
from gateway.audit.errors import AuditError
from gateway.audit.local.records import LocalRecords
from gateway.audit.local.topic import TopicSource
from gateway.audit.reconcile import brokers
from gateway.audit.reconcile.local_sums import AdditionCollector
from gateway.audit.reconcile.reconcile import (
    AGREES,
    DIFFERS,
    UNKNOWN,
    LogSnapshot,
    TopicVerdict,
    UsageSum,
    bound_additions,
    load_snapshot,
    reconcile_topics,
)
from gateway.embedded import wait_for
from tests.integration.gateways import (
    USAGE_TOPIC,
    Gateway,
    create_topic,
    end_offsets,
    log_batches,
    log_bytes,
)

if TYPE_CHECKING:
    from gateway.embedded import EmbeddedCluster

pytestmark = pytest.mark.kafka
_names = itertools.count(1)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedCluster) -> Iterator[Gateway]:
    with Gateway(kafka.bootstrap_servers) as running:
        yield running


def _topic(kafka: EmbeddedCluster, partitions: int = 2, **config: str) -> str:
    return create_topic(kafka, f"reconcile-{next(_names)}", partitions, **config)


def _send(bootstrap: str, topic: str, count: int, partitions: int = 2, **options: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2, **options})
    for number in range(count):
        producer.produce(topic, b"x" * (number * 37 % 900), partition=number % partitions)
        producer.poll(0)
    assert producer.flush(60) == 0


def _settled(kafka: EmbeddedCluster, gateway: Gateway, topic: str, want: UsageSum) -> None:
    """Return when the gateway has counted that much as accepted, and the usage topic has it."""
    gateway.settle(topic, want, "accepted")  # type: ignore[arg-type]  # two numbers of the same names
    gateway.wait_published(kafka)


def _held(kafka: EmbeddedCluster, topic: str) -> UsageSum:
    return UsageSum(log_bytes(kafka, topic), end_offsets(kafka, topic))


def _look(kafka: EmbeddedCluster, *topics: str) -> LogSnapshot:
    return brokers.fetch_snapshot(kafka.bootstrap_servers, {}, lambda name: name in topics)


def _verdicts(
    kafka: EmbeddedCluster, since: LogSnapshot | None, until: LogSnapshot, *topics: str
) -> dict[str, TopicVerdict]:
    records = LocalRecords([TopicSource(kafka.bootstrap_servers, USAGE_TOPIC, {})])
    bounds = bound_additions(since, until, 0)
    counted = records.collect(lambda: AdditionCollector(bounds), AuditQuery()).make_counted()
    found = reconcile_topics(since, until, {topic: counted[topic] for topic in topics if topic in counted})
    return {each.topic: each for each in found}


def _interval_has_ended(kafka: EmbeddedCluster, gateway: Gateway, filler: str, before: LogSnapshot) -> None:
    """Return when what the gateway counts from now on is in intervals that began after that snapshot."""

    def ended() -> bool:
        _send(gateway.bootstrap, filler, 1, 1)
        return any(record["end_ms"] > before.ended_ms for record in gateway.published(kafka))

    wait_for("the end of the interval", ended, every_s=0.2)


def test_it_agrees_to_the_byte_and_finds_a_producer_that_goes_past_the_gateway(
    kafka: EmbeddedCluster, gateway: Gateway
) -> None:
    clean, passed, quiet = _topic(kafka), _topic(kafka), _topic(kafka)
    for topic in (clean, passed):
        _send(gateway.bootstrap, topic, 300)
        _settled(kafka, gateway, topic, _held(kafka, topic))
    topics = (clean, passed, quiet)
    middle = _look(kafka, *topics)
    found = _verdicts(kafka, None, middle, *topics)
    assert {topic: each.verdict for topic, each in found.items()} == dict.fromkeys(topics, AGREES)
    assert found[clean].counted.accepted == _held(kafka, clean) == UsageSum(*_grown(found[clean]))
    assert found[clean].reasons == []

    # From here on, and exactly: the intervals before the snapshot count no more.
    _interval_has_ended(kafka, gateway, quiet, middle)
    before = _held(kafka, passed)
    _send(gateway.bootstrap, clean, 50)
    _send(gateway.bootstrap, passed, 50)
    through = _held(kafka, passed)
    _send(kafka.bootstrap_servers, passed, 7)
    beside = UsageSum(*(now - then for now, then in zip(_held(kafka, passed), through, strict=True)))
    for topic, want in ((clean, _held(kafka, clean)), (passed, through)):
        _settled(kafka, gateway, topic, want)
    found = _verdicts(kafka, middle, _look(kafka, *topics), *topics)
    assert (found[clean].verdict, found[clean].counted.accepted.messages) == (AGREES, 50)
    assert found[clean].counted.in_flight == UsageSum()
    assert found[passed].verdict == DIFFERS
    assert found[passed].counted.accepted == UsageSum(through.bytes - before.bytes, 50)
    assert found[passed].reasons == [
        f"{beside.bytes:,} bytes and 7 messages were not produced through the gateway"
    ]  # fmt: skip


def _grown(verdict: TopicVerdict) -> tuple[int, int]:
    assert verdict.growth.bytes is not None
    assert verdict.growth.messages is not None
    return verdict.growth.bytes, verdict.growth.messages


def test_transaction_markers_are_told_from_uncounted_records(kafka: EmbeddedCluster, gateway: Gateway) -> None:
    topic = _topic(kafka)
    producer = Producer({"bootstrap.servers": gateway.bootstrap, "log_level": 2, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(30)
    for partitions, commit in (((0, 1), True), ((1,), False), ((0, 1), True)):
        producer.begin_transaction()
        for partition in partitions:
            producer.produce(topic, b"value" * 20, partition=partition)
        assert producer.flush(60) == 0
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    # A marker is in the file before readers may have it.
    wait_for("the markers", lambda: sum(batch.control for batch in log_batches(kafka, topic)) == 5)
    wait_for("their readers", lambda: end_offsets(kafka, topic) == 10)  # 5 records, 5 markers
    held = _held(kafka, topic)
    _settled(kafka, gateway, topic, UsageSum(held.bytes - 5 * 78, held.messages - 5))
    found = _verdicts(kafka, None, _look(kafka, topic), topic)[topic]
    assert (found.verdict, found.markers, found.reasons) == (AGREES, (5, 5), ["5 transaction markers of 78 bytes"])

    _send(kafka.bootstrap_servers, topic, 1)
    found = _verdicts(kafka, None, _look(kafka, topic), topic)[topic]
    assert (found.verdict, found.markers) == (DIFFERS, None)


def test_changed_bytes_in_the_log_leave_offsets_and_a_topic_made_again_leaves_nothing(
    kafka: EmbeddedCluster, gateway: Gateway
) -> None:
    packed, cut, again = _topic(kafka, compression_type="gzip"), _topic(kafka), _topic(kafka)
    topics = (packed, cut, again)
    for topic in topics:
        _send(gateway.bootstrap, topic, 100)
        gateway.settle(topic, UsageSum(0, 100), "accepted")  # type: ignore[arg-type]
    gateway.wait_published(kafka)
    first = _look(kafka, *topics)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    next(iter(admin.delete_records([TopicPartition(cut, 0, 10)]).values())).result(120)
    admin.delete_topics([again])[again].result(120)
    wait_for("the topic to go", lambda: again not in admin.list_topics(timeout=30).topics)
    create_topic(kafka, again, 2)
    _send(kafka.bootstrap_servers, again, 4)

    found = _verdicts(kafka, None, _look(kafka, *topics), *topics)
    assert [found[topic].verdict for topic in topics] == [AGREES, AGREES, DIFFERS]
    assert found[packed].reasons == ["brokers compress anew (compression.type=gzip): messages only"]
    assert found[cut].reasons == ["logs have lost their beginnings (retention, DeleteRecords): messages only"]
    assert "were acknowledged and are not in the log" in found[again].reasons[0]
    # With a look at it from before, it is clear what happened, and that four messages are too many to have been counted
    # since then.
    found = _verdicts(kafka, first, _look(kafka, *topics), *topics)
    assert found[again].verdict == (DIFFERS if not any(found[again].counted.in_flight) else UNKNOWN)
    assert found[again].reasons[0].startswith("the topic was deleted and made again")


def test_the_commands_say_the_same(
    kafka: EmbeddedCluster, gateway: Gateway, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    topic = _topic(kafka)
    _send(kafka.bootstrap_servers, topic, 3)
    beside = _held(kafka, topic)
    _send(gateway.bootstrap, topic, 20)
    gateway.settle(topic, UsageSum(0, 20), "accepted")  # type: ignore[arg-type]
    gateway.wait_published(kafka)
    until = tmp_path / "until.json"
    address = ("--bootstrap-servers", kafka.bootstrap_servers, "--topics", topic)
    assert cli.main(["reconcile", "snapshot", *address, "--out", str(until)]) == 0
    noted = load_snapshot(until.read_text())
    assert noted.topics == _look(kafka, topic).topics
    # Kafka's own text of the id, which is that of `topic-id:…` in the usage log.
    metadata = kafka.broker(1).log_dir / f"{topic}-0" / "partition.metadata"
    assert f"topic_id: {noted.topics[topic].id}\n" in metadata.read_text() + "\n"
    answers = []
    for asked in (
        ("--until", until, "--spool", gateway.spool, "--topics", topic),
        (*address, "--settle", "0s", "--engine", "local"),
    ):
        status = cli.main([*map(str, ("reconcile", *asked, "--format", "json", "--margin", "0s"))])
        out, err = capsys.readouterr()
        assert all(line.startswith("audit ") for line in err.splitlines()), err
        answers.append(json.loads(out))
        assert (status, answers[-1]["agrees"], answers[-1]["usage_log_complete"]) == (3, False, True)
    assert answers[0]["topics"] == answers[1]["topics"]
    assert answers[0]["topics"][0]["reasons"] == [
        f"{beside.bytes:,} bytes and 3 messages were not produced through the gateway"
    ]  # fmt: skip


def test_a_cluster_without_such_topics_and_one_that_makes_them_just_now(kafka: EmbeddedCluster) -> None:
    found = _look(kafka)
    assert (found.topics, bool(found.cluster)) == ({}, True)
    name = f"reconcile-{next(_names)}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(120)
    for topic in _look(kafka, name).topics.values():  # its leaders need not lead yet
        assert [(log.start, log.end) for log in topic.partitions.values()] == [(0, 0)] * 3


def test_a_broker_that_does_not_answer_is_one_line(kafka: EmbeddedCluster) -> None:
    wrong = {"security.protocol": "SSL", "default.api.timeout.ms": "2000"}  # 15 s without it
    with pytest.raises(AuditError, match=r"^no (answer from|TLS with) [^\n]+$"):
        brokers.fetch_snapshot(kafka.bootstrap_servers, wrong, lambda _: True)
