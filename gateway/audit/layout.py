# The audit's tables: their columns, keys and the version of it all. docs/audit.md describes the same for readers. Types
# and names only: no session, no file, no expression.
#
# A column is only ever added, at the end and nullable, so that files of an older layout stay readable: what they lack
# is filled by COMPLETED. Anything else is a new LAYOUT (commits.py), which older programs refuse.

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from gateway.audit import schema

MARKER: Final = "_produce_gateway_tables.json"
PARQUET, DELTA = "parquet", "delta"
FORMATS: Final = (PARQUET, DELTA)


def _table(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


_LIFE: Final[dict[str, DataType]] = {"gateway": StringType(), "boot": StringType(), "worker": LongType()}
_NUMBER: Final[dict[str, DataType]] = {"seq": LongType(), "part": LongType()}
_TIMES: Final[dict[str, DataType]] = {"start_ms": LongType(), "end_ms": LongType()}
# Where a record was found. The id tells a topic from one of the same name that was made later.
ORIGIN: Final = ("topic_id", "partition", "offset")
_ORIGIN: Final[dict[str, DataType]] = {
    "origin_topic": StringType(),
    "topic_id": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
}
_DATE: Final[dict[str, DataType]] = {"date": DateType()}

TABLES: Final[dict[str, StructType]] = {
    # One row for each row of each record that counts.
    "usage": StructType(
        [*_table(**_LIFE, **_NUMBER, **_TIMES).fields, *schema.ROW.fields, StructField("date", DateType())]
    ),
    # One row for each record that counts, "lost" notes included: what gaps and lives follow from.
    "intervals": _table(
        version=LongType(),
        kind=StringType(),
        **_LIFE,
        **_NUMBER,
        parts=LongType(),
        **_TIMES,
        final=BooleanType(),
        row_count=LongType(),
        digest=LongType(),
        **_ORIGIN,
        storage_factor_ppm=LongType(),
        **_DATE,
    ),
    # One row for each further copy of a record in the topic.
    "duplicates": _table(
        kind=StringType(), **_LIFE, **_NUMBER, **_TIMES, digest=LongType(), conflict=BooleanType(), **_ORIGIN, **_DATE
    ),
    # One row for each record that could not be understood, whole. Its date is that of its Kafka timestamp.
    "malformed": _table(value=BinaryType(), problem=StringType(), timestamp_ms=LongType(), **_ORIGIN, **_DATE),
    # Derived: what transforms.gaps and transforms.boots say of `intervals`, and when they were asked.
    "gaps": _table(
        **_LIFE,
        gap=StringType(),
        first_seq=LongType(),
        last_seq=LongType(),
        missing=LongType(),
        after_ms=LongType(),
        before_ms=LongType(),
        as_of_ms=LongType(),
    ),
    "lives": _table(
        **_LIFE,
        state=StringType(),
        intervals=LongType(),
        first_seq=LongType(),
        last_seq=LongType(),
        **_TIMES,
        lost_seq=LongType(),
        lost_ms=LongType(),
        as_of_ms=LongType(),
    ),
}
DATED: Final = tuple(name for name, columns in TABLES.items() if "date" in columns.names)
# What names a row's record once and for all within a table: nothing is ever there under the same name twice.
KEYS: Final[dict[str, tuple[str, ...]]] = {
    "usage": (*schema.BOOT, "seq", "part"),
    "intervals": schema.IDENTITY,
    "duplicates": ORIGIN,
    "malformed": ORIGIN,
}
# Sorted by this, a compacted file's columns compress well and readers skip most of it.
ORDER: Final[dict[str, tuple[str, ...]]] = {
    "usage": ("topic", "principal", "client_id", "start_ms"),
    "intervals": (*schema.BOOT, "seq"),
    "duplicates": (*schema.BOOT, "seq"),
    "malformed": ORIGIN,
}
# For columns that files of an older layout don't have.
COMPLETED: Final[dict[str, bool | float | int | str]] = {"group": "", "software": ""}
