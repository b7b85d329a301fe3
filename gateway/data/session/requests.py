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
from gateway.data.pending.pending import CAP_VERSIONS, FETCH, PASS, REWRITE, STREAM, PendingEntry
from gateway.data.pending.steps import (
    ANSWER,
    FORWARD,
    FORWARDED,
    HOLD,
    SKIP,
    SKIPPED,
    ApiRequest,
    ProduceRequest,
    RequestStep,
)
from gateway.data.session import fetches
from gateway.data.shared.errors import UnauthenticatedRequest
from protocol import api
from protocol.framing import (
    MAX_API_KEY,
    MIN_REQUEST_BYTES,
    REQUEST_HEAD,
    check_request_head,
    max_request_bytes,
    unsupported_version,
)
from protocol.produce import produce_request
from protocol.rewriting import rewrite
from protocol.rewriting.identity import read_software
from protocol.rewriting.stream import has_endpoints
from protocol.wire import MalformedFrame

if TYPE_CHECKING:
    from gateway.data.control_requests.admin_requests import AdminRequests
    from gateway.data.control_requests.authentication import ClientAuthentication
    from gateway.data.pending.hold import RequestHold
    from gateway.data.pending.in_flight import InFlightRequests
    from gateway.data.session.enforcement import ProduceEnforcement
    from gateway.data.session.fast_path import ForwardingTerms
    from gateway.data.session.fetches import FetchLimiter
    from gateway.data.session.gate import ProduceGate
else:
    try:
        from gateway.data.session.fast_path import ForwardingTerms
    except ImportError:  # it is not compiled
        ForwardingTerms = None

_OLDEST_PRODUCE, _NEWEST_PRODUCE = api.LOWEST_VERSIONS[api.PRODUCE], api.HIGHEST_VERSIONS[api.PRODUCE]
# For each version of Fetch that passes: what its answer is owed.
_FETCH_RESPONSE_KINDS = tuple(
    STREAM if has_endpoints(api.FETCH, v) else PASS for v in range(api.HIGHEST_VERSIONS[api.FETCH] + 1)
)
_SHARE_APIS = (api.SHARE_FETCH, api.SHARE_ACKNOWLEDGE)  # answers have brokers' addresses in every version
API_COUNTERS = tuple(f"{API_REQUESTS}{key}" for key in range(MAX_API_KEY + 1))


