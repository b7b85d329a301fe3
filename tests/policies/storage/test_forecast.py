# How fast a volume fills: straight lines told exactly, deletions told from growth, and the times to its limits.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.storage import FillRate, FillTrend, Volume, VolumeFinding
from policies.storage.forecast import MAX_FORECAST_S
from tests.policies.asking import present

MB = 10**6
TOTAL = 10**15


class Disk:
    """A volume with its trend; time passes and bytes come and go as the test says."""

    def __init__(self, at: float = 0.0) -> None:
        self.trend, self.at, self.free = FillTrend(), at, TOTAL // 2
        self.look()

    def look(self) -> None:
        self.trend.add_sample(self.at, TOTAL, self.free)

    def write(self, looks: int, rate: int, every_s: int = 60) -> Disk:
        for _ in range(looks):
            self.at += every_s
            self.free -= rate * every_s
            self.look()
        return self

    def delete(self, size: int, rate: int = 0, every_s: int = 60) -> Disk:
        """In one look, writing going on meanwhile."""
        self.at += every_s
        self.free += size - rate * every_s
        self.look()
        return self

    @property
    def fill(self) -> FillRate:
        return present(self.trend.fill_rate)


def test_two_looks_say_nothing_yet() -> None:
    disk = Disk()
    assert disk.trend.fill_rate is None
    assert disk.write(1, MB).trend.fill_rate is None
    assert list(disk.write(1, MB).fill) == [pytest.approx(MB), 0.0]


@given(
    st.integers(0, 10**9),
    st.lists(st.integers(1, 10_000), min_size=2, max_size=50),
    st.floats(-1e6, 1e6),
)
def test_a_straight_line_is_told_exactly_however_often_one_looks(rate: int, steps: list[int], begin: float) -> None:
    disk = Disk(begin)
    for step in steps:
        disk.write(1, rate, step)
    assert disk.fill.net_rate == pytest.approx(rate)


@given(st.integers(1, 10**8), st.integers(3, 50), st.integers(1, 10**14), st.integers(1, 2))
def test_an_operator_s_deletion_does_not_hide_that_the_volume_fills(
    rate: int, looks: int, size: int, steps: int
) -> None:
    disk = Disk().write(looks, rate)
    for _ in range(steps):
        disk.delete(size + rate * 60, rate)
    assert disk.write(1, rate).fill.net_rate == pytest.approx(rate)


@given(st.integers(10**3, 10**8), st.integers(2, 30), st.sampled_from([10, 60, 300]))
def test_retention_that_deletes_as_much_as_comes_in_is_told_as_such(rate: int, looks: int, every_s: int) -> None:
    """Saw teeth of up to half an hour, over half a day: but for the largest of the last hour's teeth, all count."""
    tooth = min(1800, looks * every_s)
    looks = max(2, tooth // every_s)
    disk = Disk()
    while disk.at < 43_200:
        disk.write(looks - 1, rate, every_s).delete(rate * looks * every_s, rate, every_s)
    disk.write(1, rate, every_s)
    assert disk.fill.written == pytest.approx(rate)
    assert -0.3 * rate < disk.fill.net_rate < 0.6 * rate
    if looks * every_s <= 300:
        assert abs(disk.fill.net_rate) < 0.15 * rate


def test_a_producer_that_begins_is_seen_within_two_minutes() -> None:
    disk = Disk().write(600, 1 * MB, 15).write(8, 10 * MB, 15)
    assert 8 * MB < disk.fill.net_rate < 10 * MB


@pytest.mark.parametrize(("interval_s", "after_s"), [(0.1, 25), (1.0, 25), (15.0, 150), (600.0, 1200)])
def test_who_looks_more_often_sees_it_sooner(interval_s: float, after_s: int) -> None:
    trend, free = FillTrend(interval_s), TOTAL
    for look in range(100):
        trend.add_sample(look * interval_s, TOTAL, free)
    for look in range(1, int(after_s / interval_s) + 1):
        trend.add_sample((99 + look) * interval_s, TOTAL, free - round(MB * look * interval_s))
    assert trend.fill_rate is not None
    assert 0.8 * MB < trend.fill_rate.net_rate <= 1.01 * MB


def test_a_volume_with_more_room_at_each_look_does_not_fill() -> None:
    disk = Disk().write(30, MB)
    disk.delete(500 * MB).delete(500 * MB)
    assert disk.fill.net_rate > 0, "one deletion that took its time"
    disk.delete(500 * MB)
    assert disk.fill.written == 0
    assert disk.fill.net_rate < 0
    assert disk.write(1, MB).fill.net_rate == pytest.approx(MB)


def test_a_volume_of_another_size_begins_anew() -> None:
    disk = Disk().write(9, MB)
    disk.trend.add_sample(disk.at + 60, TOTAL * 2, TOTAL)
    assert disk.trend.fill_rate is None


def test_the_same_moment_once_more_is_left_out() -> None:
    disk = Disk().write(2, MB)
    before = disk.fill
    disk.trend.add_sample(disk.at, TOTAL, 5)
    disk.trend.add_sample(disk.at - 1, TOTAL, 5)
    assert disk.fill == before


def times(free: int, soft: float | None, hard: float | None, rate: int = MB) -> list[float | None]:
    trend = FillTrend()
    for look in range(3):
        trend.add_sample(60.0 * look, TOTAL, free + (2 - look) * 60 * rate)
    found = present(trend.forecast_limits(VolumeFinding(Volume(1, "/a", TOTAL, free), 1.0, soft, hard)))
    return [found.soft_s, found.hard_s]


def test_the_time_to_each_limit_is_what_is_left_by_the_rate() -> None:
    assert times(500 * MB, 200.0 * MB, 100.0 * MB) == [pytest.approx(300), pytest.approx(400)]
    assert times(150 * MB, 200.0 * MB, 100.0 * MB) == [0.0, pytest.approx(50)]
    assert times(100 * MB, 200.0 * MB, 100.0 * MB) == [0.0, 0.0], "at the limit"


def test_no_limit_no_growth_and_a_far_future_have_no_time() -> None:
    assert times(500 * MB, None, 100.0 * MB) == [None, pytest.approx(400)]
    assert times(500 * MB, 200.0 * MB, 100.0 * MB, rate=0) == [None, None]
    assert times(500 * MB, None, 500.0 * MB - 2 * MAX_FORECAST_S, rate=1) == [None, None]
    assert FillTrend().forecast_limits(VolumeFinding(Volume(1, "/a", TOTAL, 1), 1.0, None, 5.0)) is None


@given(st.lists(st.tuples(st.floats(0.001, 1e5), st.integers(0, TOTAL)), max_size=60))
def test_whatever_is_seen_rates_are_numbers_and_times_are_never_below_0(looks: list[tuple[float, int]]) -> None:
    trend, at = FillTrend(), 0.0
    for after, free in looks:
        at += after
        trend.add_sample(at, TOTAL, free)
        found = trend.forecast_limits(VolumeFinding(Volume(1, "/a", TOTAL, free), 1.0, TOTAL / 2, TOTAL / 4))
        if found is None:
            continue
        assert found.fill_rate.written >= 0
        assert found.fill_rate.deleted >= 0
        for seconds in (found.soft_s, found.hard_s):
            assert seconds is None or 0 <= seconds <= MAX_FORECAST_S
        if found.soft_s is not None and found.hard_s is not None:
            assert found.soft_s <= found.hard_s
