# Files of records and of their sums as Spark's tasks make them: what they hold is what the records say. Without Spark.

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from gateway.audit.columns import WINDOW_LENGTHS
from gateway.audit.records import record_files, usage_sums
from gateway.audit.records.record_files import FileFormat
from gateway.audit.records.table_files import TableFile, read_files
from gateway.audit.store import BOUNDED_COLUMNS
from gateway.audit.tables import layout
from policies import usage
from tests.audit.records import START, Row, interval

if TYPE_CHECKING:
    from collections.abc import Iterable

DAY_MS = 86_400_000
FORMAT = FileFormat(tuple(name for name in layout.RECORDS_SCHEMA.names if name != "date"), BOUNDED_COLUMNS)
ORIGIN = pa.struct(
    [("origin_topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp_ms", pa.int64())]
)
Sums = Counter[tuple[Any, ...]]


def _rows(seq: int) -> list[Row]:
    return [
        Row(bytes=seq, repeats=seq % 3 or None),
        Row(bytes=2, client_id=f"c{seq % 2}", outcome="rejected", reason="R", repeats=0),
    ]


def _read(lines: Iterable[str], most_bytes: int = 2**20, partitions: int = 2) -> list[dict[str, Any]]:
    """The rows of one task that has read these lines from partitions in turns."""
    found = [
        (
            line.encode(),
            {"origin_topic": "usage", "partition": i % partitions, "offset": i // partitions, "timestamp_ms": START},
        )
        for i, line in enumerate(lines)
    ]
    batch = pa.record_batch(
        [pa.array([line for line, _ in found], pa.binary()), pa.array([origin for _, origin in found], ORIGIN)],
        ["value", "origin"],
    )
    made = record_files.encode_partition([batch], "id", FORMAT, most_bytes)
    return [row for rows in made for row in rows.to_pylist()]


LINES = [
    *(line for seq in range(60) for line in interval(seq, _rows(seq), version=2, start_ms=START + seq * DAY_MS // 30)),
    "rubbish",
]


def test_sums_are_those_of_the_records_between_the_offsets() -> None:
    files = [row["contents"] for row in _read(LINES) if row["entry"] == record_files.FILE]
    assert len(files) == 3  # of so many days
    contents = pa.record_batch([pa.array(files, pa.binary())], ["content"])
    found = usage_sums.sum_files([contents], {("id", 0): 4}, {("id", 0): 19, ("id", 1): 29, ("else", 0): 99})
    made: dict[str, list[TableFile]] = {table: [] for table in WINDOW_LENGTHS}
    for row in pa.Table.from_batches(found).to_pylist():
        made[row["table"]].append(TableFile(row["day"], row["contents"], row["stats"]))
    for table, length in WINDOW_LENGTHS.items():
        summed, expected, unknown = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
        for seq in [*range(10, 40, 2), *range(1, 60, 2)]:
            start = START + seq * DAY_MS // 30
            for row in _rows(seq):
                key = (start - start % length, row.client_id, row.outcome)
                expected[key] += row.bytes
                unknown[key] += row.bytes if row.repeats is None else 0
        left = +unknown
        for each in read_files(made[table]).to_pylist():
            key = (each["window_start_ms"], each["client_id"], each["outcome"])
            summed[key] += each["bytes"]
            left[key] -= each["bytes"] if each["repeats"] is None else 0
            assert each["cluster"] == ""
        assert summed == expected
        assert not +left


def test_files_of_sums_are_joined_by_day() -> None:
    files = [row["contents"] for row in _read(LINES) if row["entry"] == record_files.FILE]
    ends = {("id", 0): 99, ("id", 1): 99}
    made = [
        TableFile(row["day"], row["contents"], row["stats"])
        for content in files * 2
        for batch in usage_sums.sum_files([pa.record_batch([pa.array([content])], ["content"])], {}, ends)
        for row in batch.to_pylist()
        if row["table"] == "usage_1d"
    ]
    joined = usage_sums.join_sums(made)
    assert [file.day for file in joined] == sorted({file.day for file in made})
    assert read_files(joined)["bytes"].combine_chunks().sum().as_py() == 2 * sum(
        row.bytes for seq in range(60) for row in _rows(seq)
    )
    assert read_files(joined).num_rows <= read_files(made).num_rows // 2


def test_a_sum_beyond_64_bits_is_an_error() -> None:
    rows = [Row(client_id="a", bytes=usage.MAX_COUNT)] * 1000
    files = [
        row["contents"]
        for row in _read(line for seq in range(5) for line in interval(seq, rows))
        if row["entry"] == record_files.FILE
    ]
    contents = pa.record_batch([pa.array(files, pa.binary())], ["content"])
    with pytest.raises(OverflowError, match="bytes"):
        list(usage_sums.sum_files([contents], {}, {("id", 0): 99, ("id", 1): 99}))


def test_of_a_partition_that_is_too_large_the_beginning_is_handed_on_if_it_is_one() -> None:
    rows = [Row(client_id=f"c{i}") for i in range(1000)]
    lines = [line for seq in range(25) for line in interval(seq, rows)]
    in_turns = _read(lines, most_bytes=1)
    assert sum(row["records"] for row in in_turns if row["entry"] == record_files.END) == 25
    found = _read(lines, most_bytes=1, partitions=1)
    assert [row["entry"] for row in found] == [record_files.MORE, record_files.FILE, record_files.END]
    assert (found[-1]["offset"], found[-1]["records"], found[-1]["rows"]) == (9, 10, 10_000)
