# What every part of control gets: the facts that it may follow or publish, and what all parts share.

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.config import Settings
from gateway.control.facts import ControlFacts
from gateway.control.internal_errors import InternalErrors
from gateway.control.metrics import GatewayMetrics
from gateway.parent_link import ParentLink


@dataclass(frozen=True)
class ControlContext:
    """
    Attributes:
        link: the parent: listening sockets, workers' channels, the end.
        was_up: an earlier control had everything up: clients are at work, and workers have snapshots.
        unix_time, monotonic: seconds; workers go by the same monotonic clock.
    """

    link: ParentLink
    facts: ControlFacts
    metrics: GatewayMetrics
    errors: InternalErrors
    was_up: bool = False
    unix_time: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic

    @property
    def settings(self) -> Settings:
        """The configuration in force."""
        return self.facts.configuration.latest

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        return round(self.unix_time() * 1000)
