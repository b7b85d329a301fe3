# Where changes of policies are kept: a compacted topic that all gateways read and any of them writes (topic_store.py),
# or, without internal topics, a file of one gateway's own. Blocking, for threads: one at a time. Knows no worker and no
# door.

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from gateway.control.policies.topic_log import MAX_HISTORY, put_entry
from gateway.system.files import lock_file, sync_directory
from policies.definitions.policy_records import (
    AlterationHead,
    ChangeSource,
    InvalidPolicyRecord,
    PastChange,
    PolicyEntry,
    PolicyRecord,
    decode_record,
    encode_alteration,
)
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyChange, PolicyKey, PolicyValues
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.policy")
OPEN_BACKOFF_S: Final = (0.5, 30.0)
COMPACT_BYTES: Final = 2**24  # by which a file may grow, and to twice its size, before it is compacted
Decide = Callable[[PolicySet], PolicySet]


class StoreError(Exception):
    """A change was not made, although it is valid; one line with the reason."""


class InDoubtError(StoreError):
    """The change may have been made."""


class WrittenChange(NamedTuple):
    """`changes`: empty where nothing had to be changed."""

    before: PolicySet
    after: PolicySet
    changes: tuple[PolicyChange, ...]


class PolicyStore(Protocol):
    """A store of changes.

    Attributes:
        policies: the known values, the base included.
        history: changes that were read, the oldest first: of each value that is set the last one, and more as long as
            the store has not been compacted; MAX_HISTORY at most.
        is_loaded: whether all kept changes have been read once.
        problem: why no change can be made just now, one line; "" for none.
        has_other_writers: others write as well, so `poll_changes` must be called all the time.
    """

    @property
    def policies(self) -> PolicySet: ...

    @property
    def history(self) -> Sequence[PastChange]: ...

    @property
    def is_loaded(self) -> bool: ...

    @property
    def problem(self) -> str: ...

    @property
    def has_other_writers(self) -> bool: ...

    def poll_changes(self, timeout_s: float) -> None:
        """Apply changes that others wrote; return when there was one, or after that time."""

    def write_change(self, decide: Decide, source: ChangeSource) -> WrittenChange:
        """Alter the newest state by `decide`, and return when the change is stored and read back. `decide` may be
        called more than once.

        Raises:
            PolicyError: from `decide`.
            StoreError: the change can't be stored.
        """

    def replace_base(self, base: PolicyValues) -> None:
        """Keep the changes over another base."""

    def close(self) -> None: ...


class RetriedStore:
    """A store that can't be opened yet: opening is retried with growing pauses. For a gateway that is running:
    `problem` says what is missing, and nothing ends.
    """

    def __init__(self, make: Callable[[], PolicyStore], base: PolicyValues) -> None:
        self._make = make
        self._store: PolicyStore | None = None
        self._unopened = PolicySet(base)
        self._pause_s = OPEN_BACKOFF_S[0]
        self._next_try = 0.0
        self._problem = ""
        self._try_open()

    @property
    def policies(self) -> PolicySet:
        return self._unopened if self._store is None else self._store.policies

    @property
    def history(self) -> Sequence[PastChange]:
        return () if self._store is None else self._store.history

    @property
    def is_loaded(self) -> bool:
        return self._store is not None and self._store.is_loaded

    @property
    def problem(self) -> str:
        return self._problem if self._store is None else self._store.problem

    @property
    def has_other_writers(self) -> bool:
        return self._store is None or self._store.has_other_writers

    def poll_changes(self, timeout_s: float) -> None:
        if self._store is not None:
            self._store.poll_changes(timeout_s)
        elif time.monotonic() >= self._next_try:
            self._try_open()
        else:
            time.sleep(timeout_s)

    def write_change(self, decide: Decide, source: ChangeSource) -> WrittenChange:
        if self._store is None:
            raise StoreError(self._problem)
        return self._store.write_change(decide, source)

    def replace_base(self, base: PolicyValues) -> None:
        self._unopened = self._unopened.with_base(base)
        if self._store is not None:
            self._store.replace_base(base)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _try_open(self) -> None:
        try:
            store = self._make()
        except StoreError as error:
            if not self._problem:
                log.error("policies: %s; continuing without it", error)
            self._problem = one_line(str(error), ERROR_CHARS)
            self._next_try = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, OPEN_BACKOFF_S[1])
        else:
            store.replace_base(self._unopened.base)
            if self._problem:
                log.info("policies: can be read and written again")
            self._store = store


# --- the file ---------------------------------------------------------------------------------------------------------


