# The shapes that several resources of the REST API share, as pydantic models; each resource has its own beside its
# routes (routers/). Nothing that a request has is ignored: an unknown key is an error that names the known ones. A
# response is read from the attributes of the gateway's own values, so that a field has one name here and there. JSON
# has no NaN and no Infinity: they are null.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Final

import trio
from fastapi import Response
from pydantic import (
    AfterValidator,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from gateway.control.policies.service import ChangeResult
from gateway.name_hints import name_hint
from policies.definitions.policy_values import ValueEnd
from policies.explain import principal_of
from policies.limits.description import known_broker
from policies.units import format_time, parse_size, parse_time
from policies.usage import COUNTED_CHARS

MAX_NAME: Final = 200


# --- requests ---------------------------------------------------------------------------------------------------------


class RequestModel(BaseModel):
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


def refuse_bool(value: object) -> object:
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
    BeforeValidator(refuse_bool),
    Field(allow_inf_nan=False),
    WithJsonSchema(_SIZE_SCHEMA),
]


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


class Validation(RequestModel):
    validate_only: bool = False


def _cut_name(name: str) -> str:
    return name[:COUNTED_CHARS]


CountedName = Annotated[str, AfterValidator(_cut_name)]  # a client's, as workers cut it before they use it


def counted_principal(user: str | None) -> str | None:
    """As what is counted has it; None: of any user. `user` "": see `principal_of`."""
    return None if user is None else _cut_name(principal_of(user))


# --- responses --------------------------------------------------------------------------------------------------------


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _end_text(end: ValueEnd | int | None) -> str | None:
    until_ms = end.until_ms if isinstance(end, ValueEnd) else end
    return None if until_ms is None else format_time(until_ms)


FiniteNumber = Annotated[float | None, BeforeValidator(_finite_or_none)]
BrokerId = Annotated[int | None, BeforeValidator(known_broker)]  # of values that have -1 for an unknown one
TimeText = Annotated[str, BeforeValidator(format_time)]  # of Unix time in milliseconds
EndText = Annotated[str | None, BeforeValidator(_end_text)]


class Committed(BaseModel):
    """Of one broker: its total, and the sum that the thresholds of the topics with partitions there take of it.
    `reserved`: the sum of topics that are not there yet, which may be placed on any broker. `excess`: by how much
    `explicit` exceeds the total, 0 if it doesn't. Bytes per second. `utilization`: `explicit` by total.
    """

    total: float
    explicit: float
    reserved: float
    excess: float = Field(validation_alias="overcommitted")
    utilization: FiniteNumber
    utilization_text: str


class Changed(BaseModel):
    """`old`, `new`: in force before and after; null = none. A name where something is attached to a group."""

    kind: str = Field(validation_alias=AliasPath("key", "kind"))
    name: str = Field(validation_alias=AliasPath("key", "name"))
    key: str = Field(validation_alias=AliasPath("key", "key"))
    old: float | str | None
    new: float | str | None
    until: EndText = Field(validation_alias="end")


class Alterations(BaseModel):
    """`version`: in force. `committed`: by broker, with these changes made; by "" for all brokers that have no total of
    their own, while the places of partitions are unknown.
    """

    version: int
    validate_only: bool
    changes: list[Changed]
    warnings: list[str]
    committed: dict[str, Committed]


class ShownHeld(BaseModel):
    """Sums since `first_ms`; `since_ms`: since when without a pause. Times are Unix time in milliseconds.
    `mean_delay_s`: of each request; null: none was delayed.
    """

    topic: str
    principal: str
    client_id: str
    broker: BrokerId
    outcome: str
    reason: str
    first_ms: int
    last_ms: int
    bytes: int
    requests: int
    delay_ms: int
    mean_delay_s: float | None
    since_ms: int


class ShownFlow(BaseModel):
    """Bytes per second over the last 15 s. `would`: that would have been held back, in mode observe."""

    accepted: float
    rejected: float
    delayed: float
    would: float


def alterations_of(altered: ChangeResult) -> dict[str, Any]:
    """The fields of Alterations, for a response that has more."""
    return dict(Alterations.model_validate(altered, from_attributes=True))


async def respond_from_thread(model: type[BaseModel], make: Callable[[], object]) -> Response:
    """The response for what `make` returns, both made in a thread: for values of thousands of entries, so that the
    event loop goes on.
    """

    def work() -> str:
        return model.model_validate(make(), from_attributes=True).model_dump_json()

    return Response(await trio.to_thread.run_sync(work), media_type="application/json")
