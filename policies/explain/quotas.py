# Rules of client quotas: the gateway's own, and those that brokers enforce.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from policies.definitions.policy_values import PolicyKey
from policies.explain.case import ExplainCase
from policies.explain.model import (
    BROKER_QUOTA,
    FROM_BROKERS,
    NOT_SHARED,
    ExplainedRule,
    LimitLevel,
    Traffic,
    quota_in_force,
)
from policies.explain.wording import place_text, scale_text
from policies.fleet.keys import FleetKey, quota_key
from policies.limits.limit_use import LimitUse
from policies.quotas.names import DefaultName, Entity
from policies.quotas.quota_limiters import UNALLOCATED, QuotaRate
from policies.quotas.store import ResolvedQuota
from policies.quotas.text import entity_text, quota_text
from policies.thresholds.values import TOTAL_KEY, TOTAL_OUT_KEY
from policies.verdict import CLIENT_QUOTA

_TRAFFIC: Final[Mapping[str, Traffic]] = {
    "producer_byte_rate": "produce", "consumer_byte_rate": "fetch", "request_percentage": "both",
}  # fmt: skip


def quota_rules(case: ExplainCase) -> Iterator[ExplainedRule]:
    for found in case.inputs.policies.quota_store().effective_quotas(case.entity):
        _note_overridden(case, found)
        produces = found.key.type == "producer_byte_rate"
        mode = case.effective_mode(case.inputs.quota_mode, "quota")
        for broker in (None,) if found.key.unit == "bps" else case.brokers:
            total, named = case.broker_total(broker), TOTAL_KEY
            if not produces:
                total, named = case.inputs.policies.broker_total_out(broker), TOTAL_OUT_KEY
            if found.key.unit == "shares" and total is None:
                why = f"there is no {named} on {place_text(broker)} to have a share of"
                _shadow_quota(case, found.source, found, broker, why)
                continue
            level, waiting, note = _quota_level(case, found, broker)
            yield ExplainedRule(CLIENT_QUOTA, broker, (level,), "delay", _TRAFFIC[found.key.type], mode, waiting, note)


def broker_quota_rules(case: ExplainCase) -> Iterator[ExplainedRule]:
    """The brokers' own quotas, which hold also for clients that are internal here, and in mode observe."""
    ours = {each.key: each for each in case.inputs.policies.quota_store().effective_quotas(case.entity)}
    for found in case.inputs.broker_quotas.effective_quotas(case.entity):
        for source, value in found.overridden or ():
            why = f"{entity_text(found.source)} is more specific and has {quota_text(found.key, found.value)}"
            what = f"{found.key} of {entity_text(source)}"
            case.add_shadowed(BROKER_QUOTA, None, what, FROM_BROKERS, quota_text(found.key, value), why)
        note = _broker_note(case, found, ours.get(found.key))
        for broker in case.brokers:
            level = _quota_level(case, found, broker)[0]
            level = level._replace(origin=FROM_BROKERS, limit=found.value, wait_s=0.0, whole=None, fleet=NOT_SHARED)
            # Only bytes that are under a quota of the gateway's are measured by it, and its own worker's time.
            if found.key.unit == "percent" or _find_rate(case, found, broker) is None:
                level = level._replace(rate=None)
            yield ExplainedRule(
                BROKER_QUOTA, broker, (level,), "delay", _TRAFFIC[found.key.type], "enforce", False, note
            )


def _broker_note(case: ExplainCase, found: ResolvedQuota, own: ResolvedQuota | None) -> str:
    """`own`: the gateway's quota of the same key."""
    note = "enforced by the brokers"
    if found.key.unit == "percent":
        return f"{note}: of one of their threads' time, which only they measure"
    if own is None:
        return note
    if case.effective_mode(case.inputs.quota_mode, "quota") == "observe":
        which = "only observed for this client"
    else:
        which = "less" if quota_in_force(case.inputs, own) < found.value else "not less"
    return f"{note}, beside the gateway's {quota_text(own.key, own.value)} {entity_text(own.source)}, which is {which}"


def _quota_level(case: ExplainCase, found: ResolvedQuota, broker: int | None) -> tuple[LimitLevel, bool, str]:
    """The level, whether clients wait for it, and a note: as the line says that decides (QuotaLine), which is there as
    long as any client uses it.
    """
    key, line = found.key, _find_rate(case, found, broker)
    what = f"{quota_text(key, found.value)} {entity_text(found.source)}"
    idle = case.inputs.rates.brokers and not case.inputs.rates.partial
    use = LimitUse(0.0, None) if line is None else line.use
    rate = use.rate if line is not None or idle else None
    level = LimitLevel(
        what, case.setting_origin(PolicyKey.of_quota(found.source, key)), found.value, None, rate, wait_s=use.wait_s
    )
    if key.unit == "percent":
        percent = None if rate is None else 100 * rate
        return level._replace(limit=found.value, rate=percent, unit="%"), use.waiting, "of one thread's time"
    if key.unit == "shares":
        dealt = None if use.limit is None or use.limit >= UNALLOCATED else use.limit
        named = TOTAL_KEY if key.type == "producer_byte_rate" else TOTAL_OUT_KEY
        note = f"{found.value:g} shares of what {named} of {place_text(broker)} leaves, dealt out by demand"
        return level._replace(configured=None, limit=dealt), use.waiting, note
    scale = case.scale if key.type == "producer_byte_rate" else 1.0
    fleet = case.fleet_use(quota_fleet_key(found, broker)).scaled_by(scale)
    whole = found.value * scale
    limit = use.limit
    if line is None or line.configured != found.value or limit is None:  # no client has used it since it was set
        limit = whole if fleet.part is None else fleet.part
    return level._replace(limit=limit, whole=whole, fleet=fleet), use.waiting, scale_text(scale)


def quota_fleet_key(found: ResolvedQuota, broker: int | None) -> FleetKey:
    """The name by which gateways share that quota; `broker` None: over all brokers."""
    user, client_id = _bucket_names(found)
    return quota_key(found.key.wire_name, user, client_id, broker)


def _bucket_names(found: ResolvedQuota) -> tuple[str | None, str | None]:
    """The actual names of the clients that share it."""
    user, client_id = (None if isinstance(name, DefaultName) else name for name in found.bucket[1:])
    return user, client_id


def _find_rate(case: ExplainCase, found: ResolvedQuota, broker: int | None) -> QuotaRate | None:
    user, client_id = _bucket_names(found)
    return case.quota_rates.get((str(found.key), entity_text(found.source), user, client_id, broker))


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
