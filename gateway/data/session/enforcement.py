# Carries out the gate's verdict on a Produce request that is not the common case. It passes, is delayed,
# held back, or stripped of partitions; its client is told, and its later requests are muted. Sans-IO.
#
# Several reasons to mute do not add up: the longest wins. The bounds on all waits are the hold's. The gate says what
# may pass and how it is counted.

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway.data.control_requests.lookup import VERSION, Lookup
from gateway.data.pending.hold import MAX_MUTE_S, MAX_WAIT_S, Hold
from gateway.data.pending.pending import ACKS0, LOOKUP, PRODUCE
from gateway.data.pending.steps import ANSWER, DROPPED, FORWARD, HOLD, REPLACE, SKIPPED, ProduceRequest, Step
from gateway.data.session.accounts import ACKS0_LIMIT
from gateway.data.session.gate import Gate
from policies.limits.line import look_again_in
from policies.usage import DELAYED
from policies.verdict import NEVER_PASSES, STORAGE_PAUSE, counts_retries
from protocol import api, produce_request, produce_response, rewrite
from protocol.produce_request import gathered

if TYPE_CHECKING:
    from gateway.data.pending.in_flight import InFlight
    from policies.decision import Decision, Refused
    from protocol.produce_request import Partition
    from protocol.produce_response import Row

MIN_HOLD_S = 0.05
FIRST_HOLD_S = 1.0  # of a request whose topics are paused, while nothing says that its client writes to others
LOOK_AGAIN_S = 1.0  # at acks=0 in a pause: memory may have become short
CONNECTION_LOST = "connection-lost"  # policies.usage.REASONS


