# The audit's arithmetic: pure functions from DataFrame to DataFrame. They know no source, no sink and no session, so
# that they run alike on a static DataFrame, a batch of the topic, spool files and one micro-batch of a stream.
#
# decode -> mark_copies -> unique -> totals | gaps | boots. There are no watermarks anywhere: a watermark follows the
# most advanced partition, and a backfill over uneven partitions then loses rows without a word.
#
# `decode_records` is the one expensive step: its caller should persist what it gives.

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows it by
from pyspark.sql.types import StructType

from gateway.audit.answers.windows import CalendarWindows
from gateway.audit.batch.query import AuditQuery
from gateway.audit.records import condensing, record_batches
from gateway.audit.spark import schema
from gateway.audit.spark.arrow_map import map_in_arrow
from policies import usage

WHOLE_COLUMN = "whole"  # column of `summarize_boots`


def decode_records(raw: DataFrame, keys: Sequence[bytes] = ()) -> DataFrame:
    """Usage records from text or bytes; takes schema.RAW_SCHEMA, whatever the type of its `origin`.

    Gives schema.DECODED_SCHEMA and `origin`: `digest` is a hash of the content, `problem` null for a good record, else
    why it is malformed, `sample` the beginning of a malformed one. No record is left out. `keys`: of their digests.
    """
    kinds = StructType([*schema.DECODED_SCHEMA, raw.schema["origin"]])
    return map_in_arrow(raw.select("value", "origin"), partial(record_batches.decode_columns, keys=keys), kinds)


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


def measure_spans(records: DataFrame, question: AuditQuery) -> DataFrame:
    """IntervalSpan's columns of unique records."""
    chosen = filter_by_start(records.where(F.col("kind") == usage.INTERVAL), question.from_ms, question.to_ms)
    step = question.window_ms
    window = F.col("start_ms") - F.col("start_ms") % step if step else F.lit(0)
    ends = (F.min("start_ms"), F.max("start_ms"), F.max("end_ms"), F.min(usage.STORAGE_FACTOR))
    return chosen.groupBy(window.alias(schema.WINDOW_COLUMN)).agg(*ends)


def explode_rows(records: DataFrame, *columns: str) -> DataFrame:
    """The rows of unique records, each with its record's schema.RECORD_DIMENSIONS, start_ms and `columns`."""
    cluster = F.coalesce(usage.CLUSTER, F.lit("")).alias(usage.CLUSTER)
    rows = records.select("gateway", "worker", cluster, "start_ms", *columns, F.explode("rows").alias("row"))
    return rows.select(*schema.RECORD_DIMENSIONS, "start_ms", *columns, "row.*")


def sum_question(rows: DataFrame, question: AuditQuery) -> DataFrame:
    """The sums that a question asks for, of all rows within its bounds."""
    chosen = filter_by_start(rows, question.from_ms, question.to_ms)
    if question.only is not None:
        chosen = chosen.where(F.col(question.by[0]).isin(*question.only))
    sums = sum_usage_rows(chosen, question.by, question.window_ms, question.calendar)
    return sums.where(reduce(or_, (F.col(name) > 0 for name in question.noted))) if question.noted else sums


def sum_usage_rows(
    rows: DataFrame, by: Sequence[str] = (), window_ms: int | None = None, calendar: CalendarWindows | None = None
) -> DataFrame:
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
    if calendar is not None:
        find = partial(condensing.find_calendar_windows, calendar=calendar)
        outcomes = map_in_arrow(outcomes, find, outcomes.schema)
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


def condense_records(raw: DataFrame, question: AuditQuery, keys: Sequence[bytes] = ()) -> DataFrame:
    """What the question needs of that text (condensing.py); takes schema.RAW_SCHEMA, gives schema.CONDENSED_SCHEMA."""
    condense = partial(
        condensing.condense_columns,
        by=tuple(question.by),
        window_ms=question.window_ms,
        from_ms=question.from_ms,
        to_ms=question.to_ms,
        calendar=question.calendar,
        keys=keys,
    )
    return map_in_arrow(raw.select("value", "origin"), condense, schema.CONDENSED_SCHEMA)


def has_copies(runs: DataFrame) -> bool:
    """Whether a record may be there twice: then runs and sums count it twice."""
    return bool(find_copies(runs).limit(1).collect())


