# Hostile peers on real sockets: several links in one reactor, with readers that are slow or never read, ends of every
# kind (close, reset, half-close) at any time, mutes, large frames, and little memory for all of it.
#
# Invariants: what arrives arrives whole and in order; every link ends; all memory is given back; the reactor sees no
# unexpected error and doesn't run hot. What the fuzzing and reading have found has a named test below.

from __future__ import annotations

import math
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import pytest
import trio
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway.data.pending.pending import PRODUCE
from gateway.data.relay.links import RelayLink
from gateway.data.sockets.reactor import IN
from gateway.data.sockets.slices import EventHandler
from protocol import api
from protocol.rewriting import rewrite
from tests.background import until
from tests.gateway.data.play import Play, answer, other_answer, other_request, request, size_of
from tests.gateway.data.relay.stage import Stage, receive_exactly, staged

SOON_S = 15  # what has to happen happens in milliseconds
TALKATIVE = ("polite", "half-close", "malformed", "broker resets")  # they say all they have to say
KINDS = (*TALKATIVE, "polite", "close", "reset", "deaf")


# --- peers ------------------------------------------------------------------------------------------------------------


class Peers:
    """A client and a broker at the far ends of one link, who do what a random number says."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.link, self.client, self.broker = stage.connect(small=rng.random() < 0.5)
        self.kind = rng.choice(KINDS)
        self.requests = [self._request(i) for i in range(1, rng.randint(2, 12))]
        self.to_broker: list[int] = []
        self.to_client: list[int] = []
        self._asked = False
        if rng.random() < 0.4:
            self.link.session.hold.muted_until = trio.current_time() + rng.choice((0.005, 0.05))

    def _request(self, correlation: int) -> bytes:
        rng = self.rng
        kind = rng.randrange(5)
        if kind == 0:
            return other_request(correlation, body=bytes(rng.choice((0, 100, 60_000))))
        if kind == 1:
            return other_request(correlation, key=api.METADATA, version=1, body=bytes(4))
        if kind == 2:
            return other_request(correlation, key=api.API_VERSIONS, version=9)
        return request(
            correlation, values=(bytes(rng.choice((1, 1000, 50_000, 300_000))),), acks=rng.choice((0, -1, -1))
        )

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._quietly, self._ask)
            nursery.start_soon(self._quietly, self._listen)
            nursery.start_soon(self._quietly, self._serve)

    async def _quietly(self, play: Callable[[], Awaitable[None]]) -> None:
        try:
            await play()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError, OSError):
            pass  # whoever speaks to a peer that has gone

    async def _pause(self) -> None:
        for _ in range(self.rng.choice((0, 0, 1, 5))):
            await trio.lowlevel.checkpoint()

    async def _ask(self) -> None:
        rng = self.rng
        data = b"".join(self.requests)
        if self.kind == "malformed":
            data += b"GET / HTTP/1.1\r\n\r\n"
        stop = len(data) if self.kind in TALKATIVE else rng.randint(0, len(data))
        with trio.move_on_after(0.2 if self.kind == "deaf" else math.inf):  # a deaf client may never get rid of it all
            while data and stop > 0:
                piece = data[: rng.choice((11, 5000, 100_000))]
                data = data[len(piece) :]
                stop -= len(piece)
                await self.client.send_all(piece)
                await self._pause()
        self._asked = True
        self._leave_content()
        if self.kind == "half-close":
            await self.client.send_eof()
        elif self.kind in ("close", "reset", "deaf"):
            for _ in range(rng.choice((0, 10, 50))):
                await trio.lowlevel.checkpoint()
            self._end(self.client, reset=self.kind == "reset")

    async def _listen(self) -> None:
        if self.kind == "deaf":
            return
        await self._read(self.client, self.to_client, 4, self._heard)
        self.client.socket.close()

    def _heard(self, _frame: bytes) -> bytes:
        self._leave_content()
        return b""

    def _leave_content(self) -> None:
        """Close when everything was sent and answered, as most clients do."""
        if self.kind in ("polite", "broker resets") and self._asked and len(self.to_client) == len(self._owed):
            self.client.socket.close()

    @property
    def _owed(self) -> list[int]:
        return [i for i, one in enumerate(self.requests, 1) if _acks(one) != b"\0\0"]

    async def _serve(self) -> None:
        await self._read(self.broker, self.to_broker, 8, self._answered)
        self.broker.socket.close()

    def _answered(self, frame: bytes) -> bytes:
        key, _, correlation = struct.unpack_from(">hhi", frame, 4)
        if key == api.PRODUCE:
            return answer(correlation) if _acks(frame) == b"\xff\xff" else b""
        if key == api.METADATA:
            return metadata(correlation, self.rng.choice((0, 3000)))
        return other_answer(correlation, bytes(self.rng.choice((2, 2, 400_000))))

    async def _read(
        self, stream: trio.SocketStream, numbers: list[int], at: int, react: Callable[[bytes], bytes]
    ) -> None:
        """Whole frames until the end; their correlation ids are noted, what `react` says is sent back."""
        rng, data = self.rng, bytearray()
        while piece := await stream.receive_some(rng.choice((3000, 30_000, 200_000))):
            data += piece
            while len(data) >= 4 and len(data) >= (size := struct.unpack_from(">i", data)[0] + 4):
                frame = bytes(data[:size])
                del data[:size]
                if frame != rewrite.NO_TOPICS_REQUEST:  # the gateway's own, behind acks=0
                    numbers.append(struct.unpack_from(">i", frame, at)[0])
                reply = react(frame)
                if reply:
                    await stream.send_all(reply)
                if self.kind == "broker resets" and stream is self.broker and rng.random() < 0.2:
                    self._end(stream, reset=True)
                    return
            await self._pause()

    @staticmethod
    def _end(stream: trio.SocketStream, *, reset: bool) -> None:
        if reset:
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.socket.close()

    def check(self) -> None:
        owed = self._owed
        forwarded = [i for i, one in enumerate(self.requests, 1) if struct.unpack_from(">hh", one, 4) != (18, 9)]
        assert self.to_broker == sorted(self.to_broker)
        assert self.to_client == sorted(self.to_client)
        assert set(self.to_broker) <= set(forwarded)
        assert set(self.to_client) <= set(owed)
        if self.kind == "polite":
            assert self.to_client == owed
        if self.kind in ("polite", "malformed"):
            assert self.to_broker == forwarded


def _acks(frame: bytes) -> bytes:
    """Of a Produce request v9 by client `app`; "" of any other."""
    return frame[19:21] if frame[4:6] == b"\0\0" else b""


def metadata(correlation: int, topics: int) -> bytes:
    """A Metadata answer v1: no brokers, and so many topics (error, name, is_internal, no partitions)."""
    rows = topics * (struct.pack(">hh", 0, 6) + b"clicks\0" + bytes(4))
    return other_answer(correlation, struct.pack(">iii", 0, 0, topics) + rows)


@settings(phases=[Phase.explicit, Phase.generate])  # a smaller seed is no smaller play
@given(seed=st.integers(0, 2**32))
def test_hostile_peers_leave_nothing_behind(seed: int) -> None:
    async def play() -> None:
        rng = Random(seed)
        async with staged(max_buffered_bytes=rng.choice((100_000, 700_000, 2**26))) as stage:
            everyone = [Peers(stage, rng.randrange(2**32)) for _ in range(rng.randint(1, 5))]
            with trio.move_on_after(10) as limit:
                async with trio.open_nursery() as nursery:
                    for one in everyone:
                        nursery.start_soon(one.run)
                await until(lambda: not stage.reactor.links)
            stuck = [
                (
                    one.kind,
                    len(one.requests),
                    one.to_broker,
                    one.to_client,
                    one.link.is_closed,
                    stage.reactor.budget.used_bytes,
                )
                for one in everyone
            ]
            assert not limit.cancelled_caught, stuck
            for one in everyone:
                one.check()

    trio.run(play)


# --- what was found ---------------------------------------------------------------------------------------------------


class Count(EventHandler):
    """How often each socket of a link was reported ready."""

    def __init__(self, stage: Stage, link: RelayLink) -> None:
        self.client = self.upstream = 0
        self.link = link
        self._client_fd = link.client.sock.fileno()
        stage.reactor._handlers[self._client_fd] = stage.reactor._handlers[link.upstream.sock.fileno()] = self

    def handle_event(self, fd: int, events: int, now: float) -> None:
        if fd == self._client_fd:
            self.client += 1
        else:
            self.upstream += 1
        self.link.shortcut.handle_event(fd, events, now)


async def quietly(send: Callable[[bytes], Awaitable[None]], data: bytes) -> None:
    """Send to a peer that may go away meanwhile, or from a socket that this test closes."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
        await send(data)


