# Limits so small that nobody means them.

from __future__ import annotations

import pytest

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.definitions.small_limits import MAX_LISTED, SMALL_RATE, small_limit_text, small_limit_warnings
from policies.explain import explain_traffic
from policies.groups.names import DISPATCH_BYTES, PUBLISH_BYTES, PUBLISH_MSGS
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.store import QuotaStore
from tests.policies.explain.explain_play import (
    ALICE,
    ASKED,
    BPS,
    BROKER_BPS,
    CLICKS,
    CONSUME,
    SHARES,
    TIME,
    TOTAL,
    known,
    quota,
)

BYTES = [
    TOTAL, CLICKS, quota(ALICE, BPS), quota(ALICE, BROKER_BPS), quota(ALICE, CONSUME),
    PolicyKey.of_group("gold", PUBLISH_BYTES), PolicyKey.of_group("gold", DISPATCH_BYTES),
]  # fmt: skip


@pytest.mark.parametrize("key", BYTES, ids=str)
def test_a_limit_below_one_batch_in_the_longest_wait_is_a_warning(key: PolicyKey) -> None:
    (warning,) = small_limit_warnings({key: 10.0})
    assert warning.startswith(f"{key}: 10 bytes/s is less than one usual batch of 16 KiB in 10 s")
    assert warning in PolicySet({key: 10.0}).collect_warnings()
    assert small_limit_warnings({key: SMALL_RATE}) == []
    assert len(small_limit_warnings({key: SMALL_RATE - 0.1})) == 1


@pytest.mark.parametrize("key", [quota(ALICE, SHARES), quota(ALICE, TIME), PolicyKey.of_group("gold", PUBLISH_MSGS),
                                 PolicyKey.of_group("gold")], ids=str)  # fmt: skip
def test_other_units_may_be_small(key: PolicyKey) -> None:
    assert small_limit_warnings({key: 1.0}) == []


def test_nothing_at_all_is_meant() -> None:
    assert small_limit_warnings({CLICKS: 0.0}) == []
    assert small_limit_text(None) == ""


def test_many_are_told_by_their_number() -> None:
    warnings = small_limit_warnings({quota(Entity(f"user-{i:03}"), BPS): 5.0 for i in range(100)})
    assert len(warnings) == MAX_LISTED + 1
    assert "user-000" in warnings[0]
    assert warnings[-1] == "80 more limits are as small"


@pytest.mark.parametrize("key", [TOTAL, CLICKS, quota(ALICE, BPS)], ids=str)
def test_explain_notes_it(key: PolicyKey) -> None:
    notes = explain_traffic(ASKED, known({TOTAL: 10.0**7, key: 10.0})).notes
    assert any("10 bytes/s is less than one usual batch" in note for note in notes)
    assert not any("usual batch" in note for note in explain_traffic(ASKED, known({TOTAL: 10.0**7, key: 5000.0})).notes)


def test_explain_notes_those_of_brokers_too() -> None:
    entries = {ALICE: {QuotaKey.parse("producer_byte_rate"): 10.0}}
    notes = explain_traffic(ASKED, known(broker_quotas=QuotaStore.from_broker(entries))).notes
    assert any("10 bytes/s is less than one usual batch" in note for note in notes)
