# The principal of one connection where SASL ends at the gateway: what the client's steps wait for, what comes of them,
# and how long that holds. Sans-IO, and blind: the steps are read and answered by control, which has the credentials.
# Here they take turns as admin requests do (admin_turn.py), and no password stays in a worker.
#
#   client ── step of SASL ──► control ──┬─► challenge for the client
#                                        ├─► a step for the broker, by which the gateway authenticates itself for this
#                                        │   client; its answer goes to control again, until the broker has accepted
#                                        └─► the client's last answer, and who it is
#
# The broker is told before any request of the client's passes. Where its session ends (KIP-368) it is told again before
# the next request; where the client's ends, nothing but SASL passes before the client has authenticated again.

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway.data.control_requests.authentication import Authentication
from gateway.data.pending.steps import ANSWER, HOLD, Step
from gateway.data.shared import admin_turn
from gateway.data.shared.admin_turn import AdminTurn
from gateway.data.shared.errors import AuthenticationFailed, TooManyConnections, Unauthenticated
from protocol import api
from protocol.framing import check_request_head
from protocol.handshake import SASL_HANDSHAKE, SaslHandshakeAnswer

if TYPE_CHECKING:
    from gateway.channel import Identity, OwnSasl
    from gateway.data.control_requests.admin_requests import AdminRequests
    from gateway.data.pending.hold import Hold
    from gateway.data.pending.in_flight import InFlight
    from gateway.data.pending.steps import Request
    from gateway.data.session.requests import Requests
    from gateway.data.shared.budget import Account
    from gateway.data.shared.client import Client

# When a session with the broker is renewed. KIP-368 has clients do it after 85 to 95 %, which is too late for a slow
# machine where sessions are short: so it is RENEW_BEFORE_S sooner than its end, though not in its first half.
RENEW_AT = 0.85
RENEW_BEFORE_S = 5.0
MAX_FRAME = 600 * 1024  # of a step of SASL; framing.py takes no more than 512 KiB


class _Here:
    """Whether clients of a listener have to authenticate at the gateway."""

    __slots__ = ("wants_sasl",)

    def __init__(self, wants_sasl: bool) -> None:
        self.wants_sasl = wants_sasl


