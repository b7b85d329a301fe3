# Rejected attempts and what was finally dropped, with real producers: what one sends again until it gets through is
# rejected and not dropped; what one gives up is the difference, to the byte. The limits are those of
# tests/clients/limits/scenario_policies.py, by the topics' names; all producers run at once, and the gateway has ended
# in order before its records are read.

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from gateway.embedded import EmbeddedCluster
from policies.usage import NOTES
from tests.clients.limits.scenario_policies import SEPARATOR
from tests.gateway.data.play import size_of
from tests.integration.gateways import Gateway, Record, create_topic, dropped, end_offsets

COUNT = 150
RECORD = bytes(500)
SMALL_BATCH = 2_000  # bytes: so that there are many, and some of them are rejected
GIVE_UP_MS = 12_000  # well before the limit of 40 s ends
FLUSH_S = 90.0

Send = Callable[[str, str, int], int]  # so many records to a topic; returns how many were acknowledged


def librdkafka(**options: Any) -> Send:
    def send(bootstrap: str, topic: str, count: int) -> int:
        acknowledged = 0

        def settle(error: Any, _: Any) -> None:
            nonlocal acknowledged
            acknowledged += error is None

        named = {key.replace("_", "."): value for key, value in options.items()}
        settings = {"bootstrap.servers": bootstrap, "batch.size": SMALL_BATCH, "log_level": 0, "on_delivery": settle}
        producer = Producer(settings | named)
        for number in range(count):
            producer.produce(topic, RECORD, partition=number % 2)
            producer.poll(0.002)
        producer.flush(FLUSH_S)
        return acknowledged

    return send


def kafka_python(**options: Any) -> Send:
    def send(bootstrap: str, topic: str, count: int) -> int:
        producer = KafkaProducer(bootstrap_servers=bootstrap, batch_size=SMALL_BATCH, **options)
        try:
            futures = [producer.send(topic, RECORD, partition=number % 2) for number in range(count)]
            try:
                producer.flush(FLUSH_S)
            except KafkaTimeoutError:
                pass  # it is told by the futures
            return sum(future.succeeded() for future in futures)
        finally:
            producer.close(timeout=5)

    return send


@dataclass(frozen=True)
class Case:
    send: Send
    limit: str
    count: int
    software: str


CAREFUL = {"enable_idempotence": True, "max_in_flight": 1}  # with several in flight it keeps a core busy while it waits
GETS_THROUGH = {
    "librdkafka-idempotent": Case(librdkafka(**CAREFUL), "reject-30", COUNT, "confluent-kafka-python"),
    "kafka-python": Case(kafka_python(enable_idempotence=False), "reject-30", COUNT, "kafka-python"),
    "kafka-python-idempotent": Case(kafka_python(enable_idempotence=True), "reject-30", COUNT, "kafka-python"),
}
MAKES_NEW_BATCHES = {  # where there is room in them
    "librdkafka": Case(librdkafka(batch_size=1_000_000), "reject-30", COUNT, "confluent-kafka-python")
}
# librdkafka sends again at once and is held until its client has gone; kafka-python waits as long as it is told.
GIVES_UP = {
    "librdkafka-gives-up": Case(
        librdkafka(**CAREFUL, message_timeout_ms=GIVE_UP_MS),
        "pause-40s",
        1,
        "confluent-kafka-python",
    ),
    "kafka-python-gives-up": Case(
        kafka_python(enable_idempotence=False, delivery_timeout_ms=GIVE_UP_MS, request_timeout_ms=GIVE_UP_MS - 1_000),
        "pause-40s",
        1,
        "kafka-python",
    ),
}
CASES = GETS_THROUGH | MAKES_NEW_BATCHES | GIVES_UP


class Seen(NamedTuple):
    topics: dict[str, str]  # by case
    acknowledged: dict[str, int]
    records: list[Record]

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [row for record in self.records for row in record["rows"] if row["topic"] == self.topics[name]]

    def sent_in_vain(self, name: str) -> int:
        """Bytes that were refused or let go, and not seen again."""
        discarded: int = sum(row["bytes"] for row in self.rows(name) if row["outcome"] == "discarded")
        return dropped(self.records, self.topics[name]).most + discarded


@pytest.fixture(scope="module")
def seen(kafka: EmbeddedCluster) -> Iterator[Seen]:
    names = uuid.uuid4().hex[:8]
    topics = {name: create_topic(kafka, f"{case.limit}{SEPARATOR}{names}-{name}", 2) for name, case in CASES.items()}
    settings = {"policies": ["tests.clients.limits.scenario_policies:make"]}
    with Gateway(kafka.bootstrap_servers, settings) as gateway, ThreadPoolExecutor(len(CASES)) as pool:
        runs = {
            name: pool.submit(case.send, gateway.bootstrap, topics[name], case.count) for name, case in CASES.items()
        }
        acknowledged = {name: run.result() for name, run in runs.items()}
        gateway.stop()
        yield Seen(topics, acknowledged, gateway.spooled())


@pytest.mark.parametrize("name", GETS_THROUGH)
def test_a_producer_that_gets_through_in_the_end_has_dropped_nothing(
    seen: Seen, kafka: EmbeddedCluster, name: str
) -> None:
    assert seen.acknowledged[name] == COUNT == end_offsets(kafka, seen.topics[name])
    found = dropped(seen.records, seen.topics[name])
    assert found.rejected > 0
    assert (found.least, found.most) == (0, 0), found
    assert {row["outcome"] for row in seen.rows(name)} - set(NOTES) == {"accepted", "rejected"}


@pytest.mark.parametrize("name", MAKES_NEW_BATCHES)
def test_of_a_producer_that_makes_new_batches_the_truth_lies_within_the_bounds(seen: Seen, name: str) -> None:
    assert seen.acknowledged[name] == COUNT
    found = dropped(seen.records, seen.topics[name])
    assert found.rejected > 0
    assert found.least == 0 <= found.most, found


@pytest.mark.parametrize("name", GIVES_UP)
def test_the_records_a_producer_gives_up_are_the_difference(seen: Seen, kafka: EmbeddedCluster, name: str) -> None:
    assert seen.acknowledged[name] == 0 == end_offsets(kafka, seen.topics[name])
    found = dropped(seen.records, seen.topics[name])
    assert found.rejected > 0
    assert found.least == found.most
    assert seen.sent_in_vain(name) == size_of((RECORD,)), seen.rows(name)


@pytest.mark.parametrize("name", CASES)
def test_rows_say_the_software(seen: Seen, name: str) -> None:
    assert {row["software"] for row in seen.rows(name)} == {CASES[name].software}
