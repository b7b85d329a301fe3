# What is no Kafka request closes its connection, with one log line that says what it looked like and one count, on
# every listener that clients can reach. A producer on another connection is not disturbed: no answer is lost or wrong.

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gateway.embedded import HOST, EmbeddedCluster, wait_for
from tests.background import Background
from tests.gateway.data import play
from tests.hostile.live.unharmed import unharmed, versions
from tests.integration.gateways import Gateway, Sum, create_topic, end_offsets, sums
from tests.integration.wire import Wire

TOPIC = "undisturbed"
CLOSE_S = 60.0


class Garbage(NamedTuple):
    """Bytes, the words that the log must have for them, and whether the client closes first (it gave up half-way)."""

    data: bytes
    words: str
    half: bool = False


def _tls_hello() -> bytes:
    """A ClientHello's record and handshake headers, and a body as long as they say."""
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0" + b"\0\0"
    handshake = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(handshake).to_bytes(2, "big") + handshake


def _lying_partitions(count: int, version: int = 8) -> bytes:
    """A Produce request with one partition whose array says it has `count`."""
    frame = bytearray(play.request(1, {TOPIC: [0]}, version=version))
    at = frame.index(TOPIC.encode()) + len(TOPIC)
    assert frame[at : at + 4] == struct.pack(">i", 1)
    frame[at : at + 4] = struct.pack(">i", count)
    return bytes(frame)


def _lying_records() -> bytes:
    """Records said to be longer than the whole request."""
    frame = bytearray(play.request(1, {TOPIC: [0]}, version=8))
    at = frame.index(TOPIC.encode()) + len(TOPIC) + 4 + 4
    frame[at : at + 4] = struct.pack(">i", 100_000)
    return bytes(frame)


def _random(seed: int) -> bytes:
    return random.Random(seed).randbytes(300)


HTTP = b"GET /metrics HTTP/1.1\r\nHost: kafka\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n"
GARBAGE = {
    "random-1": Garbage(_random(1), "size"),
    "random-2": Garbage(_random(2), "size"),
    "random-3": Garbage(_random(3), "size"),
    "random-in-a-frame": Garbage(struct.pack(">i", 300) + b"\x7f" + _random(4)[1:], "not a Kafka request"),
    "half-a-frame": Garbage(play.request(1, {TOPIC: [0]})[:-10], "half a frame", half=True),
    "half-a-prefix": Garbage(b"\0\0", "half a frame", half=True),
    "negative-size": Garbage(struct.pack(">ihhi", -2, 0, 9, 1), "a negative size (-2)"),
    "size-0": Garbage(struct.pack(">ihhi", 0, 0, 9, 1), "a size of 0 bytes"),
    "2-GiB": Garbage(struct.pack(">ihhi", 2**31 - 1, 0, 9, 1), "a size of 2,147,483,647 bytes"),
    "http": Garbage(HTTP, "an HTTP request"),
    "tls": Garbage(_tls_hello(), "a TLS ClientHello"),
    "lying-partitions": Garbage(_lying_partitions(1000), "1000"),
    "2^31-partitions": Garbage(_lying_partitions(2**31 - 1), "2147483647"),
    "lying-records": Garbage(_lying_records(), ""),
    "the-same-partition-twice": Garbage(play.request(1, {TOPIC: [0, 0]}), "twice"),
    "an-older-produce": Garbage(struct.pack(">ihhi", 12, 0, 2, 1) + bytes(4), "versions 3 to 13"),
}
LISTENERS = ("bootstrap", "broker 1")


