# The buckets of a total and its topics: what is counted is taken out as if it had come evenly, workers share them, and
# each gateway has its part.

from __future__ import annotations

import math

import pytest

from policies.engine import PolicyEngine
from policies.fleet.keys import total_key
from policies.fleet.page import SharedPage, page_size
from policies.fleet.shares import ShareGrant
from policies.meters.broker_meters import PeerTraffic
from policies.meters.topic_meter import TopicMeter
from policies.thresholds.buckets import MIN_RATE, ThresholdBuckets
from tests.policies.asking import present
from tests.policies.fleet.pages import pages

TOTAL = 1000.0
BURST_S = 10.0
NOW = 100.0


class Worker:
    """One with a topic that has half of the total."""

    def __init__(self, page: SharedPage | None = None, gateways: int = 1) -> None:
        self.engine = PolicyEngine(NOW, page=page)
        self.engine.fleet.update_grants({}, gateways, 2.0, NOW)
        self.engine.set_thresholds(TOTAL, {"t": 500.0})
        self.engine.set_listed_topics(1, ["t", "internal"])
        self.broker = self.engine.broker_meters(1)
        self.meter = self.broker.add_topic(b"t")
        self.buckets = ThresholdBuckets(
            self.broker.limits.thresholds, "test", BURST_S, 2 * BURST_S, NOW, shares_topics=True
        )

    def count(self, size: int, meter: TopicMeter | None = None) -> None:
        (meter or self.meter).uncounted += size
        self.broker.total.uncounted += size

    def look(self, now: float) -> tuple[float, float]:
        """What total and topic have left."""
        owed = self.buckets.settle_total(now)
        return self.buckets.total.token_level(now), self.buckets.topic_level(self.meter, owed, now)


def test_what_was_counted_came_evenly() -> None:
    worker = Worker()
    assert worker.look(NOW + 1.0) == (10_000.0, 0.0), "a topic without traffic has no bucket yet"
    worker.count(3000)
    assert worker.look(NOW + 3.0) == (9000.0, 3500.0), "since the last look, or the tick if there was no bucket"
    worker.buckets.close_tick(NOW + 5.0)
    worker.meter.tick()
    worker.broker.total.tick()
    assert worker.look(NOW + 5.0) == (10_000.0, 4500.0)


def test_a_charged_request_is_not_taken_twice() -> None:
    worker = Worker()
    worker.count(1000)
    before = worker.look(NOW)
    worker.buckets.charge_request(worker.meter, 500, NOW)
    worker.count(500)
    assert [was - left for was, left in zip(before, worker.look(NOW), strict=True)] == [500.0, 500.0]


def test_a_topic_without_a_limit_takes_of_the_total_only() -> None:
    worker = Worker()
    worker.engine.set_thresholds(TOTAL, {})
    other = worker.broker.add_topic(b"__consumer_offsets")
    worker.count(4000, other)
    assert worker.buckets.topic_level(other, 0.0, NOW) == math.inf
    assert worker.look(NOW)[0] == 6000.0


def test_workers_of_a_gateway_share_them() -> None:
    one, other = (Worker(page) for page in pages(2))
    one.count(4000)
    one.look(NOW + 1.0)
    other.count(3000)
    assert other.look(NOW + 1.0) == pytest.approx((4000.0, -500.0)), "other bytes since, and a second more"
    assert one.look(NOW + 1.0) == pytest.approx((4000.0, -500.0))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_is_started_again_goes_on_with_them(workers: int) -> None:
    """Full ones would let a burst pass once more."""
    memory = memoryview(bytearray(page_size(workers)))
    killed = Worker(pages(workers, memory)[0])
    killed.count(6000)
    killed.look(NOW + 1.0)
    again = Worker(pages(workers, memory)[0])
    again.count(1000)
    assert again.look(NOW + 2.0) == pytest.approx((5000.0, -500.0))


def test_of_several_gateways_each_has_its_part_by_its_traffic() -> None:
    worker = Worker(gateways=2)
    assert worker.look(NOW)[0] == 5000.0
    worker.meter.rate, worker.meter.started = 300.0, True
    worker.engine.set_peer_traffic({1: PeerTraffic(200.0, {b"t": 200.0}, near={b"t": 100.0})}, 4)
    worker.engine.fleet.update_grants({total_key(1): ShareGrant(800.0, 500.0)}, 2, 2.0, NOW)
    worker.buckets.apply_share(NOW)
    worker.count(5000)
    worker.look(NOW)
    bucket = present(worker.buckets.settle_topic(worker.meter, 0.0, NOW)).bucket
    assert (worker.buckets.total.rate, bucket.rate) == (800.0, 400.0)


