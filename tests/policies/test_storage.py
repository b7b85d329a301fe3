# Limits, hysteresis, validity and fail-safe at their edges, and what must hold whatever the sizes are. What the two
# proposals say sentence by sentence is in test_seed_disk.py and test_seed_035.py.

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from policies.storage import (
    LIMIT_TYPES,
    Assessment,
    Factor,
    Finding,
    Keeper,
    Limit,
    LimitError,
    LimitType,
    MinAvailable,
    Observation,
    ObservationFailed,
    Snapshot,
    SnapshotView,
    SoftHard,
    Volume,
    assess,
    checked,
)

GB = 1_000_000_000
SOFT_HARD = SoftHard(Limit("MinFreeBytes", 20 * GB), Limit("MinFreeBytes", 10 * GB))  # a PAUSE ends above 11 GB

totals = st.integers(1, 2**60)
shares = st.floats(0, 1)


def limits(types: tuple[LimitType, ...] = LIMIT_TYPES) -> st.SearchStrategy[Limit]:
    def of(type_: LimitType) -> st.SearchStrategy[Limit]:
        level = shares if type_ == "MinFreePercentage" else st.one_of(st.integers(0, 2**60), st.floats(0, 2.0**60))
        return st.builds(Limit, st.just(type_), level)

    return st.sampled_from(types).flatmap(of)


def volumes(own: bool = True) -> st.SearchStrategy[Volume]:
    limit = st.none() | limits() if own else st.none()

    def sized(total: int) -> st.SearchStrategy[Volume]:
        names, free = st.sampled_from(["/data/0", "/data/1", "/data/2"]), st.integers(0, total)
        return st.builds(Volume, st.integers(0, 5), names, st.just(total), free, limit, limit)

    return totals.flatmap(sized)


def volume(available: float, broker_id: int = 1, total: float = 100 * GB, name: str = "/data/0") -> Volume:
    return Volume(broker_id, name, round(total), round(available))


def policies() -> st.SearchStrategy[MinAvailable | SoftHard]:
    per_volume = limits(("MinFreeBytes", "ConsumedBytes"))
    return st.one_of(
        st.builds(lambda level: MinAvailable(bytes=level), st.integers(0, 2**60)),
        st.builds(lambda level: MinAvailable(ratio=level), shares),
        st.builds(SoftHard, st.none() | limits(("MinFreePercentage",)), st.none() | per_volume),
        st.builds(SoftHard, st.none() | per_volume, st.none() | limits(("MinFreePercentage",))),
    )


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "free"),
    [
        (Limit("MinFreeBytes", 5), 5.0),
        (Limit("ConsumedBytes", 70), 30.0),
        (Limit("ConsumedBytes", 130), 0.0),
        (Limit("MinFreePercentage", 0.05), 5.0),
        (Limit("MinFreePercentage", 0), 0.0),
        (Limit("MinFreePercentage", 1), 100.0),
    ],
)
def test_every_limit_is_so_many_free_bytes_of_a_volume(limit: Limit, free: float) -> None:
    assert limit.free_bytes(100) == free


@given(st.integers(0, 10_000), st.integers(1, 10_000))
@example(29, 100)  # 0.29 * 100 is 28.999999999999996
@example(7, 100)  # 0.07 * 100 is 7.000000000000001
def test_who_has_exactly_the_share_free_has_reached_it_and_one_byte_more_has_not(part: int, total: int) -> None:
    assume(part < total)
    for policy in (SoftHard(hard=Limit("MinFreePercentage", part / total)), MinAvailable(ratio=part / total)):
        assert policy.breaches_hard_limit(Volume(1, "a", total, part))
        assert not policy.breaches_hard_limit(Volume(1, "a", total, part + 1))


@given(st.integers(1, 100), st.integers(1, 300))
def test_a_percentage_as_json_has_it_means_the_same_as_the_whole_bytes(percent: int, hundreds: int) -> None:
    assert Limit("MinFreePercentage", percent / 100).free_bytes(hundreds * 100) == percent * hundreds


def test_a_percentage_of_a_tiny_volume_is_less_than_a_byte_and_reached_when_it_is_full() -> None:
    policy = SoftHard(hard=Limit("MinFreePercentage", 0.05))
    assert policy.quota_factor(Volume(1, "a", 10, 0)) == 0
    assert policy.quota_factor(Volume(1, "a", 10, 1)) == 1


@pytest.mark.parametrize(
    "policy", [MinAvailable(bytes=0), MinAvailable(ratio=0), SoftHard(hard=Limit("MinFreeBytes", 0))]
)
def test_a_level_of_zero_pauses_only_when_nothing_is_free(policy: MinAvailable | SoftHard) -> None:
    assert policy.quota_factor(volume(1)) == 1
    assert policy.quota_factor(volume(0)) == 0


def test_a_ratio_of_one_pauses_always() -> None:
    assert MinAvailable(ratio=1).quota_factor(volume(100 * GB)) == 0


