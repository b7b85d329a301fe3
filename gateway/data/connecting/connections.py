# Clients' connections from the descriptor that control hands over to a link in the reactor, and their end when the
# worker stops.
#
# links.py says what passes over a link, control which connection may come at all.

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable
from typing import Final

import trio

from gateway.channel import AcceptedConnection, WorkerSettings
from gateway.data.connecting.addresses import AddressCounts, ArrivingConnection
from gateway.data.connecting.arrivals import ClientArrivals, OpenedConnection
from gateway.data.connecting.dialling import BrokerDialler, DialledBroker
from gateway.data.connecting.handshakes import TlsWorkspace
from gateway.data.relay.disconnect_log import CONNECTION_CLOSED
from gateway.data.relay.links import RelayLink
from gateway.data.relay.tls_links import TlsLink
from gateway.data.session.session import ClientSession
from gateway.data.shared.budget import MemoryAccount
from gateway.data.shared.drain_schedule import DrainSchedule
from gateway.data.shared.errors import TooManyConnections, close_reason
from gateway.data.shared.uplink import ControlUplink
from gateway.data.shared.worker_state import WorkerState
from gateway.data.sockets.reactor import SocketReactor
from gateway.system.sockets import host_of_peer, network_of_peer, reset_connection
from gateway.tls.principal_rules import ANONYMOUS
from protocol.proxy_header import encode_header

SPREAD_SHARE: Final = 0.6  # of the time to drain, in which connections begin to end; the rest is for answers
DRAIN_STEP_S: Final = 0.02


