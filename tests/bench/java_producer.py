# Kafka's own ProducerPerformance against real brokers: what a Java producer with its defaults gets through, and how
# long its records take when it sends half as many.

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from confluent_kafka import admin

from gateway.embedded import EmbeddedCluster, EmbeddedError
from tests.bench.load import cpu_figures, snapshot, spent
from tests.bench.processes import BenchError
from tests.bench.targets import Target

RECORD_BYTES = 1_000
# Gigabytes are sent in all: old ones are removed as it goes.
TOPIC_CONFIG = {"retention.bytes": str(64 * 2**20), "segment.bytes": str(32 * 2**20), "file.delete.delay.ms": "1000"}
BROKER_CONFIG = {"log.retention.check.interval.ms": "5000", "log.initial.task.delay.ms": "1000"}

# "300000 records sent, 150000.0 records/sec (143.05 MB/sec), 10.00 ms avg latency, 200.00 ms max latency, 5 ms 50th,
# 20 ms 95th, 30 ms 99th, 40 ms 99.9th."
_SUMMARY = re.compile(
    r"(?P<n>\d+) records sent, (?P<rate>[\d.]+) records/sec.*?(?P<mean>[\d.]+) ms avg latency.*?"
    r"(?P<p50>\d+) ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th, (?P<p999>\d+) ms 99\.9th"
)
CLUSTERS = tuple((brokers, partitions) for brokers in (1, 3) for partitions in (1, 30))


@dataclass(frozen=True)
class JavaScenario:
    """A run of ProducerPerformance against a topic that each of the brokers has a replica of. `at_half`: held to half
    of the rate at which it sends without anything in between.
    """

    name: str
    title: str
    brokers: int
    partitions: int
    records: int
    at_half: bool = False


def said(brokers: int, partitions: int) -> str:
    return f"{brokers} broker{'s' * (brokers > 1)}, {partitions} partition{'s' * (partitions > 1)}"


JAVA_SCENARIOS = (
    *(
        JavaScenario(
            f"produce-{brokers}x{partitions}",
            f"ProducerPerformance, 1,000-byte records, {said(brokers, partitions)}",
            brokers,
            partitions,
            400_000,
        )
        for brokers, partitions in CLUSTERS
    ),
    *(
        JavaScenario(
            f"half-{brokers}x{partitions}",
            f"ProducerPerformance at half of direct's rate, {said(brokers, partitions)}",
            brokers,
            partitions,
            300_000,
            at_half=True,
        )
        for brokers, partitions in CLUSTERS
    ),
)


def create_topic(cluster: EmbeddedCluster, topic: str, partitions: int, config: dict[str, str] | None = None) -> None:
    """Every broker has a replica of it. One that is there already stays."""
    client = admin.AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    if topic in client.list_topics(timeout=30).topics:
        return
    new = admin.NewTopic(topic, partitions, replication_factor=len(cluster.brokers), config=config or {})
    client.create_topics([new])[topic].result(30)


def measure_java(
    cluster: EmbeddedCluster, target: Target, scenario: JavaScenario, records: int, per_s: float | None = None
) -> dict[str, Any]:
    """One run of ProducerPerformance, held to so many records a second; CPU is per record and per GB of record
    values.
    """
    topic = f"load-{scenario.partitions}"
    create_topic(cluster, topic, scenario.partitions, TOPIC_CONFIG)
    before = snapshot(target.pid), brokers_cpu(cluster)
    try:
        printed = cluster.run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES)),
            *("--throughput", "-1" if per_s is None else f"{per_s:.0f}"),
            *("--bootstrap-server", target.bootstrap, "--command-property", "client.id=perf"),
            *target.client_options(),
        )
    except EmbeddedError as error:
        raise BenchError(f"ProducerPerformance on {target.name}: {error}") from error
    used, brokers_used = spent(before[0], snapshot(target.pid)), spent(before[1], brokers_cpu(cluster))
    found = list(_SUMMARY.finditer(printed))
    if not found:
        raise BenchError(f"ProducerPerformance on {target.name} printed no summary: {printed[-500:]}")
    last = found[-1]
    sent = int(last["n"])
    size = sent * RECORD_BYTES
    sample: dict[str, Any] = {
        "requests": sent, "bytes": size, "requests_per_s": float(last["rate"]), "seconds": sent / float(last["rate"]),
        "failed": records - sent, "p50_ms": float(last["p50"]), "p99_ms": float(last["p99"]),
        "p999_ms": float(last["p999"]), "mean_ms": float(last["mean"]), "broker_cpu_s": sum(brokers_used.values()),
    }  # fmt: skip
    if target.pid is not None:
        sample |= cpu_figures(used, sent, size)
    return sample


def brokers_cpu(cluster: EmbeddedCluster) -> dict[int, float]:
    """CPU seconds of each broker's process so far."""
    return {pid: cpu for broker in cluster.brokers.values() for pid, cpu in snapshot(broker.pid).items()}
