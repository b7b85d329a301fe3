# The columns of the audit's answers, and those that name a record. Pure, and without Spark: whatever engine counts, its
# rows have these.

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from policies import usage

# One worker's life, and what names a record once and for all (usage.identity). A "lost" note repeats the number of the
# last interval seen, so only its kind distinguishes it from that interval.
BOOT_COLUMNS: Final = ("gateway", "boot", "worker")
IDENTITY_COLUMNS: Final = (*BOOT_COLUMNS, "kind", "seq", "part")
# A record's fields, with their kinds, that are looked at for what is missing or doesn't belong together.
NUMBER_FIELDS: Final = usage.HEADER_FIELDS | dict.fromkeys(
    (usage.CLUSTER, usage.PREVIOUS_DIGEST, usage.RECORD_DIGEST), "str"
)

# Runs of numbers (condensing.py says how), with their kinds.
RUN_FIELDS: Final = {
    **{name: usage.HEADER_FIELDS[name] for name in (*BOOT_COLUMNS, "kind")},
    **dict.fromkeys(("first_seq", "last_seq", "part", "parts"), "int"),
    "final": "bool",
    "start_ms": "int",
    "end_ms": "int",
    **dict.fromkeys((usage.CLUSTER, usage.PREVIOUS_DIGEST, usage.RECORD_DIGEST), "str"),
    **dict.fromkeys(("changed_records", "unchecked_records"), "int"),
}

# Those of usage.DIMENSIONS that are a record's; the others are those of its rows.
RECORD_DIMENSIONS: Final = ("gateway", "worker", usage.CLUSTER)

# Sums that a row of the result holds, each in every measure: the whole, its parts, what policies in mode observe would
# have done to some of it, and (again, from among the parts) what may be in the log unacknowledged.
OFFERED: Final = "offered"
MAYBE_APPENDED: Final = "maybe_appended"
SUMS: Final = (OFFERED, *usage.OUTCOMES, *usage.NOTES, MAYBE_APPENDED)

DELAY: Final = "delay_ms"  # for how long policies held requests back, in all
# Of the offered bytes: what had been sent before and was rejected then, and those of which that is unknown.
REPEATS: Final = "repeats_bytes"
REPEATS_UNKNOWN: Final = "repeats_unknown_bytes"
# Those of the repeats that were rejected once more.
REJECTED_AGAIN: Final = "rejected_again_bytes"
# Sums that stand alone, in one measure of their own.
SINGLE_SUMS: Final = (DELAY, REPEATS, REPEATS_UNKNOWN, REJECTED_AGAIN)

WINDOW_COLUMN: Final = "window_start_ms"
NUMBERED_DIMENSIONS: Final = ("broker", "worker")  # the others of usage.DIMENSIONS are names

# The tables of sums and the length of their windows in milliseconds, longest first; each is a multiple of the next.
WINDOW_LENGTHS: Final = {"usage_1d": 86_400_000, "usage_1h": 3_600_000, "usage_1m": 60_000}


def dimension_kinds(names: Iterable[str]) -> dict[str, type]:
    """Some of usage.DIMENSIONS, as columns of an answer."""
    return {name: int if name in NUMBERED_DIMENSIONS else str for name in names}


def sum_column(sum_name: str, measure: str) -> str:
    """The result's column of one sum in one measure, `accepted_bytes` for example."""
    return f"{sum_name}_{measure}"
