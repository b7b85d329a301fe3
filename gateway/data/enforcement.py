# What becomes of a Produce request that is not the common case: the gate's verdict, carried out. It passes, is delayed,
# held back, or stripped of partitions; its client is told, and its later requests are muted. Sans-IO.
#
# Several reasons to mute do not add up: the longest wins. The bounds on all waits are the hold's. What may pass and how
# it is counted is the gate's.

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.data.gate import Gate
from gateway.data.hold import MAX_MUTE_S, Hold
from gateway.data.lookup import VERSION, Lookup
from gateway.data.steps import ANSWER, DROPPED, FORWARD, HOLD, REPLACE, SKIPPED, ProduceRequest, Step
from policies.usage import DELAYED
from policies.verdict import PROTECTED_TOPIC, STORAGE_PAUSE, UNKNOWN_TOPIC_ID
from protocol import api, produce_request, produce_response
from protocol.pending import LOOKUP, PRODUCE

if TYPE_CHECKING:
    from gateway.data.in_flight import InFlight
    from policies.decision import Decision, Refused
    from protocol.produce_request import Partition
    from protocol.produce_response import Row

NEVER_PASSES = frozenset({PROTECTED_TOPIC, UNKNOWN_TOPIC_ID})  # however long it waits: acks=0 is not held for it
MIN_HOLD_S = 0.05
LOOK_AGAIN_S = 1.0  # at acks=0 in a pause: memory may have become short
CONNECTION_LOST = "connection-lost"  # policies.usage.REASONS
ACKS0_LIMIT = "acks0-limit"


