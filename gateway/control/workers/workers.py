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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    FindConnections,
    FoundConnections,
    Gauges,
    Groups,
    Hello,
    Interval,
    Latencies,
    Located,
    Log,
    Orders,
    OtherRates,
    Parts,
    Policy,
    QuotaChanges,
    Quotas,
    Rates,
    Refresh,
    Spooled,
    Storage,
    Topics,
    Up,
    Verdict,
    WorkerSettings,
    decode_up,
)
from gateway.control.admission import Admission
from gateway.control.internal_errors import WORKER_MESSAGE, InternalErrors
from gateway.control.metrics import Metrics
from gateway.control.question_tasks import internal_error
from gateway.control.rates import merge
from gateway.control.workers.inquiries import Inquiries
from gateway.control.workers.intake import Intake
from gateway.control.workers.refusals import Refusals
from gateway.log import logs
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
    """Deals parts of limits out; see gateway.control.fleet.shares.FleetControl."""

    def join(self, worker: int, post: Callable[[Parts | OtherRates], bool], gateways: int = 1) -> None:
        """This worker has been told everything else; `post` reaches it, and by an earlier control it was told that
        `gateways` share.
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
        self.kinds: Counter[tuple[str, int | None]] = Counter()  # given, by listener and broker
        self.rates: Rates | None = None
        self.final = False
        self.behind = False  # it keeps intervals that the usage log had no room for

    @property
    def load(self) -> int:
        """Connections that it has, or will have."""
        return self.connections + self.given - self.taken


class _SumOfRates:
    """The rates of all workers, merged once when asked for; and their warnings, logged once each."""

    def __init__(self) -> None:
        self._merged: Rates | None = None
        self._warned: tuple[str, ...] = ()

    def total(self, said: Sequence[Rates]) -> Rates | None:
        """None before the first."""
        if said and self._merged is None:
            self._merged = merge(said)
        return self._merged

    def renew(self, said: Sequence[Rates]) -> None:
        """A worker's rates are new, or gone."""
        self._merged = None
        warnings = tuple(dict.fromkeys(warning for rates in said for warning in rates.warnings))
        for warning in warnings:
            if warning not in self._warned:
                log.warning("%s", warning)
        if said:  # else a worker that is back would say all of it again
            self._warned = warnings


