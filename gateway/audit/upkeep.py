# Keeping the tables in order while a stream writes and others read: small files become large ones, old days expire, and
# what nobody can need any more is deleted.
#
# Nothing is changed in place. Large files are written beside the small ones; one commit makes the readers' next look
# see those instead of these; the small ones go only when everybody has had time to look again. Whatever is killed in
# between leaves files that no commit names, and a later run deletes them. Knows nothing of Kafka and of what the rows
# mean.

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import commits, job, layout, schema, store, transforms
from gateway.audit.commits import Commit, Coverage, Group
from gateway.audit.errors import AuditError
from gateway.audit.progress import watched
from gateway.audit.store import DeltaTables, ParquetTables, Tables

GRACE_MS: Final = 3_600_000  # how long a reader that has begun may go on
_TARGET_BYTES: Final = 128 * 1024 * 1024
# A rewrite that takes longer than this does not commit, and what one leaves behind is deleted after twice as long.
_LONGEST_MS: Final = 12 * 3_600_000


@dataclass(slots=True)
class Done:
    """What an upkeep has done."""

    commits: int = 0  # taken together
    files_before: int = 0
    files_after: int = 0
    deleted: int = 0  # files of the log and directories
    notes: list[str] = field(default_factory=list)


def compact(
    tables: Tables, older_than_ms: int = 0, grace_ms: int = GRACE_MS, tell: Callable[[str], None] = job.no_progress
) -> Done:
    """Few large files in place of many small ones, of what was written longer ago than `older_than_ms`.

    Raises:
        AuditError: somebody else did the same at the same time; nothing is lost, run it again.
    """
    if isinstance(tables, DeltaTables):
        return _compact_delta(tables, tell)
    assert isinstance(tables, ParquetTables)
    now = store.now_ms()
    state = tables.state()
    chosen = [each for each in state.live.values() if each.at_ms <= now - older_than_ms]
    done = Done()
    if len(chosen) > 1:
        name = f"{commits.REWRITE}-{now:015d}-{uuid.uuid4().hex}"
        groups: list[Group] = []
        for table in layout.KEYS:
            theirs = [group for each in chosen for group in each.groups if group.table == table]
            small = _worth_it(theirs)
            kept = [group for group in theirs if group not in small]
            made = _rewrite(tables, table, small, name, tables.read_groups(table, small), tell) if small else []
            groups += [*kept, *made]
            done.files_before += sum(group.files for group in theirs)
            done.files_after += sum(group.files for group in (*kept, *made))
        done.commits = len(chosen)
        _commit(tables, chosen, groups, state.horizon, now)
    done.deleted = clear(tables, grace_ms)
    return done


def expire(
    tables: Tables, keep_ms: int, grace_ms: int = GRACE_MS, tell: Callable[[str], None] = job.no_progress
) -> Done:
    """Let go of the days (UTC) that ended longer ago than `keep_ms`.

    Of `intervals` the lives stay whole that go on after those days or have no end: otherwise each would begin with a
    gap.

    Raises:
        AuditError: somebody rewrote the same files at the same time; nothing is lost, run it again.
    """
    now = store.now_ms()
    horizon = store.iso_day(now - keep_ms)
    before = F.col("date") < F.lit(horizon).cast("date")
    intervals = tables.read("intervals")
    if isinstance(tables, DeltaTables):
        return _expire_delta(tables, horizon, intervals.where(before), _needed(intervals, ~before), tell)
    assert isinstance(tables, ParquetTables)
    state = tables.state()
    done = Done()
    if horizon > state.horizon:
        chosen = [each for each in state.live.values() if any(group.date < horizon for group in each.groups)]
        theirs = [group for each in chosen for group in each.groups]
        old = [group for group in theirs if group.date < horizon]
        groups = [group for group in theirs if group.date >= horizon]
        past = [group for group in old if group.table == "intervals"]
        if past:
            kept = _needed_rows(tables.read_groups("intervals", past), _needed(intervals, ~before))
            name = f"{commits.REWRITE}-{now:015d}-{uuid.uuid4().hex}"
            groups += _rewrite(tables, "intervals", past, name, kept, tell, whole=False)
        done.commits = len(chosen)
        done.files_before = sum(group.files for group in theirs)
        done.files_after = sum(group.files for group in groups)
        _commit(tables, chosen, groups, horizon, now)
    done.deleted = clear(tables, grace_ms)
    return done


def clear(tables: ParquetTables, grace_ms: int = GRACE_MS) -> int:
    """Delete what nobody can need any more; gives how many files of the log and directories that were."""
    now = store.now_ms()
    state = tables.state()
    names = commits.doomed(state, now, grace_ms)
    for name in names:
        tables.files.delete(f"{store.LOG}/{name}.json")
    state = tables.state()
    named = {group.path for commit in state.everything.values() for group in commit.groups}
    folders = {"/".join(path.split("/")[:2]) for path in named}
    deleted = len(names)
    for table in layout.TABLES:
        for folder in (f"{table}/{each}" for each, _, _ in tables.files.list(table) if each.startswith("commit=")):
            if folder in folders:
                inside = [f"{folder}/{each}" for each, _, _ in tables.files.list(folder) if each.startswith("date=")]
                unused = [path for path in inside if path not in named]
            elif commits.abandoned(folder.partition("=")[2], state, now, 2 * _LONGEST_MS) or _cleared(folder, names):
                unused = [folder]
            else:
                unused = []
            for path in unused:
                tables.files.delete(path)
                deleted += 1
    for name, _, modified in tables.files.list(store.LOG):
        if name.startswith(".tmp-") and modified < now - 2 * _LONGEST_MS:
            tables.files.delete(f"{store.LOG}/{name}")
    return deleted


