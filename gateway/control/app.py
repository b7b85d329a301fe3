# The control process' composition root: builds everything else in this folder, nests the nurseries, starts, accepts,
# drains. All that may take its time is here, so that it never holds up the data path.
#
# Two nurseries: acceptors and metadata in the inner one, which ends first; workers' channels,
# usage log and admin server in the outer one, which goes on until the workers have said their last.

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final, get_args

import trio

from gateway.channel import GroupSnapshot
from gateway.config import Settings
from gateway.control.access.making import make_admin_tls, make_gate
from gateway.control.admin.application import AdminApplication
from gateway.control.admin.lazy_application import LazyApplication
from gateway.control.admin.rest.context import GatewayContext
from gateway.control.cluster.brokers_time import BrokersTime
from gateway.control.cluster.cluster import ClusterMonitor
from gateway.control.cluster.listeners import BrokerListeners
from gateway.control.components.optional_components import SOURCE, ComponentUnusable, OptionalComponents
from gateway.control.components.usage_pipeline import UsagePipeline, make_chain
from gateway.control.context import ControlContext
from gateway.control.facts import ControlFacts, Published
from gateway.control.fleet.exchange.exchange import DROP_REASONS
from gateway.control.fleet.shares import FleetControl
from gateway.control.gateway_health import GatewayHealth
from gateway.control.http_server import Application, serve_http
from gateway.control.internal_errors import InternalErrors
from gateway.control.lifecycle.reload import ConfigReloader
from gateway.control.metrics import GatewayMetrics
from gateway.control.outside import Outside
from gateway.control.policies.kafka_admin.admin_service import KafkaAdmin
from gateway.control.policies.policy_base import PolicyBase, find_kept_thresholds
from gateway.control.policies.quota_source import ThresholdFeed
from gateway.control.policies.service import PolicyService, watched_topics
from gateway.control.policies.store import StoreError
from gateway.control.query_tasks import QueryRouter
from gateway.control.storage.context import StorageContext
from gateway.control.storage.override import find_override
from gateway.control.storage.service import StorageService
from gateway.control.usage.recent import RecentTraffic
from gateway.control.usage.timeline import TrafficTimeline
from gateway.control.usage.usage_log import UsageLogWriter
from gateway.control.workers.acceptor import ConnectionAcceptor
from gateway.control.workers.effects import expect_effects
from gateway.control.workers.interval_receiver import IntervalReceiver
from gateway.control.workers.snapshot_publisher import SnapshotPublisher
from gateway.control.workers.workers import WorkerPool
from gateway.listener_names import bootstrap_socket_name
from gateway.parent_link import ListenFailed, ParentLink
from gateway.secret_key import ROLLOUT_PURPOSE, derive_key
from policies.fleet.keys import FleetKey, LimitUnit, group_key
from policies.limits.description import FleetUse

if TYPE_CHECKING:
    from gateway.control.sasl.authentication import SaslAuthenticator

log = logging.getLogger("gateway.control")

REAL_OUTSIDE: Final = Outside()
POLICIES_WAIT_S: Final = 5.0  # the first connections wait so long for policies that were changed at run time


