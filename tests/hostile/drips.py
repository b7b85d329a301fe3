# Strangers who announce large frames and send a byte a second, while a client that behaves sends requests of 400 kB.
# `python -m tests.hostile.drips --help`: who announces, how many and how large, and how much of it really comes. It
# prints what that client noticed and what the gateway held; the test beside it asserts what doesn't depend on the
# machine's speed.
#
# The gateway is a real one, its broker a stand-in. Strangers are a process of their own. They share the good client's
# address, and with it, without certificates, its share of the memory: that is the harder case.

from __future__ import annotations

import argparse
import contextlib
import selectors
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gateway import embedded
from tests.certificates import Authority
from tests.clients.gateways import Gateway
from tests.gateway.data.play import request
from tests.hostile import strangers
from tests.hostile.strangers import MIB, Broker, _labelled, _memory, _worker
from tests.protocol.produce_cases import framed

REQUEST_BYTES = 400_000
DRIPS = b"drips"  # client id of who asks for an answer that never comes whole
LEAST_WAITS = 15
LAST = b"!"  # what strangers say once all of them have announced


@dataclass(frozen=True)
class Way:
    """How strangers come. `announced`, `sent`: bytes of each frame. `every_s`: between two bytes of one frame."""

    strangers: int = 10
    announced: int = 100 * MIB
    sent: int = 2
    every_s: float = 1.0
    tls: bool = False
    certificates: bool = False
    answers: bool = False
    limits: dict[str, Any] = field(default_factory=dict)


@dataclass
class Seen(strangers.Seen):
    """`buffered`: the most that the worker said to hold, in bytes."""

    buffered: int = 0
    log: str = ""


class DrippingBroker(Broker):
    """Its answer to whoever is called so is announced and begins, and that is all."""

    announced = 0

    def _answer(self, frame: bytes) -> bytes | None:
        if DRIPS in frame[:20]:
            return struct.pack(">i", self.announced) + frame[4:8] + bytes(60_000)
        return super()._answer(frame)


# --- strangers --------------------------------------------------------------------------------------------------------


def drip(port: int, way: Way, folder: Path) -> None:
    """Announce all frames, say so, and send a byte of each every now and then, until ended. Who is closed comes again:
    that costs a stranger nothing.
    """
    head = struct.pack(">ihhi", way.announced, 0, 9, 1) if not way.answers else b""
    first = head + bytes(max(0, way.sent - len(head)))
    if way.answers:
        first = framed(struct.pack(">hhih", 3, 1, 7, len(DRIPS)) + DRIPS + struct.pack(">i", -1))
    context = _context(way, folder, "stranger")
    several = way.strangers // 20 + 1  # connections of a thread
    counts = [min(several, way.strangers - at) for at in range(0, way.strangers, several)]
    all_in = threading.Barrier(len(counts) + 1)
    for count in counts:
        threading.Thread(target=_keep, args=(port, first, way, context, count, all_in)).start()
    all_in.wait()
    sys.stdout.buffer.write(LAST)
    sys.stdout.flush()


def _keep(
    port: int, first: bytes, way: Way, context: ssl.SSLContext | None, count: int, all_in: threading.Barrier
) -> None:
    socks: list[socket.socket | None] = [None] * count
    is_in = False
    while True:
        for place, sock in enumerate(socks):
            try:
                if sock is None:
                    socks[place] = sock = _connect(port, context)
                    sock.settimeout(30)
                    sock.sendall(first)
                elif not way.answers:
                    sock.sendall(b"\0")
            except OSError:
                if sock is not None:
                    sock.close()
                socks[place] = None
        if not is_in:
            all_in.wait()
            is_in = True
        time.sleep(way.every_s)


def _context(way: Way, folder: Path, name: str) -> ssl.SSLContext | None:
    if not way.tls and not way.certificates:
        return None
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if way.certificates:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


def _connect(port: int, context: ssl.SSLContext | None) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    return sock if context is None else context.wrap_socket(sock, server_hostname="localhost")


# --- one who behaves --------------------------------------------------------------------------------------------------


_round_trips = partial(strangers._round_trips, frame=request(5, values=(bytes(REQUEST_BYTES),)))


def play(way: Way, seconds: float) -> Seen:
    """Strangers for so long, and one who behaves among them."""
    broker = DrippingBroker()
    broker.announced = way.announced
    with tempfile.TemporaryDirectory(prefix="drips-") as name:
        folder = Path(name)
        settings = _settings(way, folder)
        with Gateway(f"127.0.0.1:{broker.port}", settings, 1) as gateway:
            seen = _play(way, seconds, gateway, folder)
    broker.close()
    return seen


