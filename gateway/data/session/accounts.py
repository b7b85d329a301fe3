# The accounts of one connection: all that its client offered is counted once, under exactly one of
# policies.usage.OUTCOMES, when its fate is known; and limits get back what didn't get into the log.
#
# Decides nothing. Knows no bytes on the wire and no order of answers. Where a batch has no producer id its sequence is
# free: the session puts its checksum there when it is asked for (`awaits_repeats`).

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.data.shared.ledger import (
    BYTES,
    DELAY,
    MESSAGES,
    REPEATS,
    REQUESTS,
    UNKNOWN_REPEAT_BYTES,
    UNKNOWN_REPEAT_MESSAGES,
)
from gateway.data.shared.topics import is_valid_name, shown_name
from policies import decision
from policies.decision import NO_LIMITS, PartitionLimits
from policies.idempotence.repeats import NO_EPOCH, sends_same_bytes
from policies.usage import APPENDED_ERRORS, DELAYED, NOTES
from policies.verdict import NEVER_PASSES
from protocol import api

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Sequence

    from gateway.data.session.fast_path import sums_by_topic, written_offsets
    from gateway.data.shared.client import ConnectedClient
    from gateway.data.shared.ledger import RowCounts
    from gateway.data.shared.topics import ConnectionTopics
    from policies.decision import LimitNote, RefusedPartitions, RequestDecision
    from policies.idempotence.repeats import BatchId, BatchOwner
    from policies.meters.broker_meters import BrokerMeters
    from protocol.produce.produce_fast import PartitionArray
    from protocol.produce.produce_request import PartitionBatch, RequestPartitions, TopicSpan
    from protocol.produce.produce_response import PartitionResults

    # What was forwarded was charged to these limits, each partition or all of it; None: to none that asked.
    ChargedLimits = RequestDecision[PartitionBatch] | PartitionLimits | None
else:
    try:
        from gateway.data.session.fast_path import sums_by_topic, written_offsets
    except ImportError:  # it is not compiled, and nothing asks for sums

        def written_offsets(parts, answered):
            return None


ACKS0_LIMIT = "acks0-limit"  # policies.usage.REASONS


