# The sums agree exactly, on a real broker with real producers: bytes over the broker's log directories, /metrics and
# the usage topic; messages over clients' acknowledgements, end offsets, /metrics and the usage topic. Where they can't
# agree (transaction markers, a topic that the broker compresses anew), every byte of the difference has its cause, and
# that is found in the log segments themselves.

from __future__ import annotations

import itertools
import socket
import struct
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer

from gateway.embedded import EmbeddedCluster, wait_for
from tests.gateway.data import play
from tests.integration.gateways import (
    USAGE_TOPIC,
    Gateway,
    Outcomes,
    Sum,
    create_topic,
    end_offsets,
    log_batches,
    log_bytes,
    read_topic,
    sums,
    total,
)
from tests.integration.wire import Wire, base_offset

PARTITIONS = 3
MARKER_BYTES = 78  # a control batch with one record (KIP-98): of each transaction in each partition it wrote to
GZIP = 1
Values = dict[int, list[bytes]]  # by partition

_names = itertools.count(1)
_producer_ids = itertools.count(10**9)  # of raw frames: far above any that this broker gave out


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedCluster) -> Iterator[Gateway]:
    """No thresholds: nothing is rejected, and everything counted."""
    with Gateway(kafka.bootstrap_servers) as running:
        yield running


@pytest.fixture
def topic(kafka: EmbeddedCluster) -> str:
    return create_topic(kafka, f"accounting-{next(_names)}", PARTITIONS)


def some_values(count: int = 200, filler: int = 400) -> Values:
    """Values of different sizes that compress well, told apart by partition and number."""
    return {
        partition: [f"{partition}/{number}/".encode() + b"abc" * (number * 7 % filler) for number in range(count)]
        for partition in range(PARTITIONS)
    }


# --- producers --------------------------------------------------------------------------------------------------------
# Each sends all values to their partitions and returns how many messages were acknowledged to it.


def librdkafka(**options: Any) -> Callable[[str, str, Values], int]:
    def run(bootstrap: str, topic: str, values: Values) -> int:
        producer, counts = _rdkafka_producer(bootstrap, **options)
        for partition, value in _turn_by_turn(values):
            producer.produce(topic, value, partition=partition)
            producer.poll(0)
        assert producer.flush(60) == 0
        assert not counts.failed, counts.failed[:3]
        return counts.acknowledged

    return run


@dataclass
class Acks:
    acknowledged: int
    failed: list[str]


def _rdkafka_producer(bootstrap: str, **options: Any) -> tuple[Producer, Acks]:
    counts = Acks(0, [])

    def settle(error: Any, _: Any) -> None:
        if error is None:
            counts.acknowledged += 1
        else:
            counts.failed.append(error.name())

    named = {key.replace("_", "."): value for key, value in options.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2, "on_delivery": settle, **named})
    return producer, counts


def kafka_python(**options: Any) -> Callable[[str, str, Values], int]:
    def run(bootstrap: str, topic: str, values: Values) -> int:
        producer = KafkaProducer(bootstrap_servers=bootstrap, **options)
        try:
            sent = [producer.send(topic, value, partition=partition) for partition, value in _turn_by_turn(values)]
            producer.flush(60)
            return sum(future.succeeded() for future in sent)
        finally:
            producer.close(timeout=10)

    return run


def _turn_by_turn(values: Values) -> Iterator[tuple[int, bytes]]:
    for number in range(max(map(len, values.values()))):
        for partition, own in values.items():
            if number < len(own):
                yield partition, own[number]


PRODUCERS = {
    "librdkafka": librdkafka(),
    "librdkafka-acks-1": librdkafka(acks="1", linger_ms=0),
    "librdkafka-lz4": librdkafka(compression_type="lz4"),
    "librdkafka-zstd": librdkafka(compression_type="zstd"),
    "librdkafka-snappy": librdkafka(compression_type="snappy"),
    "librdkafka-idempotent": librdkafka(enable_idempotence=True),
    "kafka-python": kafka_python(enable_idempotence=False),
    "kafka-python-gzip": kafka_python(enable_idempotence=False, compression_type="gzip"),
    "kafka-python-idempotent": kafka_python(enable_idempotence=True, linger_ms=20),
}


