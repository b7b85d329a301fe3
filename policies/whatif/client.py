# One client's traffic to one topic of a broker, where a replay decides otherwise than was decided when it was recorded:
# what of it is in already, and what it holds back and sends again. Kafka's producers are alike in this: they keep a few
# requests in flight, wait as long as the answer says, send these again, and give up delivery.timeout.ms after the first
# time; what they could not send yet stays in their queue.
#
# Bytes are a fluid here: the record doesn't say which batch a repeat was of, so all that is pending has the same share
# in it. Knows no policy and no clock.

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from policies.whatif.rows import ReplayRow, StreamKey

IN_FLIGHT: Final = 5  # requests: max.in.flight.requests.per.connection


class ReplayStream:
    """`pending`: bytes that were rejected in the record and have not come again. `replayed`: those of them that got in
    here, so that their repeats fall away. `held`: bytes that it wants in here, and that are not. `muted_until`:
    seconds; it sends nothing before. `waits_since`: since when its request has waited for room, 0.0: it doesn't.
    `request`: bytes of one of its requests; `messages` in a byte. `outcome`: that of its requests when they pass.
    `exempt`: nothing limits it. `is_limited`: limits that delay do.
    """

    __slots__ = (
        "_queue",
        "_tried",
        "denied_since",
        "exempt",
        "held",
        "is_limited",
        "key",
        "messages",
        "muted_until",
        "outcome",
        "pending",
        "replayed",
        "request",
        "waits_since",
    )  # fmt: skip

    def __init__(self, key: StreamKey, exempt: bool = False) -> None:
        self.key = key
        self.exempt = exempt
        self.outcome = "accepted"
        self.is_limited = False
        self.pending = self.replayed = self.held = 0.0
        self.muted_until = 0.0
        self.denied_since = self.waits_since = 0.0
        self.request = 1.0
        self.messages = 0.0  # per byte
        self._queue: deque[list[float]] = deque()  # since when, bytes; oldest first
        self._tried = 0.0  # of `held`, its oldest: rejected at least once

    @property
    def replayed_share(self) -> float:
        """The share of a recorded repeat that has got in here already."""
        return min(1.0, self.replayed / self.pending) if self.pending > 0 else 0.0

    def record_owed(self, owed: float) -> None:
        """Note that in the record `owed` more bytes were rejected than came again (whatever their outcome then)."""
        self.pending = max(0.0, self.pending + owed)
        self.replayed = max(0.0, min(self.replayed, self.pending))

    def learn_requests(self, rows: Sequence[ReplayRow]) -> None:
        """Learn the size and outcome of its requests."""
        for row in rows:
            if row.requests and row.bytes:
                self.request = row.bytes / row.requests
                self.messages = row.messages / row.bytes
            if row.outcome in ("accepted", "unacknowledged"):
                self.outcome = row.outcome

    def hold_bytes(self, size: float, tried: float, now: float) -> None:
        """It wants these in; `tried` of them were rejected before."""
        if size <= 0.0:
            return
        if self._queue and now - self._queue[-1][0] < 1.0:
            self._queue[-1][1] += size
        else:
            self._queue.append([now, size])
        self.held += size
        self._tried += tried

    def attempt_bytes(self, most: float) -> tuple[float, float]:
        """Bytes that it sends in vain, and how many of them not for the first time."""
        size = min(self.held, most)
        again = min(size, self._tried)
        self._tried = max(self._tried, size)
        return size, again

    def release_bytes(self, most: float) -> tuple[float, float]:
        """Bytes of `most` that it gets in, and how many of them had been rejected before."""
        size = min(self.held, most)
        self._drop_queued(size)
        again = min(size, self._tried)
        self._tried -= again
        return size, again

    def expire_held(self, before: float) -> float:
        """Give up the bytes that it has held since before that time; returns those that were never sent at all."""
        old = 0.0
        while self._queue and self._queue[0][0] < before:
            old += self._queue[0][1]
            self._drop_queued(self._queue[0][1])
        tried = min(old, self._tried)
        self._tried -= tried
        return old - tried

    @property
    def untried_bytes(self) -> float:
        """The bytes that it holds and has never sent."""
        return max(0.0, self.held - self._tried)

    def _drop_queued(self, size: float) -> None:
        left = size
        while self._queue and left >= self._queue[0][1]:
            left -= self._queue.popleft()[1]
        if self._queue:
            self._queue[0][1] -= left
        self.held = max(0.0, self.held - size) if self._queue else 0.0
