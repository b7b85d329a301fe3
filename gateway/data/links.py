# One client connection and its upstream connection: what is read, sent, kept, paused and closed.
#
#            ┌────────── u_out (not yet sent) ◄── session ◄── c_in ◄── client
#  upstream ◄┘                                                            ▲
#  upstream ──► u_in ──► session ──► c_out (not yet sent) ────────────────┘
#
# Backpressure: a side is not read while the other has something that it was not able to send; the client is not read
# either while answers to it wait, for the gateway makes answers of its own. One writer per socket by construction: all
# of this is synchronous and in one thread. What may pass and what is owed is the session's; sockets, memory and time
# are here.

from __future__ import annotations

import socket
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gateway.data.budget import Account
from gateway.data.inbound import EOF, Inbound
from gateway.data.reactor import DEAF, ERR, HUP, IN, OUT, QUIET, RDHUP
from gateway.data.session import MAX_PENDING, Excluded, Session, UpstreamError, close_reason
from protocol.framing import check_answer_head, check_request_head
from protocol.wire import MalformedFrame

if TYPE_CHECKING:
    from gateway.channel import WorkerSettings
    from gateway.data.budget import Large
    from gateway.data.reactor import Reactor

MAX_READ_ON = 8 * 2**20  # behind a pause: a client's FIN may stand behind a whole receive window (tcp_rmem is 6 MiB)
READ_ON_ROUNDS = 4  # while that window is read more comes, a round trip later: look again, but not for ever …
READ_ON_S = 0.05  # … and with so long between
PATIENCE_S = 2.0  # where memory is short, with those who hold it and do nothing
FENCE_BYTES = 850  # of one entry of a fence, about
MAX_IOV = 512  # IOV_MAX is 1024 on Linux
_CLOSE_WAIT = 8  # of TCP_INFO's first byte


class Outbound:
    """What a socket didn't take at once. `emptied`: how many times all of it had gone."""

    __slots__ = ("_account", "_charged", "_held", "emptied", "pieces")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._charged = 0
        self.emptied = 0
        self._held: Large | None = None  # the buffer that pieces lie in: given back when all are sent
        self.pieces: deque[Any] = deque()

    def send(self, sock: socket.socket, parts: list[Any], large: Large | None) -> Large | None:
        """Send all of `parts`, keep what doesn't go. Returns `large` unless it is needed for that.

        Raises:
            OSError: the connection is broken.
        """
        if self.pieces:
            self._keep(parts, None)
            parts.clear()
            return large
        sent = 0
        try:
            sent = sock.send(parts[0]) if len(parts) == 1 else sock.sendmsg(parts[:MAX_IOV])
        except BlockingIOError:
            pass
        if len(parts) == 1 and sent == len(parts[0]):
            parts.clear()
            return large
        rest = []
        for part in parts:
            size = len(part)
            if sent >= size:
                sent -= size
            else:
                rest.append(memoryview(part)[sent:])
                sent = 0
        parts.clear()
        if not rest:
            return large
        self._keep(rest, large)
        return None if self._held is not None else large

    def _keep(self, parts: list[Any], large: Large | None) -> None:
        for part in parts:
            view = memoryview(part)
            if large is not None and view.obj is large.buffer:
                self._held = large  # no copy: the client isn't read until this has gone
                self.pieces.append(view)
            else:
                whole = view.obj
                if not isinstance(whole, bytes) or len(whole) > 2 * len(view):
                    whole = bytes(view)  # it lies in a buffer that others use, or much of it has gone
                    view = memoryview(whole)
                self.pieces.append(view)
                self._charged += len(whole)
                self._account.charge(len(whole))

    def flush(self, sock: socket.socket) -> None:
        """Send more of what was kept.

        Raises:
            OSError: the connection is broken.
        """
        pieces = self.pieces
        while pieces:
            try:
                sent = sock.send(pieces[0])
            except BlockingIOError:
                return
            if sent == len(pieces[0]):
                pieces.popleft()
            else:
                pieces[0] = pieces[0][sent:]
        self.emptied += 1
        self.close()

    def close(self) -> None:
        self.pieces.clear()
        if self._held is not None:
            held, self._held = self._held, None
            self._account.give(held)
        charged, self._charged = self._charged, 0
        if charged:
            self._account.discharge(charged)


