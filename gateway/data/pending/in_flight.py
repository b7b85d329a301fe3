# The requests of one connection that are owed an answer: their order, how many there may be, and the memory that they
# keep meanwhile. pending.py has what they may be owed.
#
# Nearly all are Produce requests of one partition that pass as they are. One is noted without any object but the note
# itself, which has its numbers in fields; its entry is made where somebody asks for it.
#
# Compiled where a C compiler is (setup.py): in_flight.pxd has its types in C.

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from gateway.data.pending import pending
from protocol import stream

if TYPE_CHECKING:
    from gateway.data.pending.pending import Entry
    from gateway.data.shared.budget import Account
    from gateway.data.shared.latencies import Stamp
    from gateway.data.shared.ledger import Ledger
    from protocol.produce_request import Parts
    from protocol.stream import EndpointHider

MAX_PENDING: Final = 1000  # on one connection before it is no longer read; clients send 1 to 5
# What one partition of a request keeps until its answer, about, with the limits that it was charged to.
PARTITION_BYTES: Final = 280
FEW_PARTITIONS: Final = 16  # this many are not worth counting

_PRODUCE, _SASL, _LOCAL, _NOTHING = pending.PRODUCE, pending.SASL, pending.LOCAL, pending.NOTHING  # numbers of C


class Owed:
    """What one request is owed. `behind`: what the next one is, in their order.

    `entry` has all of it; None: it is a Produce request of one partition, nothing of which was rejected or delayed, and
    the fields from `version` on have it.
    """

    __slots__ = (
        "behind", "charged", "correlation", "entry", "epoch", "index", "kind", "messages", "producer", "sequence",
        "size", "stamp", "topic", "trailing", "version",
    )  # fmt: skip

    behind: Owed | None
    entry: Entry | None
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
    charged: Any
    stamp: Stamp | None


class InFlight:
    """The requests of one connection that are owed an answer, in order.

    Attributes:
        oldest: what is owed first; None: nothing is.
        out: the bytes to be sent to the client, in order.
        is_waiting: nothing more may be read before an answer: to a step of SASL, or, while memory is short, to a
            request of many partitions.
        walker: of the answer that streams through, the first part of which has passed; None: there is none.
    """

    __slots__ = ("_account", "_count", "_last", "is_waiting", "oldest", "out", "walker")

    def __init__(self, account: Account) -> None:
        self.oldest: Owed | None = None
        self.out: list[Any] = []
        self.is_waiting = False
        self.walker: EndpointHider | None = None
        self._last: Owed | None = None
        self._count = 0
        self._account = account

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        owed = self.oldest
        while owed is not None:
            yield _entry(owed)
            owed = owed.behind

    @property
    def kind(self) -> int:
        """Of the oldest entry; pending.NOTHING: there is none."""
        owed = self.oldest
        return _NOTHING if owed is None else owed.kind

    @property
    def is_full(self) -> bool:
        """Nothing more may be taken from the client before something is answered."""
        return self.is_waiting or self._count >= MAX_PENDING

    @property
    def has_room(self) -> bool:
        """Reading may go on where it had stopped."""
        return not self.is_waiting and self._count < MAX_PENDING // 2

    def first(self) -> Entry:
        """The oldest entry.

        Raises:
            IndexError: there is none.
        """
        owed = self.oldest
        if owed is None:
            raise IndexError("nothing is owed")
        return _entry(owed)

    def append(self, entry: Entry) -> None:
        """This is owed behind all else."""
        owed = Owed.__new__(Owed)
        owed.correlation, owed.kind, owed.entry = entry[0], entry[1], entry
        self._add(owed)

    def note(
        self, correlation: int, version: int, topic: bytes, index: int, size: int, messages: int, producer: int,
        epoch: int, sequence: int, trailing: int, charged: Any, stamp: Stamp | None,
    ) -> None:  # fmt: skip
        """The same for a Produce request of this partition, nothing of which was rejected or delayed."""
        owed = Owed.__new__(Owed)
        owed.correlation, owed.kind, owed.entry = correlation, _PRODUCE, None
        owed.version, owed.topic, owed.index, owed.size, owed.messages = version, topic, index, size, messages
        owed.producer, owed.epoch, owed.sequence, owed.trailing = producer, epoch, sequence, trailing
        owed.charged, owed.stamp = charged, stamp
        self._add(owed)

    def _add(self, owed: Owed) -> None:
        owed.behind = None
        last = self._last
        if last is None:
            self.oldest = owed
        else:
            last.behind = owed
        self._last = owed
        self._count += 1

    def drop(self) -> None:
        """The oldest is owed no longer."""
        owed = self.oldest
        if owed is not None:
            self.oldest = owed.behind
            self._count -= 1
            if self.oldest is None:
                self._last = None

    def clear(self) -> None:
        """Nothing is owed any longer."""
        while self.oldest is not None:  # one by one: each would else end the one behind it, deep down
            self.drop()

    def begin(self, key: int, version: int, size: int) -> None:
        """The answer to the oldest begins to stream through, a frame of `size` bytes. `key`: of its API, -1: of any in
        which there is nothing to hide.
        """
        self.walker = stream.EndpointHider(key, version, size) if key >= 0 else stream.nothing_to_hide(size)

    def pass_on(self, buf: bytearray, pos: int, end: int, ledger: Ledger) -> int:
        """Pass what is there of the answer that streams through; the position behind it. Bytes before `end` that are
        not passed have to come again with more behind them (EndpointHider.feed).
        """
        walker = self.walker
        assert walker is not None
        stop = min(end, pos + walker.left)
        stop -= walker.feed(buf, pos, stop)
        if not walker.left:
            if walker.lost:
                ledger.count("answers_not_followed")
            self.walker = None
            self.drop()
        return stop

    def answer(self, frame: bytes) -> None:
        """Send our own answer: at once if nothing is owed before it, else in its turn."""
        if self._count:
            self.append((-1, _LOCAL, frame))
        else:
            self.out.append(frame)

    def release(self) -> None:
        """Let out every local answer at the head: the requests before it have been answered."""
        while self.kind == _LOCAL:
            self.out.append(self.first()[2])
            self.drop()

    def keep(self, parts: Parts) -> bool:
        """These wait for their answer. True: nothing more may be read before one."""
        if len(parts) > FEW_PARTITIONS:
            self._account.charge(len(parts) * PARTITION_BYTES)
            self.is_waiting = self.is_waiting or self._account.is_short
        return self.is_waiting

    def forget(self, parts: Parts) -> None:
        """These wait no longer."""
        if len(parts) > FEW_PARTITIONS:
            self._account.discharge(len(parts) * PARTITION_BYTES)
            self.is_waiting = self.is_waiting and self._has_sasl()

    def _has_sasl(self) -> bool:
        owed = self.oldest
        while owed is not None:
            if owed.kind == _SASL:
                return True
            owed = owed.behind
        return False


def _entry(owed: Owed) -> Entry:
    if owed.entry is not None:
        return owed.entry
    part = (
        owed.topic, owed.index, owed.size, owed.messages, owed.producer, owed.epoch, owed.sequence, owed.trailing,
    )  # fmt: skip
    return owed.correlation, _PRODUCE, owed.version, [part], None, 0, owed.charged, owed.stamp
