# The gateway's own topics after somebody has deleted and recreated them, with their partition at another broker than
# before: its leader epochs begin at 0 again, and librdkafka's consumer, to whom a lower one is old, asks the former
# leader for ever. So each reader goes on with another consumer.

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress

import pytest
import trio
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition

from gateway.control.policies.topic_store import TopicStore
from gateway.embedded import EmbeddedCluster, wait_for
from gateway.storage.snapshots import SnapshotReader
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_values import PolicyKey, PolicyOperation
from policies.fleet.keys import total_key
from policies.fleet.shares import LimitDemand
from tests.integration.fleet import test_exchange as exchange_play

WAIT_S = 60.0


class MovingTopic:
    """A topic of one partition without copies, which is at broker 2, then at 1, then made anew at 2."""

    def __init__(self, kafka: EmbeddedCluster) -> None:
        self.name = f"recreated-{uuid.uuid4().hex[:8]}"
        self._servers = kafka.bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": self._servers})
        self.create()

    def create(self) -> None:
        new = NewTopic(self.name, 1, replica_assignment=[[2]], config={"cleanup.policy": "compact"})

        def is_created() -> bool:
            with suppress(KafkaException):  # until each broker has forgotten the former one
                self._admin.create_topics([new])[self.name].result(30)
                return True
            return False

        wait_for("the topic", is_created, WAIT_S)

    def move(self) -> None:
        client = KafkaAdminClient(bootstrap_servers=self._servers)
        client.alter_partition_reassignments({TopicPartition(self.name, 0): [1]})
        client.close()
        wait_for("another leader", lambda: self._leader() == 1, WAIT_S)

    def recreate(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(30)
        self.create()

    def write_tombstone(self, key: str) -> None:
        producer = Producer({"bootstrap.servers": self._servers})
        producer.produce(self.name, key=key)
        producer.flush(30)

    def _leader(self) -> int:
        found = self._admin.list_topics(self.name, timeout=30).topics[self.name].partitions
        return found[0].leader if found else -1


@pytest.fixture
def topic(kafka3: EmbeddedCluster) -> MovingTopic:
    return MovingTopic(kafka3)


async def test_gateways_hear_each_other_again(kafka3: EmbeddedCluster, topic: MovingTopic) -> None:
    a, b = (exchange_play.Gateway(kafka3, topic.name, name) for name in "ab")
    async with exchange_play.running(a, b):
        await a.ready(1)
        await b.ready(1)
        await trio.to_thread.run_sync(topic.move)
        a.uses = {total_key(1): LimitDemand(100.0)}
        await b.until("usage", lambda: b.knows(total_key(1)) == [100.0])
        await trio.to_thread.run_sync(topic.recreate)
        a.uses = {total_key(1): LimitDemand(200.0)}
        await b.until("usage by the new topic", lambda: b.knows(total_key(1)) == [200.0])
        await a.ready(1)
        await b.ready(1)


def test_policies_are_read_again(kafka3: EmbeddedCluster, topic: MovingTopic) -> None:
    key, source = PolicyKey.of_topic("clicks"), ChangeSource("User:alice", "kafka")
    store = TopicStore({"bootstrap.servers": kafka3.bootstrap_servers}, topic.name, {})

    def until(what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what}: {store.problem}"
            store.poll_changes(0.1)

    until("empty topic", lambda: store.is_loaded)
    topic.move()
    store.write_change(lambda policies: policies.alter_policies([PolicyOperation(key, 5.0)]), source)
    topic.recreate()
    until("known policies in the new topic", lambda: store.policies.version == 2 and not store.problem)
    store.close()


def test_snapshots_are_read_again(kafka3: EmbeddedCluster, topic: MovingTopic) -> None:
    reader = SnapshotReader({"bootstrap.servers": kafka3.bootstrap_servers}, topic.name)

    def until_removed(broker: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            assert time.monotonic() < deadline, f"nothing of broker {broker}"
            topic.write_tombstone(broker)
            if any(number == int(broker) for number, _ in reader.poll_snapshots(0.2)):
                return

    until_removed("1")
    topic.move()
    until_removed("2")
    topic.recreate()
    until_removed("3")
    reader.close()
