# The demo's witnesses: the same bytes and messages counted where they passed, by programs that don't know each other.
#
# Bytes: the brokers' log directories, /metrics, the usage topic, Spark. Messages: the clients' acknowledgements (not
# here: load.py), the brokers' end offsets, /metrics, the usage topic, Spark. They agree exactly only where nothing
# but what producers sent ever changes a log; `preconditions` asks the cluster for each of these conditions, and does
# not take the demo's own word for it.

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from prometheus_client.parser import text_string_to_metric_families

from gateway import embedded
from policies import usage

AUDIT_TIMEOUT_S: Final = 300.0  # 12 to 20 s; the first time it fetches Spark's Kafka connector
_READ_TIMEOUT_S: Final = 30.0

# The topics' settings, which are asked for again when it comes to the sums.
TOPIC_CONFIG: Final = {
    "compression.type": "producer",  # anything else: the broker compresses anew, and the log grows by another number
    "cleanup.policy": "delete",  # no compaction …
    "retention.ms": "-1",  # … and nothing is old or large enough to be deleted
    "retention.bytes": "-1",
}


class DemoError(Exception):
    """The demo can't go on; the text is one line that says why."""


@dataclass
class TopicOutcomes:
    """Bytes and messages by outcome, of one topic."""

    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(usage.OUTCOMES, 0))
    messages: dict[str, int] = field(default_factory=lambda: dict.fromkeys(usage.OUTCOMES, 0))
    maybe_appended: int = 0  # bytes that may be in the log unacknowledged
    repeats: int = 0  # bytes whose last attempt before was rejected

    def add_outcome(self, outcome: str, reason: str, size: int, messages: int, repeats: int = 0) -> None:
        self.bytes[outcome] += size
        self.messages[outcome] += messages
        self.repeats += repeats
        self.maybe_appended += size if usage.may_be_appended(outcome, reason) else 0

    @property
    def offered_bytes(self) -> int:
        return sum(self.bytes.values())

    @property
    def finally_dropped(self) -> int:
        """Bytes whose last attempt was rejected (docs/audit.md)."""
        return self.bytes["rejected"] - self.repeats


OutcomeCounts = dict[str, TopicOutcomes]  # by topic


def accepted_bytes(count: OutcomeCounts) -> int:
    return sum(each.bytes["accepted"] for each in count.values())


def accepted_messages(count: OutcomeCounts) -> int:
    return sum(each.messages["accepted"] for each in count.values())


# --- the gateway's metrics --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeterReadings:
    """The gateway's one-minute rates and their thresholds in bytes/s, by broker and (broker, topic)."""

    brokers: Mapping[str, tuple[float, float]]
    topics: Mapping[tuple[str, str], tuple[float, float]]

    def topic_reading(self, name: str) -> tuple[float, float]:
        """Rate and threshold of a topic: means over the brokers that have it. NaN where none has."""
        found = [pair for (_, topic), pair in self.topics.items() if topic == name]
        return _mean(rate for rate, _ in found), _mean(threshold for _, threshold in found)

    def broker_reading(self) -> tuple[float, float]:
        """Rate and threshold of a broker: means over all."""
        return _mean(rate for rate, _ in self.brokers.values()), _mean(limit for _, limit in self.brokers.values())


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else math.nan


def _metric_samples(text: str, name: str) -> Iterable[tuple[dict[str, str], float]]:
    full = f"produce_gateway_{name}"
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == full:
                yield sample.labels, sample.value


def read_meters(text: str) -> MeterReadings:
    """Rates and thresholds out of an exposition of the gateway's."""

    def pairs(scope: str, *labels: str) -> dict[tuple[str, ...], tuple[float, float]]:
        limits = {
            tuple(found[label] for label in labels): value
            for found, value in _metric_samples(text, f"{scope}_threshold_bytes_per_second")
        }
        rates = _metric_samples(text, f"{scope}_rate_bytes_per_second")
        keyed = ((tuple(found[label] for label in labels), value) for found, value in rates)
        return {key: (value, limits.get(key, math.inf)) for key, value in keyed}

    return MeterReadings(
        {key[0]: pair for key, pair in pairs("broker", "broker").items()},
        {(key[0], key[1]): pair for key, pair in pairs("topic", "broker", "topic").items()},
    )


