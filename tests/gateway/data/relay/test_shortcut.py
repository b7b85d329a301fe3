# The shortcut of a link: usual traffic takes it and is counted as everywhere else, and whatever
# else there is shuts it before the next event. On real sockets, without sleeps.

from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
import trio

from gateway.channel import API_REQUESTS, QuotaSnapshot, ThresholdPolicy
from gateway.data.pending import pending
from gateway.data.pending.in_flight import FEW_PARTITIONS
from gateway.data.sockets.inbound import HEAD_ROOM, SHARED_READ_BYTES, SharedReadBuffer
from gateway.data.sockets.reactor import IN, OUT
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from protocol import api
from protocol.rewriting import rewrite
from protocol.rewriting.stream import EndpointHider
from tests import variants
from tests.background import until
from tests.gateway.data.play import JAVA, Play, answer, decode_answer, other_answer, other_request, request, size_of
from tests.gateway.data.relay.stage import Stage, count_asked, passes, receive_exactly, reset, send_in_vain, staged
from tests.gateway.data.session import fetch_frames as session_fetches
from tests.gateway.data.session.fetch_frames import fetch

pytestmark = pytest.mark.usefixtures("no_circles")


@pytest.fixture(autouse=True)
def compiled() -> None:
    variants.module("gateway.data.relay.shortcut", variants.COMPILED)  # fails or skips where it is not


class Far:
    """The far ends of one link whose usual traffic has come to take the shortcut."""

    def __init__(self, stage: Stage, *, small: bool = False) -> None:
        self.stage = stage
        self.link, self.client, self.broker = stage.connect(small=small)
        self.told = 0
        self.asked = 0  # times that the shortcut has asked the link on which terms

    async def exchange(self, topic: str = "clicks") -> None:
        """One request and its answer."""
        self.told += 1
        await self.pass_request(request(self.told, {topic: [0]}))
        await self.pass_answer(answer(self.told, {topic: {0: (0, self.told)}}))

    async def open(self) -> None:
        for _ in range(3):  # a topic has to be known, and to have a row
            await self.exchange()
        assert self.is_open

    async def pass_request(self, frame: bytes) -> None:
        await passes(self.client, self.broker, frame)

    async def pass_answer(self, frame: bytes, expected: bytes | None = None) -> None:
        await passes(self.broker, self.client, frame, expected)

    async def begin_request(self, frame: bytes, end: int, start: int = 0) -> None:
        """Send it up to there, until it has been read."""
        await self.client.send_all(frame[start:end])
        await until(lambda: self.link.client.inbound.partial_bytes == end)

    async def end(self, who: str, how: str) -> None:
        stream = self.client if who == "client" else self.broker
        if how == "reset":
            reset(stream)
        else:
            await stream.aclose()

    def counted(self, name: str) -> int:
        self.stage.play.ledger()
        return self.stage.play.counts[name]

    @property
    def is_open(self) -> bool:
        return self.link.shortcut.terms is not None


async def send_cut(to: trio.SocketStream, data: bytes, random: Random) -> None:
    """Send it in pieces of any size, with others' turns between some of them."""
    pos = 0
    while pos < len(data):
        size = random.choice((7, 1000, 40_000, 100_000, 1_000_000))
        await to.send_all(data[pos : pos + size])
        for _ in range(random.choice((0, 0, 20))):
            await trio.lowlevel.checkpoint()
        pos += size


@asynccontextmanager
async def opened(play: Play | None = None, *, small: bool = False) -> AsyncIterator[Far]:
    with pytest.MonkeyPatch.context() as patch:
        async with staged(play) as stage:
            far = Far(stage, small=small)
            count_asked(far, patch)
            await far.open()
            yield far


async def test_usual_traffic_takes_it_and_is_counted_to_the_byte() -> None:
    async with opened() as far:
        play = far.stage.play
        asked = far.asked
        for _ in range(20):
            await far.exchange()
            assert far.asked == asked, "the link was asked"
        assert play.rows() == {("clicks", "accepted", ""): (23 * size_of(), 23, 23)}
        assert play.counts["requests"] == 23
        await far.exchange()  # in another interval
        assert far.asked > asked
        assert play.rows() == {("clicks", "accepted", ""): (size_of(), 1, 1)}
        assert play.engine.broker_meters(1).topics[b"clicks"].uncounted == 24 * size_of()


async def test_frames_cut_anywhere_pass_whole_and_it_opens_again() -> None:
    async with opened() as far:
        whole, reply = request(50) + request(51), answer(50) + answer(51)
        for cut in (1, 5, 40, len(request(50)) - 1, len(request(50)), len(request(50)) + 7):
            await far.client.send_all(whole[:cut])
            await until(lambda cut=cut: far.link.client.inbound.partial_bytes == cut % len(request(50)))
            await far.client.send_all(whole[cut:])
            assert await receive_exactly(far.broker, len(whole)) == whole
            await far.broker.send_all(reply[:cut])
            await far.broker.send_all(reply[cut:])
            assert await receive_exactly(far.client, len(reply)) == reply
            await far.exchange()
            assert far.is_open


