# HTTP/1.1 for one ASGI application, on trio: h11 reads and writes it, and each wait for a client is bounded here, with
# TLS as without. Meant for a port to which few belong and which many may reach.
#
# A connection is one task. Its application is never cancelled, as it may be in the middle of a change: only waits for
# the client end, and then the application hears that its client is gone. There is no HTTP/2: nobody who asks here needs
# it, and streams that a client opens and resets cost the server a request each.
#
# Places are few. Where none is left, the connection goes that waits for its client longest, at the address that has
# most, if those are more than the new one's address has. So an address with many never takes a place of one with few.
# Where requests of others are being answered in all places, an address with few gets one of a reserve.
#
# Knows no path and no meaning of a request.

from __future__ import annotations

import contextlib
import errno
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
from gateway.control.access.gate import CERTIFICATE
from gateway.control.internal_errors import ADMIN_SERVER, InternalErrors
from gateway.log.log_bound import LogBound
from gateway.system.sockets import network_of

log = logging.getLogger("gateway.control")

Application = Callable[[Any, Any, Any], Awaitable[None]]
Reason = Literal["address", "connections", "silent", "request", "response"]

MAX_CONNECTIONS: Final = 256
MAX_PER_ADDRESS: Final = 100  # behind an ingress everybody is one; who waits for its client can lose its place anyway
RESERVE: Final = 64  # beyond MAX_CONNECTIONS, for addresses that have less than FEW
FEW: Final = 8  # less than MAX_PER_ADDRESS; a browser opens six
MAX_HEAD: Final = 16 * 1024  # bytes of a request's line and headers
FIRST_BYTE_S: Final = 5.0  # of a new connection
IDLE_S: Final = 30.0  # between two requests
REQUEST_S: Final = 65.0  # from its first byte to its last; applications, which say why, give a body 60 s
RESPONSE_S: Final = 60.0  # likewise, while it is sent
LINGER_S: Final = 1.0
PAUSE_S: Final = 0.1
REPEAT_S: Final = 10.0  # for each reason one line is logged in so long, and the number of others
READ: Final = 64 * 1024
_GONE: Final = frozenset({errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO})
_LOST: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
REASONS: Final[Mapping[Reason, str]] = {
    "address": f"more than {MAX_PER_ADDRESS} connections of this address: the one that waited longest was ended",
    "connections": f"more than {MAX_CONNECTIONS} connections: the one that waited longest was ended",
    "silent": f"a connection on which nothing came within {FIRST_BYTE_S:g} s was ended",
    "request": f"a connection whose request was not there within {REQUEST_S:g} s was ended",
    "response": f"a connection that did not take its response within {RESPONSE_S:g} s was ended",
}


