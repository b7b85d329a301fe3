# Answers too large to be held, with addresses at their very end: Fetch v16+, ShareFetch and ShareAcknowledge (KIP-951,
# KIP-932). A client that reads such an address goes to that broker directly, past the gateway.
#
# Their size stands before everything, their addresses behind all records: to rewrite the addresses one would have to
# hold the whole answer. So they are hidden instead, in bytes of the same number, while the answer streams through: the
# list of addresses becomes a tagged field with an unknown number (KIP-482: readers skip it), and the client asks for
# metadata, where addresses are rewritten. Fetch has the list in tagged field 0, which gets another number. The others
# have it in an ordinary array: that becomes an empty one, and its bytes an unknown tagged field behind the known ones.
#
# An answer is walked by a small program: a flat table of steps compiled from its layout. All that is kept between two
# chunks is the step, the loop counters, half a varint and how much to skip, so a chunk may end anywhere, and record
# bytes cost nothing. An answer that doesn't follow its layout is passed on as it is, and `lost` says so.
#
# fetch_response.py, which meters what passes of each topic, walks the same programs with stops at topics and at
# records.
#
# Compiled where a C compiler is (setup.py): stream.pxd has its types in C.

from __future__ import annotations

from typing import Final, TypeAlias

from protocol import api
from protocol.wire import (
    MAX_TAGS,
    UUID_SIZE,
    Buffer,
    MalformedFrame,
    check_end,
    put_uvarint,
    read_compact_count,
    read_compact_string,
    read_tags,
    read_uvarint,
    skip_bytes,
    skip_tags,
)

MAX_HELD_BYTES: Final = (
    16 * 1024
)  # a list of addresses with what is behind it is held back up to here: some 250 brokers
LONGEST_NAME: Final = 249  # of a topic: Kafka makes no longer ones
HIDDEN_TAG: Final = 0x7F  # the highest one-byte tag: Kafka counts its tagged fields up from 0 and has reached 3

# Layouts: a number is that many bytes, a tuple an array of such elements, _BYTES a string or bytes. Those of versions
# before tagged fields are the same without _TAGS, and with lengths and counts of fixed widths.
_BYTES: Final = "bytes"
_NAME: Final = "a topic's name"
_ID: Final = "a topic's id"
_RECORDS: Final = "records"
_TAGS: Final = "tags"
_ENDPOINT_TAGS: Final = "tags, 0 is the list of addresses"
_ENDPOINTS: Final = "array of addresses"
_Layout: TypeAlias = tuple["int | str | _Layout", ...]

_HEADER: _Layout = (4, _TAGS)  # correlation id
_LEADER: _Layout = (4 + 4, _TAGS)  # id, epoch

_ABORTED: _Layout = (8 + 8, _TAGS)  # producer id, first offset


def _fetch_layout(version: int) -> _Layout:
    partition: _Layout = (
        4 + 2 + 8 + 8,  # index, error, high watermark, last stable offset
        8 if version >= 5 else 0,  # log start offset
        _ABORTED,
        4 if version >= 11 else 0,  # preferred read replica
        _RECORDS,
        _TAGS,
    )
    topic: _Layout = (_ID if version >= api.FETCH_TOPIC_IDS else _NAME, partition, _TAGS)
    head = 4 + (2 + 4 if version >= 7 else 0)  # throttle time, error, session
    return (*_HEADER, head, topic, _ENDPOINT_TAGS if version >= 16 else _TAGS)


_ACQUIRED: _Layout = (8 + 8 + 2, _TAGS)  # first offset, last offset, delivery count
_SHARE_FETCH_PARTITION: _Layout = (4 + 2, _BYTES, 2, _BYTES, *_LEADER, _RECORDS, _ACQUIRED, _TAGS)
_SHARE_FETCH: _Layout = (
    *_HEADER,
    4 + 2,  # throttle time, error
    _BYTES,  # error message
    4,  # acquisition lock timeout
    (_ID, _SHARE_FETCH_PARTITION, _TAGS),
    _ENDPOINTS,
    _TAGS,
)

_ACKNOWLEDGED: _Layout = (16, (4 + 2, _BYTES, *_LEADER, _TAGS), _TAGS)
_SHARE_ACKNOWLEDGE_1: _Layout = (*_HEADER, 4 + 2, _BYTES, _ACKNOWLEDGED, _ENDPOINTS, _TAGS)
_SHARE_ACKNOWLEDGE_2: _Layout = (*_HEADER, 4 + 2, _BYTES, 4, _ACKNOWLEDGED, _ENDPOINTS, _TAGS)

