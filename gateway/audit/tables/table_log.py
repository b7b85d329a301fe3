# What whoever reads or writes the audit's tables has to know beside their columns, in whatever engine: names of tables
# and of Delta Lake's transaction identifiers, days, what is said of them. Pure; docs/audit.md describes the same.

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import pairwise
from typing import Any, Final

from gateway.audit.errors import AuditError

DAY_MS: Final = 86_400_000
LAYOUT_VERSION: Final = 1  # a newer one is refused
LAYOUT_PROPERTY: Final = "produce-gateway.layout"  # property of the table `records`
RECORDS_TABLE: Final = "records"
PROGRESS_TABLE: Final = "progress"
READ, RUN, COUNT = "read", "run", "count"  # the kinds of its rows, by `entry`
# Transaction identifiers: of `records`, which stream may add, and up to which day usage is expired (days after
# 1970-01-01) …
STREAM, EXPIRED = "produce-gateway.stream", "produce-gateway.expired"
# … and of the roll-ups, twice the step that they are at. Odd numbers are rewrites, which come between two steps.
ROLLUP: Final = "produce-gateway.rollup"

Offsets = dict[tuple[str, int], int]  # the last one of each partition, by topic id and partition


@dataclass(slots=True)
class RollupStep:
    """What a step of the roll-ups contains."""

    records_version: int  # Delta Lake's, of the table `records`; -1: none
    offsets: Offsets = field(default_factory=dict)
    # When the first and the last interval started of what the step before hasn't: what reads it leaves other files out.
    times: tuple[int, int] | None = None  # Unix milliseconds; None: not known

    @property
    def is_empty(self) -> bool:
        """Whether it contains no record."""
        return max(self.offsets.values(), default=-1) < 0


def join_equal_steps(steps: dict[int, RollupStep]) -> None:
    """Put in the place of a step a later one that contains the same, and has fewer files behind it."""
    for later, number in pairwise(sorted(steps, reverse=True)):
        if steps[number].offsets == steps[later].offsets:
            steps[number] = steps[later]


def iso_day(number: int) -> str:
    """The date of a day, given in days after 1970-01-01."""
    return (date(1970, 1, 1) + timedelta(number)).isoformat()


def day_start_ms(day: str) -> int:
    """When a day of that date begins, in Unix ms."""
    return (date.fromisoformat(day) - date(1970, 1, 1)).days * DAY_MS


def describe_tables(root: str, first_kept_day: str) -> dict[str, Any]:
    """The source in a report. `first_kept_day`: "" where no day is expired."""
    about = {"kind": "tables", "name": root, "format": "delta", "layout": LAYOUT_VERSION}
    return about | {"expired_before": first_kept_day or None}


def missing_tables_text(root: str) -> str:
    """To say to a user who asks for tables that aren't there."""
    return f"no tables in {root}: `produce-gateway audit stream --output {root}` makes them"


def check_layout(root: str, found: str) -> None:
    """`found`: the tables' LAYOUT_PROPERTY; "" where they have none.

    Raises:
        AuditError: it is newer than this program, or there is none.
    """
    if not found:
        raise AuditError(missing_tables_text(root))
    if int(found) > LAYOUT_VERSION:
        raise AuditError(
            f"{root} has tables of layout {found}, this program knows {LAYOUT_VERSION}: use a newer produce-gateway"
        )
