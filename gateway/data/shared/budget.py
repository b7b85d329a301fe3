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
# Then the one that took bytes last can come to its end: nobody has taken any since. It gives back all that it holds, so
# what was free before its first byte is free again, and the one that took bytes before it can come to its end; and so
# on. (This is the banker's algorithm for one resource, without its table.) A small request finds room where a large one
# waits, and nobody waits for a frame that doesn't come. Large requests leave a part of the memory to smaller ones, and
# no owner has more than its share.
#
# Bytes that can't be refused (what the first reads of a frame have brought, input parked behind a mute, answers that a
# client doesn't read) are charged without asking and make others wait. So one request at a time, the `first`, goes on
# whatever is free: one beside which all others wait, one larger than it may be, or one that has waited for long
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
from typing import Protocol, cast

MIN_CLASS = 16  # buffers come in powers of two from 64 KiB on, so that they can be used again
GROWTH = 4  # a buffer has room for so many times what has come, at least …
FIRST_BYTES = 32 * 1024  # … this: of fewer there is none yet
# A new buffer costs a page fault and a memset per page: worth keeping some, and lending as many to half frames.
POOLED_BYTES = 32 * 2**20
SHARE = 0.5  # of the limit, for one owner
LEFT = 1 / 16  # of the limit, that large requests leave to smaller ones
EXCESS = 1.25  # times the limit, beyond which no answer is taken from a broker that has to be kept whole

_GROWS = sys.platform == "linux"  # mremap: elsewhere all of a buffer is mapped at once


class Waiter(Protocol):
    """A connection that waits until it may read on."""

    def granted(self) -> None:
        """There is room; called later. It asks again."""


class Large:
    """A buffer for one large frame of `size` bytes: `view` is as long as it, or where it has still to grow, `end`.

    Attributes:
        need: bytes that have to be free before the first of them comes; `is_request`: whether it asks for them at all.
        charged: bytes that are in the account.
        lent: bytes that were written to by an earlier frame.
        since, came: for the reactor, the time at which memory was first seen to be short, and the bytes come by then.
    """

    __slots__ = ("buffer", "came", "charged", "end", "is_request", "lent", "need", "since", "size", "view")

    def __init__(self, buffer: bytearray, size: int, need: int, *, is_request: bool, lent: int) -> None:
        self.buffer = buffer
        self.size = size
        self.need = need
        self.is_request = is_request
        self.lent = lent
        self.charged = self.came = 0
        self.since = 0.0
        self.end = min(size, len(buffer))
        self.view = memoryview(buffer)[: self.end]

    def grow(self) -> None:
        """It is full: make room for more."""
        self.view.release()
        cast("mmap.mmap", self.buffer).resize(_capacity(self.size, self.end))
        self.end = min(self.size, len(self.buffer))
        self.view = memoryview(self.buffer)[: self.end]


def _capacity(size: int, came: int) -> int:
    """Bytes of the buffer for a frame of which so many have come."""
    return 1 << max(MIN_CLASS, (min(size, GROWTH * came if _GROWS else size) - 1).bit_length())


class Held:
    """What connections hold together.

    Attributes:
        used: bytes.
        active: requests that have a buffer, and don't wait.
        first: the request that may read on whatever is free.
    """

    __slots__ = ("active", "first", "used")

    def __init__(self) -> None:
        self.used = self.active = 0
        self.first: Large | None = None

    def has_room(self, large: Large, need: int, most: float, others: int) -> bool:
        """Whether the frame in that buffer may go on, which needs so many bytes more: they are free, or it is the first
        or may be that. `others`: active ones.
        """
        if self.used + need <= most or self.first is large or not others:
            return True
        return self.first is None and large.need > most

    def remove(self, large: Large) -> None:
        """That buffer is given back."""
        self.active -= 1
        if self.first is large:
            self.first = None


Waiting = tuple[int, int, Large, Waiter]  # bytes that its frame needs; a number; the frame's buffer; who waits


