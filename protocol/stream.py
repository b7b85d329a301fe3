# Answers too large to be held, with addresses at their very end: Fetch v16+, ShareFetch and ShareAcknowledge (KIP-951,
# KIP-932). A client that reads such an address goes to that broker directly, past the gateway.
#
# Their size stands before everything, their addresses behind all records: to rewrite the addresses one would have to
# hold the whole answer. So they are hidden instead, in bytes of the same number, while the answer streams through: what
# was a list of addresses becomes a tagged field that nobody knows (KIP-482: readers skip it), and the client asks for
# metadata, where addresses are rewritten. Fetch has the list in tagged field 0, which gets another number. The others
# have it in an ordinary array: that becomes an empty one, and its bytes an unknown tagged field behind the known ones.
#
# An answer is walked by a small program: a flat table of steps compiled from its layout. All that is kept between two
# chunks is the step, the loop counters, half a varint and how much to skip, so a chunk may end anywhere, and record
# bytes cost nothing. An answer that doesn't follow its layout is passed on as it is, and `lost` says so.

from __future__ import annotations

from typing import Final, TypeAlias

from protocol import api
from protocol.wire import (
    Buffer,
    MalformedFrame,
    at_end,
    compact_array,
    compact_string,
    put_uvarint,
    skip,
    skip_tags,
    tags,
    uvarint,
)

HOLD: Final = 16 * 1024  # a list of addresses with what is behind it is held back up to here: some 250 brokers
HIDDEN_TAG: Final = 0x7F  # the highest one-byte tag: Kafka counts its tagged fields up from 0 and has reached 3

# Layouts: a number is that many bytes, a tuple an array of such elements, BYTES a compact string, bytes or records.
_BYTES: Final = "bytes"
_TAGS: Final = "tags"
_ENDPOINT_TAGS: Final = "tags, 0 is the list of addresses"
_ENDPOINTS: Final = "array of addresses"
_Layout: TypeAlias = tuple["int | str | _Layout", ...]

_HEADER: _Layout = (4, _TAGS)  # correlation id
_LEADER: _Layout = (4 + 4, _TAGS)  # id, epoch

_ABORTED: _Layout = (8 + 8, _TAGS)  # producer id, first offset
_FETCH_PARTITION: _Layout = (
    4 + 2 + 8 + 8 + 8,  # index, error, high watermark, last stable offset, log start offset
    _ABORTED,
    4,  # preferred read replica
    _BYTES,
    _TAGS,
)
_FETCH: _Layout = (*_HEADER, 4 + 2 + 4, (16, _FETCH_PARTITION, _TAGS), _ENDPOINT_TAGS)  # throttle time, error, session

_ACQUIRED: _Layout = (8 + 8 + 2, _TAGS)  # first offset, last offset, delivery count
_SHARE_FETCH_PARTITION: _Layout = (4 + 2, _BYTES, 2, _BYTES, *_LEADER, _BYTES, _ACQUIRED, _TAGS)
_SHARE_FETCH: _Layout = (
    *_HEADER,
    4 + 2,  # throttle time, error
    _BYTES,  # error message
    4,  # acquisition lock timeout
    (16, _SHARE_FETCH_PARTITION, _TAGS),
    _ENDPOINTS,
    _TAGS,
)

_ACKNOWLEDGED: _Layout = (16, (4 + 2, _BYTES, *_LEADER, _TAGS), _TAGS)
_SHARE_ACKNOWLEDGE_1: _Layout = (*_HEADER, 4 + 2, _BYTES, _ACKNOWLEDGED, _ENDPOINTS, _TAGS)
_SHARE_ACKNOWLEDGE_2: _Layout = (*_HEADER, 4 + 2, _BYTES, 4, _ACKNOWLEDGED, _ENDPOINTS, _TAGS)

# Steps of a program: (what, argument). All but _SKIP, _NEXT and _END begin by reading a varint n.
(
    _SKIP,  # pass `argument` bytes
    _STRING,  # pass n - 1 bytes, none for a null
    _SIZED,  # pass n bytes
    _ARRAY,  # n - 1 times what follows up to its _NEXT; for none go to step `argument`
    _COUNT,  # the same n times
    _TAG,  # n is the number of a tagged field
    _ENDPOINT_TAG,  # the same, hide number 0
    _HIDE_ARRAY,  # n - 1 addresses
    _NEXT,  # once more from step `argument` on, if there are more
    _END,
) = range(10)
_Program: TypeAlias = tuple[tuple[int, int], ...]


def _compile(layout: _Layout) -> _Program:
    steps: list[tuple[int, int]] = []
    _append(layout, steps)
    return (*steps, (_END, 0))


def _append(layout: _Layout, steps: list[tuple[int, int]]) -> None:
    for item in layout:
        if isinstance(item, int):
            steps.append((_SKIP, item))
        elif isinstance(item, tuple):
            _append_loop(_ARRAY, item, steps)
        elif item is _BYTES:
            steps.append((_STRING, 0))
        elif item is _ENDPOINTS:
            steps.append((_HIDE_ARRAY, 0))
        else:
            _append_loop(_COUNT, (item,), steps)


def _append_loop(kind: int, body: _Layout, steps: list[tuple[int, int]]) -> None:
    first = len(steps) + 1
    steps.append((kind, 0))
    if kind == _ARRAY:
        _append(body, steps)
    else:
        steps += ((_ENDPOINT_TAG if body[0] is _ENDPOINT_TAGS else _TAG, 0), (_SIZED, 0))
    steps.append((_NEXT, first))
    steps[first - 1] = (kind, len(steps))


