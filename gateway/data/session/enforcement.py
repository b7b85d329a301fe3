# Carries out the gate's verdict on a Produce request that is not the common case. It passes, is delayed,
# held back, or stripped of partitions; its client is answered, and its later requests are muted. Sans-IO.
#
# Several reasons to mute do not add up: the longest wins. The bounds on all waits are the hold's. The gate says what
# may pass and how it is counted.

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway.data.control_requests.lookup import METADATA_VERSION, TopicIdLookup
from gateway.data.pending.hold import MAX_MUTE_S, MAX_WAIT_S, RequestHold
from gateway.data.pending.pending import ACKS0, LOOKUP, PRODUCE
from gateway.data.pending.steps import ANSWER, DROPPED, FORWARD, HOLD, REPLACE, SKIPPED, ProduceRequest, RequestStep
from gateway.data.session.accounts import ACKS0_LIMIT
from gateway.data.session.gate import ProduceGate
from policies.limits.limiter import recheck_delay_s
from policies.usage import DELAYED
from policies.verdict import NEVER_PASSES, STORAGE_PAUSE, limits_retries
from protocol import api
from protocol.produce import produce_request, produce_response
from protocol.produce.produce_request import gather_partitions
from protocol.rewriting import rewrite

if TYPE_CHECKING:
    from gateway.data.pending.in_flight import InFlightRequests
    from policies.decision import RefusedPartitions, RequestDecision
    from protocol.produce.produce_request import PartitionBatch
    from protocol.produce.produce_response import PartitionError

MIN_HOLD_S = 0.05
FIRST_HOLD_S = 1.0  # of a request whose topics are paused, while nothing says that its client writes to others
RECHECK_S = 1.0  # at acks=0 in a pause: memory may have become short
CONNECTION_LOST = "connection-lost"  # policies.usage.REASONS


