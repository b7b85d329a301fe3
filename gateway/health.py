# /healthz and /readyz on a port of their own, which the parent answers (supervisor.py).
#
# Control can't: its time and its admin port belong to everybody who reaches them, and it is restarted while traffic
# goes on in the workers. A process of its own would have to be watched as well. The parent does little else, outlives
# both, and its loop is what has to live. One task has all connections in one selector, as the data path's reactor has:
# a connection costs some 20 µs and no task, so a flood of them is accepted as fast as it comes, and nobody else's
# connection is lost in the kernel's queue. After ACCEPT_BATCH connections the parent's other tasks have their turn.
#
# Liveness and readiness: a kubelet that restarts the pod ends every connection, so /healthz says no only when control
# has been silent for longer than any restart takes. /readyz says no much earlier: other gateways can take new
# connections meanwhile.
#
# Knows no process: what it says is reported to it.

from __future__ import annotations

import json
import logging
import selectors
import socket
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import trio

from gateway.log.log_bound import LogRateLimiter
from gateway.system.sockets import CLIENT_GONE, network_of_peer

log = logging.getLogger("gateway.health")

LIVE_PATH: Final = "/healthz"
READY_PATH: Final = "/readyz"
SILENT_S: Final = 10.0  # a restart of control takes 1 to 2 s; clients wait 30 s for the answer to their first request
DEAD_S: Final = 60.0  # the longest pause before control is started again is 10 s
MAX_CONNECTIONS: Final = 256
MAX_PER_ADDRESS: Final = 16
MAX_HEAD: Final = 8 * 1024
EXCHANGE_S: Final = 2.0  # from the connection to the whole request
ACCEPT_BATCH: Final = 64
PAUSE_S: Final = 0.1
REPEAT_S: Final = 60.0  # the same line is logged once in this time
_TEXT: Final = "text/plain; charset=utf-8"


def encode_readiness(problems: Sequence[str], lacking: Sequence[str]) -> tuple[int, bytes]:
    """Status and JSON body of /readyz. `problems`: why the gateway isn't ready; `lacking`: parts that it goes on
    without, ready all the same.
    """
    body = {"ready": not problems, "problems": list(problems), "lacking": list(lacking)}
    return 503 if problems else 200, json.dumps(body).encode() + b"\n"


class ReportedHealth:
    """What control has reported, and how long ago. `now`: any monotonic time in seconds.

    Attributes:
        is_stopping: the gateway is about to end. It isn't ready, and nobody is to end it before it has drained.
    """

    def __init__(self) -> None:
        self.is_stopping = False
        self._reported_at: float | None = None
        self._problems: Sequence[str] = ()
        self._lacking: Sequence[str] = ()

    def record_report(self, problems: Sequence[str], lacking: Sequence[str], now: float) -> None:
        self._problems, self._lacking, self._reported_at = problems, lacking, now

    def liveness_response(self, now: float) -> tuple[int, bytes]:
        """Status and text of /healthz."""
        silence = self._silence_text(now, DEAD_S)
        if silence and not self.is_stopping:
            return 503, f"{silence}\n".encode()
        return 200, b"ok\n"

    def readiness_response(self, now: float) -> tuple[int, bytes]:
        """Status and JSON of /readyz."""
        stopping = "the gateway is stopping"  # control says the same a moment later
        found = [stopping] if self.is_stopping else []
        found += [problem for problem in self._problems if problem not in found]
        silence = self._silence_text(now, SILENT_S)
        return encode_readiness([*found, *([silence] if silence else [])], self._lacking)

    def _silence_text(self, now: float, longest_s: float) -> str:
        """ "" while control has reported within that time."""
        if self._reported_at is None:
            return "control has not come up yet"
        silent_s = now - self._reported_at
        return f"control has reported nothing for {silent_s:.0f} s" if silent_s > longest_s else ""


class _HealthConnection:
    """A connection, until it is answered."""

    __slots__ = ("address", "deadline", "head", "sock")

    def __init__(self, sock: socket.socket, address: str, deadline: float) -> None:
        self.sock = sock
        self.address = address
        self.deadline = deadline
        self.head = b""


