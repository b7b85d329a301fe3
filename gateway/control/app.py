# The control process' composition root: builds everything else in this folder, nests the nurseries, starts, accepts,
# drains. All that may take its time is here, so that it never holds up the data path.
#
# Two nurseries, as Hypercorn has them: acceptors and metadata in the inner one, which ends first; workers' channels,
# usage log and admin server in the outer one, which goes on until the workers have said their last.

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec
import trio

from gateway.channel import Brokers, Groups, Quotas, Storage, Topics
from gateway.config import Settings, limits_production
from gateway.control import admin
from gateway.control.acceptor import Acceptor
from gateway.control.admission import Admission
from gateway.control.cluster import AdminSource, Cluster, DeletedTopics
from gateway.control.fleet import FleetControl
from gateway.control.metrics import Metrics
from gateway.control.parts import SOURCE, SPOOL, STORAGE, Parts, Unusable, make_store
from gateway.control.policies.kafka_admin import KafkaAdmin
from gateway.control.policies.quota_source import QuotaFeed
from gateway.control.policies.service import PolicyService
from gateway.control.policies.store import StoreError
from gateway.control.recent import Recent
from gateway.control.rest import api as rest
from gateway.control.rest.context import Gateway
from gateway.control.rest.rights import Rights
from gateway.control.snapshots import groups_of, quotas_of, thresholds_of, worker_count, worker_settings
from gateway.control.storage import StorageControl, make_status
from gateway.control.usage_log import Publisher, Spool, UsageLog
from gateway.control.workers import Workers
from gateway.fleet.exchange import DROPPED, Exchange, FleetParty
from gateway.supervisor import ParentLink
from policies.explain import FleetUse
from policies.fleet.keys import FleetKey, Unit, group_key
from policies.policy_set import PolicySet
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.control")

PRUNE_S: Final = 60.0
PUBLISH_AT_END_S: Final = 5.0  # the rest stays in the spool, and goes out after the next start
POLICIES_S: Final = 5.0  # the first connections wait so long for policies that were changed at run time
GAUGE_S: Final = 1.0


def client_properties(settings: Settings) -> dict[str, Any]:
    """librdkafka configuration of the gateway's own clients."""
    return {
        **settings.upstream.properties,
        "bootstrap.servers": settings.upstream.bootstrap_servers,
        "client.id": f"produce-gateway-{settings.gateway}",
        "log_level": 2,  # what matters is reported by the calls; librdkafka repeats itself on stderr
    }


