# Policies changed and read by Kafka's own tools and clients, through the gateway's own port: kafka-configs.sh's main
# class, confluent-kafka's and kafka-python's admin clients, and bare frames where none of them can ask such a thing.

from __future__ import annotations

import os
import signal
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType as PythonType

from gateway.embedded import EmbeddedCluster, EmbeddedError, wait_for
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY
from protocol import api
from protocol.admin import configs as c
from protocol.admin import quotas as q
from protocol.admin import topics as t
from protocol.message_codec import ApiCodec
from tests.gateway.data.play import decode_answer, request
from tests.integration.gateways import Gateway, create_topic
from tests.integration.wire import Wire
from tests.protocol import kio_messages as kio

TOOL = "kafka.admin.ConfigCommand"
TOTAL = 1_000_000
USERS = {"admin": "secret", "alice": "secret", "mallory": "secret"}


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    """Kept in a file: what a cluster keeps from test to test would be in everybody's way."""
    return {
        "internal_topics": "none",
        "policies_store": {"file": str(folder / "policies.jsonl")},
        "thresholds": {TOTAL_KEY: TOTAL, "topics": {"filed": {TOPIC_KEY: 1000}}},
        "limits": {"first_byte_timeout": "5m"},  # a connection here may wait for several runs of Kafka's tools
        **more,
    }


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(kafka.bootstrap_servers, settings(tmp_path_factory.mktemp("door"))) as running:
        yield running


@pytest.fixture
def topic(kafka: EmbeddedCluster, gateway: Gateway) -> Iterator[str]:
    name = create_topic(kafka, f"door-{uuid.uuid4().hex[:8]}")
    yield name
    # What it set is in nobody's way afterwards: deleted topics leave the sum, but only once that is seen.
    with Wire(gateway.broker_port(1)) as wire:
        ask(wire, c.INCREMENTAL_ALTER_CONFIGS, incremental(c.TOPIC, name, (TOPIC_KEY, c.DELETE, None)))


@pytest.fixture
def wire(gateway: Gateway) -> Iterator[Wire]:
    with Wire(gateway.broker_port(1)) as connection:
        yield connection


def tool(kafka: EmbeddedCluster, gateway: Gateway, *args: str) -> str:
    """kafka-configs.sh, as its main class."""
    return kafka.run_tool(TOOL, "--bootstrap-server", gateway.bootstrap, *args)


def ask(wire: Wire, spoken: ApiCodec[Any, Any], body: Any, version: int | None = None) -> Any:
    version = spoken.highest if version is None else version
    wire.send(spoken.encode_request(body, version, 4711, b"door-test"))
    frame = wire.receive()
    correlation, answer = spoken.decode_response(frame, 4, len(frame), version)
    assert correlation == 4711
    return answer


def incremental(kind: int, name: str, *operations: tuple[str, int, str | None], check: bool = False) -> Any:
    rows = tuple(c.ConfigOperation(*operation) for operation in operations)
    return c.IncrementalAlterConfigsRequest((c.IncrementalAlterConfigsResource(kind, name, rows),), check)


def config(wire: Wire, kind: int, name: str, key: str) -> c.DescribedConfig | None:
    body = c.DescribeConfigsRequest((c.DescribeConfigsResource(kind, name, (key,)),), True, True)
    (result,) = ask(wire, c.DESCRIBE_CONFIGS, body).results
    assert result.error_code == 0, result
    return next((row for row in result.configs if row.name == key), None)


def threshold(wire: Wire, topic: str) -> str | None:
    found = config(wire, c.TOPIC, topic, TOPIC_KEY)
    return None if found is None else found.value


# --- kafka-configs.sh -------------------------------------------------------------------------------------------------


