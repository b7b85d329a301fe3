# DISK (stop production on a full disk), sentence by sentence: each test's name and docstring say what one sentence
# demands of the decision. What needs brokers, an admin client or a file is tested with those.

from __future__ import annotations

import inspect
import math

import pytest

from policies.storage import (
    Factor,
    FactorSource,
    Keeper,
    LimitError,
    MinAvailable,
    Observation,
    ObservationFailed,
    QuotaSource,
    QuotaValues,
    Volume,
    VolumeSource,
    assess,
)

GB = 1_000_000_000
MINUTE = 60.0
BYTES = MinAvailable(bytes=1_000_000_000)  # the proposal's own examples
RATIO = MinAvailable(ratio=0.01)


def volume(broker_id: int, available: int, total: int = 1000 * GB, name: str = "/var/lib/kafka/data-0") -> Volume:
    return Volume(broker_id, name, total, available)


def factor(policy: MinAvailable, *volumes: Volume) -> float:
    return assess(volumes, policy, False).factor


# --- motivation -------------------------------------------------------------------------------------------------------


def test_production_is_throttled_if_any_active_broker_is_running_out_of_disk() -> None:
    """Throttle message production in a broker if any active broker in the cluster is running out of disk."""
    assert factor(BYTES, volume(1, 500 * GB), volume(2, 500 * GB), volume(3, GB // 2)) == 0


def test_a_broker_that_replication_fills_stops_producers_of_the_others_though_their_disks_are_fine() -> None:
    """Replication from broker 1 to broker 2 may fill broker 2, as broker 1's disk usage remains acceptable."""
    leader, follower = volume(1, 900 * GB), volume(2, GB)
    assert factor(BYTES, leader) == 1
    assert factor(BYTES, leader, follower) == 0


def test_one_full_volume_of_a_jbod_stops_production_however_empty_its_brokers_other_volumes_are() -> None:
    """Unbalanced usage between volumes can lead to a volume running out of storage without throttling: no more."""
    disks = [volume(1, 900 * GB, name=f"/data-{i}") for i in range(5)]
    assert factor(BYTES, *disks) == 1
    assert factor(BYTES, *disks, volume(1, 0, name="/data-5")) == 0


# --- proposal ---------------------------------------------------------------------------------------------------------


def test_the_same_view_of_the_cluster_leads_to_the_same_decision_everywhere() -> None:
    """Brokers operate on a similar view of the cluster state and make a deterministic decision."""
    seen = [volume(1, 400 * GB), volume(2, GB // 2), volume(2, GB // 4, name="/b"), volume(3, 2 * GB)]
    said = assess(seen, BYTES, False)
    assert assess(reversed(seen), BYTES, False) == said
    assert assess(seen[2:] + seen[:2], BYTES, True) == said


def test_the_whole_cluster_is_fenced_not_the_broker_that_runs_out() -> None:
    """We fence the whole cluster: there is one factor, not one by broker."""
    said = assess((volume(1, 900 * GB), volume(2, 0)), BYTES, False)
    assert said.factor == 0
    assert [(finding.volume.broker_id, finding.factor) for finding in said.findings] == [(1, 1.0), (2, 0.0)]


def test_there_is_a_quota_source_that_external_quotas_can_come_from() -> None:
    """A Quota Source provides an abstraction for external sources of quotas."""

    class Elsewhere:
        def quotas(self) -> QuotaValues:
            return QuotaValues(20e6, {"clicks": 5e6})

    source: QuotaSource = Elsewhere()
    assert source.quotas().topics["clicks"] == 5e6


def test_the_throttle_factor_is_from_0_to_1_and_yields_the_limit_when_applied_to_a_quota() -> None:
    """A factor in the range (0.0, 1.0) that is applied to a quota to calculate the final byte rate limit."""
    keeper = Keeper()
    for value, limit in ((0.0, 0.0), (0.25, 5e6), (1.0, 20e6)):
        keeper.observed(value, "", 0.0)
        assert keeper.current(0.0).value * 20e6 == limit
    for nonsense in (-0.01, 1.01, math.nan):
        with pytest.raises(ObservationFailed):
            keeper.observed(nonsense, "", 0.0)


def test_there_is_a_throttle_factor_source_so_that_a_single_decision_maker_can_be_asked() -> None:
    """A Throttle Factor Source provides alternative sources, such as a single decision-making broker."""

    class Asked:
        def factor(self) -> float:
            return 0.5

    source: FactorSource = Asked()
    keeper = Keeper()
    keeper.observed(source.factor(), "the controller says so", 0.0)
    assert keeper.current(0.0) == Factor(0.5, "valid", "the controller says so", 0.0)


def test_a_volume_has_the_five_characteristics() -> None:
    """logDir, brokerId, totalBytes, availableBytes; usedBytes = total - available; ratio = available / total."""
    one = Volume(3, "/var/lib/kafka/data-0", 1000, 250)
    assert (one.broker_id, one.name, one.total, one.available) == (3, "/var/lib/kafka/data-0", 1000, 250)
    assert one.consumed == 750
    assert one.available_ratio == 0.25


@pytest.mark.parametrize("policy", [BYTES, RATIO])
def test_a_disk_that_is_described_once_per_log_dir_does_not_change_the_outcome(policy: MinAvailable) -> None:
    """Redundant volume descriptions don't impact the outcome."""
    for available in (0, GB, 10 * GB, 11 * GB, 900 * GB):
        once = [volume(1, available), volume(2, 500 * GB)]
        repeated = [volume(1, available, name=f"/data-{i}") for i in range(4)]
        assert factor(policy, *once, *repeated) == factor(policy, *once)
        assert factor(policy, *once, *once) == factor(policy, *once)


def test_nodes_that_enter_and_exit_the_active_set_change_nothing_but_what_their_own_volumes_say() -> None:
    """Nodes enter and exit the active set as part of normal operation: an aggregate would vary, a limit doesn't."""
    one, two, three, full = volume(1, 5 * GB), volume(2, 5 * GB), volume(3, 5 * GB), volume(4, 0)
    for active in ((one,), (one, two, three), (three,), (one, three)):
        assert factor(BYTES, *active) == 1
    assert factor(BYTES, one, full) == 0
    assert factor(BYTES, one) == 1


# --- limits -----------------------------------------------------------------------------------------------------------


def test_there_is_a_single_value_for_each_limit_which_is_tested_against_each_volume() -> None:
    """Limits are applied per volume with a single value: no limit of a specific volume."""
    for broken in range(4):
        volumes = [volume(i, 0 if i == broken else 900 * GB) for i in range(4)]
        said = assess(volumes, BYTES, False)
        assert said.factor == 0
        assert [finding.volume.broker_id for finding in said.violated] == [broken]
        assert {finding.hard_free for finding in said.findings} == {GB}


def test_when_the_limit_is_exceeded_the_throttle_factor_is_0() -> None:
    """When that limit is exceeded we effectively stop messages being produced: a Throttle Factor of 0.0."""
    assert factor(BYTES, volume(1, GB - 1)) == 0.0
    keeper = Keeper()
    keeper.observed(0.0, "", 0.0)
    assert keeper.current(0.0).state == "PAUSE"


def test_there_is_no_soft_limit_nothing_slows_down_before_the_limit() -> None:
    """We will not support the pre-existing concept of a soft limit."""
    for policy, first in ((BYTES, GB + 1), (RATIO, 10 * GB + 1)):
        assert {factor(policy, volume(1, available)) for available in range(first, 20 * GB, GB // 10)} == {1.0}
        assert policy.levels(volume(1, GB))[0] is None


def test_one_limit_is_required() -> None:
    """We require one limit to be configured."""
    with pytest.raises(LimitError, match=r"exactly one of min\.available\.bytes and min\.available\.ratio"):
        MinAvailable()


def test_more_than_one_limit_is_invalid() -> None:
    """Defining more than one limit is invalid: the proposal's own example is refused."""
    with pytest.raises(LimitError, match=r"exactly one of .* both are"):
        MinAvailable(ratio=0.05, bytes=5_000_000_000)


@pytest.mark.parametrize(("available", "said"), [(GB + 1, 1.0), (GB, 0.0), (GB - 1, 0.0), (0, 0.0)])
def test_throttle_if_available_bytes_is_less_than_or_equal_to_the_threshold(available: int, said: float) -> None:
    """Throttle if availableBytes is less-than-or-equal-to some threshold for any volume."""
    assert factor(BYTES, volume(1, 900 * GB), volume(2, available)) == said


@pytest.mark.parametrize(("available", "said"), [(10 * GB + 1, 1.0), (10 * GB, 0.0), (10 * GB - 1, 0.0), (0, 0.0)])
def test_throttle_if_available_ratio_is_less_than_or_equal_to_the_threshold(available: int, said: float) -> None:
    """Throttle if the availableRatio is less-than-or-equal-to some threshold for any volume."""
    assert factor(RATIO, volume(1, 900 * GB), volume(2, available)) == said


def test_heterogeneous_disks_a_ratio_goes_by_each_disks_own_size_and_bytes_do_not() -> None:
    """New limit types make explicit what is being limited and better support heterogeneous disks."""
    small, large = volume(1, 5 * GB, total=100 * GB), volume(2, 5 * GB, total=10_000 * GB)
    assert [RATIO.quota_factor(disk) for disk in (small, large)] == [1.0, 0.0]
    assert [BYTES.quota_factor(disk) for disk in (small, large)] == [1.0, 1.0]
    assert factor(RATIO, small, large) == 0


# --- the fallback -----------------------------------------------------------------------------------------------------


def test_an_active_broker_whose_log_dirs_were_not_described_is_noticed() -> None:
    """Example inconsistent state: brokers 1 and 2 are active, and only broker 1's log dirs are described."""
    seen = Observation(brokers=frozenset({1, 2}), volumes=(volume(1, 900 * GB),))
    assert seen.missing == {2}
    assert Observation(frozenset({1, 2}), (volume(1, GB), volume(2, GB))).missing == frozenset()


def test_a_source_says_so_when_it_cannot_get_the_data_of_all_active_brokers_and_that_is_reacted_to() -> None:
    """We need to react somehow to cases where we cannot get the volume data for all active brokers."""

    class Away:
        def observe(self) -> Observation:
            raise ObservationFailed("broker 2 did not describe its log dirs")

    source: VolumeSource = Away()
    keeper = Keeper(fallback=0.0)
    with pytest.raises(ObservationFailed) as failure:
        source.observe()
    keeper.failed(str(failure.value), 0.0)
    assert keeper.current(0.0).state == "PAUSE"
    assert "broker 2 did not describe its log dirs" in keeper.current(0.0).why


def test_the_fallback_is_1_by_default_so_all_the_quota_can_be_used() -> None:
    """A default value of 1.0 to optimistically allow all the quota to be used."""
    keeper = Keeper()
    keeper.failed("away", 0.0)
    assert keeper.fallback == 1.0
    assert keeper.current(0.0).state == "OPEN"


def test_a_fallback_of_0_prevents_writes_in_an_unknown_state() -> None:
    """Users can opt in to a factor of 0.0 to prevent writes when we are in an unknown state."""
    keeper = Keeper(fallback=0.0)
    assert keeper.current(0.0).state == "PAUSE"  # nothing was ever observed
    keeper.observed(1.0, "", 0.0)
    assert keeper.current(0.0).state == "OPEN"
    assert keeper.current(10 * MINUTE).state == "PAUSE"


@pytest.mark.parametrize("fallback", [0.0, 0.3, 1.0])
def test_the_fallback_can_be_from_0_to_1(fallback: float) -> None:
    """Throttle factor fallback can be in the range (0.0, 1.0); both ends are in use in the proposal itself."""
    assert Keeper(fallback=fallback).current(0.0).value == fallback
    with pytest.raises(ValueError, match=r"throttle\.factor\.fallback"):
        Keeper(fallback=fallback + 1.01)


def test_a_single_failure_goes_on_with_the_last_valid_factor() -> None:
    """Continue using a previously calculated valid factor rather than the fallback after a single failure."""
    for value in (0.0, 1.0):
        keeper = Keeper(fallback=0.5)
        keeper.observed(value, "why", 0.0)
        keeper.failed("away", MINUTE)
        assert keeper.current(MINUTE) == Factor(value, "kept", "why", 0.0)


def test_the_validity_is_five_minutes_by_default() -> None:
    """Default value "PT5M", 5 minutes."""
    assert inspect.signature(Keeper).parameters["validity_s"].default == 5 * MINUTE
    keeper = Keeper(fallback=0.0)
    keeper.observed(1.0, "", 0.0)
    said = []
    for minute in range(1, 8):
        keeper.failed("away", minute * MINUTE)
        said.append(keeper.current(minute * MINUTE).value)
    assert said == [1, 1, 1, 1, 1, 0, 0]


def test_the_check_interval_is_one_minute_by_default() -> None:
    """The interval between polling the cluster state (default is 1 minute)."""
    assert Keeper().interval_s == MINUTE


def minute_by_minute(late: float = 0.0) -> list[tuple[float, str]]:
    """The example: validity 2 min, fallback 0.0. `late`: seconds that each recalculation takes."""
    keeper = Keeper(validity_s=2 * MINUTE, fallback=0.0, interval_s=MINUTE)
    said: list[tuple[float, str]] = []
    for minute, succeeds in enumerate((True, False, False, False, True)):
        now = minute * MINUTE + late
        if succeeds:
            keeper.observed(1.0, "", now)
        else:
            keeper.failed("away", now)
        current = keeper.current(now)
        said.append((current.value, current.origin))
    return said


EXAMPLE = [(1.0, "valid"), (1.0, "kept"), (1.0, "kept"), (0.0, "fallback"), (1.0, "valid")]


def test_the_example_minute_by_minute() -> None:
    """0 succeeded: 1.0. 1 failed: 1.0. 2 failed: 1.0. 3 failed: fallback of 0.0. 4 succeeded: 1.0."""
    assert minute_by_minute() == EXAMPLE
    assert minute_by_minute(late=5.0) == EXAMPLE


def test_the_example_also_between_the_minutes() -> None:
    """What was in use at a minute is in use until the next one, and the fallback begins at minute 3, not at 2."""
    keeper = Keeper(validity_s=2 * MINUTE, fallback=0.0, interval_s=MINUTE)
    keeper.observed(1.0, "", 0.0)
    keeper.failed("away", MINUTE)
    keeper.failed("away", 2 * MINUTE)
    assert keeper.until(2 * MINUTE) == 3 * MINUTE
    assert keeper.current(2.99 * MINUTE).value == 1.0
    assert keeper.current(3 * MINUTE).value == 0.0


# --- the table's ranges -----------------------------------------------------------------------------------------------


def test_an_interval_of_zero_is_no_keeper_at_all() -> None:
    """Set to PT0S to disable: so nothing is calculated, and this says so instead of dividing by it."""
    with pytest.raises(ValueError, match="check_interval: 0 s must be above 0"):
        Keeper(interval_s=0)


@pytest.mark.parametrize("level", [0, 1, 5_000_000_000, 10**18])
def test_a_limit_in_bytes_may_be_any_number_from_0_on(level: int) -> None:
    """min.available.bytes: (0, ...): stop message production if availableBytes <= this value."""
    assert factor(MinAvailable(bytes=level), volume(1, level, total=10**19)) == 0
    assert factor(MinAvailable(bytes=level), volume(1, level + 1, total=10**19)) == 1
    with pytest.raises(LimitError, match=r"min\.available\.bytes"):
        MinAvailable(bytes=-1 - level)


@pytest.mark.parametrize("level", [0.0, 0.01, 0.05, 0.5, 1.0])
def test_a_limit_as_a_ratio_may_be_from_0_to_1(level: float) -> None:
    """min.available.ratio: (0.0, 1.0): stop message production if availableRatio <= this value."""
    at = round(1000 * GB * level)
    assert factor(MinAvailable(ratio=level), volume(1, at)) == 0
    assert factor(MinAvailable(ratio=level), volume(1, at + 1)) == 1
    for nonsense in (-0.01 - level, 1.01 + level):
        with pytest.raises(LimitError, match=r"min\.available\.ratio"):
            MinAvailable(ratio=nonsense)


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_each_volume_that_violates_the_limit_is_known_for_the_counter() -> None:
    """LimitViolated: incremented when a volume violates a limit."""
    said = assess((volume(1, 0), volume(2, GB), volume(2, GB + 1, name="/b"), volume(3, 900 * GB)), BYTES, False)
    assert [(finding.volume.broker_id, finding.volume.available) for finding in said.violated] == [(1, 0), (2, GB)]


def test_the_use_of_the_fallback_is_told_apart_for_the_counter() -> None:
    """FallbackThrottleFactorApplied: a kept factor is none, and a fallback of the same value is one."""
    keeper = Keeper(fallback=1.0)
    keeper.observed(1.0, "", 0.0)
    keeper.failed("away", MINUTE)
    assert keeper.current(MINUTE).origin == "kept"
    assert keeper.current(6 * MINUTE).origin == "fallback"
