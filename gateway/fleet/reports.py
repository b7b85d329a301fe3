# What a gateway says to its peers. Pure: no I/O, no clock; a cycle is one call of `report`. What is used is noted where
# it changes, and a report looks only at what is new and at whose turn it is: there may be tens of thousands of usages.
#
# Something is said every cycle, also when there is nothing to say: that is how others know that we live. A usage is in
# it when it began, ended, turned hungry or content, changed by 10 % (or 2 % of its limit, where that is less), and in
# turn every N cycles: with its numbers, or, where they are within 1 % of what was told, in a range of ids that are "as
# told". A name is said once. Messages are numbered, so that who misses one notices with the next one, and asks for all
# usages, and, if there were names in it, for those too.
#
# Who begins to use something names it, and who uses the same answers at once with what it takes of it. So a gateway has
# to remember only what it uses itself; foreign names are remembered while there is room, so that in a fleet of ordinary
# size a gateway knows what others take of a limit before it takes of it. Knows no share: that is
# policies/fleet/shares.py. What is heard: peers.py.

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from gateway.fleet.form import (
    COLUMNS,
    MAX_NAME,
    NOTHING,
    Row,
    Usage,
    codes_of,
    is_idle,
    pack,
    put_ids,
    put_table,
    rate_code,
    rate_of,
    use_of,
)
from gateway.fleet.names import BROKER, GROUP, LIMIT, Names, Noted, Rows, key_of, locate, rate_name
from gateway.fleet.resource_usage_pb2 import Names as NamesMessage
from gateway.fleet.resource_usage_pb2 import Range, ResourceUsage
from policies.fleet.keys import FleetKey
from policies.fleet.shares import IDLE, Use

EVERY: Final = 5  # cycles: PIP-82's N
CHANGED_UP: Final = 19  # steps of the scale: 9.9 %, so that rounding hides no change of 10 %
CHANGED_DOWN: Final = 21
CHANGED_OF_LIMIT: Final = 0.02  # shares are exact to 3 %
DRIFTED: Final = 2  # steps, 1 %: then the turn that comes every N cycles tells the numbers again
IDLE_S: Final = 600.0  # so long a name that isn't used stays known
ANSWER_CYCLES: Final = 1  # not oftener are all names said
MAX_ENTRIES: Final = 500  # of one message …
MAX_NAME_BYTES: Final = 32 * 1024  # … so that it takes a few milliseconds to make and to take in; Kafka allows 1 MB
STEP: Final = 500  # rates noted at once
_SHIFTS: Final = tuple(16 * column for column in range(len(COLUMNS)))


class Rate(NamedTuple):
    """Bytes per second to a broker (`topic` None), or to a topic there: V1's one-minute EWMA, unadjusted."""

    node_id: int
    topic: str | None
    rate: float


class Wants(NamedTuple):
    """Boots of gateways: who shall say all names and usages, and who all usages."""

    everything: tuple[bytes, ...] = ()
    usages: tuple[bytes, ...] = ()


NOBODY: Final = Wants()


