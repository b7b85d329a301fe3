# Bytes that a real broker refuses: they count in the sender's own quota and in nobody else's limits, whoever ends the
# connection. Mallory has an account and may write nothing; alice may.

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from gateway.embedded import EmbeddedCluster, wait_for
from tests.gateway.data import play
from tests.integration.gateways import Gateway, create_topic, end_offsets, total
from tests.integration.security.test_sasl_attacks import sign_in
from tests.integration.wire import Wire

USERS = {"gateway": "gateway-secret", "mallory": "mallory-secret", "alice": "alice-secret", "bob": "bob-secret"}
ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:gateway",
}
TOTAL, EACH = 100_000, 20_000  # thresholds in bytes per second
QUOTA = 200_000  # bob's
FLOOD = 100_000  # bytes of a batch
TIMES = 40
WATCHED_S = 12.0  # two ticks of the meters and more
CORRUPT_MESSAGE = 2


class Stage(NamedTuple):
    kafka: EmbeddedCluster
    gateway: Gateway


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with EmbeddedCluster(1, ACLS, users=USERS) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        allowed = [
            AclBinding(
                ResourceType.TOPIC, "open-", ResourcePatternType.PREFIXED, f"User:{user}", "*", AclOperation.WRITE,
                AclPermissionType.ALLOW,
            )
            for user in ("alice", "bob")
        ]  # fmt: skip
        for future in admin.create_acls(allowed).values():
            future.result(120)
        settings = {
            "upstream": {
                "bootstrap_servers": kafka.sasl_bootstrap_servers,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "gateway",
                "sasl.password": USERS["gateway"],
            },
            "thresholds": {
                "total.bytes.in.per.sec.threshold": TOTAL,
                "topics": {topic: {"bytes.in.per.sec.threshold": EACH} for topic in TOPICS},
            },
            "client_quotas": [{"user": "bob", "producer_byte_rate": QUOTA}],
        }
        for topic in (*TOPICS, "open-bob"):
            create_topic(kafka, topic)
        with Gateway(kafka.sasl_bootstrap_servers, settings) as gateway:
            yield Stage(kafka, gateway)


def signed_in(stage: Stage, user: str) -> Wire:
    wire = Wire(stage.gateway.broker_port(1))
    sign_in(wire, f"\0{user}\0{USERS[user]}".encode())
    return wire


def by_broker(wire: Wire) -> None:
    assert wire.ends()


def by_fin(wire: Wire) -> None:
    pass


def by_reset(wire: Wire) -> None:
    time.sleep(0.01)  # a reset throws away what the gateway has not read
    wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


ENDS = {"broker": by_broker, "fin": by_fin, "reset": by_reset}


def topic_of(end: str) -> str:
    return f"open-{end}"


TOPICS = (*map(topic_of, ENDS), "open-alice")


def test_acks_0_of_a_client_that_may_not_write_spends_nobodys_limit(stage: Stage) -> None:
    """Whoever ends its connections: each way has a topic of its own, in which alice is never held up."""
    own = {topic_of(end): [0] for end in ENDS}
    taken = {(topic, 0): (0, None) for topic in own}

    def flood() -> bool:
        for end, ending in ENDS.items():
            frame = play.request(1, {topic_of(end): [0]}, acks=0, values=(bytes(FLOOD),))
            for _ in range(TIMES // 4):
                with signed_in(stage, "mallory") as wire:
                    wire.send(frame)
                    ending(wire)
        counted = stage.gateway.counted()
        return all(total(counted.get(topic, {}), "unacknowledged").bytes >= TIMES * FLOOD for topic in own)

    with signed_in(stage, "alice") as alice:
        assert alice.produce(play.request(1, own))[1] == taken
        wait_for("the flood to have gone to the broker", flood, 180)
        until = time.monotonic() + WATCHED_S
        sent = 1
        while time.monotonic() < until:
            assert alice.produce(play.request(1, own))[1] == taken
            sent += 1
            time.sleep(0.2)
    assert [end_offsets(stage.kafka, topic) for topic in own] == [sent] * len(ENDS), "nothing of mallory's got in"


def test_acks_0_of_a_client_that_may_write_counts_though_it_reconnects(stage: Stage) -> None:
    topic = "open-alice"
    frame = play.request(1, {topic: [0]}, acks=0, values=(bytes(FLOOD),))

    def is_over() -> bool:
        with signed_in(stage, "alice") as wire:
            wire.send(frame)
        with signed_in(stage, "alice") as wire:
            ((code, _),) = wire.produce(play.request(1, {topic: [0]}))[1].values()
        return code != 0

    wait_for("the threshold to reject", is_over, 120)


def test_batches_with_a_wrong_checksum_count_in_their_clients_quota(stage: Stage) -> None:
    """A broker reads them whole before it refuses them, and charges its own quota for them."""
    frame = bytearray(play.request(1, {"open-bob": [0]}, values=(bytes(50_000),)))
    frame[-20] ^= 1
    count = 20
    with signed_in(stage, "bob") as wire:
        begun = time.monotonic()
        for _ in range(count):
            ((code, _),) = wire.produce(bytes(frame))[1].values()
            assert code == CORRUPT_MESSAGE
        took = time.monotonic() - begun
    assert took >= (count - 1) * len(frame) / QUOTA - 1.0  # a second's worth may have been saved
    assert end_offsets(stage.kafka, "open-bob") == 0
