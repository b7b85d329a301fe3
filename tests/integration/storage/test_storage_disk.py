# Real disks that real producers fill: 200 MB under a real broker, and what keeps it from running full.
#
# Two client libraries offer more than the total threshold, all the time. Without storage protection the broker dies,
# with it nothing is lost and nothing comes twice: everything the producers were told is compared with what a consumer
# read and with the log's own offsets. What the disk has free is asked from the kernel.
#
# The numbers: no more than `total` bytes a second get in, and a request may be on its way for the interval between two
# looks at the disk and for as long as it may wait: HARD has room for all of it. The way from soft to hard gets longer
# with every byte, since who is slowed down fills more slowly, so its last part is left to who isn't: the operator.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.embedded import EmbeddedCluster, wait_for
from policies import usage
from tests.background import Background
from tests.clients import harness
from tests.integration.gateways import Gateway, Sum, create_topic, read_topic
from tests.integration.limits.steady import Steady, assert_in_log_once_and_in_order
from tests.integration.storage.disks import SmallDisk, Watch

MB = 1_000_000
DISK = 200 * MB
TOTAL = 6 * MB  # bytes a second
INTERVAL_S = 1.0
MAX_WAIT_S = 15.0  # of a request, in all
OVERSHOOT = TOTAL * (INTERVAL_S + MAX_WAIT_S)  # at most
HARD = 100 * MB
SOFT = 125 * MB
OTHER_DATA = 50 * MB  # what else is on the disk: less to write until something happens
OPERATOR = "operators-tool"

THRESHOLDS = {"total.bytes.in.per.sec.threshold": TOTAL, "on_exceed": "delay"}
STORAGE = {
    "check_interval": f"{INTERVAL_S:g}s",
    "soft": {"type": "MinFreeBytes", "level": SOFT},
    "hard": {"type": "MinFreeBytes", "level": HARD},
}
PROTECTED = {"thresholds": THRESHOLDS, "storage": STORAGE, "internal": {"client_ids": [OPERATOR]}}

# Small segments that go soon after they may go.
BROKER = {
    "log.segment.bytes": "1048576",
    "log.index.size.max.bytes": "65536",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "500",
}

RECORD = 10_000  # bytes
PER_S = 450  # records of each client, half as many again as its share of TOTAL
RECORDS = 3_600  # what is left of them after the pause fits above SOFT
PARTITIONS = 3
# The same size of batches for all, and little kept back by libraries.
CLIENTS: dict[str, dict[str, Any]] = {
    "java": {"batch.size": "131072", "linger.ms": "5", "buffer.memory": "4194304"},
    # With several in flight, an idempotent one keeps a core busy for as long as it waits.
    "librdkafka": {"batch.size": 131072, "linger.ms": 5, "queue.buffering.max.kbytes": 4096, "max.in.flight": 1},
}
DEADLINE_S = 200.0  # of a producer
SEEN_S = 90.0  # until something that must come has come, on a machine that is busy with other things


def topic_of(client: str) -> str:
    return f"load-{client}"


@contextmanager
def producing(gateway: Gateway, records: int = RECORDS) -> Iterator[dict[str, harness.Driver]]:
    """One producer of each library, to a topic of its own."""
    common = {"partitions": PARTITIONS, "record_bytes": RECORD, "idempotence": True, "rate": PER_S, "count": records}
    with ExitStack() as stack:
        running = {}
        for client, options in CLIENTS.items():
            harness.CLIENTS[client].command()  # built before the first of them starts
            settings: dict[str, Any] = {
                "topics": [topic_of(client)],
                "options": options,
                "timeout_s": DEADLINE_S,
                **common,
            }
            running[client] = harness.Driver(client, "produce", gateway.bootstrap, **settings)
            stack.callback(running[client].stop)
        yield running


