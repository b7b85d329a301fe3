# Accepts clients' connections from listeners, admits or refuses each, and hands it over to a worker. A shortage of file
# descriptors or of memory passes, so it is waited out.

from __future__ import annotations

import ipaddress
import logging
import socket
from typing import Final

import trio

from gateway.channel import AcceptedConnection
from gateway.config import Settings
from gateway.control.context import ControlContext
from gateway.control.internal_errors import ACCEPT
from gateway.control.workers.workers import WorkerPool
from gateway.system.sockets import (
    CLIENT_GONE,
    Networks,
    address_text,
    host_of_peer,
    is_in_networks,
    network_of_peer,
    reset_connection,
)

log = logging.getLogger("gateway.control")

# Errors of accept(2) for a client that is gone again. Everything else (EMFILE, ENFILE, ENOMEM, …) is a shortage, which
# passes, but not at once.
PAUSE_S: Final = 0.1
REPEAT_S: Final = 10.0  # the same complaint is logged once in this time


def _proxy_networks(settings: Settings) -> dict[str, Networks]:
    """By listener, the networks whose connections begin with a PROXY protocol header."""
    return {
        name: tuple(map(ipaddress.ip_network, listener.proxy_networks))
        for name, listener in settings.all_listeners.items()
    }


class ConnectionAcceptor:
    """Accepts connections of all listeners of this gateway."""

    def __init__(self, context: ControlContext, workers: WorkerPool) -> None:
        self._workers = workers
        self._metrics = context.metrics
        self._errors = context.errors
        self._proxies = _proxy_networks(context.settings)
        self._logged_at = -REPEAT_S

    def apply_settings(self, settings: Settings) -> None:
        """Set other networks of proxies; they apply to new connections."""
        self._proxies = _proxy_networks(settings)

    async def run(self, listener: str, broker: int | None, sock: socket.socket) -> None:
        """Accept and hand over until cancelled; wait out shortages."""
        listening = trio.socket.from_stdlib_socket(sock)
        with listening:
            while True:
                try:
                    client, address = await listening.accept()
                except OSError as error:
                    await self._pause_accepting(error)
                    continue
                peer = address_text(address[0], address[1])
                with self._errors.contain_errors(ACCEPT, peer), client:
                    await self._admit_connection(listener, broker, peer, client)

    async def _admit_connection(
        self, listener: str, broker: int | None, peer: str, client: trio.socket.SocketType
    ) -> None:
        """Refuse the connection, or hand it over. On an error it is closed."""
        proxied = is_in_networks(peer, self._proxies.get(listener, ()))
        why = self._workers.admission.refusal_reason(network_of_peer(peer), proxied=proxied)
        if why:
            reset_connection(socket.socket(fileno=client.detach()))
            self._workers.refusals.record_refusal(host_of_peer(peer), why)
            return
        accepted = AcceptedConnection(broker, peer, proxied, listener)
        await self._workers.hand_over_connection(socket.socket(fileno=client.detach()), accepted)

    async def _pause_accepting(self, error: OSError) -> None:
        if error.errno in CLIENT_GONE:
            await trio.lowlevel.checkpoint()
            return
        self._metrics.accept_pauses.inc()
        if trio.current_time() - self._logged_at >= REPEAT_S:
            self._logged_at = trio.current_time()
            log.warning("no connections can be accepted just now: %s", error.strerror or error)
        await trio.sleep(PAUSE_S)
