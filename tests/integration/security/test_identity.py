# Who clients are, from a real client to the accounts of a real gateway: by the certificate that they show, and by the
# address that a proxy before the gateway gives.

from __future__ import annotations

import contextlib
import socket
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from gateway.embedded import EmbeddedCluster, wait_for
from protocol import api
from tests.certificates import Authority
from tests.gateway.data.play import other_request
from tests.integration.gateways import Gateway, Sum, create_topic, end_offsets, log_bytes

COUNT = 50
RULES = r"RULE:^CN=(producer-[0-9]+)$/$1@EXAMPLE/L, DEFAULT"
ASKED = other_request(1, key=api.API_VERSIONS)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedCluster, authority: Authority) -> Iterator[Gateway]:
    """Two workers; a certificate is required, and connections from 127.0.0.2 come through a proxy."""
    certificate, key = authority.sign("gateway")
    listener = {
        "ssl.keystore.location": str(certificate),
        "ssl.key.location": str(key),
        "ssl.client.auth": "required",
        "ssl.truststore.location": str(authority.certificate),
        "ssl.principal.mapping.rules": RULES,
        "proxy_protocol": {"from": ["127.0.0.2"]},
    }
    quotas = [{"user": "producer-7@example", "producer_byte_rate": "100KB"}]
    settings = {
        "listener": listener,
        "workers": 2,
        "client_quotas": quotas,
        "limits": {"max_connections_per_address": 20},
    }
    with Gateway(kafka.bootstrap_servers, settings) as gateway:
        yield gateway


def properties(gateway: Gateway, authority: Authority, name: str) -> dict[str, Any]:
    certificate, key = authority.sign(name)
    return {
        "bootstrap.servers": gateway.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.certificate),
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
        "log_level": 2,
    }


@pytest.mark.parametrize(
    ("name", "principal"), [("producer-7", "User:producer-7@example"), ("Somebody Else", "User:CN=Somebody Else")]
)
def test_bytes_are_those_of_the_certificates_principal(
    kafka: EmbeddedCluster, gateway: Gateway, authority: Authority, name: str, principal: str
) -> None:
    topic = create_topic(kafka, f"identity-{name.partition(' ')[0].lower()}")
    producer = Producer(properties(gateway, authority, name))
    for _ in range(COUNT):
        producer.produce(topic, b"x" * 1000)
    assert producer.flush(60) == 0
    assert end_offsets(kafka, topic) == COUNT
    gateway.settle(topic, Sum(log_bytes(kafka, topic), COUNT), "accepted")
    wait_for("the metric", lambda: gateway.metric("client_bytes_total", principal=principal, outcome="accepted") > 0)
    records = gateway.wait_published(kafka, complete=False)
    found = {row["principal"] for record in records for row in record["rows"] if row["topic"] == topic}
    assert found == {principal}


def test_a_quota_of_the_certificates_principal_holds(
    kafka: EmbeddedCluster, gateway: Gateway, authority: Authority
) -> None:
    topic = create_topic(kafka, "identity-quota")
    for name in ("producer-8", "producer-7"):
        producer = Producer(properties(gateway, authority, name))
        producer.produce(topic, b"x")
        assert producer.flush(60) == 0
    wait_for("the quota", lambda: gateway.metric("client_quota_limit", user="producer-7@example") == 100_000)
    assert gateway.metric("client_quota_limit", user="producer-8@example") == 0


# --- through a proxy --------------------------------------------------------------------------------------------------


def through_proxy(gateway: Gateway, source: str, first: bytes = b"") -> socket.socket:
    """A connection as a proxy at 127.0.0.2 makes it for a client at `source`."""
    header = b"PROXY TCP4 %s 198.51.100.1 5000 9092\r\n" % source.encode()
    sock = socket.create_connection(("127.0.0.1", gateway.port), source_address=("127.0.0.2", 0), timeout=30)
    sock.sendall(header + first)
    return sock


def served(authority: Authority, client: tuple[Path, Path], sock: socket.socket) -> bool:
    """Whether a request on it is answered."""
    context = authority.client_context(client)
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        try:
            secure = context.wrap_socket(sock, server_hostname="localhost", do_handshake_on_connect=False)
        except OSError:  # it was reset already; Python leaves its half-made SSLSocket to the garbage collector
            return False
    with secure, contextlib.suppress(OSError):
        secure.do_handshake()
        secure.sendall(ASKED)
        return len(secure.recv(4)) == 4
    return False


def test_a_client_behind_a_proxy_is_named_by_its_own_address(gateway: Gateway, authority: Authority) -> None:
    sock = through_proxy(gateway, "192.0.2.7", b"GET / HTTP/1.1\r\n\r\n")
    with sock, contextlib.suppress(ConnectionResetError):
        assert sock.recv(100) == b""
    wait_for("the line", lambda: "192.0.2.7:5000: no TLS handshake: an HTTP request" in gateway.log())
    assert served(authority, authority.sign("producer-1"), through_proxy(gateway, "192.0.2.7"))


def test_clients_behind_a_proxy_are_limited_each(gateway: Gateway, authority: Authority) -> None:
    client = authority.sign("producer-2")
    context = authority.client_context(client)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            sock = stack.enter_context(through_proxy(gateway, "192.0.2.8"))
            secure = stack.enter_context(context.wrap_socket(sock, server_hostname="localhost"))
            secure.sendall(ASKED)
            (size,) = struct.unpack(">i", secure.recv(4))
            assert size > 0
        assert not served(authority, client, through_proxy(gateway, "192.0.2.8"))
        assert served(authority, client, through_proxy(gateway, "192.0.2.9"))
        wait_for("the count", lambda: gateway.metric("connections_refused_total", limit="address") == 1)
    wait_for("it to be let in again", lambda: served(authority, client, through_proxy(gateway, "192.0.2.8")))


def test_clients_that_come_without_a_proxy_are_served_as_well(gateway: Gateway, authority: Authority) -> None:
    assert AdminClient(properties(gateway, authority, "producer-3")).list_topics(timeout=30).brokers
