# A connection to the broker that a client's connection is for.

from __future__ import annotations

import itertools
import os
import socket
from contextlib import suppress
from typing import NamedTuple

import trio

from gateway.channel import WorkerSettings
from gateway.data.connecting.handshakes import TlsWorkspace
from gateway.data.connecting.upstream_tls import SecuredConnection, UpstreamTls
from gateway.data.shared.uplink import ControlUplink
from gateway.data.shared.warning_limiter import LogFields
from gateway.data.shared.worker_state import WorkerState
from gateway.system.sockets import address_text, broker_text

# The kernel takes no more while it holds this many bytes that the broker has no room for yet (Linux, macOS). trio's
# streams set 16 KiB: of a large request it would then take little more than the broker's window at once, and the client
# would wait for a turn of epoll's for each rest. This is a whole request of a client with its defaults
# (max.request.size). Without a bound it would be net.ipv4.tcp_wmem, 4 MiB of each broker connection that stands still.
# Real producers cost a tenth less than with 16 KiB, and with 64 KiB no less; requests of 480 KB to a null broker cost
# 1.24 times as much, with 128, 256 and 512 KiB 1.75, 1.50 and 1.19.
UNSENT_BYTES = 2**20


class DialledBroker(NamedTuple):
    """A connection to a broker. `node_id`: -1 where no broker is known yet. `secured`: None where the broker speaks no
    TLS.
    """

    node_id: int
    sock: socket.socket
    secured: SecuredConnection | None = None


class BrokerDialler:
    """Connects to brokers.

    Attributes:
        bootstrap: the addresses to dial while no broker is known.
    """

    def __init__(self, world: WorkerState, uplink: ControlUplink, bench: TlsWorkspace) -> None:
        self._world = world
        self._uplink = uplink
        self._tls_workspace = bench
        self._rotation = itertools.count()
        self._upstream_tls: UpstreamTls | None = None  # None: brokers are spoken to in plain text
        self.bootstrap: tuple[tuple[str, int], ...] = ()
        self._set_tls(world.settings)

    def apply_settings(self, settings: WorkerSettings) -> None:
        """Apply changed settings. The caller calls `WorkerState.apply_settings` afterwards."""
        if settings.upstream_tls != self._world.settings.upstream_tls:
            self._set_tls(settings)

    def _set_tls(self, settings: WorkerSettings) -> None:
        tls = settings.upstream_tls
        self._upstream_tls = (
            UpstreamTls(tls, self._world, self._uplink, self._tls_workspace) if tls is not None else None
        )

    async def dial_broker(self, broker: int | None, header: bytes = b"") -> DialledBroker | None:
        """Connect to a broker. `broker`: its node id; None: any, each call starting with another one. `header`: a PROXY
        protocol header to send first. None: no broker can be reached; that has been logged.
        """
        timeout_s = self._world.settings.upstream.connect_timeout
        for node_id, host, port in self._dial_targets(broker):
            dialled = await self._connect_broker(node_id, host, port, timeout_s, header)
            if dialled is not None:
                return dialled
        return None

    def _dial_targets(self, node_id: int | None) -> list[tuple[int, str, int]]:
        brokers = self._world.cluster.brokers
        if node_id is not None:
            broker = brokers.get(node_id)
            return [(node_id, broker.host, broker.port)] if broker is not None else []
        known = [(broker.node_id, broker.host, broker.port) for broker in brokers.values()]
        known = known or [(-1, host, port) for host, port in self.bootstrap]
        first = next(self._rotation) % len(known) if known else 0
        return known[first:] + known[:first]

    async def _connect_broker(
        self, node_id: int, host: str, port: int, timeout_s: float, header: bytes
    ) -> DialledBroker | None:
        why = f"no answer within {timeout_s:g} s"
        with trio.move_on_after(timeout_s) as scope:
            try:
                stream = await trio.open_tcp_stream(host, port)
                with suppress(AttributeError, OSError):  # not every system has it
                    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
                if header:
                    await stream.send_all(header)
                sock = socket.socket(fileno=stream.socket.detach())
                if self._upstream_tls is None:
                    return DialledBroker(node_id, sock)
                why = f"no TLS handshake within {timeout_s:g} s"
                return await self._secure_socket(self._upstream_tls, node_id, (host, port), sock, scope)
            except (OSError, trio.BrokenResourceError, UnicodeError) as error:  # UnicodeError: a name that is none
                cause = error.__cause__
                first = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause or error
                number = getattr(first, "errno", None) or 0  # trio writes the address into strerror; gaierror's are < 0
                why = os.strerror(number) if number > 0 else getattr(first, "strerror", None) or str(first)
        fields: LogFields = {"kind": "broker-unreachable", "reason": why, "broker": node_id}
        text = f"{broker_text(node_id, address_text(host, port))} can't be reached: {why}"
        self._uplink.log_warning(f"{broker_text(node_id)} can't be reached", text, fields)
        return None

    async def _secure_socket(
        self,
        securing: UpstreamTls,
        node_id: int,
        address: tuple[str, int],
        sock: socket.socket,
        scope: trio.CancelScope,
    ) -> DialledBroker | None:
        sock.setblocking(False)
        secured = None
        try:
            secured = await securing.secure_connection(node_id, *address, sock, scope)
        finally:
            if secured is None:
                sock.close()
        return DialledBroker(node_id, sock, secured) if secured is not None else None
