# Strangers who try every way at once to take a gateway's memory and time from others, while a client that behaves goes
# on. `python -m tests.hostile.strangers` prints what that client noticed and what the gateway held; the test beside it
# asserts what doesn't depend on the machine's speed.
#
# The gateway is a real one, its broker a stand-in that answers as slowly or as much as a stranger likes. Strangers come
# from addresses of their own (127.0.0.2 and on), in a process of their own.

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway import embedded
from tests.clients import processes
from tests.clients.gateways import Gateway
from tests.gateway.control.null_broker import text
from tests.gateway.data.play import answer, request
from tests.hostile.live.unharmed import Unharmed, unharmed, versions
from tests.protocol.produce_cases import framed

MIB = 2**20
LIMITS: dict[str, Any] = {
    "max_request_bytes": 16 * MIB,
    "max_buffered_bytes": 64 * MIB,
    "frame_timeout": "5s",
    "first_byte_timeout": "3s",
    "idle_timeout": "15s",
    "max_connections_per_address": 400,
}
LEFT = {"connections": 2, "buffered_bytes": 0}  # of those who behave: one here, one in unharmed.py
FAT = b"fat"  # client id of who asks for a Metadata answer of 5 MB
LONGER_S = 120.0  # of a machine that is slow
REQUEST = request(5)  # of who behaves
HELD = "held"  # topic whose Produce requests the broker never answers


# --- a broker ---------------------------------------------------------------------------------------------------------


class Broker:
    """ApiVersions, Metadata, and answers to Produce, in a thread."""

    def __init__(self) -> None:
        self.connections = 0
        self._server = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self._server.getsockname()[1]
        name = b"t" * 200
        topic = struct.pack(">hh", 0, len(name)) + name + struct.pack(">bi", 0, 0)
        count = 5_000_000 // len(topic)
        self._itself = struct.pack(">i", 1) + text("127.0.0.1") + struct.pack(">ih", self.port, -1)
        self._fat = struct.pack(">i", 1) + self._itself + struct.pack(">ii", 1, count) + topic * count
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._server)
        await self._ended.wait()
        server.close()
        mine = asyncio.current_task()
        serving = [task for task in asyncio.all_tasks() if task is not mine]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                reply = self._answer(frame)
                if reply is not None:
                    writer.write(reply)
                    await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.connections -= 1
            writer.transport.abort()  # not close(): nobody may read the rest of an answer
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, frame: bytes) -> bytes | None:
        key, version, correlation = struct.unpack_from(">hhi", frame)
        if key == 0:
            return None if HELD.encode() in frame[:100] else answer(correlation, {"clicks": {0: (0, 0)}})
        if key == 18:
            apis = b"".join(struct.pack(">hhh", *api) for api in ((0, 3, 9), (3, 0, 4), (18, 0, 0)))
            body = struct.pack(">hi", 35 if version else 0, 3) + apis
        elif FAT in frame[:16]:
            body = self._fat
        else:
            partition = struct.pack(">hiiiiii", 0, 0, 1, 1, 1, 1, 1)
            topic = struct.pack(">h", 0) + text("clicks") + struct.pack(">bi", 0, 1) + partition
            throttle = struct.pack(">i", 0) if version >= 3 else b""
            cluster = text("c") if version >= 2 else b""
            body = throttle + struct.pack(">i", 1) + self._itself + cluster + struct.pack(">ii", 1, 1) + topic
        return framed(struct.pack(">i", correlation) + body)


# --- strangers --------------------------------------------------------------------------------------------------------

Way = Callable[["Visitor"], Awaitable[None]]


class Strangers:
    """They come to one port, each way from an address of its own, for so many seconds."""

    def __init__(self, port: int, seconds: float) -> None:
        self._port = port
        self._seconds = seconds
        self._address = 1
        self.random = random.Random(7)

    async def run(self) -> None:
        ways = (silent, reserving, unread, empty, wide, half, junk, inventive, tagged)
        async with asyncio.TaskGroup() as group:
            for way in ways:
                group.create_task(self._keep(way))

    async def _keep(self, way: Way) -> None:
        self._address += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await way(Visitor(self._port, f"127.0.0.{self._address}"))


