# Values of an answer: utilization, what is in force, and texts of levels and rules.

from __future__ import annotations

import math

import pytest

from policies.decision import Mode
from policies.explain import quota_in_force
from policies.limits.limit_use import limit_utilization
from policies.storage import StorageFactor
from tests.policies.explain.explain_play import (
    ALICE,
    BPS,
    BROKER_BPS,
    CONSUME,
    MB,
    SHARES,
    TIME,
    TOTAL,
    known,
    quota,
)


@pytest.mark.parametrize(
    ("rate", "limit", "ratio"), [(1.0, 2.0, 0.5), (3.0, 2.0, 1.5), (0.0, 0.0, 0.0), (1.0, 0.0, math.inf)]
)
def test_utilization_is_rate_by_limit_and_not_capped(rate: float, limit: float, ratio: float) -> None:
    assert limit_utilization(rate, limit) == ratio


def test_without_a_limit_or_a_rate_there_is_none() -> None:
    assert math.isnan(limit_utilization(1.0, None))
    assert math.isnan(limit_utilization(None, 1.0))


def test_the_factor_is_part_of_what_is_in_force_for_bytes_that_are_produced() -> None:
    base = {quota(ALICE, key): 50.0 for key in (BPS, BROKER_BPS, SHARES, TIME, CONSUME)} | {TOTAL: 12.0 * MB}
    modes: tuple[tuple[StorageFactor | None, Mode, float], ...] = (
        (None, "enforce", 50.0), (StorageFactor(0.5), "enforce", 25.0), (StorageFactor(0.0), "enforce", 0.0),
        (StorageFactor(1.0), "enforce", 50.0), (StorageFactor(0.5), "observe", 50.0),
    )  # fmt: skip
    for storage, mode, produce in modes:
        state = known(base, storage=storage, storage_mode=mode)
        found = {each.key: quota_in_force(state, each) for each in state.policies.quota_store().effective_quotas(ALICE)}
        assert found == {BPS: produce, BROKER_BPS: produce, SHARES: 50.0, TIME: 50.0, CONSUME: 50.0}
