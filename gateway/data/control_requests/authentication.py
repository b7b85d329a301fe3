# The principal of one connection, by SASL: what may come before the broker accepts one, and what its answers say.
# Sans-IO.
#
# That of a certificate holds where SASL gives none, as at a broker: where both are, SASL's is the principal.
# A claim travels in the pending entry of its request and is believed only when the broker's answer accepts it. Where
# brokers want SASL, nothing but the three APIs that lead there passes before, one step at a time (KIP-152).

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gateway.data.pending.pending import SASL
from gateway.data.pending.steps import FORWARDED
from gateway.data.shared.errors import IdentityChanged, TooManyConnections, Unauthenticated
from policies.text import ERROR_CHARS, one_line
from protocol import api
from protocol.identity import UNKNOWN, Claim, Refused, Sasl, accepted
from protocol.wire import MalformedFrame, int16

if TYPE_CHECKING:
    from gateway.data.pending.in_flight import InFlight
    from gateway.data.pending.steps import Request, Step
    from gateway.data.shared.budget import Account
    from gateway.data.shared.client import Client

MAX_UNAUTHENTICATED = 10  # requests in flight before authentication: clients send one at a time
# The requests that a broker takes before authentication (SaslServerAuthenticator): ApiVersions and the two steps of
# SASL.
BEFORE_AUTHENTICATION = frozenset({api.API_VERSIONS, api.SASL_HANDSHAKE, api.SASL_AUTHENTICATE})
# Errors in answers to SaslHandshake that only a broker gives that wants SASL: none, and UNSUPPORTED_SASL_MECHANISM. One
# that doesn't says ILLEGAL_SASL_STATE.
_UNSUPPORTED = api.ERROR_CODES["UNSUPPORTED_SASL_MECHANISM"]
_HANDSHAKE_ANSWERED = frozenset({0, _UNSUPPORTED})
# Behind this one, and an unsupported mechanism, the broker closes the connection.
_FAILED = api.ERROR_CODES["SASL_AUTHENTICATION_FAILED"]


class Demand(Protocol):
    """`wants_sasl`: clients have to authenticate by SASL; that may become known later."""

    wants_sasl: bool


class Authentication:
    """`demand`: who says whether SASL is wanted: here the cluster. `is_done`: the broker has accepted the client's
    principal. `failure`: the reason for which the broker refused the client last, for people; "": it did not.
    """

    __slots__ = ("_account", "_client", "_counted", "_in_flight", "_sasl", "demand", "failure", "is_done")

    def __init__(self, client: Client, account: Account, in_flight: InFlight) -> None:
        self._client = client
        self._account = account
        self._in_flight = in_flight
        self._sasl: Sasl | None = None
        self._counted = ""  # the principal whose connections this is among
        self.demand: Demand = client.world.cluster
        self.is_done = False
        self.failure = ""

    @property
    def is_owed(self) -> bool:
        """SASL is wanted, and this client hasn't been accepted yet."""
        return self.demand.wants_sasl and not self.is_done

    def is_open(self, now: float) -> bool:
        """Requests of any API may come. How long a session lasts is the broker's to watch."""
        return self.is_done

    def certify(self, principal: str) -> None:
        """The client's certificate makes this principal.

        Raises:
            TooManyConnections: the gateway doesn't have this client here.
        """
        self._take(principal)

    def check(self, key: int) -> None:
        """
        Raises:
            Unauthenticated: a request of that API must not come yet.
        """
        self.check_key(key)
        if key == api.SASL_AUTHENTICATE:
            self._exchange()

    @staticmethod
    def check_key(key: int) -> None:
        """
        Raises:
            Unauthenticated: requests of that API must come behind authentication.
        """
        if key not in BEFORE_AUTHENTICATION:
            raise Unauthenticated(f"{api.NAMES.get(key, key)} before authentication")

    def _exchange(self) -> Sasl:
        if self._sasl is None:
            raise Unauthenticated("SaslAuthenticate without a SaslHandshake before it")
        return self._sasl

    def claim(self, request: Request) -> Claim | None:
        """The claim of a step of SASL; None: it is the handshake.

        Raises:
            MalformedFrame: it can't be read, or the frames behind it couldn't be.
        """
        if request.key == api.SASL_AUTHENTICATE:
            return self._exchange().claim(request.buf, request.start, request.stop)
        self._sasl = Sasl()
        if self._sasl.on_handshake(request.buf, request.start, request.stop) == 0:
            raise MalformedFrame("SaslHandshake version 0: raw tokens would follow; this client must use version 1")
        return None

    def take(self, request: Request, now: float) -> Step:
        """Let a step of SASL pass; nothing behind it is read before its answer.

        Raises:
            MalformedFrame: see `claim`.
        """
        self._in_flight.append((request.correlation, SASL, self.claim(request)))
        self._in_flight.is_waiting = True
        return FORWARDED

    def take_answer(self, buf: bytearray, start: int, stop: int, claim: Claim | None) -> None:
        """Take the broker's answer to the step that made this claim.

        Raises:
            Excluded: the gateway doesn't have this client here.
        """
        if claim is None:
            error, _ = int16(buf, start + 4, stop)
            world = self._client.world
            if error in _HANDSHAKE_ANSWERED and not world.cluster.wants_sasl:
                world.cluster.wants_sasl = True
                world.ledger.renew()  # other connections have to authenticate as well from here on
            if error == _UNSUPPORTED:
                self._fail("the broker does not offer this SASL mechanism")
            return
        try:
            principal = accepted(buf, start, stop, claim)
        except Refused as refusal:
            if refusal.code == _FAILED:  # behind any other the client stays who it is
                self._fail(one_line(str(refusal), ERROR_CHARS))
            return
        if principal is None:
            return
        self.failure = ""
        known = self._client.principal
        if not self.is_done:
            self.is_done = True
            self._take(principal)
        elif principal != known and UNKNOWN not in (principal, known):
            # No broker does that (KIP-368): one of us has read the name wrongly.
            raise IdentityChanged(f"{principal} was accepted on a connection of {known}")

    def _fail(self, why: str) -> None:
        self.failure = f"authentication failed: {why}"
        self._client.world.ledger.count("authentications_failed")

    def _take(self, principal: str) -> None:
        self.close()  # with the principal that it had
        self._client.authenticate(principal)
        if principal == UNKNOWN:  # which may be many: only the broker can tell them apart
            return
        self._account.rename(principal)
        world = self._client.world
        world.principals[principal] += 1
        self._counted = principal
        most = world.settings.max_connections_per_principal
        if world.principals[principal] > most:
            raise TooManyConnections(f"{principal} has {most} connections already")

    def close(self) -> None:
        """The connection is over."""
        principal, principals = self._counted, self._client.world.principals
        if principal:
            self._counted = ""
            principals[principal] -= 1
            if not principals[principal]:
                del principals[principal]
