# One epoll inside trio: every relayed socket of a worker, and the synchronous calls into its link.
#
# All sockets sit in one private epoll, whose descriptor one trio task awaits; a ready socket is handled by a plain
# call. No task, no buffer and no lock per connection. While there is traffic the task stays in the epoll for a slice of
# time before it lets trio's other tasks run: a trip through trio costs 10 µs, and many times that where other programs
# use the core meanwhile. A slice ends at the next of trio's deadlines, and tasks that can't wait for other reasons say
# so (`watch_channel`, `end_slice`, `is_hurried`). When nothing comes, it waits in trio. A caller from elsewhere (a
# timer, a dialler, the channel) ends with `run_deferred`. Rules that keep this right, with their reasons, are in
# docs/non-obvious.md.

from __future__ import annotations

import heapq
import select
import selectors
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import trio

from gateway.data.shared.budget import MemoryBudget
from gateway.data.shared.latencies import LatencyMeter
from gateway.data.sockets.inbound import SharedReadBuffer
from gateway.data.sockets.slices import EventHandler, EventSlice

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from gateway.data.sockets.calls import EventPoller

SLICE_S = 0.05  # how long trio's other tasks wait at most while there is traffic …
BRIEF_S = 0.002  # … and while one of them needs several turns, or is due

# epoll's numbers (Linux), used for every poller.
IN = 0x001
OUT = 0x004
ERR = 0x008
HUP = 0x010
RDHUP = 0x2000
ONESHOT = 1 << 30
# A socket that is neither to be read nor written still has to report that its peer is gone, but only once: with an
# empty interest set epoll reports a reset peer for ever (hundreds of thousands of events a second).
QUIET = RDHUP | ONESHOT
DEAF = ONESHOT  # the same where its FIN is known already: only an error or a reset is news


class SelectorPoller:
    """The EventPoller over the platform's best selector, where there is no epoll (kqueue on macOS)."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._masks: dict[int, int] = {}

    def fileno(self) -> int:
        return int(self._selector.fileno())

    def register(self, fd: int, mask: int) -> None:
        self._masks[fd] = 0
        self.modify(fd, mask)

    def modify(self, fd: int, mask: int) -> None:
        events = (selectors.EVENT_READ if mask & IN else 0) | (selectors.EVENT_WRITE if mask & OUT else 0)
        before, self._masks[fd] = self._masks[fd], events
        if before and events:
            self._selector.modify(fd, events)
        elif events:
            self._selector.register(fd, events)
        elif before:
            self._selector.unregister(fd)

    def unregister(self, fd: int) -> None:
        if self._masks.pop(fd, 0):
            self._selector.unregister(fd)

    def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
        ready = self._selector.select(timeout)[:maxevents]
        return [
            (key.fd, (IN if events & selectors.EVENT_READ else 0) | (OUT if events & selectors.EVENT_WRITE else 0))
            for key, events in ready
        ]

    def close(self) -> None:
        self._selector.close()


def new_poller() -> EventPoller:
    """An epoll, or the platform's closest equivalent."""
    return select.epoll() if hasattr(select, "epoll") else SelectorPoller()


class HasFileno(Protocol):
    """A socket, or an object with a file descriptor."""

    def fileno(self) -> int: ...


class SocketOwner(Protocol):
    """The owner of sockets in a reactor."""

    def on_ready(self, now: float) -> None:
        """Called after `call_soon`."""

    def on_timer(self, now: float) -> None:
        """Called at the time passed to `call_at`, or later."""

    def close(self, cause: str) -> None:
        """Close it, and count the close under that name."""


H = TypeVar("H", bound=SocketOwner)


