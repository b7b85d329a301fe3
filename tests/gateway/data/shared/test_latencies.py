# Histograms of one worker: which bucket, how many are measured, and what each request counts for.

from __future__ import annotations

from collections import deque

import pytest

from gateway.channel import LATENCY_BOUNDS, Buckets
from gateway.data.shared.latencies import MEASURED, Histogram, Meter, Stamp

NONE = Histogram().take()


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(-0.1, 0), (0.0, 0), (LATENCY_BOUNDS[0], 0), (0.0003, 1), (1.0, LATENCY_BOUNDS.index(1.0)), (1e9, -1)],
)
def test_a_duration_is_in_the_bucket_that_ends_at_it_or_above(seconds: float, bucket: int) -> None:
    histogram = Histogram()
    histogram.add(seconds)
    taken = histogram.take()
    assert taken.counts[bucket] == sum(taken.counts) == 1
    assert taken.total == max(0.0, seconds)
    assert histogram.take() == NONE


def counts(buckets: Buckets) -> dict[float, int]:
    return {bound: n for bound, n in zip((*LATENCY_BOUNDS, float("inf")), buckets.counts, strict=True) if n}


def test_a_request_counts_from_when_it_was_whole_and_a_round_trip_from_when_it_was_forwarded() -> None:
    meter = Meter()
    meter.answer((10.0, 13.0, 1), 1, 13.004)
    meter.end_batch(13.0, 13.006)
    meter.reject((20.0, 20.4, 1), 20.4)
    meter.wait("client-quota", 3.0)
    said = meter.take(1.0, 0.5)
    assert counts(said.requests) == {5.0: 1, 0.5: 1}
    assert said.requests.total == pytest.approx(3.406)
    assert {broker: counts(each) for broker, each in said.round_trips.items()} == {1: {0.005: 1}}
    assert {reason: counts(each) for reason, each in said.waits.items()} == {"client-quota": {5.0: 1}}
    assert said.batches is not None
    assert counts(said.batches) == {0.01: 1}
    assert said.cpu_s == 0.5
    assert meter.take(1.0, 0.5).requests == NONE


def second(meter: Meter, requests: int) -> int:
    """A second with so many requests, evenly, on one connection, each answered 10 ms later; how many were measured, and
    they count for all of them.
    """
    measured, masks = 0, set()
    on_their_way: deque[Stamp] = deque()
    for correlation in range(requests):
        now = correlation / requests
        while on_their_way and on_their_way[0][0] <= now - 0.01:
            answer(meter, on_their_way.popleft(), now)
        masks.add(meter.mask)
        if not correlation & meter.mask:
            on_their_way.append((now, now, meter.mask + 1))
            measured += 1
    for stamp in on_their_way:
        answer(meter, stamp, 1.0)
    total = sum(meter.take(1.0, 0.0).requests.counts)
    assert requests - sum(masks) <= total <= requests + sum(masks)
    return measured


def answer(meter: Meter, stamp: Stamp, now: float) -> None:
    meter.answer(stamp, 1, now)
    meter.end_batch(now, now + 0.001)


def test_all_requests_are_measured_while_they_are_few_and_a_part_of_many() -> None:
    meter = Meter()
    assert second(meter, MEASURED) == MEASURED
    assert second(meter, 3 * MEASURED // 2) == 3 * MEASURED // 2  # nobody could know
    assert second(meter, 3 * MEASURED // 2) == 3 * MEASURED // 4
    second(meter, MEASURED // 2)
    assert second(meter, MEASURED) == MEASURED


def test_of_a_burst_a_part_is_measured_before_its_first_second_is_over() -> None:
    changes = []
    meter = Meter(lambda: changes.append(meter.mask))
    assert second(meter, 1000 * MEASURED) <= 20 * MEASURED
    assert 0 < len(changes) <= 3
    assert changes == sorted(changes)
    assert second(meter, 1000 * MEASURED) <= MEASURED
    assert second(meter, 1000 * MEASURED) <= MEASURED


def test_requests_that_were_on_their_way_when_fewer_are_measured_count_as_before() -> None:
    meter, masks = Meter(), set()
    for answered in range(20 * MEASURED):  # in one second, all of which were sent before the first answer
        now = answered / (20 * MEASURED)
        answer(meter, (now - 0.5, now - 0.5, 1), now)
        masks.add(meter.mask)
    assert 0 < max(masks) <= 31, "the share is that of the rate, whatever they counted for"
    said = meter.take(1.0, 0.0)
    assert said.batches is not None
    assert sum(said.requests.counts) == sum(said.batches.counts) == 20 * MEASURED


def test_each_measured_request_counts_for_those_that_are_not() -> None:
    meter = Meter()
    meter.mask = 7
    for correlation in range(800):
        if not correlation & meter.mask:
            meter.answer((0.0, 0.0, 8), 1, 0.001)
    meter.end_batch(0.001, 0.002)
    said = meter.take(1.0, 0.0)
    assert counts(said.requests) == {0.002: 800}
    assert counts(said.round_trips[1]) == {0.001: 800}
    assert said.requests.total == pytest.approx(1.6)
