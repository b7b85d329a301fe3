# Usage records as files of the table `records`: a task that decodes them makes Parquet of them where they are, and
# hands on the files and how far they reach. That costs a tenth of what rows of Spark's cost.
#
# Knows neither Spark nor a file system.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gateway.audit.columns import BOOT_COLUMNS
from gateway.audit.records.record_batches import DECODED_SCHEMA, decode_partition
from gateway.audit.records.table_files import FileMaker, TableFile, read_files
from gateway.audit.tables.table_log import DAY_MS
from policies import usage

FILE, END, MORE = "file", "end", "more"  # the kinds of encode_partition's rows, by `entry`
# 0001-01-01 to 9999-12-31, after 1970-01-01. Kafka's time may be beyond them, which no good record's is.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_MAX_JOINED_BYTES: Final = 2**21
_GROUP_BYTES: Final = 2**25  # of Arrow, that become a row group
# FILE: of the records of a `day` (after 1970-01-01), the `contents` and Delta Lake's `stats` of it; how many
# `intervals` (good records that count), `duplicates` (good ones that don't) and `malformed` ones it has, and rows of
# `usage`, of records that count.
# END: how far a partition and a life (null: malformed records) reach, when the earliest and the latest of its intervals
# start, the number of its `records` and their `rows`, and whether their numbers ascend
# (record_batches.decode_partition). MORE: all of this is the beginning of a partition, the rest of which was not read.
ENCODED_SCHEMA: Final = pa.schema(
    [
        ("entry", pa.string()),
        ("partition", pa.int32()),
        *(DECODED_SCHEMA.field(name) for name in BOOT_COLUMNS),
        *((name, pa.int64()) for name in ("offset", "newest_ms", "records", "rows")),
        ("ascends", pa.bool_()),
        *((name, pa.int64()) for name in ("first_seq", "last_seq", "first_ms", "last_ms", "day")),
        ("contents", pa.binary()),
        ("stats", pa.string()),
        *((name, pa.int64()) for name in ("intervals", "duplicates", "malformed", "usage")),
    ]
)
# Good records that are copies, by partition and offset: whether they differ from the one that counts.
Copies = Mapping[int, Mapping[int, bool]]
# How a column of END follows from others, first of records and then of such rows.
_END_KEYS: Final = ("partition", *BOOT_COLUMNS)
_ENDS: Final = {
    "offset": ("offset", "max", "max"),
    "newest_ms": ("timestamp_ms", "max", "max"),
    "records": ("offset", "count", "sum"),
    "rows": ("row_count", "sum", "sum"),
    "ascends": ("ascends", "min", "min"),
    "first_seq": ("seq", "min", "min"),
    "last_seq": ("seq", "max", "max"),
    "first_ms": ("start_ms", "min", "min"),
    "last_ms": ("start_ms", "max", "max"),
}


class FileFormat(NamedTuple):
    """What files of the table have beside what records say."""

    columns: tuple[str, ...]  # in their order
    bounded: tuple[str, ...]  # those of which `stats` tells


def encode_partition(
    batches: Iterable[pa.RecordBatch],
    topic_id: str,
    made: FileFormat,
    most_bytes: int,
    keys: Sequence[bytes] = (),
    copies: Copies = MappingProxyType({}),
) -> Iterator[pa.RecordBatch]:
    """ENCODED_SCHEMA of batches with the columns `value` (bytes) and `origin` (origin_topic, partition, offset and
    timestamp_ms): files, one for each day, and the ends. Of one partition in the order of its offsets there may be the
    beginning, of some `most_bytes`. `keys`: of the records' digests.
    """
    makers: dict[int, _DayFile] = {}
    ends: list[pa.Table] = []
    offsets = _OffsetOrder()
    has_more = False
    for decoded in _gather(decode_partition(batches, keys), min(_GROUP_BYTES, most_bytes)):
        has_more = offsets.is_kept and sum(maker.size for maker in makers.values()) > most_bytes
        if has_more:
            break
        records = _complete_columns(decoded, topic_id, copies)
        offsets.note_records(records)
        ends.append(_find_ends(records, [(source, how, name) for name, (source, how, _) in _ENDS.items()]))
        days = pc.unique(records["day"]).to_pylist()
        for day in days:
            of_day = records if len(days) == 1 else records.filter(pc.equal(records["day"], day))
            makers.setdefault(day, _DayFile(made)).add_records(of_day)
    if has_more:
        yield _encode_rows([{"entry": MORE}])
    for day, maker in makers.items():
        yield _encode_rows([{"entry": FILE, **maker.finish(day)}])
    if ends:
        found = _find_ends(pa.concat_tables(ends), [(name, how, name) for name, (_, _, how) in _ENDS.items()])
        yield _encode_rows([{"entry": END, **row} for row in found.to_pylist()])


