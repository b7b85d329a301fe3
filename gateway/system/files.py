# Three services of the operating system for all that have files: whether one has changed, a directory's entries survive
# a power cut, and one process alone uses a file. Knows no content.

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

FileSignature = tuple[int, ...]


def file_signature(path: str | Path) -> FileSignature | None:
    """Differs when the file has changed, or has another owner or mode, and when a link has another target: the times of
    its contents and its inode in Unix ns, size, inode and device. None: there is none.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def sync_directory(directory: Path) -> None:
    """Make the files that were created or renamed in it survive a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_file(path: Path) -> IO[str] | None:
    """The file, locked for this process until it is closed; None where another process has it."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640), "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
