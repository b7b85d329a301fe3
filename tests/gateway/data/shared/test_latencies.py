# Histograms of one worker: which bucket, how many are measured, and what each request counts for.

from __future__ import annotations

from collections import deque

import pytest

from gateway.channel import LATENCY_BOUNDS, DurationBuckets
from gateway.data.shared.latencies import MEASURED_PER_S, LatencyHistogram, LatencyMeter, LatencyStamp

NONE = LatencyHistogram().collect_buckets()


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(-0.1, 0), (0.0, 0), (LATENCY_BOUNDS[0], 0), (0.0003, 1), (1.0, LATENCY_BOUNDS.index(1.0)), (1e9, -1)],
)
def test_a_duration_is_in_the_bucket_that_ends_at_it_or_above(seconds: float, bucket: int) -> None:
    histogram = LatencyHistogram()
    histogram.add_duration(seconds)
    taken = histogram.collect_buckets()
    assert taken.counts[bucket] == sum(taken.counts) == 1
    assert taken.total == max(0.0, seconds)
    assert histogram.collect_buckets() == NONE


def counts(buckets: DurationBuckets) -> dict[float, int]:
    return {bound: n for bound, n in zip((*LATENCY_BOUNDS, float("inf")), buckets.counts, strict=True) if n}


def test_a_request_counts_from_when_it_was_whole_and_a_round_trip_from_when_it_was_forwarded() -> None:
    meter = LatencyMeter()
    meter.record_response((10.0, 13.0, 1), 1, 13.004)
    meter.end_batch(13.0, 13.006)
    meter.record_rejection((20.0, 20.4, 1), 20.4)
    meter.record_wait("client-quota", 3.0)
    said = meter.collect_latencies(1.0, 0.5)
    assert counts(said.requests) == {5.0: 1, 0.5: 1}
    assert said.requests.total == pytest.approx(3.406)
    assert {broker: counts(each) for broker, each in said.round_trips.items()} == {1: {0.005: 1}}
    assert {reason: counts(each) for reason, each in said.waits.items()} == {"client-quota": {5.0: 1}}
    assert said.batches is not None
    assert counts(said.batches) == {0.01: 1}
    assert said.cpu_s == 0.5
    assert meter.collect_latencies(1.0, 0.5).requests == NONE


def second(meter: LatencyMeter, requests: int) -> int:
    """A second with so many requests, evenly, on one connection, each answered 10 ms later; how many were measured, and
    they count for all of them.
    """
    measured, masks = 0, set()
    on_their_way: deque[LatencyStamp] = deque()
    for correlation in range(requests):
        now = correlation / requests
        while on_their_way and on_their_way[0][0] <= now - 0.01:
            answer(meter, on_their_way.popleft(), now)
        masks.add(meter.sample_mask)
        if not correlation & meter.sample_mask:
            on_their_way.append((now, now, meter.sample_mask + 1))
            measured += 1
    for stamp in on_their_way:
        answer(meter, stamp, 1.0)
    total = sum(meter.collect_latencies(1.0, 0.0).requests.counts)
    assert requests - sum(masks) <= total <= requests + sum(masks)
    return measured


def answer(meter: LatencyMeter, stamp: LatencyStamp, now: float) -> None:
    meter.record_response(stamp, 1, now)
    meter.end_batch(now, now + 0.001)


def test_all_requests_are_measured_while_they_are_few_and_a_part_of_many() -> None:
    meter = LatencyMeter()
    assert second(meter, MEASURED_PER_S) == MEASURED_PER_S
    assert second(meter, 3 * MEASURED_PER_S // 2) == 3 * MEASURED_PER_S // 2  # nobody could know
    assert second(meter, 3 * MEASURED_PER_S // 2) == 3 * MEASURED_PER_S // 4
    second(meter, MEASURED_PER_S // 2)
    assert second(meter, MEASURED_PER_S) == MEASURED_PER_S


def test_of_a_burst_a_part_is_measured_before_its_first_second_is_over() -> None:
    changes = []
    meter = LatencyMeter(lambda: changes.append(meter.sample_mask))
    assert second(meter, 1000 * MEASURED_PER_S) <= 20 * MEASURED_PER_S
    assert 0 < len(changes) <= 3
    assert changes == sorted(changes)
    assert second(meter, 1000 * MEASURED_PER_S) <= MEASURED_PER_S
    assert second(meter, 1000 * MEASURED_PER_S) <= MEASURED_PER_S


def test_requests_that_were_on_their_way_when_fewer_are_measured_count_as_before() -> None:
    meter, masks = LatencyMeter(), set()
    for answered in range(20 * MEASURED_PER_S):  # in one second, all of which were sent before the first answer
        now = answered / (20 * MEASURED_PER_S)
        answer(meter, (now - 0.5, now - 0.5, 1), now)
        masks.add(meter.sample_mask)
    assert 0 < max(masks) <= 31, "the share is that of the rate, whatever they counted for"
    said = meter.collect_latencies(1.0, 0.0)
    assert said.batches is not None
    assert sum(said.requests.counts) == sum(said.batches.counts) == 20 * MEASURED_PER_S


def test_each_measured_request_counts_for_those_that_are_not() -> None:
    meter = LatencyMeter()
    meter.sample_mask = 7
    for correlation in range(800):
        if not correlation & meter.sample_mask:
            meter.record_response((0.0, 0.0, 8), 1, 0.001)
    meter.end_batch(0.001, 0.002)
    said = meter.collect_latencies(1.0, 0.0)
    assert counts(said.requests) == {0.002: 800}
    assert counts(said.round_trips[1]) == {0.001: 800}
    assert said.requests.total == pytest.approx(1.6)
