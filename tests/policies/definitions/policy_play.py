# Keys of policies that tests alter, and the shortest way to alter them or to be refused.

from __future__ import annotations

from typing import Any

import pytest

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyError, PolicyFault, PolicyKey, PolicyOperation
from policies.quotas.names import Entity, QuotaKey
from policies.thresholds.values import TOTAL_OUT_KEY

MB = 10**6
AT = 1_700_000_000_000  # now
HOUR = 3_600_000
CLICKS, VIEWS, ORDERS = (PolicyKey.of_topic(name) for name in ("clicks", "views", "orders"))
TOTAL, TOTAL_2, TOTAL_OUT = PolicyKey.of_broker(), PolicyKey.of_broker(2), PolicyKey.of_broker(key=TOTAL_OUT_KEY)
ALICE, BOB = Entity("alice"), Entity("bob")
PRODUCE, SHARES = (QuotaKey("producer_byte_rate", unit) for unit in ("broker_bps", "shares"))
ALICE_RATE, BOB_RATE = PolicyKey.of_quota(ALICE, PRODUCE), PolicyKey.of_quota(BOB, PRODUCE)
ALICE_SHARES = PolicyKey.of_quota(ALICE, SHARES)


def altered(policies: PolicySet, *ops: tuple[Any, ...], **more: Any) -> PolicySet:
    """`ops`: key, value, and when it ends if it does; `more`: what else `alter_policies` takes."""
    return policies.alter_policies([PolicyOperation(*op) for op in ops], **more)


def refused(policies: PolicySet, *ops: tuple[Any, ...], **more: Any) -> tuple[PolicyFault, ...]:
    with pytest.raises(PolicyError) as error:
        altered(policies, *ops, **more)
    return error.value.faults