@pytest.mark.seed("V1.6")
def test_kafka_configs_sets_describes_and_deletes_a_topics_threshold(
    kafka: EmbeddedCluster, gateway: Gateway, topic: str, wire: Wire
) -> None:
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    said = tool(kafka, gateway, *of_topic, "--alter", "--add-config", f"{TOPIC_KEY}=5000,retention.ms=3600000")
    assert f"Completed updating config for topic {topic}." in said
    assert threshold(wire, topic) == "5000"
    said = tool(kafka, gateway, *of_topic, "--describe")
    assert f"{TOPIC_KEY}=5000 sensitive=false synonyms={{DYNAMIC_TOPIC_CONFIG:{TOPIC_KEY}=5000}}" in said
    assert "retention.ms=3600000" in said
    with Wire(kafka.broker(1).port) as direct:
        row = config(direct, c.TOPIC, topic, "retention.ms")
        assert row is not None
        assert row.value == "3600000"
        assert threshold(direct, topic) is None, "the broker must not have seen our key"
    tool(kafka, gateway, *of_topic, "--alter", "--delete-config", f"{TOPIC_KEY},retention.ms")
    assert threshold(wire, topic) is None


@pytest.mark.seed("V1.7")
def test_kafka_configs_shows_in_one_line_why_a_threshold_is_refused(
    kafka: EmbeddedCluster, gateway: Gateway, topic: str, wire: Wire
) -> None:
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    for value, reason in (
        ("2000000", "PolicyViolationException: broker 1: its topics' bytes.in.per.sec.threshold sum up to"),
        ("fast", "InvalidConfigurationException: Invalid value fast for configuration bytes.in.per.sec.threshold"),
    ):
        with pytest.raises(EmbeddedError) as refused:
            tool(kafka, gateway, *of_topic, "--alter", "--add-config", f"{TOPIC_KEY}={value},retention.ms=1")
        assert reason in str(refused.value)
    assert threshold(wire, topic) is None
    row = config(wire, c.TOPIC, topic, "retention.ms")
    assert row is not None
    assert row.value != "1", "the rest of a resource that is refused must not be done"
    change = incremental(c.TOPIC, f"{topic}-missing", (TOPIC_KEY, c.SET, "1"))
    (answer,) = ask(wire, c.INCREMENTAL_ALTER_CONFIGS, change).responses
    assert answer.error_code == api.ERROR_CODES["UNKNOWN_TOPIC_OR_PARTITION"]


@pytest.mark.seed("V1.5")
def test_kafka_configs_sets_totals_of_one_broker_and_of_all(
    kafka: EmbeddedCluster, gateway: Gateway, wire: Wire
) -> None:
    one = ("--entity-type", "brokers", "--entity-name", "1")
    every = ("--entity-type", "brokers", "--entity-default")
    try:
        tool(kafka, gateway, *one, "--alter", "--add-config", f"{TOTAL_KEY}=800000")
        tool(kafka, gateway, *every, "--alter", "--add-config", f"{TOTAL_KEY}=900000,log.cleaner.threads=2")
        said = tool(kafka, gateway, *one, "--describe")
        assert (
            f"{TOTAL_KEY}=800000 sensitive=false synonyms={{DYNAMIC_BROKER_CONFIG:{TOTAL_KEY}=800000,"
            f" DYNAMIC_DEFAULT_BROKER_CONFIG:{TOTAL_KEY}=900000, STATIC_BROKER_CONFIG:{TOTAL_KEY}={TOTAL}}}" in said
        )
        row = config(wire, c.BROKER, "", "log.cleaner.threads")
        assert row is not None
        assert row.value == "2"
    finally:
        gone = tuple((key, c.DELETE, None) for key in (TOTAL_KEY, "log.cleaner.threads"))
        ask(wire, c.INCREMENTAL_ALTER_CONFIGS, incremental(c.BROKER, "", *gone))
        ask(wire, c.INCREMENTAL_ALTER_CONFIGS, incremental(c.BROKER, "1", gone[0]))
    row = config(wire, c.BROKER, "1", TOTAL_KEY)
    assert row is not None
    assert (row.value, row.config_source) == (str(TOTAL), c.STATIC_BROKER_CONFIG)


