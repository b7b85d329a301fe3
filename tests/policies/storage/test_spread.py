# Who fills a volume, and whether its hard limit leaves room for what may come before the next look.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.storage import (
    MinAvailable,
    ReplicaShare,
    SoftHard,
    Volume,
    VolumeFinding,
    VolumeHeadroom,
    VolumeLimit,
    find_headroom,
)
from policies.storage import find_writers as find
from policies.storage.spread import MAX_SHOWN, REQUEST_S

MB = 1e6
SHARES = {"clicks": ReplicaShare(3, 3), "views": ReplicaShare(1, 4)}


def test_a_volume_gets_of_each_topic_what_its_share_of_the_partitions_is() -> None:
    rates = {("clicks", "User:a"): 4.0, ("views", "User:a"): 8.0, ("views", "User:b"): 40.0, ("else", "User:c"): 99.0}
    topics, principals = find(rates, SHARES)
    assert topics == (("views", 12.0), ("clicks", 4.0))
    assert principals == (("User:b", 10.0), ("User:a", 6.0))
    assert find(rates, SHARES, topics=["clicks"]).principals == (("User:a", 4.0),)
    assert find(rates, {}) == ((), ())


@given(st.dictionaries(st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.text(max_size=2)), st.floats(0, 1e9)))
def test_topics_and_principals_tell_the_same_bytes(rates: dict[tuple[str, str], float]) -> None:
    shares = {"a": ReplicaShare(1, 1), "b": ReplicaShare(1, 2), "c": ReplicaShare(2, 3)}
    topics, principals = find(rates, shares)
    assert len(topics) <= MAX_SHOWN
    assert [rate for _, rate in topics] == sorted((rate for _, rate in topics), reverse=True)
    assert all(rate > 0 for _, rate in (*topics, *principals))
    if len(principals) < MAX_SHOWN:
        assert sum(rate for _, rate in topics) == pytest.approx(sum(rate for _, rate in principals))


def finding(policy: SoftHard | MinAvailable, free: int = 10**9, hard: VolumeLimit | None = None) -> VolumeFinding:
    volume = Volume(1, "/a", 10**9, free, hard=hard)
    return VolumeFinding(volume, 1.0, *policy.levels(volume))


@pytest.mark.parametrize(
    ("policy", "own", "room"),
    [
        (MinAvailable(bytes=600 * MB), None, 600 * MB),
        (MinAvailable(ratio=0.25), None, 250 * MB),
        (SoftHard(hard=VolumeLimit("MinFreePercentage", 0.1)), None, 100 * MB),
        (SoftHard(hard=VolumeLimit("ConsumedBytes", 700 * MB)), None, 300 * MB),
        (SoftHard(), VolumeLimit("MinFreeBytes", 5 * MB), 5 * MB),  # as a snapshot brings it
    ],
)
def test_every_kind_of_limit_has_its_room(
    policy: SoftHard | MinAvailable, own: VolumeLimit | None, room: float
) -> None:
    found = find_headroom(finding(policy, hard=own), (), lambda broker_id: 20 * MB, 15.0)
    assert found is not None
    assert tuple(found) == (room, 20 * MB * (15.0 + REQUEST_S))
    assert found.is_short == (room < 600 * MB)


def test_every_broker_that_leads_a_replica_there_fills_it_too() -> None:
    totals = {1: 20 * MB, 2: 10 * MB, 3: 1 * MB}
    found = find_headroom(finding(MinAvailable(bytes=1)), (1, 2), totals.get, 15.0)
    assert found == VolumeHeadroom(1, 30 * MB * 30)
    assert find_headroom(finding(MinAvailable(bytes=1)), (2,), totals.get, 15.0) == found, "its own in any case"


def test_without_a_bound_nobody_can_say_and_without_a_hard_limit_there_is_nothing_to_say() -> None:
    totals = {1: 20 * MB}
    found = find_headroom(finding(MinAvailable(bytes=1)), (1, 2), totals.get, 15.0)
    assert found == VolumeHeadroom(1, None)
    assert found is not None
    assert not found.is_short
    assert find_headroom(finding(SoftHard()), (1,), totals.get, 15.0) is None
