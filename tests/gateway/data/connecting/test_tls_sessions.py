# Sessions of a broker that is played: threads that know only those that they gave themselves, and have connections in
# turn.

from __future__ import annotations

import random

import pytest

from gateway.data.connecting.tls_sessions import MOST, Sessions

pytestmark = pytest.mark.usefixtures("no_circles")


class Broker:
    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.began = 0  # how often it was started
        self._turn = 0
        self._count = 0

    def connect(self, offered: tuple[int, ...] | None) -> tuple[bool, tuple[int, ...]]:
        """Whether it takes the session up, and the one that it gives."""
        thread = self._turn = (self._turn + 1) % self.threads
        self._count += 1
        return offered is not None and offered[:2] == (self.began, thread), (self.began, thread, self._count)


def connect(sessions: Sessions[tuple[int, ...]], broker: Broker, times: int) -> list[bool]:
    seen = []
    for _ in range(times):
        offered = sessions.next()
        is_taken_up, given = broker.connect(offered)
        if offered is not None:
            sessions.learn(is_taken_up)
        sessions.add(given)
        seen.append(is_taken_up)
    return seen


@pytest.mark.parametrize("threads", range(1, MOST + 1))
def test_all_are_taken_up_once_each_thread_has_given_one(threads: int) -> None:
    sessions: Sessions[tuple[int, ...]] = Sessions()
    broker = Broker(threads)
    assert connect(sessions, broker, threads + 50) == [False] * threads + [True] * 50
    broker.began += 1
    assert connect(sessions, broker, threads + 50) == [False] * threads + [True] * 50


def test_others_that_connect_in_between_cost_no_more_than_their_share() -> None:
    chance = random.Random(16)
    sessions: Sessions[tuple[int, ...]] = Sessions()
    broker = Broker(3)
    seen = []
    for _ in range(3000):
        for _ in range(chance.randrange(5)):
            broker.connect(None)
        seen += connect(sessions, broker, 1)
    assert sum(seen) > len(seen) / 5


def test_more_threads_than_are_found_out_do_no_harm() -> None:
    connect(Sessions(), Broker(MOST + 1), 100)