def test_kafka_configs_sets_describes_and_deletes_client_quotas(
    kafka: EmbeddedCluster, gateway: Gateway, wire: Wire
) -> None:
    both = ("--entity-type", "users", "--entity-name", "door", "--entity-type", "clients", "--entity-default")
    values = "producer_byte_rate=1024,request_percentage=50,controller_mutation_rate=5"
    tool(kafka, gateway, *both, "--alter", "--add-config", values)
    said = tool(kafka, gateway, *both, "--describe")
    for value in ("producer_byte_rate=1024.0", "request_percentage=50.0", "controller_mutation_rate=5.0"):
        assert value in said
    with Wire(kafka.broker(1).port) as direct:  # what the gateway enforces must not be enforced by the broker too
        assert list(quotas_of(direct, "door").values()) == [{"controller_mutation_rate": 5.0}]
    removed = ",".join(pair.partition("=")[0] for pair in values.split(","))
    tool(kafka, gateway, *both, "--alter", "--delete-config", removed)
    wait_for("the broker to have heard as well", lambda: quotas_of(wire, "door") == {})


# --- librdkafka -------------------------------------------------------------------------------------------------------


def test_librdkafkas_admin_client_changes_and_describes(kafka: EmbeddedCluster, gateway: Gateway, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})

    def change(operation: AlterConfigOpType, value: str, kind: Any = ResourceType.TOPIC, name: str = topic) -> None:
        key = TOPIC_KEY if kind == ResourceType.TOPIC else TOTAL_KEY
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        admin.incremental_alter_configs([resource], request_timeout=60)[resource].result(120)

    def described(kind: Any, name: str) -> dict[str, ConfigEntry]:
        resource = ConfigResource(kind, name)
        found: dict[str, ConfigEntry] = admin.describe_configs([resource], request_timeout=60)[resource].result(120)
        return found

    change(AlterConfigOpType.SET, "7000")
    row = described(ResourceType.TOPIC, topic)[TOPIC_KEY]
    assert (row.value, ConfigSource(row.source)) == ("7000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert described(ResourceType.TOPIC, topic)["retention.ms"].value == "-1"
    with pytest.raises(KafkaException) as refused:
        change(AlterConfigOpType.SET, "2000000")
    error = refused.value.args[0]
    assert error.code() == KafkaError.POLICY_VIOLATION
    assert "lower some of them, or raise the total" in error.str()
    change(AlterConfigOpType.DELETE, "")
    assert described(ResourceType.TOPIC, topic)[TOPIC_KEY].value is None
    change(AlterConfigOpType.SET, "900000", ResourceType.BROKER, "1")
    assert described(ResourceType.BROKER, "1")[TOTAL_KEY].value == "900000"
    change(AlterConfigOpType.DELETE, "", ResourceType.BROKER, "1")
    source = described(ResourceType.BROKER, "1")[TOTAL_KEY].source
    assert ConfigSource(source) is ConfigSource.STATIC_BROKER_CONFIG


# --- kafka-python -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("incremental", [True, False], ids=["44", "33"])
def test_kafka_pythons_admin_client_changes_and_describes(gateway: Gateway, topic: str, incremental: bool) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=gateway.bootstrap)
    try:

        def described() -> Any:
            found = admin.describe_configs([PythonResource(PythonType.TOPIC, topic)], config_filter="dynamic")
            return found["topic"][topic]

        before = described()
        wanted = {TOPIC_KEY: "6000", "retention.ms": "3600000"}
        admin.alter_configs([PythonResource(PythonType.TOPIC, topic, wanted)], incremental=incremental)
        wait_for("the broker to have learned its part", lambda: described()["retention.ms"]["value"] == "3600000")
        assert described()[TOPIC_KEY]["value"] == "6000"
        assert described().keys() == before.keys()
    finally:
        admin.close()


