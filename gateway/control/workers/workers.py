# Control's side of the workers: one channel each, the latest snapshots down, everything they report up, and which of
# them gets the next connection.
#
# A snapshot is kept by its type, so a worker that comes (again) gets exactly the latest of each. Knows no sockets but
# the channels, and not what the numbers mean: they go on to metrics and usage log.

from __future__ import annotations

import functools
import itertools
import logging
import socket
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import trio

from gateway.channel import (
    PROTOCOL,
    SNAPSHOTS_BY_FACT,
    AcceptedConnection,
    AddressVerdict,
    AdminAnswer,
    AdminQuery,
    ChannelClosed,
    DemandReport,
    DrainRequest,
    EndedConnections,
    FindConnections,
    FoundConnections,
    GroupSnapshot,
    LatencyReport,
    LocatedConnection,
    LogMessage,
    ProcessChannel,
    QuotaChanges,
    QuotaSnapshot,
    RefreshRequest,
    Snapshot,
    SnapshotBundle,
    SpoolConfirmation,
    ThresholdPolicy,
    ToControl,
    ToWorker,
    UsageInterval,
    WorkerGauges,
    WorkerHello,
    WorkerRates,
    decode_for_control,
)
from gateway.config import Settings
from gateway.control.admission import ConnectionAdmission
from gateway.control.context import ControlContext
from gateway.control.fleet.shares import FleetControl
from gateway.control.internal_errors import WORKER_MESSAGE
from gateway.control.query_tasks import QueryAnswerer, internal_error_answer
from gateway.control.rates import merge_rates
from gateway.control.storage.service import StorageService
from gateway.control.workers.inquiries import WorkerInquiries
from gateway.control.workers.interval_receiver import IntervalReceiver
from gateway.control.workers.refusals import RefusalLog
from gateway.log import logs
from policies.text import one_line

log = logging.getLogger("gateway.workers")
traffic_log = logging.getLogger("gateway.traffic")

T = TypeVar("T")
HELLO_TIMEOUT_S: Final = 30.0
MAX_BACKLOG: Final = 256  # messages that a worker has not read: it has other things to do than new connections
MAX_BACKLOG_BYTES: Final = 16 * 2**20  # likewise, before an answer to an admin request
MAX_PARTS_BACKLOG: Final = 40  # of the same, for what is said anew every second, or can be once the worker reads
LOG_CHARS: Final = 1000  # of a worker's line; the names in it are cut by the worker
_SNAPSHOTS: Final = tuple(itertools.chain.from_iterable(SNAPSHOTS_BY_FACT.values()))
_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _ConnectedWorker:
    def __init__(self, number: int, channel: ProcessChannel[ToWorker, ToControl]) -> None:
        self.number = number
        self.channel = channel
        self.boot = ""
        self.connections = 0  # as it said last
        self.given = 0  # through this channel
        self.received = 0  # of these, as it said last: they are among its connections, or have ended
        self.kinds: Counter[tuple[str, int | None]] = Counter()  # given, by listener and broker
        self.rates: WorkerRates | None = None
        self.final = False
        self.is_replaced = False  # by a later channel, which waits for the end of this one
        self.is_behind = False  # it keeps intervals that the usage log had no room for
        self.is_outdated = False  # it didn't read, and lacks snapshots: they came often, and may be large

    @property
    def expected_connections(self) -> int:
        """Connections that it has, or will have."""
        return self.connections + self.given - self.received

    @property
    def is_free(self) -> bool:
        """It can be given something to do: it is there, and reads."""
        return bool(self.boot) and not self.is_replaced and self.channel.backlog < MAX_BACKLOG


def _replace_channel(worker: _ConnectedWorker) -> None:
    worker.is_replaced = True
    worker.channel.finish_writing()


class _MergedRates:
    """The rates of all workers, merged once when requested; and their warnings, logged once each."""

    def __init__(self) -> None:
        self._merged: WorkerRates | None = None
        self._warned: tuple[str, ...] = ()

    def merge_rates(self, by_worker: Sequence[WorkerRates]) -> WorkerRates | None:
        """None before the first."""
        if by_worker and self._merged is None:
            self._merged = merge_rates(by_worker)
        return self._merged

    def on_rates_changed(self, by_worker: Sequence[WorkerRates]) -> None:
        """A worker has reported rates, or is gone."""
        self._merged = None
        warnings = tuple(dict.fromkeys(warning for rates in by_worker for warning in rates.warnings))
        for warning in warnings:
            if warning not in self._warned:
                log.warning("%s", warning)
        if by_worker:  # else a worker that is back would say all of it again
            self._warned = warnings


