# Which of the TLS sessions that a broker gave is offered to it next. Sans-IO.
#
# Each network thread of a Kafka listener has an SSLContext of its own, and so takes up only sessions that it gave
# itself (`num.network.threads`; where that is 1, any session, as servers of other kinds do). Connections go to the
# threads in turn: while no other client connects, the session of as many connections ago as there are threads is taken
# up, and none of another age. Where others connect in between each is as good as any.

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

MAX_THREADS: Final = 8  # threads that are found out

T = TypeVar("T")


class TlsSessions(Generic[T]):
    """TLS sessions of one broker that later connections can resume."""

    __slots__ = ("_given", "_missed_count", "_offered_age")

    def __init__(self) -> None:
        self._given: deque[T] = deque(maxlen=MAX_THREADS)
        self._offered_age = 1  # offers the session of this many connections ago
        self._missed_count = 1  # offers in a row that were not taken up

    def next_session(self) -> T | None:
        """The session to offer to the broker; None: there is none."""
        return self._given[-min(self._offered_age, len(self._given))] if self._given else None

    def record_resumption(self, is_taken_up: bool) -> None:
        """Record whether the broker resumed the session from `next_session`."""
        if is_taken_up:
            self._missed_count = 0
            return
        self._missed_count += 1
        if self._missed_count == 1:  # until now they were: the broker restarted, or another client came in between
            self._given.clear()
        elif len(self._given) >= self._offered_age:
            self._offered_age = self._offered_age % MAX_THREADS + 1

    def add_session(self, session: T) -> None:
        """The broker has issued this session."""
        self._given.append(session)