# --- bare frames ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_a_replacement_deletes_ours_where_it_does_not_name_it(wire: Wire, topic: str, version: int) -> None:
    def replace(**values: str) -> list[int]:
        rows = tuple(c.AlterableConfig(key.replace("_", "."), value) for key, value in values.items())
        body = c.AlterConfigsRequest((c.AlterConfigsResource(c.TOPIC, topic, rows),))
        return [row.error_code for row in ask(wire, c.ALTER_CONFIGS, body, version).responses]

    assert replace(bytes_in_per_sec_threshold="5000", retention_ms="3600000") == [0]
    assert threshold(wire, topic) == "5000"
    assert replace(bytes_in_per_sec_threshold="6000") == [0]
    assert threshold(wire, topic) == "6000"
    assert replace(retention_ms="3600000") == [0]
    assert threshold(wire, topic) is None
    assert replace() == [0]


def test_a_broker_is_asked_on_its_own_connection(wire: Wire) -> None:
    (row,) = ask(wire, c.INCREMENTAL_ALTER_CONFIGS, incremental(c.BROKER, "7", (TOTAL_KEY, c.SET, "5000000"))).responses
    assert row.error_code == api.ERROR_CODES["INVALID_REQUEST"]
    assert row.error_message
    row = ask(wire, c.INCREMENTAL_ALTER_CONFIGS, incremental(c.BROKER, "1", (TOPIC_KEY, c.SET, "5"))).responses[0]
    assert row.error_code == api.ERROR_CODES["INVALID_CONFIG"]  # the broker itself would take any key


def test_nothing_overtakes_and_order_is_kept_among_pipelined_requests(wire: Wire, topic: str) -> None:
    change = c.INCREMENTAL_ALTER_CONFIGS.encode_request(
        incremental(c.TOPIC, topic, (TOPIC_KEY, c.SET, "400000"), ("retention.ms", c.SET, "3600000")), 1, 2, b"pipe"
    )
    describe = c.DESCRIBE_CONFIGS.encode_request(
        c.DescribeConfigsRequest((c.DescribeConfigsResource(c.TOPIC, topic, (TOPIC_KEY,)),)), 4, 3, b"pipe"
    )
    pipeline = request(1, {topic: [0]}) + change + describe + request(4, {topic: [0]})
    for piece in (pipeline, *(pipeline[i : i + 1] for i in range(len(pipeline)))):
        wire.send(piece)
    for _ in range(2):
        frames = [wire.receive() for _ in range(4)]
        assert [struct.unpack_from(">i", frame, 4)[0] for frame in frames] == [1, 2, 3, 4]
        assert decode_answer(frames[0])[2][topic, 0][0] == decode_answer(frames[3])[2][topic, 0][0] == 0
        _, described = c.DESCRIBE_CONFIGS.decode_response(frames[2], 4, len(frames[2]), 4)
        assert described.results[0].configs[0].value == "400000"


def quotas_of(wire: Wire, user: str, version: int = 1) -> dict[q.EntityKey, dict[str, float]]:
    body = q.DescribeClientQuotasRequest((q.FilterComponent(q.USER, q.EXACT, user),))
    answer = ask(wire, q.DESCRIBE_CLIENT_QUOTAS, body, version)
    assert answer.error_code == 0, answer
    return {q.entity_key(entry.entity): dict(entry.values) for entry in answer.entries}