@pytest.mark.parametrize("before", [b"", request(90) + request(91)], ids=["alone", "behind others"])
@pytest.mark.parametrize(
    ("size", "cut"), [(60_000, 40_000), (15_000, 66)], ids=["in a buffer of its own", "as bytes, as Java sends by TLS"]
)
async def test_the_beginning_of_a_request_is_kept_there(before: bytes, size: int, cut: int) -> None:
    async with opened() as far:
        asked = far.asked
        frame = request(92, values=(bytes(size),))
        await far.client.send_all(before + frame[:cut])
        await until(lambda: far.link.client.inbound.partial_bytes == cut)
        await far.client.send_all(frame[cut:])
        assert await receive_exactly(far.broker, len(before + frame)) == before + frame
        assert far.asked == asked, "the link was asked"
        assert far.stage.reactor.budget.used_bytes == 0


async def test_a_client_whose_requests_come_in_pieces_is_not_held_to_be_slow() -> None:
    async with opened() as far:
        limits, now = far.stage.play.world.limits, trio.current_time()
        for i, late in enumerate((0.0, limits.frame_timeout + 100.0)):
            frame = request(90 + i)
            await far.begin_request(frame, 66)
            far.link.check_progress(now + late, limits)
            await passes(far.client, far.broker, frame[66:], frame)
            assert far.is_open


async def test_a_malformed_frame_behind_whole_ones_ends_the_link_when_they_are_answered() -> None:
    async with opened() as far:
        await far.client.send_all(request(90) + b"\x7f\xff\xff\xff\0\0\0\7")
        assert await receive_exactly(far.broker, len(request(90))) == request(90)
        await far.pass_answer(answer(90))
        await until(lambda: far.link.is_closed)
        assert far.counted("disconnects_malformed") == 1


async def test_a_request_that_is_cut_where_there_is_no_memory_for_it_waits() -> None:
    async with opened() as far:
        budget, inbound = far.stage.reactor.budget, far.link.client.inbound
        budget.limit_bytes = 200_000
        other = Far(far.stage)
        held = request(60, values=(bytes(150_000),))
        for start in (0, 50_000):
            await other.begin_request(held, start + 50_000, start)
        frame = request(91, values=(bytes(60_000),))
        async with trio.open_nursery() as nursery:
            await far.client.send_all(request(90) + frame[:40_000])
            assert await receive_exactly(far.broker, len(request(90))) == request(90)
            await until(lambda: inbound.partial_bytes == 40_000)
            nursery.start_soon(far.client.send_all, frame[40_000:])
            await until(lambda: inbound.waits_for_memory)
            assert not far.link.client.event_mask & IN, "it is read on"
            await other.client.send_all(held[100_000:])
            assert await receive_exactly(other.broker, len(held)) == held
            assert await receive_exactly(far.broker, len(frame)) == frame
        await until(lambda: budget.used_bytes == 0)


async def test_nothing_more_is_read_where_memory_is_short_for_what_is_owed() -> None:
    async with opened() as far:
        indexes = list(range(FEW_PARTITIONS + 1))
        for correlation in (60, 61):
            if correlation == 61:
                far.stage.reactor.budget.limit_bytes = 1000
            await far.pass_request(request(correlation, {"clicks": indexes}))
            assert (far.link.client.event_mask & IN == 0) == (correlation == 61)
            await far.pass_answer(answer(correlation, {"clicks": dict.fromkeys(indexes, (0, 0))}))
        assert far.link.client.event_mask & IN
        await far.exchange()


async def test_the_gateways_own_answer_comes_right_behind_the_brokers() -> None:
    async with opened() as far:
        frame = request(60)
        await far.client.send_all(frame + other_request(61, key=api.API_VERSIONS, version=100))
        assert await receive_exactly(far.broker, len(frame)) == frame
        await far.pass_answer(answer(60))
        size, correlation, code = struct.unpack(">iih", await receive_exactly(far.client, 10))
        assert (correlation, code) == (61, 35), "it was not told of UNSUPPORTED_VERSION"
        await receive_exactly(far.client, size - 6)
        await far.exchange()
        assert far.is_open


async def test_half_an_answer_of_another_api_streams_through_before_it_opens_again() -> None:
    async with opened() as far:
        await far.pass_request(other_request(70) + request(71))
        reply = other_answer(70, bytes(1000)) + answer(71)
        for i in range(0, len(reply), 100):
            await far.pass_answer(reply[i : i + 100])
        await far.exchange()
        assert far.is_open


