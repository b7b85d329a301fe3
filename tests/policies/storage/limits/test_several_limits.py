# Several limits at once: which one counts, and that it is named.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.storage import LimitError, PlaceLimits, SoftHard, Volume, VolumeLimit, assess_volumes
from tests.policies.storage.storage_play import GB, limits, volume, volumes

TEN = VolumeLimit("MinFreeBytes", 10 * GB)
FIVE_PERCENT = VolumeLimit("MinFreePercentage", 0.05)


@given(volumes(own=False), st.lists(limits(), max_size=4), st.lists(limits(), min_size=1, max_size=4))
def test_of_several_the_strictest_counts(one: Volume, soft: list[VolumeLimit], hard: list[VolumeLimit]) -> None:
    try:
        policy = SoftHard(soft, hard)
    except LimitError:
        return  # a soft limit behind a hard one of its type
    alone = [SoftHard(None, each) for each in hard]
    assert policy.breaches_hard_limit(one) == any(each.breaches_hard_limit(one) for each in alone)
    every = [SoftHard(each) for each in soft]
    assert policy.breaches_soft_limit(one) == any(each.breaches_soft_limit(one) for each in every)
    assert policy.quota_factor(one) <= min(each.quota_factor(one) for each in alone)


@pytest.mark.parametrize(
    ("total", "free", "factor", "said"),
    [
        (100, 10, 0.0, "hard limit at 10.0 GB (MinFreeBytes 10.0 GB)"),
        (100, 10.1, 1.0, ""),
        (1000, 50, 0.0, "hard limit at 50.0 GB (MinFreePercentage 5 %)"),
        (1000, 51, 1.0, ""),
    ],
)
def test_bytes_and_ratio_together(total: float, free: float, factor: float, said: str) -> None:
    found = assess_volumes([volume(free * GB, total=total * GB)], SoftHard(None, [TEN, FIVE_PERCENT]), False)
    assert found.factor == factor
    assert found.reason_text.endswith(said)
    assert bool(found.reason_text) is bool(said)


def test_one_limit_is_not_named() -> None:
    assert assess_volumes([volume(GB)], SoftHard(None, [TEN]), False).reason_text.endswith(
        "free, hard limit at 10.0 GB"
    )


def test_soft_and_hard_may_be_of_different_limits() -> None:
    policy = SoftHard(
        [VolumeLimit("MinFreeBytes", 20 * GB), VolumeLimit("MinFreePercentage", 0.1)], [TEN, FIVE_PERCENT]
    )
    found = assess_volumes([volume(75 * GB, total=1000 * GB)], policy, False)
    assert found.factor == 0.5
    assert found.reason_text.endswith(
        "between soft limit 100.0 GB (MinFreePercentage 10 %) and hard limit 50.0 GB (MinFreePercentage 5 %)"
    )


PLACES = (
    PlaceLimits("3:/data/*", hard=(VolumeLimit("MinFreeBytes", 40 * GB),)),
    PlaceLimits("*:/data/small", soft=(VolumeLimit("MinFreeBytes", 30 * GB),)),
    PlaceLimits("*", hard=(VolumeLimit("MinFreeBytes", GB),)),
)


@pytest.mark.parametrize(
    ("broker_id", "name", "levels", "reasons"),
    [
        (3, "/data/small", (None, 40 * GB), ("", "MinFreeBytes 40.0 GB of volumes 3:/data/*")),  # the first
        (1, "/data/small", (30 * GB, 10 * GB), ("MinFreeBytes 30.0 GB of volumes *:/data/small", "")),
        (13, "/data/1", (None, GB), ("", "MinFreeBytes 1.0 GB of volumes *")),
        (1, "/other", (None, GB), ("", "MinFreeBytes 1.0 GB of volumes *")),
    ],
)  # fmt: skip
def test_the_first_pattern_that_matches_counts(
    broker_id: int, name: str, levels: tuple[float | None, float | None], reasons: tuple[str, str]
) -> None:
    policy = SoftHard(None, TEN, PLACES)
    one = volume(50 * GB, broker_id, name=name)
    assert (policy.levels(one), policy.limit_reasons(one)) == (levels, reasons)


def test_what_a_pattern_means() -> None:
    policy = SoftHard(None, None, [PlaceLimits("1:/a.b", hard=(TEN,))])
    names = ("/a.b", "/axb", "/a.b/c", "/a.b\n")
    assert [policy.levels(volume(GB, 1, name=name))[1] for name in names] == [10 * GB, None, None, None]
    assert policy.levels(volume(GB, 11, name="/a.b"))[1] is None


def test_a_volume_s_own_limits_win_over_patterns() -> None:
    own = volume(5 * GB, 3, name="/data/1")._replace(hard=VolumeLimit("MinFreeBytes", GB))
    assert SoftHard(None, TEN, PLACES).levels(own) == (None, GB)
    assert SoftHard(None, TEN, PLACES).limit_reasons(own) == ("", "")


@pytest.mark.parametrize(
    ("soft", "hard", "said"),
    [
        ((GB,), (2 * GB,), "the soft limit"),
        ((3 * GB, GB), (2 * GB,), "the soft limit"),
    ],
)
def test_a_soft_limit_behind_a_hard_one_of_its_type_is_refused(
    soft: tuple[float, ...], hard: tuple[float, ...], said: str
) -> None:
    early, late = (tuple(VolumeLimit("MinFreeBytes", level) for level in levels) for levels in (soft, hard))
    with pytest.raises(LimitError, match=said):
        SoftHard(early, late)
    with pytest.raises(LimitError, match=rf"volumes 1:/a: {said}"):
        SoftHard(None, None, [PlaceLimits("1:/a", early, late)])
