# The loop of the reactor: passes the events of sockets to their owners, for one slice of time.
#
# Compiled where a C compiler is (setup.py): slices.pxd has its types in C.

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any

from gateway.data.sockets import calls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gateway.data.sockets.calls import EventPoller

_EPOLL = getattr(select, "epoll", ())  # Linux has it


class EventHandler:
    """Handles the events of a socket. `link`: the socket's link; None: it belongs to none."""

    __slots__ = ("link",)

    def __init__(self, link: Any) -> None:
        self.link = link

    def handle_event(self, fd: int, events: int, now: float) -> None:
        """`events`: epoll's mask of the events on the socket with that descriptor."""
        raise NotImplementedError


class EventSlice(EventHandler):
    """The time for which the reactor stays with its sockets; also the handler of those that it gives way to.

    `ends_at`: 0.0 once it has given way. `link`: none, those sockets are no link's.
    """

    __slots__ = ("_earliest_end", "_epoll", "_events", "_poller", "ends_at")

    def __init__(self, poller: EventPoller) -> None:
        self.ends_at = self._earliest_end = 0.0
        super().__init__(None)
        self._poller = poller
        self._epoll = poller.fileno() if isinstance(poller, _EPOLL) else -1
        self._events = calls.new_event_buffer()

    def begin_slice(self, now: float, least: float, most: float, timers: Sequence[tuple[float, int, Any]]) -> None:
        """It takes that many seconds at most; fewer where something is due before (`timers`: the earliest first), but
        not fewer than the least.
        """
        self._earliest_end, self.ends_at = now + least, now + most
        if timers:
            self.shorten_to(timers[0][0])

    def end_slice(self) -> None:
        """End the slice early."""
        self.ends_at = 0.0

    def handle_event(self, fd: int, events: int, now: float) -> None:
        """A watched socket has something to read."""
        self.end_slice()

    def shorten_to(self, when: float) -> None:
        """Something is due then. Not at each of many timers: those of a thousand muted clients share their turns."""
        self.ends_at = min(self.ends_at, max(when, self._earliest_end))

    def run(
        self, handlers: Mapping[int, EventHandler], now: float, work: tuple[list[Any], ...],
        settle: Callable[[float], None], fail: Callable[[Any, Exception], None],
    ) -> None:  # fmt: skip
        """Handle events until the slice ends, or no more events come in it. `settle` is called after events that leave
        something in one of the lists in `work`; `fail` is called with a link whose handler raised an error, and with
        the error.
        """
        ready, closing, answered = work
        ahead = now - calls.monotonic_time()  # trio's clock begins elsewhere, and costs more to ask
        while now < self.ends_at:
            count = calls.wait_for_events(self._poller, self._epoll, self._events, self.ends_at - now)
            if not count:
                break
            now = calls.monotonic_time() + ahead
            for place in range(count):
                fd, mask = calls.event_at(self._events, place)
                handler = handlers.get(fd)
                if handler is None:
                    continue  # closed by an earlier event of this batch
                try:
                    handler.handle_event(fd, mask, now)
                except Exception as bug:
                    fail(handler.link, bug)
            if ready or closing or answered:
                settle(now)
