# The decision to stop production on a full disk, with one limit for all volumes, as the proposal has it whose sentences
# are in docs/seeds.md. What needs brokers, an admin client or a file is tested with those.

from __future__ import annotations

import math

import pytest

from policies.storage import (
    GRACE_S,
    FactorKeeper,
    FactorSource,
    LimitError,
    MinAvailable,
    Observation,
    ObservationFailed,
    StorageFactor,
    Volume,
    VolumeSource,
    assess_volumes,
)

GB = 1_000_000_000
MINUTE = 60.0
BYTES = MinAvailable(bytes=1_000_000_000)  # the proposal's own examples
RATIO = MinAvailable(ratio=0.01)


def volume(broker_id: int, available: int, total: int = 1000 * GB, name: str = "/var/lib/kafka/data-0") -> Volume:
    return Volume(broker_id, name, total, available)


def factor(policy: MinAvailable, *volumes: Volume) -> float:
    return assess_volumes(volumes, policy, False).factor


# --- motivation -------------------------------------------------------------------------------------------------------


@pytest.mark.seed("DISK.1")
def test_production_is_throttled_if_any_active_broker_is_running_out_of_disk() -> None:
    assert factor(BYTES, volume(1, 500 * GB), volume(2, 500 * GB), volume(3, GB // 2)) == 0


@pytest.mark.seed("DISK.2")
def test_a_broker_that_replication_fills_stops_producers_of_the_others_though_their_disks_are_fine() -> None:
    leader, follower = volume(1, 900 * GB), volume(2, GB)
    assert factor(BYTES, leader) == 1
    assert factor(BYTES, leader, follower) == 0


@pytest.mark.seed("DISK.3")
def test_one_full_volume_of_a_jbod_stops_production_however_empty_its_brokers_other_volumes_are() -> None:
    disks = [volume(1, 900 * GB, name=f"/data-{i}") for i in range(5)]
    assert factor(BYTES, *disks) == 1
    assert factor(BYTES, *disks, volume(1, 0, name="/data-5")) == 0


# --- proposal ---------------------------------------------------------------------------------------------------------


@pytest.mark.seed("DISK.8", "DISK.4")
def test_the_whole_cluster_is_fenced_not_the_broker_that_runs_out() -> None:
    said = assess_volumes((volume(1, 900 * GB), volume(2, 0)), BYTES, False)
    assert said.factor == 0
    assert [(finding.volume.broker_id, finding.factor) for finding in said.findings] == [(1, 1.0), (2, 0.0)]


@pytest.mark.seed("DISK.10")
def test_the_throttle_factor_is_from_0_to_1_and_yields_the_limit_when_applied_to_a_quota() -> None:
    keeper = FactorKeeper()
    for value, limit in ((0.0, 0.0), (0.25, 5e6), (1.0, 20e6)):
        keeper.record_observation(value, "", 0.0)
        assert keeper.current_factor(0.0).value * 20e6 == limit
    for nonsense in (-0.01, 1.01, math.nan):
        with pytest.raises(ObservationFailed):
            keeper.record_observation(nonsense, "", 0.0)


@pytest.mark.seed("DISK.11")
def test_there_is_a_throttle_factor_source_so_that_a_single_decision_maker_can_be_asked() -> None:

    class Asked:
        def factor(self) -> float:
            return 0.5

    source: FactorSource = Asked()
    keeper = FactorKeeper()
    keeper.record_observation(source.factor(), "the controller says so", 0.0)
    assert keeper.current_factor(0.0) == StorageFactor(0.5, "valid", "the controller says so", 0.0)


@pytest.mark.seed("DISK.12")
def test_a_volume_has_the_five_characteristics() -> None:
    one = Volume(3, "/var/lib/kafka/data-0", 1000, 250)
    assert (one.broker_id, one.name, one.total, one.available) == (3, "/var/lib/kafka/data-0", 1000, 250)
    assert one.consumed == 750
    assert one.available_ratio == 0.25
    assert Volume(3, "/var/lib/kafka/data-0", 0, 0).available_ratio == 0.0, "of a volume without a size"


@pytest.mark.seed("DISK.17")
def test_nodes_that_enter_and_exit_the_active_set_change_nothing_but_what_their_own_volumes_say() -> None:
    one, two, three, full = volume(1, 5 * GB), volume(2, 5 * GB), volume(3, 5 * GB), volume(4, 0)
    for active in ((one,), (one, two, three), (three,), (one, three)):
        assert factor(BYTES, *active) == 1
    assert factor(BYTES, one, full) == 0
    assert factor(BYTES, one) == 1


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.seed("DISK.20")
def test_there_is_no_soft_limit_nothing_slows_down_before_the_limit() -> None:
    for policy, first in ((BYTES, GB + 1), (RATIO, 10 * GB + 1)):
        assert {factor(policy, volume(1, available)) for available in range(first, 20 * GB, GB // 10)} == {1.0}
        assert policy.levels(volume(1, GB))[0] is None


@pytest.mark.seed("DISK.21")
def test_one_limit_is_required_and_no_more() -> None:
    with pytest.raises(LimitError, match=r"exactly one of min\.available\.bytes and min\.available\.ratio"):
        MinAvailable()
    with pytest.raises(LimitError, match=r"exactly one of .* both are"):
        MinAvailable(ratio=0.05, bytes=5_000_000_000)


@pytest.mark.seed("DISK.19", "DISK.22", "DISK.20", "DISK.23", "DISK.24")
@pytest.mark.parametrize(("policy", "limit"), [(BYTES, GB), (RATIO, 10 * GB)])
def test_throttle_if_available_bytes_or_ratio_are_less_than_or_equal_to_the_threshold(
    policy: MinAvailable, limit: int
) -> None:
    for available, said in ((limit + 1, 1.0), (limit, 0.0), (limit - 1, 0.0), (0, 0.0)):
        assert factor(policy, volume(1, 900 * GB), volume(2, available)) == said


@pytest.mark.seed("DISK.24")
def test_heterogeneous_disks_a_ratio_goes_by_each_disks_own_size_and_bytes_do_not() -> None:
    small, large = volume(1, 5 * GB, total=100 * GB), volume(2, 5 * GB, total=10_000 * GB)
    assert [RATIO.quota_factor(disk) for disk in (small, large)] == [1.0, 0.0]
    assert [BYTES.quota_factor(disk) for disk in (small, large)] == [1.0, 1.0]
    assert factor(RATIO, small, large) == 0


# --- the fallback -----------------------------------------------------------------------------------------------------


@pytest.mark.seed("DISK.25")
def test_an_active_broker_whose_log_dirs_were_not_described_is_noticed() -> None:
    seen = Observation(brokers=frozenset({1, 2}), volumes=(volume(1, 900 * GB),))
    assert seen.missing == {2}
    assert Observation(frozenset({1, 2}), (volume(1, GB), volume(2, GB))).missing == frozenset()


@pytest.mark.seed("DISK.26")
def test_a_source_says_so_when_it_cannot_get_the_data_of_all_active_brokers_and_that_is_reacted_to() -> None:

    class Away:
        def observe(self) -> Observation:
            raise ObservationFailed("broker 2 did not describe its log dirs")

    source: VolumeSource = Away()
    keeper = FactorKeeper(fallback=0.0)
    with pytest.raises(ObservationFailed) as failure:
        source.observe()
    keeper.record_failure(str(failure.value), 0.0)
    assert keeper.current_factor(0.0).state == "PAUSE"
    assert "broker 2 did not describe its log dirs" in keeper.current_factor(0.0).why


@pytest.mark.seed("DISK.28", "DISK.29")
def test_a_fallback_of_0_prevents_writes_in_an_unknown_state() -> None:
    assert FactorKeeper(fallback=1.0).current_factor(0.0).state == "OPEN"
    keeper = FactorKeeper(fallback=0.0)
    assert keeper.current_factor(0.0).state == "PAUSE"  # nothing was ever observed
    keeper.record_observation(1.0, "", 0.0)
    assert keeper.current_factor(0.0).state == "OPEN"
    assert keeper.current_factor(10 * MINUTE).state == "PAUSE"


def minute_by_minute(late: float = 0.0) -> list[tuple[float, str]]:
    """The example: validity 2 min, fallback 0.0. `late`: seconds that each recalculation takes."""
    keeper = FactorKeeper(validity_s=2 * MINUTE, fallback=0.0, interval_s=MINUTE)
    said: list[tuple[float, str]] = []
    for minute, succeeds in enumerate((True, False, False, False, True)):
        keeper.begin_observation(minute * MINUTE, 30.0)
        now = minute * MINUTE + late
        if succeeds:
            keeper.record_observation(1.0, "", now)
        else:
            keeper.record_failure("away", now)
        current = keeper.current_factor(now)
        said.append((current.value, current.origin))
    return said


EXAMPLE = [(1.0, "valid"), (1.0, "kept"), (1.0, "kept"), (0.0, "fallback"), (1.0, "valid")]


@pytest.mark.seed("DISK.30", "DISK.32")
def test_the_example_minute_by_minute() -> None:
    assert minute_by_minute() == EXAMPLE
    assert minute_by_minute(late=5.0) == minute_by_minute(late=29.0) == EXAMPLE


@pytest.mark.seed("DISK.32")
def test_the_example_also_between_the_minutes() -> None:
    """The factor in use at a minute is in use until the next one, and the fallback begins at minute 3, not at 2."""
    keeper = FactorKeeper(validity_s=2 * MINUTE, fallback=0.0, interval_s=MINUTE)
    keeper.record_observation(1.0, "", 0.0)
    keeper.record_failure("away", MINUTE)
    keeper.record_failure("away", 2 * MINUTE)
    assert keeper.changes_at(2 * MINUTE) == 3 * MINUTE + GRACE_S
    assert keeper.current_factor(2.99 * MINUTE).value == 1.0
    keeper.begin_observation(3 * MINUTE, 30.0)
    assert keeper.current_factor(3.1 * MINUTE).value == 1.0, "recalculation at minute 3 failed: it has not failed yet"
    keeper.record_failure("away", 3.2 * MINUTE)
    assert keeper.current_factor(3.2 * MINUTE).value == 0.0


# --- metrics ----------------------------------------------------------------------------------------------------------


@pytest.mark.seed("DISK.37")
def test_the_use_of_the_fallback_is_told_apart_for_the_counter() -> None:
    """A kept factor is none, and a fallback of the same value is one."""
    keeper = FactorKeeper(fallback=1.0)
    keeper.record_observation(1.0, "", 0.0)
    keeper.record_failure("away", MINUTE)
    assert keeper.current_factor(MINUTE).origin == "kept"
    keeper.record_failure("away", 6 * MINUTE)
    assert keeper.current_factor(6 * MINUTE).origin == "fallback"