# --- answers that nobody looks at -------------------------------------------------------------------------------------


@pytest.fixture(params=["pipe", "no pipe"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class _Look:
    """A session's on_upstream, and how many bytes it has handled."""

    def __init__(self, look: Callable[[bytearray, int, int, float], int]) -> None:
        self._look = look
        self.looked_at = 0

    def __call__(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        after = self._look(buf, pos, end, now)
        self.looked_at += after - pos
        return after


class Consumer(Far):
    """Of Fetch answers, which are sent and expected as they are."""

    def __init__(self, far: Far, way: str) -> None:
        self.stage, self.link, self.client, self.broker, self.told = far.stage, far.link, far.client, far.broker, 1000
        self._look = self.link.session.on_upstream_bytes = _Look(self.link.session.on_upstream_bytes)
        if way == "no pipe":
            self.stage.reactor.shared.close_pipe()

    @property
    def looked_at(self) -> int:
        """Bytes of answers."""
        return self._look.looked_at

    @property
    def buffer(self) -> memoryview:
        """The part of the shared buffer that sockets are read into."""
        return memoryview(self.stage.reactor.shared.buffer)[HEAD_ROOM:]

    async def pass_pieces(self, frame: bytes, expected: bytes) -> None:
        """An answer in pieces that the client's socket takes at once."""
        for start in range(0, len(frame), 50_000):
            await self.broker.send_all(frame[start : start + 50_000])
            piece = expected[start : start + 50_000]
            assert await receive_exactly(self.client, len(piece)) == piece

    async def ask(self, version: int = 17) -> int:
        self.told += 1
        await self.pass_request(fetch(self.told, version))
        return self.told


def fetched(
    correlation: int, sizes: tuple[int, ...], version: int = 17, *, key: int = api.FETCH
) -> tuple[bytes, bytes]:
    """An answer with records of these sizes, as the broker sends it and as the client gets it."""
    topics = {session_fetches.ORDERS: [bytes(size) for size in sizes]}
    frame = session_fetches.fetched(correlation, version, topics, key=key)
    hidden = bytearray(frame)
    EndpointHider(key, version, len(frame) - 4).feed(hidden, 4, len(frame))
    return frame, bytes(hidden)


async def test_of_a_large_answer_the_link_is_told_nothing(way: str) -> None:
    async with opened() as far:
        consumer, asked = Consumer(far, way), far.asked
        for version in (12, 17):
            frame, expected = fetched(await consumer.ask(version), (200_000, 0, 200_000), version)
            await consumer.pass_pieces(frame, expected)
            await far.exchange()
            assert (far.asked, consumer.looked_at) == (asked, 0)
        assert far.stage.play.rows() == {("clicks", "accepted", ""): (5 * size_of(), 5, 5)}
        assert far.stage.play.counts["requests"] == 5 + 2
        assert far.stage.play.counts[f"{API_REQUESTS}{api.FETCH}"] == 2


async def test_records_pass_unseen_by_the_pipe_if_there_is_one(way: str) -> None:
    async with opened() as far:
        consumer = Consumer(far, way)
        mark = b"\xee" * len(consumer.buffer)
        frame, expected = fetched(await consumer.ask(), (400_000,))
        for start, stop in ((0, 50_000), (50_000, 250_000), (250_000, len(frame))):
            consumer.buffer[:] = mark
            await consumer.pass_pieces(frame[start:stop], expected[start:stop])
            is_unseen = start == 50_000  # neither the beginning nor the end
            assert (consumer.buffer == mark) == (is_unseen and way == "pipe")


async def test_how_much_may_pass_unseen_is_known_after_every_piece(way: str) -> None:
    async with opened() as far, trio.open_nursery() as nursery:
        consumer, in_flight = Consumer(far, way), far.link.session.in_flight
        frame, expected = fetched(await consumer.ask(), (3_000_000,))
        for start, stop in ((0, 100_000), (100_000, 150_000), (150_000, 700_000), (700_000, len(frame))):
            nursery.start_soon(far.broker.send_all, frame[start:stop])
            assert await receive_exactly(far.client, stop - start) == expected[start:stop]
            if stop < len(frame):
                assert in_flight.stream_walker is not None
                assert in_flight.stream_walker.left == len(frame) - stop
                assert 2_000_000 < in_flight.stream_walker.unread < in_flight.stream_walker.left
        assert in_flight.stream_walker is None


async def test_whether_records_pass_unseen_is_asked_anew_when_it_was_shut() -> None:
    async with opened() as far:
        shortcut = far.link.shortcut
        assert shortcut.splices_unseen
        shortcut.invalidate_terms()
        assert not shortcut.splices_unseen
        await far.exchange()
        assert shortcut.splices_unseen


async def test_a_client_that_has_said_all_gets_the_rest_of_an_answer(way: str) -> None:
    async with opened() as far:
        frame, expected = fetched(await Consumer(far, way).ask(), (1_000_000,))
        await far.pass_answer(frame[:100_000], expected[:100_000])
        await far.client.send_eof()
        await until(lambda: not far.link.client.state.is_read)
        await far.pass_answer(frame[100_000:], expected[100_000:])


async def test_of_an_answer_that_passes_unseen_the_rest_arrives_later_in_order(way: str) -> None:
    async with opened(small=True) as far, trio.open_nursery() as nursery:
        consumer = Consumer(far, way)
        frame, expected = fetched(await consumer.ask(), (600_000, 200_000))
        nursery.start_soon(far.broker.send_all, frame)
        await until(lambda: far.link.client.outbound.pieces)
        assert not far.link.upstream.event_mask & IN, "it is read on"
        assert await receive_exactly(far.client, len(frame)) == expected
        await far.exchange()
        await until(lambda: far.stage.reactor.budget.used_bytes == 0)


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("who", ["client", "broker"])
async def test_an_end_within_an_answer_that_passes_unseen_ends_its_own_link(who: str, end: str, way: str) -> None:
    async with opened() as far, trio.open_nursery() as nursery:
        other = Far(far.stage)
        await other.open()
        consumer = Consumer(far, way)
        frame, expected = fetched(await consumer.ask(), (20_000_000,))
        await far.pass_answer(frame[:100_000], expected[:100_000])
        if who == "client":
            nursery.start_soon(send_in_vain, far.broker.send_all, frame[100_000:])
            await until(lambda: far.link.client.outbound.pieces)
        await far.end(who, end)
        await until(lambda: far.link.is_closed)
        await other.pass_answer(
            *fetched(await Consumer(other, "pipe").ask(), (3_000_000,))
        )  # nothing is left in the pipe


async def test_an_answer_that_cannot_be_followed_passes_unseen_too_and_is_counted(way: str) -> None:
    async with opened() as far:
        consumer, asked = Consumer(far, way), far.asked
        correlation = await consumer.ask()
        frame = struct.pack(">ii", 200_004, correlation) + b"\xff" * 200_000
        await consumer.pass_pieces(frame, frame)
        await far.exchange()
        assert (far.asked, consumer.looked_at) == (asked, 0)
        assert far.counted("answers_not_followed") == 1


async def test_answers_pass_unseen_where_each_request_has_to_be_looked_at(way: str) -> None:
    async with opened() as far:
        far.link.session.client.needs_judging = True
        far.stage.play.world.ledger.advance_epoch()
        consumer = Consumer(far, way)
        await far.pass_answer(*fetched(await consumer.ask(), (3_000_000,)))
        assert 0 < consumer.looked_at < 1_000_000
        assert not far.is_open


async def test_a_quota_on_time_is_told_of_every_event_for_as_long_as_it_is_there(way: str) -> None:
    async with opened() as far:
        consumer, world = Consumer(far, way), far.stage.play.world
        limits = {QuotaKey("request_percentage", "percent"): 1e5}
        for version, entries in enumerate(({Entity(DEFAULT): limits}, {}), 1):
            world.set_quotas(QuotaSnapshot(version, entries), trio.current_time())
            before = consumer.looked_at
            frame, expected = fetched(await consumer.ask(), (400_000,))
            await consumer.pass_pieces(frame, expected)
            assert far.link.shortcut.splices_unseen == (not entries)
            assert (consumer.looked_at - before == len(frame)) == bool(entries)


async def test_while_memory_is_short_less_passes_unseen_at_once(way: str) -> None:
    async with opened() as far, trio.open_nursery() as nursery:
        consumer, shared = Consumer(far, way), far.stage.reactor.shared
        frame, expected = fetched(await consumer.ask(), (20_000_000,))
        await far.pass_answer(frame[:100_000], expected[:100_000])
        shared.limit_reads(is_short=True)
        nursery.start_soon(far.broker.send_all, frame[100_000:])
        await until(lambda: far.link.client.outbound.pieces)
        assert sum(map(len, far.link.client.outbound.pieces)) <= len(shared.read_view) < 100_000
        assert await receive_exactly(far.client, len(frame) - 100_000) == expected[100_000:]


async def test_urgent_data_is_passed_over(way: str) -> None:
    async with opened() as far:
        frame, expected = fetched(await Consumer(far, way).ask(), (3_000_000,))
        await far.pass_answer(frame[:400_000], expected[:400_000])
        await far.broker.socket.send(b"!", socket.MSG_OOB)
        await far.pass_answer(frame[400_000:], expected[400_000:])


async def test_an_error_of_the_pipe_ends_one_link_and_no_other_gets_its_bytes() -> None:
    async with opened() as far, trio.open_nursery() as nursery:
        other = Far(far.stage)
        await other.open()
        frame, expected = fetched(await Consumer(far, "pipe").ask(), (20_000_000,))
        await far.pass_answer(frame[:100_000], expected[:100_000])
        shared = far.stage.reactor.shared
        assert shared.pipe is not None
        read_end, empty = os.dup(shared.pipe[0]), os.pipe2(os.O_NONBLOCK)
        os.dup2(empty[0], shared.pipe[0])
        nursery.start_soon(send_in_vain, far.broker.send_all, frame[100_000:])
        await until(lambda: far.link.is_closed)
        assert [type(bug) for bug in far.stage.bugs] == [BlockingIOError]
        far.stage.bugs.clear()
        await other.pass_answer(*fetched(await Consumer(other, "pipe").ask(), (3_000_000,)))
        for end in (read_end, *empty):
            os.close(end)


def test_a_pipe_that_may_not_be_large_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, before = SharedReadBuffer(), len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("gateway.data.sockets.inbound.PIPE_BYTES", 1 << 31)  # a size that nobody may have
    shared.open_pipe()
    assert shared.pipe is None
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("small", [False, True], ids=["large buffers", "small buffers"])
async def test_answers_of_all_sizes_cut_anywhere_arrive_whole(seed: int, small: bool, way: str) -> None:
    """Some of Fetch and ShareFetch, some of Produce, some the gateway's own, some of neither; the pieces and turns of
    both sides decide their ways.
    """
    random = Random(seed)
    most = 200_000 if small else 2_000_000
    requests, frames, expected = [], [], []
    sent = b""
    for i in range(2000, 2040):
        kind = random.random()
        if kind < 0.6:
            key = random.choice((api.FETCH, api.FETCH, api.FETCH, api.SHARE_FETCH))
            version = random.choice((11, 12, 16, 17, 18) if key == api.FETCH else (1, 2))
            sizes = tuple(int(most ** random.random()) for _ in range(random.choice((0, 1, 1, 3))))
            frame, hidden = fetched(i, sizes, version, key=key)
            requests.append(fetch(i, version, key=key))
        elif kind < 0.65:
            sent += other_request(i, key=api.API_VERSIONS, version=100)
            expected.append(rewrite.unsupported_api_versions(i))
            continue
        elif kind < 0.8:
            frame = hidden = answer(i, {"clicks": {0: (0, i)}})
            requests.append(request(i))
        else:
            frame = hidden = other_answer(i, random.randbytes(int(most ** random.random())))
            requests.append(other_request(i))
        sent += requests[-1]
        frames.append(frame)
        expected.append(hidden)
    stream = b"".join(frames)

    async with opened(small=small) as far:
        consumer = Consumer(far, way)
        await consumer.client.send_all(sent)
        forwarded = b"".join(requests)
        assert await receive_exactly(far.broker, len(forwarded)) == forwarded
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_cut, far.broker, stream, random)
            for frame in expected:
                assert await receive_exactly(far.client, len(frame)) == frame
        await until(lambda: far.stage.reactor.budget.used_bytes == 0)
        await far.open()


# --- requests larger than a read --------------------------------------------------------------------------------------


def large(correlation: int) -> bytes:
    return request(correlation, values=(bytes(SHARED_READ_BYTES + 50_000),))


async def pass_large(far: Far, correlation: int) -> None:
    frame = large(correlation)
    await far.pass_request(frame)
    await far.pass_answer(answer(correlation, {"clicks": {0: (0, correlation)}}))


async def test_behind_a_large_request_the_next_one_is_read_into_its_own_buffer() -> None:
    async with opened() as far:
        shared = far.stage.reactor.shared.buffer
        await pass_large(far, 50)
        frame = large(51)
        shared[:] = bytes(len(shared))
        await far.begin_request(frame, 1000)
        assert not any(shared), "it was copied"
        await passes(far.client, far.broker, frame[1000:], frame)
        await far.pass_answer(answer(51, {"clicks": {0: (0, 51)}}))
        await far.exchange()  # a small one: its head is looked at in vain
        await far.exchange()
        assert far.link.shortcut.forwards_requests
        assert far.stage.reactor.budget.used_bytes == 0
        assert far.stage.play.rows()["clicks", "accepted", ""][2] == 7


async def test_answers_take_it_while_a_large_request_comes() -> None:
    async with opened() as far:
        await pass_large(far, 50)
        frame = large(53)
        await far.pass_request(request(51) + request(52))
        await far.begin_request(frame, 1000)
        await far.pass_answer(answer(51, {"clicks": {0: (0, 51)}}))
        assert far.is_open
        asked = far.asked
        await far.pass_answer(answer(52, {"clicks": {0: (0, 52)}}))
        assert far.asked == asked
        await passes(far.client, far.broker, frame[1000:], frame)
        await far.pass_answer(answer(53, {"clicks": {0: (0, 53)}}))
        assert far.stage.play.rows()["clicks", "accepted", ""][2] == 7


async def test_a_large_request_takes_it_to_its_end() -> None:
    async with opened() as far:
        await pass_large(far, 50)
        watch = far.link._watch
        frame = large(51)
        await far.begin_request(frame, 1000)
        asked = far.asked
        for i in range(1000, 5000, 1000):
            await far.begin_request(frame, i + 1000, i)
        watch.frame_since = 1.0
        await passes(far.client, far.broker, frame[5000:], frame)
        assert far.asked == asked, "the link was asked"
        assert watch.frame_since == 0.0, "its client would be held to be slow"
        assert far.stage.reactor.budget.used_bytes == 0
        await far.pass_answer(answer(51, {"clicks": {0: (0, 51)}}))
        assert far.stage.play.rows()["clicks", "accepted", ""][2] == 5


async def test_of_a_large_request_what_a_broker_does_not_take_at_once_arrives_later() -> None:
    async with opened(small=True) as far, trio.open_nursery() as nursery:
        await pass_large(far, 49)  # it leaves a buffer
        frames = b"".join(large(i) for i in range(50, 52))
        asked, upstream = far.asked, far.link.upstream
        nursery.start_soon(far.client.send_all, frames)
        await until(lambda: upstream.outbound.pieces)
        assert upstream.event_mask == IN | OUT
        assert not far.link.client.event_mask & IN, "it is read on"
        assert await receive_exactly(far.broker, len(frames)) == frames
        assert far.asked == asked, "the link was asked"
        await until(lambda: far.stage.reactor.budget.used_bytes == 0)
        assert far.counted("requests") == 6


async def test_a_broker_takes_more_and_answers_at_once() -> None:
    async with opened(small=True) as far, trio.open_nursery() as nursery:
        await far.pass_request(request(50))
        frame, upstream = large(51), far.link.upstream
        nursery.start_soon(far.client.send_all, frame)
        await until(lambda: upstream.outbound.pieces)
        asked, taken = far.asked, b""
        own = socket.socket(fileno=os.dup(far.broker.socket.fileno()))
        own.setblocking(False)
        with own, suppress(BlockingIOError):
            # Nothing else runs between these, so the next event is both.
            own.send(reply := answer(50, {"clicks": {0: (0, 50)}}))
            while True:
                taken += own.recv(2**20)
        assert taken
        taken += await receive_exactly(far.broker, len(frame) - len(taken))
        assert taken == frame
        assert await receive_exactly(far.client, len(reply)) == reply
        assert far.asked == asked, "the link was asked"


async def test_a_client_of_large_requests_is_seen_to_have_none_waiting() -> None:
    """Else, after a while, a limit would refuse its requests at once instead of delaying them."""
    async with opened() as far:
        hold = far.link.session.hold
        for i in range(50, 53):
            before = trio.current_time()
            await pass_large(far, i)
            far.link.shortcut.invalidate_terms()
            assert hold.drained_at >= before


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_client_that_ends_within_a_large_request_ends_the_link(end: str) -> None:
    async with opened() as far:
        await pass_large(far, 50)
        await far.begin_request(large(51), 1000)
        await far.end("client", end)
        with suppress(trio.BrokenResourceError):
            assert await far.broker.receive_some(1) == b""
        await far.broker.aclose()
        await until(lambda: far.link.is_closed)
        assert far.stage.reactor.budget.used_bytes == 0
        assert far.counted("disconnects_client") == 1


async def test_where_there_is_no_memory_at_once_it_waits_as_any_other() -> None:
    async with opened() as far:
        far.stage.reactor.budget.limit_bytes = 2 * len(large(0))
        other = Far(far.stage)
        await pass_large(far, 50)
        held = large(60)
        for come in (1000, 2000):
            await other.begin_request(held, come, come - 1000)
        frame = large(51)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.client.send_all, frame)
            await until(lambda: far.link.client.inbound.waits_for_memory)
            nursery.start_soon(other.client.send_all, held[2000:])
            assert await receive_exactly(other.broker, len(held)) == held
            assert await receive_exactly(far.broker, len(frame)) == frame
        await until(lambda: far.stage.reactor.budget.used_bytes == 0)


@pytest.mark.parametrize(
    ("next_one", "cause"),
    [
        (b"\x7f\xff\xff\xff" + bytes(20), "disconnects_malformed"),
        (b"\0\x10", "disconnects_client"),
        (b"", "disconnects_client"),
    ],
    ids=["malformed", "half a prefix", "an end"],
)
async def test_what_else_may_stand_behind_a_large_request(next_one: bytes, cause: str) -> None:
    async with opened() as far:
        await pass_large(far, 50)
        if next_one:
            await far.client.send_all(next_one)
        await far.client.send_eof()
        assert await far.broker.receive_some(1) == b""
        await far.broker.aclose()
        await until(lambda: far.link.is_closed)
        assert far.counted(cause) == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("small", [False, True], ids=["large buffers", "small buffers"])
async def test_requests_of_all_sizes_cut_anywhere_arrive_whole_and_are_counted(seed: int, small: bool) -> None:
    """The sockets' buffers, the cuts and the turns of the four who read and write decide which way each one takes."""
    random = Random(seed)
    most = 100_000 if small else 700_000
    frames = []
    for i in range(100, 140):
        size = int(most ** random.random())
        is_other = random.random() < 0.1
        frames.append(other_request(i, body=bytes(size)) if is_other else request(i, values=(random.randbytes(size),)))
    stream = b"".join(frames)

    async def answer_all(far: Far) -> None:
        for i, frame in enumerate(frames, 100):
            assert await receive_exactly(far.broker, len(frame)) == frame
            is_other = frame[5] != 0
            await far.broker.send_all(other_answer(i, bytes(300)) if is_other else answer(i))
            for _ in range(random.choice((0, 0, 20))):
                await trio.lowlevel.checkpoint()

    async with opened(small=small) as far:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_cut, far.client, stream, random)
            nursery.start_soon(answer_all, far)
            for i in range(100, 140):
                size, correlation = struct.unpack(">ii", await receive_exactly(far.client, 8))
                assert correlation == i
                await receive_exactly(far.client, size - 4)
        assert far.stage.reactor.budget.used_bytes == 0
        usual = [frame for frame in frames if frame[5] == 0]
        assert far.stage.play.rows()["clicks", "accepted", ""][2] == 3 + len(usual)
        await far.open()


