# The present state of a gateway: its state, its peers, its clients, its connections. Only reads.

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query
from pydantic import BaseModel, ConfigDict, Field

from gateway import channel, compiled
from gateway.config.sections.fields import Host
from gateway.control.admin.rest.configuration import ConfigState, show_config_state
from gateway.control.admin.rest.context import GatewayContext
from gateway.control.admin.rest.models import ShownFlow, ShownHeld, show_flows, show_held
from gateway.control.fleet.exchange.usage_codec import GatewayTraffic
from gateway.control.usage.timeline import SLOT_MS
from policies.explain import TopicFlow


class _QueryModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ClientsQuery(_QueryModel):
    """`user`, `client_id`: exactly these. `held`: only those that were held back; by `held`: the latest first."""

    by: Literal["rate", "rejected", "delayed", "held"] = "rate"
    limit: int = Field(default=100, ge=1, le=10_000)
    user: str | None = None
    client_id: str | None = None
    held: bool = False


class TrafficQuery(_QueryModel):
    minutes: int = Field(default=60, ge=1, le=60)


class DecisionsQuery(_QueryModel):
    """`topic`, `user`, `client_id`: exactly these. `outcome`: rejected, dropped, delayed, would_reject, would_delay."""

    limit: int = Field(default=100, ge=1, le=1000)
    topic: str | None = None
    user: str | None = None
    client_id: str | None = None
    outcome: str | None = None


class ConnectionsQuery(_QueryModel):
    """`principal`, `client_id`, `address` (without port): exactly these. `muted`: only connections that are."""

    limit: int = Field(default=100, ge=1, le=1000)
    principal: str | None = None
    client_id: str | None = None
    address: Host | None = None
    broker: int | None = None
    muted: bool = False


class ShownWorkers(BaseModel):
    configured: int
    connected: int


class StorageState(BaseModel):
    """`state`: OFF, OPEN, THROTTLE or PAUSE."""

    factor: float
    state: str
    why: str


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
    a part of `accepted`; `factor`: the lowest storage factor that was enforced, null: storage protection is off.
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
    since_s: float
    heard_s: float
    living: bool


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
    broker: int | None
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
    broker: int | None
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


