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
from gateway.cli_support.suggest import hint, nearest
from policies.definitions.policy_records import time_text
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import (
    Fault,
    InvalidPolicy,
    Op,
    PolicyError,
    PolicyKey,
    Setting,
    Value,
    as_number,
    check_value,
    order,
)
from policies.groups.names import EXISTS, GROUP_KEYS, MEANS, rate_key
from policies.quotas.names import DEFAULT, DEFAULT_TEXT, UNITS, Default, Entity, Name, QuotaError, QuotaKey
from policies.quotas.text import entity_text
from policies.thresholds.sums import EVERY_BROKER, NOWHERE, oversized_texts
from policies.thresholds.values import OUT_KEY, TOPIC_KEY, TOTAL_KEY
from policies.units import exact_size, parse_size

NO_TOTALS: Final[Mapping[int | None, float]] = {}
MAX_ERRORS: Final = 20  # what else is wrong is only counted
_SECTIONS: Final = ("thresholds", "client_quotas", "resource_groups")
_THRESHOLDS: Final = {"total": TOTAL_KEY, "total_out": OUT_KEY, "topics": TOPIC_KEY}
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


def load(text: str, source: str = "document") -> Any:
    """YAML or JSON text as data; not judged yet. `source` stands before each finding.

    Raises:
        DocumentError: it is neither.
    """
    if text.lstrip().startswith("{"):  # YAML takes some characters in no way that JSON has
        try:
            return json.loads(text, object_pairs_hook=_once)
        except (ValueError, RecursionError):
            pass  # YAML in braces, or its error is the better one
    try:
        return yaml_text.load(text, source)
    except yaml_text.YamlError as error:
        raise DocumentError([str(error)]) from error


def parse(text: str, source: str = "document") -> dict[PolicyKey, Value]:
    """Values of a YAML or JSON text; findings with the line where they are.

    Raises:
        DocumentError: everything that is wrong with it.
    """
    data = load(text, source)
    found = _Reading()
    found.document(data)
    if found.faults:
        lines = yaml_text.Lines(text)
        raise _refusal(found.faults, lambda path: f"{source}:{lines.line(path)}: ")
    return found.values


def of_data(data: Any, source: str = "") -> dict[PolicyKey, Value]:
    """Values of a document that is data already, as a request's body brings it.

    Raises:
        DocumentError: everything that is wrong with it.
    """
    found = _Reading()
    found.document(data)
    if found.faults:
        raise _refusal(found.faults, lambda _: f"{source}: " if source else "")
    return found.values


def base_of(
    total: float | None,
    topics: Mapping[str, float],
    brokers: Mapping[int, float],
    client_quotas: Sequence[Any] = (),
    resource_groups: Mapping[str, Any] | None = None,
    out: Mapping[int | None, float] = NO_TOTALS,
) -> dict[PolicyKey, Value]:
    """The base: the values of the configuration file's sections. `client_quotas`, `resource_groups`: as a document has
    them. `out`: OUT_KEY by broker, None: the default of all brokers.

    Raises:
        DocumentError: the faults of client_quotas or resource_groups.
        PolicyError: values that can't be, or contradict each other.
    """
    values: dict[PolicyKey, Value] = {} if total is None else {PolicyKey.of_broker(): float(total)}
    values |= {PolicyKey.of_broker(broker_id): float(value) for broker_id, value in brokers.items()}
    values |= {PolicyKey.of_broker(broker_id, OUT_KEY): float(value) for broker_id, value in out.items()}
    values |= {PolicyKey.of_topic(name): float(value) for name, value in topics.items()}
    thresholds = [Op(key, value) for key, value in values.items()]
    values |= of_data({"client_quotas": list(client_quotas), "resource_groups": resource_groups})
    # Which topics a broker has is known when the gateway runs.
    PolicySet().alter(sorted(thresholds, key=lambda op: order(op.key)), places=NOWHERE)
    totals = {key.name: as_number(value) for key, value in values.items() if key.key == TOTAL_KEY}
    if oversized := oversized_texts(totals, topics):
        raise PolicyError([Fault(PolicyKey.of_topic(name), text) for name, text in oversized.items()])
    PolicySet.of_base(values, NOWHERE)
    return values


