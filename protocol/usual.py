# The form that nearly all Produce requests and answers have, read fast: `request` for produce_request.skim, `answer`
# for produce_response.skim. They run once per request and decide what the gateway costs.
#
# A run of fields is read at once (layouts.py), and nothing of it is trusted until it has come out at exactly the end of
# the frame. Whatever doesn't fit gives None: the careful readers of those two modules read it once more, know every
# form, and are the ones to say what is wrong.
#
# This file is compiled where a C compiler is: usual_compiled.pxd says what its variables are in C, setup.py how it is
# built. It is plain Python all the same, and runs as such elsewhere; tests hold the two to each other.

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from protocol import layouts
from protocol.api import (
    CAPS,
    FLOORS,
    PRODUCE,
    PRODUCE_ERROR_TEXT,
    PRODUCE_FLEXIBLE,
    PRODUCE_LOG_START,
    PRODUCE_TOPIC_IDS,
)
from protocol.wire import UUID_SIZE, Buffer

# topic name or id, index, bytes of the batch, messages, producer id, producer epoch, base sequence, trailing bytes
Partition: TypeAlias = tuple[bytes, int, int, int, int, int, int, int]
Answered: TypeAlias = tuple[bytes, int, int, int]  # topic name or id, index, error code, base offset
Span: TypeAlias = tuple[bytes, int, int]  # topic name or id, its first row, the row behind its last

# Numbers of C where this is compiled, hence not imported by the names that they have elsewhere.
_MIN = FLOORS[PRODUCE]
_MAX = CAPS[PRODUCE]
_FLEXIBLE = PRODUCE_FLEXIBLE
_TOPIC_IDS = PRODUCE_TOPIC_IDS
_LOG_START = PRODUCE_LOG_START
_ERROR_TEXT = PRODUCE_ERROR_TEXT
_ID = UUID_SIZE
_LONGEST = layouts.LONGEST
_LEAST_BATCH = 61  # bytes: its header
_LEAST_ANSWER = 14  # bytes of a partition in an answer, before v5
_LEAST_LENGTH = 49  # a batch's length where it has no record: 61 bytes of header without the 12 that it doesn't count
_MAGIC = 2
_PART = 7  # numbers of a partition in a request, behind its topic
_RESULT = 3  # and in an answer
_PART_BYTES = 8 * _PART
_RESULT_BYTES = 8 * _RESULT
_MANY = 128  # topics, for which there is room before any of them was read
_NOT_SINGLE: Final[Single] = (-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
_NOTHING = array("q")
_NEW_PART = array("q", [0] * _PART)
_NEW_RESULT = array("q", [0] * _RESULT)


class Partitions:
    """Several partitions of a request (Partition), or of an answer (Answered), as numbers in one array: an object for
    each would cost more than reading and judging them does.

    `topics`: where the rows of each are. `numbers`: `width` for each row, whatever else is behind the last one. To be
    gone through like a list of tuples (topic, *numbers), which are made when asked for.
    """

    __slots__ = ("_count", "_rows", "numbers", "topics", "width")

    def __init__(self, topics: list[Span], numbers: array[int], width: int) -> None:
        self.topics = topics
        self.numbers = numbers
        self.width = width
        self._count = topics[len(topics) - 1][2]
        self._rows: list[Any] | None = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tuples())

    def __getitem__(self, place: int) -> Any:
        return self._tuples()[place]

    def _tuples(self) -> list[Any]:
        rows = self._rows
        if rows is None:
            rows = self._rows = []
            for topic, first, stop in self.topics:
                for at in range(first * self.width, stop * self.width, self.width):
                    rows.append((topic, *self.numbers[at : at + self.width]))
        return rows


Parts: TypeAlias = list[Partition] | Partitions  # a list of the only one, or of none
Results: TypeAlias = list[Answered] | Partitions
# version, acks, where the client id is and its length (-1: null), the same of the transactional id and of the topic's
# name or id; and the numbers of the partition.
Single: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int, int]
Skimmed: TypeAlias = tuple[int, int, bytes | None, bytes | None, Parts]  # version, acks, client id, transactional id


