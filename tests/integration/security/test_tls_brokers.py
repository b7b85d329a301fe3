# Brokers that speak TLS: client certificates, SASL that passes through, sessions, certificates that are renewed under
# load, and the settings that are wrong.

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from gateway import embedded
from gateway.channel import BrokerTable, UpstreamBroker
from gateway.data.connecting.dialling import BrokerDialler
from gateway.data.connecting.handshakes import TlsWorkspace
from gateway.data.shared.uplink import ControlUplink
from gateway.embedded import EmbeddedCluster, wait_for
from gateway.tls.broker_tls import parse_broker_tls
from tests.certificates import Authority
from tests.gateway.data.play import Play
from tests.integration.gateways import Gateway, Sum, create_topic, end_offsets, log_bytes, read_topic

COUNT = 200
USERS = 'user_admin="admin-secret" user_alice="alice-secret"'
HOST = "127.0.0.1"
API_VERSIONS = struct.pack(">ihhih2s", 12, 18, 0, 5, 2, b"me")


class Secure:
    """A broker that has listeners with TLS as well: `ssl` wants client certificates, `sasl_ssl` passwords."""

    def __init__(self, cluster: EmbeddedCluster, authority: Authority, ssl_port: int, sasl_ssl_port: int) -> None:
        self.cluster = cluster
        self.authority = authority
        self.ssl, self.sasl_ssl = f"{HOST}:{ssl_port}", f"{HOST}:{sasl_ssl_port}"
        self.trusting = {"security.protocol": "SSL", "ssl.ca.location": str(authority.certificate)}

    def properties(self, name: str = "gateway") -> dict[str, str]:
        """With a certificate of that name."""
        certificate, key = self.authority.sign(name)
        return {**self.trusting, "ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    authority = Authority(tmp_path_factory.mktemp("brokers-ca"))
    certificate, key = authority.sign("broker")
    keystore = authority.folder / "broker-keystore.pem"
    keystore.write_text(key.read_text() + certificate.read_text())
    first = embedded.find_free_port(4)
    listeners = {"PLAINTEXT": first, "CONTROLLER": first + 1, "SSL": first + 2, "SASL_SSL": first + 3}
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    overrides = {
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,"
        + ",".join(f"{name}:{name}" for name in listeners if name != "CONTROLLER"),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{login} {USERS};",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
    }
    with EmbeddedCluster(1, overrides, port=first) as cluster:
        yield Secure(cluster, authority, first + 2, first + 3)


def upstream(servers: str, properties: dict[str, str], **more: Any) -> dict[str, Any]:
    # 3 s by default, TLS included: a machine that stands still may take as long.
    reached = {"bootstrap_servers": servers, "connect_timeout": "30s", **properties}
    return {"upstream": reached, "internal_topics": "none", **more}


@pytest.fixture(scope="module")
def gateway(secure: Secure) -> Iterator[Gateway]:
    """Plain clients, brokers that want certificates."""
    with Gateway(secure.ssl, upstream(secure.ssl, secure.properties())) as gateway:
        yield gateway


def produce(bootstrap: str, topic: str, values: list[bytes], **properties: Any) -> None:
    lost: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2, "linger.ms": 1, **properties})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: lost.extend((error,) if error else ()))
    assert producer.flush(60) == 0
    assert lost == []


def test_clients_produce_and_consume_with_a_certificate_of_the_gateways(secure: Secure, gateway: Gateway) -> None:
    topic = create_topic(secure.cluster, "brokers-tls", max_message_bytes="10000000")
    values = [b"%d" % i + bytes(3000) for i in range(COUNT)] + [bytes([i]) * 5_000_000 for i in range(3)]
    produce(gateway.bootstrap, topic, values, **{"message.max.bytes": 10_000_000, "enable.idempotence": True})
    assert read_topic(secure.cluster, topic, gateway.bootstrap) == values
    gateway.settle(topic, Sum(log_bytes(secure.cluster, topic), end_offsets(secure.cluster, topic)), "accepted")
    assert gateway.metric("upstream_tls_handshakes_failed_total") == 0


def test_requests_before_a_half_close_are_answered(gateway: Gateway) -> None:
    # The broker gets TLS's goodbye and the end of the stream behind them.
    with socket.create_connection((HOST, gateway.broker_port(1)), 30) as sock, sock.makefile("rb") as reader:
        sock.sendall(API_VERSIONS)
        _read_answer(reader)
        sock.sendall(3 * API_VERSIONS)
        sock.shutdown(socket.SHUT_WR)
        for _ in range(3):
            _read_answer(reader)
        assert reader.read(1) == b""


def _read_answer(reader: Any) -> None:
    (size,) = struct.unpack(">i", reader.read(4))
    assert len(reader.read(size)) == size


