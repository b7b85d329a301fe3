# Usage records as Arrow: bytes in, record batches out, with the types that the audit's tables and questions know them
# by. Spark's Python processes make their batches here, and so may any engine that reads Arrow.
#
# Knows neither Spark nor a file.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from gateway.audit.columns import BOOT_COLUMNS, NUMBER_FIELDS
from gateway.audit.records import decoding
from gateway.audit.records.decoding import MalformedRecord, RecordRow, UsageRecord
from policies import usage
from policies.record_digests import is_changed

ARROW_TYPES: Final = {"int": pa.int64(), "str": pa.string(), "bool": pa.bool_()}
_NO_NUMBER: Final = (-2, -1)  # below all
BATCH_ROWS: Final = 10_000  # rows of usage after which a batch is full: some megabytes

Values = Iterable[bytes | None]


def _struct(*fields: dict[str, str]) -> pa.DataType:
    return pa.struct([(name, ARROW_TYPES[kind]) for each in fields for name, kind in each.items()])


ROW_TYPE: Final = _struct(usage.ROW_FIELDS, usage.OPTIONAL_ROW_FIELDS)
VOLUMES_TYPE: Final = pa.list_(_struct(usage.VOLUME_FIELDS, usage.OPTIONAL_VOLUME_FIELDS))
SPREAD_TYPE: Final = pa.list_(_struct(usage.SPREAD_FIELDS))
# What is known of every value. `problem`: null for a good record, else why it is malformed.
JUDGED_SCHEMA: Final = pa.schema(
    [("problem", pa.string()), ("sample", pa.string()), ("digest", pa.int64()), ("changed", pa.bool_())]
)
# One row for each value, in their order. Of a malformed one all is null but `problem`, `sample` (its beginning) and
# `rows`, which is empty. `digest`: decoding.content_digest; `changed`: record_digests.is_changed. What a record of
# version 1 has not got is "" and, of `repeats`, the cluster, the storage factor and disks, null.
DECODED_SCHEMA: Final = pa.schema(
    [
        *((name, ARROW_TYPES[kind]) for name, kind in NUMBER_FIELDS.items()),
        (usage.STORAGE_FACTOR, pa.int64()),
        (usage.VOLUMES, VOLUMES_TYPE),
        (usage.SPREAD, SPREAD_TYPE),
        ("rows", pa.list_(ROW_TYPE)),
        *JUDGED_SCHEMA,
    ]
)
_ROW_NAMES: Final = (*usage.ROW_FIELDS, *usage.OPTIONAL_ROW_FIELDS)
_ROW_TYPES: Final = [ARROW_TYPES[kind] for kind in (usage.ROW_FIELDS | usage.OPTIONAL_ROW_FIELDS).values()]
_HEADER_TYPES: Final = [ARROW_TYPES[kind] for kind in NUMBER_FIELDS.values()]


def decode_values(values: Values) -> pa.RecordBatch:
    """Lines of spool files (without newlines) or values of the topic, as DECODED_SCHEMA. None is left out."""
    (batch,) = decode_batches(values, None)
    return batch


def decode_batches(
    values: Values, max_rows: int | None = BATCH_ROWS, keys: Sequence[bytes] = ()
) -> Iterator[pa.RecordBatch]:
    """The same in batches that end with the record in which `max_rows` rows of usage are reached; at least one. `keys`:
    of their digests.
    """
    return (maker.make_batch() for maker in _fill_makers(values, max_rows, keys))


def _fill_makers(values: Values, max_rows: int | None, keys: Sequence[bytes]) -> Iterator[_BatchMaker]:
    maker, is_first = _BatchMaker(keys), True
    for value in values:
        maker.add_value(value)
        if max_rows is not None and len(maker.rows) >= max_rows:
            yield maker
            maker, is_first = _BatchMaker(keys), False
    if maker.columns.headers or is_first:
        yield maker


def decode_columns(batches: Iterable[pa.RecordBatch], keys: Sequence[bytes] = ()) -> Iterator[pa.RecordBatch]:
    """The same of batches with the columns `value` (text or bytes) and `origin` (anything, which stays beside it)."""
    for batch in batches:
        begin = 0
        for decoded in decode_batches(batch.column("value").cast(pa.binary()).to_pylist(), keys=keys):
            yield decoded.append_column("origin", batch.column("origin").slice(begin, decoded.num_rows))
            begin += decoded.num_rows


def decode_partition(batches: Iterable[pa.RecordBatch], keys: Sequence[bytes] = ()) -> Iterator[pa.RecordBatch]:
    """The same of records in the order of their partition, with two more columns: `value`, of malformed records only,
    and `ascends`, whether its number is above those of its life and kind that came before it in these batches.
    """
    numbers: dict[tuple[Any, ...], tuple[int, int]] = {}
    for batch in batches:
        values, origins = batch.column("value").cast(pa.binary()), batch.column("origin")
        begin = 0
        for maker in _fill_makers(values.to_pylist(), BATCH_ROWS, keys):
            decoded = maker.make_batch()
            size = decoded.num_rows
            found = decoded.append_column("origin", origins.slice(begin, size))
            bad = pc.is_valid(decoded.column("problem"))
            kept = pc.if_else(bad, values.slice(begin, size), pa.scalar(None, pa.binary()))
            ascends = pa.array(_find_ascending(maker.columns.headers, numbers), pa.bool_())
            yield found.append_column("value", kept).append_column("ascends", ascends)
            begin += size


