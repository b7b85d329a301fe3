# The core of one client connection: bytes in, bytes out, no socket, no clock, no await. Here its parts are joined:
#
#   client ──► requests ──► to_upstream        authentication   the client's principal, by SASL; termination
#                 │                            enforcement      a Produce request that some limit concerns; lookup
#              in flight, hold                 fetches          Fetch where some limit concerns it; dispatch
#                 │                            admin            admin requests that control answers
#                 │                            gate             what may pass; accounts, how it is counted
#   to_client ◄── responses ◄── broker         client           who it is
#
# The link (links.py) feeds both ends with what it has read and sends what is left in `to_upstream` and `to_client`. A
# session that has to wait stops before the request in question and says until when in `hold.held_until`; the link parks
# the rest and calls again. `now` is the link's monotonic clock in seconds.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.data.control_requests.admin_requests import AdminRequests
from gateway.data.control_requests.authentication import ClientAuthentication
from gateway.data.control_requests.lookup import TopicIdLookup
from gateway.data.pending.hold import RequestHold
from gateway.data.pending.in_flight import InFlightRequests
from gateway.data.pending.pending import ACKS0, PRODUCE
from gateway.data.session.enforcement import ProduceEnforcement
from gateway.data.session.fetches import FetchLimiter
from gateway.data.session.gate import ProduceGate
from gateway.data.session.requests import RequestHandler
from gateway.data.session.responses import ResponseHandler
from gateway.data.session.termination import SaslTermination, TerminatedRequests
from gateway.data.shared.budget import MemoryCharge
from gateway.data.shared.client import ConnectedClient
from gateway.listener_names import DEFAULT_LISTENER
from policies.verdict import STORAGE_PAUSE

if TYPE_CHECKING:
    from gateway.data.session.fast_path import ForwardingTerms, ResponseCounters
    from gateway.data.shared.budget import MemoryAccount
    from gateway.data.shared.worker_state import WorkerState

FETCH_WAIT_REASON = "fetch"  # a client quota or a resource group that limits what consumers get
FENCE_ENTRY_BYTES = 850  # of one entry of a fence, about


