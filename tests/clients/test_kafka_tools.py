# Kafka's own verifiers, through the gateway: 20,000 messages, none missing. Its load tools are in many tests.

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from gateway import embedded
from tests.clients import harness
from tests.clients.conftest import Target

pytestmark = [pytest.mark.clients, pytest.mark.kafka]

COUNT = 20_000
PARTITIONS = 3
TOOLS = "org.apache.kafka.tools"


@pytest.fixture
def topic(target: Target, request: pytest.FixtureRequest) -> str:
    name = f"tools-{uuid.uuid4().hex[:8]}"
    harness.create_topics(target.direct, [name], PARTITIONS, 3)
    return name


def events(printed: str, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [line for line in lines if line["name"] == name]


def test_the_verifiable_consumer_reads_what_the_verifiable_producer_sent(
    cluster: embedded.EmbeddedCluster, target: Target, topic: str
) -> None:
    at = ("--bootstrap-server", target.bootstrap, "--topic", topic, "--max-messages", str(COUNT))
    sent = cluster.run_tool(f"{TOOLS}.VerifiableProducer", *at, "--acks", "-1", "--throughput", "-1")
    assert events(sent, "producer_send_error") == []
    [summary] = events(sent, "tool_data")
    assert (summary["sent"], summary["acked"]) == (COUNT, COUNT)
    assert harness.end_offsets(target.direct, topic, PARTITIONS) == COUNT

    read = cluster.run_tool(f"{TOOLS}.VerifiableConsumer", *at, "--group-id", topic)
    assert sum(event["count"] for event in events(read, "records_consumed")) == COUNT
    assert all(event["success"] for event in events(read, "offsets_committed"))
    values = [int(event["value"]) for event in events(sent, "producer_send_success")]
    assert sorted(values) == list(range(COUNT))
    assert harness.committed(target.direct, topic, topic, PARTITIONS) == COUNT
