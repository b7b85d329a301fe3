# The effects that the limits in force can have on what is produced, so that metrics have them before the first one.
#
# Not to the last detail (a quota hardly ever rejects): what is missing here is counted all the same when it happens.

from __future__ import annotations

from gateway.config import Settings
from gateway.control.context import ControlContext
from gateway.control.workers.snapshots import groups_of, quotas_of, thresholds_of
from policies.definitions.policy_set import PolicySet
from policies.definitions.rollout import ALL_CLIENTS
from policies.usage import DELAYED, OBSERVED_OUTCOMES, REASONS
from policies.verdict import CLIENT_QUOTA, FENCE, RESOURCE_GROUP, STORAGE_PAUSE, STORAGE_THROTTLE, TOPIC_THRESHOLD

_ENFORCED = ("rejected", DELAYED)


def expect_effects(context: ControlContext, policies: PolicySet) -> None:
    """These policies are in force: topics show from now on what they can lead to."""
    context.metrics.produced.expect_effects(possible_effects(policies, context.settings))


def possible_effects(policies: PolicySet, settings: Settings) -> frozenset[tuple[str, str]]:
    """Outcomes and notes (policies.usage) that may occur, each with its reason."""
    thresholds, quotas = thresholds_of(policies, settings), quotas_of(policies, settings)
    groups = groups_of(policies, settings)
    found: set[tuple[str, str]] = set()
    if thresholds.total is not None or thresholds.totals:  # a topic's threshold alone limits nothing
        found |= _policy_effects(TOPIC_THRESHOLD, thresholds.mode, thresholds.enforce_percent)
    if quotas.entries:
        found |= _policy_effects(CLIENT_QUOTA, quotas.mode, quotas.enforce_percent)
    if groups.groups:
        found |= _policy_effects(RESOURCE_GROUP, groups.mode, groups.enforce_percent)
    if settings.storage is not None and not settings.storage.is_disabled:
        mode = "observe" if settings.mode == "observe" else settings.storage.mode
        found |= _policy_effects(STORAGE_THROTTLE, mode) | _policy_effects(STORAGE_PAUSE, mode)
    if any(outcome in _ENFORCED for outcome, _ in found):
        found |= {("rejected", FENCE), ("dropped", "connection-lost")}
        if settings.acks0 == "drop":
            found.add(("dropped", "acks0-limit"))
    return frozenset(found)


def _policy_effects(reason: str, mode: str, enforce_percent: float = ALL_CLIENTS) -> set[tuple[str, str]]:
    outcomes = _ENFORCED if mode == "enforce" else ()
    if mode == "observe" or enforce_percent < ALL_CLIENTS:
        outcomes = (*outcomes, *OBSERVED_OUTCOMES)
    return {(outcome, reason) for outcome in outcomes if reason in REASONS[outcome]}
