# The clock of one connection: says when its client or its broker takes too long, and ends nothing. Times are the
# link's monotonic clock in seconds.

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from gateway.data.sockets.inbound import HEAD_ROOM
from gateway.data.sockets.reactor import IN

if TYPE_CHECKING:
    from gateway.data.relay.sides import LinkSide
    from gateway.data.sockets.outbound import OutboundBuffer
    from gateway.worker_config import WorkerLimits

AGE_SPREAD = 0.1  # of limits.max_connection_age, more or less
PATIENCE_S = 2.0  # where memory is short, with connections that hold it and do nothing


class LateConnection(NamedTuple):
    """A connection that has to end, counted as `disconnects_<kind>`. `text`: the reason for the log, if any."""

    kind: str
    text: str = ""


class ProgressWatch:
    """
    Attributes:
        opened_at: the time at which it began.
        read_at, answered_at: the time at which the client, and the broker, was last read.
        frame_since: 0.0, or since when, while the client was being read, no frame of its came to its end.
        closing_since: the time since which there is nothing left but to send the kept bytes, and none of them went.
    """

    __slots__ = (
        "_checked_at",
        "_client",
        "_empty_count",
        "_lifetime",
        "_unread_since",
        "answered_at",
        "closing_since",
        "frame_since",
        "opened_at",
        "read_at",
    )

    def __init__(self, client: LinkSide, now: float) -> None:
        self._client = client
        self.read_at = self.opened_at = self._checked_at = now
        self.answered_at = self.frame_since = self.closing_since = 0.0
        self._unread_since = 0.0  # since when the client takes nothing, or too little, of what it is sent …
        self._lifetime = 1.0 + random.uniform(-AGE_SPREAD, AGE_SPREAD)  # noqa: S311  no secret
        self._empty_count = 0  # … at that value of `empty_count`

    def overdue_s(self, max_age_s: float, now: float) -> float:
        """How many seconds ago the connection should have ended by its age; below 0: the time left. Connections that
        began together get different times.
        """
        return now - self.opened_at - max_age_s * self._lifetime

    def check_progress(
        self, limits: WorkerLimits, now: float, *, is_ending: bool, is_unknown: bool, is_held: bool
    ) -> LateConnection | None:
        """Why the connection has to end, if it does; call it every few seconds.

        `is_ending`: one side takes or sends nothing more. `is_unknown`: it has not authenticated, as it must.
        `is_held`: its request waits here, and not for its broker.
        """
        since, self._checked_at = now - self._checked_at, now
        client = self._client
        if is_ending:  # its peer takes or says nothing more
            return LateConnection("timeout") if now - self.closing_since > limits.frame_timeout else None
        if is_unknown:
            most = limits.authentication_timeout
            is_late = now - self.opened_at > most
            return LateConnection("unauthenticated", f"not authenticated within {most:g} s") if is_late else None
        if client.has_unsent:
            most = limits.idle_timeout
            is_late = self._unread_s(client.outbound, now) > most
            if not is_late:
                return None
            return LateConnection("slow_reader", f"the client did not read an answer within {most:g} s")
        if client.inbound.partial_bytes:
            return self._check_frame_time(limits, since, now)
        is_idle = now - max(self.read_at, self.answered_at) > limits.idle_timeout
        return LateConnection("idle") if is_idle and not is_held else None

    def _check_frame_time(self, limits: WorkerLimits, since: float, now: float) -> LateConnection | None:
        client, partial = self._client, self._client.inbound.partial_bytes
        if not self.frame_since:
            self.frame_since = now - min(since, now - self.read_at)
        elif not client.event_mask & IN or client.inbound.waits_for_memory:
            self.frame_since += since  # we don't read it
        elif now - self.frame_since > limits.frame_timeout + partial / limits.min_rate:
            return LateConnection("slow_request", f"{partial} bytes of a frame in {now - self.frame_since:.0f} s")
        return None

    def _unread_s(self, outbound: OutboundBuffer, now: float) -> float:
        if not outbound.pieces or self._empty_count != outbound.empty_count or not self._unread_since:
            self._empty_count, self._unread_since = outbound.empty_count, now
        return now - self._unread_since

    def is_client_reading(self, now: float) -> bool:
        """Whether the client takes the bytes sent to it; False only where it has taken too little for a while."""
        return self._unread_s(self._client.outbound, now) < PATIENCE_S

    def check_frame_progress(self, timeout_s: float, is_wanted: bool, now: float) -> LateConnection | None:
        """While memory is short: a reason to end the connection if its half-sent frame won't be complete within
        `timeout_s`. `is_wanted`: others need the memory that this connection holds.
        """
        client, inbound = self._client, self._client.inbound
        large = inbound.large_frame
        if large is None:
            return None
        waits = inbound.waits_for_memory
        if not (client.event_mask & IN or waits) or not is_wanted:
            large.short_since = 0.0  # bytes that we don't read are not the client's fault …
            return None
        unread = client.unread_bytes if waits else 0  # … so where they wait for room they are counted
        come = inbound.partial_bytes + unread
        if not large.short_since:
            large.short_since, large.bytes_when_short = now, come
        if unread >= HEAD_ROOM:
            return None
        for since, came in ((large.short_since, large.bytes_when_short), (self.frame_since, 0)):
            age = now - since
            if since and age > PATIENCE_S and (come - came) * timeout_s < (large.size - came) * age:
                text = f"others wait for memory: {come - came} of {large.size - came} bytes in {age:.1f} s"
                return LateConnection("slow_request", text)
        return None
