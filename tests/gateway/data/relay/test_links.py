# Links and the reactor on real sockets: backpressure, half-close, large frames, memory, muted peers. No sleeps: every
# wait is for something that has to happen, with a deadline.

from __future__ import annotations

import select
import socket
import struct
from functools import partial
from typing import Any, cast

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from gateway.channel import LATENCY_BOUNDS
from gateway.data.pending.in_flight import MAX_PENDING
from gateway.data.relay import links
from gateway.data.relay.links import GRACE_S, LINGER_S, LONG_WAIT_S, MAX_HELD, RelayLink
from gateway.data.relay.sides import SMALL_BUFFER_BYTES
from gateway.data.relay.states import DRAINING, LEAVING, LINGERING, LOST
from gateway.data.relay.tls_links import TlsInbound
from gateway.data.session import fetches
from gateway.data.shared.budget import MemoryAccount, MemoryBudget
from gateway.data.sockets.inbound import SHARED_READ_BYTES, InboundBuffer, SharedReadBuffer
from gateway.data.sockets.reactor import SelectorPoller
from policies.verdict import DELAY, Verdict
from tests import variants
from tests.background import until
from tests.gateway.data.play import (
    APP,
    TOOK,
    Play,
    answer,
    decode_answer,
    other_answer,
    other_request,
    present,
    request,
    size_of,
    with_question,
)
from tests.gateway.data.relay.stage import DEADLINE_S, Stage, is_closed, passes, receive_exactly, reset, staged
from tests.gateway.data.session.fetch_frames import fetch, fetched

pytestmark = pytest.mark.usefixtures("no_circles")


@pytest.mark.parametrize("step", [1, 10_000], ids=["byte by byte", "glued"])
async def test_requests_and_answers_pass(step: int) -> None:
    async with staged() as stage:
        _, client, broker = stage.connect()
        for sender, receiver, frames in (
            (client, broker, request(1) + other_request(2)),
            (broker, client, answer(1) + other_answer(2)),
        ):
            for at in range(0, len(frames), step):
                await sender.send_all(frames[at : at + step])
            assert await receive_exactly(receiver, len(frames)) == frames


@pytest.mark.parametrize("size", [40_000, 300_000, 5_000_000])
async def test_large_requests_pass_whole_and_their_memory_is_given_back(size: int) -> None:
    async with staged() as stage:
        _, client, broker = stage.connect()
        frame = request(1, values=(bytes(size),))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, frame + request(2))
            assert await receive_exactly(broker, len(frame)) == frame
            assert await receive_exactly(broker, len(request(2))) == request(2)
        await until(lambda: stage.reactor.budget.used_bytes == 0)


@pytest.mark.parametrize(("kind", "begun", "is_looked_at"), [
    (InboundBuffer, b"", True),
    (InboundBuffer, b"half", False),  # what comes next is the rest of a frame whose beginning was read behind a pause
    (partial(TlsInbound, cast("Any", None)), b"", False),  # what comes next is a record of TLS
])  # fmt: skip
def test_only_the_head_of_a_frame_is_looked_at(kind: Any, begun: bytes, is_looked_at: bool) -> None:
    near, far = socket.socketpair()
    with near, far:
        far.sendall(struct.pack(">ihhi", 500_000, 0, 9, 7))
        account = MemoryAccount(MemoryBudget(2**30), "test")
        used_before = present(account.reserve_buffer(500_000, 500_000))
        account.release_buffer(used_before)
        inbound = kind(SharedReadBuffer(), account, lambda: None, is_client=True)
        inbound.prepend_bytes(begun)
        inbound.is_large_next = True
        inbound.peek_request(near, 2**20)
        assert (inbound.large_frame is not None) is is_looked_at
        assert inbound.partial_bytes == len(begun)
        assert not inbound.is_large_next
        inbound.close()
        assert account.used_bytes == 0


@pytest.mark.parametrize("behind", [b"", b"more"])
def test_where_a_large_frame_was_all_there_is_its_socket_is_known_to_be_empty(behind: bytes) -> None:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        frame = struct.pack(">ihhi", 50_000 - 4, 0, 9, 7) + bytes(50_000 - 12)
        far.sendall(frame[:40_000])
        inbound = InboundBuffer(
            SharedReadBuffer(), MemoryAccount(MemoryBudget(2**30), "test"), lambda: None, is_client=True
        )
        inbound.receive(near)
        inbound.keep_partial_frame(inbound.start, len(frame))
        far.sendall(frame[40_000:] + behind)
        assert inbound.receive(near) == len(frame)
        assert inbound.is_drained is not bool(behind)
        inbound.close()