class _Ended(Exception):
    """There is no client any more. `reason` None: it has gone by itself, or was idle."""

    def __init__(self, reason: Reason | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


async def serve(
    sock: socket.socket,
    application: Application,
    tls: AdminTls | None = None,
    count: Callable[[Reason], None] = lambda reason: None,
    errors: InternalErrors | None = None,
) -> None:
    """Serve all who connect, until cancelled.

    Args:
        tls: None: plain HTTP.
        count: is called for each connection that got no place, lost it, or was too slow.
        errors: of the gateway's own, within a request.
    """
    await _Server(application, tls, count, errors or InternalErrors()).run(sock)


class _Server:
    def __init__(
        self,
        application: Application,
        tls: AdminTls | None,
        count: Callable[[Reason], None],
        errors: InternalErrors,
    ) -> None:
        self._application = application
        self._tls = tls
        self._count = count
        self._errors = errors
        self._open: dict[_Connection, None] = {}
        self._bound: LogBound[Reason] = LogBound(1, REPEAT_S)

    async def run(self, sock: socket.socket) -> None:
        listening = trio.socket.from_stdlib_socket(sock)
        with listening:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        client, peer = await listening.accept()
                    except OSError as error:  # of a shortage the acceptor says so in the log
                        await trio.sleep(0 if error.errno in _GONE else PAUSE_S)
                        continue
                    with self._errors.contain(ADMIN_SERVER, peer[0]):
                        connection = _Connection(client, peer[:2], self._application)
                        if self._make_room(connection):
                            self._open[connection] = None
                            nursery.start_soon(self._serve, connection)
                        else:
                            connection.close()

    async def _serve(self, connection: _Connection) -> None:
        """All that one client can cause is in here."""
        try:
            with self._errors.contain(ADMIN_SERVER, connection.peer[0]):
                try:
                    await connection.serve(self._tls)
                except _Ended as end:
                    if end.reason is not None:
                        self._note(end.reason, connection.peer[0])
        finally:
            self._open.pop(connection, None)
            connection.close()

    def _make_room(self, new: _Connection) -> bool:
        """Whether there is a place for it, which another may have had to leave."""
        counts = Counter(connection.address for connection in self._open)
        candidates: list[_Connection]
        if counts[new.address] >= MAX_PER_ADDRESS:
            reason: Reason = "address"
            candidates = [each for each in self._open if each.address == new.address]
        elif len(self._open) >= MAX_CONNECTIONS:
            reason = "connections"
            candidates = [each for each in self._open if counts[each.address] > counts[new.address]]
        else:
            return True
        waiting = [each for each in candidates if each.waits]
        longest = max(waiting, key=lambda each: (counts[each.address], -each.since), default=None)
        if longest is None and counts[new.address] < FEW and len(self._open) < MAX_CONNECTIONS + RESERVE:
            return True
        if longest is not None:
            del self._open[longest]
            longest.close()
        self._note(reason, new.peer[0])
        return longest is not None

    def _note(self, reason: Reason, address: str) -> None:
        self._count(reason)
        now = trio.current_time()
        for left_out in self._bound.ended(now):
            fields = {"kind": "admin-refused", "reason": left_out.kind, "lines_left_out": left_out.lines}
            log.warning("admin: %d more times %s: %s", left_out.lines, left_out.within, REASONS[left_out.kind],
                        extra=fields)  # fmt: skip
        if self._bound.may_say(reason, now):
            fields = {"kind": "admin-refused", "reason": reason, "peer": address}
            log.warning("admin: %s: %s", address, REASONS[reason], extra=fields)


class _Answered(NamedTuple):
    """A request that is being answered."""

    method: bytes
    over: trio.Event  # its answer is whole


class _Connection:
    """
    Attributes:
        address: the key under which connections are counted.
        since: when its client's last request was answered, or the connection began.
        waits: for its client, in whatever it does.
    """

    def __init__(self, client: trio.socket.SocketType, peer: tuple[str, int], application: Application) -> None:
        self.peer = peer
        self.address = network_of(f"{peer[0]}:{peer[1]}")
        self.since = trio.current_time()
        self.waits = True
        self._socket = client
        self._server = client.getsockname()[:2]
        self._stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] | None = None
        self._application = application
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._deadline = 0.0
        self._request: _Answered | None = None
        self._start: dict[str, Any] | None = None  # of an answer of which nothing is sent yet
        self._ended: Exception | None = None  # why there is no client for this request any more

    def close(self) -> None:
        """At once; who waits for this client hears of it."""
        self._socket.close()

    async def serve(self, tls: AdminTls | None) -> None:
        """One request after the other.

        Raises:
            _Ended: the client has gone, or it took too long.
        """
        with trio.move_on_after(FIRST_BYTE_S) as silence, _ends():
            await self._socket.recv(1, trio.socket.MSG_PEEK)
        if silence.cancelled_caught:
            raise _Ended("silent")
        plain = trio.SocketStream(self._socket)
        with _ends():
            self._stream = plain if tls is None else await tls.secure(plain)
        if self._stream is None:
            return
        while await self._answer_one():
            self.since = trio.current_time()
            self._http.start_next_cycle()
        await self._part(plain)

    async def _answer_one(self) -> bool:
        """Whether another request may follow."""
        try:
            request = await self._read_head()
            if request.http_version not in (b"1.0", b"1.1"):
                raise h11.RemoteProtocolError("this is HTTP/1.1", error_status_hint=505)
            self._request, self._start = _Answered(request.method, trio.Event()), None
            self.waits = False
            try:
                await self._application(self._scope(request), self._receive, self._send)
            finally:
                self.waits = True
            if self._ended is not None:
                raise self._ended
            await self._refuse(500)  # unless it has answered
            while self._http.their_state is h11.SEND_BODY:  # what is left of it, as far as it is here
                if self._http.next_event() in (h11.NEED_DATA, h11.PAUSED):
                    break
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint)
            return False
        except _Ended:
            raise
        except Exception:
            await self._refuse(500)
            raise
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    # --- from the client ----------------------------------------------------------------------------------------------

    async def _read_head(self) -> h11.Request:
        event = self._http.next_event()
        if event is h11.NEED_DATA:
            self._deadline = trio.current_time() + IDLE_S
            await self._read(None)
            self._deadline = trio.current_time() + REQUEST_S
            event = await self._event()
        else:
            self._deadline = trio.current_time() + REQUEST_S
        if not isinstance(event, h11.Request):
            raise _Ended
        return event

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            await self._read("request")
        return event

    async def _read(self, late: Reason | None) -> None:
        assert self._stream is not None
        data = b""
        with trio.move_on_at(self._deadline) as time, _ends():
            data = bytes(await self._stream.receive_some(READ))
        if not data:
            raise _Ended(late if time.cancelled_caught else None)
        self._http.receive_data(data)

    async def _receive(self) -> dict[str, Any]:
        """As an application calls it."""
        assert self._request is not None
        if self._ended is None and self._http.their_state is h11.SEND_BODY:
            self.waits = True
            try:
                event = await self._event()
                body = bytes(event.data) if isinstance(event, h11.Data) else b""
                return {"type": "http.request", "body": body, "more_body": isinstance(event, h11.Data)}
            except (_Ended, h11.RemoteProtocolError) as end:
                self._ended = end
            finally:
                self.waits = False
        if self._ended is None:
            await self._request.over.wait()
        return {"type": "http.disconnect"}

    # --- to the client ------------------------------------------------------------------------------------------------

    async def _send(self, message: Mapping[str, Any]) -> None:
        """As an application calls it. To a client that is gone it sends nothing."""
        assert self._request is not None
        if self._ended is not None:
            return
        if message["type"] == "http.response.start":
            self._start = dict(message)
            return
        parts = []
        if self._start is not None:
            headers = [*self._start.get("headers", ()), (b"date", formatdate(usegmt=True).encode())]
            status = int(self._start["status"])
            parts.append(self._http.send(h11.Response(status_code=status, headers=headers, reason=_phrase(status))))
            self._start = None
            self._deadline = trio.current_time() + RESPONSE_S
        if message.get("body") and self._request.method != b"HEAD":
            parts.append(self._http.send(h11.Data(data=bytes(message["body"]))))
        if not message.get("more_body", False):
            parts.append(self._http.send(h11.EndOfMessage()))
        self.waits = True
        try:
            await self._write(b"".join(part for part in parts if part))
        except _Ended as end:
            self._ended = end
        finally:
            self.waits = False
        if not message.get("more_body", False):
            self._request.over.set()

    async def _write(self, data: bytes | None) -> None:
        assert self._stream is not None
        with trio.move_on_at(self._deadline) as time, _ends():
            await self._stream.send_all(data or b"")
        if time.cancelled_caught:
            raise _Ended("response")

    async def _refuse(self, status: int) -> None:
        """Say so where an answer hasn't begun; it is the last one."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        self._deadline = trio.current_time() + RESPONSE_S
        answer = h11.Response(status_code=status, headers=headers, reason=_phrase(status))
        await self._write(self._http.send(answer))
        self._http.send(h11.EndOfMessage())

    async def _part(self, plain: trio.SocketStream) -> None:
        """What is closed with bytes unread is reset, and the answer may be lost with it."""
        with trio.move_on_after(LINGER_S), _ends():
            if isinstance(self._stream, trio.SSLStream):
                with contextlib.suppress(trio.BrokenResourceError):  # of what comes behind the end
                    await self._stream.unwrap()
            await plain.send_eof()
            while await plain.receive_some(READ):
                pass

    def _scope(self, request: h11.Request) -> dict[str, Any]:
        path, _, query = request.target.partition(b"?")
        is_tls = isinstance(self._stream, trio.SSLStream)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode().upper(),
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
            scope[CERTIFICATE] = self._stream.getpeercert(binary_form=True)
        return scope


@contextlib.contextmanager
def _ends() -> Iterator[None]:
    try:
        yield
    except _LOST as error:
        raise _Ended from error


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""
