# Dispatch limits of resource groups (PIP-82) in front of a real Kafka: what all consumers of a group get together, of
# all its topics, is the group's limit (with several brokers: policies/groups/test_group_limiters.py); their consumer
# groups stay as they are. Consumers of `events` are in groups that the broker assigns (KIP-848), those of `jobs` in a
# share group (KIP-932). That Java is told how long it has to wait is test_client_quotas.py's. Rates are taken where
# records arrive (windows.py).

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from gateway.embedded import EmbeddedCluster, wait_for
from tests.clients import harness
from tests.integration.gateways import Gateway, create_topic, log_bytes
from tests.integration.limits.windows import Curve, is_near, most_of, wait_window

SETTLE_S = 3.0
SHARE_S = 20.0
BYTES_RATE, MSGS_RATE, BIG_RATE, JOBS_RATE = 1_500_000, 1000, 2_000_000, 500_000
SIZE, SMALL, BIG = 5000, 1200, 1_000_000  # of records
GROUPS = {
    "by-bytes": {"dispatchRateInBytes": BYTES_RATE},
    "by-messages": {"dispatchRateInMsgs": MSGS_RATE},
    "big-records": {"dispatchRateInBytes": BIG_RATE},
    "shared": {"dispatchRateInBytes": JOBS_RATE},
}
TENANTS = {"orders": "by-bytes", "events": "by-messages", "images": "big-records", "jobs": "shared"}
ORDERS, INVOICES = "orders.shop.placed", "orders.billing.invoices"
CLICKS, VIEWS = "events.web.clicks", "events.web.views"
IMAGES = "images.shop.originals"
JOBS = "jobs.shop.resize"
FREE = "others.shop.placed"
PARTITIONS = 2
RECORDS = {  # of each partition; who has read the last one begins anew
    ORDERS: (1000, SIZE),
    INVOICES: (1000, SIZE),
    CLICKS: (5000, SMALL),
    VIEWS: (5000, SMALL),
    IMAGES: (8, BIG),
    JOBS: (1500, SIZE),
    FREE: (1000, SIZE),
}


class Reading(NamedTuple):
    """What one consumer got, and how its group was meanwhile."""

    arrivals: Curve
    errors: list[str]
    changes: list[str]
    states: set[ConsumerGroupState]


class Outcome(NamedTuple):
    readings: dict[str, Reading]  # by topic
    rates: dict[str, list[float]]  # by group: of its topics in a window that is as it should be, in the limit's units
    whole: dict[str, tuple[float, float]]  # by group: what came in the whole run, and its seconds
    waits_of_free: list[float]
    delayed: float
    not_followed: float


