"""The audit's tables as they are with many times the records: those in a folder, and copies of them at earlier times.

To stream 100 million records takes more than an hour of CPU, to copy a million of them a hundred times three minutes.
Copies have lives, times, days and offsets (of another topic) of their own, and the roll-ups have them too, so that
streams, questions and upkeep take them for records of a longer log.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from gateway.audit.columns import WINDOW_COLUMN, WINDOW_LENGTHS
from gateway.audit.records.table_files import FileMaker
from gateway.audit.store import BOUNDED_COLUMNS
from gateway.audit.tables.table_log import DAY_MS, PROGRESS_TABLE, READ, RECORDS_TABLE, ROLLUP

_TIMES: Final = ("start_ms", "end_ms", "timestamp_ms", WINDOW_COLUMN)
_EPOCH: Final = date(1970, 1, 1)


class _Copy(NamedTuple):
    """One of the copies. `number`: from 1 on, each earlier than the one before."""

    number: int
    days: int  # by which it is earlier
    offset: int  # of its first record

    def shift_day(self, day: date) -> date:
        return day - timedelta(self.days)

    def shift_rows(self, rows: pa.Table) -> pa.Table:
        """Rows of any of the tables as it has them."""
        for name in _TIMES:
            rows = _replace(rows, name, lambda column: pc.subtract(column, self.days * DAY_MS))
        rows = _replace(rows, "offset", lambda column: pc.add(column, self.offset))
        rows = _replace(rows, "topic_id", lambda column: pc.if_else(pc.is_valid(column), "copies", column))
        rows = _replace(rows, "date", lambda column: _map_values(column, self.shift_day))
        return _replace(rows, "boot", lambda column: _map_values(column, self._name_life))

    def _name_life(self, boot: str) -> str:
        return uuid.uuid5(uuid.NAMESPACE_OID, f"{boot} {self.number}").hex


def _replace(rows: pa.Table, name: str, make: Callable[[pa.ChunkedArray], Any]) -> pa.Table:
    at = rows.schema.get_field_index(name)
    return rows if at < 0 else rows.set_column(at, rows.schema.field(at), make(rows[name]))


def _map_values(column: pa.ChunkedArray, change: Callable[[Any], Any]) -> pa.Array:
    encoded = column.combine_chunks().dictionary_encode()
    return pa.array(map(change, encoded.dictionary.to_pylist()), encoded.dictionary.type).take(encoded.indices)


class _Table:
    """One of Delta's tables, in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = DeltaTable(str(folder))
        self.files = [uri.removeprefix("file://").removeprefix(f"{folder}/") for uri in self.log.file_uris()]

    def read_files(self) -> Iterator[tuple[date | None, pa.Table]]:
        """The rows of each file, and its day, without the column that says so."""
        for name in self.files:
            day = date.fromisoformat(name[5:15]) if name.startswith("date=") else None
            rows = pq.ParquetFile(self.folder / name).read()
            yield day, rows.drop_columns(["date"]) if day and "date" in rows.column_names else rows

    def add_file(self, day: date, rows: pa.Table, bounded: Sequence[str]) -> dict[str, Any]:
        """Write it; gives the action that adds it."""
        maker = FileMaker(rows.column_names, bounded)
        maker.add_rows(rows)
        file = maker.finish((day - _EPOCH).days)
        return self._write_file(f"date={day}/part-{uuid.uuid4()}.c000.zstd.parquet", {"date": str(day)}, *file[1:])

    def replace_files(self, rows: pa.Table) -> None:
        """Write these rows in the place of all others, in a table without days."""
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, store_schema=False)
        added = self._write_file(f"part-{uuid.uuid4()}.c000.snappy.parquet", {}, sink.getvalue().to_pybytes(), "{}")
        gone = {"deletionTimestamp": _now_ms(), "dataChange": True}
        self.commit([*({"remove": {"path": name, **gone}} for name in self.files), added])

    def _write_file(self, name: str, partition: dict[str, str], contents: bytes, stats: str) -> dict[str, Any]:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(contents)
        told = {"path": name, "partitionValues": partition, "size": len(contents), "stats": stats}
        return {"add": told | {"modificationTime": _now_ms(), "dataChange": True}}

    def commit(self, actions: Iterable[dict[str, Any]]) -> int:
        """Add a version to its log, and give its number."""
        number = self.log.version() + 1
        told = {"commitInfo": {"timestamp": _now_ms(), "operation": "Manual Update", "operationParameters": {}}}
        text = "".join(f"{json.dumps(action)}\n" for action in (told, *actions))
        (self.folder / "_delta_log" / f"{number:020d}.json").write_text(text)
        return number


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def multiply_tables(base: Path, target: Path, copies: int) -> None:
    """Make the tables `target` of those in `base`, of which roll-ups have all records, and so many copies of them."""
    shutil.copytree(base, target)
    records, progress = _Table(target / RECORDS_TABLE), _Table(target / PROGRESS_TABLE)
    if not copies:
        return
    days = sorted(date.fromisoformat(name[5:15]) for name in records.files)
    span = (days[-1] - days[0]).days + 1
    offsets = 1 + max(pc.max(rows["offset"]).as_py() for _, rows in records.read_files())
    every = [_Copy(number, number * span, (copies - number) * offsets) for number in range(1, copies + 1)]
    version = records.commit(_copy_files(records, every, BOUNDED_COLUMNS))
    step = progress.log.transaction_version(ROLLUP)
    assert step is not None
    for name in WINDOW_LENGTHS:
        sums = _Table(target / name)
        # It may be at a step before, behind which files of records were only written again.
        reached = {"txn": {"appId": ROLLUP, "version": step, "lastUpdated": _now_ms()}}
        sums.commit([*_copy_files(sums, every, (WINDOW_COLUMN,)), reached])
    rows = pa.concat_tables([rows for _, rows in progress.read_files()])
    is_read = pc.equal(rows["entry"], READ)
    reads = rows.filter(pc.and_(is_read, pc.equal(pc.fill_null(rows["step"], -1), step // 2)))
    reads = _replace(reads, "records_version", lambda column: pa.repeat(version, len(column)))
    others = rows.filter(pc.invert(is_read))
    found = [reads, every[0].shift_rows(reads), others, *(copy.shift_rows(others) for copy in every)]
    progress.replace_files(pa.concat_tables(found))


def _copy_files(table: _Table, copies: Sequence[_Copy], bounded: Sequence[str]) -> Iterator[dict[str, Any]]:
    for day, rows in table.read_files():
        assert day is not None
        for copy in copies:
            yield table.add_file(copy.shift_day(day), copy.shift_rows(rows), bounded)
