# KIP-546's three calls for Python: what is set (DescribeQuotas), what holds (DescribeEffectiveQuotas), changes
# (AlterQuotas). They work with a gateway, with units of ours, and with a plain cluster, which knows the bare keys only.
#
# The first and the last are Kafka's own DescribeClientQuotas and AlterClientQuotas. The final KIP left the second one
# out, and prefixes too: both are worked out here from one answer with everything, so they need nothing of a server.
# Knows no text but errors'.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar, get_args

from gateway.kafka.access import InvalidProperties
from gateway.kafka.client import Client, Connection, NoAnswer, UnknownApi
from policies.quotas.filter import Component, Filter, Match
from policies.quotas.names import ENTITY_TYPES, Entity, QuotaError, QuotaKey, QuotaType
from policies.quotas.store import Alteration, Effective, Op, QuotaStore, Values, paths
from protocol import quotas as wire
from protocol.admin import Api
from protocol.api import CLUSTER_AUTHORIZATION_FAILED, ERROR_NAMES

CLIENT_ID: Final = "kafka-quotas"
TIMEOUT_S: Final = 30.0
MAX_ANSWER_BYTES: Final = 100 * 2**20  # everything in one answer, 100 bytes an entity; brokers take no more than that
_ALL_TYPES: Final = frozenset(get_args(QuotaType))
_INVALID_REQUEST: Final = "INVALID_REQUEST"
_UNKNOWN_KEY: Final = "Invalid configuration key"  # a broker's words; a gateway knows the keys that are sent here

Q = TypeVar("Q")
A = TypeVar("A")

Pairs = tuple[tuple[str, str | None], ...]  # (entity type, name) as the Kafka protocol has them, None = <default>


class QuotaClientError(Exception):
    """Nobody answered, or with an error, or the properties can't be used: one line."""


class Refused(NamedTuple):
    """Why a change was not made. `error`: Kafka's name of it."""

    error: str
    message: str

    def __str__(self) -> str:
        return f"{self.error}: {self.message}" if self.message else self.error


class Row(NamedTuple):
    """What is set for one entity, as the Kafka protocol has it."""

    pairs: Pairs
    values: Mapping[str, float]


class Described(NamedTuple):
    """What is set for one entity.

    `pairs`: user first, then client-id, then types that only brokers have. `others`: values by wire key that only
    brokers have (controller_mutation_rate, connection_creation_rate).
    """

    pairs: Pairs
    values: Values
    others: Mapping[str, float]

    @property
    def entity(self) -> Entity | None:
        """None if it has a type that only brokers have (ip)."""
        return Entity.of(self.pairs) if all(kind in ENTITY_TYPES for kind, _ in self.pairs) else None


class Endpoint(Protocol):
    """Answers the two requests. All that it raises is QuotaClientError."""

    def describe(self, components: Sequence[Component], strict: bool) -> Sequence[Row]:
        """DescribeClientQuotas; never asked for Match.PREFIX."""

    def alter(self, alterations: Sequence[Alteration], validate_only: bool) -> Sequence[Refused | None]:
        """AlterClientQuotas, keys in wire spelling; one result per alteration, in their order."""


