# A Spark session: spark-submit's, a Spark Connect server's, or one of our own on this machine, with its JVM. Has no
# master, no memory and no path of its own: under spark-submit all of those are the caller's.

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gateway.audit.addresses import check_remote
from gateway.audit.engines import find_remote, has_given_session
from gateway.audit.errors import AuditError, explain_error
from gateway.audit.spark import connector
from gateway.embedded.jars import class_data_options

APP_NAME: Final = "produce-gateway audit"
SPARK_JARS: Final = Path(pyspark.__file__).parent / "jars"
_STOP_TIMEOUT_S: Final = 10.0
# Marks of the line that says why a JVM did not come up, the most telling first.
_FAILURE_MARKS: Final = (
    "unresolved dependency:",
    "Could not reserve enough space",
    "maximum heap",  # "Invalid maximum heap size: -Xmxfoo", "Too small maximum heap"
    "Unrecognized option",
    "Exception in thread",
    "Error:",
    "ERROR",
)
# Of spool files, from which on both of Java's compilers work. Sums of 0.1, 0.3, 1 and 3 million records (0.53 GB a
# million) took 13, 14, 17 and 31 s of CPU with the quick one alone, 24, 25, 30 and 38 s with both: the lines meet at
# five million.
LONG_READ_BYTES: Final = 3_000_000_000
_ARROW_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
# On a cluster that is spark-submit's business; a session of our own is for one machine.
_COMMON_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Of what goes to Python at once: 10,000 records alone may be 5 GB.
    _ARROW_BYTES: str(8 * 2**20),
    # What it keeps, Spark writes to disk where memory ends, 10,000 records at a time; and Java's serializer holds on to
    # what it wrote or read until it is reset, by default a hundred times as many: a gigabyte.
    "spark.serializer.objectStreamReset": "1",
}
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_QUICK_COMPILER: Final = "-XX:TieredStopAtLevel=1 "
_UNCHECKED_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# With the quick one alone Java has room for 48 MB of code, which a stream fills: it drops code and makes it again.
_MUCH_CODE: Final = " -XX:ReservedCodeCacheSize=240m"
LOCAL_SETTINGS: Final = _COMMON_SETTINGS | {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Arrow's checks of each access to a batch: with the quick compiler a fifth of what it takes to fill one. And the
    # quick one of Java's two compilers, unless the other saves more than its own work costs (`is_long`). And the
    # collector without work beside the program, which needs every core: a tenth less CPU. `--conf
    # spark.driver.extraJavaOptions=` gives the others back, and does without the archive of classes (class_data.py).
    JAVA_OPTIONS: f"{_QUICK_COMPILER}-XX:+UseParallelGC {_UNCHECKED_ARROW}",
    # Noting down the line of every expression costs calls into the JVM, and we show no such lines.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # It says why itself; `--conf spark.python.daemon.module=pyspark.daemon` gives PySpark's own back.
    "spark.python.daemon.module": "gateway.audit.spark.python_daemon",
    # 200, for listing files 10,000, and for Delta's log 50, are for clusters; here each would be a task of some
    # milliseconds.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": str(min(8, os.cpu_count() or 2)),
    # One step of a stream's roll-ups has more than the 100 that Spark keeps, and would compile all of them each time.
    "spark.sql.codegen.cache.maxEntries": "1000",
}
_DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


@contextmanager
def open_session(
    conf: Mapping[str, str] | None = None,
    *,
    kafka: bool = True,
    delta: bool = False,
    jars: str | None = None,
    packages: str | None = None,
    stop_s: float | None = None,
    is_long: bool = False,
) -> Iterator[SparkSession]:
    """A Spark session: spark-submit's or a Spark Connect server's if there is one, else one on this machine, with the
    connector where asked for.

    With `delta`, Delta Lake is there as well. With `is_long`, both of Java's compilers work: for what reads some
    gigabytes, or goes on for hours.

    `jars` (files, separated by commas) or `packages` (Maven coordinates) take the place of the pinned connector. A JVM
    of ours that doesn't end with the session is killed; with `stop_s` (seconds) a later end is an error.
    Nothing of Spark's or Java's own chatter reaches stdout or stderr.

    Raises:
        connector.MissingDependency: no Java, no connector.
        AuditError: Spark did not start, or not end.
    """
    if has_given_session():
        spark = _join_session(delta, conf or {})
        try:
            yield spark
        finally:
            spark.stop()
        return
    connector.find_java()
    with tempfile.TemporaryDirectory(prefix="produce-gateway-audit-") as folder:
        settings = LOCAL_SETTINGS | {"spark.sql.warehouse.dir": f"{folder}/warehouse", "spark.local.dir": folder}
        if is_long:
            settings[JAVA_OPTIONS] = settings[JAVA_OPTIONS].removeprefix(_QUICK_COMPILER)
        elif kafka and delta:
            settings[JAVA_OPTIONS] += _MUCH_CODE
        settings[JAVA_OPTIONS] += "".join(f' "{option}"' for option in class_data_options(SPARK_JARS))
        settings |= (
            _connector_settings(kafka, delta, jars, packages) | (_DELTA_SETTINGS if delta else {}) | dict(conf or {})
        )
        spark = _start_session(settings, Path(folder) / "spark.log")
        try:
            yield spark
        finally:
            _stop_session(spark, stop_s)


