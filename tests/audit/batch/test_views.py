# The tables as SQL views, as the notebook uses them.

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.audit import store
from gateway.audit.batch.rollups import update
from gateway.audit.columns import WINDOW_LENGTHS
from gateway.audit.spark import spark_session
from gateway.audit.stream import stream
from gateway.audit.tables import layout
from tests.audit.records import Row, interval, lost, topic_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).parents[3] / "deploy" / "spark" / "usage.ipynb"


def _write_tables(spark: SparkSession, root: Path, lines: Sequence[str]) -> None:
    tables = store.open_tables(spark, str(root), make=True)
    batch = topic_batch(spark, [(0, offset, line) for offset, line in enumerate(lines)])
    stream.add_batch(store.TableWriter(tables), batch, "id")
    update.update_rollups(tables)


def test_the_notebook_runs_and_its_views_are_the_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [Row(group="web", bytes=7), Row(outcome="rejected", reason="fence", client_id="loud", bytes=5, repeats=0)]
    _write_tables(spark, tmp_path, [*interval(0, rows), *interval(2, rows), lost(3), "rubbish"])
    monkeypatch.setattr(spark_session, "open_session", lambda *_, **__: nullcontext(spark))
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]).replace("./audit", str(tmp_path)), names)
    said = capfd.readouterr().out.replace(" ", "")
    assert "|2025-11-0100:00:00|web|14|" in said
    assert "|loud|fence|10|0|" in said
    assert "|lost|1|" in said
    schemas = layout.VIEW_SCHEMAS | layout.DERIVED_SCHEMAS | dict.fromkeys(WINDOW_LENGTHS, layout.USAGE_SUMS_SCHEMA)
    assert {name: spark.table(name).columns for name in schemas} == {name: of.names for name, of in schemas.items()}
    for table in ("usage", *WINDOW_LENGTHS):
        assert [row[0] for row in spark.table(table).agg({"bytes": "sum"}).collect()] == [24]