class Quotas:
    """The three calls, to any endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def describe(self, components: Sequence[Component] = (), strict: bool = False) -> tuple[Described, ...]:
        """DescribeQuotas: entities that all components match and that have a value, with just what is set for them.

        Args:
            components: at most one per entity type; none match everything. Prefixes (Match.PREFIX) as well.
            strict: leave out entities that have a type which no component names.

        Returns:
            By `Entity.order`, values by key; entities of types that only brokers have come last.

        Raises:
            QuotaError: a component that can't be.
            QuotaClientError: no answer, or an error.
        """
        Filter(components, strict)  # refuses what can't be
        prefixes = [component for component in components if component.match_type == Match.PREFIX]
        sent = [Component(c.entity_type, Match.SPECIFIED) if c in prefixes else c for c in components]
        found = [
            _described(row)
            for row in self._endpoint.describe(sent, strict)
            if all(_begins(dict(row.pairs).get(kind), prefix) for kind, _, prefix in prefixes)
        ]
        return tuple(sorted(found, key=_order))

    def describe_effective(self, entity: Entity, omit_overridden_values: bool = False) -> tuple[Effective, ...]:
        """DescribeEffectiveQuotas: the value that holds per key, by key, where it is set, and what it overrides.

        Args:
            entity: see `QuotaStore.effective`.
            omit_overridden_values: `overridden` is None then.

        Raises:
            QuotaError: quotas can't be set for such an entity.
            QuotaClientError: no answer, or an error.
        """
        wanted = paths(entity.checked())
        rows = {described.entity: described.values for described in self.describe()}
        store = QuotaStore.accepted({path: rows[path] for path in wanted if path in rows})
        return store.effective(entity, omit_overridden_values)

    def alter(self, alterations: Sequence[Alteration], validate_only: bool = False) -> tuple[Refused | None, ...]:
        """AlterQuotas: all changes of one entity are made, or none; entities don't depend on each other.

        What can't be anywhere is refused here and not sent.

        Args:
            alterations: each entity once. Keys in any spelling that QuotaKey.parse takes; a value of None removes.
            validate_only: changes nothing, but says what would be refused.

        Returns:
            One per alteration, in their order; None = made.

        Raises:
            QuotaClientError: no answer, so changes may or may not have been made; making them again does no harm.
        """
        checked = QuotaStore().alter(alterations, _ALL_TYPES, validate_only=True).errors
        results = [Refused(error.error, str(error)) if error else None for error in checked]
        sent = [at for at, error in enumerate(checked) if error is None]
        if sent:
            wire = [
                Alteration(entity, [Op(QuotaKey.parse(op.key).wire, op.value) for op in ops])
                for entity, ops in (alterations[at] for at in sent)
            ]
            for at, result in zip(sent, self._endpoint.alter(wire, validate_only), strict=True):
                results[at] = result
        return tuple(results)


class QuotaClient(Quotas):
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
        super().__init__(_Kafka(bootstrap_servers, properties or {}, timeout_s))


# --- rows -------------------------------------------------------------------------------------------------------------


def _described(row: Row) -> Described:
    ours: dict[QuotaKey, float] = {}
    others: dict[str, float] = {}
    for key, value in row.values.items():
        try:
            ours[QuotaKey.parse(key)] = value
        except QuotaError:
            others[key] = value
    by_key = sorted(ours.items(), key=lambda item: str(item[0]))
    return Described(tuple(sorted(row.pairs, key=_rank)), dict(by_key), dict(sorted(others.items())))


def _rank(pair: tuple[str, str | None]) -> tuple[int, str]:
    entity_type = pair[0]
    return ENTITY_TYPES.index(entity_type) if entity_type in ENTITY_TYPES else len(ENTITY_TYPES), entity_type


def _order(described: Described) -> tuple[bool, tuple[Any, ...]]:
    entity = described.entity
    if entity is None:
        return True, tuple((kind, name is None, name or "") for kind, name in described.pairs)
    return False, entity.order


def _begins(name: str | None, prefix: str | None) -> bool:
    return name is not None and name.startswith(prefix or "")


# --- the wire ---------------------------------------------------------------------------------------------------------


class _Kafka:
    """An `Endpoint` at the other end of Kafka's protocol."""

    def __init__(self, bootstrap_servers: str, properties: Mapping[str, str], timeout_s: float) -> None:
        self._servers = bootstrap_servers
        try:
            named = {"client.id": CLIENT_ID, **properties}
            self._client = Client(named, bootstrap_servers, timeout_s, MAX_ANSWER_BYTES)
        except InvalidProperties as error:
            raise QuotaClientError(str(error)) from error

    def describe(self, components: Sequence[Component], strict: bool) -> list[Row]:
        fields = tuple(wire.Component(kind, int(match_type), match) for kind, match_type, match in components)
        answer = self._ask(wire.DESCRIBE_CLIENT_QUOTAS, wire.DescribeClientQuotasRequest(fields, strict))
        if answer.error_code:
            why = _refused(answer.error_code, answer.error_message, "DescribeConfigs")
            raise QuotaClientError(f"{self._servers}: {why}")
        return [Row(entry.entity, dict(entry.values)) for entry in answer.entries or ()]

    def alter(self, alterations: Sequence[Alteration], validate_only: bool) -> list[Refused | None]:
        entries = tuple(
            wire.Alteration(
                tuple(wire.EntityPart(*pair) for pair in entity),
                tuple(wire.Operation(op.key, op.value or 0.0, op.value is None) for op in ops),
            )
            for entity, ops in alterations
        )
        answer = self._ask(wire.ALTER_CLIENT_QUOTAS, wire.AlterClientQuotasRequest(entries, validate_only))
        rows = {wire.entity_key(row.entity): row for row in answer.entries}
        return [self._result(alteration, rows.get(frozenset(alteration.entity))) for alteration in alterations]

    def _result(self, alteration: Alteration, row: wire.AlterClientQuotasResult | None) -> Refused | None:
        if row is None:
            return Refused("UNKNOWN_SERVER_ERROR", f"{self._servers} gave no result for this entity")
        if not row.error_code:
            return None
        refused = _refused(row.error_code, row.error_message, "AlterConfigs")
        if refused.error == _INVALID_REQUEST and refused.message.startswith(_UNKNOWN_KEY):
            units = sorted({str(QuotaKey.parse(op.key)) for op in alteration.ops if "." in op.key})
            if units:
                return Refused(
                    _INVALID_REQUEST,
                    f"{self._servers} is no gateway that keeps client quotas, and brokers don't know "
                    f"{', '.join(units)}: only broker_bps and percent ({refused.message})",
                )
        return refused

    def _ask(self, api: Api[Q, A], body: Q) -> A:
        async def ask(connection: Connection) -> A:
            try:
                return await connection.ask(api, body)
            except UnknownApi as error:
                raise NoAnswer(f"has no {api.name}: Kafka 2.6 and newer have it") from error

        try:
            return self._client.run(lambda asking: asking.ask_any(ask))
        except (NoAnswer, ValueError) as error:  # ValueError: a name or value that the request has no room for
            raise QuotaClientError(str(error)) from error


def _refused(code: int, message: str | None, right: str) -> Refused:
    """`right`: on the cluster, what one needs for it."""
    text = " ".join((message or "").split())
    if code == CLUSTER_AUTHORIZATION_FAILED:
        text = f"allow this principal {right} on the cluster"
    return Refused(ERROR_NAMES.get(code, f"error {code}"), text)
