# Rules of client quotas: the gateway's own, and those that brokers enforce.

from __future__ import annotations

from collections.abc import Iterator

from policies.definitions.policy_values import PolicyKey
from policies.explain.case import ExplainCase
from policies.explain.model import BROKER_QUOTA, FROM_BROKERS, quota_in_force
from policies.limits.description import NOT_SHARED, LimitDescription, place_text
from policies.quotas.names import Entity
from policies.quotas.store import TOTAL_KEYS, ResolvedQuota
from policies.quotas.text import entity_text, quota_text
from policies.verdict import CLIENT_QUOTA


def quota_rules(case: ExplainCase) -> Iterator[LimitDescription]:
    for found in case.inputs.policies.quota_store().effective_quotas(case.entity):
        _note_overridden(case, found)
        for broker in (None,) if found.key.unit == "bps" else case.brokers:
            if found.key.unit == "shares" and not _has_total(case, found, broker):
                why = f"there is no {TOTAL_KEYS[found.key.type]} on {place_text(broker)} to have a share of"
                _shadow_quota(case, found.source, found, broker, why)
                continue
            yield _describe_quota(case, found, broker)[0]


def broker_quota_rules(case: ExplainCase) -> Iterator[LimitDescription]:
    """The brokers' own quotas, which hold also for clients that are internal here, and in mode observe."""
    ours = {each.key: each for each in case.inputs.policies.quota_store().effective_quotas(case.entity)}
    for found in case.inputs.broker_quotas.effective_quotas(case.entity):
        for source, value in found.overridden or ():
            why = f"{entity_text(found.source)} is more specific and has {quota_text(found.key, found.value)}"
            what = f"{found.key} of {entity_text(source)}"
            case.add_shadowed(BROKER_QUOTA, None, what, FROM_BROKERS, quota_text(found.key, value), why)
        note = _broker_note(case, found, ours.get(found.key))
        for broker in case.brokers:
            made, is_measured = _describe_quota(case, found, broker)
            level = made.levels[0]._replace(
                origin=FROM_BROKERS, limit=found.value, wait_s=0.0, whole=None, fleet=NOT_SHARED
            )
            # Only bytes that are under a quota of the gateway's are measured by it, and its own worker's time.
            if found.key.unit == "percent" or not is_measured:
                level = level._replace(rate=None)
            yield made._replace(
                name=BROKER_QUOTA, broker=broker, levels=(level,), mode="enforce", limits_now=False, note=note
            )


def _describe_quota(case: ExplainCase, found: ResolvedQuota, broker: int | None) -> tuple[LimitDescription, bool]:
    """And whether any worker measures it: the limiter is there as long as any client uses it."""
    known, limiter = case.inputs, case.limits.of_quota(found, broker)
    measured = case.quota_rates.get(limiter.read_rate(0.0).bucket)
    origin, fleet = case.setting_origin(PolicyKey.of_quota(found.source, found.key)), case.fleet_use(limiter.key)
    is_idle = bool(known.rates.brokers) and not known.rates.partial
    mode = known.effective_mode(known.quota_mode)
    return limiter.describe(measured, origin, fleet, mode, is_idle=is_idle), measured is not None


def _has_total(case: ExplainCase, found: ResolvedQuota, broker: int | None) -> bool:
    policies = case.inputs.policies
    total = policies.broker_total if found.key.type == "producer_byte_rate" else policies.broker_total_out
    return total(broker) is not None


def _broker_note(case: ExplainCase, found: ResolvedQuota, own: ResolvedQuota | None) -> str:
    """`own`: the gateway's quota of the same key."""
    note = "enforced by the brokers"
    if found.key.unit == "percent":
        return f"{note}: of one of their threads' time, which only they measure"
    if own is None:
        return note
    if "quota" in case.observed or case.inputs.effective_mode(case.inputs.quota_mode) == "observe":
        which = "only observed for this client"
    else:
        which = "less" if quota_in_force(case.inputs, own) < found.value else "not less"
    return f"{note}, beside the gateway's {quota_text(own.key, own.value)} {entity_text(own.source)}, which is {which}"


def _note_overridden(case: ExplainCase, found: ResolvedQuota) -> None:
    by = entity_text(found.source)
    for source, value in found.overridden or ():
        case.add_shadowed(
            CLIENT_QUOTA, None, f"{found.key} of {entity_text(source)}",
            case.setting_origin(PolicyKey.of_quota(source, found.key)), quota_text(found.key, value),
            f"{by} is more specific and has {quota_text(found.key, found.value)}",
        )  # fmt: skip
    case.add_shadowed_base(PolicyKey.of_quota(found.source, found.key), CLIENT_QUOTA, None)


def _shadow_quota(case: ExplainCase, source: Entity, found: ResolvedQuota, broker: int | None, why: str) -> None:
    origin = case.setting_origin(PolicyKey.of_quota(source, found.key))
    text = quota_text(found.key, found.value)
    case.add_shadowed(CLIENT_QUOTA, broker, f"{found.key} of {entity_text(source)}", origin, text, why)
