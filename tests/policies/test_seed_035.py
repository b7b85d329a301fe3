# 035 (cluster wide volume usage), sentence by sentence: each test's name and docstring say what one sentence demands of
# the decision. What needs a topic, a disk or an admin client is tested with those.

from __future__ import annotations

import inspect
import itertools

import pytest

from policies.storage import (
    FactorSource,
    FailSafe,
    Limit,
    LimitPolicy,
    LimitType,
    Snapshot,
    SnapshotView,
    SoftHard,
    Volume,
    assess,
)

GB = 1_000_000_000
POLICY = SoftHard(Limit("MinFreeBytes", 20 * GB), Limit("MinFreeBytes", 10 * GB))


def volume(broker_id: int, free: float, total: float = 100, name: str = "/dev/sdd") -> Volume:
    """Sizes in GB."""
    return Volume(broker_id, name, round(total * GB), round(free * GB))


def factor(policy: LimitPolicy, *volumes: Volume) -> float:
    return assess(volumes, policy, False).factor


def view(*snapshots: Snapshot, fail_safe: FailSafe = "PAUSE", active: tuple[int, ...] = (1, 2)) -> SnapshotView:
    made = SnapshotView(180.0, fail_safe, POLICY)
    for snapshot in snapshots:
        made.put(snapshot.broker_id, snapshot)
    made.active(active, 1000.0)
    return made


def snapshot(broker_id: int, free: float, at: float = 1000.0) -> Snapshot:
    return Snapshot(broker_id, at, (volume(broker_id, free),))


# --- current situation ------------------------------------------------------------------------------------------------


def test_producers_slow_down_beyond_the_soft_limit_and_pause_when_reaching_the_hard_limit_or_exceeding_it() -> None:
    """Slowing down over the soft limit (but below the hard limit), pausing when reaching or exceeding the hard one."""
    assert [factor(POLICY, volume(1, free)) for free in (100, 20, 15, 10, 9, 0)] == [1, 1, 0.5, 0, 0, 0]


def test_a_broker_that_replication_fills_pauses_producers_of_the_others() -> None:
    """Replication from 1 to 2 can consume all of 2's storage, as broker 1 disk usage remains acceptable: no more."""
    assert factor(POLICY, volume(1, 90), volume(2, 5)) == 0


def test_the_volumes_of_one_broker_are_not_added_up() -> None:
    """JBOD: considering the total quantity of storage of a broker lets one volume run out without throttling."""
    disks = [volume(1, 90, name=f"/dev/sd{letter}") for letter in "abcd"]
    assert factor(POLICY, *disks, volume(1, 12, name="/dev/sde")) == 0.2


# --- roles and states -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("free", "state"), [(50, "OPEN"), (20, "OPEN"), (15, "THROTTLE"), (10, "PAUSE")])
def test_the_states_are_open_throttle_and_pause(free: float, state: str) -> None:
    """The possible states are OPEN, THROTTLE and PAUSE, to reflect the effects of moving between them."""
    assert view(snapshot(1, free), active=(1,)).current(1000.0, 1000.0).factor.state == state


def test_a_factor_source_can_be_something_that_queries_metrics_instead() -> None:
    """It's simple to imagine one which queries prometheus metrics to determine volume usage rather than a topic."""

    class Queried:
        def factor(self) -> float:
            return factor(POLICY, volume(1, 15))

    source: FactorSource = Queried()
    assert source.factor() == 0.5


def test_a_gateway_that_starts_knows_the_state_of_the_cluster_from_the_last_snapshot_of_each_broker() -> None:
    """A compacted topic keyed by the broker ID lets each instance start and quickly determine the state."""
    running, starting = view(), view()
    for free in (50, 9, 30, 13):
        running.put(1, snapshot(1, free))
    running.put(2, snapshot(2, 40))
    starting.put(1, snapshot(1, 13))
    starting.put(2, snapshot(2, 40))
    assert starting.current(1000.0, 1000.0) == running.current(1000.0, 1000.0)


def test_throttling_is_the_same_wherever_the_client_is_connected() -> None:
    """Consistently apply throttling regardless of where the client is connected: the order of arrival is no matter."""
    records = [snapshot(1, 50), snapshot(2, 14), snapshot(3, 12)]
    one, other = view(*records, active=(1, 2, 3)), view(*reversed(records), active=(3, 2, 1))
    assert one.current(1000.0, 1000.0) == other.current(1000.0, 1000.0)
    assert one.current(1000.0, 1000.0).factor.value == 0.2


# --- limit types ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("consumed", "said"), [(69, 1.0), (70, 0.0), (71, 0.0)])
def test_consumed_space_triggers_if_the_consumed_space_of_a_volume_breaches_the_value(
    consumed: float, said: float
) -> None:
    """Consumed space limit: triggers if the consumed space of a volume breaches the value."""
    assert factor(SoftHard(hard=Limit("ConsumedBytes", 70 * GB)), volume(1, 100 - consumed)) == said


