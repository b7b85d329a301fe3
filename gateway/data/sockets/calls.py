# The calls of a poller and a clock that the loop over events makes (slices.py), and one of a socket.
#
# To compiled modules the same names are the calls of C: calls.pxd has them, and those that only the shortcut makes.

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:

    class EventPoller(Protocol):
        """The part of `select.epoll` that the gateway uses."""

        def fileno(self) -> int: ...
        def register(self, fd: int, mask: int) -> None: ...
        def modify(self, fd: int, mask: int) -> None: ...
        def unregister(self, fd: int) -> None: ...
        def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]: ...
        def close(self) -> None: ...


MAX_EVENTS: Final = 256
Events: TypeAlias = list[tuple[int, int]]  # the number of a socket, and epoll's mask of what happens on it


def is_socket_empty(fd: int) -> bool:
    """Whether the socket has nothing to read, not even its end or an error."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return not poll.poll(0)


def new_event_buffer() -> Events:
    """A buffer for the events of one `wait_for_events`."""
    return []


def wait_for_events(poller: EventPoller, epoll: int, events: Events, seconds: float) -> int:
    """Wait for events on the poller's sockets, at most that long; returns how many of `events` are filled. `epoll`: the
    descriptor of the poller's epoll, -1 where it is another kind of poller.

    Raises:
        OSError: the poller is broken.
    """
    events[:] = poller.poll(seconds, MAX_EVENTS)
    return len(events)


def event_at(events: Events, place: int) -> tuple[int, int]:
    """One event of the buffer."""
    return events[place]


monotonic_time = time.monotonic
