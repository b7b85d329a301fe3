# Topics are described while a broker is dead, whichever it is and whoever was taken for the controller.

from __future__ import annotations

from functools import partial

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from gateway.embedded import EmbeddedCluster, wait_for
from gateway.kafka.describe import describe_topic
from tests.integration.gateways import create_topic

pytestmark = pytest.mark.kafka

CLIENTS = 6  # each has its own idea of who the controller is
BACK_S = 60.0


def test_the_death_of_a_broker_stops_no_client_from_describing_topics(kafka3: EmbeddedCluster) -> None:
    topic = create_topic(kafka3, "described")
    clients = [AdminClient({"bootstrap.servers": kafka3.bootstrap_servers, "log_level": 0}) for _ in range(CLIENTS)]

    def is_described(client: AdminClient) -> bool:
        try:
            return bool(describe_topic(client, topic, 1.0).topic_id)
        except (KafkaException, TimeoutError):
            return False

    for client in clients:
        wait_for("an answer", partial(is_described, client), BACK_S)
    kafka3.kill_broker(3)
    try:
        for client in clients:
            wait_for("an answer with broker 3 dead", partial(is_described, client), BACK_S)
    finally:
        kafka3.start_broker(3)
