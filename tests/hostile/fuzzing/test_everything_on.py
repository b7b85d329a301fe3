# The short form of `make fuzz`: a few thousand inputs with everything on, the same ones everywhere. The rules are those
# of plays.py, crowd.py and web.py; what breaks one is played again with `python -m tests.hostile.fuzz --seed N
# --inputs 1`.

from __future__ import annotations

import struct
from contextlib import suppress
from random import Random

import pytest
import trio

from gateway.channel import AdminAnswer, AdminQuery
from gateway.control.policies.kafka_admin.admin_service import KafkaAdmin
from gateway.control.sasl.authentication import SaslAuthenticator
from protocol.produce import produce_request
from protocol.wire import MalformedFrame
from tests.hostile.fuzzing.control import Control, Ended
from tests.hostile.fuzzing.crowd import gather
from tests.hostile.fuzzing.player import Player
from tests.hostile.fuzzing.plays import Cost, Op, Play, Violation, perform
from tests.hostile.fuzzing.web import Web, surf
from tests.hostile.traffic import frames
from tests.hostile.traffic.captures import captured

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)
POST = b"\x83\x86\x44\x08/metrics\x41\x09localhost"  # of HTTP/2


@pytest.mark.parametrize("first", range(1, 6))
def test_no_play_breaks_a_rule(first: int) -> None:
    cost = Cost()
    for seed in range(100 * first, 100 * first + 8):
        perform(Player(seed, 250, dear=0.002, most=3000), cost)
    assert {"closed", "malformed", "upstream"} <= cost.ends.keys()  # else nobody has got anywhere


@pytest.mark.parametrize("seed", range(1, 9))
def test_no_crowd_ends_another_connection_or_keeps_memory(seed: int) -> None:
    gather(seed, Cost())


@pytest.mark.parametrize("seed", range(1, 9))
def test_nobody_at_the_admin_port_ends_it_or_gets_no_answer(seed: int) -> None:
    surf(seed, Cost())


def test_data_for_a_stream_that_has_been_answered_ends_nobody_else() -> None:
    """112 bytes of HTTP/2, without a token, ended control."""

    class Late(Web):
        async def visit(self, rng: Random) -> None:
            stream = await self.connect()
            with suppress(trio.BrokenResourceError):
                await stream.send_all(
                    PREFACE + struct.pack(">I", len(POST))[1:] + b"\1\4" + struct.pack(">I", 1) + POST
                )
                with trio.move_on_after(1):
                    while await stream.receive_some():
                        pass
                await stream.send_all(b"\0\0\1\0\0\0\0\0\1x")
                await stream.send_eof()
                while await stream.receive_some():
                    pass
            await stream.aclose()

    surf(1, Cost(), Late)


@pytest.mark.parametrize("seed", [7, 8, 9])
def test_a_seed_is_a_play(seed: int) -> None:
    assert perform(Player(seed, 100), Cost()) == perform(Player(seed, 100), Cost())


@pytest.mark.parametrize("part", [SaslAuthenticator, KafkaAdmin])
def test_an_error_of_controls_is_found(part: type, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(self: object, ask: AdminQuery) -> AdminAnswer:
        raise KeyError("nobody expects this")

    def play_some() -> None:
        for seed in range(20):
            perform(Player(seed, 250), Cost())

    monkeypatch.setattr(part, "answer_query", answer)
    with pytest.raises((Ended, Violation), match="nobody expects this"):
        play_some()


def test_clients_get_in_and_policies_change() -> None:
    """Else nothing behind the first step was played."""
    controls: list[Control] = []

    class Noting(Player):
        def __call__(self, play: Play) -> Op | None:
            if play.control is not None and play.control not in controls:
                controls.append(play.control)
            return super().__call__(play)

    for seed in range(30):
        perform(Noting(seed, 200), Cost())
    got_in = set[str]().union(*(control.principals for control in controls))
    assert {"User:alice", "User:bob", "User:olivia", "User:x=,y"} <= got_in
    for outcome in ("accepted", "refused"):
        name, labels = "produce_gateway_policy_changes_total", {"outcome": outcome}
        assert sum(control.metrics.registry.get_sample_value(name, labels) or 0 for control in controls)


def test_captures_are_whole_frames_and_their_answers_those_of_the_requests() -> None:
    pairs = captured()
    assert len({struct.unpack_from(">hh", pair.request, 4) for pair in pairs}) > 80
    for request, answer in pairs:
        assert frames.split(request) == [request]
        assert frames.split(answer) == ([answer] if answer else [])
        assert not answer or answer[4:8] == request[8:12]


def test_two_decoders_read_the_same_in_every_produce_request_that_is_taken() -> None:
    rng, pool, taken = Random(1), frames.corpus().produce, 0
    for frame in (*pool, *(frames.mutate(rng, frame, rng.choice(pool)) for frame in 3 * pool)):
        if len(frame) < 12 or frame[:4] != struct.pack(">i", len(frame) - 4) or frame[4:6] != b"\0\0":
            continue
        try:
            version, acks, _, _, parts = produce_request.skim_request(frame, 4, len(frame))
        except MalformedFrame:
            continue
        taken += 1
        offer = frames.offered(frame)
        assert (offer.version, offer.acks) == (version, acks)
        sizes = [(topic, index, len(records)) for topic, index, records in offer.parts]
        assert sizes == [(part[0], part[1], part[2] + part[7]) for part in parts]
    assert taken > len(pool)
