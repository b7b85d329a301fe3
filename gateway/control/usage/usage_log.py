# The usage log: intervals from workers -> JSON lines in a bounded spool on disk -> a Kafka topic.
#
# A worker keeps an interval until it is in the spool, and the spool keeps it until the topic has acknowledged it, so
# whatever dies, nothing goes missing; what can come twice (a crash between the two steps) is recognised by its boot and
# sequence number. While the spool takes nothing, or can't be opened by a control that was started again, intervals wait
# here as long as there is room, then in the workers. policies/usage.py has the contents of a record. Files:
# `usage-<number>-<boot>.jsonl`, written by one process, synced to disk with every write (one a second);
# `published.json` says up to where the topic has them; `lock`.

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import trio
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gateway.channel import UsageInterval
from gateway.control.metrics import GatewayMetrics
from gateway.kafka.internal_topic import EssentialConfig, InternalTopic, TopicError, TopicSpec, is_fatal
from gateway.system.files import lock_file, sync_directory
from policies import usage
from policies.record_digests import chain_record, find_digest

log = logging.getLogger("gateway.usage")

MAX_QUEUED: Final = 600  # intervals that wait here for a disk with room: ten minutes of one worker …
MAX_QUEUED_ROWS: Final = 200_000  # … or this many rows, about 100 MB
RETRY_S: Final = 1.0
SEGMENT_BYTES: Final = 64 * 2**20
SEGMENT_AGE_S: Final = 3600.0  # files go as wholes, so retention needs them to end
BATCH_BYTES: Final = 4 * 2**20  # written, or read, at once
PUBLISH_TIMEOUT_MS: Final = 30_000
PUBLISH_BACKOFF_S: Final = (0.5, 30.0)
_SEGMENT = re.compile(r"usage-(\d{8})-[0-9a-f]+\.jsonl")
# All records of a worker's life have one key.
_NO_COMPACTION: Final = EssentialConfig(
    "cleanup.policy", ("delete",), "of each worker all records but the last get lost"
)
# Nothing in our power makes the broker take these, and the records behind must not wait for them for ever.
_FINAL_ERRORS: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})


class SpoolInUse(Exception):
    """Another gateway writes to this directory."""


class SpoolFull(OSError):
    """usage_log.max_spool_bytes is reached and nothing may be deleted."""


class PublishError(Exception):
    """The topic did not take the records; they stay in the spool."""


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
        return sum(s.size - (offset if n == number else 0) for n, s in list(self._segments.items()) if n >= number)

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
            header = _header_of(line)
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


@dataclass(frozen=True, slots=True)
class LogChain:
    """Records get digests (policies/record_digests.py), with this key if there is one."""

    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class _QueuedInterval:
    """An interval to be written."""

    interval: UsageInterval
    confirm: Callable[[], None]

    @property
    def row_count(self) -> int:
        return len(self.interval.rows)


@dataclass(frozen=True, slots=True)
class _QueuedCopy:
    """An interval that was queued before: to be confirmed in its turn, not to be written again."""

    confirm: Callable[[], None]
    row_count = 0


@dataclass(frozen=True, slots=True)
class _LostNote:
    """The record that a boot ended without its final interval: nothing waits for it."""

    boot: str
    line: bytes
    row_count = 0

    def confirm(self) -> None:
        pass


_QueuedItem = _QueuedInterval | _QueuedCopy | _LostNote


