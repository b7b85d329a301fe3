# Where changes of policies are kept: a compacted topic that all gateways read and any of them writes, or, without
# internal topics, a file of one gateway's own.
#
# The topic: every gateway reads it from its beginning, in its order, and only what was committed. Who writes takes a
# transaction under an id that all gateways share: beginning one ends everybody else's, so that between reading up to
# the end, judging against that state, and committing nobody else can have written, or the commit is refused and all of
# it is done again against what the other has written. So a change is judged by the very state that it alters,
# contradicting changes can't both get in, a change of thousands of values is there as a whole or not at all (also when
# its writer is killed), and no record has to be ignored afterwards, which compaction would not stand: it may remove the
# valid record and leave the refused one. Only partition 0 is used.
#
# When the topic is gone, what was known last stays, and changes are refused; into a new, empty one of the same name the
# gateway writes what it has. Blocking, for threads: one at a time. Knows no worker and no door.

from __future__ import annotations

import json
import logging
import os
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from gateway.files import locked, sync_directory
from gateway.kafka.describe import NO_TOPIC
from gateway.kafka.internal_topic import (
    CREATE_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    RETRY_S,
    Essential,
    InternalTopic,
    Present,
    Spec,
    TopicError,
    Troubles,
    Unreachable,
)
from policies.policy_set import (
    Change,
    Entry,
    Head,
    InvalidRecord,
    PolicyKey,
    PolicySet,
    Record,
    Source,
    Value,
    Values,
    decode,
    encode,
)
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.policy")
_silent: Final = logging.getLogger("gateway.policy.librdkafka")  # being fenced is daily life here, and no FATAL
_silent.addHandler(logging.NullHandler())
_silent.propagate = False

WRITE_TIMEOUT_S: Final = 30.0  # the first transaction of a cluster creates the topic that Kafka keeps them in
TRANSACTION_MS: Final = 10_000  # so long a killed writer may hold up the readers, unless somebody writes
FETCH_WAIT_MS: Final = 100  # the end is told by a fetch that brings nothing: who writes may wait for one
BACKOFF_S: Final = 0.1
POLL_S: Final = 0.1
MAX_TOKENS: Final = 1000  # of alterations seen last: to find one's own again
MAX_COMPLAINTS: Final = 20
# To try these again is of no use: somebody has to do something.
HOPELESS: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError._AUTHENTICATION,
        KafkaError._UNSUPPORTED_FEATURE,
    }
)
OPEN_BACKOFF_S: Final = (0.5, 30.0)
# A removal must outlast any gateway that doesn't see it: a week. Few records: segments end early, or nothing would ever
# be compacted.
SPEC: Final = Spec(
    {
        "cleanup.policy": "compact",
        "segment.ms": "3600000",
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": "604800000",
    },
    Essential("cleanup.policy", ("compact",), "policies in it are forgotten"),
)

Decide = Callable[[PolicySet], PolicySet]


class StoreError(Exception):
    """A change was not made, for no fault of its own; one line, why."""


class Written(NamedTuple):
    """`changes`: none where nothing was to be done."""

    before: PolicySet
    after: PolicySet
    changes: tuple[Change, ...]


class Store(Protocol):
    """What keeps changes.

    Attributes:
        policies: what is known, the base included.
        loaded: whether all that was kept has been read once.
        problem: why no change can be made just now, one line; "" for none.
        follows: others write as well, so `poll` must be called all the time.
    """

    @property
    def policies(self) -> PolicySet: ...

    @property
    def loaded(self) -> bool: ...

    @property
    def problem(self) -> str: ...

    @property
    def follows(self) -> bool: ...

    def poll(self, timeout_s: float) -> None:
        """Take over what others wrote; return when there was something, or after that time."""

    def write(self, decide: Decide, source: Source) -> Written:
        """Alter the newest state as `decide` says, and return when that is kept and read again.

        `decide` may be asked more than once.

        Raises:
            PolicyError: `decide` did.
            StoreError: it can't be kept.
        """

    def rebase(self, base: Values) -> None:
        """Keep the changes over another base."""

    def close(self) -> None: ...


