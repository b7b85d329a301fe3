# What answers about logs come to: retention between two of them, copies on their way, what has failed, what may not be
# asked. test_reconcile_kafka.py asks a real Kafka.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Node, TopicPartitionInfo, Uuid
from confluent_kafka.admin import TopicDescription

from gateway.audit.cluster_access import UntranslatableProperty, read_topic_id
from gateway.audit.errors import AuditError
from gateway.audit.reconcile import brokers
from gateway.audit.reconcile.reconcile import LogSnapshot
from gateway.embedded import find_free_port
from protocol.admin.cluster import (
    DescribeLogDirsResponse,
    DescribeProducersResponse,
    LogDir,
    LogDirPartition,
    LogDirTopic,
    ProducersPartition,
    ProducerState,
    ProducersTopic,
)
from protocol.admin.configs import TOPIC, DescribeConfigsResult, DescribedConfig
from protocol.admin.topic_deletion import topic_id_text

PLACE = ("clicks", 0)
LEADERS = {PLACE: 1, ("clicks", 1): 2}


def log_dir(*sizes: tuple[int, int], name: str = "/a", error: int = 0, is_future: bool = False) -> LogDir:
    """`sizes`: partition and bytes."""
    partitions = tuple(LogDirPartition(partition, size, 0, is_future) for partition, size in sizes)
    return LogDir(error, name, (LogDirTopic("clicks", partitions),) if sizes else ())


def describing(*log_dirs: LogDir, error: int = 0) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(0, error, log_dirs)


def producing(*coordinator_epochs: int, error: int = 0) -> dict[int, DescribeProducersResponse]:
    producers = tuple(ProducerState(7, 0, 5, 0, epoch, -1) for epoch in coordinator_epochs)
    partitions = (ProducersPartition(0, error, None, producers),)
    return {1: DescribeProducersResponse(0, (ProducersTopic("clicks", partitions),))}


def described(*leaders: Node | None) -> TopicDescription:
    partitions = [TopicPartitionInfo(number, leader, [], []) for number, leader in enumerate(leaders)]  # type: ignore[arg-type]  # librdkafka's None
    return TopicDescription("clicks", Uuid(1, 2), False, partitions)


def why(ask: Callable[[], Any]) -> str:
    with pytest.raises(AuditError) as caught:
        ask()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_partition_without_a_leader_and_a_topic_that_has_gone() -> None:
    node = Node(1, "kafka", 9092)
    assert brokers.find_leaders({"clicks": described(node, node)}) == {PLACE: node, ("clicks", 1): node}
    text = "partition clicks-1 has no leader: its log can't be seen now"
    assert why(lambda: brokers.find_leaders({"clicks": described(node, None)})) == text
    gone = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    with pytest.raises(KafkaException):
        brokers.find_leaders({"clicks": gone})


def test_a_topic_id_is_as_kafka_prints_it() -> None:
    assert read_topic_id(Uuid(-1, -5)) == topic_id_text(b"\xff" * 15 + b"\xfb") == "_" * 20 + "-w"
    assert read_topic_id(Uuid(-(2**59) - 1, 0)) == topic_id_text(b"\xf7" + b"\xff" * 7 + bytes(8))


def test_sizes_are_read_again_while_retention_cuts_logs() -> None:
    starts, sizes = iter([0, 5, 5, 9]), iter([100, 70, 60])
    found = brokers.measure_logs(lambda: {PLACE: next(sizes)}, lambda: {PLACE: next(starts)})
    assert found == ({PLACE: 70}, {PLACE: 5}), "that of the first time is of before, or of after"
    always = iter(range(1000))
    text = "retention removes records faster than sizes of logs are read: choose --topics"
    assert why(lambda: brokers.measure_logs(dict, lambda: {PLACE: next(always)})) == text
    assert next(always) == 6, "asked no more than five times"


def test_a_copy_on_its_way_to_another_dir_is_no_log() -> None:
    one = describing(log_dir((0, 70)), log_dir((0, 9), name="/b", is_future=True), log_dir(name="/c"))
    answers = {1: one, 2: describing(log_dir((1, 5)))}
    assert brokers.read_sizes(LEADERS, answers) == {PLACE: 70, ("clicks", 1): 5}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            describing(error=31),
            "broker 1: DescribeLogDirs: error 31 (CLUSTER_AUTHORIZATION_FAILED): allow this principal Describe on the"
            " cluster",
        ),
        (describing(), "broker 1 describes no log dir: allow this principal Describe on the cluster"),
        (
            describing(log_dir((0, 5)), log_dir(name="/b", error=56)),
            "broker 1: log dir /b has failed: error 56 (KAFKA_STORAGE_ERROR)",
        ),
        (describing(log_dir((1, 5))), "broker 1 has no log of clicks-0, though it leads: try again"),
        (
            describing(log_dir((0, 5), is_future=True)),
            "broker 1 has no log of clicks-0, though it leads: try again",
        ),
    ],
)
def test_a_log_whose_size_is_not_told(answer: DescribeLogDirsResponse, said: str) -> None:
    assert why(lambda: brokers.read_sizes({PLACE: 1}, {1: answer})) == said


