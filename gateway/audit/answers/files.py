# Answers as files and tables. A file appears whole or not at all, and no reader sees half of it. Rows go into it as
# they come; Parquet takes some thousand at once. Knows nothing of what they say.

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from gateway.audit.answers.answer import AuditAnswer, FlatRow, csv_lines, ndjson_lines
from gateway.audit.errors import AuditError, explain_storage_error

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
    there; gives their number. Spark's session, if there is one, says where a path without a scheme is, and how to get
    in. `tell` hears how far it is.

    Raises:
        AuditError: it can't be written; what was there is still there.
    """
    tell(f"writing {place}")
    answer = replace(answer, rows=_tell_rows(answer.rows, tell))
    if is_table(place):
        return _write_delta(answer, place)
    writers = zip(FILE_SUFFIXES, (_write_parquet, _write_csv, _write_ndjson), strict=True)
    write = next(each for suffix, each in writers if place.endswith(suffix))
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


def _write_parquet(answer: AuditAnswer, file: BinaryIO | pa.NativeFile) -> int:
    from pyarrow import parquet

    schema, count = _arrow_schema(answer), 0
    with parquet.ParquetWriter(file, schema) as writer:
        for batch in _arrow_batches(answer, schema):
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _write_delta(answer: AuditAnswer, place: str) -> int:
    schema = _arrow_schema(answer)
    from deltalake.exceptions import DeltaError
    from pyspark.sql import SparkSession

    from gateway.audit.tables import storage, table_version

    spark = SparkSession.getActiveSession()
    root = storage.qualify_path(spark, place)
    address, options = storage.local_path(root) or root, storage.find_storage_options(spark)
    try:
        before = table_version.open_version(address, options)
        if before is not None and before.column_names != {*schema.names}:
            raise AuditError(f"--output: {place} has a table with other columns: name another directory, or remove it")
        # Not by deltalake's write_deltalake: its threads ask for the rows, so Ctrl-C would wait for the last of them.
        directory, name = storage.StorageDirectory(root, options), f"{uuid.uuid4()}.parquet"
        try:
            with directory.open_file(name) as file:
                count = _write_parquet(answer, file)
                size = file.tell()
        except BaseException:
            with suppress(AuditError):
                directory.delete_files([name])
            raise
        # A commit that is interrupted may have been made all the same: then the file is the table's.
        table_version.replace_rows(address, options, schema, name, size, count)
    except DeltaError as error:
        raise AuditError(explain_storage_error(f"--output: {place}", error)) from error
    return count


def _arrow_schema(answer: AuditAnswer) -> pa.Schema:
    if not all(map(importlib.util.find_spec, ("pyarrow", "deltalake", "pyspark"))):
        raise AuditError("Parquet and Delta tables need more Python packages: pip install 'produce-gateway[audit]'")
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
