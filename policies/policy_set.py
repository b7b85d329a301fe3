# All policies that can be changed at run time, as one immutable value: thresholds by topic and by broker, client quotas
# by entity, resource groups and what they are attached to. What the configuration file says is the base; a change made
# at run time wins over it key by key, and without the change the base shows again, as Kafka's dynamic configs stand
# before its static ones.
#
# Also how changes are written down, so that every gateway reads the same out of it and an auditor sees who changed
# what. Reading judges single records only, never sums and never whether a group is there: compaction removes what stood
# between two records, a sum of that time may look wrong, and bases differ from gateway to gateway while a new file is
# rolled out. So a change is judged once, by who writes it. Knows no topic, no file and no clock.

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeGuard, cast, get_args

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
from policies.quotas.names import Entity, QuotaError, QuotaKey, QuotaType
from policies.quotas.store import Alteration, QuotaStore
from policies.quotas.text import entity_text
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY, ThresholdError, Thresholds, check, excess_text
from policies.units import exact_rate

Kind = Literal["topic", "broker", "quota", "group", "tenant", "namespace"]
Origin = Literal["file", "run time"]
Value = float | str  # of what something is attached to: a name; of everything else: a number
Values = Mapping["PolicyKey", Value]

EVERY_BROKER: Final = ""  # Kafka's own name of the defaults of all brokers
MAX_LISTED: Final = 5
LAYOUT: Final = 1  # of the records; one with another is somebody newer's
NOTHING: Final[Values] = MappingProxyType({})
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_BROKER_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")
ATTACHABLE: Final[tuple[Kind, ...]] = ("tenant", "namespace")  # to groups
OF_GROUPS: Final[tuple[Kind, ...]] = ("group", *ATTACHABLE)
_PRODUCERS: Final[frozenset[QuotaType]] = frozenset({"producer_byte_rate"})  # what a broker total is about


class InvalidPolicy(ValueError):
    """A key that can't be, or something that can't be done with it: what is wrong, and what would be right."""


class InvalidRecord(ValueError):
    """A record that is none of ours, or says something that can't be; one line."""


class PolicyKey(NamedTuple):
    """What one value is set for.

    `name`: the topic; the broker's id, or EVERY_BROKER; the entity's `path`; the group; the tenant, or
    "tenant/namespace". `key`: the threshold's config key; the quota's key as the wire spells it; of a group a rate, or
    EXISTS, which alone makes a group without limits; ATTACHMENT_KEY.
    """

    kind: Kind
    name: str
    key: str

    @classmethod
    def of_topic(cls, topic: str) -> PolicyKey:
        return cls("topic", topic, TOPIC_KEY)

    @classmethod
    def of_broker(cls, broker_id: int | None = None) -> PolicyKey:
        """None: the default of all brokers."""
        return cls("broker", EVERY_BROKER if broker_id is None else str(broker_id), TOTAL_KEY)

    @classmethod
    def of_quota(cls, entity: Entity, key: QuotaKey) -> PolicyKey:
        return cls("quota", entity.path, key.wire)

    @classmethod
    def of_group(cls, group: str, key: str = EXISTS) -> PolicyKey:
        return cls("group", group, key)

    @classmethod
    def of_tenant(cls, tenant: str) -> PolicyKey:
        return cls("tenant", tenant, ATTACHMENT_KEY)

    @classmethod
    def of_namespace(cls, tenant: str, namespace: str) -> PolicyKey:
        return cls("namespace", f"{tenant}/{namespace}", ATTACHMENT_KEY)

    def checked(self) -> PolicyKey:
        """The same, in its one spelling.

        Raises:
            InvalidPolicy: nothing of the kind can be set.
        """
        if self.kind == "quota":
            try:
                return self.of_quota(Entity.of_path(self.name), QuotaKey.parse(self.key))
            except QuotaError as error:
                raise InvalidPolicy(str(error)) from error
        if self.kind not in get_args(Kind):
            raise InvalidPolicy(f"{self.kind!r} is no kind of policy: {', '.join(get_args(Kind))} are")
        right = _KEYS[self.kind]
        if self.key not in right:
            known = f"known is {right[0]}" if len(right) == 1 else f"known are {', '.join(right)}"
            raise InvalidPolicy(f"{self.kind} {self.name}: unknown key {self.key!r}: {known}")
        if self.kind in _NAME_CHECKS:
            try:
                _NAME_CHECKS[self.kind](self.name)
            except GroupNameError as error:
                raise InvalidPolicy(str(error)) from error
        if self.kind == "topic" and (not _TOPIC_NAME.fullmatch(self.name) or self.name in (".", "..")):
            raise InvalidPolicy(
                f"{self.name!r} can't be a topic's name: letters, digits, '.', '_' and '-', at most 249"
            )
        if self.kind == "broker" and self.name != EVERY_BROKER and not _BROKER_ID.fullmatch(self.name):
            raise InvalidPolicy(f"{self.name!r} is no broker id: a number is needed, or the default of all brokers")
        return self

    @property
    def entity(self) -> Entity:
        """Of a quota."""
        return Entity.of_path(self.name)

    @property
    def quota(self) -> QuotaKey:
        """Of a quota."""
        return QuotaKey.parse(self.key)

    @property
    def where(self) -> str:
        """The place of the base's value in the configuration file."""
        if self.kind == "topic":
            return f"thresholds.topics.{self.name}.{TOPIC_KEY}"
        if self.kind == "broker":
            return f"thresholds.{f'brokers.{self.name}.' if self.name else ''}{TOTAL_KEY}"
        if self.kind == "group":
            return f"resource_groups.groups.{self.name}{'' if self.key == EXISTS else f'.{self.key}'}"
        if self.kind in ATTACHABLE:
            return f"resource_groups.{self.kind}s.{self.name}"
        return f"client_quotas, {entity_text(self.entity)}"

    def __str__(self) -> str:
        if self.kind == "quota":
            return f"{self.quota} of {entity_text(self.entity)}"
        if self.key == EXISTS:
            return f"group {self.name}"
        return f"{self.key} of {'all brokers' if self.name == EVERY_BROKER else f'{self.kind} {self.name}'}"


