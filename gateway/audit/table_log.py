# What the logs of the audit's tables say beside their rows: names of tables and of Delta Lake's transaction
# identifiers. Names only; whatever engine reads or writes the tables, they are the same (docs/audit.md).

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

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
MAX_COMMITS_LISTED: Final = 2000  # behind which reading the log costs more than reading the table

Offsets = dict[tuple[str, int], int]  # the last one of each partition, by topic id and partition


@dataclass(slots=True)
class RollupStep:
    """What a step of the roll-ups contains."""

    records_version: int  # Delta Lake's, of the table `records`; -1: none
    offsets: Offsets = field(default_factory=dict)


def commit_file(version: int) -> str:
    """The name of a commit in the folder `_delta_log`."""
    return f"{version:020d}.json"


def list_added(commit: str | bytes) -> list[str]:
    """The files that a commit adds, relative to the table."""
    return [action["add"]["path"] for action in map(json.loads, commit.splitlines()) if "add" in action]
