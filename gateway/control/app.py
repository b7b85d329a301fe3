# The control process' composition root: builds everything else in this folder, nests the nurseries, starts, accepts,
# drains. All that may take its time is here, so that it never holds up the data path.
#
# Two nurseries, as Hypercorn has them: acceptors and metadata in the inner one, which ends first; workers' channels,
# usage log and admin server in the outer one, which goes on until the workers have said their last.

from __future__ import annotations

import errno
import logging
import socket
from typing import Any, Final

import trio

from gateway.channel import PROTOCOL, Policy
from gateway.channel import Settings as WorkerSettings
from gateway.config import Settings
from gateway.control import admin
from gateway.control.cluster import AdminSource, Cluster
from gateway.control.metrics import Metrics
from gateway.control.usage_log import Publisher, Spool, SpoolInUse, UsageLog
from gateway.control.workers import Workers
from gateway.supervisor import ParentLink

log = logging.getLogger("gateway.control")

# What accept(2) says of a client that is gone again. Everything else (EMFILE, ENFILE, ENOMEM, …) is a shortage, which
# passes, but not at once.
CLIENT_GONE: Final = frozenset({errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO})
PAUSE_S: Final = 0.1
REPEAT_S: Final = 10.0  # the same complaint is logged once in so long
PRUNE_S: Final = 60.0
PUBLISH_AT_END_S: Final = 5.0  # the rest stays in the spool, and goes out after the next start
GAUGE_S: Final = 1.0


def client_properties(settings: Settings) -> dict[str, Any]:
    """librdkafka configuration of the gateway's own clients."""
    return {
        **settings.upstream.properties,
        "bootstrap.servers": settings.upstream.bootstrap_servers,
        "client.id": f"produce-gateway-{settings.gateway}",
        "log_level": 2,  # what matters is reported by the calls; librdkafka repeats itself on stderr
    }


def worker_settings(settings: Settings) -> WorkerSettings:
    limits = settings.limits
    return WorkerSettings(
        protocol=PROTOCOL,
        gateway=settings.gateway,
        max_request_bytes=limits.max_request_bytes,
        max_buffered_bytes=limits.max_buffered_bytes,
        connect_timeout_s=settings.upstream.connect_timeout,
        frame_timeout_s=limits.frame_timeout,
        reject_code=None if settings.reject_code == "auto" else settings.reject_code,
        unknown_apis=settings.unknown_apis,
        max_client_keys=limits.max_client_keys,
        internal_principals=settings.internal.principals,
        internal_client_ids=settings.internal.client_ids,
        protected_topics=(settings.usage_log.topic,),
        acks0=settings.acks0,
        policies=settings.policies,
        observe=settings.mode == "observe",
    )


