# The same command under other masters than local[*], by the spark-submit that PySpark brings along: what reaches stdout
# and stderr, and that executors in processes of their own find all they need. Real masters are for `make full`.

from __future__ import annotations

import contextlib
import json
import os
import shutil
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
from gateway.audit import connector, store
from gateway.audit.batch import job, tables
from gateway.embedded import find_free_port, wait_for
from tests.audit.records import Row, as_json, interval
from tests.integration.gateways import create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.embedded import EmbeddedCluster

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent


def _environment(folder: Path) -> dict[str, str]:
    # Every Python of it, executors' too, is this one with what is installed here; and workers work in that folder.
    own = {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": embedded.HOST}
    own |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}  # the quick compiler
    conf = {"SPARK_CONF_DIR": str(ROOT / "deploy" / "spark" / "conf"), "SPARK_WORKER_DIR": str(folder / "work")}
    return {**os.environ, **own, **conf}


def _submit(master: str, folder: Path, *args: str, jars: str = "") -> subprocess.CompletedProcess[str]:
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, *(["--jars", jars] if jars else [])]
    command += ["--conf", "spark.sql.shuffle.partitions=2", str(ROOT / "deploy" / "spark" / "audit_main.py"), *args]
    command.append("--quiet")  # spark-submit gives what a Python program says on stderr to stdout
    return subprocess.run(
        command, capture_output=True, text=True, timeout=500, check=False, cwd=ROOT, env=_environment(folder)
    )


def _lines(count: int) -> list[str]:
    rows = [Row(bytes=10), Row(outcome="rejected", reason="fence", bytes=5)]
    return [line for seq in range(count) for line in interval(seq, rows, final=seq == count - 1)]


def _noise(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines on stderr but for Java's own, which announces a module that Spark's launcher asks for."""
    return [line for line in done.stderr.splitlines() if "Using incubator modules: jdk.incubator.vector" not in line]


def test_under_spark_submit_nothing_but_the_result_is_said(tmp_path: Path) -> None:
    (tmp_path / "usage-00000001-aa.jsonl").write_text("\n".join(_lines(3)) + "\n")
    done = _submit("local[2]", tmp_path, "--spool", str(tmp_path), "--format", "json", "--by", "reason")
    assert done.returncode == 0, done.stderr
    assert _noise(done) == []
    answer = json.loads(done.stdout)
    assert [row["offered"]["bytes"] for row in answer["rows"]] == [30, 15]
    assert answer["integrity"]["complete"]


@contextlib.contextmanager
def _standalone(folder: Path) -> Iterator[str]:
    """A master and a worker of Spark's own, on loopback, which work in that folder; gives the master's address."""
    port = find_free_port()
    master = f"spark://{embedded.HOST}:{port}"
    run = [str(SPARK_HOME / "bin" / "spark-class")]
    deploy = "org.apache.spark.deploy"
    commands = [
        [
            *run,
            f"{deploy}.master.Master",
            *f"--host {embedded.HOST} --port {port} --webui-port {find_free_port()}".split(),
        ],
        [
            *run,
            f"{deploy}.worker.Worker",
            *f"--webui-port {find_free_port()} -c 2 -m 2g -d {folder}/work".split(),
            master,
        ],
    ]
    with contextlib.ExitStack() as stack:
        for command in commands:
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            process = embedded.spawn_process(command, env=_environment(folder), **quiet)
            stack.callback(embedded.reap_process, process)
            wait_for("the master", lambda: _listens(port))
        yield master


@contextlib.contextmanager
def _local_cluster(master: str) -> Iterator[str]:
    """Its workers work in SPARK_HOME, whatever they are told."""
    yield master
    shutil.rmtree(SPARK_HOME / "work", ignore_errors=True)


def _listens(port: int) -> bool:
    try:
        socket.create_connection((embedded.HOST, port), 5).close()
    except OSError:
        return False
    return True


def _filled(kafka: EmbeddedCluster, topic: str) -> str:
    create_topic(kafka, topic, 4)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number, line in enumerate(_lines(400)):
        producer.produce(topic, line, partition=number % 4)
    assert producer.flush(30) == 0
    return topic


@pytest.mark.full
@pytest.mark.kafka
@pytest.mark.parametrize("where", ["local-cluster[2,1,1024]", "standalone"])
def test_on_executors_of_their_own_the_topic_is_audited_and_streamed(
    spark: SparkSession, kafka: EmbeddedCluster, tmp_path: Path, where: str
) -> None:
    topic = _filled(kafka, "masters-" + where.partition("[")[0])
    libraries = (connector.KAFKA_CONNECTOR, connector.DELTA_LAKE)
    jars = ",".join(map(str, connector.provide_jars(libraries, pyspark.__version__)))
    servers = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic]
    with _standalone(tmp_path) if where == "standalone" else _local_cluster(where) as master:
        done = _submit(master, tmp_path, *servers, "--format", "json", "--by", "reason", jars=jars)
        assert done.returncode == 0, done.stderr
        streamed = _submit(master, tmp_path, "stream", *servers, "--output", str(tmp_path / "tables"), jars=jars)
        assert streamed.returncode == 0, streamed.stderr
    answer = json.loads(done.stdout)
    assert [row["offered"]["bytes"] for row in answer["rows"]] == [4000, 2000]
    assert answer["integrity"]["complete"]
    report = job.audit_tables(store.open_tables(spark, str(tmp_path / "tables")), job.AuditQuery(by=("reason",)))
    assert as_json(tables.report_answer(report))["rows"] == answer["rows"]
    assert _noise(done) == _noise(streamed) == []
