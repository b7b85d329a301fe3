# The requests of one connection that are owed an answer: their order, how many there may be, and the memory that they
# keep meanwhile. pending.py has what they may be owed.
#
# Nearly all are Produce requests of one partition that pass as they are. One is noted without any object but the note
# itself, which has its numbers in fields; its entry is made on demand.
#
# Compiled where a C compiler is (setup.py): in_flight.pxd has its types in C.

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from gateway.data.pending import pending
from protocol.rewriting import stream

if TYPE_CHECKING:
    from gateway.data.pending.pending import PendingEntry
    from gateway.data.shared.budget import MemoryAccount
    from gateway.data.shared.latencies import LatencyStamp
    from gateway.data.shared.ledger import UsageLedger
    from protocol.produce.produce_request import RequestPartitions
    from protocol.rewriting.stream import EndpointHider

MAX_PENDING: Final = 1000  # on one connection before it is no longer read; clients send 1 to 5
# What one partition of a request keeps until its answer, about, with the limits that it was charged to.
PARTITION_BYTES: Final = 280
FEW_PARTITIONS: Final = 16  # this many are not worth counting

_PRODUCE, _SASL, _LOCAL, _NOTHING = pending.PRODUCE, pending.SASL, pending.LOCAL, pending.NOTHING  # numbers of C


class PendingResponse:
    """What one request is owed. `next_response`: what the next one is, in their order.

    `entry` has all of it; None: it is a Produce request of one partition, nothing of which was rejected or delayed, and
    the fields from `version` on have it.
    """

    __slots__ = (
        "charged_limits",
        "correlation",
        "entry",
        "epoch",
        "index",
        "kind",
        "messages",
        "next_response",
        "producer",
        "sequence",
        "size",
        "stamp",
        "topic",
        "trailing",
        "version",
    )  # fmt: skip

    next_response: PendingResponse | None
    entry: PendingEntry | None
    correlation: int
    kind: int
    version: int
    topic: bytes
    index: int
    size: int
    messages: int
    producer: int
    epoch: int
    sequence: int
    trailing: int
    charged_limits: Any
    stamp: LatencyStamp | None


