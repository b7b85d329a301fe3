# The groups that came with Kafka 4: consumers that the broker assigns (KIP-848) and share groups (KIP-932), by real
# clients, through the gateway. Their dispatch limits are in tests/integration/test_dispatch_groups.py.

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient

from gateway.embedded import wait_for
from tests.clients import harness
from tests.clients.conftest import Target, missing
from tests.clients.harness import Driver
from tests.clients.processes import connections_to, sockets_of

pytestmark = [pytest.mark.clients, pytest.mark.kafka, pytest.mark.timeout(180)]

PARTITIONS = 6
COUNT = 300
NEW_PROTOCOL = {"group.protocol": "consumer"}
MEMBERS = ("java", "librdkafka")
RELEASED = 10  # every tenth record is given back once


@pytest.fixture
def topic(target: Target) -> str:
    name = f"groups-{uuid.uuid4().hex[:8]}"
    harness.create_topics(target.direct, [name], PARTITIONS)
    try:
        for client in MEMBERS:
            harness.CLIENTS[client].command()
    except harness.Unavailable as reason:
        missing(str(reason))
    return name


def types(bootstrap: str) -> dict[str, ConsumerGroupType]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    listed = admin.list_consumer_groups().result(20)
    assert listed.errors == []
    return {group.group_id: group.type for group in listed.valid}


def test_members_of_two_libraries_share_a_group_that_the_broker_assigns(proc: None, target: Target, topic: str) -> None:
    config: dict[str, Any] = {"topics": [topic], "run": "848", "group": topic, "options": NEW_PROTOCOL, "count": COUNT}
    members = {name: Driver(name, "consume", target.bootstrap, timeout_s=25.0, **config) for name in MEMBERS}
    try:
        for member in members.values():
            wait_for("a member's connection", lambda pid=member.pid: dials(pid, target), 20)  # type: ignore[misc]
        produced = harness.run(
            "librdkafka", "produce", target.bootstrap, topics=[topic], run="848", partitions=PARTITIONS, count=COUNT,
            rate=30.0, idempotence=True,
        )  # fmt: skip
        assert types(target.bootstrap)[topic] == ConsumerGroupType.CONSUMER
        seen = {name: member.result() for name, member in members.items()}
    finally:
        for member in members.values():
            member.stop()
    assert produced["errors"] == {}, produced["first_error"]
    read = {name: {i for numbers in each["partitions"].values() for i in numbers} for name, each in seen.items()}
    assert set().union(*read.values()) == set(range(COUNT))
    assert all(read.values()), {name: len(numbers) for name, numbers in read.items()}
    assert {name: (each["strangers"], each["events"]) for name, each in seen.items()} == dict.fromkeys(MEMBERS, (0, {}))


def dials(pid: int, target: Target) -> bool:
    own = set(sockets_of(pid))
    return any(connection.inode in own for connection in connections_to(target.ports.values()))


def test_a_share_group_gets_every_record_and_what_it_gives_back_once_more(target: Target, topic: str) -> None:
    where = {"topics": [topic], "run": "share"}
    produced = harness.run("java", "produce", target.bootstrap, partitions=PARTITIONS, count=COUNT, **where)
    assert produced["acknowledged"] == COUNT, produced["first_error"]
    share = harness.run("java", "share", target.bootstrap, group=topic, count=COUNT, release_every=RELEASED, **where)
    assert share["events"] == {}
    assert share["strangers"] == 0
    delivered = {times: sorted(numbers) for times, numbers in share["deliveries"].items()}
    assert delivered == {"1": list(range(COUNT)), "2": list(range(0, COUNT, RELEASED))}
