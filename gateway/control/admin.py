# The admin server: /metrics, /healthz, /readyz, /v1/… and /admin/v2/…, by Hypercorn on trio, on a socket that the
# parent opened.
#
# What must answer whatever happens is a table of paths without a framework; everything else goes to another ASGI
# application, the API of rest.py. Knows no gateway state: what it shows is handed in as functions.

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as serve_asgi
from prometheus_client.exposition import CONTENT_TYPE_LATEST

Application = Callable[[Any, Any, Any], Awaitable[None]]
Answer = tuple[int, str, bytes]  # status, content type, body
Route = Callable[[], Awaitable[Answer]]
API_PATHS: Final = ("/v1/", "/admin/v2/", "/openapi.json")
_TEXT: Final = "text/plain; charset=utf-8"


def make_application(
    metrics: Callable[[], bytes],
    find_problems: Callable[[], list[str]],
    views: Mapping[str, Callable[[], Any]] = MappingProxyType({}),
    api: Application | None = None,
    *,
    find_lacking: Callable[[], list[str]] = list,
) -> Application:
    """`metrics` renders the exposition (called in a thread); `find_problems` says why the gateway isn't ready, and
    `find_lacking` what it goes on without, ready all the same.

    `views`: more paths, each with what gives the JSON value shown there. `api`: has all other paths of API_PATHS.
    """

    async def show_metrics() -> Answer:
        return 200, CONTENT_TYPE_LATEST, await trio.to_thread.run_sync(metrics)

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

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["type"] != "http":
            return
        if api is not None and scope["path"] not in routes and scope["path"].startswith(API_PATHS):
            await api(scope, receive, send)
            return
        status, kind, body = await answer(scope["method"], scope["path"])
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return application


def as_json(value: Any, status: int = 200) -> Answer:
    return status, "application/json", json.dumps(value).encode() + b"\n"


async def serve(sock: socket.socket, application: Application) -> None:
    """Serve until cancelled."""
    config = Config()
    config.bind = [f"fd://{sock.detach()}"]
    config.accesslog = None
    config.loglevel = "WARNING"
    config.include_server_header = False
    config.graceful_timeout = 0.5
    config.keep_alive_timeout = 30.0
    await serve_asgi(cast("Any", application), config, shutdown_trigger=trio.sleep_forever)
