# The bound on the memory that a worker's connections hold, and the large buffers that are taken from it.
#
#   Budget ── of the worker: `limit`, who waits, buffers to be used again
#     └ Owner ── what the connections of one principal (before there is one: of one address) hold together
#         └ Account ── what one connection holds; all that it keeps goes through it
#
# Bytes are charged as they come: a size that is only announced holds nothing. Half-read requests must not wait for each
# other for ever all the same, so each read of one has to be asked for:
#
#   A request takes bytes only while the rest of its frame would fit into what is free.
#
# Then the one that took bytes last can complete: no other has taken any since. It gives back all that it holds, so what
# was free before its first byte is free again, and the one that took bytes before it can come to its end; and so on.
# (This is the banker's algorithm for one resource, without its table.) A small request finds room where a large one
# waits, and no connection waits for a frame that doesn't come. Large requests leave a part of the memory to smaller
# ones, and no owner has more than its share.
#
# Bytes that can't be refused (what the first reads of a frame have brought, input parked behind a mute, answers that a
# client doesn't read) are charged without asking and make others wait. So one request at a time, the `priority_frame`,
# goes on whatever is free: one beside which all others wait, one larger than it may be, or one that has waited for long
# (relief.py). The bytes that requests ask for stay within the limit, or exceed it by the rest of that one. Answers wait
# only where the limit is far exceeded. Knows no clock: the reactor ends who holds memory without progress.
#
# A buffer grows with what has come of its frame. One that is used again is in memory already, so only some of these are
# lent to frames that aren't whole.

from __future__ import annotations

import mmap
import sys
from collections import deque
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol, cast

MIN_SIZE_CLASS = 16  # buffers come in powers of two from 64 KiB on, so that they can be used again
GROWTH_FACTOR = 4  # a buffer has room for this many times the bytes received, at least …
FIRST_BYTES = 32 * 1024  # … this: of fewer there is none yet
# A new buffer costs a page fault and a memset per page: worth keeping some, and lending as many to half frames.
POOLED_BYTES = 32 * 2**20
OWNER_SHARE = 0.5  # of the limit, for one owner
SMALL_REQUEST_RESERVE = 1 / 16  # of the limit, that large requests leave to smaller ones
EXCESS_FACTOR = 1.25  # times the limit, beyond which no answer is taken from a broker that has to be kept whole

_CAN_GROW = sys.platform == "linux"  # mremap: elsewhere all of a buffer is mapped at once


class MemoryWaiter(Protocol):
    """A connection that waits until it may read on."""

    def on_memory_available(self) -> None:
        """Memory has become available; called later, not at once. The connection asks again."""


class FrameBuffer:
    """A buffer for one large frame of `size` bytes: `view` is as long as it, or where it has still to grow, `end`.

    Attributes:
        needed_bytes: bytes that have to be free before the first of them comes; `is_request`: whether it asks for them
            at all.
        charged_bytes: bytes that are in the account.
        recycled_bytes: bytes that were written to by an earlier frame.
        short_since, bytes_when_short: for the reactor, the time at which memory was first seen to be short, and the
            bytes come by then.
    """

    __slots__ = (
        "buffer",
        "bytes_when_short",
        "charged_bytes",
        "end",
        "is_request",
        "needed_bytes",
        "recycled_bytes",
        "short_since",
        "size",
        "view",
    )

    def __init__(self, buffer: bytearray, size: int, need: int, *, is_request: bool, lent: int) -> None:
        self.buffer = buffer
        self.size = size
        self.needed_bytes = need
        self.is_request = is_request
        self.recycled_bytes = lent
        self.charged_bytes = self.bytes_when_short = 0
        self.short_since = 0.0
        self.end = min(size, len(buffer))
        self.view = memoryview(buffer)[: self.end]

    def grow_buffer(self) -> None:
        """The buffer is full: make room for more."""
        self.view.release()
        cast("mmap.mmap", self.buffer).resize(_buffer_capacity(self.size, self.end))
        self.end = min(self.size, len(self.buffer))
        self.view = memoryview(self.buffer)[: self.end]


def _buffer_capacity(size: int, came: int) -> int:
    """The size of the buffer for a frame of which `came` bytes have arrived."""
    return 1 << max(MIN_SIZE_CLASS, (min(size, GROWTH_FACTOR * came if _CAN_GROW else size) - 1).bit_length())


