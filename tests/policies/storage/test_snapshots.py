# Freshness and fail-safe of snapshots at their edges.

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.storage import (
    MinAvailable,
    SnapshotView,
    SoftHard,
    StorageFactor,
    Volume,
    VolumeLimit,
    VolumeSnapshot,
)
from tests.policies.storage.storage_play import (
    GB,
    SOFT_HARD,
    snapshot,
    snapshot_view,
    volume,
)


def test_without_a_policy_only_the_limits_count_that_snapshots_bring() -> None:
    made = SnapshotView(180)
    own = volume(15 * GB)._replace(soft=VolumeLimit("MinFreeBytes", 20 * GB), hard=VolumeLimit("MinFreeBytes", 10 * GB))
    made.set_active_brokers([1], 1000.0)
    made.put_snapshot(1, VolumeSnapshot(1, 1000.0, (own,)))
    assert made.assess_current(1000.0, 1000.0).factor.value == 0.5
    made.put_snapshot(1, VolumeSnapshot(1, 1000.0, (volume(0),)))
    assert made.assess_current(1000.0, 1000.0).factor.value == 1


def view(fail_safe: str = "PAUSE", policy: SoftHard | MinAvailable = SOFT_HARD, **frees: float) -> SnapshotView:
    """Brokers b1=free GB, …, all active and described at 1000."""
    snapshots = [snapshot(int(name[1:]), free) for name, free in frees.items()]
    return snapshot_view(*snapshots, fail_safe=fail_safe, policy=policy)  # type: ignore[arg-type]


@pytest.mark.seed("035.24", "035.25", "035.29", "035.31")
def test_a_snapshot_is_fresh_until_it_is_as_old_as_the_maximum() -> None:
    made = view(b1=50)
    made.set_active_brokers([1], 1100.0)
    assert made.changes_at(1100.0, 1100.0) == 1180.0
    assert made.assess_current(1179.999, 1179.999).factor.value == 1
    assert made.assess_current(1180.0, 1180.0).reasons == {1: "stale"}
    assert made.changes_at(1180.0, 1180.0) == 1280.0  # the list's own end


@pytest.mark.seed("035.24")
def test_a_snapshot_from_the_future_is_known_up_to_60_s_exactly() -> None:
    made = view(b1=50)
    made.put_snapshot(1, snapshot(1, 50, at=1060.0))
    assert made.assess_current(1000.0, 1000.0).factor == StorageFactor(1.0, "valid", "")
    made.put_snapshot(1, snapshot(1, 50, at=1060.001))
    assert made.assess_current(1000.0, 1000.0).reasons == {1: "ahead"}
    assert made.assess_current(1000.0, 1000.0).factor.value == 0
    # it becomes one of the present by itself
    assert made.changes_at(1000.0, 1000.0) == pytest.approx(1000.001)
    due = made.changes_at(1000.0, 1000.0) or 0.0
    assert made.assess_current(due + 1e-6, due + 1e-6).reasons == {}
    assert made.next_factor(1000.0, 1000.0) == StorageFactor(1.0, "valid", "")


@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(0, 3000)), max_size=6),
    st.floats(0, 3000),
    st.floats(0, 3000),
    st.sampled_from(["PAUSE", "OPEN"]),
)
def test_between_now_and_until_nothing_changes(
    said: list[tuple[int, float]], listed: float, wall: float, fail_safe: str
) -> None:
    made = view(fail_safe)
    for broker_id, at in said:
        made.put_snapshot(broker_id, snapshot(broker_id, 9 if broker_id == 1 else 50, at))
    made.set_active_brokers([1, 2, 3], listed)
    before = made.assess_current(wall, wall)
    until = made.changes_at(wall, wall)
    if until is None:
        until = wall + 1e9
    assert until > wall
    soon = until - min(1e-6, (until - wall) / 2)
    after = made.assess_current(soon, soon)
    assert (after.factor, after.reasons) == (before.factor, before.reasons)