def read_metrics(text: str, topics: Sequence[str]) -> OutcomeCounts:
    """Bytes and messages out of an exposition of the gateway's."""
    count: OutcomeCounts = {topic: TopicOutcomes() for topic in topics}
    messages = {
        tuple(sorted(labels.items())): value for labels, value in _metric_samples(text, "produce_messages_total")
    }
    for labels, size in _metric_samples(text, "produce_bytes_total"):
        if labels["topic"] in count:
            number = messages.get(tuple(sorted(labels.items())), 0)
            count[labels["topic"]].add_outcome(labels["outcome"], labels["reason"], int(size), int(number))
    for labels, size in _metric_samples(text, "produce_repeats_bytes_total"):
        if labels["topic"] in count:
            count[labels["topic"]].repeats += int(size)
    return count


# --- the usage log, by itself and by Spark ----------------------------------------------------------------------------


def read_usage_log(bootstrap_servers: str, usage_topic: str, topics: Sequence[str]) -> OutcomeCounts:
    """Sums over the records of the usage topic, each counted once."""
    count: OutcomeCounts = {topic: TopicOutcomes() for topic in topics}
    seen = set()
    for value in _read_topic(bootstrap_servers, usage_topic):
        record = usage.decode_record(value)
        if usage.record_identity(record) in seen:
            continue
        seen.add(usage.record_identity(record))
        for row in record["rows"]:
            if row["topic"] in count:
                repeats = row.get("repeats", 0)
                count[row["topic"]].add_outcome(row["outcome"], row["reason"], row["bytes"], row["messages"], repeats)
    return count


def _make_consumer(bootstrap_servers: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "demo", "enable.auto.commit": False})


def _read_topic(bootstrap_servers: str, topic: str) -> Iterable[bytes]:
    consumer = _make_consumer(bootstrap_servers)
    try:
        left = {p: end for p, (start, end) in _fetch_offsets(consumer, topic).items() if end > start}
        consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
        while left:
            message = consumer.poll(_READ_TIMEOUT_S)
            if message is None or message.error():
                raise DemoError(f"topic {topic} can't be read: {message.error() if message else 'nothing came'}")
            value, partition, offset = message.value(), message.partition(), message.offset()
            assert value is not None
            assert partition is not None
            assert offset is not None
            yield value
            if offset + 1 >= left[partition]:
                del left[partition]
    finally:
        consumer.close()


def _fetch_offsets(consumer: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    known = consumer.list_topics(topic, timeout=_READ_TIMEOUT_S).topics[topic]
    if known.error is not None or not known.partitions:
        raise DemoError(f"topic {topic} can't be read: {known.error or 'it has no partitions'}")
    return {
        partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_READ_TIMEOUT_S)
        for partition in known.partitions
    }


def run_audit(
    bootstrap_servers: str, usage_topic: str, topics: Sequence[str], tell: Callable[[str], None]
) -> tuple[OutcomeCounts, bool]:
    """The answer of `produce-gateway audit` for the usage topic, and whether it says that nothing is missing.

    `tell` gets its progress lines.
    """
    command = [sys.executable, "-m", "gateway", "audit", "--bootstrap-servers", bootstrap_servers]
    command += ["--topic", usage_topic, "--by", "topic,outcome,reason", "--format", "json"]
    with tempfile.TemporaryFile("w+") as out:
        process = embedded.spawn_process(command, stdout=out, stderr=subprocess.PIPE, text=True)
        deadline = threading.Timer(AUDIT_TIMEOUT_S, process.kill)
        deadline.start()
        output = [""]
        try:
            assert process.stderr is not None
            with process.stderr as lines:
                for line in lines:
                    output.append(line.strip())
                    tell(line.strip())
            status = process.wait()
        finally:
            deadline.cancel()
            embedded.reap_process(process)
        if status != 0:
            raise DemoError(f"the audit ended with {status}: {output[-1]}")
        out.seek(0)
        return parse_audit(json.load(out), topics)


