# One client connection and its upstream connection: what is read, sent, kept, paused and closed.
#
#            ┌────────── upstream.outbound ◄── session ◄── client.inbound ◄── client
#  upstream ◄┘                                                                   ▲
#  upstream ──► upstream.inbound ──► session ──► client.outbound ────────────────┘
#
# Backpressure: a side is not read while the other has something that it was not able to send; the client is not read
# either while answers to it wait, for the gateway makes answers of its own. One writer per socket by construction: all
# of this is synchronous and in one thread. The session says what may pass and what is owed, the watch how long anything
# may take; here are sockets and what follows from where they stand.

from __future__ import annotations

import socket
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from gateway.data.relay.ends import EndLog
from gateway.data.relay.farewell import Farewell
from gateway.data.relay.parked import Parked
from gateway.data.relay.watch import Late, Watch
from gateway.data.shared.errors import SpeaksTls, UpstreamError, close_reason
from gateway.data.sockets.inbound import EOF, Inbound
from gateway.data.sockets.outbound import Outbound
from gateway.data.sockets.reactor import ERR, HUP, IN, OUT, RDHUP
from gateway.data.sockets.sides import Side
from gateway.system.sockets import end_by_reset
from protocol.framing import check_answer_head, check_request_head, is_tls_alert
from protocol.wire import MalformedFrame

if TYPE_CHECKING:
    from gateway.channel import WorkerSettings
    from gateway.data.relay.shortcut import Seen, Shortcut
    from gateway.data.session.fast_path import Terms
    from gateway.data.session.session import Session
    from gateway.data.shared.budget import Large
    from gateway.data.sockets.reactor import Reactor
    from gateway.data.sockets.tls import Tls
else:
    try:
        from gateway.data.relay.shortcut import Shortcut
    except ImportError:  # it is not compiled
        from gateway.data.relay.no_shortcut import NoShortcut as Shortcut

MAX_READ_ON = 8 * 2**20  # behind a pause: a client's FIN may stand behind a whole receive window (tcp_rmem is 6 MiB)
MAX_HELD = 256 * 1024  # behind a pause that a client waits for
LONG_WAIT_S = 2.0  # that requests wait: from there on the receive buffer of their connection is small …
SHORT_WAIT_S = 1.0  # … and from there on as usual again
GRACE_S = 30.0  # that a connection may be too old while no moment between two requests has been seen
READ_ON_ROUNDS = 4  # while that window is read more comes, a round trip later: look again, but not for ever …
READ_ON_S = 0.05  # … and with so long between


class _ClosedShortcut:
    """That of every link that is closed: it knows none of them."""

    def shut(self) -> None:
        """It is."""


_CLOSED: Final[Any] = _ClosedShortcut()