class Enforcement:
    """Decides one connection's Produce requests."""

    __slots__ = ("_accounts", "_alone_s", "_gate", "_hold", "_holds_acks0", "_in_flight", "_lookup")

    def __init__(self, gate: Gate, in_flight: InFlight, hold: Hold, lookup: Lookup) -> None:
        self._gate = gate
        self._accounts = gate.accounts
        self._in_flight = in_flight
        self._hold = hold
        self._lookup = lookup
        self._holds_acks0 = False  # the request at the head, which its client takes for sent, waits already
        self._alone_s = FIRST_HOLD_S

    def handle(self, request: ProduceRequest, now: float) -> Step:
        """Decide about the request, and count it."""
        gate, accounts, hold, acks, version = self._gate, self._accounts, self._hold, request.acks, request.version
        if version >= api.PRODUCE_TOPIC_IDS:
            look = self._lookup.look(gate.topics.nameless(request.parts), acks, hold.is_over, now)
            if look is not None:
                if look.question:
                    self._in_flight.append((self._lookup.correlation, LOOKUP, VERSION))
                return Step(HOLD, look.question, look.until)
        if accounts.rejected.asks and accounts.awaits(request.parts, version):
            request = _with_checksums(request)
        if acks and hold.is_over:
            accounts.count(request.parts, version, "discarded")
            return SKIPPED
        if not request.parts:  # whatever else is in it, no limit would be asked about it
            return Step(ANSWER, produce_response.local(version, request.correlation, [], 0)) if acks else DROPPED
        paused = self._pause(request, now)
        if paused is not None:
            return paused
        wait_ms = max(0, round((hold.mute_until - now) * 1000))
        may_delay = not acks or hold.latest >= now + MIN_HOLD_S
        decision = gate.judge(request, now, wait_ms=wait_ms, may_delay=may_delay)
        refused, delay_ms = decision.refused, decision.delay_ms
        if hold.timeout_ms is None and (refused or delay_ms):
            hold.expect(produce_request.timeout_ms(request.buf, request.start, request.stop))
        if refused and not acks:
            refused, until = self._hold_acks0(refused, now)
            if until:
                held_ms = round((until - now) * 1000)
                accounts.note_held(request.parts, version, refused, held_ms, first=not self._holds_acks0)
                self._holds_acks0 = True
                return Step(HOLD, until=until)
        self._holds_acks0 = False
        until = self._hold_for_room(refused, now) if refused and acks else 0.0
        if until:
            accounts.note_held(request.parts, version, refused, round((until - now) * 1000), first=False)
            return Step(HOLD, until=until)
        if decision.notes:
            accounts.note(decision.notes, version)
        if delay_ms:
            self._delay(delay_ms, acks, now, next((note[2] for note in decision.notes if note[1] == DELAYED), ""))
        if refused:
            return self._reject(request, decision, refused, now)
        question = self._admit(request, decision, None, delay_ms, now)
        return Step(FORWARD, question, delays=bool(delay_ms))

    def _pause(self, request: ProduceRequest, now: float) -> Step | None:
        """The request is held because a disk is full (or dropped: acks=0, at the end or when memory is short).

        It is held no longer than its client may be kept: then it is rejected with the rest of the partitions that
        `judge` refuses. acks=0 waits on.
        """
        gate, accounts, hold, acks, parts = self._gate, self._accounts, self._hold, request.acks, request.parts
        longest_s = math.inf if gate.paused() is not None else self._hold_topics(request, now)
        if longest_s is None:
            if hold.paused_since:
                held_ms = round((now - hold.paused_since) * 1000)
                accounts.note([(part, DELAYED, STORAGE_PAUSE, held_ms) for part in parts], request.version)
        elif longest_s and (acks or gate.world.settings.acks0 == "delay"):
            if not acks and (hold.draining or hold.memory_short):  # the client can't be told
                accounts.drop(parts, request.version, CONNECTION_LOST if hold.draining else ACKS0_LIMIT)
                return DROPPED
            hold.paused_since = hold.paused_since or now
            if hold.timeout_ms is None:
                hold.expect(produce_request.timeout_ms(request.buf, request.start, request.stop))
            # A pause may last: what has to be sent again later had better not wait for long before.
            latest = hold.drained_at + min(MAX_WAIT_S, hold.patience_s)
            until = min(latest, hold.paused_since + longest_s) if acks else now + LOOK_AGAIN_S
            if now < until:
                return Step(HOLD, until=until)
            self._alone_s = min(2 * self._alone_s, MAX_WAIT_S)
        hold.paused_since = 0.0
        return None

    def _hold_topics(self, request: ProduceRequest, now: float) -> float | None:
        """The most seconds for which the request may wait since full disks hold topics of it, and not all topics. None:
        they hold none of it.

        What waits also keeps what is behind it on the connection. So where a client writes to other topics as well, it
        is told at once and sends again what is rejected, unless it gives up after a few times. As long as nothing is
        known of it, it waits for longer and longer.
        """
        gate = self._gate
        paused = gate.paused_topics(request.parts, request.version)
        if not paused:
            return None
        if not request.acks or counts_retries(gate.client.software_name):
            return math.inf
        return 0.0 if paused < len(request.parts) or gate.passes_others else self._alone_s

    def _hold_for_room(self, refused: Refused, now: float) -> float:
        """The queue of a limit is full: the time at which the request is asked about again, if its client waits for so
        long; 0.0: it has to be told now.
        """
        hold, gate = self._hold, self._gate
        if hold.latest < now + MIN_HOLD_S or hold.is_over or hold.memory_short:
            return 0.0
        if not all(why.room_in_s for why in refused.values()):
            return 0.0
        look_in = look_again_in(max(why.room_in_s for why in refused.values()))
        gate.denied_since = gate.denied_since or now  # who waits for longer finds room first
        self._mute(min(now + look_in, hold.latest), _reason(refused))
        return hold.mute_until

    def _hold_acks0(self, refused: Refused, now: float) -> tuple[Refused, float]:
        """The partitions that are refused all the same, and the end of the request's wait, 0.0: none.

        acks=0 waits, unless the operator wants it dropped: every client reports success for lost records, and none
        times out on them. Partitions that are refused all the same (a protected topic, or an unknown id) are lost
        without a word.
        """
        hold = self._hold
        for_good = {key: why for key, why in refused.items() if why.reason in NEVER_PASSES}
        if self._gate.world.settings.acks0 == "drop" or hold.memory_short:
            return refused, 0.0
        if hold.is_over or len(for_good) == len(refused):
            return for_good, 0.0
        wait = min(why.throttle_ms for key, why in refused.items() if key not in for_good) / 1000
        self._mute(now + max(MIN_HOLD_S, min(wait, MAX_MUTE_S)), _reason(refused))
        return refused, hold.mute_until

    def _delay(self, delay_ms: int, acks: int, now: float, why: str) -> None:
        """The request in hand passes; the next Produce request of this connection waits."""
        until = now + min(delay_ms / 1000, MAX_MUTE_S)
        if acks:  # no client times out on acks=0: only there may waits add up
            until = min(until, self._hold.latest)
        self._mute(until, why)

    def _mute(self, until: float, why: str) -> None:
        if until > self._hold.mute_until:
            self._hold.mute_until = until
            self._hold.why = why
            if not self._hold.arrived:  # else it was held already, and this goes on with that
                self._gate.world.ledger.count("mutes")

    def _reject(self, request: ProduceRequest, decision: Decision[Partition], refused: Refused, now: float) -> Step:
        """Forward the rest of the request, if any, and report the rejected partitions in the same answer."""
        delay_ms = decision.delay_ms
        if request.acks and any(part[4] < 0 and part[6] < 0 for part in request.parts):  # to recognise a repeat
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
                    self._mute(until, _reason(refused))
        else:
            self._drop(stopped, request.version, refused)
        code = self._gate.code
        rows: list[Row] = [(topic, index, code(why), why.text) for (topic, index), why in refused.items()]
        if admitted:
            rest = produce_request.strip(request.buf, request.start, request.stop, refused.keys()) or b""
            rest += self._admit(
                request._replace(parts=admitted), decision, rows, throttle_ms if request.acks else delay_ms, now
            )
            if request.acks:
                self._gate.world.ledger.count("answers_merged")
            return Step(REPLACE, rest, delays=bool(delay_ms))
        if not request.acks:
            return Step(REPLACE, delays=bool(delay_ms))
        frame = produce_response.local(request.version, request.correlation, rows, throttle_ms)
        latencies = self._gate.world.ledger.latencies
        if not request.correlation & latencies.mask:
            latencies.reject((self._hold.arrived or now, now, latencies.mask + 1), now)
        return Step(ANSWER, frame, delays=bool(delay_ms))

    def _drop(self, parts: list[Partition], version: int, refused: Refused) -> None:
        """Count them as dropped: with acks=0 the client can't be told."""
        dropped: dict[str, list[Partition]] = {}
        for part in parts:
            reason = refused[part[:2]].reason
            dropped.setdefault(reason if reason in NEVER_PASSES else ACKS0_LIMIT, []).append(part)
        for reason, some in dropped.items():
            self._accounts.drop(some, version, reason)

    def _admit(
        self,
        request: ProduceRequest,
        decision: Decision[Partition],
        rows: list[Row] | None,
        throttle_ms: int,
        now: float,
    ) -> bytes:
        """Its partitions are forwarded; `rows` are the results of other partitions, for the client. Returns the frame
        that has to go behind it.
        """
        _, _, _, version, correlation, acks, parts = request
        self._gate.admit(decision, parts, version, now)
        charged, flight = decision if decision.limits else None, self._in_flight
        if acks:
            mask = self._gate.world.ledger.latencies.mask
            stamp = None if correlation & mask else (self._hold.arrived or now, now, mask + 1)
            if len(parts) == 1 and not (rows or throttle_ms):
                flight.note(correlation, version, *parts[0], charged, stamp)
            else:
                kept = gathered(parts)
                flight.keep(kept)
                flight.append((correlation, PRODUCE, version, kept, rows, throttle_ms, charged, stamp))
            return b""
        self._accounts.count(parts, version, "unacknowledged", delay_ms=throttle_ms)
        if self._accounts.are_taken(parts, version):
            return b""
        # A broker ends the connection where it refuses any of these, and goes on to the next request where it doesn't.
        kept = gathered(parts)
        flight.keep(kept)
        flight.append((rewrite.NO_TOPICS_ID, ACKS0, version, kept, charged))
        return rewrite.NO_TOPICS

    def discard(self, request: ProduceRequest) -> None:
        """It was read and will never be forwarded: the connection is over."""
        accounts, version = self._accounts, request.version
        if accounts.rejected.asks and accounts.awaits(request.parts, version):
            request = _with_checksums(request)
        if request.acks:
            accounts.count(request.parts, version, "discarded")
        else:  # its client believes that it was sent, and will not send it again
            accounts.count(request.parts, version, "dropped", CONNECTION_LOST)


def _reason(refused: Refused) -> str:
    """Of the partition that has to wait longest."""
    return max(refused.values(), key=lambda why: why.throttle_ms).reason


def _with_checksums(request: ProduceRequest) -> ProduceRequest:
    """The same; partitions without a producer id have their batch's CRC in place of a sequence."""
    return request._replace(parts=with_checksums(request.buf, request.start, request.stop, request.parts))


def with_checksums(buf: bytearray, start: int, stop: int, parts: list[Partition]) -> list[Partition]:
    """The partitions of that request; those without a producer id have their batch's CRC in place of a sequence."""
    checksums = produce_request.checksums(buf, start, stop, parts)
    return [
        (*part[:6], checksum, part[7]) if part[4] < 0 else part for part, checksum in zip(parts, checksums, strict=True)
    ]
