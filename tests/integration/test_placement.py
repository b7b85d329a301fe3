# Thresholds where topics are: three brokers with topics of one partition each, a broker that goes away, and a partition
# that moves.

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, TopicPartition

from gateway.embedded import Cluster, wait_for
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY
from tests.integration.gateways import Gateway

MB = 1_000_000
DEADLINE_S = 60.0
EXCESS = "broker_overcommitted_bytes_per_second"


@pytest.fixture(scope="module")
def kafka() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


def create(kafka: Cluster, **brokers: list[int]) -> None:
    """Topics with one partition for each of these brokers, which has its only replica."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    new = [NewTopic(name, len(places), replica_assignment=[[on] for on in places]) for name, places in brokers.items()]
    for created in admin.create_topics(new).values():
        created.result(timeout=60)

    def are_led() -> bool:
        topics = admin.list_topics(timeout=10).topics
        return all(name in topics and all(p.leader > 0 for p in topics[name].partitions.values()) for name in brokers)

    wait_for("leaders", are_led, DEADLINE_S)


def put(gateway: Gateway, path: str, value: str) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{gateway.admin}/v1/thresholds/{path}",
        json.dumps({"value": value}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def thresholds(gateway: Gateway) -> Any:
    with urllib.request.urlopen(f"{gateway.admin}/v1/thresholds", timeout=60) as answer:
        return json.load(answer)


def test_thresholds_hold_where_their_topics_are(kafka: Cluster) -> None:
    name = f"p{uuid.uuid4().hex[:8]}_"
    clicks, views, big, other = (name + each for each in ("clicks", "views", "big", "other"))
    create(kafka, **{clicks: [2], views: [1, 2], big: [3], other: [1]})
    settings = {
        "upstream": {"bootstrap_servers": kafka.bootstrap_servers, "metadata_refresh": "500ms"},
        "policies_store": {"topic": f"__{name}policies"},
        "usage_log": {"topic": f"__{name}usage"},
        # All of it together is far more than the total of any broker.
        "thresholds": {TOTAL_KEY: 20 * MB, "topics": {clicks: {TOPIC_KEY: 15 * MB}, big: {TOPIC_KEY: 18 * MB}}},
    }
    with Gateway(kafka.bootstrap_servers, settings, node_ids=3) as gateway:
        wait_for("places", lambda: f'{EXCESS}{{broker="3"}} 0.0' in gateway.metrics(), DEADLINE_S)
        assert put(gateway, f"topics/{views}", "5MB")[0] == 200

        status, said = put(gateway, f"topics/{views}", "6MB")
        assert status == 422
        assert said["errors"][0]["what"].startswith("broker 2: its topics' ")

        kafka.kill(2)
        wait_for(
            "metadata without it", lambda: "broker 2 is not in the cluster's metadata" in gateway.log(), DEADLINE_S
        )
        # The store's own partition gets a new leader, too.
        wait_for("the store", lambda: put(gateway, f"topics/{views}", "6MB")[0] != 503, DEADLINE_S)
        status, said = put(gateway, f"topics/{views}", "6MB")
        assert status == 422, "clicks has no leader, but it is there"
        assert "by 1,000,000 bytes/s" in said["errors"][0]["what"]
        assert put(gateway, f"topics/{other}", "15MB")[0] == 200
        kafka.start(2)

        mover = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        try:
            mover.alter_partition_reassignments({TopicPartition(clicks, 0): [3]})
            wait_for("the move", lambda: gateway.metric(EXCESS, broker="3") == 13 * MB, DEADLINE_S)
        finally:
            mover.close()
        assert "broker 3: its topics' bytes.in.per.sec.threshold sum up to 33,000,000 bytes/s" in gateway.log()
        # While it moves, it counts on both: on the old one, which leads it, and on the new one, its first replica.
        left = {"total": 20 * MB, "explicit": 5 * MB, "excess": 0}
        wait_for("the old broker to be rid of it", lambda: thresholds(gateway)["committed"]["2"] == left, DEADLINE_S)
        assert thresholds(gateway)["topics"][clicks]["value"] == 15 * MB, "what was set stays"
        assert put(gateway, f"topics/{big}", "5MB")[0] == 200
        assert gateway.metric(EXCESS, broker="3") == 0
        assert "broker 3: the topics' bytes.in.per.sec.threshold do not exceed its total any more" in gateway.log()
