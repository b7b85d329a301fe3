# What the REST API takes and gives, as pydantic models, and how the latter are made of our own values. Nothing that is
# written is ignored: an unknown key is an error that names the known ones. JSON has no NaN and no Infinity: they are
# null, beside a text that says which.

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from gateway.control.policies.service import Altered
from gateway.suggest import hint
from policies import explain
from policies.policy_set import Setting, as_number, changes_json
from policies.quotas.filter import Component, Match
from policies.quotas.names import CLIENT_ID, DEFAULT, USER, Entity, Name, QuotaError, QuotaKey
from policies.quotas.store import Effective, Values
from policies.quotas.text import entity_text, quota_text
from policies.units import parse_size

MAX_NAME: Final = 200


# --- what is given ----------------------------------------------------------------------------------------------------


class _Given(BaseModel):
    """Nothing that is written is ignored without a word."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        for key in data if isinstance(data, Mapping) else ():
            if key not in cls.model_fields:
                raise ValueError(f"unknown: {str(key)[:MAX_NAME]!r}; {hint(str(key), cls.model_fields)}")
        return data


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is needed here, not true or false")
    return value


_SIZE_SCHEMA: Final = {
    "anyOf": [{"type": "number"}, {"type": "string"}],
    "description": "Bytes per second: 12000000, or 12MB (10^6), 12MiB (2^20).",
    "examples": ["12MB"],
}
Size = Annotated[
    float,
    BeforeValidator(parse_size),
    BeforeValidator(_no_bool),
    Field(allow_inf_nan=False),
    WithJsonSchema(_SIZE_SCHEMA),
]
QuotaValue = Annotated[float | str | None, BeforeValidator(_no_bool)]


class NewThreshold(_Given):
    value: Size


class GivenEntity(_Given):
    """`name` null: the default."""

    type: Literal["user", "client-id"]
    name: str | None = None


class GivenOp(_Given):
    """`value` null removes the quota; a size such as 1MB is a number of bytes per second."""

    key: str = Field(examples=["producer_byte_rate", "producer_byte_rate.bps"])
    value: QuotaValue


class GivenAlteration(_Given):
    entity: list[GivenEntity]
    ops: list[GivenOp]


class GivenAlterations(_Given):
    alterations: list[GivenAlteration]
    validate_only: bool = False


class GivenDocument(_Given):
    """`prune`: remove what was set at run time and is not in the document."""

    document: Any
    dry_run: bool = False
    prune: bool = False


class Validation(_Given):
    validate_only: bool = False


class QuotaFilter(_Given):
    """DescribeClientQuotas. For each of user and client id: a name, a prefix, the default, any that is set, or nothing,
    which matches whatever it is.
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

    def components(self) -> list[Component]:
        found = []
        for kind, name in ((USER, "user"), (CLIENT_ID, "client_id")):
            exact, prefix = getattr(self, name), getattr(self, name + "_prefix")
            found += [Component(kind, Match.EXACT, exact)] if exact is not None else []
            found += [Component(kind, Match.PREFIX, prefix)] if prefix is not None else []
            found += [Component(kind, Match.DEFAULT)] if getattr(self, "default_" + name) else []
            found += [Component(kind, Match.SPECIFIED)] if getattr(self, "any_" + name) else []
        return found


class EffectiveQuery(_Given):
    """Of whom: a name, or the default, which asks for those who have nothing of their own."""

    user: str | None = None
    client_id: str | None = None
    default_user: bool = False
    default_client_id: bool = False
    omit_overridden: bool = False

    def entity(self) -> Entity:
        for name, default in (("user", self.default_user), ("client_id", self.default_client_id)):
            if default and getattr(self, name) is not None:
                raise QuotaError(f"{name} and default_{name} exclude each other")
        user: Name = DEFAULT if self.default_user else self.user
        client_id: Name = DEFAULT if self.default_client_id else self.client_id
        if user is None and client_id is None:
            raise QuotaError("of whom? give user, client_id or both, or default_user, default_client_id")
        return Entity(user, client_id)


class ExplainQuery(_Given):
    topic: str
    user: str | None = Field(default=None, description="Without one: who has not authenticated.")
    client_id: str | None = Field(default=None, description="Without one: a client that gives none.")
    broker: int | None = Field(default=None, ge=0, description="Without one: all that lead a part of the topic.")


class TopQuery(_Given):
    by: Literal["rate", "rejected", "utilization"] = "rate"
    limit: int = Field(default=20, ge=1, le=10_000)


# --- what is answered -------------------------------------------------------------------------------------------------


