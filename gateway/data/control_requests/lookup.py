# Names of topic ids (Produce v13 on) that this worker doesn't know: it asks the broker for them on the client's own
# connection, which needs no rights beyond the client's. The request waits meanwhile, but not for long.
#
# Where the broker doesn't send a name in time, or doesn't know it, the request goes on: partitions without a name are
# refused then, since their topic may be a protected one, and each may have a limit. With acks=0 a client gets no answer
# so: the broker is asked again and again before that.

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gateway.data.pending.hold import MAX_WAIT_S
from protocol.rewriting import rewrite

if TYPE_CHECKING:
    from gateway.data.shared.ledger import UsageLedger

LOOKUP_S = 1.0  # for the broker to answer
METADATA_VERSION = 12  # of Metadata: the first that can be asked by topic id
_FIRST_CORRELATION = 0x7FFF0000  # correlation ids of our own requests; a few of them, in turn
_CORRELATION_COUNT = 0x8000


class LookupWait(NamedTuple):
    """Wait until `until`. `query`: the frame to send to the broker, with the lookup's correlation id; b"": none."""

    until: float
    query: bytes


class TopicIdLookup:
    """Looks up names of topic ids on one connection, for one request at a time. `correlation`: of the last query."""

    __slots__ = ("_again_at", "_is_answered", "_ledger", "_until", "correlation")

    def __init__(self, ledger: UsageLedger) -> None:
        self._ledger = ledger
        self.correlation = _FIRST_CORRELATION
        self._until = 0.0  # of all questions for the request in hand; 0.0: there are none
        self._again_at = 0.0
        self._is_answered = False  # the last question

    def wait_for_names(self, missing: frozenset[bytes], acks: int, is_over: bool, now: float) -> LookupWait | None:
        """How long the request at the head has to wait for the names of these ids; None: it doesn't wait any longer, or
        there are no such ids. `is_over`: its client doesn't wait for the answer.
        """
        if not missing:
            self._until = 0.0
            return None
        question = b""
        if not self._until:
            self._until = now + (LOOKUP_S if acks else MAX_WAIT_S)
            question = self._make_query(missing, now)
        elif self._is_answered or now >= self._again_at:
            if acks or is_over or now >= self._until:
                self._ledger.count_event("topic_ids_unknown")
                self._until = 0.0
                return None
            if self._is_answered:  # the answer to the next question is not another one at once
                self._again_at, self._is_answered = now + LOOKUP_S, False
            else:
                question = self._make_query(missing, now)
        return LookupWait(self._again_at, question)

    def _make_query(self, missing: frozenset[bytes], now: float) -> bytes:
        self.correlation = _FIRST_CORRELATION + (self.correlation + 1) % _CORRELATION_COUNT
        self._again_at, self._is_answered = now + LOOKUP_S, False
        return rewrite.metadata_by_id_request(self.correlation, METADATA_VERSION, sorted(missing))

    def on_broker_answer(self, correlation: int) -> bool:
        """The broker has answered, and will say no more. False: the answer is to a query that was given up."""
        is_awaited = bool(self._until) and correlation == self.correlation
        self._is_answered = self._is_answered or is_awaited
        return is_awaited