class Link:
    """A pair of connected sockets in the reactor; owns both.

    Attributes:
        parked: read, but not to be handled before the session's hold is over.
        finishing: nothing more is taken from the client; once all is answered, the close is counted under this name.
    """

    __slots__ = (
        "_farewell",
        "_is_drained",
        "_is_plain",
        "_log",
        "_timer_at",
        "_watch",
        "client",
        "closed",
        "finishing",
        "parked",
        "peer",
        "reactor",
        "session",
        "shortcut",
        "upstream",
    )

    def __init__(
        self, reactor: Reactor[Link], session: Session, client: socket.socket, upstream: socket.socket, peer: str
    ) -> None:
        account = session.account
        self.reactor = reactor
        self.session = session
        self.client = Side(client, Inbound(reactor.shared, account, self._wake, is_client=True), Outbound(account))
        self.upstream = Side(upstream, Inbound(reactor.shared, account, self._wake, is_client=False), Outbound(account))
        self.peer = session.admin.peer = peer
        session.admin.wake = self._wake
        self.parked = Parked(account)
        self.finishing = ""
        self.closed = False
        self._watch = Watch(self.client, session.hold.drained_at)
        self._log = EndLog(session.client, peer)
        self._is_plain = True  # nothing parked, no side has ended, nothing is finishing
        self._is_drained = True  # the client's socket was empty, and is being read: what comes now has not waited
        self._timer_at = 0.0
        self._farewell: Farewell | None = None
        self.shortcut = self._new_shortcut()

    def _new_shortcut(self, of_client: Tls | None = None, of_upstream: Tls | None = None) -> Shortcut:
        """`of_client`, `of_upstream`: the TLS that these sides speak."""
        session, shared = self.session, self.reactor.shared
        world, counted = session.client.world, session.counted
        return Shortcut(self, world, shared, self.client, self.upstream, counted, of_client, of_upstream)

    def open(self) -> None:
        """Put both sockets into the reactor.

        Raises:
            OSError: one of them is broken; the link must be closed.
        """
        self.reactor.links.add(self)
        self.client.open(self.reactor, self.shortcut)
        self.upstream.open(self.reactor, self.shortcut)

    @property
    def is_muted(self) -> bool:
        return self.parked.held is not None and bool(self.session.hold.until)

    @property
    def id(self) -> str:
        """In the log and in the list of connections."""
        return self._log.connection

    @id.setter
    def id(self, value: str) -> None:
        self._log.connection = value

    def age_s(self, now: float) -> float:
        """Seconds since it was joined to a broker."""
        return now - self._watch.opened_at

    def idle_s(self, now: float) -> float:
        """Seconds since the last byte from either side."""
        self.shortcut.shut()
        return now - max(self._watch.read_at, self._watch.answered_at)

    # --- events -------------------------------------------------------------------------------------------------------

    def on_client(self, events: int, now: float) -> None:
        """The client's socket is ready."""
        client = self.client
        self.shortcut.shut()
        if events & (ERR | HUP):
            if events & ERR or not client.is_shut or not client.mask & IN:
                self._client_broken(now)
                self._go_on(now)
                return
            events |= IN  # both have said that nothing more comes: what came before is still there
        try:
            if events & OUT:
                client.outbound.flush(client.sock)
                self._watch.ended_at = now
            if not events & IN or not client.mask & IN:
                if events & RDHUP:
                    client.is_gone, client.mask = True, 0  # the one shot is used up
                self._go_on(now)
                return
            if self._is_drained:
                self.session.hold.drained_at = now
            inbound = client.inbound
            if inbound.is_large_next:
                self.look_ahead()
            n = inbound.receive(client.sock)
        except OSError:
            self._client_broken(now)
            self._go_on(now)
            return
        if n == EOF:
            self._client_ended(now)
        else:
            self._watch.read_at = now
            if n:
                self._handle(inbound.buf, inbound.start, inbound.end, inbound.large, now)
        self._go_on(now)

    def on_upstream(self, events: int, now: float) -> None:
        """The upstream socket is ready."""
        upstream = self.upstream
        self.shortcut.shut()
        try:
            if events & OUT and not events & (ERR | HUP):
                upstream.outbound.flush(upstream.sock)
            if events & (ERR | HUP):
                upstream.outbound.close()  # it can't be sent any more, and OUT would be reported for ever
            if events & IN and upstream.mask & IN:
                n = upstream.inbound.receive(upstream.sock)
                if n > 0:
                    self._watch.answered_at = now
                    self._handle_answers(now)
                elif n == EOF:
                    self._upstream_ended(now)
            elif events & (ERR | HUP | RDHUP) and not upstream.is_gone:
                # Its earlier answers are still the client's: its end is read behind that.
                upstream.is_gone, upstream.mask = True, 0
                self._begin_end(now)
        except OSError:
            upstream.is_reset = True
            self._upstream_ended(now)
        if not self.closed:
            self._go_on(now)

    def on_timer(self, now: float) -> None:
        """The time of a hold may have come."""
        self._timer_at = 0.0
        self.shortcut.shut()
        if not self.closed:
            self._go_on(now)

    def on_ready(self, now: float) -> None:
        """There is room again, or something else changed without an event."""
        self.shortcut.shut()
        if not self.closed:
            self._go_on(now)

    def _wake(self) -> None:
        self.shortcut.shut()
        self.reactor.call_soon(self)

    # --- the shortcut -------------------------------------------------------------------------------------------------

    def terms(self, now: float) -> Terms | None:
        """Those on which the next events may take the shortcut; None: they must not. The shortcut is also told whether
        records pass unseen, on any terms.
        """
        client, upstream = self.client, self.upstream
        if not self._is_plain or client.is_stuck or not upstream.is_between:
            return None
        terms = self.session.terms(now)  # first: it looks up the quotas, which say whether records pass unseen
        self._guide_shortcut()
        return terms

    def _guide_shortcut(self) -> None:
        client, shortcut = self.client, self.shortcut
        inbound = client.inbound
        shortcut.takes_requests = bool(client.mask & IN) and inbound.is_direct and not self.upstream.is_stuck
        shortcut.seen.is_drained, shortcut.looks_ahead = self._is_drained, inbound.is_large_next
        # A quota on time has to be told how long each event takes; one that is new is, from the next answer on.
        shortcut.passes_unseen = not self.session.client.lines.request

    def catch_up(self, seen: Seen) -> None:
        """The shortcut tells what it has seen since it was told of the link's state."""
        watch = self._watch
        if seen.read_at:
            watch.read_at = seen.read_at
            self._is_drained = self.client.inbound.drained = seen.is_drained
        if seen.drained_at:
            self.session.hold.drained_at = seen.drained_at
        if seen.answered_at:
            watch.answered_at = seen.answered_at

    def look_ahead(self) -> None:
        """The shortcut is about to read the client behind a request that was larger than a read."""
        try:
            self.client.inbound.look_ahead(self.client.sock, self.session.client.world.settings.max_request_bytes)
        except OSError:
            pass  # the one who reads is told

    def end_reading(self) -> None:
        """The shortcut can't read on: there is no room for the rest of the client's request."""
        self.shortcut.shut()
        self._update()

    def let_go(self, large: Large) -> None:
        """The shortcut has passed on the client's request in that buffer."""
        self._watch.frame_at = 0.0
        self.client.inbound.hand_over()
        self.session.account.give(large)
        self.shortcut.looks_ahead = self.client.inbound.is_large_next

    def hold_back(self, large: Large, sent: int) -> None:
        """The same, but the broker has taken only the first `sent` bytes. The shortcut has told all it knows."""
        self._watch.frame_at = 0.0
        self.client.inbound.hand_over()
        self.upstream.outbound.hold(large, sent)
        self._update()
        self._guide_shortcut()

    def flushed(self) -> None:
        """The shortcut has sent the last of what the broker had not taken at once."""
        self.upstream.outbound.finish()
        self._update()
        self._guide_shortcut()

    def keep(self, pos: int, end: int) -> bool:
        """The shortcut has passed on the bytes before `pos` in the shared buffer; those from there on are the beginning
        of a frame. False: they have to be looked at. The shortcut has told all it knows.
        """
        inbound = self.client.inbound
        inbound.buf, inbound.end = self.reactor.shared.buffer, end
        try:
            size = check_request_head(inbound.buf, pos, end, self.session.client.world.settings.max_request_bytes)
        except MalformedFrame:
            return False
        inbound.keep(pos, size)
        self._guide_shortcut()
        return True

    def end_client(self, is_eof: bool, now: float) -> None:
        """The shortcut has read the client's end, or that its socket is broken."""
        self.shortcut.shut()
        if is_eof:
            self._client_ended(now)
        else:
            self._client_broken(now)
        self._go_on(now)

    def end_upstream(self, is_eof: bool, now: float) -> None:
        """The shortcut has read the broker's end, or that its socket is broken."""
        self.shortcut.shut()
        self.upstream.is_reset = not is_eof
        self._upstream_ended(now)
        self._go_on(now)

    def go_on_with_requests(self, start: int, pos: int, end: int, large: Large | None, now: float) -> None:
        """The shortcut has read these into that buffer, else the shared one: [start:pos] is handled but not sent, the
        rest neither.
        """
        self.shortcut.shut()
        buf = self.reactor.shared.buffer if large is None else large.buffer
        if pos > start:
            self.session.to_upstream.append(memoryview(buf)[start:pos])
            self._watch.frame_at = 0.0
        self._handle(buf, pos, end, large, now)
        self._go_on(now)

    def go_on_with_answers(self, start: int, pos: int, end: int, now: float) -> None:
        """The same with answers."""
        self.shortcut.shut()
        session, inbound, buf = self.session, self.upstream.inbound, self.reactor.shared.buffer
        if pos > start:
            session.to_client.append(memoryview(buf)[start:pos])
            session.in_flight.release()
        inbound.buf, inbound.start, inbound.end = buf, pos, end
        self._handle_answers(now)
        if not self.closed:
            self._go_on(now)

    # --- what happens to a side ---------------------------------------------------------------------------------------

    def _begin_end(self, now: float) -> None:
        """Nothing more comes from a side, or is taken from it: the bytes that are left have to go in time."""
        self._watch.ended_at, self._is_plain = now, False

    def _client_ended(self, now: float) -> None:
        self.client.is_over = True
        self._begin_end(now)
        partial = self.client.inbound.partial
        if partial and not self.client.is_shut:
            self._log.malformed(f"half a frame: {partial} bytes, then the client closed")

    def _client_broken(self, now: float) -> None:
        """Nothing more comes from it or goes to it. The broker's answers are waited for as behind a client's end: only
        they say which of its bytes count, and a client could choose by a reset that none do.
        """
        client, upstream = self.client, self.upstream
        if upstream.is_over or upstream.is_gone or not self.session.owes_records:
            self.close(self.finishing if client.is_shut else "disconnects_client")
            return
        if client.is_reset:
            return
        client.outbound.close()
        client.is_over = client.is_gone = client.is_reset = True
        self._begin_end(now)

    def _upstream_broken(self, now: float) -> None:
        """Nothing can be sent to it any more; its earlier bytes may still be unread."""
        self.upstream.outbound.close()
        self.upstream.is_gone = self.upstream.is_reset = True
        self._begin_end(now)

    def _upstream_ended(self, now: float) -> None:
        self.upstream.is_over = True
        self._begin_end(now)

    # --- client -> upstream -------------------------------------------------------------------------------------------

    def _handle(self, buf: bytearray, pos: int, end: int, large: Large | None, now: float) -> None:
        """Give the session the bytes read, send those that it passes on, and keep or park the rest."""
        session, inbound = self.session, self.client.inbound
        if large is not None:
            inbound.hand_over()  # ours from here on: handed on to what needs it further, or given back below
        if self.finishing and not session.hold.draining:
            self._give_back(large)  # behind a malformed frame
            return
        malformed = reason = ""  # not the error itself: it would keep this frame, and all of the session, in a circle
        frame_bytes, start = 0, pos
        started = perf_counter() if session.client.lines.request else 0.0
        try:
            pos = session.on_client(buf, pos, end, now)
            if pos < end and not session.hold.until:
                frame_bytes = check_request_head(buf, pos, end, session.client.world.settings.max_request_bytes)
        except MalformedFrame as error:
            malformed, reason = str(error), close_reason(error)
        if pos != start:
            self._watch.frame_at = 0.0
        if session.in_flight.is_waiting:
            self._is_plain = False  # `_update` has to look
        if session.to_upstream:
            try:
                large = self.upstream.outbound.send(self.upstream.sock, session.to_upstream, large)
            except OSError:
                session.to_upstream.clear()
                self._upstream_broken(now)
        if session.to_client:
            self._send_client(now)
        if started:
            session.client.spend(perf_counter() - started, now)
        if reason:
            if reason == "disconnects_error":  # control's fault
                self._log.closed("error", malformed)
            else:
                self._log.malformed(malformed)
            self.finishing = reason  # the requests before the broken one are still answered
            self._begin_end(now)
        elif pos < end and not self.closed:
            if session.hold.until or session.in_flight.is_full:
                self._park(buf, pos, end, large)
                self.parked.note(session.why_waiting, now)
                return
            inbound.buf, inbound.end = buf, end
            inbound.keep(pos, frame_bytes)
        if large is not None:
            self._give_back(large)

    def _give_back(self, large: Large | None) -> None:
        if large is not None:
            self.session.account.give(large)

    def _park(self, buf: bytearray, pos: int, end: int, large: Large | None) -> None:
        self.parked.put(buf, pos, end, large)
        self._is_plain = False

    def _resume(self, now: float) -> None:
        """A hold is over: handle the parked requests, after a look at whether their client is still there.

        A client that gave up has sent the same records again on another connection; forwarding the requests that it
        left here would write them twice. Its FIN may stand behind requests that are not read yet, so those are read
        first. Not where nothing is forwarded anyway: all connections may be held at once, and none may read more than
        it has room for.
        """
        session, parked = self.session, self.parked
        hold = session.hold
        buf, pos, end, large = parked.take()
        hold.memory_short = session.account.is_wanted
        forwards = session.admin.turn is None and not (hold.paused_since and session.gate.paused())
        if hold.until and forwards and self.client.inbound.is_between:
            # Until it may have given up, a client that sends ahead keeps in its own queue what can't be handled soon.
            most = MAX_HELD if hold.sends_ahead and now < hold.latest else MAX_READ_ON
            more = self._read_on(min(most, self.reactor.budget.room // 2) - (end - pos))
            if more:
                buf, pos, end = bytearray(memoryview(buf)[pos:end]) + more, 0, end - pos + len(more)
                self._give_back(large)
                large = None
                if not self.client.is_over and parked.rounds < READ_ON_ROUNDS and not hold.draining:
                    parked.rounds += 1
                    hold.until = now + READ_ON_S
                    self._park(buf, pos, end, None)
                    return
        parked.rounds = 0
        hold.client_gone = hold.client_gone or self.client.is_over
        size = end - pos
        head, hold.arrived = parked.head, parked.since
        self._handle(buf, pos, end, large, now)
        hold.arrived = 0.0
        waited = parked.waited(size, head, now)
        if waited and head.reason:
            session.client.world.ledger.latencies.wait(head.reason, waited)
        hold.memory_short = False  # it was about what was held; what comes next is looked at anew
        unread = self.client.unread if parked.held is not None and not self.closed else 0
        hold.drained_at = parked.age(size, unread, hold.drained_at, now)
        age_s = now - hold.drained_at
        if hold.sends_ahead and not LONG_WAIT_S >= age_s >= SHORT_WAIT_S:
            self.client.bound_receive_buffer(small=age_s > LONG_WAIT_S)

    def _read_on(self, most: int) -> bytearray:
        """Read up to about `most` bytes more, and note when the client has closed."""
        client = self.client
        more = bytearray()
        ended = client.is_gone or client.has_fin
        try:
            while len(more) < most:
                data = client.inbound.recv(client.sock, 262_144)
                if not data:
                    ended = True
                    break
                more += data
        except BlockingIOError:
            pass
        except OSError:
            ended = True
        client.is_over = client.is_over or ended
        return more

    # --- upstream -> client -------------------------------------------------------------------------------------------

    def _handle_answers(self, now: float) -> None:
        session, inbound = self.session, self.upstream.inbound
        buf, end = inbound.buf, inbound.end
        started = perf_counter() if session.client.lines.request else 0.0
        try:
            pos = session.on_upstream(buf, inbound.start, end, now)
        except (UpstreamError, MalformedFrame) as error:
            self._end_upstream(SpeaksTls() if is_tls_alert(buf, inbound.start, end) else error, now)
            return
        if session.to_client:
            self._send_client(now)
        if started:
            session.client.spend(perf_counter() - started, now)
        if not self.closed and (pos < end or inbound.large is not None):
            if is_tls_alert(buf, pos, end):
                self._end_upstream(SpeaksTls(), now)
                return
            size = check_answer_head(buf, pos, end) if session.wants_whole_answer else 0
            if size > self.reactor.budget.limit:
                too_large = UpstreamError(f"an answer of {size} bytes, more than limits.max_buffered_bytes")
                self._end_upstream(too_large, now)
                return
            inbound.keep(pos, size)

    def _end_upstream(self, error: Exception, now: float) -> None:
        self._log.by_broker(error)
        self._send_client(now)
        self.close(close_reason(error))

    def _send_client(self, now: float) -> None:
        to_client = self.session.to_client
        if not to_client:
            return
        if self.client.is_reset:
            to_client.clear()
            return
        try:
            self.client.outbound.send(self.client.sock, to_client, None)
        except OSError:
            to_client.clear()
            self._client_broken(now)

    # --- what follows from where things stand -------------------------------------------------------------------------

    def _go_on(self, now: float) -> None:
        """After any event: resume, shut down, close, or change the events waited for."""
        client, upstream = self.client, self.upstream
        if self._is_plain and client.mask == upstream.mask == IN:
            inbound = client.inbound
            if not (client.outbound.pieces or upstream.outbound.pieces or inbound.waiting or upstream.inbound.waiting):
                self._is_drained = inbound.drained
                return  # nearly always: both sides are read, and nothing is left to send
        session, parked = self.session, self.parked
        if parked.held is not None and not (upstream.is_stuck or client.is_stuck) and session.may_go_on(now):
            self._resume(now)
        if self.closed:
            return
        if upstream.is_over and not client.is_stuck and not session.admin.is_judged:
            self.close("disconnects_client" if client.is_over else "disconnects_upstream")
            return
        if self.finishing and session.is_idle and not (client.is_stuck or upstream.is_stuck or self._lingers(now)):
            self.close(self.finishing)
            return
        if client.is_over and not upstream.is_shut and parked.held is None and not upstream.is_stuck:
            # As the broker does itself: what was asked before a half-close is still answered.
            try:
                upstream.shut()
            except OSError:
                self._upstream_broken(now)
        until = session.hold.until
        if parked.held is not None and now < until and not 0.0 < self._timer_at <= until:
            self._timer_at = until
            self.reactor.call_at(until, self)
        self._update()

    def _update(self) -> None:
        """Tell epoll the events that are waited for, where they changed."""
        client, upstream = self.client, self.upstream
        ended = client.is_over or upstream.is_over or upstream.is_gone or self.finishing
        self._is_plain = not (ended or self.session.in_flight.is_waiting or self.parked.held is not None)
        lingers = client.is_shut and not client.is_over
        read = (self._is_plain or lingers) and not (client.is_stuck or upstream.is_stuck or client.inbound.waiting)
        if read and not client.mask & IN:  # what came meanwhile has waited
            client.inbound.drained = client.inbound.is_empty(client.sock)
        self._is_drained = read and client.inbound.drained
        client.wait_for((IN if read else 0) | (OUT if client.is_stuck else 0), self.reactor)
        read = not (client.is_stuck or upstream.is_over or upstream.inbound.waiting)
        upstream.wait_for((IN if read else 0) | (OUT if upstream.is_stuck else 0), self.reactor)

    # --- by the clock -------------------------------------------------------------------------------------------------

    def check_progress(self, now: float, settings: WorkerSettings) -> None:
        """End a connection that takes too long, whatever it does; to be called every few seconds."""
        client, upstream, session = self.client, self.upstream, self.session
        self.shortcut.shut()
        session.tidy(now)
        if settings.max_connection_age_s:
            self._retire(now, settings)
        ends = upstream.is_over or upstream.is_gone or self.finishing or (client.is_over and client.inbound.partial)
        waits_for_broker = session.in_flight.is_full or upstream.is_stuck
        self._end_late(
            self._watch.check(
                settings,
                now,
                is_ending=bool(ends),
                is_unknown=session.authentication.is_owed,
                is_held=self.parked.held is not None and not waits_for_broker,
            )
        )

    def check_course(self, now: float, timeout_s: float) -> None:
        """Memory is short: end a connection whose half-sent frame will not be whole within that time."""
        if self.client.inbound.large is not None:
            self._end_late(self._watch.check_course(timeout_s, self.session.account.is_wanted, now))

    def waits_s(self, now: float) -> float:
        """For so long it has had half a frame here while memory was short; 0.0: its client is read."""
        inbound = self.client.inbound
        return now - inbound.large.since if inbound.waiting and inbound.large and inbound.large.since else 0.0

    def read_first(self) -> None:
        """Read on whatever is free, if no other connection does."""
        inbound = self.client.inbound
        if inbound.waiting and inbound.large:
            self.session.account.put_first(inbound.large, inbound)

    def is_reading(self, now: float) -> bool:
        """Whether its client takes the bytes sent to it; False only where it has taken too little for a while."""
        return self._watch.is_reading(now)

    def give_up(self) -> None:
        """Memory is far exceeded, and this connection waits for more of it."""
        used = self.session.account.used
        self._end_late(Late("memory", f"memory is used up, and it waits for more of it with {used} bytes"))

    def shed(self) -> None:
        """Memory is used up, and this connection's client doesn't read the bytes that are held for it."""
        used = self.session.account.used
        self._end_late(Late("slow_reader", f"memory is short, and it does not read the {used} bytes it asked for"))

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end_late(self, late: Late | None) -> None:
        if late is not None:
            if late.what:
                self._log.closed(late.kind, late.what)
            self.close(f"disconnects_{late.kind}")

    def end_gently(self, cause: str, now: float) -> None:
        """Take nothing more from the client, and close as soon as everything forwarded is answered."""
        if self.closed:
            return
        self.shortcut.shut()
        self._farewell = self._farewell or Farewell(self.client, self.session)
        self._is_plain = False
        if not self.finishing:
            self.finishing, self._watch.ended_at = cause, now
        if self.parked.held is not None:
            self._resume(now)
        if not self.closed:
            self._go_on(now)

    def _lingers(self, now: float) -> bool:
        farewell = self._farewell
        return farewell is not None and farewell.lingers(now, lambda when: self.reactor.call_at(when, self))

    def _retire(self, now: float, settings: WorkerSettings) -> None:
        """Its time is over: end it between two requests; where there has been no such moment for long, all the same."""
        overdue_s = self._watch.overdue_s(settings.max_connection_age_s, now)
        if overdue_s < 0.0 or self.finishing or self.session.authentication.is_owed:
            return
        client, upstream = self.client, self.upstream
        is_between = (
            self._is_plain
            and self.session.is_idle
            and not (client.inbound.partial or upstream.inbound.partial or client.is_stuck or upstream.is_stuck)
        )
        if is_between or overdue_s > GRACE_S:
            self.end_gently("disconnects_age", now)

    def close(self, cause: str) -> None:
        """Close both sockets, settle the accounts, give all memory back."""
        if self.closed:
            return
        self.closed, self._is_plain = True, False
        self.shortcut.shut()
        reactor, session, held = self.reactor, self.session, self.parked.held
        reactor.links.discard(self)
        if session.authentication.failure and cause in ("disconnects_client", "disconnects_upstream"):
            cause = "disconnects_unauthenticated"  # after such an answer both sides close
            self._log.closed("unauthenticated", session.authentication.failure)
        try:
            session.client.world.ledger.count(cause)
            # Before any memory is given back: a connection that waits for it may write into it at once.
            session.close(held[:3] if held is not None else None)
            if cause == "disconnects_upstream" and self.upstream.is_reset and not self._watch.answered_at:
                end_by_reset(self.client.sock)  # else a client thinks that it should have spoken TLS, or SASL
        finally:
            sides = self.client, self.upstream
            for side in sides:
                reactor.discard(side.sock)
            self.parked.close()
            for side in sides:
                side.inbound.close()
            for side in sides:
                side.outbound.close()
            session.account.close()
            self.shortcut = _CLOSED  # which knew the link: it is freed now, not once the collector finds the circle
            reactor.on_closed(self)
