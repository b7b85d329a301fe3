# The principal of one connection, by SASL: what may come before the broker accepts one, and what its answers say.
# Sans-IO.
#
# A claim travels in the pending entry of its request and is believed only when the broker's answer accepts it. Where
# brokers want SASL, nothing but the three APIs that lead there passes before, one step at a time (KIP-152).

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.data.ends import IdentityChanged, TooManyConnections, Unauthenticated
from protocol import api
from protocol.identity import UNKNOWN, Claim, Sasl, accepted
from protocol.wire import MalformedFrame, int16

if TYPE_CHECKING:
    from gateway.data.budget import Account
    from gateway.data.gate import Gate
    from gateway.data.steps import Request

MAX_UNAUTHENTICATED = 10  # requests in flight before authentication: clients send one at a time
# What a broker takes before authentication (SaslServerAuthenticator): ApiVersions and the two steps of SASL.
BEFORE_AUTHENTICATION = frozenset({api.API_VERSIONS, api.SASL_HANDSHAKE, api.SASL_AUTHENTICATE})
# Errors in answers to SaslHandshake that only a broker gives that wants SASL: none, and UNSUPPORTED_SASL_MECHANISM. One
# that doesn't says ILLEGAL_SASL_STATE.
_HANDSHAKE_ANSWERED = frozenset({0, 33})


class Authentication:
    """`is_done`: the broker has accepted the client's principal."""

    __slots__ = ("_account", "_gate", "_sasl", "is_done")

    def __init__(self, gate: Gate, account: Account) -> None:
        self._gate = gate
        self._account = account
        self._sasl: Sasl | None = None
        self.is_done = False

    @property
    def is_owed(self) -> bool:
        """The broker wants SASL, and hasn't accepted this client yet."""
        return self._gate.world.wants_sasl and not self.is_done

    def check(self, key: int) -> None:
        """
        Raises:
            Unauthenticated: a request of that API must not come yet.
        """
        if key not in BEFORE_AUTHENTICATION:
            raise Unauthenticated(f"{api.NAMES.get(key, key)} before authentication")
        if key == api.SASL_AUTHENTICATE:
            self._exchange()

    def _exchange(self) -> Sasl:
        if self._sasl is None:
            raise Unauthenticated("SaslAuthenticate without a SaslHandshake before it")
        return self._sasl

    def claim(self, request: Request) -> Claim | None:
        """What a step of SASL claims; None: it is the handshake.

        Raises:
            MalformedFrame: it can't be read, or nothing behind it could be.
        """
        if request.key == api.SASL_AUTHENTICATE:
            return self._exchange().claim(request.buf, request.start, request.stop)
        self._sasl = Sasl()
        if self._sasl.on_handshake(request.buf, request.start, request.stop) == 0:
            raise MalformedFrame("SaslHandshake version 0: raw tokens would follow; this client must use version 1")
        return None

    def take_answer(self, buf: bytearray, start: int, stop: int, claim: Claim | None) -> None:
        """The broker's answer to the step that claimed this.

        Raises:
            Excluded: the gateway doesn't have this client here.
        """
        if claim is None:
            error, _ = int16(buf, start + 4, stop)
            if error in _HANDSHAKE_ANSWERED:
                self._gate.world.wants_sasl = True
            return
        principal = accepted(buf, start, stop, claim)
        if principal is None:
            return
        known = self._gate.principal
        if not self.is_done:
            self._enter(principal)
        elif principal != known and UNKNOWN not in (principal, known):
            # No broker does that (KIP-368): one of us has read the name wrongly.
            raise IdentityChanged(f"{principal} was accepted on a connection of {known}")

    def _enter(self, principal: str) -> None:
        self.is_done = True
        self._gate.authenticate(principal)
        if principal == UNKNOWN:  # which may be many: only the broker can tell them apart
            return
        self._account.rename(principal)
        world = self._gate.world
        world.principals[principal] += 1
        most = world.settings.max_connections_per_principal
        if world.principals[principal] > most:
            raise TooManyConnections(f"{principal} has {most} connections already")

    def close(self) -> None:
        """The connection is over."""
        principal, principals = self._gate.principal, self._gate.world.principals
        if self.is_done and principal != UNKNOWN:
            principals[principal] -= 1
            if not principals[principal]:
                del principals[principal]
