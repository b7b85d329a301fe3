# Frames that are announced and don't come: on links whose clock tests set, and against a real gateway (drips.py).

from __future__ import annotations

from functools import partial

import pytest
import trio

from gateway.data.relay.links import RelayLink
from gateway.data.relay.relief import relieve_memory
from gateway.data.relay.watch import PATIENCE_S
from protocol import api
from tests.background import until
from tests.gateway.data.play import other_request, request
from tests.gateway.data.relay.stage import receive_exactly, staged
from tests.hostile.drips import Way, play
from tests.hostile.live.test_strangers_live import causes, has_come, limits_of
from tests.hostile.strangers import MIB

HALF = 40_000  # bytes, for which there is a buffer


async def half_sent(link: RelayLink, client: trio.SocketStream, frame: bytes) -> None:
    """Of that frame so much has been read."""
    await client.send_all(frame[:HALF])
    await until(partial(has_come, link, HALF))


async def test_a_request_waits_for_no_frame_that_is_only_announced() -> None:
    async with staged(max_buffered_bytes=8_000_000) as stage:
        announced = request(1, values=(bytes(3_000_000),))
        for _ in range(30):
            link, client, _ = stage.connect()
            await half_sent(link, client, announced)
        assert stage.reactor.budget.used_bytes == 30 * HALF
        link, client, broker = stage.connect()
        frame = request(50, values=(bytes(400_000),))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, frame)
            assert await receive_exactly(broker, len(frame)) == frame
        assert not stage.reactor.budget.has_waiters


async def test_no_answer_holds_more_than_what_has_come_of_it() -> None:
    async with staged(max_buffered_bytes=8_000_000) as stage:
        asked = other_request(1, key=api.METADATA, version=1, body=bytes(4))
        links = []
        for _ in range(30):
            link, client, broker = stage.connect()
            await client.send_all(asked)
            await receive_exactly(broker, len(asked))
            await broker.send_all(b"\0\x70\0\0" + asked[8:12] + bytes(HALF - 8))  # 7 MiB
            links.append(link)
        await until(lambda: all(link.upstream.inbound.partial_bytes == HALF for link in links))
        assert stage.reactor.budget.used_bytes == 30 * HALF
        _, client, broker = stage.connect()
        frame = request(50, values=(bytes(400_000),))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, frame)
            assert await receive_exactly(broker, len(frame)) == frame


@pytest.mark.parametrize("drips", [False, True], ids=["says nothing", "drips"])
async def test_of_those_who_wait_the_one_that_sends_nothing_is_ended_and_not_the_other(drips: bool) -> None:
    async with staged(max_buffered_bytes=1_000_000) as stage:
        holder = stage.connect()[0].session.account
        holder.charge_bytes(600_000)  # as of answers that nobody reads
        stays, its, broker = stage.connect()
        stranger, drip, _ = stage.connect()
        other, others, _ = stage.connect()
        frame = request(1, values=(bytes(300_000),))
        for link, client in ((other, others), (stays, its), (stranger, drip)):
            await half_sent(link, client, frame)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(its.send_all, frame[HALF:])
            await until(lambda: stays.client.inbound.waits_for_memory)
            await drip.send_all(b"\0")
            await until(lambda: stranger.client.inbound.waits_for_memory)
            now = trio.current_time()
            relieve_memory(stage.reactor, now, 60.0)
            if drips:
                await drip.send_all(b"\0")
            relieve_memory(stage.reactor, now + PATIENCE_S - 0.5, 60.0)
            assert not stranger.is_closed
            relieve_memory(stage.reactor, now + PATIENCE_S + 0.5, 60.0)
            assert stranger.is_closed
            assert await receive_exactly(broker, len(frame)) == frame
        assert not stays.is_closed
        assert set(causes(stage)) == {"disconnects_slow_request"}
        holder.release_bytes(600_000)


async def test_one_that_has_dripped_for_long_is_ended_as_soon_as_another_waits() -> None:
    async with staged(max_buffered_bytes=1_000_000) as stage:
        holder = stage.connect()[0].session.account
        holder.charge_bytes(600_000)
        stranger, drip, _ = stage.connect()
        stays, its, broker = stage.connect()
        frame = request(1, values=(bytes(300_000),))
        now = trio.current_time()
        await half_sent(stranger, drip, frame)
        stranger.check_progress(now + 10, limits_of(stage))
        assert not stranger.is_closed
        await half_sent(stays, its, frame)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(its.send_all, frame[HALF:])
            await until(lambda: stays.client.inbound.waits_for_memory)
            relieve_memory(stage.reactor, now + 40, 60.0)
            assert stranger.is_closed
            assert await receive_exactly(broker, len(frame)) == frame
        holder.release_bytes(600_000)


@pytest.mark.parametrize(
    "way", [Way(100), Way(10, certificates=True), Way(20, answers=True)], ids=["many", "TLS, as a principal", "answers"]
)
def test_strangers_who_announce_much_and_send_nothing_take_nothing_from_others(way: Way) -> None:
    seen = play(way, 3.0)
    assert not seen.disconnects.keys() - {"client"}, "somebody had to end"  # strangers may have left by themselves
    assert seen.buffered < 16 * MIB, "what is announced is held"
    assert seen.held < 128 * MIB
