# The accounts of one connection: all that its client offered is counted once, under exactly one of
# policies.usage.OUTCOMES, when its fate is known; and limits get back what didn't get into the log.
#
# Decides nothing. Knows no bytes on the wire and no order of answers. Where a batch has no producer id its sequence is
# free: the session puts its checksum there when it is asked for (`awaits`).

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.data.shared.ledger import BYTES, DELAY, MESSAGES, REPEATS, REQUESTS, UNTOLD_BYTES, UNTOLD_MESSAGES
from gateway.data.shared.topics import is_valid, text
from policies import decision
from policies.decision import NO_LIMITS, Limits
from policies.idempotence.repeats import NO_EPOCH, sends_same_bytes
from policies.usage import DELAYED, NOTES
from policies.verdict import NEVER_PASSES
from protocol import api

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Sequence

    from gateway.data.session.fast_path import offsets, sums_by_topic
    from gateway.data.shared.client import Client
    from gateway.data.shared.ledger import Counts
    from gateway.data.shared.topics import Topics
    from policies.decision import Decision, Note, Refused
    from policies.idempotence.repeats import Batch, Owner
    from policies.thresholds.broker_meters import BrokerMeters
    from protocol.produce_fast import Partitions
    from protocol.produce_request import Partition, Parts, Span
    from protocol.produce_response import Results

    # What was forwarded was charged to these limits, each partition or all of it; None: to none that asked.
    Charged = Decision[Partition] | Limits | None
else:
    try:
        from gateway.data.session.fast_path import offsets, sums_by_topic
    except ImportError:  # it is not compiled, and nothing asks for sums

        def offsets(parts, answered):
            return None


ACKS0_LIMIT = "acks0-limit"  # policies.usage.REASONS


