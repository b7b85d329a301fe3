# A client's connection before anything is dialled for it: a proxy's header, the TLS handshake with the principal of the
# client's certificate, then the head of the first request. Arrivals that come to nothing are counted and said here.

from __future__ import annotations

import functools
import ssl
from collections.abc import Sequence
from typing import NamedTuple

import trio

from gateway.channel import ListenerSettings, OwnSasl, WorkerSettings
from gateway.data.connecting.addresses import Addresses, Arriving
from gateway.data.connecting.handshakes import HANDSHAKE_TIMEOUT_S, PROBE, Bench, shake_hands
from gateway.data.connecting.opening import HEAD, receive_head
from gateway.data.connecting.proxied import Proxied
from gateway.data.relay.ends import CLOSED
from gateway.data.shared.errors import Unauthenticated, close_reason
from gateway.data.shared.uplink import Uplink
from gateway.data.shared.world import World
from gateway.data.sockets.tls import HandshakeError, Tls, go_by_name
from gateway.listener_names import path_of
from gateway.system.sockets import reset
from gateway.tls import server_names
from gateway.tls.certificate_names import AdvertisedHost, name_warnings
from gateway.tls.certificates import CertificateError, Certificates, ListenerTls, make_context
from gateway.tls.principal_rules import ANONYMOUS, NoPrincipal
from gateway.tls.server_names import ServerNames
from protocol.wire import MalformedFrame


class Opened(NamedTuple):
    """`tls`: None where the client speaks none. `head`: the bytes of its first request that were read already.
    `principal`: that of its certificate, ANONYMOUS where SASL is to say it or nobody does. `broker`: the node id of the
    one that it wants; None: any.
    """

    tls: Tls | None
    head: bytes
    principal: str
    broker: int | None


class _Entrance(NamedTuple):
    """One listener. `certificates`: None where it is plain. `by_name`: it goes by server names, not by ports. `sasl`:
    that ends at the gateway, None where it passes through.
    """

    certificates: Certificates | None
    by_name: bool
    sasl: OwnSasl | None


def _doubts(told: Sequence[AdvertisedHost], tls: ListenerTls) -> list[str]:
    try:
        return name_warnings(tls, told)
    except CertificateError:  # the files have changed again just now
        return []


def _make_named(names: ServerNames, tls: ListenerTls) -> ssl.SSLContext:
    context = make_context(tls)
    go_by_name(context, names)
    return context


