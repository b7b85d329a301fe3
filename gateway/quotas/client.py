# KIP-546's three calls for Python: what is set (DescribeQuotas), what holds (DescribeEffectiveQuotas), changes
# (AlterQuotas). They work with a gateway, with units of ours, and with a plain cluster, which knows the bare keys only.
#
# The first and the last are Kafka's own DescribeClientQuotas and AlterClientQuotas. The final KIP left the second one
# out, and prefixes too: both are worked out here from one answer with everything. A gateway is asked to tell its own
# values from those of the brokers behind it (protocol/admin/quotas.py); a broker needs to know nothing new.
# Knows no text but errors'.

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, get_args

from gateway.kafka.access import InvalidProperties
from gateway.kafka.client import BrokerClient, BrokerConnection, NoAnswer, UnknownApi
from policies.definitions.rollout import ALL_CLIENTS
from policies.quotas.filter import Component, EntityFilter, Match
from policies.quotas.names import ENTITY_TYPES, QUOTA_KEYS, Entity, QuotaError, QuotaKey, QuotaType
from policies.quotas.store import Alteration, EntityValues, Op, QuotaStore, ResolvedQuota, matching_entities
from protocol.admin import quotas as wire
from protocol.api import CLUSTER_AUTHORIZATION_FAILED, ERROR_CODES, ERROR_NAMES
from protocol.message_codec import ApiCodec

CLIENT_ID: Final = "kafka-quotas"
TIMEOUT_S: Final = 30.0
MAX_RESPONSE_BYTES: Final = 100 * 2**20  # everything in one answer, 100 bytes an entity; brokers take no more than that
_ALL_TYPES: Final = frozenset(get_args(QuotaType))
_INVALID_REQUEST: Final = "INVALID_REQUEST"
_NO_SUCH_TYPE: Final = frozenset({ERROR_CODES["UNSUPPORTED_VERSION"], ERROR_CODES["INVALID_REQUEST"]})
MAX_AFFECTED: Final = 10_000
NO_VALUES: Final[EntityValues] = MappingProxyType({})
_UNKNOWN_KEY: Final = "Invalid configuration key"  # a broker's words; a gateway knows the keys that are sent here

Q = TypeVar("Q")
A = TypeVar("A")

EntityPairs = tuple[tuple[str, str | None], ...]  # (entity type, name) as the Kafka protocol has them, None = <default>


class QuotaClientError(Exception):
    """No broker answered, or one with an error, or the properties can't be used: one line."""


class QuotaRefusal(NamedTuple):
    """The reason why a change was not made. `error`: Kafka's name of it."""

    error: str
    message: str

    def __str__(self) -> str:
        return f"{self.error}: {self.message}" if self.message else self.error


class QuotaRow(NamedTuple):
    """The values set for one entity, as the Kafka protocol has them."""

    pairs: EntityPairs
    values: Mapping[str, float]


Enforcer = Literal["gateway", "brokers"]


class DescribedQuotas(NamedTuple):
    """The values set for one entity.

    `pairs`: user first, then client-id, then types that only brokers have. `others`: values by wire key that only
    brokers have (controller_mutation_rate, connection_creation_rate). `upstream`: the brokers' values where a gateway
    tells them apart from its own. `ends`: Unix time in milliseconds, of the gateway's values that have an end.
    `percent`: of the clients for whom the gateway enforces its values; 0: it only observes.
    """

    pairs: EntityPairs
    values: EntityValues
    others: Mapping[str, float]
    upstream: EntityValues = NO_VALUES
    ends: EntityValues = NO_VALUES
    percent: float = ALL_CLIENTS

    @property
    def entity(self) -> Entity | None:
        """None if it has a type that only brokers have (ip)."""
        return Entity.from_pairs(self.pairs) if all(kind in ENTITY_TYPES for kind, _ in self.pairs) else None


