# Thresholds where topics are, and as long as they are: three brokers with topics of one partition each, a broker that
# goes away, a partition that moves, and topics that are deleted and made anew.

from __future__ import annotations

import functools
import json
import os
import signal
import urllib.error
import urllib.request
import uuid
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient, TopicPartition

from gateway.embedded import EmbeddedCluster, wait_for
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY
from tests.integration.gateways import Gateway, fleet

MB = 1_000_000
DEADLINE_S = 60.0
EXCESS = "broker_overcommitted_bytes_per_second"


@pytest.fixture
def kafka(kafka3: EmbeddedCluster) -> EmbeddedCluster:
    return kafka3


def create(kafka: EmbeddedCluster, **brokers: list[int]) -> None:
    """Topics with one partition for each of these brokers, which has its only replica."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    new = [NewTopic(name, len(places), replica_assignment=[[on] for on in places]) for name, places in brokers.items()]
    for created in admin.create_topics(new).values():
        created.result(timeout=60)

    def are_led() -> bool:
        topics = admin.list_topics(timeout=10).topics
        return all(name in topics and all(p.leader > 0 for p in topics[name].partitions.values()) for name in brokers)

    wait_for("leaders", are_led, DEADLINE_S)


def set_threshold(admin: AdminClient, topic: str, value: int) -> None:
    entry = ConfigEntry(TOPIC_KEY, str(value), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(timeout=60)


def delete(admin: AdminClient, topic: str) -> None:
    admin.delete_topics([topic])[topic].result(timeout=60)
    wait_for(f"{topic} to be gone", lambda: topic not in admin.list_topics(timeout=10).topics, DEADLINE_S)


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


@pytest.mark.full  # the next one, and gateway/control/policies/test_policy_service.py
def test_thresholds_hold_where_their_topics_are(kafka: EmbeddedCluster) -> None:
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

        kafka.kill_broker(2)
        wait_for(
            "metadata without it", lambda: "broker 2 is not in the cluster's metadata" in gateway.log(), DEADLINE_S
        )
        # The store's own partition gets a new leader, too.
        wait_for("the store", lambda: put(gateway, f"topics/{views}", "6MB")[0] != 503, DEADLINE_S)
        status, said = put(gateway, f"topics/{views}", "6MB")
        assert status == 422, "clicks has no leader, but it is there"
        assert "by 1,000,000 bytes/s" in said["errors"][0]["what"]
        assert put(gateway, f"topics/{other}", "15MB")[0] == 200
        kafka.start_broker(2)

        mover = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        try:
            mover.alter_partition_reassignments({TopicPartition(clicks, 0): [3]})
            wait_for("the move", lambda: gateway.metric(EXCESS, broker="3") == 13 * MB, DEADLINE_S)
        finally:
            mover.close()
        assert "broker 3: its topics' bytes.in.per.sec.threshold sum up to 33,000,000 bytes/s" in gateway.log()
        # While it moves, it counts on both: on the old one, which leads it, and on the new one, its first replica.
        left = {
            "total": 20 * MB, "explicit": 5 * MB, "reserved": 0, "excess": 0,
            "utilization": 0.25, "utilization_text": "25%",
        }  # fmt: skip
        wait_for("the old broker to be rid of it", lambda: thresholds(gateway)["committed"]["2"] == left, DEADLINE_S)
        assert thresholds(gateway)["topics"][clicks]["value"] == 15 * MB, "what was set stays"
        assert put(gateway, f"topics/{big}", "5MB")[0] == 200
        assert gateway.metric(EXCESS, broker="3") == 0
        assert "broker 3: the topics' bytes.in.per.sec.threshold do not exceed its total any more" in gateway.log()


def value_of(gateway: Gateway, topic: str) -> float | None:
    found = thresholds(gateway)["topics"].get(topic)
    return None if found is None else float(found["value"])


def has(gateway: Gateway, topic: str, value: float | None) -> bool:
    return value_of(gateway, topic) == value


def ends(gateway: Gateway, topic: str) -> list[tuple[str, str]]:
    """Who removed the topic's threshold, and by which way: each time."""
    with urllib.request.urlopen(f"{gateway.admin}/v1/policies/history", timeout=60) as answer:
        changes = json.load(answer)["changes"]
    return [(each["who"], each["door"]) for each in changes if each["name"] == topic and each["new"] is None]


