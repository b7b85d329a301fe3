# The shortcut of one link, for nearly all of its events: bytes are there, they are whole Produce and Fetch requests, or
# answers, that pass as they are (passing.py), or more of a request that has a buffer of its own, or more of an answer
# that streams through, and the other socket takes them at once.
#
# It decides nothing, and keeps nothing but what the link has told it: which terms hold for such requests just now, and
# whether records pass unseen. (How many these are, the answer in progress says, wherever it went on last.) The link
# shuts the shortcut whenever it does anything itself, and is asked again before the next event, so what the shortcut
# knows can't have changed but for what all connections share: whether that is another is looked at each time. Whatever
# else an event brings is the link's, from the first byte on that the shortcut doesn't understand.
#
# This file is compiled where a C compiler is: shortcut_compiled.pxd says what its variables are in C, setup.py how it
# is built. It is plain Python all the same, and runs as such elsewhere; tests hold the two to each other.

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.data import calls, passing
from protocol import layouts

if TYPE_CHECKING:
    from typing import Any, Protocol

    from gateway.data.budget import Large
    from gateway.data.inbound import Inbound, Shared
    from gateway.data.outbound import Outbound
    from gateway.data.passing import Counted, Terms
    from gateway.data.world import World
    from policies.repeats import Rejected
    from protocol.wire import Buffer

    class Handler(Protocol):
        """Who is told of the events of a socket. `link`: whose it is."""

        @property
        def link(self) -> Any: ...
        def handle(self, fd: int, events: int, now: float) -> None: ...

    class Owner(Protocol):
        """The link."""

        def terms(self, now: float) -> Terms | None: ...
        def catch_up(self, seen: Seen) -> None: ...
        def on_client(self, events: int, now: float) -> None: ...
        def on_upstream(self, events: int, now: float) -> None: ...
        def end_client(self, is_eof: bool, now: float) -> None: ...
        def end_upstream(self, is_eof: bool, now: float) -> None: ...
        def look_ahead(self) -> None: ...
        def end_reading(self) -> None: ...
        def let_go(self, large: Large) -> None: ...
        def hold_back(self, large: Large, sent: int) -> None: ...
        def flushed(self) -> None: ...
        def keep(self, pos: int, end: int) -> bool: ...
        def go_on_with_requests(self, start: int, pos: int, end: int, large: Large | None, now: float) -> None: ...
        def go_on_with_answers(self, start: int, pos: int, end: int, now: float) -> None: ...


# Numbers of C where this is compiled, hence not imported by the names that they have elsewhere.
_IN = 0x001  # gateway.data.reactor.IN
_OUT = 0x004  # gateway.data.reactor.OUT
_HEAD_ROOM = 32 * 1024  # gateway.data.inbound.HEAD_ROOM
_LOCAL = 9  # gateway.data.pending.LOCAL
# Records before a field, or before the end of an answer, that are looked at all the same: what comes behind them would
# be a read, and a write, of its own. Fewer than as many before these aren't worth the calls either.
_TAIL_BYTES = 32 * 1024


class Seen:
    """What was seen of the sockets since the link was told.

    Attributes:
        read_at, answered_at: the time at which the client, and the broker, was last read; 0.0: not since then.
        drained_at: the time at which the client's socket was last seen empty; 0.0: not since then.
        is_drained: the client's socket was empty when it was last read: what comes next has not waited.
    """

    __slots__ = ("answered_at", "drained_at", "is_drained", "read_at")

    def __init__(self) -> None:
        self.read_at = self.drained_at = self.answered_at = 0.0
        self.is_drained = False


