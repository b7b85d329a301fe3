# One policy that can be changed at run time: its key, the values that it can have, and what it means to set, change or
# refuse one. A change may have an end (`ValueEnd`): then the value that it replaced holds again. policy_set.py says
# which of them go together. Knows no file and no clock.

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, get_args

from policies.groups.names import (
    ATTACHMENT_KEY,
    EXISTS,
    GROUP_KEYS,
    GroupNameError,
    check_group,
    check_namespace,
    check_rate,
    check_tenant,
    rate_text,
)
from policies.quotas import store as client_quotas
from policies.quotas.names import Entity, QuotaError, QuotaKey
from policies.quotas.text import entity_text
from policies.storage import InvalidOverride, StorageOverride
from policies.thresholds.sums import EVERY_BROKER
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY, TOTAL_OUT_KEY, ThresholdError, check_thresholds
from policies.units import LAST_TIME_MS, exact_number, exact_rate, format_time

PolicyKind = Literal["topic", "broker", "quota", "group", "tenant", "namespace", "storage"]
BaseOrigin = Callable[["PolicyKey"], str]  # where the base's value of a key comes from, in a word or two
PolicyValue = float | str  # of what something is attached to: a name; of everything else: a number
PolicyValues = Mapping["PolicyKey", PolicyValue]

MAX_LISTED_KEYS: Final = 5
NO_VALUES: Final[PolicyValues] = MappingProxyType({})
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_BROKER_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_BROKER_ID: Final = 2**31 - 1  # Kafka's INT
ATTACHABLE_KINDS: Final[tuple[PolicyKind, ...]] = ("tenant", "namespace")  # to groups
TEXT_KINDS: Final[tuple[PolicyKind, ...]] = (*ATTACHABLE_KINDS, "storage")  # their values are no numbers
OVERRIDE_KEY: Final = "override"  # of storage protection
ENDLESS_KEYS: Final = (EXISTS, ATTACHMENT_KEY)  # only limits have an end
GROUP_KINDS: Final[tuple[PolicyKind, ...]] = ("group", *ATTACHABLE_KINDS)


class InvalidPolicy(ValueError):
    """An impossible key, or an operation that the key doesn't allow: the text names the fault and a valid form."""


def is_topic_name(name: str) -> bool:
    """Whether a topic may have that name."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


class PolicyKey(NamedTuple):
    """The subject of one value.

    `name`: the topic; the broker's id, or EVERY_BROKER; the entity's `path`; the group; the tenant, or
    "tenant/namespace". `key`: the threshold's config key; the quota's key as the wire spells it; of a group a rate, or
    EXISTS, which alone makes a group without limits; ATTACHMENT_KEY. Of storage: no name, and OVERRIDE_KEY.
    """

    kind: PolicyKind
    name: str
    key: str

    @classmethod
    def of_topic(cls, topic: str) -> PolicyKey:
        return cls("topic", topic, TOPIC_KEY)

    @classmethod
    def of_broker(cls, broker_id: int | None = None, key: str = TOTAL_KEY) -> PolicyKey:
        """The key of a broker's total. None: the default of all brokers. `key`: or TOTAL_OUT_KEY."""
        return cls("broker", EVERY_BROKER if broker_id is None else str(broker_id), key)

    @classmethod
    def of_quota(cls, entity: Entity, key: QuotaKey) -> PolicyKey:
        return cls("quota", entity.path, key.wire_name)

    @classmethod
    def of_group(cls, group: str, key: str = EXISTS) -> PolicyKey:
        return cls("group", group, key)

    @classmethod
    def of_tenant(cls, tenant: str) -> PolicyKey:
        return cls("tenant", tenant, ATTACHMENT_KEY)

    @classmethod
    def of_namespace(cls, tenant: str, namespace: str) -> PolicyKey:
        return cls("namespace", f"{tenant}/{namespace}", ATTACHMENT_KEY)

    @classmethod
    def of_storage(cls) -> PolicyKey:
        return cls("storage", "", OVERRIDE_KEY)

    def validate_key(self) -> PolicyKey:
        """The same key in its one spelling.

        Raises:
            InvalidPolicy: there is no such key.
        """
        if self.kind == "quota":
            try:
                return self.of_quota(Entity.from_path(self.name), QuotaKey.parse(self.key))
            except QuotaError as error:
                raise InvalidPolicy(str(error)) from error
        if self.kind not in get_args(PolicyKind):
            raise InvalidPolicy(f"{self.kind!r} is not a kind of policy: known are {', '.join(get_args(PolicyKind))}")
        right = _KEYS_BY_KIND[self.kind]
        if self.key not in right:
            known = f"known is {right[0]}" if len(right) == 1 else f"known are {', '.join(right)}"
            raise InvalidPolicy(f"{self.kind} {self.name}: unknown key {self.key!r}: {known}")
        if self.kind in _NAME_CHECKS:
            try:
                _NAME_CHECKS[self.kind](self.name)
            except GroupNameError as error:
                raise InvalidPolicy(str(error)) from error
        if self.kind == "storage" and self.name:
            raise InvalidPolicy(f"storage {self.name!r}: it has no name: it is about the whole cluster")
        if self.kind == "topic" and not is_topic_name(self.name):
            raise InvalidPolicy(
                f"{self.name!r} can't be a topic's name: letters, digits, '.', '_' and '-', at most 249"
            )
        if self.kind == "broker" and self.name != EVERY_BROKER and not _is_broker_id(self.name):
            raise InvalidPolicy(
                f"{self.name!r} is not a valid broker id: a number is needed, or the default for all brokers"
            )
        return self

    @property
    def entity(self) -> Entity:
        """The entity of a quota's key."""
        return Entity.from_path(self.name)

    @property
    def quota_key(self) -> QuotaKey:
        """The quota key of a quota's key."""
        return QuotaKey.parse(self.key)

    @property
    def file_location(self) -> str:
        """The place of the base's value in the configuration file, which may name a source for some."""
        if self.kind == "topic":
            return f"thresholds.topics.{self.name}.{TOPIC_KEY} or thresholds.source"
        if self.kind == "broker":
            or_source = " or thresholds.source" if self == PolicyKey.of_broker() else ""
            return f"thresholds.{f'brokers.{self.name}.' if self.name else ''}{self.key}{or_source}"
        if self.kind == "group":
            return f"resource_groups.groups.{self.name}{'' if self.key == EXISTS else f'.{self.key}'}"
        if self.kind in ATTACHABLE_KINDS:
            return f"resource_groups.{self.kind}s.{self.name}"
        return f"client_quotas, {entity_text(self.entity)}"

    def __str__(self) -> str:
        if self.kind == "quota":
            return f"{self.quota_key} of {entity_text(self.entity)}"
        if self.key == EXISTS:
            return f"group {self.name}"
        if self.kind == "storage":
            return "override of storage protection"
        return f"{self.key} of {'all brokers' if self.name == EVERY_BROKER else f'{self.kind} {self.name}'}"


