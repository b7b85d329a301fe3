# Rules of resource groups, and why none is about some traffic.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from policies.definitions.policy_values import PolicyKey
from policies.engine import INTERNAL_TOPICS
from policies.explain.case import ExplainCase
from policies.explain.model import ExplainedRule, LimitLevel, Traffic, sortable_ratio
from policies.explain.wording import scale_text
from policies.fleet.keys import FleetKey, group_key
from policies.groups.names import ATTACHMENT_KEY, GROUP_KEYS, KEY_MEANINGS, rate_text
from policies.limits.limit_use import LimitUse
from policies.verdict import RESOURCE_GROUP


def group_rules(case: ExplainCase) -> Iterator[ExplainedRule]:
    place, replaced = _find_attachments(case)
    if place is None:
        return
    policies = case.inputs.policies
    group = str(policies.effective_values()[place])
    case.add_shadowed_base(place, RESOURCE_GROUP, None)
    if replaced is not None:
        why = f"namespace {place.name} has group {group}, which replaces its tenant's"
        _shadow_attached(case, replaced, str(policies.effective_values()[replaced]), why)
    limits = policies.group_limits().get(group)
    if not limits:
        why = "there is no such group" if limits is None else "the group has no limits, it is only metered"
        _shadow_attached(case, place, group, why)
        return
    for direction in ("publish", "dispatch"):
        yield from _direction_rules(case, place, group, [key for key in limits if KEY_MEANINGS[key][0] == direction])


def _direction_rules(case: ExplainCase, place: PolicyKey, group: str, keys: Sequence[str]) -> Iterator[ExplainedRule]:
    """Of one direction. Traffic that had to wait lately, though no limit is used up any more, waited for the one that
    is used most.
    """
    levels = {key: _group_level(case, place, group, key) for key in sorted(keys, key=GROUP_KEYS.index)}
    if not levels:
        return
    direction = KEY_MEANINGS[keys[0]][0]
    traffic: Traffic = "produce" if direction == "publish" else "fetch"
    waiting = {key for key in levels if (use := _group_use(case, group, key)) is not None and use.waiting}
    if not waiting and direction == "publish" and case.was_held(RESOURCE_GROUP, None):
        waiting = {max(levels, key=lambda key: sortable_ratio(levels[key].utilization))}
    for key, level in levels.items():
        case.add_shadowed_base(PolicyKey.of_group(group, key), RESOURCE_GROUP, None)
        note = "; ".join(
            filter(None, (scale_text(case.scale) if direction == "publish" else "", _whole_limit_text(key, level)))
        )
        mode = case.effective_mode(case.inputs.group_mode, "group")
        yield ExplainedRule(RESOURCE_GROUP, None, (level,), "delay", traffic, mode, key in waiting, note)


def _whole_limit_text(key: str, level: LimitLevel) -> str:
    """Where others' use isn't known; else the level's text has it."""
    if level.configured is None or level.fleet.gateways > 1:
        return ""
    return f"{rate_text(key, level.configured)} for all gateways together"


def _group_level(case: ExplainCase, place: PolicyKey, group: str, key: str) -> LimitLevel:
    """As the group's line says that decides."""
    direction, unit = KEY_MEANINGS[key]
    setting = PolicyKey.of_group(group, key)
    configured = case.inputs.policies.group_limits()[group][key]
    scale = case.scale if direction == "publish" else 1.0
    fleet = case.fleet_use(group_key(group, direction, unit)).scaled_by(scale)
    use = _group_use(case, group, key)
    rate = use.rate if use is not None else 0.0 if case.inputs.rates.brokers else None
    limit = None if use is None else use.limit
    if limit is None:  # no client has used it since it was set
        limit = configured * scale if fleet.part is None else fleet.part
    what = f"{key} of group {group}, attached to {place.kind} {place.name}"
    named = "bytes/s" if unit == "bytes" else "messages/s"
    wait_s = 0.0 if use is None else use.wait_s
    return LimitLevel(
        what,
        case.setting_origin(setting),
        configured,
        limit,
        rate,
        named,
        wait_s,
        whole=configured * scale,
        fleet=fleet,
    )


def _group_use(case: ExplainCase, group: str, key: str) -> LimitUse | None:
    direction, unit = KEY_MEANINGS[key]
    found = next(
        (rate for rate in case.inputs.rates.groups if (rate.group, rate.direction) == (group, direction)), None
    )
    return None if found is None else found.bytes if unit == "bytes" else found.msgs


def group_fleet_keys(group: str, limits: Iterable[str]) -> list[FleetKey]:
    """The names by which gateways share these limits of a group."""
    return [group_key(group, *KEY_MEANINGS[key]) for key in limits]


def _shadow_attached(case: ExplainCase, place: PolicyKey, group: str, why: str) -> None:
    what = f"{ATTACHMENT_KEY} of {place.kind} {place.name}"
    case.add_shadowed(RESOURCE_GROUP, None, what, case.setting_origin(place), group, why)


def _find_attachments(case: ExplainCase) -> tuple[PolicyKey | None, PolicyKey | None]:
    """The attachments that concern this traffic: the one that holds, and the tenant's that it replaces."""
    finder, policies = case.inputs.finder, case.inputs.policies
    place = None if finder is None else finder.find_namespace(case.subject.topic, case.subject.principal)
    if place is None or case.subject.topic in INTERNAL_TOPICS:
        return None, None
    tenant, namespace = PolicyKey.of_tenant(place.tenant), PolicyKey.of_namespace(*place)
    found = [key for key in (namespace, tenant) if key in policies.effective_values()]
    return (found[0] if found else None), (found[1] if len(found) > 1 else None)


def missing_group_note(case: ExplainCase) -> str:
    """Why no group is about this traffic, where there are any."""
    finder, policies = case.inputs.finder, case.inputs.policies
    if finder is None or not policies.group_limits() or _find_attachments(case)[0] is not None:
        return ""
    if case.subject.topic in INTERNAL_TOPICS:
        return "no resource group: Kafka's internal topics are in none"
    place = finder.find_namespace(case.subject.topic, case.subject.principal)
    if place is None:
        return "no resource group: neither the topic's name nor the principal says which tenant it is of"
    if not place.namespace:
        return f"no resource group: none is attached to tenant {place.tenant}"
    namespace = f"{place.tenant}/{place.namespace}"
    return f"no resource group: none is attached to namespace {namespace} or tenant {place.tenant}"
