# All rules put beside each other, and which of them comes first.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from policies.decision import STRICTNESS, PartitionLimits
from policies.definitions.small_limits import small_limit_text
from policies.explain import groups, others, quotas, thresholds
from policies.explain.case import ExplainCase
from policies.explain.idle_limits import IdleLimits
from policies.explain.model import (
    BROKER_QUOTA,
    ExplainInputs,
    ExplainSubject,
    HeldTraffic,
    ShadowedRule,
    TrafficExplanation,
    internal_reason,
    sortable_ratio,
)
from policies.explain.sentences import (
    explain_notes,
    held_elsewhere_text,
    storage_effect_text,
    summarize_rules,
    unknown_before_note,
)
from policies.fleet.keys import FleetKey
from policies.limits.description import LimitDescription, amount_text
from policies.quotas.names import Entity
from policies.units import exact_rate
from policies.verdict import PROTECTED_TOPIC

MAX_HELD: Final = 100
_RULES_FOR_INTERNAL: Final = (PROTECTED_TOPIC, BROKER_QUOTA)  # internal principals as well


def explain_traffic(
    asked: ExplainSubject, known: ExplainInputs, held: Iterable[HeldTraffic] = ()
) -> TrafficExplanation:
    """`held`: of this traffic, in any order."""
    lately = sorted(held, key=lambda each: each.last_ms, reverse=True)[:MAX_HELD]
    made = ExplainCase(asked, known, lately)
    rules, shadowed = _collect_rules(made), made.shadowed
    internal = internal_reason(known, asked.principal, asked.client_id)
    if internal:
        kept = [rule for rule in rules if rule.name in _RULES_FOR_INTERNAL]
        shadowed = [
            *(_shadowed_by_internal(rule, internal) for rule in rules if rule.name not in _RULES_FOR_INTERNAL),
            *shadowed,
        ]
        rules = kept
    first = _first_rule(rules)
    rules = [
        rule._replace(
            first=rule is first, since_ms=made.held_since_ms(rule.name, rule.broker) if rule.limits_now else None
        )
        for rule in rules
    ]
    summary = summarize_rules(next((rule for rule in rules if rule.first), None), internal, rules, lately, known.now_ms)
    if not any(rule.limits_now and rule.mode == "enforce" for rule in rules):
        summary += held_elsewhere_text(known)
    return TrafficExplanation(
        asked,
        tuple(broker for broker in made.brokers if broker is not None),
        summary,
        storage_effect_text(known),
        internal,
        tuple(rules),
        tuple(shadowed),
        tuple(lately),
        tuple(dict.fromkeys((*explain_notes(made), *unknown_before_note(rules, known), *_small_limit_notes(rules)))),
    )


def shared_limit_keys(asked: ExplainSubject, known: ExplainInputs) -> list[FleetKey]:
    """The names of the limits of this traffic that several gateways share."""
    limits = IdleLimits(known)
    limiters = (
        limits.of_quota(found, broker)
        for found in known.policies.quota_store().effective_quotas(Entity(asked.user, asked.client_id))
        for broker in known.subject_brokers(asked)
    )
    keys = [*dict.fromkeys(limiter.key for limiter in limiters if limiter.scope == "fleet")]
    group = known.finder and known.finder.find_group(asked.topic, asked.principal)
    return [*keys, *groups.group_fleet_keys(group, known.policies.group_limits().get(group, ()))] if group else keys


def _collect_rules(case: ExplainCase) -> list[LimitDescription]:
    limits: dict[str, Callable[[ExplainCase], Iterator[LimitDescription]]] = {
        "storage": others.storage_rules,
        "quota": quotas.quota_rules,
        "group": groups.group_rules,
        "threshold": thresholds.threshold_rules,
        "plugin": others.plugin_rules,
    }
    asked = [
        rule._replace(mode="observe") if kind in case.observed else rule
        for kind in PartitionLimits._fields
        for rule in limits[kind](case)
    ]
    return [*others.protected_topic_rules(case), *asked, others.fence_rule(case), *quotas.broker_quota_rules(case)]


def _small_limit_notes(rules: Iterable[LimitDescription]) -> Iterator[str]:
    for level in (level for rule in rules for level in rule.levels if level.unit == "bytes/s"):
        if text := small_limit_text(level.configured):
            yield f"{level.what}: {text}"


def _shadowed_by_internal(rule: LimitDescription, why: str) -> ShadowedRule:
    what = " and ".join(level.what for level in rule.levels) or rule.note
    found = [level for level in rule.levels if level.unit != "%"]
    limits = [
        (exact_rate if level.unit == "bytes/s" else amount_text(level.unit))(level.configured)
        for level in found
        if level.configured is not None
    ]
    return ShadowedRule(rule.name, rule.broker, what, ", ".join(level.origin for level in rule.levels),
                    ", ".join(limits), why)  # fmt: skip


def _first_rule(rules: Sequence[LimitDescription]) -> LimitDescription | None:
    """Of the rules that limit now the strictest, then the one that is exceeded most; else the one with the least
    headroom.

    A quota on time can't be compared in bytes: it is first when it limits, or where no other can be compared.
    """
    enforced = [rule for rule in rules if rule.mode == "enforce" and rule.traffic != "fetch"]
    binding = [rule for rule in enforced if rule.limits_now]
    if binding:
        return max(binding, key=lambda rule: (STRICTNESS.get(rule.action, math.inf), sortable_ratio(rule.utilization)))
    comparable = [rule for rule in enforced if rule.headroom is not None]
    if comparable:
        return min(comparable, key=lambda rule: (rule.headroom, -sortable_ratio(rule.utilization)))
    return max(
        (rule for rule in enforced if rule.levels), key=lambda rule: sortable_ratio(rule.utilization), default=None
    )
