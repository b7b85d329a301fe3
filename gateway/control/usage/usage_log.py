# The usage log: intervals from workers -> JSON lines in a bounded spool on disk (usage_spool.py) -> a Kafka topic
# (usage_publisher.py).
#
# A worker keeps an interval until it is in the spool, and the spool keeps it until the topic has acknowledged it, so
# whatever dies, nothing goes missing; what can come twice (a crash between the two steps) is recognised by its boot and
# sequence number. While the spool takes nothing, or can't be opened by a control that was started again, intervals wait
# here as long as there is room, then in the workers. policies/usage.py has the contents of a record.

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from gateway.channel import UsageInterval
from gateway.control.metrics import GatewayMetrics
from policies import usage
from policies.record_digests import chain_record, find_digest

if TYPE_CHECKING:
    from gateway.control.usage.usage_spool import UsageSpool

log = logging.getLogger("gateway.usage")

MAX_QUEUED: Final = 600  # intervals that wait here for a disk with room: ten minutes of one worker …
MAX_QUEUED_ROWS: Final = 200_000  # … or this many rows, about 100 MB
RETRY_S: Final = 1.0


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
