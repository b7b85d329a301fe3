# The REST API's requests and answers as pydantic models, and how answers are made of our own values. Nothing that is
# written is ignored: an unknown key is an error that names the known ones. JSON has no NaN and no Infinity: they are
# null, beside a text that says which.

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from gateway.cli_support.suggest import name_hint
from gateway.control.policies.service import ChangeResult
from policies import explain
from policies.definitions import policy_records, policy_values
from policies.definitions.policy_records import changes_json, end_text
from policies.definitions.policy_values import PolicyKey, PolicySetting, as_number
from policies.definitions.rollout import rollout_text
from policies.quotas.filter import Component, Match
from policies.quotas.names import CLIENT_ID, DEFAULT, USER, Entity, EntityName, QuotaError, QuotaKey
from policies.quotas.store import EntityValues, ResolvedQuota
from policies.quotas.text import entity_text, quota_text
from policies.thresholds import sums
from policies.units import format_time, parse_size, parse_time

MAX_NAME: Final = 200


# --- what is given ----------------------------------------------------------------------------------------------------


class _RequestModel(BaseModel):
    """Nothing that is written is ignored without a word."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        known = cls.__pydantic_fields__  # as model_fields, without a call for each of 30,000 objects of a request
        for key in data if isinstance(data, dict) else ():
            if key not in known:
                raise ValueError(f"unknown: {str(key)[:MAX_NAME]!r}; {name_hint(str(key), known)}")
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


def _read_time(value: object) -> object:
    if value is None or isinstance(value, str):
        return value and parse_time(value)
    raise ValueError("a time is needed here, as text; for example: 2026-11-22T21:00:00Z")


Until = Annotated[
    int | None,
    BeforeValidator(_read_time),
    Field(
        description="The end of the new value, as RFC 3339 has it, when the earlier one holds again; null: never.",
        examples=["2026-11-22T21:00:00Z"],
    ),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}),
]


class NewThreshold(_RequestModel):
    value: Size
    until: Until = None


class GivenEntity(_RequestModel):
    """`name` null: the default."""

    type: Literal["user", "client-id"]
    name: str | None = None


class GivenOp(_RequestModel):
    """`value` null removes the quota; a size such as 1MB is a number of bytes per second."""

    key: str = Field(examples=["producer_byte_rate", "producer_byte_rate.bps"])
    value: QuotaValue


class GivenAlteration(_RequestModel):
    entity: list[GivenEntity]
    ops: list[GivenOp]
    until: Until = None


class GivenAlterations(_RequestModel):
    alterations: list[GivenAlteration]
    validate_only: bool = False


class GivenDocument(_RequestModel):
    """`prune`: remove values set at run time that are not in the document. `until`: of the changed values."""

    document: Any
    dry_run: bool = False
    prune: bool = False
    until: Until = None


class Validation(_RequestModel):
    validate_only: bool = False


class QuotaFilter(_RequestModel):
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


class EffectiveQuery(_RequestModel):
    """The client: a name, or the default, which asks for clients that have nothing of their own."""

    user: str | None = None
    client_id: str | None = None
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


class ExplainQuery(_RequestModel):
    topic: str
    user: str | None = Field(default=None, description="Without one: a client that has not authenticated.")
    client_id: str | None = Field(default=None, description="Without one: a client that gives none.")
    broker: int | None = Field(default=None, ge=0, description="Without one: all that lead a part of the topic.")


class HistoryQuery(_RequestModel):
    """`kind`, `name`: of the changed thing, as the answer has them."""

    limit: int = Field(default=100, ge=1, le=1000)
    kind: str | None = None
    name: str | None = None


class TopQuery(_RequestModel):
    by: Literal["rate", "rejected", "utilization"] = "rate"
    limit: int = Field(default=20, ge=1, le=10_000)
    contains: str = Field(default="", max_length=MAX_NAME, description="Only topics whose names have this in them.")
    topic: str | None = Field(default=None, description="Only this one.")


# --- what is answered -------------------------------------------------------------------------------------------------


class Value(BaseModel):
    """In bytes per second. `value` is in force; it comes from one of the other two. `until`: when `run_time` ends, and
    is `then` again (null: the file's holds); null: never.
    """

    value: float
    origin: str
    file: float | None
    run_time: float | None
    until: str | None
    then: float | None


class Totals(BaseModel):
    default: Value | None
    brokers: dict[str, Value]


class Committed(BaseModel):
    """Of one broker: its total, and the sum that the thresholds of the topics with partitions there take of it.
    `reserved`: the sum of topics that are not there yet, which may be placed on any broker. `excess`: by how much
    `explicit` exceeds the total, 0 if it doesn't. Bytes per second.
    """

    total: float
    explicit: float
    reserved: float
    excess: float


class Thresholds(BaseModel):
    """`total_out`: the total that consumers have shares of. `committed`: by broker; empty while the places of
    partitions are unknown. `enforce_percent`: of the clients, for which they are enforced in mode enforce.
    """

    version: int
    on_exceed: str
    mode: str
    enforce_percent: float
    total: Totals
    total_out: Totals
    topics: dict[str, Value]
    committed: dict[str, Committed]
    warnings: list[str]


class Changed(BaseModel):
    """`old`, `new`: in force before and after; null = none. A name where something is attached to a group."""

    kind: str
    name: str
    key: str
    old: float | str | None
    new: float | str | None
    until: str | None


class Past(Changed):
    """`at`: the time. `who`: the author's own name, or "itself" where the end of a change came, `door` then being
    "until", or where a topic was deleted elsewhere. `door` is "topic deleted" of each threshold that went with its
    topic.
    """

    version: int
    at: str
    who: str
    door: str
    peer: str


class History(BaseModel):
    """Changes of single values, the newest first."""

    version: int
    changes: list[Past]


class Alterations(BaseModel):
    """`version`: in force. `committed`: by broker, with these changes made; by "" for all brokers that have no total of
    their own, while the places of partitions are unknown.
    """

    version: int
    validate_only: bool
    changes: list[Changed]
    warnings: list[str]
    committed: dict[str, Committed]


class EntityPart(BaseModel):
    """`name` null: the default."""

    type: str
    name: str | None


class QuotaResult(BaseModel):
    """`error` null: done; `message` may then be a warning."""

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
    """`values` by key as the Kafka protocol spells it; `brokers`: those that the brokers enforce themselves. `until`:
    when values end, of those that do.
    """

    entity: list[EntityPart]
    text: str
    values: dict[str, float]
    brokers: dict[str, float]
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
    """`entity`: the one it is set for. `in_force`: the value times the storage factor, for producer_byte_rate in bytes.
    `overridden`: less specific values, most specific first; null: not asked for. `by`: its enforcer, gateway or
    brokers; `mode`: enforce, observe, or for how many clients it is enforced; `also`: where both have one, the other
    one's, which is not less, or which is the gateway's and not enforced for all clients.
    """

    key: str
    by: Literal["gateway", "brokers"]
    mode: str
    value: float
    in_force: float
    entity: list[EntityPart]
    text: str
    overridden: list[Overridden] | None
    also: EffectiveQuota | None = None


class EffectiveQuotas(BaseModel):
    """`brokers_problem`: why the brokers' own quotas are not known, "" where they are."""

    version: int
    storage: EffectiveStorage
    brokers_problem: str
    quotas: list[EffectiveQuota]


class Exported(BaseModel):
    version: int
    document: dict[str, Any]
    origins: list[dict[str, Any]]


class ShownLevel(BaseModel):
    """`configured`: as it is set; `whole`: in force over `gateways`; `limit`: in force here. `used`: by all of them,
    `used_here` through this one, `others` by name. `rate`: compared with `limit`. `wait_s`: until the debt is paid, for
    which clients wait. Null: there is none, or it isn't known.
    """

    what: str
    origin: str
    unit: str
    configured: float | None
    limit: float | None
    rate: float | None
    utilization: float | None
    utilization_text: str
    whole: float | None
    gateways: int
    used: float | None
    used_here: float | None
    others: dict[str, float]
    wait_s: float


class ShownRule(BaseModel):
    """It binds when all of its levels are exceeded. `limit` and `rate`: of the first one, `utilization` of the last.
    `since_ms`: Unix time since when it has limited this traffic; null: it doesn't now.
    """

    name: str
    broker: int | None
    action: str
    traffic: str
    mode: str
    first: bool
    limits_now: bool
    since_ms: int | None
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
    """Sums since `first_ms`; `since_ms`: since when without a pause. Times are Unix time in milliseconds."""

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
    since_ms: int


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


class ShownFlow(BaseModel):
    """Bytes per second over the last 15 s. `would`: that would have been held back, in mode observe."""

    accepted: float
    rejected: float
    delayed: float
    would: float


class ShownTopic(BaseModel):
    """Rates in bytes per second: `rate` over one minute as Kafka computes it, those of the bytes' outcomes over the
    last seconds, all through all gateways. `elsewhere`: the part of `rate` that other gateways bring; `others`: theirs
    of the outcomes, by name, where the topic is among their busiest. `threshold`: on `broker`, where its utilization is
    highest.
    """

    topic: str
    brokers: list[int]
    kind: str
    origin: str
    threshold: float | None
    broker: int | None
    rate: float
    elsewhere: float
    utilization: float | None
    utilization_text: str
    over: bool
    accepted: float
    rejected: float
    delayed: float
    would: float
    others: dict[str, ShownFlow]


class ShownTopics(BaseModel):
    """`total`: that match, of which the first are here."""

    at_ms: int
    total: int
    topics: list[ShownTopic]


# --- made of what we have ---------------------------------------------------------------------------------------------


def show_setting(setting: PolicySetting, base: str) -> Value:
    origin = explain.origin_of(setting, base)
    then = None if setting.end is None else setting.end.then
    file, run_time, then = (
        None if value is None else as_number(value) for value in (setting.base, setting.change, then)
    )
    until = end_text(setting.end)
    return Value(value=as_number(setting.value), origin=origin, file=file, run_time=run_time, until=until, then=then)


def show_past_change(past: policy_records.PastChange) -> Past:
    return Past(
        **past.key._asdict(),
        old=past.old,
        new=past.new,
        until=None if past.until_ms is None else format_time(past.until_ms),
        version=past.version,
        at=format_time(past.at_ms),
        **past.source._asdict(),
    )


def show_changes(altered: ChangeResult) -> list[Changed]:
    return [Changed(**change) for change in changes_json(altered.changes)]


def show_altered(altered: ChangeResult, validate_only: bool) -> Alterations:
    return Alterations(
        version=altered.version,
        validate_only=validate_only,
        changes=show_changes(altered),
        warnings=list(altered.warnings),
        committed=show_committed(altered.committed),
    )


def show_committed(found: Mapping[str, sums.CommittedTotal]) -> dict[str, Committed]:
    return {
        broker: Committed(
            total=each.total, explicit=each.explicit, reserved=each.reserved, excess=max(0.0, each.excess)
        )
        for broker, each in found.items()
    }


def _entity_parts(entity: Entity) -> list[EntityPart]:
    return [EntityPart(type=kind, name=name) for kind, name in entity.wire_pairs]


def show_quota_entry(
    entity: Entity, values: EntityValues, brokers: EntityValues, ends: policy_values.ValueEnds
) -> QuotaEntry:
    ours, theirs = ({key.wire_name: value for key, value in found.items()} for found in (values, brokers))
    found = {key.wire_name: ends.get(PolicyKey.of_quota(entity, key)) for key in values} if ends else {}
    until = {key: format_time(end.until_ms) for key, end in found.items() if end is not None}
    return QuotaEntry(entity=_entity_parts(entity), text=entity_text(entity), values=ours, brokers=theirs, until=until)


def show_storage_effect(known: explain.ExplainInputs) -> EffectiveStorage:
    storage = known.storage
    mode = "observe" if known.observe or known.storage_mode == "observe" else "enforce"
    if storage is None:
        return EffectiveStorage(factor=1.0, state="OFF", origin=None, why="", mode=mode)
    factor = storage.value if known.affected is None else 1.0  # which holds topics, and lowers no quota
    return EffectiveStorage(factor=factor, state=storage.state, origin=storage.origin, why=storage.why, mode=mode)


def show_enforced(
    ours: ResolvedQuota | None, theirs: ResolvedQuota | None, known: explain.ExplainInputs
) -> list[EffectiveQuota]:
    """One key; both may be None. Of request_percentage they are two rows: a worker's time and that of brokers' threads
    are no lesser or greater than each other.
    """
    made = [_show_effective(ours, "gateway", known)] if ours is not None else []
    made += [_show_effective(theirs, "brokers", known)] if theirs is not None else []
    if len(made) < 2 or (ours is not None and ours.key.type == "request_percentage"):
        return made
    made.sort(key=lambda each: (each.mode != "enforce", each.in_force))
    return [made[0].model_copy(update={"also": made[1]})]


def _show_effective(
    found: ResolvedQuota, by: Literal["gateway", "brokers"], known: explain.ExplainInputs
) -> EffectiveQuota:
    overridden = found.overridden
    return EffectiveQuota(
        key=found.key.wire_name,
        by=by,
        mode=rollout_text(explain.quota_rollout_percent(known)) if by == "gateway" else "enforce",
        value=found.value,
        in_force=explain.quota_in_force(known, found) if by == "gateway" else found.value,
        entity=_entity_parts(found.source),
        text=f"{quota_text(found.key, found.value)} {entity_text(found.source)}",
        overridden=None
        if overridden is None
        else [
            Overridden(
                entity=_entity_parts(source), value=value, text=f"{quota_text(found.key, value)} {entity_text(source)}"
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


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ratio_text(ratio: float, limited: bool) -> str:
    if math.isinf(ratio):
        return "over a limit of 0"
    if math.isnan(ratio):
        return "not known" if limited else "no limit"
    return f"{ratio:.0%}"


def _show_level(level: explain.LimitLevel) -> ShownLevel:
    ratio = level.utilization
    return ShownLevel(
        what=level.what,
        origin=level.origin,
        unit=level.unit,
        configured=level.configured,
        limit=level.limit,
        rate=level.rate,
        utilization=_finite_or_none(ratio),
        utilization_text=_ratio_text(ratio, level.limit is not None),
        whole=level.limit if level.whole is None else level.whole,
        gateways=level.fleet.gateways,
        used=level.fleet_used,
        used_here=level.used_here,
        others=dict(level.fleet.others),
        wait_s=level.wait_s,
    )


def _show_rule(rule: explain.LimitDescription) -> ShownRule:
    first = rule.levels[0] if rule.levels else None
    return ShownRule(
        name=rule.name,
        broker=rule.broker,
        action=rule.action,
        traffic=rule.traffic,
        mode=rule.mode,
        first=rule.first,
        limits_now=rule.limits_now,
        since_ms=rule.since_ms,
        limit=first.limit if first else None,
        rate=first.rate if first else None,
        utilization=_finite_or_none(rule.utilization),
        utilization_text=_ratio_text(rule.utilization, any(level.limit is not None for level in rule.levels)),
        headroom=_finite_or_none(rule.headroom),
        note=rule.note,
        text=rule.text,
        levels=[_show_level(level) for level in rule.levels],
    )


def show_explanation(found: explain.TrafficExplanation, known: explain.ExplainInputs) -> Explained:
    storage = known.storage
    return Explained(
        topic=found.subject.topic,
        user=found.subject.user,
        client_id=found.subject.client_id,
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
        rules=[_show_rule(rule) for rule in found.rules],
        shadowed=[ShownShadowed(**each._asdict()) for each in found.shadowed],
        held=[show_held(each) for each in found.held],
        notes=list(found.notes),
    )


def show_held(held: explain.HeldTraffic) -> ShownHeld:
    return ShownHeld(**{**held._asdict(), "broker": None if held.broker < 0 else held.broker})


def show_flows(flows: Mapping[str, explain.TopicFlow]) -> dict[str, ShownFlow]:
    return {name: ShownFlow(**flow._asdict()) for name, flow in flows.items()}


def show_topic(line: explain.TopicStatus, others: Mapping[str, explain.TopicFlow]) -> ShownTopic:
    return ShownTopic(
        topic=line.topic,
        brokers=list(line.brokers),
        kind=line.kind,
        origin=line.origin,
        threshold=line.threshold,
        broker=line.on,
        rate=line.rate,
        elsewhere=line.elsewhere,
        utilization=_finite_or_none(line.utilization),
        utilization_text=_ratio_text(line.utilization, line.on is not None and line.threshold is not None),
        over=line.over,
        **line.flow._asdict(),
        others=show_flows(others),
    )
