# Kafka's own ConsumerPerformance against a real broker: what a Java consumer with its defaults reads.

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

from confluent_kafka import admin

from gateway.embedded import Cluster, EmbeddedError
from tests.bench.load import cpu_figures, snapshot, spent
from tests.bench.processes import BenchError
from tests.bench.targets import Target

TOPIC = "stored"
PARTITIONS = 4
RECORD_BYTES = 1_000
RATE = "fetch.nMsg.sec"


@dataclass(frozen=True)
class ConsumerScenario:
    name: str
    title: str
    records: int


CONSUMER_SCENARIOS = (
    ConsumerScenario("java-consume", "ConsumerPerformance, 1,000-byte records, one real broker", 400_000),
)


def store_records(cluster: Cluster, records: int) -> None:
    """What is consumed, once for all targets: it is read from the page cache."""
    client = admin.AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    client.create_topics([admin.NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)])[TOPIC].result(30)
    cluster.run_java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", TOPIC, "--num-records", str(records), "--record-size", str(RECORD_BYTES)),
        *("--throughput", "-1", "--bootstrap-server", cluster.bootstrap_servers),
    )


def measure_consumer(cluster: Cluster, target: Target, records: int) -> dict[str, Any]:
    """One run of ConsumerPerformance: all records from the start. It tells no latencies."""
    before = snapshot(target.pid), snapshot(cluster.broker(1).pid)
    try:
        said = cluster.run_java(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--topic", TOPIC, "--num-records", str(records), "--bootstrap-server", target.bootstrap),
            *("--timeout", "60000"),
        )
    except EmbeddedError as error:
        raise BenchError(f"ConsumerPerformance on {target.name}: {error}") from error
    after = snapshot(target.pid), snapshot(cluster.broker(1).pid)
    rows = [row for row in csv.DictReader(io.StringIO(said), skipinitialspace=True) if row.get(RATE)]
    if not rows:
        raise BenchError(f"ConsumerPerformance on {target.name} printed no figures: {said[-500:]}")
    read, rate = int(rows[-1]["data.consumed.in.nMsg"]), float(rows[-1][RATE])
    sample: dict[str, Any] = {
        "requests": read, "bytes": read * RECORD_BYTES, "requests_per_s": rate, "seconds": read / rate,
        "failed": max(0, records - read),
        "broker_cpu_s": sum(spent(before[1], after[1]).values()),
    }  # fmt: skip
    if target.pid is not None:
        sample |= cpu_figures(spent(before[0], after[0]), read, read * RECORD_BYTES)
    return sample