class FileStore:
    """JSON lines, one per alteration, synced to disk before it counts. Compacted when it is opened, and when it has
    grown; but one with something unreadable in it may be worth a look, and stays as it is.

    Raises:
        StoreError: the file can't be read or written, or another gateway uses it.
    """

    has_other_writers = False

    def __init__(self, path: Path, base: PolicyValues) -> None:
        self._path = path
        self._records: dict[bytes, PolicyRecord] = {}  # the last of each key, removals left out
        self._fd = -1
        self._size = 0
        self._broken = False  # half a line may be at the end
        self._past: deque[PastChange] = deque(maxlen=MAX_HISTORY)
        self.is_loaded = True
        self.problem = ""
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            lock = lock_file(path.with_name(path.name + ".lock"))
            if lock is None:
                raise StoreError(f"{path} is in use by another gateway: give each its own policies_store.file")
            self._lock = lock
            self._entries, version, self._is_whole = self._load_file()
            self._open_file()
            self._compact_file()
        except OSError as error:
            raise StoreError(f"{path}: can't be used: {error.strerror or error}") from error
        self.policies = PolicySet.from_entries(base, self._entries.values(), version)
        self.history: Sequence[PastChange] = tuple(self._past)

    def poll_changes(self, timeout_s: float) -> None:
        """No other gateway writes here; but after a failure there may be room again, which only a line shows."""
        if self.problem:
            with suppress(OSError):
                self._append_records([])
                self.problem = ""

    def write_change(self, decide: Decide, source: ChangeSource) -> WrittenChange:
        before = self.policies
        after = decide(before)
        written = WrittenChange(before, after, after.changes_since(before))
        if written.changes:
            head = AlterationHead(
                after.version, secrets.token_hex(8), time.time_ns() // 10**6, source, len(written.changes)
            )
            records = encode_alteration(written.changes, head, self._entries)
            try:
                self._append_records(records)
            except OSError as error:
                self.problem = f"{self._path}: can't be written: {error.strerror or error}"
                raise StoreError(self.problem) from error
            self.policies, self.problem = after, ""
            for entry in (decode_record(*record) for record in records):
                if isinstance(entry, PolicyEntry):
                    put_entry(self._entries, self._past, entry)
            self.history = tuple(self._past)
        return written

    def replace_base(self, base: PolicyValues) -> None:
        self.policies = self.policies.with_base(base)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._lock.close()

    def _load_file(self) -> tuple[dict[PolicyKey, PolicyEntry], int, bool]:
        held: dict[PolicyKey, PolicyEntry] = {}
        version, whole = 0, True
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return held, version, whole
        end = data.rfind(b"\n") + 1  # the part of a line that a crash left was never confirmed
        for number, line in enumerate(data[:end].splitlines(), 1):
            try:
                records = [_parse_record(fields) for fields in json.loads(line)["records"]]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                log.error(
                    "policies: %s, line %d is left out: %s", self._path, number, one_line(str(error), ERROR_CHARS)
                )
                whole = False
                continue
            faults: list[str] = []
            for record in records:
                try:
                    decoded = decode_record(*record)
                except InvalidPolicyRecord as error:  # by itself: one line has all that was in force at a start
                    faults.append(one_line(str(error), ERROR_CHARS))
                    continue
                if isinstance(decoded, PolicyEntry):
                    put_entry(held, self._past, decoded)
                elif decoded is not None:
                    version = decoded.version
                self._keep_record(record)
            if faults:
                log.error("policies: %s, line %d: %d of %d records are left out, the first since %s",
                          self._path, number, len(faults), len(records), faults[0])  # fmt: skip
                whole = False
        if end < len(data):
            with self._path.open("rb+") as file:
                file.truncate(end)
        return held, version, whole

    def _keep_record(self, record: PolicyRecord) -> None:
        self._records.pop(record.key, None)
        if record.value is not None:
            self._records[record.key] = record

    def _append_records(self, records: list[PolicyRecord]) -> None:
        if os.fstat(self._fd).st_nlink == 0:
            log.warning("policies: %s was deleted; writing it anew", self._path)
            self._rewrite_file()
        self._cut_broken_end()
        line = _records_line(records)
        self._broken = True
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError:
            self._cut_broken_end()
            raise
        self._broken = False
        self._size += len(line)
        for record in records:
            self._keep_record(record)
        if self._size > self._compact_above:
            self._compact_file()

    def _cut_broken_end(self) -> None:
        if self._broken:
            os.ftruncate(self._fd, self._size)
            self._broken = False

    def _compact_file(self) -> None:
        if not self._is_whole:
            return
        try:
            self._rewrite_file()
        except OSError as error:  # such as a full disk: all of it can be read as it is
            self._compact_above = self._size + COMPACT_BYTES
            log.warning("policies: %s can't be compacted: %s", self._path, error.strerror or error)

    def _rewrite_file(self) -> None:
        """Replace the file by the changes still in force, with their authors."""
        self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            with open(fresh, "wb", opener=_open_private) as file:
                if self._records:
                    file.write(_records_line(self._records.values()))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        sync_directory(self._path.parent)
        self._open_file()

    def _open_file(self) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._size = os.fstat(self._fd).st_size
        self._compact_above = max(2 * self._size, COMPACT_BYTES)


def _open_private(path: str, flags: int) -> int:
    """Other users of the machine must not read principals and limits."""
    return os.open(path, flags, 0o640)


def _records_line(records: Iterable[PolicyRecord]) -> bytes:
    parts = (
        b'{"key":%b,"value":%b%b}'
        % (record.key, record.value or b"null", b',"audit":' + record.audit if record.audit else b"")
        for record in records
    )
    return b'{"records":[' + b",".join(parts) + b"]}\n"


def _parse_record(content: Any) -> PolicyRecord:
    key, value, audit = content["key"], content["value"], content.get("audit")
    return PolicyRecord(
        _dump_json(key), None if value is None else _dump_json(value), None if audit is None else _dump_json(audit)
    )


def _dump_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