class WorkerConnections:
    """All connections of one worker.

    Attributes:
        reactor: runs the relayed connections.
        dialler: connects to brokers.
        accepted_count: connections received on the present channel.
        addresses: open connections by client address.
        arrivals: connections that have not sent a request yet.
        before_arrival: called when a connection has come, and before its first request is looked at.
    """

    def __init__(self, world: WorkerState, uplink: ControlUplink) -> None:
        self._world = world
        self._uplink = uplink
        self.reactor: SocketReactor[RelayLink] = SocketReactor(
            world.limits.max_buffered_bytes, self._on_link_bug, self._count_closed_link, world.ledger.latencies
        )
        self.accepted_count = 0
        self.addresses = AddressCounts()
        bench = TlsWorkspace()
        self.dialler = BrokerDialler(world, uplink, bench)
        self.arrivals = ClientArrivals(world, uplink, self.addresses, bench)
        self.before_arrival: Callable[[], None] = lambda: None
        self._accepting_count = self._dialling_count = 0
        self._draining = False
        life = os.urandom(3).hex()  # numbers begin anew with every worker
        self._ids = (f"{life}-{number}" for number in itertools.count(1))

    def apply_settings(self, settings: WorkerSettings) -> None:
        """Apply changed settings. The caller calls `WorkerState.apply_settings` afterwards."""
        self.arrivals.apply_settings(settings)
        self.dialler.apply_settings(settings)
        self.reactor.budget.limit_bytes = settings.limits.max_buffered_bytes

    # --- how many there are -------------------------------------------------------------------------------------------

    @property
    def opening_count(self) -> int:
        """Connections that are not relayed yet."""
        return self._accepting_count + self._dialling_count + len(self.arrivals)

    def reset_for_control(self) -> dict[str, int]:
        """Start over for a new control process; returns the open connections by address, which control has to know."""
        self.accepted_count = 0
        return self.addresses.reset_for_control()

    def _count_closed_link(self, link: RelayLink) -> None:
        self.addresses.remove_connection(network_of_peer(link.peer))

    # --- from accept to a link ----------------------------------------------------------------------------------------

    def accept_connection(self, accepted: AcceptedConnection, fd: int, nursery: trio.Nursery) -> None:
        """Take over an accepted connection; its waits run in `nursery`."""
        self.before_arrival()
        self.accepted_count += 1
        if fd < 0:
            self.addresses.ended_counts[accepted.address] += 1
            self._uplink.log_warning(
                "fd", "a connection was lost: this worker has too many open files (raise LimitNOFILE)"
            )
            return
        client = socket.socket(fileno=fd)
        self.addresses.add_connection(accepted.address)
        if self._draining:
            reset_connection(client)
            self.addresses.remove_connection(accepted.address)
            return
        self._world.ledger.count_event("connections_accepted")
        self._accepting_count += 1
        nursery.start_soon(self._open_link, ArrivingConnection(accepted, client, next(self._ids)))

    async def _open_link(self, arriving: ArrivingConnection) -> None:
        """Wait until a client's connection has begun a request, then make a link of it."""
        link = None
        self._accepting_count -= 1
        try:
            opened = await self.arrivals.open_connection(arriving)
            if opened is not None:
                link = await self._join_broker(arriving, opened)
        except Exception as bug:  # whatever a stranger may have found: it ends this connection, and no other
            self._log_bug(arriving.peer, bug, arriving.connection_id)
        finally:
            if link is None:
                arriving.client.close()
                self.addresses.remove_connection(arriving.address, is_told=not arriving.is_refused)

    async def _join_broker(self, arriving: ArrivingConnection, opened: OpenedConnection) -> RelayLink | None:
        """Dial the broker that this connection is for, and put the pair into the reactor."""
        world, client = self._world, arriving.client
        if opened.broker is not None and opened.broker not in world.cluster.brokers:
            # By its server name; or control has just been started again. No alert, which Java clients take for final:
            # it may be there in a moment.
            text = f"{arriving.peer}: connection closed: broker {opened.broker} is not known"
            self._uplink.log_warning(
                "broker", text, {**arriving.log_fields(CONNECTION_CLOSED, "broker"), "broker": opened.broker}
            )
            world.cluster.request_metadata()
        self._dialling_count += 1
        dialled = None
        try:
            dialled = await self.dialler.dial_broker(opened.broker, self._proxy_header(arriving))
        finally:
            self._dialling_count -= 1
            if dialled is None:
                reset_connection(client)
        if dialled is None:
            world.ledger.count_event("upstream_failed")
            return None
        if self._draining:
            dialled.sock.close()
            reset_connection(client)
            return None
        now = trio.current_time()
        session = self._begin_session(arriving, opened, dialled, now)
        if session is None:
            return None
        secured = dialled.secured
        if opened.tls is None and secured is None:
            link = RelayLink(self.reactor, session, client, dialled.sock, arriving.peer)
        else:
            of_upstream = secured or (None, None)
            link = TlsLink(self.reactor, session, client, dialled.sock, arriving.peer, opened.tls, *of_upstream)
        link.connection_id = arriving.connection_id
        link.client.inbound.prepend_bytes(opened.head)
        self.before_arrival()
        try:
            link.open()
        except OSError:  # the client is gone already
            link.close("disconnects_client")
        self.reactor.run_deferred(now)
        return link

    def _begin_session(
        self, arriving: ArrivingConnection, opened: OpenedConnection, dialled: DialledBroker, now: float
    ) -> ClientSession | None:
        """None: the principal of its certificate has too many connections."""
        account = MemoryAccount(self.reactor.budget, host_of_peer(arriving.peer))
        session = ClientSession(self._world, dialled.node_id, account, now, arriving.accepted.listener)
        if opened.principal == ANONYMOUS:
            return session
        try:
            session.authentication.accept_certificate(opened.principal)
        except TooManyConnections as error:
            self._world.ledger.count_event(close_reason(error))
            fields = {**arriving.log_fields(CONNECTION_CLOSED, "principal_limit"), "principal": opened.principal}
            self._uplink.log_client_warning("excluded", f"{arriving.peer}: connection closed: {error}", fields)
            session.close()
            account.close()
            dialled.sock.close()
            reset_connection(arriving.client)
            return None
        return session

    def _proxy_header(self, arriving: ArrivingConnection) -> bytes:
        """The PROXY protocol header with the client's addresses, for the proxy in front of a broker."""
        version = self._world.settings.upstream.proxy_protocol
        return b"" if version == "none" else encode_header(int(version[1:]), arriving.endpoints)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _on_link_bug(self, link: RelayLink, bug: Exception) -> None:
        self._log_bug(link.peer, bug, link.connection_id)

    def _log_bug(self, peer: str, bug: Exception, connection: str) -> None:
        # The first frames of ours say where; a whole traceback per connection would be a log storm.
        where = []
        trace = bug.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            where.append(f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} {code.co_name}")
            trace = trace.tb_next
        self._uplink.log_warning(
            f"bug {where[-1:]}",
            f"{peer}: connection closed because of a bug: {bug!r} at {' > '.join(where)}",
            {"kind": CONNECTION_CLOSED, "reason": "error", "peer": peer, "connection": connection},
        )

    async def drain(self, deadline: float) -> None:
        """Have every link answer its requests in flight and close, one link after the other, the one that is idle
        longest first. Links that are left at the deadline are closed at once.
        """
        self._draining = True
        reactor = self.reactor
        now = trio.current_time()
        self.arrivals.stop_accepting()
        by_idleness = sorted(reactor.links, key=lambda link: -link.idle_s(now))
        departures = DrainSchedule(by_idleness, now, SPREAD_SHARE * (deadline - now))
        with trio.move_on_at(deadline):
            while True:
                for link in departures.pop_due(now):
                    reactor.call_guarded(link, link.drain, "disconnects_drain", now)
                reactor.run_deferred(now)
                if not (reactor.links or self.opening_count):
                    break
                await trio.sleep(DRAIN_STEP_S)
                now = trio.current_time()
        for link in list(reactor.links):
            reactor.call_guarded(link, link.close, "disconnects_drain")
        reactor.run_deferred(now)