async def test_what_was_read_on_behind_a_pause_is_not_taken_for_a_head() -> None:
    """The rest of a request whose beginning came behind a pause looks like the head of another one, all through."""
    async with staged() as stage:
        link, client, broker = stage.connect()
        await passes(client, broker, request(1))
        await passes(broker, client, answer(1))
        stage.mute(link)
        first = request(2, values=(bytes(SHARED_READ_BYTES + 50_000),))
        heads = struct.pack(">ihhi", SHARED_READ_BYTES + 1_000_000, 0, 9, 7) * 40_000
        second = request(3, values=(heads,))
        cut = second.index(heads) + 12 * 8000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, first)
            await until(lambda: link.parked.input_slice is not None)
        inbound = link.client.inbound
        assert inbound.is_large_next
        await client.send_all(second[:cut])
        stage.end_mute(link)
        assert await receive_exactly(broker, len(first)) == first
        await until(lambda: inbound.large_frame is not None and inbound.partial_bytes == cut)
        await passes(client, broker, second[cut:], second)
        await until(lambda: stage.reactor.budget.used_bytes == 0)


async def test_a_large_answer_streams_through_in_bounded_memory() -> None:
    async with staged() as stage:
        _, client, broker = stage.connect()
        await passes(client, broker, other_request(1))
        frame = other_answer(1, bytes(20_000_000))
        most = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.send_all, frame)
            data = bytearray()
            while len(data) < len(frame):
                data += await client.receive_some(65_536)
                most = max(most, stage.reactor.budget.used_bytes)
        assert bytes(data) == frame
        assert most < 2_000_000


async def test_a_broker_that_does_not_read_stops_the_client() -> None:
    async with staged() as stage, trio.open_nursery() as nursery:
        link, client, _ = stage.connect(small=True)
        nursery.start_soon(client.send_all, 1000 * request(1, values=(bytes(20_000),)))
        await until(lambda: link.upstream.outbound.pieces)
        for _ in range(50):  # whatever else may happen happens now
            await trio.lowlevel.checkpoint()
        assert stage.reactor.budget.used_bytes < 2_000_000
        assert link.session.to_upstream == []
        nursery.cancel_scope.cancel()


async def test_a_client_that_does_not_read_its_answers_stops_the_broker_and_itself() -> None:
    async with staged() as stage, trio.open_nursery() as nursery:
        link, client, broker = stage.connect(small=True)
        await passes(client, broker, other_request(1))
        nursery.start_soon(broker.send_all, other_answer(1, bytes(50_000_000)))
        await until(lambda: link.client.outbound.pieces)
        nursery.start_soon(client.send_all, 100_000 * other_request(2))
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        assert stage.reactor.budget.used_bytes < 2_000_000
        assert len(link.session.in_flight) <= MAX_PENDING
        nursery.cancel_scope.cancel()


async def test_acks_0_sent_before_a_close_is_forwarded() -> None:
    async with staged() as stage:
        _, client, broker = stage.connect()
        await client.send_all(b"".join(request(i, acks=0) for i in range(20)))
        await client.aclose()
        frames = b"".join(with_question(request(i, acks=0)) for i in range(20))
        assert await receive_exactly(broker, len(frames)) == frames


@pytest.mark.parametrize("acks", [0, -1])
@pytest.mark.parametrize("took", [True, False])
async def test_a_clients_reset_does_not_decide_whether_its_bytes_count(took: bool, acks: int) -> None:
    """Or who may write could evade limits by it, as who may not could spend those of others."""
    play = Play(total=1e6)
    async with staged(play) as stage:
        link, client, broker = stage.connect()
        frame = request(1, acks=acks)
        await client.send_all(frame)
        upstream = frame if acks else with_question(frame)
        assert await receive_exactly(broker, len(upstream)) == upstream
        reset(client)
        assert await broker.receive_some(1) == b"", "nothing more comes"
        assert not link.is_closed
        if took:
            await broker.send_all(answer(1) if acks else TOOK)
        await broker.aclose()
        await until(lambda: link.is_closed)
        assert play.engine.broker_meters(1).total.uncounted == (size_of() if took else 0)
        outcome = "unacknowledged" if not acks else "accepted" if took else "unanswered"
        assert play.rows() == {("clicks", outcome, ""): (size_of(), 1, 1)}
        assert play.counts["disconnects_client"] == 1
        assert stage.reactor.budget.used_bytes == 0


