# How much of which topic a Fetch or ShareFetch answer holds: bytes of records, and messages, counted while the answer
# streams through and without holding any of it. Addresses at its end are hidden in the same walk (stream.py).
#
# Messages are what the headers of batches announce (v2), or the entries of a message set (v0, v1; a compressed entry is
# one). That is more than a consumer gets to see: a batch may begin before the offset that was asked for, transactions'
# markers are in it, and so is what was aborted. A batch that the answer's end cuts counts by its bytes only.
#
# Between two chunks are kept: the place in the program, what a topic is called, and half a batch header. Knows no limit
# and no name behind an id. Spec: kafka.apache.org/protocol, Fetch; kafka.apache.org/documentation/#recordbatch.

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from protocol.rewriting.stream import METERED_PROGRAMS, EndpointHider

if TYPE_CHECKING:
    from protocol.wire import Buffer

_BATCH: Final = struct.Struct(">8xi4xb40xi")  # length from behind itself on, magic, count of records
_OLD_MESSAGE: Final = struct.Struct(">8xi4xb")  # the same of a message of magic 0 and 1, and of any beginning
_PREFIX: Final = 12  # offset and length, which the length doesn't count
_MIN_LENGTH: Final = _BATCH.size - _PREFIX
_MIN_OLD_LENGTH: Final = 14  # CRC, magic, attributes, lengths of a null key and a null value


class FetchMeter(EndpointHider):
    """Meters one answer while its bytes pass, and hides addresses in it as EndpointHider does.

    Args:
        api_key, version: of the request that is answered; METERED_PROGRAMS has those for which this makes sense.
        size: the frame's size as its prefix has it; the prefix itself is never fed.

    `size` doesn't change. An answer that doesn't follow its layout (`lost`) is not metered from there on.
    """

    __slots__ = ("_bytes", "_half", "_messages", "_rows", "_topic", "size")

    def __init__(self, api_key: int, version: int, size: int) -> None:
        super().__init__(api_key, version, size)
        self.size = size
        self._program = METERED_PROGRAMS.get((api_key, version), self._program)
        self._topic = b""
        self._half = bytearray()  # of a topic's name, or of a batch's header
        self._bytes = self._messages = 0  # of this topic, not in `_rows` yet
        self._rows: list[tuple[bytes, int, int]] = []

    def drain_topics(self) -> list[tuple[bytes, int, int]]:
        """The topics fed since the last call: (topic's name or id as on the wire, bytes of records, messages).

        A partition's bytes are reported at once when its records begin, its messages with each batch's header. A topic
        may come several times.
        """
        self._close_row()
        rows, self._rows = self._rows, []
        return rows

    def _close_row(self) -> None:
        if self._bytes or self._messages:
            self._rows.append((self._topic, self._bytes, self._messages))
            self._bytes = self._messages = 0

    def _announce_records(self, size: int) -> None:
        self._bytes += size

    def _read_topic(self, buf: bytearray | memoryview, pos: int, end: int, size: int) -> int:
        half = self._half
        if size and not half:
            self._due = size
        after = min(end, pos + self._due)
        half += memoryview(buf)[pos:after]
        self._due -= after - pos
        if not self._due:
            self._close_row()
            self._topic = bytes(half)
            half.clear()
        return after

    def _measure_records(self, buf: bytearray | memoryview, pos: int, end: int) -> int:
        """Pass over batches. The bytes that are due when this returns begin with a batch whose header has not come."""
        limit = pos + self._due
        while pos < limit or self._half:
            if self._half:
                pos = self._measure_half(buf, pos, end, limit)
            else:
                pos = self._measure_whole(buf, pos, min(end, limit), limit)
            if end <= pos < limit:
                break
        self._due = max(0, limit - pos)
        return pos

    def _measure_whole(self, buf: bytearray | memoryview, pos: int, end: int, limit: int) -> int:
        """Pass over batches as long as their headers are here; the beginning of the next one's is kept."""
        last = end - _BATCH.size
        messages = 0
        while pos <= last:
            length, magic, count = _BATCH.unpack_from(buf, pos)
            if magic != 2 or length < _MIN_LENGTH or count < 0:
                length, count = _old_message(length, magic)
            pos += _PREFIX + length
            if pos > limit:  # only a part of it was sent, or it is no batch
                pos = limit
                break
            messages += count
        self._messages += messages
        if pos < end:
            self._half += memoryview(buf)[pos:end]
            pos = end
        return pos

    def _measure_half(self, buf: bytearray | memoryview, pos: int, end: int, limit: int) -> int:
        """The same with a batch whose header has come in pieces, or with fewer bytes than a header has."""
        half = self._half
        after = min(end, limit, pos + max(0, _BATCH.size - len(half)))
        half += memoryview(buf)[pos:after]
        if len(half) < _BATCH.size and after < limit:
            return after
        size, count = _read_batch(half)
        if size > len(half) + limit - after:
            half.clear()
            return limit
        self._messages += count
        after += max(0, size - len(half))
        del half[:size]
        return after

    def _mark_lost(self) -> None:
        super()._mark_lost()
        self._due = 0
        self._half.clear()


_NEVER: Final = 1 << 32  # a length beyond the end of the bytes: nothing behind it can be read


def _old_message(length: int, magic: int) -> tuple[int, int]:
    """A message of magic 0 or 1 counts one."""
    return (length, 1) if 0 <= magic < 2 and length >= _MIN_OLD_LENGTH else (_NEVER, 0)


def _read_batch(head: Buffer) -> tuple[int, int]:
    """(size, messages) of the batch that begins with this, the size larger than any if that is not known."""
    if len(head) >= _BATCH.size:
        length, magic, count = _BATCH.unpack_from(head)
        if magic != 2 or length < _MIN_LENGTH or count < 0:
            length, count = _old_message(length, magic)
    elif len(head) >= _OLD_MESSAGE.size:
        length, count = _old_message(*_OLD_MESSAGE.unpack_from(head))
    else:
        length, count = _NEVER, 0
    return _PREFIX + length, count