def join_small_files(files: Sequence[TableFile], made: FileFormat) -> list[TableFile]:
    """One file for each day of which there is little."""
    joined: list[TableFile] = []
    for day, found in groupby(sorted(files, key=attrgetter("day")), attrgetter("day")):
        several = list(found)
        if len(several) > 1 and sum(len(file.contents) for file in several) <= _MAX_JOINED_BYTES:
            maker = FileMaker(*made)
            maker.add_rows(read_files(several))
            several = [maker.finish(day)]
        joined += several
    return joined


class _OffsetOrder:
    """Whether all records are of one partition, and in the order of their offsets."""

    def __init__(self) -> None:
        self.is_kept = True
        self._last: tuple[int, int] | None = None

    def note_records(self, records: pa.Table) -> None:
        partitions, offsets = records["partition"].combine_chunks(), records["offset"].combine_chunks()
        ascend = pc.all(pc.less(offsets[:-1], offsets[1:])).as_py() is not False
        is_one = pc.min_max(partitions)["min"].equals(pc.min_max(partitions)["max"])
        first, last = ((partitions[at].as_py(), offsets[at].as_py()) for at in (0, -1))
        follows = self._last is None or (self._last[0] == first[0] and self._last[1] < first[1])
        self.is_kept = self.is_kept and ascend and is_one and follows
        self._last = last


def _gather(batches: Iterable[pa.RecordBatch], group_bytes: int) -> Iterator[pa.Table]:
    found: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        found.append(batch)
        size += batch.nbytes
        if size >= group_bytes:
            yield pa.Table.from_batches(found)
            found, size = [], 0
    if sum(batch.num_rows for batch in found):
        yield pa.Table.from_batches(found)


def _encode_rows(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, ENCODED_SCHEMA)


def _complete_columns(decoded: pa.Table, topic_id: str, copies: Copies) -> pa.Table:
    """The columns of the table, `day` and `ascends`. Copies keep their names, and malformed records their text: no
    query reads more of them.
    """
    good = pc.is_null(decoded["problem"])
    columns = {name: decoded[name] for name in decoded.schema.names if name not in ("origin", "sample")}
    origins = decoded["origin"].combine_chunks()
    columns |= {field.name: origins.field(field.name) for field in origins.type}
    columns["topic_id"] = pa.repeat(topic_id, decoded.num_rows)
    conflicts = _find_conflicts(columns["partition"], columns["offset"], copies)
    columns["counts"] = _null_unless(good, pc.is_null(conflicts))
    columns["conflict"] = _null_unless(good, pc.fill_null(conflicts, False))
    counts = pc.fill_null(columns["counts"], False)
    columns["row_count"] = _null_unless(counts, pc.list_value_length(decoded["rows"]).cast(pa.int64()))
    if not pc.all(counts).as_py():
        columns |= {name: _null_unless(counts, decoded[name]) for name in ("rows", usage.VOLUMES, usage.SPREAD)}
    at = pc.if_else(good, columns["start_ms"], columns["timestamp_ms"])
    days = pc.floor(pc.divide(at.cast(pa.float64()), float(DAY_MS))).cast(pa.int64())
    columns["day"] = pc.min_element_wise(pc.max_element_wise(days, _FIRST_DAY), _LAST_DAY)
    return pa.table(columns)


def _find_conflicts(partitions: pa.Array, offsets: pa.Array, copies: Copies) -> pa.Array:
    """Null for each record that is no copy."""
    if not copies:
        return pa.nulls(len(offsets), pa.bool_())
    none: Mapping[int, bool] = {}
    origins = zip(partitions.to_pylist(), offsets.to_pylist(), strict=True)
    return pa.array([copies.get(partition, none).get(offset) for partition, offset in origins], pa.bool_())


def _null_unless(condition: pa.ChunkedArray, values: Any) -> pa.ChunkedArray:
    return pc.if_else(condition, values, pa.scalar(None, values.type))


def _find_ends(rows: pa.Table, columns: Iterable[tuple[str, str, str]]) -> pa.Table:
    """A row for each of _END_KEYS; `columns`: source, aggregation, name."""
    wanted = list(columns)
    found = rows.group_by(list(_END_KEYS), use_threads=False).aggregate([(source, how) for source, how, _ in wanted])
    return found.select([*_END_KEYS, *(f"{source}_{how}" for source, how, _ in wanted)]).rename_columns(
        [*_END_KEYS, *(name for _, _, name in wanted)]
    )


class _DayFile:
    def __init__(self, made: FileFormat) -> None:
        self._maker = FileMaker(*made)
        self._records = self._good = self._intervals = self._usage = 0

    @property
    def size(self) -> int:
        return self._maker.size

    def add_records(self, records: pa.Table) -> None:
        self._maker.add_rows(records)
        self._records += records.num_rows
        self._good += pc.count(records["counts"]).as_py()
        self._intervals += pc.sum(records["counts"]).as_py() or 0
        self._usage += pc.sum(records["row_count"]).as_py() or 0

    def finish(self, day: int) -> dict[str, Any]:
        """Of ENCODED_SCHEMA, what FILE has."""
        found = {"intervals": self._intervals, "duplicates": self._good - self._intervals, "usage": self._usage}
        found["malformed"] = self._records - self._good
        return found | self._maker.finish(day)._asdict()