class Reader(Background):
    """An application that reads everything, through the gateway, as it comes.

    Attributes:
        seen: record numbers in the order they came, by "topic/partition".
        next: offset behind the last one read, by (topic, partition).
    """

    def __init__(self, gateway: Gateway, topics: Sequence[str]) -> None:
        super().__init__()
        self._consumer = Consumer(
            {"bootstrap.servers": gateway.bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 2}
        )
        self._places = [TopicPartition(topic, index, 0) for topic in topics for index in range(PARTITIONS)]
        self.seen: dict[str, list[int]] = {f"{place.topic}/{place.partition}": [] for place in self._places}
        self.next = {(place.topic, place.partition): 0 for place in self._places}
        self.errors: list[KafkaError] = []

    def __enter__(self) -> Reader:
        self._consumer.assign(self._places)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._consumer.close()

    def has(self, ends: dict[tuple[str, int], int]) -> bool:
        return self.next == ends

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(500, 0.1):
                if (error := message.error()) is not None:
                    self.errors.append(error)
                    continue
                text = (message.value() or b"").partition(b"|")[0]
                topic, partition = str(message.topic()), int(message.partition() or 0)
                self.seen[f"{topic}/{partition}"].append(int(text.rpartition(b":")[2]))
                self.next[topic, partition] = (message.offset() or 0) + 1


