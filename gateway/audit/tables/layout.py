# The audit's tables: their columns, as Spark has them. docs/audit.md describes the same for readers. Types and names
# only: no session, no file, no expression.
#
# A column is only ever added, nullable: Delta Lake adds it to existing tables with the next batch. Anything else is a
# new table_log.LAYOUT_VERSION, which older programs refuse.

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
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

from gateway.audit.columns import WINDOW_LENGTHS
from gateway.audit.spark import schema
from gateway.audit.tables.table_log import PROGRESS_TABLE, RECORDS_TABLE
from policies import usage

# Where a record was found. The id tells a topic from one of the same name that was made later.
ORIGIN_COLUMNS: Final = ("topic_id", "partition", "offset")


def _table_schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


_LIFE: Final[dict[str, DataType]] = {"gateway": StringType(), "boot": StringType(), "worker": LongType()}
_NUMBER: Final[dict[str, DataType]] = {"seq": LongType(), "part": LongType()}
_TIMES: Final[dict[str, DataType]] = {"start_ms": LongType(), "end_ms": LongType()}
_ORIGIN: Final[dict[str, DataType]] = {
    "origin_topic": StringType(),
    "topic_id": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
}
# Of records with a digest; `changed`: null where it needs a key that the stream hadn't.
_CHAIN: Final[dict[str, DataType]] = {
    "previous_digest": StringType(),
    "record_digest": StringType(),
    "changed": BooleanType(),
}
_DATE: Final[dict[str, DataType]] = {"date": DateType()}  # in UTC

# The table that a stream writes: one row for each record of the topic, so that one commit of one table is a whole
# batch. VIEW_SCHEMAS are what readers see of it.
RECORDS_SCHEMA: Final = _table_schema(
    **_LIFE,
    **_NUMBER,
    kind=StringType(),
    version=LongType(),
    parts=LongType(),
    **_TIMES,
    final=BooleanType(),
    row_count=LongType(),
    digest=LongType(),
    storage_factor_ppm=LongType(),
    **_ORIGIN,
    timestamp_ms=LongType(),  # Kafka's
    counts=BooleanType(),  # false: a further copy of a record; null: malformed
    conflict=BooleanType(),  # a copy that says something else than the record that counts
    problem=StringType(),  # why it is malformed, else null
    value=BinaryType(),  # the whole of a malformed record
    rows=ArrayType(schema.ROW_SCHEMA),  # of a record that counts
    **_DATE,  # of start_ms; of a malformed record, of timestamp_ms
    **schema.DISK_COLUMNS,
    cluster=StringType(),
    **_CHAIN,
)

VIEW_SCHEMAS: Final[dict[str, StructType]] = {
    # One row for each row of each record that counts.
    "usage": StructType(
        [
            *_table_schema(**_LIFE, **_NUMBER, **_TIMES).fields,
            *schema.ROW_SCHEMA.fields,
            *_table_schema(**_DATE, cluster=StringType()).fields,
        ]
    ),
    # One row for each record that counts, "lost" notes included: what gaps and lives follow from.
    "intervals": _table_schema(
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
        **schema.DISK_COLUMNS,
        cluster=StringType(),
        **_CHAIN,
    ),
    # One row for each further copy of a record in the topic.
    "duplicates": _table_schema(
        kind=StringType(), **_LIFE, **_NUMBER, **_TIMES, digest=LongType(), conflict=BooleanType(), **_ORIGIN, **_DATE
    ),
    # One row for each record that could not be understood, whole.
    "malformed": _table_schema(value=BinaryType(), problem=StringType(), timestamp_ms=LongType(), **_ORIGIN, **_DATE),
}

# Tables that follow from `intervals`, made anew each time: what transforms.gaps and transforms.boots say, and when
# they were asked.
DERIVED_SCHEMAS: Final[dict[str, StructType]] = {
    "gaps": _table_schema(
        **_LIFE,
        gap=StringType(),
        first_seq=LongType(),
        last_seq=LongType(),
        missing=LongType(),
        after_ms=LongType(),
        before_ms=LongType(),
        as_of_ms=LongType(),
    ),
    "lives": _table_schema(
        **_LIFE,
        state=StringType(),
        intervals=LongType(),
        first_seq=LongType(),
        last_seq=LongType(),
        **_TIMES,
        lost_seq=LongType(),
        lost_ms=LongType(),
        final_seq=LongType(),
        as_of_ms=LongType(),
    ),
}

# Tables that follow from `records` and are brought up to it a piece at a time (batch/rollups/): a row for each window
# and group, or several to be added up.
USAGE_SUMS_SCHEMA: Final = StructType(
    [
        StructField(schema.WINDOW_COLUMN, LongType()),
        *(
            next(field for field in (*schema.HEADER_SCHEMA, *schema.ROW_SCHEMA) if field.name == name)
            for name in usage.DIMENSIONS
        ),
        *(StructField(name, LongType()) for name in (*usage.MEASURES, "delay_ms", "repeats")),
        *_table_schema(**_DATE),
    ]
)
# How far they have come, and what is known of all records up to there. Rows of three kinds, by `entry`
# (table_log.py). READ: after this step, in this version of the table `records`, the last offset of each partition.
READ_SCHEMA: Final = _table_schema(
    entry=StringType(),
    step=LongType(),
    records_id=StringType(),
    records_version=LongType(),
    topic_id=StringType(),
    partition=IntegerType(),
    offset=LongType(),
)
PROGRESS_SCHEMA: Final = StructType(
    [
        *READ_SCHEMA,
        *_table_schema(
            # COUNT: so many records of a day.
            date=DateType(),
            counts=BooleanType(),
            conflict=BooleanType(),
            problem=StringType(),
            count=LongType(),
        ),
        *schema.RUN_SCHEMA,  # RUN
    ]
)

ALL_TABLES: Final = (RECORDS_TABLE, *DERIVED_SCHEMAS, PROGRESS_TABLE, *WINDOW_LENGTHS)