async def test_what_waits_while_the_broker_takes_nothing_is_not_taken_for_new() -> None:
    async with opened(small=True) as far, trio.open_nursery() as nursery:
        await pass_large(far, 50)
        nursery.start_soon(far.client.send_all, large(51))
        await until(lambda: far.link.upstream.outbound.pieces)
        await far.client.send_all(request(52))
        sent_at = trio.current_time()
        assert await receive_exactly(far.broker, len(large(51))) == large(51)
        assert await receive_exactly(far.broker, len(request(52))) == request(52)
        far.link.shortcut.invalidate_terms()
        assert far.link.session.hold.drained_at < sent_at


@pytest.mark.parametrize("why", ["a mute", "a broker that takes nothing"])
async def test_a_client_that_has_said_nothing_since_it_was_held_is_not_taken_for_waiting(why: str) -> None:
    # Else one that is idle for 15 s behind that, or has one request in flight all the time, is refused and not delayed.
    async with opened(small=True) as far, trio.open_nursery() as nursery:
        if why == "a mute":
            far.link.shortcut.invalidate_terms()
            far.stage.mute(far.link)
            frame = request(50)
        else:
            frame = large(50)
        nursery.start_soon(far.client.send_all, frame)
        await until(lambda: far.link.parked.input_slice is not None or far.link.upstream.outbound.pieces)
        held_at = trio.current_time()
        if why == "a mute":
            far.stage.end_mute(far.link)
        assert await receive_exactly(far.broker, len(frame)) == frame
        await far.pass_answer(answer(50))
        far.told = 50
        await far.exchange()
        far.link.shortcut.invalidate_terms()
        assert far.link.session.hold.drained_at > held_at