def end_offsets(kafka: EmbeddedCluster, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    return {place: end for place, (_, end) in offsets(kafka, topics).items()}


def total_of(client: str, ends: dict[tuple[str, int], int]) -> int:
    return sum(end for (topic, _), end in ends.items() if topic == topic_of(client))


def arrived(kafka: EmbeddedCluster, topics: Sequence[str], reader: Reader) -> dict[tuple[str, int], int]:
    """End offsets when all that was forwarded before a pause is in the log: the same twice, a second apart."""
    seen: list[dict[tuple[str, int], int]] = []

    def is_still() -> bool:
        seen.append(end_offsets(kafka, topics))
        return len(seen) > 1 and seen[-1] == seen[-2] and reader.has(seen[-1])

    wait_for("all that was on its way", is_still, SEEN_S, 1.0)
    return seen[-1]


def offsets(kafka: EmbeddedCluster, topics: Sequence[str]) -> dict[tuple[str, int], tuple[int, int]]:
    """First and end offset of each partition, asked directly."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "offsets"})
    try:
        places = [TopicPartition(topic, index) for topic in topics for index in range(PARTITIONS)]
        return {(place.topic, place.partition): consumer.get_watermark_offsets(place, timeout=30) for place in places}
    finally:
        consumer.close()


def delete_all(gateway: Gateway, ends: dict[tuple[str, int], int]) -> None:
    """kafka-delete-records, through the gateway."""
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap, "log_level": 2})
    places = [TopicPartition(topic, index, end) for (topic, index), end in ends.items()]
    for future in admin.delete_records(places).values():
        future.result(120)


def fill(bootstrap: str, topic: str, disk: SmallDisk, until_free: float) -> None:
    """Write as one whom nobody limits, until no more than that is free."""
    settings = {"bootstrap.servers": bootstrap, "client.id": OPERATOR, "enable.idempotence": True}
    producer = Producer(settings)
    while disk.free > until_free:
        producer.produce(topic, bytes(500_000))
        assert producer.flush(30) == 0


def produce_one(gateway: Gateway, topic: str, client_id: str) -> None:
    told: list[object] = []
    producer = Producer({"bootstrap.servers": gateway.bootstrap, "client.id": client_id, "enable.idempotence": True})
    producer.produce(topic, b"one", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(30) == 0
    assert told == [None]


def factor(gateway: Gateway) -> float:
    return gateway.metric("storage_throttle_factor")


def rejected(gateway: Gateway, topic: str) -> float:
    """Bytes that were turned away because a disk is full."""
    return gateway.metric("produce_bytes_total", topic=topic, outcome="rejected", reason="storage-pause")


def seconds_between(watch: Watch, above: float, below: float) -> float:
    """How long the disk took from so much free to so much free, the first time."""
    first, last = (next(n for n, (_, free) in enumerate(watch.seen) if free <= level) for level in (above, below))
    if first == last:  # all of it between two looks
        first -= 1
    return watch.seen[last][0] - watch.seen[first][0]


@pytest.mark.full  # the control of the next one
@pytest.mark.seed("DISK.4")
def test_without_protection_a_full_disk_ends_the_broker() -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(SmallDisk(DISK))
        disk.occupy(DISK - HARD // 2)  # what is left is half of what stays free in the next test
        kafka = stack.enter_context(EmbeddedCluster(1, BROKER, log_dirs={1: [disk.path / "logs"]}))
        gateway = stack.enter_context(Gateway(kafka.bootstrap_servers, {"thresholds": THRESHOLDS}))
        for client in CLIENTS:
            create_topic(kafka, topic_of(client), PARTITIONS)
        stack.enter_context(producing(gateway, 10 * RECORDS))
        wait_for("the broker to die", lambda: not kafka.broker(1).is_running, SEEN_S)
        process = kafka.broker(1).process
        assert process is not None
        assert process.returncode == 1
        assert "No space left on device" in kafka.broker(1).log_file.read_text()


@pytest.mark.seed("DISK.4", "035.1")
def test_producers_slow_down_pause_and_go_on_before_a_disk_is_full() -> None:
    topics = [topic_of(client) for client in CLIENTS]
    with ExitStack() as stack:
        disk = stack.enter_context(SmallDisk(DISK))
        disk.occupy(OTHER_DATA)
        kafka = stack.enter_context(EmbeddedCluster(1, BROKER, log_dirs={1: [disk.path / "logs"]}))
        gateway = stack.enter_context(Gateway(kafka.bootstrap_servers, PROTECTED))
        for topic in topics:
            create_topic(kafka, topic, PARTITIONS)
        create_topic(kafka, "tools")
        reader = stack.enter_context(Reader(gateway, topics))
        watch = stack.enter_context(Watch(disk))
        producers = stack.enter_context(producing(gateway))

        # Slower and slower, from when the gateway has looked at the disk: most of the way down at less than TOTAL / 2.
        seen, nearly = SOFT - TOTAL * INTERVAL_S, HARD + (SOFT - HARD) / 10
        wait_for("most of THROTTLE", lambda: watch.lowest <= nearly, SEEN_S)
        assert (seen - nearly) / seconds_between(watch, seen, nearly) < TOTAL / 2
        wait_for("the factor that goes with it", lambda: factor(gateway) <= 0.1, SEEN_S)
        fill(gateway.bootstrap, "tools", disk, HARD)
        wait_for("PAUSE", lambda: factor(gateway) == 0, SEEN_S)

        # Nothing passes: from when all that was on its way has arrived until everybody is turned away. Who got all of
        # his in before, on a machine that started the others late, has nothing to wait for. Of a machine that stood
        # still, more may have been on its way than seemed so: then once more.
        for _ in range(3):
            ends = arrived(kafka, topics, reader)
            held = {topic_of(client) for client in CLIENTS if total_of(client, ends) < RECORDS}
            assert held
            before = {topic: rejected(gateway, topic) for topic in held}
            wait_for("rejections", lambda n=before: all(rejected(gateway, each) > n[each] for each in n), SEEN_S)  # type: ignore[misc]
            if end_offsets(kafka, topics) == ends:
                break
        else:
            pytest.fail("records pass while everybody is turned away")
        assert all(producers[client].running for client in CLIENTS if topic_of(client) in held)
        assert factor(gateway) == 0

        # Who makes room is let through, and producing goes on by itself.
        produce_one(gateway, "tools", OPERATOR)
        delete_all(gateway, ends)
        wait_for("OPEN", lambda: factor(gateway) == 1, SEEN_S)
        results = {client: producer.result() for client, producer in producers.items()}

        wait_for("the reader to have all", lambda: reader.has(end_offsets(kafka, topics)), SEEN_S)
        assert watch.lowest >= HARD - OVERSHOOT
        assert reader.errors == []
        for client, result in results.items():
            told = {key: result[key] for key in ("acknowledged", "errors", "unresolved")}
            assert told == {"acknowledged": RECORDS, "errors": {}, "unresolved": []}, client
            partitions = [reader.seen[f"{topic_of(client)}/{index}"] for index in range(PARTITIONS)]
            assert partitions == [list(range(index, RECORDS, PARTITIONS)) for index in range(PARTITIONS)], client
            assert total_of(client, end_offsets(kafka, topics)) == RECORDS
            gateway.settle(topic_of(client), Sum(0, RECORDS), "accepted")
        assert all(start > 0 for place, (start, _) in offsets(kafka, topics).items() if ends[place])
        gateway.stop()
        assert kafka.broker(1).is_running


# What thresholds alone let pass, and delay for seconds what is behind it: a record larger than a second's worth.
TIGHT = {"total.bytes.in.per.sec.threshold": 100_000, "on_exceed": "delay"}
LARGE = 900_000
FULL = {"check_interval": "1s", "hard": {"type": "MinFreeBytes", "level": 10**15}}  # as every disk is, by this


def test_in_a_pause_nothing_passes_that_thresholds_would_only_delay(kafka: EmbeddedCluster) -> None:
    topic = create_topic(kafka, "disk-large", PARTITIONS)
    with ExitStack() as stack:
        gateway = stack.enter_context(Gateway(kafka.bootstrap_servers, {"thresholds": TIGHT, "storage": FULL}))
        wait_for("PAUSE", lambda: factor(gateway) == 0, SEEN_S)
        producer = Producer({"bootstrap.servers": gateway.bootstrap, "enable.idempotence": True, "log_level": 2})
        stack.callback(producer.flush, 5)
        stack.callback(producer.purge)
        producer.produce(topic, bytes(LARGE))
        wait_for("a rejection", lambda: rejected(gateway, topic) >= LARGE, SEEN_S)
        assert set(end_offsets(kafka, [topic]).values()) == {0}
        gateway.stop()


# --- an uneven cluster ------------------------------------------------------------------------------------------------

UNEVEN_TOTAL = 2 * MB
UNEVEN_HARD = UNEVEN_TOTAL * 16
UNEVEN_SOFT = UNEVEN_HARD + 16 * MB
UNEVEN_DISK = UNEVEN_SOFT + 16 * MB
STEADY = {"per_s": 250, "size": 4_000, "in_flight": 1}  # half of UNEVEN_TOTAL: nobody is limited before
UNEVEN = {
    "thresholds": {"total.bytes.in.per.sec.threshold": UNEVEN_TOTAL},
    "storage": {
        "check_interval": "1s",
        "soft": {"type": "MinFreeBytes", "level": UNEVEN_SOFT},
        "hard": {"type": "MinFreeBytes", "level": UNEVEN_HARD},
    },
}


def create_at(kafka: EmbeddedCluster, topic: str, brokers: list[int]) -> None:
    """One partition, led by the first of these brokers and replicated to the others."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 2})
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[brokers])])[topic].result(120)


