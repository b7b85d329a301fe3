# The tables of `audit stream` without Java: deltalake reads Delta Lake's log, DuckDB the files. Gives a CountedRecords
# and says what Spark says of the same tables (job.read_tables): sums from the roll-ups wherever they answer exactly,
# else from the records; gaps from the runs of numbers that the roll-ups keep, and the records behind them.

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import duckdb
from deltalake.exceptions import DeltaError, TableNotFoundError

from gateway.audit.answers import windows
from gateway.audit.answers.answer import RepeatedRows
from gateway.audit.batch.query import (
    AuditQuery,
    IntervalSpan,
    LargestGroups,
    LogIntegrity,
    assess_integrity,
    count_kinds,
    ignore_progress,
)
from gateway.audit.batch.rollups.windows import TimeRange, split_time
from gateway.audit.columns import (
    BOOT_COLUMNS,
    NUMBERED_DIMENSIONS,
    RECORD_DIMENSIONS,
    RUN_FIELDS,
    WINDOW_COLUMN,
    WINDOW_LENGTHS,
)
from gateway.audit.errors import AuditError, plain_line
from gateway.audit.local.records import Collector
from gateway.audit.local.run_lives import NumberRun, RunLife
from gateway.audit.local.sums import GroupSums, rank_rows
from gateway.audit.records import decoding
from gateway.audit.records.decoding import RecordRow, RecordSpread, RecordVolume, UsageRecord
from gateway.audit.tables import table_log
from gateway.audit.tables.table_log import DAY_MS, RollupStep, iso_day
from gateway.audit.tables.table_version import TableVersion
from policies import usage

_FETCHED_ROWS = _HELD_ROWS = 10_000
_MEMORY: Final = "1GB"  # of DuckDB's; beyond it, it goes on on disk
_ANSWER: Final = "answer"
_DAY_OF_FILE: Final = "regexp_extract(filename, 'date=([^/]*)/[^/]*$', 1)::DATE"
_TYPES: Final = {"int": "BIGINT", "str": "VARCHAR", "bool": "BOOLEAN"}
_VOLUME_FIELDS: Final = usage.VOLUME_FIELDS | usage.OPTIONAL_VOLUME_FIELDS
_ROW_FIELDS: Final = {name: _TYPES[kind] for name, kind in {**usage.ROW_FIELDS, **usage.OPTIONAL_ROW_FIELDS}.items()}


def _list_type(fields: Mapping[str, str]) -> str:
    return "STRUCT(" + ", ".join(f'"{name}" {kind}' for name, kind in fields.items()) + ")[]"


# The columns that are looked at; a file that was written before one of them was added has none of it.
_RECORD_COLUMNS: Final = {
    **{name: _TYPES[kind] for name, kind in {**usage.HEADER_FIELDS, **usage.OPTIONAL_HEADER_FIELDS}.items()},
    **dict.fromkeys(("changed", "counts", "conflict"), "BOOLEAN"),
    **dict.fromkeys(("problem", "origin_topic", "topic_id"), "VARCHAR"),
    "partition": "INTEGER",
    "offset": "BIGINT",
    "value": "BLOB",
    "rows": _list_type(_ROW_FIELDS),
    usage.VOLUMES: _list_type({name: _TYPES[kind] for name, kind in _VOLUME_FIELDS.items()}),
    usage.SPREAD: _list_type({name: _TYPES[kind] for name, kind in usage.SPREAD_FIELDS.items()}),
    "date": "DATE",
}
_SUM_COLUMNS: Final = {
    WINDOW_COLUMN: "BIGINT",
    "date": "DATE",
    **dict.fromkeys(RECORD_DIMENSIONS, "VARCHAR"),
    "worker": "BIGINT",
    **_ROW_FIELDS,
}
_PROGRESS_COLUMNS: Final = {
    **{name: _TYPES[kind] for name, kind in RUN_FIELDS.items()},
    **dict.fromkeys(("entry", "records_id", "topic_id", "problem"), "VARCHAR"),
    **dict.fromkeys(("step", "records_version", "offset", "count"), "BIGINT"),
    **dict.fromkeys(("counts", "conflict"), "BOOLEAN"),
    "partition": "INTEGER",
    "date": "DATE",
}
_RUN_COLUMNS: Final = (
    *("gateway", "boot", "worker", "kind", "seq AS first_seq", "seq AS last_seq", "part", "parts", "final", "start_ms"),
    *("end_ms", "cluster", "previous_digest", "record_digest", "coalesce(changed, false)::BIGINT AS changed_records"),
    "(record_digest IS NOT NULL AND changed IS NULL)::BIGINT AS unchecked_records",
)
_AMOUNTS: Final = (
    *(f"sum({name})" for name in (*usage.MEASURES, "delay_ms")),
    "sum(coalesce(repeats, 0))",
    "sum(CASE WHEN repeats IS NULL THEN bytes ELSE 0 END)",
)


