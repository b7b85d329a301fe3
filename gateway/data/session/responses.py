# The broker's answers on one connection, matched in order with what it is owed: from its bytes to what the client gets.
# Sans-IO. Untouched answers stay in one run of the caller's buffer; those that the gateway needn't understand stream
# through in pieces, as do those that are metered while they pass.

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.data.pending.pending import (
    ACKS0,
    ADMIN,
    CAP_VERSIONS,
    FETCH,
    LOCAL,
    NOTHING,
    PASS,
    PRODUCE,
    REWRITE,
    SASL,
    STREAMED_KINDS,
    PendingEntry,
)
from gateway.data.session import fetches
from gateway.data.shared.errors import UpstreamError
from protocol.framing import RESPONSE_HEAD
from protocol.produce import produce_response
from protocol.rewriting import rewrite
from protocol.rewriting.stream import has_endpoints

if TYPE_CHECKING:
    from gateway.data.control_requests.admin_requests import AdminRequests
    from gateway.data.control_requests.authentication import ClientAuthentication
    from gateway.data.control_requests.lookup import TopicIdLookup
    from gateway.data.pending.hold import RequestHold
    from gateway.data.pending.in_flight import InFlightRequests
    from gateway.data.session.fast_path import ResponseCounters
    from gateway.data.session.fetches import FetchLimiter
    from gateway.data.session.gate import ProduceGate
    from protocol.fetch.fetch_response import FetchMeter
else:
    try:
        from gateway.data.session.fast_path import ResponseCounters
    except ImportError:  # it is not compiled
        ResponseCounters = None


