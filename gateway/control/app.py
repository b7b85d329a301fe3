# The control process' composition root: builds everything else in this folder, nests the nurseries, starts, accepts,
# drains. All that may take its time is here, so that it never holds up the data path.
#
# Two nurseries: acceptors and metadata in the inner one, which ends first; workers' channels,
# usage log and admin server in the outer one, which goes on until the workers have said their last.

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, get_args

import trio

from gateway.channel import AdminAnswer, AdminQuery, BrokerTable, GroupSnapshot, StorageSnapshot, TopicSnapshot
from gateway.config import Settings
from gateway.control.access.making import make_admin_tls, make_gate
from gateway.control.admin.application import make_application
from gateway.control.admin.lazy_application import LazyApplication
from gateway.control.admin.rest.context import GatewayContext
from gateway.control.admission import ConnectionAdmission
from gateway.control.cluster.broker_quotas import BrokerQuotas
from gateway.control.cluster.brokers_time import BrokersTime
from gateway.control.cluster.cluster import ClusterMonitor
from gateway.control.cluster.listeners import BrokerListeners
from gateway.control.cluster.metadata import AdminSource
from gateway.control.components.optional_components import (
    SOURCE,
    ComponentUnusable,
    OptionalComponents,
    make_policy_store,
)
from gateway.control.components.usage_pipeline import UsagePipeline
from gateway.control.fleet.exchange.exchange import DROP_REASONS, FleetParty, UsageExchange
from gateway.control.fleet.shares import FleetControl
from gateway.control.gateway_health import GatewayHealth
from gateway.control.http_server import Application, serve_http
from gateway.control.internal_errors import InternalErrors
from gateway.control.lifecycle.config_switch import ConfigSwitch
from gateway.control.lifecycle.reload import ConfigReloader
from gateway.control.metrics import GatewayMetrics, certificate_locations
from gateway.control.policies.kafka_admin.admin_service import KafkaAdmin
from gateway.control.policies.quota_source import ThresholdFeed
from gateway.control.policies.service import PolicyService
from gateway.control.policies.store import StoreError
from gateway.control.storage.context import StorageContext
from gateway.control.storage.override import find_override
from gateway.control.storage.service import StorageService
from gateway.control.usage.recent import RecentTraffic
from gateway.control.usage.timeline import TrafficTimeline
from gateway.control.usage.usage_log import UsageLogWriter
from gateway.control.workers.acceptor import ConnectionAcceptor, proxy_networks
from gateway.control.workers.interval_receiver import IntervalReceiver
from gateway.control.workers.snapshot_publisher import SnapshotPublisher
from gateway.control.workers.workers import WorkerPool
from gateway.listener_names import bootstrap_socket_name
from gateway.secret_key import ROLLOUT_PURPOSE, derive_key, obtain_secret
from gateway.supervisor import ParentLink
from policies.definitions.policy_set import PolicySet
from policies.fleet.keys import FleetKey, LimitUnit, group_key
from policies.limits.description import FleetUse

if TYPE_CHECKING:
    from gateway.control.sasl.authentication import SaslAuthenticator

log = logging.getLogger("gateway.control")

POLICIES_WAIT_S: Final = 5.0  # the first connections wait so long for policies that were changed at run time


