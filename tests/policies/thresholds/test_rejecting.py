# Thresholds that reject: which topics are over, and how long they have to wait.

from __future__ import annotations

import pytest

from tests.effort import lines_run
from tests.policies.asking import fill, present, record, rejecting, rejection

MB = 1_000_000


def test_a_rate_equal_to_a_share_that_a_new_topic_lowered_does_not_exceed_it() -> None:
    made = rejecting(total=10 * MB, big=4 * MB)
    fill(made, big=9 * MB, a=3 * MB)
    made.broker_meters(1).confirm_topic(b"b")
    assert made.broker_meters(1).limits.thresholds.implicit_share == 3 * MB
    assert record(made.broker_meters(1), b"a", 1) is True


def test_a_share_is_lowered_for_the_rates_of_the_last_tick_not_of_an_earlier_one() -> None:
    made = rejecting(total=10 * MB, big=4 * MB)
    fill(made, big=90 * MB, a=1.1 * MB)
    made.broker_meters(1).confirm_topic(b"b")  # share 3 MB/s
    fill(made, big=90 * MB, b=2.2 * MB)
    assert made.broker_meters(1).topics[b"b"].needs_decision is False
    made.broker_meters(1).confirm_topic(b"c")  # share 2 MB/s
    assert made.broker_meters(1).topics[b"b"].needs_decision is True


@pytest.mark.parametrize(("now", "throttle_ms"), [(5.0, 5000), (7.5, 2500), (9.9995, 1), (10.0, 1), (12.0, 1)])
def test_the_wait_ends_at_the_next_tick_where_that_may_bring_the_rate_below(now: float, throttle_ms: int) -> None:
    made = rejecting(total=10 * MB, clicks=5 * MB)
    fill(made, clicks=5.1 * MB, rest=5.2 * MB)
    assert rejection(made, 1, b"clicks", now).throttle_ms == throttle_ms


def test_the_wait_covers_two_ticks_where_one_is_not_enough() -> None:
    made = rejecting(total=10 * MB, clicks=5 * MB)
    fill(made, clicks=5.7 * MB, rest=6 * MB)  # 5.7 -> 5.24 -> 4.82
    assert rejection(made, 1, b"clicks", 7.0).throttle_ms == 8000


def test_the_wait_is_ten_seconds_at_most() -> None:
    made = rejecting(total=10 * MB, clicks=5 * MB)
    fill(made, clicks=500 * MB)
    assert rejection(made, 1, b"clicks", 5.0).throttle_ms == 10_000


def test_the_wait_ends_as_soon_as_the_total_may_be_below_though_the_topic_is_not() -> None:
    made = rejecting(total=10 * MB, clicks=1 * MB)
    fill(made, clicks=9 * MB, rest=1.5 * MB)
    assert rejection(made, 1, b"clicks", 5.0).throttle_ms == 5000


def test_bytes_since_the_last_tick_count_for_the_wait() -> None:
    made = rejecting(total=10 * MB, clicks=5 * MB)
    fill(made, clicks=5.1 * MB, rest=5.2 * MB)
    made.broker_meters(1).topics[b"clicks"].uncounted += 100 * MB
    made.broker_meters(1).total.uncounted += 100 * MB
    assert rejection(made, 1, b"clicks", 5.0).throttle_ms > 5000


def test_a_rejection_carries_its_numbers() -> None:
    made = rejecting(total=10 * MB, clicks=5 * MB)
    fill(made, clicks=6 * MB, rest=6 * MB)
    verdict = rejection(made, 1, b"clicks", 5.0)
    assert (verdict.action, verdict.reason) == ("reject", "topic-threshold")
    assert "6.0 MB/s of 5.0 MB/s (1-minute EWMA), broker 1 total 12.0 MB/s of 10.0 MB/s" in verdict.text


def test_ten_thousand_topics_that_arrive_while_the_total_is_over_take_no_quadratic_time() -> None:
    made = rejecting(total=20 * MB)
    fill(made, **{f"first{i}": 5000 + 3 * i for i in range(3000)})
    assert made.broker_meters(1).limits.thresholds.is_over_total

    def arrive() -> None:
        for i in range(9000):
            made.broker_meters(1).confirm_topic(b"late%d" % i)

    took = lines_run(arrive)
    share = present(made.broker_meters(1).limits.thresholds.implicit_share)
    assert all(m.needs_decision is (m.rate > share) for m in made.broker_meters(1).topics.values())
    assert took < 9000 * 100  # 53 each; thousands each where all are looked at for each