@pytest.mark.parametrize(("free", "said"), [(11, 1.0), (10, 0.0), (9, 0.0)])
def test_minimum_free_bytes_triggers_if_less_is_free(free: float, said: float) -> None:
    """Minimum Free Bytes: triggers if the amount of free space on a volume drops below the configured level."""
    assert factor(SoftHard(hard=Limit("MinFreeBytes", 10 * GB)), volume(1, free)) == said


@pytest.mark.parametrize(("free", "said"), [(11, 1.0), (10, 0.0), (9, 0.0)])
def test_minimum_free_percentage_triggers_if_less_than_that_part_of_the_volume_is_free(
    free: float, said: float
) -> None:
    """Minimum Free Percentage: the configured proportion of the volume's total capacity."""
    policy = SoftHard(hard=Limit("MinFreePercentage", 0.1))
    assert factor(policy, volume(1, free)) == said
    assert factor(policy, volume(1, 10 * free, total=1000)) == said


def test_heterogeneous_disks_each_reach_a_percentage_at_their_own_free_bytes() -> None:
    """The number of available bytes is derived from the proportion of the total volume size."""
    policy = SoftHard(Limit("MinFreePercentage", 0.2), Limit("MinFreePercentage", 0.1))
    for total in (10, 100, 1000):
        assert policy.levels(volume(1, 5, total)) == (0.2 * total * GB, 0.1 * total * GB)
        assert factor(policy, volume(1, 0.15 * total, total)) == pytest.approx(0.5)
    assert factor(policy, volume(1, 50), volume(2, 150, total=1000)) == pytest.approx(0.5)


@pytest.mark.parametrize("soft", [("ConsumedBytes", 80 * GB), ("MinFreeBytes", 20 * GB), ("MinFreePercentage", 0.2)])
@pytest.mark.parametrize("hard", [("ConsumedBytes", 90 * GB), ("MinFreeBytes", 10 * GB), ("MinFreePercentage", 0.1)])
def test_any_type_can_be_the_soft_and_any_the_hard_limit(
    soft: tuple[LimitType, float], hard: tuple[LimitType, float]
) -> None:
    """Soft and hard limits each have a configuration of every type."""
    policy = SoftHard(Limit(*soft), Limit(*hard))
    assert [factor(policy, volume(1, free)) for free in (20, 15, 10)] == [1, 0.5, 0]


def test_consumed_bytes_throttle_above_their_value() -> None:
    """Existing properties control the number of consumed bytes above which throttling is applied."""
    policy = SoftHard(Limit("ConsumedBytes", 80 * GB), Limit("ConsumedBytes", 90 * GB))
    at, above = volume(1, 20), Volume(1, "/dev/sdd", 100 * GB, 20 * GB - 1)
    assert not policy.breaches_soft_limit(at)
    assert policy.breaches_soft_limit(above)
    assert policy.quota_factor(at) == 1
    assert policy.quota_factor(above) < 1


# --- the quota policy -------------------------------------------------------------------------------------------------


def test_the_largest_delay_caused_by_any_disk_beyond_the_soft_limit_is_applied() -> None:
    """Should apply the largest delay caused by each disk which breaches the soft limit."""
    disks = volume(1, 18), volume(2, 13), volume(2, 17, name="/dev/sde"), volume(3, 90)
    assert factor(POLICY, *disks) == factor(POLICY, disks[1]) == 0.3


def test_throttling_is_proportional_to_what_remains_between_soft_and_hard() -> None:
    """Proportional to how much of the difference between the soft and hard limit remains for a given volume."""
    for tenth in range(11):
        assert factor(POLICY, volume(1, 10 + tenth)) == pytest.approx(tenth / 10)


def test_the_closer_to_the_hard_limit_the_more_throttle() -> None:
    """Applying more throttle the closer to the hard limit things are."""
    factors = [factor(POLICY, volume(1, 20 - step / 10)) for step in range(101)]
    assert all(before > after for before, after in itertools.pairwise(factors))


@pytest.mark.parametrize("broken", range(5))
def test_any_volume_in_the_cluster_that_breaches_the_hard_limit_pauses(broken: int) -> None:
    """Should apply a PAUSE level throttle if ANY volume in the cluster breaches the hard limit."""
    records = [snapshot(i, 9 if i == broken else 90) for i in range(5)]
    said = view(*records, active=tuple(range(5))).current(1000.0, 1000.0)
    assert said.factor.state == "PAUSE"
    assert said.factor.origin == "valid"
    assert f"broker {broken} volume /dev/sdd" in said.factor.why


