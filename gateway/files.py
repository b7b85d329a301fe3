# What every writer of files here needs of the operating system: entries of a directory that survive a power cut, and a
# directory or file that only one process has. Knows nothing of what is in the files.

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO


def sync_directory(directory: Path) -> None:
    """Let what was created in it, or renamed, last."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def locked(path: Path) -> IO[str] | None:
    """The file, locked for this process until it is closed; None where another process has it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
