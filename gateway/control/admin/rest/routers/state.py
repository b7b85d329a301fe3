# The present state of a gateway over REST: its state, its peers, its clients, its connections, and its configuration,
# which can be read again.

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Annotated, Any, Final, Literal

from fastapi import Query, Request
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from gateway import channel, compiled
from gateway.config.sections.fields import Host
from gateway.control.admin.rest import problems
from gateway.control.admin.rest.dependencies import Facts, Gateway, Requester, make_router
from gateway.control.admin.rest.models import (
    BrokerId,
    CountedName,
    RequestModel,
    ShownFlow,
    ShownHeld,
    counted_principal,
)
from gateway.control.fleet.exchange.usage_codec import GatewayTraffic
from gateway.control.gateway_health import FleetStatus
from gateway.control.lifecycle.reload import DOOR, ConfigStatus
from gateway.control.usage.timeline import SLOT_MS
from gateway.control.workers.inquiries import InquiryResult
from policies.explain import HeldTraffic, TopicFlow, storage_effect_text

router: Final = make_router()


class ClientsQuery(RequestModel):
    """`user`, `client_id`: exactly these. `held`: only those that were held back; by `held`: the latest first."""

    by: Literal["rate", "rejected", "delayed", "held"] = "rate"
    limit: int = Field(default=100, ge=1, le=10_000)
    user: str | None = None
    client_id: CountedName | None = None
    held: bool = False


class TrafficQuery(RequestModel):
    minutes: int = Field(default=60, ge=1, le=60)


class DecisionsQuery(RequestModel):
    """`topic`, `user`, `client_id`: exactly these."""

    limit: int = Field(default=100, ge=1, le=1000)
    topic: str | None = None
    user: str | None = None
    client_id: CountedName | None = None
    outcome: Literal["rejected", "dropped", "delayed", "would_reject", "would_delay"] | None = None


class ConnectionsQuery(RequestModel):
    """`principal`, `client_id`, `address` (without port): exactly these. `muted`: only connections that are."""

    limit: int = Field(default=100, ge=1, le=1000)
    principal: CountedName | None = None
    client_id: CountedName | None = None
    address: Host | None = None
    broker: int | None = Field(default=None, ge=0, le=2**31 - 1)  # as the question to workers can hold
    muted: bool = False


class ShownWorkers(BaseModel):
    configured: int
    connected: int


class StorageState(BaseModel):
    """`state`: OFF, OPEN, THROTTLE or PAUSE; with `mode` observe it holds nobody back. `text`: its effect in words."""

    factor: float
    state: str
    why: str
    mode: str
    text: str


class ReloadAttempt(BaseModel):
    """`outcome`: applied, unchanged, refused (the file can't be used) or failed (it could not be taken over just now).
    `problems`: why; `changed`: keys whose values hold since then.
    """

    outcome: str
    at_ms: int
    problems: list[str]
    changed: list[str]


class ConfigState(BaseModel):
    """`file` "": it came from standard input. `loaded_ms`: the time at which it was last read and accepted. `pending`:
    keys of the file that wait for a restart. `last`: the last time that it was read again, or should have been.
    """

    file: str
    loaded_ms: int
    pending: list[str]
    last: ReloadAttempt | None


class Status(BaseModel):
    """`since`: Unix time in milliseconds at which this gateway's control process began. `problems`: why it isn't ready;
    `lacking`: parts that it goes on without. `peers`: other gateways that live; null: it listens to none.
    `elsewhere`: bytes per second that they accept, of their busiest topics; `flow` is through this one.
    `hot_path`: compiled or pure Python.
    """

    version: str
    hot_path: str
    gateway: str
    upstream: str
    at_ms: int
    since_ms: int
    ready: bool
    problems: list[str]
    lacking: list[str]
    mode: str
    workers: ShownWorkers
    connections: int
    flow: ShownFlow
    storage: StorageState
    policies_version: int
    peers: int | None
    elsewhere: float
    config: ConfigState


