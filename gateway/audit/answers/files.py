# Answers as files and tables. A file appears whole or not at all, and no reader sees half of it. Rows go into it as
# they come; Parquet takes some thousand at once. Knows nothing of what they say.

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from gateway.audit.answers.answer import AuditAnswer, FlatRow, csv_lines, ndjson_lines
from gateway.audit.errors import AuditError

if TYPE_CHECKING:
    import pyarrow as pa

PROGRESS_INTERVAL_S: Final = 5.0
_ROWS_AT_ONCE: Final = 5000
MONEY_DIGITS: Final = 6  # behind the point
_STREAMS: Final = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}
_DESCRIPTOR: Final = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")
FILE_SUFFIXES: Final = (".parquet", ".csv", ".ndjson")


def is_table(place: str) -> bool:
    """Whether it names a directory for a Delta table, and no file."""
    return not place.endswith(FILE_SUFFIXES)


def write_answer(answer: AuditAnswer, place: str, tell: Callable[[str], None]) -> int:
    """Write the answer's rows to a file of FILE_SUFFIXES, or as a Delta table to a directory, in place of what was
    there; gives their number. A table needs a Spark session. `tell` hears how far it is.

    Raises:
        AuditError: it can't be written; what was there is still there.
    """
    tell(f"writing {place}")
    answer = replace(answer, rows=_tell_rows(answer.rows, tell))
    if is_table(place):
        return _write_delta(answer, place, tell)
    write = dict(zip(FILE_SUFFIXES, (_write_parquet, _write_csv, _write_ndjson), strict=True))[Path(place).suffix]
    try:
        with replace_file(Path(place)) as file:
            return write(answer, file)
    except OSError as error:
        raise AuditError(f"--output: {place}: {error.strerror}") from None


def _tell_rows(rows: Iterable[FlatRow], tell: Callable[[str], None]) -> Iterator[FlatRow]:
    said = time.monotonic()
    for count, row in enumerate(rows):
        if time.monotonic() - said >= PROGRESS_INTERVAL_S:
            said = time.monotonic()
            tell(f"… {count:,} rows")
        yield row


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its place at the exit, at once, so that no reader ever sees half of it. A link stays, and so
    does a pipe or device, which is written itself, as /dev/stdout is: behind what was written to it before.

    Raises:
        OSError: it can't be written; the earlier file is still there.
    """
    if found := _DESCRIPTOR.fullmatch(_STREAMS.get(str(path), str(path))):
        with os.fdopen(os.dup(int(found[1])), "wb") as file:
            yield file
        return
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    path = path.resolve()
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with part.open("xb") as file:  # not a temporary file: those are for their owner's eyes only
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def is_stdout(path: Path) -> bool:
    """Whether what is written there is standard output: nothing else may be."""
    try:
        return os.path.samestat(path.stat(), os.fstat(1))
    except OSError:  # there is no such file, or no standard output
        return False


def _write_csv(answer: AuditAnswer, file: BinaryIO) -> int:
    return _write_lines(csv_lines(answer.kinds, answer.rows), file) - 1  # the first line has names


def _write_ndjson(answer: AuditAnswer, file: BinaryIO) -> int:
    return _write_lines(ndjson_lines(answer), file)


def _write_lines(lines: Iterable[str], file: BinaryIO) -> int:
    count = 0
    for line in lines:
        file.write(f"{line}\n".encode())
        count += 1
    return count


def _write_parquet(answer: AuditAnswer, file: BinaryIO) -> int:
    from pyarrow import parquet

    schema, count = _arrow_schema(answer), 0
    with parquet.ParquetWriter(file, schema) as writer:
        for batch in _arrow_batches(answer, schema):
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _write_delta(answer: AuditAnswer, place: str, tell: Callable[[str], None]) -> int:
    import pyarrow as pa
    from pyspark.errors import AnalysisException
    from pyspark.sql import SparkSession

    spark = SparkSession.active()
    schema = _arrow_schema(answer)
    table = pa.Table.from_batches(_arrow_batches(answer, schema), schema)
    try:
        known = spark.read.format("delta").load(place).columns
    except AnalysisException:  # there is none
        known = schema.names
    if known != schema.names:
        raise AuditError(f"--output: {place} has a table with other columns: name another directory, or remove it")
    tell(f"committing {table.num_rows:,} rows")
    # Not coalesce: then a single task carries all rows, and where the driver lacks the memory to send it, Spark waits
    # without an end.
    spark.createDataFrame(table).repartition(1).write.format("delta").mode("overwrite").save(place)
    return int(table.num_rows)


def _arrow_schema(answer: AuditAnswer) -> pa.Schema:
    if importlib.util.find_spec("pyarrow") is None:
        raise AuditError("Parquet and Delta tables need PyArrow: pip install 'produce-gateway[audit]'")
    import pyarrow as pa

    money = pa.decimal128(38, MONEY_DIGITS)
    types = {int: pa.int64(), str: pa.string(), float: pa.float64(), bool: pa.bool_(), Decimal: money}
    return pa.schema([(name, types[kind]) for name, kind in answer.kinds.items()])


def _arrow_batches(answer: AuditAnswer, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    rows: Iterator[Any] = iter(answer.rows)
    while some := [*islice(rows, _ROWS_AT_ONCE)]:
        try:
            columns = [pa.array([row[field.name] for row in some], field.type) for field in schema]
        except OverflowError:
            said = "Parquet and Delta tables have 64 bits for a sum, and one is beyond: write .csv or .ndjson"
            raise AuditError(f"--output: {said}") from None
        yield pa.record_batch(columns, schema=schema)
