# When a worker's periodic tasks may run seldom: while it has had no traffic for a while. They sleep in an IdleWatch,
# which is woken before events, timers and messages from control are handled, so that the first request of a burst finds
# limits as up to date as any other.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import trio

QUIET_S: Final = 3.0  # in which no byte was counted, and none of a client was kept
# Between two turns of a periodic task while the worker is idle. With CLAIM_S less than claims are valid for.
IDLE_INTERVAL_S: Final = 0.9


class IdleWatch:
    """Lets periodic tasks sleep longer while there is no traffic.

    Args:
        count_bytes: the bytes of all traffic so far.
        is_holding: whether bytes of clients are kept: of requests that wait, or are not whole.
        catch_up: called with the time when the worker stops being idle, before anything else is done.
    """

    def __init__(
        self, count_bytes: Callable[[], int], is_holding: Callable[[], bool], catch_up: Callable[[float], None]
    ) -> None:
        self._count_bytes = count_bytes
        self._is_holding = is_holding
        self._catch_up = catch_up
        self._counted = 0
        self._active_at = -math.inf
        self._sleepers = 0
        self._woken = trio.Event()

    def is_idle(self, now: float) -> bool:
        """Whether nothing has come for QUIET_S."""
        counted = self._count_bytes()
        if counted != self._counted or self._is_holding():
            self._counted, self._active_at = counted, now
        return now - self._active_at >= QUIET_S

    async def sleep(self, interval_s: float) -> None:
        """Sleep for `interval_s`, or while the worker is idle until there is something to read, for IDLE_INTERVAL_S at
        most.
        """
        began = trio.current_time()
        if self.is_idle(began):
            woken = self._woken
            self._sleepers += 1
            with trio.move_on_after(IDLE_INTERVAL_S):
                await woken.wait()
            if not woken.is_set():
                self._sleepers -= 1
            interval_s += began - trio.current_time()  # no more turns than usual, however many events there are
        await trio.sleep(max(0.0, interval_s))

    def wake_sleepers(self) -> None:
        """There is something to read, or to be told to control: tasks that sleep because the worker is idle go on."""
        if self._sleepers:
            self._sleepers = 0
            self._woken.set()
            self._woken = trio.Event()
            self._catch_up(trio.current_time())
