# The admin server's application: /metrics, /healthz, /readyz, /v1/…, /admin/v2/… and the console. http_server.py serves
# it, on a socket that the parent opened.
#
# Paths that must always answer are in a table without a framework; everything else goes to another ASGI
# application: to the API in rest/, or to the console, which asks all of this for what it shows. Who may ask for what is
# said by a gate before all of them (access/). Knows no gateway state: what it shows is handed in as functions.

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, Final

import trio
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.control.access.caller import caller_of
from gateway.control.access.gate import AccessGate
from gateway.control.access.rules import METRICS_PATH
from gateway.control.asgi import body_bytes, headers_of, send_response
from gateway.control.http_server import Application
from gateway.health import LIVE_PATH, READY_PATH, encode_readiness
from gateway.system.hosts import is_own_host

Answer = tuple[int, str, bytes | Sequence[bytes]]  # status, content type, body: whole, or in pieces
API_PATHS: Final = ("/v1/", "/admin/v2/", "/openapi.json")
CONSOLE_PATHS: Final = ("/console", "/login", "/logout")  # and "/"
HEALTH_PATHS: Final = (LIVE_PATH, READY_PATH)  # also on the health port, which others' load doesn't reach
EXPOSITION_PAUSE_S: Final = 0.2  # seconds between two: who asks sooner waits
_FOREIGN_HOST: Final = b"here is no such host: use an address or localhost, or add the name to admin.hosts\n"
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"


class AdminApplication:
    """The ASGI application.

    Args:
        metrics: renders the exposition in pieces: in a thread, and once for all who ask while another is made.
        find_problems: why the gateway isn't ready.
        views: more paths, each with the function that gives the JSON value shown there; its argument says whether the
            caller is identified.
        api: has all other paths of API_PATHS.
        find_lacking: names the parts that the gateway goes on without, ready all the same.
        hosts: names of this server, lower-case, apart from localhost and addresses: under another one (DNS rebinding) a
            page of any site could read topics and principals, so there is nothing but HEALTH_PATHS.
        gate: who may ask for what, HEALTH_PATHS apart; without: as with a configuration that has no credentials.
        make_console: makes what answers CONSOLE_PATHS, from this application.
    """

    def __init__(
        self,
        metrics: Callable[[], Iterator[bytes]],
        find_problems: Callable[[], list[str]],
        views: Mapping[str, Callable[[bool], Any]] = MappingProxyType({}),
        api: Application | None = None,
        *,
        find_lacking: Callable[[], list[str]] = list,
        hosts: Set[str] = frozenset(),
        gate: AccessGate | None = None,
        make_console: Callable[[Application], Application] | None = None,
    ) -> None:
        self._exposition = _MetricsExposition(metrics)
        self._find_problems = find_problems
        self._find_lacking = find_lacking
        self._views = views
        self._api = api
        self._hosts = hosts
        self._guarded = (gate or AccessGate(hosts=hosts)).guard_application(self._respond)
        self._console = None if make_console is None else make_console(self)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        if scope["path"] in HEALTH_PATHS:
            await self._respond(scope, receive, send)
        elif is_own_host(host, self._hosts):
            await self._guarded(scope, receive, send)
        else:
            await send_response(scope, send, 421, _TEXT, _FOREIGN_HOST)

    async def _respond(self, scope: Any, receive: Any, send: Any) -> None:
        """Respond to a request that the gate lets pass."""
        path = scope["path"]
        # The API says that they have no parameters, and no body.
        is_view = path in self._views and not scope["query_string"] and not body_bytes(headers_of(scope))
        if self._api is not None and not is_view and path.startswith(API_PATHS):
            await self._api(scope, receive, send)
        elif self._console is not None and (path == "/" or path.startswith(CONSOLE_PATHS)):
            await self._console(scope, receive, send)
        else:
            await send_response(scope, send, *await self._make_answer(scope))

    async def _make_answer(self, scope: Any) -> Answer:
        method, path = scope["method"], scope["path"]
        known = (METRICS_PATH, *HEALTH_PATHS, *self._views)
        if path not in known:
            paths = (*known, *(["/openapi.json"] if self._api else []))
            return 404, _TEXT, f"here are {', '.join(paths)}\n".encode()
        if method not in ("GET", "HEAD"):
            return 405, _TEXT, b"only GET\n"
        if path == METRICS_PATH:
            return 200, CONTENT_TYPE_LATEST, await self._exposition.render_pieces()
        if path == LIVE_PATH:
            return 200, _TEXT, b"ok\n"
        if path == READY_PATH:
            status, body = encode_readiness(self._find_problems(), self._find_lacking())
            return status, _JSON, body
        return 200, _JSON, json.dumps(self._views[path](caller_of(scope).identified)).encode() + b"\n"


class _MetricsExposition:
    """The text of /metrics, never older than the question. With many topics it takes seconds of control's time, and
    any caller may ask: so one is made at a time, EXPOSITION_PAUSE_S after the last, for all who ask until it is begun.
    """

    def __init__(self, render: Callable[[], Iterator[bytes]]) -> None:
        self._render = render
        self._making = trio.Lock()
        self._made: tuple[bytes, ...] = ()
        self._begun_at = self._made_at = -math.inf

    async def render_pieces(self) -> Sequence[bytes]:
        asked_at = trio.current_time()
        async with self._making:
            if self._begun_at < asked_at:
                await trio.sleep_until(self._made_at + EXPOSITION_PAUSE_S)
                begun_at = trio.current_time()
                self._made = ()  # of 26 MB, with 200,000 series, not two at a time
                self._made = await trio.to_thread.run_sync(lambda: tuple(self._render()))
                self._begun_at, self._made_at = begun_at, trio.current_time()
            made = self._made
            if not self._making.statistics().tasks_waiting:
                self._made, self._begun_at = (), -math.inf  # no caller is left that could share it
            return made