def test_a_consumed_limit_beyond_the_volumes_size_is_reached_when_it_is_full() -> None:
    hard = Limit("ConsumedBytes", 200 * GB)
    for policy in (SoftHard(hard=hard), SoftHard(Limit("ConsumedBytes", 150 * GB), hard)):
        assert policy.quota_factor(volume(1)) == 1
        full = assess([volume(0)], policy, False)
        assert (full.factor, full.why) == (0, "broker 1 volume /data/0: 0 B of 100.0 GB free, hard limit at 0 B")


@pytest.mark.parametrize(("total", "available"), [(0, 0), (-1, -1), (100, -1), (-1, 100)])
@pytest.mark.parametrize(
    "policy",
    [
        MinAvailable(bytes=0),
        MinAvailable(ratio=0),
        SoftHard(hard=Limit("ConsumedBytes", 10)),
        SoftHard(hard=Limit("MinFreePercentage", 0)),
        SoftHard(soft=Limit("MinFreeBytes", 0)),
    ],
)
def test_a_volume_whose_sizes_cannot_be_true_counts_as_full(
    total: int, available: int, policy: MinAvailable | SoftHard
) -> None:
    broken = Volume(1, "/data", total, available)
    assert broken.available_ratio == 0
    assert policy.breaches_hard_limit(broken)
    assert policy.breaches_soft_limit(broken) or policy.levels(broken)[0] is None
    assert assess((broken,), policy, False).why.startswith("broker 1 volume /data: size unknown")


def test_without_any_limit_even_a_full_volume_leaves_everything() -> None:
    assert assess((volume(0), Volume(1, "b", -1, -1)), SoftHard(), False).factor == 1
    assert SoftHard().levels(volume(0)) == (None, None)


def test_soft_at_or_below_hard_on_some_volume_leaves_the_hard_limit_alone() -> None:
    policy = SoftHard(Limit("MinFreePercentage", 0.1), Limit("MinFreeBytes", 10 * GB))
    for total in (100 * GB, 50 * GB):  # soft at 10 and 5 GB
        assert policy.quota_factor(volume(10 * GB + 1, total=total)) == 1
        assert policy.quota_factor(volume(10 * GB, total=total)) == 0
    assert policy.quota_factor(volume(15 * GB, total=200 * GB)) == 0.5


def test_a_soft_limit_alone_throttles_down_to_the_volumes_end() -> None:
    policy = SoftHard(soft=Limit("MinFreeBytes", 20 * GB))
    assert [policy.quota_factor(volume(free * GB)) for free in (20, 10, 5, 0)] == [1, 0.5, 0.25, 0]


def test_a_volumes_own_limits_win_each_by_itself() -> None:
    own = volume(15 * GB)._replace(hard=Limit("ConsumedBytes", 86 * GB))  # 14 GB free
    assert SOFT_HARD.levels(own) == (20 * GB, 14 * GB)
    assert SOFT_HARD.levels(own._replace(soft=Limit("MinFreePercentage", 0.16))) == (16 * GB, 14 * GB)
    assert SOFT_HARD.quota_factor(own._replace(soft=Limit("MinFreePercentage", 0.16))) == 0.5


def test_min_available_is_one_value_for_all_volumes_whatever_their_own_limits_are() -> None:
    own = volume(15 * GB)._replace(soft=Limit("MinFreeBytes", 50 * GB), hard=Limit("MinFreeBytes", 40 * GB))
    assert MinAvailable(bytes=GB).quota_factor(own) == 1
    assert MinAvailable(bytes=GB).levels(own) == (None, GB)


@pytest.mark.parametrize(
    ("limit", "wrong"),
    [
        (Limit("MinFreeBytes", -1), "hard: -1 must be a finite number, 0 or more"),
        (Limit("MinFreeBytes", math.inf), "hard: inf must be a finite number, 0 or more"),
        (Limit("ConsumedBytes", math.nan), "hard: nan must be a finite number, 0 or more"),
        (Limit("MinFreePercentage", 5), "hard: 5 must be a share from 0 to 1 (0.05 is 5 %)"),
        (
            Limit("Consumed\nSpace", 1),  # type: ignore[arg-type]
            "hard: Consumed Space must be one of ConsumedBytes, MinFreeBytes, MinFreePercentage",
        ),
    ],
)
def test_a_limit_that_is_none_is_refused_in_one_line(limit: Limit, wrong: str) -> None:
    with pytest.raises(LimitError) as refused:
        SoftHard(hard=limit)
    assert str(refused.value) == wrong
    with pytest.raises(LimitError, match="soft: "):
        SoftHard(soft=limit)
    with pytest.raises(LimitError, match="snapshot"):
        checked(limit, "snapshot of broker 1")


def test_a_ratio_out_of_range_is_refused_by_its_own_key() -> None:
    with pytest.raises(LimitError, match=r"min\.available\.ratio: 5 must be a share from 0 to 1"):
        MinAvailable(ratio=5)
    with pytest.raises(LimitError, match=r"min\.available\.bytes: -1 must be"):
        MinAvailable(bytes=-1)


