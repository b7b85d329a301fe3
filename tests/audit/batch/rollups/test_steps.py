# Steps have each record once, no more rows than asked for, and follow Kafka's time.

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.batch.rollups.steps import OffsetSpan, cut_steps
from gateway.audit.tables.table_log import RollupStep

MOST_ROWS = 10
START = RollupStep(7, {("id", 0): 4})


def _span(partition: int, offset: int, rows: int, written_ms: int, start_ms: int | None = None) -> OffsetSpan:
    return OffsetSpan("id", partition, offset, rows, start_ms, start_ms, written_ms)


@given(
    st.lists(
        st.builds(_span, st.integers(0, 2), st.integers(5, 40), st.integers(1, 14), st.integers(0, 9)),
        unique_by=lambda span: (span.partition, span.offset),
    )
)
def test_steps_have_each_record_once_and_no_more_rows_than_asked_for(spans: list[OffsetSpan]) -> None:
    steps = cut_steps(spans, START, MOST_ROWS)
    assert bool(steps) == bool(spans)
    last: dict[int, int] = {}
    for span in spans:
        last[span.partition] = max(span.offset, last.get(span.partition, -1))
    if steps:
        assert steps[-1].offsets == START.offsets | {("id", partition): offset for partition, offset in last.items()}
    found = []
    for before, step in pairwise([START, *steps]):
        new = [
            span
            for span in spans
            if before.offsets.get(("id", span.partition), -1)
            < span.offset
            <= step.offsets.get(("id", span.partition), -1)
        ]
        assert new
        assert len(new) == 1 or sum(span.rows for span in new) <= MOST_ROWS
        assert step.records_version == START.records_version
        found += new
    assert sorted(found) == sorted(spans)


def test_steps_follow_the_time_of_kafka_and_tell_that_of_their_intervals() -> None:
    spans = [
        *(_span(0, 10 * i, 5, written_ms=100 * i, start_ms=i) for i in range(1, 5)),
        *(_span(1, i, 5, written_ms=100 * i + 1, start_ms=i - 90) for i in range(1, 5)),
        _span(2, 0, 10, written_ms=150),  # nothing but malformed records
    ]
    steps = cut_steps(spans, START, MOST_ROWS)
    assert [step.offsets for step in steps] == [
        {("id", 0): 10, ("id", 1): 1},
        {("id", 0): 10, ("id", 1): 1, ("id", 2): 0},
        {("id", 0): 20, ("id", 1): 2, ("id", 2): 0},
        {("id", 0): 30, ("id", 1): 3, ("id", 2): 0},
        {("id", 0): 40, ("id", 1): 4, ("id", 2): 0},
    ]
    assert [step.times for step in steps] == [(-89, 1), None, (-88, 2), (-87, 3), (-86, 4)]
