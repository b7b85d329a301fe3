# Control's side of the workers: one channel each, the latest snapshots down, everything they report up, and which of
# them gets the next connection.
#
# A snapshot is kept by its type, so a worker that comes (again) gets exactly the latest of each. Knows no sockets but
# the channels, and not what the numbers mean: they go on to metrics and usage log.

from __future__ import annotations

import functools
import logging
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import trio

from gateway.channel import (
    PROTOCOL,
    Accepted,
    Answer,
    Ask,
    Brokers,
    Channel,
    ChannelClosed,
    Demand,
    Down,
    Drain,
    Ended,
    Gauges,
    Groups,
    Hello,
    Interval,
    Log,
    OtherRates,
    Parts,
    Policy,
    Quotas,
    Rates,
    Refresh,
    Spooled,
    Storage,
    Topics,
    Up,
    WorkerSettings,
    decode_up,
)
from gateway.control.admission import Admission
from gateway.control.metrics import Metrics
from gateway.control.rates import merge
from gateway.control.recent import Recent
from gateway.control.traffic_lines import TrafficLines
from gateway.control.usage_log import UsageLog
from gateway.sockets import network_of
from policies.text import one_line

log = logging.getLogger("gateway.workers")
traffic_log = logging.getLogger("gateway.traffic")

Snapshot = WorkerSettings | Brokers | Topics | Policy | Quotas | Groups | Storage
T = TypeVar("T")
HELLO_TIMEOUT_S: Final = 30.0
MAX_BACKLOG: Final = 256  # messages that a worker has not read: it has other things to do than new connections
MAX_BACKLOG_BYTES: Final = 16 * 2**20  # likewise, before an answer to an admin request
MAX_PARTS_BACKLOG: Final = 40  # of the same, for what is said anew every second
LOG_CHARS: Final = 1000  # of a worker's line; the names in it are cut by the worker
# In the order in which a worker needs them.
_SNAPSHOTS: Final = (WorkerSettings, Brokers, Topics, Policy, Quotas, Groups, Storage)
_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Sharing(Protocol):
    """Deals parts of limits out; see gateway.control.fleet.FleetControl."""

    def join(self, worker: int, post: Callable[[Parts | OtherRates], bool], members: int = 1) -> None:
        """This worker has been told everything else; `post` reaches it, and by an earlier control it was told that
        `members` processes share.
        """

    def leave(self, worker: int) -> None: ...

    def take_demand(self, worker: int, demand: Demand) -> None: ...

    def take_rates(self, worker: int, rates: Rates) -> None: ...


class _Worker:
    def __init__(self, number: int, channel: Channel[Down, Up]) -> None:
        self.number = number
        self.channel = channel
        self.boot = ""
        self.connections = 0  # as it said last
        self.given = 0  # through this channel
        self.taken = 0  # of these, as it said last: they are among its connections, or have ended
        self.kinds: Counter[int | None] = Counter()  # given, by listener
        self.rates: Rates | None = None
        self.final = False
        self.behind = False  # it keeps intervals that the usage log had no room for

    @property
    def load(self) -> int:
        """Connections that it has, or will have."""
        return self.connections + self.given - self.taken


