# Reading from one socket: into one buffer that all connections of a worker share, with as little copying as frames
# allow.
#
# The beginning of an incomplete frame is kept until its rest comes: a small one as bytes, put in front of what is read
# next; a large one in a buffer of its own, that the rest is read straight into (copying a growing leftover on every
# read would be quadratic). Each read into it is asked for at the connection's account (budget.py), and charged; while
# there is no room, the socket is not read. Behind a frame that was larger than a read another one is likely, so its
# head is looked at first: where a buffer for it is at hand, it needs no copy. (Behind smaller ones that call costs more
# than the copy: requests of 100 KB took 1.1 of the CPU.)
#
# Tried, in seconds of CPU for a GB to consumers: reads of 64 KiB 0.60 to 0.66 instead of 0.53 to 0.57; fewer
# and larger ones by SO_RCVLOWAT of 128 KiB on brokers' sockets 0.59 instead of 0.54. Through a pipe of 8 KiB, which a
# user with many pipes gets, it took thirty times as many events as reading.

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from gateway.data.sockets import calls
from protocol.framing import REQUEST_HEAD, check_request_head
from protocol.wire import MalformedFrame

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.data.shared.budget import Account, Large

HEAD_ROOM = 32 * 1024  # room in front of a read: a leftover up to this size needs no buffer of its own
SHARED_BYTES = 256 * 1024  # one recv: more costs cache misses and fairness, less costs calls
PIPE_BYTES = 1024 * 1024  # its places are counted in pages, and a packet from a network fills a part of one

EOF = -1


