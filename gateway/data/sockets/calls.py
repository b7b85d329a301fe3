# The calls of a poller and a clock that the loop over events makes (slices.py), and one of a socket.
#
# To compiled modules the same names are the calls of C: calls.pxd has them, and those that only the shortcut makes.

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:

    class EventPoller(Protocol):
        """The used part of `select.epoll`."""

        def fileno(self) -> int: ...
        def register(self, fd: int, mask: int) -> None: ...
        def modify(self, fd: int, mask: int) -> None: ...
        def unregister(self, fd: int) -> None: ...
        def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]: ...
        def close(self) -> None: ...


MAX_EVENTS: Final = 256
Events: TypeAlias = list[tuple[int, int]]  # the number of a socket, and epoll's mask of what happens on it


def is_socket_empty(fd: int) -> bool:
    """Whether the socket has nothing to read, neither its end nor an error."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return not poll.poll(0)


def new_event_buffer() -> Events:
    """Room for those of one `wait_for_events`."""
    return []


def wait_for_events(poller: EventPoller, epoll: int, events: Events, seconds: float) -> int:
    """Wait until something happens on the poller's sockets, or so long; how many `events` there are.

    `epoll`: the number of the epoll that the poller is, -1 where it is another one.

    Raises:
        OSError: the poller is broken.
    """
    events[:] = poller.poll(seconds, MAX_EVENTS)
    return len(events)


def event_at(events: Events, place: int) -> tuple[int, int]:
    """One of them."""
    return events[place]


monotonic_time = time.monotonic
