# Clients' connections from the descriptor that control hands over to a link in the reactor: TLS handshake, head of the
# first request, a broker to dial; how many there are from each address; and their end when the worker stops.
#
# What passes over a link is links.py's, which connection may come at all is control's.

from __future__ import annotations

import itertools
import os
import socket
from collections import Counter

import trio

from gateway.certificates import Certificates
from gateway.channel import Accepted, WorkerSettings
from gateway.data.budget import Account
from gateway.data.ends import Unauthenticated, close_reason
from gateway.data.inbound import SHARED_BYTES
from gateway.data.links import Link
from gateway.data.opening import HEAD, receive_head
from gateway.data.reactor import Reactor
from gateway.data.session import Session
from gateway.data.tls import HANDSHAKE_TIMEOUT_S, PROBE, HandshakeError, Tls, TlsLink, shake_hands
from gateway.data.uplink import Uplink
from gateway.data.world import World
from gateway.sockets import network_of, reset
from protocol.wire import MalformedFrame


class Connections:
    """All connections of one worker.

    Attributes:
        reactor: has those that are relayed.
        bootstrap: where to dial while no broker is known.
        taken: connections that came through the present channel.
        ended: by address, those that have ended and that control has not been told of.
    """

    def __init__(self, world: World, uplink: Uplink) -> None:
        self._world = world
        self._uplink = uplink
        self.reactor: Reactor[Link] = Reactor(world.settings.max_buffered_bytes, self._report_bug, self._count_closed)
        self.bootstrap: tuple[tuple[str, int], ...] = ()
        self.taken = 0
        self._addresses: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self._turn = itertools.count()
        self._certificates: Certificates | None = None  # None: listeners are plain
        self._ciphertext = memoryview(b"")  # where connections with TLS receive
        self._openings: set[trio.CancelScope] = set()  # connections that have not sent a request yet
        self._handshake_turn = trio.Lock()
        self._dialling = 0
        self._draining = False
        self._set_tls(world.settings)

    def configure(self, settings: WorkerSettings) -> None:
        """Other settings than before; `World.configure` comes after it."""
        if settings.tls != self._world.settings.tls:
            self._set_tls(settings)
        self.reactor.budget.limit = settings.max_buffered_bytes

    def _set_tls(self, settings: WorkerSettings) -> None:
        if settings.tls is not None:
            self._certificates = Certificates(settings.tls, self._uplink.log)
            self._certificates.context(trio.current_time())  # so that a problem is logged before the first client comes
            self._ciphertext = memoryview(bytearray(SHARED_BYTES))

    # --- how many there are -------------------------------------------------------------------------------------------

    @property
    def opening(self) -> int:
        """Connections that are not relayed yet."""
        return self._dialling + len(self._openings)

    def begin(self) -> dict[str, int]:
        """There is a new control; by address, the connections that it has to know of."""
        self.taken = 0
        self.ended.clear()
        return dict(self._addresses)

    def _count_closed(self, link: Link) -> None:
        self._count_ended(link.peer)

    def _count_ended(self, peer: str) -> None:
        address = network_of(peer)
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        self.ended[address] += 1

    # --- from accept to a link ----------------------------------------------------------------------------------------

    def accept(self, accepted: Accepted, fd: int, nursery: trio.Nursery) -> None:
        """Take a connection over; what it waits for runs in `nursery`."""
        self.taken += 1
        if fd < 0:
            self.ended[network_of(accepted.peer)] += 1
            self._uplink.complain(
                "fd", "a connection was lost: this worker has too many open files (raise LimitNOFILE)"
            )
            return
        client = socket.socket(fileno=fd)
        self._addresses[network_of(accepted.peer)] += 1
        if self._draining:
            reset(client)
            self._count_ended(accepted.peer)
            return
        self._world.ledger.count("connections_accepted")
        nursery.start_soon(self._connect, accepted, client)

    async def _connect(self, accepted: Accepted, client: socket.socket) -> None:
        """Make a link of a client's connection once it has begun a request."""
        link = None
        try:
            opened = await self._open(accepted.peer, client)
            if opened is not None:
                link = await self._join(accepted, client, *opened)
        finally:
            if link is None:
                client.close()
                self._count_ended(accepted.peer)

    async def _open(self, peer: str, client: socket.socket) -> tuple[Tls | None, bytes] | None:
        """TLS, and the head of the first request. None: it came to nothing; it has been counted and said."""
        client.setblocking(False)
        with trio.CancelScope() as scope:
            self._openings.add(scope)
            try:
                tls = None
                if self._certificates is not None:
                    tls = await self._shake_hands(self._certificates, peer, client)
                    if tls is None:
                        return None
                head = await self._receive_head(peer, client, tls)
                return (tls, head) if head else None
            finally:
                self._openings.discard(scope)
        return None  # the worker ends

    async def _receive_head(self, peer: str, client: socket.socket, tls: Tls | None) -> bytes:
        world = self._world
        settings = world.settings
        reason = "disconnects_first_byte"
        with trio.move_on_after(settings.first_byte_timeout_s):
            try:
                head = await receive_head(
                    client if tls is None else tls, client, settings.max_request_bytes, wants_sasl=world.wants_sasl
                )
                if len(head) == HEAD:
                    return head
                reason = "disconnects_client"
                if head:
                    world.ledger.count("requests_malformed")
                    what = f"half a frame: {len(head)} bytes, then the client closed"
                    self._uplink.complain_of_client("malformed", f"{peer}: connection closed: {what}")
            except OSError:
                reason = "disconnects_client"
            except MalformedFrame as error:
                reason = close_reason(error)
                if not isinstance(error, Unauthenticated):
                    world.ledger.count("requests_malformed")
                self._uplink.complain_of_client("malformed", f"{peer}: connection closed: {error}")
        world.ledger.count(reason)
        return b""

    async def _join(self, accepted: Accepted, client: socket.socket, tls: Tls | None, head: bytes) -> Link | None:
        """Dial the broker that this connection is for, and put the pair into the reactor. `head`: read already."""
        world = self._world
        self._dialling += 1
        upstream = None
        try:
            for node_id, host, port in self._targets(accepted.broker):
                upstream = await self._dial(node_id, host, port, world.settings.connect_timeout_s)
                if upstream is not None:
                    break
        finally:
            self._dialling -= 1
            if upstream is None:
                reset(client)
        if upstream is None:
            world.ledger.count("upstream_failed")
            return None
        if self._draining:
            upstream.close()
            reset(client)
            return None
        now = trio.current_time()
        account = Account(self.reactor.budget, accepted.peer.rpartition(":")[0])
        session = Session(world, node_id, account, now)
        if tls is None:
            link = Link(self.reactor, session, client, upstream, accepted.peer)
        else:
            link = TlsLink(self.reactor, session, client, upstream, accepted.peer, tls)
        link.client.inbound.begin(head)
        try:
            link.open()
        except OSError:  # the client is gone already
            link.close("disconnects_client")
        self.reactor.settle(now)
        return link

    async def _shake_hands(self, certificates: Certificates, peer: str, client: socket.socket) -> Tls | None:
        """None: with this client there is no TLS; it has been counted and said."""
        context = certificates.context(trio.current_time())
        if context is None:
            self._refuse_tls(peer, certificates.problem, "certificate")
            return None
        tls = Tls(context, client, self._ciphertext)
        why = kind = f"the client did not complete it within {HANDSHAKE_TIMEOUT_S:g} s"
        with trio.move_on_after(HANDSHAKE_TIMEOUT_S):
            try:
                await shake_hands(tls, client, self._handshake_turn)
                return tls
            except HandshakeError as error:
                why, kind = str(error), error.kind
            except OSError as error:
                why = kind = error.strerror or str(error)
        if kind != PROBE and not self._draining:
            self._refuse_tls(peer, why, kind)
        return None

    def _refuse_tls(self, peer: str, why: str, kind: str) -> None:
        self._world.ledger.count("tls_handshakes_failed")
        self._uplink.complain(f"tls {kind}", f"{peer}: no TLS handshake: {why}")

    def _targets(self, node_id: int | None) -> list[tuple[int, str, int]]:
        """Where to dial: that broker; for the bootstrap listener each broker, beginning with another one every time."""
        brokers = self._world.brokers
        if node_id is not None:
            broker = brokers.get(node_id)
            return [(node_id, broker.host, broker.port)] if broker is not None else []
        known = [(broker.node_id, broker.host, broker.port) for broker in brokers.values()]
        known = known or [(-1, host, port) for host, port in self.bootstrap]
        first = next(self._turn) % len(known) if known else 0
        return known[first:] + known[:first]

    async def _dial(self, node_id: int, host: str, port: int, timeout_s: float) -> socket.socket | None:
        reason = f"no answer within {timeout_s:g} s"
        with trio.move_on_after(timeout_s):
            try:
                stream = await trio.open_tcp_stream(host, port)
                return socket.socket(fileno=stream.socket.detach())
            except OSError as error:
                cause = error.__cause__
                first = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause or error
                number = getattr(first, "errno", None) or 0  # trio writes the address into strerror; gaierror's are < 0
                reason = os.strerror(number) if number > 0 else getattr(first, "strerror", None) or str(first)
        self._uplink.complain(f"dial {node_id}", f"broker {node_id} ({host}:{port}) can't be reached: {reason}")
        return None

    # --- the end ------------------------------------------------------------------------------------------------------

    def _report_bug(self, link: Link, bug: Exception) -> None:
        # The first frames of ours say where; a whole traceback per connection would be a log storm.
        where = []
        trace = bug.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            where.append(f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} {code.co_name}")
            trace = trace.tb_next
        self._uplink.complain(
            f"bug {where[-1:]}", f"{link.peer}: connection closed by a bug: {bug!r} at {' > '.join(where)}"
        )

    async def drain(self, deadline: float) -> None:
        """Let every link answer what is in flight, and close; those that are left at the deadline are cut off."""
        self._draining = True
        reactor = self.reactor
        now = trio.current_time()
        for opening in self._openings:
            opening.cancel()
        for link in list(reactor.links):
            reactor.guard(link, link.drain, now)
        reactor.settle(now)
        with trio.move_on_at(deadline):
            while reactor.links or self.opening:  # noqa: ASYNC110 - links close in plain calls that can't wake us
                await trio.sleep(0.02)
        for link in list(reactor.links):
            reactor.guard(link, link.close, "disconnects_drain")
        reactor.settle(now)