async def run(link: ParentLink, configure: Callable[[Settings], None] = lambda settings: None) -> None:
    """Run the control process until the parent stops it or is gone (ParentGone). `configure`: called first with the
    configuration, and with each one that replaces it.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await link.started.wait()
        settings = Settings.model_validate_json(link.settings)
        configure(settings)
        parts = OptionalComponents(settings)
        try:
            await parts.make_all(patient=link.was_up)
            control = _ControlProcess(settings, link, parts, configure)
        except (ComponentUnusable, StoreError) as error:
            await link.give_up(str(error))
        else:
            await control.run()
        nursery.cancel_scope.cancel()


def _make_exchange(settings: Settings, client: Mapping[str, Any], party: FleetParty) -> UsageExchange:
    return UsageExchange(
        client,
        settings.usage_topic,
        settings.gateway_name,
        party,
        cycle_s=settings.usage_interval,
        every=settings.resource_usage_report_every,
    )


def _make_authenticators(settings: Settings, secret: bytes, errors: InternalErrors) -> dict[str, SaslAuthenticator]:
    """Authenticators of the listeners at which SASL ends."""
    if not any(map(settings.authentication_of, settings.all_listeners)):
        return {}
    # Here, since it brings PyJWT and cryptography along, which no other gateway's start has to wait for.
    from gateway.control.sasl.authentication import make_authenticators  # noqa: PLC0415

    return make_authenticators(settings, secret, errors)


def _make_api(gateway: GatewayContext) -> Application:
    from gateway.control.admin.rest.api import make_api  # noqa: PLC0415 - when it is asked for

    return make_api(gateway)


def _make_console(application: Application) -> Application:
    from gateway.control.admin.console.site import make_console  # noqa: PLC0415 - likewise

    return make_console(application)


class _ControlProcess:
    def __init__(
        self, settings: Settings, link: ParentLink, parts: OptionalComponents, configure: Callable[[Settings], None]
    ) -> None:
        self._settings = settings
        self._link = link
        self._components = parts
        self._restarted = link.was_up  # clients are at work, and workers have snapshots from an earlier control
        self._metrics = GatewayMetrics(settings.limits.max_client_metrics, settings.limits.max_topic_metrics)
        errors = self._errors = InternalErrors(self._metrics.count_internal_error)
        self._usage_log = UsageLogWriter(None, settings.gateway_name, self._metrics)
        self._usage_pipeline = UsagePipeline(settings, parts, self._usage_log, self._metrics)
        self._recent, self._timeline = RecentTraffic(), TrafficTimeline()
        client, limits = settings.client_properties, settings.limits
        secret = obtain_secret(settings)
        self._fleet = FleetControl(
            self._metrics.create_fleet_series(DROP_REASONS),
            exchange=functools.partial(_make_exchange, settings, client) if settings.exchanges_usage else None,
            cycle_s=settings.usage_interval,
            patient=self._restarted,
            traffic=lambda: self._recent.gateway_traffic(time.time_ns() // 1_000_000),
        )
        store = make_policy_store(settings, client, patient=self._restarted)
        now = BrokersTime(None if self._fleet.exchange is None else self._fleet.exchange.broker_unix_time)
        self._broker_quotas = BrokerQuotas.of_cluster(settings.upstream.bootstrap_servers, settings.upstream.properties)
        self._policies = PolicyService(
            store,
            self._metrics,
            self._publish_policies,
            lambda: self._cluster.places,
            self._refresh_places,
            self._broker_quotas.fetch_quotas,
            now.now,
            lambda: now.is_sure,
            lambda topics: self._source.fetch_topic_ids(topics),  # noqa: PLW0108  (it is made later)
        )
        self._kafka_admin = KafkaAdmin(self._policies, settings.rollout.quota, errors)
        self._authenticators = _make_authenticators(settings, secret, errors)
        self._interval_receiver = IntervalReceiver(self._usage_log, self._metrics, self._recent, self._timeline)
        self._workers = WorkerPool(
            self._interval_receiver,
            self._metrics,
            self._fleet,
            self._request_refresh,
            link.request_reconnect,
            self._adopt_factor,
            self._route_query,
            ConnectionAdmission(limits.max_connections, limits.connections_per_address),
            errors,
        )
        self._snapshot_publisher = SnapshotPublisher(
            settings,
            self._workers,
            self._fleet,
            lambda: self._restarted and not self._policies.loaded.is_set(),
            self._metrics.produced.expect_effects,
            derive_key(secret, ROLLOUT_PURPOSE),
        )
        self._storage_service = StorageService(
            StorageContext(
                settings,
                self._metrics,
                self._workers.publish_snapshot,
                policies=lambda: self._policies.policies,
                find_override=lambda: find_override(
                    self._policies.policies, self._policies.history, round(now.now() * 1000)
                ),
                knows_overrides=self._policies.loaded.is_set,
                replicas=lambda: self._cluster.replicas,
                spread=lambda: self._cluster.spread,
                rates=lambda: self._recent.writer_rates(time.time_ns() // 1_000_000),
                record_disks=self._usage_log.record_disks,
                restarted=self._restarted,
            ),
            parts,
        )
        self._acceptor = ConnectionAcceptor(self._workers, self._metrics, proxy_networks(settings), errors)
        self._source = AdminSource(
            client,
            settings.gateway_topics,
            topic_ids=settings.internal_topics == "kafka",
            replicas=settings.storage is not None and settings.storage.scope == "affected",
            spread=settings.storage is not None and not settings.storage.is_disabled,
            watched=lambda: self._policies.watched_topics,
        )
        self._cluster = ClusterMonitor(
            self._source,
            settings.upstream.addresses(),
            BrokerListeners(
                settings.all_listeners, listen=link.listen, unlisten=link.close_listener, accept=self._acceptor.run
            ),
            settings.upstream.metadata_refresh,
            self._metrics,
            tell=self._publish_cluster,
            moved=self._policies.on_places_changed,
            relocated=self._storage_service.refresh,
            looked=self._policies.on_topic_ids,
        )
        self._health = GatewayHealth(
            self._snapshot_publisher,
            parts,
            self._workers,
            self._cluster,
            self._policies,
            self._usage_pipeline,
            self._fleet,
            link.leaving.is_set,
            was_complete=self._restarted,
        )
        takeover = ConfigSwitch(
            self._snapshot_publisher,
            self._workers,
            self._cluster,
            self._acceptor,
            self._storage_service,
            self._kafka_admin,
            self._metrics,
            lambda: self._policies.policies,
            configure,
            link.adopt_config,
        )
        self._reloader = ConfigReloader(link.origin, self._snapshot_publisher, self._policies, self._metrics, takeover)

    async def run(self) -> None:
        settings = self._settings
        self._metrics.show_config(
            settings.gateway_name,
            settings.upstream.bootstrap_servers,
            settings.internal_topics,
            settings.usage_log.topic,
        )
        self._metrics.show_rollout(settings.rollout)
        self._metrics.create_listener_series(settings.all_listeners)
        self._metrics.show_certificates(certificate_locations(settings))
        self._publish_policies(self._policies.policies)
        try:
            async with trio.open_nursery() as outer:
                outer.start_soon(self._usage_log.run)
                outer.start_soon(self._usage_pipeline.run)
                outer.start_soon(self._follow_channels, outer)
                outer.start_soon(self._health.run_reporting, self._metrics, self._link.report_health)
                outer.start_soon(self._serve_admin)
                outer.start_soon(self._storage_service.run)
                outer.start_soon(self._fleet.run)
                if self._fleet.exchange is not None:
                    outer.start_soon(self._fleet.exchange.run)
                outer.start_soon(self._policies.run)
                outer.start_soon(self._publish_once_loaded)
                outer.start_soon(self._kafka_admin.run)
                outer.start_soon(self._reloader.run, lambda: self._link.reload)
                for authenticator in set(self._authenticators.values()):
                    outer.start_soon(authenticator.run)
                if SOURCE in self._components:
                    outer.start_soon(self._feed_thresholds)
                async with trio.open_nursery() as inner:
                    inner.start_soon(self._open_listeners, inner)
                    await self._link.stopping.wait()
                    inner.cancel_scope.cancel()
                await self._drain_and_flush(self._link.drain_timeout_s)
                outer.cancel_scope.cancel()
        finally:
            self._usage_pipeline.close()

    async def _feed_thresholds(self) -> None:
        """Follow an operator's threshold source, where there is one."""
        source = await self._components.await_component(SOURCE)
        await ThresholdFeed(source, self._settings.thresholds.interval, self._apply_source_thresholds).run()

    async def _open_listeners(self, inner: trio.Nursery) -> None:
        """Use the brokers' sockets of an earlier control process at once; open the listeners' own once metadata is
        known.
        """
        await self._cluster.adopt_sockets(inner, list(self._link.inherited))
        inner.start_soon(self._cluster.run, inner)
        if not self._restarted:
            await self._cluster.attempted.wait()
        with trio.move_on_after(POLICIES_WAIT_S):  # before, only the file's would hold
            await self._policies.loaded.wait()
            if self._fleet.has_limits:  # before, all of each limit would be this gateway's
                await self._fleet.reach.decided.wait()
        for name, listener in self._settings.all_listeners.items():
            sock = await self._link.listen(bootstrap_socket_name(name), listener.host, listener.port)
            inner.start_soon(self._acceptor.run, name, None, sock)
        self._health.is_open = True
        self._link.report_up()

    async def _drain_and_flush(self, timeout_s: float) -> None:
        """Drain the workers, then flush their reports to disk, then to the topic, all within the time limit."""
        deadline = trio.current_time() + timeout_s
        with trio.move_on_at(deadline - 0.1 * timeout_s):
            self._workers.drain(0.8 * timeout_s)
            await self._workers.wait_ended()
        self._interval_receiver.record_lost_workers()
        with trio.move_on_at(deadline):
            await self._usage_pipeline.flush_records(is_reached=self._cluster.is_answering)
        self._usage_pipeline.stop()

    async def _apply_source_thresholds(self, total: float | None, topics: dict[str, float]) -> None:
        """The operator's source replaces the file's thresholds."""
        self._snapshot_publisher.settings.policy_values_with(total, topics)  # only valid values are applied
        self._snapshot_publisher.use_source_thresholds(total, topics)
        settings = None
        while settings is not self._snapshot_publisher.settings:  # else another configuration came in between
            settings = self._snapshot_publisher.settings
            await self._policies.replace_base(self._snapshot_publisher.policy_base(settings))

    async def _publish_once_loaded(self) -> None:
        await self._policies.loaded.wait()
        self._publish_policies(self._policies.policies)

    def _publish_policies(self, policies: PolicySet) -> None:
        self._snapshot_publisher.publish_policies(policies)
        self._storage_service.refresh()

    def _publish_cluster(self, message: BrokerTable | TopicSnapshot) -> None:
        if isinstance(message, TopicSnapshot):
            self._metrics.set_known_topics(
                {*itertools.chain.from_iterable(message.leads.values()), *message.ids.values()}
            )
        self._workers.publish_snapshot(message)

    def _adopt_factor(self, held: StorageSnapshot | None) -> None:
        self._storage_service.adopt_factor(held)

    def _route_query(self, question: AdminQuery, reply: Callable[[AdminAnswer], None]) -> None:
        if question.mechanism or not question.request:
            authenticator = self._authenticators.get(question.listener)
            if authenticator is not None:
                authenticator.submit_query(question, reply)
        else:
            self._kafka_admin.submit_query(question, reply)

    def _request_refresh(self) -> None:
        self._cluster.request_refresh()

    async def _refresh_places(self) -> None:
        await self._cluster.await_refresh()

    async def _follow_channels(self, outer: trio.Nursery) -> None:
        restarts: dict[int, int] = {}
        while True:
            message, sock = await self._link.next_channel()
            new = message.restarts - restarts.get(message.worker, message.restarts)
            restarts[message.worker] = message.restarts
            self._metrics.create_worker_series(message.worker)
            self._metrics.worker_restarts.labels(str(message.worker)).inc(new)
            outer.start_soon(self._workers.serve_worker, message.worker, sock)

    async def _serve_admin(self) -> None:
        sock = await self._link.listen("admin", self._settings.admin.host, self._settings.admin.port)
        views = {"/v1/storage": self._storage_service.status}
        names = self._settings.admin.host_names
        source = self._settings.thresholds.source
        gateway = GatewayContext(
            self._policies,
            self._recent,
            self._workers.latest_snapshot,
            base=f"source {source}" if source else "file",
            places=lambda: self._cluster.places,
            fleet_uses=self._fleet.find_uses,
            peer_rates=self._fleet.find_peer_rates,
            peer_broker_rates=lambda: self._fleet.rates.peers,
            peer_traffic=self._fleet.peer_traffic,
            broker_quotas=self._broker_quotas,
            health_status=lambda: self._health.health_status()._replace(config=self._reloader.state),
            reload_config=self._reloader.reload_config,
            fleet_status=self._health.fleet_status,
            find_connections=self._workers.inquiries.find_connections,
            timeline=self._timeline,
            storage_status=self._storage_service.status,
        )
        application = make_application(
            self._render_metrics,
            self._health.find_problems,
            views,
            LazyApplication(functools.partial(_make_api, gateway)),
            find_lacking=self._health.find_lacking,
            hosts=names,
            gate=make_gate(self._settings.admin, self._metrics.count_admin_refusal),
            console=lambda everything: LazyApplication(functools.partial(_make_console, everything)),
        )
        tls = make_admin_tls(self._settings.admin, self._metrics.count_admin_refusal)
        await serve_http(sock, application, tls, self._metrics.count_admin_drop, self._errors)

    def _render_metrics(self) -> Iterator[bytes]:
        """Runs in a thread."""
        self._metrics.show_groups(*trio.from_thread.run_sync(self._find_group_uses))
        yield from self._metrics.render_text()

    def _find_group_uses(self) -> tuple[GroupSnapshot | None, Mapping[FleetKey, FleetUse]]:
        shown = self._metrics.shown_groups()
        keys = [group_key(group, direction, unit) for group, direction in shown for unit in get_args(LimitUnit)]
        return self._workers.latest_snapshot(GroupSnapshot), self._fleet.find_uses(keys)
