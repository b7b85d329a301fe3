# The shortcut of links of which a side speaks TLS: usual traffic takes it, and whatever comes, cut anywhere and in
# records of any size, has the outcome that it has on the ordinary path. On real sockets, without sleeps.

from __future__ import annotations

import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import trio

from gateway.data.relay.links import RelayLink
from gateway.data.sockets.reactor import IN
from gateway.data.sockets.tls import MAX_FEED_BYTES
from gateway.tls.broker_tls import BrokerTls
from gateway.tls.certificates import ListenerTls
from protocol import api
from protocol.rewriting import rewrite
from tests import variants
from tests.background import until
from tests.certificates import Authority
from tests.examples import matrix
from tests.gateway.data.play import answer, other_answer, other_request, request, size_of
from tests.gateway.data.relay import stage as stage_module
from tests.gateway.data.relay import tls_stage
from tests.gateway.data.relay.stage import Stage, count_asked, receive_exactly, reset, staged
from tests.gateway.data.relay.tls_stage import NewKeys, Plain, Secure, TlsStage, openssl_client, say

pytestmark = pytest.mark.usefixtures("no_circles")

WAYS = ("client", "broker", "both")  # who speaks TLS
FIRST = 100  # the correlation of the first request behind those that open the shortcut
BROKEN_RECORD = b"\x17\x03\x03\0\x20" + bytes(32)


@pytest.fixture(autouse=True)
def compiled() -> None:
    variants.module("gateway.data.relay.shortcut", variants.COMPILED)  # fails or skips where it is not


