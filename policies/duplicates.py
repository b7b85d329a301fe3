# Which acknowledged batches were acknowledged before. A broker answers an idempotent batch that comes once more with
# success and the offset of the first time; the log doesn't grow, so its bytes are `duplicate`, not `accepted`.
#
# Shared by all connections of a worker, since a client sends again after a reconnect too. Like the broker (KIP-98,
# ProducerStateEntry.NumBatchesToRetain) it remembers the last five batches of each producer and partition. Bounded: two
# generations of a dict, the older thrown away when the younger is full, so the least recently used go first and the
# hot path needs no reordering. A forgotten producer's duplicate is counted as accepted; so is that of a client that
# sends again over another worker or gateway: nothing is written twice, but the count exceeds the log's growth.

from __future__ import annotations

from array import array
from typing import Final

from policies.fence import Key, is_later

BATCHES: Final = 5
GENERATION: Final = 50_000  # keys; about 450 bytes each, so 45 MB at most in two generations
_KEPT: Final = 2 * BATCHES


class Acknowledged:
    """Sequences and offsets of the last batches that brokers acknowledged."""

    __slots__ = ("_generation", "_old", "_young")

    def __init__(self, generation: int = GENERATION) -> None:
        """`generation` producer partitions are remembered for sure, twice as many at most."""
        self._generation = generation
        self._young: dict[Key, array[int]] = {}  # base sequence, offset, base sequence, offset … latest last
        self._old: dict[Key, array[int]] = {}

    def seen(self, pid: int, epoch: int, topic: bytes, index: int, seq: int, offset: int) -> bool:
        """Note a batch that the broker answered with success at `offset`; True if it had been acknowledged before.

        Batches without a producer id (pid -1) can't be told apart: always False.
        """
        if pid < 0:
            return False
        key = (pid, epoch, topic, index)
        batches = self._young.get(key)
        if batches is None:
            batches = self._find_old(key)
        if batches and not is_later(seq, batches[-2]) and _holds(batches, seq, offset):
            return True
        batches.append(seq)
        batches.append(offset)
        if len(batches) > _KEPT:
            del batches[:2]
        return False

    def __len__(self) -> int:
        """Producer partitions remembered."""
        return len(self._young) + len(self._old)

    def _find_old(self, key: Key) -> array[int]:
        batches = self._old.pop(key, None)
        if batches is None:
            batches = array("q")
        if len(self._young) >= self._generation:
            self._old, self._young = self._young, {}
        self._young[key] = batches
        return batches


def _holds(batches: array[int], seq: int, offset: int) -> bool:
    return any(batches[i] == seq and batches[i + 1] == offset for i in range(0, len(batches), 2))
