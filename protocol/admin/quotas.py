# DescribeClientQuotas and AlterClientQuotas: the messages, and how one is divided between the broker and a gateway that
# keeps quotas of its own (units that no broker knows, say).
#
# An entity is a set of (type, name): its order means nothing, a broker answers in any, and a name of None is <default>.
# A broker refuses a key that it doesn't know, so ours are taken out before; it is asked by a probe whether this
# client may alter quotas at all. It refuses to know which entities and keys are ours, what a filter finds among ours
# and what values mean: callers say so.
#
# Measured with Kafka 4.1, tests/integration/admin_apis/test_admin_codec.py has it: a probe is AlterClientQuotas with
# validate_only and no operation; error 0 allowed, 31 denied, 42 for an entity that doesn't exist (an unknown type, no
# type at all).
#
# Spec: KIP-546; ClientQuotaControlManager.java for duplicates.

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from protocol import api
from protocol.message_codec import ApiCodec, ErrorText, Float64, Int8, Int16, Int32, Text

# How a component of a filter matches.
EXACT = 0
DEFAULT = 1  # <default>
SPECIFIED = 2  # any name, <default> as well

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"

# A gateway and the brokers behind it enforce quotas of their own, and both hold. An answer has one value for each key
# of an entity: where both have one it is the gateway's, and the brokers' has this behind its key. A filter with a
# component of the type APART_TYPE, which no broker knows, has a gateway spell all of the brokers' so.
UPSTREAM_SUFFIX = ".upstream"
APART_TYPE = "produce-gateway:apart"
# Such an answer also has, behind each value of the gateway's that ends, one with this behind its key: until when it
# holds, Unix time in milliseconds.
END_SUFFIX = ".until"
# And each entity with values of the gateway's has one of this key, where the gateway doesn't enforce client quotas for
# all clients: for how many percent of them it does.
ENFORCED_KEY = "produce-gateway:enforced"
# An operation on this key, which no broker knows either, gives the end of the values that the other operations of its
# entity set: Unix time in milliseconds.
UNTIL_KEY = "produce-gateway:until"

_UNKNOWN_SERVER_ERROR = api.ERROR_CODES["UNKNOWN_SERVER_ERROR"]
_INVALID_REQUEST = api.ERROR_CODES["INVALID_REQUEST"]


class EntityData(NamedTuple):
    entity_type: Text
    entity_name: Text | None  # None: <default>


Entity: TypeAlias = tuple[EntityData, ...]


class FilterComponent(NamedTuple):
    """A part of a filter; `match` is None unless `match_type` is EXACT."""

    entity_type: Text
    match_type: Int8
    match: Text | None


class DescribeClientQuotasRequest(NamedTuple):
    components: tuple[FilterComponent, ...]
    strict: bool = False  # only entities that have none but the types of the components


class QuotaValue(NamedTuple):
    key: Text
    value: Float64


class EntityQuotas(NamedTuple):
    entity: Entity
    values: tuple[QuotaValue, ...]


class DescribeClientQuotasResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    error_message: ErrorText | None
    entries: tuple[EntityQuotas, ...] | None  # None with an error


class QuotaOperation(NamedTuple):
    key: Text
    value: Float64  # ignored with `remove`
    remove: bool = False


class EntityAlteration(NamedTuple):
    entity: Entity
    ops: tuple[QuotaOperation, ...]


class AlterClientQuotasRequest(NamedTuple):
    entries: tuple[EntityAlteration, ...]
    validate_only: bool = False


class AlterClientQuotasResult(NamedTuple):
    error_code: Int16
    error_message: ErrorText | None
    entity: Entity


class AlterClientQuotasResponse(NamedTuple):
    throttle_time_ms: Int32
    entries: tuple[AlterClientQuotasResult, ...]


DESCRIBE_CLIENT_QUOTAS = ApiCodec(
    api.DESCRIBE_CLIENT_QUOTAS, 0, 1, DescribeClientQuotasRequest, DescribeClientQuotasResponse
)
ALTER_CLIENT_QUOTAS = ApiCodec(api.ALTER_CLIENT_QUOTAS, 0, 1, AlterClientQuotasRequest, AlterClientQuotasResponse)


# --- ours and theirs --------------------------------------------------------------------------------------------------

EntityKey: TypeAlias = frozenset[tuple[str, str | None]]
IsOurs: TypeAlias = Callable[[Entity, str], bool]  # of entity, quota key
ForBroker: TypeAlias = Callable[[QuotaOperation], QuotaOperation | None]


class QuotaSplit(NamedTuple):
    """A change divided.

    `ours`: entities with the operations on our keys, none without any. `rest`: the broker's part, the same object as
    the request if nothing of ours is in it, None if nothing is left. `refused`: results of entities that are in
    neither, for they must not be changed by half.
    """

    ours: tuple[EntityAlteration, ...]
    rest: AlterClientQuotasRequest | None
    refused: tuple[AlterClientQuotasResult, ...]


def entity_key(entity: Entity) -> EntityKey:
    """The same key for the same entity. Of a type that is there twice a broker takes the last name, and so do we."""
    return frozenset(dict(entity).items())


