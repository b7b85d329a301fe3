# Files of Delta Lake's tables, made where their rows are: Parquet, and what the table's log says of it.
#
# Knows neither Spark nor a file system.

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_MAX_TEXT: Final = 100  # characters of a text that may be a bound
_GROUP_ROWS: Final = 2**17


class TableFile(NamedTuple):
    """A file of one day's rows, which is to be added to a table."""

    day: int  # after 1970-01-01
    contents: bytes  # Parquet, without the column `date`
    stats: str  # as Delta Lake has them


class FileMaker:
    """Makes the contents of a file with these columns; its stats have the bounds of `bounded`."""

    def __init__(self, columns: Sequence[str], bounded: Sequence[str]) -> None:
        self._columns, self._bounded = list(columns), bounded
        self._sink = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0
        self._bounds: dict[str, list[Any]] = {name: [] for name in bounded}
        self._nulls = dict.fromkeys(bounded, 0)

    @property
    def size(self) -> int:
        """In bytes, so far."""
        return int(self._sink.tell())

    def add_rows(self, rows: pa.Table) -> None:
        """Add a row group, or several."""
        table = rows.select(self._columns)
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._sink, table.schema, compression="zstd", store_schema=False, write_page_index=True
            )
        self._writer.write_table(table, row_group_size=_GROUP_ROWS)
        self._rows += table.num_rows
        for name in self._bounded:
            self._nulls[name] += table[name].null_count
            self._bounds[name] += [each for each in pc.min_max(table[name]).as_py().values() if each is not None]

    def finish(self, day: int) -> TableFile:
        """The file; rows were added."""
        assert self._writer is not None
        self._writer.close()
        told = {name: found for name, found in self._bounds.items() if found and not any(map(_is_long, found))}
        stats = {
            "numRecords": self._rows,
            "minValues": {name: min(found) for name, found in told.items()},
            "maxValues": {name: max(found) for name, found in told.items()},
            "nullCount": self._nulls,
        }
        return TableFile(day, self._sink.getvalue().to_pybytes(), json.dumps(stats))


def read_files(files: Iterable[TableFile]) -> pa.Table:
    """The rows of files of the same columns."""
    return pa.concat_tables([pq.read_table(pa.BufferReader(file.contents)) for file in files])


def _is_long(value: object) -> bool:
    return isinstance(value, str) and len(value) > _MAX_TEXT