@pytest.fixture(scope="module")
def server(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("gateway")


class Far:
    """The far ends of a link, each of which has `send`, `receive` and a `stream`."""

    def __init__(self, stage: Stage, link: RelayLink, client: Any, broker: Any) -> None:
        self.stage, self.link, self.client, self.broker = stage, link, client, broker
        self.asked = 0  # times that the shortcut has asked the link on which terms

    async def exchange(self, correlation: int) -> None:
        await self.pass_request(request(correlation))
        await self.pass_answer(answer(correlation))

    async def pass_request(self, frame: bytes) -> None:
        await self.client.send(frame)
        assert await self.broker.receive(len(frame)) == frame

    async def pass_answer(self, frame: bytes) -> None:
        await self.broker.send(frame)
        assert await self.client.receive(len(frame)) == frame


Opened = Callable[..., Any]


@pytest.fixture
def opened(authority: Authority, server: tuple[Path, Path]) -> Opened:
    """A link whose usual traffic has come to take the shortcut, if that variant has one."""

    @asynccontextmanager
    async def begin(way: str, variant: str = variants.COMPILED, *, small: bool = False) -> AsyncIterator[Far]:
        with variants.running(variant), pytest.MonkeyPatch.context() as patch:
            tls = variants.module("gateway.data.sockets.tls", variant)
            patch.setattr(tls_stage, "TlsConnection", tls.TlsConnection)
            async with staged() as stage:
                far = await _connect(stage, way, small)
                count_asked(far, patch)
                for correlation in range(3):  # a topic has to be known, and to have a row
                    await far.exchange(correlation)
                assert (far.link.shortcut.terms is not None) == (variant == variants.COMPILED)
                yield far

    async def _connect(stage: Stage, way: str, small: bool) -> Far:
        if way == "client":
            listener = ListenerTls(str(server[0]), str(server[1]))
            link, client, stream = await TlsStage(stage, authority, listener).connect(small=small)
            return Far(stage, link, client, Plain(stream))
        trusting = BrokerTls(ca=str(authority.certificate))
        secure = Secure(stage, trusting, server, "TLS" if way == "both" else "plain")
        return Far(stage, *await secure.connect(small=small))

    return begin


# --- what takes it ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_usual_traffic_takes_it_and_is_counted_to_the_byte(opened: Opened, way: str) -> None:
    async with opened(way) as far:
        asked = far.asked
        for correlation in range(3, 20):
            await far.exchange(correlation)
        assert far.asked == asked, "the link was asked"
        assert far.stage.play.rows() == {("clicks", "accepted", ""): (20 * size_of(), 20, 20)}


@pytest.mark.parametrize(("way", "record"), matrix(WAYS, [1, 100, 16_384]))
async def test_whole_requests_in_many_records_take_it(opened: Opened, way: str, record: int) -> None:
    async with opened(way) as far:
        asked = far.asked
        frames = b"".join(request(i) for i in range(FIRST, FIRST + 20))
        data = frames if way == "broker" else far.client.encrypt(frames, record)
        await far.client.stream.send_all(data)
        assert await far.broker.receive(len(frames)) == frames
        await far.pass_answer(b"".join(answer(i) for i in range(FIRST, FIRST + 20)))
        assert far.asked == asked, "the link was asked"
        assert far.stage.play.rows()["clicks", "accepted", ""] == (23 * size_of(), 23, 23)


@pytest.mark.parametrize("way", WAYS)
async def test_large_requests_are_read_by_it(opened: Opened, way: str) -> None:
    async with opened(way) as far, trio.open_nursery() as nursery:
        frames = b"".join(request(i, values=(bytes(300_000),)) + request(i + 1) for i in range(FIRST, FIRST + 20, 2))
        nursery.start_soon(far.client.send, frames)
        assert await far.broker.receive(len(frames)) == frames
        await far.pass_answer(b"".join(answer(i) for i in range(FIRST, FIRST + 20)))
        await until(lambda: far.stage.reactor.budget.used_bytes == 0)
        assert far.stage.play.rows()["clicks", "accepted", ""][2] == 23


@pytest.mark.parametrize("way", ["client", "both"])
async def test_what_a_client_does_not_take_is_kept_encrypted_and_arrives_in_order(opened: Opened, way: str) -> None:
    async with opened(way, small=True) as far, trio.open_nursery() as nursery:
        await far.pass_request(other_request(FIRST) + request(FIRST + 1))
        frames = other_answer(FIRST, Random(1).randbytes(500_000)) + answer(FIRST + 1)
        nursery.start_soon(far.broker.send, frames)
        await until(lambda: far.link.client.outbound.pieces)
        assert not far.link.upstream.event_mask & IN, "the broker is read on"
        assert await far.client.receive(len(frames)) == frames
        await far.exchange(FIRST + 2)
        await until(lambda: far.stage.reactor.budget.used_bytes == 0)


@pytest.mark.parametrize("way", ["broker", "both"])
async def test_what_a_broker_does_not_take_is_kept_encrypted_and_arrives_in_order(opened: Opened, way: str) -> None:
    async with opened(way, small=True) as far, trio.open_nursery() as nursery:
        frames = b"".join(request(i, values=(bytes(20_000),)) for i in range(FIRST, FIRST + 30))
        nursery.start_soon(far.client.send, frames)
        await until(lambda: far.link.upstream.outbound.pieces)
        assert not far.link.client.event_mask & IN, "the client is read on"
        assert await far.broker.receive(len(frames)) == frames
        await far.pass_answer(b"".join(answer(i) for i in range(FIRST, FIRST + 30)))
        await until(lambda: far.stage.reactor.budget.used_bytes == 0)


async def test_a_new_key_is_answered_and_requests_go_on(authority: Authority, server: tuple[Path, Path]) -> None:
    # From outside it looks like data. This client is openssl's, whose command for a new key of both sides is K.
    listener = ListenerTls(str(server[0]), str(server[1]))
    async with staged() as stage:
        async with openssl_client(stage, authority, listener, "-tls1_3", "-msg") as (link, process, broker):
            for correlation in range(6):
                if correlation == 3:
                    assert link.shortcut.terms is not None
                    await say(process, b"K\n", rb">>> TLS 1.3, Handshake .*KeyUpdate")
                frame, reply = request(correlation), answer(correlation)
                await say(process, frame, b"")
                assert await receive_exactly(broker, len(frame)) == frame
                await broker.send_all(reply)
                ours = rb"<<< TLS 1.3, Handshake .*KeyUpdate(.|\n)*" if correlation == 3 else b""
                await say(process, b"", ours + re.escape(reply))
            assert not link.is_closed
        assert stage.play.rows() == {("clicks", "accepted", ""): (6 * size_of(), 6, 6)}


@pytest.mark.parametrize("variant", [variants.PURE, variants.COMPILED])
@pytest.mark.parametrize("step", [27 * 9000, 4001])
async def test_a_client_that_sends_nothing_but_new_keys_is_closed_before_it_costs_much(
    opened: Opened, step: int, variant: str
) -> None:
    # Each costs a tenth of a millisecond: a full read of them would stop everybody for a second.
    async with opened("client", variant) as far:
        tls = far.link.client.tls
        keys = tls._ssl_object = NewKeys(tls._incoming)
        data = 9000 * (b"\x17\x03\x03\0\x16" + bytes(22))
        try:
            for at in range(0, len(data), step):
                await far.client.stream.send_all(data[at : at + step])
        except trio.BrokenResourceError:
            pass
        await until(lambda: far.link.is_closed)
        assert 0 < keys.handled <= 128
        assert [line for _, line in far.stage.play.logs if "TLS: too many records without data" in line]


# --- beside the ordinary path -----------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    rows: dict[tuple[str, str, str], tuple[int, int, int]]
    counts: dict[str, int]
    logs: list[tuple[str, str]]


class Script:
    """What a client asks, and what the broker says to it; which pieces and records these come in."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.requests: list[bytes] = []
        self.replies: dict[int, bytes] = {}  # the broker's, by correlation
        self.forwarded = self.answered = b""
        for correlation in range(FIRST, FIRST + 25):
            self._add(correlation)

    def _add(self, correlation: int) -> None:
        random, reply = self._random, b""
        kind = random.random()
        if kind < 0.05:
            frame = other_request(correlation, key=api.API_VERSIONS, version=100)
            self.requests.append(frame)
            self.answered += rewrite.unsupported_api_versions(correlation)
            return
        if kind < 0.2:
            frame = other_request(correlation, body=bytes(random.choice((0, 100, 60_000))))
            reply = other_answer(correlation, random.randbytes(random.choice((2, 5000, 300_000))))
        elif kind < 0.3:
            frame = request(correlation, acks=0)
        elif kind < 0.4:
            parts = list(range(random.choice((3, 30))))
            frame = request(correlation, {"clicks": parts})
            code = random.choice((0, 0, 6))
            reply = answer(correlation, {"clicks": dict.fromkeys(parts, (code, correlation))})
        else:
            size = random.choice((1, 100, 100, 1000, 30_000, 100_000, 600_000))
            frame = request(correlation, values=(random.randbytes(size),))
            reply = answer(correlation, {"clicks": {0: (0, correlation)}})
        self.requests.append(frame)
        self.forwarded += frame
        self.answered += reply
        if reply:
            self.replies[correlation] = reply

    async def send(self, end: Any, data: bytes) -> None:
        """In records and pieces of any size, with others' turns between some of them."""
        random = self._random
        if not isinstance(end, Plain):
            records, at = [], 0
            while at < len(data):
                size = random.choice((50, 300, 1400, 16_384, 16_384))
                records.append(end.encrypt(data[at : at + size]))
                at += size
            data = b"".join(records)
        at = 0
        while at < len(data):
            size = random.choice((7, 1000, MAX_FEED_BYTES, 100_000, 1_000_000))
            await end.stream.send_all(data[at : at + size])
            for _ in range(random.choice((0, 0, 0, 20))):
                await trio.lowlevel.checkpoint()
            at += size

    async def serve(self, broker: Any, received: bytearray) -> None:
        """Answer what comes, until its end."""
        pos = 0
        while True:
            data = await _receive_some(broker)
            if not data:
                await broker.stream.aclose()
                return
            received += data
            replies = b""
            while len(received) - pos >= 12 and len(received) - pos >= struct.unpack_from(">i", received, pos)[0] + 4:
                size, _, _, correlation = struct.unpack_from(">ihhi", received, pos)
                replies += self.replies.get(correlation, b"")
                pos += size + 4
            if replies:
                await self.send(broker, replies)


async def _receive_some(end: Any) -> bytes:
    data: bytes
    try:
        if isinstance(end, Plain):
            data = await end.stream.receive_some(65_536)
        else:
            data = await end.receive(1)
            data += end._object.read(end._object.pending()) if end._object.pending() else b""
    except (AssertionError, trio.BrokenResourceError, trio.ClosedResourceError):  # it has closed, or reset
        return b""
    return data


Ending = Callable[[Far], Awaitable[None]]


async def _say_end(far: Far) -> None:
    await far.client.say_end()


async def _send_fin(far: Far) -> None:
    await far.client.stream.send_eof()


async def _end_within_a_record(far: Far) -> None:
    whole = request(1) if isinstance(far.client, Plain) else far.client.encrypt(request(1))
    await far.client.stream.send_all(whole[:20])
    await far.client.stream.send_eof()


async def _break_a_record(far: Far) -> None:
    await far.client.stream.send_all(BROKEN_RECORD)


async def _reset(far: Far) -> None:
    reset(far.client.stream)


async def _send_too_large_a_request(far: Far) -> None:
    await far.client.send(b"\x7f\xff\xff\xff\0\0\0\7")


async def _close_the_broker(far: Far) -> None:
    await far.broker.stream.aclose()


ENDS = (
    _say_end, _send_fin, _end_within_a_record, _break_a_record, _reset, _send_too_large_a_request, _close_the_broker,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__.strip("_"))
async def test_every_end_has_the_outcome_of_the_ordinary_path(opened: Opened, way: str, end: Ending) -> None:
    fast, ordinary = [
        await _outcome(opened, way, variant, 1, end=end) for variant in (variants.COMPILED, variants.PURE)
    ]
    assert fast == ordinary


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_comes_has_the_outcome_of_the_ordinary_path(
    opened: Opened, way: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Megabytes through buffers of 4 KB wait for the kernel's timers most of the time, and for minutes now and then.
    monkeypatch.setattr(stage_module, "SMALL_KERNEL_BUFFER", 32 * 1024)
    fast, ordinary = [
        await _outcome(opened, way, variant, seed, mutes=bool(seed % 2), small=seed % 4 > 1)
        for variant in (variants.COMPILED, variants.PURE)
    ]
    assert fast == ordinary


async def _outcome(
    opened: Opened, way: str, variant: str, seed: int, *, mutes: bool = False, small: bool = False,
    end: Ending = _send_fin,
) -> Outcome:  # fmt: skip
    script, received, answered = Script(seed), bytearray(), b""
    async with opened(way, variant, small=small) as far, trio.open_nursery() as nursery:
        link, play = far.link, far.stage.play

        async def ask(half: int) -> None:
            await script.send(far.client, b"".join(script.requests[:half]))
            if mutes:
                far.stage.mute(link)
                link.shortcut.invalidate_terms()
            nursery.start_soon(script.send, far.client, b"".join(script.requests[half:]))
            if mutes:
                await until(lambda: link.parked.input_slice is not None)
                far.stage.end_mute(link)

        nursery.start_soon(script.serve, far.broker, received)
        nursery.start_soon(ask, len(script.requests) // 2)
        answered = await far.client.receive(len(script.answered))
        await until(lambda: len(received) == len(script.forwarded))
        await end(far)
        await until(lambda: link.is_closed)
        nursery.cancel_scope.cancel()
    rows = play.rows()
    assert bytes(received) == script.forwarded
    assert answered == script.answered
    assert rows["clicks", "accepted", ""][2] >= 3
    return Outcome(rows, {name: count for name, count in play.counts.items() if count}, play.logs)
