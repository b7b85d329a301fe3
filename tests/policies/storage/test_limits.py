# Limits at their edges, and what must hold whatever the sizes are.

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from policies.storage import (
    LimitError,
    LimitType,
    MinAvailable,
    SoftHard,
    Volume,
    VolumeLimit,
    assess_volumes,
)
from tests.policies.storage.storage_play import (
    GB,
    SOFT_HARD,
    policies,
    volume,
    volumes,
)


@pytest.mark.seed("DISK.23", "035.10")
@given(st.integers(0, 10_000), st.integers(1, 10_000))
@example(29, 100)  # 0.29 * 100 is 28.999999999999996
@example(7, 100)  # 0.07 * 100 is 7.000000000000001
def test_a_volume_with_exactly_the_share_free_has_reached_it_and_one_byte_more_has_not(part: int, total: int) -> None:
    assume(part < total)
    for policy in (SoftHard(hard=VolumeLimit("MinFreePercentage", part / total)), MinAvailable(ratio=part / total)):
        assert policy.breaches_hard_limit(Volume(1, "a", total, part))
        assert not policy.breaches_hard_limit(Volume(1, "a", total, part + 1))


@pytest.mark.seed("035.10")
@pytest.mark.parametrize(("total", "reached"), [(10, 0), (30, 1)])  # 5 % are half a byte, and one and a half
def test_a_percentage_of_a_tiny_volume_may_be_no_whole_number_of_bytes(total: int, reached: int) -> None:
    policy = SoftHard(hard=VolumeLimit("MinFreePercentage", 0.05))
    assert policy.quota_factor(Volume(1, "a", total, reached)) == 0
    assert policy.quota_factor(Volume(1, "a", total, reached + 1)) == 1


@pytest.mark.seed("DISK.34")
@pytest.mark.parametrize(
    "policy", [MinAvailable(bytes=0), MinAvailable(ratio=0), SoftHard(hard=VolumeLimit("MinFreeBytes", 0))]
)
def test_a_level_of_zero_pauses_only_when_nothing_is_free(policy: MinAvailable | SoftHard) -> None:
    assert policy.quota_factor(volume(1)) == 1
    assert policy.quota_factor(volume(0)) == 0


@pytest.mark.seed("DISK.35")
def test_a_ratio_of_one_pauses_always() -> None:
    assert MinAvailable(ratio=1).quota_factor(volume(100 * GB)) == 0


def test_a_consumed_limit_beyond_the_volumes_size_is_reached_when_it_is_full() -> None:
    hard = VolumeLimit("ConsumedBytes", 200 * GB)
    for policy in (SoftHard(hard=hard), SoftHard(VolumeLimit("ConsumedBytes", 150 * GB), hard)):
        assert policy.quota_factor(volume(1)) == 1
        full = assess_volumes([volume(0)], policy, False)
        assert (full.factor, full.reason_text) == (
            0,
            "broker 1 volume /data/0: 0 B of 100.0 GB free, hard limit at 0 B",
        )


@pytest.mark.parametrize(("total", "available"), [(0, 0), (-1, -1), (100, -1), (-1, 100)])
@pytest.mark.parametrize(
    "policy",
    [
        MinAvailable(bytes=0),
        MinAvailable(ratio=0),
        SoftHard(hard=VolumeLimit("ConsumedBytes", 10)),
        SoftHard(hard=VolumeLimit("MinFreePercentage", 0)),
        SoftHard(soft=VolumeLimit("MinFreeBytes", 0)),
    ],
)
def test_a_volume_whose_sizes_cannot_be_true_counts_as_full(
    total: int, available: int, policy: MinAvailable | SoftHard
) -> None:
    broken = Volume(1, "/data", total, available)
    assert broken.available_ratio == 0
    assert policy.breaches_hard_limit(broken)
    assert policy.breaches_soft_limit(broken) or policy.levels(broken)[0] is None
    assert assess_volumes((broken,), policy, False).reason_text.startswith("broker 1 volume /data: size unknown")


def test_without_any_limit_even_a_full_volume_leaves_everything() -> None:
    assert assess_volumes((volume(0), Volume(1, "b", -1, -1)), SoftHard(), False).factor == 1
    assert SoftHard().levels(volume(0)) == (None, None)


