# TLS on connections to brokers: the context that follows its files, the handshake, and the sessions with which later
# handshakes cost less.

from __future__ import annotations

import ssl
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from gateway.data.connecting.handshakes import Bench, greet
from gateway.data.connecting.tls_sessions import Sessions
from gateway.data.sockets.tls import HandshakeError, Tls
from gateway.system.sockets import address_text
from gateway.tls.broker_tls import BrokerTls, explain, make_broker_context
from gateway.tls.certificates import Reloaded, Words

if TYPE_CHECKING:
    import socket

    from gateway.data.shared.uplink import Uplink
    from gateway.data.shared.world import World

_WORDS = Words(
    place="upstream.",
    without="brokers can't be reached",
    kept="new connections to brokers go on with what was read before",
    renewed="upstream: new connections to brokers have the certificates that are in the files now",
)


class Course:
    """How a connection to a broker goes on after its handshake; its link tells it."""

    __slots__ = ("_broker", "_context", "_has_begun", "_key", "_securing")

    def __init__(self, securing: Securing, context: ssl.SSLContext, broker: str, key: tuple[str, int]) -> None:
        self._securing = securing
        self._context = context
        self._broker = broker
        self._key = key
        self._has_begun = False

    def begin(self, tls: Tls) -> None:
        """The broker's first bytes are there: it has taken us, and given its session before them."""
        self._has_begun = True
        self._securing.keep(self._context, self._key, tls.session)

    def fail(self, why: str) -> None:
        """The broker broke TLS's rules, or refused: in TLS 1.3 it checks our certificate behind the handshake."""
        self._securing.complain(self._broker, why, is_handshake=not self._has_begun)


class Secured(NamedTuple):
    tls: Tls
    course: Course


class Securing:
    """Of one worker, with one configuration."""

    def __init__(self, settings: BrokerTls, world: World, uplink: Uplink, bench: Bench) -> None:
        self._settings = settings
        self._world = world
        self._uplink = uplink
        self._bench = bench
        self._reloaded = Reloaded(settings.files(), partial(make_broker_context, settings), _WORDS, uplink.log)
        self._context = self._reloaded.context(trio.current_time())  # so that a problem is logged before it is needed
        self._sessions: defaultdict[tuple[str, int], Sessions[ssl.SSLSession]] = defaultdict(Sessions)

    async def secure(
        self, node_id: int, host: str, port: int, sock: socket.socket, scope: trio.CancelScope
    ) -> Secured | None:
        """Shake hands on a connected, non-blocking socket. `scope` has the time limit. None: there is no TLS; it has
        been counted and said.

        Raises:
            OSError: the connection is broken.
        """
        broker = f"broker {node_id} ({address_text(host, port)})"
        context = self._reloaded.context(trio.current_time())
        if context is not self._context:
            self._context = context
            self._sessions.clear()  # they were other certificates'
        if context is None:
            self.complain(broker, self._reloaded.problem)
            return None
        key = host, port
        sessions = self._sessions[key]
        session = sessions.next()
        try:
            tls = Tls(
                context,
                sock,
                self._bench.scratch,
                host=host,
                session=session,
                explain=partial(explain, host=host, tls=self._settings),
            )
            await greet(tls, sock, self._bench.turn, scope)
            if session is not None:
                sessions.learn(tls.is_resumed)
        except HandshakeError as error:
            self.complain(broker, str(error))
            return None
        except ValueError:  # of the name
            self.complain(broker, "that is no host name that a certificate can have")
            return None
        return Secured(tls, Course(self, context, broker, key))

    def keep(self, context: ssl.SSLContext, key: tuple[str, int], session: ssl.SSLSession | None) -> None:
        """Have a later handshake with that broker go on with this session, if it still has this context: OpenSSL takes
        a session up with its own alone.
        """
        if session is not None and context is self._context:
            self._sessions[key].add(session)

    def complain(self, broker: str, why: str, *, is_handshake: bool = True) -> None:
        """There is no TLS with a broker, or no more."""
        if is_handshake:
            self._world.ledger.count("upstream_tls_handshakes_failed")
        what = "no TLS" if is_handshake else "connection closed: broken TLS"
        self._uplink.complain(
            f"TLS of {broker}: {why}", f"{broker}: {what}: {why}", {"kind": "broker-tls-failed", "reason": why}
        )
