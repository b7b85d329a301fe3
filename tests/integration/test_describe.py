# Topics are described while a broker is dead, whichever it is and whoever was taken for the controller.

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from gateway.embedded import Cluster, wait_for
from gateway.kafka.describe import describe_topic
from tests.integration.gateways import create_topic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

CLIENTS = 6  # each has its own idea of who the controller is
BACK_S = 60.0


def test_the_death_of_a_broker_stops_no_client_from_describing_topics() -> None:
    with Cluster(3) as cluster:
        topic = create_topic(cluster, "described")
        clients = [
            AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}) for _ in range(CLIENTS)
        ]

        def is_described(client: AdminClient) -> bool:
            try:
                return bool(describe_topic(client, topic, 1.0).topic_id)
            except (KafkaException, TimeoutError):
                return False

        for client in clients:
            wait_for("an answer", lambda client=client: is_described(client), BACK_S)
        cluster.kill(3)
        for client in clients:
            wait_for("an answer with broker 3 dead", lambda client=client: is_described(client), BACK_S)