async def some_time() -> None:
    """Long enough for a reactor that runs hot to handle thousands of events."""
    await trio.sleep(0.1)


def say_at_once(stream: trio.SocketStream, data: bytes) -> None:
    """Send with no checkpoint: the reactor sees it together with what the test does next."""
    assert os.write(stream.socket.fileno(), data) == len(data)


def reset(stream: trio.SocketStream) -> None:
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


async def receive_all(stream: trio.SocketStream) -> bytes:
    data = bytearray()
    with trio.fail_after(SOON_S):
        while piece := await stream.receive_some(65_536):
            data += piece
    return bytes(data)


async def test_a_client_that_has_reset_costs_no_events_while_the_broker_is_waited_for() -> None:
    async with staged() as stage:
        link, client, broker = stage.connect()
        await client.send_all(request(1) + request(2))
        await broker.receive_some(1)
        count = Count(stage, link)
        reset(client)
        await some_time()
        assert not link.is_closed
        assert count.client < 5
        await broker.send_all(answer(1) + answer(2))
        await broker.aclose()
        await until(lambda: link.is_closed)
        assert stage.play.rows()["clicks", "accepted", ""][2] == 2


async def test_a_half_closed_client_that_was_slow_once_costs_no_events() -> None:
    # OUT stayed in the set: once its FIN was known, "neither read nor write" was no longer told to epoll.
    async with staged() as stage, trio.open_nursery() as nursery:
        link, client, broker = stage.connect(small=True)
        await client.send_all(other_request(1) + other_request(2))
        await client.send_eof()
        await receive_exactly(broker, 2 * len(other_request(1)))
        large = other_answer(1, bytes(2_000_000))
        nursery.start_soon(broker.send_all, large)
        await until(lambda: link.client.outbound.pieces)
        assert await receive_exactly(client, len(large)) == large
        await until(lambda: not link.client.outbound.pieces)
        count = Count(stage, link)
        await some_time()
        assert count.client < 20
        nursery.cancel_scope.cancel()


