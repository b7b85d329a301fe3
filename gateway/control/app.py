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

from gateway.channel import Answer, Ask, Brokers, Groups, Storage, Topics
from gateway.config import Settings
from gateway.control.access.making import make_gate, make_tls
from gateway.control.admin.application import make_application
from gateway.control.admin.rest.context import Gateway
from gateway.control.admin.when_asked import WhenAsked
from gateway.control.admission import Admission
from gateway.control.cluster.broker_quotas import BrokerQuotas
from gateway.control.cluster.brokers_time import BrokersTime
from gateway.control.cluster.cluster import Cluster
from gateway.control.cluster.listeners import Listeners
from gateway.control.cluster.metadata import AdminSource
from gateway.control.components.parts import SOURCE, Parts, Unusable, make_store
from gateway.control.components.protection import Protection
from gateway.control.components.spooling import Spooling
from gateway.control.condition import Condition
from gateway.control.fleet.exchange.exchange import DROPPED, Exchange, FleetParty
from gateway.control.fleet.shares import FleetControl
from gateway.control.http_server import Application, serve
from gateway.control.internal_errors import InternalErrors
from gateway.control.lifecycle.reload import Reloader
from gateway.control.lifecycle.takeover import Takeover
from gateway.control.metrics import Metrics, places_of
from gateway.control.policies.kafka_admin import KafkaAdmin
from gateway.control.policies.quota_source import QuotaFeed
from gateway.control.policies.service import PolicyService
from gateway.control.policies.store import StoreError
from gateway.control.storage.forecast import Around
from gateway.control.storage.override import find_hand
from gateway.control.usage.recent import Recent
from gateway.control.usage.timeline import Timeline
from gateway.control.usage.usage_log import UsageLog
from gateway.control.workers.acceptor import Acceptor, proxies_of
from gateway.control.workers.intake import Intake
from gateway.control.workers.orders import Orders
from gateway.control.workers.workers import Workers
from gateway.listener_names import bootstrap_socket
from gateway.secret_key import ROLLOUT, derive_key, obtain_secret
from gateway.supervisor import ParentLink
from policies.definitions.policy_set import PolicySet
from policies.explain import FleetUse
from policies.fleet.keys import FleetKey, Unit, group_key

if TYPE_CHECKING:
    from gateway.control.sasl.authentication import Authenticator

log = logging.getLogger("gateway.control")

POLICIES_S: Final = 5.0  # the first connections wait so long for policies that were changed at run time