class Termination(Authentication):
    """`due_at`: the time from which requests can't pass as they are: a session has ended, the client's or the
    gateway's with the broker.
    """

    __slots__ = ("_admin", "_mechanism", "_memo", "_own", "_session_until", "_upstream_until", "due_at")

    def __init__(
        self, client: Client, account: Account, admin: AdminRequests, in_flight: InFlight, own: OwnSasl
    ) -> None:
        super().__init__(client, account, in_flight)
        self.demand = _Here(bool(own.mechanisms))
        self._admin = admin
        self._own = own
        self._mechanism = ""  # of the exchange that goes on
        self._memo = b""  # what control wants to know of it again
        self._session_until = self._upstream_until = self.due_at = math.inf

    def certify(self, principal: str) -> None:
        """The client's certificate makes this principal; the broker has to be told that.

        Raises:
            TooManyConnections: the gateway doesn't have this client here.
        """
        self.is_done = True
        super().certify(principal)
        if self._own.tells_brokers:
            self._upstream_until = self.due_at = -math.inf

    def is_open(self, now: float) -> bool:
        """Requests of any API may come: the client's session lasts."""
        return self.is_done and now < self._session_until

    # --- the client's steps -------------------------------------------------------------------------------------------

    def check(self, key: int) -> None:
        """
        Raises:
            Unauthenticated: a request of that API must not come yet.
        """
        self.check_key(key)
        if key == api.SASL_AUTHENTICATE and not self._mechanism:
            raise Unauthenticated("SaslAuthenticate without a SaslHandshake before it")

    def take(self, request: Request, now: float) -> Step:
        """A step of SASL, the request at the head, however often it was looked at before.

        Raises:
            MalformedFrame: the connection ends; behind an answer, if there is one.
        """
        if request.key == api.SASL_HANDSHAKE:
            return Step(ANSWER, self._choose(request))
        self.check(request.key)
        turn = self._admin.turn
        if turn is None:
            frame = bytes(memoryview(request.buf)[request.start : request.stop])
            turn = AdminTurn(frame, MAX_FRAME, self._mechanism, self._memo)
            self._admin.begin(turn)
        move, frame = self._admin.move(turn, now)
        if move != admin_turn.REPLY:
            return Step(HOLD, frame, turn.until)
        self._memo = turn.memo
        if turn.why:
            self._in_flight.answer(frame)
            self._client.world.ledger.count("authentications_failed")
            raise AuthenticationFailed(f"authentication failed: {turn.why}")
        if turn.identity is not None:
            self._mechanism = ""
            self._believe(turn.identity, now)
        return Step(ANSWER, frame)

    def _choose(self, request: Request) -> bytes:
        asked = SASL_HANDSHAKE.decode_request(request.buf, request.start, request.stop)
        offered = self._own.mechanisms
        is_offered = asked.body.mechanism in offered
        self._mechanism, self._memo = asked.body.mechanism if is_offered else "", b""
        error = 0 if is_offered else api.ERROR_CODES["UNSUPPORTED_SASL_MECHANISM"]
        return SASL_HANDSHAKE.encode_answer(SaslHandshakeAnswer(error, offered), asked.version, asked.correlation_id)

    def _believe(self, identity: Identity, now: float) -> None:
        known = self._client.principal
        if not self.is_done:
            self.is_done = True
            try:
                self._take(identity.principal)
            except TooManyConnections as error:
                raise AuthenticationFailed(str(error)) from error
        elif identity.principal != known:  # control refuses that; see KIP-368
            raise AuthenticationFailed(f"{identity.principal} on a connection of {known}")
        self._session_until = now + identity.session_ms / 1000 if identity.session_ms else math.inf
        self._note_upstream(identity, now)

    def _note_upstream(self, identity: Identity, now: float) -> None:
        if identity.upstream_ms is not None:
            whole = identity.upstream_ms / 1000
            lasts = max(whole / 2, min(whole * RENEW_AT, whole - RENEW_BEFORE_S))
            self._upstream_until = now + lasts if lasts else math.inf
        self.due_at = min(self._session_until, self._upstream_until)

    # --- the broker ---------------------------------------------------------------------------------------------------

    def renew(self, now: float) -> Step | None:
        """The step that has to come before the next request may go to the broker. None: nothing.

        Raises:
            AuthenticationFailed: the broker refuses the gateway.
        """
        turn = self._admin.turn
        if turn is None:
            if now < self._upstream_until:
                return None
            turn = AdminTurn(b"", 0)
            self._admin.begin(turn)
        elif turn.request:
            return None  # the client's own
        move, frame = self._admin.move(turn, now)
        if move != admin_turn.FORWARD:
            return Step(HOLD, frame, turn.until)
        if turn.identity is None:
            raise AuthenticationFailed(turn.why)
        self._note_upstream(turn.identity, now)
        return None


class TerminatedRequests:
    """The requests of a connection whose SASL ends here: `handle` stands in the place of `Requests.handle`."""

    __slots__ = ("_hold", "_requests", "_termination")

    def __init__(self, requests: Requests, termination: Termination, hold: Hold) -> None:
        self._requests = requests
        self._termination = termination
        self._hold = hold

    def handle(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """See Requests.handle."""
        termination, requests = self._termination, self._requests
        if now < termination.due_at or not termination.is_done:
            return requests.handle(buf, pos, end, now)
        if not termination.is_open(now):
            pos = requests.handle_unauthenticated(buf, pos, end, now)
            if not termination.is_open(now):
                return pos
        length = check_request_head(buf, pos, end, requests.max_bytes)
        if not length or pos + length > end:
            return requests.handle(buf, pos, end, now)
        step = termination.renew(now)
        if step is None:
            return requests.handle(buf, pos, end, now)
        if step.frame:
            requests.to_upstream.append(step.frame)
        self._hold.until = step.until
        return pos
