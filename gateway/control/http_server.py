# HTTP/1.1 for one ASGI application, on trio: h11 reads and writes it, and each wait for a client is bounded here, with
# TLS as without. Meant for a port to which few belong and which many may reach.
#
# A connection is one task. Its application is never cancelled, as it may be in the middle of a change: only waits for
# the client end, and then the application hears that its client is gone. There is no HTTP/2: no client here needs
# it, and streams that a client opens and resets cost the server a request each.
#
# Places are few. Where none is left, the connection goes that waits for its client longest, at the address that has
# most, if those are more than the new one's address has. So an address with many never takes a place of one with few.
# Where requests of others are being answered in all places, an address with few gets one of a reserve.
#
# Knows no path and no meaning of a request.

from __future__ import annotations

import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

import h11
import trio

from gateway.control.access.admin_tls import AdminTls
from gateway.control.access.gate import CERTIFICATE_KEY
from gateway.control.internal_errors import ADMIN_SERVER, InternalErrors
from gateway.log.log_bound import LogRateLimiter
from gateway.system.sockets import CLIENT_GONE, network_of_peer

log = logging.getLogger("gateway.control")

Application = Callable[[Any, Any, Any], Awaitable[None]]
Reason = Literal["address", "connections", "silent", "request", "response"]

MAX_CONNECTIONS: Final = 256
MAX_PER_ADDRESS: Final = 100  # behind an ingress all clients are one; connections that wait may be closed anyway
RESERVE: Final = 64  # beyond MAX_CONNECTIONS, for addresses that have less than FEW
FEW_CONNECTIONS: Final = 8  # less than MAX_PER_ADDRESS; a browser opens six
MAX_HEAD: Final = 16 * 1024  # bytes of a request's line and headers
FIRST_BYTE_TIMEOUT_S: Final = 5.0  # of a new connection
IDLE_S: Final = 30.0  # between two requests
REQUEST_S: Final = 65.0  # from its first byte to its last; applications, which say why, give a body 60 s
RESPONSE_S: Final = 60.0  # likewise, while it is sent
LINGER_S: Final = 1.0
SHORTAGE_PAUSE_S: Final = 0.1
REPEAT_S: Final = 10.0  # for each reason one line is logged in so long, and the number of others
READ_BYTES: Final = 64 * 1024
_LOST: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
REASONS: Final[Mapping[Reason, str]] = {
    "address": f"more than {MAX_PER_ADDRESS} connections of this address: the one that waited longest was ended",
    "connections": f"more than {MAX_CONNECTIONS} connections: the one that waited longest was ended",
    "silent": f"a connection that sent nothing within {FIRST_BYTE_TIMEOUT_S:g} s was ended",
    "request": f"a connection whose request was not there within {REQUEST_S:g} s was ended",
    "response": f"a connection that did not take its response within {RESPONSE_S:g} s was ended",
}


