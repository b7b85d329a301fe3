# Topics that are created with a threshold, through the gateway's own port: by the admin clients of Java and librdkafka,
# and by bare frames of every version. The topic and its threshold are there afterwards, or neither.

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from gateway.embedded import EmbeddedCluster, EmbeddedError, wait_for
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY
from protocol import api
from protocol.admin import topics as t
from tests.integration.gateways import Gateway
from tests.integration.wire import Wire
from tests.protocol import kio_messages as kio

JAVA = str(Path(__file__).with_name("CreateTopic.java"))
TOTAL = 1_000_000


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    settings = {
        "internal_topics": "none",
        "policies_store": {"file": str(tmp_path_factory.mktemp("topics") / "policies.jsonl")},
        "thresholds": {TOTAL_KEY: TOTAL},
    }
    with Gateway(kafka.bootstrap_servers, settings) as running:
        yield running


@pytest.fixture
def admin(gateway: Gateway) -> AdminClient:
    return AdminClient({"bootstrap.servers": gateway.bootstrap})


def fresh() -> str:
    return f"made-{uuid.uuid4().hex[:8]}"


def exists(kafka: EmbeddedCluster, topic: str) -> bool:
    """Whether the cluster has it, whatever the gateway says."""
    return topic in AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=30).topics


def wait_made(kafka: EmbeddedCluster, *topics: str) -> None:
    """A controller answers before the brokers have learned of a topic."""
    wait_for(" and ".join(topics), lambda: all(exists(kafka, topic) for topic in topics))


def threshold(admin: AdminClient, topic: str) -> str | None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(120)
    return found[TOPIC_KEY].value if TOPIC_KEY in found else None


def create(admin: AdminClient, topic: str, value: str, partitions: int = 1, *, check: bool = False) -> None:
    new = NewTopic(topic, partitions, 1, config={TOPIC_KEY: value, "retention.ms": "3600000"})
    admin.create_topics([new], validate_only=check)[topic].result(120)


@pytest.mark.seed("V1.6", "V1.7")
def test_librdkafkas_admin_client_creates_topic_and_threshold_or_neither(
    kafka: EmbeddedCluster, admin: AdminClient
) -> None:
    topic, other = fresh(), fresh()
    create(admin, topic, "5000")
    wait_made(kafka, topic)
    wait_for("the threshold", lambda: threshold(admin, topic) == "5000")
    direct = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    assert threshold(direct, topic) is None, "the broker must not have seen our key"

    for value, code, why in (
        (str(2 * TOTAL), KafkaError.POLICY_VIOLATION, "bytes.in.per.sec.threshold sum up to"),
        ("fast", KafkaError.INVALID_CONFIG, "Invalid value fast"),
    ):
        with pytest.raises(KafkaException) as refused:
            create(admin, other, value)
        assert refused.value.args[0].code() == code
        assert why in refused.value.args[0].str()
        assert not exists(kafka, other)
    with pytest.raises(KafkaException) as refused:
        create(admin, topic, "6000")
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    assert threshold(admin, topic) == "5000"
    create(admin, other, "5000", check=True)
    assert not exists(kafka, other)
    create(admin, other, "7000")  # nothing of what was refused, or only validated, was kept
    wait_made(kafka, other)
    wait_for("the threshold", lambda: threshold(admin, other) == "7000")


def test_javas_admin_client_sees_the_threshold_among_the_configs_of_what_it_made(
    kafka: EmbeddedCluster, gateway: Gateway
) -> None:
    topic = fresh()

    def run(what: str, value: str) -> list[str]:
        configs = (f"{TOPIC_KEY}={value}", "retention.ms=3600000")
        return kafka.run_tool(JAVA, gateway.bootstrap, topic, "2", what, *configs).splitlines()

    made = {"partitions 2", f"{TOPIC_KEY}=5000", "retention.ms=3600000"}
    (refused,) = run("create", str(2 * TOTAL))
    assert refused.startswith("PolicyViolationException: ")  # of a broker, or of any where the cluster has no topic yet
    assert f"exceeds {TOTAL_KEY}" in refused
    assert not exists(kafka, topic)
    assert made <= set(run("create", "5000"))
    wait_made(kafka, topic)


def test_kafka_topics_checks_names_of_configs_itself_and_sends_nothing(
    kafka: EmbeddedCluster, gateway: Gateway
) -> None:
    """A request it refuses never reaches a broker: from a shell, kafka-configs.sh or any admin client is the way."""
    topic = fresh()
    args = ("--create", "--topic", topic, "--partitions", "1", "--config", f"{TOPIC_KEY}=5000")
    with pytest.raises(EmbeddedError, match=f"Unknown topic config name: {TOPIC_KEY}"):
        kafka.run_tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", gateway.bootstrap, *args)
    assert not exists(kafka, topic)


@pytest.mark.parametrize("version", range(t.CREATE_TOPICS.lowest, t.CREATE_TOPICS.highest + 1))
def test_every_version_byte_by_byte_and_glued(kafka: EmbeddedCluster, gateway: Gateway, version: int) -> None:
    names = [fresh() for _ in range(3)]
    configs = (t.TopicConfig("retention.ms", "3600000"), t.TopicConfig(TOPIC_KEY, "5000"))
    frames = [
        t.CREATE_TOPICS.encode_request(
            t.CreateTopicsRequest((t.CreatableTopic(name, 1, 1, (), configs[: 1 + ours]),), 30_000), version, at, b"x"
        )
        for at, (name, ours) in enumerate(zip(names, (1, 0, 1), strict=True))
    ]
    with Wire(gateway.broker_port(1)) as wire:
        for byte in frames[0]:
            wire.send(bytes((byte,)))
        wire.send(b"".join(frames[1:]))
        for at, name in enumerate(names):
            frame = wire.receive()
            assert int.from_bytes(frame[4:8], "big") == at
            body = frame[9 if version >= api.RESPONSE_FLEXIBLE_FROM[api.CREATE_TOPICS] else 8 :]
            (row,) = kio.kio_decode(kio.answer_class(api.CREATE_TOPICS, version), body).topics
            assert (row.name, row.error_code.value) == (name, 0)
            shown = {config.name: config.value for config in getattr(row, "configs", ())}
            assert shown.get(TOPIC_KEY) == ("5000" if version >= 5 and at != 1 else None)
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
    wait_made(kafka, *names)
    assert [threshold(admin, name) for name in names] == ["5000", None, "5000"]


def test_a_brokers_answer_to_a_request_that_is_only_to_be_validated(kafka: EmbeddedCluster) -> None:
    """The answer that the gateway's probe goes by."""
    there, name = fresh(), fresh()
    direct = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    direct.create_topics([NewTopic(there, 1, 1)])[there].result(120)
    asked = (
        t.CreatableTopic(there, 1, 1, (), ()),
        t.CreatableTopic(name, 1, 1, (), (t.TopicConfig("nonsense", "1"),)),
        t.CreatableTopic(f"{name}-2", 1, 99, (), ()),
        t.CreatableTopic(f"{name}-3", 1, 1, (), ()),
    )
    with Wire(kafka.brokers[1].port) as wire:
        wire.send(t.CREATE_TOPICS.encode_request(t.CreateTopicsRequest(asked, 30_000, True), 7, 1, b"x"))
        frame = wire.receive()
    _, answer = t.CREATE_TOPICS.decode_response(frame, 4, len(frame), 7)
    said = {row.name: row.error_code for row in answer.topics}
    assert said == {there: 36, name: 40, f"{name}-2": 38, f"{name}-3": 0}
    assert not exists(kafka, f"{name}-3")