@pytest.mark.parametrize("asked", [b"", other_request(1, key=18)], ids=["silent", "asked"])
@pytest.mark.parametrize("variant", [variants.PURE, variants.COMPILED])
async def test_a_broker_that_resets_before_its_first_answer_resets_the_client(asked: bytes, variant: str) -> None:
    """A killed broker does that to connections that it hasn't looked at; clients try again then, and not all of them
    do where it merely ends.
    """
    with variants.running(variant):
        async with staged() as stage:
            link, client, broker = stage.connect()
            if asked:
                await passes(client, broker, asked)
            reset(broker)
            with pytest.raises(trio.BrokenResourceError) as caught:
                await client.receive_some(1)
            assert isinstance(caught.value.__cause__, ConnectionResetError)
            await until(lambda: link.is_closed)
            stage.play.ledger()
            assert stage.play.counts["disconnects_upstream"] == 1


@pytest.mark.parametrize("answered", [False, True])
async def test_a_broker_s_end_is_an_end_for_the_client(answered: bool) -> None:
    """Where it ends without an answer, it says so of TLS or SASL; behind an answer nothing of that may be lost."""
    async with staged() as stage:
        link, client, broker = stage.connect()
        await passes(client, broker, other_request(1))
        if answered:
            await passes(broker, client, other_answer(1))
            reset(broker)
        else:
            await broker.aclose()
        assert await client.receive_some(1) == b""
        await until(lambda: link.is_closed)


async def test_a_malformed_frame_closes_that_connection_and_no_other() -> None:
    async with staged() as stage:
        bad, bad_client, bad_broker = stage.connect()
        _, client, broker = stage.connect()
        await bad_client.send_all(request(1) + b"GET / HTTP/1.1\r\n\r\n")
        assert await receive_exactly(bad_broker, len(request(1))) == request(1)
        assert not bad.is_closed, "the request before the malformed one is still answered"
        await passes(bad_broker, bad_client, answer(1))
        assert await is_closed(bad_client)
        assert bad.is_closed
        assert len(stage.play.logs) == 1
        assert "HTTP" in stage.play.logs[0][1]
        await passes(client, broker, request(1))
        stage.play.ledger()
        assert stage.play.counts["disconnects_malformed"] == stage.play.counts["requests_malformed"] == 1


async def test_half_a_frame_and_then_the_end_is_one_log_line() -> None:
    async with staged() as stage:
        link, client, broker = stage.connect()
        await client.send_all(request(1)[:40])
        await client.send_eof()
        assert await broker.receive_some(1) == b""
        assert [line for _, line in stage.play.logs if "half a frame: 40 bytes" in line]
        assert not link.is_closed


async def test_half_a_frame_that_was_read_on_behind_a_pause_ends_its_connection_no_sooner_than_another() -> None:
    async with staged() as stage:
        link, client, broker = stage.connect()
        stage.mute(link)
        await client.send_all(request(1, acks=0) + request(2)[:20])
        await client.send_eof()
        await until(lambda: link.parked.input_slice is not None)
        stage.end_mute(link)
        await receive_exactly(broker, len(with_question(request(1, acks=0))))
        now = trio.current_time()
        link.check_progress(now, stage.play.world.limits)
        assert not link.is_closed, "the broker has still to say that it took the first request"
        link.check_progress(now + 61, stage.play.world.limits)
        assert link.is_closed


async def test_a_half_sent_frame_without_progress_is_closed_after_the_deadline() -> None:
    async with staged() as stage:
        link, client, _ = stage.connect()
        await client.send_all(request(1)[:40])
        await until(lambda: link.client.inbound.partial_bytes == 40)
        now = trio.current_time()
        settings = stage.play.world.limits
        link.check_progress(now, settings)
        assert not link.is_closed
        link.check_progress(now + 61, settings)
        assert link.is_closed


