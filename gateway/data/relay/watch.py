# The clock of one connection: says when its client or its broker takes too long, and ends nothing. Times are the
# link's monotonic clock in seconds.

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from gateway.data.sockets.inbound import HEAD_ROOM
from gateway.data.sockets.reactor import IN

if TYPE_CHECKING:
    from gateway.channel import WorkerSettings
    from gateway.data.sockets.outbound import Outbound
    from gateway.data.sockets.sides import Side

AGE_SPREAD = 0.1  # of limits.max_connection_age, more or less
PATIENCE_S = 2.0  # where memory is short, with connections that hold it and do nothing


class Late(NamedTuple):
    """A connection that has to end: counted as `disconnects_<kind>`, and told in words where there are any."""

    kind: str
    what: str = ""


class Watch:
    """
    Attributes:
        opened_at: the time at which it began.
        read_at, answered_at: the time at which the client, and the broker, was last read.
        frame_at: 0.0, or since when, while the client was being read, no frame of its came to its end.
        ended_at: the time since which there is nothing left but to send the kept bytes, and none of them went.
    """

    __slots__ = (
        "_client",
        "_emptied",
        "_lifetime",
        "_looked_at",
        "_stuck_at",
        "answered_at",
        "ended_at",
        "frame_at",
        "opened_at",
        "read_at",
    )

    def __init__(self, client: Side, now: float) -> None:
        self._client = client
        self.read_at = self.opened_at = self._looked_at = now
        self.answered_at = self.frame_at = self.ended_at = 0.0
        self._stuck_at = 0.0  # since when the client takes nothing, or too little, of what it is sent …
        self._lifetime = 1.0 + random.uniform(-AGE_SPREAD, AGE_SPREAD)  # noqa: S311  no secret
        self._emptied = 0  # … namely while all of that had gone so many times

    def overdue_s(self, max_age_s: float, now: float) -> float:
        """Since when it should have ended; below 0: until it has to. Connections that began together don't end so."""
        return now - self.opened_at - max_age_s * self._lifetime

    def check(
        self, settings: WorkerSettings, now: float, *, is_ending: bool, is_unknown: bool, is_held: bool
    ) -> Late | None:
        """The reason for which the connection has to end, if any; to be asked every few seconds.

        `is_ending`: nothing more is taken from a side. `is_unknown`: it has not authenticated, as it must. `is_held`:
        its request waits here, and not for its broker.
        """
        since, self._looked_at = now - self._looked_at, now
        client = self._client
        if is_ending:  # its peer takes or says nothing more
            return Late("timeout") if now - self.ended_at > settings.frame_timeout_s else None
        if is_unknown:
            most = settings.authentication_timeout_s
            is_late = now - self.opened_at > most
            return Late("unauthenticated", f"not authenticated within {most:g} s") if is_late else None
        if client.is_stuck:
            most = settings.idle_timeout_s
            is_late = self._stuck_s(client.outbound, now) > most
            return Late("slow_reader", f"it did not read an answer within {most:g} s") if is_late else None
        if client.inbound.partial:
            return self._check_frame(settings, since, now)
        is_idle = now - max(self.read_at, self.answered_at) > settings.idle_timeout_s
        return Late("idle") if is_idle and not is_held else None

    def _check_frame(self, settings: WorkerSettings, since: float, now: float) -> Late | None:
        client, partial = self._client, self._client.inbound.partial
        if not self.frame_at:
            self.frame_at = now - min(since, now - self.read_at)
        elif not client.mask & IN or client.inbound.waiting:
            self.frame_at += since  # we don't read it
        elif now - self.frame_at > settings.frame_timeout_s + partial / settings.min_bytes_per_s:
            return Late("slow_request", f"{partial} bytes of a frame in {now - self.frame_at:.0f} s")
        return None

    def _stuck_s(self, outbound: Outbound, now: float) -> float:
        if not outbound.pieces or self._emptied != outbound.emptied or not self._stuck_at:
            self._emptied, self._stuck_at = outbound.emptied, now
        return now - self._stuck_at

    def is_reading(self, now: float) -> bool:
        """Whether the client takes the bytes sent to it; False only where it has taken too little for a while."""
        return self._stuck_s(self._client.outbound, now) < PATIENCE_S

    def check_course(self, timeout_s: float, is_wanted: bool, now: float) -> Late | None:
        """Memory is short (`is_wanted`: this connection's): whether its half-sent frame won't be whole in that time."""
        client, inbound = self._client, self._client.inbound
        large = inbound.large
        if large is None:
            return None
        waits = inbound.waiting
        if not (client.mask & IN or waits) or not is_wanted:
            large.since = 0.0  # bytes that we don't read are not the client's fault …
            return None
        unread = client.unread if waits else 0  # … so where they wait for room they are counted
        come = inbound.partial + unread
        if not large.since:
            large.since, large.came = now, come
        if unread >= HEAD_ROOM:
            return None
        for since, came in ((large.since, large.came), (self.frame_at, 0)):
            age = now - since
            if since and age > PATIENCE_S and (come - came) * timeout_s < (large.size - came) * age:
                text = f"others wait for memory, and of {large.size - came} bytes {come - came} came in {age:.1f} s"
                return Late("slow_request", text)
        return None
