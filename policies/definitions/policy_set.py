# All policies that can be changed at run time, as one immutable value: thresholds by topic and by broker, client quotas
# by entity, resource groups and what they are attached to. The configuration file is the base; a change made at run
# time wins over it key by key, and without the change the base shows again, as Kafka's dynamic configs stand before its
# static ones.
#
# A change may have an end (`ValueEnd`): then the value that it replaced holds again, without being judged once more.
# The keeper of the changes has to take them back, see `revert_expired`; whether one gateway does or all of them, it
# happens once.
#
# Thresholds are judged broker by broker: a topic's own counts against the total of each broker that has a partition of
# it, and of no other (`TopicPlaces`). Partitions move later on, whatever was judged: then some broker is overcommitted,
# and the thresholds stay as they are. A topic that isn't there yet may be placed anywhere, so it counts on every
# broker.
#
# A topic's threshold that was set at run time ends with its topic, as a topic's config does in Kafka: `topic_ids` has
# the topic that it was set for. One that was deleted counts nowhere: the next topic of its name won't have its
# threshold, see `follow_topic_ids`. Knows no topic, no file and no clock.

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from policies.definitions.policy_records import PolicyEntry
from policies.definitions.policy_values import (
    ATTACHABLE_KINDS,
    ENDLESS_KEYS,
    GROUP_KINDS,
    NO_ENDS,
    NO_IDS,
    NO_TIMES,
    NO_VALUES,
    InvalidPolicy,
    PolicyChange,
    PolicyError,
    PolicyFault,
    PolicyKey,
    PolicyOperation,
    PolicySetting,
    PolicyValue,
    PolicyValues,
    RuntimeValue,
    TopicIds,
    ValueEnd,
    ValueEnds,
    as_number,
    check_end,
    check_value,
    keys_text,
    policy_order,
)
from policies.definitions.small_limits import small_limit_warnings
from policies.groups.names import ATTACHMENT_KEY, EXISTS
from policies.quotas import store as client_quotas
from policies.quotas.names import Entity, QuotaError, QuotaKey, QuotaType
from policies.quotas.store import Alteration, QuotaStore
from policies.thresholds.sums import (
    EVERY_BROKER,
    CommittedTotal,
    TopicPlaces,
    find_exceeded,
    over_texts,
    reserved_warnings,
    sum_commitments,
    sum_warnings,
    unplaced_topics,
)
from policies.thresholds.values import TOTAL_KEY, without_total_text


class QuotasAltered(NamedTuple):
    """`errors`: one per alteration, in their order; None: done."""

    policies: PolicySet
    errors: tuple[QuotaError | None, ...]