@pytest.mark.parametrize("version", [0, 1])
def test_client_quotas_of_every_unit(wire: Wire, version: int) -> None:
    name = f"door-{uuid.uuid4().hex[:8]}"
    user: q.Entity = (q.EntityData(q.USER, name),)
    both: q.Entity = (*user, q.EntityData(q.CLIENT_ID, "app"))
    values = {
        "producer_byte_rate": 10.0,
        "producer_byte_rate.bps": 20.0,
        "producer_byte_rate.shares": 3.0,
        "consumer_byte_rate.bps": 30.0,
        "request_percentage": 12.5,
    }
    wanted = tuple(q.QuotaOperation(key, value) for key, value in values.items())
    planet: q.Entity = (q.EntityData("planet", "x"),)
    body = q.AlterClientQuotasRequest(
        (
            q.EntityAlteration(both, (q.QuotaOperation("controller_mutation_rate", 4.0), *wanted[:1])),
            q.EntityAlteration(user, wanted),
            q.EntityAlteration(planet, wanted),
            q.EntityAlteration((q.EntityData(q.CLIENT_ID, name),), (q.QuotaOperation("moon_rate", 1.0),)),
        )
    )
    checked = ask(wire, q.ALTER_CLIENT_QUOTAS, body._replace(validate_only=True), version)
    assert [row.error_code for row in checked.entries] == [0, 0, 42, 42]
    assert quotas_of(wire, name, version) == {}
    done = ask(wire, q.ALTER_CLIENT_QUOTAS, body, version)
    assert [(row.error_code, row.entity) for row in done.entries] == [
        (0, both),
        (0, user),
        (42, planet),
        (42, (q.EntityData(q.CLIENT_ID, name),)),
    ]
    found = {
        q.entity_key(both): {"controller_mutation_rate": 4.0, "producer_byte_rate": 10.0},
        q.entity_key(user): values,
    }
    wait_for("both to know", lambda: quotas_of(wire, name, version) == found)
    strict = q.DescribeClientQuotasRequest((q.FilterComponent(q.USER, q.EXACT, name),), True)
    answer = ask(wire, q.DESCRIBE_CLIENT_QUOTAS, strict, version)
    assert [q.entity_key(entry.entity) for entry in answer.entries] == [q.entity_key(user)]
    refused = ask(wire, q.DESCRIBE_CLIENT_QUOTAS, q.DescribeClientQuotasRequest((q.FilterComponent("planet", 0, "x"),)))
    assert refused.error_code == api.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", [0, 1])
def test_a_quota_that_only_the_broker_has_is_removed_through_the_gateway(
    kafka: EmbeddedCluster, wire: Wire, version: int
) -> None:
    name = f"door-{uuid.uuid4().hex[:8]}"
    user: q.Entity = (q.EntityData(q.USER, name),)
    values = {"producer_byte_rate": 10.0, "consumer_byte_rate": 20.0, "request_percentage": 12.5}
    body = q.AlterClientQuotasRequest(
        (q.EntityAlteration(user, tuple(q.QuotaOperation(key, value) for key, value in values.items())),)
    )
    with Wire(int(kafka.bootstrap_servers.rpartition(":")[2])) as direct:
        assert [row.error_code for row in ask(direct, q.ALTER_CLIENT_QUOTAS, body, version).entries] == [0]
    wait_for("the gateway to show it", lambda: quotas_of(wire, name, version) == {q.entity_key(user): values})
    removal = q.AlterClientQuotasRequest(
        (q.EntityAlteration(user, tuple(q.QuotaOperation(key, 0.0, True) for key in values)),), True
    )
    assert [row.error_code for row in ask(wire, q.ALTER_CLIENT_QUOTAS, removal, version).entries] == [0]
    assert quotas_of(wire, name, version) == {q.entity_key(user): values}
    done = ask(wire, q.ALTER_CLIENT_QUOTAS, removal._replace(validate_only=False), version)
    assert [row.error_code for row in done.entries] == [0]
    wait_for("it to be gone", lambda: quotas_of(wire, name, version) == {})


