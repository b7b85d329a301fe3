# Strangers: connections that send what the hostile suites send, to the listener that clients use, and intruders, who
# know a user's name and no password. No harm may come to anybody else.

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tests.hostile.traffic.frames import corpus, mutate
from tests.simulation.clock import Agenda
from tests.simulation.models import wire
from tests.simulation.models.network import ModelEnd, Network
from tests.simulation.models.sasl import Identity, LoginFailed, greet
from tests.simulation.models.wire import Frames

MOST_FRAMES: Final = 30
_OTHERS: Final = (
    b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff", b"\0\0\0\0" * 64, b"SSH-2.0-stranger\r\n",
)  # fmt: skip


def send_strange(chance: random.Random, agenda: Agenda, network: Network, address: tuple[str, int]) -> None:
    """Connect, send something, in pieces, and close or stay silent for a while."""
    pieces = [_piece(chance) for _ in range(chance.randint(1, MOST_FRAMES))]
    if chance.random() < 0.3:  # byte by byte, as it were
        pieces = [data[at : at + 7] for data in pieces[:3] for at in range(0, min(len(data), 700), 7)]

    def joined(end: ModelEnd) -> None:
        end.on_bytes = lambda data: None
        end.on_end = lambda why: end.close()
        at = 0.0
        for piece in pieces:
            at += chance.expovariate(1 / 0.05)
            agenda.after(at, end.send, piece)
        agenda.after(at + chance.uniform(0.0, 20.0), lambda: end.close(with_reset=chance.random() < 0.3))

    network.connect_model("stranger", address, joined, lambda why: None)


def send_intruder(
    chance: random.Random, network: Network, address: tuple[str, int], who: Identity | None,
    told: Callable[[bool], None],
) -> None:  # fmt: skip
    """Log in as somebody with the wrong password, or as nobody at all. `told`: whether that was taken for right."""

    def joined(end: ModelEnd) -> None:
        frames, greeting = Frames(), greet("intruder", None, who, chance)
        is_asking = False

        def receive(data: bytes) -> None:
            nonlocal is_asking
            for frame in frames.feed(data):
                try:
                    end.send(greeting.send(frame)(1))
                except LoginFailed:
                    told(False)
                    end.close()
                except StopIteration:
                    if is_asking:
                        told(True)
                        end.close()
                    is_asking = True
                    end.send(wire.encode_metadata(4, 1, "intruder", None))

        end.on_bytes, end.on_end = receive, lambda why: end.close()
        end.send(next(greeting)(1))

    network.connect_model("intruder", address, joined, lambda why: None)


def _piece(chance: random.Random) -> bytes:
    if chance.random() < 0.15:
        return chance.choice((*_OTHERS, chance.randbytes(chance.randint(1, 400))))
    known = corpus()
    frame, other = (chance.choice(chance.choice((known.produce, known.sasl, known.others))) for _ in range(2))
    return frame if chance.random() < 0.3 else mutate(chance, frame, other)
