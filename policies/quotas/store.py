# Client quotas: which value is set for whom, and which of them hold for one connection. Each key (type and unit) goes
# through Kafka's eight levels by itself, the most specific value wins and overrides the others; the values of different
# keys all hold, whichever is reached first. All who meet in one `BucketKey` share one limit.
#
# A store is an immutable value: a change is a new one, with a higher `version`. Knows no traffic, no rates and no
# topic that values are kept in. Sources: KIP-546 (draft; KIP-13, 55 and 124 for what it builds on); what is refused is
# what Kafka 4.3's controller refuses (ClientQuotaControlManager, ClientQuotasImage), and what would limit nothing.

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Final, NamedTuple

from policies.quotas.filter import Component, EntityFilter
from policies.quotas.names import (
    DEFAULT,
    QUOTA_KEYS,
    Entity,
    EntityName,
    QuotaError,
    QuotaKey,
    QuotaType,
    QuotaUnit,
)
from policies.thresholds.values import TOTAL_KEY, TOTAL_OUT_KEY

EntityValues = Mapping[QuotaKey, float]
NO_TOTALS: Final[frozenset[QuotaType]] = frozenset()
# The totals that shares are parts of.
TOTAL_KEYS: Final[Mapping[QuotaType, str]] = {"producer_byte_rate": TOTAL_KEY, "consumer_byte_rate": TOTAL_OUT_KEY}
_MAX_RATE: Final = 2.0**63  # Kafka's byte rates are a Java long
MIN_PERCENT: Final = 0.001  # 10 µs of a second; beyond these it is a mistake, and floats get out of hand
MAX_PERCENT: Final = 100_000.0  # a thousand threads
_NO_VALUES: Final[EntityValues] = MappingProxyType({})


class Op(NamedTuple):
    """Set `key`, as QuotaKey.parse takes it, to `value`; None removes it."""

    key: str
    value: float | None


class Alteration(NamedTuple):
    """Changes of one entity, given as `Entity.from_pairs` takes it: all of them are made, or none.

    `until_ms`: Unix time at which values that are set end, see policy_values.End; None: never.
    """

    entity: Sequence[tuple[str, str | None]]
    ops: Sequence[Op]
    until_ms: int | None = None


class AlterationsResult(NamedTuple):
    """`errors`: one per alteration, in their order; None: done. `changed`: entities whose values changed. With
    validate_only `store` is the former one, and `changed` has the entities that would change.
    """

    store: QuotaStore
    errors: tuple[QuotaError | None, ...]
    changed: tuple[Entity, ...]


class QuotaSetting(NamedTuple):
    """A value and the entity that it is set for."""

    source: Entity
    value: float


class BucketKey(NamedTuple):
    """The clients that share one limit: same key, and same actual names of the types that the limit's entity has.

    Under <default> each name has its own. `user`, `client_id`: actual names, "" for one that isn't known; None where
    the entity doesn't have the type. For `broker_bps` and `percent` there is one bucket of it per broker.
    """

    key: QuotaKey
    user: EntityName
    client_id: EntityName


class ResolvedQuota(NamedTuple):
    """The effective value of one key. `overridden`: less specific values, most specific first; None: not requested."""

    key: QuotaKey
    source: Entity
    value: float
    bucket: BucketKey
    overridden: tuple[QuotaSetting, ...] | None

    @property
    def limit(self) -> QuotaLimit:
        return QuotaLimit(self.bucket, self.key.unit, self.value, self.source)


class QuotaLimit(NamedTuple):
    """An effective value as the data path needs it. `rate`: in `unit`; for `shares` their number."""

    bucket: BucketKey
    unit: QuotaUnit
    rate: float
    source: Entity


class QuotaLimits(NamedTuple):
    """All limits of one user and client id, by the limited quantity; all of them apply."""

    produce: tuple[QuotaLimit, ...]
    consume: tuple[QuotaLimit, ...]
    request: tuple[QuotaLimit, ...]


