# kafka.* properties against a real broker that wants TLS, a certificate and a password: the batch, the stream and the
# questions to brokers are let in by the same ones, and what is wrong with them is one line that gives no secret away.

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway import embedded
from gateway.audit import cli, store
from gateway.audit.addresses import check_reachable
from gateway.audit.batch import job, spark_sources
from gateway.audit.batch.query import AuditQuery, answer_query
from gateway.audit.cluster_access import UntranslatableProperty
from gateway.audit.errors import AuditError
from gateway.audit.local.records import LocalRecords
from gateway.audit.local.topic import TopicSource
from gateway.audit.reconcile import brokers
from gateway.audit.stream import stream
from gateway.audit.stream.stream import StreamPlan
from gateway.embedded import EmbeddedCluster, find_free_port
from tests.audit.records import interval

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka

USER, PASSWORD = "audit", "not-to-be-seen"
TOPIC = "secured-usage"
MECHANISMS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class Secured(NamedTuple):
    """A broker's SASL_SSL listener, and where certificates lie."""

    servers: str
    folder: Path

    def properties(self, mechanism: str, password: str = PASSWORD, authority: str = "own") -> dict[str, str]:
        """As an operator writes them into a file, read as the command reads it."""
        path = self.folder / "client.properties"
        path.write_text(
            "security.protocol=SASL_SSL\n"
            f"sasl.mechanism={mechanism}\n"
            f'sasl.jaas.config={MECHANISMS[mechanism]} required username="{USER}" password="{password}";\n'
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.folder / authority}.crt\n"
            "ssl.keystore.type=PEM\n"
            f"ssl.keystore.location={self.folder / 'own.pem'}\n"
        )
        return cli.read_properties_file(str(path))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    made = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    for name in ("own", "other"):
        files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")]
        subprocess.run([*made.split(), *files], check=True, capture_output=True)
    (folder / "own.pem").write_text((folder / "own.key").read_text() + (folder / "own.crt").read_text())
    port = find_free_port(4)
    kinds = {"PLAINTEXT": port, "CONTROLLER": port + 1, "SASL_PLAINTEXT": port + 2, "SASL_SSL": port + 3}
    listener = "listener.name.sasl_ssl"
    own = {
        "listeners": ",".join(f"{name}://{embedded.HOST}:{at}" for name, at in kinds.items()),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT," + ",".join(
            f"{name}:{name}" for name in kinds if name != "CONTROLLER"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "own.pem"),
        f"{listener}.ssl.client.auth": "required",
        f"{listener}.ssl.truststore.type": "PEM",
        f"{listener}.ssl.truststore.location": str(folder / "own.crt"),
        f"{listener}.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{listener}.plain.sasl.jaas.config": f'{MECHANISMS["PLAIN"]} required user_{USER}="{PASSWORD}";',
        f"{listener}.scram-sha-512.sasl.jaas.config": f"{MECHANISMS['SCRAM-SHA-512']} required;",
    }  # fmt: skip
    with EmbeddedCluster(1, own, port=port, users={USER: PASSWORD}) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(120)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        for seq in range(6):
            producer.produce(TOPIC, interval(seq)[0], partition=seq % 2)
        assert producer.flush(30) == 0
        yield Secured(f"{embedded.HOST}:{port + 3}", folder)


# PLAIN: that it is what a client does with these properties is in gateway/kafka/test_java_properties.py.
@pytest.mark.parametrize("mechanism", [pytest.param("PLAIN", marks=pytest.mark.full), "SCRAM-SHA-512"])
def test_batch_and_stream_and_snapshots_are_let_in(
    spark: SparkSession, secured: Secured, mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "update_rollups", lambda *_: None)  # it asks no broker
    properties = secured.properties(mechanism)
    check_reachable(secured.servers)
    report = job.audit_sources(
        spark, [spark_sources.read_topic(spark, secured.servers, TOPIC, properties)], AuditQuery()
    )
    assert (report.integrity.records, report.rows[0]["offered_bytes"]) == (6, 600)
    local = LocalRecords([TopicSource(secured.servers, TOPIC, properties)])
    assert answer_query(local, AuditQuery()).rows == report.rows
    found = brokers.fetch_snapshot(secured.servers, properties, lambda name: name == TOPIC)
    assert sum(each.end for each in found.topics[TOPIC].partitions.values()) == 6
    tables = store.open_tables(spark, str(tmp_path / "tables"), make=True)
    added = stream.run_stream(
        spark, tables, StreamPlan(secured.servers, TOPIC, properties, str(tmp_path / "checkpoint"))
    )
    assert added["intervals"] == 6
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes()


def test_a_property_that_only_java_has_is_left_to_java(spark: SparkSession, secured: Secured) -> None:
    properties = secured.properties("PLAIN") | {"ssl.keymanager.algorithm": "SunX509"}
    found = spark_sources.read_topic(spark, secured.servers, TOPIC, properties)
    assert found.record_count == 6
    assert [(each["start_offset"], each["end_offset"]) for each in found.description["partitions"]] == [(0, 3), (0, 3)]
    for ask in (
        lambda: TopicSource(secured.servers, TOPIC, properties),
        lambda: brokers.fetch_snapshot(secured.servers, properties, lambda _: True),
    ):
        with pytest.raises(UntranslatableProperty, match=r"^ssl\.keymanager\.algorithm: not supported here; [^\n]*$"):
            ask()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mechanism": "PLAIN", "password": "neither-this"}, r"refuses our credentials \(.*Invalid username or"),
        ({"mechanism": "SCRAM-SHA-512", "password": "neither-this"}, r"refuses our credentials \(.*invalid cred"),
        ({"mechanism": "PLAIN", "authority": "other"}, r"^no TLS with .* ssl.truststore.location has to hold"),
        ({"mechanism": "PLAIN", "authority": "nowhere"}, r"nowhere.crt"),
    ],
)
def test_an_error_is_one_line_without_a_secret(
    spark: SparkSession, secured: Secured, wrong: dict[str, str], said: str, tmp_path: Path
) -> None:
    properties = secured.properties(**wrong)
    tables = store.AuditTables(spark, str(tmp_path / "tables"))  # which nothing is asked of
    plan = StreamPlan(secured.servers, TOPIC, properties, str(tmp_path / "checkpoint"))
    for ask in (
        lambda: spark_sources.read_topic(spark, secured.servers, TOPIC, properties),
        lambda: TopicSource(secured.servers, TOPIC, properties),
        lambda: brokers.fetch_snapshot(secured.servers, properties, lambda _: True),
        lambda: stream.run_stream(spark, tables, plan),
    ):
        with pytest.raises(AuditError) as caught:
            ask()
        text = str(caught.value)
        assert re.search(said, text), text
        assert "\n" not in text
        assert "neither-this" not in text
        assert PASSWORD not in text
