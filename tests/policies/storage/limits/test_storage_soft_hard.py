# The decision by soft and hard limits and by snapshots of volumes, as the proposal has it (035) whose sentences are in
# docs/seeds.md. What needs a topic, a disk or an admin client is tested with those.

from __future__ import annotations

import inspect

import pytest

from gateway.config import Storage
from policies.storage import (
    FailSafe,
    LimitPolicy,
    LimitType,
    SnapshotView,
    SoftHard,
    Volume,
    VolumeLimit,
    VolumeSnapshot,
    assess_volumes,
)
from tests.policies.storage.storage_play import GB, SOFT_HARD, snapshot, snapshot_view

GRACE_S = Storage.model_fields["new_broker_grace"].default  # the sentences hold with what is shipped


def volume(broker_id: int, free: float, total: float = 100, name: str = "/dev/sdd") -> Volume:
    """Sizes in GB."""
    return Volume(broker_id, name, round(total * GB), round(free * GB))


def factor(policy: LimitPolicy, *volumes: Volume) -> float:
    return assess_volumes(volumes, policy, False).factor


def view(*snapshots: VolumeSnapshot, fail_safe: FailSafe = "PAUSE", active: tuple[int, ...] = (1, 2)) -> SnapshotView:
    return snapshot_view(*snapshots, fail_safe=fail_safe, active=active, grace_s=GRACE_S)


# --- current situation ------------------------------------------------------------------------------------------------


@pytest.mark.seed("035.1", "035.26", "035.30")
def test_producers_slow_down_beyond_the_soft_limit_and_pause_when_reaching_the_hard_limit_or_exceeding_it() -> None:
    assert [factor(SOFT_HARD, volume(1, free)) for free in (100, 20, 15, 10, 9, 0)] == [1, 1, 0.5, 0, 0, 0]
    assert [factor(SoftHard(None, SOFT_HARD.hard), volume(1, free)) for free in (15, 10)] == [1, 0]
    assert [factor(SoftHard(SOFT_HARD.soft, None), volume(1, free)) for free in (20, 15, 0)] == [1, 0.75, 0]


# --- roles and states -------------------------------------------------------------------------------------------------


@pytest.mark.seed("035.4")
@pytest.mark.parametrize(("free", "state"), [(50, "OPEN"), (20, "OPEN"), (15, "THROTTLE"), (10, "PAUSE")])
def test_the_states_are_open_throttle_and_pause(free: float, state: str) -> None:
    assert view(snapshot(1, free), active=(1,)).assess_current(1000.0, 1000.0).factor.state == state


@pytest.mark.seed("035.6")
def test_a_gateway_that_starts_knows_the_state_of_the_cluster_from_the_last_snapshot_of_each_broker() -> None:
    running, starting = view(), view()
    for free in (50, 9, 30, 13):
        running.put_snapshot(1, snapshot(1, free))
    running.put_snapshot(2, snapshot(2, 40))
    starting.put_snapshot(1, snapshot(1, 13))
    starting.put_snapshot(2, snapshot(2, 40))
    assert starting.assess_current(1000.0, 1000.0) == running.assess_current(1000.0, 1000.0)
    assert starting.assess_current(1000.0, 1000.0).factor.value == pytest.approx(0.3)


@pytest.mark.seed("035.7")
def test_throttling_is_the_same_for_a_client_connected_anywhere() -> None:
    """The order of arrival does not matter."""
    records = [snapshot(1, 50), snapshot(2, 14), snapshot(3, 12)]
    one, other = view(*records, active=(1, 2, 3)), view(*reversed(records), active=(3, 2, 1))
    assert one.assess_current(1000.0, 1000.0) == other.assess_current(1000.0, 1000.0)
    assert one.assess_current(1000.0, 1000.0).factor.value == 0.2


# --- limit types ------------------------------------------------------------------------------------------------------


@pytest.mark.seed("035.8", "035.9", "035.10")
@pytest.mark.parametrize("soft", [("ConsumedBytes", 80 * GB), ("MinFreeBytes", 20 * GB), ("MinFreePercentage", 0.2)])
@pytest.mark.parametrize("hard", [("ConsumedBytes", 90 * GB), ("MinFreeBytes", 10 * GB), ("MinFreePercentage", 0.1)])
def test_any_type_can_be_the_soft_and_any_the_hard_limit(
    soft: tuple[LimitType, float], hard: tuple[LimitType, float]
) -> None:
    policy = SoftHard(VolumeLimit(*soft), VolumeLimit(*hard))
    assert [factor(policy, volume(1, free)) for free in (20, 15, 10)] == [1, 0.5, 0]


# --- the quota policy -------------------------------------------------------------------------------------------------