def _is_broker_id(name: str) -> bool:
    return _BROKER_ID.fullmatch(name) is not None and int(name) <= _MAX_BROKER_ID


_KEYS_BY_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": (TOPIC_KEY,),
    "broker": (TOTAL_KEY, TOTAL_OUT_KEY),
    "group": (*GROUP_KEYS, EXISTS),
    "tenant": (ATTACHMENT_KEY,),
    "namespace": (ATTACHMENT_KEY,),
    "storage": (OVERRIDE_KEY,),
}
_NAME_CHECKS: Final[Mapping[str, Callable[[str], None]]] = {
    "group": check_group,
    "tenant": check_tenant,
    "namespace": check_namespace,
}


class PolicyOperation(NamedTuple):
    """Set a value at run time; None removes it. `until_ms`: see ValueEnd; None: no end."""

    key: PolicyKey
    value: PolicyValue | None
    until_ms: int | None = None


class ValueEnd(NamedTuple):
    """The end of a value that was set at run time, Unix time in milliseconds. `then`: the run-time value that takes its
    place; None: the base's value is in force again. Of values with an end that replace each other, each has the `then`
    of the first one.
    """

    until_ms: int
    then: PolicyValue | None


class TopicId(NamedTuple):
    """The id by which a cluster distinguishes a topic from an earlier one of the same name; topic and cluster id as
    Kafka prints them. Ids of different clusters can't be compared.
    """

    cluster: str
    topic: str


class RuntimeValue(NamedTuple):
    """The run-time change of one key; None: no change. `topic_id`: of the topic that a threshold was set for; None: not
    known yet.
    """

    value: PolicyValue | None = None
    end: ValueEnd | None = None
    topic_id: TopicId | None = None


ValueEnds = Mapping[PolicyKey, ValueEnd]
NO_ENDS: Final[ValueEnds] = MappingProxyType({})
NO_TIMES: Final[Mapping[PolicyKey, int]] = MappingProxyType({})
TopicIds = Mapping[str, TopicId]  # by topic
NO_IDS: Final[TopicIds] = MappingProxyType({})


class PolicyFault(NamedTuple):
    """`key`: the key at fault; of a sum that exceeds a total, the total's. `kind`: "unknown" for a group that doesn't
    exist, "in use" for one that can't be removed, "denied" for a change that the principal has no right to make, "" for
    all others.
    """

    key: PolicyKey
    message: str
    kind: Literal["", "unknown", "in use", "denied"] = ""


class PolicyError(ValueError):
    """A request that was refused as a whole."""

    def __init__(self, faults: Sequence[PolicyFault]) -> None:
        super().__init__("; ".join(fault.message for fault in faults))
        self.faults = tuple(faults)


