# Which of the TLS sessions that a broker gave is offered to it next. Sans-IO.
#
# Each network thread of a Kafka listener has an SSLContext of its own, and so takes up only sessions that it gave
# itself (`num.network.threads`; where that is 1, any session, as servers of other kinds do). Connections go to the
# threads in turn: while nobody else connects, the session of as many connections ago as there are threads is taken up,
# and none of another age. Where others connect in between each is as good as any.

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

MOST: Final = 8  # threads that are found out

T = TypeVar("T")


class Sessions(Generic[T]):
    """Those of one broker."""

    __slots__ = ("_back", "_given", "_missed")

    def __init__(self) -> None:
        self._given: deque[T] = deque(maxlen=MOST)
        self._back = 1  # the session of so many connections ago is offered
        self._missed = 1  # so many were not taken up since one was

    def next(self) -> T | None:
        """The one to offer; None: there is none."""
        return self._given[-min(self._back, len(self._given))] if self._given else None

    def learn(self, is_taken_up: bool) -> None:
        """What has become of the one that `next` gave."""
        if is_taken_up:
            self._missed = 0
            return
        self._missed += 1
        if self._missed == 1:  # until now they were: it has begun anew, or somebody else came in between
            self._given.clear()
        elif len(self._given) >= self._back:
            self._back = self._back % MOST + 1

    def add(self, session: T) -> None:
        """It has given this one."""
        self._given.append(session)