class EnforcedQuota(NamedTuple):
    """The value in force for an entity, of one key, and its enforcer.

    `also`: where gateway and brokers both do, the other one's, which is not less, or which is the gateway's and not
    enforced for all clients. `percent`: of the clients, for whom the gateway enforces its value.
    """

    effective: ResolvedQuota
    by: Enforcer
    also: ResolvedQuota | None = None
    percent: float = ALL_CLIENTS


class BrokerOnlyQuota(NamedTuple):
    """The value in force of a key that only brokers have, by its wire name, and less specific values."""

    key: str
    source: Entity
    value: float
    overridden: tuple[tuple[Entity, float], ...]


class QuotaMove(NamedTuple):
    """A quota of the brokers' that a gateway takes over. `ours`: the gateway's value for the same entity and key."""

    entity: Entity
    key: QuotaKey
    theirs: float
    ours: float | None

    @property
    def value(self) -> float:
        """The gateway's value then: the one in force for this entity already."""
        return self.theirs if self.ours is None else min(self.theirs, self.ours)


class QuotaTakeover(NamedTuple):
    """`changes`: the entities for which another value holds when all of it is moved, as two hierarchies become one:
    entity, key, the value before and after it. `temporary`: the quotas that stay with the brokers, as the gateway's
    value beside them has an end: moving them would make that one permanent, and lose the value that holds after it.
    """

    moves: tuple[QuotaMove, ...]
    changes: tuple[tuple[Entity, QuotaKey, float, float], ...]
    temporary: tuple[tuple[Entity, QuotaKey], ...] = ()


class QuotaEndpoint(Protocol):
    """Answers the two requests. All that it raises is QuotaClientError."""

    def describe(self, components: Sequence[Component], strict: bool) -> Sequence[QuotaRow]:
        """DescribeClientQuotas; never asked for Match.PREFIX."""

    def describe_apart(self, components: Sequence[Component] = (), strict: bool = False) -> Sequence[QuotaRow] | None:
        """The same, the brokers' values with UPSTREAM_SUFFIX behind their keys; None: it is no gateway that could, and
        all values are the brokers'.
        """

    def alter(self, alterations: Sequence[Alteration], validate_only: bool) -> Sequence[QuotaRefusal | str | None]:
        """AlterClientQuotas, keys in wire spelling; one result per alteration, in their order; a text: it was made, and
        the text is a gateway's warning.
        """


