# Gateway health: why the gateway isn't ready, the components that it runs without, and what it knows of other gateways.
# /v1/status and /v1/peers answer with these values' fields.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import trio

from gateway.control.cluster.cluster import ClusterMonitor
from gateway.control.context import ControlContext
from gateway.control.fleet.exchange.peers import PeerStatus
from gateway.control.fleet.shares import FleetControl
from gateway.control.workers.workers import WorkerPool
from policies.text import ERROR_CHARS, one_line

CHECK_S: Final = 0.2
REPORT_S: Final = 1.0


class LackingSource(Protocol):
    """A part of control that may be lacking, or knows others that may."""

    @property
    def lacking(self) -> Mapping[str, str]:
        """By the thing that the operator has to look at, why it is lacking; "": it isn't."""
        ...


class WorkerCounts(NamedTuple):
    configured: int = 0
    connected: int = 0


class HealthStatus(NamedTuple):
    """How this gateway is: `problems` keep it from being ready, `lacking` are parts that it goes on without."""

    upstream: str = ""
    since_ms: int = 0
    problems: Sequence[str] = ()
    lacking: Sequence[str] = ()
    workers: WorkerCounts = WorkerCounts()
    connections: int = 0


class FleetStatus(NamedTuple):
    """News of other gateways. `enabled` False: limits hold for this one alone."""

    enabled: bool = False
    topic: str = ""
    up: bool = False
    problem: str = ""
    round_trip_s: float | None = None
    peers: Sequence[PeerStatus] = ()


class GatewayHealth:
    """
    Attributes:
        is_open: the listeners' own ports accept connections.

    Args:
        sources: all that may be lacking; of two reasons for one thing the later source's counts.
    """

    def __init__(
        self,
        context: ControlContext,
        workers: WorkerPool,
        cluster: ClusterMonitor,
        fleet: FleetControl,
        sources: Sequence[LackingSource],
    ) -> None:
        self.is_open = False
        self._context = context
        self._workers = workers
        self._cluster = cluster
        self._fleet = fleet
        self._sources = sources
        self._was_complete = context.was_up  # an earlier control had all workers
        self._since_ms = context.now_ms()

    async def run_reporting(self) -> None:
        """Until cancelled, keep the metrics of missing components up to date, and report problems and missing
        components: when they change, and every REPORT_S, so that silence shows that this process hangs.
        """
        shown, reported, reported_at = None, None, -math.inf
        while True:
            if (lacking := self._lacking_reasons()) != shown:
                self._context.metrics.show_lacking(lacking)
                shown = lacking
            found, now = (self.find_problems(), _lacking_texts(lacking)), trio.current_time()
            if found != reported or now >= reported_at + REPORT_S:
                self._context.link.report_health(*found)
                reported, reported_at = found, now
            await trio.sleep(CHECK_S)

    def find_problems(self) -> list[str]:
        """Why the gateway isn't ready."""
        found = []
        if self._context.link.leaving.is_set():
            found.append("the gateway is stopping")
        # Connections go to any connected worker, so one is enough; but a caller that gets "ready" after a start counts
        # on all that was configured.
        connected, configured = self._workers.connected, self._context.settings.worker_count
        self._was_complete |= connected >= configured
        if not connected:
            found.append("no worker is connected")
        elif not self._was_complete:
            found.append(f"{connected} of {configured} workers have come up so far")
        if not self._cluster.is_known:
            found.append("the cluster has not answered yet")
        if not self.is_open:
            found.append("the bootstrap listener is not accepting yet")
        return found

    def find_lacking(self) -> list[str]:
        """Components that the gateway runs without, and why."""
        return _lacking_texts(self._lacking_reasons())

    def _lacking_reasons(self) -> Mapping[str, str]:
        """ "" for those that are not lacking."""
        return {part: why for source in self._sources for part, why in source.lacking.items()}

    def health_status(self) -> HealthStatus:
        settings = self._context.settings
        return HealthStatus(
            settings.upstream.bootstrap_servers,
            self._since_ms,
            self.find_problems(),
            self.find_lacking(),
            WorkerCounts(settings.worker_count, self._workers.connected),
            self._workers.connections,
        )

    def fleet_status(self) -> FleetStatus:
        exchange = self._fleet.exchange
        if exchange is None:
            return FleetStatus()
        round_trip_s = exchange.peers.round_trip_s
        return FleetStatus(
            True,
            self._context.settings.usage_topic,
            exchange.health.is_up,
            exchange.health.problem,
            None if math.isnan(round_trip_s) else round_trip_s,
            exchange.peers.peer_statuses(trio.current_time()),
        )


def _lacking_texts(lacking: Mapping[str, str]) -> list[str]:
    return [f"{part}: {one_line(why, ERROR_CHARS)}" for part, why in lacking.items() if why]
