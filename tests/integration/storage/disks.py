# Small disks of their own for brokers: a tmpfs each, mounted by the test (which takes root), gone when its `with` ends,
# whatever became of the test. And a watcher of their free space, who asks the kernel and neither Kafka nor the gateway.

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.background import Background

LOOK_EVERY_S = 0.2


# Unmounts when its standard input ends: when the test says so, or when the test is no more, for whatever reason.
# Lazily: a broker that is still dying keeps its files until it is gone, and nobody else sees them.
_GUARD = 'read -r _; umount -l "$0"; rmdir "$0"'


class SmallDisk:
    """A file system of `size` bytes at `path` for as long as its `with` lasts.

    Where mounting isn't allowed the test is skipped, and fails in CI: what it proves can't be proved otherwise.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.path = Path(tempfile.mkdtemp(prefix="produce-gateway-disk-")).resolve()

    def __enter__(self) -> SmallDisk:
        command = ["mount", "-t", "tmpfs", "-o", f"size={self.size}", "produce-gateway-test", str(self.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.path.rmdir()
            why = f"a disk for a broker can't be mounted here (root may): {done.stderr.strip()}"
            (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
        guard = ["sh", "-c", _GUARD, str(self.path)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.communicate()
        assert self._guard.returncode == 0, f"{self.path} can't be unmounted"

    @property
    def free(self) -> int:
        """Bytes, as Kafka tells them (usable space)."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    @property
    def total(self) -> int:
        found = os.statvfs(self.path)
        return found.f_blocks * found.f_frsize

    def occupy(self, size: int, name: str = "other-data") -> Path:
        """Something else on the same disk: that many bytes that Kafka knows nothing of."""
        path = self.path / name
        with open(path, "ab") as file:
            os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
        return path

    def fill(self, name: str = "other-data") -> Path:
        """All that is free, whatever a broker takes meanwhile."""
        path = self.path / name
        path.touch()
        while size := self.free:
            try:
                self.occupy(size, name)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        return path


class Watch(Background):
    """Looks at a disk five times a second while its `with` lasts.

    Attributes:
        seen: (time.monotonic(), free bytes), in order.
    """

    def __init__(self, disk: SmallDisk) -> None:
        super().__init__()
        self._disk = disk
        self.seen: list[tuple[float, int]] = []

    def __enter__(self) -> Watch:
        self._look()
        return super().__enter__()

    @property
    def lowest(self) -> int:
        return min(free for _, free in self.seen)

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            self.seen.append((time.monotonic(), self._disk.free))

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self._look()