def gathered(rows: Sequence[tuple[Any, ...]]) -> Any:
    """Rows as readers give them: Parts or Results."""
    if len(rows) < 2:
        return list(rows)
    topics: list[Span] = []
    numbers = array("q")
    topic, first = rows[0][0], 0
    for place, row in enumerate(rows):
        if row[0] != topic:
            topics.append((topic, first, place))
            topic, first = row[0], place
        numbers.extend(row[1:])
    topics.append((topic, first, len(rows)))
    return Partitions(topics, numbers, len(rows[0]) - 1)


def single(buf: Buffer, start: int, end: int) -> Single:
    """The contents of the Produce request in buf[start:end], where it has one partition; version -1: ask `several`.

    Nearly all requests pass here, so compiled it makes no objects. Names are left where they are.
    """
    try:
        version, client_size = layouts.version_and_client(buf, start)
        if not _FLEXIBLE <= version <= _MAX:
            return _plain_single(buf, start, end, version, client_size)
        if not -1 <= client_size <= _LONGEST:
            return _NOT_SINGLE
        client_at = start + 10
        pos = client_at + (client_size if client_size > 0 else 0)
        header_tags, transactional, acks, topics = layouts.flexible_head(buf, pos)
        transactional_at = pos + 2
        pos += 9
        if transactional:
            if transactional >= 0x80:
                return _NOT_SINGLE
            pos += transactional - 1
            acks, topics = layouts.acks_and_topics(buf, pos - 7)
        if header_tags or topics != 2:
            return _NOT_SINGLE
        topic_size = _ID
        if version < _TOPIC_IDS:
            topic_size = layouts.byte(buf, pos) - 1
            if not 0 <= topic_size <= _LONGEST:
                return _NOT_SINGLE
            pos += 1
        topic_at = pos
        count, index, a, b, c, d = layouts.flexible_topic(buf, pos + topic_size)
        pos += topic_size + 5
        size, width = layouts.length(a, b, c, d)
        if count != 2 or not width:
            return _NOT_SINGLE
        pos += width
        length, magic, producer, epoch, sequence, messages = layouts.batch(buf, pos)
        trailing = size - 12 - length
        pos += size  # behind it: tagged fields of the partition, the topic and the request
        if trailing < 0 or length < _LEAST_LENGTH or magic != _MAGIC or messages < 0 or pos + 3 != end:
            return _NOT_SINGLE
        if layouts.byte(buf, pos) or layouts.byte(buf, pos + 1) or layouts.byte(buf, pos + 2):
            return _NOT_SINGLE
        return (
            version, acks, client_at, client_size, transactional_at, transactional - 1, topic_at, topic_size, index,
            length + 12, messages, producer, epoch, sequence, trailing,
        )  # fmt: skip
    except (struct.error, IndexError):
        return _NOT_SINGLE


def _plain_single(buf: Buffer, start: int, end: int, version: int, client_size: int) -> Single:
    # v3 … v8: no compact forms, no tagged fields. Called by `single`, which catches what reading raises.
    if not _MIN <= version < _FLEXIBLE or not 0 <= client_size <= _LONGEST:
        return _NOT_SINGLE
    pos = start + 10 + client_size
    transactional, acks, topics = layouts.plain_head(buf, pos)
    pos += 12
    if transactional != -1 or topics != 1:
        return _NOT_SINGLE
    topic_at = pos + 2
    topic_size = layouts.byte(buf, pos) << 8 | layouts.byte(buf, pos + 1)
    if topic_size > _LONGEST:
        return _NOT_SINGLE
    count, index, records = layouts.plain_topic(buf, topic_at + topic_size)
    pos = topic_at + topic_size + 12
    length, magic, producer, epoch, sequence, messages = layouts.batch(buf, pos)
    trailing = records - 12 - length
    if count != 1 or trailing < 0 or length < _LEAST_LENGTH or magic != _MAGIC or messages < 0:
        return _NOT_SINGLE
    if pos + records != end or end > len(buf):
        return _NOT_SINGLE
    return (
        version, acks, start + 10, client_size, 0, -1, topic_at, topic_size, index, length + 12, messages, producer,
        epoch, sequence, trailing,
    )  # fmt: skip