def test_soft_at_or_below_hard_on_some_volume_leaves_the_hard_limit_alone() -> None:
    policy = SoftHard(VolumeLimit("MinFreePercentage", 0.1), VolumeLimit("MinFreeBytes", 10 * GB))
    for total in (100 * GB, 50 * GB):  # soft at 10 and 5 GB
        assert policy.quota_factor(volume(10 * GB + 1, total=total)) == 1
        assert policy.quota_factor(volume(10 * GB, total=total)) == 0
    assert policy.quota_factor(volume(15 * GB, total=200 * GB)) == 0.5


def test_a_soft_limit_alone_throttles_down_to_the_volumes_end() -> None:
    policy = SoftHard(soft=VolumeLimit("MinFreeBytes", 20 * GB))
    assert [policy.quota_factor(volume(free * GB)) for free in (20, 10, 5, 0)] == [1, 0.5, 0.25, 0]


@pytest.mark.seed("035.30")
def test_a_volumes_own_limits_win_each_by_itself() -> None:
    own = volume(15 * GB)._replace(hard=VolumeLimit("ConsumedBytes", 86 * GB))  # 14 GB free
    assert SOFT_HARD.levels(own) == (20 * GB, 14 * GB)
    assert SOFT_HARD.levels(own._replace(soft=VolumeLimit("MinFreePercentage", 0.16))) == (16 * GB, 14 * GB)
    assert SOFT_HARD.quota_factor(own._replace(soft=VolumeLimit("MinFreePercentage", 0.16))) == 0.5


@pytest.mark.seed("DISK.18")
def test_min_available_is_one_value_for_all_volumes_despite_their_own_limits() -> None:
    own = volume(15 * GB)._replace(soft=VolumeLimit("MinFreeBytes", 50 * GB), hard=VolumeLimit("MinFreeBytes", 40 * GB))
    assert MinAvailable(bytes=GB).quota_factor(own) == 1
    assert MinAvailable(bytes=GB).levels(own) == (None, GB)


@pytest.mark.seed("DISK.34", "DISK.35")
def test_a_ratio_out_of_range_is_refused_by_its_own_key() -> None:
    with pytest.raises(LimitError, match=r"min\.available\.ratio: 1\.01 must be a share from 0 to 1"):
        MinAvailable(ratio=1.01)
    with pytest.raises(LimitError, match=r"min\.available\.bytes: -1 must be"):
        MinAvailable(bytes=-1)


@pytest.mark.parametrize(
    ("type_", "soft", "hard"), [("MinFreeBytes", 1, 2), ("ConsumedBytes", 2, 1), ("MinFreePercentage", 0.1, 0.2)]
)
def test_a_soft_limit_that_comes_after_the_hard_one_on_every_volume_is_refused(
    type_: LimitType, soft: float, hard: float
) -> None:
    with pytest.raises(LimitError, match=rf"the soft limit \({type_} .*\) must be reached before the hard limit"):
        SoftHard(VolumeLimit(type_, soft), VolumeLimit(type_, hard))
    SoftHard(VolumeLimit(type_, hard), VolumeLimit(type_, soft))
    SoftHard(VolumeLimit(type_, hard), VolumeLimit(type_, hard))


@pytest.mark.seed("035.26")
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


@pytest.mark.seed("035.19")
@given(volumes(), policies(), st.integers(0, 2**60))
def test_less_free_never_means_a_higher_factor(one: Volume, policy: MinAvailable | SoftHard, less: int) -> None:
    fuller = one._replace(available=max(0, one.available - less))
    assert policy.quota_factor(fuller) <= policy.quota_factor(one)


@pytest.mark.seed("035.8")
@given(volumes(own=False), st.integers(0, 2**60))
def test_a_minimum_of_free_bytes_is_the_same_limit_however_it_is_written(one: Volume, level: int) -> None:
    consumed = SoftHard(hard=VolumeLimit("ConsumedBytes", one.total - level)) if level <= one.total else None
    said = {
        MinAvailable(bytes=level).quota_factor(one),
        SoftHard(hard=VolumeLimit("MinFreeBytes", level)).quota_factor(one),
    }
    # beyond 2**53 bytes a level is a float and no longer exact to the byte
    if consumed is not None and max(one.total, level) < 2**53:
        said.add(consumed.quota_factor(one))
    if max(one.available, level) < 2**53:
        assert len(said) == 1
