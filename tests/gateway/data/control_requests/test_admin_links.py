# Admin requests that control answers, on real sockets: what is parked behind them, what their large frames cost, and
# what happens when a side goes away in the middle. And the worker's part: bringing the question to whichever control
# is there. Control is played by the test.

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from gateway.channel import (
    PROTOCOL,
    AcceptedConnection,
    AdminAnswer,
    AdminQuery,
    ListenerSettings,
    ProcessChannel,
    SaslIdentity,
    SnapshotBundle,
    TerminatedSasl,
    ThresholdPolicy,
    ToControl,
    ToWorker,
    WorkerHello,
    WorkerSettings,
    decode_for_control,
    decode_for_worker,
)
from gateway.data.relay.links import RelayLink
from gateway.data.session.session import ClientSession
from gateway.data.session.termination import MAX_HELD_S, SaslTermination
from gateway.data.shared import admin_turn
from gateway.data.shared.admin_turn import ControlFailed
from gateway.data.shared.errors import close_reason
from gateway.data.shared.worker_state import AdminQuerier
from gateway.data.sockets.reactor import SocketReactor
from gateway.data.worker.worker import DataWorker
from gateway.listener_names import DEFAULT_LISTENER
from gateway.parent_link import ParentLink
from tests.background import until
from tests.gateway.data.made_settings import made_settings
from tests.gateway.data.play import Play, account, answer, other_answer, other_request, present, request
from tests.gateway.data.relay.stage import Stage, passes, receive_exactly, staged
from tests.gateway.data.session.sasl_frames import authenticate, handshake

MANAGED = (44, 49)
ADMIN = other_request(5, 44, 1, b"a change")
PROBE = other_request(-7, 44, 1, b"may this client?")
CLIENTS = other_answer(5, b"what the client gets")


def managed() -> tuple[Play, list[AdminQuerier]]:
    play = Play(managed_apis=MANAGED)
    asked: list[AdminQuerier] = []
    play.world.control_queries._post_query = asked.append
    return play, asked


def say(stage: Stage, asked: list[AdminQuerier], **said: Any) -> None:
    """Control's answer, as the worker takes it."""
    turn = present(asked.pop().turn)
    stage.play.world.control_queries.pending.pop(turn.token).on_control_answer(AdminAnswer(turn.token, **said))
    stage.reactor.run_deferred(trio.current_time())


async def test_a_request_and_those_behind_it_wait_for_control_and_the_broker() -> None:
    play, asked = managed()
    async with staged(play) as stage:
        _, client, broker = stage.connect()
        await client.send_all(other_request(1) + ADMIN + request(6))
        assert await receive_exactly(broker, len(other_request(1))) == other_request(1)
        assert not asked
        await passes(broker, client, other_answer(1))
        await until(lambda: asked)
        assert asked[0].peer == "test:1"
        say(stage, asked, upstream=PROBE, memo=b"m")
        assert await receive_exactly(broker, len(PROBE)) == PROBE
        await broker.send_all(other_answer(-7))
        await until(lambda: asked)
        say(stage, asked, client=CLIENTS)
        assert await receive_exactly(client, len(CLIENTS)) == CLIENTS
        assert await receive_exactly(broker, len(request(6))) == request(6)
        await passes(broker, client, answer(6))


