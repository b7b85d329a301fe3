# Sums of rows of usage by minutes, hours and days, as files of the tables of sums: made where the records are read. A
# row costs a twentieth of what it costs as rows of Spark's.
#
# Knows neither Spark nor a file system.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.audit.columns import RECORD_DIMENSIONS, WINDOW_COLUMN, WINDOW_LENGTHS
from gateway.audit.records.record_batches import ROW_TYPE
from gateway.audit.records.table_files import FileMaker, TableFile, read_files
from gateway.audit.tables.table_log import DAY_MS, Offsets
from policies import usage

SUM_FILES_SCHEMA: Final = pa.schema(
    [("table", pa.string()), ("day", pa.int64()), ("contents", pa.binary()), ("stats", pa.string())]
)
_SUMS: Final = (*usage.MEASURES, "delay_ms", "repeats")
SUM_COLUMNS: Final = (WINDOW_COLUMN, *usage.DIMENSIONS, *_SUMS)
_MAX_ROWS: Final = 2**17  # before they are summed up
_MAX_GROUPS: Final = 2**18  # before they are handed on: some hundred megabytes
_BATCH_RECORDS: Final = 10_000
_MAX_JOINED_BYTES: Final = 2**22


def sum_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Files of WINDOW_LENGTHS (SUM_FILES_SCHEMA) with the sums of batches with the columns gateway, worker, cluster,
    start_ms and rows.

    Raises:
        OverflowError: a sum may be beyond 64 bits.
    """
    minutes: list[pa.Table] = []
    for rows in _gather(batches):
        minutes.append(_condense(rows, min(WINDOW_LENGTHS.values())))
        if sum(each.num_rows for each in minutes) > _MAX_GROUPS:
            yield from _make_files(minutes)
            minutes = []
    yield from _make_files(minutes)


def sum_files(batches: Iterable[pa.RecordBatch], after: Offsets, until: Offsets) -> Iterator[pa.RecordBatch]:
    """The same of batches with the column `content`: files of record_files.py, of which the records behind the offsets
    `after` are taken, up to those of `until`.
    """
    return sum_partition(_read_records(batches, after, until))


def _read_records(batches: Iterable[pa.RecordBatch], after: Offsets, until: Offsets) -> Iterator[pa.RecordBatch]:
    names = ["gateway", "worker", usage.CLUSTER, "start_ms", "rows", "counts", "topic_id", "partition", "offset"]
    for batch in batches:
        for content in batch.column("content"):
            file = pq.ParquetFile(pa.BufferReader(content.as_buffer()))
            for records in file.iter_batches(_BATCH_RECORDS, columns=names):
                is_new = pc.and_(_is_within(records, until), pc.invert(_is_within(records, after)))
                chosen = records.filter(pc.and_(is_new, pc.fill_null(records.column("counts"), False)))
                at = chosen.schema.get_field_index(usage.CLUSTER)
                yield chosen.set_column(at, usage.CLUSTER, pc.fill_null(chosen.column(at), ""))


def _is_within(records: pa.RecordBatch, offsets: Offsets) -> pa.Array:
    found = pa.repeat(False, records.num_rows)
    for (topic_id, partition), last in offsets.items():
        there = pc.and_(
            pc.equal(records.column("topic_id"), topic_id), pc.equal(records.column("partition"), partition)
        )
        found = pc.or_(found, pc.and_(there, pc.less_equal(records.column("offset"), last)))
    return found


def join_sums(files: Sequence[TableFile]) -> list[TableFile]:
    """One file for each day of which there is little, with one row for each window and group."""
    joined: list[TableFile] = []
    for day, found in groupby(sorted(files, key=attrgetter("day")), attrgetter("day")):
        several = list(found)
        if len(several) > 1 and sum(len(file.contents) for file in several) <= _MAX_JOINED_BYTES:
            several = [_make_file(_condense(read_files(several), 1), day)]
        joined += several
    return joined


def _gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    found: list[pa.Table] = []
    size = 0
    for batch in batches:
        found.append(_explode(batch))
        size += found[-1].num_rows
        if size >= _MAX_ROWS:
            yield pa.concat_tables(found)
            found, size = [], 0
    if size:
        yield pa.concat_tables(found)


def _explode(batch: pa.RecordBatch) -> pa.Table:
    """The rows of records, each with its record's columns."""
    lists = batch.column("rows")
    record = pc.list_parent_indices(lists)
    rows = lists.flatten()
    columns = {WINDOW_COLUMN: batch.column("start_ms").take(record)}
    columns |= {name: batch.column(name).take(record) for name in RECORD_DIMENSIONS}
    columns |= {field.name: rows.field(number) for number, field in enumerate(ROW_TYPE)}
    return pa.table({name: columns[name] for name in SUM_COLUMNS})


def _condense(rows: pa.Table, length: int) -> pa.Table:
    """One row for each window of that length (ms), each of usage.DIMENSIONS, and those of which repeats are known."""
    for name in _SUMS:
        if (pc.sum(rows[name].cast(pa.float64(), safe=False)).as_py() or 0) >= 2**62:
            raise OverflowError(f"the sum of {name} may be beyond 64 bits")
    starts = pc.multiply(pc.divide(rows[WINDOW_COLUMN], length), length)
    known = pc.is_valid(rows["repeats"])
    rows = rows.set_column(0, WINDOW_COLUMN, starts).append_column("known", known)
    keys = [WINDOW_COLUMN, *usage.DIMENSIONS, "known"]
    found = rows.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in _SUMS])
    found = found.select([WINDOW_COLUMN, *usage.DIMENSIONS, *(f"{name}_sum" for name in _SUMS)])
    return found.rename_columns(SUM_COLUMNS)


def _make_files(minutes: list[pa.Table]) -> Iterator[pa.RecordBatch]:
    if not minutes:
        return
    rows = pa.concat_tables(minutes)
    for table, length in sorted(WINDOW_LENGTHS.items(), key=lambda each: each[1]):
        rows = _condense(rows, length)
        days = pc.divide(rows[WINDOW_COLUMN], DAY_MS)
        for day in pc.unique(days).to_pylist():
            file = _make_file(rows.filter(pc.equal(days, day)), day)
            yield pa.RecordBatch.from_pylist([{"table": table, **file._asdict()}], SUM_FILES_SCHEMA)


def _make_file(rows: pa.Table, day: int) -> TableFile:
    # In the order of time: whoever asks for an hour reads little of it.
    maker = FileMaker(SUM_COLUMNS, (WINDOW_COLUMN,))
    maker.add_rows(rows.sort_by(WINDOW_COLUMN))
    return maker.finish(day)
