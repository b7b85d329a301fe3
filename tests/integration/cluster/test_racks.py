# Racks through the gateway (KIP-392): a consumer that names its rack is sent by the leader to the replica that is near,
# finds that one at the gateway too, and reads from it.

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from gateway import embedded
from gateway.embedded import EmbeddedCluster, wait_for
from tests.integration.gateways import Gateway

RACKS = {1: "rack-a", 2: "rack-b"}
LEADER = 1
TOPIC = "near.and.far"
COUNT, SIZE = 200, 5000


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    selector = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "broker.session.timeout.ms": "60000",  # nobody is killed here, and the leader must stay where it is
    }
    own = {node: {"broker.rack": rack} for node, rack in RACKS.items()}
    with EmbeddedCluster(2, selector, per_broker_overrides=own) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[LEADER, 2]])])[TOPIC].result(120)

        def led() -> bool:
            topic = admin.list_topics(timeout=10).topics.get(TOPIC)
            return topic is not None and bool(topic.partitions) and topic.partitions[0].leader == LEADER

        wait_for("the leader", led)
        yield cluster


@pytest.fixture(scope="module")
def gateway(cluster: EmbeddedCluster) -> Iterator[Gateway]:
    # With a limit, far above what is read here, Fetch answers are walked while they pass; without one they are not.
    groups = {"readers": {"dispatchRateInBytes": 100_000_000}}
    settings = {"internal_topics": "none", "resource_groups": {"groups": groups, "tenants": {"near": "readers"}}}
    with Gateway(cluster.bootstrap_servers, settings, node_ids=2) as gateway:
        producer = Producer({"bootstrap.servers": gateway.bootstrap, "log_level": 0})
        for _ in range(COUNT):
            producer.produce(TOPIC, b"x" * SIZE, partition=0)
        assert producer.flush(30) == 0
        yield gateway


def read(gateway: Gateway, rack: str) -> dict[str, Any]:
    """librdkafka's statistics, once it has read everything and says from whom it reads."""
    told: list[dict[str, Any]] = []
    consumer = Consumer(
        {
            "bootstrap.servers": gateway.bootstrap,
            "group.id": f"readers-{rack}",
            "client.rack": rack,
            "auto.offset.reset": "earliest",
            "statistics.interval.ms": 100,
            "stats_cb": lambda text: told.append(json.loads(text)),
            "log_level": 0,
        }
    )
    consumer.subscribe([TOPIC])
    count = 0

    def done() -> bool:
        nonlocal count
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None
            count += 1
        return (
            count >= COUNT and bool(told) and sum(each["rxbytes"] for each in brokers(told[-1]).values()) > COUNT * SIZE
        )

    try:
        wait_for("all records", done, every_s=0)
    finally:
        consumer.close()
    assert count == COUNT
    return told[-1]


def brokers(statistics: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {each["nodeid"]: each for each in statistics["brokers"].values() if each["nodeid"] > 0}


def test_the_gateways_brokers_have_their_racks(gateway: Gateway) -> None:
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap, "log_level": 0})
    nodes = admin.describe_cluster(request_timeout=60).result(120).nodes
    assert {node.id: (node.rack, node.port) for node in nodes} == {
        node: (rack, gateway.broker_port(node)) for node, rack in RACKS.items()
    }


@pytest.mark.parametrize("near", RACKS)
def test_librdkafka_reads_from_the_replica_in_its_rack(gateway: Gateway, near: int) -> None:
    statistics = read(gateway, RACKS[near])
    place = statistics["topics"][TOPIC]["partitions"]["0"]
    assert (place["leader"], place["broker"]) == (LEADER, near)
    found = brokers(statistics)
    assert found[near]["nodename"] == f"{embedded.HOST}:{gateway.broker_port(near)}"
    (far,) = RACKS.keys() - {near}
    assert found[near]["rxbytes"] > COUNT * SIZE > 10 * found[far]["rxbytes"]


def test_java_reads_from_the_replica_in_its_rack(cluster: EmbeddedCluster, gateway: Gateway) -> None:
    near = 2
    said = cluster.run_tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", gateway.bootstrap, "--topic", TOPIC, "--group", "java-readers"),
        *("--num-records", str(COUNT), "--timeout", "60000", "--print-metrics"),
        *("--command-property", f"client.rack={RACKS[near]}"),
    )
    replicas = re.findall(r"preferred-read-replica:\{.*\}\s*: (-?\d+)", said)
    assert {int(replica) for replica in replicas} == {near}, said
    received = {
        int(n): float(size) for n, size in re.findall(r":incoming-byte-total:\{.*node-(\d+)\}\s*: ([\d.]+)", said)
    }
    assert received[near] > COUNT * SIZE > 10 * received[LEADER]
