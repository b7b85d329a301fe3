# One Spark for all tests of a run: it takes longer to start than any of them to do its work.

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.audit.engines import LOCAL, SPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gateway.audit.batch.query import CountedRecords
    from gateway.audit.store import AuditTables

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # These need no Java, unless they ask for Spark.
        if item.path.parent.name in ("answers", "local", "questions", "reconcile") and not _asks_for_spark(item):
            continue
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings(r"ignore:unclosed.*socket\.socket:ResourceWarning"))


def _asks_for_spark(item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None)
    return "spark" in getattr(item, "fixturenames", ()) or (
        parameters is not None and parameters.params.get("records") == SPARK
    )


@pytest.fixture(autouse=True)
def _sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    """PySpark leaves the sockets of `collect` to the collector of garbage: not to that of somebody else's test."""
    yield
    if "spark" in request.fixturenames:
        gc.collect()


_SESSION: pytest.StashKey[SparkSession] = pytest.StashKey()
_EMPTY: pytest.StashKey[Path] = pytest.StashKey()


@pytest.fixture(scope="module")
def spark(pytestconfig: pytest.Config, group_stack: ExitStack) -> SparkSession:
    """The session of the module before, unless that ended with its group."""
    from gateway.audit.spark import spark_session

    if _SESSION in pytestconfig.stash:
        return pytestconfig.stash[_SESSION]
    # A dozen rows deserve no more: two partitions, no adaptive planning, no compiled code of their own. (The command's
    # test runs as users run it.)
    small = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    pytestconfig.stash[_SESSION] = found = group_stack.enter_context(spark_session.open_session(small, delta=True))
    group_stack.callback(pytestconfig.stash.__delitem__, _SESSION)
    return found


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`produce-gateway audit` in this process and with this session: a Java of its own takes 15 s of CPU time."""
    from gateway.audit import cli
    from gateway.audit.spark import spark_session

    monkeypatch.setattr(spark_session, "open_session", lambda *_, **__: nullcontext(spark))
    return lambda *args: cli.main([str(each) for each in args])


@pytest.fixture(scope="module")
def empty_tables(
    pytestconfig: pytest.Config, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path], AuditTables]:
    """Makes tables without a record in a folder: copies, as a commit takes a second of a core."""
    from gateway.audit import store

    if _EMPTY not in pytestconfig.stash:
        pytestconfig.stash[_EMPTY] = tmp_path_factory.mktemp("empty") / "tables"
        store.open_tables(spark, str(pytestconfig.stash[_EMPTY]), make=True)

    def copy(folder: Path) -> AuditTables:
        shutil.copytree(pytestconfig.stash[_EMPTY], folder, dirs_exist_ok=True)
        return store.open_tables(spark, str(folder))

    return copy


@pytest.fixture
def raw(spark: SparkSession) -> Callable[[Sequence[str | None]], DataFrame]:
    """Lines as a source gives them."""
    from gateway.audit.spark import schema

    def make(lines: Sequence[str | None]) -> DataFrame:
        return spark.createDataFrame([(line, f"line {i}") for i, line in enumerate(lines)], schema.RAW_SCHEMA)

    return make


@pytest.fixture
def unique(
    raw: Callable[[Sequence[str | None]], DataFrame],
) -> Iterator[Callable[[Sequence[str | None]], DataFrame]]:
    """The records of these lines, copies and malformed ones taken out; decoded once, as the job does it."""
    from gateway.audit.batch import transforms

    kept: list[DataFrame] = []

    def make(lines: Sequence[str | None]) -> DataFrame:
        kept.append(transforms.decode_records(raw(lines)).persist())
        return transforms.drop_copies(transforms.mark_copies(kept[-1]))

    yield make
    for decoded in kept:
        decoded.unpersist()


@pytest.fixture(params=[pytest.param(SPARK, marks=pytest.mark.full), LOCAL])
def records(request: pytest.FixtureRequest) -> Callable[[Sequence[str | None]], CountedRecords]:
    """The records of these lines, in either engine: local/test_records.py compares their answers to the byte."""
    from gateway.audit.batch import job, transforms
    from gateway.audit.local.records import LocalRecords
    from tests.audit.records import LineSource

    if request.param == LOCAL:
        return lambda lines: LocalRecords([LineSource(lines)])
    raw = request.getfixturevalue("raw")

    def read(lines: Sequence[str | None]) -> CountedRecords:
        decoded = transforms.decode_records(raw(lines)).persist()
        request.addfinalizer(decoded.unpersist)
        unique = transforms.drop_copies(transforms.mark_copies(decoded))
        return job.AuditRecords(transforms.explode_rows(unique), unique, [], job.count_records(decoded))

    return read