@pytest.mark.parametrize(
    ("type_", "soft", "hard"), [("MinFreeBytes", 1, 2), ("ConsumedBytes", 2, 1), ("MinFreePercentage", 0.1, 0.2)]
)
def test_a_soft_limit_that_comes_after_the_hard_one_on_every_volume_is_refused(
    type_: LimitType, soft: float, hard: float
) -> None:
    with pytest.raises(LimitError, match=rf"the soft limit \({type_} .*\) must be reached before the hard limit"):
        SoftHard(Limit(type_, soft), Limit(type_, hard))
    SoftHard(Limit(type_, hard), Limit(type_, soft))
    SoftHard(Limit(type_, hard), Limit(type_, hard))


@given(volumes(), policies())
def test_the_factor_is_0_exactly_at_the_hard_limit_and_below_1_only_beyond_the_soft(
    one: Volume, policy: MinAvailable | SoftHard
) -> None:
    factor = policy.quota_factor(one)
    assert 0 <= factor <= 1
    assert (factor == 0) is policy.breaches_hard_limit(one)
    if 0 < factor < 1:
        assert policy.breaches_soft_limit(one)
    if not policy.breaches_soft_limit(one) and not policy.breaches_hard_limit(one):
        assert factor == 1


@given(volumes(), policies(), st.integers(0, 2**60))
def test_less_free_never_means_a_higher_factor(one: Volume, policy: MinAvailable | SoftHard, less: int) -> None:
    fuller = one._replace(available=max(0, one.available - less))
    assert policy.quota_factor(fuller) <= policy.quota_factor(one)


@given(volumes(own=False), st.integers(0, 2**60))
def test_a_minimum_of_free_bytes_is_the_same_limit_however_it_is_written(one: Volume, level: int) -> None:
    consumed = SoftHard(hard=Limit("ConsumedBytes", one.total - level)) if level <= one.total else None
    said = {MinAvailable(bytes=level).quota_factor(one), SoftHard(hard=Limit("MinFreeBytes", level)).quota_factor(one)}
    # beyond 2**53 bytes a level is a float and no longer exact to the byte
    if consumed is not None and max(one.total, level) < 2**53:
        said.add(consumed.quota_factor(one))
    if max(one.available, level) < 2**53:
        assert len(said) == 1


# --- the cluster ------------------------------------------------------------------------------------------------------


@given(st.lists(volumes(), max_size=8), policies(), st.booleans(), st.randoms(use_true_random=False))
def test_the_worst_volume_decides_in_whatever_order_and_however_often_it_is_described(
    many: list[Volume], policy: MinAvailable | SoftHard, paused: bool, random: object
) -> None:
    said = assess(many, policy, paused)
    shuffled = many + many[::2]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert assess(shuffled, policy, paused) == said
    assert said.factor <= min((policy.quota_factor(one) for one in many), default=1.0)
    assert said.held or said.factor == min((policy.quota_factor(one) for one in many), default=1.0)
    assert (said.worst is None) is (not many)
    assert bool(said.why) is (said.factor < 1)
    assert "\n" not in said.why


@given(st.lists(volumes(), max_size=8), policies())
def test_hysteresis_only_ever_lengthens_a_pause(many: list[Volume], policy: MinAvailable | SoftHard) -> None:
    fresh, again = assess(many, policy, False), assess(many, policy, True)
    assert not fresh.held
    assert again.factor in (0.0, fresh.factor)
    if again.factor != fresh.factor:
        assert again.held
        assert again.worst is not None
        assert again.worst.is_short_of_release
    # asking again on the same observation changes nothing any more
    assert assess(many, policy, fresh.paused).factor == fresh.factor
    assert assess(many, policy, again.paused) == again


def test_no_volume_at_all_limits_nothing() -> None:
    assert assess((), SOFT_HARD, True) == Assessment(1.0, (), None)
    assert assess((), SOFT_HARD, True).why == ""
    assert not assess((), SOFT_HARD, True).paused


def test_of_equally_bad_volumes_the_fuller_one_is_named() -> None:
    said = assess((volume(0.9 * GB, 1), volume(0.2 * GB, 2), volume(50 * GB, 3)), MinAvailable(bytes=GB), False)
    assert said.worst is not None
    assert said.worst.volume.broker_id == 2
    assert [finding.volume.broker_id for finding in said.violated] == [1, 2]


@pytest.mark.parametrize("nonsense", [-0.1, 1.1, math.nan])
def test_a_policy_of_somebody_elses_that_gives_no_factor_is_no_observation(nonsense: float) -> None:
    class Odd(SoftHard):
        def quota_factor(self, volume: Volume) -> float:
            return nonsense

    with pytest.raises(
        ObservationFailed, match=rf"Odd: factor {nonsense} for broker 1 volume /data/0 must be from 0 to 1"
    ):
        assess((volume(1),), Odd(), False)


# --- hysteresis -------------------------------------------------------------------------------------------------------


def states(policy: SoftHard | MinAvailable, *observations: tuple[Volume, ...]) -> list[float]:
    """The factors of one observation after the other."""
    factors, paused = [], False
    for observation in observations:
        said = assess(observation, policy, paused)
        factors.append(round(said.factor, 3))
        paused = said.paused
    return factors


