# How the gateway is: why it isn't ready, what it goes on without, and the rest that /v1/status and /v1/peers say.

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Final

import trio

from gateway.control.admin.rest.context import FleetStatus, HealthStatus
from gateway.control.cluster.cluster import ClusterMonitor
from gateway.control.components.optional_components import OptionalComponents
from gateway.control.components.usage_pipeline import UsagePipeline
from gateway.control.fleet.shares import FleetControl
from gateway.control.metrics import GatewayMetrics
from gateway.control.policies.service import PolicyService
from gateway.control.workers.snapshot_publisher import SnapshotPublisher
from gateway.control.workers.snapshots import worker_count
from gateway.control.workers.workers import WorkerPool
from policies.text import ERROR_CHARS, one_line

CHECK_S: Final = 0.2
REPORT_S: Final = 1.0


class GatewayHealth:
    """
    Attributes:
        is_open: the listeners' own ports accept connections.

    Args:
        was_complete: an earlier control had all workers.
        is_leaving: the gateway is about to stop.
    """

    def __init__(
        self,
        orders: SnapshotPublisher,
        parts: OptionalComponents,
        workers: WorkerPool,
        cluster: ClusterMonitor,
        policies: PolicyService,
        spooling: UsagePipeline,
        fleet: FleetControl,
        is_leaving: Callable[[], bool],
        *,
        was_complete: bool,
    ) -> None:
        self.is_open = False
        self._snapshot_publisher = orders
        self._components = parts
        self._workers = workers
        self._cluster = cluster
        self._policies = policies
        self._usage_pipeline = spooling
        self._fleet = fleet
        self._is_leaving = is_leaving
        self._was_complete = was_complete
        self._since_ms = round(time.time() * 1000)

    async def run_reporting(self, metrics: GatewayMetrics, report: Callable[[list[str], list[str]], None]) -> None:
        """Until cancelled, keep the metrics of missing components up to date, and report problems and missing
        components: when they change, and every REPORT_S, so that silence shows that this process hangs.
        """
        reported, reported_at = None, -math.inf
        while True:
            metrics.show_lacking(self._lacking_reasons())
            found, now = (self.find_problems(), self.find_lacking()), trio.current_time()
            if found != reported or now >= reported_at + REPORT_S:
                report(*found)
                reported, reported_at = found, now
            await trio.sleep(CHECK_S)

    def find_problems(self) -> list[str]:
        """Why the gateway isn't ready."""
        found = []
        if self._is_leaving():
            found.append("the gateway is stopping")
        # Connections go to any connected worker, so one is enough; but a caller that gets "ready" after a start counts
        # on all that was configured.
        connected, configured = self._workers.connected, worker_count(self._snapshot_publisher.settings)
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
        return [f"{part}: {one_line(why, ERROR_CHARS)}" for part, why in self._lacking_reasons().items() if why]

    def _lacking_reasons(self) -> Mapping[str, str]:
        """ "" for those that are not lacking."""
        found = {**self._components.lacking, **self._usage_pipeline.lacking, "policies": self._policies.problem}
        if self._cluster.is_known:  # until then the gateway isn't ready
            found["cluster"] = self._cluster.problem
        if self._fleet.exchange is not None:
            found["exchange"] = self._fleet.exchange.health.problem
        return found

    def health_status(self) -> HealthStatus:
        settings = self._snapshot_publisher.settings
        return HealthStatus(
            settings.upstream.bootstrap_servers,
            self._since_ms,
            self.find_problems(),
            self.find_lacking(),
            worker_count(settings),
            self._workers.connected,
            self._workers.connections,
        )

    def fleet_status(self) -> FleetStatus:
        exchange = self._fleet.exchange
        if exchange is None:
            return FleetStatus()
        round_trip_s = exchange.peers.round_trip_s
        return FleetStatus(
            True,
            self._snapshot_publisher.settings.usage_topic,
            exchange.health.is_up,
            exchange.health.problem,
            None if math.isnan(round_trip_s) else round_trip_s,
            exchange.peers.peer_statuses(trio.current_time()),
        )