# --- what must agree --------------------------------------------------------------------------------------------------


def assert_sums(
    gateway: Gateway, kafka: EmbeddedCluster, topic: str, acknowledged: int, *, markers: int = 0, recompressed: int = 0
) -> Outcomes:
    """Every witness says the same of what was accepted; returns what the usage topic says in all.

    `markers` are in the log and were sent by no producer; `recompressed` bytes were sent and are not in the log.
    """
    logged, ended = log_bytes(kafka, topic), end_offsets(kafka, topic)
    accepted = Sum(logged - markers * MARKER_BYTES + recompressed, ended - markers)
    assert accepted.messages == acknowledged
    gateway.settle(topic, accepted, "accepted")
    found = sums(gateway.wait_published(kafka))
    assert total(found[topic], "accepted") == accepted
    assert gateway.counted()[topic].items() >= found[topic].items()
    return found


def assert_read_back(gateway: Gateway, kafka: EmbeddedCluster, topic: str, values: Values, **options: Any) -> None:
    """Consumers get what was sent, in order, through the gateway."""
    assert read_topic(kafka, topic, gateway.bootstrap, **options) == [v for own in values.values() for v in own]


# Of the codecs, and of weaker or stronger acknowledgements, one each: the others say the same.
LONGER = ("librdkafka-acks-1", "librdkafka-lz4", "librdkafka-snappy", "kafka-python-idempotent")


@pytest.mark.parametrize(
    "client", [pytest.param(name, marks=[pytest.mark.full] if name in LONGER else []) for name in PRODUCERS]
)
def test_every_witness_agrees(gateway: Gateway, kafka: EmbeddedCluster, topic: str, client: str) -> None:
    values = some_values()
    acknowledged = PRODUCERS[client](gateway.bootstrap, topic, values)

    assert acknowledged == sum(map(len, values.values()))
    found = assert_sums(gateway, kafka, topic, acknowledged)
    assert found[topic].keys() == {("accepted", "")}, "nothing was offered that was not accepted"
    assert_read_back(gateway, kafka, topic, values)


def test_transactions_differ_by_their_markers_alone(gateway: Gateway, kafka: EmbeddedCluster, topic: str) -> None:
    """78 bytes and one offset for each transaction in each partition that it wrote to; aborted ones as well."""
    values = some_values(40)
    producer, counts = _rdkafka_producer(gateway.bootstrap, transactional_id=f"tx-{topic}")
    producer.init_transactions(30)
    markers = 0
    for partitions, commit in [([0, 1, 2], True), ([1], True), ([0, 2], False), ([2], True)]:
        producer.begin_transaction()
        for partition, value in _turn_by_turn({p: values[p] for p in partitions}):
            producer.produce(topic, value, partition=partition)
        assert producer.flush(60) == 0
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
        markers += len(partitions)
    assert counts.acknowledged == 7 * 40

    # The end of a transaction is acknowledged before its markers are written.
    wait_for("the markers", lambda: sum(b.control for b in log_batches(kafka, topic)) == markers)
    assert {b.size for b in log_batches(kafka, topic) if b.control} == {MARKER_BYTES}
    assert_sums(gateway, kafka, topic, counts.acknowledged, markers=markers)
    committed = {0: values[0], 1: values[1] * 2, 2: values[2] * 2}
    assert_read_back(gateway, kafka, topic, committed, **{"isolation.level": "read_committed"})


def test_a_topic_that_the_broker_compresses_differs_by_what_that_saves(
    gateway: Gateway, kafka: EmbeddedCluster
) -> None:
    """The broker's BytesInPerSec counts the sent size too. Messages and payload agree; bytes by cause."""
    topic = create_topic(kafka, f"accounting-{next(_names)}", PARTITIONS, compression_type="gzip")
    values = some_values()
    acknowledged = librdkafka()(gateway.bootstrap, topic, values)

    gateway.settle(topic, Sum(0, acknowledged), "accepted")
    written = log_batches(kafka, topic)
    assert {batch.codec for batch in written} == {GZIP}, "the cause"
    saved = gateway.counted_of(topic, "accepted").bytes - sum(batch.size for batch in written)
    assert saved > 0
    assert_sums(gateway, kafka, topic, acknowledged, recompressed=saved)
    assert_read_back(gateway, kafka, topic, values)