def test_a_pause_ends_when_more_than_a_tenth_of_the_way_to_soft_is_free_again() -> None:
    frees = (12, 10, 10.5, 11, 11.001, 10.5, 20, 10.5)
    said = states(SOFT_HARD, *((volume(free * GB),) for free in frees))
    assert said == [0.2, 0, 0, 0, 0.1, 0.05, 1, 0.05]


def test_the_limit_at_which_a_pause_ends_is_told() -> None:
    said = assess((volume(10.5 * GB),), SOFT_HARD, True)
    assert said.held
    assert said.violated == ()
    assert said.why == "broker 1 volume /data/0: 10.5 GB of 100.0 GB free, paused until more than 11.0 GB are free"


def test_a_pause_by_a_minimum_ends_with_the_next_free_byte() -> None:
    assert states(MinAvailable(bytes=GB), (volume(GB),), (volume(GB + 1),), (volume(GB),)) == [0, 1, 0]


def test_a_pause_by_a_hard_limit_without_a_soft_one_ends_with_the_next_free_byte() -> None:
    policy = SoftHard(hard=Limit("MinFreeBytes", GB))
    assert states(policy, (volume(GB),), (volume(GB + 1),)) == [0, 1]


def test_where_soft_is_not_above_hard_there_is_no_band() -> None:
    policy = SoftHard(Limit("MinFreePercentage", 0.1), Limit("MinFreeBytes", 10 * GB))
    assert states(policy, (volume(10 * GB),), (volume(10 * GB + 1),)) == [0, 1]


def test_a_pause_goes_on_when_the_volume_that_paused_is_gone_and_another_is_close_to_its_limit() -> None:
    paused, other = volume(9 * GB, 1), volume(10.8 * GB, 2)
    assert states(SOFT_HARD, (paused, other), (other,), (volume(11.2 * GB, 2),)) == [0, 0, 0.12]


def test_a_pause_is_over_when_the_volume_that_paused_is_gone_and_no_other_is_close() -> None:
    assert states(SOFT_HARD, (volume(9 * GB, 1), volume(50 * GB, 2)), (volume(50 * GB, 2),)) == [0, 1]


def test_the_volume_that_holds_a_pause_need_not_be_the_one_with_the_lowest_rate_by_bytes() -> None:
    """Limits differ by volume: each is measured on its own way from hard to soft."""
    wide = volume(30 * GB, 1)._replace(soft=Limit("MinFreeBytes", 210 * GB), hard=Limit("MinFreeBytes", 10 * GB))
    tight = volume(11.5 * GB, 2)
    said = assess((wide, tight), SOFT_HARD, True)  # wide: released above 30 GB; tight: above 11 GB
    assert said.factor == 0
    assert said.worst is not None
    assert said.worst.volume is wide
    assert assess((wide._replace(available=31 * GB), tight), SOFT_HARD, True).factor == pytest.approx(0.105)


def test_a_pause_that_is_not_over_survives_one_that_has_no_band() -> None:
    hard_only = volume(0, 2)._replace(soft=Limit("MinFreeBytes", 5), hard=Limit("MinFreeBytes", 5))
    band = volume(10.5 * GB, 1)
    emptied = hard_only._replace(available=GB)
    assert states(SOFT_HARD, (volume(9 * GB),), (band, hard_only), (band, emptied)) == [0, 0, 0]
    # one that has no band doesn't begin what only limits with a band have
    assert states(SOFT_HARD, (band, hard_only), (band, emptied)) == [0, 0.05]


def test_a_volume_at_its_hard_limit_is_named_before_one_that_only_holds_a_pause() -> None:
    hard_only = volume(50 * GB, 2)._replace(soft=Limit("MinFreeBytes", 60 * GB), hard=Limit("MinFreeBytes", 60 * GB))
    said = assess((volume(10.5 * GB, 1), hard_only), SOFT_HARD, True)
    assert said.why == "broker 2 volume /data/0: 50.0 GB of 100.0 GB free, hard limit at 60.0 GB"


def test_of_several_volumes_that_hold_a_pause_the_one_closest_to_its_limit_is_named() -> None:
    said = assess((volume(10.9 * GB, 1), volume(10.1 * GB, 2), volume(10.5 * GB, 3)), SOFT_HARD, True)
    assert said.why.startswith("broker 2 ")


def test_a_byte_above_the_limit_is_no_pause_even_where_floats_cannot_tell() -> None:
    policy = SoftHard(Limit("MinFreeBytes", 2**61), Limit("MinFreeBytes", 2**60))
    assert policy.quota_factor(Volume(1, "a", 2**62, 2**60)) == 0
    assert policy.quota_factor(Volume(1, "a", 2**62, 2**60 + 1)) > 0


def test_without_a_past_the_band_is_throttled_and_not_paused() -> None:
    assert states(SOFT_HARD, (volume(10.5 * GB),)) == [0.05]


# --- messages ---------------------------------------------------------------------------------------------------------


