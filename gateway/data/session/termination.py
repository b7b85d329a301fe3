# The principal of one connection where SASL ends at the gateway: what the client's steps wait for, what comes of them,
# and how long that holds. Sans-IO, and blind: the steps are read and answered by control, which has the credentials.
# Here they take turns as admin requests do (admin_turn.py), and no password stays in a worker.
#
#   client ── step of SASL ──► control ──┬─► challenge for the client
#                                        ├─► a step for the broker, by which the gateway authenticates itself for this
#                                        │   client; its answer goes to control again, until the broker has accepted
#                                        └─► the client's last answer, and who it is
#
# The gateway authenticates to the broker before any request of the client's passes, and again where the session ends
# (KIP-368), before the next request; where the client's ends, nothing but SASL passes before the client has
# authenticated again.

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway.data.control_requests.authentication import ClientAuthentication
from gateway.data.pending.steps import ANSWER, HOLD, RequestStep
from gateway.data.shared import admin_turn
from gateway.data.shared.admin_turn import AdminTurn
from gateway.data.shared.errors import AuthenticationFailed, TooManyConnections, UnauthenticatedRequest
from protocol import api
from protocol.authentication.handshake import SASL_HANDSHAKE, SaslHandshakeResponse
from protocol.framing import check_request_head

if TYPE_CHECKING:
    from gateway.channel import SaslIdentity, TerminatedSasl
    from gateway.data.control_requests.admin_requests import AdminRequests
    from gateway.data.pending.hold import RequestHold
    from gateway.data.pending.in_flight import InFlightRequests
    from gateway.data.pending.steps import ApiRequest
    from gateway.data.session.requests import RequestHandler
    from gateway.data.shared.budget import MemoryAccount
    from gateway.data.shared.client import ConnectedClient

# When a session with the broker is renewed. KIP-368 has clients do it after 85 to 95 %, which is too late for a slow
# machine where sessions are short: so it is RENEW_BEFORE_S sooner than its end, though not in its first half.
RENEWAL_SHARE = 0.85
RENEW_BEFORE_S = 5.0
# Behind the client's session, for what it sent before: longer than a limit holds requests of any known client. The
# timeout that a client names is no bound: whose token has been taken away could name a month.
MAX_HELD_S = 60.0
MAX_STEP_BYTES = 600 * 1024  # of a step of SASL; framing.py takes no more than 512 KiB


class _ListenerDemand:
    """Says whether clients of a listener have to authenticate at the gateway."""

    __slots__ = ("wants_sasl",)

    def __init__(self, wants_sasl: bool) -> None:
        self.wants_sasl = wants_sasl


