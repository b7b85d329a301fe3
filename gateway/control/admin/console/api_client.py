# The REST API, asked within the process: one ASGI request for each question, with the headers and the address of
# whoever asked for the page, so that rights, hosts and other sites' pages are judged where they always are. Knows no
# path.

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

Application = Callable[[Any, Any, Any], Awaitable[None]]
Query = Mapping[str, str | int | bool | None]
Header = tuple[bytes, bytes]

# Of the page's request, these are not the question's: its body is another one, and so is the answer's form.
_OWN_HEADERS: Final = frozenset(
    {b"content-length", b"content-type", b"transfer-encoding", b"accept", b"accept-encoding", b"if-none-match"}
)


class ApiError(Exception):
    """The API's answer was an error. `detail`, `findings`: as its problem document has them, see rest/problems.py."""

    def __init__(self, status: int, detail: str, findings: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.findings = findings


class ApiClient:
    """The API, for one request of a page.

    Attributes:
        csrf: goes with every change: that the page's own request had it was checked before.
        cookies: set by the answers, as headers.
    """

    def __init__(self, application: Application, scope: Mapping[str, Any]) -> None:
        self._application = application
        self._scope = scope
        self._headers = [(name, value) for name, value in scope["headers"] if name not in _OWN_HEADERS]
        self.csrf = ""
        self.cookies: list[Header] = []

    async def get(self, path: str, **query: str | int | bool | None) -> Any:
        """The answer's JSON. A value None leaves the parameter out.

        Raises:
            ApiError: the answer was an error.
        """
        return await self.send("GET", path, None, query)

    async def send(self, method: str, path: str, body: object, query: Query) -> Any:
        """`get`, with another method and a JSON body; None: without one."""
        content = b"" if body is None else json.dumps(body).encode()
        given = {name: _query_text(value) for name, value in query.items() if value is not None}
        scope = {
            **self._scope,
            "method": method,
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": urlencode(given).encode(),
            "headers": [
                *self._headers,
                (b"accept", b"application/json"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(content)).encode()),
                *([(b"x-csrf-token", self.csrf.encode())] if self.csrf else []),
            ],
        }
        status, headers, answer = await _call_application(self._application, scope, content)
        self.cookies += [(name, value) for name, value in headers if name.lower() == b"set-cookie"]
        return _decode_response(status, answer)


def child_path(path: str, name: str) -> str:
    """The path of the thing with this name.

    Raises:
        ApiError: a path can't have it.
    """
    if "/" in name or not name:
        raise ApiError(404, f"nothing is named {name!r}")
    return f"{path}/{name}"


async def _call_application(application: Application, scope: Any, content: bytes) -> tuple[int, list[Header], bytes]:
    status, headers, parts = 500, [], []
    requests = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> Any:
        return next(requests, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], list(message.get("headers", ()))
        else:
            parts.append(message.get("body", b""))

    await application(scope, receive, send)
    return status, headers, b"".join(parts)


def _decode_response(status: int, answer: bytes) -> Any:
    if not answer and status < 400:
        return None
    try:
        said = json.loads(answer)
    except ValueError:
        raise ApiError(status, answer.decode("utf-8", "replace").strip()) from None
    if status >= 400:
        raise ApiError(status, str(said.get("detail", "")), said.get("errors", ()))
    return said


def _query_text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
