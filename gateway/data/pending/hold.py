# The reasons why the requests of one connection wait, and what ends that early: times and flags that the link and the
# parts of a session share. Decides nothing.

from __future__ import annotations

import math

from policies.client_timeouts import max_response_wait_s, pipelines_requests

MAX_MUTE_S = 10.0  # in one go; behind it the next request is asked about again
MAX_WAIT_S = 15.0  # of a request that waits for what may last, if its client waits as long


class RequestHold:
    """Times are the link's monotonic clock in seconds; 0.0: none.

    Attributes:
        held_until: the time until which the request at the head of the unread input must wait.
        muted_until: the time until which Produce requests must.
        arrived_at: while requests are handled that had to wait: since when they are here.
        mute_reason: the reason of the limit that said so last, for people; "": there was none.
        paused_since: the time since which the request at the head is held because a disk is full.
        drained_at: the time at which the client's socket was last seen empty: no unread request is older.
        is_client_gone: the link saw, after a pause, that the client has closed. Requests that it doesn't wait for any
            more are discarded: it has sent them again elsewhere, and they would be written twice. acks=0 is forwarded.
        is_draining: no new requests: they are discarded unforwarded (acks=0 passes), so that clients send them
            elsewhere.
        patience_s: no request that is owed an answer waits longer, in seconds: by what the client says of itself, and
            no longer than the operator allows.
        sends_ahead: the client sends on while its requests wait: it isn't read far ahead.
        timeout_ms: that in the client's Produce requests; None: it was not looked at yet.
        is_memory_short: other connections wait for memory: requests that are held here without an end have to go.
    """

    __slots__ = (
        "_max_s",
        "_software",
        "arrived_at",
        "drained_at",
        "held_until",
        "is_client_gone",
        "is_draining",
        "is_memory_short",
        "mute_reason",
        "muted_until",
        "patience_s",
        "paused_since",
        "sends_ahead",
        "timeout_ms",
    )

    def __init__(self, now: float) -> None:
        self.held_until = self.muted_until = self.paused_since = self.arrived_at = 0.0
        self._max_s = math.inf
        self._software: tuple[str, str] | None = None
        self.timeout_ms: int | None = None
        self.sends_ahead = False
        self._update_patience()
        self.drained_at = now
        self.mute_reason = ""
        self.is_client_gone = self.is_draining = self.is_memory_short = False

    @property
    def is_abandoned(self) -> bool:
        """The client doesn't wait for answers to new requests."""
        return self.is_client_gone or self.is_draining

    @property
    def wait_deadline(self) -> float:
        """No request that is owed an answer is held beyond this time."""
        return self.drained_at + self.patience_s

    def end_pause(self, now: float) -> bool:
        """Writes are no longer paused. True: a request was waiting for that."""
        if self.paused_since and self.held_until:
            self.held_until = now
            return True
        return False

    def set_longest_hold(self, max_s: float) -> None:
        """`max_s`: the longest that the operator lets a request be held, in seconds."""
        self._max_s = max_s
        self._update_patience()

    def set_software(self, software: tuple[str, str] | None) -> None:
        """The client's software, name and version; None: the client doesn't say."""
        self._software = software
        self.sends_ahead = pipelines_requests(software)
        self._update_patience()

    def set_timeout(self, timeout_ms: int) -> None:
        """The timeout in the client's Produce requests, in milliseconds."""
        self.timeout_ms = timeout_ms
        self._update_patience()

    def _update_patience(self) -> None:
        self.patience_s = min(max_response_wait_s(self._software, self.timeout_ms), self._max_s)
