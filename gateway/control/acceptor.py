# Accepts clients' connections from listeners, admits or refuses each, and hands it over to a worker. A shortage of file
# descriptors or of memory passes, so it is waited out.

from __future__ import annotations

import errno
import logging
import socket
from typing import Final

import trio

from gateway.control.admission import CONNECTIONS
from gateway.control.metrics import Metrics
from gateway.control.workers import Workers
from gateway.sockets import network_of, reset

log = logging.getLogger("gateway.control")

# What accept(2) says of a client that is gone again. Everything else (EMFILE, ENFILE, ENOMEM, …) is a shortage, which
# passes, but not at once.
CLIENT_GONE: Final = frozenset({errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO})
PAUSE_S: Final = 0.1
REPEAT_S: Final = 10.0  # the same complaint is logged once in so long


class Acceptor:
    """Of all listeners of this gateway."""

    def __init__(self, workers: Workers, metrics: Metrics) -> None:
        self._workers = workers
        self._metrics = metrics
        self._complained_at = self._refused_at = -REPEAT_S

    async def run(self, broker: int | None, sock: socket.socket) -> None:
        """Accept for ever and hand over; shortages are waited out."""
        listener = trio.socket.from_stdlib_socket(sock)
        with listener:
            while True:
                try:
                    client, address = await listener.accept()
                except OSError as error:
                    await self._pause(error)
                    continue
                peer = f"{address[0]}:{address[1]}"
                why = self._workers.admission.refusal(network_of(peer))
                if why:
                    self._refuse(socket.socket(fileno=client.detach()), address[0], why)
                    continue
                await self._workers.hand_over(socket.socket(fileno=client.detach()), broker, peer)

    def _refuse(self, client: socket.socket, address: str, why: str) -> None:
        reset(client)
        self._metrics.connections_refused.labels(why).inc()
        if trio.current_time() - self._refused_at >= REPEAT_S:
            self._refused_at = trio.current_time()
            limit = "max_connections" if why == CONNECTIONS else "max_connections_per_address"
            log.warning("%s: connection refused, and others likewise: limits.%s", address, limit)

    async def _pause(self, error: OSError) -> None:
        if error.errno in CLIENT_GONE:
            await trio.lowlevel.checkpoint()
            return
        self._metrics.accept_pauses.inc()
        if trio.current_time() - self._complained_at >= REPEAT_S:
            self._complained_at = trio.current_time()
            log.warning("no connections can be accepted just now: %s", error.strerror or error)
        await trio.sleep(PAUSE_S)