class Enforcement:
    """What one connection's Produce requests are let do."""

    __slots__ = ("_gate", "_hold", "_holds_acks0", "_in_flight", "_lookup")

    def __init__(self, gate: Gate, in_flight: InFlight, hold: Hold, lookup: Lookup) -> None:
        self._gate = gate
        self._in_flight = in_flight
        self._hold = hold
        self._lookup = lookup
        self._holds_acks0 = False  # the request at the head, which its client takes for sent, waits already

    def handle(self, request: ProduceRequest, now: float) -> Step:
        """What becomes of it."""
        gate, hold, acks, version = self._gate, self._hold, request.acks, request.version
        if version >= api.PRODUCE_TOPIC_IDS:
            look = self._lookup.look(gate.nameless(request.parts), acks, hold.is_over, now)
            if look is not None:
                if look.question:
                    self._in_flight.entries.append((self._lookup.correlation, LOOKUP, VERSION))
                return Step(HOLD, look.question, look.until)
        if gate.rejected.asks and gate.awaits(request.parts, version):
            request = _with_checksums(request)
        if acks and hold.is_over:
            gate.count(request.parts, version, "discarded")
            return SKIPPED
        paused = self._pause(request, now)
        if paused is not None:
            return paused
        wait_ms = max(0, round((hold.mute_until - now) * 1000))
        may_delay = not acks or now < hold.latest
        decision = gate.judge(request.parts, version, now, wait_ms=wait_ms, may_delay=may_delay)
        refused, delay_ms = decision.refused, decision.delay_ms
        if refused and not acks:
            refused, until = self._hold_acks0(refused, now)
            if until:
                held_ms = round((until - now) * 1000)
                gate.note_held(request.parts, version, refused, held_ms, first=not self._holds_acks0)
                self._holds_acks0 = True
                return Step(HOLD, until=until)
        self._holds_acks0 = False
        if decision.notes:
            gate.note(decision.notes, version)
        if delay_ms:
            self._delay(delay_ms, acks, now)
        if refused:
            return self._reject(request, decision, refused, now)
        self._admit(request, decision, None, delay_ms, now)
        return Step(FORWARD, delays=bool(delay_ms))

    def _pause(self, request: ProduceRequest, now: float) -> Step | None:
        """The request is held because a disk is full (or dropped: acks=0, at the end or when memory is short).

        No longer than its client may be kept: then it is rejected with the rest of what `judge` finds. acks=0 waits on.
        """
        gate, hold, acks, parts = self._gate, self._hold, request.acks, request.parts
        pause = gate.paused()
        if pause is not None and (acks or gate.world.settings.acks0 == "delay"):
            if not acks and (hold.draining or hold.memory_short):  # the client can't be told
                gate.count(parts, request.version, "dropped", CONNECTION_LOST if hold.draining else ACKS0_LIMIT)
                return DROPPED
            until = hold.latest if acks else now + LOOK_AGAIN_S
            if now < until:
                hold.paused_since = hold.paused_since or now
                return Step(HOLD, until=until)
        elif hold.paused_since:
            held_ms = round((now - hold.paused_since) * 1000)
            gate.note([(part, DELAYED, STORAGE_PAUSE, held_ms) for part in parts], request.version)
        hold.paused_since = 0.0
        return None

    def _hold_acks0(self, refused: Refused, now: float) -> tuple[Refused, float]:
        """What is refused of it all the same, and until when it waits, if at all.

        acks=0 waits, unless the operator wants it dropped: every client reports success for what is lost, and none
        times out on it. What is refused all the same (a protected topic, or an unknown id) is lost without a word.
        """
        hold = self._hold
        for_good = {key: why for key, why in refused.items() if why.reason in NEVER_PASSES}
        if self._gate.world.settings.acks0 == "drop" or hold.memory_short:
            return refused, 0.0
        if hold.is_over or len(for_good) == len(refused):
            return for_good, 0.0
        wait = min(why.throttle_ms for key, why in refused.items() if key not in for_good) / 1000
        self._mute(now + max(MIN_HOLD_S, min(wait, MAX_MUTE_S)))
        return refused, hold.mute_until

    def _delay(self, delay_ms: int, acks: int, now: float) -> None:
        """The request in hand passes; the next Produce request of this connection waits."""
        until = now + min(delay_ms / 1000, MAX_MUTE_S)
        if acks:  # no client times out on acks=0: only there may waits add up
            until = min(until, self._hold.latest)
        self._mute(until)

    def _mute(self, until: float) -> None:
        if until > self._hold.mute_until:
            self._hold.mute_until = until
            self._gate.world.ledger.count("mutes")

    def _reject(self, request: ProduceRequest, decision: Decision[Partition], refused: Refused, now: float) -> Step:
        """Forward what is left of the request, if anything, and tell the client the rest in the same answer."""
        delay_ms = decision.delay_ms
        if request.acks and any(part[4] < 0 and part[6] < 0 for part in request.parts):  # to recognise what comes again
            request = _with_checksums(request)
        admitted = [part for part in request.parts if part[:2] not in refused]
        stopped = [part for part in request.parts if part[:2] in refused]
        throttle_ms = max(delay_ms, *(why.throttle_ms for why in refused.values()))
        if request.acks:
            self._gate.refuse(stopped, request.version, refused, now)
            if throttle_ms:
                # Bounded twice: a single mute, and what the oldest unread request has waited already. Requests that
                # are read already are still decided at once: they would only wait for the same answer.
                until = min(now + throttle_ms / 1000, now + MAX_MUTE_S, self._hold.latest)
                if until > now:
                    self._mute(until)
        else:
            self._drop(stopped, request.version, refused)
        code = self._gate.code
        rows: list[Row] = [(topic, index, code(why), why.text) for (topic, index), why in refused.items()]
        if admitted:
            rest = produce_request.strip(request.buf, request.start, request.stop, refused.keys()) or b""
            self._admit(
                request._replace(parts=admitted), decision, rows, throttle_ms if request.acks else delay_ms, now
            )
            if request.acks:
                self._gate.world.ledger.count("answers_merged")
            return Step(REPLACE, rest, delays=bool(delay_ms))
        if not request.acks:
            return Step(REPLACE, delays=bool(delay_ms))
        frame = produce_response.local(request.version, request.correlation, rows, throttle_ms)
        return Step(ANSWER, frame, delays=bool(delay_ms))

    def _drop(self, parts: list[Partition], version: int, refused: Refused) -> None:
        """Count them as dropped: with acks=0 the client can't be told."""
        dropped: dict[str, list[Partition]] = {}
        for part in parts:
            reason = refused[part[:2]].reason
            dropped.setdefault(reason if reason in NEVER_PASSES else ACKS0_LIMIT, []).append(part)
        for reason, some in dropped.items():
            self._gate.count(some, version, "dropped", reason)

    def _admit(
        self,
        request: ProduceRequest,
        decision: Decision[Partition],
        rows: list[Row] | None,
        throttle_ms: int,
        now: float,
    ) -> None:
        """Its partitions are forwarded; `rows` are what the client is told of others."""
        _, _, _, version, correlation, acks, parts = request
        self._gate.admit(decision, parts, version, now)
        if acks:
            self._in_flight.keep(parts)
            self._in_flight.entries.append((correlation, PRODUCE, version, parts, rows, throttle_ms))
        else:
            self._gate.send_unacknowledged(parts, version, throttle_ms)

    def discard(self, request: ProduceRequest) -> None:
        """It was read and will never be forwarded: the connection is over."""
        gate, version = self._gate, request.version
        if gate.rejected.asks and gate.awaits(request.parts, version):
            request = _with_checksums(request)
        if request.acks:
            gate.count(request.parts, version, "discarded")
        else:  # its client believes that it was sent, and will not send it again
            gate.count(request.parts, version, "dropped", CONNECTION_LOST)


def _with_checksums(request: ProduceRequest) -> ProduceRequest:
    """The same; partitions without a producer id have their batch's CRC in place of a sequence."""
    return request._replace(parts=with_checksums(request.buf, request.start, request.stop, request.parts))


def with_checksums(buf: bytearray, start: int, stop: int, parts: list[Partition]) -> list[Partition]:
    """The partitions of that request; those without a producer id have their batch's CRC in place of a sequence."""
    checksums = produce_request.checksums(buf, start, stop, parts)
    return [
        (*part[:6], checksum, part[7]) if part[4] < 0 else part for part, checksum in zip(parts, checksums, strict=True)
    ]
