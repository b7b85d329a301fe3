# Rules of resource groups, and why none is about some traffic.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from policies.definitions.policy_values import PolicyKey, ValueEnd
from policies.engine import INTERNAL_TOPICS
from policies.explain.case import ExplainCase
from policies.explain.idle_limits import IdleLimits
from policies.explain.model import ExplainInputs, origin_of, sortable_ratio
from policies.fleet.keys import Direction, FleetKey, group_key
from policies.groups.names import ATTACHMENT_KEY, GROUP_KEYS, KEY_MEANINGS
from policies.limits.description import NOT_SHARED, LimitDescription, LimitLevel
from policies.verdict import RESOURCE_GROUP


def group_rules(case: ExplainCase) -> Iterator[LimitDescription]:
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
        yield from _direction_rules(case, place, group, direction)


def _direction_rules(
    case: ExplainCase, place: PolicyKey, group: str, direction: Direction
) -> Iterator[LimitDescription]:
    """Of one direction. Traffic that had to wait lately, though no limit is used up any more, waited for the one that
    is used most.
    """
    limit, measured = case.limits.groups.limit_of(group, direction, 0.0), case.limits.group_rate(group, direction)
    rules = []
    for key in GROUP_KEYS:
        (of, unit), setting = KEY_MEANINGS[key], PolicyKey.of_group(group, key)
        if of == direction:
            use = case.inputs.rates.idle_use if measured is None else measured.use_of(unit)
            fleet = case.fleet_use(group_key(group, direction, unit))
            found = limit.describe(unit, use, f"{place.kind} {place.name}", case.setting_origin(setting), fleet)
            if found is not None:
                case.add_shadowed_base(setting, RESOURCE_GROUP, None)
                rules.append(found)
    if direction == "publish" and case.was_held(RESOURCE_GROUP, None) and not any(rule.limits_now for rule in rules):
        most = max(rules, key=lambda rule: sortable_ratio(rule.utilization), default=None)
        rules = [rule._replace(limits_now=rule is most) for rule in rules]
    yield from rules


class GroupLimitStatus(NamedTuple):
    """One limit of a group, or what is metered where it has none. `end`: of the value set at run time. `waiting`:
    clients wait for it here.
    """

    level: LimitLevel
    end: ValueEnd | None
    waiting: bool


def group_statuses(known: ExplainInputs, limits: IdleLimits, group: str) -> dict[str, GroupLimitStatus]:
    """By GROUP_KEYS."""
    found = {}
    for key in GROUP_KEYS:
        direction, unit = KEY_MEANINGS[key]
        setting = known.policies.find_setting(PolicyKey.of_group(group, key))
        measured = limits.group_rate(group, direction)
        use = measured.use_of(unit) if measured is not None else known.rates.idle_use if setting is not None else None
        fleet = known.rates.fleet.get(group_key(group, direction, unit), NOT_SHARED)
        limit = limits.groups.limit_of(group, direction, 0.0)
        level = limit.describe_level(unit, use, key, origin_of(setting, known.base_origin), fleet)
        found[key] = GroupLimitStatus(
            level, None if setting is None else setting.end, use is not None and use.waiting and setting is not None
        )
    return found


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
