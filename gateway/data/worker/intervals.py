# A worker's intervals: when one ends, and all that control has not put on disk yet. Each is numbered, and kept until
# control confirms it; a new control is sent them again.

from __future__ import annotations

import itertools
import time
from collections import deque

import trio

from gateway.channel import UsageInterval
from gateway.data.shared.ledger import UsageLedger
from gateway.data.shared.uplink import ControlUplink
from gateway.data.worker.lowest_factor import LowestFactor
from policies.meters.meter import SECOND_S

INTERVAL_S = SECOND_S
MAX_UNSPOOLED = 120  # intervals kept for control; beyond it the current one simply lasts longer, nothing is lost
MAX_UNSPOOLED_ROWS = 250_000  # of these intervals, likewise
CLOCK_SLACK_S = 0.5  # by which the wall clock and the monotonic one may differ over an interval before it was set


class UnspooledIntervals:
    """The worker's intervals until they are on disk. `lowest_factor`: the storage factor that is enforced, for the
    record. `unspooled`: intervals that control has not confirmed.
    """

    def __init__(self, boot: str, number: int, ledger: UsageLedger, uplink: ControlUplink) -> None:
        self.lowest_factor = LowestFactor()
        self.unspooled: deque[UsageInterval] = deque()
        self._boot = boot
        self._number = number
        self._ledger = ledger
        self._uplink = uplink
        self._seq = itertools.count()
        self._began = self._second_ended = trio.current_time()
        self._start_ms = _wall_ms()
        self._spooled = trio.Event()

    def end_interval(self) -> None:
        """End the interval, unless it has only begun or control has too many to confirm."""
        now = trio.current_time()
        kept = sum(len(interval.rows) for interval in self.unspooled)
        has_room = len(self.unspooled) < MAX_UNSPOOLED and kept < MAX_UNSPOOLED_ROWS
        if now - self._second_ended > INTERVAL_S / 2 and has_room:
            self._second_ended = now
            self.close_interval(final=False)

    def close_interval(self, final: bool) -> None:
        """End the interval and begin the next one. `final`: there is no next one."""
        rows, counts = self._ledger.close_interval()
        start_ms, end_ms = self._next_bounds()
        factor = self.lowest_factor.collect_lowest()
        if rows or final:
            interval = UsageInterval(
                self._boot, self._number, next(self._seq), start_ms, end_ms, rows, counts, final, factor
            )
            self.unspooled.append(interval)
            self._uplink.post(interval)
        elif counts and self._uplink.is_connected:
            # Not part of the accounts, so it uses up no sequence number and is not kept.
            self._uplink.post(UsageInterval(self._boot, self._number, -1, start_ms, end_ms, (), counts))
        else:
            self._ledger.counts = counts  # for a control that comes later

    def _next_bounds(self) -> tuple[int, int]:
        """Begin a new interval; returns start and end of the one before, in Unix milliseconds. It never ends before its
        start.
        """
        now = trio.current_time()
        began, self._began = self._began, now
        start_ms, end_ms = self._start_ms, _wall_ms()
        self._start_ms = end_ms
        lasted_ms = round((now - began) * 1000)
        if end_ms < start_ms or abs(end_ms - start_ms - lasted_ms) > CLOCK_SLACK_S * 1000:
            start_ms = end_ms - lasted_ms  # the clock was set: how long it lasted is still known
        return start_ms, end_ms

    # --- until they are on disk ---------------------------------------------------------------------------------------

    def resend_unspooled(self) -> None:
        """Send the unconfirmed intervals to a new control process."""
        for interval in self.unspooled:
            self._uplink.post(interval)

    def confirm_spooled(self, seq: int) -> None:
        """All intervals up to that one are on disk."""
        while self.unspooled and self.unspooled[0].seq <= seq:
            self.unspooled.popleft()
        self._spooled.set()
        self._spooled = trio.Event()

    async def wait_all_confirmed(self) -> None:
        while self.unspooled:
            await self._spooled.wait()


def _wall_ms() -> int:
    return round(time.time() * 1000)
