# The bound on the memory that a worker's connections hold, and the large buffers that are taken from it.
#
#   Budget ── of the worker: `limit`, who waits for room, buffers to be used again
#     └ Owner ── what the connections of one principal (before there is one: of one address) hold together
#         └ Account ── what one connection holds; all that it keeps goes through it
#
# A frame's whole size is asked for on its prefix, and those who wait are served in order, owners in turn: many
# half-read frames that each wait for a little more would wait for ever. No owner may have more than its share, so those
# who only announce frames hold up nobody else; and memory is touched only where bytes have come. Bytes that can't be
# refused (input parked behind a mute, the rest of an answer) are charged without asking and make others wait; answers
# themselves wait when the limit is far exceeded. Knows no clock: who holds memory without progress is ended by the
# reactor.

from __future__ import annotations

import mmap
from collections import deque
from typing import Protocol, cast

MIN_CLASS = 16  # buffers come in powers of two from 64 KiB on, so that they can be used again
POOLED_BYTES = 32 * 2**20  # a new buffer costs a page fault and a memset per page: worth keeping some
SHARE = 0.5  # of the limit, for one owner
EXCESS = 1.25  # times the limit, beyond which no answer is taken from a broker that has to be kept whole


class Waiter(Protocol):
    """A connection that waits for a buffer."""

    def granted(self, large: Large) -> None:
        """The buffer asked for; called later, when there is room."""


class Large:
    """A buffer for one large frame: `view` is exactly as long as the frame. `reserved`: a request's. `charged`: bytes
    that are in the account. `since`: for the reactor, the time at which it was first seen half full.
    """

    __slots__ = ("buffer", "charged", "reserved", "since", "size", "view")

    def __init__(self, buffer: bytearray, size: int, *, reserved: bool) -> None:
        self.buffer = buffer
        self.size = self.charged = size
        self.reserved = reserved
        self.since = 0.0
        self.view = memoryview(buffer)[:size]


class Owner:
    """`used`: bytes that all of its connections hold; `reserved`: of these, in buffers for requests."""

    __slots__ = ("connections", "reserved", "used", "waiting")

    def __init__(self) -> None:
        self.connections = 0
        self.used = self.reserved = 0
        self.waiting: deque[tuple[Account, Waiter, int]] = deque()


class Budget:
    """Bytes in use against `limit`.

    Attributes:
        used: bytes that connections hold just now; `reserved`: of these, in buffers for requests.
        owners: by name.
    """

    __slots__ = ("_answers", "_is_granting", "_pool", "_pooled", "_queue", "limit", "owners", "reserved", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = self.reserved = 0
        self.owners: dict[str, Owner] = {}
        self._pool: dict[int, list[bytearray]] = {}
        self._pooled = 0
        self._is_granting = False
        self._queue: deque[Owner] = deque()  # owners with a waiting connection, in turn
        self._answers: deque[tuple[Account, Waiter, int]] = deque()

    @property
    def is_wanted(self) -> bool:
        """Whether an owner waits for memory that others hold, not only for memory of its own other connections."""
        return bool(self._queue) and self._is_queued_for()

    @property
    def has_waiters(self) -> bool:
        """Whether any owner waits, if only for memory of its own other connections."""
        return bool(self._queue)

    @property
    def is_used_up(self) -> bool:
        return self.used > self.limit or self.is_wanted

    @property
    def room(self) -> int:
        """Bytes that are left."""
        return max(0, self.limit - self.used)

    # Where no request has a buffer there is none to wait for: then the next one gets its own, whatever is in use. So
    # one that is larger than the limit passes alone; and those who wait hold something themselves, which they keep.

    def _may_have(self, owner: Owner, size: int) -> bool:
        return not owner.reserved or owner.used + size <= self.limit * SHARE

    def _has_room(self, size: int) -> bool:
        return not self.reserved or self.used + size <= self.limit

    def _take(self, account: Account, size: int, waiter: Waiter | None) -> Large | None:
        owner = account.owner
        passes = self._has_room(size) and self._may_have(owner, size)
        if not passes or owner.waiting or self._is_queued_for():
            if waiter is not None:
                if not owner.waiting:
                    self._queue.append(owner)
                owner.waiting.append((account, waiter, size))
            return None
        return self._make(account, size, reserved=True)

    def _is_queued_for(self) -> bool:
        """Whether any owner waits for other connections than its own."""
        return any(self._may_have(owner, owner.waiting[0][2]) for owner in self._queue)

    def _take_answer(self, account: Account, size: int, waiter: Waiter) -> Large | None:
        # Its connection may hold a request that its broker takes no more of before that answer is read.
        if self.used > self.limit * EXCESS and not account.used:
            self._answers.append((account, waiter, size))
            return None
        return self._make(account, size, reserved=False)

    def _grant(self) -> None:
        # A connection that is granted a buffer gives something back at once: that must not re-enter here.
        if self._is_granting:
            return
        self._is_granting = True
        try:
            self._grant_all()
        finally:
            self._is_granting = False

    def _grant_all(self) -> None:
        while self._answers and self.used <= self.limit * EXCESS:
            account, waiter, size = self._answers.popleft()
            waiter.granted(self._make(account, size, reserved=False))
        looked_at = 0
        while looked_at < len(self._queue):
            owner = self._queue[0]
            account, waiter, size = owner.waiting[0]
            if not self._may_have(owner, size):
                self._queue.rotate(-1)
                looked_at += 1
                continue
            if not self._has_room(size):
                return
            owner.waiting.popleft()
            self._queue.popleft()
            if owner.waiting:
                self._queue.append(owner)
            looked_at = 0
            waiter.granted(self._make(account, size, reserved=True))

    def _forget(self, owner: Owner, waiter: Waiter) -> None:
        self._answers = deque(entry for entry in self._answers if entry[1] is not waiter)
        if owner.waiting:
            owner.waiting = deque(entry for entry in owner.waiting if entry[1] is not waiter)
            if not owner.waiting:
                self._queue.remove(owner)
        self._grant()  # the connection behind it

    def _give(self, large: Large) -> None:
        large.view.release()
        size = len(large.buffer)
        if self._pooled + size <= POOLED_BYTES:
            self._pool.setdefault(size, []).append(large.buffer)
            self._pooled += size

    def _make(self, account: Account, size: int, *, reserved: bool) -> Large:
        account.charge(size)
        if reserved:
            account.reserved += size
            account.owner.reserved += size
            self.reserved += size
        capacity = 1 << max(MIN_CLASS, (size - 1).bit_length())
        free = self._pool.get(capacity)
        if free:
            self._pooled -= capacity
            return Large(free.pop(), size, reserved=reserved)
        # As good as a bytearray that never changes its size, but for one thing: a page costs no memory before it is
        # written to, so a frame that is announced and doesn't come costs none.
        return Large(
            cast("bytearray", mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)),
            size,
            reserved=reserved,
        )


