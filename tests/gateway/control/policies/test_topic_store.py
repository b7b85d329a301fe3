# The store where reading is forbidden for a time, and where nobody knows whether a change was made. The consumer says
# what librdkafka's does against a real broker: an error once, and the end once, each again only for a new assignment.
# All else is in tests/integration/fleet/test_policy_store.py.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from gateway.control.policies import topic_store
from gateway.control.policies.store import InDoubtError
from gateway.control.policies.topic_store import TopicStore
from gateway.control.policies.transactions import RetryableFailure
from gateway.kafka import topic_consumer
from gateway.kafka.internal_topic import InternalTopic, TopicPresent
from policies.definitions.policy_records import ChangeSource, PolicyRecord
from policies.definitions.policy_values import PolicyKey, PolicyOperation

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
        self.said: list[Event | Mock] = []
        self.is_closed = False

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned.append(partitions[0].offset)
        self.say()

    def close(self) -> None:
        self.is_closed = True

    def say(self) -> None:
        end, denied = KafkaError._PARTITION_EOF, KafkaError.TOPIC_AUTHORIZATION_FAILED
        self.said.append(Event(end) if self.may_read else Event(denied, "denied"))

    def poll(self, timeout_s: float) -> Event | Mock | None:
        return self.said.pop(0) if self.said else None


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    reader = Reader()
    monkeypatch.setattr(topic_consumer, "Consumer", lambda _: reader)
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


def test_a_change_that_shows_after_all_is_logged(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lose_answer(records: Iterable[PolicyRecord], deadline: float) -> None:
        for offset, record in enumerate(records):
            said = {"error": None, "key": record.key, "value": record.value, "headers": None, "offset": offset}
            reader.said.append(Mock(**{name: Mock(return_value=value) for name, value in said.items()}))
        raise RetryableFailure("no answer")

    monkeypatch.setattr(topic_store, "PolicyTransactions", lambda *_: Mock(commit=lose_answer))
    monkeypatch.setattr(topic_store, "WRITE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(TopicStore, "_catch_up", lambda *_: None)
    caplog.set_level("INFO")
    store = TopicStore(SERVERS, "policies", {})
    store.poll_changes(0)
    views = PolicyKey.of_topic("views")
    with pytest.raises(InDoubtError):
        store.write_change(
            lambda policies: policies.alter_policies([PolicyOperation(views, 1)]), ChangeSource("User:alice", "kafka")
        )
    store.poll_changes(0)
    assert store.policies.changes == {views: 1}
    assert caplog.messages[-1] == "policies: version 1, 1 values, by User:alice (kafka)"


def test_a_recreated_topic_is_read_once_there_can_be_another_consumer(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ["old"]
    monkeypatch.setattr(InternalTopic, "lookup_topic", lambda _: TopicPresent(ids[-1], frozenset({0})))
    monkeypatch.setattr(InternalTopic, "is_lookup_due", True)
    store = TopicStore(SERVERS, "policies", {})
    store.poll_changes(0)
    ids.append("new")
    refusal = KafkaException(KafkaError(KafkaError._INVALID_ARG, "ssl.ca.location failed"))
    monkeypatch.setattr(topic_consumer, "Consumer", Mock(side_effect=refusal))
    for _ in range(2):
        store.poll_changes(0)
        assert store.problem == "topic policies can't be read: ssl.ca.location failed"
    fresh = Reader()
    monkeypatch.setattr(topic_consumer, "Consumer", lambda _: fresh)
    store.poll_changes(0)
    assert (store.problem, len(reader.assigned), reader.is_closed, len(fresh.assigned)) == ("", 1, True, 1)
