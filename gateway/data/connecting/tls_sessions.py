# Which of the TLS sessions that a broker gave is offered to it next. Sans-IO.
#
# Each network thread of a Kafka listener has an SSLContext of its own, and so takes up only sessions that it gave
# itself (`num.network.threads`; where that is 1, any session, as servers of other kinds do). Connections go to the
# threads in turn: while nobody else connects, the session of as many connections ago as there are threads is taken up,
# and none of another age. Where others connect in between each is as good as any.

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

MAX_THREADS: Final = 8  # threads that are found out

T = TypeVar("T")


class TlsSessions(Generic[T]):
    """Those of one broker."""

    __slots__ = ("_given", "_missed_count", "_offered_age")

    def __init__(self) -> None:
        self._given: deque[T] = deque(maxlen=MAX_THREADS)
        self._offered_age = 1  # the session of so many connections ago is offered
        self._missed_count = 1  # so many were not taken up since one was

    def next_session(self) -> T | None:
        """The one to offer; None: there is none."""
        return self._given[-min(self._offered_age, len(self._given))] if self._given else None

    def record_resumption(self, is_taken_up: bool) -> None:
        """What has become of the one that `next` gave."""
        if is_taken_up:
            self._missed_count = 0
            return
        self._missed_count += 1
        if self._missed_count == 1:  # until now they were: it has begun anew, or somebody else came in between
            self._given.clear()
        elif len(self._given) >= self._offered_age:
            self._offered_age = self._offered_age % MAX_THREADS + 1

    def add_session(self, session: T) -> None:
        """It has given this one."""
        self._given.append(session)
