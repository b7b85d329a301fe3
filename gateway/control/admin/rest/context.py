# The value that all endpoints of the REST API get: the parts of control that they show and change, in one value. Knows
# no framework: control makes this value when it starts, and the API, which has one, when it is first asked for.

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from gateway.channel import FindConnections
from gateway.control.cluster.broker_quotas import BrokerQuotas
from gateway.control.fleet.exchange.form import GatewayTraffic
from gateway.control.fleet.exchange.peers import Seen
from gateway.control.lifecycle.reload import Attempt, State
from gateway.control.policies.service import Altered
from gateway.control.usage.recent import Recent
from gateway.control.usage.timeline import Timeline
from gateway.control.workers.inquiries import Found
from policies.definitions.policy_records import Past, Source
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import Op
from policies.explain import FleetUse
from policies.fleet.keys import FleetKey
from policies.quotas.store import Alteration
from policies.thresholds.broker_meters import Others
from policies.thresholds.sums import Places

_T = TypeVar("_T")


class Policies(Protocol):
    """The part of the policy service that the API needs; see gateway.control.policies.service.PolicyService."""

    @property
    def policies(self) -> PolicySet: ...

    @property
    def history(self) -> Sequence[Past]: ...

    async def alter(self, ops: Sequence[Op], source: Source, *, validate_only: bool = False) -> Altered: ...

    async def alter_quotas(
        self, alterations: Sequence[Alteration], source: Source, *, validate_only: bool = False
    ) -> Altered: ...

    async def apply(
        self,
        data: object,
        source: Source,
        *,
        dry_run: bool = False,
        prune: bool = False,
        until_ms: int | None = None,
        groups: bool = True,
    ) -> Altered: ...

    def overview(self) -> dict[str, Any]: ...


class Latest(Protocol):
    """The last message of a type: of Settings, Topics, Policy, Quotas and Storage the one to workers, of Rates the one
    from them; None: none yet.
    """

    def __call__(self, kind: type[_T], /) -> _T | None: ...


class Standing(NamedTuple):
    """How this gateway is: `problems` keep it from being ready, `lacking` are parts that it goes on without."""

    upstream: str = ""
    since_ms: int = 0
    problems: Sequence[str] = ()
    lacking: Sequence[str] = ()
    workers: int = 0
    connected: int = 0  # of these
    connections: int = 0
    config: State = State()


class Fleet(NamedTuple):
    """News of other gateways. `enabled` False: limits hold for this one alone."""

    enabled: bool = False
    topic: str = ""
    up: bool = False
    problem: str = ""
    round_trip_s: float | None = None
    seen: Sequence[Seen] = ()


async def _no_connections(_: FindConnections) -> Found:
    return Found()


def _no_fleet(_: Iterable[FleetKey] | None) -> Mapping[FleetKey, FleetUse]:
    return {}


def _nothing_brought(_: str, __: Iterable[int]) -> Mapping[tuple[int, str | None], FleetUse]:
    return {}


@dataclass(frozen=True)
class Gateway:
    """A running gateway, as the API sees it.

    Attributes:
        latest: snapshots and rates.
        base: the source of policies that were not changed at run time.
        places: where topics have partitions, None while that is unknown.
        fleet: these limits over all gateways; None: all that this one takes of. Empty while it is alone.
        brought: the bytes that other gateways bring to that topic and these brokers, by gateway.
        elsewhere: the bytes that all of them together bring, by broker.
        others: the busiest topics and clients of other gateways, by gateway.
        broker_quotas: client quotas that the brokers enforce.
        standing, peers: how this gateway is, and what it hears of others.
        connections: asks workers for theirs.
        timeline: the traffic of the last hour.
        storage: the answer of GET /v1/storage.
        reload: reads the configuration again; None: that can't be asked for.
        clock: Unix time.
    """

    policies: Policies
    recent: Recent
    latest: Latest
    base: str = "file"
    places: Callable[[], Places | None] = lambda: None
    fleet: Callable[[Iterable[FleetKey] | None], Mapping[FleetKey, FleetUse]] = _no_fleet
    brought: Callable[[str, Iterable[int]], Mapping[tuple[int, str | None], FleetUse]] = _nothing_brought
    elsewhere: Callable[[], Mapping[int, Others]] = dict
    others: Callable[[], Mapping[str, GatewayTraffic]] = dict
    broker_quotas: BrokerQuotas | None = None
    standing: Callable[[], Standing] = Standing
    peers: Callable[[], Fleet] = Fleet
    connections: Callable[[FindConnections], Awaitable[Found]] = _no_connections
    timeline: Timeline = field(default_factory=Timeline)
    storage: Callable[[], Mapping[str, Any]] = lambda: {"enabled": False}
    reload: Callable[[Source], Awaitable[Attempt]] | None = None
    clock: Callable[[], float] = time.time