async def test_a_large_request_and_large_answers_give_their_memory_back() -> None:
    play, asked = managed()
    async with staged(play) as stage:
        _, client, broker = stage.connect()
        frame = other_request(5, 49, 1, bytes(1_000_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, frame + request(6))
            await until(lambda: asked)
            say(stage, asked, upstream=frame, memo=b"m")
            assert await receive_exactly(broker, len(frame)) == frame
        await broker.send_all(other_answer(5, bytes(2_000_000)))
        await until(lambda: asked)
        assert asked[0].turn is not None
        assert len(asked[0].turn.answer) == 2_000_004
        large = other_answer(5, bytes(3_000_000))
        say(stage, asked, client=large)
        assert await receive_exactly(client, len(large)) == large
        assert await receive_exactly(broker, len(request(6))) == request(6)
        await until(lambda: stage.reactor.budget.used_bytes == 0)


@pytest.mark.parametrize("late_s", [0.0, MAX_HELD_S], ids=["in time", "too late"])
async def test_a_session_that_ends_while_requests_wait_here_does_not_end_their_connection(late_s: float) -> None:
    """The client has sent them in its session, and the step by which it authenticates again stands behind them."""
    play = Play(listeners={DEFAULT_LISTENER: ListenerSettings(sasl=TerminatedSasl(("PLAIN",), False))})
    async with staged(play) as stage:
        link, client, broker = stage.connect()
        sasl = link.session.authentication
        assert isinstance(sasl, SaslTermination)
        sasl._adopt_identity(SaslIdentity("User:alice", 3_600_000, None), trio.current_time())
        stage.mute(link)
        await client.send_all(request(7) + handshake("PLAIN"))
        await until(lambda: link.parked.input_slice is not None)
        sasl._session_until = sasl.due_at = trio.current_time() - late_s
        if late_s:
            link.session.hold.drained_at -= 2 * late_s
        stage.end_mute(link)
        if late_s:
            await until(lambda: link.is_closed)
            return
        assert await receive_exactly(broker, len(request(7))) == request(7)
        await broker.send_all(answer(7))
        assert await receive_exactly(client, len(answer(7))) == answer(7)
        assert (await client.receive_some(100))[4:10] == b"\0\0\0\5\0\0"  # SaslHandshake's answer: no error
        await client.send_all(request(8))  # sent behind the session's end
        await until(lambda: link.is_closed)


async def test_a_broker_that_refuses_the_gateway_and_closes_leaves_time_to_tell_the_client() -> None:
    """Of SASL that ends here: brokers close behind such an answer at once."""
    play = Play(listeners={DEFAULT_LISTENER: ListenerSettings(sasl=TerminatedSasl(("PLAIN",), True))})
    asked: list[AdminQuerier] = []
    play.world.control_queries._post_query = asked.append
    async with staged(play) as stage:
        _, client, broker = stage.connect()
        for frame in (handshake("PLAIN"), authenticate(b"\0alice\0secret")):
            await client.send_all(frame)
        await until(lambda: asked)
        say(stage, asked, upstream=PROBE, memo=b"m")
        assert await receive_exactly(broker, len(PROBE)) == PROBE
        await broker.send_all(other_answer(-7))
        await broker.aclose()
        await until(lambda: asked)
        await trio.testing.wait_all_tasks_blocked(0.05)
        refused = other_answer(6, b"the gateway is refused")
        say(stage, asked, client=refused, why="the broker refuses the gateway")
        offered = await receive_exactly(client, 4 + 17)
        assert await receive_exactly(client, len(refused)) == refused
        assert await client.receive_some(1) == b""
        assert offered


@pytest.mark.parametrize("who", ["client", "broker"])
async def test_a_side_that_goes_away_in_the_middle_is_harmless(who: str) -> None:
    play, asked = managed()
    async with staged(play) as stage:
        link, client, broker = stage.connect()
        await client.send_all(ADMIN + request(6))
        await until(lambda: asked)
        turn = present(asked[0].turn)
        await (client if who == "client" else broker).aclose()
        if who == "client":  # its FIN alone may be half a close: it is told the answer
            say(stage, asked, client=CLIENTS)
            with trio.move_on_after(5):
                await broker.receive_some(1000)
            await broker.aclose()
        await until(lambda: link.is_closed)
        assert play.world.control_queries.pending == {}
        link.session.admin_requests.on_control_answer(AdminAnswer(turn.token, client=CLIENTS))
        stage.reactor.run_deferred(trio.current_time())


async def test_a_client_that_half_closes_still_gets_its_answer() -> None:
    play, asked = managed()
    async with staged(play) as stage:
        link, client, broker = stage.connect()
        await client.send_all(ADMIN)
        await until(lambda: asked)
        await client.send_eof()
        say(stage, asked, upstream=PROBE, memo=b"m")
        assert await receive_exactly(broker, len(PROBE)) == PROBE
        await broker.send_all(other_answer(-7))
        await until(lambda: asked)
        say(stage, asked, client=CLIENTS)
        assert await receive_exactly(client, len(CLIENTS)) == CLIENTS
        assert await broker.receive_some(1) == b""
        await broker.aclose()
        await until(lambda: link.is_closed)


async def test_a_link_that_is_drained_answers_first() -> None:
    play, asked = managed()
    async with staged(play) as stage:
        link, client, _ = stage.connect()
        await client.send_all(ADMIN)
        await until(lambda: asked)
        link.drain("disconnects_drain", trio.current_time())
        stage.reactor.run_deferred(trio.current_time())
        assert not link.is_closed
        say(stage, asked, client=CLIENTS)
        assert await receive_exactly(client, len(CLIENTS)) == CLIENTS
        await until(lambda: link.is_closed)


async def test_control_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_turn, "CONTROL_TIMEOUT_S", 0.05)
    play, asked = managed()
    frame = other_request(5, 44, 0, b"\0\0\0\1\2\0\1t\0\0\0\0\0")  # topic t, no key, not only to be validated
    async with staged(play) as stage:
        _, client, broker = stage.connect()
        await client.send_all(frame + request(6))
        await until(lambda: asked)
        assert await receive_exactly(broker, len(request(6))) == request(6)
        head = await receive_exactly(client, 4)
        said = await receive_exactly(client, int.from_bytes(head, "big"))
        assert said[:4] == b"\0\0\0\5"
        assert b"did not answer" in said


