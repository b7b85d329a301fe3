# A controller that refuses connections is tried again at librdkafka's pace, not as fast as it refuses.

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from gateway.control.cluster.metadata import AdminSource
from gateway.kafka.internal_topic import InternalTopic, TopicSpec, TopicUnreachable
from tests.gateway.control.null_broker import NullBroker

MOST_ATTEMPTS = 50  # librdkafka waits for 0.1 s and more between two; without that it makes thousands in a second


def look_at_cluster(client: dict[str, Any]) -> None:
    source = AdminSource(client)
    assert not source._fetch_blocking().ids
    source._admin.client.poll(0.5)


def look_at_topic(client: dict[str, Any]) -> None:
    topic = InternalTopic(client, "t", TopicSpec({}))
    topic.admin.list_topics(timeout=60)
    assert isinstance(topic.lookup_topic(), TopicUnreachable)
    topic.admin.poll(0.5)


@pytest.mark.parametrize("look", [look_at_cluster, look_at_topic])
def test_a_controller_that_refuses_connections_is_not_tried_without_a_pause(
    look: Callable[[dict[str, Any]], None],
) -> None:
    attempts: list[int] = []

    def on_statistics(text: str) -> None:
        attempts.extend(own["connects"] for own in json.loads(text)["brokers"].values() if own["nodeid"] == 2)

    broker = NullBroker()
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # it never listens
        broker.brokers = {1: ("127.0.0.1", broker.port), 2: dead.getsockname()}
        broker.controller = 2
        broker.topics = {"t": [1]}
        try:
            look(
                {
                    "bootstrap.servers": f"127.0.0.1:{broker.port}",
                    "log_level": 0,
                    "statistics.interval.ms": 50,
                    "stats_cb": on_statistics,
                }
            )
        finally:
            broker.close()
    assert 0 < max(attempts) <= MOST_ATTEMPTS