class UsageLogWriter:
    """Writes intervals to the spool in order, and confirms them. `spool` None: it can't be used yet, see
    `attach_spool`. `problem`: why nothing can be written now, one line; "": it can.
    """

    def __init__(
        self, spool: UsageSpool | None, gateway: str, metrics: GatewayMetrics, chain: LogChain | None = None
    ) -> None:
        self.problem = ""
        self._chain = chain
        self._spool: UsageSpool | None = None
        self._gateway = gateway
        self._metrics = metrics
        self._queue: deque[_QueuedItem] = deque()
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self.written = trio.Event()  # set with every write: the publisher waits for it
        self._last_seqs: dict[str, int] = {}
        self._rows = 0  # in the queue
        self._boots: dict[int, str] = {}  # of workers that came before the spool
        self._opened = trio.Event()
        self._disks: usage.DiskNotes | None = None  # for the next interval's record
        self._cluster = ""  # its id, for every record
        if spool is not None:
            self.attach_spool(spool)

    def attach_spool(self, spool: UsageSpool) -> None:
        """Write intervals to this spool from now on, the waiting ones first."""
        self._spool = spool
        for worker, boot in self._boots.items():
            self._metrics.workers_lost.inc(len(self.enqueue_lost_before(worker, boot)))
        self._opened.set()

    @property
    def has_room(self) -> bool:
        """Whether another interval may be queued; if not, its worker keeps it."""
        return len(self._queue) < MAX_QUEUED and self._rows < MAX_QUEUED_ROWS

    def enqueue_interval(self, interval: UsageInterval, confirm: Callable[[], None]) -> bool:
        """Queue an interval. False: it is a copy of an earlier one (and is confirmed in its turn)."""
        on_disk = -1 if self._spool is None else self._spool.last_seq(interval.boot)
        last = max(self._last_seqs.get(interval.boot, -1), on_disk)
        fresh = interval.seq > last
        self._last_seqs[interval.boot] = max(last, interval.seq)
        self._enqueue_item(_QueuedInterval(interval, confirm) if fresh else _QueuedCopy(confirm))
        return fresh

    def record_disks(self, disks: usage.DiskNotes) -> None:
        """Add this to the record of the next interval."""
        self._disks = disks

    def record_cluster(self, cluster_id: str) -> None:
        """Add this to every record from now on."""
        self._cluster = cluster_id

    def enqueue_lost(self, worker: int, boot: str, gateway: str = "", seq: int = -1) -> None:
        """Record that a boot of a worker ended without its final interval."""
        seq = max(seq, self._last_seqs.get(boot, -1))
        now_ms = time.time_ns() // 10**6
        line = usage.encode_lost(gateway or self._gateway, boot, worker, seq, now_ms, self._cluster)
        self._enqueue_item(_LostNote(boot, line))

    def enqueue_lost_before(self, worker: int, boot: str) -> list[str]:
        """Record every life of that worker in the spool that has no end, except this one. Returns their boots; none
        while there is no spool: then they are counted when it is opened.
        """
        if self._spool is None:
            self._boots[worker] = boot
            return []
        return self._enqueue_lost_lives(lambda number, old: number == worker and old != boot)

    def enqueue_lost_beyond(self, workers: int) -> None:
        """Record, and count, every life in the spool without an end of workers that there are no longer: this gateway
        has `workers`, so none of their numbers begins anew.
        """
        self._metrics.workers_lost.inc(len(self._enqueue_lost_lives(lambda number, _: number >= workers)))

    def _enqueue_lost_lives(self, is_lost: Callable[[int, str], bool]) -> list[str]:
        assert self._spool is not None
        lost = [life for life in self._spool.unfinished_lives() if is_lost(life[0], life[2])]
        for worker, gateway, boot, seq in lost:
            self.enqueue_lost(worker, boot, gateway, seq)
        return [boot for _, _, boot, _ in lost]

    @property
    def queued(self) -> int:
        """Intervals not yet on disk."""
        return len(self._queue)

    async def wait_drained(self) -> None:
        """Return when everything queued is on disk."""
        while self._queue:
            await self._idle.wait()

    async def run(self) -> None:
        await self._opened.wait()
        while True:
            while self._queue:
                await self._write_batch()
            self._idle.set()
            self._wake = trio.Event()
            await self._wake.wait()

    def _enqueue_item(self, item: _QueuedItem) -> None:
        self._queue.append(item)
        self._rows += item.row_count
        self._metrics.usage_log.queued_intervals.set(len(self._queue))
        if self._idle.is_set():
            self._idle = trio.Event()
        self._wake.set()

    async def _write_batch(self) -> None:
        """Write the first ones of the queue."""
        batch, disks = list(self._queue), self._disks
        try:
            taken, records, is_noted = await trio.to_thread.run_sync(self._append_batch, batch, disks)
        except OSError as error:
            self._metrics.usage_log.spool_errors.inc()
            if not self.problem:
                log.error("usage log: can't write to the spool (%s); intervals wait in memory", error)
            self.problem = f"can't write to the spool ({error})"
            await trio.sleep(RETRY_S)
            return
        if self.problem:
            log.warning("usage log: the spool can be written again")
            self.problem = ""
        if is_noted and self._disks is disks:
            self._disks = None
        self._metrics.usage_log.written.inc(records)
        for item in batch[:taken]:
            self._queue.popleft()
            self._rows -= item.row_count
            item.confirm()
        self._metrics.usage_log.queued_intervals.set(len(self._queue))
        self.written.set()
        self.written = trio.Event()

    def _append_batch(self, items: list[_QueuedItem], disks: usage.DiskNotes | None) -> tuple[int, int, bool]:
        """How many items were taken, the number of records, and whether one of them contains the state of disks."""
        assert self._spool is not None
        lines: list[bytes] = []
        digests: dict[str, str] = {}  # the last one of each boot, in this batch
        left, taken, size = disks, 0, 0
        for item in items:
            if size >= self._spool.batch_bytes:
                break
            taken += 1
            made: list[bytes] = []
            if isinstance(item, _QueuedInterval):
                interval = item.interval
                if interval.seq <= self._spool.last_seq(interval.boot):
                    continue  # it came before the spool, which has it from an earlier control
                made = self._chain_records(self._encode_interval(interval, left), interval.boot, digests)
                left = None
            elif isinstance(item, _LostNote):
                # Nothing follows a note of loss, so that it doesn't matter whether there is one.
                made = self._chain_records([item.line], item.boot, dict(digests))
            lines += made
            size += sum(map(len, made))
        if lines:
            self._spool.append(lines)
        return taken, len(lines), disks is not None and left is None

    def _chain_records(self, lines: list[bytes], boot: str, digests: dict[str, str]) -> list[bytes]:
        if self._chain is None:
            return lines
        assert self._spool is not None
        chained = []
        for line in lines:
            before = digests.get(boot) or self._spool.last_digest(boot)
            chained.append(chain_record(line, before, self._chain.key))
            digests[boot] = find_digest(chained[-1])
        return chained

    def _encode_interval(self, interval: UsageInterval, disks: usage.DiskNotes | None) -> list[bytes]:
        """Its records; none for an interval that no reader would accept: a bug of the gateway, whose number the audit
        reports as missing.
        """
        try:
            return usage.encode_interval(
                self._gateway, interval.boot, interval.worker, interval.seq, interval.rows,
                start_ms=interval.start_ms, end_ms=interval.end_ms, final=interval.final,
                storage_factor=interval.storage_factor, disks=disks, cluster=self._cluster,
            )  # fmt: skip
        except usage.InvalidUsageRecord as error:
            self._metrics.usage_log.dropped.labels("invalid").inc()
            log.error("usage log: an interval of worker %d is left out: %s", interval.worker, error)
            return []