def test_ten_thousand_quotas_in_one_request_hold_no_client_up(gateway: Gateway, wire: Wire, topic: str) -> None:
    count = 10_000
    body = q.AlterClientQuotasRequest(
        tuple(
            q.EntityAlteration(
                (q.EntityData(q.CLIENT_ID, f"many-{i:05}"),), (q.QuotaOperation("producer_byte_rate", 5e6),)
            )
            for i in range(count)
        )
    )
    waits: list[float] = []
    done = threading.Event()

    def produce() -> None:
        with Wire(gateway.broker_port(1)) as other:
            while not done.wait(0.005):
                started = time.perf_counter()
                other.produce(request(1, {topic: [0]}))
                waits.append(time.perf_counter() - started)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        wait_for("some requests before", lambda: len(waits) > 100)
        before = len(waits)
        wire.sock.settimeout(120)
        started = time.perf_counter()
        answer = ask(wire, q.ALTER_CLIENT_QUOTAS, body)
        took = time.perf_counter() - started
    finally:
        done.set()
        producing.join()
    assert [row.error_code for row in answer.entries] == [0] * count
    quiet, busy = sorted(waits[:before]), sorted(waits[before:])
    print(
        f"\n{count} quotas in {took:.2f} s; a Produce request of another client meanwhile ({len(busy)} of them):"
        f" median {busy[len(busy) // 2] * 1e3:.2f} ms, p99 {busy[len(busy) * 99 // 100] * 1e3:.2f} ms, max"
        f" {busy[-1] * 1e3:.1f} ms; before: median {quiet[len(quiet) // 2] * 1e3:.2f} ms, p99"
        f" {quiet[len(quiet) * 99 // 100] * 1e3:.2f} ms, max {quiet[-1] * 1e3:.1f} ms"
    )
    undo = tuple(entry._replace(ops=(q.QuotaOperation("producer_byte_rate", 0.0, True),)) for entry in body.entries)
    assert {row.error_code for row in ask(wire, q.ALTER_CLIENT_QUOTAS, q.AlterClientQuotasRequest(undo)).entries} == {0}


# --- control is away --------------------------------------------------------------------------------------------------


def test_control_that_is_stuck_is_an_error_after_ten_seconds_and_traffic_goes_on(
    kafka: EmbeddedCluster, tmp_path: Path
) -> None:
    topic = create_topic(kafka, f"door-{uuid.uuid4().hex[:8]}")
    with (
        Gateway(kafka.bootstrap_servers, settings(tmp_path)) as gateway,
        Wire(gateway.broker_port(1)) as wire,
        Wire(gateway.broker_port(1)) as other,
    ):
        other.produce(request(1, {topic: [0]}))
        control = gateway.child("gateway.control")
        os.kill(control, signal.SIGSTOP)
        try:
            change = incremental(c.TOPIC, topic, (TOPIC_KEY, c.SET, "5000"), ("retention.ms", c.SET, "1"))
            wire.send(c.INCREMENTAL_ALTER_CONFIGS.encode_request(change, 1, 5, None) + request(6, {topic: [0]}))
            assert other.produce(request(2, {topic: [0]}))[1][topic, 0][0] == 0
            frame = wire.receive()
        finally:
            os.kill(control, signal.SIGCONT)
        _, answer = c.INCREMENTAL_ALTER_CONFIGS.decode_response(frame, 4, len(frame), 1)
        assert [row.error_code for row in answer.responses] == [api.REQUEST_TIMED_OUT]
        assert decode_answer(wire.receive())[2][topic, 0][0] == 0
        assert threshold(wire, topic) is None, "what was refused was done afterwards"
        assert ask(wire, c.INCREMENTAL_ALTER_CONFIGS, change).responses[0].error_code == 0
        assert threshold(wire, topic) == "5000"