class Workers:
    """All workers of this gateway.

    `want` is called when one has seen newer metadata than ours, `reconnect` when a channel broke, `adopt` with the
    storage factor that one still holds (None: none) before it is told anything, `ask` with a worker's question, and
    with the function to call with the answer. `sharing` and `admission` are told of workers, and of connections, as
    they come and go.
    """

    def __init__(
        self,
        intake: Intake,
        metrics: Metrics,
        sharing: Sharing,
        want: Callable[[], None],
        reconnect: Callable[[int], None],
        adopt: Callable[[Storage | None], None] = lambda held: None,
        ask: Callable[[Ask, Callable[[Answer], None]], None] = lambda question, reply: None,
        admission: Admission | None = None,
        errors: InternalErrors | None = None,
    ) -> None:
        self._intake = intake
        self._metrics = metrics
        self._sharing = sharing
        self._want = want
        self._reconnect = reconnect
        self._adopt = adopt
        self._ask = ask
        self.admission = Admission(sys.maxsize, sys.maxsize) if admission is None else admission
        self.refusals = Refusals(metrics)
        self._errors = errors or InternalErrors()
        self._latest: dict[type, Snapshot] = {}
        self._suggested: dict[type, Snapshot] = {}
        self._gathered: list[Snapshot | QuotaChanges] | None = None  # told in a block that has not ended yet
        self._workers: dict[int, _Worker] = {}
        self._changed = trio.Event()
        self._drain: Drain | None = None
        self._rates = _SumOfRates()
        self.inquiries = Inquiries(self._ask_all)

    @property
    def connected(self) -> int:
        """Workers that can take connections."""
        return sum(1 for worker in self._workers.values() if worker.boot)

    def tell(self, message: Snapshot, news: QuotaChanges | None = None) -> None:
        """Replace a snapshot, in every worker and for those to come. `news`: the same for workers that have been told
        the latest one.
        """
        self._latest[type(message)] = message
        said = message if news is None else news
        if self._gathered is not None:
            self._gathered.append(said)
        else:
            self._post_all(said)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Each worker goes by all that is told in this block at once. A block within another is a part of that."""
        if self._gathered is not None:
            yield
            return
        gathered: list[Snapshot | QuotaChanges] = []
        self._gathered = gathered
        try:
            yield
        finally:
            self._gathered = None
            if gathered:
                self._post_all(gathered[0] if len(gathered) == 1 else Orders(tuple(gathered)))

    def _post_all(self, message: Snapshot | QuotaChanges | Orders) -> None:
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
        found = self._rates.total(self._said_rates()) if kind is Rates else self._latest.get(kind)
        return found if isinstance(found, kind) else None

    @property
    def connections(self) -> int:
        """Of all workers, as they said last."""
        return sum(worker.connections for worker in self._workers.values())

    def _ask_all(self, question: FindConnections) -> int:
        asked = [each for each in self._workers.values() if each.boot and each.channel.backlog < MAX_BACKLOG]
        for worker in asked:
            worker.channel.post(question)
        return len(asked)

    def drain(self, timeout_s: float) -> None:
        """Let every worker finish; those that come now as well."""
        self._drain = Drain(timeout_s)
        for worker in self._workers.values():
            worker.channel.post(self._drain)

    async def ended(self) -> None:
        """Return when no worker is connected."""
        while self._workers:
            await self._changed.wait()

    async def hand_over(self, sock: socket.socket, accepted: Accepted) -> None:
        """Give a client's connection to the worker with the fewest; wait while there is none that could take it."""
        # Where workers listen themselves (SO_REUSEPORT), eight connections on two were 6:2 or worse in a quarter of 300
        # runs.
        try:
            while not (ready := [w for w in self._workers.values() if w.boot and w.channel.backlog < MAX_BACKLOG]):
                with trio.move_on_after(0.1):  # a backlog shrinks without notice
                    await self._changed.wait()
        except trio.Cancelled:
            sock.close()
            raise
        # A client hardly uses its connection to the bootstrap listener again: without a look at the listener one worker
        # would get these, and the next one everybody's to the brokers.
        kind = accepted.listener, accepted.broker
        worker = min(ready, key=lambda w: (w.load, w.kinds[kind]))
        worker.given += 1
        self.admission.add(worker.number, accepted.address)
        worker.kinds[kind] += 1
        self._metrics.connections_given.labels(accepted.listener).inc()
        worker.channel.post(accepted, sock.detach())

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
            self._intake.begin(worker.number, hello.boot)
            self._adopt(hello.storage)
            known = self._latest if hello.informed else {**self._suggested, **self._latest}
            for kind in _SNAPSHOTS:
                if kind in known:
                    worker.channel.post(known[kind])
            if self._drain is not None:
                worker.channel.post(self._drain)
            worker.boot = hello.boot
            self.admission.replace(worker.number, hello.addresses)
            self._sharing.join(worker.number, functools.partial(self._post, worker), hello.gateways)
            self._metrics.worker_up.labels(str(worker.number)).set(1)
            self._notify()
            return
        raise ChannelClosed(f"it said nothing within {HELLO_TIMEOUT_S:g} s")

    def _take(self, worker: _Worker, message: Up) -> None:
        if worker.behind and self._intake.has_caught_up:
            raise ChannelClosed("the usage log has room again: it has to say its intervals once more")
        with self._errors.contain(WORKER_MESSAGE):
            self._obey(worker, message)

    def _obey(self, worker: _Worker, message: Up) -> None:
        match message:
            case Interval():
                self._take_interval(worker, message)
            case Gauges():
                worker.connections, worker.taken = message.connections + message.dialling, message.taken
                self._metrics.set_gauges(worker.number, message)
            case Latencies():
                self._metrics.add_latencies(worker.number, message)
            case Ended(addresses) if self._workers.get(worker.number) is worker:
                self.admission.end(worker.number, addresses)
            case Located() if self._workers.get(worker.number) is worker:
                self._locate(worker, message)
            case Rates():
                worker.rates = message
                self._see_rates()
                self._sharing.take_rates(worker.number, message)
            case Demand():
                self._sharing.take_demand(worker.number, message)
            case Log(level, text, fields):
                number = _LEVELS.get(level, logging.ERROR)
                said = {**fields, "worker": worker.number}
                traffic_log.log(number, "%s", one_line(text, LOG_CHARS), extra=logs.fields_of(said))
            case Refresh():
                self._want()
            case FoundConnections():
                self.inquiries.take(message)
            case Ask():
                self._ask(message, functools.partial(self._reply, worker))

    def _locate(self, worker: _Worker, located: Located) -> None:
        why = self.admission.move(worker.number, located.before, located.address)
        if why:
            self.refusals.note(located.address, why)
            # At once: one client's attempts must not stand in the way of all others' until its worker tells of them.
            self.admission.end(worker.number, {located.address: 1})
        worker.channel.post(Verdict(located.token, not why))

    def _see_rates(self) -> None:
        """A worker's rates are new, or gone."""
        said = self._said_rates()
        self._metrics.set_rates(*said)
        self._rates.renew(said)

    def _said_rates(self) -> list[Rates]:
        return [worker.rates for worker in self._workers.values() if worker.rates is not None]

    def _reply(self, worker: _Worker, answer: Answer) -> None:
        """Unless it has died, and its clients' connections with it; or doesn't read: then it tells them in time itself
        that no answer came.
        """
        if self._workers.get(worker.number) is not worker or worker.channel.backlog_bytes >= MAX_BACKLOG_BYTES:
            return
        try:
            worker.channel.post(answer)
        except Exception as error:  # it holds what can't be sent: text that is no Unicode, numbers beyond 64 bits
            self._errors.note(WORKER_MESSAGE, "", error)
            worker.channel.post(internal_error(answer.token))

    def _take_interval(self, worker: _Worker, interval: Interval) -> None:
        channel, seq = worker.channel, interval.seq
        if seq < 0:  # counts without rows: nothing for the accounts
            self._metrics.add_counts(interval.counts)
            return
        worker.behind |= not self._intake.has_room
        if worker.behind:
            return  # it keeps this one and those behind it, and says them again on a new channel
        self._intake.take(worker.number, interval, lambda: channel.post(Spooled(seq)))
        worker.final |= interval.final

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