class Link:
    """A pair of connected sockets in the reactor; owns both.

    Attributes:
        parked: read, but not to be handled before the session's `hold_until`: (buffer, from, to, its Large or None).
        finishing: nothing more is taken from the client; once all is answered, the close is counted under this name.
        account: what all of this connection's memory is charged to.
    """

    __slots__ = (
        "_answered_at",
        "_began_at",
        "_behind",
        "_c_fd",
        "_c_idle",
        "_c_mask",
        "_c_rdhup",
        "_emptied_at",
        "_ended_at",
        "_fenced",
        "_frame_at",
        "_looked_at",
        "_opened_at",
        "_plain",
        "_read_at",
        "_rounds",
        "_taken",
        "_timer_at",
        "_u_fd",
        "_u_gone",
        "_u_mask",
        "_u_shut",
        "account",
        "c_eof",
        "c_in",
        "c_out",
        "client",
        "closed",
        "finishing",
        "parked",
        "peer",
        "reactor",
        "session",
        "u_eof",
        "u_in",
        "u_out",
        "upstream",
    )

    def __init__(
        self, reactor: Reactor, session: Session, client: socket.socket, upstream: socket.socket, peer: str
    ) -> None:
        self.reactor = reactor
        self.session = session
        self.client = client
        self.upstream = upstream
        self.peer = session.peer = peer
        session.wake = self._wake
        account = Account(reactor.budget, peer.rpartition(":")[0])
        self.account = session.account = account
        self.c_in = Inbound(reactor.shared, self.account, self._wake, is_client=True)
        self.u_in = Inbound(reactor.shared, self.account, self._wake, is_client=False)
        self.c_out = Outbound(self.account)
        self.u_out = Outbound(self.account)
        self.parked: tuple[bytearray, int, int, Large | None] | None = None
        self.finishing = ""
        self.c_eof = self.u_eof = self.closed = False
        self._c_fd, self._u_fd = client.fileno(), upstream.fileno()
        self._c_mask = self._u_mask = IN
        self._c_rdhup = self._u_shut = self._u_gone = False
        self._plain = True  # nothing parked, no side has ended, nothing is finishing
        self._c_idle = True  # its socket was empty, and is being read: what comes now has not waited
        self._ended_at = 0.0  # since when there is nothing left but to send what is kept, and nothing of it went
        self._read_at = self._opened_at = self._looked_at = session.drained_at
        self._answered_at = 0.0  # when the broker was last read
        self._frame_at = 0.0  # since when, while it was being read, no frame of the client's came to its end
        self._began_at = 0.0  # since when its client takes nothing, or too little, of what it is sent …
        self._taken = 0  # … namely while `c_out.emptied` is this
        self._timer_at = 0.0
        self._fenced = 0  # bytes of the fence that are in the account
        self._rounds = 0
        self._behind = 0  # of what was parked when the socket was last seen empty: bytes not handled yet …
        self._emptied_at = 0.0  # … and when that was; 0.0: all of it is handled

    def open(self, now: float) -> None:
        """Put both sockets into the reactor."""
        for sock in (self.client, self.upstream):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.session.drained_at = self._read_at = self._opened_at = self._looked_at = now
        self.reactor.links.add(self)
        self.reactor.register(self.client, IN, self.on_client)
        self.reactor.register(self.upstream, IN, self.on_upstream)

    @property
    def muted(self) -> bool:
        return self.parked is not None and bool(self.session.hold_until)

    # --- events -------------------------------------------------------------------------------------------------------

    def on_client(self, events: int, now: float) -> None:
        """The client's socket is ready."""
        if events & (ERR | HUP):
            self.close("disconnects_client")
            return
        try:
            if events & OUT:
                self.c_out.flush(self.client)
                self._ended_at = now
            if not events & IN or not self._c_mask & IN:
                if events & RDHUP:
                    self._c_rdhup, self._c_mask = True, 0  # the one shot is used up
                self._go_on(now)
                return
            if self._c_idle:
                self.session.drained_at = now
            n = self.c_in.receive(self.client)
        except OSError:
            self.close("disconnects_client")
            return
        if n == EOF:
            self._client_ended(now)
        else:
            self._read_at = now
            if n:
                c_in = self.c_in
                self._handle(c_in.buf, c_in.start, c_in.end, c_in.large, now)
        self._go_on(now)

    def on_upstream(self, events: int, now: float) -> None:
        """The upstream socket is ready."""
        try:
            if events & OUT and not events & (ERR | HUP):
                self.u_out.flush(self.upstream)
            if events & (ERR | HUP):
                self.u_out.close()  # nobody takes it any more, and OUT would be reported for ever
            if events & IN and self._u_mask & IN:
                n = self.u_in.receive(self.upstream)
                if n > 0:
                    self._answered_at = now
                    self._handle_answers(now)
                elif n == EOF:
                    self._upstream_ended(now)
            elif events & (ERR | HUP | RDHUP) and not self._u_gone:
                # What it said before is still the client's: its end is read behind that.
                self._u_gone, self._u_mask, self._ended_at, self._plain = True, 0, now, False
        except OSError:
            self._upstream_ended(now)
        if not self.closed:
            self._go_on(now)

    def on_timer(self, now: float) -> None:
        """The time of a hold may have come."""
        self._timer_at = 0.0
        if not self.closed:
            self._go_on(now)

    def on_ready(self, now: float) -> None:
        """Memory was granted, or something else changed without an event."""
        if not self.closed:
            self._go_on(now)

    def _wake(self) -> None:
        self.reactor.call_soon(self)

    def _upstream_broken(self, now: float) -> None:
        """Nothing can be sent to it any more; what it said before may still be to be read."""
        self.u_out.close()
        self._u_gone, self._ended_at, self._plain = True, now, False

    def _upstream_ended(self, now: float) -> None:
        self.u_eof, self._ended_at, self._plain = True, now, False

    # --- client -> upstream -------------------------------------------------------------------------------------------

    def _handle(self, buf: bytearray, pos: int, end: int, large: Large | None, now: float) -> None:
        """Give the session what was read, send what it leaves, and keep or park the rest."""
        session = self.session
        self.c_in.large = None  # ours from here on: handed to whoever needs it further, or given back below
        if self.finishing and not session.draining:
            self._give_back(large)  # behind a malformed frame
            return
        malformed = None
        frame_bytes, start = 0, pos
        started = perf_counter() if session.gate.timed else 0.0
        try:
            pos = session.on_client(buf, pos, end, now)
            if pos < end and not session.hold_until:
                frame_bytes = check_request_head(buf, pos, end, session.world.settings.max_request_bytes)
        except MalformedFrame as error:
            malformed = error
        if pos != start:
            self._frame_at = 0.0
        if session.is_waiting:
            self._plain = False  # `_update` has to look
        if session.to_upstream:
            try:
                large = self.u_out.send(self.upstream, session.to_upstream, large)
            except OSError:
                session.to_upstream.clear()
                self._upstream_broken(now)
        if session.to_client:
            self._send_client()
        if started:
            session.gate.spend(perf_counter() - started, now)
        if malformed is not None:
            self._end_malformed(malformed, now)
        elif pos < end and not self.closed:
            if session.hold_until or session.is_full:
                self._park(buf, pos, end, large)
                return
            self.c_in.buf, self.c_in.end = buf, end
            self.c_in.keep(pos, frame_bytes, proven=session.authenticated or not session.world.wants_sasl)
        if large is not None:
            self.account.give(large)

    def _give_back(self, large: Large | None) -> None:
        if large is not None:
            self.account.give(large)

    def _park(self, buf: bytearray, pos: int, end: int, large: Large | None) -> None:
        if large is None:
            buf, pos, end = bytearray(memoryview(buf)[pos:end]), 0, end - pos
            self.account.charge(end)
        self.parked = (buf, pos, end, large)
        self._plain = False

    def _unpark(self) -> tuple[bytearray, int, int, Large | None]:
        assert self.parked is not None
        buf, pos, end, large = self.parked
        self.parked = None
        if large is None:
            self.account.discharge(end)
        return buf, pos, end, large

    def _resume(self, now: float) -> None:
        """A hold is over: handle what was parked, after a look at whether its client is still there.

        A client that gave up has sent the same records again on another connection; forwarding what it left here would
        write them twice. Its FIN may stand behind requests that are not read yet, so those are read first. Not where
        nothing is forwarded anyway: all connections may be held at once, and none may read what it has no room for.
        """
        buf, pos, end, large = self._unpark()
        session = self.session
        session.memory_short = self.account.is_wanted
        forwards = session.turn is None and not (session.paused_since and session.gate.paused())
        if session.hold_until and forwards and not self.c_in.partial:
            more = self._read_on(min(MAX_READ_ON, self.reactor.budget.room // 2) - (end - pos))
            if more:
                buf, pos, end = bytearray(memoryview(buf)[pos:end]) + more, 0, end - pos + len(more)
                self._give_back(large)
                large = None
                if not self.c_eof and self._rounds < READ_ON_ROUNDS and not session.draining:
                    self._rounds += 1
                    session.hold_until = now + READ_ON_S
                    self._park(buf, pos, end, None)
                    return
        self._rounds = 0
        session.client_gone = session.client_gone or self.c_eof
        size = end - pos
        self._handle(buf, pos, end, large, now)
        session.memory_short = False  # it was about what was held; what comes next is looked at anew
        self._age(size, now)

    def _age(self, size: int, now: float) -> None:
        """Of `size` parked bytes some were handled: how long has the oldest that is left waited?

        A client that pipelines into a steady delay keeps something parked for ever, each request but for a moment.
        """
        left = self.parked[2] - self.parked[1] if self.parked is not None else 0
        self._behind -= size - left
        session = self.session
        if self._emptied_at and self._behind <= 0:  # what is left came after that
            session.drained_at, self._emptied_at = max(session.drained_at, self._emptied_at), 0.0
        if left and not self._emptied_at:
            self._behind, self._emptied_at = left, now

    def _read_on(self, most: int) -> bytearray:
        """Read up to about `most` bytes more, and note when the client has closed."""
        more = bytearray()
        ended = self._c_rdhup or _in_close_wait(self.client)
        try:
            while len(more) < most:
                data = self.c_in.recv(self.client, 262_144)
                if not data:
                    ended = True
                    break
                more += data
        except BlockingIOError:
            pass
        except OSError:
            ended = True
        self.c_eof = self.c_eof or ended
        return more

    def _client_ended(self, now: float) -> None:
        self.c_eof, self._plain, self._ended_at = True, False, now
        partial = self.c_in.partial
        if partial:
            self._log_malformed(f"half a frame: {partial} bytes, then the client closed")

    # --- upstream -> client -------------------------------------------------------------------------------------------

    def _handle_answers(self, now: float) -> None:
        session, u_in = self.session, self.u_in
        buf, end = u_in.buf, u_in.end
        started = perf_counter() if session.gate.timed else 0.0
        try:
            pos = session.on_upstream(buf, u_in.start, end, now)
        except (UpstreamError, MalformedFrame) as error:
            self._end_upstream(error)
            return
        if session.to_client:
            self._send_client()
        if started:
            session.gate.spend(perf_counter() - started, now)
        if not self.closed and (pos < end or u_in.large is not None):
            size = check_answer_head(buf, pos, end) if session.wants_whole() else 0
            if size > self.reactor.budget.limit:
                self._end_upstream(UpstreamError(f"an answer of {size} bytes, more than limits.max_buffered_bytes"))
                return
            u_in.keep(pos, size)

    def _end_upstream(self, error: Exception) -> None:
        session = self.session
        if isinstance(error, Excluded):
            self._log_closed("excluded", str(error))
            self._send_client()
            self.close(close_reason(error))
            return
        session.world.log("error", f"{self.peer}: broker {session.gate.node_id} sent {error}: connection closed")
        session.world.ledger.count("upstream_failed")
        self._send_client()
        self.close(close_reason(error))

    def _send_client(self) -> None:
        to_client = self.session.to_client
        if not to_client:
            return
        try:
            self.c_out.send(self.client, to_client, None)
        except OSError:
            to_client.clear()
            self.close("disconnects_client")

    # --- what follows from where things stand -------------------------------------------------------------------------

    def _go_on(self, now: float) -> None:
        """After anything happened: resume, shut down, close, or change what is waited for."""
        if self._plain and self._c_mask == self._u_mask == IN:
            c_in = self.c_in
            if not (self.c_out.pieces or self.u_out.pieces or c_in.waiting or self.u_in.waiting):
                self._c_idle = c_in.drained
                return  # nearly always: both sides are read, and nothing is left to send
        session = self.session
        if self.parked is not None and self._may_resume(now):
            self._resume(now)
        if self.closed:
            return
        if self.u_eof and not self.c_out.pieces:
            self.close("disconnects_client" if self.c_eof else "disconnects_upstream")
            return
        if self.finishing and session.idle and not self.c_out.pieces and not self.u_out.pieces:
            self.close(self.finishing)
            return
        if self.c_eof and not self._u_shut and self.parked is None and not self.u_out.pieces:
            # As the broker does itself: what was asked before a half-close is still answered.
            self._u_shut = True
            try:
                self.upstream.shutdown(socket.SHUT_WR)
            except OSError:
                self._upstream_broken(now)
        is_set = 0.0 < self._timer_at <= session.hold_until
        if self.parked is not None and now < session.hold_until and not is_set:
            self._timer_at = session.hold_until
            self.reactor.call_at(session.hold_until, self)
        self._update()

    def _may_resume(self, now: float) -> bool:
        session = self.session
        if self.u_out.pieces or self.c_out.pieces:
            return False
        if session.draining:
            return True
        if session.turn is not None:
            return session.turn_moves(now)
        if session.hold_until:
            return now >= session.hold_until
        return len(session.pending.entries) < MAX_PENDING // 2 and not session.is_waiting

    def _update(self) -> None:
        """Tell epoll what is waited for, where it changed."""
        c_out, u_out = self.c_out.pieces, self.u_out.pieces
        ended = self.c_eof or self.u_eof or self._u_gone or self.finishing
        waits = self.session.is_waiting
        self._plain = not (ended or waits or self.parked is not None)
        read = not (c_out or u_out or ended or waits or self.parked is not None or self.c_in.waiting)
        self._c_idle = read and self.c_in.drained
        mask = (IN if read else 0) | (OUT if c_out else 0) or (DEAF if self._c_rdhup else QUIET)
        if mask != self._c_mask:
            self._c_mask = mask
            self.reactor.modify(self._c_fd, mask)
        mask = (0 if c_out or self.u_eof or self.u_in.waiting else IN) | (OUT if u_out else 0)
        mask = mask or (DEAF if self._u_gone else QUIET)
        if mask != self._u_mask:
            self._u_mask = mask
            self.reactor.modify(self._u_fd, mask)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _log_malformed(self, what: str) -> None:
        self.session.world.ledger.count("requests_malformed")
        self._log_closed("malformed", what)

    def _log_closed(self, kind: str, what: str) -> None:
        software = self.session.gate.software
        who = f"{self.peer} ({software[0]} {software[1]})" if software else self.peer
        self.session.world.complain(kind, f"{who}: connection closed: {what}")

    def _end_malformed(self, error: MalformedFrame, now: float) -> None:
        """Close this connection, but let the requests before the broken one be answered."""
        self._log_malformed(str(error))
        self.finishing, self._ended_at, self._plain = close_reason(error), now, False

    def drain(self, now: float) -> None:
        """Take nothing more from the client, and close as soon as everything forwarded is answered."""
        self.session.draining = True
        self._plain = False
        if not self.finishing:
            self.finishing, self._ended_at = "disconnects_drain", now
        if self.parked is not None:
            self._resume(now)
        if not self.closed:
            self._go_on(now)

    def check_progress(self, now: float, settings: WorkerSettings) -> None:
        """End a connection that takes too long, whatever it does; to be called every few seconds."""
        since, self._looked_at = now - self._looked_at, now
        session = self.session
        session.gate.fence.expire(now)
        self._charge_fence(len(session.gate.fence.entries) * FENCE_BYTES)
        ending = self.u_eof or self._u_gone or self.finishing or (self.c_eof and self.c_in.partial)
        if ending:
            if now - self._ended_at > settings.frame_timeout_s:  # its peer takes or says nothing more
                self.close("disconnects_timeout")
        elif session.world.wants_sasl and not session.authenticated:
            if now - self._opened_at > settings.authentication_timeout_s:
                self._end_late("unauthenticated", f"not authenticated within {settings.authentication_timeout_s:g} s")
        elif self.c_out.pieces:
            if self._taken != self.c_out.emptied or not self._began_at:
                self._taken, self._began_at = self.c_out.emptied, now
            elif now - self._began_at > settings.idle_timeout_s:
                self._end_late("slow_reader", f"it did not read an answer within {settings.idle_timeout_s:g} s")
        elif self.c_in.partial:
            if not self._frame_at:
                self._frame_at = now - min(since, now - self._read_at)
            elif not self._c_mask & IN or self.c_in.waiting:
                self._frame_at += since  # we don't read it
            elif now - self._frame_at > settings.frame_timeout_s + self.c_in.partial / settings.min_bytes_per_s:
                self._end_late("slow_request", f"{self.c_in.partial} bytes of a frame in {now - self._frame_at:.0f} s")
        elif now - max(self._read_at, self._answered_at) > settings.idle_timeout_s and self.parked is None:
            self.close("disconnects_idle")

    def _charge_fence(self, size: int) -> None:
        if size != self._fenced:
            self.account.charge(size - self._fenced)
            self._fenced = size

    def check_course(self, now: float, timeout_s: float) -> None:
        """Memory is short: end a connection whose half-sent frame will not be whole within that time."""
        large = self.c_in.large
        if large is None:
            return
        if not self._c_mask & IN or not self.account.is_wanted:
            large.since = 0.0  # what we don't read is not its client's fault
            return
        large.since = large.since or now
        age = now - large.since
        if age > PATIENCE_S and self.c_in.partial * timeout_s < large.size * age:
            text = f"others wait for memory, and of {large.size} bytes {self.c_in.partial} came in {age:.1f} s"
            self._end_late("slow_request", text)

    def is_reading(self, now: float) -> bool:
        """Whether its client takes what it is sent; False only where it has taken too little for a while."""
        if not self.c_out.pieces or self._taken != self.c_out.emptied or not self._began_at:
            self._taken, self._began_at = self.c_out.emptied, now
        return now - self._began_at < PATIENCE_S

    def _end_late(self, kind: str, what: str) -> None:
        self._log_closed(kind, what)
        self.close(f"disconnects_{kind}")

    def give_up(self) -> None:
        """Memory is far exceeded, and this connection waits for more of it."""
        self._end_late("memory", f"memory is used up, and it waits for more of it with {self.account.used} bytes")

    def shed(self) -> None:
        """Memory is used up, and this connection's client doesn't read what it holds of it."""
        self._end_late(
            "slow_reader", f"memory is short, and it does not read the {self.account.used} bytes it asked for"
        )

    def close(self, cause: str) -> None:
        """Close both sockets, settle the accounts, give all memory back."""
        if self.closed:
            return
        self.closed, self._plain = True, False
        reactor = self.reactor
        reactor.links.discard(self)
        parked, self.parked = self.parked, None
        try:
            self.session.world.ledger.count(cause)
            # Before any memory is given back: whoever waits for it may write into it at once.
            by_broker = cause == "disconnects_upstream"
            self.session.close(parked[:3] if parked is not None else None, by_broker=by_broker)
        finally:
            reactor.discard(self.client)
            reactor.discard(self.upstream)
            if parked is not None:
                self._give_back_parked(parked)
            for part in (self.c_in, self.u_in, self.c_out, self.u_out):
                part.close()
            self._charge_fence(0)
            self.account.close()
            reactor.on_closed(self)

    def _give_back_parked(self, parked: tuple[bytearray, int, int, Large | None]) -> None:
        _, _, end, large = parked
        if large is None:
            self.account.discharge(end)
        self._give_back(large)


def _in_close_wait(sock: socket.socket) -> bool:
    """Whether the peer's FIN has arrived, read or not (Linux)."""
    tcp_info = getattr(socket, "TCP_INFO", None)
    if tcp_info is None:
        return False
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, tcp_info, 1)[0] == _CLOSE_WAIT
    except OSError:
        return True