async def run(link: ParentLink) -> None:
    """Be the control process until the parent says stop or is gone (ParentGone)."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await link.started.wait()
        settings = Settings.model_validate_json(link.settings)
        try:
            spool = await trio.to_thread.run_sync(_open_spool, settings)
        except SpoolInUse as error:
            await link.give_up(str(error))
        except OSError as error:
            await link.give_up(f"usage_log.spool_dir {settings.usage_log.spool_dir}: {error.strerror or error}")
        else:
            await _Control(settings, link, spool).run()
        nursery.cancel_scope.cancel()


def _open_spool(settings: Settings) -> Spool:
    log_settings = settings.usage_log
    publishes = settings.internal_topics == "kafka"
    return Spool(log_settings.spool_dir, log_settings.max_spool_bytes, log_settings.retention, published_only=publishes)


class _Control:
    def __init__(self, settings: Settings, link: ParentLink, spool: Spool) -> None:
        self._settings = settings
        self._link = link
        self._spool = spool
        self._metrics = Metrics(settings.limits.max_client_metrics, settings.limits.max_topic_metrics)
        self._usage_log = UsageLog(spool, settings.gateway, self._metrics)
        client = client_properties(settings)
        publishes = settings.internal_topics == "kafka"
        topic = settings.usage_log.topic
        self._publisher: Publisher | None = None
        if publishes:
            partitions, replication = settings.usage_log.partitions, settings.usage_log.replication
            self._publisher = Publisher(spool, client, topic, partitions, replication, self._metrics)
        self._workers = Workers(self._usage_log, self._metrics, self._want_metadata, link.reconnect)
        self._cluster = Cluster(
            AdminSource(client, [topic], topic_ids=publishes),
            settings.upstream.addresses(),
            settings.listener,
            settings.upstream.metadata_refresh,
            self._metrics,
            listen=link.listen,
            unlisten=link.unlisten,
            accept=self._accept,
            tell=self._workers.tell,
        )
        self._bootstrap_open = False
        self._complained_at = -REPEAT_S

    async def run(self) -> None:
        settings = self._settings
        self._metrics.show_config(
            settings.gateway, settings.upstream.bootstrap_servers, settings.internal_topics, settings.usage_log.topic
        )
        self._workers.tell(worker_settings(settings))
        thresholds = settings.thresholds
        self._workers.tell(
            Policy(
                1,
                thresholds.total,
                thresholds.by_topic(),
                thresholds.on_exceed,
                "observe" if settings.mode == "observe" else thresholds.mode,
            ),
        )
        try:
            async with trio.open_nursery() as outer:
                outer.start_soon(self._usage_log.run)
                outer.start_soon(self._follow_channels, outer)
                outer.start_soon(self._watch_spool)
                outer.start_soon(self._serve_admin)
                if self._publisher is not None:
                    outer.start_soon(self._publisher.run, self._usage_log)
                async with trio.open_nursery() as inner:
                    inner.start_soon(self._open, inner)
                    await self._link.stopping.wait()
                    inner.cancel_scope.cancel()
                await self._finish(self._link.drain_timeout_s)
                outer.cancel_scope.cancel()
        finally:
            self._spool.close()

    async def _open(self, inner: trio.Nursery) -> None:
        """Listeners of an earlier control at once; the bootstrap listener when there is something to say."""
        restarted = any(name.startswith("broker ") for name in self._link.inherited)
        await self._cluster.adopt(inner, list(self._link.inherited))
        inner.start_soon(self._cluster.run, inner)
        if not restarted:
            await self._cluster.asked.wait()
        listener = self._settings.listener
        sock = await self._link.listen("bootstrap", listener.host, listener.port)
        inner.start_soon(self._accept, None, sock)
        self._bootstrap_open = True

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

    async def _accept(self, broker: int | None, sock: socket.socket) -> None:
        """Accept for ever and hand over; shortages are waited out."""
        listener = trio.socket.from_stdlib_socket(sock)
        with listener:
            while True:
                try:
                    client, address = await listener.accept()
                except OSError as error:
                    await self._pause_accepting(error)
                    continue
                peer = f"{address[0]}:{address[1]}"
                await self._workers.hand_over(socket.socket(fileno=client.detach()), broker, peer)

    async def _pause_accepting(self, error: OSError) -> None:
        if error.errno in CLIENT_GONE:
            await trio.lowlevel.checkpoint()
            return
        self._metrics.accept_pauses.inc()
        if trio.current_time() - self._complained_at >= REPEAT_S:
            self._complained_at = trio.current_time()
            log.warning("no connections can be accepted just now: %s", error.strerror or error)
        await trio.sleep(PAUSE_S)

    async def _serve_admin(self) -> None:
        sock = await self._link.listen("admin", self._settings.admin.host, self._settings.admin.port)
        await admin.serve(sock, admin.make_application(self._metrics.text, self._find_problems))

    def _find_problems(self) -> list[str]:
        problems = []
        if self._link.stopping.is_set():
            problems.append("the gateway is stopping")
        if not self._workers.connected:
            problems.append("no worker is connected")
        if not self._cluster.known:
            problems.append("the cluster has not answered yet")
        if not self._bootstrap_open:
            problems.append("the bootstrap listener is not accepting yet")
        return problems

    async def _watch_spool(self) -> None:
        next_prune = trio.current_time()
        while True:
            self._metrics.spool_bytes.set(self._spool.total_bytes)
            self._metrics.usage_backlog.set(self._spool.backlog_bytes if self._publisher is not None else 0)
            self._metrics.usage_queued.set(self._usage_log.queued)
            if trio.current_time() >= next_prune:
                await trio.to_thread.run_sync(self._prune)
                next_prune = trio.current_time() + PRUNE_S
            await trio.sleep(GAUGE_S)

    def _prune(self) -> None:
        try:
            self._spool.prune()
        except OSError as error:
            log.warning("usage log: can't delete old spool files: %s", error)
