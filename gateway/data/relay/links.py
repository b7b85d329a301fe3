# One client connection and its upstream connection: what is read, sent, kept, paused and closed.
#
#            ┌────────── upstream.outbound ◄── session ◄── client.inbound ◄── client
#  upstream ◄┘                                                                   ▲
#  upstream ──► upstream.inbound ──► session ──► client.outbound ────────────────┘
#
# Backpressure: a side is not read while the other has something that it was not able to send; the client is not read
# either while answers to it wait, for the gateway makes answers of its own. One writer per socket by construction: all
# of this is synchronous and in one thread. The session says what may pass and what is owed, the watch how long anything
# may take, states.py what is read and sent in each state; here are the sockets, and the events that change a state.

from __future__ import annotations

import socket
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from gateway.data.relay.disconnect_log import DisconnectLog
from gateway.data.relay.parked import ParkedInput
from gateway.data.relay.sides import LinkSide
from gateway.data.relay.states import (
    ALL_ANSWERED,
    CLOSE,
    CLOSED,
    CONNECTION_LOST,
    DRAIN,
    DRAINING,
    END_READ,
    LINGERING,
    NONE_WAITS,
    OPEN,
    PEER_CLOSED,
    REFUSING,
    RELAYING,
    REQUEST_MALFORMED,
    REQUEST_WAITS,
    SEND_FAILED,
    SIDE_ENDS,
)
from gateway.data.relay.watch import ProgressWatch
from gateway.data.shared.errors import BrokerSpeaksTls, UpstreamError, close_reason
from gateway.data.sockets.inbound import EOF, InboundBuffer
from gateway.data.sockets.outbound import OutboundBuffer
from gateway.data.sockets.reactor import ERR, HUP, IN, OUT, RDHUP
from gateway.system.sockets import reset_on_close
from protocol.framing import check_request_head, check_response_head, is_tls_alert
from protocol.wire import MalformedFrame

if TYPE_CHECKING:
    from gateway.data.relay.shortcut import Shortcut, SocketActivity
    from gateway.data.relay.watch import LateConnection
    from gateway.data.session.fast_path import ForwardingTerms
    from gateway.data.session.session import ClientSession
    from gateway.data.shared.budget import FrameBuffer
    from gateway.data.sockets.reactor import SocketReactor
    from gateway.data.sockets.tls import TlsConnection
    from gateway.worker_config import WorkerLimits
else:
    try:
        from gateway.data.relay.shortcut import Shortcut
    except ImportError:  # it is not compiled
        from gateway.data.relay.no_shortcut import NoShortcut as Shortcut

MAX_READ_AHEAD = 8 * 2**20  # behind a pause: a client's FIN may stand behind a whole receive window (tcp_rmem is 6 MiB)
MAX_HELD = 256 * 1024  # behind a pause that a client waits for
LONG_WAIT_S = 2.0  # that requests wait: from there on the receive buffer of their connection is small …
SHORT_WAIT_S = 1.0  # … and from there on as usual again
LINGER_S = 1.0  # that a client has to close its half after it was told that nothing more comes
GRACE_S = 30.0  # that a connection may be too old while no moment between two requests has been seen
READ_AHEAD_ROUNDS = 4  # while that window is read more comes, a round trip later: look again, but not for ever …
READ_AHEAD_PAUSE_S = 0.05  # … and with so long between


class _ClosedShortcut:
    """That of every link that is closed: it knows none of them."""

    def invalidate_terms(self) -> None:
        """It is."""


_CLOSED_SHORTCUT: Final[Any] = _ClosedShortcut()


