# Client quotas as data, for `kafka-quotas`: what --list and --describe print as JSON or YAML, and what --import takes:
# the section `client_quotas` of a configuration or of `policies export`. Pure but for reading the file.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway import policy_document, yaml_text
from gateway.quotas.client import BrokerOnlyQuota, DescribedQuotas, EnforcedQuota, EntityPairs
from policies.quotas.names import CLIENT_ID, Entity, QuotaError, QuotaKey
from policies.quotas.store import Alteration, EntityValues, Op, ResolvedQuota
from policies.quotas.text import entity_text, quota_text
from policies.units import format_time

_DEFAULT = "<default>"


def list_as_data(described: Sequence[DescribedQuotas]) -> dict[str, Any]:
    """--list: what is set in `client_quotas`, which --import takes; the ends of these values in `until`; what only
    brokers enforce in `brokers`.
    """
    ours = [{**_entity_as_data(each.pairs), **_values_as_data(each.values)} for each in described if each.values]
    ends = [
        {**_entity_as_data(each.pairs), **{str(key): format_time(int(end)) for key, end in each.ends.items()}}
        for each in described
        if each.ends
    ]
    brokers = [
        {**_entity_as_data(each.pairs), **_values_as_data(each.upstream), **each.others}
        for each in described
        if each.upstream or each.others
    ]
    return {"client_quotas": ours, **({"until": ends} if ends else {}), **({"brokers": brokers} if brokers else {})}


def enforced_as_data(found: Sequence[EnforcedQuota], others: Sequence[BrokerOnlyQuota]) -> dict[str, Any]:
    """--describe: each key's value in force, its enforcer, and what it overrides (null: not asked for)."""
    return {
        "quotas": [
            {
                **_effective_as_data(each.effective),
                "by": each.by,
                "enforce_percent": each.percent,
                "also": None if each.also is None else _effective_as_data(each.also),
            }
            for each in found
        ],
        "brokers": [
            {"key": key, "value": value, "entity": _entity_as_data(source.wire_pairs)}
            for key, source, value, _ in others
        ],
    }


def _effective_as_data(effective: ResolvedQuota) -> dict[str, Any]:
    overridden = effective.overridden
    return {
        "key": str(effective.key),
        "value": effective.value,
        "entity": _entity_as_data(effective.source.wire_pairs),
        "overridden": None
        if overridden is None
        else [{"value": value, "entity": _entity_as_data(source.wire_pairs)} for source, value in overridden],
    }


def _entity_as_data(pairs: EntityPairs) -> dict[str, Any]:
    """As the configuration has them: who is really called <default> is {name: <default>}."""
    return {
        "client_id" if kind == CLIENT_ID else kind: _DEFAULT
        if name is None
        else {"name": name}
        if name == _DEFAULT
        else name
        for kind, name in pairs
    }


def set_value_text(described: DescribedQuotas, key: QuotaKey) -> str:
    """The gateway's value of that key, and its end, if it has one."""
    text, end_ms = quota_text(key, described.values[key]), described.ends.get(key)
    return text if end_ms is None else f"{text} until {format_time(int(end_ms))}"


def _values_as_data(values: EntityValues) -> dict[str, float]:
    return {str(key): int(value) if value == int(value) else value for key, value in values.items()}


def read_quota_file(name: str) -> dict[Entity, dict[QuotaKey, float]]:
    """The quotas of a file, by entity; "-": of standard input.

    Raises:
        QuotaError: it can't be read, or its faults, each with its line.
    """
    source = yaml_text.STDIN_NAME if name == "-" else name
    try:
        text = yaml_text.read_input(name)
        data = policy_document.load_document(text, source)
        entries = data.get("client_quotas") if isinstance(data, Mapping) else data
        if not isinstance(entries, list):
            raise QuotaError(
                f"{source}: a list of quotas is needed, or client_quotas: with one, as --list -o yaml has it"
            )
        values = policy_document.read_document({"client_quotas": entries}, source)
    except (yaml_text.YamlError, policy_document.DocumentError) as error:
        raise QuotaError(str(error)) from error
    found: dict[Entity, dict[QuotaKey, float]] = {}
    for key, value in values.items():
        found.setdefault(key.entity, {})[key.quota_key] = float(value)
    return found


def plan_changes(
    wanted: Mapping[Entity, EntityValues], described: Sequence[DescribedQuotas]
) -> list[tuple[Alteration, list[str]]]:
    """The changes that make the wanted entities have just these values, for good, each with its lines of a diff.
    Entities that aren't named keep theirs.
    """
    have = {each.entity: each for each in described if each.entity is not None}
    changes = []
    for entity, values in wanted.items():
        known = have.get(entity, DescribedQuotas(entity.wire_pairs, {}, {}))
        before = known.values
        gone = [key for key in before if key not in values]
        new = [key for key, value in values.items() if before.get(key) != value or key in known.ends]
        if gone or new:
            ops = [*(Op(key.wire_name, None) for key in gone), *(Op(key.wire_name, values[key]) for key in new)]
            lines = [
                entity_text(entity),
                *(f"-{set_value_text(known, key)}" for key in (*gone, *new) if key in before),
                # A key that brokers know is removed there as well.
                *(f"-{quota_text(key, known.upstream[key])} (brokers)" for key in gone if key in known.upstream),
                *(f"+{quota_text(key, values[key])}" for key in new),
            ]
            changes.append((Alteration(entity.wire_pairs, ops), lines))
    return changes