async def test_a_broker_that_resets_while_both_sides_are_full_costs_no_events() -> None:
    # What could not be sent to it was kept, so OUT stayed in the set and the error was reported again and again.
    async with staged() as stage, trio.open_nursery() as nursery:
        link, client, broker = stage.connect(small=True)
        await client.send_all(other_request(1))
        await receive_exactly(broker, len(other_request(1)))
        nursery.start_soon(quietly, client.send_all, 50 * request(2, values=(bytes(200_000),)))
        await until(lambda: link.upstream.outbound.pieces)
        nursery.start_soon(quietly, broker.send_all, other_answer(1, bytes(20_000_000)))
        await until(lambda: link.client.outbound.pieces)
        assert link.upstream.outbound.pieces
        count = Count(stage, link)
        reset(broker)
        await some_time()
        assert count.upstream < 20
        nursery.cancel_scope.cancel()


async def test_a_slow_client_that_half_closed_gets_its_answer_to_the_end() -> None:
    # Both directions of the upstream connection are shut then, which epoll calls HUP though much is still to be read.
    async with staged() as stage:
        link, client, broker = stage.connect()
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
        link.client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
        link.upstream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 200_000)
        await client.send_all(other_request(1))
        await client.send_eof()
        assert await receive_exactly(broker, len(other_request(1))) == other_request(1)
        assert await broker.receive_some(1) == b""
        large = other_answer(1, bytes(380_000))
        broker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 500_000)
        await broker.send_all(large)
        await broker.aclose()
        await some_time()
        assert await receive_all(client) == large