class UsagePublisher:
    """Publishes the spool to the topic. `client`: librdkafka properties that reach the cluster."""

    def __init__(
        self,
        spool: UsageSpool,
        client: dict[str, Any],
        topic: str,
        partitions: int,
        replication: int | None,
        metrics: GatewayMetrics,
    ) -> None:
        self._spool = spool
        self._client = client
        spec = TopicSpec({"cleanup.policy": "delete", "compression.type": "producer"}, _NO_COMPACTION, partitions)
        self._topic = InternalTopic(client, topic, spec, replication)
        self._metrics = metrics
        self._producer: Producer | None = None
        self._ready = False
        self._fault = ""  # of the topic's configuration
        self._ending = False
        self.problem = ""  # why the topic doesn't take records just now, one line; "" for none
        self._progress = trio.Event()

    async def wait_caught_up(self) -> None:
        """Return when the topic has everything that is in the spool."""
        while self._spool.backlog_bytes:
            await self._progress.wait()

    async def run(self, usage_log: UsageLogWriter) -> None:
        """Publish the records of the spool until cancelled."""
        pause = PUBLISH_BACKOFF_S[0]
        while True:
            written = usage_log.written
            try:
                # Abandoned at the end: a cluster that doesn't answer must not hold up a stop.
                published = await trio.to_thread.run_sync(self.publish_batch, abandon_on_cancel=True)
            except (PublishError, OSError) as error:
                if not self.problem:
                    log.warning("usage log: %s; records stay in the spool and are tried again", error)
                self.problem = str(error)
                await trio.sleep(pause)
                pause = min(2 * pause, PUBLISH_BACKOFF_S[1])
                continue
            pause = PUBLISH_BACKOFF_S[0]
            self._progress.set()
            self._progress = trio.Event()
            if published and self.problem:
                log.info("usage log: the topic takes records again")
                self.problem = ""
            if not published:
                await written.wait()

    def stop(self) -> None:
        """Make a running `publish_batch` return soon."""
        self._ending = True

    def publish_batch(self) -> int:
        """Publish one batch, in a thread; returns the number of acknowledged records.

        Raises:
            PublishError: some were not; the whole batch is published again.
        """
        lines, position = self._spool.read_unpublished()
        if not lines:
            return 0
        self._prepare_producer()
        failed = self._send_records(lines)
        # A refusal concerns a whole batch on the wire; one by one shows whose fault it is.
        failed = [
            pair
            for line, error in failed
            for pair in (self._send_records([line]) if _is_final(error) else [(line, error)])
        ]
        refused = [error for _, error in failed if _is_final(error)]
        if len(failed) > len(refused):
            error = next(error for _, error in failed if not _is_final(error))
            self._ready = False  # perhaps the topic was deleted
            if any(is_fatal(error) for _, error in failed):
                self._producer = None  # an idempotent producer that lost its place; a new one begins a new sequence
            raise PublishError(f"topic {self._topic.name}: {error.str()}")
        if refused:
            self._metrics.usage_log.dropped.labels("refused").inc(len(refused))
            log.error("usage log: %d records are not in the topic: %s", len(refused), refused[0].str())
        self._spool.mark_published(position)
        self._metrics.usage_log.published.inc(len(lines) - len(refused))
        return len(lines)

    def _send_records(self, lines: list[bytes]) -> list[tuple[bytes, KafkaError]]:
        """Produce the records, wait for all of them, and return those that failed."""
        assert self._producer is not None
        failed: list[tuple[bytes, KafkaError]] = []
        waiting = len(lines)

        def settle(line: bytes, error: KafkaError | None) -> None:
            nonlocal waiting
            waiting -= 1
            if error is not None:
                failed.append((line, error))

        try:
            self._producer.poll(0)  # raises a fatal error; `produce` would only say that there was one
            for line in lines:
                self._produce_record(line, settle)
            while waiting and not self._ending:
                self._producer.poll(0.1)
        except KafkaException as error:
            self._producer = None
            raise PublishError(f"topic {self._topic.name}: {error.args[0].str()}") from error
        if waiting:
            raise PublishError("the gateway is stopping")
        return failed

    def _produce_record(self, line: bytes, settle: Callable[[bytes, KafkaError | None], None]) -> None:
        assert self._producer is not None

        def delivered(error: KafkaError | None, _: Message) -> None:
            settle(line, error)

        while True:
            try:
                self._producer.produce(self._topic.name, value=line, key=_partition_key(line), on_delivery=delivered)
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                settle(line, error.args[0])
                return

    def _prepare_producer(self) -> None:
        try:
            if self._producer is None:
                self._producer = Producer(
                    {
                        **self._client,
                        "enable.idempotence": True,
                        "acks": "all",
                        "compression.type": "lz4",
                        "message.timeout.ms": PUBLISH_TIMEOUT_MS,
                        "topic.metadata.propagation.max.ms": 3_000,  # a deleted topic is made again after this
                    }
                )
            if not self._ready:
                fault = self._topic.ensure_topic()
                if fault and fault != self._fault:
                    log.error("usage log: %s", fault)
                self._fault, self._ready = fault, True
        except TopicError as error:
            raise PublishError(str(error)) from error
        except KafkaException as error:  # a certificate is gone just now
            raise PublishError(error.args[0].str()) from error


def _is_final(error: KafkaError) -> bool:
    return error.code() in _FINAL_ERRORS


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
        header = _header_of(line)
        return bool(header["part"] + 1 < header["parts"])
    except (ValueError, KeyError, TypeError):
        return False  # not ours to judge


def _header_of(line: bytes) -> Any:
    """The record without its rows, which are most of it and come last."""
    return json.loads(line[: line.index(b',"rows":')] + b"}")


def _partition_key(line: bytes) -> bytes:
    try:
        header = _header_of(line)
        return usage.record_key(header["gateway"], header["boot"], header["worker"])
    except (ValueError, KeyError):
        return b""  # a foreign line in our file: the audit reports it, the rest must get through


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
