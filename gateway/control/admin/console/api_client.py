# The console's way to the REST API: one ASGI request within the process for each question, with the headers and the
# address of the page's request, so that rights, hosts and other sites' pages are judged where they always are. Knows no
# path.

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from gateway.control.asgi import Header
from gateway.http.admin_api import AdminRequest, ApiError, decode_response

Application = Callable[[Any, Any, Any], Awaitable[None]]

# Headers of the page's request that the question doesn't have: it has another body, and asks for another form.
_OWN_HEADERS: Final = frozenset(
    {b"content-length", b"content-type", b"transfer-encoding", b"accept", b"accept-encoding", b"if-none-match"}
)


class ApiClient:
    """The API, for one request of a page.

    Attributes:
        csrf: goes with every change: that the page's own request had it was checked before.
        cookies: set by the responses, as headers.
    """

    def __init__(self, application: Application, scope: Mapping[str, Any]) -> None:
        self._application = application
        self._scope = scope
        self._headers = [(name, value) for name, value in scope["headers"] if name not in _OWN_HEADERS]
        self.csrf = ""
        self.cookies: list[Header] = []

    async def get(self, path: str, **query: str | int | bool | None) -> Any:
        """The response's JSON. A value None leaves the parameter out.

        Raises:
            ApiError: the response is an error.
        """
        return await self.send(AdminRequest("GET", path, query))

    async def send(self, request: AdminRequest) -> Any:
        """As `get`."""
        scope = {
            **self._scope,
            "method": request.method,
            "path": request.path,
            "raw_path": quote(request.path).encode(),
            "query_string": request.query_string.encode(),
            "headers": [
                *self._headers,
                (b"accept", b"application/json"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(request.content)).encode()),
                *([(b"x-csrf-token", self.csrf.encode())] if self.csrf else []),
            ],
        }
        status, headers, body = await _call_application(self._application, scope, request.content)
        self.cookies += [(name, value) for name, value in headers if name.lower() == b"set-cookie"]
        return decode_response(status, body)


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