# --- what is not accepted ---------------------------------------------------------------------------------------------


def test_a_batch_too_large_for_the_topic_is_errored(kafka: EmbeddedCluster) -> None:
    """It goes out of bytesIn and into the error rate [V1], and the sums of accepted bytes stay exact."""
    topic = create_topic(kafka, f"accounting-{next(_names)}", 2, max_message_bytes="20000")
    small, large = [b"s" * 1000] * 50, [b"l" * 50_000] * 40
    with Gateway(kafka.bootstrap_servers) as gateway:
        producer, counts = _rdkafka_producer(gateway.bootstrap, batch_size=10_000, linger_ms=5)
        for partition, value in _turn_by_turn({0: small, 1: large}):
            producer.produce(topic, value, partition=partition)
        assert producer.flush(60) == 0
        assert set(counts.failed) == {"MSG_SIZE_TOO_LARGE"}
        assert (counts.acknowledged, len(counts.failed)) == (len(small), len(large))

        # The last of them may be errors, and a worker tells of both kinds when its second is over.
        wait_for("the errors", lambda: total(sums(gateway.spooled()).get(topic, {}), "errored").messages >= len(large))
        found = assert_sums(gateway, kafka, topic, len(small))
        assert found[topic].keys() == {("accepted", ""), ("errored", "MESSAGE_TOO_LARGE")}
        errored = total(found[topic], "errored")
        assert errored.messages >= len(large)
        assert errored.bytes > len(large) * 50_000

        # At most a batch or two can have been admitted before a tick of the meter and refused after it.
        wait_for("the error rate", lambda: gateway.metric("broker_error_rate_bytes_per_second") > 0)
        samples = gateway.samples()
        ((_, broker),) = samples["broker_rate_bytes_per_second"]
        ((_, errors),) = samples["broker_error_rate_bytes_per_second"]
        assert broker < errors / 5, "bytesIn is what got into the log"


def test_acks_0_is_unacknowledged(gateway: Gateway, kafka: EmbeddedCluster, topic: str) -> None:
    values = some_values()
    producer, counts = _rdkafka_producer(gateway.bootstrap, acks="0")
    for partition, value in _turn_by_turn(values):
        producer.produce(topic, value, partition=partition)
    assert producer.flush(60) == 0  # which says only that it is in the socket: the producer must live until it is read
    count = counts.acknowledged

    wait_for("the broker to have it", lambda: end_offsets(kafka, topic) == count)
    gateway.settle(topic, Sum(log_bytes(kafka, topic), count), "unacknowledged")
    found = sums(gateway.wait_published(kafka))[topic]
    assert found == {("unacknowledged", ""): Sum(log_bytes(kafka, topic), count)}
    assert gateway.counted_of(topic, "accepted") == Sum()


def test_a_batch_sent_again_is_a_duplicate_and_the_log_grows_once(
    gateway: Gateway, kafka: EmbeddedCluster, topic: str
) -> None:
    """The broker answers success with the old offset; so does BytesInPerSec count it twice, and we don't."""
    producer = (next(_producer_ids), 0, 0)
    size = play.size_of((b"one", b"two"))
    offsets = []
    for connection in range(2):  # the second time on the same connection, the third time on another one
        with Wire(gateway.broker_port(1)) as wire:
            for number in range(2 - connection):
                frame = play.request(number, {topic: [0]}, values=(b"one", b"two"), producer=producer)
                wire.send(frame)
                answer = wire.receive()
                assert play.decode_answer(answer)[2] == {(topic, 0): (0, None)}
                offsets.append(base_offset(answer))
    assert offsets == [0, 0, 0]

    gateway.settle(topic, Sum(2 * size, 4), "duplicate")
    found = assert_sums(gateway, kafka, topic, acknowledged=2)
    assert found[topic] == {("accepted", ""): Sum(size, 2), ("duplicate", ""): Sum(2 * size, 4)}