class MemoryUsage:
    """What a group of connections holds together.

    Attributes:
        used_bytes: bytes held.
        active_requests: requests that have a buffer and don't wait.
        priority_frame: the request that may read on even if no memory is free.
    """

    __slots__ = ("active_requests", "priority_frame", "used_bytes")

    def __init__(self) -> None:
        self.used_bytes = self.active_requests = 0
        self.priority_frame: FrameBuffer | None = None

    def has_room(self, large: FrameBuffer, need: int, most: float, others: int) -> bool:
        """Whether the frame in that buffer, which needs that many bytes more, may go on: they are free, or it is the
        priority frame or may become it. `others`: other active requests.
        """
        if self.used_bytes + need <= most or self.priority_frame is large or not others:
            return True
        return self.priority_frame is None and large.needed_bytes > most

    def remove_frame(self, large: FrameBuffer) -> None:
        """The buffer was released."""
        self.active_requests -= 1
        if self.priority_frame is large:
            self.priority_frame = None


class MemoryWait(NamedTuple):
    """A wait for the bytes that a frame needs."""

    needed_bytes: int
    number: int
    frame: FrameBuffer
    waiter: MemoryWaiter


class MemoryOwner(MemoryUsage):
    """One principal's connections. `waiters`: those that wait, each with the number of its wait."""

    __slots__ = ("_least_first", "_waits", "connection_count", "waiters")

    def __init__(self) -> None:
        super().__init__()
        self.connection_count = 0
        self.waiters: dict[MemoryWaiter, int] = {}
        self._waits: dict[int, MemoryWait] = {}
        # A heap of needed bytes and numbers, in which those of waits that have ended remain for a while.
        self._least_first: list[tuple[int, int]] = []

    def next_wait(self, share: float) -> MemoryWait | None:
        """That of the waiter whose turn it is, of all the one that needs least; None: all wait for other connections
        of this owner.
        """
        while (first := self._waits.get(self._least_first[0][1])) is None:
            heappop(self._least_first)
        if self.has_room(first.frame, first.needed_bytes, share, self.active_requests):
            return first
        if self.priority_frame is None:
            return None
        return next((each for each in self._waits.values() if each.frame is self.priority_frame), None)

    def add_wait(self, wait: MemoryWait) -> None:
        """Begin it."""
        self.waiters[wait.waiter] = wait.number
        self._waits[wait.number] = wait
        heappush(self._least_first, wait[:2])

    def end_wait(self, waiter: MemoryWaiter) -> bool:
        """Returns whether it waited."""
        number = self.waiters.pop(waiter, None)
        if number is None:
            return False
        del self._waits[number]
        if len(self._least_first) > 2 * len(self._waits):  # one that needs least may wait for long, and others end
            self._least_first = [each for each in self._least_first if each[1] in self._waits]
            heapify(self._least_first)
        return True