class ProduceEnforcement:
    """Decides about one connection's Produce requests, and carries the decisions out."""

    __slots__ = ("_accounts", "_gate", "_hold", "_in_flight", "_is_acks0_held", "_lookup", "_topic_hold_s")

    def __init__(
        self, gate: ProduceGate, in_flight: InFlightRequests, hold: RequestHold, lookup: TopicIdLookup
    ) -> None:
        self._gate = gate
        self._accounts = gate.accounts
        self._in_flight = in_flight
        self._hold = hold
        self._lookup = lookup
        self._is_acks0_held = False  # the request at the head, which its client takes for sent, waits already
        self._topic_hold_s = FIRST_HOLD_S

    def enforce_request(self, request: ProduceRequest, now: float) -> RequestStep:
        """Decide about the request, and count it."""
        gate, accounts, hold, acks, version = self._gate, self._accounts, self._hold, request.acks, request.version
        if version >= api.PRODUCE_TOPIC_IDS or gate.topics.refused_ids:
            unnamed = gate.find_unnamed(request.parts, version)
            look = self._lookup.wait_for_names(unnamed, acks, hold.is_abandoned, now)
            if look is not None:
                if look.query:
                    self._in_flight.append((self._lookup.correlation, LOOKUP, METADATA_VERSION))
                return RequestStep(HOLD, look.query, look.until)
        if accounts.rejected_batches.may_match and accounts.awaits_repeats(request.parts, version):
            request = _request_with_checksums(request)
        if acks and hold.is_abandoned:
            accounts.record_outcome(request.parts, version, "discarded")
            return SKIPPED
        if not request.parts:  # whatever else is in it, no limit would be asked about it
            return (
                RequestStep(ANSWER, produce_response.local_response(version, request.correlation, [], 0))
                if acks
                else DROPPED
            )
        paused = self._hold_in_pause(request, now)
        if paused is not None:
            return paused
        wait_ms = max(0, round((hold.muted_until - now) * 1000))
        may_delay = not acks or hold.wait_deadline >= now + MIN_HOLD_S
        decision = gate.judge_request(request, now, wait_ms=wait_ms, may_delay=may_delay)
        refused, delay_ms = decision.refused, decision.delay_ms
        if hold.timeout_ms is None and (refused or delay_ms):
            hold.set_timeout(produce_request.read_timeout_ms(request.buf, request.start, request.stop))
        if refused and not acks:
            refused, until = self._decide_acks0(refused, now)
            if until:
                held_ms = round((until - now) * 1000)
                accounts.record_hold(request.parts, version, refused, held_ms, first=not self._is_acks0_held)
                self._is_acks0_held = True
                return RequestStep(HOLD, until=until)
        self._is_acks0_held = False
        until = self._hold_for_room(refused, now) if refused and acks else 0.0
        if until:
            accounts.record_hold(request.parts, version, refused, round((until - now) * 1000), first=False)
            return RequestStep(HOLD, until=until)
        if decision.notes:
            accounts.record_notes(decision.notes, version)
        if delay_ms:
            self._delay_next(delay_ms, acks, now, next((note[2] for note in decision.notes if note[1] == DELAYED), ""))
        if refused:
            return self._reject_partitions(request, decision, refused, now)
        question = self._forward_partitions(request, decision, None, delay_ms, now)
        return RequestStep(FORWARD, question, delays_next=bool(delay_ms))

    def _hold_in_pause(self, request: ProduceRequest, now: float) -> RequestStep | None:
        """Hold the request because a disk is full. With acks=0 drop it at the end of the connection, or when memory is
        short.

        The request is held no longer than its client waits. Then it is rejected, together with the partitions that the
        gate refuses. With acks=0 it waits on.
        """
        gate, accounts, hold, acks, parts = self._gate, self._accounts, self._hold, request.acks, request.parts
        longest_s = math.inf if gate.enforced_pause() is not None else self._longest_topic_hold(request, now)
        if longest_s is None:
            if hold.paused_since:
                held_ms = round((now - hold.paused_since) * 1000)
                accounts.record_notes([(part, DELAYED, STORAGE_PAUSE, held_ms) for part in parts], request.version)
        elif longest_s and (acks or gate.world.settings.acks0 == "delay"):
            if not acks and (hold.is_draining or hold.is_memory_short):  # the client gets no answer
                accounts.record_drop(parts, request.version, CONNECTION_LOST if hold.is_draining else ACKS0_LIMIT)
                return DROPPED
            hold.paused_since = hold.paused_since or now
            if hold.timeout_ms is None:
                hold.set_timeout(produce_request.read_timeout_ms(request.buf, request.start, request.stop))
            # A pause may last: what has to be sent again later had better not wait for long before.
            latest = hold.drained_at + min(MAX_WAIT_S, hold.patience_s)
            until = min(latest, hold.paused_since + longest_s) if acks else now + RECHECK_S
            if now < until:
                return RequestStep(HOLD, until=until)
            self._topic_hold_s = min(2 * self._topic_hold_s, MAX_WAIT_S)
        hold.paused_since = 0.0
        return None

    def _longest_topic_hold(self, request: ProduceRequest, now: float) -> float | None:
        """The most seconds that the request may wait since full disks have been holding some of its topics (and not all
        topics); None: they hold none of them.

        A waiting request also blocks the requests behind it on the connection. So where a client writes to other topics
        as well, it gets a rejection at once and sends the rejected part again, unless it gives up after a few attempts.
        While nothing is known of the client, it waits longer each time.
        """
        gate = self._gate
        paused = gate.count_paused_partitions(request.parts, request.version)
        if not paused:
            return None
        if not request.acks or limits_retries(gate.client.software_name):
            return math.inf
        return 0.0 if paused < len(request.parts) or gate.passes_other_topics else self._topic_hold_s

    def _hold_for_room(self, refused: RefusedPartitions, now: float) -> float:
        """A limit's queue is full: the time at which the request is judged again, if its client waits that long; 0.0:
        it must be answered now.
        """
        hold, gate = self._hold, self._gate
        if hold.wait_deadline < now + MIN_HOLD_S or hold.is_abandoned or hold.is_memory_short:
            return 0.0
        if not all(why.room_in_s for why in refused.values()):
            return 0.0
        look_in = recheck_delay_s(max(why.room_in_s for why in refused.values()))
        gate.denied_since = gate.denied_since or now  # who waits for longer finds room first
        self._mute_client(min(now + look_in, hold.wait_deadline), _longest_reason(refused))
        return hold.muted_until

    def _decide_acks0(self, refused: RefusedPartitions, now: float) -> tuple[RefusedPartitions, float]:
        """The partitions of an acks=0 request that are refused, and the end of the request's wait (0.0: none).

        acks=0 waits, unless the operator has it dropped: a client reports success for records that are lost, and none
        times out on records that wait. Also where its client has gone: who closes at once would be under no limit. Only
        a gateway that stops lets it pass. Partitions that can't be forwarded (a protected topic, an unknown id) are
        lost silently.
        """
        hold = self._hold
        for_good = {key: why for key, why in refused.items() if why.reason in NEVER_PASSES}
        if self._gate.world.settings.acks0 == "drop" or hold.is_memory_short:
            return refused, 0.0
        if hold.is_draining or len(for_good) == len(refused):
            return for_good, 0.0
        wait = min(why.throttle_ms for key, why in refused.items() if key not in for_good) / 1000
        self._mute_client(now + max(MIN_HOLD_S, min(wait, MAX_MUTE_S)), _longest_reason(refused))
        return refused, hold.muted_until

    def _delay_next(self, delay_ms: int, acks: int, now: float, why: str) -> None:
        """This request passes; the next Produce request of the connection waits."""
        until = now + min(delay_ms / 1000, MAX_MUTE_S)
        if acks:  # no client times out on acks=0: only there may waits add up
            until = min(until, self._hold.wait_deadline)
        self._mute_client(until, why)

    def _mute_client(self, until: float, why: str) -> None:
        if until > self._hold.muted_until:
            self._hold.muted_until = until
            self._hold.mute_reason = why
            if not self._hold.arrived_at:  # else it was held already, and this goes on with that
                self._gate.world.ledger.count_event("mutes")

    def _reject_partitions(
        self, request: ProduceRequest, decision: RequestDecision[PartitionBatch], refused: RefusedPartitions, now: float
    ) -> RequestStep:
        """Forward the rest of the request, if any, and report the rejected partitions in the same response."""
        delay_ms = decision.delay_ms
        if request.acks and any(part[4] < 0 and part[6] < 0 for part in request.parts):  # to recognise a repeat
            request = _request_with_checksums(request)
        admitted = [part for part in request.parts if part[:2] not in refused]
        stopped = [part for part in request.parts if part[:2] in refused]
        throttle_ms = max(delay_ms, *(why.throttle_ms for why in refused.values()))
        if request.acks:
            self._gate.record_rejection(stopped, request.version, refused, now)
            if throttle_ms:
                # Bounded twice: a single mute, and what the oldest unread request has waited already. Requests that
                # are read already are still decided at once: they would only wait for the same answer.
                until = min(now + throttle_ms / 1000, now + MAX_MUTE_S, self._hold.wait_deadline)
                if until > now:
                    self._mute_client(until, _longest_reason(refused))
        else:
            self._record_dropped(stopped, request.version, refused)
        code = self._gate.error_code
        rows: list[PartitionError] = [(topic, index, code(why), why.text) for (topic, index), why in refused.items()]
        if admitted:
            rest = produce_request.strip_partitions(request.buf, request.start, request.stop, refused.keys()) or b""
            rest += self._forward_partitions(
                request._replace(parts=admitted), decision, rows, throttle_ms if request.acks else delay_ms, now
            )
            if request.acks:
                self._gate.world.ledger.count_event("answers_merged")
            return RequestStep(REPLACE, rest, delays_next=bool(delay_ms))
        if not request.acks:
            return RequestStep(REPLACE, delays_next=bool(delay_ms))
        frame = produce_response.local_response(request.version, request.correlation, rows, throttle_ms)
        latencies = self._gate.world.ledger.latencies
        if not request.correlation & latencies.sample_mask:
            latencies.record_rejection((self._hold.arrived_at or now, now, latencies.sample_mask + 1), now)
        return RequestStep(ANSWER, frame, delays_next=bool(delay_ms))

    def _record_dropped(self, parts: list[PartitionBatch], version: int, refused: RefusedPartitions) -> None:
        """Count partitions as dropped: with acks=0 the client gets no answer."""
        dropped: dict[str, list[PartitionBatch]] = {}
        for part in parts:
            reason = refused[part[:2]].reason
            dropped.setdefault(reason if reason in NEVER_PASSES else ACKS0_LIMIT, []).append(part)
        for reason, some in dropped.items():
            self._accounts.record_drop(some, version, reason)

    def _forward_partitions(
        self,
        request: ProduceRequest,
        decision: RequestDecision[PartitionBatch],
        rows: list[PartitionError] | None,
        throttle_ms: int,
        now: float,
    ) -> bytes:
        """Record that these partitions are forwarded. `rows`: results of the other partitions, for the client. Returns
        the frame that must follow the request.
        """
        _, _, _, version, correlation, acks, parts = request
        self._gate.record_admission(decision, parts, version, now)
        charged, flight = decision if decision.limits else None, self._in_flight
        if acks:
            mask = self._gate.world.ledger.latencies.sample_mask
            stamp = None if correlation & mask else (self._hold.arrived_at or now, now, mask + 1)
            if len(parts) == 1 and not (rows or throttle_ms):
                flight.append_produce(correlation, version, *parts[0], charged, stamp)
            else:
                kept = gather_partitions(parts)
                flight.charge_partitions(kept)
                flight.append((correlation, PRODUCE, version, kept, rows, throttle_ms, charged, stamp))
            return b""
        self._accounts.record_outcome(parts, version, "unacknowledged", delay_ms=throttle_ms)
        if self._accounts.has_accepted_topics(parts, version):
            return b""
        # A broker ends the connection where it refuses any of these, and goes on to the next request where it doesn't.
        kept = gather_partitions(parts)
        flight.charge_partitions(kept)
        flight.append((rewrite.NO_TOPICS_ID, ACKS0, version, kept, charged))
        return rewrite.NO_TOPICS_REQUEST

    def discard_request(self, request: ProduceRequest) -> None:
        """The request was read and will never be forwarded: the connection has ended."""
        accounts, version = self._accounts, request.version
        if accounts.rejected_batches.may_match and accounts.awaits_repeats(request.parts, version):
            request = _request_with_checksums(request)
        if request.acks:
            accounts.record_outcome(request.parts, version, "discarded")
        else:  # its client believes that it was sent, and will not send it again
            accounts.record_outcome(request.parts, version, "dropped", CONNECTION_LOST)


def _longest_reason(refused: RefusedPartitions) -> str:
    """The reason of the partition that has to wait longest."""
    return max(refused.values(), key=lambda why: why.throttle_ms).reason


def _request_with_checksums(request: ProduceRequest) -> ProduceRequest:
    """The request; partitions without a producer id have their batch's CRC in place of a sequence."""
    return request._replace(parts=parts_with_checksums(request.buf, request.start, request.stop, request.parts))


def parts_with_checksums(buf: bytearray, start: int, stop: int, parts: list[PartitionBatch]) -> list[PartitionBatch]:
    """The partitions of that request; those without a producer id have their batch's CRC in place of a sequence."""
    checksums = produce_request.batch_checksums(buf, start, stop, parts)
    return [
        (*part[:6], checksum, part[7]) if part[4] < 0 else part for part, checksum in zip(parts, checksums, strict=True)
    ]
