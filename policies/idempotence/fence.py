# Idempotent producers: what has to be rejected behind a rejected batch.
#
# A producer keeps several batches in flight. Where the first of a partition is rejected and the next one forwarded, a
# broker that has no state for that producer id yet accepts it, and the first can never be appended any more: a default
# Java producer loses records that way (measured, 6 runs of 6). So everything behind a rejected sequence is rejected
# too, until that sequence or an earlier one comes again and is admitted, or none has sent it for EXPIRY_S.
#
# One fence per client connection, which dies with it. A client that reconnects, to this worker, another one or another
# gateway, starts again from its oldest unacknowledged batch, which is the rejected one or an earlier one; so the new
# connection needs to know nothing of the old, and a fence shared by connections would stay when that batch had been
# admitted elsewhere. Only for codes that this client retries (verdict.is_retried): behind another one the base never
# comes back. Sequences: KIP-98, int32 from 0, wrapping after 2^31 - 1.
#
# Topics by name, though Produce names them by id from v13 on: Java's client sends a request without ids (v12) as soon
# as one of its topics has none yet, so a batch comes by id and its retry, or a later batch, by name. While the name of
# an id isn't known something stands in for it, and the caller asks about both (ConnectionTopics.list_names).

from __future__ import annotations

from typing import Final

EXPIRY_S: Final = 60.0  # clients retry every 0.1 s to 30 s; one that takes longer has given that batch up
MAX_ENTRIES: Final = 4096  # partitions of one connection with a rejected batch at a time; beyond, the oldest goes
SEQUENCE_MASK: Final = 2**31 - 1  # as a mask
MAX_AHEAD: Final = 2**30  # less than half the circle ahead is later, else earlier

ProducerPartition = tuple[
    int, int, bytes, int
]  # the epoch is in it: a producer that gave a batch up goes on with a new epoch, from 0


def is_later_sequence(sequence: int, base: int) -> bool:
    """Whether a sequence comes after another one, across the wrap."""
    return 0 < ((sequence - base) & SEQUENCE_MASK) < MAX_AHEAD


class ProducerFence:
    """`entries`: (producer id, epoch, topic, partition) -> (rejected sequence, when it was last seen), oldest first.

    Where `entries` is empty nothing is blocked: that is all that a connection without rejections has to ask.
    """

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[ProducerPartition, tuple[int, float]] = {}

    def blocks_batch(self, pid: int, epoch: int, topic: bytes, index: int, seq: int, now: float) -> bool:
        """Whether this batch must be rejected independently of its quota. If not, its quota decides."""
        key = (pid, epoch, topic, index)
        entry = self.entries.get(key)
        if entry is None:
            self.expire_entries(now)  # else a batch that was given up would keep this connection slow for ever
            return False
        base, seen = entry
        if now - seen >= EXPIRY_S:
            del self.entries[key]
            return False
        return is_later_sequence(seq, base)

    def record_rejection(self, pid: int, epoch: int, topic: bytes, index: int, seq: int, now: float) -> None:
        """A batch was rejected with a code that its client retries. A batch that was only blocked changes nothing."""
        if pid < 0 or self.blocks_batch(pid, epoch, topic, index, seq, now):
            return
        self.expire_entries(now)
        key = (pid, epoch, topic, index)
        self.entries.pop(key, None)  # to the end: the order is that of the times
        if len(self.entries) >= MAX_ENTRIES:
            del self.entries[next(iter(self.entries))]
        self.entries[key] = (seq, now)

    def record_admission(self, pid: int, epoch: int, topic: bytes, index: int) -> None:
        """A batch that was not blocked is forwarded: the batches after it may follow."""
        self.entries.pop((pid, epoch, topic, index), None)

    def expire_entries(self, now: float) -> None:
        """Forget batches that producers have given up."""
        while self.entries:
            key = next(iter(self.entries))
            if now - self.entries[key][1] < EXPIRY_S:
                return
            del self.entries[key]
