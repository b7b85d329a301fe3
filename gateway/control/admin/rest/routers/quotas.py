# Client quotas over REST, as KIP-546 and KIP-1373 have them: DescribeClientQuotas, AlterClientQuotas and
# DescribeEffectiveQuotas, of the gateway and of the brokers behind it.

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import trio
from fastapi import Query, Response
from pydantic import BaseModel, BeforeValidator, Field

from gateway import channel
from gateway.control.admin.rest import problems
from gateway.control.admin.rest.dependencies import Facts, Gateway, Requester, make_router
from gateway.control.admin.rest.models import (
    MAX_NAME,
    Alterations,
    CountedName,
    RequestModel,
    Until,
    alterations_of,
    refuse_bool,
    respond_from_thread,
)
from policies import explain
from policies.definitions.policy_values import PolicyKey, ValueEnds
from policies.definitions.rollout import rollout_text
from policies.quotas.filter import Component, Match
from policies.quotas.names import CLIENT_ID, DEFAULT, QUOTA_KEYS, USER, Entity, EntityName, QuotaError, QuotaKey
from policies.quotas.store import Alteration, EntityValues, Op, QuotaStore, ResolvedQuota
from policies.quotas.text import entity_text, quota_text
from policies.units import format_time, parse_size

router: Final = make_router()
effective_router: Final = make_router()
_NO_QUOTAS: Final = QuotaStore()


# --- requests ---------------------------------------------------------------------------------------------------------

QuotaValue = Annotated[float | str | None, BeforeValidator(refuse_bool)]


class GivenEntity(RequestModel):
    """`name` null: the default."""

    type: Literal["user", "client-id"]
    name: str | None = None


class GivenOp(RequestModel):
    """`value` null removes the quota; a size such as 1MB is a number of bytes per second."""

    key: str = Field(examples=["producer_byte_rate", "producer_byte_rate.bps"])
    value: QuotaValue


class GivenAlteration(RequestModel):
    entity: list[GivenEntity]
    ops: list[GivenOp]
    until: Until = None


class GivenAlterations(RequestModel):
    alterations: list[GivenAlteration]
    validate_only: bool = False


class QuotaFilter(RequestModel):
    """DescribeClientQuotas. For each of user and client id: a name, a prefix, the default, any that is set, or nothing,
    which matches anything.
    """

    user: str | None = None
    client_id: str | None = None
    user_prefix: str | None = None
    client_id_prefix: str | None = None
    default_user: bool = False
    default_client_id: bool = False
    any_user: bool = False
    any_client_id: bool = False
    strict: bool = Field(default=False, description="Leave out entities that have a type which is not asked for.")
    limit: int = Field(default=1_000_000, ge=1, le=1_000_000)

    def make_components(self) -> list[Component]:
        found = []
        for kind, name in ((USER, "user"), (CLIENT_ID, "client_id")):
            exact, prefix = getattr(self, name), getattr(self, name + "_prefix")
            found += [Component(kind, Match.EXACT, exact)] if exact is not None else []
            found += [Component(kind, Match.PREFIX, prefix)] if prefix is not None else []
            found += [Component(kind, Match.DEFAULT)] if getattr(self, "default_" + name) else []
            found += [Component(kind, Match.SPECIFIED)] if getattr(self, "any_" + name) else []
        return found


class EffectiveQuery(RequestModel):
    """The client: a name, or the default, which asks for clients that have nothing of their own."""

    user: str | None = None
    client_id: CountedName | None = None
    default_user: bool = False
    default_client_id: bool = False
    omit_overridden: bool = False

    def make_entity(self) -> Entity:
        for name, default in (("user", self.default_user), ("client_id", self.default_client_id)):
            if default and getattr(self, name) is not None:
                raise QuotaError(f"{name} and default_{name} exclude each other")
        user: EntityName = DEFAULT if self.default_user else self.user
        client_id: EntityName = DEFAULT if self.default_client_id else self.client_id
        if user is None and client_id is None:
            raise QuotaError("no entity: give user, client_id or both, or default_user, default_client_id")
        return Entity(user, client_id)


# --- responses --------------------------------------------------------------------------------------------------------


class EntityPart(BaseModel):
    """`name` null: the default."""

    type: str
    name: str | None


def _entity_parts(entity: Entity) -> list[dict[str, str | None]]:
    return [{"type": kind, "name": name} for kind, name in entity.wire_pairs]


def _values_by_name(values: EntityValues) -> dict[str, float]:
    return {key.wire_name: value for key, value in values.items()}


EntityParts = Annotated[list[EntityPart], BeforeValidator(_entity_parts)]
QuotaValues = Annotated[dict[str, float], BeforeValidator(_values_by_name)]