# --- what shuts it ----------------------------------------------------------------------------------------------------


async def test_an_answer_of_our_own_waits_for_its_turn() -> None:
    async with opened(Play().named(JAVA)) as far:
        play, (first, second) = far.stage.play, (request(80), request(81, {"payments": [0]}))
        far.link.session.client.software = JAVA
        await far.pass_request(request(79, {"payments": [0]}))
        await far.pass_answer(answer(79, {"payments": {0: (0, 0)}}))
        await far.exchange()
        assert far.is_open
        play.engine.broker_meters(1).topics[b"payments"].mark(10**9)
        play.world.set_policy(ThresholdPolicy(1, 1.0, {"payments": 1.0, "clicks": 1e12}))
        play.engine.apply_due_ticks(play.engine.next_tick_at)
        play.world.ledger.advance_epoch()
        await far.client.send_all(first + second)
        assert await receive_exactly(far.broker, len(first)) == first
        reply = answer(80)
        await passes(far.broker, far.client, reply)
        size = struct.unpack(">i", await receive_exactly(far.client, 4))[0]
        refused = decode_answer(struct.pack(">i", size) + await receive_exactly(far.client, size))
        assert refused[0] == 81
        assert refused[2]["payments", 0][0] != 0


def _ask_for_sasl(far: Far) -> None:
    far.stage.play.world.cluster.wants_sasl = True
    far.stage.play.world.ledger.advance_epoch()