class Value(BaseModel):
    """In bytes per second. `value` is in force; it comes from one of the other two."""

    value: float
    origin: str
    file: float | None
    run_time: float | None


class Totals(BaseModel):
    default: Value | None
    brokers: dict[str, Value]


class Thresholds(BaseModel):
    version: int
    on_exceed: str
    mode: str
    total: Totals
    topics: dict[str, Value]
    warnings: list[str]


class Changed(BaseModel):
    """`old`, `new`: in force before and after; null = none. A name where something is attached to a group."""

    kind: str
    name: str
    key: str
    old: float | str | None
    new: float | str | None


class Alterations(BaseModel):
    """`version`: in force."""

    version: int
    validate_only: bool
    changes: list[Changed]
    warnings: list[str]


class EntityPart(BaseModel):
    """`name` null: the default."""

    type: str
    name: str | None


class QuotaResult(BaseModel):
    """`error` null: done."""

    entity: list[EntityPart]
    error: str | None
    message: str | None


class QuotaAlterations(Alterations):
    results: list[QuotaResult]


class Applied(BaseModel):
    version: int
    dry_run: bool
    ops: list[Changed]
    warnings: list[str]


class QuotaEntry(BaseModel):
    """`values` by key as the Kafka protocol spells it."""

    entity: list[EntityPart]
    text: str
    values: dict[str, float]


class QuotaEntries(BaseModel):
    version: int
    entries: list[QuotaEntry]


class Overridden(BaseModel):
    entity: list[EntityPart]
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
    """`entity`: what it is set for. `in_force`: the value times the storage factor, for producer_byte_rate in bytes.
    `overridden`: what is less specific, most specific first; null: not asked for.
    """

    key: str
    value: float
    in_force: float
    entity: list[EntityPart]
    text: str
    overridden: list[Overridden] | None


class EffectiveQuotas(BaseModel):
    version: int
    storage: EffectiveStorage
    quotas: list[EffectiveQuota]


class Exported(BaseModel):
    version: int
    document: dict[str, Any]
    origins: list[dict[str, Any]]


class ShownLevel(BaseModel):
    what: str
    origin: str
    unit: str
    configured: float | None
    limit: float | None
    rate: float | None
    utilization: float | None
    utilization_text: str


class ShownRule(BaseModel):
    """It binds when all of its levels are exceeded. `limit` and `rate`: of the first one, `utilization` of the last."""

    name: str
    broker: int | None
    action: str
    traffic: str
    mode: str
    first: bool
    limits_now: bool
    limit: float | None
    rate: float | None
    utilization: float | None
    utilization_text: str
    headroom: float | None
    note: str
    text: str
    levels: list[ShownLevel]


class ShownShadowed(BaseModel):
    name: str
    broker: int | None
    what: str
    origin: str
    value: str
    why: str


class ShownHeld(BaseModel):
    """Sums since `first_ms`. Times are Unix time in milliseconds."""

    topic: str
    principal: str
    client_id: str
    broker: int | None
    outcome: str
    reason: str
    first_ms: int
    last_ms: int
    bytes: int
    requests: int
    delay_ms: int


class ShownStorage(BaseModel):
    text: str
    factor: float
    origin: str | None
    why: str


class Explained(BaseModel):
    topic: str
    user: str
    client_id: str
    brokers: list[int]
    at_ms: int
    summary: str
    internal: str
    storage: ShownStorage
    rules: list[ShownRule]
    shadowed: list[ShownShadowed]
    held: list[ShownHeld]
    notes: list[str]


class ShownTopic(BaseModel):
    """Rates in bytes per second: `rate` over one minute as Kafka computes it, those of what became of the bytes over
    the last seconds. `threshold`: on `broker`, where its utilization is highest.
    """

    topic: str
    brokers: list[int]
    kind: str
    origin: str
    threshold: float | None
    broker: int | None
    rate: float
    utilization: float | None
    utilization_text: str
    over: bool
    accepted: float
    rejected: float
    delayed: float
    would: float


class ShownTopics(BaseModel):
    at_ms: int
    topics: list[ShownTopic]


# --- made of what we have ---------------------------------------------------------------------------------------------


def of_setting(setting: Setting, base: str) -> Value:
    origin = explain.origin_of(setting, base)
    file, run_time = (None if value is None else as_number(value) for value in (setting.base, setting.change))
    return Value(value=as_number(setting.value), origin=origin, file=file, run_time=run_time)


def of_changes(altered: Altered) -> list[Changed]:
    return [Changed(**change) for change in changes_json(altered.changes)]