class Visitor:
    """One way's connections."""

    def __init__(self, port: int, address: str) -> None:
        self._port = port
        self._address = address

    async def connect(self, *, deaf: bool = False) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        if deaf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.bind((self._address, 0))
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        return sock

    async def send(self, sock: socket.socket, data: bytes) -> bool:
        """False: the gateway has closed it."""
        try:
            await asyncio.get_running_loop().sock_sendall(sock, data)
        except OSError:
            sock.close()
            return False
        return True

    async def crowd(self, count: int, first: bytes, *, deaf: bool = False) -> list[socket.socket]:
        socks = []
        for _ in range(count):
            with contextlib.suppress(OSError):
                sock = await self.connect(deaf=deaf)
                if await self.send(sock, first):
                    socks.append(sock)
            await asyncio.sleep(0.005)
        return socks


async def silent(visitor: Visitor) -> None:
    """Connections that never say a byte."""
    while True:
        socks = await visitor.crowd(100, b"")
        await asyncio.sleep(8)  # the gateway ends them after `first_byte_timeout`, a busy one somewhat later
        for sock in socks:
            sock.close()


async def reserving(visitor: Visitor) -> None:
    """Frames of 15 MiB are announced, and come at one byte a second."""
    head = struct.pack(">ihhi", 15 * MIB, 0, 9, 1)
    while True:
        socks = await visitor.crowd(20, head + b"\0\0")
        for _ in range(5):
            await asyncio.sleep(1)
            for sock in socks:
                await visitor.send(sock, b"\0")


async def unread(visitor: Visitor) -> None:
    """Answers of 5 MB are asked for and not read."""
    ask = struct.pack(">ihhih3si", 17, 3, 1, 7, 3, FAT, -1)
    while True:
        socks = await visitor.crowd(30, 3 * ask, deaf=True)
        await asyncio.sleep(3)
        for sock in socks:
            sock.close()


async def empty(visitor: Visitor) -> None:
    """Hundreds of thousands of partitions without records."""
    partitions = b"".join(struct.pack(">i", n) + b"\0\0" for n in range(170_000))
    count = bytes((0x80 | 170_001 & 0x7F, 0x80 | 170_001 >> 7 & 0x7F, 170_001 >> 14))
    frame = framed(
        struct.pack(">hhih", 0, 9, 1, -1) + b"\0\0" + struct.pack(">hi", 1, 1000) + b"\2\2t" + count + partitions
    )
    while True:
        for sock in await visitor.crowd(3, frame):
            sock.close()
        await asyncio.sleep(0.2)


async def wide(visitor: Visitor) -> None:
    """Requests of thousands of partitions, which nobody answers, one behind the other."""
    frame = request(1, {HELD: list(range(3000))}, client_id="wide")
    while True:
        socks = await visitor.crowd(2, b"")
        for _ in range(10):
            for sock in socks:
                await visitor.send(sock, frame)
            await asyncio.sleep(0.3)
        for sock in socks:
            sock.close()


async def half(visitor: Visitor) -> None:
    """Half frames of 30 kB."""
    head = struct.pack(">ihhi", 31_000, 0, 9, 1)
    while True:
        socks = await visitor.crowd(200, head + bytes(30_000))
        await asyncio.sleep(4)
        for sock in socks:
            sock.close()