_PROGRAMS: Final[dict[tuple[int, int], _Program]] = {
    **dict.fromkeys(((api.FETCH, version) for version in (16, 17, 18)), _compile(_FETCH)),
    **dict.fromkeys(((api.SHARE_FETCH, version) for version in (1, 2)), _compile(_SHARE_FETCH)),
    (api.SHARE_ACKNOWLEDGE, 1): _compile(_SHARE_ACKNOWLEDGE_1),
    (api.SHARE_ACKNOWLEDGE, 2): _compile(_SHARE_ACKNOWLEDGE_2),
}
_NOTHING: Final[_Program] = ((_END, 0),)


def has_endpoints(api_key: int, version: int) -> bool:
    """Whether answers of this API and version may end with addresses and so need an EndpointHider."""
    return (api_key, version) in _PROGRAMS


class EndpointHider:
    """Hides the broker addresses at the end of one answer while its bytes pass, without changing its size.

    Args:
        api_key, version: of the request that is answered; `has_endpoints` says for which this makes sense.
        size: the frame's size as its prefix has it; the prefix itself is never fed.

    `lost` turns true when the bytes don't follow the layout of that answer; they are passed on as they are from there.
    """

    __slots__ = ("_left", "_program", "_shift", "_skip", "_stack", "_step", "_value", "lost")

    def __init__(self, api_key: int, version: int, size: int) -> None:
        self.lost = False
        self._program = _PROGRAMS.get((api_key, version), _NOTHING)
        self._step = 0
        self._stack: list[int] = []  # how often each loop that we are in is still to be run
        self._value = self._shift = 0  # a varint that a chunk's end has cut
        self._skip = 0  # bytes to pass before the next step
        self._left = size  # bytes of the frame that have not been released

    def feed(self, buf: bytearray | memoryview, start: int, end: int) -> int:
        """Walk the next bytes of the answer, changing them in place where they say where a broker is.

        Returns:
            How many bytes at the end of this chunk must not be sent yet (0, but within a list of addresses): the next
            chunk has to begin with them. Fewer than HOLD, and none once the whole answer is there.
        """
        size = end - start
        if self._skip >= size:  # most chunks of a large answer lie within records
            self._skip -= size
            self._left -= size
            return 0
        return self._walk(buf, start, end)

    def _walk(self, buf: bytearray | memoryview, start: int, end: int) -> int:
        frame_end = start + self._left  # where the answer would end if this buffer had all of it
        pos = start + self._skip
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
            if kind == _END:
                break
            if kind == _HIDE_ARRAY and buf[pos] > 1:
                if end < frame_end and end - pos < HOLD:
                    held = end - pos
                else:
                    followed = _hide_array(buf, pos, end, frame_end)
                    step, pos = len(program) - 1, frame_end
                break
            byte = buf[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            if byte >= 0x80:
                shift += 7
                if shift < 35:
                    continue
                followed = False  # no varint of Kafka's has more than five bytes
                break
            number, value, shift = value, 0, 0
            step += 1
            if kind == _STRING:
                pos += number - 1 if number else 0
            elif kind == _SIZED:
                pos += number
            elif kind in (_ARRAY, _COUNT):
                number -= kind == _ARRAY
                if number > frame_end - pos:
                    followed = False
                    break
                if number > 0:
                    stack.append(number)
                else:
                    step = argument
            elif kind == _ENDPOINT_TAG and number == 0:
                buf[pos - 1] = HIDDEN_TAG
        self._step, self._value, self._shift = step, value, shift
        self._skip = max(0, pos - end)
        self._left = frame_end - end + held
        if not followed or pos > frame_end or (program[step][0] == _END) != (pos == frame_end):
            self._lose()
        return held

    def _lose(self) -> None:
        self.lost = True
        self._program, self._step, self._skip = _NOTHING, 0, self._left
        self._stack.clear()


def _hide_array(buf: bytearray | memoryview, pos: int, end: int, frame_end: int) -> bool:
    """Make the addresses at `pos`, and what is behind them, an empty array and an unknown tagged field of that size.

    The tagged fields behind the addresses stay, before the new one. A list too large to be held (more than HOLD, so
    that `end` is not its end) takes them along into the new field. False if the bytes aren't a list of addresses at
    all: then they are hidden likewise.
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
    count, pos = compact_array(buf, pos, end)
    for _ in range(count):
        _, pos = compact_string(buf, skip(pos, 4, end), end)  # node id, host
        _, pos = compact_string(buf, skip(pos, 4, end), end)  # port, rack
        pos = skip_tags(buf, pos, end)
    fields, after = tags(buf, pos, end)
    at_end(after, end)
    _, first = uvarint(buf, pos, end)
    highest = max((tag for tag, _, _ in fields), default=0)
    kept = b"\x01" + put_uvarint(len(fields) + 1) + bytes(buf[first:end])
    return kept, max(HIDDEN_TAG, min(highest + 1, 0xFFFFFFFF))


def _wide_uvarint(value: int, width: int) -> bytes:
    # With as many bytes as there have to be, not as few as there can be: the last byte of the frame must stay the last.
    return bytes((value >> 7 * i & 0x7F) | (0x80 if i < width - 1 else 0) for i in range(width))
