# The value that all endpoints of the REST API get: the parts of control that they show and change, in one value. Knows
# no framework: control makes this value when it starts, and the API, which has one, when it is first asked for.

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from gateway.channel import FindConnections
from gateway.control.cluster.broker_quotas import BrokerQuotas
from gateway.control.fleet.exchange.usage_codec import GatewayTraffic
from gateway.control.gateway_health import FleetStatus, HealthStatus
from gateway.control.lifecycle.reload import ConfigStatus, ReloadResult
from gateway.control.policies.service import PolicyService
from gateway.control.usage.recent import RecentTraffic
from gateway.control.usage.timeline import TrafficTimeline
from gateway.control.workers.inquiries import InquiryResult
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_values import BaseOrigin, file_origin
from policies.fleet.keys import FleetKey
from policies.limits.description import FleetUse
from policies.meters.broker_meters import PeerTraffic
from policies.quotas.store import QuotaStore
from policies.thresholds.sums import TopicPlaces

_T = TypeVar("_T")


class LatestSnapshot(Protocol):
    """The last message of a type: of a snapshot the one to workers, of WorkerRates theirs; None: none yet."""

    def __call__(self, kind: type[_T], /) -> _T | None: ...


async def _no_connections(_: FindConnections) -> InquiryResult:
    return InquiryResult()


def _no_fleet_uses(_: Iterable[FleetKey] | None) -> Mapping[FleetKey, FleetUse]:
    return {}


def _no_peer_rates(_: str, __: Iterable[int]) -> Mapping[tuple[int, str | None], FleetUse]:
    return {}


@dataclass(frozen=True)
class GatewayContext:
    """A running gateway, as the API sees it.

    Attributes:
        latest_snapshot: snapshots and rates.
        base_origin: of policies that were not changed at run time.
        places: where topics have partitions, None while that is unknown.
        fleet_uses: these limits over all gateways; None: all that this one takes of. Empty while it is alone.
        peer_rates: the bytes that other gateways bring to that topic and these brokers, by gateway.
        peer_broker_rates: the bytes that all of them together bring, by broker.
        peer_traffic: the busiest topics and clients of other gateways, by gateway.
        broker_quotas: client quotas that the brokers enforce.
        other_names: why brokers may know clients by other names; "": they don't.
        health_status, fleet_status, config_status: how this gateway is, what it hears of others, its configuration.
        find_connections: asks workers for theirs.
        timeline: the traffic of the last hour.
        storage_status: the answer of GET /v1/storage to a caller that is identified, or isn't.
        reload_config: reads the configuration again; None: that can't be asked for.
        clock: Unix time.
    """

    policies: PolicyService
    recent: RecentTraffic
    latest_snapshot: LatestSnapshot
    base_origin: BaseOrigin = file_origin
    places: Callable[[], TopicPlaces | None] = lambda: None
    fleet_uses: Callable[[Iterable[FleetKey] | None], Mapping[FleetKey, FleetUse]] = _no_fleet_uses
    peer_rates: Callable[[str, Iterable[int]], Mapping[tuple[int, str | None], FleetUse]] = _no_peer_rates
    peer_broker_rates: Callable[[], Mapping[int, PeerTraffic]] = dict
    peer_traffic: Callable[[], Mapping[str, GatewayTraffic]] = dict
    broker_quotas: BrokerQuotas | None = None
    other_names: Callable[[], str] = str
    health_status: Callable[[], HealthStatus] = HealthStatus
    fleet_status: Callable[[], FleetStatus] = FleetStatus
    config_status: Callable[[], ConfigStatus] = ConfigStatus
    find_connections: Callable[[FindConnections], Awaitable[InquiryResult]] = _no_connections
    timeline: TrafficTimeline = field(default_factory=TrafficTimeline)
    storage_status: Callable[[bool], Mapping[str, Any]] = lambda _: {"enabled": False}
    reload_config: Callable[[ChangeSource], Awaitable[ReloadResult]] | None = None
    clock: Callable[[], float] = time.time

    @property
    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        return round(self.clock() * 1000)

    async def fetch_broker_quotas(self) -> tuple[QuotaStore | None, str]:
        """The brokers' own quotas; None: unknown, and why."""
        if self.broker_quotas is None:
            return None, ""
        return await self.broker_quotas.fetch_quotas(), self.broker_quotas.problem
