# A gateway in front of the embedded Kafka, and every place where it says what it did: /metrics, the log, the usage
# topic, the spool. How it is started and found ready is tests/clients/gateways.py's; here is what comes out, and the
# end, which is part of what is tested: exit code 0, no traceback, nothing left running.

from __future__ import annotations

import contextlib
import os
import socket
import urllib.error
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient
from prometheus_client.parser import text_string_to_metric_families

from gateway import embedded
from gateway.embedded import EmbeddedCluster, wait_for
from policies import usage
from tests.clients import gateways, processes
from tests.clients.gateways import READY_TIMEOUT_S

USAGE_TOPIC = "__produce_gateway_usage"
STOP_S = 90.0  # drain_timeout is 20 s, and a machine may be busy
SETTLE_S = 60.0  # an interval is one second, and the machine may be busy with something else
Record = dict[str, Any]


class Sum(NamedTuple):
    """What became of bytes and messages; `requests` have no counterpart outside the gateway."""

    bytes: int = 0
    messages: int = 0


# By topic and (outcome, reason), or by outcome alone.
Outcomes = dict[str, dict[tuple[str, str], Sum]]


class Gateway(gateways.Gateway):
    """A gateway process; its end is checked when the `with` ends without an error, or by `stop`.

    Args:
        upstream: bootstrap servers of the cluster, which need not be up.
        settings: sections of the configuration file; they replace the ones made here.
        wait: until /readyz says so.
    """

    def __init__(
        self, upstream: str, settings: dict[str, Any] | None = None, *, node_ids: int = 1, wait: bool = True
    ) -> None:
        super().__init__(upstream, settings, node_ids)
        usage_log = (settings or {}).get("usage_log", {})
        self.spool = Path(usage_log.get("spool_dir", Path(self._folder.name) / "spool"))
        self.usage_topic = usage_log.get("topic", USAGE_TOPIC)
        self._wait = wait
        self._stopped = False
        self.is_dead = False  # killed on purpose: there is no end to look at

    def __enter__(self) -> Gateway:
        if self._wait:
            super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.stop()
        finally:
            embedded.reap_process(self.process)
            self._folder.cleanup()

    def stop(self) -> None:
        """SIGTERM, and what must be seen then; log and spool stay readable until the `with` ends."""
        if self._stopped or self.is_dead:
            return
        self._stopped = True
        family = self.pids() - {self.process.pid}
        status = embedded.reap_process(self.process, STOP_S)
        said = self.log()
        assert status == 0, f"the gateway ended with {status}: {said[-3000:]}"
        left = [processes.command_of(pid) for pid in family if (processes.PROC / str(pid)).exists()]
        assert not left, f"the gateway left processes behind: {left}"
        assert "Traceback" not in said, said[max(0, said.find("Traceback") - 1000) :][:6000]
        assert "because of a bug" not in said, said[-3000:]

    def forget(self) -> None:
        """It was killed: there is nothing to be stopped any more."""
        self._stopped = True

    # --- who ----------------------------------------------------------------------------------------------------------

    def child(self, module: str) -> int:
        """The process id of `gateway.control` or `gateway.data`; 0 while there is none."""
        found = [pid for pid in self.pids() if f"-m {module} " in processes.command_of(pid)]
        return found[0] if found else 0

    def worker(self, number: int) -> int:
        """The process id of that worker; 0 while there is none."""
        return self.workers().get(number, 0)

    def workers(self) -> dict[int, int]:
        """Process ids of the workers by number: those that run just now."""
        found = {}
        for pid in self.pids():
            words = processes.command_of(pid).split()
            if "gateway.data" in words and "--worker" in words:
                found[int(words[words.index("--worker") + 1])] = pid
        return found

    # --- /metrics -----------------------------------------------------------------------------------------------------

    def samples(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Everything in /metrics by name, without the prefix."""
        found: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        for family in text_string_to_metric_families(self.metrics()):
            for sample in family.samples:
                found[sample.name.removeprefix("produce_gateway_")].append((sample.labels, sample.value))
        return found

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all series of that name which have these labels."""
        return metric_in(self.metrics(), name, **labels)

    def counted(self) -> Outcomes:
        """Bytes and messages as /metrics has them."""
        samples = self.samples()
        found: dict[str, dict[tuple[str, str], list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
        for at, name in enumerate(("produce_bytes_total", "produce_messages_total")):
            for labels, value in samples[name]:
                found[labels["topic"]][labels["outcome"], labels["reason"]][at] += int(value)
        return _frozen(found)

    def counted_of(self, topic: str, *outcomes: str) -> Sum:
        """Of one topic; without outcomes: everything that was offered."""
        return total(self.counted().get(topic, {}), *outcomes)

    def ready(self) -> bool:
        return self._ready()

    def listens(self, port: int) -> bool:
        """Whether somebody accepts connections there."""
        try:
            socket.create_connection((embedded.HOST, port), 5).close()
        except OSError:
            return False
        return True

    def problems(self) -> str:
        """What /readyz says, or that nobody answers."""
        try:
            with urllib.request.urlopen(f"{self.admin}/readyz", timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()
        except OSError as error:
            return str(error)

    # --- the usage log ------------------------------------------------------------------------------------------------

    def spooled(self) -> list[Record]:
        """Every record in the spool, in order; half a line at the end is not one yet."""
        records = []
        for path in sorted(self.spool.glob("usage-*.jsonl")):
            lines = path.read_bytes().split(b"\n")[:-1]
            records += [usage.decode_record(line) for line in lines]
        return records

    def published(self, kafka: EmbeddedCluster) -> list[Record]:
        """This gateway's records in the usage topic (another one's have another name)."""
        records = [usage.decode_record(value) for value in read_topic(kafka, self.usage_topic)]
        return [record for record in records if record["gateway"].endswith(f"-{self.port}")]

    def wait_published(self, kafka: EmbeddedCluster, *, complete: bool = True) -> list[Record]:
        """The usage topic's records once it has all that /metrics and the spool have; `complete`: no number may be
        missing.
        """
        if self.process.poll() is None:  # /metrics has an interval before the spool has it
            wait_for("the spool", lambda: self.metric("usage_log_queued_intervals") == 0, SETTLE_S)
        wanted = {usage.record_identity(record) for record in self.spooled()}
        found: list[Record] = []

        def arrived() -> bool:
            found[:] = self.published(kafka)
            return wanted <= {usage.record_identity(record) for record in found}

        wait_for("the usage topic to have everything", arrived, SETTLE_S, every_s=0.2)
        if complete:
            assert_complete(found)
        return found

    def settle(self, topic: str, want: Sum, *outcomes: str) -> None:
        """Return once /metrics shows exactly that; more than that is a failure at once, not after the deadline."""

        seen = Sum()

        def reached() -> bool:
            nonlocal seen
            seen = self.counted_of(topic, *outcomes)
            assert seen.messages <= want.messages or not want.messages, f"{topic} {outcomes}: {seen}, wanted {want}"
            return seen == want if want.bytes else seen.messages == want.messages

        try:
            wait_for("", reached, SETTLE_S, every_s=0.1)
        except embedded.EmbeddedError:
            raise AssertionError(f"{topic} {outcomes}: /metrics stays at {seen}, wanted {want}") from None


def metric_in(text: str, name: str, **labels: str) -> float:
    """`Gateway.metric` of what /metrics said at one moment."""
    # Only those lines: a cluster with hundreds of topics has so many that reading all of them takes a second.
    own = [line for line in text.splitlines() if line.startswith(f"produce_gateway_{name}")]
    return sum(
        sample.value
        for family in text_string_to_metric_families("\n".join([*own, ""]))
        for sample in family.samples
        if sample.name == f"produce_gateway_{name}" and labels.items() <= sample.labels.items()
    )


@contextlib.contextmanager
def fleet(
    kafka: EmbeddedCluster, gateways: int = 2, workers: int = 1, settings: dict[str, Any] | None = None
) -> Iterator[list[Gateway]]:
    """Several gateways in front of one cluster as one fleet, all with the same settings, started together; each has its
    own ports, spool and name. They share the other internal topics with all gateways of that cluster, unless `settings`
    give them names of their own.
    """
    topic = f"__produce_gateway_resource_usage_{uuid.uuid4().hex}"
    given = {"workers": workers, "resourceUsagePublishTopicName": topic, **(settings or {})}
    node_ids = len(kafka.brokers)
    with contextlib.ExitStack() as stack:
        started = [Gateway(kafka.bootstrap_servers, given, node_ids=node_ids, wait=False) for _ in range(gateways)]
        for gateway in started:
            stack.enter_context(gateway)
        for gateway in started:
            wait_for("the gateway to be ready", gateway.ready, READY_TIMEOUT_S)
        yield started


def _frozen(found: dict[str, dict[tuple[str, str], list[int]]]) -> Outcomes:
    return {topic: {key: Sum(*pair) for key, pair in rows.items()} for topic, rows in found.items()}


def total(rows: dict[tuple[str, str], Sum], *outcomes: str) -> Sum:
    """Over these outcomes (all, if none are given), whatever their reasons."""
    chosen = [each for (outcome, _), each in rows.items() if not outcomes or outcome in outcomes]
    return Sum(sum(each.bytes for each in chosen), sum(each.messages for each in chosen))


def sums(records: Iterable[Record]) -> Outcomes:
    """Bytes and messages over usage records, each counted once."""
    found: dict[str, dict[tuple[str, str], list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for record in {usage.record_identity(record): record for record in records}.values():
        for row in record["rows"]:
            pair = found[row["topic"]][row["outcome"], row["reason"]]
            pair[0] += row["bytes"]
            pair[1] += row["messages"]
    return _frozen(found)


class Dropped(NamedTuple):
    """Bytes of one topic: rejected in all attempts, and the bounds of those whose last attempt was rejected."""

    rejected: int
    least: int
    most: int


def dropped(records: Iterable[Record], topic: str) -> Dropped:
    """Over usage records, each counted once."""
    rejected = repeats = unknown = 0
    for record in {usage.record_identity(record): record for record in records}.values():
        for row in record["rows"]:
            if row["topic"] != topic or row["outcome"] in usage.NOTES:
                continue
            rejected += row["bytes"] if row["outcome"] == "rejected" else 0
            repeats += row.get("repeats", 0)
            unknown += 0 if "repeats" in row else row["bytes"]
    return Dropped(rejected, max(0, rejected - repeats - unknown), rejected - repeats)


def lives(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records of each boot of a worker in the order of their numbers, each once."""
    found: dict[str, dict[tuple[Any, ...], Record]] = defaultdict(dict)
    for record in records:
        found[record["boot"]][record["kind"], *usage.record_identity(record)] = record
    return {
        boot: sorted(own.values(), key=lambda r: (r["seq"], r["kind"] == usage.LOST, r["part"]))
        for boot, own in found.items()
    }


def assert_complete(records: Iterable[Record]) -> None:
    """No interval of any life is missing, from its first one on."""
    for boot, own in lives(records).items():
        numbers = sorted({record["seq"] for record in own if record["kind"] == usage.INTERVAL})
        assert numbers == list(range(len(numbers))), f"boot {boot}: {numbers}"
        for record in own:
            parts = {
                other["part"] for other in own if other["seq"] == record["seq"] and other["kind"] == record["kind"]
            }
            assert parts == set(range(record["parts"]))


# --- the cluster, asked directly --------------------------------------------------------------------------------------


def create_topic(kafka: EmbeddedCluster, topic: str, partitions: int = 1, **config: str) -> str:
    """A topic that keeps what producers send; `config` with _ for . . A test that runs again, see tests/conftest.py,
    gets an empty one.
    """
    kept = {"compression.type": "producer", "retention.ms": "-1", "retention.bytes": "-1"}
    chosen = kept | {key.replace("_", "."): value for key, value in config.items()}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    new = NewTopic(topic, partitions, min(3, len(kafka.brokers)), config=chosen)
    if os.environ.get("TEST_ATTEMPT") == "2" and topic in admin.list_topics(timeout=30).topics:
        admin.delete_topics([topic])[topic].result(120)
        wait_for(f"the end of {topic}", lambda: topic not in admin.list_topics(timeout=30).topics)
    admin.create_topics([new])[topic].result(120)
    wait_writable(kafka, topic, partitions)
    return topic


def wait_writable(kafka: EmbeddedCluster, topic: str, partitions: int = 1) -> None:
    """Return once each partition has a leader that takes records, as after the start of a broker.

    A controller answers CreateTopics once the topic is in its log. A broker that is making the 50 partitions of
    __consumer_offsets, say, learns of it up to seconds later, and until then has no such topic (error 3).
    """

    def writable() -> bool:
        """A leader is named before it knows that it leads; it tells offsets only then."""
        try:
            return len(_offsets(kafka, topic)) == partitions
        except KafkaException:
            return False

    wait_for(f"leaders of {topic}", writable)


def log_bytes(kafka: EmbeddedCluster, topic: str) -> int:
    """Bytes in the leaders' log directories, as the brokers tell (DescribeLogDirs)."""
    admin: Any = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        leaders = {
            part["partition_index"]: part["leader_id"]
            for found in admin.describe_topics([topic])
            for part in found["partitions"]
        }
        return sum(
            part["partition_size"]
            for broker in admin.describe_log_dirs(topic_partitions=[topic])
            for log_dir in broker["log_dirs"]
            for found in log_dir["topics"]
            for part in found["partitions"]
            if found["name"] == topic and leaders[part["partition_index"]] == broker["broker"]
        )
    finally:
        admin.close()


def end_offsets(kafka: EmbeddedCluster, topic: str) -> int:
    return sum(end for _, end in _offsets(kafka, topic).values())


def _offsets(kafka: EmbeddedCluster, topic: str) -> dict[int, tuple[int, int]]:
    consumer = _consumer(kafka)
    try:
        known = consumer.list_topics(topic, timeout=30).topics[topic]
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            for partition in known.partitions
        }
    finally:
        consumer.close()


def _consumer(kafka: EmbeddedCluster, bootstrap: str = "", **options: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap or kafka.bootstrap_servers,
            "group.id": "integration",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,  # for an end of partition; 500 by default
            "log_level": 2,
            **options,
        }
    )


def read_topic(kafka: EmbeddedCluster, topic: str, bootstrap: str = "", **options: Any) -> list[bytes]:
    """Every value in the topic, partition by partition in order; `bootstrap`: read through that address."""
    consumer = _consumer(kafka, bootstrap, **options)
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        found: dict[int, list[bytes]] = {partition: [] for partition in partitions}
        consumer.assign([TopicPartition(topic, partition, 0) for partition in found])
        left = set(found)
        while left:
            message = consumer.poll(30)
            assert message is not None, f"{topic} {left}: nothing came in 30 s"
            error = message.error()
            if error is None:
                found[message.partition() or 0].append(message.value() or b"")
            elif error.name() == "_PARTITION_EOF":
                left.discard(message.partition() or 0)
            else:
                raise KafkaException(error)
        return [value for own in found.values() for value in own]
    finally:
        consumer.close()


class LogBatch(NamedTuple):
    """One batch as it lies in a log segment. KIP-98: attributes' bits 0-2 are the codec, bit 5 says control batch."""

    size: int
    records: int
    codec: int
    control: bool
    producer_id: int
    base_sequence: int
    base_offset: int


def log_batches(kafka: EmbeddedCluster, topic: str, node_id: int = 1) -> list[LogBatch]:
    """The batches in that broker's files, read without Kafka."""
    found = []
    for path in sorted(kafka.broker(node_id).log_dir.glob(f"{topic}-[0-9]*/*.log")):
        data = path.read_bytes()
        pos = 0
        while pos + 61 <= len(data):
            size = 12 + int.from_bytes(data[pos + 8 : pos + 12], "big")
            head = data[pos : pos + size]
            if size == 12 or len(head) < size:
                break  # preallocated, or being written
            attributes = int.from_bytes(head[21:23], "big")
            found.append(
                LogBatch(
                    size,
                    int.from_bytes(head[57:61], "big"),
                    attributes & 7,
                    bool(attributes & 32),
                    int.from_bytes(head[43:51], "big", signed=True),
                    int.from_bytes(head[53:57], "big", signed=True),
                    int.from_bytes(head[:8], "big"),
                )
            )
            pos += size
    return found