class Arrivals:
    """Those of one worker."""

    def __init__(self, world: World, uplink: Uplink, addresses: Addresses, bench: Bench) -> None:
        self._world = world
        self._uplink = uplink
        self.proxied = Proxied(world, uplink, addresses)
        self._entrances: dict[str, _Entrance] = {}  # by listener
        self._bench = bench
        self._openings: set[trio.CancelScope] = set()  # connections that have not sent a request yet
        self._draining = False
        self._set_entrances(world.settings)

    def __len__(self) -> int:
        return len(self._openings)

    def configure(self, settings: WorkerSettings) -> None:
        """Other settings than before; `World.configure` comes after it."""
        if settings.listeners != self._world.settings.listeners:
            self._set_entrances(settings)

    def _set_entrances(self, settings: WorkerSettings) -> None:
        """Certificates of a listener that stays as it is stay in use, whatever has become of the files."""
        before = self._world.settings.listeners
        self._entrances = {
            name: self._entrances[name]
            if name in self._entrances and before.get(name) == listener
            else self._make_entrance(name, listener)
            for name, listener in settings.listeners.items()
        }

    def _make_entrance(self, name: str, listener: ListenerSettings) -> _Entrance:
        tls, names = listener.tls, listener.names
        if tls is None:
            return _Entrance(None, False, listener.sasl)
        make = make_context if names is None else functools.partial(_make_named, names)
        doubts = functools.partial(_doubts, listener.told)
        certificates = Certificates(tls, self._uplink.log, path_of(name), make, doubts)
        certificates.context(trio.current_time())  # so that a problem is logged before the first client comes
        return _Entrance(certificates, names is not None, listener.sasl)

    async def open(self, arriving: Arriving) -> Opened | None:
        """None: it came to nothing; it has been counted and said."""
        if self._draining:
            return None
        arriving.client.setblocking(False)
        with trio.CancelScope() as scope:
            self._openings.add(scope)
            try:
                if arriving.accepted.proxied and not await self.proxied.locate(arriving):
                    return None
                return await self._open(arriving)
            finally:
                self._openings.discard(scope)
        return None  # the worker ends

    async def _open(self, arriving: Arriving) -> Opened | None:
        peer, client, broker = arriving.peer, arriving.client, arriving.accepted.broker
        tls, principal = None, ANONYMOUS
        certificates, by_name, sasl = self._entrances[arriving.accepted.listener]
        if certificates is not None:
            tls = await self._shake_hands(certificates, arriving)
            if tls is None:
                return None
            broker = tls.wanted if by_name else broker
            if not self._wants(sasl):
                try:
                    principal = certificates.rules.principal_of(tls.certificate)
                except NoPrincipal as error:
                    self._world.ledger.count("disconnects_identity")
                    fields = arriving.fields(CLOSED, "identity")
                    self._uplink.complain_of_client("identity", f"{peer}: connection closed: {error}", fields)
                    reset(client)
                    return None
        head = await self._receive_head(arriving, tls, sasl)
        return Opened(tls, head, principal, broker) if head else None

    def _wants(self, sasl: OwnSasl | None) -> bool:
        """Whether clients have to authenticate by SASL."""
        return self._world.cluster.wants_sasl if sasl is None else bool(sasl.mechanisms)

    async def _receive_head(self, arriving: Arriving, tls: Tls | None, sasl: OwnSasl | None) -> bytes:
        world, peer, client = self._world, arriving.peer, arriving.client
        settings = world.settings
        reason = "disconnects_first_byte"
        with trio.move_on_after(settings.first_byte_timeout_s):
            try:
                head = await receive_head(
                    client if tls is None else tls,
                    client,
                    settings.max_request_bytes,
                    wants_sasl=self._wants(sasl),
                )
                if len(head) == HEAD:
                    return head
                reason = "disconnects_client"
                if head:
                    world.ledger.count("requests_malformed")
                    what = f"half a frame: {len(head)} bytes, then the client closed"
                    fields = arriving.fields(CLOSED, "malformed")
                    self._uplink.complain_of_client("malformed", f"{peer}: connection closed: {what}", fields)
            except OSError:
                reason = "disconnects_client"
            except MalformedFrame as error:
                reason = close_reason(error)
                if not isinstance(error, Unauthenticated):
                    world.ledger.count("requests_malformed")
                fields = arriving.fields(CLOSED, reason.removeprefix("disconnects_"))
                self._uplink.complain_of_client("malformed", f"{peer}: connection closed: {error}", fields)
        world.ledger.count(reason)
        return b""

    async def _shake_hands(self, certificates: Certificates, arriving: Arriving) -> Tls | None:
        """None: with this client there is no TLS; it has been counted and said."""
        context = certificates.context(trio.current_time())
        if context is None:
            self._refuse_tls(arriving, certificates.problem, "certificate")
            return None
        client = arriving.client
        tls = Tls(context, client, self._bench.scratch)
        why = kind = f"the client did not complete it within {HANDSHAKE_TIMEOUT_S:g} s"
        with trio.move_on_after(HANDSHAKE_TIMEOUT_S):
            try:
                await shake_hands(tls, client, self._bench.turn)
                return tls
            except HandshakeError as error:
                why, kind = str(error), error.kind
            except OSError as error:
                why = kind = error.strerror or str(error)
        if kind != PROBE and not self._draining:
            self._refuse_tls(arriving, why, kind)
        return None

    def _refuse_tls(self, arriving: Arriving, why: str, kind: str) -> None:
        self._world.ledger.count("tls_handshakes_failed")
        if kind in server_names.REASONS:
            self._world.ledger.count(f"server_names_refused_{kind}")
        fields = arriving.fields("tls-handshake-failed", kind)
        self._uplink.complain(f"tls {kind}", f"{arriving.peer}: no TLS handshake: {why}", fields)

    def end(self) -> None:
        """The worker ends: who has not sent a request is let go."""
        self._draining = True
        for opening in self._openings:
            opening.cancel()