def request(buf: Buffer, start: int, end: int, most: int) -> Skimmed | None:
    """The contents of the Produce request in buf[start:end] as `produce_request.skim` gives them; None: ask that."""
    (
        version, acks, client_at, client_size, transactional_at, transactional_size, topic_at, topic_size, index, size,
        messages, producer, epoch, sequence, trailing,
    ) = single(buf, start, end)  # fmt: skip
    if version < 0 or most < 1:
        return several(buf, start, end, most)
    client_id: bytes | None = None
    if client_size >= 0:
        client_id = layouts.name(buf, client_at, client_size)
    transactional_id: bytes | None = None
    if transactional_size >= 0:
        transactional_id = layouts.name(buf, transactional_at, transactional_size)
    topic = layouts.name(buf, topic_at, topic_size)
    parts: Parts = [(topic, index, size, messages, producer, epoch, sequence, trailing)]
    return version, acks, client_id, transactional_id, parts


def several(buf: Buffer, start: int, end: int, most: int) -> Skimmed | None:
    """The same, where it has no partition or more than one."""
    try:
        version, size = layouts.version_and_client(buf, start)
        if not _FLEXIBLE <= version <= _MAX:
            return _plain_several(buf, start, end, version, size, most)
        if not -1 <= size <= _LONGEST:
            return None
        client_id: bytes | None = None
        if size >= 0:
            client_id = layouts.name(buf, start + 10, size)
        else:
            size = 0
        header_tags, transactional, acks, topics = layouts.flexible_head(buf, start + 10 + size)
        pos = start + 19 + size
        transactional_id: bytes | None = None
        if transactional:
            if transactional >= 0x80:
                return None
            transactional_id = layouts.name(buf, pos - 7, transactional - 1)
            pos += transactional - 1
            acks, topics = layouts.acks_and_topics(buf, pos - 7)
        if header_tags or not 0 < topics < 0x80:
            return None
        named = topics - 1 if topics > 2 else 0
        names: set[bytes] | None = set() if named else None
        spans: list[Span] = []
        kept = _NOTHING
        numbers = layouts.items(kept)
        place = 0
        while topics > 1:
            topics -= 1
            if version < _TOPIC_IDS:
                size = layouts.byte(buf, pos) - 1
                if not 0 <= size <= _LONGEST:
                    return None
                pos += 1
            else:
                size = _ID
            topic = layouts.name(buf, pos, size)
            count, index, a, b, c, d = layouts.flexible_topic(buf, pos + size)
            pos += size + 5
            if count >= 0x80:  # two bytes
                more = layouts.byte(buf, pos - 4)
                if more >= 0x80:
                    return None
                count = count & 0x7F | more << 7
                index, a, b, c, d = layouts.flexible_partition(buf, pos - 3)
                pos += 1
            if count < 2 or _LEAST_BATCH * (count - 1) > end - pos:
                return None
            if names is not None:
                names.add(topic)
            first, last, ascends = place, -0x80000001, True
            if _PART * (place + count - 1) > len(kept):
                kept = kept + _NEW_PART * max(count - 1, place, topics)
                numbers = layouts.items(kept)
            while True:
                size, width = layouts.length(a, b, c, d)
                if not width:
                    return None
                pos += width
                length, magic, producer, epoch, sequence, messages = layouts.batch(buf, pos)
                trailing = size - 12 - length
                if trailing < 0 or length < _LEAST_LENGTH or magic != _MAGIC or messages < 0:
                    return None
                layouts.put_part(
                    numbers, place * _PART_BYTES, index, length + 12, messages, producer, epoch, sequence, trailing
                )
                place += 1
                pos += size
                if index <= last:
                    ascends = False
                last = index
                # Most of the time the next ones are like it: the same number of bytes for the length, no tagged fields.
                if a < 0x80:
                    while count > 2:
                        tags, index, a, length, magic, producer, epoch, sequence, messages = layouts.short_partition(
                            buf, pos
                        )
                        trailing = a - 13 - length
                        if tags or a >= 0x80 or length < _LEAST_LENGTH or magic != _MAGIC or messages < 0:
                            break
                        if trailing < 0:
                            return None
                        layouts.put_part(
                            numbers, place * _PART_BYTES,
                            index, length + 12, messages, producer, epoch, sequence, trailing,
                        )  # fmt: skip
                        place += 1
                        pos += a + 5
                        count -= 1
                        if index <= last:
                            ascends = False
                        last = index
                elif b < 0x80:
                    while count > 2:
                        tags, index, a, b, length, magic, producer, epoch, sequence, messages = layouts.partition(
                            buf, pos
                        )
                        size = (a & 0x7F | b << 7) - 1
                        trailing = size - 12 - length
                        if tags or not b < 0x80 <= a or length < _LEAST_LENGTH or magic != _MAGIC or messages < 0:
                            break
                        if trailing < 0:
                            return None
                        layouts.put_part(
                            numbers, place * _PART_BYTES,
                            index, length + 12, messages, producer, epoch, sequence, trailing,
                        )  # fmt: skip
                        place += 1
                        pos += size + 7
                        count -= 1
                        if index <= last:
                            ascends = False
                        last = index
                if layouts.byte(buf, pos):  # tagged fields
                    return None
                pos += 1
                if count == 2:
                    break
                count -= 1
                index, a, b, c, d = layouts.flexible_partition(buf, pos)
                pos += 4
            if layouts.byte(buf, pos):
                return None
            pos += 1
            if not ascends and _twice(kept, first, place):
                return None
            spans.append((topic, first, place))
        if pos + 1 != end or layouts.byte(buf, pos) or place > most or (names is not None and len(names) != named):
            return None
        if place == 1:  # written in another way than nearly all are
            return None
        parts: Parts = Partitions(spans, kept, _PART) if place else []
        return version, acks, client_id, transactional_id, parts
    except (struct.error, IndexError):
        return None