def test_control_that_is_started_again_answers_what_its_predecessor_was_asked(
    kafka: EmbeddedCluster, tmp_path: Path
) -> None:
    topic = create_topic(kafka, f"door-{uuid.uuid4().hex[:8]}")
    with Gateway(kafka.bootstrap_servers, settings(tmp_path)) as gateway, Wire(gateway.broker_port(1)) as wire:
        wire.produce(request(1, {topic: [0]}))
        change = incremental(c.TOPIC, topic, (TOPIC_KEY, c.SET, "5000"))
        for _ in range(3):
            control = gateway.child("gateway.control")
            os.kill(control, signal.SIGSTOP)
            wire.send(c.INCREMENTAL_ALTER_CONFIGS.encode_request(change, 1, 5, None))
            os.kill(control, signal.SIGKILL)
            frame = wire.receive()
            _, answer = c.INCREMENTAL_ALTER_CONFIGS.decode_response(frame, 4, len(frame), 1)
            codes = [row.error_code for row in answer.responses]
            if codes != [api.REQUEST_TIMED_OUT]:  # right where the new control took longer than ASK_S to start
                break
            wait_for("another control", lambda gone=control: gateway.child("gateway.control") not in (0, gone))  # type: ignore[misc]
            wait_for("readiness", gateway.ready, 60)
        assert codes == [0]
        assert threshold(wire, topic) == "5000"
    with Gateway(kafka.bootstrap_servers, settings(tmp_path)) as gateway, Wire(gateway.broker_port(1)) as wire:
        assert threshold(wire, topic) == "5000", "it must outlive the gateway"


# --- whose quotas they are --------------------------------------------------------------------------------------------


def test_with_client_quotas_of_the_upstream_they_pass_untouched(kafka: EmbeddedCluster, tmp_path: Path) -> None:
    name = f"door-{uuid.uuid4().hex[:8]}"
    entity: q.Entity = (q.EntityData(q.USER, name),)
    with (
        Gateway(kafka.bootstrap_servers, settings(tmp_path, client_quotas_api="upstream")) as gateway,
        Wire(gateway.broker_port(1)) as wire,
        Wire(kafka.broker(1).port) as direct,
    ):
        rate = q.QuotaOperation("producer_byte_rate", 5.0)
        body = q.AlterClientQuotasRequest((q.EntityAlteration(entity, (rate,)),))
        assert [row.error_code for row in ask(wire, q.ALTER_CLIENT_QUOTAS, body).entries] == [0]
        found = {q.entity_key(entity): {"producer_byte_rate": 5.0}}
        wait_for("the broker to know", lambda: quotas_of(direct, name) == found)
        assert quotas_of(wire, name) == found
        undo = q.AlterClientQuotasRequest((q.EntityAlteration(entity, (rate._replace(remove=True),)),))
        assert [row.error_code for row in ask(wire, q.ALTER_CLIENT_QUOTAS, undo).entries] == [0]
        units = q.AlterClientQuotasRequest(
            (q.EntityAlteration(entity, (q.QuotaOperation("producer_byte_rate.bps", 5.0),)),)
        )
        assert [row.error_code for row in ask(wire, q.ALTER_CLIENT_QUOTAS, units).entries] == [42]


# --- who may ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, str]]:
    """A gateway in front of a cluster that asks who is there: alice may alter one topic's configs, mallory nothing."""
    overrides = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
    }
    with EmbeddedCluster(1, overrides, users=USERS) as cluster:
        topic = create_topic(cluster, "guarded")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        rights = [
            AclBinding(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for user, operation in (
                ("alice", AclOperation.ALTER_CONFIGS),
                ("alice", AclOperation.DESCRIBE_CONFIGS),
                ("mallory", AclOperation.DESCRIBE),
            )
        ]
        for future in admin.create_acls(rights).values():
            future.result(120)
        own = {
            "bootstrap_servers": cluster.sasl_bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": USERS["admin"],
        }
        file = settings(tmp_path_factory.mktemp("guarded"), upstream=own)
        with Gateway(cluster.sasl_bootstrap_servers, file) as gateway:
            yield gateway, topic


def sign_in(gateway: Gateway, user: str) -> Wire:
    wire = Wire(gateway.broker_port(1))
    for key, version, fields in (
        (api.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}),
        (api.SASL_AUTHENTICATE, 0, {"auth_bytes": f"\0{user}\0{USERS[user]}".encode()}),
    ):
        body = kio.kio_encode(kio.request_class(key, version)(**fields))
        wire.send(struct.pack(">ihhih", 10 + len(body), key, version, 1, -1) + body)
        assert wire.receive()[8:10] == b"\0\0"
    return wire