_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": (TOPIC_KEY,),
    "broker": (TOTAL_KEY,),
    "group": (*GROUP_KEYS, EXISTS),
    "tenant": (ATTACHMENT_KEY,),
    "namespace": (ATTACHMENT_KEY,),
}
_NAME_CHECKS: Final[Mapping[str, Callable[[str], None]]] = {
    "group": check_group,
    "tenant": check_tenant,
    "namespace": check_namespace,
}


class Op(NamedTuple):
    """Set a value at run time; None takes it away again."""

    key: PolicyKey
    value: Value | None


class Fault(NamedTuple):
    """`key`: whose the fault is; of a sum that exceeds a total, the total's. `kind`: "unknown" for a group that isn't
    there, "in use" for one that must stay, "denied" for what the asker has no rights to, "" for everything else.
    """

    key: PolicyKey
    message: str
    kind: Literal["", "unknown", "in use", "denied"] = ""


class PolicyError(ValueError):
    """A request of which nothing was done."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(fault.message for fault in faults))
        self.faults = tuple(faults)


class Change(NamedTuple):
    """What became of one key. `value`: set at run time, None = no longer; `old`, `new`: what was and is in force."""

    key: PolicyKey
    value: Value | None
    old: Value | None
    new: Value | None


class Setting(NamedTuple):
    """One key with both of its values, of which the change wins."""

    key: PolicyKey
    base: Value | None
    change: Value | None

    @property
    def value(self) -> Value:
        found = self.base if self.change is None else self.change
        assert found is not None
        return found

    @property
    def origin(self) -> Origin:
        return "file" if self.change is None else "run time"


class Limits(NamedTuple):
    """Thresholds of one broker, as policies.thresholds takes them."""

    total: float | None
    topics: Mapping[str, float]


class QuotasAltered(NamedTuple):
    """`errors`: one per alteration, in their order, None = done."""

    policies: PolicySet
    errors: tuple[QuotaError | None, ...]


class PolicySet:
    """Base and changes. Treat as frozen.

    `version`: grows by one with every alteration of the changes; the same number is the same changes everywhere.
    """

    __slots__ = (
        "_effective", "_groups", "_namespaces", "_quotas", "_tenants", "_topics", "_totals", "base", "changes",
        "version",
    )  # fmt: skip

    def __init__(self, base: Values = NOTHING, changes: Values = NOTHING, version: int = 0) -> None:
        """Keys in their one spelling and values that can be; that sums fit is not asked for: see `warnings`."""
        self.base = base
        self.changes = changes
        self.version = version
        self._effective: Values = MappingProxyType({**base, **changes} if changes else dict(base))
        self._quotas: QuotaStore | None = None
        self._topics: dict[str, float] = {}
        self._totals: dict[str, float] = {}
        self._groups: dict[str, dict[str, float]] = {}
        self._tenants: dict[str, str] = {}
        self._namespaces: dict[str, str] = {}
        for key, value in self._effective.items():
            if isinstance(value, str):
                (self._tenants if key.kind == "tenant" else self._namespaces)[key.name] = value
            elif key.kind == "topic":
                self._topics[key.name] = value
            elif key.kind == "broker":
                self._totals[key.name] = value
            elif key.kind == "group":
                rates = self._groups.setdefault(key.name, {})
                if key.key != EXISTS:
                    rates[key.key] = value

    # --- what holds ---------------------------------------------------------------------------------------------------

    def effective(self) -> Values:
        """The value in force by key."""
        return self._effective

    def settings(self) -> tuple[Setting, ...]:
        """Every key with both values: thresholds of brokers, of topics, quotas, groups, what is attached to them; each
        in the order of its names.
        """
        return tuple(
            Setting(key, self.base.get(key), self.changes.get(key)) for key in sorted(self._effective, key=_order)
        )

    def total(self, broker_id: int | None = None) -> float | None:
        """Bytes per second of that broker: its own total, else the default, which None asks for."""
        default = self._totals.get(EVERY_BROKER)
        return default if broker_id is None else self._totals.get(str(broker_id), default)

    def totals(self) -> dict[int, float]:
        """Of brokers with a total of their own."""
        return {int(name): value for name, value in sorted(self._totals.items()) if name != EVERY_BROKER}

    def topics(self, gone: Set[str] = frozenset()) -> dict[str, float]:
        """Explicit thresholds of topics, but those that were deleted."""
        return {name: value for name, value in self._topics.items() if name not in gone}

    def thresholds(self, broker_id: int | None = None, gone: Set[str] = frozenset()) -> Limits:
        return Limits(self.total(broker_id), self.topics(gone))

    def quotas(self) -> QuotaStore:
        """Client quotas, in a store of this version."""
        if self._quotas is None:
            entries: dict[Entity, dict[QuotaKey, float]] = {}
            for key, value in self._effective.items():
                if key.kind == "quota":
                    entries.setdefault(key.entity, {})[key.quota] = as_number(value)
            self._quotas = QuotaStore(entries, self.version)
        return self._quotas

    def groups(self) -> Mapping[str, Mapping[str, float]]:
        """Limits of each resource group, per second, by GROUP_KEYS; a group may be without any."""
        return self._groups

    def tenants(self) -> Mapping[str, str]:
        """The group that is attached to each tenant; it may be one that isn't there, see `warnings`."""
        return self._tenants

    def namespaces(self) -> Mapping[str, str]:
        """The same by "tenant/namespace"."""
        return self._namespaces

    def attached_to(self, group: str) -> tuple[PolicyKey, ...]:
        """What this group is attached to: tenants, then namespaces."""
        found = [PolicyKey("tenant", name, ATTACHMENT_KEY) for name, each in self._tenants.items() if each == group]
        found += [
            PolicyKey("namespace", name, ATTACHMENT_KEY) for name, each in self._namespaces.items() if each == group
        ]
        return tuple(sorted(found, key=_order))

    def setting(self, key: PolicyKey) -> Setting | None:
        """One of `settings`. `key`: in its one spelling."""
        found = Setting(key, self.base.get(key), self.changes.get(key))
        return None if found.base is None and found.change is None else found

    def shared(self) -> frozenset[QuotaType]:
        """Types for which some broker has a total, so that there are parts of it to be had."""
        return _PRODUCERS if self._totals else client_quotas.NO_TOTALS

    def warnings(self, gone: Set[str] = frozenset()) -> tuple[str, ...]:
        """What is allowed but hardly meant, or came to be without anybody's change, as by a topic made again."""
        topics = self.topics(gone)
        found = [fault.message for fault in self._overdrawn(topics)]
        for name, total in sorted(self._totals.items()):
            if math.fsum(topics.values()) <= total:
                prefix = f"broker {name}: " if name else ""
                found += [prefix + text for text in Thresholds(total, topics).warnings()]
        if not self._totals:
            found += Thresholds(None, topics).warnings()
        return (*found, *self.quotas().warnings(self.shared()), *self._dangling())

    # --- changes ------------------------------------------------------------------------------------------------------

    def alter(self, ops: Sequence[Op], *, gone: Set[str] = frozenset()) -> PolicySet:
        """With all of these, or nothing of them. A sum that is too large already may stay so, but not grow.

        Args:
            gone: deleted topics; theirs are no part of the sum.

        Raises:
            PolicyError: what is wrong, by key.
        """
        wanted: dict[PolicyKey, Value | None] = {}
        faults: list[Fault] = []
        for op in ops:
            try:
                key = op.key.checked()
                if key in wanted:
                    raise InvalidPolicy(f"{key} is given twice: set or remove it once per request")
                wanted[key] = self._checked(key, op.value)
            except ValueError as error:
                faults.append(Fault(op.key, str(error)))
        new = self._with(wanted)
        if not faults:
            faults += new._unshared(wanted)
        if not faults and any(key.kind in ("topic", "broker") for key in wanted):
            faults += new._overdrawn(new.topics(gone), (self, self.topics(gone)))
        if not faults:
            faults += self._unattachable(wanted, new)
        if faults:
            raise PolicyError(faults)
        return new

    def fitting(self, ops: Sequence[Op], *, gone: Set[str] = frozenset()) -> list[str | None]:
        """Which of these thresholds go together, taken one after the other as `alter` would take them: one per op, None
        or what is wrong with it. One pass, however many there are.
        """
        fits = _Fitting(self, gone)
        errors: list[str | None] = []
        for op in ops:
            try:
                key = op.key.checked()
                fits.take(key, self._checked(key, op.value))
                errors.append(None)
            except ValueError as error:
                errors.append(str(error))
        return errors

    def alter_quotas(self, alterations: Sequence[Alteration]) -> QuotasAltered:
        """AlterClientQuotas: an entity that is refused leaves the others alone."""
        found = self.quotas().alter(alterations, self.shared(), validate_only=True)
        wanted: dict[PolicyKey, Value | None] = {}
        errors: list[QuotaError | None] = []
        for alteration, error in zip(alterations, found.errors, strict=True):
            if error is not None:
                errors.append(error)
                continue
            entity = Entity.of(alteration.entity)
            keys = {PolicyKey.of_quota(entity, QuotaKey.parse(op.key)): op.value for op in alteration.ops}
            try:
                wanted.update({key: self._checked(key, value) for key, value in keys.items()})
                errors.append(None)
            except ValueError as refused:
                errors.append(QuotaError(str(refused)))
        return QuotasAltered(self._with(wanted), tuple(errors))

    def diff(self, wanted: Values, *, prune: bool = False) -> list[Op]:
        """What makes these values hold; nothing where they do. `prune`: and no other that was set at run time.

        What only the base has is left alone: it can't be removed here.
        """
        ops = [Op(key, value) for key, value in wanted.items() if self._effective.get(key) != value]
        if prune:
            ops += [Op(key, None) for key in self.changes if key not in wanted]
        return sorted(ops, key=lambda op: _order(op.key))

    def apply(
        self, wanted: Values, *, prune: bool = False, groups: bool = True, gone: Set[str] = frozenset()
    ) -> PolicySet:
        """`alter` by what `diff` says. `groups`: whether resource groups, and what they are attached to, may change.

        Raises:
            PolicyError: what is wrong, by key.
        """
        ops = self.diff(wanted, prune=prune)
        faults = [
            Fault(op.key, f"{op.key}: is not yours to change", "denied") for op in ops if op.key.kind in OF_GROUPS
        ]
        if faults and not groups:
            raise PolicyError(faults)
        return self.alter(ops, gone=gone)

    def rebased(self, base: Values) -> PolicySet:
        """The same changes over another base."""
        return PolicySet(base, self.changes, self.version)

    def changes_since(self, old: PolicySet) -> tuple[Change, ...]:
        """What was altered between the two, in the order of `settings`; the base is the same."""
        keys = [
            key
            for key in {**old.changes, **self.changes}
            if old.changes.get(key) != self.changes.get(key)  # no value is ever None
        ]
        return tuple(
            Change(key, self.changes.get(key), old._effective.get(key), self._effective.get(key))
            for key in sorted(keys, key=_order)
        )

    def _with(self, wanted: Mapping[PolicyKey, Value | None]) -> PolicySet:
        if all(self.changes.get(key) == value for key, value in wanted.items()):
            return self
        changes = {**self.changes, **{key: value for key, value in wanted.items() if value is not None}}
        for key, value in wanted.items():
            if value is None:
                changes.pop(key, None)
        return PolicySet(self.base, changes, self.version + 1)

    def _checked(self, key: PolicyKey, value: Value | None) -> Value | None:
        if value is not None:
            return check_value(key, value)
        if key in self.base and key not in self.changes:
            raise InvalidPolicy(
                f"{key} is set in the configuration file ({key.where}): remove it there, or set another value here"
            )
        return None

    def _unshared(self, wanted: Mapping[PolicyKey, Value | None]) -> list[Fault]:
        faults = []
        for key, value in wanted.items():
            if value is not None and key.kind == "quota":
                try:
                    client_quotas.checked(key.quota, as_number(value), self.shared())
                except QuotaError as error:
                    faults.append(Fault(key, str(error)))
        return faults

    def _unattachable(self, wanted: Mapping[PolicyKey, Value | None], new: PolicySet) -> list[Fault]:
        """Attachments to groups that wouldn't be there, judged from both sides: of what is attached now, and of groups
        that go. One that was so before may stay so.
        """
        faults = []
        for key, value in wanted.items():
            if key.kind in ATTACHABLE and isinstance(value, str) and value not in new._groups:
                text = f"{key.kind} {key.name}: there is no group {value}: create it first"
                faults.append(Fault(key, text, "unknown"))
        for group in sorted({key.name for key in wanted if key.kind == "group"} & self._groups.keys()):
            users = new.attached_to(group) if group not in new._groups else ()
            if users and not faults:
                text = f"group {group} is in use by {_listed(users)}: detach it there first"
                faults.append(Fault(PolicyKey.of_group(group), text, "in use"))
        return faults

    def _dangling(self) -> list[str]:
        missing: dict[str, list[PolicyKey]] = {}
        for kind, attached in zip(ATTACHABLE, (self._tenants, self._namespaces), strict=True):
            for name, group in attached.items():
                if group not in self._groups:
                    missing.setdefault(group, []).append(PolicyKey(kind, name, ATTACHMENT_KEY))
        return [
            f"there is no group {group}, but {_listed(sorted(users, key=_order))} should belong to it: unlimited"
            for group, users in sorted(missing.items())
        ]

    def _overdrawn(
        self, topics: Mapping[str, float], before: tuple[PolicySet, Mapping[str, float]] | None = None
    ) -> list[Fault]:
        """Totals that the topics exceed; those they exceeded by as much `before` are left out."""
        faults = []
        for name, total in sorted(self._totals.items()):
            try:
                check(total, topics)
            except ThresholdError as error:
                if before is not None:
                    old, had = before
                    former = old._totals.get(name)
                    excess = math.fsum(topics.values()) - total
                    if former is not None and 0 < excess <= math.fsum(had.values()) - former:
                        continue
                prefix = f"broker {name}: " if name else ""
                faults.append(Fault(PolicyKey("broker", name, TOTAL_KEY), prefix + str(error)))
        return faults