class PolicySet:
    """The configuration's values (the base) and the changes made at run time. Treat as frozen. `version` grows by one
    with every alteration of the changes; the same number means the same changes everywhere.
    """

    __slots__ = (
        "_effective", "_groups", "_namespaces", "_quotas", "_tenants", "_topics", "_totals", "_totals_out", "base",
        "changes", "ends", "topic_ids", "version",
    )  # fmt: skip

    def __init__(
        self,
        base: PolicyValues = NO_VALUES,
        changes: PolicyValues = NO_VALUES,
        version: int = 0,
        ends: ValueEnds = NO_ENDS,
        topic_ids: TopicIds = NO_IDS,
    ) -> None:
        """Keys are in their one spelling and values are valid; sums need not fit: see `collect_warnings`. `ends`: of
        some of the changes. `topic_ids`: of topics that have a threshold among the changes, as far as they are known.
        """
        self.base = base
        self.changes = changes
        self.ends = ends
        self.topic_ids = topic_ids
        self.version = version
        self._effective: PolicyValues = MappingProxyType({**base, **changes} if changes else dict(base))
        self._quotas: QuotaStore | None = None
        self._topics: dict[str, float] = {}
        self._totals: dict[str, float] = {}
        self._totals_out: dict[str, float] = {}
        self._groups: dict[str, dict[str, float]] = {}
        self._tenants: dict[str, str] = {}
        self._namespaces: dict[str, str] = {}
        for key, value in self._effective.items():
            if isinstance(value, str):
                if key.kind in ATTACHABLE_KINDS:
                    (self._tenants if key.kind == "tenant" else self._namespaces)[key.name] = value
            elif key.kind == "topic":
                self._topics[key.name] = value
            elif key.kind == "broker":
                (self._totals if key.key == TOTAL_KEY else self._totals_out)[key.name] = value
            elif key.kind == "group":
                rates = self._groups.setdefault(key.name, {})
                if key.key != EXISTS:
                    rates[key.key] = value

    # --- what holds ---------------------------------------------------------------------------------------------------

    def effective_values(self) -> PolicyValues:
        """The value in force by key."""
        return self._effective

    def list_settings(self) -> tuple[PolicySetting, ...]:
        """Every key with both values: thresholds of brokers, then of topics, quotas, groups, their attachments; each
        ordered by name.
        """
        return tuple(
            PolicySetting(key, self.base.get(key), self.changes.get(key), self.ends.get(key))
            for key in sorted(self._effective, key=policy_order)
        )

    def broker_total(self, broker_id: int | None = None) -> float | None:
        """The broker's total in bytes per second: its own, else the default. None asks for the default."""
        default = self._totals.get(EVERY_BROKER)
        return default if broker_id is None else self._totals.get(str(broker_id), default)

    def broker_totals(self) -> dict[int, float]:
        """The totals of brokers that have one of their own."""
        return {int(name): value for name, value in sorted(self._totals.items()) if name != EVERY_BROKER}

    def broker_total_out(self, broker_id: int | None = None) -> float | None:
        """Like `broker_total`, of the bytes that consumers may have shares of."""
        default = self._totals_out.get(EVERY_BROKER)
        return default if broker_id is None else self._totals_out.get(str(broker_id), default)

    def broker_totals_out(self) -> dict[int, float]:
        """Like `broker_totals`, of the bytes that consumers may have shares of."""
        return {int(name): value for name, value in sorted(self._totals_out.items()) if name != EVERY_BROKER}

    def topic_thresholds(self) -> Mapping[str, float]:
        """Explicit thresholds of topics."""
        return self._topics

    def commitments_by_broker(self, places: TopicPlaces | None) -> dict[str, CommittedTotal]:
        """The sum of thresholds by broker, for brokers that have a total. Where topics' brokers are not known: by
        EVERY_BROKER and the brokers that have a total of their own.
        """
        return sum_commitments(self._totals, self._topics, places, self.reserved_thresholds(places).values())

    def reserved_thresholds(self, places: TopicPlaces | None) -> dict[str, float]:
        """Thresholds of topics that don't exist yet, by topic; empty while the brokers of topics are not known. A
        deleted topic keeps the base's threshold, which the next topic of its name gets.
        """
        found = {}
        for name in unplaced_topics(self._topics, places):
            next_one = self.base.get(PolicyKey.of_topic(name)) if name in self.topic_ids else self._topics[name]
            if next_one is not None:
                found[name] = as_number(next_one)
        return found

    def quota_store(self) -> QuotaStore:
        """Client quotas, in a store of this version."""
        if self._quotas is None:
            entries: dict[Entity, dict[QuotaKey, float]] = {}
            for key, value in self._effective.items():
                if key.kind == "quota":
                    entries.setdefault(key.entity, {})[key.quota_key] = as_number(value)
            sorted_entries = {entity: dict(sorted(values.items())) for entity, values in entries.items()}
            self._quotas = QuotaStore.from_validated(sorted_entries, self.version)
        return self._quotas

    def group_limits(self) -> Mapping[str, Mapping[str, float]]:
        """Limits of each resource group, per second, by GROUP_KEYS; a group may have none."""
        return self._groups

    def tenant_groups(self) -> Mapping[str, str]:
        """The group attached to each tenant; the group may not exist, see `collect_warnings`."""
        return self._tenants

    def namespace_groups(self) -> Mapping[str, str]:
        """The group attached to each "tenant/namespace"; the group may not exist."""
        return self._namespaces

    def attachments_of(self, group: str) -> tuple[PolicyKey, ...]:
        """The tenants, and then the namespaces, that this group is attached to."""
        found = [PolicyKey("tenant", name, ATTACHMENT_KEY) for name, each in self._tenants.items() if each == group]
        found += [
            PolicyKey("namespace", name, ATTACHMENT_KEY) for name, each in self._namespaces.items() if each == group
        ]
        return tuple(sorted(found, key=policy_order))

    def runtime_value(self, key: PolicyKey) -> RuntimeValue:
        """The run-time change of that key."""
        topic_id = self.topic_ids.get(key.name) if key.kind == "topic" else None
        return RuntimeValue(self.changes.get(key), self.ends.get(key), topic_id)

    def find_setting(self, key: PolicyKey) -> PolicySetting | None:
        """One entry of `list_settings`. `key`: in its one spelling."""
        found = PolicySetting(key, self.base.get(key), self.changes.get(key), self.ends.get(key))
        return None if found.base is None and found.change is None else found

    def shareable_types(self) -> frozenset[QuotaType]:
        """Quota types for which some broker has a total, so that there is something to share."""
        totals: dict[QuotaType, object] = {"producer_byte_rate": self._totals, "consumer_byte_rate": self._totals_out}
        return frozenset(kind for kind, found in totals.items() if found)

    def collect_warnings(self, places: TopicPlaces | None = None) -> tuple[str, ...]:
        """Warnings about values that are allowed but hardly intended, or that became wrong without a change, for
        example because partitions moved.
        """
        found = sum_warnings(self.commitments_by_broker(places)) + self.reserved_warnings(places)
        if not self._totals and self._topics:
            found.append(without_total_text(len(self._topics)))
        found += small_limit_warnings(self._effective)
        return (*found, *self.quota_store().collect_warnings(self.shareable_types()), *self._dangling_warnings())

    def reserved_warnings(self, places: TopicPlaces | None) -> list[str]:
        """Those of `collect_warnings` about topics that don't exist yet."""
        reserved = self.reserved_thresholds(places)
        return reserved_warnings(self.commitments_by_broker(places), reserved) if reserved else []

    # --- changes ------------------------------------------------------------------------------------------------------

    def alter_policies(
        self,
        ops: Sequence[PolicyOperation],
        *,
        places: TopicPlaces | None = None,
        now_ms: int = 0,
        topic_ids: TopicIds = NO_IDS,
    ) -> PolicySet:
        """Apply all of these operations, or none. A sum that exceeds its total already may stay so, but not grow.

        Args:
            places: the brokers of topics, whose sums are checked; None: not known, so each topic counts on each broker.
            now_ms: Unix time in milliseconds; ends must be later.
            topic_ids: of the topics that get a threshold here, as far as they are known.

        Raises:
            PolicyError: its faults name each key.
        """
        wanted: dict[PolicyKey, PolicyValue | None] = {}
        ends: dict[PolicyKey, int] = {}
        faults: list[PolicyFault] = []
        for op in ops:
            try:
                key = op.key.validate_key()
                if key in wanted:
                    raise InvalidPolicy(f"{key} is given twice: set or remove it once per request")
                wanted[key] = self._check_value(key, op.value)
                if op.until_ms is not None:
                    ends[key] = check_end(key, op.value, op.until_ms, now_ms)
            except ValueError as error:
                faults.append(PolicyFault(op.key, str(error)))
        if faults:
            raise PolicyError(faults)
        new = self._with_changes(wanted, ends, topic_ids)
        new._check_change(self, wanted, places)
        return new

    @classmethod
    def from_base(cls, values: PolicyValues, places: TopicPlaces | None = None) -> PolicySet:
        """A set of that base alone. Each of its values is valid; this checks that they fit together. `places`: see
        `alter_policies`.

        Raises:
            PolicyError: they don't fit together; its faults name each key.
        """
        found = cls(values)
        found._check_change(cls(), values, places)
        return found

    def _check_change(
        self, before: PolicySet, wanted: Mapping[PolicyKey, PolicyValue | None], places: TopicPlaces | None
    ) -> None:
        """Check that the altered values fit all others."""
        faults = self._unshared_faults(wanted)
        if not faults and any(key.kind in ("topic", "broker") for key in wanted):
            faults += self._sum_faults(before, places)
        if not faults:
            faults += before._attachment_faults(wanted, self)
        if faults:
            raise PolicyError(faults)

    def alter_quotas(self, alterations: Sequence[Alteration], *, now_ms: int = 0) -> QuotasAltered:
        """AlterClientQuotas: a refused entity does not affect the others. `now_ms`: see `alter_policies`."""
        found = self.quota_store().alter_quotas(alterations, self.shareable_types(), validate_only=True)
        wanted: dict[PolicyKey, PolicyValue | None] = {}
        ends: dict[PolicyKey, int] = {}
        errors: list[QuotaError | None] = []
        for alteration, error in zip(alterations, found.errors, strict=True):
            if error is not None:
                errors.append(error)
                continue
            entity = Entity.from_pairs(alteration.entity)
            keys = {PolicyKey.of_quota(entity, QuotaKey.parse(op.key)): op.value for op in alteration.ops}
            until_ms = alteration.until_ms
            try:
                fine = {key: self._check_value(key, value) for key, value in keys.items()}
                if until_ms is not None:
                    set_here = {key: value for key, value in keys.items() if value is not None} or keys
                    ends.update({key: check_end(key, value, until_ms, now_ms) for key, value in set_here.items()})
                wanted.update(fine)
                errors.append(None)
            except ValueError as refused:
                errors.append(QuotaError(str(refused)))
        return QuotasAltered(self._with_changes(wanted, ends), tuple(errors))

    def diff_values(
        self, wanted: PolicyValues, *, prune: bool = False, until_ms: int | None = None
    ) -> list[PolicyOperation]:
        """The operations after which these values are in force, until that time or for good. A value set at run time
        with another end is set again. Empty if they are in force.

        `prune`: also remove all other values set at run time, except the operator's override of storage protection,
        which no document contains. Values that only the base has are left alone: they can't be removed here, and
        repeating one doesn't give it an end, since that alters nothing.
        """
        ops = [
            PolicyOperation(key, value, None if key.key in ENDLESS_KEYS else until_ms)
            for key, value in wanted.items()
            if self._effective.get(key) != value or (key in self.ends and self.ends[key].until_ms != until_ms)
        ]
        if prune:
            ops += [PolicyOperation(key, None) for key in self.changes if key not in wanted and key.kind != "storage"]
        return sorted(ops, key=lambda op: policy_order(op.key))

    def apply_values(
        self,
        wanted: PolicyValues,
        *,
        prune: bool = False,
        until_ms: int | None = None,
        groups: bool = True,
        places: TopicPlaces | None = None,
        now_ms: int = 0,
        topic_ids: TopicIds = NO_IDS,
    ) -> PolicySet:
        """`alter_policies` by the operations of `diff_values`. `groups`: whether resource groups and their attachments
        may change.

        Raises:
            PolicyError: its faults name each key.
        """
        ops = self.diff_values(wanted, prune=prune, until_ms=until_ms)
        faults = [
            PolicyFault(op.key, f"{op.key}: is not yours to change", "denied")
            for op in ops
            if op.key.kind in GROUP_KINDS
        ]
        if faults and not groups:
            raise PolicyError(faults)
        return self.alter_policies(ops, places=places, now_ms=now_ms, topic_ids=topic_ids)

    @classmethod
    def from_entries(cls, base: PolicyValues, entries: Iterable[PolicyEntry], version: int) -> PolicySet:
        """The set that these entries recorded, at most one of each key; one without a value adds nothing."""
        kept = tuple(entries)
        changes = {entry.key: entry.value for entry in kept if entry.value is not None}
        ends = {entry.key: entry.end for entry in kept if entry.end is not None}
        ids = {e.key.name: e.topic_id for e in kept if e.topic_id is not None and e.key.kind == "topic"}
        return cls(base, changes, version, ends, ids)

    def with_base(self, base: PolicyValues) -> PolicySet:
        """The same changes over another base."""
        return PolicySet(base, self.changes, self.version, self.ends, self.topic_ids).inherit_quotas(self)

    @property
    def next_end_ms(self) -> int | None:
        """The next time at which a value has to be reverted, Unix time in milliseconds."""
        return min((end.until_ms for end in self.ends.values()), default=None)

    def revert_expired(self, now_ms: int) -> PolicySet:
        """The set with each expired change replaced by its `then`. Sums need not fit: those values were valid once, and
        otherwise the change would stay for ever.
        """
        over = {key: end.then for key, end in self.ends.items() if end.until_ms <= now_ms}
        return self._with_changes(over, topic_ids=self.topic_ids)

    def follow_topic_ids(self, seen: TopicIds) -> PolicySet:
        """The set after a metadata refresh that found topics with these ids: a threshold that was set for an earlier
        topic of the same name is removed. A threshold whose topic was not known, or known only by an id in another
        cluster, belongs to this topic from now on.
        """
        news: dict[PolicyKey, RuntimeValue] = {}
        for name, topic_id in seen.items():
            key = PolicyKey.of_topic(name)
            held = self.runtime_value(key)
            known = held.topic_id
            if held.value is not None and known != topic_id:
                is_other = known is not None and known.cluster == topic_id.cluster
                news[key] = RuntimeValue() if is_other else held._replace(topic_id=topic_id)
        return self.restore_values(news)

    def without_topics(self, deleted: Mapping[str, RuntimeValue]) -> PolicySet:
        """The set after the deletion of these topics: without their thresholds that are still as in `deleted`."""
        keys = {PolicyKey.of_topic(name): held for name, held in deleted.items()}
        return self.restore_values(
            {key: RuntimeValue() for key, held in keys.items() if self.runtime_value(key) == held}
        )

    def restore_values(self, before: Mapping[PolicyKey, RuntimeValue]) -> PolicySet:
        """The set with these keys as they were. Nothing is checked: they were valid once, even if an end has come
        since.
        """
        changes, ends, ids = {**self.changes}, {**self.ends}, {**self.topic_ids}
        for key, (value, end, topic_id) in before.items():
            changes.pop(key, None)
            ends.pop(key, None)
            if key.kind == "topic":
                ids.pop(key.name, None)
            if value is not None:
                changes[key] = value
                ends |= {key: end} if end is not None else {}
                ids |= {key.name: topic_id} if topic_id is not None else {}
        return self._next_version(changes, ends, ids)

    def changes_since(self, old: PolicySet) -> tuple[PolicyChange, ...]:
        """The keys that differ between the two sets, in the order of `list_settings`; the base is the same."""
        keys = {
            key
            for key in {**old.changes, **self.changes}
            if old.changes.get(key) != self.changes.get(key) or old.ends.get(key) != self.ends.get(key)
        }  # no value is ever None
        ids, former = self.topic_ids, old.topic_ids
        others = {PolicyKey.of_topic(name) for name in {**former, **ids} if former.get(name) != ids.get(name)}
        return tuple(
            PolicyChange(
                key,
                self.changes.get(key),
                old._effective.get(key),
                self._effective.get(key),
                self.ends.get(key),
                ids.get(key.name) if key.kind == "topic" else None,
                key not in keys,
            )
            for key in sorted(keys | others, key=policy_order)
        )

    def _with_changes(
        self,
        wanted: Mapping[PolicyKey, PolicyValue | None],
        ends: Mapping[PolicyKey, int] = NO_TIMES,
        topic_ids: TopicIds = NO_IDS,
    ) -> PolicySet:
        """`ends`: of each change that has one, Unix time in milliseconds. `topic_ids`: see `alter_policies`."""
        changes, left, ids = {**self.changes}, {**self.ends}, {**self.topic_ids}
        for key, value in wanted.items():
            changes.pop(key, None)
            before = left.pop(key, None)
            if key.kind == "topic":
                ids.pop(key.name, None)
            if value is not None:
                changes[key] = value
                if key in ends:
                    left[key] = ValueEnd(ends[key], self.changes.get(key) if before is None else before.then)
                if key.kind == "topic" and key.name in topic_ids:
                    ids[key.name] = topic_ids[key.name]
        return self._next_version(changes, left, ids)

    def _next_version(self, changes: PolicyValues, ends: ValueEnds, topic_ids: TopicIds) -> PolicySet:
        if changes == self.changes and ends == self.ends and topic_ids == self.topic_ids:
            return self
        return PolicySet(self.base, changes, self.version + 1, ends, topic_ids).inherit_quotas(self)

    def inherit_quotas(self, before: PolicySet) -> PolicySet:
        """This set, with its client quotas derived from those of `before`: that costs as much as what changed, not as
        much as there is.
        """
        known, old, new = before._quotas, before._effective, self._effective
        if known is None:
            return self
        altered: dict[Entity, dict[QuotaKey, float]] = {}
        for key in (*(key for key, value in new.items() if old.get(key) != value), *(old.keys() - new.keys())):
            if key.kind == "quota":
                entity, value = key.entity, new.get(key)
                values = altered.setdefault(entity, dict(known.entries.get(entity, {})))
                values.pop(key.quota_key, None)
                if value is not None:
                    values[key.quota_key] = as_number(value)
        self._quotas = known.overlay_entries(altered, self.version)
        return self

    def check_operation(self, op: PolicyOperation) -> tuple[PolicyKey, PolicyValue | None]:
        """The key, in its one spelling, and the value, if it can be set or removed.

        Raises:
            InvalidPolicy: it can't.
        """
        key = op.key.validate_key()
        return key, self._check_value(key, op.value)

    def _check_value(self, key: PolicyKey, value: PolicyValue | None) -> PolicyValue | None:
        if value is not None:
            return check_value(key, value)
        if key in self.base and key not in self.changes:
            raise InvalidPolicy(
                f"{key} is set in the configuration file ({key.file_location}): remove it there, or set another"
                " value here"
            )
        return None

    def _unshared_faults(self, wanted: Mapping[PolicyKey, PolicyValue | None]) -> list[PolicyFault]:
        faults = []
        for key, value in wanted.items():
            if value is not None and key.kind == "quota":
                try:
                    client_quotas.check_quota(key.quota_key, as_number(value), self.shareable_types())
                except QuotaError as error:
                    faults.append(PolicyFault(key, str(error)))
        return faults

    def _attachment_faults(self, wanted: Mapping[PolicyKey, PolicyValue | None], new: PolicySet) -> list[PolicyFault]:
        """Attachments to groups that would not exist, checked from both sides: the attachments that are set, and the
        groups that are removed. An attachment that was wrong before may stay so.
        """
        faults = []
        for key, value in wanted.items():
            if key.kind in ATTACHABLE_KINDS and isinstance(value, str) and value not in new._groups:
                text = f"{key.kind} {key.name}: there is no group {value}: create it first"
                faults.append(PolicyFault(key, text, "unknown"))
        for group in sorted({key.name for key in wanted if key.kind == "group"} & self._groups.keys()):
            users = new.attachments_of(group) if group not in new._groups else ()
            if users and not faults:
                text = f"group {group} is in use by {keys_text(users)}: detach it there first"
                faults.append(PolicyFault(PolicyKey.of_group(group), text, "in use"))
        return faults

    def _dangling_warnings(self) -> list[str]:
        missing: dict[str, list[PolicyKey]] = {}
        for kind, attached in zip(ATTACHABLE_KINDS, (self._tenants, self._namespaces), strict=True):
            for name, group in attached.items():
                if group not in self._groups:
                    missing.setdefault(group, []).append(PolicyKey(kind, name, ATTACHMENT_KEY))
        return [
            f"there is no group {group}, but {keys_text(sorted(users, key=policy_order))} should belong to it:"
            " unlimited"
            for group, users in sorted(missing.items())
        ]

    def _sum_faults(self, before: PolicySet, places: TopicPlaces | None) -> list[PolicyFault]:
        """Faults of thresholds in sum. Sums that exceeded their total by as much `before` may stay."""
        over = find_exceeded(self.commitments_by_broker(places), before.commitments_by_broker(places))
        return [
            PolicyFault(PolicyKey("broker", name if name in self._totals else EVERY_BROKER, TOTAL_KEY), text)
            for name, text in over_texts(over)
        ]
