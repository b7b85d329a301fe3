# One Spark for all tests of a run: it takes longer to start than any of them to do its work.

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings(r"ignore:unclosed.*socket\.socket:ResourceWarning"))


@pytest.fixture(autouse=True)
def _sockets() -> Iterator[None]:
    """PySpark leaves the sockets of `collect` to the collector of garbage: not to that of somebody else's test."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from gateway.audit.batch import job

    # A dozen rows deserve no more: two partitions, no adaptive planning, no compiled code of their own. (The command's
    # test runs as users run it.)
    small = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    with job.session(small, delta=True) as session:
        yield session


@pytest.fixture
def raw(spark: SparkSession) -> Callable[[Sequence[str | None]], DataFrame]:
    """Lines as a source gives them."""
    from gateway.audit import schema

    def make(lines: Sequence[str | None]) -> DataFrame:
        return spark.createDataFrame([(line, f"line {i}") for i, line in enumerate(lines)], schema.RAW)

    return make


@pytest.fixture
def unique(
    raw: Callable[[Sequence[str | None]], DataFrame],
) -> Iterator[Callable[[Sequence[str | None]], DataFrame]]:
    """The records of these lines, copies and malformed ones taken out; decoded once, as the job does it."""
    from gateway.audit.batch import transforms

    kept: list[DataFrame] = []

    def make(lines: Sequence[str | None]) -> DataFrame:
        kept.append(transforms.decode(raw(lines)).persist())
        return transforms.unique(transforms.mark_copies(kept[-1]))

    yield make
    for decoded in kept:
        decoded.unpersist()
