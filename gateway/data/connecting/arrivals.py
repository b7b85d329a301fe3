# A client's connection before anything is dialled for it: a proxy's header, the TLS handshake with the principal of the
# client's certificate, then the head of the first request. Arrivals that come to nothing are counted and said here.

from __future__ import annotations

import functools
import ssl
from collections.abc import Sequence
from typing import NamedTuple

import trio

from gateway.channel import ListenerSettings, TerminatedSasl, WorkerSettings
from gateway.data.connecting.addresses import AddressCounts, ArrivingConnection
from gateway.data.connecting.handshakes import HANDSHAKE_TIMEOUT_S, PROBE, TlsWorkspace, perform_server_handshake
from gateway.data.connecting.opening import REQUEST_HEAD_BYTES, receive_head
from gateway.data.connecting.proxied import ProxiedConnections
from gateway.data.relay.disconnect_log import CONNECTION_CLOSED
from gateway.data.shared.errors import UnauthenticatedRequest, close_reason
from gateway.data.shared.uplink import ControlUplink
from gateway.data.shared.worker_state import WorkerState
from gateway.data.sockets.tls import HandshakeError, TlsConnection, require_server_name
from gateway.listener_names import config_path
from gateway.system.sockets import reset_connection
from gateway.tls import server_names
from gateway.tls.certificate_names import AdvertisedHost, find_name_warnings
from gateway.tls.certificates import CertificateError, ListenerCertificates, ListenerTls, make_listener_context
from gateway.tls.principal_rules import ANONYMOUS, NoPrincipal
from gateway.tls.server_names import ServerNames
from protocol.wire import MalformedFrame


class OpenedConnection(NamedTuple):
    """A connection whose first request has begun.

    `tls`: None where the client speaks none. `head`: the bytes of its first request that were read already.
    `principal`: from its certificate; ANONYMOUS where SASL determines it, or nothing does. `broker`: the node id of the
    broker that it is for; None: any.
    """

    tls: TlsConnection | None
    head: bytes
    principal: str
    broker: int | None


class _ListenerState(NamedTuple):
    """The settings of one listener. `certificates`: None where it is plaintext. `by_name`: brokers are chosen by server
    name (SNI), not by port. `sasl`: settings of SASL that ends at the gateway; None where it passes through.
    """

    certificates: ListenerCertificates | None
    by_name: bool
    sasl: TerminatedSasl | None


def _certificate_warnings(hosts: Sequence[AdvertisedHost], tls: ListenerTls) -> list[str]:
    try:
        return find_name_warnings(tls, hosts)
    except CertificateError:  # the files have changed again just now
        return []


def _make_sni_context(names: ServerNames, tls: ListenerTls) -> ssl.SSLContext:
    context = make_listener_context(tls)
    require_server_name(context, names)
    return context


