# Brokers that come and go: a table of what holds for whom, by where replicas are, how full the volume was, and what
# became of its broker; and both memories at their edges.

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.storage import (
    KeptVolumes,
    MinAvailable,
    NewBrokers,
    ReplicaPlacement,
    SnapshotView,
    SoftHard,
    Volume,
    VolumeKeeper,
    VolumeLimit,
    assess_volumes,
    crowded_brokers,
    departed_volumes,
    find_affected,
)
from tests.policies.storage.storage_play import GB, SOFT_HARD, snapshot, snapshot_view, volume, volumes

FORGET_S = 3600.0
HARD = SoftHard(hard=VolumeLimit("MinFreeBytes", 10 * GB))
REPLICAS = {1: frozenset({"one", "both"}), 2: frozenset({"two", "both"}), 3: frozenset({"three"})}
MOVED = {1: frozenset({"one", "both"}), 3: frozenset({"three"}), 4: frozenset({"two", "both"})}  # 2 was replaced by 4
NOBODY: dict[str, float] = {}


class Look(NamedTuple):
    """What a look shows: free GB by active broker. `registered`: None: the cluster doesn't say."""

    at: float
    free: dict[int, float]
    registered: frozenset[int] | None = None


def last_factors(
    looks: Sequence[Look], policy: SoftHard | MinAvailable, remembers: bool, replicas: dict[int, frozenset[str]]
) -> tuple[float, dict[str, float]]:
    """After these looks: the factor of the cluster, and that of each topic that some volume holds."""
    keeper, paused = VolumeKeeper(FORGET_S), False
    for look in looks:
        departed = keeper.find_departed(look.free, look.at, look.registered) if remembers else {}
        here = [volume(free * GB, broker_id) for broker_id, free in look.free.items()]
        assessment = assess_volumes([*here, *departed_volumes(departed)], policy, paused)
        paused = assessment.paused
        keeper.record_assessment(assessment, departed)
    affected = find_affected(assessment, ReplicaPlacement(replicas), {})
    assert affected is not None
    return assessment.factor, {topic: each.value for each in affected for topic in each.topics}


ALL_WELL = {1: 50.0, 2: 50.0, 3: 50.0}
FULL, SLOW = {**ALL_WELL, 2: 5.0}, {**ALL_WELL, 2: 15.0}
WITHOUT = {1: 50.0, 3: 50.0}
ALIVE = frozenset({1, 2, 3})
LEFT = (Look(0, FULL), Look(60, WITHOUT))
HELD: dict[str, float] = {"two": 0, "both": 0}
FIRST: dict[str, float] = {"one": 0, "both": 0}


