# What was read of a client and can't be handled yet, since the request at its head has to wait: kept, charged, and how
# old the oldest of it is.

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.data.budget import Account, Large

Input = tuple[bytearray, int, int, "Large | None"]  # buf[from:to], and whose buffer it is: a frame's own, or None


class Parked:
    """At most one piece: `held`. `rounds`: how many times it was put back since more was read behind it."""

    __slots__ = ("_account", "_behind", "_emptied_at", "held", "rounds")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.held: Input | None = None
        self.rounds = 0
        self._behind = 0  # of what was held when the socket was last seen empty: bytes not handled yet …
        self._emptied_at = 0.0  # … and when that was; 0.0: all of it is handled

    def put(self, buf: bytearray, pos: int, end: int, large: Large | None) -> None:
        """Keep buf[pos:end]: `large` itself, or a copy."""
        if large is None:
            buf, pos, end = bytearray(memoryview(buf)[pos:end]), 0, end - pos
            self._account.charge(end)
        self.held = buf, pos, end, large

    def take(self) -> Input:
        """What is held, to be handled; a large buffer is the caller's from here on."""
        assert self.held is not None
        held, self.held = self.held, None
        if held[3] is None:
            self._account.discharge(held[2])
        return held

    def age(self, size: int, drained_at: float, now: float) -> float:
        """Of `size` bytes that were held some were handled: since when the oldest that is left has waited.

        `drained_at`: what was said of that before. A client that pipelines into a steady delay keeps something here for
        ever, each request but for a moment.
        """
        left = self.held[2] - self.held[1] if self.held is not None else 0
        self._behind -= size - left
        if self._emptied_at and self._behind <= 0:  # what is left came after that
            drained_at, self._emptied_at = max(drained_at, self._emptied_at), 0.0
        if left and not self._emptied_at:
            self._behind, self._emptied_at = left, now
        return drained_at

    def close(self) -> None:
        """Give the memory back."""
        if self.held is not None:
            large = self.take()[3]
            if large is not None:
                self._account.give(large)