class HealthServer:
    """Answers one request on each connection to `sock`, which stays the caller's.

    Where there is no place, for its address or at all, the oldest connection goes, of the address that has most: a
    client that means it has sent its request by then.
    """

    def __init__(self, sock: socket.socket, health: ReportedHealth) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._health = health
        self._selector = selectors.DefaultSelector()
        self._connections: dict[_HealthConnection, None] = {}  # the oldest first, as all have the same time
        self._by_address: dict[str, dict[_HealthConnection, None]] = {}
        self._log_limiter: LogRateLimiter[str] = LogRateLimiter(1, REPEAT_S)

    async def run(self) -> None:
        """Until cancelled. No fault ends it."""
        self._selector.register(self._sock, selectors.EVENT_READ)
        try:
            while True:
                try:
                    await self._serve_turn()
                except Exception:
                    self._log_limited("failure", "the health port failed, and goes on", trace=True)
                    await trio.sleep(PAUSE_S)
        finally:
            for exchange in list(self._connections):
                self._close_connection(exchange)
            self._selector.close()

    async def _serve_turn(self) -> None:
        first = next(iter(self._connections), None)
        with trio.CancelScope() if first is None else trio.move_on_at(first.deadline):
            await trio.lowlevel.wait_readable(self._selector.fileno())
        now = trio.current_time()
        for exchange in list(self._connections):
            if exchange.deadline > now:
                break
            self._close_connection(exchange)
        for key, _ in self._selector.select(0):
            if key.data is None:
                if not self._accept_waiting(now):
                    await trio.sleep(PAUSE_S)
            elif key.data in self._connections:
                self._serve_connection(key.data, now)

    def _accept_waiting(self, now: float) -> bool:
        """Take some of the connections that wait. False: the system lacks what it takes."""
        for _ in range(ACCEPT_BATCH):
            try:
                client, peer = self._sock.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno in CLIENT_GONE:
                    continue
                self._log_limited("shortage", f"the health port can't accept just now: {error.strerror or error}")
                return False
            client.setblocking(False)
            address = network_of_peer(f"{peer[0]}:{peer[1]}")
            exchange = _HealthConnection(client, address, now + EXCHANGE_S)
            self._connections[exchange] = None
            own = self._by_address.setdefault(address, {})
            own[exchange] = None
            # Its request is here as a rule. Then it needs no place.
            self._serve_connection(exchange, now)
            if exchange not in self._connections:
                continue
            self._selector.register(client, selectors.EVENT_READ, exchange)
            if len(own) > MAX_PER_ADDRESS or len(self._connections) > MAX_CONNECTIONS:
                self._log_limited("full", f"health port: too many silent connections, the last one of {address}")
                crowd = own if len(own) > MAX_PER_ADDRESS else max(self._by_address.values(), key=len)
                self._close_connection(next(iter(crowd)))
        return True

    def _serve_connection(self, exchange: _HealthConnection, now: float) -> None:
        """Read what is there. When that is a whole request, answer it and end."""
        try:
            data = exchange.sock.recv(MAX_HEAD)
            exchange.head += data
            is_whole = b"\r\n\r\n" in exchange.head or b"\n\n" in exchange.head
            if is_whole or len(exchange.head) > MAX_HEAD:
                exchange.sock.send(
                    self._answer_request(exchange.head, now) if is_whole else _http_response(431, _TEXT, b"")
                )
                exchange.sock.shutdown(socket.SHUT_WR)
            elif data:
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # its client is gone
        except Exception:
            self._log_limited("fault", f"health port: a request of {exchange.address} failed", trace=True)
        self._close_connection(exchange)

    def _answer_request(self, head: bytes, now: float) -> bytes:
        method, _, rest = head.partition(b"\n")[0].rstrip(b"\r").partition(b" ")
        target, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return _http_response(400, _TEXT, b"this is HTTP/1.1\n")
        if method not in (b"GET", b"HEAD"):
            return _http_response(405, _TEXT, b"only GET\n")
        path = target.partition(b"?")[0].decode("latin-1")
        status, kind, body = 404, _TEXT, f"here are {LIVE_PATH} and {READY_PATH}\n".encode()
        if path == LIVE_PATH:
            status, body = self._health.liveness_response(now)
        elif path == READY_PATH:
            (status, body), kind = self._health.readiness_response(now), "application/json"
        return _http_response(status, kind, body, with_body=method == b"GET")

    def _close_connection(self, exchange: _HealthConnection) -> None:
        del self._connections[exchange]
        own = self._by_address[exchange.address]
        del own[exchange]
        if not own:
            del self._by_address[exchange.address]
        try:
            self._selector.unregister(exchange.sock)
        except KeyError:
            pass  # answered before it was registered
        exchange.sock.close()

    def _log_limited(self, kind: str, text: str, *, trace: bool = False) -> None:
        now = trio.current_time()
        for left_out in self._log_limiter.end_periods(now):
            log.warning("health port: %s: %d more lines %s", left_out.kind, left_out.lines, left_out.period_text)
        if self._log_limiter.allow_line(kind, now):
            log.warning("%s", text, exc_info=trace)


def _http_response(status: int, kind: str, body: bytes, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
