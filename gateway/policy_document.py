# Policies as a document, in YAML or JSON: what `policies export` prints and `policies apply` takes.
#
#     thresholds:
#       total: {default: 12MB, "2": 8MB}          # bytes per second; by broker id
#       total_out: 50MB                           # what consumers have shares of, written likewise
#       topics: {clicks: 5MB}
#     client_quotas:
#       - {user: alice, client_id: <default>, producer_byte_rate: 1MiB, request_percentage: 50}
#     resource_groups:
#       groups: {gold: {publishRateInBytes: 12MB, publishRateInMsgs: 100000}}
#       tenants: {acme: gold}
#       namespaces: {acme/orders: gold}
#
# Sizes are those of the configuration file. Names are written as they are; `<default>` is the default, and somebody who
# is really called so is {name: <default>}. Knows nothing of what is in force.

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

import yaml

from gateway import yaml_text
from gateway.name_hints import find_nearest_name, name_hint
from policies.definitions.policy_records import end_text
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import (
    BaseOrigin,
    InvalidPolicy,
    PolicyError,
    PolicyFault,
    PolicyKey,
    PolicyOperation,
    PolicySetting,
    PolicyValue,
    as_number,
    check_value,
    plain_number,
    policy_order,
)
from policies.groups.names import EXISTS, GROUP_KEYS, KEY_MEANINGS, rate_key
from policies.quotas.names import DEFAULT, DEFAULT_TEXT, UNITS, DefaultName, Entity, EntityName, QuotaError, QuotaKey
from policies.quotas.text import entity_text
from policies.thresholds.sums import EVERY_BROKER, NO_PLACES, oversized_texts
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY, TOTAL_OUT_KEY
from policies.units import exact_size, parse_size

NO_TOTALS: Final[Mapping[int | None, float]] = {}
MAX_ERRORS: Final = 20  # what else is wrong is only counted
_SECTIONS: Final = ("thresholds", "client_quotas", "resource_groups")
_THRESHOLDS: Final = {"total": TOTAL_KEY, "total_out": TOTAL_OUT_KEY, "topics": TOPIC_KEY}
_GROUPS: Final = ("groups", "tenants", "namespaces")
_FILE_ONLY: Final = ("topic_pattern", "principal_pattern", "mode")  # of resource_groups
_ENTITY: Final = ("user", "client_id")


class DocumentError(Exception):
    """The document can't be used. `lines`: one finding each, made for a human; `findings`: the same as place ("": not
    known, or everywhere) and fault.
    """

    def __init__(self, lines: Sequence[str], findings: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)
        self.findings = tuple(findings) or tuple(("", line) for line in lines)


def load_document(text: str, source: str = "document") -> Any:
    """YAML or JSON text as data; not judged yet. `source` stands before each finding.

    Raises:
        DocumentError: it is neither.
    """
    if text.lstrip().startswith("{"):  # YAML takes some characters in no way that JSON has
        try:
            return json.loads(text, object_pairs_hook=_refuse_duplicates)
        except (ValueError, RecursionError):
            pass  # YAML in braces, or its error is the better one
    try:
        return yaml_text.load_yaml(text, source)
    except yaml_text.YamlError as error:
        raise DocumentError([str(error)]) from error


def parse_document(text: str, source: str = "document") -> dict[PolicyKey, PolicyValue]:
    """Values of a YAML or JSON text; findings with the line where they are.

    Raises:
        DocumentError: everything that is wrong with it.
    """
    data = load_document(text, source)
    found = _DocumentReader()
    found.read_sections(data)
    if found.faults:
        lines = yaml_text.YamlLines(text)
        raise _document_error(found.faults, lambda path: f"{source}:{lines.find_line(path)}: ")
    return found.values


def read_document(data: Any, source: str = "") -> dict[PolicyKey, PolicyValue]:
    """Values of a document that is data already, as a request's body brings it.

    Raises:
        DocumentError: everything that is wrong with it.
    """
    found = _DocumentReader()
    found.read_sections(data)
    if found.faults:
        raise _document_error(found.faults, lambda _: f"{source}: " if source else "")
    return found.values


