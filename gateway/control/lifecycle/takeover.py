# Makes another configuration hold in all parts of control at once, and in each worker at once: nothing in here waits.
# Which keys may be others than before is gateway/config/changes.py's; each of those has to have its effect from here.

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.config import Settings
from gateway.control.cluster.cluster import Cluster
from gateway.control.components.protection import Protection
from gateway.control.metrics import Metrics, places_of
from gateway.control.policies.kafka_admin import KafkaAdmin
from gateway.control.workers.acceptor import Acceptor, proxies_of
from gateway.control.workers.orders import Orders
from gateway.control.workers.workers import Workers
from gateway.supervisor import Adopt, Origin
from policies.definitions.policy_set import PolicySet


@dataclass(frozen=True)
class Takeover:
    """`policies`: those in force; `log_as`: logs as it says; `adopt`: the parent keeps it for the next control."""

    orders: Orders
    workers: Workers
    cluster: Cluster
    acceptor: Acceptor
    protection: Protection
    door: KafkaAdmin
    metrics: Metrics
    policies: Callable[[], PolicySet]
    log_as: Callable[[Settings], None]
    adopt: Callable[[Adopt], None]

    @contextmanager
    def __call__(self, settings: Settings, origin: Origin) -> Iterator[None]:
        """The configuration holds with the policies that are told within."""
        limits = settings.limits
        with self.workers.together():
            self.orders.settings = settings
            self.cluster.configure(settings.all_listeners, settings.upstream.metadata_refresh)
            self.protection.configure(settings)
            yield
            self.orders.tell(self.policies())  # nothing, where what was told within has it all
        self.acceptor.proxies = proxies_of(settings)
        self.workers.admission.set_limits(limits.max_connections, limits.connections_per_address)
        self.door.quotas_percent = settings.rollout.quota
        self.metrics.show_rollout(settings.rollout)
        self.metrics.show_certificates(places_of(settings))
        self.log_as(settings)
        self.adopt(
            Adopt(
                settings.model_dump_json(by_alias=True).encode(),
                origin,
                settings.shutdown_delay,
                settings.drain_timeout,
            )
        )