class RequestHandler:
    """Handles the requests of one connection. `to_upstream`: the bytes to send to the broker, in order: memoryviews of
    the caller's buffer, or bytes.
    """

    __slots__ = (
        "_admin",
        "_authentication",
        "_client",
        "_enforcement",
        "_fetches",
        "_gate",
        "_has_skipped",
        "_hold",
        "_in_flight",
        "_sasl_demand",
        "_terms",
        "to_upstream",
    )

    def __init__(
        self,
        gate: ProduceGate,
        in_flight: InFlightRequests,
        hold: RequestHold,
        authentication: ClientAuthentication,
        enforcement: ProduceEnforcement,
        fetches: FetchLimiter,
        admin: AdminRequests,
    ) -> None:
        self._gate = gate
        self._client = gate.client
        self._in_flight = in_flight
        self._hold = hold
        self._authentication = authentication
        self._sasl_demand = authentication.sasl_demand
        self._enforcement = enforcement
        self._fetches = fetches
        self._admin = admin
        self._has_skipped = False  # a request that will never be answered: nothing behind it may be
        topics = gate.topics
        self._terms: ForwardingTerms | None = None
        if ForwardingTerms is not None:
            self._terms = ForwardingTerms(
                in_flight,
                topics.by_name,
                topics.by_id,
                gate.broker.total,
                gate.accounts.awaits_repeats,
                gate.find_credit,
                gate.world.ledger,
            )
        self.to_upstream: list[Any] = []

    @property
    def max_request_bytes(self) -> int:
        """The largest size of a request, in bytes."""
        return self._gate.world.limits.max_request_bytes

    def handle_requests(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """Handle the whole requests in buf[pos:end]; return the position of the first unhandled byte.

        Raises:
            MalformedFrame: the connection must be closed. The requests before the malformed one have been handled.
        """
        gate, client, hold, in_flight = self._gate, self._client, self._hold, self._in_flight
        if self._sasl_demand.wants_sasl and not self._authentication.is_authenticated:
            pos = self.handle_unauthenticated(buf, pos, end, now)
            if not self._authentication.is_authenticated:
                return pos
        self._refresh_snapshots(now)
        hold.held_until = 0.0
        if in_flight.is_reading_blocked:
            return pos
        is_muted = hold.muted_until > now and not hold.is_draining
        terms = self._update_terms()
        if is_muted or self._needs_inspection:
            terms = None
        fence, rejected, ledger = gate.fence, gate.accounts.rejected_batches, gate.world.ledger
        max_bytes, arrived = self.max_request_bytes, hold.arrived_at or now
        run = pos
        handled = 0
        try:
            while end - pos >= 12:
                if terms is not None and not fence.entries:
                    pos, passed = terms.admit_requests(buf, pos, end, now, arrived, rejected.may_match)
                    if passed:
                        gate.denied_since = 0.0
                        handled += passed
                        if in_flight.is_reading_blocked:
                            break
                        if end - pos < 12:
                            continue
                size, key, version, correlation = REQUEST_HEAD.unpack_from(buf, pos)
                stop = pos + 4 + size
                if not MIN_REQUEST_BYTES <= size <= max_bytes or not 0 <= key <= MAX_API_KEY:
                    check_request_head(buf, pos, end, max_bytes)
                if stop > end or len(in_flight) >= MAX_PENDING:
                    break
                if key:
                    step = self._handle_other_api(ApiRequest(buf, pos + 4, stop, key, version, correlation), now)
                    if step.action != HOLD:
                        ledger.count_event(API_COUNTERS[key])
                    self._update_terms()  # it may have another client id
                elif is_muted:
                    step = RequestStep(HOLD, until=hold.muted_until)
                else:
                    step = self._handle_produce(buf, pos + 4, stop, version, correlation, now)
                    is_muted = step.delays_next and hold.muted_until > now  # requests behind it stay undecided
                if is_muted or client.needs_judging:
                    terms = None
                if step.action != FORWARD or step.frame:
                    run = self._carry_out_step(step, buf, run, pos, stop)
                    if step.action == HOLD:
                        break
                handled += 1
                pos = stop
                if in_flight.is_reading_blocked:
                    break
            else:
                if pos < end:
                    check_request_head(buf, pos, end, max_bytes)
        finally:
            self._append_run(buf, run, pos)
            ledger.request_count += handled
        return pos

    def _handle_produce(
        self, buf: bytearray, start: int, stop: int, version: int, correlation: int, now: float
    ) -> RequestStep:
        """Decide about the whole Produce request in buf[start:stop], without its size prefix.

        Raises:
            MalformedFrame: it is malformed, or of a version that the gateway does not know.
        """
        if not _OLDEST_PRODUCE <= version <= _NEWEST_PRODUCE:
            raise unsupported_version(api.PRODUCE, version)
        request, client_id = self._read_produce(buf, start, stop, version, correlation)
        if client_id != self._client.client_id:
            self._client.set_client_id(client_id)
            self._client.refresh_limits(now)
            self._update_terms()
        return self._enforcement.enforce_request(request, now)

    def _read_produce(
        self, buf: bytearray, start: int, stop: int, version: int, correlation: int
    ) -> tuple[ProduceRequest, bytes | None]:
        """The request, and the client id in its header."""
        most = self._gate.world.limits.max_partitions_per_request
        _, acks, client_id, _, parts = produce_request.skim_request(buf, start, stop, most)
        return ProduceRequest(buf, start, stop, version, correlation, acks, list(parts)), client_id

    def current_terms(self, now: float) -> ForwardingTerms | None:
        """The terms on which requests pass unchanged and responses are counted; None: each has to be inspected."""
        gate, hold = self._gate, self._hold
        if self._sasl_demand.wants_sasl and not self._authentication.is_authenticated:
            return None
        self._refresh_snapshots(now)
        if (
            self._needs_inspection
            or hold.muted_until > now
            or hold.arrived_at
            or gate.fence.entries
            or gate.denied_since
        ):
            return None
        if self._in_flight.is_reading_blocked:
            return None
        terms = self._update_terms()
        if terms is not None and self._may_forward_fetches(now):
            terms.update_fetch_terms(_FETCH_RESPONSE_KINDS, max_request_bytes(api.FETCH, self.max_request_bytes))
        return terms

    def _may_forward_fetches(self, now: float) -> bool:
        """Whether Fetch requests may be forwarded with no more than a note of their responses: no limit applies to
        them, and nothing makes them wait.
        """
        world = self._gate.world
        limited = world.quotas.has_fetch_limits or world.engine.groups.has_dispatch_limits
        return not (limited or self._has_skipped or self._admin.turn is not None or self._fetches.muted_until > now)

    def _update_terms(self) -> ForwardingTerms | None:
        client, world = self._client, self._gate.world
        limits = world.limits
        if self._terms is not None:
            self._terms.update_terms(
                world.ledger.latencies.sample_mask, client.client_id, self._gate.must_ask_limits,
                limits.max_request_bytes,
                limits.max_partitions_per_request,
            )  # fmt: skip
        return self._terms

    def _refresh_snapshots(self, now: float) -> None:
        """State that all connections share may have changed: look it up again."""
        gate, client, world = self._gate, self._client, self._gate.world
        if gate.epoch != world.ledger.epoch:
            gate.refresh_epoch()
        if client.quotas_version != world.quotas.version:
            client.refresh_limits(now)
            self._hold.set_longest_hold(world.limits.max_hold)

    @property
    def _needs_inspection(self) -> bool:
        """Whether each request has to be inspected, whatever its API."""
        client, hold, world = self._client, self._hold, self._gate.world
        return bool(
            client.needs_judging
            or hold.is_client_gone
            or hold.is_draining
            or hold.paused_since
            or world.engine.pause is not None
            or world.plugins
        )

    def handle_unauthenticated(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """Handle requests of a client that the broker has not accepted yet: only the steps of SASL pass, one at a time,
        as in Kafka's SaslServerAuthenticator. None of these requests is metered or limited.
        """
        world = self._gate.world
        max_bytes = world.limits.max_request_bytes
        run = pos
        handled = 0
        self._hold.held_until = 0.0
        try:
            while not (self._in_flight.is_reading_blocked or self._authentication.allows_requests(now)):
                length = check_request_head(buf, pos, end, max_bytes)
                if not length:
                    break
                _, key, version, correlation = REQUEST_HEAD.unpack_from(buf, pos)
                self._authentication.check_api(key)
                stop = pos + length
                if stop > end:
                    break
                if len(self._in_flight) >= MAX_UNAUTHENTICATED:
                    raise UnauthenticatedRequest(f"{len(self._in_flight)} requests at once before authentication")
                step = self._handle_other_api(ApiRequest(buf, pos + 4, stop, key, version, correlation), now)
                if step.action != FORWARD:
                    run = self._carry_out_step(step, buf, run, pos, stop)
                    if step.action == HOLD:
                        break
                pos = stop
                handled += 1
                world.ledger.count_event(API_COUNTERS[key])
        finally:
            self._append_run(buf, run, pos)
            world.ledger.request_count += handled
        return pos

    def _append_run(self, buf: bytearray, start: int, stop: int) -> None:
        if stop > start:
            self.to_upstream.append(memoryview(buf)[start:stop])

    def _carry_out_step(self, step: RequestStep, buf: bytearray, run: int, pos: int, stop: int) -> int:
        """The request in buf[pos:stop] does not pass unchanged, or not alone: end the run that began at `run`, and
        carry out the step. Returns where the next run begins.
        """
        self._append_run(buf, run, stop if step.action == FORWARD else pos)
        if step.action == ANSWER:
            self._in_flight.enqueue_local_response(step.frame)
            self._gate.world.ledger.count_event("answers_local")
        elif step.frame:
            self.to_upstream.append(step.frame)
        if step.action == HOLD:
            self._hold.held_until = step.until
            return pos
        if step.action == SKIP:
            self._has_skipped = True
        return stop

    def _handle_other_api(self, request: ApiRequest, now: float) -> RequestStep:
        """Note the answer that a request of another API than Produce is owed, or return the step to take instead.

        Raises:
            MalformedFrame: the gateway does not let such a request pass.
        """
        fetches_until = self._fetches.muted_until
        if fetches_until > now and request.key in fetches.FETCH_APIS and not self._hold.is_abandoned:
            return RequestStep(HOLD, until=fetches_until)
        if self._has_skipped:
            return SKIPPED
        buf, start, stop, key, version, correlation = request
        world = self._gate.world
        max_bytes = world.limits.max_request_bytes
        if stop - start > max_request_bytes(key, max_bytes) or version < 0:
            check_request_head(buf, start - 4, stop, max_bytes)
        cap = api.HIGHEST_VERSIONS.get(key)
        entry: PendingEntry = (correlation, PASS)
        if key == api.API_VERSIONS:
            if cap is not None and version > cap:
                return RequestStep(ANSWER, rewrite.unsupported_api_versions(correlation))
            self._client.set_software(read_software(buf, start, stop))
            self._hold.set_software(self._client.software)  # a later request may not name it
            entry = (correlation, CAP_VERSIONS, version)
        elif cap is not None and (version > cap or (key in _SHARE_APIS and version < api.LOWEST_VERSIONS[key])):
            raise unsupported_version(key, version)
        elif key in rewrite.REWRITES:
            entry = (correlation, REWRITE, version, key)
        elif has_endpoints(key, version):
            entry = (correlation, STREAM, version, key)
        elif key in (api.SASL_HANDSHAKE, api.SASL_AUTHENTICATE):
            return self._authentication.handle_step(request, now)
        elif self._admin.turn is not None or (key in world.control_queries.apis and concerns_control(request, world)):
            return self._admin.handle_request(request, now)
        if key in fetches.FETCH_APIS:
            unknown = self._fetches.refuse_session(request, now)
            if unknown:
                return RequestStep(ANSWER, unknown)
            charges = self._fetches.admit_fetch(request, now)
            if charges is None and self._hold.is_abandoned:  # forwarded at once, it would evade its wait
                return SKIPPED
            if charges is None:
                return RequestStep(HOLD, until=self._fetches.muted_until)
            if charges:
                entry = (correlation, FETCH, version, key, charges)
        self._in_flight.append(entry)
        return FORWARDED

    def skip_remaining(self) -> None:
        """No request that arrives from now on is answered: acks=0 passes, all others are discarded."""
        self._has_skipped = True

    def discard_requests(self, buf: bytearray, pos: int, end: int) -> None:
        """Count the requests that were read and will never be forwarded."""
        client, max_bytes = self._client, self.max_request_bytes
        try:
            while (length := check_request_head(buf, pos, end, max_bytes)) and pos + length <= end:
                _, key, version, correlation = REQUEST_HEAD.unpack_from(buf, pos)
                stop = pos + length
                if key == 0 and _OLDEST_PRODUCE <= version <= _NEWEST_PRODUCE:
                    request, client_id = self._read_produce(buf, pos + 4, stop, version, correlation)
                    if client_id != client.client_id:
                        client.set_client_id(client_id)
                    self._enforcement.discard_request(request)
                pos = stop
        except MalformedFrame:
            return  # never forwarded, and no Produce request: nothing to account for
