# The report's data, to be saved from the page: CSV files within it, in links. Pure.

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.audit import columns
from gateway.audit.answers.answer import csv_lines
from gateway.audit.answers.windows import time_text
from gateway.audit.batch import tables
from gateway.audit.questions import episodes
from gateway.audit.report.facts import ReportFacts, UsageGroup

_OTHERS: Final = "(others)"


class CsvDownload(NamedTuple):
    """A file, and the address that holds it."""

    name: str
    rows: int
    address: str


def make_downloads(facts: ReportFacts) -> list[CsvDownload]:
    """The tables and plots of the page; files without rows are left out."""
    more = facts.breakdowns
    series = ("offered_bytes", "accepted_bytes", "rejected_bytes")
    groups = {
        "topics": (("topic",), [each.group for each in facts.topics]),
        "clients": (("principal", "client_id", "software"), facts.clients),
        **{name: ((name.removesuffix("s"),), getattr(more, name)) for name in ("groups", "brokers", "gateways")},
        "software": (("software",), more.software),
    }
    found = [
        _make_file("topics-over-time", ("window_start", "topic", *series), _topic_windows(facts)),
        *(_make_file(name, (*keys, *tables.SUM_COLUMNS), _sum_rows(keys, of)) for name, (keys, of) in groups.items()),
        _make_file("episodes", (*episodes.KINDS,), more.episodes.listed),
    ]
    return [each for each in found if each.rows]


def _topic_windows(facts: ReportFacts) -> Iterator[dict[str, Any]]:
    for each in facts.topics:
        name = each.group.names[0] if each.group.names else _OTHERS
        lines = zip(each.offered, each.accepted, each.rejected, strict=True)
        for number, (offered, accepted, rejected) in enumerate(lines):
            start = time_text(facts.times.start_ms + number * facts.times.step_ms, facts.times.zone)
            yield {"window_start": start, "topic": name} | {
                "offered_bytes": offered, "accepted_bytes": accepted, "rejected_bytes": rejected,
            }  # fmt: skip


def _sum_rows(keys: Sequence[str], groups: Iterable[UsageGroup]) -> Iterator[dict[str, Any]]:
    for each in groups:
        names = dict(zip(keys, each.names or [_OTHERS] * len(keys), strict=True))
        # A number is no text that might be a formula: an unknown broker's is -1.
        numbers: dict[str, Any] = {
            name: int(names[name]) for name in columns.NUMBERED_DIMENSIONS if name in names and each.names
        }
        yield {**names, **numbers, **each.sums}


def _make_file(name: str, titles: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> CsvDownload:
    lines = [*csv_lines(titles, rows)]
    text = base64.b64encode("\n".join([*lines, ""]).encode("utf-8", "backslashreplace")).decode()
    return CsvDownload(f"{name}.csv", len(lines) - 1, f"data:text/csv;charset=utf-8;base64,{text}")