class UnreadableFeature(AuditError):
    """The tables need more of Delta Lake than there is without Spark."""


class _DeltaFiles(TableVersion):
    """One of Delta's tables in its newest version.

    Raises:
        UnreadableFeature: it needs a newer protocol than the one that its files alone tell everything in.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder
        if self.reader_features:
            raise UnreadableFeature(
                f"{folder} has features that only Spark reads here ({self.reader_features}): use --engine spark"
            )

    def list_files(self, since: int = -1) -> list[str]:
        """All files, or those that were not there in version `since`, where that is known."""
        added = self.find_added(since)
        return [str(file["path"]) for file in (self.describe_files() if added is None else added)]

    def size(self, paths: Iterable[str]) -> int:
        """Bytes of these files."""
        return sum((self._folder / path).stat().st_size for path in paths)

    def select(self, columns: Mapping[str, str], paths: Sequence[str], days: Sequence[TimeRange] = ()) -> str:
        """A query for these columns of some of the files; `days`: of the days where intervals of these times are."""
        names = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in columns.items())
        nothing = f"SELECT {names} LIMIT 0"
        chosen = [path for path in paths if not days or any(_may_have(path, bounds) for bounds in days)]
        if not chosen:
            return nothing
        listed = ", ".join(_quote(str(self._folder / path)) for path in chosen)
        # DuckDB's own way would also take `cluster=x` in the place of the tables for a column's value.
        found = f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false, filename = true)"
        # From Delta Lake 4.4 on files have the column that they are partitioned by, too.
        every = f"COLUMNS(lambda name: name <> 'date'), {_DAY_OF_FILE} AS date" if "/" in chosen[0] else "*"
        wanted = ", ".join(f'"{name}"' for name in columns)
        both = f"({nothing}) UNION ALL BY NAME SELECT {every} FROM {found}"  # noqa: S608
        return f"SELECT {wanted} FROM ({both})"  # noqa: S608


@dataclass(frozen=True, slots=True)
class _RollupTables:
    """The roll-ups at one moment. `sums`: those of known contents; `progress`: None where there is none of these
    tables.
    """

    reached: RollupStep
    sums: Mapping[str, tuple[_DeltaFiles, RollupStep]]
    progress: _DeltaFiles | None


class LocalTables:
    """A CountedRecords of the tables in a directory, as they are when it is made.

    Raises:
        AuditError: there are none, or of a newer layout; any method: they can't be read.
    """

    def __init__(self, root: str) -> None:
        self._root = Path(root).absolute()
        self._base = duckdb.connect(
            config={
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "memory_limit": _MEMORY,
                # DuckDB makes it when an answer needs more than memory, and takes it away.
                "temp_directory": f"{tempfile.gettempdir()}/produce-gateway-audit-{secrets.token_hex(8)}",
            }
        )
        with _translated_errors(self._root):
            rollups = self._load_rollups()  # before the records that they are read with
            records = _open_files(self._root / table_log.RECORDS_TABLE)
            if records is None:
                raise AuditError(table_log.missing_tables_text(root))
            self._records = records
            table_log.check_layout(root, records.properties.get(table_log.LAYOUT_PROPERTY) or "")
            expired = records.committed_version(table_log.EXPIRED)
            self._first_day = iso_day(expired) if expired else ""
            self._rollups = self._fit_rollups(*rollups)
            self._later = self._later_files(self._rollups.reached)

    @property
    def later_bytes(self) -> int:
        """The size of the files of records behind the roll-ups."""
        return self._records.size(self._later)

    @property
    def record_bytes(self) -> int:
        """The size of all files of records."""
        return self._records.size(self._records.list_files())

    @property
    def sources(self) -> list[dict[str, Any]]:
        """As CountedRecords has it."""
        return [table_log.describe_tables(f"file:{self._root}", self._first_day)]

    def sum_groups(self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress) -> list[dict[str, Any]]:
        """As CountedRecords has it."""
        with self.open_groups(question, tell) as rows:
            return [*rows]

    @contextmanager
    def open_groups(
        self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress
    ) -> Iterator[Iterable[dict[str, Any]]]:
        """As CountedRecords has it. DuckDB keeps them, on disk what doesn't fit into memory."""
        tell("summing up")
        with _translated_errors(self._root):
            self._base.execute(f"CREATE OR REPLACE TABLE {_ANSWER} AS {self._group_query(question)}")
        try:
            yield RepeatedRows(lambda: self._make_rows(question))
        finally:
            self._base.execute(f"DROP TABLE {_ANSWER}")

    def rank_groups(
        self,
        question: AuditQuery,
        what: str,
        limit: int,
        tell: Callable[[str], None] = ignore_progress,
        least: int = 1,
    ) -> LargestGroups:
        """As CountedRecords has it."""
        with self.open_groups(question, tell) as rows:
            return rank_rows(rows, question, what, limit, least)

    def prepare(
        self, questions: Sequence[AuditQuery], spans: AuditQuery, tell: Callable[[str], None] = ignore_progress
    ) -> None:
        """As CountedRecords has it: each question reads other tables."""

    def measure_spans(self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress) -> list[IntervalSpan]:
        """As CountedRecords has it."""
        tell("looking at intervals")
        ranges = [(question.from_ms, question.to_ms)]
        found = self._records.select(_RECORD_COLUMNS, self._records.list_files(), ranges)
        chosen = f"counts AND kind = {_quote(usage.INTERVAL)} AND {_within('start_ms', ranges)}"
        ends = f"min(start_ms), max(start_ms), max(end_ms), min({usage.STORAGE_FACTOR})"
        query = f"SELECT {_window_start(question)}, {ends} FROM ({found}) WHERE {chosen} GROUP BY 1 ORDER BY 1"  # noqa: S608
        with _translated_errors(self._root):
            return [*map(IntervalSpan._make, self._fetch(query))]

    def collect(
        self, make: Callable[[], Collector], question: AuditQuery, tell: Callable[[str], None] = ignore_progress
    ) -> Collector:
        """As CollectedRecords has it; of expired days, records have no rows."""
        tell("reading the tables")
        ranges = [(question.from_ms, question.to_ms)]
        found = self._records.select(_RECORD_COLUMNS, self._records.list_files(), ranges)
        names = [name for name in usage.HEADER_FIELDS | usage.OPTIONAL_HEADER_FIELDS if name != "version"]
        rows = f"CASE WHEN {self._is_kept} THEN rows END"
        chosen = f"counts AND {_within('start_ms', ranges)}"
        columns = f"{rows}, {usage.VOLUMES}, {usage.SPREAD}, {', '.join(names)}"
        query = f"SELECT {columns} FROM ({found}) WHERE {chosen}"  # noqa: S608
        collector = make()
        with _translated_errors(self._root):
            for of_one, volumes, spread, *values in self._fetch(query):
                record = UsageRecord(
                    version=usage.VERSION,
                    rows=[RecordRow(**row) for row in of_one or ()],
                    volumes=volumes and [RecordVolume(**each) for each in volumes],
                    spread=spread and [RecordSpread(**each) for each in spread],
                    **dict(zip(names, values, strict=True)),
                )
                collector.add_record(record)
        return collector

    def find_gaps(self, question: AuditQuery, tell: Callable[[str], None] = ignore_progress) -> LogIntegrity:
        """As CountedRecords has it."""
        tell("looking for gaps")
        with _translated_errors(self._root):
            counted = self._count_records()
            lives = self._load_lives()
        found = [(*life.summarize(), life) for life in lives]
        gaps = (gap for row, is_whole, life in found if not is_whole for gap in life.find_gaps(row))
        boots = [row for row, _, _ in found]
        broken = {life.key: life.count_broken() for row, _, life in found if row["chained"]}
        return assess_integrity(counted, boots, gaps, question, self.sources, broken)

    def _group_query(self, question: AuditQuery) -> str:
        """The sums of rows by window, the question's columns, outcome and reason."""
        names = [
            f'"{name}"' if name in NUMBERED_DIMENSIONS else f"coalesce(\"{name}\", '')"
            for name in _group_columns(question)
        ]
        keys = [f"{name} AS key_{at}" for at, name in enumerate([_window_start(question), *names])]
        rows = " UNION ALL BY NAME ".join(f"({part})" for part in self._select_rows(question))
        grouped = ", ".join(f"key_{at}" for at in range(len(keys)))
        chosen = "true"
        if question.only is not None:
            chosen = f"{names[0]} IN ({', '.join(map(_quote, question.only))})" if question.only else "false"
        return f"SELECT {', '.join((*keys, *_AMOUNTS))} FROM ({rows}) WHERE {chosen} GROUP BY {grouped}"  # noqa: S608

    def _make_rows(self, question: AuditQuery) -> Iterator[dict[str, Any]]:
        """The rows of an AuditReport; no more of them are held than a few thousand, or those of a calendar's window."""
        names = _group_columns(question)
        order = ", ".join(f"key_{at}" for at in range(len(names) + 1))
        of_record, of_row = GroupSums(question).row_columns
        record_at, row_at = [1 + names.index(name) for name in of_record], [1 + names.index(name) for name in of_row]
        known = 1 + len(names)
        key_end = 1 if question.calendar is not None else 1 + len(question.by)

        def find_group(row: tuple[Any, ...]) -> tuple[Any, ...]:
            return windows.find_window(row[0], question.window_ms, question.calendar), *row[1:key_end]

        sums, held = GroupSums(question), 0
        with _translated_errors(self._root):
            ordered = self._fetch(f"SELECT * FROM {_ANSWER} ORDER BY {order}")  # noqa: S608
            for _, rows in groupby(ordered, find_group):
                if held >= _HELD_ROWS:
                    yield from sums.make_rows()
                    sums, held = GroupSums(question), 0
                for row in rows:
                    whose = tuple([row[at] for at in record_at]), tuple([row[at] for at in row_at])
                    sums.add_sums(row[0], *whose, row[known:])
                    held += 1
        yield from sums.make_rows()

    def _select_rows(self, question: AuditQuery) -> Iterator[str]:
        """Queries for rows of usage as RolledUsage.select_rows gives them, each row of one of them."""
        usable = self._rollups.sums
        parts = split_time((question.from_ms, question.to_ms), question.window_ms, usable)
        if parts.rest:
            yield self._select_usage(self._records.list_files(), None, parts.rest)
        behind: dict[int, tuple[RollupStep, list[TimeRange]]] = {}
        for table, ranges in parts.tables.items():
            files, step = usable[table]
            yield self._select_sums(files, ranges)
            behind.setdefault(id(step), (step, []))[1].extend(ranges)
        for step, ranges in behind.values():
            yield self._select_usage(self._later_files(step), step, ranges)

    def _select_sums(self, files: _DeltaFiles, ranges: Sequence[TimeRange]) -> str:
        found = files.select(_SUM_COLUMNS, files.list_files(), ranges)
        within = f"{_within(WINDOW_COLUMN, ranges)} AND {self._is_kept}"
        return f"SELECT * RENAME ({WINDOW_COLUMN} AS start_ms) FROM ({found}) WHERE {within}"  # noqa: S608

    def _select_usage(self, paths: Sequence[str], after: RollupStep | None, ranges: Sequence[TimeRange]) -> str:
        found = self._records.select(_RECORD_COLUMNS, paths, ranges)
        within = f"counts AND {_within('start_ms', ranges)} AND {self._is_kept} AND {_is_beyond(after)}"
        names = "gateway, worker, coalesce(cluster, '') AS cluster, start_ms"
        exploded = f"SELECT {names}, unnest(rows) AS found FROM ({found}) WHERE {within}"  # noqa: S608
        return f"SELECT * EXCLUDE (found), found.* FROM ({exploded})"  # noqa: S608

    @property
    def _is_kept(self) -> str:
        return f"date >= DATE '{self._first_day}'" if self._first_day else "true"

    def _count_records(self) -> dict[str, Any]:
        """The fields of LogIntegrity that are known before gaps are looked for."""
        kinds = "counts, conflict, problem"
        later = f"SELECT {kinds}, 1 AS count FROM ({self._select_later()})"  # noqa: S608
        if self._rollups.progress is not None:
            known = self._select_progress(table_log.COUNT)
            later = (
                f"SELECT {kinds}, count FROM ({known}) WHERE {self._is_kept}"  # noqa: S608
                f" UNION ALL ({later} WHERE {self._is_kept})"
            )
            if self._first_day:
                # Of expired days only records that count are left, and not all of those that the roll-ups had.
                days = (None, table_log.day_start_ms(self._first_day) - 1)
                old = self._records.select(_RECORD_COLUMNS, self._records.list_files(), [days])
                later += f" UNION ALL SELECT {kinds}, 1 FROM ({old}) WHERE NOT ({self._is_kept}) AND counts"  # noqa: S608
        counted = [*self._fetch(f"SELECT {kinds}, sum(count) FROM ({later}) GROUP BY ALL")]  # noqa: S608
        return count_kinds(counted, self._find_samples)

    def _find_samples(self) -> list[dict[str, Any]]:
        later, days = {*self._later}, list[TimeRange]()
        if self._rollups.progress is not None:
            known = self._select_progress(table_log.COUNT)
            found_days = self._fetch(f"SELECT DISTINCT date::VARCHAR FROM ({known}) WHERE problem IS NOT NULL")  # noqa: S608
            days = [(table_log.day_start_ms(day), table_log.day_start_ms(day)) for (day,) in found_days]
        files = self._records.list_files()
        chosen = [path for path in files if path in later or any(_may_have(path, day) for day in days)]
        every = self._records.select(_RECORD_COLUMNS, chosen)
        origin = "concat(origin_topic, '-', partition, '@', \"offset\")"
        bad = f"SELECT {origin}, problem, value FROM ({every}) WHERE problem IS NOT NULL AND {self._is_kept}"  # noqa: S608
        found = decoding.MalformedRecords()
        for place, problem, value in self._fetch(bad):
            found.add_malformed(problem, value, place)
        return found.first_samples()

    def _load_lives(self) -> list[RunLife]:
        numbers = f"SELECT {', '.join(_RUN_COLUMNS)} FROM ({self._select_later()}) WHERE counts"  # noqa: S608
        if self._rollups.progress is not None:
            names = ", ".join(RUN_FIELDS)
            numbers += f" UNION ALL SELECT {names} FROM ({self._select_progress(table_log.RUN)})"  # noqa: S608
        found = self._group_lives(numbers)
        torn = [life.key for life in found if life.has_copies()]
        if not torn:
            return found
        # Only a log that contradicts itself has any, and of it the records say themselves what there is.
        listed = ", ".join(f"({_quote(gateway)}, {_quote(boot)}, {worker})" for gateway, boot, worker in torn)
        every = self._records.select(_RECORD_COLUMNS, self._records.list_files())
        of_these = f"counts AND (gateway, boot, worker) IN ({listed})"
        single = f"SELECT {', '.join(_RUN_COLUMNS)} FROM ({every}) WHERE {of_these}"  # noqa: S608
        whole = {life.key: life for life in self._group_lives(single)}
        return [whole.get(life.key, life) for life in found]

    def _group_lives(self, runs: str) -> list[RunLife]:
        order = ", ".join((*BOOT_COLUMNS, "first_seq", "part", "last_seq"))
        ordered = map(NumberRun._make, self._fetch(f"SELECT * FROM ({runs}) ORDER BY {order}"))  # noqa: S608
        return [RunLife(key, [*of_life]) for key, of_life in groupby(ordered, lambda run: run.life)]

    def _select_later(self) -> str:
        """The records behind the roll-ups."""
        found = self._records.select(_RECORD_COLUMNS, self._later)
        # Of expired days there are only the records that count.
        kept = f"({self._is_kept} OR counts)"
        return f"SELECT * FROM ({found}) WHERE {kept} AND {_is_beyond(self._rollups.reached)}"  # noqa: S608

    def _select_progress(self, entry: str) -> str:
        progress = self._rollups.progress
        assert progress is not None
        found = progress.select(_PROGRESS_COLUMNS, progress.list_files())
        return f"SELECT * FROM ({found}) WHERE entry = {_quote(entry)}"  # noqa: S608

    def _later_files(self, step: RollupStep) -> list[str]:
        return self._records.list_files(step.records_version)

    def _load_rollups(self) -> tuple[dict[str, _DeltaFiles], _DeltaFiles | None]:
        # The sums first: each is at a step that `progress` has by then.
        found = {table: _open_files(self._root / table) for table in WINDOW_LENGTHS}
        sums = {table: files for table, files in found.items() if files is not None}
        return sums, _open_files(self._root / table_log.PROGRESS_TABLE)

    def _fit_rollups(self, sums: Mapping[str, _DeltaFiles], progress: _DeltaFiles | None) -> _RollupTables:
        steps: dict[int, RollupStep] = {}
        if progress is not None:
            found = progress.select(_PROGRESS_COLUMNS, progress.list_files())
            mine = f"entry = {_quote(table_log.READ)} AND records_id = {_quote(self._records.id)}"
            names = 'step, records_version, topic_id, "partition", "offset"'
            for number, version, topic, partition, offset in self._fetch(
                f"SELECT {names} FROM ({found}) WHERE {mine}"  # noqa: S608
            ):
                steps.setdefault(number, RollupStep(version)).offsets[topic, partition] = offset
        table_log.join_equal_steps(steps)
        usable = {
            table: (files, steps[step])
            for table, files in sums.items()
            if (step := files.committed_version(table_log.ROLLUP) // 2) in steps
        }
        last = 0 if progress is None else progress.committed_version(table_log.ROLLUP) // 2
        reached = steps.get(last, RollupStep(-1))
        return _RollupTables(reached, usable, progress if reached.offsets else None)

    def _fetch(self, query: str) -> Iterator[tuple[Any, ...]]:
        found = self._base.cursor().execute(query)
        while rows := found.fetchmany(_FETCHED_ROWS):
            yield from rows


def is_local_path(root: str) -> bool:
    """Whether it is a directory of this machine, and neither a URI nor a place in the file system of a cluster."""
    is_uri = "://" in root or root.startswith("file:")
    return not is_uri and (Path(root).is_dir() or "HADOOP_CONF_DIR" not in os.environ)


def _open_files(folder: Path) -> _DeltaFiles | None:
    """None: there is no such table."""
    try:
        return _DeltaFiles(folder) if folder.is_dir() else None
    except TableNotFoundError:
        return None
    except DeltaError as error:  # what a newer Delta Lake has written, deltalake may not know yet
        raise UnreadableFeature(f"{folder} can't be read here ({plain_line(error)}): use --engine spark") from error


@contextmanager
def _translated_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except (DeltaError, duckdb.Error, OSError) as error:
        raise AuditError(f"{root} can't be read: {plain_line(error)}") from error


def _group_columns(question: AuditQuery) -> list[str]:
    """What rows are grouped by beside windows, the question's columns first."""
    return [*question.by, *(name for name in ("outcome", "reason") if name not in question.by)]


def _window_start(question: AuditQuery) -> str:
    step = question.window_ms
    return f"start_ms - start_ms % {step}" if step else "0"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _within(column: str, ranges: Sequence[TimeRange]) -> str:
    """Whether it is in one of these ranges."""
    found = [
        " AND ".join(
            [
                *([f"{column} >= {begin}"] if begin is not None else []),
                *([f"{column} < {end}"] if end is not None else []),
                "true",
            ]
        )
        for begin, end in ranges
    ]
    return "(" + " OR ".join(f"({each})" for each in found) + ")" if found else "false"


def _may_have(path: str, bounds: TimeRange) -> bool:
    """Whether a file of the day that its name tells may have intervals that start within the bounds."""
    day = path.partition("date=")[2].partition("/")[0]
    begin, end = bounds
    return (begin is None or day >= iso_day(begin // DAY_MS)) and (end is None or day <= iso_day(end // DAY_MS))


def _is_beyond(step: RollupStep | None) -> str:
    """Whether a record comes after a step."""
    if step is None:
        return "true"
    found = [
        f'NOT (topic_id = {_quote(topic)} AND "partition" = {partition} AND "offset" <= {offset})'
        for (topic, partition), offset in step.offsets.items()
    ]
    return " AND ".join(["true", *found])