def test_passwords_of_clients_pass_through_tls_on_both_sides_and_the_principal_is_the_brokers(secure: Secure) -> None:
    certificate, key = secure.authority.sign("listener")
    admin = {"sasl.mechanism": "PLAIN", "sasl.username": "admin", "sasl.password": "admin-secret"}
    listener = {
        "ssl.keystore.location": str(certificate),
        "ssl.key.location": str(key),
        "ssl.client.auth": "requested",
        "ssl.truststore.location": str(secure.authority.certificate),
    }
    settings = upstream(
        secure.sasl_ssl, {**secure.trusting, "security.protocol": "SASL_SSL", **admin}, listener=listener
    )
    alice = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "alice-secret"}
    with Gateway(secure.sasl_ssl, settings) as gateway:
        topic = create_topic(secure.cluster, "brokers-sasl-ssl")
        clients = {**secure.properties("bob"), "security.protocol": "SASL_SSL", **alice}
        produce(gateway.bootstrap, topic, [b"x" * 100] * COUNT, **clients)
        wait_for(
            "all to be counted",
            lambda: (
                gateway.metric("client_bytes_total", principal="User:alice", outcome="accepted")
                == log_bytes(secure.cluster, topic)
            ),
        )
        clients["bootstrap.servers"] = gateway.bootstrap
        for wrong, why in (
            ({"sasl.password": "wrong"}, "Authentication failed: Invalid username or password"),
            ({"sasl.mechanism": "SCRAM-SHA-256"}, "the broker does not offer this SASL mechanism"),
        ):

            def is_logged(wrong: dict[str, str] = wrong, why: str = why) -> bool:
                with pytest.raises(KafkaException):
                    AdminClient({**clients, **wrong, "log_level": 2}).list_topics(timeout=3)
                return f"connection closed: authentication failed: {why}" in gateway.log()

            wait_for("the log to say so", is_logged)
        wait_for(
            "all to be counted",
            lambda: (
                gateway.metric("authentications_failed_total")
                == gateway.metric("disconnects_total", cause="unauthenticated")
                >= 2
            ),
        )


def test_the_gateways_own_clients_show_its_certificate(secure: Secure) -> None:
    # The listener takes no client without one: metadata, internal topics, policies, disks and the usage log come
    # through it or not at all.
    topic = create_topic(secure.cluster, "brokers-own", partitions=2)
    storage = {"check_interval": "1s", "hard": {"type": "MinFreeBytes", "level": 1}}
    settings = {"upstream": {"bootstrap_servers": secure.ssl, **secure.properties("own")}, "storage": storage}
    with Gateway(secure.ssl, settings) as gateway:
        produce(gateway.bootstrap, topic, [b"x" * 100] * COUNT)
        gateway.settle(topic, Sum(log_bytes(secure.cluster, topic), COUNT), "accepted")
        gateway.stop()  # the last interval is published as well
        rows = [row for record in gateway.wait_published(secure.cluster) for row in record["rows"]]
        assert sum(row["messages"] for row in rows if row["topic"] == topic) == COUNT
        made = AdminClient({"bootstrap.servers": secure.cluster.bootstrap_servers}).list_topics(timeout=30).topics
        assert {"__produce_gateway_usage", "__produce_gateway_policies"} <= made.keys()


def test_what_the_gateways_own_clients_lack_is_said(secure: Secure) -> None:
    with Gateway(secure.ssl, upstream(secure.ssl, secure.trusting), wait=False) as gateway:
        wait_for("a line", lambda: "it wants a certificate (" in gateway.log())
        assert f"({secure.ssl}: it wants a certificate (" in gateway.log()
        assert not gateway.ready()


async def test_kafka_takes_up_the_sessions_that_it_gave(secure: Secure) -> None:
    # Each of its network threads takes up its own alone; there are two here, which have connections in turn.
    play = Play(upstream_tls=parse_broker_tls(secure.trusting), upstream_connect_timeout=30.0)
    host, _, port = secure.sasl_ssl.rpartition(":")
    play.world.cluster.set_brokers(BrokerTable((), (UpstreamBroker(1, host, int(port)),)))
    dialling = BrokerDialler(play.world, ControlUplink(), TlsWorkspace())
    seen = []
    for _ in range(6):
        dialled = await dialling.dial_broker(1)
        assert dialled is not None
        assert dialled.secured is not None
        speaking, course = dialled.secured
        with dialled.sock, trio.fail_after(30):
            (data,) = speaking.encrypt([API_VERSIONS])
            dialled.sock.sendall(data)
            while True:
                await trio.lowlevel.wait_readable(dialled.sock)
                try:
                    assert speaking.recv(65_536)
                except BlockingIOError:
                    continue
                break
            course.on_first_bytes(speaking)
            seen.append(speaking.is_resumed)
    assert seen == [False, False, True, True, True, True]


