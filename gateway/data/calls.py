# The calls of a socket that the shortcut makes, by its number. A socket that has nothing, or takes nothing, is no
# error there, and one that is broken needs no reason: its link is closed whatever it was.
#
# Compiled (shortcut_compiled.pxd) the same names are the calls of C: calls.pxd has them.

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from protocol.wire import Buffer

EOF: Final = 0
NOTHING: Final = -1
BROKEN: Final = -2


def receive(fd: int, buf: Buffer, start: int, most: int) -> int:
    """Read up to `most` bytes into buf[start:]. How many they are, EOF, NOTHING or BROKEN."""
    try:
        return os.readv(fd, [memoryview(buf)[start : start + most]])
    except BlockingIOError:
        return NOTHING
    except OSError:
        return BROKEN


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