def add_paths(app: FastAPI, gateway: GatewayContext) -> None:
    @app.get("/v1/status")
    async def get_status() -> Status:
        """The gateway in short."""
        now_ms = round(gateway.clock() * 1000)
        flows = gateway.recent.topic_flows(now_ms).values()
        told = gateway.latest_snapshot(channel.StorageSnapshot)
        settings, standing = gateway.latest_snapshot(channel.WorkerSettings), gateway.health_status()
        peers = gateway.fleet_status()
        return Status(
            version=app.version,
            hot_path=compiled.compilation_state(),
            gateway=settings.gateway if settings else "",
            upstream=standing.upstream,
            at_ms=now_ms,
            since_ms=standing.since_ms,
            ready=not standing.problems,
            problems=list(standing.problems),
            lacking=list(standing.lacking),
            mode="enforce" if settings is None else settings.mode,
            workers=ShownWorkers(configured=standing.workers, connected=standing.connected),
            connections=standing.connections,
            flow=_show_flow(TopicFlow(*(sum(parts) for parts in zip(*flows, strict=True))) if flows else TopicFlow()),
            storage=StorageState(factor=1.0, state="OFF", why="")
            if told is None
            else StorageState(factor=told.factor.value, state=told.factor.state, why=told.factor.why),
            policies_version=gateway.policies.policies.version,
            peers=sum(peer.is_living for peer in peers.seen) if peers.enabled else None,
            elsewhere=sum(flow.accepted for told in gateway.peer_traffic().values() for flow in told.topics.values()),
            config=show_config_state(standing.config),
        )

    @app.get("/v1/peers")
    async def get_peers() -> ShownPeers:
        """The other gateways of this cluster, as they were heard last."""
        peers = gateway.fleet_status()
        return ShownPeers(
            enabled=peers.enabled,
            topic=peers.topic,
            up=peers.up,
            problem=peers.problem,
            round_trip_s=peers.round_trip_s,
            peers=[
                Peer(
                    gateway=each.gateway,
                    workers=each.workers,
                    cycle_s=each.cycle_s,
                    since_s=each.since,
                    heard_s=each.heard,
                    living=each.is_living,
                )
                for each in peers.seen
            ],
        )

    @app.get("/v1/clients")
    async def get_clients(how: Annotated[ClientsQuery, Query()]) -> ShownClients:
        """Clients that produce, or were held back lately, with the latest reason."""
        now_ms = round(gateway.clock() * 1000)
        clients, others = gateway.recent.client_flows(now_ms), _peer_client_flows(gateway.peer_traffic())
        for name in others.keys() - clients.keys():
            clients[name] = TopicFlow(), None
        found = [
            (name, reduce(TopicFlow.combined_with, others.get(name, {}).values(), flow), held)
            for name, (flow, held) in clients.items()
            if how.user in (None, name[0].partition(":")[2]) and how.client_id in (None, name[1])
            if held is not None or not how.held
        ]
        keys: dict[str, Any] = {
            "rate": lambda each: -each[1].accepted,
            "rejected": lambda each: -each[1].rejected,
            "delayed": lambda each: -each[1].delayed,
            "held": lambda each: -(each[2].last_ms if each[2] else 0),
        }
        found.sort(key=lambda each: (keys[how.by](each), -(each[2].last_ms if each[2] else 0), each[0]))
        return ShownClients(
            at_ms=now_ms,
            total=len(found),
            clients=[
                ShownClient(
                    principal=name[0],
                    client_id=name[1],
                    flow=_show_flow(flow),
                    others=show_flows(others.get(name, {})),
                    held=held
                    and LastHeld(
                        outcome=held.outcome,
                        reason=held.reason,
                        topic=held.topic,
                        broker=None if held.broker < 0 else held.broker,
                        last_ms=held.last_ms,
                        bytes=held.bytes,
                        requests=held.requests,
                        delay_ms=held.delay_ms,
                    ),
                )
                for name, flow, held in found[: how.limit]
            ],
        )

    @app.get("/v1/traffic")
    async def get_traffic(how: Annotated[TrafficQuery, Query()]) -> Traffic:
        """The bytes of all topics and clients over the last hour."""
        now_ms = round(gateway.clock() * 1000)
        points = gateway.timeline.list_points(now_ms, how.minutes * 60_000 // SLOT_MS)
        return Traffic(at_ms=now_ms, step_ms=SLOT_MS, points=[TrafficPoint(**point._asdict()) for point in points])

    @app.get("/v1/decisions")
    async def get_decisions(how: Annotated[DecisionsQuery, Query()]) -> Decisions:
        """What was rejected and delayed lately, by topic, client, broker and reason."""
        now_ms = round(gateway.clock() * 1000)
        found = [
            held
            for held in gateway.recent.find_held(now_ms, how.topic, client_id=how.client_id)
            if how.user in (None, held.principal.partition(":")[2]) and how.outcome in (None, held.outcome)
        ]
        return Decisions(at_ms=now_ms, total=len(found), decisions=[show_held(held) for held in found[: how.limit]])

    @app.get("/v1/connections")
    async def get_connections(how: Annotated[ConnectionsQuery, Query()]) -> ShownConnections:
        """Clients' connections that are relayed, the longest muted first, then the oldest."""
        found = await gateway.find_connections(channel.FindConnections(**how.model_dump()))
        return ShownConnections(
            total=found.total,
            matched=found.matched,
            missing=found.missing,
            connections=[
                ShownConnection(
                    peer=each.peer,
                    broker=None if each.broker < 0 else each.broker,
                    principal=each.principal,
                    client_id=each.client_id,
                    software=each.software,
                    age_s=each.age_s,
                    idle_s=each.idle_s,
                    in_flight=each.in_flight,
                    muted_s=each.muted_s,
                    why=each.why,
                    id=each.id,
                )
                for each in found.connections
            ],
        )


def _peer_client_flows(traffic: Mapping[str, GatewayTraffic]) -> dict[tuple[str, str], dict[str, TopicFlow]]:
    """The busiest clients of other gateways, by gateway."""
    found: dict[tuple[str, str], dict[str, TopicFlow]] = {}
    for gateway, told in traffic.items():
        for client, flow in told.clients.items():
            found.setdefault(client, {})[gateway] = flow
    return found


def _show_flow(flow: TopicFlow) -> ShownFlow:
    return ShownFlow(**flow._asdict())
