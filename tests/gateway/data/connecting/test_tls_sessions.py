# Sessions of a broker that is played: threads that know only those that they gave themselves, and have connections in
# turn.

from __future__ import annotations

import random

import pytest

from gateway.data.connecting.tls_sessions import MAX_THREADS, TlsSessions

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


def connect(sessions: TlsSessions[tuple[int, ...]], broker: Broker, times: int) -> list[bool]:
    seen = []
    for _ in range(times):
        offered = sessions.next_session()
        is_taken_up, given = broker.connect(offered)
        if offered is not None:
            sessions.record_resumption(is_taken_up)
        sessions.add_session(given)
        seen.append(is_taken_up)
    return seen


@pytest.mark.parametrize("threads", range(1, MAX_THREADS + 1))
def test_all_are_taken_up_once_each_thread_has_given_one(threads: int) -> None:
    sessions: TlsSessions[tuple[int, ...]] = TlsSessions()
    broker = Broker(threads)
    assert connect(sessions, broker, threads + 50) == [False] * threads + [True] * 50
    broker.began += 1
    assert connect(sessions, broker, threads + 50) == [False] * threads + [True] * 50


def test_others_that_connect_in_between_cost_no_more_than_their_share() -> None:
    chance = random.Random(16)
    sessions: TlsSessions[tuple[int, ...]] = TlsSessions()
    broker = Broker(3)
    seen = []
    for _ in range(3000):
        for _ in range(chance.randrange(5)):
            broker.connect(None)
        seen += connect(sessions, broker, 1)
    assert sum(seen) > len(seen) / 5


def test_more_threads_than_are_found_out_do_no_harm() -> None:
    connect(TlsSessions(), Broker(MAX_THREADS + 1), 100)