async def test_an_answer_the_broker_sent_before_it_reset_is_still_read() -> None:
    # A request that could not be sent any more ended the link before the answer in the receive buffer was read.
    async with staged() as stage:
        link, client, broker = stage.connect()
        await client.send_all(request(1))
        await receive_exactly(broker, len(request(1)))
        say_at_once(broker, answer(1))
        reset(broker)
        # The client's event comes first in a batch where both sockets are ready.
        link._handle_requests(bytearray(request(2)), 0, len(request(2)), None, trio.current_time())
        link._advance_state(trio.current_time())
        stage.reactor.run_deferred(trio.current_time())
        assert await receive_all(client) == answer(1)


async def test_memory_asked_for_by_both_sides_of_a_link_goes_to_the_one_that_asked() -> None:
    async with staged(max_buffered_bytes=1_000_000) as stage, trio.open_nursery() as nursery:
        holding, holder, holder_broker = stage.connect()
        link, client, broker = stage.connect()
        frame = request(9, values=(bytes(900_000),))
        await holder.send_all(frame[:700_000])
        await until(lambda: holding.client.inbound.partial_bytes == 700_000)
        await client.send_all(other_request(1, key=api.METADATA, version=1, body=bytes(4)))
        await receive_exactly(broker, 18)
        answered = metadata(1, 9000)
        ours = request(2, values=(bytes(500_000),))
        nursery.start_soon(broker.send_all, answered)
        await some_time()
        nursery.start_soon(client.send_all, ours)
        await until(lambda: link.client.inbound.waits_for_memory)
        nursery.start_soon(holder.send_all, frame[700_000:])
        with trio.fail_after(SOON_S):
            assert await receive_exactly(holder_broker, len(frame)) == frame
            assert await receive_exactly(broker, len(ours)) == ours
            assert await receive_exactly(client, len(answered)) == answered


async def test_an_answer_never_waits_for_the_memory_of_a_request_that_waits_for_the_answer() -> None:
    # A broker reads no further request before it has sent its answer: each waited for the other, for ever.
    async with staged(max_buffered_bytes=1_000_000) as stage, trio.open_nursery() as nursery:
        link, client, broker = stage.connect(small=True)
        frame = request(2, values=(bytes(950_000),))
        asked = other_request(1, key=api.METADATA, version=1, body=bytes(4))
        nursery.start_soon(client.send_all, asked + frame)
        await receive_exactly(broker, len(asked))
        await until(lambda: link.upstream.outbound.pieces)
        answered = metadata(1, 6000)
        with trio.fail_after(SOON_S):
            nursery.start_soon(broker.send_all, answered)
            assert await receive_exactly(client, len(answered)) == answered
            assert await receive_exactly(broker, len(frame)) == frame


async def test_a_client_that_resets_behind_a_large_rejected_request_gives_its_buffer_back_once() -> None:
    # The link closed while its request was handled, and both gave the buffer back: two connections would share it.
    play = Play(total=100.0, topics={"clicks": 50.0}).named().overload()
    async with staged(play) as stage:
        link, client, _ = stage.connect()
        link.session.client.software = ("apache-kafka-java", "4.1.0")
        frame = request(1, values=(bytes(100_000),))
        await client.send_all(frame[:50_000])
        await until(lambda: link.client.inbound.large_frame is not None)
        say_at_once(client, frame[50_000:])
        reset(client)
        # As when the reset arrives between the poll and this socket's turn.
        now = trio.current_time()
        link.on_client_event(IN, now)
        stage.reactor.run_deferred(now)
        assert link.is_closed
        assert stage.reactor.budget.used_bytes == 0
        buffers = [id(one) for kept in stage.reactor.budget._pool.values() for one in kept]
        assert len(buffers) == len(set(buffers))


