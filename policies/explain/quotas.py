# Rules of client quotas: the gateway's own, and those that brokers enforce.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from policies.definitions.policy_values import PolicyKey
from policies.explain.case import Case
from policies.explain.model import ALONE, BROKER_QUOTA, BROKERS, Level, Rule, Traffic, in_force
from policies.explain.wording import place_text, scaled
from policies.fleet.keys import FleetKey, quota_key
from policies.limits.limit_use import LimitUse
from policies.quotas.lines import UNDEALT, QuotaRate
from policies.quotas.names import Default, Entity
from policies.quotas.store import Effective
from policies.quotas.text import entity_text, quota_text
from policies.thresholds.values import OUT_KEY, TOTAL_KEY
from policies.verdict import CLIENT_QUOTA

_TRAFFIC: Final[Mapping[str, Traffic]] = {
    "producer_byte_rate": "produce", "consumer_byte_rate": "fetch", "request_percentage": "both",
}  # fmt: skip


def rules(case: Case) -> Iterator[Rule]:
    for found in case.known.policies.quotas().effective(case.entity):
        _note_overridden(case, found)
        produces = found.key.type == "producer_byte_rate"
        mode = case.mode(case.known.quota_mode, "quota")
        for broker in (None,) if found.key.unit == "bps" else case.brokers:
            total, named = case.total(broker), TOTAL_KEY
            if not produces:
                total, named = case.known.policies.total_out(broker), OUT_KEY
            if found.key.unit == "shares" and total is None:
                why = f"there is no {named} on {place_text(broker)} to have a share of"
                _shadow_quota(case, found.source, found, broker, why)
                continue
            level, waiting, note = _quota_level(case, found, broker)
            yield Rule(CLIENT_QUOTA, broker, (level,), "delay", _TRAFFIC[found.key.type], mode, waiting, note)


def broker_rules(case: Case) -> Iterator[Rule]:
    """The brokers' own quotas, which hold also for clients that are internal here, and in mode observe."""
    ours = {each.key: each for each in case.known.policies.quotas().effective(case.entity)}
    for found in case.known.broker_quotas.effective(case.entity):
        for source, value in found.overridden or ():
            why = f"{entity_text(found.source)} is more specific and has {quota_text(found.key, found.value)}"
            what = f"{found.key} of {entity_text(source)}"
            case.shadow(BROKER_QUOTA, None, what, BROKERS, quota_text(found.key, value), why)
        note = _broker_note(case, found, ours.get(found.key))
        for broker in case.brokers:
            level = _quota_level(case, found, broker)[0]
            level = level._replace(origin=BROKERS, limit=found.value, wait_s=0.0, whole=None, fleet=ALONE)
            # Only bytes that are under a quota of the gateway's are measured by it, and its own worker's time.
            if found.key.unit == "percent" or _line(case, found, broker) is None:
                level = level._replace(rate=None)
            yield Rule(BROKER_QUOTA, broker, (level,), "delay", _TRAFFIC[found.key.type], "enforce", False, note)


def _broker_note(case: Case, found: Effective, own: Effective | None) -> str:
    """`own`: the gateway's quota of the same key."""
    note = "enforced by the brokers"
    if found.key.unit == "percent":
        return f"{note}: of one of their threads' time, which only they measure"
    if own is None:
        return note
    if case.mode(case.known.quota_mode, "quota") == "observe":
        which = "only observed for this client"
    else:
        which = "less" if in_force(case.known, own) < found.value else "not less"
    return f"{note}, beside the gateway's {quota_text(own.key, own.value)} {entity_text(own.source)}, which is {which}"


def _quota_level(case: Case, found: Effective, broker: int | None) -> tuple[Level, bool, str]:
    """The level, whether clients wait for it, and a note: as the line says that decides (QuotaLine), which is there as
    long as anybody uses it.
    """
    key, line = found.key, _line(case, found, broker)
    what = f"{quota_text(key, found.value)} {entity_text(found.source)}"
    idle = case.known.rates.brokers and not case.known.rates.partial
    use = LimitUse(0.0, None) if line is None else line.use
    rate = use.rate if line is not None or idle else None
    level = Level(what, case.origin(PolicyKey.of_quota(found.source, key)), found.value, None, rate, wait_s=use.wait_s)
    if key.unit == "percent":
        percent = None if rate is None else 100 * rate
        return level._replace(limit=found.value, rate=percent, unit="%"), use.waiting, "of one thread's time"
    if key.unit == "shares":
        dealt = None if use.limit is None or use.limit >= UNDEALT else use.limit
        named = TOTAL_KEY if key.type == "producer_byte_rate" else OUT_KEY
        note = f"{found.value:g} shares of what {named} of {place_text(broker)} leaves, dealt out by demand"
        return level._replace(configured=None, limit=dealt), use.waiting, note
    scale = case.scale if key.type == "producer_byte_rate" else 1.0
    fleet = case.fleet(quota_fleet_key(found, broker)).times(scale)
    whole = found.value * scale
    limit = use.limit
    if line is None or line.whole != found.value or limit is None:  # no client has used it since it was set
        limit = whole if fleet.part is None else fleet.part
    return level._replace(limit=limit, whole=whole, fleet=fleet), use.waiting, scaled(scale)


def quota_fleet_key(found: Effective, broker: int | None) -> FleetKey:
    """The name by which gateways share that quota; `broker` None: over all brokers."""
    user, client_id = _names(found)
    return quota_key(found.key.wire, user, client_id, broker)


def _names(found: Effective) -> tuple[str | None, str | None]:
    """The actual names of the clients that share it."""
    user, client_id = (None if isinstance(name, Default) else name for name in found.bucket[1:])
    return user, client_id


def _line(case: Case, found: Effective, broker: int | None) -> QuotaRate | None:
    user, client_id = _names(found)
    return case.lines.get((str(found.key), entity_text(found.source), user, client_id, broker))


def _note_overridden(case: Case, found: Effective) -> None:
    by = entity_text(found.source)
    for source, value in found.overridden or ():
        case.shadow(
            CLIENT_QUOTA, None, f"{found.key} of {entity_text(source)}",
            case.origin(PolicyKey.of_quota(source, found.key)), quota_text(found.key, value),
            f"{by} is more specific and has {quota_text(found.key, found.value)}",
        )  # fmt: skip
    case.note_base(PolicyKey.of_quota(found.source, found.key), CLIENT_QUOTA, None)


def _shadow_quota(case: Case, source: Entity, found: Effective, broker: int | None, why: str) -> None:
    origin = case.origin(PolicyKey.of_quota(source, found.key))
    text = quota_text(found.key, found.value)
    case.shadow(CLIENT_QUOTA, broker, f"{found.key} of {entity_text(source)}", origin, text, why)
