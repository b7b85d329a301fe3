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

    from gateway.data.shared.budget import FrameBuffer, MemoryAccount

HEAD_ROOM = 32 * 1024  # room in front of a read: a leftover up to this size needs no buffer of its own
SHARED_READ_BYTES = 256 * 1024  # one recv: more costs cache misses and fairness, less costs calls
PIPE_BYTES = 1024 * 1024  # its places are counted in pages, and a packet from a network fills a part of one

EOF = -1


class SharedReadBuffer:
    """The buffer that sockets are read into, and the view of its part behind the head room: `read_view`, of `read_size`
    bytes. `pipe`: the read and the write end of a pipe for bytes that need no inspection; None: such bytes are copied.
    The pipe is empty between two uses.
    """

    __slots__ = ("_whole_view", "buffer", "pipe", "read_size", "read_view")

    def __init__(self) -> None:
        self.buffer = bytearray(HEAD_ROOM + SHARED_READ_BYTES)
        self.read_view = self._whole_view = memoryview(self.buffer)[HEAD_ROOM:]
        self.read_size = SHARED_READ_BYTES
        self.pipe: tuple[int, int] | None = None

    def open_pipe(self) -> None:
        """Open the pipe, where the system can splice sockets through one (Linux)."""
        if not hasattr(os, "splice"):
            return
        with suppress(OSError):  # no descriptor is free
            self.pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.fcntl(self.pipe[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            except OSError:  # this user has too many, or may have none of that size: through a small one it is slower
                self.close_pipe()

    def close_pipe(self) -> None:
        """Close the pipe; bytes in it are lost."""
        pipe, self.pipe = self.pipe, None
        for end in pipe or ():
            with suppress(OSError):
                os.close(end)

    def renew_pipe(self) -> None:
        """Replace the pipe after an error: bytes of one connection that may be in it must not reach another."""
        if self.pipe is not None:
            self.close_pipe()
            self.open_pipe()

    def limit_reads(self, is_short: bool) -> None:
        """While memory is short, a link reads no more at once than it can keep if it can't handle the bytes."""
        self.read_size = HEAD_ROOM if is_short else SHARED_READ_BYTES
        self.read_view = self._whole_view[: self.read_size]


class InboundBuffer:
    """The read side of one socket.

    After `receive` has reported bytes, they are buf[start:end], and `keep_partial_frame` must be called with the
    unhandled ones before the shared buffer is used again. Where `large_frame` is set, buf is a frame's own buffer,
    which a link may take. `received_bytes`: bytes that are there of the frame in `large_frame`. `is_large_next`:
    `peek_request` is worth its call.
    """

    __slots__ = (
        "_account",
        "_is_client",
        "_leftover",
        "_shared",
        "_wake",
        "buf",
        "end",
        "is_drained",
        "is_large_next",
        "large_frame",
        "received_bytes",
        "start",
        "waits_for_memory",
    )

    def __init__(
        self, shared: SharedReadBuffer, account: MemoryAccount, wake: Callable[[], None], *, is_client: bool
    ) -> None:
        """`wake` is called when reading, which had to wait for memory, may go on."""
        self._shared = shared
        self._account = account
        self._wake = wake
        self._is_client = is_client
        self._leftover = b""
        self.large_frame: FrameBuffer | None = None
        self.received_bytes = 0
        self.is_large_next = False
        self.waits_for_memory = False  # for room: reading must stop until `on_memory_available`
        self.is_drained = True  # the last read took all there was
        self.buf: bytearray = shared.buffer
        self.start = self.end = 0

    @property
    def partial_bytes(self) -> int:
        """Bytes kept of a frame that is not complete."""
        return self.received_bytes if self.large_frame is not None else len(self._leftover)

    @property
    def is_between_frames(self) -> bool:
        """No frame is partly read, and none waits for memory."""
        return self.large_frame is None and not (self._leftover or self.waits_for_memory)

    def peek_request(self, sock: socket.socket, max_bytes: int) -> None:
        """Before `receive`: give a request that is larger than a read its own buffer, if one is at hand.

        Raises:
            OSError: the connection is broken.
        """
        self.is_large_next = False
        if not self.is_between_frames:  # the beginning of the next one was read behind a pause: what comes is no head
            return
        try:
            head = sock.recv(REQUEST_HEAD.size, socket.MSG_PEEK)
            size = check_request_head(head, 0, len(head), max_bytes)
        except (BlockingIOError, MalformedFrame):  # said when it is read
            return
        if size > SHARED_READ_BYTES:
            self.large_frame, self.received_bytes = self._account.reserve_buffer(size, 0), 0

    def admit_read(self) -> bool:
        """Whether there is memory for more of `large_frame`; if not, reading has to wait."""
        large = self.large_frame
        if large is None or not large.is_request:
            return True
        self.waits_for_memory = not self._account.admit_read(large, self.received_bytes, self)
        return not self.waits_for_memory

    def add_received(self, size: int) -> None:
        """That many more bytes have been read into `large_frame`."""
        large = self.large_frame
        assert large is not None
        self.received_bytes += size
        self._account.charge_received(large, size)
        if self.received_bytes == large.end < large.size:
            large.grow_buffer()

    def memory_wait_s(self, now: float) -> float:
        """Seconds that half a frame has waited here for memory; 0.0: none does."""
        large = self.large_frame
        return now - large.short_since if self.waits_for_memory and large is not None and large.short_since else 0.0

    def prioritize_reading(self) -> None:
        """Read on in whatever memory is free, if no other connection does."""
        if self.waits_for_memory and self.large_frame is not None:
            self._account.prioritize_frame(self.large_frame, self)

    def receive(self, sock: socket.socket) -> int:
        """Read once. Returns the number of bytes to handle (0: none yet), or EOF.

        Raises:
            OSError: the connection is broken.
        """
        large = self.large_frame
        if large is not None and not self.admit_read():
            return 0
        try:
            if large is None:
                room = self._shared.read_view
                n = sock.recv_into(room)
                self.is_drained = n < len(room)
            else:
                wanted = large.end - self.received_bytes
                n = sock.recv_into(large.view[self.received_bytes :])
                self.is_drained = n < wanted
        except BlockingIOError:
            self.is_drained = True
            return 0
        if n == 0:
            return EOF
        if large is not None:
            self.add_received(n)
            if self.received_bytes < large.size:
                return 0
            if self._is_client:
                self.is_drained = self.is_socket_empty(sock)
            self.buf, self.start, self.end = large.buffer, 0, large.size
            return large.size
        self.buf, self.start, self.end = self._shared.buffer, self.restore_leftover(), HEAD_ROOM + n
        return self.end - self.start

    def restore_leftover(self) -> int:
        """Put the beginning of a frame, if one was kept, in front of the bytes just read into the shared buffer.
        Returns where they begin.
        """
        left = self._leftover
        if not left:
            return HEAD_ROOM
        start = HEAD_ROOM - len(left)
        self._shared.buffer[start:HEAD_ROOM] = left
        self._drop_leftover()
        return start

    def is_socket_empty(self, sock: socket.socket) -> bool:
        """Whether there is nothing to read, not even an end or an error."""
        return calls.is_socket_empty(sock.fileno())

    def detach_frame(self) -> None:
        """Hand `large_frame` over to the caller. A reference left here would keep its buffer in memory that no account
        counts.
        """
        large, self.large_frame = self.large_frame, None
        self.buf = self._shared.buffer
        if large is not None:
            self.is_large_next = large.is_request and large.size > SHARED_READ_BYTES
            if large.charged_bytes < self.received_bytes:  # the last of it
                self._charge_frame(large)

    def prepend_bytes(self, data: bytes) -> None:
        """Take the bytes that were read before this object existed: the beginning of the first frame."""
        self._keep_leftover(data)

    def _keep_leftover(self, data: bytes) -> None:
        self._leftover = data
        self._account.charge_bytes(len(data))

    def _drop_leftover(self) -> None:
        left, self._leftover = self._leftover, b""
        self._account.release_bytes(len(left))

    def recv(self, sock: socket.socket, size: int) -> bytes:
        """Up to `size` bytes behind everything received, not through the shared buffer; b"": the end.

        Raises:
            OSError: the connection is broken, or (BlockingIOError) there are none yet.
        """
        return sock.recv(size)

    def _charge_frame(self, large: FrameBuffer) -> None:
        self._account.charge_bytes(self.received_bytes - large.charged_bytes)
        large.charged_bytes = self.received_bytes

    def keep_partial_frame(self, pos: int, frame_bytes: int) -> None:
        """Keep buf[pos:end], the beginning of a frame of `frame_bytes` (0: not known, or it is taken in pieces)."""
        buf, large = self.buf, self.large_frame
        self.detach_frame()
        if large is not None:
            self._account.release_buffer(large)
        if pos == self.end:
            return
        rest = memoryview(buf)[pos : self.end]
        large = None
        if frame_bytes > HEAD_ROOM:
            self.waits_for_memory = not self._is_client and not self._account.admit_answer(self)
            large = self._account.reserve_buffer(frame_bytes, len(rest), is_request=self._is_client)
        if large is None:
            self._keep_leftover(bytes(rest))
            return
        self.large_frame, self.received_bytes = large, len(rest)
        large.view[: self.received_bytes] = rest
        self._charge_frame(large)

    def on_memory_available(self) -> None:
        """There is memory for the frame that had to wait."""
        self.waits_for_memory = False
        self._wake()

    def close(self) -> None:
        self._wake = _do_nothing  # else it would keep its link
        if self.waits_for_memory:
            self.waits_for_memory = False
            self._account.cancel_wait(self)
        if self._leftover:
            self._drop_leftover()
        large = self.large_frame
        self.detach_frame()
        if large is not None:
            self._account.release_buffer(large)


def _do_nothing() -> None:
    """The wake callback of a connection that is closed."""
