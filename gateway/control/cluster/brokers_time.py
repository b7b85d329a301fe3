# The time: by the brokers, as far as they can be asked, for machines' clocks differ, and what one gateway does at a
# time it does for all. The exchange knows it, from the times at which brokers append this gateway's own messages.
# Without an exchange, or one whose topic has no such times, it is this machine's clock.
#
# Knows no exchange and no policy.

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

import trio

log = logging.getLogger("gateway.control")

OFF_S: Final = 5.0  # a difference that is worth a line; messages take a second or two
WAIT_S: Final = 10.0  # after a start, until this machine's clock has to do


class BrokersTime:
    """
    Args:
        ask: Unix time by the brokers; None: not known. It may be late by the time that a message takes, never early.
            No function: they can't be asked.
        own: Unix time by this machine.
        since: trio's clock, or that of a test.
    """

    def __init__(
        self,
        ask: Callable[[], float | None] | None,
        own: Callable[[], float] = time.time,
        since: Callable[[], float] = trio.current_time,
    ) -> None:
        self._ask_brokers = ask
        self._own = own
        self._since = since
        self._began: float | None = None
        self._is_off = False

    def now(self) -> float:
        """Unix time."""
        found = None if self._ask_brokers is None else self._ask_brokers()
        own = self._own()
        if found is None:
            return own
        self._log_difference(own - found)
        return found

    @property
    def is_sure(self) -> bool:
        """Whether `now` is the brokers' time, or can't become it soon."""
        if self._ask_brokers is None or self._ask_brokers() is not None:
            return True
        if self._began is None:
            self._began = self._since()
        return self._since() - self._began >= WAIT_S

    def _log_difference(self, ahead_s: float) -> None:
        is_off = abs(ahead_s) > OFF_S
        if is_off and not self._is_off:
            which = "ahead of" if ahead_s > 0 else "behind"
            log.warning(
                "this machine's clock is %.0f s %s the brokers': policies end by the brokers' clock, but"
                " usage records and the history of changes carry the times of this clock: correct it",
                math.fabs(ahead_s), which,
            )  # fmt: skip
        elif self._is_off and not is_off:
            log.info("this machine's clock agrees with the brokers' again")
        self._is_off = is_off
