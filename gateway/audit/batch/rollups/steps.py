# Records cut into steps: a kill loses one of them at most, and none is larger for what else waits for roll-ups. Pure:
# spans of offsets in, steps out; knows neither Spark nor a table.

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from gateway.audit.tables.table_log import RollupStep


class OffsetSpan(NamedTuple):
    """Records of a partition that follow each other."""

    topic_id: str
    partition: int
    offset: int  # the last one
    rows: int  # of usage, and one for each record without any
    first_ms: int | None  # when the first and the last interval started (Unix milliseconds); None: all are malformed
    last_ms: int | None
    written_ms: int  # Kafka's time of the newest record


def cut_steps(spans: Iterable[OffsetSpan], after: RollupStep, most_rows: int) -> list[RollupStep]:
    """Steps that follow `after`, in the order of Kafka's time and the last one with all; of `most_rows` each, unless a
    span alone has more.
    """
    steps: list[RollupStep] = []
    offsets, chosen, rows = dict(after.offsets), list[OffsetSpan](), 0
    for span in _order_spans(spans):
        if chosen and rows + span.rows > most_rows:
            steps.append(RollupStep(after.records_version, dict(offsets), _find_times(chosen)))
            chosen, rows = [], 0
        offsets[span.topic_id, span.partition] = span.offset
        chosen.append(span)
        rows += span.rows
    if chosen:
        steps.append(RollupStep(after.records_version, offsets, _find_times(chosen)))
    return steps


def _order_spans(spans: Iterable[OffsetSpan]) -> list[OffsetSpan]:
    # Files are written in the order of time: a step then needs few of them. Of one partition, the order is that of its
    # offsets, whatever its producers' clocks say.
    found: list[OffsetSpan] = []
    for _, of_partition in groupby(sorted(spans), attrgetter("topic_id", "partition")):
        latest = 0
        for span in of_partition:
            latest = max(latest, span.written_ms)
            found.append(span._replace(written_ms=latest))
    return sorted(found, key=attrgetter("written_ms"))  # which leaves the order of equals


def _find_times(spans: list[OffsetSpan]) -> tuple[int, int] | None:
    firsts = [span.first_ms for span in spans if span.first_ms is not None]
    lasts = [span.last_ms for span in spans if span.last_ms is not None]
    return (min(firsts), max(lasts)) if firsts and lasts else None