def _plain_several(buf: Buffer, start: int, end: int, version: int, size: int, most: int) -> Skimmed | None:
    # v3 … v8: no compact forms, no tagged fields. Called by `several`, which catches what reading raises.
    if not _MIN <= version < _FLEXIBLE or not 0 <= size <= _LONGEST:
        return None
    client_id = layouts.name(buf, start + 10, size)
    transactional, acks, topics = layouts.plain_head(buf, start + 10 + size)
    pos = start + 22 + size
    if transactional != -1 or topics < 0:
        return None
    named = topics if topics > 1 else 0
    names: set[bytes] | None = set() if named else None
    spans: list[Span] = []
    kept = _NOTHING
    numbers = layouts.items(kept)
    place = 0
    room = most
    while topics:
        topics -= 1
        size = layouts.byte(buf, pos) << 8 | layouts.byte(buf, pos + 1)
        if size > _LONGEST:
            return None
        topic = layouts.name(buf, pos + 2, size)
        count, index, records = layouts.plain_topic(buf, pos + 2 + size)
        pos += size + 14
        room -= count
        if count < 1 or room < 0 or _LEAST_BATCH * count > end - pos:
            return None
        if names is not None:
            names.add(topic)
        first, last, ascends = place, -0x80000001, True
        if _PART * (place + count) > len(kept):
            kept = kept + _NEW_PART * max(count, place, min(topics, _MANY))
            numbers = layouts.items(kept)
        while True:
            length, magic, producer, epoch, sequence, messages = layouts.batch(buf, pos)
            trailing = records - 12 - length
            if trailing < 0 or length < _LEAST_LENGTH or magic != _MAGIC or messages < 0:
                return None
            layouts.put_part(
                numbers, place * _PART_BYTES, index, length + 12, messages, producer, epoch, sequence, trailing
            )
            place += 1
            pos += records
            if index <= last:
                ascends = False
            last = index
            count -= 1
            if not count:
                break
            index, records = layouts.plain_partition(buf, pos)
            pos += 8
        if not ascends and _twice(kept, first, place):
            return None
        spans.append((topic, first, place))
    if pos != end or end > len(buf) or (names is not None and len(names) != named):
        return None
    if place == 1:
        return None
    parts: Parts = Partitions(spans, kept, _PART) if place else []
    return version, acks, client_id, None, parts