class _Fitting:
    """Thresholds in the making. The topics' sum is exact, and rounded where it is compared, as `check` has it."""

    def __init__(self, policies: PolicySet, gone: Set[str]) -> None:
        self._base = policies.base
        self._gone = gone
        self._former = policies._totals
        self._totals = dict(policies._totals)
        self._topics = policies.topics(gone)
        self._sum = sum(map(Fraction, self._topics.values()), Fraction())
        self._had = float(self._sum)
        self._taken: set[PolicyKey] = set()

    def take(self, key: PolicyKey, value: Value | None) -> None:
        """Raises InvalidPolicy if it doesn't fit; nothing is taken then."""
        if key in self._taken:
            raise InvalidPolicy(f"{key} is given twice: set or remove it once per request")
        wanted = self._base.get(key) if value is None else value
        number = None if wanted is None or isinstance(wanted, str) else wanted
        if key.kind == "broker":
            self._take_total(key.name, number)
        elif key.kind == "topic" and key.name not in self._gone:
            self._take_topic(key.name, number or 0.0)
        self._taken.add(key)

    def _take_total(self, name: str, total: float | None) -> None:
        if total is None:
            self._totals.pop(name, None)
        else:
            self._refuse_excess({name: total}, float(self._sum))
            self._totals[name] = total

    def _take_topic(self, name: str, value: float) -> None:
        new = self._sum + Fraction(value) - Fraction(self._topics.get(name, 0.0))
        if new > self._sum:
            self._refuse_excess(self._totals, float(new))
        self._topics[name] = value
        self._sum = new

    def _refuse_excess(self, totals: Mapping[str, float], explicit: float) -> None:
        over = [name for name, total in totals.items() if explicit > total and self._grows(name, explicit - total)]
        if over:
            prefixed = ((f"broker {name}: " if name else "", totals[name]) for name in sorted(over))
            raise InvalidPolicy("; ".join(prefix + excess_text(explicit, total) for prefix, total in prefixed))

    def _grows(self, name: str, excess: float) -> bool:
        former = self._former.get(name)
        return former is None or excess > self._had - former


