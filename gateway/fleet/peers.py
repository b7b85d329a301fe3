# What a gateway heard of its peers, and the only place where it is kept: policies/fleet/shares.py reads it here. Pure:
# no I/O, no clock; `now` is seconds on a monotonic clock, times of publishing are the cluster's (LogAppendTime, ms).
#
# A message counts by the time when the cluster took it, against the cluster's clock, which is learned from our own
# messages as they come back: clocks of gateways don't matter. While ours don't come back nobody is forgotten. Whatever
# a message says, nothing is raised: what can't be is dropped and counted. Ids are those of one boot of a peer; they are
# followed for names that concern us only. How that can be enough: reports.py.

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.fleet.form import (
    COLUMNS,
    NOTHING,
    Malformed,
    Row,
    Table,
    UnknownVersion,
    codes_of,
    names_of,
    rate_of,
    tables_of,
    unpack,
    use_of,
)
from gateway.fleet.names import BROKER, GROUP, LIMIT, TOPIC, Rows, is_name, key_of, locate, place_of
from gateway.fleet.reports import Reporter, Wants
from gateway.fleet.resource_usage_pb2 import Range, ResourceUsage
from policies.fleet.keys import FleetKey
from policies.fleet.shares import IDLE, Use

SILENT_CYCLES: Final = 2.0  # without a message: the peer is gone
MISSED_CYCLES: Final = 1.25
FORGOTTEN_CYCLES: Final = 20.0  # and so are its ids: who was only late goes on where he was
STALE_CYCLES: Final = 3.0  # old messages: what a peer did then says nothing about now
ASK_AGAIN_CYCLES: Final = 3
CLASH_CYCLES: Final = 10.0  # so long a name that two have is complained about after it was seen
JOINING_CYCLES: Final = 3  # from our first message on
ROOM: Final = 4096  # names altogether up to which foreign ones are remembered
ROOM_ENTRIES: Final = 20_000
MAX_RATES: Final = 100_000  # names of brokers and topics
MAX_PEERS: Final = 1000
MIN_CYCLE_S: Final = 0.05
MAX_CYCLE_S: Final = 3600.0

DROPPED: Final = ("stale", "malformed", "version", "unknown-ids", "late", "too-many")


class Heard(NamedTuple):
    """What one message said. `peer` names one boot of a gateway.

    `keys`: limits of which it takes something else than before; what that is, `Peers.of` says. `left`: it says goodbye.
    `rates`: whether `Peers.rates` changed.
    """

    peer: str
    gateway: str
    keys: Set[FleetKey] = frozenset()
    left: bool = False
    rates: bool = False


class Clock:
    """The cluster's clock, as far as our own messages tell it when they come back."""

    def __init__(self) -> None:
        self.began: float | None = None  # when the first one came back
        self.heard_at: float | None = None  # and the last one
        self.round_trip_s = math.nan  # of that one
        self._ahead_ms: float | None = None

    def learn(self, publish_ms: int | None, sent: float, now: float, at_most: float) -> None:
        """One came back, published then. If it took longer than `at_most`, we have read it late: it tells no time."""
        self.heard_at = now
        self.round_trip_s = now - sent
        if self.began is None:
            self.began = now
        if publish_ms is None:
            self._ahead_ms = None
        elif self.round_trip_s <= at_most or self._ahead_ms is None:
            self._ahead_ms = publish_ms - now * 1000

    def age(self, publish_ms: int | None, now: float) -> float | None:
        """How many seconds ago that was, or a little more; None: not known."""
        if publish_ms is None or self._ahead_ms is None:
            return None
        return now + (self._ahead_ms - publish_ms) / 1000


@dataclass(slots=True, eq=False)
class _Peer:
    boot: bytes
    gateway: str
    label: str
    index: int
    since: float
    heard: float
    workers: int = 1
    cycle_s: float = 1.0
    ends: int = 0  # of its ids
    sequence: int = -1
    named: int = 0
    knows: bool = True  # all its names were heard, as far as they concern us
    whole: bool = True  # likewise, usages
    whole_to: int = 0  # while that isn't so: said anew up to this id
    asked: float = -math.inf
    living: bool = False
    ids: array[int] = field(default_factory=lambda: array("I"))  # of what concerns us, ascending …
    entries: array[int] = field(default_factory=lambda: array("I"))  # … and where it is