class Workers:
    """All workers of this gateway.

    `want` is called when one has seen newer metadata than ours, `reconnect` when a channel broke, `adopt` with the
    storage factor that one still holds (None: none) before it is told anything, `ask` with what one wants to know, and
    with what to call with the answer. `sharing` and `admission` are told of workers, and of connections, as they come
    and go.
    """

    def __init__(
        self,
        usage_log: UsageLog,
        metrics: Metrics,
        sharing: Sharing,
        want: Callable[[], None],
        reconnect: Callable[[int], None],
        adopt: Callable[[Storage | None], None] = lambda held: None,
        ask: Callable[[Ask, Callable[[Answer], None]], None] = lambda question, reply: None,
        recent: Recent | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._usage_log = usage_log
        self._metrics = metrics
        self._sharing = sharing
        self._want = want
        self._reconnect = reconnect
        self._adopt = adopt
        self._ask = ask
        self._recent = Recent() if recent is None else recent
        self.admission = Admission(sys.maxsize, sys.maxsize) if admission is None else admission
        self._lines = TrafficLines()
        self._unfinished: dict[int, str] = {}  # the boot of each worker that has not sent its last interval
        self._latest: dict[type, Snapshot] = {}
        self._suggested: dict[type, Snapshot] = {}
        self._workers: dict[int, _Worker] = {}
        self._changed = trio.Event()
        self._drain: Drain | None = None
        self._warned: tuple[str, ...] = ()
        self._merged: Rates | None = None  # of all workers, once asked for

    @property
    def connected(self) -> int:
        """Workers that can take connections."""
        return sum(1 for worker in self._workers.values() if worker.boot)

    def tell(self, message: Snapshot) -> None:
        """Replace a snapshot, in every worker and for those to come."""
        self._latest[type(message)] = message
        for worker in self._workers.values():
            if worker.boot:
                worker.channel.post(message)

    def suggest(self, message: Policy | Quotas | Groups) -> None:
        """A snapshot for workers that have none of an earlier control, until one of its type is told."""
        self._suggested[type(message)] = message

    def _post(self, worker: _Worker, message: Parts | OtherRates) -> bool:
        """Unless it has gone, or doesn't read (its backlog must not fill our memory): False."""
        if self._workers.get(worker.number) is not worker or worker.channel.backlog >= MAX_PARTS_BACKLOG:
            return False
        worker.channel.post(message)
        return True

    def latest(self, kind: type[T]) -> T | None:
        """The snapshot of that type that was told last; `Rates`: the sum over all workers, None before the first."""
        found = self._sum_rates() if kind is Rates else self._latest.get(kind)
        return found if isinstance(found, kind) else None

    def _sum_rates(self) -> Rates | None:
        said = self._said_rates()
        if said and self._merged is None:
            self._merged = merge(said)
        return self._merged

    def drain(self, timeout_s: float) -> None:
        """Let every worker finish; those that come now as well."""
        self._drain = Drain(timeout_s)
        for worker in self._workers.values():
            worker.channel.post(self._drain)

    async def ended(self) -> None:
        """Return when no worker is connected."""
        while self._workers:
            await self._changed.wait()

    async def hand_over(self, sock: socket.socket, broker: int | None, peer: str) -> None:
        """Give a client's connection to the worker with the fewest; wait while there is none that could take it."""
        try:
            while not (ready := [w for w in self._workers.values() if w.boot and w.channel.backlog < MAX_BACKLOG]):
                with trio.move_on_after(0.1):  # a backlog shrinks without notice
                    await self._changed.wait()
        except trio.Cancelled:
            sock.close()
            raise
        # Who connects to the bootstrap listener hardly uses that connection again: without a look at the listener one
        # worker would get these, and the next one everybody's to the brokers.
        worker = min(ready, key=lambda w: (w.load, w.kinds[broker]))
        worker.given += 1
        self.admission.add(worker.number, network_of(peer))
        worker.kinds[broker] += 1
        worker.channel.post(Accepted(broker, peer), sock.detach())

    async def serve(self, number: int, sock: socket.socket) -> None:
        """One worker's channel until either end is gone."""
        worker = _Worker(number, Channel(sock, decode_up))
        self._workers[number] = worker
        self._metrics.show_worker(number)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.channel.run)
                await self._greet(worker)
                while True:
                    self._take(worker, (await worker.channel.receive())[0])
        except* ChannelClosed as group:
            if not worker.final:
                log.error("worker %d: %s", number, group.exceptions[0])
                self._reconnect(number)
        finally:
            worker.channel.close()
            self._forget(worker)

    async def _greet(self, worker: _Worker) -> None:
        with trio.move_on_after(HELLO_TIMEOUT_S):
            hello, _ = await worker.channel.receive()
            if not isinstance(hello, Hello) or hello.protocol != PROTOCOL:
                raise ChannelClosed(f"it is of another release, restart the gateway: {hello}")
            self._note_lost(worker.number, hello.boot)
            self._adopt(hello.storage)
            known = self._latest if hello.informed else {**self._suggested, **self._latest}
            for kind in _SNAPSHOTS:
                if kind in known:
                    worker.channel.post(known[kind])
            if self._drain is not None:
                worker.channel.post(self._drain)
            worker.boot = hello.boot
            self.admission.replace(worker.number, hello.addresses)
            self._sharing.join(worker.number, functools.partial(self._post, worker), hello.members)
            self._metrics.worker_up.labels(str(worker.number)).set(1)
            self._notify()
            return
        raise ChannelClosed(f"it said nothing within {HELLO_TIMEOUT_S:g} s")

    def _take(self, worker: _Worker, message: Up) -> None:
        if worker.behind and not self._usage_log.queued:
            raise ChannelClosed("the usage log has room again: it has to say its intervals once more")
        match message:
            case Interval():
                self._take_interval(worker, message)
            case Gauges():
                worker.connections, worker.taken = message.connections + message.dialling, message.taken
                self._metrics.set_gauges(worker.number, message)
            case Ended(addresses) if self._workers.get(worker.number) is worker:
                self.admission.end(worker.number, addresses)
            case Rates():
                worker.rates = message
                self._see_rates()
                self._sharing.take_rates(worker.number, message)
            case Demand():
                self._sharing.take_demand(worker.number, message)
            case Log(level, text):
                traffic_log.log(_LEVELS.get(level, logging.ERROR), "%s", one_line(text, LOG_CHARS))
            case Refresh():
                self._want()
            case Ask():
                self._ask(message, functools.partial(self._reply, worker))

    def _see_rates(self) -> None:
        """Somebody's rates are new, or gone."""
        self._merged = None
        said = self._said_rates()
        self._metrics.set_rates(*said)
        warnings = tuple(dict.fromkeys(warning for rates in said for warning in rates.warnings))
        for warning in warnings:
            if warning not in self._warned:
                log.warning("%s", warning)
        if said:  # else a worker that is back would say all of it again
            self._warned = warnings

    def _said_rates(self) -> list[Rates]:
        return [worker.rates for worker in self._workers.values() if worker.rates is not None]

    def _reply(self, worker: _Worker, answer: Answer) -> None:
        """Unless it has died, and its clients' connections with it; or doesn't read: then it tells them in time itself
        that nobody answered.
        """
        if self._workers.get(worker.number) is worker and worker.channel.backlog_bytes < MAX_BACKLOG_BYTES:
            worker.channel.post(answer)

    def _take_interval(self, worker: _Worker, interval: Interval) -> None:
        channel, seq = worker.channel, interval.seq
        if seq < 0:  # counts without rows: nothing for the accounts
            self._metrics.add_counts(interval.counts)
            return
        worker.behind |= not self._usage_log.has_room
        if worker.behind:
            return  # it keeps this one and those behind it, and says them again on a new channel
        if self._usage_log.put(interval, lambda: channel.post(Spooled(seq))):
            self._metrics.add_interval(interval)
            self._recent.add(interval, round(time.time() * 1000))
            for line in self._lines.of(interval, trio.current_time()):
                traffic_log.warning("%s", line)
        if interval.final:
            worker.final = True
            self._unfinished.pop(worker.number, None)

    def _note_lost(self, number: int, boot: str) -> None:
        """The worker has this boot now: every earlier life of it that did not end in order is lost."""
        before = self._unfinished.get(number, boot)
        lost = self._usage_log.put_lost_before(number, boot)
        if before != boot and before not in lost:
            self._usage_log.put_lost(number, before)
            lost.append(before)
        self._metrics.workers_lost.inc(len(lost))
        self._unfinished[number] = boot

    def note_unfinished(self) -> None:
        """At the very end: workers that have not reported their last interval never will."""
        for number, boot in self._unfinished.items():
            self._usage_log.put_lost(number, boot)
            self._metrics.workers_lost.inc()
        self._unfinished.clear()

    def _forget(self, worker: _Worker) -> None:
        if self._workers.get(worker.number) is worker:
            del self._workers[worker.number]
            self.admission.replace(worker.number, {})
            self._metrics.worker_up.labels(str(worker.number)).set(0)
            self._metrics.set_gauges(worker.number, Gauges(0, 0, 0))
            self._see_rates()
            self._sharing.leave(worker.number)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