class RelayLink:
    """A pair of connected sockets in the reactor; owns both.

    Attributes:
        state: one of states.LINK_STATES.
        parked: read, but not to be handled before the session's hold is over.
        closing_cause: the name under which the close is counted where the gateway ends the connection; else "".
    """

    __slots__ = (
        "_disconnect_log",
        "_is_client_drained",
        "_linger_until",
        "_timer_at",
        "_watch",
        "client",
        "closing_cause",
        "parked",
        "peer",
        "reactor",
        "session",
        "shortcut",
        "state",
        "upstream",
    )

    def __init__(
        self,
        reactor: SocketReactor[RelayLink],
        session: ClientSession,
        client: socket.socket,
        upstream: socket.socket,
        peer: str,
        client_tls: TlsConnection | None = None,
        upstream_tls: TlsConnection | None = None,
    ) -> None:
        """`client_tls`, `upstream_tls`: only of a TlsLink."""
        self.reactor = reactor
        self.session = session
        self.client = self._make_side(client, client_tls, is_client=True)
        self.upstream = self._make_side(upstream, upstream_tls, is_client=False)
        self.peer = session.admin_requests.peer = peer
        session.admin_requests.wake_link = self._schedule_ready
        self.parked = ParkedInput(session.account)
        self.state = RELAYING
        self.closing_cause = ""
        self._watch = ProgressWatch(self.client, session.hold.drained_at)
        self._disconnect_log = DisconnectLog(session.client, peer)
        # the client's socket was empty, and is being read: what comes now has not waited
        self._is_client_drained = True
        self._timer_at = 0.0
        self._linger_until = 0.0
        self.shortcut = Shortcut(
            self, session.client.world, reactor.shared, self.client, self.upstream, session.response_counters
        )

    def _make_side(self, sock: socket.socket, tls: TlsConnection | None, *, is_client: bool) -> LinkSide:
        account = self.session.account
        inbound = InboundBuffer(self.reactor.shared, account, self._schedule_ready, is_client=is_client)
        return LinkSide(sock, inbound, OutboundBuffer(account))

    def open(self) -> None:
        """Put both sockets into the reactor.

        Raises:
            OSError: one of them is broken; the link must be closed.
        """
        self.reactor.links.add(self)
        self.client.open(self.reactor, self.shortcut)
        self.upstream.open(self.reactor, self.shortcut)

    @property
    def is_closed(self) -> bool:
        return self.state is CLOSED

    @property
    def is_muted(self) -> bool:
        return self.parked.input_slice is not None and bool(self.session.hold.held_until)

    @property
    def connection_id(self) -> str:
        """In the log and in the list of connections."""
        return self._disconnect_log.connection_id

    @connection_id.setter
    def connection_id(self, value: str) -> None:
        self._disconnect_log.connection_id = value

    def age_s(self, now: float) -> float:
        """Seconds since it was joined to a broker."""
        return now - self._watch.opened_at

    def idle_s(self, now: float) -> float:
        """Seconds since the last byte from either side."""
        self.shortcut.invalidate_terms()
        return now - max(self._watch.read_at, self._watch.answered_at)

    # --- events -------------------------------------------------------------------------------------------------------

    def on_client_event(self, events: int, now: float) -> None:
        """The client's socket is ready."""
        client = self.client
        self.shortcut.invalidate_terms()
        if events & (ERR | HUP):
            is_ended = self.state is LINGERING and not events & ERR  # both have said that nothing more comes
            if not client.event_mask & IN or not (is_ended or client.unread_bytes):
                self._mark_client_broken(now)
                self._advance_state(now)
                return
            # What came before is still there: of a client that has gone acks=0 is forwarded, as behind a pause.
            self.session.hold.is_client_gone = self.session.hold.is_client_gone or not is_ended
            events |= IN
        try:
            if events & OUT:
                client.outbound.flush(client.sock)
                self._watch.closing_since = now
            if not events & IN or not client.event_mask & IN:
                if events & RDHUP:
                    client.state, client.event_mask = client.state.after(PEER_CLOSED), 0  # the one shot is used up
                self._advance_state(now)
                return
            if self._is_client_drained:
                self.session.hold.drained_at = now
            inbound = client.inbound
            if inbound.is_large_next:
                self.peek_request()
            n = inbound.receive(client.sock)
        except OSError:
            self._mark_client_broken(now)
            self._advance_state(now)
            return
        if n == EOF:
            self._mark_client_ended(now)
        else:
            self._watch.read_at = now
            if n:
                self._handle_requests(inbound.buf, inbound.start, inbound.end, inbound.large_frame, now)
        self._advance_state(now)

    def on_upstream_event(self, events: int, now: float) -> None:
        """The upstream socket is ready."""
        upstream = self.upstream
        self.shortcut.invalidate_terms()
        try:
            if events & OUT and not events & (ERR | HUP):
                upstream.outbound.flush(upstream.sock)
            if events & (ERR | HUP):
                upstream.outbound.close()  # it can't be sent any more, and OUT would be reported for ever
            if events & IN and upstream.event_mask & IN:
                n = upstream.inbound.receive(upstream.sock)
                if n > 0:
                    self._watch.answered_at = now
                    self._handle_responses(now)
                elif n == EOF:
                    self._end_side(upstream, END_READ, now)
            elif events & (ERR | HUP | RDHUP) and not upstream.state.is_gone:
                # Its earlier answers are still the client's: its end is read behind that.
                upstream.event_mask = 0
                self._end_side(upstream, PEER_CLOSED, now)
        except OSError:
            self._end_side(upstream, CONNECTION_LOST, now)
        self._advance_state(now)

    def on_timer(self, now: float) -> None:
        """The time of a hold may have come."""
        self._timer_at = 0.0
        self.shortcut.invalidate_terms()
        self._advance_state(now)

    def on_ready(self, now: float) -> None:
        """There is room again, or something else changed without an event."""
        self.shortcut.invalidate_terms()
        self._advance_state(now)

    def _schedule_ready(self) -> None:
        self.shortcut.invalidate_terms()
        self.reactor.call_soon(self)

    # --- the shortcut -------------------------------------------------------------------------------------------------

    def current_terms(self, now: float) -> ForwardingTerms | None:
        """Those on which the next events may take the shortcut; None: they must not. The shortcut is also told whether
        records pass unseen, on any terms.
        """
        client, upstream = self.client, self.upstream
        if self.state is not RELAYING or client.has_unsent or not upstream.is_between_frames:
            return None
        terms = self.session.current_terms(now)  # first: it looks up the quotas, which say whether records pass unseen
        self._update_shortcut()
        return terms

    def _update_shortcut(self) -> None:
        client, shortcut = self.client, self.shortcut
        inbound = client.inbound
        shortcut.forwards_requests = (
            bool(client.event_mask & IN) and not inbound.waits_for_memory and not self.upstream.has_unsent
        )
        shortcut.activity.is_drained, shortcut.peeks_request = self._is_client_drained, inbound.is_large_next
        # A quota on time has to be told how long each event takes; one that is new is, from the next answer on.
        shortcut.splices_unseen = not self.session.client.quota_limit.time_limiters

    def apply_activity(self, seen: SocketActivity) -> None:
        """The shortcut tells what it has seen since it was told of the link's state."""
        watch = self._watch
        if seen.read_at:
            watch.read_at = seen.read_at
            self._is_client_drained = self.client.inbound.is_drained = seen.is_drained
        if seen.has_passed_request:
            watch.frame_since = 0.0
        if seen.drained_at:
            self.session.hold.drained_at = seen.drained_at
        if seen.answered_at:
            watch.answered_at = seen.answered_at

    def peek_request(self) -> None:
        """The shortcut is about to read the client behind a request that was larger than a read."""
        try:
            self.client.inbound.peek_request(self.client.sock, self.session.client.world.limits.max_request_bytes)
        except OSError:
            pass  # the one who reads is told

    def stop_reading(self) -> None:
        """The shortcut can't read on: there is no room for the rest of the client's request."""
        self.shortcut.invalidate_terms()
        self._update_interest()

    def release_sent_frame(self, large: FrameBuffer) -> None:
        """The shortcut has passed on the client's request in that buffer."""
        self._watch.frame_since = 0.0
        self.client.inbound.detach_frame()
        self.session.account.release_buffer(large)
        self.shortcut.peeks_request = self.client.inbound.is_large_next

    def retain_unsent_frame(self, large: FrameBuffer, sent: int) -> None:
        """The same, but the broker has taken only the first `sent` bytes. The shortcut has told all it knows."""
        self._watch.frame_since = 0.0
        self.client.inbound.detach_frame()
        self.upstream.outbound.retain_frame(large, sent)
        self._update_interest()
        self._update_shortcut()

    def on_flushed(self) -> None:
        """The shortcut has sent the last of what the broker had not taken at once."""
        self.upstream.outbound.finish_flush()
        self._update_interest()
        self._update_shortcut()

    def keep_partial_frame(self, pos: int, end: int) -> bool:
        """The shortcut has passed on the bytes before `pos` in the shared buffer; those from there on are the beginning
        of a frame. False: they have to be looked at.
        """
        inbound = self.client.inbound
        inbound.buf, inbound.end = self.reactor.shared.buffer, end
        try:
            size = check_request_head(inbound.buf, pos, end, self.session.client.world.limits.max_request_bytes)
        except MalformedFrame:
            return False
        inbound.keep_partial_frame(pos, size)
        return True

    def on_client_end(self, is_eof: bool, now: float) -> None:
        """The shortcut has read the client's end, or that its socket is broken."""
        self.shortcut.invalidate_terms()
        if is_eof:
            self._mark_client_ended(now)
        else:
            self._mark_client_broken(now)
        self._advance_state(now)

    def on_upstream_end(self, is_eof: bool, now: float) -> None:
        """The shortcut has read the broker's end, or that its socket is broken."""
        self.shortcut.invalidate_terms()
        self._end_side(self.upstream, END_READ if is_eof else CONNECTION_LOST, now)
        self._advance_state(now)

    def handle_read_requests(self, start: int, pos: int, end: int, large: FrameBuffer | None, now: float) -> None:
        """The shortcut has read these into that buffer, else the shared one: [start:pos] is handled but not sent, the
        rest neither.
        """
        self.shortcut.invalidate_terms()
        buf = self.reactor.shared.buffer if large is None else large.buffer
        if pos > start:
            self.session.to_upstream.append(memoryview(buf)[start:pos])
            self._watch.frame_since = 0.0
        self._handle_requests(buf, pos, end, large, now)
        self._advance_state(now)

    def handle_read_responses(self, start: int, pos: int, end: int, now: float) -> None:
        """The same with answers."""
        self.shortcut.invalidate_terms()
        session, inbound, buf = self.session, self.upstream.inbound, self.reactor.shared.buffer
        if pos > start:
            session.to_client.append(memoryview(buf)[start:pos])
            session.in_flight.release_local_responses()
        inbound.buf, inbound.start, inbound.end = buf, pos, end
        self._handle_responses(now)
        self._advance_state(now)

    # --- what happens to a side ---------------------------------------------------------------------------------------

    def _end_side(self, side: LinkSide, event: str, now: float) -> None:
        """Nothing more comes from that side, or goes to it: the bytes that are left have to go in time."""
        side.state = side.state.after(event)
        self.state = self.state.after(SIDE_ENDS)
        self._watch.closing_since = now

    def _mark_client_ended(self, now: float) -> None:
        self._end_side(self.client, END_READ, now)
        partial = self.client.inbound.partial_bytes
        if partial and self.state is not LINGERING:
            self._disconnect_log.log_malformed(f"half a frame: {partial} bytes, then the client closed")

    def _mark_client_broken(self, now: float) -> None:
        """Nothing more comes from it or goes to it. The broker's answers are waited for as behind a client's end: only
        they say which of its bytes count, and a client could choose by a reset that none do.
        """
        client = self.client
        if self.upstream.state.is_gone or not (self.session.owes_records or self.upstream.has_unsent):
            self.close(self.closing_cause if self.state is LINGERING else "disconnects_client")
            return
        if client.state.is_broken:
            return
        client.outbound.close()
        self._end_side(client, CONNECTION_LOST, now)

    def _mark_upstream_broken(self, now: float) -> None:
        """Nothing can be sent to it any more; its earlier bytes may still be unread."""
        self.upstream.outbound.close()
        self._end_side(self.upstream, SEND_FAILED, now)

    def _refuse(self, cause: str, now: float) -> None:
        """A request is malformed: those before it are still answered."""
        self.state = self.state.after(REQUEST_MALFORMED)
        self.closing_cause, self._watch.closing_since = cause, now

    # --- client -> upstream -------------------------------------------------------------------------------------------

    def _handle_requests(self, buf: bytearray, pos: int, end: int, large: FrameBuffer | None, now: float) -> None:
        """Give the session the bytes read, send those that it passes on, and keep or park the rest."""
        session, inbound = self.session, self.client.inbound
        if large is not None:
            inbound.detach_frame()  # ours from here on: handed on to what needs it further, or given back below
        if self.state is REFUSING:
            self._release_frame(large)
            return
        malformed = reason = ""  # not the error itself: it would keep this frame, and all of the session, in a circle
        frame_bytes, start = 0, pos
        started = perf_counter() if session.client.quota_limit.time_limiters else 0.0
        try:
            pos = session.on_client_bytes(buf, pos, end, now)
            if pos < end and not session.hold.held_until:
                frame_bytes = check_request_head(buf, pos, end, session.client.world.limits.max_request_bytes)
        except MalformedFrame as error:
            malformed, reason = str(error), close_reason(error)
        if pos != start:
            self._watch.frame_since = 0.0
        if session.in_flight.is_reading_blocked:
            self.state = self.state.after(REQUEST_WAITS)
        if session.to_upstream:
            try:
                large = self.upstream.outbound.send(self.upstream.sock, session.to_upstream, large)
            except OSError:
                session.to_upstream.clear()
                self._mark_upstream_broken(now)
        if session.to_client:
            self._send_to_client(now)
        if started:
            session.client.charge_time(perf_counter() - started, now)
        if reason:
            if reason == "disconnects_error":  # control's fault
                self._disconnect_log.log_close("error", malformed)
            else:
                self._disconnect_log.log_malformed(malformed)
            self._refuse(reason, now)
        elif pos < end and self.state is not CLOSED:
            if session.hold.held_until or session.in_flight.is_full:
                self._park_input(buf, pos, end, large)
                self.parked.begin_wait(session.wait_reason, now)
                return
            inbound.buf, inbound.end = buf, end
            inbound.keep_partial_frame(pos, frame_bytes)
        if large is not None:
            self._release_frame(large)

    def _release_frame(self, large: FrameBuffer | None) -> None:
        if large is not None:
            self.session.account.release_buffer(large)

    def _park_input(self, buf: bytearray, pos: int, end: int, large: FrameBuffer | None) -> None:
        self.parked.park_input(buf, pos, end, large)
        self.state = self.state.after(REQUEST_WAITS)

    def _resume_parked(self, now: float) -> None:
        """A hold is over: handle the parked requests, after a look at whether their client is still there.

        A client that gave up has sent the same records again on another connection; forwarding the requests that it
        left here would write them twice. Its FIN may stand behind requests that are not read yet, so those are read
        first. Not where nothing is forwarded anyway: all connections may be held at once, and none may read more than
        it has room for.
        """
        session, parked = self.session, self.parked
        hold = session.hold
        buf, pos, end, large = parked.pop_input()
        hold.is_memory_short = session.account.is_contended
        forwards = session.admin_requests.turn is None and not (hold.paused_since and session.gate.enforced_pause())
        looks = forwards and not hold.is_client_gone
        if hold.held_until and looks and self.client.inbound.is_between_frames:
            # Until it may have given up, a client that sends ahead keeps in its own queue what can't be handled soon.
            most = MAX_HELD if hold.sends_ahead and now < hold.wait_deadline else MAX_READ_AHEAD
            more = self._read_ahead(min(most, self.reactor.budget.free_bytes // 2) - (end - pos), now)
            hold.is_client_gone = hold.is_client_gone or self.client.state.is_gone
            if more:
                buf, pos, end = bytearray(memoryview(buf)[pos:end]) + more, 0, end - pos + len(more)
                self._release_frame(large)
                large = None
                if not hold.is_abandoned and parked.read_ahead_rounds < READ_AHEAD_ROUNDS:
                    parked.read_ahead_rounds += 1
                    hold.held_until = now + READ_AHEAD_PAUSE_S
                    self._park_input(buf, pos, end, None)
                    return
        parked.read_ahead_rounds = 0
        size = end - pos
        head, hold.arrived_at = parked.head, parked.since
        self._handle_requests(buf, pos, end, large, now)
        hold.arrived_at = 0.0
        waited = parked.waited_s(size, head, now)
        if waited and head.reason:
            session.client.world.ledger.latencies.record_wait(head.reason, waited)
        hold.is_memory_short = False  # it was about what was held; what comes next is looked at anew
        unread = self.client.unread_bytes if parked.input_slice is not None and self.state is not CLOSED else 0
        hold.drained_at = parked.oldest_since(size, unread, hold.drained_at, now)
        age_s = now - hold.drained_at
        if hold.sends_ahead and not LONG_WAIT_S >= age_s >= SHORT_WAIT_S:
            self.client.limit_receive_buffer(small=age_s > LONG_WAIT_S)

    def _read_ahead(self, most: int, now: float) -> bytearray:
        """Read up to about `most` bytes more, and note when the client has closed. What is left before its end is read
        when this has been handled: acks=0 may be among it.
        """
        client = self.client
        more, is_ended = client.read_ahead(most)
        if more:
            self._watch.read_at = now
        if is_ended:
            self._end_side(client, END_READ, now)
        elif client.has_fin:
            client.state = client.state.after(PEER_CLOSED)
        return more

    # --- upstream -> client -------------------------------------------------------------------------------------------

    def _handle_responses(self, now: float) -> None:
        session, inbound = self.session, self.upstream.inbound
        buf, end = inbound.buf, inbound.end
        started = perf_counter() if session.client.quota_limit.time_limiters else 0.0
        try:
            pos = session.on_upstream_bytes(buf, inbound.start, end, now)
        except (UpstreamError, MalformedFrame) as error:
            self._fail_upstream(BrokerSpeaksTls() if is_tls_alert(buf, inbound.start, end) else error, now)
            return
        if session.to_client:
            self._send_to_client(now)
        if started:
            session.client.charge_time(perf_counter() - started, now)
        if self.state is not CLOSED and (pos < end or inbound.large_frame is not None):
            if is_tls_alert(buf, pos, end):
                self._fail_upstream(BrokerSpeaksTls(), now)
                return
            size = check_response_head(buf, pos, end) if session.needs_whole_response else 0
            if size > self.reactor.budget.limit_bytes:
                too_large = UpstreamError(f"an answer of {size} bytes, more than limits.max_buffered_bytes")
                self._fail_upstream(too_large, now)
                return
            inbound.keep_partial_frame(pos, size)

    def _fail_upstream(self, error: Exception, now: float) -> None:
        self._disconnect_log.log_broker_fault(error)
        self._send_to_client(now)
        self.close(close_reason(error))

    def _send_to_client(self, now: float) -> None:
        to_client = self.session.to_client
        if not to_client:
            return
        if self.client.state.is_broken:
            to_client.clear()
            return
        try:
            self.client.outbound.send(self.client.sock, to_client, None)
        except OSError:
            to_client.clear()
            self._mark_client_broken(now)

    # --- what follows from where things stand -------------------------------------------------------------------------

    def _advance_state(self, now: float) -> None:
        """After any event: resume, shut down, close, or change the events waited for."""
        client, upstream = self.client, self.upstream
        if self.state is RELAYING and client.event_mask == upstream.event_mask == IN:
            inbound = client.inbound
            if not (
                client.outbound.pieces
                or upstream.outbound.pieces
                or inbound.waits_for_memory
                or upstream.inbound.waits_for_memory
            ):
                self._is_client_drained = inbound.is_drained
                return  # nearly always: both sides are read, and nothing is left to send
        if self.state is CLOSED:
            return
        session, parked = self.session, self.parked
        if (
            parked.input_slice is not None
            and not (upstream.has_unsent or client.has_unsent)
            and session.may_resume(now)
        ):
            self._resume_parked(now)
        if self.state is CLOSED:
            return
        if not (upstream.state.is_read or client.has_unsent or session.admin_requests.is_sasl_answered):
            self.close("disconnects_upstream" if client.state.is_read else "disconnects_client")
            return
        if (
            self.state.closes_when_answered
            and session.is_idle
            and not (client.has_unsent or upstream.has_unsent or self._is_lingering(now))
        ):
            self.close(self.closing_cause)
            return
        if not (client.state.is_read or upstream.has_unsent) and upstream.state is OPEN and parked.input_slice is None:
            # As the broker does itself: what was asked before a half-close is still answered.
            try:
                upstream.shutdown_write()
            except OSError:
                self._mark_upstream_broken(now)
        until = session.hold.held_until
        if parked.input_slice is not None and now < until and not 0.0 < self._timer_at <= until:
            self._timer_at = until
            self.reactor.call_at(until, self)
        self._update_interest()

    def _update_interest(self) -> None:
        """Tell epoll the events that are waited for, where they changed."""
        client, upstream = self.client, self.upstream
        waits = self.session.in_flight.is_reading_blocked or self.parked.input_slice is not None
        if waits is (self.state is RELAYING):
            self.state = self.state.after(REQUEST_WAITS if waits else NONE_WAITS)
        # While it lingers, too, what is parked comes first: it may end within a frame.
        read = bool(self.state.from_client and client.state.is_read) and not (
            waits or client.has_unsent or upstream.has_unsent or client.inbound.waits_for_memory
        )
        if read and not client.event_mask & IN:  # what came meanwhile has waited
            client.inbound.is_drained = client.inbound.is_socket_empty(client.sock)
        self._is_client_drained = read and client.inbound.is_drained
        client.set_interest((IN if read else 0) | (OUT if client.has_unsent else 0), self.reactor)
        read = upstream.state.is_read and not (client.has_unsent or upstream.inbound.waits_for_memory)
        upstream.set_interest((IN if read else 0) | (OUT if upstream.has_unsent else 0), self.reactor)

    # --- by the clock -------------------------------------------------------------------------------------------------

    def check_progress(self, now: float, limits: WorkerLimits) -> None:
        """End a connection that takes too long, whatever it does; to be called every few seconds."""
        client, upstream, session = self.client, self.upstream, self.session
        self.shortcut.invalidate_terms()
        session.expire_fences(now)
        if limits.max_connection_age:
            self._drain_by_age(now, limits)
        ends = (
            upstream.state.is_gone
            or self.state.closes_when_answered
            or (not client.state.is_read and client.inbound.partial_bytes)
        )
        waits_for_broker = session.in_flight.is_full or upstream.has_unsent
        self.close_late(
            self._watch.check_progress(
                limits,
                now,
                is_ending=bool(ends),
                is_unknown=session.authentication.is_outstanding,
                is_held=self.parked.input_slice is not None and not waits_for_broker,
            )
        )

    def check_frame_progress(self, now: float, timeout_s: float) -> None:
        """Memory is short: end a connection whose half-sent frame will not be whole within that time."""
        if self.client.inbound.large_frame is not None:
            self.shortcut.invalidate_terms()
            self.close_late(self._watch.check_frame_progress(timeout_s, self.session.account.is_contended, now))

    def is_client_reading(self, now: float) -> bool:
        """Whether its client takes the bytes sent to it; False only where it has taken too little for a while."""
        return self._watch.is_client_reading(now)

    # --- the end ------------------------------------------------------------------------------------------------------

    def close_late(self, late: LateConnection | None) -> None:
        """Close it for that reason, if there is one."""
        if late is not None:
            if late.text:
                self._disconnect_log.log_close(late.kind, late.text)
            self.close(f"disconnects_{late.kind}")

    def drain(self, cause: str, now: float) -> None:
        """Take nothing more from the client, and close as soon as everything forwarded is answered."""
        if self.state is CLOSED:
            return
        self.shortcut.invalidate_terms()
        if not self.state.closes_when_answered:
            self.state = self.state.after(DRAIN)
            self.closing_cause, self._watch.closing_since = cause, now
            self.session.hold.is_draining = True
        if self.parked.input_slice is not None:
            self._resume_parked(now)
        self._advance_state(now)

    def _is_lingering(self, now: float) -> bool:
        """All is answered: whether the client, which is told now if it wasn't yet, is still to close its half."""
        client = self.client
        if not client.state.is_read:
            return False
        if self.state is LINGERING:
            return now < self._linger_until
        if self.state is not DRAINING:
            return False
        self.state = self.state.after(ALL_ANSWERED)
        self.session.stop_answering()
        try:
            client.shutdown_write()
        except OSError:
            return False
        self._linger_until = now + LINGER_S
        self.reactor.call_at(self._linger_until, self)
        return True

    def _drain_by_age(self, now: float, limits: WorkerLimits) -> None:
        """Its time is over: end it between two requests; where there has been no such moment for long, all the same."""
        overdue_s = self._watch.overdue_s(limits.max_connection_age, now)
        if overdue_s < 0.0 or self.state.closes_when_answered or self.session.authentication.is_outstanding:
            return
        client, upstream = self.client, self.upstream
        is_between = (
            self.state is RELAYING
            and self.session.is_idle
            and not (
                client.inbound.partial_bytes
                or upstream.inbound.partial_bytes
                or client.has_unsent
                or upstream.has_unsent
            )
        )
        if is_between or overdue_s > GRACE_S:
            self.drain("disconnects_age", now)

    def close(self, cause: str) -> None:
        """Close both sockets, settle the accounts, give all memory back."""
        if self.state is CLOSED:
            return
        self.state = self.state.after(CLOSE)
        self.shortcut.invalidate_terms()
        reactor, session, held = self.reactor, self.session, self.parked.input_slice
        reactor.links.discard(self)
        if session.authentication.failure and cause in ("disconnects_client", "disconnects_upstream"):
            cause = "disconnects_unauthenticated"  # after such an answer both sides close
            self._disconnect_log.log_close("unauthenticated", session.authentication.failure)
        try:
            session.client.world.ledger.count_event(cause)
            # Before any memory is given back: a connection that waits for it may write into it at once.
            session.close(held[:3] if held is not None else None)
            if cause == "disconnects_upstream" and self.upstream.state.is_broken and not self._watch.answered_at:
                reset_on_close(self.client.sock)  # else a client thinks that it should have spoken TLS, or SASL
        finally:
            sides = self.client, self.upstream
            for side in sides:
                reactor.discard_socket(side.sock)
            self.parked.close()
            for side in sides:
                side.inbound.close()
            for side in sides:
                side.outbound.close()
            session.account.close()
            # which knew the link: it is freed now, not once the collector finds the circle
            self.shortcut = _CLOSED_SHORTCUT
            reactor.on_closed(self)
