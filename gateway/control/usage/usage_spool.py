# The spool of the usage log: JSON lines in a bounded folder on disk.
#
# Files: `usage-<number>-<boot>.jsonl`, written by one process, synced to disk with every write (one a second);
# `published.json` says up to where the topic has them; `lock`.

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from gateway.system.files import lock_file, sync_directory
from policies import usage
from policies.record_digests import find_digest

log = logging.getLogger("gateway.usage")

SEGMENT_BYTES: Final = 64 * 2**20
SEGMENT_AGE_S: Final = 3600.0  # files go as wholes, so retention needs them to end
BATCH_BYTES: Final = 4 * 2**20  # written, or read, at once
_SEGMENT = re.compile(r"usage-(\d{8})-[0-9a-f]+\.jsonl")


class SpoolInUse(Exception):
    """Another gateway writes to this directory."""


class SpoolFull(OSError):
    """usage_log.max_spool_bytes is reached and nothing may be deleted."""


@dataclass(slots=True)
class _SpooledLife:
    """The spool's records of one boot of a worker."""

    gateway: str
    worker: int
    seq: int
    ended: bool  # final, or noted as lost
    segment: int  # where its last record is
    digest: str = ""  # of its last interval's record, where the log is chained


@dataclass(slots=True)
class _SpoolSegment:
    path: Path
    size: int