def find_copies(runs: DataFrame) -> DataFrame:
    """The lives, some of them repeatedly, in which a number may be there twice."""
    life = Window.partitionBy(*schema.BOOT_COLUMNS, "kind").orderBy("first_seq", "part")
    before = F.max("last_seq").over(life.rowsBetween(Window.unboundedPreceding, -1))
    # Several parts of one interval are not copies.
    same = [F.lag(name).over(life) == F.col(name) for name in ("first_seq", "last_seq", "parts")]
    is_next_part = reduce(and_, same) & (F.lag("part").over(life) < F.col("part")) & (F.col("parts") > 1)
    again = (before >= F.col("first_seq")).alias("again")
    found = runs.select(*schema.BOOT_COLUMNS, again, is_next_part.alias("is_next_part"))
    return found.where(F.col("again") & ~F.coalesce("is_next_part", F.lit(False))).select(*schema.BOOT_COLUMNS)


def select_numbering(records: DataFrame) -> DataFrame:
    """All that `detect_gaps` and `summarize_boots` look at, of unique records or of runs of them: small enough to be
    kept where both are asked.
    """
    if "first_seq" in records.columns:
        return records
    seq = F.col("seq")
    numbers = (seq.alias("first_seq"), seq.alias("last_seq"))
    rest = ("parts", "final", "start_ms", "end_ms", usage.CLUSTER, usage.PREVIOUS_DIGEST, usage.RECORD_DIGEST)
    has_digest, changed = F.col(usage.RECORD_DIGEST).isNotNull(), F.col("changed")
    counts = {
        "changed_records": F.coalesce(changed, F.lit(False)),
        "unchecked_records": has_digest & changed.isNull(),
    }
    chain = [count.cast("long").alias(name) for name, count in counts.items()]
    return records.select(*schema.BOOT_COLUMNS, "kind", *numbers, "part", *rest, *chain)


def detect_gaps(records: DataFrame) -> DataFrame:
    """The gaps in each worker's numbering, of unique records or of runs of them.

    Columns: gateway, boot, worker, `gap` ("seq": the intervals first_seq … last_seq are missing; "parts": some parts
    of one interval are), first_seq, last_seq, `missing` (how many), and between which times it lies: after_ms (null:
    from the beginning of that boot) and before_ms.
    """
    runs = select_numbering(records)
    intervals = _group_intervals(runs)
    return _missing_numbers(intervals).unionByName(_missing_at_end(runs)).unionByName(_missing_parts(intervals))


def summarize_boots(records: DataFrame) -> DataFrame:
    """One row for each worker's life, of the same.

    Columns: gateway, boot, worker, `state` ("final": ended and all accounted for; "lost": died, its work after last_seq
    is unknown; "open": no end seen, so it runs still or died unnoticed), intervals, first_seq, last_seq, start_ms and
    end_ms of the intervals seen, lost_seq and lost_ms (null unless there is a note of its loss), final_seq (null unless
    an interval said it was the last), clusters (their ids, in order), changed (how many records aren't as they were
    written), unchecked (how many have a digest whose key isn't here), chained (whether any has a digest), whole
    (`detect_gaps` has none of it for sure, as all its numbers are there and none has several parts).
    """
    runs = select_numbering(records)
    interval = F.col("kind") == usage.INTERVAL
    lost = F.col("kind") == usage.LOST
    state = F.when(F.max("final"), "final").when(F.max(lost), "lost").otherwise("open")
    # Parts of an interval have its number, and an interval with parts is a run of its own.
    further = F.coalesce(F.sum(F.when(interval, F.col("last_seq") - F.col("first_seq"))), F.lit(0))
    lives = runs.groupBy(*schema.BOOT_COLUMNS).agg(
        state.alias("state"),
        (F.count_distinct(F.when(interval, F.col("first_seq"))) + further).alias("intervals"),
        F.min(F.when(interval, F.col("first_seq"))).alias("first_seq"),
        F.max(F.when(interval, F.col("last_seq"))).alias("last_seq"),
        F.min(F.when(interval, F.col("start_ms"))).alias("start_ms"),
        F.max(F.when(interval, F.col("end_ms"))).alias("end_ms"),
        F.max(F.when(lost, F.col("last_seq"))).alias("lost_seq"),
        F.max(F.when(lost, F.col("end_ms"))).alias("lost_ms"),
        F.min(F.when(F.col("final"), F.col("last_seq"))).alias("final_seq"),
        F.sort_array(F.collect_set(F.when(F.col(usage.CLUSTER) != "", F.col(usage.CLUSTER)))).alias("clusters"),
        F.sum("changed_records").alias("changed"),
        F.sum("unchecked_records").alias("unchecked"),
        F.max(F.col(usage.RECORD_DIGEST).isNotNull()).alias("chained"),
        (F.coalesce(F.max(F.when(interval, F.col("parts"))), F.lit(1)) == 1).alias("_single"),
    )
    # Numbers begin with 0, and an interval that is there twice is counted once.
    expected = F.coalesce(F.col("last_seq") + 1, F.lit(0))
    whole = F.col("_single") & (F.col("intervals") == expected) & (F.coalesce("lost_seq", F.lit(-1)) < expected)
    return lives.withColumn(WHOLE_COLUMN, whole).drop("_single")