def test_bytes_behind_the_last_batch_are_trailing(gateway: Gateway, kafka: EmbeddedCluster, topic: str) -> None:
    """The broker trims them, so they are no part of the accepted bytes."""
    with Wire(gateway.broker_port(1)) as wire:
        _, rows = wire.produce(play.request(1, {topic: [0]}, trailing=b"0123456789"))
    (code, _) = rows[topic, 0]
    size = play.size_of() if code == 0 else 0
    gateway.settle(topic, Sum(10, 0), "trailing")
    assert log_bytes(kafka, topic) == size
    found = sums(gateway.wait_published(kafka))[topic]
    assert found["trailing", ""] == Sum(10, 0)
    assert total(found, "accepted").bytes == size


def test_every_outcome_of_one_request_is_counted_apart(gateway: Gateway, kafka: EmbeddedCluster, topic: str) -> None:
    """One partition is taken, one does not exist: the broker says so for each of them."""
    with Wire(gateway.broker_port(1)) as wire:
        _, rows = wire.produce(play.request(1, {topic: [0, 77]}))
    assert rows[topic, 0][0] == 0
    assert rows[topic, 77][0] == 3
    size = play.size_of()
    gateway.settle(topic, Sum(size, 1), "accepted")
    found = sums(gateway.wait_published(kafka))[topic]
    assert found == {("accepted", ""): Sum(size, 1), ("errored", "UNKNOWN_TOPIC_OR_PARTITION"): Sum(size, 1)}
    assert log_bytes(kafka, topic) == size


def test_topics_by_id_are_counted_by_name(gateway: Gateway, kafka: EmbeddedCluster, topic: str) -> None:
    """Produce v13 names no topic. The gateway asks for an unknown one, and refuses it: it may be any client's."""
    size = play.size_of()
    unknown = b"nobody-knows-it!"
    with Wire(gateway.broker_port(1)) as wire:
        ours = _topic_id(kafka, topic)
        _, rows = wire.produce(play.request(1, version=13, topic_id=ours), 13)
        assert rows == {(ours.hex(), 0): (0, None)}
        _, rows = wire.produce(play.request(2, version=13, topic_id=unknown), 13)
        assert rows[unknown.hex(), 0][0] == 100  # UNKNOWN_TOPIC_ID
    assert_sums(gateway, kafka, topic, acknowledged=1)
    called = "topic-id:" + urlsafe_b64encode(unknown).rstrip(b"=").decode()
    wait_for("its record", lambda: called in sums(gateway.wait_published(kafka)))
    assert sums(gateway.wait_published(kafka))[called] == {("rejected", "unknown-topic-id"): Sum(size, 1)}
    assert gateway.metric("topic_ids_unknown_total") == 1


def _topic_id(kafka: EmbeddedCluster, topic: str) -> bytes:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(120).topic_id
    return struct.pack(">qq", found.get_most_significant_bits(), found.get_least_significant_bits())


def test_no_client_writes_the_usage_topic(gateway: Gateway, kafka: EmbeddedCluster) -> None:
    before = end_offsets(kafka, USAGE_TOPIC) if gateway.wait_published(kafka) else 0
    with Wire(gateway.broker_port(1)) as wire:
        _, rows = wire.produce(play.request(1, {USAGE_TOPIC: [0]}, values=(b"forged",)))
    assert rows == {(USAGE_TOPIC, 0): (29, f"topic {USAGE_TOPIC} is written by the gateway only")}
    gateway.settle(USAGE_TOPIC, Sum(play.size_of((b"forged",)), 1), "rejected")
    assert b"forged" not in read_topic(kafka, USAGE_TOPIC)[before:]


def test_requests_of_many_megabytes(gateway: Gateway, kafka: EmbeddedCluster) -> None:
    topic = create_topic(kafka, f"accounting-{next(_names)}", PARTITIONS, max_message_bytes="20000000")
    values = {partition: [bytes([65 + partition]) * 8_000_000] for partition in range(PARTITIONS)}
    acknowledged = librdkafka(message_max_bytes=20_000_000)(gateway.bootstrap, topic, values)
    assert_sums(gateway, kafka, topic, acknowledged)
    assert_read_back(gateway, kafka, topic, values, **{"fetch.message.max.bytes": 20_000_000})


