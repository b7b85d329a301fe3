# What each request in flight is owed, in the order in which a Kafka client expects its answers.
#
# A broker answers the requests of one connection strictly in order, and so do we, with answers of our own among the
# upstream's: a FIFO of entries, not a map by correlation id (a client may reuse one). acks=0 requests are owed nothing
# and never enter. An entry is a plain tuple, because one is made for every request; its first two places are
# (correlation id, kind), what follows belongs to the kind and to whoever pushed it.

from __future__ import annotations

from collections import deque
from typing import Any

PASS = 0  # the upstream answer goes to the client as it is
PRODUCE = 1  # error codes are read, rejected partitions merged in
REWRITE = 2  # addresses in it are replaced
CAP = 3  # ApiVersions: maxima lowered
STREAM = 4  # walked while it streams through, for addresses at its end
SASL = 5  # tells whether the broker has accepted the principal
OURS = 6  # the gateway asked; the client never sees it
LOCAL = 7  # answered by the gateway, the frame is in the entry
ADMIN = 8  # the gateway asked, for an admin request of the client's that it answers itself

Entry = tuple[Any, ...]


class Pending:
    """FIFO of entries; `entries` is read directly by the hot path."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self.entries)

    def answer_locally(self, frame: bytes, out: list[Any]) -> None:
        """Send our own answer: at once if nothing is owed before it, else in its turn."""
        if self.entries:
            self.entries.append((-1, LOCAL, frame))
        else:
            out.append(frame)

    def release(self, out: list[Any]) -> None:
        """Let out every local answer at the head: what it waited for has been answered."""
        entries = self.entries
        while entries and entries[0][1] == LOCAL:
            out.append(entries.popleft()[2])