class InFlightRequests:
    """The requests of one connection that are owed an answer, in order.

    Attributes:
        oldest: what is owed first; None: nothing is.
        outgoing: the bytes to be sent to the client, in order.
        is_reading_blocked: nothing more may be read before an answer: to a step of SASL, or, while memory is short, to
            a request of many partitions.
        stream_walker: of the answer that streams through, the first part of which has passed; None: there is none.
    """

    __slots__ = ("_account", "_count", "_last", "is_reading_blocked", "oldest", "outgoing", "stream_walker")

    def __init__(self, account: MemoryAccount) -> None:
        self.oldest: PendingResponse | None = None
        self.outgoing: list[Any] = []
        self.is_reading_blocked = False
        self.stream_walker: EndpointHider | None = None
        self._last: PendingResponse | None = None
        self._count = 0
        self._account = account

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PendingEntry]:
        owed = self.oldest
        while owed is not None:
            yield _entry_of(owed)
            owed = owed.next_response

    @property
    def oldest_kind(self) -> int:
        """Of the oldest entry; pending.NOTHING: there is none."""
        owed = self.oldest
        return _NOTHING if owed is None else owed.kind

    @property
    def is_full(self) -> bool:
        """Nothing more may be taken from the client before something is answered."""
        return self.is_reading_blocked or self._count >= MAX_PENDING

    @property
    def has_room(self) -> bool:
        """Reading may go on where it had stopped."""
        return not self.is_reading_blocked and self._count < MAX_PENDING // 2

    def oldest_entry(self) -> PendingEntry:
        """The oldest entry.

        Raises:
            IndexError: there is none.
        """
        owed = self.oldest
        if owed is None:
            raise IndexError("nothing is owed")
        return _entry_of(owed)

    def append(self, entry: PendingEntry) -> None:
        """This is owed behind all else."""
        owed = PendingResponse.__new__(PendingResponse)
        owed.correlation, owed.kind, owed.entry = entry[0], entry[1], entry
        self._append_pending(owed)

    def append_produce(
        self, correlation: int, version: int, topic: bytes, index: int, size: int, messages: int, producer: int,
        epoch: int, sequence: int, trailing: int, charged: Any, stamp: LatencyStamp | None,
    ) -> None:  # fmt: skip
        """The same for a Produce request of this partition, nothing of which was rejected or delayed."""
        owed = PendingResponse.__new__(PendingResponse)
        owed.correlation, owed.kind, owed.entry = correlation, _PRODUCE, None
        owed.version, owed.topic, owed.index, owed.size, owed.messages = version, topic, index, size, messages
        owed.producer, owed.epoch, owed.sequence, owed.trailing = producer, epoch, sequence, trailing
        owed.charged_limits, owed.stamp = charged, stamp
        self._append_pending(owed)

    def _append_pending(self, owed: PendingResponse) -> None:
        owed.next_response = None
        last = self._last
        if last is None:
            self.oldest = owed
        else:
            last.next_response = owed
        self._last = owed
        self._count += 1

    def drop_oldest(self) -> None:
        """The oldest is owed no longer."""
        owed = self.oldest
        if owed is not None:
            self.oldest = owed.next_response
            self._count -= 1
            if self.oldest is None:
                self._last = None

    def drop_all(self) -> None:
        """Nothing is owed any longer."""
        while self.oldest is not None:  # one by one: each would else end the one behind it, deep down
            self.drop_oldest()

    def begin_streaming(self, key: int, version: int, size: int) -> None:
        """The answer to the oldest begins to stream through, a frame of `size` bytes. `key`: of its API, -1: of any in
        which there is nothing to hide.
        """
        self.stream_walker = stream.EndpointHider(key, version, size) if key >= 0 else stream.pass_through_hider(size)

    def stream_bytes(self, buf: bytearray, pos: int, end: int, ledger: UsageLedger) -> int:
        """Pass what is there of the answer that streams through; the position behind it. Bytes before `end` that are
        not passed have to come again with more behind them (EndpointHider.feed).
        """
        walker = self.stream_walker
        assert walker is not None
        stop = min(end, pos + walker.left)
        stop -= walker.feed(buf, pos, stop)
        if not walker.left:
            if walker.lost:
                ledger.count_event("answers_not_followed")
            self.stream_walker = None
            self.drop_oldest()
        return stop

    def enqueue_local_response(self, frame: bytes) -> None:
        """Send our own answer: at once if nothing is owed before it, else in its turn."""
        if self._count:
            self.append((-1, _LOCAL, frame))
        else:
            self.outgoing.append(frame)

    def release_local_responses(self) -> None:
        """Let out every local answer at the head: the requests before it have been answered."""
        while self.oldest_kind == _LOCAL:
            self.outgoing.append(self.oldest_entry()[2])
            self.drop_oldest()

    def charge_partitions(self, parts: RequestPartitions) -> bool:
        """These wait for their answer. True: nothing more may be read before one."""
        if len(parts) > FEW_PARTITIONS:
            self._account.charge_bytes(len(parts) * PARTITION_BYTES)
            self.is_reading_blocked = self.is_reading_blocked or self._account.is_memory_short
        return self.is_reading_blocked

    def release_partitions(self, parts: RequestPartitions) -> None:
        """These wait no longer."""
        if len(parts) > FEW_PARTITIONS:
            self._account.release_bytes(len(parts) * PARTITION_BYTES)
            self.is_reading_blocked = self.is_reading_blocked and self._has_sasl()

    def _has_sasl(self) -> bool:
        owed = self.oldest
        while owed is not None:
            if owed.kind == _SASL:
                return True
            owed = owed.next_response
        return False


def _entry_of(owed: PendingResponse) -> PendingEntry:
    if owed.entry is not None:
        return owed.entry
    part = (
        owed.topic, owed.index, owed.size, owed.messages, owed.producer, owed.epoch, owed.sequence, owed.trailing,
    )  # fmt: skip
    return owed.correlation, _PRODUCE, owed.version, [part], None, 0, owed.charged_limits, owed.stamp
