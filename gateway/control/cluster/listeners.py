# The configured listeners on their way to brokers: a socket for each broker where ports distinguish brokers, none where
# server names do; and the addresses that clients get at each.
#
# A broker's socket is open before its address is handed out. Where a port can't be opened the broker is withheld from
# that listener's clients, never handed out as it is. Knows no metadata.

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final, Protocol

import trio

from gateway.config import Listener
from gateway.control.context import ControlContext
from gateway.listener_names import BrokerSocket, log_prefix, parse_broker_socket
from gateway.system.sockets import address_text

log = logging.getLogger("gateway.cluster")

LARGEST_PORT: Final = 65535

Address = tuple[str, int]


class Acceptor(Protocol):
    """See gateway.control.workers.acceptor.ConnectionAcceptor."""

    async def run(self, listener: str, broker: int | None, sock: Any) -> None: ...


class BrokerListeners:
    """All listeners of one gateway, by name."""

    def __init__(self, context: ControlContext, acceptor: Acceptor) -> None:
        self._configured = context.settings.all_listeners
        self._link = context.link
        self._acceptor = acceptor
        self._open: dict[BrokerSocket, trio.CancelScope] = {}
        self._refused: dict[BrokerSocket, str] = {}  # withheld from clients, and why; some of them are open

    def apply_settings(self, configured: Mapping[str, Listener]) -> None:
        """Change the listeners' advertised addresses, or their TLS; the listeners stay the same."""
        self._configured = configured
        for socket in self._open:
            self._set_refusal(socket, self._find_port_fault(socket))

    def count_withheld(self, node_ids: Container[int]) -> int:
        """How many of these brokers are withheld from clients of some listener."""
        return len({socket.node_id for socket in self._refused if socket.node_id in node_ids})

    async def adopt_sockets(self, nursery: trio.Nursery, names: Iterable[str]) -> list[int]:
        """Accept on the brokers' sockets among these, which are open already. Returns their node ids."""
        found = [
            socket for name in names if (socket := parse_broker_socket(name)) and socket.listener in self._configured
        ]
        for socket in found:
            await self._open_socket(nursery, socket)
        return sorted({socket.node_id for socket in found})

    async def open_broker(self, nursery: trio.Nursery, node_id: int) -> bool:
        """Accept connections for that broker on every listener that doesn't yet; tasks run in `nursery`. Returns
        whether there is a new socket.
        """
        before = len(self._open)
        for name, listener in self._configured.items():
            if listener.sni is None:
                await self._open_socket(nursery, BrokerSocket(name, node_id))
        return len(self._open) > before

    async def _open_socket(self, nursery: trio.Nursery, socket: BrokerSocket) -> None:
        if socket in self._open:
            return
        listener = self._configured[socket.listener]
        try:
            if fault := self._find_port_fault(socket):
                raise OSError(fault)
            sock = await self._link.listen(socket.name, listener.host, listener.broker_port(socket.node_id))
        except OSError as error:
            self._set_refusal(socket, str(error))
            return
        self._set_refusal(socket, "")
        self._open[socket] = trio.CancelScope()
        nursery.start_soon(self._run_accept, socket, sock, self._open[socket])

    def _find_port_fault(self, socket: BrokerSocket) -> str:
        _, advertised = self._configured[socket.listener].broker_address(socket.node_id)
        return f"advertised port {advertised}: a port is at most {LARGEST_PORT}" if advertised > LARGEST_PORT else ""

    def _set_refusal(self, socket: BrokerSocket, why: str) -> None:
        if not why:
            self._refused.pop(socket, None)
        elif self._refused.get(socket) != why:
            self._refused[socket] = why
            where = log_prefix(socket.listener)
            log.error("%sbroker %d is withheld from clients: no listener on %s", where, socket.node_id, why)

    async def _run_accept(self, socket: BrokerSocket, sock: Any, scope: trio.CancelScope) -> None:
        with scope:
            await self._acceptor.run(socket.listener, socket.node_id, sock)

    def close_broker(self, node_id: int) -> None:
        """That broker is gone for good: close its sockets."""
        for socket in [socket for socket in self._open if socket.node_id == node_id]:
            self._open.pop(socket).cancel()
            self._link.close_listener(socket.name)
        self._refused = {socket: why for socket, why in self._refused.items() if socket.node_id != node_id}

    def broker_addresses(self, node_ids: Iterable[int]) -> dict[str, dict[int, Address]]:
        """By listener, the addresses of these brokers that clients get, without those withheld from them."""
        known, accepting = sorted(node_ids), self._open.keys() - self._refused.keys()
        return {
            name: {
                node_id: listener.broker_address(node_id)
                for node_id in known
                if listener.sni is not None or BrokerSocket(name, node_id) in accepting
            }
            for name, listener in self._configured.items()
        }

    def describe_all(self, upstream: str, brokers: Mapping[int, Address | None]) -> list[str]:
        """The ways to each broker, and a command to try, one line each. `upstream`: the bootstrap servers."""
        lines = []
        for name, listener in self._configured.items():
            bootstrap = address_text(*listener.bootstrap_address)
            lines.append(f"{log_prefix(name)}bootstrap: {bootstrap} -> {upstream}")
            for node_id, address in self.broker_addresses(brokers)[name].items():
                lines.append(_mapping_line(name, node_id, address, brokers[node_id]))
        for name, listener in self._configured.items():
            options = " -X security.protocol=SSL" if listener.tls is not None else ""
            lines.append(f"{log_prefix(name)}try: kcat -b {address_text(*listener.bootstrap_address)}{options} -L")
        return lines

    def describe_broker(self, node_id: int, upstream: Address | None) -> list[str]:
        """The same for one broker."""
        addresses = self.broker_addresses([node_id])
        return [_mapping_line(name, node_id, of[node_id], upstream) for name, of in addresses.items() if node_id in of]


def _mapping_line(listener: str, node_id: int, address: Address, upstream: Address | None) -> str:
    behind = address_text(*upstream) if upstream else "?"
    return f"{log_prefix(listener)}broker {node_id}: {address_text(*address)} -> {behind}"
