# The bytes of what gateways say to each other: version, compression, columns of numbers, and the scales that make two
# bytes of a rate. What is said is reports.py's; resource_usage.proto describes every field.
#
# Pure: no I/O, no clock. Whatever comes in, only `Malformed` and `UnknownVersion` come out.

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from google.protobuf.message import DecodeError

from gateway.fleet.resource_usage_pb2 import Column, GroupUsage, LimitUsage, Names, ResourceUsage
from policies.fleet.shares import IDLE, Use

VERSION: Final = 1
_PLAIN: Final = 0
_DEFLATED: Final = 1
_LEVEL: Final = 6  # 0.9 ms for a report of 5,000 names, 71 % of its size; 9 takes 1.4 ms and saves 0.2 % more
MAX_BYTES: Final = 16 * 2**20  # of one message, unpacked; our own end far below (reports.py)
MAX_IDS: Final = 2**24
MAX_NAME: Final = 4096
MAX_PROCESSES: Final = 10_000
MAX_TOPICS: Final = 2**16 - 1

# A column of a group: its position in a Row is that in COLUMNS.
COLUMNS: Final = ("published_bytes", "published_msg", "dispatched_bytes", "dispatched_msg")

_STEP: Final = math.log(1.005)  # half of it is what a rate may be off: 0.25 %
_LOWEST_RATE: Final = 0.001
_LOWEST_WEIGHT: Final = 1e-6
_EXACT: Final = 255
MAX_CODE: Final = 2**14 - 1  # two bytes of a varint; as a rate 3e32


class Malformed(Exception):
    """No message of ours, or one that contradicts itself."""


class UnknownVersion(Exception):
    """A form of another release."""


class Row(NamedTuple):
    """One name's usage as it travels. `rates`, `weights`: four codes of 16 bits each, COLUMNS[0] lowest; a weight of 0
    means 1. `hungry`: a bit per column.
    """

    rates: int
    hungry: int = 0
    topics: int = 0
    weights: int = 0


class Usage(Protocol):
    """What is taken of one limit: policies.fleet.shares.Use, and what has the same."""

    @property
    def rate(self) -> float: ...
    @property
    def hungry(self) -> bool: ...
    @property
    def weight(self) -> float: ...
    @property
    def topics(self) -> int: ...


NOTHING: Final = Row(0)


def pack(message: ResourceUsage) -> bytes:
    plain = message.SerializeToString()
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    deflated = deflate.compress(plain) + deflate.flush()
    if len(deflated) < len(plain):
        return bytes((VERSION, _DEFLATED)) + deflated
    return bytes((VERSION, _PLAIN)) + plain


def unpack(data: bytes) -> ResourceUsage:
    """
    Raises:
        UnknownVersion, Malformed
    """
    if len(data) < 2:
        raise Malformed("too short")
    if data[0] != VERSION:
        raise UnknownVersion(str(data[0]))
    if data[1] not in (_PLAIN, _DEFLATED):
        raise Malformed(f"packed in way {data[1]}")
    body = data[2:]
    if data[1] == _DEFLATED:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            body = inflate.decompress(body, MAX_BYTES)
        except zlib.error as error:
            raise Malformed(str(error)) from error
        if not inflate.eof or inflate.unused_data:
            raise Malformed("not deflated as a whole")
    try:
        message = ResourceUsage.FromString(body)
    except DecodeError as error:
        raise Malformed(str(error)) from error
    if len(message.boot) != 8 or not message.broker or message.ids > MAX_IDS or message.workers > MAX_PROCESSES:
        raise Malformed("no header")
    for span in (message.complete, message.unchanged):
        if not span.first <= span.end <= message.ids:
            raise Malformed("no range")
    return message


# --- scales -----------------------------------------------------------------------------------------------------------


def rate_code(rate: float) -> int:
    """0 for what is no rate; the smallest and the largest for what is beyond them."""
    if not rate > 0.0:
        return 0
    return min(MAX_CODE, max(1, round(math.log(min(rate, 1e300) / _LOWEST_RATE) / _STEP) + 1))


def rate_of(code: int) -> float:
    return _LOWEST_RATE * math.exp((code - 1) * _STEP) if code else 0.0


def weight_code(weight: float) -> int:
    if not weight > 0.0:
        return 0
    if weight <= _EXACT and weight == int(weight):
        return int(weight)
    return min(MAX_CODE, max(0, round(math.log(min(weight, 1e300) / _LOWEST_WEIGHT) / _STEP)) + _EXACT + 1)


def weight_of(code: int) -> float:
    return float(code) if code <= _EXACT else _LOWEST_WEIGHT * math.exp((code - _EXACT - 1) * _STEP)


# --- rows -------------------------------------------------------------------------------------------------------------


