# Memory that several processes map, inherited as a descriptor, and a lock for it. It is gone with the last of them.

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# that a worker waits for the lock, as its clients wait meanwhile: it is held for microseconds
MAX_LOCK_WAIT_S: Final = 0.05
LOCK_RETRY_S: Final = 0.0005


def create_shared_memory(size: int) -> int:
    """A descriptor of `size` bytes of zeros.

    Raises:
        OSError: the system has none.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("produce-gateway", os.MFD_CLOEXEC)
    else:  # only Linux has it
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


class SharedMemoryRegion:
    """The memory that `create_shared_memory` made in a process before this one. `view`: its bytes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.view = memoryview(mmap.mmap(fd, os.fstat(fd).st_size))

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Keep all other processes out, for an instant: they wait. A process that dies in here lets them in.

        Raises:
            TimeoutError: one was stopped in here.
        """
        deadline = time.monotonic() + MAX_LOCK_WAIT_S
        while True:
            try:
                # Not flock: that is the same for all processes that inherited the descriptor.
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError from None
                time.sleep(LOCK_RETRY_S)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