class QuotaApi:
    """The three calls, to any endpoint. `warnings`: a gateway's about the last alterations."""

    def __init__(self, endpoint: QuotaEndpoint) -> None:
        self._endpoint = endpoint
        self.warnings: tuple[str, ...] = ()

    def describe(
        self, components: Sequence[Component] = (), strict: bool = False, *, apart: bool = False
    ) -> tuple[DescribedQuotas, ...]:
        """DescribeQuotas: entities that all components match and that have a value, with just their own values.

        Args:
            components: at most one per entity type; none match everything. Prefixes (Match.PREFIX) as well.
            strict: leave out entities that have a type which no component names.
            apart: where a gateway answers, all of the brokers' values are in `upstream`; else just those beside one of
                the gateway's.

        Returns:
            By `Entity.sort_key`, values by key; entities of types that only brokers have come last.

        Raises:
            QuotaError: a component that can't be.
            QuotaClientError: no answer, or an error.
        """
        EntityFilter(components, strict)  # refuses what can't be
        prefixes = [component for component in components if component.match_type == Match.PREFIX]
        sent = [Component(c.entity_type, Match.SPECIFIED) if c in prefixes else c for c in components]
        rows = self._endpoint.describe_apart(sent, strict) if apart else None
        found = [
            _describe_row(row)
            for row in (self._endpoint.describe(sent, strict) if rows is None else rows)
            if all(_has_prefix(dict(row.pairs).get(kind), prefix) for kind, _, prefix in prefixes)
        ]
        return tuple(sorted(found, key=_sort_key))

    def describe_effective(self, entity: Entity, omit_overridden_values: bool = False) -> tuple[ResolvedQuota, ...]:
        """DescribeEffectiveQuotas: the value that holds per key, by key, where it is set, and the values that it
        overrides.

        Args:
            entity: see `QuotaStore.effective_quotas`.
            omit_overridden_values: `overridden` is None then.

        Raises:
            QuotaError: quotas can't be set for such an entity.
            QuotaClientError: no answer, or an error.
        """
        return tuple(each.effective for each in self.describe_enforced(entity, omit_overridden_values))

    def describe_enforced(self, entity: Entity, omit_overridden_values: bool = False) -> tuple[EnforcedQuota, ...]:
        """The same, with the enforcer. A gateway's quotas and those that the brokers behind it have are two sources:
        both hold, so the lesser value does, if the gateway enforces its own for all clients; else the brokers' comes
        first. Of request_percentage both are told, each by itself: one limits the time of the brokers' threads, the
        other that of the gateway's worker.

        Raises:
            QuotaError, QuotaClientError: as above.
        """
        wanted = matching_entities(entity.validate_entity())
        apart = self._endpoint.describe_apart()
        described = self.describe() if apart is None else [_describe_row(row) for row in apart]
        rows = {each.entity: each for each in described}
        ours, theirs = (
            {each.key: each for each in _make_store(values).effective_quotas(entity, omit_overridden_values)}
            for values in (
                {path: rows[path].values for path in wanted if path in rows},
                {path: rows[path].upstream for path in wanted if path in rows},
            )
        )
        by: Enforcer = "brokers" if apart is None else "gateway"
        percent = min((each.percent for each in described), default=ALL_CLIENTS)
        return tuple(
            each for key in QUOTA_KEYS for each in _merge_enforced(ours.get(key), theirs.get(key), by, percent)
        )

    def describe_others(self, entity: Entity) -> tuple[BrokerOnlyQuota, ...]:
        """The values in force of keys that only brokers have (controller_mutation_rate), which resolve like all others.

        Raises:
            QuotaError, QuotaClientError: as above.
        """
        rows = {each.entity: each.others for each in self.describe() if each.others}
        found: dict[str, list[tuple[Entity, float]]] = {}
        for path in matching_entities(entity.validate_entity()):
            for key, value in rows.get(path, {}).items():
                found.setdefault(key, []).append((path, value))
        return tuple(BrokerOnlyQuota(key, *first, tuple(others)) for key, (first, *others) in sorted(found.items()))

    def alter(self, alterations: Sequence[Alteration], validate_only: bool = False) -> tuple[QuotaRefusal | None, ...]:
        """AlterQuotas: all changes of one entity are made, or none; entities don't depend on each other.

        A value that is impossible everywhere is refused here and not sent.

        Args:
            alterations: each entity once. Keys in any spelling that QuotaKey.parse takes; a value of None removes. Only
                a gateway knows `until_ms`.
            validate_only: changes nothing, but says what would be refused.

        Returns:
            One per alteration, in their order; None = made.

        Raises:
            QuotaClientError: no answer, so changes may or may not have been made; making them again does no harm.
        """
        checked = QuotaStore().alter_quotas(alterations, _ALL_TYPES, validate_only=True).errors
        results = [QuotaRefusal(error.error, str(error)) if error else None for error in checked]
        sent = [at for at, error in enumerate(checked) if error is None]
        if sent:
            wire = [
                each._replace(ops=[Op(QuotaKey.parse(op.key).wire_name, op.value) for op in each.ops])
                for each in (alterations[at] for at in sent)
            ]
            results = self._merge_results(results, sent, self._endpoint.alter(wire, validate_only))
        return tuple(results)

    def plan_takeover(self, components: Sequence[Component] = ()) -> QuotaTakeover:
        """The quotas that `take_over` would move into a gateway: the brokers' of all entities that these components
        match.

        Raises:
            QuotaError: a component that can't be.
            QuotaClientError: no answer, or an error, or it is no gateway.
        """
        apart = self._endpoint.describe_apart()
        if apart is None:
            raise QuotaClientError(
                "this is not a gateway that keeps client quotas: there is nothing that could take over"
            )
        rows = {each.entity: each for each in map(_describe_row, apart) if each.entity is not None}
        ours, theirs = (
            _make_store({entity: getattr(row, which) for entity, row in rows.items() if entity is not None})
            for which in ("values", "upstream")
        )
        found = [
            QuotaMove(entity, key, value, ours.entries.get(entity, NO_VALUES).get(key))
            for entity, values in theirs.describe_quotas(components)
            for key, value in values.items()
            if key.type != "request_percentage"  # of the brokers' threads; the gateway's is of its worker's time
        ]
        temporary = tuple((move.entity, move.key) for move in found if move.key in rows[move.entity].ends)
        moves = tuple(move for move in found if move.key not in rows[move.entity].ends)
        after_ours, left = dict(ours.entries), dict(theirs.entries)
        for move in moves:
            after_ours[move.entity] = {**after_ours.get(move.entity, NO_VALUES), move.key: move.value}
            left[move.entity] = {key: value for key, value in left[move.entity].items() if key != move.key}
        before, after = (ours, theirs), (_make_store(after_ours), _make_store(left))
        keys = {move.key for move in moves}
        changes = [
            (entity, key, was, now)
            for entity in _affected_entities(rows)
            for key in keys
            if (was := _lowest_value(before, entity, key)) != (now := _lowest_value(after, entity, key))
        ]
        changes.sort(key=lambda change: (change[0].sort_key, str(change[1])))
        return QuotaTakeover(moves, tuple(changes), temporary)

    def take_over(self, moves: Sequence[QuotaMove], validate_only: bool = False) -> dict[Entity, QuotaRefusal | None]:
        """Move them: all of one entity, or none. Each is set in the gateway before the brokers lose it; one that the
        gateway has already, or less than it, the brokers only lose.

        Args:
            validate_only: changes nothing, but says what would be refused.

        Raises:
            QuotaClientError: see `alter`.
        """
        by_entity: dict[Entity, list[Op]] = {}
        for move in moves:
            wire_key = move.key.wire_name
            ops = by_entity.setdefault(move.entity, [])
            if move.ours != move.value:
                ops.append(Op(wire_key, move.value))
            ops.append(Op(wire_key + wire.UPSTREAM_SUFFIX, None))
        asked = [Alteration(entity.wire_pairs, ops) for entity, ops in by_entity.items()]
        results = self._endpoint.alter(asked, validate_only) if asked else ()
        return dict(zip(by_entity, self._merge_results([None] * len(asked), range(len(asked)), results), strict=True))

    def _merge_results(
        self, results: list[QuotaRefusal | None], sent: Sequence[int], answers: Sequence[QuotaRefusal | str | None]
    ) -> list[QuotaRefusal | None]:
        self.warnings = tuple(each for each in answers if isinstance(each, str))
        for at, result in zip(sent, answers, strict=True):
            results[at] = None if isinstance(result, str) else result
        return results


