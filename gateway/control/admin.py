# The admin server: /metrics, /healthz, /readyz, /v1/…, /admin/v2/… and the console, by Hypercorn on trio, on a socket
# that the parent opened.
#
# Paths that must always answer are in a table without a framework; everything else goes to another ASGI
# application: to the API in rest/, or to the console, which asks all of this for what it shows. Who may ask for what is
# said by a gate before all of them (access/). Knows no gateway state: what it shows is handed in as functions.

from __future__ import annotations

import errno
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import Any, Final, cast

import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.control.access.gate import CERTIFICATE, Gate
from gateway.control.admin_tls import AdminTls
from gateway.hosts import is_own

log = logging.getLogger("gateway.control")

Application = Callable[[Any, Any, Any], Awaitable[None]]
Answer = tuple[int, str, bytes | Iterator[bytes]]  # status, content type, body: whole, or pieces that a thread makes
Route = Callable[[], Awaitable[Answer]]
API_PATHS: Final = ("/v1/", "/admin/v2/", "/openapi.json")
CONSOLE_PATHS: Final = ("/console", "/login", "/logout")  # and "/"
HEALTH_PATHS: Final = ("/healthz", "/readyz")
MAX_CONNECTIONS: Final = 100
MAX_HEAD: Final = 16 * 1024  # bytes of a request's line and headers
MAX_STREAMS: Final = 10  # of one HTTP/2 connection
IDLE_S: Final = 30.0
READ_S: Final = 120  # between two reads, so longer than any answer takes
CONNECTION_S: Final = 600.0
PAUSE_S: Final = 0.1
OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_FOREIGN_HOST: Final = b"here is no such host: use an address or localhost, or add the name to admin.hosts\n"
_TEXT: Final = "text/plain; charset=utf-8"


