# The admin server: /metrics, /healthz, /readyz, by Hypercorn on trio, on a socket that the parent opened.
#
# Three fixed answers need no framework; what it serves is a plain ASGI application. Knows no gateway state: what it
# shows is handed in as functions.

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as serve_asgi
from prometheus_client.exposition import CONTENT_TYPE_LATEST

Application = Callable[[Any, Any, Any], Awaitable[None]]


def make_application(metrics: Callable[[], bytes], find_problems: Callable[[], list[str]]) -> Application:
    """`metrics` renders the exposition (called in a thread); `find_problems` says why the gateway isn't ready."""

    async def answer(path: str) -> tuple[int, str, bytes]:
        match path:
            case "/metrics":
                return 200, CONTENT_TYPE_LATEST, await trio.to_thread.run_sync(metrics)
            case "/healthz":
                return 200, "text/plain; charset=utf-8", b"ok\n"
            case "/readyz":
                problems = find_problems()
                body = json.dumps({"ready": not problems, "problems": problems}).encode() + b"\n"
                return 503 if problems else 200, "application/json", body
        return 404, "text/plain; charset=utf-8", b"here are /metrics, /healthz and /readyz\n"

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["type"] != "http":
            return
        if scope["method"] in ("GET", "HEAD"):
            status, kind, body = await answer(scope["path"])
        else:
            status, kind, body = 405, "text/plain; charset=utf-8", b"only GET\n"
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return application


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
