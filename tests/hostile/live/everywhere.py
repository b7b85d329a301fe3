# Strangers on all ports of a gateway at once, for as long as one likes: the listeners of plain Kafka, of TLS, behind a
# proxy and those at which SASL ends, the admin port and the health port. They say nothing, or half of something,
# announce what never comes, break off steps of SASL, send wrong passwords and tokens, headers and frames that are none.
#
# Their number doesn't grow: what does has been kept by the gateway. A soak (tests/chaos/soak.py) has them for an hour,
# a test for seconds. They come in a process of their own, each way from an address of its own (127.0.1.1 and on).

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import struct
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

from gateway import embedded
from tests.certificates import Authority
from tests.clients.gateways import Gateway
from tests.hostile.fuzzing.crowd import HEADERS
from tests.hostile.fuzzing.web import RAW, Wish
from tests.hostile.live.unharmed import VERSIONS
from tests.hostile.strangers import Visitor
from tests.hostile.traffic import frames, logins, managing
from tests.hostile.traffic.logins import Login

ITERATIONS: Final = 4096
HELD: Final = 4  # connections of one way at once
PAUSE_S: Final = 0.25
Ports = dict[str, int]
Way = Callable[["Visitor", Random], Awaitable[None]]


@contextlib.contextmanager
def listeners(node_ids: int) -> Iterator[tuple[dict[str, Any], Ports]]:
    """Sections of a gateway's configuration, and ports of its listeners but for the plain one, which tests know."""
    step = node_ids + 2
    port = embedded.find_free_port(3 * step)
    ports = {"sasl": port, "tls": port + step, "proxy": port + 2 * step}
    with tempfile.TemporaryDirectory(prefix="produce-gateway-everywhere-") as name:
        records, _, keys = logins.write_credentials(Path(name), ITERATIONS)
        certificate, key = Authority(Path(name)).sign("gateway")
        here = {
            "sasl.enabled.mechanisms": list(logins.MECHANISMS),
            "credentials_file": str(records),
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": "https://issuer",
        }
        tls = {"ssl.keystore.location": str(certificate), "ssl.key.location": str(key)}
        found = {
            "plain": {},
            "sasl": {"port": ports["sasl"], "authentication": here},
            "tls": {"port": ports["tls"], **tls},
            "proxy": {"port": ports["proxy"], "proxy_protocol": {"from": ["127.0.0.0/8"]}},
        }
        yield {"listeners": found}, ports


def all_ports(gateway: Gateway, ports: Ports) -> Ports:
    """Those of broker 1 at `listeners`, and the gateway's own."""
    admin, health = (urlsplit(url).port or 0 for url in (gateway.admin, gateway.health))
    theirs = {kind: port + 2 for kind, port in ports.items()}
    return {"plain": gateway.broker_port(1), **theirs, "admin": admin, "health": health}


# --- ways -------------------------------------------------------------------------------------------------------------


async def _silent(visitor: Visitor, rng: Random) -> None:
    """Connections that never say a byte."""
    await _say(visitor, [b""], hold_s=10.0)


async def _half(visitor: Visitor, rng: Random) -> None:
    """Half of what a head needs."""
    await _say(visitor, [rng.choice((VERSIONS[:6], b"GET /rea", b"\x16\x03\x01\x02", b"PROXY TC", b"\0"))], hold_s=5.0)


async def _announced(visitor: Visitor, rng: Random) -> None:
    """A frame of 100 MB is announced, and comes a byte at a time."""
    head = struct.pack(">ihhih", 100_000_000, 0, 9, 1, -1)
    await _say(visitor, [head, *[b"\0"] * 10], hold_s=1.0)


async def _broken(visitor: Visitor, rng: Random) -> None:
    """Requests that are broken somewhere."""
    corpus = frames.corpus()
    said = [rng.choice(rng.choice((corpus.produce, corpus.others, corpus.sasl))), managing.request(rng)]
    await _say(visitor, [frames.mutate(rng, each, rng.choice(corpus.produce)) for each in (VERSIONS, *said)])


async def _junk(visitor: Visitor, rng: Random) -> None:
    await _say(visitor, [rng.randbytes(rng.choice((5, 300, 5000)))])


async def _steps(visitor: Visitor, rng: Random) -> None:
    """Steps of SASL, broken as frames or in what they say."""
    login = Login(rng)
    first, step = login.frames
    if rng.random() < 0.5:
        step = frames.mutate(rng, step, first)
    await _say(visitor, [first, step], hold_s=0.2)