class ClientSession:
    """One client connection to `listener`, joined to one upstream connection of broker `node_id`.

    Attributes:
        account: the one that memory is charged to.
        to_upstream, to_client: the bytes to be sent next, in order: memoryviews of the caller's buffer, or bytes. The
            link empties them after every call.
        on_client_bytes, on_upstream_bytes: handle the bytes in buf[pos:end] and return the position of the first
            unhandled one: see RequestHandler.handle_requests and ResponseHandler.handle_responses.
    """

    __slots__ = (
        "_fence_charge",
        "_request_handler",
        "_response_handler",
        "account",
        "admin_requests",
        "authentication",
        "client",
        "fetch_limiter",
        "gate",
        "hold",
        "in_flight",
        "on_client_bytes",
        "on_upstream_bytes",
        "to_client",
        "to_upstream",
    )

    def __init__(
        self, world: WorkerState, node_id: int, account: MemoryAccount, now: float, listener: str = DEFAULT_LISTENER
    ) -> None:
        self.account = account
        self.client = client = ConnectedClient(world, node_id, listener)
        self.gate = gate = ProduceGate(client)
        self.hold = hold = RequestHold(now)
        self.in_flight = in_flight = InFlightRequests(account)
        lookup = TopicIdLookup(world.ledger)
        self.fetch_limiter = fetches = FetchLimiter(client, hold)
        self.admin_requests = admin = AdminRequests(client, in_flight, account)
        own = world.terminated_sasl(listener)
        authentication = (
            ClientAuthentication(client, account, in_flight)
            if own is None
            else SaslTermination(client, account, admin, in_flight, own)
        )
        self.authentication: ClientAuthentication = authentication
        enforcement = ProduceEnforcement(gate, in_flight, hold, lookup)
        self._response_handler = ResponseHandler(gate, in_flight, hold, authentication, lookup, fetches, admin)
        self._request_handler = RequestHandler(gate, in_flight, hold, authentication, enforcement, fetches, admin)
        self.on_client_bytes, self.on_upstream_bytes = (
            self._request_handler.handle_requests,
            self._response_handler.handle_responses,
        )  # no call for each request
        if isinstance(authentication, SaslTermination):
            self.on_client_bytes = TerminatedRequests(self._request_handler, authentication, hold).handle_requests
        self._fence_charge = MemoryCharge(account)
        self.to_upstream: list[Any] = self._request_handler.to_upstream
        self.to_client: list[Any] = in_flight.outgoing

    @property
    def is_idle(self) -> bool:
        """Nothing is owed to the client, and no request is in progress."""
        return not self.in_flight and self.admin_requests.turn is None

    @property
    def owes_records(self) -> bool:
        """Whether the broker still has to answer for records."""
        return any(entry[1] in (PRODUCE, ACKS0) for entry in self.in_flight)

    @property
    def response_counters(self) -> ResponseCounters | None:
        """Note usual responses (fast_path.pyx); None: not compiled."""
        return self._response_handler.counters

    @property
    def needs_whole_response(self) -> bool:
        """Whether the next response is handled whole, not streamed: the link must make room for it."""
        return self._response_handler.needs_whole_response

    def current_terms(self, now: float) -> ForwardingTerms | None:
        """The terms on which requests and responses pass unchanged; None: they don't. They hold until the session is
        used for anything else, or the ledger's epoch or the quotas' version changes.
        """
        if isinstance(self.authentication, SaslTermination):
            return None
        return self._request_handler.current_terms(now)

    def may_resume(self, now: float) -> bool:
        """Whether the request at the head of the unread input no longer has to wait."""
        hold = self.hold
        if hold.is_draining:
            return True
        if self.admin_requests.turn is not None:
            return self.admin_requests.can_advance(hold.held_until, now)
        return now >= hold.held_until if hold.held_until else self.in_flight.has_room

    @property
    def wait_reason(self) -> str:
        """The reason of the limit for which the request at the head of the unread input waits; "": it waits for
        something else.
        """
        hold = self.hold
        if hold.paused_since:
            return STORAGE_PAUSE
        if hold.held_until and hold.held_until == hold.muted_until:
            return hold.mute_reason
        return FETCH_WAIT_REASON if hold.held_until and hold.held_until == self.fetch_limiter.muted_until else ""

    def stop_answering(self) -> None:
        """The client learns that no more responses come. It sends later requests again elsewhere, except those with
        acks=0.
        """
        self._request_handler.skip_remaining()

    def expire_fences(self, now: float) -> None:
        """Drop fences that are over, and charge the memory of the others. Call it every few seconds."""
        fence = self.gate.fence
        fence.expire_entries(now)
        self._fence_charge.update_size(len(fence.entries) * FENCE_ENTRY_BYTES)

    def close(self, parked: tuple[bytearray, int, int] | None = None) -> None:
        """Settle the accounts of requests that were forwarded and not answered, or read and never forwarded."""
        gate, accounts, in_flight = self.gate, self.gate.accounts, self.in_flight
        self._fence_charge.update_size(0)
        if gate.epoch != gate.world.ledger.epoch:
            gate.refresh_epoch()
        for entry in in_flight:
            if entry[1] == PRODUCE:
                _, _, version, parts, _, _, charged, _ = entry
                in_flight.release_partitions(parts)
                accounts.record_outcome(parts, version, "unanswered")
                accounts.retract_forwarded(parts, version, charged)
            elif entry[1] == ACKS0:
                _, _, version, parts, charged = entry
                in_flight.release_partitions(parts)
                accounts.retract_forwarded(parts, version, charged)
        in_flight.drop_all()
        self.fetch_limiter.close()
        self.admin_requests.close()
        self.authentication.close()
        if parked is not None and not self.authentication.is_outstanding:
            self._request_handler.discard_requests(*parked)
