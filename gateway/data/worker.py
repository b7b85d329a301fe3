# Composition root of one worker: the channel to control, the reactor, and the few tasks that are not about one socket.
#
# Data plane only: no metadata, no files, no HTTP, no library with threads of its own. A worker goes on with what it was
# last told when control dies; what it has counted is kept until a (new) control says that it is on disk.

from __future__ import annotations

import itertools
import math
import os
import socket
import time
import uuid
from collections import Counter, deque
from typing import TYPE_CHECKING

import trio

from gateway.certificates import Certificates
from gateway.channel import (
    MAX_QUOTA_RATES,
    PROTOCOL,
    Accepted,
    Answer,
    Ask,
    Brokers,
    Channel,
    ChannelClosed,
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
    Spooled,
    Storage,
    Topics,
    Up,
    Want,
    WorkerSettings,
    decode_down,
)
from gateway.data.complaints import Complaints
from gateway.data.inbound import SHARED_BYTES
from gateway.data.links import Link
from gateway.data.lowest_factor import LowestFactor
from gateway.data.opening import HEAD, receive_head
from gateway.data.reactor import Reactor
from gateway.data.session import Session, Unauthenticated, close_reason
from gateway.data.share_reporter import ShareReporter
from gateway.data.tls import HANDSHAKE_TIMEOUT_S, PROBE, HandshakeError, Tls, TlsLink, shake_hands
from gateway.data.world import World
from gateway.sockets import network_of, reset
from policies.client_quotas import QuotaStore
from policies.engine import Engine
from policies.pacing import PACE_S
from policies.quota_lines import DEAL_S
from policies.quota_names import Entity, QuotaKey
from policies.text import one_line
from protocol.wire import MalformedFrame

if TYPE_CHECKING:
    from gateway.supervisor import ParentLink

INTERVAL_S = 1.0
GAUGES_S = 0.25
RESUME_SLICE_S = 0.002  # so long connections go on after a pause before others get a turn
RESUME_PAUSE_S = 0.02
LATE_S = 1.0  # control's own word on what holds when an expiry is over comes a moment after it
WANT_S = 0.2  # many sessions see the same new broker at once: ask once
MAX_UNSPOOLED = 120  # intervals kept for control; beyond it the current one simply lasts longer, nothing is lost
MAX_BACKLOG = 500  # messages that control has not read
MAX_BACKLOG_BYTES = 64 * 2**20  # likewise, of admin requests and what brokers say to them
MAX_LOG_LINES = 1000  # kept while there is no control
MAX_UNSPOOLED_ROWS = 250_000  # of these intervals, likewise
MAX_LINE = 1000  # characters of a line for the log
CLOCK_SLACK_S = 0.5  # by which the wall clock and the monotonic one may differ over an interval before it was set
DRAIN_SHARE = 0.8  # of the time to stop: connections; the rest is for handing the last counts over
BUFFERED_BYTES = 2**30  # until control has said better