@pytest.mark.parametrize(
    ("behind", "is_muted"), [(request(2, values=(bytes(100_000),))[:40_000], False), (request(2), True)]
)
async def test_a_link_that_closes_while_it_handles_input_takes_no_memory_and_parks_nothing_any_more(
    behind: bytes, is_muted: bool
) -> None:
    async with staged() as stage:
        link, client, _ = stage.connect()
        if is_muted:
            link.session.hold.muted_until = trio.current_time() + 3600
        say_at_once(client, other_request(1, key=18, version=9) + behind)
        reset(client)
        now = trio.current_time()
        link.on_client_event(IN, now)
        stage.reactor.run_deferred(now)
        assert link.is_closed
        assert link.parked.input_slice is None
        assert stage.reactor.budget.used_bytes == 0


async def test_a_parked_large_request_is_counted_before_another_frame_gets_its_buffer() -> None:
    async with staged(max_buffered_bytes=1_000_000) as stage, trio.open_nursery() as nursery:
        one, one_client, _ = stage.connect()
        two, two_client, _ = stage.connect()
        one.session.hold.muted_until = trio.current_time() + 3600
        await one_client.send_all(request(1, values=(bytes(600_000),)))
        await until(lambda: one.parked.input_slice is not None)
        nursery.start_soon(two_client.send_all, request(2, {"other": [0]}, values=(bytes(600_000),), acks=0))
        await until(lambda: two.client.inbound.waits_for_memory)
        one.close("disconnects_client")
        rows = stage.play.rows()
        assert rows == {("clicks", "discarded", ""): (size_of((bytes(600_000),)), 1, 1)}
        nursery.cancel_scope.cancel()


async def test_half_a_frame_of_an_impossible_version_is_malformed_and_no_bug() -> None:
    async with staged() as stage:
        link, client, _ = stage.connect()
        await client.send_all(struct.pack(">ihhi", 1000, 0, 100, 1))
        await until(lambda: link.is_closed)
        stage.play.ledger()
        assert stage.bugs == []
        assert stage.play.counts["disconnects_malformed"] == 1


async def test_a_large_frame_that_comes_slowly_makes_progress() -> None:
    async with staged() as stage:
        link, client, _ = stage.connect()
        frame = request(1, values=(bytes(200_000),))
        await client.send_all(frame[:50_000])
        await until(lambda: link.client.inbound.partial_bytes == 50_000)
        link._watch.read_at -= 50
        await client.send_all(frame[50_000:60_000])
        await until(lambda: link.client.inbound.partial_bytes == 60_000)
        link.check_progress(trio.current_time() + 20, stage.play.world.limits)
        assert not link.is_closed


def over() -> Play:
    return Play(total=100.0, topics={"clicks": 50.0}).named().overload()


async def test_a_rejection_mutes_a_connection_that_was_idle_before() -> None:
    # An idle socket is empty: its next request has not waited since the last one.
    async with staged(over()) as stage:
        link, client, _ = stage.connect()
        link.session.client.software = ("apache-kafka-java", "4.1.0")
        await client.send_all(other_request(1))
        await until(lambda: link.session.in_flight)
        before = trio.current_time()
        link.session.hold.drained_at -= 20
        link.session.in_flight.drop_all()
        await client.send_all(request(2))
        await receive_exactly(client, 4)
        assert link.session.hold.muted_until > before


async def test_a_rejection_mutes_a_connection_that_sends_large_requests() -> None:
    # A read that took exactly what a frame lacked said nothing about the socket, and those before it were ignored.
    async with staged(over()) as stage:
        link, client, _ = stage.connect()
        link.session.client.software = ("apache-kafka-java", "4.1.0")
        frame = request(1, values=(bytes(300_000),))
        await client.send_all(frame[:50_000])
        await until(lambda: link.client.inbound.partial_bytes == 50_000)
        before = trio.current_time()
        link.session.hold.drained_at -= 20
        await client.send_all(frame[50_000:60_000])
        await until(lambda: link.client.inbound.partial_bytes == 60_000)
        await client.send_all(frame[60_000:])
        await receive_exactly(client, 4)
        assert link.session.hold.muted_until > before