# Steps of a program: (what, argument). Down to _HIDE_ARRAY all but _SKIP begin by reading a varint n, or, with
# _INT16 or _INT32 added, an integer n - 1 of that width.
(
    _SKIP,  # pass `argument` bytes
    _STRING,  # pass n - 1 bytes, none for a null
    _SIZED,  # pass n bytes
    _ARRAY,  # n - 1 times what follows up to its _NEXT; for none go to step `argument`
    _COUNT,  # the same n times
    _TAG,  # n is the number of a tagged field
    _ENDPOINT_TAG,  # the same, hide number 0
    _TOPIC,  # n - 1 bytes are a topic's name: _READ_TOPIC takes them
    _SIZE,  # n - 1 bytes are records: _READ_RECORDS takes them
    _HIDE_ARRAY,  # n - 1 addresses
    _NEXT,  # once more from step `argument` on, if there are more
    _READ_TOPIC,  # `argument` bytes, or those announced, are a topic's name
    _READ_RECORDS,  # records
    _END,
) = range(14)
_INT16 = 16
_INT32 = 32
_Program: TypeAlias = tuple[tuple[int, int], ...]


def _compile_layout(layout: _Layout, *, flexible: bool = True, metered: bool = False) -> _Program:
    steps: list[tuple[int, int]] = []
    _append_steps(layout, steps, metered)
    if not flexible:
        wide = {_STRING: _INT32, _ARRAY: _INT32, _SIZE: _INT32, _TOPIC: _INT16}
        steps = [(kind + wide.get(kind, 0), argument) for kind, argument in steps]
    return (*steps, (_END, 0))


def _without_tags(layout: _Layout) -> _Layout:
    return tuple(
        _without_tags(item) if isinstance(item, tuple) else item
        for item in layout
        if item not in (_TAGS, _ENDPOINT_TAGS)
    )


def _append_steps(layout: _Layout, steps: list[tuple[int, int]], metered: bool) -> None:
    for item in layout:
        if isinstance(item, int):
            steps += [(_SKIP, item)] if item else []
        elif isinstance(item, tuple):
            _append_loop(_ARRAY, item, steps, metered)
        elif item is _ENDPOINTS:
            steps.append((_HIDE_ARRAY, 0))
        elif item in (_TAGS, _ENDPOINT_TAGS):
            _append_loop(_COUNT, (item,), steps, metered)
        elif item is _ID:
            steps.append((_READ_TOPIC if metered else _SKIP, UUID_SIZE))
        elif not metered or item is _BYTES:
            steps.append((_STRING, 0))
        elif item is _NAME:
            steps += ((_TOPIC, 0), (_READ_TOPIC, 0))
        else:
            steps += ((_SIZE, 0), (_READ_RECORDS, 0))


def _append_loop(kind: int, body: _Layout, steps: list[tuple[int, int]], metered: bool) -> None:
    first = len(steps) + 1
    steps.append((kind, 0))
    if kind == _ARRAY:
        _append_steps(body, steps, metered)
    else:
        steps += ((_ENDPOINT_TAG if body[0] is _ENDPOINT_TAGS else _TAG, 0), (_SIZED, 0))
    steps.append((_NEXT, first))
    steps[first - 1] = (kind, len(steps))


def _compile_fetch(version: int, *, metered: bool) -> _Program:
    layout, flexible = _fetch_layout(version), version >= api.FETCH_FLEXIBLE
    return _compile_layout(layout if flexible else _without_tags(layout), flexible=flexible, metered=metered)


_PROGRAMS: Final[dict[tuple[int, int], _Program]] = {
    **{(api.FETCH, version): _compile_fetch(version, metered=False) for version in (16, 17, 18)},
    **dict.fromkeys(((api.SHARE_FETCH, version) for version in (1, 2)), _compile_layout(_SHARE_FETCH)),
    (api.SHARE_ACKNOWLEDGE, 1): _compile_layout(_SHARE_ACKNOWLEDGE_1),
    (api.SHARE_ACKNOWLEDGE, 2): _compile_layout(_SHARE_ACKNOWLEDGE_2),
}
METERED_PROGRAMS: Final[dict[tuple[int, int], _Program]] = {
    **{(api.FETCH, version): _compile_fetch(version, metered=True) for version in range(4, 19)},
    **dict.fromkeys(((api.SHARE_FETCH, version) for version in (1, 2)), _compile_layout(_SHARE_FETCH, metered=True)),
}
_PASS_THROUGH: Final[_Program] = ((_END, 0),)