async def junk(visitor: Visitor) -> None:
    """What is no Kafka at all."""
    while True:
        for sock in await visitor.crowd(20, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
            sock.close()


async def inventive(visitor: Visitor) -> None:
    """A name that nobody has heard of, for everything."""
    number = 0
    while True:
        for sock in await visitor.crowd(1, b""):
            for _ in range(20):
                topics = {f"made-up-{number}-{n}": [0] for n in range(20)}
                number += 1
                await visitor.send(sock, request(number, topics, client_id=f"{number}" + "c" * 20_000))
                await asyncio.sleep(0.02)
            sock.close()


async def tagged(visitor: Visitor) -> None:
    """Nothing but tagged fields."""
    frame = framed(struct.pack(">hhih", 18, 3, 1, -1) + b"\xff\x7f" + b"\1\0" * 16_000)
    while True:
        for sock in await visitor.crowd(5, frame):
            sock.close()
        await asyncio.sleep(0.1)


# --- one who behaves --------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """`waits`: seconds of each round trip. `held`: the most memory of the worker above what it had before, in bytes."""

    waits: list[float] = field(default_factory=list)
    held: int = 0
    disconnects: dict[str, float] = field(default_factory=dict)
    left: dict[str, float] = field(default_factory=dict)
    log_lines: int = 0

    def quantile(self, part: float) -> float:
        return sorted(self.waits)[min(len(self.waits) - 1, int(len(self.waits) * part))]


def play(seconds: float, causes: frozenset[str] = frozenset()) -> Seen:
    """Strangers for so long, and until connections were ended by these causes; then a look at what is left of them."""
    settings: dict[str, Any] = {"limits": LIMITS, "internal_topics": "none"}
    with (
        contextlib.closing(Broker()) as broker,
        Gateway(f"127.0.0.1:{broker.port}", settings, 1) as gateway,
        _unharmed(gateway),
    ):
        worker = _worker(gateway)
        seen = Seen()
        with socket.create_connection(("127.0.0.1", gateway.broker_port(1)), timeout=30) as client:
            file = client.makefile("rb")
            _round_trips(client, file, 50)
            before = _memory(worker)
            given = ("--come-to", str(gateway.broker_port(1)), "--seconds", str(seconds + LONGER_S))
            strangers = embedded.spawn_process([sys.executable, "-m", "tests.hostile.strangers", *given])
            began = time.monotonic()
            while time.monotonic() < began + seconds or not causes <= _causes(gateway):
                assert strangers.poll() is None, f"the strangers failed, or nobody was ended by one of {causes}"
                seen.waits += _round_trips(client, file, 5)
                seen.held = max(seen.held, _memory(worker) - before)
                time.sleep(0.02)
            embedded.reap_process(strangers)
            deadline = time.monotonic() + 180  # what strangers left open has to end by itself, however slow this is
            while time.monotonic() < deadline:
                seen.left = {name: _sum(gateway, name) for name in ("connections", "buffered_bytes")}
                if seen.left == LEFT:
                    break
                _round_trips(client, file, 1)
                time.sleep(0.5)
            _round_trips(client, file, 1)
        seen.disconnects = _labelled(gateway, "disconnects_total")
        seen.log_lines = gateway.log().count("\n")
    return seen


def _unharmed(gateway: Gateway) -> AbstractContextManager[Unharmed]:
    """Beside the buffers: answers being rewritten, buffers kept for the next frame, the heap's holes."""
    return unharmed(gateway, lambda: versions(gateway.broker_port(1)), memory=3 * LIMITS["max_buffered_bytes"])


def _round_trips(client: socket.socket, file: Any, count: int, frame: bytes = REQUEST) -> list[float]:
    waits = []
    for _ in range(count):
        began = time.perf_counter()
        client.sendall(frame)
        (size,) = struct.unpack(">i", file.read(4))
        assert len(file.read(size)) == size
        waits.append(time.perf_counter() - began)
    return waits


def _worker(gateway: Gateway) -> int:
    return next(pid for pid in gateway.pids() if "gateway.data" in processes.command_of(pid))


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def _labelled(gateway: Gateway, name: str) -> dict[str, float]:
    lines = (line for line in gateway.metrics().splitlines() if line.startswith(f"produce_gateway_{name}"))
    return {line.partition('"')[2].partition('"')[0]: float(line.split()[-1]) for line in lines}


def _causes(gateway: Gateway) -> set[str]:
    return {cause for cause, count in _labelled(gateway, "disconnects_total").items() if count}


def _sum(gateway: Gateway, name: str) -> float:
    return sum(_labelled(gateway, f"{name}{{").values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long strangers come (60)")
    parser.add_argument("--come-to", type=int, metavar="PORT", help=argparse.SUPPRESS)  # in a process of its own
    args = parser.parse_args()
    if args.come_to:
        asyncio.run(Strangers(args.come_to, args.seconds).run())
        return
    seen = play(args.seconds)
    print(f"round trips of one who behaves: {len(seen.waits):,}", file=sys.stdout)
    print(f"  median {1000 * statistics.median(seen.waits):.2f} ms, p99 {1000 * seen.quantile(0.99):.1f} ms,"
          f" longest {1000 * max(seen.waits):.0f} ms")  # fmt: skip
    print(f"memory of the worker: at most {seen.held / MIB:.0f} MiB more, of {LIMITS['max_buffered_bytes'] // MIB} MiB"
          " for buffers")  # fmt: skip
    print(f"left afterwards: {seen.left}; lines in the log: {seen.log_lines}")
    for cause, count in sorted(seen.disconnects.items(), key=lambda item: -item[1]):
        if count:
            print(f"  {cause:<20} {count:,.0f}")


if __name__ == "__main__":
    main()
