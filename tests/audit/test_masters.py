# The same command under other masters than local[*], by the spark-submit that PySpark brings along: what reaches stdout
# and stderr, and that executors in processes of their own find all they need. Real masters are for `make full`.

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow
import pyspark
import pytest
from confluent_kafka import Producer

from gateway import embedded
from gateway.audit import store
from gateway.audit.batch import job, tables
from gateway.audit.batch.query import AuditQuery
from gateway.audit.spark import connector
from gateway.embedded import find_free_port, wait_for
from tests.audit.records import Row, as_json, interval
from tests.integration.gateways import create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.embedded import EmbeddedCluster

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent


def _environment(folder: Path, python: str = sys.executable) -> dict[str, str]:
    # The driver's Python is this one with what is installed here; and workers work in that folder.
    own = {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": embedded.HOST}
    own["PYSPARK_DRIVER_PYTHON"] = sys.executable
    own |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}  # the quick compiler
    conf = {"SPARK_CONF_DIR": str(ROOT / "deploy" / "spark" / "conf"), "SPARK_WORKER_DIR": str(folder / "work")}
    return {**os.environ, **own, **conf}


def _command(master: str, *args: str, options: Sequence[str] = ()) -> list[str]:
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, *options]
    command += ["--conf", "spark.sql.shuffle.partitions=2", str(ROOT / "deploy" / "spark" / "audit_main.py"), *args]
    return [*command, "--quiet"]  # spark-submit gives what a Python program says on stderr to stdout


def _submit(
    master: str, folder: Path, *args: str, options: Sequence[str] = (), python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(master, *args, options=options),
        capture_output=True, text=True, timeout=500, check=False, cwd=ROOT, env=_environment(folder, python),
    )  # fmt: skip


def _lines(count: int) -> list[str]:
    rows = [Row(bytes=10), Row(outcome="rejected", reason="fence", bytes=5)]
    return [line for seq in range(count) for line in interval(seq, rows, final=seq == count - 1)]


def _noise(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines on stderr but for Java's own, which announces a module that Spark's launcher asks for."""
    return [line for line in done.stderr.splitlines() if "Using incubator modules: jdk.incubator.vector" not in line]


@pytest.mark.full  # what the command says and how it reads: test_cli.py
def test_under_spark_submit_nothing_but_the_result_is_said(tmp_path: Path) -> None:
    (tmp_path / "usage-00000001-aa.jsonl").write_text("\n".join(_lines(3)) + "\n")
    done = _submit("local[2]", tmp_path, "--spool", str(tmp_path), "--format", "json", "--by", "reason")
    assert done.returncode == 0, done.stderr
    assert _noise(done) == []
    answer = json.loads(done.stdout)
    assert [row["offered"]["bytes"] for row in answer["rows"]] == [30, 15]
    assert answer["integrity"]["complete"]


class StandaloneCluster(NamedTuple):
    """A master and workers of Spark's own, each with its executors in a process group."""

    master: str
    workers: list[subprocess.Popen[Any]]


@contextlib.contextmanager
def _standalone(folder: Path) -> Iterator[StandaloneCluster]:
    """With two workers, on loopback, which work in that folder and know no Python's packages."""
    port = find_free_port()
    master = f"spark://{embedded.HOST}:{port}"
    run = [str(SPARK_HOME / "bin" / "spark-class")]
    deploy = "org.apache.spark.deploy"
    bare = {name: value for name, value in _environment(folder).items() if name != "PYTHONPATH"}

    def start(*words: str) -> subprocess.Popen[Any]:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = embedded.spawn_process([*run, *words, "--webui-port", str(find_free_port())], env=bare, **quiet)
        stack.callback(embedded.reap_process, process)
        return process

    with contextlib.ExitStack() as stack:
        start(f"{deploy}.master.Master", "--host", embedded.HOST, "--port", str(port))
        wait_for("the master", lambda: _listens(port))
        of_worker = f"{deploy}.worker.Worker {master} -c 1 -m 1g -d {folder}/work".split()
        yield StandaloneCluster(master, [start(*of_worker) for _ in range(2)])


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


def _jars() -> list[str]:
    found = connector.provide_jars((connector.KAFKA_CONNECTOR, connector.DELTA_LAKE), pyspark.__version__)
    return ["--jars", ",".join(map(str, found))]


def _check_answers(spark: SparkSession, done: subprocess.CompletedProcess[str], path: Path) -> None:
    """Of the batch, and of tables: what `_filled` adds up to."""
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [row["offered"]["bytes"] for row in answer["rows"]] == [4000, 2000]
    assert answer["integrity"]["complete"]
    report = job.audit_tables(store.open_tables(spark, str(path)), AuditQuery(by=("reason",)))
    assert as_json(tables.report_answer(report))["rows"] == answer["rows"]
    assert report.integrity.duplicates == 0


@pytest.mark.full
@pytest.mark.kafka
def test_on_executors_of_their_own_the_topic_is_audited_and_streamed(
    spark: SparkSession, kafka: EmbeddedCluster, tmp_path: Path
) -> None:
    topic = _filled(kafka, "masters-local-cluster")
    servers = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic]
    master = "local-cluster[2,1,1024]"
    try:
        done = _submit(master, tmp_path, *servers, "--format", "json", "--by", "reason", options=_jars())
        streamed = _submit(master, tmp_path, "stream", *servers, "--output", f"{tmp_path}/tables", options=_jars())
    finally:  # its workers work in SPARK_HOME, whatever they are told
        shutil.rmtree(SPARK_HOME / "work", ignore_errors=True)
    assert streamed.returncode == 0, streamed.stderr
    _check_answers(spark, done, tmp_path / "tables")
    assert _noise(done) == _noise(streamed) == []


