# The requests of one client connection: from its bytes to what goes upstream. Sans-IO.
#
# Admitted requests stay in one untouched run of the caller's buffer; a run is cut only where a request is stripped of
# partitions, answered here, or has to wait. A request that has to wait (a mute, a topic id without a name, an admin
# request's turn) stays unhandled at the head of the unread input, and the hold says until when. enforcement.py decides
# what becomes of a Produce request off the fast path.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.channel import API_REQUESTS
from gateway.data.control_requests.admin_requests import concerns_control
from gateway.data.control_requests.authentication import MAX_UNAUTHENTICATED
from gateway.data.pending.in_flight import MAX_PENDING
from gateway.data.pending.pending import CAP, FETCH, PASS, REWRITE, STREAM, Entry
from gateway.data.pending.steps import ANSWER, FORWARD, FORWARDED, HOLD, SKIP, SKIPPED, ProduceRequest, Request, Step
from gateway.data.session import fetches
from gateway.data.shared.errors import Unauthenticated
from protocol import api, produce_request, rewrite
from protocol.framing import MAX_API_KEY, MIN_REQUEST, REQUEST_HEAD, check_request_head, largest, unspoken
from protocol.identity import software
from protocol.stream import has_endpoints
from protocol.wire import MalformedFrame

if TYPE_CHECKING:
    from gateway.data.control_requests.admin_requests import AdminRequests
    from gateway.data.control_requests.authentication import Authentication
    from gateway.data.pending.hold import Hold
    from gateway.data.pending.in_flight import InFlight
    from gateway.data.session.enforcement import Enforcement
    from gateway.data.session.fast_path import Terms
    from gateway.data.session.fetches import Fetches
    from gateway.data.session.gate import Gate
else:
    try:
        from gateway.data.session.fast_path import Terms
    except ImportError:  # it is not compiled
        Terms = None

_OLDEST_PRODUCE, _NEWEST_PRODUCE = api.FLOORS[api.PRODUCE], api.CAPS[api.PRODUCE]
# For each version of Fetch that passes: what its answer is owed.
_FETCHES_OWED = tuple(STREAM if has_endpoints(api.FETCH, v) else PASS for v in range(api.CAPS[api.FETCH] + 1))
API_COUNTS = tuple(f"{API_REQUESTS}{key}" for key in range(MAX_API_KEY + 1))


