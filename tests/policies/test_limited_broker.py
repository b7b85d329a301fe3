# A broker's meters with its limits: topics that come and go change what the others share.

from __future__ import annotations

import pytest

from policies.meters import broker_meters
from policies.meters.broker_meters import OTHER_TOPICS
from tests.policies.asking import fill, record, rejecting, rejection

MB = 1_000_000


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
