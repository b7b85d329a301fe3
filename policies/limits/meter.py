# The one-minute rate of Kafka's own meters (Yammer and Dropwizard Metrics: EWMA.oneMinuteEWMA), so that a threshold
# means the number that an operator sees as BytesInPerSec OneMinuteRate.
#
# Knows neither clock nor topic: whoever owns a meter calls `tick` once per TICK_S. The hot path adds to `uncounted`
# directly, because a call per request and meter would cost more than all the arithmetic here.

from __future__ import annotations

import math
from typing import Final

TICK_S: Final = 5.0  # Dropwizard's interval
ALPHA: Final = 1.0 - math.exp(-TICK_S / 60.0)  # one minute
DECAY: Final = 1.0 - ALPHA  # what a tick without traffic leaves of a rate


class Meter:
    """Bytes per second as a one-minute EWMA.

    `uncounted`: bytes since the last tick; below zero when more was taken back than came in.
    `rate`: bytes per second as of the last tick, never below zero. `started`: whether there was a tick yet.
    """

    __slots__ = ("rate", "started", "uncounted")

    def __init__(self) -> None:
        self.uncounted = 0
        self.rate = 0.0
        self.started = False

    def mark(self, size: int) -> None:
        self.uncounted += size

    def tick(self, ticks: int = 1) -> None:
        """Apply `ticks` due ticks. What came in since the last one belongs to the first of them, as in Dropwizard."""
        rate = self.uncounted / TICK_S
        self.uncounted = 0
        if self.started:
            rate = self.rate + ALPHA * (rate - self.rate)
        else:
            self.started = True  # the first tick is the instant rate: no slow start from 0
        rate = max(rate, 0.0)  # bytes of an earlier interval were taken back: below 0 would be credit for later
        self.rate = rate if ticks == 1 else rate * DECAY ** (ticks - 1)

    def after(self, ticks: int) -> float:
        """The rate as it will be `ticks` ticks from now if nothing more comes in."""
        first = self.uncounted / TICK_S
        if self.started:
            first = self.rate + ALPHA * (first - self.rate)
        return max(0.0, first) * DECAY ** (ticks - 1)