class RetriedStore:
    """A store that can't be opened yet: tried again with growing pauses, and that store once it could be.

    For a gateway that is at work: what it lacks is told as `problem`, and ends nothing.
    """

    def __init__(self, make: Callable[[], Store], base: Values) -> None:
        self._make = make
        self._store: Store | None = None
        self._unopened = PolicySet(base)
        self._pause_s = OPEN_BACKOFF_S[0]
        self._next_try = 0.0
        self._problem = ""
        self._try()

    @property
    def policies(self) -> PolicySet:
        return self._unopened if self._store is None else self._store.policies

    @property
    def loaded(self) -> bool:
        return self._store is not None and self._store.loaded

    @property
    def problem(self) -> str:
        return self._problem if self._store is None else self._store.problem

    @property
    def follows(self) -> bool:
        return self._store is None or self._store.follows

    def poll(self, timeout_s: float) -> None:
        if self._store is not None:
            self._store.poll(timeout_s)
        elif time.monotonic() >= self._next_try:
            self._try()
        else:
            time.sleep(timeout_s)

    def write(self, decide: Decide, source: Source) -> Written:
        if self._store is None:
            raise StoreError(self._problem)
        return self._store.write(decide, source)

    def rebase(self, base: Values) -> None:
        self._unopened = self._unopened.rebased(base)
        if self._store is not None:
            self._store.rebase(base)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _try(self) -> None:
        try:
            store = self._make()
        except StoreError as error:
            if not self._problem:
                log.error("policies: %s; going on without", error)
            self._problem = one_line(str(error), ERROR_CHARS)
            self._next_try = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, OPEN_BACKOFF_S[1])
        else:
            store.rebase(self._unopened.base)
            if self._problem:
                log.info("policies: can be read and written again")
            self._store = store


class _Again(Exception):
    """An attempt came to nothing, or nobody knows: another may succeed."""


# --- the topic --------------------------------------------------------------------------------------------------------


