# The audit's arithmetic: pure functions from DataFrame to DataFrame. They know no source, no sink and no session, so
# that they run alike on a static DataFrame, a batch of the topic, spool files and one micro-batch of a stream.
#
# decode -> mark_copies -> unique -> totals | gaps | boots. There are no watermarks anywhere: a watermark follows the
# most advanced partition, and a backfill over uneven partitions then loses rows without a word.
#
# `decode_records` is the one expensive step. Its caller should persist what it gives: otherwise the optimizer copies
# from_json below every filter that looks into its result, and decodes everything twice.

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by

from gateway.audit import schema
from policies import usage

WHOLE_COLUMN = "whole"  # column of `summarize_boots`
SAMPLE_CHARS = 200  # characters of a malformed record that are worth showing
_JSON_OPTIONS = {
    "columnNameOfCorruptRecord": schema.CORRUPT_COLUMN,
    # Spark's defaults take more than JSON allows.
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


def decode_records(raw: DataFrame) -> DataFrame:
    """Usage records from text; takes schema.RAW.

    Gives the fields of schema.RECORD, `origin`, `digest` (a hash of the whole content), `problem` (null for a good
    record, else why it is malformed) and `sample` (the beginning of a malformed one). No record is left out.
    """
    # from_json stops behind the first value and ignores the rest: of two records on one line (a newline lost in a
    # crash) the second would be gone without a trace. Inside brackets the parser has to read on to the last byte.
    line = F.concat(F.lit('{"records":['), F.col("value"), F.lit("]}"))
    parsed = raw.select("value", "origin", F.from_json(line, schema.LINE_SCHEMA, _JSON_OPTIONS).alias("line"))
    parsed = parsed.select("value", "origin", "line", F.get(F.col("line")["records"], F.lit(0)).alias("record"))
    content = [F.col("record")[name] for name in (*usage.HEADER_FIELDS, "rows")]
    return parsed.withColumn("problem", _problem_column()).select(
        *(F.col("record")[name].alias(name) for name in usage.HEADER_FIELDS),
        *(F.when(_has_optional_fields(), F.col("record")[name]).alias(name) for name in usage.OPTIONAL_HEADER_FIELDS),
        *(F.when(_has_optional_fields(), F.col("record")[name]).alias(name) for name in schema.DISK_COLUMNS),
        _complete_rows().alias("rows"),
        "origin",
        "problem",
        F.when(F.col("problem").isNotNull(), F.substring("value", 1, SAMPLE_CHARS)).alias("sample"),
        F.xxhash64(*content).alias("digest"),
    )


def mark_copies(decoded: DataFrame) -> DataFrame:
    """The good records, with `copy` (1 for the one that counts, 2 … for its copies) and `conflict`.

    `conflict` is true for a copy that differs from the one that counts. The choice depends on the contents only, so
    that the topic and the spool give the same sums in any order of arrival.
    """
    same = Window.partitionBy(*schema.IDENTITY_COLUMNS).orderBy("digest")
    return (
        decoded.where(F.col("problem").isNull())
        .withColumn("copy", F.row_number().over(same))
        .withColumn("conflict", F.col("digest") != F.first("digest").over(same))
    )


def drop_copies(marked: DataFrame) -> DataFrame:
    """One record of each identity."""
    return marked.where(F.col("copy") == 1).drop("copy", "conflict")


def filter_by_start(records: DataFrame, from_ms: int | None, to_ms: int | None) -> DataFrame:
    """Records whose interval starts in [from_ms, to_ms); None is no bound."""
    if from_ms is not None:
        records = records.where(F.col("start_ms") >= from_ms)
    if to_ms is not None:
        records = records.where(F.col("start_ms") < to_ms)
    return records


def sum_records(records: DataFrame, by: Sequence[str] = (), window_ms: int | None = None) -> DataFrame:
    """Sums by any of usage.DIMENSIONS and a window, of unique records.

    Columns: window_start_ms where a window is asked for, those of `by`, schema.SUMS x usage.MEASURES
    (`offered_bytes`, …) and schema.SINGLE_SUMS. An interval counts whole in the window in which it starts.
    """
    return sum_usage_rows(explode_rows(records), by, window_ms)


def explode_rows(records: DataFrame, *columns: str) -> DataFrame:
    """The rows of unique records, each with its record's gateway, worker, start_ms and `columns`."""
    rows = records.select("gateway", "worker", "start_ms", *columns, F.explode("rows").alias("row"))
    return rows.select("gateway", "worker", "start_ms", *columns, "row.*")


def sum_usage_rows(rows: DataFrame, by: Sequence[str] = (), window_ms: int | None = None) -> DataFrame:
    """The same sums of rows: usage_rows of unique records, or the table `usage`."""
    keys = [*([schema.WINDOW_COLUMN] if window_ms else []), *by]
    if window_ms:
        rows = rows.withColumn(schema.WINDOW_COLUMN, F.col("start_ms") - F.col("start_ms") % window_ms)
    # Two steps, because 40 conditional sums per row cost several times as much as six plain ones.
    outcomes = rows.groupBy(*keys, F.col("outcome").alias("_outcome"), _maybe_appended().alias("_maybe")).agg(
        *(F.sum(name).alias(name) for name in (*usage.MEASURES, "delay_ms")),
        F.sum(F.coalesce("repeats", F.lit(0))).alias("_repeats"),
        F.sum(F.when(F.col("repeats").isNull(), F.col("bytes")).otherwise(0)).alias("_unknown"),
    )
    return outcomes.groupBy(*keys).agg(
        *(
            F.sum(F.when(_belongs_to_sum(name), F.col(measure)).otherwise(0)).alias(schema.sum_column(name, measure))
            for name in schema.SUMS
            for measure in usage.MEASURES
        ),
        *(
            F.sum(F.when(_is_offered(), F.col(column)).otherwise(0)).alias(name)
            for name, column in (
                (schema.DELAY, "delay_ms"),
                (schema.REPEATS, "_repeats"),
                (schema.REPEATS_UNKNOWN, "_unknown"),
            )
        ),
        F.sum(F.when(F.col("_outcome") == "rejected", F.col("_repeats")).otherwise(0)).alias(schema.REJECTED_AGAIN),
    )


def finally_dropped_column(torn: bool) -> Column:
    """dropped.finally_dropped of a row of totals, as an expression."""
    once = F.col("rejected_bytes") - F.col(schema.REJECTED_AGAIN)
    left = once if torn else F.greatest(F.col("rejected_bytes") - F.col(schema.REPEATS), F.lit(0))
    return left + F.col("dropped_bytes") + F.col("discarded_bytes")


def condense_rows(rows: DataFrame, window_ms: int, *columns: str) -> DataFrame:
    """Fewer rows that say the same: one for each window, outcome, reason and `columns`, to ask several questions of.

    Takes and gives the columns that totals_of_rows takes, with the window's start as `start_ms`.
    """
    start = (F.col("start_ms") - F.col("start_ms") % window_ms).alias("start_ms")
    known = F.col("repeats").isNotNull().alias("_known")  # sums leave nulls out: what is unknown stays apart
    return (
        rows.groupBy(start, *columns, "outcome", "reason", known)
        .agg(*(F.sum(name).alias(name) for name in (*usage.MEASURES, "delay_ms", "repeats")))
        .drop("_known")
    )


def select_numbering(records: DataFrame) -> DataFrame:
    """All that `detect_gaps` and `summarize_boots` look at, of unique records: small enough to be kept where both are
    asked.
    """
    return records.select(*schema.BOOT_COLUMNS, "kind", "seq", "parts", "final", "start_ms", "end_ms")


def detect_gaps(records: DataFrame) -> DataFrame:
    """The gaps in each worker's numbering, of unique records.

    Columns: gateway, boot, worker, `gap` ("seq": the intervals first_seq … last_seq are missing; "parts": some parts
    of one interval are), first_seq, last_seq, `missing` (how many), and between which times it lies: after_ms (null:
    from the beginning of that boot) and before_ms.
    """
    intervals = _group_intervals(records)
    return _missing_numbers(intervals).unionByName(_missing_at_end(records)).unionByName(_missing_parts(intervals))


def summarize_boots(records: DataFrame) -> DataFrame:
    """One row for each worker's life, of unique records.

    Columns: gateway, boot, worker, `state` ("final": ended and all accounted for; "lost": died, its work after last_seq
    is unknown; "open": no end seen, so it runs still or died unnoticed), intervals, first_seq, last_seq, start_ms and
    end_ms of the intervals seen, lost_seq and lost_ms (null unless there is a note of its loss), WHOLE (`detect_gaps`
    has none of it for sure, as all its numbers are there and none has several parts).
    """
    interval = F.col("kind") == usage.INTERVAL
    lost = F.col("kind") == usage.LOST
    state = F.when(F.max("final"), "final").when(F.max(lost), "lost").otherwise("open")
    lives = records.groupBy(*schema.BOOT_COLUMNS).agg(
        state.alias("state"),
        F.count_distinct(F.when(interval, F.col("seq"))).alias("intervals"),
        F.min(F.when(interval, F.col("seq"))).alias("first_seq"),
        F.max(F.when(interval, F.col("seq"))).alias("last_seq"),
        F.min(F.when(interval, F.col("start_ms"))).alias("start_ms"),
        F.max(F.when(interval, F.col("end_ms"))).alias("end_ms"),
        F.max(F.when(lost, F.col("seq"))).alias("lost_seq"),
        F.max(F.when(lost, F.col("end_ms"))).alias("lost_ms"),
        (F.coalesce(F.max(F.when(interval, F.col("parts"))), F.lit(1)) == 1).alias("_single"),
    )
    # Numbers begin with 0, and an interval that is there twice is counted once.
    expected = F.coalesce(F.col("last_seq") + 1, F.lit(0))
    whole = F.col("_single") & (F.col("intervals") == expected) & (F.coalesce("lost_seq", F.lit(-1)) < expected)
    return lives.withColumn(WHOLE_COLUMN, whole).drop("_single")


def _problem_column() -> Column:
    # The first of these that is true. A comparison with null is neither, hence the nulls come before their values.
    line, record = F.col("line"), F.col("record")
    header = [record[name].isNull() for name in usage.HEADER_FIELDS]
    checks = [
        (F.col("value").isNull() | (F.trim(F.col("value")) == ""), "empty"),
        (~F.is_valid_utf8(F.col("value")), "not UTF-8"),
        (
            line.isNull() | line[schema.CORRUPT_COLUMN].isNotNull() | record.isNull() | (F.size(line["records"]) != 1),
            "not one JSON object, or a field of the wrong type",
        ),
        (record["version"].isNull(), "version is missing"),
        (
            ~record["version"].isin(*usage.READ_VERSIONS),
            f"a version other than {' or '.join(map(str, usage.READ_VERSIONS))}",
        ),
        (reduce(or_, header) | record["rows"].isNull(), "a field is missing"),
        (~record["kind"].isin(usage.INTERVAL, usage.LOST), "unknown kind"),
        (_bad_numbering(record), "numbering is out of range"),
        (_bad_times(record), "time is out of range"),
        (_bad_factor(record), "storage factor is out of range"),
        (_bad_disks(record), "a volume or its topics are incomplete or out of range"),
        (_bad_shape(record), "rows do not fit the kind"),
        (F.exists(record["rows"], _bad_row), "a row is incomplete or out of range"),
    ]
    chain = F.when(*_when_case(checks[0]))
    for check in checks[1:]:
        chain = chain.when(*_when_case(check))
    return chain


def _has_optional_fields() -> Column:
    # A version 1 may by chance have a field of such a name: its readers skip it. Its type must fit all the same.
    return F.col("record")["version"] > 1


def _complete_rows() -> Column:
    has_fields = _has_optional_fields()

    def completed(row: Column) -> Column:
        extra = {name: F.when(has_fields, row[name]) for name in usage.OPTIONAL_ROW_FIELDS}
        names = [name for name, kind in usage.OPTIONAL_ROW_FIELDS.items() if kind == "str"]
        extra |= {name: F.coalesce(extra[name], F.lit("")) for name in names}
        columns = {name: row[name] for name in usage.ROW_FIELDS} | extra
        return F.when(row.isNotNull(), F.struct(*(column.alias(name) for name, column in columns.items())))

    return F.transform(F.col("record")["rows"], completed)


def _when_case(check: tuple[Column, str]) -> tuple[Column, Column]:
    condition, text = check
    return condition, F.lit(text)


def _bad_numbering(record: Column) -> Column:
    lowest = F.when(record["kind"] == usage.LOST, -1).otherwise(0)
    return (
        (record["worker"] < 0)
        | (record["seq"] < lowest)
        | (record["part"] < 0)
        | (record["part"] >= record["parts"])
        | (record["parts"] > schema.MAX_PARTS)
    )


def _bad_times(record: Column) -> Column:
    return (
        (record["start_ms"] < schema.EARLIEST_MS)
        | (record["end_ms"] < record["start_ms"])
        | (record["end_ms"] > schema.LATEST_MS)
    )


def _bad_factor(record: Column) -> Column:
    factor = record[usage.STORAGE_FACTOR]
    return F.coalesce(_has_optional_fields() & ((factor < 0) | (factor > usage.PPM)), F.lit(False))


def _bad_disks(record: Column) -> Column:
    def bad(each: Column, fields: dict[str, str], optional: dict[str, str]) -> Column:
        missing = [each[name].isNull() for name in fields]
        low = [
            F.coalesce(each[name] < (-1 if name == "broker" else 0), F.lit(False))
            for name, kind in (fields | optional).items()
            if kind == "int"
        ]
        return each.isNull() | reduce(or_, [*missing, *low])

    volumes = F.exists(record[usage.VOLUMES], lambda each: bad(each, usage.VOLUME_FIELDS, usage.OPTIONAL_VOLUME_FIELDS))
    spread = F.exists(record[usage.SPREAD], lambda each: bad(each, usage.SPREAD_FIELDS, {}))
    return _has_optional_fields() & (F.coalesce(volumes, F.lit(False)) | F.coalesce(spread, F.lit(False)))


def _bad_shape(record: Column) -> Column:
    size = F.size(record["rows"])
    lost = record["kind"] == usage.LOST
    return (lost & ((size > 0) | record["final"])) | (~lost & (size == 0) & ~record["final"])


def _bad_row(row: Column) -> Column:
    numbers = [name for name, kind in usage.ROW_FIELDS.items() if kind == "int" and name != "broker"]
    unfit = [
        row["broker"] < -1,
        ~row["outcome"].isin(*usage.OUTCOMES, *usage.NOTES),
        row["outcome"].isin(*sorted(usage.OUTCOMES_WITH_REASON)) & (row["reason"] == ""),
        *((row[name] < 0) | (row[name] > schema.MAX_COUNT) for name in numbers),
    ]
    unfit.append(F.coalesce((row["repeats"] < 0) | (row["repeats"] > schema.MAX_COUNT), F.lit(False)))
    missing = [row[name].isNull() for name in usage.ROW_FIELDS]
    return row.isNull() | reduce(or_, missing) | reduce(or_, unfit)


def _maybe_appended() -> Column:
    """usage.may_be_appended as an expression."""
    always = [outcome for outcome in usage.OUTCOMES if usage.may_be_appended(outcome)]
    return F.col("outcome").isin(*always) | (
        (F.col("outcome") == "errored") & F.col("reason").isin(*sorted(usage.MAYBE_APPENDED))
    )


def _belongs_to_sum(name: str) -> Column:
    if name == schema.OFFERED:
        return _is_offered()
    return F.col("_maybe") if name == schema.MAYBE_APPENDED else F.col("_outcome") == name


def _is_offered() -> Column:
    """Whether these are bytes of their own: a policy's would-be effect concerns bytes that also had an outcome."""
    return ~F.col("_outcome").isin(*usage.NOTES)


def _group_intervals(records: DataFrame) -> DataFrame:
    return (
        records.where(F.col("kind") == usage.INTERVAL)
        .groupBy(*schema.BOOT_COLUMNS, "seq")
        .agg(
            F.max("parts").alias("parts"),
            F.count(F.lit(1)).alias("seen"),
            F.min("start_ms").alias("start_ms"),
            F.max("end_ms").alias("end_ms"),
        )
    )


def _missing_numbers(intervals: DataFrame) -> DataFrame:
    life = Window.partitionBy(*schema.BOOT_COLUMNS).orderBy("seq")
    first = F.coalesce(F.lag("seq").over(life) + 1, F.lit(0))
    return (
        intervals.withColumn("first_seq", first)
        .withColumn("after_ms", F.lag("end_ms").over(life))
        .where(F.col("seq") > F.col("first_seq"))
        .select(
            *schema.BOOT_COLUMNS,
            F.lit("seq").alias("gap"),
            "first_seq",
            (F.col("seq") - 1).alias("last_seq"),
            (F.col("seq") - F.col("first_seq")).alias("missing"),
            "after_ms",
            F.col("start_ms").alias("before_ms"),
        )
    )


def _missing_at_end(records: DataFrame) -> DataFrame:
    # The note of a worker's loss says how far it had come; what lies between that and what is here is gone.
    first = F.coalesce(F.col("last_seq") + 1, F.lit(0))
    return (
        summarize_boots(records)
        .where(F.col("lost_seq") >= first)
        .select(
            *schema.BOOT_COLUMNS,
            F.lit("seq").alias("gap"),
            first.alias("first_seq"),
            F.col("lost_seq").alias("last_seq"),
            (F.col("lost_seq") - first + 1).alias("missing"),
            F.col("end_ms").alias("after_ms"),
            F.col("lost_ms").alias("before_ms"),
        )
    )


def _missing_parts(intervals: DataFrame) -> DataFrame:
    return intervals.where(F.col("seen") < F.col("parts")).select(
        *schema.BOOT_COLUMNS,
        F.lit("parts").alias("gap"),
        F.col("seq").alias("first_seq"),
        F.col("seq").alias("last_seq"),
        (F.col("parts") - F.col("seen")).alias("missing"),
        F.col("start_ms").alias("after_ms"),
        F.col("end_ms").alias("before_ms"),
    )
