# The calls of a socket that the shortcut makes, by its number. A socket that has nothing, or takes nothing, is no
# error there, and one that is broken needs no reason: its link is closed whatever it was. And the calls of a poller and
# a clock that the loop over events makes (slices.py).
#
# Compiled (shortcut_compiled.pxd, slices_compiled.pxd) the same names are the calls of C: calls.pxd has them.

from __future__ import annotations

import errno
import os
import select
import time
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from protocol.wire import Buffer

    class Poller(Protocol):
        """The used part of `select.epoll`."""

        def fileno(self) -> int: ...
        def register(self, fd: int, mask: int) -> None: ...
        def modify(self, fd: int, mask: int) -> None: ...
        def unregister(self, fd: int) -> None: ...
        def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]: ...
        def close(self) -> None: ...


EOF: Final = 0
NOTHING: Final = -1
BROKEN: Final = -2

MAX_EVENTS: Final = 256
Events: TypeAlias = list[tuple[int, int]]  # the number of a socket, and epoll's mask of what happens on it


def receive(fd: int, buf: Buffer, start: int, most: int) -> int:
    """Read up to `most` bytes into buf[start:]. How many they are, EOF, NOTHING or BROKEN."""
    try:
        return os.readv(fd, [memoryview(buf)[start : start + most]])
    except BlockingIOError:
        return NOTHING
    except OSError:
        return BROKEN


def move(source: int, sink: int, pipe: tuple[int, int] | None, buf: Buffer, start: int, most: int) -> tuple[int, int]:
    """Pass up to `most` bytes from one socket to another: through an empty pipe, which saves copying them, or, where
    none pass by it, through buf[start:]. How many they are, EOF, NOTHING or BROKEN; and how many of them were sent,
    none if the sink is broken. Those that were not are in the buffer, where they would be if all had been read into it,
    and the pipe is empty again.

    Raises:
        OSError: the pipe is broken; there may be bytes in it.
    """
    size = -1 if pipe is None else _splice(source, pipe[1], most)
    if pipe is None or size < 1:  # a read says why; and it passes over urgent data, before which a splice stops
        size = receive(source, buf, start, most)
        return size, max(0, send(sink, buf, start, start + size)) if size > 0 else 0
    sent = max(0, _splice(pipe[0], sink, size))
    at = sent
    while at < size:
        more = os.readv(pipe[0], [memoryview(buf)[start + at : start + size]])
        if not more:
            raise OSError(errno.EIO, "the pipe between two sockets has lost bytes")
        at += more
    return size, sent


def _splice(source: int, sink: int, most: int) -> int:
    try:
        return os.splice(source, sink, most, flags=os.SPLICE_F_NONBLOCK)
    except OSError:
        return -1


def is_empty(fd: int) -> bool:
    """Whether the socket has nothing to read, neither its end nor an error."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return not poll.poll(0)


def send(fd: int, buf: Buffer, start: int, stop: int) -> int:
    """Send buf[start:stop]. How many bytes the socket took, 0 included, or BROKEN."""
    try:
        return os.write(fd, memoryview(buf)[start:stop])
    except BlockingIOError:
        return 0
    except OSError:
        return BROKEN


def new_events() -> Events:
    """Room for those of one `wait`."""
    return []


def wait(poller: Poller, epoll: int, events: Events, seconds: float) -> int:
    """Wait until something happens on the poller's sockets, or so long; how many `events` there are.

    `epoll`: the number of the epoll that the poller is, -1 where it is another one.

    Raises:
        OSError: the poller is broken.
    """
    events[:] = poller.poll(seconds, MAX_EVENTS)
    return len(events)


def event(events: Events, place: int) -> tuple[int, int]:
    """One of them."""
    return events[place]


clock = time.monotonic