class TrafficPoint(BaseModel):
    """Bytes per second, as a mean of `step_ms` from `at_ms` on. `accepted`, `rejected`: parts of `offered`; `delayed`:
    a part of `accepted`; `factor`: the lowest storage factor that was enforced, null: none was, or nothing came.
    """

    at_ms: int
    offered: float
    accepted: float
    rejected: float
    delayed: float
    would: float
    factor: float | None


class Traffic(BaseModel):
    """The oldest first, without gaps, up to the last whole step; from the beginning of this control process at most."""

    at_ms: int
    step_ms: int
    points: list[TrafficPoint]


class Decisions(BaseModel):
    """What was held back in the last ten minutes, the latest first; `total` of them match."""

    at_ms: int
    total: int
    decisions: list[ShownHeld]


class Peer(BaseModel):
    """`since_s`, `heard_s`: seconds since its first and its last message. `living`: it counts."""

    gateway: str
    workers: int
    cycle_s: float
    since_s: float = Field(validation_alias="since")
    heard_s: float = Field(validation_alias="heard")
    living: bool = Field(validation_alias="is_living")


class ShownPeers(BaseModel):
    """`enabled`: limits hold over several gateways. `up`: others can be heard; `round_trip_s` of our own last message,
    null: none came back.
    """

    enabled: bool
    topic: str
    up: bool
    problem: str
    round_trip_s: float | None
    peers: list[Peer]


class LastHeld(BaseModel):
    """Sums of the last ten minutes for the latest reason, `last_ms`: Unix time."""

    outcome: str
    reason: str
    topic: str
    broker: BrokerId
    last_ms: int
    bytes: int
    requests: int
    delay_ms: int


class ShownClient(BaseModel):
    """`flow`: through all gateways; `others`: through others, by name, where it is among their busiest clients; `held`:
    by this one.
    """

    principal: str
    client_id: str
    flow: ShownFlow
    others: dict[str, ShownFlow]
    held: LastHeld | None


class ShownClients(BaseModel):
    """`total`: that match; those that produced in the last 15 s, or were held back in the last ten minutes."""

    at_ms: int
    total: int
    clients: list[ShownClient]


class ShownConnection(BaseModel):
    """`broker` null: not known yet. `client_id`: of its last Produce or Fetch request, "" before that. `idle_s`: since
    the last byte from either side. `muted_s`: for so long its next request of some kind still waits, `why`: the reason,
    "" where none is known. `id`: as in the log.
    """

    peer: str
    broker: BrokerId
    principal: str
    client_id: str
    software: str
    age_s: float
    idle_s: float
    in_flight: int
    muted_s: float
    why: str
    id: str


class ShownConnections(BaseModel):
    """`total`: relayed ones; `matched`: those that were asked for; `missing`: workers that did not answer in time."""

    total: int
    matched: int
    missing: int
    connections: list[ShownConnection]


@router.get("/v1/status", response_model=Status)
async def get_status(request: Request, gateway: Gateway, facts: Facts) -> Any:
    """The gateway in short."""
    now_ms, health, fleet = gateway.now_ms, gateway.health_status(), gateway.fleet_status()
    settings, known = gateway.latest_snapshot(channel.WorkerSettings), facts.gather()
    factor = known.storage
    return {
        **health._asdict(),
        "version": request.app.version,
        "hot_path": compiled.compilation_state(),
        "gateway": settings.gateway if settings else "",
        "at_ms": now_ms,
        "ready": not health.problems,
        "mode": "enforce" if settings is None else settings.mode,
        "flow": reduce(TopicFlow.combined_with, gateway.recent.topic_flows(now_ms).values(), TopicFlow()),
        "storage": {
            "factor": factor.value if factor else 1.0,
            "state": factor.state if factor else "OFF",
            "why": factor.why if factor else "",
            "mode": known.effective_mode(known.storage_mode),
            "text": storage_effect_text(known),
        },
        "policies_version": gateway.policies.policies.version,
        "peers": sum(peer.is_living for peer in fleet.peers) if fleet.enabled else None,
        "config": gateway.config_status(),
        "elsewhere": sum(flow.accepted for each in gateway.peer_traffic().values() for flow in each.topics.values()),
    }


