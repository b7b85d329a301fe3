# What the applications of the admin server share of ASGI: headers by name, a bounded body, one response. Knows no path.

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import trio

Header = tuple[bytes, bytes]


def headers_of(scope: Any) -> dict[str, str]:
    """By names in lower case; of a name that comes more than once the last one, but all cookies."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        text = value.decode("latin-1")
        is_part = name == b"cookie" and "cookie" in found  # HTTP/2 may bring them one by one
        found[name.decode("latin-1")] = f"{found['cookie']}; {text}" if is_part else text
    return found


def body_bytes(headers: Mapping[str, str]) -> float:
    """The announced size; a chunked body announces none."""
    size = headers.get("content-length", "0")
    return math.inf if "transfer-encoding" in headers or not size.isdigit() else int(size)


async def read_body(receive: Any, max_bytes: int, within_s: float) -> bytes | None:
    """None: it is larger, or not there in time."""
    body = b""
    with trio.move_on_after(within_s):
        while len(body) <= max_bytes:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if not message.get("more_body", False):
                return body if len(body) <= max_bytes else None
    return None


async def send_response(
    scope: Any, send: Any, status: int, kind: str, body: bytes | Sequence[bytes], headers: Iterable[Header] = ()
) -> None:
    """`kind`: the content type; "": none. `body`: whole, or in pieces. A HEAD request gets none of it."""
    head = [(b"content-type", kind.encode())] if kind else []
    pieces, last = ((), body) if isinstance(body, bytes) else (body, b"")
    if isinstance(body, bytes):
        head.append((b"content-length", str(len(body)).encode()))
    if scope["method"] == "HEAD":
        pieces, last = (), b""
    await send({"type": "http.response.start", "status": status, "headers": [*head, *headers]})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": last})