async def run(
    link: ParentLink, configure: Callable[[Settings], None] = lambda settings: None, outside: Outside = REAL_OUTSIDE
) -> None:
    """Run the control process until the parent stops it or is gone (ParentGone). `configure`: called first with the
    configuration, and with each one that replaces it. `outside`: what it reaches but for the parent.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await link.started.wait()
        settings = Settings.model_validate_json(link.settings)
        configure(settings)
        components = outside.make_components(settings)
        try:
            await components.make_all(patient=link.kept.was_up)
            control = _ControlProcess(settings, link, components, configure, outside)
        except (ComponentUnusable, StoreError) as error:
            await link.give_up(str(error))
        else:
            await control.run()
        nursery.cancel_scope.cancel()


def _make_authenticators(settings: Settings, secret: bytes, errors: InternalErrors) -> dict[str, SaslAuthenticator]:
    """Authenticators of the listeners at which SASL ends."""
    if not any(map(settings.authentication_of, settings.all_listeners)):
        return {}
    # Here, since it brings PyJWT and cryptography along, which no other gateway's start has to wait for.
    from gateway.control.sasl.authentication import make_authenticators  # noqa: PLC0415

    return make_authenticators(settings, secret, errors)


def _make_storage_context(
    context: ControlContext, policies: PolicyService, recent: RecentTraffic, usage_log: UsageLogWriter
) -> StorageContext:
    return StorageContext(
        context,
        find_override=lambda: find_override(policies.policies, policies.history, policies.now_ms()),
        knows_overrides=policies.loaded.is_set,
        rates=lambda: recent.writer_rates(context.now_ms()),
        record_disks=usage_log.record_disks,
    )


def _make_api(gateway: GatewayContext) -> Application:
    from gateway.control.admin.rest.api import make_api  # noqa: PLC0415 - when it is asked for

    return make_api(gateway)


def _make_console(application: Application) -> Application:
    from gateway.control.admin.console.site import make_console  # noqa: PLC0415 - likewise

    return make_console(application)


class _ControlProcess:
    """What control consists of. Each part is made of those before it; what it has to learn from a later one comes as a
    fact (`_subscribe`).
    """

    def __init__(
        self,
        settings: Settings,
        link: ParentLink,
        components: OptionalComponents,
        configure: Callable[[Settings], None],
        outside: Outside = REAL_OUTSIDE,
    ) -> None:
        metrics = GatewayMetrics(settings.limits.max_client_metrics, settings.limits.max_topic_metrics)
        errors = InternalErrors(metrics.count_internal_error)
        self._facts = facts = ControlFacts(Published(settings))
        self._context = context = ControlContext(
            link, facts, metrics, errors, link.kept.was_up, outside.unix_time, outside.monotonic
        )
        self._components = components
        secret = outside.obtain_secret(settings)

        self._usage_log = UsageLogWriter(None, settings.gateway_name, metrics, make_chain(settings.usage_log))
        self._usage_pipeline = UsagePipeline(context, components, self._usage_log)
        self._recent, self._timeline = RecentTraffic(), TrafficTimeline()
        self._interval_receiver = IntervalReceiver(context, self._usage_log, self._recent, self._timeline)

        self._fleet = FleetControl(
            context,
            metrics.create_fleet_series(DROP_REASONS),
            exchange=functools.partial(outside.make_exchange, settings) if settings.exchanges_usage else None,
            traffic=lambda: self._recent.gateway_traffic(context.now_ms()),
        )
        exchange = self._fleet.exchange
        clock = BrokersTime(None if exchange is None else exchange.broker_unix_time, context.unix_time)
        cluster_source = outside.make_cluster_source(settings, lambda: watched_topics(facts.policies.latest))
        self._broker_quotas = outside.make_broker_quotas(settings)
        store = outside.make_policy_store(settings, patient=context.was_up)
        thresholds = find_kept_thresholds(context)
        if thresholds is not None:
            store.replace_base(settings.policy_values_with(*thresholds))
        self._policies = PolicyService(context, store, clock, cluster_source, self._broker_quotas)
        self._policy_base = PolicyBase(context, self._policies, thresholds)

        storage_context = _make_storage_context(context, self._policies, self._recent, self._usage_log)
        self._storage_service = StorageService(storage_context, components)

        self._kafka_admin = KafkaAdmin(context, self._policies)
        self._authenticators = _make_authenticators(settings, secret, errors)
        queries = QueryRouter(self._kafka_admin, self._authenticators)
        self._workers = WorkerPool(context, self._interval_receiver, self._fleet, self._storage_service, queries)
        self._snapshots = SnapshotPublisher(
            context, self._workers, self._policies.loaded, derive_key(secret, ROLLOUT_PURPOSE)
        )
        self._acceptor = ConnectionAcceptor(context, self._workers)
        self._cluster = ClusterMonitor(context, cluster_source, BrokerListeners(context, self._acceptor))

        self._reloader = ConfigReloader(context, self._policies, self._policy_base, self._workers)
        sources = components, self._usage_pipeline, self._policies, self._cluster, self._fleet
        self._health = GatewayHealth(context, self._workers, self._cluster, self._fleet, sources)
        self._subscribe(configure)

    def _subscribe(self, configure: Callable[[Settings], None]) -> None:
        """Who follows which fact. Followers learn of a change in this order, one after the other."""
        configuration, policies = self._facts.configuration, self._facts.policies
        cluster, storage_factor = self._facts.cluster, self._facts.storage_factor
        metrics, snapshots, storage = self._context.metrics, self._snapshots, self._storage_service
        usage_log = self._usage_log

        # Within one message to each worker (ConfigReloader), with the policies behind it.
        configuration.subscribe("addresses of brokers", self._cluster.apply_settings)
        configuration.subscribe("storage", lambda _: storage.refresh())
        configuration.subscribe("workers", snapshots.publish_settings)
        configuration.subscribe("acceptor", self._acceptor.apply_settings)
        configuration.subscribe("admission", self._workers.apply_settings)
        configuration.subscribe("Kafka's admin requests", self._kafka_admin.apply_settings)
        configuration.subscribe("metrics", metrics.apply_settings)
        configuration.subscribe("log", configure)

        policies.subscribe("workers", snapshots.publish_policies)
        policies.subscribe("fleet", self._fleet.set_policies)
        policies.subscribe("effects in metrics", functools.partial(expect_effects, self._context))
        policies.subscribe("storage", lambda _: storage.refresh())

        # A topic's name is a label before workers can report its bytes.
        cluster.subscribe("metrics", metrics.on_cluster_topics, part=attrgetter("topics"))
        cluster.subscribe("workers", snapshots.publish_cluster)
        cluster.subscribe("storage", lambda _: storage.refresh(), part=attrgetter("replicas"))
        cluster.subscribe("policies", self._policies.on_places_changed, part=attrgetter("places"))
        cluster.subscribe("usage log", lambda state: usage_log.record_cluster(state.cluster_id))
        cluster.subscribe("ids of topics", self._policies.on_cluster_answer, part=attrgetter("answers"))

        storage_factor.subscribe("workers", snapshots.publish_storage_factor)

    async def run(self) -> None:
        link, settings = self._context.link, self._context.settings
        self._context.metrics.show_configuration(settings)
        self._facts.configuration.publish(settings)
        self._facts.policies.publish(self._facts.policies.latest)
        try:
            async with trio.open_nursery() as outer:
                outer.start_soon(self._usage_log.run)
                outer.start_soon(self._usage_pipeline.run)
                outer.start_soon(self._follow_channels, outer)
                outer.start_soon(self._health.run_reporting)
                outer.start_soon(self._serve_admin)
                outer.start_soon(self._storage_service.run)
                outer.start_soon(self._fleet.run)
                if self._fleet.exchange is not None:
                    outer.start_soon(self._fleet.exchange.run)
                outer.start_soon(self._policies.run)
                outer.start_soon(self._kafka_admin.run)
                outer.start_soon(self._reloader.run)
                for authenticator in set(self._authenticators.values()):
                    outer.start_soon(authenticator.run)
                if SOURCE in self._components:
                    outer.start_soon(self._feed_thresholds)
                async with trio.open_nursery() as inner:
                    inner.start_soon(self._open_listeners, inner)
                    await link.stopping.wait()
                    inner.cancel_scope.cancel()
                await self._drain_and_flush(link.drain_timeout_s)
                outer.cancel_scope.cancel()
        finally:
            self._usage_pipeline.close()

    async def _feed_thresholds(self) -> None:
        """Follow an operator's threshold source, where there is one."""
        source = await self._components.await_component(SOURCE)
        interval = self._context.settings.thresholds.interval
        await ThresholdFeed(source, interval, self._policy_base.use_source_thresholds).run()

    async def _open_listeners(self, inner: trio.Nursery) -> None:
        """Use the brokers' sockets of an earlier control process at once; open the listeners' own once metadata is
        known.
        """
        link = self._context.link
        await self._cluster.adopt_sockets(inner, list(link.inherited))
        inner.start_soon(self._cluster.run, inner)
        if not self._context.was_up:
            await self._cluster.attempted.wait()
        with trio.move_on_after(POLICIES_WAIT_S):  # before, only the file's would hold
            await self._policies.loaded.wait()
            if self._fleet.has_limits:  # before, all of each limit would be this gateway's
                await self._fleet.reach.decided.wait()
        for name, listener in self._context.settings.all_listeners.items():
            sock = await link.listen(bootstrap_socket_name(name), listener.host, listener.port)
            inner.start_soon(self._acceptor.run, name, None, sock)
        self._health.is_open = True
        link.keep(was_up=True)

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

    async def _follow_channels(self, outer: trio.Nursery) -> None:
        metrics, restarts = self._context.metrics, dict[int, int]()
        while True:
            message, sock = await self._context.link.next_channel()
            new = message.restarts - restarts.get(message.worker, message.restarts)
            restarts[message.worker] = message.restarts
            metrics.create_worker_series(message.worker)
            metrics.worker_restarts.labels(str(message.worker)).inc(new)
            outer.start_soon(self._workers.serve_worker, message.worker, sock)

    async def _serve_admin(self) -> None:
        context, settings, metrics = self._context, self._context.settings, self._context.metrics
        try:
            sock = await context.link.listen("admin", settings.admin.host, settings.admin.port)
        except ListenFailed:
            if context.link.stopping.is_set():  # this control was started during a stop, for what workers report last
                return
            raise
        views = {"/v1/storage": self._storage_service.status}
        gateway = GatewayContext(
            self._policies,
            self._recent,
            self._workers.latest_snapshot,
            base_origin=self._policy_base.origin_of,
            places=lambda: self._facts.cluster.latest.places,
            fleet_uses=self._fleet.find_uses,
            peer_rates=self._fleet.find_peer_rates,
            peer_broker_rates=lambda: self._fleet.rates.peers,
            peer_traffic=self._fleet.peer_traffic,
            broker_quotas=self._broker_quotas,
            other_names=lambda: self._policies.other_names,
            health_status=self._health.health_status,
            config_status=lambda: self._reloader.state,
            reload_config=self._reloader.reload_config,
            fleet_status=self._health.fleet_status,
            find_connections=self._workers.inquiries.find_connections,
            timeline=self._timeline,
            storage_status=self._storage_service.status,
        )
        application = AdminApplication(
            self._render_metrics,
            self._health.find_problems,
            views,
            LazyApplication(functools.partial(_make_api, gateway)),
            find_lacking=self._health.find_lacking,
            hosts=settings.admin.host_names,
            gate=make_gate(settings.admin, metrics.count_admin_refusal),
            make_console=lambda everything: LazyApplication(functools.partial(_make_console, everything)),
        )
        tls = make_admin_tls(settings.admin, metrics.count_admin_refusal)
        await serve_http(sock, application, tls, metrics.count_admin_drop, context.errors)

    def _render_metrics(self) -> Iterator[bytes]:
        """Runs in a thread."""
        metrics = self._context.metrics
        metrics.show_groups(*trio.from_thread.run_sync(self._find_group_uses))
        yield from metrics.render_text()

    def _find_group_uses(self) -> tuple[GroupSnapshot | None, Mapping[FleetKey, FleetUse]]:
        shown = self._context.metrics.shown_groups()
        keys = [group_key(group, direction, unit) for group, direction in shown for unit in get_args(LimitUnit)]
        return self._workers.latest_snapshot(GroupSnapshot), self._fleet.find_uses(keys)