class Requests:
    """The requests of one connection.

    `to_upstream`: the bytes to be sent to the broker, in order: memoryviews of the caller's buffer, or bytes.
    """

    __slots__ = (
        "_admin",
        "_authentication",
        "_client",
        "_demand",
        "_enforcement",
        "_fetches",
        "_gate",
        "_has_skipped",
        "_hold",
        "_in_flight",
        "_terms",
        "to_upstream",
    )

    def __init__(
        self,
        gate: Gate,
        in_flight: InFlight,
        hold: Hold,
        authentication: Authentication,
        enforcement: Enforcement,
        fetches: Fetches,
        admin: AdminRequests,
    ) -> None:
        self._gate = gate
        self._client = gate.client
        self._in_flight = in_flight
        self._hold = hold
        self._authentication = authentication
        self._demand = authentication.demand
        self._enforcement = enforcement
        self._fetches = fetches
        self._admin = admin
        self._has_skipped = False  # a request that will never be answered: nothing behind it may be
        topics = gate.topics
        self._terms: Terms | None = None
        if Terms is not None:
            self._terms = Terms(
                in_flight,
                topics.by_name,
                topics.by_id,
                gate.broker.total,
                gate.accounts.awaits,
                gate.credit,
                gate.world.ledger,
            )
        self.to_upstream: list[Any] = []

    @property
    def max_bytes(self) -> int:
        """That a request may have."""
        return self._gate.world.settings.max_request_bytes

    def handle(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """Handle the whole requests in buf[pos:end]; return the position of the first unhandled byte.

        Raises:
            MalformedFrame: the connection must be closed. Requests before the broken one are handled, it isn't.
        """
        gate, client, hold, in_flight = self._gate, self._client, self._hold, self._in_flight
        world = gate.world
        if self._demand.wants_sasl and not self._authentication.is_done:
            pos = self.handle_unauthenticated(buf, pos, end, now)
            if not self._authentication.is_done:
                return pos
        self._renew(now)
        hold.until = 0.0
        if in_flight.is_waiting:
            return pos
        muted = hold.mute_until > now and not hold.draining
        special = self._is_special
        max_bytes, most = world.settings.max_request_bytes, world.settings.max_partitions_per_request
        fence, rejected = gate.fence, gate.accounts.rejected
        arrived = hold.arrived or now
        terms = self._set_terms()
        run = pos
        handled = 0
        try:
            while end - pos >= 12:
                if terms is not None and not (special or muted or fence.entries):
                    pos, passed = terms.pass_requests(buf, pos, end, now, arrived, rejected.asks)
                    if passed:
                        gate.denied_since = 0.0
                        handled += passed
                        if in_flight.is_waiting:
                            break
                        if end - pos < 12:
                            continue
                size, key, version, correlation = REQUEST_HEAD.unpack_from(buf, pos)
                stop = pos + 4 + size
                if not MIN_REQUEST <= size <= max_bytes or not 0 <= key <= MAX_API_KEY:
                    check_request_head(buf, pos, end, max_bytes)
                if stop > end or len(in_flight) >= MAX_PENDING:
                    break
                if key == 0:
                    if muted:
                        hold.until = hold.mute_until
                        break
                    if not _OLDEST_PRODUCE <= version <= _NEWEST_PRODUCE:
                        raise unspoken(key, version)
                    _, acks, client_id, _, parts = produce_request.skim(buf, pos + 4, stop, most)
                    if client_id != client.client_id:
                        client.identify(client_id)
                        client.find_lines(now)
                        special = special or client.limited
                        self._set_terms()
                    request = ProduceRequest(buf, pos + 4, stop, version, correlation, acks, list(parts))
                    step = self._enforcement.handle(request, now)
                    if step.delays:  # requests behind a delayed one stay parked and undecided
                        muted = hold.mute_until > now
                elif self._fetches.mute_until > now and key in fetches.APIS and not hold.is_over:
                    hold.until = self._fetches.mute_until
                    break
                else:
                    step = self._handle_other(Request(buf, pos + 4, stop, key, version, correlation), now)
                    special = special or client.limited  # it may have another client id
                    self._set_terms()
                    if step.move != HOLD:
                        world.ledger.count(API_COUNTS[key])
                if step.move != FORWARD:
                    self._divert(step, buf, run, pos)
                    if step.move == HOLD:
                        run = pos
                        break
                    run = stop
                elif step.frame:
                    self._cut(buf, run, stop)
                    self.to_upstream.append(step.frame)
                    run = stop
                handled += 1
                pos = stop
                if in_flight.is_waiting:
                    break
            else:
                if pos < end:
                    check_request_head(buf, pos, end, max_bytes)
        finally:
            if pos > run:
                self.to_upstream.append(memoryview(buf)[run:pos])
            if handled:
                world.ledger.requests += handled
        return pos

    def terms(self, now: float) -> Terms | None:
        """Those on which requests pass as they are, and answers are counted; None: each has to be looked at."""
        gate, hold = self._gate, self._hold
        if self._demand.wants_sasl and not self._authentication.is_done:
            return None
        self._renew(now)
        if self._is_special or hold.mute_until > now or hold.arrived or gate.fence.entries or gate.denied_since:
            return None
        if self._in_flight.is_waiting:
            return None
        terms = self._set_terms()
        if terms is not None and self._passes_fetches(now):
            terms.set_fetches(_FETCHES_OWED, largest(api.FETCH, self.max_bytes))
        return terms

    def _passes_fetches(self, now: float) -> bool:
        """Whether no limit concerns Fetch requests, nor anything else but that their answers are owed."""
        world = self._gate.world
        limited = world.quotas.has_fetch_limits or world.engine.groups.has_dispatch_limits
        return not (limited or self._has_skipped or self._admin.turn is not None or self._fetches.mute_until > now)

    def _set_terms(self) -> Terms | None:
        client, world = self._client, self._gate.world
        settings = world.settings
        if self._terms is not None:
            self._terms.set(
                world.ledger.latencies.mask, client.client_id, self._gate.asks_always, settings.max_request_bytes,
                settings.max_partitions_per_request,
            )  # fmt: skip
        return self._terms

    def _renew(self, now: float) -> None:
        """What all connections share may be another than it was."""
        gate, client, world = self._gate, self._client, self._gate.world
        if gate.epoch != world.ledger.epoch:
            gate.renew()
        if client.lines_version != world.quotas.version:
            client.find_lines(now)

    @property
    def _is_special(self) -> bool:
        """Each request has to be looked at, whatever it is."""
        client, hold, world = self._client, self._hold, self._gate.world
        return bool(
            client.limited
            or hold.client_gone
            or hold.draining
            or hold.paused_since
            or world.engine.pause is not None
            or world.plugins
        )

    def handle_unauthenticated(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """Requests of a client that the broker hasn't accepted yet: only the steps of SASL pass, one at a time.

        SaslServerAuthenticator does the same. None of these requests is metered, and none takes part in any limit.
        """
        world = self._gate.world
        max_bytes = world.settings.max_request_bytes
        run = pos
        handled = 0
        self._hold.until = 0.0
        try:
            while not (self._in_flight.is_waiting or self._authentication.is_open(now)):
                length = check_request_head(buf, pos, end, max_bytes)
                if not length:
                    break
                _, key, version, correlation = REQUEST_HEAD.unpack_from(buf, pos)
                self._authentication.check(key)
                stop = pos + length
                if stop > end:
                    break
                if len(self._in_flight) >= MAX_UNAUTHENTICATED:
                    raise Unauthenticated(f"{len(self._in_flight)} requests at once before authentication")
                step = self._handle_other(Request(buf, pos + 4, stop, key, version, correlation), now)
                if step.move != FORWARD:
                    self._divert(step, buf, run, pos)
                    if step.move == HOLD:
                        run = pos
                        break
                    run = stop
                pos = stop
                handled += 1
                world.ledger.count(API_COUNTS[key])
        finally:
            self._cut(buf, run, pos)
            if handled:
                world.ledger.requests += handled
        return pos

    def _cut(self, buf: bytearray, start: int, stop: int) -> None:
        if stop > start:
            self.to_upstream.append(memoryview(buf)[start:stop])

    def _divert(self, step: Step, buf: bytearray, run: int, pos: int) -> None:
        """The request at `pos` doesn't pass as it is: end the run before it, and carry out the step."""
        self._cut(buf, run, pos)
        if step.move == ANSWER:
            self._in_flight.answer(step.frame)
            self._gate.world.ledger.count("answers_local")
        elif step.frame:
            self.to_upstream.append(step.frame)
        if step.move == HOLD:
            self._hold.until = step.until
        elif step.move == SKIP:
            self._has_skipped = True

    def _handle_other(self, request: Request, now: float) -> Step:
        """Note the answer that a request other than Produce is owed, or return the step to take instead.

        Raises:
            MalformedFrame: it is none that the gateway lets pass.
        """
        if self._has_skipped:
            return SKIPPED
        buf, start, stop, key, version, correlation = request
        world = self._gate.world
        max_bytes = world.settings.max_request_bytes
        if stop - start > largest(key, max_bytes) or version < 0:
            check_request_head(buf, start - 4, stop, max_bytes)
        cap = api.CAPS.get(key)
        entry: Entry = (correlation, PASS)
        if key == api.API_VERSIONS:
            if cap is not None and version > cap:
                return Step(ANSWER, rewrite.unsupported_api_versions(correlation))
            named = software(buf, start, stop)
            self._client.introduce(named)
            self._hold.introduce(named)
            entry = (correlation, CAP, version)
        elif cap is not None and version > cap:
            raise unspoken(key, version)
        elif key in rewrite.REWRITES:
            entry = (correlation, REWRITE, version, key)
        elif has_endpoints(key, version):
            entry = (correlation, STREAM, version, key)
        elif key in (api.SASL_HANDSHAKE, api.SASL_AUTHENTICATE):
            return self._authentication.take(request, now)
        elif self._admin.turn is not None or (key in world.questions.apis and concerns_control(request, world)):
            return self._admin.take(request, now)
        if key in fetches.APIS:
            charges = self._fetches.ask(request, now)
            if charges is None and self._hold.is_over:  # forwarded at once, it would evade its wait
                return SKIPPED
            if charges is None:
                return Step(HOLD, until=self._fetches.mute_until)
            if charges:
                entry = (correlation, FETCH, version, key, charges)
        self._in_flight.append(entry)
        return FORWARDED

    def skip_rest(self) -> None:
        """No request that comes from here on is answered: acks=0 passes, all else is discarded."""
        self._has_skipped = True

    def discard(self, buf: bytearray, pos: int, end: int) -> None:
        """Count the requests that were read and will never be forwarded."""
        client, settings = self._client, self._client.world.settings
        max_bytes, most = settings.max_request_bytes, settings.max_partitions_per_request
        try:
            while (length := check_request_head(buf, pos, end, max_bytes)) and pos + length <= end:
                _, key, version, correlation = REQUEST_HEAD.unpack_from(buf, pos)
                stop = pos + length
                if key == 0 and _OLDEST_PRODUCE <= version <= _NEWEST_PRODUCE:
                    _, acks, client_id, _, parts = produce_request.skim(buf, pos + 4, stop, most)
                    if client_id != client.client_id:
                        client.identify(client_id)
                    request = ProduceRequest(buf, pos + 4, stop, version, correlation, acks, list(parts))
                    self._enforcement.discard(request)
                pos = stop
        except MalformedFrame:
            return  # never forwarded, and no Produce request: nothing to account for