@router.get("/v1/peers", response_model=ShownPeers)
async def get_peers(gateway: Gateway) -> FleetStatus:
    """The other gateways of this cluster, as they were heard last."""
    return gateway.fleet_status()


@router.get("/v1/clients", response_model=ShownClients)
async def get_clients(gateway: Gateway, how: Annotated[ClientsQuery, Query()]) -> Any:
    """Clients that produce, or were held back lately, with the latest reason."""
    now_ms, principal = gateway.now_ms, counted_principal(how.user)
    clients, others = gateway.recent.client_flows(now_ms), _peer_client_flows(gateway.peer_traffic())
    for name in others.keys() - clients.keys():
        clients[name] = TopicFlow(), None
    found = [
        (name, reduce(TopicFlow.combined_with, others.get(name, {}).values(), flow), held)
        for name, (flow, held) in clients.items()
        if principal in (None, name[0]) and how.client_id in (None, name[1])
        if held is not None or not how.held
    ]

    def rank(client: tuple[tuple[str, str], TopicFlow, HeldTraffic | None]) -> tuple[float, int, tuple[str, str]]:
        name, flow, held = client
        latest_ms = held.last_ms if held else 0
        first: Mapping[str, float] = {**flow._asdict(), "rate": flow.accepted, "held": latest_ms}
        return -first[how.by], -latest_ms, name

    found.sort(key=rank)
    return {
        "at_ms": now_ms,
        "total": len(found),
        "clients": [
            {"principal": name[0], "client_id": name[1], "flow": flow, "others": others.get(name, {}), "held": held}
            for name, flow, held in found[: how.limit]
        ],
    }


@router.get("/v1/traffic", response_model=Traffic)
async def get_traffic(gateway: Gateway, how: Annotated[TrafficQuery, Query()]) -> Any:
    """The bytes of all topics and clients over the last hour."""
    now_ms = gateway.now_ms
    points = gateway.timeline.list_points(now_ms, how.minutes * 60_000 // SLOT_MS)
    return {"at_ms": now_ms, "step_ms": SLOT_MS, "points": points}


@router.get("/v1/decisions", response_model=Decisions)
async def get_decisions(gateway: Gateway, how: Annotated[DecisionsQuery, Query()]) -> Any:
    """What was rejected and delayed lately, by topic, client, broker and reason."""
    now_ms = gateway.now_ms
    found = [
        held
        for held in gateway.recent.find_held(now_ms, how.topic, counted_principal(how.user), how.client_id)
        if how.outcome in (None, held.outcome)
    ]
    return {"at_ms": now_ms, "total": len(found), "decisions": found[: how.limit]}


@router.get("/v1/connections", response_model=ShownConnections)
async def get_connections(gateway: Gateway, how: Annotated[ConnectionsQuery, Query()]) -> InquiryResult:
    """Clients' connections that are relayed, the longest muted first, then the oldest."""
    return await gateway.find_connections(channel.FindConnections(**how.model_dump()))


@router.post("/v1/reload", response_model=ConfigState)
async def reload_configuration(gateway: Gateway, requester: Requester) -> ConfigStatus:
    """Read the configuration file again; the answer has its state then, an error what is wrong with the file."""
    if gateway.reload_config is None:
        raise HTTPException(404, "this gateway can't read its configuration again")
    attempt = await gateway.reload_config(requester.source._replace(door=DOOR))
    if attempt.problems:
        status = 422 if attempt.outcome == "refused" else 503
        text = "the configuration was not taken over, the old one stays"
        raise problems.RequestRefused(
            text, [problems.Finding(where="configuration", what=each) for each in attempt.problems], status
        )
    return gateway.config_status()


def _peer_client_flows(traffic: Mapping[str, GatewayTraffic]) -> dict[tuple[str, str], dict[str, TopicFlow]]:
    """The busiest clients of other gateways, by gateway."""
    found: dict[tuple[str, str], dict[str, TopicFlow]] = {}
    for gateway, each in traffic.items():
        for client, flow in each.clients.items():
            found.setdefault(client, {})[gateway] = flow
    return found