class UsageSpool:
    """The spool's files. Every method blocks, may be called from any thread, and raises OSError on a disk error.

    Raises:
        SpoolInUse: when opened.
    """

    def __init__(self, directory: Path, max_bytes: int, retention_s: float, *, published_only: bool) -> None:
        """`published_only`: delete only acknowledged records; else age alone decides (there is no topic)."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._retention_s = retention_s
        self._published_only = published_only
        self._segment_bytes = min(SEGMENT_BYTES, max_bytes // 8)
        self._boot = secrets.token_hex(4)
        self._guard = threading.Lock()
        self._segments: dict[int, _SpoolSegment] = {}  # in the order of their numbers
        self._fd = -1
        self._current = 0
        self._current_since = 0.0
        self._published = (0, 0)  # segment number, offset: what lies before is acknowledged
        self._lives: dict[str, _SpooledLife] = {}
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = lock_file(directory / "lock")
        if lock is None:
            raise SpoolInUse(f"{directory} is in use by another gateway: give each its own usage_log.spool_dir")
        self._lock = lock
        self._scan_directory()

    @property
    def batch_bytes(self) -> int:
        """So much should be written at once: of more, nothing might ever fit beside what the topic lacks."""
        return min(self._segment_bytes, BATCH_BYTES)

    @property
    def total_bytes(self) -> int:
        return sum(segment.size for segment in list(self._segments.values()))  # another thread may add some

    @property
    def backlog_bytes(self) -> int:
        """Bytes of records that the topic has not acknowledged yet."""
        number, offset = self._published
        found = ((s.size, offset if n == number else 0) for n, s in list(self._segments.items()) if n >= number)
        return sum(max(0, size - published) for size, published in found)  # a file that vanished has size 0

    def last_seq(self, boot: str) -> int:
        """The sequence number of the last interval of that boot on disk; -1: none."""
        life = self._lives.get(boot)
        return -1 if life is None else life.seq

    def last_digest(self, boot: str) -> str:
        """The digest of the last interval of that boot on disk; "": it has none."""
        life = self._lives.get(boot)
        return "" if life is None else life.digest

    def unfinished_lives(self) -> list[tuple[int, str, str, int]]:
        """(worker, gateway, boot, last seq) of every worker's life without a final interval."""
        with self._guard:
            return [(x.worker, x.gateway, boot, x.seq) for boot, x in self._lives.items() if not x.ended]

    def append(self, lines: list[bytes]) -> None:
        """Write records and sync them; all or none."""
        with self._guard:
            data = b"".join(line + b"\n" for line in lines)
            self._make_room(len(data))
            segment = self._writable_segment()
            try:
                _write_all(self._fd, data)
                os.fsync(self._fd)
            except OSError:
                self._undo_write(segment)
                raise
            segment.size += len(data)
            for line in lines:
                self._record_life(line, self._current)

    def read_unpublished(self, max_bytes: int = BATCH_BYTES) -> tuple[list[bytes], tuple[int, int]]:
        """Records after the published position, and the position after them; none when everything is published."""
        with self._guard:
            number, offset = self._published
            for n in [n for n in self._segments if n >= number]:
                lines, end = self._read_segment(n, offset if n == number else 0, max_bytes)
                if lines:
                    return lines, (n, end)
            return [], self._published

    def mark_published(self, position: tuple[int, int]) -> None:
        """The topic has everything up to this position."""
        with self._guard:
            self._published = position
            # No sync: an older position after a power cut means records that come twice, which is allowed.
            fresh = self._directory / "published.json.new"
            fresh.write_text(json.dumps({"segment": position[0], "offset": position[1]}))
            fresh.replace(self._directory / "published.json")

    def prune_expired(self) -> None:
        """Delete records beyond the retention."""
        with self._guard:
            horizon = time.time() - self._retention_s
            for number in [n for n in self._segments if self._is_deletable(n)]:
                if self._modified_at(number) < horizon:
                    self._delete_segment(number)

    def close(self) -> None:
        with self._guard:
            self._close_segment()
            self._lock.close()

    def _scan_directory(self) -> None:
        for path in sorted(self._directory.glob("usage-*.jsonl")):
            if match := _SEGMENT.fullmatch(path.name):
                self._segments[int(match[1])] = _SpoolSegment(path, _cut_broken_end(path))
        for number, segment in self._segments.items():
            with segment.path.open("rb") as file:
                for line in file:
                    self._record_life(line, number)
        try:
            position = json.loads((self._directory / "published.json").read_text())
            self._published = (int(position["segment"]), int(position["offset"]))
        except (OSError, ValueError, KeyError, TypeError):
            self._published = (0, 0)  # all of it once more: copies, never a gap
        self._current = max([*self._segments, self._published[0]], default=0)

    def _record_life(self, line: bytes, number: int) -> None:
        try:
            header = read_header(line)
            boot, seq, worker, gateway = header["boot"], header["seq"], header["worker"], header["gateway"]
            ended = header["final"] or header["kind"] == usage.LOST
        except (ValueError, KeyError):
            return  # not ours to judge; the audit reports it
        life = self._lives.setdefault(boot, _SpooledLife(gateway, worker, seq, ended, number))
        life.seq, life.ended, life.segment = max(life.seq, seq), ended, number
        if header["kind"] == usage.INTERVAL:
            life.digest = find_digest(line.rstrip(b"\n"))

    def _make_room(self, size: int) -> None:
        if self.total_bytes + size <= self._max_bytes:
            return
        # Retention is a wish, the bound is not. Without its last sign a life that goes on is no longer known after a
        # restart: better than records that are never written.
        if self._published_only:
            for is_deletable in (self._is_deletable, self._is_published):
                for number in [n for n in self._segments if is_deletable(n)]:
                    self._delete_segment(number)
                    if self.total_bytes + size <= self._max_bytes:
                        return
        if self.total_bytes:  # else it is more than the bound by itself, and no waiting helps
            raise SpoolFull(f"usage_log.max_spool_bytes = {self._max_bytes:,} is reached by records not yet published")

    def _is_deletable(self, number: int) -> bool:
        if (number == self._current and self._fd >= 0) or (self._published_only and not self._is_published(number)):
            return False
        return not any(life.segment == number and not life.ended for life in self._lives.values())

    def _is_published(self, number: int) -> bool:
        return (number, self._segments[number].size) <= self._published

    def _modified_at(self, number: int) -> float:
        try:
            return self._segments[number].path.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _delete_segment(self, number: int) -> None:
        if number == self._current:
            self._close_segment()
        self._segments[number].path.unlink(missing_ok=True)
        del self._segments[number]
        self._lives = {
            boot: life for boot, life in self._lives.items() if life.segment in self._segments or not life.ended
        }

    def _writable_segment(self) -> _SpoolSegment:
        if self._fd >= 0:
            segment = self._segments[self._current]
            aged = time.monotonic() - self._current_since >= SEGMENT_AGE_S
            if os.fstat(self._fd).st_nlink == 0:
                log.warning("%s was deleted while it was written to; going on in a new file", segment.path)
                del self._segments[self._current]
            elif not aged and segment.size < self._segment_bytes:
                return segment
            self._close_segment()
        self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        path = self._directory / f"usage-{self._current + 1:08d}-{self._boot}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._current += 1
        self._current_since = time.monotonic()
        self._segments[self._current] = _SpoolSegment(path, 0)
        sync_directory(self._directory)
        return self._segments[self._current]

    def _undo_write(self, segment: _SpoolSegment) -> None:
        """Half a record must not stay in the middle of a file; where it can't be cut off, a new file begins."""
        try:
            os.ftruncate(self._fd, segment.size)
        except OSError:
            self._close_segment()

    def _close_segment(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_segment(self, number: int, offset: int, max_bytes: int) -> tuple[list[bytes], int]:
        segment = self._segments[number]
        try:
            with segment.path.open("rb") as file:
                file.seek(offset)
                data = file.read(min(max_bytes, max(0, segment.size - offset)))
        except FileNotFoundError:
            log.error("%s disappeared before it was fully published", segment.path)
            segment.size = 0
            return [], 0
        except OSError as error:
            # The log goes on behind it as soon as somebody moves it away: what it had is a gap for the audit.
            raise OSError(error.errno, error.strerror, str(segment.path)) from error
        end = data.rfind(b"\n") + 1
        return data[:end].splitlines(), offset + end


def _cut_broken_end(path: Path) -> int:
    """The file's size after cutting off what a crash left of an interval, which was never confirmed: half a record, and
    records behind which further parts of their interval are missing.
    """
    size = path.stat().st_size
    with path.open("rb+") as file:
        end = _line_start(file, size)
        while end:
            start = _line_start(file, end - 1)
            file.seek(start)
            if not _lacks_parts(file.read(end - start)):
                break
            end = start
        if end < size:
            file.truncate(end)
    return end


def _line_start(file: IO[bytes], end: int) -> int:
    """Where the line begins of which file[:end] ends with a part: behind the last newline there."""
    while end > 0:
        start = max(0, end - 65_536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _lacks_parts(line: bytes) -> bool:
    try:
        header = read_header(line)
        return bool(header["part"] + 1 < header["parts"])
    except (ValueError, KeyError, TypeError):
        return False  # not ours to judge


def read_header(line: bytes) -> Any:
    """The record without its rows, which are most of it and come last."""
    return json.loads(line[: line.index(b',"rows":')] + b"}")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
