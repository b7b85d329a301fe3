# The demo as a user runs it: from the command to the last figure, with a real Kafka, real clients and Spark. And its
# preconditions, each of them broken once in a real cluster.

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, TopicPartition

from gateway.demo.sums import ClusterWitness
from gateway.embedded import EmbeddedCluster
from tests.browser import open_page
from tests.integration.gateways import create_topic

RECORDS = 20


@pytest.mark.kafka
def test_brokers_count_what_was_produced_and_notice_what_would_make_the_sums_differ(kafka: EmbeddedCluster) -> None:
    plain, cut, markers = (create_topic(kafka, f"demo-{name}", 2) for name in ("plain", "cut", "markers"))
    gzip = create_topic(kafka, "demo-gzip", 2, compression_type="gzip")
    for topic in (plain, cut, gzip):
        produce(kafka, topic)

    assert broken(kafka, plain) == []
    with closing(ClusterWitness(kafka.bootstrap_servers, [plain])) as brokers:
        assert brokers.sum_end_offsets() == 2 * RECORDS
        # Per record 1,000 bytes of value and 9 of its own header (7-bit deltas are one byte for each of 20 records),
        # and 61 of header for each batch, of which there are more than two where the metadata comes late.
        headers = brokers.sum_log_bytes() - 2 * RECORDS * 1_009
        assert headers in range(2 * 61, 2 * RECORDS * 61 + 1, 61)

    assert broken(kafka, gzip) == ["topics keep what producers send"]
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        admin.delete_records({TopicPartition(cut, 0): 5})
    assert broken(kafka, cut) == ["no log lost its beginning"]
    produce(kafka, markers, **{"transactional.id": "demo"})
    assert broken(kafka, markers) == ["no transactions"]


def broken(cluster: EmbeddedCluster, topic: str) -> list[str]:
    """The beginnings of those sentences that do not hold."""
    with closing(ClusterWitness(cluster.bootstrap_servers, [topic])) as brokers:
        return [
            sentence.split(":")[0].split(",")[0]
            for sentence, holds in brokers.check_preconditions().items()
            if not holds
        ]


def produce(cluster: EmbeddedCluster, topic: str, **options: str) -> None:
    """RECORDS of 1,000 bytes to each of two partitions, all of the same time: if the machine stands still between two,
    the later one has a longer delta.
    """
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 30_000, "log_level": 0}
    producer = Producer(settings | options)
    if options:
        producer.init_transactions(30)
        producer.begin_transaction()
    now_ms = time.time_ns() // 1_000_000
    for i in range(2 * RECORDS):
        producer.produce(topic, bytes(1_000), partition=i % 2, timestamp=now_ms)
    assert producer.flush(30) == 0
    if options:
        producer.commit_transaction(30)


@pytest.mark.spark
@pytest.mark.clients
def test_the_demo_rejects_reconciles_and_prints_json_only(tmp_path: Path) -> None:
    page = tmp_path / "demo" / "report.html"
    command = [sys.executable, "-m", "gateway", "demo", "--json", "--seconds", "20", "--report", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{done.stdout}"
    report = json.loads(done.stdout)
    assert report["reconciled"] is True
    for unit in ("bytes", "messages"):
        (value,) = set(report["sums"][unit].values())
        assert value > 0
    topics = {row["topic"]: row for row in report["topics"]}
    assert topics["clicks"]["rejected_bytes"] > 0
    dom, console, asked = open_page(page.read_text(encoding="utf-8"), tmp_path)
    assert (console, asked) == ([], [])
    assert "<strong>Complete.</strong>" in dom
    for topic in topics:
        assert topic in dom
    assert {row["finally_dropped_bytes"] for row in topics.values()} == {0}, (
        "idempotent producers, which all got through"
    )
    assert topics["payments"]["rejected_bytes"] == topics["signups"]["rejected_bytes"] == 0
    assert sum(row["accepted_bytes"] for row in topics.values()) == report["sums"]["bytes"]["spark"]