def test_what_a_topic_has_saved_is_kept_where_portions_are_cut() -> None:
    worker = Worker(gateways=2)
    worker.count(500)
    worker.look(NOW)
    topic = present(worker.buckets.settle_topic(worker.meter, 0.0, NOW))
    worker.engine.fleet.update_grants({total_key(1): ShareGrant(10.0, 500.0)}, 2, 2.0, NOW)
    worker.buckets.apply_share(NOW)
    worker.buckets.measure_claims(0.0, NOW + 1.0)
    assert worker.look(NOW + 1.0)[1] == pytest.approx(2250.0)
    worker.count(3000)
    worker.look(NOW + 1.0)
    topic.mark_waiting(1.0, NOW + 1.0)
    worker.buckets.measure_claims(0.0, NOW + 2.5)
    worker.look(NOW + 2.5)
    assert topic.bucket.rate == pytest.approx(10.0)


def test_a_topic_is_cut_to_nothing_where_others_take_all_of_this_gateways_part() -> None:
    """To the byte, as where control is lost, and parts and thresholds are round numbers."""
    worker = Worker(gateways=2)
    worker.engine.fleet.update_grants({total_key(1): ShareGrant(250.0, 250.0)}, 2, 2.0, NOW)
    worker.buckets.apply_share(NOW)
    hungry = worker.broker.add_topic(b"internal")
    worker.engine.set_thresholds(TOTAL, {"t": 500.0, "internal": 400.0})
    worker.count(500)
    worker.count(20_000, hungry)
    owed = worker.buckets.settle_total(NOW)
    worker.buckets.settle_topics(owed, NOW)
    for at in range(1, 9):
        worker.count(600)
        worker.buckets.settle_total(NOW + at)
        worker.buckets.measure_claims(1.0, NOW + at)
    topic = present(worker.buckets.settle_topic(hungry, 1.0, NOW + 9))
    assert topic.bucket.rate == MIN_RATE


@pytest.mark.parametrize("waits", [False, True])
def test_topics_that_use_more_than_this_gateways_part_are_cut_to_it_whichever_worker_has_them(waits: bool) -> None:
    """Each used 450 of 500, and the part is now 200. Also where only one of them has a client that waits."""
    one, other = workers = [Worker(page, gateways=2) for page in pages(2)]
    other.meter = other.broker.add_topic(b"internal")
    for worker in workers:
        worker.meter.rate, worker.meter.started = 450.0, True  # elsewhere nothing of it comes
        worker.engine.fleet.update_grants({total_key(1): ShareGrant(TOTAL, 500.0)}, 2, 2.0, NOW)
    for second in range(1, 20):
        for worker in workers:
            if second == 15:
                worker.engine.fleet.update_grants({total_key(1): ShareGrant(200.0, 500.0)}, 2, 2.0, NOW + second)
            worker.count(450)
            worker.look(NOW + second)
            worker.buckets.apply_share(NOW + second)
            worker.buckets.measure_claims(0.0, NOW + second + 0.01)
        if waits:
            present(one.buckets.settle_topic(one.meter, 0.0, NOW + second)).mark_waiting(5.0, NOW + second)
    rates = [present(each.buckets.settle_topic(each.meter, 0.0, NOW + 20.0)).bucket.rate for each in workers]
    assert sum(rates) == pytest.approx(200.0, rel=0.1 if waits else 0.01)
    assert min(rates) >= 90.0 * (1.0 - 0.1 * waits)


def test_what_brokers_refuse_late_is_no_claim_below_zero() -> None:
    """Other topics would have a rate of next to nothing."""
    one, other = (Worker(page, gateways=2) for page in pages(2))
    for at, size, others in ((1.0, 6000, 0), (2.0, 0, 9000), (3.0, -5000, 9000)):
        for worker, counted in ((one, size), (other, others)):
            worker.count(counted)
            worker.look(NOW + at)
        present(one.buckets.settle_topic(one.meter, 0.0, NOW + at)).mark_waiting(1.0, NOW + at)
        one.buckets.measure_claims(0.0, NOW + at + 0.01)
        assert one.buckets.claimed_rate >= 0.0
        assert present(one.buckets.settle_topic(one.meter, 0.0, NOW + at)).bucket.rate >= 100.0