class Accounts:
    """The outcomes of one connection's Produce requests. `rejected`: the worker's batches that may come again. `taken`:
    topics that the broker has taken something for from this connection.
    """

    __slots__ = ("_acknowledged", "_broker", "_client", "_rows", "_topics", "_vouched", "rejected", "taken")

    def __init__(self, client: Client, topics: Topics, broker: BrokerMeters) -> None:
        world = client.world
        self._client = client
        self._topics = topics
        self._broker = broker
        self._acknowledged = world.acknowledged
        self._rows = client.rows
        self.rejected = world.rejected
        self.taken: set[bytes] = set()
        self._vouched: set[bytes] = set()  # topics that the engine knows from us

    def renew(self) -> None:
        """Rows and meters of the former interval must not be used any more."""
        self._rows.clear()
        self._vouched.clear()

    # --- what becomes of requests -------------------------------------------------------------------------------------

    def count(
        self, parts: Iterable[Partition], version: int, outcome: str, reason: str = "", delay_ms: int = 0
    ) -> None:
        """Count a request whose partitions all ended in the same outcome."""
        tally = _Tally(self)
        for part in parts:
            tally.add(part, self._topics.name(part[0], version), outcome, reason, delay_ms)

    def note(self, notes: Iterable[Note[Partition]], version: int) -> None:
        """Count actions of policies, taken or only observed, on bytes that are counted by their outcome as well."""
        tally = _Tally(self)
        for part, outcome, reason, delay_ms in notes:
            tally.add(part, self._topics.name(part[0], version), outcome, reason, delay_ms)

    def note_held(self, parts: Iterable[Partition], version: int, refused: Refused, wait_ms: int, first: bool) -> None:
        """An acks=0 request waits for its limit: its bytes are noted once, the time every time."""
        for part in parts:
            why = refused.get(part[:2])
            if why is not None:
                row = self.row(self._topics.name(part[0], version), DELAYED, why.reason)
                row[DELAY] += wait_ms
                if first:
                    row[BYTES] += part[2]
                    row[MESSAGES] += part[3]
                    row[REQUESTS] += 1

    def reject(self, parts: Iterable[Partition], version: int, refused: Refused) -> None:
        """Count partitions that were rejected, and whose client was told."""
        tally = _Tally(self)
        for part in parts:
            why = refused[part[:2]]
            if why.reason not in NEVER_PASSES:
                self._broker.throttled.uncounted += part[2]
            tally.add(part, self._topics.name(part[0], version), "rejected", why.reason, why.throttle_ms)

    def drop(self, parts: Sequence[Partition], version: int, reason: str) -> None:
        """Count partitions with acks=0 that are not forwarded: their client can't be told."""
        if reason == ACKS0_LIMIT:
            self._broker.throttled.uncounted += sum(part[2] for part in parts)
        self.count(parts, version, "dropped", reason)

    def are_taken(self, parts: Iterable[Partition], version: int) -> bool:
        """Whether the broker has taken something of this connection's for the topics of all of these."""
        return all(self._topics.name(part[0], version) in self.taken for part in parts)

    def take(self, parts: Iterable[Partition], version: int) -> None:
        """The broker has taken these, which were sent with acks=0."""
        for part in parts:
            name = self._topics.name(part[0], version)
            if name not in self._vouched and is_valid(name):  # others no broker takes, whatever it answers
                self._vouch(name)

    def retract(self, parts: Iterable[Partition], version: int, charged: Charged) -> None:
        """Take back partitions that were forwarded, where no answer says that they got into the log: where the broker
        has never taken anything of this connection's for a topic, other clients must not pay for it.
        """
        for part in parts:
            name = self._topics.name(part[0], version)
            if name not in self.taken:
                self._broker.retract(name, part[2])
                self._give_back(name, part, charged)

    def settle(
        self,
        parts: Parts,
        version: int,
        answered: Results,
        charged: Charged,
        delay_ms: int,
    ) -> None:
        """The broker has answered, in an order of its own. `parts` and `answered` are as skimmed."""
        tally = _Tally(self)
        if len(parts) > 1 and not self.rejected.asks:
            several: Any = parts
            found = offsets(several, answered)
            if found is not None:
                self._settle_all(several, found, version, charged, tally, delay_ms)
                return
        codes = {(row[0], row[1]): row for row in answered}
        for part in parts:
            self._settle_one(part, version, codes.get(part[:2]), charged, tally, delay_ms)

    def _settle_all(
        self,
        parts: Partitions[Partition],
        offsets: array[int],
        version: int,
        charged: Charged,
        tally: _Tally,
        delay_ms: int,
    ) -> None:
        """All partitions are in the log: one look at each topic's row, not one at each partition's. No `offsets`: none
        of them has a producer id.
        """
        topics: list[Span] = parts.topics
        if version >= api.PRODUCE_TOPIC_IDS:
            topics = [(self._topics.name(topic, version), first, stop) for topic, first, stop in topics]
        again = self._acknowledged.seen_of(topics, parts.numbers, offsets) if offsets else []
        if again:
            self.count_some(parts, topics, again, charged, delay_ms)
            return
        for (name, _, _), (_, size, messages) in zip(topics, sums_by_topic(parts), strict=True):
            tally.put(self._rows.get(name) or self._accepted_row(name), size, messages, delay_ms)

    def count_some(
        self,
        parts: Partitions[Partition],
        topics: Sequence[Span],
        again: Iterable[int],
        charged: Charged,
        delay_ms: int = 0,
    ) -> None:
        """All partitions are in the log, those at the places `again` from an earlier time. `topics`: by their names."""
        tally, twice = _Tally(self), frozenset(again)
        for name, first, stop in topics:
            for place in range(first, stop):
                part = parts[place]
                if place in twice:
                    self._count_duplicate(part, name, charged, tally)
                else:
                    tally.put(self._rows.get(name) or self._accepted_row(name), part[2], part[3], delay_ms)

    def _settle_one(
        self,
        part: Partition,
        version: int,
        answer: tuple[bytes, int, int, int] | None,
        charged: Charged,
        tally: _Tally,
        delay_ms: int,
    ) -> None:
        topic, index, size, _, pid, producer_epoch, sequence, _ = part
        name = self._topics.name(topic, version)
        if answer is None:  # a broker that answers without a partition that it was sent
            tally.add(part, name, "unanswered", "")
            return
        _, _, code, offset = answer
        if code:
            tally.add(part, name, "errored", api.ERROR_NAMES.get(code, str(code)))
            self._client.world.engine.refund(self._broker.node_id, name, size)
            self._give_back(name, part, charged)
        elif pid >= 0 and self._acknowledged.seen(pid, producer_epoch, name, index, sequence, offset):
            self._count_duplicate(part, name, charged, tally)
        else:
            if name not in self._rows:
                self._accepted_row(name)  # fast_path.pyx counts the next ones there
            tally.add(part, name, "accepted", "", delay_ms)

    def _count_duplicate(self, part: Partition, name: bytes, charged: Charged, tally: _Tally) -> None:
        tally.add(part, name, "duplicate", "")
        self._broker.retract(name, part[2])  # it didn't get into the log this time
        self._give_back(name, part, charged)

    def _give_back(self, name: bytes, part: Partition, charged: Charged) -> None:
        """Tell each limit that was charged: those that others share have it back. A group that was not asked has found
        the bytes on the topic's meter.
        """
        if charged is not None:
            if isinstance(charged, Limits):
                limits = charged
                decision.give_back_spent(limits, part[2], part[3])
            else:
                limits = charged.limits.get(part[:2], NO_LIMITS)
                decision.give_back(charged, part)
            if limits.group is not None:
                return
        groups = self._client.world.engine.groups
        if groups.exists and not self._client.exempt and is_valid(name):
            side = groups.paid_by(name)
            if side is not None:
                side.give_back(part[2], part[3])

    def _vouch(self, name: bytes) -> None:
        """The broker has taken a batch for that topic: it is no name that a client made up."""
        self.taken.add(name)
        self._vouched.add(name)
        self._broker.vouch(name)

    # --- what comes again after it was rejected -----------------------------------------------------------------------

    def awaits(self, parts: Iterable[Partition], version: int) -> bool:
        """Whether any of these may be recognised by its checksum: it has no producer id, hence no sequence, and a batch
        of its client was rejected in that partition.
        """
        has, owner, name = self.rejected.has, self._client.names, self._topics.name
        return any(part[4] < 0 and has(owner, name(part[0], version), part[1]) for part in parts)

    def expect_again(self, part: Partition, name: bytes, now: float) -> None:
        """It was rejected, and its client will send it again."""
        if part[6] >= 0:
            self.rejected.add(self._owner(part[4]), name, part[1], _batch(part), now)

    def count_repeats(self, row: Counts, part: Partition, name: bytes) -> None:
        """How many of the bytes just counted had been rejected before; to be asked where `rejected.asks`."""
        _, index, size, messages, pid, _, sequence, _ = part
        if sequence < 0:  # nothing of its client was outstanding there when it came
            repeats = None if self.rejected.blind else 0
        else:
            same = pid >= 0 or sends_same_bytes(self._client.software_name)
            repeats = self.rejected.resent(self._owner(pid), name, index, _batch(part), same)
        if repeats is None:
            row[UNTOLD_BYTES] += size
            row[UNTOLD_MESSAGES] += messages
        elif repeats:
            row[REPEATS] += repeats

    def _owner(self, pid: int) -> Owner:
        return pid if pid >= 0 else self._client.names

    # --- rows ---------------------------------------------------------------------------------------------------------

    def row(self, name: bytes, outcome: str, reason: str) -> Counts:
        """The row that counts this client's bytes for a topic."""
        client = self._client
        return client.world.ledger.row(
            client.node_id, text(name), *client.names, outcome, reason, self._group_of(name), client.software_name
        )

    def _accepted_row(self, name: bytes) -> Counts:
        if name not in self._vouched:
            self._vouch(name)
        row = self._rows[name] = self.row(name, "accepted", "")
        return row

    def _group_of(self, name: bytes) -> str:
        """The resource group that this client's bytes for a topic are charged to."""
        client = self._client
        groups = client.world.engine.groups
        if not groups.exists or client.exempt or not is_valid(name):
            return ""
        if groups.depends_on_principal(name):
            return client.group.group if client.group is not None else ""
        return groups.named_by(name) or ""