def test_certificates_are_renewed_under_load_without_an_error(secure: Secure) -> None:
    properties = secure.properties("renewed")
    files = [Path(properties[key]) for key in ("ssl.certificate.location", "ssl.key.location")]
    topic = create_topic(secure.cluster, "brokers-renewed")
    with Gateway(secure.ssl, upstream(secure.ssl, properties)) as gateway:
        lost: list[KafkaError] = []
        standing = Producer({"bootstrap.servers": gateway.bootstrap, "log_level": 2})
        for round_ in range(3):
            for made, path in zip(secure.authority.sign(f"renewed-{round_}"), files, strict=True):
                path.with_suffix(".new").write_bytes(made.read_bytes())
                path.with_suffix(".new").rename(path)
            said = round_ + 1
            for _ in range(COUNT):
                standing.produce(topic, b"x" * 100, on_delivery=lambda e, _: lost.extend((e,) if e else ()))
            wait_for("the renewed certificate", lambda want=said: _renewed(gateway, topic) >= want)  # type: ignore[misc]
        assert standing.flush(60) == 0
        assert lost == []
        assert gateway.metric("upstream_tls_handshakes_failed_total") == 0
        assert gateway.metric("upstream_failed_total") == 0


def _renewed(gateway: Gateway, topic: str) -> int:
    """How often the gateway has said that it took new files; a new connection makes it look."""
    produce(gateway.bootstrap, topic, [b"new"])
    return gateway.log().count("new connections to brokers use the certificates that are in the files now")


# --- wrong settings ---------------------------------------------------------------------------------------------------


def check(folder: Path, servers: str, properties: dict[str, str]) -> subprocess.CompletedProcess[str]:
    path = folder / "gw.yaml"
    path.write_text(yaml.safe_dump({"upstream": {"bootstrap_servers": servers, **properties}}))
    command = [sys.executable, "-m", "gateway", "check", "--connect", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def test_check_connects_to_every_broker(secure: Secure, tmp_path: Path) -> None:
    done = check(tmp_path, secure.ssl, secure.properties())
    assert done.returncode == 0, done.stderr
    assert f"connected  {secure.ssl}: answers" in done.stdout
    assert f"connected  broker 1 ({secure.ssl}): answers" in done.stdout


def test_check_says_what_is_wrong(secure: Secure, tmp_path: Path) -> None:
    plain = secure.cluster.bootstrap_servers
    other = {**secure.trusting, "ssl.ca.location": str(Authority(tmp_path, "other").certificate)}
    for servers, properties, said in (
        (plain, secure.trusting, "it does not speak TLS (security.protocol must be PLAINTEXT or SASL_PLAINTEXT there"),
        (secure.ssl, {}, "it speaks TLS (security.protocol must be SSL or SASL_SSL there)"),
        (secure.ssl, other, "its certificate is not signed by a CA in ssl.ca.location"),
        (secure.ssl, secure.trusting, "it wants a certificate ("),
    ):
        done = check(tmp_path, servers, properties)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert f"upstream: {servers}: " in line
        assert said in line


def test_the_log_says_of_a_plain_setting_that_the_broker_speaks_tls(secure: Secure) -> None:
    with Gateway(secure.ssl, upstream(secure.ssl, {}), wait=False) as gateway:
        wait_for("a line", lambda: "does not answer" in gateway.log())
        assert f"({secure.ssl}: it speaks TLS (security.protocol must be SSL or SASL_SSL there))" in gateway.log()
        wait_for("a client to be let in", lambda: gateway.listens(gateway.port))
        with socket.create_connection((HOST, gateway.port), 30) as sock:
            sock.sendall(API_VERSIONS)
            assert sock.recv(1) == b""
        wait_for("the worker's line", lambda: "connection closed: it speaks TLS" in gateway.log())


def test_the_log_says_of_tls_that_the_broker_speaks_none(secure: Secure) -> None:
    plain = secure.cluster.bootstrap_servers
    with Gateway(plain, upstream(plain, secure.trusting), wait=False) as gateway:
        wait_for("a line", lambda: "does not answer" in gateway.log())
        assert f"({plain}: it does not speak TLS (" in gateway.log()
        wait_for("a client to be let in", lambda: gateway.listens(gateway.port))
        with socket.create_connection((HOST, gateway.port), 30) as sock:
            sock.sendall(API_VERSIONS)
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        wait_for("the worker's line", lambda: "no TLS: it closed the connection at the first byte" in gateway.log())
        wait_for("it to be counted", lambda: gateway.metric("upstream_tls_handshakes_failed_total") > 0)
