# The reactor stays with its sockets while there is traffic. Here there is some without an end, from a thread, and a
# slice that no test would survive: whatever trio's own tasks can't wait for has to get its turn all the same.

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
import trio.lowlevel

from gateway.data.relay.links import RelayLink
from gateway.data.sockets import reactor as reactors
from gateway.data.sockets.reactor import IN, SelectorPoller, SocketReactor
from gateway.data.sockets.slices import EventHandler

LONG_S = 30.0  # what has to wait for the end of such a slice is late


class Echo(EventHandler):
    """The owner of a socket that is always ready: each byte that it reads is sent once more, by a thread."""

    def __init__(self, reactor: SocketReactor[RelayLink]) -> None:
        self.near, self._far = socket.socketpair()
        self.near.setblocking(False)
        self.events = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.link, self.on_event = self, self._echo
        reactor.register(self.near, IN, self)

    def handle_event(self, fd: int, events: int, now: float) -> None:
        self.on_event(events, now)

    def _echo(self, events: int, now: float) -> None:
        self.events += 1
        self.near.send(self.near.recv(4096))

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._far.send(self._far.recv(4096))

    @contextmanager
    def playing(self) -> Iterator[None]:
        self._far.send(b"x")
        self._thread.start()
        began = time.monotonic()
        try:
            yield
        finally:
            self._is_over.set()
            self.near.send(b"x")
            self._thread.join()
            self._far.close()
            self.near.close()
        assert time.monotonic() - began < LONG_S, "nobody was given way to"


@pytest.fixture(params=["epoll", "selector"])
def any_poller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "selector":
        monkeypatch.setattr(reactors, "new_poller", SelectorPoller)


@asynccontextmanager
async def busy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[SocketReactor[RelayLink], Echo]]:
    """A reactor in the midst of a long slice, or about to begin it."""
    monkeypatch.setattr(reactors, "SLICE_S", LONG_S)
    bugs: list[Exception] = []
    reactor: SocketReactor[RelayLink] = SocketReactor(2**20, lambda _, bug: bugs.append(bug))
    echo = Echo(reactor)
    with echo.playing():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reactor.run_timers)
            yield reactor, echo
            nursery.cancel_scope.cancel()
    assert bugs == []


@pytest.mark.usefixtures("any_poller")
async def test_a_message_for_one_of_trio_s_tasks_ends_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    async with busy(monkeypatch) as (reactor, echo), trio.open_nursery() as nursery:
        ours, theirs = trio.socket.socketpair()
        with ours, theirs:
            reactor.watch_channel(ours)
            for turn in range(3):
                said = threading.Timer(0.05, theirs._sock.send, [bytes([turn])])  # type: ignore[attr-defined]
                said.start()
                if not turn:
                    nursery.start_soon(reactor.run)
                assert await ours.recv(10) == bytes([turn])
                said.join()
            assert echo.events
            reactor.unwatch_channel(ours)
            reactor.unwatch_channel(ours)
        nursery.cancel_scope.cancel()


class Muted:
    """Something that waits for a time, after which slices may be as short as this test needs to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended = trio.Event()
        self._monkeypatch = monkeypatch

    def on_timer(self, now: float) -> None:
        self._monkeypatch.setattr(reactors, "SLICE_S", 0.0)
        self.ended.set()


class Plain:
    """Something else that waits for a time."""

    def __init__(self) -> None:
        self.times = 0

    def on_timer(self, now: float) -> None:
        self.times += 1


async def test_a_timer_ends_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    async with busy(monkeypatch) as (reactor, _), trio.open_nursery() as nursery:
        muted = Muted(monkeypatch)
        reactor.call_at(trio.current_time() + 0.05, muted)  # type: ignore[arg-type]
        nursery.start_soon(reactor.run)
        await muted.ended.wait()
        nursery.cancel_scope.cancel()


async def test_a_timer_that_a_link_sets_within_the_slice_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with busy(monkeypatch) as (reactor, echo), trio.open_nursery() as nursery:
        muted, on_event = Muted(monkeypatch), echo.on_event

        def mute(events: int, now: float) -> None:
            on_event(events, now)
            if echo.events == 20:
                reactor.call_at(now + 0.05, muted)  # type: ignore[arg-type]

        echo.on_event = mute
        nursery.start_soon(reactor.run)
        await muted.ended.wait()
        nursery.cancel_scope.cancel()


async def test_a_deadline_of_one_of_trio_s_tasks_ends_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    async with busy(monkeypatch) as (reactor, echo), trio.open_nursery() as nursery:
        nursery.start_soon(reactor.run)
        for _ in range(3):
            await trio.sleep(0.2)
        assert echo.events
        nursery.cancel_scope.cancel()


async def test_many_timers_share_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reactors, "BRIEF_S", 0.1)
    async with busy(monkeypatch) as (reactor, _), trio.open_nursery() as nursery:
        slices, run_slice = [0], reactor._run_slice

        def counted() -> None:
            slices[0] += 1
            run_slice()

        monkeypatch.setattr(reactor, "_run_slice", counted)
        now, muted, last = trio.current_time(), [Plain() for _ in range(100)], Muted(monkeypatch)
        for place, each in enumerate([*muted, last]):
            reactor.call_at(now + 0.01 + place / 10_000, each)  # type: ignore[arg-type]
        nursery.start_soon(reactor.run)
        await last.ended.wait()
        assert all(each.times == 1 for each in muted)
        assert slices[0] < 10
        nursery.cancel_scope.cancel()


async def test_who_gives_way_ends_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trio.Event()
    async with busy(monkeypatch) as (reactor, echo), trio.open_nursery() as nursery:
        on_event = echo.on_event

        def ask(events: int, now: float) -> None:
            on_event(events, now)
            if echo.events == 20:
                asked.set()
                reactor.end_slice()

        echo.on_event = ask
        nursery.start_soon(reactor.run)
        await asked.wait()
        nursery.cancel_scope.cancel()


async def test_slices_are_brief_while_a_task_is_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    async with busy(monkeypatch) as (reactor, _), trio.open_nursery() as nursery:
        reactor.is_hurried = lambda: True
        nursery.start_soon(reactor.run)
        for _ in range(5):
            await trio.lowlevel.checkpoint()  # each after a slice
        nursery.cancel_scope.cancel()
