# What is said of a topic that may not be read, and a stream of records that are no snapshots. All else is in
# tests/integration/storage/test_volume_agent.py.

from __future__ import annotations

import itertools
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from gateway.kafka import topic_consumer
from gateway.kafka.internal_topic import InternalTopic, TopicPresent
from gateway.storage.snapshot import encode_snapshot
from gateway.storage.snapshots import MAX_RECORDS, SnapshotReader
from policies.storage import Volume, VolumeSnapshot


def test_a_topic_that_may_not_be_read_is_read_again_when_something_was_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It can be looked up all the same, and librdkafka says only once that it can't be read."""
    caplog.set_level("INFO")
    said: list[Mock | None] = []
    monkeypatch.setattr(topic_consumer, "Consumer", lambda _: Mock(poll=lambda _: said.pop(0) if said else None))
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


def test_records_that_are_no_snapshots_hold_up_nothing_however_many_come(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(key: bytes, value: bytes) -> Mock:
        where = {"partition": lambda: 0, "offset": lambda: 0}
        return Mock(error=lambda: None, key=lambda: key, value=lambda: value, **where)

    snapshot = VolumeSnapshot(1, 0.0, (Volume(1, "/data", 100, 50),))
    polled: list[None] = []

    def poll(_: float) -> Mock:
        polled.append(None)
        assert len(polled) <= 3 * MAX_RECORDS
        return next(stream)

    stream = itertools.chain([record(b"1", encode_snapshot(snapshot))], itertools.repeat(record(b"2", b"no snapshot")))
    monkeypatch.setattr(topic_consumer, "Consumer", lambda _: Mock(poll=poll))
    monkeypatch.setattr(InternalTopic, "poll_lookup", lambda _: None)
    reader = SnapshotReader({"bootstrap.servers": "127.0.0.1:1"}, "volumes")
    assert reader.poll_snapshots(0) == [(1, snapshot)]
    assert reader.poll_snapshots(0) == []
    assert reader.invalid_records >= MAX_RECORDS


def test_a_recreated_topic_is_read_once_there_can_be_another_consumer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    ids, old, fresh = ["old"], Mock(poll=lambda _: None), Mock(poll=lambda _: None)
    monkeypatch.setattr(InternalTopic, "poll_lookup", lambda _: TopicPresent(ids[-1], frozenset({0})))
    monkeypatch.setattr(topic_consumer, "Consumer", lambda _: old)
    reader = SnapshotReader({"bootstrap.servers": "127.0.0.1:1"}, "volumes")
    reader.poll_snapshots(0)
    ids.append("new")
    refusal = KafkaException(KafkaError(KafkaError._INVALID_ARG, "ssl.ca.location failed"))
    monkeypatch.setattr(topic_consumer, "Consumer", Mock(side_effect=refusal))
    for _ in range(2):
        reader.poll_snapshots(0)
    assert caplog.messages == ["volume snapshots: topic volumes can't be read (ssl.ca.location failed)"]
    monkeypatch.setattr(topic_consumer, "Consumer", lambda _: fresh)
    reader.poll_snapshots(0)
    assert (old.assign.call_count, old.close.call_count, fresh.assign.call_count) == (1, 1, 1)