async def run(link: ParentLink, configure: Callable[[Settings], None] = lambda settings: None) -> None:
    """Be the control process until the parent says stop or is gone (ParentGone). `configure`: called first, with the
    configuration, and with each that takes its place.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await link.started.wait()
        settings = Settings.model_validate_json(link.settings)
        configure(settings)
        parts = Parts(settings)
        try:
            await parts.make(patient=link.was_up)
            control = _Control(settings, link, parts, configure)
        except (Unusable, StoreError) as error:
            await link.give_up(str(error))
        else:
            await control.run()
        nursery.cancel_scope.cancel()


def _make_exchange(settings: Settings, client: Mapping[str, Any], party: FleetParty) -> Exchange:
    return Exchange(
        client,
        settings.usage_topic,
        settings.gateway,
        party,
        cycle_s=settings.usage_interval,
        every=settings.resource_usage_report_every,
    )


def _make_authenticators(settings: Settings, secret: bytes, errors: InternalErrors) -> dict[str, Authenticator]:
    """Those of the listeners at which SASL ends."""
    if not any(map(settings.authentication_of, settings.all_listeners)):
        return {}
    # Here, since it brings PyJWT and cryptography along, which no other gateway's start has to wait for.
    from gateway.control.sasl.authentication import make_authenticators  # noqa: PLC0415

    return make_authenticators(settings, secret, errors)


def _make_api(gateway: Gateway) -> Application:
    from gateway.control.admin.rest.api import make_api  # noqa: PLC0415 - when it is asked for

    return make_api(gateway)


def _make_console(application: Application) -> Application:
    from gateway.control.admin.console.site import make_console  # noqa: PLC0415 - likewise

    return make_console(application)


class _Control:
    def __init__(
        self, settings: Settings, link: ParentLink, parts: Parts, configure: Callable[[Settings], None]
    ) -> None:
        self._settings = settings
        self._link = link
        self._parts = parts
        self._restarted = link.was_up  # clients are at work, and workers hold what an earlier control told them
        self._metrics = Metrics(settings.limits.max_client_metrics, settings.limits.max_topic_metrics)
        errors = self._errors = InternalErrors(self._metrics.count_internal_error)
        self._usage_log = UsageLog(None, settings.gateway, self._metrics)
        self._spooling = Spooling(settings, parts, self._usage_log, self._metrics)
        self._recent, self._timeline = Recent(), Timeline()
        client, limits = settings.client_properties, settings.limits
        secret = obtain_secret(settings)
        self._fleet = FleetControl(
            self._metrics.show_fleet(DROPPED),
            exchange=functools.partial(_make_exchange, settings, client) if settings.exchanges else None,
            cycle_s=settings.usage_interval,
            patient=self._restarted,
            traffic=lambda: self._recent.traffic(time.time_ns() // 1_000_000),
        )
        store = make_store(settings, client, patient=self._restarted)
        now = BrokersTime(None if self._fleet.exchange is None else self._fleet.exchange.brokers_time)
        self._broker_quotas = BrokerQuotas.of_cluster(settings.upstream.bootstrap_servers, settings.upstream.properties)
        self._policies = PolicyService(
            store,
            self._metrics,
            self._tell_policies,
            lambda: self._cluster.places,
            self._refresh_places,
            self._broker_quotas.look,
            now.now,
            lambda: now.is_sure,
            lambda topics: self._source.identify(topics),  # noqa: PLW0108  (it is made later)
        )
        self._door = KafkaAdmin(self._policies, settings.rollout.quota, errors)
        self._authenticators = _make_authenticators(settings, secret, errors)
        self._intake = Intake(self._usage_log, self._metrics, self._recent, self._timeline)
        self._workers = Workers(
            self._intake,
            self._metrics,
            self._fleet,
            self._want_metadata,
            link.reconnect,
            self._adopt,
            self._answer,
            Admission(limits.max_connections, limits.connections_per_address),
            errors,
        )
        self._orders = Orders(
            settings,
            self._workers,
            self._fleet,
            lambda: self._restarted and not self._policies.loaded.is_set(),
            self._metrics.produced.expect,
            derive_key(secret, ROLLOUT),
        )
        self._protection = Protection(
            settings,
            parts,
            self._metrics,
            lambda: self._policies.policies,
            self._workers.tell,
            lambda: self._cluster.replicas,
            Around(
                lambda: self._recent.writers(time.time_ns() // 1_000_000),
                lambda: self._cluster.spread,
                self._usage_log.note,
            ),
            lambda: find_hand(self._policies.policies, self._policies.history, round(now.now() * 1000)),
            self._policies.loaded.is_set,
            restarted=self._restarted,
        )
        self._acceptor = Acceptor(self._workers, self._metrics, proxies_of(settings), errors)
        self._source = AdminSource(
            client,
            settings.own_topics,
            topic_ids=settings.internal_topics == "kafka",
            replicas=settings.storage is not None and settings.storage.scope == "affected",
            spread=settings.storage is not None and not settings.storage.off,
            watched=lambda: self._policies.watched,
        )
        self._cluster = Cluster(
            self._source,
            settings.upstream.addresses(),
            Listeners(settings.all_listeners, listen=link.listen, unlisten=link.unlisten, accept=self._acceptor.run),
            settings.upstream.metadata_refresh,
            self._metrics,
            tell=self._tell_cluster,
            moved=self._policies.look,
            relocated=self._protection.look,
            looked=self._policies.see_topics,
        )
        self._condition = Condition(
            self._orders,
            parts,
            self._workers,
            self._cluster,
            self._policies,
            self._spooling,
            self._fleet,
            link.leaving.is_set,
            was_complete=self._restarted,
        )
        takeover = Takeover(
            self._orders,
            self._workers,
            self._cluster,
            self._acceptor,
            self._protection,
            self._door,
            self._metrics,
            lambda: self._policies.policies,
            configure,
            link.adopt,
        )
        self._reloader = Reloader(link.origin, self._orders, self._policies, self._metrics, takeover)

    async def run(self) -> None:
        settings = self._settings
        self._metrics.show_config(
            settings.gateway, settings.upstream.bootstrap_servers, settings.internal_topics, settings.usage_log.topic
        )
        self._metrics.show_rollout(settings.rollout)
        self._metrics.show_listeners(settings.all_listeners)
        self._metrics.show_certificates(places_of(settings))
        self._tell_policies(self._policies.policies)
        try:
            async with trio.open_nursery() as outer:
                outer.start_soon(self._usage_log.run)
                outer.start_soon(self._spooling.run)
                outer.start_soon(self._follow_channels, outer)
                outer.start_soon(self._condition.show, self._metrics, self._link.report)
                outer.start_soon(self._serve_admin)
                outer.start_soon(self._protection.run)
                outer.start_soon(self._fleet.run)
                if self._fleet.exchange is not None:
                    outer.start_soon(self._fleet.exchange.run)
                outer.start_soon(self._policies.run)
                outer.start_soon(self._tell_loaded)
                outer.start_soon(self._door.run)
                outer.start_soon(self._reloader.run, lambda: self._link.reload)
                for authenticator in set(self._authenticators.values()):
                    outer.start_soon(authenticator.run)
                if SOURCE in self._parts:
                    outer.start_soon(self._feed_thresholds)
                async with trio.open_nursery() as inner:
                    inner.start_soon(self._open, inner)
                    await self._link.stopping.wait()
                    inner.cancel_scope.cancel()
                await self._finish(self._link.drain_timeout_s)
                outer.cancel_scope.cancel()
        finally:
            self._spooling.close()

    async def _feed_thresholds(self) -> None:
        """Keep thresholds in step with a source of the operator's own."""
        source = await self._parts.obtain(SOURCE)
        await QuotaFeed(source, self._settings.thresholds.interval, self._rebase).run()

    async def _open(self, inner: trio.Nursery) -> None:
        """Brokers' sockets of an earlier control at once; the listeners' own when there is something to say."""
        await self._cluster.adopt(inner, list(self._link.inherited))
        inner.start_soon(self._cluster.run, inner)
        if not self._restarted:
            await self._cluster.asked.wait()
        with trio.move_on_after(POLICIES_S):  # before, only the file's would hold
            await self._policies.loaded.wait()
            if self._fleet.has_limits:  # before, all of each limit would be this gateway's
                await self._fleet.reach.known.wait()
        for name, listener in self._settings.all_listeners.items():
            sock = await self._link.listen(bootstrap_socket(name), listener.host, listener.port)
            inner.start_soon(self._acceptor.run, name, None, sock)
        self._condition.is_open = True
        self._link.note_up()

    async def _finish(self, timeout_s: float) -> None:
        """Workers first, then their reports to disk, then to the topic, all within the time."""
        deadline = trio.current_time() + timeout_s
        with trio.move_on_at(deadline - 0.1 * timeout_s):
            self._workers.drain(0.8 * timeout_s)
            await self._workers.ended()
        self._intake.end()
        with trio.move_on_at(deadline):
            await self._spooling.finish(is_reached=self._cluster.answers)
        self._spooling.stop()

    async def _rebase(self, total: float | None, topics: dict[str, float]) -> None:
        """The operator's own source stands in the place of the file's thresholds."""
        self._orders.settings.base_with(total, topics)  # only what can be is heeded
        self._orders.heed(total, topics)
        settings = None
        while settings is not self._orders.settings:  # else another configuration came in between
            settings = self._orders.settings
            await self._policies.rebase(self._orders.base(settings))

    async def _tell_loaded(self) -> None:
        await self._policies.loaded.wait()
        self._tell_policies(self._policies.policies)

    def _tell_policies(self, policies: PolicySet) -> None:
        self._orders.tell(policies)
        self._protection.heed()

    def _tell_cluster(self, message: Brokers | Topics) -> None:
        if isinstance(message, Topics):
            self._metrics.know_topics({*itertools.chain.from_iterable(message.leads.values()), *message.ids.values()})
        self._workers.tell(message)

    def _adopt(self, held: Storage | None) -> None:
        self._protection.adopt(held)

    def _answer(self, question: Ask, reply: Callable[[Answer], None]) -> None:
        if question.mechanism or not question.request:
            authenticator = self._authenticators.get(question.listener)
            if authenticator is not None:
                authenticator.take(question, reply)
        else:
            self._door.take(question, reply)

    def _want_metadata(self) -> None:
        self._cluster.want()

    async def _refresh_places(self) -> None:
        await self._cluster.refresh()

    async def _follow_channels(self, outer: trio.Nursery) -> None:
        restarts: dict[int, int] = {}
        while True:
            message, sock = await self._link.next_channel()
            new = message.restarts - restarts.get(message.worker, message.restarts)
            restarts[message.worker] = message.restarts
            self._metrics.show_worker(message.worker)
            self._metrics.worker_restarts.labels(str(message.worker)).inc(new)
            outer.start_soon(self._workers.serve, message.worker, sock)

    async def _serve_admin(self) -> None:
        sock = await self._link.listen("admin", self._settings.admin.host, self._settings.admin.port)
        views = {"/v1/storage": self._protection.status}
        names = self._settings.admin.names
        source = self._settings.thresholds.source
        gateway = Gateway(
            self._policies,
            self._recent,
            self._workers.latest,
            base=f"source {source}" if source else "file",
            places=lambda: self._cluster.places,
            fleet=self._fleet.uses,
            brought=self._fleet.brought,
            elsewhere=lambda: self._fleet.rates.peers,
            others=self._fleet.others_traffic,
            broker_quotas=self._broker_quotas,
            standing=lambda: self._condition.standing()._replace(config=self._reloader.state),
            reload=self._reloader.reload,
            peers=self._condition.peers,
            connections=self._workers.inquiries.ask,
            timeline=self._timeline,
            storage=self._protection.status,
        )
        application = make_application(
            self._metrics_text,
            self._condition.problems,
            views,
            WhenAsked(functools.partial(_make_api, gateway)),
            find_lacking=self._condition.lacking,
            hosts=names,
            gate=make_gate(self._settings.admin, self._metrics.admin_refused),
            console=lambda everything: WhenAsked(functools.partial(_make_console, everything)),
        )
        tls = make_tls(self._settings.admin, self._metrics.admin_refused)
        await serve(sock, application, tls, self._metrics.admin_connection_refused, self._errors)

    def _metrics_text(self) -> Iterator[bytes]:
        """In a thread."""
        self._metrics.show_groups(*trio.from_thread.run_sync(self._see_groups))
        yield from self._metrics.text()

    def _see_groups(self) -> tuple[Groups | None, Mapping[FleetKey, FleetUse]]:
        shown = self._metrics.shown_groups()
        keys = [group_key(group, direction, unit) for group, direction in shown for unit in get_args(Unit)]
        return self._workers.latest(Groups), self._fleet.uses(keys)
