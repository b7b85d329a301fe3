# Compaction and expiry, killed while they are at work. What they do when they are let live, and what half of their work
# leaves behind: test_stream.py.

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.audit.stream import kill_upkeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]  # minutes of Spark's work on a quiet machine


def test_killed_at_a_random_moment_the_tables_say_the_truth(spark: SparkSession, tmp_path: Path) -> None:
    """More of them: python -m tests.audit.stream.kill_upkeep (docs/audit.md)."""
    outcome = kill_upkeep.run(spark, tmp_path / "tables", kills=1, intervals=40, commits=4)
    assert outcome.wrong == []


def test_a_wrong_table_is_seen_to_be_wrong(spark: SparkSession, tmp_path: Path) -> None:
    """The experiment's own eyes: a table that lacks a commit is not taken for the truth."""
    log = kill_upkeep.lines(12)
    tables = kill_upkeep.fill(spark, tmp_path / "tables", log, 3)
    assert kill_upkeep.held(spark, tmp_path / "tables") == (kill_upkeep.truth(log), 3, 0)
    spark.sql(f"RESTORE TABLE {tables.sql_path('records')} TO VERSION AS OF 3")  # made, claimed, three batches
    sums, copies, gaps = kill_upkeep.held(spark, tmp_path / "tables")
    assert sums != kill_upkeep.truth(log)
    assert (copies, gaps) == (2, 0)