class SocketReactor(Generic[H]):
    """The sockets of one worker, which links handle.

    Attributes:
        links: every open connection pair.
        shared, budget: the buffer that links read into, and the bound on the bytes that they hold.
        on_bug: called with a link and an unexpected exception; the link is closed already.
        on_closed: called with a link that has ended.
        is_hurried: whether one of trio's tasks needs several turns soon; asked when a slice begins.
        latencies: notified when everything that links answered has been sent.
    """

    def __init__(
        self,
        max_buffered_bytes: int,
        on_bug: Callable[[H, Exception], None],
        on_closed: Callable[[H], None] = lambda link: None,
        latencies: LatencyMeter | None = None,
    ) -> None:
        self.is_hurried: Callable[[], bool] = lambda: False
        self.latencies = latencies or LatencyMeter()
        self.links: set[H] = set()
        self.shared = SharedReadBuffer()
        self.budget = MemoryBudget(max_buffered_bytes)
        self.on_bug = on_bug
        self.on_closed = on_closed
        self._poller = new_poller()
        self._handlers: dict[int, EventHandler] = {}
        self._ready: list[H] = []
        self._closing: list[socket.socket] = []
        self._timers: list[tuple[float, int, H]] = []
        self._timer_ids = count()
        self._timer_set = trio.Event()
        self._slice = EventSlice(self._poller)

    # --- what links use -----------------------------------------------------------------------------------------------

    def register(self, sock: socket.socket, mask: int, handler: EventHandler) -> None:
        """Call `handler` on events of that socket."""
        fd = sock.fileno()
        self._handlers[fd] = handler
        self._poller.register(fd, mask)

    def modify(self, fd: int, mask: int) -> None:
        self._poller.modify(fd, mask)

    def discard_socket(self, sock: socket.socket) -> None:
        """Close a socket once the present batch of events is handled: until then its number must not be given to
        another.
        """
        self._handlers.pop(sock.fileno(), None)
        self._unregister(sock.fileno())
        self._closing.append(sock)

    def _unregister(self, fd: int) -> None:
        try:
            self._poller.unregister(fd)
        except (OSError, KeyError, ValueError):  # it isn't there, or the poller is closed
            pass

    def call_soon(self, link: H) -> None:
        """The link has work in user space that no event announces."""
        self._ready.append(link)

    def call_at(self, when: float, link: H) -> None:
        """Call the link's `on_timer` at that time."""
        heapq.heappush(self._timers, (when, next(self._timer_ids), link))
        if self._timers[0][2] is link:
            self._slice.shorten_to(when)
            self._timer_set.set()

    # --- what trio's tasks use ----------------------------------------------------------------------------------------

    def end_slice(self) -> None:
        """One of trio's tasks has something to do: it runs as soon as the present events are handled."""
        self._slice.end_slice()

    def watch_channel(self, channel: HasFileno) -> None:
        """End slices early as long as there is something to read on this socket, which one of trio's tasks reads."""
        fd = channel.fileno()
        self._handlers[fd] = self._slice
        self._poller.register(fd, IN)

    def unwatch_channel(self, channel: HasFileno) -> None:
        """Stop watching the socket; call it before the socket is closed."""
        fd = channel.fileno()
        if self._handlers.pop(fd, None) is not None:
            self._unregister(fd)

    def run_deferred(self, now: float) -> None:
        """Do the work that event handlers deferred. A caller of a link's methods outside an event must call this."""
        while self._ready:  # the lists stay the same ones: the slice knows them
            ready = self._ready.copy()
            self._ready.clear()
            for link in ready:
                self.call_guarded(link, link.on_ready, now)
        for sock in self._closing:
            sock.close()
        self._closing.clear()
        if self.latencies.answered_stamps:
            self.latencies.end_batch(now, trio.current_time())

    def call_guarded(self, link: H, call: Callable[..., Any], *args: Any) -> None:
        """Call the handler; an unexpected error ends its own link, never the reactor."""
        try:
            call(*args)
        except Exception as bug:
            self._close_failed(link, bug)

    def _close_failed(self, link: H, bug: Exception) -> None:
        self.on_bug(link, bug)
        try:
            link.close("disconnects_error")
        except Exception as another:  # its sockets are closed all the same
            self.on_bug(link, another)
        self.shared.renew_pipe()

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def run(self, before_slice: Callable[[], None] = lambda: None) -> None:
        """Handle events until cancelled."""
        poller = self._poller
        self.shared.open_pipe()
        try:
            while True:
                await trio.lowlevel.wait_readable(poller.fileno())
                before_slice()
                self._run_slice()
                await trio.lowlevel.checkpoint()  # else trio may run this task before those that it made way for
        finally:
            trio.lowlevel.notify_closing(poller.fileno())
            poller.close()
            self.shared.close_pipe()

    def _run_slice(self) -> None:
        seconds = BRIEF_S if self.is_hurried() else SLICE_S
        now = trio.current_time()
        self._slice.begin_slice(now, BRIEF_S, seconds, self._timers)
        if seconds > BRIEF_S:
            self._slice.shorten_to(now + trio.lowlevel.current_statistics().seconds_to_next_deadline)
        self._slice.run(
            self._handlers,
            now,
            (self._ready, self._closing, self.latencies.answered_stamps),
            self.run_deferred,
            self._close_failed,
        )

    async def run_timers(self, before_turn: Callable[[], None] = lambda: None) -> None:
        """End mutes and other waits when their time has come."""
        timers = self._timers
        while True:
            self._timer_set = trio.Event()
            with trio.move_on_at(timers[0][0] if timers else float("inf")):
                await self._timer_set.wait()
            before_turn()
            now = trio.current_time()
            while timers and timers[0][0] <= now:
                link = heapq.heappop(timers)[2]
                self.call_guarded(link, link.on_timer, now)
            self.run_deferred(now)
