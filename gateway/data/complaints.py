# Log lines that strangers can cause: so many of a kind within a while, and then how many more there were. Knows no
# clock and no log: `now` is in seconds, and what is to be said goes to `log`.

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PERIOD_S: Final = 10.0
BURST: Final = 50  # lines of one kind within a period; of what is the same for everybody (a broker is away) one will do
MAX_KINDS: Final = 1000  # they are ours, not strangers'; brokers' ids are in some


class _Kind:
    __slots__ = ("left_out", "said", "since")

    def __init__(self, now: float) -> None:
        self.since = now
        self.said = self.left_out = 0


class Complaints:
    """`log` is called with a level and one line."""

    def __init__(self, log: Callable[[str, str], None]) -> None:
        self._log = log
        self._kinds: dict[str, _Kind] = {}

    def say(self, kind: str, text: str, now: float, burst: int = BURST) -> None:
        """Log that as a warning, unless so many of its kind were logged within this period."""
        self.tell(now)
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            return
        known = self._kinds.setdefault(kind, _Kind(now))
        if known.said < burst:
            known.said += 1
            self._log("warning", text)
        else:
            known.left_out += 1

    def tell(self, now: float) -> None:
        """Say what was left out of periods that are over."""
        for kind, known in list(self._kinds.items()):
            if now - known.since >= PERIOD_S:
                del self._kinds[kind]
                if known.left_out:
                    self._log("warning", f"{known.left_out:,} more of the same in {PERIOD_S:g} s: {kind}")