class ResponseHandler:
    """Handles the broker's responses on one connection. `counters`: note usual responses (fast_path.pyx); None: not
    compiled.
    """

    __slots__ = (
        "_admin",
        "_authentication",
        "_fetch_meter",
        "_fetches",
        "_gate",
        "_hold",
        "_in_flight",
        "_lookup",
        "counters",
    )

    def __init__(
        self,
        gate: ProduceGate,
        in_flight: InFlightRequests,
        hold: RequestHold,
        authentication: ClientAuthentication,
        lookup: TopicIdLookup,
        fetches: FetchLimiter,
        admin: AdminRequests,
    ) -> None:
        self._gate = gate
        self._in_flight = in_flight
        self._hold = hold
        self._authentication = authentication
        self._lookup = lookup
        self._fetches = fetches
        self._admin = admin
        world = gate.world
        self.counters: ResponseCounters | None = None
        if ResponseCounters is not None:
            self.counters = ResponseCounters(
                in_flight, gate.client.accepted_rows, world.acknowledged_batches, gate.topics.resolve_name,
                gate.accounts.count_repeats,
                gate.accounts.count_with_duplicates, world.ledger, gate.client.node_id,
            )  # fmt: skip
        # Of the answer that streams through, where resource groups are charged. Its request is the oldest that is owed
        # one, so ResponseCounters.count_responses takes nothing meanwhile.
        self._fetch_meter: FetchMeter | None = None

    @property
    def needs_whole_response(self) -> bool:
        """Whether the next response is handled whole, not streamed: the link must make room for it."""
        kind = self._in_flight.oldest_kind
        return kind != NOTHING and kind not in STREAMED_KINDS  # one that streams through is owed until its end

    def handle_responses(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """Handle the broker's bytes in buf[pos:end]; return the position of the first unhandled one.

        Raises:
            UpstreamError, MalformedFrame: both sides must be closed.
        """
        gate, in_flight, counted = self._gate, self._in_flight, self.counters
        if gate.epoch != gate.world.ledger.epoch:
            gate.refresh_epoch()
        out = in_flight.outgoing
        asks = gate.accounts.rejected_batches.may_match
        run = pos
        try:
            while pos < end:
                is_metered = self._fetch_meter is not None
                if is_metered:
                    pos = self._meter_response(buf, pos, end, now)
                elif in_flight.stream_walker is not None:
                    pos = in_flight.stream_bytes(buf, pos, end, gate.world.ledger)
                elif counted is not None:
                    pos = counted.count_responses(buf, pos, end, now, asks)
                if self._fetch_meter is not None or in_flight.stream_walker is not None:
                    break
                if in_flight.oldest_kind == LOCAL:  # only now: it must not come between the parts of another one
                    self._append_run(buf, run, pos)
                    run = pos
                    in_flight.release_local_responses()
                    continue
                if is_metered:
                    continue
                if end - pos < 8:
                    break
                size, correlation = RESPONSE_HEAD.unpack_from(buf, pos)
                if size < 4:
                    raise UpstreamError(f"an answer with a size of {size} bytes")
                entry = in_flight.oldest_entry() if in_flight else None
                if entry is None or entry[0] != correlation:
                    raise UpstreamError(f"an answer with correlation id {correlation} that no request waits for")
                kind = entry[1]
                if kind in STREAMED_KINDS:
                    if kind != FETCH:
                        self._begin_streaming(entry, size)
                    elif end - pos < min(fetches.RESPONSE_HEAD_BYTES, 4 + size):
                        break
                    else:
                        self._begin_fetch(buf, pos, end, entry, now)
                    pos += 4
                    continue
                stop = pos + 4 + size
                if stop > end:
                    break
                if kind == PRODUCE:
                    frame = self._handle_produce_response(buf, pos + 4, stop, entry, now)
                else:
                    frame = self._handle_other_response(buf, pos, stop, entry)
                in_flight.drop_oldest()
                if frame is not None or in_flight.oldest_kind == LOCAL:
                    self._append_run(buf, run, pos if frame is not None else stop)
                    run = stop
                    if frame:
                        out.append(frame)
                    in_flight.release_local_responses()
                pos = stop
        finally:  # answers before a broken one are the client's
            if pos > run:
                out.append(memoryview(buf)[run:pos])
        return pos

    def _append_run(self, buf: bytearray, start: int, stop: int) -> None:
        if stop > start:
            self._in_flight.outgoing.append(memoryview(buf)[start:stop])

    def _begin_fetch(self, buf: bytearray, pos: int, end: int, entry: PendingEntry, now: float) -> None:
        """Charge the response that begins at `pos`, and begin to meter it, or to stream it."""
        self._fetch_meter = self._fetches.begin_response(buf, pos, end, entry, now)
        if self._fetch_meter is None:
            self._begin_streaming(entry, RESPONSE_HEAD.unpack_from(buf, pos)[0])

    def _begin_streaming(self, entry: PendingEntry, size: int) -> None:
        """Begin to stream a response of that many bytes."""
        version, key = entry[2:4] if entry[1] != PASS else (0, -1)
        self._in_flight.begin_streaming(key if has_endpoints(key, version) else -1, version, size)

    def _meter_response(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """Pass on the part of a metered response that has arrived."""
        meter = self._fetch_meter
        assert meter is not None
        stop = min(end, pos + meter.left)
        stop -= meter.feed(buf, pos, stop)
        is_over = not meter.left
        self._fetches.charge_passed(buf, is_over, now)
        if is_over:
            if meter.lost:
                self._gate.world.ledger.count_event("answers_not_followed")
            self._fetch_meter = None
            self._in_flight.drop_oldest()
        return stop

    def _handle_produce_response(
        self, buf: bytearray, start: int, stop: int, entry: PendingEntry, now: float
    ) -> bytes | None:
        """Count the response in buf[start:stop]; the bytes for the client in its place. None: it passes."""
        gate = self._gate
        _, _, version, parts, rows, throttle_ms, charged, stamp = entry
        answered, endpoints = produce_response.skim_response(buf, start, stop, version)
        frame = None
        if endpoints:
            frame = produce_response.rewrite_endpoints(buf, start, stop, version, gate.client.broker_addresses)
            buf, start, stop = bytearray(frame), 4, len(frame)
        if rows or throttle_ms or endpoints:
            frame = produce_response.merge_response(buf, start, stop, version, rows or [], throttle_ms)
        delay_ms = 0 if rows else throttle_ms  # only the part that the client will see
        gate.accounts.settle_response(parts, version, answered, charged, delay_ms)
        self._in_flight.release_partitions(parts)
        if stamp is not None:
            gate.world.ledger.latencies.record_response(stamp, gate.client.node_id, now)
        return frame

    def _handle_other_response(self, buf: bytearray, pos: int, stop: int, entry: PendingEntry) -> bytes | None:
        """The bytes for the client in place of this response. None: the response passes, possibly patched. b"": the
        client gets nothing.
        """
        world, kind = self._gate.world, entry[1]
        cluster = world.cluster
        if kind == REWRITE:
            _, _, version, key = entry
            addresses = self._gate.client.broker_addresses
            frame, withheld = rewrite.REWRITES[key](buf, pos + 4, stop, version, addresses, cluster.topic_ids)
            if withheld:
                world.ledger.count_event("brokers_withheld", len(withheld))
                cluster.request_metadata()
            return frame
        if kind == ADMIN:
            self._admin.on_broker_answer(bytes(memoryview(buf)[pos + 4 : stop]))
            return b""
        if kind == ACKS0:
            _, _, version, parts, _ = entry
            self._in_flight.release_partitions(parts)
            self._gate.accounts.confirm_acks0(parts, version)
            return b""
        if kind == CAP_VERSIONS:
            return rewrite.cap_api_versions(buf, pos + 4, stop, entry[2], world.settings.unknown_apis == "hide")
        if kind == SASL:
            self._in_flight.is_reading_blocked = False
            self._authentication.on_broker_answer(buf, pos + 4, stop, entry[2])
            return None
        # LOOKUP: only to learn from.
        rewrite.rewrite_metadata(buf, pos + 4, stop, entry[2], self._gate.client.broker_addresses, cluster.topic_ids)
        if self._lookup.on_broker_answer(entry[0]):
            self._hold.held_until = 0.0
        return b""
