# The tables as views of a Spark session, for SQL and notebooks.

from __future__ import annotations

from pyspark.sql import SparkSession

from gateway.audit import store
from gateway.audit.columns import WINDOW_LENGTHS
from gateway.audit.tables import layout


def register_views(spark: SparkSession, root: str, prefix: str = "") -> list[str]:
    """Make temporary views of the tables that a stream has written to `root`, as they are now: layout.VIEW_SCHEMAS,
    layout.DERIVED_SCHEMAS and WINDOW_LENGTHS (docs/audit.md), each behind `prefix`. Gives their names.

    Raises:
        AuditError: there are no such tables, or Spark has no Delta Lake.
    """
    tables = store.open_tables(spark, root)
    records = tables.load_records()
    frames = {name: store.select_view(records, name) for name in layout.VIEW_SCHEMAS}
    frames |= {name: tables.read_table(name) for name in (*layout.DERIVED_SCHEMAS, *WINDOW_LENGTHS)}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(f"{prefix}{name}")
    return [f"{prefix}{name}" for name in frames]