def code_of(one: Usage) -> tuple[int, int, int]:
    """Of one usage: rate, hungry, weight. The reverse of `use_of`."""
    if is_idle(one):
        return 0, 0, 0
    return rate_code(one.rate), int(one.hungry), 0 if one.weight == 1.0 else max(1, weight_code(one.weight))


def codes_of(row: Row, column: int) -> tuple[int, int, int]:
    """The same of one column."""
    shift = 16 * column
    return row.rates >> shift & 0xFFFF, row.hungry >> column & 1, row.weights >> shift & 0xFFFF


def use_of(row: Row, column: int) -> Use:
    rate, hungry, weight = codes_of(row, column)
    if not rate and not hungry:
        return IDLE
    return Use(rate_of(rate), bool(hungry), weight_of(weight) if weight else 1.0, row.topics)


def is_idle(one: Usage) -> bool:
    return not one.hungry and not one.rate > 0.0


def put_ids(ids: Iterable[int]) -> list[int]:
    """Ascending ids as they travel."""
    deltas: list[int] = []
    before = 0
    for one in ids:
        deltas.append(one - before)
        before = one
    return deltas


def take_ids(deltas: Iterable[int], end: int) -> list[int]:
    """
    Raises:
        Malformed: they don't ascend, or one isn't below `end`.
    """
    steps = list(deltas)
    if 0 in steps[1:]:
        raise Malformed("an id twice")
    ids = list(accumulate(steps))
    if ids and ids[-1] >= end:
        raise Malformed("an id beyond the last")
    return ids


def put_table(into: GroupUsage | LimitUsage, ids: Sequence[int], rows: Sequence[Row]) -> None:
    into.id.extend(put_ids(ids))
    into.topics.extend(_unless_0([row.topics for row in rows]))
    into.hungry.extend(_unless_0([row.hungry for row in rows]))
    for column, target in enumerate(columns_of(into)):
        shift = 16 * column
        # A column that is only touched would travel as an empty one.
        if any(codes := [row.rates >> shift & 0xFFFF for row in rows]):
            target.rate.extend(codes)
        if any(codes := [row.weights >> shift & 0xFFFF for row in rows]):
            target.weight.extend(codes)


def columns_of(table: GroupUsage | LimitUsage) -> list[Column]:
    if isinstance(table, LimitUsage):
        return [table.use]
    return [getattr(table, name) for name in COLUMNS]


class Table:
    """Usages of one message: ids, and columns of theirs.

    Raises:
        Malformed: ids that don't ascend, columns of different length, a code that there isn't.
    """

    def __init__(
        self,
        kinds: str,
        deltas: Iterable[int],
        end: int,
        columns: Sequence[Column],
        topics: Iterable[int] = (),
        hungry: Iterable[int] = (),
    ) -> None:
        self.kinds = kinds  # first letters of names that belong in here
        self.ids = take_ids(deltas, end)
        count = len(self.ids)
        self._rates = [_whole(column.rate, count) for column in columns]
        self._weights = [_whole(column.weight, count) for column in columns]
        self._topics = _whole(topics, count, 2**32)
        self._hungry = _whole(hungry, count, 1 << len(columns))

    def rows(self, at: Iterable[int]) -> list[Row]:
        """Those at these positions."""
        return [
            Row(
                sum(codes[i] << 16 * n for n, codes in enumerate(self._rates)),
                self._hungry[i],
                min(self._topics[i], MAX_TOPICS),
                sum(codes[i] << 16 * n for n, codes in enumerate(self._weights)),
            )
            for i in at
        ]


def tables_of(message: ResourceUsage) -> list[Table]:
    """Those that hold anything.

    Raises:
        Malformed
    """
    found = []
    for kinds, table in (("g", message.groups), ("k", message.limits)):
        if table.id:
            found.append(Table(kinds, table.id, message.ids, columns_of(table), table.topics, table.hungry))
    if message.rates.id:
        found.append(Table("bt", message.rates.id, message.ids, [Column(rate=message.rates.rate)]))
    return found


def names_of(names: Names, end: int) -> list[tuple[int, str]]:
    """Names by id.

    Raises:
        Malformed
    """
    ids, texts = take_ids(names.id, end), list(names.name)
    if len(ids) != len(texts) or any(len(text) > MAX_NAME for text in texts):
        raise Malformed("names that don't fit")
    return list(zip(ids, texts, strict=True))


def _unless_0(column: list[int]) -> list[int]:
    return column if any(column) else []


def _whole(column: Iterable[int], count: int, end: int = MAX_CODE + 1) -> list[int]:
    found = list(column)
    if not found:
        return [0] * count
    if len(found) != count or max(found) >= end:
        raise Malformed("a column that doesn't fit")
    return found