def restart_control(gateway: Gateway) -> None:
    former = gateway.child("gateway.control")
    os.kill(former, signal.SIGKILL)
    wait_for("another control", lambda: gateway.child("gateway.control") not in (0, former), DEADLINE_S)
    wait_for("it to be ready", gateway.ready, DEADLINE_S)
    wait_for("the policies", lambda: put(gateway, "total", "20MB")[0] == 200, DEADLINE_S)


@pytest.mark.seed("V1.6", "V1.7")
def test_a_threshold_lives_as_long_as_its_topic(kafka: EmbeddedCluster) -> None:
    """Through a move, a broker's absence, and another control; until the topic is deleted, wherever that is done."""
    name = f"p{uuid.uuid4().hex[:8]}_"
    clicks, made, later = (name + each for each in ("clicks", "made", "later"))
    create(kafka, **{clicks: [2]})
    settings = {
        "upstream": {"bootstrap_servers": kafka.bootstrap_servers, "metadata_refresh": "500ms"},
        "policies_store": {"topic": f"__{name}policies"},
        "usage_log": {"topic": f"__{name}usage"},
        "thresholds": {TOTAL_KEY: 20 * MB},
    }
    direct = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    with fleet(kafka, 2, settings=settings) as (first, second):
        admin = AdminClient({"bootstrap.servers": first.bootstrap, "log_level": 0})

        def everywhere(topic: str, value: float | None) -> None:
            for gateway in (first, second):
                wait_for(f"{value} of {topic}", functools.partial(has, gateway, topic, value), DEADLINE_S)

        set_threshold(admin, clicks, 5 * MB)
        admin.create_topics([NewTopic(made, 1, 1, config={TOPIC_KEY: str(4 * MB)})])[made].result(timeout=60)
        everywhere(clicks, 5 * MB)
        everywhere(made, 4 * MB)

        mover = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        try:
            mover.alter_partition_reassignments({TopicPartition(clicks, 0): [3]})
        finally:
            mover.close()
        wait_for("the move", lambda: thresholds(second)["committed"]["3"]["explicit"] >= 5 * MB, DEADLINE_S)
        kafka.kill_broker(3)
        wait_for("metadata without it", lambda: "broker 3 is not in the cluster's" in second.log(), DEADLINE_S)
        restart_control(second)
        kafka.start_broker(3)
        wait_for("its leader", lambda: direct.list_topics(clicks, timeout=10).topics[clicks].partitions[0].leader == 3)
        everywhere(clicks, 5 * MB)
        assert ends(first, clicks) == []

        # Deleted and made anew behind the gateways' back, and one of them was started since the threshold was set.
        delete(direct, clicks)
        create(kafka, **{clicks: [1]})
        everywhere(clicks, None)
        assert ends(first, clicks) == ends(second, clicks) == [("itself", "topic deleted")], "by one of them, once"
        set_threshold(admin, clicks, 6 * MB)
        everywhere(clicks, 6 * MB)

        delete(admin, made)
        assert value_of(first, made) is None, "with the answer"
        everywhere(made, None)
        assert ends(second, made) == [("User:ANONYMOUS", "topic deleted")]
        admin.create_topics([NewTopic(made, 1, 1)])[made].result(timeout=60)
        wait_for("it to be there", lambda: made in direct.list_topics(timeout=10).topics, DEADLINE_S)
        assert value_of(second, made) is None

        # A topic that isn't there yet counts on each broker, by whichever door its threshold comes.
        status, said = put(first, f"topics/{later}", "14MB")
        assert status == 200
        assert any(later in warning for warning in said["warnings"])
        assert said["committed"]["2"]["reserved"] == 14 * MB
        status, said = put(first, f"topics/{later}", "15MB")
        assert status == 422
        assert said["errors"][0]["what"].startswith("broker 1: its topics' ")
        status, _ = put(first, f"topics/{clicks}", "7MB")
        assert status == 422, "or the two would exceed the total once later is created"
        create(kafka, **{later: [2]})
        wait_for("the topic", lambda: put(first, f"topics/{clicks}", "7MB")[0] == 200, DEADLINE_S)
        assert value_of(first, clicks) == 7 * MB