# --- clients that go --------------------------------------------------------------------------------------------------


def test_a_client_that_half_closes_gets_its_answers(gateway: Gateway, kafka: EmbeddedCluster, topic: str) -> None:
    """As from a broker: 20 requests, no more to come, 20 answers."""
    with Wire(gateway.broker_port(1)) as wire:
        wire.send(b"".join(play.request(number, {topic: [0]}) for number in range(20)))
        wire.sock.shutdown(socket.SHUT_WR)
        answers = [play.decode_answer(wire.receive()) for _ in range(20)]
        assert [correlation for correlation, _, _ in answers] == list(range(20))
        assert wire.ends()
    assert_sums(gateway, kafka, topic, acknowledged=20)


def test_acks_0_and_a_close_is_appended(gateway: Gateway, kafka: EmbeddedCluster, topic: str) -> None:
    with Wire(gateway.broker_port(1)) as wire:
        wire.send(b"".join(play.request(number, {topic: [0]}, acks=0) for number in range(20)))
    gateway.settle(topic, Sum(20 * play.size_of(), 20), "unacknowledged")
    wait_for("the log", lambda: end_offsets(kafka, topic) == 20)


def test_a_reset_leaves_bounds_and_no_bytes_without_an_outcome(
    gateway: Gateway, kafka: EmbeddedCluster, topic: str
) -> None:
    """The outcome of the last requests can't be known: growth is between accepted, and accepted and unanswered."""
    size, each = play.size_of(), 50

    def all_ended() -> bool:
        return gateway.metric("disconnects_total") == gateway.metric("connections_accepted_total")

    wait_for("ends of earlier tests", all_ended)
    before = gateway.metric("disconnects_total")
    for _ in range(10):
        with Wire(gateway.broker_port(1)) as wire:
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.send(b"".join(play.request(number, {topic: [0]}) for number in range(each)))
            wire.receive()
    # A reset throws away what the gateway had not read yet; each connection had its first answer.
    wait_for("all ends", lambda: gateway.metric("disconnects_total") >= before + 10 and all_ended())
    rest: list[Sum] = []

    def quiet() -> bool:
        rest.append(gateway.counted_of(topic))
        return len(rest) > 15 and rest[-1] == rest[-15] and rest[-1].messages > 0

    wait_for("the counts to be still", quiet, every_s=0.1)
    found = sums(gateway.wait_published(kafka))[topic]
    accepted, unanswered = total(found, "accepted"), total(found, "unanswered")
    logged = Sum(log_bytes(kafka, topic), end_offsets(kafka, topic))
    assert 10 <= accepted.messages <= logged.messages <= accepted.messages + unanswered.messages <= 10 * each
    assert logged.bytes == logged.messages * size
    assert found.keys() <= {("accepted", ""), ("unanswered", "")}


def test_the_sums_still_agree_when_all_is_over(gateway: Gateway, kafka: EmbeddedCluster, topic: str) -> None:
    """SIGTERM with answers on their way: every witness has the records that were acknowledged to clients."""
    values = some_values(1500, 100)
    with Gateway(kafka.bootstrap_servers) as ending:
        producer, counts = _rdkafka_producer(ending.bootstrap, message_timeout_ms=120_000, enable_idempotence=True)
        for number, (partition, value) in enumerate(_turn_by_turn(values)):
            producer.produce(topic, value, partition=partition)
            producer.poll(0)
            if number == 2000:
                wait_for("some acknowledgements", lambda: bool(producer.poll(0.01)) or counts.acknowledged > 500)
                ending.stop()
        producer.purge()
        producer.flush(30)
        # librdkafka doesn't know of batches in flight when its broker goes; none may have been left unanswered.
        found = sums(ending.wait_published(kafka))[topic]
        assert found[("accepted", "")].bytes == log_bytes(kafka, topic)
        assert found[("accepted", "")].messages == end_offsets(kafka, topic)
        assert counts.acknowledged == end_offsets(kafka, topic)
        assert ending.spooled()[-1]["final"]