class WorkerPool:
    """All workers of this gateway.

    Args:
        intake: gets their intervals.
        fleet: learns of workers as they come and go, and of what they use.
        storage: learns which factor a worker holds.
        queries: answers their questions about clients' requests.
    """

    def __init__(
        self,
        context: ControlContext,
        intake: IntervalReceiver,
        fleet: FleetControl,
        storage: StorageService,
        queries: QueryAnswerer,
    ) -> None:
        limits = context.settings.limits
        self._interval_receiver = intake
        self._metrics = context.metrics
        self._fleet = fleet
        self._storage = storage
        self._queries = queries
        self._cluster = context.facts.cluster
        self._link = context.link
        self._errors = context.errors
        self.admission = ConnectionAdmission(limits.max_connections, limits.connections_per_address)
        self.refusals = RefusalLog(context.metrics)
        self._latest: dict[type, Snapshot] = {}
        self._provisional: dict[type, Snapshot] = {}
        self._batch: list[Snapshot | QuotaChanges] | None = None  # published in a block that has not ended yet
        self._workers: dict[int, _ConnectedWorker] = {}
        self._turns: defaultdict[int, trio.Lock] = defaultdict(trio.Lock)  # of each worker's channels
        self._changed = trio.Event()
        self._drain: DrainRequest | None = None
        self._rates = _MergedRates()
        self.inquiries = WorkerInquiries(self._ask_all)

    @property
    def connected(self) -> int:
        """Workers that can accept connections."""
        return sum(1 for worker in self._workers.values() if worker.boot)

    def publish_snapshot(self, message: Snapshot, news: QuotaChanges | None = None) -> None:
        """Replace a snapshot in every worker, and for workers to come. `news`: the changes, for workers that have the
        latest one.
        """
        self._latest[type(message)] = message
        update = message if news is None else news
        if self._batch is not None:
            self._batch.append(update)
        else:
            self._post_all(update)

    @contextmanager
    def batch_snapshots(self) -> Iterator[None]:
        """Each worker applies all snapshots published in this block at once. A nested block is part of it."""
        if self._batch is not None:
            yield
            return
        gathered: list[Snapshot | QuotaChanges] = []
        self._batch = gathered
        try:
            yield
        finally:
            self._batch = None
            if gathered:
                self._post_all(gathered[0] if len(gathered) == 1 else SnapshotBundle(tuple(gathered)))

    def _post_all(self, message: Snapshot | QuotaChanges | SnapshotBundle) -> None:
        for worker in self._workers.values():
            if worker.boot and not worker.is_outdated:
                worker.is_outdated = not self._post_if_reading(worker, message)

    def _update_outdated(self, worker: _ConnectedWorker) -> None:
        latest = SnapshotBundle(tuple(self._latest[kind] for kind in _SNAPSHOTS if kind in self._latest))
        worker.is_outdated = not self._post_if_reading(worker, latest)

    def publish_provisional(self, message: ThresholdPolicy | QuotaSnapshot | GroupSnapshot) -> None:
        """A snapshot for workers that have none from an earlier control process, until one of its type is published."""
        self._provisional[type(message)] = message

    def _post_if_reading(self, worker: _ConnectedWorker, message: ToWorker) -> bool:
        """False: the worker is gone, or doesn't read (its backlog must not fill the memory)."""
        if self._workers.get(worker.number) is not worker or worker.channel.backlog >= MAX_PARTS_BACKLOG:
            return False
        worker.channel.post(message)
        return True

    def latest_snapshot(self, kind: type[T]) -> T | None:
        """The snapshot of that type that was published last; `WorkerRates`: the sum over all workers, None before the
        first.
        """
        found = self._rates.merge_rates(self._worker_rates()) if kind is WorkerRates else self._latest.get(kind)
        return found if isinstance(found, kind) else None

    @property
    def connections(self) -> int:
        """Connections of all workers, by their last reports."""
        return sum(worker.connections for worker in self._workers.values())

    def apply_settings(self, settings: Settings) -> None:
        """Set other bounds of the number of connections; existing ones stay."""
        self.admission.set_limits(settings.limits.max_connections, settings.limits.connections_per_address)

    def _ask_all(self, question: FindConnections) -> int:
        asked = [each for each in self._workers.values() if each.is_free]
        for worker in asked:
            worker.channel.post(question)
        return len(asked)

    def drain(self, timeout_s: float) -> None:
        """Make every worker finish, including those that connect from now on."""
        self._drain = DrainRequest(timeout_s)
        for worker in self._workers.values():
            worker.channel.post(self._drain)

    async def wait_ended(self) -> None:
        """Return when no worker is connected."""
        while any(turn.locked() for turn in self._turns.values()):
            await self._changed.wait()

    async def hand_over_connection(self, sock: socket.socket, accepted: AcceptedConnection) -> None:
        """Hand a client's connection to the worker with the fewest, of those that aren't stopped if there is one; wait
        while no worker can take it.
        """
        # Where workers listen themselves (SO_REUSEPORT), eight connections on two were 6:2 or worse in a quarter of 300
        # runs.
        try:
            while not (ready := [w for w in self._workers.values() if w.is_free]):
                with trio.move_on_after(0.1):  # a backlog shrinks without notice
                    await self._changed.wait()
        except trio.Cancelled:
            sock.close()
            raise
        # A client hardly uses its connection to the bootstrap listener again: without a look at the listener one worker
        # would get these, and the next one everybody's to the brokers.
        kind = accepted.listener, accepted.broker
        worker = min(ready, key=lambda w: (self._fleet.is_silent(w.number), w.expected_connections, w.kinds[kind]))
        worker.given += 1
        self.admission.add_connection(worker.number, accepted.address)
        worker.kinds[kind] += 1
        self._metrics.connections_given.labels(accepted.listener).inc()
        worker.channel.post(accepted, sock.detach())

    async def serve_worker(self, number: int, sock: socket.socket) -> None:
        """Serve one worker's channel until either end is gone, or a later one replaces it. The later one waits until
        all that came by the earlier one is read: what a dead worker has sent comes before its successor's, and a living
        worker, which serves one channel after the other, comes to it.
        """
        worker = _ConnectedWorker(number, ProcessChannel(sock, decode_for_control))
        turn = self._turns[number]
        try:
            if (former := self._workers.get(number)) is not None:
                _replace_channel(former)
            async with turn:
                if turn.statistics().tasks_waiting:
                    _replace_channel(worker)
                await self._serve_channel(worker)
        finally:
            worker.channel.close()

    async def _serve_channel(self, worker: _ConnectedWorker) -> None:
        self._workers[worker.number] = worker
        self._metrics.create_worker_series(worker.number)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.channel.run)
                await self._greet_worker(worker)
                while True:
                    self._receive_message(worker, (await worker.channel.receive())[0])
        except* ChannelClosed as group:
            if not (worker.final or worker.is_replaced):
                log.error("worker %d: %s", worker.number, group.exceptions[0])
                self._link.request_reconnect(worker.number)
        finally:
            self._forget_worker(worker)

    async def _greet_worker(self, worker: _ConnectedWorker) -> None:
        with trio.move_on_after(HELLO_TIMEOUT_S):
            hello, _ = await worker.channel.receive()
            if not isinstance(hello, WorkerHello) or hello.protocol != PROTOCOL:
                raise ChannelClosed(f"it is of another release, restart the gateway: {hello}")
            self._interval_receiver.begin_boot(worker.number, hello.boot)
            self._storage.adopt_factor(hello.storage)
            known = self._latest if hello.informed else {**self._provisional, **self._latest}
            for kind in _SNAPSHOTS:
                if kind in known:
                    worker.channel.post(known[kind])
            if self._drain is not None:
                worker.channel.post(self._drain)
            worker.boot = hello.boot
            self.admission.replace_connections(worker.number, hello.addresses)
            self._fleet.add_worker(worker.number, functools.partial(self._post_if_reading, worker), hello.gateways)
            self._metrics.worker_up.labels(str(worker.number)).set(1)
            self._notify_waiters()
            return
        raise ChannelClosed(f"it sent nothing within {HELLO_TIMEOUT_S:g} s")

    def _receive_message(self, worker: _ConnectedWorker, message: ToControl) -> None:
        if worker.is_behind and self._interval_receiver.has_caught_up:
            raise ChannelClosed("the usage log has room again: it must send its intervals again")
        with self._errors.contain_errors(WORKER_MESSAGE):
            self._fleet.record_heard(worker.number)
            self._handle_message(worker, message)
            if worker.is_outdated:
                self._update_outdated(worker)

    def _handle_message(self, worker: _ConnectedWorker, message: ToControl) -> None:
        match message:
            case UsageInterval():
                self._receive_interval(worker, message)
            case WorkerGauges():
                worker.connections, worker.received = message.connections + message.dialling, message.accepted_count
                self._metrics.set_gauges(worker.number, message)
            case LatencyReport():
                self._metrics.add_latencies(worker.number, message)
            case EndedConnections(addresses):
                self.admission.end_connections(worker.number, addresses)
            case LocatedConnection():
                self._locate_connection(worker, message)
            case WorkerRates():
                worker.rates = message
                self._update_rates()
                self._fleet.record_rates(worker.number, message)
            case DemandReport():
                self._fleet.record_demand(worker.number, message)
            case LogMessage(level, text, fields):
                number = _LEVELS.get(level, logging.ERROR)
                log_fields = {**fields, "worker": worker.number}
                traffic_log.log(number, "%s", one_line(text, LOG_CHARS), extra=logs.select_fields(log_fields))
            case RefreshRequest():
                self._cluster.request_refresh()
            case FoundConnections():
                self.inquiries.record_answer(message)
            case AdminQuery():
                self._queries.submit_query(message, functools.partial(self._post_answer, worker))

    def _locate_connection(self, worker: _ConnectedWorker, located: LocatedConnection) -> None:
        why = self.admission.move_connection(worker.number, located.before, located.address)
        if why:
            self.refusals.record_refusal(located.address, why)
            # At once: one client's attempts must not stand in the way of all others' until its worker reports them.
            self.admission.end_connections(worker.number, {located.address: 1})
        worker.channel.post(AddressVerdict(located.token, not why, located.address))

    def _update_rates(self) -> None:
        """The worker has reported rates, or is gone."""
        by_worker = self._worker_rates()
        self._metrics.set_rates(*by_worker)
        self._rates.on_rates_changed(by_worker)

    def _worker_rates(self) -> list[WorkerRates]:
        return [worker.rates for worker in self._workers.values() if worker.rates is not None]

    def _post_answer(self, worker: _ConnectedWorker, answer: AdminAnswer) -> None:
        """Post the answer, unless the worker has died (with its clients' connections), or doesn't read: then the worker
        itself answers its clients in time.
        """
        if self._workers.get(worker.number) is not worker or worker.channel.backlog_bytes >= MAX_BACKLOG_BYTES:
            return
        try:
            worker.channel.post(answer)
        except Exception as error:  # it holds what can't be sent: text that is no Unicode, numbers beyond 64 bits
            self._errors.record_error(WORKER_MESSAGE, "", error)
            worker.channel.post(internal_error_answer(answer.token))

    def _receive_interval(self, worker: _ConnectedWorker, interval: UsageInterval) -> None:
        channel, seq = worker.channel, interval.seq
        if seq < 0:  # counts without rows: nothing for the accounts
            self._metrics.add_counts(interval.counts)
            return
        worker.is_behind |= not self._interval_receiver.has_room
        if worker.is_behind:
            return  # it keeps this one and those behind it, and says them again on a new channel
        self._interval_receiver.receive_interval(worker.number, interval, lambda: channel.post(SpoolConfirmation(seq)))
        worker.final |= interval.final

    def _forget_worker(self, worker: _ConnectedWorker) -> None:
        del self._workers[worker.number]
        self.admission.replace_connections(worker.number, {})
        self._metrics.worker_up.labels(str(worker.number)).set(0)
        self._metrics.set_gauges(worker.number, WorkerGauges(0, 0, 0))
        self._update_rates()
        self._fleet.remove_worker(worker.number)
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