def check_value(key: PolicyKey, value: Value) -> Value:
    """`value`, if it can be set for `key` at all. `key`: in its one spelling.

    Raises:
        InvalidPolicy: it can't.
    """
    if key.kind in ATTACHABLE:
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
            client_quotas.checked(key.quota, value, _PRODUCERS)  # consumers have no total to share, ever
        elif key.kind == "topic":
            check(None, {key.name: value})
        else:
            check(value, {})
    except (ThresholdError, QuotaError, GroupNameError) as error:
        prefix = f"{key.kind} {key.name}: " if key.kind in ("broker", "group") and key.name else ""
        raise InvalidPolicy(prefix + str(error)) from error
    return float(value)


def as_number(value: Value) -> float:
    """A value that is a number, as all are but those of attachments.

    Raises:
        TypeError: it is a name.
    """
    if isinstance(value, str):
        raise TypeError(f"{value!r} is a group's name")
    return value


def value_text(key: PolicyKey, value: Value | None) -> str:
    """A value for people: with every digit and its unit."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if key.kind == "group":
        return "exists" if key.key == EXISTS else rate_text(key.key, value)
    if key.kind != "quota" or key.quota.unit in ("bps", "broker_bps"):
        return exact_rate(value)
    return f"{value:g} {'shares' if key.quota.unit == 'shares' else '%'}"


def _order(key: PolicyKey) -> tuple[Any, ...]:
    if key.kind == "broker":
        return 0, (int(key.name) if key.name else -1,), ""
    if key.kind == "topic":
        return 1, (key.name,), ""
    if key.kind == "quota":
        return 2, key.entity.order, key.key
    if key.kind == "group":
        return 3, (key.name,), _KEYS["group"].index(key.key)
    return 4 + ATTACHABLE.index(key.kind), (key.name,), ""


def _listed(keys: Sequence[PolicyKey]) -> str:
    """A few of them."""
    some = ", ".join(f"{key.kind} {key.name}" for key in keys[:MAX_LISTED])
    return some if len(keys) <= MAX_LISTED else f"{some} and {len(keys) - MAX_LISTED:,} more"


# --- written down -----------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """Who changes something, and from where."""

    who: str  # a principal such as User:alice, or the user of a command
    door: str  # kafka, rest, cli, …
    peer: str = ""  # the address the request came from


class Head(NamedTuple):
    """The last record of each alteration. `token` is the alteration's own; `at_ms`: Unix time."""

    version: int
    token: str
    at_ms: int
    source: Source
    changes: int  # how many