async def test_a_frame_waits_for_memory_in_turn_and_gets_it() -> None:
    async with staged(max_buffered_bytes=1_500_000) as stage:
        first, one, one_broker = stage.connect()
        second, two, two_broker = stage.connect()
        frame = request(1, values=(bytes(1_000_000),))
        await one.send_all(frame[:500_000])
        await until(lambda: first.client.inbound.partial_bytes == 500_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(two.send_all, frame)
            await until(lambda: second.client.inbound.waits_for_memory)
            nursery.start_soon(one.send_all, frame[500_000:])
            assert await receive_exactly(one_broker, len(frame)) == frame
            assert await receive_exactly(two_broker, len(frame)) == frame


async def test_a_fetch_that_waits_for_the_answer_before_it_goes_on_with_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches, "MAX_MUTE_S", 3600.0)
    async with staged(Play().set_quotas((APP, "consumer_byte_rate", 1e9))) as stage:
        _, client, broker = stage.connect()
        await client.send_all(fetch(1) + fetch(2))
        assert await receive_exactly(broker, len(fetch(1))) == fetch(1)
        await passes(broker, client, fetched(1))
        assert await receive_exactly(broker, len(fetch(2))) == fetch(2)


async def test_a_muted_link_parks_its_requests_and_goes_on_by_itself() -> None:
    play = Play(total=100.0, topics={"clicks": 50.0}).named().overload()
    async with staged(play) as stage:
        link, client, broker = stage.connect()
        link.session.client.software = ("apache-kafka-java", "4.1.0")
        await client.send_all(request(1))
        frame = await receive_exactly(client, 4)
        rest = await receive_exactly(client, struct.unpack(">i", frame)[0])
        assert decode_answer(frame + rest)[2]["clicks", 0][0] == 89
        stage.mute(link)
        await client.send_all(request(2, {"free": [0]}))
        await until(lambda: link.parked.input_slice is not None)
        assert link.is_muted
        assert stage.wakes(link, link.session.hold.muted_until)
        stage.end_mute(link)
        assert await receive_exactly(broker, len(request(2, {"free": [0]}))) == request(2, {"free": [0]})


@pytest.mark.parametrize("held", [True, False])
async def test_a_wait_for_a_limit_is_measured_and_is_no_part_of_the_broker_s_round_trip(held: bool) -> None:
    play = Play()
    async with staged(play) as stage:
        link, client, broker = stage.connect()
        if held:
            stage.mute(link)
            link.session.hold.mute_reason = "topic-threshold"
        await client.send_all(request(1))
        if held:
            await until(lambda: link.parked.input_slice is not None)
            stage.end_mute(link, in_s=0.6)
        await receive_exactly(broker, len(request(1)))
        await passes(broker, client, answer(1))
        await until(lambda: not play.world.ledger.latencies.answered_stamps)
        said = play.world.ledger.latencies.collect_latencies(1.0, 0.0)
    assert (sum(said.requests.counts), sum(said.round_trips[1].counts)) == (1, 1)
    assert said.waits.keys() == ({"topic-threshold"} if held else set())
    if held:
        long = LATENCY_BOUNDS.index(0.5)
        assert sum(said.requests.counts[long + 1 :]) == 1
        assert sum(said.waits["topic-threshold"].counts[long + 1 :]) == 1
        assert said.waits["topic-threshold"].total <= said.requests.total
        assert said.round_trips[1].total <= said.requests.total - 0.5


class Slow:
    """A policy that delays every request, a little or for long."""

    def __init__(self, throttle_ms: int = 20) -> None:
        self._throttle_ms = throttle_ms

    def decide(self, *_: object) -> Verdict:
        return Verdict(DELAY, "slow", self._throttle_ms, "slowly")


async def test_a_queue_that_never_empties_does_not_age_young_requests() -> None:
    # Else a client that pipelines into a steady delay has its requests rejected after 15 s, each waited for a moment.
    async with staged() as stage:
        stage.play.world.plugins = [Slow()]
        link, client, broker = stage.connect()
        await client.send_all(5 * request(1))
        await until(lambda: link.parked.input_slice is not None)
        start = trio.current_time()
        link.session.hold.drained_at = start - 14
        for _ in range(6):
            await client.send_all(5 * request(1))
            await receive_exactly(broker, 5 * len(request(1)))
            assert link.parked.input_slice is not None
        assert link.session.hold.drained_at >= start


