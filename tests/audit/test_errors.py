# What a user sees of a job that takes long, or fails: how far it is, and one line that says why.

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from gateway.audit import store
from gateway.audit.batch import job
from gateway.audit.batch.query import AuditQuery
from gateway.audit.errors import AuditError, explain_error, explain_storage_error, list_causes, raising_class
from gateway.audit.spark.arrow_map import map_in_arrow
from gateway.audit.spark.progress import watch_progress
from gateway.audit.stream import stream
from tests.audit.records import START, Row, interval

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_while_a_job_runs_it_is_said_how_many_of_its_tasks_are_done(spark: SparkSession, tmp_path: Path) -> None:
    """Two of three tasks end; the third waits until that has been told."""
    told = tmp_path / "told"
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if line == "… 66 % (2 of 3 tasks)":
            told.touch()

    def work(number: int) -> int:
        for _ in range(6000 if number == 2 else 0):
            if told.exists():
                break
            time.sleep(0.01)
        return number

    with watch_progress(spark, tell, 0.02):
        assert spark.sparkContext.parallelize(range(3), 3).map(work).sum() == 3
    assert told.exists(), lines
    seen = len(lines)
    assert spark.range(10).count() == 10
    assert len(lines) == seen, "nothing is said once it is over"


def test_the_class_that_raised_the_innermost_exception_is_known(spark: SparkSession) -> None:
    with pytest.raises(Py4JJavaError) as java:
        spark.sparkContext._jvm.java.util.Objects.requireNonNull(None)  # type: ignore[union-attr]
    assert list_causes(java.value)[-1][0] == "java.lang.NullPointerException"
    assert raising_class(java.value) == "java.util.Objects"
    with pytest.raises(PySparkException) as spark_error:
        spark.sql("select nothing")
    assert raising_class(spark_error.value).startswith("org.apache.spark.sql.")
    assert raising_class(ValueError()) == ""


def test_what_an_object_store_says_is_one_line_without_colors() -> None:
    said = OSError(
        "Kernel error -> Generic S3 error\n   \x1b[31m↳\x1b[0m Error performing GET\n  \x1b[31m↳\x1b[0m  refused\n"
    )
    expected = "s3a://b/a: Kernel error -> Generic S3 error ↳ Error performing GET ↳ refused"
    assert explain_storage_error("s3a://b/a", said) == expected


@pytest.fixture
def small(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of its own, mounted with the options that the test names."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", request.param, "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a JVM may still have a file open


def _batch(spark: SparkSession) -> DataFrame:
    at = datetime.fromtimestamp(START / 1000, UTC)
    found = [line for seq in range(1300) for line in interval(seq, [Row(client_id=os.urandom(128).hex())])]
    rows = [(bytearray(line.encode()), "usage", 0, offset, at) for offset, line in enumerate(found)]
    return spark.createDataFrame(rows, "value binary, topic string, partition int, offset bigint, timestamp timestamp")


def test_of_a_python_process_of_sparks_it_is_said_what_it_raised(spark: SparkSession) -> None:
    def fail(batches: Iterable[Any]) -> Iterator[Any]:
        yield from ((2**64).to_bytes(8) for _ in batches)

    numbers = spark.range(1)
    with pytest.raises(PySparkException) as error:
        map_in_arrow(numbers, fail, numbers.schema).collect()
    assert "OverflowError: int too big to convert" in explain_error(error.value)


@pytest.mark.parametrize("small", ["size=160k"], indirect=True)
def test_a_full_disk_is_named_and_nothing_of_the_batch_counts(spark: SparkSession, small: Path) -> None:
    writer = store.TableWriter(store.open_tables(spark, str(small), make=True))
    with pytest.raises(AuditError) as caught:
        stream.add_batch(writer, _batch(spark), "id")
    said = str(caught.value)
    assert said.startswith("the disk is full (")
    assert "\n" not in said
    report = job.audit_tables(store.open_tables(spark, str(small)), AuditQuery())
    assert (report.integrity.records, report.rows[0]["offered_bytes"]) == (0, 0)


@pytest.mark.parametrize("small", ["ro"], indirect=True)
def test_it_names_the_place_that_it_may_not_write(spark: SparkSession, small: Path) -> None:
    with pytest.raises((AuditError, Py4JJavaError, PySparkException)) as caught:
        store.open_tables(spark, f"{small}/tables", make=True)
    said = explain_error(caught.value)
    assert f"{small}/tables" in said
    assert "\n" not in said


def test_a_java_that_is_too_old_is_named(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    (tmp_path / "usage-00000001-aa.jsonl").write_text(interval(0)[0] + "\n")
    command = [sys.executable, "-m", "gateway.audit", "--engine", "spark", "--spool", str(tmp_path), "--quiet"]
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{java} is Java 11" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("memory", "why"), [("foo", "Invalid maximum heap size: -Xmxfoo"), ("5k", "Too small maximum heap")]
)
def test_a_memory_that_java_refuses_is_named(tmp_path: Path, memory: str, why: str) -> None:
    (tmp_path / "usage-00000001-aa.jsonl").write_text(interval(0)[0] + "\n")
    options = ["--spool", str(tmp_path), "--quiet", "--conf", f"spark.driver.memory={memory}"]
    command = [sys.executable, "-m", "gateway.audit", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"produce-gateway audit: Spark did not start: {why}\n"
