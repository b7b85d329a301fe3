# Whether other gateways can be heard, as the exchange's state shows over time. Knows no limit and no message.

from __future__ import annotations

import logging
import math
from typing import Final

import trio

log = logging.getLogger("gateway.fleet")

LISTEN_CYCLES: Final = 1.25  # every gateway that lives has reported in this time
MOST_LISTEN_S: Final = 3.0
KNOWN_S: Final = 5.0  # not reached for this long since the start: it is away


class PeerReachability:
    """`on_exchange_state` is called when the exchange comes and goes, `check_deadlines` now and then; both
    return whether others can be heard from now on, None: nothing changed. `now` is seconds on a monotonic clock.

    Attributes:
        decided: set when others can be heard, or none can.
        down_since: when they could be heard last; None: they can.

    Args:
        patient: workers have shares to go on with, so `decided` waits for the exchange, however long that takes.
    """

    def __init__(self, cycle_s: float, now: float, *, patient: bool) -> None:
        self.decided = trio.Event()
        self.down_since: float | None = None
        self._listen_s = min(LISTEN_CYCLES * cycle_s, MOST_LISTEN_S)
        self._patient = patient
        self._began = now
        self._listens_until = math.inf

    def on_exchange_state(self, up: bool, now: float) -> bool | None:
        """Our own messages come back, or no longer do. Peers are known only after each had time to report."""
        if not up:
            return self._mark_lost(now)
        if self.decided.is_set():
            return self._mark_reached(now)
        self._listens_until = now + self._listen_s
        return None

    def check_deadlines(self, now: float) -> bool | None:
        if now >= self._listens_until:
            return self._mark_reached(now)
        if not self.decided.is_set() and now - self._began >= KNOWN_S and self._listens_until == math.inf:
            return self._mark_lost(now)
        return None

    def _mark_reached(self, now: float) -> bool:
        if self.down_since is not None:
            log.info("limits hold over all gateways again, after %.0f s", now - self.down_since)
        self.down_since, self._listens_until = None, math.inf
        self.decided.set()
        return True

    def _mark_lost(self, now: float) -> bool | None:
        self._listens_until = math.inf
        if self.down_since is not None:
            return None
        self.down_since = now
        if not self._patient:
            self.decided.set()
        return False
