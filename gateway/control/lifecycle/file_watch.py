# Whether files have changed: by what `stat` says of them, looked at again and again. So it is seen on every file
# system, and also when a link has another target, as with Kubernetes' ConfigMaps and Secrets.

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.system.files import FileSignature, file_signature

COARSE_NS: Final = 20_000_000
FileStates = tuple[FileSignature | None, ...]


def read_file_states(files: Iterable[str]) -> FileStates:
    """A value that differs when one of the files has changed, gone or appeared. Blocking."""
    return tuple(map(file_signature, files))


def is_any_newer(files: Iterable[str], than_ns: int) -> bool:
    """Whether one of the files has changed since that Unix time, or a moment before (file systems' clocks are coarse),
    or can't be read. Blocking.
    """
    return any(seen is None or max(seen[:2]) >= than_ns - COARSE_NS for seen in read_file_states(files))


class SettledFiles:
    """Detects a change that has stayed the same from one check to the next: half a file may be valid too."""

    def __init__(self, taken: FileStates) -> None:
        self._known = self._last_read = taken

    def mark_known(self, seen: FileStates) -> None:
        """This state is known."""
        self._known = self._last_read = seen

    def is_settled_change(self, seen: FileStates) -> bool:
        """True once for each change."""
        stays, self._last_read = seen == self._last_read, seen
        if not stays or seen == self._known:
            return False
        self._known = seen
        return True