class ClientArrivals:
    """Connections of one worker that have not sent a request yet."""

    def __init__(
        self, world: WorkerState, uplink: ControlUplink, addresses: AddressCounts, bench: TlsWorkspace
    ) -> None:
        self._world = world
        self._uplink = uplink
        self.proxied = ProxiedConnections(world, uplink, addresses)
        self._listeners: dict[str, _ListenerState] = {}  # by listener
        self._tls_workspace = bench
        self._openings: set[trio.CancelScope] = set()  # connections that have not sent a request yet
        self._draining = False
        self._rebuild_listeners(world.settings)

    def __len__(self) -> int:
        return len(self._openings)

    def apply_settings(self, settings: WorkerSettings) -> None:
        """Apply changed settings. The caller calls `WorkerState.apply_settings` afterwards."""
        if settings.listeners != self._world.settings.listeners:
            self._rebuild_listeners(settings)

    def _rebuild_listeners(self, settings: WorkerSettings) -> None:
        """Rebuild the listeners that changed. A listener that did not change keeps its certificates, whatever has
        become of the files.
        """
        before = self._world.settings.listeners
        self._listeners = {
            name: self._listeners[name]
            if name in self._listeners and before.get(name) == listener
            else self._make_listener(name, listener)
            for name, listener in settings.listeners.items()
        }

    def _make_listener(self, name: str, listener: ListenerSettings) -> _ListenerState:
        tls, names = listener.tls, listener.names
        if tls is None:
            return _ListenerState(None, False, listener.sasl)
        make = make_listener_context if names is None else functools.partial(_make_sni_context, names)
        doubts = functools.partial(_certificate_warnings, listener.advertised_hosts)
        certificates = ListenerCertificates(tls, self._uplink.log, config_path(name), make, doubts)
        certificates.get_context(trio.current_time())  # so that a problem is logged before the first client comes
        return _ListenerState(certificates, names is not None, listener.sasl)

    async def open_connection(self, arriving: ArrivingConnection) -> OpenedConnection | None:
        """Do the client's TLS handshake and wait for its first request. None: the connection has ended; that has been
        counted and logged.
        """
        if self._draining:
            return None
        arriving.client.setblocking(False)
        with trio.CancelScope() as scope:
            self._openings.add(scope)
            try:
                if arriving.accepted.proxied and not await self.proxied.locate_client(arriving):
                    return None
                return await self._negotiate_opening(arriving)
            finally:
                self._openings.discard(scope)
        return None  # the worker ends

    async def _negotiate_opening(self, arriving: ArrivingConnection) -> OpenedConnection | None:
        peer, client, broker = arriving.peer, arriving.client, arriving.accepted.broker
        tls, principal = None, ANONYMOUS
        certificates, by_name, sasl = self._listeners[arriving.accepted.listener]
        if certificates is not None:
            tls = await self._accept_tls(certificates, arriving)
            if tls is None:
                return None
            broker = tls.requested_broker if by_name else broker
            if not self._wants_sasl(sasl):
                try:
                    principal = certificates.rules.principal_of(tls.peer_certificate)
                except NoPrincipal as error:
                    self._world.ledger.count_event("disconnects_identity")
                    fields = arriving.log_fields(CONNECTION_CLOSED, "identity")
                    self._uplink.log_client_warning("identity", f"{peer}: connection closed: {error}", fields)
                    reset_connection(client)
                    return None
        head = await self._receive_head(arriving, tls, sasl)
        return OpenedConnection(tls, head, principal, broker) if head else None

    def _wants_sasl(self, sasl: TerminatedSasl | None) -> bool:
        """Whether clients have to authenticate by SASL."""
        return self._world.cluster.wants_sasl if sasl is None else bool(sasl.mechanisms)

    async def _receive_head(
        self, arriving: ArrivingConnection, tls: TlsConnection | None, sasl: TerminatedSasl | None
    ) -> bytes:
        world, peer, client = self._world, arriving.peer, arriving.client
        limits = world.limits
        reason = "disconnects_first_byte"
        with trio.move_on_after(limits.first_byte_timeout):
            try:
                head = await receive_head(
                    client if tls is None else tls,
                    client,
                    limits.max_request_bytes,
                    wants_sasl=self._wants_sasl(sasl),
                )
                if len(head) == REQUEST_HEAD_BYTES:
                    return head
                reason = "disconnects_client"
                if head:
                    world.ledger.count_event("requests_malformed")
                    what = f"half a frame: {len(head)} bytes, then the client closed"
                    fields = arriving.log_fields(CONNECTION_CLOSED, "malformed")
                    self._uplink.log_client_warning("malformed", f"{peer}: connection closed: {what}", fields)
            except OSError:
                reason = "disconnects_client"
            except MalformedFrame as error:
                reason = close_reason(error)
                if not isinstance(error, UnauthenticatedRequest):
                    world.ledger.count_event("requests_malformed")
                fields = arriving.log_fields(CONNECTION_CLOSED, reason.removeprefix("disconnects_"))
                self._uplink.log_client_warning("malformed", f"{peer}: connection closed: {error}", fields)
        world.ledger.count_event(reason)
        return b""

    async def _accept_tls(
        self, certificates: ListenerCertificates, arriving: ArrivingConnection
    ) -> TlsConnection | None:
        """None: the TLS handshake failed; that has been counted and logged."""
        context = certificates.get_context(trio.current_time())
        if context is None:
            self._refuse_tls(arriving, certificates.problem, "certificate")
            return None
        client = arriving.client
        tls = TlsConnection(context, client, self._tls_workspace.scratch)
        why = kind = f"the client did not complete it within {HANDSHAKE_TIMEOUT_S:g} s"
        with trio.move_on_after(HANDSHAKE_TIMEOUT_S):
            try:
                await perform_server_handshake(tls, client, self._tls_workspace.handshake_lock)
                return tls
            except HandshakeError as error:
                why, kind = str(error), error.kind
            except OSError as error:
                why = kind = error.strerror or str(error)
        if kind != PROBE and not self._draining:
            self._refuse_tls(arriving, why, kind)
        return None

    def _refuse_tls(self, arriving: ArrivingConnection, why: str, kind: str) -> None:
        self._world.ledger.count_event("tls_handshakes_failed")
        if kind in server_names.NAME_FAULT_REASONS:
            self._world.ledger.count_event(f"server_names_refused_{kind}")
        fields = arriving.log_fields("tls-handshake-failed", kind)
        self._uplink.log_warning(f"tls {kind}", f"{arriving.peer}: no TLS handshake: {why}", fields)

    def stop_accepting(self) -> None:
        """The worker is stopping: close the connections that have not sent a request."""
        self._draining = True
        for opening in self._openings:
            opening.cancel()