class Peers:
    """What others said.

    Attributes:
        counts: messages dropped, by reason (DROPPED).
        asks: somebody has to be asked (`wants`), for the first time.
        living: gateways beside this one.
        workers: of those, together.
    """

    def __init__(self, reporter: Reporter, *, room: int = ROOM, room_entries: int = ROOM_ENTRIES) -> None:
        self.clock = Clock()
        self.counts = dict.fromkeys(DROPPED, 0)
        self.asks = False
        self.living = self.workers = 0
        self._reporter = reporter
        self._names = reporter.names
        self._room = room
        self._room_entries = room_entries
        self._peers: dict[bytes, _Peer] = {}
        self._by_index: list[_Peer | None] = []
        self._rows = Rows()  # by entry; 0 is none
        self._rows.grow(1)
        self._name_of = array("I", [0])  # by entry, as are these two
        self._peer_of = array("H", [0])
        self._next = array("I", [0])  # another peer's entry of the same name
        self._free = 0
        self._heads = array("I")  # by name: its first entry
        self._used = 0
        self._said: deque[tuple[int, float]] = deque(maxlen=64)  # the sequence behind our messages, and when they went
        self._excused = 0.0  # nobody could be heard of before this
        self._clashes: dict[str, float] = {}  # gateways of the same name, and when that was seen last

    # --- what is known ---

    @property
    def gateways(self) -> dict[str, str]:
        """The living ones' names, by what `Heard.peer` calls them."""
        return {peer.label: peer.gateway for peer in self._peers.values() if peer.living}

    @property
    def problem(self) -> str:
        """Gateways of the same name, one line; "" for none."""
        return "; ".join(
            f"two gateways call themselves {name!r} and run at the same time: each counts by itself; give them names"
            " of their own (`gateway`)"
            for name in sorted(self._clashes)
        )

    def of(self, key: FleetKey) -> tuple[list[Use], list[int]]:
        """What living peers take of a limit, and how many workers each of those has."""
        name, column = locate(key)
        uses: list[Use] = []
        workers: list[int] = []
        for peer, entry in self._entries(self._names.number(name)):
            one = use_of(self._rows[entry], column)
            if one is not IDLE:
                uses.append(one)
                workers.append(peer.workers)
        return uses, workers

    def told(self, key: FleetKey) -> Use:
        """What those count this gateway with."""
        return self._reporter.told(key)

    def rates(self) -> dict[int, tuple[float, dict[str, float]]]:
        """By broker: what all living peers together bring to it, and to topics there, bytes per second."""
        totals: dict[int, float] = {}
        topics: dict[int, dict[str, float]] = {}
        for number in range(len(self._heads)):
            if not self._heads[number] or (name := self._names.text(number))[0] not in (BROKER, TOPIC):
                continue
            rate = sum(rate_of(self._rows[entry].rates) for _, entry in self._entries(number))
            if rate:
                node_id, topic = place_of(name)
                if topic is None:
                    totals[node_id] = rate
                else:
                    topics.setdefault(node_id, {})[topic] = rate
        return {
            node_id: (totals.get(node_id, 0.0), topics.get(node_id, {})) for node_id in totals.keys() | topics.keys()
        }

    def wants(self, now: float) -> Wants:
        """Whom to ask for what, in our next message."""
        self.asks = False
        self._tidy()
        everything: list[bytes] = []
        usages: list[bytes] = []
        again = ASK_AGAIN_CYCLES * self._reporter.cycle_s
        for peer in self._peers.values():
            if peer.living and not (peer.knows and peer.whole) and now - peer.asked >= again:
                peer.asked = now
                (usages if peer.knows else everything).append(peer.boot)
        return Wants(tuple(everything), tuple(usages))

    @property
    def round_trip_s(self) -> float:
        """Of our last message; NaN: none came back."""
        return self.clock.round_trip_s

    def is_heard(self, now: float) -> bool:
        """Whether our own messages come back: only then somebody's silence means anything."""
        return self.clock.heard_at is not None and now - self.clock.heard_at <= SILENT_CYCLES * self._reporter.cycle_s

    # --- what comes ---

    def said(self, now: float) -> None:
        """Everything reported so far is on its way since now."""
        self._said.append((self._reporter.sequence, now))

    def take(self, data: bytes, publish_ms: int | None, now: float) -> Heard | None:
        """One message. `publish_ms`: when the cluster took it; None: that isn't known.

        Returns:
            What it said; None for our own, and for one that was dropped (`counts`).
        """
        try:
            message = unpack(data)
            content = _Content(
                names_of(message.names, message.ids), names_of(message.names_again, message.ids), tables_of(message)
            )
        except UnknownVersion:
            self.counts["version"] += 1
            return None
        except Malformed:
            self.counts["malformed"] += 1
            return None
        if message.boot == self._reporter.boot:
            sent = next((at for end, at in self._said if message.sequence < end), now)
            self.clock.learn(publish_ms, sent, now, self._reporter.cycle_s)
            return None
        cycle_s = min(MAX_CYCLE_S, max(MIN_CYCLE_S, message.cycle_ms / 1000))
        age = self.clock.age(publish_ms, now)
        if age is not None and age > STALE_CYCLES * max(cycle_s, self._reporter.cycle_s):
            self.counts["stale"] += 1
            return None
        peer = self._peers.get(message.boot)
        if peer is None:
            if len(self._peers) >= MAX_PEERS:
                self.counts["too-many"] += 1
                return None
            peer = self._meet(message, now)
        elif message.sequence <= peer.sequence:
            self.counts["late"] += 1
            return None
        else:
            self._look_for_clash(peer, now)
        returns = not peer.living
        peer.heard, peer.cycle_s = now, cycle_s
        self._count(peer, max(1, message.workers))
        if self._reporter.boot in message.want:
            self._reporter.ask(names=True)
        elif self._reporter.boot in message.want_usage:
            self._reporter.ask(names=False)
        if message.leaving:
            self._forget(peer)
            return Heard(peer.label, peer.gateway, left=True, rates=True)
        told = _Update()
        self._follow(peer, message, content, told)
        self.asks = self.asks or (not (peer.knows and peer.whole) and peer.asked == -math.inf)
        if returns:
            told.rates = True
            for entry in peer.entries:
                told.note(self._text(entry), NOTHING, self._rows[entry])
        return Heard(peer.label, peer.gateway, told.keys, rates=told.rates)

    def excuse(self, now: float) -> None:
        """Nobody could be heard of until now."""
        self._excused = now

    def expire(self, now: float) -> list[str]:
        """Take out who was silent for too long; returns those peers. None while our own messages don't come back."""
        if self.clock.heard_at is None:
            return []
        gone = []
        for peer in list(self._peers.values()):
            cycle_s = max(peer.cycle_s, self._reporter.cycle_s)
            since = max(peer.heard, self._excused)
            # When the topic fails, who spoke before us is silent for longer than we are: he must have missed his turn
            # while ours still came through.
            if now - since > SILENT_CYCLES * cycle_s and self.clock.heard_at - since > MISSED_CYCLES * cycle_s:
                if peer.living:
                    self._count(peer, 0)
                    gone.append(peer.label)
                if now - since > FORGOTTEN_CYCLES * cycle_s:
                    self._forget(peer)
        for name, seen in list(self._clashes.items()):
            if now - seen > CLASH_CYCLES * self._reporter.cycle_s:
                del self._clashes[name]
        return gone

    def _meet(self, message: ResourceUsage, now: float) -> _Peer:
        """Somebody new. Where there is room for everything, he needs all of our names, if he is at his beginning, and
        we need his, if he isn't. Where there is none, who uses the same as he who begins answers when he names it; so
        we need somebody's names only if we have said ours long before.
        """
        if None in self._by_index:
            index = self._by_index.index(None)
        else:
            index = len(self._by_index)
            self._by_index.append(None)
        names = message.ids + sum(known.ends for known in self._peers.values()) + self._names.own
        label = f"{message.broker}#{message.boot.hex()}"
        peer = _Peer(message.boot, message.broker, label, index, now, now)
        if message.sequence > 0:
            began = self.clock.began
            joining = began is None or now - began <= JOINING_CYCLES * self._reporter.cycle_s
            if joining and names > self._room:
                peer.named, peer.sequence = message.named - len(message.names.id), message.sequence - 1
            else:
                peer.knows = peer.whole = False
        elif names <= self._room:
            self._reporter.ask(names=True)
        self._by_index[index] = self._peers[message.boot] = peer
        return peer

    def _look_for_clash(self, peer: _Peer, now: float) -> None:
        """Somebody who is known speaks, after another one of his name has begun: that is no restart."""
        began = self.clock.began
        if peer.gateway == self._reporter.gateway and began is not None and began < now:
            self._clashes[peer.gateway] = now
        for other in self._peers.values():
            if other.gateway == peer.gateway and other is not peer and other.living and other.since >= peer.since:
                self._clashes[peer.gateway] = now

    def _follow(self, peer: _Peer, message: ResourceUsage, content: _Content, told: _Update) -> None:
        """Take over what concerns us."""
        peer.ends = message.ids
        if message.sequence != peer.sequence + 1:
            peer.whole, peer.whole_to = False, 0
        peer.sequence = message.sequence
        if peer.knows and message.named != peer.named + len(content.names):
            peer.knows, peer.whole, peer.whole_to = False, False, 0
        goes_on = message.HasField("complete") and message.complete.first <= peer.whole_to
        if not peer.knows and not (goes_on and message.complete_names):
            self.counts["unknown-ids"] += bool(content.tables)
            return
        if message.complete_names:
            named = {number for number, _ in content.names}
            for number in self._ids_in(peer, message.complete, named):
                self._cut(peer, bisect_left(peer.ids, number), told)
        for asks, names in ((True, content.names), (False, content.again)):
            for number, text in names:
                self._map(peer, number, text, told, asks=asks)
        listed: set[int] = set()
        for table in content.tables:
            listed.update(table.ids)
            self._put(peer, table, told)
        if message.HasField("complete"):
            for number in self._ids_in(peer, message.complete, listed):
                self._set(peer.entries[bisect_left(peer.ids, number)], NOTHING, told)
        if goes_on and not peer.whole:
            peer.whole_to = message.complete.end
            if peer.whole_to >= message.ids:
                peer.whole = peer.knows = True
                peer.asked = -math.inf
        peer.named = message.named

    def _put(self, peer: _Peer, table: Table, told: _Update) -> None:
        ids, known = table.ids, peer.ids
        found: list[int] = []  # positions in the message …
        entries: list[int] = []  # … and here; whichever side is shorter is gone through
        if len(known) < len(ids):
            for at, number in enumerate(known):
                place = bisect_left(ids, number)
                if place < len(ids) and ids[place] == number:
                    found.append(place)
                    entries.append(peer.entries[at])
        else:
            for place, number in enumerate(ids):
                at = bisect_left(known, number)
                if at < len(known) and known[at] == number:
                    found.append(place)
                    entries.append(peer.entries[at])
        for entry, row in zip(entries, table.rows(found), strict=True):
            if self._text(entry)[0] in table.kinds:
                self._set(entry, row, told)

    def _ids_in(self, peer: _Peer, span: Range, but: set[int]) -> list[int]:
        known = peer.ids[bisect_left(peer.ids, span.first) : bisect_left(peer.ids, span.end)]
        return [number for number in known if number not in but]

    # --- entries ---

    def _text(self, entry: int) -> str:
        return self._names.text(self._name_of[entry])

    def _entries(self, number: int | None) -> Iterator[tuple[_Peer, int]]:
        """Of living peers, what they use of that name."""
        entry = self._heads[number] if number is not None and number < len(self._heads) else 0
        while entry:
            peer = self._by_index[self._peer_of[entry]]
            if peer is not None and peer.living and self._rows.is_active(entry):
                yield peer, entry
            entry = self._next[entry]

    def _set(self, entry: int, row: Row, told: _Update) -> None:
        told.note(self._text(entry), self._rows[entry], row)
        self._rows[entry] = row

    def _map(self, peer: _Peer, number: int, text: str, told: _Update, *, asks: bool) -> None:
        """The peer calls `text` that number."""
        at = bisect_left(peer.ids, number)
        if at < len(peer.ids) and peer.ids[at] == number:
            if self._text(peer.entries[at]) == text:
                return
            self._cut(peer, at, told)
        name = self._wanted(text)
        if name is None:
            return
        self._heads.frombytes(bytes(4 * (self._names.end - len(self._heads))))
        if self._free:
            entry, self._free = self._free, self._next[self._free]
        else:
            entry = len(self._rows)
            self._rows.grow(entry + 1)
            for column in (self._name_of, self._peer_of, self._next):
                column.append(0)
        self._name_of[entry], self._peer_of[entry] = name, peer.index
        self._next[entry], self._heads[name] = self._heads[name], entry
        peer.ids.insert(at, number)
        peer.entries.insert(at, entry)
        self._used += 1
        if asks:
            self._reporter.ask_name(name)

    def _wanted(self, text: str) -> int | None:
        """The number of a name that concerns us, or that there is room for."""
        if not text or (number := self._names.number(text)) is not None:
            return number if text else None
        names = self._names.own + self._names.foreign
        if text[0] in (GROUP, LIMIT):
            has_room = names < self._room and self._used < self._room_entries
        else:
            has_room = names < MAX_RATES
        return self._names.add(text, own=False) if has_room and is_name(text) else None

    def _cut(self, peer: _Peer, at: int, told: _Update | None = None) -> None:
        """Take out one entry."""
        entry = peer.entries.pop(at)
        del peer.ids[at]
        if told is not None:
            self._set(entry, NOTHING, told)
        self._rows[entry] = NOTHING
        name = self._name_of[entry]
        if self._heads[name] == entry:
            self._heads[name] = self._next[entry]
        else:
            before = self._heads[name]
            while self._next[before] != entry:
                before = self._next[before]
            self._next[before] = self._next[entry]
        self._next[entry], self._free = self._free, entry
        self._used -= 1

    def _count(self, peer: _Peer, workers: int) -> None:
        """It lives and has so many; 0: it doesn't."""
        before = peer.workers if peer.living else 0
        self.workers += workers - before
        self.living += (workers > 0) - (before > 0)
        peer.living = workers > 0
        peer.workers = workers or peer.workers

    def _forget(self, peer: _Peer) -> None:
        self._count(peer, 0)
        while peer.entries:
            self._cut(peer, len(peer.entries) - 1)
        self._by_index[peer.index] = None
        del self._peers[peer.boot]

    def _tidy(self) -> None:
        """Foreign names go when there is no room for them any more, or nobody uses them."""
        if not self._names.foreign:
            return
        full = self._names.own + self._names.foreign > self._room
        for number in self._names.strangers():
            head = self._heads[number] if number < len(self._heads) else 0
            while head and full and self._names.text(number)[0] in (GROUP, LIMIT):
                peer = self._by_index[self._peer_of[head]]
                assert peer is not None
                self._cut(peer, peer.entries.index(head))
                head = self._heads[number]
            if not head:
                self._names.remove(number)


class _Content(NamedTuple):
    """Of one message, found to be well-formed."""

    names: list[tuple[int, str]]
    again: list[tuple[int, str]]
    tables: list[Table]


class _Update:
    """What one message changed."""

    def __init__(self) -> None:
        self.keys: set[FleetKey] = set()
        self.rates = False

    def note(self, name: str, before: Row, now: Row) -> None:
        """Usages of a name."""
        if before == now:
            return
        if name[0] in (BROKER, TOPIC):
            self.rates = True
            return
        for column in range(len(COLUMNS) if name[0] == GROUP else 1):
            if codes_of(before, column) != codes_of(now, column):
                self.keys.add(key_of(name, column))