class Worker:
    """One data-plane process."""

    def __init__(self, parent: ParentLink, number: int) -> None:
        self._parent = parent
        self._number = number
        self._boot = uuid.uuid4().hex
        self._world: World | None = None
        self._reactor = Reactor(BUFFERED_BYTES, self._report_bug, self._count_closed)
        self._channel: Channel[Up, Down] | None = None
        self._engine = Engine(trio.current_time())
        self._bootstrap: tuple[tuple[str, int], ...] = ()
        self._turn = itertools.count()
        self._seq = itertools.count()
        self._interval_began = trio.current_time()
        self._interval_start_ms = _wall_ms()
        self._second_ended = trio.current_time()
        self._unspooled: deque[Interval] = deque()
        self._spooled = trio.Event()
        self._lines: deque[Log] = deque(maxlen=MAX_LOG_LINES)
        self._complaints = Complaints(self._log)
        self._addresses: Counter[str] = Counter()  # of clients' connections
        self._ended: Counter[str] = Counter()  # likewise, those that control has not been told of
        self._wanted_at = 0.0
        self._paces = trio.Event()
        self._engine.groups.wake = self._start_pacing
        self._storage: Storage | None = None
        self._storage_shown: tuple[float, str, str] = (1.0, "", "enforce")
        self._storage_told = trio.Event()
        self._factor = LowestFactor()
        self._fleet = ShareReporter(self._engine, self._post_if_heard, self._log, lambda: self._channel is not None)
        self._has_shares = trio.Event()
        self._certificates: Certificates | None = None  # None: listeners are plain
        self._ciphertext = memoryview(b"")  # where connections with TLS receive
        self._openings: set[trio.CancelScope] = set()  # connections that have not sent a request yet
        self._handshake_turn = trio.Lock()
        self._draining = False
        self._dialling = 0
        self._taken = 0  # connections that came through this channel

    async def run(self) -> None:
        """Serve until the parent says stop, or is gone."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._parent.run)
            nursery.start_soon(self._keep_channel, nursery)
            nursery.start_soon(self._reactor.run)
            nursery.start_soon(self._reactor.run_timers)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._pace)
            nursery.start_soon(self._follow_storage)
            nursery.start_soon(self._deal)
            nursery.start_soon(self._fleet.report, lambda: None if self._world is None else self._world.quotas)
            nursery.start_soon(self._fleet.watch)
            nursery.start_soon(self._close_intervals)
            nursery.start_soon(self._tell_gauges)
            await self._parent.stopping.wait()
            await self._stop(self._parent.drain_timeout_s)
            nursery.cancel_scope.cancel()

    # --- the channel --------------------------------------------------------------------------------------------------

    async def _keep_channel(self, dialling: trio.Nursery) -> None:
        """Talk to control; to the next one when it was started again."""
        while True:
            await self._converse(Channel(await self._parent.next_channel(), decode_down), dialling)

    async def _converse(self, channel: Channel[Up, Down], dialling: trio.Nursery) -> None:
        self._channel = channel
        self._taken = 0
        self._fleet.begin()
        members = self._engine.fleet.members
        informed = self._world is not None
        addresses = dict(self._addresses)
        self._ended.clear()
        channel.post(
            Hello(PROTOCOL, self._number, os.getpid(), self._boot, self._storage, members, informed, addresses)
        )
        for session in [] if self._world is None else self._world.asked.values():
            self._ask(session)  # the former control took the question with it
        for interval in self._unspooled:
            channel.post(interval)
        while self._lines:
            channel.post(self._lines.popleft())
        try:
            async with trio.open_nursery() as talk:
                talk.start_soon(channel.run)
                while True:
                    message, fd = await channel.receive()
                    if isinstance(message, Accepted):
                        self._accept(message, fd, dialling)
                    else:
                        self._obey(message)
        except* ChannelClosed:
            pass  # the parent will bring a new one
        finally:
            self._channel = None
            self._fleet.end()
            channel.close()

    def _obey(self, message: Down) -> None:
        match message:
            case WorkerSettings():
                self._configure(message)
            case Brokers(bootstrap, brokers):
                self._bootstrap = bootstrap
                self._known_world.set_brokers(brokers)
            case Topics(leads, ids):
                self._learn_topics(leads, ids)
            case Policy():
                self._apply_policy(message)
            case Quotas():
                self._apply_quotas(message)
            case Storage():
                self._storage = message
                self._apply_storage(message)
                self._storage_told.set()
            case Groups():
                self._apply_groups(message)
            case Parts():
                self._fleet.take_parts(message, trio.current_time())
            case OtherRates(brokers):
                self._engine.set_others(brokers)
            case Answer(token):
                session = self._known_world.asked.pop(token, None)
                if session is not None:  # else its client has gone, or was told that nobody answered
                    session.tell(message)
                    self._reactor.settle(trio.current_time())
            case Spooled(seq):
                while self._unspooled and self._unspooled[0].seq <= seq:
                    self._unspooled.popleft()
                self._spooled.set()
                self._spooled = trio.Event()
            case Drain(timeout_s):
                self._parent.drain_timeout_s = timeout_s
                self._parent.stopping.set()

    @property
    def _known_world(self) -> World:
        assert self._world is not None, "control sends WorkerSettings before anything else"
        return self._world

    def _configure(self, settings: WorkerSettings) -> None:
        if settings.tls is not None and (self._world is None or self._world.settings.tls != settings.tls):
            self._certificates = Certificates(settings.tls, self._log)
            self._certificates.context(trio.current_time())  # so that what is wrong is said before somebody comes
            self._ciphertext = memoryview(bytearray(SHARED_BYTES))
        if self._world is None:
            self._world = World(
                settings, self._engine, self._log, self._want_metadata, self._ask, self._complain_of_client
            )
        else:
            self._world.configure(settings)
            self._world.ledger.renew()  # which topics are protected, and who is internal, may have changed
        self._reactor.budget.limit = settings.max_buffered_bytes

    def _learn_topics(self, leads: dict[int, tuple[str, ...]], ids: dict[bytes, str]) -> None:
        world = self._known_world
        for node_id in self._engine.brokers.keys() | leads.keys():  # a broker that is not listed leads nothing any more
            self._engine.set_topics(node_id, leads.get(node_id, ()))
        world.topic_ids.update((topic_id, name.encode()) for topic_id, name in ids.items())
        world.ledger.renew()
        self._tell_rates()

    def _apply_policy(self, policy: Policy) -> None:
        self._engine.set_policy(
            policy.total,
            policy.topics,
            totals=policy.totals,
            on_exceed=policy.on_exceed,
            mode=policy.mode,
            accepted=True,  # by control, which knows all topics
        )
        self._known_world.ledger.renew()
        self._paces.set()
        self._tell_rates()

    def _apply_quotas(self, quotas: Quotas) -> None:
        entries = {
            Entity.of(pairs): {QuotaKey.parse(key): value for key, value in values.items()}
            for pairs, values in quotas.entries
        }
        observes = quotas.mode == "observe"
        self._known_world.quotas.set_store(QuotaStore(entries), trio.current_time(), observes=observes)
        self._has_shares.set()

    def _apply_groups(self, groups: Groups) -> None:
        self._known_world.set_groups(groups, trio.current_time())
        self._tell_rates()

    def _apply_storage(self, storage: Storage) -> None:
        world = self._known_world
        now = trio.current_time()
        factor = storage.factor
        self._factor.set(factor.value if storage.mode == "enforce" else None)
        shown = (factor.value, factor.why, storage.mode)
        if shown == self._storage_shown:  # only its expiry moved
            return
        self._storage_shown = shown
        self._engine.set_storage(factor.value, factor.why, now, mode=storage.mode)
        world.quotas.set_factor(self._engine.factor, now)
        self._paces.set()
        world.ledger.renew()
        self._tell_rates()

    def _post(self, message: Up) -> None:
        if self._channel is not None:
            self._channel.post(message)

    def _post_if_heard(self, message: Up) -> bool:
        """For what the next one makes obsolete: a control that doesn't read must not fill our memory. Whether it was
        posted.
        """
        is_heard = self._channel is not None and self._channel.backlog < MAX_BACKLOG
        if is_heard:
            self._post(message)
        return is_heard

    def _log(self, level: str, text: str) -> None:
        line = Log(level, one_line(text, MAX_LINE))
        if self._channel is None:
            self._lines.append(line)
        else:
            self._channel.post(line)

    def _complain(self, about: str, text: str) -> None:
        """Log what is the same for everybody: not with every connection."""
        self._complaints.say(about, text, trio.current_time(), burst=1)

    def _complain_of_client(self, kind: str, text: str) -> None:
        self._complaints.say(kind, text, trio.current_time())

    def _want_metadata(self) -> None:
        now = trio.current_time()
        if now - self._wanted_at >= WANT_S:
            self._wanted_at = now
            self._post(Want("metadata"))

    def _ask(self, session: Session) -> None:
        turn = session.turn
        assert turn is not None
        until = time.monotonic() + turn.until - trio.current_time()
        principal = session.gate.principal
        if self._channel is not None and self._channel.backlog_bytes > MAX_BACKLOG_BYTES:
            return  # its client is told after a while that nobody answered
        self._post_if_heard(Ask(turn.token, until, session.peer, principal, turn.request, turn.memo, turn.answer))

    def _report_bug(self, link: Link, bug: Exception) -> None:
        # The first frames of ours say where; a whole traceback per connection would be a log storm.
        where = []
        trace = bug.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            where.append(f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} {code.co_name}")
            trace = trace.tb_next
        self._complain(f"bug {where[-1:]}", f"{link.peer}: connection closed by a bug: {bug!r} at {' > '.join(where)}")

    # --- connections --------------------------------------------------------------------------------------------------

    def _accept(self, accepted: Accepted, fd: int, nursery: trio.Nursery) -> None:
        self._taken += 1
        if fd < 0:
            self._ended[network_of(accepted.peer)] += 1
            self._complain("fd", "a connection was lost: this worker has too many open files (raise LimitNOFILE)")
            return
        client = socket.socket(fileno=fd)
        self._addresses[network_of(accepted.peer)] += 1
        if self._draining or self._world is None:
            reset(client)
            self._count_ended(accepted.peer)
            return
        self._world.ledger.count("connections_accepted")
        nursery.start_soon(self._connect, accepted, client)

    async def _connect(self, accepted: Accepted, client: socket.socket) -> None:
        """Make a link of a client's connection once it has begun a request."""
        link = None
        try:
            opened = await self._open(accepted.peer, client)
            if opened is not None:
                link = await self._join(accepted, client, *opened)
        finally:
            if link is None:
                client.close()
                self._count_ended(accepted.peer)

    def _count_closed(self, link: Link) -> None:
        self._count_ended(link.peer)

    def _count_ended(self, peer: str) -> None:
        address = network_of(peer)
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        self._ended[address] += 1

    async def _open(self, peer: str, client: socket.socket) -> tuple[Tls | None, bytes] | None:
        """TLS, and the head of the first request. None: it came to nothing; it has been counted and said."""
        client.setblocking(False)
        with trio.CancelScope() as scope:
            self._openings.add(scope)
            try:
                tls = None
                if self._certificates is not None:
                    tls = await self._shake_hands(self._certificates, peer, client)
                    if tls is None:
                        return None
                head = await self._receive_head(peer, client, tls)
                return (tls, head) if head else None
            finally:
                self._openings.discard(scope)
        return None  # the worker ends

    async def _receive_head(self, peer: str, client: socket.socket, tls: Tls | None) -> bytes:
        world = self._known_world
        settings = world.settings
        reason = "disconnects_first_byte"
        with trio.move_on_after(settings.first_byte_timeout_s):
            try:
                head = await receive_head(
                    client if tls is None else tls, client, settings.max_request_bytes, wants_sasl=world.wants_sasl
                )
                if len(head) == HEAD:
                    return head
                reason = "disconnects_client"
                if head:
                    world.ledger.count("requests_malformed")
                    what = f"half a frame: {len(head)} bytes, then the client closed"
                    self._complain_of_client("malformed", f"{peer}: connection closed: {what}")
            except OSError:
                reason = "disconnects_client"
            except MalformedFrame as error:
                reason = close_reason(error)
                if not isinstance(error, Unauthenticated):
                    world.ledger.count("requests_malformed")
                self._complain_of_client("malformed", f"{peer}: connection closed: {error}")
        world.ledger.count(reason)
        return b""

    async def _join(self, accepted: Accepted, client: socket.socket, tls: Tls | None, head: bytes) -> Link | None:
        """Dial the broker that this connection is for, and put the pair into the reactor. `head`: read already."""
        world = self._known_world
        self._dialling += 1
        upstream = None
        try:
            for node_id, host, port in self._targets(accepted.broker):
                upstream = await self._dial(node_id, host, port, world.settings.connect_timeout_s)
                if upstream is not None:
                    break
        finally:
            self._dialling -= 1
            if upstream is None:
                reset(client)
        if upstream is None:
            world.ledger.count("upstream_failed")
            return None
        if self._draining:
            upstream.close()
            reset(client)
            return None
        now = trio.current_time()
        session = Session(world, node_id, now)
        if tls is None:
            link = Link(self._reactor, session, client, upstream, accepted.peer)
        else:
            link = TlsLink(self._reactor, session, client, upstream, accepted.peer, tls)
        link.c_in.begin(head)
        try:
            link.open(now)
        except OSError:  # the client is gone already
            link.close("disconnects_client")
        self._reactor.settle(now)
        return link

    async def _shake_hands(self, certificates: Certificates, peer: str, client: socket.socket) -> Tls | None:
        """None: with this client there is no TLS; it has been counted and said."""
        context = certificates.context(trio.current_time())
        if context is None:
            self._refuse_tls(peer, certificates.problem, "certificate")
            return None
        tls = Tls(context, client, self._ciphertext)
        why = kind = f"the client did not complete it within {HANDSHAKE_TIMEOUT_S:g} s"
        with trio.move_on_after(HANDSHAKE_TIMEOUT_S):
            try:
                await shake_hands(tls, client, self._handshake_turn)
                return tls
            except HandshakeError as error:
                why, kind = str(error), error.kind
            except OSError as error:
                why = kind = error.strerror or str(error)
        if kind != PROBE and not self._draining:
            self._refuse_tls(peer, why, kind)
        return None

    def _refuse_tls(self, peer: str, why: str, kind: str) -> None:
        self._known_world.ledger.count("tls_handshakes_failed")
        self._complain(f"tls {kind}", f"{peer}: no TLS handshake: {why}")

    def _targets(self, node_id: int | None) -> list[tuple[int, str, int]]:
        """Where to dial: that broker; for the bootstrap listener each broker, beginning with another one every time."""
        brokers = self._known_world.brokers
        if node_id is not None:
            broker = brokers.get(node_id)
            return [(node_id, broker.host, broker.port)] if broker is not None else []
        known = [(broker.node_id, broker.host, broker.port) for broker in brokers.values()]
        known = known or [(-1, host, port) for host, port in self._bootstrap]
        first = next(self._turn) % len(known) if known else 0
        return known[first:] + known[:first]

    async def _dial(self, node_id: int, host: str, port: int, timeout_s: float) -> socket.socket | None:
        reason = f"no answer within {timeout_s:g} s"
        with trio.move_on_after(timeout_s):
            try:
                stream = await trio.open_tcp_stream(host, port)
                return socket.socket(fileno=stream.socket.detach())
            except OSError as error:
                cause = error.__cause__
                first = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause or error
                number = getattr(first, "errno", None) or 0  # trio writes the address into strerror; gaierror's are < 0
                reason = os.strerror(number) if number > 0 else getattr(first, "strerror", None) or str(first)
        self._complain(f"dial {node_id}", f"broker {node_id} ({host}:{port}) can't be reached: {reason}")
        return None

    # --- by the clock -------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await trio.sleep(self._engine.next_tick(trio.current_time()))
            now = trio.current_time()
            if now >= self._engine.due:
                self._end_second()
            ticks = self._engine.tick(now)
            if not ticks or self._world is None:
                continue
            self._world.quotas.tick(ticks, now)
            self._world.rejected.expire(now)
            self._world.ledger.renew()  # meters of topics that went quiet are gone
            self._tell_rates()
            for link in list(self._reactor.links):
                self._reactor.guard(link, link.check_progress, now, self._world.settings)
            self._reactor.settle(now)
            self._complaints.tell(now)

    async def _pace(self) -> None:
        """Keep the buckets of thresholds that delay and of resource groups up to date, while there are any."""
        while True:
            if self._engine.paces:
                self._engine.pace(trio.current_time())
                await trio.sleep(PACE_S)
            else:
                self._paces = trio.Event()
                await self._paces.wait()

    def _start_pacing(self) -> None:
        self._paces.set()

    async def _follow_storage(self) -> None:
        """Let what a pause held go on, in the order in which it waited; and when control has said nothing for too long,
        go by what it said should hold then.
        """
        while True:
            self._storage_told = trio.Event()
            storage = self._storage
            if self._engine.pause is None:
                await self._resume_paused()
            timeout_s = math.inf
            if storage is not None and storage.valid_until is not None:
                late_s = LATE_S if self._channel is not None else 0.0
                timeout_s = max(0.0, storage.valid_until + late_s - time.monotonic())
            with trio.move_on_after(timeout_s) as waiting:
                await self._storage_told.wait()
            if waiting.cancelled_caught and storage is not None and storage is self._storage:
                factor = storage.following
                self._storage = Storage(factor, storage.mode)
                self._apply_storage(self._storage)
                what = f"storage factor {factor.value:g} ({factor.origin})"
                self._log("warning", f"{what}: nothing new was heard in time")

    async def _resume_paused(self) -> None:
        paused = [link for link in self._reactor.links if link.session.paused_since]
        paused.sort(key=lambda link: link.session.paused_since)
        since = trio.current_time()
        for link in paused:
            if self._reactor.budget.is_used_up:  # each reads what its client has sent meanwhile: let brokers take it
                await trio.sleep(RESUME_PAUSE_S)
                since = trio.current_time()
            now = trio.current_time()
            if not link.closed and link.session.resume(now):
                self._reactor.call_soon(link)
            self._reactor.settle(now)
            if trio.current_time() - since > RESUME_SLICE_S:
                await trio.lowlevel.checkpoint()
                since = trio.current_time()

    async def _deal(self) -> None:
        """Deal shares of client quotas out, while there are any."""
        counted: dict[int, int] = {}
        while True:
            if self._world is None or not self._world.quotas.has_shares:
                self._has_shares = trio.Event()
                await self._has_shares.wait()
                continue
            totals = {}
            for node_id, broker in self._engine.brokers.items():
                taken = broker.taken - counted.get(node_id, broker.taken)
                counted[node_id] = broker.taken
                totals[node_id] = (broker.own_threshold, float(taken))
            self._world.quotas.deal(totals, trio.current_time())
            await trio.sleep(DEAL_S)

    def _tell_rates(self) -> None:
        quotas = [] if self._world is None else self._world.quotas.rates(MAX_QUOTA_RATES)
        engine = self._engine
        self._post_if_heard(
            Rates(tuple(engine.rates()), engine.warnings(), tuple(quotas), tuple(engine.groups.rates()))
        )

    async def _close_intervals(self) -> None:
        """Each second, counted from ticks: what a tick changed is in the interval behind it, and nothing of it before
        (policies/replay.py lives on that).
        """
        while True:
            left = self._engine.next_tick(trio.current_time()) % INTERVAL_S
            await trio.sleep(left if left > INTERVAL_S / 2 else left + INTERVAL_S)
            if self._engine.next_tick(trio.current_time()) > INTERVAL_S / 2:  # else its end is the tick's
                self._end_second()

    def _end_second(self) -> None:
        now = trio.current_time()
        kept = sum(len(interval.rows) for interval in self._unspooled)
        has_room = len(self._unspooled) < MAX_UNSPOOLED and kept < MAX_UNSPOOLED_ROWS
        if now - self._second_ended > INTERVAL_S / 2 and has_room:
            self._second_ended = now
            self._close_interval(final=False)

    def _close_interval(self, final: bool) -> None:
        if self._world is None:
            return
        rows, counts = self._world.ledger.close()
        start_ms, end_ms = self._pass_interval()
        factor = self._factor.take()
        if rows or final:
            interval = Interval(
                self._boot, self._number, next(self._seq), start_ms, end_ms, rows, counts, final, factor
            )
            self._unspooled.append(interval)
            self._post(interval)
        elif counts and self._channel is not None:
            # Not part of the accounts, so it uses up no sequence number and is not kept.
            self._post(Interval(self._boot, self._number, -1, start_ms, end_ms, (), counts))
        else:
            self._world.ledger.counts = counts  # for a control that comes later

    def _pass_interval(self) -> tuple[int, int]:
        """Begin a new interval; start and end of the one before, Unix milliseconds. It never ends before its start."""
        now = trio.current_time()
        began, self._interval_began = self._interval_began, now
        start_ms, end_ms = self._interval_start_ms, _wall_ms()
        self._interval_start_ms = end_ms
        lasted_ms = round((now - began) * 1000)
        if end_ms < start_ms or abs(end_ms - start_ms - lasted_ms) > CLOCK_SLACK_S * 1000:
            start_ms = end_ms - lasted_ms  # the clock was set: how long it lasted is still known
        return start_ms, end_ms

    async def _tell_gauges(self) -> None:
        told: Gauges | None = None
        while True:
            links = self._reactor.links
            muted = sum(link.muted for link in links)
            opening = self._dialling + len(self._openings)
            gauges = Gauges(len(links), muted, self._reactor.budget.used, opening, self._taken)
            if gauges != told:
                told = gauges
                self._post_if_heard(gauges)
            if self._ended and self._post_if_heard(Ended(dict(self._ended))):
                self._ended.clear()
            if self._world is not None:
                self._reactor.relieve(trio.current_time(), self._world.settings.frame_timeout_s)
            await trio.sleep(GAUGES_S)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _stop(self, timeout_s: float) -> None:
        """Answer what is in flight, close everything, hand the last counts over."""
        self._draining = True
        reactor = self._reactor
        now = trio.current_time()
        end = now + timeout_s
        for opening in self._openings:
            opening.cancel()
        for link in list(reactor.links):
            reactor.guard(link, link.drain, now)
        reactor.settle(now)
        with trio.move_on_at(now + timeout_s * DRAIN_SHARE):
            while reactor.links or self._dialling or self._openings:  # noqa: ASYNC110 - links close in plain calls that can't wake us
                await trio.sleep(0.02)
        for link in list(reactor.links):
            reactor.guard(link, link.close, "disconnects_drain")
        reactor.settle(now)
        self._close_interval(final=True)
        with trio.move_on_at(end):
            while self._unspooled:
                await self._spooled.wait()


def _wall_ms() -> int:
    return round(time.time() * 1000)
