# Acknowledged batches that were acknowledged before. A broker answers an idempotent batch that comes once more with
# success and the offset of the first time; the log doesn't grow, so its bytes are `duplicate`, not `accepted`.
#
# Shared by all connections of a worker, since a client sends again after a reconnect too. Like the broker (KIP-98,
# ProducerStateEntry.NumBatchesToRetain) it remembers the last five batches of each producer and partition. Bounded: two
# generations of a dict, the older thrown away when the younger is full, so the least recently used go first and the
# hot path needs no reordering. A forgotten producer's duplicate is counted as accepted; so is that of a client that
# sends again over another worker or gateway: nothing is written twice, but the count exceeds the log's growth.
#
# Numbers of all producers lie in one array, a record each, so that they cost no object. This file is compiled where a C
# compiler is: duplicates_compiled.pxd says what its variables are in C. It is plain Python all the same.

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Final

from policies.fence import AHEAD, WRAP, Key

BATCHES: Final = 5
GENERATION: Final = 50_000  # keys; about 400 bytes each, so 40 MB at most in two generations

# A record: the place of its latest batch in it, and the base sequence and offset of each. No batch has that sequence.
_NONE = -1 << 40
_RECORD = 1 + 2 * BATCHES
_EMPTY = array("q", [1, *[_NONE, 0] * BATCHES])
_LAST = _RECORD - 2  # the place of the last batch
_FEWEST = 64  # records
_WRAP = WRAP
_AHEAD = AHEAD


class Acknowledged:
    """Sequences and offsets of the last batches that brokers acknowledged."""

    __slots__ = ("_generation", "_old", "_old_records", "_records", "_young")

    def __init__(self, generation: int = GENERATION) -> None:
        """`generation` producer partitions are remembered for sure, twice as many at most."""
        self._generation = generation
        self._young: dict[Key, int] = {}  # where its record begins
        self._old: dict[Key, int] = {}
        self._records = array("q")  # of the young ones
        self._old_records = array("q")

    def seen(self, pid: int, epoch: int, topic: bytes, index: int, seq: int, offset: int) -> bool:
        """Note a batch that the broker answered with success at `offset`; True if it had been acknowledged before.

        Batches without a producer id (pid -1) can't be told apart: always False.
        """
        if pid < 0:
            return False
        key = (pid, epoch, topic, index)
        at = self._young.get(key, -1)
        if at < 0:
            at = self._begin(key)
        return _seen(self._records, at, seq, offset)

    def seen_of(self, parts: list[tuple[Any, ...]], offsets: list[int], names: Mapping[bytes, bytes]) -> list[int]:
        """The same for a whole request: the places in it of batches that had been acknowledged before.

        A part is (topic, index, any, any, producer id, epoch, base sequence, …), with an offset each. `names`: of
        topics that the request calls by something else.
        """
        again: list[int] = []
        young, records = self._young, self._records
        called, topic = None, b""
        for place, offset in enumerate(offsets):
            part = parts[place]
            pid, seq = part[4], part[6]
            if pid < 0:
                continue
            if part[0] is not called:
                called = part[0]
                topic = names.get(called, called)
            key = (part[4], part[5], topic, part[1])
            at = young.get(key, -1)
            if at < 0:
                at = self._begin(key)
                young, records = self._young, self._records
            if _seen(records, at, seq, offset):
                again.append(place)
        return again

    def __len__(self) -> int:
        """Producer partitions remembered."""
        return len(self._young) + len(self._old)

    def _begin(self, key: Key) -> int:
        # Where the record of a key begins that is not among the young.
        was = self._old.pop(key, -1)
        record = self._old_records[was : was + _RECORD] if was >= 0 else _EMPTY
        if len(self._young) >= self._generation:
            self._old, self._young = self._young, {}
            self._old_records, self._records = self._records, self._old_records
        at = _RECORD * len(self._young)
        if at >= len(self._records):  # a new array: one that somebody looks into can't grow
            self._records = self._records + _EMPTY * max(_FEWEST, len(self._young))
        self._records[at : at + _RECORD] = record
        self._young[key] = at
        return at


def _seen(records: array[int], at: int, seq: int, offset: int) -> bool:
    latest = records[at]
    if not 0 < ((seq - records[at + latest]) & _WRAP) < _AHEAD:  # not later: policies.fence.is_later
        for place in range(at + 1, at + _RECORD, 2):
            if records[place] == seq and records[place + 1] == offset:
                return True
    latest = latest + 2 if latest < _LAST else 1
    records[at] = latest
    records[at + latest] = seq
    records[at + latest + 1] = offset
    return False