def _end(far: Far) -> None:
    far.link.drain("disconnects_drain", trio.current_time())


def _mute(far: Far) -> None:
    play = far.stage.play
    play.world.set_quotas(
        QuotaSnapshot(1, {Entity(DEFAULT): {QuotaKey("producer_byte_rate", "broker_bps"): 1.0}}), trio.current_time()
    )


def _pause(far: Far) -> None:
    play = far.stage.play
    play.engine.set_storage_factor(0.0, "broker 1 volume /data is full", 0.0)
    play.world.ledger.advance_epoch()


@pytest.mark.parametrize("change", [_ask_for_sasl, _end, _pause])
async def test_what_is_not_to_pass_any_more_does_not(change: Callable[[Far], None]) -> None:
    async with opened() as far:
        change(far)
        await far.client.send_all(request(90))
        await until(
            lambda: far.link.is_closed or far.link.parked.input_slice is not None or far.link.session.hold.is_draining
        )
        with trio.move_on_after(0.05):
            data = await far.broker.receive_some(1)
            assert data == b"", "a request was forwarded"


async def test_a_quota_that_is_set_holds_for_the_next_request() -> None:
    async with opened() as far:
        _mute(far)
        frames = [request(i, values=(bytes(1000),)) for i in range(90, 94)]
        for frame in frames:
            await far.client.send_all(frame)
        await until(lambda: far.link.parked.input_slice is not None)
        assert not far.is_open


