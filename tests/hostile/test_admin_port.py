# A real gateway whose admin port and health port strangers hold, in each way there is: probes are answered all the
# same, and so is somebody who asks at the admin port from another address.

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.background import Background
from tests.gateway.control.gateway_process import Gateway, at
from tests.gateway.control.null_broker import NullBroker

PROBE_S: Final = 1.0  # a kubelet's default
STRANGERS: Final = 300  # more than the admin server has places
ADDRESSES: Final = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
HEAD: Final = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
LOGIN: Final = (
    b"POST /v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{"
)


class Holders(Background):
    """Strangers who hold connections to that port, each again as soon as it has ended. `first`: what they send at
    once; `drip`: and then, now and then. They read nothing.
    """

    def __init__(self, port: int, first: bytes, drip: bytes = b"") -> None:
        super().__init__()
        self.begun = 0
        self.full = threading.Event()
        self._port, self._first, self._drip = port, first, drip

    def _run(self) -> None:
        held: list[socket.socket] = []
        while not self._stop.is_set():
            held = [sock for sock in held if self._holds(sock)]
            while len(held) < STRANGERS and not self._stop.is_set():
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.bind((ADDRESSES[self.begun % len(ADDRESSES)], 0))
                sock.settimeout(1.0)
                with contextlib.suppress(OSError):
                    sock.connect(("127.0.0.1", self._port))
                    sock.sendall(self._first)
                sock.setblocking(False)
                held.append(sock)
                self.begun += 1
            self.full.set()
            self._stop.wait(0.2)
        for sock in held:
            sock.close()

    def _holds(self, sock: socket.socket) -> bool:
        try:
            if self._drip:
                sock.send(self._drip)
            if not self._first.endswith(b"\r\n\r\n") and not sock.recv(1):
                raise ConnectionError
        except BlockingIOError:
            return True
        except OSError:
            sock.close()
            return False
        return True


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    with contextlib.ExitStack() as stack:
        broker = NullBroker()
        stack.callback(broker.close)

        def serve() -> Gateway:
            gateway = Gateway(tmp_path, at(broker), "internal_topics: none")
            stack.callback(gateway.close)
            gateway.ready().wait_for("its report", lambda: probe(gateway.health, "/readyz")[0] == 200)
            return gateway

        yield serve


def probe(port: int, path: str) -> tuple[int, float]:
    """Status and seconds that it took."""
    since = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status, time.monotonic() - since


def probes(port: int) -> list[float]:
    """Seconds that each of some probes took; all were answered with 200."""
    found = []
    for path in 5 * ("/healthz", "/readyz"):
        status, seconds = probe(port, path)
        assert status == 200
        found.append(seconds)
        time.sleep(0.1)
    return sorted(found)


WAYS: Final = {
    "silent": (b"", b""),
    "half a head": (HEAD, b""),
    "login body drip": (LOGIN, b" "),
    "does not read": (HEAD + b"\r\n", b""),
}


def test_the_admin_port_and_the_health_port_can_be_held_by_nobody(serve: Callable[..., Gateway]) -> None:
    gateway = serve()
    control = gateway.child("gateway.control")
    refused = 0.0
    for way, (first, drip) in WAYS.items():
        with Holders(gateway.admin, first, drip) as holders:
            assert holders.full.wait(60)
            took = probes(gateway.health)
            assert took[len(took) // 2] < PROBE_S, way  # the slowest may be the machine's
            for _ in range(3):
                assert probe(gateway.admin, "/metrics")[0] == 200
        # The application may be busy with some of those that don't read.
        before, refused = refused, gateway.metric("admin_connections_refused_total", reason="connections") or 0
        assert refused > before + 20, way
    for first in (b"", b"GET /heal"):
        with Holders(gateway.health, first) as holders:
            assert holders.full.wait(60)
            took = probes(gateway.health)
            assert took[len(took) // 2] < PROBE_S, first
    assert gateway.child("gateway.control") == control
    assert gateway.read_log().count("the one that waited longest was ended") < 20 * len(WAYS)
    assert gateway.end() == 0


def test_a_flood_of_connections_at_the_health_port_disturbs_nobody(serve: Callable[..., Gateway]) -> None:
    gateway = serve()
    stop = threading.Event()
    floods = [0, 0]

    def flood(number: int) -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), socket.socket() as sock:
                sock.bind((ADDRESSES[number], 0))
                sock.connect(("127.0.0.1", gateway.health))
                sock.send(b"GET /readyz HTTP/1.1\r\n\r\n" if number else b"")
                floods[number] += 1

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        gateway.wait_for("a flood", lambda: min(floods) > 500)
        took = probes(gateway.health)
        assert took[len(took) // 2] < PROBE_S
        # The parent does its work: a worker is started again, and a signal ends the gateway.
        worker = gateway.child("gateway.data")
        os.kill(worker, signal.SIGKILL)
        gateway.wait_for("another worker", lambda: gateway.child("gateway.data") not in (0, worker))
        gateway.ready()
        assert gateway.end() == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_requests_for_metrics_whose_clients_leave_cost_few_expositions(serve: Callable[..., Gateway]) -> None:
    gateway = serve()
    gateway.get("/metrics")
    before = _control_cpu(gateway)
    for number in range(3000):
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind((ADDRESSES[number % len(ADDRESSES)], 0))
            sock.connect(("127.0.0.1", gateway.admin))
            sock.send(HEAD + b"\r\n")
    gateway.wait_for("the next one", lambda: gateway.get("/metrics")[0] == 200)
    assert _control_cpu(gateway) - before < 3000 * 0.003  # of 5 ms each before, and 1 ms of them in HTTP
    assert gateway.end() == 0


def _control_cpu(gateway: Gateway) -> float:
    """Seconds."""
    fields = Path(f"/proc/{gateway.child('gateway.control')}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_control_that_hangs_is_not_ready_and_the_gateway_lives(serve: Callable[..., Gateway]) -> None:
    gateway = serve()
    control = gateway.child("gateway.control")
    os.kill(control, signal.SIGSTOP)
    gateway.wait_for("not ready", lambda: probe(gateway.health, "/readyz")[0] == 503)
    assert probe(gateway.health, "/healthz")[0] == 200
    os.kill(control, signal.SIGCONT)
    gateway.wait_for("ready", lambda: probe(gateway.health, "/readyz")[0] == 200)
    os.kill(control, signal.SIGKILL)
    assert probe(gateway.health, "/healthz")[0] == 200
    gateway.wait_for("another control", lambda: gateway.child("gateway.control") not in (0, control))
    gateway.ready()
    assert gateway.end() == 0
