# Keeping the tables in order while a stream writes and others read: small files become large ones, old days expire, and
# files that no reader can need any more are deleted.
#
# Each step is one commit of Delta Lake's that changes no answer, so either command may be killed at any moment and run
# again. Knows nothing of Kafka and of what the rows mean.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit.batch import transforms
from gateway.audit.batch.query import ignore_progress
from gateway.audit.batch.rollups.reading import open_rolled
from gateway.audit.batch.rollups.update import join_partial_rows, update_rollups
from gateway.audit.columns import WINDOW_LENGTHS
from gateway.audit.errors import AuditError
from gateway.audit.spark import schema
from gateway.audit.spark.progress import watch_progress
from gateway.audit.store import AuditTables
from gateway.audit.tables import layout, table_log, table_version
from gateway.audit.tables.table_version import CommitConflict

# How long a reader may go on with the files that it began with, and how long a writer may take until it commits.
GRACE_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class UpkeepResult:
    """An upkeep's results."""

    files_before: int  # of the table `records`
    files_after: int
    deleted: int  # files that no reader could need any more


def compact_tables(
    tables: AuditTables, grace_ms: int = GRACE_MS, tell: Callable[[str], None] = ignore_progress
) -> UpkeepResult:
    """Few large files in place of many small ones.

    Raises:
        AuditError: another process rewrote the same files at the same time; nothing is lost, run it again.
    """

    def join_rows() -> None:
        update_rollups(tables, tell, is_rewritten=True)
        for table in WINDOW_LENGTHS:
            join_partial_rows(tables, table)

    return _run_upkeep(tables, [f"OPTIMIZE {tables.sql_path(table_log.RECORDS_TABLE)}"], join_rows, grace_ms, tell)


def expire_usage(
    tables: AuditTables, keep_ms: int, grace_ms: int = GRACE_MS, tell: Callable[[str], None] = ignore_progress
) -> UpkeepResult:
    """Let go of the days (UTC) that ended longer ago than `keep_ms`.

    The intervals of those lives stay that go on after those days or have no end: otherwise each would begin with a gap.

    Raises:
        AuditError: another process rewrote the same files at the same time; nothing is lost, run it again.
    """
    number = max(1, (table_version.now_ms() - keep_ms) // table_log.DAY_MS)  # days since 1970-01-01; 0 would be none
    # This alone decides what readers see. The rest only makes room, and is the same however often it is done.
    tables.expire_before(number)
    records, horizon = tables.sql_path(table_log.RECORDS_TABLE), f"DATE'{tables.first_kept_day()}'"

    def expire_rollups() -> None:
        for table in WINDOW_LENGTHS:
            if tables.table_exists(table):
                tables.run_statement(f"DELETE FROM {tables.sql_path(table)} WHERE date < {horizon}")  # noqa: S608
        update_rollups(tables, tell, has_expired=True)

    _mark_needed_lives(tables).createOrReplaceTempView("_lives")
    return _run_upkeep(
        tables,
        [
            f"DELETE FROM {records} WHERE date < {horizon} AND NOT coalesce(counts, false)",  # noqa: S608
            f"MERGE INTO {records} r USING _lives l ON r.date < {horizon}"
            f" AND {' AND '.join(f'r.{name} = l.{name}' for name in schema.BOOT_COLUMNS)}"
            " WHEN MATCHED AND NOT l.needed THEN DELETE"
            " WHEN MATCHED AND r.rows IS NOT NULL THEN UPDATE SET rows = NULL",
        ],
        expire_rollups,
        grace_ms,
        tell,
    )


def _mark_needed_lives(tables: AuditTables) -> DataFrame:
    """columns.BOOT_COLUMNS and `needed`: the life goes on after the horizon, or has no end."""
    numbering = open_rolled(tables).load_numbering()  # some rows for each life, of however many records
    later = F.max(F.col("end_ms") >= table_log.day_start_ms(tables.first_kept_day())).alias("later")
    open_ones = transforms.summarize_boots(numbering).select(
        *schema.BOOT_COLUMNS, (F.col("state") == "open").alias("open")
    )
    lives = numbering.groupBy(*schema.BOOT_COLUMNS).agg(later).join(open_ones, list(schema.BOOT_COLUMNS))
    return lives.select(*schema.BOOT_COLUMNS, (F.col("later") | F.col("open")).alias("needed"))


def _run_upkeep(
    tables: AuditTables,
    statements: list[str],
    keep_rollups: Callable[[], None],
    grace_ms: int,
    tell: Callable[[str], None],
) -> UpkeepResult:
    """The statements on `records`, then the same for the roll-ups if there are any, then what nobody needs any more."""
    before = tables.count_live_files(table_log.RECORDS_TABLE)
    try:
        with watch_progress(tables.spark, tell):
            for statement in statements:
                tell(f"{table_log.RECORDS_TABLE}: {statement.split()[0]} in {before:,} files")
                tables.run_statement(statement)
            if tables.table_exists(table_log.PROGRESS_TABLE):
                keep_rollups()
            deleted = sum(tables.delete_leftovers(table, grace_ms) for table in layout.ALL_TABLES)
    except CommitConflict:
        raise AuditError("another process rewrote the same files meanwhile: nothing is lost, run it again") from None
    return UpkeepResult(before, tables.count_live_files(table_log.RECORDS_TABLE), deleted)