def has_endpoints(api_key: int, version: int) -> bool:
    """Whether answers of this API and version may end with addresses and so need an EndpointHider."""
    return (api_key, version) in _PROGRAMS


class EndpointHider:
    """Hides the broker addresses at the end of one answer while its bytes pass, without changing its size.

    Args:
        api_key, version: of the request that is answered; `has_endpoints` says for which this makes sense.
        size: the frame's size as its prefix has it; the prefix itself is never fed.

    Attributes:
        left: bytes of the frame that have not been released.
        unread: how many of the next bytes `feed` wouldn't look at: they may pass elsewhere, and `skip_unread` must
            learn of them.
        lost: the bytes don't follow the layout of that answer; they are passed on as they are from there.
    """

    __slots__ = ("_due", "_program", "_shift", "_stack", "_step", "_value", "left", "lost", "unread")

    def __init__(self, api_key: int, version: int, size: int) -> None:
        self.lost = False
        self._program = _PROGRAMS.get((api_key, version), _PASS_THROUGH)
        self._step = 0
        self._stack: list[int] = []  # how often each loop that we are in is still to be run
        self._value = self._shift = 0  # a varint that a chunk's end has cut
        self._due = 0  # bytes of a topic's name, or of records, that are still to come
        self.unread = 0
        self.left = size

    def feed(self, buf: bytearray | memoryview, start: int, end: int) -> int:
        """Walk the next bytes of the answer, changing them in place where they hold a broker's address.

        Returns:
            How many bytes at the end of this chunk must not be sent yet (0, but within a list of addresses): the next
            chunk has to begin with them. Fewer than MAX_HELD_BYTES, and none once the whole answer is there.
        """
        size = end - start
        if self.unread >= size:  # most chunks of a large answer lie within records
            self.skip_unread(size)
            return 0
        return self._walk_bytes(buf, start, end)

    def skip_unread(self, size: int) -> None:
        """That many of the unread bytes have passed elsewhere."""
        self.unread -= size
        self.left -= size

    def _walk_bytes(self, buf: bytearray | memoryview, start: int, end: int) -> int:
        # One function, as its state is in local variables: with the steps that begin with a number in a method of their
        # own, and the step in an attribute, an answer with many partitions took a seventh longer.
        data = buf  # for single bytes
        frame_end = start + self.left  # where the answer would end if this buffer had all of it
        pos = start + self.unread
        program, step, stack = self._program, self._step, self._stack
        value, shift = self._value, self._shift
        held = 0
        followed = True
        while True:
            kind, argument = program[step]
            if kind == _NEXT:
                stack[-1] -= 1
                if stack[-1]:
                    step = argument
                else:
                    stack.pop()
                    step += 1
                continue
            if pos >= end:
                break
            if kind == _SKIP:
                pos += argument
                step += 1
                continue
            if _NEXT < kind < _INT16:
                if kind == _END:
                    break
                pos = (
                    self._read_topic(buf, pos, end, argument)
                    if kind == _READ_TOPIC
                    else self._measure_records(buf, pos, end)
                )
                if self._due:
                    break
                step += 1
                continue
            byte = data[pos]
            if kind == _HIDE_ARRAY and byte > 1:
                if end < frame_end and end - pos < MAX_HELD_BYTES:
                    held = end - pos
                else:
                    followed = _hide_array(buf, pos, end, frame_end)
                    step, pos = len(program) - 1, frame_end
                break
            pos += 1
            if kind < _INT16:
                value |= (byte & 0x7F) << shift
                if byte >= 0x80:
                    shift += 7
                    if shift < 35:
                        continue
                    followed = False  # no varint of Kafka's has more than five bytes
                    break
                number, value, shift = value, 0, 0
            else:
                value = value << 8 | byte
                shift += 8
                if shift < (16 if kind < _INT32 else 32):
                    continue
                # From here on as if it were a varint: null is 0.
                number = value + 1 & (0xFFFF if kind < _INT32 else 0xFFFFFFFF)
                value = shift = 0
                kind &= _INT16 - 1
            step += 1
            if kind == _STRING:
                pos += number - 1 if number else 0
            elif kind == _SIZED:
                pos += number
            elif kind in (_ARRAY, _COUNT):
                number -= kind == _ARRAY
                if number > (frame_end - pos if kind == _ARRAY else MAX_TAGS):
                    followed = False
                    break
                if number > 0:
                    stack.append(number)
                else:
                    step = argument
            elif kind == _ENDPOINT_TAG:
                if number == 0:
                    buf[pos - 1] = HIDDEN_TAG
            elif kind in (_TOPIC, _SIZE):
                self._due = number - 1 if number else 0
                if self._due > (frame_end - pos if kind == _SIZE else LONGEST_NAME):
                    followed = False
                    break
                if kind == _SIZE:
                    self._announce_records(self._due)
                    step += not self._due
        self._step, self._value, self._shift = step, value, shift
        self.unread = max(0, pos - end)
        self.left = frame_end - end + held
        if not followed or pos > frame_end or (program[step][0] == _END) != (pos == frame_end):
            self._mark_lost()
        return held

    def _mark_lost(self) -> None:
        self.lost = True
        self._program, self._step, self.unread = _PASS_THROUGH, 0, self.left
        self._stack.clear()

    # For readers that meter: here nothing stops at topics or records.

    def _announce_records(self, size: int) -> None:
        """Called where that many bytes of records begin."""

    def _read_topic(self, buf: bytearray | memoryview, pos: int, end: int, size: int) -> int:
        """Called with a topic's name or id: `size` bytes, or if that is 0, as many as are due. Nothing is due: all is
        there.
        """
        return pos

    def _measure_records(self, buf: bytearray | memoryview, pos: int, end: int) -> int:
        """Called with records; likewise."""
        return pos