class _ClientGone(Exception):
    """The connection has ended. `reason` None: the client closed it, or it was idle."""

    def __init__(self, reason: Reason | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


async def serve_http(
    sock: socket.socket,
    application: Application,
    tls: AdminTls | None = None,
    count: Callable[[Reason], None] = lambda reason: None,
    errors: InternalErrors | None = None,
) -> None:
    """Serve all connections until cancelled.

    Args:
        tls: None: plain HTTP.
        count: called for each connection that was refused, displaced, or too slow.
        errors: the gateway's own errors within requests.
    """
    await _HttpServer(application, tls, count, errors or InternalErrors()).run(sock)


class _HttpServer:
    def __init__(
        self,
        application: Application,
        tls: AdminTls | None,
        count: Callable[[Reason], None],
        errors: InternalErrors,
    ) -> None:
        self._application = application
        self._tls = tls
        self._count_refusal = count
        self._errors = errors
        self._open: dict[_HttpConnection, None] = {}
        self._log_limiter: LogRateLimiter[Reason] = LogRateLimiter(1, REPEAT_S)

    async def run(self, sock: socket.socket) -> None:
        listening = trio.socket.from_stdlib_socket(sock)
        with listening:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        client, peer = await listening.accept()
                    except OSError as error:  # of a shortage the acceptor says so in the log
                        await trio.sleep(0 if error.errno in CLIENT_GONE else SHORTAGE_PAUSE_S)
                        continue
                    with self._errors.contain_errors(ADMIN_SERVER, peer[0]):
                        connection = _HttpConnection(client, peer[:2], self._application)
                        if self._make_room(connection):
                            self._open[connection] = None
                            nursery.start_soon(self._serve_connection, connection)
                        else:
                            connection.close()

    async def _serve_connection(self, connection: _HttpConnection) -> None:
        """Contains everything that one client can cause."""
        try:
            with self._errors.contain_errors(ADMIN_SERVER, connection.peer[0]):
                try:
                    await connection.serve_requests(self._tls)
                except _ClientGone as end:
                    if end.reason is not None:
                        self._record_refusal(end.reason, connection.peer[0])
        finally:
            self._open.pop(connection, None)
            connection.close()

    def _make_room(self, new: _HttpConnection) -> bool:
        """Whether there is room for the connection; another one may have been closed for it."""
        counts = Counter(connection.address for connection in self._open)
        candidates: list[_HttpConnection]
        if counts[new.address] >= MAX_PER_ADDRESS:
            reason: Reason = "address"
            candidates = [each for each in self._open if each.address == new.address]
        elif len(self._open) >= MAX_CONNECTIONS:
            reason = "connections"
            candidates = [each for each in self._open if counts[each.address] > counts[new.address]]
        else:
            return True
        waiting = [each for each in candidates if each.is_waiting]
        longest = max(waiting, key=lambda each: (counts[each.address], -each.since), default=None)
        if longest is None and counts[new.address] < FEW_CONNECTIONS and len(self._open) < MAX_CONNECTIONS + RESERVE:
            return True
        if longest is not None:
            del self._open[longest]
            longest.close()
        self._record_refusal(reason, new.peer[0])
        return longest is not None

    def _record_refusal(self, reason: Reason, address: str) -> None:
        self._count_refusal(reason)
        now = trio.current_time()
        for left_out in self._log_limiter.end_periods(now):
            fields = {"kind": "admin-refused", "reason": left_out.kind, "lines_left_out": left_out.lines}
            log.warning("admin: %d more times %s: %s", left_out.lines, left_out.period_text, REASONS[left_out.kind],
                        extra=fields)  # fmt: skip
        if self._log_limiter.allow_line(reason, now):
            fields = {"kind": "admin-refused", "reason": reason, "peer": address}
            log.warning("admin: %s: %s", address, REASONS[reason], extra=fields)


class _PendingRequest(NamedTuple):
    """A request that is being answered."""

    method: bytes
    over: trio.Event  # its answer is whole


class _HttpConnection:
    """
    Attributes:
        address: the key under which connections are counted.
        since: when its client's last request was answered, or the connection began.
        is_waiting: for its client, in whatever it does.
    """

    def __init__(self, client: trio.socket.SocketType, peer: tuple[str, int], application: Application) -> None:
        self.peer = peer
        self.address = network_of_peer(f"{peer[0]}:{peer[1]}")
        self.since = trio.current_time()
        self.is_waiting = True
        self._socket = client
        self._server = client.getsockname()[:2]
        self._stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] | None = None
        self._application = application
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._deadline = 0.0
        self._pending_request: _PendingRequest | None = None
        self._response_start: dict[str, Any] | None = None  # of an answer of which nothing is sent yet
        self._end_reason: Exception | None = None  # why there is no client for this request any more

    def close(self) -> None:
        """Close at once; whatever waits for this client learns of it."""
        self._socket.close()

    async def serve_requests(self, tls: AdminTls | None) -> None:
        """One request after the other.

        Raises:
            _Ended: the client has gone, or it took too long.
        """
        with trio.move_on_after(FIRST_BYTE_TIMEOUT_S) as silence, _raise_when_gone():
            await self._socket.recv(1, trio.socket.MSG_PEEK)
        if silence.cancelled_caught:
            raise _ClientGone("silent")
        plain = trio.SocketStream(self._socket)
        with _raise_when_gone():
            self._stream = plain if tls is None else await tls.secure_stream(plain)
        if self._stream is None:
            return
        while await self._answer_one():
            self.since = trio.current_time()
            self._http.start_next_cycle()
        await self._drain_client(plain)

    async def _answer_one(self) -> bool:
        """Whether another request may follow."""
        try:
            request = await self._read_head()
            if request.http_version not in (b"1.0", b"1.1"):
                raise h11.RemoteProtocolError("this is HTTP/1.1", error_status_hint=505)
            self._pending_request, self._response_start = _PendingRequest(request.method, trio.Event()), None
            self.is_waiting = False
            try:
                await self._application(self._make_scope(request), self._receive, self._send)
            finally:
                self.is_waiting = True
            if self._end_reason is not None:
                raise self._end_reason
            await self._refuse_request(500)  # unless it has answered
            while self._http.their_state is h11.SEND_BODY:  # what is left of it, as far as it is here
                if self._http.next_event() in (h11.NEED_DATA, h11.PAUSED):
                    break
        except h11.RemoteProtocolError as error:
            await self._refuse_request(error.error_status_hint)
            return False
        except _ClientGone:
            raise
        except Exception:
            await self._refuse_request(500)
            raise
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    # --- from the client ----------------------------------------------------------------------------------------------

    async def _read_head(self) -> h11.Request:
        event = self._http.next_event()
        if event is h11.NEED_DATA:
            self._deadline = trio.current_time() + IDLE_S
            await self._read_data(None)
            self._deadline = trio.current_time() + REQUEST_S
            event = await self._next_event()
        else:
            self._deadline = trio.current_time() + REQUEST_S
        if not isinstance(event, h11.Request):
            raise _ClientGone
        return event

    async def _next_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self._write_data(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            await self._read_data("request")
        return event

    async def _read_data(self, late: Reason | None) -> None:
        assert self._stream is not None
        data = b""
        with trio.move_on_at(self._deadline) as time, _raise_when_gone():
            data = bytes(await self._stream.receive_some(READ_BYTES))
        if not data:
            raise _ClientGone(late if time.cancelled_caught else None)
        self._http.receive_data(data)

    async def _receive(self) -> dict[str, Any]:
        """The ASGI application's `receive`."""
        assert self._pending_request is not None
        if self._end_reason is None and self._http.their_state is h11.SEND_BODY:
            self.is_waiting = True
            try:
                event = await self._next_event()
                body = bytes(event.data) if isinstance(event, h11.Data) else b""
                return {"type": "http.request", "body": body, "more_body": isinstance(event, h11.Data)}
            except (_ClientGone, h11.RemoteProtocolError) as end:
                self._end_reason = end
            finally:
                self.is_waiting = False
        if self._end_reason is None:
            await self._pending_request.over.wait()
        return {"type": "http.disconnect"}

    # --- to the client ------------------------------------------------------------------------------------------------

    async def _send(self, message: Mapping[str, Any]) -> None:
        """The ASGI application's `send`. To a client that is gone it sends nothing."""
        assert self._pending_request is not None
        if self._end_reason is not None:
            return
        if message["type"] == "http.response.start":
            self._response_start = dict(message)
            return
        parts = []
        if self._response_start is not None:
            headers = [*self._response_start.get("headers", ()), (b"date", formatdate(usegmt=True).encode())]
            status = int(self._response_start["status"])
            parts.append(
                self._http.send(h11.Response(status_code=status, headers=headers, reason=_reason_phrase(status)))
            )
            self._response_start = None
            self._deadline = trio.current_time() + RESPONSE_S
        if message.get("body") and self._pending_request.method != b"HEAD":
            parts.append(self._http.send(h11.Data(data=bytes(message["body"]))))
        if not message.get("more_body", False):
            parts.append(self._http.send(h11.EndOfMessage()))
        self.is_waiting = True
        try:
            await self._write_data(b"".join(part for part in parts if part))
        except _ClientGone as end:
            self._end_reason = end
        finally:
            self.is_waiting = False
        if not message.get("more_body", False):
            self._pending_request.over.set()

    async def _write_data(self, data: bytes | None) -> None:
        assert self._stream is not None
        with trio.move_on_at(self._deadline) as time, _raise_when_gone():
            await self._stream.send_all(data or b"")
        if time.cancelled_caught:
            raise _ClientGone("response")

    async def _refuse_request(self, status: int) -> None:
        """Send the refusal if no response has begun; it is the last response."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        self._deadline = trio.current_time() + RESPONSE_S
        answer = h11.Response(status_code=status, headers=headers, reason=_reason_phrase(status))
        await self._write_data(self._http.send(answer))
        self._http.send(h11.EndOfMessage())

    async def _drain_client(self, plain: trio.SocketStream) -> None:
        """A socket that is closed with unread bytes is reset, and the response may be lost with it."""
        with trio.move_on_after(LINGER_S), _raise_when_gone():
            if isinstance(self._stream, trio.SSLStream):
                with contextlib.suppress(trio.BrokenResourceError):  # of what comes behind the end
                    await self._stream.unwrap()
            await plain.send_eof()
            while await plain.receive_some(READ_BYTES):
                pass

    def _make_scope(self, request: h11.Request) -> dict[str, Any]:
        path, _, query = request.target.partition(b"?")
        is_tls = isinstance(self._stream, trio.SSLStream)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),  # RFC 9110, 9.1: `head` is another method than `HEAD`, for h11 as well
            "scheme": "https" if is_tls else "http",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": self.peer,
            "server": self._server,
        }
        if isinstance(self._stream, trio.SSLStream):
            scope[CERTIFICATE_KEY] = self._stream.getpeercert(binary_form=True)
        return scope


@contextlib.contextmanager
def _raise_when_gone() -> Iterator[None]:
    try:
        yield
    except _LOST as error:
        raise _ClientGone from error


def _reason_phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""
