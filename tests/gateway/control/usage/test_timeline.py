# The gateway's traffic over time: what a slot counts, when it is whole, and that the memory is bounded.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.channel import UsageInterval, UsageRow
from gateway.control.usage.timeline import LATE_MS, SLOT_MS, SLOTS, TimelinePoint, TrafficTimeline

T0 = 1_700_000_000_000 // SLOT_MS * SLOT_MS
S = SLOT_MS / 1000


def row(outcome: str, size: int) -> UsageRow:
    return UsageRow(1, "t", "User:a", "c", outcome, "", size, 1, 1, 0)


def interval(at_ms: int, *rows: UsageRow, ms: int = 1000, factor: float | None = None) -> UsageInterval:
    return UsageInterval("boot", 0, 1, at_ms, at_ms + ms, rows, storage_factor=factor)


def test_a_slot_counts_each_outcome_as_what_it_is() -> None:
    timeline = TrafficTimeline()
    rows = (
        row("accepted", 100),
        row("unacknowledged", 20),
        row("rejected", 30),
        row("dropped", 4),
        row("errored", 1000),  # offered, and neither accepted nor held back
        row("delayed", 50),  # a note beside the accepted bytes
        row("would_reject", 7),
        row("would_delay", 8),
    )
    timeline.add_interval(interval(T0, *rows), T0 + 1000)
    (point,) = timeline.list_points(T0 + SLOT_MS + LATE_MS)
    assert point == TimelinePoint(T0, 1154 / S, 120 / S, 34 / S, 50 / S, 15 / S, None)


def test_a_slot_is_shown_once_it_is_whole_and_not_before_counting_began() -> None:
    timeline = TrafficTimeline()
    assert timeline.list_points(T0) == []
    timeline.add_interval(interval(T0 + SLOT_MS, row("accepted", 10)), T0 + SLOT_MS)
    assert timeline.list_points(T0 + 2 * SLOT_MS + LATE_MS - 1) == []
    assert [point.at_ms for point in timeline.list_points(T0 + 2 * SLOT_MS + LATE_MS)] == [T0 + SLOT_MS]
    quiet = timeline.list_points(T0 + 4 * SLOT_MS + LATE_MS)
    assert [(point.at_ms - T0) // SLOT_MS for point in quiet] == [1, 2, 3]
    assert quiet[1] == TimelinePoint(T0 + 2 * SLOT_MS, 0, 0, 0, 0, 0, None)
    assert [(point.at_ms - T0) // SLOT_MS for point in timeline.list_points(T0 + 4 * SLOT_MS + LATE_MS, 2)] == [2, 3]


def test_a_clock_that_is_set_back_does_not_empty_the_chart() -> None:
    timeline = TrafficTimeline()
    timeline.add_interval(interval(T0, row("accepted", 10)), T0)
    back = T0 - 360 * SLOT_MS
    timeline.add_interval(interval(back, row("accepted", 20)), back)
    assert [(point.at_ms, point.accepted * S) for point in timeline.list_points(back + 2 * SLOT_MS)] == [(back, 20)]


def test_time_that_comes_again_is_not_counted_twice() -> None:
    timeline = TrafficTimeline()
    for number in range(20):
        timeline.add_interval(interval(T0 + number * SLOT_MS, row("accepted", 10)), T0 + number * SLOT_MS)
    for number in range(5, 20):  # 150 s back
        timeline.add_interval(interval(T0 + number * SLOT_MS, row("accepted", 10)), T0 + number * SLOT_MS)
    points = timeline.list_points(T0 + 20 * SLOT_MS + LATE_MS)
    expected = [10.0] * 5 + [20.0] * 2 + [10.0] * 13  # twice: the slot of that moment, and the next
    assert [point.accepted * S for point in points] == expected


def test_a_long_interval_is_spread_over_its_slots() -> None:
    timeline = TrafficTimeline()
    timeline.add_interval(interval(T0, ms=1), T0)
    timeline.add_interval(interval(T0 + SLOT_MS // 2, row("accepted", 300), ms=3 * SLOT_MS), T0 + 4 * SLOT_MS)
    accepted = [point.accepted * S for point in timeline.list_points(T0 + 5 * SLOT_MS)]
    assert accepted == pytest.approx([50, 100, 100, 50])


def test_the_lowest_storage_factor_of_a_slot_is_kept() -> None:
    timeline = TrafficTimeline()
    for ms, factor in ((0, 0.8), (1000, 0.2), (2000, 1.0), (3000, None)):
        timeline.add_interval(interval(T0 + ms, factor=factor), T0 + ms)
    timeline.add_interval(interval(T0 + SLOT_MS), T0 + SLOT_MS)
    assert [point.factor for point in timeline.list_points(T0 + 2 * SLOT_MS + LATE_MS)] == [0.2, None]


def test_a_late_interval_finds_its_slot_and_an_impossible_one_none() -> None:
    timeline = TrafficTimeline()
    timeline.add_interval(interval(T0), T0)
    now = T0 + 3 * SLOT_MS
    timeline.add_interval(interval(T0, row("accepted", 10)), now)
    timeline.add_interval(interval(T0 - SLOTS * SLOT_MS, row("accepted", 99)), now)  # the same place in the ring
    timeline.add_interval(interval(now + 5 * SLOT_MS, row("accepted", 99)), now)
    assert [point.accepted * S for point in timeline.list_points(now + LATE_MS)] == [10, 0, 0]
    later = now + 10 * SLOT_MS
    assert sum(point.accepted * S for point in timeline.list_points(later)) == 10


@given(
    st.lists(st.tuples(st.integers(0, 3 * SLOTS * SLOT_MS), st.integers(1, 50_000), st.integers(0, 10**9)), max_size=50)
)
def test_it_is_what_a_list_of_everything_would_say(given_: list[tuple[int, int, int]]) -> None:
    """The oracle keeps all intervals and adds them up by overlap."""
    timeline, all_of_them = TrafficTimeline(), []
    now = T0
    for after_ms, ms, size in sorted(given_):
        now = max(now, T0 + after_ms + ms)
        timeline.add_interval(interval(T0 + after_ms, row("accepted", size), ms=ms), now)
        all_of_them.append((T0 + after_ms, T0 + after_ms + ms, size))
    points = timeline.list_points(now + LATE_MS)
    assert len(points) < SLOTS
    for point in points:
        overlaps = [
            size * max(0, min(end, point.at_ms + SLOT_MS) - max(start, point.at_ms)) / (end - start)
            for start, end, size in all_of_them
        ]
        assert point.accepted * S == pytest.approx(sum(overlaps))