def _settings(way: Way, folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {"internal_topics": "none", "limits": way.limits}
    if way.tls or way.certificates:
        authority = Authority(folder)
        certificate, key = authority.sign("server")
        settings["listener"] = {"ssl.keystore.location": str(certificate), "ssl.key.location": str(key)}
        if way.certificates:
            authority.sign("stranger")
            authority.sign("good")
            settings["listener"] |= {
                "ssl.client.auth": "required", "ssl.truststore.location": str(authority.certificate)
            }  # fmt: skip
    return settings


def _play(way: Way, seconds: float, gateway: Gateway, folder: Path) -> Seen:
    seen = Seen()
    port = gateway.broker_port(1)
    worker = _worker(gateway)
    with _connect(port, _context(way, folder, "good")) as client:
        client.settimeout(60)
        file = client.makefile("rb")
        _round_trips(client, file, 50)
        before = _memory(worker)
        with _strangers(port, way, folder):
            end = time.monotonic() + seconds
            looked_at = 0.0
            while time.monotonic() < end or len(seen.waits) < LEAST_WAITS:
                seen.waits += _round_trips(client, file, 5)
                seen.held = max(seen.held, _memory(worker) - before)
                if time.monotonic() - looked_at > 1.0:
                    looked_at = time.monotonic()
                    seen.buffered = max(seen.buffered, int(_labelled(gateway, "buffered_bytes{")["0"]))
                time.sleep(0.02)
        seen.disconnects = {cause: n for cause, n in _labelled(gateway, "disconnects_total").items() if n}
    seen.log = gateway.log()
    return seen


@contextlib.contextmanager
def _strangers(port: int, way: Way, folder: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.hostile.drips", *_arguments(way), "--come-to", str(port), str(folder)]
    process = embedded.spawn_process(command, stdout=-1)
    try:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(120), "the strangers did not get in"
        assert process.stdout.read(1) == LAST, "the strangers failed"
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _arguments(way: Way) -> list[str]:
    given = [f"--{name.replace('_', '-')}={getattr(way, name)}" for name in ("strangers", "announced", "sent")]
    given.append(f"--every-s={way.every_s}")
    return given + [f"--{name}" for name in ("tls", "certificates", "answers") if getattr(way, name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long (20)")
    parser.add_argument("--strangers", type=int, default=Way.strangers, help="how many connections (10)")
    parser.add_argument("--announced", type=int, default=Way.announced, help="bytes of each frame (100 MiB)")
    parser.add_argument("--sent", type=int, default=Way.sent, help="bytes of it that come at once (2)")
    parser.add_argument("--every-s", type=float, default=Way.every_s, help="seconds from byte to byte (1)")
    parser.add_argument("--tls", action="store_true", help="all speak TLS")
    parser.add_argument("--certificates", action="store_true", help="all authenticate, the strangers as one principal")
    parser.add_argument("--answers", action="store_true", help="the broker announces answers to them, instead")
    parser.add_argument("--come-to", nargs=2, metavar=("PORT", "FOLDER"), help=argparse.SUPPRESS)  # its own process
    parser.add_argument("--buffered", type=int, default=0, help="limits.max_buffered_bytes, if not the default")
    args = parser.parse_args()
    limits = {"max_buffered_bytes": args.buffered, "max_request_bytes": args.announced} if args.buffered else {}
    limits |= {"max_connections_per_address": 20_000}
    way = Way(
        args.strangers, args.announced, args.sent, args.every_s, args.tls, args.certificates, args.answers, limits
    )
    if args.come_to:
        drip(int(args.come_to[0]), way, Path(args.come_to[1]))
        return
    seen = play(way, args.seconds)
    print(f"round trips of one who behaves: {len(seen.waits):,}; median {1000 * seen.quantile(0.5):.2f} ms,"
          f" p99 {1000 * seen.quantile(0.99):.1f} ms, longest {1000 * max(seen.waits):.0f} ms")  # fmt: skip
    print(f"memory of the worker: at most {seen.held / MIB:.0f} MiB more; buffered: {seen.buffered / MIB:.0f} MiB")
    print(f"connections that ended: {seen.disconnects}")


if __name__ == "__main__":
    main()
