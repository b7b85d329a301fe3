# The groups that came with Kafka 4: consumers that the broker assigns (KIP-848) and share groups (KIP-932), by real
# clients, through the gateway. Their dispatch limits are in tests/integration/limits/test_dispatch_groups.py.

from __future__ import annotations

import time
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

pytestmark = [pytest.mark.clients, pytest.mark.kafka]

PARTITIONS = 6
COUNT = 300
NEW_PROTOCOL = {"group.protocol": "consumer"}
SECONDS = (25.0, 90.0)  # of the members; records come in two fifths of it. A slow machine has a second, longer run
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
    listed = admin.list_consumer_groups().result(120)
    assert listed.errors == []
    return {group.group_id: group.type for group in listed.valid}


def test_members_of_two_libraries_share_a_group_that_the_broker_assigns(proc: None, target: Target, topic: str) -> None:
    for seconds in SECONDS:
        name = f"{topic}-{seconds:.0f}"
        harness.create_topics(target.direct, [name], PARTITIONS)
        config: dict[str, Any] = {"topics": [name], "run": "848", "count": COUNT}
        given = {"group": name, "options": NEW_PROTOCOL, "timeout_s": seconds, **config}
        began = time.monotonic()
        members = {client: Driver(client, "consume", target.bootstrap, **given) for client in MEMBERS}
        try:
            for member in members.values():
                wait_for("a member's connection", lambda pid=member.pid: dials(pid, target), seconds)  # type: ignore[misc]
            produced = harness.run(
                "librdkafka", "produce", target.bootstrap, partitions=PARTITIONS, rate=COUNT / (0.4 * seconds),
                idempotence=True, **config,
            )  # fmt: skip
            in_time = time.monotonic() - began < seconds - 8
            kinds = types(target.bootstrap)
            seen = {client: member.result() for client, member in members.items()}
        finally:
            for member in members.values():
                member.stop()
        read = {client: {i for own in each["partitions"].values() for i in own} for client, each in seen.items()}
        if in_time and all(read.values()):
            break
    assert in_time, "the members' time ran out before all records were produced"
    assert produced["errors"] == {}, produced["first_error"]
    assert kinds[name] == ConsumerGroupType.CONSUMER
    assert set().union(*read.values()) == set(range(COUNT))
    assert all(read.values()), {name: len(numbers) for name, numbers in read.items()}
    assert {name: (each["strangers"], each["events"]) for name, each in seen.items()} == dict.fromkeys(MEMBERS, (0, {}))


def dials(pid: int, target: Target) -> bool:
    own = set(sockets_of(pid))
    return any(connection.inode in own for connection in connections_to(target.ports.values()))


def test_a_share_group_gets_every_record_and_what_it_gives_back_once_more(target: Target, topic: str) -> None:
    # Every leader that knows the topic knows by then where the group begins.
    harness.run("java", "share", target.bootstrap, group=topic, count=0, topics=[topic], run="share")
    name = f"{topic}-share"
    harness.create_topics(target.direct, [name], PARTITIONS)
    where = {"topics": [name], "run": "share"}
    produced = harness.run("java", "produce", target.bootstrap, partitions=PARTITIONS, count=COUNT, **where)
    assert produced["acknowledged"] == COUNT, produced["first_error"]
    share = harness.run("java", "share", target.bootstrap, group=topic, count=COUNT, release_every=RELEASED, **where)
    assert share["events"] == {}
    assert share["strangers"] == 0
    delivered = {times: sorted(numbers) for times, numbers in share["deliveries"].items()}
    assert delivered == {"1": list(range(COUNT)), "2": list(range(0, COUNT, RELEASED))}