def count_broken_links(records: DataFrame) -> DataFrame:
    """Of the same, the lives with records that don't follow the one before them, where that is there, by their digests
    (policies/record_digests.py); schema.BOOT_COLUMNS and `broken`, how many; those within runs are in `changed`.
    """
    runs = select_numbering(records)
    intervals = runs.where(F.col("kind") == usage.INTERVAL)
    life = Window.partitionBy(*schema.BOOT_COLUMNS).orderBy("first_seq", "part")
    before = {name: F.lag(name).over(life) for name in ("last_seq", "part", "parts", usage.RECORD_DIGEST)}
    same = (F.col("part") > 0) & (F.col("first_seq") == before["last_seq"]) & (F.col("part") == before["part"] + 1)
    is_next = (F.col("part") == 0) & (F.col("first_seq") == before["last_seq"] + 1)
    follows = same | (is_next & (before["part"] == before["parts"] - 1))
    fits = F.col(usage.PREVIOUS_DIGEST).eqNullSafe(before[usage.RECORD_DIGEST])
    broken = intervals.select(*schema.BOOT_COLUMNS, (follows & ~fits).alias("_broken"))
    # A note of loss follows the life's last record, whichever of them came last.
    end = F.max(F.struct("last_seq", "part", "parts", usage.RECORD_DIGEST)).alias("_end")
    ends = intervals.groupBy(*schema.BOOT_COLUMNS).agg(end)
    lost = runs.where(F.col("kind") == usage.LOST).join(ends, [*schema.BOOT_COLUMNS])
    is_last = (F.col("_end.last_seq") == F.col("first_seq")) & (F.col("_end.part") == F.col("_end.parts") - 1)
    fits = F.col(usage.PREVIOUS_DIGEST).eqNullSafe(F.col(f"_end.{usage.RECORD_DIGEST}"))
    broken = broken.unionByName(lost.select(*schema.BOOT_COLUMNS, (is_last & ~fits).alias("_broken")))
    return broken.where("_broken").groupBy(*schema.BOOT_COLUMNS).agg(F.count(F.lit(1)).alias("broken"))


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


def _group_intervals(runs: DataFrame) -> DataFrame:
    return (
        runs.where(F.col("kind") == usage.INTERVAL)
        .groupBy(*schema.BOOT_COLUMNS, "first_seq", "last_seq")
        .agg(
            F.max("parts").alias("parts"),
            F.count(F.lit(1)).alias("seen"),
            F.min("start_ms").alias("start_ms"),
            F.max("end_ms").alias("end_ms"),
        )
    )


def _missing_numbers(intervals: DataFrame) -> DataFrame:
    life = Window.partitionBy(*schema.BOOT_COLUMNS).orderBy("first_seq")
    expected = F.coalesce(F.lag("last_seq").over(life) + 1, F.lit(0))
    return (
        intervals.withColumn("expected", expected)
        .withColumn("after_ms", F.lag("end_ms").over(life))
        .where(F.col("first_seq") > F.col("expected"))
        .select(
            *schema.BOOT_COLUMNS,
            F.lit("seq").alias("gap"),
            F.col("expected").alias("first_seq"),
            (F.col("first_seq") - 1).alias("last_seq"),
            (F.col("first_seq") - F.col("expected")).alias("missing"),
            "after_ms",
            F.col("start_ms").alias("before_ms"),
        )
    )


def _missing_at_end(runs: DataFrame) -> DataFrame:
    # The note of a worker's loss says how far it had come; what lies between that and what is here is gone.
    first = F.coalesce(F.col("last_seq") + 1, F.lit(0))
    return (
        summarize_boots(runs)
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
        "first_seq",
        "last_seq",
        (F.col("parts") - F.col("seen")).alias("missing"),
        F.col("start_ms").alias("after_ms"),
        F.col("end_ms").alias("before_ms"),
    )