class QuotaClient(QuotaApi):
    """The three calls, to a gateway or a broker. Each has a connection of its own, so there is nothing to close.

    Calls block; they may come from any thread.

    Args:
        bootstrap_servers: `host:port,host:port`; the first that answers is enough.
        properties: how to reach and trust them, by librdkafka's names, as under `upstream` in the configuration;
            gateway.kafka.java_properties makes them of a Java client's.
        timeout_s: for one call.

    Raises:
        QuotaClientError: properties that can't be used.
    """

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        super().__init__(_KafkaEndpoint(bootstrap_servers, properties or {}, timeout_s))


# --- rows -------------------------------------------------------------------------------------------------------------


def _describe_row(row: QuotaRow) -> DescribedQuotas:
    ours: dict[QuotaKey, float] = {}
    upstream: dict[QuotaKey, float] = {}
    ends: dict[QuotaKey, float] = {}
    others: dict[str, float] = {}
    for key, value in row.values.items():
        if key == wire.ENFORCED_KEY:
            continue
        own, into = key, ours
        for suffix, values in ((wire.UPSTREAM_SUFFIX, upstream), (wire.END_SUFFIX, ends)):
            if key.endswith(suffix):
                own, into = key.removesuffix(suffix), values
        try:
            into[QuotaKey.parse(own)] = value
        except QuotaError:
            others[key] = value
    pairs = tuple(sorted(row.pairs, key=_pair_rank))
    percent = row.values.get(wire.ENFORCED_KEY, ALL_CLIENTS)
    return DescribedQuotas(
        pairs, _sort_by_key(ours), dict(sorted(others.items())), _sort_by_key(upstream), _sort_by_key(ends), percent
    )