class TopicStore:
    """The compacted topic. Constructing it connects to nothing.

    Args:
        properties: librdkafka's, `bootstrap.servers` among them.
        base: what the configuration file says.
        replication: copies of a topic that has to be created; None = 3, or the number of brokers where that is less.
        member: this gateway's name.
    """

    follows = True

    def __init__(
        self,
        properties: Mapping[str, Any],
        topic: str,
        base: Values,
        *,
        replication: int | None = None,
        member: str = "produce-gateway",
    ) -> None:
        self.policies = PolicySet(base)
        self.loaded = False
        self.invalid = 0  # records that could not be used, so far
        self._restorer = Source(member, "restored")
        self._properties = {"log_level": 2, "reconnect.backoff.max.ms": 2000, "logger": _silent, **properties}
        self._topic = InternalTopic(self._properties, topic, SPEC, replication)
        self._troubles = Troubles(log, "policies")
        self._expect_to_read()
        self._consumer = Consumer(
            {
                "group.id": "produce-gateway-policies",  # librdkafka wants one; it is neither joined nor committed to
                **self._properties,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "error_cb": self._topic.note_error,
            }
        )
        self._producer: Producer | None = None
        self._guard = threading.Lock()
        self._log: dict[PolicyKey, Value] = {}  # the topic as far as it was read
        self._version = 0
        self._heads: list[Head] = []  # read, not yet taken over
        self._fresh = False  # something was read since the end was last reached
        self._caught_up = False  # the end of this topic has been reached once
        self._whole = False  # what was read last ended a transaction
        self._end = -1  # up to where everything has been read
        self._tokens: deque[str] = deque(maxlen=MAX_TOKENS)
        self._topic_id: object = None
        self._lost = False
        self._unsaved = False  # the topic is a new and empty one: what we know is not in it
        self._save_at = 0.0
        self._mine = ""  # token of what is or was written here last
        self._said = ""  # by a fetch, last
        self._closed = False

    @property
    def problem(self) -> str:
        return self._troubles.problem

    def poll(self, timeout_s: float) -> None:
        with self._guard:
            if self._closed:
                return
            if self._topic.is_due:
                self._look()
            self._read(timeout_s)
            if self._unsaved and time.monotonic() >= self._save_at:
                try:
                    self._write(None, self._restorer, timeout_s=REQUEST_TIMEOUT_S)
                except StoreError as error:
                    self._save_at = time.monotonic() + RETRY_S
                    self._troubles.complain(
                        "unsaved", f"what is known can't be written into topic {self._topic.name} again: {error}"
                    )

    def write(self, decide: Decide, source: Source) -> Written:
        with self._guard:
            return self._write(decide, source, timeout_s=WRITE_TIMEOUT_S)

    def rebase(self, base: Values) -> None:
        with self._guard:
            self.policies = self.policies.rebased(base)

    def close(self) -> None:
        if self._guard.acquire(timeout=1.0):  # else somebody still waits for a broker, and goes with the process
            self._closed = True
            self._drop_producer()
            self._consumer.close()
            self._guard.release()

    # --- writing ------------------------------------------------------------------------------------------------------

    def _write(self, decide: Decide | None, source: Source, timeout_s: float) -> Written:
        """`decide` None: only write what a new topic lacks."""
        deadline = time.monotonic() + timeout_s
        token = self._mine = secrets.token_hex(8)
        written: Written | None = None
        pause = BACKOFF_S
        while True:
            self._look()
            if self.problem and self._troubles.kind != "unsaved":
                raise StoreError(self.problem)
            try:
                producer = self._open_producer(deadline)
                self._catch_up(deadline)
                if written is not None and token in self._tokens:
                    return written  # the answer to the commit got lost, the commit did not
                if self._unsaved:
                    self._save(producer, deadline)
                before = self.policies
                after = before if decide is None else decide(before)
                written = Written(before, after, after.changes_since(before))
                if not written.changes:
                    return written
                self._commit(producer, written.changes, self._head(after.version, token, source, written), deadline)
            except _Again as reason:
                self._drop_producer()
                if time.monotonic() + pause > deadline:
                    doubt = "" if written is None else "; if it was written all the same, it will show"
                    raise StoreError(f"topic {self._topic.name} can't be written: {reason}{doubt}") from reason
                time.sleep(random.uniform(0, pause))  # noqa: S311  (no secret): two who fence each other must part
                pause = min(2 * pause, RETRY_S)
                continue
            while token not in self._tokens and time.monotonic() < deadline:
                self._read(POLL_S)
            if token not in self._tokens:
                self.policies = after  # it is committed, and nobody can have written since; reading goes on
            return written

    def _save(self, producer: Producer, deadline: float) -> None:
        """Write all that is known into an empty topic."""
        kept = self.policies
        empty = PolicySet(kept.base)
        lacking = Written(empty, kept, kept.changes_since(empty))
        head = self._head(kept.version + 1, secrets.token_hex(8), self._restorer, lacking)
        self._commit(producer, lacking.changes, head, deadline)
        self._unsaved = False
        self._catch_up(deadline)
        log.warning("policies: wrote the %d values known into the new topic %s", len(lacking.changes), self._topic.name)

    def _head(self, version: int, token: str, source: Source, written: Written) -> Head:
        return Head(version, token, time.time_ns() // 10**6, source, len(written.changes))

    def _open_producer(self, deadline: float) -> Producer:
        """One that may write as long as no other gateway does."""
        if self._producer is None:
            producer = Producer(
                {
                    **self._properties,
                    "transactional.id": self._topic.name,  # of all gateways that share the topic
                    "transaction.timeout.ms": TRANSACTION_MS,
                    "acks": "all",
                    "compression.type": "lz4",
                    "topic.metadata.propagation.max.ms": 3_000,
                }
            )
            try:
                producer.init_transactions(_left(deadline))
            except KafkaException as error:
                raise self._failure(error.args[0]) from error
            self._producer = producer
        return self._producer

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _commit(self, producer: Producer, changes: Iterable[Change], head: Head, deadline: float) -> None:
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        try:
            producer.begin_transaction()
            for record in encode(changes, head):
                self._produce(producer, record, delivered, deadline)
            producer.commit_transaction(_left(deadline))
        except KafkaException as error:
            self._drop_producer()
            raise self._failure(failed[0] if failed else error.args[0]) from error

    def _failure(self, error: KafkaError) -> Exception:
        if error.code() not in HOPELESS:
            return _Again(error.str())
        right = ""
        if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            right = f": allow Write and Describe on transactional id {self._topic.name}"
        return StoreError(f"topic {self._topic.name} can't be written: {error.str()}{right}")

    def _produce(self, producer: Producer, record: Record, delivered: Callable[..., None], deadline: float) -> None:
        headers: list[tuple[str, str | bytes | None]] = [("audit", record.audit)] if record.audit else []
        while True:
            try:
                producer.produce(
                    self._topic.name, record.value, record.key, partition=0, headers=headers, on_delivery=delivered
                )
                return
            except BufferError:
                if time.monotonic() > deadline:
                    raise _Again("no answer") from None
                producer.poll(POLL_S)

    def _catch_up(self, deadline: float) -> None:
        """Read to where the end of what is committed is now, and take it over."""
        partition = TopicPartition(self._topic.name, 0)
        try:  # not by the consumer, whose connection is busy with a fetch
            asked = self._topic.admin.list_offsets(
                {partition: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=REQUEST_TIMEOUT_S,
            )
            end = asked[partition].result(timeout=CREATE_TIMEOUT_S).offset
        except KafkaException as error:
            raise self._failure(error.args[0]) from error
        except TimeoutError as error:
            raise _Again("no answer") from error
        while not self._caught_up or self._fresh or self._end < end:
            if time.monotonic() > deadline:
                raise _Again(self._said or "what is in it could not be read in time")
            self._read(POLL_S)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self, timeout_s: float) -> None:
        message = self._consumer.poll(timeout_s)
        while message is not None:
            error = message.error()
            if error is None:
                self._take(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._caught_up = self._whole = True
                self._end = message.offset() or 0
            elif error.code() in NO_TOPIC:
                self._topic.hurry()
            elif error.code() not in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._ALL_BROKERS_DOWN):
                self._said = error.str()
                if error.code() in HOPELESS:
                    self._troubles.complain("unreadable", f"topic {self._topic.name} can't be read: {error.str()}")
            message = self._consumer.poll(0)
        if self._caught_up and self._whole:
            self._whole = False
            self._settle()

    def _take(self, message: Message) -> None:
        self._fresh, self._whole = True, False
        try:
            said = decode(_bytes(message.key()), _bytes(message.value()))
        except InvalidRecord as error:
            self.invalid += 1
            if self.invalid <= MAX_COMPLAINTS:
                why = one_line(str(error), ERROR_CHARS)
                log.warning("policies: topic %s, offset %s is left out: %s", self._topic.name, message.offset(), why)
            return
        if isinstance(said, Entry):
            _put(self._log, said)
        elif said is not None:
            self._version = said.version
            self._heads.append(said)
            self._tokens.append(said.token)
            self._whole = True
            self._end = max(self._end, (message.offset() or 0) + 2)  # the head, and the mark of the commit behind it

    def _settle(self) -> None:
        """All that was read is whole transactions: take it over."""
        if self._unsaved and not self._fresh:
            return
        if not self.loaded or self._fresh:
            self._unsaved = False
            self.policies = PolicySet(self.policies.base, dict(self._log), self._version)
            if not self.loaded:
                log.info(
                    "policies: topic %s holds %d values, version %d", self._topic.name, len(self._log), self._version
                )
            else:
                for head in self._heads:
                    if head.token != self._mine:
                        log.info("policies: version %d, %s", head.version, _described(head))
        self.loaded = True
        self._fresh = False
        self._heads.clear()
        if self._troubles.kind in ("unread", "unreadable", "unsaved"):
            self._recover()

    # --- the topic itself ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask for the topic's id, and follow it."""
        found = self._topic.look()
        if isinstance(found, Unreachable):
            self._troubles.complain("down", f"topic {self._topic.name} can't be looked up: {found.why}")
        elif isinstance(found, Present):
            self._said = ""
            self._follow(found.topic_id)
            if self._troubles.kind in ("down", "lost"):
                self._recover()
        elif self._topic_id is not None or self._lost:
            self._lose()
        else:
            self._create()

    def _follow(self, topic_id: str) -> None:
        if topic_id == self._topic_id:
            return
        anew = self._lost or self._topic_id is not None
        if anew:
            log.warning("policies: topic %s was made anew; reading it from the beginning", self._topic.name)
        self._topic_id, self._lost = topic_id, False
        self._drop_producer()
        self._log, self._version, self._end = {}, 0, -1
        self._fresh = self._caught_up = self._whole = False
        self._heads.clear()
        self._unsaved = anew and self.loaded and bool(self.policies.changes)
        self._consumer.assign([TopicPartition(self._topic.name, 0, OFFSET_BEGINNING)])
        if wrong := self._topic.judge():
            log.warning("policies: %s", wrong)

    def _lose(self) -> None:
        self._troubles.complain(
            "lost",
            f"topic {self._topic.name} was deleted; the last known policies stay: create it again, or restart a"
            " gateway, which does, and what is known is written into it",
        )
        if not self._lost:
            self._lost, self._topic_id = True, None
            self._consumer.unassign()
            self._drop_producer()

    def _create(self) -> None:
        try:
            self._topic.create()
        except TopicError as error:
            self._troubles.complain("down", str(error))
        else:
            self._topic.hurry(POLL_S)

    def _expect_to_read(self) -> None:
        self._troubles.expect("unread", f"topic {self._topic.name} has not been read yet")

    def _recover(self) -> None:
        if not self.loaded:
            self._expect_to_read()
        else:
            first = self._troubles.kind == "unread"
            self._troubles.clear("" if first else f"topic {self._topic.name} can be read and written again")


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())