async def _wrong(visitor: Visitor, rng: Random) -> None:
    """Whole steps with a wrong password or token."""
    said = rng.choice((b"\0alice\0guessed", b"\0nobody\0guessed", logins.bearer(rng.choice(logins.tokens()))))
    mechanism = b"OAUTHBEARER" if said.startswith(b"n,,") else b"PLAIN"
    await _say(visitor, [frames.handshake(mechanism), frames.authenticate(said)], hold_s=0.3)


async def _headers(visitor: Visitor, rng: Random) -> None:
    """Headers of the PROXY protocol, right and wrong, and requests behind them."""
    header = rng.choice(HEADERS)
    if rng.random() < 0.5:
        header = frames.mutate(rng, bytes(4) + header, bytes(4) + HEADERS[0])[4:]
    await _say(visitor, [header, rng.choice((VERSIONS, frames.mutate(rng, VERSIONS, VERSIONS)))])


async def _wishes(visitor: Visitor, rng: Random) -> None:
    """Requests to the API, broken or with wrong tokens."""
    wish = Wish(rng)
    wish.headers = [each for each in wish.headers if each[0] != "Authorization"]
    wish.headers.append(("Authorization", b"Bearer guess-%020d" % rng.randrange(10**9)))
    data = wish.as_http1()
    await _say(visitor, [data if rng.random() < 0.5 else frames.mutate(rng, bytes(4) + data, bytes(4) + data)[4:]])


async def _drip(visitor: Visitor, rng: Random) -> None:
    """The body of a login, a byte at a time."""
    head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    await _say(visitor, [head, *rng.choice(RAW)[:10].partition(b"x")], hold_s=1.0)


async def _streams(visitor: Visitor, rng: Random) -> None:
    """HTTP/2: data for a stream that has been answered, and streams that are reset at once."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)
    head = b"\x83\x86\x84\x41\x09localhost"  # POST http / of localhost
    opened = [struct.pack(">I", len(head))[1:] + b"\1\4" + struct.pack(">I", stream) + head for stream in (1, 3, 5)]
    reset = struct.pack(">I", 4)[1:] + b"\3\0" + struct.pack(">II", 3, 8)
    data = struct.pack(">I", 1)[1:] + b"\0\0" + struct.pack(">I", 1) + b"x"
    await _say(visitor, [preface, opened[0], opened[1] + reset, data, opened[2] + data])


_KAFKA: Final = (_silent, _half, _announced, _broken, _junk)
_HTTP: Final = (_silent, _half, _junk, _wishes, _drip, _streams)
WAYS: Final[dict[str, tuple[Way, ...]]] = {
    "plain": _KAFKA,
    "sasl": (*_KAFKA, _steps, _wrong),
    "tls": (_silent, _half, _broken, _junk),
    "proxy": (_silent, _half, _headers),
    "admin": _HTTP,
    "health": _HTTP,
}


async def _say(visitor: Visitor, pieces: list[bytes], hold_s: float = 0.0) -> None:
    """On a few connections at once, one piece after the other."""
    socks = await visitor.crowd(HELD, pieces[0])
    for piece in pieces[1:]:
        await asyncio.sleep(0.05)
        for sock in socks:
            if sock.fileno() >= 0:
                await visitor.send(sock, piece)
    await asyncio.sleep(hold_s)
    for sock in socks:
        sock.close()


async def _come(ports: Ports, seconds: float) -> None:
    came = 0

    async def keep(way: Way, port: int, number: int) -> None:
        nonlocal came
        rng, visitor = Random(number), Visitor(port, f"127.0.1.{number}")
        while True:
            with contextlib.suppress(OSError):
                await way(visitor, rng)
            came += HELD
            await asyncio.sleep(PAUSE_S)

    async def tell() -> None:
        while True:
            print(came, flush=True)
            await asyncio.sleep(1)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            group.create_task(tell())
            number = 0
            for kind, port in ports.items():
                for way in WAYS[kind]:
                    number += 1
                    group.create_task(keep(way, port, number))


def command(ports: Ports, seconds: float) -> list[str]:
    """Of the process from which they come; it says how many connections it has tried to open."""
    return [sys.executable, "-m", "tests.hostile.live.everywhere", json.dumps(ports), str(seconds)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Strangers on these ports.")
    parser.add_argument("ports", type=json.loads)
    parser.add_argument("seconds", type=float)
    args = parser.parse_args()
    logins.tokens()
    frames.corpus()
    asyncio.run(_come(args.ports, args.seconds))


if __name__ == "__main__":
    main()