class SaslTermination(ClientAuthentication):
    """SASL that ends at the gateway, on one connection. `due_at`: the time from which requests no longer pass
    unchanged, because the client's session, or the gateway's with the broker, has ended.
    """

    __slots__ = ("_admin", "_mechanism", "_memo", "_sasl_settings", "_session_until", "_upstream_until", "due_at")

    def __init__(
        self,
        client: ConnectedClient,
        account: MemoryAccount,
        admin: AdminRequests,
        in_flight: InFlightRequests,
        own: TerminatedSasl,
    ) -> None:
        super().__init__(client, account, in_flight)
        self.sasl_demand = _ListenerDemand(bool(own.mechanisms))
        self._admin = admin
        self._sasl_settings = own
        self._mechanism = ""  # of the exchange that goes on
        self._memo = b""  # what control wants to know of it again
        self._session_until = self._upstream_until = self.due_at = math.inf

    def accept_certificate(self, principal: str) -> None:
        """Take the principal from the client's certificate; the broker has to learn it.

        Raises:
            TooManyConnections: the principal has as many connections as it may have.
        """
        self.is_authenticated = True
        super().accept_certificate(principal)
        if self._sasl_settings.authenticates_upstream:
            self._upstream_until = self.due_at = -math.inf

    def allows_requests(self, now: float) -> bool:
        """Requests of any API may come: the client's session has not ended."""
        return self.is_authenticated and now < self._session_until

    def allows_held_request(self, hold: RequestHold, now: float) -> bool:
        """Whether the request at the head of the unread input came in the client's session, and has waited here since.
        Its client could not say in time who it is: that step stands behind it.
        """
        until = self._session_until
        return bool(hold.arrived_at) and hold.drained_at < until and now < until + MAX_HELD_S

    # --- the client's steps -------------------------------------------------------------------------------------------

    def check_api(self, key: int) -> None:
        """
        Raises:
            UnauthenticatedRequest: a request of that API must not come yet.
        """
        self.check_unauthenticated_api(key)
        if key == api.SASL_AUTHENTICATE and not self._mechanism:
            raise UnauthenticatedRequest("SaslAuthenticate without a SaslHandshake before it")

    def handle_step(self, request: ApiRequest, now: float) -> RequestStep:
        """Handle a step of SASL, the request at the head; it may have been handled before, without a result yet.

        Raises:
            MalformedFrame: the connection ends, after an answer if there is one.
        """
        if request.key == api.SASL_HANDSHAKE:
            return RequestStep(ANSWER, self._choose_mechanism(request))
        self.check_api(request.key)
        turn = self._admin.turn
        if turn is None:
            frame = bytes(memoryview(request.buf)[request.start : request.stop])
            turn = AdminTurn(frame, MAX_STEP_BYTES, self._mechanism, self._memo)
            self._admin.begin_turn(turn)
        move, frame = self._admin.advance_turn(turn, now)
        if move != admin_turn.REPLY_TO_CLIENT:
            return RequestStep(HOLD, frame, turn.until)
        self._memo = turn.memo
        if turn.why:
            self._in_flight.enqueue_local_response(frame)
            self._client.world.ledger.count_event("authentications_failed")
            raise AuthenticationFailed(f"authentication failed: {turn.why}")
        if turn.identity is not None:
            self._mechanism = ""
            self._adopt_identity(turn.identity, now)
        return RequestStep(ANSWER, frame)

    def _choose_mechanism(self, request: ApiRequest) -> bytes:
        asked = SASL_HANDSHAKE.decode_request(request.buf, request.start, request.stop)
        offered = self._sasl_settings.mechanisms
        is_offered = asked.body.mechanism in offered
        self._mechanism, self._memo = asked.body.mechanism if is_offered else "", b""
        error = 0 if is_offered else api.ERROR_CODES["UNSUPPORTED_SASL_MECHANISM"]
        return SASL_HANDSHAKE.encode_response(
            SaslHandshakeResponse(error, offered), asked.version, asked.correlation_id
        )

    def _adopt_identity(self, identity: SaslIdentity, now: float) -> None:
        known = self._client.principal
        if not self.is_authenticated:
            self.is_authenticated = True
            try:
                self._adopt_principal(identity.principal)
            except TooManyConnections as error:
                raise AuthenticationFailed(str(error)) from error
        elif identity.principal != known:  # control refuses that; see KIP-368
            raise AuthenticationFailed(f"{identity.principal} on a connection of {known}")
        self._session_until = now + identity.session_ms / 1000 if identity.session_ms else math.inf
        self._record_upstream_session(identity, now)

    def _record_upstream_session(self, identity: SaslIdentity, now: float) -> None:
        if identity.upstream_ms is not None:
            whole = identity.upstream_ms / 1000
            lasts = max(whole / 2, min(whole * RENEWAL_SHARE, whole - RENEW_BEFORE_S))
            self._upstream_until = now + lasts if lasts else math.inf
        self.due_at = min(self._session_until, self._upstream_until)

    # --- the broker ---------------------------------------------------------------------------------------------------

    def renew_upstream_session(self, now: float) -> RequestStep | None:
        """The step that must come before the next request may go to the broker; None: none.

        Raises:
            AuthenticationFailed: the broker refuses the gateway.
        """
        turn = self._admin.turn
        if turn is None:
            if now < self._upstream_until:
                return None
            turn = AdminTurn(b"", 0)
            self._admin.begin_turn(turn)
        elif turn.request:
            return None  # the client's own
        move, frame = self._admin.advance_turn(turn, now)
        if move != admin_turn.FORWARD_REQUEST:
            return RequestStep(HOLD, frame, turn.until)
        if turn.identity is None:
            raise AuthenticationFailed(turn.why)
        self._record_upstream_session(turn.identity, now)
        return None


class TerminatedRequests:
    """Requests of a connection whose SASL ends at the gateway: its `handle_requests` replaces
    `RequestHandler.handle_requests`.
    """

    __slots__ = ("_hold", "_requests", "_termination")

    def __init__(self, requests: RequestHandler, termination: SaslTermination, hold: RequestHold) -> None:
        self._requests = requests
        self._termination = termination
        self._hold = hold

    def handle_requests(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """See RequestHandler.handle_requests."""
        termination, requests = self._termination, self._requests
        if now < termination.due_at or not termination.is_authenticated:
            return requests.handle_requests(buf, pos, end, now)
        if not (termination.allows_requests(now) or termination.allows_held_request(self._hold, now)):
            pos = requests.handle_unauthenticated(buf, pos, end, now)
            if not termination.allows_requests(now):
                return pos
        length = check_request_head(buf, pos, end, requests.max_request_bytes)
        if not length or pos + length > end:
            return requests.handle_requests(buf, pos, end, now)
        step = termination.renew_upstream_session(now)
        if step is None:
            return requests.handle_requests(buf, pos, end, now)
        if step.frame:
            requests.to_upstream.append(step.frame)
        self._hold.held_until = step.until
        return pos
