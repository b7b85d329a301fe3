# Tasks that answer workers' questions about clients' requests (channel.Ask): the one way to start them. A bounded
# number runs at once, of it a part for one owner, so that no client takes the place of all others. An error in one ends
# its client's connection (internal_errors.py) and no other task.
#
# Knows no protocol: the answer is made by the function that is given.

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

import trio

from gateway.channel import AdminAnswer, AdminQuery
from gateway.control.internal_errors import InternalErrors

Reply = Callable[[AdminAnswer], None]


class QueryAnswerer(Protocol):
    """Answers queries of one kind."""

    def submit_query(self, ask: AdminQuery, reply: Reply, /) -> None: ...


class QueryRouter:
    """Gives each query of a worker to the part that answers it. `sasl`: by listener, where SASL ends at the gateway."""

    def __init__(self, admin: QueryAnswerer, sasl: Mapping[str, QueryAnswerer]) -> None:
        self._admin = admin
        self._sasl = sasl

    def submit_query(self, ask: AdminQuery, reply: Reply) -> None:
        if not ask.mechanism and ask.request:
            self._admin.submit_query(ask, reply)
        elif ask.listener in self._sasl:
            self._sasl[ask.listener].submit_query(ask, reply)


class TaskShare(NamedTuple):
    """The owner of a query, and how many of that owner's may run at once with it."""

    owner: str
    most: float


class QueryTasks:
    """Runs queries in tasks. `run` must be running; before that, and beyond the bounds, no task is started."""

    def __init__(
        self,
        where: str,
        answer: Callable[[AdminQuery], Awaitable[AdminAnswer]],
        share_of: Callable[[AdminQuery], TaskShare],
        errors: InternalErrors,
        *,
        most: int,
        most_bytes: float = math.inf,
    ) -> None:
        """`where`: one of internal_errors.PLACES. `most` tasks, with `most_bytes` in their questions."""
        self._where = where
        self._answer = answer
        self._share_of = share_of
        self._errors = errors
        self._most = most
        self._most_bytes = most_bytes
        self._nursery: trio.Nursery | None = None
        self._running: Counter[str] = Counter()  # by owner
        self._bytes = 0

    async def run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def submit_query(self, ask: AdminQuery, reply: Reply) -> bool:
        """Answer the query in a task that outlives the worker: a change that has begun is completed when its client has
        gone. False: there are too many; the query is dropped, and its worker informs the client in time.
        """
        share, size = self._share_of(ask), _query_bytes(ask)
        if (
            self._nursery is None
            or self._running.total() >= self._most
            or self._running[share.owner] >= share.most
            or self._bytes + size > self._most_bytes
        ):
            return False
        self._running[share.owner] += 1
        self._bytes += size
        self._nursery.start_soon(self._run_task, ask, reply, share.owner)
        return True

    async def _run_task(self, ask: AdminQuery, reply: Reply, owner: str) -> None:
        answer = internal_error_answer(ask.token)
        try:
            with self._errors.contain_errors(self._where, ask.peer):
                if time.monotonic() < ask.until:  # else its worker has answered the client already
                    answer = await self._answer(ask)
            if time.monotonic() < ask.until:
                with self._errors.contain_errors(self._where, ask.peer):
                    reply(answer)
        finally:
            self._bytes -= _query_bytes(ask)
            self._running[owner] -= 1
            if not self._running[owner]:
                del self._running[owner]


def internal_error_answer(token: int) -> AdminAnswer:
    """The answer after an internal error: the client's connection ends, and its log line says why."""
    return AdminAnswer(token, closes="error", why="an internal error of the gateway, see its log")


def _query_bytes(ask: AdminQuery) -> int:
    return len(ask.request) + len(ask.memo) + len(ask.answer)