class Record(NamedTuple):
    """As a compacted topic keeps it. `value` None removes the key; who did is in `audit` then, beside it."""

    key: bytes
    value: bytes | None
    audit: bytes | None = None


class Entry(NamedTuple):
    """A record read: the run-time value of `key`, None = none any more."""

    key: PolicyKey
    value: Value | None


_HEAD_KEY: Final = b'["head"]'
_COUNTS: Final = 2**53


def encode(changes: Iterable[Change], head: Head) -> list[Record]:
    """Records of one alteration, which belong together; the head comes last."""
    by = {"version": head.version, "at_ms": head.at_ms, **head.source._asdict()}
    records = []
    for change in changes:
        audit = {**by, "old": _number(change.old), "new": _number(change.new)}
        if change.value is None:
            records.append(Record(key_bytes(change.key), None, _json({"v": LAYOUT, **audit})))
        else:
            records.append(Record(key_bytes(change.key), _json({"v": LAYOUT, "value": _number(change.value), **audit})))
    last = {"v": LAYOUT, "token": head.token, "changes": head.changes, **by}
    return [*records, Record(_HEAD_KEY, _json(last))]


def decode(key: bytes | None, value: bytes | None) -> Entry | Head | None:
    """What a record says; None: nothing any more (a head that was removed).

    Raises:
        InvalidRecord: why it can't be used.
    """
    name = _parse(key, "key")
    if name == ["head"]:
        return None if value is None else _head(_object(value))
    if not (isinstance(name, list) and len(name) == 3 and all(isinstance(part, str) for part in name)):
        raise InvalidRecord(f"its key {_cut(key)} is not [kind, name, key]")
    try:
        policy = PolicyKey(cast("Kind", name[0]), name[1], name[2]).checked()
        if value is None:
            return Entry(policy, None)
        said = _object(value).get("value")
        if policy.kind in ATTACHABLE:
            return Entry(policy, check_value(policy, said if isinstance(said, str) else ""))
        if isinstance(said, bool) or not isinstance(said, int | float):
            raise InvalidRecord(f"{policy}: its value is no number: {said!r}")
        return Entry(policy, check_value(policy, float(said)))
    except (InvalidPolicy, OverflowError) as error:
        raise InvalidRecord(str(error)) from error


