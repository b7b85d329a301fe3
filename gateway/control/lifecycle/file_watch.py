# Whether files have changed: by what `stat` says of them, looked at again and again. So it is seen on every file
# system, and also when a link has another target, as with Kubernetes' ConfigMaps and Secrets.

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

COARSE_NS: Final = 20_000_000
Seen = tuple[tuple[int, ...] | None, ...]


def look(files: Iterable[str]) -> Seen:
    """Another value when one of them has changed, has gone or has come. Blocking."""
    return tuple(_look_at(file) for file in files)


def _look_at(file: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def is_newer(files: Iterable[str], than_ns: int) -> bool:
    """Whether one of them has changed since that Unix time, or a moment before: file systems' clocks are coarse. Or
    can't be looked at. Blocking.
    """
    return any(seen is None or max(seen[:2]) >= than_ns - COARSE_NS for seen in look(files))


class Settled:
    """Says when something has changed and stayed so from one look to the next: half a file may be valid too."""

    def __init__(self, taken: Seen) -> None:
        self._taken = self._seen = taken

    def take(self, seen: Seen) -> None:
        """This is known."""
        self._taken = self._seen = seen

    def is_news(self, seen: Seen) -> bool:
        """Once for each change."""
        stays, self._seen = seen == self._seen, seen
        if not stays or seen == self._taken:
            return False
        self._taken = seen
        return True
