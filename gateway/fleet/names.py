# The names that one gateway remembers, each with a number from 0, and columns of usages by such numbers: arrays, for
# there may be tens of thousands of both, and a Python object is ten times as large.
#
# A name is the gateway's own (it takes of that limit, or did lately), or foreign (somebody else's, remembered while
# there is room). Its number is what travels instead of it. Pure.

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

from gateway.fleet.form import COLUMNS, MAX_TOPICS, Row, Usage, code_of
from policies.fleet import keys as fleet_keys
from policies.fleet.keys import FleetKey

GROUP: Final = "g"
LIMIT: Final = "k"
BROKER: Final = "b"
TOPIC: Final = "t"

# What stands around a group's name in its four keys, in the order of form.COLUMNS.
_HEAD: Final = '["g","'
_TAILS: Final = (
    fleet_keys.group_key("", "publish", "bytes").removeprefix(_HEAD),
    fleet_keys.group_key("", "publish", "msgs").removeprefix(_HEAD),
    fleet_keys.group_key("", "dispatch", "bytes").removeprefix(_HEAD),
    fleet_keys.group_key("", "dispatch", "msgs").removeprefix(_HEAD),
)


def locate(key: FleetKey) -> tuple[str, int]:
    """The name that stands for a limit, and the column: a group's four limits are one name."""
    if key.startswith(_HEAD):
        for column, tail in enumerate(_TAILS):
            if key.endswith(tail):
                return GROUP + key[len(_HEAD) : -len(tail)], column
    return LIMIT + key, 0


def key_of(name: str, column: int) -> FleetKey:
    """The reverse."""
    return f"{_HEAD}{name[1:]}{_TAILS[column]}" if name[0] == GROUP else name[1:]


def rate_name(node_id: int, topic: str | None) -> str:
    return f"{BROKER}{node_id}" if topic is None else f"{TOPIC}{node_id}/{topic}"


def place_of(name: str) -> tuple[int, str | None]:
    """The reverse: broker and topic, None for the broker's total."""
    node_id, slash, topic = name[1:].partition("/")
    return int(node_id), topic if slash else None


def is_name(text: str) -> bool:
    """Whether a peer may call something that."""
    try:
        if text[:1] in (GROUP, LIMIT):
            key = key_of(text, 0)
            fleet_keys.parse(key)
            return locate(key) == (text, 0)
        return text[:1] in (BROKER, TOPIC) and (place_of(text)[1] is not None) == (text[0] == TOPIC)
    except ValueError:
        return False


class Names:
    """`end`: all numbers are below it."""

    def __init__(self) -> None:
        # A dictionary, but of half the size: hashes in their order, and whose they are.
        self._hashes = array("q")
        self._hashed = array("I")
        self._texts: list[str | None] = []
        self._own = bytearray()
        self._free: list[int] = []
        self.own = 0  # how many
        self.foreign = 0

    @property
    def end(self) -> int:
        return len(self._texts)

    def number(self, text: str) -> int | None:
        at = self._find(text)
        return self._hashed[at] if at >= 0 else None

    def text(self, number: int) -> str:
        text = self._texts[number]
        assert text is not None
        return text

    def is_own(self, number: int) -> bool:
        return bool(self._own[number])

    def owned(self, first: int, end: int) -> list[int]:
        return [number for number in range(first, min(end, len(self._own))) if self._own[number]]

    def strangers(self) -> list[int]:
        return [n for n, text in enumerate(self._texts) if text is not None and not self._own[n]]

    def add(self, text: str, *, own: bool) -> int:
        number = self.number(text)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._texts[number] = text
            else:
                number = len(self._texts)
                self._texts.append(text)
                self._own.append(0)
            at = bisect_left(self._hashes, hash(text))
            self._hashes.insert(at, hash(text))
            self._hashed.insert(at, number)
            self.foreign += 1
        if own and not self._own[number]:
            self._own[number] = 1
            self.own += 1
            self.foreign -= 1
        return number

    def disown(self, number: int) -> None:
        self._own[number] = 0
        self.own -= 1
        self.foreign += 1

    def remove(self, number: int) -> None:
        """A foreign one."""
        at = self._find(self.text(number))
        del self._hashes[at], self._hashed[at]
        self._texts[number] = None
        self._free.append(number)
        self.foreign -= 1

    def _find(self, text: str) -> int:
        """Where in the order of hashes; -1: nowhere."""
        sought = hash(text)
        at = bisect_left(self._hashes, sought)
        while at < len(self._hashes) and self._hashes[at] == sought:
            if self._texts[self._hashed[at]] == text:
                return at
            at += 1
        return -1


class Rows:
    """Usages by number. Those never put are NOTHING."""

    def __init__(self) -> None:
        self._rates = array("Q")
        self._hungry = bytearray()
        self._topics = array("H")
        self._weights = array("Q")

    def __len__(self) -> int:
        return len(self._rates)

    def grow(self, size: int) -> None:
        missing = size - len(self._rates)
        if missing > 0:
            self._rates.frombytes(bytes(8 * missing))
            self._hungry.extend(bytes(missing))
            self._topics.frombytes(bytes(2 * missing))
            self._weights.frombytes(bytes(8 * missing))

    def __getitem__(self, at: int) -> Row:
        return Row(self._rates[at], self._hungry[at], self._topics[at], self._weights[at])

    def __setitem__(self, at: int, row: Row) -> None:
        self._rates[at], self._hungry[at], self._topics[at], self._weights[at] = row

    def codes(self, at: int, column: int) -> tuple[int, int, int]:
        """Of one column: rate, hungry, weight."""
        shift = 16 * column
        return self._rates[at] >> shift & 0xFFFF, self._hungry[at] >> column & 1, self._weights[at] >> shift & 0xFFFF

    def is_same(self, at: int, other: Rows) -> bool:
        """Whether the other one has the same there."""
        return (
            self._rates[at] == other._rates[at]
            and self._topics[at] == other._topics[at]
            and self._hungry[at] == other._hungry[at]
            and self._weights[at] == other._weights[at]
        )

    def is_active(self, at: int) -> bool:
        return bool(self._rates[at] or self._hungry[at])

    def active(self) -> list[int]:
        return [n for n, (rates, hungry) in enumerate(zip(self._rates, self._hungry, strict=True)) if rates or hungry]


class Noted(Rows):
    """The same, where one column is put at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._topics_by_column = array("Q")

    def grow(self, size: int) -> None:
        super().grow(size)
        self._topics_by_column.frombytes(bytes(8 * (len(self) - len(self._topics_by_column))))

    def put(self, at: int, column: int, one: Usage) -> None:
        rate, hungry, weight = code_of(one)
        shift = 16 * column
        mask = ~(0xFFFF << shift)
        self._rates[at] = self._rates[at] & mask | rate << shift
        self._weights[at] = self._weights[at] & mask | weight << shift
        self._hungry[at] = self._hungry[at] & ~(1 << column) | hungry << column
        topics = min(one.topics, MAX_TOPICS) if rate or hungry else 0
        if topics != self._topics[at] or topics != self._topics_by_column[at] >> shift & 0xFFFF:
            by_column = self._topics_by_column[at] = self._topics_by_column[at] & mask | topics << shift
            self._topics[at] = max([by_column >> 16 * other & 0xFFFF for other in range(len(COLUMNS))])
