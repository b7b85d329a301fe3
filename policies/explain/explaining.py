# All rules put beside each other, and which of them comes first.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from policies.decision import STRICTNESS, Limits
from policies.definitions.small_limits import small_text
from policies.explain import groups, others, quotas, thresholds
from policies.explain.case import Case
from policies.explain.model import BROKER_QUOTA, Asked, Explanation, Held, Known, Rule, Shadowed, sortable
from policies.explain.sentences import notes, storage_effect, summary_of, why_internal
from policies.explain.wording import amount_text
from policies.fleet.keys import FleetKey
from policies.quotas.names import Entity
from policies.units import exact_rate
from policies.verdict import PROTECTED_TOPIC

MAX_HELD: Final = 100
_FOR_ALL: Final = (PROTECTED_TOPIC, BROKER_QUOTA)  # internal principals as well


def explain(asked: Asked, known: Known, held: Iterable[Held] = ()) -> Explanation:
    """`held`: of this traffic, in any order."""
    lately = sorted(held, key=lambda each: each.last_ms, reverse=True)[:MAX_HELD]
    made = Case(asked, known, lately)
    rules, shadowed = _rules(made), made.shadowed
    internal = why_internal(asked, known)
    if internal:
        kept = [rule for rule in rules if rule.name in _FOR_ALL]
        shadowed = [*(_silenced(rule, internal) for rule in rules if rule.name not in _FOR_ALL), *shadowed]
        rules = kept
    first = _first(rules)
    rules = [
        rule._replace(
            first=rule is first, since_ms=made.held_since_ms(rule.name, rule.broker) if rule.limits_now else None
        )
        for rule in rules
    ]
    summary = summary_of(next((rule for rule in rules if rule.first), None), internal, rules, lately, known.now_ms)
    return Explanation(
        asked,
        tuple(broker for broker in made.brokers if broker is not None),
        summary,
        storage_effect(known),
        internal,
        tuple(rules),
        tuple(shadowed),
        tuple(lately),
        tuple(dict.fromkeys((*notes(made), *_small(rules)))),
    )


def shared_limits(asked: Asked, known: Known) -> list[FleetKey]:
    """The names of the limits of this traffic that several gateways share."""
    brokers, keys = known.brokers(asked), []
    for found in known.policies.quotas().effective(Entity(asked.user, asked.client_id), omit_overridden_values=True):
        keys += [quotas.quota_fleet_key(found, node) for node in ((None,) if found.key.unit == "bps" else brokers)]
    group = known.finder and known.finder.group_of(asked.topic, asked.principal)
    return [*keys, *groups.fleet_keys(group, known.policies.groups().get(group, ()))] if group else keys


def _rules(case: Case) -> list[Rule]:
    limits: dict[str, Callable[[Case], Iterator[Rule]]] = {
        "storage": others.of_storage,
        "quota": quotas.rules,
        "group": groups.rules,
        "threshold": thresholds.rules,
        "plugin": others.plugins,
    }
    asked = [rule for kind in Limits._fields for rule in limits[kind](case)]
    return [*others.protected(case), *asked, others.fence(case), *quotas.broker_rules(case)]


def _small(rules: Iterable[Rule]) -> Iterator[str]:
    for level in (level for rule in rules for level in rule.levels if level.unit == "bytes/s"):
        if text := small_text(level.configured):
            yield f"{level.what}: {text}"


def _silenced(rule: Rule, why: str) -> Shadowed:
    what = " and ".join(level.what for level in rule.levels) or rule.note
    found = [level for level in rule.levels if level.unit != "%"]
    limits = [
        (exact_rate if level.unit == "bytes/s" else amount_text(level.unit))(level.configured)
        for level in found
        if level.configured is not None
    ]
    return Shadowed(rule.name, rule.broker, what, ", ".join(level.origin for level in rule.levels),
                    ", ".join(limits), why)  # fmt: skip


def _first(rules: Sequence[Rule]) -> Rule | None:
    """Of the rules that limit now the strictest, then the one that is exceeded most; else the one with the least
    headroom.

    A quota on time can't be compared in bytes: it is first when it limits, or where no other can be compared.
    """
    enforced = [rule for rule in rules if rule.mode == "enforce" and rule.traffic != "fetch"]
    binding = [rule for rule in enforced if rule.limits_now]
    if binding:
        return max(binding, key=lambda rule: (STRICTNESS.get(rule.action, math.inf), sortable(rule.utilization)))
    comparable = [rule for rule in enforced if rule.headroom is not None]
    if comparable:
        return min(comparable, key=lambda rule: (rule.headroom, -sortable(rule.utilization)))
    return max((rule for rule in enforced if rule.levels), key=lambda rule: sortable(rule.utilization), default=None)
