# The reasons why the requests of one connection wait, and what ends that early: times and flags that the link and the
# parts of a session share. Decides nothing.

from __future__ import annotations

MAX_MUTE_S = 10.0  # franz-go gives a request up after 20 s, others after 30 s (docs/clients.md) …
MAX_WAIT_S = 15.0  # … so that no request waits longer than this in all, those queued before it included
PATIENT_WAIT_S = 50.0  # librdkafka gives up after 60 s (socket.timeout.ms), and sends ahead what its socket takes


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
        patience_s: no request that is owed an answer waits longer, in seconds.
        memory_short: other connections wait for memory: requests that are held here without an end have to go.
    """

    __slots__ = (
        "arrived",
        "client_gone",
        "drained_at",
        "draining",
        "memory_short",
        "mute_until",
        "patience_s",
        "paused_since",
        "until",
        "why",
    )

    def __init__(self, now: float) -> None:
        self.until = self.mute_until = self.paused_since = self.arrived = 0.0
        self.patience_s = MAX_WAIT_S
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
        """The client's software, name and version. That of librdkafka, or of its bindings, says so in either."""
        if software is not None and any("rdkafka" in each for each in software):
            self.patience_s = PATIENT_WAIT_S

    @property
    def is_patient(self) -> bool:
        """The client waits for longer than others, and what it has sent ahead is not to be read until then."""
        return self.patience_s > MAX_WAIT_S
