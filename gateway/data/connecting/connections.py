# Clients' connections from the descriptor that control hands over to a link in the reactor, and their end when the
# worker stops.
#
# links.py says what passes over a link, control which connection may come at all.

from __future__ import annotations

import itertools
import os
import socket
from typing import Final

import trio

from gateway.channel import Accepted, WorkerSettings
from gateway.data.connecting.addresses import Addresses, Arriving
from gateway.data.connecting.arrivals import Arrivals, Opened
from gateway.data.connecting.dialling import Dialled, Dialling
from gateway.data.connecting.handshakes import Bench
from gateway.data.relay.ends import CLOSED
from gateway.data.relay.links import Link
from gateway.data.relay.tls_links import TlsLink
from gateway.data.session.session import Session
from gateway.data.shared.budget import Account
from gateway.data.shared.departures import Departures
from gateway.data.shared.errors import TooManyConnections, close_reason
from gateway.data.shared.uplink import Uplink
from gateway.data.shared.world import World
from gateway.data.sockets.reactor import Reactor
from gateway.system.sockets import host_of_peer, network_of, reset
from gateway.tls.principal_rules import ANONYMOUS
from protocol.proxy_header import encode

SPREAD_SHARE: Final = 0.6  # of the time to drain, in which connections begin to end; the rest is for answers
DRAIN_STEP_S: Final = 0.02