class Owner(Held):
    """`waiting`: its connections that wait, a heap: who needs least comes first."""

    __slots__ = ("connections", "waiting")

    def __init__(self) -> None:
        super().__init__()
        self.connections = 0
        self.waiting: list[Waiting] = []

    def next(self, share: float) -> Waiting | None:
        """Who has its turn among them; None: all wait for other connections of this owner."""
        need, _, large, _ = self.waiting[0]
        if self.has_room(large, need, share, self.active):
            return self.waiting[0]
        if self.first is None:
            return None
        return next((entry for entry in self.waiting if entry[2] is self.first), None)

    def remove_waiting(self, gone: Waiter) -> int:
        """It waits no more, if it did: 1."""
        before = len(self.waiting)
        self.waiting = [entry for entry in self.waiting if entry[3] is not gone]
        heapify(self.waiting)
        return before - len(self.waiting)


class Budget(Held):
    """Bytes in use against `limit`. `owners`: by name."""

    __slots__ = ("_answers", "_least", "_lent", "_numbers", "_pool", "_pooled", "_queue", "limit", "owners")

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.owners: dict[str, Owner] = {}
        self._pool: dict[int, list[bytearray]] = {}
        self._pooled = self._lent = 0
        self._queue: deque[Owner] = deque()  # owners with a waiting connection, in turn
        self._least = 0  # nobody waits who needs less, but for those who wait for their own owners' others
        self._numbers = count()
        self._answers: deque[Waiter] = deque()

    @property
    def is_wanted(self) -> bool:
        """Whether an owner waits for memory that others hold, not only for memory of its own other connections."""
        return any(owner.next(self.share) for owner in self._queue)

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

    @property
    def share(self) -> float:
        """Bytes that one owner may have."""
        return self.limit * SHARE

    def _passes(self, owner: Owner, large: Large, need: int, is_active: int) -> bool:
        if not (
            owner.has_room(large, need, self.share, owner.active - is_active)
            and self.has_room(large, need, self.limit, self.active - is_active)
        ):
            return False
        if self.used + need > self.limit:
            self.first = owner.first = large
        elif owner.used + need > self.share:
            owner.first = large
        return True

    def _wait(self, owner: Owner, large: Large, need: int, waiter: Waiter) -> None:
        if not owner.waiting:
            self._queue.append(owner)
        heappush(owner.waiting, (need, next(self._numbers), large, waiter))
        owner.active -= 1
        self.active -= 1
        self._least = min(self._least, need)

    def grant(self, owner: Owner | None = None) -> None:
        """Let those on whom there is room for: some of that owner's memory is free, or one of its requests has read all
        that was there.
        """
        while self._answers and self.used <= self.limit * EXCESS:
            self._answers.popleft().granted()
        if owner is not None:
            room = self.share - owner.used
            while owner.waiting and (need := self._let_on(owner, room)):
                room -= need
        if self._least <= self.limit - self.used:
            self._grant_all()

    def _grant_all(self) -> None:
        room = self.limit - self.used  # those who are let on take it later: all at once would be too many
        turns = len(self._queue)
        while turns and self._queue:
            owner = self._queue[0]
            self._queue.rotate(-1)
            turns -= 1
            need = self._let_on(owner, room)
            if need:
                room -= need
                turns = len(self._queue)
        each = (owner.next(self.share) for owner in self._queue)
        self._least = min((entry[0] for entry in each if entry is not None), default=self.limit)

    def _let_on(self, owner: Owner, room: float) -> int:
        """What the frame needs that goes on, if one does. `room`: where it isn't the first, it needs no more."""
        entry = owner.next(self.share)
        if entry is None:
            return 0
        need, _, large, waiter = entry
        is_first = self.used + need > self.limit or owner.used + need > self.share
        if (need > room and not is_first) or not self._passes(owner, large, need, 0):
            return 0
        self._remove(owner, waiter)
        waiter.granted()
        return need

    def _remove(self, owner: Owner, waiter: Waiter) -> None:
        if owner.waiting[0][3] is waiter:
            heappop(owner.waiting)
            count = 1
        else:
            count = owner.remove_waiting(waiter)
        owner.active += count
        self.active += count
        if not owner.waiting:
            self._queue.remove(owner)

    def _forget(self, owner: Owner, waiter: Waiter) -> None:
        self._answers = deque(each for each in self._answers if each is not waiter)
        if owner.waiting:
            self._remove(owner, waiter)

    def _give(self, large: Large) -> None:
        large.view.release()
        self._lent -= large.lent
        size = len(large.buffer)
        if self._pooled + size <= POOLED_BYTES:
            self._pool.setdefault(size, []).append(large.buffer)
            self._pooled += size

    def _make(self, size: int, come: int, *, is_request: bool) -> Large | None:
        capacity = 1 << max(MIN_CLASS, (size - 1).bit_length())
        need = size + min(size, int(self.limit * LEFT))
        free = self._pool.get(capacity)
        if free and self._lent + capacity <= POOLED_BYTES:
            self._pooled -= capacity
            self._lent += capacity
            return Large(free.pop(), size, need, is_request=is_request, lent=capacity)
        if come <= FIRST_BYTES:
            return None
        # As good as a bytearray that never changes its size, but for one thing: a page costs no memory before it is
        # written to.
        new = mmap.mmap(-1, _capacity(size, come), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return Large(cast("bytearray", new), size, need, is_request=is_request, lent=0)


class Account:
    """One connection's part of the budget: `used` bytes; `requests`: those that have a buffer."""

    __slots__ = ("_name", "budget", "owner", "requests", "used")

    def __init__(self, budget: Budget, name: str) -> None:
        """`name`: the owner's."""
        self.budget = budget
        self.used = self.requests = 0
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
        """Whether a connection waits for memory that this one may hold."""
        return bool(self.owner.waiting) or self.budget.is_wanted

    @property
    def is_short(self) -> bool:
        """Whether connections hold more than they may."""
        return self.budget.used > self.budget.limit

    def rename(self, name: str) -> None:
        """Move to the owner that is known now. Not to be called while this connection waits."""
        before, owner = self.owner, self._enter(name)
        before.used -= self.used
        before.active -= self.requests
        if self.requests:
            before.first = None  # it may have been this connection's
        self._leave()
        self._name, self.owner = name, owner
        owner.used += self.used
        owner.active += self.requests
        self.budget.grant(before)  # others of the former owner may have been waiting for its share

    def take(self, size: int, come: int, *, is_request: bool = True) -> Large | None:
        """A buffer for a frame of `size` bytes, of which so many have come; None: these few are better kept elsewhere.
        Nothing is charged.
        """
        large = self.budget._make(size, come, is_request=is_request)
        if large is not None and is_request:
            self.requests += 1
            self.owner.active += 1
            self.budget.active += 1
        return large

    def may_read(self, large: Large, come: int, waiter: Waiter) -> bool:
        """Whether more of a request may be read into its buffer, behind so many bytes; if not, `waiter` is granted that
        later.
        """
        budget, owner, need = self.budget, self.owner, large.need - come
        if budget.used + need <= budget.limit and owner.used + need <= budget.limit * SHARE:  # nearly always
            return True
        if budget._passes(owner, large, need, 1):
            return True
        budget._wait(owner, large, need, waiter)
        return False

    def may_answer(self, waiter: Waiter) -> bool:
        """The same for a broker's answer, before anything of it is kept: it waits only where memory is far exceeded."""
        budget = self.budget
        # Its connection may hold a request that its broker takes no more of before that answer is read.
        if budget.used <= budget.limit * EXCESS or self.used:
            return True
        budget._answers.append(waiter)
        return False

    def put_first(self, large: Large, waiter: Waiter) -> None:
        """The connection has waited for long: it may read on whatever is free, if no other one may."""
        if self.budget.first in (None, large):
            self.budget.first = self.owner.first = large
            self.budget._forget(self.owner, waiter)
            waiter.granted()

    def add(self, large: Large, size: int) -> None:
        """So many bytes more have come into that buffer, and it isn't full."""
        large.charged += size
        self.charge(size)
        if self.budget._queue:
            self.budget.grant(self.owner)  # there may be room for others all the same, until more comes

    def give(self, large: Large) -> None:
        """Give a buffer back."""
        budget, owner = self.budget, self.owner
        budget._give(large)
        if large.is_request:
            self.requests -= 1
            if budget.first is large or budget.active == 1:
                budget._least = 0  # another may be the first
            owner.remove(large)
            budget.remove(large)
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
            budget.grant(self.owner)

    def forget(self, waiter: Waiter) -> None:
        """The connection waits no more."""
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
