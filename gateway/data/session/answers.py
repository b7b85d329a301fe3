# The broker's answers on one connection, matched in order with what it is owed: from its bytes to what the client gets.
# Sans-IO. Untouched answers stay in one run of the caller's buffer; those that the gateway needn't understand stream
# through in pieces, as do those that are metered while they pass.

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.data.pending.pending import (
    ACKS0,
    ADMIN,
    CAP,
    FETCH,
    LOCAL,
    NOTHING,
    PASS,
    PRODUCE,
    REWRITE,
    SASL,
    STREAMED,
    Entry,
)
from gateway.data.session import fetches
from gateway.data.shared.errors import UpstreamError
from protocol import produce_response, rewrite
from protocol.framing import ANSWER_HEAD
from protocol.stream import has_endpoints

if TYPE_CHECKING:
    from gateway.data.control_requests.admin_requests import AdminRequests
    from gateway.data.control_requests.authentication import Authentication
    from gateway.data.control_requests.lookup import Lookup
    from gateway.data.pending.hold import Hold
    from gateway.data.pending.in_flight import InFlight
    from gateway.data.session.fast_path import Counted
    from gateway.data.session.fetches import Fetches
    from gateway.data.session.gate import Gate
    from protocol.fetch_response import FetchMeter
else:
    try:
        from gateway.data.session.fast_path import Counted
    except ImportError:  # it is not compiled
        Counted = None