class Shortcut:
    """The shortcut of one link.

    Attributes:
        terms: None while it is shut.
        takes_requests: on these terms; otherwise the client's events are the link's, and only answers are taken.
        looks_ahead: the link has to be asked before the client is read.
        passes_unseen: bytes that nobody would look at, as they lie within an answer, pass as they are, on any terms.
    """

    __slots__ = (
        "_buf", "_client_fd", "_counted", "_epoch", "_inbound", "_outbound", "_rejected", "_shared",
        "_upstream_fd", "link", "looks_ahead", "passes_unseen", "seen", "takes_requests", "terms",
    )  # fmt: skip

    def __init__(
        self, link: Owner, world: World, shared: Shared, inbound: Inbound, outbound: Outbound, counted: Counted,
        client_fd: int, upstream_fd: int,
    ) -> None:  # fmt: skip
        """`inbound`: the client's; `outbound`: the broker's. `counted`: what its answers are noted in."""
        self.link = link
        self._rejected: Rejected = world.rejected
        self._shared = shared
        self._buf = shared.buffer
        self._inbound = inbound
        self._outbound = outbound
        self._counted = counted
        self._client_fd = client_fd
        self._upstream_fd = upstream_fd
        self._epoch = -1
        self.seen = Seen()
        self.terms: Terms | None = None
        self.takes_requests = self.looks_ahead = self.passes_unseen = False

    def shut(self) -> None:
        """Until the terms are found again."""
        self.terms = None
        self.passes_unseen = False
        self._tell()

    def _tell(self) -> None:
        """Tell the link what it has missed."""
        seen = self.seen
        if seen.read_at or seen.answered_at:
            self.link.catch_up(seen)
            seen.read_at = seen.drained_at = seen.answered_at = 0.0

    def _find_terms(self, now: float) -> Terms | None:
        """Those of the next event; None: it is the link's."""
        if self.terms is None or self._counted.ledger.epoch != self._epoch:
            self.shut()
            self.terms = self.link.terms(now)
            self._epoch = self._counted.ledger.epoch
        return self.terms

    def handle(self, fd: int, events: int, now: float) -> None:
        """One of the two sockets is ready."""
        if fd == self._client_fd:
            self.on_client(events, now)
        else:
            self.on_upstream(events, now)

    def on_client(self, events: int, now: float) -> None:
        """The client's socket is ready."""
        link = self.link
        terms = self._find_terms(now) if events == _IN else None
        if terms is None or not self.takes_requests:
            link.on_client(events, now)
            return
        seen = self.seen
        if seen.is_drained:
            seen.drained_at = now
        if self.looks_ahead:
            self.looks_ahead = False
            link.look_ahead()
        inbound = self._inbound
        large = inbound.large
        if large is None:
            buf, start, room = self._buf, _HEAD_ROOM, self._shared.size
        elif inbound.may_read():
            buf, start = large.buffer, inbound.received
            room = large.end - start
        else:
            link.end_reading()
            return
        size = calls.receive(self._client_fd, buf, start, room)
        if size <= 0:
            if size != calls.NOTHING:
                link.end_client(size == calls.EOF, now)
            return
        seen.read_at = now
        seen.is_drained = size < room
        end = start + size
        if large is not None:
            if end < large.size:
                inbound.add(size)
                return
            inbound.received = end
            start = 0
            seen.is_drained = calls.is_empty(self._client_fd)
        pos, passed = passing.requests(buf, start, end, now, now, self._rejected.asks, terms)
        self._counted.ledger.requests += passed
        if not terms.in_flight.is_waiting and (pos == end or _is_cut(buf, pos, end)):
            sent = calls.send(self._upstream_fd, buf, start, pos) if passed else 0
            if sent == pos - start:
                if large is not None:
                    link.let_go(large)
                    return
                if pos == end:
                    return
                self._tell()
                if link.keep(pos, end):
                    return
            elif large is not None and sent >= 0:
                self._tell()
                link.hold_back(large, sent)
                return
            start += max(sent, 0)
        link.go_on_with_requests(start, pos, end, large, now)

    def on_upstream(self, events: int, now: float) -> None:
        """The upstream socket is ready."""
        link = self.link
        terms = None
        unseen = self._unseen()
        if not unseen and events in (_IN, _OUT, _IN | _OUT):
            terms = self._find_terms(now)
            unseen = self._unseen()  # as the link may have said just now
        if unseen and events == _IN:
            self._pass_unseen(unseen, now)
            return
        if terms is None:
            link.on_upstream(events, now)
            return
        if events != _IN:
            self._flush(now)  # of answers that are there as well, epoll tells again
            return
        buf = self._buf
        size = calls.receive(self._upstream_fd, buf, _HEAD_ROOM, self._shared.size)
        if size <= 0:
            if size != calls.NOTHING:
                link.end_upstream(size == calls.EOF, now)
            return
        self.seen.answered_at = now
        start, end = _HEAD_ROOM, _HEAD_ROOM + size
        pos = passing.answers(buf, start, end, now, self._rejected.asks, self._counted)
        oldest = terms.in_flight.oldest
        if pos == end and (oldest is None or oldest.kind != _LOCAL):
            sent = calls.send(self._client_fd, buf, start, end)
            if sent == size:
                return
            start += max(sent, 0)
        link.go_on_with_answers(start, pos, end, now)

    def _unseen(self) -> int:
        """At least so many of the broker's next bytes pass as they are, whatever they are: records, nearly always."""
        walker = self._counted.walker
        if walker is None or not self.passes_unseen:
            return 0
        unseen = walker.unseen - _TAIL_BYTES
        return unseen if unseen >= _TAIL_BYTES else 0

    def _pass_unseen(self, unseen: int, now: float) -> None:
        """More of a large answer."""
        link, shared, walker = self.link, self._shared, self._counted.walker
        assert walker is not None
        most = min(unseen, shared.size)
        size, sent = calls.move(self._upstream_fd, self._client_fd, shared.pipe, self._buf, _HEAD_ROOM, most)
        if size <= 0:
            if size != calls.NOTHING:
                link.end_upstream(size == calls.EOF, now)
            return
        self.seen.answered_at = now
        walker.skip(size)
        if sent < size:
            end = _HEAD_ROOM + size
            link.go_on_with_answers(_HEAD_ROOM + sent, end, end, now)

    def _flush(self, now: float) -> None:
        """The broker takes more of what it had not taken at once."""
        pieces = self._outbound.pieces
        if len(pieces) != 1:
            self.link.on_upstream(_OUT, now)
            return
        piece = pieces[0]
        size = len(piece)
        sent = calls.send(self._upstream_fd, piece, 0, size)
        if sent == size:
            self._tell()
            self.link.flushed()
        elif sent >= 0:
            pieces[0] = piece[sent:]
        else:
            self.link.on_upstream(_OUT, now)


def _is_cut(buf: Buffer, pos: int, end: int) -> bool:
    """Whether nothing is there but the beginning of a frame: the bytes before it needn't wait for anything else."""
    if end - pos < 12:
        return True
    length: int = layouts.request_head(buf, pos)[0]
    return pos + 4 + length > end
