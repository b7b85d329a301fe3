# Clients that speak TLS to the gateway in front of a real Kafka: librdkafka and Java, with certificates of their own.
# Each library without: clients/test_tls_listeners.py; SASL that passes through to the broker: test_tls_brokers.py.

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from gateway.embedded import EmbeddedCluster, wait_for
from tests.certificates import Authority
from tests.integration.gateways import Gateway, Sum, create_topic, end_offsets, log_bytes, read_topic

COUNT = 200


def listener(authority: Authority, name: str = "gateway", **more: Any) -> dict[str, Any]:
    """A section `listener` with a certificate of that name."""
    certificate, key = authority.sign(name)
    return {"ssl.keystore.location": str(certificate), "ssl.key.location": str(key), **more}


@pytest.fixture(scope="module")
def strict(kafka: EmbeddedCluster, authority: Authority) -> Iterator[Gateway]:
    """Two workers; clients must have certificates of that CA."""
    auth = {"ssl.client.auth": "required", "ssl.truststore.location": str(authority.certificate)}
    with Gateway(kafka.bootstrap_servers, {"listener": listener(authority, **auth), "workers": 2}) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def client(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("client")


def librdkafka(gateway: Gateway, authority: Authority, client: tuple[Path, Path] | None = None) -> dict[str, Any]:
    """Properties of a client that trusts the gateway's CA and checks its name."""
    mine = {} if client is None else {"ssl.certificate.location": str(client[0]), "ssl.key.location": str(client[1])}
    return {
        "bootstrap.servers": gateway.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.certificate),
        "log_level": 2,
        **mine,
    }


def produce(topic: str, properties: dict[str, Any], values: list[bytes]) -> None:
    lost: list[KafkaError] = []
    producer = Producer({**properties, "enable.idempotence": True, "linger.ms": 1})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: lost.extend((error,) if error else ()))
    assert producer.flush(60) == 0
    assert lost == []


def test_librdkafka_produces_and_consumes(
    kafka: EmbeddedCluster, strict: Gateway, authority: Authority, client: tuple[Path, Path]
) -> None:
    topic = create_topic(kafka, "tls-librdkafka", partitions=3)
    properties = librdkafka(strict, authority, client)
    values = [b"%d" % i + bytes(3000) for i in range(COUNT)]
    produce(topic, properties, values)
    mine = {key: value for key, value in properties.items() if key.startswith(("security.", "ssl."))}
    assert sorted(read_topic(kafka, topic, strict.bootstrap, **mine)) == sorted(values)
    strict.settle(topic, Sum(log_bytes(kafka, topic), end_offsets(kafka, topic)), "accepted")


def test_clients_are_told_of_brokers_at_the_same_listeners(
    kafka: EmbeddedCluster, strict: Gateway, authority: Authority, client: tuple[Path, Path]
) -> None:
    brokers = AdminClient(librdkafka(strict, authority, client)).list_topics(timeout=30).brokers.values()
    assert {broker.port for broker in brokers} == {strict.broker_port(node_id) for node_id in kafka.brokers}


@pytest.mark.full  # without a certificate of its own: clients/test_tls_listeners.py
def test_java_produces(
    kafka: EmbeddedCluster, strict: Gateway, authority: Authority, client: tuple[Path, Path], tmp_path: Path
) -> None:
    topic = create_topic(kafka, "tls-java", partitions=2)
    keystore = tmp_path / "client-keystore.pem"
    keystore.write_text(client[1].read_text() + client[0].read_text())
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SSL\nssl.keystore.type=PEM\nssl.truststore.type=PEM\n"
        f"ssl.keystore.location={keystore}\nssl.truststore.location={authority.certificate}\n"
        f"bootstrap.servers={strict.bootstrap}\n"
    )
    said = kafka.run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", "20000", "--record-size", "500", "--throughput", "-1"),
        *("--command-config", str(config)),
    )
    assert "20000 records sent" in said
    assert end_offsets(kafka, topic) == 20_000
    strict.settle(topic, Sum(log_bytes(kafka, topic), 20_000), "accepted")


def test_a_client_with_no_certificate_or_a_strangers_or_no_tls_is_turned_away_and_counted(
    strict: Gateway, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").sign("mallory")
    plain: dict[str, Any] = {"bootstrap.servers": strict.bootstrap, "log_level": 2}
    for properties in (librdkafka(strict, authority), librdkafka(strict, authority, stranger), plain):
        before = strict.metric("tls_handshakes_failed_total")

        def is_counted(properties: dict[str, Any] = properties, before: float = before) -> bool:
            with pytest.raises(KafkaException):
                AdminClient(properties | {"socket.timeout.ms": 5000}).list_topics(timeout=3)
            return strict.metric("tls_handshakes_failed_total") > before

        wait_for("it to be counted", is_counted)
    said = strict.log()
    assert "no TLS handshake: the client sent no certificate, and ssl.client.auth is required" in said
    assert "no TLS handshake: the client's certificate is not accepted: " in said
    assert "no TLS handshake: a Kafka client without TLS" in said
