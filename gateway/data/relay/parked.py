# Input of a client that can't be handled yet, since the request at its head has to wait: kept, charged, and how old the
# oldest of it is.

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gateway.data.shared.budget import FrameBuffer, MemoryAccount

SAMPLE_S = 0.5  # between two looks at how much has arrived
MAX_SAMPLES = 128

InputSlice = tuple[
    bytearray, int, int, "FrameBuffer | None"
]  # buf[from:to], and whose buffer it is: a frame's own, or None


class ParkedHead(NamedTuple):
    """The request at the head of the parked input. `reason`: that of the limit for which it waits; "" where it waits
    for something else. `since`: when its wait began.
    """

    reason: str = ""
    since: float = 0.0


class ParkedInput:
    """Input that has to wait: at most one piece, `input_slice`.

    Attributes:
        read_ahead_rounds: how many times it was parked again because more was read behind it.
        since: the time since which input has been parked without a break; 0.0: nothing is parked.
        head: the request at its head.
    """

    __slots__ = ("_account", "_arrival_samples", "_handled_bytes", "head", "input_slice", "read_ahead_rounds", "since")

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self.input_slice: InputSlice | None = None
        self.read_ahead_rounds = 0
        self.since = 0.0
        self.head = ParkedHead()
        self._handled_bytes = 0  # bytes of what was held, since the first
        # Times, the earliest first, and how much had arrived then, counted as in `_handled_bytes`: what is behind that
        # in the stream came later.
        self._arrival_samples: deque[tuple[float, int]] = deque()

    def park_input(self, buf: bytearray, pos: int, end: int, large: FrameBuffer | None) -> None:
        """Park buf[pos:end]: `large` itself, or a copy."""
        if large is None:
            buf, pos, end = bytearray(memoryview(buf)[pos:end]), 0, end - pos
            self._account.charge_bytes(end)
        self.input_slice = buf, pos, end, large

    def begin_wait(self, reason: str, now: float) -> None:
        """The request at the head begins to wait, for that reason."""
        self.since = self.since or now
        self.head = ParkedHead(reason, now)

    def waited_s(self, size: int, head: ParkedHead, now: float) -> float:
        """Some of the `size` parked bytes were handled, if any: how many seconds the request at their head has waited;
        0.0 if it still waits.
        """
        left = self.input_slice[2] - self.input_slice[1] if self.input_slice is not None else 0
        if left == size:
            self.head = ParkedHead(head.reason or self.head.reason, head.since)
            return 0.0
        if not left:
            self.since = 0.0
        return now - head.since

    def pop_input(self) -> InputSlice:
        """Hand out the parked bytes; a large buffer then belongs to the caller."""
        assert self.input_slice is not None
        held, self.input_slice = self.input_slice, None
        if held[3] is None:
            self._account.release_bytes(held[2])
        return held

    def oldest_since(self, size: int, unread: int, drained_at: float, now: float) -> float:
        """Some of the `size` parked bytes were handled: the time since which the oldest one left has waited.

        `unread`: bytes in the client's socket behind them, or more. `drained_at`: that time as it was before. A client
        that pipelines into a steady delay always has something parked, each request for a short time only.
        """
        left = self.input_slice[2] - self.input_slice[1] if self.input_slice is not None else 0
        self._handled_bytes += size - left
        arrived = self._arrival_samples
        while arrived and arrived[0][1] <= self._handled_bytes:  # what is left came after that
            drained_at = max(drained_at, arrived.popleft()[0])
        if left and (not arrived or (now >= arrived[-1][0] + SAMPLE_S and len(arrived) < MAX_SAMPLES)):
            arrived.append((now, self._handled_bytes + left + unread))
        return drained_at

    def close(self) -> None:
        """Release the memory."""
        if self.input_slice is not None:
            large = self.pop_input()[3]
            if large is not None:
                self._account.release_buffer(large)