def _sort_by_key(values: EntityValues) -> EntityValues:
    return dict(sorted(values.items(), key=lambda item: str(item[0])))


def _make_store(values: Mapping[Entity, EntityValues]) -> QuotaStore:
    return QuotaStore.from_broker({entity: found for entity, found in values.items() if found})


def _affected_entities(rows: Iterable[Entity]) -> list[Entity]:
    """Those that are named, and the entities that are both of two named ones: as many as that."""
    named = list(rows)
    users = [entity.user for entity in named if entity.client_id is None]
    clients = [entity.client_id for entity in named if entity.user is None]
    both = (Entity(user, client_id) for user in users for client_id in clients)
    return list(dict.fromkeys([*named, *itertools.islice(both, MAX_AFFECTED)]))


def _lowest_value(stores: Sequence[QuotaStore], entity: Entity, key: QuotaKey) -> float:
    """The value in force of two that are both enforced; infinite: no limit."""
    found = (each for store in stores for each in store.effective_quotas(entity, True) if each.key == key)
    return min((each.value for each in found), default=math.inf)


def _merge_enforced(
    ours: ResolvedQuota | None, theirs: ResolvedQuota | None, by: Enforcer, percent: float
) -> list[EnforcedQuota]:
    """`by`: the enforcer of `ours`, for `percent` of the clients; the other one is the brokers'."""
    if ours is None or theirs is None or ours.key.type == "request_percentage":
        found = [EnforcedQuota(ours, by, percent=percent)] if ours is not None else []
        return found + ([EnforcedQuota(theirs, "brokers")] if theirs is not None else [])
    if theirs.value < ours.value or percent < ALL_CLIENTS:
        return [EnforcedQuota(theirs, "brokers", ours, percent)]
    return [EnforcedQuota(ours, by, theirs)]


def _pair_rank(pair: tuple[str, str | None]) -> tuple[int, str]:
    entity_type = pair[0]
    return ENTITY_TYPES.index(entity_type) if entity_type in ENTITY_TYPES else len(ENTITY_TYPES), entity_type


def _sort_key(described: DescribedQuotas) -> tuple[bool, tuple[Any, ...]]:
    entity = described.entity
    if entity is None:
        return True, tuple((kind, name is None, name or "") for kind, name in described.pairs)
    return False, entity.sort_key


def _has_prefix(name: str | None, prefix: str | None) -> bool:
    return name is not None and name.startswith(prefix or "")


# --- the wire ---------------------------------------------------------------------------------------------------------