def _described(head: Head) -> str:
    who, door, peer = map(one_line, head.source)
    return f"{head.changes} values, by {who} ({door}{' from ' + peer if peer else ''})"


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _put(held: dict[PolicyKey, Value], entry: Entry) -> None:
    if entry.value is None:
        held.pop(entry.key, None)
    else:
        held[entry.key] = entry.value


# --- the file ---------------------------------------------------------------------------------------------------------


class FileStore:
    """JSON lines, one per alteration, synced to disk before it counts. Compacted when it is opened.

    Raises:
        StoreError: it can't be read or written, or another gateway has it.
    """

    follows = False

    def __init__(self, path: Path, base: Values) -> None:
        self._path = path
        self._records: dict[bytes, Record] = {}  # the last of each key, removals left out
        self._fd = -1
        self._size = 0
        self._broken = False  # half a line may be at the end
        self.loaded = True
        self.problem = ""
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            lock = locked(path.with_name(path.name + ".lock"))
            if lock is None:
                raise StoreError(f"{path} is in use by another gateway: give each its own policies_store.file")
            self._lock = lock
            held, version, whole = self._load()
            if whole:
                self._rewrite()
            else:  # what can't be read may be worth somebody's look
                self._open()
        except OSError as error:
            raise StoreError(f"{path}: can't be used: {error.strerror or error}") from error
        self.policies = PolicySet(base, held, version)

    def poll(self, timeout_s: float) -> None:
        """Nobody else writes here."""

    def write(self, decide: Decide, source: Source) -> Written:
        before = self.policies
        after = decide(before)
        written = Written(before, after, after.changes_since(before))
        if written.changes:
            head = Head(after.version, secrets.token_hex(8), time.time_ns() // 10**6, source, len(written.changes))
            try:
                self._append(encode(written.changes, head))
            except OSError as error:
                self.problem = f"{self._path}: can't be written: {error.strerror or error}"
                raise StoreError(self.problem) from error
            self.policies, self.problem = after, ""
        return written

    def rebase(self, base: Values) -> None:
        self.policies = self.policies.rebased(base)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._lock.close()

    def _load(self) -> tuple[dict[PolicyKey, Value], int, bool]:
        held: dict[PolicyKey, Value] = {}
        version, whole = 0, True
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return held, version, whole
        end = data.rfind(b"\n") + 1  # what a crash left of a line behind it was never confirmed
        for number, line in enumerate(data[:end].splitlines(), 1):
            try:
                records = [_record(said) for said in json.loads(line)["records"]]
                entries = [decode(record.key, record.value) for record in records]
            except (InvalidRecord, ValueError, KeyError, TypeError, RecursionError) as error:
                log.error(
                    "policies: %s, line %d is left out: %s", self._path, number, one_line(str(error), ERROR_CHARS)
                )
                whole = False
                continue
            for said in entries:
                if isinstance(said, Entry):
                    _put(held, said)
                elif said is not None:
                    version = said.version
            self._keep(records)
        if not whole:
            with self._path.open("rb+") as file:
                file.truncate(end)
        return held, version, whole

    def _keep(self, records: Iterable[Record]) -> None:
        for record in records:
            self._records.pop(record.key, None)
            if record.value is not None:
                self._records[record.key] = record

    def _append(self, records: list[Record]) -> None:
        if os.fstat(self._fd).st_nlink == 0:
            log.warning("policies: %s was deleted; writing it anew", self._path)
            self._rewrite()
        self._cut()
        line = _line(records)
        self._broken = True
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError:
            self._cut()
            raise
        self._broken = False
        self._size += len(line)
        self._keep(records)

    def _cut(self) -> None:
        if self._broken:
            os.ftruncate(self._fd, self._size)
            self._broken = False

    def _rewrite(self) -> None:
        """Only what still holds, who set it included, in place of the file."""
        self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".new")
        with open(fresh, "wb", opener=_open_private) as file:
            if self._records:
                file.write(_line(self._records.values()))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        sync_directory(self._path.parent)
        self._open()

    def _open(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._size = os.fstat(self._fd).st_size


def _open_private(path: str, flags: int) -> int:
    """Principals and limits are no business of other users of the machine."""
    return os.open(path, flags, 0o640)


def _line(records: Iterable[Record]) -> bytes:
    parts = (
        b'{"key":%b,"value":%b%b}'
        % (record.key, record.value or b"null", b',"audit":' + record.audit if record.audit else b"")
        for record in records
    )
    return b'{"records":[' + b",".join(parts) + b"]}\n"


def _record(said: Any) -> Record:
    key, value, audit = said["key"], said["value"], said.get("audit")
    return Record(_dump(key), None if value is None else _dump(value), None if audit is None else _dump(audit))


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