def _twice(kept: array[int], first: int, stop: int) -> bool:
    # Whether two of these partitions of a request have the same index; they are of one topic.
    return len(set(kept[_PART * first : _PART * stop : _PART])) != stop - first


def written(buf: Buffer, start: int, end: int, version: int, topic: bytes, index: int) -> int:
    """The base offset in the Produce answer in buf[start:end], where it says that this partition was written, and
    nothing else; below 0: ask `answer`. Nearly all answers pass here, so compiled it makes no objects.
    """
    try:
        if not _FLEXIBLE <= version <= _MAX:
            return _plain_written(buf, start, end, version, topic, index)
        header_tags, topics = layouts.answer_head(buf, start)
        pos = start + 6
        if version < _TOPIC_IDS:
            size = layouts.byte(buf, pos) - 1
            pos += 1
        else:
            size = _ID
        if header_tags or topics != 2 or size != len(topic) or not layouts.has(buf, pos, topic):
            return -1
        pos += size
        offset: int
        count, answered, error, offset, record_errors, message, tags = layouts.flexible_answer(buf, pos)
        # Behind it: tagged fields of the topic, throttle time, tagged fields of the answer.
        if pos + 40 != end or layouts.byte(buf, pos + 34) or layouts.byte(buf, pos + 39):
            return -1
        if count != 2 or answered != index or error or record_errors != 1 or message or tags:
            return -1
        return offset
    except (struct.error, IndexError):
        return -1


def _plain_written(buf: Buffer, start: int, end: int, version: int, topic: bytes, index: int) -> int:
    # v3 … v8. Called by `written`, which catches what reading raises.
    _, topics = layouts.plain_partition(buf, start)
    size = layouts.byte(buf, start + 8) << 8 | layouts.byte(buf, start + 9)
    pos = start + 10
    if topics != 1 or not _MIN <= version < _FLEXIBLE or size != len(topic) or not layouts.has(buf, pos, topic):
        return -1
    offset: int
    count, answered, error, offset = layouts.plain_answer(buf, pos + size)
    pos += size + (26 if version < _LOG_START else 34)
    if version >= _ERROR_TEXT:
        record_errors, message = layouts.record_errors_and_message(buf, pos)
        if record_errors or message != -1:
            return -1
        pos += 6
    if pos + 4 != end or end > len(buf) or count != 1 or answered != index or error:  # the throttle time is behind it
        return -1
    return offset


