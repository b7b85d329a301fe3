# Kafka's own ProducerPerformance against a real broker: what a Java producer with its defaults gets through.

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from confluent_kafka import admin

from gateway.embedded import Cluster, EmbeddedError
from tests.bench.load import cpu_figures, snapshot, spent
from tests.bench.processes import BenchError
from tests.bench.targets import Target

TOPIC = "load"
PARTITIONS = 4
# Gigabytes are sent in all: old ones are removed as it goes.
TOPIC_CONFIG = {"retention.bytes": str(64 * 2**20), "segment.bytes": str(32 * 2**20), "file.delete.delay.ms": "1000"}
BROKER_CONFIG = {"log.retention.check.interval.ms": "5000", "log.initial.task.delay.ms": "1000"}

# "300000 records sent, 150000.0 records/sec (143.05 MB/sec), 10.00 ms avg latency, 200.00 ms max latency, 5 ms 50th,
# 20 ms 95th, 30 ms 99th, 40 ms 99.9th."
_SUMMARY = re.compile(
    r"(?P<n>\d+) records sent, (?P<rate>[\d.]+) records/sec.*?(?P<mean>[\d.]+) ms avg latency.*?"
    r"(?P<p50>\d+) ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th, (?P<p999>\d+) ms 99\.9th"
)


@dataclass(frozen=True)
class JavaScenario:
    name: str
    title: str
    record_bytes: int
    records: int


JAVA_SCENARIOS = (
    JavaScenario("java-200B", "ProducerPerformance, 200-byte records, one real broker", 200, 1_000_000),
    JavaScenario("java-1000B", "ProducerPerformance, 1,000-byte records, one real broker", 1_000, 400_000),
)


def create_topic(cluster: Cluster) -> None:
    client = admin.AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    topic = admin.NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1, config=TOPIC_CONFIG)
    client.create_topics([topic])[TOPIC].result(30)


def measure_java(cluster: Cluster, target: Target, scenario: JavaScenario, records: int) -> dict[str, Any]:
    """One run of ProducerPerformance; CPU is per record and per GB of record values."""
    before = snapshot(target.pid), snapshot(cluster.broker(1).pid)
    try:
        said = cluster.run_java(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", TOPIC, "--num-records", str(records), "--record-size", str(scenario.record_bytes)),
            *("--throughput", "-1", "--bootstrap-server", target.bootstrap, "--command-property", "client.id=perf"),
        )
    except EmbeddedError as error:
        raise BenchError(f"ProducerPerformance on {target.name}: {error}") from error
    after = snapshot(target.pid), snapshot(cluster.broker(1).pid)
    found = list(_SUMMARY.finditer(said))
    if not found:
        raise BenchError(f"ProducerPerformance on {target.name} printed no summary: {said[-500:]}")
    last = found[-1]
    sent = int(last["n"])
    size = sent * scenario.record_bytes
    sample: dict[str, Any] = {
        "requests": sent, "bytes": size, "requests_per_s": float(last["rate"]), "seconds": sent / float(last["rate"]),
        "failed": records - sent, "p50_ms": float(last["p50"]), "p99_ms": float(last["p99"]),
        "p999_ms": float(last["p999"]), "broker_cpu_s": sum(spent(before[1], after[1]).values()),
    }  # fmt: skip
    if target.pid is not None:
        sample |= cpu_figures(spent(before[0], after[0]), sent, size)
    return sample