class QuotaStore:
    """Quota values by entity. Treat as frozen. `version` grows with every change: limits found in an older store are
    stale.
    """

    __slots__ = ("_entries", "version")

    def __init__(self, entries: Mapping[Entity, EntityValues] | None = None, version: int = 0) -> None:
        """Shares are accepted without a check of totals, which may have gone since: see `collect_warnings`.

        Raises:
            QuotaError: an entity or a value is not valid.
        """
        self._entries: dict[Entity, EntityValues] = {}
        self.version = version
        for entity, values in (entries or {}).items():
            self._put_values(entity.validate_entity(), {key: check_quota(key, value) for key, value in values.items()})

    @classmethod
    def from_validated(cls, entries: Mapping[Entity, EntityValues], version: int = 0) -> QuotaStore:
        """A store of validated values: entities in their one spelling, each with a value, and values in the order of
        their keys. The caller must not change them afterwards.
        """
        made = cls(version=version)
        made._entries = dict(entries)
        return made

    @classmethod
    def from_broker(cls, entries: Mapping[Entity, EntityValues]) -> QuotaStore:
        """A store of quotas that a broker has accepted, with values that would be refused here. For display, not for
        limiting.
        """
        made = cls()
        for entity, values in entries.items():
            made._put_values(entity, values)
        return made

    def find_lesser(self, entity: Entity, key: QuotaKey, value: float) -> ResolvedQuota | None:
        """The value in force here for that entity, if it is less than `value`, which another source has for it. None
        for times: the threads of brokers and the gateway's worker are independent.
        """
        if key.type == "request_percentage":
            return None
        found = next(
            (each for each in self.effective_quotas(entity, omit_overridden_values=True) if each.key == key), None
        )
        return found if found is not None and found.value < value else None

    @property
    def entries(self) -> Mapping[Entity, EntityValues]:
        """Entities that have at least one value."""
        return MappingProxyType(self._entries)

    # --- changes ------------------------------------------------------------------------------------------------------

    def alter_quotas(
        self,
        alterations: Sequence[Alteration],
        totals: Set[QuotaType] = NO_TOTALS,
        validate_only: bool = False,
    ) -> AlterationsResult:
        """AlterClientQuotas. Alterations are independent: a refused one does not affect the others.

        Args:
            totals: types for which brokers have a total that `shares` can be part of.
        """
        who = [frozenset(alteration.entity) for alteration in alterations]
        times = Counter(who)
        errors: list[QuotaError | None] = []
        wanted: dict[Entity, EntityValues] = {}
        for alteration, pairs in zip(alterations, who, strict=True):
            try:
                entity = Entity.from_pairs(alteration.entity)
                if times[pairs] > 1:  # Kafka takes the first and still reports the error
                    raise QuotaError(f"{entity.path} is given more than once: alter it once per request")
                wanted[entity] = _apply_ops(self._entries.get(entity, _NO_VALUES), alteration.ops, totals)
                errors.append(None)
            except QuotaError as error:
                errors.append(error)
        changed = tuple(entity for entity, values in wanted.items() if values != self._entries.get(entity, _NO_VALUES))
        new = {entity: wanted[entity] for entity in changed}
        store = self if validate_only or not new else self.overlay_entries(new, self.version + 1)
        return AlterationsResult(store, tuple(errors), changed)

    def overlay_entries(self, entries: Mapping[Entity, EntityValues], version: int) -> QuotaStore:
        """The store with these values, which are validated already, in place of the entities' own ({}: none); it has
        that version.
        """
        new = QuotaStore.from_validated(self._entries, version)
        for entity, values in entries.items():
            new._put_values(entity, values)
        return new

    def _put_values(self, entity: Entity, values: EntityValues) -> None:
        if values:
            self._entries[entity] = dict(sorted(values.items()))
        else:
            self._entries.pop(entity, None)

    # --- what is set --------------------------------------------------------------------------------------------------

    def describe_quotas(
        self, components: Sequence[Component] = (), strict: bool = False
    ) -> tuple[tuple[Entity, EntityValues], ...]:
        """DescribeClientQuotas: entities that all components match, in the order of `Entity.sort_key`; values by key.

        Args:
            strict: leave out entities that have a type which no component names.

        Raises:
            QuotaError: a component that can't be.
        """
        wanted = EntityFilter(components, strict)
        found = sorted(filter(wanted.matches_entity, self._entries), key=lambda entity: entity.sort_key)
        return tuple((entity, self._entries[entity]) for entity in found)

    def collect_warnings(self, totals: Set[QuotaType]) -> tuple[str, ...]:
        """Warnings about shares that are no limit because the total that they were part of is gone."""
        idle = sum(
            1 for values in self._entries.values() for key in values if key.unit == "shares" and key.type not in totals
        )
        return (f"{idle} quotas in shares have no effect: there is no broker total to share",) if idle else ()

    # --- what holds ---------------------------------------------------------------------------------------------------

    def effective_quotas(self, entity: Entity, omit_overridden_values: bool = False) -> tuple[ResolvedQuota, ...]:
        """DescribeEffectiveQuotas: the effective value per key, ordered by key, for clients of that user and client id.
        A default asks for the values of names that have none of their own; a missing type, for values that don't depend
        on it.
        """
        found: dict[QuotaKey, list[QuotaSetting]] = {}
        for source in matching_entities(entity):
            for key, value in self._entries.get(source, _NO_VALUES).items():
                found.setdefault(key, []).append(QuotaSetting(source, value))
        return tuple(
            ResolvedQuota(
                key,
                winner.source,
                winner.value,
                _bucket_key(key, winner.source, entity),
                None if omit_overridden_values else tuple(overridden),
            )
            for key in QUOTA_KEYS
            if key in found
            for winner, *overridden in (found[key],)
        )

    def connection_limits(self, user: str | None, client_id: str | None) -> QuotaLimits:
        """`effective_quotas` as the data path needs it: called once per identity, valid as long as `version` stays."""
        found = self.effective_quotas(Entity(user or "", client_id or ""), omit_overridden_values=True)
        if not found:
            return NO_QUOTA_LIMITS
        limits = [each.limit for each in found]
        return QuotaLimits(
            *(tuple(limit for limit in limits if limit.bucket.key.type == kind) for kind in _QUOTA_TYPES)
        )