class _Tally:
    """Adds the partitions of one request to their rows; a row's `requests` grows once, however many partitions."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._seen: set[int] = set()

    def add(self, part: Partition, name: bytes, outcome: str, reason: str, delay_ms: int = 0) -> None:
        row = self._add(name, outcome, reason, part[2], part[3], delay_ms)
        if outcome in NOTES:
            return
        if self._accounts.rejected.asks:
            self._accounts.count_repeats(row, part, name)
        if part[7]:
            self._add(name, "trailing", "", part[7], 0, 0)

    def _add(self, name: bytes, outcome: str, reason: str, size: int, messages: int, delay_ms: int) -> Counts:
        row = self._accounts.row(name, outcome, reason)
        self.put(row, size, messages, delay_ms)
        return row

    def put(self, row: Counts, size: int, messages: int, delay_ms: int) -> None:
        row[BYTES] += size
        row[MESSAGES] += messages
        if id(row) not in self._seen:
            self._seen.add(id(row))
            row[REQUESTS] += 1
            row[DELAY] += delay_ms


def _batch(part: Partition) -> Batch:
    """The key that tells a batch from others of its owner in its partition."""
    _, _, size, messages, pid, epoch, sequence, _ = part
    return epoch if pid >= 0 else NO_EPOCH, sequence, size, messages