async def test_a_quota_of_consumers_that_is_set_holds_for_the_next_fetch() -> None:
    async with opened() as far:
        await far.pass_request(fetch(90, 17))
        await far.pass_answer(*fetched(90, ()))
        assert far.is_open
        key = QuotaKey("consumer_byte_rate", "broker_bps")
        far.stage.play.world.set_quotas(QuotaSnapshot(1, {Entity(DEFAULT): {key: 1e9}}), trio.current_time())
        await far.client.send_all(fetch(91, 17))
        await until(lambda: bool(far.link.session.in_flight))
        assert [entry[1] for entry in far.link.session.in_flight] == [pending.FETCH]


async def test_a_client_that_takes_another_name_is_counted_under_it() -> None:
    async with opened() as far:
        await far.pass_request(request(90, client_id="other"))
        await far.pass_answer(answer(90))
        assert {row.client_id: row.requests for row in far.stage.play.ledger()} == {"app": 3, "other": 1}


async def test_one_broker_that_asks_for_sasl_shuts_those_of_all() -> None:
    async with opened() as far:
        other = Far(far.stage)
        await other.pass_request(other_request(1, key=api.SASL_HANDSHAKE, version=1, body=b"\0\5PLAIN"))
        await other.pass_answer(other_answer(1, b"\0\0\0\0\0\1\0\5PLAIN"))
        assert far.stage.play.world.cluster.wants_sasl
        await far.client.send_all(request(90))
        await until(lambda: far.link.is_closed)