def pass_through_hider(size: int) -> EndpointHider:
    """For an answer in which nothing is to be hidden: all of it is unseen."""
    hider = EndpointHider(-1, 0, size)  # that is no API: it has no program
    hider.unread = size
    return hider


def _hide_array(buf: bytearray | memoryview, pos: int, end: int, frame_end: int) -> bool:
    """Make the addresses at `pos`, and the bytes behind them, an empty array and an unknown tagged field of that size.

    The tagged fields behind the addresses stay, before the new one. A list too large to be held (more than
    MAX_HELD_BYTES, so that `end` is not its end) takes them along into the new field. False if the bytes aren't a list
    of addresses at all: then they are hidden likewise.
    """
    head, tag, followed = b"\x01\x01", HIDDEN_TAG, True
    if end >= frame_end:
        try:
            head, tag = _kept_fields(buf, pos, frame_end)
        except MalformedFrame:
            followed = False
    head += put_uvarint(tag)
    room = frame_end - pos - len(head)
    if room < 1:
        return False
    width = next(width for width in range(1, 6) if room - width < 1 << 7 * width)
    head += _wide_uvarint(room - width, width)
    body = pos + len(head)
    buf[pos:body] = head
    buf[body:end] = bytes(end - body)
    return followed


def _kept_fields(buf: Buffer, pos: int, end: int) -> tuple[bytes, int]:
    count, pos = read_compact_count(buf, pos, end)
    for _ in range(count):
        _, pos = read_compact_string(buf, skip_bytes(pos, 4, end), end)  # node id, host
        _, pos = read_compact_string(buf, skip_bytes(pos, 4, end), end)  # port, rack
        pos = skip_tags(buf, pos, end)
    fields, after = read_tags(buf, pos, end)
    check_end(after, end)
    _, first = read_uvarint(buf, pos, end)
    highest = max((tag for tag, _, _ in fields), default=0)
    kept = b"\x01" + put_uvarint(len(fields) + 1) + bytes(buf[first:end])
    return kept, max(HIDDEN_TAG, min(highest + 1, 0xFFFFFFFF))


def _wide_uvarint(value: int, width: int) -> bytes:
    # With as many bytes as there have to be, not as few as there can be: the last byte of the frame must stay the last.
    return bytes((value >> 7 * i & 0x7F) | (0x80 if i < width - 1 else 0) for i in range(width))