@contextlib.contextmanager
def write_report_meanwhile(bootstrap_servers: str, usage_topic: str, path: Path) -> Iterator[None]:
    """Have `produce-gateway audit report` write its page meanwhile; when this ends it is there.

    Raises:
        DemoError: it is not.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "gateway", "audit", "report", "--bootstrap-servers", bootstrap_servers]
    command += ["--topic", usage_topic, "--output", str(path), "--quiet"]
    with tempfile.TemporaryFile("w+") as errors:
        process = embedded.spawn_process(command, stdout=subprocess.DEVNULL, stderr=errors, text=True)
        try:
            yield
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(AUDIT_TIMEOUT_S)
        finally:
            status = embedded.reap_process(process)
        errors.seek(0)
        if status != 0:
            raise DemoError(f"the report ended with {status}: {errors.read().strip()[-500:]}")


def parse_audit(report: Mapping[str, Any], topics: Sequence[str]) -> tuple[OutcomeCounts, bool]:
    """The same out of the audit's JSON, which was asked for by topic, outcome and reason."""
    count: OutcomeCounts = {topic: TopicOutcomes() for topic in topics}
    for row in report["rows"]:
        if row["topic"] in count:
            sums = row["offered"]  # of one outcome: offered is that outcome
            repeats = row["repeats_bytes"]
            count[row["topic"]].add_outcome(row["outcome"], row["reason"], sums["bytes"], sums["messages"], repeats)
    return count, bool(report["integrity"]["complete"])


# --- the brokers ------------------------------------------------------------------------------------------------------


class ClusterWitness:
    """The cluster, asked directly and not through the gateway."""

    def __init__(self, bootstrap_servers: str, topics: Sequence[str]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topics = list(topics)
        self._admin: Any = KafkaAdminClient(bootstrap_servers=bootstrap_servers)

    def close(self) -> None:
        self._admin.close()

    def sum_end_offsets(self) -> int:
        """Messages in the logs, by the end offsets that a consumer gets."""
        return sum(end for end, _ in self._offset_ranges().values())

    def sum_log_bytes(self) -> int:
        """Bytes in the log directories: of each partition the leader's replica."""
        leaders = self._partition_leaders()
        return sum(
            partition["partition_size"]
            for broker in self._admin.describe_log_dirs(topic_partitions=self._topics)
            for log_dir in broker["log_dirs"]
            for topic in log_dir["topics"]
            for partition in topic["partitions"]
            if leaders.get((topic["name"], partition["partition_index"])) == (broker["broker"], 0)
            and not partition["is_future_key"]
        )

    def check_preconditions(self) -> dict[str, bool]:
        """The conditions for log growth to equal the accepted bytes; sentence -> whether it holds."""
        resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in self._topics]
        configs = self._admin.describe_configs(resources, config_filter="all")["topic"]
        right = all(configs[t][key]["value"] == value for t in self._topics for key, value in TOPIC_CONFIG.items())
        return {
            "topics keep what producers send: compression.type=producer, no compaction, no retention": right,
            "no leader changed, so no log was cut": all(epoch == 0 for _, epoch in self._partition_leaders().values()),
            "no log lost its beginning": all(start == 0 for _, start in self._offset_ranges().values()),
            "no transactions, so no markers in the logs": not any(self._admin.list_transactions().values()),
        }

    def _partition_leaders(self) -> dict[tuple[str, int], tuple[int, int]]:
        return {
            (topic["name"], partition["partition_index"]): (partition["leader_id"], partition["leader_epoch"])
            for topic in self._admin.describe_topics(self._topics)
            for partition in topic["partitions"]
        }

    def _offset_ranges(self) -> dict[tuple[str, int], tuple[int, int]]:
        consumer = _make_consumer(self._bootstrap_servers)
        try:
            return {
                (topic, partition): (end, start)
                for topic in self._topics
                for partition, (start, end) in _fetch_offsets(consumer, topic).items()
            }
        finally:
            consumer.close()
