# The usage record as Spark reads it, and the columns that the audit gives back. Field names, types and the version come
# from policies/usage.py and from nowhere else, so the writer and the audit can't drift apart.
#
# Knows types and names only: no session, no source, no expression. Counts and times stay 64-bit integers (Unix
# milliseconds) from end to end; Spark's own timestamps would bring in a session time zone, and a time that can't be
# read would silently become null or 1970.

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from gateway.audit.columns import (
    BOOT_COLUMNS,
    DELAY,
    IDENTITY_COLUMNS,
    MAYBE_APPENDED,
    NUMBER_FIELDS,
    OFFERED,
    RECORD_DIMENSIONS,
    REJECTED_AGAIN,
    REPEATS,
    REPEATS_UNKNOWN,
    RUN_FIELDS,
    SINGLE_SUMS,
    SUMS,
    WINDOW_COLUMN,
    sum_column,
)
from policies import usage

_TYPES: Final[dict[str, DataType]] = {"int": LongType(), "str": StringType(), "bool": BooleanType()}

# Version 2's fields come last; what a version 1 has not got reads as "" and, of `repeats`, null.
ROW_SCHEMA: Final = StructType(
    [StructField(name, _TYPES[kind]) for name, kind in (usage.ROW_FIELDS | usage.OPTIONAL_ROW_FIELDS).items()]
)
VOLUMES_SCHEMA: Final = ArrayType(
    StructType(
        [StructField(name, _TYPES[kind]) for name, kind in (usage.VOLUME_FIELDS | usage.OPTIONAL_VOLUME_FIELDS).items()]
    )
)
SPREAD_SCHEMA: Final = ArrayType(
    StructType([StructField(name, _TYPES[kind]) for name, kind in usage.SPREAD_FIELDS.items()])
)
# What version 2 may have in a header beside usage.OPTIONAL_HEADER_FIELDS.
DISK_COLUMNS: Final[dict[str, DataType]] = {usage.VOLUMES: VOLUMES_SCHEMA, usage.SPREAD: SPREAD_SCHEMA}
HEADER_SCHEMA: Final = StructType([StructField(name, _TYPES[kind]) for name, kind in NUMBER_FIELDS.items()])
# Those of record_batches.py.
JUDGED_SCHEMA: Final = StructType(
    [
        *(StructField("problem", StringType()), StructField("sample", StringType())),
        *(StructField("digest", LongType()), StructField("changed", BooleanType())),
    ]
)
DECODED_SCHEMA: Final = StructType(
    [
        *HEADER_SCHEMA,
        StructField(usage.STORAGE_FACTOR, LongType()),
        *(StructField(name, kind) for name, kind in DISK_COLUMNS.items()),
        StructField("rows", ArrayType(ROW_SCHEMA)),
        *JUDGED_SCHEMA,
    ]
)
# condensing.CONDENSED_SCHEMA.
RUN_SCHEMA: Final = StructType([StructField(name, _TYPES[kind]) for name, kind in RUN_FIELDS.items()])
CONDENSED_SCHEMA: Final = StructType(
    [
        *RUN_SCHEMA,
        *ROW_SCHEMA,
        StructField("problem", StringType()),
        StructField("count", LongType()),
        StructField("origin", StringType()),
        StructField("sample", StringType()),
    ]
)

# The columns that a source has to give: one usage record's text a row, and where it was found.
RAW_SCHEMA: Final = StructType([StructField("value", StringType()), StructField("origin", StringType())])

__all__ = [
    "BOOT_COLUMNS",
    "CONDENSED_SCHEMA",
    "DECODED_SCHEMA",
    "DELAY",
    "DISK_COLUMNS",
    "HEADER_SCHEMA",
    "IDENTITY_COLUMNS",
    "JUDGED_SCHEMA",
    "MAYBE_APPENDED",
    "OFFERED",
    "RAW_SCHEMA",
    "RECORD_DIMENSIONS",
    "REJECTED_AGAIN",
    "REPEATS",
    "REPEATS_UNKNOWN",
    "ROW_SCHEMA",
    "RUN_SCHEMA",
    "SINGLE_SUMS",
    "SPREAD_SCHEMA",
    "SUMS",
    "VOLUMES_SCHEMA",
    "WINDOW_COLUMN",
    "sum_column",
]
