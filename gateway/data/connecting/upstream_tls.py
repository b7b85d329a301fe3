# TLS on connections to brokers: the context that follows its files, the handshake, and the sessions with which later
# handshakes cost less.

from __future__ import annotations

import ssl
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from gateway.data.connecting.handshakes import TlsWorkspace, perform_client_handshake
from gateway.data.connecting.tls_sessions import TlsSessions
from gateway.data.sockets.tls import HandshakeError, TlsConnection
from gateway.system.sockets import address_text, broker_text
from gateway.tls.broker_tls import BrokerTls, explain_tls_failure, make_broker_context
from gateway.tls.certificates import ReloadedContext, ReloadMessages

if TYPE_CHECKING:
    import socket

    from gateway.data.shared.uplink import ControlUplink
    from gateway.data.shared.worker_state import WorkerState

_CERTIFICATE_TEXTS = ReloadMessages(
    key_prefix="upstream.",
    unusable="brokers can't be reached",
    kept="new connections to brokers keep using the certificates read before",
    renewed="upstream: new connections to brokers use the certificates that are in the files now",
)


class BrokerTlsReporter:
    """Reports what happens on a broker's TLS connection after its handshake; the link calls it."""

    __slots__ = ("_broker", "_context", "_has_begun", "_key", "_upstream_tls")

    def __init__(self, securing: UpstreamTls, context: ssl.SSLContext, broker: str, key: tuple[str, int]) -> None:
        self._upstream_tls = securing
        self._context = context
        self._broker = broker
        self._key = key
        self._has_begun = False

    def on_first_bytes(self, tls: TlsConnection) -> None:
        """The broker's first bytes have arrived: it has accepted the gateway, and issued its session before them."""
        self._has_begun = True
        self._upstream_tls.keep_session(self._context, self._key, tls.session)

    def on_tls_fault(self, why: str) -> None:
        """The broker violated TLS, or refused the gateway: in TLS 1.3 it checks the client's certificate after the
        handshake.
        """
        self._upstream_tls.report_tls_failure(self._broker, why, is_handshake=not self._has_begun)


class SecuredConnection(NamedTuple):
    tls: TlsConnection
    observer: BrokerTlsReporter


class UpstreamTls:
    """TLS with brokers, of one worker and one configuration."""

    def __init__(self, settings: BrokerTls, world: WorkerState, uplink: ControlUplink, bench: TlsWorkspace) -> None:
        self._settings = settings
        self._world = world
        self._uplink = uplink
        self._tls_workspace = bench
        self._reloaded = ReloadedContext(
            tuple(settings.files_by_key().values()),
            partial(make_broker_context, settings),
            _CERTIFICATE_TEXTS,
            uplink.log,
        )
        self._context = self._reloaded.get_context(
            trio.current_time()
        )  # so that a problem is logged before it is needed
        self._sessions: defaultdict[tuple[str, int], TlsSessions[ssl.SSLSession]] = defaultdict(TlsSessions)

    async def secure_connection(
        self, node_id: int, host: str, port: int, sock: socket.socket, scope: trio.CancelScope
    ) -> SecuredConnection | None:
        """Perform the TLS handshake on a connected, non-blocking socket. `scope` carries the time limit. None: the
        handshake failed; that has been counted and logged.

        Raises:
            OSError: the connection is broken.
        """
        broker = broker_text(node_id, address_text(host, port))
        context = self._reloaded.get_context(trio.current_time())
        if context is not self._context:
            self._context = context
            self._sessions.clear()  # they were other certificates'
        if context is None:
            self.report_tls_failure(broker, self._reloaded.problem)
            return None
        key = host, port
        sessions = self._sessions[key]
        session = sessions.next_session()
        try:
            tls = TlsConnection(
                context,
                sock,
                self._tls_workspace.scratch,
                host=host,
                session=session,
                explain=partial(explain_tls_failure, host=host, tls=self._settings),
            )
            await perform_client_handshake(tls, sock, self._tls_workspace.handshake_lock, scope)
            if session is not None:
                sessions.record_resumption(tls.is_resumed)
        except HandshakeError as error:
            self.report_tls_failure(broker, str(error))
            return None
        except ValueError:  # of the name
            self.report_tls_failure(broker, "it is not a host name that a certificate can have")
            return None
        return SecuredConnection(tls, BrokerTlsReporter(self, context, broker, key))

    def keep_session(self, context: ssl.SSLContext, key: tuple[str, int], session: ssl.SSLSession | None) -> None:
        """Keep this session for a later handshake with that broker, if the broker's context is still the same: OpenSSL
        resumes a session only with the context that it came from.
        """
        if session is not None and context is self._context:
            self._sessions[key].add_session(session)

    def report_tls_failure(self, broker: str, why: str, *, is_handshake: bool = True) -> None:
        """Log and count that TLS with a broker failed or broke."""
        if is_handshake:
            self._world.ledger.count_event("upstream_tls_handshakes_failed")
        what = "no TLS" if is_handshake else "connection closed: broken TLS"
        self._uplink.log_warning(
            f"TLS of {broker}: {why}", f"{broker}: {what}: {why}", {"kind": "broker-tls-failed", "reason": why}
        )
