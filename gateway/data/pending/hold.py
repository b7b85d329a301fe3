# The reasons why the requests of one connection wait, and what ends that early: times and flags that the link and the
# parts of a session share. Decides nothing.

from __future__ import annotations

import math

from policies.client_timeouts import patience_s, sends_ahead

MAX_MUTE_S = 10.0  # in one go; behind it the next request is asked about again
MAX_WAIT_S = 15.0  # of a request that waits for what may last, if its client waits as long


class Hold:
    """Times are the link's monotonic clock in seconds; 0.0: none.

    Attributes:
        until: the time until which the request at the head of the unread input must wait.
        mute_until: the time until which Produce requests must.
        arrived: while requests are handled that had to wait: since when they are here.
        why: the reason of the limit that said so last, for people; "": there was none.
        paused_since: the time since which the request at the head is held because a disk is full.
        drained_at: the time at which the client's socket was last seen empty: no unread request is older.
        client_gone: the link saw, after a pause, that the client has closed. Requests that it doesn't wait for any more
            are discarded: it has sent them again elsewhere, and they would be written twice. acks=0 is forwarded.
        draining: no new requests: they are discarded unforwarded (acks=0 passes), so that clients send them elsewhere.
        patience_s: no request that is owed an answer waits longer, in seconds: by what the client says of itself, and
            no longer than the operator allows.
        sends_ahead: the client sends on while its requests wait: it isn't read far ahead.
        timeout_ms: that in the client's Produce requests; None: it was not looked at yet.
        memory_short: other connections wait for memory: requests that are held here without an end have to go.
    """

    __slots__ = (
        "_max_s",
        "_software",
        "arrived",
        "client_gone",
        "drained_at",
        "draining",
        "memory_short",
        "mute_until",
        "patience_s",
        "paused_since",
        "sends_ahead",
        "timeout_ms",
        "until",
        "why",
    )

    def __init__(self, now: float, max_s: float = math.inf) -> None:
        """`max_s`: the operator's bound on how long a request is held."""
        self.until = self.mute_until = self.paused_since = self.arrived = 0.0
        self._max_s = max_s
        self._software: tuple[str, str] | None = None
        self.timeout_ms: int | None = None
        self.sends_ahead = False
        self._settle()
        self.drained_at = now
        self.why = ""
        self.client_gone = self.draining = self.memory_short = False

    @property
    def is_over(self) -> bool:
        """The client doesn't wait for answers to new requests."""
        return self.client_gone or self.draining

    @property
    def latest(self) -> float:
        """No request that is owed an answer waits longer than this."""
        return self.drained_at + self.patience_s

    def resume(self, now: float) -> bool:
        """Writes are not paused any more. True: there is a request that waited for that."""
        if self.paused_since and self.until:
            self.until = now
            return True
        return False

    def introduce(self, software: tuple[str, str] | None) -> None:
        """The client's software, name and version; None: it doesn't say."""
        self._software = software
        self.sends_ahead = sends_ahead(software)
        self._settle()

    def expect(self, timeout_ms: int) -> None:
        """The timeout in a Produce request of the client."""
        self.timeout_ms = timeout_ms
        self._settle()

    def _settle(self) -> None:
        self.patience_s = min(patience_s(self._software, self.timeout_ms), self._max_s)