class Producer(Background):
    """Produces one request after the other on one connection, all the time, and fails on the first wrong answer."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._wire = Wire(port)
        self.acknowledged = 0
        self.error: Exception | None = None

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._wire.sock.close()

    def finish(self) -> int:
        """How many requests were sent and acknowledged; fails if one was not, or not as it should be."""
        self._stop.set()
        self._thread.join()
        assert self.error is None, self.error
        return self.acknowledged

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.005):
                throttle_ms, rows = self._wire.produce(play.request(self.acknowledged, {TOPIC: [0]}))
                assert (throttle_ms, rows) == (0, {(TOPIC, 0): (0, None)})
                self.acknowledged += 1
        except Exception as error:  # it is a thread: told where the test looks
            self.error = error


class Aftermath(NamedTuple):
    closed: bool
    lines: list[str]
    acknowledged: int  # to the other connection, while this went on


class Result(NamedTuple):
    """Of everything sent once to every listener: by listener and name, and what /metrics counted."""

    cases: dict[tuple[str, str], Aftermath]
    malformed: float
    disconnects: float


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedCluster) -> Iterator[Gateway]:
    with Gateway(kafka.bootstrap_servers) as running, unharmed(running, lambda: versions(running.broker_port(1))):
        yield running


@pytest.fixture(scope="module")
def result(kafka: EmbeddedCluster) -> Result:
    create_topic(kafka, TOPIC)
    with (
        Gateway(kafka.bootstrap_servers) as gateway,
        unharmed(gateway, lambda: versions(gateway.broker_port(1))),
        Producer(gateway.broker_port(1)) as producer,
    ):
        ports = {"bootstrap": gateway.port, "broker 1": gateway.broker_port(1)}
        cases = {
            (listener, name): _send(gateway, producer, port, garbage)
            for listener, port in ports.items()
            for name, garbage in GARBAGE.items()
        }
        count = producer.finish()
        # To the byte: nothing of the garbage was counted as produced, nor came to the broker.
        gateway.settle(TOPIC, Sum(count * play.size_of(), count))
        assert sums(gateway.wait_published(kafka))[TOPIC] == {("accepted", ""): Sum(count * play.size_of(), count)}
        assert end_offsets(kafka, TOPIC) == count
        wait_for("the counts", lambda: gateway.metric("requests_malformed_total") >= len(cases))
        malformed = gateway.metric("requests_malformed_total")
        return Result(cases, malformed, gateway.metric("disconnects_total", cause="malformed"))


def _send(gateway: Gateway, producer: Producer, port: int, garbage: Garbage) -> Aftermath:
    before, known = producer.acknowledged, len(gateway.log().splitlines())
    with socket.create_connection((HOST, port), CLOSE_S) as sock:
        peer = f"{HOST}:{sock.getsockname()[1]}"
        sock.sendall(garbage.data)
        if garbage.half:
            sock.shutdown(socket.SHUT_WR)
        closed = _ends(sock)

    def lines() -> list[str]:
        # Connections to two listeners may have the same port, one after the other.
        return [line for line in gateway.log().splitlines()[known:] if f"{peer}:" in line or f"{peer} " in line]

    wait_for(f"a log line about {peer}", lambda: bool(lines()))
    wait_for("the producer to go on", lambda: producer.acknowledged > before or producer.error is not None)
    return Aftermath(closed, lines(), producer.acknowledged - before)


def _ends(sock: socket.socket) -> bool:
    try:
        while sock.recv(65_536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:  # a reset: it closed with our bytes unread
        pass
    return True


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_closes_its_connection_and_no_other(result: Result, listener: str, name: str) -> None:
    after = result.cases[listener, name]
    assert after.closed
    assert len(after.lines) == 1, after.lines
    assert "connection closed" in after.lines[0]
    assert GARBAGE[name].words in after.lines[0]
    assert after.acknowledged > 0


def test_metrics_count_each_once(result: Result) -> None:
    assert result.malformed == len(result.cases)
    gave_up = sum(garbage.half for garbage in GARBAGE.values()) * len(LISTENERS)  # their clients closed first
    assert result.disconnects == len(result.cases) - gave_up


def test_requests_before_the_garbage_are_answered(kafka: EmbeddedCluster, gateway: Gateway) -> None:
    """Glued to it in one send: the order of the answers does not depend on how its bytes were cut."""
    topic = create_topic(kafka, "before-the-garbage")
    with Wire(gateway.broker_port(1)) as wire:
        wire.send(play.request(1, {topic: [0]}) + play.request(2, {topic: [0]}) + HTTP)
        answers = [play.decode_answer(wire.receive()) for _ in range(2)]
        assert [correlation for correlation, _, _ in answers] == [1, 2]
        assert wire.ends()
    assert end_offsets(kafka, topic) == 2


def test_garbage_from_upstream_closes_that_pair(gateway: Gateway) -> None:
    """A broker that is none, here an HTTP server: clients are closed, the gateway says so and lives."""
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(30)
        settings = {"internal_topics": "none"}
        upstream = f"{HOST}:{server.getsockname()[1]}"
        with Gateway(upstream, settings, wait=False) as strange:
            peers = []
            ended = threading.Event()

            def serve() -> None:
                while not ended.is_set():
                    try:
                        peer, _ = server.accept()
                    except OSError:
                        return
                    peer.settimeout(5)
                    try:
                        peer.recv(1000)
                        peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
                    except OSError:
                        pass
                    peers.append(peer)

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                wait_for("the bootstrap listener", lambda: strange.listens(strange.port))
                with Wire(strange.port) as wire:
                    wire.send(play.other_request(1))
                    assert wire.ends()
                wait_for("the log to say so", lambda: "connection closed" in strange.log())
            finally:
                ended.set()
                socket.create_connection((HOST, server.getsockname()[1])).close()
                thread.join()
                for peer in peers:
                    peer.close()