class Connections:
    """All connections of one worker.

    Attributes:
        reactor: has those that are relayed.
        dialling: to brokers.
        taken: connections that came through the present channel.
        addresses: where they come from.
        arrivals: those that have not sent a request yet.
    """

    def __init__(self, world: World, uplink: Uplink) -> None:
        self._world = world
        self._uplink = uplink
        self.reactor: Reactor[Link] = Reactor(
            world.settings.max_buffered_bytes, self._report_bug, self._count_closed, world.ledger.latencies
        )
        self.taken = 0
        self.addresses = Addresses()
        bench = Bench()
        self.dialling = Dialling(world, uplink, bench)
        self.arrivals = Arrivals(world, uplink, self.addresses, bench)
        self._coming = self._joining = 0
        self._draining = False
        life = os.urandom(3).hex()  # numbers begin anew with every worker
        self._ids = (f"{life}-{number}" for number in itertools.count(1))

    def configure(self, settings: WorkerSettings) -> None:
        """Other settings than before; `World.configure` comes after it."""
        self.arrivals.configure(settings)
        self.dialling.configure(settings)
        self.reactor.budget.limit = settings.max_buffered_bytes

    # --- how many there are -------------------------------------------------------------------------------------------

    @property
    def opening(self) -> int:
        """Connections that are not relayed yet."""
        return self._coming + self._joining + len(self.arrivals)

    def begin(self) -> dict[str, int]:
        """There is a new control; by address, the connections that it has to know of."""
        self.taken = 0
        return self.addresses.begin()

    def _count_closed(self, link: Link) -> None:
        self.addresses.end(network_of(link.peer))

    # --- from accept to a link ----------------------------------------------------------------------------------------

    def accept(self, accepted: Accepted, fd: int, nursery: trio.Nursery) -> None:
        """Take a connection over; its waits run in `nursery`."""
        self.taken += 1
        if fd < 0:
            self.addresses.ended[accepted.address] += 1
            self._uplink.complain(
                "fd", "a connection was lost: this worker has too many open files (raise LimitNOFILE)"
            )
            return
        client = socket.socket(fileno=fd)
        self.addresses.add(accepted.address)
        if self._draining:
            reset(client)
            self.addresses.end(accepted.address)
            return
        self._world.ledger.count("connections_accepted")
        self._coming += 1
        nursery.start_soon(self._connect, Arriving(accepted, client, next(self._ids)))

    async def _connect(self, arriving: Arriving) -> None:
        """Make a link of a client's connection once it has begun a request."""
        link = None
        self._coming -= 1
        try:
            opened = await self.arrivals.open(arriving)
            if opened is not None:
                link = await self._join(arriving, opened)
        except Exception as bug:  # whatever a stranger may have found: it ends this connection, and no other
            self._tell_bug(arriving.peer, bug, arriving.id)
        finally:
            if link is None:
                arriving.client.close()
                self.addresses.end(arriving.address, is_told=not arriving.is_refused)

    async def _join(self, arriving: Arriving, opened: Opened) -> Link | None:
        """Dial the broker that this connection is for, and put the pair into the reactor."""
        world, client = self._world, arriving.client
        if opened.broker is not None and opened.broker not in world.cluster.brokers:
            # By its server name; or control has just been started again. No alert, which Java clients take for final:
            # it may be there in a moment.
            text = f"{arriving.peer}: connection closed: broker {opened.broker} is not known"
            self._uplink.complain("broker", text, {**arriving.fields(CLOSED, "broker"), "broker": opened.broker})
            world.cluster.want_metadata()
        self._joining += 1
        dialled = None
        try:
            dialled = await self.dialling.dial(opened.broker, self._header_of(arriving))
        finally:
            self._joining -= 1
            if dialled is None:
                reset(client)
        if dialled is None:
            world.ledger.count("upstream_failed")
            return None
        if self._draining:
            dialled.sock.close()
            reset(client)
            return None
        now = trio.current_time()
        session = self._begin(arriving, opened, dialled, now)
        if session is None:
            return None
        secured = dialled.secured
        if opened.tls is None and secured is None:
            link = Link(self.reactor, session, client, dialled.sock, arriving.peer)
        else:
            of_upstream = secured or (None, None)
            link = TlsLink(self.reactor, session, client, dialled.sock, arriving.peer, opened.tls, *of_upstream)
        link.id = arriving.id
        link.client.inbound.begin(opened.head)
        try:
            link.open()
        except OSError:  # the client is gone already
            link.close("disconnects_client")
        self.reactor.settle(now)
        return link

    def _begin(self, arriving: Arriving, opened: Opened, dialled: Dialled, now: float) -> Session | None:
        """None: the principal of its certificate has too many connections."""
        account = Account(self.reactor.budget, host_of_peer(arriving.peer))
        session = Session(self._world, dialled.node_id, account, now, arriving.accepted.listener)
        if opened.principal == ANONYMOUS:
            return session
        try:
            session.authentication.certify(opened.principal)
        except TooManyConnections as error:
            self._world.ledger.count(close_reason(error))
            fields = {**arriving.fields(CLOSED, "principal_limit"), "principal": opened.principal}
            self._uplink.complain_of_client("excluded", f"{arriving.peer}: connection closed: {error}", fields)
            session.close()
            account.close()
            dialled.sock.close()
            reset(arriving.client)
            return None
        return session

    def _header_of(self, arriving: Arriving) -> bytes:
        """The client's addresses, for a broker's proxy."""
        version = self._world.settings.upstream_proxy
        return b"" if version == "none" else encode(int(version[1:]), arriving.ends)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _report_bug(self, link: Link, bug: Exception) -> None:
        self._tell_bug(link.peer, bug, link.id)

    def _tell_bug(self, peer: str, bug: Exception, connection: str) -> None:
        # The first frames of ours say where; a whole traceback per connection would be a log storm.
        where = []
        trace = bug.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            where.append(f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} {code.co_name}")
            trace = trace.tb_next
        self._uplink.complain(
            f"bug {where[-1:]}",
            f"{peer}: connection closed by a bug: {bug!r} at {' > '.join(where)}",
            {"kind": CLOSED, "reason": "error", "peer": peer, "connection": connection},
        )

    async def drain(self, deadline: float) -> None:
        """Let every link answer the requests in flight, and close, one after the other, the longest idle first; those
        that are left at the deadline are cut off.
        """
        self._draining = True
        reactor = self.reactor
        now = trio.current_time()
        self.arrivals.end()
        by_idleness = sorted(reactor.links, key=lambda link: -link.idle_s(now))
        departures = Departures(by_idleness, now, SPREAD_SHARE * (deadline - now))
        with trio.move_on_at(deadline):
            while True:
                for link in departures.due(now):
                    reactor.guard(link, link.end_gently, "disconnects_drain", now)
                reactor.settle(now)
                if not (reactor.links or self.opening):
                    break
                await trio.sleep(DRAIN_STEP_S)
                now = trio.current_time()
        for link in list(reactor.links):
            reactor.guard(link, link.close, "disconnects_drain")
        reactor.settle(now)
