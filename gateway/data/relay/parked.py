# Input of a client that can't be handled yet, since the request at its head has to wait: kept, charged, and how old the
# oldest of it is.

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gateway.data.shared.budget import Account, Large

LOOK_S = 0.5  # between two looks at how much has arrived
MAX_LOOKS = 128

Input = tuple[bytearray, int, int, "Large | None"]  # buf[from:to], and whose buffer it is: a frame's own, or None


class Head(NamedTuple):
    """The request at the head of what is held. `reason`: that of the limit for which it waits, "" where it waits for
    something else. `since`: so long.
    """

    reason: str = ""
    since: float = 0.0


class Parked:
    """At most one piece: `held`.

    Attributes:
        rounds: how many times it was put back since more was read behind it.
        since: the time since which something is held without a break; 0.0: nothing is.
        head: the request at its head.
    """

    __slots__ = ("_account", "_arrived", "_handled", "head", "held", "rounds", "since")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.held: Input | None = None
        self.rounds = 0
        self.since = 0.0
        self.head = Head()
        self._handled = 0  # bytes of what was held, since the first
        # Times, the earliest first, and how much had arrived then, counted as in `_handled`: what is behind that in the
        # stream came later.
        self._arrived: deque[tuple[float, int]] = deque()

    def put(self, buf: bytearray, pos: int, end: int, large: Large | None) -> None:
        """Keep buf[pos:end]: `large` itself, or a copy."""
        if large is None:
            buf, pos, end = bytearray(memoryview(buf)[pos:end]), 0, end - pos
            self._account.charge(end)
        self.held = buf, pos, end, large

    def note(self, reason: str, now: float) -> None:
        """The request at its head begins to wait, for that reason."""
        self.since = self.since or now
        self.head = Head(reason, now)

    def waited(self, size: int, head: Head, now: float) -> float:
        """Of `size` bytes that were held some were handled, if any: how long the request at their head has waited; 0.0
        if it waits on.
        """
        left = self.held[2] - self.held[1] if self.held is not None else 0
        if left == size:
            self.head = Head(head.reason or self.head.reason, head.since)
            return 0.0
        if not left:
            self.since = 0.0
        return now - head.since

    def take(self) -> Input:
        """The held bytes, to be handled; a large buffer is the caller's from here on."""
        assert self.held is not None
        held, self.held = self.held, None
        if held[3] is None:
            self._account.discharge(held[2])
        return held

    def age(self, size: int, unread: int, drained_at: float, now: float) -> float:
        """Of `size` bytes that were held some were handled: the time since which the oldest one left has waited.

        `unread`: bytes in the client's socket behind them, or more. `drained_at`: that time as it was before. A client
        that pipelines into a steady delay keeps something here for ever, each request but for a while.
        """
        left = self.held[2] - self.held[1] if self.held is not None else 0
        self._handled += size - left
        arrived = self._arrived
        while arrived and arrived[0][1] <= self._handled:  # what is left came after that
            drained_at = max(drained_at, arrived.popleft()[0])
        if left and (not arrived or (now >= arrived[-1][0] + LOOK_S and len(arrived) < MAX_LOOKS)):
            arrived.append((now, self._handled + left + unread))
        return drained_at

    def close(self) -> None:
        """Give the memory back."""
        if self.held is not None:
            large = self.take()[3]
            if large is not None:
                self._account.give(large)