def configured_policies(
    total: float | None,
    topics: Mapping[str, float],
    brokers: Mapping[int, float],
    client_quotas: Sequence[Any] = (),
    resource_groups: Mapping[str, Any] | None = None,
    out: Mapping[int | None, float] = NO_TOTALS,
) -> dict[PolicyKey, PolicyValue]:
    """The base: the values of the configuration file's sections. `client_quotas`, `resource_groups`: as a document has
    them. `out`: TOTAL_OUT_KEY by broker, None: the default of all brokers.

    Raises:
        DocumentError: the faults of client_quotas or resource_groups.
        PolicyError: values that can't be, or contradict each other.
    """
    values: dict[PolicyKey, PolicyValue] = {} if total is None else {PolicyKey.of_broker(): float(total)}
    values |= {PolicyKey.of_broker(broker_id): float(value) for broker_id, value in brokers.items()}
    values |= {PolicyKey.of_broker(broker_id, TOTAL_OUT_KEY): float(value) for broker_id, value in out.items()}
    values |= {PolicyKey.of_topic(name): float(value) for name, value in topics.items()}
    thresholds = [PolicyOperation(key, value) for key, value in values.items()]
    values |= read_document({"client_quotas": list(client_quotas), "resource_groups": resource_groups})
    # Which topics a broker has is known when the gateway runs.
    PolicySet().alter_policies(sorted(thresholds, key=lambda op: policy_order(op.key)), places=NO_PLACES)
    totals = {key.name: as_number(value) for key, value in values.items() if key.key == TOTAL_KEY}
    if oversized := oversized_texts(totals, topics):
        raise PolicyError([PolicyFault(PolicyKey.of_topic(name), text) for name, text in oversized.items()])
    PolicySet.from_base(values, NO_PLACES)
    return values