async def run(link: ParentLink) -> None:
    """Be the control process until the parent says stop or is gone (ParentGone)."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await link.started.wait()
        settings = Settings.model_validate_json(link.settings)
        parts = Parts(settings)
        try:
            await parts.make(patient=link.was_up)
            control = _Control(settings, link, parts)
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


class _Control:
    def __init__(self, settings: Settings, link: ParentLink, parts: Parts) -> None:
        self._settings = settings
        self._link = link
        self._parts = parts
        self._spool: Spool | None = None
        self._publisher: Publisher | None = None
        self._storage: StorageControl | None = None
        self._heard = False  # a worker, while there was no _storage to ask …
        self._held: Storage | None = None  # … and what factor it holds
        self._metrics = Metrics(settings.limits.max_client_metrics, settings.limits.max_topic_metrics)
        self._usage_log = UsageLog(None, settings.gateway, self._metrics)
        client = client_properties(settings)
        publishes = settings.internal_topics == "kafka"
        self._recent = Recent()
        self._restarted = link.was_up  # clients are at work, and workers hold what an earlier control told them
        self._was_complete = link.was_up
        limits = settings.limits
        self._fleet = FleetControl(
            self._metrics.show_fleet(DROPPED),
            exchange=functools.partial(_make_exchange, settings, client) if settings.exchanges else None,
            cycle_s=settings.usage_interval,
            patient=self._was_complete,
        )
        self._deleted = DeletedTopics()
        store = make_store(settings, client, patient=self._restarted)
        self._policies = PolicyService(store, self._metrics, self._tell_policies, self._deleted)
        self._door = KafkaAdmin(self._policies)
        self._workers = Workers(
            self._usage_log,
            self._metrics,
            self._fleet,
            self._want_metadata,
            link.reconnect,
            self._adopt,
            self._door.take,
            self._recent,
            Admission(limits.max_connections, limits.max_connections_per_address),
        )
        self._acceptor = Acceptor(self._workers, self._metrics)
        self._cluster = Cluster(
            AdminSource(client, settings.own_topics, topic_ids=publishes),
            settings.upstream.addresses(),
            settings.listener,
            settings.upstream.metadata_refresh,
            self._metrics,
            listen=link.listen,
            unlisten=link.unlisten,
            accept=self._acceptor.run,
            tell=self._tell_cluster,
        )
        self._bootstrap_open = False

    async def run(self) -> None:
        settings = self._settings
        self._metrics.show_config(
            settings.gateway, settings.upstream.bootstrap_servers, settings.internal_topics, settings.usage_log.topic
        )
        self._workers.tell(worker_settings(settings))
        self._tell_policies(self._policies.policies)
        try:
            async with trio.open_nursery() as outer:
                outer.start_soon(self._usage_log.run)
                outer.start_soon(self._keep_spool)
                outer.start_soon(self._follow_channels, outer)
                outer.start_soon(self._watch)
                outer.start_soon(self._serve_admin)
                if STORAGE in self._parts:
                    outer.start_soon(self._protect_storage)
                outer.start_soon(self._fleet.run)
                if self._fleet.exchange is not None:
                    outer.start_soon(self._fleet.exchange.run)
                outer.start_soon(self._policies.run)
                outer.start_soon(self._tell_loaded)
                outer.start_soon(self._door.run)
                if SOURCE in self._parts:
                    outer.start_soon(self._feed_thresholds)
                async with trio.open_nursery() as inner:
                    inner.start_soon(self._open, inner)
                    await self._link.stopping.wait()
                    inner.cancel_scope.cancel()
                await self._finish(self._link.drain_timeout_s)
                outer.cancel_scope.cancel()
        finally:
            if self._spool is not None:
                self._spool.close()

    async def _keep_spool(self) -> None:
        self._spool = spool = await self._parts.obtain(SPOOL)
        self._usage_log.open(spool)
        if self._settings.internal_topics == "kafka":
            kept, client = self._settings.usage_log, client_properties(self._settings)
            publisher = Publisher(spool, client, kept.topic, kept.partitions, kept.replication, self._metrics)
            self._publisher = publisher
            await publisher.run(self._usage_log)

    async def _protect_storage(self) -> None:
        """Workers are told the state before the first look at once, so that none is without one."""
        settings = self._settings
        assert settings.storage is not None
        eye = await self._parts.obtain(STORAGE)
        self._storage = StorageControl(
            settings.storage,
            eye,
            self._metrics.show_storage(),
            tell=self._workers.tell,
            observe=settings.mode == "observe",
            has_limits=lambda: limits_production(self._policies.policies.effective()),
            restarted=self._restarted and not self._heard,
            held=self._held,
        )
        await self._storage.run()

    async def _feed_thresholds(self) -> None:
        """Keep thresholds in step with a source of the operator's own."""
        source = await self._parts.obtain(SOURCE)
        await QuotaFeed(source, self._settings.thresholds.interval, self._rebase).run()

    async def _open(self, inner: trio.Nursery) -> None:
        """Listeners of an earlier control at once; the bootstrap listener when there is something to say."""
        await self._cluster.adopt(inner, list(self._link.inherited))
        inner.start_soon(self._cluster.run, inner)
        if not self._restarted:
            await self._cluster.asked.wait()
        with trio.move_on_after(POLICIES_S):  # before, only the file's would hold
            await self._policies.loaded.wait()
            if self._fleet.has_limits:  # before, all of each limit would be this gateway's
                await self._fleet.known.wait()
        listener = self._settings.listener
        sock = await self._link.listen("bootstrap", listener.host, listener.port)
        inner.start_soon(self._acceptor.run, None, sock)
        self._bootstrap_open = True
        self._link.note_up()

    async def _finish(self, timeout_s: float) -> None:
        """Workers first, then what they reported to disk, then to the topic, all within the time."""
        deadline = trio.current_time() + timeout_s
        with trio.move_on_at(deadline - 0.1 * timeout_s):
            self._workers.drain(0.8 * timeout_s)
            await self._workers.ended()
        self._workers.note_unfinished()
        with trio.move_on_at(deadline):
            await self._usage_log.drained()
            if self._publisher is not None and self._cluster.answers:
                with trio.move_on_after(PUBLISH_AT_END_S):
                    await self._publisher.caught_up()
        if self._publisher is not None:
            self._publisher.stop()

    async def _rebase(self, total: float | None, topics: dict[str, float]) -> None:
        """The operator's own source stands in the place of the file's thresholds."""
        await self._policies.rebase(self._settings.base_with(total, topics))

    async def _tell_loaded(self) -> None:
        await self._policies.loaded.wait()
        self._tell_policies(self._policies.policies)

    def _tell_policies(self, policies: PolicySet) -> None:
        """Until it is known what was changed at run time, what workers were told by an earlier control is better."""
        knows_all = self._policies.loaded.is_set() or not self._restarted
        tell = self._workers.tell if knows_all else self._workers.suggest
        tell(thresholds_of(policies, self._settings))
        quotas, told = quotas_of(policies, self._settings), self._workers.latest(Quotas)
        if told is None or told.entries != quotas.entries:  # there may be many, and workers read them between requests
            tell(quotas)
        groups, known = groups_of(policies, self._settings), self._workers.latest(Groups)
        if known is None or msgspec.structs.replace(known, version=groups.version) != groups:
            tell(groups)
        self._fleet.set_policies(policies)

    def _tell_cluster(self, message: Brokers | Topics) -> None:
        if isinstance(message, Topics):
            self._deleted.see(message.leads)
            self._metrics.know_topics({*itertools.chain.from_iterable(message.leads.values()), *message.ids.values()})
        self._workers.tell(message)

    def _adopt(self, held: Storage | None) -> None:
        if self._storage is not None:
            self._storage.adopt(held)
        else:
            self._heard, self._held = True, held or self._held

    def _want_metadata(self) -> None:
        self._cluster.want()

    async def _follow_channels(self, outer: trio.Nursery) -> None:
        restarts: dict[int, int] = {}
        while True:
            message, sock = await self._link.next_worker()
            new = message.restarts - restarts.get(message.worker, message.restarts)
            restarts[message.worker] = message.restarts
            self._metrics.show_worker(message.worker)
            self._metrics.worker_restarts.labels(str(message.worker)).inc(new)
            outer.start_soon(self._workers.serve, message.worker, sock)

    def _show_storage(self) -> Mapping[str, Any]:
        return make_status(self._storage)()

    async def _serve_admin(self) -> None:
        sock = await self._link.listen("admin", self._settings.admin.host, self._settings.admin.port)
        views = {"/v1/storage": self._show_storage}
        names = self._settings.admin.names
        source = self._settings.thresholds.source
        gateway = Gateway(
            self._policies,
            self._recent,
            self._workers.latest,
            base=f"source {source}" if source else "file",
            gone=self._deleted,
            fleet=self._fleet.uses,
        )
        api = rest.make_api(
            gateway, hosts=names, rights=Rights(self._settings.admin.tokens, self._settings.admin.token_file)
        )
        application = admin.make_application(
            self._metrics_text, self._find_problems, views, api, find_lacking=self._find_lacking, hosts=names
        )
        await admin.serve(sock, application)

    def _metrics_text(self) -> bytes:
        """In a thread."""
        self._metrics.show_groups(*trio.from_thread.run_sync(self._see_groups))
        return self._metrics.text()

    def _see_groups(self) -> tuple[Groups | None, Mapping[FleetKey, FleetUse]]:
        shown = self._metrics.shown_groups()
        keys = [group_key(group, direction, unit) for group, direction in shown for unit in get_args(Unit)]
        return self._workers.latest(Groups), self._fleet.uses(keys)

    def _find_problems(self) -> list[str]:
        problems = []
        if self._link.stopping.is_set():
            problems.append("the gateway is stopping")
        # Connections go to whoever is there, so one worker is enough; but who is told "ready" after a start counts on
        # all that was configured.
        self._was_complete |= self._workers.connected >= worker_count(self._settings)
        if not self._workers.connected:
            problems.append("no worker is connected")
        elif not self._was_complete:
            problems.append(f"{self._workers.connected} of {worker_count(self._settings)} workers have come up so far")
        if not self._cluster.known:
            problems.append("the cluster has not answered yet")
        if not self._bootstrap_open:
            problems.append("the bootstrap listener is not accepting yet")
        return problems

    def _lacking(self) -> dict[str, str]:
        """Parts without which the gateway goes on: why each is lacking, "" where it is not."""
        lacking = dict(self._parts.lacking)
        lacking[SPOOL] = lacking[SPOOL] or self._usage_log.problem
        lacking["policies"] = self._policies.problem
        if self._settings.internal_topics == "kafka":
            lacking["usage_log.topic"] = "" if self._publisher is None else self._publisher.problem
        if self._fleet.exchange is not None:
            lacking["exchange"] = self._fleet.exchange.problem
        return lacking

    def _find_lacking(self) -> list[str]:
        return [f"{part}: {one_line(why, ERROR_CHARS)}" for part, why in self._lacking().items() if why]

    async def _watch(self) -> None:
        next_prune = trio.current_time()
        while True:
            self._metrics.show_lacking(self._lacking())
            self._metrics.usage_queued.set(self._usage_log.queued)
            if self._spool is not None:
                self._metrics.spool_bytes.set(self._spool.total_bytes)
                self._metrics.usage_backlog.set(self._spool.backlog_bytes if self._publisher is not None else 0)
                if trio.current_time() >= next_prune:
                    await trio.to_thread.run_sync(self._prune, self._spool)
                    next_prune = trio.current_time() + PRUNE_S
            await trio.sleep(GAUGE_S)

    def _prune(self, spool: Spool) -> None:
        try:
            spool.prune()
        except OSError as error:
            log.warning("usage log: can't delete old spool files: %s", error)