def of_altered(altered: Altered, validate_only: bool) -> Alterations:
    return Alterations(
        version=altered.version,
        validate_only=validate_only,
        changes=of_changes(altered),
        warnings=list(altered.warnings),
    )


def _entity(entity: Entity) -> list[EntityPart]:
    return [EntityPart(type=kind, name=name) for kind, name in entity.pairs]


def of_entry(entity: Entity, values: Values) -> QuotaEntry:
    return QuotaEntry(
        entity=_entity(entity), text=entity_text(entity), values={key.wire: value for key, value in values.items()}
    )


def of_storage(known: explain.Known) -> EffectiveStorage:
    storage = known.storage
    mode = "observe" if known.observe or known.storage_mode == "observe" else "enforce"
    if storage is None:
        return EffectiveStorage(factor=1.0, state="OFF", origin=None, why="", mode=mode)
    return EffectiveStorage(
        factor=storage.value, state=storage.state, origin=storage.origin, why=storage.why, mode=mode
    )


def of_effective(found: Effective, known: explain.Known) -> EffectiveQuota:
    overridden = found.overridden
    return EffectiveQuota(
        key=found.key.wire,
        value=found.value,
        in_force=explain.in_force(known, found),
        entity=_entity(found.source),
        text=f"{quota_text(found.key, found.value)} {entity_text(found.source)}",
        overridden=None
        if overridden is None
        else [
            Overridden(
                entity=_entity(source), value=value, text=f"{quota_text(found.key, value)} {entity_text(source)}"
            )
            for source, value in overridden
        ],
    )


def quota_value(op: GivenOp) -> float | None:
    """A size means bytes per second, so only where the quota does.

    Raises:
        ValueError: it is none, or not there.
    """
    if not isinstance(op.value, str):
        return op.value
    key = QuotaKey.parse(op.key)
    if key.unit not in ("bps", "broker_bps"):
        raise ValueError(f"{key} takes a number, not {op.value[:MAX_NAME]!r}")
    return float(parse_size(op.value))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ratio_text(ratio: float, limited: bool) -> str:
    if math.isinf(ratio):
        return "over a limit of 0"
    if math.isnan(ratio):
        return "not known" if limited else "no limit"
    return f"{ratio:.0%}"


def _level(level: explain.Level) -> ShownLevel:
    ratio = level.utilization
    return ShownLevel(
        what=level.what,
        origin=level.origin,
        unit=level.unit,
        configured=level.configured,
        limit=level.limit,
        rate=level.rate,
        utilization=_finite(ratio),
        utilization_text=_ratio_text(ratio, level.limit is not None),
    )


def _rule(rule: explain.Rule) -> ShownRule:
    first = rule.levels[0] if rule.levels else None
    return ShownRule(
        name=rule.name,
        broker=rule.broker,
        action=rule.action,
        traffic=rule.traffic,
        mode=rule.mode,
        first=rule.first,
        limits_now=rule.limits_now,
        limit=first.limit if first else None,
        rate=first.rate if first else None,
        utilization=_finite(rule.utilization),
        utilization_text=_ratio_text(rule.utilization, any(level.limit is not None for level in rule.levels)),
        headroom=_finite(rule.headroom),
        note=rule.note,
        text=rule.text,
        levels=[_level(level) for level in rule.levels],
    )


def of_explanation(found: explain.Explanation, known: explain.Known) -> Explained:
    storage = known.storage
    return Explained(
        topic=found.asked.topic,
        user=found.asked.user,
        client_id=found.asked.client_id,
        brokers=list(found.brokers),
        at_ms=known.now_ms,
        summary=found.summary,
        internal=found.internal,
        storage=ShownStorage(
            text=found.storage,
            factor=1.0 if storage is None else storage.value,
            origin=None if storage is None else storage.origin,
            why="" if storage is None else storage.why,
        ),
        rules=[_rule(rule) for rule in found.rules],
        shadowed=[ShownShadowed(**each._asdict()) for each in found.shadowed],
        held=[
            ShownHeld(**{**each._asdict(), "broker": None if each.broker < 0 else each.broker}) for each in found.held
        ],
        notes=list(found.notes),
    )


def of_topic(line: explain.TopicLine) -> ShownTopic:
    return ShownTopic(
        topic=line.topic,
        brokers=list(line.brokers),
        kind=line.kind,
        origin=line.origin,
        threshold=line.threshold,
        broker=line.on,
        rate=line.rate,
        utilization=_finite(line.utilization),
        utilization_text=_ratio_text(line.utilization, line.on is not None and line.threshold is not None),
        over=line.over,
        **line.flow._asdict(),
    )