def fill(cluster: EmbeddedCluster, topic: str) -> float:
    """Bytes in the log by bytes of records."""
    create_topic(cluster, topic, PARTITIONS, max_message_bytes=str(2 * BIG))
    count, size = RECORDS[topic]
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "linger.ms": 5,
            "batch.size": 16_384,
            "message.max.bytes": 2 * BIG,
        }
    )
    for number in range(PARTITIONS * count):
        producer.produce(topic, b"x" * size, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0
    return log_bytes(cluster, topic) / (PARTITIONS * count * size)


def consume(cluster: EmbeddedCluster, gateway: Gateway, topic: str, reading: Reading, is_over: threading.Event) -> None:
    """librdkafka, until it is over."""
    group = f"{topic}-rdkafka"
    is_new = topic in (CLICKS, VIEWS)
    consumer = Consumer(
        {
            "bootstrap.servers": gateway.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            # The default has room for 48 kB of the next such record: fetched, charged and of no use, 5 % of everything.
            **({"fetch.message.max.bytes": BIG} if topic == IMAGES else {}),
            **({"group.protocol": "consumer"} if is_new else {}),
            "error_cb": lambda error: reading.errors.append(error.str()),
            "log_level": 0,
        }
    )

    def changed(what: str) -> Any:
        def note(_: Consumer, __: list[TopicPartition]) -> None:
            reading.changes.append(what)

        return note

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    consumer.subscribe([topic], on_assign=changed("assigned"), on_revoke=changed("revoked"), on_lost=changed("lost"))
    count, asked = 0, time.monotonic() + SETTLE_S
    try:
        while not is_over.is_set():
            message = consumer.poll(0.2)
            now = time.monotonic()
            if message is not None and (error := message.error()) is not None:
                reading.errors.append(error.str())
            elif message is not None:
                count += 1
                reading.arrivals.add(now, count)
                if (message.offset() or 0) + 1 == RECORDS[topic][0]:
                    consumer.seek(TopicPartition(topic, message.partition() or 0, 0))
            if count and now > asked + 3 and not is_new:  # librdkafka describes groups of the older kind alone
                asked = now
                found = admin.describe_consumer_groups([group])[group]
                reading.states.add(found.result(120).state)
        reading.changes.append("over")  # it leaves by itself
    finally:
        consumer.close()


def read_free(gateway: Gateway) -> list[float]:
    """Read what is outside every group; for how long answers said to wait, in seconds."""
    waits: list[float] = []
    names: dict[str, Any] = {"bootstrap.servers": gateway.bootstrap, "group.id": FREE, "log_level": 0}
    consumer = Consumer({**names, "throttle_cb": lambda event: waits.append(event.throttle_time)})
    consumer.assign([TopicPartition(FREE, partition, 0) for partition in range(PARTITIONS)])
    count, began = 0, time.monotonic()
    try:
        while count < PARTITIONS * RECORDS[FREE][0]:
            assert time.monotonic() < began + 120, count
            count += len(consumer.consume(500, 0.2))
    finally:
        consumer.close()
    return waits


@contextmanager
def running(cluster: EmbeddedCluster, *topics: str) -> Iterator[tuple[Gateway, dict[str, float]]]:
    settings = {"internal_topics": "none", "resource_groups": {"groups": GROUPS, "tenants": TENANTS}}
    overheads = {topic: fill(cluster, topic) for topic in topics}
    with Gateway(cluster.bootstrap_servers, settings) as gateway:
        yield gateway, overheads


@pytest.fixture(scope="module")
def outcome(kafka: EmbeddedCluster) -> Iterator[Outcome]:
    """All consumers at once, until what each group gets has been seen as it should be."""
    topics = (ORDERS, INVOICES, CLICKS, VIEWS, IMAGES)
    readings = {topic: Reading(Curve(), [], [], set()) for topic in topics}
    with running(kafka, *topics, FREE) as (gateway, overheads), ThreadPoolExecutor(len(topics)) as pool:
        worth = {topic: RECORDS[topic][1] * overhead for topic, overhead in overheads.items()}
        groups = {
            "by-bytes": (BYTES_RATE, {topic: worth[topic] for topic in (ORDERS, INVOICES)}),
            "by-messages": (MSGS_RATE, {CLICKS: 1.0, VIEWS: 1.0}),
            "big-records": (BIG_RATE, {IMAGES: worth[IMAGES]}),
        }
        is_over = threading.Event()
        began = time.monotonic()
        tasks = [pool.submit(consume, kafka, gateway, topic, reading, is_over) for topic, reading in readings.items()]
        try:
            all_begun = partial(all_have_come, readings)
            wait_for("the first records of each", all_begun, 120)
            time.sleep(SETTLE_S)
            rates: dict[str, list[float]] = {}

            def look(start: float, end: float) -> dict[str, list[float]]:
                return {
                    name: [readings[topic].arrivals.rate(start, end) * each for topic, each in worths.items()]
                    for name, (_, worths) in groups.items()
                }

            def holds(seen: dict[str, list[float]]) -> bool:
                """Each group in a window of its own: a consumer that had no core spoils those of one."""
                for name, found in seen.items():
                    limit = groups[name][0]
                    if is_near(sum(found), limit) and min(found) > 0.1 * limit:
                        rates.setdefault(name, found)
                return rates.keys() == groups.keys()

            wait_window(look, holds)
            seconds = time.monotonic() - began
            whole = {
                name: (sum(readings[topic].arrivals.sizes[-1] * each for topic, each in worths.items()), seconds)
                for name, (_, worths) in groups.items()
            }
        finally:
            is_over.set()
        for task in tasks:
            task.result()
        waits_of_free = read_free(gateway)
        delayed, not_followed = map(gateway.metric, ("fetches_delayed_total", "answers_not_followed_total"))
        yield Outcome(readings, rates, whole, waits_of_free, delayed, not_followed)


def all_have_come(readings: dict[str, Reading]) -> bool:
    return all(reading.arrivals.times for reading in readings.values())


def assert_at_most(limit: float, came: float, seconds: float) -> None:
    assert came / seconds < most_of(limit, seconds)


@pytest.mark.seed("82.2")
def test_topics_of_a_group_are_read_at_its_bytes_together(outcome: Outcome) -> None:
    print(f"\n{outcome.rates['by-bytes']} of {BYTES_RATE} bytes/s")
    assert_at_most(BYTES_RATE, *outcome.whole["by-bytes"])


@pytest.mark.seed("82.11")
def test_topics_of_a_group_are_read_at_its_messages_together(outcome: Outcome) -> None:
    print(f"\n{outcome.rates['by-messages']} of {MSGS_RATE} messages/s")
    assert_at_most(MSGS_RATE, *outcome.whole["by-messages"])


def test_records_of_a_megabyte_are_read_at_their_groups_rate(outcome: Outcome) -> None:
    print(f"\n{outcome.rates['big-records']} of {BIG_RATE} bytes/s")
    assert_at_most(BIG_RATE, *outcome.whole["big-records"])


def test_consumer_groups_stay_as_they_are(outcome: Outcome) -> None:
    for topic, reading in outcome.readings.items():
        assert reading.errors == []
        assert reading.changes[:2] == ["assigned", "over"]
        assert reading.states == (set() if topic in (CLICKS, VIEWS) else {ConsumerGroupState.STABLE})


def test_a_topic_outside_every_group_is_read_at_once(outcome: Outcome) -> None:
    assert outcome.waits_of_free == []
    assert outcome.delayed > 0
    assert outcome.not_followed == 0


@pytest.mark.full  # gateway/data/session/test_fetches.py; without a limit: clients/test_group_protocols.py
def test_a_share_group_is_delivered_records_within_its_groups_rate(kafka: EmbeddedCluster) -> None:
    harness.CLIENTS["java"].command()  # built, before the time runs
    with running(kafka, JOBS) as (gateway, overheads):
        result = harness.run(
            "java", "share", gateway.bootstrap, topics=[JOBS], group="jobs", count=PARTITIONS * RECORDS[JOBS][0],
            timeout_s=SHARE_S + 10,
        )  # fmt: skip
    arrivals = Curve()
    for count, at in enumerate(result["times_ms"], 1):
        arrivals.add(at / 1000, count * SIZE * overheads[JOBS])
    # The first share group waits for the topic of its states.
    windows = arrivals.windows(arrivals.times[0] + SETTLE_S)
    print(f"\n{windows} of {JOBS_RATE} bytes/s; {result['metrics']['fetch-throttle-time-max']} ms")
    # It fetches only while it is polled and has nothing left: alone it leaves a fifth of the limit unused (measured).
    assert max(windows) > 0.5 * JOBS_RATE
    assert_at_most(JOBS_RATE, arrivals.sizes[-1], arrivals.ended - arrivals.times[0])
    assert 0 < result["metrics"]["fetch-throttle-time-max"] <= 10_000
    assert result["events"] == {}
