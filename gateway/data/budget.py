# The bound on the memory that a worker's connections hold, and the large buffers that are taken from it.
#
# Waiting connections are served in the order in which they asked, and a frame's whole size is asked for on its prefix:
# many half-read frames that each wait for a little more would wait for ever. What can't be refused (an answer that was
# read already and whose client is slow, input parked behind a mute) is charged without asking and makes others wait.

from __future__ import annotations

from collections import deque
from typing import Protocol

MIN_CLASS = 16  # buffers come in powers of two from 64 KiB on, so that they can be used again
POOLED_BYTES = 32 * 2**20  # a new buffer costs a page fault and a memset per page: worth keeping some


class Waiter(Protocol):
    """Who asked for a buffer that wasn't there."""

    def granted(self, large: Large) -> None:
        """The buffer asked for; called later, when there is room."""


class Large:
    """A buffer for one large frame: `view` is exactly as long as the frame."""

    __slots__ = ("buffer", "size", "view")

    def __init__(self, buffer: bytearray, size: int) -> None:
        self.buffer = buffer
        self.size = size
        self.view = memoryview(buffer)[:size]


class Budget:
    """Bytes in use against `limit`.

    Attributes:
        used: bytes that connections hold just now.
    """

    __slots__ = ("_pool", "_pooled", "_waiting", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._pool: dict[int, list[bytearray]] = {}
        self._pooled = 0
        self._waiting: deque[tuple[Waiter, int]] = deque()

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for memory that others hold."""
        return bool(self._waiting)

    @property
    def is_used_up(self) -> bool:
        return self.used > self.limit or bool(self._waiting)

    def take(self, size: int, waiter: Waiter) -> Large | None:
        """A buffer of `size` bytes, or None: then `waiter` is granted one later. A frame that is larger than the whole
        budget passes alone."""
        if self._waiting or (self.used and self.used + size > self.limit):
            self._waiting.append((waiter, size))
            return None
        return self._make(size)

    def take_at_once(self, size: int) -> Large:
        """A buffer whatever is left: for an answer. The request that holds the memory may wait for that very answer."""
        return self._make(size)

    def give(self, large: Large) -> None:
        """Give a buffer back."""
        large.view.release()
        size = len(large.buffer)
        if self._pooled + size <= POOLED_BYTES:
            self._pool.setdefault(size, []).append(large.buffer)
            self._pooled += size
        self.discharge(large.size)

    def charge(self, size: int) -> None:
        """Count bytes that are held already."""
        self.used += size

    def discharge(self, size: int) -> None:
        """These bytes are held no longer; whoever waits gets its turn."""
        self.used -= size
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            waiter, wanted = self._waiting[0]
            if self.used and self.used + wanted > self.limit:
                return
            self._waiting.popleft()
            waiter.granted(self._make(wanted))

    def forget(self, waiter: Waiter) -> None:
        """That connection is gone and waits for nothing."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not waiter)
        self._grant()  # who stood behind it

    def _make(self, size: int) -> Large:
        self.used += size
        capacity = 1 << max(MIN_CLASS, (size - 1).bit_length())
        free = self._pool.get(capacity)
        if free:
            self._pooled -= capacity
            return Large(free.pop(), size)
        return Large(bytearray(capacity), size)