def export_policies(policies: PolicySet) -> dict[str, Any]:
    """All values in force as a document; applied to an empty set it gives the same ones."""
    thresholds: dict[str, dict[str, Any]] = {name: {} for name in _THRESHOLDS}
    quotas: dict[Entity, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    attached: dict[str, dict[str, Any]] = {"tenants": {}, "namespaces": {}}
    for setting in policies.list_settings():
        key = setting.key
        if key.kind == "storage":
            continue  # it ends by itself
        if isinstance(setting.value, str):
            attached[f"{key.kind}s"][key.name] = setting.value
            continue
        value = setting.value
        if key.kind == "group":
            rates = groups.setdefault(key.name, {})
            if key.key != EXISTS:
                rates[key.key] = exact_size(value) if _is_bytes(key) else plain_number(value)
        elif key.kind == "topic":
            thresholds["topics"][key.name] = exact_size(value)
        elif key.kind == "broker":
            name = "total" if key.key == TOTAL_KEY else "total_out"
            thresholds[name]["default" if key.name == EVERY_BROKER else key.name] = exact_size(value)
        else:
            quotas.setdefault(key.entity, {})[key.key] = exact_size(value) if _is_bytes(key) else plain_number(value)
    thresholds = {name: part for name, part in thresholds.items() if part}
    entries = [{**_entity_fields(entity), **values} for entity, values in quotas.items()]
    of_groups = {name: part for name, part in (("groups", groups), *attached.items()) if part}
    parts = (("thresholds", thresholds), ("client_quotas", entries), ("resource_groups", of_groups))
    return {name: part for name, part in parts if part}


def _is_bytes(key: PolicyKey) -> bool:
    return KEY_MEANINGS[key.key][1] == "bytes" if key.kind == "group" else key.quota_key.unit in ("bps", "broker_bps")


def describe_origins(settings: Iterable[PolicySetting], base: BaseOrigin) -> list[dict[str, Any]]:
    """Each key as `describe_setting` has it."""
    return [describe_setting(setting, base) for setting in settings]


def describe_setting(setting: PolicySetting, base: BaseOrigin) -> dict[str, Any]:
    """A key with its values in the base (`file`, which `base_origin` gave) and at run time, and the one of them in
    force; `until`: the end of the value at run time, if it has one, and `then` the earlier value at run time, which
    will hold again.
    """
    return {
        **setting.key._asdict(),
        "value": plain_number(setting.value),
        "origin": setting.origin(base),
        "base_origin": base(setting.key),
        "file": plain_number(setting.base),
        "run_time": plain_number(setting.change),
        "until": end_text(setting.end),
        "then": None if setting.end is None else plain_number(setting.end.then),
    }


def render_document(document: Mapping[str, Any], *, as_json: bool = False) -> str:
    """The document as text, with a line break at its end; escaped where it isn't ASCII, since a terminal's encoding may
    lack letters of a name.
    """
    if as_json:
        return json.dumps(document, indent=2) + "\n"
    if not document:
        return "{}\n"
    return str(yaml.dump(dict(document), Dumper=_PolicyDumper, sort_keys=False, width=120))


class _DocumentReader:
    """Goes through data, keeps values, and notes each fault with its path."""

    def __init__(self) -> None:
        self.values: dict[PolicyKey, PolicyValue] = {}
        self.faults: list[tuple[tuple[Hashable, ...], str]] = []

    def read_sections(self, data: Any) -> None:
        for name, part in self._checked_items((), data, _SECTIONS):
            if name == "thresholds":
                self._read_thresholds((name,), part)
            elif name == "resource_groups":
                self._read_groups((name,), part)
            elif isinstance(part, list):
                self._read_quotas((name,), part)
            elif part is not None:
                self._add_fault((name,), "a list of quotas is needed here: - {user: alice, producer_byte_rate: 1MB}")

    def _read_thresholds(self, path: tuple[Hashable, ...], data: Any) -> None:
        for name, part in self._checked_items(path, data, tuple(_THRESHOLDS)):
            here = (*path, name)
            if name == "topics":
                for topic, value in self._checked_items(here, part):
                    self._check_and_set((*here, topic), PolicyKey.of_topic(topic), _read_size, value)
            elif isinstance(part, Mapping):
                for broker, value in self._checked_items(
                    here, {_broker_text(key): value for key, value in part.items()}
                ):
                    text = EVERY_BROKER if broker == "default" else broker or "''"
                    self._check_and_set(
                        (*here, broker), PolicyKey("broker", text, _THRESHOLDS[name]), _read_size, value
                    )
            elif part is not None:
                self._check_and_set(here, PolicyKey.of_broker(key=_THRESHOLDS[name]), _read_size, part)

    def _read_groups(self, path: tuple[Hashable, ...], data: Any) -> None:
        if isinstance(data, Mapping):
            for name in (name for name in _FILE_ONLY if name in data):
                self._add_fault(
                    (*path, name), "is the configuration file's: it can't be changed while the gateway runs"
                )
            data = {name: part for name, part in data.items() if name not in _FILE_ONLY}
        for name, part in self._checked_items(path, data, _GROUPS):
            here = (*path, name)
            for key, value in self._checked_items(here, part):
                if name == "groups":
                    self._read_group((*here, key), key, value)
                elif name == "tenants":
                    self._check_and_set((*here, key), PolicyKey.of_tenant(key), _read_group_name, value)
                else:
                    self._check_and_set(
                        (*here, key), PolicyKey.of_namespace("", "")._replace(name=key), _read_group_name, value
                    )

    def _read_group(self, path: tuple[Hashable, ...], group: str, rates: Any) -> None:
        self._check_and_set(path, PolicyKey.of_group(group), _read_number, 1)
        for name, value in self._checked_items(path, rates):
            key = rate_key(name)
            here = (*path, name)
            if key is None:
                self._add_fault(here, f"unknown key; {name_hint(name, GROUP_KEYS)}")
                continue
            put = PolicyKey.of_group(group, key)
            if put in self.values:
                self._add_fault(here, f"{key} is given twice")
            self._check_and_set(here, put, _read_size if _is_bytes(put) else _read_number, value)

    def _read_quotas(self, path: tuple[Hashable, ...], entries: list[Any]) -> None:
        seen: dict[Entity, int] = {}
        for index, entry in enumerate(entries):
            here = (*path, index)
            quotas = dict(self._checked_items(here, entry))
            others = [name for name in quotas if name not in _ENTITY and name not in UNITS]
            misspelled = [name for name in others if find_nearest_name(name, _ENTITY, 0.7)]
            for name in misspelled:
                self._add_fault((*here, name), f"unknown key; {name_hint(name, _ENTITY)}")
            if misspelled or not isinstance(entry, Mapping | None):
                continue
            try:
                names = {name: _entity_name(name, quotas.pop(name)) for name in _ENTITY if name in quotas}
                entity = Entity(*(names.get(name) for name in _ENTITY)).validate_entity()
            except ValueError as error:
                self._add_fault(here, str(error))
                continue
            if entity in seen:
                self._add_fault(here, f"{entity_text(entity)} is there already, as client_quotas.{seen[entity]}")
            seen.setdefault(entity, index)
            if not quotas:
                self._add_fault(here, f"{entity_text(entity)} has no quota: write for example producer_byte_rate: 1MB")
            for name, value in quotas.items():
                self._read_quota((*here, name), entity, name, value)

    def _read_quota(self, path: tuple[Hashable, ...], entity: Entity, name: str, value: Any) -> None:
        try:
            key = QuotaKey.parse(name)
        except QuotaError as error:
            self._add_fault(path, str(error))
            return
        put = PolicyKey.of_quota(entity, key)
        if put in self.values:
            self._add_fault(path, f"{key} is given twice")
        read = _read_size if key.unit in ("bps", "broker_bps") else _read_number
        self._set_value(path, put, read, value)

    def _checked_items(self, path: tuple[Hashable, ...], data: Any, known: Sequence[str] = ()) -> list[tuple[str, Any]]:
        if data is None and path != ():
            return []
        if not isinstance(data, Mapping):
            wanted = f"such as {', '.join(f'{name}:' for name in known)} " if known else ""
            self._add_fault(path, f"keys {wanted}with values are needed here, not {_short_text(data)}")
            return []
        items = []
        for key, value in data.items():
            if not isinstance(key, str):
                self._add_fault(
                    (*path, key), f"YAML takes this key for no text but {type(key).__name__}: put it in quotes"
                )
            elif known and key not in known:
                self._add_fault((*path, key), f"unknown key; {name_hint(key, known)}")
            else:
                items.append((key, value))
        return items

    def _check_and_set(
        self, path: tuple[Hashable, ...], key: PolicyKey, read: Callable[[Any], PolicyValue], value: Any
    ) -> None:
        try:
            self._set_value(path, key.validate_key(), read, value)
        except InvalidPolicy as error:
            self._add_fault(path, str(error))

    def _set_value(
        self, path: tuple[Hashable, ...], key: PolicyKey, read: Callable[[Any], PolicyValue], value: Any
    ) -> None:
        """`key`: in its one spelling."""
        try:
            self.values[key] = check_value(key, read(value))
        except (InvalidPolicy, ValueError, OverflowError) as error:
            self._add_fault(path, str(error))

    def _add_fault(self, path: tuple[Hashable, ...], text: str) -> None:
        self.faults.append((path, text))


def _document_error(
    faults: Sequence[tuple[tuple[Hashable, ...], str]], place: Callable[[tuple[Hashable, ...]], str]
) -> DocumentError:
    lines, findings = [], []
    for path, text in faults[:MAX_ERRORS]:
        where = ".".join(map(str, path))
        findings.append((where, text))
        lines.append(f"{place(path)}{where}: {text}" if where else f"{place(path)}{text}")
    if len(faults) > MAX_ERRORS:
        lines.append(f"… and {len(faults) - MAX_ERRORS} more")
        findings.append(("", lines[-1]))
    return DocumentError(lines, findings)


def _read_size(value: Any) -> float:
    return _read_number(parse_size(value))


def _read_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidPolicy(f"a number is needed here, not {_short_text(value)}")
    if not math.isfinite(value):
        raise InvalidPolicy(f"{value} is not a finite number")
    return float(value)


def _read_group_name(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidPolicy(f"the name of a group is needed here, not {_short_text(value)}")
    return value


def _entity_name(entity_type: str, value: Any) -> EntityName:
    if isinstance(value, Mapping) and set(value) == {"name"}:
        value = value["name"]
        if isinstance(value, str):
            return value
    if value is None:  # else it would hold for all users, or all client ids
        raise InvalidPolicy(
            f"{entity_type}: is empty: leave it out, write {DEFAULT_TEXT}, or put a name such as null in quotes"
        )
    if isinstance(value, str):
        return DEFAULT if value == DEFAULT_TEXT else value
    raise InvalidPolicy(f"{entity_type}: YAML takes {_short_text(value)} for no text: put it in quotes")


def _entity_fields(entity: Entity) -> dict[str, Any]:
    given = zip(_ENTITY, entity, strict=True)
    return {
        name: DEFAULT_TEXT if isinstance(who, DefaultName) else {"name": who} if who == DEFAULT_TEXT else who
        for name, who in given
        if who is not None
    }


def _broker_text(key: Any) -> Any:
    """An id needn't be in quotes."""
    return str(key) if type(key) is int else key


def _short_text(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return "keys with values" if isinstance(value, Mapping) else "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is there twice")
    return made


class _PolicyDumper(yaml.SafeDumper):
    """Each client quota on a line of its own."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        node = super().represent_sequence(tag, sequence, flow_style=False)
        for item in node.value:
            item.flow_style = True
        return node

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Only double quotes have escapes; in single ones PyYAML writes some line breaks so that it can't read them."""
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


_PolicyDumper.add_representer(str, _PolicyDumper.represent_str)
