# The engine while storage holds some topics and not all.

from __future__ import annotations

import pytest

from policies.decision import Patience
from policies.engine import Engine
from policies.storage import Affected
from policies.thresholds.broker_meters import MAX_UNLISTED, OTHER
from policies.thresholds.storage_limits import StorageLimit, StoragePause
from policies.verdict import HOLD, STORAGE_PAUSE, STORAGE_THROTTLE

WHY = "broker 2 volume /d: 5.0 GB of 100.0 GB free, hard limit at 10.0 GB"
FULL = Affected("broker 2 /d", 0.0, WHY, ("full",), (2,))
HALF = Affected("broker 3 /d", 0.5, "broker 3 volume /d", ("half",), ())


def engine(*parts: Affected, total: float | None = 1000.0) -> Engine:
    made = Engine(0.0)
    made.set_policy(total, {}, on_exceed="delay")
    for node_id in (1, 2):
        made.set_topics(node_id, ["full", "half", "free"])
    made.set_affected(parts, 0.0)
    return made


def over(of: Engine, topic: bytes, node_id: int = 1) -> bool:
    """Whether its batches leave the fast path because of storage."""
    broker = of.broker(node_id)
    return (broker.topics.get(topic) or broker.add_topic(topic)).is_held


def test_only_held_topics_leave_the_fast_path() -> None:
    of = engine(FULL, HALF, total=None)
    assert [topic for topic in (b"full", b"half", b"free") if over(of, topic)] == [b"full", b"half"]
    assert of.pause is None
    meter = of.broker(1).topics[b"full"]
    assert meter.over
    of.set_affected((), 1.0)
    assert not meter.over
    of.set_affected([FULL], 2.0)
    assert meter.over
    assert not of.broker(1).topics[b"half"].over


def test_what_a_paused_topic_is_told() -> None:
    limit = engine(FULL).broker(1).storage_of(b"full")
    assert isinstance(limit, StoragePause)
    verdict = limit.judge(1, 1, Patience(), 0.0)
    assert (verdict.action, verdict.reason, verdict.throttle_ms) == (HOLD, STORAGE_PAUSE, 0)
    assert verdict.text == f"writes are paused: {WHY}; retry"


def test_topics_that_metadata_does_not_list_are_held_on_the_full_broker_until_it_does() -> None:
    of = engine(FULL)
    assert over(of, b"new", 2)
    assert not over(of, b"new", 1)
    assert isinstance(of.broker(2).storage_of(b"new"), StoragePause)
    of.set_topics(2, ["full", "half", "free", "new"])
    assert not over(of, b"new", 2)
    assert of.broker(2).storage_of(b"new") is None


def test_names_that_found_no_room_are_always_asked_about() -> None:
    of = engine(FULL)
    broker = of.broker(1)
    for number in range(MAX_UNLISTED + 1):
        broker.add_topic(b"made-up-%d" % number)
    assert broker.topics[OTHER].is_held
    assert not broker.topics[b"made-up-1"].is_held
    of.set_affected((), 1.0)
    assert not broker.topics[OTHER].is_held


def test_topics_of_a_volume_share_a_part_of_the_total_and_others_do_not() -> None:
    of = engine(HALF)
    broker = of.broker(1)
    limit = broker.storage_of(b"half")
    assert isinstance(limit, StorageLimit)
    assert broker.storage_of(b"free") is None
    assert limit.line.in_force == 500.0
    limit.take(10_000, 1, 0.0)
    verdict = limit.judge(1000, 1, Patience(), 0.0)
    assert verdict is not None
    assert verdict.reason == STORAGE_THROTTLE
    assert "producers to topics of broker 3 /d of broker 1 share 500.0 B/s" in verdict.text
    assert broker.limits.delays


def test_debts_outlive_a_change_and_a_pause() -> None:
    of = engine(HALF)
    before = of.broker(1).storage_of(b"half")
    of.set_affected([HALF._replace(value=0.25)], 1.0)
    after = of.broker(1).storage_of(b"half")
    assert isinstance(after, StorageLimit)
    assert after is before
    assert after.line.in_force == 250.0
    of.set_affected([HALF._replace(value=0.0)], 2.0)
    assert isinstance(of.broker(1).storage_of(b"half"), StoragePause)
    of.set_affected([HALF], 3.0)
    assert of.broker(1).storage_of(b"half") is before


def test_without_a_total_nothing_is_shared_and_a_pause_still_holds() -> None:
    of = engine(FULL, HALF, total=None)
    assert of.broker(1).storage_of(b"half") is None
    assert isinstance(of.broker(1).storage_of(b"full"), StoragePause)


def test_another_total_is_taken_over() -> None:
    of = engine(HALF)
    of.set_policy(2000.0, {}, on_exceed="delay")
    limit = of.broker(1).storage_of(b"half")
    assert isinstance(limit, StorageLimit)
    assert limit.line.in_force == 1000.0


def test_several_gateways_share_what_a_volume_leaves() -> None:
    of = engine(HALF)
    of.fleet.tell({}, 2, 1.0, 0.0)
    of.retune(0.0)
    limit = of.broker(1).storage_of(b"half")
    assert isinstance(limit, StorageLimit)
    assert limit.line.in_force == 250.0
    assert "2/d" not in of.fleet.lines  # the total's own line is reported, not this one
    assert list(of.fleet.lines) == []


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_broker_that_comes_later_is_under_the_same(mode: str) -> None:
    of = engine(total=None)
    of.set_affected([FULL], 0.0, mode=mode)  # type: ignore[arg-type]
    limit = of.broker(7).storage_of(b"full")
    assert isinstance(limit, StoragePause)
    assert limit.observes == (mode == "observe")
