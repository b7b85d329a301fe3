# Two listeners at once in front of a real Kafka of three brokers: plain with a port per broker, and TLS with server
# names (SNI) on one port. The clients check the names in a wildcard certificate.

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from gateway import embedded
from gateway.embedded import EmbeddedCluster, wait_for
from gateway.tls.server_names import NAME_FAULT_REASONS
from tests.certificates import SERVER, Authority
from tests.integration.gateways import Gateway, create_topic, end_offsets

COUNT = 100
BOOTSTRAP = "kafka.test"
NAMES = (BOOTSTRAP, *(f"broker-{node_id}.kafka.test" for node_id in (1, 2, 3)))


class TwoListeners(Gateway):
    """`internal` is plain at `port`, as everywhere else; `external` is at `external_port`."""

    def __init__(self, kafka: EmbeddedCluster, authority: Authority) -> None:
        internal = embedded.find_free_port(5)
        self.external_port = embedded.find_free_port()
        certificate, key = authority.sign("gateway", names=f"{SERVER},DNS:{BOOTSTRAP},DNS:*.kafka.test")
        external = {
            "port": self.external_port,
            "ssl.keystore.location": str(certificate),
            "ssl.key.location": str(key),
            "sni": {
                "bootstrap_address": BOOTSTRAP,
                "advertised_broker_address_pattern": "broker-$(node_id).kafka.test",
            },
        }
        super().__init__(
            kafka.bootstrap_servers,
            {"listeners": {"internal": {"port": internal}, "external": external}, "workers": 2},
            node_ids=3,
        )
        self.internal = f"{embedded.HOST}:{internal}"
        self.external = f"{BOOTSTRAP}:{self.external_port}"

    def refused(self, reason: str) -> float:
        return self.metric("server_names_refused_total", reason=reason)


@pytest.fixture(scope="module")
def gateway(kafka3: EmbeddedCluster, authority: Authority) -> Iterator[TwoListeners]:
    """It has never seen broker 3, when it starts."""
    kafka3.stop_broker(3)
    try:
        gateway = TwoListeners(kafka3, authority)
        with gateway:
            kafka3.start_broker(3)
            wait_for("the gateway to see broker 3", lambda: "external: broker 3: broker-3.kafka.test" in gateway.log())
            yield gateway
    finally:
        if not kafka3.brokers[3].is_running:
            kafka3.start_broker(3)


def test_at_the_other_listener_brokers_have_ports(kafka3: EmbeddedCluster, gateway: TwoListeners) -> None:
    topic = create_topic(kafka3, "sni-internal", 3)
    plain: dict[str, Any] = {"bootstrap.servers": gateway.internal, "log_level": 2}
    admin, port = AdminClient(plain), int(gateway.internal.rpartition(":")[2])
    places = {node_id: f"{embedded.HOST}:{port + 1 + node_id}" for node_id in (1, 2, 3)}

    def told() -> dict[int, str]:
        return {each.id: f"{each.host}:{each.port}" for each in admin.list_topics(timeout=30).brokers.values()}

    wait_for("all brokers", lambda: told() == places)
    producer = Producer(plain)
    for _ in range(COUNT):
        producer.produce(topic, b"x")
    assert producer.flush(60) == 0
    assert end_offsets(kafka3, topic) == COUNT
    assert gateway.metric("listener_connections_total", listener="internal") > 0


def greet(gateway: TwoListeners, name: str | None) -> str:
    """What ends a connection with that server name: the alert, or "" where only the connection does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((embedded.HOST, gateway.external_port), 30) as sock:
        try:
            with context.wrap_socket(sock, server_hostname=name) as client:
                client.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")  # ApiVersions, version 0
                return "" if client.recv(1) else "closed"
        except ssl.SSLError as error:
            return error.reason or ""
        except ConnectionResetError:
            return "reset"


def test_names_that_are_nobodys_are_refused_by_the_alert_and_counted(gateway: TwoListeners) -> None:
    assert [greet(gateway, name) for name in ("kafka.test", "broker-2.kafka.test", "BROKER-3.kafka.test")] == [""] * 3
    assert greet(gateway, "broker-x.kafka.test") == "TLSV1_UNRECOGNIZED_NAME"
    assert greet(gateway, None) == "TLSV1_UNRECOGNIZED_NAME"
    wait_for("both to be counted", lambda: all(gateway.refused(reason) > 0 for reason in NAME_FAULT_REASONS))
    assert "server name 'broker-x.kafka.test' is neither kafka.test nor one like broker-$(node_id)" in gateway.log()
    assert "the client sent no server name (SNI)" in gateway.log()


def test_a_broker_that_is_not_there_is_no_fault_of_the_name(gateway: TwoListeners) -> None:
    # An alert would be final for Java clients; the broker may come in a moment.
    assert greet(gateway, "broker-99.kafka.test") in ("reset", "closed")
    wait_for("a line about it", lambda: "broker 99 is not known" in gateway.log())


def test_a_client_that_begins_with_an_address_is_told_in_the_log(gateway: TwoListeners, authority: Authority) -> None:
    before = gateway.refused("no_server_name")
    by_address: dict[str, Any] = {
        "bootstrap.servers": f"{embedded.HOST}:{gateway.external_port}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.certificate),
        "log_level": 2,
    }

    def is_counted() -> bool:
        with pytest.raises(KafkaException):
            AdminClient(by_address).list_topics(timeout=3)
        return gateway.refused("no_server_name") > before

    wait_for("it to be counted", is_counted)
