# The shortcut of one link, for nearly all of its events: bytes are there, they are whole Produce requests or answers
# that pass as they are (passing.py), and the other socket takes them at once.
#
# It decides nothing, and keeps nothing but what the link has told it: which terms hold for such requests just now. The
# link shuts it whenever it does anything itself, and is asked again before the next event, so what the shortcut knows
# can't have changed but for what all connections share: whether that is another is looked at each time. Whatever else
# an event brings is the link's, from the first byte on that the shortcut doesn't understand.
#
# This file is compiled where a C compiler is: shortcut_compiled.pxd says what its variables are in C, setup.py how it
# is built. It is plain Python all the same, and runs as such elsewhere; tests hold the two to each other.

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.data import calls, passing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    from gateway.data.hold import Hold
    from gateway.data.in_flight import InFlight
    from gateway.data.inbound import Shared
    from gateway.data.ledger import Counts, Ledger
    from gateway.data.passing import Charged, Counted
    from gateway.data.world import World
    from policies.quotas.lines import Lines
    from policies.repeats import Rejected
    from protocol.produce_request import Partition, Parts

    # What holds for the requests and answers of a connection that pass as they are (passing.py): which latencies are
    # measured, whose client id and quota, whom to ask about checksums and repeats, how large a request may be.
    Terms = tuple[
        int, bytes | None, Lines | None, Callable[[Parts, int], bool], Callable[[Counts, Partition, bytes], None], int,
        int, Charged, Counted, InFlight,
    ]  # fmt: skip

    class Handler(Protocol):
        """Who is told of the events of a socket. `link`: whose it is."""

        @property
        def link(self) -> Any: ...
        def handle(self, fd: int, events: int, now: float) -> None: ...

    class Watch(Protocol):
        """Of the link: when each side was last read."""

        read_at: float
        answered_at: float

    class Owner(Protocol):
        """The link."""

        def terms(self, now: float) -> Terms | None: ...
        def on_client(self, events: int, now: float) -> None: ...
        def on_upstream(self, events: int, now: float) -> None: ...
        def end_client(self, is_eof: bool, now: float) -> None: ...
        def end_upstream(self, is_eof: bool, now: float) -> None: ...
        def go_on_with_requests(self, start: int, pos: int, end: int, now: float) -> None: ...
        def go_on_with_answers(self, start: int, pos: int, end: int, now: float) -> None: ...


# Numbers of C where this is compiled, hence not imported by the names that they have elsewhere.
_IN = 0x001  # gateway.data.reactor.IN
_HEAD_ROOM = 32 * 1024  # gateway.data.inbound.HEAD_ROOM
_LOCAL = 9  # protocol.pending.LOCAL


class Shortcut:
    """The shortcut of one link.

    Attributes:
        terms: None while it is shut.
        takes_requests: on these terms; otherwise the client's events are the link's, and only answers are taken.
    """

    __slots__ = ("_answered_at", "_buf", "_client_fd", "_epoch", "_hold", "_ledger", "_read_at", "_rejected", "_shared",
                 "_upstream_fd", "_watch", "link", "takes_requests", "terms")  # fmt: skip

    def __init__(
        self, link: Owner, world: World, shared: Shared, watch: Watch, hold: Hold, client_fd: int, upstream_fd: int
    ) -> None:
        self.link = link
        self._ledger: Ledger = world.ledger
        self._rejected: Rejected = world.rejected
        self._shared = shared
        self._buf = shared.buffer
        self._watch = watch
        self._hold = hold
        self._client_fd = client_fd
        self._upstream_fd = upstream_fd
        self._epoch = -1
        self._read_at = self._answered_at = 0.0  # not told to watch and hold yet; 0.0: nothing
        self.terms: Terms | None = None
        self.takes_requests = False

    def shut(self) -> None:
        """Until the terms are found again; watch and hold are told the times that they have missed."""
        self.terms = None
        if self._read_at:
            self._watch.read_at = self._hold.drained_at = self._read_at
            self._read_at = 0.0
        if self._answered_at:
            self._watch.answered_at = self._answered_at
            self._answered_at = 0.0

    def _find_terms(self, now: float) -> Terms | None:
        """Those of the next event; None: it is the link's."""
        if self.terms is None or self._ledger.epoch != self._epoch:
            self.shut()
            self.terms = self.link.terms(now)
            self._epoch = self._ledger.epoch
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
        buf, room = self._buf, len(self._shared.room)
        size = calls.receive(self._client_fd, buf, _HEAD_ROOM, room)
        if size <= 0:
            if size != calls.NOTHING:
                link.end_client(size == calls.EOF, now)
            return
        self._read_at = now
        start, end = _HEAD_ROOM, _HEAD_ROOM + size
        if size == room:  # there may be more
            link.go_on_with_requests(start, start, end, now)
            return
        mask, client_id, quota, awaits, _, max_bytes, most, charged, _, in_flight = terms
        pos, passed = passing.requests(
            buf, start, end, now, now, mask, client_id, quota, awaits if self._rejected.asks else None, max_bytes, most,
            charged,
        )  # fmt: skip
        if passed:
            counts = self._ledger.counts
            counts["requests"] = counts.get("requests", 0) + passed
            if pos == end and not in_flight.is_waiting:
                sent = calls.send(self._upstream_fd, buf, start, end)
                if sent == size:
                    return
                start += max(sent, 0)
        link.go_on_with_requests(start, pos, end, now)

    def on_upstream(self, events: int, now: float) -> None:
        """The upstream socket is ready."""
        link = self.link
        terms = self._find_terms(now) if events == _IN else None
        if terms is None:
            link.on_upstream(events, now)
            return
        buf = self._buf
        size = calls.receive(self._upstream_fd, buf, _HEAD_ROOM, len(self._shared.room))
        if size <= 0:
            if size != calls.NOTHING:
                link.end_upstream(size == calls.EOF, now)
            return
        self._answered_at = now
        _, _, _, _, repeats, _, _, _, counted, _ = terms
        start, end = _HEAD_ROOM, _HEAD_ROOM + size
        pos = passing.answers(buf, start, end, now, repeats if self._rejected.asks else None, counted)
        entries = counted[0]
        if pos == end and not (entries and entries[0][1] == _LOCAL):
            sent = calls.send(self._client_fd, buf, start, end)
            if sent == size:
                return
            start += max(sent, 0)
        link.go_on_with_answers(start, pos, end, now)


def handle(
    events: list[tuple[int, int]], handlers: Mapping[int, Handler], now: float, fail: Callable[[Any, Exception], None]
) -> None:
    """Have these events of sockets, (number, mask), handled. `fail` is told of a link whose handler raised an error."""
    for fd, mask in events:
        handler = handlers.get(fd)
        if handler is None:
            continue  # closed by an earlier event of this batch
        try:
            if isinstance(handler, Shortcut):
                shortcut = handler  # in C its method is called there
                shortcut.handle(fd, mask, now)
            else:
                handler.handle(fd, mask, now)
        except Exception as bug:
            fail(handler.link, bug)
