# Questions to all workers at once, and how long they have for an answer: which connections there are. Knows no worker
# but by the function that reaches them, and judges nothing.

from __future__ import annotations

import heapq
import itertools
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import trio

from gateway.channel import ConnectionInfo, FindConnections, FoundConnections

ANSWER_TIMEOUT_S: Final = 3.0
MAX_AT_ONCE: Final = 4


class InquiryResult(NamedTuple):
    """`total`: connections of all workers that answered; `matched`: those that match the query, of which `connections`
    are the first. `missing`: workers that didn't answer in time.
    """

    total: int = 0
    matched: int = 0
    connections: tuple[ConnectionInfo, ...] = ()
    missing: int = 0


class _OpenInquiry:
    """A query that waits for `expected` answers."""

    def __init__(self) -> None:
        self.expected = 0
        self.answers: list[FoundConnections] = []
        self.done = trio.Event()


class WorkerInquiries:
    """Queries to all workers. `post`: sends to all workers that can receive; returns their number."""

    def __init__(self, post: Callable[[FindConnections], int]) -> None:
        self._post = post
        self._open: dict[int, _OpenInquiry] = {}
        # Other ones than a former control's: workers may answer that one's questions yet.
        self._tokens = itertools.count(int.from_bytes(secrets.token_bytes(6)))
        self._places = trio.Semaphore(MAX_AT_ONCE)

    async def find_connections(self, question: FindConnections) -> InquiryResult:
        """The answers of all workers as one; late answers count as missing."""
        token, asked = next(self._tokens), _OpenInquiry()
        async with self._places:
            self._open[token] = asked
            try:
                asked.expected = self._post(msgspec.structs.replace(question, token=token))
                with trio.move_on_after(ANSWER_TIMEOUT_S if asked.expected else 0):
                    await asked.done.wait()
            finally:
                del self._open[token]
        rows = heapq.merge(*(answer.connections for answer in asked.answers), key=_connection_order)
        return InquiryResult(
            sum(answer.total for answer in asked.answers),
            sum(answer.matched for answer in asked.answers),
            tuple(itertools.islice(rows, question.limit)),
            asked.expected - len(asked.answers),
        )

    def record_answer(self, answer: FoundConnections) -> None:
        """A worker has answered."""
        asked = self._open.get(answer.token)
        if asked is not None:
            asked.answers.append(answer)
            if len(asked.answers) >= asked.expected:
                asked.done.set()


def _connection_order(shown: ConnectionInfo) -> tuple[float, float, str]:
    """The same order as in workers."""
    return -shown.muted_s, -shown.age_s, shown.peer
