# Clients stay behind the gateway when leaders move. A broker that is no leader any more names the new one with its
# address in its answer (KIP-951); a client that sees the broker's own address there goes straight to it from then on.
#
# Two moves: node 2 is killed (its connections break, clients ask for metadata), and, once it is back, gets its
# partitions again (the old leader lives and answers NOT_LEADER_OR_FOLLOWER with the hint: the case that matters).
# Sent to the brokers directly (CLIENTS_TARGET=direct), the same run is the control: then every client must be seen.

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, PartitionMetadata

from gateway import embedded
from gateway.embedded import wait_for
from tests.clients import harness
from tests.clients.conftest import Target, missing
from tests.clients.gateways import Gateway
from tests.clients.harness import Driver
from tests.clients.processes import Watch

pytestmark = [pytest.mark.clients, pytest.mark.kafka]

CLIENTS = ("franz-go", "librdkafka", "java")
KILLED = 2
PARTITIONS = 6  # two are led by each broker
RATE = 20.0
# Of several requests in flight a new leader may take the second and miss the first. librdkafka then begins a new epoch,
# and whatever another partition got while its answer was lost is written again (librdkafka #4953, with or without a
# gateway). The others stay in their epoch.
OPTIONS: dict[str, dict[str, Any]] = {"librdkafka": {"max.in.flight": 1}}
# Records must be under way during both moves, which take 25 s on an idle machine; a slow one has a second, longer run.
SECONDS = (55, 150)


@pytest.fixture
def prepared() -> None:
    """Building takes longer than the brokers may be kept waiting."""
    try:
        for client in CLIENTS:
            harness.CLIENTS[client].command()
    except harness.Unavailable as reason:
        missing(str(reason))


@pytest.fixture
def drivers() -> Iterator[dict[tuple[str, str], Driver]]:
    running: dict[tuple[str, str], Driver] = {}
    yield running
    for driver in running.values():
        driver.stop()


def broker_ports(cluster: embedded.EmbeddedCluster) -> set[int]:
    return {broker.port for broker in cluster.brokers.values()}


def broker_pids(cluster: embedded.EmbeddedCluster) -> set[int]:
    return {broker.pid for broker in cluster.brokers.values() if broker.is_running}


def partitions(bootstrap: str, topics: list[str]) -> list[PartitionMetadata]:
    found = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=10).topics
    return [partition for name in topics for partition in found[name].partitions.values()]


def give_back(bootstrap: str, topics: list[str] | None = None) -> None:
    """Each partition of these topics, or of all, to the first of its replicas, as a broker that was away expects it."""
    places = None
    if topics is not None:
        places = [TopicPartition(name, partition) for name in topics for partition in range(PARTITIONS)]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.elect_leaders(ElectionType.PREFERRED, places).result(120)


def test_after_a_leader_change_only_the_gateway_is_connected_to_the_brokers(
    proc: None,
    prepared: None,
    request: pytest.FixtureRequest,
    cluster: embedded.EmbeddedCluster,
    target: Target,
    drivers: dict[tuple[str, str], Driver],
) -> None:
    gateway: Gateway | None = request.getfixturevalue("gateway") if target.name == "gateway" else None
    through = gateway.pids if gateway else set[int]
    direct, us = cluster.bootstrap_servers, {os.getpid()}  # the test asks the brokers itself

    with Watch(broker_ports(cluster), lambda: through() | broker_pids(cluster) | us) as watch:
        for seconds in SECONDS:
            count, mark = int(RATE) * seconds, uuid.uuid4().hex[:6]
            topics = {client: f"leaders-{client}-{mark}" for client in CLIENTS}
            names = list(topics.values())
            harness.create_topics(direct, names, PARTITIONS, 3, config={"min.insync.replicas": "2"})
            for client, topic in topics.items():
                given: dict[str, Any] = {"topics": [topic], "run": mark, "count": count, "timeout_s": seconds + 105.0}
                drivers[client, "consume"] = Driver(client, "consume", target.bootstrap, group=topic, **given)
                given |= {"partitions": PARTITIONS, "rate": RATE, "batch_records": 4, "acks": -1, "idempotence": True}
                given["options"] = OPTIONS.get(client, {})
                drivers[client, "produce"] = Driver(client, "produce", target.bootstrap, **given)
            move_leaders_away_and_back(cluster, names)
            in_time = all(driver.running for driver in drivers.values())
            results = {key: driver.result() for key, driver in drivers.items()}
            give_back(direct)  # Kafka does so minutes later, in the middle of another test
            if in_time:
                break
        assert in_time, "the records ran out before the leaders came back"

    for client, topic in topics.items():
        produced, consumed = results[client, "produce"], results[client, "consume"]
        assert (produced["acknowledged"], produced["errors"]) == (count, {}), f"{client}: {produced['first_error']}"
        log = harness.read_back(direct, [topic], client, mark)
        assert harness.judge(produced, log).clean, f"{client}: {harness.judge(produced, log)}"
        numbers = {number for seen in consumed["partitions"].values() for number in seen}
        assert numbers == set(range(count)), f"{client}: {len(numbers)} of {count} consumed; {consumed['events']}"
    if gateway is None:
        assert watch.strangers.keys() >= {driver.pid for driver in drivers.values()}
        return
    assert watch.strangers == {}
    for node, broker in cluster.brokers.items():
        assert watch.seen[broker.port] & gateway.pids(), f"the gateway was never connected to broker {node}"


def move_leaders_away_and_back(cluster: embedded.EmbeddedCluster, names: list[str]) -> None:
    direct = cluster.bootstrap_servers

    def sent() -> int:
        return min(harness.end_offsets(direct, name, PARTITIONS) for name in names)

    def led_by_the_first() -> bool:
        give_back(direct, names)
        found = partitions(direct, names)
        assert {each.replicas[0] for each in found} == set(cluster.brokers)
        return all(each.leader == each.replicas[0] for each in found)

    wait_for("every producer's first records", lambda: sent() > 3 * RATE, 120, every_s=0.5)
    wait_for("each broker to lead", led_by_the_first, 120, every_s=0.5)
    cluster.kill_broker(KILLED)
    try:
        survivors = ",".join(f"{embedded.HOST}:{b.port}" for b in cluster.brokers.values() if b.is_running)
        others = [node for node in cluster.brokers if node != KILLED]
        wait_for("new leaders", lambda: all(p.leader in others for p in partitions(survivors, names)), 120, every_s=0.5)
        reached = sent()
        wait_for("producers to go on without it", lambda: sent() > reached + 3 * RATE, 120, every_s=0.5)
    finally:
        cluster.start_broker(KILLED)
    wait_for("node 2 to catch up", lambda: all(len(p.isrs) == 3 for p in partitions(direct, names)), 120, every_s=0.5)
    wait_for("the old leaders", led_by_the_first, 120, every_s=0.5)


def test_the_watch_sees_a_client_that_goes_to_the_broker_itself(
    proc: None, cluster: embedded.EmbeddedCluster, drivers: dict[tuple[str, str], Driver]
) -> None:
    topic = f"direct-{uuid.uuid4().hex[:6]}"
    harness.create_topics(cluster.bootstrap_servers, [topic], 1)
    with Watch(broker_ports(cluster), lambda: broker_pids(cluster) | {os.getpid()}) as watch:
        driver = Driver("librdkafka", "produce", cluster.bootstrap_servers, topics=[topic], count=600, rate=10.0)
        drivers["librdkafka", "produce"] = driver
        wait_for("the client to be seen", lambda: driver.pid in watch.strangers, 50)
    assert "drive_librdkafka" in watch.strangers[driver.pid]