@pytest.mark.full  # policies/storage/limits/test_storage_min_available.py; with a real disk: producers that slow down
@pytest.mark.seed("DISK.1")
def test_a_full_disk_of_another_broker_slows_and_pauses_producers_that_write_nothing_there() -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(SmallDisk(UNEVEN_DISK))
        kafka = stack.enter_context(EmbeddedCluster(2, BROKER, log_dirs={2: [disk.path / "logs"]}))
        past_the_gateway = (
            kafka.bootstrap_servers
        )  # what it lets pass it also meters: that alone would be over the total
        gateway = stack.enter_context(Gateway(kafka.bootstrap_servers, UNEVEN, node_ids=2))
        create_at(kafka, "replicated", [1, 2])
        create_at(kafka, "elsewhere", [1])
        with Steady(gateway.bootstrap, "elsewhere", **STEADY) as steady:

            def held(reason: str = "") -> float:
                """Bytes that were delayed or turned away."""
                labels = {"broker": "1", "topic": "elsewhere"} | ({"reason": reason} if reason else {})
                rejected = gateway.metric("produce_bytes_total", outcome="rejected", **labels)
                return rejected + gateway.metric("policy_bytes_total", outcome="delayed", **labels)

            steady.wait_for(500)
            assert factor(gateway) == 1
            assert held() == 0

            fill(past_the_gateway, "replicated", disk, UNEVEN_HARD + (UNEVEN_SOFT - UNEVEN_HARD) / 4)
            wait_for("THROTTLE", lambda: 0 < factor(gateway) < 0.5, SEEN_S)
            wait_for("somebody held", lambda: held() > 0, SEEN_S)
            assert held("storage-pause") == 0

            fill(past_the_gateway, "replicated", disk, UNEVEN_HARD)
            wait_for("PAUSE", lambda: factor(gateway) == 0, SEEN_S)
            wait_for("a rejection", lambda: held("storage-pause") > 0, SEEN_S)
            paused = steady.acknowledged
            assert steady.sent > paused
            assert f"broker 2 volume {disk.path}" in gateway.log()

            delete_all(gateway, {("replicated", 0): OFFSET_END})
            wait_for("OPEN", lambda: factor(gateway) == 1, SEEN_S)
            steady.wait_for(500)
            sent = steady.finish()
        assert_in_log_once_and_in_order(kafka, "elsewhere", sent, STEADY["size"])
        gateway.stop()
        # What an audit can tell of it later: open, less, nothing.
        told = [record["storage_factor_ppm"] for record in gateway.spooled() if record["rows"]]
        assert told[0] == usage.PPM
        assert any(0 < each < usage.PPM / 2 for each in told)
        assert 0 in told


