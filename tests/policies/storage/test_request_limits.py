# The engine while storage holds some topics and not all.

from __future__ import annotations

import pytest

from policies.decision import ClientPatience
from policies.engine import PolicyEngine
from policies.meters.broker_meters import MAX_UNLISTED, OTHER_TOPICS
from policies.storage import AffectedTopics
from policies.storage.request_limits import StoragePause, StorageThrottle
from policies.verdict import HOLD, STORAGE_PAUSE, STORAGE_THROTTLE

WHY = "broker 2 volume /d: 5.0 GB of 100.0 GB free, hard limit at 10.0 GB"
FULL = AffectedTopics("broker 2 /d", 0.0, WHY, ("full",), (2,))
HALF = AffectedTopics("broker 3 /d", 0.5, "broker 3 volume /d", ("half",), ())


def engine(*parts: AffectedTopics, total: float | None = 1000.0) -> PolicyEngine:
    made = PolicyEngine(0.0)
    made.set_thresholds(total, {}, on_exceed="delay")
    for node_id in (1, 2):
        made.set_listed_topics(node_id, ["full", "half", "free"])
    made.set_affected_topics(parts, 0.0)
    return made


def over(of: PolicyEngine, topic: bytes, node_id: int = 1) -> bool:
    """Whether its batches leave the fast path because of storage."""
    broker = of.broker_meters(node_id)
    return (broker.topics.get(topic) or broker.add_topic(topic)).is_affected


def test_only_affected_topics_leave_the_fast_path() -> None:
    of = engine(FULL, HALF, total=None)
    assert [topic for topic in (b"full", b"half", b"free") if over(of, topic)] == [b"full", b"half"]
    assert of.pause is None
    meter = of.broker_meters(1).topics[b"full"]
    assert meter.needs_decision
    of.set_affected_topics((), 1.0)
    assert not meter.needs_decision
    of.set_affected_topics([FULL], 2.0)
    assert meter.needs_decision
    assert not of.broker_meters(1).topics[b"half"].needs_decision


def test_what_a_paused_topic_is_told() -> None:
    limit = engine(FULL).broker_meters(1).storage_limit_of(b"full")
    assert isinstance(limit, StoragePause)
    verdict = limit.judge_request(1, 1, ClientPatience(), 0.0)
    assert (verdict.action, verdict.reason, verdict.throttle_ms) == (HOLD, STORAGE_PAUSE, 0)
    assert verdict.text == f"writes are paused: {WHY}; retry"


def test_topics_that_metadata_does_not_list_are_held_on_the_full_broker_until_it_does() -> None:
    of = engine(FULL)
    assert over(of, b"new", 2)
    assert not over(of, b"new", 1)
    assert isinstance(of.broker_meters(2).storage_limit_of(b"new"), StoragePause)
    of.set_listed_topics(2, ["full", "half", "free", "new"])
    assert not over(of, b"new", 2)
    assert of.broker_meters(2).storage_limit_of(b"new") is None


def test_names_that_found_no_room_are_always_asked_about() -> None:
    of = engine(FULL)
    broker = of.broker_meters(1)
    for number in range(MAX_UNLISTED + 1):
        broker.add_topic(b"made-up-%d" % number)
    assert broker.topics[OTHER_TOPICS].is_affected
    assert not broker.topics[b"made-up-1"].is_affected
    of.set_affected_topics((), 1.0)
    assert not broker.topics[OTHER_TOPICS].is_affected


def test_topics_of_a_volume_share_a_part_of_the_total_and_others_do_not() -> None:
    of = engine(HALF)
    broker = of.broker_meters(1)
    limit = broker.storage_limit_of(b"half")
    assert isinstance(limit, StorageThrottle)
    assert broker.storage_limit_of(b"free") is None
    assert limit.limiter.gateway_rate == 500.0
    limit.charge_request(10_000, 1, 0.0)
    verdict = limit.judge_request(1000, 1, ClientPatience(), 0.0)
    assert verdict is not None
    assert verdict.reason == STORAGE_THROTTLE
    assert "producers to topics of broker 3 /d of broker 1 share 500.0 B/s" in verdict.text
    assert broker.limits.shares_total


def test_debts_outlive_a_change_and_a_pause() -> None:
    of = engine(HALF)
    before = of.broker_meters(1).storage_limit_of(b"half")
    of.set_affected_topics([HALF._replace(value=0.25)], 1.0)
    after = of.broker_meters(1).storage_limit_of(b"half")
    assert isinstance(after, StorageThrottle)
    assert after is before
    assert after.limiter.gateway_rate == 250.0
    of.set_affected_topics([HALF._replace(value=0.0)], 2.0)
    assert isinstance(of.broker_meters(1).storage_limit_of(b"half"), StoragePause)
    of.set_affected_topics([HALF], 3.0)
    assert of.broker_meters(1).storage_limit_of(b"half") is before


def test_without_a_total_nothing_is_shared_and_a_pause_still_holds() -> None:
    of = engine(FULL, HALF, total=None)
    assert of.broker_meters(1).storage_limit_of(b"half") is None
    assert isinstance(of.broker_meters(1).storage_limit_of(b"full"), StoragePause)


def test_another_total_is_taken_over() -> None:
    of = engine(HALF)
    of.set_thresholds(2000.0, {}, on_exceed="delay")
    limit = of.broker_meters(1).storage_limit_of(b"half")
    assert isinstance(limit, StorageThrottle)
    assert limit.limiter.gateway_rate == 1000.0


def test_several_gateways_share_what_a_volume_leaves() -> None:
    of = engine(HALF)
    of.fleet.update_grants({}, 2, 1.0, 0.0)
    of.apply_shares(0.0)
    limit = of.broker_meters(1).storage_limit_of(b"half")
    assert isinstance(limit, StorageThrottle)
    assert limit.limiter.gateway_rate == 250.0
    assert "2/d" not in of.fleet.limiters  # the total's own line is reported, not this one
    assert list(of.fleet.limiters) == []


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_broker_that_comes_later_is_under_the_same(mode: str) -> None:
    of = engine(total=None)
    of.set_affected_topics([FULL], 0.0, mode=mode)  # type: ignore[arg-type]
    limit = of.broker_meters(7).storage_limit_of(b"full")
    assert isinstance(limit, StoragePause)
    assert limit.observes == (mode == "observe")