def answer(buf: Buffer, start: int, end: int, version: int) -> Results | None:
    """The results in the Produce answer in buf[start:end] as `produce_response.skim` gives them, where it carries
    nothing else; None: ask that.
    """
    try:
        if not _FLEXIBLE <= version <= _MAX:
            return _plain_answer(buf, start, end, version)
        header_tags, topics = layouts.answer_head(buf, start)
        if header_tags or not 0 < topics < 0x80:
            return None
        pos = start + 6
        several = topics > 2
        spans: list[Span] | None = None
        single: list[Answered] | None = None
        kept = _NOTHING
        place = 0
        while topics > 1:
            topics -= 1
            if version < _TOPIC_IDS:
                size = layouts.byte(buf, pos) - 1
                if not 0 <= size <= _LONGEST:
                    return None
                pos += 1
            else:
                size = _ID
            topic = layouts.name(buf, pos, size)
            count, index, error, offset, record_errors, message, tags = layouts.flexible_answer(buf, pos + size)
            pos += size + 34
            if count >= 0x80:  # two bytes
                more = layouts.byte(buf, pos - 33)
                if more >= 0x80:
                    return None
                count = count & 0x7F | more << 7
                index, error, offset, record_errors, message, tags = layouts.answered(buf, pos - 32)
                pos += 1
            if count < 2 or _LEAST_ANSWER * (count - 2) > end - pos:
                return None
            first = place
            alone = count == 2 and not several
            if not alone and _RESULT * (place + count - 1) > len(kept):
                kept = kept + _NEW_RESULT * max(count - 1, place, topics)
                numbers = layouts.items(kept)
            while True:
                if record_errors != 1 or message or tags:  # neither an empty array, nor null, nor no tags
                    return None
                if alone:
                    single = [(topic, index, error, offset)]
                else:
                    layouts.put_result(numbers, place * _RESULT_BYTES, index, error, offset)
                place += 1
                if count == 2:
                    break
                count -= 1
                index, error, offset, record_errors, message, tags = layouts.answered(buf, pos)
                pos += 33
            if layouts.byte(buf, pos):  # tagged fields
                return None
            pos += 1
            if not alone:
                spans = [] if spans is None else spans
                spans.append((topic, first, place))
        if pos + 5 != end or layouts.byte(buf, pos + 4):
            return None
        return single or [] if spans is None else Partitions(spans, kept, _RESULT)
    except (struct.error, IndexError):
        return None


def _plain_answer(buf: Buffer, start: int, end: int, version: int) -> Results | None:
    # v3 … v8: no compact forms, no tagged fields. Called by `answer`, which catches what reading raises.
    _, topics = layouts.plain_partition(buf, start)  # the correlation id stands before them
    if topics < 0 or not _MIN <= version < _FLEXIBLE:
        return None
    pos = start + 8
    rest = 8 if version < _LOG_START else 16
    several = topics > 1
    spans: list[Span] | None = None
    single: list[Answered] | None = None
    kept = _NOTHING
    place = 0
    while topics:
        topics -= 1
        size = layouts.byte(buf, pos) << 8 | layouts.byte(buf, pos + 1)
        if size > _LONGEST:
            return None
        topic = layouts.name(buf, pos + 2, size)
        count, index, error, offset = layouts.plain_answer(buf, pos + 2 + size)
        pos += size + 20 + rest
        if count < 1 or _LEAST_ANSWER * (count - 1) > end - pos:
            return None
        first = place
        alone = count == 1 and not several
        if not alone and _RESULT * (place + count) > len(kept):
            kept = kept + _NEW_RESULT * max(count, place, min(topics, _MANY))
            numbers = layouts.items(kept)
        while True:
            if version >= _ERROR_TEXT:
                record_errors, message = layouts.record_errors_and_message(buf, pos)
                if record_errors or message != -1:
                    return None
                pos += 6
            if alone:
                single = [(topic, index, error, offset)]
            else:
                layouts.put_result(numbers, place * _RESULT_BYTES, index, error, offset)
            place += 1
            count -= 1
            if not count:
                break
            index, error, offset = layouts.plain_answered(buf, pos)
            pos += 14 + rest
        if not alone:
            spans = [] if spans is None else spans
            spans.append((topic, first, place))
    if pos + 4 != end or end > len(buf):
        return None
    return single or [] if spans is None else Partitions(spans, kept, _RESULT)
