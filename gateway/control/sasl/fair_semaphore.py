# Bounds how many run at the same time. Waiting owners take turns, so that one of them with many wishes holds
# up no other's. Knows not what for.

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class FairSemaphore:
    """Bounds concurrency; waiting owners take turns. `slots`: how many run at once; `most`: how many of one owner. Each
    owner's entries keep their order.
    """

    def __init__(self, slots: int, most: int) -> None:
        self._free = slots
        self._most = most
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[trio.Event]] = OrderedDict()  # who is next comes first

    @asynccontextmanager
    async def acquire_slot(self, owner: str) -> AsyncIterator[None]:
        """Wait for a slot, which is held for the duration of the `async with`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._free and self._held[owner] < self._most:  # then none waits that might get it
            self._grant_slot(owner)
        else:
            await self._wait_for_slot(owner)
        try:
            yield
        finally:
            self._free += 1
            self._release_owner(owner)
            self._wake_next()

    async def _wait_for_slot(self, owner: str) -> None:
        called = trio.Event()
        line = self._waiting.setdefault(owner, deque())
        line.append(called)
        try:
            await called.wait()
        except trio.Cancelled:
            if called.is_set():  # in the same moment: it belongs to another
                self._free += 1
                self._release_owner(owner)
                self._wake_next()
            else:
                line.remove(called)
                if not line:
                    del self._waiting[owner]
            raise

    def _wake_next(self) -> None:
        owner = next((each for each in self._waiting if self._held[each] < self._most), None)
        if owner is None or not self._free:
            return
        line = self._waiting[owner]
        called = line.popleft()
        if line:
            self._waiting.move_to_end(owner)
        else:
            del self._waiting[owner]
        self._grant_slot(owner)
        called.set()

    def _grant_slot(self, owner: str) -> None:
        self._free -= 1
        self._held[owner] += 1

    def _release_owner(self, owner: str) -> None:
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
