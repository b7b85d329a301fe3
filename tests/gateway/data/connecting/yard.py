# Real connections on their way in: the real acceptor and control's side of the workers, real workers on real channels,
# all in one process, and a broker that only listens.

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import trio

from gateway.channel import (
    API_REQUESTS,
    BrokerTable,
    ListenerSettings,
    ProcessChannel,
    TopicSnapshot,
    UpstreamBroker,
    WorkerSettings,
    decode_for_worker,
)
from gateway.config import Listener
from gateway.control.metrics import GatewayMetrics
from gateway.control.usage.usage_log import UsageLogWriter
from gateway.control.usage.usage_spool import UsageSpool
from gateway.control.workers.acceptor import ConnectionAcceptor
from gateway.data.relay.links import RelayLink
from gateway.data.worker.worker import DataWorker
from gateway.listener_names import DEFAULT_LISTENER
from gateway.system.sockets import Networks
from gateway.tls.certificates import ListenerTls
from tests.background import until
from tests.gateway.control.contexts import SETTINGS, make_context, make_worker_pool
from tests.gateway.control.workers.test_workers import Followed
from tests.gateway.data.made_settings import made_settings

DEADLINE_S = 60.0


class Yard:
    """
    Attributes:
        port: where clients connect.
        broker: what comes to the broker, a stream for each connection.
    """

    def __init__(self, spool: UsageSpool, nursery: trio.Nursery, most: int, per_address: int) -> None:
        self.metrics = GatewayMetrics()
        usage_log = UsageLogWriter(spool, "gw", self.metrics)
        self._nursery = nursery
        self.context = make_context(metrics=self.metrics)
        self.control = make_worker_pool(self.context, usage_log, Followed())
        self.control.admission.set_limits(most, per_address)
        self.workers: list[DataWorker] = []
        self.streams: list[trio.SocketStream] = []
        self.port = 0
        self._talks: list[trio.CancelScope] = []
        self._controls = 0  # that were started again
        self._brought, self.broker = trio.open_memory_channel[trio.SocketStream](100)
        nursery.start_soon(usage_log.run)

    async def open(self, settings: WorkerSettings, workers: int, proxies: Networks) -> None:
        upstream = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        self._nursery.start_soon(trio.serve_listeners, self._serve, [upstream])
        port = upstream.socket.getsockname()[1]
        self.control.publish_snapshot(settings)
        self.control.publish_snapshot(BrokerTable((), (UpstreamBroker(1, "127.0.0.1", port),)))
        self.control.publish_snapshot(TopicSnapshot({1: ("clicks",)}))
        for number in range(workers):
            worker = DataWorker(cast("Any", None), number)
            self._nursery.start_soon(worker._run_plane)
            self.workers.append(worker)
        await self._talk()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        acceptor = ConnectionAcceptor(self.context, self.control)
        if proxies:
            behind_proxies = Listener.model_validate(
                {"port": 1, "proxy_protocol": {"networks": list(map(str, proxies))}}
            )
            acceptor.apply_settings(SETTINGS.model_copy(update={"listener": behind_proxies}))
        self._nursery.start_soon(acceptor.run, DEFAULT_LISTENER, 1, listener)

    async def _talk(self) -> None:
        self._talks = [trio.CancelScope() for _ in self.workers]
        for number, worker in enumerate(self.workers):
            ours, theirs = socket.socketpair()
            self._nursery.start_soon(self.control.serve_worker, number, ours)
            self._nursery.start_soon(self._converse, worker, theirs, self._talks[number])
        await until(
            lambda: self.control.connected == len(self.workers) and all(worker.plane for worker in self.workers)
        )

    async def _converse(self, worker: DataWorker, sock: socket.socket, scope: trio.CancelScope) -> None:
        with scope:
            await worker.serve_channel(ProcessChannel(sock, decode_for_worker), self._nursery, self._controls)

    async def restart_control(self) -> None:
        """As workers see it: their channels end, and new ones begin."""
        self._controls += 1
        for talk in self._talks:
            talk.cancel()
        await until(lambda: not self.control.connected)
        await self._talk()

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.streams.append(stream)
        self._brought.send_nowait(stream)
        await trio.sleep_forever()

    async def connect(self, first: bytes = b"", host: str = "127.0.0.1") -> trio.SocketStream:
        """A client's connection, from that address of this machine, and the first that it sends."""
        # Not by trio: it looks whether the connection is there still, and it may have been refused by now.
        sock = socket.create_connection(("127.0.0.1", self.port), source_address=(host, 0))
        sock.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self.streams.append(stream)
        if first:
            await stream.send_all(first)
        return stream

    def links(self) -> list[RelayLink]:
        """All that are relayed, of all workers."""
        return [link for worker in self.workers for link in worker.configured_plane.connections.reactor.links]

    def counts(self) -> dict[str, int]:
        """What came to nothing, over all workers."""
        found: dict[str, int] = {}
        for worker in self.workers:
            for name, count in worker.configured_plane.world.ledger.counts.items():
                if count and name not in ("requests", "connections_accepted") and not name.startswith(API_REQUESTS):
                    found[name] = found.get(name, 0) + count
        return found

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"produce_gateway_{name}", labels)

    def end(self, which: Callable[[RelayLink], bool] = lambda link: True) -> None:
        """Close what is relayed."""
        for worker in self.workers:
            reactor = worker.configured_plane.connections.reactor
            for link in filter(which, list(reactor.links)):
                reactor.call_guarded(link, link.close, "disconnects_drain")
            reactor.run_deferred(trio.current_time())


@asynccontextmanager
async def opened(
    folder: Path,
    *,
    workers: int = 1,
    proxies: Networks = (),
    most: int = 1000,
    per_address: int = 1000,
    tls: ListenerTls | None = None,
    **settings: Any,
) -> AsyncIterator[Yard]:
    """A yard with these limits, and a worker's settings."""
    listeners = {DEFAULT_LISTENER: ListenerSettings(tls)}
    patient = {"upstream_connect_timeout": DEADLINE_S, **settings}
    spool = UsageSpool(folder, 2**24, 3600, published_only=True)
    try:
        async with trio.open_nursery() as nursery:
            yard = Yard(spool, nursery, most, per_address)
            with trio.fail_after(DEADLINE_S):
                await yard.open(made_settings(listeners=listeners, **patient), workers, proxies)
                yield yard
            yard.end()
            nursery.cancel_scope.cancel()
    finally:
        yard.end()
        for stream in yard.streams:
            stream.socket.close()
        spool.close()
    assert all(worker.configured_plane.connections.reactor.budget.used_bytes == 0 for worker in yard.workers)