# --- the worker -------------------------------------------------------------------------------------------------------


def heeded(reactor: SocketReactor[RelayLink]) -> set[int]:
    """The descriptors for which it gives way."""
    return {fd for fd, handler in reactor._handlers.items() if handler is reactor._slice}


class Staff:
    """A worker without a parent's process, and the other ends of its channels. `own`: the worker's end of the last."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.own: set[int] = set()
        self.controls = 0
        self.nursery = nursery
        ours, theirs = socket.socketpair()
        theirs.close()
        self._link = ParentLink(ours)
        self.worker = DataWorker(self._link, 0)
        self.worker.handle_control_message(WorkerSettings(PROTOCOL, "gw", managed_apis=MANAGED))

    def close(self) -> None:
        self._link._channel.close()
        self.worker.configured_plane.connections.reactor._poller.close()

    async def control(self) -> ProcessChannel[ToWorker, ToControl]:
        """A new control's end, once the worker has said hello."""
        ours, theirs = socket.socketpair()
        self.own = {ours.fileno()}
        self.nursery.start_soon(
            self.worker.serve_channel, ProcessChannel(ours, decode_for_worker), self.nursery, self.controls
        )
        self.controls += 1
        channel = ProcessChannel[ToWorker, ToControl](theirs, decode_for_control)
        self.nursery.start_soon(_run, channel)
        hello, _ = await channel.receive()
        assert isinstance(hello, WorkerHello)
        return channel


@asynccontextmanager
async def staffed() -> AsyncIterator[Staff]:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            staff = Staff(nursery)
            yield staff
            staff.close()
            nursery.cancel_scope.cancel()


async def _run(channel: ProcessChannel[ToWorker, ToControl]) -> None:
    try:
        await channel.run()
    finally:
        channel.close()


async def ask_of(channel: ProcessChannel[ToWorker, ToControl]) -> AdminQuery:
    while True:
        message, _ = await channel.receive()
        if isinstance(message, AdminQuery):
            return message


async def test_a_worker_goes_by_all_orders_from_one_moment_on() -> None:
    async with staffed() as staff:
        world = staff.worker.configured_plane.world
        settings = made_settings(mode="observe", max_buffered_bytes=5 * 2**20, max_client_keys=7)
        staff.worker.handle_control_message(SnapshotBundle((settings, ThresholdPolicy(3, 5e6, mode="observe"))))
        assert (world.settings.mode, world.ledger.max_names) == ("observe", 7)
        assert staff.worker.configured_plane.connections.reactor.budget.limit_bytes == 5 * 2**20
        assert (world.engine._rules.total, world.engine._rules.observes) == (5e6, True)


