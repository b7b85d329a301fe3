# The meters of one broker: topics that come and go, names that clients make up, and refunds.

from __future__ import annotations

from policies.meters import broker_meters
from tests.policies.asking import fill, record, rejecting

MB = 1_000_000


def test_topic_and_total_meters_tick_alike() -> None:
    made = rejecting(None)
    for _ in range(5):
        fill(made, clicks=3 * MB)
        assert made.broker_meters(1).topics[b"clicks"].rate == made.broker_meters(1).total.rate


def test_nothing_is_kept_of_a_meter_that_is_forgotten_before_it_has_a_rate() -> None:
    made = rejecting()
    broker = made.broker_meters(1)
    made.apply_due_ticks(made.next_tick_at)
    made.apply_due_ticks(made.next_tick_at + 1)
    for n in range(100):
        broker.add_topic(b"made-up-%d" % n)
    broker.confirm_topic(b"made-up-7")
    made.apply_due_ticks(15.0)
    assert len(made._ticks._new_meters) == 1


def test_a_name_that_a_broker_vouched_for_has_a_meter_of_its_own_beside_any_names_of_strangers() -> None:
    made = rejecting(total=20 * MB)
    broker = made.broker_meters(1)
    for n in range(2 * broker_meters.MAX_UNLISTED):
        broker.add_topic(b"made-up-%d" % n)
    assert len(broker.topics) == broker_meters.MAX_UNLISTED + 1
    broker.confirm_topic(b"real")
    assert broker.topics[b"real"].is_confirmed


def test_a_refund_in_a_later_tick_than_its_admission_never_makes_a_rate_negative() -> None:
    made = rejecting()
    made.set_listed_topics(1, ["clicks"])
    fill(made, clicks=10 * MB)
    made.record_broker_refusal(1, b"clicks", 5000 * MB)
    assert made.broker_meters(1).total.uncounted == -5000 * MB
    made.apply_due_ticks(made.next_tick_at)
    assert made.broker_meters(1).total.rate == 0
    assert made.broker_meters(1).topics[b"clicks"].rate == 0
    assert made.broker_meters(1).errors.rate > 0


def test_a_refund_for_a_topic_that_has_gone_still_leaves_the_total() -> None:
    made = rejecting()
    record(made.broker_meters(1), b"a", 1000)
    made.record_broker_refusal(1, b"gone", 400)
    assert made.broker_meters(1).total.uncounted == 600
    assert made.broker_meters(1).errors.uncounted == 400


def test_retracted_bytes_are_no_error() -> None:
    made = rejecting()
    record(made.broker_meters(1), b"a", 1000)
    made.broker_meters(1).retract_bytes(b"a", 1000)
    assert (made.broker_meters(1).total.uncounted, made.broker_meters(1).errors.uncounted) == (0, 0)
