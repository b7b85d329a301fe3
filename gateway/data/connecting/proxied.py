# A connection that a proxy passes on: its PROXY protocol header, and control's word on whether its client may have one
# more. Until then it belongs to no client, and no byte behind the header is read: a client over its limit would have a
# round trip between the gateway's processes to get a request in. The worker counts it by its client's address before it
# asks, and control when it hears of it: whichever ends first, both have counted it in the same place.

from __future__ import annotations

import itertools
import socket
from dataclasses import dataclass, field
from typing import Final

import trio

from gateway.channel import AddressVerdict, LocatedConnection
from gateway.data.connecting.addresses import AddressCounts, ArrivingConnection
from gateway.data.relay.disconnect_log import CONNECTION_CLOSED
from gateway.data.shared.uplink import ControlUplink
from gateway.data.shared.worker_state import LOST_CONTROLS_TEXT, MAX_LOST_CONTROLS, WorkerState
from gateway.system.sockets import address_text, network_of_peer, reset_connection
from protocol.proxy_header import ProxyHeaderReader
from protocol.wire import MalformedFrame

LOCATE_TIMEOUT_S: Final = 5.0  # for both; proxies send the header at once


@dataclass(slots=True)
class _LocationQuery:
    address: str  # where its connection is counted by now
    lost_controls: int = 0  # that ended while they had it
    answered: trio.Event = field(default_factory=trio.Event)
    verdict: bool | None = None  # None: there is none


class ProxiedConnections:
    """Connections of one worker that came through a proxy."""

    def __init__(self, world: WorkerState, uplink: ControlUplink, addresses: AddressCounts) -> None:
        self._world = world
        self._uplink = uplink
        self._addresses = addresses
        self._tokens = itertools.count(1)
        self._queries: dict[int, _LocationQuery] = {}

    async def locate_client(self, arriving: ArrivingConnection) -> bool:
        """Read the client's address into `arriving`. Returns whether the client may connect; if not, that has been
        counted and logged.
        """
        why, text = "disconnects_first_byte", ""
        with trio.move_on_after(LOCATE_TIMEOUT_S) as limit:
            try:
                reader = await _read_proxy_header(arriving.client)
                if reader is None:  # a health check
                    return False
                arriving.proxied_endpoints = reader.ends
                if reader.ends is not None:
                    arriving.peer = address_text(*reader.ends.source)
                return await self._query_control(arriving)
            except OSError:
                why = "disconnects_client"
            except MalformedFrame as error:
                why, text = "disconnects_malformed", str(error)
                self._world.ledger.count_event("requests_malformed")
        if limit.cancelled_caught and arriving.address == network_of_peer(arriving.peer):
            self._uplink.log_warning(
                "proxied", "a connection through a proxy was closed: control did not answer in time"
            )
        self._world.ledger.count_event(why)
        if text:
            fields = arriving.log_fields(CONNECTION_CLOSED, "malformed")
            self._uplink.log_client_warning("malformed", f"{arriving.peer}: connection closed: {text}", fields)
        return False

    async def _query_control(self, arriving: ArrivingConnection) -> bool:
        """Ask control to count the connection under the client's address: only control knows all connections from
        there.
        """
        before, address = arriving.address, network_of_peer(arriving.peer)
        self._addresses.move_connection(before, address)
        arriving.address = address
        token = next(self._tokens)
        question = self._queries[token] = _LocationQuery(address)
        try:
            self._uplink.post(LocatedConnection(token, before, address))
            await question.answered.wait()
        finally:
            del self._queries[token]
        if question.verdict is None:
            self._uplink.log_warning("proxied", f"a connection through a proxy was closed: {LOST_CONTROLS_TEXT}")
            self._world.ledger.count_event("disconnects_error")
        elif not question.verdict:
            arriving.is_refused = True
        if not question.verdict:
            reset_connection(arriving.client)
        return bool(question.verdict)

    def resend_queries(self, *, lost: bool) -> None:
        """Send open queries again on a new channel, to a control process that already knows the open connections: the
        former channel lost them. `lost`: see ControlQueries.resend_queries.
        """
        for token, question in self._queries.items():
            if question.answered.is_set():
                continue
            question.lost_controls += lost
            if question.lost_controls < MAX_LOST_CONTROLS:
                self._uplink.post(LocatedConnection(token, question.address, question.address))
            else:
                question.answered.set()

    def on_verdict(self, verdict: AddressVerdict) -> None:
        """Control's answer. The connection that it is for may have ended."""
        question = self._queries.get(verdict.token)
        if question is not None:
            question.verdict = verdict.is_welcome
            question.answered.set()
        elif not verdict.is_welcome:
            self._addresses.record_refusal(verdict.address)


async def _read_proxy_header(client: socket.socket) -> ProxyHeaderReader | None:
    """None: the proxy closed without sending anything.

    Raises:
        MalformedFrame: the bytes are not a whole PROXY protocol header.
        OSError: the connection is broken.
    """
    reader = ProxyHeaderReader()
    is_silent = True
    while reader.wanted:
        try:
            data = client.recv(reader.wanted)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(client)
            continue
        if not data:
            if is_silent:
                return None
            raise MalformedFrame("half a PROXY protocol header, then the connection was closed")
        is_silent = False
        reader.feed(data)
    return reader
