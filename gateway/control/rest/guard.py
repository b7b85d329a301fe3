# Who may ask the API for what. Tokens and admin rights are rights.py's; without tokens whoever reaches the port may
# change policies, so it is bound to 127.0.0.1 unless somebody says otherwise. A browser on the same machine reaches it
# too, on behalf of any page; so a request that changes something is refused when a page of another site sent it, and
# unless it says that it is JSON, which a form can't say (a PUT without a body needn't: no form sends PUT). Also keeps
# bodies bounded, lets no parameter come twice, and answers HEAD. Knows no path.

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Set
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import trio
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.control.admin import Application
from gateway.control.rest.problems import MAX_ERRORS, Finding, problem
from gateway.control.rest.rights import MISSING, SAFE, Rights
from gateway.hosts import is_own

BODY_S: Final = 60.0
MAX_BODY: Final = 32 * 2**20  # a document of 100,000 quotas is about ten


def guarded(app: Application, hosts: Set[str], rights: Rights) -> Application:
    """Refuses who has no rights, other sites' pages, bodies that are no JSON or too large; answers HEAD as GET without
    the body.
    """

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        method = scope["method"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        peer = scope["client"][0] if scope.get("client") else ""
        missing = await rights.refuse(
            method, scope["path"], headers, peer
        )  # first: what else is wrong is theirs to know
        refusal = problem(403, missing) if missing else _refusal(method, headers, hosts)
        refusal = refusal or _ambiguous(scope["query_string"])
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        scope = {**scope, MISSING: partial(rights.missing, headers, peer)}
        if method == "HEAD":
            scope, send = {**scope, "method": "GET"}, _without_body(send)
        await app(scope, _bounded(receive), send)

    return guard


def _refusal(method: str, headers: Mapping[str, str], hosts: Set[str]) -> JSONResponse | None:
    if headers.get("content-length", "0").isdigit() and int(headers.get("content-length", "0")) > MAX_BODY:
        return problem(413, f"a body may have {MAX_BODY} bytes")
    if method in SAFE:
        return None
    site = headers.get("sec-fetch-site", "none")
    if site not in ("same-origin", "none") or not _is_own(headers.get("origin"), headers.get("host", ""), hosts):
        return problem(
            403,
            "a page of another site may not change anything here; a page of this server may, under localhost, an"
            " address, or a name that the gateway knows as its own; programs leave Origin and Sec-Fetch-Site out",
        )
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    is_empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
    if kind != "application/json" and method != "DELETE" and not (method == "PUT" and is_empty):
        return problem(
            415, f"content type {kind or 'of nothing'!r}: what changes something is sent as application/json"
        )
    return None


def _ambiguous(query: bytes) -> JSONResponse | None:
    """No parameter of this API may come twice, and of two values one would be ignored without a word."""
    counts = Counter(name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    twice = [Finding(where=f"query.{name}", what=f"given {n} times: once") for name, n in counts.items() if n > 1]
    return problem(422, "a parameter is given more than once", twice[:MAX_ERRORS]) if twice else None


def _is_own(origin: str | None, host: str, hosts: Set[str]) -> bool:
    """Whether it was no page, or one of this server's. A name that anybody's DNS may point here is not enough."""
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
        name = parts.hostname or ""
    except ValueError:
        return False
    if not host or parts.netloc.lower() != host.lower():
        return False
    return bool(name) and is_own(parts.netloc, hosts)


def _bounded(receive: Any) -> Any:
    size, is_whole = 0, False
    deadline = trio.current_time() + BODY_S

    async def bounded() -> Any:
        nonlocal size, is_whole
        try:
            with trio.fail_at(math.inf if is_whole else deadline):
                message = await receive()
        except trio.TooSlowError:
            raise HTTPException(408, f"a body has to be there within {BODY_S:g} s") from None
        size += len(message.get("body", b""))
        is_whole |= not message.get("more_body", False)
        if size > MAX_BODY:
            raise _TooLarge
        return message

    return bounded


class _TooLarge(HTTPException):
    def __init__(self) -> None:
        super().__init__(413, f"a body may have {MAX_BODY} bytes")


def _without_body(send: Any) -> Any:
    async def bare(message: Any) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return bare