def test_the_message_names_broker_and_volume_and_how_far_it_is() -> None:
    low = Volume(2, "/data/kafka-logs", 100 * GB, 900_000_000)
    assert (
        assess((low,), MinAvailable(bytes=GB), False).why
        == "broker 2 volume /data/kafka-logs: 0.9 GB of 100.0 GB free, hard limit at 1.0 GB"
    )
    policy = SoftHard(Limit("MinFreePercentage", 0.1), Limit("MinFreeBytes", GB))
    assert (
        assess((low._replace(available=5 * GB),), policy, False).why
        == "broker 2 volume /data/kafka-logs: 5.0 GB of 100.0 GB free, between soft limit 10.0 GB and hard limit 1.0 GB"
    )
    assert assess((low._replace(available=50 * GB),), policy, False).why == ""


def test_a_foreign_name_neither_breaks_the_line_nor_fills_the_message() -> None:
    said = assess((volume(0, name="/data\r\nERROR " + "x" * 10_000),), MinAvailable(bytes=GB), False)
    assert "\n" not in said.why
    assert "\r" not in said.why
    assert len(said.why) < 300


def test_limits_are_written_with_their_unit() -> None:
    assert str(Limit("MinFreeBytes", GB)) == "MinFreeBytes 1.0 GB"
    assert str(Limit("MinFreePercentage", 0.05)) == "MinFreePercentage 5 %"
    assert str(Limit("MinFreePercentage", 0.07)) == "MinFreePercentage 7 %"
    assert f"{Limit('ConsumedBytes', 9e12)}" == "ConsumedBytes 9.0 TB"


def test_a_broker_with_only_offline_log_dirs_is_not_missing() -> None:
    seen = Observation(frozenset({1, 2, 3}), (volume(GB, 1),), ((2, "/data/0"),))
    assert seen.missing == {3}


# --- Keeper: validity and fallback ------------------------------------------------------------------------------------

MINUTE = 60.0


@pytest.mark.parametrize(
    ("factor", "state"), [(1.0, "OPEN"), (0.999, "THROTTLE"), (math.ulp(0.0), "THROTTLE"), (0.0, "PAUSE")]
)
def test_the_state_goes_by_the_factor(factor: float, state: str) -> None:
    assert Factor(factor, "valid", "").state == state


@pytest.mark.parametrize(
    ("validity", "interval", "holds"),
    [(300, 60, 360), (120, 60, 180), (119, 60, 120), (60, 60, 120), (59, 60, 60), (0, 60, 60), (0.3, 0.1, 0.4)],
)
def test_a_factor_holds_for_whole_intervals(validity: float, interval: float, holds: float) -> None:
    assert Keeper(validity, 0.0, interval).hold_s == pytest.approx(holds)


@given(st.floats(0, 1000), st.floats(0.1, 1000), st.floats(0, 1e6), st.booleans())
def test_until_is_when_current_becomes_next_and_not_before(
    validity: float, interval: float, now: float, fails: bool
) -> None:
    keeper = Keeper(validity, 0.25, interval)
    keeper.observed(0.5, "full", now)
    if fails:
        keeper.failed("away", now)
    until = keeper.until(now)
    assert until is not None
    assert keeper.current(math.nextafter(until, -math.inf)).value == 0.5
    assert keeper.current(until) == keeper.next(now)
    assert keeper.current(until).value == 0.25
    assert keeper.until(until) is None


def test_a_dead_control_that_never_says_failed_lets_the_factor_run_out_too() -> None:
    keeper = Keeper(120, 1.0, 60)
    keeper.observed(0.0, "broker 1 …", 1000.0)
    assert keeper.current(1179.9) == Factor(0.0, "valid", "broker 1 …", 1000.0)
    assert keeper.current(1180.0) == Factor(1.0, "fallback", "no valid throttle factor for more than 180 s", 1000.0)


def test_without_any_validity_the_first_failure_brings_the_fallback() -> None:
    keeper = Keeper(0, 0.0, 60)
    keeper.observed(1.0, "", 0.0)
    keeper.failed("away", 60.0)
    assert keeper.current(60.0).origin == "fallback"


def test_without_any_validity_a_recalculation_that_takes_a_moment_does_not_let_the_fallback_in() -> None:
    keeper = Keeper(30, 0.0, 60)
    for started in (0.0, 60.0, 120.0):
        assert keeper.current(started + 0.2).value == (1.0 if started else 0.0)
        keeper.observed(1.0, "", started + 0.3)
    # but for half an interval only: then nobody is calculating any more
    assert keeper.until(120.3) == pytest.approx(210.3)


def test_a_failure_that_comes_sooner_than_the_success_did_ends_the_factor_when_its_time_is_over() -> None:
    keeper = Keeper(0, 0.0, 60)
    keeper.observed(1.0, "", 2.0)
    keeper.failed("refused", 60.1)
    assert keeper.current(60.1).origin == "kept"
    assert keeper.until(60.1) == 62.0


def test_a_clock_that_stands_still_changes_nothing() -> None:
    keeper = Keeper(120, 0.0, 60)
    keeper.observed(1.0, "", 5.0)
    for _ in range(10):
        keeper.failed("away", 5.0)
    assert keeper.current(5.0) == Factor(1.0, "kept", "", 5.0)