async def test_what_comes_behind_parked_requests_is_not_read_before_them_while_a_connection_lingers() -> None:
    """What is parked may end within a request, and what comes behind is its rest."""
    async with staged() as stage:
        stage.play.world.plugins = [Slow()]
        link, client, broker = stage.connect()
        link.drain("disconnects_drain", trio.current_time())
        assert link.state is LINGERING
        link._linger_until += DEADLINE_S
        frames = [request(number, acks=0) for number in range(10)]
        sent = b"".join(frames)
        await client.send_all(sent[:-30])
        await until(lambda: link.parked.input_slice is not None)
        await client.send_all(sent[-30:])
        passed = b"".join(map(with_question, frames))
        assert await receive_exactly(broker, len(passed)) == passed
        assert stage.play.world.ledger.counts.get("requests_malformed", 0) == 0


async def test_what_a_patient_client_sends_ahead_stays_in_its_own_queue_while_its_requests_wait() -> None:
    async with staged() as stage:
        stage.play.world.plugins = [Slow(10_000)]
        link, client, broker = stage.connect()
        hold, sock = link.session.hold, link.client.sock
        hold.set_software(("librdkafka", "2.16.0"))
        frame = request(1, values=(bytes(50_000),))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, 600 * frame)
            await receive_exactly(broker, len(frame))
            await until(lambda: link.parked.input_slice is not None)
            usual = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            hold.drained_at -= LONG_WAIT_S + 1
            stage.end_mute(link)
            await receive_exactly(broker, len(frame))
            await until(lambda: sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * SMALL_BUFFER_BYTES)
            held = present(link.parked.input_slice)
            assert held[2] - held[1] <= MAX_HELD + SHARED_READ_BYTES
            hold.drained_at = trio.current_time()  # and what waits is young again
            link.parked._arrival_samples.clear()
            stage.end_mute(link)
            await receive_exactly(broker, len(frame))
            await until(lambda: sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= min(usual, 2 * 212_992))
            nursery.cancel_scope.cancel()


async def test_a_client_that_closes_during_a_mute_has_its_parked_requests_discarded_and_acks_0_forwarded() -> None:
    async with staged() as stage:
        link, client, broker = stage.connect()
        stage.mute(link)
        await client.send_all(request(1) + request(2, acks=0))
        await client.aclose()
        await until(lambda: link.parked.input_slice is not None)
        stage.end_mute(link)
        assert await receive_exactly(broker, len(request(2, acks=0))) == request(2, acks=0)
        rows = stage.play.rows()
        assert rows["clicks", "discarded", ""] == (size_of(), 1, 1)
        assert rows["clicks", "unacknowledged", ""] == (size_of(), 1, 1)
        assert link.session.hold.is_client_gone


async def test_a_fin_behind_a_full_receive_window_is_seen_before_anything_is_forwarded() -> None:
    async with staged() as stage:
        link, client, broker = stage.connect()
        # The window is smaller than the requests, and the kernel has the rest: no thread has to send it in time.
        link.client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1024 * 1024)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 2**30)  # trio's is 16 KiB
        stage.mute(link)
        await client.send_all(60 * request(1, values=(bytes(12_000),)))
        await client.aclose()
        await until(lambda: link.parked.input_slice is not None)
        assert not link.client.has_fin
        stage.end_mute(link)
        assert await broker.receive_some(1) == b"", "something that nobody waits for was forwarded"
        assert stage.play.rows()["clicks", "discarded", ""][2] == 60
        assert link.session.hold.is_client_gone


async def test_acks_0_behind_what_is_read_ahead_is_forwarded_though_its_client_has_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "MAX_HELD", 1)
    async with staged() as stage:
        link, client, broker = stage.connect()
        link.session.hold.set_software(("librdkafka", "2.16.0"))
        stage.mute(link)
        frames = [request(number, acks=0, values=(bytes(5000),)) for number in range(8)]
        await client.send_all(frames[0])
        await until(lambda: link.parked.input_slice is not None)
        await client.send_all(b"".join(frames[1:]) + request(9))
        await client.aclose()
        await until(lambda: link.client.has_fin)
        stage.end_mute(link)
        passed = b"".join(map(with_question, frames))
        assert await receive_exactly(broker, len(passed)) == passed
        assert await broker.receive_some(1) == b""
        rows = stage.play.rows()
        assert rows["clicks", "unacknowledged", ""][2] == len(frames)
        assert rows["clicks", "discarded", ""] == (size_of(), 1, 1)


