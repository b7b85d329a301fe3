# Acknowledged batches that were acknowledged before. A broker answers an idempotent batch that comes once more with
# success and the offset of the first time; the log doesn't grow, so its bytes are `duplicate`, not `accepted`.
#
# Shared by all connections of a worker, since a client sends again after a reconnect too. Like the broker (KIP-98,
# ProducerStateEntry.NumBatchesToRetain) it remembers the last five batches of each producer and partition. Bounded: two
# generations of a dict, the older thrown away when the younger is full, so the least recently used go first and the
# hot path needs no reordering. A forgotten producer's duplicate is counted as accepted; so is that of a client that
# sends again over another worker or gateway: nothing is written twice, but the count exceeds the log's growth.
#
# Numbers of all producers lie in one array, a record each, so that they cost no object. Compiled where a C compiler is
# (setup.py): duplicates.pxd has its types in C.

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, TypeAlias

from policies.idempotence.fence import MAX_AHEAD, SEQUENCE_MASK

RETAINED_BATCHES: Final = 5
GENERATION_SIZE: Final = 50_000  # records; at most 520 bytes each with their keys, so 52 MB in two generations

# A record: the place of its latest batch in it, and the base sequence and offset of each. No batch has that sequence.
_NO_SEQUENCE = -1 << 40
_RECORD_SIZE = 1 + 2 * RETAINED_BATCHES
_EMPTY_RECORD = array("q", [1, *[_NO_SEQUENCE, 0] * RETAINED_BATCHES])
_LAST_PLACE = _RECORD_SIZE - 2  # the place of the last batch
_MIN_RECORDS = 64  # records
# numbers of a batch in a request: index, size, messages, producer id, epoch, base sequence, trailing
_BATCH_NUMBERS = 7
_SEQUENCE_MASK = SEQUENCE_MASK
_MAX_AHEAD = MAX_AHEAD


TopicProducer: TypeAlias = tuple[int, int, bytes]  # producer id, epoch, topic


class AcknowledgedBatches:
    """Sequences and offsets of the last batches that brokers acknowledged."""

    __slots__ = ("_count", "_generation", "_old", "_old_count", "_old_records", "_records", "_view", "_young")

    def __init__(self, generation: int = GENERATION_SIZE) -> None:
        """Remembers at least `generation` producer partitions, at most twice as many."""
        self._generation = generation
        self._young: dict[TopicProducer, dict[int, int]] = {}  # index -> where its record begins
        self._old: dict[TopicProducer, dict[int, int]] = {}
        self._records = array("q")  # of the young ones
        self._view = self._records  # the same, as C looks into it: to ask for a look costs as much as the look
        self._old_records = array("q")
        self._count = self._old_count = 0

    def record_batch(self, pid: int, epoch: int, topic: bytes, index: int, seq: int, offset: int) -> bool:
        """Record a batch that the broker acknowledged at `offset`; True if it was acknowledged before. Batches without
        a producer id (-1) can't be distinguished: always False.
        """
        if pid < 0:
            return False
        writer = (pid, epoch, topic)
        indexes = self._young.get(writer)
        at = -1 if indexes is None else indexes.get(index, -1)
        if at < 0:
            at = self._start_record(writer, index)
        return _record_batch(self._view, at, seq, offset)

    def record_batches(
        self, topics: Sequence[tuple[bytes, int, int]], parts: array[int], offsets: array[int]
    ) -> list[int]:
        """The same for a whole request: the places in it of batches that had been acknowledged before.

        `topics`: (name, the place of its first batch, that behind its last). `parts`: seven numbers for each batch:
        index, any, any, producer id, epoch, base sequence, any. An offset for each.
        """
        again: list[int] = []
        records = self._view
        for topic, first, stop in topics:
            last_pid, last_epoch, indexes = -1, -1, None
            for place in range(first, stop):
                index, pid, epoch, seq = (
                    parts[place * _BATCH_NUMBERS], parts[place * _BATCH_NUMBERS + 3],
                    parts[place * _BATCH_NUMBERS + 4], parts[place * _BATCH_NUMBERS + 5],
                )  # fmt: skip
                if pid < 0:
                    continue
                if pid != last_pid or epoch != last_epoch:
                    last_pid, last_epoch = pid, epoch
                    indexes = self._young.get((pid, epoch, topic))
                at = -1 if indexes is None else indexes.get(index, -1)
                if at < 0:
                    at = self._start_record((pid, epoch, topic), index)
                    records = self._view
                    indexes = self._young.get((pid, epoch, topic))
                if _record_batch(records, at, seq, offsets[place]):
                    again.append(place)
        return again

    def __len__(self) -> int:
        """Producer partitions remembered."""
        return self._count + self._old_count

    def _start_record(self, writer: TopicProducer, index: int) -> int:
        # Where the record begins of what is not among the young.
        record, older = _EMPTY_RECORD, self._old.get(writer)
        was = -1 if older is None else older.pop(index, -1)
        if was >= 0:
            self._old_count -= 1
            record = self._old_records[was : was + _RECORD_SIZE]
        if self._count >= self._generation:
            self._old, self._young = self._young, {}
            self._old_records, self._records = self._records, self._old_records
            self._view = self._records
            self._old_count, self._count = self._count, 0
        at = _RECORD_SIZE * self._count
        if at >= len(self._records):  # a new array: one that is being read can't grow
            self._records = self._records + _EMPTY_RECORD * max(_MIN_RECORDS, self._count)
            self._view = self._records
        self._records[at : at + _RECORD_SIZE] = record
        indexes = self._young.get(writer)
        if indexes is None:
            indexes = self._young[writer] = {}
        indexes[index] = at
        self._count += 1
        return at


def _record_batch(records: array[int], at: int, seq: int, offset: int) -> bool:
    latest = records[at]
    if (
        not 0 < ((seq - records[at + latest]) & _SEQUENCE_MASK) < _MAX_AHEAD
    ):  # not later: policies.idempotence.fence.is_later_sequence
        for place in range(at + 1, at + _RECORD_SIZE, 2):
            if records[place] == seq and records[place + 1] == offset:
                return True
    latest = latest + 2 if latest < _LAST_PLACE else 1
    records[at] = latest
    records[at + latest] = seq
    records[at + latest + 1] = offset
    return False
