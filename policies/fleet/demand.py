# What this process takes of limits that hold over a fleet, and of which it wants more: what whoever deals parts out
# (shares.py) goes by. Rates are smoothed over about a second and told only when they changed.
#
# Knows no line and no clock: whoever looks calls `note` for everything that was used since the last look, and `uses`.

from __future__ import annotations

import math
from typing import Final

from policies.fleet.keys import FleetKey
from policies.fleet.shares import IDLE, Use

LOOK_S: Final = 0.25  # how often to look
SMOOTH_S: Final = 0.5  # forgets as fast as a second's window; at 1.0 who takes less was too much for three cycles
CHANGE: Final = 0.1  # of what was told: less is no news at once …
# … but is told a second later, or others would be dealt too much or too little by as much for as long as it lasts.
RETELL_S: Final = 1.0
RETELL: Final = 0.01
IDLE_S: Final = 2.0  # without traffic for so long: idle
HUNGER_S: Final = 0.5  # who waited so short a time ago wants more: those who wait come in turns


class _Seen:
    __slots__ = ("hungry_at", "last", "rate", "since", "size", "told", "told_at", "topics", "weight")

    def __init__(self, since: float) -> None:
        self.since = self.last = since
        self.size = 0.0  # since the last look
        self.rate = 0.0  # smoothed from 0 on
        self.hungry_at = -math.inf
        self.weight, self.topics = 1.0, 0
        self.told: Use | None = None
        self.told_at = since


class Demand:
    """What was told about every key that is not idle."""

    def __init__(self) -> None:
        self._seen: dict[FleetKey, _Seen] = {}
        self._before = -math.inf

    def note(
        self, key: FleetKey, size: float, hungry: bool, now: float, *, weight: float = 1.0, topics: int = 0
    ) -> None:
        """So much was taken of that limit since the last look; to be left out where it was nothing."""
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen(max(self._before, now - LOOK_S))
        seen.size += size
        seen.last = now
        if hungry:
            seen.hungry_at = now
        seen.weight, seen.topics = weight, topics

    def uses(self, now: float) -> dict[FleetKey, Use]:
        """What is new since the last look."""
        elapsed = min(now - self._before, 10 * LOOK_S)
        self._before = now
        if elapsed <= 0.0:
            return {}
        news: dict[FleetKey, Use] = {}
        for key, seen in list(self._seen.items()):
            if now - seen.last > IDLE_S:
                del self._seen[key]
                if seen.told is not None:
                    news[key] = IDLE
                continue
            span = min(elapsed, now - seen.since) or elapsed
            keep = math.exp(-span / SMOOTH_S)
            seen.rate = keep * seen.rate + (1.0 - keep) * seen.size / span
            seen.size = 0.0
            # A mean that began at 0 is too low by what is missing of its weights.
            rate = max(0.0, seen.rate / -math.expm1(-max(now - seen.since, span) / SMOOTH_S))
            use = Use(rate, now - seen.hungry_at < HUNGER_S, seen.weight, seen.topics)
            change = RETELL if now - seen.told_at >= RETELL_S else CHANGE
            if seen.told is None or _differs(use, seen.told, change):
                seen.told = news[key] = use
                seen.told_at = now
        return news

    def forget(self) -> None:
        """Nobody knows what was told: everything is news."""
        for seen in self._seen.values():
            seen.told = None


def _differs(use: Use, told: Use, change: float) -> bool:
    return use.hungry != told.hungry or use.weight != told.weight or abs(use.rate - told.rate) > change * told.rate
