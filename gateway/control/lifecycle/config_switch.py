# Makes another configuration hold in all parts of control at once, and in each worker at once: nothing in here waits.
# Which keys may be others than before is gateway/config/changes.py's; each of those has to have its effect from here.

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.config import Settings
from gateway.control.cluster.cluster import ClusterMonitor
from gateway.control.metrics import GatewayMetrics, certificate_locations
from gateway.control.policies.kafka_admin.admin_service import KafkaAdmin
from gateway.control.storage.service import StorageService
from gateway.control.workers.acceptor import ConnectionAcceptor, proxy_networks
from gateway.control.workers.snapshot_publisher import SnapshotPublisher
from gateway.control.workers.workers import WorkerPool
from gateway.supervisor import AdoptConfig, ConfigOrigin
from policies.definitions.policy_set import PolicySet


@dataclass(frozen=True)
class ConfigSwitch:
    """`policies`: those in force; `log_as`: logs as it says; `adopt`: the parent keeps it for the next control."""

    snapshot_publisher: SnapshotPublisher
    workers: WorkerPool
    cluster: ClusterMonitor
    acceptor: ConnectionAcceptor
    storage_service: StorageService
    kafka_admin: KafkaAdmin
    metrics: GatewayMetrics
    policies: Callable[[], PolicySet]
    log_as: Callable[[Settings], None]
    adopt: Callable[[AdoptConfig], None]

    @contextmanager
    def __call__(self, settings: Settings, origin: ConfigOrigin) -> Iterator[None]:
        """The configuration takes effect together with the policies that are published within."""
        limits = settings.limits
        with self.workers.batch_snapshots():
            self.snapshot_publisher.settings = settings
            self.cluster.apply_settings(settings.all_listeners, settings.upstream.metadata_refresh)
            self.storage_service.apply_settings(settings)
            yield
            self.snapshot_publisher.publish_policies(self.policies())  # nothing, where it was all published within
        self.acceptor.proxies = proxy_networks(settings)
        self.workers.admission.set_limits(limits.max_connections, limits.connections_per_address)
        self.kafka_admin.quotas_percent = settings.rollout.quota
        self.metrics.show_rollout(settings.rollout)
        self.metrics.show_certificates(certificate_locations(settings))
        self.log_as(settings)
        self.adopt(
            AdoptConfig(
                settings.model_dump_json(by_alias=True).encode(),
                origin,
                settings.shutdown_delay,
                settings.drain_timeout,
            )
        )