@pytest.mark.parametrize(
    ("looks", "policy", "replicas", "remembered", "ignored"),
    [
        # what became of its broker: full, and …
        ([Look(0, FULL)], HARD, REPLICAS, HELD, HELD),
        ([Look(0, FULL), Look(60, WITHOUT, ALIVE)], HARD, REPLICAS, HELD, NOBODY),  # fenced
        ([*LEFT], HARD, REPLICAS, HELD, NOBODY),  # an older cluster
        ([*LEFT, Look(120, ALL_WELL)], HARD, REPLICAS, NOBODY, NOBODY),  # back, with room
        ([*LEFT, Look(120, FULL)], HARD, REPLICAS, HELD, HELD),
        ([Look(0, FULL), Look(60, WITHOUT, frozenset({1, 3}))], HARD, REPLICAS, NOBODY, NOBODY),  # unregistered
        ([*LEFT, Look(60 + FORGET_S - 1, WITHOUT)], HARD, REPLICAS, HELD, NOBODY),
        ([*LEFT, Look(60 + FORGET_S, WITHOUT)], HARD, REPLICAS, NOBODY, NOBODY),  # too old
        ([Look(0, FULL), Look(60, {**WITHOUT, 4: 90.0})], HARD, MOVED, NOBODY, NOBODY),  # replaced: no replica is left
        ([Look(0, FULL), Look(60, {**WITHOUT, 4: 90.0})], HARD, {**MOVED, **REPLICAS}, HELD, NOBODY),
        # … how full
        ([Look(0, ALL_WELL), Look(60, WITHOUT)], HARD, REPLICAS, NOBODY, NOBODY),
        ([Look(0, SLOW), Look(60, WITHOUT)], SOFT_HARD, REPLICAS, {"two": 0.5, "both": 0.5}, NOBODY),
        ([*LEFT], SOFT_HARD, REPLICAS, HELD, NOBODY),
        ([Look(0, FULL), Look(60, {**ALL_WELL, 2: 10.5}), Look(120, WITHOUT)], SOFT_HARD, REPLICAS, HELD, NOBODY),
        ([Look(0, SLOW), Look(60, WITHOUT)], MinAvailable(ratio=0.2), REPLICAS, HELD, NOBODY),
        # … and another one is at its limit
        ([Look(0, FULL), Look(60, {1: 5.0, 3: 50.0})], HARD, REPLICAS, {"one": 0, "two": 0, "both": 0}, FIRST),
        ([Look(0, SLOW), Look(60, {1: 5.0, 3: 50.0})], SOFT_HARD, REPLICAS, {"one": 0, "both": 0, "two": 0.5}, FIRST),
        ([Look(0, {**FULL, 3: 1.0}), Look(60, {1: 50.0})], HARD, REPLICAS, {"two": 0, "both": 0, "three": 0}, NOBODY),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fenced", ["remembered", "ignored"])
def test_table(
    looks: Sequence[Look],
    policy: SoftHard | MinAvailable,
    replicas: dict[int, frozenset[str]],
    remembered: dict[str, float],
    ignored: dict[str, float],
    fenced: Literal["remembered", "ignored"],
) -> None:
    expected = remembered if fenced == "remembered" else ignored
    factor, topics = last_factors(looks, policy, fenced == "remembered", replicas)
    assert topics == expected
    if replicas is REPLICAS:  # with scope cluster, the worst of them is everybody's
        assert factor == min(expected.values(), default=1.0)


def test_it_is_told_that_the_broker_left() -> None:
    keeper = VolumeKeeper(FORGET_S)
    keeper.record_assessment(assess_volumes([volume(5 * GB, 2)], HARD, False), {})
    said = assess_volumes(departed_volumes(keeper.find_departed({1}, 60.0)), HARD, False)
    assert said.reason_text == (
        "broker 2 volume /data/0: 5.0 GB of 100.0 GB free when its broker left, hard limit at 10.0 GB"
    )


def test_what_lies_where_is_not_asked_of_a_broker_that_left() -> None:
    two = [volume(5 * GB, 2, name=name)._replace(left=left) for name in ("/a", "/b") for left in (True,)]
    assert crowded_brokers(assess_volumes(two, HARD, False)) == frozenset()
    assert crowded_brokers(assess_volumes([each._replace(left=False) for each in two], HARD, False)) == {2}


def test_a_process_that_takes_over_knows_who_left_and_who_may() -> None:
    first, second = VolumeKeeper(FORGET_S), VolumeKeeper(FORGET_S)
    full = [volume(5 * GB, 2), volume(4 * GB, 3)]
    first.record_assessment(assess_volumes(full, HARD, False), {})
    departed = first.find_departed({3}, 100.0)
    first.record_assessment(assess_volumes([full[1], *departed_volumes(departed)], HARD, False), departed)
    assert {broker_id: last.left_at for broker_id, last in first.kept_volumes.items()} == {2: 100.0, 3: None}
    second.adopt_volumes(first.kept_volumes)
    assert (
        second.find_departed({3}, 200.0)
        == first.find_departed({3}, 200.0)
        == {2: KeptVolumes((full[0]._replace(left=True),), 100.0)}
    )
    assert second.find_departed({1}, 200.0).keys() == {2, 3}
    second.adopt_volumes({2: KeptVolumes((), 50.0)})
    assert second.kept_volumes[2].left_at == 100.0, "another one knows it from an earlier time"
    second.adopt_volumes({2: KeptVolumes((full[0],))})
    assert second.kept_volumes[2].left_at is None


def test_one_that_is_at_no_limit_by_the_limits_of_today_is_forgotten() -> None:
    """As after a restart with other limits."""
    keeper = VolumeKeeper(FORGET_S)
    keeper.adopt_volumes({2: KeptVolumes((volume(15 * GB, 2),), 0.0)})
    departed = keeper.find_departed({1}, 60.0)
    keeper.record_assessment(assess_volumes(departed_volumes(departed), HARD, False), departed)
    assert keeper.kept_volumes == {}


@given(st.lists(st.tuples(st.integers(0, 400), st.lists(volumes(own=False), max_size=4)), max_size=6))
def test_a_memory_only_ever_holds_more(looks: list[tuple[int, list[Volume]]]) -> None:
    """And only brokers that were at a limit when they were seen last, no longer than it says."""
    keeper, paused, free_paused, now = VolumeKeeper(300.0), False, False, 0
    at_limit: dict[int, float] = {}  # broker id -> when it was seen last
    for after, seen in looks:
        now += after
        active = {each.broker_id for each in seen}
        departed = keeper.find_departed(active, now)
        assert departed.keys() <= at_limit.keys() - active
        said, free = (
            assess_volumes([*seen, *departed_volumes(departed)], SOFT_HARD, paused),
            assess_volumes(seen, SOFT_HARD, free_paused),
        )
        assert said.factor <= free.factor
        keeper.record_assessment(said, departed)
        for broker_id in active:
            at_limit.pop(broker_id, None)
        at_limit |= {
            each.volume.broker_id: now for each in said.findings if said.factor_of(each) < 1 and not each.volume.left
        }
        paused, free_paused = said.paused, free.paused


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="forget_after"):
        VolumeKeeper(seconds)


# --- brokers that join ------------------------------------------------------------------------------------------------


def excused(newcomers: NewBrokers, active: Collection[int], missing: Collection[int], now: float) -> frozenset[int]:
    """A look; empty where it fails."""
    found = newcomers.excused_brokers(missing, now)
    if found == frozenset(missing):
        newcomers.record_active(active, found, now)
    return found


@pytest.mark.seed("DISK.26")
def test_a_broker_that_joins_may_be_undescribed_for_the_grace_and_no_longer() -> None:
    newcomers = NewBrokers(60.0)
    assert excused(newcomers, {1, 2}, {2}, 0.0) == frozenset(), "at the start nobody is new"
    assert excused(newcomers, {1}, (), 1.0) == frozenset()
    assert excused(newcomers, {1, 2}, {2}, 10.0) == {2}
    assert excused(newcomers, {1, 2}, {2}, 69.0) == {2}
    assert excused(newcomers, {1, 2}, {2}, 70.0) == frozenset()
    assert excused(newcomers, {1, 2}, {2}, 80.0) == frozenset(), "it isn't new again since a look has failed"


def test_a_broker_that_was_described_has_no_grace() -> None:
    newcomers = NewBrokers(60.0)
    excused(newcomers, {1, 2}, (), 0.0)
    assert excused(newcomers, {1, 2}, {2}, 10.0) == frozenset()
    assert excused(newcomers, {1, 2, 3}, {2, 3}, 10.0) == {3}


def test_a_broker_that_returns_is_not_new() -> None:
    newcomers = NewBrokers(60.0)
    excused(newcomers, {1, 2}, (), 0.0)
    for now in (10.0, 200.0):
        assert excused(newcomers, {1}, (), now) == frozenset()
        assert excused(newcomers, {1, 2}, {2}, now + 10) == frozenset()


def test_a_broker_that_leaves_within_its_grace_does_not_get_another() -> None:
    newcomers = NewBrokers(60.0)
    excused(newcomers, {1}, (), 0.0)
    assert excused(newcomers, {1, 2}, {2}, 10.0) == {2}
    excused(newcomers, {1}, (), 20.0)
    assert excused(newcomers, {1, 2}, {2}, 69.0) == {2}
    assert excused(newcomers, {1, 2}, {2}, 70.0) == frozenset()


def test_a_fenced_broker_that_was_registered_already_is_not_new_and_one_that_was_unregistered_is() -> None:
    newcomers = NewBrokers(60.0)
    newcomers.record_active({1}, (), 0.0, {1, 2})
    assert newcomers.excused_brokers({2}, 10.0) == frozenset()
    newcomers.record_active({1}, (), 20.0, {1})
    assert newcomers.excused_brokers({2}, 30.0) == {2}


def test_without_a_grace_nobody_is_excused() -> None:
    newcomers = NewBrokers(0.0)
    excused(newcomers, {1}, (), 0.0)
    assert excused(newcomers, {1, 2}, {2}, 10.0) == frozenset()


# --- snapshots --------------------------------------------------------------------------------------------------------


def snapshots(free: dict[int, float], grace_s: float = 0.0, forget_after_s: float | None = FORGET_S) -> SnapshotView:
    known = [snapshot(broker_id, each) for broker_id, each in free.items()]
    return snapshot_view(*known, list_age_s=1e9, grace_s=grace_s, forget_after_s=forget_after_s)


def test_the_snapshot_of_a_broker_that_left_counts_on_by_its_own_time() -> None:
    made = snapshots(FULL)
    made.set_active_brokers(WITHOUT, 1010.0)
    for broker_id in WITHOUT:
        made.put_snapshot(broker_id, snapshot(broker_id, 50, 4600.0))
    view = made.assess_current(4599.0, 4599.0)
    assert (view.factor.value, view.factor.origin, view.departed) == (0.0, "valid", {2: 4600.0})
    assert "when its broker left" in view.factor.why
    assert made.changes_at(4599.0, 4599.0) == 4600.0
    assert made.assess_current(4600.0, 4600.0).factor == made.next_factor(4599.0, 4599.0)
    assert made.assess_current(4600.0, 4600.0).departed == {}


@pytest.mark.parametrize(
    ("free", "factor", "left"), [(5.0, 0.0, {2}), (15.0, 0.5, {2}), (50.0, 1.0, set()), (20.0, 1.0, set())]
)
def test_of_a_broker_that_left_only_a_limit_counts(free: float, factor: float, left: set[int]) -> None:
    made = snapshots({1: 50.0, 2: free})
    made.set_active_brokers([1], 1010.0)
    view = made.assess_current(1010.0, 1010.0)
    assert (view.factor.value, set(view.departed)) == (factor, left)
    assert all(each.volume.left == (each.volume.broker_id == 2) for each in view.assessment.findings)


def test_a_snapshot_that_is_taken_back_and_a_memory_that_is_not_wanted() -> None:
    made = snapshots({1: 50.0, 2: 5.0})
    made.set_active_brokers([1], 1010.0)
    made.put_snapshot(2, None)
    assert made.assess_current(1010.0, 1010.0).factor.value == 1.0
    ignoring = snapshots({1: 50.0, 2: 5.0}, forget_after_s=None)
    ignoring.set_active_brokers([1], 1010.0)
    assert ignoring.assess_current(1010.0, 1010.0).factor.value == 1.0


def test_a_reader_that_starts_after_the_broker_left_knows_it_from_the_topic() -> None:
    made = SnapshotView(180.0, "PAUSE", SOFT_HARD, 1e9, forget_after_s=FORGET_S)
    for broker_id, free in FULL.items():
        made.put_snapshot(broker_id, snapshot(broker_id, free))
    assert made.assess_current(1010.0, 1010.0).departed == {}, "without a list of brokers nobody has left"
    made.set_active_brokers(WITHOUT, 1010.0)
    assert made.assess_current(1010.0, 1010.0).factor.value == 0.0


@pytest.mark.seed("035.22")
def test_a_broker_that_joins_has_a_grace_until_its_first_snapshot() -> None:
    made = snapshots({1: 50.0}, grace_s=60.0)
    made.set_active_brokers([1, 2], 1010.0)
    view = made.assess_current(1069.0, 1069.0)
    assert (view.factor.value, view.factor.origin, set(view.new)) == (1.0, "valid", {2})
    assert made.changes_at(1069.0, 1069.0) == 1070.0
    assert made.assess_current(1070.0, 1070.0).reasons == {2: "missing"}
    assert made.assess_current(1070.0, 1070.0).factor == made.next_factor(1069.0, 1069.0)
    made.put_snapshot(2, snapshot(2, 5, 1069.0))
    assert made.assess_current(1069.0, 1069.0).factor.value == 0.0


def test_a_broker_that_returns_without_a_snapshot_is_unknown() -> None:
    made = snapshots({1: 50.0}, grace_s=60.0)
    for now in (1010.0, 1200.0):
        made.set_active_brokers([1, 2], now)
        made.set_active_brokers([1], now + 1)
        assert made.assess_current(1010.0, now + 61).reasons == {}
        made.set_active_brokers([1, 2], now + 62)
        assert made.assess_current(1010.0, now + 62).reasons == {2: "missing"}


def test_nobody_is_new_at_the_start_and_none_that_had_a_snapshot() -> None:
    made = SnapshotView(180.0, "PAUSE", SOFT_HARD, 1e9, grace_s=60.0)
    made.set_active_brokers([1], 1000.0)
    assert made.assess_current(1000.0, 1000.0).reasons == {1: "missing"}
    made.put_snapshot(2, snapshot(2, 50, 500.0))
    made.set_active_brokers([1, 2], 1001.0)
    assert made.assess_current(1001.0, 1001.0).reasons == {1: "missing", 2: "stale"}