async def test_a_client_that_was_read_only_while_it_waited_is_not_idle() -> None:
    """All that it sends is read behind a hold, and acks=0 has no answers: for as long as a limit is used up."""
    async with staged() as stage:
        link, client, _ = stage.connect()
        stage.mute(link)
        await client.send_all(request(1, acks=0))
        await until(lambda: link.parked.input_slice is not None)
        link._watch.read_at -= 3600
        link._watch.answered_at -= 3600
        await client.send_all(request(2, acks=0))
        await until(lambda: link.client.unread_bytes > 0)
        stage.end_mute(link)
        await until(lambda: link.parked.input_slice is None)
        assert link.idle_s(trio.current_time()) < 3600


async def test_acks_0_that_a_client_sent_before_it_closed_is_forwarded_while_the_gateway_drains() -> None:
    async with staged() as stage:
        link, client, broker = stage.connect()
        await passes(client, broker, request(1, acks=0), with_question(request(1, acks=0)))
        link.drain("disconnects_drain", trio.current_time())
        stage.reactor.run_deferred(trio.current_time())
        assert link.state is DRAINING
        await client.send_all(request(2, acks=0))
        await client.aclose()
        await until(lambda: link.client.state is LEAVING)
        await broker.send_all(TOOK)
        assert await receive_exactly(broker, len(request(2, acks=0))) == request(2, acks=0)
        await until(lambda: link.is_closed)
        assert stage.play.world.ledger.counts["disconnects_drain"] == 1


async def test_acks_0_that_came_before_a_reset_is_forwarded() -> None:
    """As a broker reads it; a client resets its connection where it closes with an answer unread."""
    async with staged() as stage:
        link, client, broker = stage.connect()
        await passes(client, broker, other_request(1))
        await broker.send_all(other_answer(1))
        far = socket.socket(fileno=client.socket.detach())
        await until(lambda: select.select([far], [], [], 0)[0])
        frames = [request(number, acks=0) for number in range(10)]
        far.sendall(b"".join(frames) + request(11))
        far.close()  # before the gateway has looked
        passed = b"".join(map(with_question, frames))
        assert await receive_exactly(broker, len(passed)) == passed
        await broker.aclose()
        await until(lambda: link.is_closed)
        assert stage.play.rows()["clicks", "discarded", ""] == (size_of(), 1, 1)


async def test_what_a_broker_has_not_taken_yet_outlives_its_client_s_reset() -> None:
    async with staged() as stage:
        link, client, broker = stage.connect(small=True)
        await passes(client, broker, request(1, acks=0), with_question(request(1, acks=0)))
        await broker.send_all(TOOK)
        await until(lambda: not link.session.in_flight)
        frame = request(2, acks=0, values=(bytes(300_000),))
        await client.send_all(frame)
        await until(lambda: link.upstream.has_unsent)
        reset(client)
        await until(lambda: link.client.state is LOST)
        assert await receive_exactly(broker, len(frame)) == frame
        assert await broker.receive_some(1) == b""


async def test_a_half_close_behind_more_requests_than_may_be_in_flight_discards_none() -> None:
    async with staged() as stage:
        link, client, broker = stage.connect()
        frames = [request(number) for number in range(MAX_PENDING + 100)]
        await client.send_all(b"".join(frames))
        await client.send_eof()
        first = b"".join(frames[:MAX_PENDING])
        assert await receive_exactly(broker, len(first)) == first
        await until(lambda: link.client.state is LEAVING)
        await broker.send_all(b"".join(map(answer, range(MAX_PENDING))))
        rest = b"".join(frames[MAX_PENDING:])
        assert await receive_exactly(broker, len(rest)) == rest