class QuotaResult(BaseModel):
    """`error` null: done; `message` may then be a warning."""

    entity: list[EntityPart]
    error: str | None
    message: str | None


class QuotaAlterations(Alterations):
    results: list[QuotaResult]


class QuotaEntry(BaseModel):
    """`values` by key as the Kafka protocol spells it; `brokers`: those that the brokers enforce themselves. `until`:
    when values end, of those that do.
    """

    entity: EntityParts
    text: str
    values: QuotaValues
    brokers: QuotaValues
    until: dict[str, str]


class QuotaEntries(BaseModel):
    """`brokers_problem`: why the brokers' own quotas are not known, "" where they are. `total`: entities that match, of
    which the first are here.
    """

    version: int
    brokers_problem: str
    mode: str
    enforce_percent: float
    total: int
    entries: list[QuotaEntry]


class Overridden(BaseModel):
    entity: EntityParts
    value: float
    text: str


class EffectiveStorage(BaseModel):
    """The storage factor in force. `state`: OFF, OPEN, THROTTLE or PAUSE; with `mode` observe it lowers no limit."""

    factor: float
    state: str
    origin: str | None
    why: str
    mode: str


class EffectiveQuota(BaseModel):
    """`entity`: the one it is set for. `in_force`: the value times the storage factor, for producer_byte_rate in bytes.
    `overridden`: less specific values, most specific first; null: not asked for. `by`: its enforcer, gateway or
    brokers; `mode`: enforce, observe (of internal clients too), or for how many clients it is enforced; `also`: where
    both have one, the other one's, which is not less, or which is the gateway's and not enforced for all clients.
    """

    key: str
    by: Literal["gateway", "brokers"]
    mode: str
    value: float
    in_force: float
    entity: EntityParts
    text: str
    overridden: list[Overridden] | None
    also: EffectiveQuota | None = None


class EffectiveQuotas(BaseModel):
    """`brokers_problem`: why the brokers' own quotas, or which of them hold for the client, are not known; "": they
    are.
    """

    version: int
    storage: EffectiveStorage
    brokers_problem: str
    quotas: list[EffectiveQuota]


# --- routes -----------------------------------------------------------------------------------------------------------


@router.get("/v1/client-quotas", response_model=QuotaEntries)
async def get_quotas(gateway: Gateway, wanted: Annotated[QuotaFilter, Query()]) -> Response:
    """DescribeClientQuotas: the values set in the gateway and in the brokers behind it."""
    policies = gateway.policies.policies
    latest = gateway.latest_snapshot(channel.QuotaSnapshot) or channel.QuotaSnapshot(0)
    theirs, problem = await gateway.fetch_broker_quotas()

    def make() -> dict[str, Any]:
        components = wanted.make_components()
        found, upstream = (
            dict(store.describe_quotas(components, wanted.strict))
            for store in (policies.quota_store(), theirs or _NO_QUOTAS)
        )
        entities = sorted({*found, *upstream}, key=lambda entity: entity.sort_key)
        return {
            "version": policies.version,
            "mode": latest.mode,
            "enforce_percent": latest.enforce_percent,
            "brokers_problem": problem,
            "total": len(entities),
            "entries": [
                {
                    "entity": each,
                    "text": entity_text(each),
                    "values": found.get(each, {}),
                    "brokers": upstream.get(each, {}),
                    "until": _end_texts(each, found.get(each, {}), policies.ends),
                }
                for each in entities[: wanted.limit]
            ],
        }

    return await respond_from_thread(QuotaEntries, make)


def _end_texts(entity: Entity, values: EntityValues, ends: ValueEnds) -> dict[str, str]:
    found = {key.wire_name: ends.get(PolicyKey.of_quota(entity, key)) for key in values} if ends else {}
    return {name: format_time(end.until_ms) for name, end in found.items() if end is not None}


@router.post("/v1/client-quotas:alter", response_model=QuotaAlterations)
async def alter_quotas(given: GivenAlterations, gateway: Gateway, requester: Requester) -> Response:
    """AlterClientQuotas: an entity that is refused leaves the others alone; an error only where all are."""
    alterations = await trio.to_thread.run_sync(_make_alterations, given)
    # Beside values that are set with an end others may be removed, and the end is not theirs.
    removes = any(op.value is None for each in alterations for op in each.ops)
    for until in {each.until for each in given.alterations}:
        requester.check_lasting(until, preview=given.validate_only, removes=removes)
    altered = await gateway.policies.alter_quotas(alterations, requester.source, validate_only=given.validate_only)
    if altered.errors and None not in altered.errors:
        raise problems.RequestRefused(
            "nothing was changed: every entity was refused",
            [
                problems.Finding(where=f"body.alterations.{i}", what=str(error))
                for i, error in enumerate(altered.errors)
            ],
        )

    def make() -> dict[str, Any]:
        results = [
            {
                "entity": each.entity,
                "error": None if error is None else error.error,
                "message": note or None if error is None else str(error),
            }
            for each, error, note in zip(given.alterations, altered.errors, altered.notes, strict=True)
        ]
        return {**alterations_of(altered), "results": results}

    return await respond_from_thread(QuotaAlterations, make)