def _pack_environment(folder: Path) -> list[str]:
    """Options that ship to executors what docs/spark.md has pip install, taken from what is installed here."""
    archive = folder / "env.tar"
    with tarfile.open(archive, "w") as tar:
        for package in (msgspec, pyarrow):
            found = Path(package.__path__[0])
            tar.add(found, found.name)
        for name in ("gateway", "policies", "protocol"):
            tar.add(ROOT / name, name, filter=lambda each: None if each.name.endswith((".so", ".c")) else each)
    environment = ["--archives", f"{archive}#env", "--conf", "spark.executorEnv.PYTHONPATH=env"]
    return [*environment, "--conf", "spark.executor.memory=512m", *_jars()]


@pytest.mark.full
@pytest.mark.kafka
@pytest.mark.timeout(1800)  # 350 s of CPU
def test_a_cluster_that_loses_a_worker_and_its_driver_streams_each_record_once(
    spark: SparkSession, kafka: EmbeddedCluster, tmp_path: Path
) -> None:
    """Executors run a Python that has nothing but what the archive brings."""
    topic, output = _filled(kafka, "masters-standalone"), tmp_path / "tables"
    servers = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic]
    bare = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    options = _pack_environment(tmp_path)
    stream = ["stream", *servers, "--output", str(output), "--max-records", "80"]

    def count_commits() -> int:
        return len(list((output / "records" / "_delta_log").glob("*.json")))

    with _standalone(tmp_path) as cluster:
        batch = ["--format", "json", "--by", "reason"]
        done = _submit(cluster.master, tmp_path, *servers, *batch, options=options, python=bare)
        assert done.returncode == 0, done.stdout + done.stderr
        environment = _environment(tmp_path, bare)
        with (tmp_path / "driver.log").open("wb") as log:
            command = _command(cluster.master, *stream, options=options)
            driver = embedded.spawn_process(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            try:
                wait_for("the first batch", lambda: count_commits() > 1, 300)
                os.killpg(cluster.workers[0].pid, signal.SIGKILL)
                seen = count_commits()
                wait_for("a batch without that worker", lambda: count_commits() > seen, 300)
                assert driver.poll() is None, (tmp_path / "driver.log").read_text()
                os.killpg(driver.pid, signal.SIGKILL)
            finally:
                embedded.reap_process(driver)
        assert count_commits() < 6, "it was through before it was killed"
        streamed = _submit(cluster.master, tmp_path, *stream, options=options, python=bare)
    assert streamed.returncode == 0, streamed.stdout + streamed.stderr
    _check_answers(spark, done, output)
