# Kafka's own ConsumerPerformance against real brokers: what a Java consumer with its defaults reads.

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

from gateway.embedded import EmbeddedCluster, EmbeddedError
from tests.bench.java_producer import CLUSTERS, RECORD_BYTES, brokers_cpu, create_topic, said
from tests.bench.load import cpu_figures, snapshot, spent
from tests.bench.processes import BenchError
from tests.bench.targets import Target

RATE = "fetch.nMsg.sec"

STORE_S = 600.0  # three brokers that share two cores store a few thousand small batches a second


@dataclass(frozen=True)
class ConsumerScenario:
    name: str
    title: str
    brokers: int
    partitions: int
    records: int


CONSUMER_SCENARIOS = tuple(
    ConsumerScenario(
        f"consume-{brokers}x{partitions}",
        f"ConsumerPerformance, 1,000-byte records, {said(brokers, partitions)}",
        brokers,
        partitions,
        800_000,
    )
    for brokers, partitions in CLUSTERS
)


def store_records(cluster: EmbeddedCluster, scenario: ConsumerScenario, records: int) -> None:
    """What is consumed, once for all targets: it is read from the page cache."""
    topic = f"stored-{scenario.partitions}"
    create_topic(cluster, topic, scenario.partitions)
    cluster.run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES)),
        *("--throughput", "-1", "--bootstrap-server", cluster.bootstrap_servers),
        timeout_s=STORE_S,
    )


def measure_consumer(
    cluster: EmbeddedCluster, target: Target, scenario: ConsumerScenario, records: int
) -> dict[str, Any]:
    """One run of ConsumerPerformance: all records from the start. It tells no latencies."""
    before = snapshot(target.pid), brokers_cpu(cluster)
    try:
        printed = cluster.run_tool(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--topic", f"stored-{scenario.partitions}", "--num-records", str(records)),
            *("--bootstrap-server", target.bootstrap, "--timeout", "60000"),
            *target.client_options(),
        )
    except EmbeddedError as error:
        raise BenchError(f"ConsumerPerformance on {target.name}: {error}") from error
    used, brokers_used = spent(before[0], snapshot(target.pid)), spent(before[1], brokers_cpu(cluster))
    rows = [row for row in csv.DictReader(io.StringIO(printed), skipinitialspace=True) if row.get(RATE)]
    if not rows:
        raise BenchError(f"ConsumerPerformance on {target.name} printed no figures: {printed[-500:]}")
    read, rate = int(rows[-1]["data.consumed.in.nMsg"]), float(rows[-1][RATE])
    if not rate:
        raise BenchError(f"ConsumerPerformance on {target.name} read {read} records: {printed[-500:]}")
    sample: dict[str, Any] = {
        "requests": read, "bytes": read * RECORD_BYTES, "requests_per_s": rate, "seconds": read / rate,
        "failed": max(0, records - read), "broker_cpu_s": sum(brokers_used.values()),
    }  # fmt: skip
    if target.pid is not None:
        sample |= cpu_figures(used, read, read * RECORD_BYTES)
    return sample
