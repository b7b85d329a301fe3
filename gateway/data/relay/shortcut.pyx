# The shortcut of one link, for nearly all of its events: bytes are there, they are whole Produce and Fetch requests, or
# answers, that pass as they are (fast_path.pyx), or a part of such a request, or more of an answer that streams
# through, and the other socket takes them at once. Either side may speak TLS. Only the compiled gateway has this
# module: elsewhere links have a NoShortcut.
#
# It decides nothing, and keeps nothing but what the link has told it: which terms hold for such requests just now, and
# whether records pass unseen. (How many these are, the answer in progress says, wherever it went on last.) The link
# shuts the shortcut whenever it does anything itself, and is asked again before the next event, so what the shortcut
# knows can't have changed but for what all connections share: whether that is another is looked at each time. Whatever
# else an event brings is the link's, from the first byte on that the shortcut doesn't understand.

cimport cython

from gateway.data.sockets cimport calls
from gateway.data.session.fast_path cimport ResponseCounters, ForwardingTerms
from gateway.data.pending.in_flight cimport PendingResponse
from gateway.data.sockets.slices cimport EventHandler
from gateway.data.sockets.tls cimport TlsConnection
from protocol cimport fields
from protocol.fields cimport Bytes
from protocol.rewriting.stream cimport EndpointHider

from gateway.data.sockets import inbound
from gateway.data.pending import pending
from gateway.data.sockets import reactor

cdef int IN = reactor.IN, OUT = reactor.OUT
cdef int LOCAL = pending.LOCAL
cdef Py_ssize_t HEAD_ROOM = inbound.HEAD_ROOM

cdef enum:
    # Records before a field, or before the end of an answer, that are looked at all the same: what comes behind them
    # would be a read, and a write, of its own. Fewer than as many before these aren't worth the calls either.
    READ_TAIL_BYTES = 32 * 1024
    KEPT_ENCRYPTED = -3  # all of it is encrypted, and what the socket didn't take is kept


@cython.final
cdef class SocketActivity:
    """What was seen of the sockets since the link was told.

    Attributes:
        read_at, answered_at: the time at which the client, and the broker, was last read; 0.0: not since then.
        drained_at: the time at which the client's socket was last seen empty; 0.0: not since then.
        is_drained: the client's socket was empty when it was last read: what comes next has not waited.
        has_passed_request: a request has come to its end.
    """

    cdef public object read_at, answered_at, drained_at
    cdef public bint is_drained, has_passed_request

    def __init__(self):
        self.read_at = self.drained_at = self.answered_at = 0.0