class MemoryBudget(MemoryUsage):
    """Bounds the bytes that all connections hold by `limit_bytes`. `owners`: by name."""

    __slots__ = (
        "_answer_waiters",
        "_least_needed",
        "_owner_queue",
        "_pool",
        "_pooled_bytes",
        "_recycled_bytes",
        "_wait_numbers",
        "limit_bytes",
        "owners",
    )

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit_bytes = limit
        self.owners: dict[str, MemoryOwner] = {}
        self._pool: dict[int, list[bytearray]] = {}
        self._pooled_bytes = self._recycled_bytes = 0
        self._owner_queue: deque[MemoryOwner] = deque()  # owners with a waiting connection, in turn
        self._least_needed = 0  # no waiter needs less, except those that wait for their own owner's connections
        self._wait_numbers = count()
        self._answer_waiters: dict[MemoryWaiter, None] = {}  # in their order

    @property
    def is_contended(self) -> bool:
        """Whether an owner waits for memory that others hold, not only for memory of its own other connections."""
        return any(owner.next_wait(self.owner_limit) for owner in self._owner_queue)

    @property
    def has_waiters(self) -> bool:
        """Whether any owner waits, even if only for memory of its own other connections."""
        return bool(self._owner_queue)

    @property
    def is_exhausted(self) -> bool:
        return self.used_bytes > self.limit_bytes or self.is_contended

    @property
    def free_bytes(self) -> int:
        """Bytes that are free."""
        return max(0, self.limit_bytes - self.used_bytes)

    @property
    def owner_limit(self) -> float:
        """The most bytes that one owner may hold."""
        return self.limit_bytes * OWNER_SHARE

    def _admit_frame(self, owner: MemoryOwner, large: FrameBuffer, need: int, is_active: int) -> bool:
        if not (
            owner.has_room(large, need, self.owner_limit, owner.active_requests - is_active)
            and self.has_room(large, need, self.limit_bytes, self.active_requests - is_active)
        ):
            return False
        if self.used_bytes + need > self.limit_bytes:
            self.priority_frame = owner.priority_frame = large
        elif owner.used_bytes + need > self.owner_limit:
            owner.priority_frame = large
        return True

    def _enqueue_waiter(self, owner: MemoryOwner, large: FrameBuffer, need: int, waiter: MemoryWaiter) -> None:
        if not owner.waiters:
            self._owner_queue.append(owner)
        owner.add_wait(MemoryWait(need, next(self._wait_numbers), large, waiter))
        owner.active_requests -= 1
        self.active_requests -= 1
        self._least_needed = min(self._least_needed, need)

    def resume_waiters(self, owner: MemoryOwner | None = None) -> None:
        """Resume the waiters for which there is room: some of that owner's memory is free, or one of its requests has
        read all that had arrived.
        """
        while self._answer_waiters and self.used_bytes <= self.limit_bytes * EXCESS_FACTOR:
            waiter = next(iter(self._answer_waiters))
            del self._answer_waiters[waiter]
            waiter.on_memory_available()
        if owner is not None:
            room = self.owner_limit - owner.used_bytes
            while owner.waiters and (need := self._resume_next(owner, room)):
                room -= need
        if self._least_needed <= self.limit_bytes - self.used_bytes:
            self._resume_all()

    def _resume_all(self) -> None:
        room = self.limit_bytes - self.used_bytes  # those who are let on take it later: all at once would be too many
        turns = len(self._owner_queue)
        while turns and self._owner_queue:
            owner = self._owner_queue[0]
            self._owner_queue.rotate(-1)
            turns -= 1
            need = self._resume_next(owner, room)
            if need:
                room -= need
                turns = len(self._owner_queue)
        each = (owner.next_wait(self.owner_limit) for owner in self._owner_queue)
        self._least_needed = min((wait.needed_bytes for wait in each if wait is not None), default=self.limit_bytes)

    def _resume_next(self, owner: MemoryOwner, room: float) -> int:
        """What the frame needs that goes on, if one does. `room`: where it isn't the first, it needs no more."""
        wait = owner.next_wait(self.owner_limit)
        if wait is None:
            return 0
        need, _, large, waiter = wait
        is_first = self.used_bytes + need > self.limit_bytes or owner.used_bytes + need > self.owner_limit
        if (need > room and not is_first) or not self._admit_frame(owner, large, need, 0):
            return 0
        self._dequeue_waiter(owner, waiter)
        waiter.on_memory_available()
        return need

    def _dequeue_waiter(self, owner: MemoryOwner, waiter: MemoryWaiter) -> None:
        if not owner.end_wait(waiter):
            return
        owner.active_requests += 1
        self.active_requests += 1
        if not owner.waiters:
            self._owner_queue.remove(owner)

    def _cancel_wait(self, owner: MemoryOwner, waiter: MemoryWaiter) -> None:
        self._answer_waiters.pop(waiter, None)
        self._dequeue_waiter(owner, waiter)

    def _recycle_buffer(self, large: FrameBuffer) -> None:
        large.view.release()
        self._recycled_bytes -= large.recycled_bytes
        size = len(large.buffer)
        if self._pooled_bytes + size <= POOLED_BYTES:
            self._pool.setdefault(size, []).append(large.buffer)
            self._pooled_bytes += size

    def _allocate_buffer(self, size: int, come: int, *, is_request: bool) -> FrameBuffer | None:
        capacity = 1 << max(MIN_SIZE_CLASS, (size - 1).bit_length())
        need = size + min(size, int(self.limit_bytes * SMALL_REQUEST_RESERVE))
        free = self._pool.get(capacity)
        if free and self._recycled_bytes + capacity <= POOLED_BYTES:
            self._pooled_bytes -= capacity
            self._recycled_bytes += capacity
            return FrameBuffer(free.pop(), size, need, is_request=is_request, lent=capacity)
        if come <= FIRST_BYTES:
            return None
        # As good as a bytearray that never changes its size, but for one thing: a page costs no memory before it is
        # written to.
        new = mmap.mmap(-1, _buffer_capacity(size, come), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return FrameBuffer(cast("bytearray", new), size, need, is_request=is_request, lent=0)


class MemoryAccount:
    """One connection's part of the budget. `used_bytes`: bytes held. `active_requests`: its requests that have a
    buffer.
    """

    __slots__ = ("_owner_name", "active_requests", "budget", "owner", "used_bytes")

    def __init__(self, budget: MemoryBudget, name: str) -> None:
        """`name`: the owner's."""
        self.budget = budget
        self.used_bytes = self.active_requests = 0
        self._owner_name = name
        self.owner = self._join_owner(name)

    def _join_owner(self, name: str) -> MemoryOwner:
        owner = self.budget.owners.get(name)
        if owner is None:
            owner = self.budget.owners[name] = MemoryOwner()
        owner.connection_count += 1
        return owner

    def _leave_owner(self) -> None:
        self.owner.connection_count -= 1
        if not self.owner.connection_count:
            del self.budget.owners[self._owner_name]

    @property
    def is_contended(self) -> bool:
        """Whether another connection waits for memory that this one may hold."""
        return bool(self.owner.waiters) or self.budget.is_contended

    @property
    def is_memory_short(self) -> bool:
        """Whether connections hold more than they may."""
        return self.budget.used_bytes > self.budget.limit_bytes

    def change_owner(self, name: str) -> None:
        """Move to another owner, once it is known. Must not be called while this connection waits."""
        before, owner = self.owner, self._join_owner(name)
        before.used_bytes -= self.used_bytes
        before.active_requests -= self.active_requests
        if self.active_requests:
            before.priority_frame = None  # it may have been this connection's
        self._leave_owner()
        self._owner_name, self.owner = name, owner
        owner.used_bytes += self.used_bytes
        owner.active_requests += self.active_requests
        self.budget.resume_waiters(before)  # others of the former owner may have been waiting for its share

    def reserve_buffer(self, size: int, come: int, *, is_request: bool = True) -> FrameBuffer | None:
        """A buffer for a frame of `size` bytes, some of which have arrived; None: so few bytes are better kept
        elsewhere. Charges nothing.
        """
        large = self.budget._allocate_buffer(size, come, is_request=is_request)
        if large is not None and is_request:
            self.active_requests += 1
            self.owner.active_requests += 1
            self.budget.active_requests += 1
        return large

    def admit_read(self, large: FrameBuffer, come: int, waiter: MemoryWaiter) -> bool:
        """Whether more of a request may be read into its buffer; if not, `waiter` is resumed later."""
        budget, owner, need = self.budget, self.owner, large.needed_bytes - come
        if (
            budget.used_bytes + need <= budget.limit_bytes
            and owner.used_bytes + need <= budget.limit_bytes * OWNER_SHARE
        ):  # nearly always
            return True
        if budget._admit_frame(owner, large, need, 1):
            return True
        budget._enqueue_waiter(owner, large, need, waiter)
        return False

    def admit_answer(self, waiter: MemoryWaiter) -> bool:
        """Like `admit_read`, for a broker's response before anything of it is kept: it waits only where the limit is
        far exceeded.
        """
        budget = self.budget
        # Its connection may hold a request that its broker takes no more of before that answer is read.
        if budget.used_bytes <= budget.limit_bytes * EXCESS_FACTOR or self.used_bytes:
            return True
        budget._answer_waiters[waiter] = None
        return False

    def prioritize_frame(self, large: FrameBuffer, waiter: MemoryWaiter) -> None:
        """The connection has waited for long: it may read on even if no memory is free, unless another one has
        priority.
        """
        if self.budget.priority_frame in (None, large):
            self.budget.priority_frame = self.owner.priority_frame = large
            self.budget._cancel_wait(self.owner, waiter)
            waiter.on_memory_available()

    def charge_received(self, large: FrameBuffer, size: int) -> None:
        """That many more bytes have arrived in the buffer, and it isn't full."""
        large.charged_bytes += size
        self.charge_bytes(size)
        if self.budget._owner_queue:
            self.budget.resume_waiters(self.owner)  # there may be room for others all the same, until more comes

    def release_buffer(self, large: FrameBuffer) -> None:
        """Release a buffer."""
        budget, owner = self.budget, self.owner
        budget._recycle_buffer(large)
        if large.is_request:
            self.active_requests -= 1
            if budget.priority_frame is large or budget.active_requests == 1:
                budget._least_needed = 0  # another may be the first
            owner.remove_frame(large)
            budget.remove_frame(large)
        self.release_bytes(large.charged_bytes)

    def charge_bytes(self, size: int) -> None:
        """Charge bytes that are held already."""
        self.used_bytes += size
        self.owner.used_bytes += size
        self.budget.used_bytes += size

    def release_bytes(self, size: int) -> None:
        """Release these bytes; waiting connections take their turns."""
        self.used_bytes -= size
        self.owner.used_bytes -= size
        budget = self.budget
        budget.used_bytes -= size
        if budget._owner_queue or budget._answer_waiters:
            budget.resume_waiters(self.owner)

    def cancel_wait(self, waiter: MemoryWaiter) -> None:
        """The connection no longer waits."""
        self.budget._cancel_wait(self.owner, waiter)

    def close(self) -> None:
        """The connection has ended and has released everything."""
        self._leave_owner()


class MemoryCharge:
    """An account's charge for one thing whose size changes; no waiter gets a buffer when it shrinks."""

    __slots__ = ("_account", "_size")

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self._size = 0

    def update_size(self, size: int) -> None:
        """That many bytes are now held for it."""
        if size != self._size:
            self._account.charge_bytes(size - self._size)
            self._size = size
