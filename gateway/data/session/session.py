# The core of one client connection: bytes in, bytes out, no socket, no clock, no await. Here its parts are joined:
#
#   client ──► requests ──► to_upstream        authentication   the client's principal, by SASL; termination
#                 │                            enforcement      a Produce request that some limit concerns; lookup
#              in flight, hold                 fetches          Fetch where some limit concerns it; dispatch
#                 │                            admin            admin requests that control answers
#                 │                            gate             what may pass; accounts, how it is counted
#   to_client ◄── answers ◄── broker           client           who it is
#
# The link (links.py) feeds both ends with what it has read and sends what is left in `to_upstream` and `to_client`. A
# session that has to wait stops before the request in question and says until when in `hold.until`; the link parks the
# rest and calls again. `now` is the link's monotonic clock in seconds.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.data.control_requests.admin_requests import AdminRequests
from gateway.data.control_requests.authentication import Authentication
from gateway.data.control_requests.lookup import Lookup
from gateway.data.pending.hold import Hold
from gateway.data.pending.in_flight import InFlight
from gateway.data.pending.pending import ACKS0, PRODUCE
from gateway.data.session.answers import Answers
from gateway.data.session.enforcement import Enforcement
from gateway.data.session.fetches import Fetches
from gateway.data.session.gate import Gate
from gateway.data.session.requests import Requests
from gateway.data.session.termination import TerminatedRequests, Termination
from gateway.data.shared.budget import Charge
from gateway.data.shared.client import Client
from gateway.listener_names import DEFAULT_LISTENER
from policies.verdict import STORAGE_PAUSE

if TYPE_CHECKING:
    from gateway.data.session.fast_path import Counted, Terms
    from gateway.data.shared.budget import Account
    from gateway.data.shared.world import World

FETCH_WAIT = "fetch"  # a client quota or a resource group that limits what consumers get
FENCE_BYTES = 850  # of one entry of a fence, about


class Session:
    """One client connection to `listener`, joined to one upstream connection of broker `node_id`.

    Attributes:
        account: the one that memory is charged to.
        to_upstream, to_client: the bytes to be sent next, in order: memoryviews of the caller's buffer, or bytes. The
            link empties them after every call.
        on_client, on_upstream: handle the bytes in buf[pos:end] and return the position of the first unhandled one: see
            Requests.handle and Answers.handle.
    """

    __slots__ = (
        "_answers",
        "_fence_charge",
        "_requests",
        "account",
        "admin",
        "authentication",
        "client",
        "fetches",
        "gate",
        "hold",
        "in_flight",
        "on_client",
        "on_upstream",
        "to_client",
        "to_upstream",
    )

    def __init__(
        self, world: World, node_id: int, account: Account, now: float, listener: str = DEFAULT_LISTENER
    ) -> None:
        self.account = account
        self.client = client = Client(world, node_id, listener)
        self.gate = gate = Gate(client)
        self.hold = hold = Hold(now, world.settings.max_hold_s)
        self.in_flight = in_flight = InFlight(account)
        lookup = Lookup(world.ledger)
        self.fetches = fetches = Fetches(client)
        self.admin = admin = AdminRequests(client, in_flight, account)
        own = world.own_sasl(listener)
        authentication = (
            Authentication(client, account, in_flight)
            if own is None
            else Termination(client, account, admin, in_flight, own)
        )
        self.authentication: Authentication = authentication
        enforcement = Enforcement(gate, in_flight, hold, lookup)
        self._answers = Answers(gate, in_flight, hold, authentication, lookup, fetches, admin)
        self._requests = Requests(gate, in_flight, hold, authentication, enforcement, fetches, admin)
        self.on_client, self.on_upstream = self._requests.handle, self._answers.handle  # no call for each request
        if isinstance(authentication, Termination):
            self.on_client = TerminatedRequests(self._requests, authentication, hold).handle
        self._fence_charge = Charge(account)
        self.to_upstream: list[Any] = self._requests.to_upstream
        self.to_client: list[Any] = in_flight.out

    @property
    def is_idle(self) -> bool:
        """Nothing is owed to the client and nothing is under way."""
        return not self.in_flight and self.admin.turn is None

    @property
    def owes_records(self) -> bool:
        """Whether the broker has still to say what became of records."""
        return any(entry[1] in (PRODUCE, ACKS0) for entry in self.in_flight)

    @property
    def counted(self) -> Counted | None:
        """What usual answers are noted in (fast_path.pyx); None: it is not compiled."""
        return self._answers.counted

    @property
    def wants_whole_answer(self) -> bool:
        """Whether the answer that comes next is handled whole, not streamed: the link must make room for it."""
        return self._answers.wants_whole

    def terms(self, now: float) -> Terms | None:
        """Those on which requests and answers pass as they are from here on, whatever they are, until anything else has
        been asked of the session or the ledger's epoch or the quotas' version is another; None: they don't.
        """
        if isinstance(self.authentication, Termination):
            return None
        return self._requests.terms(now)

    def may_go_on(self, now: float) -> bool:
        """Whether the request at the head of the unread input needn't wait any longer."""
        hold = self.hold
        if hold.draining:
            return True
        if self.admin.turn is not None:
            return self.admin.may_move(hold.until, now)
        return now >= hold.until if hold.until else self.in_flight.has_room

    @property
    def why_waiting(self) -> str:
        """The reason of the limit for which the request at the head of the unread input waits; "" where it waits for
        something else.
        """
        hold = self.hold
        if hold.paused_since:
            return STORAGE_PAUSE
        if hold.until and hold.until == hold.mute_until:
            return hold.why
        return FETCH_WAIT if hold.until and hold.until == self.fetches.mute_until else ""

    def say_goodbye(self) -> None:
        """The client is told that nothing more comes: what it still sends is sent again elsewhere, but for acks=0."""
        self._requests.skip_rest()

    def tidy(self, now: float) -> None:
        """To be called every few seconds: let go of fences that are over, and charge the memory of those left."""
        fence = self.gate.fence
        fence.expire(now)
        self._fence_charge.set(len(fence.entries) * FENCE_BYTES)

    def close(self, parked: tuple[bytearray, int, int] | None = None) -> None:
        """Settle the accounts: requests forwarded and not answered, and requests read and never forwarded."""
        gate, accounts, in_flight = self.gate, self.gate.accounts, self.in_flight
        self._fence_charge.set(0)
        if gate.epoch != gate.world.ledger.epoch:
            gate.renew()
        for entry in in_flight:
            if entry[1] == PRODUCE:
                _, _, version, parts, _, _, charged, _ = entry
                in_flight.forget(parts)
                accounts.count(parts, version, "unanswered")
                accounts.retract(parts, version, charged)
            elif entry[1] == ACKS0:
                _, _, version, parts, charged = entry
                in_flight.forget(parts)
                accounts.retract(parts, version, charged)
        in_flight.clear()
        self.fetches.close()
        self.admin.close()
        self.authentication.close()
        if parked is not None and not self.authentication.is_owed:
            self._requests.discard(*parked)
