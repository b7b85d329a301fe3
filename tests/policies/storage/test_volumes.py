# Limits of one volume as free bytes, and what a limit may be.

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.storage import (
    LimitError,
    Observation,
    SoftHard,
    VolumeLimit,
    check_limit,
)
from tests.policies.storage.storage_play import (
    GB,
    volume,
)


@pytest.mark.seed("035.8", "035.9", "035.10")
@pytest.mark.parametrize(
    ("limit", "free"),
    [
        (VolumeLimit("MinFreeBytes", 5), 5.0),
        (VolumeLimit("ConsumedBytes", 70), 30.0),
        (VolumeLimit("ConsumedBytes", 130), 0.0),
        (VolumeLimit("MinFreePercentage", 0.05), 5.0),
        (VolumeLimit("MinFreePercentage", 0), 0.0),
        (VolumeLimit("MinFreePercentage", 1), 100.0),
    ],
)
def test_every_limit_is_so_many_free_bytes_of_a_volume(limit: VolumeLimit, free: float) -> None:
    assert limit.free_bytes(100) == free


@pytest.mark.seed("035.10")
def test_of_a_volume_without_a_size_no_byte_is_a_share() -> None:
    assert VolumeLimit("MinFreePercentage", 0.05).free_bytes(0) == 0.0


@given(st.integers(1, 100), st.integers(1, 300))
def test_a_percentage_as_json_has_it_means_the_same_as_the_whole_bytes(percent: int, hundreds: int) -> None:
    assert VolumeLimit("MinFreePercentage", percent / 100).free_bytes(hundreds * 100) == percent * hundreds


@pytest.mark.parametrize(
    ("limit", "wrong"),
    [
        (VolumeLimit("MinFreeBytes", -1), "hard: -1 must be a finite number, 0 or more"),
        (VolumeLimit("MinFreeBytes", math.inf), "hard: inf must be a finite number, 0 or more"),
        (VolumeLimit("ConsumedBytes", math.nan), "hard: nan must be a finite number, 0 or more"),
        (VolumeLimit("MinFreePercentage", 5), "hard: 5 must be a share from 0 to 1 (0.05 is 5 %)"),
        (
            VolumeLimit("Consumed\nSpace", 1),  # type: ignore[arg-type]
            "hard: Consumed Space must be one of ConsumedBytes, MinFreeBytes, MinFreePercentage",
        ),
    ],
)
def test_a_limit_that_is_none_is_refused_in_one_line(limit: VolumeLimit, wrong: str) -> None:
    with pytest.raises(LimitError) as refused:
        SoftHard(hard=limit)
    assert str(refused.value) == wrong
    with pytest.raises(LimitError, match="soft: "):
        SoftHard(soft=limit)
    with pytest.raises(LimitError, match="snapshot"):
        check_limit(limit, "snapshot of broker 1")


def test_limits_are_written_with_their_unit() -> None:
    assert str(VolumeLimit("MinFreeBytes", GB)) == "MinFreeBytes 1.0 GB"
    assert str(VolumeLimit("MinFreePercentage", 0.05)) == "MinFreePercentage 5 %"
    assert str(VolumeLimit("MinFreePercentage", 0.07)) == "MinFreePercentage 7 %"
    assert f"{VolumeLimit('ConsumedBytes', 9e12)}" == "ConsumedBytes 9.0 TB"


def test_a_broker_with_only_offline_log_dirs_is_not_missing() -> None:
    seen = Observation(frozenset({1, 2, 3}), (volume(GB, 1),), ((2, "/data/0"),))
    assert seen.missing == {3}