class Answers:
    """The broker's answers on one connection. `counted`: what usual ones are noted in (fast_path.pyx); None: it is not
    compiled.
    """

    __slots__ = (
        "_admin",
        "_authentication",
        "_fetches",
        "_gate",
        "_hold",
        "_in_flight",
        "_lookup",
        "_meter",
        "counted",
    )

    def __init__(
        self,
        gate: Gate,
        in_flight: InFlight,
        hold: Hold,
        authentication: Authentication,
        lookup: Lookup,
        fetches: Fetches,
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
        self.counted: Counted | None = None
        if Counted is not None:
            self.counted = Counted(
                in_flight, gate.client.rows, world.acknowledged, gate.topics.name, gate.accounts.count_repeats,
                gate.accounts.count_some, world.ledger, gate.client.node_id,
            )  # fmt: skip
        # Of the answer that streams through, where resource groups are charged. Its request is the oldest that is owed
        # one, so Counted.pass_answers takes nothing meanwhile.
        self._meter: FetchMeter | None = None

    @property
    def wants_whole(self) -> bool:
        """Whether the answer that comes next is handled whole, not streamed: the link must make room for it."""
        kind = self._in_flight.kind
        return kind != NOTHING and kind not in STREAMED  # one that streams through is owed until its end

    def handle(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """Handle the broker's bytes in buf[pos:end]; return the position of the first unhandled one.

        Raises:
            UpstreamError, MalformedFrame: both sides must be closed.
        """
        gate, in_flight, counted = self._gate, self._in_flight, self.counted
        settle = gate.accounts.settle
        if gate.epoch != gate.world.ledger.epoch:
            gate.renew()
        out = in_flight.out
        asks = gate.accounts.rejected.asks
        run = pos
        try:
            while pos < end:
                is_metered = self._meter is not None
                if is_metered:
                    pos = self._measure(buf, pos, end, now)
                elif in_flight.walker is not None:
                    pos = in_flight.pass_on(buf, pos, end, gate.world.ledger)
                elif counted is not None:
                    pos = counted.pass_answers(buf, pos, end, now, asks)
                if self._meter is not None or in_flight.walker is not None:
                    break
                if in_flight.kind == LOCAL:  # only now: it must not come between the parts of another one
                    self._emit(buf, run, pos)
                    run = pos
                    in_flight.release()
                    continue
                if is_metered:
                    continue
                if end - pos < 8:
                    break
                size, correlation = ANSWER_HEAD.unpack_from(buf, pos)
                if size < 4:
                    raise UpstreamError(f"an answer with a size of {size} bytes")
                entry = in_flight.first() if in_flight else None
                if entry is None or entry[0] != correlation:
                    raise UpstreamError(f"an answer with correlation id {correlation} that no request waits for")
                kind = entry[1]
                if kind in STREAMED:
                    if kind != FETCH:
                        self._stream(entry, size)
                    elif end - pos < min(fetches.HEAD, 4 + size):
                        break
                    else:
                        self._begin(buf, pos, end, entry, now)
                    pos += 4
                    continue
                stop = pos + 4 + size
                if stop > end:
                    break
                if kind == PRODUCE:
                    _, _, version, parts, rows, throttle_ms, charged, stamp = entry
                    answered, endpoints = produce_response.skim(buf, pos + 4, stop, version)
                    frame = None
                    if rows or throttle_ms or endpoints:
                        frame = self._produce_answer(buf, pos + 4, stop, entry, endpoints)
                    delay_ms = 0 if rows else throttle_ms  # only the part that the client will see
                    settle(parts, version, answered, charged, delay_ms)
                    if len(parts) > 1:
                        in_flight.forget(parts)
                    if stamp is not None:
                        gate.world.ledger.latencies.answer(stamp, gate.client.node_id, now)
                else:
                    frame = self._other_answer(buf, pos, stop, entry)
                in_flight.drop()
                if frame is not None or in_flight.kind == LOCAL:
                    self._emit(buf, run, pos if frame is not None else stop)
                    run = stop
                    if frame:
                        out.append(frame)
                    in_flight.release()
                pos = stop
        finally:  # answers before a broken one are the client's
            if pos > run:
                out.append(memoryview(buf)[run:pos])
        return pos

    def _emit(self, buf: bytearray, start: int, stop: int) -> None:
        if stop > start:
            self._in_flight.out.append(memoryview(buf)[start:stop])

    def _begin(self, buf: bytearray, pos: int, end: int, entry: Entry, now: float) -> None:
        """Charge the answer that begins at `pos`, and begin to meter it, or to let it stream through."""
        self._meter = self._fetches.begin(buf, pos, end, entry, now)
        if self._meter is None:
            self._stream(entry, ANSWER_HEAD.unpack_from(buf, pos)[0])

    def _stream(self, entry: Entry, size: int) -> None:
        """An answer of so many bytes begins to stream through."""
        version, key = entry[2:4] if entry[1] != PASS else (0, -1)
        self._in_flight.begin(key if has_endpoints(key, version) else -1, version, size)

    def _measure(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """Pass on the part that is here of an answer that is metered."""
        meter = self._meter
        assert meter is not None
        stop = min(end, pos + meter.left)
        stop -= meter.feed(buf, pos, stop)
        is_over = not meter.left
        self._fetches.pass_on(buf, is_over, now)
        if is_over:
            if meter.lost:
                self._gate.world.ledger.count("answers_not_followed")
            self._meter = None
            self._in_flight.drop()
        return stop

    def _produce_answer(self, buf: bytearray, start: int, stop: int, entry: Entry, endpoints: bool) -> bytes:
        _, _, version, _, rows, throttle_ms, *_ = entry
        if endpoints:
            frame = produce_response.rewrite_endpoints(buf, start, stop, version, self._gate.client.addresses)
            buf, start, stop = bytearray(frame), 4, len(frame)
        return produce_response.merge(buf, start, stop, version, rows or [], throttle_ms)

    def _other_answer(self, buf: bytearray, pos: int, stop: int, entry: Entry) -> bytes | None:
        """None: pass the (possibly patched) bytes on. b"": the client gets nothing. Else: send this instead."""
        world, kind = self._gate.world, entry[1]
        cluster = world.cluster
        if kind == REWRITE:
            _, _, version, key = entry
            addresses = self._gate.client.addresses
            frame, withheld = rewrite.REWRITES[key](buf, pos + 4, stop, version, addresses, cluster.topic_ids)
            if withheld:
                world.ledger.count("brokers_withheld", len(withheld))
                cluster.want_metadata()
            return frame
        if kind == ADMIN:
            self._admin.take_answer(bytes(memoryview(buf)[pos + 4 : stop]))
            return b""
        if kind == ACKS0:
            _, _, version, parts, _ = entry
            self._in_flight.forget(parts)
            self._gate.accounts.take(parts, version)
            return b""
        if kind == CAP:
            return rewrite.cap_api_versions(buf, pos + 4, stop, entry[2], world.settings.unknown_apis == "hide")
        if kind == SASL:
            self._in_flight.is_waiting = False
            self._authentication.take_answer(buf, pos + 4, stop, entry[2])
            return None
        # LOOKUP: only to learn from.
        rewrite.metadata(buf, pos + 4, stop, entry[2], self._gate.client.addresses, cluster.topic_ids)
        if self._lookup.take_answer(entry[0]):
            self._hold.until = 0.0
        return b""
