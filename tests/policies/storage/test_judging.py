# All volumes judged: the worst one, hysteresis, messages.

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.storage import (
    MinAvailable,
    ObservationFailed,
    SoftHard,
    Volume,
    VolumeAssessment,
    VolumeFinding,
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

# --- the cluster ------------------------------------------------------------------------------------------------------


@pytest.mark.seed("DISK.7", "DISK.14")
@given(st.lists(volumes(), max_size=8), policies(), st.booleans(), st.randoms(use_true_random=False))
def test_the_worst_volume_decides_in_any_order_and_any_number_of_descriptions(
    many: list[Volume], policy: MinAvailable | SoftHard, paused: bool, random: object
) -> None:
    said = assess_volumes(many, policy, paused)
    shuffled = many + many[::2]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert assess_volumes(shuffled, policy, paused) == said
    assert said.factor <= min((policy.quota_factor(one) for one in many), default=1.0)
    assert said.still_paused or said.factor == min((policy.quota_factor(one) for one in many), default=1.0)
    assert (said.worst is None) is (not many)
    assert bool(said.reason_text) is (said.factor < 1)
    assert "\n" not in said.reason_text


@pytest.mark.seed("DISK.7")
@pytest.mark.parametrize("policy", [MinAvailable(bytes=GB), SOFT_HARD])
def test_descriptions_of_one_volume_that_differ_only_in_its_limits_have_one_order(
    policy: MinAvailable | SoftHard,
) -> None:
    limits = None, VolumeLimit("MinFreeBytes", GB), VolumeLimit("MinFreePercentage", 0.1)
    many = [volume(50 * GB)._replace(soft=soft, hard=hard) for soft in limits for hard in limits]
    assert assess_volumes(many, policy, False) == assess_volumes(many[::-1], policy, False)


@given(st.lists(volumes(), max_size=8), policies())
def test_hysteresis_only_ever_lengthens_a_pause(many: list[Volume], policy: MinAvailable | SoftHard) -> None:
    fresh, again = assess_volumes(many, policy, False), assess_volumes(many, policy, True)
    assert not fresh.still_paused
    assert again.factor in (0.0, fresh.factor)
    if again.factor != fresh.factor:
        assert again.still_paused
        assert again.worst is not None
        assert again.worst.is_short_of_release
    # asking again on the same observation changes nothing any more
    assert assess_volumes(many, policy, fresh.paused).factor == fresh.factor
    assert assess_volumes(many, policy, again.paused) == again


def test_no_volume_at_all_limits_nothing() -> None:
    assert assess_volumes((), SOFT_HARD, True) == VolumeAssessment(1.0, (), None)
    assert assess_volumes((), SOFT_HARD, True).reason_text == ""
    assert not assess_volumes((), SOFT_HARD, True).paused


def test_of_equally_bad_volumes_the_fuller_one_is_named() -> None:
    said = assess_volumes((volume(0.9 * GB, 1), volume(0.2 * GB, 2), volume(50 * GB, 3)), MinAvailable(bytes=GB), False)
    assert said.worst is not None
    assert said.worst.volume.broker_id == 2
    assert [finding.volume.broker_id for finding in said.hard_limit_findings] == [1, 2]


@pytest.mark.parametrize("nonsense", [-0.1, 1.1, math.nan])
def test_a_foreign_policy_that_gives_no_factor_is_no_observation(nonsense: float) -> None:
    class Odd(SoftHard):
        def quota_factor(self, volume: Volume) -> float:
            return nonsense

    with pytest.raises(
        ObservationFailed, match=rf"Odd: factor {nonsense} for broker 1 volume /data/0 must be from 0 to 1"
    ):
        assess_volumes((volume(1),), Odd(), False)


# --- hysteresis -------------------------------------------------------------------------------------------------------


def states(policy: SoftHard | MinAvailable, *observations: tuple[Volume, ...]) -> list[float]:
    """The factors of one observation after the other."""
    factors, paused = [], False
    for observation in observations:
        said = assess_volumes(observation, policy, paused)
        factors.append(round(said.factor, 3))
        paused = said.paused
    return factors


@pytest.mark.seed("035.18")
def test_a_pause_ends_when_more_than_a_tenth_of_the_way_to_soft_is_free_again() -> None:
    frees = (12, 10, 10.5, 11, 11.001, 10.5, 20, 10.5)
    said = states(SOFT_HARD, *((volume(free * GB),) for free in frees))
    assert said == [0.2, 0, 0, 0, 0.1, 0.05, 1, 0.05]


def test_the_limit_at_which_a_pause_ends_is_told() -> None:
    said = assess_volumes((volume(10.5 * GB),), SOFT_HARD, True)
    assert said.still_paused
    assert said.hard_limit_findings == ()
    assert (
        said.reason_text == "broker 1 volume /data/0: 10.5 GB of 100.0 GB free, paused until more than 11.0 GB are free"
    )


def test_a_pause_by_a_minimum_ends_with_the_next_free_byte() -> None:
    assert states(MinAvailable(bytes=GB), (volume(GB),), (volume(GB + 1),), (volume(GB),)) == [0, 1, 0]


def test_a_pause_by_a_hard_limit_without_a_soft_one_ends_with_the_next_free_byte() -> None:
    policy = SoftHard(hard=VolumeLimit("MinFreeBytes", GB))
    assert states(policy, (volume(GB),), (volume(GB + 1),)) == [0, 1]


def test_with_soft_not_above_hard_there_is_no_band() -> None:
    policy = SoftHard(VolumeLimit("MinFreePercentage", 0.1), VolumeLimit("MinFreeBytes", 10 * GB))
    assert states(policy, (volume(10 * GB),), (volume(10 * GB + 1),)) == [0, 1]


def test_a_pause_goes_on_when_the_volume_that_paused_is_gone_and_another_is_close_to_its_limit() -> None:
    paused, other = volume(9 * GB, 1), volume(10.8 * GB, 2)
    assert states(SOFT_HARD, (paused, other), (other,), (volume(11.2 * GB, 2),)) == [0, 0, 0.12]


def test_a_pause_is_over_when_the_volume_that_paused_is_gone_and_no_other_is_close() -> None:
    assert states(SOFT_HARD, (volume(9 * GB, 1), volume(50 * GB, 2)), (volume(50 * GB, 2),)) == [0, 1]


def test_the_volume_that_holds_a_pause_need_not_be_the_one_with_the_lowest_rate_by_bytes() -> None:
    """Limits differ by volume: each is measured on its own way from hard to soft."""
    wide = volume(30 * GB, 1)._replace(
        soft=VolumeLimit("MinFreeBytes", 210 * GB), hard=VolumeLimit("MinFreeBytes", 10 * GB)
    )
    tight = volume(11.5 * GB, 2)
    said = assess_volumes((wide, tight), SOFT_HARD, True)  # wide: released above 30 GB; tight: above 11 GB
    assert said.factor == 0
    assert said.worst is not None
    assert said.worst.volume is wide
    assert assess_volumes((wide._replace(available=31 * GB), tight), SOFT_HARD, True).factor == pytest.approx(0.105)


def test_a_pause_that_is_not_over_survives_one_that_has_no_band() -> None:
    hard_only = volume(0, 2)._replace(soft=VolumeLimit("MinFreeBytes", 5), hard=VolumeLimit("MinFreeBytes", 5))
    band = volume(10.5 * GB, 1)
    emptied = hard_only._replace(available=GB)
    assert states(SOFT_HARD, (volume(9 * GB),), (band, hard_only), (band, emptied)) == [0, 0, 0]
    # one that has no band doesn't begin what only limits with a band have
    assert states(SOFT_HARD, (band, hard_only), (band, emptied)) == [0, 0.05]


def test_a_volume_at_its_hard_limit_is_named_before_one_that_only_holds_a_pause() -> None:
    hard_only = volume(50 * GB, 2)._replace(
        soft=VolumeLimit("MinFreeBytes", 60 * GB), hard=VolumeLimit("MinFreeBytes", 60 * GB)
    )
    said = assess_volumes((volume(10.5 * GB, 1), hard_only), SOFT_HARD, True)
    assert said.reason_text == "broker 2 volume /data/0: 50.0 GB of 100.0 GB free, hard limit at 60.0 GB"


def test_of_several_volumes_that_hold_a_pause_the_one_closest_to_its_limit_is_named() -> None:
    said = assess_volumes((volume(10.9 * GB, 1), volume(10.1 * GB, 2), volume(10.5 * GB, 3)), SOFT_HARD, True)
    assert said.reason_text.startswith("broker 2 ")


def test_a_byte_above_the_limit_is_no_pause_even_where_floats_cannot_tell() -> None:
    policy = SoftHard(VolumeLimit("MinFreeBytes", 2**61), VolumeLimit("MinFreeBytes", 2**60))
    assert policy.quota_factor(Volume(1, "a", 2**62, 2**60)) == 0
    assert policy.quota_factor(Volume(1, "a", 2**62, 2**60 + 1)) > 0


def test_without_a_past_the_band_is_throttled_and_not_paused() -> None:
    assert states(SOFT_HARD, (volume(10.5 * GB),)) == [0.05]


# --- messages ---------------------------------------------------------------------------------------------------------


def test_the_message_names_broker_and_volume_and_how_far_it_is() -> None:
    low = Volume(2, "/data/kafka-logs", 100 * GB, 900_000_000)
    assert (
        assess_volumes((low,), MinAvailable(bytes=GB), False).reason_text
        == "broker 2 volume /data/kafka-logs: 0.9 GB of 100.0 GB free, hard limit at 1.0 GB"
    )
    policy = SoftHard(VolumeLimit("MinFreePercentage", 0.1), VolumeLimit("MinFreeBytes", GB))
    assert (
        assess_volumes((low._replace(available=5 * GB),), policy, False).reason_text
        == "broker 2 volume /data/kafka-logs: 5.0 GB of 100.0 GB free, between soft limit 10.0 GB and hard limit 1.0 GB"
    )
    assert assess_volumes((low._replace(available=50 * GB),), policy, False).reason_text == ""


def test_a_foreign_name_neither_breaks_the_line_nor_fills_the_message() -> None:
    said = assess_volumes((volume(0, name="/data\r\nERROR " + "x" * 10_000),), MinAvailable(bytes=GB), False)
    assert "\n" not in said.reason_text
    assert "\r" not in said.reason_text
    assert len(said.reason_text) < 300


def test_a_finding_says_when_it_would_release() -> None:
    assert VolumeFinding(volume(1), 0.0, 20.0, 10.0).release_free == 11.0
    assert VolumeFinding(volume(1), 0.0, 10.0, 10.0).release_free is None
    assert VolumeFinding(volume(1), 0.0, None, 10.0).release_free is None