async def test_a_muted_link_whose_peer_resets_costs_no_events() -> None:
    async with staged() as stage:
        link, client, _ = stage.connect()
        link.session.hold.muted_until = trio.current_time() + 3600
        await client.send_all(request(1))
        await until(lambda: link.parked.input_slice is not None)
        reset(client)
        await until(lambda: link.is_closed)
        assert stage.play.rows()["clicks", "discarded", ""] == (size_of(), 1, 1)


async def test_what_a_client_had_sent_before_it_knew_of_the_end_is_lost_to_nobody() -> None:
    """acks=0 gets to the broker; all else is not forwarded, so its client may send it elsewhere; and no reset takes the
    last answer away.
    """
    async with staged() as stage:
        link, client, broker = stage.connect()
        await passes(client, broker, request(1))
        link.drain("disconnects_drain", trio.current_time())
        last = request(4, {"other": [0]}, acks=0)
        await client.send_all(other_request(2) + request(3) + last + request(5)[:20])
        await broker.send_all(answer(1))
        await broker.socket.send(b"")
        assert await receive_exactly(broker, len(with_question(last))) == with_question(last)
        assert await receive_exactly(client, len(answer(1))) == answer(1)
        await broker.send_all(TOOK)
        assert await client.receive_some(1) == b"", "the end, and no reset"
        await client.aclose()
        await until(lambda: link.is_closed)
        assert await broker.receive_some(100) == b""
        counts = dict(stage.play.world.ledger.counts)
        assert (counts.get("disconnects_drain"), counts.get("requests_malformed", 0)) == (1, 0), counts
        assert stage.play.rows()["clicks", "discarded", ""] == (size_of(), 1, 1)


async def test_a_client_that_does_not_close_its_half_is_not_waited_for() -> None:
    async with staged() as stage:
        link, client, _ = stage.connect()
        link.drain("disconnects_drain", trio.current_time() - LINGER_S)
        link.on_ready(trio.current_time())
        assert await client.receive_some(1) == b""
        await until(lambda: link.is_closed)
        assert stage.play.world.ledger.counts["disconnects_drain"] == 1


@pytest.mark.parametrize("busy", ["idle", "in flight", "half a frame", "held", "not authenticated"])
async def test_a_connection_past_its_age_ends_between_two_requests(busy: str) -> None:
    async with staged() as stage:
        link, client, broker = stage.connect()
        settings = replace(stage.play.world.limits, max_connection_age=100.0, authentication_timeout=1000.0)
        now = link._watch.opened_at
        link.check_progress(now + 80.0, settings)
        assert not link.closing_cause
        if busy == "in flight":
            await passes(client, broker, request(1))
        elif busy == "half a frame":
            await client.send_all(request(1)[:20])
            await until(lambda: link.client.inbound.partial_bytes)
        elif busy == "held":
            link.session.hold.muted_until = trio.current_time() + 3600
            await client.send_all(request(1))
            await until(lambda: link.parked.input_slice is not None)
        elif busy == "not authenticated":
            stage.play.world.cluster.wants_sasl = True
        link._watch.read_at = now + 115.0
        link.check_progress(now + 115.0, settings)
        assert bool(link.closing_cause) == (busy == "idle"), "none of them is between two requests"
        if busy == "in flight":
            await passes(broker, client, answer(1))
            link.check_progress(now + 120.0, settings)
            assert link.closing_cause
        if busy == "not authenticated":
            stage.play.world.cluster.wants_sasl = False
        link.check_progress(now + 110.0 + GRACE_S + 1.0, settings)
        assert link.closing_cause, "there was no such moment for long"
        await client.aclose()
        await until(lambda: link.is_closed)
        assert stage.play.world.ledger.counts["disconnects_age"] == 1


async def test_ages_of_connections_that_began_together_are_spread() -> None:
    async with staged() as stage:
        links = [stage.connect()[0] for _ in range(40)]
        settings = replace(stage.play.world.limits, max_connection_age=100.0, authentication_timeout=1000.0)
        ended: set[int] = set()
        for age in range(80, 121):
            now = links[0]._watch.opened_at + age
            for link in links:
                link._watch.read_at = now
                if not link.closing_cause:
                    link.check_progress(now, settings)
                    if link.closing_cause:
                        ended.add(age)
        assert all(link.closing_cause for link in links)
        assert min(ended) >= 90
        assert max(ended) <= 111
        assert len(ended) > 8


