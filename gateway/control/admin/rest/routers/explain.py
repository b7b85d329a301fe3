# What holds for whom and why, over REST, and topics by their traffic. The facts are gathered on the event loop, and the
# answer is worked out in a thread: there may be ten thousand topics.

from __future__ import annotations

from functools import reduce
from typing import Annotated, Any, Final, Literal

from fastapi import Query, Response
from pydantic import AliasPath, BaseModel, Field

from gateway.control.admin.rest.context import GatewayContext
from gateway.control.admin.rest.dependencies import Facts, Gateway, make_router
from gateway.control.admin.rest.models import (
    MAX_NAME,
    CountedName,
    FiniteNumber,
    RequestModel,
    ShownFlow,
    ShownHeld,
    counted_principal,
    respond_from_thread,
)
from policies import explain

router: Final = make_router()
topics_router: Final = make_router()


class ExplainQuery(RequestModel):
    topic: str = Field(min_length=1)
    user: str | None = Field(
        default=None,
        description="Without one: a client that has not authenticated. Empty: clients of the principal `unknown`.",
    )
    client_id: CountedName | None = Field(default=None, description="Without one: a client that gives none.")
    broker: int | None = Field(
        default=None, ge=0, le=2**31 - 1, description="Without one: all that lead a part of the topic."
    )


class TopQuery(RequestModel):
    by: Literal["rate", "rejected", "utilization"] = "rate"
    limit: int = Field(default=20, ge=1, le=10_000)
    contains: str = Field(default="", max_length=MAX_NAME, description="Only topics whose names have this in them.")
    topic: str | None = Field(default=None, description="Only this one.")


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
    utilization: FiniteNumber
    utilization_text: str
    whole: float | None = Field(validation_alias="whole_limit")
    gateways: int = Field(validation_alias=AliasPath("fleet", "gateways"))
    used: float | None = Field(validation_alias="fleet_used")
    used_here: float | None
    others: dict[str, float] = Field(validation_alias=AliasPath("fleet", "others"))
    wait_s: float


class ShownRule(BaseModel):
    """It binds when all of its levels are exceeded. `limit` and `rate`: of the first one, `utilization` of the last.
    `since_ms`: Unix time since when it has limited this traffic; null: it doesn't now, or, as of Fetch requests, since
    when isn't known.
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
    utilization: FiniteNumber
    utilization_text: str
    headroom: FiniteNumber
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
    utilization: FiniteNumber
    utilization_text: str
    over: bool
    accepted: float = Field(validation_alias=AliasPath("flow", "accepted"))
    rejected: float = Field(validation_alias=AliasPath("flow", "rejected"))
    delayed: float = Field(validation_alias=AliasPath("flow", "delayed"))
    would: float = Field(validation_alias=AliasPath("flow", "would"))
    others: dict[str, ShownFlow]


class ShownTopics(BaseModel):
    """`total`: that match, of which the first are here."""

    at_ms: int
    total: int
    topics: list[ShownTopic]


@router.get("/v1/explain", response_model=Explained)
async def explain_traffic(gateway: Gateway, facts: Facts, asked: Annotated[ExplainQuery, Query()]) -> Response:
    """Every rule that looks at this traffic, the one that binds first, and the latest rejections and delays."""
    subject = explain.ExplainSubject(
        asked.topic, explain.ANONYMOUS if asked.user is None else asked.user, asked.client_id or "", asked.broker
    )
    known = (await facts.gather_for(subject))._replace(elsewhere=_find_flows_elsewhere(gateway, asked))
    held = gateway.recent.find_held(
        known.now_ms, asked.topic, counted_principal(asked.user), asked.client_id, asked.broker
    )

    def make() -> dict[str, Any]:
        found, storage = explain.explain_traffic(subject, known, held), known.storage
        return {
            **subject._asdict(),
            **found._asdict(),
            "at_ms": known.now_ms,
            "storage": {
                "text": found.storage,
                "factor": 1.0 if storage is None else storage.value,
                "origin": None if storage is None else storage.origin,
                "why": "" if storage is None else storage.why,
            },
        }

    return await respond_from_thread(Explained, make)


@topics_router.get("/v1/topics", response_model=ShownTopics)
async def get_topics(facts: Facts) -> Response:
    """All topics, by name."""
    return await _list_topics(facts)


@topics_router.get("/v1/top", response_model=ShownTopics)
async def get_top(facts: Facts, how: Annotated[TopQuery, Query()]) -> Response:
    """The busiest topics."""
    return await _list_topics(facts, how)


def _find_flows_elsewhere(gateway: GatewayContext, asked: ExplainQuery) -> dict[str, explain.TopicFlow]:
    """At other gateways, by name: of the client that is asked about, or else of the topic."""
    principal, found = counted_principal(asked.user), {}
    for name, traffic in gateway.peer_traffic().items():
        if principal is None and asked.client_id is None:
            flows = [flow for topic, flow in traffic.topics.items() if topic == asked.topic]
        else:
            flows = [
                flow
                for client, flow in traffic.clients.items()
                if principal in (None, client[0]) and asked.client_id in (None, client[1])
            ]
        if any(flow := reduce(explain.TopicFlow.combined_with, flows, explain.TopicFlow())):
            found[name] = flow
    return found


async def _list_topics(facts: Facts, how: TopQuery | None = None) -> Response:
    known, flows, others = facts.gather_topics()

    def make() -> dict[str, Any]:
        found = explain.topic_statuses(known, flows, others)
        total = len(found)
        if how is not None:
            found = [each for each in found if how.contains in each.topic and how.topic in (None, each.topic)]
            found = explain.top_topics(found, how.by)
            total, found = len(found), found[: how.limit]
        return {"at_ms": known.now_ms, "total": total, "topics": found}

    return await respond_from_thread(ShownTopics, make)
