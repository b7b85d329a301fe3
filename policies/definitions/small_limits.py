# Limits that can be but are hardly meant: so small that one usual request waits longer than any request may, as where
# MB were meant and a bare number was written. Knows no traffic, so the rule is the same before the first request.

from __future__ import annotations

from typing import Final

from policies.definitions.policy_values import PolicyKey, PolicyValue, PolicyValues, as_number, policy_order
from policies.groups.names import DISPATCH_BYTES, PUBLISH_BYTES
from policies.limits.limiter import MAX_WAIT_S
from policies.units import exact_rate

USUAL_BATCH_KIB: Final = 16  # batch.size of the Java producer by default; other clients' batches are larger
SMALL_RATE: Final = USUAL_BATCH_KIB * 1024 / MAX_WAIT_S  # bytes per second
MAX_LISTED: Final = 20


def small_limit_text(rate: float | None) -> str:
    """Why a limit of `rate` bytes per second is hardly intended; "": it may be. 0 blocks everything on purpose."""
    if rate is None or not 0 < rate < SMALL_RATE:
        return ""
    return (
        f"{exact_rate(rate)} is less than one usual batch of {USUAL_BATCH_KIB} KiB in {MAX_WAIT_S:g} s, so hardly any"
        " request gets through in time: numbers without a unit are bytes"
    )


def small_limit_warnings(values: PolicyValues) -> list[str]:
    """The warnings of these values; beyond MAX_LISTED their number."""
    small = sorted((key for key, value in values.items() if _is_small(key, value)), key=policy_order)
    texts = [f"{key}: {small_limit_text(as_number(values[key]))}" for key in small[:MAX_LISTED]]
    return texts + ([f"{len(small) - MAX_LISTED:,} more limits are as small"] if len(small) > MAX_LISTED else [])


def _is_small(key: PolicyKey, value: PolicyValue) -> bool:
    if isinstance(value, str) or not small_limit_text(value):
        return False
    if key.kind == "quota":
        return key.quota_key.unit in ("bps", "broker_bps")
    return key.kind != "group" or key.key in (PUBLISH_BYTES, DISPATCH_BYTES)