def ops_for_broker(alteration: EntityAlteration, is_ours: IsOurs, also: ForBroker) -> tuple[QuotaOperation, ...]:
    """Operations on the broker's keys, and those that `also` gives it for operations on ours."""
    found = (op if not is_ours(alteration.entity, op.key) else also(op) for op in alteration.ops)
    return tuple(op for op in found if op is not None)


def split_alterations(
    request: AlterClientQuotasRequest, is_ours: IsOurs, also: ForBroker = lambda _: None
) -> QuotaSplit:
    """Take our keys out of an AlterClientQuotas request. `also`: the broker's own operations, if any, for an operation
    on one of them.

    Refused, with all its other keys, is an entity that names one of ours twice; and one that is there more than once,
    if any of its entries names a key of ours.
    """
    counts = Counter(entity_key(entity) for entity, _ in request.entries)
    touched = {entity_key(entity) for entity, ops in request.entries if any(is_ours(entity, op.key) for op in ops)}
    if not touched:
        return QuotaSplit((), request, ())
    ours: list[EntityAlteration] = []
    rest: list[EntityAlteration] = []
    refused: dict[EntityKey, AlterClientQuotasResult] = {}
    for alteration in request.entries:
        entity, ops = alteration
        key = entity_key(entity)
        if key not in touched:
            rest.append(alteration)
            continue
        mine = tuple(op for op in ops if is_ours(entity, op.key))
        reason = _duplicate_fault(counts[key], [op.key for op in mine])
        if reason is not None:
            refused[key] = AlterClientQuotasResult(_INVALID_REQUEST, reason, entity)
            continue
        ours.append(EntityAlteration(entity, mine))
        if theirs := ops_for_broker(alteration, is_ours, also):
            rest.append(EntityAlteration(entity, theirs))
    return QuotaSplit(tuple(ours), request._replace(entries=tuple(rest)) if rest else None, tuple(refused.values()))


def _duplicate_fault(entries: int, keys: list[str]) -> str | None:
    if entries > 1:
        return "The entity is in the request more than once; name it once."
    for key, count in Counter(keys).items() if len(keys) > 1 else ():
        if count > 1:
            return f"{key} is named {count} times; name it once."
    return None


def without_entities(request: AlterClientQuotasRequest, entities: Iterable[Entity]) -> AlterClientQuotasRequest | None:
    """The request without these entities; None if nothing is left of it."""
    keys = set(map(entity_key, entities))
    kept = tuple(alteration for alteration in request.entries if entity_key(alteration.entity) not in keys)
    return request._replace(entries=kept) if kept else None


def merge_altered(
    request: AlterClientQuotasRequest,
    answer: AlterClientQuotasResponse | None,
    ours: Iterable[AlterClientQuotasResult],
) -> AlterClientQuotasResponse:
    """One answer to the whole `request`, in its order, with one row per entity as a broker has it.

    Args:
        answer: the broker's, to its part of the request; None if it was sent nothing.
        ours: our results, one per entity at most: of the keys that we took, and of refused entities.

    Of an entity with two results the broker's counts if it is an error, else ours. One without any gets
    UNKNOWN_SERVER_ERROR. The broker's results for other entities come last.
    """
    theirs = {entity_key(row.entity): row for row in (answer.entries if answer else ())}
    own = {entity_key(row.entity): row for row in ours}
    entries = []
    for key, entity in {entity_key(entity): entity for entity, _ in request.entries}.items():
        result = theirs.pop(key, None)
        if result is None or result.error_code == api.NONE:
            result = own.get(key, result)
        if result is None:
            text = "The broker gave no result for this entity."
            result = AlterClientQuotasResult(_UNKNOWN_SERVER_ERROR, text, entity)
        entries.append(result._replace(entity=entity))
    return AlterClientQuotasResponse(answer.throttle_time_ms if answer else 0, (*entries, *theirs.values()))


def without_apart(request: DescribeClientQuotasRequest) -> DescribeClientQuotasRequest | None:
    """The filter that brokers can be asked for, where the request has a component of type APART_TYPE; None: it has
    none.
    """
    kept = tuple(component for component in request.components if component.entity_type != APART_TYPE)
    return request._replace(components=kept) if kept != request.components else None


def merge_described(
    answer: DescribeClientQuotasResponse,
    ours: Iterable[EntityQuotas],
    is_apart: Callable[[Entity, str], bool] | None = None,
) -> DescribeClientQuotasResponse:
    """The broker's answer with our entries in it: those that the request's filter finds, which the caller has chosen.

    Our values go behind the broker's of the same entity; entities that it doesn't have come last. A value of the
    broker's has UPSTREAM_SUFFIX behind its key where we have one of the same key, and where `is_apart` says so. An
    answer with an error stays as it is.
    """
    if answer.error_code != api.NONE:
        return answer
    own = {entity_key(entry.entity): entry for entry in ours}
    entries = []
    for entity, values in answer.entries or ():
        mine = own.pop(entity_key(entity), EntityQuotas(entity, ())).values
        keys = {value.key for value in mine}
        theirs = (
            value._replace(key=value.key + UPSTREAM_SUFFIX)
            if value.key in keys or (is_apart is not None and is_apart(entity, value.key))
            else value
            for value in values
        )
        entries.append(EntityQuotas(entity, (*theirs, *mine)))
    return answer._replace(entries=(*entries, *own.values()))
