# A broker that is killed while its disk is full, and what two gateways make of it: they remember it alike, also when a
# control process is killed; it is back, full and then with room; it is replaced by another one. Real brokers, and a
# real disk of 64 MB that the test itself fills.

from __future__ import annotations

import json
import os
import signal
import urllib.request
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from kafka import KafkaAdminClient, TopicPartition

from gateway.commands import storage_override
from gateway.embedded import EmbeddedCluster, EmbeddedError, wait_for
from tests.integration.gateways import Gateway
from tests.integration.storage.disks import SmallDisk
from tests.integration.storage.test_storage_disk import create_at

MB = 1_000_000
DISK = 64 * MB
HARD = 20 * MB
SEEN_S = 120.0
PATIENT_S = 60
CLUSTER_TOOL = "org.apache.kafka.tools.ClusterTool"
# Two controllers are left when the third is killed. On a busy machine they would take each other for dead after Kafka's
# 2 s, again and again, and each new leader of theirs gives all brokers a new session: the one that left never does.
BROKER = {
    "log.segment.bytes": "1048576",
    "log.index.size.max.bytes": "65536",
    "broker.session.timeout.ms": "6000",
    "controller.quorum.fetch.timeout.ms": "10000",
    "controller.quorum.request.timeout.ms": "10000",
}


def settings(name: str, scope: str) -> dict[str, Any]:
    return {
        "gateway_id": name,
        "storage": {
            "check_interval": "500ms",
            "scope": scope,
            "fenced_brokers": "remember",
            "hard": {"type": "MinFreeBytes", "level": HARD},
        },
    }


def shown(gateway: Gateway) -> dict[str, Any]:
    with urllib.request.urlopen(f"{gateway.admin}/v1/storage", timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def held(said: dict[str, Any]) -> list[str]:
    """Without the gateways' own."""
    topics = (topic for each in said["affected"] or () for topic in each["topics"])
    return sorted(topic for topic in topics if not topic.startswith("__"))


def left(said: dict[str, Any]) -> list[int]:
    return [broker["id"] for broker in said["brokers"] if broker["left"]]


def agree(gateways: tuple[Gateway, Gateway], state: str, topics: list[str], gone: list[int]) -> None:
    """Wait until both say so, by valid observations: the first by topic, the second for the whole cluster."""
    one, two = gateways

    def do() -> bool:
        first, second = shown(one), shown(two)
        return (
            (first["state"], first["origin"], held(first), left(first)) == (state, "valid", topics, gone)
            and (second["state"], second["origin"], left(second)) == (state, "valid", gone)
        )  # fmt: skip

    try:
        wait_for(f"{state} {topics} {gone}", do, SEEN_S, every_s=0.1)
    except EmbeddedError as error:
        raise AssertionError(f"{error}: {shown(one)}\n{shown(two)}\n{one.log()[-2000:]}") from None


def refused(gateway: Gateway, topic: str, tried_s: int = 3) -> KafkaError | None:
    """Of a record that may be tried for so long."""
    said: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": gateway.bootstrap, "message.timeout.ms": tried_s * 1000, "log_level": 2})
    producer.produce(topic, b"one", on_delivery=lambda error, _: said.append(error))
    producer.flush(tried_s + 30)
    assert len(said) == 1
    return said[0]


def restart(kafka: EmbeddedCluster, node_id: int) -> None:
    """One that was killed is let in only when its session is over."""
    try:
        kafka.start_broker(node_id)
    except EmbeddedError:
        if not kafka.broker(node_id).is_running:
            kafka.stop_broker(node_id)
            kafka.start_broker(node_id)


@pytest.mark.full  # shorter: test_storage_disk.py with a real disk, test_storage_events.py with kills; worlds with both
def test_a_broker_is_killed_while_it_is_full_and_comes_back_and_is_replaced() -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(SmallDisk(DISK))
        kafka = stack.enter_context(EmbeddedCluster(3, BROKER, log_dirs={3: [disk.path / "logs"]}))
        create_at(kafka, "follows", [1, 3])
        create_at(kafka, "elsewhere", [1, 2])
        both = (
            stack.enter_context(Gateway(kafka.bootstrap_servers, settings("one", "affected"), node_ids=3)),
            stack.enter_context(Gateway(kafka.bootstrap_servers, settings("two", "cluster"), node_ids=3)),
        )
        one, two = both
        agree(both, "OPEN", [], [])

        # An operator's word to one of them is heard by both.
        assert storage_override.main(["pause", "--url", one.admin, "--for", "10m", "--reason", "a test"]) == 0
        for gateway in both:
            wait_for("PAUSE by override", lambda g=gateway: shown(g)["origin"] == "operator", SEEN_S)  # type: ignore[misc]
            assert shown(gateway)["override"]["reason"] == "a test"
        assert storage_override.main(["resume", "--url", two.admin]) == 0
        agree(both, "OPEN", [], [])

        ballast = disk.occupy(disk.free - HARD // 2)
        agree(both, "PAUSE", ["follows"], [])
        kafka.kill_broker(3)
        agree(both, "PAUSE", ["follows"], [3])
        assert refused(one, "elsewhere", PATIENT_S) is None
        assert refused(one, "follows") is not None
        assert one.metric("storage_remembered_brokers") == two.metric("storage_remembered_brokers") == 1

        killed = one.child("gateway.control")
        assert killed
        os.kill(killed, signal.SIGKILL)
        wait_for("a new control", lambda: one.child("gateway.control") not in (0, killed), SEEN_S)
        wait_for("ready", one.ready, SEEN_S)
        agree(both, "PAUSE", ["follows"], [3])

        restart(kafka, 3)
        agree(both, "PAUSE", ["follows"], [])
        ballast.unlink()
        agree(both, "OPEN", [], [])
        assert refused(one, "follows", PATIENT_S) is refused(two, "follows", PATIENT_S) is None

        # Again, and this time it does not come back.
        disk.occupy(disk.free - HARD // 2)
        agree(both, "PAUSE", ["follows"], [])
        kafka.kill_broker(3)
        agree(both, "PAUSE", ["follows"], [3])
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        try:
            admin.alter_partition_reassignments({TopicPartition("follows", 0): [1, 2]})
        finally:
            admin.close()
        wait_for("no replica there", lambda: held(shown(one)) == [], SEEN_S)
        assert refused(one, "follows", PATIENT_S) is None
        try:
            kafka.run_tool(CLUSTER_TOOL, "unregister", "--bootstrap-server", kafka.bootstrap_servers, "--id", "3")
        except EmbeddedError as error:  # the tool asks again where an answer is lost
            if "Broker ID 3 is not currently registered" not in str(error):
                raise
        agree(both, "OPEN", [], [])
        assert refused(two, "follows", PATIENT_S) is None
