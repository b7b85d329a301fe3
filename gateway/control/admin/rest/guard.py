# The form of requests to the API; who may send them was decided before (access/). A change has to say that it is JSON,
# which a form can't say (a PUT without a body needn't: no form sends PUT), so that no page of another site sends one on
# behalf of a browser. Also keeps bodies bounded, lets no parameter come twice, and answers HEAD. Knows no path.

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import trio
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.control.admin.rest.problems import MAX_ERRORS, Finding, problem_response
from gateway.control.asgi import body_bytes, headers_of
from gateway.control.http_server import Application

BODY_TIMEOUT_S: Final = 60.0
MAX_BODY: Final = 32 * 2**20  # a document of 100,000 quotas is about ten
_SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")


def guard_requests(app: Application) -> Application:
    """Refuses bodies that are no JSON or too large; answers HEAD as GET without the body."""

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        method = scope["method"]
        refusal = _refuse_form(method, headers_of(scope)) or _refuse_repeated(scope["query_string"])
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        if method == "HEAD":
            scope, send = {**scope, "method": "GET"}, _without_body(send)
        await app(scope, _bound_body(receive), send)

    return guard


def _refuse_form(method: str, headers: Mapping[str, str]) -> JSONResponse | None:
    if headers.get("content-length", "0").isdigit() and int(headers.get("content-length", "0")) > MAX_BODY:
        return problem_response(413, f"a body may have {MAX_BODY} bytes")
    if method in _SAFE_METHODS:
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and method != "DELETE" and (method != "PUT" or body_bytes(headers)):
        found = f"content type {kind!r}" if kind else "no content type"
        return problem_response(415, f"{found}: send changes as application/json")
    return None


def _refuse_repeated(query: bytes) -> JSONResponse | None:
    """No parameter of this API may come twice, and of two values one would be ignored without a word."""
    counts = Counter(name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    twice = [Finding(where=f"query.{name}", what=f"given {n} times: once") for name, n in counts.items() if n > 1]
    return problem_response(422, "a parameter is given more than once", twice[:MAX_ERRORS]) if twice else None


def _bound_body(receive: Any) -> Any:
    size, is_whole = 0, False
    deadline = trio.current_time() + BODY_TIMEOUT_S

    async def bounded() -> Any:
        nonlocal size, is_whole
        try:
            with trio.fail_at(math.inf if is_whole else deadline):
                message = await receive()
        except trio.TooSlowError:
            raise HTTPException(408, f"a body has to be there within {BODY_TIMEOUT_S:g} s") from None
        size += len(message.get("body", b""))
        is_whole |= not message.get("more_body", False)
        if size > MAX_BODY:
            raise _BodyTooLarge
        return message

    return bounded


class _BodyTooLarge(HTTPException):
    def __init__(self) -> None:
        super().__init__(413, f"a body may have {MAX_BODY} bytes")


def _without_body(send: Any) -> Any:
    async def bare(message: Any) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return bare