class Shared:
    """The buffer that sockets are read into, and the view of its part behind the head room: `room`, of `size` bytes.

    `pipe`: the ends, to read and to write, of a pipe for bytes that nobody looks at; None: they are copied. It is empty
    between two uses.
    """

    __slots__ = ("_room", "buffer", "pipe", "room", "size")

    def __init__(self) -> None:
        self.buffer = bytearray(HEAD_ROOM + SHARED_BYTES)
        self.room = self._room = memoryview(self.buffer)[HEAD_ROOM:]
        self.size = SHARED_BYTES
        self.pipe: tuple[int, int] | None = None

    def open_pipe(self) -> None:
        """Make the pipe, where the system joins sockets by one (Linux)."""
        if not hasattr(os, "splice"):
            return
        with suppress(OSError):  # no descriptor is free
            self.pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.fcntl(self.pipe[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            except OSError:  # this user has too many, or may have none of that size: through a small one it is slower
                self.close_pipe()

    def close_pipe(self) -> None:
        """And whatever is in it is lost."""
        pipe, self.pipe = self.pipe, None
        for end in pipe or ():
            with suppress(OSError):
                os.close(end)

    def renew_pipe(self) -> None:
        """Something has gone wrong, perhaps while bytes of one connection were in it: no other must get them."""
        if self.pipe is not None:
            self.close_pipe()
            self.open_pipe()

    def bound(self, is_short: bool) -> None:
        """While memory is short a link reads no more at once than it can keep where it can't handle it."""
        self.size = HEAD_ROOM if is_short else SHARED_BYTES
        self.room = self._room[: self.size]


class Inbound:
    """The read side of one socket.

    After `receive` said that bytes are there, they are buf[start:end], and `keep` must be told of the unhandled ones
    before the shared buffer is used again. Where `large` is set, buf is a frame's own buffer, which a link may take.
    `received`: bytes that are there of the frame in `large`. `is_large_next`: `look_ahead` is worth its call.
    """

    __slots__ = (
        "_account",
        "_is_client",
        "_left",
        "_shared",
        "_wake",
        "buf",
        "drained",
        "end",
        "is_large_next",
        "large",
        "received",
        "start",
        "waiting",
    )

    def __init__(self, shared: Shared, account: Account, wake: Callable[[], None], *, is_client: bool) -> None:
        """`wake` is called when reading, which had to wait for memory, may go on."""
        self._shared = shared
        self._account = account
        self._wake = wake
        self._is_client = is_client
        self._left = b""
        self.large: Large | None = None
        self.received = 0
        self.is_large_next = False
        self.waiting = False  # for room: reading must stop until `granted`
        self.drained = True  # the last read took all there was
        self.buf: bytearray = shared.buffer
        self.start = self.end = 0

    @property
    def partial(self) -> int:
        """Bytes kept of a frame that is not complete."""
        return self.received if self.large is not None else len(self._left)

    @property
    def is_between(self) -> bool:
        """No frame is half here, and none waits for memory."""
        return self.large is None and not (self._left or self.waiting)

    @property
    def is_direct(self) -> bool:
        """Whether the next bytes are read to where they stay: behind a whole frame, or into a frame's own buffer."""
        return not (self._left or self.waiting)

    def look_ahead(self, sock: socket.socket, max_bytes: int) -> None:
        """Before `receive`: give a request that is larger than a read its buffer, if there is one at hand.

        Raises:
            OSError: the connection is broken.
        """
        self.is_large_next = False
        if not self.is_between:  # the beginning of the next one was read behind a pause: what comes is no head
            return
        try:
            head = sock.recv(REQUEST_HEAD.size, socket.MSG_PEEK)
            size = check_request_head(head, 0, len(head), max_bytes)
        except (BlockingIOError, MalformedFrame):  # said when it is read
            return
        if size > SHARED_BYTES:
            self.large, self.received = self._account.take(size, 0), 0

    def may_read(self) -> bool:
        """Whether there is room for more of the frame in `large`; if not, reading has to wait."""
        large = self.large
        if large is None or not large.is_request:
            return True
        self.waiting = not self._account.may_read(large, self.received, self)
        return not self.waiting

    def add(self, size: int) -> None:
        """So many bytes more have been read into `large`."""
        large = self.large
        assert large is not None
        self.received += size
        self._account.add(large, size)
        if self.received == large.end < large.size:
            large.grow()

    def receive(self, sock: socket.socket) -> int:
        """Read once. Returns how many bytes are there to be handled (0: none yet), or EOF.

        Raises:
            OSError: the connection is broken.
        """
        large = self.large
        if large is not None and not self.may_read():
            return 0
        try:
            if large is None:
                room = self._shared.room
                n = sock.recv_into(room)
                self.drained = n < len(room)
            else:
                wanted = large.end - self.received
                n = sock.recv_into(large.view[self.received :])
                self.drained = n < wanted
        except BlockingIOError:
            self.drained = True
            return 0
        if n == 0:
            return EOF
        if large is not None:
            self.add(n)
            if self.received < large.size:
                return 0
            if self._is_client:
                self.drained = self.is_empty(sock)
            self.buf, self.start, self.end = large.buffer, 0, large.size
            return large.size
        left = self._left
        self.buf, self.start, self.end = self._shared.buffer, HEAD_ROOM - len(left), HEAD_ROOM + n
        if left:
            self.buf[self.start : HEAD_ROOM] = left
            self._drop_left()
        return self.end - self.start

    def is_empty(self, sock: socket.socket) -> bool:
        """Whether there is nothing to be read, neither an end nor an error."""
        return calls.is_empty(sock.fileno())

    def hand_over(self) -> None:
        """The caller owns `large` now. A reference left here would keep its buffer in memory that no account counts."""
        large, self.large = self.large, None
        self.buf = self._shared.buffer
        if large is not None:
            self.is_large_next = large.is_request and large.size > SHARED_BYTES
            if large.charged < self.received:  # the last of it
                self._charge(large)

    def begin(self, data: bytes) -> None:
        """Take the bytes read before this existed: the beginning of the first frame."""
        self._keep_left(data)

    def _keep_left(self, data: bytes) -> None:
        self._left = data
        self._account.charge(len(data))

    def _drop_left(self) -> None:
        left, self._left = self._left, b""
        self._account.discharge(len(left))

    def recv(self, sock: socket.socket, size: int) -> bytes:
        """Up to `size` bytes behind all that was received, past the shared buffer; b"": the end.

        Raises:
            OSError: the connection is broken, or (BlockingIOError) there are none yet.
        """
        return sock.recv(size)

    def _charge(self, large: Large) -> None:
        self._account.charge(self.received - large.charged)
        large.charged = self.received

    def keep(self, pos: int, frame_bytes: int) -> None:
        """Keep buf[pos:end], the beginning of a frame of `frame_bytes` (0: not known, or it is taken in pieces)."""
        buf, large = self.buf, self.large
        self.hand_over()
        if large is not None:
            self._account.give(large)
        if pos == self.end:
            return
        rest = memoryview(buf)[pos : self.end]
        large = None
        if frame_bytes > HEAD_ROOM:
            self.waiting = not self._is_client and not self._account.may_answer(self)
            large = self._account.take(frame_bytes, len(rest), is_request=self._is_client)
        if large is None:
            self._keep_left(bytes(rest))
            return
        self.large, self.received = large, len(rest)
        large.view[: self.received] = rest
        self._charge(large)

    def granted(self) -> None:
        """There is room for what has to wait."""
        self.waiting = False
        self._wake()

    def close(self) -> None:
        self._wake = _nothing  # else it would keep its link
        if self.waiting:
            self.waiting = False
            self._account.forget(self)
        if self._left:
            self._drop_left()
        large = self.large
        self.hand_over()
        if large is not None:
            self._account.give(large)


def _nothing() -> None:
    """The connection is closed."""
