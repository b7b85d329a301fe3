# What is said of a topic that may not be read. All else is in tests/integration/storage/test_volume_agent.py.

from __future__ import annotations

from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError

from gateway.kafka.internal_topic import InternalTopic, TopicPresent
from gateway.storage import snapshots
from gateway.storage.snapshots import SnapshotReader


def test_a_topic_that_may_not_be_read_is_read_again_when_something_was_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It can be looked up all the same, and librdkafka says only once that it can't be read."""
    caplog.set_level("INFO")
    said: list[Mock | None] = []
    monkeypatch.setattr(snapshots, "Consumer", lambda _: Mock(poll=lambda _: said.pop(0) if said else None))
    monkeypatch.setattr(InternalTopic, "poll_lookup", lambda _: TopicPresent("id", frozenset({0})))
    reader = SnapshotReader({"bootstrap.servers": "127.0.0.1:1"}, "volumes")
    for code, text in (
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "topic volumes can't be read (denied)"),
        (KafkaError._PARTITION_EOF, "topic volumes is read now"),
    ):
        error = KafkaError(code, "denied")
        said.append(Mock(error=lambda error=error: error, partition=lambda: 0))
        for _ in range(3):
            reader.poll_snapshots(0)
        assert caplog.messages == [f"volume snapshots: {text}"]
        caplog.clear()