class _KafkaEndpoint:
    """An `QuotaEndpoint` at the other end of Kafka's protocol."""

    def __init__(self, bootstrap_servers: str, properties: Mapping[str, str], timeout_s: float) -> None:
        self._servers = bootstrap_servers
        try:
            named = {"client.id": CLIENT_ID, **properties}
            self._client = BrokerClient(named, bootstrap_servers, timeout_s, MAX_RESPONSE_BYTES)
        except InvalidProperties as error:
            raise QuotaClientError(str(error)) from error

    def describe(self, components: Sequence[Component], strict: bool) -> list[QuotaRow]:
        return self._read_rows(self._request_quotas(components, strict))

    def describe_apart(self, components: Sequence[Component] = (), strict: bool = False) -> list[QuotaRow] | None:
        answer = self._request_quotas(components, strict, wire.FilterComponent(wire.APART_TYPE, wire.SPECIFIED, None))
        return None if answer.error_code in _NO_SUCH_TYPE else self._read_rows(answer)

    def _request_quotas(
        self, components: Sequence[Component], strict: bool, *more: wire.FilterComponent
    ) -> wire.DescribeClientQuotasResponse:
        fields = tuple(wire.FilterComponent(kind, int(match_type), match) for kind, match_type, match in components)
        return self._send_request(
            wire.DESCRIBE_CLIENT_QUOTAS, wire.DescribeClientQuotasRequest((*fields, *more), strict)
        )

    def _read_rows(self, answer: wire.DescribeClientQuotasResponse) -> list[QuotaRow]:
        if answer.error_code:
            why = _make_refusal(answer.error_code, answer.error_message, "DescribeConfigs")
            raise QuotaClientError(f"{self._servers}: {why}")
        return [QuotaRow(entry.entity, dict(entry.values)) for entry in answer.entries or ()]

    def alter(self, alterations: Sequence[Alteration], validate_only: bool) -> list[QuotaRefusal | str | None]:
        entries = tuple(
            wire.EntityAlteration(
                tuple(wire.EntityData(*pair) for pair in entity),
                tuple(wire.QuotaOperation(op.key, op.value or 0.0, op.value is None) for op in ops)
                + (() if until_ms is None else (wire.QuotaOperation(wire.UNTIL_KEY, float(until_ms), False),)),
            )
            for entity, ops, until_ms in alterations
        )
        answer = self._send_request(wire.ALTER_CLIENT_QUOTAS, wire.AlterClientQuotasRequest(entries, validate_only))
        rows = {wire.entity_key(row.entity): row for row in answer.entries}
        return [self._alter_result(alteration, rows.get(frozenset(alteration.entity))) for alteration in alterations]

    def _alter_result(
        self, alteration: Alteration, row: wire.AlterClientQuotasResult | None
    ) -> QuotaRefusal | str | None:
        if row is None:
            return QuotaRefusal("UNKNOWN_SERVER_ERROR", f"{self._servers} gave no result for this entity")
        if not row.error_code:
            return row.error_message or None
        refused = _make_refusal(row.error_code, row.error_message, "AlterConfigs")
        if refused.error == _INVALID_REQUEST and refused.message.startswith(_UNKNOWN_KEY):
            if alteration.until_ms is not None:
                return QuotaRefusal(
                    _INVALID_REQUEST,
                    f"{self._servers} is not a gateway that keeps client quotas, and brokers have none with an end"
                    f" ({refused.message})",
                )
            units = sorted({str(QuotaKey.parse(op.key)) for op in alteration.ops if "." in op.key})
            if units:
                return QuotaRefusal(
                    _INVALID_REQUEST,
                    f"{self._servers} is not a gateway that keeps client quotas, and brokers don't know "
                    f"{', '.join(units)}: only broker_bps and percent ({refused.message})",
                )
        return refused

    def _send_request(self, api: ApiCodec[Q, A], body: Q) -> A:
        async def ask(connection: BrokerConnection) -> A:
            try:
                return await connection.send_request(api, body)
            except UnknownApi as error:
                raise NoAnswer(f"has no {api.name}: Kafka 2.6 and newer have it") from error

        try:
            return self._client.run(lambda asking: asking.request_any_broker(ask))
        except (NoAnswer, ValueError) as error:  # ValueError: a name or value that the request has no room for
            raise QuotaClientError(str(error)) from error


def _make_refusal(code: int, message: str | None, right: str) -> QuotaRefusal:
    """`right`: the one on the cluster needed for it."""
    text = " ".join((message or "").split())
    if code == CLUSTER_AUTHORIZATION_FAILED:
        text = f"allow this principal {right} on the cluster"
    return QuotaRefusal(ERROR_NAMES.get(code, f"error {code}"), text)
