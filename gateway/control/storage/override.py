# An operator's override of storage protection, as control has it: a policy with an end, so that all gateways go by it,
# a restarted one too, and it is taken back by itself. Who, when and why is in the history of policies.
#
# Knows no disk; what it means for producers is policies/storage/override.py's.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from policies.definitions.policy_records import PastChange
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.storage import InvalidOverride, StorageOverride
from policies.units import format_time

OVERRIDE_KEY = PolicyKey.of_storage()


class ActiveOverride(NamedTuple):
    """The operator's override. `left_s`: seconds until it ends. `author` "", `at_ms` 0: no longer known."""

    override: StorageOverride
    left_s: float
    until_ms: int
    author: str = ""
    at_ms: int = 0

    @property
    def why(self) -> str:
        return self.override.reason_text(format_time(self.until_ms))


def find_override(policies: PolicySet, history: Sequence[PastChange], now_ms: int) -> ActiveOverride | None:
    """The override in force; None: there is none, or it has ended."""
    value, end = policies.changes.get(OVERRIDE_KEY), policies.ends.get(OVERRIDE_KEY)
    if not isinstance(value, str) or end is None or end.until_ms <= now_ms:
        return None
    try:
        override = StorageOverride.parse_text(value)
    except InvalidOverride:  # of a newer gateway
        return None
    past = next((each for each in reversed(history) if each.key == OVERRIDE_KEY), None)
    who, at_ms = ("", 0) if past is None else (past.source.who, past.at_ms)
    return ActiveOverride(override, (end.until_ms - now_ms) / 1000, end.until_ms, who, at_ms)


def list_full_volumes(status: Mapping[str, Any]) -> list[str]:
    """The volumes at their hard limit, from a response of GET /v1/storage."""
    return [
        f"broker {broker['id']} {volume['name']}"
        for broker in status.get("brokers", ())
        for volume in broker["volumes"]
        if volume["factor"] <= 0
    ]