# --- sockets ----------------------------------------------------------------------------------------------------------


async def test_what_a_broker_does_not_take_at_once_arrives_later_in_order() -> None:
    async with opened(small=True) as far, trio.open_nursery() as nursery:
        await far.pass_request(request(98) + request(99))
        frames = b"".join(request(i, values=(bytes(3000),)) for i in range(100, 300))
        nursery.start_soon(far.client.send_all, frames)
        await until(lambda: far.link.upstream.outbound.pieces)
        assert not far.is_open
        for i in range(98, 103):  # answers pass meanwhile; requests must not
            await far.pass_answer(answer(i, {"clicks": {0: (0, i)}}))
            if far.is_open and far.link.upstream.outbound.pieces:  # else the socket took a little more just behind it
                break
        else:
            pytest.fail("the shortcut passed no answer while requests waited")
        assert not far.link.shortcut.forwards_requests
        assert await receive_exactly(far.broker, len(frames)) == frames


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("who", ["client", "broker"])
async def test_an_end_of_either_side_ends_the_link_under_its_name(who: str, end: str) -> None:
    async with opened() as far:
        await far.end(who, end)
        other = far.broker if who == "client" else far.client
        try:
            assert await other.receive_some(1) == b""
            await other.aclose()
        except trio.BrokenResourceError:
            pass
        await until(lambda: far.link.is_closed)
        assert far.counted(f"disconnects_{'client' if who == 'client' else 'upstream'}") == 1


async def test_a_bug_ends_its_own_link() -> None:
    async with opened() as far:
        fine = Far(far.stage)
        await far.pass_request(request(90))
        far.link.session.client.accepted_rows[b"clicks"] = []  # which nothing makes of it
        await far.broker.send_all(answer(90))
        await until(lambda: far.link.is_closed)
        assert [type(bug) for bug in far.stage.bugs] == [IndexError]
        far.stage.bugs.clear()
        await fine.exchange()
