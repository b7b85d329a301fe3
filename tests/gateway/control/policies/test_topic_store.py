# The store's view of its topic where reading is forbidden for a time, with a consumer that says what librdkafka's does
# against a real broker: the error once, and the end once, each again only for a new assignment. All else is in
# tests/integration/fleet/test_policy_store.py.

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError, TopicPartition

from gateway.control.policies import topic_store
from gateway.control.policies.topic_store import TopicStore
from gateway.kafka.internal_topic import InternalTopic, TopicPresent

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}
DENIED = "topic policies can't be read: denied"


class Event:
    """What a consumer says instead of a message."""

    def __init__(self, code: int, text: str = "") -> None:
        self._error = KafkaError(code, text)

    def error(self) -> KafkaError:
        return self._error

    def offset(self) -> int:
        return 7


class Reader:
    """A consumer of a topic in which nothing is written."""

    def __init__(self) -> None:
        self.may_read = True
        self.assigned: list[int] = []
        self.said: list[Event] = []

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned.append(partitions[0].offset)
        self.say()

    def say(self) -> None:
        end, denied = KafkaError._PARTITION_EOF, KafkaError.TOPIC_AUTHORIZATION_FAILED
        self.said.append(Event(end) if self.may_read else Event(denied, "denied"))

    def poll(self, timeout_s: float) -> Event | None:
        return self.said.pop(0) if self.said else None


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    reader = Reader()
    monkeypatch.setattr(topic_store, "Consumer", lambda _: reader)
    monkeypatch.setattr(InternalTopic, "lookup_topic", lambda _: TopicPresent("id", frozenset({0})))
    monkeypatch.setattr(InternalTopic, "find_config_fault", lambda _: "")
    return reader


@pytest.mark.parametrize("is_behind_the_end", [False, True])
def test_once_reading_is_allowed_again_changes_are_though_nobody_else_writes(
    reader: Reader, is_behind_the_end: bool
) -> None:
    store = TopicStore(SERVERS, "policies", {})
    store.poll_changes(0)
    assert (store.is_loaded, store.problem) == (True, "")
    if is_behind_the_end:
        reader.say()
    reader.may_read = False
    reader.say()
    for _ in range(3):
        store.poll_changes(0)
        assert store.problem == DENIED
    reader.may_read = True
    for _ in range(2):
        store.poll_changes(0)
    assert store.problem == ""
    assert {*reader.assigned[1:]} == {7}, "nothing is read twice"
    looks = len(reader.assigned)
    store.poll_changes(0)
    assert len(reader.assigned) == looks