_QUOTA_TYPES: Final[tuple[QuotaType, ...]] = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
NO_QUOTA_LIMITS: Final = QuotaLimits((), (), ())


def matching_entities(entity: Entity) -> list[Entity]:
    """Entities whose values hold for this one, most specific first: eight, if it has both names."""
    clients = _candidate_names(entity.client_id)
    found = [Entity(user, client) for user in _candidate_names(entity.user) for client in (*clients, None)]
    found += [Entity(None, client) for client in clients]
    return found


def check_quota(key: QuotaKey, value: float, totals: Set[QuotaType] | None = None) -> float:
    """`value`, if it can be set. `totals`: see `QuotaStore.alter_quotas`; None: all types have one.

    Raises:
        QuotaError: it can't.
    """
    if not (math.isfinite(value) and value > 0):
        raise QuotaError(f"{key}={value}: a quota is a finite number above 0; remove it for no limit")
    if key.unit == "percent":
        if not MIN_PERCENT <= value <= MAX_PERCENT:
            raise QuotaError(
                f"{key}={value:g}: from {MIN_PERCENT:g} to {MAX_PERCENT:,.0f} % can be had; remove it for no limit"
            )
        return value
    if value != math.floor(value):
        raise QuotaError(f"{key}={value}: {key.type} has no fractions, {math.ceil(value)} would do")
    if value > _MAX_RATE:
        raise QuotaError(f"{key}={value}: the largest value is {int(_MAX_RATE) - 1}; remove the quota for no limit")
    if key.unit == "shares" and totals is not None and key.type not in totals:
        total = TOTAL_KEYS[key.type]
        raise QuotaError(f"{key}: brokers have no {total} to share: set one first, or use bps or broker_bps")
    return value


def _apply_ops(values: EntityValues, ops: Sequence[Op], totals: Set[QuotaType]) -> EntityValues:
    new = dict(values)
    seen: set[QuotaKey] = set()
    for op in ops:
        key = QuotaKey.parse(op.key)
        if key in seen:
            raise QuotaError(f"{key} is given twice: set or remove it once per entity")
        seen.add(key)
        if op.value is None:
            new.pop(key, None)
        else:
            new[key] = check_quota(key, op.value, totals)
    return new


def _candidate_names(name: EntityName) -> tuple[EntityName, ...]:
    """The names that a quota may be set for to apply to this name."""
    if name is None:
        return ()
    return (name, DEFAULT) if name and name is not DEFAULT else (DEFAULT,)


def _bucket_key(key: QuotaKey, source: Entity, entity: Entity) -> BucketKey:
    return BucketKey(
        key,
        None if source.user is None else entity.user,
        None if source.client_id is None else entity.client_id,
    )