def make_application(
    metrics: Callable[[], Iterator[bytes]],
    find_problems: Callable[[], list[str]],
    views: Mapping[str, Callable[[], Any]] = MappingProxyType({}),
    api: Application | None = None,
    *,
    find_lacking: Callable[[], list[str]] = list,
    hosts: Set[str] = frozenset(),
    gate: Gate | None = None,
    console: Callable[[Application], Application] | None = None,
) -> Application:
    """`metrics` renders the exposition in pieces (in a thread); `find_problems` says why the gateway isn't ready, and
    `find_lacking` names the parts that it goes on without, ready all the same.

    `views`: more paths, each with the function that gives the JSON value shown there. `api`: has all other paths of
    API_PATHS. `hosts`: names of this server, lower-case, apart from localhost and addresses: under another one (DNS
    rebinding) a page of any site could read topics and principals, so there is nothing but HEALTH_PATHS.

    `gate`: who may ask for what, HEALTH_PATHS apart; without: as with a configuration that has no credentials.
    `console`: makes what answers CONSOLE_PATHS, from what is returned here.
    """

    async def show_metrics() -> Answer:
        return 200, CONTENT_TYPE_LATEST, metrics()

    async def show_health() -> Answer:
        return 200, _TEXT, b"ok\n"

    async def show_readiness() -> Answer:
        problems = find_problems()
        said = {"ready": not problems, "problems": problems, "lacking": find_lacking()}
        return as_json(said, 503 if problems else 200)

    def show(view: Callable[[], Any]) -> Route:
        async def answer() -> Answer:
            return as_json(view())

        return answer

    routes: dict[str, Route] = {
        "/metrics": show_metrics,
        "/healthz": show_health,
        "/readyz": show_readiness,
        **{path: show(view) for path, view in views.items()},
    }

    async def answer(method: str, path: str) -> Answer:
        if path not in routes:
            known = (*routes, *(["/openapi.json"] if api else []))
            return 404, _TEXT, f"here are {', '.join(known)}\n".encode()
        return await routes[path]() if method in ("GET", "HEAD") else (405, _TEXT, b"only GET\n")

    async def beyond(scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        if api is not None and path not in routes and path.startswith(API_PATHS):
            await api(scope, receive, send)
        elif pages is not None and (path == "/" or path.startswith(CONSOLE_PATHS)):
            await pages(scope, receive, send)
        else:
            await _send(send, scope["method"], await answer(scope["method"], scope["path"]))

    guarded = (gate or Gate(hosts=hosts)).before(beyond)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["type"] != "http":
            return
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        if scope["path"] in HEALTH_PATHS:
            await beyond(scope, receive, send)
        elif is_own(host, hosts):
            await guarded(scope, receive, send)
        else:
            await _send(send, scope["method"], (421, _TEXT, _FOREIGN_HOST))

    pages = None if console is None else console(application)
    return application


async def _send(send: Any, method: str, answer: Answer) -> None:
    status, kind, body = answer
    headers = [(b"content-type", kind.encode())]
    if isinstance(body, bytes):
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if method == "HEAD":
        body = b""
    elif not isinstance(body, bytes):
        # Each is sent before the next one is made: for 24 MB at once the kernel takes longer than we for their text.
        while (piece := await trio.to_thread.run_sync(next, body, None)) is not None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        body = b""
    await send({"type": "http.response.body", "body": body})


def as_json(value: Any, status: int = 200) -> Answer:
    return status, "application/json", json.dumps(value).encode() + b"\n"


class _Bounded(trio.abc.Listener[trio.SocketStream]):
    """Accepts while there are places; later connections wait in the kernel's queue."""

    def __init__(self, sock: socket.socket, places: trio.Semaphore) -> None:
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
        self._places = places

    async def accept(self) -> trio.SocketStream:
        await self._places.acquire()
        try:
            while True:
                try:
                    return await self._listener.accept()
                except OSError as error:
                    if error.errno not in OUT_OF_RESOURCES:
                        raise
                await trio.sleep(PAUSE_S)  # the acceptor says so in the log; trio would with a traceback
        except BaseException:
            self._places.release()
            raise

    async def aclose(self) -> None:
        await self._listener.aclose()


class _Connection(TCPServer):
    """Hypercorn's, but over as soon as its client is gone: not only when it would have been idle for too long."""

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()


async def serve(
    sock: socket.socket,
    application: Application,
    max_connections: int = MAX_CONNECTIONS,
    tls: AdminTls | None = None,
) -> None:
    """Serve until cancelled. `tls` None: plain HTTP."""
    config = Config()
    config.accesslog = None
    config.errorlog = log
    config.loglevel = "WARNING"
    config.include_server_header = False
    config.keep_alive_timeout = IDLE_S  # also: a request's head has to be whole by then
    config.read_timeout = READ_S
    config.h11_max_incomplete_size = MAX_HEAD
    config.h2_max_concurrent_streams = MAX_STREAMS
    context = WorkerContext(None)
    places = trio.Semaphore(max_connections)

    async def serve_one(stream: trio.SocketStream) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_end_later, stream)
                secured = stream if tls is None else await tls.secure(stream)
                if secured is not None:
                    app = wrap_app(cast("Any", _of_client(application, secured)), config.wsgi_max_body_size, None)
                    await _Connection(app, config, context, ConnectionState({}), cast("Any", secured))
                nursery.cancel_scope.cancel()
        finally:
            places.release()

    await trio.serve_listeners(serve_one, [_Bounded(sock, places)])


def _of_client(application: Application, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> Application:
    """With the client's certificate in the scope, where it has shown one."""
    if not isinstance(stream, trio.SSLStream):
        return application
    certificate = stream.getpeercert(binary_form=True)

    async def with_certificate(scope: Any, receive: Any, send: Any) -> None:
        await application({**scope, CERTIFICATE: certificate}, receive, send)

    return with_certificate


async def _end_later(stream: trio.SocketStream) -> None:
    """Hypercorn waits for ever for a client that doesn't read; this also bounds the time that a place can be held."""
    await trio.sleep(CONNECTION_S)
    await stream.aclose()