class ProduceAccounts:
    """Counts the outcomes of one connection's Produce requests. `rejected_batches`: the worker's rejected batches,
    which clients may send again. `accepted_topics`: topics for which the broker has accepted something from this
    connection.
    """

    __slots__ = (
        "_acknowledged",
        "_broker",
        "_client",
        "_confirmed_topics",
        "_rows",
        "_topics",
        "accepted_topics",
        "rejected_batches",
    )

    def __init__(self, client: ConnectedClient, topics: ConnectionTopics, broker: BrokerMeters) -> None:
        world = client.world
        self._client = client
        self._topics = topics
        self._broker = broker
        self._acknowledged = world.acknowledged_batches
        self._rows = client.accepted_rows
        self.rejected_batches = world.rejected_batches
        self.accepted_topics: set[bytes] = set()
        self._confirmed_topics: set[bytes] = set()  # topics that the engine knows from us

    def reset_rows(self) -> None:
        """Drop the rows and meters of the former interval: they must not be used any more."""
        self._rows.clear()
        self._confirmed_topics.clear()

    # --- what becomes of requests -------------------------------------------------------------------------------------

    def record_outcome(
        self, parts: Iterable[PartitionBatch], version: int, outcome: str, reason: str = "", delay_ms: int = 0
    ) -> None:
        """Count a request whose partitions all ended in the same outcome."""
        tally = _RequestTally(self)
        for part in parts:
            tally.add_partition(part, self._topics.resolve_name(part[0], version), outcome, reason, delay_ms)

    def record_notes(self, notes: Iterable[LimitNote[PartitionBatch]], version: int) -> None:
        """Count what policies did to these bytes, or would have done in mode observe; an outcome counts the same bytes
        as well.
        """
        tally = _RequestTally(self)
        for part, outcome, reason, delay_ms in notes:
            tally.add_partition(part, self._topics.resolve_name(part[0], version), outcome, reason, delay_ms)

    def record_hold(
        self, parts: Iterable[PartitionBatch], version: int, refused: RefusedPartitions, wait_ms: int, first: bool
    ) -> None:
        """An acks=0 request waits for its limit: count its bytes once, and the time each time. Not those of partitions
        that no wait lets pass: no limit delays them.
        """
        counted_rows: set[int] = set()  # a request waits once, however many partitions it has
        for part in parts:
            why = refused.get(part[:2])
            if why is None or why.reason in NEVER_PASSES:
                continue
            row = self.outcome_row(self._topics.resolve_name(part[0], version), DELAYED, why.reason)
            if first:
                row[BYTES] += part[2]
                row[MESSAGES] += part[3]
            if id(row) not in counted_rows:
                counted_rows.add(id(row))
                row[DELAY] += wait_ms
                row[REQUESTS] += first

    def record_rejection(self, parts: Iterable[PartitionBatch], version: int, refused: RefusedPartitions) -> None:
        """Count partitions that the gateway rejected in an answer to the client."""
        tally = _RequestTally(self)
        for part in parts:
            why = refused[part[:2]]
            if why.reason not in NEVER_PASSES:
                self._broker.throttled.uncounted += part[2]
            tally.add_partition(
                part, self._topics.resolve_name(part[0], version), "rejected", why.reason, why.throttle_ms
            )

    def record_drop(self, parts: Sequence[PartitionBatch], version: int, reason: str) -> None:
        """Count partitions with acks=0 that are not forwarded: such a client gets no answer."""
        if reason == ACKS0_LIMIT:
            self._broker.throttled.uncounted += sum(part[2] for part in parts)
        self.record_outcome(parts, version, "dropped", reason)

    def has_accepted_topics(self, parts: Iterable[PartitionBatch], version: int) -> bool:
        """Whether the broker has accepted something from this connection for each of these topics."""
        return all(self._topics.resolve_name(part[0], version) in self.accepted_topics for part in parts)

    def confirm_acks0(self, parts: Iterable[PartitionBatch], version: int) -> None:
        """The broker has accepted these partitions, which were sent with acks=0."""
        for part in parts:
            name = self._topics.resolve_name(part[0], version)
            if name not in self._confirmed_topics and is_valid_name(
                name
            ):  # others no broker takes, whatever it answers
                self._confirm_topic(name)

    def retract_forwarded(self, parts: Iterable[PartitionBatch], version: int, charged: ChargedLimits) -> None:
        """Take back partitions that were forwarded, where no answer confirms that they got into the log. Topics for
        which the broker has never accepted anything from this connection must not be charged to other clients.
        """
        for part in parts:
            name = self._topics.resolve_name(part[0], version)
            if name not in self.accepted_topics:
                self._broker.retract_bytes(name, part[2])
                self._refund_limits(name, part, charged)

    def settle_response(
        self,
        parts: RequestPartitions,
        version: int,
        answered: PartitionResults,
        charged: ChargedLimits,
        delay_ms: int,
    ) -> None:
        """Settle a request by the broker's answer, which may be in another order. `parts` and `answered` are as
        skimmed.
        """
        tally = _RequestTally(self)
        if len(parts) > 1 and not self.rejected_batches.may_match:
            several: Any = parts
            found = written_offsets(several, answered)
            if found is not None:
                self._settle_all_written(several, found, version, charged, tally, delay_ms)
                return
        codes = {(row[0], row[1]): row for row in answered}
        for part in parts:
            self._settle_partition(part, version, codes.get(part[:2]), charged, tally, delay_ms)

    def _settle_all_written(
        self,
        parts: PartitionArray[PartitionBatch],
        offsets: array[int],
        version: int,
        charged: ChargedLimits,
        tally: _RequestTally,
        delay_ms: int,
    ) -> None:
        """All partitions are in the log: look each topic's row up once, not once per partition. Without
        `written_offsets` none of them has a producer id.
        """
        topics: list[TopicSpan] = parts.topics
        if version >= api.PRODUCE_TOPIC_IDS:
            topics = [(self._topics.resolve_name(topic, version), first, stop) for topic, first, stop in topics]
        again = self._acknowledged.record_batches(topics, parts.numbers, offsets) if offsets else []
        if again:
            self.count_with_duplicates(parts, topics, again, charged, delay_ms)
            return
        for (name, _, _), (_, size, messages) in zip(topics, sums_by_topic(parts), strict=True):
            tally.add_counts(self._rows.get(name) or self._accepted_row(name), size, messages, delay_ms)

    def count_with_duplicates(
        self,
        parts: PartitionArray[PartitionBatch],
        topics: Sequence[TopicSpan],
        again: Iterable[int],
        charged: ChargedLimits,
        delay_ms: int = 0,
    ) -> None:
        """All partitions are in the log, those at the positions `again` from earlier. `topics`: by their names."""
        tally, twice = _RequestTally(self), frozenset(again)
        for name, first, stop in topics:
            for place in range(first, stop):
                part = parts[place]
                if place in twice:
                    self._count_duplicate(part, name, charged, tally)
                else:
                    tally.add_counts(self._rows.get(name) or self._accepted_row(name), part[2], part[3], delay_ms)

    def _settle_partition(
        self,
        part: PartitionBatch,
        version: int,
        answer: tuple[bytes, int, int, int] | None,
        charged: ChargedLimits,
        tally: _RequestTally,
        delay_ms: int,
    ) -> None:
        topic, index, size, _, pid, producer_epoch, sequence, _ = part
        name = self._topics.resolve_name(topic, version)
        if answer is None:  # a broker that answers without a partition that it was sent
            tally.add_partition(part, name, "unanswered", "")
            return
        _, _, code, offset = answer
        if code:
            error = api.ERROR_NAMES.get(code, str(code))
            tally.add_partition(part, name, "errored", error)
            if error in APPENDED_ERRORS:  # a client gets one at will: by acks=all, and a timeout of 0
                self._broker.errors.uncounted += size
                return
            self._client.world.engine.record_broker_refusal(self._broker.node_id, name, size)
            self._refund_limits(name, part, charged)
        elif pid >= 0 and self._acknowledged.record_batch(pid, producer_epoch, name, index, sequence, offset):
            self._count_duplicate(part, name, charged, tally)
        else:
            if name not in self._rows:
                self._accepted_row(name)  # fast_path.pyx counts the next ones there
            tally.add_partition(part, name, "accepted", "", delay_ms)

    def _count_duplicate(self, part: PartitionBatch, name: bytes, charged: ChargedLimits, tally: _RequestTally) -> None:
        tally.add_partition(part, name, "duplicate", "")
        self._broker.retract_bytes(name, part[2])  # it didn't get into the log this time
        self._refund_limits(name, part, charged)

    def _refund_limits(self, name: bytes, part: PartitionBatch, charged: ChargedLimits) -> None:
        """Return what was charged to the limits that clients share. A group that was not asked has read the bytes from
        the topic's meter.
        """
        if charged is not None:
            if isinstance(charged, PartitionLimits):
                limits = charged
                decision.refund_credit(limits, part[2], part[3])
            else:
                limits = charged.limits.get(part[:2], NO_LIMITS)
                decision.refund_part(charged, part)
            if limits.group is not None:
                return
        groups = self._client.world.engine.groups
        if groups.has_groups and not self._client.is_exempt and is_valid_name(name):
            group_limit = groups.charged_limit(name)
            if group_limit is not None:
                group_limit.refund_request(part[2], part[3])

    def _confirm_topic(self, name: bytes) -> None:
        """The broker has accepted a batch for that topic, so its name was not made up by a client."""
        self.accepted_topics.add(name)
        self._confirmed_topics.add(name)
        self._broker.confirm_topic(name)

    # --- what comes again after it was rejected -----------------------------------------------------------------------

    def awaits_repeats(self, parts: Iterable[PartitionBatch], version: int) -> bool:
        """Whether a batch of these may be recognised by its checksum: it has no producer id, hence no sequence, and the
        gateway rejected a batch of its client in that partition.
        """
        has, owner, name = self.rejected_batches.has_rejected, self._client.counted_names, self._topics.resolve_name
        return any(part[4] < 0 and has(owner, name(part[0], version), part[1]) for part in parts)

    def expect_retry(self, part: PartitionBatch, name: bytes, now: float) -> None:
        """The gateway rejected the batch, and its client will send it again."""
        if part[6] >= 0:
            self.rejected_batches.record_rejection(self._batch_owner(part[4]), name, part[1], _batch_key(part), now)

    def count_repeats(self, row: RowCounts, part: PartitionBatch, name: bytes) -> None:
        """How many of the bytes just counted had been rejected before. Call it only where `awaits_repeats` applies."""
        _, index, size, messages, pid, _, sequence, _ = part
        if sequence < 0:  # nothing of its client was outstanding there when it came
            repeats = None if self.rejected_batches.is_blind else 0
        else:
            same = pid >= 0 or sends_same_bytes(self._client.software_name)
            repeats = self.rejected_batches.match_retry(self._batch_owner(pid), name, index, _batch_key(part), same)
        if repeats is None:
            row[UNKNOWN_REPEAT_BYTES] += size
            row[UNKNOWN_REPEAT_MESSAGES] += messages
        elif repeats:
            row[REPEATS] += repeats

    def _batch_owner(self, pid: int) -> BatchOwner:
        return pid if pid >= 0 else self._client.counted_names

    # --- rows ---------------------------------------------------------------------------------------------------------

    def outcome_row(self, name: bytes, outcome: str, reason: str) -> RowCounts:
        """The row that counts this client's bytes for a topic."""
        client = self._client
        return client.world.ledger.find_row(
            client.node_id,
            shown_name(name),
            *client.counted_names,
            outcome,
            reason,
            self._group_name(name),
            client.software_name,
        )

    def _accepted_row(self, name: bytes) -> RowCounts:
        if name not in self._confirmed_topics:
            self._confirm_topic(name)
        row = self._rows[name] = self.outcome_row(name, "accepted", "")
        return row

    def _group_name(self, name: bytes) -> str:
        """The resource group that is charged for this client's bytes to a topic."""
        client = self._client
        groups = client.world.engine.groups
        if not groups.has_groups or client.is_exempt or not is_valid_name(name):
            return ""
        if groups.depends_on_principal(name):
            return client.group_limit.group if client.group_limit is not None else ""
        return groups.group_by_name(name) or ""


