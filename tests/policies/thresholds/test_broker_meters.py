# The meters of one broker: topics that come and go, names that clients make up, and refunds.

from __future__ import annotations

import pytest

from policies.thresholds import broker_meters
from policies.thresholds.broker_meters import OTHER_TOPICS
from tests.policies.asking import fill, record, rejecting, rejection

MB = 1_000_000


def test_topic_and_total_meters_tick_alike() -> None:
    made = rejecting(None)
    for _ in range(5):
        fill(made, clicks=3 * MB)
        assert made.broker_meters(1).topics[b"clicks"].rate == made.broker_meters(1).total.rate


def test_a_topic_that_metadata_took_from_the_list_counts_no_longer() -> None:
    made = rejecting(total=20 * MB)
    made.set_listed_topics(1, ["a", "b"])
    fill(made, a=5 * MB, b=5 * MB)
    made.set_listed_topics(1, ["a"])
    assert made.broker_meters(1).limits.thresholds.implicit_share == 20 * MB
    assert b"b" not in made.broker_meters(1).topics


def test_a_topic_seen_by_produce_stays_until_it_is_quiet() -> None:
    made = rejecting(total=20 * MB)
    made.set_listed_topics(1, ["a"])
    fill(made, new=MB)
    made.set_listed_topics(1, ["a"])
    assert made.broker_meters(1).limits.thresholds.implicit_share == 10 * MB
    while made.broker_meters(1).topics.get(b"new"):
        assert made.broker_meters(1).limits.thresholds.implicit_share == 10 * MB
        made.apply_due_ticks(made.next_tick_at)
    assert made.broker_meters(1).limits.thresholds.implicit_share == 20 * MB


def test_metadata_vouches_for_a_topic_that_was_produced_to_before_it_was_listed() -> None:
    made = rejecting(total=20 * MB)
    made.set_listed_topics(1, ["a"])
    broker = made.broker_meters(1)
    broker.add_topic(b"new")
    assert not broker.topics[b"new"].is_confirmed
    made.set_listed_topics(1, ["a", "new"])
    assert broker.topics[b"new"].is_confirmed
    made.apply_due_ticks(made.next_tick_at)
    assert b"new" in broker.topics, "a stranger would have been forgotten"
    assert broker.limits.thresholds.implicit_share == 10 * MB


def test_a_topic_that_metadata_confirms_counts_once_and_keeps_its_rate() -> None:
    made = rejecting(total=20 * MB)
    fill(made, new=MB)
    made.set_listed_topics(1, ["a", "new"])
    assert made.broker_meters(1).limits.thresholds.implicit_share == 10 * MB
    assert made.broker_meters(1).topics[b"new"].rate == MB
    made.apply_due_ticks(3600.0)
    assert b"new" in made.broker_meters(1).topics  # quiet, but there


def test_a_name_that_the_broker_refused_is_forgotten_at_the_next_tick() -> None:
    made = rejecting(total=20 * MB)
    made.set_listed_topics(1, ["a"])
    record(made.broker_meters(1), b"typo", 1000)
    made.record_broker_refusal(1, b"typo", 1000)
    made.apply_due_ticks(made.next_tick_at)
    assert made.broker_meters(1).limits.thresholds.implicit_share == 20 * MB
    assert list(made.broker_meters(1).topics) == []


def test_a_name_that_no_broker_vouched_for_takes_no_share_and_lasts_for_a_tick() -> None:
    made = rejecting(total=20 * MB)
    made.set_listed_topics(1, ["a"])
    broker = made.broker_meters(1)
    for n in range(9990):
        broker.add_topic(b"made-up-%d" % n).uncounted += 82
    assert broker.limits.thresholds.implicit_share == 20 * MB
    assert [topic.topic for topic in made.collect_rates()[0].topics] == []
    broker.confirm_topic(b"made-up-7")
    assert broker.limits.thresholds.implicit_share == 10 * MB
    made.apply_due_ticks(made.next_tick_at)
    assert list(broker.topics) == [b"made-up-7"]


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


def test_made_up_names_beyond_the_bound_share_one_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_meters, "MAX_UNLISTED", 3)
    made = rejecting(total=10 * MB)
    made.set_listed_topics(1, ["known"])
    fill(made, **{f"t{i}": 2 * MB for i in range(10)})
    broker = made.broker_meters(1)
    assert set(broker.topics) == {b"t0", b"t1", b"t2", OTHER_TOPICS}
    assert broker.topics[OTHER_TOPICS].rate == 14 * MB
    assert broker.limits.thresholds.implicit_share == 2 * MB
    assert record(broker, b"t7", 1) is False
    assert "topic t7 is over" in rejection(made, 1, b"t7", 6.0).text
    record(broker, b"known", 1)  # one that metadata lists has its own, always
    assert b"known" in broker.topics
    made.record_broker_refusal(1, b"t8", 100)
    assert broker.topics[OTHER_TOPICS].uncounted == -100


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
