# The calls of a socket that the shortcut makes, by its number. A socket that has nothing, or takes nothing, is no
# error there, and one that is broken needs no reason: its link is closed whatever it was.
#
# Compiled (shortcut_compiled.pxd) the same names are the calls of C: calls.pxd has them.

from __future__ import annotations

import errno
import os
import select
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from protocol.wire import Buffer

EOF: Final = 0
NOTHING: Final = -1
BROKEN: Final = -2
UNABLE: Final = -3  # of a pipe: this system doesn't join it to sockets


def receive(fd: int, buf: Buffer, start: int, most: int) -> int:
    """Read up to `most` bytes into buf[start:]. How many they are, EOF, NOTHING or BROKEN."""
    try:
        return os.readv(fd, [memoryview(buf)[start : start + most]])
    except BlockingIOError:
        return NOTHING
    except OSError:
        return BROKEN


def move(source: int, sink: int, pipe: tuple[int, int] | None, buf: Buffer, start: int, most: int) -> tuple[int, int]:
    """Pass up to `most` bytes from one socket to another, through an empty pipe, which saves copying them, or else
    through buf[start:]. How many they are, EOF, NOTHING or BROKEN; and how many of them were sent. Those that were not
    are in the buffer, where they would be if all had been read into it.
    """
    size = _splice(source, pipe[1], most) if pipe is not None else UNABLE
    if pipe is None or size == UNABLE:
        size = receive(source, buf, start, most)
        return size, max(0, send(sink, buf, start, start + size)) if size > 0 else 0
    sent = max(0, _splice(pipe[0], sink, size)) if size > 0 else 0
    at = sent
    while at < size:
        at += os.readv(pipe[0], [memoryview(buf)[start + at : start + size]])
    return size, sent


def _splice(source: int, sink: int, most: int) -> int:
    try:
        return os.splice(source, sink, most, flags=os.SPLICE_F_NONBLOCK)
    except BlockingIOError:
        return NOTHING
    except OSError as error:
        return UNABLE if error.errno in (errno.EINVAL, errno.ENOSYS, errno.EPERM) else BROKEN


def is_empty(fd: int) -> bool:
    """Whether the socket has nothing to read, not even its end."""
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