@pytest.mark.seed("035.17")
def test_the_largest_delay_caused_by_any_disk_beyond_the_soft_limit_is_applied() -> None:
    disks = volume(1, 18), volume(2, 13), volume(2, 17, name="/dev/sde"), volume(3, 90)
    assert factor(SOFT_HARD, *disks) == factor(SOFT_HARD, disks[1]) == 0.3


@pytest.mark.seed("035.18", "035.19")
def test_throttling_is_proportional_to_what_remains_between_soft_and_hard() -> None:
    for tenth in range(11):
        assert factor(SOFT_HARD, volume(1, 10 + tenth)) == pytest.approx(tenth / 10)


@pytest.mark.seed("035.5", "035.20")
@pytest.mark.parametrize("broken", range(5))
def test_any_volume_in_the_cluster_that_breaches_the_hard_limit_pauses(broken: int) -> None:
    records = [snapshot(i, 9 if i == broken else 90) for i in range(5)]
    said = view(*records, active=tuple(range(5))).assess_current(1000.0, 1000.0)
    assert said.factor.state == "PAUSE"
    assert said.factor.origin == "valid"
    assert f"broker {broken} volume /data/0" in said.factor.why


@pytest.mark.seed("035.22", "035.23")
@pytest.mark.parametrize("fail_safe", ["PAUSE", "OPEN"])
def test_the_configured_action_is_taken_when_the_state_of_a_known_broker_cannot_be_determined(
    fail_safe: FailSafe,
) -> None:
    said = view(snapshot(1, 90), fail_safe=fail_safe).assess_current(1000.0, 1000.0)
    assert said.factor.state == fail_safe
    assert said.factor.origin == "fail-safe"
    assert said.reasons == {2: "missing"}
    assert said.factor.why == "broker 2 has no snapshot of its volumes"


@pytest.mark.seed("035.22")
def test_an_unknown_broker_does_not_hide_a_breach_that_is_known() -> None:
    """OPEN is the action for what can't be determined; any volume that breaches the hard limit still pauses."""
    assert view(snapshot(1, 9), fail_safe="OPEN").assess_current(1000.0, 1000.0).factor.state == "PAUSE"
    assert view(snapshot(1, 15), fail_safe="OPEN").assess_current(1000.0, 1000.0).factor.value == 0.5


@pytest.mark.seed("035.22")
@pytest.mark.parametrize("fail_safe", ["PAUSE", "OPEN"])
def test_before_anything_is_known_the_fail_safe_holds(fail_safe: FailSafe) -> None:
    """Also before the topic was read and before the active brokers are known."""
    made = SnapshotView(180.0, fail_safe, SOFT_HARD, grace_s=GRACE_S)
    assert made.assess_current(1000.0, 1000.0).factor.state == fail_safe
    made.put_snapshot(1, snapshot(1, 90))
    made.record_list_failure("no broker answers")
    said = made.assess_current(1000.0, 1000.0)
    assert said.factor.state == fail_safe
    assert said.factor.why == "the active brokers are not known yet: no broker answers"
    assert made.changes_at(1000.0, 1000.0) is None


@pytest.mark.seed("035.23")
def test_pause_is_the_fail_safe_that_is_the_default() -> None:
    assert inspect.signature(SnapshotView).parameters["fail_safe"].default == "PAUSE"
    made = SnapshotView(max_age_s=180.0, policy=SOFT_HARD)
    assert made.assess_current(0.0, 0.0).factor.state == "PAUSE"


@pytest.mark.seed("035.24")
def test_stale_state_is_ignored() -> None:
    # a volume that had run full says nothing any more, and no more does one that was empty
    for free in (5, 90):
        made = view(snapshot(1, 90), snapshot(2, free, at=820.0))
        said = made.assess_current(1000.0, 1000.0)
        assert said.reasons == {2: "stale"}
        assert [finding.volume.broker_id for finding in said.assessment.findings] == [1]
        assert said.assessment.factor == 1
        assert said.factor.value == 0


@pytest.mark.seed("035.29")
def test_freshness_goes_by_snapshot_at_and_not_by_when_it_was_published_or_read() -> None:
    made = view(snapshot(1, 90))
    made.put_snapshot(2, snapshot(2, 90, at=500.0))  # read just now
    assert made.assess_current(1000.0, 1000.0).reasons == {2: "stale"}


@pytest.mark.seed("035.16")
def test_only_the_currently_active_brokers_have_to_be_known() -> None:
    made = view(snapshot(1, 90), snapshot(2, 90), snapshot(3, 5))
    assert made.assess_current(1000.0, 1000.0).factor.value == 1  # broker 3 is gone, its last snapshot still there
    made.set_active_brokers([1, 2, 3], 1001.0)
    assert made.assess_current(1001.0, 1001.0).factor.value == 0
    made.set_active_brokers([1], 1002.0)
    made.put_snapshot(2, None)
    assert made.assess_current(1002.0, 1002.0).reasons == {}
    made.set_active_brokers([1, 2], 1003.0)
    assert made.assess_current(1003.0, 1003.0).reasons == {2: "missing"}  # not for a while: it is known, and returns
    made.put_snapshot(2, snapshot(2, 15, at=1004.0))
    assert made.assess_current(1004.0, 1004.0).factor.value == 0.5