def test_a_partition_is_transactional_where_a_transaction_has_ended() -> None:
    assert brokers.find_transactional(producing(-1, 0)) == {PLACE}
    assert brokers.find_transactional(producing(-1)) == set(), "idempotent"
    assert brokers.find_transactional(producing()) == set()
    assert brokers.find_transactional(producing(error=29)) == set(), "TOPIC_AUTHORIZATION_FAILED"
    said = "broker 1: producers of clicks-0: error 6 (NOT_LEADER_OR_FOLLOWER): try again"
    assert why(lambda: brokers.find_transactional(producing(error=6))) == said


def test_settings_of_brokers_with_and_without_tiered_storage() -> None:
    old = (DescribedConfig("compression.type", "producer"), DescribedConfig("cleanup.policy", "compact,delete"))
    rows = {"old": old, "new": (DescribedConfig("remote.storage.enable", "false"), *old)}
    rows["tiered"] = (*old, DescribedConfig("remote.storage.enable", "true"))
    found = brokers.read_settings(DescribeConfigsResult(0, None, TOPIC, name, each) for name, each in rows.items())
    assert found == {name: ("producer", "compact,delete", name == "tiered") for name in rows}
    denied, gone = (DescribeConfigsResult(error, None, TOPIC, "clicks") for error in (29, 3))
    text = "topic clicks: DescribeConfigs: error 29 (TOPIC_AUTHORIZATION_FAILED): allow this principal DescribeConfigs"
    assert why(lambda: brokers.read_settings([denied])).startswith(text)
    assert why(lambda: brokers.read_settings([gone])).endswith("error 3 (UNKNOWN_TOPIC_OR_PARTITION): try again")


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "ca.jks"},
            "ssl.truststore.location: JKS files can't be read here: give a PEM file, and ssl.truststore.type=PEM",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            "sasl.mechanism: must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
    ],
)
def test_a_property_that_only_java_has_is_refused_before_a_broker_is_asked(
    properties: dict[str, str], said: str
) -> None:
    nowhere = f"127.0.0.1:{find_free_port()}"
    with pytest.raises(UntranslatableProperty) as caught:
        brokers.fetch_snapshot(nowhere, properties, lambda _: True)
    assert str(caught.value) == said


def test_a_broker_that_does_not_answer_is_one_line() -> None:
    nowhere = f"127.0.0.1:{find_free_port()}"
    said = why(lambda: brokers.fetch_snapshot(nowhere, {"default.api.timeout.ms": "100"}, lambda _: True))
    assert said.startswith(f"no answer from {nowhere} within 0.1 s: is it running, does security.protocol match, and")


def test_brokers_are_asked_again_while_leaders_change(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    denied = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    taken = LogSnapshot("c", 1, 2, {})
    come: list[Any] = []

    def take(*_: object) -> LogSnapshot:
        found = come.pop(0)
        if isinstance(found, Exception):
            raise found
        return taken

    def ask(*outcomes: Any, timeout_ms: int = 60_000) -> LogSnapshot:
        come[:] = outcomes
        nowhere, bounds = f"127.0.0.1:{find_free_port()}", {"default.api.timeout.ms": str(timeout_ms)}
        return brokers.fetch_snapshot(nowhere, bounds, lambda _: True)

    monkeypatch.setattr(brokers, "_take_snapshot", take)
    monkeypatch.setattr(brokers, "_RETRY_S", 0.01)
    assert ask(brokers.LogMoved("moved: try again"), moved, taken) == taken
    assert "TOPIC_AUTHORIZATION_FAILED" in why(lambda: ask(denied, taken))
    assert why(lambda: ask(*[brokers.LogMoved("moved: try again")] * 100, timeout_ms=1)) == "moved: try again"
    assert "NOT_LEADER_FOR_PARTITION" in why(lambda: ask(*[moved] * 100, timeout_ms=1))