def test_a_tombstone_leaves_an_active_broker_without_a_snapshot() -> None:
    made = view(b1=50, b2=50)
    made.put_snapshot(2, None)
    made.put_snapshot(7, None)  # never had one
    assert made.assess_current(1000.0, 1000.0).reasons == {2: "missing"}
    made.set_active_brokers([1], 1000.0)
    assert made.assess_current(1000.0, 1000.0).factor.value == 1


def test_a_snapshot_without_volumes_says_nothing_about_its_broker() -> None:
    made = view(b1=50)
    made.put_snapshot(1, VolumeSnapshot(1, 1000.0, ()))
    assert made.assess_current(1000.0, 1000.0).reasons == {1: "missing"}


def test_a_log_dir_that_an_agent_can_not_look_into_makes_its_broker_unknown() -> None:
    """The broker may be filling it: the records of its other volumes are no whole view."""
    for fail_safe, factor in (("PAUSE", 0.0), ("OPEN", 1.0)):
        made = view(fail_safe, b1=50, b2=50)
        whole = snapshot(2, 50)
        made.put_snapshot(2, whole._replace(unreadable=("/data/2", "/data/3\n")))
        said = made.assess_current(1000.0, 1000.0)
        assert (said.factor.value, said.factor.origin, said.reasons) == (factor, "fail-safe", {2: "partial"})
        assert said.factor.why == "broker 2 has a log dir that its agent can't read: /data/2"
        assert {finding.volume.broker_id for finding in said.assessment.findings} == {1, 2}
        made.put_snapshot(2, whole)
        assert made.assess_current(1000.0, 1000.0).factor == StorageFactor(1.0, "valid", "")


def test_a_full_volume_beside_a_log_dir_that_can_not_be_looked_into_still_pauses() -> None:
    made = view("OPEN", b1=50, b2=5)
    made.put_snapshot(2, snapshot(2, 5)._replace(unreadable=("/data/2",)))
    assert made.assess_current(1000.0, 1000.0).factor.value == 0


def test_the_last_record_counts_even_if_its_clock_went_back() -> None:
    """A broker whose clock was a year ahead must be heard again once that is mended."""
    made = view(b1=50)
    made.put_snapshot(1, snapshot(1, 50, at=1000.0 + 3e7))
    assert made.assess_current(1010.0, 1010.0).reasons == {1: "ahead"}
    made.put_snapshot(1, snapshot(1, 50, at=1005.0))
    assert made.assess_current(1010.0, 1010.0).reasons == {}


def test_the_list_of_active_brokers_ages_like_a_snapshot() -> None:
    made = view(b1=50)
    made.put_snapshot(1, snapshot(1, 50, at=1150.0))
    made.record_list_failure("DescribeCluster: timed out")
    assert made.assess_current(1179.0, 1179.0).factor.value == 1
    said = made.assess_current(1180.0, 1180.0)
    assert said.factor.value == 0
    assert said.problem == "the list of active brokers is not younger than 180 s: DescribeCluster: timed out"
    made.set_active_brokers([1], 1181.0)
    assert made.assess_current(1181.0, 1181.0).factor == StorageFactor(1.0, "valid", "")


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_wall_clock_that_is_set_right_does_not_age_the_list(step: float) -> None:
    made = view(b1=50)
    made.put_snapshot(1, snapshot(1, 50, at=1000.0 + step))
    assert made.assess_current(1000.0, 1000.0).reasons
    assert made.assess_current(1001.0 + step, 1001.0).factor == StorageFactor(1.0, "valid", "")
    assert made.changes_at(1001.0 + step, 1001.0) == 1180.0


def test_the_list_has_a_bound_of_its_own() -> None:
    made = SnapshotView(180, "PAUSE", SOFT_HARD, list_age_s=600)
    made.set_active_brokers([1], 50.0)
    for wall in (1000.0, 1400.0, 1599.0):
        made.put_snapshot(1, snapshot(1, 50, at=wall))
        assert made.assess_current(wall, wall - 950.0).factor == StorageFactor(1.0, "valid", "")
    assert made.assess_current(1600.0, 650.0).problem == "the list of active brokers is not younger than 600 s"
    with pytest.raises(ValueError, match="list of brokers"):
        SnapshotView(180, list_age_s=0)