def _connector_settings(kafka: bool, delta: bool, jars: str | None, packages: str | None) -> dict[str, str]:
    if jars:
        absent = [jar for jar in jars.split(",") if "://" not in jar and not Path(jar).is_file()]
        if absent:
            raise AuditError(f"--jars: there is no file {absent[0]}")
        return {"spark.jars": jars}
    if packages:
        return {"spark.jars.packages": packages}
    wanted = [*([connector.KAFKA_CONNECTOR] if kafka else []), *([connector.DELTA_LAKE] if delta else [])]
    found = connector.provide_jars(wanted, pyspark.__version__)
    return {"spark.jars": ",".join(map(str, found))} if found else {}


def _join_session(delta: bool, conf: Mapping[str, str]) -> SparkSession:
    """The session that is there: its own settings stay; only those that it was not given get a value of ours."""
    builder = SparkSession.builder.appName(APP_NAME)
    remote = find_remote()
    if remote is None:
        given = SparkConf()
        own = {name: value for name, value in _COMMON_SETTINGS.items() if not given.contains(name)} | (
            _DELTA_SETTINGS if delta else {}
        )
        return _silence_logs(builder.config(map={**own, **conf}).getOrCreate())
    check_remote(remote)
    try:
        return builder.config(map={_ARROW_BYTES: _COMMON_SETTINGS[_ARROW_BYTES], **conf}).getOrCreate()
    except PySparkException as error:
        raise AuditError(f"SPARK_REMOTE: {explain_error(error)}") from None


def _start_session(settings: Mapping[str, Any], log: Path) -> SparkSession:
    # Without it Spark asks the resolver for this host's name, warns, and takes an outer address.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Else the first python3 on PATH, which may be another one and have no msgspec (the what-if runs in it).
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # PySpark 4.0 imports its tests' tools to ask whether there is numpy, and with them pandas and Arrow where they are
    # installed: half a second or more, in which Java starts just as well.
    threading.Thread(target=_preload_pyspark, daemon=True).start()
    try:
        with _redirect_output(log):
            return _silence_logs(SparkSession.builder.appName(APP_NAME).config(map=dict(settings)).getOrCreate())
    except (PySparkException, Py4JJavaError, OSError, RuntimeError) as error:
        raise AuditError(f"Spark did not start: {_failure_reason(log, error)}") from None


def _preload_pyspark() -> None:
    with suppress(Exception):  # then PySpark says so
        importlib.import_module("pyspark.testing.utils")


def _stop_session(spark: SparkSession, timeout_s: float | None) -> None:
    # Stopping a session leaves its JVM, with half a gigabyte and the jars it was started with, to the next session.
    # PySpark's receiver of counters looks once a second whether it is to end: nothing needs to wait for that, and that
    # the JVM has gone first is no error.
    context: Any = spark.sparkContext
    receiver, context._accumulatorServer = context._accumulatorServer, None
    receiver.handle_error = lambda *_: None
    threading.Thread(target=receiver.shutdown, daemon=True).start()
    spark.stop()
    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()  # the sign on which the JVM ends
    try:
        gateway.proc.wait(timeout=timeout_s or _STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    if timeout_s is not None and gateway.proc.returncode:
        raise AuditError(f"Spark's JVM did not end as it should: status {gateway.proc.returncode}")


def _silence_logs(spark: SparkSession) -> SparkSession:
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def _redirect_output(log: Path) -> Iterator[None]:
    # The JVM keeps the descriptors that it was born with: its warnings, Ivy's reports and log4j's lines all go there.
    saved = [os.dup(1), os.dup(2)]
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        for number, descriptor in enumerate(saved, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(target)


def _failure_reason(log: Path, error: BaseException) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    if "Module jdk.incubator.vector not found" in text:
        return "this Java lacks the module jdk.incubator.vector: install a full JDK or JRE 17 or 21"
    for mark in _FAILURE_MARKS:
        line = next((line for line in text.splitlines() if mark in line), None)
        if line:
            return line.strip()[:500]
    return explain_error(error)