def export(policies: PolicySet) -> dict[str, Any]:
    """All values in force as a document; applied to an empty set it gives the same ones."""
    thresholds: dict[str, dict[str, Any]] = {name: {} for name in _THRESHOLDS}
    quotas: dict[Entity, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    attached: dict[str, dict[str, Any]] = {"tenants": {}, "namespaces": {}}
    for setting in policies.settings():
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
                rates[key.key] = exact_size(value) if _is_bytes(key) else _plain(value)
        elif key.kind == "topic":
            thresholds["topics"][key.name] = exact_size(value)
        elif key.kind == "broker":
            name = "total" if key.key == TOTAL_KEY else "total_out"
            thresholds[name]["default" if key.name == EVERY_BROKER else key.name] = exact_size(value)
        else:
            quotas.setdefault(key.entity, {})[key.key] = exact_size(value) if _is_bytes(key) else _plain(value)
    thresholds = {name: part for name, part in thresholds.items() if part}
    entries = [{**_names(entity), **values} for entity, values in quotas.items()]
    of_groups = {name: part for name, part in (("groups", groups), *attached.items()) if part}
    parts = (("thresholds", thresholds), ("client_quotas", entries), ("resource_groups", of_groups))
    return {name: part for name, part in parts if part}


def _is_bytes(key: PolicyKey) -> bool:
    return MEANS[key.key][1] == "bytes" if key.kind == "group" else key.quota.unit in ("bps", "broker_bps")


def origins(settings: Iterable[Setting]) -> list[dict[str, Any]]:
    """Each key with its values in the file and at run time, and the one of them in force; `until`: the end of the value
    at run time, if it has one, and `then` the earlier value at run time, which will hold again.
    """
    return [
        {
            **setting.key._asdict(),
            "value": _plain(setting.value),
            "origin": setting.origin,
            "file": _plain(setting.base),
            "run_time": _plain(setting.change),
            "until": time_text(setting.end),
            "then": None if setting.end is None else _plain(setting.end.then),
        }
        for setting in settings
    ]


def render(document: Mapping[str, Any], *, as_json: bool = False) -> str:
    """The document as text, with a line break at its end."""
    if as_json:
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if not document:
        return "{}\n"
    return str(yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


class _Reading:
    """Goes through data, keeps values, and notes each fault with its path."""

    def __init__(self) -> None:
        self.values: dict[PolicyKey, Value] = {}
        self.faults: list[tuple[tuple[Hashable, ...], str]] = []

    def document(self, data: Any) -> None:
        for name, part in self._items((), data, _SECTIONS):
            if name == "thresholds":
                self._thresholds((name,), part)
            elif name == "resource_groups":
                self._groups((name,), part)
            elif isinstance(part, list):
                self._quotas((name,), part)
            elif part is not None:
                self._fault((name,), "a list of quotas is needed here: - {user: alice, producer_byte_rate: 1MB}")

    def _thresholds(self, path: tuple[Hashable, ...], data: Any) -> None:
        for name, part in self._items(path, data, tuple(_THRESHOLDS)):
            here = (*path, name)
            if name == "topics":
                for topic, value in self._items(here, part):
                    self._put((*here, topic), PolicyKey.of_topic(topic), _size, value)
            elif isinstance(part, Mapping):
                for broker, value in self._items(here, {_broker(key): value for key, value in part.items()}):
                    text = EVERY_BROKER if broker == "default" else broker or "''"
                    self._put((*here, broker), PolicyKey("broker", text, _THRESHOLDS[name]), _size, value)
            elif part is not None:
                self._put(here, PolicyKey.of_broker(key=_THRESHOLDS[name]), _size, part)

    def _groups(self, path: tuple[Hashable, ...], data: Any) -> None:
        if isinstance(data, Mapping):
            for name in (name for name in _FILE_ONLY if name in data):
                self._fault((*path, name), "is the configuration file's: it can't be changed while the gateway runs")
            data = {name: part for name, part in data.items() if name not in _FILE_ONLY}
        for name, part in self._items(path, data, _GROUPS):
            here = (*path, name)
            for key, value in self._items(here, part):
                if name == "groups":
                    self._group((*here, key), key, value)
                elif name == "tenants":
                    self._put((*here, key), PolicyKey.of_tenant(key), _text, value)
                else:
                    self._put((*here, key), PolicyKey.of_namespace("", "")._replace(name=key), _text, value)

    def _group(self, path: tuple[Hashable, ...], group: str, rates: Any) -> None:
        self._put(path, PolicyKey.of_group(group), _number, 1)
        for name, value in self._items(path, rates):
            key = rate_key(name)
            here = (*path, name)
            if key is None:
                self._fault(here, f"unknown key; {hint(name, GROUP_KEYS)}")
                continue
            put = PolicyKey.of_group(group, key)
            if put in self.values:
                self._fault(here, f"{key} is given twice")
            self._put(here, put, _size if _is_bytes(put) else _number, value)

    def _quotas(self, path: tuple[Hashable, ...], entries: list[Any]) -> None:
        seen: dict[Entity, int] = {}
        for index, entry in enumerate(entries):
            here = (*path, index)
            quotas = dict(self._items(here, entry))
            others = [name for name in quotas if name not in _ENTITY and name not in UNITS]
            misspelled = [name for name in others if nearest(name, _ENTITY, 0.7)]
            for name in misspelled:
                self._fault((*here, name), hint(name, _ENTITY))
            if misspelled or not isinstance(entry, Mapping | None):
                continue
            try:
                entity = Entity(*(_name(name, quotas.pop(name, None)) for name in _ENTITY)).checked()
            except ValueError as error:
                self._fault(here, str(error))
                continue
            if entity in seen:
                self._fault(here, f"{entity_text(entity)} is there already, as client_quotas.{seen[entity]}")
            seen.setdefault(entity, index)
            if not quotas:
                self._fault(here, f"{entity_text(entity)} has no quota: write for example producer_byte_rate: 1MB")
            for name, value in quotas.items():
                self._quota((*here, name), entity, name, value)

    def _quota(self, path: tuple[Hashable, ...], entity: Entity, name: str, value: Any) -> None:
        try:
            key = QuotaKey.parse(name)
        except QuotaError as error:
            self._fault(path, str(error))
            return
        put = PolicyKey.of_quota(entity, key)
        if put in self.values:
            self._fault(path, f"{key} is given twice")
        read = _size if key.unit in ("bps", "broker_bps") else _number
        self._set(path, put, read, value)

    def _items(self, path: tuple[Hashable, ...], data: Any, known: Sequence[str] = ()) -> list[tuple[str, Any]]:
        if data is None and path != ():
            return []
        if not isinstance(data, Mapping):
            wanted = f"such as {', '.join(f'{name}:' for name in known)} " if known else ""
            self._fault(path, f"keys {wanted}with values are needed here, not {_short(data)}")
            return []
        items = []
        for key, value in data.items():
            if not isinstance(key, str):
                self._fault((*path, key), f"YAML takes this key for no text but {type(key).__name__}: put it in quotes")
            elif known and key not in known:
                self._fault((*path, key), f"unknown key; {hint(key, known)}")
            else:
                items.append((key, value))
        return items

    def _put(self, path: tuple[Hashable, ...], key: PolicyKey, read: Callable[[Any], Value], value: Any) -> None:
        try:
            self._set(path, key.checked(), read, value)
        except InvalidPolicy as error:
            self._fault(path, str(error))

    def _set(self, path: tuple[Hashable, ...], key: PolicyKey, read: Callable[[Any], Value], value: Any) -> None:
        """`key`: in its one spelling."""
        try:
            self.values[key] = check_value(key, read(value))
        except (InvalidPolicy, ValueError, OverflowError) as error:
            self._fault(path, str(error))

    def _fault(self, path: tuple[Hashable, ...], text: str) -> None:
        self.faults.append((path, text))


def _refusal(
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


def _size(value: Any) -> float:
    return _number(parse_size(value))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidPolicy(f"a number is needed here, not {_short(value)}")
    if not math.isfinite(value):
        raise InvalidPolicy(f"{value} is not a finite number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidPolicy(f"the name of a group is needed here, not {_short(value)}")
    return value


def _name(entity_type: str, value: Any) -> Name:
    if isinstance(value, Mapping) and set(value) == {"name"}:
        value = value["name"]
        if isinstance(value, str):
            return value
    if value is None or isinstance(value, str):
        return DEFAULT if value == DEFAULT_TEXT else value
    raise InvalidPolicy(f"{entity_type}: YAML takes {_short(value)} for no text: put it in quotes")


def _names(entity: Entity) -> dict[str, Any]:
    given = zip(_ENTITY, entity, strict=True)
    return {
        name: DEFAULT_TEXT if isinstance(who, Default) else {"name": who} if who == DEFAULT_TEXT else who
        for name, who in given
        if who is not None
    }


def _broker(key: Any) -> Any:
    """An id needn't be in quotes."""
    return str(key) if type(key) is int else key


def _plain(value: Value | None) -> Any:
    return int(value) if isinstance(value, int | float) and value == int(value) else value


def _short(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return "keys with values" if isinstance(value, Mapping) else "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is there twice")
    return made


class _Dumper(yaml.SafeDumper):
    """Each client quota on a line of its own."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        node = super().represent_sequence(tag, sequence, flow_style=False)
        for item in node.value:
            item.flow_style = True
        return node

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Only double quotes have escapes; in single ones PyYAML writes some line breaks so that it can't read them."""
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.represent_str)