async def test_a_connection_is_in_a_hurry_from_the_moment_when_it_is_handed_over() -> None:
    async with staffed() as staff:
        connections = staff.worker.configured_plane.connections
        assert not connections.reactor.is_hurried()
        ours, theirs = socket.socketpair()
        with theirs:
            accepted = AcceptedConnection(None, "10.0.0.9:5")
            connections.accept_connection(accepted, ours.detach(), staff.nursery)
            assert connections.opening_count == 1
            assert connections.reactor.is_hurried()
            await trio.testing.wait_all_tasks_blocked()
            assert connections.opening_count == 1
        await until(lambda: not connections.opening_count)
        assert not connections.reactor.is_hurried()


async def test_a_question_goes_to_control_and_again_to_the_next_one() -> None:
    async with staffed() as staff:
        world, reactor = staff.worker.configured_plane.world, staff.worker.configured_plane.connections.reactor
        first = await staff.control()
        assert heeded(reactor) == staff.own
        reactor._slice.ends_at = 1e9
        session = ClientSession(world, 1, account(), trio.current_time())
        session.admin_requests.peer = "10.0.0.9:5"
        session.client.set_principal("User:alice")
        buf = bytearray(ADMIN)
        assert session.on_client_bytes(buf, 0, len(buf), trio.current_time()) == 0
        assert reactor._slice.ends_at == 0.0, "the question waits for the end of the slice"
        assert reactor.is_hurried()
        ask = await ask_of(first)
        await until(lambda: not reactor.is_hurried())
        assert (ask.peer, ask.principal, ask.request) == ("10.0.0.9:5", "User:alice", ADMIN[4:])
        first.close()
        second = await staff.control()
        await until(lambda: heeded(reactor) == staff.own)
        again = await ask_of(second)
        assert (again.token, again.request) == (ask.token, ask.request)
        assert abs(again.until - ask.until) < 0.1
        woken = trio.Event()
        session.admin_requests.wake_link = woken.set
        second.post(AdminAnswer(9999, client=b"nobody waits for this"))
        second.post(AdminAnswer(ask.token, client=CLIENTS))
        await woken.wait()
        assert session.on_client_bytes(buf, 0, len(buf), trio.current_time()) == len(buf)
        assert session.to_client == [CLIENTS]
        third = await staff.control()
        session.close()
        second.close()
        third.close()
        await until(lambda: not heeded(reactor))


async def test_the_second_question_of_a_connection_is_answered_as_the_first() -> None:
    async with staffed() as staff:
        channel = await staff.control()
        session = ClientSession(staff.worker.configured_plane.world, 1, account(), trio.current_time())
        woken: list[None] = []
        session.admin_requests.wake_link = partial(woken.append, None)
        buf = bytearray(ADMIN)
        for number in (1, 2):
            assert session.on_client_bytes(buf, 0, len(buf), trio.current_time()) == 0
            channel.post(AdminAnswer((await ask_of(channel)).token, client=CLIENTS))
            await until(lambda number=number: len(woken) == number)
            assert session.on_client_bytes(buf, 0, len(buf), trio.current_time()) == len(buf)
            assert session.to_client == [CLIENTS]
            session.to_client.clear()
        session.close()
        channel.close()


async def test_a_question_that_two_controls_ended_with_is_not_put_to_a_third(caplog: pytest.LogCaptureFixture) -> None:
    async with staffed() as staff:
        world = staff.worker.configured_plane.world
        channel = await staff.control()
        session = ClientSession(world, 1, account(), trio.current_time())
        woken = trio.Event()
        session.admin_requests.wake_link = woken.set
        buf = bytearray(ADMIN)
        assert session.on_client_bytes(buf, 0, len(buf), trio.current_time()) == 0
        for is_another in (True, False, False):  # only another control, not another channel, counts
            ask = await ask_of(channel)
            channel.close()
            staff.controls -= not is_another
            channel = await staff.control()
            assert ask.request == ADMIN[4:]
        await ask_of(channel)
        assert not woken.is_set()
        channel.close()
        channel = await staff.control()
        await woken.wait()
        assert world.control_queries.pending == {}
        with pytest.raises(ControlFailed, match="ended 2 times while it had this request") as caught:
            session.on_client_bytes(buf, 0, len(buf), trio.current_time())
        assert close_reason(caught.value) == "disconnects_error"
        session.close()
        channel.close()