@pytest.mark.seed("035.22")
@pytest.mark.parametrize("fail_safe", ["PAUSE", "OPEN"])
def test_the_state_of_a_broker_that_returns_without_a_snapshot_cannot_be_determined(fail_safe: FailSafe) -> None:
    made = view(snapshot(1, 90), fail_safe=fail_safe)
    for now in (1000.0, 1060.0, 1120.0):
        made.set_active_brokers([1], now)
        assert made.assess_current(1000.0, now).factor.origin == "valid"
        made.set_active_brokers([1, 2], now + 30)
        said = made.assess_current(1000.0, now + 30)
        assert (said.factor.state, said.factor.origin) == (fail_safe, "fail-safe")


@pytest.mark.seed("035.15")
def test_a_snapshot_every_minute_never_lets_the_fail_safe_in_and_a_silent_broker_does() -> None:
    made = SnapshotView(180.0, "PAUSE", SOFT_HARD)
    for minute in range(20):
        wall = 1000.0 + 60 * minute
        made.set_active_brokers([1, 2], wall)
        made.put_snapshot(1, snapshot(1, 90, at=wall))
        if minute < 10:
            made.put_snapshot(2, snapshot(2, 90, at=wall))
        assert made.assess_current(wall, wall).factor.value == (1 if minute < 12 else 0)


# --- interface and schema ---------------------------------------------------------------------------------------------


@pytest.mark.seed("035.27")
def test_the_levels_are_told_for_metrics_as_what_they_are_on_that_volume() -> None:
    soft, hard = VolumeLimit("MinFreePercentage", 0.05), VolumeLimit("MinFreeBytes", GB)
    levels = [SoftHard(*pair).levels(volume(1, 50, total=200)) for pair in ((soft, hard), (soft, None), (None, hard))]
    assert levels == [(10 * GB, GB), (10 * GB, 0.0), (None, GB)]


@pytest.mark.seed("035.26")
def test_another_policy_can_stand_in() -> None:

    class HalfAlways:
        def breaches_hard_limit(self, volume: Volume) -> bool:
            return False

        def breaches_soft_limit(self, volume: Volume) -> bool:
            return True

        def quota_factor(self, volume: Volume) -> float:
            return 0.5

        def levels(self, volume: Volume) -> tuple[float | None, float | None]:
            return None, None

    said = assess_volumes((volume(1, 90),), HalfAlways(), False)
    assert said.factor == 0.5
    assert said.reason_text == "broker 1 volume /dev/sdd: 90.0 GB of 100.0 GB free"


@pytest.mark.seed("035.33")
def test_the_schemas_example_is_open_and_would_pause_at_a_million_bytes() -> None:
    """The example: hard MinFreeBytes 1000000, soft MinFreePercentage 5, 10 GiB of 100 GiB consumed."""
    hard, soft = VolumeLimit("MinFreeBytes", 1_000_000), VolumeLimit("MinFreePercentage", 5 / 100)
    example = Volume(0, "/dev/sdd", 107374182400, 107374182400 - 10737418240, soft, hard)
    assert SOFT_HARD.quota_factor(example) == 1
    assert SOFT_HARD.quota_factor(example._replace(available=5368709120)) == 1
    assert 0 < SOFT_HARD.quota_factor(example._replace(available=5368709119)) < 1
    assert SOFT_HARD.quota_factor(example._replace(available=1_000_000)) == 0


# --- metrics ----------------------------------------------------------------------------------------------------------


@pytest.mark.seed("035.34")
def test_throttling_applied_due_to_lack_of_data_is_known() -> None:
    assert view(snapshot(1, 90)).assess_current(1000.0, 1000.0).lacks_data is True
    assert view(snapshot(1, 90), fail_safe="OPEN").assess_current(1000.0, 1000.0).lacks_data is False
    assert view(snapshot(1, 90), snapshot(2, 5)).assess_current(1000.0, 1000.0).lacks_data is False


@pytest.mark.seed("035.37")
def test_the_usage_of_each_volume_is_known() -> None:
    said = view(snapshot(1, 90), snapshot(2, 15)).assess_current(1000.0, 1000.0).assessment
    assert [(f.volume.broker_id, f.volume.consumed // GB, f.factor) for f in said.findings] == [
        (1, 10, 1),
        (2, 85, 0.5),
    ]