class _RequestTally:
    """Adds the partitions of one request to their rows; a row's `requests` grows by one, however many partitions there
    are.
    """

    def __init__(self, accounts: ProduceAccounts) -> None:
        self._accounts = accounts
        self._counted_rows: set[int] = set()

    def add_partition(self, part: PartitionBatch, name: bytes, outcome: str, reason: str, delay_ms: int = 0) -> None:
        row = self._add_to_row(name, outcome, reason, part[2], part[3], delay_ms)
        if outcome in NOTES:
            return
        if self._accounts.rejected_batches.may_match:
            self._accounts.count_repeats(row, part, name)
        if part[7]:
            self._add_to_row(name, "trailing", "", part[7], 0, 0)

    def _add_to_row(self, name: bytes, outcome: str, reason: str, size: int, messages: int, delay_ms: int) -> RowCounts:
        row = self._accounts.outcome_row(name, outcome, reason)
        self.add_counts(row, size, messages, delay_ms)
        return row

    def add_counts(self, row: RowCounts, size: int, messages: int, delay_ms: int) -> None:
        row[BYTES] += size
        row[MESSAGES] += messages
        if id(row) not in self._counted_rows:
            self._counted_rows.add(id(row))
            row[REQUESTS] += 1
            row[DELAY] += delay_ms


def _batch_key(part: PartitionBatch) -> BatchId:
    """A key that distinguishes a batch from the others of its owner in its partition."""
    _, _, size, messages, pid, epoch, sequence, _ = part
    return epoch if pid >= 0 else NO_EPOCH, sequence, size, messages