@cython.final
cdef class Shortcut(EventHandler):
    """The shortcut of one link.

    Attributes:
        terms: None while it is shut.
        forwards_requests: on these terms; otherwise the client's events are the link's, and only answers are taken.
        peeks_request: the link has to be asked before the client is read.
        splices_unseen: bytes that nobody would look at, as they lie within an answer, pass as they are, on any terms.
    """

    cdef readonly ForwardingTerms terms
    cdef readonly SocketActivity activity
    cdef public bint forwards_requests, peeks_request, splices_unseen
    cdef object _rejected, _shared, _inbound, _to_client, _to_upstream
    cdef ResponseCounters _counters
    cdef TlsConnection _client_tls, _upstream_tls
    cdef long long _epoch
    cdef bytearray _buf
    cdef int _client_fd, _upstream_fd

    def __init__(self, link, world, shared, client, upstream, counted):
        """`client`, `upstream`: the link's sides. `counted`: what answers are noted in."""
        self.link = link
        self._rejected = world.rejected_batches
        self._shared = shared
        self._buf = shared.buffer
        self._inbound = client.inbound
        self._to_client = client.outbound
        self._to_upstream = upstream.outbound
        self._counters = counted
        self._client_tls = client.tls
        self._upstream_tls = upstream.tls
        self._client_fd = client.sock.fileno()
        self._upstream_fd = upstream.sock.fileno()
        self._epoch = -1
        self.activity = SocketActivity()

    cpdef invalidate_terms(self):
        """Until the terms are found again."""
        self.terms = None
        self.splices_unseen = False
        self._report_activity()

    cdef _report_activity(self):
        # Tell the link what it has missed.
        seen = self.activity
        if seen.read_at or seen.answered_at:
            self.link.apply_activity(seen)
            seen.read_at = seen.drained_at = seen.answered_at = 0.0
            seen.has_passed_request = False

    cdef ForwardingTerms _refresh_terms(self, object now):
        # Those of the next event; None: it is the link's.
        if self.terms is None or self._counters.ledger.epoch != self._epoch:
            self.invalidate_terms()
            self.terms = self.link.current_terms(now)
            self._epoch = self._counters.ledger.epoch
        return self.terms

    cpdef handle_event(self, int fd, int events, object now):
        """One of the two sockets is ready."""
        if fd == self._client_fd:
            self._on_client_event(events, now)
        else:
            self._on_upstream_event(events, now)

    cdef _on_client_event(self, int events, object now):
        cdef Py_ssize_t start, end, room, size, pos, passed, sent
        cdef bint can_send
        cdef TlsConnection tls
        link, tls = self.link, self._client_tls
        terms = self._refresh_terms(now) if events == IN else None
        if terms is None or not self.forwards_requests:
            link.on_client_event(events, now)
            return
        seen = self.activity
        if seen.is_drained:
            seen.drained_at = now
        if self.peeks_request:
            self.peeks_request = False
            link.peek_request()
        inbound = self._inbound
        large = inbound.large_frame
        if large is None:
            buf, start, room = self._buf, HEAD_ROOM, self._shared.read_size
        elif inbound.admit_read():
            buf, start = large.buffer, inbound.received_bytes
            room = large.end - start
        else:
            link.stop_reading()
            return
        if tls is None:
            size = calls.receive_into(self._client_fd, buf, start, room)
        else:
            size = self._decrypt_into(tls, buf, start, room)
        if size <= 0 and size != calls.WOULD_BLOCK:
            link.on_client_end(size == calls.EOF, now)
            return
        seen.read_at = now
        seen.is_drained = size < room if tls is None else tls.is_drained
        if size <= 0:
            return
        end = start + size
        if large is None:
            start = inbound.restore_leftover()
        else:
            if end < large.size:
                inbound.add_received(size)
                return
            inbound.received_bytes = end
            start = 0
            if tls is None:
                seen.is_drained = calls.is_socket_empty(self._client_fd)
        pos, passed = terms.admit_requests(buf, start, end, now, now, self._rejected.may_match)
        self._counters.ledger.request_count += passed
        seen.has_passed_request = seen.has_passed_request or passed
        can_send = large is None or self._upstream_tls is None  # else it is encrypted as its broker takes it
        if can_send and not terms.in_flight.is_reading_blocked and (pos == end or _is_partial_frame(buf, pos, end)):
            sent = 0
            if passed and self._upstream_tls is None:
                sent = calls.send_bytes(self._upstream_fd, buf, start, pos)
            elif passed:
                sent = _send_encrypted(self._upstream_tls, self._upstream_fd, self._to_upstream, buf, start, pos)
            if sent == pos - start:
                if large is not None:
                    link.release_sent_frame(large)
                    return
                if pos == end:
                    return
                if link.keep_partial_frame(pos, end):
                    return
            elif large is not None and sent >= 0:
                self._report_activity()
                link.retain_unsent_frame(large, sent)
                return
            start = pos if sent == KEPT_ENCRYPTED else start + max(sent, 0)
        link.handle_read_requests(start, pos, end, large, now)

    cdef _on_upstream_event(self, int events, object now):
        cdef Py_ssize_t start, end, size, pos, sent
        cdef PendingResponse oldest
        cdef ForwardingTerms terms = None
        cdef Py_ssize_t unseen = self._unseen_bytes()
        link = self.link
        if not unseen and events in (IN, OUT, IN | OUT):
            terms = self._refresh_terms(now)
            unseen = self._unseen_bytes()  # as the link may have said just now
        if unseen and events == IN:
            self._splice_unseen(unseen, now)
            return
        if terms is None:
            link.on_upstream_event(events, now)
            return
        if events != IN:
            self._flush_upstream(now)  # of answers that are there as well, epoll tells again
            return
        if self._upstream_tls is None:
            size = calls.receive_into(self._upstream_fd, self._buf, HEAD_ROOM, self._shared.read_size)
        else:
            size = self._decrypt_into(self._upstream_tls, self._buf, HEAD_ROOM, self._shared.read_size)
        if size <= 0:
            if size != calls.WOULD_BLOCK:
                link.on_upstream_end(size == calls.EOF, now)
            return
        self.activity.answered_at = now
        start, end = HEAD_ROOM, HEAD_ROOM + size
        pos = self._counters.count_responses(self._buf, start, end, now, self._rejected.may_match)
        oldest = terms.in_flight.oldest
        if pos == end and (oldest is None or oldest.kind != LOCAL):
            if self._client_tls is None:
                sent = calls.send_bytes(self._client_fd, self._buf, start, end)
            else:
                sent = _send_encrypted(self._client_tls, self._client_fd, self._to_client, self._buf, start, end)
            if sent == size:
                return
            start = end if sent == KEPT_ENCRYPTED else start + max(sent, 0)
        link.handle_read_responses(start, pos, end, now)

    cdef Py_ssize_t _decrypt_into(self, TlsConnection tls, object buf, Py_ssize_t start, Py_ssize_t room) except -4:
        # As calls.receive_into. Of what TLS has left, or has to say itself, no event tells: the link goes on with it soon.
        cdef Py_ssize_t size
        try:
            size = tls.recv_into(memoryview(buf)[start : start + room])
        except BlockingIOError:
            size = calls.WOULD_BLOCK
        except OSError:
            return calls.SOCKET_BROKEN
        if tls.has_plaintext or tls.has_pending_output:
            self.link.reactor.call_soon(self.link)
        return size

    cdef Py_ssize_t _unseen_bytes(self) except -1:
        # At least so many of the broker's next bytes pass as they are, whatever they are: records, nearly always.
        cdef EndpointHider walker = self._counters.in_flight.stream_walker
        if walker is None or not self.splices_unseen:
            return 0
        return walker.unread - READ_TAIL_BYTES if walker.unread >= 2 * READ_TAIL_BYTES else 0

    cdef _splice_unseen(self, Py_ssize_t unseen, object now):
        # More of a large answer.
        cdef Py_ssize_t end, size, sent
        shared = self._shared
        size, sent = calls.splice_bytes(
            self._upstream_fd, self._client_fd, shared.pipe, self._buf, HEAD_ROOM, min(unseen, shared.read_size)
        )
        if size <= 0:
            if size != calls.WOULD_BLOCK:
                self.link.on_upstream_end(size == calls.EOF, now)
            return
        self.activity.answered_at = now
        self._counters.in_flight.stream_walker.skip_unread(size)
        if sent < size:
            end = HEAD_ROOM + size
            self.link.handle_read_responses(HEAD_ROOM + sent, end, end, now)

    cdef _flush_upstream(self, object now):
        # The broker takes more of what it had not taken at once.
        cdef Py_ssize_t size, sent
        pieces = self._to_upstream.pieces
        if len(pieces) != 1 or self._upstream_tls is not None:
            self.link.on_upstream_event(OUT, now)
            return
        piece = pieces[0]
        size = len(piece)
        sent = calls.send_bytes(self._upstream_fd, piece, 0, size)
        if sent == size:
            self._report_activity()
            self.link.on_flushed()
        elif sent >= 0:
            pieces[0] = piece[sent:]
        else:
            self.link.on_upstream_event(OUT, now)


cdef bint _is_partial_frame(object buf, Py_ssize_t pos, Py_ssize_t end) except -1:
    # Whether nothing is there but the beginning of a frame: the bytes before it needn't wait for anything else.
    return end - pos < 12 or pos + 4 + fields.int32_at(fields.within(buf, pos, 4)) > end


cdef Py_ssize_t _send_encrypted(TlsConnection tls, int fd, object outbound, object buf, Py_ssize_t start, Py_ssize_t stop) except -4:
    # Send it encrypted, as calls.send_bytes; or KEPT_ENCRYPTED, by that `outbound`.
    cdef Py_ssize_t sent
    try:
        records = tls.encrypt([memoryview(buf)[start:stop]])
    except OSError:
        return calls.SOCKET_BROKEN
    data = records[0] if len(records) == 1 else b"".join(records)
    sent = calls.send_bytes(fd, data, 0, len(data))
    if sent == len(data):
        return stop - start
    if sent < 0:
        return calls.SOCKET_BROKEN
    outbound.keep_unsent(memoryview(data)[sent:])
    return KEPT_ENCRYPTED