async def test_an_unexpected_error_ends_its_own_link_only() -> None:
    async with staged() as stage:
        broken, client, _ = stage.connect()
        _, fine, fine_broker = stage.connect()
        broken.session.gate.fence = None  # type: ignore[assignment]
        await client.send_all(request(1))
        await until(lambda: broken.is_closed)
        assert [type(bug) for bug in stage.bugs] == [AttributeError]
        stage.bugs.clear()
        await passes(fine, fine_broker, request(1))


async def test_the_reactor_works_without_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.data.sockets.reactor.new_poller", SelectorPoller)
    async with staged() as stage:
        _, client, broker = stage.connect()
        frame = request(1, values=(bytes(3_000_000),))
        await passes(client, broker, frame)
        await passes(broker, client, answer(1))


def paused(**settings: Any) -> Play:
    """Nobody may write."""
    play = Play(**settings)
    play.engine.set_storage_factor(0.0, "broker 2 volume /data is full", 0.0)
    return play


def end_pause(stage: Stage, link: RelayLink) -> None:
    stage.play.engine.set_storage_factor(1.0, "", 1.0)
    assert link.session.hold.end_pause(trio.current_time())
    stage.reactor.call_soon(link)
    stage.reactor.run_deferred(trio.current_time())


async def test_when_writes_are_not_paused_any_more_held_requests_go_on_without_waiting_for_their_time() -> None:
    play = paused()
    async with staged(play) as stage:
        link, client, broker = stage.connect()
        await client.send_all(request(1))
        await until(lambda: link.parked.input_slice is not None)
        assert link.session.hold.held_until > trio.current_time() + 10
        end_pause(stage, link)
        assert await receive_exactly(broker, len(request(1))) == request(1)


async def test_a_link_held_in_a_pause_reads_no_further_however_often_it_is_looked_at() -> None:
    # All connections are held at once: each would read what its client can send, beyond any bound on memory.
    play = paused()
    async with staged(play) as stage:
        link, client, _ = stage.connect()
        stage.streams.remove(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, request(1, acks=0, values=(bytes(1000),)) * 3000)
            await until(lambda: link.parked.input_slice is not None)
            held = stage.reactor.budget.used_bytes
            for _ in range(5):
                link.session.hold.held_until = trio.current_time()
                stage.reactor.call_soon(link)
                stage.reactor.run_deferred(trio.current_time())
                await trio.testing.wait_all_tasks_blocked(0.01)
            assert stage.reactor.budget.used_bytes == held
            nursery.cancel_scope.cancel()
        client.socket.close()


async def test_acks_0_held_in_a_pause_makes_room_for_clients_that_are_not() -> None:
    play = paused(internal_client_ids=("ops",))
    large = (bytes(900_000),)
    async with staged(play, max_buffered_bytes=2_000_000) as stage:
        async with trio.open_nursery() as nursery:
            held = []
            for _ in range(3):
                link, client, _ = stage.connect()
                held.append(link)
                nursery.start_soon(client.send_all, request(1, acks=0, values=large))
            await until(lambda: stage.reactor.budget.has_waiters)
            _, client, broker = stage.connect()
            frame = request(1, values=large, client_id="ops")
            nursery.start_soon(client.send_all, frame)
            assert await receive_exactly(broker, len(frame)) == frame
            nursery.cancel_scope.cancel()
        assert play.rows()["clicks", "dropped", "acks0-limit"][2] > 0
        # acks=0 that comes later is not dropped for that
        assert not any(link.session.hold.is_memory_short for link in held)


@pytest.mark.parametrize("more", [b"", b"\x15\x03\x03\0\x02\x02\x50"], ids=["one alert", "two"])
async def test_a_broker_that_speaks_tls_is_named_with_the_right_setting(more: bytes) -> None:
    async with staged() as stage:
        link, client, broker = stage.connect()
        await passes(client, broker, request(1))
        await broker.send_all(b"\x15\x03\x03\0\x02\x02\x0a" + more)
        assert await client.receive_some(1) == b""
        assert link.is_closed
        ((level, line),) = stage.play.logs
        assert level == "warning"
        assert line.startswith("test:1: broker 1: connection closed: it speaks TLS (security.protocol must be SSL or")