def test_no_active_broker_at_all_is_no_view() -> None:
    made = view(b1=50)
    made.set_active_brokers([], 1000.0)
    assert made.assess_current(1000.0, 1000.0).factor == StorageFactor(0.0, "fail-safe", "no broker is active")


def test_the_message_of_the_fail_safe_names_some_brokers_and_stays_the_same_while_they_age() -> None:
    made = view(b1=50)
    made.set_active_brokers([1, 2, 3, 4], 1000.0)
    assert made.assess_current(1000.0, 1000.0).factor.why.count("broker ") == 3
    assert "more are unknown" not in made.assess_current(1000.0, 1000.0).factor.why
    made.set_active_brokers(range(1, 8), 1000.0)
    made.put_snapshot(2, snapshot(2, 50, at=500.0))
    made.put_snapshot(3, snapshot(3, 50, at=5000.0))
    text = (
        "broker 2 has no snapshot younger than 180 s, broker 3 has a snapshot more than 60 s ahead of this clock,"
        " broker 4 has no snapshot of its volumes, 3 more are unknown"
    )
    assert made.assess_current(1000.0, 1000.0).factor.why == text
    assert made.assess_current(1050.0, 1050.0).factor.why == text


def test_when_a_known_volume_pauses_anyway_the_message_names_that_one() -> None:
    made = view(b1=9, b2=50)
    made.put_snapshot(2, None)
    said = made.assess_current(1000.0, 1000.0)
    assert said.factor.origin == "fail-safe"
    assert said.factor.why == "broker 1 volume /data/0: 9.0 GB of 100.0 GB free, hard limit at 10.0 GB"
    assert not said.lacks_data


def test_a_pause_is_not_ended_by_a_view_that_lacks_the_volume_that_paused() -> None:
    made = view("OPEN", b1=9, b2=50)
    assert made.assess_current(1000.0, 1000.0).factor.value == 0
    made.put_snapshot(1, None)
    assert made.assess_current(1001.0, 1001.0).factor.value == 1  # unknown, and OPEN is what was asked for
    made.put_snapshot(1, snapshot(1, 10.5))
    assert made.assess_current(1002.0, 1002.0).factor.value == 0  # still in the band in which its PAUSE goes on
    made.put_snapshot(1, snapshot(1, 12))
    assert made.assess_current(1003.0, 1003.0).factor.value == 0.2
    made.put_snapshot(1, snapshot(1, 10.5))
    assert made.assess_current(1004.0, 1004.0).factor.value == 0.05


def test_a_restarted_gateway_goes_on_with_its_workers_pause() -> None:
    fresh, restarted = view(b1=10.5), view(b1=10.5)
    restarted.paused = True
    assert fresh.assess_current(1000.0, 1000.0).factor.value == 0.05
    assert restarted.assess_current(1000.0, 1000.0).factor.value == 0


def test_a_policy_that_gives_no_factor_takes_the_fail_safe() -> None:
    class Odd(SoftHard):
        def quota_factor(self, volume: Volume) -> float:
            return 2.0

    said = view("PAUSE", Odd(), b1=50).assess_current(1000.0, 1000.0)
    assert (said.factor.value, said.factor.origin) == (0.0, "fail-safe")
    assert said.problem == said.factor.why == "Odd: factor 2.0 for broker 1 volume /data/0 must be from 0 to 1"
    assert view("OPEN", Odd(), b1=50).assess_current(1000.0, 1000.0).factor.value == 1.0


@pytest.mark.parametrize("age", [0, -1, math.nan, math.inf])
def test_a_maximum_age_that_is_none_is_refused(age: float) -> None:
    with pytest.raises(ValueError, match="max_age"):
        SnapshotView(age, "PAUSE", SOFT_HARD)


def test_a_fail_safe_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="SHUT must be PAUSE or OPEN"):
        SnapshotView(180, "SHUT", SOFT_HARD)  # type: ignore[arg-type]