class Reporter:
    """Our own side.

    Args:
        boot: 8 bytes, others at every start.
        cycle_s: how often `report` is called.
        every: cycles in which each usage is reported at least once (PIP-82's N).
        limit_of: a limit by its key, per second, where there is one.

    Attributes:
        sequence: of the next message.
    """

    def __init__(
        self,
        gateway: str,
        boot: bytes,
        *,
        cycle_s: float = 1.0,
        every: int = EVERY,
        limit_of: Callable[[FleetKey], float | None] | None = None,
    ) -> None:
        self.gateway = gateway
        self.boot = boot
        self.cycle_s = cycle_s
        self.names = Names()
        self._every = max(1, every)
        self._limit_of = limit_of
        self._workers = 1
        self._cycle = 0
        self.sequence = 0
        self._named = 0
        self._now = Noted()
        self._told = Rows()
        self._news: set[int] = set()  # what has to be told at once
        self._said: list[FleetKey] = []  # what was
        self._rated: set[int] = set()  # names of V1's rates
        self._idle_since = array("I")  # the cycle, by number
        self._known = bytearray()  # whether peers know the name, by number
        self._fresh: set[int] = set()  # to be named, or taken back where it isn't ours any more
        self._again: set[int] = set()  # somebody else has just named these
        self._unsure: set[int] = set()  # names in messages that may not have arrived …
        self._unsure_named = 0  # … and how many entries that are
        self._all_usages = False
        self._all_names = False
        self._all_named_at = -ANSWER_CYCLES

    @property
    def has_answers(self) -> bool:
        """Whether somebody waits to hear of something that we use."""
        return bool(self._again)

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits to hear of everything."""
        return self._all_usages

    def note(self, uses: Mapping[FleetKey, Usage]) -> None:
        """What is used now of these limits; idle: not any more. Of others nothing has changed."""
        for key, one in uses.items():
            name, column = locate(key)
            if is_idle(one):
                number = self.names.number(name)
                if number is None or not self.names.is_own(number):
                    continue
            elif len(name) > MAX_NAME:  # a client made it up; peers would drop the whole message
                continue
            else:
                number = self._own(name)
            self._now.put(number, column, one)
            self._see(number, column, key)

    def note_rates(self, rates: Iterable[Rate]) -> Iterator[None]:
        """All of V1's rates; those not given have ended. A generator, for there may be many: take all its steps, and
        there is time for something else between them.
        """
        ended, self._rated = self._rated, set()
        for at, rate in enumerate(rates):
            name = rate_name(rate.node_id, rate.topic)
            if len(name) <= MAX_NAME and (code := rate_code(rate.rate)):
                number = self._own(name)
                self._rated.add(number)
                ended.discard(number)
                self._now[number] = Row(code)
                self._see(number, 0)
            if at % STEP == STEP - 1:
                yield
        for number in ended:
            self._now[number] = NOTHING
            self._see(number, 0)

    def report(self, *, workers: int = 1, wants: Wants = NOBODY, is_turn: bool = True) -> Iterator[bytes]:
        """A cycle's messages, in their order. Mostly one. A generator, for it may take some time to make one: take all
        of them, and call nothing but `ask` and `ask_name` meanwhile; or `lost`, which has to be called again then.

        `is_turn`: False between two cycles, where something can't wait.
        """
        self._workers = workers
        first, end = self._turn() if is_turn else (0, 0)
        names = self._all_names and self._cycle - self._all_named_at >= ANSWER_CYCLES
        news, self._news = self._news, set()
        if complete := names or self._all_usages:
            listed = set(self._now.active())
            for number in news - listed:
                self._tell(number)
            if names:
                self._all_named_at = self._cycle
                self._all_names = False
            self._all_usages = False
        else:
            listed = {number for number in news if not self._told.is_same(number, self._now)}
            listed |= {number for number in self._fresh if self._now.is_active(number)}
            listed |= {number for number in self.names.owned(first, end) if self._drifted(number)}
        yield from self._messages(listed, wants, unchanged=(first, end), complete=complete, with_names=names)
        self._forget_idle(first, end)
        self._cycle += is_turn

    def answer(self) -> list[bytes]:
        """What was asked for by naming it, before its turn: as last told."""
        return list(self._messages(set(), NOBODY))

    def leave(self) -> list[bytes]:
        """Goodbye."""
        message = self._header()
        message.leaving = True
        return [pack(message)]

    def lost(self) -> None:
        """What was said since the last `arrived` may not have reached anybody."""
        self._fresh |= self._unsure
        self._named -= self._unsure_named
        self._unsure = set()
        self._unsure_named = 0
        self._all_usages = True

    def arrived(self) -> None:
        """Everything said so far has reached the topic."""
        self._unsure.clear()
        self._unsure_named = 0

    def ask(self, *, names: bool) -> None:
        """A peer wants to hear everything."""
        self._all_usages = True
        self._all_names = self._all_names or names

    def ask_name(self, number: int) -> None:
        """A peer began to use this: it needs to know who else does."""
        if number < len(self._told) and self._told.is_active(number) and self._known[number]:
            self._again.add(number)

    def told(self, key: FleetKey) -> Use:
        """What others count with: a limit's usage as last said."""
        name, column = locate(key)
        number = self.names.number(name)
        return IDLE if number is None or number >= len(self._told) else use_of(self._told[number], column)

    def take_said(self) -> list[FleetKey]:
        """Limits of which something else was said than before, since the last call."""
        said, self._said = self._said, []
        return said

    # --- what is so ---

    def _own(self, name: str) -> int:
        number = self.names.number(name)
        if number is None or not self.names.is_own(number):
            number = self.names.add(name, own=True)
            self._now.grow(self.names.end)
            self._told.grow(self.names.end)
            self._known.extend(bytes(self.names.end - len(self._known)))
            self._idle_since.frombytes(bytes(4 * (self.names.end - len(self._idle_since))))
            self._fresh.add(number)
        self._idle_since[number] = self._cycle
        return number

    def _turn(self) -> tuple[int, int]:
        """Whose turn it is in this cycle: each number once in `every` cycles."""
        size = -(-self.names.end // self._every)
        first = self._cycle % self._every * size
        return min(first, self.names.end), min(first + size, self.names.end)

    def _see(self, number: int, column: int, key: FleetKey | None = None) -> None:
        """Whether a usage that was noted is so much another one that it has to be told at once."""
        before, *heart = self._told.codes(number, column)
        after, *mind = self._now.codes(number, column)
        if (
            heart != mind
            or (not before) != (not after)
            or not -CHANGED_DOWN < after - before < CHANGED_UP
            or (before != after and key is not None and self._is_much(key, rate_of(after) - rate_of(before)))
        ):
            self._news.add(number)

    def _is_much(self, key: FleetKey, change: float) -> bool:
        limit = None if self._limit_of is None else self._limit_of(key)
        return limit is not None and abs(change) > CHANGED_OF_LIMIT * limit

    def _drifted(self, number: int) -> bool:
        if self._told.is_same(number, self._now):
            return False
        told, row = self._told[number], self._now[number]
        return told.topics != row.topics or any(
            abs((told.rates >> shift & 0xFFFF) - (row.rates >> shift & 0xFFFF)) >= DRIFTED for shift in _SHIFTS
        )

    def _tell(self, number: int) -> Row:
        """What is so is said from here on."""
        before, row = self._told[number], self._now[number]
        if before != row:
            self._told[number] = row
            name = self.names.text(number)
            if name[0] in (GROUP, LIMIT):
                for column in range(len(COLUMNS) if name[0] == GROUP else 1):
                    if codes_of(before, column) != codes_of(row, column):
                        self._said.append(key_of(name, column))
        return row

    def _forget_idle(self, first: int, end: int) -> None:
        before = self._cycle - IDLE_S / self.cycle_s
        for number in self.names.owned(first, end):
            if self._now.is_active(number):
                self._idle_since[number] = self._cycle
            elif self._idle_since[number] < before:
                self.names.disown(number)
                self._fresh.add(number)

    # --- messages ---

    def _header(self) -> ResourceUsage:
        message = ResourceUsage(
            broker=self.gateway,
            boot=self.boot,
            sequence=self.sequence,
            workers=self._workers,
            cycle_ms=round(self.cycle_s * 1000),
            ids=self.names.end,
            named=self._named,
        )
        self.sequence += 1
        return message

    def _messages(
        self,
        listed: set[int],
        wants: Wants,
        *,
        unchanged: tuple[int, int] = (0, 0),
        complete: bool = False,
        with_names: bool = False,
    ) -> Iterator[bytes]:
        fresh = self._fresh | set(self.names.owned(0, self.names.end)) if with_names else set(self._fresh)
        again = self._again - fresh
        self._again = set()
        done = 0
        chunks = list(self._chunks(sorted(listed | fresh | again), fresh | again)) or [[]]
        for at, chunk in enumerate(chunks):
            names = [number for number in chunk if number in fresh]
            self._named += len(names)
            self._unsure_named += len(names)
            message = self._header()
            message.want.extend(wants.everything)
            message.want_usage.extend(wants.usages)
            wants = NOBODY
            self._put_names(message.names, names)
            self._put_names(message.names_again, [number for number in chunk if number in again])
            rows = {number: self._tell(number) for number in chunk if number in listed}
            rows |= {n: self._told[n] for n in chunk if n in again and n not in listed and self._told.is_active(n)}
            self._put_rows(message, sorted(rows), rows)
            if complete:
                end = self.names.end if at == len(chunks) - 1 else chunk[-1] + 1
                message.complete.CopyFrom(Range(first=done, end=end))
                message.complete_names = with_names
                done = end
            elif at == 0 and unchanged[1] > unchanged[0]:
                message.unchanged.CopyFrom(Range(first=unchanged[0], end=unchanged[1]))
            for number in names:
                self._known[number] = self.names.is_own(number)
            yield pack(message)
        self._unsure |= self._fresh & fresh
        self._fresh = self._fresh - fresh  # another set: what is emptied keeps its memory

    def _chunks(self, numbers: list[int], named: set[int]) -> Iterator[list[int]]:
        chunk: list[int] = []
        size = 0
        for number in numbers:
            more = len(self._said_name(number)) if number in named else 0
            if chunk and (len(chunk) == MAX_ENTRIES or size + more > MAX_NAME_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append(number)
            size += more
        if chunk:
            yield chunk

    def _said_name(self, number: int) -> str:
        return self.names.text(number) if self.names.is_own(number) else ""

    def _put_names(self, into: NamesMessage, numbers: Sequence[int]) -> None:
        if numbers:
            into.id.extend(put_ids(numbers))
            into.name.extend([self._said_name(number) for number in numbers])

    def _put_rows(self, message: ResourceUsage, numbers: Sequence[int], rows: Mapping[int, Row]) -> None:
        kinds: dict[str, list[int]] = {GROUP: [], LIMIT: [], BROKER: []}
        for number in numbers:
            kinds.get(self.names.text(number)[0], kinds[BROKER]).append(number)
        if found := kinds[GROUP]:
            put_table(message.groups, found, [rows[number] for number in found])
        if found := kinds[LIMIT]:
            put_table(message.limits, found, [rows[number] for number in found])
        if found := kinds[BROKER]:
            message.rates.id.extend(put_ids(found))
            message.rates.rate.extend([rows[number].rates for number in found])