class Account:
    """One connection's part of the budget: `used` bytes; `reserved`: of these, in buffers for requests."""

    __slots__ = ("_name", "budget", "owner", "reserved", "used")

    def __init__(self, budget: Budget, name: str) -> None:
        """`name`: the owner's."""
        self.budget = budget
        self.used = self.reserved = 0
        self._name = name
        self.owner = self._enter(name)

    def _enter(self, name: str) -> Owner:
        owner = self.budget.owners.get(name)
        if owner is None:
            owner = self.budget.owners[name] = Owner()
        owner.connections += 1
        return owner

    def _leave(self) -> None:
        self.owner.connections -= 1
        if not self.owner.connections:
            del self.budget.owners[self._name]

    @property
    def is_wanted(self) -> bool:
        """Whether another connection waits for memory that this one may hold."""
        return bool(self.owner.waiting) or self.budget.is_wanted

    @property
    def is_short(self) -> bool:
        """Whether connections hold more than they may."""
        return self.budget.used > self.budget.limit

    def rename(self, name: str) -> None:
        """Move to the owner that is known now. Not to be called while a buffer is waited for."""
        before, owner = self.owner, self._enter(name)
        before.used -= self.used
        before.reserved -= self.reserved
        self._leave()
        self._name, self.owner = name, owner
        owner.used += self.used
        owner.reserved += self.reserved
        self.budget._grant()  # others of the former owner may have been waiting for its share

    def take(self, size: int, waiter: Waiter) -> Large | None:
        """A buffer of `size` bytes, or None: then `waiter` is granted one later. A frame that is larger than the whole
        budget passes alone.
        """
        return self.budget._take(self, size, waiter)

    def take_at_once(self, size: int) -> Large | None:
        """The same without a wait: None where there is no room now."""
        return self.budget._take(self, size, None)

    def take_unproven(self, size: int) -> Large:
        """The same for a frame of a client that has not authenticated: no memory is set aside for it, and it is charged
        as it comes (`Large.charged`). Its size is bounded by its API.
        """
        large = self.budget._make(self, size, reserved=False)
        self.discharge(size)
        large.charged = 0
        return large

    def take_answer(self, size: int, waiter: Waiter) -> Large | None:
        """The same for a broker's answer: it waits only where memory is far exceeded."""
        return self.budget._take_answer(self, size, waiter)

    def give(self, large: Large) -> None:
        """Give a buffer back."""
        self.budget._give(large)
        if large.reserved:
            self.reserved -= large.size
            self.owner.reserved -= large.size
            self.budget.reserved -= large.size
        self.discharge(large.charged)

    def charge(self, size: int) -> None:
        """Count bytes that are held already."""
        self.used += size
        self.owner.used += size
        self.budget.used += size

    def discharge(self, size: int) -> None:
        """These bytes are held no longer; connections that wait get their turn."""
        self.used -= size
        self.owner.used -= size
        budget = self.budget
        budget.used -= size
        if budget._queue or budget._answers:
            budget._grant()

    def forget(self, waiter: Waiter) -> None:
        """The connection waits for no buffer any more."""
        self.budget._forget(self.owner, waiter)

    def close(self) -> None:
        """The connection has ended and has given everything back."""
        self._leave()


class Charge:
    """The charge of an account for one thing, whose size changes; no waiter is granted a buffer when it shrinks."""

    __slots__ = ("_account", "_size")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._size = 0

    def set(self, size: int) -> None:
        """That many bytes are held for it now."""
        if size != self._size:
            self._account.charge(size - self._size)
            self._size = size