async def test_a_client_that_never_reads_does_not_outlive_its_broker_for_ever() -> None:
    async with staged() as stage, trio.open_nursery() as nursery:
        link, client, broker = stage.connect(small=True)
        await client.send_all(other_request(1))
        await receive_exactly(broker, len(other_request(1)))
        nursery.start_soon(quietly, broker.send_all, other_answer(1, bytes(20_000_000)))
        await until(lambda: link.client.outbound.pieces)
        reset(broker)
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        assert not link.is_closed
        link.check_progress(trio.current_time() + 61, stage.play.world.limits)
        assert link.is_closed
        nursery.cancel_scope.cancel()


async def test_a_shorter_hold_than_the_last_one_ends_in_time() -> None:
    # The timer of the former hold was still set, and taken for one that comes early enough.
    async with staged() as stage:
        link, client, _ = stage.connect()
        hold = link.session.hold
        stage.mute(link)
        await client.send_all(request(1))
        await until(lambda: link.parked.input_slice is not None)
        hold.muted_until = hold.held_until = 0.0  # as when a limit is lifted
        link.on_ready(trio.current_time())
        assert link.parked.input_slice is None
        due = hold.muted_until = trio.current_time() + 1800
        await client.send_all(request(2))
        await until(lambda: link.parked.input_slice is not None)
        assert stage.wakes(link, due)


async def test_an_error_while_a_link_is_closed_does_not_leave_the_reactor() -> None:
    # It ended the worker, and all connections with it.
    async with staged() as stage:
        broken, client, _ = stage.connect()
        _, fine, fine_broker = stage.connect()
        broken.session.in_flight.append((1, PRODUCE, 13, [(bytes(16), 0, 1, 1, -1, -1, -1, 0)], None, 0))
        broken.session.gate.fence = None  # type: ignore[assignment]
        await client.send_all(request(1))
        await until(lambda: broken.is_closed)
        assert stage.bugs
        stage.bugs.clear()
        await fine.send_all(request(1))
        with trio.fail_after(SOON_S):
            assert await receive_exactly(fine_broker, len(request(1))) == request(1)


async def test_a_mute_that_ends_while_the_client_does_not_read_sets_no_timer_in_the_past() -> None:
    # The timer was due at once, again and again, without ever leaving the loop: the worker stood still.
    async with staged() as stage, trio.open_nursery() as nursery:
        link, client, broker = stage.connect(small=True)
        await client.send_all(other_request(1))
        await receive_exactly(broker, len(other_request(1)))
        link.session.hold.muted_until = trio.current_time() + 3600
        await client.send_all(request(2))
        await until(lambda: link.parked.input_slice is not None)
        nursery.start_soon(quietly, broker.send_all, other_answer(1, bytes(20_000_000)))
        await until(lambda: link.client.outbound.pieces)
        later = link.session.hold.held_until + 1
        stage.reactor._timers.clear()
        link.on_timer(later)  # by hand: the loop would not come back
        assert [when for when, _, _ in stage.reactor._timers if when <= later] == []
        nursery.cancel_scope.cancel()


async def test_a_link_that_drains_has_its_whole_time_for_the_answers() -> None:
    # Nothing had said when its end began: the first look for stuck connections took it for long overdue.
    async with staged() as stage:
        link, client, broker = stage.connect()
        await client.send_all(request(1))
        await receive_exactly(broker, len(request(1)))
        now = trio.current_time()
        link.drain("disconnects_drain", now)
        link.check_progress(now + 5, stage.play.world.limits)
        assert not link.is_closed
        await broker.send_all(answer(1))
        assert await receive_exactly(client, len(answer(1))) == answer(1)