def _find_ascending(
    headers: Iterable[tuple[Any, ...]], numbers: dict[tuple[Any, ...], tuple[int, int]]
) -> list[bool | None]:
    """`numbers`: the highest seq and part of each life and kind so far; it is brought up to date."""
    found: list[bool | None] = []
    for header in headers:
        if header is _NO_HEADER:
            found.append(None)
            continue
        key, number = _header_life(header), _header_number(header)
        is_higher = number > numbers.get(key, _NO_NUMBER)
        if is_higher:
            numbers[key] = number
        found.append(is_higher)
    return found


class HeaderColumns:
    """The columns of any batch of records: their headers, and of malformed ones why they are."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self.headers: list[tuple[Any, ...]] = []
        self._keys = keys
        self._digests: list[int | None] = []
        self._changed: dict[int, bool | None] = {}
        self._bad: dict[int, tuple[str, str | None]] = {}

    def add_value(self, value: bytes | None) -> UsageRecord | None:
        """The record that it holds; None: it is malformed, and all columns know."""
        try:
            record = decoding.parse_record(value)
        except MalformedRecord as error:
            self._bad[len(self.headers)] = (str(error), decoding.sample_text(value))
            self.headers.append(_NO_HEADER)
            self._digests.append(None)
            return None
        self._digests.append(decoding.content_digest(record))
        if record.version < 2:
            decoding.forget_optional_fields(record)
        if self._keys or record.record_digest is not None:
            assert value is not None
            self._changed[len(self.headers)] = is_changed(value, record.record_digest, self._keys)
        self.headers.append(_header_values(record))
        return record

    def header_arrays(self) -> list[pa.Array]:
        """NUMBER_FIELDS."""
        values = zip(*self.headers, strict=True) if self.headers else ([] for _ in _HEADER_TYPES)
        return list(map(pa.array, values, _HEADER_TYPES))

    def judged_arrays(self) -> list[pa.Array]:
        """JUDGED_SCHEMA."""
        problems = {number: problem for number, (problem, _) in self._bad.items()}
        samples = {number: sample for number, (_, sample) in self._bad.items()}
        return [
            self.sparse_array(problems, pa.string()),
            self.sparse_array(samples, pa.string()),
            pa.array(self._digests, pa.int64()),
            self.sparse_array(self._changed, pa.bool_()),
        ]

    def sparse_array(self, found: dict[int, Any], kind: pa.DataType) -> pa.Array:
        """A column of which few records have a value, by their numbers."""
        size = len(self.headers)
        return pa.array([found.get(number) for number in range(size)], kind) if found else pa.nulls(size, kind)


class _BatchMaker:
    def __init__(self, keys: Sequence[bytes]) -> None:
        self.columns = HeaderColumns(keys)
        self.rows: list[RecordRow] = []
        self._offsets = [0]
        self._factors: dict[int, int] = {}
        self._disks: dict[str, dict[int, Any]] = {usage.VOLUMES: {}, usage.SPREAD: {}}

    def add_value(self, value: bytes | None) -> None:
        number = len(self._offsets) - 1
        record = self.columns.add_value(value)
        if record is not None:
            self.rows += record.rows
            if record.storage_factor_ppm is not None:
                self._factors[number] = record.storage_factor_ppm
            for name, disks in ((usage.VOLUMES, record.volumes), (usage.SPREAD, record.spread)):
                if disks is not None:
                    self._disks[name][number] = [msgspec.structs.asdict(each) for each in disks]
        self._offsets.append(len(self.rows))

    def make_batch(self) -> pa.RecordBatch:
        rows = zip(*map(msgspec.structs.astuple, self.rows), strict=True) if self.rows else ([] for _ in _ROW_TYPES)
        columns = self.columns
        arrays = [
            *columns.header_arrays(),
            columns.sparse_array(self._factors, pa.int64()),
            columns.sparse_array(self._disks[usage.VOLUMES], VOLUMES_TYPE),
            columns.sparse_array(self._disks[usage.SPREAD], SPREAD_TYPE),
            _make_lists(self._offsets, list(map(pa.array, rows, _ROW_TYPES))),
            *columns.judged_arrays(),
        ]
        return pa.record_batch(arrays, schema=DECODED_SCHEMA)


_header_values = attrgetter(*NUMBER_FIELDS)
_header_life = itemgetter(*map([*NUMBER_FIELDS].index, (*BOOT_COLUMNS, "kind")))
_header_number = itemgetter(*map([*NUMBER_FIELDS].index, ("seq", "part")))
_NO_HEADER: Final = (None,) * len(NUMBER_FIELDS)


def _make_lists(offsets: list[int], values: list[pa.Array]) -> pa.Array:
    names = [name for name, kind in usage.OPTIONAL_ROW_FIELDS.items() if kind == "str"]
    values = [pc.fill_null(each, "") if name in names else each for name, each in zip(_ROW_NAMES, values, strict=True)]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.StructArray.from_arrays(values, _ROW_NAMES))