@pytest.mark.parametrize("fail_safe", ["PAUSE", "OPEN"])
def test_the_configured_action_is_taken_when_the_state_of_a_known_broker_cannot_be_determined(
    fail_safe: FailSafe,
) -> None:
    """A configured action, PAUSE or OPEN, when it can not determine the state of all known brokers."""
    said = view(snapshot(1, 90), fail_safe=fail_safe).current(1000.0, 1000.0)
    assert said.factor.state == fail_safe
    assert said.factor.origin == "fail-safe"
    assert said.reasons == {2: "missing"}
    assert said.factor.why == "broker 2 has no snapshot of its volumes"


def test_an_unknown_broker_does_not_hide_a_breach_that_is_known() -> None:
    """OPEN is the action for what can't be determined; any volume that breaches the hard limit still pauses."""
    assert view(snapshot(1, 9), fail_safe="OPEN").current(1000.0, 1000.0).factor.state == "PAUSE"
    assert view(snapshot(1, 15), fail_safe="OPEN").current(1000.0, 1000.0).factor.value == 0.5


@pytest.mark.parametrize("fail_safe", ["PAUSE", "OPEN"])
def test_before_anything_is_known_the_fail_safe_holds(fail_safe: FailSafe) -> None:
    """Can not determine the state: also before the topic was read and before the active brokers are known."""
    made = SnapshotView(180.0, fail_safe, POLICY)
    assert made.current(1000.0, 1000.0).factor.state == fail_safe
    made.put(1, snapshot(1, 90))
    made.active_failed("no broker answers")
    said = made.current(1000.0, 1000.0)
    assert said.factor.state == fail_safe
    assert said.factor.why == "the active brokers are not known yet: no broker answers"
    assert made.until(1000.0, 1000.0) is None


def test_pause_is_the_fail_safe_that_is_the_default() -> None:
    """Defaulting to PAUSE as the fail-safe option."""
    assert inspect.signature(SnapshotView).parameters["fail_safe"].default == "PAUSE"
    made = SnapshotView(max_age_s=180.0, policy=POLICY)
    assert made.current(0.0, 0.0).factor.state == "PAUSE"


def test_stale_state_is_ignored() -> None:
    """Apply a freshness check to the volume usage it reads and ignore stale state."""
    # a volume that had run full says nothing any more, and no more does one that was empty
    for free in (5, 90):
        made = view(snapshot(1, 90), snapshot(2, free, at=820.0))
        said = made.current(1000.0, 1000.0)
        assert said.reasons == {2: "stale"}
        assert [finding.volume.broker_id for finding in said.assessment.findings] == [1]
        assert said.assessment.factor == 1
        assert said.factor.value == 0


def test_the_threshold_for_staleness_is_a_parameter() -> None:
    """The threshold for staleness should be a configuration parameter."""
    for max_age in (10.0, 1000.0):
        made = SnapshotView(max_age, "PAUSE", POLICY)
        made.put(1, snapshot(1, 90, at=1000.0))
        made.active([1], 1000.0)
        assert made.current(1000.0 + max_age - 0.5, 1000.0 + max_age - 0.5).factor.value == 1
        made.active([1], 1000.0 + max_age)
        assert made.current(1000.0 + max_age, 1000.0 + max_age).reasons == {1: "stale"}


def test_freshness_goes_by_snapshot_at_and_not_by_when_it_was_published_or_read() -> None:
    """Explicitly mark when the volume usage was captured rather than depending on message publication timestamps."""
    made = view(snapshot(1, 90))
    made.put(2, snapshot(2, 90, at=500.0))  # read just now
    assert made.current(1000.0, 1000.0).reasons == {2: "stale"}


def test_a_snapshot_that_compaction_kept_for_long_is_stale_all_the_same() -> None:
    """Separating freshness from topic eviction: what is still in the topic need not be fresh."""
    made = view(snapshot(1, 90), active=(1,))
    for wall in (1100.0, 5000.0, 1e9):
        made.active([1], wall)
        assert (made.current(wall, wall).factor.value == 1) is (wall < 1180.0)


def test_only_the_currently_active_brokers_have_to_be_known() -> None:
    """The admin client discovers the list of currently active brokers: nodes enter and leave it."""
    made = view(snapshot(1, 90), snapshot(2, 90), snapshot(3, 5))
    assert made.current(1000.0, 1000.0).factor.value == 1  # broker 3 is gone, its last snapshot still there
    made.active([1, 2, 3], 1001.0)
    assert made.current(1001.0, 1001.0).factor.value == 0
    made.active([1, 4], 1002.0)
    assert made.current(1002.0, 1002.0).reasons == {4: "missing"}
    made.put(4, snapshot(4, 15, at=1003.0))
    assert made.current(1003.0, 1003.0).factor.value == 0.5