def test_only_a_principal_that_may_change_a_topics_configs_may_change_its_threshold(
    guarded: tuple[Gateway, str],
) -> None:
    gateway, topic = guarded
    change = incremental(c.TOPIC, topic, (TOPIC_KEY, c.SET, "5000"))
    total = incremental(c.BROKER, "", (TOTAL_KEY, c.SET, "5000000"))
    rate = (q.QuotaOperation("producer_byte_rate", 5.0),)
    quota = q.AlterClientQuotasRequest((q.EntityAlteration((q.EntityData(q.USER, "x"),), rate),))
    everything = q.DescribeClientQuotasRequest(())
    with sign_in(gateway, "mallory") as wire:
        (row,) = ask(wire, c.INCREMENTAL_ALTER_CONFIGS, change).responses
        assert row.error_code == api.TOPIC_AUTHORIZATION_FAILED
        (row,) = ask(wire, c.INCREMENTAL_ALTER_CONFIGS, total).responses
        assert row.error_code == api.ERROR_CODES["CLUSTER_AUTHORIZATION_FAILED"]
        (refused,) = ask(wire, q.ALTER_CLIENT_QUOTAS, quota).entries
        assert refused.error_code == api.ERROR_CODES["CLUSTER_AUTHORIZATION_FAILED"]
        body = c.DescribeConfigsRequest((c.DescribeConfigsResource(c.TOPIC, topic, None),))
        (result,) = ask(wire, c.DESCRIBE_CONFIGS, body).results
        assert (result.error_code, result.configs) == (api.TOPIC_AUTHORIZATION_FAILED, ())
    with sign_in(gateway, "alice") as wire:
        assert threshold(wire, topic) is None
        assert ask(wire, c.INCREMENTAL_ALTER_CONFIGS, change).responses[0].error_code == 0
        assert threshold(wire, topic) == "5000"
        (row,) = ask(wire, c.INCREMENTAL_ALTER_CONFIGS, total).responses
        assert row.error_code == api.ERROR_CODES["CLUSTER_AUTHORIZATION_FAILED"]
        wire_peer = f"127.0.0.1:{wire.local_port}"
    said = gateway.log()
    assert f"by User:alice via kafka from {wire_peer}" in said
    with sign_in(gateway, "admin") as wire:
        assert ask(wire, q.ALTER_CLIENT_QUOTAS, quota).entries[0].error_code == 0
        assert len(ask(wire, q.DESCRIBE_CLIENT_QUOTAS, everything).entries) == 1
    new = t.CreatableTopic("guarded-new", 1, 1, (), (t.TopicConfig(TOPIC_KEY, "5000"),))
    for user, code in (
        ("mallory", api.TOPIC_AUTHORIZATION_FAILED),
        ("alice", api.TOPIC_AUTHORIZATION_FAILED),
        ("admin", 0),
    ):
        with sign_in(gateway, user) as wire:
            (made,) = ask(wire, t.CREATE_TOPICS, t.CreateTopicsRequest((new,), 30_000)).topics
            assert made.error_code == code
    assert gateway.log().count(f"{TOPIC_KEY} of topic guarded-new: none -> 5,000 bytes/s, by User:admin via kafka") == 1
    with sign_in(gateway, "mallory") as wire:
        answer = ask(wire, q.DESCRIBE_CLIENT_QUOTAS, everything)
        assert (answer.error_code, answer.entries) == (api.ERROR_CODES["CLUSTER_AUTHORIZATION_FAILED"], None)
