# Batches that come again after they were rejected. Clients send a rejected batch again, some of them ten times a
# second, so rejected bytes are attempts; what was finally dropped is rejected less what came again.
#
# A rejection is matched once, by the next attempt at the same batch, whatever becomes of that one. So at any time the
# rejected bytes less all repeats are those of the batches that are still outstanding here, or were until they expired:
# those whose last attempt was rejected.
#
# The same batch has, of a producer with an id: the same epoch, base sequence, bytes and messages. A client that gives a
# batch up goes on with a new epoch, from sequence 0, with what it had rejected behind that batch first (KIP-360): as
# many messages at the start of a new epoch as are outstanding of older ones may be these in another form, and
# whether they are is not known. Of a producer without an id: the CRC in the batch's header, bytes and messages. Clients
# that put their records into new batches when they try again can't be followed that way: of batches that they send to a
# partition where one of theirs is outstanding, it is not known whether they are repeats.
#
# Shared by all connections of a worker, bounded in time and number. Where too much is outstanding to be remembered,
# repeats are not known for as long as it would have been outstanding. A batch that comes again over another worker or
# gateway is new there: then the rejected bytes less the repeats are an upper bound. Knows no request and no clock.

from __future__ import annotations

from collections import OrderedDict
from typing import Final

RETENTION_S: Final = 600.0  # at least, since the last rejection at that place; clients retry every 0.1 s to 30 s
MAX_BATCHES: Final = 50_000  # outstanding at a time; about 600 bytes each where every batch is at a place of its own
MAX_COMPARED: Final = 100  # batches of one producer id in one partition; its clients have five in flight
NO_EPOCH: Final = -1

# Software names in ApiVersions (KIP-511) of clients that send the very same bytes when they try again without a
# producer id. Measured with kafka-clients 4.3, kafka-python 3.0, franz-go 1.22; aiokafka 0.14 and KafkaJS 2.2 do it as
# well, but send no name; librdkafka 2.16 and sarama 1.61 make new batches.
_SAME_BYTES: Final = frozenset({"apache-kafka-java", "kafka-python", "kgo"})

BatchOwner = int | tuple[str, str]  # producer id; or principal and client id of a producer without one
BatchId = tuple[int, int, int, int]  # producer epoch, base sequence (without a producer id: CRC), bytes, messages


class RejectedBatches:
    """Batches whose last attempt was rejected. `may_match`: whether `match_retry` may return anything but 0; while it
    is False, `match_retry` need not be called.
    """

    __slots__ = ("_blind_until", "_count", "_max_batches", "_places", "may_match")

    def __init__(self, max_batches: int = MAX_BATCHES) -> None:
        self.may_match = False
        self._max_batches = max_batches
        self._count = 0
        self._blind_until: float | None = None
        # By owner, topic and partition, with when each batch was rejected; both in the order of the last rejection. (To
        # find the first of a dict takes the longer the more was in front of it: many at once would stop all
        # connections.)
        self._places: OrderedDict[tuple[BatchOwner, bytes, int], dict[BatchId, float]] = OrderedDict()

    @property
    def is_blind(self) -> bool:
        """Whether a batch had to be forgotten recently."""
        return self._blind_until is not None

    def __len__(self) -> int:
        """The number of outstanding batches."""
        return self._count

    def has_rejected(self, owner: BatchOwner, topic: bytes, index: int) -> bool:
        """Whether a batch of that owner is outstanding in that partition."""
        return (owner, topic, index) in self._places

    def record_rejection(self, owner: BatchOwner, topic: bytes, index: int, batch: BatchId, now: float) -> None:
        """The batch was rejected, and its client will send it again. Call it after `match_retry`."""
        place = (owner, topic, index)
        batches = self._places.pop(place, None) or {}
        if batches and now - next(iter(batches.values())) >= RETENTION_S:
            self._count -= len(batches)
            batches = {other: at for other, at in batches.items() if now - at < RETENTION_S}
            self._count += len(batches)
        self._count += batch not in batches
        batches[batch] = now
        self._places[place] = batches
        if self._count > self._max_batches:
            self._forget_oldest()
            self._blind_until = now + RETENTION_S
        self.may_match = True

    def match_retry(
        self, owner: BatchOwner, topic: bytes, index: int, batch: BatchId, same_bytes: bool = True
    ) -> int | None:
        """An attempt at this batch has come to its end: how many of its bytes are repeats, all or none; None: can't be
        told.

        Args:
            same_bytes: of an owner without a producer id: whether its client is known to send the same bytes again.
        """
        place = (owner, topic, index)
        batches = self._places.get(place)
        if batches is None:
            return None if self.is_blind else 0
        if batches.pop(batch, None) is not None:
            self._count -= 1
            if not batches:
                del self._places[place]
                self.may_match = bool(self._places) or self.is_blind
            return batch[2]
        if self.is_blind:
            return None
        changed = _may_be_changed(batch, batches) if batch[0] != NO_EPOCH else not same_bytes
        return None if changed else 0

    def expire_batches(self, now: float) -> None:
        """Forget batches that no client has sent again for RETENTION_S. Call it every few seconds."""
        while self._places and now - _last_rejected_at(next(iter(self._places.values()))) >= RETENTION_S:
            self._forget_oldest()
        if self._blind_until is not None and now >= self._blind_until:
            self._blind_until = None
        self.may_match = bool(self._places) or self.is_blind

    def _forget_oldest(self) -> None:
        self._count -= len(self._places.popitem(last=False)[1])


def sends_same_bytes(software: str) -> bool:
    """Whether that client is known to send a batch without a producer id again as it was."""
    return software in _SAME_BYTES


def _may_be_changed(batch: BatchId, rejected: dict[BatchId, float]) -> bool:
    """Whether a batch that is none of the rejected ones may hold their records, of the same producer id."""
    if len(rejected) > MAX_COMPARED:
        return True
    epoch, sequence, _, _ = batch
    earlier = 0
    for other_epoch, other_sequence, _, messages in rejected:
        if other_epoch != epoch:
            earlier += messages
        elif other_sequence == sequence:
            return True
    return sequence < earlier


def _last_rejected_at(batches: dict[BatchId, float]) -> float:
    return next(reversed(batches.values()))