def test_a_snapshot_every_minute_never_lets_the_fail_safe_in_and_a_silent_broker_does() -> None:
    """On startup and periodically thereafter read the volume usage stats."""
    made = SnapshotView(180.0, "PAUSE", POLICY)
    for minute in range(20):
        wall = 1000.0 + 60 * minute
        made.active([1, 2], wall)
        made.put(1, snapshot(1, 90, at=wall))
        if minute < 10:
            made.put(2, snapshot(2, 90, at=wall))
        assert made.current(wall, wall).factor.value == (1 if minute < 12 else 0)


# --- interface and schema ---------------------------------------------------------------------------------------------


def test_a_policy_says_whether_a_volume_breaches_its_hard_or_its_soft_limit() -> None:
    """QuotaPolicy: breachesHardLimit, breachesSoftLimit."""
    said = [(POLICY.breaches_soft_limit(one), POLICY.breaches_hard_limit(one)) for one in map(at, (21, 20, 15, 10, 5))]
    assert said == [(False, False), (False, False), (True, False), (True, True), (True, True)]


def at(free: float) -> Volume:
    return volume(1, free)


def test_a_factor_of_1_is_unaffected_and_breaching_the_hard_limit_implies_0() -> None:
    """quotaFactor: a value between 0 and 1; 1.0 is unaffected; breaching the hard limit implies 0.0."""
    for free in range(101):
        said = POLICY.quota_factor(at(free))
        assert 0 <= said <= 1
        assert (said < 1) is POLICY.breaches_soft_limit(at(free))
        assert (said == 0) is POLICY.breaches_hard_limit(at(free))


def test_the_levels_are_told_for_metrics_as_what_they_are_on_that_volume() -> None:
    """getSoftLimit, getHardLimit: primarily for metrics; fixed or relative usage levels."""
    policy = SoftHard(Limit("MinFreePercentage", 0.05), Limit("MinFreeBytes", GB))
    assert policy.levels(volume(1, 50, total=200)) == (10 * GB, GB)


def test_another_policy_can_stand_in() -> None:
    """Abstracts the decision-making around hard and soft limits."""

    class HalfAlways:
        def breaches_hard_limit(self, volume: Volume) -> bool:
            return False

        def breaches_soft_limit(self, volume: Volume) -> bool:
            return True

        def quota_factor(self, volume: Volume) -> float:
            return 0.5

        def levels(self, volume: Volume) -> tuple[float | None, float | None]:
            return None, None

    said = assess((volume(1, 90),), HalfAlways(), False)
    assert said.factor == 0.5
    assert said.why == "broker 1 volume /dev/sdd: 90.0 GB of 100.0 GB free"


def test_the_schemas_example_is_open_and_would_pause_at_a_million_bytes() -> None:
    """The example: hard MinFreeBytes 1000000, soft MinFreePercentage 5, 10 GiB of 100 GiB consumed."""
    hard, soft = Limit("MinFreeBytes", 1_000_000), Limit("MinFreePercentage", 5 / 100)
    example = Volume(0, "/dev/sdd", 107374182400, 107374182400 - 10737418240, soft, hard)
    assert POLICY.quota_factor(example) == 1
    assert POLICY.quota_factor(example._replace(available=5368709120)) == 1
    assert 0 < POLICY.quota_factor(example._replace(available=5368709119)) < 1
    assert POLICY.quota_factor(example._replace(available=1_000_000)) == 0


def test_limits_of_a_message_are_defaults_that_a_volumes_own_override() -> None:
    """Limits at the message level are broker wide defaults; they could be overridden with a volume specific limit."""
    own = Limit("MinFreeBytes", 40 * GB)
    assert factor(POLICY, volume(1, 30)) == 1
    assert factor(POLICY, volume(1, 30)._replace(hard=own)) == 0


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_throttling_applied_due_to_lack_of_data_is_known() -> None:
    """Throttling applied due lack of data: 0 not applied or 1 applied."""
    assert view(snapshot(1, 90)).current(1000.0, 1000.0).lacks_data is True
    assert view(snapshot(1, 90), fail_safe="OPEN").current(1000.0, 1000.0).lacks_data is False
    assert view(snapshot(1, 90), snapshot(2, 5)).current(1000.0, 1000.0).lacks_data is False


def test_the_usage_of_each_volume_is_known() -> None:
    """Metrics showing usage per volume."""
    said = view(snapshot(1, 90), snapshot(2, 15)).current(1000.0, 1000.0).assessment
    assert [(f.volume.broker_id, f.volume.consumed // GB, f.factor) for f in said.findings] == [
        (1, 10, 1),
        (2, 85, 0.5),
    ]
