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
from gateway.data.shared.errors import IdentityChanged, TooManyConnections, UnauthenticatedRequest
from policies.text import ERROR_CHARS, one_line
from protocol import api
from protocol.rewriting.identity import UNKNOWN_PRINCIPAL, SaslClaim, SaslFollower, SaslRefused, accepted_principal
from protocol.wire import MalformedFrame, read_int16

if TYPE_CHECKING:
    from gateway.data.pending.in_flight import InFlightRequests
    from gateway.data.pending.steps import ApiRequest, RequestStep
    from gateway.data.shared.budget import MemoryAccount
    from gateway.data.shared.client import ConnectedClient

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


class SaslDemand(Protocol):
    """`wants_sasl`: whether clients have to authenticate by SASL. It may change from False to True at run time."""

    wants_sasl: bool


class ClientAuthentication:
    """`sasl_demand`: says whether SASL is required: here the cluster does. `is_authenticated`: the broker has accepted
    the client's principal. `failure`: why the broker refused the client last, for people; "" if it did not.
    """

    __slots__ = (
        "_account",
        "_client",
        "_counted_principal",
        "_in_flight",
        "_sasl",
        "failure",
        "is_authenticated",
        "sasl_demand",
    )

    def __init__(self, client: ConnectedClient, account: MemoryAccount, in_flight: InFlightRequests) -> None:
        self._client = client
        self._account = account
        self._in_flight = in_flight
        self._sasl: SaslFollower | None = None
        self._counted_principal = ""  # the principal whose connections this is among
        self.sasl_demand: SaslDemand = client.world.cluster
        self.is_authenticated = False
        self.failure = ""

    @property
    def is_outstanding(self) -> bool:
        """SASL is required, and this client has not been accepted yet."""
        return self.sasl_demand.wants_sasl and not self.is_authenticated

    def allows_requests(self, now: float) -> bool:
        """Requests of any API may come. The broker, not the gateway, watches how long a session lasts."""
        return self.is_authenticated

    def accept_certificate(self, principal: str) -> None:
        """Take the principal from the client's certificate.

        Raises:
            TooManyConnections: the principal has as many connections as it may have.
        """
        self._adopt_principal(principal)

    def check_api(self, key: int) -> None:
        """
        Raises:
            UnauthenticatedRequest: a request of that API must not come yet.
        """
        self.check_unauthenticated_api(key)
        if key == api.SASL_AUTHENTICATE:
            self._current_exchange()

    @staticmethod
    def check_unauthenticated_api(key: int) -> None:
        """
        Raises:
            UnauthenticatedRequest: requests of that API must come behind authentication.
        """
        if key not in BEFORE_AUTHENTICATION:
            raise UnauthenticatedRequest(f"{api.API_NAMES.get(key, key)} before authentication")

    def _current_exchange(self) -> SaslFollower:
        if self._sasl is None:
            raise UnauthenticatedRequest("SaslAuthenticate without a SaslHandshake before it")
        return self._sasl

    def read_claim(self, request: ApiRequest) -> SaslClaim | None:
        """The identity that a step of SASL claims; None: the step is the handshake.

        Raises:
            MalformedFrame: the step, or the frames after it, can't be read.
        """
        if request.key == api.SASL_AUTHENTICATE:
            return self._current_exchange().read_claim(request.buf, request.start, request.stop)
        self._sasl = SaslFollower()
        if self._sasl.on_handshake(request.buf, request.start, request.stop) == 0:
            raise MalformedFrame("SaslHandshake version 0: raw tokens would follow; this client must use version 1")
        return None

    def handle_step(self, request: ApiRequest, now: float) -> RequestStep:
        """Forward a step of SASL; nothing after it is read before its answer.

        Raises:
            MalformedFrame: see `read_claim`.
        """
        self._in_flight.append((request.correlation, SASL, self.read_claim(request)))
        self._in_flight.is_reading_blocked = True
        return FORWARDED

    def on_broker_answer(self, buf: bytearray, start: int, stop: int, claim: SaslClaim | None) -> None:
        """The broker's answer to the step that made this claim.

        Raises:
            ClientExcluded: the gateway does not accept this client on this connection.
        """
        if claim is None:
            error, _ = read_int16(buf, start + 4, stop)
            world = self._client.world
            if error in _HANDSHAKE_ANSWERED and not world.cluster.wants_sasl:
                world.cluster.wants_sasl = True
                world.ledger.advance_epoch()  # other connections have to authenticate as well from here on
            if error == _UNSUPPORTED:
                self._record_failure("the broker does not offer this SASL mechanism")
            return
        try:
            principal = accepted_principal(buf, start, stop, claim)
        except SaslRefused as refusal:
            if refusal.code == _FAILED:  # behind any other the client stays who it is
                self._record_failure(one_line(str(refusal), ERROR_CHARS))
            return
        if principal is None:
            return
        self.failure = ""
        known = self._client.principal
        if not self.is_authenticated:
            self.is_authenticated = True
            self._adopt_principal(principal)
        elif principal != known and UNKNOWN_PRINCIPAL not in (principal, known):
            # No broker does that (KIP-368): one of us has read the name wrongly.
            raise IdentityChanged(f"{principal} was accepted on a connection of {known}")

    def _record_failure(self, why: str) -> None:
        self.failure = f"authentication failed: {why}"
        self._client.world.ledger.count_event("authentications_failed")

    def _adopt_principal(self, principal: str) -> None:
        self.close()  # with the principal that it had
        self._client.set_principal(principal)
        if principal == UNKNOWN_PRINCIPAL:  # which may be many: only the broker can distinguish them
            return
        self._account.change_owner(principal)
        world = self._client.world
        world.principal_counts[principal] += 1
        self._counted_principal = principal
        most = world.limits.max_connections_per_principal
        if world.principal_counts[principal] > most:
            raise TooManyConnections(f"{principal} has {most} connections already")

    def close(self) -> None:
        """The connection has ended."""
        principal, principals = self._counted_principal, self._client.world.principal_counts
        if principal:
            self._counted_principal = ""
            principals[principal] -= 1
            if not principals[principal]:
                del principals[principal]