def test_failures_do_not_make_a_factor_last_longer() -> None:
    keeper = Keeper(300, 0.0, 60)
    keeper.observed(1.0, "", 0.0)
    for minute in range(1, 10):
        keeper.failed("away", minute * MINUTE)
        assert keeper.current(minute * MINUTE).origin == ("kept" if minute < 6 else "fallback")


def test_the_fallback_says_since_when_and_why() -> None:
    keeper = Keeper(120, 0.0, 60)
    assert keeper.current(0.0) == Factor(0.0, "fallback", "no valid throttle factor yet", None)
    keeper.failed("broker 3 did\nnot answer", 1.0)
    assert keeper.current(1.0).why == "no valid throttle factor yet: broker 3 did not answer"
    keeper.observed(1.0, "", 2.0)
    keeper.failed("broker 3 did not answer", 62.0)
    assert keeper.next(62.0).why == "no valid throttle factor for more than 180 s: broker 3 did not answer"
    keeper.observed(1.0, "", 122.0)
    assert keeper.next(122.0).why == "no valid throttle factor for more than 180 s"


@pytest.mark.parametrize("nonsense", [-0.1, 1.1, math.nan, math.inf])
def test_what_is_no_factor_is_refused_and_changes_nothing(nonsense: float) -> None:
    keeper = Keeper(120, 1.0, 60)
    keeper.observed(0.5, "", 0.0)
    with pytest.raises(ObservationFailed, match="must be from 0 to 1"):
        keeper.observed(nonsense, "", 60.0)
    assert keeper.current(60.0) == Factor(0.5, "valid", "", 0.0)
    assert keeper.until(60.0) == 180.0


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ((300, 1, 0), "check_interval"),
        ((300, 1, math.nan), "check_interval"),
        ((-1, 1, 60), r"validity\.duration"),
        ((math.inf, 1, 60), r"validity\.duration"),
        ((300, 1.1, 60), r"factor\.fallback"),
        ((300, -0.1, 60), r"factor\.fallback"),
        ((300, math.nan, 60), r"factor\.fallback"),
    ],
)
def test_a_keeper_that_cannot_be_is_refused_by_its_key(arguments: tuple[float, float, float], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        Keeper(*arguments)


# --- Keeper: after a restart ------------------------------------------------------------------------------------------

PAUSED = Factor(0.0, "valid", "broker 1 …")


def test_after_a_restart_what_the_workers_still_hold_goes_on_until_it_runs_out() -> None:
    keeper = Keeper(120, 1.0, 60)
    keeper.adopt(PAUSED, until=1100.0, now=1000.0)
    keeper.failed("broker 2 is away", 1060.0)
    assert keeper.current(1099.0) == Factor(0.0, "kept", "broker 1 …")
    assert keeper.until(1099.0) == 1100.0
    assert keeper.current(1100.0).origin == "fallback"


def test_an_open_factor_is_adopted_too_or_a_pessimistic_fallback_would_stop_everything() -> None:
    keeper = Keeper(120, 0.0, 60)
    keeper.adopt(Factor(1.0, "valid", ""), until=1100.0, now=1000.0)
    assert keeper.current(1000.0) == Factor(1.0, "kept", "")


def test_an_observation_ends_what_was_adopted() -> None:
    keeper = Keeper(120, 1.0, 60)
    keeper.adopt(PAUSED, until=1100.0, now=1000.0)
    keeper.observed(1.0, "", 1001.0)
    assert keeper.current(1001.0).value == 1.0


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_comes_late_never_replaces_an_observation(fails: bool) -> None:
    keeper = Keeper(120, 1.0, 60)
    keeper.observed(1.0, "", 1000.0)
    if fails:
        keeper.failed("away", 1060.0)
    keeper.adopt(PAUSED, until=1200.0, now=1060.0)
    assert keeper.current(1060.0).value == 1.0
    assert keeper.until(1060.0) == 1180.0


def test_of_several_workers_the_youngest_counts_and_of_equally_old_ones_the_lowest() -> None:
    held = [(PAUSED, 1090.0), (Factor(0.5, "kept", "half"), 1100.0), (Factor(0.7, "valid", "more"), 1100.0)]
    for order in itertools.permutations(held):
        keeper = Keeper(120, 1.0, 60)
        for factor, until in order:
            keeper.adopt(factor, until, 1000.0)
        assert keeper.current(1000.0) == Factor(0.5, "kept", "half")
        assert keeper.until(1000.0) == 1100.0


@pytest.mark.parametrize(
    ("factor", "until"),
    [
        (PAUSED, None),  # without an end it was never told
        (PAUSED, 1000.0),
        (PAUSED, math.nan),
        (Factor(0.0, "fallback", ""), 1100.0),
        (Factor(0.0, "fail-safe", ""), 1100.0),
        (Factor(1.5, "valid", ""), 1100.0),
        (Factor(math.nan, "valid", ""), 1100.0),
    ],
)
def test_what_was_not_observed_or_is_over_is_not_adopted(factor: Factor, until: float | None) -> None:
    keeper = Keeper(120, 0.75, 60)
    keeper.adopt(factor, until, 1000.0)
    assert keeper.current(1000.0) == Factor(0.75, "fallback", "no valid throttle factor yet")


def test_a_validity_shortened_at_the_restart_holds_for_what_is_adopted_too() -> None:
    keeper = Keeper(0, 1.0, 60)
    keeper.adopt(PAUSED, until=1300.0, now=1000.0)
    assert keeper.until(1000.0) == 1060.0


# --- SnapshotView -----------------------------------------------------------------------------------------------------


def test_without_a_policy_only_the_limits_count_that_snapshots_bring() -> None:
    made = SnapshotView(180)
    own = volume(15 * GB)._replace(soft=Limit("MinFreeBytes", 20 * GB), hard=Limit("MinFreeBytes", 10 * GB))
    made.active([1], 1000.0)
    made.put(1, Snapshot(1, 1000.0, (own,)))
    assert made.current(1000.0, 1000.0).factor.value == 0.5
    made.put(1, Snapshot(1, 1000.0, (volume(0),)))
    assert made.current(1000.0, 1000.0).factor.value == 1


def view(fail_safe: str = "PAUSE", policy: SoftHard | MinAvailable = SOFT_HARD, **frees: float) -> SnapshotView:
    """Brokers b1=free GB, …, all active and described at 1000."""
    made = SnapshotView(180, fail_safe, policy)  # type: ignore[arg-type]
    for name, free in frees.items():
        made.put(int(name[1:]), snapshot(int(name[1:]), free))
    made.active([int(name[1:]) for name in frees], 1000.0)
    return made


def snapshot(broker_id: int, free: float, at: float = 1000.0) -> Snapshot:
    return Snapshot(broker_id, at, (volume(free * GB, broker_id),))


def test_a_snapshot_is_fresh_until_it_is_as_old_as_the_maximum() -> None:
    made = view(b1=50)
    made.active([1], 1100.0)
    assert made.until(1100.0, 1100.0) == 1180.0
    assert made.current(1179.999, 1179.999).factor.value == 1
    assert made.current(1180.0, 1180.0).reasons == {1: "stale"}
    assert made.until(1180.0, 1180.0) == 1280.0  # the list's own end


def test_a_snapshot_from_the_future_is_known_up_to_60_s_exactly() -> None:
    made = view(b1=50)
    made.put(1, snapshot(1, 50, at=1060.0))
    assert made.current(1000.0, 1000.0).factor == Factor(1.0, "valid", "")
    made.put(1, snapshot(1, 50, at=1060.001))
    assert made.current(1000.0, 1000.0).reasons == {1: "ahead"}
    assert made.current(1000.0, 1000.0).factor.value == 0
    # it becomes one of the present by itself
    assert made.until(1000.0, 1000.0) == pytest.approx(1000.001)
    due = made.until(1000.0, 1000.0) or 0.0
    assert made.current(due + 1e-6, due + 1e-6).reasons == {}
    assert made.next(1000.0, 1000.0) == Factor(1.0, "valid", "")


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
        made.put(broker_id, snapshot(broker_id, 9 if broker_id == 1 else 50, at))
    made.active([1, 2, 3], listed)
    before = made.current(wall, wall)
    until = made.until(wall, wall)
    if until is None:
        until = wall + 1e9
    assert until > wall
    soon = until - min(1e-6, (until - wall) / 2)
    after = made.current(soon, soon)
    assert (after.factor, after.reasons) == (before.factor, before.reasons)


def test_a_tombstone_leaves_an_active_broker_without_a_snapshot() -> None:
    made = view(b1=50, b2=50)
    made.put(2, None)
    made.put(7, None)  # never had one
    assert made.current(1000.0, 1000.0).reasons == {2: "missing"}
    made.active([1], 1000.0)
    assert made.current(1000.0, 1000.0).factor.value == 1


def test_a_snapshot_without_volumes_says_nothing_about_its_broker() -> None:
    made = view(b1=50)
    made.put(1, Snapshot(1, 1000.0, ()))
    assert made.current(1000.0, 1000.0).reasons == {1: "missing"}


def test_the_last_record_counts_even_if_its_clock_went_back() -> None:
    """A broker whose clock was a year ahead must be heard again once that is mended."""
    made = view(b1=50)
    made.put(1, snapshot(1, 50, at=1000.0 + 3e7))
    assert made.current(1010.0, 1010.0).reasons == {1: "ahead"}
    made.put(1, snapshot(1, 50, at=1005.0))
    assert made.current(1010.0, 1010.0).reasons == {}


def test_the_list_of_active_brokers_ages_like_a_snapshot() -> None:
    made = view(b1=50)
    made.put(1, snapshot(1, 50, at=1150.0))
    made.active_failed("DescribeCluster: timed out")
    assert made.current(1179.0, 1179.0).factor.value == 1
    said = made.current(1180.0, 1180.0)
    assert said.factor.value == 0
    assert said.problem == "the list of active brokers is not younger than 180 s: DescribeCluster: timed out"
    made.active([1], 1181.0)
    assert made.current(1181.0, 1181.0).factor == Factor(1.0, "valid", "")


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_wall_clock_that_is_set_right_does_not_age_the_list(step: float) -> None:
    made = view(b1=50)
    made.put(1, snapshot(1, 50, at=1000.0 + step))
    assert made.current(1000.0, 1000.0).reasons
    assert made.current(1001.0 + step, 1001.0).factor == Factor(1.0, "valid", "")
    assert made.until(1001.0 + step, 1001.0) == 1180.0


def test_the_list_has_a_bound_of_its_own() -> None:
    made = SnapshotView(180, "PAUSE", SOFT_HARD, list_age_s=600)
    made.active([1], 50.0)
    for wall in (1000.0, 1400.0, 1599.0):
        made.put(1, snapshot(1, 50, at=wall))
        assert made.current(wall, wall - 950.0).factor == Factor(1.0, "valid", "")
    assert made.current(1600.0, 650.0).problem == "the list of active brokers is not younger than 600 s"
    with pytest.raises(ValueError, match="list of brokers"):
        SnapshotView(180, list_age_s=0)


def test_no_active_broker_at_all_is_no_view() -> None:
    made = view(b1=50)
    made.active([], 1000.0)
    assert made.current(1000.0, 1000.0).factor == Factor(0.0, "fail-safe", "no broker is active")


def test_the_message_of_the_fail_safe_names_some_brokers_and_stays_the_same_while_they_age() -> None:
    made = view(b1=50)
    made.active([1, 2, 3, 4], 1000.0)
    assert made.current(1000.0, 1000.0).factor.why.count("broker ") == 3
    assert "more are unknown" not in made.current(1000.0, 1000.0).factor.why
    made.active(range(1, 8), 1000.0)
    made.put(2, snapshot(2, 50, at=500.0))
    made.put(3, snapshot(3, 50, at=5000.0))
    text = (
        "broker 2 has no snapshot younger than 180 s, broker 3 has a snapshot more than 60 s ahead of this clock,"
        " broker 4 has no snapshot of its volumes, 3 more are unknown"
    )
    assert made.current(1000.0, 1000.0).factor.why == text
    assert made.current(1050.0, 1050.0).factor.why == text


def test_where_a_known_volume_pauses_anyway_the_message_names_that_one() -> None:
    made = view(b1=9, b2=50)
    made.put(2, None)
    said = made.current(1000.0, 1000.0)
    assert said.factor.origin == "fail-safe"
    assert said.factor.why == "broker 1 volume /data/0: 9.0 GB of 100.0 GB free, hard limit at 10.0 GB"
    assert not said.lacks_data


def test_throttling_for_lack_of_data_is_told_from_throttling_for_full_volumes() -> None:
    assert not view(b1=15).current(1000.0, 1000.0).lacks_data
    assert view(b1=15).current(1500.0, 1500.0).lacks_data
    assert not view("OPEN", b1=15).current(1500.0, 1500.0).lacks_data


def test_a_pause_is_not_ended_by_a_view_that_lacks_the_volume_that_paused() -> None:
    made = view("OPEN", b1=9, b2=50)
    assert made.current(1000.0, 1000.0).factor.value == 0
    made.put(1, None)
    assert made.current(1001.0, 1001.0).factor.value == 1  # unknown, and OPEN is what was asked for
    made.put(1, snapshot(1, 10.5))
    assert made.current(1002.0, 1002.0).factor.value == 0  # still in the band in which its PAUSE goes on
    made.put(1, snapshot(1, 12))
    assert made.current(1003.0, 1003.0).factor.value == 0.2
    made.put(1, snapshot(1, 10.5))
    assert made.current(1004.0, 1004.0).factor.value == 0.05


def test_a_restarted_gateway_goes_on_with_its_workers_pause() -> None:
    fresh, restarted = view(b1=10.5), view(b1=10.5)
    restarted.paused = True
    assert fresh.current(1000.0, 1000.0).factor.value == 0.05
    assert restarted.current(1000.0, 1000.0).factor.value == 0


def test_a_policy_that_gives_no_factor_takes_the_fail_safe() -> None:
    class Odd(SoftHard):
        def quota_factor(self, volume: Volume) -> float:
            return 2.0

    said = view("PAUSE", Odd(), b1=50).current(1000.0, 1000.0)
    assert (said.factor.value, said.factor.origin) == (0.0, "fail-safe")
    assert said.problem == said.factor.why == "Odd: factor 2.0 for broker 1 volume /data/0 must be from 0 to 1"
    assert view("OPEN", Odd(), b1=50).current(1000.0, 1000.0).factor.value == 1.0


@pytest.mark.parametrize("age", [0, -1, math.nan, math.inf])
def test_a_maximum_age_that_is_none_is_refused(age: float) -> None:
    with pytest.raises(ValueError, match="max_age"):
        SnapshotView(age, "PAUSE", SOFT_HARD)


def test_a_fail_safe_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="SHUT must be PAUSE or OPEN"):
        SnapshotView(180, "SHUT", SOFT_HARD)  # type: ignore[arg-type]


def test_a_finding_says_when_it_would_release() -> None:
    assert Finding(volume(1), 0.0, 20.0, 10.0).release_free == 11.0
    assert Finding(volume(1), 0.0, 10.0, 10.0).release_free is None
    assert Finding(volume(1), 0.0, None, 10.0).release_free is None
