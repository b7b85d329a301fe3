# Batch questions by a Spark Connect server: a process of its own, as on a cluster or at a vendor's, without a JVM on
# this side. Needs what `pip install 'pyspark[connect]'` adds, which `make env` doesn't install: pandas would cost each
# start of PySpark half a second. Without it the test is skipped.

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from confluent_kafka import Producer

from gateway import embedded
from gateway.audit.addresses import check_remote
from gateway.audit.errors import AuditError
from gateway.audit.spark import connector
from gateway.embedded import find_free_port, wait_for
from tests.audit.records import Row, interval
from tests.integration.gateways import create_topic

if TYPE_CHECKING:
    from gateway.embedded import EmbeddedCluster

SPARK_HOME = Path(pyspark.__file__).parent
LINES = [
    line
    for seq in range(60)
    for line in interval(seq, [Row(bytes=10), Row(outcome="rejected", reason="fence", bytes=5)], final=seq == 59)
]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Its address, as SPARK_REMOTE has it."""
    for package in ("pandas", "grpc", "grpc_status"):
        pytest.importorskip(package)
    port = find_free_port()
    jars = connector.provide_jars([connector.KAFKA_CONNECTOR, connector.DELTA_LAKE], pyspark.__version__)
    settings = {
        "spark.connect.grpc.binding.address": embedded.HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.ui.enabled": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--jars", ",".join(map(str, jars))]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    own = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": embedded.HOST, "PYSPARK_PYTHON": sys.executable}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = embedded.spawn_process(command, env=os.environ | own, **quiet)
    try:
        wait_for("the server", lambda: _listens(port), 120)
        yield f"sc://{embedded.HOST}:{port}"
    finally:
        embedded.reap_process(process)


def _listens(port: int) -> bool:
    try:
        socket.create_connection((embedded.HOST, port), 5).close()
    except OSError:
        return False
    return True


def _audit(*args: str, remote: str | None = None) -> str:
    return _run(*args, "--format", "json", remote=remote)


def _run(*args: str, remote: str | None = None, said: tuple[int, str] = (0, "")) -> str:
    """Gives standard output; `said`: exit code and standard error."""
    environment = os.environ | ({} if remote is None else {"SPARK_REMOTE": remote})
    command = [sys.executable, "-m", "gateway", "audit", *args, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=environment)
    assert (done.returncode, done.stderr) == said
    return done.stdout


@pytest.mark.full
@pytest.mark.kafka
def test_a_server_answers_as_this_machine_does(server: str, kafka: EmbeddedCluster, tmp_path: Path) -> None:
    spool, policy = tmp_path / "usage-00000001-aa.jsonl", tmp_path / "gateway.yaml"
    spool.write_text("\n".join(LINES[:40]) + "\n{}\n")
    create_topic(kafka, "connect", 2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number, line in enumerate(LINES[30:]):  # some are in both
        producer.produce("connect", line, partition=number % 2)
    assert producer.flush(30) == 0
    policy.write_text("upstream: {bootstrap_servers: 'x:1'}\nthresholds: {total: 20000000}\n")
    sources = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", "connect", "--spool", str(spool)]
    for question in (["--by", "reason", "--window", "1m"], ["top", "--by", "client_id"]):
        assert _audit(*question, *sources, remote=server) == _audit(*question, "--engine", "local", *sources)
    question = ["what-if", str(policy), *sources]
    assert _audit(*question, remote=server) == _audit(*question)


@pytest.mark.full
@pytest.mark.kafka
def test_a_server_asks_and_keeps_tables(server: str, kafka: EmbeddedCluster, tmp_path: Path) -> None:
    create_topic(kafka, "connect-tables", 2)
    producer, tables = Producer({"bootstrap.servers": kafka.bootstrap_servers}), str(tmp_path / "tables")
    for number, line in enumerate(LINES):
        producer.produce("connect-tables", line, partition=number % 2)
    assert producer.flush(30) == 0
    reading = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", "connect-tables", "--max-records", "25"]
    _run("stream", *reading, "--output", tables)
    assert " files became 1; " in _run("compact", tables, remote=server)
    for question in (["--by", "reason", "--window", "1m"], ["top", "--by", "client_id"]):
        asked = [*question, "--tables", tables]
        assert _audit(*asked, remote=server) == _audit(*asked, "--engine", "local")
    written = [*question, "--tables", tables, "--output", str(tmp_path / "ranking")]
    assert _run(*written, remote=server) == _run(*written, "--engine", "local")  # the second one in place of the first
    refusal = "produce-gateway audit: stream: SPARK_REMOTE: not by Spark Connect; by spark-submit, or on one machine\n"
    _run("stream", *reading, "--output", tables, remote=server, said=(1, refusal))


def test_a_server_that_does_not_answer_is_named_without_its_token() -> None:
    port = find_free_port()
    with pytest.raises(AuditError, match=rf"^SPARK_REMOTE: no Spark Connect server at 127\.0\.0\.1:{port} \([^;]*\)$"):
        check_remote(f"sc://127.0.0.1:{port}/;token=not-to-be-seen")