def key_bytes(key: PolicyKey) -> bytes:
    """One spelling for one key, so that compaction finds them."""
    return _json(list(key))


def changes_json(changes: Collection[Change]) -> list[dict[str, Any]]:
    """For answers: kind, name, key, and the values in force before and after, null = none."""
    return [{**c.key._asdict(), "old": _number(c.old), "new": _number(c.new)} for c in changes]


def _head(said: dict[str, Any]) -> Head:
    version, token, at_ms, changes = (said.get(name) for name in ("version", "token", "at_ms", "changes"))
    if not _is_count(version) or not isinstance(token, str):
        raise InvalidRecord(f"a head without version and token, a version being below {_COUNTS}")
    source = Source(*(str(said.get(name, "")) for name in Source._fields))
    return Head(version, token, at_ms if _is_count(at_ms) else 0, source, changes if _is_count(changes) else 0)


def _is_count(value: object) -> TypeGuard[int]:
    """No bool, and nothing that a gauge, as a float, can't hold."""
    return type(value) is int and 0 <= value < _COUNTS


def _object(value: bytes) -> dict[str, Any]:
    said = _parse(value, "value")
    if not isinstance(said, dict):
        raise InvalidRecord(f"its value {_cut(value)} is no object")
    if said.get("v") != LAYOUT:
        raise InvalidRecord(f"its layout is {said.get('v')!r}, known is {LAYOUT}: a newer gateway wrote it")
    return cast("dict[str, Any]", said)


def _parse(data: bytes | None, what: str) -> object:
    try:
        return json.loads(data or b"")
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise InvalidRecord(f"its {what} {_cut(data)} is no JSON") from None


def _cut(data: bytes | None) -> str:
    return repr((data or b"")[:60])


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _number(value: Value | None) -> Value | None:
    return int(value) if isinstance(value, int | float) and value == int(value) else value