class PolicyChange(NamedTuple):
    """The result for one key. `value`: set at run time; None: removed. `old`, `new`: the values in force before and
    after. `topic_id`: see RuntimeValue. `only_topic_id`: nothing else has changed.
    """

    key: PolicyKey
    value: PolicyValue | None
    old: PolicyValue | None
    new: PolicyValue | None
    end: ValueEnd | None = None
    topic_id: TopicId | None = None
    only_topic_id: bool = False


class PolicySetting(NamedTuple):
    """One key with both of its values; the run-time change takes precedence."""

    key: PolicyKey
    base: PolicyValue | None
    change: PolicyValue | None
    end: ValueEnd | None = None  # of the change

    @property
    def value(self) -> PolicyValue:
        found = self.base if self.change is None else self.change
        assert found is not None
        return found

    def origin(self, base: BaseOrigin) -> str:
        """Of the value in force."""
        return base(self.key) if self.change is None else "run time"


def file_origin(_: PolicyKey) -> str:
    """The whole base is the configuration file's."""
    return "file"


def check_value(key: PolicyKey, value: PolicyValue) -> PolicyValue:
    """`value`, if it can be set for `key`, which is in its one spelling.

    Raises:
        InvalidPolicy: it can't.
    """
    if key.kind == "storage":
        try:
            return str(StorageOverride.parse_text(str(value)))
        except InvalidOverride as error:
            raise InvalidPolicy(f"{key}: {error}") from error
    if key.kind in ATTACHABLE_KINDS:
        if not isinstance(value, str):
            raise InvalidPolicy(f"{key}: the name of a group is needed here, not {value!r}")
        try:
            check_group(value)
        except GroupNameError as error:
            raise InvalidPolicy(f"{key.kind} {key.name}: {error}") from error
        return value
    if isinstance(value, str):
        raise InvalidPolicy(f"{key}: a number is needed here, not {value[:60]!r}")
    try:
        if key.kind == "group":
            check_rate(key.key, value)
        elif key.kind == "quota":
            client_quotas.check_quota(key.quota_key, value)
        elif key.kind == "topic":
            check_thresholds(None, {key.name: value})
        else:
            check_thresholds(value, {}, key.key)
    except (ThresholdError, QuotaError, GroupNameError) as error:
        prefix = f"{key.kind} {key.name}: " if key.kind in ("broker", "group") and key.name else ""
        raise InvalidPolicy(prefix + str(error)) from error
    return float(value)


def check_end(key: PolicyKey, value: PolicyValue | None, until_ms: int, now_ms: int) -> int:
    if value is None:
        raise InvalidPolicy(f"{key}: a value that is removed has no end: leave until out, or set a value")
    if key.key in ENDLESS_KEYS:
        raise InvalidPolicy(f"{key}: only limits have an end: leave until out here, and give it with a group's rates")
    if not now_ms < until_ms <= LAST_TIME_MS:
        when = format_time(until_ms) if 0 <= until_ms <= LAST_TIME_MS else str(until_ms)
        raise InvalidPolicy(f"{key}: until {when} has to be later than now, which is {format_time(now_ms)}")
    return until_ms


def plain_number(value: PolicyValue | None) -> PolicyValue | None:
    """Without a fraction that is none, as JSON and YAML show it."""
    return int(value) if isinstance(value, int | float) and value == int(value) else value


def as_number(value: PolicyValue) -> float:
    """A value that is a number: all but attachments are.

    Raises:
        TypeError: it is a name.
    """
    if isinstance(value, str):
        raise TypeError(f"{value!r} is a group's name")
    return value


def value_text(key: PolicyKey, value: PolicyValue | None) -> str:
    """A value for people: all its digits, and its unit."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if key.kind == "group":
        return "exists" if key.key == EXISTS else rate_text(key.key, value)
    if key.kind != "quota" or key.quota_key.unit in ("bps", "broker_bps"):
        return exact_rate(value)
    return f"{exact_number(value)} {'shares' if key.quota_key.unit == 'shares' else '%'}"


def policy_order(key: PolicyKey) -> tuple[Any, ...]:
    if key.kind == "broker":
        return 0, (int(key.name) if key.name else -1,), key.key
    if key.kind == "topic":
        return 1, (key.name,), ""
    if key.kind == "quota":
        return 2, key.entity.sort_key, key.key
    if key.kind == "group":
        return 3, (key.name,), _KEYS_BY_KIND["group"].index(key.key)
    if key.kind == "storage":
        return 6, (), ""
    return 4 + ATTACHABLE_KINDS.index(key.kind), (key.name,), ""


def keys_text(keys: Sequence[PolicyKey]) -> str:
    """A few of the keys, and how many more there are."""
    some = ", ".join(f"{key.kind} {key.name}" for key in keys[:MAX_LISTED_KEYS])
    return some if len(keys) <= MAX_LISTED_KEYS else f"{some} and {len(keys) - MAX_LISTED_KEYS:,} more"