def _cleared(folder: str, names: Iterable[str]) -> bool:
    # Just cleared from the log, hence written to its end long ago.
    return folder.partition("=")[2] in names


def _worth_it(groups: list[Group]) -> list[Group]:
    """Those that lie beside others of the same day and are small."""
    small = [group for group in groups if group.bytes < _TARGET_BYTES * max(1, group.files) // 2]
    days = [group.date for group in small]
    return [group for group in small if days.count(group.date) > 1 or (group.files > 1 and group.bytes < _TARGET_BYTES)]


def _rewrite(
    tables: ParquetTables,
    table: str,
    groups: list[Group],
    name: str,
    rows: DataFrame,
    tell: Callable[[str], None],
    *,
    whole: bool = True,
) -> list[Group]:
    size = sum(group.bytes for group in groups)
    tell(f"{table}: {sum(group.files for group in groups):,} files, {size / 1e6:,.1f} MB")
    # The days go to different files anyway; a range beyond that only where there is much.
    order = ("date", *layout.ORDER[table])
    files = 1 + size // _TARGET_BYTES
    ordered = rows.repartitionByRange(files, *order) if files > 1 else rows.coalesce(1)
    spans = {
        date: commits.merged_spans(span for group in groups if group.date == date for span in group.spans)
        for date in {group.date for group in groups}
    }
    with watched(tables.spark, tell):
        made = tables.write(table, ordered.sortWithinPartitions(*order), name, files, spans)
    if whole:
        there, here = (tables.read_groups(table, each).count() for each in (groups, made))
        if there != here:
            raise AuditError(f"{table}: {there:,} rows became {here:,}: not committed")
    return made


def _commit(tables: ParquetTables, chosen: list[Commit], groups: list[Group], horizon: str, began_ms: int) -> None:
    state = tables.state()
    late = store.now_ms() - began_ms > _LONGEST_MS
    if late or any(each.name not in state.live for each in chosen):
        raise AuditError("somebody else rewrote the same files meanwhile: nothing is lost, run it again")
    coverage: Coverage = {}
    for each in chosen:
        commits.cover(coverage, each.coverage)
    # Later than every other by name, whatever the clocks say.
    at = max([store.now_ms(), *(each.at_ms + 1 for each in state.everything.values() if each.kind == commits.REWRITE)])
    commit = Commit(
        commits.REWRITE,
        at,
        uuid.uuid4().hex,
        groups=tuple(groups),
        coverage=coverage,
        replaces=frozenset(each.name for each in chosen),
        horizon=horizon,
    )
    tables.put(commit)
    if commit.name not in tables.state().live:
        raise AuditError("somebody else rewrote the same files meanwhile: nothing is lost, run it again")


def _needed(intervals: DataFrame, after: Column) -> DataFrame:
    """The lives that go on after the horizon or have no end."""
    going_on = intervals.where(after).select(*schema.BOOT)
    endless = transforms.boots(intervals).where(F.col("state") == "open").select(*schema.BOOT)
    return going_on.unionByName(endless).distinct()


def _needed_rows(rows: DataFrame, lives: DataFrame) -> DataFrame:
    return rows.join(lives, list(schema.BOOT), "left_semi").select(*layout.TABLES["intervals"].names)


def _compact_delta(tables: DeltaTables, tell: Callable[[str], None]) -> Done:
    done = Done()
    for table in layout.KEYS:
        if not tables.files.list(f"{table}/_delta_log"):
            continue
        tell(f"{table}: OPTIMIZE, VACUUM")
        with watched(tables.spark, tell):
            row = tables.spark.sql(f"OPTIMIZE delta.`{tables.path(table)}`").collect()[0]["metrics"]
            tables.spark.sql(f"VACUUM delta.`{tables.path(table)}`")
        done.files_before += row["numFilesRemoved"]
        done.files_after += row["numFilesAdded"]
        done.commits += 1
    return done


def _expire_delta(
    tables: DeltaTables, horizon: str, past: DataFrame, needed: DataFrame, tell: Callable[[str], None]
) -> Done:
    done = Done()
    if horizon <= tables.horizon():
        return done
    tables.set_horizon(horizon)
    # `intervals` last, and for the stream's sake only after the horizon: what is deleted there could be read again.
    for table in sorted(commits.EXPIRING):
        if tables.files.list(f"{table}/_delta_log"):
            tell(f"{table}: DELETE before {horizon}")
            tables.spark.sql(f"DELETE FROM delta.`{tables.path(table)}` WHERE date < DATE'{horizon}'")  # noqa: S608
            done.commits += 1
    if tables.files.list("intervals/_delta_log"):
        kept = _needed_rows(past, needed).write.format("delta").mode("overwrite")
        kept.option("replaceWhere", f"date < DATE'{horizon}'").save(tables.path("intervals"))
        done.commits += 1
    return done