# --- scope affected ---------------------------------------------------------------------------------------------------

AFFECTED = {
    "thresholds": {"total.bytes.in.per.sec.threshold": 3 * MB, "on_exceed": "delay"},
    "storage": {
        "check_interval": "1s",
        "scope": "affected",
        "hard": {"type": "MinFreeBytes", "level": UNEVEN_HARD},
        "throttle.factor.fallback": 0.0,
    },
}


# Which topics: policies/storage/; which partitions are where, of real brokers: test_log_dirs.py; that nobody else is
# held and nothing is written in a pause: worlds with the theme `affected`. With more topics and load: `make disk`.
@pytest.mark.full
def test_only_topics_of_the_full_broker_pause_and_all_others_keep_their_rate() -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(SmallDisk(UNEVEN_DISK))
        kafka = stack.enter_context(EmbeddedCluster(3, BROKER, log_dirs={3: [disk.path / "logs"]}))
        gateway = stack.enter_context(Gateway(kafka.bootstrap_servers, AFFECTED, node_ids=3))
        create_at(kafka, "follows", [1, 3])  # led by a broker that has room
        create_at(kafka, "leads", [3, 2])
        create_at(kafka, "elsewhere", [1, 2])
        create_at(kafka, "filler", [3])
        watch = stack.enter_context(Watch(disk))
        wait_for("OPEN", lambda: factor(gateway) == 1, SEEN_S)
        full = [stack.enter_context(Steady(gateway.bootstrap, topic, **STEADY)) for topic in ("follows", "leads")]
        other = stack.enter_context(Steady(gateway.bootstrap, "elsewhere", **STEADY))

        fill(kafka.bootstrap_servers, "filler", disk, UNEVEN_HARD + 4 * MB)
        wait_for("PAUSE", lambda: factor(gateway) == 0, SEEN_S)
        wait_for("rejections", lambda: all(rejected(gateway, each) > 0 for each in ("follows", "leads")), SEEN_S)
        acknowledged = [each.acknowledged for each in full]
        other.wait_for(1000)
        assert [each.acknowledged for each in full] == acknowledged
        assert gateway.metric("storage_affected_topics") == 3
        assert watch.lowest >= UNEVEN_HARD / 2
        assert kafka.broker(3).is_running

        # What is there can be read, and deleted: then all goes on.
        assert len(read_topic(kafka, "follows", gateway.bootstrap)) >= acknowledged[0]
        delete_all(gateway, {(topic, 0): OFFSET_END for topic in ("filler", "leads")})
        wait_for("OPEN", lambda: factor(gateway) == 1, SEEN_S)
        for each in full:
            each.wait_for(100)
        sent = {"elsewhere": other.finish(), "follows": full[0].finish()}
        full[1].finish()
        for topic, count in sent.items():
            assert_in_log_once_and_in_order(kafka, topic, count, STEADY["size"])
        assert gateway.metric("produce_bytes_total", topic="elsewhere", outcome="rejected") == 0
        assert gateway.metric("policy_bytes_total", topic="elsewhere", outcome="delayed") == 0
        gateway.stop()
