# Rules of resource groups, and why none is about some traffic.

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.engine import INTERNAL_TOPICS
from policies.explain.case import Case
from policies.explain.model import FleetUse, Level, Rule, Traffic, sortable
from policies.explain.wording import amount_text, scaled
from policies.fleet.keys import Direction, group_key
from policies.groups.lines import GroupRate
from policies.groups.names import ATTACHMENT_KEY, GROUP_KEYS, MEANS, rate_text
from policies.policy_values import PolicyKey
from policies.verdict import RESOURCE_GROUP


def rules(case: Case) -> Iterator[Rule]:
    place, replaced = _attached(case)
    if place is None:
        return
    policies = case.known.policies
    group = str(policies.effective()[place])
    case.note_base(place, RESOURCE_GROUP, None)
    if replaced is not None:
        why = f"namespace {place.name} has group {group}, which replaces its tenant's"
        _shadow_attached(case, replaced, str(policies.effective()[replaced]), why)
    limits = policies.groups().get(group)
    if not limits:
        why = "there is no such group" if limits is None else "the group has no limits, it is only metered"
        _shadow_attached(case, place, group, why)
        return
    for direction in ("publish", "dispatch"):
        yield from _group_rules(case, place, group, [key for key in limits if MEANS[key][0] == direction])


def _group_rules(case: Case, place: PolicyKey, group: str, keys: Sequence[str]) -> Iterator[Rule]:
    """Of one direction. Traffic that is known to wait waits for the limit that is used most."""
    levels = {key: _group_level(case, place, group, key) for key in sorted(keys, key=GROUP_KEYS.index)}
    if not levels:
        return
    direction = MEANS[keys[0]][0]
    traffic: Traffic = "produce" if direction == "publish" else "fetch"
    held = direction == "publish" and case.was_held(RESOURCE_GROUP, None)
    waits = held or any(rate.waiting for rate in _group_rates(case, group, direction))
    used_most = max(levels, key=lambda key: sortable(levels[key].utilization))
    for key, level in levels.items():
        case.note_base(PolicyKey.of_group(group, key), RESOURCE_GROUP, None)
        now = waits and key == used_most
        note = _fleet_note(case, group, key, level)
        mode = case.mode(case.known.group_mode, "group")
        yield Rule(RESOURCE_GROUP, None, (level,), "delay", traffic, mode, now, note)


def _group_rates(case: Case, group: str, direction: Direction) -> list[GroupRate]:
    return [rate for rate in case.known.rates.groups if (rate.group, rate.direction) == (group, direction)]


def _group_level(case: Case, place: PolicyKey, group: str, key: str) -> Level:
    """Its limit is this gateway's part, as far as that is known."""
    direction, unit = MEANS[key]
    setting = PolicyKey.of_group(group, key)
    configured = case.known.policies.groups()[group][key]
    use = case.known.rates.fleet.get(group_key(group, direction, unit), FleetUse())
    scale = case.scale if direction == "publish" else 1.0
    limit = (configured if use.part is None else use.part) * scale
    rate = 0.0 if case.known.rates.brokers else None
    for measured in _group_rates(case, group, direction):
        rate = measured.bytes_rate if unit == "bytes" else measured.msgs_rate
        part = measured.bytes_limit if unit == "bytes" else measured.msgs_limit
        limit = limit if part is None else part
    what = f"{key} of group {group}, attached to {place.kind} {place.name}"
    return Level(what, case.origin(setting), configured, limit, rate, "bytes/s" if unit == "bytes" else "messages/s")


def _fleet_note(case: Case, group: str, key: str, level: Level) -> str:
    direction, unit = MEANS[key]
    use = case.known.rates.fleet.get(group_key(group, direction, unit), FleetUse())
    of_factor = scaled(case.scale if direction == "publish" else 1.0)
    notes = [of_factor] if of_factor else []
    if level.configured is not None:
        whole = f"{rate_text(key, level.configured)} for all gateways together"
        notes.append(whole if use.rate is None else f"{whole}, which take {amount_text(level.unit)(use.rate)}")
    return "; ".join(notes)


def _shadow_attached(case: Case, place: PolicyKey, group: str, why: str) -> None:
    what = f"{ATTACHMENT_KEY} of {place.kind} {place.name}"
    case.shadow(RESOURCE_GROUP, None, what, case.origin(place), group, why)


def _attached(case: Case) -> tuple[PolicyKey | None, PolicyKey | None]:
    """The attachments that concern this traffic: the one that holds, and the tenant's that it replaces."""
    finder, policies = case.known.finder, case.known.policies
    place = None if finder is None else finder.place(case.asked.topic, case.asked.principal)
    if place is None or case.asked.topic in INTERNAL_TOPICS:
        return None, None
    tenant, namespace = PolicyKey.of_tenant(place.tenant), PolicyKey.of_namespace(*place)
    found = [key for key in (namespace, tenant) if key in policies.effective()]
    return (found[0] if found else None), (found[1] if len(found) > 1 else None)


def without_group(case: Case) -> str:
    """Why no group is about this traffic, where there are any."""
    finder, policies = case.known.finder, case.known.policies
    if finder is None or not policies.groups() or _attached(case)[0] is not None:
        return ""
    if case.asked.topic in INTERNAL_TOPICS:
        return "no resource group: Kafka's internal topics are in none"
    place = finder.place(case.asked.topic, case.asked.principal)
    if place is None:
        return "no resource group: neither the topic's name nor the principal says which tenant it is of"
    if not place.namespace:
        return f"no resource group: none is attached to tenant {place.tenant}"
    namespace = f"{place.tenant}/{place.namespace}"
    return f"no resource group: none is attached to namespace {namespace} or tenant {place.tenant}"