def _make_alterations(given: GivenAlterations) -> list[Alteration]:
    return [
        Alteration(
            [(part.type, part.name) for part in each.entity],
            [Op(op.key, _quota_value(op, i, j)) for j, op in enumerate(each.ops)],
            each.until,
        )
        for i, each in enumerate(given.alterations)
    ]


def _quota_value(op: GivenOp, i: int, j: int) -> float | None:
    """A size means bytes per second, so only a quota of those takes one."""
    if not isinstance(op.value, str):
        return op.value
    try:
        key = QuotaKey.parse(op.key)
        if key.unit not in ("bps", "broker_bps"):
            raise ValueError(f"{key} takes a number, not {op.value[:MAX_NAME]!r}")
        return float(parse_size(op.value))
    except ValueError as error:
        where = f"body.alterations.{i}.ops.{j}.value"
        raise problems.RequestRefused(
            "nothing was changed", [problems.Finding(where=where, what=str(error))]
        ) from error


@effective_router.get("/v1/client-quotas/effective", response_model=EffectiveQuotas)
async def get_effective(gateway: Gateway, facts: Facts, wanted: Annotated[EffectiveQuery, Query()]) -> Any:
    """DescribeEffectiveQuotas: the values in force, key by key, their enforcer, the overridden values, and the
    effect of storage protection.
    """
    entity = wanted.make_entity()
    theirs, problem = await gateway.fetch_broker_quotas()
    known = facts.gather()
    ours, brokers = (
        {each.key: each for each in store.effective_quotas(entity, wanted.omit_overridden)}
        for store in (known.policies.quota_store(), theirs or _NO_QUOTAS)
    )
    return {
        "version": known.policies.version,
        "storage": _describe_storage(known),
        "brokers_problem": problem or facts.find_other_names(theirs),
        "quotas": [
            each for key in QUOTA_KEYS for each in _describe_enforced(ours.get(key), brokers.get(key), known, entity)
        ],
    }


def _describe_storage(known: explain.ExplainInputs) -> dict[str, Any]:
    storage = known.storage
    mode = "observe" if known.observe or known.storage_mode == "observe" else "enforce"
    if storage is None:
        return {"factor": 1.0, "state": "OFF", "origin": None, "why": "", "mode": mode}
    factor = storage.value if known.affected is None else 1.0  # which holds topics, and lowers no quota
    return {"factor": factor, "state": storage.state, "origin": storage.origin, "why": storage.why, "mode": mode}


def _describe_enforced(
    ours: ResolvedQuota | None, theirs: ResolvedQuota | None, known: explain.ExplainInputs, entity: Entity
) -> list[dict[str, Any]]:
    """One key; both may be None. Of request_percentage they are two rows: a worker's time and that of brokers' threads
    are no lesser or greater than each other.
    """
    found = [_describe_quota(ours, "gateway", known, entity)] if ours is not None else []
    found += [_describe_quota(theirs, "brokers", known, entity)] if theirs is not None else []
    if len(found) < 2 or (ours is not None and ours.key.type == "request_percentage"):
        return found
    first, second = sorted(found, key=lambda each: (each["mode"] != "enforce", each["in_force"]))
    return [{**first, "also": second}]


def _describe_quota(
    found: ResolvedQuota, by: Literal["gateway", "brokers"], known: explain.ExplainInputs, entity: Entity
) -> dict[str, Any]:
    key, is_ours = found.key, by == "gateway"
    return {
        "key": key.wire_name,
        "by": by,
        "mode": rollout_text(explain.quota_rollout_percent(known, entity)) if is_ours else "enforce",
        "value": found.value,
        "in_force": explain.quota_in_force(known, found) if is_ours else found.value,
        "entity": found.source,
        "text": f"{quota_text(key, found.value)} {entity_text(found.source)}",
        "overridden": found.overridden
        and [
            {"entity": source, "value": value, "text": f"{quota_text(key, value)} {entity_text(source)}"}
            for source, value in found.overridden
        ],
    }
